#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "etcd_store.h"

enum { PAGE = 64, INDEXES_MAX = 8 };

#define EXECUTION(kind, name, member) HF_ETCD_FIELD(kind, struct hf_etcd_stored, name, member)
static const struct hf_etcd_field fields[] = {
    EXECUTION(TEXT, "id", x.id),
    EXECUTION(TEXT, "workflow", x.workflow),
    EXECUTION(TEXT, "lock", x.lock),
    EXECUTION(TEXT, "key", x.key),
    EXECUTION(INT64, "runAt", x.run_at_ms),
    EXECUTION(INT32, "priority", x.priority),
    EXECUTION(INT32, "attempt", x.attempt),
    EXECUTION(INT64, "fence", x.fence),
    EXECUTION(TEXT, "owner", x.owner),
    EXECUTION(INT64, "createdAt", x.created_at_ms),
    EXECUTION(INT64, "startedAt", x.started_at_ms),
    EXECUTION(INT64, "finishedAt", x.finished_at_ms),
    EXECUTION(BOOL, "hasExitCode", x.has_exit_code),
    EXECUTION(INT32, "exitCode", x.exit_code),
    EXECUTION(TEXT, "reason", x.reason),
    EXECUTION(TEXT, "retryOf", x.retry_of),
    EXECUTION(BOOL, "cancelRequested", x.cancel_requested),
    EXECUTION(BOOL, "spawned", x.spawned),
    EXECUTION(BOOL, "once", x.once),
    EXECUTION(BOOL, "toVerify", x.to_verify),
    EXECUTION(INT32, "onLost", x.on_lost),
    EXECUTION(INT32, "maxAttempts", x.max_attempts),
    EXECUTION(INT32, "spent", x.spent),
    EXECUTION(INT64, "retryBackoffMs", x.retry_backoff_ms),
    EXECUTION(INT32, "concurrency", x.concurrency),
    EXECUTION(BOOL, "parked", x.parked),
    EXECUTION(TEXT, "order", order),
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* ---- one execution -------------------------------------------------------------------------- */

void hf_etcd_take_execution(const struct hf_etcd_kv *kv, struct hf_etcd_stored *ret)
{
    json_t *object = hf_etcd_parse(kv);
    const char *state = json_string_value(json_object_get(object, "state"));
    memset(ret, 0, sizeof *ret);
    hf_etcd_decode(fields, N_FIELDS, object, ret);
    for (int i = 0; state && i < HF_EXECUTION_STATE_COUNT; i++)
        if (strcmp(state, hf_execution_state_name((enum hf_execution_state)i)) == 0)
            ret->x.state = (enum hf_execution_state)i;
    json_decref(object);
}

int hf_etcd_read_execution(struct hf_etcd_txn *t, const char *id, struct hf_etcd_stored *ret,
                           struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    hf_etcd_key(t->s, key, "exec/%s", id);
    int r = hf_etcd_get(t, key, false, &kv, err);
    if (r < 0 || !kv)
        return r;
    hf_etcd_take_execution(kv, ret);
    return 1;
}

/* ---- indexes -------------------------------------------------------------------------------- */

struct indexes {
    char of[INDEXES_MAX][HF_ETCD_KEY_MAX];
    size_t n;
};

static void add_turns(const struct hf_etcd *s, const struct hf_etcd_stored *e, struct indexes *ret)
{
    const struct hf_execution *x = &e->x;
    char turn[HF_ETCD_TURN_MAX];
    hf_etcd_format_turn(x, e->order, turn);
    if (x->parked) {
        hf_etcd_key(s, ret->of[ret->n++], "park/%s\1%s", x->lock, turn);
        hf_etcd_key(s, ret->of[ret->n++], "kind/%s\1%s\1%08x%d\1%s", x->lock, x->workflow,
                    (unsigned)x->concurrency, x->to_verify, turn);
        return;
    }
    hf_etcd_key(s, ret->of[ret->n++], "ready/%s\1%s", x->lock, turn);
    hf_etcd_key(s, ret->of[ret->n++], "due/%s\1%08x%d\1%s", x->workflow, (unsigned)x->concurrency,
                x->to_verify, turn);
}

/* All keys that lead to it as it is. */
static void list_indexes(const struct hf_etcd *s, const struct hf_etcd_stored *e,
                         struct indexes *ret)
{
    const struct hf_execution *x = &e->x;
    const char *state = hf_execution_state_name(x->state);
    bool failed = x->state == HF_FAILED || x->state == HF_ABORTED;
    ret->n = 0;
    hf_etcd_key(s, ret->of[ret->n++], "st/%s/%s", state, e->order);
    hf_etcd_key(s, ret->of[ret->n++], "wf/%s\1%s/%s", x->workflow, state, e->order);
    if (x->state == HF_PENDING)
        add_turns(s, e, ret);
    if (hf_execution_is_over(x))
        hf_etcd_key(s, ret->of[ret->n++], "%s%s\1%016llx.%s", x->once ? "endonce/" : "end/",
                    x->once ? "" : x->workflow, (unsigned long long)x->finished_at_ms, e->order);
    if (x->key[0] && !(x->once && failed))
        hf_etcd_key(s, ret->of[ret->n++], "%s/%s\1%s", x->once ? "once" : "key", x->workflow,
                    x->key);
}

static bool has_index(const struct indexes *all, const char *key)
{
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->of[i], key) == 0)
            return true;
    return false;
}

