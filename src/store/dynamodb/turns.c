/*
 * Which executions are due, parked or in the way: by the items READY# and PARKED#, whose sort keys are
 * in the order of turns: priority, then time, then age. What is not due yet is stepped over, one
 * priority at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

enum { SK_PRIORITY = 10, SK_TIME = 13, PAGE = 100, FLOWS_MAX = 100000 };

/* ---- in the order of turns ------------------------------------------------------------------ */

struct walk {
    struct hf_ddb_turn *t;
    const char *pk, *kind; /* "READY#" */
    int64_t due_ms;        /* INT64_MAX: whatever the time */
    char from[HF_DDB_KEY_MAX];
    json_t *page;
    size_t at;
    bool ended;
};

static void start_walk(struct walk *w, struct hf_ddb_turn *t, const char *pk, const char *kind,
                       int64_t due_ms)
{
    *w = (struct walk){.t = t, .pk = pk, .kind = kind, .due_ms = due_ms};
    snprintf(w->from, sizeof w->from, "%s", kind);
}

static void end_walk(struct walk *w)
{
    json_decref(w->page);
    w->page = NULL;
}

static int next_page(struct walk *w, struct hf_error *err)
{
    char to[HF_DDB_KEY_MAX];
    end_walk(w);
    w->at = 0;
    snprintf(to, sizeof to, "%s~", w->kind);
    struct hf_ddb_range range = {.pk = w->pk, .from = w->from, .to = to, .limit = PAGE};
    int r = hf_ddb_turn_query(w->t, &range, &w->page, err);
    w->ended = r < 0 || json_array_size(w->page) < PAGE;
    return r;
}

/* 1: *ret is the next pointer, as long as the walk stands there; 0: there is no more. */
static int step(struct walk *w, const json_t **ret, struct hf_error *err)
{
    for (;;) {
        if (!w->page || w->at == json_array_size(w->page)) {
            if (w->page && w->ended)
                return 0;
            int r = next_page(w, err);
            if (r < 0)
                return r;
            if (json_array_size(w->page) == 0)
                return 0;
        }
        const json_t *item = json_array_get(w->page, w->at);
        const char *sk = hf_ddb_get_text(item, "SK"), *priority = sk + strlen(w->kind);
        if (strtoll(priority + SK_PRIORITY + 1, NULL, 10) <= w->due_ms) {
            snprintf(w->from, sizeof w->from, "%s!", sk); /* just behind it */
            w->at++;
            *ret = item;
            return 1;
        }
        snprintf(w->from, sizeof w->from, "%s%.*s#~", w->kind, SK_PRIORITY, priority);
        w->ended = false;
        w->at = json_array_size(w->page);
    }
}

/* ---- what the step must know ---------------------------------------------------------------- */

static int count_running(struct hf_ddb_turn *t, const char *workflow, int32_t most, const char *but,
                         int32_t *ret, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    json_t *items, *item;
    const json_t *flow;
    size_t i;
    hf_ddb_flow_pk(workflow, pk);
    int r = hf_ddb_turn_get(t, pk, "FLOW", &flow, err); /* before: see note_limited() */
    if (r < 0)
        return r;
    struct hf_ddb_range range = {
        .pk = pk, .from = "RUNNING#", .to = "RUNNING#~", .limit = (size_t)most + 1};
    if ((r = hf_ddb_turn_query(t, &range, &items, err)) < 0)
        return r;
    *ret = 0;
    json_array_foreach(items, i, item) *ret += strcmp(hf_ddb_get_text(item, "Id"), but) != 0;
    json_decref(items);
    return 0;
}

/* Is `a` before `b`, by their sort keys behind the kind? */
static bool comes_before(const char *a, const char *b)
{
    return strcmp(strchr(a, '#'), strchr(b, '#')) < 0;
}

/* Of one kind: how many are due, and the first of them in `sk` and ask->waiting_id. */
static int count_waiting(struct hf_ddb_turn *t, const char *kind, const struct hf_wanted *wanted,
                         int64_t wall_ms, struct hf_ask *ask, char sk[HF_DDB_KEY_MAX],
                         struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    struct walk w;
    const json_t *item;
    int r;
    hf_ddb_lock_pk(t->name, pk);
    start_walk(&w, t, pk, kind, wall_ms);
    while ((r = step(&w, &item, err)) > 0) {
        const char *found = hf_ddb_get_text(item, "SK");
        if (wanted->waiting == HF_WAITING_REPLACEABLE && hf_ddb_has(item, "ToVerify"))
            continue;
        ask->n_waiting++;
        if (!*sk || comes_before(found, sk)) {
            snprintf(sk, HF_DDB_KEY_MAX, "%s", found);
            hf_ddb_copy_text(item, "Id", ask->waiting_id, sizeof ask->waiting_id);
        }
        if (wanted->waiting != HF_WAITING_COUNT || ask->n_waiting >= wanted->waiting_max)
            break;
    }
    end_walk(&w);
    return r < 0 ? r : 0;
}

