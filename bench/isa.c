/* SPDX-License-Identifier: MIT */
/*
 * isa LEVEL - can this CPU run code built for x86-64, x86-64-v2, -v3 or -v4? Built for the
 * baseline, so that it can say so itself, rather than an illegal instruction.
 *
 * BENCH_ISA_ASSUME lists features, separated by commas, that a virtual machine hides from cpuid
 * though the CPU has them. Exit: 0 yes, 1 no, 2 what is that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports knows these by name. */
static int has_bit(unsigned leaf, int reg, int bit)
{
    unsigned r[4] = {0, 0, 0, 0};
    return __get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]) && (r[reg] >> bit & 1);
}

/* Of vector registers, also whether the system saves them: __builtin_cpu_supports asks both. */
static int has(int level, const char *missing[], int n)
{
    struct {
        int level, there;
        const char *name;
    } f[] = {
        {2, has_bit(1, 2, 13), "cmpxchg16b"},
        {2, has_bit(0x80000001u, 2, 0), "lahf"},
        {2, __builtin_cpu_supports("popcnt"), "popcnt"},
        {2, __builtin_cpu_supports("sse3"), "sse3"},
        {2, __builtin_cpu_supports("ssse3"), "ssse3"},
        {2, __builtin_cpu_supports("sse4.1"), "sse4.1"},
        {2, __builtin_cpu_supports("sse4.2"), "sse4.2"},
        {3, __builtin_cpu_supports("avx"), "avx"},
        {3, __builtin_cpu_supports("avx2"), "avx2"},
        {3, __builtin_cpu_supports("bmi"), "bmi"},
        {3, __builtin_cpu_supports("bmi2"), "bmi2"},
        {3, __builtin_cpu_supports("fma"), "fma"},
        {3, has_bit(1, 2, 29), "f16c"},
        {3, has_bit(0x80000001u, 2, 5), "lzcnt"},
        {3, has_bit(1, 2, 22), "movbe"},
        {4, __builtin_cpu_supports("avx512f"), "avx512f"},
        {4, __builtin_cpu_supports("avx512bw"), "avx512bw"},
        {4, __builtin_cpu_supports("avx512cd"), "avx512cd"},
        {4, __builtin_cpu_supports("avx512dq"), "avx512dq"},
        {4, __builtin_cpu_supports("avx512vl"), "avx512vl"},
    };
    const char *assume = getenv("BENCH_ISA_ASSUME");
    int count = 0;
    for (size_t i = 0; i < sizeof f / sizeof *f; i++)
        if (f[i].level <= level && !f[i].there && !(assume && strstr(assume, f[i].name)) &&
            count < n)
            missing[count++] = f[i].name;
    return count;
}
#endif

int main(int argc, char **argv)
{
    static const char *const levels[] = {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
    for (int i = 0; argc == 2 && i < 4; i++) {
        if (strcmp(argv[1], levels[i]))
            continue;
#if defined(__x86_64__)
        const char *missing[32];
        __builtin_cpu_init();
        int n = has(i + 1, missing, 32);
        if (n)
            printf("%s: not run: this CPU, or the system on it, does not announce", argv[1]);
        for (int k = 0; k < n; k++)
            printf("%s%s", k ? ", " : " ", missing[k]);
        if (n)
            putchar('\n');
        return n != 0;
#else
        printf("%s: not run: this is another processor\n", argv[1]);
        return 1;
#endif
    }
    fprintf(stderr, "usage: isa x86-64|x86-64-v2|x86-64-v3|x86-64-v4\n");
    return 2;
}
