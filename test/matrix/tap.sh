# SPDX-License-Identifier: MIT
# tap.sh - for check_*.sh: TAP in sh. Sourced after a cd to the top of the tree.
#
# `result STATUS NAME` prints one result. Or a result is a group of commands: `try` runs one; it
# fails if the command fails or says anything at all, so a warning of any tool counts; `end NAME`
# prints the result of what ran since the last one. `finish` comes last.
# shellcheck shell=sh

tests=0 failures=0 trouble=0
# scratch: the name of the directory, where that matters.
tmp=$(mktemp -d "${TMPDIR:-/tmp}/${scratch:-percpu}.XXXXXX") || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
: >"$tmp/log"
ran=0
said=$tmp/out # what `result` shows where it is not told

have() { command -v "$1" >/dev/null 2>&1; }

# excerpt FILE: as a comment; how it begins and ends, if it is long
excerpt() {
    [ -s "$1" ] || return 0
    cut -c1-300 "$1" | awk '
        { line[NR] = $0 }
        END {
            for (i = 1; i <= NR; i++) {
                if (i <= 15 || i > NR - 15) print "#   " line[i]
                else if (i == 16) print "#   ..."
            }
        }'
}

# result STATUS NAME [FILE]: one result, with what FILE says if it failed
result() {
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then
        echo "ok $tests - $2"
    else
        failures=$((failures + 1))
        echo "not ok $tests - $2"
        excerpt "${3:-$said}"
    fi
    return 0
}

# skip NAME REASON
skip() {
    tests=$((tests + 1))
    echo "ok $tests - $1 # SKIP $2"
}

# skip_all REASON: nothing of this script can run here
skip_all() {
    echo "1..0 # SKIP $1"
    exit 77
}

# need TOOL...: skip_all without them
need() {
    for tool in "$@"; do
        have "$tool" || skip_all "no $tool"
    done
}

# complain TEXT: this group has failed, for this reason
complain() {
    trouble=1
    printf '%s\n' "$*" >>"$tmp/log"
}

# try COMMAND...: it succeeds, silently
try() {
    ran=$((ran + 1))
    "$@" >"$tmp/out" 2>&1 </dev/null
    rc=$?
    if [ $rc -ne 0 ] || [ -s "$tmp/out" ]; then
        complain "[$rc] $*"
        head -n 8 "$tmp/out" >>"$tmp/log"
        return 1
    fi
}

# refuses COMMAND...: it fails
refuses() {
    ran=$((ran + 1))
    if "$@" >"$tmp/out" 2>&1 </dev/null; then
        complain "succeeded, and should not: $*"
        return 1
    fi
}

# run COMMAND...: a program that speaks TAP passes, with at least one result
run() {
    ran=$((ran + 1))
    "$@" >"$tmp/out" 2>&1 </dev/null
    rc=$?
    if [ $rc -ne 0 ] || grep -q '^not ok' "$tmp/out" || ! grep -q '^ok' "$tmp/out"; then
        complain "[$rc] $*"
        grep -v '^ok' "$tmp/out" | head -n 20 >>"$tmp/log"
        return 1
    fi
}

# end NAME: one result for everything since the last
end() {
    if [ $ran -eq 0 ]; then
        complain "nothing ran"
    fi
    if [ $trouble -eq 0 ]; then
        result 0 "$1 ($ran)"
    else
        result 1 "$1" "$tmp/log"
    fi
    trouble=0 ran=0
    : >"$tmp/log"
}

finish() {
    echo "1..$tests"
    [ $failures -eq 0 ]
    exit
}
