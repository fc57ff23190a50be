/* Holding a lock around a command: what run and update share. */
#ifndef HF_CLI_HOLD_H
#define HF_CLI_HOLD_H

#include "cli.h"
#include "run.h"

struct cli_hold {
    const char *name;
    char *const *argv;
    const char *once_key; /* NULL: as often as it is asked for */
    const char *in_path;  /* as in struct hf_command */
    int out_fd;
    int tap_fd; /* as in struct hf_run; -1: none */
    int (*tap)(struct hf_run *run, void *arg);
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

/* The command's words: what follows the first operand, or those of $SHELL -c STRING in `shell`. */
char *const *cli_command_words(const struct cli *cli, int argc, char **argv, char *shell[4]);

#endif
