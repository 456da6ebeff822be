/* SPDX-License-Identifier: MIT */
/*
 * malloc_witness.h - the calls that malloc_count.c makes, with plain atomics instead of percpu.h.
 *
 * For the check only: malloc_count.c is built a second time with `-include malloc_witness.h` and
 * preloaded behind the first. Both see the same calls, so both have to report the same counts.
 */
#define PERCPU_H

typedef unsigned long percpu_word;
struct percpu_counters {
    percpu_word count[3];
};
#define PERCPU_COUNTERS_INIT(n, flags) \
    {                                  \
        {                              \
            0, 0, 0                    \
        }                              \
    }

static inline void percpu_counters_add(struct percpu_counters *set, unsigned e, percpu_word v)
{
    __atomic_fetch_add(&set->count[e], v, __ATOMIC_SEQ_CST);
}
static inline void percpu_counters_inc(struct percpu_counters *set, unsigned e)
{
    percpu_counters_add(set, e, 1);
}
static inline void percpu_counters_snapshot(struct percpu_counters *set, percpu_word *out)
{
    for (unsigned e = 0; e < 3; e++)
        out[e] = __atomic_load_n(&set->count[e], __ATOMIC_SEQ_CST);
}
