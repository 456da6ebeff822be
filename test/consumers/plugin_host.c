/* SPDX-License-Identifier: MIT */
/*
 * plugin_host PLUGIN... - threads that outlive the plugins they run.
 *
 * The host owns a counter set that every plugin counts in; each plugin has a counter of its own.
 * The threads call all plugins, leave them, and go on counting after the plugins are unmapped.
 * Then everything is loaded again.
 *
 *     cc -rdynamic plugin_host.c -ldl -pthread
 *
 * -rdynamic lets plugins share the host's state: needed on musl for critical sections in plugins;
 * elsewhere nothing depends on it.
 */
#include "plugin.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 3, ROUNDS = 2, CALLS_EACH = 20000, MAX = 16 };

static struct percpu_counters shared = PERCPU_COUNTERS_INIT(SHARED_EVENTS, 0);
static const struct plugin *plugins[MAX];
static void *handles[MAX];
static int n_plugins;
static pthread_barrier_t loaded, left, unloaded;

static void *thread(void *arg)
{
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&loaded);
        for (int i = 0; i < CALLS_EACH; i++)
            for (int p = 0; p < n_plugins; p++)
                plugins[p]->run(&shared, 10);
        for (int p = 0; p < n_plugins; p++)
            if (plugins[p]->leave() != 0)
                fputs("a plugin could not be left\n", stderr);
        pthread_barrier_wait(&left); /* nobody is inside, or comes back */
        pthread_barrier_wait(&unloaded);
        percpu_counters_inc(&shared, CALLS); /* the host's own, with the plugins gone */
    }
    return arg;
}

static int load(int i, const char *file)
{
    const struct plugin *(*entry)(void);
    void *symbol;
    handles[i] = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    symbol = handles[i] ? dlsym(handles[i], PLUGIN_ENTRY) : NULL;
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from void * to a function */
    plugins[i] = entry();
    return 0;
}

static int is_mapped(const char *file)
{
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, file) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

int main(int argc, char **argv)
{
    pthread_t t[THREADS];
    int gone = 0;
    n_plugins = argc - 1;
    if (n_plugins < 1 || n_plugins > MAX)
        return 2;
    pthread_barrier_init(&loaded, NULL, THREADS + 1);
    pthread_barrier_init(&left, NULL, THREADS + 1);
    pthread_barrier_init(&unloaded, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, thread, NULL))
            return 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int p = 0; p < n_plugins; p++)
            if (load(p, argv[1 + p]) != 0)
                return 1;
        pthread_barrier_wait(&loaded);
        pthread_barrier_wait(&left);
        for (int p = 0; p < n_plugins; p++) {
            printf("round %d %s=%lu\n", round, plugins[p]->name, plugins[p]->private_count());
            plugins[p]->finish();
            dlclose(handles[p]); /* musl keeps it mapped */
            gone += !is_mapped(argv[1 + p]);
        }
        pthread_barrier_wait(&unloaded);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    printf("calls=%lu bytes=%lu unmapped=%d\n", (unsigned long)percpu_counters_sum(&shared, CALLS),
           (unsigned long)percpu_counters_sum(&shared, BYTES), gone);
    return 0;
}
