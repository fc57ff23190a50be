/*
 * A command under a lease, from the wrapper's side:
 *
 *     hf_run_prepare(&run, &command, &err)      the guardian, before anything else
 *     hf_open(), hf_acquire() with hf_run_bind(&run, &options)
 *     run.hf = hf, run.lease = lease, hf_run_start(&run, ...)
 *     hf_run_wait(&run, &end)                   renews, passes signals on; then the tree is gone
 *     hf_run_stop_keeping(&run)                 now the lease may be released
 *     hf_run_clear(&run)                        in every case
 */
#ifndef HF_RUNNER_RUN_H
#define HF_RUNNER_RUN_H

#include "deadline.h"
#include "guardian.h"
#include "signals.h"
#include "spawn.h"

struct hf_run {
    struct hf_signals signals;
    struct hf_guardian guardian;
    bool has_terminal;
    struct hf *hf;
    struct hf_lease lease;    /* as last renewed */
    struct hf_keeper *keeper; /* NULL: a short command never needs one */
    int timer_fd;
    bool paused;    /* we stop, or have stopped, as the command did */
    bool told_lost; /* the guardian was told to kill ... */
    bool aborted;   /* ... because the tap failed */
    /*
     * What the command writes, where the caller wants it: called when `tap_fd` (non-blocking) can be
     * read; -1 is its end. Answers 1: there may be more, 0: nothing for now, -1: end the command.
     */
    int tap_fd;
    int (*tap)(struct hf_run *run, void *arg);
    void *tap_arg;
};

/* How it ended. */
struct hf_run_end {
    enum hf_ending why;
    int status;           /* of the command, as of wait() */
    int not_run;          /* errno: why it could not be started; 0: it was */
    uint32_t left_behind; /* processes that outlived it and had to be ended */
};

/* Fills in the command's mask and process group. */
int hf_run_prepare(struct hf_run *run, struct hf_command *command, struct hf_error *err);

/* Bind the lease to wrapper and guardian; let signals end the waiting. */
void hf_run_bind(const struct hf_run *run, struct hf_acquire_options *options);

/* The signal that came before the command was started and so forbids to start it; 0: none. */
int hf_run_cancelled_by(struct hf_run *run);

/* run->lease is held in run->hf: start the command. `store_url`, `key` as in environment.h. */
int hf_run_start(struct hf_run *run, const char *store_url, const char *key, struct hf_error *err);

/* Until nothing of the command's tree is left. */
void hf_run_wait(struct hf_run *run, struct hf_run_end *ret);

/* Renew in the background from now on, if that has not begun yet. */
void hf_run_keep(struct hf_run *run);

/* No renewal is under way after this. */
void hf_run_stop_keeping(struct hf_run *run);

/* Lets the guardian go, if the command was never started. */
void hf_run_clear(struct hf_run *run);

#endif
