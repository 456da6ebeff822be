#!/bin/sh
# SPDX-License-Identifier: MIT
# A snapshot of a counter set reads rows with vector adds where there are some, and is right.
# Seen to fail: with public functions marked cold: gcc then optimises their callers for size.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh

cat >"$tmp/snapshot.c" <<'C'
#include "percpu.h"
#include <stdio.h>
int main(void)
{
    static percpu_word out[20000];
    static const unsigned sizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 100, 8191, 8192, 8193, 20000};
    for (unsigned s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct percpu_counters set;
        if (percpu_counters_init(&set, sizes[s], (struct percpu_counters *)0, 0) != 0)
            return 2;
        for (unsigned e = 0; e < sizes[s]; e++) {
            percpu_word *copy;
            percpu_counters_add(&set, e, (percpu_word)e << 40 | 0xffffffffu);
            /* every row has its part, also those of CPUs that this thread is not on */
            for (unsigned cpu = 0; cpu < percpu_nr_cpus(); cpu++) {
                copy = percpu_ptr(set.chunk[e / PERCPU_COUNTERS_CHUNK], cpu);
                copy[e % PERCPU_COUNTERS_CHUNK] += 1;
            }
        }
        percpu_counters_snapshot(&set, out);
        for (unsigned e = 0; e < sizes[s]; e++)
            if (out[e] != ((percpu_word)e << 40 | 0xffffffffu) + percpu_nr_cpus()
                || out[e] != percpu_counters_sum(&set, e)) {
                printf("# event %u of %u: %lx\n", e, sizes[s], (unsigned long)out[e]);
                return 1;
            }
        percpu_counters_destroy(&set);
    }
    return 0;
}
C

# The instructions of the function that adds rows, and of the snapshot that may have it inlined.
adds() {
    objdump -d --no-show-raw-insn "$1" |
        awk '/^[0-9a-f]+ <.*(percpu_priv_add_row|percpu_counters_snapshot).*>:$/ { on = 1 }
             /^$/ { on = 0 } on && /vpaddq/'
}

# runs LEVEL: may this processor run code for it?
runs() {
    case $1 in
    x86-64-v3) want='avx2 bmi1 bmi2 fma movbe f16c' ;;
    x86-64-v4) want='avx512f avx512bw avx512cd avx512dq avx512vl' ;;
    esac
    flags=$(grep -m1 '^flags' /proc/cpuinfo)
    for f in $want; do case " $flags " in *" $f "*) ;; *) return 1 ;; esac; done
}

# check COMPILER LEVEL REGISTERS FLAGS...
check() {
    cc=$1 level=$2 wide=$3
    shift 3
    name="$cc -O3 -march=$level${*:+ $*}"
    if ! have "$cc"; then
        skip "$name" "no $cc"
        return
    fi
    if ! echo 'int x;' | "$cc" -march="$level" -x c -c - -o "$tmp/x.o" 2>/dev/null; then
        skip "$name" "this $cc does not know $level"
        return
    fi
    if ! "$cc" -std=gnu11 -O3 -march="$level" "$@" -I. "$tmp/snapshot.c" -o "$tmp/a" -pthread \
        >"$tmp/out" 2>&1; then
        result 1 "$name: builds"
        return
    fi
    adds "$tmp/a" >"$tmp/out"
    grep -q "%$wide" "$tmp/out"
    result $? "$name: rows are added with vpaddq on $wide"
    if ! runs "$level"; then
        skip "$name: sums are right" "this processor lacks $level"
    else
        "$tmp/a" >"$tmp/out" 2>&1
        result $? "$name: sums are right"
    fi
}

# A function that calls init, destroy, drain or the like is not cold for that: it has vectors too.
check_caller() {
    for call in "percpu_thread_register()" "percpu_counters_init(s, 9, 0, 0)" \
        "percpu_counters_destroy(s)" "percpu_fence()" "percpu_freelist_drain(l, 0, &p)" \
        "percpu_status()"; do
        cat >"$tmp/caller.c" <<C
#include "percpu.h"
void *p;
void caller(struct percpu_counters *s, struct percpu_freelist *l, percpu_word *a,
            const percpu_word *b)
{
    (void)s, (void)l;
    (void)$call;
    for (int i = 0; i < 1000; i++)
        a[i] += b[i];
}
C
        gcc -std=gnu11 -O3 -march=x86-64-v3 -I. -c "$tmp/caller.c" -o "$tmp/caller.o" \
            >"$tmp/out" 2>&1 &&
            objdump -d --no-show-raw-insn "$tmp/caller.o" |
            awk "/<caller>:/ { on = 1 } /^\$/ { on = 0 } on" >"$tmp/out" &&
            grep -q "vpaddq.*%ymm" "$tmp/out"
        result $? "gcc: a caller of $call is optimised as ever"
    done
}

[ "$(uname -m)" = x86_64 ] || skip_all "vector instructions are looked for on x86-64 only"
need objdump
for cc in gcc clang; do
    check $cc x86-64-v3 ymm
    check $cc x86-64-v4 '[yz]mm'
    check $cc x86-64-v4 zmm -mprefer-vector-width=512
done
if have gcc; then
    check_caller
else
    skip "callers of the library are optimised as ever" "no gcc"
fi
finish
