/* SPDX-License-Identifier: MIT */
/*
 * init - the first process of a test kernel. Static. Runs what /jobs lists, one job a line:
 *
 *   NAME SECONDS [VARIABLE=VALUE...] PROGRAM [ARGUMENT...]
 *
 * puts each job's output on the console between "@@begin NAME" and "@@end NAME STATUS", and powers
 * off. A job that does not end in time is killed with all its children: STATUS 124; one that died
 * of a signal: 128 + signal. The pseudo programs `online` and `offline` take CPU numbers, `cpus`
 * shows which are there; `use` makes /libc a link to a libc, for the programs whose loader is
 * /libc/ld.so.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static char *const no_environment[] = {(char *)"PATH=/bin", (char *)"HOME=/", (char *)"TMPDIR=/tmp",
                                       NULL};

static void say(const char *format, const char *a, const char *b)
{
    printf(format, a, b);
    fflush(stdout);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void show(const char *path)
{
    char text[256];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n > 0) {
        text[n] = 0;
        text[strcspn(text, "\n")] = 0;
        say("@@cpus %s %s\n", strrchr(path, '/') + 1, text);
    }
    if (fd >= 0)
        close(fd);
}

/* Put CPUs online or take them off. Return: 0, or 1 where the kernel refuses one. */
static int set_cpus(char **numbers, const char *value)
{
    char path[128];
    int failed = 0;
    for (; *numbers; numbers++) {
        int fd;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%s/online", *numbers);
        fd = open(path, O_WRONLY);
        if (fd < 0 || write(fd, value, 1) != 1) {
            printf("# %s: %s\n", path, strerror(errno));
            failed = 1;
        }
        if (fd >= 0)
            close(fd);
    }
    return failed;
}

static int wait_for(pid_t child, double seconds)
{
    const struct timespec tick = {0, 20 * 1000 * 1000};
    double end = now() + seconds;
    int status = 0, timed_out = 0;
    for (;;) {
        pid_t p = waitpid(-1, &status, WNOHANG);
        if (p == child)
            break;
        if (p == 0) {
            if (!timed_out && now() > end) {
                timed_out = 1;
                kill(-1, SIGKILL); /* everybody but us */
            }
            nanosleep(&tick, NULL);
        }
    }
    if (timed_out)
        return 124;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run(char **words)
{
    double seconds = atof(words[1]);
    char **argv = words + 2;
    pid_t child;
    if (!strcmp(argv[0], "online") || !strcmp(argv[0], "offline"))
        return set_cpus(argv + 1, argv[0][1] == 'n' ? "1" : "0");
    if (!strcmp(argv[0], "cpus")) {
        show("/sys/devices/system/cpu/possible");
        show("/sys/devices/system/cpu/online");
        return 0;
    }
    if (!strcmp(argv[0], "use")) {
        unlink("/libc");
        return symlink(argv[1], "/libc") != 0;
    }
    child = fork();
    if (child == 0) {
        setsid();
        for (; strchr(*argv, '='); argv++)
            putenv(*argv);
        execv(argv[0], argv);
        printf("not ok - %s: %s\n", argv[0], strerror(errno));
        fflush(stdout);
        _exit(127);
    }
    return child < 0 ? 126 : wait_for(child, seconds);
}

static void run_line(char *line)
{
    char *words[32], *save = NULL, status[64];
    double start = now();
    int n = 0, ended;
    for (char *w = strtok_r(line, " \n", &save); w && n < 31; w = strtok_r(NULL, " \n", &save))
        words[n++] = w;
    words[n] = NULL;
    if (n < 3)
        return;
    say("@@begin %s%s\n", words[0], "");
    ended = run(words);
    snprintf(status, sizeof status, "%d %.1f", ended, now() - start);
    kill(-1, SIGKILL); /* what the job left behind */
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    say("\n@@end %s %s\n", words[0], status);
}

static void make_tree(void)
{
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mkdir("/dev", 0755);
    mkdir("/tmp", 01777);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    mkdir("/dev/shm", 01777);
    mkdir("/dev/pts", 0755);
    mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
    mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
}

int main(void)
{
    struct utsname uts;
    struct rlimit core = {0, 0};
    char line[1024];
    FILE *jobs;
    make_tree();
    if (fcntl(1, F_GETFD) < 0 || !isatty(1)) { /* the kernel had no /dev/console for us */
        int fd = open("/dev/console", O_RDWR);
        dup2(fd, 0);
        dup2(fd, 1);
        dup2(fd, 2);
    }
    environ = (char **)no_environment;
    setrlimit(RLIMIT_CORE, &core);
    uname(&uts);
    say("\n@@init %s %s\n", uts.release, uts.machine);
    show("/sys/devices/system/cpu/possible");
    show("/sys/devices/system/cpu/online");
    jobs = fopen("/jobs", "r");
    while (jobs && fgets(line, sizeof line, jobs))
        run_line(line);
    say("@@done%s%s\n", "", "");
    tcdrain(1);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 16) { /* to take so many down takes minutes */
        int fd = open("/proc/sysrq-trigger", O_WRONLY);
        if (fd >= 0 && write(fd, "b", 1) == 1) /* start again, at once: the emulator ends */
            sleep(5);
    }
    sync();
    reboot(RB_POWER_OFF);
    reboot(RB_HALT_SYSTEM);
    for (;;)
        pause();
}
