/* SPDX-License-Identifier: MIT */
/*
 * Every instruction boundary of every critical section.
 *
 * A trap goes over each instruction in turn, from the restart address to the one after the commit,
 * in the code that users run. Its handler finds the section aborted, or not where it must not be,
 * removes the trap and does something nasty before the operation goes on: the same operation, any
 * other operation on the same object, or a migration. Then every word of every copy, every list
 * node, and every returned value is compared with a model in plain C.
 *
 * Seen to fail with each PERCPU_BREAK_* of rseq_abi.h and percpu.h; see check_mutations.sh.
 *
 * test_sections --boundaries prints the boundaries, for comparison with a disassembler.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "tap.h"
#include "sections.h"
#include <sched.h>

#if !SECTIONS_CAN_TRAP
int main(void)
{
    skip_all(PERCPU_RSEQ_SECTIONS ? "no traps for this processor yet"
                                  : "no critical sections for this processor yet");
    return done();
}
#else

#define NOINLINE __attribute__((noinline))

/* ---- The object under test, and its nodes */

struct node {
    uint64_t guard;
    struct node *next;
    struct node *model_next;
};

struct object {
    uint32_t guard0, w32, guard1, guard2;
    uint64_t guard3, w64, guard4;
    percpu_word counted, event;          /* the copies of a counter, and of a set's */
    struct percpu_rseq_list list, list2; /* list2 starts empty */
    struct percpu_priv_gauge_row gauge;
    uint64_t guard5;
};

enum { NODES = 16 };
static struct node nodes[NODES];
static unsigned nodes_used;
static struct object *obj;
/* Handles whose copies are members of the object, so that all of them can be compared at once. */
static struct percpu_counter counter;
static struct percpu_counters counters = PERCPU_COUNTERS_INIT(1, 0);
static struct percpu_freelist list, list2;
static struct percpu_gauge gauge;

static void set_bounds(uint32_t bound)
{
    percpu_priv_state.reach.bound = bound;
    counter.rows = counters.rows = bound; /* handles that the section reads */
}

static void make_handles(void)
{
    counter.base = &obj->counted;
    counters.chunk[0] = &obj->event;
    list.base = &obj->list;
    list2.base = &obj->list2;
    list.next = list2.next = PERCPU_LINK(struct node, next);
    gauge.base = &obj->gauge;
    set_bounds(percpu_priv_state.reach.bound);
}

struct args {
    uint64_t v, expected;
    struct node *node;
};

static unsigned cpus[2], here; /* here: index in cpus of where we are */
static int can_migrate;
static uint64_t time_from, time_trapped; /* the case's start; the handler's end */

/* ---- The operations, each in a function of its own, and what each does in plain C */

#define WORD_OP(name, n, use, model)                                                   \
    static NOINLINE uint64_t run_##name##n(const struct args *a)                       \
    {                                                                                  \
        uint##n##_t v = (uint##n##_t)a->v, expected = (uint##n##_t)a->expected, r = 0; \
        (void)v;                                                                       \
        (void)expected;                                                                \
        use;                                                                           \
        return r;                                                                      \
    }                                                                                  \
    static uint64_t model_##name##n(struct object *o, const struct args *a)            \
    {                                                                                  \
        uint##n##_t v = (uint##n##_t)a->v, expected = (uint##n##_t)a->expected, r = 0; \
        uint##n##_t *w = &o->w##n;                                                     \
        (void)v;                                                                       \
        (void)expected;                                                                \
        model;                                                                         \
        return r;                                                                      \
    }
