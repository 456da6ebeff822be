/* SPDX-License-Identifier: MIT */
/*
 * platform - what a kernel, a libc and a processor make of percpu.h. Run in a test kernel, by init.
 *
 * Its lines "# platform: KEY=VALUE..." and "# status: ..." are what the table is made of. Checked:
 * the id on every CPU against the affinity; exact sums and lists while every thread is moved about
 * and interrupted; the id fields, which a process may not write. Arguments:
 *
 *   storm     also demand that sections were aborted (a kernel that interrupts them, -icount)
 *   hotplug   take a CPU offline while workers are pinned there, and put it back, again and again
 *   lossy     for a kernel that does not abort reliably, with the gate of KERNEL_BROKEN forced open
 *             (-D PERCPU_TEST_RELEASE): say what was lost; without that gate all of it would be
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "tap.h"
#include <fcntl.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_CPUS 1024
#define WORKERS 8
#define NODES 16

struct node {
    void *next;
    unsigned owner; /* 0: in a list */
};

static unsigned cpus[MAX_CPUS], nr_cpus, from_area; /* CPUs whose id was in the area */
static struct percpu_counter counter, in_handlers;
static struct percpu_freelist list;
static struct node nodes[NODES];
static unsigned long rounds, by_handlers, twice;
static int stop, lossy;
static unsigned at_work; /* workers that got a round done */

static int pin(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static void find_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        abort();
    for (unsigned c = 0; c < MAX_CPUS && c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &set))
            cpus[nr_cpus++] = c;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Ids */

static void every_cpu_has_its_id(void)
{
    const int sections = percpu_status().mode != PERCPU_MODE_FALLBACK;
    unsigned wrong = 0, wrong_cid = 0, moved = 0, highest = 0;
    for (unsigned i = 0; i < nr_cpus; i++) {
        if (pin(cpus[i]) != 0)
            continue;
        moved++;
        highest = cpus[i];
        from_area += percpu_cpu_raw() == (int)cpus[i];
        wrong += this_cpu_id() != cpus[i] || (sections && percpu_cpu_raw() != (int)cpus[i]);
        wrong += (unsigned)sched_getcpu() != cpus[i];
        wrong_cid += this_cpu_cid() >= percpu_nr_cpus();
        percpu_counter_inc(&counter);
    }
    ok(!wrong && moved, "the id is right on each of %u CPUs, the highest %u", moved, highest);
    ok(!wrong_cid, "no compact id is beyond the number of CPUs");
    ok(highest < percpu_nr_cpus(), "%u is more than every id", percpu_nr_cpus());
    is(percpu_counter_take(&counter), moved, "each CPU's add is in the sum");
}

/* ---- Storm */

static void on_alarm(int sig)
{
    (void)sig;
    percpu_counter_inc(&in_handlers);
    __atomic_fetch_add(&by_handlers, 1, __ATOMIC_RELAXED);
}

static void *work(void *arg)
{
    unsigned self = (unsigned)(uintptr_t)arg, random = self * 7919 + 1;
    unsigned long n = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        struct node *node;
        for (unsigned i = 0; i < 50; i++) {
            percpu_counter_inc(&counter);
            n++;
            node = (struct node *)percpu_freelist_pop(&list);
            if (node) {
                if (__atomic_exchange_n(&node->owner, self, __ATOMIC_RELAXED) != 0)
                    __atomic_fetch_add(&twice, 1, __ATOMIC_RELAXED);
                if (__atomic_exchange_n(&node->owner, 0, __ATOMIC_RELAXED) != self)
                    __atomic_fetch_add(&twice, 1, __ATOMIC_RELAXED);
                percpu_freelist_push(&list, node);
            }
        }
        random = random * 1103515245u + 12345u;
        (void)pin(cpus[(random >> 16) % nr_cpus]);
        if (n == 50)
            __atomic_fetch_add(&at_work, 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&rounds, n, __ATOMIC_RELAXED);
    return NULL;
}

static unsigned drain_all(void)
{
    unsigned found = 0;
    for (unsigned cpu = 0; cpu < percpu_nr_cpus(); cpu++) {
        void *chain = NULL;
        if (percpu_freelist_drain(&list, cpu, &chain) != 0)
            note("drain of %u: %s", cpu, strerror(errno));
        for (; chain && found <= 10 * NODES; chain = ((struct node *)chain)->next) /* no loop */
            found++;
    }
    return found;
}

