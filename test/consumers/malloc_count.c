/* SPDX-License-Identifier: MIT */
/*
 * malloc_count - count what a program allocates, without slowing its threads down.
 *
 *     cc -shared -fPIC malloc_count.c -o malloc_count.so -ldl
 *     LD_PRELOAD=./malloc_count.so MALLOC_COUNT=report.txt sort file
 *
 * One line is appended to the report when a process exits (to stderr without MALLOC_COUNT). bytes
 * is what was asked for; a realloc is an allocation and a free. percpu.h never calls malloc, so it
 * may be used inside it, also by the first instruction of a thread.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef REPORT
#define REPORT "MALLOC_COUNT"
#endif
enum { ALLOCS, FREES, BYTES, EVENTS };
static struct percpu_counters counts = PERCPU_COUNTERS_INIT(EVENTS, 0);

static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void *(*memalign)(size_t, size_t);
    void (*free)(void *);
} next;

/* Memory for a thread that allocates while it asks dlsym (dlsym of old glibcs does). */
static char early[8192] __attribute__((aligned(16)));
static size_t early_used;
static __thread int resolving __attribute__((tls_model("initial-exec")));

static void *early_alloc(size_t size)
{
    size_t at = __atomic_fetch_add(&early_used, (size + 15) & ~(size_t)15, __ATOMIC_RELAXED);
    return at < sizeof early && size <= sizeof early - at ? early + at : NULL;
}
static int is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void resolve(void *slot, const char *name)
{
    __atomic_store_n((void **)slot, dlsym(RTLD_NEXT, name), __ATOMIC_RELEASE);
}
#define NEXT(name) __atomic_load_n(&next.name, __ATOMIC_RELAXED)

/*
 * Return: the allocators behind this one are known. Threads that come first at the same time each
 * ask for themselves, and get the same: none waits, and none is refused memory meanwhile.
 */
static int ready(void)
{
    if (__atomic_load_n(&next.free, __ATOMIC_ACQUIRE))
        return 1;
    if (resolving)
        return 0;
    resolving = 1;
    resolve(&next.malloc, "malloc");
    resolve(&next.calloc, "calloc");
    resolve(&next.realloc, "realloc");
    resolve(&next.memalign, "aligned_alloc");
    resolve(&next.free, "free"); /* the last: it says that all are known */
    resolving = 0;
    return 1;
}

static void *counted(void *p, size_t size)
{
    if (p) {
        percpu_counters_inc(&counts, ALLOCS);
        percpu_counters_add(&counts, BYTES, size);
    }
    return p;
}

#define EXPORT __attribute__((visibility("default")))
EXPORT void *malloc(size_t size)
{
    return counted(ready() ? NEXT(malloc)(size) : early_alloc(size), size);
}
#ifdef __GLIBC__ /* musl's calloc calls malloc: it is counted there */
EXPORT void *calloc(size_t n, size_t size)
{
    return counted(ready() ? NEXT(calloc)(n, size) : early_alloc(n * size), n * size);
}
#endif
EXPORT void free(void *p)
{
    if (!p)
        return;
    percpu_counters_inc(&counts, FREES);
    if (!is_early(p) && ready())
        NEXT(free)(p);
}
EXPORT void *realloc(void *p, size_t size)
{
    void *q = is_early(p) || !ready() ? early_alloc(size) : NEXT(realloc)(p, size);
    if (q && is_early(p) && p != q)
        memmove(q, p,
                size < (size_t)(early + sizeof early - (char *)p)
                    ? size
                    : (size_t)(early + sizeof early - (char *)p));
    if (p && (q || size == 0))
        percpu_counters_inc(&counts, FREES);
    return counted(q, size);
}
EXPORT void *aligned_alloc(size_t align, size_t size)
{
    return counted(ready() ? NEXT(memalign)(align, size) : NULL, size);
}
EXPORT void *memalign(size_t align, size_t size)
{
    return aligned_alloc(align, size);
}
EXPORT int posix_memalign(void **out, size_t align, size_t size)
{
    int saved = errno;
    void *p = align % sizeof p ? NULL : aligned_alloc(align, size);
    errno = saved;
    if (!p)
        return align % sizeof p || align & (align - 1) ? EINVAL : ENOMEM;
    *out = p;
    return 0;
}

__attribute__((destructor)) static void report(void)
{
    const char *file = getenv(REPORT);
    percpu_word out[EVENTS];
    char line[128];
    int fd = file ? open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : 2, n;
    percpu_counters_snapshot(&counts, out);
    n = snprintf(line, sizeof line, "allocs=%lu frees=%lu bytes=%lu\n", (unsigned long)out[ALLOCS],
                 (unsigned long)out[FREES], (unsigned long)out[BYTES]);
    if (fd >= 0 && write(fd, line, (size_t)n) != n)
        _exit(1);
}
