#include "execution.h"

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
                                 .max_attempts = req->max_attempts};
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
    x->spawned = x->to_verify = x->cancel_requested = false;
    x->has_exit_code = false;
    x->exit_code = 0;
    x->reason[0] = '\0';
}

bool hf_execution_spawn(struct hf_execution *x)
{
    if (x->state != HF_RUNNING || x->cancel_requested)
        return false;
    x->spawned = true;
    return true;
}

static void end(struct hf_execution *x, enum hf_execution_state state, const char *reason,
                int64_t wall_ms)
{
    x->state = state;
    x->finished_at_ms = wall_ms;
    copy_text(x->reason, sizeof x->reason, reason);
}

static enum hf_execution_state state_of(enum hf_outcome outcome)
{
    return outcome == HF_OUTCOME_SUCCESS  ? HF_SUCCESS
           : outcome == HF_OUTCOME_FAILED ? HF_FAILED
                                          : HF_ABORTED;
}

void hf_execution_finish(struct hf_execution *x, const struct hf_request *req, const char *reason,
                         int64_t wall_ms)
{
    if (hf_execution_is_over(x))
        return;
    end(x, state_of(req->outcome), reason, wall_ms);
    x->has_exit_code = req->has_exit_code;
    x->exit_code = req->has_exit_code ? req->exit_code : 0;
}

/* May it be begun again by whoever claims it? */
static bool is_repeated(const struct hf_execution *x)
{
    if (x->once || x->cancel_requested)
        return false; /* there is nobody to run it, or nobody wants it */
    if (!x->spawned || x->on_lost == HF_ON_LOST_VERIFY)
        return true;
    return x->on_lost == HF_ON_LOST_RETRY && (x->max_attempts == 0 || x->attempt < x->max_attempts);
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
    x->state = HF_PENDING;
    x->started_at_ms = 0;
    x->owner[0] = '\0';
    copy_text(x->reason, sizeof x->reason, reason);
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
    return req->outcome != HF_OUTCOME_NONE && x->state == state_of(req->outcome) &&
           x->has_exit_code == req->has_exit_code &&
           (!x->has_exit_code || x->exit_code == req->exit_code);
}
