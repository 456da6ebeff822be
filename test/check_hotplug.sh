#!/bin/sh
# SPDX-License-Identifier: MIT
# A CPU that goes away and comes back, while workers count: exact. Skipped where this is not
# allowed. The CPU is brought back whatever happens.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
file=/sys/devices/system/cpu/cpu1/online
[ -e $file ] || skip_all "CPU 1 cannot go offline here"
[ "$(cat $file)" = 1 ] || skip_all "CPU 1 is not online"
[ -w $file ] || skip_all "no permission to take a CPU offline"
trap 'echo 1 >$file; rm -rf "$tmp"' EXIT
( echo 0 >$file ) 2>/dev/null || skip_all "the kernel refuses to take CPU 1 offline"
echo 1 >$file

# storm NAME COMPILER OPTION...: test_storm while the CPU comes and goes.
storm() {
    name=$1 toggles=0
    shift
    if ! have "$1"; then
        skip "$name" "no $1"
        return
    fi
    if ! "$@" -O2 -I. -Itest test/test_storm.c -o "$tmp/storm" -pthread >"$tmp/out" 2>&1; then
        result 1 "$name: it does not build"
        return
    fi
    TEST_SCALE=100 "$tmp/storm" >"$tmp/out" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        echo 0 >$file && echo 1 >$file && toggles=$((toggles + 1))
    done
    wait $pid
    rc=$?
    echo "exit status $rc" >>"$tmp/out"
    sed -n 's/^#/# storm:/p' "$tmp/out"
    echo "# CPU 1 went and came back $toggles times"
    [ $rc = 0 ] && [ $toggles -gt 0 ]
    result $? "$name: exact while a CPU goes offline and comes back"
}
storm glibc gcc -std=gnu11
storm musl musl-gcc -std=gnu11
finish
