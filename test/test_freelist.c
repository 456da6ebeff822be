/* SPDX-License-Identifier: MIT */
/*
 * Free lists: every node is in one place, exactly once, whatever happens.
 *
 * A node that is popped is stamped by its new owner. If a list hands a node out twice, the second
 * owner finds the stamp of the first. At the end all nodes are counted, once each.
 *
 * Seen to fail: with the head read before the section; with a pop that does not look at `closed`;
 * with a drain without its fence; with a fallback that pops single nodes by compare-and-swap;
 * with a stack that is overwritten in place of given back to; with the link at offset 0 always.
 * FREELIST_SECONDS=60 for a long run.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include "disturb.h"
#include "plugins/seccomp.h"

/* ---- One thread */

struct first {
    void *link;
    unsigned number;
};
struct middle {
    double payload[3];
    void *link;
    char tail[5];
};
struct last {
    char text[40];
    struct {
        int x;
        void *link;
    } in;
};

/* Three nodes of @size bytes go in and come out, last in, first out; only the link is written. */
static void list_of(size_t size, size_t link, const char *name)
{
    struct percpu_freelist list;
    unsigned char *nodes = (unsigned char *)malloc(3 * size);
    unsigned wrong = 0, i;
    size_t b;
    void *chain;
    if (!nodes || percpu_freelist_init(&list, link) != 0) {
        ok(0, "memory for a list");
        free(nodes);
        return;
    }
    memset(nodes, 0xa5, 3 * size);
    errno = 44;
    wrong += percpu_freelist_pop(&list) != (void *)0;
    for (i = 0; i < 3; i++)
        percpu_freelist_push(&list, nodes + i * size);
    wrong += errno != 44;
    wrong += !(percpu_freelist_destroy(&list) == -1 && errno == EBUSY);
    for (i = 3; i-- > 0;)
        wrong += percpu_freelist_pop(&list) != nodes + i * size;
    wrong += percpu_freelist_pop(&list) != (void *)0;
    is(wrong, 0, name);
    for (wrong = 0, b = 0; b < 3 * size; b++)
        wrong += (b % size < link || b % size >= link + sizeof(void *)) && nodes[b] != 0xa5;
    is(wrong, 0, "only the link of a node is written");
    percpu_freelist_push(&list, nodes);
    percpu_freelist_push(&list, nodes + size);
    wrong = 0;
    for (i = 0; i < percpu_nr_cpus(); i++) {
        if (percpu_freelist_drain(&list, i, &chain) != 0)
            wrong += 100;
        for (; chain; wrong++)
            memcpy(&chain, (char *)chain + link, sizeof chain);
    }
    is(wrong, 2, "draining each CPU gives both nodes");
    is(percpu_freelist_destroy(&list), 0, "an empty list can be destroyed");
    free(nodes);
}

static void *lists_of_several_types(void *arg)
{
    if (arg)
        leave_rseq();
    move_to(0, cpus[0]);
    list_of(sizeof(struct first), PERCPU_LINK(struct first, link), "link first: LIFO");
    list_of(sizeof(struct middle), PERCPU_LINK(struct middle, link), "link in the middle");
    list_of(sizeof(struct last), PERCPU_LINK(struct last, in.link), "link in a member");
    return (void *)0;
}

static void one_thread(void)
{
    static struct percpu_freelist zeroed;
    struct first node = {(void *)0, 1};
    pthread_t t;
    void *chain = &node;
    ok(percpu_freelist_drain(&zeroed, 0, &chain) == 0 && chain == (void *)0,
       "nothing in a zeroed list");
    percpu_freelist_push(&zeroed, &node);
    errno = 0;
    chain = &node;
    ok(percpu_freelist_drain(&zeroed, percpu_nr_cpus(), &chain) == -1 && errno == EINVAL && !chain,
       "no such CPU: EINVAL");
    move_to(0, cpus[ncpus - 1]); /* the node may be on either CPU */
    chain = percpu_freelist_pop(&zeroed);
    for (unsigned i = 0; !chain && i < ncpus; i++) {
        move_to(0, cpus[i]);
        chain = percpu_freelist_pop(&zeroed);
    }
    ok(chain == &node, "a zeroed list, link at offset 0, works");
    move_anywhere();
    is(percpu_freelist_destroy(&zeroed), 0, "destroyed");
    for (int refused = 0; refused < 2; refused++) {
        pthread_create(&t, (pthread_attr_t *)0, lists_of_several_types,
                       refused ? &zeroed : (void *)0);
        pthread_join(t, (void **)0);
    }
}

