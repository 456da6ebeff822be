/* SPDX-License-Identifier: MIT */
/*
 * bench.c - the frame: options, threads, measuring, judging, printing. What is measured is in
 * cases.c.
 */
#include "percpu.h"
#include "bench.h"
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#ifndef BENCH_BUILD
#define BENCH_BUILD "not recorded"
#endif
#ifndef BENCH_COMMIT
#define BENCH_COMMIT "not recorded"
#endif

struct options opt = {21, 0, 0, 4, 0, 0, {0}, 0};
unsigned ncpu;
struct row results[MAX_ROWS];
struct target targets[MAX_TARGETS];
int n_rows, n_targets;

static const char *format = "table", *pattern = "*", *self, *save;
static char command[512];
static int child; /* print rows for the parent to read */
static int progress_done, progress_all;

void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "bench: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

uint64_t now(int clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int sections_here(void)
{
    return percpu_thread_register() == 0;
}

/* ---- The processor's own counters, where the kernel gives them */

static int perf_error; /* errno, once refused */

static int perf_open(uint64_t what)
{
    struct perf_event_attr a;
    memset(&a, 0, sizeof a);
    a.type = PERF_TYPE_HARDWARE;
    a.size = sizeof a;
    a.config = what;
    a.exclude_kernel = a.exclude_hv = 1;
    int fd = (int)syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
    if (fd < 0)
        perf_error = errno;
    return fd;
}

static uint64_t perf_read(int fd)
{
    uint64_t v = 0;
    return fd >= 0 && read(fd, &v, sizeof v) == sizeof v ? v : 0;
}

/* ---- Threads */

static struct pool {
    struct worker *w;
    unsigned n;
    int quit;
    void (*run)(struct worker *, uint64_t);
    pthread_barrier_t start, stop;
} pool;

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail("cannot run on CPU %d: %s", cpu, strerror(errno));
}

static void *work(void *arg)
{
    struct worker *w = (struct worker *)arg;
    if (w->cpu >= 0)
        pin(w->cpu);
    (void)percpu_thread_register(); /* what it costs is in the case first_use */
    w->perf[0] = perf_error ? -1 : perf_open(PERF_COUNT_HW_INSTRUCTIONS);
    w->perf[1] = perf_error ? -1 : perf_open(PERF_COUNT_HW_CPU_CYCLES);
    for (;;) {
        pthread_barrier_wait(&pool.start);
        if (pool.quit)
            break;
        uint64_t i = perf_read(w->perf[0]), c = perf_read(w->perf[1]);
        uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
        w->measured = 0;
        pool.run(w, w->n);
        w->cpu_ns = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
        w->wall_ns = now(CLOCK_MONOTONIC) - wall;
        w->cycles = perf_read(w->perf[1]) - c;
        w->instructions = perf_read(w->perf[0]) - i;
        pthread_barrier_wait(&pool.stop);
    }
    close(w->perf[0]);
    close(w->perf[1]);
    return NULL;
}

static void pool_start(const struct setting *s, pthread_t *threads)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    if (s->stack)
        pthread_attr_setstacksize(&attr, s->stack);
    pool.n = s->threads;
    pool.quit = 0;
    pool.w = (struct worker *)aligned_alloc(64, (s->threads * sizeof *pool.w + 63) & ~(size_t)63);
    pthread_barrier_init(&pool.start, NULL, s->threads + 1);
    pthread_barrier_init(&pool.stop, NULL, s->threads + 1);
    for (unsigned i = 0; i < s->threads; i++) {
        struct worker *w = &pool.w[i];
        memset(w, 0, sizeof *w);
        w->id = i;
        w->cpu = s->unpinned ? -1 : opt.cpus[i % (unsigned)opt.n_cpus];
        int error = pthread_create(&threads[i], &attr, work, w);
        if (error)
            fail("thread %u of %u: %s", i + 1, s->threads, strerror(error));
    }
    pthread_attr_destroy(&attr);
}

static void pool_stop(const pthread_t *threads)
{
    pool.quit = 1;
    pthread_barrier_wait(&pool.start);
    for (unsigned i = 0; i < pool.n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&pool.start);
    pthread_barrier_destroy(&pool.stop);
    free(pool.w);
}

