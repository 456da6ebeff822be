#!/bin/sh
# SPDX-License-Identifier: MIT
# check_windows.sh - Windows: compiles without a warning with mingw, and runs under wine.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
cc=x86_64-w64-mingw32-gcc
warn="-Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Wcast-qual -Werror"
need $cc
wine=
for w in wine64 wine /usr/lib/wine/wine64 /usr/lib/wine/wine; do
    have $w && wine=$w && break
done
reason="wine is not installed"
stop_wine() {
    server=$(dirname "$(command -v "$wine")")/wineserver
    have "$server" || server=/usr/lib/wine/wineserver
    "$server" -k >/dev/null 2>&1
    rm -rf "$tmp"
}
if [ -n "$wine" ]; then
    # A prefix of our own, and no question about missing parts.
    WINEPREFIX=$tmp/wine WINEDEBUG=-all DISPLAY='' WINEDLLOVERRIDES=mscoree,mshtml=
    export WINEPREFIX WINEDEBUG DISPLAY WINEDLLOVERRIDES
    trap stop_wine EXIT
    echo 'int main(void) { return 42; }' >"$tmp/empty.c"
    $cc -static "$tmp/empty.c" -o "$tmp/empty.exe"
    timeout 120 $wine "$tmp/empty.exe" >/dev/null 2>&1
    [ $? -eq 42 ] || { reason="$wine does not start an empty program"; wine=; }
fi

# program NAME FLAGS FILE...: at -O2 and -O0, run where wine is
program() {
    name=$1 flags=$2
    shift 2
    for level in -O2 -O0; do
        # -static: libwinpthread is not beside the program
        # shellcheck disable=SC2086 # lists of words
        try $cc -std=gnu11 $level $warn $flags -I. -Itest -Itest/matrix "$@" -static \
            -o "$tmp/program.exe" || continue
        if [ -n "$wine" ]; then
            run timeout 120 $wine "$tmp/program.exe"
        fi
    done
    if [ -n "$wine" ]; then
        end "$name: compiles, runs"
    else
        end "$name: compiles"
        skip "$name: runs" "$reason"
    fi
}
program "the basics" "" test/test_example.c
program "the CPU's number is Windows' own" "" test/matrix/windows_id.c
program "threads are exact on the fallback" "-DEXPECT=(reason==PERCPU_REASON_DISABLED)" \
    test/matrix/exact.c
program "two files share one state" "" test/matrix/windows_files.c test/matrix/windows_part.c

printf '#include "percpu.h"\n#include "test/matrix/use_all.h"\n' >"$tmp/first.c"
use='#include "test/matrix/use_all.h"'
printf '%s\n' '#include <windows.h>' '#include "percpu.h"' "$use" >"$tmp/after.c"
printf '%s\n' '#include "percpu.h"' '#include <windows.h>' "$use" >"$tmp/before.c"
for f in first after before; do
    for std in c99 c11 c2x; do
        # shellcheck disable=SC2086
        try $cc -std=$std $warn -O2 -I. -c "$tmp/$f.c" -o "$tmp/o"
    done
done
end "all functions and macros, with and without windows.h"
if have x86_64-w64-mingw32-g++; then
    # shellcheck disable=SC2086
    try x86_64-w64-mingw32-g++ -x c++ -std=c++11 $warn -O2 -I. -c "$tmp/first.c" -o "$tmp/o"
    end "all functions and macros as C++"
else
    skip "all functions and macros as C++" "x86_64-w64-mingw32-g++ is not installed"
fi
finish
