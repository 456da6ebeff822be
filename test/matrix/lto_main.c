/* SPDX-License-Identifier: MIT */
/*
 * lto_main.c - operations in every shape that an optimiser may copy, move or merge, under a timer
 * signal that aborts them and whose handler operates on the same objects. C and C++.
 *
 * Catches: labels duplicated by inlining and unrolling, code misplaced around asm goto, results
 * lost on an edge, a descriptor that belongs to another copy of the code (the abort then resumes
 * elsewhere). A run that saw no abort fails where sections are on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "lto.h"
#include "tap.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { ABORTS = 100, BATCH = 500, MOST = 3000000 };
static struct tally *tally;
static struct percpu_counter counter;
static unsigned long in_handler, in_threads, took_in_threads;

static void on_alarm(int signal_number)
{
    unsigned took = 0;
    (void)signal_number;
    both(tally, 1);
    percpu_counter_inc(&counter);
    percpu_this_cpu_inc(tally->taken);
    took += percpu_this_cpu_xchg(tally->taken, 0);
    (void)__atomic_fetch_add(&in_handler, 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&took_in_threads, took, __ATOMIC_RELAXED);
}

/* Runs at the end of its variable's scope: an asm goto that leaves the scope has to run it, too. */
static unsigned cleaned;
static void clean(const unsigned *n)
{
    cleaned += *n;
}

__attribute__((noinline)) static void scopes(struct tally *t, unsigned n)
{
    __attribute__((cleanup(clean))) unsigned guard = 1;
#ifdef __cplusplus
    unsigned array[4];
#else
    unsigned array[n]; /* variable length: the stack pointer moves */
#endif
    for (unsigned i = 0; i < n; i++) {
        array[i] = i;
        both(t, 1);
        guard += array[i] - i;
    }
}

/* A computed goto between sections: 4 steps, each operates. */
__attribute__((noinline)) static void computed(struct tally *t)
{
    unsigned step = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
    const void *const steps[] = {&&even, &&odd, &&even, &&odd, &&out};
    goto *steps[step];
even:
    percpu_this_cpu_inc(t->word);
    percpu_this_cpu_inc(t->wide);
    goto *steps[++step];
odd:
    percpu_this_cpu_inc(t->wide);
    percpu_this_cpu_inc(t->word);
    goto *steps[++step];
#pragma GCC diagnostic pop
out:
    return;
}

/* Adds to counter and tally: 8 + 8 + 4 + 4 + 2 = 26 each. */
__attribute__((noinline)) static unsigned round_of_26(unsigned *took)
{
    for (int i = 0; i < 8; i++) { /* constant: unrolled */
        both(tally, 1);
        percpu_counter_inc(&counter);
    }
#ifdef __cplusplus
    unroll<8>::run(tally);
#else
    both(tally, 1), both(tally, 1), both(tally, 1), both(tally, 1);
    both(tally, 1), both(tally, 1), both(tally, 1), both(tally, 1);
#endif
    percpu_counter_add(&counter, 8);
    scopes(tally, 4);
    computed(tally);
    percpu_counter_add(&counter, 8);
    lto_other_file(tally, &counter, 2, took);
    return 26;
}

static unsigned long aborts(void)
{
    return percpu_status().aborts;
}

static void *work(void *arg)
{
    unsigned long before = aborts();
    unsigned long sum = 0;
    unsigned took = 0;
    int sections = percpu_status().mode != PERCPU_MODE_FALLBACK;
    (void)arg;
    for (int i = 0; i < MOST; i += BATCH) {
        for (int j = 0; j < BATCH; j++)
            sum += round_of_26(&took);
        if (!sections || aborts() - before >= ABORTS)
            break;
    }
    (void)__atomic_fetch_add(&in_threads, sum, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&took_in_threads, took, __ATOMIC_RELAXED);
    return NULL;
}

int main(void)
{
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    struct sigaction action;
    pthread_t thread;
    struct tally *copy;
    unsigned long all, seen;
    unsigned long word = 0, wide = 0, left = 0;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    tally = PERCPU_NEW(struct tally);
    if (!tally || percpu_counter_init(&counter) || sigaction(SIGALRM, &action, NULL))
        return 2;
    setitimer(ITIMER_REAL, &often, NULL);
    ok(pthread_create(&thread, NULL, work, NULL) == 0, "a second thread");
    work(NULL);
    pthread_join(thread, NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    seen = aborts();

    percpu_for_each_copy(tally, copy)
    {
        word += copy->word;
        wide += copy->wide;
        left += copy->taken;
    }
    all = in_threads + in_handler;
    is(percpu_counter_sum(&counter), all, "the counter is exact");
    is(word, all, "4 bytes are exact");
    is(wide, all, "a word is exact");
    is(took_in_threads + left, in_threads / 26 * 2 + in_handler, "each increment was taken once");
    ok(cleaned > 0, "scopes were left through their end");
    note("%lu adds each, %lu signals, %lu aborts", all, in_handler, seen);
    if (percpu_status().mode != PERCPU_MODE_FALLBACK)
        ok(seen >= ABORTS, "sections were aborted");
    else if (getenv("REQUIRE_RSEQ"))
        ok(0, "REQUIRE_RSEQ=1, and sections are off");
    return done();
}
