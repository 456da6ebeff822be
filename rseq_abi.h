/* SPDX-License-Identifier: MIT */
/*
 * rseq_abi.h - restartable sequences (rseq): the kernel's ABI, and the processor's half of
 * percpu.h.
 *
 * Everything here depends on the kernel's ABI or on the instruction set. percpu.h stands on top in
 * plain C and includes this file; programs include percpu.h. Nothing here needs, includes or
 * conflicts with a system rseq header.
 *
 * rseq in one paragraph: a thread gives the kernel an *area* of its own. The kernel keeps the CPU
 * number in it. Before a critical section the thread stores the address of a *descriptor* in the
 * area's rseq_cs. When the kernel preempts, migrates or signals the thread while its instruction
 * pointer is inside the described range, it resumes the thread at the descriptor's abort address
 * instead. A section whose last instruction is its only visible store therefore happens entirely
 * on one CPU, undisturbed, or not at all.
 *
 *   [A] Layouts, constants, system call numbers
 *   [B] Architectures: thread pointer, signature, instruction strings of the sections
 *   [C] The thread's own area, and how to find it
 *   [D] libc's area
 *   [E] The abort stub
 *   [F] The critical sections, in C with the strings of [B]
 *   [G] Tools: valgrind
 *   [H] Porting checklist
 */
#ifndef PERCPU_RSEQ_ABI_H
#define PERCPU_RSEQ_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define PERCPU_RSEQ_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#define PERCPU_RSEQ_STATIC_ASSERT(cond, text) __extension__ _Static_assert(cond, text)
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

/* ---- [A] Layouts, constants, system call numbers -------------------------------------------- */

/*
 * What the kernel knows of a thread. Only rseq_cs may be written while the area is registered:
 * newer kernels kill a process that writes an id. Which members are maintained depends on the
 * kernel: see percpu_rseq_feature_size(). cpu_id_start is not a valid CPU in every mode (some
 * libraries overlay it); only cpu_id is used as an index here.
 */
struct percpu_rseq_area {
    uint32_t cpu_id_start;
    uint32_t cpu_id;  /* the CPU, or PERCPU_RSEQ_CPU_{UNREGISTERED,FAILED} */
    uint64_t rseq_cs; /* address of the descriptor; a 32-bit thread writes the low word only */
    uint32_t flags;
    uint32_t node_id;    /* since Linux 6.3 */
    uint32_t mm_cid;     /* since Linux 6.3: compact id, below min(threads, CPUs) of the process */
    uint32_t slice_ctrl; /* since Linux 7.0 */
    uint8_t reserved;
    uint8_t pad[31]; /* ours: room for what later kernels add */
};

/* Describes one critical section. 32-aligned; flags must be 0 since Linux 6.1. */
struct percpu_rseq_descriptor {
    uint32_t version;
    uint32_t flags;
    uint64_t start_ip;
    uint64_t post_commit_offset; /* length in bytes: an ip in [start_ip, start_ip + this) aborts */
    uint64_t abort_ip;           /* the four bytes before it hold the signature, or SIGSEGV */
};

/* What follows each of our descriptors: where the abort stub [E] goes next. */
struct percpu_rseq_site {
    struct percpu_rseq_descriptor descriptor;
    uint64_t restart_ip; /* the instruction that loads the descriptor's address */
    uint64_t slow_ip;    /* where the section goes when it gives up */
    uint64_t aborts;     /* 32-bit: address of the stub's count */
    uint64_t unused;
};

#define PERCPU_RSEQ_CPU_UNREGISTERED 0xffffffffu /* -1 */
#define PERCPU_RSEQ_CPU_FAILED 0xfffffffeu       /* -2: libc was told not to, or was refused */
#define PERCPU_RSEQ_FLAG_UNREGISTER 1
#define PERCPU_RSEQ_LENGTH_LEGACY 32u  /* the only length that kernels before 6.3 accept */
#define PERCPU_RSEQ_FEATURE_LEGACY 20u /* bytes maintained by a kernel that does not say */
#define PERCPU_RSEQ_AT_FEATURE_SIZE 27 /* auxiliary vector */
#define PERCPU_RSEQ_AT_ALIGN 28
#define PERCPU_RSEQ_CPU_ID_OFFSET 4

/*
 * How a section finds its thread's area, and for which CPUs it runs. One per process, found out
 * once. from_tp and bound are one aligned word, which some processors load at once.
 */
struct percpu_rseq_reach {
    int32_t from_tp;   /* cpu_id's address - (biased) thread pointer; 0 unknown */
    uint32_t bound;    /* critical sections run for ids below; 0 nowhere */
    intptr_t from_own; /* the area's address - that of our own; where an executable is faster so */
};

/* Everything the library keeps per thread. Readable by a debugger, written by its thread only. */
struct percpu_rseq_thread {
    struct percpu_rseq_area area; /* given to the kernel only where libc has none */
    uint32_t length;              /* what we registered, for unregistering; 0: nothing is ours */
    uint32_t row;                 /* fallback row + 1; 0: none picked yet */
    int32_t error;                /* errno of the attempt */
    uint8_t state;                /* enum percpu_priv_thread_state */
    uint8_t reason;               /* enum percpu_reason of a state that is final */
};

/* One CPU's list. */
struct percpu_rseq_list {
    void *head;
    uintptr_t closed; /* another CPU is draining it */
};

/*
 * A value with its time, for one writer (a CPU) and any readers; buffer[seq & 1] is the live one.
 */
struct percpu_rseq_stamped {
    uintptr_t seq; /* 0: never set */
    struct {
        uint64_t value, ticks;
    } buffer[2];
};

#define PERCPU_RSEQ_OFFSET_IS(type, member, offset) \
    PERCPU_RSEQ_STATIC_ASSERT(offsetof(struct type, member) == (offset), #member)
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, cpu_id_start, 0);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, cpu_id, PERCPU_RSEQ_CPU_ID_OFFSET);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, rseq_cs, 8);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, flags, 16);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, node_id, 20);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, mm_cid, 24);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, slice_ctrl, 28);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_area, reserved, 32);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_descriptor, start_ip, 8);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_descriptor, post_commit_offset, 16);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_descriptor, abort_ip, 24);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_site, restart_ip, 32);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_site, slow_ip, 40);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_thread, length, 64);
PERCPU_RSEQ_OFFSET_IS(percpu_rseq_reach, bound, 4);
PERCPU_RSEQ_STATIC_ASSERT(sizeof(struct percpu_rseq_area) == 64, "area");
PERCPU_RSEQ_STATIC_ASSERT(sizeof(struct percpu_rseq_site) == 64, "site");

/* gcc takes an asm for as large as its text has lines, and would stop inlining after a few. */
#define PERCPU_RSEQ_INLINE static inline __attribute__((always_inline))

#if !defined(__linux__) || defined(PERCPU_NO_LINUX) || defined(__ANDROID__)
#define PERCPU_RSEQ_LINUX 0
#else
#define PERCPU_RSEQ_LINUX 1
#endif

/* ---- [B] Architectures ---------------------------------------------------------------------- */
/*
 * Each block states its registers and defines
 *
 *   PERCPU_RSEQ_SYSCALL      number of the rseq system call
 *   PERCPU_RSEQ_SIGNATURE    the word before each abort address, as the kernel reads it
 *   percpu_rseq_tp()         the thread pointer. Volatile asm on the register itself, never the
 *                            compiler's builtin: a fiber may go on in another thread, and compilers
 *                            keep the builtin's value across that switch (GCC PR26461, LLVM 98479)
 *   PERCPU_RSEQ_TP_BIAS      added to the thread pointer to reach memory that is always mapped
 *
 * and, where the sections are written and proven, PERCPU_RSEQ_SECTIONS 1 and the strings that [F]
 * assembles:
 *
 *   SECTION_BEGIN(slow)  arm: store the descriptor's address in rseq_cs. The section starts right
 *                        after that store, so that there is no gap between armed and protected.
 *                        Load cpu_id, leave for `slow` unless it is below %[bound] (one unsigned
 *                        compare covers unregistered, failed, and an id beyond the table).
 *                        Computes nothing but the row from it; inputs stay as they are, since an
 *                        abort starts over.
 *   SECTION_END          the address after the commit
 *   SECTION_RESULT       for sections that return a value: %[status] becomes
 *                        PERCPU_RSEQ_COMMITTED after a commit, something else otherwise: what a
 *                        way out finds in the register of the cpu id, an id or the row's address
 *   OP_...               load / compute / commit of each operation; its only store to shared memory
 *                        is its last instruction
 *   VALUE, ADDEND        constraints of %[v]; CLOBBERS, LIST_CLOBBERS, PUBLISH_CLOBBERS
 *   STUB_SIGNATURE, STUB the abort stub [E], with its unwind information
 *
 * Operands: %[self] the address of cpu_id, %[p], %[bound], and as [F] says %[v], %[expected],
 * %[node], %[next], %[out], %[cpu]; where a word has 32 bits the halves %[v], %[v_high] in PUBLISH,
 * %[out], %[out_high] in STAMP.
 *
 * Local labels: 71 restart, 72 start, 73 after the commit, 77 descriptor, 79 end. Numeric, since
 * named labels are duplicated by inlining and LTO. `?` in section flags: the data belongs to the
 * function's COMDAT group and is discarded with it.
 */
#define PERCPU_RSEQ_COMMITTED 0xfffffffdu /* -3: never a cpu_id */

#ifndef PERCPU_STRIDE_SHIFT
#define PERCPU_STRIDE_SHIFT 16 /* documented in percpu.h */
#endif
#define PERCPU_RSEQ_STR_(x) #x
#define PERCPU_RSEQ_STR(x) PERCPU_RSEQ_STR_(x)
#define PERCPU_RSEQ_SPREAD(...) __VA_ARGS__
#define PERCPU_RSEQ_SHIFT PERCPU_RSEQ_STR(PERCPU_STRIDE_SHIFT)

/* Is this object file for an executable, so that its own thread-locals are at constant offsets? */
#if !defined(__PIC__) || defined(__PIE__)
#define PERCPU_RSEQ_EXECUTABLE 1
#else
#define PERCPU_RSEQ_EXECUTABLE 0
#endif

/* The descriptor of the section around it. Tools look for these section names. */
#define PERCPU_RSEQ_DESCRIPTOR(word, slow)                                                      \
    ".pushsection __rseq_cs, \"aw?\"\n\t.balign 64\n"                                           \
    "77:\n\t.long 0, 0\n\t" word " 72f, 73f - 72f, percpu_rseq_abort_v1\n\t" word " 71f, " slow \
    ", 0, 0\n\t.popsection\n\t"                                                                 \
    ".pushsection __rseq_cs_ptr_array, \"aw?\"\n\t" word " 77b\n\t.popsection\n\t"

/*
 * The same where an address has 32 bits, and no assembler makes 64 of it. The stub, which may have
 * no other way to find data, is told where its count is.
 */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define PERCPU_RSEQ_QUAD(address) ".long 0, " address "\n\t"
#else
#define PERCPU_RSEQ_QUAD(address) ".long " address ", 0\n\t"
#endif
#define PERCPU_RSEQ_DESCRIPTOR_32(slow)                                                            \
    ".pushsection __rseq_cs, \"aw?\"\n\t.balign 64\n77:\n\t.long 0, 0\n\t" PERCPU_RSEQ_QUAD("72f") \
        PERCPU_RSEQ_QUAD("73f - 72f") PERCPU_RSEQ_QUAD(PERCPU_RSEQ_STUB_NAME)                      \
            PERCPU_RSEQ_QUAD("71f") PERCPU_RSEQ_QUAD(slow) PERCPU_RSEQ_QUAD(                       \
                "percpu_rseq_aborts_v1") ".long 0, 0\n\t.popsection\n\t"                           \
                                         ".pushsection __rseq_cs_ptr_array, "                      \
                                         "\"aw?\"\n\t" PERCPU_RSEQ_QUAD("77b") ".popsection\n\t"

/* PERCPU_BREAK_*: for the mutation check. Each breaks one rule, and the tests must notice. */
#ifdef PERCPU_BREAK_LATE_START /* start label one instruction late */
#define PERCPU_RSEQ_START_EARLY ""
#define PERCPU_RSEQ_START_LATE "72:\n\t"
#else
#define PERCPU_RSEQ_START_EARLY "72:\n\t"
#define PERCPU_RSEQ_START_LATE ""
#endif
#ifdef PERCPU_BREAK_COMMIT_NOT_LAST
#define PERCPU_RSEQ_SECTION_END "nop\n73:\n\t"
#else
#define PERCPU_RSEQ_SECTION_END "73:\n\t"
#endif
#ifdef PERCPU_BREAK_SIGNATURE /* something between the signature and the abort address */
#define PERCPU_RSEQ_BROKEN_PAD "\t.zero 4\n"
#else
#define PERCPU_RSEQ_BROKEN_PAD ""
#endif

#if !PERCPU_RSEQ_LINUX

#elif defined(__x86_64__) && defined(__LP64__)
/*
 * x86-64. Thread pointer: %fs base. %r11 holds the descriptor's address from the restart address to
 * the commit (the abort stub and its unwind information rely on it), %rcx the cpu id, then the
 * row's offset from copy 0.
 */
#define PERCPU_RSEQ_SYSCALL 334
#define PERCPU_RSEQ_SIGNATURE 0x53053053u
#define PERCPU_RSEQ_TP_BIAS 0

PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("movq %%fs:0, %0" : "=r"(tp));
    return tp;
}

