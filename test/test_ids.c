/* SPDX-License-Identifier: MIT */
/*
 * CPU numbers beyond the table: never used as an index, and the results are exact through the
 * fallback; and the table's size, from all kinds of lists of possible CPUs.
 *
 * Goes red, for example, where a section does not compare the number with its bound, where a
 * counter is bounded by the process's table instead of its own rows, where a list is read as a
 * count.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "possible.h"
#include "tap.h"

static int pin(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

/* The highest CPU that this thread may use; tests below need one above 0. */
static unsigned highest_cpu(void)
{
    cpu_set_t set;
    unsigned highest = 0;
    sched_getaffinity(0, sizeof set, &set);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            highest = cpu;
    return highest;
}

/*
 * Each in a child, since the size of the table is found once per process. Return: its exit status.
 */
static int in_child(int (*test)(void))
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(test());
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

/* ---- Adds from several threads, all on the CPU that is beyond the table */

enum { THREADS = 4, ROUNDS = 20000 };
static struct percpu_counter counter;
static uint32_t *word;
static unsigned beyond;

static void *add(void *arg)
{
    (void)pin(beyond);
    for (unsigned i = 0; i < ROUNDS; i++) {
        percpu_counter_inc(&counter);
        this_cpu_add(*word, 2);
        if (i % 64 == 0)
            sched_yield();
    }
    return arg;
}

/* Return: exact, and done by the fallback if there is a number beyond the table. */
static int adds_are_exact(void)
{
    pthread_t threads[THREADS];
    uint32_t *copy, sum = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], (const pthread_attr_t *)0, add, (void *)0))
            return 0;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], (void **)0);
    percpu_for_each_copy(word, copy) sum += *copy;
    return sum == 2 * THREADS * ROUNDS && percpu_counter_sum(&counter) == THREADS * ROUNDS;
}

/*
 * The table has one row; row 1, which a section without a bound would take, belongs to the
 * fallback.
 */
static int one_row(void)
{
    beyond = highest_cpu();
    percpu_priv_state.nr_cpus = 1;
    percpu_priv_state.reach.bound = 1;
    word = PERCPU_NEW(uint32_t);
    if (percpu_priv_arena_of(word)->rows != 1 || percpu_nr_cpus() != 1)
        return 1;
    if (!pin(beyond) || (percpu_cpu_raw() >= 0 && this_cpu_id() != beyond))
        return 2;
    this_cpu_write(*word, 0);
    if (!percpu_priv_arena_of(word)->mixed)
        return 3; /* somebody wrote a row, and it was not the fallback */
    if (percpu_status().mode != PERCPU_MODE_FALLBACK)
        return 4;
    if ((char *)this_cpu_ptr(word) != (char *)word + PERCPU_STRIDE)
        return 5;
    return adds_are_exact() ? 0 : 6;
}

static int one_row_says_why(void)
{
    percpu_priv_state.nr_cpus = 1;
    percpu_priv_state.reach.bound = 1;
    (void)pin(highest_cpu());
    (void)percpu_thread_register();
    return percpu_status().reason == PERCPU_REASON_ID_RANGE ? 0 : 1;
}

/* Sections are bounded below the rows that exist: the rows in between stay untouched. */
static int bound_below_rows(void)
{
    uint32_t *canary;
    beyond = highest_cpu();
    (void)percpu_nr_cpus();
    percpu_priv_state.reach.bound = beyond; /* the CPU itself is not below it */
    word = PERCPU_NEW(uint32_t);
    if (!pin(beyond) || !adds_are_exact())
        return 1;
    canary = percpu_ptr(word, beyond);
    if (*canary || *percpu_ptr(counter.base, beyond))
        return 2;
    return 0;
}

/* A handle made while the table was smaller keeps to its own rows, whatever the table says now. */
static int handle_with_one_row(void)
{
    beyond = highest_cpu();
    word = PERCPU_NEW(uint32_t);
    if (percpu_counter_init(&counter))
        return 1;
    counter.rows = 1;
    if (!pin(beyond) || !adds_are_exact())
        return 2;
    return *percpu_ptr(counter.base, beyond) ? 3 : 0;
}

