/* SPDX-License-Identifier: MIT */
/*
 * Gauges against a model: what get() returns was set, whole, and is the last.
 *
 * Seen to fail: with one buffer in place of two; with readers that do not check the sequence number
 * again; with a time that stands still; with get() that takes the first row; with the
 * second bank, or the word in the handle, left out; with ties to the higher CPU; with a set that
 * goes nowhere where its row is locked.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

/*
 * A double that says who wrote it and when, and that no mixture of two others looks like: sign and
 * exponent of a common number, a check of 20 bits, the writer in 6, the sequence number in 26.
 */
static uint64_t check_of(uint64_t low)
{
    return low * UINT64_C(0x9e3779b97f4a7c15) >> 44;
}

static double encode(unsigned writer, unsigned seq)
{
    uint64_t low = (uint64_t)writer << 26 | seq;
    uint64_t bits = UINT64_C(0x400) << 52 | check_of(low) << 32 | low;
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* Return: it is one of ours. */
static int decode(double d, unsigned *writer, unsigned *seq)
{
    uint64_t bits, low;
    memcpy(&bits, &d, sizeof bits);
    low = bits & 0xffffffffu;
    *writer = (unsigned)(low >> 26);
    *seq = (unsigned)(low & 0x3ffffff);
    return bits >> 52 == 0x400 && (bits >> 32 & 0xfffff) == check_of(low);
}

static int bits_differ(double a, double b)
{
    return memcmp(&a, &b, sizeof a) != 0;
}

/* ---- One thread */

static void never_set_is_zero(struct percpu_gauge *g, const char *name)
{
    double d = 42;
    int any = percpu_gauge_get(g, &d);
    ok(any == 0 && !bits_differ(d, 0.0), "%s: never set, 0.0", name);
}

static unsigned values_lost(struct percpu_gauge *g)
{
    static const uint64_t patterns[] = {UINT64_C(0x7ff0000000000000),
                                        UINT64_C(0xfff0000000000000), /* infinities */
                                        UINT64_C(0x8000000000000000),
                                        0, /* zeros */
                                        UINT64_C(0x7ff8000000000000),
                                        UINT64_C(0xfffabcdef0123456), /* not numbers */
                                        1,
                                        UINT64_C(0x7fefffffffffffff),
                                        UINT64_C(0x3ff0000000000000)};
    unsigned lost = 0;
    for (unsigned i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        double in, out = 7;
        memcpy(&in, &patterns[i], sizeof in);
        percpu_gauge_set(g, in);
        lost += percpu_gauge_get(g, &out) != 1 || bits_differ(in, out);
    }
    return lost;
}

static void *values_in_a_refused_thread(void *g)
{
    leave_rseq();
    return (void *)(uintptr_t)values_lost((struct percpu_gauge *)g);
}

static void life_of_a_gauge(void)
{
    static struct percpu_gauge g;
    struct percpu_gauge h;
    pthread_t t;
    void *lost = (void *)1;
    double d;
    never_set_is_zero(&g, "zeroed");
    errno = 66;
    is(values_lost(&g), 0, "every value comes back bit for bit");
    is(errno, 66, "errno is preserved");
    pthread_create(&t, (pthread_attr_t *)0, values_in_a_refused_thread, &g);
    pthread_join(t, &lost);
    is((uintptr_t)lost, 0,
       "the same in a thread without sections, over older values of one that has");
    is(values_lost(&g), 0, "and the other way round");
    percpu_gauge_destroy(&g);
    never_set_is_zero(&g, "destroyed");
    is(percpu_gauge_init(&h), 0, "init");
    never_set_is_zero(&h, "new, in the memory of an old one");
    percpu_gauge_set(&h, 1.5);
    ok(percpu_gauge_get(&h, &d) == 1 && d > 1.4 && d < 1.6, "set after init");
    percpu_gauge_destroy(&h);
}

static void put(struct percpu_priv_gauge_row *row, double value, uint64_t ticks)
{
    row->stamped.seq = 2;
    memcpy(&row->stamped.buffer[0].value, &value, sizeof value);
    row->stamped.buffer[0].ticks = ticks;
}

static void the_latest_tick_wins_and_ties_go_to_the_lower_cpu(void)
{
    struct percpu_gauge g;
    unsigned n = percpu_nr_cpus();
    double d = 0;
    percpu_gauge_init(&g);
    put(percpu_ptr(g.base, n - 1), 1.0, 1000);
    ok(percpu_gauge_get(&g, &d) && !bits_differ(d, 1.0), "the only row");
    put(percpu_ptr(g.base, 0), 2.0, n == 1 ? 1001 : 1000);
    ok(percpu_gauge_get(&g, &d) && !bits_differ(d, 2.0), "same tick: the lower CPU");
    put(percpu_ptr(g.base, n - 1), 3.0, 1002);
    ok(percpu_gauge_get(&g, &d) && !bits_differ(d, 3.0), "later tick on the higher CPU");
    put(&g.spill, 4.0, 1003);
    ok(percpu_gauge_get(&g, &d) && !bits_differ(d, 4.0), "later tick in the handle");
    put(percpu_ptr(g.base, 0), 5.0, UINT64_C(0xffffffff00000000));
    ok(percpu_gauge_get(&g, &d) && !bits_differ(d, 5.0), "ticks are compared as 64 unsigned bits");
    percpu_gauge_destroy(&g);
}

/* ---- Readers while writers run */

#define WRITERS 6
static struct percpu_gauge busy;
static int stop;
static unsigned torn, backwards, got_so_far, own_lost, last_set;
static int refused_half;
static pid_t writer_tids[WRITERS];
static __thread volatile unsigned handler_seq;

/* A handler is a writer of its own, whose values order nothing against the interrupted thread's. */
static void set_in_a_handler(int sig)
{
    (void)sig;
    handler_seq = handler_seq + 1;
    percpu_gauge_set(&busy, encode(63, handler_seq));
}

static void *write_to_gauge(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg, seq = 0, seed = me + 1, writer, got;
    double d;
    if (refused_half == 2 || (refused_half && me % 2))
        leave_rseq();
    __atomic_store_n(&writer_tids[me], (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    block_alarm(SIG_UNBLOCK);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        percpu_gauge_set(&busy, encode(me, ++seq & 0x3ffffff));
        if (seq % 8 == 0 && (!percpu_gauge_get(&busy, &d) ||
                             (decode(d, &writer, &got) && writer == me && got < (seq & 0x3ffffff))))
            (void)__atomic_fetch_add(&own_lost, 1, __ATOMIC_RELAXED);
        seed = seed * 1103515245 + 12345;
        if ((seed >> 16) % 16384 == 0)
            move_to(0, cpus[(seed >> 8) % ncpus]);
    }
    block_alarm(SIG_BLOCK);
    return (void *)(uintptr_t)seq;
}

static void *read_gauge(void *arg)
{
    unsigned last[64] = {0}, writer, seq;
    double d;
    (void)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        if (!percpu_gauge_get(&busy, &d))
            continue;
        if (!decode(d, &writer, &seq)) {
            (void)__atomic_fetch_add(&torn, 1, __ATOMIC_RELAXED);
        } else if (writer < WRITERS) {
            if (seq < last[writer])
                (void)__atomic_fetch_add(&backwards, 1, __ATOMIC_RELAXED);
            last[writer] = seq;
        }
        (void)__atomic_fetch_add(&got_so_far, 1, __ATOMIC_RELAXED);
    }
    return (void *)0;
}

/* @refused: 0 no thread, 1 every other, 2 all. */
static void readers_see_whole_values_in_order(unsigned writers, int refused, int signals,
                                              double seconds)
{
    pthread_t threads[WRITERS + 2];
    unsigned long before = aborts();
    unsigned long sets = 0;
    unsigned writer, seq, i, seed = 1;
    double end = now() + seconds, d = 0;
    const char *who = refused == 0   ? ""
                      : refused == 1 ? ", half without rseq"
                                     : ", all without rseq";
    memset(&busy, 0, sizeof busy);
    memset(writer_tids, 0, sizeof writer_tids);
    stop = 0;
    torn = backwards = got_so_far = own_lost = 0;
    refused_half = refused;
    if (signals)
        set_alarm(70, set_in_a_handler);
    for (i = 0; i < writers + 2; i++)
        pthread_create(&threads[i], (pthread_attr_t *)0, i < writers ? write_to_gauge : read_gauge,
                       (void *)(uintptr_t)i);
    do { /* a migration may come at any instruction, not only when the writer asks for it */
        for (i = 0; i < writers; i++) {
            pid_t tid = __atomic_load_n(&writer_tids[i], __ATOMIC_ACQUIRE);
            seed = seed * 1103515245 + 12345;
            if (tid)
                move_to(tid, cpus[(seed >> 16) % ncpus]);
        }
        sched_yield();
    } while (now() < end || __atomic_load_n(&got_so_far, __ATOMIC_RELAXED) < 1000 ||
             (refused < 2 && no_abort_yet(before, end + 30)));
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (i = 0; i < writers + 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sets += i < writers ? (unsigned long)(uintptr_t)result : 0;
        if (i < writers && writers == 1)
            last_set = (unsigned)(uintptr_t)result & 0x3ffffff;
    }
    if (signals)
        set_alarm(0, set_in_a_handler);
    ok(torn == 0, "%u writers%s%s: every value was set by somebody", writers,
       signals ? ", and handlers" : "", who);
    is(backwards, 0, "no reader sees a writer go back");
    is(own_lost, 0, "no writer gets an older value of its own than it has set");
    if (writers == 1 && !signals) {
        ok(percpu_gauge_get(&busy, &d) && decode(d, &writer, &seq) && writer == 0 &&
               seq == last_set,
           "when the writer has stopped its last value is left");
    }
    percpu_gauge_set(&busy, encode(62, 1));
    ok(percpu_gauge_get(&busy, &d) && !bits_differ(d, encode(62, 1)), "the freshest set wins");
    note("%lu sets, %u gets, %lu aborts", sets, got_so_far, aborts() - before);
#ifdef PERCPU_RSEQ_OP_PUBLISH /* or else no set is a section */
    if (refused < 2)
        aborted_since(before);
#endif
    percpu_gauge_destroy(&busy);
}

/* ---- Handing on: who gets the token must find what the last one set */

#define RUNNERS 4
static struct percpu_gauge relay;
static unsigned token, handoffs, stale;

static void *run_relay(void *arg)
{
    const unsigned me = (unsigned)(uintptr_t)arg;
    unsigned t, spins = 0;
    double d;
    move_to(0, cpus[me % ncpus]);
    if (refused_half == 2 || (refused_half && me % 4 >= 2)) /* on each CPU one of either kind */
        leave_rseq();
    for (;;) {
        t = __atomic_load_n(&token, __ATOMIC_ACQUIRE);
        if (t >= handoffs)
            return (void *)0;
        if (t % RUNNERS != me) {
            if (++spins % 64 == 0)
                sched_yield();
            continue;
        }
        if (t && (!percpu_gauge_get(&relay, &d) || bits_differ(d, encode(1, t))))
            stale++;
        percpu_gauge_set(&relay, encode(1, t + 1));
        if (!percpu_gauge_get(&relay, &d) || bits_differ(d, encode(1, t + 1)))
            stale++;
        __atomic_store_n(&token, t + 1, __ATOMIC_RELEASE);
    }
}

static void the_last_set_is_what_the_next_thread_gets(int refused, unsigned count)
{
    pthread_t threads[RUNNERS];
    unsigned i;
    memset(&relay, 0, sizeof relay);
    token = stale = 0;
    handoffs = count;
    refused_half = refused;
    for (i = 0; i < RUNNERS; i++)
        pthread_create(&threads[i], (pthread_attr_t *)0, run_relay, (void *)(uintptr_t)i);
    for (i = 0; i < RUNNERS; i++)
        pthread_join(threads[i], (void **)0);
    ok(token >= count && stale == 0, "%u hand-offs over %u CPUs, %s without rseq: never stale",
       count, ncpus,
       refused == 0   ? "none"
       : refused == 1 ? "half"
                      : "all");
    if (stale)
        note("%u stale", stale);
    percpu_gauge_destroy(&relay);
}

/* ---- A writer that is stopped for ever in the middle of a set */

static void *set_past_a_stopped_writer(void *arg)
{
    struct percpu_gauge *g = (struct percpu_gauge *)arg;
    struct percpu_priv_gauge_row *row;
    double d = 0;
    uintptr_t bad = 0;
    leave_rseq();
    percpu_gauge_set(g, 1.0);
    row = (struct percpu_priv_gauge_row *)percpu_priv_fallback_copy(g->base);
    row->lock = 1;
    g->spill.lock = 1; /* where the first to find the row locked goes */
    percpu_gauge_set(g, 2.0);
    bad |= !percpu_gauge_get(g, &d) || bits_differ(d, 2.0);
    percpu_gauge_set(g, 3.0);
    bad |= !percpu_gauge_get(g, &d) || bits_differ(d, 3.0) ? 2u : 0u;
    row->lock = g->spill.lock = 0;
    percpu_gauge_set(g, 4.0);
    bad |= !percpu_gauge_get(g, &d) || bits_differ(d, 4.0) ? 4u : 0u;
    return (void *)bad;
}

static void a_stopped_writer_holds_up_nobody(void)
{
    static struct percpu_gauge g;
    pthread_t t;
    void *bad = (void *)1;
    pthread_create(&t, (pthread_attr_t *)0, set_past_a_stopped_writer, &g);
    pthread_join(t, &bad);
    is((uintptr_t)bad, 0, "sets take effect though two writers stopped for ever in their rows");
    percpu_gauge_destroy(&g);
}

/* A fork copies the rows as they are, and leaves the threads that had locked them behind. */
static void *set_for_ever(void *arg)
{
    unsigned seq = 0, n = (unsigned)(uintptr_t)arg;
    leave_rseq();
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        percpu_gauge_set(&busy, encode(n, ++seq & 0x3ffffff));
    return (void *)0;
}

static int set_takes_effect(void)
{
    double d = 0;
    percpu_gauge_set(&busy, 1.25);
    return !percpu_gauge_get(&busy, &d) || bits_differ(d, 1.25);
}

static void *set_in_children(void *arg)
{
    uintptr_t lost = 0;
    (void)arg;
    leave_rseq();
    for (int i = 0; i < 30; i++)
        lost += status_of_child(set_takes_effect) != 0;
    return (void *)lost;
}

static void a_fork_between_sets_loses_no_later_set(void)
{
    pthread_t threads[WRITERS], forker;
    void *lost = (void *)1;
    unsigned i;
    memset(&busy, 0, sizeof busy);
    stop = 0;
    for (i = 0; i < WRITERS; i++)
        pthread_create(&threads[i], (pthread_attr_t *)0, set_for_ever, (void *)(uintptr_t)i);
    pthread_create(&forker, (pthread_attr_t *)0, set_in_children, (void *)0);
    pthread_join(forker, &lost);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (i = 0; i < WRITERS; i++)
        pthread_join(threads[i], (void **)0);
    is((uintptr_t)lost, 0, "children forked while others set: their own sets take effect");
    percpu_gauge_destroy(&busy);
}

/* ---- No memory */

static int without_memory(void)
{
    static struct percpu_gauge g;
    struct percpu_gauge h;
    double d = 0;
    (void)limit_address_space(4096); /* nothing more */
    errno = 55;
    percpu_gauge_set(&g, 1.25);
    if (errno != 55 || g.base)
        return 1;
    if (!percpu_gauge_get(&g, &d) || bits_differ(d, 1.25))
        return 2;
    percpu_gauge_set(&g, 1.5);
    if (!percpu_gauge_get(&g, &d) || bits_differ(d, 1.5))
        return 3;
    if (percpu_gauge_init(&h) != -1 || errno != ENOMEM)
        return 4;
    percpu_gauge_set(&h, 2.5); /* usable */
    if (!percpu_gauge_get(&h, &d) || bits_differ(d, 2.5))
        return 5;
    (void)limit_address_space(0);
    percpu_gauge_set(&g, 1.75);
    if (!g.base || !percpu_gauge_get(&g, &d) || bits_differ(d, 1.75))
        return 6;
    percpu_gauge_destroy(&g);
    return percpu_gauge_get(&g, &d) ? 7 : 0;
}

int main(void)
{
    static const char no_memory[] = "out of memory: the value is kept in the handle";
    const char *count = getenv("GAUGE_HANDOFFS"); /* 100000 for a long run */
    const unsigned n = count ? (unsigned)atoi(count) : 600;
    block_alarm(SIG_BLOCK);
    look_around(MOST_CPUS);
    if (SANITIZED)
        skip(no_memory, "a sanitizer needs its address space");
    else
        in_child(without_memory, no_memory); /* before the first allocation */
    life_of_a_gauge();
    the_latest_tick_wins_and_ties_go_to_the_lower_cpu();
    a_stopped_writer_holds_up_nobody();
    if (SANITIZED)
        skip("fork beside threads", "a sanitizer may not survive it");
    else
        a_fork_between_sets_loses_no_later_set();
    for (int refused = 0; refused < 3; refused++) {
        readers_see_whole_values_in_order(1, refused, 0, 0.08);
        readers_see_whole_values_in_order(WRITERS, refused, 1, 0.1);
        the_last_set_is_what_the_next_thread_gets(refused, n);
    }
    return done();
}
