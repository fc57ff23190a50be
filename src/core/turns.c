/*
 * Whose turn it is: what becomes of an execution that is to be claimed later while its lock has
 * another one (overlap), how those whose lock is held wait without being looked at (parking), and
 * how many of a workflow may run at once (concurrency).
 *
 * Where a lock is free and executions are parked at it, another one of the same kind is PENDING and
 * not parked, so that whoever would claim them claims that, and its end makes the next ones ready. A
 * kind is what workers take or leave as a whole: a workflow, its limit, and whether it is to be
 * verified. With one ready for all of them, the others would wait for ever behind one that nobody
 * takes.
 */
#include <stdio.h>
#include <string.h>

#include "step.h"

/* ---- what must be known --------------------------------------------------------------------- */

/* Of what is to be begun: of the one that was found and is taken up, else of a new one. */
static int32_t concurrency_of(const struct hf_ask *ask, const struct hf_execution *found,
                              const char **ret_workflow)
{
    const struct hf_request *req = ask->req;
    bool taken_up = found && (req->claim || found->state == HF_PENDING);
    *ret_workflow = taken_up ? found->workflow : req->workflow;
    return taken_up ? found->concurrency : req->concurrency;
}

/* One that is found RUNNING may be found to have lost its lease, and is PENDING then. */
static struct hf_wanted begin_wants(const struct hf_ask *ask)
{
    const struct hf_execution *x = ask->has_found ? &ask->found : NULL;
    struct hf_wanted wanted = {.running_of = x ? x->workflow : ask->req->workflow};
    wanted.running_max = ask->req->claim ? 0 : ask->req->concurrency;
    if (x && x->concurrency > wanted.running_max)
        wanted.running_max = x->concurrency;
    if (!wanted.running_max)
        wanted.running_of = NULL;
    return wanted;
}

static struct hf_wanted enqueue_wants(const struct hf_request *req)
{
    if (req->run_at_ms)
        return (struct hf_wanted){0};
    switch (req->overlap) {
    case HF_OVERLAP_REJECT:
    case HF_OVERLAP_SKIP:
        return (struct hf_wanted){.waiting = HF_WAITING_FIRST};
    case HF_OVERLAP_REPLACE:
    case HF_OVERLAP_CANCEL:
        return (struct hf_wanted){.waiting = HF_WAITING_REPLACEABLE};
    default:
        return (struct hf_wanted){.waiting = req->queue_limit ? HF_WAITING_COUNT : HF_WAITING_NOT,
                                  .waiting_max = req->queue_limit};
    }
}

struct hf_wanted hf_ask_wants(const struct hf_ask *ask)
{
    const struct hf_request *req = ask->req;
    if (req->op == HF_OP_ENQUEUE)
        return enqueue_wants(req);
    if (req->op == HF_OP_ACQUIRE && (req->workflow || req->claim))
        return begin_wants(ask);
    return (struct hf_wanted){0};
}

bool hf_step_is_full(const struct hf_ask *ask, struct hf_effects *fx)
{
    const char *workflow;
    if (!ask->req->workflow && !ask->req->claim)
        return false;
    int32_t most = concurrency_of(ask, hf_step_found(ask, fx), &workflow);
    return most && ask->n_running >= most;
}

/* ---- parking -------------------------------------------------------------------------------- */

static bool is_parked(const struct hf_record *rec, const struct hf_execution *x, int64_t wall_ms)
{
    return rec->grant.held && hf_execution_is_due(x, wall_ms);
}

static void note_parked(struct hf_record *rec, struct hf_effects *fx)
{
    fx->changed |= !rec->parked;
    rec->parked = true;
}

void hf_step_park(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                  struct hf_answer *answer, struct hf_effects *fx)
{
    struct hf_execution x = *hf_step_found(ask, fx);
    if (!x.parked && is_parked(rec, &x, world->wall_ms)) {
        x.parked = true;
        hf_step_keep(fx, &x, false);
        note_parked(rec, fx);
        fx->park_due_ms = world->wall_ms; /* what else is due would only find out the same */
    }
    if (x.parked)
        hf_step_answer_with(answer, &x, false);
}

void hf_step_park_others(const struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_effects *fx)
{
    if (ask->req->claim && rec->parked)
        fx->park_due_ms = world->wall_ms;
}

