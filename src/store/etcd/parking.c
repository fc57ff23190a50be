/* Those that wait for one lock: counted, parked, made ready again, replaced. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "id.h"
#include "walk.h"

enum {
    CHANGED_AT_ONCE = 20, /* parked or made ready, which takes five operations each */
    REPLACED_AT_ONCE = 10 /* ... nine */
};

/* Those of the lock in this index (ready, park) that are due, in their order; not 0: enough. */
typedef int waiting_fn(const char *turn, const char *id, bool to_verify, void *arg);

static int each_waiting(struct hf_etcd_txn *t, const char *index, const char *lock, int64_t wall_ms,
                        waiting_fn *fn, void *arg, struct hf_error *err)
{
    char prefix[HF_ETCD_KEY_MAX], at[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct hf_etcd_walk w = {.s = t->s, .t = t, .end = end};
    const struct hf_etcd_kv *kv;
    int r = 0, stop = 0;
    hf_etcd_key(t->s, prefix, "%s/%s\1", index, lock);
    hf_etcd_key(t->s, end, "%s/%s\2", index, lock);
    snprintf(at, sizeof at, "%s", prefix);
    while (!stop && (r = hf_etcd_next_due_turn(&w, prefix, at, wall_ms, &kv, err)) >= 0 && kv) {
        char id[HF_UUID_LEN + 1];
        snprintf(id, sizeof id, "%s", kv->value);
        stop = fn(kv->key + strlen(prefix), id, kv->len > HF_UUID_LEN, arg);
    }
    hf_etcd_page_clear(&w.page);
    return stop ? 0 : r;
}

static int each_of_lock(struct hf_etcd_txn *t, const char *lock, int64_t wall_ms, waiting_fn *fn,
                        void *arg, struct hf_error *err)
{
    int r = each_waiting(t, "ready", lock, wall_ms, fn, arg, err);
    return r < 0 ? r : each_waiting(t, "park", lock, wall_ms, fn, arg, err);
}

struct waiting {
    bool to_verify; /* those that are to be verified count as well */
    int64_t most, n;
    char turn[HF_ETCD_TURN_MAX];
    char *first_id;
};

static int find_first(const char *turn, const char *id, bool to_verify, void *arg)
{
    struct waiting *w = arg;
    if (to_verify && !w->to_verify)
        return 0;
    if (!w->first_id[0] || strcmp(turn, w->turn) < 0) {
        snprintf(w->turn, sizeof w->turn, "%s", turn);
        memcpy(w->first_id, id, HF_UUID_LEN + 1);
    }
    return 1;
}

static int count_one(const char *turn, const char *id, bool to_verify, void *arg)
{
    struct waiting *w = arg;
    (void)turn, (void)id, (void)to_verify;
    return ++w->n >= w->most;
}

static int count_running(struct hf_etcd_txn *t, const struct hf_wanted *wanted, const char *but,
                         int32_t *ret, struct hf_error *err)
{
    char guard[HF_ETCD_KEY_MAX], from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *ignored;
    struct hf_etcd_page page;
    hf_etcd_key(t->s, guard, "limit/%s", wanted->running_of);
    hf_etcd_key(t->s, from, "wf/%s\1RUNNING/", wanted->running_of);
    hf_etcd_key(t->s, to, "wf/%s\1RUNNING0", wanted->running_of);
    struct hf_etcd_span span = {.from = from, .to = to, .limit = wanted->running_max + 1};
    int r = hf_etcd_get(t, guard, false, &ignored, err); /* nobody else begins one meanwhile */
    if (r < 0 || (r = hf_etcd_range(t, &span, false, &page, err)) < 0)
        return r;
    *ret = 0;
    for (size_t i = 0; i < page.n && *ret < wanted->running_max; i++)
        *ret += strncmp(page.of[i].value, but, HF_UUID_LEN) != 0;
    hf_etcd_page_clear(&page);
    return 0;
}

int hf_etcd_count(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                  struct hf_ask *ask, struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    int r = 0;
    ask->n_running = 0;
    if (wanted->running_of)
        r = count_running(t, wanted, ask->has_found ? ask->found.id : "-", &ask->n_running, err);
    struct waiting w = {.to_verify = wanted->waiting == HF_WAITING_FIRST,
                        .most = wanted->waiting_max,
                        .first_id = ask->waiting_id};
    ask->waiting_id[0] = '\0';
    if (r >= 0 && wanted->waiting == HF_WAITING_COUNT) {
        r = each_waiting(t, "ready", ask->req->name, wall_ms, count_one, &w, err);
        if (r >= 0 && w.n < w.most)
            r = each_waiting(t, "park", ask->req->name, wall_ms, count_one, &w, err);
    } else if (r >= 0 && wanted->waiting != HF_WAITING_NOT)
        r = each_of_lock(t, ask->req->name, wall_ms, find_first, &w, err);
    ask->n_waiting = (int32_t)w.n;
    return r;
}

/* ---- changing those of one lock ------------------------------------------------------------- */

struct chosen {
    char ids[CHANGED_AT_ONCE][HF_UUID_LEN + 1];
    size_t n, most;
    bool to_verify; /* those that are to be verified as well */
    bool more;      /* than are changed at once */
};

static int choose(const char *turn, const char *id, bool to_verify, void *arg)
{
    struct chosen *c = arg;
    (void)turn;
    if (to_verify && !c->to_verify)
        return 0;
    c->more = c->n == c->most;
    if (!c->more)
        memcpy(c->ids[c->n++], id, HF_UUID_LEN + 1);
    return c->more;
}

/* Have them read at once. */
static int fetch_chosen(struct hf_etcd_txn *t, const struct chosen *c, struct hf_error *err)
{
    char keys[CHANGED_AT_ONCE][HF_ETCD_KEY_MAX];
    const char *of[CHANGED_AT_ONCE];
    for (size_t i = 0; i < c->n; i++) {
        hf_etcd_key(t->s, keys[i], "exec/%s", c->ids[i]);
        of[i] = keys[i];
    }
    return hf_etcd_fetch(t, of, c->n, err);
}

/* Park or replace those that are chosen, as the effects say. */
static int change_chosen(struct hf_etcd_txn *t, const struct chosen *c, bool parks,
                         const struct hf_effects *fx, struct hf_error *err)
{
    struct hf_etcd_stored found;
    int r = fetch_chosen(t, c, err);
    for (size_t i = 0; r >= 0 && i < c->n; i++) {
        if ((r = hf_etcd_read_execution(t, c->ids[i], &found, err)) <= 0 ||
            found.x.state != HF_PENDING)
            continue;
        if (parks)
            found.x.parked = true;
        else
            hf_execution_replace(&found.x, fx->replaced_by, fx->replaced_at_ms);
        r = hf_etcd_write_execution(t, &found.x, err);
    }
    return r < 0 ? r : 0;
}

/* The record is put again, so that nobody misses what is changed here. */
static int touch_record(struct hf_etcd_txn *t, const char *name, bool parks, struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    hf_etcd_key(t->s, key, "lock/%s", name);
    int r = hf_etcd_get(t, key, true, &kv, err);
    if (r < 0 || !kv)
        return r;
    json_t *object = hf_etcd_parse(kv);
    if (parks)
        json_object_set_new(object, "parked", json_integer(1));
    return hf_etcd_put_json(t, key, object, 0, err);
}

/*
 * There are more than one Txn takes: some of them go ahead, in one of their own that holds only if all
 * that led here is so (a lease may have run out since it was last seen), and then the whole change
 * begins anew.
 */
static int go_ahead(struct hf_etcd_txn *t, const char *name, const struct chosen *c, bool parks,
                    const struct hf_effects *fx, struct hf_error *err)
{
    t->too_large = !t->alone; /* others of the batch may have changed the same */
    if (t->too_large)
        return hf_fail(err, HF_TOO_LARGE, "there are too many to be changed at once");
    struct hf_etcd_txn *first = malloc(sizeof *first);
    if (!first)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf_etcd_txn_init(first, t->s, true);
    first->guesses = false;
    int r = touch_record(first, name, parks, err);
    if (r >= 0)
        r = change_chosen(first, c, parks, fx, err);
    if (r >= 0)
        r = hf_etcd_expect_same(first, t, err);
    if (r >= 0)
        r = hf_etcd_commit(first, err);
    bool again = r >= 0 || first->conflict;
    hf_etcd_txn_clear(first);
    free(first);
    if (!again)
        return r;
    t->conflict = true;
    return hf_fail(err, HF_RACED, "there are too many to be changed at once");
}

int hf_etcd_park(struct hf_etcd_txn *t, const char *name, const struct hf_effects *fx,
                 struct hf_error *err)
{
    struct chosen c = {.most = CHANGED_AT_ONCE, .to_verify = true};
    int r = each_waiting(t, "ready", name, fx->park_due_ms, choose, &c, err);
    if (r < 0 || !c.n)
        return r;
    return c.more ? go_ahead(t, name, &c, true, fx, err) : change_chosen(t, &c, true, fx, err);
}

/* The one that is told of goes with the whole change. */
static void leave_out(struct chosen *c, const char *id)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->ids[i], id) == 0)
            memcpy(c->ids[i], c->ids[--c->n], sizeof c->ids[i]);
}

