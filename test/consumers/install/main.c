/* SPDX-License-Identifier: MIT */
/* The smallest consumer: counts, and says with which version it was built. */
#include <percpu.h>
#include <stdio.h>

static struct percpu_counter hits;

int main(void)
{
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&hits);
    printf("%lu hits, percpu %s\n", (unsigned long)percpu_counter_sum(&hits),
           PERCPU_VERSION_STRING);
    return 0;
}
