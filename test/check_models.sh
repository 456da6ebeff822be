#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Memory ordering on weakly ordered machines, as their memory models have it: each
# test/models/*.litmus asks whether an outcome that must not be is possible, and herd7 looks at all
# executions. "Never", and without any one of the barriers that the file names ("without: SED"):
# "Sometimes". And where a file says "header: OP THREAD", that thread begins with the loads, stores
# and barriers of that section in rseq_abi.h, in their order (or ends with all of them), so that the
# models are models of the code.
#
# Seen to fail: with str for stlr, or no dmb, in rseq_abi.h; with a fence too few in a model.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh

# ---- The models are those of the header
if have perl; then
    for file in test/models/*.litmus; do
        what=$(sed -n 's/^(\* header: \(.*\) \*)$/\1/p' "$file")
        [ -n "$what" ] || continue
        # shellcheck disable=SC2086 # two words
        perl test/models/header.pl rseq_abi.h "$file" $what >"$tmp/out" 2>&1
        result $? "$(basename "$file" .litmus): $(tail -n 1 "$tmp/out")"
    done
else
    skip "the models are those of the header" "no perl"
fi

# ---- herd7: this machine's, or out of the distribution's newest package, with the libc from there
herd=
if have herd7; then
    herd=herd7
elif [ "$(uname -m)" = x86_64 ]; then
    # shellcheck source=test/kernels/fetch.sh
    . test/kernels/fetch.sh
    PERCPU_FETCH_UNTIL=$(($(date +%s) + 120))
    dir=$cache/herd7
    library=usr/share/herdtools7/herd
    if [ -e "$dir/ok" ] || fetch_files "$dir" sid amd64 herdtools7 ./usr/bin/herd7 ./$library \
        && fetch_tree herd7-libc.amd64 sid amd64 libc6 libgmp10; then
        loader=$(find "$tree" -name 'ld-linux-x86-64.so.2' | head -n 1)
        libraries=$(find "$tree" -name 'libc.so.6' -printf '%h:' \
            -o -name 'libgmp.so.10' -printf '%h:')
        herd="$loader --library-path $libraries $dir/usr/bin/herd7 -set-libdir $dir/$library"
    fi
else
    why="no herd7 on this machine"
fi
if [ -n "$herd" ] && ! $herd -version >"$tmp/out" 2>&1; then
    why="herd7 does not run here: $(head -n 1 "$tmp/out")"
    herd=
fi

verdict() { # verdict FILE - Never, Sometimes, Always, or nothing
    $herd "$1" >"$tmp/out" 2>&1
    sed -n 's/^Observation [^ ]* \([A-Z][a-z]*\) .*/\1/p' "$tmp/out"
}

for file in test/models/*.litmus; do
    name=$(basename "$file" .litmus)
    if [ -z "$herd" ]; then
        skip "$name" "$why"
        continue
    fi
    [ "$(verdict "$file")" = Never ]
    result $? "$name: never"
    sed -n 's/^(\* without: \(.*\) \*)$/\1/p' "$file" >"$tmp/without"
    while IFS= read -r edit; do
        sed "/^(\\*/b; $edit" "$file" >"$tmp/$name.litmus"
        ! cmp -s "$file" "$tmp/$name.litmus" && [ "$(verdict "$tmp/$name.litmus")" = Sometimes ]
        result $? "$name: possible after ${edit//  / }"
    done <"$tmp/without"
done
finish
