/* SPDX-License-Identifier: MIT */
/*
 * Per-CPU memory: what percpu_alloc() promises and percpu_free() refuses; objects that never
 * overlap, found out by tagging every copy; the same with threads, signal handlers and forks in
 * the middle.
 *
 * Goes red, for example, where a claim takes granules that are in use, where a copy is not zeroed,
 * where a failed allocation keeps its mapping, where a freed object's place is not found again.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static unsigned arenas(void)
{
    unsigned n = 0;
    for (struct percpu_priv_arena *a = percpu_priv_state.arenas; a; a = a->next)
        n++;
    return n;
}

static unsigned granules_in_use(void)
{
    unsigned n = 0;
    for (struct percpu_priv_arena *a = percpu_priv_state.arenas; a; a = a->next)
        for (size_t w = 0; w < PERCPU_PRIV_MAP_WORDS; w++)
            n += (unsigned)__builtin_popcountll(a->used[w]);
    return n;
}

static unsigned rows_of(const void *p)
{
    return 2 * percpu_priv_arena_of(p)->rows;
}

/* Both banks, used or not. */
static int all_zero(const void *p, size_t size)
{
    for (unsigned row = 0; row < rows_of(p); row++) {
        const char *copy = (const char *)percpu_priv_ptr(p, row);
        for (size_t i = 0; i < size; i++)
            if (copy[i])
                return 0;
    }
    return 1;
}

/* An object that belongs to somebody: every word of its first @copies copies holds the tag. */
struct owned {
    uint64_t *p;
    size_t words;
    unsigned copies;
    uint64_t tag;
};

static int owned_alloc(struct owned *o, size_t size, size_t align, uint64_t tag)
{
    o->p = (uint64_t *)percpu_alloc(size, align);
    if (!o->p || (uintptr_t)o->p % align || !all_zero(o->p, size))
        return 0;
    o->words = size / 8;
    o->copies = percpu_priv_copies(o->p);
    o->tag = tag;
    for (unsigned row = 0; row < o->copies; row++) {
        uint64_t *copy = (uint64_t *)percpu_priv_ptr(o->p, row);
        for (size_t i = 0; i < o->words; i++)
            copy[i] = tag + row;
    }
    return 1;
}

static int owned_intact(const struct owned *o)
{
    for (unsigned row = 0; row < o->copies; row++) {
        uint64_t *copy = (uint64_t *)percpu_priv_ptr(o->p, row);
        for (size_t i = 0; i < o->words; i++)
            if (copy[i] != o->tag + row)
                return 0;
    }
    return 1;
}

static int owned_free(struct owned *o)
{
    int intact = owned_intact(o);
    int freed = percpu_free(o->p) == 0;
    o->p = (uint64_t *)0;
    return intact && freed;
}

static size_t random_size(uint32_t *seed)
{
    uint32_t r = next_random(seed), kind = r % 1000;
    size_t limit = kind < 700 ? 64 : kind < 950 ? 1024 : kind < 998 ? 8192 : PERCPU_STRIDE;
    if (limit > PERCPU_STRIDE)
        limit = PERCPU_STRIDE;
    return ((next_random(seed) % limit) & ~(size_t)7) + 8;
}

static size_t random_align(uint32_t *seed)
{
    static const size_t aligns[] = {1, 4, 8, 8, 8, 16, 64, 256};
    return aligns[next_random(seed) % 8];
}

/* ---- Arguments */

static void dense(void)
{
    enum { COUNTERS = (int)(PERCPU_STRIDE / 8) };
    uint64_t **all = (uint64_t **)malloc(COUNTERS * sizeof *all);
    int neighbours = 1, distinct = 1;
    for (int i = 0; i < COUNTERS; i++) {
        all[i] = PERCPU_NEW(uint64_t);
        neighbours &= i == 0 || (char *)all[i] == (char *)all[i - 1] + 8;
        distinct &= all[i] != (uint64_t *)0;
    }
    ok(distinct && neighbours, "neighbours are 8 bytes apart");
    is(arenas(), 1, "a stride of counters shares one arena");
    uint64_t *another = PERCPU_NEW(uint64_t);
    is(arenas(), 2, "one more opens the second");
    int freed = percpu_free(another) == 0;
    for (int i = 0; i < COUNTERS; i++)
        freed &= percpu_free(all[i]) == 0;
    ok(freed, "all are freed");
    is(granules_in_use(), 0, "and nothing is in use");
    free(all);
}

static int refused(size_t size, size_t align)
{
    errno = 0;
    return percpu_alloc(size, align) == (void *)0 && errno == EINVAL;
}

