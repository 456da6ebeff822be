/* SPDX-License-Identifier: MIT */
/*
 * Counter sets: sizes, chains of ancestors, threads, takes, early use, no memory.
 *
 * Seen to fail: with an add that stops at the first ancestor; with chunks one word short; with the
 * children not counted; with a failed init that keeps its chunks; with the second bank left out of
 * the snapshot; with a take that stores instead of comparing; with fallback adds on the first bank;
 * with amounts dropped that find no memory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <limits.h>
#include "disturb.h"

/* The compiler keeps adds on their side of this. */
static void barrier(void)
{
    __asm__ volatile("" ::: "memory");
}

/* ---- Before main: no init has run, and a handler gets in between */

static struct percpu_counters early = PERCPU_COUNTERS_INIT(9000, 0);
static struct percpu_counters early_shared = PERCPU_COUNTERS_INIT(9000, PERCPU_COUNTERS_SHARED);

static void early_handler(int sig)
{
    (void)sig;
    percpu_counters_add(&early, 8999, 100); /* in a chunk that nothing has used yet */
    percpu_counters_add(&early_shared, 8999, 100);
}

__attribute__((constructor(101))) static void count_before_main(void)
{
    percpu_counters_add(&early, 0, 7);
    percpu_counters_add(&early_shared, 0, 7);
    signal(SIGUSR1, early_handler);
    raise(SIGUSR1);
    raise(SIGUSR1);
    signal(SIGUSR1, SIG_DFL);
}

static void early_increments_count(void)
{
    is(percpu_counters_sum(&early, 0), 7, "added in a constructor");
    is(percpu_counters_sum(&early, 8999), 200,
       "added in a handler, in a constructor, second chunk");
    is(percpu_counters_sum(&early_shared, 0), 7, "the same, shared set");
    is(percpu_counters_sum(&early_shared, 8999), 200, "the same, shared set, handler");
    is(early.unplaced + early_shared.unplaced, 0, "and everything found its place");
    ok(percpu_counters_destroy(&early) == 0 && percpu_counters_destroy(&early_shared) == 0,
       "a static set can be destroyed");
}

/* ---- Sizes */

static unsigned step_of(unsigned n)
{
    return n > 10000 ? 61 : 1;
}

static void every_event_has_its_own_word(unsigned n, unsigned flags)
{
    struct percpu_counters set;
    percpu_word *out = (percpu_word *)calloc(n + 1, sizeof *out);
    const percpu_word guard = (percpu_word)0x5a5a5a5a;
    unsigned wrong = 0, e;
    if (!ok(out && percpu_counters_init(&set, n, (struct percpu_counters *)0, flags) == 0,
            "init, %u events, flags %u", n, flags)) {
        free(out);
        return;
    }
    out[n] = guard;
    for (e = 0; e < n; e += step_of(n))
        percpu_counters_add(&set, e, e + 1);
    percpu_counters_add(&set, n - 1, 1000000);
    percpu_counters_inc(&set, 0);
    percpu_counters_snapshot(&set, out);
    for (e = 0; e < n; e++) {
        percpu_word want = e % step_of(n) == 0 ? e + 1 : 0;
        want += (e == n - 1 ? 1000000u : 0u) + (e == 0 ? 1u : 0u);
        if (out[e] != want || percpu_counters_sum(&set, e) != want) {
            if (!wrong++)
                note("event %u: snapshot %lu, sum %lu, expected %lu", e, (unsigned long)out[e],
                     (unsigned long)percpu_counters_sum(&set, e), (unsigned long)want);
        }
    }
    is(wrong, 0, "snapshot and sum of each event are what was added to it");
    is(out[n], guard, "snapshot writes n words");
    is(percpu_counters_take(&set, out), 0, "take");
    is(out[n - 1], percpu_counters_sum(&set, n - 1), "the first take gives everything");
    is(out[n], guard, "take writes n words");
    percpu_counters_add(&set, n - 1, 5);
    ok(percpu_counters_take(&set, out) == 0 && out[n - 1] == 5 && (n == 1 || out[0] == 0),
       "the second take gives what came since");
    is(percpu_counters_destroy(&set), 0, "destroy");
    ok(!set.n && !set.chunk[0] && !set.taken[0], "it is zero again");
    free(out);
}

