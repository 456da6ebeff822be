/* SPDX-License-Identifier: MIT */
/*
 * shares [libc] - linked with foreign.c: the area __rseq_abi is theirs and used by both. With libc
 * registering, libc's is used and theirs left alone.
 */
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

long foreign_rseq(int flags);
long foreign_cpu(void);

static struct percpu_counter counter;
static int libc, bad;
#define CHECK(x) ((x) ? (void)0 : (void)(bad++, printf("# line %d: %s\n", __LINE__, #x)))

static void add(void)
{
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&counter);
}

static void *they_first(void *arg)
{
    CHECK(foreign_rseq(0) == 0);
    CHECK(foreign_cpu() >= 0 && percpu_cpu_raw() >= 0);
    add();
    CHECK(percpu_status().mode == PERCPU_MODE_OWN);
    CHECK(percpu_thread_unregister() == 0); /* theirs stays */
    CHECK(foreign_cpu() >= 0 && foreign_rseq(0) == -1 && errno == EBUSY);
    add();
    CHECK(foreign_rseq(PERCPU_RSEQ_FLAG_UNREGISTER) == 0);
    add();
    return arg;
}

/*
 * Between our look at the area and our call, a handler of theirs registers: EBUSY, and it is
 * theirs.
 */
static void *they_in_between(void *arg)
{
    CHECK(percpu_status().mode == PERCPU_MODE_OWN);
    CHECK(foreign_rseq(0) == 0);
#if PERCPU_RSEQ_PORTED
    percpu_priv_attempt(percpu_priv_thread());
    CHECK(percpu_priv_thread()->length == 0);
#endif
    add();
    CHECK(percpu_status().mode == PERCPU_MODE_OWN);
    CHECK(foreign_rseq(PERCPU_RSEQ_FLAG_UNREGISTER) == 0);
    return arg;
}

static void *we_first(void *arg)
{
    add();
    CHECK(percpu_status().mode == PERCPU_MODE_OWN && percpu_status().length == 32);
    CHECK(foreign_cpu() >= 0); /* one area */
    CHECK(foreign_rseq(0) == -1 && errno == EBUSY);
    add();
    CHECK(percpu_thread_unregister() == 0 && foreign_cpu() < 0);
    add();
    return arg;
}

static void *libc_first(void *arg)
{
    add();
    CHECK(percpu_status().mode == PERCPU_MODE_LIBC && foreign_cpu() == -1);
    CHECK(foreign_rseq(0) == -1 && errno == EINVAL);
    add();
    add();
    return arg;
}

/* Detached: what we registered must be given back, in their memory too. */
static void *detached(void *arg)
{
    percpu_counter_inc(&counter);
    return arg;
}

int main(int argc, char **argv)
{
    void *(*run[])(void *) = {they_first, we_first, they_in_between};
    unsigned long wanted = 0;
    pthread_attr_t attr;
    pthread_t t;
    (void)argv;
    libc = argc > 1;
    for (unsigned i = 0; i < (libc ? 1u : 3u); i++) {
        pthread_create(&t, (pthread_attr_t *)0, libc ? libc_first : run[i], (void *)0);
        pthread_join(t, (void **)0);
        wanted += i == 2 ? 1000 : 3000;
    }
    CHECK(percpu_counter_sum(&counter) == wanted);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < 1000; i++) {
        while (pthread_create(&t, &attr, detached, (void *)0))
            sched_yield();
        wanted++;
        while (percpu_counter_sum(&counter) < wanted)
            sched_yield();
    }
    CHECK(percpu_counter_sum(&counter) == wanted);
    return bad != 0;
}