static void arguments(void)
{
    int aligned = 1, refusals = 1, largest = 1;
    for (size_t align = 1; align <= PERCPU_STRIDE; align *= 2)
        for (size_t size = 1; size <= PERCPU_STRIDE; size = size < 32 ? size + 1 : size * 2 - 1) {
            char *before = (char *)percpu_alloc(8, 8); /* so that alignment has to skip something */
            char *p = (char *)percpu_alloc(size, align);
            aligned &= p && (uintptr_t)p % align == 0 && all_zero(p, size);
            aligned &= ((uintptr_t)p & (PERCPU_STRIDE - 1)) + size <= PERCPU_STRIDE;
            aligned &= percpu_free(p) == 0 && percpu_free(before) == 0;
        }
    ok(aligned, "every size and alignment up to the stride, inside one row");
    for (size_t align = 1; align <= PERCPU_STRIDE; align *= 2) {
        void *p = percpu_alloc(PERCPU_STRIDE, align);
        largest &= p && percpu_free(p) == 0;
        refusals &= refused(0, align) && refused(PERCPU_STRIDE + 1, align);
        refusals &= refused((size_t)-1, align) && refused((size_t)-7, align);
        refusals &= align < 2 || refused(8, align + 1) == (align + 1 > 2);
    }
    refusals &= refused(8, 0) && refused(8, 2 * PERCPU_STRIDE) && refused(8, ~(SIZE_MAX >> 1));
    refusals &= refused(8, 3) && refused(8, 24) && refused(8, (size_t)-1);
    ok(largest, "the largest object");
    ok(refusals, "sizes and alignments out of range: NULL and EINVAL");
    errno = 4711;
    void *p = percpu_alloc(PERCPU_STRIDE, 8), *q = percpu_alloc(PERCPU_STRIDE, 8);
    int freed = percpu_free(p) == 0 && percpu_free(q) == 0;
    ok(p && q && freed && errno == 4711, "success leaves errno alone");
    is(granules_in_use(), 0, "nothing stays in use");
}

static uint64_t static_word;

static int not_ours(void *p)
{
    errno = 0;
    return percpu_free(p) == -1 && errno == EINVAL;
}

static void *frees_its_stack(void *arg)
{
    uint64_t on_thread_stack[2] = {0, 0};
    *(int *)arg = not_ours(&on_thread_stack[0]) && not_ours(&on_thread_stack[1]);
    return (void *)0;
}

static void frees(void)
{
    uint64_t on_stack = 0, *on_heap = (uint64_t *)malloc(64);
    uint64_t *p = (uint64_t *)percpu_alloc(64, 8), *neighbour = PERCPU_NEW(uint64_t);
    pthread_t thread;
    int other_stack = 0;
    pthread_create(&thread, (const pthread_attr_t *)0, frees_its_stack, &other_stack);
    pthread_join(thread, (void **)0);
    errno = 4711;
    ok(percpu_free((void *)0) == 0 && errno == 4711, "free of NULL is nothing");
    ok(not_ours(&on_stack) && not_ours(on_heap) && not_ours(&static_word) && other_stack,
       "stack, heap and static pointers: EINVAL");
    ok(not_ours((void *)8) && not_ours((void *)PERCPU_STRIDE) && not_ours((void *)-8),
       "addresses that nobody has: EINVAL");
    ok(not_ours(p + 1) && not_ours(p + 7) && not_ours((char *)p + 1), "interior pointers: EINVAL");
    int copies = 1;
    for (unsigned row = 1; row < rows_of(p); row++)
        copies &= not_ours(percpu_priv_ptr(p, row));
    ok(copies, "a pointer to another copy: EINVAL");
    int imitation = 1;
    uint64_t *whole = (uint64_t *)percpu_alloc(PERCPU_STRIDE, 8);
    for (unsigned row = 0; row < percpu_priv_copies(whole); row++)
        for (size_t i = 0; i < PERCPU_STRIDE / 8; i++)
            ((uint64_t *)percpu_priv_ptr(whole, row))[i] = PERCPU_PRIV_MAGIC;
    for (size_t i = 0; i < 256; i++)
        imitation &= not_ours((uint64_t *)percpu_priv_ptr(whole, 1) + i);
    ok(imitation, "also where the object's content looks like an arena's description");
    ok(percpu_free(whole) == 0, "it is freed by its own address");
    ok(percpu_free(p) == 0 && not_ours(p), "double free: EINVAL");
    ok(not_ours(p + 1) && percpu_free(neighbour) == 0 && not_ours(neighbour),
       "whatever is left of it");
    free(on_heap);
    is(granules_in_use(), 0, "and what was allocated is free");
}

