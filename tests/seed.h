/* The seed of histories that shall differ from run to run. */
#ifndef HF_TESTS_SEED_H
#define HF_TESTS_SEED_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* HOLDFAST_SEED, which tests/run sets once, so that a second try plays the same history; else a new one. */
static inline uint64_t seed_of_run(void)
{
    const char *given = getenv("HOLDFAST_SEED");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return given ? strtoull(given, NULL, 10)
                 : (uint64_t)t.tv_sec << 20 ^ (uint64_t)t.tv_nsec ^ (uint64_t)getpid() << 40;
}

#endif
