#include "memory.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "model.h"
#include "record.h"

enum { WATCHES_MAX = 256 };

static struct {
    struct model *kept; /* only its memory is used: the semantics come from record.c */
    enum mutant mutant;
    struct {
        struct hf_lock_id id;
        int fd;
    } watches[WATCHES_MAX];
    size_t n_watches;
    struct {
        struct hf_lock_id id;
        const char *workflows[4];
        size_t n_workflows;
    } sleepers[WATCHES_MAX];
    size_t n_sleepers;
} all;

const char *mutant_text(enum mutant mutant)
{
    static const char *const texts[] = {"none",
#define X(name, text) text,
                                        MUTANT_MAP(X)
#undef X
    };
    return texts[mutant];
}

void memory_reset(enum mutant mutant)
{
    if (all.kept)
        model_free(all.kept);
    all.kept = model_new();
    all.mutant = mutant;
    all.n_watches = all.n_sleepers = 0;
}

/* ---- record operations ---------------------------------------------------------------------- */

static int begin(struct hf_store *store, const char *const *names, size_t n, bool durable,
                 struct hf_error *err)
{
    (void)store, (void)names, (void)n, (void)durable, (void)err;
    return 0;
}

static int commit(struct hf_store *store, struct hf_error *err)
{
    (void)store, (void)err;
    return 0;
}

/* Only for requests that are refused before they change anything. */
static void rollback(struct hf_store *store) { (void)store; }

static int load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                struct hf_record *ret, struct hf_error *err)
{
    (void)store, (void)err;
    struct model_lock *lock = model_lock(all.kept, name);
    model_load(lock, self);
    *ret = lock->rec;
    const struct model_execution *x = model_execution(all.kept, ret->grant.execution_id);
    if (ret->grant.held && ret->grant.execution_id[0]) {
        ret->execution = x ? x->x : (struct hf_execution){0};
        ret->grant.ended = !x || x->x.state != HF_RUNNING;
    }
    if (all.mutant == MUTANT_LAST_COME_FIRST_SERVED && ret->n_head >= 2) {
        struct hf_waiter first = ret->head[0];
        ret->head[0] = ret->head[1];
        ret->head[1] = first;
    }
    if (all.mutant == MUTANT_LOSES_THE_TAIL)
        ret->n_waiters = ret->n_head;
    return 0;
}

static void spoil_grant(struct hf_grant *kept, const struct hf_grant *before)
{
    if (all.mutant == MUTANT_FORGETS_THE_TAKEOVER)
        kept->took = (struct hf_takeover){0};
    if (all.mutant == MUTANT_FORGETS_PROCESSES)
        kept->bound.n = 0;
    if (all.mutant == MUTANT_EXPIRES_LATE && kept->fence != before->fence)
        kept->expires_ms++;
    if (all.mutant == MUTANT_SHORTENS_BY_RENEWING && before->fence == kept->fence &&
        before->ttl_ms > kept->ttl_ms)
        kept->expires_ms = hf_clock_boot_ms() + kept->ttl_ms;
    if (all.mutant == MUTANT_FORGETS_THE_CONFIRMATION && before->offered &&
        before->fence == kept->fence)
        kept->expires_ms = before->expires_ms;
}

/* False: this is one that is not kept at all. */
static bool spoil_execution(struct hf_kept_execution *kept, const struct hf_request *req)
{
    struct hf_execution *x = &kept->x;
    bool by_itself = req->op == HF_OP_RELEASE || req->op == HF_OP_CANCEL;
    if (all.mutant == MUTANT_LEAVES_THE_LOST_RUNNING && !kept->is_new && !by_itself)
        return x->state == HF_RUNNING;
    if (all.mutant == MUTANT_KEEPS_THE_FIRST_END && req->op == HF_OP_RELEASE && !x->spawned)
        return false;
    if (all.mutant == MUTANT_FORGETS_SPAWNED)
        x->spawned = false;
    if (all.mutant == MUTANT_REPEATS_WHAT_WAS_SPAWNED)
        x->on_lost = HF_ON_LOST_RETRY;
    if (all.mutant == MUTANT_FORGETS_TO_VERIFY)
        x->to_verify = false;
    if (all.mutant == MUTANT_FORGETS_ATTEMPTS && x->attempt)
        x->attempt = 1;
    if (all.mutant == MUTANT_FORGETS_CANCEL)
        x->cancel_requested = false;
    if (all.mutant == MUTANT_FORGETS_PARKING)
        x->parked = false;
    if (all.mutant == MUTANT_FORGETS_WHAT_WAS_SPENT)
        x->spent = 0;
    if (all.mutant == MUTANT_RETRIES_AT_ONCE && x->state == HF_PENDING && x->spent)
        x->run_at_ms = x->created_at_ms;
    return true;
}

