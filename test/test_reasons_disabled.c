/* SPDX-License-Identifier: MIT */
/* Built with PERCPU_FORCE_FALLBACK: no critical section runs, whatever libc registered. */
#define PERCPU_FORCE_FALLBACK
#include "percpu.h"
#include "tap.h"

int main(void)
{
    static struct percpu_counter counter;
    unsigned long *p = PERCPU_NEW(unsigned long), *copy, first = 0, all = 0;
    unsigned i = 0;
    struct percpu_status s = percpu_status(), again;
    for (int n = 0; n < 1000; n++) {
        percpu_counter_inc(&counter);
        this_cpu_inc(*p);
    }
    again = percpu_status();
    is(s.mode, PERCPU_MODE_FALLBACK, "fallback");
    is(s.reason, PERCPU_REASON_DISABLED, "the reason is DISABLED");
    ok(again.mode == s.mode && again.reason == s.reason, "before and after operating");
    ok(s.error == 0 && s.length == 0 && s.feature_size == 0,
       "nothing was refused, nothing registered");
    is(percpu_counter_sum(&counter), 1000, "exact");
    percpu_for_each_copy(p, copy)
    {
        if (i++ < percpu_nr_cpus())
            first += *copy;
        all += *copy;
    }
    is(all, 1000, "exact");
    is(first, 0, "nothing is in the rows of critical sections");
    ok(this_cpu_id() < percpu_nr_cpus(), "this_cpu_id() answers");
    return done();
}