/* All threads do n operations. Return: ns per operation, the mean over threads. */
static double epoch(const struct contender *c, uint64_t n)
{
    uint64_t ns = 0;
    pool.run = c->run;
    for (unsigned i = 0; i < pool.n; i++)
        pool.w[i].n = n;
    pthread_barrier_wait(&pool.start);
    pthread_barrier_wait(&pool.stop);
    for (unsigned i = 0; i < pool.n; i++) {
        struct worker *w = &pool.w[i];
        ns += w->measured ? w->measured : c->flags & WALL ? w->wall_ns : w->cpu_ns;
    }
    return (double)ns / ((double)n * pool.n);
}

/* The shortest of a few epochs, so that a hiccup does not pass for a slow contender. */
static double shortest(const struct contender *c, uint64_t n, double enough)
{
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double ns = epoch(c, n) * (double)n;
        best = i && best < ns ? best : ns;
        if (best < enough)
            break;
    }
    return best;
}

/* How many operations take --time-ms; a multiple of STEP. */
static uint64_t calibrate(const struct contender *c)
{
    uint64_t n = STEP;
    double want = opt.time_ms * 1e6, ns;
    if (opt.ops)
        return (opt.ops + STEP - 1) / STEP * STEP;
    (void)epoch(c, n); /* first touches */
    while ((ns = shortest(c, n, want / 4)) < want / 4 && n < (uint64_t)1 << 34)
        n *= ns < want / 64 ? 8 : 2;
    n = (uint64_t)((double)n * want / (ns > 1 ? ns : 1)) / STEP * STEP;
    return n ? n : STEP;
}

/* ---- Measuring */

/* Ticks that the hypervisor took, and all. */
static void steal_read(double v[2])
{
    FILE *f = fopen("/proc/stat", "r");
    unsigned long long t[8] = {0};
    v[0] = v[1] = 0;
    if (!f)
        return;
    if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4],
               &t[5], &t[6], &t[7]) == 8) {
        v[0] = (double)t[7];
        for (int i = 0; i < 8; i++)
            v[1] += (double)t[i];
    }
    fclose(f);
}

static void progress(const char *group)
{
    if (!child && isatty(2))
        fprintf(stderr, "\r\033[K[%d/%d] %s", progress_done, progress_all, group);
}

struct row *row_new(const char *group, const char *name)
{
    if (n_rows == MAX_ROWS)
        fail("too many rows");
    struct row *r = &results[n_rows];
    memset(r, 0, sizeof *r);
    snprintf(r->group, sizeof r->group, "%s", group);
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->unit, sizeof r->unit, "ns/op");
    r->threads = r->counters = 1;
    r->base = n_rows++;
    r->instructions = r->cycles = -1;
    return r;
}

static void one_epoch(struct row *r, const struct contender *c, unsigned rep, uint64_t n)
{
    uint64_t before = c->total ? c->total() : 0;
    unsigned long aborts = percpu_status().aborts;
    r->sample[rep] = epoch(c, n);
    r->aborts += (double)(uint32_t)(percpu_status().aborts - aborts);
    r->ops += n * pool.n;
    if (c->total)
        r->lost += n * pool.n - (c->total() - before);
    for (unsigned i = 0; i < pool.n && pool.w[i].instructions; i++) {
        r->instructions = (double)pool.w[i].instructions / (double)n;
        r->cycles = (double)pool.w[i].cycles / (double)n;
    }
}

int measure(const char *group, const struct contender *all, size_t n_all,
            const struct setting *setting)
{
    struct contender list[32];
    uint64_t n[32];
    struct setting s = *setting;
    double steal[2], later[2];
    int first = n_rows, sections = sections_here();
    size_t count = 0, base = 0;
    for (size_t i = 0; i < n_all; i++) {
        if ((all[i].flags & SECTIONS && !sections) || (all[i].flags & RDTSCP && !rdtscp_works))
            continue;
        if ((int)i == s.base)
            base = count;
        list[count++] = all[i];
    }
    if (!count)
        return -1;
    pthread_t *threads = (pthread_t *)calloc(s.threads, sizeof *threads);
    progress(group);
    pool_start(&s, threads);
    steal_read(steal);
    for (size_t i = 0; i < count; i++) {
        struct row *r = row_new(group, list[i].name);
        r->threads = s.threads;
        r->counters = s.counters;
        r->pinned = !s.unpinned;
        r->racy = list[i].flags & RACY;
        r->base = first + (int)base;
        r->reps = opt.reps;
        n[i] = calibrate(&list[i]);
    }
    for (unsigned rep = 0; rep < opt.reps; rep++)
        for (size_t i = 0; i < count; i++)
            one_epoch(&results[first + (int)i], &list[i], rep, n[i]);
    steal_read(later);
    for (int i = first; i < n_rows; i++) {
        results[i].steal = later[1] > steal[1] ? (later[0] - steal[0]) / (later[1] - steal[1]) : 0;
        results[i].failed = results[i].lost && !results[i].racy;
    }
    for (int i = first; s.others && i < n_rows; i++)
        results[i].aborts = -1;
    pool_stop(threads);
    free(threads);
    return first;
}

