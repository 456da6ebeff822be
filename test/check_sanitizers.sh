#!/bin/sh
# SPDX-License-Identifier: MIT
# The memory, operation and counter tests under ASan with UBSan, TSan, memcheck and helgrind: no
# finding, no suppression. TEST_SCALE makes them short enough.
dir=$(mktemp -d "${TMPDIR:-/tmp}/percpu-san.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
n=0
jobs=$(nproc 2>/dev/null || echo 2)

# Each run writes its result line to a file, so that runs can go side by side.
# report NAME RC LOG FILE
report() {
    if [ "$2" = 0 ] && ! grep -q '^not ok' "$3"; then
        echo "ok - $1" >"$4"
    else
        { echo "not ok - $1 (exit status $2)"
            grep -E '^not ok|ERROR|WARNING: Thr|runtime error|^==|Possible data race' "$3" |
                head -15 | sed 's/^/# /'; } >"$4"
    fi
}

# sanitize NAME TEST SCALE COMPILER OPTION...
sanitize() {
    name=$1 test=$2 scale=$3
    shift 3
    out=$dir/$name.$test
    if ! "$@" -g -I. -Itest "test/$test.c" -o "$out" -pthread >"$out.log" 2>&1; then
        report "$test under $name: it does not build" 1 "$out.log" "$out.result"
        return
    fi
    TEST_SCALE=$scale ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        TSAN_OPTIONS=halt_on_error=1:report_signal_unsafe=1 \
        timeout 300 "$out" >"$out.log" 2>&1
    report "$test under $name" $? "$out.log" "$out.result"
}

# valgrinded TOOL TEST SCALE
valgrinded() {
    out=$dir/$1.$2
    if ! gcc -O1 -g -I. -Itest "test/$2.c" -o "$out" -pthread >"$out.log" 2>&1; then
        report "$2 under $1: it does not build" 1 "$out.log" "$out.result"
        return
    fi
    TEST_SCALE=$3 timeout 300 valgrind --tool="$1" --error-exitcode=99 -q --fair-sched=yes "$out" \
        >"$out.log" 2>&1
    report "$2 under $1" $? "$out.log" "$out.result"
}

# Run @runs, a list of lines, $jobs at a time.
run_all() {
    running=0
    while read -r line; do
        [ -n "$line" ] || continue
        eval "$line" &
        running=$((running + 1))
        [ $running -lt "$jobs" ] || { wait; running=0; }
    done
    wait
}

skipped() { echo "ok - $1 # SKIP $2" >"$dir/skip.$1.result"; }

# Can COMPILER link and run with OPTIONs here?
works() {
    echo 'int main(void) { return 0; }' >"$dir/probe.c"
    "$@" "$dir/probe.c" -o "$dir/probe" >/dev/null 2>&1 && "$dir/probe" >/dev/null 2>&1
}

tests="test_alloc test_ops test_counter test_exact test_storm"
{
    for cc in gcc clang; do
        for san in address-undefined thread; do
            case $san in
            address-undefined)
                flags="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all" scale=10
                ;;
            thread) flags="-O1 -fsanitize=thread" scale=10 ;;
            esac
            if ! command -v $cc >/dev/null; then
                skipped "$cc-$san" "no $cc"
            elif ! works $cc $flags; then
                skipped "$cc-$san" "$cc cannot link or run with -fsanitize=$san here"
            else
                for t in $tests; do
                    echo "sanitize $cc-$san $t $scale $cc $flags"
                done
            fi
        done
    done
    for tool in memcheck helgrind; do
        if command -v valgrind >/dev/null; then
            for t in test_ops test_counter test_exact; do
                case $t in test_exact) scale=3 ;; *) scale=2 ;; esac
                echo "valgrinded $tool $t $scale"
            done
        else
            skipped $tool "no valgrind"
        fi
    done
} >"$dir/list"
run_all <"$dir/list"
for result in "$dir"/*.result; do
    n=$((n + 1))
    sed "s/^\(ok\|not ok\) -/\1 $n -/" "$result"
done
echo "1..$n"
! grep -q '^not ok' "$dir"/*.result
