#!/bin/bash
# SPDX-License-Identifier: MIT
# check_install.sh - install, use in every way that the README names, uninstall; and whether the
# user's CC, CFLAGS and so on get where they belong. Paths have spaces, the umask is a strict one.
#
# Seen to fail: with files that only root may read (umask 077); with -I of a path that has a space
# unquoted; with a CMake package that names where it was built for instead of where it is; with a
# version file that takes "any version" for version 0; with an uninstall that removes DESTDIR and
# the empty directories above it; with compilers that the Makefile chose itself.
cd "$(dirname "$0")/.." || exit 2
top=$PWD
scratch="percpu install"
. test/matrix/tap.sh
said=$tmp/err
# What `make check` was given is not meant for the makes here.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES GNUMAKEFLAGS MAKELEVEL CC CXX CFLAGS CXXFLAGS LDFLAGS PREFIX \
    DESTDIR INCLUDEDIR PKGCONFIGDIR CMAKEDIR PKG_CONFIG_PATH PKG_CONFIG_LIBDIR \
    PKG_CONFIG_SYSROOT_DIR GLIBC_TUNABLES
version=$(awk '$2 ~ /^PERCPU_VERSION_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' \
    percpu.h)
major=${version%%.*}
wanted="1000 hits, percpu $version"
says() { # NAME PROGRAM [WANTED]
    "$2" >"$tmp/err" 2>&1 && [ "$(cat "$tmp/err")" = "${3:-$wanted}" ]
    result $? "$1"
}

# A tree of its own, in a directory with a space.
tree="$tmp/a tree"
mkdir -p "$tree" && tar cf - --exclude=./build --exclude=./.git . | tar xf - -C "$tree" || exit 2
mk() { make -s -C "$tree" "$@"; }
main=test/consumers/install

# ---- install and uninstall
files_in() { (cd "$1" && find . ! -type d | sort | tr '\n' ' '); }
check_install() { # NAME ROOT MAKE-ARGUMENTS...: ROOT is where everything has to be
    local name=$1 root=$2 include=${root_include:-include} bad
    shift 2
    mkdir -p "$root"
    (umask 077 && mk install "$@") >"$tmp/err" 2>&1
    result $? "$name: make install"
    files_in "$root" >"$tmp/err"
    # shellcheck disable=SC2154
    [ "$(cat "$tmp/err")" = "$(printf './%s\n' \
        "$under$include/percpu.h" "$under$include/rseq_abi.h" \
        "${under}share/cmake/percpu/percpu-config-version.cmake" \
        "${under}share/cmake/percpu/percpu-config.cmake" \
        "${under}share/pkgconfig/percpu.pc" | sort | tr '\n' ' ')" ]
    result $? "$name: five files, where they belong"
    cmp percpu.h "$root/$under$include/percpu.h" >"$tmp/err" 2>&1 &&
        cmp rseq_abi.h "$root/$under$include/rseq_abi.h" >>"$tmp/err" 2>&1
    result $? "$name: the headers are the tree's"
    bad=$(find "$root" -type f ! -perm 644)
    find "$root" -type f -exec ls -l {} + >"$tmp/err"
    [ -z "$bad" ]
    result $? "$name: readable by all, whatever the umask"
    grep -rF "${staged:-no such text}" "$root" --include='percpu*.pc' --include='*.cmake' \
        >"$tmp/err"
    [ $? = 1 ]
    result $? "$name: nothing mentions the staging directory"
}
check_uninstall() { # NAME ROOT MAKE-ARGUMENTS...
    local name=$1 root=$2
    shift 2
    mkdir -p "$root/${under}include" "$root/${under}share/doc/other"
    echo other >"$root/${under}include/other.h"
    mk uninstall "$@" >"$tmp/err" 2>&1
    result $? "$name: make uninstall"
    find "$root" >"$tmp/err"
    [ "$(files_in "$root")" = "./${under}include/other.h " ] &&
        [ -d "$root/${under}share/doc/other" ]
    result $? "$name: uninstall leaves what is not its own"
    rm -rf "${root:?}/${under}include/other.h" "$root/${under}share/doc"
    mk install "$@" >/dev/null 2>&1
    mk uninstall "$@" >/dev/null 2>&1
    # Below DESTDIR nothing at all; without one, directories like /usr/local/include may stay.
    case " $* " in *DESTDIR=*) find "$root" -mindepth 1 ;; *) find "$root" -type f ;; esac \
        >"$tmp/err" 2>/dev/null
    [ ! -s "$tmp/err" ]
    result $? "$name: uninstall leaves nothing"
}
# The consumers below use what the cases leave installed.
prefix="$tmp/opt x"
under='' check_install "PREFIX with a space" "$prefix" PREFIX="$prefix"
staged=$tmp/stage\ 1 under=usr/ check_install "DESTDIR with a space" "$tmp/stage 1" \
    DESTDIR="$tmp/stage 1" PREFIX=/usr
