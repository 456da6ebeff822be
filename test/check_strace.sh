#!/bin/sh
# SPDX-License-Identifier: MIT
# check_strace.sh - rseq system calls, counted from outside: one successful registration per thread,
# and on musl as many successful unregistrations. And 100,000 threads on musl.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
unset GLIBC_TUNABLES
cat >"$tmp/t.c" <<'C'
#include "percpu.h"
#include <pthread.h>
#include <stdio.h>
static struct percpu_counter c;
static void *thread(void *arg)
{
    for (int i = 0; i < 100; i++) {
        percpu_counter_inc(&c);
        (void)this_cpu_id();
    }
    return arg;
}
int main(void)
{
    pthread_t t[20];
    for (int i = 0; i < 20; i++)
        pthread_create(&t[i], 0, thread, 0);
    for (int i = 0; i < 20; i++)
        pthread_join(t[i], 0);
    return percpu_counter_sum(&c) != 2000;
}
C
# The main thread never operates, so 20 threads register. `= 0`, not `= ?`: succeeded.
count() { # NAME UNREGISTERED COMMAND...
    name=$1 unregistered=$2
    shift 2
    if ! "$@" -I. -O2 "$tmp/t.c" -o "$tmp/t" -pthread >"$tmp/out" 2>&1; then
        result 1 "build: $name"
        return
    fi
    GLIBC_TUNABLES=glibc.pthread.rseq=0 strace -f -qq -e trace=rseq -o "$tmp/calls.raw" "$tmp/t"
    result $? "$name: runs under strace, exact" "$tmp/calls.raw"
    # "<unfinished ...>" and "resumed" lines of one call are joined by thread.
    awk '/unfinished/ { sub(/<unfinished.*/, ""); part[$1] = $0; next }
         /resumed>/ { id = $1; sub(/.*resumed>/, ""); $0 = part[id] $0 }
         { print }' "$tmp/calls.raw" >"$tmp/calls"
    area='rseq\(0x[0-9a-f]{6,}, [^,]*' flag='(0x1|[A-Z_]*UNREGISTER[A-Z_]*)'
    reg=$(grep -Ec "$area, 0, .*= 0\$" "$tmp/calls")
    unreg=$(grep -Ec "$area, $flag, .*= 0\$" "$tmp/calls")
    threads=$(grep -E '= 0$' "$tmp/calls" | awk '{ print $1 }' | sort -u | wc -l)
    [ "$reg" = 20 ]
    result $? "$name: 20 threads, $reg successful registrations" "$tmp/calls"
    [ "$threads" = 20 ]
    result $? "$name: in $threads threads" "$tmp/calls"
    [ "$unreg" = "$unregistered" ]
    result $? "$name: $unreg successful unregistrations" "$tmp/calls"
}
if ! have strace || ! strace -f -qq -e trace=rseq -o /dev/null true 2>/dev/null; then
    skip "system calls counted" "no strace that works here"
elif ! printf '%s\n' '#include "percpu.h"' \
    'int main(void) { return percpu_status().mode == PERCPU_MODE_FALLBACK; }' |
    gcc -I. -x c - -o "$tmp/p" || ! "$tmp/p"; then
    if [ -n "$REQUIRE_RSEQ" ]; then
        result 1 "rseq is to be had"
    else
        skip "system calls counted" "rseq is refused"
    fi
else
    count "glibc told not to register" 0 gcc
    count "the same, position-independent" 0 gcc -fPIC
    if have musl-gcc; then
        count musl 20 musl-gcc
        count "musl, static" 20 musl-gcc -static
        count "musl, position-independent" 20 musl-gcc -fPIC
    else
        skip "musl" "no musl-gcc"
    fi
fi
if have musl-gcc; then
    musl-gcc -I. -Itest -O2 test/test_exit.c -o "$tmp/exit" >"$tmp/out" 2>&1 &&
        TEST_THREADS=100000 "$tmp/exit" >"$tmp/out" 2>&1
    result $? "musl: 100,000 threads come and go beside others, exact"
else
    skip "100,000 threads on musl" "no musl-gcc"
fi
finish
