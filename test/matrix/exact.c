/* SPDX-License-Identifier: MIT */
/*
 * exact.c - threads, each operation, and what percpu_status() says, for any platform.
 *
 * EXPECT: an expression over `reason` that has to hold; a build that should be on the fallback
 * says so, and one that should not be is caught there. Catches: an operation that is lost or done
 * twice, a copy that a reader does not visit, a status that contradicts what operations do.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "tap.h"
#include <pthread.h>

#ifndef EXPECT
#define EXPECT (reason == PERCPU_REASON_NONE)
#endif
#ifndef ROUNDS
#define ROUNDS 20000 /* fewer under an emulator */
#endif
enum { THREADS = 4 };

struct object {
    uint32_t word;
    uintptr_t ups, downs;
    uint32_t bits, moved, swapped;
};
static struct percpu_counter counter;
static struct object *object;
static uint32_t taken, swaps;

static void *work(void *arg)
{
    (void)arg;
    uint32_t took = 0, swapped = 0, old;
    for (int i = 0; i < ROUNDS; i++) {
        percpu_counter_inc(&counter);
        percpu_this_cpu_inc(object->word);
        percpu_this_cpu_add(object->ups, 3);
        percpu_this_cpu_sub(object->downs, 1);
        (void)percpu_this_cpu_add_return(object->ups, 2);
        percpu_this_cpu_or(object->bits, 6u);
        percpu_this_cpu_and(object->bits, ~4u);
        percpu_this_cpu_inc(object->moved);
        took += percpu_this_cpu_xchg(object->moved, 0);
        old = percpu_this_cpu_read(object->swapped);
        swapped += percpu_this_cpu_cmpxchg(object->swapped, old, old + 1) == old;
    }
    (void)__atomic_fetch_add(&taken, took, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&swaps, swapped, __ATOMIC_RELAXED);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    struct object *copy;
    uintptr_t ups = 0, downs = 0;
    uint32_t word = 0, bits = 0, moved = 0, swapped = 0;
    enum percpu_reason reason = percpu_status().reason;
    char text[400];
    int started = 0;

    object = PERCPU_NEW(struct object);
    ok(object != NULL, "an object is allocated");
    if (!object)
        return done();
    for (int i = 0; i < THREADS; i++)
        started += pthread_create(&threads[i], NULL, work, NULL) == 0;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    work(NULL);
    started++;
    percpu_for_each_copy(object, copy)
    {
        ups += copy->ups;
        downs += copy->downs;
        word += copy->word;
        bits |= copy->bits;
        moved += copy->moved;
        swapped += copy->swapped;
    }
    is(started, THREADS + 1, "all threads ran");
    is(percpu_counter_sum(&counter), started * ROUNDS, "the counter is exact");
    is(word, started * ROUNDS, "increments of 4 bytes are exact");
    is(ups, 5 * started * ROUNDS, "adds of a word are exact");
    is(downs, (uintptr_t)0 - (uintptr_t)(started * ROUNDS), "subtractions are exact");
    is(bits, 2, "or and and");
    is(taken + moved, started * ROUNDS, "exchanges take each increment once");
    is(swapped, swaps, "compare-and-exchange did what it said");
    ok(swaps > 0, "and did it at times");
    is(percpu_free(object), 0, "the object is freed");
    percpu_counter_destroy(&counter);
    ok(percpu_nr_cpus() > 0, "CPUs are known");
    percpu_status_format(text, sizeof text);
    ok(EXPECT, "as expected: %s", text);
    is(percpu_status().reason, reason, "the status before the first operation was right");
    return done();
}