under='' root_include=include/percpu-headers check_install "INCLUDEDIR" "$tmp/headers" \
    PREFIX="$tmp/headers" INCLUDEDIR="$tmp/headers/include/percpu-headers"
mkdir -p "$tmp/relative"
(cd "$tree" && umask 022 && make -s install DESTDIR="../relative" PREFIX=/usr/local) \
    >"$tmp/err" 2>&1 &&
    [ -f "$tmp/relative/usr/local/include/percpu.h" ]
result $? "a relative DESTDIR"

# ---- pkg-config
flags_of() { # PREFIX: as the shell has to read them
    PKG_CONFIG_LIBDIR=$1/share/pkgconfig pkg-config --cflags percpu
}
compile() { # NAME COMPILER FLAGS(quoted for the shell) [WANTED]
    local rc
    if ! have "${2%% *}"; then
        skip "$1" "no ${2%% *} here"
        return
    fi
    eval "$2 -Wall -Wextra -Werror $3 $main/main.c -o \"\$tmp/consumer\"" >"$tmp/err" 2>&1 &&
        says "$1" "$tmp/consumer" && return
    rc=$?
    [ $rc = 0 ] || result 1 "$1: does not compile"
}
if have pkg-config; then
    for p in "$prefix" "$tmp/headers"; do
        flags=$(flags_of "$p")
        for cc in gcc clang musl-gcc "musl-gcc -static"; do
            compile "pkg-config, $cc, ${p##*/}" "$cc" "$flags"
        done
    done
    PKG_CONFIG_LIBDIR=$prefix/share/pkgconfig pkg-config --modversion percpu >"$tmp/err" 2>&1
    [ "$(cat "$tmp/err")" = "$version" ]
    result $? "pkg-config --modversion is the macros' $version"
    PKG_CONFIG_LIBDIR=$prefix/share/pkgconfig pkg-config --validate percpu >"$tmp/err" 2>&1
    result $? "pkg-config --validate"
    PKG_CONFIG_LIBDIR=$prefix/share/pkgconfig pkg-config --libs percpu >"$tmp/err" 2>&1
    [ -z "$(tr -d ' \n' <"$tmp/err")" ]
    result $? "pkg-config --libs: nothing to link"
    staged_pc="$tmp/stage 1/usr/share/pkgconfig"
    flags=$(PKG_CONFIG_SYSROOT_DIR="$tmp/stage 1" PKG_CONFIG_LIBDIR="$staged_pc" \
        PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 pkg-config --cflags percpu)
    compile "pkg-config on a staged tree (sysroot)" gcc "$flags"
    flags=$(PKG_CONFIG_LIBDIR="$staged_pc" \
        pkg-config --define-variable=prefix="$tmp/stage 1/usr" --cflags percpu)
    compile "pkg-config on a tree that was moved (prefix redefined)" gcc "$flags"
    (cd "$tmp" && cp "$top/$main/main.c" "$top/$main/Makefile" . &&
        PKG_CONFIG_LIBDIR="$prefix/share/pkgconfig" make -s consumer) >"$tmp/err" 2>&1 &&
        says "a Makefile with pkg-config" "$tmp/consumer" ||
        result 1 "a Makefile with pkg-config: does not build"
else
    skip "pkg-config" "no pkg-config here"
fi

