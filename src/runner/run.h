/*
 * A command under a lease, from the wrapper's side:
 *
 *     hf_run_prepare(&run, &command, &err)      the guardian, before anything else
 *     hf_open(), hf_acquire() or hf_begin() with hf_run_bind(&run, ...)
 *     run.hf = hf, run.lease = lease, hf_run_start(&run, ...)
 *     hf_run_wait(&run, &end)                   renews, passes signals on; then the tree is gone
 *     hf_run_stop_keeping(&run)                 now the lease may be released
 *     hf_run_clear(&run)                        in every case
 */
#ifndef HF_RUNNER_RUN_H
#define HF_RUNNER_RUN_H

#include "ending.h"
#include "guardian.h"
#include "signals.h"
#include "spawn.h"

struct hf_run;
struct hf_capture;
enum { HF_TAPS = 2 };

/*
 * What the command writes, where the caller wants it: used when `fd` is ready for `events`; -1 is
 * its end. Answers 1: there may be more, 0: nothing for now, -1: end the command.
 */
struct hf_tap {
    int fd;
    short events;
    int (*use)(struct hf_run *run, struct hf_tap *tap);
    void *arg;
};

struct hf_run {
    struct hf_signals signals;
    struct hf_guardian guardian;
    bool has_terminal;
    struct hf *hf;
    struct hf_lease lease;    /* as last renewed */
    struct hf_keeper *keeper; /* NULL: a short command never needs one */
    int timer_fd;
    int64_t grace_ms, lead_ms; /* see deadline.h */
    bool paused;               /* we stop, or have stopped, as the command did */
    bool too_late;             /* the lease is nearly over: nothing was started */
    bool told_lost;            /* the guardian was told to kill ... */
    bool aborted;              /* ... because the tap failed */
    bool over;                 /* nothing of the command is left but what it wrote */
    struct hf_tap taps[HF_TAPS];
    /* Of an execution: marked as spawned before the command is started; NULL: a plain lock. */
    const struct hf_execution *execution;
    struct hf_capture *capture; /* what it prints goes to the store with its heartbeats; or NULL */
};

/* Fills in the command's mask and process group. */
int hf_run_prepare(struct hf_run *run, struct hf_command *command, struct hf_error *err);

/* Bind a lease to wrapper and guardian; let signals end the waiting. */
void hf_run_bind(const struct hf_run *run, int32_t bound[HF_BOUND_MAX], size_t *ret_n_bound,
                 int *ret_cancel_fd);

/* The signal that came before the command was started and so forbids to start it; 0: none. */
int hf_run_cancelled_by(struct hf_run *run);

/*
 * run->lease is held in run->hf: start the command. `store_url` as in environment.h. -HF_CANCELLED:
 * its execution is to stop, and the command was not started.
 */
int hf_run_start(struct hf_run *run, const char *store_url, struct hf_error *err);

/* Until nothing of the command's tree is left. */
void hf_run_wait(struct hf_run *run, struct hf_run_end *ret);

/* Renew in the background from now on, if that has not begun yet. */
void hf_run_keep(struct hf_run *run);

/* No renewal is under way after this. */
void hf_run_stop_keeping(struct hf_run *run);

/* Lets the guardian go, if the command was never started. */
void hf_run_clear(struct hf_run *run);

#endif
