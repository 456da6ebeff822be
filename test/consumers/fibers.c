/* SPDX-License-Identifier: MIT */
/*
 * fibers - a scheduler that runs many fibers on a few threads, and moves them between threads.
 *
 * A fiber counts, yields, and goes on in the next thread: each yield is a move here. A call of
 * percpu.h is never split by a yield, and each call finds its thread anew. (Not so the rest of
 * thread-local memory: compilers may remember its address across swapcontext(). Hence the noinline
 * functions below.)
 *
 *     cc fibers.c -pthread         glibc: musl has no ucontext
 */
#include "percpu.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { THREADS = 3, FIBERS = 60, STEPS = 1000, STACK = 65536 };

struct fiber {
    ucontext_t context;
    struct fiber *next;
    int steps_left;
};

static struct percpu_counter steps, moves, finished;

/* A queue per thread, first in, first out. */
static struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct fiber *first, *last;
} queues[THREADS];
static int alive = FIBERS;

static __thread int me;
static __thread ucontext_t scheduler;
static __thread struct fiber *current;
static __attribute__((noinline)) int my_thread(void)
{
    __asm__ volatile(""); /* not to be merged with an earlier call either */
    return me;
}
static __attribute__((noinline)) ucontext_t *my_scheduler(void)
{
    __asm__ volatile("");
    return &scheduler;
}

static void put(int thread, struct fiber *f)
{
    struct queue *q = &queues[thread % THREADS];
    pthread_mutex_lock(&q->lock);
    f->next = NULL;
    if (q->first)
        q->last->next = f;
    else
        q->first = f;
    q->last = f;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

/* The next fiber; NULL when all have ended. */
static struct fiber *take(struct queue *q)
{
    struct fiber *f;
    pthread_mutex_lock(&q->lock);
    while ((f = q->first) == NULL && __atomic_load_n(&alive, __ATOMIC_ACQUIRE) > 0)
        pthread_cond_wait(&q->filled, &q->lock);
    if (f)
        q->first = f->next;
    pthread_mutex_unlock(&q->lock);
    return f;
}

static void body(void)
{
    struct fiber *f = current; /* once, before the first move */
    for (; f->steps_left > 0; f->steps_left--) {
        int thread = my_thread();
        percpu_counter_inc(&steps);
        swapcontext(&f->context, my_scheduler());
        percpu_counter_inc(&steps); /* the same line of code, in another thread */
        if (my_thread() != thread)
            percpu_counter_inc(&moves);
    }
    percpu_counter_inc(&finished);
    setcontext(my_scheduler());
}

static void *run(void *arg)
{
    struct fiber *f;
    me = (int)((struct queue *)arg - queues);
    while ((f = take((struct queue *)arg)) != NULL) {
        current = f;
        swapcontext(&scheduler, &f->context);
        if (f->steps_left > 0)
            put(me + 1, f); /* only now is its context complete */
        else if (__atomic_sub_fetch(&alive, 1, __ATOMIC_ACQ_REL) == 0)
            for (int i = 0; i < THREADS; i++) {
                pthread_mutex_lock(&queues[i].lock);
                pthread_cond_broadcast(&queues[i].filled);
                pthread_mutex_unlock(&queues[i].lock);
            }
    }
    return arg;
}

static int start(struct fiber *f, int thread)
{
    f->steps_left = STEPS;
    if (getcontext(&f->context) || !(f->context.uc_stack.ss_sp = malloc(STACK)))
        return -1;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, body, 0);
    put(thread, f);
    return 0;
}

int main(void)
{
    static struct fiber fibers[FIBERS];
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_mutex_init(&queues[i].lock, NULL);
        pthread_cond_init(&queues[i].filled, NULL);
    }
    for (int i = 0; i < FIBERS; i++)
        if (start(&fibers[i], i))
            return 1;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, run, &queues[i]))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < FIBERS; i++)
        free(fibers[i].context.uc_stack.ss_sp);
    printf("steps=%lu moves=%lu finished=%lu\n", (unsigned long)percpu_counter_sum(&steps),
           (unsigned long)percpu_counter_sum(&moves), (unsigned long)percpu_counter_sum(&finished));
    return 0;
}
