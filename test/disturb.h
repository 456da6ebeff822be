/* SPDX-License-Identifier: MIT */
/*
 * disturb.h - what gets in the way of critical sections, on purpose: moves, signals, threads that
 * leave rseq, children, no memory. Include percpu.h first. C and C++.
 */
#ifndef DISTURB_H
#define DISTURB_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tap.h"

/* ---- Tools that the test runs under */

/* ThreadSanitizer delivers a signal when the code it interrupts has come to a call. */
#if defined(__SANITIZE_THREAD__)
#define HOLDS_SIGNALS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOLDS_SIGNALS 1
#endif
#endif
#ifndef HOLDS_SIGNALS
#define HOLDS_SIGNALS 0
#endif

/* These sanitizers need address space of their own, and threads of a certain size. */
#if HOLDS_SIGNALS || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Address space cannot be limited for a tool that lives in the same process. */
static inline int tool_in_process(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return SANITIZED || (preload && strstr(preload, "vgpreload"));
}

/* TEST_SCALE, in percent: fewer rounds for slow tools. */
static inline unsigned scaled(unsigned n)
{
    const char *percent = getenv("TEST_SCALE");
    unsigned by = percent ? (unsigned)strtoul(percent, (char **)0, 10) : 100;
    return n * by / 100 ? n * by / 100 : 1;
}

/* Seconds; storms last for a time, since how much happens in it is the machine's affair. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- CPUs. On another CPU a section that was under way starts over, on another copy. */

enum { MOST_CPUS = 64 };
static unsigned cpus[MOST_CPUS], ncpus; /* that this process may use */
static cpu_set_t allowed_cpus;
static int sections_at_start; /* this process's threads run critical sections */

/* First in main: look around, before anything is disturbed. At most @most CPUs are used. */
static inline void look_around(unsigned most)
{
    CPU_ZERO(&allowed_cpus);
    sched_getaffinity(0, sizeof allowed_cpus, &allowed_cpus);
    for (unsigned i = 0; i < CPU_SETSIZE && ncpus < most; i++)
        if (CPU_ISSET(i, &allowed_cpus))
            cpus[ncpus++] = i;
    sections_at_start = percpu_status().mode != PERCPU_MODE_FALLBACK;
}

/* Bind thread @tid, 0 this one, to a CPU. Return: 0; -1 where that is not allowed. */
static inline int move_to(pid_t tid, unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(tid, sizeof set, &set);
}

/* Take back what move_to(0, ...) did. */
static inline void move_anywhere(void)
{
    sched_setaffinity(0, sizeof allowed_cpus, &allowed_cpus);
}

/* How often this thread has left a CPU: if never in between, it has not moved. */
static inline long switches(void)
{
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return u.ru_nvcsw + u.ru_nivcsw;
}

/* ---- Threads of both kinds: the fallback's and the sections' results have to add up. */

/* From here on this thread takes the fallback, whoever registered it. Return: it does. */
static inline int leave_rseq(void)
{
    (void)percpu_thread_unregister();
#if PERCPU_RSEQ_PORTED
    /* libc's registration is undone behind its back; it is of 32 bytes, or of what libc says */
    unsigned lengths[2] = {32, percpu_status().length};
    for (int i = 0; i < 2 && percpu_cpu_raw() >= 0; i++)
        (void)syscall(PERCPU_RSEQ_SYSCALL, percpu_priv_area(), lengths[i], 1,
                      PERCPU_RSEQ_SIGNATURE);
    (void)percpu_thread_unregister(); /* now nobody's, and not to be registered again */
#endif
    return percpu_status().mode == PERCPU_MODE_FALLBACK;
}

/* ---- Signals, which abort the section that they interrupt */

static inline void handle(int sig, void (*handler)(int))
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = handler;
    sa.sa_flags = SA_RESTART;
    sigaction(sig, &sa, (struct sigaction *)0);
}

/* SIGALRM every @us, to whatever thread does not block it. 0: no more. */
static inline void set_alarm(int us, void (*handler)(int))
{
    struct itimerval every = {{0, us}, {0, us}};
    if (us)
        handle(SIGALRM, handler);
    setitimer(ITIMER_REAL, &every, (struct itimerval *)0);
    if (!us)
        signal(SIGALRM, SIG_IGN); /* one may still be on its way */
}

/* @how: SIG_BLOCK, SIG_UNBLOCK. Threads inherit it, and unblock when they are ready. */
static inline void block_alarm(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(how, &set, (sigset_t *)0);
}

/* Raw system calls: libcs name the members differently. musl on 32-bit machines has one name. */
#ifndef SYS_timer_settime
#define SYS_timer_settime SYS_timer_settime64
#endif
static inline int set_timer(int timer, long us)
{
    struct itimerspec every = {{0, us * 1000}, {0, us * 1000}};
    return syscall(SYS_timer_settime, timer, 0, &every, (void *)0) == 0;
}

/* Signal @sig to this thread every @us. Return: 1; 0 if there is no such timer. */
static inline int start_timer(int sig, long us, int *timer)
{
    struct {
        void *value;
        int signo, notify, tid, rest[11];
    } event = {0, 0, 0, 0, {0}};
    event.signo = sig;
    event.notify = 4; /* SIGEV_THREAD_ID */
    event.tid = (int)syscall(SYS_gettid);
    return syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, timer) == 0 && set_timer(*timer, us);
}

/* ---- Aborts: a storm in which no section was aborted has shown nothing. */

static inline unsigned long aborts(void)
{
    return percpu_status().aborts;
}

/* For loops: go on, since there are sections and none was aborted; but not after @latest. */
static inline int no_abort_yet(unsigned long before, double latest)
{
    return sections_at_start && aborts() == before && now() < latest;
}

/* Fail if there are sections and none was aborted since aborts() was @before. */
static inline void aborted_since(unsigned long before)
{
    if (sections_at_start)
        ok(aborts() != before, "sections were aborted meanwhile");
}

/* At the end of a test: the same of all of it, under the name @passed if it passes. */
static inline void aborted_at_all(const char *passed)
{
    const char *name = "sections were aborted";
    if (HOLDS_SIGNALS && aborts() == 0)
        skip(name, "ThreadSanitizer holds signals back");
    else if (sections_at_start)
        ok(aborts() > 0, "%s", passed);
    else if (getenv("REQUIRE_RSEQ"))
        ok(0, "REQUIRE_RSEQ=1, but there are no sections");
    else
        skip(name, percpu_reason_text(percpu_status().reason));
}

/* ---- Children, for what cannot be undone in a process */

/* Return: what waitpid says of a child that exits with f()'s result. */
static inline int status_of_child(int (*f)(void))
{
    int status = -1;
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid == 0)
        _exit(f());
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* One result. @f: returns 0; 77 if it was not allowed to set itself up; else which check failed. */
static inline void in_child(int (*f)(void), const char *name)
{
    int status = status_of_child(f);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip(name, "no permission to install a seccomp filter");
    else if (!ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", name))
        note("check %d, status %x", WEXITSTATUS(status), (unsigned)status);
}

/* From here on @bytes of address space, less than there is: no more memory. 0: as was allowed. */
static inline int limit_address_space(size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit))
        return -1;
    limit.rlim_cur = bytes ? (rlim_t)bytes : limit.rlim_max;
    return setrlimit(RLIMIT_AS, &limit);
}
#endif
