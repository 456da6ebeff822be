/* SPDX-License-Identifier: MIT */
/*
 * sections.h - put a trap on instructions of critical sections. Include percpu.h first. C and C++.
 *
 * A trap's signal is delivered with the instruction pointer at the trapped instruction. If that is
 * inside an armed section the kernel aborts the section before the handler runs: a preemption
 * exactly there, at will. Finds the sections through their descriptors, like any other tool.
 */
#ifndef SECTIONS_H
#define SECTIONS_H

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if PERCPU_RSEQ_SECTIONS && (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv) ||   \
                             defined(__powerpc64__) || defined(__s390x__) || defined(__i386__) || \
                             defined(__arm__) || defined(__loongarch__) || defined(__mips__))
#define SECTIONS_CAN_TRAP 1

/* The linker's names for the ends of the descriptor section. */
extern const struct percpu_rseq_site sites_begin[] __asm__("__start___rseq_cs")
    __attribute__((visibility("hidden")));
extern const struct percpu_rseq_site sites_end[] __asm__("__stop___rseq_cs")
    __attribute__((visibility("hidden")));

/*
 * The trap: its bytes, and if unlike most, the signal, and by how much the instruction pointer is
 * past its beginning then. x86 has two kinds of one byte. int3 leaves the instruction pointer one
 * byte into the instruction; hlt, which user code may not execute, exactly at it.
 */
#if defined(__x86_64__) || defined(__i386__)
#define TRAP_KINDS 2
#define TRAP_SIZE 1
#define TRAP_NAMES "int3", "hlt"
#define TRAP_BYTES 0xcc, 0xf4
#define TRAP_SIGNALS SIGTRAP, SIGSEGV
#define TRAP_SKIPS 1, 0
#elif defined(__aarch64__)
#define TRAP_SIZE 4
#define TRAP_NAMES "brk"
#define TRAP_BYTES 0x00, 0x00, 0x20, 0xd4
#elif defined(__powerpc64__)
#define TRAP_SIZE 4
#define TRAP_NAMES "trap"
#define TRAP_BYTES 0x08, 0x00, 0xe0, 0x7f
#elif defined(__s390x__) /* the kernel's breakpoint; leaves the address right behind itself */
#define TRAP_SIZE 2
#define TRAP_NAMES "0x0001"
#define TRAP_BYTES 0x00, 0x01
#define TRAP_SIGNALS SIGILL /* SIGTRAP under a debugger only */
#define TRAP_SKIPS 2
#elif defined(__thumb__) /* the kernel's breakpoint, and the same in ARM */
#define TRAP_SIZE 2
#define TRAP_NAMES "0xde01"
#define TRAP_BYTES 0x01, 0xde
#elif defined(__arm__)
#define TRAP_SIZE 4
#define TRAP_NAMES "0xe7f001f0"
#define TRAP_BYTES 0xf0, 0x01, 0xf0, 0xe7
#elif defined(__loongarch__)
#define TRAP_SIZE 4
#define TRAP_NAMES "break"
#define TRAP_BYTES 0x00, 0x00, 0x2a, 0x00
#elif defined(__mips__)
#define TRAP_SIZE 4
#define TRAP_NAMES "break"
#ifdef __MIPSEB__
#define TRAP_BYTES 0x00, 0x00, 0x00, 0x0d
#else
#define TRAP_BYTES 0x0d, 0x00, 0x00, 0x00
#endif
#else
#define TRAP_NAMES "ebreak"
#ifdef __riscv_compressed
#define TRAP_SIZE 2
#define TRAP_BYTES 0x02, 0x90
#else
#define TRAP_SIZE 4
#define TRAP_BYTES 0x73, 0x00, 0x10, 0x00
#endif
#endif
#ifndef TRAP_KINDS
#define TRAP_KINDS 1
#endif
#ifndef TRAP_SIGNALS
#define TRAP_SIGNALS SIGTRAP
#define TRAP_SKIPS 0
#endif
static const char *const trap_names[TRAP_KINDS] = {TRAP_NAMES};
static const unsigned char trap_bytes[TRAP_KINDS * TRAP_SIZE] = {TRAP_BYTES};
static const int trap_signals[TRAP_KINDS] = {TRAP_SIGNALS};
static const unsigned trap_skips[TRAP_KINDS] = {TRAP_SKIPS};

/* The interrupted instruction pointer, as a place to write to. */
__attribute__((unused)) static uintptr_t trap_ip(const void *context)
{
    const ucontext_t *uc = (const ucontext_t *)context;
#if defined(__x86_64__)
    return (uintptr_t)uc->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)uc->uc_mcontext.pc;
#elif defined(__powerpc64__)
    return (uintptr_t)uc->uc_mcontext.gp_regs[32]; /* nip */
#elif defined(__s390x__)
    return (uintptr_t)uc->uc_mcontext.psw.addr;
#elif defined(__i386__)
    return (uintptr_t)uc->uc_mcontext.gregs[REG_EIP];
#elif defined(__arm__)
    return (uintptr_t)uc->uc_mcontext.arm_pc;
