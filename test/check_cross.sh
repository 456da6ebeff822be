#!/bin/sh
# SPDX-License-Identifier: MIT
# check_cross.sh - other architectures: no warning, links, and exact on the fallback under
# qemu-user, which answers ENOSYS to rseq. What sections do there is for real kernels to show.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
warn="-Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Wcast-qual -Werror"
# expected CC FLAGS...: the reason for the fallback. The kernel that an emulator imitates has no
# rseq, which is a reason only where the header has sections for it.
expected() {
    if "$@" -I. -dM -E "$tmp/use.c" | grep -q '^#define PERCPU_RSEQ_SECTIONS 1'; then
        echo '(reason == PERCPU_REASON_NO_KERNEL)'
    else
        echo '(reason == PERCPU_REASON_NOT_PORTED)'
    fi
}
echo '#include "percpu.h"
struct percpu_counter in_library;
void hit(void);
void hit(void) { percpu_counter_inc(&in_library); }' >"$tmp/library.c"
printf '#include "percpu.h"\n#include "test/matrix/use_all.h"\n' >"$tmp/use.c"

# architecture COMPILER QEMU FLAGS...
architecture() {
    cc=$1 qemu=$2
    shift 2
    title="$(echo "$cc $*" | sed 's/ -idirafter.*//; s/ *$//')"
    if ! have "$cc"; then
        skip "$title" "$cc is not installed"
        return
    fi
    echo 'int main(void) { return 0; }' >"$tmp/empty.c"
    if ! "$cc" "$@" -static "$tmp/empty.c" -o "$tmp/empty" >/dev/null 2>&1; then
        skip "$title" "$cc $* finds no static libc"
        return
    fi
    # shellcheck disable=SC2086 # lists of words
    {
        try "$cc" "$@" -std=c11 $warn -O2 -I. -c "$tmp/use.c" -o "$tmp/o"
        try "$cc" "$@" -std=c11 $warn -O0 -fPIC -I. -c "$tmp/use.c" -o "$tmp/o"
        try "$cc" "$@" -std=gnu11 $warn -O2 -fPIC -I. -shared "$tmp/library.c" -o "$tmp/library.so"
        try "$cc" "$@" -std=gnu11 $warn -O2 -fPIC -I. -shared -Wl,-z,defs "$tmp/library.c" \
            -o "$tmp/library.so"
    }
    if ! have "$qemu"; then
        end "$title: compiles and links"
        skip "$title: runs" "$qemu is not installed"
        return
    fi
    end "$title: compiles and links"
    expect=$(expected "$cc" "$@")
    for mode in -O2 "-O0 -fPIC"; do
        # shellcheck disable=SC2086
        try "$cc" "$@" -std=gnu11 $warn $mode "-DEXPECT=$expect" -DROUNDS=2000 -I. -Itest \
            test/matrix/exact.c -static -o "$tmp/program" -pthread || continue
        run timeout 120 $qemu "$tmp/program"
    done
    end "$title: exact on the fallback"
}

unset REQUIRE_RSEQ # no emulator has it

architecture aarch64-linux-gnu-gcc qemu-aarch64-static
architecture aarch64-linux-gnu-gcc qemu-aarch64-static -mno-outline-atomics \
    -mbranch-protection=standard
architecture riscv64-linux-gnu-gcc qemu-riscv64-static
architecture arm-linux-gnueabihf-gcc qemu-arm-static
architecture powerpc64le-linux-gnu-gcc qemu-ppc64le-static
architecture s390x-linux-gnu-gcc qemu-s390x-static # big-endian
architecture mips64el-linux-gnuabi64-gcc qemu-mips64el-static
architecture loongarch64-linux-gnu-gcc qemu-loongarch64-static
if have i686-linux-gnu-gcc; then
    architecture i686-linux-gnu-gcc qemu-i386-static
else
    # Under qemu as well: kernels may lack 32-bit support.
    # gcc-multilib's link to the kernel's headers may be missing where gcc-12-multilib is not.
    architecture gcc qemu-i386-static -m32 -idirafter /usr/include/x86_64-linux-gnu
fi

# No block: 32-bit arm before v7, and soft-float; x32. Compiled only, no libc needed to link.
if have arm-linux-gnueabihf-gcc; then
    sysroot=$(dirname "$(echo '#include <gnu/stubs-hard.h>' | arm-linux-gnueabihf-gcc -E -x c - |
        sed -n 's/^# 1 "\(.*\)gnu\/stubs-hard.h".*/\1/p' | head -n 1)x")
    mkdir -p "$tmp/soft/gnu"
    [ -f "$sysroot/gnu/stubs-soft.h" ] || : >"$tmp/soft/gnu/stubs-soft.h"
    for option in "-march=armv5te -marm -mfloat-abi=soft" "-march=armv6 -marm -mfloat-abi=soft" \
        "-march=armv4t -mthumb -mfloat-abi=soft"; do
        # shellcheck disable=SC2086
        try arm-linux-gnueabihf-gcc $option -std=c11 $warn -O2 -I. -idirafter "$tmp/soft" \
            -c "$tmp/use.c" -o "$tmp/o"
        # shellcheck disable=SC2086
        arm-linux-gnueabihf-gcc $option -I. -idirafter "$tmp/soft" -dM -E "$tmp/use.c" |
            grep -q 'define PERCPU_RSEQ_PORTED 0' || complain "$option should have no block"
    done
    end "arm before v7 compiles to the fallback"
else
    skip "arm before v7 compiles to the fallback" "arm-linux-gnueabihf-gcc is not installed"
fi

# clang as a cross compiler, with the headers of the gcc cross toolchain.
for target in aarch64-linux-gnu riscv64-linux-gnu arm-linux-gnueabihf s390x-linux-gnu \
    powerpc64le-linux-gnu; do
    if ! have clang; then
        skip "clang --target=$target" "clang is not installed"
    elif ! [ -d /usr/$target/include ]; then
        skip "clang --target=$target" "no C library for $target"
    elif ! echo 'int x;' | clang --target=$target -x c -c - -o "$tmp/o" >/dev/null 2>&1; then
        skip "clang --target=$target" "this clang has no such target"
    else
        case $target in riscv64*) more="-mabi=lp64d -march=rv64gc" ;; *) more= ;; esac
        for mode in "-O2 -fPIC" "-O0 -fno-pic"; do
            # shellcheck disable=SC2086
            try clang --target=$target $more $mode -std=c11 $warn -I. \
                -isystem /usr/$target/include -c "$tmp/use.c" -o "$tmp/o"
        done
        end "clang --target=$target compiles"
    fi
done
finish
