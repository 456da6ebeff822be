/* SPDX-License-Identifier: MIT */
/* files_part.c - one file of a program; as C or C++. -DPART=first or second. */
#include "files.h"

static const void *my_state(void)
{
    return &percpu_priv_state;
}
static const void *my_thread(void)
{
#if PERCPU_RSEQ_PORTED
    return percpu_priv_thread();
#else
    return (void *)0;
#endif
}
#ifdef OWN_OBJECTS /* a file of another stride may not touch the others' */
static struct percpu_counter own;
static uint32_t *own_word;
#endif

static void my_add(struct percpu_counter *c, uint32_t *word, int times)
{
#ifdef OWN_OBJECTS
    uint32_t *none = (uint32_t *)0, *fresh = own_word ? none : PERCPU_NEW(uint32_t);
    if (fresh && !__atomic_compare_exchange_n(&own_word, &none, fresh, 0, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE))
        (void)percpu_free(fresh);
    c = &own;
    word = own_word;
#endif
    for (int i = 0; i < times; i++) {
#ifdef __cplusplus
        files_meter meter(word);
        files_bump(c);
        files_repeat<3>::bump(c);
        percpu_counter_sub(c, 3);
        files_bump_word(word);
        meter.hit();
        percpu_this_cpu_sub(*word, 1);
        (void)meter.exchange();
#else
        percpu_counter_inc(c);
        percpu_this_cpu_inc(*word);
#endif
    }
}
static int my_release(void *p)
{
    return percpu_free(p);
}
static percpu_word my_own_sum(void)
{
#ifdef OWN_OBJECTS
    uint32_t *copy, sum = 0;
    percpu_for_each_copy(own_word, copy) sum += *copy;
    return sum == percpu_counter_sum(&own) ? sum : 0;
#else
    return 0;
#endif
}
static unsigned my_nr_cpus(void)
{
    return percpu_nr_cpus();
}
static struct percpu_status my_status(void)
{
    return percpu_status();
}

#ifdef __cplusplus
extern "C" {
extern const struct part PART;
}
#endif
const struct part PART = {my_state,   my_thread, my_add,    my_release,
                          my_nr_cpus, my_status, my_own_sum};