# ---- CMake
cmake_consumer() { # NAME COMPILER CMAKE-ARGUMENTS...
    local name=$1 cc=$2 dir
    shift 2
    if ! have "$cc"; then
        skip "$name" "no $cc here"
        return
    fi
    dir="$tmp/cmake build" && rm -rf "$dir"
    timeout 300 cmake -S $main -B "$dir" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_C_FLAGS="-Wall -Wextra -Werror" "$@" >"$tmp/err" 2>&1 &&
        timeout 300 cmake --build "$dir" >>"$tmp/err" 2>&1 &&
        ! grep -i 'CMake.*Warning' "$tmp/err" >/dev/null ||
        { result 1 "$name: does not build"; return; }
    says "$name" "$dir/consumer"
}
cmake_versions() { # PREFIX VERSION...: "any" asks for none, VERSION_EXACT for exactly that
    local p=$1 ask dir="$tmp/cmake versions"
    shift
    rm -rf "$dir" && mkdir -p "$dir"
    {
        echo 'cmake_minimum_required(VERSION 3.14)'
        echo 'project(versions NONE)'
        for ask in "$@"; do
            echo "unset(percpu_FOUND)"
            echo "find_package(percpu $([ "$ask" = any ] || echo "$ask" | tr _ ' ') QUIET)"
            echo "if(percpu_FOUND)"
            echo "  message(STATUS \"ask $ask found \${percpu_VERSION}\")"
            echo "else()"
            echo "  message(STATUS \"ask $ask refused\")"
            echo "endif()"
        done
    } >"$dir/CMakeLists.txt"
    timeout 300 cmake -S "$dir" -B "$dir/b" -DCMAKE_PREFIX_PATH="$p" >"$tmp/log" 2>&1
}
asked() { # NAME VERSION ANSWER
    cp "$tmp/log" "$tmp/err"
    grep -q "ask $2 $3\$" "$tmp/log"
    result $? "$1"
}
if have cmake; then
    for cc in gcc clang musl-gcc; do
        cmake_consumer "find_package(percpu $major.1), $cc" $cc -DCMAKE_PREFIX_PATH="$prefix" \
            -DPERCPU_WANTED="${version%.*}"
    done
    cmake_consumer "find_package(percpu), INCLUDEDIR" gcc -DCMAKE_PREFIX_PATH="$tmp/headers" \
        -DPERCPU_WANTED=
    cmake_consumer "find_package on a staged tree" gcc -DCMAKE_PREFIX_PATH="$tmp/stage 1/usr"
    cmake_versions "$prefix" any "$version" "${version%.*}" "${version}_EXACT" \
        "${version%.*}_EXACT" "$major.99" "$((major + 1)).0" "$((major + 1))"
    asked "find_package(percpu) finds $version" any "found $version"
    asked "find_package(percpu $version)" "$version" "found $version"
    asked "find_package(percpu ${version%.*})" "${version%.*}" "found $version"
    asked "find_package(percpu $version EXACT)" "${version}_EXACT" "found $version"
    asked "find_package(percpu ${version%.*} EXACT)" "${version%.*}_EXACT" "found $version"
    asked "a later minor version is refused" "$major.99" refused
    asked "another major version is refused" "$((major + 1)).0" refused
    asked "another major version alone is refused" "$((major + 1))" refused
    # The macros are the single source; and a later major version does not pass for this one.
    sed "s/^#define PERCPU_VERSION_MAJOR .*/#define PERCPU_VERSION_MAJOR $((major + 1))/" \
        percpu.h >"$tree/percpu.h"
    mk install PREFIX="$tmp/next" >"$tmp/err" 2>&1
    cp percpu.h "$tree/percpu.h"
    later=$((major + 1)).${version#*.}
    cmake_versions "$tmp/next" any "$version" "$later" "$((major + 1))"
    asked "with $later installed: find_package(percpu)" any "found $later"
    asked "with $later installed: $version is refused" "$version" refused
    asked "with $later installed: $later" "$later" "found $later"
    asked "with $later installed: $((major + 1))" "$((major + 1))" "found $later"
    if have pkg-config; then
        next_pc=$tmp/next/share/pkgconfig
        [ "$(PKG_CONFIG_LIBDIR=$next_pc pkg-config --modversion percpu)" = "$later" ]
        result $? "with $later installed: pkg-config says so"
    fi
    # ---- FetchContent: the tree has no CMakeLists.txt, and needs none
    (cd "$tmp" && tar czf "$tmp/percpu.tar.gz" "a tree")
    cmake_consumer "FetchContent of an archive, gcc" gcc -DPERCPU_FETCH="$tmp/percpu.tar.gz"
    cmake_consumer "FetchContent of a directory, musl-gcc" musl-gcc -DPERCPU_FETCH=. \
        -DFETCHCONTENT_SOURCE_DIR_PERCPU="$tree"
else
    skip "find_package and FetchContent" "no cmake here"
fi

# ---- meson
for cc in gcc musl-gcc; do
    if ! have meson || ! have ninja || ! have pkg-config || ! have $cc; then
        skip "meson dependency('percpu'), $cc" "needs meson, ninja, pkg-config and $cc"
        continue
    fi
    rm -rf "$tmp/meson build"
    CC=$cc PKG_CONFIG_LIBDIR="$prefix/share/pkgconfig" \
        timeout 300 meson setup "$tmp/meson build" $main >"$tmp/err" 2>&1 &&
        timeout 300 ninja -C "$tmp/meson build" >>"$tmp/err" 2>&1 &&
        says "meson dependency('percpu'), $cc" "$tmp/meson build/consumer" ||
        result 1 "meson dependency('percpu'), $cc: does not build"
done

# ---- Two files, copied
mkdir -p "$tmp/copied" && cp percpu.h rseq_abi.h $main/main.c "$tmp/copied"
for cc in gcc "gcc -static" clang musl-gcc "musl-gcc -static"; do
    compile "two files copied, $cc" "$cc" '-I"$tmp/copied"'
done

under='' check_uninstall "PREFIX with a space" "$prefix" PREFIX="$prefix"
under=usr/ check_uninstall "DESTDIR with a space" "$tmp/stage 1" DESTDIR="$tmp/stage 1" PREFIX=/usr
[ -d "$tmp/stage 1" ]
result $? "uninstall does not remove DESTDIR itself, or what is above it"

# ---- The user's variables
mk help >"$tmp/err" 2>&1
for t in selftest check lint install uninstall clean help; do
    grep -Eq "^ +make $t +[^ ]" "$tmp/err" || echo "no line for $t" >>"$tmp/err"
done
! grep -q '^no line' "$tmp/err"
result $? "make help explains each target"
mk >"$tmp/default" 2>&1 && mk help 2>&1 | cmp -s - "$tmp/default"
result $? "make alone is make help"

mkdir -p "$tmp/bin"
# Compilers that keep a record; what they make does nothing.
cat >"$tmp/bin/recorder" <<'END'
#!/bin/sh
echo "${0##*/} $*" >>"${0%/*}/../log"
while [ $# -gt 1 ]; do
    [ "$1" = -o ] && echo '#!/bin/sh' >"$2" && chmod +x "$2"
    shift
done
END
chmod +x "$tmp/bin/recorder"
for c in mycc mycxx gcc g++ musl-gcc; do
    case $c in mycc) real=gcc ;; mycxx) real=g++ ;; *) real=$c ;; esac
    ! have $real || ln -s recorder "$tmp/bin/$c"
