/* SPDX-License-Identifier: MIT */
/*
 * A kernel that does not abort sections reliably: which releases those are, and that no critical
 * section runs there, not even before the first constructor.
 *
 * Seen to fail: with a bound of ids that is set before the release is known.
 */
#define PERCPU_TEST_RELEASE "7.0.3"
#include "percpu.h"
#include "tap.h"

#if PERCPU_RSEQ_SECTIONS
static const struct {
    const char *release;
    int broken;
} releases[] = {
    {"6.18.44", 0},
    {"6.18.44-arm64", 0},
    {"6.19.0", 1},
    {"6.19", 1},
    {"6.19.14-arm64", 1},
    {"6.19.0-rc1", 1},
    {"7.0.0", 1},
    {"7.0", 1},
    {"7.0-rc7", 1},
    {"7.0.13", 1},
    {"7.0.13+deb14-arm64", 1},
    {"7.0.14", 0},
    {"7.0.14-arm64", 0},
    {"7.0.100", 0},
    {"7.1-rc2", 1},
    {"7.1.0-rc2", 1},
    {"7.1.0-rc2-next", 1},
    {"7.1.0-rc3", 0},
    {"7.1-rc3", 0},
    {"7.1.0-rc10", 0},
    {"7.1.0", 0},
    {"7.1.1", 0},
    {"7.2.0", 0},
    {"7.10.0", 0},
    {"8.0.0", 0},
    {"5.10.0-28-arm64", 0},
    {"4.19.0", 0},
    {"6.1.0-7.0.3", 0},
    {"6.12.19", 0},
    {"16.19.0", 0},
    {"70.0.3", 0},
    {"garbage", 0},
    {"", 0},
    {"-rc", 0},
    {"...", 0},
};

static struct percpu_counter early;
static enum percpu_reason early_reason = PERCPU_REASON_NONE;
static void before_constructors(void)
{
    percpu_counter_inc(&early);
    early_reason = percpu_status().reason;
}
#ifdef __GLIBC__
__attribute__((section(".preinit_array"),
               used)) static void (*const first_of_all)(void) = before_constructors;
#else
__attribute__((section(".init_array.00050"),
               used)) static void (*const first_of_all)(void) = before_constructors;
#endif

/* What sections wrote: the first bank. */
static percpu_word in_sections(struct percpu_counter *c)
{
    percpu_word sum = 0;
    for (unsigned cpu = 0; cpu < percpu_nr_cpus(); cpu++)
        sum += c->base ? *percpu_ptr(c->base, cpu) : 0;
    return sum;
}

int main(void)
{
    static struct percpu_counter counter;
    struct percpu_status s = percpu_status();
    for (unsigned i = 0; i < sizeof releases / sizeof releases[0]; i++)
        ok(percpu_priv_release_broken(releases[i].release) == releases[i].broken, "\"%s\" is %s",
           releases[i].release, releases[i].broken ? "broken" : "sound");
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&counter);
    is(s.mode, PERCPU_MODE_FALLBACK, "fallback on a broken kernel");
    is(s.reason, PERCPU_REASON_KERNEL_BROKEN, "the reason is KERNEL_BROKEN");
    is(percpu_status().reason, PERCPU_REASON_KERNEL_BROKEN, "also after operating");
    is(percpu_counter_sum(&counter), 1000, "exact");
    is(in_sections(&counter), 0, "none of it by critical sections");
    is(early_reason, PERCPU_REASON_KERNEL_BROKEN, "the reason before any constructor");
    is(percpu_counter_sum(&early), 1, "an add before any constructor is exact");
    is(in_sections(&early), 0, "and not by a critical section");
    percpu_counter_inc(&early);
    is(in_sections(&early), 0, "nor is the next");
    ok(this_cpu_id() < percpu_nr_cpus(), "this_cpu_id() answers");
    return done();
}
#else
int main(void)
{
    skip_all("no critical sections for this processor");
}
#endif