static void *push_and_leave(void *arg)
{
    void **args = (void **)arg;
    move_to(0, cpus[0]);
    for (int i = 0; i < 3; i++)
        percpu_freelist_push((struct percpu_freelist *)args[0], (struct first *)args[1] + i);
    return (void *)0;
}

static void another_cpu_is_drained(void)
{
    static struct percpu_freelist list;
    static struct first nodes[3];
    void *args[2] = {&list, nodes}, *chain;
    pthread_t t;
    pthread_create(&t, (pthread_attr_t *)0, push_and_leave, args);
    pthread_join(t, (void **)0);
    move_to(0, cpus[ncpus - 1]);
    is(percpu_freelist_drain(&list, cpus[0], &chain), 0, "drain of a CPU that others pushed on");
    if (sections_at_start || chain)
        ok(chain == &nodes[2] && nodes[2].link == &nodes[1] && nodes[1].link == &nodes[0] &&
               nodes[0].link == (void *)0,
           "the chain is last in, first out, and ends with NULL");
    for (unsigned i = 0; i < percpu_nr_cpus(); i++)
        (void)percpu_freelist_drain(&list, i, &chain);
    /* While a row is closed, its CPU's threads go elsewhere, and a second drainer is told so. */
    if (list.base)
        percpu_ptr(list.base, cpus[ncpus - 1])->closed = 1;
    percpu_freelist_push(&list, &nodes[0]);
    ok(percpu_freelist_pop(&list) == &nodes[0], "push and pop work beside a drain");
    percpu_freelist_push(&list, &nodes[1]);
    if (list.base) {
        errno = 0;
        ok(percpu_freelist_drain(&list, cpus[ncpus - 1], &chain) == -1 && errno == EAGAIN,
           "a second drainer: EAGAIN");
        percpu_ptr(list.base, cpus[ncpus - 1])->closed = 0;
    }
    for (unsigned i = 0; chain != &nodes[1] && i < percpu_nr_cpus(); i++)
        (void)percpu_freelist_drain(&list, i, &chain);
    ok(chain == &nodes[1], "and the node that was pushed meanwhile is found");
    move_anywhere();
    is(percpu_freelist_destroy(&list), 0, "destroyed");
}

/* ---- Storms */

struct object {
    unsigned owner; /* 0: free */
    void *link;
    unsigned seen;
};
#define OBJECTS 256
#define WORKERS 6
static struct object objects[OBJECTS];
static struct percpu_freelist list_of_objects;
static int stop, refused_in; /* 0 no thread, 1 every other, 2 all */
static unsigned stolen, handled, drains, drain_errors;
static unsigned long operations;
static pid_t tids[WORKERS];
static __thread unsigned volatile me;

static struct object *take_object(unsigned owner)
{
    struct object *o = (struct object *)percpu_freelist_pop(&list_of_objects);
    if (o && __atomic_exchange_n(&o->owner, owner, __ATOMIC_RELAXED) != 0)
        (void)__atomic_fetch_add(&stolen, 1, __ATOMIC_RELAXED);
    return o;
}

static void give_object(struct object *o, unsigned owner)
{
    if (__atomic_exchange_n(&o->owner, 0, __ATOMIC_RELAXED) != owner)
        (void)__atomic_fetch_add(&stolen, 1, __ATOMIC_RELAXED);
    percpu_freelist_push(&list_of_objects, o);
}

static void pop_and_push_in_a_handler(int sig)
{
    struct object *a, *b;
    (void)sig;
    if (!me)
        return;
    a = take_object(me + 100);
    b = take_object(me + 100);
    if (a)
        give_object(a, me + 100);
    if (b)
        give_object(b, me + 100);
    (void)__atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
}

