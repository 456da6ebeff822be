/* SPDX-License-Identifier: MIT */
/* files.h - what the files of one program (files_main.c, files_part.c, files_cxx.cc) share. */
#ifndef FILES_H
#define FILES_H
#include "percpu.h"

/*
 * Each file that is compiled with -DPART=name defines this: where its state and its thread's area
 * are, and a way to operate from it.
 */
struct part {
    const void *(*state)(void);
    const void *(*thread)(void);
    void (*add)(struct percpu_counter *c, uint32_t *word, int times);
    int (*release)(void *p);
    unsigned (*nr_cpus)(void);
    struct percpu_status (*status)(void);
    percpu_word (*own_sum)(void); /* of a file that has objects of its own (-DOWN_OBJECTS) */
};

#ifdef __cplusplus
extern "C" {
#endif
extern const struct part first, second;
#ifdef __cplusplus
}
/*
 * Inline functions, a template and members that operate, for two files: the linker keeps one copy
 * of each, and discards the other together with its descriptors.
 */
inline void files_bump(struct percpu_counter *c)
{
    percpu_counter_inc(c);
}
template <typename T> void files_bump_word(T *word)
{
    percpu_this_cpu_add(*word, 1);
}
template <int n> struct files_repeat {
    static void bump(struct percpu_counter *c)
    {
        percpu_counter_inc(c);
        files_repeat<n - 1>::bump(c);
    }
};
template <> struct files_repeat<0> {
    static void bump(struct percpu_counter *) {}
};
class files_meter
{
  public:
    explicit files_meter(uint32_t *word) : word_(word) {}
    virtual ~files_meter() {}
    virtual void hit() { percpu_this_cpu_inc(*word_); }
    uint32_t exchange() const { return percpu_this_cpu_add_return(*word_, 0); }

  private:
    uint32_t *word_;
};
#endif
#endif
