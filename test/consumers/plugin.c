/* SPDX-License-Identifier: MIT */
/*
 * plugin - a shared object that counts, and can be unloaded.
 *
 *     cc -shared -fPIC -DNAME='"red"' plugin.c -o red.so
 */
#include "plugin.h"

static struct percpu_counter calls; /* private: nobody else sees it, or its name */

static void run(struct percpu_counters *shared, unsigned long n)
{
    percpu_counter_inc(&calls);
    percpu_counters_inc(shared, CALLS);
    percpu_counters_add(shared, BYTES, n);
}

static unsigned long private_count(void)
{
    return (unsigned long)percpu_counter_sum(&calls);
}

/*
 * The thread must not keep pointing at a section in this code. It has to be a call in the plugin:
 * it forgets what this copy of the header registered or armed.
 */
static int leave(void)
{
    return percpu_thread_unregister();
}

static void finish(void)
{
    percpu_counter_destroy(&calls); /* the memory goes back to its arena, which stays mapped */
}

__attribute__((visibility("default"))) const struct plugin *plugin_entry(void);
const struct plugin *plugin_entry(void)
{
    static const struct plugin self = {NAME, run, private_count, leave, finish};
    return &self;
}
