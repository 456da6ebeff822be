/* SPDX-License-Identifier: MIT */
/*
 * cases.c - what is measured, each beside the ways it competes with.
 *
 * Contenders of a case run the same loop: 16 operations per turn, on the same addresses. The loads
 * of what a program-wide constant holds (the offset of the area, the number of CPUs) leave such a
 * loop, for all contenders alike; the case add.barrier keeps them in.
 */
#include "percpu.h"
#include "bench.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef BENCH_LIBRSEQ
#include <rseq/rseq.h>
#endif

/*
 * The loop that all operations are measured in. @op may use what @setup defines, and step, its
 * number within the turn, which is a constant to the compiler.
 */
#define LOOP(function, setup, op, after)                        \
    static NOINLINE void function(struct worker *w, uint64_t n) \
    {                                                           \
        (void)w;                                                \
        setup;                                                  \
        for (uint64_t i = 0; i < n; i += STEP) {                \
            unsigned step = 0;                                  \
            REP16({ op; } step++;)                              \
            (void)step;                                         \
        }                                                       \
        after;                                                  \
    }

/*
 * A list names each contender once: function, name, its count of operations, flags, set-up,
 * operation. CONTENDERS makes its loop from that, and its row in a table.
 */
#define LOOP_OF(function, name, total, flags, setup, op) LOOP(function, setup, op, )
#define ROW_OF(function, name, total, flags, setup, op) {name, function, total, flags},
#define CONTENDERS(table, list) \
    list(LOOP_OF) static const struct contender table[] = {list(ROW_OF)};
#if defined(__x86_64__)
#define ON_X86(x) x
#else
#define ON_X86(x)
#endif

static const struct setting one_thread = {1, 1, 0, 0, 0, 0};

/* Threads for the cases that have several. */
static unsigned threads_of(unsigned otherwise)
{
    return opt.threads ? opt.threads : otherwise;
}

static unsigned system_getcpu(void)
{
    unsigned cpu = 0;
    (void)syscall(SYS_getcpu, &cpu, NULL, NULL);
    return cpu;
}

static unsigned fast_getcpu(void)
{
    unsigned cpu = 0;
    if (vdso_getcpu)
        (void)vdso_getcpu(&cpu, NULL, NULL);
    return cpu;
}

/* ---- cpu_id */

/* The load itself, at an offset from the thread pointer that was found beforehand. */
static intptr_t id_offset(void)
{
#if PERCPU_RSEQ_OFFSET_FROM_OWN
    char *area = (char *)&percpu_rseq_thread_v1 + percpu_priv_state.reach.from_own;
    return area + PERCPU_RSEQ_CPU_ID_OFFSET - percpu_rseq_tp();
#else
    return percpu_priv_state.reach.from_tp + PERCPU_RSEQ_TP_BIAS;
#endif
}

static inline int inline_load(intptr_t off)
{
    int id;
#if defined(__x86_64__)
    __asm__ volatile("movl %%fs:(%1), %0" : "=r"(id) : "r"(off));
#else
    id = *(volatile int *)(void *)(percpu_rseq_tp() + off);
#endif
    return id;
}

int rdtscp_works; /* virtual machines may hide it from cpuid and yet run it, or not run it */
#if defined(__x86_64__)
static inline unsigned bare_rdtscp(void)
{
    uint32_t low, high, aux;
    __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(aux));
    KEEP(low);
    return aux & 0xfff;
}

static sigjmp_buf no_rdtscp;
static void on_sigill(int sig)
{
    siglongjmp(no_rdtscp, sig);
}
static void try_rdtscp(void)
{
    void (*was)(int) = signal(SIGILL, on_sigill);
    if (!sigsetjmp(no_rdtscp, 1)) {
        KEEP(bare_rdtscp());
        rdtscp_works = 1;
    }
    signal(SIGILL, was);
}
static void note_rdtscp(int first)
{
    int i = row_find(first, "rdtscp");
    if (i >= 0 && !percpu_rseq_has_rdtscp())
        snprintf(results[i].note, sizeof results[i].note, "not announced by cpuid");
}
#else
static void try_rdtscp(void) {}
static void note_rdtscp(int first)
{
    (void)first;
}
#endif

#define IDS(X)                                                                        \
    X(id_inline, "inline load of the id", NULL, SECTIONS, intptr_t off = id_offset(), \
      KEEP(inline_load(off)))                                                         \
    X(id_raw, "percpu_cpu_raw", NULL, SECTIONS, , KEEP(percpu_cpu_raw()))             \
    X(id_this, "this_cpu_id", NULL, 0, , KEEP(this_cpu_id()))                         \
    X(id_sched_getcpu, "sched_getcpu of libc", NULL, 0, , KEEP(sched_getcpu()))       \
    X(id_vdso, "getcpu of the vDSO", NULL, 0, , KEEP(fast_getcpu()))                  \
    X(id_syscall, "system call getcpu", NULL, 0, , KEEP(system_getcpu()))             \
    ON_X86(X(id_rdtscp, "rdtscp", NULL, RDTSCP, , KEEP(bare_rdtscp())))
CONTENDERS(ids, IDS)

static void case_cpu_id(void)
{
    try_rdtscp();
    int first = measure("cpu_id", ids, ARRAY_LENGTH(ids), &one_thread);
    note_rdtscp(first);
    target_set(first, "percpu_cpu_raw", "inline load of the id", AT_MOST, 1.05);
    target_set(first, "this_cpu_id", "getcpu of the vDSO", AT_LEAST, 5);
}

static void case_cpu_id_refused(void)
{
    try_rdtscp();
    note_rdtscp(measure("cpu_id.refused", ids, ARRAY_LENGTH(ids), &one_thread));
}

/* ---- add */

