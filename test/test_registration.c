/* SPDX-License-Identifier: MIT */
/*
 * A thread's registration: when it happens, how often, what it leaves alone, how it ends, and that
 * percpu_status() tells beforehand. The kernel is asked directly, not through the header's eyes.
 *
 * Seen to fail: with a second registration after percpu_thread_unregister(); with the length
 * forgotten after EBUSY; with the length noted only after the system call; with a write through an
 * unset offset; with errno not restored.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "plugins/seccomp.h"
#include "tap.h"

#if PERCPU_RSEQ_PORTED

static struct percpu_counter counter;
static enum percpu_mode mode; /* what a thread of this process gets */
static int created_by_registered;

/* Is any area registered in this thread? A kernel address: EFAULT if none is, EINVAL if one is. */
static int registered_in_kernel(void)
{
    long r = syscall(PERCPU_RSEQ_SYSCALL, ~(uintptr_t)4095, 32, 0, PERCPU_RSEQ_SIGNATURE);
    return r == -1 && errno == EINVAL;
}

static void in_thread(void *(*f)(void *))
{
    pthread_t t;
    if (!ok(pthread_create(&t, (pthread_attr_t *)0, f, (void *)0) == 0, "thread created"))
        return;
    pthread_join(t, (void **)0);
}

/* Run f in a child process; it returns the number of failures. */
static void in_child(int (*f)(void), const char *name)
{
    int status = -1;
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(f());
    }
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        skip(name, "no permission to install a seccomp filter");
        return;
    }
    if (!ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", name))
        note("wait status %#x", (unsigned)status);
}
#define CHECK(x) \
    ((x) ? 0 : (printf("#   failed in child, line %d: %s\n", __LINE__, #x), fflush(stdout), 1))

/* ---- Before and after the first operation */

static void *first_operation(void *arg)
{
    int in_kernel = registered_in_kernel(), raw = percpu_cpu_raw();
    struct percpu_status s = percpu_status(), again, after;
    percpu_word sum = percpu_counter_sum(&counter);
    (void)arg;
    ok((raw >= 0) == in_kernel, "the raw id is negative exactly if libc did not register");
    again = percpu_status();
    ok(s.mode == again.mode && s.reason == again.reason && s.error == again.error &&
           s.length == again.length && s.feature_size == again.feature_size,
       "asking twice gives one answer");
    ok((percpu_cpu_raw() >= 0) == in_kernel && registered_in_kernel() == in_kernel,
       "asking registers nothing");
    percpu_counter_inc(&counter);
    after = percpu_status();
    ok(after.mode == s.mode && after.reason == s.reason,
       "the status foretold the mode and the reason");
    is(after.length, s.length, "and the length");
    is(after.feature_size, s.feature_size, "and the feature size");
    ok(s.mode == PERCPU_MODE_FALLBACK || after.error == s.error, "and the error");
    ok((percpu_cpu_raw() >= 0) == (s.mode != PERCPU_MODE_FALLBACK),
       "raw id right after the first operation");
    ok(registered_in_kernel() == (s.mode != PERCPU_MODE_FALLBACK), "the kernel agrees");
    ok(s.mode == mode, "same mode as in the first thread");
    ok((s.mode == PERCPU_MODE_LIBC) == in_kernel || created_by_registered,
       "mode LIBC exactly if libc registered");
    ok((s.mode == PERCPU_MODE_FALLBACK) == (s.reason != PERCPU_REASON_NONE),
       "a reason exactly on the fallback");
    ok((s.mode == PERCPU_MODE_FALLBACK) == (s.length == 0), "a length exactly with sections");
    ok(s.length == 0 || s.length >= 32, "the length is one that kernels accept");
    ok(s.length == 0 || s.feature_size >= 20, "the kernel maintains at least the first members");
    is(percpu_counter_sum(&counter), sum + 1, "the first operation counted");
    return (void *)0;
}

static void *eager(void *arg)
{
    int r;
    (void)arg;
    errno = 0;
    r = percpu_thread_register();
    is(r, mode == PERCPU_MODE_FALLBACK ? -1 : 0, "percpu_thread_register() says what is");
    ok(r == 0 ? errno == 0 : errno == percpu_status().error || errno == ENOTSUP,
       "with errno if it fails");
    is(percpu_thread_register(), r, "and again");
    ok((percpu_cpu_raw() >= 0) == (r == 0), "raw id after percpu_thread_register()");
    return (void *)0;
}

/* ---- The right CPU */

static void *each_cpu(void *arg)
{
    cpu_set_t allowed, one;
    unsigned bad = 0, bad_node = 0, bad_cid = 0, bad_range = 0, n = 0;
    (void)arg;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        unsigned node = 0, here = 0;
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one))
            continue;
        n++;
        bad += this_cpu_id() != cpu || (int)this_cpu_id() != sched_getcpu();
        bad += mode != PERCPU_MODE_FALLBACK && percpu_cpu_raw() != (int)cpu;
        syscall(SYS_getcpu, &here, &node, (void *)0);
        bad_node += this_cpu_node() != node || here != cpu;
        bad_cid += this_cpu_cid() >= percpu_nr_cpus();
        bad_range += cpu >= percpu_nr_cpus();
    }
    sched_setaffinity(0, sizeof allowed, &allowed);
    ok(n > 0, "pinned to %u CPUs in turn", n);
    is(bad, 0, "this_cpu_id() is the CPU, on each");
    is(bad_node, 0, "this_cpu_node() is its node, on each");
    is(bad_cid, 0, "this_cpu_cid() is small");
    is(bad_range, 0, "every allowed CPU is below percpu_nr_cpus()");
    return (void *)0;
}

