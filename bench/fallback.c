/* SPDX-License-Identifier: MIT */
/* fallback.c - operations of a file that was built without critical sections. */
#define PERCPU_FORCE_FALLBACK
#include "percpu.h"
#include "bench.h"

NOINLINE void forced_this_cpu_inc(struct worker *w, uint64_t n)
{
    uint64_t *p = pc_words;
    (void)w;
    for (uint64_t i = 0; i < n; i += STEP) {
        REP16(this_cpu_inc(*p);)
    }
}
