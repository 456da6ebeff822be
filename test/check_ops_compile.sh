#!/bin/sh
# SPDX-License-Identifier: MIT
# Operands of this_cpu_* that must compile, and those that must not: a wrong size, floating point,
# things that are no numbers. With each compiler that is there, in C and in C++.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh

ops='this_cpu_add(*p, 1)
this_cpu_sub(*p, 1)
this_cpu_inc(*p)
this_cpu_dec(*p)
this_cpu_and(*p, 1)
this_cpu_or(*p, 1)
this_cpu_write(*p, V)
(void)this_cpu_read(*p)
(void)this_cpu_add_return(*p, 1)
(void)this_cpu_xchg(*p, V)
(void)this_cpu_cmpxchg(*p, V, V)'

# program TYPE VALUE: on standard input the operations; a function of its own for each.
program() {
    cat <<END
#include "percpu.h"
struct pair { short a, b; };
struct one { int a; };
struct two { long a; };
union either { int a; unsigned b; };
enum colour { RED };
END
    i=0
    while read -r op; do
        i=$((i + 1))
        echo "#line $i \"operation.c\""
        arguments="$1 *p, $1 v"
        echo "void f$i($arguments);"
        echo "#line $i"
        echo "$op" | sed "s/V/$2/g; s/.*/void f$i($arguments) { &; (void)p; (void)v; }/"
    done
}

check_compiler() {
    for type in int unsigned 'long' 'unsigned long' 'void *' 'const char *' 'enum colour' \
        'struct one *' int32_t uint64_t 'volatile int'; do
        echo "$ops" | program "$type" v >"$tmp/t.c"
        if ! $1 -O1 -w -I. -S "$tmp/t.c" -o "$tmp/t.s" 2>"$tmp/err"; then
            result 1 "$1: $type compiles" "$tmp/err"
            return
        fi
    done
    result 0 "$1: integers, pointers and enums compile"
    for type in char short 'unsigned char' 'struct pair' 'struct one' 'struct two' 'union either' \
        float double 'long double' 'volatile float' 'volatile double' bool; do
        case $1-$type in *++*) ;; *-bool) type=_Bool ;; esac
        echo "$ops" | program "$type" 1 >"$tmp/t.c"
        $1 -O1 -w -I. -S "$tmp/t.c" -o "$tmp/t.s" 2>"$tmp/err"
        bad=
        for line in 1 2 3 4 5 6 7 8 9 10 11; do
            grep -q "operation.c:$line[:,]" "$tmp/err" && continue
            # One kind of error may keep a compiler from the next: ask for this operation alone.
            op=$(echo "$ops" | sed -n "${line}p")
            echo "$op" | program "$type" 1 >"$tmp/alone.c"
            $1 -O1 -w -I. -S "$tmp/alone.c" -o "$tmp/t.s" 2>/dev/null && bad="$bad $op;"
        done
        echo "it was not by:$bad" >"$tmp/out"
        [ -z "$bad" ]
        result $? "$1: $type is refused"
    done
}

for compiler in "gcc -std=gnu11" "g++ -std=gnu++11 -x c++" "clang -std=gnu11" \
    "clang++ -std=gnu++17 -x c++"; do
    if have "${compiler%% *}"; then
        check_compiler "$compiler"
    else
        skip "${compiler%% *}" "no ${compiler%% *}"
    fi
done
finish
