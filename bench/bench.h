/* SPDX-License-Identifier: MIT */
/*
 * bench.h - what the files of the benchmark share. See README in this directory.
 *
 * A group is a list of contenders that are measured in turn, A B C A B C ..., in one process, so
 * that a machine that drifts moves all of them. A row is what is known of one contender of one
 * group. A target compares two rows of a group, epoch by epoch.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>

#define NOINLINE __attribute__((noinline))
#define ARRAY_LENGTH(a) (sizeof(a) / sizeof *(a))

/* The compiler has to produce x, and no more. */
#define KEEP(x) __asm__ volatile("" : : "r"(x))
/* The compiler has to read and write x in memory here. */
#define IN_MEMORY(x) __asm__ volatile("" : "+m"(x))
#define COMPILER_BARRIER() __asm__ volatile("" : : : "memory")
/* One step of each contender's loop: 16 operations, so that the loop itself weighs the same. */
#define REP4(x) x x x x
#define REP16(x) REP4(x) REP4(x) REP4(x) REP4(x)
#define STEP 16

struct worker {
    unsigned id;
    int cpu;           /* pinned there, or -1 */
    uint64_t n;        /* operations to do */
    uint64_t measured; /* ns, if the contender measured itself */
    uint64_t cpu_ns;   /* of the last epoch */
    uint64_t wall_ns;
    uint64_t instructions, cycles;
    int perf[2]; /* file descriptors, or -1 */
    unsigned char pad[128];
};

enum {
    SECTIONS = 1, /* contender needs rseq in every thread */
    RACY = 2,     /* contender may lose operations; say how many */
    WALL = 4,     /* by wall time: it waits for others */
    RDTSCP = 8    /* contender needs that instruction */
};

struct contender {
    const char *name;
    void (*run)(struct worker *w, uint64_t n);
    uint64_t (*total)(void); /* operations counted since the start of the program; NULL: no check */
    int flags;
};

enum { MAX_REPS = 101, MAX_ROWS = 512, MAX_TARGETS = 128 };

struct row {
    char group[32], name[72], unit[12];
    unsigned threads, counters, reps;
    int pinned, racy, failed;
    int base; /* row that the ratio refers to */
    uint64_t ops, lost;
    double aborts;               /* all epochs */
    double instructions, cycles; /* per operation, or -1 */
    double steal;                /* share of the machine's time that the hypervisor took */
    char note[80];
    double sample[MAX_REPS];
};

enum target_kind { AT_MOST, AT_LEAST, PLUS }; /* a/b <= x, b/a >= x, a - b <= x */
struct target {
    int row, ref;
    enum target_kind kind;
    double bound;
};

struct options {
    unsigned reps, threads, counters;
    double time_ms;
    uint64_t ops;
    int unpinned;
    int cpus[1024], n_cpus; /* to pin to, in turn */
};
extern struct options opt;
extern unsigned ncpu; /* CPUs this process may use */
extern struct row results[MAX_ROWS];
extern int n_rows, n_targets;
extern struct target targets[MAX_TARGETS];

/*
 * Measure; return the first row's index, or -1 if none of the contenders can run. @base: an index.
 */
struct setting {
    unsigned threads, counters;
    int unpinned;
    int base;
    size_t stack; /* of threads; 0 the system's */
    int others;   /* threads besides the workers operate: no counting of aborts */
};
int measure(const char *group, const struct contender *list, size_t n, const struct setting *s);
struct row *row_new(const char *group, const char *name);
/* The row of a contender in the group whose first row is @first, or -1. */
int row_find(int first, const char *name);
void target_set(int first, const char *row, const char *ref, enum target_kind kind, double bound);
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

uint64_t now(int clock);
int sections_here(void);
extern int rdtscp_works;

struct bench_case {
    const char *name, *what;
    void (*run)(void);
    int refused; /* run in a child where rseq is refused */
};
extern const struct bench_case cases[];
extern const size_t n_cases;
void run_child(const char *name, int refused, unsigned simulate);

/* fallback.c: the same loops in a file without critical sections. */
void forced_this_cpu_inc(struct worker *w, uint64_t n);
extern uint64_t *pc_words; /* a per-CPU object */

/* vdso.c */
extern int (*vdso_getcpu)(unsigned *cpu, unsigned *node, void *unused);
void vdso_find(void);

#endif
