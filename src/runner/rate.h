/*
 * How often a worker may begin executions of a workflow: `rate: 10/s`. What has piled up while nobody
 * was there is begun in its order, but not all at once.
 */
#ifndef HF_RUNNER_RATE_H
#define HF_RUNNER_RATE_H

#include <stddef.h>

#include "holdfast.h"

/* "10/s", "100/m" or "5/h": microseconds from one to the next. */
int hf_rate_parse(const char *text, int64_t *ret_interval_us, struct hf_error *err);

struct hf_pace {
    const char *workflow;
    int64_t interval_us; /* of its rate */
    int64_t open_us;     /* on any clock that does not jump: none is begun before this */
};

/* How many may be begun now: those of a tenth of a second at once, and at least one. */
size_t hf_pace_room(const struct hf_pace *pace, int64_t now_us);

/* So many were begun, the last of them now. */
void hf_pace_spend(struct hf_pace *pace, size_t n, int64_t now_us);

#endif
