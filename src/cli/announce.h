/* Stale locks are announced so that nobody overlooks it, -q or not: each is somebody's dead holder. */
#ifndef HF_CLI_ANNOUNCE_H
#define HF_CLI_ANNOUNCE_H

#include "holdfast.h"

/* On stderr, if this grant took over a stale lease; otherwise nothing. */
void cli_announce_takeover(const struct hf_lease *lease);

/* On stderr: a sweep has freed this stale lease. */
void cli_announce_sweep(const struct hf_status *status);

#endif
