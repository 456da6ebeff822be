#!/bin/sh
# SPDX-License-Identifier: MIT
# check_includes.sh - the headers among others: any order, any configuration, no macro left behind.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
strict="-Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Wcast-qual -Wredundant-decls"
strict="$strict -Werror"
use='#include "test/matrix/use_all.h"'

language() { case $1 in *++) echo "c++ -std=gnu++11" ;; *) echo "c -std=gnu11" ;; esac; }

# compile CC FLAGS LINE...: the lines, as one file. Parsed only: what another header could spoil are
# declarations and macros, and use_all.h uses each of ours. check_warnings.sh makes code of it.
compile() {
    cc=$1 flags=$2
    shift 2
    printf '%s\n' "$@" >"$tmp/file"
    # shellcheck disable=SC2046,SC2086 # lists of words
    try $cc -x $(language $cc) $strict $flags -fsyntax-only -I. "$tmp/file" ||
        complain "of: $(cat "$tmp/file")"
}

has() { echo "#include <$2>" | "$1" -x c -E - >/dev/null 2>&1; }

# ---- Orders. The system's rseq headers define struct rseq, RSEQ_SIG and more: none is ours.
for cc in gcc clang musl-gcc g++ clang++; do
    if ! have $cc; then
        skip "include orders with $cc" "$cc is not installed"
        continue
    fi
    for system in sys/rseq.h linux/rseq.h linux/membarrier.h sched.h stdatomic.h threads.h; do
        case $cc$system in *++stdatomic.h) continue ;; esac
        has $cc $system || continue
        compile $cc "" "#include <$system>" '#include "percpu.h"' "$use"
        compile $cc "" '#include "percpu.h"' "#include <$system>" "$use"
    done
    compile $cc "" '#include "rseq_abi.h"' '#include "percpu.h"' "$use"
    compile $cc "" '#include "percpu.h"' '#include "rseq_abi.h"' "$use"
    compile $cc "" '#include "percpu.h"' '#include "rseq_abi.h"' '#include "percpu.h"' \
        '#include "rseq_abi.h"' "$use"
    # A warning that the headers silence inside is back after them.
    case $cc in
    *++)
        compile $cc "" 'extern "C" {' '#include "percpu.h"' '}' "$use"
        compile $cc "" 'extern "C" {' '#include "rseq_abi.h"' '#include "percpu.h"' '}' "$use"
        printf '#include "percpu.h"\nlong f(char c);\nlong f(char c) { return (long)c; }\n' \
            >"$tmp/file"
        refuses $cc -x c++ -std=c++11 -Wold-style-cast -Werror -I. -c "$tmp/file" -o "$tmp/o"
        ;;
    *)
        printf '#include "percpu.h"\nint f(int i);\nint f(int i) { { int i = 1; return i; } }\n' \
            >"$tmp/file"
        refuses $cc -x c -std=c11 -Wshadow -Werror -I. -c "$tmp/file" -o "$tmp/o"
        ;;
    esac
    end "include orders with $cc"
done

# ---- Configurations: no warning, exact, and the status tells. "flags ; what reason has to be".
enabled='(reason == PERCPU_REASON_NONE)'
[ -n "${REQUIRE_RSEQ:-}" ] || enabled="($enabled || reason == PERCPU_REASON_NO_KERNEL \
|| reason == PERCPU_REASON_BLOCKED || reason == PERCPU_REASON_NOT_PORTED)"
no_register="(reason == PERCPU_REASON_LIBC_DISABLED || $enabled)"
disabled='(reason == PERCPU_REASON_DISABLED)'
for cc in gcc clang musl-gcc g++ clang++; do
    if ! have $cc; then
        skip "configurations with $cc" "$cc is not installed"
        continue
    fi
    while IFS=';' read -r flags expect; do
        compile $cc "$flags" '#include "percpu.h"' "$use"
        # Each language and libc runs them; clang and g++ share theirs with clang++ and gcc.
        case $cc in clang | g++) continue ;; esac
        # shellcheck disable=SC2046,SC2086
        try $cc -x $(language $cc) $strict -O2 -I. -Itest $flags "-DEXPECT=$expect" \
            test/matrix/exact.c -o "$tmp/exact" -pthread && run "$tmp/exact"
    done <<EOF
;$enabled
-DPERCPU_NO_SHORT_NAMES;$enabled
-DPERCPU_STRIDE_SHIFT=12;$enabled
-DPERCPU_STRIDE_SHIFT=20;$enabled
-DPERCPU_NO_REGISTER;$no_register
-DPERCPU_FORCE_FALLBACK;$disabled
-DPERCPU_NO_LINUX;$disabled
-DPERCPU_NO_LINUX=1 -DPERCPU_STRIDE_SHIFT=12 -DPERCPU_NO_SHORT_NAMES;$disabled
EOF
    for shift in 11 21; do
        echo '#include "percpu.h"' >"$tmp/file"
        # shellcheck disable=SC2046
        refuses $cc -x $(language $cc) -DPERCPU_STRIDE_SHIFT=$shift -I. -c "$tmp/file" -o "$tmp/o"
    done
    end "configurations compile and are exact with $cc"
done
if have musl-gcc; then
    try musl-gcc -O2 -I. -Itest -DPERCPU_NO_REGISTER \
        "-DEXPECT=(reason == PERCPU_REASON_LIBC_DISABLED)" \
        test/matrix/exact.c -o "$tmp/exact" && run "$tmp/exact"
    end "PERCPU_NO_REGISTER where libc does not register"
else
    skip "PERCPU_NO_REGISTER where libc does not register" "musl-gcc is not installed"
fi

# ---- Macros: what the header defines, minus what the system headers that it includes define.
# macros CC FLAGS ALLOWED: all others are leaks
macros() {
    cc=$1 flags=$2 allowed=$3
    sed -nE 's/^ *# *(include <.*>).*/#\1/p' percpu.h rseq_abi.h | while read -r line; do
        header=$(echo "$line" | sed 's/.*<\(.*\)>/\1/')
        has "$cc" "$header" && echo "$line"
    done >"$tmp/system"
    echo '#include "percpu.h"' >"$tmp/ours"
    for f in system ours; do
        # shellcheck disable=SC2046,SC2086
        try sh -c "$cc -x $(language "$cc") $flags -I. -dM -E $tmp/$f >$tmp/$f.out"
        sed -E 's/^#define ([A-Za-z0-9_]+).*/\1/' "$tmp/$f.out" | sort >"$tmp/$f.names"
    done
    comm -13 "$tmp/system.names" "$tmp/ours.names" >"$tmp/new"
    [ "$(wc -l <"$tmp/new")" -gt 50 ] || complain "hardly any macro: is the comparison right?"
    grep -vE "$allowed" "$tmp/new" >"$tmp/leaks" && complain "$(sed 's/^/leaked: /' "$tmp/leaks")"
}
for cc in gcc clang musl-gcc g++ clang++; do
    if ! have $cc; then
        skip "no macro leaks with $cc" "$cc is not installed"
        continue
    fi
    macros $cc "" '^(PERCPU_|percpu_|this_cpu_)'
    macros $cc -DPERCPU_NO_SHORT_NAMES '^(PERCPU_|percpu_)'
    macros $cc -DPERCPU_NO_LINUX '^(PERCPU_|percpu_|this_cpu_)'
    end "no macro leaks with $cc, no short name with PERCPU_NO_SHORT_NAMES"
done
finish
