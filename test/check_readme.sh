#!/bin/bash
# SPDX-License-Identifier: MIT
# Every C block of README.md is a whole program: compile it as C and C++, run it. So is percpu.h's
# example.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
dir=$tmp said=$tmp/err
awk -v dir="$dir" '
    /^```c$/ { in_block = 1; file = sprintf("%s/readme%d.c", dir, ++blocks); next }
    /^```/ { in_block = 0 }
    in_block { print > file }' README.md
# The front page's example: the indented lines of the first comment.
awk '
    /^ \*     #include/ { on = 1 }
    on && /^ \* [A-Z]/ { exit }
    on { sub(/^ \* ? ? ? ? ?/, ""); print }' percpu.h >"$dir/front.c"
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
for f in "$dir"/*.c; do
    cp "$f" "${f}pp"
    for c in "gcc -std=c99" "clang -std=c11" "musl-gcc -std=c11" "g++ -std=c++11 -x c++" \
        "clang++ -std=c++17 -x c++"; do
        name="$(basename "$f"), ${c%% -x*}"
        have "${c%% *}" || { skip "$name" "no ${c%% *} here"; continue; }
        # shellcheck disable=SC2086 # lists of words
        $c -O2 $warn -I. "$f" -o "$dir/prog" >"$dir/err" 2>&1 &&
            "$dir/prog" >"$dir/out" 2>"$dir/err"
        result $? "$name compiles and runs"
    done
done
finish
