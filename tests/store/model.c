#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *more(void *array, size_t n, size_t *size, size_t item)
{
    if (n < *size)
        return array;
    *size = *size ? 2 * *size : 16;
    void *grown = realloc(array, *size * item);
    if (!grown)
        abort();
    return grown;
}

struct model *model_new(void)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->now_ms = 1000000;
    m->wall_offset_ms = INT64_C(1700000000000);
    m->keeps_events = true;
    return m;
}

void model_clear(struct model *m)
{
    for (size_t i = 0; i < m->n_locks; i++) {
        free(m->locks[i].queue);
        m->locks[i] = (struct model_lock){.n_queue = 0};
    }
    m->n_locks = m->n_dead = m->n_executions = m->n_events = 0;
    m->last_fence = 0;
}

void model_free(struct model *m)
{
    model_clear(m);
    free(m->dead);
    free(m->executions);
    free(m->events);
    free(m);
}

/* ---- the world ------------------------------------------------------------------------------ */

void model_kill(struct model *m, int32_t pid)
{
    m->dead = more(m->dead, m->n_dead, &m->dead_size, sizeof *m->dead);
    m->dead[m->n_dead++] = pid;
}

static bool is_dead(const struct model *m, int32_t pid)
{
    for (size_t i = 0; i < m->n_dead; i++)
        if (m->dead[i] == pid)
            return true;
    return false;
}

static enum hf_stale_reason judge_dead(void *ctx, const struct hf_processes *bound,
                                       enum hf_alive *ret_alive)
{
    *ret_alive = HF_DEAD;
    for (uint32_t i = 0; i < bound->n; i++)
        if (!is_dead(ctx, bound->of[i].pid))
            *ret_alive = HF_ALIVE;
    return *ret_alive == HF_DEAD ? HF_STALE_DIED : HF_STALE_NOT;
}

static int64_t next_fence(void *ctx)
{
    struct model *m = ctx;
    return m->fence_failure ? m->fence_failure : ++m->last_fence;
}

struct hf_world model_world(struct model *m)
{
    return (struct hf_world){.now_ms = m->now_ms,
                             .wall_ms = m->now_ms + m->wall_offset_ms,
                             .ctx = m,
                             .dead = judge_dead,
                             .next_fence = next_fence};
}

/* ---- the queue ------------------------------------------------------------------------------ */

struct model_lock *model_lock(struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_locks; i++)
        if (strcmp(m->locks[i].rec.name, name) == 0)
            return &m->locks[i];
    if (m->n_locks == MODEL_NAMES_MAX)
        abort();
    struct model_lock *lock = &m->locks[m->n_locks++];
    snprintf(lock->rec.name, sizeof lock->rec.name, "%s", name);
    return lock;
}

static size_t find_waiter(const struct model_lock *lock, const struct hf_lock_id *id)
{
    size_t i = 0;
    while (i < lock->n_queue && !hf_lock_id_equal(&lock->queue[i].id, id))
        i++;
    return i;
}

static void remove_waiter(struct model_lock *lock, const struct hf_lock_id *id)
{
    size_t i = find_waiter(lock, id);
    if (i == lock->n_queue)
        return;
    lock->n_queue--;
    memmove(&lock->queue[i], &lock->queue[i + 1], (lock->n_queue - i) * sizeof *lock->queue);
}

static void put_waiter(struct model_lock *lock, const struct hf_waiter *self)
{
    size_t i = find_waiter(lock, &self->id);
    if (i < lock->n_queue) {
        lock->queue[i] = *self;
        return;
    }
    lock->queue = more(lock->queue, lock->n_queue, &lock->queue_size, sizeof *lock->queue);
    struct hf_waiter w = *self;
    w.ticket = ++lock->last_ticket;
    for (i = lock->n_queue++; i > 0 && hf_waiter_before(&w, &lock->queue[i - 1]); i--)
        lock->queue[i] = lock->queue[i - 1];
    lock->queue[i] = w;
}

void model_load(struct model_lock *lock, const struct hf_lock_id *self)
{
    struct hf_record *rec = &lock->rec;
    rec->n_waiters = (uint32_t)lock->n_queue;
    rec->n_head = lock->n_queue < HF_WINDOW ? (uint32_t)lock->n_queue : HF_WINDOW;
    for (uint32_t i = 0; i < rec->n_head; i++)
        rec->head[i] = lock->queue[i];
    size_t own = self ? find_waiter(lock, self) : lock->n_queue;
    rec->has_self = own < lock->n_queue;
    if (rec->has_self)
        rec->self = lock->queue[own];
}

/* ---- effects -------------------------------------------------------------------------------- */

/* The execution that occupies the key: one that failed or was aborted leaves it free. */
static struct model_execution *find_execution(struct model *m, const char *name, const char *key)
{
    for (size_t i = m->n_executions; i-- > 0;) {
        struct model_execution *x = &m->executions[i];
        bool occupies = x->outcome == HF_OUTCOME_NONE || x->outcome == HF_OUTCOME_SUCCESS;
        if (occupies && strcmp(x->name, name) == 0 && strcmp(x->key, key) == 0)
            return x;
    }
    return NULL;
}

static void end_execution(struct model *m, const struct hf_ended_execution *ended)
{
    for (size_t i = 0; i < m->n_executions; i++) {
        struct model_execution *x = &m->executions[i];
        if (strcmp(x->id, ended->id) != 0)
            continue;
        x->outcome = ended->outcome;
        snprintf(x->reason, sizeof x->reason, "%s", ended->reason);
    }
}