/* ---- errno */

static void *errno_survives(void *arg)
{
    char buf[512];
    unsigned long *p;
    (void)arg;
#define KEEPS(expression) \
    (errno = 12345, (void)(expression), ok(errno == 12345, "errno survives %s", #expression))
    KEEPS(percpu_status()); /* first of all in this thread */
    KEEPS(percpu_status_format(buf, sizeof buf));
    KEEPS(this_cpu_id()); /* registers */
    KEEPS(percpu_cpu_raw());
    KEEPS(this_cpu_node());
    KEEPS(this_cpu_cid());
    KEEPS(percpu_nr_cpus());
    KEEPS(percpu_reason_text(PERCPU_REASON_BLOCKED));
    KEEPS(percpu_counter_inc(&counter));
    KEEPS(percpu_counter_sum(&counter));
    KEEPS(percpu_counter_take(&counter));
    KEEPS(p = PERCPU_NEW(unsigned long));
    KEEPS(this_cpu_inc(*p));
    KEEPS(this_cpu_read(*p));
    KEEPS(this_cpu_xchg(*p, 1));
    KEEPS(this_cpu_ptr(p));
    KEEPS(percpu_free(p));
    return (void *)0;
}

static void *errno_survives_first_inc(void *arg)
{
    (void)arg;
    KEEPS(percpu_counter_inc(&counter));
    return (void *)0;
}

/* ---- One system call per thread. A filter turns each rseq call into SIGSYS; the handler counts
 * it and makes it, marked by a fifth argument that the filter lets pass. */

enum { MARK = 0x6d61 };
static struct calls {
    unsigned attempts, given, refused, einval, unregistered;
} calls;
static void (*before_call)(void), (*after_call)(void);

static void on_sigsys(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = (ucontext_t *)context;
    (void)sig;
    (void)info;
#if defined(__x86_64__)
    {
        greg_t *g = u->uc_mcontext.gregs;
        long r;
        if (before_call)
            before_call();
        r = syscall(PERCPU_RSEQ_SYSCALL, g[REG_RDI], g[REG_RSI], g[REG_RDX], g[REG_R10], MARK);
        if (g[REG_RDX]) {
            calls.unregistered += r == 0;
        } else {
            calls.attempts++;
            calls.given += r == 0;
            calls.refused += r != 0;
            calls.einval += r != 0 && errno == EINVAL;
        }
        g[REG_RAX] = r ? -errno : 0;
        if (after_call)
            after_call();
    }
#else
    (void)u;
#endif
}

static int watch_calls(void)
{
#if defined(__x86_64__)
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_sigsys;
    sa.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSYS, &sa, (struct sigaction *)0);
    return seccomp_rseq_by_arg(PERCPU_RSEQ_SYSCALL, 4, MARK, SECCOMP_ALLOW, SECCOMP_TRAP);
#else
    return 1;
#endif
}

static void *many_operations(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++) {
        percpu_counter_inc(&counter);
        (void)this_cpu_id();
        (void)this_cpu_cid();
    }
    (void)percpu_thread_register();
    return (void *)0;
}

/* Where libc registers, our header never calls; a thread of libc's making would call by itself. */
static int one_attempt_per_thread(void)
{
    percpu_word sum = percpu_counter_sum(&counter);
    pthread_t t;
    int bad = 0;
    if (watch_calls())
        return 77;
    if (mode == PERCPU_MODE_LIBC) {
        many_operations((void *)0);
        bad += CHECK(calls.attempts == 0);
    } else {
        bad += CHECK(pthread_create(&t, (pthread_attr_t *)0, many_operations, (void *)0) == 0);
        pthread_join(t, (void **)0);
        bad += CHECK(calls.given == (mode == PERCPU_MODE_FALLBACK ? 0 : 1));
        bad += CHECK(calls.attempts - calls.einval == 1);
#ifndef __GLIBC__
        bad += CHECK(calls.unregistered == calls.given);
#endif
    }
    bad += CHECK(percpu_counter_sum(&counter) == sum + 1000);
    return bad;
}