#define WORD_OPS(n)                                                                               \
    WORD_OP(add, n, this_cpu_add(obj->w##n, v), *w = (uint##n##_t)(*w + v))                       \
    WORD_OP(add_const, n, this_cpu_add(obj->w##n, 70000), *w = (uint##n##_t)(*w + 70000u))        \
    WORD_OP(inc, n, this_cpu_inc(obj->w##n), *w = (uint##n##_t)(*w + 1u))                         \
    WORD_OP(and, n, this_cpu_and(obj->w##n, v), *w &= v)                                          \
    WORD_OP(and_const, n, this_cpu_and(obj->w##n, 0x7ff7), *w &= 0x7ff7)                          \
    WORD_OP(or, n, this_cpu_or(obj->w##n, v), *w |= v)                                            \
    WORD_OP(write, n, this_cpu_write(obj->w##n, v), *w = v)                                       \
    WORD_OP(write_const, n, this_cpu_write(obj->w##n, 99), *w = 99)                               \
    WORD_OP(read, n, r = this_cpu_read(obj->w##n), r = *w)                                        \
    WORD_OP(add_return, n, r = this_cpu_add_return(obj->w##n, v), r = *w = (uint##n##_t)(*w + v)) \
    WORD_OP(xchg, n, r = this_cpu_xchg(obj->w##n, v), r = *w; *w = v)                             \
    WORD_OP(cmpxchg, n, r = this_cpu_cmpxchg(obj->w##n, expected, v), r = *w;                     \
            if (r == expected) *w = v)
WORD_OPS(32)
#if UINTPTR_MAX > 0xffffffffu
WORD_OPS(64)
#endif

static NOINLINE uint64_t run_counter_add(const struct args *a)
{
    percpu_counter_add(&counter, (percpu_word)a->v);
    return 0;
}
static uint64_t model_counter_add(struct object *o, const struct args *a)
{
    o->counted += (percpu_word)a->v;
    return 0;
}

static NOINLINE uint64_t run_counters_add(const struct args *a)
{
    percpu_counters_add(&counters, 0, (percpu_word)a->v);
    return 0;
}
static uint64_t model_counters_add(struct object *o, const struct args *a)
{
    o->event += (percpu_word)a->v;
    return 0;
}

#define LIST_OPS(list)                                                        \
    static NOINLINE uint64_t run_push_##list(const struct args *a)            \
    {                                                                         \
        percpu_freelist_push(&list, a->node);                                 \
        return 0;                                                             \
    }                                                                         \
    static uint64_t model_push_##list(struct object *o, const struct args *a) \
    {                                                                         \
        a->node->model_next = (struct node *)o->list.head;                    \
        o->list.head = a->node;                                               \
        return 0;                                                             \
    }                                                                         \
    static NOINLINE uint64_t run_pop_##list(const struct args *a)             \
    {                                                                         \
        (void)a;                                                              \
        return (uintptr_t)percpu_freelist_pop(&list);                         \
    }                                                                         \
    static uint64_t model_pop_##list(struct object *o, const struct args *a)  \
    {                                                                         \
        struct node *n = (struct node *)o->list.head;                         \
        (void)a;                                                              \
        if (n)                                                                \
            o->list.head = n->model_next;                                     \
        return (uintptr_t)n;                                                  \
    }
LIST_OPS(list)
LIST_OPS(list2)

/* What a drain from another CPU does to a section that it makes start over. */
static uint64_t run_drain(const struct args *a)
{
    void *chain = NULL;
    (void)a;
    return percpu_freelist_drain(&list, cpus[here], &chain) == 0 ? (uintptr_t)chain : 1;
}
static uint64_t model_drain(struct object *o, const struct args *a)
{
    struct node *n = (struct node *)o->list.head;
    (void)a;
    o->list.head = NULL;
    return (uintptr_t)n;
}

#define TICKS_NOW (~UINT64_C(0)) /* in a model: any time during the case */
#ifdef PERCPU_RSEQ_OP_PUBLISH    /* or else neither is a section */
static NOINLINE uint64_t run_gauge_set(const struct args *a)
{
    double value;
    memcpy(&value, &a->v, sizeof value);
    percpu_gauge_set(&gauge, value);
    return 0;
}
static uint64_t model_gauge_set(struct object *o, const struct args *a)
{
    struct percpu_rseq_stamped *s = &o->gauge.stamped;
    s->seq++;
    s->buffer[s->seq & 1].value = a->v;
    s->buffer[s->seq & 1].ticks = TICKS_NOW;
    return 0;
}

static NOINLINE uint64_t run_stamp(const struct args *a)
{
    struct percpu_tscp s = percpu_tscp_approx();
    (void)a;
    return s.ticks >= time_from && s.ticks >= time_trapped ? s.cpu : ~UINT64_C(0);
}
static uint64_t model_stamp(struct object *o, const struct args *a)
{
    (void)o;
    (void)a;
    return cpus[here];
}
#endif

enum {
    EXITS_EARLY = 1, /* leaves before the commit: some boundaries are not reached */
    MATCH = 2,       /* cmpxchg with the value that is there */
    PUBLISH = 4,     /* private stores go to the idle buffer */
    PUSH = 8,        /* takes a node */
    ACT_ONLY = 16    /* not a section */
};
static const struct op {
    const char *name;
    uint64_t (*run)(const struct args *);
    uint64_t (*model)(struct object *, const struct args *);
    int flags;
} ops[] = {
#define WORD_ENTRIES(n)                                                                          \
    {"add u" #n, run_add##n, model_add##n, 0},                                                   \
        {"add constant u" #n, run_add_const##n, model_add_const##n, 0},                          \
        {"inc u" #n, run_inc##n, model_inc##n, 0}, {"and u" #n, run_and##n, model_and##n, 0},    \
        {"and constant u" #n, run_and_const##n, model_and_const##n, 0},                          \
        {"or u" #n, run_or##n, model_or##n, 0}, {"write u" #n, run_write##n, model_write##n, 0}, \
        {"write constant u" #n, run_write_const##n, model_write_const##n, 0},                    \
        {"read u" #n, run_read##n, model_read##n, 0},                                            \
        {"add_return u" #n, run_add_return##n, model_add_return##n, 0},                          \
        {"xchg u" #n, run_xchg##n, model_xchg##n, 0},                                            \
        {"cmpxchg u" #n, run_cmpxchg##n, model_cmpxchg##n, MATCH},                               \
    {                                                                                            \
        "cmpxchg of another value u" #n, run_cmpxchg##n, model_cmpxchg##n, EXITS_EARLY           \
    }
    WORD_ENTRIES(32),
#if UINTPTR_MAX > 0xffffffffu
    WORD_ENTRIES(64),
#endif
    {"counter_add", run_counter_add, model_counter_add, 0},
    {"counters_add", run_counters_add, model_counters_add, 0},
    {"push", run_push_list, model_push_list, PUSH},
    {"push to empty", run_push_list2, model_push_list2, PUSH},
    {"pop", run_pop_list, model_pop_list, 0},
    {"pop from empty", run_pop_list2, model_pop_list2, EXITS_EARLY},
#ifdef PERCPU_RSEQ_OP_PUBLISH
    {"gauge_set", run_gauge_set, model_gauge_set, PUBLISH},
    {"tscp_approx", run_stamp, model_stamp, 0},
#endif
    {"drain", run_drain, model_drain, ACT_ONLY},
};
#define OPS (sizeof ops / sizeof ops[0])

/* What the handler does: nothing, a migration, a migration and the same operation, operation i. */
enum { ACT_NOTHING, ACT_MIGRATE, ACT_MIGRATE_SAME, ACT_OPERATION };
#define ACTS (ACT_OPERATION + OPS)

/* ---- The model: one object per CPU that we may be on, one for the fallback */

static struct object model[2], model_fallback;

static uint64_t ticks(void)
{
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("lfence\n\trdtsc\n\tlfence" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
    uint64_t t;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(t) : : "memory");
    return t;
#elif defined(__riscv)
    uint64_t t;
    __asm__ volatile("rdtime %0" : "=r"(t) : : "memory");
    return t;
#else
    return percpu_priv_ticks_ordered();
#endif
}

static int move_to(unsigned index)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[index], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return 0;
    here = index;
    return 1;
}

/* A row as it is at the start of each case, different in every word and on every CPU. */
static void initial(struct object *o, unsigned salt)
{
    memset(o, 0, sizeof *o);
    o->guard0 = 0xa0000001u + salt;
    o->guard1 = 0xa0000002u + salt;
    o->guard2 = 0xa0000003u + salt;
    o->guard3 = o->guard4 = o->guard5 = UINT64_C(0xa00000040000) + salt;
    o->w32 = 0x7ffffff0u + salt;
    o->w64 = UINT64_C(0x12345678fffffff0) + salt;
    o->counted = 0xfffffff0u + salt;
    o->event = (percpu_word)(UINT64_C(0x1fffffff0) + salt);
    o->gauge.stamped.seq = 6 + salt;
    o->gauge.stamped.buffer[0].value = 1000 + salt;
    o->gauge.stamped.buffer[0].ticks = 1;
    o->gauge.stamped.buffer[1].value = 2000 + salt;
    o->gauge.stamped.buffer[1].ticks = 2;
}

static void reset(void)
{
    struct object *copy;
    struct args a = {0, 0, NULL};
    memset(nodes, 0, sizeof nodes);
    nodes_used = 0;
    for (unsigned c = 0; c < 2; c++) {
        initial(&model[c], c * 3);
        for (unsigned i = 0; i < 3 - c; i++) { /* three nodes here, two there */
            a.node = &nodes[nodes_used++];
            (void)model_push_list(&model[c], &a);
        }
    }
    initial(&model_fallback, 100);
    model_fallback.w32 = model[0].w32; /* so that one expected value serves both banks */
    model_fallback.w64 = model[0].w64;
    for (unsigned i = 0; i < NODES; i++)
        nodes[i].next = nodes[i].model_next;
    for (unsigned row = 0; row < percpu_nr_cpus(); row++) {
        copy = percpu_ptr(obj, row);
        if (row == cpus[0] || (can_migrate && row == cpus[1]))
            *copy = model[row != cpus[0]];
        else
            memset(copy, 0, sizeof *copy);
    }
}

/* ---- One case */

enum stage { IDLE, FIND, FORCE, TRAP, KEEP };
static struct {
    enum stage stage;
    int kind, finding;
    unsigned char *at;                     /* the trapped instruction */
    const struct percpu_rseq_site *forced; /* section that gives up first */
    const struct percpu_rseq_site *found;
    int before; /* at the trap the operation has not happened yet */
    size_t act;
    const struct op *op;
    struct args args;
    uint64_t want; /* the operation's result */
    int modelled;
    unsigned hits, aborted; /* traps met; ones that aborted a section */
    int gave_up;            /* the trap in the forced section was met */
    int dirty[2];           /* an aborted publish wrote that CPU's idle buffer */
    int moved;
    const char *wrong;
} t;

static void prepare(struct args *a, const struct op *op, const struct object *row, uint64_t v)
{
    a->v = v;
    a->expected = op->run == run_cmpxchg32 ? row->w32 : row->w64;
    if (!(op->flags & MATCH))
        a->expected ^= 0x40;
    a->node = &nodes[nodes_used];
    if (op->flags & PUSH)
        nodes_used++;
}

static void happened(void)
{
    t.want = t.op->model(&model[here], &t.args);
    t.modelled = 1;
}

static void do_operation(const struct op *op)
{
    struct args a;
    uint64_t got, want;
    prepare(&a, op, &model[here], UINT64_C(0x0102030405060f08));
    got = op->run(&a);
    want = op->model(&model[here], &a);
    if (got != want)
        t.wrong = "result of the operation in the handler";
}

static void act(void)
{
    if (!t.before)
        happened();
    if (t.act == ACT_MIGRATE || t.act == ACT_MIGRATE_SAME) {
        if (t.before && (t.op->flags & PUBLISH))
            t.dirty[here] = 1;
        t.moved = 1;
        if (!move_to(!here))
            t.wrong = "migration refused";
    }
    if (t.act == ACT_MIGRATE_SAME)
        do_operation(t.op);
    if (t.act >= ACT_OPERATION)
        do_operation(&ops[t.act - ACT_OPERATION]);
}

static void set_all_restart_traps(void)
{
    for (const struct percpu_rseq_site *s = sites_begin; s < sites_end; s++)
        set_trap((unsigned char *)(uintptr_t)s->restart_ip, t.kind);
    t.stage = FIND;
}

static void find(uintptr_t at)
{
    t.stage = IDLE;
    for (const struct percpu_rseq_site *s = sites_begin; s < sites_end; s++)
        if (s->restart_ip == at)
            t.found = s;
}

static void on_trap(int sig, siginfo_t *info, void *context)
{
    uintptr_t ip = trap_ip(context), at = ip - trap_skips[t.kind];
    int aborted = ip == (uintptr_t)sites_begin->descriptor.abort_ip, saved = errno;
    (void)info;
    if (t.stage == IDLE || sig != trap_signals[t.kind]) { /* not ours: die of it */
        signal(sig, SIG_DFL);
        return;
    }
    if (t.stage == KEEP) {
        t.hits++;
        t.aborted += (unsigned)aborted;
        if (!aborted || t.hits > 5000) { /* would never end */
            t.wrong = aborted ? "no end of restarts" : "a kept trap did not abort";
            remove_traps();
            trap_set_ip(context, aborted ? ip : at);
            t.stage = IDLE;
        }
        return;
    }
    remove_traps();
    if (!aborted)
        trap_set_ip(context, at);
    switch (t.stage) {
    case FIND:
        find(at);
        break;
    case FORCE:
        t.gave_up = 1;
        if (!aborted)
            t.wrong = "the first attempt was not aborted";
        if (t.finding) {
            set_all_restart_traps();
        } else {
            t.stage = TRAP;
            set_trap(t.at, t.kind);
        }
        break;
    default:
        t.stage = IDLE;
        t.hits++;
        t.aborted += (unsigned)aborted;
        if (!aborted && at != (uintptr_t)t.at)
            t.wrong = "trapped somewhere else";
        act();
        if (t.before)
            time_trapped = ticks();
        break;
    }
    errno = saved;
}

/*
 * Run the operation. With t.forced set, its first section is aborted and made to give up, by a
 * count of aborts that the stub takes as its cue, so that the slow path's section gets to run.
 * Return: aborts that the stub counted.
 */
static unsigned run_operation(const struct op *op, uint64_t *got)
{
    t.op = op;
    prepare(&t.args, op, &model[here], UINT64_C(0xfffffff70003));
    percpu_rseq_aborts_v1 = t.forced ? 255 : 0;
    if (t.forced) {
        t.stage = FORCE;
        set_trap((unsigned char *)(uintptr_t)t.forced->descriptor.start_ip, t.kind);
    }
    *got = op->run(&t.args);
    remove_traps();
    t.stage = IDLE;
    return percpu_rseq_aborts_v1 - (t.forced ? 255 : 0);
}

/* Which section does @op run first; or, after @forced has given up, next? */
static const struct percpu_rseq_site *find_site(const struct op *op, int kind,
                                                const struct percpu_rseq_site *forced)
{
    uint64_t got;
    int tries = 0;
    do { /* again if a preemption came before the trap in @forced: see run_case() */
        reset();
        memset(&t, 0, sizeof t);
        t.kind = kind;
        t.forced = forced;
        t.finding = 1;
        if (!forced)
            set_all_restart_traps();
        (void)run_operation(op, &got);
    } while (forced && !t.gave_up && ++tries < 3);
    return t.found;
}

/* Is each half of @x, as it may have been written, one of @a or @b? */
static int halves_of(uint64_t x, uint64_t a, uint64_t b)
{
    return ((uint32_t)x == (uint32_t)a || (uint32_t)x == (uint32_t)b) &&
           (x >> 32 == a >> 32 || x >> 32 == b >> 32);
}

/* @dirty: an aborted section may have written the idle buffer, and nobody reads that. */
static void compare_stamped(const struct percpu_rseq_stamped *real, struct percpu_rseq_stamped *m,
                            int dirty)
{
    unsigned idle = (unsigned)~m->seq & 1;
    const uint64_t value = real->buffer[idle].value, was = m->buffer[idle].value;
    if (dirty && (value == t.args.v || value == was ||
                  (UINTPTR_MAX == 0xffffffffu && halves_of(value, t.args.v, was))))
        m->buffer[idle] = real->buffer[idle];
    for (unsigned b = 0; b < 2; b++) {
        uint64_t now = real->buffer[b].ticks;
        if (m->buffer[b].ticks != TICKS_NOW)
            continue;
        m->buffer[b].ticks = now;
        if (!t.moved && (now < time_from || now > ticks()))
            t.wrong = "a time that is not of this operation";
        /* The value that was committed last is of the attempt that committed it. */
        if (!t.moved && (t.op->flags & PUBLISH) && b != idle && now < time_trapped)
            t.wrong = "a time older than the restart";
    }
}

/* Every node is where the model says, once. */
static void compare_nodes(void)
{
    unsigned seen[NODES], walked = 0;
    memset(seen, 0, sizeof seen);
    for (unsigned i = 0; i < NODES; i++)
        if (nodes[i].next != nodes[i].model_next || nodes[i].guard)
            t.wrong = "a link";
    for (unsigned c = 0; c < 2; c++)
        for (unsigned l = 0; l < 2; l++) {
            const struct object *row = percpu_ptr(obj, cpus[c]);
            if (c && !can_migrate)
                continue;
            for (const struct node *n = (const struct node *)(l ? row->list2.head : row->list.head);
                 n && walked++ < NODES; n = n->next)
                if (seen[n - nodes]++)
                    t.wrong = "a node that is in two places";
        }
}

static void compare(unsigned first_bank)
{
    struct object *copy, real;
    unsigned row = 0;
    percpu_for_each_copy(obj, copy)
    {
        real = *copy;
        if (row < first_bank) {
            unsigned c = row != cpus[0];
            if (row == cpus[0] || (can_migrate && row == cpus[1])) {
                compare_stamped(&real.gauge.stamped, &model[c].gauge.stamped, t.dirty[c]);
                if (memcmp(&real, &model[c], sizeof real) != 0)
                    t.wrong = "a copy's content";
            } else {
                for (unsigned i = 0; i < sizeof real; i++)
                    if (((const unsigned char *)&real)[i])
                        t.wrong = "the copy of a CPU where nobody was";
            }
        } else if (copy == (struct object *)percpu_priv_fallback_copy(obj)) {
            compare_stamped(&real.gauge.stamped, &model_fallback.gauge.stamped, 0);
            if (memcmp(&real, &model_fallback, sizeof real) != 0)
                t.wrong = "the copy of the second bank";
        }
        row++;
    }
    compare_nodes();
}

static unsigned long total_cases, total_aborts, total_disturbed;

/* Return: the boundary was reached. Sets t.wrong. */
static int run_case(const struct op *op, int kind, const struct percpu_rseq_site *forced,
                    const struct boundaries *b, unsigned i, size_t action)
{
    unsigned aborts, want_aborts;
    uint64_t got;
    int inside = i >= b->start && i < b->post, reached, disturbed, tries = 0;
    do {
        if (here != 0 && !move_to(0))
            return 0;
        reset();
        memset(&t, 0, sizeof t);
        t.kind = kind;
        t.forced = forced;
        t.at = b->at[i];
        t.before = i < b->post;
        t.act = action;
        time_from = ticks();
        time_trapped = 0;
        if (!forced) {
            t.stage = TRAP;
            set_trap(t.at, kind);
        }
        aborts = run_operation(op, &got);
        if (!t.modelled)
            happened();
        reached = t.hits != 0;
        want_aborts = (unsigned)(forced != NULL) + (unsigned)(reached && inside);
        total_aborts += aborts;
        if (got != t.want)
            t.wrong = "result";
        if (aborts < want_aborts)
            t.wrong = "too few aborts";
        if (t.aborted != (unsigned)(reached && inside))
            t.wrong = inside ? "not aborted inside" : "aborted outside";
        compare(percpu_nr_cpus());
        /*
         * A preemption may add an abort of its own, or be the one that makes the forced section
         * give up, before its trap; not three times in a row.
         */
        disturbed = aborts > want_aborts || (forced && !t.gave_up);
        total_disturbed += (unsigned long)disturbed;
    } while (!t.wrong && disturbed && ++tries < 3);
    if (!t.wrong && disturbed)
        t.wrong = forced && !t.gave_up ? "first attempt was not trapped" : "more than one abort";
    total_cases += (unsigned long)reached;
    return reached;
}

static void tell(const struct op *op, const struct boundaries *b, unsigned i, size_t action)
{
    note("%s: %s wrong: boundary %u (%s), act: %s%s", op->name, t.wrong, i,
         i < b->start  ? "before the section"
         : i < b->post ? "inside"
                       : "after the commit",
         action >= ACT_OPERATION ? ops[action - ACT_OPERATION].name
         : action == ACT_NOTHING ? "nothing"
         : action == ACT_MIGRATE ? "migration"
                                 : "migration and the same operation",
         t.forced ? ", slow path" : "");
}

/* All boundaries of one section. Return: the last that is reached inside. */
static unsigned check_section(const struct op *op, int kind, const struct percpu_rseq_site *site,
                              const struct percpu_rseq_site *forced)
{
    struct boundaries b;
    unsigned last = 0, missed = 0, cases = 0, failed = 0, gap = 0;
    const char *which = forced ? "slow path" : "hot path";
    if (!site || !find_boundaries(site, &b)) {
        ok(0, "%s, %s: %s", op->name, which,
           site ? "an instruction that the decoder does not know" : "no section found");
        return 0;
    }
    for (unsigned i = 0; i <= b.post; i++) {
        int reached = 0;
        for (size_t action = 0; action < ACTS; action++) {
            if (!can_migrate && (action == ACT_MIGRATE || action == ACT_MIGRATE_SAME))
                continue;
            if (kind && action >= ACT_OPERATION && &ops[action - ACT_OPERATION] != op)
                continue; /* this trap meets other instruction pointers, not other acts */
            reached = run_case(op, kind, forced, &b, i, action);
            if (t.wrong && failed++ < 5)
                tell(op, &b, i, action);
            cases += (unsigned)reached;
            if (!reached)
                break; /* whatever the act would be */
        }
        if (reached && i < b.post) {
            gap |= missed; /* reached again after instructions that were not */
            last = i;
        }
        missed += !reached && !insn_is_exit(b.at[i]);
    }
    ok(!failed && !gap && (missed != 0) == ((op->flags & EXITS_EARLY) != 0),
       "%s, %s, %s: exact in %u cases, at %u of %u boundaries", op->name, which, trap_names[kind],
       cases, b.post + 1 - missed, b.post + 1);
    return last;
}

/* ---- Traps that stay: restarts are bounded */

static void kept_trap_ends_in_fallback(const struct op *op, int kind,
                                       const struct percpu_rseq_site *hot,
                                       const struct percpu_rseq_site *slow, unsigned at)
{
    struct boundaries b;
    struct object *fallback = (struct object *)percpu_priv_fallback_copy(obj);
    const unsigned bounded = 512; /* the hot path's 256, and the slow path's */
    unsigned aborts;
    uint64_t got;
    reset();
    *fallback = model_fallback;
    memset(&t, 0, sizeof t);
    t.kind = kind;
    t.stage = KEEP;
    time_from = ticks();
    time_trapped = 0;
    (void)find_boundaries(hot, &b);
    set_trap(b.at[at], kind);
    if (slow != hot && find_boundaries(slow, &b))
        set_trap(b.at[at], kind);
    aborts = run_operation(op, &got);
    t.dirty[0] = op->flags & PUBLISH;
    if (got != op->model(&model_fallback, &t.args))
        t.wrong = "result";
    compare(percpu_nr_cpus());
    if (!ok(!t.wrong && aborts == bounded && t.hits == t.aborted && t.hits > bounded - 20,
            "%s, %s kept at boundary %u: acts on the second bank after %u aborts", op->name,
            trap_names[kind], at, bounded))
        note("%s wrong; aborts %u, hits %u, aborted %u", t.wrong ? t.wrong : "nothing", aborts,
             t.hits, t.aborted);
}

/* ---- CPU ids at and beyond the bound */

static void id_beyond_bound_stays_off_first_bank(const struct op *op)
{
    struct object *fallback = (struct object *)percpu_priv_fallback_copy(obj);
    const uint32_t bound = percpu_priv_state.reach.bound;
    uint64_t got;
    for (unsigned which = 0; which < 2; which++) {
        if (which && (!can_migrate || !cpus[1]))
            continue;
        (void)move_to(which);
        reset();
        *fallback = model_fallback;
        memset(&t, 0, sizeof t);
        time_from = ticks();
        time_trapped = 0;
        set_bounds(which ? cpus[1] : 0);
        (void)run_operation(op, &got);
        set_bounds(bound);
        if (got != op->model(&model_fallback, &t.args))
            t.wrong = "result";
        compare(percpu_nr_cpus());
        if (!ok(!t.wrong, "%s, CPU %s: no copy of the first bank is touched", op->name,
                which ? "right at the bound" : "beyond the bound"))
            note("%s wrong", t.wrong);
    }
    (void)move_to(0);
}

/* ---- All of it */

/* Relative to the descriptors, whose address a tool knows. */
static int print_boundaries(void)
{
    for (const struct percpu_rseq_site *s = sites_begin; s < sites_end; s++) {
        struct boundaries b;
        int good = find_boundaries(s, &b);
        printf("%s", good ? "section" : "unknown");
        for (unsigned i = 0; i < b.post + 1 && i < MAX_BOUNDARIES; i++)
            printf(" %lld", (long long)((uintptr_t)b.at[i] - (uintptr_t)sites_begin));
        printf("\n");
    }
    return 0;
}

static void choose_cpus(void)
{
    cpu_set_t set;
    unsigned n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        skip_all("more CPUs than a cpu_set_t names");
    for (unsigned c = 0; c < CPU_SETSIZE && n < 2; c++)
        if (CPU_ISSET(c, &set) && c < percpu_nr_cpus())
            cpus[n++] = c;
    can_migrate = n == 2;
    if (n == 0 || !move_to(0))
        skip_all("no CPU that this process may be pinned to");
}

static void catch_traps(int kind)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_trap;
    sa.sa_flags = SA_SIGINFO;
    sigaction(trap_signals[kind], &sa, NULL);
}

static void check_kind(int kind)
{
    static unsigned char proven[4096];
    const size_t sites = (size_t)(sites_end - sites_begin);
    unsigned same = 0, reached = 0;
    catch_traps(kind);
    for (size_t o = 0; o < OPS; o++) {
        const struct percpu_rseq_site *hot, *slow;
        if (ops[o].flags & ACT_ONLY)
            continue;
        hot = find_site(&ops[o], kind, NULL);
        if (hot)
            proven[hot - sites_begin] = 1;
        (void)check_section(&ops[o], kind, hot, NULL);
        slow = hot ? find_site(&ops[o], kind, hot) : NULL;
        if (slow && slow == hot) {
            same++;
        } else {
            if (slow)
                proven[slow - sites_begin] = 1;
            (void)check_section(&ops[o], kind, slow, hot);
        }
    }
    note("%u operations use one section for both paths", same);
    for (size_t s = 0; s < sites; s++)
        reached += proven[s];
    is(reached, sites, "every section in this program was trapped");
}

static void check_bounds(int kind)
{
    catch_traps(kind);
    for (size_t o = 0; o < OPS; o++) {
        const struct percpu_rseq_site *hot, *slow;
        struct boundaries b;
        unsigned last = 0;
        if (ops[o].flags & ACT_ONLY)
            continue;
        hot = find_site(&ops[o], kind, NULL);
        slow = hot ? find_site(&ops[o], kind, hot) : NULL;
        if (!hot || !slow || !find_boundaries(hot, &b))
            continue; /* reported above */
        for (unsigned i = b.start; i < b.post; i++)
            if (run_case(&ops[o], kind, NULL, &b, i, ACT_NOTHING))
                last = i;
        kept_trap_ends_in_fallback(&ops[o], kind, hot, slow, b.start);
        kept_trap_ends_in_fallback(&ops[o], kind, hot, slow, last);
        id_beyond_bound_stays_off_first_bank(&ops[o]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--boundaries"))
        return print_boundaries();
    need_sections();
    obj = PERCPU_NEW(struct object);
    if (!obj || sites_end - sites_begin > 4096)
        return 1;
    choose_cpus();
    (void)run_inc32(&t.args); /* registers */
    make_handles();
    if (!make_sections_writable())
        skip_all("the system does not let code be patched");
    reset();
    for (int kind = 0; kind < TRAP_KINDS; kind++)
        check_kind(kind);
    if (!can_migrate)
        skip("exact after a migration at each boundary", "only one CPU is allowed");
    is(percpu_priv_copies(obj), percpu_nr_cpus(), "no case used the second bank");
    (void)percpu_priv_fallback_copy(obj); /* from here on it is compared too */
    check_bounds(0);
    note("%lu cases were run again, because of a preemption in a section", total_disturbed);
    ok(total_cases && total_aborts, "%lu cases (boundary x act), %lu aborts", total_cases,
       total_aborts);
    return done();
}
#endif
