/* SPDX-License-Identifier: MIT */
/*
 * seccomp.h - filters on the rseq system call, for tests on any libc (musl brings no kernel
 * headers).
 */
#ifndef TEST_SECCOMP_H
#define TEST_SECCOMP_H

#include <errno.h>
#include <stdint.h>
#include <sys/prctl.h>

#define SECCOMP_KILL 0x80000000u
#define SECCOMP_TRAP 0x00030000u
#define SECCOMP_ERRNO(e) (0x00050000u | (unsigned)(e))
#define SECCOMP_ALLOW 0x7fff0000u

struct seccomp_insn {
    uint16_t code;
    uint8_t if_true, if_false;
    uint32_t k;
};
struct seccomp_program {
    unsigned short len;
    struct seccomp_insn *insns;
};

/*
 * From now on, in this thread and its children: an rseq call whose argument @arg (0 to 5) equals
 * @value gets the action @equal, any other rseq call gets @other. Return: 0, or -1 if not
 * permitted.
 */
__attribute__((unused)) static int seccomp_rseq_by_arg(unsigned nr, unsigned arg, uint32_t value,
                                                       uint32_t equal, uint32_t other)
{
    struct seccomp_insn insns[] = {
        {0x20, 0, 0, 0},            /* load the system call's number */
        {0x15, 0, 2, nr},           /* not rseq: allow */
        {0x20, 0, 0, 16 + 8 * arg}, /* load the argument's low word (little-endian) */
        {0x15, 1, 2, value},
        {0x06, 0, 0, SECCOMP_ALLOW},
        {0x06, 0, 0, equal},
        {0x06, 0, 0, other},
    };
    struct seccomp_program program = {sizeof insns / sizeof insns[0], insns};
    if (prctl(38 /* PR_SET_NO_NEW_PRIVS */, 1, 0, 0, 0))
        return -1;
    return prctl(22 /* PR_SET_SECCOMP */, 2, &program) ? -1 : 0;
}

/* Every rseq call gets @action. */
__attribute__((unused)) static int seccomp_rseq(unsigned nr, uint32_t action)
{
    return seccomp_rseq_by_arg(nr, 0, 0, action, action);
}
#endif
