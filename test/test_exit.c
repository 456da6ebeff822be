/* SPDX-License-Identifier: MIT */
/*
 * The end of a thread. musl unmaps a detached thread's memory before the thread's last system call:
 * an area that is still registered then ends the process. Destructors and handlers that run after
 * the area was given back take the fallback, and never register again.
 *
 * Seen to fail: without the exit hook (crash); with registration in a thread that has cancellation
 * disabled (crash).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

#ifdef __GLIBC__
#define LIBC_KEEPS_MEMORY 1
#else
#define LIBC_KEEPS_MEMORY 0
#endif
enum { PASSES = 4 }; /* PTHREAD_DESTRUCTOR_ITERATIONS, here and on musl */

static enum percpu_mode mode;
static struct percpu_counter counter;
static unsigned long *object;

static int registered_in_kernel(void)
{
#if PERCPU_RSEQ_PORTED
    long r = syscall(PERCPU_RSEQ_SYSCALL, ~(uintptr_t)4095, 32, 0, PERCPU_RSEQ_SIGNATURE);
    return r == -1 && errno == EINVAL;
#else
    return 0;
#endif
}

static unsigned long object_sum(void)
{
    unsigned long sum = 0, *copy;
    percpu_for_each_copy(object, copy) sum += __atomic_load_n(copy, __ATOMIC_RELAXED);
    return sum;
}

/* ---- Churn */

static unsigned long started, finished, spins[2], cleanups, bad_ids;
static int stop;

/* Of idle priority, so that it fills the gaps and is preempted all the time. */
static void *spin(void *arg)
{
    struct sched_param none;
    unsigned long n = 0;
    memset(&none, 0, sizeof none);
    (void)syscall(SYS_sched_setscheduler, 0, 5 /* SCHED_IDLE */, &none);
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        percpu_counter_inc(&counter);
        this_cpu_inc(*object);
        n++;
    }
    *(unsigned long *)arg = n;
    return (void *)0;
}

static void operate(void)
{
    if (this_cpu_id() >= percpu_nr_cpus())
        __atomic_fetch_add(&bad_ids, 1, __ATOMIC_RELAXED);
    percpu_counter_inc(&counter);
    this_cpu_inc(*object);
}
static void *returns(void *arg)
{
    operate();
    __atomic_fetch_add(&finished, 1, __ATOMIC_RELEASE);
    return arg;
}
static void *exits(void *arg)
{
    (void)arg;
    operate();
    __atomic_fetch_add(&finished, 1, __ATOMIC_RELEASE);
    pthread_exit((void *)0);
}
static void cleanup(void *arg)
{
    (void)arg;
    operate();
    __atomic_fetch_add(&cleanups, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&finished, 1, __ATOMIC_RELEASE);
}
static void *is_cancelled(void *arg)
{
    (void)arg;
    pthread_cleanup_push(cleanup, (void *)0);
    operate();
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return (void *)0;
}

static void churn(unsigned long threads)
{
    pthread_attr_t joined, detached;
    pthread_t spinner[2], t;
    unsigned long cancelled = 0, failed = 0;
    pthread_attr_init(&joined);
    pthread_attr_setstacksize(&joined, 65536);
    pthread_attr_init(&detached);
    pthread_attr_setstacksize(&detached, 65536);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&spinner[i], (pthread_attr_t *)0, spin, &spins[i]);
    while (started < threads) {
        unsigned kind = (unsigned)started % 16;
        while (started - __atomic_load_n(&finished, __ATOMIC_ACQUIRE) > 64)
            sched_yield();
        if (kind == 0) { /* joined; kind 1: by pthread_exit; 2: cancelled */
            failed +=
                pthread_create(&t, &joined, returns, (void *)0) || pthread_join(t, (void **)0);
        } else if (kind == 1) {
            failed += pthread_create(&t, &joined, exits, (void *)0) || pthread_join(t, (void **)0);
        } else if (kind == 2) {
            failed += pthread_create(&t, &joined, is_cancelled, (void *)0) || pthread_cancel(t) ||
                      pthread_join(t, (void **)0);
            cancelled++; /* in pause(): an operation is no cancellation point */
        } else {
            while (pthread_create(&t, &detached, kind % 2 ? exits : returns, (void *)0))
                sched_yield(); /* out of threads or memory for a moment */
        }
        started++;
    }
    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < started)
        sched_yield();
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(spinner[i], (void **)0);
    is(failed, 0, "threads created, joined, cancelled");
    is(bad_ids, 0, "every id is in range");
    is(percpu_counter_sum(&counter), started + cleanups + spins[0] + spins[1],
       "the counter is exact");
    is(cleanups, cancelled, "cancelled threads operated in their clean-up handlers");
    ok(spins[0] + spins[1] > 0, "while others were adding");
    is(object_sum(), started + cleanups + spins[0] + spins[1], "the object is exact");
    note("%lu threads, %lu of them cancelled, beside %lu adds", started, cancelled,
         spins[0] + spins[1]);
    pthread_attr_destroy(&joined);
    pthread_attr_destroy(&detached);
}

/* ---- Late destructors. Keys made before the header's own (if it has one) and after. */

static pthread_key_t before_hook, after_hook, last_pass;
static int handled; /* adds by the late handler */
struct late {
    int operates_first; /* in the thread's function */
    int passes[2];      /* of the destructor before the hook, and of the one after */
    int sections[2], registered[2], bad_reason;
};

static void on_signal(int sig)
{
    (void)sig;
    operate();
    handled++;
}

