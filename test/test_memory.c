/* SPDX-License-Identifier: MIT */
/*
 * What memory costs: 8 bytes per counter and CPU that used it, page-rounded; rows that nobody
 * touches, nothing; and what is freed does not accumulate.
 *
 * Goes red, for example, where an allocation touches all rows, where freeing writes rows that were
 * never written, where empty arenas keep their pages.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tap.h"

/*
 * Resident kilobytes of anonymous memory; 0 where the file is missing. Not statm's, which lag
 * behind, nor all that is resident: libc's pages come as they are first used.
 */
static unsigned long resident(void)
{
    char text[2048], *line;
    ssize_t got = 0, at = 0;
    int fd = open("/proc/self/smaps_rollup", O_RDONLY);
    if (fd < 0)
        return 0;
    while ((got = read(fd, text + at, sizeof text - 1 - (size_t)at)) > 0)
        at += got;
    close(fd);
    text[at] = 0;
    line = strstr(text, "Anonymous:");
    return line ? strtoul(line + 10, (char **)0, 10) : 0;
}

/* Does reading memory that was never written cost none? (Some virtual machines' kernels: no.) */
static int reading_is_free(void)
{
    const size_t size = 1 << 20;
    unsigned long before = resident();
    volatile char *p = (volatile char *)mmap((void *)0, size, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned sum = 0;
    for (size_t i = 0; i < size; i += 4096)
        sum += (unsigned)p[i];
    unsigned long after = resident();
    munmap((void *)(uintptr_t)p, size);
    return sum == 0 && after < before + 64;
}

static unsigned arenas(void)
{
    unsigned n = 0;
    for (struct percpu_priv_arena *a = percpu_priv_state.arenas; a; a = a->next)
        n++;
    return n;
}

static int pin(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

/* ---- Many counters */

enum { COUNTERS = 100000 };
static struct percpu_counter counters[COUNTERS];

/* A thread per CPU; on the fallback each has a row of its own too. */
static void *use_all(void *arg)
{
    (void)pin((unsigned)(uintptr_t)arg);
    for (unsigned i = 0; i < COUNTERS; i++)
        percpu_counter_inc(&counters[i]);
    return (void *)0;
}

static void use_on(unsigned cpu)
{
    pthread_t thread;
    pthread_create(&thread, (const pthread_attr_t *)0, use_all, (void *)(uintptr_t)cpu);
    pthread_join(thread, (void **)0);
}

static void many_counters(void)
{
    /*
     * Per arena: the pages of one row, and one page of description. Beside it 16 pages for what
     * a thread's first run brings: its stack, libc's data.
     */
    const unsigned long row = COUNTERS * 8 / 1024,
                        arenas_used = (COUNTERS * 8 + PERCPU_STRIDE - 1) / PERCPU_STRIDE;
    const unsigned long description = PERCPU_PRIV_ARENA_SIZE / 1024;
    const unsigned long most = arenas_used * (PERCPU_STRIDE / 1024 + description) + 64;
    unsigned long before, first, second, wrong = 0, cpu = 0;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    memset(counters, 1, sizeof counters); /* the handles' own pages are not the question */
    memset(counters, 0, sizeof counters);
    before = resident();
    use_on((unsigned)cpu);
    first = resident();
    note("%d counters, one CPU: %lu KiB more, where 8 bytes each are %lu KiB", COUNTERS,
         first - before, row);
    ok(first - before >= row, "used on one CPU they take their bytes");
    ok(first - before <= most, "and no more, page-rounded");
    is(arenas(), arenas_used, "they are packed");
    for (cpu++; cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &set); cpu++)
        ;
    if (cpu < CPU_SETSIZE) {
        use_on((unsigned)cpu);
        second = resident();
        note("two CPUs: %lu KiB more", second - first);
        ok(second - first >= row && second - first <= most, "the second CPU costs as much again");
    } else {
        skip("the second CPU costs as much again", "there is only one");
    }
    second = resident();
    for (unsigned i = 0; i < COUNTERS; i++)
        wrong += percpu_counter_sum(&counters[i]) != (cpu < CPU_SETSIZE ? 2 : 1);
    is(wrong, 0, "their sums are right");
    first = resident();
    note("all rows read: %ld KiB more", (long)(first - second));
    if (reading_is_free())
        ok(first <= second + 64, "reading all rows costs nothing");
    else
        skip("reading all rows costs nothing",
             "this kernel gives pages also to those who only read");
    for (unsigned i = 0; i < COUNTERS; i++)
        percpu_counter_destroy(&counters[i]);
    note("freed: %ld KiB beside what there was before", (long)(resident() - before));
    /* All descriptions, and the rows of the arena that the next allocation will use. */
    ok(resident() <=
           before + arenas_used * description + 2 * percpu_nr_cpus() * PERCPU_STRIDE / 1024 + 64,
       "freed, they give their pages back");
    is(arenas(), arenas_used, "and all that is new is the arenas that they were in");
}

static void untouched(void)
{
    enum { N = 64 };
    void *objects[N];
    unsigned long before, after;
    unsigned maps;
    for (int i = 0; i < N; i++)
        objects[i] = (void *)0;
    maps = arenas();
    before = resident();
    for (int i = 0; i < N; i++)
        objects[i] = percpu_alloc(PERCPU_STRIDE, 8);
    after = resident();
    maps = arenas() - maps;
    ok(after - before <= maps * PERCPU_PRIV_ARENA_SIZE / 1024 + 64,
       "rows that nobody touches cost nothing");
    for (int i = 0; i < N; i++)
        percpu_free(objects[i]);
    ok(resident() <= after + 64, "also when they are freed");
}

/* ---- Very many, in random order, by several threads, twice */

static size_t mib_of_counters = 8;
enum { THREADS = 8 };
static percpu_word **slots;
static size_t n_slots;
static int failures;

static void *fill_and_empty(void *arg)
{
    const size_t n = n_slots / THREADS;
    percpu_word **mine = slots + n * (uintptr_t)arg;
    uint32_t seed = (uint32_t)(uintptr_t)arg * 77 + 1;
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        mine[i] = (percpu_word *)percpu_alloc(8, 8);
        if (mine[i])
            this_cpu_inc(*mine[i]);
        else
            bad++;
    }
    for (size_t i = n; i-- > 0;) { /* shuffled as they are freed */
        size_t k;
        seed = seed * 1664525 + 1013904223;
        k = (size_t)(((uint64_t)seed * (i + 1)) >> 32);
        bad += percpu_free(mine[k]) != 0;
        mine[k] = mine[i];
    }
    (void)__atomic_fetch_add(&failures, bad, __ATOMIC_RELAXED);
    return (void *)0;
}

