/* SPDX-License-Identifier: MIT */
/* windows_part.c - the other file of windows_files.c. */
#include "percpu.h"

void part_add(struct percpu_counter *c);
void part_add(struct percpu_counter *c)
{
    percpu_counter_inc(c);
}
int part_free(void *p);
int part_free(void *p)
{
    return percpu_free(p);
}
const void *part_state(void);
const void *part_state(void)
{
    return &percpu_priv_state;
}