int row_find(int first, const char *name)
{
    for (int i = first; first >= 0 && i < n_rows && !strcmp(results[i].group, results[first].group);
         i++)
        if (!strcmp(results[i].name, name))
            return i;
    return -1;
}

void target_set(int first, const char *row, const char *ref, enum target_kind kind, double bound)
{
    int a = row_find(first, row), b = ref ? row_find(first, ref) : -1;
    if (a < 0 || (ref && b < 0))
        return;
    if (n_targets == MAX_TARGETS)
        fail("too many targets");
    struct target *t = &targets[n_targets++];
    t->row = a;
    t->ref = b;
    t->kind = kind;
    t->bound = bound;
}

/* ---- Judging */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    double median, error; /* error: median of |x / median - 1| */
    double low, high;     /* the true median is in between, at 95 % or better */
};

/*
 * How many samples may be left out at each end: fewer lie beyond the true median in 95 % of cases.
 */
static unsigned median_rank(unsigned n)
{
    double term = 1, sum = 0;
    unsigned k = 0;
    for (unsigned i = 0; i < n; i++)
        term /= 2;
    for (; k < n / 2; k++) {
        sum += term; /* the chance of exactly k on one side */
        if (sum > 0.025)
            break;
        term *= (double)(n - k) / (k + 1);
    }
    return k ? k - 1 : 0;
}

static struct summary summarize(const double *sample, unsigned n)
{
    struct summary s = {0, 0, 0, 0};
    double v[MAX_REPS], deviation[MAX_REPS];
    if (!n)
        return s;
    memcpy(v, sample, n * sizeof *v);
    qsort(v, n, sizeof *v, ascending);
    s.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    for (unsigned i = 0; i < n; i++)
        deviation[i] = s.median != 0 ? __builtin_fabs(v[i] / s.median - 1) : 0;
    qsort(deviation, n, sizeof *deviation, ascending);
    s.error = deviation[n / 2];
    unsigned rank = median_rank(n);
    s.low = v[rank];
    s.high = v[n - 1 - rank];
    return s;
}

/* Epoch by epoch: a / b, b / a or a - b. */
static struct summary compare(const struct row *a, const struct row *b, enum target_kind kind)
{
    double v[MAX_REPS];
    unsigned n = a->reps < b->reps ? a->reps : b->reps;
    for (unsigned i = 0; i < n; i++)
        v[i] = kind == AT_MOST    ? a->sample[i] / b->sample[i]
               : kind == AT_LEAST ? b->sample[i] / a->sample[i]
                                  : a->sample[i] - b->sample[i];
    return summarize(v, n);
}

static struct summary target_value(const struct target *t)
{
    return t->ref >= 0 ? compare(&results[t->row], &results[t->ref], t->kind)
                       : summarize(results[t->row].sample, results[t->row].reps);
}

enum { STEAL_LIMIT = 3, SPREAD_LIMIT = 15 }; /* per cent */

static int noisy(const struct row *r)
{
    return r->steal * 100 > STEAL_LIMIT || summarize(r->sample, r->reps).error * 100 > SPREAD_LIMIT;
}

static const char *verdict(const struct target *t)
{
    struct summary v = target_value(t);
    const struct row *a = &results[t->row], *b = t->ref >= 0 ? &results[t->ref] : a;
    int up = t->kind == AT_LEAST; /* more is better */
    if (a->failed)
        return "not met";
    if (noisy(a) || noisy(b))
        return "inconclusive";
    if (up ? v.low >= t->bound : v.high <= t->bound)
        return "met";
    return (up ? v.high < t->bound : v.low > t->bound) ? "not met" : "inconclusive";
}

