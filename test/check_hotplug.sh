#!/bin/sh
# SPDX-License-Identifier: MIT
# A CPU that goes away and comes back, while workers count: exact. Skipped where this is not
# allowed. The CPU is brought back whatever happens.
file=/sys/devices/system/cpu/cpu1/online
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
[ -e $file ] || skip "CPU 1 cannot go offline here"
[ "$(cat $file)" = 1 ] || skip "CPU 1 is not online"
[ -w $file ] || skip "no permission to take a CPU offline"
dir=$(mktemp -d "${TMPDIR:-/tmp}/percpu-hotplug.XXXXXX") || exit 1
trap 'echo 1 >$file; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
( echo 0 >$file ) 2>/dev/null || skip "the kernel refuses to take CPU 1 offline"
echo 1 >$file
n=0

# storm NAME COMPILER OPTION...: test_storm while the CPU comes and goes.
storm() {
    name=$1 toggles=0
    shift
    n=$((n + 1))
    if ! command -v "$1" >/dev/null; then
        echo "ok $n - $name # SKIP no $1"
        return
    fi
    if ! "$@" -O2 -I. -Itest test/test_storm.c -o "$dir/storm" -pthread >"$dir/log" 2>&1; then
        echo "not ok $n - $name: it does not build"
        return
    fi
    TEST_SCALE=100 "$dir/storm" >"$dir/log" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        echo 0 >$file && echo 1 >$file && toggles=$((toggles + 1))
    done
    wait $pid
    rc=$?
    sed -n 's/^#/# storm:/p; s/^not ok/# storm: not ok/p' "$dir/log"
    echo "# CPU 1 went and came back $toggles times"
    if [ $rc = 0 ] && [ $toggles -gt 0 ]; then
        echo "ok $n - $name: exact while a CPU goes offline and comes back"
    else
        echo "not ok $n - $name: exact while a CPU goes offline and comes back (exit status $rc)"
    fi
}
storm glibc gcc -std=gnu11
storm musl musl-gcc -std=gnu11
echo "1..$n"
