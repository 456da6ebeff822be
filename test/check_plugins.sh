#!/bin/sh
# SPDX-License-Identifier: MIT
# check_plugins.sh - the header in shared objects: loaded, linked, unloaded, several at once; on
# glibc, on glibc told not to register, on musl. And linked with a library that shares __rseq_abi.
#
# Seen to fail: with another copy's own area taken for a foreign one (two areas; on musl a crash).
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
unset GLIBC_TUNABLES
OFF=GLIBC_TUNABLES=glibc.pthread.rseq=0
LIBC=1 OWN=2                      # enum percpu_mode
NO_STATIC_TLS=12                  # enum percpu_reason

# check NAME EXPECTED COMMAND... - exit status 0 and a last line that matches.
check() {
    name=$1 expected=$2
    shift 2
    timeout 60 env "$@" >"$tmp/out" 2>&1
    rc=$?
    echo "exit status $rc" >>"$tmp/out"
    [ $rc = 0 ] && tail -2 "$tmp/out" | grep -Eq "$expected"
    result $? "$name"
}
build() { # OUTPUT COMMAND...: say so if it fails
    out=$1
    shift
    "$@" -O2 -I. -o "$tmp/$out" -pthread >"$tmp/out" 2>&1 || result 1 "build $out: $*"
}

# Is rseq to be had here at all? Modes are compared with what the first program says.
rseq=1
printf '%s\n' '#include "percpu.h"' \
    'int main(void) { return percpu_status().mode == PERCPU_MODE_FALLBACK; }' >"$tmp/p.c"
gcc -I. "$tmp/p.c" -o "$tmp/p" && "$tmp/p" || rseq=
if [ -z "$rseq" ]; then
    if [ -n "$REQUIRE_RSEQ" ]; then result 1 "rseq is to be had"; fi
    LIBC=0 OWN=0
fi
glibc_registers=
env $OFF "$tmp/p" && [ -n "$rseq" ] &&
    nm -D "$(ldd "$tmp/p" | awk '/ld-linux/ { print $1 }')" | grep -q __rseq_size &&
    glibc_registers=1
[ -n "$glibc_registers" ] || LIBC=$OWN

P=test/plugins/plugin.c
# ---- glibc
for cc in gcc clang; do
    have $cc || { skip "plugins built with $cc" "no $cc"; continue; }
    so="$cc -shared -fPIC"
    build $cc-plain.so $so $P
    build $cc-hidden.so $so -fvisibility=hidden $P
    build $cc-symbolic.so $so -Wl,-Bsymbolic $P
    echo '{ global: plugin_*; a_*; b_*; local: *; };' >"$tmp/map"
    build $cc-local.so $so -Wl,--version-script="$tmp/map" $P
    build $cc-O0.so $so -O0 $P
    build $cc-host $cc test/plugins/host.c -ldl
    build $cc-host-header $cc -DWITH_HEADER test/plugins/host.c -ldl
    build $cc-host-rdynamic $cc -DWITH_HEADER -rdynamic test/plugins/host.c -ldl
    all="$tmp/$cc-plain.so $tmp/$cc-hidden.so $tmp/$cc-symbolic.so $tmp/$cc-local.so $tmp/$cc-O0.so"
    for host in host host-header host-rdynamic; do
        # shellcheck disable=SC2086 # a list
        check "$cc $host: 5 plugins of all kinds, libc registers" "^mode $LIBC reason" \
            "$tmp/$cc-$host" exact $all
        # shellcheck disable=SC2086
        check "$cc $host: the same, libc told not to: one registration per thread" \
            "^mode $OWN reason .* registrations [01]\$" $OFF "$tmp/$cc-$host" exact $all
        for so in plain hidden symbolic local; do
            check "$cc $host: unload a $so plugin while threads live on" "^mode $LIBC" \
                "$tmp/$cc-$host" unload "$tmp/$cc-$so.so"
            check "$cc $host: the same, libc told not to register" "^mode" \
                $OFF "$tmp/$cc-$host" unload "$tmp/$cc-$so.so"
        done
    done
done
i=0 many=
while [ $i -lt 120 ]; do
    cp "$tmp/gcc-hidden.so" "$tmp/many-$i.so"
    many="$many $tmp/many-$i.so"
    i=$((i + 1))
done
for host in host host-header host-rdynamic; do
    # shellcheck disable=SC2086
    check "$host: 120 plugins in one process" "^mode $LIBC" "$tmp/gcc-$host" exact $many
    # shellcheck disable=SC2086
    check "$host: 120 plugins, libc told not to register" "^mode" $OFF "$tmp/gcc-$host" exact $many