static void target_text(const struct target *t, char *out, size_t size)
{
    const char *unit = results[t->row].unit;
    if (t->ref < 0)
        snprintf(out, size, "%s %g %s", t->kind == AT_LEAST ? "at least" : "at most", t->bound,
                 unit);
    else if (t->kind == PLUS)
        snprintf(out, size, "at most %g ns more than %s", t->bound, results[t->ref].name);
    else if (t->kind == AT_MOST)
        snprintf(out, size, "at most %g x %s", t->bound, results[t->ref].name);
    else
        snprintf(out, size, "at least %g x faster than %s", t->bound, results[t->ref].name);
}

/* ---- Printing */

static void first_line_with(const char *path, const char *key, char *out, size_t size)
{
    char line[512];
    FILE *f = fopen(path, "r");
    snprintf(out, size, "unknown");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) {
            char *at = key[0] ? strchr(line, ':') : line - 1;
            snprintf(out, size, "%s", at ? at + 1 + (key[0] ? 1 : 0) : line);
            out[strcspn(out, "\n")] = 0;
            break;
        }
    if (f)
        fclose(f);
}

static const char *compiler(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

typedef void emit_fn(const char *key, const char *value);

static void header(emit_fn *emit)
{
    char text[768];
    struct utsname u;
    first_line_with("/proc/cpuinfo", "model name", text, sizeof text);
    snprintf(text + strlen(text), sizeof text - strlen(text), ", %u CPUs allowed of %u", ncpu,
             percpu_nr_cpus());
    emit("cpu", text);
    uname(&u);
    snprintf(text, sizeof text, "%s %s %s", u.sysname, u.release, u.machine);
    emit("kernel", text);
#ifdef __GLIBC__
    snprintf(text, sizeof text, "glibc %s", gnu_get_libc_version());
    emit("libc", text);
#else
    emit("libc", "musl, or another without a name");
#endif
    emit("compiler", compiler());
    emit("flags", BENCH_BUILD);
    emit("commit", BENCH_COMMIT);
#ifdef BENCH_LIBRSEQ
    emit("librseq", BENCH_LIBRSEQ);
#endif
    percpu_status_format(text, sizeof text);
    emit("mode", text);
    emit("command", command);
    first_line_with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "", text, sizeof text);
    emit("governor", text);
    if (perf_error) {
        snprintf(text, sizeof text, "none: perf_event_open: %s", strerror(perf_error));
        emit("counters", text);
    }
}

static void warnings(emit_fn *emit)
{
    char text[256], governor[64];
    int spread = 0, steal = 0;
    for (int i = 0; i < n_rows; i++) {
        spread += summarize(results[i].sample, results[i].reps).error * 100 > SPREAD_LIMIT;
        steal += results[i].steal * 100 > STEAL_LIMIT;
    }
    if (spread) {
        snprintf(text, sizeof text,
                 "%d of %d rows spread by more than %d %%; no verdict on those: close what "
                 "else runs, or raise --time-ms and --reps",
                 spread, n_rows, SPREAD_LIMIT);
        emit("warning", text);
    }
    if (steal) {
        snprintf(text, sizeof text,
                 "the hypervisor took more than %d %% of the time in %d rows; no verdict on "
                 "those",
                 STEAL_LIMIT, steal);
        emit("warning", text);
    }
    first_line_with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "", governor,
                    sizeof governor);
    if (strcmp(governor, "performance") && strcmp(governor, "unknown")) {
        snprintf(text, sizeof text, "frequency governor is %s, not performance", governor);
        emit("warning", text);
    }
}

/* What a row says besides its number. */
static void remarks(const struct row *r, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    if (r->failed)
        at += (size_t)snprintf(out + at, size - at, "WRONG SUM; ");
    if (r->racy && r->threads > 1)
        at += (size_t)snprintf(out + at, size - at, "racy, lost %.3g %%; ",
                               r->ops ? 100 * (double)(int64_t)r->lost / (double)r->ops : 0.);
    else if (r->racy)
        at += (size_t)snprintf(out + at, size - at, "racy; ");
    if (r->aborts > 0 && r->ops)
        at += (size_t)snprintf(out + at, size - at, "%.3g aborts/M; ",
                               r->aborts * 1e6 / (double)r->ops);
    if (r->instructions > 0)
        at += (size_t)snprintf(out + at, size - at, "%.1f insns, %.1f cycles; ", r->instructions,
                               r->cycles);
    at += (size_t)snprintf(out + at, size - at, "%s", r->note);
    if (at >= 2 && at < size && out[at - 2] == ';')
        out[at - 2] = 0;
}