static void add_in_handler(void)
{
    percpu_counter_inc(&counter);
    (void)this_cpu_id();
}

/* A signal right before the call, and one right after it whose handler operates. */
static int handlers_around_the_call(void)
{
    percpu_word sum = percpu_counter_sum(&counter);
    pthread_t t;
    int bad = 0;
    if (mode == PERCPU_MODE_LIBC)
        return 0;
    if (watch_calls())
        return 77;
    before_call = after_call = add_in_handler;
    bad += CHECK(pthread_create(&t, (pthread_attr_t *)0, many_operations, (void *)0) == 0);
    pthread_join(t, (void **)0);
    bad += CHECK(calls.attempts - calls.einval == 1);
    bad += CHECK(percpu_counter_sum(&counter) ==
                 sum + 1000 + 2 * (calls.attempts + calls.unregistered));
    return bad;
}

#ifndef __GLIBC__
static void *one_operation(void *arg)
{
    (void)arg;
    percpu_counter_inc(&counter);
    return (void *)0;
}

static void leave_in_handler(void)
{
    if (calls.given > calls.unregistered)
        pthread_exit((void *)0);
}

/*
 * A signal right after the system call, whose handler ends the thread: the exit hook must know of
 * the registration, or musl unmaps a registered area.
 */
static int thread_ends_right_after_the_call(void)
{
    int bad = 0;
    if (watch_calls())
        return 77;
    after_call = leave_in_handler;
    for (unsigned i = 0; i < 100 && !bad; i++) {
        pthread_t t;
        bad += CHECK(pthread_create(&t, (pthread_attr_t *)0, one_operation, (void *)0) == 0);
        pthread_join(t, (void **)0);
        bad += CHECK(calls.unregistered == calls.given);
    }
    bad += CHECK(calls.given == (mode == PERCPU_MODE_FALLBACK ? 0 : 100));
    return bad;
}
#endif

/* ---- A handler that registers between the check and the attempt: the attempt ends as success,
 * and it is still known whose registration it is. The window is a few instructions, so it is
 * entered by calling the attempt once more. */
static void *attempt_after_handler_registered(void *arg)
{
    struct percpu_rseq_thread *t = percpu_priv_thread();
    percpu_word sum = percpu_counter_sum(&counter);
    (void)arg;
    percpu_counter_inc(&counter); /* "the handler" */
    if (mode == PERCPU_MODE_OWN) {
        unsigned length = t->length;
        percpu_priv_attempt(t); /* what it interrupted */
        ok(percpu_cpu_raw() >= 0 && percpu_status().mode == PERCPU_MODE_OWN,
           "an attempt after a handler's is a success");
        is(t->length, length, "the registration is still known to be ours");
        percpu_counter_inc(&counter);
        is(percpu_thread_unregister(), 0, "and is undone");
        ok(!registered_in_kernel(), "as the kernel confirms");
        is(percpu_counter_sum(&counter), sum + 2, "exact");
    } else {
        skip("an attempt after a handler's is a success",
             "no registration of our own in this mode");
    }
    return (void *)0;
}

/* ---- Unregistering */

static void *unregister(void *arg)
{
    percpu_word sum = percpu_counter_sum(&counter);
    (void)arg;
    percpu_counter_inc(&counter);
    is(percpu_thread_unregister(), 0, "percpu_thread_unregister()");
    ok(registered_in_kernel() == (mode == PERCPU_MODE_LIBC), "ours is undone, libc's stays");
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&counter);
    is(percpu_counter_sum(&counter), sum + 1001, "operations afterwards are exact");
    ok(registered_in_kernel() == (mode == PERCPU_MODE_LIBC), "and register nothing");
    is(this_cpu_id() < percpu_nr_cpus(), 1, "this_cpu_id() answers");
    is(percpu_thread_register(), mode == PERCPU_MODE_LIBC ? 0 : -1,
       "percpu_thread_register() does not come back");
    if (mode == PERCPU_MODE_OWN) {
        is(errno, ENOTSUP, "with errno ENOTSUP");
        is(percpu_status().reason, PERCPU_REASON_UNREGISTERED, "the reason is UNREGISTERED");
    }
    is(percpu_thread_unregister(), 0, "a second percpu_thread_unregister() is harmless");
    return (void *)0;
}

static void *unregister_first(void *arg)
{
    (void)arg;
    is(percpu_thread_unregister(), 0, "percpu_thread_unregister() before any operation");
    percpu_counter_inc(&counter);
    ok(registered_in_kernel() == (mode == PERCPU_MODE_LIBC), "no operation registers after that");
    return (void *)0;
}

