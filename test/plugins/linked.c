/* SPDX-License-Identifier: MIT */
/*
 * linked [SO] - a program with the header, linked with shared objects that have it too. Which of
 * them operates first in a thread is the argument's choice. Detached threads, so that what stays
 * registered on musl ends the process.
 */
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

void a_add(struct percpu_counter *c, unsigned long *object);
void b_add(struct percpu_counter *c, unsigned long *object);
int a_mode(void);
int b_mode(void);

static struct percpu_counter counter;
static unsigned long *object;
static int so_first, modes[3];

static void *thread(void *arg)
{
    if (so_first) {
        b_add(&counter, object);
        a_add(&counter, object);
    }
    percpu_counter_inc(&counter);
    this_cpu_inc(*object);
    if (!so_first) {
        b_add(&counter, object);
        a_add(&counter, object);
    }
    if (arg) {
        modes[0] = percpu_status().mode;
        modes[1] = a_mode();
        modes[2] = b_mode();
    }
    return (void *)0;
}

int main(int argc, char **argv)
{
    enum { N = 3000 };
    pthread_attr_t detached;
    pthread_t t;
    unsigned long sum = 0, *copy;
    (void)argv;
    so_first = argc > 1;
    object = PERCPU_NEW(unsigned long);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 65536);
    for (unsigned i = 0; i < N; i++) {
        while (pthread_create(&t, &detached, thread, (void *)0))
            sched_yield();
        while (percpu_counter_sum(&counter) + 3 * 64 < 3 * (i + 1))
            sched_yield();
    }
    while (percpu_counter_sum(&counter) < 3 * N)
        sched_yield();
    pthread_create(&t, (pthread_attr_t *)0, thread, &t);
    pthread_join(t, (void **)0);
    percpu_for_each_copy(object, copy) sum += *copy;
    printf("modes %d %d %d\n", modes[0], modes[1], modes[2]);
    return percpu_counter_sum(&counter) != 3 * (N + 1) || sum != 3 * (N + 1);
}
