/*
 * The wrapper's signals. They are blocked and read from a descriptor: while it waits for the lock
 * some of them end the waiting; while the command runs all of them are passed on to it; while the
 * lock is released they wait. The command gets mask and dispositions as the wrapper inherited them.
 */
#ifndef HF_RUNNER_SIGNALS_H
#define HF_RUNNER_SIGNALS_H

#include <signal.h>
#include <sys/signalfd.h>

#include "holdfast.h"

struct hf_signals {
    int fd;
    sigset_t inherited; /* the mask for the command */
};

/* From now on the descriptor becomes readable by a signal that would have ended this process. */
int hf_signals_open(struct hf_signals *signals, struct hf_error *err);

/* From now on by every signal that is passed on to a command. */
void hf_signals_pass_on(struct hf_signals *signals);

/* The next one; false: none has come. */
bool hf_signals_next(struct hf_signals *signals, struct signalfd_siginfo *ret);

#endif
