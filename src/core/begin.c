/* What the steps of a lease do to executions; what an execution becomes is execution.c's. */
#include <stdio.h>
#include <string.h>

#include "step.h"

struct hf_sought hf_ask_finds(const struct hf_request *req)
{
    switch (req->op) {
    case HF_OP_ACQUIRE:
    case HF_OP_ENQUEUE:
        if (!req->workflow && !req->claim)
            return (struct hf_sought){0};
        return (struct hf_sought){.workflow = req->workflow,
                                  .key = req->claim ? NULL : req->key,
                                  .once = req->once,
                                  .id = req->execution_id};
    case HF_OP_RELEASE:
        return (struct hf_sought){.id = req->outcome != HF_OUTCOME_NONE ? req->execution_id : NULL};
    case HF_OP_CANCEL:
    case HF_OP_SETTLE:
        return (struct hf_sought){.id = req->execution_id};
    default:
        return (struct hf_sought){0};
    }
}

/* ---- what is found, and kept ---------------------------------------------------------------- */

static struct hf_kept_execution *kept(struct hf_effects *fx, const char *id)
{
    for (uint32_t i = 0; i < fx->n_executions; i++)
        if (strcmp(fx->executions[i].x.id, id) == 0)
            return &fx->executions[i];
    return NULL;
}

void hf_step_keep(struct hf_effects *fx, const struct hf_execution *x, bool is_new)
{
    struct hf_kept_execution *k = kept(fx, x->id);
    if (!k && fx->n_executions < HF_EXECUTIONS_MAX) {
        k = &fx->executions[fx->n_executions++];
        k->is_new = is_new;
        k->left = false;
    }
    if (k)
        k->x = *x;
}

void hf_step_keep_left(struct hf_effects *fx, const struct hf_execution *x)
{
    hf_step_keep(fx, x, false);
    struct hf_kept_execution *k = kept(fx, x->id);
    if (k)
        k->left = true;
}

const struct hf_execution *hf_step_found(const struct hf_ask *ask, struct hf_effects *fx)
{
    if (!ask->has_found)
        return NULL;
    const struct hf_kept_execution *k = kept(fx, ask->found.id);
    return k ? &k->x : &ask->found;
}

bool hf_step_is_of_grant(const struct hf_record *rec, const struct hf_execution *x)
{
    return rec->grant.held && strcmp(rec->grant.execution_id, x->id) == 0;
}

void hf_step_mend(const struct hf_record *rec, const struct hf_ask *ask,
                  const struct hf_world *world, struct hf_effects *fx)
{
    const struct hf_execution *x = hf_step_found(ask, fx);
    if (!x || x->state != HF_RUNNING || strcmp(x->lock, rec->name) != 0 ||
        hf_step_is_of_grant(rec, x))
        return;
    struct hf_execution lost = *x;
    hf_execution_lose(&lost, "its lease was gone", world->wall_ms);
    hf_step_keep_left(fx, &lost);
}