enum { MAX_COUNTERS = 4096 };
uint64_t *pc_words; /* copy 0 of MAX_COUNTERS per-CPU words */
static struct percpu_counter handles[MAX_COUNTERS];
static uint64_t shared[MAX_COUNTERS];
static __thread uint64_t own[MAX_COUNTERS];
static uint64_t own_total;
static size_t mask; /* counters - 1 */

static inline uint64_t *at(uint64_t *p, unsigned cpu)
{
    return percpu_ptr(p, cpu);
}
static inline void atomic_inc(uint64_t *p)
{
    (void)__atomic_fetch_add(p, 1, __ATOMIC_RELAXED);
}
static inline void plain_inc(uint64_t *p)
{
    ++*p;
    IN_MEMORY(*p);
}

/* The library's add without the protection: no arming store, no bound. The same addressing. */
static inline void unprotected_inc(uint64_t *p)
{
#if PERCPU_RSEQ_SECTIONS && defined(__x86_64__) && PERCPU_RSEQ_OFFSET_FROM_OWN
    __asm__ volatile("movl " PERCPU_RSEQ_X86_CPU ", %%ecx\n\tshlq $" PERCPU_RSEQ_SHIFT ", %%rcx\n\t"
                     "addq $1, (%[p], %%rcx)"
                     :
                     : [off] "r"(percpu_priv_state.reach.from_own), [p] "r"(p)
                     : "rcx", "cc");
#else
    plain_inc(at(p, (unsigned)percpu_cpu_raw()));
#endif
}

static uint64_t words_total(void)
{
    uint64_t sum = 0, *copy;
    percpu_for_each_copy(pc_words, copy) for (size_t k = 0; k <= mask; k++) sum += copy[k];
    return sum;
}
static uint64_t shared_total(void)
{
    uint64_t sum = 0;
    for (size_t k = 0; k <= mask; k++)
        sum += shared[k];
    return sum;
}
static uint64_t handles_total(void)
{
    uint64_t sum = 0;
    for (size_t k = 0; k <= mask; k++)
        sum += percpu_counter_sum(&handles[k]);
    return sum;
}
static uint64_t own_words(void)
{
    uint64_t sum = 0;
    for (size_t k = 0; k <= mask; k++)
        sum += own[k];
    return sum;
}
static uint64_t own_sum(void)
{
    return __atomic_load_n(&own_total, __ATOMIC_RELAXED);
}

#ifdef BENCH_LIBRSEQ
/* As its documentation does it: read the id, operate if still there, else again. */
static inline void librseq_inc(uint64_t *base)
{
    for (;;) {
        int cpu = (int)rseq_cpu_start();
        if (__builtin_expect(!rseq_load_add_store__ptr(RSEQ_MO_RELAXED, RSEQ_PERCPU_CPU_ID,
                                                       (intptr_t *)at(base, (unsigned)cpu), 1, cpu),
                             1))
            return;
    }
}
#define WITH_LIBRSEQ(x) x
#else
#define WITH_LIBRSEQ(x)
#endif

#define WORDS uint64_t *p = pc_words
#define OWN_BEFORE const uint64_t had = own_words()
#define OWN_AFTER (void)__atomic_fetch_add(&own_total, own_words() - had, __ATOMIC_RELAXED)
#ifdef BENCH_SLOW_ADD /* to see bench/compare find it: an add that does a fifth more */
#define SLOWER    \
    if (step < 3) \
    this_cpu_add(p[1000 + step], 0)
#else
#define SLOWER
#endif
/* The adds to counter k. Behind the operation: what comes after the loop. */
#define ADDS(X, k)                                                                                \
    X(unprotected, "per-CPU add, unprotected", words_total, SECTIONS | RACY, WORDS,               \
      unprotected_inc(&p[k]), )                                                                   \
    X(protected, "this_cpu_inc", words_total, 0, WORDS, this_cpu_inc(p[k]); SLOWER, )             \
    X(handle, "percpu_counter_inc", handles_total, 0, , percpu_counter_inc(&handles[k]), )        \
    WITH_LIBRSEQ(X(librseq, "librseq's add", words_total, SECTIONS, WORDS, librseq_inc(&p[k]), )) \
    X(slot_raw, "per-CPU atomic, raw id", words_total, SECTIONS, WORDS,                           \
      atomic_inc(at(&p[k], (unsigned)percpu_cpu_raw())), )                                        \
    X(slot_getcpu, "per-CPU atomic, sched_getcpu", words_total, 0, WORDS,                         \
      atomic_inc(at(&p[k], (unsigned)sched_getcpu())), )                                          \
    X(own, "thread-local add", own_sum, 0, OWN_BEFORE, plain_inc(&own[k]), OWN_AFTER)             \
    X(shared, "shared atomic", shared_total, 0, , atomic_inc(&shared[k]), )

/*
 * Each three times: on one counter; on the next of a few counters each time; on one counter with
 * the compiler kept from carrying anything from one operation to the next.
 */
