/* The rows of type holdfast.answer that the functions give become answers. */
#include <stdio.h>
#include <string.h>

#include "postgres_store.h"

void hf_pg_status(const struct hf_pg_lock *lock, struct hf_status *ret)
{
    ret->alive = HF_ALIVE_UNKNOWN;
    ret->state = HF_STATE_FREE;
    ret->fence = lock->fence;
    ret->waiters = lock->waiters;
    if (!lock->held)
        return;
    if (lock->bound.n)
        ret->alive = hf_processes_alive(&lock->bound);
    ret->held_for_ms = lock->now_ms - lock->locked_at_ms;
    ret->locked_since_ms = lock->locked_at_ms;
    ret->remaining_ms = lock->locked_until_ms - lock->now_ms;
    ret->expires_at_ms = lock->locked_until_ms;
    bool over = ret->alive == HF_DEAD || ret->remaining_ms <= 0 || lock->ended;
    ret->state = over ? HF_STATE_STALE : HF_STATE_HELD;
}

void hf_pg_take_row(struct hf_pg_cursor at, struct hf_pg_row *ret)
{
    char processes[HF_PROCESSES_TEXT_MAX];
    memset(ret, 0, sizeof *ret);
    ret->code = (int)hf_pg_take_int(&at);
    ret->queued = hf_pg_take_bool(&at);
    ret->ahead = (uint32_t)hf_pg_take_int(&at);
    ret->freed = (enum hf_stale_reason)hf_pg_take_int(&at);
    ret->lock.now_ms = hf_pg_take_int(&at);
    ret->lock.held = hf_pg_take_bool(&at);
    hf_pg_take_id(&at, &ret->id);
    ret->lock.fence = hf_pg_take_int(&at);
    hf_pg_take_text(&at, ret->owner, sizeof ret->owner);
    hf_pg_take_text(&at, ret->note, sizeof ret->note);
    hf_pg_take_text(&at, ret->execution_id, sizeof ret->execution_id);
    ret->lock.locked_at_ms = hf_pg_take_int(&at);
    ret->lock.locked_until_ms = hf_pg_take_int(&at);
    ret->ttl_ms = hf_pg_take_int(&at);
    ret->lock.waiters = (uint32_t)hf_pg_take_int(&at);
    hf_pg_take_text(&at, processes, sizeof processes);
    hf_processes_parse(processes, &ret->lock.bound);
    hf_pg_take_text(&at, ret->took, sizeof ret->took);
    ret->has_holder = hf_pg_take_bool(&at);
    hf_pg_take_text(&at, ret->look, sizeof ret->look);
    bool duplicate = hf_pg_take_bool(&at);
    hf_pg_take_text(&at, ret->ready, sizeof ret->ready);
    hf_pg_take_execution(hf_pg_take_composite(&at), &ret->execution);
    ret->execution.duplicate = duplicate;
}

void hf_pg_parse_takeover(const char *text, struct hf_takeover *ret)
{
    int reason, at = 0;
    if (!*text) /* by far the most common */
        return;
    long long fence, acquired_at_ms, held_for_ms, ttl_ms;
    struct hf_takeover took = {0};
    if (sscanf(text, "%d %32s %lld %lld %lld %lld %n", &reason, took.lock_id, &fence,
               &acquired_at_ms, &held_for_ms, &ttl_ms, &at) != 6 ||
        !at)
        return;
    took.reason = (enum hf_stale_reason)reason;
    took.fence = fence;
    took.acquired_at_ms = acquired_at_ms;
    took.held_for_ms = held_for_ms;
    took.ttl_ms = ttl_ms;
    snprintf(took.owner, sizeof took.owner, "%s", text + at);
    *ret = took;
}

static void fill_holder(const struct hf_pg_row *row, const char *name, struct hf_status *ret)
{
    *ret = (struct hf_status){0};
    strcpy(ret->name, name);
    hf_pg_status(&row->lock, ret);
    memcpy(ret->execution_id, row->execution_id, sizeof ret->execution_id);
    if (!row->lock.held)
        return;
    memcpy(ret->owner, row->owner, sizeof ret->owner);
    memcpy(ret->note, row->note, sizeof ret->note);
}

static void fill_lease(const struct hf_pg_row *row, const struct hf_request *req,
                       struct hf_lease *ret)
{
    strcpy(ret->name, req->name);
    strcpy(ret->token, req->token);
    ret->fence = row->lock.fence;
    memcpy(ret->owner, row->owner, sizeof ret->owner);
    memcpy(ret->note, row->note, sizeof ret->note);
    memcpy(ret->execution_id, row->execution_id, sizeof ret->execution_id);
    ret->acquired_at_ms = row->lock.locked_at_ms;
    ret->expires_at_ms = row->lock.locked_until_ms;
    ret->ttl_ms = row->ttl_ms;
    ret->cancel_requested = row->execution.cancel_requested;
    hf_pg_parse_takeover(row->took, &ret->takeover);
}

/* The library's guard is a status, compared here. */
static void answer_guard(const struct hf_request *req, struct hf_answer *answer)
{
    const struct hf_status *now = &answer->holder;
    if (now->state == HF_STATE_HELD && req->fence && now->fence == req->fence)
        *answer = (struct hf_answer){0};
    else
        answer->code = -HF_FENCE_STALE;
}

void hf_pg_fill_answer(const struct hf_pg_row *row, const struct hf_request *req,
                       struct hf_answer *answer)
{
    *answer = (struct hf_answer){.code = row->code,
                                 .queued = row->queued,
                                 .ahead = row->ahead,
                                 .has_holder = row->has_holder,
                                 .freed = row->freed};
    if (row->has_holder)
        fill_holder(row, req->name, &answer->holder);
    if (row->code == 0 && !row->execution.duplicate &&
        (req->op == HF_OP_ACQUIRE || req->op == HF_OP_EXTEND))
        fill_lease(row, req, &answer->lease);
    answer->has_execution = row->execution.id[0] && !hf_op_is_read(req->op);
    if (answer->has_execution)
        answer->execution = row->execution;
    if (req->op == HF_OP_GUARD)
        answer_guard(req, answer);
}