#elif defined(__loongarch__)
    return (uintptr_t)uc->uc_mcontext.__pc;
#elif defined(__mips__)
    return (uintptr_t)uc->uc_mcontext.pc;
#else
    return (uintptr_t)uc->uc_mcontext.__gregs[0];
#endif
}

__attribute__((unused)) static void trap_set_ip(void *context, uintptr_t ip)
{
    ucontext_t *uc = (ucontext_t *)context;
#if defined(__x86_64__)
    uc->uc_mcontext.gregs[REG_RIP] = (greg_t)ip;
#elif defined(__aarch64__)
    uc->uc_mcontext.pc = ip;
#elif defined(__powerpc64__)
    uc->uc_mcontext.gp_regs[32] = ip;
#elif defined(__s390x__)
    uc->uc_mcontext.psw.addr = ip;
#elif defined(__i386__)
    uc->uc_mcontext.gregs[REG_EIP] = (greg_t)ip;
#elif defined(__arm__)
    uc->uc_mcontext.arm_pc = ip;
#elif defined(__loongarch__)
    uc->uc_mcontext.__pc = ip;
#elif defined(__mips__)
    uc->uc_mcontext.pc = ip;
#else
    uc->uc_mcontext.__gregs[0] = ip;
#endif
}

#ifdef __mips__
static uint32_t insn_word(const unsigned char *i)
{
    uint32_t word;
    memcpy(&word, i, sizeof word);
    return word;
}
#endif

/*
 * The length of the instruction at @i; 0: not one that sections consist of. On x86 these are the
 * encodings of rseq_abi.h's strings, with any registers and immediates; check_disasm.sh compares
 * with objdump.
 */
__attribute__((unused)) static unsigned insn_length(const unsigned char *i)
{
#if defined(__x86_64__) || defined(__i386__)
    const unsigned char *s = i;
    unsigned imm = 0, mod, rm;
#if defined(__x86_64__)
    if (*s == 0x64) /* fs: */
        s++;
    if ((*s & 0xf0) == 0x40) /* rex */
        s++;
#else
    if ((*s & 0xf8) == 0x40) /* inc */
        return 1;
    if ((*s & 0xf8) == 0xb8 || *s == 0xa1) /* mov: imm32, or eax from an address */
        return 5;
    if (*s == 0xf0) /* lock */
        s++;
#endif
    switch (*s++) {
    case 0x90: /* nop */
        return (unsigned)(s - i);
    case 0x05:
    case 0x0d:
    case 0x25:
    case 0x3d: /* add, or, and, cmp: eax, imm32 */
        return (unsigned)(s - i) + 4;
    case 0x72:
    case 0x73:
    case 0x74:
    case 0x75: /* jb, jae, je, jne */
        return (unsigned)(s - i) + 1;
    case 0x0f:
        if (*s == 0x31) /* rdtsc */
            return (unsigned)(s - i) + 1;
        if (s[0] == 0xae && s[1] == 0xe8) /* lfence */
            return (unsigned)(s - i) + 2;
        return *s >= 0x72 + 0x10 && *s <= 0x75 + 0x10 ? (unsigned)(s - i) + 5 : 0;
    case 0x01:
    case 0x03:
    case 0x09:
    case 0x0b:
    case 0x21:
    case 0x23: /* add, or, and */
    case 0x31:
    case 0x33:
    case 0x39:
    case 0x3b:
    case 0x85: /* xor, cmp, test */
    case 0x89:
    case 0x8b:
    case 0x8d: /* mov, lea */
    case 0xd1:
    case 0xff: /* shift by 1, inc */
        break;
    case 0x83:
    case 0xc1: /* arithmetic, shift: imm8 */
        imm = 1;
        break;
    case 0x81:
    case 0xc7: /* arithmetic, mov: imm32 */
        imm = 4;
        break;
    default:
        return 0;
    }
    mod = *s >> 6;
    rm = *s++ & 7;
    if (mod != 3 && rm == 4) { /* a SIB byte; without a base it has a displacement */
        if (mod == 0 && (*s & 7) == 5)
            imm += 4;
        s++;
    } else if (mod == 0 && rm == 5) { /* rip-relative */
        imm += 4;
    }
    imm += mod == 1 ? 1 : mod == 2 ? 4 : 0;
    return (unsigned)(s - i) + imm;
#elif defined(__aarch64__)
    (void)i;
    return 4;
#elif defined(__arm__)
    return TRAP_SIZE == 4 || i[1] >= 0xe8 ? 4 : 2;
#elif defined(__powerpc64__)
    return i[3] >> 2 == 1 ? 8 : 4;
#elif defined(__s390x__)
    return i[0] < 0x40 ? 2 : i[0] < 0xc0 ? 4 : 6;
#elif defined(__loongarch__)
    (void)i;
    return 4;
#elif defined(__mips__)
    /* A branch and its delay slot are one to the kernel; bal has a word behind that it skips. */
    uint32_t word = insn_word(i), op = word >> 26;
    return word >> 16 == 0x0411 ? 12 : op == 4 || op == 5 || word == 0x01c00008 ? 8 : 4;
#else
    return (i[0] & 3) == 3 ? 4 : 2;
#endif
}