int hf_etcd_replace(struct hf_etcd_txn *t, const char *name, const struct hf_ask *ask,
                    const struct hf_effects *fx, struct hf_error *err)
{
    struct chosen c = {.most = REPLACED_AT_ONCE};
    int r = each_waiting(t, "ready", name, fx->replaced_at_ms, choose, &c, err);
    if (r >= 0 && !c.more)
        r = each_waiting(t, "park", name, fx->replaced_at_ms, choose, &c, err);
    if (r < 0 || !c.n)
        return r;
    if (!c.more)
        return change_chosen(t, &c, false, fx, err);
    leave_out(&c, ask->waiting_id);
    return go_ahead(t, name, &c, false, fx, err);
}

/* Of more kinds than are changed at once some by lot, so that each has its turn at last. */
static void choose_by_lot(struct chosen *c, size_t n_before, const char *id)
{
    uint32_t lot;
    hf_random(&lot, sizeof lot);
    size_t at = n_before < c->most ? n_before : lot % (n_before + 1);
    if (at >= c->most)
        return;
    snprintf(c->ids[at], sizeof c->ids[at], "%.*s", HF_UUID_LEN, id);
    c->n += n_before < c->most;
}

/* The first that is parked of each kind: a workflow, its limit, whether it is to be verified. */
static int choose_kinds(struct hf_etcd_txn *t, const char *lock, struct chosen *c,
                        struct hf_error *err)
{
    char at[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct hf_etcd_walk w = {.s = t->s, .t = t, .end = end};
    const struct hf_etcd_kv *kv;
    int r;
    hf_etcd_key(t->s, at, "kind/%s\1", lock);
    hf_etcd_key(t->s, end, "kind/%s\2", lock);
    for (size_t n = 0; (r = hf_etcd_seek(&w, at, &kv, err)) >= 0 && kv; n++) {
        choose_by_lot(c, n, kv->value);
        snprintf(at, sizeof at, "%.*s\2", (int)(strrchr(kv->key, '\1') - kv->key), kv->key);
    }
    hf_etcd_page_clear(&w.page);
    return r;
}

int hf_etcd_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                   struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    struct chosen c = {.most = CHANGED_AT_ONCE};
    struct hf_etcd_stored found;
    int r = choose_kinds(t, name, &c, err);
    if (r >= 0 && c.n)
        r = fetch_chosen(t, &c, err);
    for (size_t i = 0; r >= 0 && i < c.n; i++) {
        if ((r = hf_etcd_read_execution(t, c.ids[i], &found, err)) <= 0)
            continue;
        found.x.parked = false;
        if ((r = hf_etcd_write_execution(t, &found.x, err)) >= 0)
            made(arg, found.x.workflow);
    }
    return r < 0 ? r : 0;
}