static void table_key(const char *key, const char *value)
{
    printf("%-9s %s\n", key, value);
}

static void table_targets(int row)
{
    char text[160];
    for (int k = 0; k < n_targets; k++) {
        if (targets[k].row != row)
            continue;
        struct summary v = target_value(&targets[k]);
        const char *judged = verdict(&targets[k]);
        target_text(&targets[k], text, sizeof text);
        if (!strcmp(judged, "inconclusive"))
            printf("    target: %s: inconclusive\n", text);
        else
            printf("    target: %s: %.3g [%.3g, %.3g] %s\n", text, v.median, v.low, v.high, judged);
    }
}

static void table(void)
{
    char text[200];
    int count[3] = {0, 0, 0};
    header(table_key);
    for (int i = 0; i < n_rows; i++) {
        const struct row *r = &results[i];
        struct summary s = summarize(r->sample, r->reps);
        if (!i || strcmp(r->group, results[i - 1].group) || r->threads != results[i - 1].threads ||
            r->counters != results[i - 1].counters)
            printf("\n%s: %u thread%s%s, %u counter%s\n%-52s %9s %6s %7s\n", r->group, r->threads,
                   r->threads == 1 ? "" : "s", r->pinned ? ", pinned" : ", not pinned", r->counters,
                   r->counters == 1 ? "" : "s", "", r->unit, "+-%", "ratio");
        remarks(r, text, sizeof text);
        printf("  %-50s %9.4g %6.1f ", r->name, s.median, 100 * s.error);
        if (r->base >= 0)
            printf("%7.3g", compare(r, &results[r->base], AT_MOST).median);
        else
            printf("%7s", "");
        printf("%s%s\n", text[0] ? "  " : "", text);
        table_targets(i);
    }
    for (int k = 0; k < n_targets; k++)
        count[verdict(&targets[k])[0] == 'm' ? 0 : verdict(&targets[k])[0] == 'n' ? 1 : 2]++;
    printf("\ntargets: %d met, %d not met, %d inconclusive\n", count[0], count[1], count[2]);
    warnings(table_key);
}

static void csv_key(const char *key, const char *value)
{
    printf("# %s: %s\n", key, value);
}

static void quote(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"')
            putchar('"');
        putchar(*s);
    }
    putchar('"');
}

/* A line per row, and one per target, which repeats its row. */
static void csv_line(const struct row *r, const struct target *t)
{
    struct summary s = summarize(r->sample, r->reps), v = {0, 0, 0, 0};
    int ref = t ? t->ref : r->base;
    char text[200];
    if (t)
        v = target_value(t);
    else if (ref >= 0)
        v = compare(r, &results[ref], AT_MOST);
    printf("%s,", t ? "target" : "result");
    quote(r->group);
    putchar(',');
    quote(r->name);
    printf(",%u,%u,%d,%s,%.6g,%.4g,%.6g,%.6g,%u,", r->threads, r->counters, r->pinned, r->unit,
           s.median, 100 * s.error, s.low, s.high, r->reps);
    quote(ref >= 0 ? results[ref].name : "");
    printf(",%.6g,%.6g,%.6g,", v.median, v.low, v.high);
    text[0] = 0;
    if (t)
        target_text(t, text, sizeof text);
    quote(text);
    printf(",%s,%llu,%lld,%.0f,%.4g,%.4g,%.3g,", t ? verdict(t) : "", (unsigned long long)r->ops,
           (long long)(int64_t)r->lost, r->aborts, r->instructions, r->cycles, 100 * r->steal);
    remarks(r, text, sizeof text);
    quote(text);
    putchar('\n');
}

static void csv(void)
{
    header(csv_key);
    warnings(csv_key);
    printf("kind,case,contender,threads,counters,pinned,unit,median,mdape_percent,low,high,epochs,"
           "ratio_to,ratio,"
           "ratio_low,ratio_high,target,verdict,operations,lost,aborts,instructions,cycles,steal_"
           "percent,"
           "remarks\n");
    for (int i = 0; i < n_rows; i++) {
        csv_line(&results[i], NULL);
        for (int k = 0; k < n_targets; k++)
            if (targets[k].row == i)
                csv_line(&results[i], &targets[k]);
    }
}

static void json_string(const char *s)
{
    putchar('"');
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 32)
            printf("\\u%04x", *s);
        else
            putchar(*s);
    putchar('"');
}