static void late_destructor(struct late *l, unsigned which)
{
    struct percpu_status s;
    operate();
    raise(SIGUSR1);
    if (which && l->operates_first) /* not allowed to come back, even if asked to */
        (void)percpu_thread_register();
    s = percpu_status();
    l->passes[which]++;
    l->sections[which] += s.mode != PERCPU_MODE_FALLBACK;
    l->registered[which] += registered_in_kernel();
    l->bad_reason += mode == PERCPU_MODE_OWN && s.mode == PERCPU_MODE_FALLBACK &&
                     s.reason != PERCPU_REASON_EXITING;
    if (l->passes[which] < PASSES)
        pthread_setspecific(which ? after_hook : before_hook, l);
}
static void destructor_before(void *l)
{
    late_destructor((struct late *)l, 0);
}
static void destructor_after(void *l)
{
    late_destructor((struct late *)l, 1);
}

/* Waits for the last pass before its thread's first operation. */
static void destructor_last_pass(void *arg)
{
    struct late *l = (struct late *)arg;
    if (++l->passes[0] < PASSES) {
        pthread_setspecific(last_pass, l);
        return;
    }
    operate();
    l->registered[0] = registered_in_kernel();
    l->sections[0] = percpu_status().mode != PERCPU_MODE_FALLBACK;
    l->bad_reason += !LIBC_KEEPS_MEMORY && mode == PERCPU_MODE_OWN &&
                     percpu_status().reason != PERCPU_REASON_EXITING;
}

static void make_first_key(void)
{
    pthread_key_create(&before_hook, destructor_before);
}
__attribute__((section(".init_array.00050"),
               used)) static void (*const first_of_all)(void) = make_first_key;

static void *has_late_destructors(void *arg)
{
    struct late *l = (struct late *)arg;
    if (l->operates_first)
        operate();
    pthread_setspecific(before_hook, l);
    pthread_setspecific(after_hook, l);
    return (void *)0;
}
static void *operates_in_the_last_pass(void *arg)
{
    pthread_setspecific(last_pass, arg);
    return (void *)0;
}

static void late_destructors(int operates_first)
{
    struct late l = {operates_first, {0, 0}, {0, 0}, {0, 0}, 0};
    percpu_word sum = percpu_counter_sum(&counter), adds;
    unsigned long objects = object_sum();
    pthread_t t;
    handled = 0;
    pthread_create(&t, (pthread_attr_t *)0, has_late_destructors, &l);
    pthread_join(t, (void **)0);
    note("%s:", operates_first ? "a thread that operates, then in its destructors"
                               : "only in its destructors");
    is(l.passes[0], PASSES, "all passes of the first destructor ran");
    is(l.passes[1], PASSES, "and of the last");
    is(handled, 2 * PASSES, "late signals were handled");
    adds = (percpu_word)(operates_first + 4 * PASSES);
    is(percpu_counter_sum(&counter), sum + adds, "late adds are exact");
    is(object_sum(), objects + adds, "late operations are exact");
    is(l.bad_reason, 0, "the reason for the fallback is EXITING");
    if (mode == PERCPU_MODE_FALLBACK) {
        is(l.registered[0] + l.registered[1], 0, "nothing is registered");
    } else if (LIBC_KEEPS_MEMORY) {
        is(l.sections[0] + l.sections[1], 2 * PASSES, "critical sections to the end");
    } else {
        is(l.sections[0], operates_first, "sections until the hook has run, in the first pass");
        is(l.registered[0], operates_first, "registered as long");
        is(l.sections[1], 0, "late_destructor_falls_back");
        is(l.registered[1], 0, "late_destructor_never_registers");
    }
}

static void last_destructor_pass(void)
{
    struct late l = {0, {0, 0}, {0, 0}, {0, 0}, 0};
    percpu_word sum = percpu_counter_sum(&counter);
    pthread_t t;
    pthread_create(&t, (pthread_attr_t *)0, operates_in_the_last_pass, &l);
    pthread_join(t, (void **)0);
    is(l.passes[0], PASSES, "first use of all in the last destructor pass");
    is(percpu_counter_sum(&counter), sum + 1, "exact");
    is(l.sections[0], mode != PERCPU_MODE_FALLBACK && LIBC_KEEPS_MEMORY,
       "sections only where memory outlives the thread");
    is(l.registered[0], l.sections[0], "and the kernel agrees");
    is(l.bad_reason, 0, "the reason for the fallback is EXITING");
}

/* The same in detached threads, whose memory goes at once. */
static struct late shared_late[64];
static void detached_late_destructors(void)
{
    percpu_word sum = percpu_counter_sum(&counter), want = 0;
    pthread_attr_t detached;
    pthread_t t;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (unsigned i = 0; i < 64; i++) {
        int last = i % 2;
        while (pthread_create(&t, &detached,
                              last ? operates_in_the_last_pass : has_late_destructors,
                              &shared_late[i]))
            sched_yield();
        want += last ? 1 : 4 * PASSES;
    }
    while (percpu_counter_sum(&counter) < sum + want)
        sched_yield();
    is(percpu_counter_sum(&counter), sum + want, "detached threads with late operations are exact");
    pthread_attr_destroy(&detached);
}

int main(void)
{
    mode = percpu_status().mode;
    if (getenv("REQUIRE_RSEQ"))
        need_sections();
    note("mode %d", (int)mode);
    object = PERCPU_NEW(unsigned long);
    pthread_key_create(&after_hook, destructor_after);
    pthread_key_create(&last_pass, destructor_last_pass);
    handle(SIGUSR1, on_signal);
    late_destructors(1);
    late_destructors(0);
    last_destructor_pass();
    detached_late_destructors();
    {
        percpu_word counted = percpu_counter_sum(&counter);
        percpu_counter_sub(&counter, counted);
        percpu_free(object);
        object = PERCPU_NEW(unsigned long);
    }
    churn(getenv("TEST_THREADS") ? strtoul(getenv("TEST_THREADS"), (char **)0, 10) : 10000);
    return done();
}