#define NEXT ((i + step) & mask_)
#define LOOP_ONE(add, name, total, flags, setup, op, after) LOOP(add##_one, setup, op, after)
#define LOOP_TURN(add, name, total, flags, setup, op, after) \
    LOOP(add##_turn, setup; const size_t mask_ = mask, op, after)
#define LOOP_BARRIER(add, name, total, flags, setup, op, after) \
    LOOP(add##_barrier, setup, op; COMPILER_BARRIER(), after)
#define ROW_ONE(add, name, total, flags, setup, op, after) {name, add##_one, total, flags},
#define ROW_TURN(add, name, total, flags, setup, op, after) {name, add##_turn, total, flags},
#define ROW_BARRIER(add, name, total, flags, setup, op, after) {name, add##_barrier, total, flags},
ADDS(LOOP_ONE, 0)
ADDS(LOOP_TURN, NEXT)
ADDS(LOOP_BARRIER, 0)
static const struct contender adds_one[] = {ADDS(ROW_ONE, )};
static const struct contender adds_turn[] = {ADDS(ROW_TURN, )};
static const struct contender adds_barrier[] = {ADDS(ROW_BARRIER, )};

static void words_make(void)
{
    if (!pc_words)
        pc_words = (uint64_t *)percpu_alloc(MAX_COUNTERS * sizeof *pc_words, 64);
    if (!pc_words)
        fail("percpu_alloc: %s", strerror(errno));
}

static void add(const char *group, const struct contender *list, unsigned counters,
                unsigned threads, int unpinned)
{
    struct setting s = {threads, counters, unpinned || opt.unpinned, 0, 0, 0};
    words_make();
    mask = counters - 1;
    int first = measure(group, list, ARRAY_LENGTH(adds_one), &s);
    if (threads > 1)
        return;
    if (list == adds_one) {
        target_set(first, "this_cpu_inc", "per-CPU add, unprotected", AT_MOST, 1.25);
        target_set(first, "this_cpu_inc", "per-CPU atomic, raw id", AT_LEAST, 8);
        target_set(first, "this_cpu_inc", "librseq's add", AT_MOST, 0.9);
        target_set(first, "percpu_counter_inc", "per-CPU add, unprotected", AT_MOST, 1.6);
    }
}

static void case_add(void)
{
    unsigned counters = opt.counters ? opt.counters : 1;
    add("add", counters > 1 ? adds_turn : adds_one, counters, threads_of(1), 0);
}
static void case_add_barrier(void)
{
    add("add.barrier", adds_barrier, 1, threads_of(1), 0);
}
static void case_add_turn(void)
{
    add("add.counters", adds_turn, opt.counters ? opt.counters : 64, threads_of(1), 0);
}
static void case_add_threads(void)
{
    add("add.threads", adds_one, 1, threads_of(ncpu), 0);
}
static void case_add_unpinned(void)
{
    add("add.unpinned", adds_one, 1, threads_of(ncpu), 1);
}
static void case_add_crowd(void)
{
    add("add.crowd", adds_one, 1, threads_of(4 * ncpu), 1);
}

/* ---- events: many threads, sets of many events */

enum { SETS = 50, SET_THREADS = 500, EVENTS = 1500, PICKS = 64 };
static struct percpu_counters sets[SETS], parent, children_sets[SETS], shared_sets[SETS];
static uint64_t *set_words[SETS]; /* per-CPU rows of the baselines */
static unsigned picks[PICKS];     /* events in the order they happen */

static void events_make(void)
{
    unsigned x = 1;
    if (set_words[0])
        return;
    for (int i = 0; i < PICKS; i++) {
        x = x * 1103515245u + 12345u;
        picks[i] = x / 65536u % EVENTS;
    }
    int failed = percpu_counters_init(&parent, EVENTS, NULL, 0);
    for (int i = 0; i < SETS; i++) {
        failed |= percpu_counters_init(&sets[i], EVENTS, NULL, 0);
        failed |= percpu_counters_init(&children_sets[i], EVENTS, &parent, 0);
        failed |= percpu_counters_init(&shared_sets[i], EVENTS, NULL, PERCPU_COUNTERS_SHARED);
        set_words[i] = (uint64_t *)percpu_alloc(EVENTS * sizeof(uint64_t), 64);
        failed |= !set_words[i];
    }
    if (failed)
        fail("sets of events: %s", strerror(errno));
}

static uint64_t total_of_sets(struct percpu_counters *list, size_t n)
{
    static percpu_word out[EVENTS];
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        percpu_counters_snapshot(&list[i], out);
        for (int e = 0; e < EVENTS; e++)
            sum += out[e];
    }
    return sum;
}
static uint64_t sets_total(void)
{
    return total_of_sets(sets, SETS);
}
static uint64_t children_total(void)
{
    return total_of_sets(&parent, 1);
}
static uint64_t shared_sets_total(void)
{
    return total_of_sets(shared_sets, SETS);
}
static uint64_t rows_total(void)
{
    uint64_t sum = 0, *copy;
    for (int i = 0; i < SETS; i++)
        percpu_for_each_copy(set_words[i], copy) for (int e = 0; e < EVENTS; e++) sum += copy[e];
    return sum;
}

#define PICK picks[(i + step) & (PICKS - 1)]
#define ROW_WORDS uint64_t *p = set_words[w->id % SETS]
#define A_SET(of) struct percpu_counters *s = &of[w->id % SETS]
#define EVENT_ADDS(X)                                                                             \
    X(event_raw, "atomic rows, raw id", rows_total, SECTIONS, ROW_WORDS,                          \
      atomic_inc(at(&p[PICK], (unsigned)percpu_cpu_raw())))                                       \
    X(event_getcpu, "atomic rows, sched_getcpu", rows_total, 0, ROW_WORDS,                        \
      atomic_inc(at(&p[PICK], (unsigned)sched_getcpu())))                                         \
    X(event_unprotected, "rows, unprotected", rows_total, SECTIONS | RACY, ROW_WORDS,             \
      unprotected_inc(&p[PICK]))                                                                  \
    X(event_set, "percpu_counters_inc", sets_total, 0, A_SET(sets), percpu_counters_inc(s, PICK)) \
    X(event_child, "percpu_counters_inc with a parent", children_total, 0, A_SET(children_sets),  \
      percpu_counters_inc(s, PICK))                                                               \
    X(event_shared, "percpu_counters_inc, one shared row", shared_sets_total, 0,                  \
      A_SET(shared_sets), percpu_counters_inc(s, PICK))
CONTENDERS(events, EVENT_ADDS)

static void case_events(void)
{
    struct setting s = {threads_of(SET_THREADS), SETS * EVENTS, 1, 0, 64 * 1024, 0};
    double time_ms = opt.time_ms;
    events_make();
    /* Each thread's share, long enough to be worth the switch to it. */
    opt.time_ms = time_ms / 20;
    int first = measure("events", events, ARRAY_LENGTH(events), &s);
    opt.time_ms = time_ms;
    target_set(first, "percpu_counters_inc", "atomic rows, raw id", AT_LEAST, 5);
    target_set(first, "percpu_counters_inc", "atomic rows, sched_getcpu", AT_LEAST, 5);
}

/* ---- events.read */

static percpu_word out_words[EVENTS];

static NOINLINE uint64_t sum_row(const percpu_word *row, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += row[i];
    return sum;
}
/*
 * The same with vectors of 16 bytes, which every x86-64 and aarch64 has, two sums at a time: near
 * what memory gives.
 */
typedef percpu_word vector __attribute__((vector_size(16), aligned(8), may_alias));
static NOINLINE uint64_t sum_row_wide(const percpu_word *row, size_t n)
{
    vector a = {0}, b = {0};
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        a += *(const vector *)(const void *)(row + i);
        b += *(const vector *)(const void *)(row + i + 2);
    }
    uint64_t sum = 0;
    for (int k = 0; k < 2; k++)
        sum += a[k] + b[k];
    for (; i < n; i++)
        sum += row[i];
    return sum;
}
static NOINLINE void add_row(percpu_word *__restrict out, const percpu_word *__restrict row,
                             size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] += row[i];
}
static NOINLINE void add_row_wide(percpu_word *__restrict out, const percpu_word *__restrict row,
                                  size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        vector *to = (vector *)(void *)(out + i);
        const vector *from = (const vector *)(const void *)(row + i);
        to[0] += from[0];
        to[1] += from[1];
    }
    for (; i < n; i++)
        out[i] += row[i];
}

