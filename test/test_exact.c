/* SPDX-License-Identifier: MIT */
/*
 * Every operation on shared objects by more threads than CPUs, where all threads have rseq, none
 * has, and half of them have: the results equal what the threads counted for themselves. A timer
 * interrupts each thread; its handler gives the CPU away, so that another thread acts on the same
 * copy between an abort and the new start.
 *
 * Goes red, for example, where the fallback acts on a copy that sections write, where a section
 * uses the CPU number of its first try, where the commit is not the last instruction.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"
#include "plugins/seccomp.h"

enum { MAX_THREADS = sizeof(percpu_word) == 8 ? 24 : 8 };
enum who { ALL, NONE, HALF };

struct object {
    uint32_t added32;
    uint32_t exchanged; /* a token */
    percpu_word added, returned, compared;
    percpu_word bits; /* on top a bit per thread, below a count */
};
#define COUNT_BITS (sizeof(percpu_word) * 8 - MAX_THREADS)

struct worker {
    pthread_t thread;
    unsigned index, wants_sections;
    unsigned wrong, on_sections, on_fallback;
    uint32_t held;
    uint32_t added32;
    percpu_word added, returned_sum, counted, compared, counter;
};

static struct object *object;
static struct percpu_counter counter;
static unsigned least_rounds, arrived, all_threads;
static double until;

/* A thread that gets nothing done between 16 signals, as on an emulated machine, gets fewer. */
static __thread struct {
    volatile unsigned rounds, signals, rounds_before;
    long us;
    int timer;
} pace;

static void give_way(int sig)
{
    int saved = errno;
    (void)sig;
    sched_yield();
    if (++pace.signals % 16 == 0) {
        if (pace.rounds == pace.rounds_before && pace.us && pace.us < 100000)
            (void)set_timer(pace.timer, pace.us *= 2);
        pace.rounds_before = pace.rounds;
    }
    errno = saved;
}

/*
 * Have this thread operate without rseq: by a sandbox of its own, so that its registration fails;
 * where libc has registered it already, by taking that back.
 */
static int leave_sections(void)
{
#if PERCPU_RSEQ_PORTED
    if (percpu_cpu_raw() < 0 && !percpu_priv_state.libc_size &&
        seccomp_rseq(PERCPU_RSEQ_SYSCALL, SECCOMP_ERRNO(EPERM)) == 0) {
        (void)percpu_thread_register();
        return percpu_status().mode == PERCPU_MODE_FALLBACK;
    }
#endif
    return leave_rseq();
}

/* Own bit on, read, off, read, with counting in the same word. On one CPU: one copy. */
static void bit_protocol(struct worker *w)
{
    const percpu_word bit = (percpu_word)1 << (COUNT_BITS + w->index);
    this_cpu_or(object->bits, bit);
    this_cpu_add(object->bits, 1);
    w->wrong += !(this_cpu_read(object->bits) & bit);
    this_cpu_and(object->bits, ~bit);
    this_cpu_inc(object->bits);
    w->wrong += (this_cpu_read(object->bits) & bit) != 0;
    w->counted += 2;
}

static void increment_by_compare(struct worker *w)
{
    percpu_word old = this_cpu_read(object->compared), seen;
    while ((seen = this_cpu_cmpxchg(object->compared, old, old + 1)) != old)
        old = seen;
    w->compared++;
}

static void *work(void *arg)
{
    struct worker *w = (struct worker *)arg;
    int timed;
    move_to(0, cpus[w->index % ncpus]);
    if (!w->wants_sections)
        w->wrong += !leave_sections();
    /* All at once, and for the same time: threads that come one after the other disturb nobody. */
    (void)__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) < all_threads)
        sched_yield();
    timed = start_timer(SIGUSR1, 100, &pace.timer);
    pace.us = timed ? 100 : 0;
    for (unsigned i = 0; i < least_rounds || i % 64 || now() < until; i++) {
        this_cpu_add(object->added32, i);
        w->added32 += i;
        this_cpu_sub(object->added, 3);
        this_cpu_add(object->added, 0x100000001);
        w->added += 0x100000001 - 3;
        w->returned_sum += this_cpu_add_return(object->returned, 1);
        w->held = this_cpu_xchg(object->exchanged, w->held);
        bit_protocol(w);
        increment_by_compare(w);
        percpu_counter_add(&counter, i);
        w->counter += i;
        pace.rounds = pace.rounds + 1;
    }
    if (timed)
        syscall(SYS_timer_delete, pace.timer);
    *(percpu_status().mode == PERCPU_MODE_FALLBACK ? &w->on_fallback : &w->on_sections) = 1;
    return (void *)0;
}

