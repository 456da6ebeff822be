/* SPDX-License-Identifier: MIT */
/*
 * signal_counters - a service that counts in its threads and in its signal handlers.
 *
 * Worker threads serve requests; a timer signal interrupts them anywhere, also inside a count, and
 * its handler counts in the same counters. Every 1000th request raises SIGUSR1, as a library that
 * reports by signal would. No lock, no masked signal, no "is this safe in a handler?".
 *
 *     cc signal_counters.c -pthread
 */
#include "percpu.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum { WORKERS = 4, REQUESTS = 2000000, TICKS = 3 };

/* Zero is ready to use: a handler may be the first to count. */
static struct percpu_counter requests, slow, ticks, events;

static void on_slow(int sig)
{
    (void)sig;
    percpu_counter_inc(&slow);
    percpu_counter_inc(&events);
}

static void on_tick(int sig)
{
    (void)sig;
    percpu_counter_inc(&ticks);
    percpu_counter_inc(&events); /* what this interrupted may be an add to the same counter */
}

static void *worker(void *arg)
{
    for (int i = 1; i <= REQUESTS; i++) {
        percpu_counter_inc(&requests);
        percpu_counter_inc(&events);
        if (i % 1000 == 0)
            raise(SIGUSR1);
    }
    return arg;
}

static void handle(int sig, void (*handler)(int))
{
    struct sigaction sa;
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = handler;
    sa.sa_flags = SA_RESTART;
    sigaction(sig, &sa, NULL);
}

int main(void)
{
    pthread_t t[WORKERS];
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};

    handle(SIGUSR1, on_slow);
    handle(SIGALRM, on_tick);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&t[i], NULL, worker, NULL))
            return 1;
    for (int i = 0; i < WORKERS; i++)
        pthread_join(t[i], NULL);
    while (percpu_counter_sum(&ticks) < TICKS)
        pause();
    setitimer(ITIMER_REAL, &never, NULL);
    handle(SIGALRM, SIG_IGN); /* the last one has been counted, or never will be */

    /* Exact, because everybody who counts has stopped. */
    printf("requests=%lu slow=%lu ticks=%lu events=%lu\n",
           (unsigned long)percpu_counter_sum(&requests), (unsigned long)percpu_counter_sum(&slow),
           (unsigned long)percpu_counter_sum(&ticks), (unsigned long)percpu_counter_sum(&events));
    return 0;
}