/* An instruction that a section executes only on its way out to the slow path. */
__attribute__((unused)) static int insn_is_exit(const unsigned char *i)
{
#if defined(__riscv)
    return (i[0] & 0x7f) == 0x6f || ((i[0] & 3) == 1 && (i[1] & 0xe0) == 0xa0); /* j */
#elif defined(__powerpc64__)
    return i[3] >> 2 == 18; /* b */
#elif defined(__loongarch__)
    return i[3] >> 2 == 20; /* b */
#elif defined(__mips__)
    return insn_word(i) == 0xdd8e0028 || insn_word(i) == 0x01c00008; /* ld $14, 40($12); jr $14 */
#else
    (void)i;
    return 0;
#endif
}

/*
 * Instruction boundaries of a section: [0, start) arm it, [start, post) are inside, [post] after.
 * Where the inside starts is not taken from the descriptor, which may be wrong about it: right
 * after the first store, which arms.
 */
#define MAX_BOUNDARIES 32
struct boundaries {
    unsigned start, post;
    unsigned char *at[MAX_BOUNDARIES];
};

/* Is instruction number @n, from the restart address on, the store? */
__attribute__((unused)) static int insn_arms(const unsigned char *i, unsigned n)
{
#if defined(__x86_64__)
    (void)i;
    return n == 1; /* lea, mov */
#elif defined(__aarch64__)
    (void)i;
    return n == 2; /* adrp, add, str */
#elif defined(__arm__)
    (void)i;
    return n == 3; /* movw, movt, add, str */
#elif defined(__i386__)
    (void)n;
    return i[0] == 0x89 && i[1] == 0x48; /* mov %ecx, 4(%eax) */
#elif defined(__powerpc64__)
    (void)n;
    return i[3] >> 2 == 62; /* std */
#elif defined(__s390x__)
    (void)i;
    return n == 1; /* larl, stg */
#elif defined(__loongarch__)
    (void)n; /* the linker may make one of the two that load the address */
    return i[3] == 0x29 && (i[2] & 0xc0) == 0xc0; /* st.d */
#elif defined(__mips__)
    (void)n;
    return insn_word(i) >> 26 == 63; /* sd */
#else
    (void)n; /* the linker may make one of the two that load the address */
    return (i[0] & 0x7f) == 0x23 || ((i[0] & 3) == 0 && (i[1] & 0xe0) == 0xe0); /* sd */
#endif
}

/* Return: 1; 0 on an instruction that is unknown here, or that straddles the end. */
__attribute__((unused)) static int find_boundaries(const struct percpu_rseq_site *site,
                                                   struct boundaries *b)
{
    uintptr_t post = (uintptr_t)(site->descriptor.start_ip + site->descriptor.post_commit_offset);
    uintptr_t at = (uintptr_t)site->restart_ip;
    unsigned n = 0;
    b->start = 0;
    while (at < post && n < MAX_BOUNDARIES - 1) {
        unsigned length = insn_length((const unsigned char *)at);
        if (b->start == 0 && insn_arms((const unsigned char *)at, n))
            b->start = n + 1;
        b->at[n++] = (unsigned char *)at;
        if (length < TRAP_SIZE)
            return 0;
        at += length;
    }
    b->at[n] = (unsigned char *)at;
    b->post = n;
    return at == post && b->start != 0 && n > b->start;
}

/* Make the code of all sections writable. Return: 1; 0 where the system refuses. */
__attribute__((unused)) static int make_sections_writable(void)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (const struct percpu_rseq_site *s = sites_begin; s < sites_end; s++) {
        uintptr_t low = (uintptr_t)s->restart_ip & ~(page - 1);
        uintptr_t high = (uintptr_t)s->descriptor.start_ip;
        high += (uintptr_t)s->descriptor.post_commit_offset + 16;
        if (mprotect((void *)low, high - low, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
            return 0;
    }
    return 1;
}

/* Traps that are in place, and what was there. */
#define MAX_TRAPS 1024
static struct trap {
    unsigned char *at;
    unsigned char was[TRAP_SIZE];
} traps[MAX_TRAPS];
static unsigned traps_set;

static void write_code(unsigned char *at, const unsigned char *bytes)
{
    for (unsigned i = 0; i < TRAP_SIZE; i++)
        *(volatile unsigned char *)(at + i) = bytes[i];
    __builtin___clear_cache((char *)at, (char *)at + TRAP_SIZE);
}

__attribute__((unused)) static void set_trap(unsigned char *at, int kind)
{
    if (traps_set == MAX_TRAPS)
        abort();
    traps[traps_set].at = at;
    memcpy(traps[traps_set].was, at, TRAP_SIZE);
    traps_set++;
    write_code(at, trap_bytes + kind * TRAP_SIZE);
}

__attribute__((unused)) static void remove_traps(void)
{
    while (traps_set) {
        traps_set--;
        write_code(traps[traps_set].at, traps[traps_set].was);
    }
}

#else
#define SECTIONS_CAN_TRAP 0
#endif
#endif
