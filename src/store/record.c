#include "record.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"

/* ---- the world ------------------------------------------------------------------------------ */

static enum hf_stale_reason is_dead(void *ctx, const struct hf_processes *bound,
                                    enum hf_alive *ret_alive)
{
    (void)ctx;
    if (!bound->boot[0]) { /* see hf_local_rebase() */
        *ret_alive = HF_DEAD;
        return HF_STALE_REBOOTED;
    }
    *ret_alive = hf_processes_alive(bound);
    return *ret_alive == HF_DEAD ? HF_STALE_DIED : HF_STALE_NOT;
}

static int64_t next_fence(void *ctx)
{
    struct hf_record_world *rw = ctx;
    return rw->ops->next_fence(rw->store);
}

struct hf_world hf_record_world_now(struct hf_record_world *rw)
{
    return (struct hf_world){.now_ms = rw->ops->now_ms(rw->store),
                             .unsure_ms = rw->ops->unsure_ms ? rw->ops->unsure_ms(rw->store) : 0,
                             .wall_ms = rw->ops->wall_ms ? rw->ops->wall_ms(rw->store)
                                                         : hf_clock_wall_ms(),
                             .ctx = rw,
                             .dead = is_dead,
                             .next_fence = next_fence};
}

/* ---- one request ---------------------------------------------------------------------------- */

/* For the next turn of the same request: what it has freed stays, for the grant that follows. */
static void clear_saved_effects(struct hf_effects *fx)
{
    fx->n_events = fx->n_dropped = fx->n_executions = fx->n_wake = 0;
    fx->put_self = fx->changed = fx->unpark = false;
    fx->park_due_ms = 0;
    fx->output_of[0] = fx->replaced_by[0] = '\0';
}

static void clear_effects(struct hf_effects *fx)
{
    clear_saved_effects(fx);
    fx->inherited = fx->vacated = fx->stepped = false;
    fx->freed = (struct hf_takeover){0};
}

static bool has_effects(const struct hf_effects *fx)
{
    return fx->changed || fx->put_self || fx->n_events || fx->n_dropped || fx->n_executions ||
           fx->output_of[0] || fx->unpark;
}

/* Everything that one request needs while it is worked on. */
struct work {
    struct hf_store *store;
    const struct hf_record_ops *ops;
    struct hf_world world;
    struct hf_ask ask;
    struct hf_record rec;
    struct hf_effects fx;
};

/* Waiters to wake once the transaction has been committed. */
struct wakes {
    struct {
        const char *name;
        struct hf_lock_id id;
    } * of;
    size_t n, size;
    struct hf_ready *ready; /* of what idle workers are to be told */
    size_t n_ready, ready_size;
};

/* The entry of this workflow, made where it is new; NULL: no memory for it. */
static struct hf_ready *ready_of(struct wakes *wakes, const char *workflow)
{
    enum { MORE = 8 };
    for (size_t i = wakes->n_ready; i-- > 0;)
        if (strcmp(wakes->ready[i].workflow, workflow) == 0)
            return &wakes->ready[i];
    if (wakes->n_ready == wakes->ready_size) {
        size_t size = 2 * wakes->ready_size + MORE;
        struct hf_ready *grown = realloc(wakes->ready, size * sizeof *grown);
        if (!grown)
            return NULL;
        wakes->ready = grown;
        wakes->ready_size = size;
    }
    struct hf_ready *ready = &wakes->ready[wakes->n_ready++];
    memcpy(ready->workflow, workflow, strlen(workflow) + 1);
    ready->n = 0;
    return ready;
}

/* The idle look for themselves now and then: it may be left out. */
static void note_ready(struct wakes *wakes, const char *workflow, uint32_t n)
{
    struct hf_ready *ready = n ? ready_of(wakes, workflow) : NULL;
    if (ready)
        ready->n += n;
}

static void note_wakes(struct wakes *wakes, const char *name, const struct hf_effects *fx)
{
    for (uint32_t i = 0; i < fx->n_wake && wakes->n < wakes->size; i++) {
        wakes->of[wakes->n].name = name;
        wakes->of[wakes->n++].id = fx->wake[i];
    }
    for (uint32_t i = 0; i < fx->n_executions; i++)
        note_ready(wakes, fx->executions[i].x.workflow, hf_kept_wakes(&fx->executions[i]));
}

