/* SPDX-License-Identifier: MIT */
/*
 * files_main.c - main of a program of several files. The files share one state, or do not
 * (-DSTRIDES_DIFFER); either way they share the thread's area, and one registration.
 *
 * Catches: state that is per file (a free in one file of what another allocated fails, and each
 * file finds out for itself), an area that is per file (the second registration is refused, so
 * half of the operations take the fallback), and operations of unlike files that meet in one word.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "files.h"
#include "tap.h"
#include <pthread.h>
#include <unistd.h>

/* libc's syscall(), replaced for the whole program, to count attempts and successes. */
static int attempts, registrations;
#if defined(__x86_64__) && defined(PERCPU_RSEQ_SYSCALL)
extern long count_syscall(long number, long a, long b, long c, long d, long e,
                          long f) __asm__("syscall");
long count_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (number == PERCPU_RSEQ_SYSCALL && (int)c == 0 && a != -4096) { /* -4096: status asks */
        (void)__atomic_fetch_add(&attempts, 1, __ATOMIC_RELAXED);
        (void)__atomic_fetch_add(&registrations, result == 0, __ATOMIC_RELAXED);
    }
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
#endif

enum { THREADS = 3, ROUNDS = 5000 };
#ifdef STRIDES_DIFFER
enum { files = 1 }; /* that operate on the objects here */
#else
enum { files = 2 };
#endif
static struct percpu_counter shared;
static uint32_t *word;

static void *work(void *arg)
{
    int swap = *(int *)arg;
    for (int i = 0; i < ROUNDS / 10; i++) { /* in turn, so that a file sees the other's traces */
        (swap ? second : first).add(&shared, word, 10);
        (swap ? first : second).add(&shared, word, 10);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int order[2] = {0, 1}, started = 1;
    uint32_t *copy, sum = 0;
    struct percpu_status one, two;

    word = PERCPU_NEW(uint32_t);
    work(&order[0]); /* before any thread: this is where the files find out */
    for (int i = 0; i < THREADS; i++)
        started += pthread_create(&threads[started - 1], NULL, work, &order[i % 2]) == 0;
    for (int i = 1; i < started; i++)
        pthread_join(threads[i - 1], NULL);
    one = first.status();
    two = second.status();

    is(started, THREADS + 1, "all threads ran");
    is(percpu_counter_sum(&shared), files * started * ROUNDS, "the counter is exact");
    percpu_for_each_copy(word, copy) sum += *copy;
    is(sum, files * started * ROUNDS, "the word is exact");
#ifdef STRIDES_DIFFER
    is(second.own_sum(), started * ROUNDS, "the other file's objects are exact");
    ok(first.state() != second.state(), "files of different strides have states of their own");
#else
    ok(first.state() == second.state(), "one state");
    is(second.release(word), 0, "one file frees what another allocated");
#endif
    is(first.nr_cpus(), second.nr_cpus(), "the files agree on the number of CPUs");
#ifdef UNLIKE
    note("modes %d %d, reasons %d %d", (int)one.mode, (int)two.mode, (int)one.reason,
         (int)two.reason);
    ok(first.nr_cpus() > 1 || sysconf(_SC_NPROCESSORS_CONF) == 1, "and know all of them");
#else
    is(one.mode, two.mode, "and on the mode");
#endif
    ok(first.thread() == second.thread() || !first.thread() || !second.thread(),
       "one area in each thread");
    note("mode %d, %d attempts, %d registrations", (int)one.mode, attempts, registrations);
#if defined(__x86_64__) && defined(PERCPU_RSEQ_SYSCALL)
    if (one.mode == PERCPU_MODE_OWN || two.mode == PERCPU_MODE_OWN)
#ifdef __GLIBC__ /* registers a thread itself if its creator is registered, by whomever */
        ok(registrations >= 1 && registrations <= started, "at most one in each thread");
#else
        is(registrations, started, "one registration in each thread");
#endif
    else
        is(registrations, 0, "no registration of ours");
    is(attempts, registrations, "and no attempt was refused");
    if (getenv("REQUIRE_RSEQ"))
        ok(one.mode != PERCPU_MODE_FALLBACK || two.mode != PERCPU_MODE_FALLBACK, "sections are on");
#endif
    return done();
}
