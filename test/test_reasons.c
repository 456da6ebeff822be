/* SPDX-License-Identifier: MIT */
/*
 * Each reason for the fallback, reached by its real cause: a sandbox, another owner, a hidden CPU,
 * used-up keys... The program runs itself again once per cause. In each, the status foretells the
 * reason before the first operation, where there is one before, and operations are exact.
 *
 * Elsewhere: test_reasons_noreg.c (LIBC_DISABLED), test_reasons_disabled.c (DISABLED),
 * test_reasons_broken.c (KERNEL_BROKEN), check_plugins.sh (NO_STATIC_TLS). NOT_PORTED cannot be
 * reached on a processor that has critical sections.
 *
 * Seen to fail: with EINVAL taken for a sandbox; with a status that forgets the key or the range
 * of ids.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "percpu.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include "plugins/seccomp.h"
#include "possible.h"
#include "tap.h"

/* ---- Texts, on any processor */

static const struct {
    enum percpu_reason reason;
    const char *missing, *remedy;
} texts[] = {
    {PERCPU_REASON_NO_KERNEL, "kernel", "Linux 4.18"},
    {PERCPU_REASON_BLOCKED, "sandbox", "seccomp"},
    {PERCPU_REASON_LIBC_DISABLED, "libc", "PERCPU_NO_REGISTER"},
    {PERCPU_REASON_OTHER_OWNER, "another library", "turn rseq off in that library"},
    {PERCPU_REASON_KERNEL_BROKEN, "kernel", "7.0.14"},
    {PERCPU_REASON_NOT_PORTED, "processor", "porting checklist"},
    {PERCPU_REASON_EXITING, "exiting", "percpu_thread_register()"},
    {PERCPU_REASON_ID_RANGE, "/sys/devices/system/cpu/possible", "show the real file"},
    {PERCPU_REASON_NOT_MAINTAINED, "libc has an rseq area", "pthread_create"},
    {PERCPU_REASON_DISABLED, "built without", "PERCPU_FORCE_FALLBACK"},
    {PERCPU_REASON_UNREGISTERED, "percpu_thread_unregister()", "new thread"},
    {PERCPU_REASON_NO_STATIC_TLS, "plugin", "-rdynamic"},
    {PERCPU_REASON_NO_EXIT_HOOK, "pthread key", "fewer"},
};

static void texts_say_what_to_do(void)
{
    unsigned n = sizeof texts / sizeof texts[0];
    for (unsigned i = 0; i < n; i++) {
        const char *text = percpu_reason_text(texts[i].reason), *remedy = strchr(text, ';');
        ok(remedy && strstr(text, texts[i].missing) && strstr(text, texts[i].missing) < remedy,
           "text %u names what is missing", (unsigned)texts[i].reason);
        ok(remedy && strstr(text, "operations") && strstr(text, "are atomics"),
           "and what it costs");
        ok(remedy && strstr(remedy, texts[i].remedy), "and what to do");
        ok(!strchr(text, '\n') && strlen(text) < 256, "in one sentence");
        for (unsigned j = 0; j < i; j++)
            if (!strcmp(text, percpu_reason_text(texts[j].reason)))
                ok(0, "texts %u and %u differ", j, i);
    }
    is(n, PERCPU_REASON_NO_EXIT_HOOK, "no reason is left out");
    ok(!strstr(percpu_reason_text(PERCPU_REASON_NONE), "atomics"), "no reason: no cost");
    ok(strstr(percpu_reason_text((enum percpu_reason)15), "unknown") != (char *)0,
       "a reason from the future has a text");
}

static void format_is_like_snprintf(void)
{
    char whole[1024], part[1024];
    int n = percpu_status_format((char *)0, 0), bad = 0;
    struct percpu_status s = percpu_status();
    is(percpu_status_format(whole, sizeof whole), n,
       "percpu_status_format() returns one length for any size");
    is(strlen(whole), n, "which is the text's");
    ok(strstr(whole, percpu_reason_text(s.reason)) != (char *)0, "the text has the reason in it");
    ok(strstr(whole, "percpu " PERCPU_VERSION_STRING) == whole, "and the version");
    for (int size = 1; size <= n + 2; size++) {
        memset(part, 'x', sizeof part);
        bad += percpu_status_format(part, (size_t)size) != n;
        bad += strlen(part) != (size_t)(size <= n ? size - 1 : n);
        bad += memcmp(part, whole, strlen(part)) != 0;
        bad += part[size > n ? n + 1 : size] != 'x';
    }
    is(bad, 0, "cut to any size, terminated, nothing written behind");
}

