#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The rows of test/kernels/rows that take two minutes together: real kernels, booted under an
# emulator. A result for each kernel and libc. What cannot be fetched in five minutes, or has no
# emulator here, is a skip with its reason. `make check-kernels` runs all rows.
cd "$(dirname "$0")/.." || exit 2
. test/matrix/tap.sh
need perl cpio dpkg-deb apt-get
have qemu-system-x86_64 || have qemu-system-aarch64 || have qemu-system-riscv64 \
    || skip_all "no qemu-system"

KERNELS_OUT=build/kernels-quick
PERCPU_FETCH_UNTIL=$(($(date +%s) + 300))
export KERNELS_OUT PERCPU_FETCH_UNTIL
ROWS='quick-*' test/kernels/run >/dev/null 2> >(sed 's/^/# /')
perl test/kernels/table.pl --tap test/kernels/rows $KERNELS_OUT/logs