int hf_ddb_count_turns(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                       struct hf_ask *ask, struct hf_error *err)
{
    struct hf_ddb_turn *t = hf_ddb_turn_of(store);
    char sk[HF_DDB_KEY_MAX] = "";
    int r = 0;
    if (wanted->running_of)
        r = count_running(t, wanted->running_of, wanted->running_max,
                          ask->has_found ? ask->found.id : "", &ask->n_running, err);
    if (r >= 0 && wanted->waiting != HF_WAITING_NOT)
        r = count_waiting(t, "READY#", wanted, wall_ms, ask, sk, err);
    if (r >= 0 && wanted->waiting != HF_WAITING_NOT)
        r = count_waiting(t, "PARKED#", wanted, wall_ms, ask, sk, err);
    return r;
}

/* ---- parking -------------------------------------------------------------------------------- */

/* What workers take or leave as a whole: see core/turns.c. */
static bool is_same_kind(const json_t *a, const json_t *b)
{
    return strcmp(hf_ddb_get_text(a, "Workflow"), hf_ddb_get_text(b, "Workflow")) == 0 &&
           hf_ddb_get_int(a, "Concurrency") == hf_ddb_get_int(b, "Concurrency") &&
           hf_ddb_has(a, "ToVerify") == hf_ddb_has(b, "ToVerify");
}

/* Of pointers in the order of turns, leave the first of each kind. */
static void keep_first_of_each(json_t *pointers)
{
    for (size_t i = 1; i < json_array_size(pointers);) {
        size_t j = 0;
        while (j < i && !is_same_kind(json_array_get(pointers, j), json_array_get(pointers, i)))
            j++;
        if (j < i)
            json_array_remove(pointers, i);
        else
            i++;
    }
}

/* More kinds than one transaction holds: some of them by lot, so that each has its turn at last. */
static void keep_some(json_t *pointers)
{
    while (json_array_size(pointers) > HF_DDB_AT_ONCE) {
        uint32_t random;
        hf_random(&random, sizeof random);
        json_array_remove(pointers, random % json_array_size(pointers));
    }
}

int hf_ddb_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                  struct hf_error *err)
{
    struct hf_ddb_turn *t = hf_ddb_turn_of(store);
    char pk[HF_DDB_KEY_MAX];
    json_t *pointers, *pointer;
    size_t i;
    hf_ddb_lock_pk(name, pk);
    struct hf_ddb_range range = {.pk = pk, .from = "PARKED#", .to = "PARKED#~"};
    int r = hf_ddb_turn_query(t, &range, &pointers, err);
    if (r < 0)
        return r;
    keep_first_of_each(pointers);
    keep_some(pointers);
    json_array_foreach(pointers, i, pointer)
    {
        struct hf_execution x;
        if ((r = hf_ddb_turn_run(t, hf_ddb_get_text(pointer, "Id"), &x, err)) < 0)
            break;
        x.parked = false;
        if (r > 0 && (r = hf_ddb_update_run(t, &x, err)) < 0)
            break;
        made(arg, x.workflow);
    }
    json_decref(pointers);
    return r < 0 ? r : 0;
}

/* What is done to each of those of the lock that are due, in the order of these kinds. */
struct change {
    void (*to_one)(struct hf_execution *x, const struct hf_effects *fx);
    const struct hf_effects *fx;
    const char *kinds[2]; /* NULL: not so many */
    int64_t due_ms;
    bool verified;     /* only those that are not to be verified */
    const char *spare; /* whom the request names itself: it is left for the last, or NULL */
};

/* The ids of at most HF_DDB_AT_ONCE; *ret_more where there are others. */
static int find_due(struct hf_ddb_turn *t, const struct change *c, const char *spare,
                    char ret[HF_DDB_AT_ONCE][HF_UUID_LEN + 1], size_t *ret_n, bool *ret_more,
                    struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    int r = 0;
    hf_ddb_lock_pk(t->name, pk);
    *ret_n = 0;
    *ret_more = false;
    for (size_t i = 0; r >= 0 && !*ret_more && i < 2 && c->kinds[i]; i++) {
        struct walk w;
        const json_t *item;
        start_walk(&w, t, pk, c->kinds[i], c->due_ms);
        while (!*ret_more && (r = step(&w, &item, err)) > 0) {
            const char *id = hf_ddb_get_text(item, "Id");
            if ((c->verified && hf_ddb_has(item, "ToVerify")) || (spare && !strcmp(id, spare)))
                continue;
            if (*ret_n == HF_DDB_AT_ONCE)
                *ret_more = true;
            else
                snprintf(ret[(*ret_n)++], HF_UUID_LEN + 1, "%s", id);
        }
        end_walk(&w);
    }
    return r < 0 ? r : 0;
}

