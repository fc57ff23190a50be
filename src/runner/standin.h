/*
 * While the wrapper is stopped by its terminal nobody would renew its lease, so the guardian starts
 * a stand-in: a process that keeps the lease, tells the guardian each new deadline, and goes when
 * the line to the guardian ends.
 */
#ifndef HF_RUNNER_STANDIN_H
#define HF_RUNNER_STANDIN_H

#include <sys/types.h>

#include "holdfast.h"

/* Start it; its pid and the guardian's end of the line to it, or -errno. `url` names the store. */
pid_t hf_stand_in_start(const char *url, const struct hf_lease *lease, int *ret_link);

#endif
