#include "lease.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"

/* ---- small pieces --------------------------------------------------------------------------- */

void hf_copy_text(char *to, size_t size, const char *from)
{
    size_t n = from ? strnlen(from, size - 1) : 0;
    if (n)
        memcpy(to, from, n);
    to[n] = '\0';
}

bool hf_request_is_durable(const struct hf_request *req)
{
    return req->durable || req->workflow || req->claim || req->spawned ||
           req->outcome != HF_OUTCOME_NONE || req->op == HF_OP_CANCEL;
}

bool hf_op_is_read(enum hf_op op) { return op == HF_OP_STATUS || op == HF_OP_GUARD; }

bool hf_waiter_before(const struct hf_waiter *a, const struct hf_waiter *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->ticket < b->ticket;
}

static bool is_holder(const struct hf_record *rec, const struct hf_ask *ask)
{
    return rec->grant.held && ask->req->token && hf_lock_id_equal(&rec->grant.id, &ask->id);
}

static int64_t add_saturated(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

struct hf_event *hf_step_tell(struct hf_effects *fx, const struct hf_world *world,
                              const struct hf_record *rec, enum hf_event_kind kind,
                              const char *owner, const char *reason)
{
    struct hf_event *e = &fx->events[fx->n_events];
    if (fx->n_events + 1 < HF_EFFECTS_MAX)
        fx->n_events++;
    e->seq = 0;
    e->at_ms = world->wall_ms;
    e->kind = kind;
    e->fence = rec->grant.fence;
    hf_copy_text(e->name, sizeof e->name, rec->name);
    hf_copy_text(e->owner, sizeof e->owner, owner);
    hf_copy_text(e->execution_id, sizeof e->execution_id, rec->grant.execution_id);
    hf_copy_text(e->reason, sizeof e->reason, reason);
    e->detail[0] = '\0';
    return e;
}

void hf_remember_ended(struct hf_record *rec, const struct hf_lock_id *id, enum hf_end how)
{
    uint32_t keep = rec->n_ended < HF_ENDED_MAX ? rec->n_ended : HF_ENDED_MAX - 1;
    memmove(&rec->ended[1], &rec->ended[0], keep * sizeof rec->ended[0]);
    rec->ended[0] = (struct hf_ended){.id = *id, .how = (uint8_t)how};
    rec->n_ended = keep + 1;
}

/* How the asker's token ended earlier, or 0. */
static enum hf_end ended_before(const struct hf_record *rec, const struct hf_ask *ask)
{
    for (uint32_t i = 0; i < rec->n_ended; i++)
        if (hf_lock_id_equal(&rec->ended[i].id, &ask->id))
            return (enum hf_end)rec->ended[i].how;
    return 0;
}

/* ---- granting and ending -------------------------------------------------------------------- */

/* End the lease: its token is spent. What becomes of its execution, its caller decides before. */
static void end_grant(struct hf_record *rec, struct hf_effects *fx, enum hf_end how)
{
    struct hf_grant *g = &rec->grant;
    hf_remember_ended(rec, &g->id, how);
    if (g->offered) { /* nobody has announced the takeover that it came from: the next one does */
        fx->freed = g->took;
        fx->inherited = true;
    }
    rec->grant = (struct hf_grant){.fence = g->fence};
    rec->execution = (struct hf_execution){0};
    fx->changed = fx->vacated = true;
}

/* The lease is taken away: so ends its execution's attempt. */
static void lose_grant(struct hf_record *rec, const struct hf_world *world, struct hf_effects *fx,
                       const char *reason)
{
    struct hf_execution *x = &rec->execution;
    if (x->id[0] && x->state == HF_RUNNING) {
        hf_execution_lose(x, reason, world->wall_ms);
        hf_step_keep(fx, x, false);
    }
    end_grant(rec, fx, HF_END_LOST);
}

static void count_takeover(struct hf_counts *counts, enum hf_stale_reason reason)
{
    counts->taken_expired += reason == HF_STALE_EXPIRED;
    counts->taken_died += reason == HF_STALE_DIED || reason == HF_STALE_ENDED;
    counts->taken_rebooted += reason == HF_STALE_REBOOTED;
}

/* What a new grant is made of, whether the asker gets it at once or a waiter later. */
struct terms {
    struct hf_lock_id id;
    const char *owner, *note;
    int64_t ttl_ms;
    const struct hf_processes *bound;
    bool offer;
    int64_t waited_ms;
};

static int grant_to(struct hf_record *rec, const struct terms *t, const struct hf_world *world,
                    struct hf_effects *fx)
{
    int64_t fence = world->next_fence(world->ctx);
    if (fence < 0)
        return (int)fence;
    if (fence <= rec->last_fence)
        return -HF_INTERNAL; /* a store that repeats fences must not grant */
    struct hf_grant *g = &rec->grant;
    *g = (struct hf_grant){.held = true,
                           .offered = t->offer,
                           .id = t->id,
                           .fence = fence,
                           .acquired_at_ms = world->wall_ms,
                           .acquired_ms = world->now_ms,
                           .ttl_ms = t->ttl_ms,
                           .told_ms = world->now_ms,
                           .bound = *t->bound,
                           .took = fx->freed};
    int64_t lasts_ms = t->offer && t->ttl_ms > HF_OFFER_MS ? HF_OFFER_MS : t->ttl_ms;
    g->expires_ms = world->now_ms + lasts_ms;
    hf_copy_text(g->owner, sizeof g->owner, t->owner);
    hf_copy_text(g->note, sizeof g->note, t->note);
    rec->last_fence = fence;
    rec->counts.granted++;
    fx->changed = true;
    if (!fx->inherited)
        count_takeover(&rec->counts, g->took.reason);
    if (g->took.reason != HF_STALE_NOT && !fx->inherited)
        snprintf(hf_step_tell(fx, world, rec, HF_EV_TAKEN_OVER, g->owner,
                              hf_stale_reason_name(g->took.reason))
                     ->detail,
                 HF_DETAIL_MAX + 1, "from %s, fence %lld", g->took.owner, (long long)g->took.fence);
    struct hf_event *e = hf_step_tell(fx, world, rec, HF_EV_ACQUIRED, g->owner, "");
    if (t->offer)
        snprintf(e->detail, sizeof e->detail, "after waiting %lld ms", (long long)t->waited_ms);
    return 0;
}

/* ---- the queue ------------------------------------------------------------------------------ */

static bool waiter_is_gone(const struct hf_waiter *w, const struct hf_world *world)
{
    /* Seen long ago, or far in the future: by the clock of another boot. */
    if (world->now_ms >= w->until_ms || llabs(world->now_ms - w->seen_ms) >= HF_WAITER_MS)
        return true;
    enum hf_alive alive;
    return w->bound.n && world->dead(world->ctx, &w->bound, &alive) != HF_STALE_NOT;
}

static void drop_waiter(struct hf_record *rec, const struct hf_lock_id *id, struct hf_effects *fx)
{
    fx->dropped[fx->n_dropped++] = *id;
    for (uint32_t i = 0; i < rec->n_head; i++)
        if (hf_lock_id_equal(&rec->head[i].id, id)) {
            memmove(&rec->head[i], &rec->head[i + 1], (rec->n_head - i - 1) * sizeof rec->head[0]);
            rec->n_head--;
            break;
        }
    if (rec->has_self && hf_lock_id_equal(&rec->self.id, id))
        rec->has_self = false;
    if (rec->n_waiters)
        rec->n_waiters--;
}

/*
 * Offer a free lock to the first waiter that is still there. True: every waiter in the window was
 * gone, and there are more behind it.
 */
static bool offer_to_head(struct hf_record *rec, const struct hf_ask *ask,
                          const struct hf_world *world, struct hf_effects *fx)
{
    while (!rec->grant.held && rec->n_head) {
        struct hf_waiter w = rec->head[0];
        bool asks_now = ask->req->token && hf_lock_id_equal(&w.id, &ask->id);
        if (!asks_now && waiter_is_gone(&w, world)) {
            drop_waiter(rec, &w.id, fx);
            continue;
        }
        struct terms t = {
            w.id, w.owner, w.note, w.ttl_ms, &w.bound, true, world->now_ms - w.queued_ms};
        if (grant_to(rec, &t, world, fx) < 0)
            return false; /* it keeps its place; the asker's own grant will report the failure */
        drop_waiter(rec, &w.id, fx);
        if (!asks_now && fx->n_wake < 2)
            fx->wake[fx->n_wake++] = w.id;
    }
    return !rec->grant.held && rec->n_waiters > 0;
}

/* ---- settling ------------------------------------------------------------------------------- */

/* Why the lease is over, and whether its processes live; one of them that asks itself does. */
static enum hf_stale_reason judge(const struct hf_grant *grant, const struct hf_world *world,
                                  bool asks_itself, enum hf_alive *ret_alive)
{
    *ret_alive = HF_ALIVE_UNKNOWN;
    if (!grant->held)
        return HF_STALE_NOT;
    enum hf_stale_reason why = HF_STALE_NOT;
    if (grant->bound.n && !asks_itself)
        why = world->dead(world->ctx, &grant->bound, ret_alive);
    if (why == HF_STALE_NOT && world->now_ms >= grant->expires_ms)
        why = HF_STALE_EXPIRED;
    return why == HF_STALE_NOT && grant->ended ? HF_STALE_ENDED : why;
}

enum hf_stale_reason hf_grant_stale(const struct hf_grant *grant, const struct hf_world *world)
{
    enum hf_alive alive;
    return judge(grant, world, false, &alive);
}

static void free_stale(struct hf_record *rec, enum hf_stale_reason why,
                       const struct hf_world *world, struct hf_effects *fx)
{
    const struct hf_grant *g = &rec->grant;
    struct hf_takeover *freed = &fx->freed;
    freed->reason = why;
    hf_lock_id_format(&g->id, freed->lock_id);
    hf_copy_text(freed->owner, sizeof freed->owner, g->owner);
    freed->fence = g->fence;
    freed->acquired_at_ms = g->acquired_at_ms;
    freed->held_for_ms = world->now_ms - g->acquired_ms;
    freed->ttl_ms = g->ttl_ms;
    struct hf_event *e =
        hf_step_tell(fx, world, rec, HF_EV_EXPIRED, g->owner, hf_stale_reason_name(why));
    if (g->offered)
        hf_copy_text(e->detail, sizeof e->detail, "a waiter did not confirm it in time");
    lose_grant(rec, world, fx, hf_stale_reason_name(why));
}

bool hf_settle(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
               struct hf_effects *fx)
{
    enum hf_alive alive;
    enum hf_stale_reason why = judge(&rec->grant, world, is_holder(rec, ask), &alive);
    if (why != HF_STALE_NOT)
        free_stale(rec, why, world, fx);
    bool more = offer_to_head(rec, ask, world, fx);
    if (fx->stepped && !more)
        hf_step_unpark(rec, fx);
    return more;
}

/* ---- answers -------------------------------------------------------------------------------- */

void hf_record_status(const struct hf_record *rec, const struct hf_world *world,
                      struct hf_status *ret)
{
    const struct hf_grant *g = &rec->grant;
    *ret = (struct hf_status){.alive = HF_ALIVE_UNKNOWN, .waiters = rec->n_waiters};
    hf_copy_text(ret->name, sizeof ret->name, rec->name);
    ret->fence = rec->last_fence;
    if (!g->held)
        return;
    enum hf_stale_reason why = judge(g, world, false, &ret->alive);
    ret->state = why == HF_STALE_NOT ? HF_STATE_HELD : HF_STATE_STALE;
    ret->fence = g->fence;
    hf_copy_text(ret->owner, sizeof ret->owner, g->owner);
    hf_copy_text(ret->note, sizeof ret->note, g->note);
    hf_copy_text(ret->execution_id, sizeof ret->execution_id, g->execution_id);
    ret->held_for_ms = world->now_ms - g->acquired_ms;
    ret->locked_since_ms = world->wall_ms - ret->held_for_ms;
    ret->remaining_ms = g->expires_ms - world->now_ms;
    ret->expires_at_ms = world->wall_ms + ret->remaining_ms;
}

void hf_step_refuse(struct hf_record *rec, int code, const struct hf_world *world,
                    struct hf_answer *answer)
{
    answer->code = -code;
    answer->has_holder = true;
    hf_record_status(rec, world, &answer->holder);
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
    l->expires_at_ms = world->wall_ms + (g->expires_ms - world->now_ms);
    l->ttl_ms = g->ttl_ms;
    hf_copy_text(l->execution_id, sizeof l->execution_id, g->execution_id);
    l->takeover = g->took;
    if (!rec->execution.id[0])
        return;
    l->cancel_requested = rec->execution.cancel_requested;
    answer->has_execution = true;
    answer->execution = rec->execution;
}

/* ---- the requests --------------------------------------------------------------------------- */

/* Renew what the asker holds; fence and token stay as they are. */
static void renew(struct hf_record *rec, int64_t ttl_ms, const struct hf_world *world,
                  struct hf_effects *fx)
{
    struct hf_grant *g = &rec->grant;
    if (ttl_ms)
        g->ttl_ms = ttl_ms;
    g->expires_ms = world->now_ms + g->ttl_ms;
    g->offered = false;
    fx->changed = true;
    if (rec->has_self) /* who offered it was killed before it was taken out of the queue */
        drop_waiter(rec, &g->id, fx);
    if (world->now_ms - g->told_ms >= HF_EXTENDED_EVERY_MS) {
        g->told_ms = world->now_ms;
        hf_step_tell(fx, world, rec, HF_EV_EXTENDED, g->owner, "");
    }
}

bool hf_step_may_tell(struct hf_record *rec, const struct hf_world *world, struct hf_effects *fx)
{
    fx->changed = true;
    if (world->now_ms - rec->denied_ms >= HF_DENIED_WINDOW_MS || world->now_ms < rec->denied_ms) {
        rec->denied_ms = world->now_ms;
        rec->n_denied = 0;
    }
    if (rec->n_denied >= HF_DENIED_PER_WINDOW)
        return false;
    rec->n_denied++;
    return true;
}

struct hf_event *hf_step_deny(struct hf_record *rec, const char *owner, const char *reason,
                              const struct hf_world *world, struct hf_effects *fx)
{
    rec->counts.held++;
    fx->changed = true;
    if (!hf_step_may_tell(rec, world, fx))
        return NULL;
    struct hf_event *e = hf_step_tell(fx, world, rec, HF_EV_DENIED, owner, reason);
    if (rec->grant.held)
        snprintf(e->detail, sizeof e->detail, "held by %s, fence %lld", rec->grant.owner,
                 (long long)rec->grant.fence);
    return e;
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
        drop_waiter(rec, &ask->id, fx);
    hf_step_refuse(rec, HF_HELD, world, answer);
}

/* Whoever stands just ahead is whom the waiter looks after: it must not be one of the gone. */
static void drop_gone_ahead(struct hf_record *rec, const struct hf_world *world,
                            struct hf_answer *answer, struct hf_effects *fx)
{
    while (answer->ahead && waiter_is_gone(&rec->head[answer->ahead - 1], world)) {
        struct hf_lock_id id = rec->head[--answer->ahead].id;
        drop_waiter(rec, &id, fx);
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
    if (is_holder(rec, ask)) {
        end_grant(rec, fx, HF_END_RELEASED);
        offer_to_head(rec, ask, world, fx);
    } else if (rec->has_self)
        drop_waiter(rec, &ask->id, fx);
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
    bool mine = is_holder(rec, ask);
    bool started = mine && rec->grant.execution_id[0];
    if (!started && hf_step_key_answers(rec, ask, world, answer, fx)) {
        stand_back(rec, ask, world, fx);
        return;
    }
    if (!mine && ended_before(rec, ask)) {
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
        struct terms t = {ask->id, req->owner, req->note, req->ttl_ms, &ask->bound, false, 0};
        answer->code = grant_to(rec, &t, world, fx);
        if (answer->code < 0)
            return;
    }
    hf_step_start_execution(rec, ask, world, fx);
    answer_lease(rec, ask, world, answer);
}

/* Is the lease the asker's, live, and of the fence it named? Else refuse. */
static bool require_own(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer)
{
    if (is_holder(rec, ask) && (!ask->req->fence || ask->req->fence == rec->grant.fence))
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
    if (outcome == HF_OUTCOME_FAILED && !*reason)
        snprintf(e->reason, sizeof e->reason, "failed with exit code %d", ask->req->exit_code);
    snprintf(e->detail, sizeof e->detail, "held for %lld ms",
             (long long)(world->now_ms - rec->grant.acquired_ms));
    hf_step_finish(rec, ask, world, answer, fx, reason);
    end_grant(rec, fx, HF_END_RELEASED);
    rec->counts.released++;
    offer_to_head(rec, ask, world, fx);
}

static void step_release(struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_answer *answer,
                         struct hf_effects *fx)
{
    if (!is_holder(rec, ask) &&
        hf_step_finished_before(ask, ended_before(rec, ask) == HF_END_RELEASED, answer, fx))
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
    if (is_holder(rec, ask))
        release_own(rec, ask, world, answer, fx, "gave up waiting");
    else if (rec->has_self) {
        hf_step_deny(rec, rec->self.owner, "gave up waiting", world, fx);
        drop_waiter(rec, &ask->id, fx);
    }
}

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
    lose_grant(rec, world, fx, "forced");
    rec->counts.forced++;
    offer_to_head(rec, ask, world, fx);
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