void hf_step_unpark(const struct hf_record *rec, struct hf_effects *fx)
{
    fx->unpark = fx->vacated && rec->parked && !rec->grant.held && rec->n_waiters == 0;
}

/* ---- waking --------------------------------------------------------------------------------- */

uint32_t hf_kept_wakes(const struct hf_kept_execution *kept)
{
    const struct hf_execution *x = &kept->x;
    bool is_ready = x->state == HF_PENDING && !x->parked;
    bool makes_room = kept->left && x->state != HF_RUNNING && x->concurrency > 0;
    return (uint32_t)is_ready + makes_room;
}

/* ---- overlap -------------------------------------------------------------------------------- */

/* Nothing is recorded: its lock has one that runs or is about to. */
static void refuse_overlap(struct hf_record *rec, const struct hf_ask *ask,
                           const struct hf_world *world, struct hf_answer *answer,
                           struct hf_effects *fx)
{
    hf_step_refuse(rec, HF_HELD, world, answer);
    if (!answer->holder.execution_id[0])
        hf_copy_text(answer->holder.execution_id, sizeof answer->holder.execution_id,
                     ask->waiting_id);
    struct hf_event *e =
        hf_step_deny(rec, ask->req->owner, rec->grant.held ? "held" : "pending", world, fx);
    if (!e)
        return;
    if (ask->req->overlap == HF_OVERLAP_SKIP)
        e->kind = HF_EV_SKIPPED;
    hf_copy_text(e->execution_id, sizeof e->execution_id, answer->holder.execution_id);
}

static void replace_waiting(struct hf_record *rec, const struct hf_ask *ask,
                            const struct hf_world *world, struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    if (!ask->waiting_id[0])
        return;
    hf_copy_text(fx->replaced_by, sizeof fx->replaced_by, req->execution_id);
    fx->replaced_at_ms = world->wall_ms;
    struct hf_event *e = hf_step_tell(fx, world, rec, HF_EV_FINISHED, req->owner, "");
    snprintf(e->reason, sizeof e->reason, "replaced by %s", req->execution_id);
    hf_copy_text(e->execution_id, sizeof e->execution_id, ask->waiting_id);
}

/* True: it is answered, and not recorded. */
static bool overlap_answers(struct hf_record *rec, const struct hf_ask *ask,
                            const struct hf_world *world, struct hf_answer *answer,
                            struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    switch (req->overlap) {
    case HF_OVERLAP_REJECT:
    case HF_OVERLAP_SKIP:
        if (!rec->grant.held && !ask->waiting_id[0])
            return false;
        refuse_overlap(rec, ask, world, answer, fx);
        return true;
    case HF_OVERLAP_QUEUE:
        if (!req->queue_limit || ask->n_waiting < req->queue_limit)
            return false;
        hf_step_deny(rec, req->owner, "queue full", world, fx);
        hf_step_refuse(rec, HF_QUEUE_FULL, world, answer);
        return true;
    case HF_OVERLAP_CANCEL:
        if (rec->execution.id[0] && hf_execution_cancel(&rec->execution, world->wall_ms))
            hf_step_keep(fx, &rec->execution, false);
        /* fall through */
    case HF_OVERLAP_REPLACE:
        replace_waiting(rec, ask, world, fx);
    }
    return false;
}

/* Record it for whoever claims it. What has the key already answers as it would answer a begin. */
void hf_step_enqueue(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                     struct hf_answer *answer, struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    hf_step_mend(rec, ask, world, fx);
    const struct hf_execution *x = hf_step_found(ask, fx);
    enum hf_key_state state = hf_key_state_of(x, req, ask->same_input);
    if (x && strcmp(x->id, req->execution_id) == 0) {
        hf_step_answer_with(answer, x,
                            false); /* the reply to the first enqueue was lost: it is done */
        return;
    }
    if (x && state != HF_KEY_IS_FREE) {
        hf_step_answer_key(rec, ask, world, answer, fx,
                           state == HF_KEY_IS_PENDING ? HF_KEY_IS_DUPLICATE : state, x);
        return;
    }
    if (!req->run_at_ms && overlap_answers(rec, ask, world, answer, fx))
        return;
    struct hf_execution made;
    hf_execution_make(&made, req, world->wall_ms);
    made.parked = is_parked(rec, &made, world->wall_ms);
    if (made.parked)
        note_parked(rec, fx);
    hf_step_keep(fx, &made, true);
    hf_step_answer_with(answer, &made, false);
}