static int change_each(struct hf_ddb_turn *t, const struct change *c,
                       char ids[HF_DDB_AT_ONCE][HF_UUID_LEN + 1], size_t n, struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        struct hf_execution x;
        if ((r = hf_ddb_turn_run(t, ids[i], &x, err)) <= 0)
            continue;
        c->to_one(&x, c->fx);
        r = hf_ddb_update_run(t, &x, err);
    }
    return r < 0 ? r : 0;
}

static void park_one(struct hf_execution *x, const struct hf_effects *fx)
{
    (void)fx;
    x->parked = true;
}

static void replace_one(struct hf_execution *x, const struct hf_effects *fx)
{
    hf_execution_replace(x, fx->replaced_by, fx->replaced_at_ms);
}

/* In a transaction of their own, while the lock is as the request has seen it. */
static int change_some(struct hf_ddb_turn *t, const struct change *c, const json_t *seen,
                       struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], ids[HF_DDB_AT_ONCE][HF_UUID_LEN + 1];
    const json_t *item;
    size_t n;
    bool more;
    hf_ddb_lock_pk(t->name, pk);
    int r = hf_ddb_turn_get(t, pk, "LOCK", &item, err);
    if (r < 0)
        return r;
    if (!item || hf_ddb_get_int(item, "Rev") != hf_ddb_get_int(seen, "Rev"))
        return HF_DDB_CONFLICT;
    if ((r = find_due(t, c, c->spare, ids, &n, &more, err)) < 0 ||
        (r = change_each(t, c, ids, n, err)) < 0)
        return r;
    json_t *next = json_copy((json_t *)(uintptr_t)item);
    if (c->to_one == park_one)
        hf_ddb_set_int(next, "ParkedRuns", 1);
    r = hf_ddb_turn_put(t, pk, "LOCK", next, HF_DDB_IF_SAME, err);
    return r < 0 ? r : hf_ddb_turn_commit(t, err);
}

/*
 * More than one transaction can change are changed a few at a time, each in one of its own, and the
 * request begins anew. What a crash leaves then is a shorter list for the next one.
 */
static int change_all(struct hf_ddb_turn *t, const struct change *c, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], ids[HF_DDB_AT_ONCE][HF_UUID_LEN + 1];
    struct hf_ddb_turn before;
    size_t n;
    bool more;
    int r = find_due(t, c, NULL, ids, &n, &more, err);
    if (r < 0 || !more)
        return r < 0 ? r : change_each(t, c, ids, n, err);
    hf_ddb_lock_pk(t->name, pk);
    if ((r = hf_ddb_turn_begin(&before, t->s, t->name, err)) < 0)
        return r;
    r = change_some(&before, c, hf_ddb_turn_seen(t, pk, "LOCK"), err);
    hf_ddb_turn_end(&before);
    return r < 0 ? r : HF_DDB_CONFLICT;
}

int hf_ddb_park(struct hf_ddb_turn *t, const char *claimed, const struct hf_effects *fx,
                struct hf_error *err)
{
    struct change c = {.to_one = park_one,
                       .fx = fx,
                       .kinds = {"READY#"},
                       .due_ms = fx->park_due_ms,
                       .spare = claimed};
    return change_all(t, &c, err);
}

int hf_ddb_replace(struct hf_ddb_turn *t, const char *first, const struct hf_effects *fx,
                   struct hf_error *err)
{
    struct change c = {.to_one = replace_one,
                       .fx = fx,
                       .kinds = {"READY#", "PARKED#"},
                       .due_ms = fx->replaced_at_ms,
                       .verified = true,
                       .spare = first};
    return change_all(t, &c, err);
}

/* ---- due ------------------------------------------------------------------------------------ */

struct candidate {
    char sk[64], id[HF_UUID_LEN + 1];
};

struct candidates {
    struct candidate *of;
    size_t n, size;
};