static void random_order(void)
{
    pthread_t threads[THREADS];
    unsigned long after[3];
    unsigned maps[3];
    const char *percent = getenv("TEST_SCALE");
    size_t size;
    n_slots = mib_of_counters * (percent ? strtoul(percent, (char **)0, 10) : 100) * 1048576 / 800;
    size = (n_slots + 512) * sizeof *slots;
    slots = (percpu_word **)mmap((void *)0, size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(slots, 1, size);
    after[0] = resident();
    for (int round = 1; round < 3; round++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], (const pthread_attr_t *)0, fill_and_empty, (void *)i);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], (void **)0);
        after[round] = resident();
        maps[round] = arenas();
    }
    note("%lu counters: %lu KiB before, %lu after one round, %lu after two; %u and %u arenas",
         (unsigned long)n_slots, after[0], after[1], after[2], maps[1], maps[2]);
    is(failures, 0, "all were allocated and freed");
    /* Threads that meet may each bring an arena: at most one per thread and round, of one page. */
    ok(maps[2] <= maps[1] + THREADS, "the second round lives on the arenas of the first");
    ok(after[2] <= after[1] + 256 + THREADS * PERCPU_PRIV_ARENA_SIZE / 1024,
       "and leaves nothing behind");
    ok(after[1] <= after[0] + maps[1] * PERCPU_PRIV_ARENA_SIZE / 1024 +
                       2 * percpu_nr_cpus() * PERCPU_STRIDE / 1024 + 512,
       "what stays is the arenas' descriptions");
    munmap(slots, size);
}

/* 64 MiB in one of the ways to compile, and by hand with an argument; in the others an eighth. */
int main(int argc, char **argv)
{
    if (argc > 1 || strstr(argv[0], "/gcc.plain/"))
        mib_of_counters = 64;
    if (!resident())
        skip_all("no /proc/self/smaps_rollup");
    many_counters();
    untouched();
    random_order();
    return done();
}
