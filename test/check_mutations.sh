#!/bin/bash
# SPDX-License-Identifier: MIT
# A proof that cannot fail proves nothing: break each rule of the critical sections on purpose
# (PERCPU_BREAK_* in the headers), and expect test_sections to fail, in the way that the broken rule
# makes it fail. A compile error, a hang, or another failure does not count.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh

build() { # build FLAG...
    rm -f "$tmp/test" "$tmp/out"
    "$cc" -std=gnu11 -O2 -g -I. -Itest "$@" test/test_sections.c -o "$tmp/test" -pthread \
        >"$tmp/out" 2>&1
}

run_test() {
    # The inner shell stays, to report a death by signal to the file.
    (
        ulimit -c 0
        timeout -k 5 120 "$tmp/test"
        exit $?
    ) >"$tmp/out" 2>&1
    rc=$?
}

# caught BY NAME FLAG PATTERN: exit status 1 and a line of output as expected, or death by SIGSEGV
# where @BY says so.
caught() {
    local by=$1 name="$cc: $2" pattern=$4
    if ! build "$3"; then
        result 1 "$name: does not compile"
        return
    fi
    run_test
    if [ "$rc" = 1 ] && grep -Eq "$pattern" "$tmp/out"; then
        result 0 "$name is caught: $(grep -c '^not ok' "$tmp/out") tests fail"
    elif [ "$by" = signal ] && [ "$rc" = 139 ]; then
        result 0 "$name is caught: killed by the kernel"
    else
        result 1 "$name is caught (exit status $rc)"
    fi
}

# ready: the unbroken test passes with $cc, or says why it cannot run.
ready() {
    if ! have "$cc"; then
        skip "$cc" "no $cc"
        return 1
    fi
    if ! build; then
        result 1 "$cc: the unbroken test compiles"
        return 1
    fi
    run_test
    if [ "$rc" = 77 ]; then
        skip "$cc" "$(sed -n 's/.*SKIP //p' "$tmp/out")"
        return 1
    fi
    result $((rc != 0)) "$cc: nothing broken, nothing fails"
}

no_bound() {
    caught signal "no check of the CPU id" -DPERCPU_BREAK_NO_BOUND \
        '^not ok .*CPU beyond the bound: no copy of the first bank is touched'
}

# The strings are the same for every compiler, so one compiler is enough.
cc=gcc
have gcc || cc=clang
if ready; then
    one_cpu=$(grep -c 'SKIP only one CPU' "$tmp/out")
    caught test "protection that starts an instruction late" -DPERCPU_BREAK_LATE_START \
        '^# .*: not aborted inside wrong: boundary [23] '
    caught test "an instruction after the commit" -DPERCPU_BREAK_COMMIT_NOT_LAST \
        "^# (inc|add) .*: a copy's content wrong: .*\\(inside\\)"
    no_bound
    caught test "a fallback in the first bank" -DPERCPU_BREAK_FALLBACK_ROW \
        '^not ok .*acts on the second bank'
    caught signal "a displaced signature" -DPERCPU_BREAK_SIGNATURE 'never printed'
    if [ "$(uname -m)" != x86_64 ]; then
        skip "$cc: a CPU id from before a migration" "written for x86-64 only"
    elif [ "$one_cpu" != 0 ]; then
        skip "$cc: a CPU id from before a migration" "only one CPU is allowed"
    else
        caught test "a CPU id from before a migration" -DPERCPU_BREAK_STALE_CPU \
            '^# .*wrong: boundary .*act: migration'
    fi
fi

# Where the registration is our own, a thread's first operation finds no id.
cc=musl-gcc
if ready; then
    no_bound
    caught signal "a displaced signature" -DPERCPU_BREAK_SIGNATURE 'never printed'
fi
finish
