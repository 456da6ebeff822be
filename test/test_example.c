/* SPDX-License-Identifier: MIT */
/* The basics of each section of percpu.h, single-threaded. */
#include "percpu.h"
#include "tap.h"

int main(void)
{
    struct percpu_counter c = {0, 0, 0, 0};
    percpu_counter_add(&c, 5);
    percpu_counter_dec(&c);
    is(percpu_counter_sum(&c), 4, "sum");
    is(percpu_counter_take(&c), 4, "take gives what was added");
    percpu_counter_inc(&c);
    is(percpu_counter_take(&c), 1, "the next take gives the rest");
    is(percpu_counter_sum(&c), 5, "sum is not affected by take");
    percpu_counter_destroy(&c);
    return done();
}