#define PERCPU_RSEQ_TICKS \
    1 /* time stamp counter: constant rate, synchronised, on current processors */
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks_ordered(void)
{
    uint32_t low, high;
    __asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

/* Ticks and CPU in one instruction. Linux keeps the CPU in the low 12 bits of TSC_AUX. */
#define PERCPU_RSEQ_RDTSCP 1
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_rdtscp(uint32_t *cpu)
{
    uint32_t low, high, aux;
    __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(aux) : : "memory");
    *cpu = aux & 0xfff;
    return (uint64_t)high << 32 | low;
}
static inline int percpu_rseq_has_rdtscp(void)
{
    uint32_t a = 0x80000001u, b, c, d;
    __asm__("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
    return d >> 27 & 1;
}

/*
 * In an executable, %[off] is added to our own area's address, a link-time constant, so that 0 (the
 * value before any constructor ran) means our own area, which reads "unregistered". In code that
 * may end in a shared object, where own thread-locals are not at a constant offset, %[off] is the
 * offset of cpu_id from the thread pointer, and 0 means unknown: see PERCPU_RSEQ_UNSET.
 */
#if PERCPU_RSEQ_EXECUTABLE
#define PERCPU_RSEQ_X86_CPU "%%fs:percpu_rseq_thread_v1@tpoff+4(%[off])"
#define PERCPU_RSEQ_X86_CS "%%fs:percpu_rseq_thread_v1@tpoff+8(%[off])"
#define PERCPU_RSEQ_X86_ID "%%fs:percpu_rseq_thread_v1@tpoff(%[off], %[member])"
#define PERCPU_RSEQ_OFFSET_FROM_OWN 1
#else
#define PERCPU_RSEQ_X86_CPU "%%fs:(%[off])"
#define PERCPU_RSEQ_X86_CS "%%fs:4(%[off])"
#define PERCPU_RSEQ_X86_ID "%%fs:-4(%[off], %[member])"
#endif

PERCPU_RSEQ_INLINE uint32_t percpu_rseq_read_cpu_id(intptr_t off)
{
    uint32_t id;
    __asm__ volatile("movl " PERCPU_RSEQ_X86_CPU ", %0" : "=r"(id) : [off] "r"(off));
    return id;
}

/* Another 32-bit member, by its offset in the area. */
PERCPU_RSEQ_INLINE uint32_t percpu_rseq_read_member(intptr_t off, size_t member)
{
    uint32_t v;
    __asm__ volatile("movl " PERCPU_RSEQ_X86_ID ", %0"
                     : "=r"(v)
                     : [off] "r"(off), [member] "r"(member));
    return v;
}
#define PERCPU_RSEQ_HAVE_READ 1

#define PERCPU_RSEQ_AT(off) (off)
#define PERCPU_RSEQ_SELF_OPERAND(at) [off] "r"(at)

#define PERCPU_RSEQ_SECTIONS 1
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_X86_BOUND(slow) ""
#else
#define PERCPU_RSEQ_X86_BOUND(slow) "cmpl %k[bound], %%ecx\n\tjae " slow "\n\t"
#endif
#ifdef PERCPU_BREAK_STALE_CPU /* cpu_id is read once, before the restart address */
#define PERCPU_RSEQ_X86_STALE "movl " PERCPU_RSEQ_X86_CPU ", %%edx\n\t"
#define PERCPU_RSEQ_X86_FRESH "movl %%edx, %%ecx\n\t"
#else
#define PERCPU_RSEQ_X86_STALE ""
#define PERCPU_RSEQ_X86_FRESH "movl " PERCPU_RSEQ_X86_CPU ", %%ecx\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                         \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                       \
    PERCPU_RSEQ_X86_STALE                                                       \
    "71:\n\tleaq 77b(%%rip), %%r11\n\tmovq %%r11, " PERCPU_RSEQ_X86_CS          \
    "\n\t" PERCPU_RSEQ_START_EARLY PERCPU_RSEQ_X86_FRESH PERCPU_RSEQ_START_LATE \
    PERCPU_RSEQ_X86_BOUND(slow) "shlq $" PERCPU_RSEQ_SHIFT ", %%rcx\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "movl $-3, %%ecx\n79:\tmovl %%ecx, %k[status]\n\t"
/*
 * For a handle in memory: the row is %[base] plus the CPU's offset, and the bound is a word of the
 * handle's that is 0 until base is set. Loads are not reordered here: who sees the one sees the
 * other.
 */
#define PERCPU_RSEQ_OP_ADD_ELEMENT "addq %[base], %%rcx\n\taddq %[v], (%%rcx, %[i], 8)\n\t"
#define PERCPU_RSEQ_OP_ADD_FIRST "movq %[base], %%r10\n\taddq %[v], (%%r10, %%rcx)\n\t"

#define PERCPU_RSEQ_OP_ADD_32 "addl %k[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_ADD_64 "addq %[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_AND_32 "andl %k[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_AND_64 "andq %[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_OR_32 "orl %k[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_OR_64 "orq %[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_STORE_32 "movl %k[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "movq %[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "movl (%[p], %%rcx), %k[out]\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "movq (%[p], %%rcx), %[out]\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32                         \
    "movl (%[p], %%rcx), %k[out]\n\taddl %k[v], %k[out]\n\t" \
    "movl %k[out], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_64                      \
    "movq (%[p], %%rcx), %[out]\n\taddq %[v], %[out]\n\t" \
    "movq %[out], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_XCHG_32 "movl (%[p], %%rcx), %k[out]\n\tmovl %k[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "movq (%[p], %%rcx), %[out]\n\tmovq %[v], (%[p], %%rcx)\n\t"
/* A compare that fails leaves the section at 73 without a store: that too is a result. */
#define PERCPU_RSEQ_OP_CMPXCHG_32                                              \
    "movl (%[p], %%rcx), %k[out]\n\tcmpl %k[expected], %k[out]\n\tjne 73f\n\t" \
    "movl %k[v], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_64                                           \
    "movq (%[p], %%rcx), %[out]\n\tcmpq %[expected], %[out]\n\tjne 73f\n\t" \
    "movq %[v], (%[p], %%rcx)\n\t"
/* A list's row: the head, then a word that is not 0 while another CPU drains the row. */
#define PERCPU_RSEQ_OP_PUSH(slow)                                     \
    "cmpq $0, 8(%[p], %%rcx)\n\tjne " slow "\n\t"                     \
    "movq (%[p], %%rcx), %%rdx\n\tmovq %%rdx, (%[node], %[next])\n\t" \
    "movq %[node], (%[p], %%rcx)\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                       \
    "cmpq $0, 8(%[p], %%rcx)\n\tjne " slow "\n\t"                      \
    "movq (%[p], %%rcx), %[out]\n\ttestq %[out], %[out]\n\tje 73f\n\t" \
    "movq (%[out], %[next]), %%rdx\n\tmovq %%rdx, (%[p], %%rcx)\n\t"
/* lfence: the clock is not read before what the caller has seen. */
#define PERCPU_RSEQ_OP_PUBLISH                                                            \
    "addq %[p], %%rcx\n\tmovq (%%rcx), %[out]\n\tincq %[out]\n\t"                         \
    "movl %k[out], %%r10d\n\tandl $1, %%r10d\n\tshll $4, %%r10d\n\t"                      \
    "addq %%rcx, %%r10\n\tmovq %[v], 8(%%r10)\n\t"                                        \
    "lfence\n\trdtsc\n\tshlq $32, %%rdx\n\torq %%rdx, %%rax\n\tmovq %%rax, 16(%%r10)\n\t" \
    "movq %[out], (%%rcx)\n\t"
#define PERCPU_RSEQ_OP_STAMP                                        \
    "shrq $" PERCPU_RSEQ_SHIFT ", %%rcx\n\tmovl %%ecx, %k[cpu]\n\t" \
    "rdtsc\n\tshlq $32, %%rdx\n\tmovl %%eax, %k[out]\n\torq %%rdx, %[out]\n\t"
#define PERCPU_RSEQ_VALUE "er" /* e: what fits a sign-extended immediate */
#define PERCPU_RSEQ_ADDEND "er"
/* rcx, r11: above. cc: compare, shift. r10: a handle's base. rdx: the link in transit (lists). */
#ifdef PERCPU_BREAK_STALE_CPU
#define PERCPU_RSEQ_CLOBBERS "rcx", "rdx", "r11", "cc"
#else
#define PERCPU_RSEQ_CLOBBERS "rcx", "r11", "cc"
#endif
#define PERCPU_RSEQ_HANDLE_CLOBBERS "rcx", "r10", "r11", "cc"
#define PERCPU_RSEQ_LIST_CLOBBERS "rcx", "rdx", "r11", "cc", "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS "rax", "rdx", "rcx", "r10", "r11", "cc", "memory"

/*
 * The stub's unwind information says: the caller is the interrupted function at the section's
 * restart address (the word at %r11 + 32), with every register as it is. So a profiler whose
 * signal aborted a section walks on through the function to main.
 */
#define PERCPU_RSEQ_STUB_SIGNATURE ".byte 0x0f, 0xb9, 0x3d\n\t.long 0x53053053\n" /* ud1 */
#define PERCPU_RSEQ_STUB                                                           \
    "\t.cfi_def_cfa %rsp, 0\n\t.cfi_escape 0x16, 0x10, 0x03, 0x7b, 0x20, 0x06\n"   \
    "\tincl percpu_rseq_aborts_v1(%rip)\n\tcmpb $0, percpu_rseq_aborts_v1(%rip)\n" \
    "\tje 1f\n\tnotrack jmp *32(%r11)\n"                                           \
    "1:\tmovl $-1, %ecx\n\tnotrack jmp *40(%r11)\n"

#elif defined(__aarch64__) && defined(__LP64__)
/*
 * aarch64. Thread pointer: tpidr_el0. x9 holds the descriptor's address to the commit, x10 the cpu
 * id, then the row; x11, x12 are scratch. x16 and x17 stay out: linker veneers clobber them.
 */
#define PERCPU_RSEQ_SYSCALL 293
#ifdef __AARCH64EB__
#define PERCPU_RSEQ_SIGNATURE 0x00bc28d4u /* the instruction below, read as big-endian data */
#else
#define PERCPU_RSEQ_SIGNATURE 0xd428bc00u
#endif
#define PERCPU_RSEQ_TP_BIAS 0

PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(tp));
    return tp;
}

#define PERCPU_RSEQ_TICKS 1 /* the generic timer: cntfrq_el0 ticks per second on every CPU */
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks(void)
{
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
}
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks_ordered(void)
{
    uint64_t t;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(t) : : "memory");
    return t;
}

#ifndef __AARCH64EB__ /* nobody has run them there */
#define PERCPU_RSEQ_SECTIONS 1
#endif
/* The bound stays in the upper half of the word that it comes in, from_tp being the lower. */
#define PERCPU_RSEQ_BOUND_IN_UPPER_HALF 1
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_A64_BOUND(slow) ""
#else
#define PERCPU_RSEQ_A64_BOUND(slow) "cmp x10, %[bound], lsr #32\n\tb.hs " slow "\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                               \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                             \
    "71:\n\tadrp x9, 77b\n\tadd x9, x9, :lo12:77b\n\tstr x9, [%[self], "              \
    "#4]\n\t" PERCPU_RSEQ_START_EARLY "ldr w10, [%[self]]\n\t" PERCPU_RSEQ_START_LATE \
    PERCPU_RSEQ_A64_BOUND(slow) "add x10, %[p], x10, lsl #" PERCPU_RSEQ_SHIFT "\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "mov w10, #-3\n79:\tmov %w[status], w10\n\t"

#define PERCPU_RSEQ_A64_RMW_32(insn) \
    "ldr w11, [x10]\n\t" insn " w11, w11, %w[v]\n\tstr w11, [x10]\n\t"
#define PERCPU_RSEQ_A64_RMW_64(insn) \
    "ldr x11, [x10]\n\t" insn " x11, x11, %[v]\n\tstr x11, [x10]\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_A64_RMW_32("add")
#define PERCPU_RSEQ_OP_ADD_64 PERCPU_RSEQ_A64_RMW_64("add")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_A64_RMW_32("and")
#define PERCPU_RSEQ_OP_AND_64 PERCPU_RSEQ_A64_RMW_64("and")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_A64_RMW_32("orr")
#define PERCPU_RSEQ_OP_OR_64 PERCPU_RSEQ_A64_RMW_64("orr")
#define PERCPU_RSEQ_OP_STORE_32 "str %w[v], [x10]\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "str %[v], [x10]\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "ldr %w[out], [x10]\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "ldr %[out], [x10]\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32                        \
    "ldr %w[out], [x10]\n\tadd %w[out], %w[out], %w[v]\n\t" \
    "str %w[out], [x10]\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_64                    \
    "ldr %[out], [x10]\n\tadd %[out], %[out], %[v]\n\t" \
    "str %[out], [x10]\n\t"
#define PERCPU_RSEQ_OP_XCHG_32 "ldr %w[out], [x10]\n\tstr %w[v], [x10]\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "ldr %[out], [x10]\n\tstr %[v], [x10]\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_32                                     \
    "ldr %w[out], [x10]\n\tcmp %w[out], %w[expected]\n\tb.ne 73f\n\t" \
    "str %w[v], [x10]\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_64                                  \
    "ldr %[out], [x10]\n\tcmp %[out], %[expected]\n\tb.ne 73f\n\t" \
    "str %[v], [x10]\n\t"
/* ldar: once the drain is seen to be over, so is what it did to the head. */
#define PERCPU_RSEQ_OP_PUSH(slow)                                   \
    "add x11, x10, #8\n\tldar x11, [x11]\n\tcbnz x11, " slow "\n\t" \
    "ldr x11, [x10]\n\tstr x11, [%[node], %[next]]\n\tstr %[node], [x10]\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                    \
    "add x11, x10, #8\n\tldar x11, [x11]\n\tcbnz x11, " slow "\n\t" \
    "ldr %[out], [x10]\n\tcbz %[out], 73f\n\tldr x11, [%[out], %[next]]\n\tstr x11, [x10]\n\t"
/*
 * dmb: the idle buffer was the live one until the last commit; nobody may see it change before
 * that. stlr: who reads the new sequence number sees the buffer it announces.
 */
#define PERCPU_RSEQ_OP_PUBLISH                                               \
    "ldr %[out], [x10]\n\tadd %[out], %[out], #1\n\tand x11, %[out], #1\n\t" \
    "add x11, x10, x11, lsl #4\n\tdmb ishst\n\tstr %[v], [x11, #8]\n\t"      \
    "isb\n\tmrs x12, cntvct_el0\n\tstr x12, [x11, #16]\n\tstlr %[out], [x10]\n\t"
#define PERCPU_RSEQ_OP_STAMP \
    "lsr x10, x10, #" PERCPU_RSEQ_SHIFT "\n\tmov %w[cpu], w10\n\tmrs %[out], cntvct_el0\n\t"
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "rI" /* I: what fits an add immediate */
#define PERCPU_RSEQ_CLOBBERS "x9", "x10", "x11", "cc"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS "x9", "x10", "x11", "x12", "cc", "memory"

/*
 * The return column is a pseudo register (32, the DWARF number of pc), so that the frame keeps x30.
 * ret, not br: a branch-protected (BTI) target page accepts it at any address.
 */
#define PERCPU_RSEQ_STUB_SIGNATURE ".inst 0xd428bc00\n"
#define PERCPU_RSEQ_STUB                                                  \
    "\t.cfi_return_column 32\n\t.cfi_def_cfa sp, 0\n"                     \
    "\t.cfi_escape 0x16, 0x20, 0x03, 0x79, 0x20, 0x06\n"                  \
    "\tadrp x10, percpu_rseq_aborts_v1\n"                                 \
    "\tldr w11, [x10, :lo12:percpu_rseq_aborts_v1]\n\tadd w11, w11, #1\n" \
    "\tstr w11, [x10, :lo12:percpu_rseq_aborts_v1]\n\tmov w10, #-1\n"     \
    "\ttst w11, #0xff\n\tb.eq 1f\n\tldr x11, [x9, #32]\n\tret x11\n"      \
    "1:\tldr x11, [x9, #40]\n\tret x11\n"

