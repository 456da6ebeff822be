/* SPDX-License-Identifier: MIT */
/* lto.h - shapes of code that optimisers rearrange, shared by the two files of a program. */
#ifndef LTO_H
#define LTO_H
#include "percpu.h"

struct tally {
    uint32_t word;
    uintptr_t wide;
    uint32_t taken;
};

/* What an add of n to each of the two members did, counted by its caller. */
#define LTO_INLINE static inline __attribute__((always_inline, unused))
LTO_INLINE void both(struct tally *t, unsigned n)
{
    percpu_this_cpu_add(t->word, n); /* two sections in one function */
    percpu_this_cpu_add(t->wide, n);
}

#ifdef __cplusplus
template <int n> struct unroll {
    static void run(struct tally *t)
    {
        both(t, 1);
        unroll<n - 1>::run(t);
    }
};
template <> struct unroll<0> {
    static void run(struct tally *) {}
};
extern "C" {
#endif
void lto_other_file(struct tally *t, struct percpu_counter *c, unsigned n, unsigned *took);
#ifdef __cplusplus
}
#endif
#endif
