/* SPDX-License-Identifier: MIT */
/* A plugin that embeds the header. Its functions act on what the host gives it, and on its own. */
#include "percpu.h"

#define EXPORT __attribute__((visibility("default")))
static struct percpu_counter mine;

EXPORT void plugin_add(struct percpu_counter *c, unsigned long *object);
EXPORT unsigned long plugin_sum(void);
EXPORT int plugin_mode(void);
EXPORT int plugin_reason(void);
EXPORT int plugin_leave(void);
EXPORT const void *plugin_ours(void);

EXPORT void plugin_add(struct percpu_counter *c, unsigned long *object)
{
    percpu_counter_inc(&mine);
    if (c)
        percpu_counter_inc(c);
    if (object)
        this_cpu_inc(*object);
    (void)this_cpu_id();
}
EXPORT unsigned long plugin_sum(void)
{
    return percpu_counter_sum(&mine);
}
EXPORT int plugin_mode(void)
{
    return percpu_status().mode;
}
EXPORT int plugin_reason(void)
{
    return percpu_status().reason;
}
EXPORT int plugin_leave(void)
{
    return percpu_thread_unregister();
}
/* The record, of this thread, that says "registered by us"; modules may share it. */
EXPORT const void *plugin_ours(void)
{
#if PERCPU_RSEQ_PORTED
    return percpu_priv_thread()->length ? percpu_priv_thread() : (const void *)0;
#else
    return (const void *)0;
#endif
}