#elif defined(__riscv) && __riscv_xlen == 64
/*
 * riscv64. Thread pointer: tp. t0 holds the descriptor's address to the commit, t1 the cpu id, then
 * the row; t2, t3 are scratch. Branches to C labels go through `j`: a conditional branch reaches
 * 4 KiB only.
 */
#define PERCPU_RSEQ_SYSCALL 293
#define PERCPU_RSEQ_SIGNATURE 0xf1401073u
#define PERCPU_RSEQ_TP_BIAS 0

PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("mv %0, tp" : "=r"(tp));
    return tp;
}

#define PERCPU_RSEQ_TICKS 1 /* the platform's timer, of a fixed rate */
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks(void)
{
    uint64_t t;
    __asm__ volatile("rdtime %0" : "=r"(t));
    return t;
}
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks_ordered(void)
{
    uint64_t t;
    __asm__ volatile("fence r, r\n\trdtime %0" : "=r"(t) : : "memory");
    return t;
}

#define PERCPU_RSEQ_SECTIONS 1
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_RV_BOUND(slow) ""
#else
#define PERCPU_RSEQ_RV_BOUND(slow) "bltu t1, %[bound], 74f\n\tj " slow "\n74:\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                   \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                 \
    "71:\n\tlla t0, 77b\n\tsd t0, 4(%[self])\n\t" PERCPU_RSEQ_START_EARLY \
    "lwu t1, 0(%[self])\n\t" PERCPU_RSEQ_START_LATE                       \
    PERCPU_RSEQ_RV_BOUND(slow) "slli t1, t1, " PERCPU_RSEQ_SHIFT "\n\tadd t1, t1, %[p]\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "li t1, -3\n79:\tmv %[status], t1\n\t"

#define PERCPU_RSEQ_RV_RMW(insn, w) \
    "l" w " t2, 0(t1)\n\t" insn " t2, t2, %[v]\n\ts" w " t2, 0(t1)\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_RV_RMW("addw", "w")
#define PERCPU_RSEQ_OP_ADD_64 PERCPU_RSEQ_RV_RMW("add", "d")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_RV_RMW("and", "w")
#define PERCPU_RSEQ_OP_AND_64 PERCPU_RSEQ_RV_RMW("and", "d")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_RV_RMW("or", "w")
#define PERCPU_RSEQ_OP_OR_64 PERCPU_RSEQ_RV_RMW("or", "d")
#define PERCPU_RSEQ_OP_STORE_32 "sw %[v], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "sd %[v], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "lw %[out], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "ld %[out], 0(t1)\n\t"
#define PERCPU_RSEQ_RV_ADD_RETURN(insn, w)                      \
    "l" w " %[out], 0(t1)\n\t" insn " %[out], %[out], %[v]\n\t" \
    "s" w " %[out], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 PERCPU_RSEQ_RV_ADD_RETURN("addw", "w")
#define PERCPU_RSEQ_OP_ADD_RETURN_64 PERCPU_RSEQ_RV_ADD_RETURN("add", "d")
#define PERCPU_RSEQ_OP_XCHG_32 "lw %[out], 0(t1)\n\tsw %[v], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "ld %[out], 0(t1)\n\tsd %[v], 0(t1)\n\t"
/* sext.w: the caller's 32-bit value may be extended either way in its register. */
#define PERCPU_RSEQ_OP_CMPXCHG_32                                           \
    "lw %[out], 0(t1)\n\tsext.w t2, %[expected]\n\tbne %[out], t2, 73f\n\t" \
    "sw %[v], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_64                          \
    "ld %[out], 0(t1)\n\tbne %[out], %[expected], 73f\n\t" \
    "sd %[v], 0(t1)\n\t"
/* fence r, r: once the drain is seen to be over, so is what it did to the head. */
#define PERCPU_RSEQ_OP_PUSH(slow)                                       \
    "ld t2, 8(t1)\n\tfence r, r\n\tbeqz t2, 75f\n\tj " slow "\n75:\n\t" \
    "ld t2, 0(t1)\n\tadd t3, %[node], %[next]\n\tsd t2, 0(t3)\n\tsd %[node], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                          \
    "ld t2, 8(t1)\n\tfence r, r\n\tbeqz t2, 75f\n\tj " slow "\n75:\n\t"   \
    "ld %[out], 0(t1)\n\tbeqz %[out], 73f\n\tadd t3, %[out], %[next]\n\t" \
    "ld t2, 0(t3)\n\tsd t2, 0(t1)\n\t"
/*
 * The first fence: the idle buffer was the live one until the last commit; nobody may see it
 * change before that. The second: who reads the new sequence number sees the buffer it announces.
 */
#define PERCPU_RSEQ_OP_PUBLISH                                             \
    "ld %[out], 0(t1)\n\taddi %[out], %[out], 1\n\tandi t2, %[out], 1\n\t" \
    "slli t2, t2, 4\n\tadd t2, t2, t1\n\tfence w, w\n\tsd %[v], 8(t2)\n\t" \
    "fence r, r\n\trdtime t3\n\tsd t3, 16(t2)\n\tfence w, w\n\tsd %[out], 0(t1)\n\t"
#define PERCPU_RSEQ_OP_STAMP \
    "srli t1, t1, " PERCPU_RSEQ_SHIFT "\n\tmv %[cpu], t1\n\trdtime %[out]\n\t"
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "r"
#define PERCPU_RSEQ_CLOBBERS "t0", "t1", "t2", "t3"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS "t0", "t1", "t2", "t3", "memory"

/* The return column is a pseudo register (64), so that the frame keeps ra. */
#define PERCPU_RSEQ_STUB_SIGNATURE \
    ".option push\n\t.option norvc\n\t.word 0xf1401073\n\t.option pop\n"
#define PERCPU_RSEQ_STUB                                                   \
    "\t.cfi_return_column 64\n\t.cfi_def_cfa sp, 0\n"                      \
    "\t.cfi_escape 0x16, 0xc0, 0x00, 0x03, 0x75, 0x20, 0x06\n"             \
    "\tlla t1, percpu_rseq_aborts_v1\n\tlw t2, 0(t1)\n\taddiw t2, t2, 1\n" \
    "\tsw t2, 0(t1)\n\tandi t2, t2, 255\n\tli t1, -1\n\tbeqz t2, 1f\n"     \
    "\tld t2, 32(t0)\n\tjr t2\n1:\tld t2, 40(t0)\n\tjr t2\n"

#elif defined(__i386__)
/*
 * i386. Thread pointer: the word at %gs:0. %ecx holds the descriptor's address to the commit, %edx
 * the cpu id, then the row; %eax is scratch. Few registers are left, and at -O0 no more than three:
 * all operands that need not be in one may be in memory.
 */
#define PERCPU_RSEQ_SYSCALL 386
#define PERCPU_RSEQ_SIGNATURE 0x53053053u
#define PERCPU_RSEQ_TP_BIAS 0
PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("movl %%gs:0, %0" : "=r"(tp));
    return tp;
}

/* Without SSE2 there is no lfence, and no better barrier that user code can afford. */
#ifdef __SSE2__
#define PERCPU_RSEQ_I386_FENCE "lfence\n\t"
#else
#define PERCPU_RSEQ_I386_FENCE "lock orl $0, (%%esp)\n\t"
#endif
#define PERCPU_RSEQ_TICKS 1 /* time stamp counter, as on x86-64 */
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks(void)
{
    uint64_t t;
    __asm__ volatile("rdtsc" : "=A"(t));
    return t;
}
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks_ordered(void)
{
    uint64_t t;
    __asm__ volatile(PERCPU_RSEQ_I386_FENCE "rdtsc" : "=A"(t) : : "memory", "cc");
    return t;
}

#define PERCPU_RSEQ_SECTIONS 1
#define PERCPU_RSEQ_INPUT(x) "g"(x)
/*
 * No address is relative to the instruction: position-independent code counts from another datum,
 * whose own address the compiler finds. (Not from the global offset table itself, whose name clang
 * takes for its distance.)
 */
#ifdef __PIC__
#define PERCPU_RSEQ_I386_ADDRESS                               \
    "movl %[near], %%ecx\n\tleal 77b@GOTOFF(%%ecx), %%ecx\n\t" \
    "subl $percpu_rseq_aborts_v1@GOTOFF, %%ecx\n\t"
#define PERCPU_RSEQ_SELF_OPERAND(at) [self] "g"(at), [near] "rm"(&percpu_rseq_aborts_v1)
#else
#define PERCPU_RSEQ_I386_ADDRESS "movl $77b, %%ecx\n\t"
#define PERCPU_RSEQ_SELF_OPERAND(at) [self] "g"(at)
#endif
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_I386_BOUND(slow) ""
#else
#define PERCPU_RSEQ_I386_BOUND(slow) "cmpl %[bound], %%edx\n\tjae " slow "\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                       \
    PERCPU_RSEQ_DESCRIPTOR_32(slow)                           \
    "71:\n\tmovl %[self], %%eax\n\t" PERCPU_RSEQ_I386_ADDRESS \
    "movl %%ecx, 4(%%eax)\n\t" PERCPU_RSEQ_START_EARLY        \
    "movl (%%eax), %%edx\n\t" PERCPU_RSEQ_START_LATE          \
    PERCPU_RSEQ_I386_BOUND(slow) "shll $" PERCPU_RSEQ_SHIFT ", %%edx\n\taddl %[p], %%edx\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "movl $-3, %%edx\n79:\tmovl %%edx, %[status]\n\t"

#define PERCPU_RSEQ_OP_ADD_32 "addl %[v], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_AND_32 "andl %[v], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_OR_32 "orl %[v], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_STORE_32 "movl %[v], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "movl (%%edx), %[out]\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 \
    "movl (%%edx), %[out]\n\taddl %[v], %[out]\n\tmovl %[out], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_XCHG_32 "movl (%%edx), %[out]\n\tmovl %[v], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_32 \
    "movl (%%edx), %[out]\n\tcmpl %[expected], %[out]\n\tjne 73f\n\tmovl %[v], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_PUSH(slow)                                  \
    "cmpl $0, 4(%%edx)\n\tjne " slow "\n\tmovl (%%edx), %%eax\n\t" \
    "movl %%eax, (%[node], %[next])\n\tmovl %[node], (%%edx)\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                          \
    "cmpl $0, 4(%%edx)\n\tjne " slow "\n\tmovl (%%edx), %[out]\n\t"       \
    "testl %[out], %[out]\n\tje 73f\n\tmovl (%[out], %[next]), %%eax\n\t" \
    "movl %%eax, (%%edx)\n\t"
/* %edi: the row, since the clock takes %edx. Buffers begin 4 bytes into it. */
#define PERCPU_RSEQ_OP_PUBLISH                                                        \
    "movl %%edx, %%edi\n\tmovl (%%edi), %[out]\n\tincl %[out]\n\tandl $1, %[out]\n\t" \
    "shll $4, %[out]\n\taddl %%edi, %[out]\n\tmovl %[v], %%eax\n\t"                   \
    "movl %%eax, 4(%[out])\n\tmovl %[v_high], %%eax\n\tmovl %%eax, "                  \
    "8(%[out])\n\t" PERCPU_RSEQ_I386_FENCE                                            \
    "rdtsc\n\tmovl %%eax, 12(%[out])\n\tmovl %%edx, 16(%[out])\n\t"                   \
    "movl (%%edi), %[out]\n\tincl %[out]\n\tmovl %[out], (%%edi)\n\t"
#define PERCPU_RSEQ_OP_STAMP \
    "movl (%%eax), %[cpu]\n\trdtsc\n\tmovl %%eax, %[out]\n\tmovl %%edx, %[out_high]\n\t"
#define PERCPU_RSEQ_VALUE "ri"
#define PERCPU_RSEQ_ADDEND "ri"
#define PERCPU_RSEQ_HALF "=m"
#define PERCPU_RSEQ_CLOBBERS "eax", "ecx", "edx", "cc"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS PERCPU_RSEQ_CLOBBERS, "edi", "memory"

/* The return column is 8, a pseudo register of the architecture's own. */
#define PERCPU_RSEQ_STUB_SIGNATURE ".byte 0x0f, 0xb9, 0x3d\n\t.long 0x53053053\n" /* ud1 */
#define PERCPU_RSEQ_STUB                                                         \
    "\t.cfi_def_cfa %esp, 0\n\t.cfi_escape 0x16, 0x08, 0x03, 0x71, 0x20, 0x06\n" \
    "\tmovl 48(%ecx), %eax\n\tincl (%eax)\n\tmovl $-1, %edx\n"                   \
    "\tcmpb $0, (%eax)\n\tje 1f\n\tnotrack jmp *32(%ecx)\n"                      \
    "1:\tnotrack jmp *40(%ecx)\n"

#elif defined(__arm__) && defined(__ARM_ARCH) && __ARM_ARCH >= 7 && \
    (!defined(__ARM_ARCH_PROFILE) || __ARM_ARCH_PROFILE != 'M')
/*
 * arm, v7-A and later, ARM and Thumb-2. Thread pointer: TPIDRURO, a coprocessor read. r12 holds the
 * descriptor's address to the commit, lr the cpu id, then the row; r3 is scratch. High registers,
 * since gcc at -O0 wants low ones for operands in Thumb code. Veneers may clobber r12, but only
 * on a way out.
 */
#define PERCPU_RSEQ_SYSCALL 398
#ifdef __ARMEB__
#define PERCPU_RSEQ_SIGNATURE 0xf3def5e7u
#else
#define PERCPU_RSEQ_SIGNATURE 0xe7f5def3u
#endif
#define PERCPU_RSEQ_TP_BIAS 0
PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("mrc p15, 0, %0, c13, c0, 3" : "=r"(tp));
    return tp;
}

