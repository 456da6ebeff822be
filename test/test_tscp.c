/* SPDX-License-Identifier: MIT */
/*
 * Timestamps: ticks and the CPU they were read on, from one CPU, by each way there is: rdtscp, a
 * section, and the fallback that reads the CPU before and after.
 *
 * Seen to fail: with the row's offset in place of the CPU; with the upper half of the counter
 * dropped; with CPU and counter read outside of the section.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

static int allowed(unsigned cpu)
{
    for (unsigned i = 0; i < ncpus; i++)
        if (cpus[i] == cpu)
            return 1;
    return 0;
}

/* How a stamp is taken. */
enum way { ORDERED, APPROX, NO_RDTSCP, REFUSED, REFUSED_NO_RDTSCP, WAYS };
static const char *const way_names[] = {"ordered", "approx", "ordered without rdtscp",
                                        "approx, rseq refused", "ordered, neither"};

static struct percpu_tscp stamp(enum way way)
{
    return way == APPROX || way == REFUSED ? percpu_tscp_approx() : percpu_tscp();
}

static void set_up(enum way way)
{
    percpu_priv_state.rdtscp = way == NO_RDTSCP || way == REFUSED_NO_RDTSCP ? 2 : 0;
    if (way == REFUSED || way == REFUSED_NO_RDTSCP)
        leave_rseq();
}

struct worker {
    enum way way;
    unsigned moves;
    /* results */
    unsigned wrong_cpu, backwards, errno_lost, stamps, undisturbed;
    int fell_back;
    pid_t tid;
    int stop;
};

/* Move, then ask: until the next move there is only one right answer. */
static void *stamp_after_each_move(void *arg)
{
    struct worker *w = (struct worker *)arg;
    unsigned seed = 12345 + (unsigned)w->way;
    uint64_t last = 0;
    set_up(w->way);
    for (unsigned i = 0; i < w->moves; i++) {
        struct percpu_tscp t;
        unsigned cpu;
        seed = seed * 1103515245 + 12345;
        cpu = cpus[(seed >> 16) % ncpus];
        if (move_to(0, cpu) != 0)
            continue;
        errno = 88;
        t = stamp(w->way);
        w->errno_lost += errno != 88;
        w->wrong_cpu += t.cpu != cpu;
        w->backwards += t.ticks < last;
        last = t.ticks;
        w->stamps++;
    }
    w->fell_back = percpu_status().mode == PERCPU_MODE_FALLBACK;
    move_anywhere();
    return (void *)0;
}

static void cpu_is_where_the_thread_was_moved(enum way way, unsigned moves)
{
    struct worker w;
    pthread_t t;
    memset(&w, 0, sizeof w);
    w.way = way;
    w.moves = moves;
    pthread_create(&t, (pthread_attr_t *)0, stamp_after_each_move, &w);
    pthread_join(t, (void **)0);
    ok(w.stamps == moves && w.wrong_cpu == 0, "%s: right CPU after %u moves", way_names[way],
       moves);
    if (w.wrong_cpu)
        note("%u of %u wrong", w.wrong_cpu, w.stamps);
    ok(w.backwards == 0 && w.errno_lost == 0, "%s: time never goes back, errno stays",
       way_names[way]);
    if (way == REFUSED || way == REFUSED_NO_RDTSCP)
        ok(w.fell_back, "%s: without sections indeed", way_names[way]);
    else
        is(!w.fell_back, sections_at_start, "with sections, if any");
}

/* While somebody else moves us. A thread that was not switched out did not move. */
static void *stamp_while_moved(void *arg)
{
    struct worker *w = (struct worker *)arg;
    uint64_t last = 0;
    set_up(w->way);
    __atomic_store_n(&w->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    while (!__atomic_load_n(&w->stop, __ATOMIC_RELAXED)) {
        long before = switches();
        struct percpu_tscp a = stamp(w->way), b = stamp(w->way);
        int cpu = sched_getcpu();
        if (switches() == before) {
            w->wrong_cpu += a.cpu != (unsigned)cpu || b.cpu != (unsigned)cpu;
            w->undisturbed++;
        }
        for (int i = 0; i < 20; i++) { /* what the mover is to hit */
            struct percpu_tscp t = stamp(w->way);
            w->wrong_cpu += !allowed(t.cpu);
            if (w->way != APPROX) { /* the other ways are in order; it need not be */
                w->backwards += t.ticks < last;
                last = t.ticks;
            }
        }
        w->stamps++;
    }
    return (void *)0;
}

static void stamps_under_a_storm_of_migrations(enum way way)
{
    struct worker w;
    pthread_t t;
    unsigned moves = 0, seed = 1;
    const unsigned long before = aborts();
    double end = now() + 0.1;
    pid_t tid;
    memset(&w, 0, sizeof w);
    w.way = way;
    pthread_create(&t, (pthread_attr_t *)0, stamp_while_moved, &w);
    while ((tid = __atomic_load_n(&w.tid, __ATOMIC_ACQUIRE)) == 0)
        sched_yield();
    do {
        seed = seed * 1103515245 + 12345;
        if (move_to(tid, cpus[(seed >> 16) % ncpus]) == 0)
            moves++;
        sched_yield();
        /* Sections are the point where there are any: go on until one was hit, within reason. */
    } while (now() < end || moves < 20 || (way == APPROX && no_abort_yet(before, end + 30)));
    __atomic_store_n(&w.stop, 1, __ATOMIC_RELAXED);
    pthread_join(t, (void **)0);
    ok(w.undisturbed > 0 && w.wrong_cpu == 0, "%s: right CPU under a storm of moves",
       way_names[way]);
    is(w.backwards, 0, "and time never goes back");
    note("%s: %u moves, %u checks, %u wrong, %lu aborts", way_names[way], moves, w.undisturbed,
         w.wrong_cpu, aborts() - before);
#ifdef PERCPU_RSEQ_OP_STAMP /* or else there is no section */
    if (way == APPROX)
        aborted_since(before);
#endif
}

static void ticks_are_of_one_clock(void)
{
    uint64_t a, b, c, d, e;
    unsigned wrong = 0;
    for (int i = 0; i < 1000; i++) {
        /* The ordered ones in order; an unordered one in between, with slack for reading early. */
        percpu_priv_state.rdtscp = 0;
        a = percpu_tscp().ticks;
        percpu_priv_state.rdtscp = 2;
        b = percpu_tscp().ticks;
        c = percpu_tscp_approx().ticks;
        d = percpu_ticks();
        percpu_priv_state.rdtscp = 0;
        e = percpu_tscp().ticks;
        wrong += a > b || b > e || c < a || c > e || d < a || d > e;
    }
    is(wrong, 0, "all ways read one clock");
}

int main(void)
{
    const char *count = getenv("TSCP_MOVES"); /* 100000 for a long run */
    const unsigned moves = count ? (unsigned)atoi(count) : 2500;
    unsigned way;
    look_around(MOST_CPUS);
    (void)this_cpu_id();
    percpu_priv_state.rdtscp = 0;
    (void)percpu_tscp();
    if (percpu_priv_state.rdtscp != 1)
        note("no rdtscp here: the ordered stamps take the other ways");
    ticks_are_of_one_clock();
    for (way = 0; way < WAYS; way++)
        cpu_is_where_the_thread_was_moved((enum way)way, moves / WAYS);
    for (way = 0; way < WAYS; way++)
        stamps_under_a_storm_of_migrations((enum way)way);
    percpu_priv_state.rdtscp = 0;
    return done();
}