static void json_key(const char *key, const char *value)
{
    static int warned;
    printf("  ");
    if (!strcmp(key, "warning"))
        printf("\"warning %d\"", ++warned);
    else
        json_string(key);
    printf(": ");
    json_string(value);
    printf(",\n");
}

static void json_targets(int row)
{
    char text[160];
    const char *comma = "";
    for (int k = 0; k < n_targets; k++) {
        if (targets[k].row != row)
            continue;
        struct summary v = target_value(&targets[k]);
        target_text(&targets[k], text, sizeof text);
        printf("%s{\"target\": ", comma);
        json_string(text);
        printf(", \"value\": %.6g, \"low\": %.6g, \"high\": %.6g, \"verdict\": \"%s\"}", v.median,
               v.low, v.high, verdict(&targets[k]));
        comma = ", ";
    }
}

static void json_row(int i)
{
    const struct row *r = &results[i];
    struct summary s = summarize(r->sample, r->reps);
    char text[200];
    printf("    {\"case\": ");
    json_string(r->group);
    printf(", \"contender\": ");
    json_string(r->name);
    printf(
        ", \"threads\": %u, \"counters\": %u, \"pinned\": %s, \"unit\": \"%s\", \"median\": %.6g, "
        "\"mdape_percent\": %.4g, ",
        r->threads, r->counters, r->pinned ? "true" : "false", r->unit, s.median, 100 * s.error);
    if (r->base >= 0) {
        printf("\"ratio\": %.6g, \"ratio_to\": ", compare(r, &results[r->base], AT_MOST).median);
        json_string(results[r->base].name);
        printf(", ");
    }
    remarks(r, text, sizeof text);
    printf("\"operations\": %llu, \"lost\": %lld, \"aborts\": %.0f, \"remarks\": ",
           (unsigned long long)r->ops, (long long)(int64_t)r->lost, r->aborts);
    json_string(text);
    printf(", \"targets\": [");
    json_targets(i);
    printf("], \"samples\": [");
    for (unsigned k = 0; k < r->reps; k++)
        printf("%s%.6g", k ? ", " : "", r->sample[k]);
    printf("]}%s\n", i + 1 < n_rows ? "," : "");
}

static void json(void)
{
    printf("{\n");
    header(json_key);
    warnings(json_key);
    printf("  \"rows\": [\n");
    for (int i = 0; i < n_rows; i++)
        json_row(i);
    printf("  ]\n}\n");
}

/* ---- Cases that need a process of their own */

