/* SPDX-License-Identifier: MIT */
/*
 * [0] percpu.h - per-CPU data for Linux programs: as fast as plain memory, exact.
 *
 *     #include "percpu.h"
 *     #include <stdio.h>
 *
 *     static struct percpu_counter hits;        // zero is ready to use: no init, no order
 *
 *     int main(void)
 *     {
 *         for (int i = 0; i < 1000; i++)
 *             percpu_counter_inc(&hits);        // from any thread, also in a signal handler
 *         printf("%lu hits, now on CPU %u\n",
 *                (unsigned long)percpu_counter_sum(&hits), this_cpu_id());
 *         return 0;
 *     }
 *
 * An operation on this CPU's copy is one rseq critical section of a few instructions, without a
 * locked instruction and without a system call. Where rseq is not to be had (old kernel, sandbox,
 * another owner, another system) the same calls give the same exact results with atomics, and
 * percpu_status() says why in a sentence.
 *
 * Guarantees: no operation is lost or done twice, under preemption, migration, signals, fork,
 * thread exit and CPU hotplug, in processes where some threads have rseq and some have not. Nothing
 * here allocates from, or locks in, libc. errno is preserved by everything that cannot fail.
 *
 * Limits: a copy's plain reader sees a word that others change (loads are not torn). An operation
 * orders nothing, not even for the compiler, unless its comment says so. A vfork child must not
 * operate: it runs in its parent's area, on another CPU. Do not unload a plugin while a thread may
 * be inside it; see percpu_thread_unregister().
 *
 *   [1]  Version and configuration        [7]  Counter sets
 *   [2]  Which CPU am I on                [8]  Timestamps
 *   [3]  Registration and diagnosis       [9]  Gauges
 *   [4]  Per-CPU memory                   [10] Free lists
 *   [5]  Operations on this CPU's copy    [11] Crossing CPUs
 *   [6]  Counters                         [12] Machinery
 */
#ifndef PERCPU_H
#define PERCPU_H

/* ---- [1] Version and configuration ---------------------------------------------------------- */
/*
 * Define before the first inclusion, the same in every file of a program unless said otherwise:
 *
 *   PERCPU_STRIDE_SHIFT n    copies are 2^n bytes apart; 12 to 20, default 16. Also the largest
 *                            object. Files with different values do not share objects.
 *   PERCPU_NO_SHORT_NAMES    no this_cpu_* names, only percpu_this_cpu_*. Per file.
 *   PERCPU_NO_REGISTER       never make the rseq system call: libc's registration, or the
 *                            fallback. For sandboxes that kill. Per file.
 *   PERCPU_FORCE_FALLBACK    no critical sections. Per file.
 *   PERCPU_NO_LINUX          behave as on a system without rseq.
 */
#define PERCPU_VERSION_MAJOR 0
#define PERCPU_VERSION_MINOR 1
#define PERCPU_VERSION_PATCH 0
#define PERCPU_VERSION_STRING             \
    PERCPU_RSEQ_STR(PERCPU_VERSION_MAJOR) \
    "." PERCPU_RSEQ_STR(PERCPU_VERSION_MINOR) "." PERCPU_RSEQ_STR(PERCPU_VERSION_PATCH)

#ifndef PERCPU_STRIDE_SHIFT
#define PERCPU_STRIDE_SHIFT 16
#endif

#include "rseq_abi.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#ifndef __GLIBC__
#include <pthread.h>
#endif
#elif defined(_WIN32)
/* Two functions of kernel32, declared here rather than by a header of 100,000 lines. */
#elif defined(__APPLE__) || defined(__FreeBSD__)
#include <sys/mman.h>
#endif
#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#ifdef __cplusplus
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wzero-as-null-pointer-constant"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuseless-cast"
#endif
#elif !defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L
#pragma GCC diagnostic ignored "-Wredundant-decls" /* glibc: _Static_assert is a declaration */
#endif
#endif

PERCPU_RSEQ_STATIC_ASSERT(PERCPU_STRIDE_SHIFT >= 12 && PERCPU_STRIDE_SHIFT <= 20,
                          "PERCPU_STRIDE_SHIFT is 12 to 20");
#define PERCPU_STRIDE \
    (sizeof(char) << PERCPU_STRIDE_SHIFT) /* no cast: C++ users may forbid old ones */

/* State of the machinery that the inline functions below read; the rest of it is in [12]. */
struct percpu_priv_arena;
struct percpu_priv_shared {
    struct percpu_rseq_reach reach;
    uint32_t nr_cpus;      /* 0 not known yet */
    uint32_t feature_size; /* bytes of the active area that the kernel maintains */
    uint32_t libc_size;    /* what libc registered, 0 nothing */
    uint32_t length;       /* what to register */
    uint32_t next_row;     /* fallback rows handed out */
    uint8_t from_own_known, from_tp_known;
    uint8_t kernel_broken;
    uint32_t hook;      /* enum percpu_priv_hook_state; a word, or riscv64 needs libatomic */
    uint8_t membarrier; /* 1 registered for the rseq command, 2 not to be had */
    uint8_t rdtscp;     /* 1 usable, 2 not */
    unsigned key;       /* pthread_key_t of the exit hook */
    struct percpu_priv_arena *arenas, *hint;
    struct percpu_priv_arena *spare; /* the last one that became empty */
};
#define PERCPU_PRIV_PASTE_(a, b) a##b
#define PERCPU_PRIV_PASTE(a, b) PERCPU_PRIV_PASTE_(a, b)
/* One per process where symbols are shared; the name keeps unlike configurations apart. */
#define percpu_priv_state PERCPU_PRIV_PASTE(percpu_priv_state_v1_s, PERCPU_STRIDE_SHIFT)
#if defined(_WIN32) /* weak data is not merged there; this is, if its first declaration says so */
#ifdef __cplusplus
#define PERCPU_PRIV_ZERO = {}
#else
#define PERCPU_PRIV_ZERO = {0}
#endif
extern __attribute__((selectany)) struct percpu_priv_shared percpu_priv_state;
#else
#define PERCPU_PRIV_ZERO
extern struct percpu_priv_shared percpu_priv_state;
#if defined(__ELF__)
__attribute__((weak, visibility("default")))
#elif defined(__GNUC__)
__attribute__((weak))
#endif
#endif
struct percpu_priv_shared percpu_priv_state PERCPU_PRIV_ZERO;

#if defined(__GNUC__)
#define PERCPU_PRIV_OUTLINE __attribute__((noinline, unused))
#define PERCPU_PRIV_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define PERCPU_PRIV_OUTLINE
#define PERCPU_PRIV_UNLIKELY(x) (x)
#endif

/* ThreadSanitizer does not see into sections: tell it when a node changes hands. */
#if defined(__SANITIZE_THREAD__)
#define PERCPU_PRIV_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PERCPU_PRIV_TSAN
#endif
#endif
#ifdef PERCPU_PRIV_TSAN
extern void __tsan_acquire(void *at);
extern void __tsan_release(void *at);
#define PERCPU_PRIV_HAND_OVER(p) __tsan_release(p)
#define PERCPU_PRIV_TAKE_OVER(p) __tsan_acquire(p)
#else
#define PERCPU_PRIV_HAND_OVER(p) ((void)0)
#define PERCPU_PRIV_TAKE_OVER(p) ((void)0)
#endif

static PERCPU_PRIV_OUTLINE int percpu_priv_enter(void);
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_id_slow(void);
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_node_slow(void);
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_find_nr_cpus(void);
static PERCPU_PRIV_OUTLINE void *percpu_priv_fallback_copy(const void *p);
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_copies(const void *p);

#if PERCPU_RSEQ_PORTED
#define PERCPU_PRIV_OFFSET() PERCPU_RSEQ_OFFSET(&percpu_priv_state.reach)
#endif
#if PERCPU_RSEQ_SECTIONS && !defined(PERCPU_FORCE_FALLBACK)
#define PERCPU_PRIV_SECTIONS 1
#else
#define PERCPU_PRIV_SECTIONS 0
#endif

/* ---- [2] Which CPU am I on ------------------------------------------------------------------ */
/*
 * The kernel keeps the number in the thread's area; reading it is one load. The answer may be out
 * of date when you look at it, as any such answer: use it as a hint, or let [5] act on it.
 */

/**
 * percpu_cpu_raw() - the CPU this thread runs on, or a negative number.
 *
 * Return: the id; negative while this thread is not registered (before its first operation,
 * where libc did not register it) or cannot be.
 * Order: none; but it is read anew by each call, also after a fiber moved to another thread.
 * Context: any.
 * Cost: a load for the offset and a load for the id; no branch, no call.
 */
PERCPU_RSEQ_INLINE int percpu_cpu_raw(void)
{
#if PERCPU_RSEQ_PORTED
    return percpu_rseq_cpu_id(PERCPU_PRIV_OFFSET());
#else
    return -1;
#endif
}

/**
 * percpu_this_cpu_id() - the CPU this thread runs on. Short name: this_cpu_id().
 *
 * The first call in a thread registers it with rseq, where possible.
 *
 * Return: the id, as in sched_getcpu(). It is below percpu_nr_cpus(), unless a sandbox hides CPUs
 * (PERCPU_REASON_ID_RANGE): check before you index a table of your own. 0 where the system has no
 * way to tell.
 * Context: any. errno is preserved.
 * Cost: percpu_cpu_raw() and a branch; without rseq a call of the system's own function.
 */
PERCPU_RSEQ_INLINE unsigned percpu_this_cpu_id(void)
{
    int id = percpu_cpu_raw();
    return PERCPU_PRIV_UNLIKELY(id < 0) ? percpu_priv_id_slow() : (unsigned)id;
}

/**
 * percpu_this_cpu_node() - the NUMA node of this CPU. Short name: this_cpu_node().
 *
 * Return: the node; 0 where the system has no way to tell.
 * Context: any. errno is preserved.
 * Cost: a few loads since Linux 6.3; a system call before, and without rseq.
 */
static inline unsigned percpu_this_cpu_node(void)
{
#if PERCPU_RSEQ_PORTED
    intptr_t off = PERCPU_PRIV_OFFSET();
    if (!PERCPU_RSEQ_UNSET(off) && percpu_priv_state.feature_size >= 24 &&
        percpu_rseq_cpu_id(off) >= 0)
        return percpu_rseq_read_member(off, offsetof(struct percpu_rseq_area, node_id));
#endif
    return percpu_priv_node_slow();
}

/**
 * percpu_this_cpu_cid() - a compact id of this CPU in this process. Short name: this_cpu_cid().
 *
 * Threads that run at the same time have different ids, and ids are small: below the smaller of
 * the process's threads and CPUs, most of the time. For indexing tables in containers that use
 * few CPUs of many.
 *
 * Return: the kernel's mm_cid; the CPU id before Linux 6.3 and without rseq.
 * Context: any. errno is preserved. Cost: a few loads.
 */
static inline unsigned percpu_this_cpu_cid(void)
{
    unsigned cpu = percpu_this_cpu_id();
#if PERCPU_RSEQ_PORTED
    intptr_t off = PERCPU_PRIV_OFFSET();
    if (!PERCPU_RSEQ_UNSET(off) && percpu_priv_state.feature_size >= 28 &&
        percpu_rseq_cpu_id(off) >= 0)
        return percpu_rseq_read_member(off, offsetof(struct percpu_rseq_area, mm_cid));
#endif
    return cpu;
}

/**
 * percpu_nr_cpus() - one more than the highest CPU id that this system can have.
 *
 * Never a count: ids have holes, and CPUs that are offline or not allowed now may come.
 *
 * Context: any. errno is preserved. Cost: a load; the first call reads a file of sysfs.
 */
static inline unsigned percpu_nr_cpus(void)
{
    unsigned n = percpu_priv_state.nr_cpus;
    return n ? n : percpu_priv_find_nr_cpus();
}

/* percpu_for_each_cpu(cpu) - loop over every id below percpu_nr_cpus(), holes included. */
#define percpu_for_each_cpu(cpu) for ((cpu) = 0; (cpu) < percpu_nr_cpus(); (cpu)++)

/* ---- [3] Registration and diagnosis --------------------------------------------------------- */
/*
 * A thread is registered by its first operation that finds no id: never on the hot path, once per
 * thread, whatever comes of it. The area is libc's if libc registered one; else that of a library
 * linked in under the name __rseq_abi; else our own. The area that glibc reserves but was told not
 * to register is left alone: glibc would take a registration there for its own, and end the process
 * if a new thread could not follow.
 *
 * Life of a thread: glibc keeps a thread's memory until the kernel is done with it. musl unmaps a
 * detached thread's memory before the thread's last system call, so there a registered area is
 * given back by a thread-specific-data destructor. From then on the thread takes the fallback: in
 * later destructors, in late signals. A thread whose very first operation is in such a destructor
 * is not registered either: musl disables cancellation in a thread that exits, and we do not
 * register a thread that has cancellation disabled. (A musl thread that disabled it for itself
 * calls percpu_thread_register(), or takes the fallback while it is disabled.)
 */
enum percpu_mode {
    PERCPU_MODE_FALLBACK, /* atomics on the second bank */
    PERCPU_MODE_LIBC,     /* critical sections, in the area that libc registered */
    PERCPU_MODE_OWN       /* critical sections, in an area that we registered or share */
};

/* Why operations take the fallback. */
enum percpu_reason {
    PERCPU_REASON_NONE,           /* they do not */
    PERCPU_REASON_NO_KERNEL,      /* ENOSYS and no sign that this kernel has rseq */
    PERCPU_REASON_BLOCKED,        /* a sandbox refuses the system call */
    PERCPU_REASON_LIBC_DISABLED,  /* libc does not register, and PERCPU_NO_REGISTER */
    PERCPU_REASON_OTHER_OWNER,    /* somebody else registered this thread elsewhere */
    PERCPU_REASON_KERNEL_BROKEN,  /* this kernel does not abort sections reliably */
    PERCPU_REASON_NOT_PORTED,     /* no critical sections for this processor yet */
    PERCPU_REASON_EXITING,        /* the thread is on its way out (musl) */
    PERCPU_REASON_ID_RANGE,       /* on a CPU that percpu_nr_cpus() does not know */
    PERCPU_REASON_NOT_MAINTAINED, /* libc has an area, but this thread's is not registered */
    PERCPU_REASON_DISABLED,       /* built with PERCPU_FORCE_FALLBACK or PERCPU_NO_LINUX */
    PERCPU_REASON_UNREGISTERED,   /* percpu_thread_unregister() was called in this thread */
    PERCPU_REASON_NO_STATIC_TLS,  /* a plugin whose area would be elsewhere in each thread */
    PERCPU_REASON_NO_EXIT_HOOK    /* no pthread key left to give the area back with (musl) */
};

struct percpu_status {
    enum percpu_mode mode;     /* what this thread's operations use, now */
    enum percpu_reason reason; /* why, if mode is PERCPU_MODE_FALLBACK */
    int error;                 /* errno of the refused registration, or 0 */
    unsigned length;           /* bytes registered (to be registered), or 0 */
    unsigned feature_size;     /* bytes of the area that the kernel maintains, or 0 */
    unsigned nr_cpus;          /* percpu_nr_cpus() */
    unsigned long aborts;      /* sections restarted in this module so far; approximate */
};

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* g++: a function that hides a struct of its name */
#endif
/**
 * percpu_status() - what this thread's operations do, and why.
 *
 * Before the thread's first operation: what they would do. Asking registers nothing; it may ask
 * the kernel, with arguments that it has to refuse.
 *
 * Context: any. errno is preserved. Cost: at worst two system calls.
 */
static PERCPU_PRIV_OUTLINE struct percpu_status percpu_status(void);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* percpu_reason_text() - one sentence: what is missing, what it costs here, what to do. */
static PERCPU_PRIV_OUTLINE const char *percpu_reason_text(enum percpu_reason reason);

/**
 * percpu_status_format() - percpu_status() as one line of text, like snprintf().
 *
 * Return: the length of the whole text, without the terminating zero, also if it did not fit.
 * @buf is terminated if @size is not 0.
 */
static PERCPU_PRIV_OUTLINE int percpu_status_format(char *buf, size_t size);

/**
 * percpu_thread_register() - register this thread now rather than in its first operation.
 *
 * Optional. Not from a thread-specific-data destructor on musl: nothing would undo it.
 *
 * Return: 0 if operations in this thread are critical sections; -1 if they take the fallback, with
 * errno: that of the refused system call, or ENOTSUP.
 */
static PERCPU_PRIV_OUTLINE int percpu_thread_register(void);

/**
 * percpu_thread_unregister() - leave rseq in this thread.
 *
 * For a plugin that will be unloaded, in each thread that ran its operations, with none running
 * afterwards; or to hand rseq to another library. A registration of ours is undone and this
 * thread takes the fallback from now on. A registration that is libc's, or another library's,
 * stays and its operations stay critical sections; it only forgets the last section's address.
 *
 * Return: 0; -1 with the errno of the refused system call, and the thread still registered.
 */