static void start_execution(struct model *m, const struct hf_record *rec, const struct hf_ask *ask)
{
    const char *id = ask->req->execution_id;
    if (ask->req->op != HF_OP_ACQUIRE || !id || strcmp(rec->grant.execution_id, id) != 0)
        return;
    for (size_t j = 0; j < m->n_executions; j++)
        if (strcmp(m->executions[j].id, id) == 0)
            return;
    m->executions =
        more(m->executions, m->n_executions, &m->executions_size, sizeof *m->executions);
    struct model_execution *x = &m->executions[m->n_executions++];
    *x = (struct model_execution){.outcome = HF_OUTCOME_NONE};
    snprintf(x->name, sizeof x->name, "%s", rec->name);
    snprintf(x->key, sizeof x->key, "%s", ask->req->once_key);
    snprintf(x->id, sizeof x->id, "%s", id);
}

void model_save(struct model *m, struct model_lock *lock, const struct hf_ask *ask,
                const struct hf_effects *fx)
{
    for (uint32_t i = 0; i < fx->n_dropped; i++)
        remove_waiter(lock, &fx->dropped[i]);
    if (fx->put_self)
        put_waiter(lock, &lock->rec.self);
    for (uint32_t i = 0; i < fx->n_ended; i++)
        end_execution(m, &fx->ended[i]);
    start_execution(m, &lock->rec, ask);
    for (uint32_t i = 0; i < fx->n_wake; i++)
        if (m->n_wakes < sizeof m->wakes / sizeof *m->wakes)
            m->wakes[m->n_wakes++] = fx->wake[i];
    for (uint32_t i = 0; m->keeps_events && i < fx->n_events; i++) {
        m->events = more(m->events, m->n_events, &m->events_size, sizeof *m->events);
        m->events[m->n_events] = fx->events[i];
        m->events[m->n_events].seq = (int64_t)m->n_events + 1;
        m->n_events++;
    }
}

/* What has been freed stays, for the grant that follows in the same request. */
static void clear_saved_effects(struct hf_effects *fx)
{
    fx->n_events = fx->n_dropped = fx->n_ended = fx->n_wake = 0;
    fx->put_self = fx->changed = false;
}

/* ---- requests ------------------------------------------------------------------------------- */

static void settle(struct model *m, struct model_lock *lock, const struct hf_ask *ask,
                   const struct hf_world *world)
{
    const struct hf_lock_id *self = ask->req->token ? &ask->id : NULL;
    model_load(lock, self);
    while (hf_settle(&lock->rec, ask, world, &m->fx)) {
        model_save(m, lock, ask, &m->fx);
        clear_saved_effects(&m->fx);
        model_load(lock, self);
    }
}

static struct hf_ask make_ask(struct model *m, const struct hf_request *req)
{
    struct hf_ask ask = {.req = req, .bound.n = (uint32_t)req->n_bound};
    if (req->token)
        ask.id = hf_lock_id_of(req->token);
    for (size_t i = 0; i < req->n_bound; i++)
        ask.bound.of[i].pid = req->bound[i];
    const struct model_execution *x =
        req->once_key ? find_execution(m, req->name, req->once_key) : NULL;
    if (!x)
        return ask;
    snprintf(ask.once_execution, sizeof ask.once_execution, "%s", x->id);
    if (x->outcome == HF_OUTCOME_NONE)
        ask.once = HF_ONCE_BUSY;
    else if (x->outcome == HF_OUTCOME_SUCCESS)
        ask.once = HF_ONCE_DONE;
    return ask;
}

void model_apply(struct model *m, const struct hf_request *req, struct hf_answer *ret)
{
    struct model_lock *lock = model_lock(m, req->name);
    struct hf_world world = model_world(m);
    struct hf_ask ask = make_ask(m, req);
    m->n_wakes = 0;
    clear_saved_effects(&m->fx);
    m->fx.freed = (struct hf_takeover){0};
    m->fx.inherited = false;
    if (hf_op_is_read(req->op)) {
        model_load(lock, req->token ? &ask.id : NULL);
        hf_step(&lock->rec, &ask, &world, ret, &m->fx);
        return;
    }
    settle(m, lock, &ask, &world);
    hf_step(&lock->rec, &ask, &world, ret, &m->fx);
    model_save(m, lock, &ask, &m->fx);
    if (lock->rec.grant.held || lock->n_queue == 0)
        return;
    clear_saved_effects(&m->fx); /* given back with only dead waiters in the window */
    settle(m, lock, &ask, &world);
    model_save(m, lock, &ask, &m->fx);
}

/* ---- looking -------------------------------------------------------------------------------- */

struct hf_totals model_totals(const struct model *m)
{
    struct hf_totals t = {0};
    for (size_t i = 0; i < m->n_locks; i++) {
        const struct hf_counts *c = &m->locks[i].rec.counts;
        t.acquire_granted += c->granted;
        t.acquire_held += c->held;
        t.release_done += c->released;
        t.release_lost += c->release_lost;
        t.takeover_expired += c->taken_expired;
        t.takeover_holder_died += c->taken_died;
        t.takeover_rebooted += c->taken_rebooted;
        t.forced += c->forced;
        t.lost += c->lost;
    }
    return t;
}

struct hf_processes model_ahead(struct model *m, const char *name, const struct hf_lock_id *id)
{
    const struct model_lock *lock = model_lock(m, name);
    size_t i = find_waiter(lock, id);
    if (i < lock->n_queue && i > 0)
        return lock->queue[i - 1].bound;
    if (i == 0 && lock->n_queue && lock->rec.grant.held)
        return lock->rec.grant.bound;
    return (struct hf_processes){0};
}