static int add_candidate(struct candidates *c, const json_t *item, struct hf_error *err)
{
    if (c->n == c->size) {
        size_t size = 2 * c->size + 64;
        struct candidate *grown = realloc(c->of, size * sizeof *grown);
        if (!grown)
            return hf_fail(err, HF_NOMEM, "out of memory");
        c->of = grown;
        c->size = size;
    }
    hf_ddb_copy_text(item, "SK", c->of[c->n].sk, sizeof c->of[0].sk);
    hf_ddb_copy_text(item, "Id", c->of[c->n].id, sizeof c->of[0].id);
    c->n++;
    return 0;
}

/* The first `most` of one workflow that may be claimed. */
static int add_due(struct hf_ddb_turn *t, const char *workflow, const struct hf_due *due,
                   size_t most, struct candidates *c, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    struct walk w;
    const json_t *item;
    int32_t running = -1;
    size_t n = 0;
    int r = 0;
    hf_ddb_flow_pk(workflow, pk);
    start_walk(&w, t, pk, "READY#", due->wall_ms);
    while (n < most && (r = step(&w, &item, err)) > 0) {
        int64_t limit = hf_ddb_get_int(item, "Concurrency");
        if (hf_ddb_has(item, "ToVerify") && !due->verifies)
            continue;
        if (limit && running < 0)
            r = count_running(t, workflow, INT32_MAX - 1, "", &running, err);
        if (r < 0)
            break;
        if (limit && running >= limit)
            continue;
        if ((r = add_candidate(c, item, err)) < 0)
            break;
        n++;
    }
    end_walk(&w);
    return r < 0 ? r : 0;
}

static int by_turn(const void *a, const void *b)
{
    return strcmp(((const struct candidate *)a)->sk, ((const struct candidate *)b)->sk);
}

static int add_all_due(struct hf_ddb_turn *t, const struct hf_due *due, struct candidates *c,
                       struct hf_error *err)
{
    json_t *flows = NULL, *item;
    size_t i, most = due->skip + due->limit;
    int r = 0;
    for (i = 0; r >= 0 && i < due->n_workflows; i++)
        r = add_due(t, due->workflows[i], due, most, c, err);
    if (due->n_workflows)
        return r;
    if ((r = hf_ddb_names(t->s, "FLOWS", &flows, err)) < 0)
        return r;
    json_array_foreach(flows, i, item) if (r >= 0)
    {
        r = add_due(t, hf_ddb_get_text(item, "SK"), due, most, c, err);
    }
    json_decref(flows);
    return r;
}

int hf_ddb_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
               size_t *ret_n, struct hf_error *err)
{
    struct hf_ddb_turn t;
    struct candidates c = {0};
    struct hf_due asked = *due;
    size_t n = 0;
    int r = hf_ddb_make_ready(hf_ddb_of(store), err);
    if (r < 0 || (r = hf_ddb_turn_begin(&t, hf_ddb_of(store), "", err)) < 0)
        return r;
    asked.wall_ms = t.wall_ms; /* the caller's own clock may be off */
    r = add_all_due(&t, &asked, &c, err);
    if (r >= 0 && c.n)
        qsort(c.of, c.n, sizeof *c.of, by_turn);
    for (size_t i = due->skip; r >= 0 && i < c.n && n < due->limit; i++) {
        r = hf_ddb_turn_run(&t, c.of[i].id, &ret[n], err);
        n += r > 0 && ret[n].state == HF_PENDING; /* or else somebody was first */
    }
    hf_ddb_turn_end(&t);
    free(c.of);
    if (r < 0)
        return r;
    *ret_n = n;
    return 0;
}

/* ---- keys ----------------------------------------------------------------------------------- */

int hf_ddb_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                    char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], first[HF_DDB_KEY_MAX], last[HF_DDB_KEY_MAX];
    json_t *items;
    hf_ddb_flow_pk(workflow, pk);
    snprintf(first, sizeof first, "KEY#%s", from);
    snprintf(last, sizeof last, "KEY#%s", to);
    struct hf_ddb_range range = {
        .pk = pk, .from = first, .to = last, .backwards = true, .limit = 1};
    int r = hf_ddb_make_ready(hf_ddb_of(store), err);
    if (r >= 0 && strcmp(first, last) > 0)
        return hf_fail(err, HF_NOT_FOUND, "there is no such key");
    if (r < 0 || (r = hf_ddb_query(hf_ddb_of(store), &range, &items, err)) < 0)
        return r;
    if (json_array_size(items))
        snprintf(ret, HF_KEY_MAX + 1, "%s", hf_ddb_get_text(json_array_get(items, 0), "SK") + 4);
    else
        r = hf_fail(err, HF_NOT_FOUND, "%s has no execution with such a key", workflow);
    json_decref(items);
    return r;
}
