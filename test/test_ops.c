/* SPDX-License-Identifier: MIT */
/*
 * The operations' values: each this_cpu_* on each kind of operand against plain arithmetic, with
 * constants that fit an instruction and that do not, first as critical sections, then on the
 * fallback. Arguments are evaluated once.
 *
 * Goes red, for example, where a 32-bit constant is sign-extended into a 64-bit operand, where a
 * subtraction negates in 32 bits, where cmpxchg stores what it should not.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"

enum colour { RED = 0, GREEN = 1, BLUE = 0x7ffffff0 };

struct link {
    struct link *next;
    int value;
};

struct object {
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    long l;
    unsigned long ul;
    void *pointer;
    struct link *link;
    enum colour colour;
    int after;
    const char *text;
    struct {
        uint32_t inner[4];
    } nested;
};

/* On one CPU this thread sees one copy, whichever bank it is on. */
static void stay_here(void)
{
    move_to(0, (unsigned)sched_getcpu());
}

static int wrong;
static void same(uint64_t got, uint64_t want, const char *what, int line)
{
    if (got != want && wrong++ < 10)
        note("line %d: %s: got %#lx, expected %#lx", line, what, (unsigned long)got,
             (unsigned long)want);
}
#define SAME(got, want, what) same((uint64_t)(got), (uint64_t)(want), what, __LINE__)

/* Literals, so that the compiler may make immediates of them. */
#define CONSTANTS(X) \
    X(1)             \
    X(-1)            \
    X(-129)          \
    X(0x7fffffff)    \
    X(0x80000000u) X(0xffffffffu) X((int64_t)1 << 40) X(INT64_MIN) X(UINT64_C(0xffffffff80000000))

/*
 * For operands that go the same way as one of those with all constants: compilers take their time.
 */
#define SOME(X) X(-1) X(0x80000000u) X(INT64_MIN)

static volatile uint64_t starts[] = {0,           1,
                                     0x7fffffff,  0x80000000u,
                                     0xffffffffu, UINT64_C(1) << 40,
                                     INT64_MAX,   UINT64_C(1) << 63,
                                     UINT64_MAX};
static volatile uint64_t opaque;

