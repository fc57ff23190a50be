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

/* ---- executions ----------------------------------------------------------------------------- */

struct model_execution *model_execution(struct model *m, const char *id)
{
    for (size_t i = 0; i < m->n_executions; i++)
        if (strcmp(m->executions[i].x.id, id) == 0)
            return &m->executions[i];
    return NULL;
}

static void keep_data(struct model_data *data, const void *bytes, size_t n)
{
    if (n > sizeof data->bytes)
        abort();
    data->n = n;
    if (n)
        memcpy(data->bytes, bytes, n);
}

static void keep_execution(struct model *m, const struct hf_kept_execution *kept,
                           const struct hf_request *req)
{
    struct model_execution *x = model_execution(m, kept->x.id);
    if (kept->is_new ? x != NULL : x == NULL)
        abort(); /* an id that is used twice, or one that never was */
    if (!x) {
        m->executions =
            more(m->executions, m->n_executions, &m->executions_size, sizeof *m->executions);
        x = &m->executions[m->n_executions++];
        *x = (struct model_execution){.skipped = 0};
        keep_data(&x->input, req->input, req->input_size);
    }
    x->x = kept->x;
}

static void keep_output(struct model *m, const char *id, const struct hf_request *req)
{
    struct model_execution *x = model_execution(m, id);
    if (!x)
        abort();
    keep_data(&x->head, req->output_head, req->output_head_size);
    keep_data(&x->tail, req->output_tail, req->output_tail_size);
    x->skipped = req->output_skipped;
}

static bool has_key(const struct hf_execution *x, const struct hf_sought *sought)
{
    if (strcmp(x->workflow, sought->workflow) != 0 || strcmp(x->key, sought->key) != 0 ||
        x->once != sought->once)
        return false;
    return !x->once || (x->state != HF_FAILED && x->state != HF_ABORTED);
}

void model_find(struct model *m, const struct hf_sought *sought, struct hf_ask *ask)
{
    const struct model_execution *x = NULL;
    for (size_t i = 0; sought->key && !x && i < m->n_executions; i++)
        if (has_key(&m->executions[i].x, sought))
            x = &m->executions[i];
    if (!x && sought->id)
        x = model_execution(m, sought->id);
    ask->has_found = x != NULL;
    if (!x)
        return;
    const struct hf_request *req = ask->req;
    ask->found = x->x;
    ask->same_input = x->input.n == req->input_size &&
                      (!x->input.n || memcmp(x->input.bytes, req->input, x->input.n) == 0);
}

/* ---- turns ---------------------------------------------------------------------------------- */

static int32_t count_running(const struct model *m, const char *workflow, const char *but)
{
    int32_t n = 0;
    for (size_t i = 0; i < m->n_executions; i++) {
        const struct hf_execution *x = &m->executions[i].x;
        n +=
            x->state == HF_RUNNING && strcmp(x->workflow, workflow) == 0 && strcmp(x->id, but) != 0;
    }
    return n;
}

void model_count(struct model *m, const char *name, const struct hf_wanted *wanted, int64_t wall_ms,
                 struct hf_ask *ask)
{
    const struct hf_execution *first = NULL;
    if (wanted->running_of)
        ask->n_running = count_running(m, wanted->running_of, ask->has_found ? ask->found.id : "");
    for (size_t i = 0; wanted->waiting != HF_WAITING_NOT && i < m->n_executions; i++) {
        const struct hf_execution *x = &m->executions[i].x;
        if (strcmp(x->lock, name) != 0 || !hf_execution_is_due(x, wall_ms) ||
            (wanted->waiting == HF_WAITING_REPLACEABLE && !hf_execution_is_replaceable(x, wall_ms)))
            continue;
        ask->n_waiting++;
        if (!first || hf_execution_before(x, first))
            first = x;
    }
    snprintf(ask->waiting_id, sizeof ask->waiting_id, "%s", first ? first->id : "");
}

/* Is it parked, and does it go before all others of its kind that are parked at its lock? */
static bool is_first_parked(const struct model *m, size_t nth)
{
    const struct hf_execution *x = &m->executions[nth].x;
    for (size_t i = 0; x->parked && i < m->n_executions; i++) {
        const struct hf_execution *other = &m->executions[i].x;
        if (i != nth && other->parked && strcmp(other->lock, x->lock) == 0 &&
            strcmp(other->workflow, x->workflow) == 0 && other->concurrency == x->concurrency &&
            other->to_verify == x->to_verify &&
            (i < nth ? !hf_execution_before(x, other) : hf_execution_before(other, x)))
            return false;
    }
    return x->parked;
}