/* From what leads to it as it was to what leads to it now; NULL: it was not, or is no more. */
static int move_indexes(struct hf_etcd_txn *t, const struct hf_etcd_stored *from,
                        const struct hf_etcd_stored *to, struct hf_error *err)
{
    struct indexes *old = calloc(2, sizeof *old), *new = old ? old + 1 : NULL;
    char value[HF_UUID_LEN + 3];
    int r = 0;
    if (!old)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (from)
        list_indexes(t->s, from, old);
    if (to)
        list_indexes(t->s, to, new);
    for (size_t i = 0; r >= 0 && i < old->n; i++)
        if (!has_index(new, old->of[i]))
            r = hf_etcd_delete(t, old->of[i], err);
    snprintf(value, sizeof value, "%s%s", to ? to->x.id : "", to && to->x.to_verify ? " v" : "");
    for (size_t i = 0; r >= 0 && i < new->n; i++)
        if (!has_index(old, new->of[i]) || (from && from->x.to_verify != to->x.to_verify))
            r = hf_etcd_put_string(t, new->of[i], value, err);
    free(old);
    return r;
}

/* Who counts what runs of a workflow with a limit compares this. */
static int note_running(struct hf_etcd_txn *t, const struct hf_execution *x, struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    hf_etcd_key(t->s, key, "limit/%s", x->workflow);
    return x->concurrency > 0 ? hf_etcd_put_string(t, key, t->nonce, err) : 0;
}

int hf_etcd_write_execution(struct hf_etcd_txn *t, const struct hf_execution *x,
                            struct hf_error *err)
{
    struct hf_etcd_stored old = {0}, new = {.x = *x};
    char key[HF_ETCD_KEY_MAX];
    int r = hf_etcd_read_execution(t, x->id, &old, err);
    if (r < 0)
        return r;
    bool existed = r > 0;
    if (existed)
        memcpy(new.order, old.order, sizeof new.order);
    else
        snprintf(new.order, sizeof new.order, "%014llx.%03x.%.5s",
                 (unsigned long long)t->revision & 0xffffffffffffff, t->made++ & 0xfff, t->nonce);
    json_t *object = hf_etcd_encode(fields, N_FIELDS, &new);
    json_object_set_new_nocheck(object, "state", json_string(hf_execution_state_name(x->state)));
    hf_etcd_key(t->s, key, "exec/%s", x->id);
    r = hf_etcd_put_json(t, key, object, 0, err);
    if (r >= 0)
        r = move_indexes(t, existed ? &old : NULL, &new, err);
    if (r >= 0 && (existed && old.x.state == HF_RUNNING) != (x->state == HF_RUNNING))
        r = note_running(t, x, err);
    return r;
}

