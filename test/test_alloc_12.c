/* SPDX-License-Identifier: MIT */
/* test_alloc.c with copies 2^12 bytes apart. */
#define PERCPU_STRIDE_SHIFT 12
#include "test_alloc.c"
