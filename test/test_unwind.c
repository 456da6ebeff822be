/* SPDX-License-Identifier: MIT */
// cflags: -Wl,--eh-frame-hdr
/*
 * A backtrace from a signal that aborted a section reaches main.
 *
 * The handler of such a signal returns to the abort stub, not into the interrupted function, so an
 * unwinder starts at the stub. The stub's unwind information must lead it to the function and on.
 * Without that information (seen by removing the stub's .cfi_escape) the walk ends at the stub.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "tap.h"
#include "sections.h"
#include <unwind.h>

#if !SECTIONS_CAN_TRAP || defined(__arm__)
int main(void)
{
#ifdef __arm__
    skip_all("arm's unwind tables cannot describe the stub");
#endif
    skip_all(PERCPU_RSEQ_SECTIONS ? "no traps for this processor yet"
                                  : "no critical sections for this processor yet");
    return done();
}
#else

#ifndef __GLIBC__
/*
 * musl-gcc may link a libgcc that was built for glibc, and that asks glibc 2.35's function for
 * unwind tables: do it here with dl_iterate_phdr(). A libgcc built for musl never calls it.
 */
#include <link.h>
#include <pthread.h>
/* Such a libgcc has weak references to these, which a static link leaves at 0. */
static int (*volatile const needed_once)(pthread_once_t *, void (*)(void)) = pthread_once;
static int (*volatile const needed_lock)(pthread_mutex_t *) = pthread_mutex_lock;
static int (*volatile const needed_unlock)(pthread_mutex_t *) = pthread_mutex_unlock;
struct found_object {
    unsigned long long flags;
    void *start, *end, *link_map, *eh_frame;
    unsigned long long reserved[7];
};
struct search {
    uintptr_t pc;
    struct found_object *result;
};

static int look_in_object(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *s = (struct search *)data;
    const ElfW(Phdr) *eh = NULL;
    int here = 0;
    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && s->pc - info->dlpi_addr - p->p_vaddr < p->p_memsz)
            here = 1;
        if (p->p_type == PT_GNU_EH_FRAME)
            eh = p;
    }
    if (here && eh)
        s->result->eh_frame = (void *)(uintptr_t)(info->dlpi_addr + eh->p_vaddr);
    return here;
}

#ifdef __cplusplus
extern "C"
#endif
    int
    _dl_find_object(void *pc, struct found_object *result);
__attribute__((weak)) int _dl_find_object(void *pc, struct found_object *result)
{
    struct search s;
    s.pc = (uintptr_t)pc;
    s.result = result;
    memset(result, 0, sizeof *result);
    (void)dl_iterate_phdr(look_in_object, &s);
    return result->eh_frame ? 0 : -1;
}
#endif

struct object {
    percpu_word word;
    uint32_t w32;
};
static struct object *obj;
static struct percpu_counter counter;
#ifdef PERCPU_RSEQ_OP_PUBLISH
static struct percpu_gauge gauge;
#endif
static struct percpu_freelist list;
static void *node[2];

#define FRAME __attribute__((noinline))
#define NO_FRAME_POINTER
#if defined(__GNUC__) && !defined(__clang__)
#undef NO_FRAME_POINTER
#define NO_FRAME_POINTER __attribute__((optimize("omit-frame-pointer")))
#endif

/* Call sites that the compiler may not turn into a jump, which would leave no frame. */
static volatile unsigned returned;

/*
 * Operations in functions of several shapes: a leaf, one that keeps registers, one with a big
 * frame.
 */
static FRAME void op_add(void)
{
    this_cpu_add(obj->word, 3);
}
static FRAME NO_FRAME_POINTER void op_counter(void)
{
    percpu_counter_inc(&counter);
}
static FRAME NO_FRAME_POINTER void op_result(void)
{
    unsigned a = returned, b = a * 3, c = b ^ 17;
    uint32_t r = this_cpu_add_return(obj->w32, 1);
    returned = a + b + c + r;
}
static FRAME void op_frame(void)
{
    volatile char space[3000];
    space[0] = 1;
    space[2999] = 2;
    this_cpu_write(obj->word, space[0] + space[2999]);
}
static FRAME void op_alloca(void)
{
    volatile char *space = (volatile char *)__builtin_alloca(64 + returned % 64);
    space[3] = 1;
    (void)this_cpu_xchg(obj->word, 5);
    space[4] = 1;
}
static FRAME void op_list(void)
{
    percpu_freelist_push(&list, node);
    returned += percpu_freelist_pop(&list) != NULL;
}
#ifdef PERCPU_RSEQ_OP_PUBLISH
static FRAME void op_gauge(void)
{
    percpu_gauge_set(&gauge, 1.5);
}
#endif

static const struct op {
    const char *name;
    void (*run)(void);
} ops[] = {
    {"a leaf function", op_add}, {"a counter", op_counter}, {"live registers", op_result},
    {"a big frame", op_frame},   {"alloca", op_alloca},     {"a free list", op_list},
#ifdef PERCPU_RSEQ_OP_PUBLISH
    {"a gauge", op_gauge},
#endif
};
#define OPS (sizeof ops / sizeof ops[0])

