/* SPDX-License-Identifier: MIT */
/*
 * fork_server - pre-forked workers count for themselves, the parent adds up.
 *
 * After fork() a child has its own copies of all counters (memory is private to a process), with
 * the values that the parent had. percpu_counters_take() gives what was added since the take before
 * the fork, so nothing is reported twice. Reports come through a pipe, in one write each.
 *
 *     cc fork_server.c -pthread
 */
#include "percpu.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/in.h>

enum { WORKERS = 4, THREADS = 2, REQUESTS = 300, SIZE = 64 };
enum { REQUEST, BYTES, STARTED, EVENTS };

static struct percpu_counters stats = PERCPU_COUNTERS_INIT(EVENTS, 0);
static int listener, quit[2], report[2];

/* Serve until the parent closes the pipe `quit`. */
static void *serve(void *arg)
{
    struct pollfd ready[2] = {{0, POLLIN, 0}, {0, POLLIN, 0}};
    char request[SIZE];
    ready[0].fd = listener;
    ready[1].fd = quit[0];
    percpu_counters_inc(&stats, STARTED);
    while (poll(ready, 2, -1) > 0 && !(ready[1].revents && !ready[0].revents)) {
        int client = accept(listener, NULL, NULL); /* does not block: another worker was faster */
        ssize_t got;
        if (client < 0)
            continue;
        got = recv(client, request, sizeof request, MSG_WAITALL);
        percpu_counters_inc(&stats, REQUEST);
        percpu_counters_add(&stats, BYTES, got > 0 ? (percpu_word)got : 0);
        (void)!write(client, "k", 1); /* counted before it is answered */
        close(client);
    }
    return arg;
}

static int child(void)
{
    pthread_t t[THREADS];
    percpu_word out[EVENTS];
    close(quit[1]);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, serve, NULL))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    return percpu_counters_take(&stats, out) || write(report[1], out, sizeof out) != sizeof out;
}

static int request(const struct sockaddr_in *to)
{
    char text[SIZE], answer;
    int s = socket(AF_INET, SOCK_STREAM, 0), ok;
    memset(text, 'x', sizeof text);
    ok = s >= 0 && connect(s, (const struct sockaddr *)(const void *)to, sizeof *to) == 0 &&
         write(s, text, sizeof text) == sizeof text && read(s, &answer, 1) == 1;
    close(s);
    return ok;
}

int main(void)
{
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    percpu_word out[EVENTS], total[EVENTS] = {0, 0, 0};
    int good = 0, failed = 0, status;

    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)(void *)&at, sizeof at) ||
        listen(listener, 64) || getsockname(listener, (struct sockaddr *)(void *)&at, &length) ||
        pipe(quit) || pipe(report))
        return 1;
    percpu_counters_add(&stats, STARTED, 1000); /* the parent's own past: not the children's */
    if (percpu_counters_take(&stats, total))    /* from here on, each process for itself */
        return 1;
    memset(total, 0, sizeof total);
    for (int i = 0; i < WORKERS; i++)
        if (fork() == 0)
            _exit(child());
    for (int i = 0; i < REQUESTS; i++)
        good += request(&at);
    close(quit[1]);
    for (int i = 0; i < WORKERS && read(report[0], out, sizeof out) == sizeof out; i++)
        for (int e = 0; e < EVENTS; e++)
            total[e] += out[e];
    while (wait(&status) > 0)
        failed += status != 0;
    printf("answered=%d requests=%lu bytes=%lu started=%lu parent=%lu failed=%d\n", good,
           (unsigned long)total[REQUEST], (unsigned long)total[BYTES],
           (unsigned long)total[STARTED], (unsigned long)percpu_counters_sum(&stats, STARTED),
           failed);
    return 0;
}
