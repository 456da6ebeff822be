/* SPDX-License-Identifier: MIT */
/*
 * The area of a library of old, under the name that such libraries share. Linked into a program it
 * makes percpu.h register with length 32, also where the kernel knows a longer area: the kernel's
 * legacy mode.
 */
#include <stdint.h>

__thread struct {
    uint32_t cpu_id_start, cpu_id;
    uint64_t rseq_cs;
    uint32_t flags, pad[3];
} legacy_area __asm__("__rseq_abi")
    __attribute__((aligned(32), visibility("default"))) = {0, -1u, 0, 0, {0, 0, 0}};
