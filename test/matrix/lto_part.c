/* SPDX-License-Identifier: MIT */
/* lto_part.c - the other file of lto_main.c, so that link-time optimisation can inline across. */
#include "lto.h"

void lto_other_file(struct tally *t, struct percpu_counter *c, unsigned n, unsigned *took)
{
    for (unsigned i = 0; i < n; i++) {
        percpu_counter_inc(c);
        both(t, 1);
        percpu_this_cpu_inc(t->taken);
        *took += percpu_this_cpu_xchg(t->taken, 0);
    }
}