/* The generic timer. Not every v7 has it, or lets user code read it: see percpu_rseq_publish(). */
#if __ARM_ARCH >= 8
#define PERCPU_RSEQ_TICKS 1
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks(void)
{
    uint32_t low, high;
    __asm__ volatile("mrrc p15, 1, %0, %1, c14" : "=r"(low), "=r"(high));
    return (uint64_t)high << 32 | low;
}
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks_ordered(void)
{
    uint32_t low, high;
    __asm__ volatile("isb\n\tmrrc p15, 1, %0, %1, c14" : "=r"(low), "=r"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}
#endif

#ifndef __ARMEB__ /* not proven there for want of a kernel; rseq_cs's low word would be at #8 */
#define PERCPU_RSEQ_SECTIONS 1
#endif
/*
 * The kernel changes the instruction pointer and not the instruction set: a stub for each, under a
 * name of its own. Thumb's is not of type %function, which would set bit 0 of its address.
 */
#ifdef __thumb__
#define PERCPU_RSEQ_ARM_PC "4"
#define PERCPU_RSEQ_STUB_NAME "percpu_rseq_abort_thumb_v1"
#define PERCPU_RSEQ_STUB_TYPE "%notype"
#define PERCPU_RSEQ_STUB_SIGNATURE ".syntax unified\n\t.thumb\n\t.inst.n 0xdef3, 0xe7f5\n"
#else
#define PERCPU_RSEQ_ARM_PC "8"
#define PERCPU_RSEQ_STUB_SIGNATURE ".syntax unified\n\t.arm\n\t.inst 0xe7f5def3\n"
#endif
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_ARM_BOUND(slow) ""
#else
#define PERCPU_RSEQ_ARM_BOUND(slow) "cmp lr, %[bound]\n\tbhs " slow "\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                              \
    PERCPU_RSEQ_DESCRIPTOR_32(slow)                                                  \
    "71:\n\tmovw r12, #:lower16:77b - (70f + " PERCPU_RSEQ_ARM_PC ")\n\t"            \
    "movt r12, #:upper16:77b - (70f + " PERCPU_RSEQ_ARM_PC ")\n70:\tadd r12, pc\n\t" \
    "str r12, [%[self], #4]\n\t" PERCPU_RSEQ_START_EARLY                             \
    "ldr lr, [%[self]]\n\t" PERCPU_RSEQ_START_LATE                                   \
    PERCPU_RSEQ_ARM_BOUND(slow) "add lr, %[p], lr, lsl #" PERCPU_RSEQ_SHIFT "\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "mvn lr, #2\n79:\tmov %[status], lr\n\t"

#define PERCPU_RSEQ_ARM_RMW(insn) "ldr r3, [lr]\n\t" insn " r3, r3, %[v]\n\tstr r3, [lr]\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_ARM_RMW("add")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_ARM_RMW("and")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_ARM_RMW("orr")
#define PERCPU_RSEQ_OP_STORE_32 "str %[v], [lr]\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "ldr %[out], [lr]\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 \
    "ldr %[out], [lr]\n\tadd %[out], %[out], %[v]\n\tstr %[out], [lr]\n\t"
#define PERCPU_RSEQ_OP_XCHG_32 "ldr %[out], [lr]\n\tstr %[v], [lr]\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_32 \
    "ldr %[out], [lr]\n\tcmp %[out], %[expected]\n\tbne 73f\n\tstr %[v], [lr]\n\t"
/* dmb: once the drain is seen to be over, so is what it did to the head. */
#define PERCPU_RSEQ_OP_PUSH(slow)                                   \
    "ldr r3, [lr, #4]\n\tdmb ish\n\tcmp r3, #0\n\tbne " slow "\n\t" \
    "ldr r3, [lr]\n\tstr r3, [%[node], %[next]]\n\tstr %[node], [lr]\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                                     \
    "ldr r3, [lr, #4]\n\tdmb ish\n\tcmp r3, #0\n\tbne " slow "\n\t"                  \
    "ldr %[out], [lr]\n\tcmp %[out], #0\n\tbeq 73f\n\tldr r3, [%[out], %[next]]\n\t" \
    "str r3, [lr]\n\t"
#ifdef PERCPU_RSEQ_TICKS
/*
 * The first dmb: the idle buffer was the live one until the last commit; nobody may see it change
 * before that. The second: who reads the new sequence number sees the buffer it announces.
 */
#define PERCPU_RSEQ_OP_PUBLISH                                                              \
    "ldr %[out], [lr]\n\tadd %[out], %[out], #1\n\tand r3, %[out], #1\n\t"                  \
    "add r3, lr, r3, lsl #4\n\tdmb ishst\n\tstr %[v], [r3, #8]\n\t"                         \
    "str %[v_high], [r3, #12]\n\tisb\n\tmrrc p15, 1, r8, r10, c14\n\tstr r8, [r3, #16]\n\t" \
    "str r10, [r3, #20]\n\tdmb ish\n\tstr %[out], [lr]\n\t"
#define PERCPU_RSEQ_OP_STAMP "ldr %[cpu], [%[self]]\n\tmrrc p15, 1, %[out], %[out_high], c14\n\t"
#endif
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "rI" /* I: what fits a data-processing immediate */
#define PERCPU_RSEQ_CLOBBERS "r3", "r12", "lr", "cc"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS PERCPU_RSEQ_CLOBBERS, "r8", "r10", "memory"

/*
 * arm unwinds by tables of its own, in which nothing sets pc and leaves sp alone, short of a
 * routine from a library that C programs do not need. So a backtrace ends here. mov pc keeps to
 * the instruction set.
 */
#define PERCPU_RSEQ_STUB_UNWIND "\t.fnstart\n\t.cantunwind\n"
#define PERCPU_RSEQ_STUB_UNWIND_END "\t.fnend\n"
#define PERCPU_RSEQ_STUB                                                           \
    "\tldr r3, [r12, #48]\n\tldr lr, [r3]\n\tadd lr, lr, #1\n\tstr lr, [r3]\n"     \
    "\ttst lr, #255\n\tmvn lr, #0\n\tbeq 1f\n\tldr r3, [r12, #32]\n\tmov pc, r3\n" \
    "1:\tldr r3, [r12, #40]\n\tmov pc, r3\n"
/* Older arm reads the thread pointer by a call into the kernel's helper page: fallback. */

#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__) && defined(_CALL_ELF) && _CALL_ELF == 2
/*
 * ppc64le, ELFv2. Thread pointer: r13, 0x7000 bytes above the start of thread-local memory. r10
 * holds the descriptor's address to the commit, r9 the cpu id, then the row; r7, r8 are scratch,
 * cr7 for compares. r0, r11 and r12 stay out: the linker's stubs clobber them, and r0 as a base
 * means 0. Branches to C labels go through `b`: a conditional branch reaches 32 KiB only.
 */
#define PERCPU_RSEQ_SYSCALL 387
#define PERCPU_RSEQ_SIGNATURE 0x0fe5000bu
#define PERCPU_RSEQ_TP_BIAS (-0x7000)
PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("mr %0, 13" : "=r"(tp));
    return tp;
}

#define PERCPU_RSEQ_TICKS 1 /* the time base: of a fixed rate, the same on every CPU */
static inline uint64_t percpu_rseq_ticks(void)
{
    uint64_t t;
    __asm__ volatile("mfspr %0, 268" : "=r"(t));
    return t;
}
static inline uint64_t percpu_rseq_ticks_ordered(void)
{
    uint64_t t;
    __asm__ volatile("lwsync\n\tisync\n\tmfspr %0, 268" : "=r"(t) : : "memory");
    return t;
}

#define PERCPU_RSEQ_SECTIONS 1
/*
 * There is no address relative to the instruction before Power10: the descriptor is reached through
 * the TOC pointer, r2. A function of the compiler's sets r2 up only if it knows of a use, so each
 * section has an operand, used by nothing, whose address the compiler takes from the TOC.
 */
#ifdef __PCREL__
#define PERCPU_RSEQ_PPC_ADDRESS(reg, symbol) "pla " reg ", " symbol "@pcrel\n\t"
#define PERCPU_RSEQ_SELF_OPERAND(at) [self] "b"(at)
#else
#define PERCPU_RSEQ_PPC_ADDRESS(reg, symbol) \
    "addis " reg ", 2, " symbol "@toc@ha\n\taddi " reg ", " reg ", " symbol "@toc@l\n\t"
#define PERCPU_RSEQ_SELF_OPERAND(at) [self] "b"(at), [toc] "r"(&percpu_rseq_aborts_v1)
#endif
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_PPC_BOUND(slow) ""
#else
#define PERCPU_RSEQ_PPC_BOUND(slow) "cmplw 7, 9, %[bound]\n\tblt 7, 74f\n\tb " slow "\n74:\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                          \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                        \
    "71:\n\t" PERCPU_RSEQ_PPC_ADDRESS(                                           \
        "10", "77b") "std 10, 4(%[self])\n\t" PERCPU_RSEQ_START_EARLY            \
                     "lwz 9, 0(%[self])\n\t" PERCPU_RSEQ_START_LATE              \
                     PERCPU_RSEQ_PPC_BOUND(slow) "sldi 9, 9, " PERCPU_RSEQ_SHIFT \
                                                 "\n\tadd 9, 9, %[p]\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "li 9, -3\n79:\tmr %[status], 9\n\t"

#define PERCPU_RSEQ_PPC_RMW(insn, load, store) \
    load " 8, 0(9)\n\t" insn " 8, 8, %[v]\n\t" store " 8, 0(9)\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_PPC_RMW("add", "lwz", "stw")
#define PERCPU_RSEQ_OP_ADD_64 PERCPU_RSEQ_PPC_RMW("add", "ld", "std")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_PPC_RMW("and", "lwz", "stw")
#define PERCPU_RSEQ_OP_AND_64 PERCPU_RSEQ_PPC_RMW("and", "ld", "std")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_PPC_RMW("or", "lwz", "stw")
#define PERCPU_RSEQ_OP_OR_64 PERCPU_RSEQ_PPC_RMW("or", "ld", "std")
#define PERCPU_RSEQ_OP_STORE_32 "stw %[v], 0(9)\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "std %[v], 0(9)\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "lwz %[out], 0(9)\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "ld %[out], 0(9)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 \
    "lwz %[out], 0(9)\n\tadd %[out], %[out], %[v]\n\tstw %[out], 0(9)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_64 \
    "ld %[out], 0(9)\n\tadd %[out], %[out], %[v]\n\tstd %[out], 0(9)\n\t"
#define PERCPU_RSEQ_OP_XCHG_32 "lwz %[out], 0(9)\n\tstw %[v], 0(9)\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "ld %[out], 0(9)\n\tstd %[v], 0(9)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_32                                        \
    "lwz %[out], 0(9)\n\tcmplw 7, %[out], %[expected]\n\tbne 7, 73f\n\t" \
    "stw %[v], 0(9)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_64                                       \
    "ld %[out], 0(9)\n\tcmpld 7, %[out], %[expected]\n\tbne 7, 73f\n\t" \
    "std %[v], 0(9)\n\t"
/* lwsync: once the drain is seen to be over, so is what it did to the head. */
#define PERCPU_RSEQ_OP_PUSH(slow)                                                \
    "ld 8, 8(9)\n\tlwsync\n\tcmpdi 7, 8, 0\n\tbeq 7, 75f\n\tb " slow "\n75:\n\t" \
    "ld 8, 0(9)\n\tadd 7, %[node], %[next]\n\tstd 8, 0(7)\n\tstd %[node], 0(9)\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                                        \
    "ld 8, 8(9)\n\tlwsync\n\tcmpdi 7, 8, 0\n\tbeq 7, 75f\n\tb " slow "\n75:\n\t"        \
    "ld %[out], 0(9)\n\tcmpdi 7, %[out], 0\n\tbeq 7, 73f\n\tadd 7, %[out], %[next]\n\t" \
    "ld 8, 0(7)\n\tstd 8, 0(9)\n\t"
/*
 * The first lwsync: the idle buffer was the live one until the last commit; nobody may see it
 * change before that. The second: who reads the new sequence number sees the buffer it announces.
 * isync: the time is not read before what the caller has seen.
 */
#define PERCPU_RSEQ_OP_PUBLISH                                                    \
    "ld %[out], 0(9)\n\tli 8, 1\n\tadd %[out], %[out], 8\n\tand 8, 8, %[out]\n\t" \
    "sldi 8, 8, 4\n\tadd 8, 8, 9\n\tlwsync\n\tstd %[v], 8(8)\n\t"                 \
    "isync\n\tmfspr 7, 268\n\tstd 7, 16(8)\n\tlwsync\n\tstd %[out], 0(9)\n\t"
#define PERCPU_RSEQ_OP_STAMP \
    "srdi 9, 9, " PERCPU_RSEQ_SHIFT "\n\tmr %[cpu], 9\n\tmfspr %[out], 268\n\t"
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "r"
/* ctr: the stub's way back. */
#define PERCPU_RSEQ_CLOBBERS "r7", "r8", "r9", "r10", "cr7", "ctr"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"

/*
 * The return column is a pseudo register (67, as in the unwinder's own frames for signals), so that
 * the frame keeps lr. The stub shares its module's TOC with the function that was interrupted.
 */
#define PERCPU_RSEQ_STUB_SIGNATURE ".long 0x0fe5000b\n"
#define PERCPU_RSEQ_STUB                                                                        \
    "\t.cfi_return_column 67\n\t.cfi_def_cfa 1, 0\n"                                            \
    "\t.cfi_escape 0x16, 0x43, 0x03, 0x7a, 0x20, 0x06\n\t" PERCPU_RSEQ_PPC_ADDRESS(             \
        "9",                                                                                    \
        "percpu_rseq_aborts_v1") "lwz 8, 0(9)\n\taddi 8, 8, 1\n\tstw 8, 0(9)\n\tclrldi 8, 8, "  \
                                 "56\n\tcmpdi 7, 8, 0\n"                                        \
                                 "\tli 9, -1\n\tbeq 7, 1f\n\tld 8, 32(10)\n\tmtctr 8\n\tbctr\n" \
                                 "1:\tld 8, 40(10)\n\tmtctr 8\n\tbctr\n"

#elif defined(__s390x__)
/*
 * s390x, big-endian. Thread pointer: access registers 0 (high half) and 1. r5 holds the
 * descriptor's address to the commit, r4 the cpu id, then the row; r2, r3 are scratch. r0 stays
 * out, as a base it means 0; so does r1, which the PLT clobbers. Loads are not reordered with
 * loads, nor stores with stores: what another CPU must see in order needs no barrier.
 */
#define PERCPU_RSEQ_SYSCALL 383
#define PERCPU_RSEQ_SIGNATURE 0xb2ff0fffu
#define PERCPU_RSEQ_TP_BIAS 0
PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("ear %0, %%a0\n\tsllg %0, %0, 32\n\tear %0, %%a1" : "=d"(tp));
    return tp;
}

#define PERCPU_RSEQ_TICKS 1 /* the time-of-day clock: 2^12 units a microsecond, on every CPU */
static inline uint64_t percpu_rseq_ticks(void)
{
    uint64_t t;
    __asm__ volatile("stckf %0" : "=Q"(t) : : "cc");
    return t;
}
static inline uint64_t percpu_rseq_ticks_ordered(void) /* stck serialises */
{
    uint64_t t;
    __asm__ volatile("stck %0" : "=Q"(t) : : "cc", "memory");
    return t;
}

