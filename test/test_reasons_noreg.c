/* SPDX-License-Identifier: MIT */
/*
 * Built with PERCPU_NO_REGISTER: the system call is never made, not even to ask, so a policy that
 * kills does not; libc's registration is used where there is one, the fallback with the reason
 * LIBC_DISABLED elsewhere.
 *
 * Seen to fail: with a status that asks the kernel in spite of PERCPU_NO_REGISTER.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PERCPU_NO_REGISTER
#include "percpu.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "plugins/seccomp.h"
#include "tap.h"

static struct percpu_counter counter;

static int use_everything(void)
{
    char text[512];
    unsigned long *p = PERCPU_NEW(unsigned long);
    int bad = p ? 0 : 1;
    struct percpu_status before = percpu_status(), after;
    percpu_word sum = percpu_counter_sum(&counter);
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&counter);
    if (p)
        this_cpu_inc(*p);
    (void)this_cpu_id();
    (void)this_cpu_node();
    (void)this_cpu_cid();
    (void)percpu_thread_register();
    percpu_status_format(text, sizeof text);
    after = percpu_status();
    bad += before.mode != after.mode || before.reason != after.reason;
    bad += after.mode == PERCPU_MODE_OWN;
#if PERCPU_RSEQ_SECTIONS
    bad += after.mode == PERCPU_MODE_FALLBACK && after.reason != PERCPU_REASON_LIBC_DISABLED;
    bad += (after.mode == PERCPU_MODE_FALLBACK) != (percpu_cpu_raw() < 0);
#endif
    bad += percpu_counter_sum(&counter) != sum + 1000;
    bad += percpu_thread_unregister() != 0;
    percpu_counter_inc(&counter);
    bad += percpu_counter_sum(&counter) != sum + 1001;
    percpu_free(p);
    return bad;
}

static void *thread(void *arg)
{
    *(int *)arg = use_everything();
    return (void *)0;
}

/* A thread of glibc's that registers would register the next one: not under this policy. */
static int in_a_sandbox_that_kills(void)
{
    pthread_t t;
    int bad = 0, in_thread = 0;
#if PERCPU_RSEQ_PORTED
    if (seccomp_rseq(PERCPU_RSEQ_SYSCALL, SECCOMP_KILL))
        return 77;
#endif
    bad = use_everything();
    if (percpu_cpu_raw() < 0) {
        if (pthread_create(&t, (pthread_attr_t *)0, thread, &in_thread))
            return 1;
        pthread_join(t, (void **)0);
    }
    return bad + in_thread;
}

int main(void)
{
    int status = -1;
    pid_t pid;
    note("%s", percpu_reason_text(percpu_status().reason));
    fflush(stdout);
    pid = fork();
    if (pid == 0)
        _exit(in_a_sandbox_that_kills());
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip("under a policy that kills", "no permission to install it");
    else if (!ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                 "under a policy that kills, everything works"))
        note("wait status %#x", (unsigned)status);
    is(use_everything(), 0, "without one too");
    return done();
}
