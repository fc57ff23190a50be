/*
 * Lanes: threads with a handle of their own on the store, so that a slow one never keeps the others,
 * or the network, waiting. A job is put on a lane and comes back when it is done:
 *
 *     struct job *job = ...;              // embedded in what it is for; .done set
 *     job->ask = (struct hf_request){...};
 *     lane_put(lane, job);                // gathered; lane_flush() sends all that were
 *     ...
 *     lanes_deliver(lanes);               // when lanes_fd() is readable: calls every job's done()
 *
 * What is asked of a lane while it is at work is gathered and applied together next: one
 * transaction, and so one fsync, for many clients.
 */
#ifndef HF_SERVER_LANE_H
#define HF_SERVER_LANE_H

#include "holdfast.h"

struct job;
/*
 * Called on the thread that delivers. `code` is that of the whole: 0, or negative with `err` said;
 * then there is no answer.
 */
typedef void job_done_fn(struct job *job, int code, const struct hf_answer *answer,
                         const struct hf_error *err);
/* For what is no hf_request: called on the lane's thread. 0, or negative with `err` filled. */
typedef int job_work_fn(struct job *job, struct hf *hf, struct hf_error *err);

struct job {
    struct job *next;
    struct hf_request ask; /* its strings live until done() */
    job_work_fn *work;     /* not NULL: instead of `ask` */
    job_done_fn *done;
    struct hf_watch *watch; /* acquire: once queued, look after those ahead */
    bool dead_ahead;        /* ... who are dead already */
};

enum lane_name {
    LANE_WRITE, /* changes, many in one transaction */
    LANE_READ,  /* looks at single names and executions */
    LANE_CHORE, /* lists, events, totals, sweeps: one after the other */
    N_LANES
};

struct lanes;

/* Open the store once per lane and start the threads. */
int lanes_open(const char *url, struct lanes **ret, struct hf_error *err);
/* Do what was put, deliver it, and end the threads; the handles stay open until lanes_close(). */
void lanes_finish(struct lanes *lanes);
void lanes_close(struct lanes *lanes);

int lanes_fd(const struct lanes *lanes);
/* The handle of a lane, for what is safe on any thread. */
struct hf *lanes_handle(struct lanes *lanes, enum lane_name lane);

/* Plain looks at a store of this machine are done by lanes_flush() itself, all that were gathered as
 * of one moment: that is quicker than to hand them to a thread. */
void lane_put(struct lanes *lanes, enum lane_name lane, struct job *job);
void lanes_flush(struct lanes *lanes);
void lanes_deliver(struct lanes *lanes);

#endif