static void *pop_and_push(void *arg)
{
    struct object *held[8];
    unsigned n = 0, seed = (unsigned)(uintptr_t)arg * 77 + 1, number = (unsigned)(uintptr_t)arg + 1;
    unsigned long done_here = 0;
    if (refused_in == 2 || (refused_in && number % 2))
        leave_rseq();
    me = number;
    __atomic_store_n(&tids[number - 1], (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    block_alarm(SIG_UNBLOCK);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        seed = seed * 1103515245 + 12345;
        if (n == 8 || (n && seed >> 31)) {
            give_object(held[--n], number);
        } else {
            held[n] = take_object(number);
            n += held[n] != (struct object *)0;
        }
        if ((seed >> 8) % 8192 == 0)
            move_to(0, cpus[(seed >> 21) % ncpus]);
        done_here++;
    }
    block_alarm(SIG_BLOCK);
    me = 0;
    while (n)
        give_object(held[--n], number);
    (void)__atomic_fetch_add(&operations, done_here, __ATOMIC_RELAXED);
    return (void *)0;
}

/* Drain each CPU in turn; look at what came; push it back here. */
static void *drain_all_the_time(void *arg)
{
    unsigned number = 90 + (unsigned)(uintptr_t)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        for (unsigned cpu = 0; cpu < percpu_nr_cpus(); cpu++) {
            void *chain;
            if (percpu_freelist_drain(&list_of_objects, cpu, &chain) != 0 && errno != EAGAIN)
                (void)__atomic_fetch_add(&drain_errors, 1, __ATOMIC_RELAXED);
            while (chain) {
                struct object *o = (struct object *)chain;
                chain = o->link;
                if (__atomic_exchange_n(&o->owner, number, __ATOMIC_RELAXED) != 0)
                    (void)__atomic_fetch_add(&stolen, 1, __ATOMIC_RELAXED);
                give_object(o, number);
            }
            (void)__atomic_fetch_add(&drains, 1, __ATOMIC_RELAXED);
        }
    }
    return (void *)0;
}

/* Drain everything and count. Return: nodes that were not there exactly once. */
static unsigned count_objects(void)
{
    unsigned wrong = 0, i;
    void *chain;
    for (i = 0; i < OBJECTS; i++)
        objects[i].seen = 0;
    for (i = 0; i < percpu_nr_cpus(); i++) {
        if (percpu_freelist_drain(&list_of_objects, i, &chain) != 0)
            wrong += 10000;
        for (; chain; chain = ((struct object *)chain)->link)
            if (((struct object *)chain)->seen++ > 1)
                return 100000; /* a ring */
    }
    for (i = 0; i < OBJECTS; i++)
        wrong += objects[i].seen != 1 || objects[i].owner != 0;
    return wrong;
}

static void nodes_are_conserved(int refused, int drainers, int membarrier, double seconds)
{
    pthread_t threads[WORKERS + 2];
    const char *who = refused == 0   ? "all with rseq"
                      : refused == 1 ? "half without"
                                     : "none with rseq";
    const uint8_t was = percpu_priv_state.membarrier;
    unsigned long before = aborts();
    unsigned i, seed = 5;
    double end = now() + seconds;
    memset(&list_of_objects, 0, sizeof list_of_objects);
    list_of_objects.next = (uint32_t)PERCPU_LINK(struct object, link);
    memset(tids, 0, sizeof tids);
    stop = 0;
    refused_in = refused;
    stolen = handled = drains = drain_errors = 0;
    operations = 0;
    if (!membarrier)
        percpu_priv_state.membarrier = 2; /* as where the kernel refuses it */
    for (i = 0; i < OBJECTS; i++) {
        objects[i].owner = 0;
        percpu_freelist_push(&list_of_objects, &objects[i]);
    }
    set_alarm(70, pop_and_push_in_a_handler);
    for (i = 0; i < (unsigned)(WORKERS + drainers); i++)
        pthread_create(&threads[i], (pthread_attr_t *)0,
                       i < WORKERS ? pop_and_push : drain_all_the_time, (void *)(uintptr_t)i);
    do {
        pid_t tid = __atomic_load_n(&tids[seed >> 16 & 3], __ATOMIC_ACQUIRE);
        seed = seed * 1103515245 + 12345;
        if (tid)
            move_to(tid, cpus[(seed >> 20) % ncpus]);
        sched_yield();
    } while (now() < end || (refused < 2 && no_abort_yet(before, end + 30)));
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (i = 0; i < (unsigned)(WORKERS + drainers); i++)
        pthread_join(threads[i], (void **)0);
    set_alarm(0, pop_and_push_in_a_handler);
    is(stolen, 0, "no node has two owners");
    is(count_objects(), 0, "every node is there, once");
    is(drain_errors, 0, "no drain failed");
    note("%s, %d drainers, %s: %lu operations, %u handlers, %u drains, %lu aborts", who, drainers,
         membarrier ? "membarrier" : "affinity walk", operations, handled, drains,
         aborts() - before);
    if (refused < 2)
        aborted_since(before);
    is(percpu_freelist_destroy(&list_of_objects), 0, "the list is empty then");
    percpu_priv_state.membarrier = was;
}

