/* SPDX-License-Identifier: MIT */
/*
 * Another library in the process that wants the thread's rseq for an area of its own. Whoever comes
 * first keeps it; nobody's registration is undone by us but ours; every thread is exact. (A
 * library that shares its area under the name __rseq_abi: check_plugins.sh.)
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <pthread.h>
#include <unistd.h>
#include "tap.h"

#if PERCPU_RSEQ_PORTED
static struct percpu_counter counter;
static enum percpu_mode mode;

/* What such a library does: one area per thread, at an address that we do not know. */
struct their_area {
    struct percpu_rseq_area area __attribute__((aligned(64)));
};
static long their_call(struct their_area *a, int flags)
{
    return syscall(PERCPU_RSEQ_SYSCALL, &a->area, 32, flags, PERCPU_RSEQ_SIGNATURE);
}
static int they_own_it(struct their_area *a)
{
    return their_call(a, 0) == -1 && errno == EBUSY && a->area.cpu_id < percpu_nr_cpus();
}
static void they_start(struct their_area *a)
{
    memset(a, 0, sizeof *a);
    a->area.cpu_id = PERCPU_RSEQ_CPU_UNREGISTERED;
}

static void add(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        percpu_counter_inc(&counter);
}

static pthread_key_t late;
static struct their_area in_late_destructor;
static int owned_in_destructor;
/* After the header's own destructor, if it has one: its key is older. */
static void late_destructor(void *arg)
{
    (void)arg;
    owned_in_destructor = they_own_it(&in_late_destructor);
    (void)their_call(&in_late_destructor, PERCPU_RSEQ_FLAG_UNREGISTER);
}

static void *they_come_first(void *arg)
{
    struct their_area *a = &in_late_destructor;
    percpu_word sum = percpu_counter_sum(&counter);
    struct percpu_status s;
    (void)arg;
    they_start(a);
    if (their_call(a, 0)) {
        owned_in_destructor = -1;
        return (void *)0;
    }
    pthread_setspecific(late, a);
    add(1000);
    s = percpu_status();
    is(s.mode, PERCPU_MODE_FALLBACK, "they come first: fallback");
    is(s.reason, PERCPU_REASON_OTHER_OWNER, "with the reason");
    is(s.error, EINVAL, "and the kernel's answer");
    is(percpu_counter_sum(&counter), sum + 1000, "exact");
    ok(they_own_it(a), "their registration is as it was");
    is(percpu_thread_unregister(), 0, "percpu_thread_unregister() has nothing to undo");
    ok(they_own_it(a), "and leaves theirs");
    add(1);
    is(percpu_counter_sum(&counter), sum + 1001, "exact afterwards");
    return (void *)0;
}

static void *we_come_first(void *arg)
{
    struct their_area a;
    percpu_word sum = percpu_counter_sum(&counter);
    (void)arg;
    add(1000);
    they_start(&a);
    ok(their_call(&a, 0) == -1 && errno == EINVAL, "we come first: the kernel refuses them");
    is(percpu_status().mode, mode, "nothing changes for us");
    add(1000);
    is(percpu_counter_sum(&counter), sum + 2000, "exact");
    is(a.area.cpu_id, PERCPU_RSEQ_CPU_UNREGISTERED, "their area is untouched");
    return (void *)0;
}

static void *handed_over(void *arg)
{
    struct their_area a;
    percpu_word sum = percpu_counter_sum(&counter);
    (void)arg;
    add(1000);
    is(percpu_thread_unregister(), 0, "we leave");
    they_start(&a);
    is(their_call(&a, 0), 0, "they take over");
    add(1000);
    is(percpu_counter_sum(&counter), sum + 2000, "exact");
    is(percpu_status().reason, PERCPU_REASON_UNREGISTERED, "our reason is that we left");
    ok(they_own_it(&a), "it is theirs");
    is(their_call(&a, PERCPU_RSEQ_FLAG_UNREGISTER), 0, "until they leave");
    add(1000);
    is(percpu_counter_sum(&counter), sum + 3000, "exact");
    return (void *)0;
}

static void run(void *(*f)(void *))
{
    pthread_t t;
    if (pthread_create(&t, (pthread_attr_t *)0, f, (void *)0))
        ok(0, "thread created");
    else
        pthread_join(t, (void **)0);
}

int main(void)
{
    mode = percpu_status().mode;
    if (getenv("REQUIRE_RSEQ"))
        need_sections();
    if (mode == PERCPU_MODE_FALLBACK)
        need_sections();
    pthread_key_create(&late, late_destructor);
    run(we_come_first);
    if (mode == PERCPU_MODE_OWN) {
        run(they_come_first);
        is(owned_in_destructor, 1, "theirs is still registered in the thread's last destructor");
        run(handed_over);
    } else {
        skip("they come first", "libc came first");
    }
    return done();
}
#else
int main(void)
{
    skip_all("rseq is not ported to this processor");
}
#endif