void model_unpark(struct model *m, const char *name, void (*made)(void *arg, const char *workflow),
                  void *arg)
{
    bool *first = calloc(m->n_executions + 1, sizeof *first);
    for (size_t i = 0; first && i < m->n_executions; i++)
        first[i] = strcmp(m->executions[i].x.lock, name) == 0 && is_first_parked(m, i);
    for (size_t i = 0; first && i < m->n_executions; i++)
        if (first[i]) {
            m->executions[i].x.parked = false;
            made(arg, m->executions[i].x.workflow);
        }
    free(first);
}

static struct hf_execution *first_ready(struct model *m, const char *name, int64_t wall_ms)
{
    struct hf_execution *first = NULL;
    for (size_t i = 0; i < m->n_executions; i++) {
        struct hf_execution *x = &m->executions[i].x;
        if (!x->parked && hf_execution_is_due(x, wall_ms) && strcmp(x->lock, name) == 0 &&
            (!first || hf_execution_before(x, first)))
            first = x;
    }
    return first;
}

static void park_due(struct model *m, const char *name, int64_t wall_ms)
{
    struct hf_execution *x;
    for (int n = 0; n < HF_PARKED_AT_ONCE && (x = first_ready(m, name, wall_ms)); n++)
        x->parked = true;
}

static void replace_waiting(struct model *m, const char *name, const struct hf_effects *fx)
{
    for (size_t i = 0; i < m->n_executions; i++) {
        struct hf_execution *x = &m->executions[i].x;
        if (strcmp(x->lock, name) == 0 && hf_execution_is_replaceable(x, fx->replaced_at_ms))
            hf_execution_replace(x, fx->replaced_by, fx->replaced_at_ms);
    }
}

bool model_wants(const struct hf_due *wanted, const char *workflow)
{
    bool found = wanted->n_workflows == 0;
    for (size_t i = 0; i < wanted->n_workflows; i++)
        found |= strcmp(wanted->workflows[i], workflow) == 0;
    return found;
}

static bool is_ready(const struct model *m, const struct hf_execution *x, const struct hf_due *due)
{
    return model_wants(due, x->workflow) && !x->parked && (!x->to_verify || due->verifies) &&
           hf_execution_is_due(x, due->wall_ms) &&
           (!x->concurrency || count_running(m, x->workflow, "") < x->concurrency);
}

/* Picks the first that was not picked, again and again; older ones come first by themselves. */
size_t model_due(struct model *m, const struct hf_due *due, struct hf_execution *ret)
{
    bool *picked = calloc(m->n_executions + 1, sizeof *picked);
    size_t n = 0, skip = due->skip;
    while (picked && n < due->limit) {
        size_t best = m->n_executions;
        for (size_t i = 0; i < m->n_executions; i++)
            if (!picked[i] && is_ready(m, &m->executions[i].x, due) &&
                (best == m->n_executions ||
                 hf_execution_before(&m->executions[i].x, &m->executions[best].x)))
                best = i;
        if (best == m->n_executions)
            break;
        picked[best] = true;
        if (skip)
            skip--;
        else
            ret[n++] = m->executions[best].x;
    }
    free(picked);
    return n;
}

int64_t model_next_due(struct model *m, const struct hf_due *wanted)
{
    int64_t next_ms = 0;
    for (size_t i = 0; i < m->n_executions; i++) {
        const struct hf_execution *x = &m->executions[i].x;
        if (x->state == HF_PENDING && !x->parked && x->run_at_ms > wanted->wall_ms &&
            model_wants(wanted, x->workflow) && (!next_ms || x->run_at_ms < next_ms))
            next_ms = x->run_at_ms;
    }
    return next_ms;
}

/* ---- effects -------------------------------------------------------------------------------- */

static void note_ready(void *arg, const char *workflow)
{
    struct model *m = arg;
    if (m->n_ready == sizeof m->ready / sizeof *m->ready)
        abort();
    snprintf(m->ready[m->n_ready++], sizeof *m->ready, "%s", workflow);
}

