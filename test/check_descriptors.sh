#!/bin/bash
# SPDX-License-Identifier: MIT
# The descriptors and sections of linked programs, as test/descriptors.pl verifies them: every
# flavor of the Makefile, shared objects, linkers, other processors. And that the verifier notices
# what is broken.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
option=
need perl readelf objdump

verify() { # verify NAME FILE [PREFIX]
    perl test/descriptors.pl ${option:+"$option"} ${3:+-p "$3"} "$2" >"$tmp/out" 2>&1
    local rc=$?
    if [ $rc = 0 ]; then
        result 0 "$1: $(cat "$tmp/out")"
    elif [ $rc = 2 ]; then
        skip "$1" "it has no sections"
    else
        result 1 "$1"
    fi
}

# compiled NAME COMMAND...: run a compiler; a failure is a result.
compiled() {
    local name=$1
    shift
    "$@" >"$tmp/out" 2>&1 && return 0
    result 1 "$name: compiles"
    return 1
}

# ---- What make check runs
for flavor in gcc gcc-O0 gcc-pic gcc-nopie gcc-static gcc-staticpie gcc-lto clang clang-O0 gxx \
    clangxx musl musl-pic musl-static musl-clang; do
    case $flavor in
    gcc*) compiler=gcc ;;
    clang | clang-O0) compiler=clang ;;
    gxx) compiler=g++ ;;
    clangxx) compiler=clang++ ;;
    musl-clang) compiler=clang ;;
    musl*) compiler=musl-gcc ;;
    esac
    if ! have $compiler || { [ $flavor = musl-clang ] && ! have musl-gcc; }; then
        skip "$flavor" "no $compiler"
        continue
    fi
    for test in test_sections test_example; do
        compiled "$flavor/$test" make -s "build/t/$flavor/$test" &&
            verify "$flavor/$test" "build/t/$flavor/$test"
    done
done

# Whatever else is built already, in one line.
others=0 wrong=0
: >"$tmp/wrong"
for file in build/t/*/test_*; do
    case $file in
    build/t/*.*/* | */test_sections | */test_example) continue ;;
    esac
    [ -x "$file" ] && [ "$file" -nt percpu.h ] && [ "$file" -nt rseq_abi.h ] || continue
    perl test/descriptors.pl "$file" >"$tmp/out" 2>&1
    case $? in
    0) others=$((others + 1)) ;;
    2) ;;
    *) wrong=$((wrong + 1)); { echo "$file:"; head -3 "$tmp/out"; } >>"$tmp/wrong" ;;
    esac
done
result $((wrong != 0)) "$others other programs in build/t" "$tmp/wrong"

# ---- Shared objects, linkers, optimisation
flags="-std=gnu11 -g -I. -Itest -pthread"
for cc in gcc clang musl-gcc; do
    have $cc || { skip "shared object, $cc" "no $cc"; continue; }
    # shellcheck disable=SC2086 # a list of flags
    compiled "shared object, $cc" $cc $flags -O2 -fPIC -shared test/test_sections.c \
        -o "$tmp/$cc.so" && verify "shared object, $cc" "$tmp/$cc.so"
done
for ld in gold lld; do
    have ld.$ld || { skip "linked with $ld" "no ld.$ld"; continue; }
    for mode in -pie -no-pie; do
        pic=-fPIE
        [ $mode = -pie ] || pic=-fno-pic
        # shellcheck disable=SC2086
        compiled "linked with $ld $mode" gcc $flags -O2 -fuse-ld=$ld $pic $mode \
            test/test_sections.c -o "$tmp/$ld" && verify "linked with $ld $mode" "$tmp/$ld"
    done
done
for ld in bfd gold lld; do
    have ld.$ld || { skip "--gc-sections with $ld" "no ld.$ld"; continue; }
    # shellcheck disable=SC2086
    compiled "--gc-sections with $ld" gcc $flags -O2 -ffunction-sections -fuse-ld=$ld \
        -Wl,--gc-sections test/test_sections.c -o "$tmp/$ld" &&
        option=-g verify "--gc-sections with $ld" "$tmp/$ld"
done
if have gcc; then
    for opt in -Os -O3 "-O2 -fcf-protection -fstack-protector-all"; do
        [ "$(uname -m)" = x86_64 ] || [ "${opt#*-fcf}" = "$opt" ] || continue
        # shellcheck disable=SC2086
        compiled "gcc $opt" gcc $flags $opt test/test_sections.c -o "$tmp/opt" &&
            verify "gcc $opt" "$tmp/opt"
    done
fi

# ---- Other processors. Every section once in a program; what the linker changes, with each kind.
printf '#include "percpu.h"\n#include "test/matrix/use_all.h"\nint main(void) { return 0; }\n' \
    >"$tmp/use.c"
for triplet in x86_64-linux-gnu aarch64-linux-gnu riscv64-linux-gnu arm-linux-gnueabihf \
    i686-linux-gnu loongarch64-linux-gnu mips64el-linux-gnuabi64; do
    arch=${triplet%%-*} cc=$triplet-gcc prefix=$triplet- more=
    [ $arch = "$(uname -m)" ] && continue
    if [ $arch = i686 ] && ! have $cc && [ "$(uname -m)" = x86_64 ] \
        && echo 'int main(void) { return 0; }' | gcc -m32 -x c - -o "$tmp/empty" 2>/dev/null; then
        cc="gcc -m32 -idirafter /usr/include/x86_64-linux-gnu" prefix=
    fi
    have ${cc%% *} || { skip $arch "no $cc"; continue; }
    [ $arch = arm ] && more="-O2@-marm@-march=armv8-a+simd"
    [ $arch = i686 ] && more="-O2@-march=i686@-msse2"
    for opt in -O2 "-O0 -fPIC -shared" "-O2 -no-pie -fno-pic" ${more:+"${more//@/ }"}; do
        source=$tmp/use.c
        [ "$opt" = -O2 ] && source=test/test_sections.c
        # shellcheck disable=SC2086
        compiled "$arch $opt" $cc $flags $opt $source -o "$tmp/$arch" &&
            verify "$arch $opt" "$tmp/$arch" $prefix
    done
done

# ---- The verifier can say no
notices() { # notices NAME FLAG PATTERN
    # shellcheck disable=SC2086
    compiled "broken: $1" gcc $flags -O2 "$2" test/test_example.c -o "$tmp/broken" || return
    perl test/descriptors.pl "$tmp/broken" >"$tmp/out" 2>&1
    [ $? = 1 ] && grep -q "$3" "$tmp/out"
    result $? "notices $1"
}
if have gcc; then
    notices "protection that starts late" -DPERCPU_BREAK_LATE_START 'not armed as expected'
    notices "an instruction after the commit" -DPERCPU_BREAK_COMMIT_NOT_LAST \
        'stores before the last'
    notices "a displaced signature" -DPERCPU_BREAK_SIGNATURE 'signature is'
fi
finish
