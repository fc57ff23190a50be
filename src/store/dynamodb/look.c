/* Lists, events and totals: by the partitions NAMES and FLOWS, which say what there is to look at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

#define LAST_CHARACTER "\xf4\x8f\xbf\xbf" /* U+10FFFF */

enum { DAY_S = 24 * 3600, EVENTS_AT_ONCE = 1 << 20 };

int hf_ddb_names(struct hf_ddb *s, const char *pk, json_t **ret, struct hf_error *err)
{
    struct hf_ddb_range range = {.pk = pk, .from = " ", .to = LAST_CHARACTER};
    return hf_ddb_query(s, &range, ret, err);
}

/* ---- every lock ----------------------------------------------------------------------------- */

/* The item of a name, NULL where it has none; not 0 ends it. */
typedef int item_fn(void *arg, const char *name, const json_t *item, struct hf_error *err);

static json_t *keys_of(const json_t *names)
{
    json_t *keys = json_array();
    for (size_t i = 0; i < json_array_size(names); i++) {
        char pk[HF_DDB_KEY_MAX];
        hf_ddb_lock_pk(hf_ddb_get_text(json_array_get(names, i), "SK"), pk);
        json_array_append_new(keys,
                              json_pack("{s:{s:s},s:{s:s}}", "PK", "S", pk, "SK", "S", "LOCK"));
    }
    return keys;
}

static int visit_page(struct hf_ddb *s, const json_t *names, item_fn *fn, void *arg,
                      struct hf_error *err)
{
    json_t *keys = keys_of(names), *items, *item;
    size_t i;
    int r = hf_ddb_fetch_many(s, keys, &items, err);
    json_decref(keys);
    if (r < 0)
        return r;
    json_array_foreach(items, i, item) if (r == 0)
    {
        r = fn(arg, hf_ddb_get_text(json_array_get(names, i), "SK"),
               json_is_null(item) ? NULL : item, err);
    }
    json_decref(items);
    return r;
}

/* In the order of names, behind `after`, a page at a time. */
static int visit_locks(struct hf_ddb *s, const char *prefix, const char *after, item_fn *fn,
                       void *arg, struct hf_error *err)
{
    char from[HF_DDB_KEY_MAX], to[HF_DDB_KEY_MAX];
    struct hf_ddb_range range = {.pk = "NAMES", .from = from, .to = to, .limit = HF_DDB_PAGE};
    int r = hf_ddb_make_ready(s, err);
    snprintf(to, sizeof to, "%s" LAST_CHARACTER, prefix);
    if (strcmp(after, prefix) >= 0 && *after)
        snprintf(from, sizeof from, "%s ", after); /* just behind it */
    else
        snprintf(from, sizeof from, "%s", *prefix ? prefix : " ");
    for (size_t n = HF_DDB_PAGE; r == 0 && n == HF_DDB_PAGE && strcmp(from, to) <= 0;) {
        json_t *names;
        if ((r = hf_ddb_query(s, &range, &names, err)) < 0)
            return r;
        n = json_array_size(names);
        r = visit_page(s, names, fn, arg, err);
        if (n)
            snprintf(from, sizeof from, "%s ", hf_ddb_get_text(json_array_get(names, n - 1), "SK"));
        json_decref(names);
    }
    return r < 0 ? r : 0;
}

struct lister {
    struct hf_ddb_turn turn;
    struct hf_world world;
    const struct hf_listing *which;
    hf_status_fn fn;
    void *arg;
};

static int list_one(void *arg, const char *name, const json_t *item, struct hf_error *err)
{
    struct lister *l = arg;
    struct hf_record rec;
    struct hf_status status;
    hf_ddb_read_lock(name, item, &rec);
    l->turn.name = name;
    int r = hf_ddb_load_execution(&l->turn, &rec, err);
    hf_ddb_turn_end(&l->turn);
    l->turn.slots_size = 0;
    if (r < 0)
        return r;
    hf_record_status(&rec, &l->world, &status);
    return hf_record_is_listed(l->which->filter, status.state) && l->fn(l->arg, &status);
}

int hf_ddb_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                struct hf_error *err)
{
    struct lister l = {.which = which, .fn = fn, .arg = arg};
    int r = hf_ddb_turn_begin(&l.turn, hf_ddb_of(store), "", err);
    if (r < 0)
        return r;
    struct hf_record_world rw = {&l.turn.base, &hf_ddb_record_ops};
    l.world = hf_record_world_now(&rw);
    return visit_locks(hf_ddb_of(store), which->prefix, which->after, list_one, &l, err);
}

/* ---- events --------------------------------------------------------------------------------- */

struct gathered {
    struct hf_event *of;
    size_t n, size;
    const struct hf_event_query *query;
};

static int gather(struct gathered *g, const struct hf_event *event, struct hf_error *err)
{
    if (event->seq <= g->query->after_seq || event->at_ms < g->query->since_ms)
        return 0;
    if (g->n == g->size) {
        size_t size = 2 * g->size + 64;
        struct hf_event *grown =
            size > EVENTS_AT_ONCE ? NULL : realloc(g->of, size * sizeof *grown);
        if (!grown)
            return hf_fail(err, HF_NOMEM,
                           "too many events to hold at once; ask for a name, a time or a limit");
        g->of = grown;
        g->size = size;
    }
    g->of[g->n++] = *event;
    return 0;
}

/* What is still in the lock's item. */
static int gather_log(void *arg, const char *name, const json_t *item, struct hf_error *err)
{
    struct hf_event *events;
    size_t n;
    int r = hf_ddb_read_log(name, item, &events, &n, err);
    if (r < 0)
        return r;
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = gather(arg, &events[i], err);
    free(events);
    return r;
}

