#include "compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only the first difference is told. */
static void differ(struct comparison *c, const char *what, const char *model, const char *store)
{
    if (!c->difference[0])
        snprintf(c->difference, sizeof c->difference, "%s: the model says %s, the store %s", what,
                 model, store);
}

static void same_text(struct comparison *c, const char *what, const char *model, const char *store)
{
    if (strcmp(model, store) != 0)
        differ(c, what, model[0] ? model : "nothing", store[0] ? store : "nothing");
}

static void same_number(struct comparison *c, const char *what, int64_t model, int64_t store)
{
    char a[24], b[24];
    snprintf(a, sizeof a, "%lld", (long long)model);
    snprintf(b, sizeof b, "%lld", (long long)store);
    same_text(c, what, a, b);
}

static void same_time(struct comparison *c, const char *what, int64_t model, int64_t store)
{
    if (llabs(model - store) > c->tolerance_ms)
        same_number(c, what, model, store);
}

/* ---- fences --------------------------------------------------------------------------------- */

int64_t fence_of_store(const struct fences *fences, int64_t model)
{
    for (size_t i = fences->n; i-- > 0;)
        if (fences->pairs[i].model == model)
            return fences->pairs[i].store;
    return model;
}

static void same_fence(struct comparison *c, const char *what, int64_t model, int64_t store)
{
    struct fences *f = c->fences;
    bool is_new = true;
    if (!model || !store || store >= INT64_C(1) << 53) {
        if (model || store)
            same_number(c, what, model, store);
        return;
    }
    for (size_t i = 0; i < f->n; i++) {
        int64_t m = f->pairs[i].model, s = f->pairs[i].store;
        if ((m < model) != (s < store) || (m == model) != (s == store))
            same_number(c, what, m == model ? s : model, store);
        is_new &= m != model;
    }
    if (is_new && f->n < FENCES_MAX) {
        f->pairs[f->n].model = model;
        f->pairs[f->n++].store = store;
    }
}

/* ---- records -------------------------------------------------------------------------------- */

void compare_statuses(struct comparison *c, const struct hf_status *model,
                      const struct hf_status *store)
{
    same_text(c, "status.name", model->name, store->name);
    same_number(c, "status.state", model->state, store->state);
    same_text(c, "status.owner", model->owner, store->owner);
    same_fence(c, "status.fence", model->fence, store->fence);
    same_number(c, "status.alive", model->alive, store->alive);
    same_text(c, "status.note", model->note, store->note);
    same_text(c, "status.executionId", model->execution_id, store->execution_id);
    same_time(c, "status.lockedSince", model->locked_since_ms, store->locked_since_ms);
    same_time(c, "status.heldFor", model->held_for_ms, store->held_for_ms);
    same_time(c, "status.expiresAt", model->expires_at_ms, store->expires_at_ms);
    same_time(c, "status.remaining", model->remaining_ms, store->remaining_ms);
    same_number(c, "status.waiters", model->waiters, store->waiters);
}

static void compare_takeovers(struct comparison *c, const struct hf_takeover *model,
                              const struct hf_takeover *store)
{
    same_number(c, "takeover.reason", model->reason, store->reason);
    if (model->reason == HF_STALE_NOT)
        return;
    same_text(c, "takeover.lockId", model->lock_id, store->lock_id);
    same_text(c, "takeover.owner", model->owner, store->owner);
    same_fence(c, "takeover.fence", model->fence, store->fence);
    same_time(c, "takeover.acquiredAt", model->acquired_at_ms, store->acquired_at_ms);
    same_time(c, "takeover.heldFor", model->held_for_ms, store->held_for_ms);
    same_number(c, "takeover.ttl", model->ttl_ms, store->ttl_ms);
}

static void compare_leases(struct comparison *c, const struct hf_lease *model,
                           const struct hf_lease *store)
{
    same_text(c, "lease.name", model->name, store->name);
    same_text(c, "lease.token", model->token, store->token);
    same_fence(c, "lease.fence", model->fence, store->fence);
    same_text(c, "lease.owner", model->owner, store->owner);
    same_text(c, "lease.note", model->note, store->note);
    same_time(c, "lease.acquiredAt", model->acquired_at_ms, store->acquired_at_ms);
    same_time(c, "lease.expiresAt", model->expires_at_ms, store->expires_at_ms);
    same_number(c, "lease.ttl", model->ttl_ms, store->ttl_ms);
    same_text(c, "lease.executionId", model->execution_id, store->execution_id);
    same_number(c, "lease.cancelRequested", model->cancel_requested, store->cancel_requested);
    compare_takeovers(c, &model->takeover, &store->takeover);
}

void compare_fences(struct comparison *c, int64_t model, int64_t store)
{
    same_fence(c, "execution.fence", model, store);
}