done

# ---- Linked at program start; every kind of executable code with shared objects
linked() { # PREFIX COMPILER...
    pre=$1
    shift
    for names in a b; do
        named=
        for what in add mode ours sum reason leave; do
            named="$named -Dplugin_$what=${names}_$what"
        done
        # shellcheck disable=SC2086 # a list
        build lib$pre$names.so "$@" -shared -fPIC -fvisibility=hidden $named $P
        # shellcheck disable=SC2086
        build lib$pre${names}local.so "$@" -shared -fPIC -Wl,--version-script="$tmp/map" $named $P
    done
    for kind in "" -fPIC -no-pie; do
        build $pre-linked$kind "$@" $kind test/plugins/linked.c \
            "$tmp/lib${pre}a.so" "$tmp/lib${pre}b.so"
        build $pre-unshared$kind "$@" $kind test/plugins/linked.c \
            "$tmp/lib${pre}alocal.so" "$tmp/lib${pre}blocal.so"
    done
}
linked gcc gcc
for kind in "" -fPIC -no-pie; do
    for first in "" so; do
        how=$kind${first:+, $first first}
        check "linked$how: all in libc's area" "^modes $LIBC $LIBC $LIBC" \
            "$tmp/gcc-linked$kind" $first
        check "linked$how, libc told not to: all in one area" "^modes $OWN $OWN $OWN" \
            $OFF "$tmp/gcc-linked$kind" $first
        # Areas of their own: whoever comes first has sections, the others the fallback.
        check "unshared$how, libc told not to: one owner, exact" \
            "^modes ($OWN 0 0|0 $OWN 0|0 0 $OWN)" $OFF "$tmp/gcc-unshared$kind" $first
    done
done

# ---- musl
if have musl-gcc; then
    build musl.so musl-gcc -shared -fPIC $P
    build musl-host musl-gcc test/plugins/host.c
    build musl-host-header musl-gcc -DWITH_HEADER test/plugins/host.c
    build musl-host-rdynamic musl-gcc -DWITH_HEADER -rdynamic test/plugins/host.c
    cp "$tmp/musl.so" "$tmp/musl2.so"
    reason=$NO_STATIC_TLS
    for host in musl-host musl-host-header; do
        check "$host: plugins load, reason NO_STATIC_TLS, exact" \
            "^mode 0 reason $reason registrations 0" \
            "$tmp/$host" exact "$tmp/musl.so" "$tmp/musl2.so"
        check "$host: leave and load again" "^mode 0 reason $reason" \
            "$tmp/$host" unload "$tmp/musl.so"
    done
    # The program's area, in all: each counts the one registration.
    check "musl-host-rdynamic: plugins use the program's area" "^mode $OWN reason" \
        "$tmp/musl-host-rdynamic" exact "$tmp/musl.so" "$tmp/musl2.so"
    linked musl musl-gcc
    for kind in "" -fPIC -no-pie; do
        for first in "" so; do
            how=$kind${first:+, $first first}
            check "musl linked$how: all in one area" "^modes $OWN $OWN $OWN" \
                "$tmp/musl-linked$kind" $first
            # Symbols that may not be shared: whoever comes first has sections, the rest is exact.
            check "musl unshared$how: exact" "^modes" "$tmp/musl-unshared$kind" $first
        done
    done
else
    skip "plugins on musl" "no musl-gcc"
fi

# ---- A library that exports __rseq_abi, in the same program
S="test/plugins/shares.c test/plugins/foreign.c"
for cc in "gcc" "gcc -O0" "gcc -fPIC" "gcc -no-pie" "gcc -static" "gcc -flto" "clang" \
    "musl-gcc" "musl-gcc -static" "musl-gcc -fPIC"; do
    have "${cc%% *}" || { skip "__rseq_abi shared: $cc" "no ${cc%% *}"; continue; }
    # shellcheck disable=SC2086
    build shares $cc $S
    if [ -z "$rseq" ]; then
        skip "__rseq_abi shared: $cc" "rseq is refused"
        continue
    fi
    check "__rseq_abi shared: $cc" "exit status 0" $OFF "$tmp/shares"
    case $cc in
    musl*) ;;
    *)
        [ -z "$glibc_registers" ] ||
            check "__rseq_abi left alone where libc registers: $cc" "exit status 0" \
                "$tmp/shares" libc
        ;;
    esac
done
finish
