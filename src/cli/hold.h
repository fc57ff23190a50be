/* Holding a lock around a command: what run, update and start share. */
#ifndef HF_CLI_HOLD_H
#define HF_CLI_HOLD_H

#include "cli.h"
#include "run.h"

struct cli_hold {
    const char *name;
    struct hf_command command; /* without its times, which are the options' */
    const char *once_key;      /* NULL: as often as it is asked for */
    /* start: begin this execution instead of merely taking the lock; its record, and its output */
    const struct hf_begin_options *begins;
    struct hf_execution *execution;
    struct hf_capture *capture;
    bool skips;                  /* nothing is run, and all is well, where another one runs */
    bool cancels;                /* who runs is asked to stop, before it is waited for */
    struct hf_tap taps[HF_TAPS]; /* as in struct hf_run */
    /*
     * Called when the lease is held, before the command is started; and when it has succeeded and
     * nothing of it is left, before the release. Both answer the exit code, 0 to go on. NULL: none.
     */
    int (*begin)(void *arg);
    int (*commit)(void *arg, struct hf *hf, const struct hf_lease *lease);
    int *tap_failed; /* the exit code after a tap that answered -1 */
    void *arg;
};

/* The exit code of the whole. */
int cli_hold(struct cli *cli, const struct cli_hold *hold);

/* The exit code that tells of an execution which others have begun. */
int cli_execution_code(const struct hf_execution *execution);

/* Nothing is done since another one runs, as it was asked for. */
int cli_skipped(const struct cli *cli, const struct hf_error *err);

/* The command's words: what follows the first operand, or those of $SHELL -c STRING in `shell`. */
char *const *cli_command_words(const struct cli *cli, int argc, char **argv, char *shell[4]);

#endif
