/* The requests, each as a step; what a lease and its queue are is lease.c's. */
#include <stdio.h>
#include <string.h>

#include "step.h"

/* ---- small pieces --------------------------------------------------------------------------- */

static int64_t add_saturated(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static void answer_lease(const struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_answer *answer)
{
    const struct hf_grant *g = &rec->grant;
    struct hf_lease *l = &answer->lease;
    answer->code = 0;
    hf_copy_text(l->name, sizeof l->name, rec->name);
    hf_copy_text(l->token, sizeof l->token, ask->req->token);
    l->fence = g->fence;
    hf_copy_text(l->owner, sizeof l->owner, g->owner);
    hf_copy_text(l->note, sizeof l->note, g->note);
    l->acquired_at_ms = g->acquired_at_ms;
    l->expires_at_ms = world->wall_ms + (g->expires_ms - world->unsure_ms - world->now_ms);
    l->ttl_ms = g->ttl_ms;
    hf_copy_text(l->execution_id, sizeof l->execution_id, g->execution_id);
    l->takeover = g->took;
    if (!rec->execution.id[0])
        return;
    l->cancel_requested = rec->execution.cancel_requested;
    answer->has_execution = true;
    answer->execution = rec->execution;
}

/* ---- acquire ------------------------------------------------------------------------------------ */

/*
 * Renew what the asker holds; fence and token stay as they are. Its end never moves back: this may be a late
 * copy of a request, and the holder counts on what a newer one was answered.
 */
static void renew(struct hf_record *rec, int64_t ttl_ms, const struct hf_world *world,
                  struct hf_effects *fx)
{
    struct hf_grant *g = &rec->grant;
    if (ttl_ms)
        g->ttl_ms = ttl_ms;
    int64_t ends_ms = world->now_ms + world->unsure_ms + g->ttl_ms;
    if (ends_ms > g->expires_ms)
        g->expires_ms = ends_ms;
    g->offered = false;
    fx->renewed = fx->changed = true;
    if (rec->has_self) /* who offered it was killed before it was taken out of the queue */
        hf_waiter_drop(rec, &g->id, fx);
    if (world->now_ms - g->told_ms >= HF_EXTENDED_EVERY_MS) {
        g->told_ms = world->now_ms;
        hf_step_tell(fx, world, rec, HF_EV_EXTENDED, g->owner, "");
    }
}

/* Refuse one who does not wait, or waits no longer. */
static void turn_away(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                      struct hf_answer *answer, struct hf_effects *fx)
{
    if (ask->req->claim) /* who looks for work is not denied anything */
        hf_step_park(rec, ask, world, answer, fx);
    else
        hf_step_deny(rec, ask->req->owner, rec->has_self ? "gave up waiting" : "held", world, fx);
    if (rec->has_self)
        hf_waiter_drop(rec, &ask->id, fx);
    hf_step_refuse(rec, HF_HELD, world, answer);
}

/* Whoever stands just ahead is whom the waiter looks after: it must not be one of the gone. */
static void drop_gone_ahead(struct hf_record *rec, const struct hf_world *world,
                            struct hf_answer *answer, struct hf_effects *fx)
{
    while (answer->ahead && hf_waiter_is_gone(&rec->head[answer->ahead - 1], world)) {
        struct hf_lock_id id = rec->head[--answer->ahead].id;
        hf_waiter_drop(rec, &id, fx);
    }
    answer->holder.waiters = rec->n_waiters;
}

/* Refuse one who waits: it joins the queue, or keeps its place there. */
static void enqueue(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                    struct hf_answer *answer, struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    hf_step_refuse(rec, HF_HELD, world, answer);
    answer->queued = true;
    struct hf_waiter *w = &rec->self;
    if (!rec->has_self) {
        *w = (struct hf_waiter){.id = ask->id,
                                .priority = req->priority,
                                .ttl_ms = req->ttl_ms,
                                .queued_ms = world->now_ms,
                                .bound = ask->bound};
        hf_copy_text(w->owner, sizeof w->owner, req->owner);
        hf_copy_text(w->note, sizeof w->note, req->note);
        rec->has_self = true;
        rec->n_waiters++;
    }
    w->seen_ms = world->now_ms;
    w->until_ms = req->wait_ms < 0 ? INT64_MAX : add_saturated(world->now_ms, req->wait_ms);
    fx->put_self = true;
    for (uint32_t i = 0; i < rec->n_head && !hf_lock_id_equal(&rec->head[i].id, &ask->id); i++)
        answer->ahead += w->ticket == 0 ? rec->head[i].priority >= w->priority
                                        : hf_waiter_before(&rec->head[i], w);
    drop_gone_ahead(rec, world, answer, fx);
}

/* It does not want the lock any more: hand on what it was offered, or leave the queue. */
static void stand_back(struct hf_record *rec, const struct hf_ask *ask,
                       const struct hf_world *world, struct hf_effects *fx)
{
    if (hf_lease_is_own(rec, ask)) {
        hf_lease_end(rec, fx, HF_END_RELEASED);
        hf_lease_offer(rec, ask, world, fx);
    } else if (rec->has_self)
        hf_waiter_drop(rec, &ask->id, fx);
}

/* The lock could be had, but its workflow has as many RUNNING ones as it may. */
static void refuse_full(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx)
{
    if (!ask->req->claim)
        hf_step_deny(rec, ask->req->owner, "concurrency", world, fx);
    stand_back(rec, ask, world, fx);
    if (ask->req->claim)
        answer->code = -HF_RACED;
    else
        hf_step_refuse(rec, HF_HELD, world, answer);
}

static void step_acquire(struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_answer *answer,
                         struct hf_effects *fx)
{
    const struct hf_request *req = ask->req;
    bool mine = hf_lease_is_own(rec, ask);
    bool started = mine && rec->grant.execution_id[0];
    if (!started && hf_step_key_answers(rec, ask, world, answer, fx)) {
        stand_back(rec, ask, world, fx);
        return;
    }
    if (!mine && hf_lease_ended_before(rec, ask)) {
        hf_step_refuse(rec, HF_LOST, world, answer);
        return;
    }
    if (!mine && rec->grant.held) {
        if (req->wait_ms)
            enqueue(rec, ask, world, answer, fx);
        else
            turn_away(rec, ask, world, answer, fx);
        return;
    }
    if (!started && hf_step_is_full(ask, fx)) {
        refuse_full(rec, ask, world, answer, fx);
        return;
    }
    if (mine)
        renew(rec, req->ttl_ms, world, fx);
    else {
        struct hf_terms t = {ask->id, req->owner, req->note, req->ttl_ms, &ask->bound, false, 0};
        answer->code = hf_lease_grant(rec, &t, world, fx);
        if (answer->code < 0)
            return;
    }
    hf_step_start_execution(rec, ask, world, fx);
    if (!started)
        hf_step_park_others(rec, ask, world, fx);
    answer_lease(rec, ask, world, answer);
}

/* ---- extend and release ------------------------------------------------------------------------- */

/* Is the lease the asker's, live, and of the fence it named? Else refuse. */
static bool require_own(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer)
{
    if (hf_lease_is_own(rec, ask) && (!ask->req->fence || ask->req->fence == rec->grant.fence))
        return true;
    hf_step_refuse(rec, HF_LOST, world, answer);
    return false;
}

static void step_extend(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx)
{
    if (!require_own(rec, ask, world, answer))
        return;
    hf_step_beat(rec, ask, fx);
    renew(rec, ask->req->ttl_ms, world, fx);
    answer_lease(rec, ask, world, answer);
}

static void release_own(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx, const char *reason)
{
    enum hf_outcome outcome = ask->req->outcome;
    struct hf_event *e =
        hf_step_tell(fx, world, rec, outcome == HF_OUTCOME_NONE ? HF_EV_RELEASED : HF_EV_FINISHED,
                     rec->grant.owner, outcome == HF_OUTCOME_SUCCESS ? "succeeded" : reason);
    if (outcome == HF_OUTCOME_FAILED && !*reason && ask->req->has_exit_code)
        snprintf(e->reason, sizeof e->reason, "failed with exit code %d", ask->req->exit_code);
    else if (outcome == HF_OUTCOME_FAILED && !*reason)
        hf_copy_text(e->reason, sizeof e->reason, "failed");
    snprintf(e->detail, sizeof e->detail, "held for %lld ms",
             (long long)(world->now_ms - rec->grant.acquired_ms));
    hf_step_finish(rec, ask, world, answer, fx, reason);
    hf_lease_end(rec, fx, HF_END_RELEASED);
    rec->counts.released++;
    hf_lease_offer(rec, ask, world, fx);
}

static void step_release(struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_answer *answer,
                         struct hf_effects *fx)
{
    if (!hf_lease_is_own(rec, ask) &&
        hf_step_finished_before(ask, hf_lease_was_released(rec, ask), answer, fx))
        return; /* the reply to the first release was lost: it is done */
    if (require_own(rec, ask, world, answer)) {
        release_own(rec, ask, world, answer, fx, ask->req->reason ? ask->req->reason : "");
        return;
    }
    rec->counts.release_lost++;
    fx->changed = true;
}

/* Leave the queue, and give back what was offered meanwhile. Always done. */
static void step_withdraw(struct hf_record *rec, const struct hf_ask *ask,
                          const struct hf_world *world, struct hf_answer *answer,
                          struct hf_effects *fx)
{
    if (hf_lease_is_own(rec, ask))
        release_own(rec, ask, world, answer, fx, "gave up waiting");
    else if (rec->has_self) {
        hf_step_deny(rec, rec->self.owner, "gave up waiting", world, fx);
        hf_waiter_drop(rec, &ask->id, fx);
    }
}

/* ---- without a lease ---------------------------------------------------------------------------- */

static void step_force(struct hf_record *rec, const struct hf_ask *ask,
                       const struct hf_world *world, struct hf_answer *answer,
                       struct hf_effects *fx)
{
    if (fx->freed.reason != HF_STALE_NOT && fx->freed.fence == ask->req->fence)
        return; /* it was stale, and settling has freed it just now */
    if (!rec->grant.held || rec->grant.fence != ask->req->fence) {
        hf_step_refuse(rec, HF_FENCE_STALE, world, answer);
        return;
    }
    hf_record_status(rec, world, &answer->holder);
    answer->has_holder = true;
    struct hf_event *e =
        hf_step_tell(fx, world, rec, HF_EV_FORCED, rec->grant.owner, ask->req->reason);
    snprintf(e->detail, sizeof e->detail, "by %s", ask->req->owner ? ask->req->owner : "");
    hf_lease_lose(rec, world, fx, "forced");
    rec->counts.forced++;
    hf_lease_offer(rec, ask, world, fx);
}

static void step_settle(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx)
{
    hf_step_mend(rec, ask, world, fx);
    answer->freed = fx->inherited ? HF_STALE_NOT : fx->freed.reason;
    hf_record_status(rec, world, &answer->holder);
    answer->has_holder = true;
}

/* The holder's own word that it had to stop: nothing but an event. */
static void step_lost(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                      struct hf_answer *answer, struct hf_effects *fx)
{
    (void)answer;
    hf_step_tell(fx, world, rec, HF_EV_LOST, ask->req->owner, ask->req->reason)->fence =
        ask->req->fence;
    rec->counts.lost++;
    fx->changed = true;
}

static void step_status(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx)
{
    (void)ask;
    (void)fx;
    hf_record_status(rec, world, &answer->holder);
    answer->has_holder = true;
}

static void step_guard(struct hf_record *rec, const struct hf_ask *ask,
                       const struct hf_world *world, struct hf_answer *answer,
                       struct hf_effects *fx)
{
    (void)fx;
    /* No grant has fence 0; a foreign lock file only looks as if it had. */
    if (!rec->grant.held || !ask->req->fence || rec->grant.fence != ask->req->fence ||
        hf_grant_stale(&rec->grant, world) != HF_STALE_NOT)
        hf_step_refuse(rec, HF_FENCE_STALE, world, answer);
}

/* ---- all of them -------------------------------------------------------------------------------- */

void hf_step(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
             struct hf_answer *answer, struct hf_effects *fx)
{
    static hf_step_fn *const steps[] = {
        [HF_OP_ACQUIRE] = step_acquire,  [HF_OP_EXTEND] = step_extend,
        [HF_OP_RELEASE] = step_release,  [HF_OP_WITHDRAW] = step_withdraw,
        [HF_OP_FORCE] = step_force,      [HF_OP_SETTLE] = step_settle,
        [HF_OP_LOST] = step_lost,        [HF_OP_STATUS] = step_status,
        [HF_OP_GUARD] = step_guard,      [HF_OP_ENQUEUE] = hf_step_enqueue,
        [HF_OP_CANCEL] = hf_step_cancel,
    };
    *answer = (struct hf_answer){0};
    steps[ask->req->op](rec, ask, world, answer, fx);
    fx->stepped = true;
    hf_step_unpark(rec, fx);
}