#if PERCPU_RSEQ_PORTED && PERCPU_RSEQ_SECTIONS

/* ---- Causes. Each function runs in a process of its own, in its first thread. */

static struct percpu_counter counter;
#define CHECK(x) ((x) ? 0 : (printf("#   line %d: %s\n", __LINE__, #x), fflush(stdout), 1))
enum { CANNOT = 77, FAILED = 42 };

/* Status before, operations, status after, sum. */
static int fallback_for(enum percpu_reason reason, int error)
{
    struct percpu_status before = percpu_status(), after;
    percpu_word sum = percpu_counter_sum(&counter);
    int bad = 0;
    char text[1024];
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&counter);
    after = percpu_status();
    percpu_status_format(text, sizeof text);
    bad += CHECK(before.reason == reason && before.mode == PERCPU_MODE_FALLBACK);
    bad += CHECK(after.reason == reason && after.mode == PERCPU_MODE_FALLBACK);
    bad += CHECK(before.error == error && after.error == error);
    bad += CHECK(after.length == 0 && after.feature_size == 0);
    bad += CHECK(strstr(text, percpu_reason_text(reason)) != (char *)0);
    bad += CHECK((error != 0) == (strstr(text, "; errno ") != (char *)0));
    bad += CHECK(this_cpu_id() < percpu_nr_cpus() || reason == PERCPU_REASON_ID_RANGE);
    bad += CHECK(percpu_counter_sum(&counter) == sum + 1000);
    if (bad)
        printf("#   status: reason %d error %d, then: %s\n", before.reason, before.error, text);
    return bad;
}

static long rseq(void *area, unsigned length, int flags, unsigned signature)
{
    return syscall(PERCPU_RSEQ_SYSCALL, area, length, flags, signature);
}

static int blocked(int error)
{
    /* A kernel with rseq says so in the auxiliary vector since 6.3, whatever the sandbox says. */
    int hidden = error == ENOSYS && !percpu_priv_getauxval(PERCPU_RSEQ_AT_FEATURE_SIZE);
    return fallback_for(hidden ? PERCPU_REASON_NO_KERNEL : PERCPU_REASON_BLOCKED, error);
}
static int blocked_enosys(void)
{
    return blocked(ENOSYS);
}
static int blocked_eperm(void)
{
    return blocked(EPERM);
}
static int blocked_eacces(void)
{
    return blocked(EACCES);
}
static int no_kernel(void)
{
    return fallback_for(PERCPU_REASON_NO_KERNEL, ENOSYS);
}

/* A thread's area, registered by somebody else. */
static struct percpu_rseq_area theirs __attribute__((aligned(64)));
static unsigned their_signature = PERCPU_RSEQ_SIGNATURE;

static void *owned_by_another(void *arg)
{
    int bad = 0;
    theirs.cpu_id = PERCPU_RSEQ_CPU_UNREGISTERED;
    if (rseq(&theirs, 32, 0, their_signature)) {
        *(int *)arg = errno == EINVAL ? 1 : CANNOT;
        return (void *)0;
    }
    bad += fallback_for(PERCPU_REASON_OTHER_OWNER, EINVAL);
    bad += CHECK(percpu_thread_register() == -1 && errno == EINVAL);
    bad += CHECK(percpu_thread_unregister() == 0);
    bad += CHECK(theirs.cpu_id < percpu_nr_cpus());
    bad += CHECK(rseq(&theirs, 32, 0, their_signature) == -1 && errno == EBUSY); /* still theirs */
    bad += CHECK(rseq(&theirs, 32, PERCPU_RSEQ_FLAG_UNREGISTER, their_signature) == 0);
    for (int i = 0; i < 1000; i++)
        percpu_counter_inc(&counter);
    bad += CHECK(percpu_counter_sum(&counter) == 2000);
    *(int *)arg = bad;
    return (void *)0;
}