static void bad_arguments_are_refused(void)
{
    struct percpu_counters set, *none = (struct percpu_counters *)0;
    errno = 0;
    ok(percpu_counters_init(&set, 0, none, 0) == -1 && errno == EINVAL, "no events: EINVAL");
    percpu_counters_add(&set, 0, 1); /* harmless all the same */
    is(percpu_counters_sum(&set, 0), 0, "a set without events counts nothing");
    errno = 0;
    ok(percpu_counters_init(&set, PERCPU_COUNTERS_MAX + 1, none, 0) == -1 && errno == EINVAL,
       "one event too many: EINVAL");
    percpu_counters_add(&set, PERCPU_COUNTERS_MAX, 1);
    errno = 0;
    ok(percpu_counters_init(&set, 1, none, 2) == -1 && errno == EINVAL, "unknown flag: EINVAL");
}

/* ---- Chains */

static void events_out_of_range_are_ignored(void)
{
    struct percpu_counters top, middle, low;
    percpu_word sums[3], *behind, *copy, touched = 0;
    percpu_counters_init(&top, 10000, (struct percpu_counters *)0, 0);
    percpu_counters_init(&middle, 10, &top, PERCPU_COUNTERS_SHARED);
    percpu_counters_init(&low, 10000, &middle, 0);
    errno = 77;
    percpu_counters_add(&low, 10, 3); /* middle has none */
    percpu_counters_add(&low, 9999, 4);
    percpu_counters_add(&low, 10000, 5);
    percpu_counters_add(&low, UINT_MAX, 6);
    percpu_counters_add(&middle, 8192, 7);
    is(errno, 77, "errno is preserved");
    sums[0] = percpu_counters_sum(&low, 10);
    sums[1] = percpu_counters_sum(&middle, 10);
    sums[2] = percpu_counters_sum(&top, 10);
    ok(sums[0] == 3 && sums[1] == 0 && sums[2] == 3,
       "skipped only by the ancestor without the event");
    is(percpu_counters_sum(&top, 9999), 4, "last event");
    is(percpu_counters_sum(&top, 8192), 7, "an ancestor's event that the set itself lacks");
    behind = &low.chunk[10000 / PERCPU_COUNTERS_CHUNK][10000 % PERCPU_COUNTERS_CHUNK];
    percpu_for_each_copy(behind, copy) touched |= __atomic_load_n(copy, __ATOMIC_RELAXED);
    is(touched, 0, "the memory behind the last event is not touched");
    is(percpu_counters_sum(&low, UINT_MAX) + percpu_counters_sum(&top, 10000), 0,
       "no such event: 0");
    is(low.unplaced + middle.unplaced + top.unplaced, 0, "and nothing is unplaced");
    ok(!percpu_counters_destroy(&low) && !percpu_counters_destroy(&middle) &&
           !percpu_counters_destroy(&top),
       "destroyed from the leaf up");
}

static void parent_outlives_its_children(void)
{
    struct percpu_counters parent, a, b;
    percpu_counters_init(&parent, 4, (struct percpu_counters *)0, 0);
    percpu_counters_init(&a, 4, &parent, 0);
    percpu_counters_init(&b, 4, &parent, PERCPU_COUNTERS_SHARED);
    percpu_counters_add(&a, 1, 1);
    errno = 0;
    ok(percpu_counters_destroy(&parent) == -1 && errno == EBUSY, "two children: EBUSY");
    percpu_counters_add(&a, 1, 2);
    percpu_counters_add(&b, 1, 4);
    is(percpu_counters_sum(&parent, 1), 7, "the parent goes on counting");
    is(percpu_counters_destroy(&a), 0, "first child destroyed");
    ok(percpu_counters_destroy(&parent) == -1 && errno == EBUSY, "one child: EBUSY");
    percpu_counters_add(&b, 1, 8);
    is(percpu_counters_sum(&parent, 1), 15, "and what the first child counted is kept");
    percpu_counters_destroy(&b);
    is(percpu_counters_destroy(&parent), 0, "no child: destroyed");
}

/* ---- Many threads, many sets: thread -> query -> user -> process */

#define THREADS 500
#define SETS 50
#define USERS 5
#define EVENTS 16
static struct percpu_counters process, users[USERS], queries[SETS];
static uint64_t expected[SETS][EVENTS]; /* what threads and handlers counted for themselves */
static unsigned long aborts_before;
static double deadline;
/* Before and after each add, for the reader that checks that a snapshot lies between. */
static uint64_t intended[EVENTS], finished[EVENTS];
static int go_on;

