#!/bin/sh
# SPDX-License-Identifier: MIT
# check_lint.sh - rules of this project that no compiler knows. Text checks are in lint.pl.
#
# Seen to fail: with an instruction in percpu.h; with a section renamed and not so in the table of
# contents; with a line of 103 columns; without SPDX in a script, a header, a litmus test; with a
# space at the end of LICENSE, no newline at the end of README.md, an empty line at the end of
# Makefile; with a tab in a C++ file; with one of the words; with two spaces where clang-format
# wants one, in a test and in percpu.h; with a function and a macro without our prefix in
# rseq_abi.h; with a function that README.md does not name; with a new file at the top.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
need perl

in_git() { have git && git rev-parse --git-dir >/dev/null 2>&1 && [ "$(git ls-files)" ]; }
# Every file that git knows; without git, every file but what make leaves in build/. Results of
# benchmarks are what a program has written.
if in_git; then
    git ls-files
else
    find . -name .git -prune -o -path ./build -prune -o -type f -print | sed 's,^\./,,'
fi | sort | grep -v '^bench/results/' | while read -r file; do
    # A file that is about to be removed
    [ ! -f "$file" ] || echo "$file"
done >"$tmp/files"
# files PATTERN [BUT]: those that match one extended regular expression, and not the other
files() { grep -E -- "$1" "$tmp/files" | grep -vE -- "${2:-^\$}"; }
c='\.([ch]|cc|[ch]pp)$'

# rule NAME: what lint.pl says about it
rule() {
    ran=$(($# - 1))
    perl test/lint.pl "$@" >"$tmp/bad" || complain "$(cat "$tmp/bad")"
    end "$1"
}
rule no_asm_in_percpu_h percpu.h
rule contents_match_sections percpu.h rseq_abi.h
# shellcheck disable=SC2046 # lists of words
{
    # A paragraph of Markdown may be one line, and a table's row has to be; so has each row of
    # test/kernels/rows, which is a table, too: its columns are to be compared at a glance.
    rule lines_of_100_columns $(files . '\.md$|^test/kernels/rows$')
    # LICENSE is the licence; what is read as a page, and the settings of tools, need none.
    rule licence_in_line_1_or_2 $(files . '^LICENSE$|\.md$|(^|/)README$|^\.(git|clang-)')
    rule no_trailing_space $(files .)
    rule no_tabs_in_C $(files "$c")
    rule plain_words $(files .)
}

# Another version of clang-format has another opinion.
formatter= version=
for f in clang-format clang-format-14; do
    have $f && version=$($f --version) || continue
    case $version in *" version 14."*) formatter=$f ;; esac
done
if [ -n "$formatter" ]; then
    # shellcheck disable=SC2046 # a list of words
    $formatter --dry-run -Werror $(files "$c") >"$tmp/bad" 2>&1 || complain "$(cat "$tmp/bad")"
    ran=$(files "$c" | wc -l)
    end formatted
else
    skip formatted "clang-format 14 is not installed${version:+, but this: $version}"
fi

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

if in_git; then
    git ls-files | sed 's,/.*,,' | sort -u | grep -v '^\.' |
        grep -vxE 'percpu\.h|rseq_abi\.h|test|bench|Makefile|LICENSE|README\.md' >"$tmp/bad"
    ran=1
    [ -s "$tmp/bad" ] && complain "not at the top level: $(tr '\n' ' ' <"$tmp/bad")"
    end top_level_is_small
else
    skip top_level_is_small "this is not a git checkout"
fi
# The README's table of platforms is that of the last run of all rows.
ran=1
perl test/kernels/readme.pl --check test/results/platforms.md README.md >"$tmp/bad" 2>&1 ||
    complain "$(cat "$tmp/bad")"
end readme_platforms_are_those_that_ran
finish
