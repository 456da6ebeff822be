/* SPDX-License-Identifier: MIT */
/*
 * Fences: when percpu_fence_cpu() returns, no section that saw the old state is left to commit.
 *
 * Seen to fail: with a fence that does nothing; with one that asks for another CPU; with a walk
 * that does not go there; with the affinity not restored; with errno from a refused membarrier.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <limits.h>
#include "disturb.h"
#include "plugins/seccomp.h"

/* By both ways: 0 membarrier, 2 the walk. */
static const char *by(int way)
{
    return way ? "walk" : "membarrier, if any";
}

/* ---- Arguments, errno, affinity */

static void fences_keep_errno_and_affinity(int way)
{
    cpu_set_t before, after;
    unsigned i, failed = 0, cpu;
    percpu_priv_state.membarrier = (uint8_t)way;
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    sched_getaffinity(0, sizeof before, &before);
    errno = 71;
    for (i = 0; i < ncpus; i++)
        failed += percpu_fence_cpu(cpus[i]) != 0 || errno != 71;
    failed += percpu_fence_cpu(this_cpu_id()) != 0 || errno != 71;
    is(failed, 0, "each allowed CPU, one's own among them: 0, errno as it was");
    for (i = 0; i < ncpus; i++) { /* from each CPU to each other */
        move_to(0, cpus[i]);
        for (unsigned j = 0; j < ncpus; j++)
            failed += percpu_fence_cpu(cpus[j]) != 0 || this_cpu_id() != cpus[i];
    }
    is(failed, 0, "a thread bound to one CPU can fence another, and stays where it was bound");
    move_anywhere();
    sched_getaffinity(0, sizeof after, &after);
    ok(memcmp(&before, &after, sizeof before) == 0, "%s: affinity as it was", by(way));
    errno = 0;
    ok(percpu_fence_cpu(percpu_nr_cpus()) == -1 && errno == EINVAL,
       "one beyond the highest: EINVAL");
    errno = 0;
    ok(percpu_fence_cpu(UINT_MAX) == -1 && errno == EINVAL, "no CPU at all: EINVAL");
    for (cpu = 0; cpu < percpu_nr_cpus(); cpu++) {
        char path[80];
        int online = 1;
        FILE *f;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/online", cpu);
        f = fopen(path, "r");
        if (f && fscanf(f, "%d", &online) == 1 && !online) {
            errno = 71;
            ok(percpu_fence_cpu(cpu) == 0 && errno == 71, "%s: CPU %u is offline: 0", by(way), cpu);
        }
        if (f)
            fclose(f);
    }
}

static void fence_of_all(int way)
{
    percpu_priv_state.membarrier = (uint8_t)way;
    errno = 71;
    ok(percpu_fence() == 0 && errno == 71, "%s: all CPUs: 0, errno as it was", by(way));
}

/* ---- Refused, in children */

static int walk_refused(int error)
{
    if (seccomp_rseq(SYS_membarrier, SECCOMP_ERRNO(EPERM)) ||
        seccomp_rseq(SYS_sched_setaffinity, SECCOMP_ERRNO(error)))
        return 77;
    percpu_priv_state.membarrier = 0;
    errno = 0;
    if (percpu_fence_cpu(cpus[0]) != -1 || errno != error)
        return 1;
    errno = 0;
    return percpu_fence() == -1 && errno == error ? 0 : 2;
}
static int walk_refused_by_a_sandbox(void)
{
    return walk_refused(EPERM);
}
/* EINVAL is what a CPU outside the thread's cpuset gives; this one is online. */
static int walk_refused_as_by_a_cpuset(void)
{
    return walk_refused(EINVAL);
}

static int membarrier_refused_after_its_registration(void)
{
    cpu_set_t before, after;
    percpu_priv_state.membarrier = 0;
    (void)percpu_fence();
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    sched_getaffinity(0, sizeof before, &before);
    if (seccomp_rseq(SYS_membarrier, SECCOMP_ERRNO(ENOSYS)))
        return 77;
    errno = 71;
    if (percpu_fence_cpu(cpus[ncpus - 1]) != 0 || percpu_fence() != 0 || errno != 71)
        return 1;
    sched_getaffinity(0, sizeof after, &after);
    return memcmp(&before, &after, sizeof before) ? 2 : 0;
}

/*
 * A fence of the wrong CPU would nearly always pass the test below: a section is over in no time.
 * So the filter lets only the right question through.
 */
static unsigned asked;
static int only_the_right_cpu_is_asked(void)
{
    if (seccomp_rseq(SYS_sched_setaffinity, SECCOMP_ERRNO(EPERM)) ||
        seccomp_rseq_by_arg(SYS_membarrier, 2, asked, SECCOMP_ALLOW, SECCOMP_ERRNO(EPERM)) ||
        seccomp_rseq_by_arg(SYS_membarrier, 1, 1, SECCOMP_ALLOW, SECCOMP_ERRNO(EPERM)))
        return 77;
    for (unsigned i = 0; i < ncpus; i++)
        if ((percpu_fence_cpu(cpus[i]) == 0) != (cpus[i] == asked))
            return 1;
    return 0;
}

/* To be on another CPU for a moment a thread has to leave its own. */
static void a_walk_goes_there(void)
{
    unsigned stayed = 0;
    if (ncpus < 2) {
        skip("a walk goes there", "one CPU");
        return;
    }
    percpu_priv_state.membarrier = 2;
    move_to(0, cpus[0]);
    for (unsigned i = 0; i < 50; i++) {
        const long before = switches();
        (void)percpu_fence_cpu(cpus[1]);
        stayed += switches() == before;
    }
    move_anywhere();
    is(stayed, 0, "each walk leaves this CPU");
}

