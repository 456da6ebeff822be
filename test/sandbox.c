/* SPDX-License-Identifier: MIT */
/* sandbox ERRNO PROGRAM [ARG...] - run a program where seccomp answers rseq with an error. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        unsigned value;
    } errors[] = {{"enosys", ENOSYS}, {"eperm", EPERM}, {"eacces", EACCES}, {"kill", 0}};
    unsigned action = SECCOMP_RET_ALLOW;
    if (argc < 3)
        goto usage;
    for (unsigned i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (!strcmp(argv[1], errors[i].name))
            action =
                errors[i].value ? SECCOMP_RET_ERRNO | errors[i].value : SECCOMP_RET_KILL_PROCESS;
    if (action == SECCOMP_RET_ALLOW)
        goto usage;
    {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rseq, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, action),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof code / sizeof code[0], code};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
            perror("sandbox: prctl");
            return 77;
        }
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
usage:
    fprintf(stderr, "usage: sandbox enosys|eperm|eacces|kill PROGRAM [ARG...]\n");
    return 2;
}