int hf_etcd_remove_execution(struct hf_etcd_txn *t, const struct hf_etcd_stored *old,
                             struct hf_error *err)
{
    static const char *const kinds[] = {"exec", "input", "output"};
    char key[HF_ETCD_KEY_MAX];
    int r = move_indexes(t, old, NULL, err);
    for (size_t i = 0; r >= 0 && i < sizeof kinds / sizeof *kinds; i++) {
        hf_etcd_key(t->s, key, "%s/%s", kinds[i], old->x.id);
        r = hf_etcd_delete(t, key, err);
    }
    return r;
}

/* ---- saving --------------------------------------------------------------------------------- */

static int put_input(struct hf_etcd_txn *t, const char *id, const struct hf_request *req,
                     struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    if (!req->input_size)
        return 0;
    if (req->input_size > HF_ETCD_DATA_MAX)
        return hf_fail(err, HF_TOO_LARGE, "the input has %zu bytes; an etcd store takes at most %d",
                       req->input_size, HF_ETCD_DATA_MAX);
    hf_etcd_key(t->s, key, "input/%s", id);
    return hf_etcd_put(t, key, req->input, req->input_size, 0, err);
}

/* "HEAD_SIZE SKIPPED\n", the head, the tail. */
static int put_output(struct hf_etcd_txn *t, const char *id, const struct hf_request *req,
                      struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    struct hf_buf value = HF_BUF(HF_ETCD_DATA_MAX);
    hf_buf_printf(&value, "%zu %lld\n", req->output_head_size, (long long)req->output_skipped);
    if (req->output_head_size)
        hf_buf_add(&value, req->output_head, req->output_head_size);
    if (req->output_tail_size)
        hf_buf_add(&value, req->output_tail, req->output_tail_size);
    hf_etcd_key(t->s, key, "output/%s", id);
    int r = value.failed
                ? hf_fail(err, HF_TOO_LARGE, "the output is larger than an etcd store takes")
                : hf_etcd_put(t, key, value.data, value.len, 0, err);
    hf_buf_clear(&value);
    return r;
}

int hf_etcd_save_executions(struct hf_etcd_txn *t, const struct hf_ask *ask,
                            const struct hf_effects *fx, struct hf_error *err)
{
    int r = fx->replaced_by[0] ? hf_etcd_replace(t, ask->req->name, ask, fx, err) : 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_executions; i++) {
        const struct hf_kept_execution *k = &fx->executions[i];
        r = hf_etcd_write_execution(t, &k->x, err);
        if (r >= 0 && k->is_new)
            r = put_input(t, k->x.id, ask->req, err);
    }
    if (r >= 0 && fx->park_due_ms)
        r = hf_etcd_park(t, ask->req->name, fx, err);
    if (r >= 0 && fx->output_of[0])
        r = put_output(t, fx->output_of, ask->req, err);
    return r;
}

/* ---- finding -------------------------------------------------------------------------------- */

static int compare_input(struct hf_etcd_txn *t, struct hf_ask *ask, struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    hf_etcd_key(t->s, key, "input/%s", ask->found.id);
    int r = hf_etcd_get(t, key, false, &kv, err);
    if (r < 0)
        return r;
    size_t n = ask->req->input_size;
    ask->same_input = n == (kv ? kv->len : 0) && (!n || memcmp(ask->req->input, kv->value, n) == 0);
    return 0;
}

/* 1: found, 0: there is none. */
static int find_by_key(struct hf_etcd_txn *t, const struct hf_sought *sought, struct hf_ask *ask,
                       struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX], id[HF_UUID_LEN + 1];
    const struct hf_etcd_kv *kv;
    struct hf_etcd_stored found;
    hf_etcd_key(t->s, key, "%s/%s\1%s", sought->once ? "once" : "key", sought->workflow,
                sought->key);
    int r = hf_etcd_get(t, key, false, &kv, err);
    if (r < 0 || !kv)
        return r;
    snprintf(id, sizeof id, "%s", kv->value);
    if ((r = hf_etcd_read_execution(t, id, &found, err)) <= 0)
        return r;
    ask->found = found.x;
    ask->same_input = true;
    r = sought->once ? 0 : compare_input(t, ask, err);
    return r < 0 ? r : 1;
}

