/* SPDX-License-Identifier: MIT */
/*
 * selftest - pin a worker to each allowed CPU and check the id that percpu.h reports there.
 *
 * Each worker reads many times on its own CPU, then moves to every other allowed CPU and reads
 * again. Exit status: 0 all ids match, 1 a mismatch, 2 bad usage.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CPUS 65536 /* what this program can handle; sets are allocated for it */
#define READS 100000

struct worker {
    pthread_t thread;
    int started;
    unsigned cpu, reported, node, cid;
    unsigned long reads, mismatches;
    unsigned wrong_cpu, wrong_id; /* the first mismatch */
    struct percpu_status status;
};

static unsigned *allowed;
static unsigned nr_allowed;
static struct percpu_counter done; /* moves, for the progress line */
static int start_gate;

static int pin(unsigned cpu)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    int failed;
    if (!set)
        return -1;
    CPU_ZERO_S(CPU_ALLOC_SIZE(MAX_CPUS), set);
    CPU_SET_S(cpu, CPU_ALLOC_SIZE(MAX_CPUS), set);
    failed = sched_setaffinity(0, size, set); /* 0: this thread */
    CPU_FREE(set);
    return failed;
}

static void read_many(struct worker *w, unsigned cpu, unsigned long n)
{
    for (unsigned long i = 0; i < n; i++) {
        unsigned id = this_cpu_id();
        if (id != cpu && w->mismatches++ == 0) {
            w->wrong_cpu = cpu;
            w->wrong_id = id;
        }
    }
    w->reads += n;
}

static void *work(void *arg)
{
    struct worker *w = (struct worker *)arg;
    while (!__atomic_load_n(&start_gate, __ATOMIC_ACQUIRE))
        sched_yield();
    if (pin(w->cpu)) {
        w->mismatches++;
        w->wrong_id = w->wrong_cpu = w->cpu;
        percpu_counter_add(&done, nr_allowed);
        return NULL;
    }
    read_many(w, w->cpu, READS);
    w->reported = this_cpu_id();
    w->node = this_cpu_node();
    w->cid = this_cpu_cid();
    w->status = percpu_status();
    for (unsigned i = 0; i < nr_allowed; i++) {
        if (pin(allowed[i]) == 0)
            read_many(w, allowed[i], READS / 10);
        percpu_counter_inc(&done);
    }
    return NULL;
}

static void find_allowed(void)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    if (!set || sched_getaffinity(0, size, set)) {
        perror("selftest: sched_getaffinity");
        exit(1);
    }
    nr_allowed = (unsigned)CPU_COUNT_S(size, set);
    allowed = (unsigned *)calloc(nr_allowed, sizeof *allowed);
    if (!allowed)
        abort();
    for (unsigned cpu = 0, n = 0; n < nr_allowed; cpu++)
        if (CPU_ISSET_S(cpu, size, set))
            allowed[n++] = cpu;
    CPU_FREE(set);
}

static const char *mode_name(const struct worker *w)
{
    static const char *const names[] = {"fallback", "libc", "own"};
    return names[w->status.mode];
}

static void print_json(const struct worker *w, const char *sentence)
{
    printf("{\"version\": \"%s\", \"workers\": [", PERCPU_VERSION_STRING);
    for (unsigned i = 0; i < nr_allowed; i++)
        printf("%s\n  {\"cpu\": %u, \"reported\": %u, \"node\": %u, \"cid\": %u, \"mode\": \"%s\", "
               "\"reads\": %lu, \"mismatches\": %lu, \"match\": %s}",
               i ? "," : "", w[i].cpu, w[i].reported, w[i].node, w[i].cid, mode_name(&w[i]),
               w[i].reads, w[i].mismatches, w[i].mismatches ? "false" : "true");
    printf("\n], \"status\": \"%s\"}\n", sentence); /* our sentences hold no quotes */
}

static void print_table(const struct worker *w, const char *sentence)
{
    printf("%6s %9s %5s %5s  %-9s %9s  %s\n", "cpu", "reported", "node", "cid", "mode", "reads",
           "match");
    for (unsigned i = 0; i < nr_allowed; i++) {
        printf("%6u %9u %5u %5u  %-9s %9lu  ", w[i].cpu, w[i].reported, w[i].node, w[i].cid,
               mode_name(&w[i]), w[i].reads);
        if (w[i].mismatches)
            printf("NO: %lu times, first on CPU %u: %u\n", w[i].mismatches, w[i].wrong_cpu,
                   w[i].wrong_id);
        else
            printf("yes\n");
    }
    printf("%s\n", sentence);
}

static void usage(FILE *to)
{
    fprintf(to, "usage: selftest [--json] [--expect fallback|libc|own] [--help]\n"
                "Pin a worker to each allowed CPU and check the CPU id that percpu.h reports.\n"
                "  --json         one JSON object instead of a table\n"
                "  --expect MODE  fail unless every worker is in this mode\n"
                "exit status: 0 all match, 1 a mismatch, 2 bad usage\n");
}

int main(int argc, char **argv)
{
    struct worker *workers;
    const char *expect = NULL;
    char sentence[512];
    int json = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) {
            json = 1;
        } else if (!strcmp(argv[i], "--expect") && i + 1 < argc &&
                   (!strcmp(argv[i + 1], "fallback") || !strcmp(argv[i + 1], "libc") ||
                    !strcmp(argv[i + 1], "own"))) {
            expect = argv[++i];
        } else if (!strcmp(argv[i], "--help")) {
            usage(stdout);
            return 0;
        } else {
            fprintf(stderr, "selftest: bad argument: %s\n", argv[i]);
            usage(stderr);
            return 2;
        }
    }
    find_allowed();
    workers = (struct worker *)calloc(nr_allowed, sizeof *workers);
    if (!workers)
        abort();
    for (unsigned i = 0; i < nr_allowed; i++) {
        workers[i].cpu = allowed[i];
        workers[i].started = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
        failed |= !workers[i].started;
    }
    __atomic_store_n(&start_gate, 1, __ATOMIC_RELEASE);
    if (isatty(2))
        for (unsigned long n, all = (unsigned long)nr_allowed * nr_allowed; !failed;
             usleep(100000)) {
            n = (unsigned long)percpu_counter_sum(&done);
            fprintf(stderr, "\r%lu of %lu moves%s", n, all, n >= all ? "\n" : "");
            if (n >= all)
                break;
        }
    for (unsigned i = 0; i < nr_allowed; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    percpu_status_format(sentence, sizeof sentence);
    (json ? print_json : print_table)(workers, sentence);
    for (unsigned i = 0; i < nr_allowed; i++) {
        failed |= workers[i].mismatches != 0 || workers[i].reads == 0;
        failed |= expect && strcmp(expect, mode_name(&workers[i])) != 0;
    }
    return failed;
}
