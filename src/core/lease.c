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

bool hf_lease_is_own(const struct hf_record *rec, const struct hf_ask *ask)
{
    return rec->grant.held && ask->req->token && hf_lock_id_equal(&rec->grant.id, &ask->id);
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

/* ---- what is remembered of leases that ended -------------------------------------------------- */

static void remember_lost(struct hf_record *rec, int64_t fence)
{
    uint32_t keep = rec->n_lost_fences < HF_LOST_MAX ? rec->n_lost_fences : HF_LOST_MAX - 1;
    memmove(&rec->lost_fences[1], &rec->lost_fences[0], keep * sizeof rec->lost_fences[0]);
    rec->lost_fences[0] = fence;
    rec->n_lost_fences = keep + 1;
}

void hf_remember_ended(struct hf_record *rec, const struct hf_grant *grant, enum hf_end how)
{
    uint32_t keep = rec->n_ended < HF_ENDED_MAX ? rec->n_ended : HF_ENDED_MAX - 1;
    memmove(&rec->ended[1], &rec->ended[0], keep * sizeof rec->ended[0]);
    rec->ended[0] = (struct hf_ended){.id = grant->id, .how = (uint8_t)how};
    rec->n_ended = keep + 1;
    if (how == HF_END_LOST && grant->fence) /* a foreign lease has none */
        remember_lost(rec, grant->fence);
}

enum hf_end hf_lease_ended_before(const struct hf_record *rec, const struct hf_ask *ask)
{
    for (uint32_t i = 0; i < rec->n_ended; i++)
        if (hf_lock_id_equal(&rec->ended[i].id, &ask->id))
            return (enum hf_end)rec->ended[i].how;
    return 0;
}

bool hf_lease_was_released(const struct hf_record *rec, const struct hf_ask *ask)
{
    enum hf_end how = hf_lease_ended_before(rec, ask);
    int64_t fence = ask->req->fence;
    if (how || !fence)
        return how == HF_END_RELEASED;
    bool is_past = fence < rec->last_fence || (fence == rec->last_fence && !rec->grant.held);
    if (!is_past || !rec->n_lost_fences || fence <= rec->lost_fences[rec->n_lost_fences - 1])
        return false;
    for (uint32_t i = 0; i < rec->n_lost_fences; i++)
        if (rec->lost_fences[i] == fence)
            return false;
    return true;
}

void hf_lost_fences_format(const struct hf_record *rec, char ret[HF_LOST_TEXT_MAX])
{
    int used = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < rec->n_lost_fences; i++)
        used += snprintf(ret + used, (size_t)(HF_LOST_TEXT_MAX - used), "%s%lld", i ? " " : "",
                         (long long)rec->lost_fences[i]);
}

void hf_lost_fences_parse(const char *text, struct hf_record *ret)
{
    char *end;
    ret->n_lost_fences = 0;
    for (; text && *text && ret->n_lost_fences < HF_LOST_MAX; text = end) {
        ret->lost_fences[ret->n_lost_fences] = strtoll(text, &end, 10);
        if (end == text)
            return;
        ret->n_lost_fences++;
    }
}

/* ---- granting and ending -------------------------------------------------------------------- */

void hf_lease_end(struct hf_record *rec, struct hf_effects *fx, enum hf_end how)
{
    struct hf_grant *g = &rec->grant;
    hf_remember_ended(rec, g, how);
    if (g->offered) { /* nobody has announced the takeover that it came from: the next one does */
        fx->freed = g->took;
        fx->inherited = true;
    }
    rec->grant = (struct hf_grant){.fence = g->fence};
    rec->execution = (struct hf_execution){0};
    fx->changed = fx->vacated = true;
}

void hf_lease_lose(struct hf_record *rec, const struct hf_world *world, struct hf_effects *fx,
                   const char *reason)
{
    struct hf_execution *x = &rec->execution;
    if (x->id[0] && x->state == HF_RUNNING) {
        hf_execution_lose(x, reason, world->wall_ms);
        hf_step_keep_left(fx, x);
    }
    hf_lease_end(rec, fx, HF_END_LOST);
}

static void count_takeover(struct hf_counts *counts, enum hf_stale_reason reason)
{
    counts->taken_expired += reason == HF_STALE_EXPIRED;
    counts->taken_died += reason == HF_STALE_DIED || reason == HF_STALE_ENDED;
    counts->taken_rebooted += reason == HF_STALE_REBOOTED;
}

int hf_lease_grant(struct hf_record *rec, const struct hf_terms *t, const struct hf_world *world,
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
    g->expires_ms = world->now_ms + world->unsure_ms + lasts_ms;
    hf_copy_text(g->owner, sizeof g->owner, t->owner);
    hf_copy_text(g->note, sizeof g->note, t->note);
    if (!rec->n_lost_fences)
        remember_lost(rec, fence - 1); /* what was before is not known */
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

bool hf_waiter_is_gone(const struct hf_waiter *w, const struct hf_world *world)
{
    /* Seen long ago, or far in the future: by the clock of another boot. */
    if (world->now_ms >= w->until_ms || llabs(world->now_ms - w->seen_ms) >= HF_WAITER_MS)
        return true;
    enum hf_alive alive;
    return w->bound.n && world->dead(world->ctx, &w->bound, &alive) != HF_STALE_NOT;
}

void hf_waiter_drop(struct hf_record *rec, const struct hf_lock_id *id, struct hf_effects *fx)
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

bool hf_lease_offer(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                    struct hf_effects *fx)
{
    while (!rec->grant.held && rec->n_head) {
        struct hf_waiter w = rec->head[0];
        bool asks_now = ask->req->token && hf_lock_id_equal(&w.id, &ask->id);
        if (!asks_now && hf_waiter_is_gone(&w, world)) {
            hf_waiter_drop(rec, &w.id, fx);
            continue;
        }
        struct hf_terms t = {
            w.id, w.owner, w.note, w.ttl_ms, &w.bound, true, world->now_ms - w.queued_ms};
        if (hf_lease_grant(rec, &t, world, fx) < 0)
            return false; /* it keeps its place; the asker's own grant will report the failure */
        hf_waiter_drop(rec, &w.id, fx);
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
    hf_lease_lose(rec, world, fx, hf_stale_reason_name(why));
}

bool hf_settle(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
               struct hf_effects *fx)
{
    enum hf_alive alive;
    enum hf_stale_reason why = judge(&rec->grant, world, hf_lease_is_own(rec, ask), &alive);
    if (why != HF_STALE_NOT)
        free_stale(rec, why, world, fx);
    bool more = hf_lease_offer(rec, ask, world, fx);
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