static __thread struct percpu_counters *volatile current; /* where a handler adds to */
static __thread volatile unsigned handled;

static void counting_handler(int sig)
{
    (void)sig;
    if (!current)
        return;
    percpu_counters_add(current, EVENTS - 1, 3);
    handled = handled + 1;
}

static void *count_in_a_chain(void *arg)
{
    const unsigned number = (unsigned)(uintptr_t)arg, query = number % SETS;
    struct percpu_counters own;
    uint64_t mine[EVENTS] = {0};
    unsigned rounds = 0, wrong = 0, e;
    const unsigned flags = number % 3 == 0 ? PERCPU_COUNTERS_SHARED : 0u;
    if (number % 4 == 3)
        leave_rseq();
    if (percpu_counters_init(&own, EVENTS, &queries[query], flags) != 0)
        return (void *)1;
    current = &own;
    block_alarm(SIG_UNBLOCK);
    do {
        for (unsigned i = 0; i < 100; i++) {
            e = (i + number) % (EVENTS - 1);
            percpu_counters_add(&own, e, i);
            mine[e] += i;
        }
    } while (++rounds < 10 ||
             (sections_at_start && (rounds % 10 || no_abort_yet(aborts_before, deadline))));
    block_alarm(SIG_BLOCK);
    current = (struct percpu_counters *)0;
    mine[EVENTS - 1] = 3 * (uint64_t)handled;
    for (e = 0; e < EVENTS; e++) {
        wrong += percpu_counters_sum(&own, e) != (percpu_word)mine[e];
        (void)__atomic_fetch_add(&expected[query][e], mine[e], __ATOMIC_RELAXED);
    }
    return (void *)(uintptr_t)(wrong || percpu_counters_destroy(&own) != 0);
}

/* Sums and snapshot of one set against what was counted. Return: differences. */
static unsigned compare(struct percpu_counters *set, const uint64_t *want)
{
    percpu_word out[EVENTS];
    unsigned wrong = 0;
    percpu_counters_snapshot(set, out);
    for (unsigned e = 0; e < EVENTS; e++)
        wrong +=
            out[e] != (percpu_word)want[e] || percpu_counters_sum(set, e) != (percpu_word)want[e];
    return wrong;
}

static void many_threads_are_exact(void)
{
    static pthread_t threads[THREADS];
    uint64_t user_want[USERS][EVENTS], all[EVENTS];
    unsigned started = 0, failed = 0, wrong = 0, i, e;
    pthread_attr_t attr;
    memset(user_want, 0, sizeof user_want);
    memset(all, 0, sizeof all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, SANITIZED ? 1 << 20 : 64 * 1024);
    percpu_counters_init(&process, EVENTS, (struct percpu_counters *)0, 0);
    for (i = 0; i < USERS; i++)
        percpu_counters_init(&users[i], EVENTS, &process, i % 2 ? PERCPU_COUNTERS_SHARED : 0u);
    for (i = 0; i < SETS; i++)
        percpu_counters_init(&queries[i], EVENTS, &users[i % USERS],
                             i % 3 ? 0u : PERCPU_COUNTERS_SHARED);
    aborts_before = aborts();
    deadline = now() + 30;
    set_alarm(50, counting_handler);
    for (i = 0; i < THREADS; i++, started++)
        if (pthread_create(&threads[i], &attr, count_in_a_chain, (void *)(uintptr_t)i) != 0)
            break;
    for (i = 0; i < started; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed += result != (void *)0;
    }
    set_alarm(0, counting_handler);
    is(started, THREADS, "500 threads");
    is(failed, 0, "each thread's own set is exact, and destroyed");
    for (i = 0; i < SETS; i++) {
        wrong += compare(&queries[i], expected[i]);
        for (e = 0; e < EVENTS; e++) {
            user_want[i % USERS][e] += expected[i][e];
            all[e] += expected[i][e];
        }
    }
    is(wrong, 0, "50 queries, sum and snapshot, are exact");
    for (wrong = i = 0; i < USERS; i++)
        wrong += compare(&users[i], user_want[i]);
    is(wrong, 0, "5 users are exact");
    is(compare(&process, all), 0, "the process is exact");
    note("%lu events, %lu in handlers; %lu aborts", (unsigned long)all[0],
         (unsigned long)all[EVENTS - 1] / 3, aborts() - aborts_before);
    aborted_since(aborts_before);
    errno = 0;
    ok(percpu_counters_destroy(&process) == -1 && errno == EBUSY, "the process is still a parent");
    for (i = 0; i < SETS; i++)
        failed += percpu_counters_destroy(&queries[i]) != 0;
    for (i = 0; i < USERS; i++)
        failed += percpu_counters_destroy(&users[i]) != 0;
    is(failed + (percpu_counters_destroy(&process) != 0), 0, "all destroyed, children first");
}