#define READ_LOOP(function, name, op)                               \
    static NOINLINE void function(struct worker *w, uint64_t n)     \
    {                                                               \
        percpu_word *base = sets[0].chunk[0], *copy;                \
        size_t events_ = EVENTS; /* not for the compiler to know */ \
        __asm__("" : "+r"(events_));                                \
        (void)events_;                                              \
        (void)w;                                                    \
        (void)base;                                                 \
        (void)copy;                                                 \
        for (uint64_t i = 0; i < n; i++) {                          \
            op;                                                     \
            COMPILER_BARRIER();                                     \
        }                                                           \
    }
#define READ_ROW(function, name, op) {name, function, NULL, 0},
#define EACH_ROW(of_copy) percpu_for_each_copy(base, copy) of_copy
#define ROWS_INTO_OUT(add)                  \
    memset(out_words, 0, sizeof out_words); \
    EACH_ROW(add(out_words, copy, events_))
#define READS(X)                                                                                \
    X(read_loop, "summing loop", EACH_ROW(KEEP(sum_row(copy, events_))))                        \
    X(read_loop_wide, "summing loop, 16-byte vectors",                                          \
      EACH_ROW(KEEP(sum_row_wide(copy, events_))))                                              \
    X(read_rows, "rows added up, loop", ROWS_INTO_OUT(add_row))                                 \
    X(read_rows_wide, "rows added up, 16-byte vectors", ROWS_INTO_OUT(add_row_wide))            \
    X(read_snapshot, "percpu_counters_snapshot", percpu_counters_snapshot(&sets[0], out_words)) \
    X(read_one, "percpu_counters_sum of one event", KEEP(percpu_counters_sum(&sets[0], 7)))
READS(READ_LOOP)
static const struct contender reads[] = {READS(READ_ROW)};

static void note_bandwidth(int first, int n, double bytes)
{
    for (int i = first; first >= 0 && i < first + n; i++) {
        double sum = 0;
        for (unsigned k = 0; k < results[i].reps; k++)
            sum += results[i].sample[k];
        snprintf(results[i].note, sizeof results[i].note, "%.3g GB/s",
                 bytes / (sum / results[i].reps));
    }
}

static int stop_writing;
static void *write_events(void *arg)
{
    struct percpu_counters *s = &sets[0];
    (void)arg;
    while (!__atomic_load_n(&stop_writing, __ATOMIC_RELAXED))
        for (unsigned e = 0; e < EVENTS; e++)
            percpu_counters_inc(s, e);
    return NULL;
}

static void read_events(const char *group, int others)
{
    struct setting s = {1, EVENTS, 0, 0, 0, others};
    unsigned copies = percpu_priv_copies(sets[0].chunk[0]);
    int first = measure(group, reads, ARRAY_LENGTH(reads), &s);
    note_bandwidth(first, 5, (double)copies * EVENTS * sizeof(percpu_word));
    target_set(first, "percpu_counters_snapshot", "summing loop", AT_MOST, 1.2);
}

static void case_events_read(void)
{
    events_make();
    pthread_t writer;
    read_events("events.read", 0);
    stop_writing = 0;
    if (pthread_create(&writer, NULL, write_events, NULL))
        fail("no thread to write with");
    read_events("events.read.busy", 1);
    __atomic_store_n(&stop_writing, 1, __ATOMIC_RELAXED);
    pthread_join(writer, NULL);
}

/* ---- tscp */

static inline uint64_t ordered_ticks(void)
{
#ifdef PERCPU_RSEQ_TICKS
    return percpu_rseq_ticks_ordered();
#else
    return percpu_ticks();
#endif
}
#define KEEP_BOTH(stamp)                \
    const struct percpu_tscp t = stamp; \
    KEEP(t.ticks);                      \
    KEEP(t.cpu)
