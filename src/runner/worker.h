/*
 * The worker: claims executions that are due and runs their workflows' commands, many at once, each
 * behind a guardian as `run` has it. `holdfast work` is this and nothing else, and so is the runner
 * of `holdfast serve`.
 *
 *   worker.c    the loop: signals, what guardians say, what commands print. It never waits for the
 *               store.
 *   desk.c      the thread that speaks with the store: when to claim, finish and sweep
 *   claim.c     from what is due to commands that run
 *   finish.c    from commands that have ended to what is recorded of them
 *   job.c       one execution in work
 *   nursery.c   the process that starts guardians
 *
 * Leases are renewed on a third thread, the keeper's of another handle, all together: neither a slow
 * claim nor a long finish delays that. When they can't be renewed the guardians end the commands,
 * whatever the worker does.
 */
#ifndef HF_RUNNER_WORKER_H
#define HF_RUNNER_WORKER_H

#include <signal.h>

#include "holdfast.h"

struct hf_work_options {
    const char *store_url;        /* NULL: the default */
    const char *config_path;      /* NULL: as hf_workflows_path() has it */
    const char *const *workflows; /* only these; n_workflows 0: all that the file has */
    size_t n_workflows;
    int64_t concurrency; /* commands at once; 0: as many as there are processors */
    int64_t max;         /* end after so many executions; 0: no limit */
    int64_t grace_ms;    /* how long commands may go on after SIGTERM */
    bool drain;          /* end when nothing is due */
    bool quiet;          /* only of trouble is told */
};

/*
 * Stop, as with SIGTERM, but however often it comes: the kernel sends it for the death of each of
 * the parent's threads.
 */
#define HF_WORK_ORPHANED SIGUSR1

/* Until SIGTERM, SIGINT, or what the options say: 0, or negative with `err` filled. */
int hf_work(const struct hf_work_options *opts, struct hf_error *err);

#endif
