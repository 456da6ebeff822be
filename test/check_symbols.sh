#!/bin/sh
# SPDX-License-Identifier: MIT
# check_symbols.sh - what a program asks of its loader and of the linker: no newer glibc than the
# same program without the header, no text relocations, libc's area found whatever the linker.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
unset GLIBC_TUNABLES
cat >"$tmp/t.c" <<'C'
#ifndef PLAIN
#include "percpu.h"
#endif
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <sys/auxv.h>
#include <sched.h>
int use(void);
int use(void)
{
    char text[512] = "";
    /* What any program calls; so that both ask for the same, but for what the header adds. */
    int known = errno + (int)getauxval(6) + (int)syscall(SYS_getpid) + (sched_getcpu() < 0)
                + (mmap(0, 0, 0, 0, -1, 0) == 0) + munmap(text, 0);
#ifdef PLAIN
    return known == -12345;
#else
    static struct percpu_counter c;
    static unsigned long uses;
    percpu_counter_inc(&c);
    percpu_status_format(text, sizeof text);
    puts(text);
    printf("mode %d sum %d%s\n", (int)percpu_status().mode, (int)percpu_counter_sum(&c),
           known == -12345 ? "!" : "");
    return percpu_counter_sum(&c) != ++uses;
#endif
}
#ifndef SHARED
static void *thread(void *arg) { *(int *)arg = use(); return 0; }
int main(void)
{
    pthread_t t;
    int bad = 1;
    if (pthread_create(&t, 0, thread, &bad))
        return 1;
    pthread_join(t, 0);
    return bad + use();
}
#endif
C
echo 'int use(void); int main(void) { return use(); }' >"$tmp/main.c"
newest() { readelf -V "$1" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1; }

# What mode is to be had: told by the compiler's default.
gcc -I. "$tmp/t.c" -o "$tmp/t" -pthread >"$tmp/out" 2>&1 &&
    want=$("$tmp/t" | sed -n 's/^mode \([0-9]\).*/\1/p' | tail -1)
if [ -n "$REQUIRE_RSEQ" ] && [ "$want" = 0 ]; then result 1 "rseq is to be had"; fi
echo "# mode $want: 1 is libc's area"

# links COMPILER "LINK FLAGS" KEY: both objects, with and without the header
links() {
    # shellcheck disable=SC2086 # a list of options
    $1 $2 "$3.o" -o "$object" -pthread && $1 $2 "$3.plain.o" -o "$tmp/plain" -pthread
}
# one NAME COMPILER "COMPILE FLAGS" "LINK FLAGS" - with and without the header. Objects are built
# once.
one() {
    name=$1 cc=$2
    key=$tmp/$(echo "$2 $3" | tr -c 'a-zA-Z0-9\n' _)
    # shellcheck disable=SC2086 # lists of options
    if [ ! -f "$key.o" ]; then
        case "$4" in *-shared*) shared=-DSHARED ;; *) shared= ;; esac
        $cc $3 $shared -I. -c "$tmp/t.c" -o "$key.o" -pthread &&
            $cc $3 $shared -DPLAIN -c "$tmp/t.c" -o "$key.plain.o" -pthread
    fi >"$tmp/out" 2>&1
    object=$tmp/t
    case "$4" in
    *-shared*)
        object=$tmp/libt.so
        links $cc "$4" "$key" && gcc "$tmp/main.c" "$object" -o "$tmp/t"
        ;;
    *) links $cc "$4" "$key" ;;
    esac >>"$tmp/out" 2>&1
    rc=$?
    # shellcheck disable=SC2086
    if [ $rc != 0 ] && [ "$object" = "$tmp/t" ] &&
        ! $cc $4 "$key.plain.o" -o "$tmp/plain" -pthread >/dev/null 2>&1; then
        skip "$name" "this linker cannot do it, without the header either"
        return
    fi
    if [ $rc != 0 ]; then result 1 "$name: links without warnings"; return; fi
    "$tmp/t" >"$tmp/out" 2>&1 && grep -q "^mode $want sum" "$tmp/out"
    result $? "$name: runs, in the mode that is to be had"
    a=$(newest "$object") b=$(newest "$tmp/plain")
    [ "$(printf '%s\n' "$a" "$b" | sort -V | tail -1)" = "$b" ]
    result $? "$name: needs ${a:-no version}, without the header ${b:-no version}"
    readelf -d "$object" | grep -q TEXTREL && result 1 "$name: no text relocations"
}
STRICT="-Wl,-z,text -Wl,--fatal-warnings"
for cc in gcc clang; do
    have $cc || { skip "$cc" "no $cc"; continue; }
    for ld in bfd gold lld; do
        have ld.$ld || { skip "$cc, $ld" "no ld.$ld"; continue; }
        for opt in -O2 -O0; do
            one "$cc $ld $opt PIE" $cc "$opt -fPIE" "-fuse-ld=$ld -pie $STRICT"
            one "$cc $ld $opt no PIE" $cc "$opt -fno-pic" "-fuse-ld=$ld -no-pie $STRICT"
            one "$cc $ld $opt PIC in a PIE" $cc "$opt -fPIC -DPIC_EXE" "-fuse-ld=$ld -pie $STRICT"
            one "$cc $ld $opt shared object" $cc "$opt -fPIC" "-fuse-ld=$ld -shared $STRICT"
        done
        for more in -Wl,-z,now -static -static-pie; do
            one "$cc $ld $more" $cc "-O2 -fPIE" "-fuse-ld=$ld $more"
        done
        apart="-O2 -fPIE -ffunction-sections -fdata-sections" pie="-fuse-ld=$ld -pie"
        one "$cc $ld --gc-sections" $cc "$apart" "$pie -Wl,--gc-sections $STRICT"
        case $ld in
        gold | lld) one "$cc $ld icf" $cc "$apart" "$pie -Wl,--icf=all $STRICT" ;;
        esac
        one "$cc $ld -fstack-protector-strong" $cc "-O2 -fPIE -fstack-protector-strong" \
            "$pie $STRICT"
    done
done
finish
