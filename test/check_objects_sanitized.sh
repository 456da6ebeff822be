#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of the objects under ASan with UBSan, and under TSan.
# The sanitizers' reports are failures; so are failures of the tests themselves.
# Seen to fail: with a null chunk that is added to; with nodes handed over unknown to TSan.
cd "$(dirname "$0")/.." || exit 2
objects='test_counters test_tscp test_gauge test_freelist test_fence'
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1
export TSCP_MOVES=200 GAUGE_HANDOFFS=200 FREELIST_SECONDS=0.5 FENCE_ROUNDS=300

one() {
    name=$1 t=$2
    shift 2
    out=$dir/$name.$t
    if ! "$@" -O1 -g -I. -Itest "test/$t.c" -o "$out" -pthread >"$out.build" 2>&1; then
        echo build >"$out.rc"
        return
    fi
    timeout 60 "$out" >"$out.log" 2>&1
    echo $? >"$out.rc"
}

if [ "$1" = --one ]; then
    dir=$2
    shift 2
    one "$@"
    exit
fi
. test/matrix/tap.sh

# works COMPILER FLAGS...: can it build, link and run a program with these?
works() {
    echo 'int main(void) { return 0; }' >"$tmp/empty.c"
    "$@" "$tmp/empty.c" -o "$tmp/empty" 2>/dev/null && "$tmp/empty" >/dev/null 2>&1
}

# list NAME COMPILER FLAGS...: the jobs, a line for each test.
list() {
    name=$1
    shift
    for t in $objects; do
        echo "$name $t $*"
    done
}

# One of each kind; SANITIZE_ALL=1 runs them with both compilers.
if [ -n "$SANITIZE_ALL" ]; then
    configurations="asan-ubsan-gcc asan-ubsan-clang tsan-gcc tsan-clang"
else
    configurations="asan-ubsan-clang tsan-gcc"
    have clang || configurations="asan-ubsan-gcc tsan-gcc"
    have gcc || configurations="asan-ubsan-clang tsan-clang"
fi
flags_of() {
    case $1 in
    asan-ubsan-*) flags='-fsanitize=address,undefined -fno-sanitize-recover=all' ;;
    tsan-*) flags=-fsanitize=thread ;;
    esac
    echo "${1##*-} -std=gnu11 $flags"
}

built=
: >"$tmp/jobs"
for c in $configurations; do
    # shellcheck disable=SC2046 # a list of words
    if works $(flags_of "$c"); then
        built="$built $c"
        list "$c" $(flags_of "$c") >>"$tmp/jobs"
    else
        skip "$c" "${c##*-} cannot build and run with it here"
    fi
done
xargs -P 2 -L 1 test/check_objects_sanitized.sh --one "$tmp" <"$tmp/jobs"

for c in $built; do
    for t in $objects; do
        rc=$(cat "$tmp/$c.$t.rc" 2>/dev/null)
        {
            echo "exit status: ${rc:-not run}"
            grep -hE 'error|^not ok|WARNING|ERROR|SUMMARY|runtime|    #[0-5] ' "$tmp/$c.$t".build \
                "$tmp/$c.$t".log 2>/dev/null
        } >"$tmp/out"
        result "${rc:-1}" "$t, $c"
    done
done
finish