static int fork_keeps_fences(void)
{
    return percpu_fence() || percpu_fence_cpu(cpus[0]) ? 1 : 0;
}

/* ---- What it is for */
/*
 * A writer pushes the same node over and over: a section that reads `closed` and then commits to
 * `head`. We close, fence, set the head to a mark, and let the writer go on until it has been
 * turned away twice. A commit after the fence would be by a section that read `closed` before: it
 * overwrites the mark.
 */
#if PERCPU_PRIV_SECTIONS
static struct percpu_rseq_list *row_of_all; /* copy 0 */
static int stop;
static unsigned long pushed, turned_away;
static unsigned target;

static int push_section(void *node)
{
    return percpu_rseq_push(&percpu_priv_state.reach, row_of_all, node, 0);
}

static void *push_all_the_time(void *arg)
{
    void *node[1];
    (void)arg;
    move_to(0, target);
    (void)percpu_thread_register();
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        if (push_section(node) == 0)
            (void)__atomic_fetch_add(&pushed, 1, __ATOMIC_RELEASE);
        else
            (void)__atomic_fetch_add(&turned_away, 1, __ATOMIC_RELEASE);
    }
    return (void *)0;
}

/* Until another thread has counted @more. */
static void wait_for(const unsigned long *count, unsigned long more)
{
    const unsigned long from = __atomic_load_n(count, __ATOMIC_ACQUIRE);
    for (unsigned spins = 1; __atomic_load_n(count, __ATOMIC_ACQUIRE) < from + more; spins++)
        if (spins % 128 == 0)
            sched_yield();
}

static void no_section_that_saw_the_old_flag_commits_after(int way, unsigned rounds, unsigned from)
{
    pthread_t writer;
    static void *mark;
    unsigned late = 0, failed = 0, i;
    struct percpu_rseq_list *row;
    const unsigned long before = aborts();
    target = cpus[0];
    row_of_all = PERCPU_NEW(struct percpu_rseq_list);
    row = percpu_ptr(row_of_all, target);
    percpu_priv_state.membarrier = (uint8_t)way;
    stop = 0;
    pushed = turned_away = 0;
    move_to(0, from);
    pthread_create(&writer, (pthread_attr_t *)0, push_all_the_time, (void *)0);
    wait_for(&pushed, 1);
    for (i = 0; i < rounds || (aborts() == before && i < 200 * rounds); i++) {
        __atomic_store_n(&row->closed, 1, __ATOMIC_SEQ_CST);
        failed += percpu_fence_cpu(target) != 0;
        __atomic_store_n(&row->head, (void *)&mark, __ATOMIC_SEQ_CST);
        wait_for(&turned_away, 2);
        late += __atomic_load_n(&row->head, __ATOMIC_ACQUIRE) != (void *)&mark;
        __atomic_store_n(&row->head, (void *)0, __ATOMIC_RELAXED);
        __atomic_store_n(&row->closed, 0, __ATOMIC_RELEASE);
        wait_for(&pushed, 1 + i % 7);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(writer, (void **)0);
    move_anywhere();
    ok(late == 0 && failed == 0, "%s, from CPU %u: no late commit in %u rounds", by(way), from, i);
    note("%lu pushes, %lu turned away, %lu aborts, %u late", pushed, turned_away, aborts() - before,
         late);
    ok(aborts() != before, "fences aborted sections");
    percpu_free(row_of_all);
}
#endif

static void sections_are_fenced(void)
{
    const char *text = getenv("FENCE_ROUNDS");
    const unsigned rounds = text ? (unsigned)atoi(text) : 1200; /* a long run: 100000 */
    if (!sections_at_start) {
        char why[512];
        percpu_status_format(why, sizeof why);
        if (getenv("REQUIRE_RSEQ"))
            ok(0, "REQUIRE_RSEQ=1, but: %s", why);
        else
            skip("no section commits after a fence", why);
        return;
    }
#if PERCPU_PRIV_SECTIONS
    if (ncpus < 2) {
        skip("no section on another CPU commits after a fence", "one CPU");
        return;
    }
    no_section_that_saw_the_old_flag_commits_after(0, rounds, cpus[1]);
    no_section_that_saw_the_old_flag_commits_after(2, rounds / 30, cpus[1]);
#else
    (void)rounds;
#endif
}

int main(void)
{
    look_around(MOST_CPUS);
    in_child(walk_refused_by_a_sandbox, "membarrier and sched_setaffinity refused: -1, EPERM");
    in_child(walk_refused_as_by_a_cpuset, "a CPU that is online but not ours to visit: -1, EINVAL");
    in_child(membarrier_refused_after_its_registration, "membarrier refused later: the walk");
    percpu_priv_state.membarrier = 0;
    (void)percpu_fence();
    for (unsigned i = 0; i < ncpus; i++) {
        asked = cpus[i];
        if (percpu_priv_state.membarrier == 1)
            in_child(only_the_right_cpu_is_asked, "the CPU that is fenced is the one named");
        else
            skip("the CPU that is fenced is the one named", "no membarrier for rseq");
    }
    a_walk_goes_there();
    for (int way = 0; way <= 2; way += 2) {
        fences_keep_errno_and_affinity(way);
        fence_of_all(way);
        in_child(fork_keeps_fences, "a forked child can fence");
    }
    sections_are_fenced();
    return done();
}
