/* SPDX-License-Identifier: MIT */
/* tap.h - the Test Anything Protocol, as prove reads it. Include percpu.h first. C and C++. */
#ifndef TAP_H
#define TAP_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_count, tap_failed;

__attribute__((format(printf, 4, 5), unused)) static int tap_ok(int pass, const char *file,
                                                                int line, const char *fmt, ...)
{
    va_list ap;
    printf("%s %d - ", pass ? "ok" : "not ok", ++tap_count);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    if (!pass) {
        tap_failed++;
        printf("#   at %s:%d\n", file, line);
    }
    fflush(stdout);
    return pass;
}
#define ok(pass, ...) tap_ok(!!(pass), __FILE__, __LINE__, __VA_ARGS__)

/* Compare as unsigned long, and show both. */
__attribute__((unused)) static int tap_is(unsigned long got, unsigned long want, const char *file,
                                          int line, const char *name)
{
    int pass = tap_ok(got == want, file, line, "%s", name);
    if (!pass)
        printf("#   got %lu (%ld), expected %lu (%ld)\n", got, (long)got, want, (long)want);
    return pass;
}
#define is(got, want, name) \
    tap_is((unsigned long)(got), (unsigned long)(want), __FILE__, __LINE__, name)

/* A line of explanation; not a result. */
__attribute__((format(printf, 1, 2), unused)) static void note(const char *fmt, ...)
{
    va_list ap;
    printf("# ");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

/* One test that cannot run here; counted, with its reason. */
__attribute__((unused)) static void skip(const char *name, const char *reason)
{
    printf("ok %d - %s # SKIP %s\n", ++tap_count, name, reason);
    fflush(stdout);
}

/* The plan, last. Return it from main. */
__attribute__((unused)) static int done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

/* Nothing in this file can run here. */
__attribute__((unused)) static void skip_all(const char *reason)
{
    printf("1..0 # SKIP %s\n", reason);
    exit(77);
}

#ifdef PERCPU_H
/* For tests that are about critical sections: without them, skip, or fail under REQUIRE_RSEQ=1. */
__attribute__((unused)) static void need_sections(void)
{
    char text[512];
    if (percpu_status().mode != PERCPU_MODE_FALLBACK)
        return;
    percpu_status_format(text, sizeof text);
    if (getenv("REQUIRE_RSEQ")) {
        ok(0, "REQUIRE_RSEQ=1, but: %s", text);
        exit(done());
    }
    skip_all(text);
}
#endif
#endif
