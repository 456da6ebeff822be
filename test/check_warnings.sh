#!/bin/sh
# SPDX-License-Identifier: MIT
# check_warnings.sh - no compiler says anything: the headers alone, and code that uses all of them.
#
# Each compiler x standard, strict (no _GNU_SOURCE), included first at -O2 and after other headers
# at -O0, every function and macro used: a macro that is clean only inside the header, by its
# pragmas, shows at the place of use. Then code generation options, and clang's -Weverything.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh

warn="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual"
warn="$warn -Wcast-align -Wmissing-declarations -Wredundant-decls -Wignored-qualifiers"
warn="$warn -Wnull-dereference -Wvla -Wwrite-strings -Wpointer-arith -Werror"
warn_c="$warn -Wstrict-prototypes -Wmissing-prototypes"
warn_cxx="$warn -Wold-style-cast -Wzero-as-null-pointer-constant"
system="stdio.h stdlib.h string.h signal.h time.h errno.h limits.h unistd.h pthread.h sched.h"

# use_HEADER_ORDER: a file that includes the header first, or after what programs include.
for header in percpu rseq_abi; do
    printf '#include "%s.h"\n#include "test/matrix/use_all.h"\n' $header >"$tmp/${header}_first"
    for s in $system; do echo "#include <$s>"; done >"$tmp/${header}_last"
    cat "$tmp/${header}_first" >>"$tmp/${header}_last"
done
for f in percpu_first percpu_last rseq_abi_first rseq_abi_last; do
    cp "$tmp/$f" "$tmp/$f.c"
    mv "$tmp/$f" "$tmp/$f.cc"
done

# standards SUFFIX FLAGS COMPILER STANDARD...: all parse, the last one generates code. rseq_abi.h,
# which is part of percpu.h, is by itself with the first and the last.
standards() {
    suffix=$1 flags=$2 cc=$3
    shift 3
    first=$1
    for std in "$@"; do last=$std; done
    for std in "$@"; do
        quick=-fsyntax-only headers=percpu
        [ $std = $last ] && quick=
        case $std in "$first" | "$last") headers="percpu rseq_abi" ;; esac
        for header in $headers; do
            # shellcheck disable=SC2086 # lists of words
            try $cc -std=$std $flags -O2 $quick -I. -c "$tmp/${header}_first.$suffix" -o "$tmp/o"
            # shellcheck disable=SC2086
            try $cc -std=$std $flags -O0 $quick -I. -c "$tmp/${header}_last.$suffix" -o "$tmp/o"
        done
    done
}

# What use_all.h has to use follows from the headers.
uses_everything() {
    for header in percpu rseq_abi; do
        echo "#include \"$header.h\"" >"$tmp/all.c"
        gcc -I. -E "$tmp/all.c" | perl test/matrix/names.pl $header.h | sed -n 's/^function //p'
        # Macros of rseq_abi.h are for its own blocks.
        [ $header = percpu ] && gcc -I. -E -dM "$tmp/all.c" |
            sed -nE 's/^#define (\w+)[ (].*/\1/p' |
            grep -xE '(percpu_|this_cpu_)[a-z0-9_]+|PERCPU_(NEW|VERSION\w+|STRIDE)'
    done | grep -v '_priv_' | sort -u >"$tmp/names"
    while read -r name; do
        grep -qw "$name" test/matrix/use_all.h || complain "use_all.h does not use $name"
    done <"$tmp/names"
    ran=$(wc -l <"$tmp/names")
    [ "$ran" -gt 50 ] || complain "only $ran names found in the headers"
}
if have gcc && have perl; then
    uses_everything
    end "use_all.h uses every public function and macro"
else
    skip "use_all.h uses every public function and macro" "no gcc, or no perl"
fi

c_standards="c99 c11 c17 c2x gnu99 gnu17"
cxx_standards="c++11 c++14 c++17 c++20 c++2b"
newer_gcc=0 newer_clang=0
for cc in gcc gcc-13 gcc-14 gcc-15 clang clang-15 clang-16 clang-17 clang-18 clang-19 clang-20 \
    musl-gcc test/musl-clang; do
    if ! have $cc || { [ $cc = test/musl-clang ] && ! { have musl-gcc && have clang; }; }; then
        case $cc in *-1[3-9] | *-20) ;; *) skip "C with $cc" "$cc is not installed" ;; esac
        continue
    fi
    case $cc in gcc-*) newer_gcc=1 ;; clang-*) newer_clang=1 ;; esac
    # shellcheck disable=SC2086
    standards c "$warn_c" $cc $c_standards
    end "C with $cc: $c_standards"
done
for cc in g++ g++-13 g++-14 g++-15 clang++ clang++-15 clang++-16 clang++-17 clang++-18 \
    clang++-19 clang++-20; do
    if ! have $cc; then
        case $cc in *-1[3-9] | *-20) ;; *) skip "C++ with $cc" "$cc is not installed" ;; esac
        continue
    fi
    case $cc in g++*) more=-Wuseless-cast ;; *) more= ;; esac
    # shellcheck disable=SC2086
    standards cc "$warn_cxx $more" $cc $cxx_standards
    end "C++ with $cc: $cxx_standards"
