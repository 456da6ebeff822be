/* SPDX-License-Identifier: MIT */
/*
 * exporter [SECONDS [SCRAPES]] - a daemon whose counters are read over HTTP, in the text format of
 * Prometheus. It listens on 127.0.0.1 at a port that it prints first, and stops by itself after so
 * many seconds (30) or scrapes (1000).
 *
 *     cc exporter.c -pthread
 *     curl http://127.0.0.1:PORT/metrics
 */
#include "percpu.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <netinet/in.h>

enum { THREADS = 4, JOBS = 1000000 };

#define METRICS(X)                                          \
    X(JOBS_DONE, "demo_jobs_total", "Jobs finished.")       \
    X(BYTES, "demo_bytes_total", "Bytes those jobs wrote.") \
    X(ERRORS, "demo_errors_total", "Jobs that failed: every 100th does.")
#define AS_ENUM(id, name, help) id,
enum { METRICS(AS_ENUM) EVENTS };
#define AS_TEXT(id, name, help) {name, help},
static const struct {
    const char *name, *help;
} metrics[] = {METRICS(AS_TEXT)};

static struct percpu_counters stats = PERCPU_COUNTERS_INIT(EVENTS, 0);
static struct percpu_gauge last_size;

static void *worker(void *arg)
{
    for (unsigned i = 0; i < JOBS; i++) {
        percpu_counters_inc(&stats, JOBS_DONE);
        percpu_counters_add(&stats, BYTES, i % 1000);
        if (i % 100 == 99)
            percpu_counters_inc(&stats, ERRORS);
        percpu_gauge_set(&last_size, i % 1000);
    }
    return arg;
}

/* Ends when all jobs are done, and says so: from then on the counts stand still. */
static void *boss(void *arg)
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, worker, NULL))
            exit(1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    puts("done");
    fflush(stdout);
    return arg;
}

static size_t render(char *buf, size_t size)
{
    percpu_word out[EVENTS];
    double value;
    size_t n = 0;
    percpu_counters_snapshot(&stats, out); /* no thread is stopped, or even noticed */
    for (int i = 0; i < EVENTS; i++)
        n += (size_t)snprintf(buf + n, size - n, "# HELP %s %s\n# TYPE %s counter\n%s %lu\n",
                              metrics[i].name, metrics[i].help, metrics[i].name, metrics[i].name,
                              (unsigned long)out[i]);
    if (percpu_gauge_get(&last_size, &value)) /* a gauge that was never set is left out */
        n += (size_t)snprintf(buf + n, size - n,
                              "# HELP demo_last_bytes Bytes of the last job.\n"
                              "# TYPE demo_last_bytes gauge\ndemo_last_bytes %.17g\n",
                              value);
    return n;
}

static void answer(int client)
{
    char request[2048] = "", body[4096], head[256];
    size_t n = 0;
    ssize_t got;
    int h;
    while (!strstr(request, "\r\n\r\n") && n < sizeof request - 1 &&
           (got = read(client, request + n, sizeof request - 1 - n)) > 0) {
        n += (size_t)got;
        request[n] = 0;
    }
    if (strncmp(request, "GET /metrics ", 13) == 0) {
        n = render(body, sizeof body);
        h = snprintf(head, sizeof head,
                     "HTTP/1.0 200 OK\r\nContent-Type: text/plain; "
                     "version=0.0.4; charset=utf-8\r\nContent-Length: %lu\r\n\r\n",
                     (unsigned long)n);
    } else {
        n = 0;
        h = snprintf(head, sizeof head, "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }
    if (write(client, head, (size_t)h) == h && n && write(client, body, n) < 0)
        perror("write");
}

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 30);
    int scrapes = argc > 2 ? atoi(argv[2]) : 1000, s = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval patience = {1, 0}; /* for a client that says nothing */
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    pthread_t t;
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    signal(SIGPIPE, SIG_IGN);
    if (s < 0 || bind(s, (struct sockaddr *)(void *)&at, sizeof at) || listen(s, 16) ||
        getsockname(s, (struct sockaddr *)(void *)&at, &length))
        return 1;
    printf("port %d\n", ntohs(at.sin_port));
    fflush(stdout);
    if (pthread_create(&t, NULL, boss, NULL))
        return 1;
    while (scrapes > 0 && time(NULL) < end) {
        struct pollfd ready = {s, POLLIN, 0};
        int client = poll(&ready, 1, 1000) > 0 ? accept(s, NULL, NULL) : -1;
        if (client < 0)
            continue;
        setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        answer(client);
        close(client);
        scrapes--;
    }
    pthread_join(t, NULL);
    return percpu_counters_destroy(&stats);
}