/* ---- Zeroed again */

static void zeroed(void)
{
    static const size_t sizes[] = {1, 8, 12, 600, 4096, PERCPU_STRIDE - 8, PERCPU_STRIDE};
    int zero_one_bank = 1, zero_both = 1, same_place = 1;
    for (int mixed = 0; mixed < 2; mixed++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int again = 0; again < 3; again++) {
                char *p = (char *)percpu_alloc(sizes[s], 8), *copy;
                if (mixed)
                    (void)percpu_priv_fallback_copy(p); /* from now on both banks are in use */
                percpu_for_each_copy(p, copy) memset(copy, 0xa5, sizes[s]);
                percpu_free(p);
                char *q = (char *)percpu_alloc(sizes[s], 8);
                same_place &= p == q;
                *(mixed ? &zero_both : &zero_one_bank) &= all_zero(q, sizes[s]);
                percpu_free(q);
            }
    ok(same_place, "what was freed is what is allocated next");
    ok(zero_one_bank, "and is zero in all copies, while only critical sections ran");
    ok(zero_both, "and in both banks, once the fallback was used");
}

/* ---- Reuse */

static void steady(void)
{
    enum { LIVE = 20000 };
    void **live = (void **)calloc(LIVE, sizeof *live);
    uint32_t seed = 1;
    unsigned before, rounds = scaled(300000);
    int good = 1;
    for (int i = 0; i < LIVE; i++)
        live[i] = percpu_alloc(8, 8);
    before = arenas();
    for (unsigned i = 0; i < rounds; i++) {
        unsigned k = next_random(&seed) % LIVE;
        good &= percpu_free(live[k]) == 0;
        live[k] = percpu_alloc(8, 8);
        good &= live[k] != (void *)0;
    }
    ok(good, "random replacement works");
    is(arenas(), before, "a steady number of objects needs no new arena");
    for (int i = 0; i < LIVE; i++)
        percpu_free(live[i]);
    is(granules_in_use(), 0, "all free");
    free(live);
}

static void holes(void)
{
    enum { N = (int)(PERCPU_STRIDE / 16) * 3 };
    char **all = (char **)calloc(N, sizeof *all);
    unsigned before, with_holes;
    int good = 1;
    for (int i = 0; i < N; i++)
        good &= (all[i] = (char *)percpu_alloc(16, 16)) != (char *)0;
    before = arenas();
    for (int i = 0; i < N; i += 2)
        good &= percpu_free(all[i]) == 0;
    with_holes = granules_in_use();
    void *larger = percpu_alloc(32, 8);
    good &= larger != (void *)0 && percpu_free(larger) == 0;
    is(granules_in_use(), with_holes, "what does not fit a hole leaves no trace");
    before = arenas();
    for (int i = 0; i < N; i += 2)
        good &= (all[i] = (char *)percpu_alloc(16, 16)) != (char *)0;
    is(arenas(), before, "holes are filled");
    for (int i = 0; i < N; i++)
        good &= percpu_free(all[i]) == 0;
    ok(good && granules_in_use() == 0, "and all freed");
    for (unsigned i = 0; i < before; i++)
        good &= (all[i] = (char *)percpu_alloc(PERCPU_STRIDE, 8)) != (char *)0;
    ok(good && arenas() == before, "then each arena holds one largest object: holes have merged");
    for (unsigned i = 0; i < before; i++)
        percpu_free(all[i]);
    free(all);
}

static void alternating(void)
{
    struct owned small_one, large[3];
    int good = 1;
    unsigned before = 0, rounds = scaled(PERCPU_STRIDE_SHIFT > 16 ? 12 : 100);
    for (unsigned i = 0; i < rounds; i++) {
        good &= owned_alloc(&large[0], PERCPU_STRIDE, PERCPU_STRIDE, 1000);
        good &= owned_alloc(&small_one, 8, 1, 2000);
        good &= owned_alloc(&large[1], PERCPU_STRIDE - 8, 8, 3000);
        good &= owned_alloc(&large[2], PERCPU_STRIDE / 2 + 8, 8, 4000);
        good &= owned_free(&large[0]) && owned_free(&large[2]);
        good &= owned_free(&small_one) && owned_free(&large[1]);
        before = i == 0 ? arenas() : before;
    }
    ok(good, "huge and tiny objects in turn");
    is(arenas(), before, "need no more arenas than the first time");
}