static int run_thread(void *(*f)(void *))
{
    pthread_t t;
    int bad = 1;
    if (pthread_create(&t, (pthread_attr_t *)0, f, &bad))
        return 1;
    pthread_join(t, (void **)0);
    return bad;
}
static int other_owner(void)
{
    return run_thread(owned_by_another);
}
static int other_signature(void)
{
    their_signature = 0x12345678;
    return other_owner();
}

/* libc's registration undone behind its back, and done again. */
static void *without_libcs(void *arg)
{
    char *area = (char *)percpu_priv_area();
    percpu_word sum = percpu_counter_sum(&counter);
    unsigned length = percpu_status().length; /* libc's: 32; with newer kernels 33 */
    int bad = 0;
    if (percpu_status().mode != PERCPU_MODE_LIBC) {
        *(int *)arg = CANNOT;
        return (void *)0;
    }
    percpu_counter_inc(&counter);
    bad += CHECK(rseq(area, length, PERCPU_RSEQ_FLAG_UNREGISTER, PERCPU_RSEQ_SIGNATURE) == 0);
    bad += fallback_for(PERCPU_REASON_NOT_MAINTAINED, 0);
    bad += CHECK(percpu_thread_register() == -1 && errno == ENOTSUP);
    bad += CHECK(rseq(area, length, 0, PERCPU_RSEQ_SIGNATURE) == 0);
    bad += CHECK(percpu_status().mode == PERCPU_MODE_LIBC);
    percpu_counter_inc(&counter);
    bad += CHECK(percpu_counter_sum(&counter) == sum + 1002);
    *(int *)arg = bad;
    return (void *)0;
}
static int not_maintained(void)
{
    return run_thread(without_libcs);
}

static int unregistered(void)
{
    percpu_counter_inc(&counter);
    if (percpu_status().mode != PERCPU_MODE_OWN)
        return CANNOT;
    if (percpu_thread_unregister())
        return 1;
    return fallback_for(PERCPU_REASON_UNREGISTERED, 0);
}

/* The file that lists CPUs, hidden in a private mount namespace, as some containers do. */
static int id_range(void)
{
    cpu_set_t allowed, one;
    int bad = 0, cpu;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (cpu = CPU_SETSIZE - 1; cpu > 0 && !CPU_ISSET((unsigned)cpu, &allowed);)
        cpu--;
    if (cpu == 0 || !CPU_ISSET(0, &allowed))
        return CANNOT;
    /* If a constructor asked already. */
    percpu_priv_state.nr_cpus = percpu_priv_state.reach.bound = 0;
    switch (hide_possible("0\n")) {
    case HIDING_REFUSED:
        return CANNOT;
    case HIDING_FAILED:
        return 1;
    default:
        break;
    }
    CPU_ZERO(&one);
    CPU_SET((unsigned)cpu, &one);
    bad += CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    bad += CHECK(percpu_nr_cpus() == 1);
    if (percpu_status().reason == PERCPU_REASON_BLOCKED)
        return CANNOT;
    bad += fallback_for(PERCPU_REASON_ID_RANGE, 0);
    bad += CHECK(this_cpu_id() == (unsigned)cpu);
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    bad += CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    bad += CHECK(percpu_status().mode != PERCPU_MODE_FALLBACK);
    percpu_counter_add(&counter, 5);
    bad += CHECK(percpu_counter_sum(&counter) == 1005);
    bad += CHECK(percpu_counter_take(&counter) == 1005);
    umount2(POSSIBLE, MNT_DETACH);
    return bad;
}

#ifndef __GLIBC__
/* musl: a thread with cancellation disabled looks like one that exits, until it says otherwise. */
static void *cancellation_disabled(void *arg)
{
    int old, bad = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    bad += fallback_for(PERCPU_REASON_EXITING, 0);
    pthread_setcancelstate(old, (int *)0);
    bad += CHECK(percpu_status().reason == PERCPU_REASON_NONE);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    bad += CHECK(percpu_thread_register() == 0 && percpu_cpu_raw() >= 0);
    *(int *)arg = bad;
    return (void *)0;
}
static int exiting(void)
{
    return percpu_status().reason == PERCPU_REASON_NONE ? run_thread(cancellation_disabled)
                                                        : CANNOT;
}

static pthread_key_t last_key;
static void use_up_keys(void)
{
    if (getenv("TEST_USE_UP_KEYS"))
        while (pthread_key_create(&last_key, (void (*)(void *))0) == 0)
            ;
}
/* Before any constructor of the header. */
__attribute__((section(".init_array.00050"),
               used)) static void (*const first_of_all)(void) = use_up_keys;