/* From here on, also after exec, the kernel refuses rseq, as a sandbox does. */
static void refuse_rseq(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rseq, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LENGTH(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        fail("cannot refuse rseq: %s", strerror(errno));
    setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
}

static void child_exec(const char *name, int refused, unsigned simulate, int out)
{
    char args[6][32], cpus[sizeof "--pin=" + 6 * 64] = "--pin=";
    const char *argv[12];
    int n = 0;
    size_t at = strlen(cpus);
    dup2(out, 1);
    if (refused)
        refuse_rseq();
    snprintf(args[0], sizeof args[0], "--child=%s", name);
    snprintf(args[1], sizeof args[1], "--simulate=%u", simulate);
    snprintf(args[2], sizeof args[2], "--reps=%u", opt.reps);
    snprintf(args[3], sizeof args[3], "--time-ms=%g", opt.time_ms);
    snprintf(args[4], sizeof args[4], "--ops=%llu", (unsigned long long)opt.ops);
    snprintf(args[5], sizeof args[5], "--counters=%u", opt.counters);
    for (int i = 0; i < opt.n_cpus && i < 64; i++)
        at += (size_t)snprintf(cpus + at, sizeof cpus - at, "%s%d", i ? "," : "", opt.cpus[i]);
    argv[n++] = self;
    for (int i = 0; i < (opt.ops ? 5 : 4); i++)
        argv[n++] = args[i];
    if (opt.counters)
        argv[n++] = args[5];
    argv[n++] = cpus;
    argv[n] = NULL;
    execv(self, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static void children_print(void)
{
    fwrite(&n_rows, sizeof n_rows, 1, stdout);
    fwrite(&n_targets, sizeof n_targets, 1, stdout);
    fwrite(results, sizeof *results, (size_t)n_rows, stdout);
    fwrite(targets, sizeof *targets, (size_t)n_targets, stdout);
}

static void child_read(FILE *f)
{
    int counts[2], row0 = n_rows, target0 = n_targets;
    if (fread(counts, sizeof counts, 1, f) != 1 || counts[0] < 0 || counts[0] > MAX_ROWS - n_rows ||
        counts[1] < 0 || counts[1] > MAX_TARGETS - n_targets)
        fail("a child process said nothing useful");
    if (fread(results + row0, sizeof *results, (size_t)counts[0], f) != (size_t)counts[0] ||
        fread(targets + target0, sizeof *targets, (size_t)counts[1], f) != (size_t)counts[1])
        fail("a child process stopped in the middle");
    n_rows += counts[0];
    n_targets += counts[1];
    for (int i = row0; i < n_rows; i++)
        results[i].base += results[i].base >= 0 ? row0 : 0;
    for (int i = target0; i < n_targets; i++) {
        targets[i].row += row0;
        targets[i].ref += targets[i].ref >= 0 ? row0 : 0;
    }
}

/* The same program, in which @refused: rseq is; @simulate: CPU ids go that far. */
void run_child(const char *name, int refused, unsigned simulate)
{
    int ends[2], status;
    progress(name);
    if (pipe(ends))
        fail("pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        fail("fork: %s", strerror(errno));
    if (pid == 0)
        child_exec(name, refused, simulate, ends[1]);
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    child_read(f);
    fclose(f);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("%s: a child process failed (status %d)", name, status);
}

/* ---- Options */

static void usage(FILE *f)
{
    fprintf(
        f,
        "usage: %s [option...]\n"
        "  --case GLOB       run these cases (default: all); a shell pattern: 'add*'\n"
        "  --list            list the cases\n"
        "  --format FORMAT   table, csv or json\n"
        "  --reps N          epochs per contender, 11 to %d (default 21)\n"
        "  --time-ms X       length of an epoch (default 4)\n"
        "  --ops N           operations per thread and epoch, instead of --time-ms\n"
        "  --threads N       threads, in the cases add*, freelist* and scale\n"
        "  --counters N      counters in turn, a power of two, in the cases add*\n"
        "  --pin LIST        CPUs to pin threads to, in turn, like 0-3,8 (default: those allowed)\n"
        "  --unpinned        do not pin\n"
        "  --save FILE       also write the results there, as CSV\n"
        "  --help            this text\n",
        self, MAX_REPS);
}

static void bad(const char *what, const char *value)
{
    fprintf(stderr, "bench: %s %s\n", what, value);
    usage(stderr);
    exit(2);
}

static double number(const char *what, const char *s, double low, double high)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !(v >= low && v <= high))
        bad(what, s);
    return v;
}

static void cpu_list(const char *s)
{
    cpu_set_t allowed;
    const char *list = s;
    sched_getaffinity(0, sizeof allowed, &allowed);
    opt.n_cpus = 0;
    do {
        char *end;
        long low = strtol(s, &end, 10), high = low;
        if (end == s)
            bad("not a list of CPUs:", list);
        if (*end == '-')
            high = strtol(end + 1, &end, 10);
        for (long c = low; c <= high; c++) {
            if (c < 0 || c >= CPU_SETSIZE || !CPU_ISSET((size_t)c, &allowed) || opt.n_cpus == 1024)
                bad("not a CPU that this process may use, in", list);
            opt.cpus[opt.n_cpus++] = (int)c;
        }
        s = end;
    } while (*s++ == ',');
    if (s[-1])
        bad("not a list of CPUs:", list);
}

static void find_cpus(void)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int c = 0; c < CPU_SETSIZE && opt.n_cpus < 1024; c++)
        if (CPU_ISSET((size_t)c, &allowed))
            opt.cpus[opt.n_cpus++] = c;
    ncpu = (unsigned)opt.n_cpus;
}

static const char *child_case;