/* ---- The model: objects never overlap */

enum { SLOTS = 256, THREADS = 8, EXCHANGE = 32 };
static struct owned *exchange[EXCHANGE]; /* objects change hands here: freed by another thread */
static unsigned model_rounds;
static size_t model_largest = PERCPU_STRIDE;
static int model_failures;
static pthread_barrier_t model_peak; /* all hold at once what they have after their rounds */
static int model_threads;

static void *model(void *arg)
{
    uint32_t seed = (uint32_t)(uintptr_t)arg * 2654435761u + 1;
    struct owned *slots = (struct owned *)calloc(SLOTS, sizeof *slots);
    uint64_t tag = (uint64_t)(uintptr_t)arg << 56;
    int bad = 0;
    for (unsigned i = 0; i < model_rounds; i++) {
        struct owned *o = &slots[next_random(&seed) % SLOTS];
        if (!o->p) {
            size_t align = random_align(&seed), size = random_size(&seed);
            size = size < model_largest ? size : model_largest;
            bad += !owned_alloc(o, size, align, tag += 1000);
        } else if (next_random(&seed) % 8 == 0) {
            struct owned *give = (struct owned *)malloc(sizeof *give), *get;
            *give = *o;
            get = __atomic_exchange_n(&exchange[next_random(&seed) % EXCHANGE], give,
                                      __ATOMIC_ACQ_REL);
            o->p = (uint64_t *)0;
            if (get)
                *o = *get;
            free(get);
        } else {
            bad += !owned_free(o);
        }
    }
    if (model_threads)
        pthread_barrier_wait(&model_peak);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].p)
            bad += !owned_free(&slots[i]);
    free(slots);
    (void)__atomic_fetch_add(&model_failures, bad, __ATOMIC_RELAXED);
    return (void *)0;
}

static void model_clean_up(void)
{
    for (int i = 0; i < EXCHANGE; i++) {
        if (exchange[i])
            model_failures += !owned_free(exchange[i]);
        free(exchange[i]);
        exchange[i] = (struct owned *)0;
    }
}

static void random_model(void)
{
    pthread_t threads[THREADS];
    unsigned first = 0, second, bytes = PERCPU_PRIV_GRANULES * 8;
    model_rounds = scaled(PERCPU_STRIDE_SHIFT > 16 ? 6000 : 24000);
    model((void *)1);
    model_clean_up();
    is(model_failures, 0, "one thread: every object zero at first, and nobody else's until freed");
    is(granules_in_use(), 0, "nothing left in use");
    /*
     * The barrier makes the two rounds comparable: without it a first round whose threads happen to
     * run one after the other needs the arenas of one thread, and the second those of eight.
     */
    model_rounds /= THREADS;
    pthread_barrier_init(&model_peak, (const pthread_barrierattr_t *)0, THREADS);
    model_threads = THREADS;
    for (int round = 0; round < 2; round++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], (const pthread_attr_t *)0, model, (void *)(i + 2));
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], (void **)0);
        if (round == 0)
            first = arenas();
    }
    model_clean_up();
    model_threads = 0;
    pthread_barrier_destroy(&model_peak);
    second = arenas();
    is(model_failures, 0, "8 threads, that free each other's objects: the same");
    is(granules_in_use(), 0, "nothing left in use");
    note("%u arenas of %u bytes a row after one round, %u after two", first, bytes, second);
    ok(second <= 2 * first, "the second round lives on the arenas of the first");
}

/* ---- A handler that allocates, over an allocation */

enum { RING = 16 };
static struct owned handlers_ring[RING];
static volatile unsigned handler_calls, handler_failures;
static uint32_t handler_seed = 77;

static void handler(int sig)
{
    int saved = errno;
    struct owned *o = &handlers_ring[handler_calls % RING];
    (void)sig;
    if (o->p && !owned_free(o))
        handler_failures++;
    if (!owned_alloc(o, next_random(&handler_seed) % 200 / 8 * 8 + 8, 8,
                     UINT64_C(0xbb) << 56 | handler_calls))
        handler_failures++;
    handler_calls++;
    errno = saved;
}

