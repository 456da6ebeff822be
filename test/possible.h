/* SPDX-License-Identifier: MIT */
/*
 * A file of ours in place of the one that lists the CPUs, as some containers do it: for this
 * process alone, in a mount namespace of its own.
 */
#ifndef TEST_POSSIBLE_H
#define TEST_POSSIBLE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define POSSIBLE "/sys/devices/system/cpu/possible"

enum { HIDDEN, HIDING_REFUSED, HIDING_FAILED };

/* @text: what the file says; NULL: reads of it fail. */
static inline int hide_possible(const char *text)
{
    const char *dir = getenv("TMPDIR");
    char name[4096];
    int fd, written, mounted;
    if (unshare(CLONE_NEWNS) ||
        mount("none", "/", (const char *)0, MS_REC | MS_PRIVATE, (const void *)0))
        return HIDING_REFUSED;
    if (!text)
        return mount("/proc/self/mem", POSSIBLE, (const char *)0, MS_BIND, (const void *)0)
                   ? HIDING_REFUSED
                   : HIDDEN;
    snprintf(name, sizeof name, "%s/percpu-possible-XXXXXX", dir && *dir ? dir : "/tmp");
    fd = mkstemp(name);
    if (fd < 0)
        return HIDING_FAILED;
    written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    mounted = mount(name, POSSIBLE, (const char *)0, MS_BIND, (const void *)0) == 0;
    unlink(name); /* the mount keeps it */
    return !written ? HIDING_FAILED : mounted ? HIDDEN : HIDING_REFUSED;
}

#endif