static struct {
    const struct percpu_rseq_site *found;
    int finding;
    unsigned traps, aborted, frames;
    uintptr_t ip[64];
} t;

static FRAME void call(const struct op *op)
{
    op->run();
    returned++;
}

static _Unwind_Reason_Code on_frame(struct _Unwind_Context *context, void *unused)
{
    (void)unused;
    if (t.frames == sizeof t.ip / sizeof t.ip[0])
        return _URC_END_OF_STACK;
    t.ip[t.frames++] = _Unwind_GetIP(context);
    return _URC_NO_REASON;
}

static void on_trap(int sig, siginfo_t *info, void *context)
{
    uintptr_t ip = trap_ip(context), at = ip - trap_skips[0];
    (void)sig;
    (void)info;
    remove_traps();
    if (ip == (uintptr_t)sites_begin->descriptor.abort_ip)
        t.aborted++;
    else
        trap_set_ip(context, at);
    t.traps++;
    if (t.finding) {
        for (const struct percpu_rseq_site *s = sites_begin; s < sites_end; s++)
            if (s->restart_ip == at)
                t.found = s;
    } else {
        (void)_Unwind_Backtrace(on_frame, NULL);
    }
}

/* Return addresses in main and in call(), as the same unwinder sees them without any signal. */
static uintptr_t ip_main, ip_call;
static FRAME void look(void)
{
    t.frames = 0;
    (void)_Unwind_Backtrace(on_frame, NULL);
    returned++;
}
static const struct op looking = {"look", look};

static int has(uintptr_t ip)
{
    for (unsigned i = 0; i < t.frames; i++)
        if (t.ip[i] == ip)
            return 1;
    return 0;
}

static const struct percpu_rseq_site *find_site(const struct op *op)
{
    memset(&t, 0, sizeof t);
    t.finding = 1;
    for (const struct percpu_rseq_site *s = sites_begin; s < sites_end; s++)
        set_trap((unsigned char *)(uintptr_t)s->restart_ip, 0);
    op->run();
    remove_traps();
    return t.found;
}

static void check_unwind(const struct op *op, const struct percpu_rseq_site *site, uintptr_t here)
{
    struct boundaries b;
    unsigned good = 0, inside = 0, in_function = 0;
    if (!site || !find_boundaries(site, &b)) {
        ok(0, "%s: no section found", op->name);
        return;
    }
    for (unsigned i = b.start; i < b.post; i++) {
        memset(&t, 0, sizeof t);
        set_trap(b.at[i], 0);
        call(op);
        remove_traps();
        if (!t.traps) /* not executed: see insn_is_exit() */
            continue;
        inside++;
        good += t.aborted == 1 && has(ip_call) && has(here) ? 1 : 0;
        /* The frame after the stub is the function at the section's restart address. */
        in_function += has((uintptr_t)site->restart_ip) ? 1 : 0;
    }
    if (!ok(inside && good == inside && in_function == inside,
            "%s: from all instructions of the section to main", op->name)) {
        note("%u instructions, %u reach main, %u name the function; the last walk:", inside, good,
             in_function);
        for (unsigned i = 0; i < t.frames; i++)
            note("  %#lx", (unsigned long)t.ip[i]);
    }
}

static volatile size_t steps = 2 * OPS + 1; /* volatile: an unrolled loop has many call sites */

/* Called from one place in main, so that main's return address is known. */
static FRAME void step(size_t i)
{
    static const struct percpu_rseq_site *sites[OPS];
    if (i < OPS) {
        sites[i] = find_site(&ops[i]);
        return;
    }
    if (i == OPS) {
        call(&looking);
        if (ok(t.frames > 3, "a backtrace without a signal has %u frames", t.frames)) {
            /* [0] look, [1] call, [2] step, [3] main */
            ip_call = t.ip[1];
            ip_main = t.ip[3];
        }
        return;
    }
    if (ip_main)
        check_unwind(&ops[i - OPS - 1], sites[i - OPS - 1], ip_main);
}

int main(void)
{
    struct sigaction sa;
    need_sections();
#ifndef __GLIBC__
    struct found_object found;
    if (!needed_once || !needed_lock || !needed_unlock)
        return 1;
    if (_dl_find_object((void *)(uintptr_t)look, &found) != 0)
        skip_all("linked without an index of unwind tables");
#endif
    obj = PERCPU_NEW(struct object);
    if (!obj || !make_sections_writable())
        skip_all("the system does not let code be patched");
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_trap;
    sa.sa_flags = SA_SIGINFO;
    sigaction(trap_signals[0], &sa, NULL);
    for (size_t i = 0; i < OPS; i++)
        ops[i].run(); /* registers, allocates */
    for (size_t i = 0; i < steps; i++) {
        step(i);
        returned++;
    }
    return done();
}
#endif