static void spoil_executions(struct hf_effects *kept, const struct hf_request *req)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < kept->n_executions; i++)
        if (spoil_execution(&kept->executions[i], req))
            kept->executions[n++] = kept->executions[i];
    kept->n_executions = n;
    if (all.mutant == MUTANT_LOSES_THE_OUTPUT)
        kept->output_of[0] = '\0';
}

static int save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                const struct hf_effects *fx, struct hf_error *err)
{
    (void)store, (void)err;
    static struct hf_effects kept;
    kept = *fx;
    struct model_lock *lock = model_lock(all.kept, rec->name);
    struct hf_grant before = lock->rec.grant;
    if (fx->changed || fx->put_self)
        lock->rec = *rec;
    spoil_grant(&lock->rec.grant, &before);
    if (all.mutant == MUTANT_KEEPS_THE_GRANTED_QUEUED)
        kept.n_dropped = 0;
    if (all.mutant == MUTANT_LOSES_THE_OWN_PLACE && fx->put_self)
        kept.dropped[kept.n_dropped++] = rec->self.id; /* and is put back behind all others */
    if (all.mutant == MUTANT_FORGETS_SPENT_TOKENS)
        lock->rec.n_ended = 0;
    if (all.mutant == MUTANT_FORGETS_WHO_RELEASED)
        lock->rec.lost_fences[0] = rec->last_fence;
    if (all.mutant == MUTANT_FORGETS_LOST_FENCES && rec->n_lost_fences)
        lock->rec.lost_fences[0] = 0, lock->rec.n_lost_fences = 1;
    if (all.mutant == MUTANT_DROPS_EVENTS && kept.n_events > 1)
        kept.n_events = 1;
    if (all.mutant == MUTANT_PARKS_ONE_BY_ONE)
        kept.park_due_ms = 0;
    if (all.mutant == MUTANT_KEEPS_THE_REPLACED)
        kept.replaced_by[0] = '\0';
    spoil_executions(&kept, ask->req);
    all.kept->n_ready = 0; /* record.c notes that by itself */
    model_save(all.kept, lock, ask, &kept);
    return 0;
}

static int64_t next_fence(struct hf_store *store)
{
    (void)store;
    return ++all.kept->last_fence;
}

static int find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                struct hf_error *err)
{
    (void)store, (void)err;
    struct hf_sought wanted = *sought;
    if (all.mutant == MUTANT_FORGETS_KEYS)
        wanted.key = NULL;
    model_find(all.kept, &wanted, ask);
    if (all.mutant == MUTANT_FORGETS_SUCCESS && sought->once && ask->has_found &&
        ask->found.state == HF_SUCCESS)
        ask->has_found = false;
    if (all.mutant == MUTANT_IGNORES_THE_INPUT)
        ask->same_input = true;
    return 0;
}

static int count(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                 struct hf_ask *ask, struct hf_error *err)
{
    (void)store, (void)err;
    if (all.mutant == MUTANT_SEES_THE_FUTURE_IN_THE_WAY)
        wall_ms += 100000;
    model_count(all.kept, ask->req->name, wanted, wall_ms, ask);
    if (all.mutant == MUTANT_COUNTS_NOBODY_RUNNING)
        ask->n_running = 0;
    return 0;
}