#define PERCPU_RSEQ_SECTIONS 1
#define PERCPU_RSEQ_SELF_OPERAND(at) [self] "a"(at)
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_S390_BOUND(slow) ""
#else
#define PERCPU_RSEQ_S390_BOUND(slow) "clr %%r4, %[bound]\n\tjghe " slow "\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                         \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                       \
    "71:\n\tlarl %%r5, 77b\n\tstg %%r5, 4(%[self])\n\t" PERCPU_RSEQ_START_EARLY \
    "llgf %%r4, 0(%[self])\n\t" PERCPU_RSEQ_START_LATE                          \
    PERCPU_RSEQ_S390_BOUND(slow) "sllg %%r4, %%r4, " PERCPU_RSEQ_SHIFT "\n\tagr %%r4, %[p]\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "lghi %%r4, -3\n79:\tlr %[status], %%r4\n\t"

#define PERCPU_RSEQ_S390_RMW(load, insn, store) \
    load " %%r3, 0(%%r4)\n\t" insn " %%r3, %[v]\n\t" store " %%r3, 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_S390_RMW("l", "alr", "st")
#define PERCPU_RSEQ_OP_ADD_64 PERCPU_RSEQ_S390_RMW("lg", "algr", "stg")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_S390_RMW("l", "nr", "st")
#define PERCPU_RSEQ_OP_AND_64 PERCPU_RSEQ_S390_RMW("lg", "ngr", "stg")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_S390_RMW("l", "or", "st")
#define PERCPU_RSEQ_OP_OR_64 PERCPU_RSEQ_S390_RMW("lg", "ogr", "stg")
#define PERCPU_RSEQ_OP_STORE_32 "st %[v], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "stg %[v], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "l %[out], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "lg %[out], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 \
    "l %[out], 0(%%r4)\n\talr %[out], %[v]\n\tst %[out], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_64 \
    "lg %[out], 0(%%r4)\n\talgr %[out], %[v]\n\tstg %[out], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_XCHG_32 "l %[out], 0(%%r4)\n\tst %[v], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "lg %[out], 0(%%r4)\n\tstg %[v], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_32 \
    "l %[out], 0(%%r4)\n\tcr %[out], %[expected]\n\tjgne 73f\n\tst %[v], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_64 \
    "lg %[out], 0(%%r4)\n\tcgr %[out], %[expected]\n\tjgne 73f\n\tstg %[v], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_PUSH(slow)                                \
    "ltg %%r3, 8(%%r4)\n\tjgne " slow "\n\tlg %%r3, 0(%%r4)\n\t" \
    "lgr %%r2, %[node]\n\tagr %%r2, %[next]\n\tstg %%r3, 0(%%r2)\n\tstg %[node], 0(%%r4)\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                               \
    "ltg %%r3, 8(%%r4)\n\tjgne " slow "\n\tltg %[out], 0(%%r4)\n\tjge 73f\n\t" \
    "lgr %%r2, %[out]\n\tagr %%r2, %[next]\n\tlg %%r3, 0(%%r2)\n\tstg %%r3, 0(%%r4)\n\t"
/* stck serialises: the time is not read before what the caller has seen. */
#define PERCPU_RSEQ_OP_PUBLISH                                                     \
    "lg %[out], 0(%%r4)\n\taghi %[out], 1\n\tlghi %%r3, 1\n\tngr %%r3, %[out]\n\t" \
    "sllg %%r3, %%r3, 4\n\tagr %%r3, %%r4\n\tstg %[v], 8(%%r3)\n\t"                \
    "stck 16(%%r3)\n\tstg %[out], 0(%%r4)\n\t"
/* The clock is stored, never loaded: [p] is a word of the caller's own. */
#define PERCPU_RSEQ_STAMP_WORD 1
#define PERCPU_RSEQ_OP_STAMP                                                          \
    "sgr %%r4, %[p]\n\tsrlg %%r4, %%r4, " PERCPU_RSEQ_SHIFT "\n\tlr %[cpu], %%r4\n\t" \
    "lgr %%r3, %[p]\n\tstckf 0(%%r3)\n\tlg %[out], 0(%%r3)\n\t"
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "r"
#define PERCPU_RSEQ_CLOBBERS "r2", "r3", "r4", "r5", "cc"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"

/* The return column is a pseudo register (32, the unwinder's for signals): the frame keeps r14. */
#define PERCPU_RSEQ_STUB_SIGNATURE ".long 0xb2ff0fff\n"
#define PERCPU_RSEQ_STUB                                                                   \
    "\t.cfi_return_column 32\n\t.cfi_def_cfa %r15, 0\n"                                    \
    "\t.cfi_escape 0x16, 0x20, 0x03, 0x75, 0x20, 0x06\n"                                   \
    "\tlarl %r4, percpu_rseq_aborts_v1\n\tl %r3, 0(%r4)\n\tahi %r3, 1\n\tst %r3, 0(%r4)\n" \
    "\tlghi %r4, -1\n\ttmll %r3, 255\n\tjz 1f\n\tlg %r3, 32(%r5)\n\tbr %r3\n"              \
    "1:\tlg %r3, 40(%r5)\n\tbr %r3\n"

#elif defined(__loongarch__) && __loongarch_grlen == 64
/*
 * loongarch64. Thread pointer: $tp. $t4 holds the descriptor's address to the commit, $t5 the cpu
 * id, then the row; $t6, $t7 are scratch. $t0, $t1, $t3 and $t8 stay out: the PLT and far calls
 * clobber them. Branches to C labels go through `b`: a conditional branch reaches 128 KiB only.
 */
#define PERCPU_RSEQ_SYSCALL 293
#define PERCPU_RSEQ_SIGNATURE 0x002a0010u
#define PERCPU_RSEQ_TP_BIAS 0
PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("move %0, $tp" : "=r"(tp));
    return tp;
}

#define PERCPU_RSEQ_TICKS 1 /* the stable counter: of a fixed rate, the same on every CPU */
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks(void)
{
    uint64_t t;
    __asm__ volatile("rdtime.d %0, $zero" : "=r"(t));
    return t;
}
PERCPU_RSEQ_INLINE uint64_t percpu_rseq_ticks_ordered(void)
{
    uint64_t t;
    __asm__ volatile("dbar 0\n\tibar 0\n\trdtime.d %0, $zero" : "=r"(t) : : "memory");
    return t;
}

#define PERCPU_RSEQ_SECTIONS 1
/* The bound stays in the upper half of the word that it comes in, from_tp being the lower. */
#define PERCPU_RSEQ_BOUND_IN_UPPER_HALF 1
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_LA_BOUND(slow) ""
#else
#define PERCPU_RSEQ_LA_BOUND(slow) \
    "srli.d $t6, %[bound], 32\n\tbltu $t5, $t6, 74f\n\tb " slow "\n74:\n\t"
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                            \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                          \
    "71:\n\tla.local $t4, 77b\n\tst.d $t4, %[self], 4\n\t" PERCPU_RSEQ_START_EARLY \
    "ld.wu $t5, %[self], 0\n\t" PERCPU_RSEQ_START_LATE                             \
    PERCPU_RSEQ_LA_BOUND(slow) "slli.d $t5, $t5, " PERCPU_RSEQ_SHIFT               \
                               "\n\tadd.d $t5, $t5, %[p]\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "addi.w $t5, $zero, -3\n79:\tmove %[status], $t5\n\t"

#define PERCPU_RSEQ_LA_RMW(insn, w) \
    "ld." w " $t6, $t5, 0\n\t" insn " $t6, $t6, %[v]\n\tst." w " $t6, $t5, 0\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_LA_RMW("add.w", "w")
#define PERCPU_RSEQ_OP_ADD_64 PERCPU_RSEQ_LA_RMW("add.d", "d")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_LA_RMW("and", "w")
#define PERCPU_RSEQ_OP_AND_64 PERCPU_RSEQ_LA_RMW("and", "d")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_LA_RMW("or", "w")
#define PERCPU_RSEQ_OP_OR_64 PERCPU_RSEQ_LA_RMW("or", "d")
#define PERCPU_RSEQ_OP_STORE_32 "st.w %[v], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "st.d %[v], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "ld.w %[out], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "ld.d %[out], $t5, 0\n\t"
#define PERCPU_RSEQ_LA_ADD_RETURN(insn, w)                         \
    "ld." w " %[out], $t5, 0\n\t" insn " %[out], %[out], %[v]\n\t" \
    "st." w " %[out], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 PERCPU_RSEQ_LA_ADD_RETURN("add.w", "w")
#define PERCPU_RSEQ_OP_ADD_RETURN_64 PERCPU_RSEQ_LA_ADD_RETURN("add.d", "d")
#define PERCPU_RSEQ_OP_XCHG_32 "ld.w %[out], $t5, 0\n\tst.w %[v], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "ld.d %[out], $t5, 0\n\tst.d %[v], $t5, 0\n\t"
/* slli.w: the caller's 32-bit value may be extended either way in its register. */
#define PERCPU_RSEQ_OP_CMPXCHG_32                                                   \
    "ld.w %[out], $t5, 0\n\tslli.w $t6, %[expected], 0\n\tbne %[out], $t6, 73f\n\t" \
    "st.w %[v], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_64                             \
    "ld.d %[out], $t5, 0\n\tbne %[out], %[expected], 73f\n\t" \
    "st.d %[v], $t5, 0\n\t"
/* dbar 20, load to all: once the drain is seen to be over, so is what it did to the head. */
#define PERCPU_RSEQ_OP_PUSH(slow)                                             \
    "ld.d $t6, $t5, 8\n\tdbar 20\n\tbeqz $t6, 75f\n\tb " slow "\n75:\n\t"     \
    "ld.d $t6, $t5, 0\n\tadd.d $t7, %[node], %[next]\n\tst.d $t6, $t7, 0\n\t" \
    "st.d %[node], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                                \
    "ld.d $t6, $t5, 8\n\tdbar 20\n\tbeqz $t6, 75f\n\tb " slow "\n75:\n\t"       \
    "ld.d %[out], $t5, 0\n\tbeqz %[out], 73f\n\tadd.d $t7, %[out], %[next]\n\t" \
    "ld.d $t6, $t7, 0\n\tst.d $t6, $t5, 0\n\t"
/*
 * The first dbar, store to store: the idle buffer was the live one until the last commit; nobody
 * may see it change before that. The last, all to store: who reads the new sequence number sees
 * the buffer it announces. Between: the time is not read before what the caller has seen.
 */
#define PERCPU_RSEQ_OP_PUBLISH                                                      \
    "ld.d %[out], $t5, 0\n\taddi.d %[out], %[out], 1\n\tandi $t6, %[out], 1\n\t"    \
    "slli.d $t6, $t6, 4\n\tadd.d $t6, $t6, $t5\n\tdbar 26\n\tst.d %[v], $t6, 8\n\t" \
    "dbar 0\n\tibar 0\n\trdtime.d $t7, $zero\n\tst.d $t7, $t6, 16\n\tdbar 18\n\t"   \
    "st.d %[out], $t5, 0\n\t"
#define PERCPU_RSEQ_OP_STAMP \
    "srli.d $t5, $t5, " PERCPU_RSEQ_SHIFT "\n\tmove %[cpu], $t5\n\trdtime.d %[out], $zero\n\t"
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "r"
#define PERCPU_RSEQ_CLOBBERS "$t4", "$t5", "$t6", "$t7"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"
#define PERCPU_RSEQ_PUBLISH_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"

/* The return column is a pseudo register (72), so that the frame keeps $ra. */
#define PERCPU_RSEQ_STUB_SIGNATURE ".word 0x002a0010\n"
#define PERCPU_RSEQ_STUB                                                       \
    "\t.cfi_return_column 72\n\t.cfi_def_cfa 3, 0\n"                           \
    "\t.cfi_escape 0x16, 0x48, 0x03, 0x80, 0x20, 0x06\n"                       \
    "\tla.local $t6, percpu_rseq_aborts_v1\n\tld.w $t7, $t6, 0\n"              \
    "\taddi.w $t7, $t7, 1\n\tst.w $t7, $t6, 0\n\tandi $t7, $t7, 255\n"         \
    "\taddi.w $t5, $zero, -1\n\tbeqz $t7, 1f\n\tld.d $t7, $t4, 32\n\tjr $t7\n" \
    "1:\tld.d $t7, $t4, 40\n\tjr $t7\n"

#elif defined(__mips__) && _MIPS_SIM == _ABI64 && defined(__mips_isa_rev) && \
    __mips_isa_rev >= 2 && !defined(__mips16) && !defined(__mips_micromips)
/*
 * mips64, n64, either endianness. Thread pointer: rdhwr $29, 0x7000 bytes above the start of
 * thread-local memory. $12 holds the descriptor's address to the commit, $13 the cpu id, then the
 * row; $14, $15 are scratch. Before release 2 rdhwr traps into the kernel on every read: those, and
 * the other ABIs, whose numbers are kept below for the porter, take the fallback.
 *
 * 32-bit values are sign-extended in registers, by the ABI and in operands.
 */
#define PERCPU_RSEQ_SYSCALL 5327
#define PERCPU_RSEQ_SIGNATURE 0x0350000du
#define PERCPU_RSEQ_TP_BIAS (-0x7000)
PERCPU_RSEQ_INLINE char *percpu_rseq_tp(void)
{
    char *tp;
    __asm__ volatile("rdhwr %0, $29" : "=r"(tp));
    return tp;
}

/*
 * No clock that a section can read: the cycle counter is 32 bits wide and each CPU's own. Hence
 * neither OP_PUBLISH nor OP_STAMP, and their callers do without a section.
 */

#define PERCPU_RSEQ_SECTIONS 1
/* The assembler fills delay slots, even with a store from before, unless told not to. */
#define PERCPU_RSEQ_MIPS_BRANCHES(insns) ".set push\n\t.set noreorder\n\t" insns ".set pop\n\t"
/*
 * No address is relative to the instruction before release 6, and $28 is not the GOT in every
 * function: leaf functions use another register. So a call to the next instruction but one, whose
 * return address is that of a word that says how far the symbol is from there. This clobbers $31.
 */
#define PERCPU_RSEQ_MIPS_ADDRESS(reg, symbol, label)                                           \
    PERCPU_RSEQ_MIPS_BRANCHES("bal " label "f\n\tnop\n\t.word " symbol " - .\n" label ":\n\t") \
    "lw " reg ", 0($31)\n\tdaddu " reg ", " reg ", $31\n\t"
/* To the slow path by its address in the descriptor's site: branches reach 128 KiB only. */
#define PERCPU_RSEQ_MIPS_SLOW_UNLESS(branch, label) \
    PERCPU_RSEQ_MIPS_BRANCHES(                      \
        branch ", " label "f\n\tnop\n\tld $14, 40($12)\n\tjr $14\n\tnop\n" label ":\n\t")
#ifdef PERCPU_BREAK_NO_BOUND
#define PERCPU_RSEQ_MIPS_BOUND ""
#else
#define PERCPU_RSEQ_MIPS_BOUND \
    "sltu $14, $13, %[bound]\n\t" PERCPU_RSEQ_MIPS_SLOW_UNLESS("bnez $14", "74")