static void set_cpu(unsigned cpu, const char *value)
{
    char path[96];
    int fd;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/online", cpu);
    fd = open(path, O_WRONLY);
    if (!ok(fd >= 0 && write(fd, value, 1) == 1, "CPU %u set to %s", cpu, value))
        note("%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void storm(double duration, int hotplug)
{
    const struct itimerval every = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    pthread_t threads[WORKERS];
    unsigned long before = percpu_status().aborts, aborts, added, handled;
    unsigned found;
    double end;
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_alarm;
    sa.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &sa, NULL);
    (void)percpu_freelist_init(&list, PERCPU_LINK(struct node, next));
    for (unsigned i = 0; i < NODES; i++)
        percpu_freelist_push(&list, &nodes[i]);
    setitimer(ITIMER_REAL, &every, NULL);
    for (unsigned i = 0; i < WORKERS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) != 0)
            abort();
    while (__atomic_load_n(&at_work, __ATOMIC_RELAXED) != WORKERS)
        usleep(1000);
    end = seconds() + duration;
    if (hotplug)
        for (unsigned i = 0; i < 3; i++) {
            set_cpu(cpus[nr_cpus - 1], "0");
            usleep(100000);
            set_cpu(cpus[nr_cpus - 1], "1");
            usleep(100000);
        }
    /* On an emulator on a busy machine aborts may be slow to come: wait, but not for ever. */
    while (seconds() < end || (getenv("STORM") && percpu_status().mode != PERCPU_MODE_FALLBACK &&
                               percpu_status().aborts == before && seconds() < end + 60))
        usleep(10000);
    setitimer(ITIMER_REAL, &never, NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    aborts = percpu_status().aborts - before;
    added = percpu_counter_take(&counter);
    handled = percpu_counter_sum(&in_handlers);
    found = drain_all();
    if (lossy) {
        note("lossy: %ld of %lu adds lost, %ld of %lu in handlers, a node in two hands %lu times, "
             "%u of %u nodes in the end",
             (long)(rounds - added), rounds, (long)(by_handlers - handled), by_handlers, twice,
             found, (unsigned)NODES);
        if (added == rounds && handled == by_handlers && !twice && found == NODES)
            skip("this kernel loses operations", "none were lost this time");
        else
            ok(1, "this kernel loses operations");
        return;
    }
    is(added, rounds, "every add is in the sum");
    is(handled, by_handlers, "and every add of a signal handler");
    ok(!twice, "no node was out of the list twice");
    is(found, NODES, "every node is there in the end");
    note("storm: %lu operations, %lu signals, %lu aborts", rounds * 3, by_handlers, aborts);
    if (getenv("STORM") && percpu_status().mode != PERCPU_MODE_FALLBACK)
        ok(aborts > 0, "sections were aborted");
}

/* ---- Does this kernel kill who writes an id? If so, everything here ran without such a write. */

#if PERCPU_RSEQ_PORTED
static int ids_are_policed(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        volatile struct percpu_rseq_area *area =
            (volatile struct percpu_rseq_area *)percpu_priv_area();
        struct timespec tick = {0, 1000000};
        area->node_id = 0x5eed;
        for (unsigned i = 0; i < 64; i++) {
            (void)pin(cpus[i % nr_cpus]);
            nanosleep(&tick, NULL);
        }
        _exit(0);
    }
    waitpid(child, &status, 0);
    return child > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}
#endif

int main(int argc, char **argv)
{
    static const char *const modes[] = {"fallback", "libc", "own"};
    const char *policed = "-", *duration = getenv("STORM");
    struct percpu_status s;
    struct utsname uts;
    char text[512];
#ifdef __GLIBC__
    const char *libc = gnu_get_libc_version();
#else
    const char *libc = "-";
#endif
    lossy = argc > 1 && !strcmp(argv[1], "lossy");
    percpu_counter_inc(&counter);
    is(percpu_counter_take(&counter), 1, "the first operation");
    find_cpus();
    s = percpu_status();
    percpu_status_format(text, sizeof text);
    note("status: %s", text);
    if (getenv("REQUIRE_RSEQ"))
        ok(s.mode != PERCPU_MODE_FALLBACK, "critical sections are used");
    if (getenv("EXPECT_REASON"))
        is(s.reason, atoi(getenv("EXPECT_REASON")), "the fallback's reason");
    every_cpu_has_its_id();
    storm(duration ? atof(duration) : 0.3, argc > 1 && !strcmp(argv[1], "hotplug"));
#if PERCPU_RSEQ_PORTED
    if (s.mode != PERCPU_MODE_FALLBACK)
        policed = ids_are_policed() ? "yes" : "no";
#endif
    uname(&uts);
    note("platform: kernel=%s libc=%s mode=%s reason=%d length=%u feature=%u cpus=%u of %u id=%s "
         "policed=%s aborts=%lu",
         uts.release, libc, modes[s.mode], (int)s.reason, s.length, s.feature_size, nr_cpus,
         percpu_nr_cpus(),
         from_area == nr_cpus ? "area"
         : from_area          ? "mixed"
                              : "getcpu",
         policed, percpu_status().aborts);
    return done();
}
