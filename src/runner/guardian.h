/*
 * A dead wrapper is not a dead command: between the two stands a guardian, a small process that
 * ends the command's whole tree when the wrapper dies or the lease is not renewed in time, whether
 * the wrapper lives, hangs or is stopped. The lease is bound to both, so it counts as dead only
 * when both are.
 *
 *     hf_guardian_start()      before the store is opened and the lease is acquired
 *     HF_NOTE_START            the lease is held: run the command
 *     HF_NOTE_RENEWED, ...     see link.h
 *     HF_NOTE_ENDED            nothing of the command's tree is left, the guardian is about to exit
 *
 * It is in a process group of its own and blocks every signal, so that only SIGKILL and SIGSTOP sent
 * to its very pid reach it. What remains: both it and the wrapper killed at once (the command dies by
 * PDEATHSIG, its children live on), and processes that root privileges or uninterruptible sleep keep
 * from being killed; for those it stays.
 */
#ifndef HF_RUNNER_GUARDIAN_H
#define HF_RUNNER_GUARDIAN_H

#include "holdfast.h"
#include "spawn.h"

struct hf_guardian {
    pid_t pid;
    int link;
};

/* `command` is copied by the fork: what it points to need not outlive the call. */
int hf_guardian_start(const struct hf_command *command, struct hf_guardian *ret,
                      struct hf_error *err);

/* Be one, in a process forked for it. `wrapper` is who may be stopped by a terminal; 0: nobody. */
_Noreturn void hf_guardian_be(const struct hf_command *command, pid_t wrapper, int link);

#endif
