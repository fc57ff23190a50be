/*
 * The clock of an engine that has its own, in the test's hands: so that its histories run in virtual
 * time too, and right onto the edges of leases.
 */
#ifndef HF_TESTS_ENGINE_CLOCK_H
#define HF_TESTS_ENGINE_CLOCK_H

#include <stdint.h>

struct engine_clock {
    const char *scheme; /* of the URLs whose engine it is */
    /* Take it over; the store has been opened. Whatever goes wrong ends the process. */
    void (*take)(const char *url);
    /* From now on it shows this time, in ms since 1970, until it is set again. */
    void (*set)(int64_t wall_ms);
    void (*give_back)(void);
};

/* PostgreSQL: holdfast.clock() becomes one that reads a table. */
extern const struct engine_clock postgres_clock;

/* etcd: its leases last for hours, and alive/NAME is removed when the lease would have run out. */
extern const struct engine_clock etcd_clock;

#endif
