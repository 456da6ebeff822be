/* SPDX-License-Identifier: MIT */
/*
 * host WHAT PLUGIN... - load plugins and operate in all of them from several threads.
 *
 *   exact    sums; pointers and counters cross the boundary both ways
 *   unload   threads operate, leave, the plugin is unmapped, threads live on, and once more
 *   detached plugins in detached threads
 *
 * Prints "mode M reason R" of the first plugin in a thread; exit status 0 if all was exact.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifdef WITH_HEADER
#include "percpu.h"
#else
#include <stddef.h>
struct percpu_counter;
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { THREADS = 4, ADDS = 2000, MAX = 256 };
static struct plugin {
    void *handle;
    void (*add)(struct percpu_counter *, unsigned long *);
    unsigned long (*sum)(void);
    int (*mode)(void), (*reason)(void), (*leave)(void);
    const void *(*ours)(void);
    unsigned long wanted;
} plugins[MAX];
static int n_plugins, bad;
#define CHECK(x) ((x) ? (void)0 : (void)(bad++, printf("# line %d: %s\n", __LINE__, #x)))

static struct percpu_counter *shared;
static unsigned long *object;
#ifdef WITH_HEADER
static struct percpu_counter the_counter;
#endif

static void load(struct plugin *p, const char *file)
{
    p->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!p->handle) {
        printf("# %s\n", dlerror());
        exit(1);
    }
#ifdef __GLIBC__
    p->wanted = 0; /* musl: it was never unmapped, and counts on */
#endif
#define FIND(member, name)                  \
    do {                                    \
        void *at = dlsym(p->handle, name);  \
        memcpy(&p->member, &at, sizeof at); \
    } while (0)
    FIND(add, "plugin_add");
    FIND(sum, "plugin_sum");
    FIND(mode, "plugin_mode");
    FIND(reason, "plugin_reason");
    FIND(leave, "plugin_leave");
    FIND(ours, "plugin_ours");
}

static pthread_barrier_t barrier;
static int leave_afterwards, first_mode, first_reason, most_registrations;

static void operate(void)
{
    int registrations = 0;
    for (int i = 0; i < ADDS; i++)
        for (int p = 0; p < n_plugins; p++) {
            plugins[p].add(shared, object);
#ifdef WITH_HEADER
            percpu_counter_inc(shared);
            this_cpu_inc(*object);
#endif
            if (n_plugins > 16) /* many plugins: fewer rounds */
                i += ADDS / 20 * (p == 0);
        }
    first_mode = plugins[0].mode();
    first_reason = plugins[0].reason();
    for (int p = 0; p < n_plugins; p++) { /* different records that say so */
        const void *record = plugins[p].ours();
        int seen = 0;
        for (int q = 0; q < p; q++)
            seen |= plugins[q].ours() == record;
        registrations += record && !seen;
    }
    if (registrations > __atomic_load_n(&most_registrations, __ATOMIC_RELAXED))
        __atomic_store_n(&most_registrations, registrations, __ATOMIC_RELAXED);
}

static unsigned long rounds(void)
{
    unsigned long n = 0;
    for (int i = 0; i < ADDS; i++, n++)
        if (n_plugins > 16)
            i += ADDS / 20;
    return n;
}

static volatile sig_atomic_t signals;
static void on_signal(int sig)
{
    (void)sig;
    signals++;
}

static int unmapped, finish;
static void *thread(void *arg)
{
    (void)arg;
    operate();
    if (leave_afterwards)
        for (int p = 0; p < n_plugins; p++)
            CHECK(plugins[p].leave() == 0);
    pthread_barrier_wait(&barrier);
    /* The code is gone meanwhile; this thread lives on through signals and preemption. */
    while (leave_afterwards && !__atomic_load_n(&finish, __ATOMIC_ACQUIRE))
        if (__atomic_load_n(&unmapped, __ATOMIC_ACQUIRE))
            sched_yield();
    return (void *)0;
}

static int is_mapped(const char *file)
{
    char line[1024];
    int found = 0;
    const char *base = strrchr(file, '/');
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        found |= strstr(line, base ? base : file) != (char *)0;
    if (f)
        fclose(f);
    return found;
}

static void check_sums(void)
{
    for (int p = 0; p < n_plugins; p++)
        CHECK(plugins[p].sum() == (plugins[p].wanted += THREADS * rounds()));
}

int main(int argc, char **argv)
{
    pthread_t t[THREADS];
    if (argc < 3)
        return 2;
    n_plugins = argc - 2;
    leave_afterwards = !strcmp(argv[1], "unload");
#ifdef WITH_HEADER
    shared = &the_counter;
#endif
    for (int round = 0; round < (leave_afterwards ? 3 : 1); round++) {
        for (int p = 0; p < n_plugins; p++)
            load(&plugins[p], argv[2 + p]);
#ifdef WITH_HEADER
        if (!object)
            object = PERCPU_NEW(unsigned long);
#endif
        finish = unmapped = 0;
        pthread_barrier_init(&barrier, (pthread_barrierattr_t *)0, THREADS + 1);
        for (int i = 0; i < THREADS; i++)
            pthread_create(&t[i], (pthread_attr_t *)0, thread, (void *)0);
        pthread_barrier_wait(&barrier);
        check_sums();
        if (leave_afterwards) {
            struct itimerval often = {{0, 200}, {0, 200}}, off = {{0, 0}, {0, 0}};
            signal(SIGALRM, on_signal);
            for (int p = 0; p < n_plugins; p++)
                CHECK(plugins[p].leave() == 0 && dlclose(plugins[p].handle) == 0);
#ifdef __GLIBC__
            for (int p = 0; p < n_plugins; p++)
                CHECK(!is_mapped(argv[2 + p]));
#else
            (void)is_mapped; /* musl never unmaps */
#endif
            __atomic_store_n(&unmapped, 1, __ATOMIC_RELEASE);
            signals = 0;
            setitimer(ITIMER_REAL, &often, (struct itimerval *)0);
            while (signals < 100)
                for (int i = 0; i < THREADS; i++)
                    pthread_kill(t[i], SIGALRM);
            setitimer(ITIMER_REAL, &off, (struct itimerval *)0);
            __atomic_store_n(&finish, 1, __ATOMIC_RELEASE);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(t[i], (void **)0);
    }
#ifdef WITH_HEADER
    {
        unsigned long want = (unsigned long)n_plugins * THREADS * rounds() * 2, sum = 0, *copy;
        want *= leave_afterwards ? 3 : 1;
        percpu_for_each_copy(object, copy) sum += *copy;
        CHECK(sum == want);
        CHECK(percpu_counter_sum(shared) == want);
        CHECK(percpu_free(object) == 0);
    }
#endif
    printf("mode %d reason %d registrations %d\n", first_mode, first_reason, most_registrations);
    return bad != 0;
}
