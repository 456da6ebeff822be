#!/bin/bash
# SPDX-License-Identifier: MIT
# What the compilers make of the hot paths: how many instructions and loads, no call, no lock. The
# numbers are in the names of the results. Then: the boundaries that test_sections traps are those
# of the disassembler; and a debugger gets over an operation.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
need objdump readelf awk

cat >"$tmp/hot.c" <<'END'
#include "percpu.h"
int hot_cpu(void);
void hot_inc(uint64_t *p);
void hot_inc32(uint32_t *p);
void hot_counter(struct percpu_counter *c);
int hot_cpu(void) { return percpu_cpu_raw(); }
void hot_inc(uint64_t *p) { this_cpu_inc(*p); }
void hot_inc32(uint32_t *p) { this_cpu_inc(*p); }
void hot_counter(struct percpu_counter *c) { percpu_counter_inc(c); }
int main(void) { return hot_cpu() < -9; }
END

# function OBJDUMP FILE NAME: its instructions, one a line, without addresses and comments.
function_of() {
    $1 -d -w --no-show-raw-insn "$2" | awk -v name="<$3>:" '
        $2 == name { on = 1; next }
        on && !NF { exit }
        on {
            sub(/^ *[0-9a-f]+:[ \t]*/, "")
            sub(/[ \t]+(#|\/\/) .*/, "")
            sub(/[ \t]*<.*/, "")
            print
        }'
}

# fast FILE COMMIT: the instructions up to the commit, that is, with no branch taken.
fast() {
    awk -v commit="$2" '{ print } $0 ~ commit { found = 1; exit } END { exit !found }' "$1"
}

built() { # built NAME COMMAND...
    local name=$1
    shift
    "$@" >"$tmp/out" 2>&1 && return 0
    result 1 "$name: compiles"
    return 1
}

flags="-std=gnu11 -O2 -g -I. -pthread"
calls='^(notrack )?call|^blr?[[:space:]]|^jal|^lock'
branches='^j|^call|^notrack|^b[a-z.]*[[:space:]]|^cb|^tb'

# cpu_hint NAME OBJDUMP FILE LOADS: percpu_cpu_raw() is straight-line code with at most LOADS loads.
cpu_hint() {
    local loads total
    function_of "$2" "$3" hot_cpu | awk '/^ret|^endbr|^bti|^nop/ { next } { print }' >"$tmp/hot"
    total=$(wc -l <"$tmp/hot")
    loads=$(grep -cE '^mov.*[(:].*,%|^(cmp|or|test|neg)[a-z]*[[:space:]].*\(.*\)|^l[dw]' "$tmp/hot")
    [ "$total" -gt 0 ] && [ "$loads" -gt 0 ] && [ "$loads" -le "$4" ] &&
        ! grep -qE "$branches" "$tmp/hot"
    result $? "$1: percpu_cpu_raw() is $total instructions, $loads loads, no branch" "$tmp/hot"
}

# operation NAME OBJDUMP FILE FUNCTION COMMIT SKIP MOST: no call or lock; at most MOST instructions
# that do not match SKIP, which names the load of the offset and its test.
operation() {
    local all count
    function_of "$2" "$3" "$4" | awk '/^endbr|^bti/ { next } { print }' >"$tmp/function"
    if ! fast "$tmp/function" "$5" >"$tmp/hot"; then
        result 1 "$1: $4 has a commit" "$tmp/function"
        return
    fi
    all=$(wc -l <"$tmp/hot")
    count=$(awk -v skip="$6" '
        skip && $0 ~ skip && !(skipped[$1]++) { next }
        { n++ }
        END { print n }' "$tmp/hot")
    all="$count instructions and $((all - count)) for the offset"
    ! grep -qE "$calls" "$tmp/hot" && [ "$count" -le "$7" ]
    result $? "$1: $4 is $all, no call, no lock" "$tmp/hot"
}

native=$(uname -m)
for cc in gcc clang; do
    have $cc || { skip "$cc" "no $cc"; continue; }
    [ "$native" = x86_64 ] || { skip "$cc: numbers" "they are for x86-64"; continue; }
    row='%rcx'
    for kind in "PIE:-fPIE -pie:2" "non-PIE:-fno-pic -no-pie:2" "shared object:-fPIC -shared:3"; do
        name="$cc, ${kind%%:*}"
        options=${kind#*:}
        most=${options##*:}
        options=${options%:*}
        # shellcheck disable=SC2086 # lists of flags
        built "$name" $cc $flags $options "$tmp/hot.c" -o "$tmp/hot.bin" || continue
        cpu_hint "$name" objdump "$tmp/hot.bin" "$most"
        [ "$most" = 2 ] || continue
        # The offset is one load: of a word of percpu_priv_state, 64 bits wide.
        offset='^mov[ \t]+(0x[0-9a-f]+|0x[0-9a-f]+\(%rip\)),%r[a-z0-9]+$'
        add64='^(add|inc)q?[ \t].*'$row add32='^(add|inc)l?[ \t].*'$row
        operation "$name" objdump "$tmp/hot.bin" hot_inc "$add64" "$offset" 8
        operation "$name" objdump "$tmp/hot.bin" hot_inc32 "$add32" "$offset" 8
        operation "$name" objdump "$tmp/hot.bin" hot_counter "$add64" "$offset" 8
    done
done

for arch in aarch64 riscv64; do
    cc=$arch-linux-gnu-gcc
    have $cc || { skip "$arch" "no $cc"; continue; }
    # shellcheck disable=SC2086
    built "$arch" $cc $flags -static "$tmp/hot.c" -o "$tmp/hot.bin" || continue
    if [ $arch = aarch64 ]; then
        commit='^str[ \t]+[wx]11, \[x10\]'
        # adrp and ldr of the offset, the test, and an add if the compiler shares the address.
        offset='^adrp[ \t]+x[0-8],|^ldr[ \t]+x[0-8], \[x[0-8]|^cbz[ \t]+w'
        offset="$offset|^add[ \\t]+x[0-8], x[0-8], #0x"
        most=12
    else
        commit='^s[wd][ \t]+t2,0\(t1\)'
        offset='^auipc[ \t]+a|^l[dw][ \t]+a|^beqz[ \t]+a|^add[ \t]+a[0-9],a[0-9],-?[0-9]'
        most=15
    fi
    dump=$arch-linux-gnu-objdump
    cpu_hint "$arch" $dump "$tmp/hot.bin" 3
    operation $arch $dump "$tmp/hot.bin" hot_inc "$commit" "$offset" $most
    operation $arch $dump "$tmp/hot.bin" hot_counter "$commit" "$offset" $((most + 5))
done

# ---- Two views of where instructions begin
boundaries() { # boundaries NAME COMMAND...
    local name=$1 base
    shift
    built "$name" "$@" -Itest test/test_sections.c -o "$tmp/sections" || return
    if ! "$tmp/sections" --boundaries >"$tmp/ours"; then
        result 1 "$name: lists boundaries" "$tmp/ours"
        return
    fi
    base=$(readelf -SW "$tmp/sections" | sed -n 's/.* __rseq_cs  *[A-Z]* *\([0-9a-f]*\) .*/\1/p')
    objdump -d -w --no-show-raw-insn "$tmp/sections" |
        sed -n 's/^ *\([0-9a-f]*\):.*/\1/p' >"$tmp/theirs"
    perl -e '
        use strict; use warnings;
        my ($base, $theirs, $ours) = (hex shift, shift, shift);
        open my $in, "<", $theirs or die;
        chomp(my @at = <$in>);
        @at = map { hex } @at;
        my %index;
        @index{@at} = 0 .. $#at;
        open $in, "<", $ours or die;
        my ($sections, $bad, $n) = (0, 0, 0);
        while (<$in>) {
            my ($word, @b) = split;
            $sections++;
            my $first = $index{$base + $b[0]};
            for my $i (0 .. $#b) {
                $n++;
                next if $word eq "section" && defined $first && $at[$first + $i] == $base + $b[$i];
                $bad++;
                printf "%s: boundary %d, 0x%x, differs\n", $word, $i, $base + $b[$i];
            }
        }
        print "$n boundaries of $sections sections\n";
        exit($bad || !$n);' "$base" "$tmp/theirs" "$tmp/ours" >"$tmp/out"
    result $? "$name: test_sections and objdump agree on $(tail -1 "$tmp/out")"
}
if have perl; then
    for cc in gcc clang; do
        have $cc || continue # said above
        for opt in -O2 -O0 "-Os -fPIC" "-O3 -fno-pic -no-pie"; do
            # shellcheck disable=SC2086
            boundaries "$cc $opt" $cc -std=gnu11 $opt -g -I. -pthread
        done
    done
else
    skip "boundaries" "no perl"
fi

# ---- A debugger. Each of its steps aborts the section; after 256 in a row the operation gives up.
cat >"$tmp/step.c" <<'END'
#include "percpu.h"
#include <stdio.h>
static struct percpu_counter hits;
volatile int past, turns;
int main(void)
{
    percpu_counter_inc(&hits);
    past = 0;
    percpu_counter_inc(&hits); /* STEP */
    past = 1; /* NEXT */
    for (turns = 0; turns < 100000; turns++)
        ;
    printf("mode %d sum %lu\n", (int)percpu_status().mode,
           (unsigned long)percpu_counter_sum(&hits));
    return 0;
}
END
debugger() { # debugger NAME COMPILER FLAG...
    local name=$1 line next
    shift
    built "$name" "$@" -std=gnu11 -g -I. -pthread "$tmp/step.c" -o "$tmp/step" || return
    "$tmp/step" >"$tmp/plain"
    if grep -q 'mode 0' "$tmp/plain"; then
        skip "$name" "operations take the fallback here"
        return
    fi
    line=$(grep -n 'STEP' "$tmp/step.c" | cut -d: -f1)
    next=$(grep -n 'NEXT' "$tmp/step.c" | cut -d: -f1)
    gdb -nx -batch -ex 'set confirm off' -ex "break step.c:$line" -ex run -ex next -ex 'frame' \
        -ex 'printf "past %d\n", past' -ex continue "$tmp/step" >"$tmp/out" 2>&1
    if ! grep -q '^Breakpoint 1, ' "$tmp/out"; then
        skip "$name" \
            "gdb cannot run a program here: $(grep -im1 'ptrace\|warning\|error' "$tmp/out")"
        return
    fi
    grep -q "^$next[[:space:]]" "$tmp/out" && grep -q 'sum 2$' "$tmp/out"
    result $? "$name: next over an operation arrives at the next line, sum exact"
    gdb -nx -batch -ex 'set confirm off' -ex "break step.c:$line" -ex run -ex 'stepi 5000' \
        -ex 'printf "past %d\n", past' -ex continue "$tmp/step" >"$tmp/out" 2>&1
    grep -q '^past 1' "$tmp/out" && grep -q 'sum 2$' "$tmp/out"
    result $? "$name: 5000 single steps get past an operation, sum exact"
}
if have gdb; then
    for cc in gcc clang musl-gcc; do
        have $cc || { skip "gdb, $cc" "no $cc"; continue; }
        debugger "gdb, $cc -O2" $cc -O2
    done
    have gcc && debugger "gdb, gcc -O0" gcc -O0
else
    skip "a debugger gets past an operation" "no gdb"
fi
finish
