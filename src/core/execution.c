#include "execution.h"

#include <stdio.h>
#include <string.h>

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = from ? strnlen(from, size - 1) : 0;
    if (n)
        memcpy(to, from, n);
    to[n] = '\0';
}

bool hf_execution_is_over(const struct hf_execution *x)
{
    return x->state == HF_SUCCESS || x->state == HF_FAILED || x->state == HF_ABORTED;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static enum hf_key_state once_state_of(const struct hf_execution *found)
{
    if (found->state == HF_SUCCESS)
        return HF_KEY_IS_DONE;
    if (found->state == HF_RUNNING)
        return HF_KEY_IS_BUSY;
    return found->state == HF_PENDING ? HF_KEY_IS_PENDING : HF_KEY_IS_FREE;
}

enum hf_key_state hf_key_state_of(const struct hf_execution *found, const struct hf_request *req,
                                  bool same_input)
{
    if (!found)
        return HF_KEY_IS_FREE;
    bool by_key = req->key && strcmp(found->key, req->key) == 0 && found->once == req->once &&
                  strcmp(found->workflow, req->workflow) == 0;
    if (by_key && req->once)
        return once_state_of(found);
    if (by_key && !same_input)
        return HF_KEY_IS_REUSED;
    /* What may have been done already is not begun again before that was looked into. */
    return found->state == HF_PENDING && !found->to_verify ? HF_KEY_IS_PENDING
                                                           : HF_KEY_IS_DUPLICATE;
}

/* ---- transitions ---------------------------------------------------------------------------- */

void hf_execution_make(struct hf_execution *ret, const struct hf_request *req, int64_t wall_ms)
{
    *ret = (struct hf_execution){.state = HF_PENDING,
                                 .run_at_ms = req->run_at_ms ? req->run_at_ms : wall_ms,
                                 .priority = req->priority,
                                 .created_at_ms = wall_ms,
                                 .once = req->once,
                                 .on_lost = req->on_lost,
                                 .max_attempts = req->max_attempts,
                                 .retry_backoff_ms = req->retry_backoff_ms,
                                 .concurrency = req->concurrency};
    copy_text(ret->id, sizeof ret->id, req->execution_id);
    copy_text(ret->workflow, sizeof ret->workflow, req->workflow);
    copy_text(ret->lock, sizeof ret->lock, req->name);
    copy_text(ret->key, sizeof ret->key, req->key);
    copy_text(ret->retry_of, sizeof ret->retry_of, req->retry_of);
}

void hf_execution_start(struct hf_execution *x, int64_t fence, const char *owner, int64_t wall_ms)
{
    x->state = HF_RUNNING;
    x->attempt++;
    x->fence = fence;
    copy_text(x->owner, sizeof x->owner, owner);
    x->started_at_ms = wall_ms;
    x->finished_at_ms = 0;
    x->spawned &= x->to_verify;
    x->cancel_requested = x->parked = false;
    x->has_exit_code = false;
    x->exit_code = 0;
    x->reason[0] = '\0';
}

bool hf_execution_spawn(struct hf_execution *x)
{
    if (x->state != HF_RUNNING || x->cancel_requested || (x->spawned && !x->to_verify))
        return false;
    x->spawned = true;
    x->to_verify = false;
    x->spent++;
    return true;
}

static void end(struct hf_execution *x, enum hf_execution_state state, const char *reason,
                int64_t wall_ms)
{
    x->state = state;
    x->finished_at_ms = wall_ms;
    x->parked = false;
    copy_text(x->reason, sizeof x->reason, reason);
}

static void wait_again(struct hf_execution *x, const char *reason)
{
    x->state = HF_PENDING;
    x->started_at_ms = 0;
    x->owner[0] = '\0';
    copy_text(x->reason, sizeof x->reason, reason);
}

static bool has_attempts_left(const struct hf_execution *x)
{
    return x->max_attempts == 0 || x->spent < x->max_attempts;
}

static enum hf_execution_state state_of(enum hf_outcome outcome)
{
    return outcome == HF_OUTCOME_SUCCESS  ? HF_SUCCESS
           : outcome == HF_OUTCOME_FAILED ? HF_FAILED
                                          : HF_ABORTED;
}

/* From its id and not by chance, so that every store finds the same number. */
static int64_t jitter_per_mille(const struct hf_execution *x)
{
    uint32_t hash = (uint32_t)x->spent;
    for (const char *c = x->id; *c; c++)
        hash = (hash * 31 + (unsigned char)*c) % 1000003;
    return hash % 1000;
}

int64_t hf_execution_backoff_ms(const struct hf_execution *x)
{
    static const int64_t hour_ms = 3600000;
    int64_t most_ms = x->retry_backoff_ms > hour_ms ? x->retry_backoff_ms : hour_ms;
    int64_t delay_ms = x->retry_backoff_ms;
    for (int32_t i = 1; i < x->spent && delay_ms < most_ms; i++)
        delay_ms = delay_ms > most_ms / 2 ? most_ms : 2 * delay_ms;
    return delay_ms + delay_ms * jitter_per_mille(x) / 4000;
}

/* May what has failed be tried again? What is still to be verified may have been done before. */
static bool is_retried(const struct hf_execution *x)
{
    return x->retry_backoff_ms > 0 && has_attempts_left(x) && !x->once && !x->cancel_requested &&
           !x->to_verify;
}

/* May it be begun again by whoever claims it? */
static bool is_repeated(const struct hf_execution *x)
{
    if (x->once || x->cancel_requested)
        return false; /* there is nobody to run it, or nobody wants it */
    if (!x->spawned || x->on_lost == HF_ON_LOST_VERIFY)
        return true;
    return x->on_lost == HF_ON_LOST_RETRY && has_attempts_left(x);
}

void hf_execution_lose(struct hf_execution *x, const char *reason, int64_t wall_ms)
{
    if (hf_execution_is_over(x))
        return;
    if (!is_repeated(x)) {
        end(x, HF_ABORTED, reason, wall_ms);
        return;
    }
    x->to_verify = x->spawned && x->on_lost == HF_ON_LOST_VERIFY;
    wait_again(x, reason);
}

void hf_execution_finish(struct hf_execution *x, const struct hf_request *req, const char *reason,
                         int64_t wall_ms)
{
    if (hf_execution_is_over(x))
        return;
    if (req->outcome == HF_OUTCOME_FAILED && !x->spawned)
        x->spent++; /* its runner does not tell when it starts: it must not fail for ever */
    if (req->outcome == HF_OUTCOME_LOST)
        hf_execution_lose(x, reason, wall_ms);
    else if (req->outcome == HF_OUTCOME_FAILED && is_retried(x)) {
        wait_again(x, reason);
        x->run_at_ms = wall_ms + hf_execution_backoff_ms(x);
    } else
        end(x, state_of(req->outcome), reason, wall_ms);
    x->has_exit_code = req->has_exit_code;
    x->exit_code = req->has_exit_code ? req->exit_code : 0;
}

/* What may have been done is not forgotten before that was looked into. */
bool hf_execution_is_replaceable(const struct hf_execution *x, int64_t wall_ms)
{
    return hf_execution_is_due(x, wall_ms) && !x->to_verify;
}

void hf_execution_replace(struct hf_execution *x, const char *by, int64_t wall_ms)
{
    char reason[HF_REASON_MAX + 1];
    snprintf(reason, sizeof reason, "replaced by %s", by);
    end(x, HF_ABORTED, reason, wall_ms);
}

bool hf_execution_cancel(struct hf_execution *x, int64_t wall_ms)
{
    if (hf_execution_is_over(x))
        return false;
    x->cancel_requested = true;
    if (x->state == HF_PENDING)
        end(x, HF_ABORTED, "cancelled", wall_ms);
    return true;
}

bool hf_execution_ended_so(const struct hf_execution *x, const struct hf_request *req)
{
    /* It waits for its next attempt, or was cancelled before that. */
    bool retried = (x->state == HF_PENDING || x->state == HF_ABORTED) &&
                   (req->outcome == HF_OUTCOME_FAILED || req->outcome == HF_OUTCOME_LOST);
    return req->outcome != HF_OUTCOME_NONE && (retried || x->state == state_of(req->outcome)) &&
           x->has_exit_code == req->has_exit_code &&
           (!x->has_exit_code || x->exit_code == req->exit_code);
}

/* ---- turns ---------------------------------------------------------------------------------- */

bool hf_execution_before(const struct hf_execution *a, const struct hf_execution *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->run_at_ms < b->run_at_ms;
}

bool hf_execution_is_due(const struct hf_execution *x, int64_t wall_ms)
{
    return x->state == HF_PENDING && x->run_at_ms <= wall_ms;
}
