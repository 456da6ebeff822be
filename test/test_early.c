/* SPDX-License-Identifier: MIT */
// cflags: -fno-builtin
/*
 * Use before anything is set up and after it was torn down: before the first constructor, in a
 * constructor, inside malloc, as a thread's first act inside a signal handler, in destructors.
 *
 * Seen to fail: with a slow path that leaves errno changed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tap.h"

/* ---- malloc, replaced; each call counts itself. By symbol name, since libcs declare these with
 * different exception specifications in C++. */
static struct percpu_counter allocations;
static unsigned long calls, recursions, errnos;
static __thread int inside;
static char heap[1 << 24] __attribute__((aligned(64)));
static size_t used = 64;

static void count_one(void)
{
    int saved = errno;
    errno = 4711;
    if (inside)
        __atomic_fetch_add(&recursions, 1, __ATOMIC_RELAXED);
    inside++;
    percpu_counter_inc(&allocations);
    (void)this_cpu_id();
    inside--;
    if (errno != 4711)
        __atomic_fetch_add(&errnos, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    errno = saved;
}

/* Handed out once, never again; the size is kept in front. */
static void *take(size_t align, size_t size)
{
    size_t at, end, old = __atomic_load_n(&used, __ATOMIC_RELAXED);
    align = align < 32 ? 32 : align;
    do {
        at = (old + 32 + align - 1) & ~(align - 1);
        end = at + size;
        if (end > sizeof heap) {
            errno = ENOMEM;
            return (void *)0;
        }
    } while (!__atomic_compare_exchange_n(&used, &old, end, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    memcpy(heap + at - sizeof size, &size, sizeof size);
    return heap + at;
}

#ifdef __cplusplus
extern "C" {
#endif
#define REPLACES(name) __asm__(name) __attribute__((used, visibility("default"), noinline))
void *test_malloc(size_t size) REPLACES("malloc");
void *test_calloc(size_t n, size_t size) REPLACES("calloc");
void *test_realloc(void *p, size_t size) REPLACES("realloc");
void test_free(void *p) REPLACES("free");
void *test_memalign(size_t align, size_t size) REPLACES("memalign");
void *test_aligned_alloc(size_t align, size_t size) REPLACES("aligned_alloc");
int test_posix_memalign(void **out, size_t align, size_t size) REPLACES("posix_memalign");
size_t test_malloc_usable_size(void *p) REPLACES("malloc_usable_size");

void *test_malloc(size_t size)
{
    count_one();
    return take(32, size);
}
void *test_calloc(size_t n, size_t size)
{
    count_one();
    return take(32, n * size); /* zero: nothing is handed out twice */
}
size_t test_malloc_usable_size(void *p)
{
    size_t size = 0;
    if (p)
        memcpy(&size, (char *)p - sizeof size, sizeof size);
    return size;
}
void *test_realloc(void *p, size_t size)
{
    size_t old = test_malloc_usable_size(p);
    void *q;
    count_one();
    q = take(32, size);
    if (q && p)
        memcpy(q, p, old < size ? old : size);
    return q;
}
void test_free(void *p)
{
    count_one();
    (void)p;
}
void *test_memalign(size_t align, size_t size)
{
    count_one();
    return take(align, size);
}
void *test_aligned_alloc(size_t align, size_t size)
{
    count_one();
    return take(align, size);
}
int test_posix_memalign(void **out, size_t align, size_t size)
{
    count_one();
    *out = take(align, size);
    return *out ? 0 : ENOMEM;
}
#ifdef __cplusplus
}
#endif

/* ---- Before main and after it */

static struct percpu_counter counter; /* one add at each point */
static unsigned points, bad_ids, bad_errno;
static unsigned long *object;

static void point(void)
{
    errno = 815;
    percpu_counter_inc(&counter);
    if (!object)
        object = PERCPU_NEW(unsigned long);
    this_cpu_inc(*object);
    bad_ids += this_cpu_id() >= percpu_nr_cpus();
    bad_errno += errno != 815;
    points++;
}
static unsigned long object_sum(void)
{
    unsigned long sum = 0, *copy;
    percpu_for_each_copy(object, copy) sum += *copy;
    return sum;
}

static int early_mode[3] = {-1, -1, -1}; /* as told before anything was done */
#ifdef __GLIBC__
static void before_libraries(void)
{
    point();
    early_mode[0] = (int)percpu_status().mode;
}
__attribute__((section(".preinit_array"),
               used)) static void (*const preinit)(void) = before_libraries;
#endif
static void before_constructors(void)
{
    early_mode[1] = (int)percpu_status().mode;
    point();
}
__attribute__((section(".init_array.00050"),
               used)) static void (*const init)(void) = before_constructors;

__attribute__((constructor(101))) static void in_constructor(void)
{
    point();
    early_mode[2] = (int)percpu_status().mode;
}

static int destructors_wanted; /* points when main ends; set in the child that tests them */
static void at_exit(void)
{
    point();
}
static void after_destructors(void)
{
    point();
    if (destructors_wanted)
        _exit((int)points != destructors_wanted + 3 || bad_ids || bad_errno ||
              percpu_counter_sum(&counter) != points || object_sum() != points);
}
__attribute__((section(".fini_array.00050"),
               used)) static void (*const fini)(void) = after_destructors;
__attribute__((destructor(101))) static void in_destructor(void)
{
    point();
}

/* ---- In threads */

static void on_signal(int sig)
{
    (void)sig;
    point();
}
static void *signal_first(void *arg)
{
    raise(SIGUSR1); /* the handler is this thread's first use */
    point();
    return arg;
}
static void *volatile block; /* so that no compiler does without the calls */
static void *malloc_first(void *arg)
{
    block = malloc(10);
    free(block);
    block = calloc(2, 3);
    block = realloc(block, 100);
    free(block);
    return arg;
}

int main(void)
{
    pthread_t t;
    struct sigaction sa;
    unsigned first = sizeof(char[2]), n;
    int status = -1;
    pid_t pid;
    enum percpu_mode mode = percpu_status().mode;
#ifdef __GLIBC__
    first = 3;
    ok(early_mode[0] == (int)mode, "the mode in .preinit_array is the mode in main()");
#endif
    ok(early_mode[1] == (int)mode, "and before any constructor");
    ok(early_mode[2] == (int)mode, "and in a constructor");
    is(points, first, "all early points were passed");
    is(percpu_counter_sum(&counter), first, "adds before main() are exact");
    is(object_sum(), first, "operations before main() are exact");
    if (getenv("REQUIRE_RSEQ"))
        need_sections();

    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sigaction(SIGUSR1, &sa, (struct sigaction *)0);
    n = points;
    for (unsigned i = 0; i < 100; i++) {
        pthread_create(&t, (pthread_attr_t *)0, signal_first, (void *)0);
        pthread_join(t, (void **)0);
    }
    is(points, n + 200, "a signal handler as the first use in a thread");
    is(percpu_counter_sum(&counter), points, "exact");
    is(object_sum(), points, "exact");

    for (unsigned i = 0; i < 100; i++) {
        pthread_create(&t, (pthread_attr_t *)0, malloc_first, (void *)0);
        pthread_join(t, (void **)0);
    }
    ok(calls >= 500, "%lu calls of malloc and the like", calls);
    is(percpu_counter_sum(&allocations), calls, "exact");
    is(recursions, 0, "no operation allocates from libc");
    is(errnos, 0, "errno survives");

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        atexit(at_exit);
        destructors_wanted = (int)points;
        exit(1); /* the last destructor says how it went */
    }
    waitpid(pid, &status, 0);
    if (!ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "atexit() functions and destructors are exact"))
        note("wait status %#x", (unsigned)status);
    is(bad_ids, 0, "every id is in range");
    is(bad_errno, 0, "errno survives");
    return done();
}
