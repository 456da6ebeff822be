# SPDX-License-Identifier: MIT
# tap.sh - for check_*.sh: TAP in sh. Sourced after a cd to the top of the tree.
#
# A result is a group of commands. `try` runs one; it fails if the command fails or says anything at
# all, so a warning of any tool counts. `end NAME` prints the result of what ran since the last one.
# shellcheck shell=sh

tests=0 failures=0 trouble=0
tmp=$(mktemp -d "${TMPDIR:-/tmp}/percpu.XXXXXX") || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
: >"$tmp/log"
ran=0

have() { command -v "$1" >/dev/null 2>&1; }

# skip NAME REASON
skip() {
    tests=$((tests + 1))
    echo "ok $tests - $1 # SKIP $2"
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
    tests=$((tests + 1))
    if [ $ran -eq 0 ]; then
        complain "nothing ran"
    fi
    if [ $trouble -eq 0 ]; then
        echo "ok $tests - $1 ($ran)"
    else
        failures=$((failures + 1))
        echo "not ok $tests - $1"
        head -n 30 "$tmp/log" | cut -c1-300 | sed 's/^/#   /'
    fi
    trouble=0 ran=0
    : >"$tmp/log"
}

finish() {
    echo "1..$tests"
    [ $failures -eq 0 ]
    exit
}