#endif
#define PERCPU_RSEQ_SECTION_BEGIN(slow)                                                            \
    PERCPU_RSEQ_DESCRIPTOR(".quad", slow)                                                          \
    "71:\n\t" PERCPU_RSEQ_MIPS_ADDRESS(                                                            \
        "$12", "77b", "76") "sd $12, 4(%[self])\n\t" PERCPU_RSEQ_START_EARLY                       \
                            "lw $13, 0(%[self])\n\t" PERCPU_RSEQ_START_LATE PERCPU_RSEQ_MIPS_BOUND \
                            "dsll $13, $13, " PERCPU_RSEQ_SHIFT "\n\tdaddu $13, $13, %[p]\n\t"
#define PERCPU_RSEQ_SECTION_RESULT "li $13, -3\n79:\tmove %[status], $13\n\t"

#define PERCPU_RSEQ_MIPS_RMW(insn, w) \
    "l" w " $14, 0($13)\n\t" insn " $14, $14, %[v]\n\ts" w " $14, 0($13)\n\t"
#define PERCPU_RSEQ_OP_ADD_32 PERCPU_RSEQ_MIPS_RMW("addu", "w")
#define PERCPU_RSEQ_OP_ADD_64 PERCPU_RSEQ_MIPS_RMW("daddu", "d")
#define PERCPU_RSEQ_OP_AND_32 PERCPU_RSEQ_MIPS_RMW("and", "w")
#define PERCPU_RSEQ_OP_AND_64 PERCPU_RSEQ_MIPS_RMW("and", "d")
#define PERCPU_RSEQ_OP_OR_32 PERCPU_RSEQ_MIPS_RMW("or", "w")
#define PERCPU_RSEQ_OP_OR_64 PERCPU_RSEQ_MIPS_RMW("or", "d")
#define PERCPU_RSEQ_OP_STORE_32 "sw %[v], 0($13)\n\t"
#define PERCPU_RSEQ_OP_STORE_64 "sd %[v], 0($13)\n\t"
#define PERCPU_RSEQ_OP_LOAD_32 "lw %[out], 0($13)\n\t"
#define PERCPU_RSEQ_OP_LOAD_64 "ld %[out], 0($13)\n\t"
#define PERCPU_RSEQ_MIPS_ADD_RETURN(insn, w)                     \
    "l" w " %[out], 0($13)\n\t" insn " %[out], %[out], %[v]\n\t" \
    "s" w " %[out], 0($13)\n\t"
#define PERCPU_RSEQ_OP_ADD_RETURN_32 PERCPU_RSEQ_MIPS_ADD_RETURN("addu", "w")
#define PERCPU_RSEQ_OP_ADD_RETURN_64 PERCPU_RSEQ_MIPS_ADD_RETURN("daddu", "d")
#define PERCPU_RSEQ_OP_XCHG_32 "lw %[out], 0($13)\n\tsw %[v], 0($13)\n\t"
#define PERCPU_RSEQ_OP_XCHG_64 "ld %[out], 0($13)\n\tsd %[v], 0($13)\n\t"
#define PERCPU_RSEQ_MIPS_CMPXCHG(w)                        \
    "l" w " %[out], 0($13)\n\t" PERCPU_RSEQ_MIPS_BRANCHES( \
        "bne %[out], %[expected], 73f\n\tnop\n\t") "s" w " %[v], 0($13)\n\t"
#define PERCPU_RSEQ_OP_CMPXCHG_32 PERCPU_RSEQ_MIPS_CMPXCHG("w")
#define PERCPU_RSEQ_OP_CMPXCHG_64 PERCPU_RSEQ_MIPS_CMPXCHG("d")
/* sync: once the drain is seen to be over, so is what it did to the head. */
#define PERCPU_RSEQ_MIPS_OPEN \
    "ld $14, 8($13)\n\tsync\n\t" PERCPU_RSEQ_MIPS_SLOW_UNLESS("beqz $14", "75")
#define PERCPU_RSEQ_OP_PUSH(slow)                                         \
    PERCPU_RSEQ_MIPS_OPEN                                                 \
    "ld $14, 0($13)\n\tdaddu $15, %[node], %[next]\n\tsd $14, 0($15)\n\t" \
    "sd %[node], 0($13)\n\t"
#define PERCPU_RSEQ_OP_POP(slow)                                                                  \
    PERCPU_RSEQ_MIPS_OPEN                                                                         \
    "ld %[out], 0($13)\n\t" PERCPU_RSEQ_MIPS_BRANCHES(                                            \
        "beqz %[out], 73f\n\tnop\n\t") "daddu $15, %[out], %[next]\n\tld $14, 0($15)\n\tsd $14, " \
                                       "0($13)\n\t"
#define PERCPU_RSEQ_VALUE "r"
#define PERCPU_RSEQ_ADDEND "r"
#define PERCPU_RSEQ_CLOBBERS "$12", "$13", "$14", "$15", "$31"
#define PERCPU_RSEQ_LIST_CLOBBERS PERCPU_RSEQ_CLOBBERS, "memory"

/* The return column is a pseudo register (66, the unwinder's for signals): the frame keeps $31. */
#define PERCPU_RSEQ_STUB_SIGNATURE ".word 0x0350000d\n"
#define PERCPU_RSEQ_STUB                                                                       \
    "\t.cfi_return_column 66\n\t.cfi_def_cfa $29, 0\n"                                         \
    "\t.cfi_escape 0x16, 0x42, 0x03, 0x7c, 0x20, 0x06\n\t" PERCPU_RSEQ_MIPS_ADDRESS(           \
        "$14", "percpu_rseq_aborts_v1",                                                        \
        "2") "lw $15, 0($14)\n\taddiu $15, $15, 1\n\tsw $15, 0($14)\n\tandi $15, $15, 255\n\t" \
             "li $13, -1\n\t" PERCPU_RSEQ_MIPS_BRANCHES(                                       \
                 "beqz $15, 1f\n\tnop\n\tld $14, 32($12)\n\t"                                  \
                 "jr $14\n\tnop\n1:\tld $14, 40($12)\n\tjr $14\n\tnop\n\t") "\n"
#endif

/*
 * Without a block. For the porter: or1k 293, signature 0x15000035; ppc 32-bit and big-endian 387,
 * 0x0fe5000b; s390 383; riscv32 293; mips o32 4367, n32 6331; microMIPS signature 0xd4070000
 * (little-endian) or 0x0000d407, nanoMIPS 0x03500010 or 0x00100350.
 */

#ifdef PERCPU_RSEQ_SYSCALL
#define PERCPU_RSEQ_PORTED 1 /* the cpu id is read from an area */
#else
#define PERCPU_RSEQ_PORTED 0
#endif
#ifndef PERCPU_RSEQ_SECTIONS
#define PERCPU_RSEQ_SECTIONS 0 /* operations take the fallback */
#endif
#ifndef PERCPU_RSEQ_OFFSET_FROM_OWN
#define PERCPU_RSEQ_OFFSET_FROM_OWN 0
#endif
#ifndef PERCPU_RSEQ_STUB_NAME
#define PERCPU_RSEQ_STUB_NAME "percpu_rseq_abort_v1"
#endif
#ifndef PERCPU_RSEQ_STUB_TYPE
#define PERCPU_RSEQ_STUB_TYPE "%function"
#endif
#ifndef PERCPU_RSEQ_STUB_UNWIND
#define PERCPU_RSEQ_STUB_UNWIND "\t.cfi_startproc\n\t.cfi_signal_frame\n"
#define PERCPU_RSEQ_STUB_UNWIND_END "\t.cfi_endproc\n"
#endif

#ifndef PERCPU_RSEQ_BOUND_IN_UPPER_HALF
#define PERCPU_RSEQ_BOUND_IN_UPPER_HALF 0
#endif

/* Before the offset is known: leave for the slow path before anything is written through it. */
#if PERCPU_RSEQ_OFFSET_FROM_OWN
#define PERCPU_RSEQ_OFFSET(reach) ((reach)->from_own)
#define PERCPU_RSEQ_UNSET(off) 0
#else
#define PERCPU_RSEQ_OFFSET(reach) ((intptr_t)(reach)->from_tp)
#define PERCPU_RSEQ_UNSET(off) ((off) == 0)
#endif

#if PERCPU_RSEQ_PORTED
#ifndef PERCPU_RSEQ_HAVE_READ
/*
 * Generic: the offset leads from the (biased) thread pointer to cpu_id. Never 0: areas are
 * 32-aligned.
 */
#define PERCPU_RSEQ_AT(off) (percpu_rseq_tp() + PERCPU_RSEQ_TP_BIAS + (off))

PERCPU_RSEQ_INLINE uint32_t percpu_rseq_read_cpu_id(intptr_t off)
{
    return *(volatile uint32_t *)(void *)PERCPU_RSEQ_AT(off);
}

PERCPU_RSEQ_INLINE uint32_t percpu_rseq_read_member(intptr_t off, size_t member)
{
    return *(volatile uint32_t *)(void *)(PERCPU_RSEQ_AT(off) - PERCPU_RSEQ_CPU_ID_OFFSET + member);
}
#endif

/**
 * percpu_rseq_cpu_id() - read this thread's cpu id, negative where there is none.
 * @off: the offset that percpu.h keeps.
 *
 * One load, no branch; an executable's offset is never unset on x86-64. An unset offset leads to
 * readable memory whose content is then discarded.
 */
PERCPU_RSEQ_INLINE int percpu_rseq_cpu_id(intptr_t off)
{
    return (int)(percpu_rseq_read_cpu_id(off) | (0u - (uint32_t)PERCPU_RSEQ_UNSET(off)));
}

/* ---- [C] The thread's own area, and how to find it ------------------------------------------ */
/*
 * A weak symbol: every file of a program, and every shared object whose symbols may be shared,
 * uses one area per thread. It is in the state that registration asks for from the first
 * instruction of a thread (thread-locals are initialised from an image), so it is never
 * initialised at run time: a signal handler may register it at any moment.
 *
 * `used`: asm names it, which link-time optimisation does not see.
 */
#define PERCPU_RSEQ_SHARED __attribute__((weak, used, visibility("default")))
#if !PERCPU_RSEQ_EXECUTABLE && defined(__GLIBC__) && !defined(__x86_64__) && !defined(__aarch64__)
/* Keep off __tls_get_addr: it ties the weak references of [D] to glibc 2.35. */
#define PERCPU_RSEQ_TLS_MODEL __attribute__((tls_model("initial-exec")))
#else
#define PERCPU_RSEQ_TLS_MODEL
#endif
extern __thread struct percpu_rseq_thread percpu_rseq_thread_v1 PERCPU_RSEQ_TLS_MODEL;
PERCPU_RSEQ_SHARED __attribute__((aligned(64)))
PERCPU_RSEQ_TLS_MODEL __thread struct percpu_rseq_thread percpu_rseq_thread_v1 = {
    {0, PERCPU_RSEQ_CPU_UNREGISTERED, 0, 0, 0, 0, 0, 0, {0}}, 0, 0, 0, 0, 0};

/*
 * The name under which other libraries (tcmalloc, early librseq) define the area that they register
 * with length 32. Weak and hidden: in a program that links such a library statically this is the
 * library's area, otherwise it is ours. Never exported: such a library may depend on what lies
 * around its own.
 */
extern __thread struct percpu_rseq_thread percpu_rseq_foreign __asm__("__rseq_abi")
    __attribute__((weak, alias("percpu_rseq_thread_v1"), visibility("hidden")));
/* This module's own definition, used or not: to know the alias above by. */
extern __thread struct percpu_rseq_thread percpu_rseq_here __asm__("percpu_rseq_here_v1")
    __attribute__((weak, alias("percpu_rseq_thread_v1"), visibility("hidden")));

/*
 * percpu_rseq_locate() - this thread's copy of a thread-local symbol, and its constant offset.
 *
 * Where the symbol's offset from the thread pointer is the same in every thread (static TLS), the
 * cpu id can be read through that offset. In an executable it is. Code that ends in a shared
 * object asks through TLSDESC: the resolver returns the offset, and its descriptor holds the very
 * same number exactly if the offset is constant (linked at program start: yes; dlopen'ed: glibc
 * while its reserve lasts, musl no). Unlike the initial-exec model this never keeps a plugin from
 * loading, and unlike __tls_get_addr it adds no versioned symbol.
 */
#if PERCPU_RSEQ_EXECUTABLE
#define PERCPU_RSEQ_LOCATE(symbol, name)                                                    \
    static __attribute__((noinline, unused)) char *percpu_rseq_locate_##name(int *constant) \
    {                                                                                       \
        *constant = 1;                                                                      \
        return (char *)&symbol;                                                             \
    }
