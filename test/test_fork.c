/* SPDX-License-Identifier: MIT */
/*
 * fork, vfork, posix_spawn. A fork child keeps its thread's registration and works, also if the
 * fork caught other threads in the middle of an allocation: there is no lock to be caught with.
 *
 * Seen to fail: with a lock in the allocator (children hang).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tap.h"

enum { WRITERS = 2, CHILDREN = 20, ADDS = 2000, WATCHDOG = 60 };
#define CHECK(x) \
    ((x) ? 0 : (printf("#   failed in child, line %d: %s\n", __LINE__, #x), fflush(stdout), 1))

static enum percpu_mode mode;
static struct percpu_counter counter, allocations;
static int stop;
static unsigned long added[WRITERS], failures[WRITERS];

/* Add, and between adds allocate, check, free. */
static int storm(unsigned n, unsigned long *adds)
{
    int bad = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t words = 1 + i % 700; /* some cross pages, rows fill up */
        unsigned long *p = (unsigned long *)percpu_alloc(words * sizeof *p, 8), *copy;
        unsigned long sum = 0;
        if (!p)
            return bad + 1;
        percpu_for_each_copy(p, copy) for (size_t w = 0; w < words; w += 13) bad += copy[w] != 0;
        this_cpu_add(p[0], 3);
        this_cpu_inc(p[words - 1]);
        percpu_for_each_copy(p, copy) sum += copy[0] + (words > 1 ? copy[words - 1] : 0);
        bad += sum != 4;
        bad += percpu_free(p) != 0;
        percpu_counter_inc(&counter);
        percpu_counter_inc(&allocations);
        ++*adds;
    }
    return bad;
}

static void *writer(void *arg)
{
    unsigned me = *(unsigned *)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        failures[me] += (unsigned long)storm(10, &added[me]);
    return (void *)0;
}

static void *thread_in_child(void *arg)
{
    unsigned long *adds = (unsigned long *)arg;
    if (storm(20, adds))
        *adds = ~0ul;
    return (void *)0;
}

/* The writers were caught wherever they were; what this thread added since is known. */
static int child(unsigned with_thread)
{
    percpu_word before = percpu_counter_sum(&counter);
    unsigned long adds = 0, more = 0;
    int bad = 0;
    pthread_t t;
    alarm(WATCHDOG);
    bad += CHECK((percpu_cpu_raw() >= 0) == (mode != PERCPU_MODE_FALLBACK));
    bad += CHECK(percpu_status().mode == mode);
    bad += CHECK(storm(40, &adds) == 0);
    bad += CHECK(percpu_counter_sum(&counter) == before + adds);
    if (with_thread) {
        bad += CHECK(pthread_create(&t, (pthread_attr_t *)0, thread_in_child, &more) == 0);
        bad += CHECK(pthread_join(t, (void **)0) == 0);
        bad += CHECK(percpu_counter_sum(&counter) == before + adds + more);
    }
    for (int i = 0; i < ADDS; i++)
        percpu_counter_inc(&counter);
    bad += CHECK(percpu_counter_sum(&counter) == before + adds + more + ADDS);
    return bad;
}

static int wait_for(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        note("a child hung");
    return status;
}

static void fork_in_a_storm(void)
{
    static unsigned numbers[WRITERS];
    pthread_t t[WRITERS];
    unsigned long sum = 0, failed = 0, mine = 0;
    percpu_word before = percpu_counter_sum(&counter);
    int bad = 0;
    for (unsigned i = 0; i < WRITERS; i++) {
        numbers[i] = i;
        pthread_create(&t[i], (pthread_attr_t *)0, writer, &numbers[i]);
    }
    for (unsigned i = 0; i < CHILDREN; i++) {
        pid_t pid;
        failed += (unsigned long)storm(3, &mine);
        fflush(stdout);
        pid = fork();
        if (pid == 0)
            _exit(child(i % 2) != 0);
        bad += pid < 0 || wait_for(pid) != 0;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < WRITERS; i++) {
        pthread_join(t[i], (void **)0);
        sum += added[i];
        failed += failures[i];
    }
    note("%lu allocations in the parent meanwhile", sum);
    is(bad, 0, "children that were forked in the middle work, are exact, and do not hang");
    is(failed, 0, "nor does the parent notice");
    is(percpu_counter_sum(&counter), before + sum + mine, "the parent is exact");
    is(percpu_counter_sum(&allocations), sum + mine, "in both counters");
}

/* Children of children, and a child whose parent's thread was never used before. */
static void *forks_before_operating(void *arg)
{
    pid_t pid;
    percpu_word before = percpu_counter_sum(&counter);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        int bad = 0;
        pid_t grandchild;
        alarm(WATCHDOG);
        percpu_counter_inc(&counter);
        bad += CHECK((percpu_cpu_raw() >= 0) == (mode != PERCPU_MODE_FALLBACK));
        grandchild = fork();
        if (grandchild == 0) {
            percpu_counter_inc(&counter);
            _exit(CHECK(percpu_counter_sum(&counter) == before + 2));
        }
        bad += wait_for(grandchild) != 0;
        bad += CHECK(percpu_counter_sum(&counter) == before + 1);
        _exit(bad);
    }
    *(int *)arg = pid < 0 || wait_for(pid) != 0;
    percpu_counter_inc(&counter);
    *(int *)arg += percpu_counter_sum(&counter) != before + 1;
    return (void *)0;
}

/* A vfork child runs in its parent's area: it must not operate, and does not. */
static void vfork_child(void)
{
    static char *const argv[] = {(char *)(uintptr_t) "true", (char *)0};
    percpu_word before = percpu_counter_sum(&counter);
    int bad = 0;
    for (int i = 0; i < 20; i++) {
        pid_t pid;
        percpu_counter_inc(&counter);
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
        pid = vfork();
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
        if (pid == 0) {
            execv("/bin/true", argv);
            _exit(127);
        }
        bad += pid < 0 || wait_for(pid) != 0;
        percpu_counter_inc(&counter);
        bad += percpu_status().mode != mode || this_cpu_id() >= percpu_nr_cpus();
    }
    is(bad, 0, "after vfork and exec the parent works");
    is(percpu_counter_sum(&counter), before + 40, "and is exact");
}

static void spawn(void)
{
    static char *const argv[] = {(char *)(uintptr_t) "true", (char *)0};
    static char *const envp[] = {(char *)0};
    percpu_word before = percpu_counter_sum(&counter);
    int bad = 0;
    for (int i = 0; i < 20; i++) {
        pid_t pid = -1;
        percpu_counter_inc(&counter);
        bad += posix_spawn(&pid, "/bin/true", (const posix_spawn_file_actions_t *)0,
                           (const posix_spawnattr_t *)0, argv, envp) != 0;
        bad += pid < 0 || wait_for(pid) != 0;
        percpu_counter_inc(&counter);
    }
    is(bad, 0, "posix_spawn works");
    is(percpu_status().mode, mode, "in the same mode afterwards");
    is(percpu_counter_sum(&counter), before + 40, "exact");
}

int main(void)
{
    int bad = 1;
    pthread_t t;
    mode = percpu_status().mode;
    if (getenv("REQUIRE_RSEQ"))
        need_sections();
    alarm(4 * WATCHDOG);
    pthread_create(&t, (pthread_attr_t *)0, forks_before_operating, &bad);
    pthread_join(t, (void **)0);
    is(bad, 0, "children of a thread that never operated, and their children, are exact");
    percpu_counter_inc(&counter);
    fork_in_a_storm();
    vfork_child();
    spawn();
    return done();
}
