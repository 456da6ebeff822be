/* SPDX-License-Identifier: MIT */
/*
 * A library that shares its area under the old name, and registers it with length 32 when asked to.
 */
#include <stdint.h>
#include <unistd.h>
#include <sys/syscall.h>

struct area {
    uint32_t words[8];
};
__thread struct area __rseq_abi __attribute__((aligned(32))) = {{0, 0xffffffffu, 0, 0, 0, 0, 0, 0}};
long syscall(long, ...);
long foreign_rseq(int flags);
long foreign_cpu(void);

long foreign_rseq(int flags)
{
#if defined(__x86_64__)
    return syscall(334, &__rseq_abi, 32, flags, 0x53053053);
#else
    return syscall(293, &__rseq_abi, 32, flags, 0xd428bc00);
#endif
}
long foreign_cpu(void)
{
    return (int)__rseq_abi.words[1];
}