#elif defined(__x86_64__) && defined(__LP64__)
/* The call may clobber vector registers in old glibc, the red zone and nothing else but %rax. */
#define PERCPU_RSEQ_LOCATE(symbol, name)                                                           \
    static __attribute__((noinline, unused)) char *percpu_rseq_locate_##name(int *constant)        \
    {                                                                                              \
        intptr_t off, desc;                                                                        \
        __asm__ volatile(                                                                          \
            "movq %%rsp, %%rbx\n\tsubq $128, %%rsp\n\tandq $-64, %%rsp\n\t"                        \
            "leaq " PERCPU_RSEQ_LOCATE_NAME(name) "@tlsdesc(%%rip), %%rax\n\t"                     \
                                                  "movq %%rax, %1\n\t"                             \
                                                  "call *" PERCPU_RSEQ_LOCATE_NAME(                \
                                                      name) "@tlscall(%%rax)\n\tmovq %%rbx, %%rsp" \
            : "=&a"(off), "=&r"(desc)                                                              \
            : "r"(__builtin_frame_address(0))                                                      \
            : "rbx", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",       \
              "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");       \
        *constant = desc == off || ((const intptr_t *)desc)[1] == off;                             \
        return percpu_rseq_tp() + off;                                                             \
    }
#elif defined(__aarch64__) && defined(__LP64__)
#define PERCPU_RSEQ_LOCATE(symbol, name)                                                    \
    static __attribute__((noinline, unused)) char *percpu_rseq_locate_##name(int *constant) \
    {                                                                                       \
        intptr_t off, desc;                                                                 \
        __asm__ volatile(                                                                   \
            "adrp x0, :tlsdesc:" PERCPU_RSEQ_LOCATE_NAME(                                   \
                name) "\n\t"                                                                \
                      "ldr x1, [x0, #:tlsdesc_lo12:" PERCPU_RSEQ_LOCATE_NAME(               \
                          name) "]\n\t"                                                     \
                                "add x0, x0, #:tlsdesc_lo12:" PERCPU_RSEQ_LOCATE_NAME(      \
                                    name) "\n\t"                                            \
                                          "mov x2, x0\n\t"                                  \
                                          ".tlsdesccall " PERCPU_RSEQ_LOCATE_NAME(          \
                                              name) "\n\tblr x1\n\t"                        \
                                                    "mov %0, x0\n\tmov %1, x2"              \
            : "=r"(off), "=r"(desc)                                                         \
            :                                                                               \
            : "x0", "x1", "x2", "x30", "cc", "memory");                                     \
        *constant = desc == off || ((const intptr_t *)desc)[1] == off;                      \
        return percpu_rseq_tp() + off;                                                      \
    }
#else
#define PERCPU_RSEQ_LOCATE(symbol, name)                                                    \
    static __attribute__((noinline, unused)) char *percpu_rseq_locate_##name(int *constant) \
    {                                                                                       \
        *constant = PERCPU_RSEQ_TLS_IS_CONSTANT;                                            \
        return (char *)&symbol;                                                             \
    }
#ifdef __GLIBC__
#define PERCPU_RSEQ_TLS_IS_CONSTANT 1
#else
#define PERCPU_RSEQ_TLS_IS_CONSTANT 0
#endif
#endif
#define PERCPU_RSEQ_LOCATE_NAME(name) PERCPU_RSEQ_SYMBOL_##name
#define PERCPU_RSEQ_SYMBOL_own "percpu_rseq_thread_v1"
#define PERCPU_RSEQ_SYMBOL_foreign "__rseq_abi"
#define PERCPU_RSEQ_SYMBOL_here "percpu_rseq_here_v1"
PERCPU_RSEQ_LOCATE(percpu_rseq_thread_v1, own)
PERCPU_RSEQ_LOCATE(percpu_rseq_foreign, foreign)
PERCPU_RSEQ_LOCATE(percpu_rseq_here, here)

/* ---- [D] libc's area ------------------------------------------------------------------------ */
/*
 * glibc 2.35 and later register an area for each thread and export where it is. The symbols live in
 * the loader; on older glibc and on musl they are missing. They are reached through the GOT (or a
 * relocated word of data), not by a plain weak reference, which a non-PIE link against an older
 * glibc resolves to NULL for good. Address and value are both checked: a copy relocation
 * that found no match leaves an address with 0 in it.
 */
static inline const void *percpu_rseq_libc_size_address(void)
{
    const void *a;
#if defined(__x86_64__)
    __asm__(".weak __rseq_size\n\tmovq __rseq_size@GOTPCREL(%%rip), %0" : "=r"(a));
#elif defined(__aarch64__)
    __asm__(".weak __rseq_size\n\tadrp %0, :got:__rseq_size\n\t"
            "ldr %0, [%0, #:got_lo12:__rseq_size]"
            : "=r"(a));
#else
    extern const unsigned percpu_rseq_libc_size __asm__("__rseq_size") __attribute__((weak));
    static const void *volatile word = &percpu_rseq_libc_size;
    a = word;
#endif
    return a;
}

static inline const void *percpu_rseq_libc_offset_address(void)
{
    const void *a;
#if defined(__x86_64__)
    __asm__(".weak __rseq_offset\n\tmovq __rseq_offset@GOTPCREL(%%rip), %0" : "=r"(a));
#elif defined(__aarch64__)
    __asm__(".weak __rseq_offset\n\tadrp %0, :got:__rseq_offset\n\t"
            "ldr %0, [%0, #:got_lo12:__rseq_offset]"
            : "=r"(a));
#else
    extern const ptrdiff_t percpu_rseq_libc_offset __asm__("__rseq_offset") __attribute__((weak));
    static const void *volatile word = &percpu_rseq_libc_offset;
    a = word;
#endif
    return a;
}

/**
 * percpu_rseq_libc() - libc's area.
 * @size: what libc says is usable; 0 where it registers nothing (told not to, refused, too old).
 *
 * Return: the area's offset from the thread pointer; 0 where libc registers none.
 */
static inline ptrdiff_t percpu_rseq_libc(unsigned *size)
{
    const void *s = percpu_rseq_libc_size_address();
    const void *o = percpu_rseq_libc_offset_address();
    *size = s && o && *(const ptrdiff_t *)o ? *(const unsigned *)s : 0;
    return *size ? *(const ptrdiff_t *)o : 0;
}
#endif /* PERCPU_RSEQ_PORTED */

/* ---- [E] The abort stub --------------------------------------------------------------------- */
/*
 * Where the kernel sends every aborted section: count, then start over at the section's restart
 * address, or, every 256th time, give up to the slow path. So a thread that can never finish a
 * section (a debugger that steps it, a timer faster than it) still makes progress, and the hot path
 * carries no counter. The count is per module and approximate: increments may be lost between CPUs.
 *
 * One stub for all sections, in a COMDAT group of its own: out of the way of the hot code, and with
 * unwind information of its own (see [B]). That begins before the signature: some unwinders look
 * one byte before an address that a signal interrupted (s390x: SIGILL, SIGTRAP, SIGFPE).
 */
#if PERCPU_RSEQ_SECTIONS
extern uint32_t percpu_rseq_aborts_v1;
__attribute__((weak, used, visibility("hidden"))) uint32_t percpu_rseq_aborts_v1;

__asm__(".ifndef " PERCPU_RSEQ_STUB_NAME "\n"
        "\t.pushsection .text." PERCPU_RSEQ_STUB_NAME ", \"axG\", %progbits, " PERCPU_RSEQ_STUB_NAME
        ", comdat\n"
        "\t.weak " PERCPU_RSEQ_STUB_NAME "\n\t.hidden " PERCPU_RSEQ_STUB_NAME "\n"
        "\t.type " PERCPU_RSEQ_STUB_NAME ", " PERCPU_RSEQ_STUB_TYPE
        "\n\t.balign 16\n" PERCPU_RSEQ_STUB_UNWIND PERCPU_RSEQ_STUB_SIGNATURE PERCPU_RSEQ_BROKEN_PAD
            PERCPU_RSEQ_STUB_NAME ":\n" PERCPU_RSEQ_STUB PERCPU_RSEQ_STUB_UNWIND_END
        "\t.size " PERCPU_RSEQ_STUB_NAME ", . - " PERCPU_RSEQ_STUB_NAME "\n"
        "\t.popsection\n.endif\n");

/* ---- [F] The critical sections -------------------------------------------------------------- */
/*
 * Each acts on the copy, of a per-CPU object whose copy 0 is at @p, that belongs to the CPU it runs
 * on. Return: 0 done; -1 not done (no registration, id not below the bound, or given up), the
 * caller takes the fallback. In pseudo-code, `row` being p + (cpu_id << PERCPU_STRIDE_SHIFT):
 *
 *   add, and, or     *row op= v
 *   add_first        row = *base + (cpu_id << ...) where cpu_id < *rows; *row += v
 *   add_element      the same; row[i] += v
 *   store            *row = v
 *   load             out = *row
 *   add_return       out = *row + v; *row = out
 *   xchg             out = *row; *row = v
 *   cmpxchg          out = *row; if (out == expected) *row = v
 *   push             if (row->closed) give up; node->next = row->head; row->head = node
 *                                                           (node is private until the commit)
 *   pop              if (row->closed) give up; out = row->head; if (out) row->head = out->next
 *                                                           (nobody else can take out: it is in
 *                                                           this CPU's list until the commit)
 *   publish          out = row->seq + 1; row->buffer[out & 1] = {v, ticks}; row->seq = out
 *   stamp            cpu = cpu_id; out = ticks              (no row, no store)
 *
 * What if the thread stops, for ever or for a week, at
 *   the arming store or before   nothing has happened; a stale rseq_cs is harmless: the kernel
 *                                checks the ip against it, and clears it
 *   any instruction up to the    the kernel resumes at the stub: nothing has happened. push wrote
 *   commit                       its own node, publish the idle buffer: nobody reads those
 *   after the commit             it has happened, once
 * A signal aborts the section before its handler runs, so a handler may do the same operation on
 * the same object.
 *
 * What other CPUs see, on machines that reorder. Only two protocols care: a gauge's reader must not
 * see a sequence number before the buffer it announces, nor a buffer being reused under a number
 * that it still trusts (barriers in PUBLISH); a drained row's owner must not work on a list from
 * before the drain (the barrier after the load of `closed`; the fence does the rest). Each is a
 * model in test/models, with these instructions, of which none can be left out.
 *
 * Without results: asm goto, and the compiler may keep memory in registers across an add (no
 * "memory" clobber: a counter orders nothing); store and what publishes does clobber. With
 * results: plain asm whose status says what happened, because asm goto outputs are lost on the
 * taken edge by clang up to 14 and refused by gcc before 11.
 */
#ifndef PERCPU_RSEQ_INPUT /* where every operand may have a register */
#define PERCPU_RSEQ_INPUT(x) "r"(x)
#endif
#ifndef PERCPU_RSEQ_SELF_OPERAND /* where any register may be a base */
#define PERCPU_RSEQ_SELF_OPERAND(at) [self] "r"(at)
#endif

/* What every section needs: where this thread's cpu_id is, and for which ids to go on. */
typedef struct {
    intptr_t at;     /* what the section reads cpu_id through */
    uintptr_t bound; /* a whole register: nobody has to wonder how 32 bits are extended */
} percpu_rseq_self_t;
#if PERCPU_RSEQ_BOUND_IN_UPPER_HALF
#define PERCPU_RSEQ_BOUND(n) ((uintptr_t)(n) << 32)
#else
#define PERCPU_RSEQ_BOUND(n) ((uintptr_t)(n))
#endif

/* Return: the area's offset is known. */
PERCPU_RSEQ_INLINE int percpu_rseq_self(const struct percpu_rseq_reach *reach,
                                        percpu_rseq_self_t *self)
{
#if PERCPU_RSEQ_BOUND_IN_UPPER_HALF /* one load */
    intptr_t off;
    __builtin_memcpy(&self->bound, reach, sizeof self->bound);
    off = (int32_t)(uint32_t)self->bound;
#else
    intptr_t off = PERCPU_RSEQ_OFFSET(reach);
    self->bound = PERCPU_RSEQ_BOUND(reach->bound);
#endif
    self->at = (intptr_t)PERCPU_RSEQ_AT(off);
    return !PERCPU_RSEQ_UNSET(off);
}
#define PERCPU_RSEQ_SELF(reach)          \
    percpu_rseq_self_t self;             \
    if (!percpu_rseq_self(reach, &self)) \
    return -1
#define PERCPU_RSEQ_SELF_OPERANDS \
    PERCPU_RSEQ_SELF_OPERAND(self.at), [bound] PERCPU_RSEQ_INPUT(self.bound)

/* 64 bits in one register, or in halves. */
#if UINTPTR_MAX > 0xffffffffu
#define PERCPU_RSEQ_VALUE_64(x) [v] "r"(x)
#else
#define PERCPU_RSEQ_VALUE_64(x) \
    [v] PERCPU_RSEQ_INPUT((uint32_t)(x)), [v_high] PERCPU_RSEQ_INPUT((uint32_t)((x) >> 32))
#ifndef PERCPU_RSEQ_HALF
#define PERCPU_RSEQ_HALF "=&r"
#endif
#endif

/* gcc < 8.1 and clang < 13 misplace code around the label without this barrier. */
#if (defined(__clang__) && __clang_major__ < 14) || (!defined(__clang__) && __GNUC__ < 9)
#define PERCPU_RSEQ_LABEL_BARRIER() __asm__ volatile("" ::: "memory")
#else
#define PERCPU_RSEQ_LABEL_BARRIER() ((void)0)
#endif

/* The end of a function: run a section without outputs. @...: its inputs. */
#if defined(__arm__) && !defined(__clang__)
/*
 * gcc takes an asm goto for one instruction, and where it needs to know distances (literal pools,
 * cbz) the assembler then refuses what it wrote.
 */
#define PERCPU_RSEQ_SLOW "79f"
#define PERCPU_RSEQ_RUN(op, clobbers, ...)                                     \
    uint32_t status;                                                           \
    __asm__ volatile(PERCPU_RSEQ_SECTION_BEGIN(PERCPU_RSEQ_SLOW)               \
                         op PERCPU_RSEQ_SECTION_END PERCPU_RSEQ_SECTION_RESULT \
                     : [status] "=r"(status)                                   \
                     : __VA_ARGS__                                             \
                     : PERCPU_RSEQ_SPREAD clobbers);                           \
    return status == PERCPU_RSEQ_COMMITTED ? 0 : -1
#else
#define PERCPU_RSEQ_SLOW "%l[slow]"
#define PERCPU_RSEQ_RUN(op, clobbers, ...)                                              \
    __asm__ goto(PERCPU_RSEQ_SECTION_BEGIN(PERCPU_RSEQ_SLOW) op PERCPU_RSEQ_SECTION_END \
                 : /* no outputs */                                                     \
                 : __VA_ARGS__                                                          \
                 : PERCPU_RSEQ_SPREAD clobbers                                          \
                 : slow);                                                               \
    return 0;                                                                           \
    slow:                                                                               \
    PERCPU_RSEQ_LABEL_BARRIER();                                                        \
    return -1
#endif

/* The same with *out as its output. @...: inputs besides the row. */
#define PERCPU_RSEQ_RESULT(op, clobbers, ...)                                         \
    uint32_t status;                                                                  \
    PERCPU_RSEQ_SELF(reach);                                                          \
    __asm__ volatile(PERCPU_RSEQ_SECTION_BEGIN("79f")                                 \
                         op PERCPU_RSEQ_SECTION_END PERCPU_RSEQ_SECTION_RESULT        \
                     : [status] "=r"(status), [out] "=&r"(*out)                       \
                     : PERCPU_RSEQ_SELF_OPERANDS, __VA_ARGS__[p] PERCPU_RSEQ_INPUT(p) \
                     : PERCPU_RSEQ_SPREAD clobbers);                                  \
    return status == PERCPU_RSEQ_COMMITTED ? 0 : -1

#define PERCPU_RSEQ_DEFINE_VOID(name, type, value, op, clobbers)                              \
    PERCPU_RSEQ_INLINE int percpu_rseq_##name(const struct percpu_rseq_reach *reach, type *p, \
                                              type v)                                         \
    {                                                                                         \
        PERCPU_RSEQ_SELF(reach);                                                              \
        PERCPU_RSEQ_RUN(op, clobbers,                                                         \
                        PERCPU_RSEQ_SELF_OPERANDS, [p] PERCPU_RSEQ_INPUT(p), [v] value(v));   \
    }
#define PERCPU_RSEQ_DEFINE_RESULT(name, type, op)                                             \
    PERCPU_RSEQ_INLINE int percpu_rseq_##name(const struct percpu_rseq_reach *reach, type *p, \
                                              type v, type *out)                              \
    {                                                                                         \
        PERCPU_RSEQ_RESULT(op, (PERCPU_RSEQ_LIST_CLOBBERS), [v] PERCPU_RSEQ_VALUE(v), );      \
    }