void hf_step_answer_with(struct hf_answer *answer, const struct hf_execution *x, bool duplicate)
{
    answer->has_execution = true;
    answer->execution = *x;
    answer->execution.duplicate = duplicate;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void tell_of_key(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_effects *fx,
                        enum hf_event_kind kind, const char *reason, const struct hf_execution *x)
{
    struct hf_event *e = hf_step_tell(fx, world, rec, kind, ask->req->owner, reason);
    if (ask->req->key)
        snprintf(e->detail, sizeof e->detail, "key %s", ask->req->key);
    hf_copy_text(e->execution_id, sizeof e->execution_id, x->id);
}

/* It was done, is being done, or must not be. */
void hf_step_answer_key(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx, enum hf_key_state state,
                        const struct hf_execution *x)
{
    switch (state) {
    case HF_KEY_IS_DONE:
        hf_step_refuse(rec, HF_DONE_ALREADY, world, answer);
        tell_of_key(rec, ask, world, fx, HF_EV_SKIPPED, "already done", x);
        break;
    case HF_KEY_IS_BUSY:
        hf_step_refuse(rec, HF_HELD, world, answer);
        hf_copy_text(answer->holder.execution_id, sizeof answer->holder.execution_id, x->id);
        break;
    case HF_KEY_IS_REUSED:
        hf_step_refuse(rec, HF_KEY_REUSED, world, answer);
        if (hf_step_may_tell(rec, world, fx))
            tell_of_key(rec, ask, world, fx, HF_EV_SKIPPED, "its key has another input", x);
        break;
    default:
        if (hf_step_may_tell(rec, world, fx))
            tell_of_key(rec, ask, world, fx, HF_EV_DUPLICATE, hf_execution_state_name(x->state), x);
    }
    hf_step_answer_with(answer, x, state == HF_KEY_IS_DUPLICATE);
}

/* May the PENDING one be begun under this lock? */
static bool is_for_us(const struct hf_record *rec, const struct hf_execution *x)
{
    return strcmp(x->lock, rec->name) == 0;
}

static bool claim_is_answered(const struct hf_execution *x, const struct hf_record *rec,
                              const struct hf_request *req, struct hf_answer *answer)
{
    if (x && x->state == HF_PENDING && (!x->to_verify || req->verifies) && is_for_us(rec, x))
        return false;
    answer->code = -HF_RACED;
    return true;
}

bool hf_step_key_answers(struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_answer *answer,
                         struct hf_effects *fx)
{
    if (!ask->req->workflow && !ask->req->claim)
        return false;
    hf_step_mend(rec, ask, world, fx);
    const struct hf_execution *x = hf_step_found(ask, fx);
    if (ask->req->claim)
        return claim_is_answered(x, rec, ask->req, answer);
    if (!x)
        return false;
    enum hf_key_state state = hf_key_state_of(x, ask->req, ask->same_input);
    if (state == HF_KEY_IS_FREE || (state == HF_KEY_IS_PENDING && is_for_us(rec, x)))
        return false;
    if (state == HF_KEY_IS_BUSY && hf_step_is_of_grant(rec, x))
        return false; /* it refuses as any holder does */
    if (state == HF_KEY_IS_PENDING)
        state = HF_KEY_IS_DUPLICATE; /* it waits for another lock */
    hf_step_answer_key(rec, ask, world, answer, fx, state, x);
    return true;
}

/* ---- an execution's life -------------------------------------------------------------------- */

void hf_step_start_execution(struct hf_record *rec, const struct hf_ask *ask,
                             const struct hf_world *world, struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    struct hf_grant *g = &rec->grant;
    if ((!req->workflow && !req->claim) || g->execution_id[0])
        return;
    const struct hf_execution *x = hf_step_found(ask, fx);
    /* A once-run that failed and is asked for again by its own id goes on as the same one. */
    bool takes_up = x && (x->state == HF_PENDING || strcmp(x->id, req->execution_id) == 0);
    if (takes_up)
        rec->execution = *x;
    else
        hf_execution_make(&rec->execution, req, world->wall_ms);
    hf_execution_start(&rec->execution, g->fence, g->owner, world->wall_ms);
    hf_copy_text(g->execution_id, sizeof g->execution_id, rec->execution.id);
    hf_step_keep(fx, &rec->execution, !takes_up);
    fx->changed = true;
    struct hf_event *e = hf_step_tell(fx, world, rec, HF_EV_STARTED, g->owner, "");
    if (rec->execution.key[0])
        snprintf(e->detail, sizeof e->detail, "key %s", rec->execution.key);
}

static void keep_output(const struct hf_record *rec, const struct hf_ask *ask,
                        struct hf_effects *fx)
{
    if (ask->req->has_output)
        hf_copy_text(fx->output_of, sizeof fx->output_of, rec->execution.id);
}

void hf_step_beat(struct hf_record *rec, const struct hf_ask *ask, struct hf_effects *fx)
{
    struct hf_execution *x = &rec->execution;
    if (!x->id[0])
        return;
    if (ask->req->spawned && hf_execution_spawn(x))
        hf_step_keep(fx, x, false);
    keep_output(rec, ask, fx);
}

void hf_step_finish(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                    struct hf_answer *answer, struct hf_effects *fx, const char *reason)
{
    if (!rec->execution.id[0])
        return;
    hf_execution_finish(&rec->execution, ask->req, reason, world->wall_ms);
    hf_step_keep_left(fx, &rec->execution);
    hf_step_answer_with(answer, &rec->execution, false);
    keep_output(rec, ask, fx);
}

bool hf_step_finished_before(const struct hf_ask *ask, bool released, struct hf_answer *answer,
                             struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    const struct hf_execution *x = hf_step_found(ask, fx);
    if (!x)
        return released;
    bool same = req->fence ? req->fence == x->fence : released;
    if (x->state == HF_PENDING || (x->state == HF_ABORTED && req->outcome == HF_OUTCOME_FAILED))
        same &= released; /* or else it was lost, and not retried */
    /* Its attempt failed, was given up, and another one has begun since. */
    bool went_on = released && req->fence && req->fence < x->fence &&
                   (req->outcome == HF_OUTCOME_FAILED || req->outcome == HF_OUTCOME_LOST);
    if (!went_on && (!same || !hf_execution_ended_so(x, req)))
        return false;
    hf_step_answer_with(answer, x, false);
    return true;
}

void hf_step_cancel(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                    struct hf_answer *answer, struct hf_effects *fx)
{
    hf_step_mend(rec, ask, world, fx);
    const struct hf_execution *found = hf_step_found(ask, fx);
    if (!found || strcmp(found->lock, rec->name) != 0) {
        hf_step_refuse(rec, HF_NOT_FOUND, world, answer);
        return;
    }
    struct hf_execution x = *found;
    bool was_ready = x.state == HF_PENDING && !x.parked;
    if (hf_execution_cancel(&x, world->wall_ms)) {
        fx->vacated |= was_ready;
        hf_step_keep(fx, &x, false);
        if (hf_step_is_of_grant(rec, &x))
            rec->execution = x;
        else {
            struct hf_event *e =
                hf_step_tell(fx, world, rec, HF_EV_FINISHED, ask->req->owner, x.reason);
            hf_copy_text(e->execution_id, sizeof e->execution_id, x.id);
        }
    }
    hf_step_answer_with(answer, &x, false);
}