int hf_etcd_find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                 struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    struct hf_etcd_stored found;
    int r = sought->key ? find_by_key(t, sought, ask, err) : 0;
    if (r == 0 && sought->id && (r = hf_etcd_read_execution(t, sought->id, &found, err)) > 0) {
        ask->found = found.x;
        ask->same_input = true;
    }
    ask->has_found = r > 0;
    return r < 0 ? r : 0;
}

/* ---- looking -------------------------------------------------------------------------------- */

static int not_found(const char *id, struct hf_error *err)
{
    return hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
}

static int read_stored(struct hf_etcd *s, const char *id, struct hf_etcd_stored *ret,
                       struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, key, "exec/%s", id);
    struct hf_etcd_span span = {.from = key};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    if (page.n)
        hf_etcd_take_execution(&page.of[0], ret);
    else
        r = not_found(id, err);
    hf_etcd_page_clear(&page);
    return r;
}

int hf_etcd_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                      struct hf_error *err)
{
    struct hf_etcd_stored found;
    int r = read_stored(hf_etcd_of(store), id, &found, err);
    if (r >= 0)
        *ret = found.x;
    return r;
}

static void tell_output(const struct hf_etcd_kv *kv, hf_data_fn fn, void *arg)
{
    size_t head = 0;
    long long skipped = 0;
    const char *line = memchr(kv->value, '\n', kv->len);
    if (!line || sscanf(kv->value, "%zu %lld", &head, &skipped) != 2)
        return;
    const char *bytes = line + 1;
    size_t n = kv->len - (size_t)(bytes - kv->value);
    if (head > n)
        head = n;
    int stop = head ? fn(arg, bytes, head, 0) : 0;
    if (!stop && (n > head || skipped))
        fn(arg, bytes + head, n - head, skipped);
}

int hf_etcd_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                           hf_data_fn fn, void *arg, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    char exec[HF_ETCD_KEY_MAX], data[HF_ETCD_KEY_MAX];
    struct hf_etcd_page pages[2];
    hf_etcd_key(s, exec, "exec/%s", id);
    hf_etcd_key(s, data, "%s/%s", which == HF_DATA_INPUT ? "input" : "output", id);
    struct hf_etcd_span spans[] = {{.from = exec, .keys_only = true}, {.from = data}};
    int r = hf_etcd_read_all(s, spans, 2, pages, err);
    if (r < 0)
        return r;
    const struct hf_etcd_kv *kv = pages[1].n ? &pages[1].of[0] : NULL;
    if (!pages[0].n)
        r = not_found(id, err);
    else if (kv && which == HF_DATA_INPUT)
        fn(arg, kv->value, kv->len, 0);
    else if (kv)
        tell_output(kv, fn, arg);
    hf_etcd_page_clear(&pages[0]);
    hf_etcd_page_clear(&pages[1]);
    return r;
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* One index, from the newest back. */
struct list {
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    size_t at;
    bool more;
};

struct lists {
    struct list of[HF_EXECUTION_STATE_COUNT];
    size_t n;
};

static void add_list(struct hf_etcd *s, struct lists *all, const char *workflow, const char *state,
                     const char *before)
{
    struct list *l = &all->of[all->n++];
    if (workflow) {
        hf_etcd_key(s, l->from, "wf/%s\1%s/", workflow, state);
        hf_etcd_key(s, l->to, "wf/%s\1%s/%s", workflow, state, before);
    } else {
        hf_etcd_key(s, l->from, "st/%s/", state);
        hf_etcd_key(s, l->to, "st/%s/%s", state, before);
    }
    if (!*before)
        l->to[strlen(l->to) - 1]++;
    l->more = true;
}

