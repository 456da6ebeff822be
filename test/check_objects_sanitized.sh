#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of the objects under ASan with UBSan, and under TSan.
# The sanitizers' reports are failures; so are failures of the tests themselves.
# Seen to fail: with a null chunk that is added to; with nodes handed over unknown to TSan.
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/sanitized.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
n=0 failed=0
tests='test_counters test_tscp test_gauge test_freelist test_fence'
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1 TSCP_MOVES=200 GAUGE_HANDOFFS=200 FREELIST_SECONDS=0.5 FENCE_ROUNDS=300

# works COMPILER FLAGS...: can it build, link and run a program with these?
works() {
    echo 'int main(void) { return 0; }' >"$dir/empty.c"
    "$@" "$dir/empty.c" -o "$dir/empty" 2>/dev/null && "$dir/empty" >/dev/null 2>&1
}

# list NAME COMPILER FLAGS...: the jobs, a line for each test.
list() {
    name=$1
    shift
    for t in $tests; do
        echo "$name $t $*"
    done
}

one() {
    name=$1 t=$2
    shift 2
    out=$dir/$name.$t
    if ! "$@" -O1 -g -I"$top" -I"$top/test" "$top/test/$t.c" -o "$out" -pthread >"$out.build" 2>&1; then
        echo build >"$out.rc"
        return
    fi
    timeout 60 "$out" >"$out.log" 2>&1
    echo $? >"$out.rc"
}

if [ "$1" = --one ]; then
    dir=$2
    trap - EXIT
    shift 2
    one "$@"
    exit
fi

# One of each kind; SANITIZE_ALL=1 runs them with both compilers.
if [ -n "$SANITIZE_ALL" ]; then
    configurations="asan-ubsan-gcc asan-ubsan-clang tsan-gcc tsan-clang"
else
    configurations="asan-ubsan-clang tsan-gcc"
    command -v clang >/dev/null 2>&1 || configurations="asan-ubsan-gcc tsan-gcc"
    command -v gcc >/dev/null 2>&1 || configurations="asan-ubsan-clang tsan-clang"
fi
flags_of() {
    case $1 in
    asan-ubsan-gcc) echo 'gcc -std=gnu11 -fsanitize=address,undefined -fno-sanitize-recover=all' ;;
    asan-ubsan-clang) echo 'clang -std=gnu11 -fsanitize=address,undefined -fno-sanitize-recover=all' ;;
    tsan-gcc) echo 'gcc -std=gnu11 -fsanitize=thread' ;;
    tsan-clang) echo 'clang -std=gnu11 -fsanitize=thread' ;;
    esac
}

ran=
for c in $configurations; do
    # shellcheck disable=SC2046 # a list of words
    if works $(flags_of "$c"); then
        ran="$ran $c"
        list "$c" $(flags_of "$c")
    else
        n=$((n + 1))
        echo "ok $n - $c # SKIP $(flags_of "$c" | cut -d' ' -f1) cannot build and run with it here" >&3
    fi
done 3>"$dir/skips" >"$dir/jobs"
cat "$dir/skips"
n=$(wc -l <"$dir/skips")
xargs -P 2 -L 1 "$0" --one "$dir" <"$dir/jobs"

for c in $ran; do
    for t in $tests; do
        n=$((n + 1))
        rc=$(cat "$dir/$c.$t.rc" 2>/dev/null)
        if [ "$rc" = 0 ]; then
            echo "ok $n - $t, $c"
        else
            failed=1
            echo "not ok $n - $t, $c: ${rc:-not run}"
            grep -hE 'error|^not ok|WARNING|ERROR|SUMMARY|runtime|    #[0-5] ' "$dir/$c.$t".build \
                "$dir/$c.$t".log 2>/dev/null | head -12 | sed 's/^/# /'
        fi
    done
done
echo "1..$n"
exit $failed