static int load(struct work *w, struct hf_error *err)
{
    return w->ops->load(w->store, w->ask.req->name, w->ask.req->token ? &w->ask.id : NULL, &w->rec,
                        err);
}

struct unparking {
    struct wakes *wakes;
    bool any;
};

static void note_unparked(void *arg, const char *workflow)
{
    struct unparking *u = arg;
    u->any = true;
    note_ready(u->wakes, workflow, 1);
}

/* Where none is left, the record says so: the next one who gives the lock back need not look. */
static int unpark(struct work *w, struct wakes *wakes, struct hf_error *err)
{
    struct unparking u = {wakes, false};
    int r = w->ops->unpark(w->store, w->rec.name, note_unparked, &u, err);
    if (r < 0 || u.any)
        return r;
    clear_saved_effects(&w->fx);
    w->rec.parked = false;
    w->fx.changed = true;
    return w->ops->save(w->store, &w->rec, &w->ask, &w->fx, err);
}

static int save(struct work *w, struct wakes *wakes, struct hf_error *err)
{
    if (!has_effects(&w->fx))
        return 0;
    note_wakes(wakes, w->ask.req->name, &w->fx);
    int r = w->ops->save(w->store, &w->rec, &w->ask, &w->fx, err);
    return r < 0 || !w->fx.unpark ? r : unpark(w, wakes, err);
}

static int prepare(struct work *w, const struct hf_request *req, struct hf_error *err)
{
    memset(&w->ask, 0, offsetof(struct hf_ask, found));
    w->ask.req = req;
    if (req->token)
        w->ask.id = hf_lock_id_of(req->token);
    return hf_processes_identify(req->bound, req->n_bound, &w->ask.bound, err);
}

/* The execution that the request means, as it is after settling. */
static int find_execution(struct work *w, struct hf_error *err)
{
    struct hf_sought sought = hf_ask_finds(w->ask.req);
    return sought.key || sought.id ? w->ops->find(w->store, &sought, &w->ask, err) : 0;
}

/* What else the step must know. It is counted where settling is kept, so that goes first. */
static int count(struct work *w, struct wakes *wakes, struct hf_error *err)
{
    struct hf_wanted wanted = hf_ask_wants(&w->ask);
    if (!wanted.running_of && wanted.waiting == HF_WAITING_NOT)
        return 0;
    if (has_effects(&w->fx)) {
        int r = save(w, wakes, err);
        clear_saved_effects(&w->fx);
        if (r < 0 || (r = find_execution(w, err)) < 0)
            return r;
        wanted = hf_ask_wants(&w->ask);
    }
    return w->ops->count(w->store, &wanted, w->world.wall_ms, &w->ask, err);
}

/* Until a live waiter has it, or nobody is left; a long line of dead ones takes several turns. */
static int settle(struct work *w, struct wakes *wakes, struct hf_error *err)
{
    while (hf_settle(&w->rec, &w->ask, &w->world, &w->fx)) {
        int r = save(w, wakes, err);
        if (r < 0)
            return r;
        clear_saved_effects(&w->fx);
        if ((r = load(w, err)) < 0)
            return r;
    }
    return 0;
}

static int change(struct work *w, struct hf_answer *answer, struct wakes *wakes,
                  struct hf_error *err)
{
    clear_effects(&w->fx);
    int r = load(w, err);
    if (r >= 0)
        r = settle(w, wakes, err);
    if (r >= 0)
        r = find_execution(w, err);
    if (r >= 0)
        r = count(w, wakes, err);
    if (r < 0)
        return r;
    hf_step(&w->rec, &w->ask, &w->world, answer, &w->fx);
    if ((r = save(w, wakes, err)) < 0)
        return r;
    if (w->rec.grant.held || !w->rec.n_waiters)
        return 0;
    /* Given back with only dead waiters in the window: go on to those behind them. */
    clear_saved_effects(&w->fx);
    if ((r = load(w, err)) < 0 || (r = settle(w, wakes, err)) < 0)
        return r;
    return save(w, wakes, err);
}

static int look(struct work *w, struct hf_answer *answer, struct hf_error *err)
{
    int r = load(w, err);
    if (r < 0)
        return r;
    clear_effects(&w->fx);
    hf_step(&w->rec, &w->ask, &w->world, answer, &w->fx);
    return 0;
}