static void *unregister_refused(void *arg)
{
    percpu_word sum = percpu_counter_sum(&counter);
    int bad = 0;
    percpu_counter_inc(&counter);
    if (seccomp_rseq_by_arg(PERCPU_RSEQ_SYSCALL, 2, PERCPU_RSEQ_FLAG_UNREGISTER,
                            SECCOMP_ERRNO(EDOM), SECCOMP_ALLOW)) {
        *(int *)arg = 77;
        return (void *)0;
    }
    errno = 0;
    bad += CHECK(percpu_thread_unregister() == -1 && errno == EDOM);
    bad += CHECK(percpu_cpu_raw() >= 0 && registered_in_kernel());
    bad += CHECK(percpu_status().mode == PERCPU_MODE_OWN);
    percpu_counter_inc(&counter);
    bad += CHECK(percpu_counter_sum(&counter) == sum + 2);
    *(int *)arg = bad;
    fflush(stdout);
    _exit(bad); /* it cannot leave its registration any more */
}

static int unregistering_is_checked(void)
{
    pthread_t t;
    int bad = 1;
    if (mode != PERCPU_MODE_OWN)
        return 0;
    if (pthread_create(&t, (pthread_attr_t *)0, unregister_refused, &bad))
        return 1;
    pthread_join(t, (void **)0);
    return bad;
}

/* ---- The unset offset. In code that may end in a shared object, offset 0 leads to the thread's
 * control block; everything has to leave before it writes there. */
static int nothing_is_written_through_an_unset_offset(void)
{
    unsigned char before[64], after[64];
    unsigned long *p = PERCPU_NEW(unsigned long), *copy, sum = 0;
    percpu_word counted = percpu_counter_sum(&counter);
    const char *tp = percpu_rseq_tp() + PERCPU_RSEQ_TP_BIAS;
    int bad = 0;
#define FORGET()                              \
    do {                                      \
        percpu_priv_state.reach.from_own = 0; \
        percpu_priv_state.reach.from_tp = 0;  \
        percpu_priv_state.from_own_known = 0; \
        percpu_priv_state.from_tp_known = 0;  \
        memcpy(before, tp, sizeof before);    \
    } while (0)
#define UNCHANGED(operation)                                    \
    do {                                                        \
        FORGET();                                               \
        operation;                                              \
        memcpy(after, tp, sizeof after);                        \
        bad += CHECK(memcmp(before, after, sizeof after) == 0); \
    } while (0)
    percpu_priv_state.reach.bound = ~0u; /* whatever the id read there, it must not help */
    UNCHANGED(percpu_counter_inc(&counter));
    UNCHANGED(this_cpu_add(*p, 1));
    UNCHANGED((void)this_cpu_read(*p));
    UNCHANGED((void)this_cpu_id());
    UNCHANGED((void)this_cpu_node());
    UNCHANGED((void)this_cpu_cid());
    UNCHANGED((void)this_cpu_ptr(p));
    UNCHANGED((void)percpu_status());
    UNCHANGED((void)percpu_thread_unregister());
    FORGET();
    bad += CHECK(PERCPU_RSEQ_OFFSET_FROM_OWN || percpu_cpu_raw() == -1);
    bad += CHECK(percpu_counter_sum(&counter) == counted + 1);
    percpu_for_each_copy(p, copy) sum += *copy;
    bad += CHECK(sum == 1);
    return bad;
}

int main(void)
{
    char text[512];
    /*
     * main() operates last: glibc that was told not to register does so all the same in threads
     * created by a thread whose reserved area somebody registered.
     */
    mode = percpu_status().mode;
    percpu_status_format(text, sizeof text);
    note("%s", text);
    if (getenv("REQUIRE_RSEQ"))
        need_sections();
    in_thread(first_operation);
    in_thread(first_operation);
    in_thread(eager);
    in_thread(each_cpu);
    in_thread(errno_survives);
    in_thread(errno_survives_first_inc);
    in_thread(attempt_after_handler_registered);
    in_thread(unregister);
    in_thread(unregister_first);
#if defined(__x86_64__)
    in_child(one_attempt_per_thread, "one attempt per thread, whatever comes of it");
    in_child(handlers_around_the_call,
             "handlers around the system call are exact and register nothing");
#ifndef __GLIBC__
    in_child(thread_ends_right_after_the_call,
             "a thread that ends right after the call leaves nothing registered");
#endif
#else
    skip("one attempt per thread", "the counting of calls is written for x86-64");
#endif
    in_child(unregistering_is_checked, "a refused unregistration is reported and changes nothing");
    in_child(nothing_is_written_through_an_unset_offset,
             "nothing is written through an unset offset");
    note("main:");
    first_operation((void *)0);
    note("a thread of a thread that operates:");
    created_by_registered = 1;
    in_thread(first_operation);
    return done();
}
#else
int main(void)
{
    skip_all("rseq is not ported to this processor");
}
#endif