void compare_executions(struct comparison *c, const struct hf_execution *model,
                        const struct hf_execution *store)
{
    same_text(c, "execution.id", model->id, store->id);
    same_text(c, "execution.workflow", model->workflow, store->workflow);
    same_text(c, "execution.lock", model->lock, store->lock);
    same_text(c, "execution.key", model->key, store->key);
    same_text(c, "execution.state", hf_execution_state_name(model->state),
              hf_execution_state_name(store->state));
    same_time(c, "execution.runAt", model->run_at_ms, store->run_at_ms);
    same_number(c, "execution.priority", model->priority, store->priority);
    same_number(c, "execution.attempt", model->attempt, store->attempt);
    same_text(c, "execution.owner", model->owner, store->owner);
    same_time(c, "execution.createdAt", model->created_at_ms, store->created_at_ms);
    same_time(c, "execution.startedAt", model->started_at_ms, store->started_at_ms);
    same_time(c, "execution.finishedAt", model->finished_at_ms, store->finished_at_ms);
    same_number(c, "execution.hasExitCode", model->has_exit_code, store->has_exit_code);
    same_number(c, "execution.exitCode", model->exit_code, store->exit_code);
    same_text(c, "execution.reason", model->reason, store->reason);
    same_text(c, "execution.retryOf", model->retry_of, store->retry_of);
    same_number(c, "execution.cancelRequested", model->cancel_requested, store->cancel_requested);
    same_number(c, "execution.spawned", model->spawned, store->spawned);
    same_number(c, "execution.duplicate", model->duplicate, store->duplicate);
    same_number(c, "execution.once", model->once, store->once);
    same_number(c, "execution.toVerify", model->to_verify, store->to_verify);
    same_number(c, "execution.onLost", model->on_lost, store->on_lost);
    same_number(c, "execution.maxAttempts", model->max_attempts, store->max_attempts);
    if (c->without_turns)
        return;
    same_number(c, "execution.spent", model->spent, store->spent);
    same_number(c, "execution.retryBackoff", model->retry_backoff_ms, store->retry_backoff_ms);
    same_number(c, "execution.concurrency", model->concurrency, store->concurrency);
    same_number(c, "execution.parked", model->parked, store->parked);
}

void compare_answers(struct comparison *c, const struct hf_answer *model,
                     const struct hf_answer *store)
{
    same_text(c, "code", hf_code_name(model->code), hf_code_name(store->code));
    same_number(c, "queued", model->queued, store->queued);
    same_number(c, "ahead", model->ahead, store->ahead);
    same_number(c, "freed", model->freed, store->freed);
    same_number(c, "has a holder", model->has_holder, store->has_holder);
    /* Without parking, who claims what is held is told nothing of it. */
    bool tells = !c->without_executions && !(c->without_turns && model->execution.parked);
    if (tells)
        same_number(c, "has an execution", model->has_execution, store->has_execution);
    if (tells && model->has_execution)
        compare_executions(c, &model->execution, &store->execution);
    if (model->has_holder)
        compare_statuses(c, &model->holder, &store->holder);
    if (model->code == 0 && model->lease.name[0])
        compare_leases(c, &model->lease, &store->lease);
}

void compare_events(struct comparison *c, const struct hf_event *model,
                    const struct hf_event *store)
{
    same_text(c, "event.kind", hf_event_kind_name(model->kind), hf_event_kind_name(store->kind));
    same_text(c, "event.name", model->name, store->name);
    same_text(c, "event.owner", model->owner, store->owner);
    same_text(c, "event.reason", model->reason, store->reason);
    same_text(c, "event.executionId", model->execution_id, store->execution_id);
    same_fence(c, "event.fence", model->fence, store->fence);
    same_time(c, "event.at", model->at_ms, store->at_ms);
}

void compare_totals(struct comparison *c, const struct hf_totals *model,
                    const struct hf_totals *store)
{
    same_number(c, "granted", model->acquire_granted, store->acquire_granted);
    same_number(c, "held", model->acquire_held, store->acquire_held);
    same_number(c, "released", model->release_done, store->release_done);
    same_number(c, "release lost", model->release_lost, store->release_lost);
    same_number(c, "taken expired", model->takeover_expired, store->takeover_expired);
    same_number(c, "taken dead", model->takeover_holder_died, store->takeover_holder_died);
    same_number(c, "taken rebooted", model->takeover_rebooted, store->takeover_rebooted);
    same_number(c, "forced", model->forced, store->forced);
    same_number(c, "lost", model->lost, store->lost);
    if (c->without_executions)
        return;
    same_number(c, "pending", model->executions_pending, store->executions_pending);
    same_number(c, "running", model->executions_running, store->executions_running);
}
