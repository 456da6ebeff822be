/* SPDX-License-Identifier: MIT */
/* windows_files.c - weak symbols are different on Windows: two files still share one state. */
#include "percpu.h"
#include "tap.h"

extern void part_add(struct percpu_counter *c);
extern int part_free(void *p);
extern const void *part_state(void);
static struct percpu_counter counter;

int main(void)
{
    int *p = PERCPU_NEW(int);
    part_add(&counter);
    percpu_counter_inc(&counter);
    is(percpu_counter_sum(&counter), 2, "both files' adds count");
    ok(part_state() == &percpu_priv_state, "one state");
    is(part_free(p), 0, "one file frees what another allocated");
    return done();
}
