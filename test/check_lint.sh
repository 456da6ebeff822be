#!/bin/sh
# SPDX-License-Identifier: MIT
# check_lint.sh - rules of this project that no compiler knows. Text checks are in lint.pl.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
if ! have perl; then
    echo "1..0 # SKIP perl is not installed"
    exit 0
fi
sources=$(ls percpu.h rseq_abi.h Makefile test/*.[ch] test/*.sh test/*.pl test/*/*.[ch] \
    test/*/*.cc test/*/*.sh test/*/*.pl bench/*.[ch] bench/*.sh \
    bench/*.pl .ci/* test/exec test/summary \
    test/musl-clang test/*/run 2>/dev/null | sort -u)
narrow=$(ls ./*.h test/*.h test/*.c test/*/*.[ch] bench/*.[ch] 2>/dev/null)

# rule NAME: what lint.pl says about it
rule() {
    ran=1
    perl test/lint.pl "$@" >"$tmp/bad" || complain "$(cat "$tmp/bad")"
    end "$1"
}
rule no_asm_in_percpu_h percpu.h
rule contents_match_sections percpu.h rseq_abi.h
# shellcheck disable=SC2086 # lists of words
{
    rule lines_of_100_columns $narrow
    rule licence_in_line_1_or_2 $sources
    rule no_trailing_space $sources
    rule no_tabs_in_C $(echo "$sources" | grep '\.[ch]$')
    rule plain_words $sources
}
[ -f README.md ] && rule plain_words README.md

# Names at file scope, and macros, in each configuration that hides some.
if have gcc; then
    for flags in "" -fPIC -DPERCPU_NO_LINUX -DPERCPU_FORCE_FALLBACK; do
        for header in percpu rseq_abi; do
            echo "#include \"$header.h\"" >"$tmp/file"
            # shellcheck disable=SC2086
            gcc -x c $flags -I. -E "$tmp/file" | perl test/matrix/names.pl $header.h >"$tmp/names"
            ran=$((ran + 1))
            [ "$(wc -l <"$tmp/names")" -gt 3 ] || complain "hardly any name found in $header.h"
            case $header in
            percpu)
                prefix='percpu_|this_cpu_' constants='PERCPU_' macros='percpu_|this_cpu_|PERCPU_'
                ;;
            rseq_abi) prefix='percpu_rseq_' constants='PERCPU_RSEQ_' macros='PERCPU_RSEQ_' ;;
            esac
            awk -v p="^($prefix)" -v c="^($constants)" '
                $2 !~ ($1 == "constant" ? c : p) { print "not our prefix: " $0 }' \
                "$tmp/names" >"$tmp/bad"
            # The two that configure both headers, and the guard.
            sed -nE 's/^ *# *define ([A-Za-z0-9_]+).*/\1/p' $header.h | sort -u |
                grep -vE "^($macros)|^PERCPU_STRIDE_SHIFT\$" |
                sed 's/^/not our prefix: macro /' >>"$tmp/bad"
            [ -s "$tmp/bad" ] && complain "$(cat "$tmp/bad")"
        done
    done
    end names_have_our_prefixes
else
    skip names_have_our_prefixes "gcc is not installed"
fi

# A macro of percpu.h that only its own text needs is undefined at its end, or private.
if [ -f README.md ] && have gcc; then
    echo '#include "percpu.h"' >"$tmp/file"
    {
        gcc -x c -I. -E "$tmp/file" | perl test/matrix/names.pl percpu.h | sed -n 's/^function //p'
        gcc -x c -I. -E -dM "$tmp/file" |
            sed -nE 's/^#define ((percpu_|this_cpu_)[a-z0-9_]+|PERCPU_NEW)[ (].*/\1/p'
    } | grep -vE '_priv_|percpu_rseq_' | sort -u >"$tmp/names"
    # percpu_this_cpu_x is this_cpu_x by its long name, and x_u32, x_u64 are its typed functions.
    perl test/lint.pl readme_names README.md <"$tmp/names" >"$tmp/bad"
    ran=$(wc -l <"$tmp/names")
    [ -s "$tmp/bad" ] && complain "$(cat "$tmp/bad")"
    end readme_names_every_function_and_macro
else
    skip readme_names_every_function_and_macro "there is no README.md yet"
fi

if have git && git rev-parse --git-dir >/dev/null 2>&1 && [ "$(git ls-files | head -n 1)" ]; then
    git ls-files | sed 's,/.*,,' | sort -u | grep -v '^\.' |
        grep -vxE 'percpu\.h|rseq_abi\.h|test|bench|Makefile|LICENSE|README\.md' >"$tmp/bad"
    ran=1
    [ -s "$tmp/bad" ] && complain "not at the top level: $(tr '\n' ' ' <"$tmp/bad")"
    end top_level_is_small
else
    skip top_level_is_small "this is not a git checkout"
fi
finish
