/* SPDX-License-Identifier: MIT */
/*
 * A fiber that moves to another thread between two operations of one function. Compilers keep the
 * thread pointer, and addresses of thread-locals, across the switch; the second operation must
 * nevertheless read the id of, register, and act in, the thread it runs in.
 *
 * Seen to fail: with the id read through the address of a thread-local (gcc).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include "tap.h"

#if defined(__x86_64__) && PERCPU_RSEQ_PORTED

enum { ROUNDS = 500, UNROLLED = 8 };

/* swap_stack(save, next): push what a call preserves, note %rsp in *save, go on at next. */
#ifdef __cplusplus
extern "C"
#endif
    void
    test_swap_stack(void **save, void *next);
__asm__(".text\n\t.globl test_swap_stack\n\t.type test_swap_stack, @function\n"
        "test_swap_stack:\n\t"
        "pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
        "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
        "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret\n\t"
        ".size test_swap_stack, . - test_swap_stack\n");

static struct percpu_counter counter;
static unsigned long *object;
static enum percpu_mode mode;

/* ---- One fiber that two threads run in turns */

static void *fiber_stack, *thread_stack; /* where to go on */
static int turn;                         /* whose: 0 or 1; 2: the fiber has ended */
static int cpu_of[2];                    /* that the threads are pinned to; -1: none */
static pthread_t threads[2];
static unsigned wrong_cpu, wrong_raw, wrong_thread, unregistered, moves;
static unsigned long wanted;

/* To the other thread, and on when that one has picked the fiber up. No thread-local in here. */
static inline void move(void)
{
    test_swap_stack(&fiber_stack, thread_stack);
}

/* What the fiber checks of the thread it is in, from what the threads wrote down. */
__attribute__((noinline)) static unsigned current(void)
{
    return (unsigned)__atomic_load_n(&turn, __ATOMIC_ACQUIRE);
}

#define LOOK(id)                                                        \
    do {                                                                \
        unsigned who = current();                                       \
        wrong_cpu += cpu_of[who] >= 0 && (id) != (unsigned)cpu_of[who]; \
    } while (0)

/* Two operations and a move between them, all inlined here. */
static void in_one_function(void)
{
    unsigned first = this_cpu_id();
    LOOK(first);
    percpu_counter_inc(&counter);
    this_cpu_inc(*object);
    move();
    unsigned second = this_cpu_id();
    LOOK(second);
    percpu_counter_inc(&counter);
    this_cpu_inc(*object);
    wrong_thread += cpu_of[0] >= 0 && cpu_of[0] != cpu_of[1] && first == second;
    unregistered += mode != PERCPU_MODE_FALLBACK && percpu_cpu_raw() < 0;
    wanted += 2;
}

/* In a loop, where a compiler would take the thread pointer out of it. */
static void in_a_loop(void)
{
    for (int i = 0; i < UNROLLED; i++) {
        percpu_counter_inc(&counter);
        this_cpu_add(*object, 1);
        int raw = percpu_cpu_raw();
        unsigned me = current();
        wrong_raw += mode != PERCPU_MODE_FALLBACK && cpu_of[me] >= 0 && raw != cpu_of[me];
        LOOK(this_cpu_id());
        wanted++;
        move();
    }
}

/* Operations with results, which have a register for the thread pointer's offset each. */
static void with_results(void)
{
    unsigned long a = this_cpu_add_return(*object, 1);
    move();
    unsigned long b = this_cpu_add_return(*object, 1);
    move();
    unsigned long c = this_cpu_read(*object);
    wrong_thread += a == 0 || b == 0 || c == 0;
    percpu_counter_add(&counter, 2);
    wanted += 2;
}

static void fiber(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        in_one_function();
        in_a_loop();
        with_results();
    }
    __atomic_store_n(&turn, 2, __ATOMIC_RELEASE);
    move();
}

/* Runs the fiber until it moves, then hands it to the other thread. */
static void *runs_fiber(void *arg)
{
    unsigned me = *(unsigned *)arg;
    for (;;) {
        unsigned now;
        while ((now = current()) != me) {
            if (now == 2)
                return (void *)0;
            sched_yield();
        }
        test_swap_stack(&thread_stack, fiber_stack);
        if (current() == 2)
            return (void *)0;
        moves++;
        __atomic_store_n(&turn, (int)(1 - me), __ATOMIC_RELEASE);
    }
}

static void *pinned_thread(void *arg)
{
    unsigned me = *(unsigned *)arg;
    cpu_set_t one;
    CPU_ZERO(&one);
    if (cpu_of[me] >= 0) {
        CPU_SET((unsigned)cpu_of[me], &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    return runs_fiber(arg);
}

int main(void)
{
    static unsigned numbers[2] = {0, 1};
    static char memory[1 << 18] __attribute__((aligned(64)));
    cpu_set_t allowed;
    void **top = (void **)(void *)(memory + sizeof memory);
    unsigned long sum = 0, *copy;
    int found = 0;

    mode = percpu_status().mode;
    if (getenv("REQUIRE_RSEQ"))
        need_sections();
    object = PERCPU_NEW(unsigned long);
    cpu_of[0] = cpu_of[1] = -1;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET((unsigned)cpu, &allowed))
            cpu_of[found++] = cpu;
    if (found < 2) {
        skip("threads on two CPUs", "only one CPU is allowed");
        cpu_of[0] = cpu_of[1] = -1;
    }

    *--top = (void *)0;                /* aligns the stack as at a call */
    *--top = (void *)(uintptr_t)fiber; /* returned to */
    top -= 6;                          /* the preserved registers */
    fiber_stack = top;
    for (unsigned i = 0; i < 2; i++)
        if (pthread_create(&threads[i], (pthread_attr_t *)0, pinned_thread, &numbers[i]))
            return 1;
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], (void **)0);

    percpu_for_each_copy(object, copy) sum += *copy;
    ok(moves >= ROUNDS, "the fiber moved %u times", moves);
    is(wrong_cpu, 0, "this_cpu_id() is the CPU of the thread it runs in");
    is(wrong_raw, 0, "and so is the raw id in a loop");
    is(wrong_thread, 0, "no id is the other thread's");
    is(unregistered, 0, "both threads are registered");
    is(percpu_counter_sum(&counter), wanted, "the counter is exact");
    is(sum, wanted, "the object is exact");
    return done();
}
#else
int main(void)
{
    skip_all("the context switch is written for x86-64");
}
#endif