static void unpark_one(const char *name, hf_unparked_fn *made, void *arg)
{
    struct hf_execution *first = NULL;
    for (size_t i = 0; i < all.kept->n_executions; i++) {
        struct hf_execution *x = &all.kept->executions[i].x;
        if (x->parked && strcmp(x->lock, name) == 0 && (!first || hf_execution_before(x, first)))
            first = x;
    }
    if (!first)
        return;
    first->parked = false;
    made(arg, first->workflow);
}

static int unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                  struct hf_error *err)
{
    (void)store, (void)err;
    if (all.mutant == MUTANT_UNPARKS_ONE)
        unpark_one(name, made, arg);
    else if (all.mutant != MUTANT_NEVER_UNPARKS)
        model_unpark(all.kept, name, made, arg);
    return 0;
}

static int64_t now_ms(struct hf_store *store)
{
    (void)store;
    return hf_clock_boot_ms();
}

static void wake(struct hf_store *store, const char *name, const struct hf_lock_id *id)
{
    (void)store, (void)name;
    for (size_t i = 0; all.mutant != MUTANT_NEVER_WAKES && i < all.n_watches; i++)
        if (hf_lock_id_equal(&all.watches[i].id, id))
            eventfd_write(all.watches[i].fd, 1);
}

static bool sleeps_for(size_t i, const char *workflow)
{
    struct hf_due wanted = {.workflows = all.sleepers[i].workflows,
                            .n_workflows = all.sleepers[i].n_workflows};
    return all.mutant == MUTANT_WAKES_WHOEVER_SLEEPS || model_wants(&wanted, workflow);
}

static void wake_idle(struct hf_store *store, struct hf_ready *ready, size_t n)
{
    if (all.mutant == MUTANT_LETS_THE_IDLE_SLEEP)
        return;
    for (size_t i = 0; i < n; i++)
        for (size_t j = all.n_sleepers; ready[i].n && j-- > 0;)
            if (sleeps_for(j, ready[i].workflow)) {
                wake(store, NULL, &all.sleepers[j].id);
                all.sleepers[j] = all.sleepers[--all.n_sleepers];
                ready[i].n--;
            }
}

static const struct hf_record_ops record_ops = {
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
    .load = load,
    .save = save,
    .next_fence = next_fence,
    .find = find,
    .count = count,
    .unpark = unpark,
    .now_ms = now_ms,
    .wake = wake,
    .wake_idle = wake_idle,
};

/* ---- the store ------------------------------------------------------------------------------ */

static int apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err)
{
    return hf_record_apply(store, &record_ops, requests, n, answers, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(struct model_lock *const *)a)->rec.name,
                  (*(struct model_lock *const *)b)->rec.name);
}

static bool passes(enum hf_list_filter filter, enum hf_lock_state state)
{
    return filter == HF_LIST_ALL || (filter == HF_LIST_HELD && state != HF_STATE_FREE) ||
           (filter == HF_LIST_STALE && state == HF_STATE_STALE);
}

static int list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                struct hf_error *err)
{
    (void)err;
    struct model_lock *sorted[MODEL_NAMES_MAX];
    size_t n = all.kept->n_locks;
    for (size_t i = 0; i < n; i++)
        sorted[i] = &all.kept->locks[i];
    qsort(sorted, n, sizeof *sorted, compare_names);
    struct hf_record_world rw = {store, &record_ops};
    struct hf_world world = hf_record_world_now(&rw);
    for (size_t i = 0; i < n; i++) {
        struct hf_status status;
        model_load(sorted[i], NULL);
        hf_record_status(&sorted[i]->rec, &world, &status);
        bool matches = strncmp(status.name, which->prefix, strlen(which->prefix)) == 0 &&
                       strcmp(status.name, which->after) > 0;
        if (matches && passes(which->filter, status.state) && fn(arg, &status))
            break;
    }
    return 0;
}

static int events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                  void *arg, struct hf_error *err)
{
    (void)store, (void)err;
    for (size_t i = 0; i < all.kept->n_events; i++) {
        const struct hf_event *e = &all.kept->events[i];
        if ((!query->name || strcmp(e->name, query->name) == 0) && fn(arg, e))
            break;
    }
    return 0;
}

static int totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    (void)store, (void)err;
    *ret = model_totals(all.kept);
    return 0;
}

