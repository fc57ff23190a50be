/*
 * Recurring work: every slot of a workflow's `schedule` becomes an execution. Its key tells the slot,
 * "cron:2026-11-16T03:00:00.000Z", so that it is recorded once however many services and workers do
 * this at the same time, and whatever becomes of them and of their clocks.
 *
 *     hf_scheduler_open(workflows, NULL, &scheduler, &err)
 *     next_ms = hf_scheduler_tick(scheduler, hf, hf_clock_wall_ms())      again and again
 *     hf_scheduler_free(scheduler)
 *
 * It has no thread and no clock of its own. What runs the executions is somebody else.
 */
#ifndef HF_RUNNER_SCHEDULER_H
#define HF_RUNNER_SCHEDULER_H

#include "workflows.h"

#define HF_SCHEDULE_PREFIX "cron:" /* of the keys */

struct hf_scheduler;

/* A sentence for the operator: slots that were missed, a store that fails. */
typedef void (*hf_scheduler_say_fn)(void *arg, const char *sentence);

/*
 * `workflows` must outlive it. After a reload `before` (may be NULL) is the scheduler that this one
 * takes over from: a workflow that it had knows how far it has got, and a changed schedule counts
 * from now. -HF_INVALID: a time zone is gone since the file was loaded.
 */
int hf_scheduler_open(const struct hf_workflows *workflows, const struct hf_scheduler *before,
                      struct hf_scheduler **ret, struct hf_error *err);
void hf_scheduler_free(struct hf_scheduler *scheduler);

void hf_scheduler_on_say(struct hf_scheduler *scheduler, hf_scheduler_say_fn say, void *arg);

/*
 * Record what is due at `now_ms` (since 1970), with what was missed as `catch-up` says. Returns when
 * to be called again: at the next slot, but within a minute, since clocks are put forward and back;
 * INT64_MAX: never, there is nothing recurring.
 */
int64_t hf_scheduler_tick(struct hf_scheduler *scheduler, struct hf *hf, int64_t now_ms);

#endif