static void exact(enum who who, const char *name)
{
    static struct worker workers[MAX_THREADS];
    struct object *copy, sum;
    struct worker all;
    unsigned n = 2 * ncpus + 3, tokens_seen[MAX_THREADS + 1] = {0}, lost = 0;
    percpu_word triangle = 0;
    char text[160];
    if (n > MAX_THREADS)
        n = MAX_THREADS;
    memset(workers, 0, sizeof workers);
    memset(&sum, 0, sizeof sum);
    memset(&all, 0, sizeof all);
    object = PERCPU_NEW(struct object);
    least_rounds = scaled(1000);
    until = now() + 0.003 * scaled(100);
    arrived = 0;
    all_threads = n;
    for (unsigned i = 0; i < n; i++) {
        workers[i].index = i;
        workers[i].held = i + 1; /* its token; copies begin with token 0: none */
        workers[i].wants_sections = who == ALL || (who == HALF && i / ncpus % 2 == 0);
        pthread_create(&workers[i].thread, (const pthread_attr_t *)0, work, &workers[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        struct worker *w = &workers[i];
        pthread_join(w->thread, (void **)0);
        all.wrong += w->wrong;
        all.on_sections += w->on_sections;
        all.on_fallback += w->on_fallback;
        all.added32 += w->added32;
        all.added += w->added;
        all.returned_sum += w->returned_sum;
        all.counted += w->counted;
        all.compared += w->compared;
        all.counter += w->counter;
        tokens_seen[w->held <= n ? w->held : 0]++;
    }
    percpu_for_each_copy(object, copy)
    {
        const percpu_word last = copy->returned;
        sum.added32 += copy->added32;
        sum.added += copy->added;
        sum.compared += copy->compared;
        sum.bits += copy->bits;
        triangle += last % 2 ? (last + 1) / 2 * last : last / 2 * (last + 1);
        tokens_seen[copy->exchanged <= n ? copy->exchanged : 0]++;
    }
    for (unsigned i = 1; i <= n; i++)
        lost += tokens_seen[i] != 1;
    note("%s: %u threads, %u on sections, %u on the fallback, %lu aborts so far", name, n,
         all.on_sections, all.on_fallback, aborts());
#define EXACT(got, want, what)                             \
    do {                                                   \
        snprintf(text, sizeof text, "%s: %s", name, what); \
        is(got, want, text);                               \
    } while (0)
    EXACT(sum.added32, all.added32, "32-bit adds");
    EXACT(sum.added, all.added, "adds and subs of a word");
    EXACT(triangle, all.returned_sum, "add_return gave each value of a copy once");
    EXACT(lost, 0, "xchg keeps every token, once");
    EXACT(sum.compared, all.compared, "increments by cmpxchg");
    EXACT(sum.bits, all.counted, "adds beside and, or in one word; all bits off at the end");
    EXACT(percpu_counter_sum(&counter), all.counter, "a counter");
    EXACT(all.wrong, 0, "own bit as it was set, and each thread was where it should be");
    if (who == NONE)
        EXACT(all.on_sections, 0, "no thread ran sections");
    if (who == HALF)
        ok(all.on_fallback > 0, "half: some threads were on the fallback");
    percpu_counter_destroy(&counter);
    percpu_for_each_copy(object, copy) memset(copy, 0, sizeof *copy);
    percpu_free(object);
}

int main(void)
{
    char text[80];
    handle(SIGUSR1, give_way);
    look_around(MAX_THREADS / 3); /* there is room for two groups of as many, and 3 more */
    exact(ALL, "all");
    for (int more = 0; sections_at_start && aborts() == 0 && more < (HOLDS_SIGNALS ? 2 : 20);
         more++)
        exact(ALL, "all again, since no section was aborted");
    exact(HALF, "half");
    exact(NONE, "none");
    exact(HALF, "half again");
    snprintf(text, sizeof text, "sections were aborted: %lu", aborts());
    aborted_at_all(text);
    return done();
}
