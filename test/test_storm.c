/* SPDX-License-Identifier: MIT */
/*
 * Everything that disturbs a critical section, at once: signals every 50 to 100 us whose handlers
 * act on the same objects, random moves between CPUs, more threads than CPUs, threads that come
 * and go (joined, detached, cancelled), forks in the middle. The sums are exact.
 *
 * A machine that is too slow for so many signals, such as an emulated one, gets fewer: each thread
 * gets something done between them.
 *
 * Goes red, for example, where a section's start label is late, where the CPU number is remembered
 * across an abort, where a thread that exits leaves a section half done.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

enum { MAX_WORKERS = 20 };

struct object {
    uint32_t token; /* 0: none */
    uint32_t small_adds;
    percpu_word adds, returned, compared;
};

/* What one thread did itself, and what its handler did: two writers, so two places. */
struct tally {
    percpu_word counter, adds, returned, compared;
    uint32_t small_adds, held;
};

struct worker {
    pthread_t thread;
    struct tally by_thread, by_handler;
    unsigned index, moves;
    volatile unsigned signals;
    int timer, timed;
    long period_us;
    uint32_t done_before; /* what the thread had done 16 signals ago */
};

static struct object *object;
static struct percpu_counter counter, churned;
static int stop;
static __thread struct worker *self;

static void operate(struct tally *t, uint32_t v)
{
    percpu_word old;
    percpu_counter_add(&counter, v);
    t->counter += v;
    this_cpu_add(object->adds, v);
    this_cpu_sub(object->adds, 1);
    t->adds += (percpu_word)v - 1;
    this_cpu_inc(object->small_adds);
    t->small_adds++;
    t->returned += this_cpu_add_return(object->returned, 1);
    t->held = this_cpu_xchg(object->token, t->held);
    old = this_cpu_read(object->compared);
    t->compared += this_cpu_cmpxchg(object->compared, old, old + 1) == old;
}

static void move_somewhere(uint32_t random)
{
    if (random % 5)
        move_to(0, cpus[random % ncpus]);
    else
        move_anywhere();
}

static void slow_down(struct worker *w)
{
    if (w->signals % 16)
        return;
    if (w->timed && w->by_thread.small_adds == w->done_before && w->period_us < 100000)
        (void)set_timer(w->timer, w->period_us *= 2);
    w->done_before = w->by_thread.small_adds;
}

static void handler(int sig)
{
    int saved = errno;
    (void)sig;
    if (self) {
        self->signals++;
        operate(&self->by_handler, self->signals);
        if (self->signals % 2) /* what was interrupted starts over on another CPU */
            move_somewhere(self->signals / 2 * 7 + self->index);
        slow_down(self);
    }
    errno = saved;
}

static void *work(void *arg)
{
    struct worker *w = (struct worker *)arg;
    uint32_t seed = 12345 + w->index * 977;
    self = w;
    w->period_us = 50 + (long)w->index % 6 * 10;
    w->timed = start_timer(SIGUSR1, w->period_us, &w->timer);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        for (uint32_t i = 0; i < 200; i++)
            operate(&w->by_thread, i);
        seed = seed * 1103515245 + 12345;
        move_somewhere(seed >> 16);
        (void)__atomic_fetch_add(&w->moves, 1, __ATOMIC_RELAXED);
    }
    if (w->timed)
        syscall(SYS_timer_delete, w->timer);
    return (void *)0;
}

/* ---- Threads that come and go */

static struct {
    percpu_word added;
    unsigned begun, ended;
} churn_total;

static void leaves(void *arg)
{
    (void)__atomic_fetch_add(&churn_total.added, *(percpu_word *)arg, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&churn_total.ended, 1, __ATOMIC_RELEASE);
}