/* 1: there is one at its head; 0: it has come to its end. */
static int fill(struct hf_etcd *s, struct list *l, struct hf_error *err)
{
    if (l->at < l->page.n)
        return 1;
    if (!l->more)
        return 0;
    hf_etcd_page_clear(&l->page);
    struct hf_etcd_span span = {.from = l->from, .to = l->to, .limit = PAGE, .descending = true};
    int r = hf_etcd_read(s, &span, &l->page, err);
    if (r < 0)
        return r;
    l->at = 0;
    l->more = l->page.n == PAGE;
    if (l->page.n)
        snprintf(l->to, sizeof l->to, "%s", l->page.of[l->page.n - 1].key);
    return l->page.n > 0;
}

static const char *order_of(const struct list *l) { return strrchr(l->page.of[l->at].key, '/'); }

/* The id of the newest that is left in any of them. 1: there is one. */
static int next_id(struct hf_etcd *s, struct lists *all, char ret[HF_UUID_LEN + 1],
                   struct hf_error *err)
{
    struct list *best = NULL;
    for (size_t i = 0; i < all->n; i++) {
        int r = fill(s, &all->of[i], err);
        if (r < 0)
            return r;
        if (r > 0 && (!best || strcmp(order_of(&all->of[i]), order_of(best)) > 0))
            best = &all->of[i];
    }
    if (best)
        snprintf(ret, HF_UUID_LEN + 1, "%s", best->page.of[best->at++].value);
    return best != NULL;
}

/* Those with these ids, in their order; who is gone meanwhile is left out. Positive: it was enough. */
static int tell(struct hf_etcd *s, char ids[][HF_UUID_LEN + 1], size_t n, hf_execution_fn fn,
                void *arg, struct hf_error *err)
{
    char(*keys)[HF_ETCD_KEY_MAX] = malloc(n * sizeof *keys);
    struct hf_etcd_span *spans = calloc(n, sizeof *spans);
    struct hf_etcd_page *pages = calloc(n, sizeof *pages);
    int r = keys && spans && pages ? 0 : hf_fail(err, HF_NOMEM, "out of memory"), stop = 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        hf_etcd_key(s, keys[i], "exec/%s", ids[i]);
        spans[i].from = keys[i];
    }
    if (r >= 0)
        r = hf_etcd_read_all(s, spans, n, pages, err);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        struct hf_etcd_stored found;
        if (pages[i].n && !stop) {
            hf_etcd_take_execution(&pages[i].of[0], &found);
            stop = fn(arg, &found.x);
        }
        hf_etcd_page_clear(&pages[i]);
    }
    free(pages);
    free(spans);
    free(keys);
    return r < 0 ? r : stop != 0;
}

static int tell_all(struct hf_etcd *s, struct lists *all, int64_t limit, hf_execution_fn fn,
                    void *arg, struct hf_error *err)
{
    char ids[PAGE][HF_UUID_LEN + 1];
    int64_t left = limit > 0 ? limit : INT64_MAX;
    for (;;) {
        size_t n = 0;
        int r = 1;
        while (n < PAGE && (int64_t)n < left && (r = next_id(s, all, ids[n], err)) > 0)
            n++;
        if (r < 0 || !n)
            return r < 0 ? r : 0;
        left -= (int64_t)n;
        if ((r = tell(s, ids, n, fn, arg, err)) != 0)
            return r < 0 ? r : 0;
    }
}

int hf_etcd_executions(struct hf_store *store, const struct hf_execution_query *query,
                       hf_execution_fn fn, void *arg, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    struct hf_etcd_stored before = {0};
    struct lists *all = calloc(1, sizeof *all);
    int r = all ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0 && query->before)
        r = read_stored(s, query->before, &before, err);
    for (int i = 0; r >= 0 && i < HF_EXECUTION_STATE_COUNT; i++)
        if (query->state < 0 || query->state == i)
            add_list(s, all, query->workflow, hf_execution_state_name((enum hf_execution_state)i),
                     before.order);
    if (r >= 0)
        r = tell_all(s, all, query->limit, fn, arg, err);
    for (size_t i = 0; all && i < all->n; i++)
        hf_etcd_page_clear(&all->of[i].page);
    free(all);
    return r;
}