/* ---- many requests -------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct names of the requests, sorted, so that two batches never lock them crosswise. */
static size_t collect_names(const struct hf_request *requests, size_t n, const char **names)
{
    for (size_t i = 0; i < n; i++)
        names[i] = requests[i].name;
    qsort(names, n, sizeof *names, compare_names);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[distinct - 1]) != 0)
            names[distinct++] = names[i];
    return distinct;
}

static int work_all(struct work *w, const struct hf_request *requests, size_t n, bool reading,
                    struct hf_answer *answers, struct wakes *wakes, struct hf_error *err)
{
    struct hf_record_world rw = {w->store, w->ops};
    w->world = hf_record_world_now(&rw);
    for (size_t i = 0; i < n; i++) {
        int r = prepare(w, &requests[i], err);
        if (r >= 0)
            r = reading || hf_op_is_read(requests[i].op) ? look(w, &answers[i], err)
                                                         : change(w, &answers[i], wakes, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int apply_in_transaction(struct work *w, const struct hf_request *requests, size_t n,
                                struct hf_answer *answers, struct wakes *wakes,
                                struct hf_error *err)
{
    const char *few[8], **names = few;
    if (n > 8 && !(names = malloc(n * sizeof *names)))
        return hf_fail(err, HF_NOMEM, "out of memory");
    bool durable = false;
    for (size_t i = 0; i < n; i++)
        durable |= hf_request_is_durable(&requests[i]);
    int r = w->ops->begin(w->store, names, collect_names(requests, n, names), durable, err);
    if (names != few)
        free(names);
    if (r < 0)
        return r;
    r = work_all(w, requests, n, false, answers, wakes, err);
    if (r < 0) {
        w->ops->rollback(w->store);
        return r;
    }
    return w->ops->commit(w->store, err);
}

static int look_at_all(struct work *w, const struct hf_request *requests, size_t n,
                       struct hf_answer *answers, struct hf_error *err)
{
    bool together = n > 1 && w->ops->begin_look;
    int r = together ? w->ops->begin_look(w->store, err) : 0;
    if (r < 0)
        return r;
    r = work_all(w, requests, n, true, answers, NULL, err);
    if (together)
        w->ops->end_look(w->store);
    return r;
}

static bool all_reads(const struct hf_request *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!hf_op_is_read(requests[i].op))
            return false;
    return true;
}

int hf_record_apply(struct hf_store *store, const struct hf_record_ops *ops,
                    const struct hf_request *requests, size_t n, struct hf_answer *answers,
                    struct hf_error *err)
{
    struct work *w = malloc(sizeof *w);
    struct wakes wakes = {.size = 4 * n};
    wakes.of = malloc(wakes.size * sizeof *wakes.of);
    int r;
    if (!w || !wakes.of) {
        r = hf_fail(err, HF_NOMEM, "out of memory");
        goto out;
    }
    w->store = store;
    w->ops = ops;
    if (all_reads(requests, n))
        r = look_at_all(w, requests, n, answers, err);
    else
        r = apply_in_transaction(w, requests, n, answers, &wakes, err);
    for (size_t i = 0; r >= 0 && i < wakes.n; i++)
        ops->wake(store, wakes.of[i].name, &wakes.of[i].id);
    if (r >= 0 && wakes.n_ready)
        ops->wake_idle(store, wakes.ready, wakes.n_ready);
out:
    free(wakes.ready);
    free(wakes.of);
    free(w);
    return r;
}

bool hf_record_is_listed(enum hf_list_filter filter, enum hf_lock_state state)
{
    return filter == HF_LIST_ALL || state == HF_STATE_STALE ||
           (filter == HF_LIST_HELD && state == HF_STATE_HELD);
}

void hf_record_add_counts(struct hf_totals *sum, const struct hf_counts *c)
{
    sum->acquire_granted += c->granted;
    sum->acquire_held += c->held;
    sum->release_done += c->released;
    sum->release_lost += c->release_lost;
    sum->takeover_expired += c->taken_expired;
    sum->takeover_holder_died += c->taken_died;
    sum->takeover_rebooted += c->taken_rebooted;
    sum->forced += c->forced;
    sum->lost += c->lost;
}