/* One constant on operand @x of type T, computed in U; A: what the type is added to with. */
#define ON_ONE(T, U, A, x, start, c)                                                       \
    do {                                                                                   \
        const U s = (U)(start), v = (U)(c);                                                \
        this_cpu_write(x, (T)s);                                                           \
        SAME((U)this_cpu_read(x), s, "write and read");                                    \
        this_cpu_add(x, (A)(c));                                                           \
        SAME((U)this_cpu_read(x), (U)(s + v), "add " #c);                                  \
        this_cpu_sub(x, (A)(c));                                                           \
        SAME((U)this_cpu_read(x), s, "sub " #c);                                           \
        this_cpu_sub(x, (A)opaque);                                                        \
        SAME((U)this_cpu_read(x), (U)(s - (U)opaque), "sub of a variable");                \
        this_cpu_add(x, (A)opaque);                                                        \
        SAME((U)this_cpu_add_return(x, (A)(c)), (U)(s + v), "add_return " #c);             \
        SAME((U)this_cpu_read(x), (U)(s + v), "add_return stored " #c);                    \
        this_cpu_inc(x);                                                                   \
        SAME((U)this_cpu_read(x), (U)(s + v + 1), "inc");                                  \
        this_cpu_dec(x);                                                                   \
        SAME((U)this_cpu_read(x), (U)(s + v), "dec");                                      \
        this_cpu_write(x, (T)s);                                                           \
        this_cpu_or(x, (A)(c));                                                            \
        SAME((U)this_cpu_read(x), (U)(s | v), "or " #c);                                   \
        this_cpu_write(x, (T)s);                                                           \
        this_cpu_and(x, (A)(c));                                                           \
        SAME((U)this_cpu_read(x), (U)(s & v), "and " #c);                                  \
        this_cpu_write(x, (T)(U)(c));                                                      \
        SAME((U)this_cpu_read(x), v, "write " #c);                                         \
        SAME((U)this_cpu_xchg(x, (T)s), v, "xchg returns the old value");                  \
        SAME((U)this_cpu_xchg(x, (T)(U)(c)), s, "xchg stored");                            \
        SAME((U)this_cpu_cmpxchg(x, (T)(U)(c), (T)s), v, "cmpxchg that matches");          \
        SAME((U)this_cpu_read(x), s, "cmpxchg stored");                                    \
        SAME((U)this_cpu_cmpxchg(x, (T)(U)(s + 1), (T)(U)(c)), s, "cmpxchg that differs"); \
        SAME((U)this_cpu_read(x), s, "cmpxchg kept its hands off");                        \
    } while (0);

#define INTEGER(name, constants)                                        \
    static void values_of_##name(struct object *o)                      \
    {                                                                   \
        for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) { \
            const uint64_t start = starts[i];                           \
            opaque = starts[(i + 4) % 9];                               \
            constants(INTEGER_STEP_##name)                              \
        }                                                               \
    }
#define INTEGER_STEP_i32(c) ON_ONE(int32_t, uint32_t, int32_t, o->i32, start, c)
#define INTEGER_STEP_u32(c) ON_ONE(uint32_t, uint32_t, uint32_t, o->u32, start, c)
#define INTEGER_STEP_i64(c) ON_ONE(int64_t, uint64_t, int64_t, o->i64, start, c)
#define INTEGER_STEP_u64(c) ON_ONE(uint64_t, uint64_t, uint64_t, o->u64, start, c)
#define INTEGER_STEP_l(c) ON_ONE(long, unsigned long, long, o->l, start, c)
#define INTEGER_STEP_ul(c) ON_ONE(unsigned long, unsigned long, unsigned long, o->ul, start, c)
#define INTEGER_STEP_pointer(c) ON_ONE(void *, uintptr_t, uintptr_t, o->pointer, start, c)
#define INTEGER_STEP_text(c) ON_ONE(const char *, uintptr_t, intptr_t, o->text, start, c)
INTEGER(i32, SOME)
INTEGER(u32, CONSTANTS)
#if UINTPTR_MAX > 0xffffffffu
INTEGER(i64, SOME)
INTEGER(u64, CONSTANTS)
#endif
INTEGER(l, SOME)
INTEGER(ul, SOME)
INTEGER(pointer, SOME)
INTEGER(text, SOME)

/* What the caller's own types are converted to: as in an assignment to the operand. */
static void mixed_types(struct object *o)
{
#if UINTPTR_MAX > 0xffffffffu
    const unsigned u = 7;
    const int i = -7;
    const uint8_t byte = 200;
    const int8_t negative = -3;
    const short s = -300;
    this_cpu_write(o->u64, 100);
    this_cpu_sub(o->u64, u); /* negated in 32 bits it would add 2^32 - 7 */
    SAME(this_cpu_read(o->u64), 93u, "an unsigned int from 64 bits");
    this_cpu_add(o->u64, i);
    SAME(this_cpu_read(o->u64), 86u, "a negative int to 64 bits");
    this_cpu_add(o->u64, 0x80000000u);
    SAME(this_cpu_read(o->u64), UINT64_C(0x80000056), "0x80000000 is not negative");
    this_cpu_sub(o->u64, 0x80000000u);
    this_cpu_add(o->u64, -1);
    SAME(this_cpu_read(o->u64), 85u, "-1 is");
    this_cpu_add(o->i64, byte);
    this_cpu_write(o->i64, 1000);
    this_cpu_sub(o->i64, byte);
    this_cpu_sub(o->i64, negative);
    this_cpu_add(o->i64, s);
    SAME(this_cpu_read(o->i64), 503, "narrow types of either sign");
    SAME(this_cpu_add_return(o->i64, -504), -1, "add_return of a signed operand is signed");
    this_cpu_and(o->i64, ~(int64_t)0xff);
    SAME(this_cpu_read(o->i64), -256, "and");
    this_cpu_and(o->u64, -2);
    SAME(this_cpu_read(o->u64), 84u, "and with a negative int");
    this_cpu_write(o->u64, -1);
    SAME(this_cpu_cmpxchg(o->u64, -1, 5), UINT64_MAX, "cmpxchg expects -1");
    SAME(this_cpu_read(o->u64), 5u, "and finds it");
    this_cpu_write(o->i64, (int32_t)-5);
    SAME(this_cpu_xchg(o->i64, 1), -5, "xchg of a signed operand");
    this_cpu_add(o->i32, (int64_t)1 << 32);
#endif
    this_cpu_write(o->i32, -5);
    ok(this_cpu_read(o->i32) < 0, "a negative value reads as negative");
    ok(this_cpu_add_return(o->i32, -1) == -6 && this_cpu_xchg(o->i32, 4) == -6,
       "and is returned as such");
    this_cpu_write(o->u32, 0xfffffff0u);
    ok(this_cpu_add_return(o->u32, 0x20) == 0x10, "unsigned wraps");
}

static void enums(struct object *o)
{
    this_cpu_write(o->colour, BLUE);
    ok(this_cpu_read(o->colour) == BLUE, "an enum");
    ok(this_cpu_xchg(o->colour, RED) == BLUE, "exchanged");
    ok(this_cpu_cmpxchg(o->colour, RED, GREEN) == RED && this_cpu_read(o->colour) == GREEN,
       "compared");
    ok(this_cpu_cmpxchg(o->colour, RED, BLUE) == GREEN && this_cpu_read(o->colour) == GREEN,
       "refused");
}

static void pointers(struct object *o)
{
    struct link a = {(struct link *)0, 1}, b = {&a, 2};
    this_cpu_write(o->link, &a);
    ok(this_cpu_read(o->link)->value == 1, "a pointer to a struct");
    ok(this_cpu_xchg(o->link, &b)->value == 1, "exchanged");
    ok(this_cpu_cmpxchg(o->link, &a, (struct link *)0) == &b, "not the expected one");
    ok(this_cpu_cmpxchg(o->link, &b, b.next) == &b && this_cpu_read(o->link) == &a,
       "the expected one");
    this_cpu_write(o->link, (struct link *)0);
    ok(this_cpu_read(o->link) == (struct link *)0, "NULL");
    this_cpu_write(o->text, "text");
    ok(!strcmp(this_cpu_read(o->text), "text"), "a pointer to const");
}

static void members(struct object *o)
{
    const struct object *read_only = o;
    volatile uint32_t *changing = &o->u32;
    for (unsigned i = 0; i < 4; i++)
        this_cpu_write(o->nested.inner[i], i + 1);
    this_cpu_add(o->nested.inner[1], 100);
    ok(this_cpu_read(o->nested.inner[0]) == 1 && this_cpu_read(o->nested.inner[1]) == 102 &&
           this_cpu_read(o->nested.inner[2]) == 3,
       "an element of an array in a struct, and not its neighbours");
    this_cpu_write(o->u32, 9);
    ok(this_cpu_read(read_only->u32) == 9, "read through a pointer to const");
    this_cpu_inc(*changing);
    ok(this_cpu_read(*changing) == 10, "a volatile operand");
    this_cpu_write(o->after, 5);
    this_cpu_write(o->colour, GREEN);
    ok(this_cpu_read(o->after) == 5, "4 bytes are 4 bytes");
}

/* ---- Arguments are evaluated once */

static int calls;
static int f(int v)
{
    calls++;
    return v;
}

static void once(struct object *o)
{
    uint32_t *p = o->nested.inner, *const from = p;
    int good = 1;
    for (int i = 0; i < 4; i++)
        this_cpu_write(o->nested.inner[i], 10);
    calls = 0;
    this_cpu_add(*p++, f(1));
    good &= p == from + 1 && calls == 1;
    this_cpu_sub(*p++, f(1));
    good &= p == from + 2 && calls == 2;
    this_cpu_and(*p++, f(8));
    good &= p == from + 3 && calls == 3;
    this_cpu_or(*p++, f(5));
    good &= p == from + 4 && calls == 4;
    ok(good, "add, sub, and, or evaluate their arguments once");
    p = from;
    this_cpu_inc(*p++);
    this_cpu_dec(*p++);
    ok(p == from + 2, "inc and dec too");
    ok(this_cpu_read(from[0]) == 12 && this_cpu_read(from[1]) == 8 && this_cpu_read(from[2]) == 8 &&
           this_cpu_read(from[3]) == 15,
       "each acted where it should");
    p = from;
    good = this_cpu_read(*p++) == 12;
    this_cpu_write(*p++, (uint32_t)f(3));
    good &= this_cpu_add_return(*p++, f(2)) == 10;
    good &= this_cpu_xchg(*p++, (uint32_t)f(4)) == 15;
    ok(good && p == from + 4 && calls == 7, "read, write, add_return, xchg");
    p = from;
    good = this_cpu_cmpxchg(*p++, (uint32_t)f(12), (uint32_t)f(13)) == 12;
    ok(good && p == from + 1 && calls == 9 && this_cpu_read(from[0]) == 13, "cmpxchg");
    p = from;
    ok(this_cpu_ptr(p++) != (uint32_t *)0 && p == from + 1, "this_cpu_ptr");
}

static void where(struct object *o, int sections)
{
    struct object *copy, *mine = this_cpu_ptr(o);
    unsigned touched = 0;
    this_cpu_write(o->u32, 0x1234567);
    percpu_for_each_copy(o, copy) touched += copy->u32 == 0x1234567;
    is(touched, 1, "an operation acts on one copy");
    ok(mine->u32 == 0x1234567, "the one that this_cpu_ptr names");
    if (sections)
        ok(mine == percpu_ptr(o, this_cpu_id()), "and percpu_ptr, by this CPU's number");
    else
        ok((uintptr_t)mine >= (uintptr_t)percpu_ptr(o, percpu_nr_cpus()),
           "which is in the second bank");
    this_cpu_write(o->u32, 0);
}

static void everything(void)
{
    struct object *o = PERCPU_NEW(struct object), *copy;
    int sections = percpu_thread_register() == 0;
    note("mode: %s", percpu_reason_text(percpu_status().reason));
    errno = 4711;
#define RUN(name)                         \
    do {                                  \
        wrong = 0;                        \
        values_of_##name(o);              \
        is(wrong, 0, "values of " #name); \
    } while (0)
    RUN(i32);
    RUN(u32);
#if UINTPTR_MAX > 0xffffffffu
    RUN(i64);
    RUN(u64);
#endif
    RUN(l);
    RUN(ul);
    RUN(pointer);
    RUN(text);
    wrong = 0;
    mixed_types(o);
    is(wrong, 0, "operands and arguments of different types");
    ok(errno == 4711, "errno stays as it was");
    enums(o);
    pointers(o);
    members(o);
    once(o);
    where(o, sections);
    percpu_for_each_copy(o, copy) memset(copy, 0, sizeof *copy);
    is(percpu_free(o), 0, "freed");
}

static void *on_the_fallback(void *arg)
{
    (void)arg;
    stay_here();
    if (leave_rseq())
        everything();
    else
        ok(0, "this thread could be taken off rseq");
    return (void *)0;
}

int main(void)
{
    pthread_t thread;
    stay_here();
    everything();
    pthread_create(&thread, (const pthread_attr_t *)0, on_the_fallback, (void *)0);
    pthread_join(thread, (void **)0);
    return done();
}
