/*
 * Executions that do nothing, scheduled and worked: by ours through the public header, by the bare
 * statements, and (in node/work.js) by others. bench_work.c compares them.
 */
#ifndef BENCH_WORK_H
#define BENCH_WORK_H

#include "bench.h"

enum { WORK_BATCH_MAX = 1000 };

/* Something that executions can be given to and taken from, `n` at once; the state is `open`'s. */
struct work_subject {
    void *(*open)(const char *where);
    void (*schedule)(void *state, int n);
    int (*claim)(void *state, int n); /* how many there were of the `n` asked for */
    void (*finish)(void *state);      /* those that were claimed last */
    void (*close)(void *state);
};

extern const struct work_subject ours_work;          /* where: a store URL */
extern const struct work_subject bare_sqlite_work;   /* where: a file with the store's own tables */
extern const struct work_subject bare_postgres_work; /* a table, claims with SKIP LOCKED */

/* How late ours claims what falls due: `n` of them, spread evenly over so long. */
void ours_work_lag(const char *url, int n, int64_t over_ms, struct samples *late_ns);

#endif