void model_save(struct model *m, struct model_lock *lock, const struct hf_ask *ask,
                const struct hf_effects *fx)
{
    for (uint32_t i = 0; i < fx->n_dropped; i++)
        remove_waiter(lock, &fx->dropped[i]);
    if (fx->put_self)
        put_waiter(lock, &lock->rec.self);
    if (fx->replaced_by[0])
        replace_waiting(m, lock->rec.name, fx);
    for (uint32_t i = 0; i < fx->n_executions; i++)
        keep_execution(m, &fx->executions[i], ask->req);
    if (fx->park_due_ms)
        park_due(m, lock->rec.name, fx->park_due_ms);
    for (uint32_t i = 0; i < fx->n_executions; i++)
        for (uint32_t n = hf_kept_wakes(&fx->executions[i]); n > 0; n--)
            note_ready(m, fx->executions[i].x.workflow);
    if (fx->output_of[0])
        keep_output(m, fx->output_of, ask->req);
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
    fx->n_events = fx->n_dropped = fx->n_executions = fx->n_wake = 0;
    fx->put_self = fx->changed = fx->unpark = false;
    fx->park_due_ms = 0;
    fx->output_of[0] = fx->replaced_by[0] = '\0';
}

/* ---- requests ------------------------------------------------------------------------------- */

/* The execution of the grant is in the record; whoever edits executions by hand is noticed here. */
static void load_execution(struct model *m, struct model_lock *lock)
{
    struct hf_record *rec = &lock->rec;
    if (!rec->grant.held || !rec->grant.execution_id[0])
        return;
    const struct model_execution *x = model_execution(m, rec->grant.execution_id);
    rec->execution = x ? x->x : (struct hf_execution){0};
    rec->grant.ended = !x || x->x.state != HF_RUNNING;
}

static void settle(struct model *m, struct model_lock *lock, const struct hf_ask *ask,
                   const struct hf_world *world)
{
    const struct hf_lock_id *self = ask->req->token ? &ask->id : NULL;
    model_load(lock, self);
    load_execution(m, lock);
    while (hf_settle(&lock->rec, ask, world, &m->fx)) {
        model_save(m, lock, ask, &m->fx);
        clear_saved_effects(&m->fx);
        model_load(lock, self);
    }
}

static struct hf_ask make_ask(const struct hf_request *req)
{
    struct hf_ask ask = {.req = req, .bound.n = (uint32_t)req->n_bound};
    if (req->token)
        ask.id = hf_lock_id_of(req->token);
    for (size_t i = 0; i < req->n_bound; i++)
        ask.bound.of[i].pid = req->bound[i];
    return ask;
}

/* All that was changed so far, and the turn of the next ones that are parked. */
static void save(struct model *m, struct model_lock *lock, const struct hf_ask *ask)
{
    model_save(m, lock, ask, &m->fx);
    if (m->fx.unpark) {
        size_t before = m->n_ready;
        model_unpark(m, lock->rec.name, note_ready, m);
        lock->rec.parked = m->n_ready > before;
    }
    clear_saved_effects(&m->fx);
}

static void look_around(struct model *m, struct model_lock *lock, struct hf_ask *ask,
                        int64_t wall_ms)
{
    struct hf_sought sought = hf_ask_finds(ask->req);
    model_find(m, &sought, ask);
    struct hf_wanted wanted = hf_ask_wants(ask);
    if (!wanted.running_of && wanted.waiting == HF_WAITING_NOT)
        return;
    save(m, lock, ask);
    model_find(m, &sought, ask);
    wanted = hf_ask_wants(ask);
    model_count(m, lock->rec.name, &wanted, wall_ms, ask);
}

void model_apply(struct model *m, const struct hf_request *req, struct hf_answer *ret)
{
    struct model_lock *lock = model_lock(m, req->name);
    struct hf_world world = model_world(m);
    struct hf_ask ask = make_ask(req);
    m->n_wakes = m->n_ready = 0;
    clear_saved_effects(&m->fx);
    m->fx.vacated = m->fx.stepped = false;
    m->fx.freed = (struct hf_takeover){0};
    m->fx.inherited = false;
    if (hf_op_is_read(req->op)) {
        model_load(lock, req->token ? &ask.id : NULL);
        load_execution(m, lock);
        hf_step(&lock->rec, &ask, &world, ret, &m->fx);
        return;
    }
    settle(m, lock, &ask, &world);
    look_around(m, lock, &ask, world.wall_ms);
    hf_step(&lock->rec, &ask, &world, ret, &m->fx);
    save(m, lock, &ask);
    if (lock->rec.grant.held || lock->n_queue == 0)
        return;
    settle(m, lock, &ask, &world); /* given back with only dead waiters in the window */
    save(m, lock, &ask);
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
    for (size_t i = 0; i < m->n_executions; i++) {
        t.executions_pending += m->executions[i].x.state == HF_PENDING;
        t.executions_running += m->executions[i].x.state == HF_RUNNING;
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
