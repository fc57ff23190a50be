/*
 * How long executions are kept, for who has workflows and a loop:
 *
 *     next_ms = hf_retention_tick(workflows, hf, hf_clock_wall_ms())      again and again
 */
#ifndef HF_RUNNER_RETENTION_H
#define HF_RUNNER_RETENTION_H

#include "workflows.h"

/*
 * Note in the store how long these (may be NULL) are kept, and remove a little of what need not be any
 * more; takes about 50 ms at most. Returns when to be called again: within about a minute. What fails
 * is tried again then.
 */
int64_t hf_retention_tick(const struct hf_workflows *workflows, struct hf *hf, int64_t now_ms);

/* The same for one workflow, by who runs it only once. */
void hf_retention_once(const struct hf_workflow *workflow, struct hf *hf);

#endif
