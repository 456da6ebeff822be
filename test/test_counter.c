/* SPDX-License-Identifier: MIT */
/*
 * Counters: ready when zeroed, exact sums and takes while others add, first use by many threads at
 * once and without memory.
 *
 * Goes red, for example, where the loser of a first use keeps its memory, where an add that found
 * no memory is dropped, where a take computes its sum before it knows the last one.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

static unsigned granules_in_use(void)
{
    unsigned n = 0;
    for (struct percpu_priv_arena *a = percpu_priv_state.arenas; a; a = a->next)
        for (size_t w = 0; w < PERCPU_PRIV_MAP_WORDS; w++)
            n += (unsigned)__builtin_popcountll(__atomic_load_n(&a->used[w], __ATOMIC_RELAXED));
    return n;
}

/* Threads leave together, so that they collide; a barrier that is no lock of libc's. */
static void meet(unsigned *arrived, unsigned all)
{
    unsigned mine = __atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL), last = mine / all * all + all;
    while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < last)
        sched_yield();
}

/* ---- Out of memory: in children of a process that has not allocated yet */

static struct percpu_counter starved, starved_too;

static int starve(void)
{
    int errno_kept = 1;
    if (limit_address_space(4096))
        return 3;
    for (int i = 0; i < 1000; i++) {
        errno = 4711;
        percpu_counter_add(&starved, 3);
        errno_kept &= errno == 4711;
    }
    percpu_counter_dec(&starved);
    if (!errno_kept)
        return 4;
    if (starved.base || starved.spill != 2999 || percpu_counter_sum(&starved) != 2999)
        return 5;
    if (percpu_counter_take(&starved) != 2999)
        return 6;
    errno = 0;
    if (percpu_counter_init(&starved_too) != -1 || errno != ENOMEM)
        return 7;
    percpu_counter_inc(&starved_too);
    if (percpu_counter_sum(&starved_too) != 1)
        return 8;
    if (limit_address_space(0))
        return 9;
    errno = 4711;
    percpu_counter_add(&starved, 10);
    if (!starved.base || starved.spill != 2999 || errno != 4711)
        return 10;
    if (percpu_counter_sum(&starved) != 3009 || percpu_counter_take(&starved) != 10)
        return 11;
    percpu_counter_inc(&starved_too);
    if (!starved_too.base || percpu_counter_sum(&starved_too) != 2)
        return 12;
    percpu_counter_destroy(&starved);
    if (percpu_counter_sum(&starved) != 0 || starved.spill || starved.taken || starved.base)
        return 13;
    return 0;
}

static void out_of_memory(void)
{
    const char *name = "adds that find no memory are kept, and later ones find some";
    if (tool_in_process())
        skip("adds that find no memory are kept", "the address space is shared with a tool");
    else
        in_child(starve, name);
}

/* ---- One thread */

static struct percpu_counter zeroed;

static void life(void)
{
    struct percpu_counter c = {0, 0, 0, 0};
    unsigned before = granules_in_use();
    errno = 4711;
    is(percpu_counter_sum(&zeroed), 0, "a zeroed counter reads 0");
    is(percpu_counter_take(&zeroed), 0, "and has nothing to take");
    is(granules_in_use(), before, "reading allocates nothing");
    percpu_counter_inc(&zeroed);
    is(percpu_counter_sum(&zeroed), 1, "and counts");
    is(granules_in_use(), before + 1, "with one word a CPU");
    for (int round = 0; round < 3; round++) {
        is(percpu_counter_init(&c), 0, "init");
        ok(c.base != (percpu_word *)0, "has allocated");
        percpu_counter_add(&c, 7);
        percpu_counter_sub(&c, 9);
        percpu_counter_inc(&c);
        percpu_counter_dec(&c);
        is(percpu_counter_sum(&c), (percpu_word)-2, "a negative sum");
        is(percpu_counter_take(&c), (percpu_word)-2, "is taken");
        percpu_counter_add(&c, 5);
        is(percpu_counter_take(&c), 5, "and then what came after");
        is(percpu_counter_take(&c), 0, "once");
        percpu_counter_destroy(&c);
        is(percpu_counter_sum(&c), 0, "destroyed: zero");
        percpu_counter_inc(&c);
        is(percpu_counter_sum(&c), 1, "and usable");
        percpu_counter_destroy(&c);
    }
    percpu_counter_destroy(&c);
    percpu_counter_add(&c, (percpu_word)-1);
    percpu_counter_add(&c, 2);
    is(percpu_counter_sum(&c), 1, "wraps at the end");
    percpu_counter_add(&c, ~(percpu_word)0 / 2 + 1);
    percpu_counter_add(&c, ~(percpu_word)0 / 2 + 1);
    is(percpu_counter_sum(&c), 1, "half and half make a whole turn");
    percpu_counter_add(&c, 0x80000000u);
    percpu_counter_sub(&c, 0x7fffffff);
    is(percpu_counter_sum(&c), 2, "constants that fit no immediate");
    is(percpu_counter_take(&c), 2, "taken after a turn");
    percpu_counter_destroy(&c);
    percpu_counter_destroy(&zeroed);
    is(granules_in_use(), before, "nothing is left in use");
    is(errno, 4711, "errno stays as it was");
}