static int execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                          hf_data_fn fn, void *arg, struct hf_error *err)
{
    (void)store;
    const struct model_execution *x = model_execution(all.kept, id);
    if (!x)
        return hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
    const struct model_data *first = which == HF_DATA_INPUT ? &x->input : &x->head;
    if (first->n)
        fn(arg, first->bytes, first->n, 0);
    if (which == HF_DATA_OUTPUT && (x->tail.n || x->skipped))
        fn(arg, x->tail.bytes, x->tail.n, x->skipped);
    return 0;
}

static int executions(struct hf_store *store, const struct hf_execution_query *query,
                      hf_execution_fn fn, void *arg, struct hf_error *err)
{
    (void)store, (void)err;
    int64_t left = query->limit > 0 ? query->limit : INT64_MAX;
    for (size_t i = all.kept->n_executions; i-- > 0 && left > 0;) {
        const struct hf_execution *x = &all.kept->executions[i].x;
        if ((query->workflow && strcmp(x->workflow, query->workflow) != 0) ||
            (query->state >= 0 && (int)x->state != query->state))
            continue;
        left--;
        if (fn(arg, x))
            break;
    }
    return 0;
}

static int due(struct hf_store *store, const struct hf_due *wanted, struct hf_execution *ret,
               size_t *ret_n, struct hf_error *err)
{
    (void)store, (void)err;
    struct hf_due spoilt = *wanted;
    if (all.mutant == MUTANT_IS_EARLY)
        spoilt.wall_ms += 100000;
    *ret_n = model_due(all.kept, &spoilt, ret);
    if (all.mutant == MUTANT_ONE_TWICE && *ret_n && *ret_n < wanted->limit) {
        ret[*ret_n] = ret[0];
        ++*ret_n;
    }
    return 0;
}

static int watch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int *ret_fd,
                 struct hf_error *err)
{
    (void)store, (void)name;
    if (all.n_watches == WATCHES_MAX)
        return hf_fail(err, HF_NOMEM, "too many watches");
    *ret_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    all.watches[all.n_watches].id = *id;
    all.watches[all.n_watches++].fd = *ret_fd;
    return 0;
}

static void unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd)
{
    (void)store, (void)name, (void)id;
    for (size_t i = 0; i < all.n_watches; i++)
        if (all.watches[i].fd == fd)
            all.watches[i] = all.watches[--all.n_watches];
    close(fd);
}

/* The names of workflows are the caller's for as long as it sleeps. */
static int idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                int64_t *ret_next_ms, struct hf_error *err)
{
    (void)store;
    for (size_t i = 0; i < all.n_sleepers; i++)
        if (hf_lock_id_equal(&all.sleepers[i].id, id))
            all.sleepers[i] = all.sleepers[--all.n_sleepers];
    if (!wanted)
        return 0;
    if (all.n_sleepers == WATCHES_MAX || wanted->n_workflows > 4)
        return hf_fail(err, HF_NOMEM, "too many sleepers, or workflows");
    size_t i = all.n_sleepers++;
    all.sleepers[i].id = *id;
    all.sleepers[i].n_workflows = wanted->n_workflows;
    for (size_t j = 0; j < wanted->n_workflows; j++)
        all.sleepers[i].workflows[j] = wanted->workflows[j];
    *ret_next_ms = model_next_due(all.kept, wanted);
    return 0;
}

static void close_store(struct hf_store *store)
{
    if (all.mutant == MUTANT_REPEATS_FENCES)
        all.kept->last_fence /= 2;
    free(store);
}

static const struct hf_store_ops memory_ops = {
    .scheme = "memory",
    .form = "memory:",
    .close = close_store,
    .apply = apply,
    .list = list,
    .events = events,
    .totals = totals,
    .execution_data = execution_data,
    .executions = executions,
    .due = due,
    .idle = idle,
    .watch = watch,
    .unwatch = unwatch,
};

int memory_open(struct hf_store **ret, struct hf_error *err)
{
    struct hf_store *store = calloc(1, sizeof *store);
    if (!store)
        return hf_fail(err, HF_NOMEM, "out of memory");
    store->ops = &memory_ops;
    *ret = store;
    return 0;
}