static PERCPU_PRIV_OUTLINE int percpu_thread_unregister(void);

/* ---- [4] Per-CPU memory --------------------------------------------------------------------- */
/*
 * Copy c of an object at p is at p + c * PERCPU_STRIDE: no table, no load. Arenas of memory are
 * laid out in rows, one per CPU, and objects are packed densely inside a row, so 512 counters share
 * one page per CPU and no two CPUs share a cache line. Pages that nobody touches cost nothing,
 * and a row's pages are first touched, hence placed, by its own CPU.
 *
 *            object a   object b   ...
 *   row 0    [copy 0]   [copy 0]          \
 *   row 1    [copy 1]   [copy 1]           }  first bank: written by critical sections only
 *   ...                                   /
 *   row n    [copy n]   [copy n]          \
 *   ...                                    }  second bank: written by the fallback only, atomics
 *   row 2n-1                              /
 *
 * A thread without rseq never writes a word that a critical section writes; that is why mixed
 * processes stay exact. Readers visit both banks.
 */

/**
 * percpu_alloc() - allocate an object with a copy for every CPU. Kernel: alloc_percpu().
 * @size: bytes per copy, 1 to PERCPU_STRIDE.
 * @align: a power of two up to PERCPU_STRIDE.
 *
 * Return: copy 0, all copies zeroed; NULL with errno EINVAL or ENOMEM.
 * Context: any thread, also in a signal handler or a malloc replacement: it takes no lock. If a
 * fork catches another thread in it, the child loses at most the memory of that one allocation.
 * Cost: tens of ns; a mapping of 2 * percpu_nr_cpus() * PERCPU_STRIDE bytes of address
 * space each time PERCPU_STRIDE bytes of objects have been handed out.
 */
static PERCPU_PRIV_OUTLINE void *percpu_alloc(size_t size, size_t align);

/**
 * percpu_free() - free an object of percpu_alloc(). Nobody may use any of its copies any more.
 *
 * Return: 0, also for NULL; -1 with errno EINVAL for what is not (or no longer) such an object.
 * Context: as percpu_alloc(). Cost: reads every copy, writes those that were written.
 */
static PERCPU_PRIV_OUTLINE int percpu_free(void *p);

#ifdef __cplusplus
#define PERCPU_PRIV_CAST(type, x) static_cast<type>(x)
#define PERCPU_PRIV_ALIGNOF(type) alignof(type)
#elif defined(__GNUC__)
#define PERCPU_PRIV_CAST(type, x) ((type)(x))
#define PERCPU_PRIV_ALIGNOF(type) __alignof__(type)
#endif

/* PERCPU_NEW(T) - a zeroed per-CPU T, as a T *; NULL with errno ENOMEM. */
#define PERCPU_NEW(T) PERCPU_PRIV_CAST(T *, percpu_alloc(sizeof(T), PERCPU_PRIV_ALIGNOF(T)))

static inline void *percpu_priv_ptr(const void *p, unsigned row)
{
    return (void *)((uintptr_t)p + ((uintptr_t)row << PERCPU_STRIDE_SHIFT));
}

#if PERCPU_PRIV_SECTIONS
#define PERCPU_PRIV_ON_BANK_1()                                    \
    ((unsigned)percpu_cpu_raw() < percpu_priv_state.reach.bound || \
     (percpu_priv_enter() && (unsigned)percpu_cpu_raw() < percpu_priv_state.reach.bound))
#else
#define PERCPU_PRIV_ON_BANK_1() 0
#endif

static inline void *percpu_priv_this(const void *p)
{
    return PERCPU_PRIV_ON_BANK_1() ? percpu_priv_ptr(p, percpu_this_cpu_id())
                                   : percpu_priv_fallback_copy(p);
}

/*
 * percpu_ptr(p, cpu) - the copy of p that sections on @cpu use. Kernel: per_cpu_ptr().
 * this_cpu_ptr(p) - the copy that this thread uses now. Kernel: this_cpu_ptr().
 *
 * To read, use relaxed atomic loads. Writing through them is a race with the CPU's own sections,
 * unless nobody operates on the object.
 */
#ifdef __cplusplus
extern "C++" {
template <typename T> inline T *percpu_ptr(T *p, unsigned cpu)
{
    return (T *)percpu_priv_ptr(p, cpu);
}
template <typename T> inline T *percpu_this_cpu_ptr(T *p)
{
    return (T *)percpu_priv_this(p);
}
}
#else
#define percpu_ptr(p, cpu) ((__typeof__(p))percpu_priv_ptr((p), (cpu)))
#define percpu_this_cpu_ptr(p) ((__typeof__(p))percpu_priv_this(p))
#endif

/*
 * percpu_for_each_copy(p, copy) - loop over every live copy of p, of both banks; copy is a pointer
 * variable of p's type.
 */