static void parse(int argc, char **argv)
{
    enum {
        CASE = 256,
        LIST,
        FORMAT,
        REPS,
        TIME,
        OPS,
        THREADS,
        COUNTERS,
        PIN,
        UNPINNED,
        SAVE,
        HELP,
        CHILD,
        SIMULATE
    };
    static const struct option longs[] = {{"case", 1, 0, CASE},
                                          {"list", 0, 0, LIST},
                                          {"format", 1, 0, FORMAT},
                                          {"reps", 1, 0, REPS},
                                          {"time-ms", 1, 0, TIME},
                                          {"ops", 1, 0, OPS},
                                          {"threads", 1, 0, THREADS},
                                          {"counters", 1, 0, COUNTERS},
                                          {"pin", 1, 0, PIN},
                                          {"unpinned", 0, 0, UNPINNED},
                                          {"save", 1, 0, SAVE},
                                          {"help", 0, 0, HELP},
                                          {"child", 1, 0, CHILD},
                                          {"simulate", 1, 0, SIMULATE}, /* for run_child() */
                                          {0, 0, 0, 0}};
    int c;
    unsigned simulated;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        switch (c) {
        case CASE:
            pattern = optarg;
            break;
        case LIST:
            for (size_t i = 0; i < n_cases; i++)
                if (cases[i].what)
                    printf("%-18s %s\n", cases[i].name, cases[i].what);
            exit(0);
        case FORMAT:
            format = optarg;
            if (strcmp(format, "table") && strcmp(format, "csv") && strcmp(format, "json"))
                bad("unknown format", optarg);
            break;
        case REPS:
            opt.reps = (unsigned)number("--reps is 11 to 101, not", optarg, 11, MAX_REPS);
            break;
        case TIME:
            opt.time_ms = number("--time-ms is 0.01 to 10000, not", optarg, 0.01, 1e4);
            break;
        case OPS:
            opt.ops = (uint64_t)number("--ops is 1 to 1e12, not", optarg, 1, 1e12);
            break;
        case THREADS:
            opt.threads = (unsigned)number("--threads is 1 to 10000, not", optarg, 1, 1e4);
            break;
        case COUNTERS:
            opt.counters = (unsigned)number("--counters is 1 to 4096, not", optarg, 1, 4096);
            if (opt.counters & (opt.counters - 1))
                bad("--counters is a power of two, not", optarg);
            break;
        case PIN:
            cpu_list(optarg);
            break;
        case UNPINNED:
            opt.unpinned = 1;
            break;
        case SAVE:
            save = optarg;
            break;
        case HELP:
            usage(stdout);
            exit(0);
        case CHILD:
            child_case = optarg;
            child = 1;
            break;
        case SIMULATE:
            simulated = (unsigned)number("--simulate", optarg, 0, 65536);
            if (simulated) { /* as if there could be so many CPUs; nothing is allocated yet */
                percpu_priv_state.nr_cpus = simulated;
                percpu_priv_state.reach.bound = simulated;
            }
            break;
        default:
            usage(stderr);
            exit(2);
        }
    if (optind < argc)
        bad("what is", argv[optind]);
}

static void run_cases(void)
{
    for (size_t i = 0; i < n_cases; i++)
        progress_all += cases[i].what && !fnmatch(pattern, cases[i].name, 0);
    if (!progress_all)
        bad("no case matches", pattern);
    for (size_t i = 0; i < n_cases; i++) {
        if (!cases[i].what || fnmatch(pattern, cases[i].name, 0))
            continue;
        progress_done++;
        if (cases[i].refused)
            run_child(cases[i].name, 1, 0);
        else
            cases[i].run();
    }
    if (isatty(2))
        fprintf(stderr, "\r\033[K");
}

static void run_as_child(void)
{
    for (size_t i = 0; i < n_cases; i++)
        if (!strcmp(cases[i].name, child_case))
            cases[i].run();
    children_print();
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char path[PATH_MAX];
    int rc = 0;
    ssize_t got = readlink("/proc/self/exe", path, sizeof path - 1);
    self = got > 0 ? path : argv[0];
    for (int i = 0; i < argc; i++) {
        size_t at = strlen(command);
        snprintf(command + at, sizeof command - at, "%s%s", i ? " " : "", argv[i]);
    }
    find_cpus();
    parse(argc, argv);
    vdso_find();
    int fd = perf_open(PERF_COUNT_HW_INSTRUCTIONS);
    if (fd >= 0)
        close(fd);
    if (child) {
        run_as_child();
        return 0;
    }
    run_cases();
    if (!strcmp(format, "csv"))
        csv();
    else if (!strcmp(format, "json"))
        json();
    else
        table();
    if (save && (fflush(stdout) || !freopen(save, "w", stdout)))
        fail("%s: %s", save, strerror(errno));
    if (save)
        csv();
    for (int i = 0; i < n_rows; i++)
        if (results[i].failed) {
            fprintf(stderr, "bench: %s, %s: wrong sum\n", results[i].group, results[i].name);
            rc = 1;
        }
    return rc;
}