static void in_handlers(void)
{
    struct sigaction action;
    struct owned mine[32];
    uint32_t seed = 5;
    unsigned wanted = scaled(2000), bad = 0;
    int id = 0;
    memset(&action, 0, sizeof action);
    memset(mine, 0, sizeof mine);
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, (struct sigaction *)0);
    if (!ok(start_timer(SIGUSR1, 50, &id), "a timer runs"))
        return;
    for (unsigned i = 0; handler_calls < wanted; i++) {
        struct owned *o = &mine[next_random(&seed) % 32];
        if (o->p)
            bad += !owned_free(o);
        else
            bad += !owned_alloc(o, next_random(&seed) % 200 / 8 * 8 + 8, 8, (uint64_t)i * 100);
        if (SANITIZED && i % 64 == 0)
            sched_yield(); /* where a sanitizer delivers what it has held back */
    }
    syscall(SYS_timer_delete, id);
    signal(SIGUSR1, SIG_IGN);
    for (int i = 0; i < 32; i++)
        if (mine[i].p)
            bad += !owned_free(&mine[i]);
    for (int i = 0; i < RING; i++)
        if (handlers_ring[i].p)
            bad += !owned_free(&handlers_ring[i]);
    note("%u handlers interrupted the allocator's work", handler_calls);
    is(bad, 0, "the interrupted thread's objects stay its own");
    is(handler_failures, 0, "the handlers' objects too");
    is(granules_in_use(), 0, "and no granule is lost");
}

/* ---- A child that is forked while another thread allocates */

static int stop;
static void *churn(void *arg)
{
    struct owned o;
    uint32_t seed = 99;
    int bad = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        bad += !owned_alloc(&o, random_size(&seed) % 512 / 8 * 8 + 8, 8, 42);
        bad += !owned_free(&o);
    }
    *(int *)arg = bad;
    return (void *)0;
}

static void forks(void)
{
    pthread_t threads[2];
    int bad[2] = {0, 0}, children_bad = 0;
    unsigned n = scaled(20);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], (const pthread_attr_t *)0, churn, &bad[i]);
    for (unsigned i = 0; i < n; i++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            int failures = 0;
            model_rounds = 200;
            model_largest = 256;
            model_failures = 0;
            model((void *)9);
            failures = model_failures;
            for (int k = 0; k < EXCHANGE; k++)
                if (exchange[k])
                    failures += !owned_free(exchange[k]);
            _exit(failures != 0);
        }
        waitpid(child, &status, 0);
        children_bad += status != 0;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], (void **)0);
    is(children_bad, 0, "children forked out of allocations allocate on");
    is(bad[0] + bad[1], 0, "and so do their parents");
}

/* ---- Out of memory */

static long address_space(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * 4096;
}

/* In a child, since a limit that was raised again is still a change of the process. */
static int starve(void)
{
    struct rlimit old, tight;
    long before, after;
    void *p, *fill = (void *)0;
    unsigned n = 0, lists;
    size_t arena = (2 * (size_t)percpu_nr_cpus() + 2) * PERCPU_STRIDE;
    if (getrlimit(RLIMIT_AS, &old))
        return 2;
    tight = old;
    tight.rlim_cur = (rlim_t)address_space() + 3 * arena;
    if (setrlimit(RLIMIT_AS, &tight))
        return 3;
    for (errno = 0; (p = percpu_alloc(PERCPU_STRIDE, 8)) != (void *)0; n++) {
        memcpy(p, &fill, sizeof fill); /* a list of what was allocated */
        fill = p;
        if (n > 100 + arenas())
            return 4;
    }
    if (errno != ENOMEM)
        return 5;
    before = address_space();
    lists = arenas();
    for (int i = 0; i < 1000; i++)
        if (percpu_alloc(PERCPU_STRIDE, 8) || errno != ENOMEM)
            return 6;
    after = address_space();
    if (before != after || lists != arenas())
        return 7;
    p = fill;
    memcpy(&fill, p, sizeof fill);
    memset(p, 0, sizeof fill);
    if (percpu_free(p) || percpu_alloc(PERCPU_STRIDE, 8) != p || !all_zero(p, PERCPU_STRIDE))
        return 8;
    setrlimit(RLIMIT_AS, &old);
    if (!(p = percpu_alloc(PERCPU_STRIDE, 8)) || arenas() != lists + 1 ||
        !all_zero(p, PERCPU_STRIDE))
        return 9;
    return 0;
}

static void out_of_memory(void)
{
    int status = -1;
    if (tool_in_process()) {
        skip("out of memory: ENOMEM", "the address space is shared with a tool");
        return;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(starve());
    waitpid(child, &status, 0);
    is(WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0,
       "out of memory: ENOMEM, nothing leaked, what is freed is reused, and later it works again");
}

int main(void)
{
    dense();
    arguments();
    frees();
    zeroed();
    steady();
    holes();
    alternating();
    random_model();
    in_handlers();
    forks();
    out_of_memory();
    return done();
}