done
[ $newer_gcc = 1 ] || skip "C and C++ with a newer gcc" "none of gcc-13 to gcc-15 is installed"
[ $newer_clang = 1 ] || skip "C and C++ with a newer clang" \
    "none of clang-15 to clang-20 is installed"

# clang -Weverything, minus
#   -Wpadded                          layouts are checked by assertions
#   -Wused-but-marked-unused          functions of a header are used or not; system macros, too
#   -Wdeclaration-after-statement     of C90, which has no inline
#   -Wdocumentation-unknown-command   comments are kernel-doc, not doxygen
#   -Wunsafe-buffer-usage             forbids pointer arithmetic
#   -Wc++98-compat*, -Wpre-c11-compat are about older languages than those supported
#   -Wswitch-default                  contradicts -Wcovered-switch-default
#   -Wbad-function-cast               (unsigned)f(): the header's casts are meant
everything="-Weverything -Werror -Wno-unknown-warning-option"
for w in padded used-but-marked-unused declaration-after-statement documentation-unknown-command \
    unsafe-buffer-usage c++98-compat c++98-compat-pedantic pre-c11-compat switch-default \
    bad-function-cast; do
    everything="$everything -Wno-$w"
done
for cc in clang clang-15 clang-16 clang-17 clang-18 clang-19 clang-20; do
    have $cc || continue
    # Older ones do not know all of these names.
    for std in c99 c11 c2x; do
        # shellcheck disable=SC2086
        try $cc -std=$std $everything -O2 -I. -c "$tmp/percpu_first.c" -o "$tmp/o"
    done
    for std in c++11 c++20; do
        # shellcheck disable=SC2086
        try $cc -std=$std $everything -O2 -I. -c "$tmp/percpu_first.cc" -o "$tmp/o"
    done
    end "$cc -Weverything, with reasoned exceptions"
done
have clang || skip "clang -Weverything" "clang is not installed"

# Code generation: options that do not exclude each other, together. Each line is compiled with
# warnings; the small test is linked with it and run.
options() {
    cat <<EOF
-O1 -fPIC -ffunction-sections -fdata-sections -fvisibility=hidden -fno-common
-Os -fno-pic -no-pie -fno-plt -fstack-protector-all -fno-asynchronous-unwind-tables
-Og -fno-inline -fno-omit-frame-pointer -funsigned-char -fno-strict-aliasing
-O3 -funroll-loops -fwrapv -march=native
-O2 -ftrapv -ftls-model=global-dynamic -fPIC
-O2 -ftls-model=initial-exec -pg
-O2 --coverage -fprofile-generate
-O2 -fsanitize=address,undefined
-O2 -fsanitize=thread
EOF
    [ "$(uname -m)" = x86_64 ] || return
    cat <<EOF
-O2 -mcmodel=medium -fno-pic -no-pie -mno-red-zone
-O2 -mcmodel=large -fno-pic -no-pie -fcf-protection=full
EOF
    [ $1 = clang ] || echo "-O2 -fPIC -mtls-dialect=gnu2"
}
for cc in gcc clang; do
    if ! have $cc; then
        skip "options with $cc" "$cc is not installed"
        continue
    fi
    options $cc >"$tmp/options"
    while read -r option; do
        compile=$(echo "$option" | sed 's/ -no-pie//')
        # shellcheck disable=SC2086
        try $cc -std=c11 $warn_c $compile -I. -c "$tmp/percpu_first.c" -o "$tmp/o" || continue
        # shellcheck disable=SC2086
        try $cc -std=gnu11 $option -I. -Itest test/test_example.c -o "$tmp/example" -pthread ||
            continue
        # gcc's thread sanitizer does not start under the address layout of newer kernels.
        case $option in *=thread) ;; *)
            run env GMON_OUT_PREFIX="$tmp/g" GCOV_PREFIX="$tmp/gcov" \
                LLVM_PROFILE_FILE="$tmp/p" "$tmp/example" ;;
        esac
    done <"$tmp/options"
    end "options with $cc"
done
for cc in g++ clang++; do
    if ! have $cc; then
        skip "options with $cc" "$cc is not installed"
        continue
    fi
    for option in "-fno-exceptions -fno-rtti" -fnon-call-exceptions -fno-threadsafe-statics \
        -fvisibility-inlines-hidden "-fsanitize=address,undefined" -fsanitize=thread -fPIC; do
        case $cc$option in clang*-fnon-call*) continue ;; esac
        # shellcheck disable=SC2086
        try $cc -std=c++11 $warn_cxx -O2 $option -I. -c "$tmp/percpu_first.cc" -o "$tmp/o"
    done
    end "options with $cc"
done
finish