/* ---- The first use, by all at once */

enum { THREADS = 8, RACES = 400 };
static struct percpu_counter raced[RACES];
static unsigned races, arrived;

static void *race(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < races; i++) {
        if (i % 16 == 0)
            meet(&arrived, THREADS);
        percpu_counter_add(&raced[i], i + 1);
    }
    return (void *)0;
}

static void first_use(void)
{
    pthread_t threads[THREADS];
    unsigned before = granules_in_use(), wrong = 0;
    races = scaled(RACES);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], (const pthread_attr_t *)0, race, (void *)0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], (void **)0);
    for (unsigned i = 0; i < races; i++)
        wrong += percpu_counter_sum(&raced[i]) != (percpu_word)(i + 1) * THREADS;
    is(wrong, 0, "first used by 8 threads at once: every add counts");
    is(granules_in_use(), before + races, "and each counter has been allocated once");
    for (unsigned i = 0; i < races; i++)
        percpu_counter_destroy(&raced[i]);
    is(granules_in_use(), before, "and is gone");
}

/* ---- Adders, takers, readers */

enum { ADDERS = 4, TAKERS = 3 };
static struct percpu_counter shared;
static unsigned adds;
static struct {
    volatile percpu_word begun, ended; /* adds: announced before, confirmed after */
    char line[64 - 2 * sizeof(percpu_word)];
} progress[ADDERS];
static int adders_left;

static void *adder(void *arg)
{
    uintptr_t me = (uintptr_t)arg;
    percpu_word total = 0;
    for (unsigned i = 0; i < adds; i++) {
        percpu_word v = 1 + (i + me) % 3;
        __atomic_store_n(&progress[me].begun, total += v, __ATOMIC_SEQ_CST);
        percpu_counter_add(&shared, v);
        __atomic_store_n(&progress[me].ended, total, __ATOMIC_SEQ_CST);
        if (i % 512 == 0)
            sched_yield(); /* let takers in */
    }
    (void)__atomic_sub_fetch(&adders_left, 1, __ATOMIC_RELEASE);
    return (void *)0;
}

struct taken {
    percpu_word sum;
    unsigned takes, implausible, zero;
};

static void *taker(void *arg)
{
    struct taken *t = (struct taken *)arg;
    int more = 1;
    while (more) {
        more = __atomic_load_n(&adders_left, __ATOMIC_ACQUIRE) != 0;
        percpu_word got = percpu_counter_take(&shared);
        t->sum += got;
        t->takes++;
        t->zero += got == 0;
        t->implausible += got > ~(percpu_word)0 / 2;
    }
    return (void *)0;
}

static percpu_word progress_sum(int begun)
{
    percpu_word sum = 0;
    for (int i = 0; i < ADDERS; i++)
        sum += __atomic_load_n(begun ? &progress[i].begun : &progress[i].ended, __ATOMIC_SEQ_CST);
    return sum;
}

struct seen {
    unsigned reads, too_low, too_high, backwards;
};

static void *reader(void *arg)
{
    struct seen *s = (struct seen *)arg;
    percpu_word last = 0;
    int more = 1;
    while (more) {
        more = __atomic_load_n(&adders_left, __ATOMIC_ACQUIRE) != 0;
        percpu_word low = progress_sum(0), sum = percpu_counter_sum(&shared),
                    high = progress_sum(1);
        s->reads++;
        s->too_low += sum < low;
        s->too_high += sum > high;
        s->backwards += sum < last;
        last = sum;
    }
    return (void *)0;
}

static void concurrent(void)
{
    pthread_t adding[ADDERS], taking[TAKERS], reading;
    struct taken taken[TAKERS];
    struct seen seen = {0, 0, 0, 0};
    percpu_word total, sum = 0;
    unsigned implausible = 0, takes = 0;
    memset(taken, 0, sizeof taken);
    adds = scaled(300000);
    adders_left = ADDERS;
    pthread_create(&reading, (const pthread_attr_t *)0, reader, &seen);
    for (int i = 0; i < TAKERS; i++)
        pthread_create(&taking[i], (const pthread_attr_t *)0, taker, &taken[i]);
    for (uintptr_t i = 0; i < ADDERS; i++)
        pthread_create(&adding[i], (const pthread_attr_t *)0, adder, (void *)i);
    for (int i = 0; i < ADDERS; i++)
        pthread_join(adding[i], (void **)0);
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(taking[i], (void **)0);
        sum += taken[i].sum;
        takes += taken[i].takes - taken[i].zero;
        implausible += taken[i].implausible;
    }
    pthread_join(reading, (void **)0);
    total = progress_sum(1);
    note("%u adds, %u takes that got something, %u sums", adds * ADDERS, takes, seen.reads);
    is(percpu_counter_sum(&shared), total, "exact once adders have stopped");
    is(sum + percpu_counter_take(&shared), total, "takes and a final one give each add once");
    is(implausible, 0, "no take of a growing counter is negative");
    is(seen.backwards, 0, "sums of a growing counter never go back");
    is(seen.too_low, 0, "a sum has all adds that had returned");
    is(seen.too_high, 0, "and none that had not begun");
    percpu_counter_destroy(&shared);
}

int main(void)
{
    out_of_memory();
    life();
    first_use();
    concurrent();
    return done();
}