#define PERCPU_RSEQ_DEFINE_WIDTH(n)                                                               \
    PERCPU_RSEQ_DEFINE_VOID(add_u##n, uint##n##_t, PERCPU_RSEQ_ADDEND, PERCPU_RSEQ_OP_ADD_##n,    \
                            (PERCPU_RSEQ_CLOBBERS))                                               \
    PERCPU_RSEQ_DEFINE_VOID(and_u##n, uint##n##_t, PERCPU_RSEQ_VALUE, PERCPU_RSEQ_OP_AND_##n,     \
                            (PERCPU_RSEQ_CLOBBERS))                                               \
    PERCPU_RSEQ_DEFINE_VOID(or_u##n, uint##n##_t, PERCPU_RSEQ_VALUE, PERCPU_RSEQ_OP_OR_##n,       \
                            (PERCPU_RSEQ_CLOBBERS))                                               \
    PERCPU_RSEQ_DEFINE_VOID(store_u##n, uint##n##_t, PERCPU_RSEQ_VALUE, PERCPU_RSEQ_OP_STORE_##n, \
                            (PERCPU_RSEQ_LIST_CLOBBERS))                                          \
    PERCPU_RSEQ_INLINE int percpu_rseq_load_u##n(const struct percpu_rseq_reach *reach,           \
                                                 const uint##n##_t *p, uint##n##_t *out)          \
    {                                                                                             \
        PERCPU_RSEQ_RESULT(PERCPU_RSEQ_OP_LOAD_##n, (PERCPU_RSEQ_LIST_CLOBBERS), );               \
    }                                                                                             \
    PERCPU_RSEQ_DEFINE_RESULT(add_return_u##n, uint##n##_t, PERCPU_RSEQ_OP_ADD_RETURN_##n)        \
    PERCPU_RSEQ_DEFINE_RESULT(xchg_u##n, uint##n##_t, PERCPU_RSEQ_OP_XCHG_##n)                    \
    PERCPU_RSEQ_INLINE int percpu_rseq_cmpxchg_u##n(const struct percpu_rseq_reach *reach,        \
                                                    uint##n##_t *p, uint##n##_t expected,         \
                                                    uint##n##_t v, uint##n##_t *out)              \
    {                                                                                             \
        PERCPU_RSEQ_RESULT(                                                                       \
            PERCPU_RSEQ_OP_CMPXCHG_##n,                                                           \
            (PERCPU_RSEQ_LIST_CLOBBERS), [expected] PERCPU_RSEQ_INPUT(expected), [v] "r"(v), );   \
    }
PERCPU_RSEQ_DEFINE_WIDTH(32)
#if UINTPTR_MAX > 0xffffffffu
PERCPU_RSEQ_DEFINE_WIDTH(64)
#define PERCPU_RSEQ_OP_ADD_WORD PERCPU_RSEQ_OP_ADD_64
#else
#define PERCPU_RSEQ_OP_ADD_WORD PERCPU_RSEQ_OP_ADD_32
#endif

/*
 * Add to word @i of the copies at *@base, if *@rows lets sections in: it is 0 until *@base is set,
 * and the bound then. x86-64 reads both inside the section.
 */
#ifdef PERCPU_RSEQ_OP_ADD_FIRST
PERCPU_RSEQ_INLINE int percpu_rseq_add_first(const struct percpu_rseq_reach *reach,
                                             uintptr_t **base, const uint32_t *rows, uintptr_t v)
{
    PERCPU_RSEQ_SELF(reach);
    PERCPU_RSEQ_RUN(PERCPU_RSEQ_OP_ADD_FIRST, (PERCPU_RSEQ_HANDLE_CLOBBERS),
                    PERCPU_RSEQ_SELF_OPERAND(self.at), [base] "m"(*base), [bound] "m"(*rows),
                    [v] PERCPU_RSEQ_ADDEND(v));
}
PERCPU_RSEQ_INLINE int percpu_rseq_add_element(const struct percpu_rseq_reach *reach,
                                               uintptr_t **base, const uint32_t *rows, size_t i,
                                               uintptr_t v)
{
    PERCPU_RSEQ_SELF(reach);
    PERCPU_RSEQ_RUN(PERCPU_RSEQ_OP_ADD_ELEMENT, (PERCPU_RSEQ_CLOBBERS),
                    PERCPU_RSEQ_SELF_OPERAND(self.at), [base] "m"(*base), [bound] "m"(*rows),
                    [i] "r"(i), [v] PERCPU_RSEQ_ADDEND(v));
}
#else
PERCPU_RSEQ_INLINE int percpu_rseq_add_element(const struct percpu_rseq_reach *reach,
                                               uintptr_t **base, const uint32_t *rows, size_t i,
                                               uintptr_t v)
{
    uintptr_t *p = __atomic_load_n(base, __ATOMIC_RELAXED);
    PERCPU_RSEQ_SELF(reach);
    self.bound = PERCPU_RSEQ_BOUND(__atomic_load_n(rows, __ATOMIC_RELAXED));
    if (!p) /* each is checked alone: who sees the one may not see the other */
        return -1;
    p += i;
    PERCPU_RSEQ_RUN(PERCPU_RSEQ_OP_ADD_WORD, (PERCPU_RSEQ_CLOBBERS),
                    PERCPU_RSEQ_SELF_OPERANDS, [p] PERCPU_RSEQ_INPUT(p), [v] PERCPU_RSEQ_ADDEND(v));
}
PERCPU_RSEQ_INLINE int percpu_rseq_add_first(const struct percpu_rseq_reach *reach,
                                             uintptr_t **base, const uint32_t *rows, uintptr_t v)
{
    return percpu_rseq_add_element(reach, base, rows, 0, v);
}
#endif

/* @next: offset in bytes of the link inside a node. */
PERCPU_RSEQ_INLINE int percpu_rseq_push(const struct percpu_rseq_reach *reach,
                                        struct percpu_rseq_list *p, void *node, size_t next)
{
    PERCPU_RSEQ_SELF(reach);
    PERCPU_RSEQ_RUN(
        PERCPU_RSEQ_OP_PUSH(PERCPU_RSEQ_SLOW), (PERCPU_RSEQ_LIST_CLOBBERS),
        PERCPU_RSEQ_SELF_OPERANDS, [p] PERCPU_RSEQ_INPUT(p), [node] "r"(node), [next] "r"(next));
}

PERCPU_RSEQ_INLINE int percpu_rseq_pop(const struct percpu_rseq_reach *reach,
                                       struct percpu_rseq_list *p, size_t next, void **out)
{
    PERCPU_RSEQ_RESULT(PERCPU_RSEQ_OP_POP("79f"), (PERCPU_RSEQ_LIST_CLOBBERS), [next] "r"(next), );
}

/*
 * Without a clock that user code can read there are no such sections, and the caller's fallback
 * asks the kernel for the time.
 */
#ifdef PERCPU_RSEQ_OP_PUBLISH
PERCPU_RSEQ_INLINE int percpu_rseq_publish(const struct percpu_rseq_reach *reach,
                                           struct percpu_rseq_stamped *p, uint64_t v,
                                           uintptr_t *out)
{
    PERCPU_RSEQ_RESULT(PERCPU_RSEQ_OP_PUBLISH, (PERCPU_RSEQ_PUBLISH_CLOBBERS),
                       PERCPU_RSEQ_VALUE_64(v), );
}
/* Both from one CPU: a thread that is moved in between starts over. */
PERCPU_RSEQ_INLINE int percpu_rseq_stamp(const struct percpu_rseq_reach *reach, uint32_t *cpu,
                                         uint64_t *out)
{
    uint32_t status;
#ifdef PERCPU_RSEQ_STAMP_WORD
    uint64_t word, *p = &word;
#else
    void *p = (void *)0;
#endif
#if UINTPTR_MAX > 0xffffffffu
#define PERCPU_RSEQ_OUT_64 [out] "=&r"(*out)
#else
#define PERCPU_RSEQ_OUT_64 [out] PERCPU_RSEQ_HALF(low), [out_high] PERCPU_RSEQ_HALF(high)
    uint32_t low = 0, high = 0;
#endif
    PERCPU_RSEQ_SELF(reach);
    __asm__ volatile(PERCPU_RSEQ_SECTION_BEGIN("79f")
                         PERCPU_RSEQ_OP_STAMP PERCPU_RSEQ_SECTION_END PERCPU_RSEQ_SECTION_RESULT
                     : [status] "=r"(status), [cpu] "=&r"(*cpu), PERCPU_RSEQ_OUT_64
                     : PERCPU_RSEQ_SELF_OPERANDS, [p] PERCPU_RSEQ_INPUT(p)
                     : PERCPU_RSEQ_PUBLISH_CLOBBERS);
#if UINTPTR_MAX <= 0xffffffffu
    *out = (uint64_t)high << 32 | low;
#endif
    return status == PERCPU_RSEQ_COMMITTED ? 0 : -1;
}
#else
PERCPU_RSEQ_INLINE int percpu_rseq_publish(const struct percpu_rseq_reach *reach,
                                           struct percpu_rseq_stamped *p, uint64_t v,
                                           uintptr_t *out)
{
    (void)reach, (void)p, (void)v, (void)out;
    return -1;
}
PERCPU_RSEQ_INLINE int percpu_rseq_stamp(const struct percpu_rseq_reach *reach, uint32_t *cpu,
                                         uint64_t *out)
{
    (void)reach, (void)cpu, (void)out;
    return -1;
}
#endif
#endif /* PERCPU_RSEQ_SECTIONS */

/* ---- [G] Tools ------------------------------------------------------------------------------ */

/**
 * percpu_rseq_valgrind_untrack() - tell helgrind not to look for races in a range.
 *
 * Rows are read while others add to them, with plain loads that the processor makes atomic, and
 * helgrind knows no atomic loads. A valgrind client request: rotations that undo each other, which
 * valgrind recognises and everything else executes as nothing. Off any hot path.
 */
static inline void percpu_rseq_valgrind_untrack(const void *start, size_t length)
{
#if defined(__x86_64__) && defined(__LP64__) && PERCPU_RSEQ_LINUX
    /* 'HG' << 16, + 256 + the index of ARANGE_MAKE_UNTRACKED among helgrind's requests */
    uint64_t request[6] = {0x48470000u + 256 + 39, (uint64_t)(uintptr_t)start, length, 0, 0, 0};
    uint64_t result = 0;
    __asm__ volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\t"
                     "xchgq %%rbx, %%rbx"
                     : "+d"(result)
                     : "a"(request)
                     : "cc", "memory");
#else
    (void)start;
    (void)length;
#endif
}

/* ---- [H] Porting checklist ------------------------------------------------------------------ */
/*
 * 1. Copy the block of the nearest architecture. Look up the system call number and the signature
 *    in the kernel's uapi header of the architecture; the signature must be an instruction that
 *    traps, never one that compilers emit.
 * 2. percpu_rseq_tp() and PERCPU_RSEQ_TP_BIAS: thread pointer + bias must be mapped memory in
 *    every thread. The id is now read from an area and `make selftest` shows it. If the thread
 *    pointer costs a trap or a call, stop: leave the block out, and operations take the fallback.
 * 3. Pick three or four caller-saved registers, none that the linker or the PLT uses between 71
 *    and the commit: one for the descriptor's address (alive to the commit), one for cpu id and
 *    row, the rest scratch. What is left must do for up to six operands at -O0 -fPIC with a frame
 *    pointer; if it does not, let operands be in memory (PERCPU_RSEQ_INPUT, as on i386) or take
 *    registers that gcc does not give to operands (as in Thumb code). Where a register is no base
 *    (r0 on ppc, s390): PERCPU_RSEQ_SELF_OPERAND.
 * 4. SECTION_BEGIN: the address of 77 position-independently (no such address: through an operand
 *    that makes the compiler find the table, as on ppc and i386; if the compiler may keep the
 *    table anywhere, a call over a word that says how far, as on mips64, whose return register is
 *    then clobbered); a store of it to cpu_id + 4, of 64 bits, or on a 32-bit machine of the low
 *    word only (big-endian: cpu_id + 8); label 72 directly after it; a load of cpu_id; an unsigned
 *    compare with %[bound]: of 32 bits, or of registers that are both extended the same way.
 *    Whether the compiler keeps 32-bit operands extended is its business: mips64 yes, riscv64 and
 *    loongarch64 no (CMPXCHG_32). PERCPU_RSEQ_DESCRIPTOR_32 where there is no .quad of an
 *    address. Branches to `slow`: as far as a function is long, or into another section. Where a
 *    conditional one does not reach, branch around a jump, or around a jump to the site's slow_ip.
 *    Delay slots: `.set noreorder` around each branch with its nop, and restored there, since
 *    nothing follows the commit that could. Where gcc must know how long code is, no asm goto
 *    (PERCPU_RSEQ_RUN in [F]).
 * 5. The OP_ strings. Nothing but the last instruction may store to shared memory. No call, no
 *    stack, no instruction that the assembler may turn into several with the store among them.
 *    Weakly ordered machines: PUSH and POP, a barrier between the load of `closed` and all else;
 *    PUBLISH, one before the first store to the idle buffer, and one before, or in, the commit.
 *    Offsets in struct percpu_rseq_stamped: buffers begin at 8, on i386 at 4. A 32-bit row has
 *    lost the high bits of the cpu id: STAMP loads it again. A clock that can only be stored to
 *    memory: PERCPU_RSEQ_STAMP_WORD. None that user code can read: neither PUBLISH nor STAMP, nor
 *    TICKS.
 * 6. The stub: signature, then count, restart, give up. It uses what sections clobber, and no
 *    more: a register for its jumps too. The kernel keeps the mode that the section ran in (ARM,
 *    Thumb): so must the stub, and its address has no mode bit. Its unwind line:
 *    DW_CFA_val_expression for the return column = the word at descriptor register + 32 (32-bit
 *    big-endian: + 36). Where the return column is an ordinary register choose a pseudo register
 *    with .cfi_return_column: the unwinder's own for signals, below its count of registers.
 *    Registers by number: assemblers differ in the names that .cfi takes.
 * 7. Teach the tests: test/sections.h (a trap, instruction lengths, the instruction that arms, the
 *    register of the instruction pointer), test/descriptors.pl, test/kernels/rows.
 * 8. Prove it: the every-instruction test on a kernel of that architecture, at -O0 and -O2, with
 *    and without -fPIC, in each mode; then the storms (-icount; they must abort). See it fail with
 *    each PERCPU_BREAK_*. Until then PERCPU_RSEQ_SECTIONS stays 0.
 */

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* PERCPU_RSEQ_ABI_H */