done
logged() { # NAME TARGET PATTERN COUNT COMMAND...: COUNT compilations of TARGET match; "all" of them
    local name=$1 target=$2 pattern=$3 total
    shift 3
    : >"$tmp/log"
    PATH="$tmp/bin:$PATH" timeout 300 "$@" -s -C "$tree" "$target" >"$tmp/out" 2>&1
    { cat "$tmp/log"; tail -3 "$tmp/out"; } >"$tmp/err"
    total=$(grep -c ' -o ' "$tmp/log")
    [ "$total" -gt 0 ] &&
        [ "$(grep -Ec -e "$pattern.* -o |^.* -o .*$pattern" "$tmp/log")" = "$total" ]
    result $? "$name"
    rm -rf "$tree/build"
}
if [ -x "$tmp/bin/gcc" ]; then
    logged "CFLAGS reach each compilation of the selftest" selftest ' -DPROBE=1 ' \
        make CFLAGS=-DPROBE=1
    logged "also from the environment" selftest ' -DPROBE=1 ' env CFLAGS=-DPROBE=1 make
    logged "LDFLAGS reach each link of the selftest" selftest ' -Wl,-z,now' make LDFLAGS=-Wl,-z,now
    : >"$tmp/log"
    PATH="$tmp/bin:$PATH" timeout 300 make -s -C "$tree" selftest CC=mycc >"$tmp/out" 2>&1
    cat "$tmp/log" >"$tmp/err"
    grep -q '^mycc .* test/selftest.c' "$tmp/log" && ! grep -q '^gcc .* test/selftest.c' "$tmp/log"
    result $? "CC builds the selftest for this machine's own libc"
    rm -rf "$tree/build"
    for flavor in gcc gcc-static gcc-lto musl gxx; do
        case $flavor in musl) have musl-gcc || continue ;; gxx) have g++ || continue ;; esac
        make -n -C "$tree" build/t/$flavor/test_example CFLAGS=-DPROBE=1 CXXFLAGS=-DPROBE=2 \
            LDFLAGS=-Wl,-z,now >"$tmp/err" 2>&1
        probe=1
        [ $flavor != gxx ] || probe=2
        grep -Eq -e " -DPROBE=$probe .*test/test_example.c .*-Wl,-z,now" "$tmp/err"
        result $? "CFLAGS or CXXFLAGS, and LDFLAGS, reach the tests: $flavor"
    done
    if [ -x "$tmp/bin/mycxx" ]; then
        PATH="$tmp/bin:$PATH" make -n -C "$tree" build/t/gxx/test_example CXX=mycxx >"$tmp/err" 2>&1
        grep -q '^mycxx ' "$tmp/err"
        result $? "CXX builds the C++ tests"
    fi
else
    skip "the user's CC, CFLAGS, LDFLAGS" "no gcc here"
fi
finish