#define TSCPS(X)                                                                                   \
    X(tscp_exact, "percpu_tscp", NULL, 0, , KEEP_BOTH(percpu_tscp()))                              \
    X(tscp_approx, "percpu_tscp_approx", NULL, 0, , KEEP_BOTH(percpu_tscp_approx()))               \
    X(tscp_two, "raw id, then ticks, unprotected", NULL, SECTIONS | RACY, ,                        \
      KEEP(percpu_cpu_raw());                                                                      \
      KEEP(percpu_ticks()))                                                                        \
    X(tscp_ticks, "percpu_ticks", NULL, 0, , KEEP(percpu_ticks()))                                 \
    X(tscp_ordered, "ticks, ordered", NULL, 0, , KEEP(ordered_ticks()))                            \
    X(tscp_clock, "clock_gettime", NULL, 0, struct timespec t, clock_gettime(CLOCK_MONOTONIC, &t); \
      KEEP(t.tv_nsec))
TSCPS(LOOP_OF)
static const struct contender tscps[] = {
#if defined(__x86_64__)
    {"rdtscp", id_rdtscp, NULL, RDTSCP},
#endif
    TSCPS(ROW_OF)};

static void case_tscp(void)
{
    try_rdtscp();
    int first = measure("tscp", tscps, ARRAY_LENGTH(tscps), &one_thread);
    note_rdtscp(first);
    target_set(first, "percpu_tscp_approx", "rdtscp", AT_LEAST, 1.33);
}

/* ---- gauge */

static struct percpu_gauge gauge;
static struct {
    double value;
    uint64_t ticks;
    pthread_mutex_t lock;
} locked_gauge = {0, 0, PTHREAD_MUTEX_INITIALIZER};

static inline void locked_set(double v)
{
    pthread_mutex_lock(&locked_gauge.lock);
    locked_gauge.value = v;
    locked_gauge.ticks = ordered_ticks();
    pthread_mutex_unlock(&locked_gauge.lock);
}
#define GAUGES(X)                                                                           \
    X(gauge_set, "percpu_gauge_set", NULL, 0, , percpu_gauge_set(&gauge, 1.5))              \
    X(gauge_get, "percpu_gauge_get", NULL, 0, double v, (void)percpu_gauge_get(&gauge, &v); \
      IN_MEMORY(v))                                                                         \
    X(gauge_locked, "value and time under a mutex", NULL, 0, , locked_set(1.5))
GAUGES(LOOP_OF)
static const struct contender gauges[] = {{"ordered counter read", tscp_ordered, NULL, 0},
                                          GAUGES(ROW_OF)};

static void case_gauge(void)
{
    int first = measure("gauge", gauges, ARRAY_LENGTH(gauges), &one_thread);
    target_set(first, "percpu_gauge_set", "ordered counter read", PLUS, 2);
}

/* ---- freelist */

struct node {
    struct node *next;
    char payload[56];
};
static struct percpu_freelist cache;
static struct {
    pthread_mutex_t lock;
    struct node *head;
} locked = {PTHREAD_MUTEX_INITIALIZER, NULL};
static uint64_t tagged __attribute__((aligned(64))); /* 48 bits of pointer, 16 of tag */
static uint64_t nodes_made;

static NOINLINE struct node *node_make(void)
{
    struct node *n = (struct node *)aligned_alloc(64, sizeof *n);
    if (!n)
        fail("out of memory");
    (void)__atomic_fetch_add(&nodes_made, 1, __ATOMIC_RELAXED);
    return n;
}

static inline struct node *locked_pop(void)
{
    pthread_mutex_lock(&locked.lock);
    struct node *n = locked.head;
    if (n)
        locked.head = n->next;
    pthread_mutex_unlock(&locked.lock);
    return n;
}
static inline void locked_push(struct node *n)
{
    pthread_mutex_lock(&locked.lock);
    n->next = locked.head;
    locked.head = n;
    pthread_mutex_unlock(&locked.lock);
}

