/* The threads of OpenMP, if a library such as torch has started some, or else new threads.

   OpenMP's threads wait for their next work without giving up the processor, for milliseconds. Other
   threads would compete with them. */
#if defined(__unix__) || defined(__APPLE__)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "sharing.h"

#define MOST_THREADS 256

/* The start of a parallel region as compilers call it. */
typedef void parallel_region(void (*work)(void *), void *given, unsigned threads, unsigned flags);

static int is_child;

static void note_fork(void)
{
    is_child = 1;
}

void prepare_sharing(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

/* NULL if the process has no OpenMP, or was forked: then its threads do not exist. */
static parallel_region *find_region(void)
{
    return is_child ? NULL : (parallel_region *)dlsym(RTLD_DEFAULT, "GOMP_parallel");
}

struct call {
    void (*work)(void *given);
    void *given;
};

static void *run(void *given)
{
    struct call *call = given;
    call->work(call->given);
    return NULL;
}

void share(void (*work)(void *given), void *given, unsigned threads)
{
    parallel_region *region = threads > 1 ? find_region() : NULL;
    if (region != NULL) {
        region(work, given, threads, 0);
        return;
    }
    struct call call = {work, given};
    pthread_t others[MOST_THREADS];
    unsigned started = 0;
    while (started + 1 < threads && started < MOST_THREADS &&
           pthread_create(&others[started], NULL, run, &call) == 0)
        started++;
    work(given);
    while (started > 0)
        pthread_join(others[--started], NULL);
}
#else
#include "sharing.h"

void prepare_sharing(void)
{
}

void share(void (*work)(void *given), void *given, unsigned threads)
{
    (void)threads;
    work(given);
}
#endif
