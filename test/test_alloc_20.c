/* SPDX-License-Identifier: MIT */
/* test_alloc.c with copies 2^20 bytes apart. */
#define PERCPU_STRIDE_SHIFT 20
#include "test_alloc.c"