/* An atomic stack with a count in the pointer's high bits against ABA; nodes are never unmapped. */
#define TAG ((uint64_t)1 << 48)
static inline struct node *tagged_node(uint64_t v)
{
    return (struct node *)(uintptr_t)(v & (TAG - 1));
}
static inline struct node *tagged_pop(void)
{
    uint64_t old = __atomic_load_n(&tagged, __ATOMIC_ACQUIRE), new;
    do {
        if (!tagged_node(old))
            return NULL;
        struct node *next = __atomic_load_n(&tagged_node(old)->next, __ATOMIC_RELAXED);
        new = (uint64_t)(uintptr_t)next | ((old & ~(TAG - 1)) + TAG);
    } while (
        !__atomic_compare_exchange_n(&tagged, &old, new, 1, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE));
    return tagged_node(old);
}
static inline void tagged_push(struct node *n)
{
    uint64_t old = __atomic_load_n(&tagged, __ATOMIC_RELAXED), new;
    do {
        __atomic_store_n(&n->next, tagged_node(old), __ATOMIC_RELAXED);
        new = (uint64_t)(uintptr_t)n | (old & ~(TAG - 1));
    } while (
        !__atomic_compare_exchange_n(&tagged, &old, new, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

#define POP_PUSH(pop, push)              \
    struct node *x = (struct node *)pop; \
    if (__builtin_expect(!x, 0))         \
        x = node_make();                 \
    KEEP(x);                             \
    push
#define MAKE_FREE(make, give) \
    void *x = make;           \
    KEEP(x);                  \
    give(x)
#define LISTS(X)                                                                            \
    X(list_percpu, "percpu_freelist pop + push", NULL, 0, ,                                 \
      POP_PUSH(percpu_freelist_pop(&cache), percpu_freelist_push(&cache, x)))               \
    X(list_tagged, "atomic stack", NULL, 0, , POP_PUSH(tagged_pop(), tagged_push(x)))       \
    X(list_locked, "list under a mutex", NULL, 0, , POP_PUSH(locked_pop(), locked_push(x))) \
    X(list_malloc, "malloc + free", NULL, 0, , MAKE_FREE(malloc(sizeof(struct node)), free))
CONTENDERS(lists, LISTS)

/* All nodes that were made are in one of the lists, once. */
static uint64_t nodes_found(void)
{
    uint64_t found = 0;
    unsigned cpu;
    struct node *n, *all = NULL;
    for (n = locked.head; n; n = n->next)
        found++;
    for (n = tagged_node(tagged); n; n = n->next)
        found++;
    percpu_for_each_cpu(cpu)
    {
        void *chain;
        (void)percpu_freelist_drain(&cache, cpu, &chain);
        for (; (n = (struct node *)chain) != NULL && found <= nodes_made; found++) {
            chain = n->next;
            n->next = all;
            all = n;
        }
    }
    while ((n = all) != NULL) {
        all = n->next;
        percpu_freelist_push(&cache, n);
    }
    return found;
}

static void freelist(const char *group, unsigned threads)
{
    struct setting s = {threads, 1, opt.unpinned, 0, 0, 0};
    int first = measure(group, lists, ARRAY_LENGTH(lists), &s);
    uint64_t found = nodes_found();
    for (int i = first; i < n_rows && found != nodes_made; i++)
        results[i].failed = 1;
    if (threads > 1)
        return;
    target_set(first, "percpu_freelist pop + push", "list under a mutex", AT_LEAST, 5);
    target_set(first, "percpu_freelist pop + push", "atomic stack", AT_LEAST, 3);
}
static void case_freelist(void)
{
    freelist("freelist", threads_of(1));
}
static void case_freelist_threads(void)
{
    freelist("freelist.threads", threads_of(ncpu));
}

/* ---- alloc */

static size_t padded; /* the usual array of one cache line per CPU */
enum { BATCH = 4096 };
#define ALLOC_BATCH(function, make, give)                       \
    static NOINLINE void function(struct worker *w, uint64_t n) \
    {                                                           \
        static void *p[BATCH];                                  \
        (void)w;                                                \
        for (uint64_t done = 0; done < n;) {                    \
            uint64_t m = n - done < BATCH ? n - done : BATCH;   \
            for (uint64_t i = 0; i < m; i++)                    \
                p[i] = make;                                    \
            for (uint64_t i = 0; i < m; i++)                    \
                (void)give(p[i]);                               \
            done += m;                                          \
        }                                                       \
    }
#define ALLOC_LOOPS(what, made, given, make, give)      \
    LOOP(alloc_##what, , MAKE_FREE(make, (void)give), ) \
    ALLOC_BATCH(batch_##what, make, give)
#define ROW_SINGLE(what, made, given, make, give) {made " + " given, alloc_##what, NULL, 0},
#define ROW_BATCH(what, made, given, make, give) \
    {"4096 x " made ", then " given, batch_##what, NULL, 0},
#define ALLOCS(X)                                                            \
    X(malloc, "malloc(8)", "free", malloc(8), free)                          \
    X(padded, "calloc of 64 bytes per CPU", "free", calloc(1, padded), free) \
    X(percpu, "percpu_alloc(8)", "percpu_free", percpu_alloc(8, 8), percpu_free)
ALLOCS(ALLOC_LOOPS)
static const struct contender allocs[] = {ALLOCS(ROW_SINGLE) ALLOCS(ROW_BATCH)};

static void case_alloc(void)
{
    padded = (size_t)64 * percpu_nr_cpus();
    measure("alloc", allocs, ARRAY_LENGTH(allocs), &one_thread);
}

/* ---- fallback */

LOOP(slot_vdso, WORDS, atomic_inc(at(p, fast_getcpu())), )
LOOP(event_one, struct percpu_counters *s = &sets[0], percpu_counters_inc(s, 7), )

static const struct contender fallbacks[] = {
    {"per-CPU atomic, sched_getcpu", slot_getcpu_one, words_total, 0},
    {"per-CPU atomic, getcpu of the vDSO", slot_vdso, words_total, 0},
    {"this_cpu_inc", protected_one, words_total, 0},
    {"percpu_counter_inc", handle_one, handles_total, 0},
    {"percpu_counters_inc", event_one, sets_total, 0},
    {"percpu_freelist pop + push", list_percpu, NULL, 0},
    {"percpu_gauge_set", gauge_set, NULL, 0},
    {"percpu_tscp_approx", tscp_approx, NULL, 0},
    {"shared atomic", shared_one, shared_total, 0},
    {"thread-local add", own_one, own_sum, 0},
};
static const struct contender forced[] = {
    {"per-CPU atomic, sched_getcpu", slot_getcpu_one, words_total, 0},
    {"this_cpu_inc, PERCPU_FORCE_FALLBACK", forced_this_cpu_inc, words_total, 0},
};

/* In a child that may do nothing but exit: how far does it get? Return: 1 all the way. */
static int without_system_calls(void (*run)(struct worker *, uint64_t))
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {ARRAY_LENGTH(code), code};
    struct worker w = {0};
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        run(&w, STEP); /* the first one may look around */
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            _exit(1);
        run(&w, 1 << 20);
        _exit(0);
    }
    if (pid > 0)
        waitpid(pid, &status, 0);
    return status == 0;
}

static void case_fallback(void)
{
    words_make();
    mask = 0;
    events_make();
    int first = measure("fallback", fallbacks, ARRAY_LENGTH(fallbacks), &one_thread);
    int add_row = row_find(first, "this_cpu_inc");
    target_set(first, "this_cpu_inc", "per-CPU atomic, sched_getcpu", AT_MOST, 1);
    target_set(first, "percpu_counter_inc", "per-CPU atomic, sched_getcpu", AT_MOST, 1);
    if (without_system_calls(protected_one)) {
        snprintf(results[add_row].note, sizeof results[add_row].note,
                 "0 system calls in 1,048,576");
    } else {
        snprintf(results[add_row].note, sizeof results[add_row].note, "MAKES SYSTEM CALLS");
        results[add_row].failed = 1;
    }
}

static void case_fallback_forced(void)
{
    words_make();
    mask = 0;
    measure("fallback.forced", forced, ARRAY_LENGTH(forced), &one_thread);
}

/* ---- first_use */

static uint64_t first_ns;
static void *do_nothing(void *arg)
{
    return arg;
}

/* What clock_gettime itself takes is in both, and is taken off. */
#define TIMED(name, op)                                              \
    static void *name(void *arg)                                     \
    {                                                                \
        uint64_t a = now(CLOCK_MONOTONIC), b = now(CLOCK_MONOTONIC); \
        op;                                                          \
        uint64_t c = now(CLOCK_MONOTONIC);                           \
        first_ns += c - b > b - a ? c - b - (b - a) : 0;             \
        return arg;                                                  \
    }
TIMED(first_inc, this_cpu_inc(*pc_words))
TIMED(first_register, (void)percpu_thread_register())

static void in_threads(struct worker *w, uint64_t n, void *(*start)(void *))
{
    uint64_t began = now(CLOCK_MONOTONIC);
    first_ns = 0;
    for (uint64_t i = 0; i < n; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, start, NULL))
            fail("no more threads");
        pthread_join(t, NULL);
    }
    w->measured = start == do_nothing ? now(CLOCK_MONOTONIC) - began : first_ns + 1;
}
#define USE_LOOP(function, name, start)                \
    static void function(struct worker *w, uint64_t n) \
    {                                                  \
        in_threads(w, n, start);                       \
    }
#define USE_ROW(function, name, start) {name, function, NULL, WALL},
#define USES(X)                                                \
    X(use_thread, "pthread_create + pthread_join", do_nothing) \
    X(use_first, "first this_cpu_inc of a thread", first_inc)  \
    X(use_register, "percpu_thread_register as the first", first_register)
USES(USE_LOOP)
static const struct contender uses[] = {USES(USE_ROW)};

static void first_use(const char *group)
{
    uint64_t ops = opt.ops;
    words_make();
    opt.ops = ops ? ops : 2 * STEP; /* threads per epoch */
    measure(group, uses, ARRAY_LENGTH(uses), &one_thread);
    opt.ops = ops;
}
static void case_first_use(void)
{
    first_use("first_use");
}
static void case_first_use_refused(void)
{
    first_use("first_use.refused");
}

/* ---- fence */

static unsigned other_cpu, this_one;
#define FENCES(X)                                                                                \
    X(fence_system, "membarrier, private expedited", NULL, WALL, ,                               \
      (void)syscall(SYS_membarrier, 1 << 3, 0, 0))                                               \
    X(fence_all, "percpu_fence", NULL, WALL, , (void)percpu_fence())                             \
    X(fence_other, "percpu_fence_cpu of another CPU", NULL, WALL, ,                              \
      (void)percpu_fence_cpu(other_cpu))                                                         \
    X(fence_own, "percpu_fence_cpu of this CPU", NULL, WALL, , (void)percpu_fence_cpu(this_one)) \
    X(fence_atomic, "fence instruction of this CPU", NULL, 0, ,                                  \
      __atomic_thread_fence(__ATOMIC_SEQ_CST))
CONTENDERS(fences, FENCES)

static void fence(const char *group, int others)
{
    struct setting s = {1, 1, 0, 0, 0, others};
    measure(group, fences, ARRAY_LENGTH(fences), &s);
}

static void case_fence(void)
{
    pthread_t writer;
    this_one = (unsigned)opt.cpus[0];
    other_cpu = (unsigned)opt.cpus[opt.n_cpus - 1];
    (void)syscall(SYS_membarrier, 1 << 4, 0, 0); /* REGISTER_PRIVATE_EXPEDITED */
    events_make();
    fence("fence", 0);
    stop_writing = 0;
    if (pthread_create(&writer, NULL, write_events, NULL))
        fail("no thread to write with");
    fence("fence.busy", 1);
    __atomic_store_n(&stop_writing, 1, __ATOMIC_RELAXED);
    pthread_join(writer, NULL);
}

/* ---- scale */

static void case_scale(void)
{
    unsigned most = threads_of(ncpu);
    words_make();
    mask = 0;
    for (unsigned t = 1;; t = 2 * t < most ? 2 * t : most) {
        struct setting s = {t, 1, opt.unpinned, 0, 0, 0};
        measure("scale", adds_one, ARRAY_LENGTH(adds_one), &s);
        if (t >= most)
            break;
    }
}

enum { MANY = 1 << 16 }; /* counters in the case memory */

/* A number from /proc/self/status, in bytes. */
static double status_bytes(const char *key)
{
    char line[256];
    double kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            kb = strtod(line + strlen(key) + 1, NULL);
    if (f)
        fclose(f);
    return kb * 1024;
}

static void row_value(const char *group, const char *name, const char *unit, double v)
{
    struct row *r = row_new(group, name);
    snprintf(r->unit, sizeof r->unit, "%s", unit);
    r->base = -1;
    r->reps = 1;
    r->counters = !strcmp(group, "memory") ? MANY : EVENTS;
    r->pinned = 1;
    r->sample[0] = v;
}

/* In a child: percpu_nr_cpus() is what the parent asked for. */
static void case_scale_rows_child(void)
{
    static const struct contender both[] = {
        {"summing loop", read_loop, NULL, 0},
        {"percpu_counters_snapshot", read_snapshot, NULL, 0},
        {"percpu_counters_sum of one event", read_one, NULL, 0},
    };
    struct setting s = {1, EVENTS, 0, 0, 0, 0};
    char group[32];
    double size = status_bytes("VmSize"), rss = status_bytes("VmRSS"), pte = status_bytes("VmPTE");
    snprintf(group, sizeof group, "scale.rows, %u CPUs", percpu_nr_cpus());
    if (percpu_counters_init(&sets[0], EVENTS, NULL, 0))
        fail("a set of events for %u CPUs: %s", percpu_nr_cpus(), strerror(errno));
    for (unsigned e = 0; e < EVENTS; e++)
        percpu_counters_inc(&sets[0], e);
    size = status_bytes("VmSize") - size;
    rss = status_bytes("VmRSS") - rss;
    int first = measure(group, both, ARRAY_LENGTH(both), &s);
    note_bandwidth(first, 2, (double)percpu_nr_cpus() * EVENTS * sizeof(percpu_word));
    row_value(group, "address space of the arena", "bytes", size);
    row_value(group, "resident after one CPU wrote", "bytes", rss);
    row_value(group, "page tables after a snapshot", "bytes", status_bytes("VmPTE") - pte);
}

static void case_scale_rows(void)
{
    unsigned real = percpu_nr_cpus();
    run_child("scale.rows.child", 0, real);
    for (unsigned n = 128; n <= 8192; n *= 8)
        if (n > real)
            run_child("scale.rows.child", 0, n);
}

/* ---- memory */

static uint64_t *many[MANY];

static void *write_all(void *arg)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t) * (int *)arg, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (int i = 0; i < MANY; i++)
        this_cpu_inc(*many[i]);
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* Resident bytes of the pages that hold the counters, in the copies of all CPUs. */
static double resident(void)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    double bytes = 0;
    qsort(many, MANY, sizeof *many, ascending);
    for (int i = 0; i < MANY; i++) {
        if (i && (uintptr_t)many[i] / page == (uintptr_t)many[i - 1] / page)
            continue;
        uint64_t *copy;
        percpu_for_each_copy(many[i], copy)
        {
            unsigned char in = 0;
            (void)mincore((void *)((uintptr_t)copy & ~(page - 1)), page, &in);
            bytes += in & 1 ? (double)page : 0;
        }
    }
    return bytes;
}

