/* SPDX-License-Identifier: MIT */
/*
 * malloc_user N - a program for malloc_count: each of four threads allocates N times 100 bytes, N
 * times 10 x 7, grows each of the first to 150, aligns one of 64 N times; and frees all but 5.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdlib.h>

static pthread_barrier_t start; /* so that they allocate at the same time */

static void *thread(void *arg)
{
    int n = *(int *)arg;
    pthread_barrier_wait(&start);
    for (int i = 0; i < n; i++) {
        void *volatile a = malloc(100), *volatile b = calloc(10, 7), *c = NULL;
        void *volatile d = realloc(a, 150);
        if (posix_memalign(&c, 64, 64) || !b || !d)
            abort();
        free(b);
        free(c);
        if (i >= 5)
            free(d);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 0;
    pthread_t t[4];
    pthread_barrier_init(&start, NULL, 4);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&t[i], NULL, thread, &n))
            return 1;
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    return 0;
}