/* ---- Reading while others add */

static struct percpu_counters busy, busy_child;
static uint64_t added[EVENTS], taken[EVENTS];
static unsigned takes, bad_takes;

static void *add_for_readers(void *arg)
{
    uint64_t mine[EVENTS] = {0};
    unsigned seed = (unsigned)(uintptr_t)arg, e;
    if (seed % 2)
        leave_rseq();
    while (__atomic_load_n(&go_on, __ATOMIC_RELAXED)) {
        seed = seed * 1103515245 + 12345;
        e = seed >> 16 & (EVENTS - 1);
        (void)__atomic_fetch_add(&intended[e], 1, __ATOMIC_SEQ_CST);
        barrier();
        percpu_counters_inc(&busy_child, e);
        barrier();
        (void)__atomic_fetch_add(&finished[e], 1, __ATOMIC_SEQ_CST);
        mine[e]++;
    }
    for (e = 0; e < EVENTS; e++)
        (void)__atomic_fetch_add(&added[e], mine[e], __ATOMIC_RELAXED);
    return (void *)0;
}

static void *take_from_adders(void *arg)
{
    percpu_word out[EVENTS];
    (void)arg;
    while (__atomic_load_n(&go_on, __ATOMIC_RELAXED)) {
        if (percpu_counters_take(&busy, out) != 0)
            return (void *)1;
        for (unsigned e = 0; e < EVENTS; e++) {
            (void)__atomic_fetch_add(&taken[e], out[e], __ATOMIC_RELAXED);
            if (out[e] >> (sizeof(percpu_word) * 8 - 1)) /* less than nothing */
                (void)__atomic_fetch_add(&bad_takes, 1, __ATOMIC_RELAXED);
        }
        (void)__atomic_fetch_add(&takes, 1, __ATOMIC_RELAXED);
    }
    return (void *)0;
}

static void snapshots_and_takes_while_adding(void)
{
    pthread_t threads[6];
    uint64_t before[EVENTS], after[EVENTS];
    percpu_word out[EVENTS], last[EVENTS] = {0};
    unsigned i, e, below = 0, above = 0, backwards = 0, snapshots = 0, wrong = 0;
    double end = now() + 0.3;
    percpu_counters_init(&busy, EVENTS, (struct percpu_counters *)0, 0);
    percpu_counters_init(&busy_child, EVENTS, &busy, PERCPU_COUNTERS_SHARED);
    go_on = 1;
    for (i = 0; i < 6; i++)
        pthread_create(&threads[i], (pthread_attr_t *)0, i < 4 ? add_for_readers : take_from_adders,
                       (void *)(uintptr_t)i);
    while (now() < end || snapshots < 100 || __atomic_load_n(&takes, __ATOMIC_RELAXED) < 100) {
        for (e = 0; e < EVENTS; e++)
            before[e] = __atomic_load_n(&finished[e], __ATOMIC_SEQ_CST);
        percpu_counters_snapshot(&busy, out);
        for (e = 0; e < EVENTS; e++)
            after[e] = __atomic_load_n(&intended[e], __ATOMIC_SEQ_CST);
        for (e = 0; e < EVENTS; e++) {
            below += out[e] < (percpu_word)before[e];
            above += out[e] > (percpu_word)after[e];
            backwards += out[e] < last[e];
            last[e] = out[e];
        }
        snapshots++;
    }
    __atomic_store_n(&go_on, 0, __ATOMIC_RELAXED);
    for (i = 0; i < 6; i++)
        pthread_join(threads[i], (void **)0);
    is(below, 0, "a snapshot has every add that was over before it began");
    is(above, 0, "and none that began after it");
    is(backwards, 0, "no event ever goes back");
    percpu_counters_take(&busy, out);
    for (e = 0; e < EVENTS; e++) {
        wrong += taken[e] + out[e] != added[e];
        wrong += percpu_counters_sum(&busy, e) != (percpu_word)added[e];
        wrong += percpu_counters_sum(&busy_child, e) != (percpu_word)added[e];
    }
    is(wrong, 0, "all takes together are all adds, and sums are not affected");
    is(bad_takes, 0, "no take is negative");
    note("%u snapshots, %u takes, %lu adds of event 0", snapshots, takes, (unsigned long)added[0]);
    percpu_counters_destroy(&busy_child);
    percpu_counters_destroy(&busy);
}