#define percpu_for_each_copy(p, copy)                                                     \
    for (unsigned percpu_priv_i_##copy = 0, percpu_priv_n_##copy = percpu_priv_copies(p); \
         percpu_priv_i_##copy < percpu_priv_n_##copy &&                                   \
         ((copy) = percpu_ptr(p, percpu_priv_i_##copy), 1);                               \
         percpu_priv_i_##copy++)

/* ---- [5] Operations on this CPU's copy ------------------------------------------------------ */
/*
 * Each is one critical section on the copy of the CPU it runs on, or one atomic on a copy of the
 * second bank. They are macros over an lvalue in copy 0 of a per-CPU object (p, s->hits), of 4
 * bytes, or of 8 where a word has 8: integers, signed or not, and pointers; in C++ function
 * templates. Arithmetic wraps.
 *
 *   this_cpu_add(x, v)  this_cpu_sub(x, v)  this_cpu_inc(x)  this_cpu_dec(x)
 *   this_cpu_and(x, v)  this_cpu_or(x, v)
 *   this_cpu_read(x)    this_cpu_write(x, v)
 *   this_cpu_add_return(x, v)         returns the new value
 *   this_cpu_xchg(x, v)               returns the old value
 *   this_cpu_cmpxchg(x, expected, v)  returns the old value; stored if that was the expected one
 *
 * Order: add, sub, inc, dec, and, or: none, not even for the compiler. The others are compiler
 * barriers and order nothing for the processor.
 * Context: any: signal handlers, destructors, before main. errno is preserved. They cannot fail.
 * Cost: add: 8 instructions and the load of the offset on x86-64, no lock prefix, no branch taken.
 * Fallback: one uncontended atomic and a call.
 *
 * The functions under them, for other languages: percpu_this_cpu_<op>_u32 and _u64.
 */
#if PERCPU_PRIV_SECTIONS
#ifdef PERCPU_BREAK_FALLBACK_ROW /* for the mutation check */
#define PERCPU_PRIV_SECOND_BANK(p) percpu_priv_ptr((p), 0)
#else
#define PERCPU_PRIV_SECOND_BANK(p) percpu_priv_fallback_copy(p)
#endif
#define PERCPU_PRIV_SECTION(name, ...) (!percpu_rseq_##name(&percpu_priv_state.reach, __VA_ARGS__))
#else
#define PERCPU_PRIV_SECOND_BANK(p) percpu_priv_fallback_copy(p)
#define PERCPU_PRIV_SECTION(name, ...) 0
#endif

/*
 * Each operation: a hot half, the section; and a cold one that is called where the section was not
 * to be had. It registers the thread and tries once more, or acts on the second bank.
 */
#define PERCPU_PRIV_DEFINE_VOID(op, section, n, atomic)                                         \
    static PERCPU_PRIV_OUTLINE void percpu_priv_##op##_slow_u##n(uint##n##_t *p, uint##n##_t v) \
    {                                                                                           \
        if (percpu_priv_enter() && PERCPU_PRIV_SECTION(section##_u##n, p, v))                   \
            return;                                                                             \
        percpu_priv_alias_u##n *copy = (percpu_priv_alias_u##n *)PERCPU_PRIV_SECOND_BANK(p);    \
        atomic;                                                                                 \
    }                                                                                           \
    PERCPU_RSEQ_INLINE void percpu_this_cpu_##op##_u##n(uint##n##_t *p, uint##n##_t v)          \
    {                                                                                           \
        if (PERCPU_PRIV_UNLIKELY(!PERCPU_PRIV_SECTION(section##_u##n, p, v)))                   \
            percpu_priv_##op##_slow_u##n(p, v);                                                 \
    }

/* The same with a result. @args: what the section takes besides p, with types in @params. */
#define PERCPU_PRIV_DEFINE_RESULT(op, section, n, params, args, atomic)                      \
    static PERCPU_PRIV_OUTLINE uint##n##_t percpu_priv_##op##_slow_u##n params               \
    {                                                                                        \
        uint##n##_t out;                                                                     \
        if (percpu_priv_enter() &&                                                           \
            PERCPU_PRIV_SECTION(section##_u##n, PERCPU_RSEQ_SPREAD args, &out))              \
            return out;                                                                      \
        percpu_priv_alias_u##n *copy = (percpu_priv_alias_u##n *)PERCPU_PRIV_SECOND_BANK(p); \
        return atomic;                                                                       \
    }                                                                                        \
    PERCPU_RSEQ_INLINE uint##n##_t percpu_this_cpu_##op##_u##n params                        \
    {                                                                                        \
        uint##n##_t out;                                                                     \
        if (PERCPU_PRIV_UNLIKELY(                                                            \
                !PERCPU_PRIV_SECTION(section##_u##n, PERCPU_RSEQ_SPREAD args, &out)))        \
            out = percpu_priv_##op##_slow_u##n args;                                         \
        return out;                                                                          \
    }

#define PERCPU_PRIV_DEFINE_OPS(n)                                                                  \
    typedef uint##n##_t __attribute__((__may_alias__)) percpu_priv_alias_u##n;                     \
    PERCPU_PRIV_DEFINE_VOID(add, add, n, __atomic_fetch_add(copy, v, __ATOMIC_RELAXED))            \
    PERCPU_PRIV_DEFINE_VOID(and, and, n, __atomic_fetch_and(copy, v, __ATOMIC_RELAXED))            \
    PERCPU_PRIV_DEFINE_VOID(or, or, n, __atomic_fetch_or(copy, v, __ATOMIC_RELAXED))               \
    PERCPU_PRIV_DEFINE_VOID(write, store, n, __atomic_store_n(copy, v, __ATOMIC_RELAXED))          \
    PERCPU_PRIV_DEFINE_RESULT(read, load, n, (const uint##n##_t *p), (p),                          \
                              __atomic_load_n(copy, __ATOMIC_RELAXED))                             \
    PERCPU_PRIV_DEFINE_RESULT(add_return, add_return, n, (uint##n##_t * p, uint##n##_t v), (p, v), \
                              __atomic_add_fetch(copy, v, __ATOMIC_RELAXED))                       \
    PERCPU_PRIV_DEFINE_RESULT(xchg, xchg, n, (uint##n##_t * p, uint##n##_t v), (p, v),             \
                              __atomic_exchange_n(copy, v, __ATOMIC_RELAXED))                      \
    PERCPU_PRIV_DEFINE_RESULT(cmpxchg, cmpxchg, n,                                                 \
                              (uint##n##_t * p, uint##n##_t expected, uint##n##_t v),              \
                              (p, expected, v), percpu_priv_cmpxchg_u##n(copy, expected, v))
#define PERCPU_PRIV_DEFINE_CMPXCHG(n)                                                             \
    static inline uint##n##_t percpu_priv_cmpxchg_u##n(void *copy, uint##n##_t expected,          \
                                                       uint##n##_t v)                             \
    {                                                                                             \
        (void)__atomic_compare_exchange_n((uint##n##_t *)copy, &expected, v, 0, __ATOMIC_RELAXED, \
                                          __ATOMIC_RELAXED);                                      \
        return expected; /* overwritten with what was there, if that was another value */         \
    }
PERCPU_PRIV_DEFINE_CMPXCHG(32)
PERCPU_PRIV_DEFINE_OPS(32)
#if UINTPTR_MAX > 0xffffffffu
PERCPU_PRIV_DEFINE_CMPXCHG(64)
PERCPU_PRIV_DEFINE_OPS(64)
#define PERCPU_PRIV_SELECT(x, name)            \
    PERCPU_PRIV_IF(sizeof(x) == 8, name##_u64, \
                   PERCPU_PRIV_IF(sizeof(x) == 4, name##_u32, PERCPU_PRIV_WRONG))
#else
#define PERCPU_PRIV_SELECT(x, name) PERCPU_PRIV_IF(sizeof(x) == 4, name##_u32, PERCPU_PRIV_WRONG)
#endif

#ifndef __cplusplus
#if defined(__has_attribute)
#if __has_attribute(error)
#define PERCPU_PRIV_ERROR(text) __attribute__((error(text)))
#endif
#endif
#ifndef PERCPU_PRIV_ERROR
#define PERCPU_PRIV_ERROR(text)
#endif
extern uint32_t percpu_priv_operand_error(const void *p, ...) PERCPU_PRIV_ERROR(
    "this_cpu_* operands are integers or pointers of 4 bytes, or of 8 where a word has 8");
#define PERCPU_PRIV_WRONG percpu_priv_operand_error
#define PERCPU_PRIV_IF(cond, a, b) __builtin_choose_expr(cond, a, b)
/*
 * Pick the function by size; floating-point operands would be cut to integers, so they are errors.
 */
#define PERCPU_PRIV_OP(x, name)                                             \
    PERCPU_PRIV_IF(__builtin_types_compatible_p(__typeof__(x), float) ||    \
                       __builtin_types_compatible_p(__typeof__(x), double), \
                   PERCPU_PRIV_WRONG, PERCPU_PRIV_SELECT(x, name))
/* sizeof(!(x)): a scalar, or an error. */
#define PERCPU_PRIV_ADDRESS(x) ((void *)((uintptr_t) & (x) + 0 * sizeof(!(x))))
#define PERCPU_PRIV_VALUE(x, v) \
    ((__typeof__(PERCPU_PRIV_IF(sizeof(x) == 8, (uint64_t)0, (uint32_t)0)))(uintptr_t)(v))
#define percpu_this_cpu_add(x, v) \
    (PERCPU_PRIV_OP(x, percpu_this_cpu_add)(PERCPU_PRIV_ADDRESS(x), PERCPU_PRIV_VALUE(x, v)))
#define percpu_this_cpu_sub(x, v)                                   \
    (PERCPU_PRIV_OP(x, percpu_this_cpu_add)(PERCPU_PRIV_ADDRESS(x), \
                                            PERCPU_PRIV_VALUE(x, 0 - (uintptr_t)(v))))
#define percpu_this_cpu_and(x, v) \
    (PERCPU_PRIV_OP(x, percpu_this_cpu_and)(PERCPU_PRIV_ADDRESS(x), PERCPU_PRIV_VALUE(x, v)))
#define percpu_this_cpu_or(x, v) \
    (PERCPU_PRIV_OP(x, percpu_this_cpu_or)(PERCPU_PRIV_ADDRESS(x), PERCPU_PRIV_VALUE(x, v)))
#define percpu_this_cpu_write(x, v) \
    (PERCPU_PRIV_OP(x, percpu_this_cpu_write)(PERCPU_PRIV_ADDRESS(x), PERCPU_PRIV_VALUE(x, v)))
#define percpu_this_cpu_read(x) \
    ((__typeof__(x))(uintptr_t)PERCPU_PRIV_OP(x, percpu_this_cpu_read)(PERCPU_PRIV_ADDRESS(x)))
#define percpu_this_cpu_add_return(x, v)                                      \
    ((__typeof__(x))(uintptr_t)PERCPU_PRIV_OP(x, percpu_this_cpu_add_return)( \
        PERCPU_PRIV_ADDRESS(x), PERCPU_PRIV_VALUE(x, v)))
#define percpu_this_cpu_xchg(x, v)                                                             \
    ((__typeof__(x))(uintptr_t)PERCPU_PRIV_OP(x, percpu_this_cpu_xchg)(PERCPU_PRIV_ADDRESS(x), \
                                                                       PERCPU_PRIV_VALUE(x, v)))
#define percpu_this_cpu_cmpxchg(x, expected, v)                            \
    ((__typeof__(x))(uintptr_t)PERCPU_PRIV_OP(x, percpu_this_cpu_cmpxchg)( \
        PERCPU_PRIV_ADDRESS(x), PERCPU_PRIV_VALUE(x, expected), PERCPU_PRIV_VALUE(x, v)))
#else
extern "C++" {
template <unsigned long size> struct percpu_priv_ops; /* undefined: operands have 4 or 8 bytes */
#define PERCPU_PRIV_DEFINE_CXX(n)                                                                 \
    template <> struct percpu_priv_ops<n / 8> {                                                   \
        typedef uint##n##_t word;                                                                 \
        static void add(word *p, word v) { percpu_this_cpu_add_u##n(p, v); }                      \
        static void and_(word *p, word v) { percpu_this_cpu_and_u##n(p, v); }                     \
        static void or_(word *p, word v) { percpu_this_cpu_or_u##n(p, v); }                       \
        static void write(word *p, word v) { percpu_this_cpu_write_u##n(p, v); }                  \
        static word read(word *p) { return percpu_this_cpu_read_u##n(p); }                        \
        static word add_return(word *p, word v) { return percpu_this_cpu_add_return_u##n(p, v); } \
        static word xchg(word *p, word v) { return percpu_this_cpu_xchg_u##n(p, v); }             \
        static word cmpxchg(word *p, word e, word v)                                              \
        {                                                                                         \
            return percpu_this_cpu_cmpxchg_u##n(p, e, v);                                         \
        }                                                                                         \
    };
PERCPU_PRIV_DEFINE_CXX(32)
#if UINTPTR_MAX > 0xffffffffu
PERCPU_PRIV_DEFINE_CXX(64)
#endif
#undef PERCPU_PRIV_DEFINE_CXX
template <typename T> struct percpu_priv_operand : percpu_priv_ops<sizeof(T)> {
    typedef typename percpu_priv_ops<sizeof(T)>::word word;
    static word *address(T &x) { return (word *)((uintptr_t)&x + 0 * sizeof((T)(uintptr_t)0)); }
    static word encode(T v) { return (word)(uintptr_t)v; }
    static T decode(word v) { return (T)(uintptr_t)v; }
};
template <> struct percpu_priv_operand<float>; /* undefined: integers and pointers only */
template <> struct percpu_priv_operand<double>;
template <> struct percpu_priv_operand<const float>;
template <> struct percpu_priv_operand<const double>;
template <> struct percpu_priv_operand<volatile float>;
template <> struct percpu_priv_operand<volatile double>;
template <> struct percpu_priv_operand<const volatile float>;
template <> struct percpu_priv_operand<const volatile double>;
template <typename T, typename V> inline void percpu_this_cpu_add(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    o::add(o::address(x), (typename o::word)v);
}
template <typename T, typename V> inline void percpu_this_cpu_sub(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    o::add(o::address(x), (typename o::word)(0 - (typename o::word)v));
}
template <typename T, typename V> inline void percpu_this_cpu_and(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    o::and_(o::address(x), (typename o::word)v);
}
template <typename T, typename V> inline void percpu_this_cpu_or(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    o::or_(o::address(x), (typename o::word)v);
}
template <typename T, typename V> inline void percpu_this_cpu_write(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    o::write(o::address(x), o::encode((T)v));
}
template <typename T> inline T percpu_this_cpu_read(T &x)
{
    typedef percpu_priv_operand<T> o;
    return o::decode(o::read(o::address(x)));
}
template <typename T, typename V> inline T percpu_this_cpu_add_return(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    return o::decode(o::add_return(o::address(x), (typename o::word)v));
}
template <typename T, typename V> inline T percpu_this_cpu_xchg(T &x, V v)
{
    typedef percpu_priv_operand<T> o;
    return o::decode(o::xchg(o::address(x), o::encode((T)v)));
}
template <typename T, typename E, typename V>
inline T percpu_this_cpu_cmpxchg(T &x, E expected, V v)
{
    typedef percpu_priv_operand<T> o;
    return o::decode(o::cmpxchg(o::address(x), o::encode((T)expected), o::encode((T)v)));
}
} /* extern "C++" */
#endif
#define percpu_this_cpu_inc(x) percpu_this_cpu_add(x, 1)
#define percpu_this_cpu_dec(x) percpu_this_cpu_sub(x, 1)

/* ---- [6] Counters --------------------------------------------------------------------------- */
/*
 * A handle of a few words, ready to use when it is zero. The first add allocates the copies. Where
 * it cannot (out of memory), the amount goes to a word in the handle itself, which every sum
 * includes: no add is ever lost. Words wrap modulo 2^64, on 32-bit machines 2^32.
 */
typedef uintptr_t percpu_word;

struct percpu_counter {
    percpu_word *base; /* copy 0; NULL: not allocated yet */
    uint32_t rows;     /* critical sections run for CPU ids below; 0 until base is set */
    percpu_word spill; /* adds that found no memory */
    percpu_word taken; /* the sum at the last take */
};

PERCPU_RSEQ_STATIC_ASSERT(__atomic_always_lock_free(sizeof(percpu_word), 0),
                          "handlers rely on lock-free words");

static PERCPU_PRIV_OUTLINE void percpu_priv_counter_slow(struct percpu_counter *c, percpu_word v);

/**
 * percpu_counter_init() - set a counter to zero and allocate it now, to be told of ENOMEM now.
 *
 * Optional: a zeroed struct is ready. Return: 0; -1 with errno ENOMEM, and the counter is usable.
 */
static PERCPU_PRIV_OUTLINE int percpu_counter_init(struct percpu_counter *c);

/**
 * percpu_counter_destroy() - free a counter that nobody uses any more. It is zero and usable again.
 */
static PERCPU_PRIV_OUTLINE void percpu_counter_destroy(struct percpu_counter *c);

/**
 * percpu_counter_add() - add to a counter, as percpu_counter_sub/inc/dec do.
 *
 * Order: none, not even for the compiler.
 * Context: any: signal handlers, malloc replacements, destructors, before main. errno is preserved.
 * Cost: this_cpu_add() and a load; where not x86-64, also a branch that is not taken.
 */
PERCPU_RSEQ_INLINE void percpu_counter_add(struct percpu_counter *c, percpu_word v)
{
    if (PERCPU_PRIV_UNLIKELY(!PERCPU_PRIV_SECTION(add_first, &c->base, &c->rows, v)))
        percpu_priv_counter_slow(c, v);
}
PERCPU_RSEQ_INLINE void percpu_counter_sub(struct percpu_counter *c, percpu_word v)
{
    percpu_counter_add(c, 0 - v);
}
PERCPU_RSEQ_INLINE void percpu_counter_inc(struct percpu_counter *c)
{
    percpu_counter_add(c, 1);
}
PERCPU_RSEQ_INLINE void percpu_counter_dec(struct percpu_counter *c)
{
    percpu_counter_sub(c, 1);
}

/**
 * percpu_counter_sum() - the sum of all adds.
 *
 * Return: exact once adders have stopped (and you know by synchronisation that they have). While
 * they run, between the true values at the call's start and at its end, if the counter only grows.
 * Context: any. Cost: a cache miss per CPU.
 */
static PERCPU_PRIV_OUTLINE percpu_word percpu_counter_sum(struct percpu_counter *c);

/**
 * percpu_counter_take() - what was added since the last take.
 *
 * The takes of all threads together, and a final one, give each add exactly once. sum() is not
 * affected: no CPU's row is written.
 * Context: any. Cost: as sum(), repeated if another take gets between.
 */
static PERCPU_PRIV_OUTLINE percpu_word percpu_counter_take(struct percpu_counter *c);

/* ---- [7] Counter sets ----------------------------------------------------------------------- */
/*
 * Many events counted together, one row per CPU, and a chain of ancestors: an add to a query's set
 * also counts for its user and for the process. Events are array indices, typically an enum.
 *
 * Memory is allocated in chunks of PERCPU_COUNTERS_CHUNK events, by init, or by the first add to a
 * set that PERCPU_COUNTERS_INIT made. A set with PERCPU_COUNTERS_SHARED has one row of
 * atomics instead of one per CPU: for sets that are many and rarely written.
 */
#define PERCPU_COUNTERS_CHUNK (PERCPU_STRIDE / sizeof(percpu_word))
#define PERCPU_COUNTERS_CHUNKS 16
#define PERCPU_COUNTERS_MAX (PERCPU_COUNTERS_CHUNKS * PERCPU_COUNTERS_CHUNK) /* 131072 by default */
#define PERCPU_COUNTERS_SHARED 1u

struct percpu_counters {
    unsigned n; /* events */
    unsigned flags;
    struct percpu_counters *parent;
    percpu_word *chunk[PERCPU_COUNTERS_CHUNKS]; /* copy 0 of each; NULL: not allocated yet */
    percpu_word *taken[PERCPU_COUNTERS_CHUNKS]; /* the sums at the last take, where there was one */
    uint32_t rows;                              /* as in a counter; 0 while a chunk is missing */
    uint32_t children;                          /* sets whose parent this is */
    percpu_word unplaced; /* amounts that found no memory: see percpu_counters_add() */
};

/* For a static set: struct percpu_counters s = PERCPU_COUNTERS_INIT(n, flags). It has no parent. */
#ifdef __cplusplus
#define PERCPU_PRIV_NULL nullptr
#else
#define PERCPU_PRIV_NULL 0
#endif
#define PERCPU_COUNTERS_INIT(n, flags)                                                          \
    {                                                                                           \
        (n) + 0 * sizeof(char[(n) <= PERCPU_COUNTERS_MAX ? 1 : -1]), (flags), PERCPU_PRIV_NULL, \
            {PERCPU_PRIV_NULL}, {PERCPU_PRIV_NULL}, 0, 0, 0                                     \
    }

/**
 * percpu_counters_init() - make a set of @n events that are all 0.
 * @parent: the set that adds go on to, or NULL. It must outlive this one.
 * @flags: 0 or PERCPU_COUNTERS_SHARED.
 *
 * Return: 0; -1 with errno EINVAL (@n is 0 or above PERCPU_COUNTERS_MAX, unknown flag) or ENOMEM.
 */
static PERCPU_PRIV_OUTLINE int percpu_counters_init(struct percpu_counters *set, unsigned n,
                                                    struct percpu_counters *parent, unsigned flags);

/**
 * percpu_counters_destroy() - free a set that nobody uses any more.
 *
 * Return: 0; -1 with errno EBUSY if it is the parent of a set that still exists.
 */
static PERCPU_PRIV_OUTLINE int percpu_counters_destroy(struct percpu_counters *set);

static PERCPU_PRIV_OUTLINE void percpu_priv_counters_slow(struct percpu_counters *set,
                                                          unsigned event, percpu_word v);

/**
 * percpu_counters_add() - add to an event of a set and of all its ancestors.
 *
 * An event that a set does not have is not counted there. Only a set of PERCPU_COUNTERS_INIT can
 * find no memory here; the amount then goes to set->unplaced, which no sum includes.
 *
 * Order: none, not even for the compiler.
 * Context: any. errno is preserved.
 * Cost: per set of the chain, a counter's add, a compare and a load.
 */
PERCPU_RSEQ_INLINE void percpu_counters_add(struct percpu_counters *set, unsigned event,
                                            percpu_word v)
{
    for (; set; set = set->parent)
        if (PERCPU_PRIV_UNLIKELY(
                event >= set->n ||
                !PERCPU_PRIV_SECTION(add_element, &set->chunk[event / PERCPU_COUNTERS_CHUNK],
                                     &set->rows, event % PERCPU_COUNTERS_CHUNK, v)))
            percpu_priv_counters_slow(set, event, v);
}
PERCPU_RSEQ_INLINE void percpu_counters_inc(struct percpu_counters *set, unsigned event)
{
    percpu_counters_add(set, event, 1);
}

/*
 * percpu_counters_sum() - one event's sum; as percpu_counter_sum(). 0 for an event it does not
 * have.
 */
static PERCPU_PRIV_OUTLINE percpu_word percpu_counters_sum(struct percpu_counters *set,
                                                           unsigned event);

/**
 * percpu_counters_snapshot() - the sums of all events at once.
 * @out: an array of set->n words.
 *
 * Each sum is as percpu_counter_sum() gives it; sums of different events are not of one instant.
 * Context: any. Cost: near that of reading the rows from memory; vectorised at -O3.
 */
static PERCPU_PRIV_OUTLINE void percpu_counters_snapshot(struct percpu_counters *set,
                                                         percpu_word *out);

/**
 * percpu_counters_take() - for each event, what was added since the last take of this set.
 * @out: an array of set->n words.
 *
 * Return: 0; -1 with errno ENOMEM (the first take allocates), and nothing taken.
 */
static PERCPU_PRIV_OUTLINE int percpu_counters_take(struct percpu_counters *set, percpu_word *out);

/* ---- [8] Timestamps ------------------------------------------------------------------------- */
/*
 * Ticks are what the processor counts at a constant rate, the same on all CPUs: on x86-64 the time
 * stamp counter, on aarch64 the generic timer, on riscv64 the platform timer; elsewhere nanoseconds
 * of CLOCK_MONOTONIC. The rate is the system's to tell.
 */
struct percpu_tscp {
    uint64_t ticks;
    unsigned cpu; /* the CPU on which ticks was read */
};

/* percpu_ticks() - ticks now. Order: none; the processor may read them some instructions early. */
PERCPU_RSEQ_INLINE uint64_t percpu_ticks(void);

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* as percpu_status */
#endif
/**
 * percpu_tscp() - ticks and the CPU they were read on, not before earlier instructions are done.
 *
 * Context: any. errno is preserved. Cost: x86-64: one rdtscp; else as percpu_tscp_approx().
 */
PERCPU_RSEQ_INLINE struct percpu_tscp percpu_tscp(void);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/**
 * percpu_tscp_approx() - the same, unordered, and cheaper.
 *
 * Both come from one CPU for certain: a critical section reads them. In the fallback the CPU is
 * read before and after, and this is done again if it changed.
 */
PERCPU_RSEQ_INLINE struct percpu_tscp percpu_tscp_approx(void);

/* ---- [9] Gauges ----------------------------------------------------------------------------- */
/*
 * A value that many threads set, of which the last counts. Each CPU writes its own row: the idle
 * one of two buffers, then the sequence number that makes it the live one. The time is read
 * inside the section, so a value that was delayed cannot look fresh. get() takes the row of the
 * latest time. Zeroed is ready to use. (Where CPUs' clocks are not synchronised, "latest" is as
 * good as they are.)
 */
struct percpu_priv_gauge_row {
    struct percpu_rseq_stamped stamped;
    uint32_t lock; /* taken to write rows of the second bank, and the one in the handle */
    struct percpu_priv_gauge_row *more; /* of the handle's: rows for who finds all locked */
};

struct percpu_gauge {
    struct percpu_priv_gauge_row *base;
    struct percpu_priv_gauge_row spill; /* sets that found no memory */
};

/*
 * percpu_gauge_init() - set to "never set" and allocate now. Return: 0; -1 with errno ENOMEM,
 * usable.
 */
static PERCPU_PRIV_OUTLINE int percpu_gauge_init(struct percpu_gauge *g);

/* percpu_gauge_destroy() - free a gauge that nobody uses any more. It is zero and usable again. */
static PERCPU_PRIV_OUTLINE void percpu_gauge_destroy(struct percpu_gauge *g);

static PERCPU_PRIV_OUTLINE void percpu_priv_gauge_slow(struct percpu_gauge *g, uint64_t bits);

/**
 * percpu_gauge_set() - set the gauge.
 *
 * Order: release: who gets the value sees what was written before it was set.
 * Context: any. errno is preserved. The fallback can lose a set where a signal handler, or a fork,
 * leaves all its rows locked and there is no memory for another.
 * Cost: one ordered read of the clock and a section.
 */
PERCPU_RSEQ_INLINE void percpu_gauge_set(struct percpu_gauge *g, double value)
{
    struct percpu_priv_gauge_row *base = __atomic_load_n(&g->base, __ATOMIC_RELAXED);
    uint64_t bits;
    uintptr_t seq;
    __builtin_memcpy(&bits, &value, sizeof bits);
    (void)seq;
    if (PERCPU_PRIV_UNLIKELY(!base || !PERCPU_PRIV_SECTION(publish, &base->stamped, bits, &seq)))
        percpu_priv_gauge_slow(g, bits);
}

/**
 * percpu_gauge_get() - the last value that was set.
 * @value: where to store it; 0.0 if the gauge was never set.
 *
 * Return: 1; 0 if it was never set. Never torn. Among values of the same tick, the lower CPU's.
 * Order: acquire. Context: any. Cost: a cache miss per CPU.
 */
static PERCPU_PRIV_OUTLINE int percpu_gauge_get(struct percpu_gauge *g, double *value);

/* ---- [10] Free lists ------------------------------------------------------------------------ */
/*
 * A cache of objects per CPU, last in, first out. The link is a pointer inside each object, at an
 * offset that the list knows; what it overwrites is free memory as far as the list is concerned.
 * Pop reads a node's link inside the section: the node cannot have left this CPU's list and come
 * back (ABA), since both would have aborted the section.
 *
 * In the fallback, rows of the second bank are stacks that are pushed to with compare-and-swap, and
 * popped by taking the whole stack and giving the rest back. Zeroed, with the link at offset
 * 0, is ready to use.
 */
struct percpu_freelist {
    struct percpu_rseq_list *base;
    size_t next; /* offset of the link in a node */
    void *spill; /* nodes that found no row */
};

/**
 * percpu_freelist_init() - make an empty list and allocate it now.
 * @next: offset in bytes, in each node, of a void * for the list to use: PERCPU_LINK(type, member).
 *
 * Return: 0; -1 with errno ENOMEM, and the list is usable.
 */
static PERCPU_PRIV_OUTLINE int percpu_freelist_init(struct percpu_freelist *list, size_t next);
#define PERCPU_LINK(type, member) offsetof(type, member)

/**
 * percpu_freelist_destroy() - free a list that is empty and that nobody uses any more.
 *
 * Return: 0; -1 with errno EBUSY if it has nodes: drain it first.
 */
static PERCPU_PRIV_OUTLINE int percpu_freelist_destroy(struct percpu_freelist *list);

static PERCPU_PRIV_OUTLINE void percpu_priv_push_slow(struct percpu_freelist *list, void *node);
static PERCPU_PRIV_OUTLINE void *percpu_priv_pop_slow(struct percpu_freelist *list);

/**
 * percpu_freelist_push() - put a node on this CPU's list.
 *
 * Order: compiler barrier. A pop on the same CPU, or a drain, sees what was written to the node
 * before.
 * Context: any. errno is preserved. Cost: a section of 9 instructions.
 */
PERCPU_RSEQ_INLINE void percpu_freelist_push(struct percpu_freelist *list, void *node)
{
    struct percpu_rseq_list *base = __atomic_load_n(&list->base, __ATOMIC_RELAXED);
    PERCPU_PRIV_HAND_OVER(node);
    if (PERCPU_PRIV_UNLIKELY(!base || !PERCPU_PRIV_SECTION(push, base, node, list->next)))
        percpu_priv_push_slow(list, node);
}

/**
 * percpu_freelist_pop() - take the node that was put last on this CPU's list.
 *
 * Return: the node; NULL if this CPU's list is empty, or being drained. Others may have nodes.
 * Context: any. errno is preserved. Cost: a section of 11 instructions.
 */
PERCPU_RSEQ_INLINE void *percpu_freelist_pop(struct percpu_freelist *list)
{
    struct percpu_rseq_list *base = __atomic_load_n(&list->base, __ATOMIC_RELAXED);
    void *node = (void *)0;
    if (PERCPU_PRIV_UNLIKELY(!base || !PERCPU_PRIV_SECTION(pop, base, list->next, &node)))
        node = percpu_priv_pop_slow(list);
    PERCPU_PRIV_TAKE_OVER(node);
    return node;
}

/**
 * percpu_freelist_drain() - take all nodes of a CPU, linked through their links, NULL at the end.
 * @chain: the first node, or NULL.
 *
 * With every CPU below percpu_nr_cpus() in turn, all nodes: each call also takes the fallback's
 * row of that number, and the nodes that found no row.
 *
 * Return: 0; -1 with errno from percpu_fence_cpu(), EINVAL for a CPU that the list has no row for,
 * or EAGAIN if another thread is draining it; *chain is then still valid, and may hold the
 * fallback's nodes.
 * Context: not in a signal handler. Cost: percpu_fence_cpu().
 */
static PERCPU_PRIV_OUTLINE int percpu_freelist_drain(struct percpu_freelist *list, unsigned cpu,
                                                     void **chain);

/* ---- [11] Crossing CPUs --------------------------------------------------------------------- */

/**
 * percpu_fence_cpu() - wait until every section that was running on a CPU has committed or
 * restarted.
 *
 * What this thread wrote before, sections there see afterwards; what sections there wrote
 * before, this thread sees afterwards.
 *
 * By membarrier's rseq command (Linux 5.10). Where it is missing or refused, this thread visits
 * the CPU (its affinity is changed and restored, which a concurrent change from outside may
 * upset).
 *
 * Return: 0; -1 with errno EINVAL for a CPU that cannot exist, or that of the refused
 * sched_setaffinity (EINVAL: the CPU is not this thread's to visit; EPERM: a sandbox).
 * Context: not in a signal handler. Cost: microseconds, an interrupt on that CPU.
 */
static PERCPU_PRIV_OUTLINE int percpu_fence_cpu(unsigned cpu);

/* percpu_fence() - the same for all CPUs. */
static PERCPU_PRIV_OUTLINE int percpu_fence(void);

/* ---- [12] Machinery ------------------------------------------------------------------------- */
/*
 * Everything below is off the hot path. What several threads write is written with atomics, and
 * only ever from "unknown" to one value that all would compute. Nothing blocks, so everything may
 * be interrupted by a signal handler that does the same, or be cut short by fork.
 */

enum percpu_priv_thread_state {
    PERCPU_PRIV_FRESH,      /* nothing tried yet */
    PERCPU_PRIV_REGISTERED, /* by us, or we share the area of who did */
    PERCPU_PRIV_REFUSED,    /* one attempt was made; reason and error say how it ended */
    PERCPU_PRIV_LEFT        /* given back: never again in this thread */
};

#define PERCPU_PRIV_LOAD(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define PERCPU_PRIV_STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

/* ---- The operating system */

#if defined(__linux__)
/* libc's syscall(), by another name: unistd.h declares it only for some feature macros. */
extern long percpu_priv_syscall(long number, ...) __asm__("syscall");
extern unsigned long percpu_priv_getauxval(unsigned long type) __asm__("getauxval");
extern int percpu_priv_getcpu(void) __asm__("sched_getcpu");
extern int percpu_priv_clock_gettime(int clock, long *t) __asm__("clock_gettime");
#elif defined(__FreeBSD__)
extern int percpu_priv_getcpu(void) __asm__("sched_getcpu"); /* since 13.1 */
extern int percpu_priv_clock_gettime(int clock, long *t) __asm__("clock_gettime");
#elif defined(__APPLE__)
extern int percpu_priv_cpu_number(size_t *cpu) __asm__("_pthread_cpu_number_np"); /* since 11.0 */
extern uint64_t percpu_priv_clock_ns(int clock) __asm__("_clock_gettime_nsec_np");
#elif defined(_WIN32)
struct percpu_priv_processor {
    uint16_t group;
    uint8_t number, reserved;
};
extern void __stdcall percpu_priv_processor_number(struct percpu_priv_processor *out) __asm__(
    "GetCurrentProcessorNumberEx");
extern uint16_t __stdcall percpu_priv_groups(void) __asm__("GetMaximumProcessorGroupCount");
extern uint32_t __stdcall percpu_priv_processors(uint16_t group) __asm__(
    "GetMaximumProcessorCount");
extern int __stdcall percpu_priv_performance_counter(uint64_t *t) __asm__(
    "QueryPerformanceCounter");
extern void *__stdcall percpu_priv_virtual_alloc(void *at, size_t size, uint32_t type,
                                                 uint32_t protect) __asm__("VirtualAlloc");
extern int __stdcall percpu_priv_virtual_free(void *at, size_t size,
                                              uint32_t type) __asm__("VirtualFree");
#endif

/* The system's own answer, slow but always there; 0 where it has none. */
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_os_cpu(void)
{
#if defined(PERCPU_NO_LINUX)
    return 0;
#elif defined(__linux__) || defined(__FreeBSD__)
    int cpu = percpu_priv_getcpu();
    return cpu < 0 ? 0 : (unsigned)cpu;
#elif defined(__APPLE__)
    size_t cpu = 0;
    return percpu_priv_cpu_number(&cpu) ? 0 : (unsigned)cpu;
#elif defined(_WIN32)
    struct percpu_priv_processor at;
    percpu_priv_processor_number(&at);
    return at.group * 64u + at.number;
#else
    return 0;
#endif
}

#if PERCPU_RSEQ_LINUX
/*
 * Read a list of CPUs like "0-3,8-11". Return: the highest + 1; 0 if there is none to be read.
 * *listed: whether @cpu is in it. Small buffers: a signal handler's stack may be small.
 */
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_read_list(const char *path, unsigned cpu,
                                                          int *listed)
{
    char buf[256];
    unsigned low = 0, n = 0, end = 0;
    int digits = 0, range = 0;
    long fd = percpu_priv_syscall(SYS_openat, -100, path, 02000000), got; /* AT_FDCWD, O_CLOEXEC */
    *listed = 0;
    if (fd < 0)
        return 0;
    do {
        got = percpu_priv_syscall(SYS_read, fd, buf, sizeof buf);
        if (got <= 0)
            buf[0] = '\n'; /* the end of the file ends the last number, too */
        for (long i = 0; i < (got > 0 ? got : 1); i++) {
            if (buf[i] >= '0' && buf[i] <= '9') {
                n = (digits ? n * 10 : 0) + (unsigned)(buf[i] - '0');
                digits = 1;
                continue;
            }
            if (digits && !range)
                low = n;
            range = digits && buf[i] == '-';
            if (digits && !range) {
                *listed |= cpu >= low && cpu <= n;
                end = n >= end ? n + 1 : end;
            }
            digits = 0;
        }
    } while (got > 0);
    (void)percpu_priv_syscall(SYS_close, fd);
    return end;
}

#define PERCPU_PRIV_AFFINITY_WORDS (8192 / 8 / sizeof(unsigned long)) /* Linux's limit of CPUs */

/* Without sysfs: the highest CPU that this process may use now, + 1. */
static PERCPU_PRIV_OUTLINE unsigned percpu_priv_affinity(void)
{
    unsigned long mask[PERCPU_PRIV_AFFINITY_WORDS];
    const unsigned bits = 8 * sizeof mask[0];
    long got = percpu_priv_syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (long i = got / (long)sizeof mask[0] - 1; i >= 0; i--)
        for (unsigned bit = bits; bit-- > 0;)
            if (mask[i] >> bit & 1)
                return (unsigned)i * bits + bit + 1;
    return 1;
}
#endif

/* Rows in the table: ids are 16 bits at most here; Linux's own limit is lower. */
#if UINTPTR_MAX > 0xffffffffu
#define PERCPU_PRIV_MAX_CPUS 65536u
#else
#define PERCPU_PRIV_MAX_CPUS 256u /* address space is short; higher ids take the fallback */
#endif

#if PERCPU_RSEQ_PORTED
static inline int percpu_priv_offset_known(void);
static PERCPU_PRIV_OUTLINE void percpu_priv_find_area(void);
#endif

static PERCPU_PRIV_OUTLINE unsigned percpu_priv_find_nr_cpus(void)
{
    int saved = errno;
    unsigned n = 0;
#if PERCPU_RSEQ_LINUX
    int listed;
#if PERCPU_RSEQ_PORTED
    if (!percpu_priv_offset_known()) /* the bound depends on what it finds */
        percpu_priv_find_area();
#endif
    n = percpu_priv_read_list("/sys/devices/system/cpu/possible", 0, &listed);
    if (!n)
        n = percpu_priv_affinity();
#elif defined(_WIN32)
    n = percpu_priv_groups() > 1 ? percpu_priv_groups() * 64u : percpu_priv_processors(0);
#endif
    if (!n)
        n = 1;
    if (n > PERCPU_PRIV_MAX_CPUS)
        n = PERCPU_PRIV_MAX_CPUS;
    if (PERCPU_PRIV_LOAD(percpu_priv_state.nr_cpus) == 0) {
        PERCPU_PRIV_STORE(percpu_priv_state.reach.bound, percpu_priv_state.kernel_broken ? 0 : n);
        __atomic_store_n(&percpu_priv_state.nr_cpus, n, __ATOMIC_RELEASE); /* the bound is known */
    }
    errno = saved;
    return PERCPU_PRIV_LOAD(percpu_priv_state.nr_cpus);
}

/* ---- Registration */

#if PERCPU_RSEQ_PORTED

/*
 * arm64, Linux 6.19 to 7.0.13 and 7.1 before rc3: a section is not aborted when its thread is
 * preempted and resumed on the same CPU, so another thread can get in between.
 */
static PERCPU_PRIV_OUTLINE int percpu_priv_release_broken(const char *release)
{
    unsigned v[4] = {0, 0, 0, 999}; /* major, minor, patch, release candidate */
    int i = 0;
    for (const char *s = release; *s && i < 4; s++) {
        if (*s >= '0' && *s <= '9') {
            v[i] =
                (s == release || s[-1] < '0' || s[-1] > '9' ? 0 : v[i] * 10) + (unsigned)(*s - '0');
        } else if (*s == '.' && i < 2) {
            i++;
        } else if (*s == '-' && s[1] == 'r' && s[2] == 'c' && s[3] >= '0' && s[3] <= '9') {
            s += 2;
            i = 3;
        } else {
            break;
        }
    }
    if (v[0] == 6)
        return v[1] >= 19;
    return v[0] == 7 && ((v[1] == 0 && v[2] < 14) || (v[1] == 1 && v[2] == 0 && v[3] < 3));
}

static PERCPU_PRIV_OUTLINE int percpu_priv_kernel_broken(void)
{
#if defined(PERCPU_TEST_RELEASE) /* for the tests, on any architecture */
    return percpu_priv_release_broken(PERCPU_TEST_RELEASE);
#elif defined(__aarch64__)
    char uts[6][65];
    return percpu_priv_syscall(SYS_uname, uts) == 0 && percpu_priv_release_broken(uts[2]);
#else
    return 0;
#endif
}

/* This thread's record. */
static inline struct percpu_rseq_thread *percpu_priv_thread(void)
{
    int constant;
    return (struct percpu_rseq_thread *)(void *)percpu_rseq_locate_own(&constant);
}

static inline int percpu_priv_offset_known(void)
{
    return PERCPU_RSEQ_OFFSET_FROM_OWN ? PERCPU_PRIV_LOAD(percpu_priv_state.from_own_known)
                                       : PERCPU_PRIV_LOAD(percpu_priv_state.from_tp_known);
}

/* Written again, by a plugin's constructor, with the same value: then not at all. */
#define PERCPU_PRIV_SET(x, v) (PERCPU_PRIV_LOAD(x) != (v) ? PERCPU_PRIV_STORE(x, v) : (void)0)

/*
 * Make known where the area is: from the thread pointer, for code that may end in shared objects
 * (if @known, the same in all threads); in an executable also from its own area.
 */
static PERCPU_PRIV_OUTLINE void percpu_priv_publish(char *own, char *area, int known)
{
    intptr_t off = area + PERCPU_RSEQ_CPU_ID_OFFSET - (percpu_rseq_tp() + PERCPU_RSEQ_TP_BIAS);
    if (known && off == (int32_t)off)
        PERCPU_PRIV_SET(percpu_priv_state.reach.from_tp, (int32_t)off);
    __atomic_store_n(&percpu_priv_state.from_tp_known, 1, __ATOMIC_RELEASE);
    (void)own;
#if PERCPU_RSEQ_OFFSET_FROM_OWN
    PERCPU_PRIV_SET(percpu_priv_state.reach.from_own, area - own);
    __atomic_store_n(&percpu_priv_state.from_own_known, 1, __ATOMIC_RELEASE);
#endif
}

/* Find out, once per process, which area threads use; see [3] for the order. */
static PERCPU_PRIV_OUTLINE void percpu_priv_find_area(void)
{
    unsigned libc_size, kernel, align, feature, length = PERCPU_RSEQ_LENGTH_LEGACY;
    int constant, foreign_constant, here_constant;
    ptrdiff_t libc = percpu_rseq_libc(&libc_size);
    char *own = percpu_rseq_locate_own(&constant);
    char *foreign = percpu_rseq_locate_foreign(&foreign_constant);
    char *here = percpu_rseq_locate_here(&here_constant);
    char *area = own;
    /* Who shares percpu_priv_state shares the area, whichever kind of code found it first. */
    if (__atomic_load_n(&percpu_priv_state.from_tp_known, __ATOMIC_ACQUIRE) &&
        percpu_priv_state.reach.from_tp) {
        percpu_priv_publish(own,
                            percpu_rseq_tp() + PERCPU_RSEQ_TP_BIAS +
                                percpu_priv_state.reach.from_tp - PERCPU_RSEQ_CPU_ID_OFFSET,
                            1);
        return;
    }
    kernel = (unsigned)percpu_priv_getauxval(PERCPU_RSEQ_AT_FEATURE_SIZE);
    align = (unsigned)percpu_priv_getauxval(PERCPU_RSEQ_AT_ALIGN);
    feature = kernel ? kernel : PERCPU_RSEQ_FEATURE_LEGACY;
    if (libc_size) {
        area = percpu_rseq_tp() + libc;
        constant = 1;
        /* Before 2.41 glibc says 32, backports say 20, of an area registered with length 32. */
        length = libc_size > 32 ? libc_size : 32;
        feature = libc_size != 20 && libc_size < feature ? libc_size : feature;
    } else if (foreign != here && foreign_constant) { /* not our own alias */
        area = foreign;
        constant = 1;
    } else if (feature > length && feature <= sizeof(struct percpu_rseq_area) && align <= 64) {
        length = feature;
    }
    feature = feature < length ? feature : length;
    PERCPU_PRIV_SET(percpu_priv_state.length, length);
    PERCPU_PRIV_SET(percpu_priv_state.libc_size, libc_size);
    PERCPU_PRIV_SET(percpu_priv_state.feature_size, feature);
    PERCPU_PRIV_SET(percpu_priv_state.kernel_broken, (uint8_t)percpu_priv_kernel_broken());
    percpu_priv_publish(own, area, constant);
}

static inline long percpu_priv_rseq(void *area, unsigned length, int flags)
{
    return percpu_priv_syscall(PERCPU_RSEQ_SYSCALL, area, (uint32_t)length, flags,
                               PERCPU_RSEQ_SIGNATURE);
}

static inline void *percpu_priv_area(void)
{
#if PERCPU_RSEQ_OFFSET_FROM_OWN
    return (char *)percpu_priv_thread() + percpu_priv_state.reach.from_own;
#else
    return percpu_rseq_tp() + PERCPU_RSEQ_TP_BIAS + percpu_priv_state.reach.from_tp -
           PERCPU_RSEQ_CPU_ID_OFFSET;
#endif
}

/* What a refused registration means. AT_RSEQ entries: the kernel has rseq, whoever says ENOSYS. */
static PERCPU_PRIV_OUTLINE enum percpu_reason percpu_priv_refusal(int error)
{
    if (error == EINVAL)
        return PERCPU_REASON_OTHER_OWNER;
    if (error == ENOSYS && !percpu_priv_getauxval(PERCPU_RSEQ_AT_FEATURE_SIZE))
        return PERCPU_REASON_NO_KERNEL;
    return PERCPU_REASON_BLOCKED;
}

#ifdef __GLIBC__
/* glibc keeps static TLS until the kernel has let go of the thread: nothing to give back. */
static inline int percpu_priv_may_register(void)
{
    return 1;
}
static inline int percpu_priv_has_exit_hook(void)
{
    return 1;
}
static inline int percpu_priv_arm_exit_hook(struct percpu_rseq_thread *t)
{
    (void)t;
    return 1;
}
static inline void percpu_priv_disarm_exit_hook(void) {}
#else
enum percpu_priv_hook_state {
    PERCPU_PRIV_NO_HOOK,
    PERCPU_PRIV_MAKING_HOOK,
    PERCPU_PRIV_HOOK,
    PERCPU_PRIV_HOOK_FAILED
};

/* The thread is on its way out, and its memory may be unmapped before its last system call. */
static PERCPU_PRIV_OUTLINE void percpu_priv_at_thread_exit(void *thread)
{
    struct percpu_rseq_thread *t = (struct percpu_rseq_thread *)thread;
    t->reason = PERCPU_REASON_EXITING;
    t->state = PERCPU_PRIV_LEFT; /* from here on no handler registers it again */
    __asm__ volatile("" ::: "memory");
    if (t->length)
        (void)percpu_priv_rseq(percpu_priv_area(), t->length, PERCPU_RSEQ_FLAG_UNREGISTER);
    t->length = 0;
}

/* In the constructor, or before it by whoever comes first; never under a lock of ours. */
static PERCPU_PRIV_OUTLINE int percpu_priv_make_hook(void)
{
    uint32_t none = PERCPU_PRIV_NO_HOOK;
    pthread_key_t key;
    if (__atomic_compare_exchange_n(&percpu_priv_state.hook, &none, PERCPU_PRIV_MAKING_HOOK, 0,
                                    __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        int failed = pthread_key_create(&key, percpu_priv_at_thread_exit);
        percpu_priv_state.key = failed ? 0 : (unsigned)key;
        __atomic_store_n(&percpu_priv_state.hook,
                         failed ? PERCPU_PRIV_HOOK_FAILED : PERCPU_PRIV_HOOK, __ATOMIC_RELEASE);
    }
    return (int)__atomic_load_n(&percpu_priv_state.hook, __ATOMIC_ACQUIRE);
}

/*
 * A musl thread that exits has cancellation disabled before the first destructor runs. In the last
 * destructor pass a hook armed now would never be called, so such a thread is left alone.
 */
static PERCPU_PRIV_OUTLINE int percpu_priv_may_register(void)
{
    int old = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    if (old != PTHREAD_CANCEL_DISABLE)
        pthread_setcancelstate(old, (int *)0);
    return old == PTHREAD_CANCEL_ENABLE && percpu_priv_make_hook() != PERCPU_PRIV_MAKING_HOOK;
}

static inline int percpu_priv_has_exit_hook(void)
{
    return __atomic_load_n(&percpu_priv_state.hook, __ATOMIC_ACQUIRE) == PERCPU_PRIV_HOOK;
}

static inline void percpu_priv_disarm_exit_hook(void)
{
    if (percpu_priv_has_exit_hook())
        (void)pthread_setspecific((pthread_key_t)percpu_priv_state.key, (void *)0);
}

static PERCPU_PRIV_OUTLINE int percpu_priv_arm_exit_hook(struct percpu_rseq_thread *t)
{
    return percpu_priv_make_hook() == PERCPU_PRIV_HOOK &&
           pthread_setspecific((pthread_key_t)percpu_priv_state.key, t) == 0;
}
#endif

/* The length is noted before the call: a handler may end the thread right after it. */
static inline long percpu_priv_call(struct percpu_rseq_thread *t, unsigned length)
{
    t->length = length;
    __asm__ volatile("" ::: "memory");
    return percpu_priv_rseq(percpu_priv_area(), length, 0);
}

/* The one attempt of this thread. */
static PERCPU_PRIV_OUTLINE void percpu_priv_attempt(struct percpu_rseq_thread *t)
{
    unsigned length = percpu_priv_state.length;
    long failed;
    /*
     * A signal handler from here on sees an attempt that was made and takes the fallback, until
     * the kernel says otherwise in the area. It never registers in between.
     */
    t->state = PERCPU_PRIV_REFUSED;
    __asm__ volatile("" ::: "memory");
    if (percpu_cpu_raw() >= 0) { /* a handler got in before that line, and registered */
        t->state = PERCPU_PRIV_REGISTERED;
        return;
    }
    if (t->reason != PERCPU_REASON_NONE) /* or was refused, or left */
        return;
    t->reason = PERCPU_REASON_NO_EXIT_HOOK;
    if (!percpu_priv_arm_exit_hook(t))
        return;
    failed = percpu_priv_call(t, length);
    if (failed && errno == EINVAL && length != PERCPU_RSEQ_LENGTH_LEGACY)
        failed = percpu_priv_call(t, PERCPU_RSEQ_LENGTH_LEGACY);
    if (failed) {
        t->length = 0;
        if (errno != EBUSY) { /* EBUSY: this very area is registered, by who shares it */
            t->error = errno;
            t->reason = (uint8_t)percpu_priv_refusal(errno);
            return;
        }
    }
    t->reason = PERCPU_REASON_NONE;
    t->state = PERCPU_PRIV_REGISTERED;
}

/* Why this thread cannot even try, or PERCPU_REASON_NONE. */
static PERCPU_PRIV_OUTLINE enum percpu_reason
percpu_priv_obstacle(const struct percpu_rseq_thread *t)
{
    if (t->state != PERCPU_PRIV_FRESH)
        return (enum percpu_reason)t->reason;
    if (percpu_priv_state.libc_size)
        return PERCPU_REASON_NOT_MAINTAINED;
    if (PERCPU_RSEQ_UNSET(PERCPU_PRIV_OFFSET()))
        return PERCPU_REASON_NO_STATIC_TLS;
#ifdef PERCPU_NO_REGISTER
    return PERCPU_REASON_LIBC_DISABLED;
#else
    if (!percpu_priv_may_register())
        return PERCPU_REASON_EXITING;
    return percpu_priv_has_exit_hook() ? PERCPU_REASON_NONE : PERCPU_REASON_NO_EXIT_HOOK;
#endif
}
#endif /* PERCPU_RSEQ_PORTED */

/*
 * The slow path of everything: make this thread able to run critical sections. Return: it is.
 * After the first time it is two loads and a compare.
 */
static PERCPU_PRIV_OUTLINE int percpu_priv_enter(void)
{
#if PERCPU_RSEQ_PORTED
    struct percpu_rseq_thread *t = percpu_priv_thread();
    int saved;
    if (percpu_cpu_raw() < 0 && t->state != PERCPU_PRIV_FRESH && percpu_priv_offset_known())
        return 0;
    saved = errno;
    if (!percpu_priv_offset_known())
        percpu_priv_find_area();
    (void)percpu_nr_cpus();
    if (percpu_cpu_raw() < 0 && percpu_priv_obstacle(t) == PERCPU_REASON_NONE)
        percpu_priv_attempt(t);
    errno = saved;
#endif
    return percpu_cpu_raw() >= 0;
}

#if defined(__GNUC__) && PERCPU_RSEQ_PORTED
/*
 * So that percpu_cpu_raw() works from main() on where libc registers, and so that no signal handler
 * is the first to find out. Anything that runs earlier finds out by itself.
 */
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Wglobal-constructors"
#endif
__attribute__((constructor(101))) static void percpu_priv_at_start(void)
{
    int saved = errno;
    if (!percpu_priv_offset_known())
        percpu_priv_find_area();
#if !defined(__GLIBC__) && !defined(PERCPU_NO_REGISTER)
    (void)percpu_priv_make_hook();
#endif
    errno = saved;
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
#endif

static PERCPU_PRIV_OUTLINE unsigned percpu_priv_id_slow(void)
{
    int saved = errno;
    unsigned cpu = percpu_priv_enter() ? (unsigned)percpu_cpu_raw() : percpu_priv_os_cpu();
    errno = saved;
    return cpu;
}

static PERCPU_PRIV_OUTLINE unsigned percpu_priv_node_slow(void)
{
    unsigned node = 0;
#if PERCPU_RSEQ_LINUX
    int saved = errno;
    unsigned cpu;
    if (percpu_priv_syscall(SYS_getcpu, &cpu, &node, (void *)0) != 0)
        node = 0;
    errno = saved;
#endif
    return node;
}

static PERCPU_PRIV_OUTLINE int percpu_thread_register(void)
{
#if PERCPU_RSEQ_PORTED && !defined(PERCPU_NO_REGISTER)
    if (!percpu_priv_enter()) {
        /*
         * The caller vouches that this thread is not exiting: try in spite of disabled
         * cancellation.
         */
        struct percpu_rseq_thread *t = percpu_priv_thread();
        int saved = errno;
        if (percpu_priv_obstacle(t) == PERCPU_REASON_EXITING && t->state == PERCPU_PRIV_FRESH)
            percpu_priv_attempt(t);
        errno = saved;
    }
#endif
    struct percpu_status s = percpu_status();
    if (s.mode != PERCPU_MODE_FALLBACK)
        return 0;
    errno = s.error ? s.error : ENOTSUP;
    return -1;
}

static PERCPU_PRIV_OUTLINE int percpu_thread_unregister(void)
{
#if PERCPU_RSEQ_PORTED
    struct percpu_rseq_thread *t = percpu_priv_thread();
    if (!percpu_priv_offset_known())
        percpu_priv_find_area();
    if (t->length) {
        if (percpu_priv_rseq(percpu_priv_area(), t->length, PERCPU_RSEQ_FLAG_UNREGISTER) != 0)
            return -1;
        t->length = 0;
        percpu_priv_disarm_exit_hook();
    } else if (percpu_cpu_raw() >= 0) {
        *(volatile uint64_t *)&((struct percpu_rseq_area *)percpu_priv_area())->rseq_cs = 0;
        return 0;
    }
    if (t->state == PERCPU_PRIV_FRESH || t->state == PERCPU_PRIV_REGISTERED) {
        t->reason = PERCPU_REASON_UNREGISTERED;
        t->state = PERCPU_PRIV_LEFT;
    }
#endif
    return 0;
}

/* ---- Diagnosis */

#if PERCPU_RSEQ_PORTED
/*
 * Would a registration succeed? Ask for one at an address that the kernel has to refuse, last of
 * all: EFAULT means that everything else was right; EINVAL that another area is registered.
 */
static PERCPU_PRIV_OUTLINE enum percpu_reason percpu_priv_probe(int *error)
{
    void *nowhere = (void *)(~(uintptr_t)0 - 4095);
    if (percpu_priv_rseq(nowhere, PERCPU_RSEQ_LENGTH_LEGACY, 0) == 0 || errno == EFAULT)
        return PERCPU_REASON_NONE;
    *error = errno;
    return percpu_priv_refusal(errno);
}

static PERCPU_PRIV_OUTLINE enum percpu_reason percpu_priv_diagnose(struct percpu_status *s)
{
    struct percpu_rseq_thread *t = percpu_priv_thread();
    int id = percpu_cpu_raw();
    enum percpu_reason reason;
    s->mode = percpu_priv_state.libc_size ? PERCPU_MODE_LIBC : PERCPU_MODE_OWN;
    s->feature_size = percpu_priv_state.feature_size;
    s->length = t->length ? t->length : percpu_priv_state.length;
    if (percpu_priv_state.kernel_broken)
        return PERCPU_REASON_KERNEL_BROKEN;
    if (id >= 0)
        return (unsigned)id < percpu_priv_state.reach.bound ? PERCPU_REASON_NONE
                                                            : PERCPU_REASON_ID_RANGE;
    s->error = t->error;
    reason = percpu_priv_obstacle(t);
    if (reason == PERCPU_REASON_NONE)
        reason = percpu_priv_probe(&s->error);
    if (reason == PERCPU_REASON_NONE && percpu_priv_os_cpu() >= percpu_priv_state.reach.bound)
        reason = PERCPU_REASON_ID_RANGE;
    return reason;
}
#endif

static PERCPU_PRIV_OUTLINE struct percpu_status percpu_status(void)
{
    struct percpu_status s = {PERCPU_MODE_FALLBACK, PERCPU_REASON_DISABLED, 0, 0, 0, 0, 0};
    int saved = errno;
    s.nr_cpus = percpu_nr_cpus();
#if PERCPU_RSEQ_PORTED && !defined(PERCPU_FORCE_FALLBACK)
    if (!percpu_priv_offset_known())
        percpu_priv_find_area();
    s.reason = PERCPU_RSEQ_SECTIONS ? percpu_priv_diagnose(&s) : PERCPU_REASON_NOT_PORTED;
    if (s.reason != PERCPU_REASON_NONE) {
        s.mode = PERCPU_MODE_FALLBACK;
        s.length = s.feature_size = 0;
    }
#elif PERCPU_RSEQ_LINUX && !defined(PERCPU_FORCE_FALLBACK)
    s.reason = PERCPU_REASON_NOT_PORTED;
#endif
#if PERCPU_RSEQ_SECTIONS
    s.aborts = PERCPU_PRIV_LOAD(percpu_rseq_aborts_v1);
#endif
    errno = saved;
    return s;
}

static PERCPU_PRIV_OUTLINE const char *percpu_reason_text(enum percpu_reason reason)
{
    switch (reason) {
    case PERCPU_REASON_NONE:
        return "operations are critical sections";
    case PERCPU_REASON_NO_KERNEL:
        return "this kernel has no rseq, so operations are atomics; "
               "use Linux 4.18 or later, outside an emulator or valgrind";
    case PERCPU_REASON_BLOCKED:
        return "a sandbox refuses the rseq system call, so operations are atomics; "
               "allow rseq in its seccomp policy";
    case PERCPU_REASON_LIBC_DISABLED:
        return "libc does not register rseq and PERCPU_NO_REGISTER forbids this library to, so "
               "operations "
               "are atomics; drop PERCPU_NO_REGISTER, or glibc.pthread.rseq=0 from GLIBC_TUNABLES";
    case PERCPU_REASON_OTHER_OWNER:
        return "another library registered this thread's rseq area and does not share it, so "
               "operations are "
               "atomics; turn rseq off in that library, or let it use __rseq_offset";
    case PERCPU_REASON_KERNEL_BROKEN:
        return "this arm64 kernel does not restart sections reliably, so operations are atomics; "
               "use Linux 7.0.14 or later, or older than 6.19";
    case PERCPU_REASON_NOT_PORTED:
        return "there are no critical sections for this processor yet, so operations are atomics; "
               "see the porting checklist in rseq_abi.h";
    case PERCPU_REASON_EXITING:
        return "this thread is exiting, or has cancellation disabled so that it looks so, and its "
               "operations "
               "are atomics; if it is not, call percpu_thread_register()";
    case PERCPU_REASON_ID_RANGE:
        return "this thread is on a CPU that /sys/devices/system/cpu/possible does not list, so "
               "operations "
               "there are atomics; show the real file to the process at its start";
    case PERCPU_REASON_NOT_MAINTAINED:
        return "libc has an rseq area but did not register it in this thread, so operations are "
               "atomics; "
               "create the thread with pthread_create, and do not operate in a vfork child";
    case PERCPU_REASON_DISABLED:
        return "this program was built without critical sections, so operations are atomics; "
               "build without PERCPU_FORCE_FALLBACK and PERCPU_NO_LINUX, on Linux";
    case PERCPU_REASON_UNREGISTERED:
        return "percpu_thread_unregister() was called in this thread, so its operations are "
               "atomics; "
               "use a new thread";
    case PERCPU_REASON_NO_STATIC_TLS:
        return "this plugin was loaded where thread-local memory has no fixed place, so its "
               "operations are "
               "atomics; link it at program start, or include percpu.h in the program and link "
               "that with -rdynamic";
    case PERCPU_REASON_NO_EXIT_HOOK:
        return "no pthread key is left to give the rseq area back with at thread exit, so "
               "operations are "
               "atomics; use fewer thread-specific-data keys";
    }
    return "unknown reason; the program and this header are of different versions, so rebuild both";
}

/* Append text, or a number if text is NULL; count what did not fit. */
static PERCPU_PRIV_OUTLINE int percpu_priv_append(char *buf, size_t size, int at, const char *text,
                                                  unsigned long number)
{
    char digits[3 * sizeof number + 1];
    char *d = digits + sizeof digits - 1;
    *d = 0;
    if (!text) {
        do
            *--d = (char)('0' + number % 10);
        while (number /= 10);
        text = d;
    }
    for (; *text; text++, at++)
        if ((size_t)at + 1 < size)
            buf[at] = *text;
    if (size)
        buf[(size_t)at < size ? (size_t)at : size - 1] = 0;
    return at;
}

static PERCPU_PRIV_OUTLINE int percpu_status_format(char *buf, size_t size)
{
    static const char *const modes[] = {"fallback", "libc's registration", "own registration"};
    struct percpu_status s = percpu_status();
    int at = percpu_priv_append(buf, size, 0, "percpu " PERCPU_VERSION_STRING ": ", 0);
    at = percpu_priv_append(buf, size, at, modes[s.mode], 0);
    at = percpu_priv_append(buf, size, at, ": ", 0);
    at = percpu_priv_append(buf, size, at, percpu_reason_text(s.reason), 0);
    if (s.length) {
        at = percpu_priv_append(buf, size, at, "; length ", 0);
        at = percpu_priv_append(buf, size, at, (char *)0, s.length);
        at = percpu_priv_append(buf, size, at, ", kernel maintains ", 0);
        at = percpu_priv_append(buf, size, at, (char *)0, s.feature_size);
    }
    if (s.error) {
        at = percpu_priv_append(buf, size, at, "; errno ", 0);
        at = percpu_priv_append(buf, size, at, (char *)0, (unsigned long)s.error);
    }
    at = percpu_priv_append(buf, size, at, "; CPU ids below ", 0);
    at = percpu_priv_append(buf, size, at, (char *)0, s.nr_cpus);
    at = percpu_priv_append(buf, size, at, "; aborts ", 0);
    return percpu_priv_append(buf, size, at, (char *)0, s.aborts);
}

/* ---- Memory */
/*
 * An arena is a mapping of 2n rows with its description right before row 0:
 *
 *     [description] [row 0] [row 1] ... [row 2n-1]        rows are aligned to PERCPU_STRIDE
 *
 * so an object's arena follows from its address. Space in a row is handed out in granules of 8
 * bytes by three bitmaps. `used` alone decides: a claim sets its bits with compare-and-swap, and
 * takes back what it set when it meets one that is set. `first` and `last` mark an object's ends;
 * they are set by its owner after the claim and cleared by whoever frees it, before `used`.
 * No lock: a thread that stops in the middle, for ever, costs its own granules and nothing else.
 * Arenas are never unmapped, only emptied, so the list is only ever pushed to.
 */
#define PERCPU_PRIV_GRANULES (PERCPU_STRIDE / 8)
#define PERCPU_PRIV_BITS (8 * sizeof(percpu_word))
#define PERCPU_PRIV_MAP_WORDS (PERCPU_PRIV_GRANULES / PERCPU_PRIV_BITS)

struct percpu_priv_arena {
    uint64_t magic; /* made with its own address, so that no copy of it passes */
    struct percpu_priv_arena *next;
    uint32_t rows;  /* of each bank */
    uint32_t mixed; /* the second bank was written */
    uint32_t free;  /* granules; approximate while others allocate */
    uint32_t hint;  /* no free granule below, most likely */
    percpu_word used[PERCPU_PRIV_MAP_WORDS];
    percpu_word first[PERCPU_PRIV_MAP_WORDS];
    percpu_word last[PERCPU_PRIV_MAP_WORDS];
};
#define PERCPU_PRIV_MAGIC UINT64_C(0x7065726370752e68) /* "percpu.h" */
#define PERCPU_PRIV_ARENA_SIZE ((sizeof(struct percpu_priv_arena) + 4095) & ~(size_t)4095)

static inline size_t percpu_priv_ctz(percpu_word bits)
{
    return (size_t)__builtin_ctzll(bits);
}
static inline struct percpu_priv_arena *percpu_priv_arena_of(const void *p)
{
    return (struct percpu_priv_arena *)(((uintptr_t)p & ~(PERCPU_STRIDE - 1)) -
                                        PERCPU_PRIV_ARENA_SIZE);
}
static inline char *percpu_priv_rows_of(struct percpu_priv_arena *a)
{
    return (char *)a + PERCPU_PRIV_ARENA_SIZE;
}

static PERCPU_PRIV_OUTLINE void *percpu_priv_map(size_t size)
{
#if defined(_WIN32)
    return percpu_priv_virtual_alloc((void *)0, size, 0x3000, 4); /* reserve, commit; read, write */
#else
#if !defined(__linux__)
    const int flags = 0x1002; /* private, anonymous */
#elif defined(__mips__)
    const int flags = 0x0c02; /* private, anonymous, noreserve */
#else
    const int flags = 0x4022;
#endif
    void *at = mmap((void *)0, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED)
        return (void *)0;
#if defined(__linux__)
    (void)percpu_priv_syscall(SYS_madvise, at, size,
                              15); /* MADV_NOHUGEPAGE: untouched rows stay free */
#endif
    return at;
#endif
}

static PERCPU_PRIV_OUTLINE void percpu_priv_unmap(void *at, size_t size)
{
#if defined(_WIN32)
    (void)size;
    (void)percpu_priv_virtual_free(at, 0, 0x8000);
#else
    (void)munmap(at, size);
#endif
}

/* Give whole pages back to the system; they read as zero. Return: it did. */
static PERCPU_PRIV_OUTLINE int percpu_priv_discard(char *from, size_t size)
{
#if defined(__linux__)
    return percpu_priv_syscall(SYS_madvise, from, size, 4) == 0; /* MADV_DONTNEED */
#else
    (void)from;
    (void)size;
    return 0;
#endif
}

/* A new arena, all free, known to nobody. @at, @size: its mapping. */
static PERCPU_PRIV_OUTLINE struct percpu_priv_arena *percpu_priv_arena_new(void **at, size_t *size)
{
    unsigned rows = percpu_nr_cpus();
    struct percpu_priv_arena *a;
    *size = PERCPU_PRIV_ARENA_SIZE + ((size_t)2 * rows + 1) * PERCPU_STRIDE;
    *at = percpu_priv_map(*size);
    if (!*at)
        return (struct percpu_priv_arena *)0;
    a = percpu_priv_arena_of((char *)*at + PERCPU_PRIV_ARENA_SIZE + PERCPU_STRIDE - 1);
    a->magic = PERCPU_PRIV_MAGIC ^ (uintptr_t)a;
    a->rows = rows;
    a->free = PERCPU_PRIV_GRANULES;
    percpu_rseq_valgrind_untrack(a, *size - (size_t)((char *)a - (char *)*at));
    return a;
}

/* The bits of word @w that belong to granules [@g, @g + @n). */
static inline percpu_word percpu_priv_mask(size_t w, size_t g, size_t n)
{
    size_t from = g > w * PERCPU_PRIV_BITS ? g - w * PERCPU_PRIV_BITS : 0;
    size_t to =
        g + n < (w + 1) * PERCPU_PRIV_BITS ? g + n - w * PERCPU_PRIV_BITS : PERCPU_PRIV_BITS;
    return (~(percpu_word)0 << from) & (~(percpu_word)0 >> (PERCPU_PRIV_BITS - to));
}

static PERCPU_PRIV_OUTLINE void percpu_priv_release(struct percpu_priv_arena *a, size_t g, size_t n)
{
    for (size_t w = g / PERCPU_PRIV_BITS; n && w <= (g + n - 1) / PERCPU_PRIV_BITS; w++)
        (void)__atomic_fetch_and(&a->used[w], ~percpu_priv_mask(w, g, n), __ATOMIC_RELEASE);
}

static PERCPU_PRIV_OUTLINE int percpu_priv_claim(struct percpu_priv_arena *a, size_t g, size_t n)
{
    for (size_t w = g / PERCPU_PRIV_BITS; w <= (g + n - 1) / PERCPU_PRIV_BITS; w++) {
        percpu_word mask = percpu_priv_mask(w, g, n), old = PERCPU_PRIV_LOAD(a->used[w]);
        do
            if (old & mask) {
                percpu_priv_release(a, g, w * PERCPU_PRIV_BITS > g ? w * PERCPU_PRIV_BITS - g : 0);
                return 0;
            }
        while (!__atomic_compare_exchange_n(&a->used[w], &old, old | mask, 1, __ATOMIC_ACQUIRE,
                                            __ATOMIC_RELAXED));
    }
    return 1;
}

/* The first granule at or after @g, below @end, that is in use; @end if none is. */
static PERCPU_PRIV_OUTLINE size_t percpu_priv_next_used(struct percpu_priv_arena *a, size_t g,
                                                        size_t end)
{
    while (g < end) {
        percpu_word bits =
            PERCPU_PRIV_LOAD(a->used[g / PERCPU_PRIV_BITS]) >> (g % PERCPU_PRIV_BITS);
        if (bits)
            return g + percpu_priv_ctz(bits) < end ? g + percpu_priv_ctz(bits) : end;
        g += PERCPU_PRIV_BITS - g % PERCPU_PRIV_BITS;
    }
    return end;
}

/* Claim @n granules, a multiple of @align from row start, at or after @g; return where, or all. */
static PERCPU_PRIV_OUTLINE size_t percpu_priv_search(struct percpu_priv_arena *a, size_t g,
                                                     size_t n, size_t align)
{
    for (g = (g + align - 1) & ~(align - 1); g + n <= PERCPU_PRIV_GRANULES;) {
        size_t used = percpu_priv_next_used(a, g, g + n);
        if (used == g + n && percpu_priv_claim(a, g, n))
            return g;
        if (used < g + n) { /* skip the run of used granules */
            percpu_word ones =
                ~(PERCPU_PRIV_LOAD(a->used[used / PERCPU_PRIV_BITS]) >> (used % PERCPU_PRIV_BITS));
            g = used + (ones ? percpu_priv_ctz(ones) : PERCPU_PRIV_BITS);
            g = (g + align - 1) & ~(align - 1);
        }
    }
    return PERCPU_PRIV_GRANULES;
}

static PERCPU_PRIV_OUTLINE void *percpu_priv_take(struct percpu_priv_arena *a, size_t n,
                                                  size_t align)
{
    size_t hint = PERCPU_PRIV_LOAD(a->hint), g = PERCPU_PRIV_GRANULES;
    if (PERCPU_PRIV_LOAD(a->free) < n)
        return (void *)0;
    g = percpu_priv_search(a, hint, n, align);
    if (g == PERCPU_PRIV_GRANULES && hint)
        g = percpu_priv_search(a, 0, n, align);
    if (g == PERCPU_PRIV_GRANULES)
        return (void *)0;
    PERCPU_PRIV_STORE(a->hint, (uint32_t)(g + n < PERCPU_PRIV_GRANULES ? g + n : 0));
    (void)__atomic_fetch_sub(&a->free, (uint32_t)n, __ATOMIC_RELAXED);
    (void)__atomic_fetch_or(&a->last[(g + n - 1) / PERCPU_PRIV_BITS],
                            (percpu_word)1 << (g + n - 1) % PERCPU_PRIV_BITS, __ATOMIC_RELAXED);
    (void)__atomic_fetch_or(&a->first[g / PERCPU_PRIV_BITS], (percpu_word)1 << g % PERCPU_PRIV_BITS,
                            __ATOMIC_RELEASE);
    return percpu_priv_rows_of(a) + g * 8;
}

/* From the arena that served last, then all others. */
static PERCPU_PRIV_OUTLINE void *percpu_priv_take_any(struct percpu_priv_arena *head, size_t n,
                                                      size_t align)
{
    struct percpu_priv_arena *start = __atomic_load_n(&percpu_priv_state.hint, __ATOMIC_ACQUIRE),
                             *a;
    void *p = (void *)0;
    for (a = start; a && !p; a = p ? a : a->next)
        p = percpu_priv_take(a, n, align);
    if (!p)
        for (a = head; a && a != start && !p; a = p ? a : a->next)
            p = percpu_priv_take(a, n, align);
    if (p && percpu_priv_arena_of(p) != start)
        __atomic_store_n(&percpu_priv_state.hint, percpu_priv_arena_of(p), __ATOMIC_RELEASE);
    return p;
}

static PERCPU_PRIV_OUTLINE void *percpu_alloc(size_t size, size_t align)
{
    size_t n = (size + 7) / 8, granules = align > 8 ? align / 8 : 1, mapped;
    struct percpu_priv_arena *head = __atomic_load_n(&percpu_priv_state.arenas, __ATOMIC_ACQUIRE),
                             *seen, *a;
    void *p, *mapping;
    int saved = errno;
    if (size == 0 || size > PERCPU_STRIDE || align == 0 || align > PERCPU_STRIDE ||
        (align & (align - 1))) {
        errno = EINVAL;
        return (void *)0;
    }
    if ((p = percpu_priv_take_any(head, n, granules)) != (void *)0)
        return p;
    a = percpu_priv_arena_new(&mapping, &mapped);
    if (!a) {
        errno = ENOMEM;
        return (void *)0;
    }
    seen = __atomic_load_n(&percpu_priv_state.arenas, __ATOMIC_ACQUIRE);
    if (seen != head && (p = percpu_priv_take_any(seen, n, granules)) != (void *)0) {
        percpu_priv_unmap(mapping, mapped); /* somebody else brought memory meanwhile */
    } else {
        p = percpu_priv_take(a, n, granules);
        a->next = seen;
        while (!__atomic_compare_exchange_n(&percpu_priv_state.arenas, &a->next, a, 1,
                                            __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            ;
        __atomic_store_n(&percpu_priv_state.hint, a, __ATOMIC_RELEASE);
    }
    errno = saved;
    return p;
}

/* Zero one copy, without writing to pages that were never written. */
static PERCPU_PRIV_OUTLINE void percpu_priv_zero(char *copy, size_t size)
{
    percpu_word *words = (percpu_word *)(void *)copy;
    for (size_t i = 0; i < size / sizeof *words; i++)
        if (PERCPU_PRIV_LOAD(words[i]))
            PERCPU_PRIV_STORE(words[i], 0);
}

/*
 * An arena became empty. It keeps its pages, so that one object that comes and goes does not cost a
 * system call each time, until another one becomes empty.
 */
static PERCPU_PRIV_OUTLINE void percpu_priv_trim(struct percpu_priv_arena *a)
{
    struct percpu_priv_arena *old =
        __atomic_exchange_n(&percpu_priv_state.spare, a, __ATOMIC_ACQ_REL);
    if (!old || old == a || !percpu_priv_claim(old, 0, PERCPU_PRIV_GRANULES))
        return;
    (void)percpu_priv_discard(percpu_priv_rows_of(old), (size_t)2 * old->rows * PERCPU_STRIDE);
    percpu_priv_release(old, 0, PERCPU_PRIV_GRANULES);
}

/* Is there an arena, and not whatever else a wrong pointer may lead to? */
static PERCPU_PRIV_OUTLINE int percpu_priv_is_arena(struct percpu_priv_arena *a)
{
#if defined(__linux__)
    /* Read it by a system call: where the pointer is wrong, the memory may not be readable. */
    struct {
        const void *base;
        size_t size;
    } from = {&a->magic, sizeof a->magic}, to;
    uint64_t magic = 0;
    int saved = errno;
    long pid, got;
    to.base = &magic;
    to.size = sizeof magic;
    if (a != PERCPU_PRIV_LOAD(percpu_priv_state.hint)) {
        pid = percpu_priv_syscall(SYS_getpid);
        got = percpu_priv_syscall(SYS_process_vm_readv, pid, &to, 1L, &from, 1L, 0L);
        if (got != (long)sizeof magic && errno != EFAULT)
            magic = a->magic; /* a sandbox refuses the call */
        errno = saved;
        return magic == (PERCPU_PRIV_MAGIC ^ (uintptr_t)a);
    }
#endif
    return a->magic == (PERCPU_PRIV_MAGIC ^ (uintptr_t)a);
}

/* The end of the object that starts at granule @g. */
static PERCPU_PRIV_OUTLINE size_t percpu_priv_end_of(struct percpu_priv_arena *a, size_t g)
{
    percpu_word bits = PERCPU_PRIV_LOAD(a->last[g / PERCPU_PRIV_BITS]) >> (g % PERCPU_PRIV_BITS);
    if (bits)
        return g + percpu_priv_ctz(bits) + 1;
    do
        g = (g / PERCPU_PRIV_BITS + 1) * PERCPU_PRIV_BITS;
    while (!PERCPU_PRIV_LOAD(a->last[g / PERCPU_PRIV_BITS]));
    return g + percpu_priv_ctz(PERCPU_PRIV_LOAD(a->last[g / PERCPU_PRIV_BITS])) + 1;
}

static PERCPU_PRIV_OUTLINE int percpu_free(void *p)
{
    struct percpu_priv_arena *a = percpu_priv_arena_of(p);
    size_t g = ((uintptr_t)p & (PERCPU_STRIDE - 1)) / 8, end, banks;
    percpu_word bit = (percpu_word)1 << g % PERCPU_PRIV_BITS;
    if (!p)
        return 0;
    if ((uintptr_t)p % 8 || !percpu_priv_is_arena(a) ||
        !(__atomic_fetch_and(&a->first[g / PERCPU_PRIV_BITS], ~bit, __ATOMIC_ACQ_REL) & bit)) {
        errno = EINVAL;
        return -1;
    }
    end = percpu_priv_end_of(a, g);
    banks = PERCPU_PRIV_LOAD(a->mixed) ? 2 : 1;
    for (size_t row = 0; row < banks * a->rows; row++) {
        char *copy = (char *)percpu_priv_ptr(p, (unsigned)row);
        if (end - g < PERCPU_PRIV_GRANULES || !percpu_priv_discard(copy, PERCPU_STRIDE))
            percpu_priv_zero(copy, (end - g) * 8);
    }
    (void)__atomic_fetch_and(&a->last[(end - 1) / PERCPU_PRIV_BITS],
                             ~((percpu_word)1 << (end - 1) % PERCPU_PRIV_BITS), __ATOMIC_RELAXED);
    percpu_priv_release(a, g, end - g);
    if (g < PERCPU_PRIV_LOAD(a->hint))
        PERCPU_PRIV_STORE(a->hint, (uint32_t)g);
    if (__atomic_add_fetch(&a->free, (uint32_t)(end - g), __ATOMIC_RELAXED) == PERCPU_PRIV_GRANULES)
        percpu_priv_trim(a);
    else if (a != PERCPU_PRIV_LOAD(percpu_priv_state.hint)) /* the next need not search */
        __atomic_store_n(&percpu_priv_state.hint, a, __ATOMIC_RELEASE);
    return 0;
}

static PERCPU_PRIV_OUTLINE unsigned percpu_priv_copies(const void *p)
{
    struct percpu_priv_arena *a = percpu_priv_arena_of(p);
    return __atomic_load_n(&a->mixed, __ATOMIC_ACQUIRE) ? 2 * a->rows : a->rows;
}

/*
 * The copy, in the second bank, of this thread. Threads get rows in turn, when they first come
 * here, so they spread without asking the kernel where they run.
 */
static PERCPU_PRIV_OUTLINE void *percpu_priv_fallback_copy(const void *p)
{
    struct percpu_priv_arena *a = percpu_priv_arena_of(p);
#if PERCPU_RSEQ_PORTED
    uint32_t *mine = &percpu_priv_thread()->row, row = *mine;
#else
    static __thread uint32_t percpu_priv_row;
    uint32_t *mine = &percpu_priv_row, row = *mine;
#endif
    if (row - 1 >= a->rows) { /* also 0: none yet */
        row = __atomic_fetch_add(&percpu_priv_state.next_row, 1, __ATOMIC_RELAXED) % a->rows + 1;
        *mine = row;
    }
    if (!PERCPU_PRIV_LOAD(a->mixed)) /* before the write that readers must not miss */
        __atomic_store_n(&a->mixed, 1, __ATOMIC_SEQ_CST);
    return percpu_priv_ptr(p, a->rows + row - 1);
}

/* The memory of a handle: its copies of @size bytes, allocated by whoever comes first. */
static PERCPU_PRIV_OUTLINE void *percpu_priv_base(void *handle_base, size_t size)
{
    void **slot = (void **)handle_base;
    void *base = __atomic_load_n(slot, __ATOMIC_ACQUIRE), *mine;
    if (base)
        return base;
    mine = percpu_alloc(size, sizeof(uint64_t));
    if (!mine)
        return mine;
    percpu_rseq_valgrind_untrack(slot, sizeof *slot);
    if (__atomic_compare_exchange_n(slot, &base, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mine;
    (void)percpu_free(mine); /* a thread or a handler was faster */
    return base;
}

/* A counter's memory, or a set's, is all there: let sections in. Who sees rows sees the bases. */
static PERCPU_PRIV_OUTLINE void percpu_priv_open(uint32_t *rows)
{
    if (PERCPU_PRIV_LOAD(*rows))
        return;
    percpu_rseq_valgrind_untrack(rows, sizeof *rows);
    __atomic_store_n(rows, PERCPU_PRIV_LOAD(percpu_priv_state.reach.bound), __ATOMIC_RELEASE);
}

/* ---- Counters */

static PERCPU_PRIV_OUTLINE void percpu_priv_counter_slow(struct percpu_counter *c, percpu_word v)
{
    int saved = errno;
    percpu_word *base = (percpu_word *)percpu_priv_base(&c->base, sizeof v);
    if (base)
        percpu_priv_open(&c->rows);
    if (!base)
        (void)__atomic_fetch_add(&c->spill, v, __ATOMIC_RELAXED);
    else if (!percpu_priv_enter() || !PERCPU_PRIV_SECTION(add_first, &c->base, &c->rows, v))
        (void)__atomic_fetch_add((percpu_word *)PERCPU_PRIV_SECOND_BANK(base), v, __ATOMIC_RELAXED);
    errno = saved;
}

static PERCPU_PRIV_OUTLINE int percpu_counter_init(struct percpu_counter *c)
{
    static const struct percpu_counter zero = {0, 0, 0, 0};
    *c = zero;
    if (!percpu_priv_base(&c->base, sizeof(percpu_word)))
        return -1;
    percpu_priv_open(&c->rows);
    return 0;
}

static PERCPU_PRIV_OUTLINE void percpu_counter_destroy(struct percpu_counter *c)
{
    static const struct percpu_counter zero = {0, 0, 0, 0};
    (void)percpu_free(c->base);
    *c = zero;
}

/* The sum of one word over all copies. */
static PERCPU_PRIV_OUTLINE percpu_word percpu_priv_sum(percpu_word *base)
{
    percpu_word sum = 0, *copy;
    percpu_for_each_copy(base, copy) sum += PERCPU_PRIV_LOAD(*copy);
    return sum;
}

/* What a sum grew by since the last take. Its caller knows how to sum. */
#define PERCPU_PRIV_TAKE(taken, sum)                                                        \
    __extension__({                                                                         \
        percpu_word percpu_priv_old = __atomic_load_n(&(taken), __ATOMIC_ACQUIRE),          \
                    percpu_priv_new;                                                        \
        do                                                                                  \
            percpu_priv_new = (sum);                                                        \
        while (!__atomic_compare_exchange_n(&(taken), &percpu_priv_old, percpu_priv_new, 0, \
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));           \
        percpu_priv_new - percpu_priv_old;                                                  \
    })

static PERCPU_PRIV_OUTLINE percpu_word percpu_counter_sum(struct percpu_counter *c)
{
    percpu_word *base = __atomic_load_n(&c->base, __ATOMIC_ACQUIRE);
    return PERCPU_PRIV_LOAD(c->spill) + (base ? percpu_priv_sum(base) : 0);
}

static PERCPU_PRIV_OUTLINE percpu_word percpu_counter_take(struct percpu_counter *c)
{
    return PERCPU_PRIV_TAKE(c->taken, percpu_counter_sum(c));
}

/* ---- Counter sets */

/* Words of chunk @i: all that fit, or the rest. */
static inline size_t percpu_priv_chunk_words(const struct percpu_counters *set, size_t i)
{
    size_t first = i * PERCPU_COUNTERS_CHUNK;
    return set->n - first < PERCPU_COUNTERS_CHUNK ? set->n - first : PERCPU_COUNTERS_CHUNK;
}

/* Allocate what is missing. Return: nothing is missing any more. */
static PERCPU_PRIV_OUTLINE int percpu_priv_chunks(const struct percpu_counters *set,
                                                  percpu_word **slots)
{
    int all = 1;
    for (size_t i = 0; i * PERCPU_COUNTERS_CHUNK < set->n; i++)
        all &= percpu_priv_base(&slots[i], percpu_priv_chunk_words(set, i) * sizeof **slots) !=
               (void *)0;
    return all;
}

static PERCPU_PRIV_OUTLINE void percpu_priv_counters_slow(struct percpu_counters *set,
                                                          unsigned event, percpu_word v)
{
    int saved = errno;
    const size_t i = event / PERCPU_COUNTERS_CHUNK, word = event % PERCPU_COUNTERS_CHUNK;
    const int shared = (set->flags & PERCPU_COUNTERS_SHARED) != 0;
    percpu_word *chunk;
    if (event >= set->n)
        return;
    chunk = __atomic_load_n(&set->chunk[i], __ATOMIC_ACQUIRE);
    if (!chunk || !shared) {
        if (percpu_priv_chunks(set, set->chunk) && !shared)
            percpu_priv_open(&set->rows);
        chunk = __atomic_load_n(&set->chunk[i], __ATOMIC_ACQUIRE);
    }
    if (!chunk)
        (void)__atomic_fetch_add(&set->unplaced, v, __ATOMIC_RELAXED);
    else if (shared)
        (void)__atomic_fetch_add(chunk + word, v, __ATOMIC_RELAXED);
    else if (!percpu_priv_enter() ||
             !PERCPU_PRIV_SECTION(add_element, &set->chunk[i], &set->rows, word, v))
        (void)__atomic_fetch_add((percpu_word *)PERCPU_PRIV_SECOND_BANK(chunk + word), v,
                                 __ATOMIC_RELAXED);
    errno = saved;
}

static PERCPU_PRIV_OUTLINE void percpu_priv_free_chunks(percpu_word **chunks)
{
    for (size_t i = 0; i < PERCPU_COUNTERS_CHUNKS; i++) {
        (void)percpu_free(chunks[i]);
        chunks[i] = (percpu_word *)0;
    }
}

static PERCPU_PRIV_OUTLINE int percpu_counters_init(struct percpu_counters *set, unsigned n,
                                                    struct percpu_counters *parent, unsigned flags)
{
    static const struct percpu_counters zero = PERCPU_COUNTERS_INIT(0, 0);
    *set = zero;
    if (n == 0 || n > PERCPU_COUNTERS_MAX || flags & ~PERCPU_COUNTERS_SHARED) {
        errno = EINVAL;
        return -1;
    }
    set->n = n;
    set->flags = flags;
    if (!percpu_priv_chunks(set, set->chunk)) {
        percpu_priv_free_chunks(set->chunk);
        errno = ENOMEM;
        return -1;
    }
    if (!(flags & PERCPU_COUNTERS_SHARED))
        percpu_priv_open(&set->rows);
    set->parent = parent;
    if (parent)
        (void)__atomic_fetch_add(&parent->children, 1, __ATOMIC_RELAXED);
    return 0;
}

static PERCPU_PRIV_OUTLINE int percpu_counters_destroy(struct percpu_counters *set)
{
    static const struct percpu_counters zero = PERCPU_COUNTERS_INIT(0, 0);
    if (__atomic_load_n(&set->children, __ATOMIC_ACQUIRE)) {
        errno = EBUSY;
        return -1;
    }
    if (set->parent)
        (void)__atomic_fetch_sub(&set->parent->children, 1, __ATOMIC_RELEASE);
    percpu_priv_free_chunks(set->chunk);
    percpu_priv_free_chunks(set->taken);
    *set = zero;
    return 0;
}

static PERCPU_PRIV_OUTLINE percpu_word percpu_counters_sum(struct percpu_counters *set,
                                                           unsigned event)
{
    percpu_word *chunk =
        event < set->n
            ? __atomic_load_n(&set->chunk[event / PERCPU_COUNTERS_CHUNK], __ATOMIC_ACQUIRE)
            : (percpu_word *)0;
    if (!chunk)
        return 0;
    chunk += event % PERCPU_COUNTERS_CHUNK;
    return set->flags & PERCPU_COUNTERS_SHARED ? PERCPU_PRIV_LOAD(*chunk) : percpu_priv_sum(chunk);
}

/*
 * Add a row to the sums. Plain loads, so that the compiler uses vectors; no processor tears an
 * aligned word of one. ThreadSanitizer needs to be told.
 */
static PERCPU_PRIV_OUTLINE void percpu_priv_add_row(percpu_word *__restrict out,
                                                    const percpu_word *__restrict row, size_t n)
{
    for (size_t i = 0; i < n; i++)
#ifdef PERCPU_PRIV_TSAN
        out[i] += PERCPU_PRIV_LOAD(row[i]);
#else
        out[i] += row[i];
#endif
}

static PERCPU_PRIV_OUTLINE void percpu_counters_snapshot(struct percpu_counters *set,
                                                         percpu_word *out)
{
    for (size_t i = 0; i * PERCPU_COUNTERS_CHUNK < set->n; i++, out += PERCPU_COUNTERS_CHUNK) {
        percpu_word *chunk = __atomic_load_n(&set->chunk[i], __ATOMIC_ACQUIRE), *copy;
        size_t n = percpu_priv_chunk_words(set, i);
        __builtin_memset(out, 0, n * sizeof *out);
        if (chunk && set->flags & PERCPU_COUNTERS_SHARED)
            percpu_priv_add_row(out, chunk, n);
        else if (chunk)
            percpu_for_each_copy(chunk, copy) percpu_priv_add_row(out, copy, n);
    }
}

static PERCPU_PRIV_OUTLINE int percpu_counters_take(struct percpu_counters *set, percpu_word *out)
{
    if (!percpu_priv_chunks(set, set->taken))
        return -1;
    for (unsigned event = 0; event < set->n; event++)
        out[event] = PERCPU_PRIV_TAKE(
            set->taken[event / PERCPU_COUNTERS_CHUNK][event % PERCPU_COUNTERS_CHUNK],
            percpu_counters_sum(set, event));
    return 0;
}

/* ---- Timestamps */

#ifndef PERCPU_RSEQ_TICKS
static PERCPU_PRIV_OUTLINE uint64_t percpu_priv_clock(void)
{
#if defined(_WIN32)
    uint64_t t = 0;
    (void)percpu_priv_performance_counter(&t);
    return t;
#elif defined(__APPLE__)
    return percpu_priv_clock_ns(8); /* CLOCK_UPTIME_RAW */
#else
    long t[2] = {0, 0};
#if defined(__FreeBSD__)
    (void)percpu_priv_clock_gettime(4, t); /* CLOCK_MONOTONIC */
#elif defined(__linux__)
    (void)percpu_priv_clock_gettime(1, t);
#endif
    return (uint64_t)t[0] * 1000000000u + (uint64_t)t[1];
#endif
}
#endif

PERCPU_RSEQ_INLINE uint64_t percpu_ticks(void)
{
#ifdef PERCPU_RSEQ_TICKS
    return percpu_rseq_ticks();
#else
    return percpu_priv_clock();
#endif
}

static inline uint64_t percpu_priv_ticks_ordered(void)
{
#ifdef PERCPU_RSEQ_TICKS
    return percpu_rseq_ticks_ordered();
#else
    return percpu_priv_clock();
#endif
}

static PERCPU_PRIV_OUTLINE struct percpu_tscp percpu_priv_tscp_slow(void)
{
    struct percpu_tscp t = {0, 0};
#if PERCPU_PRIV_SECTIONS
    uint32_t cpu;
    if (percpu_priv_enter() && PERCPU_PRIV_SECTION(stamp, &cpu, &t.ticks)) {
        t.cpu = cpu;
        return t;
    }
#endif
    do {
        t.cpu = percpu_this_cpu_id();
        t.ticks = percpu_priv_ticks_ordered();
    } while (t.cpu != percpu_this_cpu_id());
    return t;
}

PERCPU_RSEQ_INLINE struct percpu_tscp percpu_tscp_approx(void)
{
    struct percpu_tscp t = {0, 0};
    uint32_t cpu = 0;
    if (PERCPU_PRIV_UNLIKELY(!PERCPU_PRIV_SECTION(stamp, &cpu, &t.ticks)))
        return percpu_priv_tscp_slow();
    t.cpu = cpu;
    return t;
}

/* 12 bits of the register that rdtscp reads are the CPU. */
static PERCPU_PRIV_OUTLINE int percpu_priv_find_rdtscp(void)
{
#ifdef PERCPU_RSEQ_RDTSCP
    int usable = percpu_rseq_has_rdtscp() && percpu_nr_cpus() <= 4096;
    PERCPU_PRIV_STORE(percpu_priv_state.rdtscp, (uint8_t)(usable ? 1 : 2));
    return usable;
#else
    return 0;
#endif
}

PERCPU_RSEQ_INLINE struct percpu_tscp percpu_tscp(void)
{
#ifdef PERCPU_RSEQ_RDTSCP
    uint8_t known = PERCPU_PRIV_LOAD(percpu_priv_state.rdtscp);
    if (known == 1 || (PERCPU_PRIV_UNLIKELY(known == 0) && percpu_priv_find_rdtscp())) {
        struct percpu_tscp t = {0, 0};
        uint32_t cpu;
        t.ticks = percpu_rseq_rdtscp(&cpu);
        t.cpu = cpu;
        return t;
    }
#endif
    (void)
        percpu_priv_ticks_ordered(); /* everything earlier is done; the section reads later still */
    return percpu_tscp_approx();
}

/* ---- Gauges */

/*
 * A buffer's words: written after the commit that retired it (release), read before the sequence
 * number is read again (acquire). A 32-bit machine may tear them; the sequence number tells.
 */
static inline uint64_t percpu_priv_load64(const uint64_t *p)
{
#if UINTPTR_MAX > 0xffffffffu
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#else
    uint64_t v = *(const volatile uint64_t *)p;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return v;
#endif
}
static inline void percpu_priv_store64(uint64_t *p, uint64_t v)
{
#if UINTPTR_MAX > 0xffffffffu
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
    *(volatile uint64_t *)p = v;
#endif
}

/*
 * A writer without a section: the same protocol, under the row's lock. Return: 0 if the row is
 * locked, by another thread or by what this signal handler interrupted.
 */
static PERCPU_PRIV_OUTLINE int percpu_priv_gauge_write(struct percpu_priv_gauge_row *row,
                                                       uint64_t bits)
{
    uintptr_t seq;
    uint64_t *buffer;
    if (__atomic_exchange_n(&row->lock, 1, __ATOMIC_ACQUIRE))
        return 0;
    seq = PERCPU_PRIV_LOAD(row->stamped.seq) + 1;
    buffer = &row->stamped.buffer[seq & 1].value;
    percpu_priv_store64(&buffer[0], bits);
    percpu_priv_store64(&buffer[1], percpu_priv_ticks_ordered());
    __atomic_store_n(&row->stamped.seq, seq, __ATOMIC_RELEASE);
    __atomic_store_n(&row->lock, 0, __ATOMIC_RELEASE);
    return 1;
}

/*
 * The row after @row, in the chain that starts in the handle; allocated if there is none. So a set
 * never waits for a thread that stopped while it held a row, and is never lost: there are as many
 * rows as there ever were fallback sets under way at once. NULL: no memory.
 */
static PERCPU_PRIV_OUTLINE struct percpu_priv_gauge_row *
percpu_priv_gauge_more(struct percpu_priv_gauge_row *row)
{
    return (struct percpu_priv_gauge_row *)percpu_priv_base(&row->more, sizeof *row);
}

static PERCPU_PRIV_OUTLINE void percpu_priv_gauge_slow(struct percpu_gauge *g, uint64_t bits)
{
    int saved = errno;
    uintptr_t seq;
    struct percpu_priv_gauge_row *base, *row;
    base = (struct percpu_priv_gauge_row *)percpu_priv_base(&g->base, sizeof *base);
    (void)seq;
    if (!base || !percpu_priv_enter() ||
        !PERCPU_PRIV_SECTION(publish, &base->stamped, bits, &seq)) {
        row = base ? (struct percpu_priv_gauge_row *)PERCPU_PRIV_SECOND_BANK(base) : &g->spill;
        if (!percpu_priv_gauge_write(row, bits))
            for (row = &g->spill; row && !percpu_priv_gauge_write(row, bits);)
                row = percpu_priv_gauge_more(row);
    }
    errno = saved;
}

/* A row's live value, if it is later than what @best holds. */
static PERCPU_PRIV_OUTLINE void percpu_priv_gauge_read(struct percpu_priv_gauge_row *row, int *any,
                                                       uint64_t *best, uint64_t *bits)
{
    uintptr_t seq;
    uint64_t value, ticks;
    do {
        seq = __atomic_load_n(&row->stamped.seq, __ATOMIC_ACQUIRE);
        value = percpu_priv_load64(&row->stamped.buffer[seq & 1].value);
        ticks = percpu_priv_load64(&row->stamped.buffer[seq & 1].ticks);
        /* While it is the live one nobody writes to it; it was, all along, if seq is unchanged. */
    } while (seq != PERCPU_PRIV_LOAD(row->stamped.seq));
    if (seq && (!*any || ticks > *best)) {
        *any = 1;
        *best = ticks;
        *bits = value;
    }
}

static PERCPU_PRIV_OUTLINE int percpu_gauge_get(struct percpu_gauge *g, double *value)
{
    struct percpu_priv_gauge_row *base = __atomic_load_n(&g->base, __ATOMIC_ACQUIRE), *row;
    uint64_t best = 0, bits = 0;
    int any = 0;
    if (base)
        percpu_for_each_copy(base, row) percpu_priv_gauge_read(row, &any, &best, &bits);
    for (row = &g->spill; row; row = __atomic_load_n(&row->more, __ATOMIC_ACQUIRE))
        percpu_priv_gauge_read(row, &any, &best, &bits);
    __builtin_memcpy(value, &bits, sizeof bits);
    return any;
}

static PERCPU_PRIV_OUTLINE int percpu_gauge_init(struct percpu_gauge *g)
{
    __builtin_memset(g, 0, sizeof *g);
    return percpu_priv_base(&g->base, sizeof *g->base) ? 0 : -1;
}

static PERCPU_PRIV_OUTLINE void percpu_gauge_destroy(struct percpu_gauge *g)
{
    struct percpu_priv_gauge_row *row = g->spill.more, *next;
    for (; row; row = next) {
        next = row->more;
        (void)percpu_free(row);
    }
    (void)percpu_free(g->base);
    __builtin_memset(g, 0, sizeof *g);
}

/* ---- Free lists */

static inline void **percpu_priv_link(const struct percpu_freelist *list, void *node)
{
    return (void **)(void *)((char *)node + list->next);
}

/* Put a chain on a stack of the second bank. Nobody pops single nodes there, so there is no ABA. */
static PERCPU_PRIV_OUTLINE void percpu_priv_give(struct percpu_freelist *list, void **stack,
                                                 void *first)
{
    void *last = first, *head;
    while (*percpu_priv_link(list, last))
        last = *percpu_priv_link(list, last);
    head = PERCPU_PRIV_LOAD(*stack);
    do
        *percpu_priv_link(list, last) = head;
    while (
        !__atomic_compare_exchange_n(stack, &head, first, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

/* Take the stack, keep its first node, give the rest back. */
static PERCPU_PRIV_OUTLINE void *percpu_priv_pick(struct percpu_freelist *list, void **stack)
{
    void *first, *rest, *none = (void *)0;
    if (!PERCPU_PRIV_LOAD(*stack))
        return none;
    first = __atomic_exchange_n(stack, none, __ATOMIC_ACQUIRE);
    rest = first ? *percpu_priv_link(list, first) : none;
    if (rest &&
        !__atomic_compare_exchange_n(stack, &none, rest, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        percpu_priv_give(list, stack, rest);
    return first;
}

static PERCPU_PRIV_OUTLINE void percpu_priv_push_slow(struct percpu_freelist *list, void *node)
{
    int saved = errno;
    struct percpu_rseq_list *base;
    base = (struct percpu_rseq_list *)percpu_priv_base(&list->base, sizeof *base);
    if (!base || !percpu_priv_enter() || !PERCPU_PRIV_SECTION(push, base, node, list->next)) {
        *percpu_priv_link(list, node) = (void *)0;
        percpu_priv_give(list,
                         base ? &((struct percpu_rseq_list *)PERCPU_PRIV_SECOND_BANK(base))->head
                              : &list->spill,
                         node);
    }
    errno = saved;
}

static PERCPU_PRIV_OUTLINE void *percpu_priv_pop_slow(struct percpu_freelist *list)
{
    int saved = errno;
    struct percpu_rseq_list *base;
    void *node = (void *)0;
    base = (struct percpu_rseq_list *)percpu_priv_base(&list->base, sizeof *base);
    if (!base || !percpu_priv_enter() || !PERCPU_PRIV_SECTION(pop, base, list->next, &node))
        node = percpu_priv_pick(
            list, base ? &((struct percpu_rseq_list *)PERCPU_PRIV_SECOND_BANK(base))->head
                       : &list->spill);
    errno = saved;
    return node;
}

static PERCPU_PRIV_OUTLINE int percpu_freelist_init(struct percpu_freelist *list, size_t next)
{
    __builtin_memset(list, 0, sizeof *list);
    list->next = next;
    return percpu_priv_base(&list->base, sizeof *list->base) ? 0 : -1;
}

static PERCPU_PRIV_OUTLINE int percpu_freelist_destroy(struct percpu_freelist *list)
{
    struct percpu_rseq_list *copy;
    int full = list->spill != (void *)0;
    if (list->base)
        percpu_for_each_copy(list->base, copy) full |= PERCPU_PRIV_LOAD(copy->head) != (void *)0;
    if (full) {
        errno = EBUSY;
        return -1;
    }
    (void)percpu_free(list->base);
    __builtin_memset(list, 0, sizeof *list);
    return 0;
}

/*
 * Close a CPU's row, wait, take, reopen. A section that had read closed == 0 commits before the
 * fence returns, or starts over and sees 1; from then on this thread alone writes the row. If it
 * stops for ever, the row stays closed and the CPU's threads use the second bank: slower, and
 * nothing is lost but what the row held.
 */
static PERCPU_PRIV_OUTLINE int percpu_priv_drain_row(struct percpu_rseq_list *row, unsigned cpu,
                                                     void **head)
{
    uintptr_t open = 0;
    int failed;
    if (!__atomic_compare_exchange_n(&row->closed, &open, 1, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED)) {
        errno = EAGAIN;
        return -1;
    }
    failed = percpu_fence_cpu(cpu);
    if (!failed) {
        *head = PERCPU_PRIV_LOAD(row->head);
        PERCPU_PRIV_STORE(row->head, (void *)0);
    }
    __atomic_store_n(&row->closed, 0, __ATOMIC_RELEASE);
    return failed;
}

/* Append the nodes of a stack to a chain. */
static PERCPU_PRIV_OUTLINE void percpu_priv_drain_stack(struct percpu_freelist *list, void **stack,
                                                        void **chain)
{
    void *first = __atomic_exchange_n(stack, (void *)0, __ATOMIC_ACQUIRE);
    if (!*chain)
        *chain = first;
    else if (first)
        percpu_priv_give(list, chain, first);
}

static PERCPU_PRIV_OUTLINE int percpu_freelist_drain(struct percpu_freelist *list, unsigned cpu,
                                                     void **chain)
{
    struct percpu_rseq_list *base = __atomic_load_n(&list->base, __ATOMIC_ACQUIRE), *row;
    int failed = 0;
    *chain = (void *)0;
    if (cpu >= (base ? percpu_priv_arena_of(base)->rows : percpu_nr_cpus())) {
        errno = EINVAL;
        return -1;
    }
    if (base) {
        row = (struct percpu_rseq_list *)percpu_priv_ptr(base, cpu);
        failed = percpu_priv_drain_row(row, cpu, chain);
        row = (struct percpu_rseq_list *)percpu_priv_ptr(base,
                                                         percpu_priv_arena_of(base)->rows + cpu);
        percpu_priv_drain_stack(list, &row->head, chain);
    }
    percpu_priv_drain_stack(list, &list->spill, chain);
#ifdef PERCPU_PRIV_TSAN
    for (void *node = *chain; node; node = *percpu_priv_link(list, node))
        PERCPU_PRIV_TAKE_OVER(node);
#endif
    return failed;
}

/* ---- Crossing CPUs */

#if PERCPU_RSEQ_LINUX
/* membarrier(2): PRIVATE_EXPEDITED_RSEQ, its registration, and the flag that names one CPU. */
static PERCPU_PRIV_OUTLINE int percpu_priv_membarrier(unsigned flags, int cpu)
{
    if (PERCPU_PRIV_LOAD(percpu_priv_state.membarrier) == 0)
        PERCPU_PRIV_STORE(
            percpu_priv_state.membarrier,
            (uint8_t)(percpu_priv_syscall(SYS_membarrier, 1 << 8, 0, 0) == 0 ? 1 : 2));
    return PERCPU_PRIV_LOAD(percpu_priv_state.membarrier) == 1 &&
           percpu_priv_syscall(SYS_membarrier, 1 << 7, flags, cpu) == 0;
}

/* Run on the CPU for a moment: whoever ran a section there was preempted, so it is over. */
static PERCPU_PRIV_OUTLINE int percpu_priv_visit(unsigned cpu)
{
    unsigned long before[PERCPU_PRIV_AFFINITY_WORDS], there[PERCPU_PRIV_AFFINITY_WORDS];
    const unsigned bits = 8 * sizeof there[0];
    long size = percpu_priv_syscall(SYS_sched_getaffinity, 0, sizeof before, before), failed;
    if (size < 0)
        return -1;
    __builtin_memset(there, 0, sizeof there);
    there[cpu / bits] = 1ul << cpu % bits;
    failed = percpu_priv_syscall(SYS_sched_setaffinity, 0, sizeof there, there);
    if (!failed)
        (void)percpu_priv_syscall(SYS_sched_setaffinity, 0, size, before);
    return failed ? -1 : 0;
}
#endif

static PERCPU_PRIV_OUTLINE int percpu_fence_cpu(unsigned cpu)
{
    int saved = errno;
    if (cpu >= percpu_nr_cpus()) {
        errno = EINVAL;
        return -1;
    }
#if PERCPU_RSEQ_LINUX
    if (!percpu_priv_membarrier(1, (int)cpu) && percpu_priv_visit(cpu) != 0) {
        int refused = errno, online;
        unsigned end = percpu_priv_read_list("/sys/devices/system/cpu/online", cpu, &online);
        if (refused != EINVAL || !end || online) {
            errno = refused;
            return -1;
        }
        /* offline: nothing runs there */
    }
#endif
    errno = saved;
    return 0;
}

static PERCPU_PRIV_OUTLINE int percpu_fence(void)
{
    unsigned cpu = 0;
    int saved = errno;
#if PERCPU_RSEQ_LINUX
    if (percpu_priv_membarrier(0, 0)) {
        errno = saved;
        return 0;
    }
#endif
    percpu_for_each_cpu(cpu) if (percpu_fence_cpu(cpu) != 0) return -1;
    errno = saved;
    return 0;
}

/* ---- Names and clean-up */

#ifndef PERCPU_NO_SHORT_NAMES
#define this_cpu_id percpu_this_cpu_id
#define this_cpu_node percpu_this_cpu_node
#define this_cpu_cid percpu_this_cpu_cid
#define this_cpu_ptr percpu_this_cpu_ptr
#define this_cpu_add percpu_this_cpu_add
#define this_cpu_sub percpu_this_cpu_sub
#define this_cpu_inc percpu_this_cpu_inc
#define this_cpu_dec percpu_this_cpu_dec
#define this_cpu_and percpu_this_cpu_and
#define this_cpu_or percpu_this_cpu_or
#define this_cpu_read percpu_this_cpu_read
#define this_cpu_write percpu_this_cpu_write
#define this_cpu_add_return percpu_this_cpu_add_return
#define this_cpu_xchg percpu_this_cpu_xchg
#define this_cpu_cmpxchg percpu_this_cpu_cmpxchg
#endif

#undef PERCPU_PRIV_DEFINE_OPS
#undef PERCPU_PRIV_DEFINE_VOID
#undef PERCPU_PRIV_DEFINE_RESULT
#undef PERCPU_PRIV_DEFINE_CMPXCHG
#undef PERCPU_PRIV_SECTION
#undef PERCPU_PRIV_SECOND_BANK
#undef PERCPU_PRIV_OFFSET
#undef PERCPU_PRIV_LOAD
#undef PERCPU_PRIV_STORE

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* PERCPU_H */
