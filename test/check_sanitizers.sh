#!/bin/sh
# SPDX-License-Identifier: MIT
# The memory, operation and counter tests under ASan with UBSan, TSan, memcheck and helgrind: no
# finding, no suppression. TEST_SCALE makes them short enough.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
jobs=$(nproc 2>/dev/null || echo 2)

# Each run writes its result to a file, so that runs can go side by side: a line with the name, and
# one that is "ok", or lines that say what is wrong.
# report NAME RC LOG FILE
report() {
    echo "$1" >"$4"
    if [ "$2" = 0 ] && ! grep -q '^not ok' "$3"; then
        echo ok >>"$4"
    else
        echo "exit status $2" >>"$4"
        grep -E '^not ok|error:|ERROR|WARNING: Thr|^==|Possible data race' "$3" >>"$4"
    fi
}

# sanitize NAME TEST SCALE COMPILER OPTION...
sanitize() {
    name=$1 test=$2 scale=$3
    shift 3
    out=$tmp/$name.$test
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
    out=$tmp/$1.$2
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

# Can COMPILER link and run with OPTIONs here?
works() {
    echo 'int main(void) { return 0; }' >"$tmp/probe.c"
    "$@" "$tmp/probe.c" -o "$tmp/probe" >/dev/null 2>&1 && "$tmp/probe" >/dev/null 2>&1
}

: >"$tmp/list"
for cc in gcc clang; do
    for san in address undefined thread; do
        case $san in
        address) flags="-O1 -fsanitize=address" scale=20 ;;
        undefined) flags="-O1 -fsanitize=undefined -fno-sanitize-recover=all" scale=20 ;;
        thread) flags="-O1 -fsanitize=thread" scale=10 ;;
        esac
        # shellcheck disable=SC2086 # lists of words
        if ! have $cc; then
            skip "$cc-$san" "no $cc"
        elif ! works $cc $flags; then
            skip "$cc-$san" "$cc cannot link or run with -fsanitize=$san here"
        else
            for t in test_alloc test_ops test_counter test_exact test_storm; do
                echo "sanitize $cc-$san $t $scale $cc $flags" >>"$tmp/list"
            done
        fi
    done
done
for tool in memcheck helgrind; do
    if have valgrind; then
        for t in test_ops test_counter test_exact; do
            case $t in test_exact) scale=3 ;; *) scale=2 ;; esac
            echo "valgrinded $tool $t $scale" >>"$tmp/list"
        done
    else
        skip $tool "no valgrind"
    fi
done
run_all <"$tmp/list"
for file in "$tmp"/*.result; do
    [ -e "$file" ] || continue
    sed 1d "$file" >"$tmp/out"
    [ "$(cat "$tmp/out")" = ok ]
    result $? "$(head -n 1 "$file")"
done
finish