/* What has been moved out of it: items with Events. */
static int gather_moved(struct hf_ddb *s, struct gathered *g, const char *pk, const char *from,
                        struct hf_error *err)
{
    json_t *items, *item;
    size_t i;
    struct hf_ddb_range range = {
        .pk = pk, .from = from, .to = strncmp(pk, "LOCK#", 5) == 0 ? "EVENTS#~" : "~"};
    int r = hf_ddb_query(s, &range, &items, err);
    if (r < 0)
        return r;
    json_array_foreach(items, i, item) if (r >= 0)
    {
        json_t *log = json_pack("{s:O}", "EventLog", json_object_get(item, "Events"));
        r = log ? gather_log(g, hf_ddb_get_text(item, "LockName"), log, err)
                : hf_fail(err, HF_NOMEM, "out of memory");
        json_decref(log);
    }
    json_decref(items);
    return r;
}

static int gather_of_name(struct hf_ddb *s, struct gathered *g, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    json_t *item;
    hf_ddb_lock_pk(g->query->name, pk);
    /* The lock's item first: what moves out of it meanwhile is found twice rather than never. */
    int r = hf_ddb_fetch(s, pk, "LOCK", &item, err);
    if (r < 0)
        return r;
    if (item)
        r = gather_log(g, g->query->name, item, err);
    json_decref(item);
    return r < 0 ? r : gather_moved(s, g, pk, "EVENTS#", err);
}

static int gather_of_all(struct hf_ddb *s, struct gathered *g, int64_t wall_ms,
                         struct hf_error *err)
{
    int64_t from_ms = wall_ms - HF_DDB_EVENTS_KEPT_MS;
    if (g->query->since_ms > from_ms)
        from_ms = g->query->since_ms;
    int r = visit_locks(s, "", "", gather_log, g, err);
    for (int64_t day = from_ms / 1000 / DAY_S; r >= 0 && day <= wall_ms / 1000 / DAY_S + 1; day++) {
        char pk[HF_DDB_KEY_MAX];
        snprintf(pk, sizeof pk, "EVENTS#%lld", (long long)day);
        r = gather_moved(s, g, pk, " ", err);
    }
    return r;
}

static int by_seq(const void *a, const void *b)
{
    const struct hf_event *x = a, *y = b;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool is_twice(const struct gathered *g, size_t i)
{
    return i > 0 && by_seq(&g->of[i], &g->of[i - 1]) == 0;
}

/* The newest so many, oldest first. */
static void tell(const struct gathered *g, hf_event_fn fn, void *arg)
{
    size_t n = 0, skip = 0;
    for (size_t i = 0; i < g->n; i++)
        n += !is_twice(g, i);
    if (g->query->limit > 0 && (int64_t)n > g->query->limit)
        skip = n - (size_t)g->query->limit;
    for (size_t i = 0; i < g->n; i++) {
        if (is_twice(g, i))
            continue;
        if (skip)
            skip--;
        else if (fn(arg, &g->of[i]))
            return;
    }
}

int hf_ddb_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                  void *arg, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    struct gathered g = {.query = query};
    struct hf_ddb_turn t;
    int r = hf_ddb_make_ready(s, err);
    if (r >= 0)
        r = hf_ddb_turn_begin(&t, s, "", err);
    if (r >= 0)
        r = query->name ? gather_of_name(s, &g, err) : gather_of_all(s, &g, t.wall_ms, err);
    if (r >= 0 && g.n) {
        qsort(g.of, g.n, sizeof *g.of, by_seq);
        tell(&g, fn, arg);
    }
    free(g.of);
    return r;
}

/* ---- totals --------------------------------------------------------------------------------- */

static int sum_one(void *arg, const char *name, const json_t *item, struct hf_error *err)
{
    struct hf_totals *sum = arg;
    struct hf_record rec;
    (void)err;
    hf_ddb_read_lock(name, item, &rec);
    hf_record_add_counts(sum, &rec.counts);
    return 0;
}

static int count_prefix(struct hf_ddb *s, const char *workflow, const char *prefix, int64_t *sum,
                        struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], to[32];
    int64_t n = 0;
    hf_ddb_flow_pk(workflow, pk);
    snprintf(to, sizeof to, "%s~", prefix);
    struct hf_ddb_range range = {.pk = pk, .from = prefix, .to = to};
    int r = hf_ddb_count(s, &range, &n, err);
    *sum += n;
    return r;
}

static int count_executions(struct hf_ddb *s, struct hf_totals *sum, struct hf_error *err)
{
    json_t *flows, *item;
    size_t i;
    int r = hf_ddb_names(s, "FLOWS", &flows, err);
    if (r < 0)
        return r;
    json_array_foreach(flows, i, item) if (r >= 0)
    {
        const char *workflow = hf_ddb_get_text(item, "SK");
        r = count_prefix(s, workflow, "READY#", &sum->executions_pending, err);
        if (r >= 0)
            r = count_prefix(s, workflow, "PARKED#", &sum->executions_pending, err);
        if (r >= 0)
            r = count_prefix(s, workflow, "RUNNING#", &sum->executions_running, err);
    }
    json_decref(flows);
    return r;
}

int hf_ddb_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    struct hf_totals sum = {0};
    int r = visit_locks(hf_ddb_of(store), "", "", sum_one, &sum, err);
    if (r >= 0)
        r = count_executions(hf_ddb_of(store), &sum, err);
    if (r >= 0)
        *ret = sum;
    return r;
}
