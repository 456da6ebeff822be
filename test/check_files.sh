#!/bin/sh
# SPDX-License-Identifier: MIT
# check_files.sh - programs of several files that all include percpu.h: they link, and are one.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
warn="-Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Wcast-qual"
common="-O2 -g -I. -Itest -Itest/matrix $warn"

# part COMPILER NAME OUTPUT FLAGS...
part() {
    cc=$1 name=$2 out=$3
    shift 3
    case $cc in *++) as="-x c++ -std=gnu++11" ;; *) as="-std=gnu11" ;; esac
    # shellcheck disable=SC2086 # lists of words
    try $cc $as $common -DPART=$name "$@" -c test/matrix/files_part.c -o "$tmp/$out"
}
main() {
    cc=$1
    shift
    # shellcheck disable=SC2086
    try $cc -std=gnu11 $common "$@" -c test/matrix/files_main.c -o "$tmp/main.o"
}
# program LINKER FLAGS...: link main.o with them, run it where rseq is libc's, and where it is ours
program() {
    try "$@" -o "$tmp/program" -pthread || return
    run "$tmp/program"
    run env GLIBC_TUNABLES=glibc.pthread.rseq=0 "$tmp/program"
    # One definition each; `nm` of a program lists no second one.
    for symbol in percpu_priv_state_v1_s16 percpu_rseq_thread_v1; do
        n=$(nm "$tmp/program" | grep -c " $symbol\$")
        [ "$n" = 1 ] || complain "$n symbols $symbol in: $*"
    done
}
linkers() {
    for ld in bfd gold lld; do
        have ld.$ld && echo "-fuse-ld=$ld"
    done
}
for ld in gold lld; do
    have ld.$ld || skip "links with $ld" "ld.$ld is not installed"
done
unset GLIBC_TUNABLES

# cc1 cc2 ccmain link: languages and compilers, also mixed. What linkers make of an object file, and
# of each way to address data, is asked of C; the others have to be one program at all.
while read -r title a b m link; do
    missing=
    for c in $a $b $m $link; do have "$c" || missing=$c; done
    if [ -n "$missing" ]; then
        skip "$title" "$missing is not installed"
        continue
    fi
    for mode in "-fPIE -pie" "-fno-pic -no-pie"; do
        pic=${mode% *} pie=${mode#* } each=
        case $title in *of_C_with*) each=$(linkers) ;; esac
        [ -n "$each" ] || [ "$pic" = -fPIE ] || continue
        part "$a" first a.o "$pic" && part "$b" second b.o "$pic" && main "$m" "$pic" || continue
        for ld in $each; do
            # -no-pie with gold or lld: glibc's symbols are found through the GOT all the same
            program "$link" "$pie" "$ld" "$tmp/main.o" "$tmp/a.o" "$tmp/b.o"
        done
        program "$link" "$pie" -Wl,--gc-sections -Wl,-z,now "$tmp/main.o" "$tmp/b.o" "$tmp/a.o"
    done
    program "$link" -static "$tmp/main.o" "$tmp/a.o" "$tmp/b.o"
    end "$title"
done <<EOF
two_files_of_C_with_gcc gcc gcc gcc gcc
two_files_of_C_with_clang clang clang clang clang
two_files_of_C++_with_g++ g++ g++ gcc g++
two_files_of_C++_with_clang++ clang++ clang++ clang clang++
C_and_C++_with_gcc gcc g++ gcc g++
C_and_C++_with_clang clang clang++ clang clang++
gcc_and_clang gcc clang gcc gcc
g++_and_clang++ g++ clang++ clang g++
EOF

# musl registers nothing: here one registration per thread is ours, whichever file comes first.
if have musl-gcc; then
    for mode in "-fPIE -pie" "-fno-pic -no-pie" "-fPIC -pie" "-fno-pic -static"; do
        part musl-gcc first a.o "${mode% *}" && part musl-gcc second b.o "${mode% *}" || continue
        main musl-gcc "${mode% *}" &&
            program musl-gcc "${mode#* }" "$tmp/main.o" "$tmp/a.o" "$tmp/b.o"
    done
    end "two files with musl-gcc"
else
    skip "two files with musl-gcc" "musl-gcc is not installed"
fi

# A library's objects are PIC and find areas from the thread pointer, the program's are not and
# find them from their own: the two ways have to agree.
for cc in gcc clang musl-gcc; do
    if ! have $cc; then
        skip "static library of PIC objects with $cc" "$cc is not installed"
        continue
    fi
    for mode in "-fno-pic -no-pie" "-fPIE -pie" "-fno-pic -static"; do
        part $cc first a.o -fPIC &&
            part $cc second b.o "${mode% *}" &&
            main $cc "${mode% *}" || continue
        rm -f "$tmp/lib.a"
        try ar rc "$tmp/lib.a" "$tmp/a.o"
        program $cc "${mode#* }" "$tmp/main.o" "$tmp/b.o" "$tmp/lib.a"
    done
    end "static library of PIC objects with $cc"
done

# The same in a shared object, which exports its state to, or takes it from, the program.
for cc in gcc clang musl-gcc; do
    if ! have $cc; then
        skip "shared library with $cc" "$cc is not installed"
        continue
    fi
    for mode in "-fno-pic -no-pie" "-fPIE -pie"; do
        part $cc first a.o -fPIC &&
            part $cc second b.o "${mode% *}" &&
            main $cc "${mode% *}" || continue
        try $cc -shared "$tmp/a.o" -o "$tmp/libfirst.so"
        program $cc "${mode#* }" "$tmp/main.o" "$tmp/b.o" -L"$tmp" -lfirst "-Wl,-rpath,$tmp"
    done
    end "shared library with $cc"
done

# Configurations that may differ between files, in one program.
if have gcc; then
    for mode in "-fPIE -pie" "-fno-pic -static"; do
        for unlike in PERCPU_FORCE_FALLBACK PERCPU_NO_REGISTER PERCPU_NO_SHORT_NAMES; do
            part gcc first a.o "${mode% *}" "-D$unlike" &&
                part gcc second b.o "${mode% *}" || continue
            main gcc "${mode% *}" -DUNLIKE &&
                program gcc "${mode#* }" "$tmp/main.o" "$tmp/a.o" "$tmp/b.o"
            main gcc "${mode% *}" -DUNLIKE "-D$unlike" &&
                program gcc "${mode#* }" "$tmp/main.o" "$tmp/a.o" "$tmp/b.o"
        done
    done
    end "files with and without PERCPU_FORCE_FALLBACK, NO_REGISTER, NO_SHORT_NAMES"
    # An object belongs to files of one stride: the second file has counters of its own elsewhere.
    for mode in "-fPIE -pie" "-fno-pic -static"; do
        part gcc first a.o "${mode% *}" &&
            part gcc second b.o "${mode% *}" -DPERCPU_STRIDE_SHIFT=12 \
            -DOWN_OBJECTS && main gcc "${mode% *}" -DSTRIDES_DIFFER || continue
        program gcc "${mode#* }" "$tmp/main.o" "$tmp/a.o" "$tmp/b.o"
    done
    end "files of strides 16 and 12: two states, one area"
else
    skip "configurations that differ between files" "gcc is not installed"
fi
finish