static void whitebox(void)
{
    if (highest_cpu() == 0) {
        skip("ids beyond the table", "only CPU 0 may be used");
        return;
    }
    is(in_child(one_row), 0, "one row, and running on another CPU: fallback, in bounds, exact");
    is(in_child(bound_below_rows), 0, "rows that sections must not use stay untouched");
    is(in_child(handle_with_one_row), 0, "a counter is bounded by its own rows");
    if (percpu_status().mode == PERCPU_MODE_FALLBACK)
        skip("the status says why", percpu_reason_text(percpu_status().reason));
    else
        is(in_child(one_row_says_why), 0, "the status says why");
}

/* ---- Lists of possible CPUs, by way of a file of ours that hides the real one */

static const char *list; /* what the file says; NULL: nothing is to be read */
static unsigned want, allowed_cpu;

enum { NOT_PERMITTED = 77 };

static int size_is_right(void)
{
    if (hide_possible(list) != HIDDEN)
        return NOT_PERMITTED;
    if (!pin(allowed_cpu))
        return 3;
    errno = 4711;
    if (percpu_nr_cpus() != want) {
        note("percpu_nr_cpus() is %u, expected %u", percpu_nr_cpus(), want);
        return 1;
    }
    return errno == 4711 ? 0 : 2;
}

static void one_list(const char *text, unsigned expected, const char *name)
{
    int rc;
    list = text;
    want = expected < PERCPU_PRIV_MAX_CPUS ? expected : PERCPU_PRIV_MAX_CPUS; /* on 32 bits: 256 */
    rc = in_child(size_is_right);
    if (rc == NOT_PERMITTED)
        skip(name, "hiding a file of sysfs needs root and a mount namespace");
    else
        is(rc, 0, name);
}

static int no_sysfs(void)
{
    if (syscall(SYS_unshare, 0x00020000) ||
        mount("none", "/", (const char *)0, MS_REC | MS_PRIVATE, (const void *)0) ||
        mount("none", "/sys/devices/system/cpu", "tmpfs", 0, (const void *)0))
        return NOT_PERMITTED;
    return pin(allowed_cpu) && percpu_nr_cpus() == allowed_cpu + 1 ? 0 : 1;
}

static int list_hides_this_cpu(void)
{
    beyond = highest_cpu();
    if (hide_possible("0\n") != HIDDEN)
        return NOT_PERMITTED;
    word = PERCPU_NEW(uint32_t);
    if (!pin(beyond) || percpu_nr_cpus() != 1 || !adds_are_exact())
        return 1;
    if (percpu_priv_arena_of(word)->mixed != 1)
        return 2;
    return percpu_status().mode == PERCPU_MODE_FALLBACK ? 0 : 3;
}

static void lists(void)
{
    static char very_long[6000];
    size_t at = 0;
    int rc;
    for (unsigned cpu = 0; cpu < 1000; cpu += 2) /* 256-byte reads cut numbers in two */
        at += (size_t)snprintf(very_long + at, sizeof very_long - at, "%s%u", cpu ? "," : "", cpu);
    allowed_cpu = highest_cpu();
    one_list("0\n", 1, "list: 0");
    one_list("0-3\n", 4, "list: 0-3");
    one_list("0-3,8-11\n", 12, "list: 0-3,8-11, a list and not a count");
    one_list("5\n", 6, "list: 5");
    one_list("0,2-3", 4, "list without a newline");
    one_list("0-127,4095\n", 4096, "list with a far number");
    one_list(very_long, 999, "a list of many numbers");
    one_list("0-99999999\n", 65536,
             "a number that is too large for any kernel: the most that is supported");
    one_list("", allowed_cpu + 1, "an empty file: the CPUs that may be used");
    one_list("garbage\n", allowed_cpu + 1, "no number in it: the CPUs that may be used");
    one_list((const char *)0, allowed_cpu + 1,
             "a file that cannot be read: the CPUs that may be used");
    allowed_cpu = 0;
    one_list((const char *)0, 1, "which are only CPU 0");
    allowed_cpu = highest_cpu();
    rc = in_child(no_sysfs);
    if (rc == NOT_PERMITTED)
        skip("no such file", "hiding a file of sysfs needs root and a mount namespace");
    else
        is(rc, 0, "no such file: the CPUs that may be used");
    rc = allowed_cpu ? in_child(list_hides_this_cpu) : NOT_PERMITTED;
    if (rc == NOT_PERMITTED)
        skip("a list that hides this CPU", "it needs root, a mount namespace and a second CPU");
    else
        is(rc, 0, "a list that hides this CPU: fallback, and exact");
}

int main(void)
{
    lists();
    whitebox();
    return done();
}
