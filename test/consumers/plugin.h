/* SPDX-License-Identifier: MIT */
/* plugin.h - what the host and its plugins agree on. */
#ifndef PLUGIN_H
#define PLUGIN_H

#include "percpu.h"

/* Counted by the host and all plugins together. */
enum shared_event { CALLS, BYTES, SHARED_EVENTS };

struct plugin {
    const char *name;
    void (*run)(struct percpu_counters *shared, unsigned long n);
    unsigned long (*private_count)(void); /* the plugin's own counter */
    int (*leave)(void);   /* by each thread that called run(), after its last call */
    void (*finish)(void); /* once, before dlclose() */
};

#define PLUGIN_ENTRY "plugin_entry" /* const struct plugin *plugin_entry(void) */

#endif
