#!/bin/sh
# SPDX-License-Identifier: MIT
# check_lto.sh - optimisers: every level, position independence and link-time optimisation, run
# with signals that abort sections.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
common="-g -I. -Itest -Itest/matrix -Wall -Wextra -Wpedantic -Wno-vla"
sources="test/matrix/lto_main.c test/matrix/lto_part.c"

# build_and_run CC FLAGS...
build_and_run() {
    cc=$1
    shift
    case $cc in
    *++) as="-x c++ -std=gnu++11" ;;
    *) as="-std=gnu11" ;;
    esac
    # shellcheck disable=SC2086 # lists of words
    try $cc $as $common "$@" $sources -o "$tmp/program" -pthread && run "$tmp/program"
}

# C++ has the same back ends: the ends of the scale are enough there.
for cc in gcc clang g++ clang++; do
    if ! have $cc; then
        skip "levels with $cc" "$cc is not installed"
        skip "positions with $cc" "$cc is not installed"
        skip "link-time optimisation with $cc" "$cc is not installed"
        continue
    fi
    levels="-O0 -O1 -O2 -O3 -Os -Og"
    case $cc in
    *++) levels="-O0 -O2" ;;
    clang) levels="-O0 -O1 -O2 -Os" ;; # -Og is -O1
    esac
    for level in $levels "-O3 -funroll-all-loops"; do
        case $cc$level in clang*-all-*) level="-O3 -funroll-loops" ;; esac
        # shellcheck disable=SC2086
        build_and_run $cc $level -fPIE -pie
    done
    end "levels with $cc: $levels, unrolled"

    # Flavors of the other tests have these at -O0 and -O2.
    build_and_run $cc -O3 -fno-pic -no-pie
    build_and_run $cc -O3 -fno-pic -static
    build_and_run $cc -O3 -fPIC -pie
    case $cc in *++) as="-x c++ -std=gnu++11" ;; *) as="-std=gnu11" ;; esac
    # shellcheck disable=SC2086
    try $cc $as $common -O3 -fPIC -shared test/matrix/lto_part.c -o "$tmp/libpart.so" &&
        try $cc $as $common -O3 -fPIE -pie test/matrix/lto_main.c -x none -L"$tmp" -lpart \
            "-Wl,-rpath,$tmp" -o "$tmp/program" -pthread && run "$tmp/program"
    end "positions with $cc: -no-pie, -static, -fPIC, a shared object"

    case $cc in
    gcc)
        build_and_run $cc -O1 -flto=2
        build_and_run $cc -Os -flto=2 -flto-partition=max
        build_and_run $cc -O2 -flto=2 -flto-partition=max
        build_and_run $cc -O2 -flto=2 -flto-partition=one -fno-pic -no-pie
        build_and_run $cc -O3 -flto=2 -flto-partition=one -fno-pic -no-pie
        build_and_run $cc -O2 -flto=2 -ffat-lto-objects -fPIC -pie
        build_and_run $cc -O2 -fwhole-program -flto=2
        end "link-time optimisation with $cc: default, max, one partition"
        ;;
    g++)
        build_and_run $cc -O2 -flto=2
        build_and_run $cc -O3 -flto=2 -flto-partition=max
        end "link-time optimisation with $cc: default, max"
        ;;
    clang*)
        if ! have ld.lld; then
            skip "link-time optimisation with $cc" "ld.lld is not installed"
            continue
        fi
        build_and_run $cc -O2 -flto=full -fuse-ld=lld
        build_and_run $cc -O3 -flto=thin -fuse-ld=lld -fno-pic -no-pie
        if [ $cc = clang ]; then
            build_and_run $cc -O1 -flto=full -fuse-ld=lld
            build_and_run $cc -Os -flto=thin -fuse-ld=lld
            build_and_run $cc -O2 -flto=thin -fuse-ld=lld
            build_and_run $cc -O3 -flto=full -fuse-ld=lld -fno-pic -no-pie
        fi
        end "link-time optimisation with $cc: full, thin"
        ;;
    esac
done
finish
