/*
 * The desk: the worker's thread that speaks with the store, see worker.h. The loop hands it jobs that
 * have ended, the desk hands the loop jobs that run. What several jobs need at one moment is done in
 * one transaction: the claim, the mark that they are spawned, their ends.
 */
#ifndef HF_RUNNER_DESK_H
#define HF_RUNNER_DESK_H

#include <pthread.h>

#include "job.h"
#include "rate.h"
#include "scheduler.h"
#include "worker.h"

enum { HF_DESK_BATCH = 32, HF_DESK_OTHERS = 64 };

struct hf_jobs {
    struct hf_job *first, **end;
};

struct hf_desk {
    const struct hf_work_options *opts;
    const struct hf_nursery *nursery;
    size_t concurrency;
    pthread_t thread;
    bool has_thread;
    int wake_fd;                   /* the loop has something for the desk */
    int ready_fd;                  /* the desk has something for the loop */
    pthread_mutex_t lock;          /* guards these */
    struct hf_jobs ended;          /* loop to desk */
    struct hf_jobs started;        /* desk to loop */
    struct hf_workflows *reloaded; /* loop to desk */
    bool stopping;                 /* claim nothing more */
    bool done;                     /* nothing is left to do */
    /* the desk's own */
    struct hf *hf, *keeping; /* two handles: a slow claim delays no renewal */
    struct hf_workflows *all;
    struct hf_scheduler *scheduler; /* of `all` */
    struct hf_idle *idle;           /* NULL: the store can't wake us, so we poll */
    bool asleep;                    /* the store may wake us; not while there is no room */
    const char **open;        /* workflows that may be claimed now: first those that have no rate */
    size_t n_unpaced, n_open; /* so many have none; so many in all */
    /* The shortest of all: when it is marked, a lease is renewed for its own workflow's ttl, and that never
     * ends it earlier. */
    int64_t claim_ttl_ms;
    struct hf_pace *paces; /* of those that have one */
    size_t n_paces;
    bool paces_first; /* this time: neither kind keeps the other waiting */
    uint64_t last_id;
    size_t n_jobs;         /* claimed, and not yet settled */
    int64_t n_claimed;     /* ever */
    int64_t n_unrecorded;  /* ends that the store was not there for */
    struct hf_jobs ending; /* to be recorded */
    bool is_stopping;      /* as of the last look */
    bool drained;
    struct hf_error refused; /* why it claims nothing more; code 0: it does */
    /* boot clock: when to do it next */
    int64_t claim_ms, finish_ms, sweep_ms, schedule_ms, watch_ms, prune_ms;
    int64_t pace_ms; /* when one that was claimed as often as its rate allows may be again */
    int others[HF_DESK_OTHERS]; /* readable when one ends who runs executions beside us */
    size_t n_others;
    int64_t trouble_ms; /* boot clock: since when the store fails; 0: it does not */
    int64_t said_ms;    /* when that was last told */
    struct hf_claimed claimed[HF_DESK_BATCH];
    struct hf_job *batch[HF_DESK_BATCH];
    struct hf_request requests[HF_DESK_BATCH];
    struct hf_answer answers[HF_DESK_BATCH];
};

/* ---- for the loop --------------------------------------------------------------------------- */

/* Takes over `all`. `desk` is zero but for opts, nursery and concurrency. */
int hf_desk_open(struct hf_desk *desk, struct hf_workflows *all, struct hf_error *err);

/* The thread, once the loop waits for ready_fd. */
int hf_desk_start(struct hf_desk *desk, struct hf_error *err);

/* When it is done; the thread is gone after this. Negative: why it gave up, or some ends
 * could not be recorded. */
int hf_desk_close(struct hf_desk *desk, struct hf_error *err);

/* The next job that runs, or NULL: when ready_fd is readable. */
struct hf_job *hf_desk_started(struct hf_desk *desk);

/* Nothing of its tree is left: record its end. */
void hf_desk_end(struct hf_desk *desk, struct hf_job *job);

/* Use these from now on. -HF_NOT_FOUND: one that --workflow names is not there. */
int hf_desk_reload(struct hf_desk *desk, struct hf_workflows *all, struct hf_error *err);

void hf_desk_stop(struct hf_desk *desk);
bool hf_desk_is_done(struct hf_desk *desk);

/* ---- between its files ---------------------------------------------------------------------- */

void hf_jobs_init(struct hf_jobs *list);
void hf_jobs_add(struct hf_jobs *list, struct hf_job *job);
struct hf_job *hf_jobs_take(struct hf_jobs *list);

/*
 * All requests of the batch in one transaction; where something about one of them fails, each alone.
 * Unknown outcomes are asked for again. Negative: the store fails, and nothing is known of any.
 */
int hf_desk_apply(struct hf_desk *desk, size_t n, struct hf_error *err);

/* May the store answer later? Else it makes no sense to go on. */
bool hf_desk_may_hope(int r);

/* Tell of trouble with the store, not too often; `err` NULL: that it is over. */
void hf_desk_trouble(struct hf_desk *desk, const struct hf_error *err);

/* Claim these workflows from now on. */
int hf_desk_choose(struct hf_desk *desk, const struct hf_workflows *all, struct hf_error *err);

/* What may be claimed now. Nothing where n_open is 0, but options without names mean all. */
struct hf_claim_options hf_desk_wants(const struct hf_desk *desk);

/* Claim what is due, as far as there is room, and start it. */
void hf_desk_claim(struct hf_desk *desk, size_t room);

/* What was to be verified was not done: run its command, under the same lease. */
void hf_desk_run_after_all(struct hf_desk *desk, struct hf_job *verified);

/* Record the ends of jobs in desk->ending. */
void hf_desk_finish(struct hf_desk *desk);

#endif