/* ---- No memory; no way to fence. In children. */

static int without_memory(void)
{
    static struct percpu_freelist list;
    static struct first nodes[5];
    void *chain = &list;
    unsigned n = 0;
    (void)limit_address_space(4096); /* nothing more */
    errno = 33;
    for (int i = 0; i < 4; i++)
        percpu_freelist_push(&list, &nodes[i]);
    if (errno != 33 || list.base)
        return 1;
    if (percpu_freelist_pop(&list) != &nodes[3])
        return 2;
    if (percpu_freelist_destroy(&list) != -1 || errno != EBUSY)
        return 3;
    (void)limit_address_space(0);
    percpu_freelist_push(&list, &nodes[3]);
    percpu_freelist_push(&list, &nodes[4]);
    if (!list.base)
        return 4;
    if (percpu_freelist_destroy(&list) != -1 || errno != EBUSY)
        return 5;
    for (unsigned cpu = 0; cpu < percpu_nr_cpus(); cpu++)
        for (percpu_freelist_drain(&list, cpu, &chain); chain;
             chain = ((struct first *)chain)->link)
            n++;
    return n == 5 ? percpu_freelist_destroy(&list) != 0 ? 7 : 0 : 6;
}

static int without_a_fence(void)
{
    static struct percpu_freelist list;
    static struct first nodes[4];
    void *chain = nodes;
    unsigned n = 0;
    percpu_priv_state.membarrier = 0;
    move_to(0, cpus[0]);
    for (int i = 0; i < 4; i++)
        percpu_freelist_push(&list, &nodes[i]);
    if (seccomp_rseq(SYS_membarrier, SECCOMP_ERRNO(EPERM)) ||
        seccomp_rseq(SYS_sched_setaffinity, SECCOMP_ERRNO(EPERM)))
        return 77;
    for (unsigned cpu = 0; cpu < percpu_nr_cpus(); cpu++) {
        errno = 0;
        if (percpu_freelist_drain(&list, cpu, &chain) != -1 || errno != EPERM)
            return 1;
        for (; chain; chain = ((struct first *)chain)->link)
            n++; /* the second bank's need no fence */
        if (list.base && percpu_ptr(list.base, cpu)->closed)
            return 2;
    }
    while (percpu_freelist_pop(&list))
        n++;
    return n == 4 ? 0 : 3;
}

int main(void)
{
    const char *text = getenv("FREELIST_SECONDS");
    const double total = text ? atof(text) : 1.5;
    block_alarm(SIG_BLOCK);
    look_around(MOST_CPUS);
    if (SANITIZED)
        skip("out of memory", "a sanitizer needs its address space");
    else
        in_child(without_memory, "out of memory: nodes are kept in the handle, none is lost");
    in_child(without_a_fence, "no fence to be had: -1, EPERM, and no node is lost");
    one_thread();
    another_cpu_is_drained();
    for (int refused = 0; refused < 3; refused++) {
        nodes_are_conserved(refused, 0, 1, total * 0.1);
        nodes_are_conserved(refused, 1, 1, total * 0.1);
        nodes_are_conserved(refused, 2, 0, total * 0.1);
    }
    return done();
}