static void *short_life(void *arg)
{
    volatile percpu_word added = 0;
    pthread_cleanup_push(leaves, (void *)(uintptr_t)&added);
    for (uintptr_t i = 0; i < 50 || arg; i++) { /* for ever if it will be cancelled */
        percpu_counter_add(&churned, i);
        added = added + i;
        if (arg)
            pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return (void *)0;
}

static void *churn(void *arg)
{
    pthread_attr_t detached;
    pthread_t thread;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (unsigned i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
        void *endless = i % 3 == 2 ? arg : (void *)0;
        if (pthread_create(&thread, i % 3 ? (const pthread_attr_t *)0 : &detached, short_life,
                           endless))
            continue;
        churn_total.begun++;
        if (endless)
            pthread_cancel(thread);
        if (i % 3)
            pthread_join(thread, (void **)0);
        else if (i % 30 == 0) /* not ever more of them */
            while (__atomic_load_n(&churn_total.ended, __ATOMIC_ACQUIRE) != churn_total.begun)
                sched_yield();
    }
    while (__atomic_load_n(&churn_total.ended, __ATOMIC_ACQUIRE) != churn_total.begun)
        sched_yield();
    pthread_attr_destroy(&detached);
    return (void *)0;
}

/* In a child: what the thread that forked goes on to do is exact there. Return: 0 if so. */
static int child_is_wrong(void)
{
    struct percpu_counter mine = {0, 0, 0, 0};
    uint32_t *p = PERCPU_NEW(uint32_t), *copy, sum = 0;
    for (unsigned i = 0; i < 2000; i++) {
        percpu_counter_inc(&mine);
        this_cpu_add(*p, 2);
    }
    percpu_for_each_copy(p, copy) sum += *copy;
    return sum != 4000 || percpu_counter_sum(&mine) != 2000;
}

static int all_moved(struct worker *workers, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!__atomic_load_n(&workers[i].moves, __ATOMIC_RELAXED))
            return 0;
    return 1;
}

int main(void)
{
    static struct worker workers[MAX_WORKERS];
    struct tally all;
    struct object sum, *copy;
    pthread_t churner;
    unsigned n, forks = 0, bad_children = 0, signals = 0, moves = 0, tokens[2 * MAX_WORKERS + 1],
                lost = 0;
    percpu_word triangle = 0;
    double end;
    memset(&all, 0, sizeof all);
    memset(&sum, 0, sizeof sum);
    memset(tokens, 0, sizeof tokens);
    handle(SIGUSR1, handler);
    look_around(MOST_CPUS);
    n = 2 * ncpus + 2 < (unsigned)MAX_WORKERS ? 2 * ncpus + 2 : (unsigned)MAX_WORKERS;
    object = PERCPU_NEW(struct object);
    for (unsigned i = 0; i < n; i++) {
        workers[i].index = i;
        workers[i].by_thread.held = 2 * i + 1;
        workers[i].by_handler.held = 2 * i + 2;
        pthread_create(&workers[i].thread, (const pthread_attr_t *)0, work, &workers[i]);
    }
    pthread_create(&churner, (const pthread_attr_t *)0, churn, (void *)1);
    end = now() + 0.015 * scaled(100);
    do {
        bad_children += status_of_child(child_is_wrong) != 0;
        forks++;
        for (int i = 0; i < 1000; i++)
            sched_yield();
    } while (now() < end || (!all_moved(workers, n) && now() < end + 60));
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < n; i++) {
        const struct worker *w = &workers[i];
        pthread_join(w->thread, (void **)0);
        for (int h = 0; h < 2; h++) {
            const struct tally *t = h ? &w->by_handler : &w->by_thread;
            all.counter += t->counter;
            all.adds += t->adds;
            all.small_adds += t->small_adds;
            all.returned += t->returned;
            all.compared += t->compared;
            tokens[t->held <= 2 * n ? t->held : 0]++;
        }
        signals += w->signals;
        moves += w->moves;
    }
    pthread_join(churner, (void **)0);
    percpu_for_each_copy(object, copy)
    {
        const percpu_word last = copy->returned;
        sum.adds += copy->adds;
        sum.small_adds += copy->small_adds;
        sum.compared += copy->compared;
        triangle += last % 2 ? (last + 1) / 2 * last : last / 2 * (last + 1);
        tokens[copy->token <= 2 * n ? copy->token : 0]++;
    }
    for (unsigned i = 1; i <= 2 * n; i++)
        lost += tokens[i] != 1;
    note("%u threads, %u rounds of operations, %u signals, %u moves, %u short lives, %u forks, %lu "
         "aborts",
         n, (unsigned)all.small_adds, signals, moves, churn_total.begun, forks, aborts());
    is(percpu_counter_sum(&counter), all.counter, "counter");
    is(sum.adds, all.adds, "adds and subs");
    is(sum.small_adds, all.small_adds, "32-bit adds");
    is(triangle, all.returned, "add_return gave each value of a copy once");
    is(sum.compared, all.compared, "cmpxchg");
    is(lost, 0, "xchg keeps every token, once");
    is(percpu_counter_sum(&churned), churn_total.added, "threads that come and go");
    is(bad_children, 0, "children");
    ok(signals > 0 && moves > 0 && churn_total.begun > 0, "the storm blew");
    aborted_at_all("sections were aborted");
    return done();
}