/* ---- No memory. In a child, with a limit on its address space. */

static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Granules of per-CPU memory that are handed out. */
static unsigned long in_use(void)
{
    unsigned long n = 0;
    for (struct percpu_priv_arena *a = percpu_priv_state.arenas; a; a = a->next)
        n += PERCPU_PRIV_GRANULES - a->free;
    return n;
}

static struct percpu_counters homeless = PERCPU_COUNTERS_INIT(PERCPU_COUNTERS_MAX, 0);

/* Return: the number of the first check that failed, 0 if all hold. */
static int without_memory(void)
{
    struct percpu_counters set, parent, *none = (struct percpu_counters *)0;
    size_t arena = ((size_t)2 * percpu_nr_cpus() + 2) * PERCPU_STRIDE, size;
    unsigned long used;
    if (percpu_counters_init(&parent, 1, none, 0) != 0)
        return 1;
    used = in_use();
    (void)limit_address_space(address_space() + 5 * arena); /* 16 are needed */
    for (int i = 0; i < 50; i++) {
        errno = 0;
        if (percpu_counters_init(&set, PERCPU_COUNTERS_MAX, &parent, 0) != -1 || errno != ENOMEM)
            return 2;
        if (in_use() != used)
            return 3;
        if (i == 0)
            size = address_space();
        else if (address_space() != size)
            return 4; /* grows with each failure */
    }
    if (parent.children)
        return 5; /* a set that failed is nobody's child */
    if (percpu_counters_init(&set, 3 * PERCPU_COUNTERS_CHUNK, &parent, 0) != 0)
        return 6; /* what the failures returned is enough for this */
    errno = 99;
    for (unsigned i = 0; i < PERCPU_COUNTERS_CHUNKS; i++)
        percpu_counters_add(&homeless, i * (unsigned)PERCPU_COUNTERS_CHUNK, 10);
    if (errno != 99)
        return 7;
    if (!homeless.unplaced || homeless.unplaced % 10)
        return 8;
    used = 0;
    for (unsigned i = 0; i < PERCPU_COUNTERS_CHUNKS; i++)
        used += percpu_counters_sum(&homeless, i * (unsigned)PERCPU_COUNTERS_CHUNK);
    if (used + homeless.unplaced != 10 * PERCPU_COUNTERS_CHUNKS)
        return 9; /* either counted or unplaced */
    (void)limit_address_space(0);
    percpu_counters_add(&homeless, PERCPU_COUNTERS_MAX - 1, 1);
    if (percpu_counters_sum(&homeless, PERCPU_COUNTERS_MAX - 1) != 1)
        return 10;
    if (percpu_counters_destroy(&set) || percpu_counters_destroy(&parent))
        return 11;
    return percpu_counters_init(&set, PERCPU_COUNTERS_MAX, none, 0) == 0 ? 0 : 12;
}

static void no_memory_is_reported_and_nothing_leaks(void)
{
    const char *name = "out of memory: ENOMEM from init, unplaced amounts from add, nothing kept";
    if (SANITIZED)
        skip(name, "a sanitizer needs its address space");
    else
        in_child(without_memory, name);
}

int main(void)
{
    static const unsigned sizes[] = {1, 8192, 8193, 100000, (unsigned)PERCPU_COUNTERS_MAX};
    block_alarm(SIG_BLOCK); /* inherited by threads until they are ready */
    look_around(MOST_CPUS);
    no_memory_is_reported_and_nothing_leaks(); /* first: later there is memory to reuse */
    early_increments_count();
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        every_event_has_its_own_word(sizes[i], 0);
        every_event_has_its_own_word(sizes[i], PERCPU_COUNTERS_SHARED);
    }
    bad_arguments_are_refused();
    events_out_of_range_are_ignored();
    parent_outlives_its_children();
    many_threads_are_exact();
    snapshots_and_takes_while_adding();
    return done();
}