static int no_exit_hook(void)
{
    if (percpu_status().reason == PERCPU_REASON_BLOCKED)
        return CANNOT;
    return fallback_for(PERCPU_REASON_NO_EXIT_HOOK, 0);
}
#endif

/* ---- Running them */

enum how { AS_IS, ENOSYS_FILTER, EPERM_FILTER, EACCES_FILTER, NO_LIBC_RSEQ, VALGRIND, NO_KEYS };
static const struct cause {
    const char *name;
    int (*run)(void);
    enum how how;
    const char *otherwise; /* why it could not be caused here */
} causes[] = {
    {"NO_KERNEL: ENOSYS, and nothing in the auxiliary vector (valgrind)", no_kernel, VALGRIND,
     "no valgrind"},
    {"BLOCKED: a sandbox answers ENOSYS", blocked_enosys, ENOSYS_FILTER, ""},
    {"BLOCKED: a sandbox answers EPERM", blocked_eperm, EPERM_FILTER, ""},
    {"BLOCKED: a sandbox answers EACCES", blocked_eacces, EACCES_FILTER, ""},
    {"OTHER_OWNER: at another address", other_owner, NO_LIBC_RSEQ, "rseq is refused"},
    {"OTHER_OWNER: at another address, with another signature", other_signature, NO_LIBC_RSEQ,
     "rseq is refused"},
    {"NOT_MAINTAINED: libc's registration undone", not_maintained, AS_IS,
     "libc does not register here"},
    {"UNREGISTERED", unregistered, NO_LIBC_RSEQ, "rseq is refused"},
    {"ID_RANGE: a hidden CPU", id_range, AS_IS, "needs 2 CPUs, rseq and the right to mount"},
#ifndef __GLIBC__
    {"EXITING: cancellation disabled", exiting, AS_IS, "rseq is refused"},
    {"NO_EXIT_HOOK: all pthread keys in use", no_exit_hook, NO_KEYS, "rseq is refused"},
#endif
};

static const char *program; /* our own file; /proc/self/exe is valgrind's under valgrind */

static void run_again(const struct cause *c, unsigned number)
{
    char text[16];
    snprintf(text, sizeof text, "%u", number);
    switch (c->how) {
    case ENOSYS_FILTER:
    case EPERM_FILTER:
    case EACCES_FILTER:
        if (seccomp_rseq(PERCPU_RSEQ_SYSCALL, SECCOMP_ERRNO(c->how == ENOSYS_FILTER  ? ENOSYS
                                                            : c->how == EPERM_FILTER ? EPERM
                                                                                     : EACCES)))
            _exit(CANNOT);
        break;
    case NO_LIBC_RSEQ:
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        break;
    case NO_KEYS:
        setenv("TEST_USE_UP_KEYS", "1", 1);
        break;
    case VALGRIND:
        execlp("valgrind", "valgrind", "-q", "--tool=none", program, text, (char *)0);
        _exit(CANNOT);
    case AS_IS:
        break;
    }
    execl(program, program, text, (char *)0);
    _exit(126);
}

int main(int argc, char **argv)
{
    static char self[4096];
    if (argc > 1) {
        int bad = causes[atoi(argv[1])].run();
        return bad && bad != CANNOT ? FAILED : bad;
    }
    program = realpath(argv[0], self) ? self : "/proc/self/exe";
    texts_say_what_to_do();
    format_is_like_snprintf();
    for (unsigned i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        int status = -1;
        pid_t pid;
        fflush(stdout);
        pid = fork();
        if (pid == 0)
            run_again(&causes[i], i);
        waitpid(pid, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT)
            skip(causes[i].name, causes[i].otherwise);
        else if (causes[i].how == VALGRIND && WIFEXITED(status) && WEXITSTATUS(status) == 1)
            skip(causes[i].name, "valgrind cannot load this program");
        else if (!ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", causes[i].name))
            note("wait status %#x", (unsigned)status);
    }
    skip("NOT_PORTED", "this processor is ported");
    return done();
}
#else
int main(void)
{
    texts_say_what_to_do();
    format_is_like_snprintf();
    skip("the causes", "no critical sections for this processor");
    return done();
}
#endif