static void case_memory_child(void)
{
    pthread_t t;
    memset(many, 255, sizeof many); /* its pages are not what is measured */
    if (pthread_create(&t, NULL, do_nothing, NULL) || pthread_join(t, NULL))
        fail("no thread to write with");
    double rss = status_bytes("VmRSS");
    for (int i = 0; i < MANY; i++)
        if (!(many[i] = (uint64_t *)percpu_alloc(8, 8)))
            fail("out of memory");
    for (int i = 0; i < opt.n_cpus; i++) {
        if (pthread_create(&t, NULL, write_all, &opt.cpus[i]))
            fail("no thread to write with");
        pthread_join(t, NULL);
    }
    rss = status_bytes("VmRSS") - rss;
    double per = (double)MANY * opt.n_cpus;
    int first = n_rows;
    row_value("memory", "in the rows, per counter and CPU that used it", "bytes", resident() / per);
    row_value("memory", "resident growth, per counter and CPU", "bytes", rss / per);
    row_value("memory", "handle: struct percpu_counter", "bytes",
              (double)sizeof(struct percpu_counter));
    target_set(first, "in the rows, per counter and CPU that used it", NULL, AT_MOST, 8);
}
static void case_memory(void)
{
    run_child("memory.child", 0, 0);
}

const struct bench_case cases[] = {
    {"cpu_id", "which CPU am I on", case_cpu_id, 0},
    {"cpu_id.refused", "the same, with rseq refused", case_cpu_id_refused, 1},
    {"add", "one counter", case_add, 0},
    {"add.barrier", "one counter, nothing carried from one add to the next", case_add_barrier, 0},
    {"add.counters", "64 counters in turn", case_add_turn, 0},
    {"add.threads", "a thread per CPU, each pinned to its own", case_add_threads, 0},
    {"add.unpinned", "a thread per CPU, not pinned", case_add_unpinned, 0},
    {"add.crowd", "four threads per CPU, not pinned", case_add_crowd, 0},
    {"events", "500 threads, 50 sets of 1500 events", case_events, 0},
    {"events.read", "read 1500 events, idle and while they are written", case_events_read, 0},
    {"tscp", "time and CPU", case_tscp, 0},
    {"gauge", "last value", case_gauge, 0},
    {"freelist", "object cache", case_freelist, 0},
    {"freelist.threads", "the same, a thread per CPU", case_freelist_threads, 0},
    {"alloc", "per-CPU memory", case_alloc, 0},
    {"fallback", "operations with rseq refused", case_fallback, 1},
    {"fallback.forced", "a file built without sections, in a process that has rseq",
     case_fallback_forced, 0},
    {"first_use", "a thread's first operation", case_first_use, 0},
    {"first_use.refused", "the same, with rseq refused", case_first_use_refused, 1},
    {"fence", "crossing CPUs, idle and busy", case_fence, 0},
    {"scale", "an add, from 1 to N threads", case_scale, 0},
    {"scale.rows", "reading and memory as CPU ids grow to 8192", case_scale_rows, 0},
    {"memory", "bytes per counter", case_memory, 0},
    {"scale.rows.child", NULL, case_scale_rows_child, 0}, /* for run_child() */
    {"memory.child", NULL, case_memory_child, 0},
};
const size_t n_cases = ARRAY_LENGTH(cases);
