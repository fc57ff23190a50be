/* Executions, newest first: the lists of the workflows are merged, a page of each at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

enum { PAGE = 100 };

/* One workflow's list, from the newest on. */
struct list {
    char pk[HF_DDB_KEY_MAX], to[HF_DDB_KEY_MAX];
    json_t *pointers, *items; /* a page, and what it points to */
    size_t at;
    bool ended;
};

static int fetch_items(struct hf_ddb *s, struct list *l, struct hf_error *err)
{
    json_t *keys = json_array(), *pointer;
    size_t i;
    json_array_foreach(l->pointers, i, pointer)
    {
        char pk[HF_DDB_KEY_MAX];
        hf_ddb_run_pk(hf_ddb_get_text(pointer, "Id"), pk);
        json_array_append_new(keys,
                              json_pack("{s:{s:s},s:{s:s}}", "PK", "S", pk, "SK", "S", "RUN"));
    }
    int r = hf_ddb_fetch_many(s, keys, &l->items, err);
    json_decref(keys);
    return r;
}

static void clear_page(struct list *l)
{
    json_decref(l->pointers);
    json_decref(l->items);
    l->pointers = l->items = NULL;
    l->at = 0;
}

/* Have something at `at`, unless it has ended. */
static int fill(struct hf_ddb *s, struct list *l, struct hf_error *err)
{
    if (l->ended || (l->pointers && l->at < json_array_size(l->pointers)))
        return 0;
    clear_page(l);
    struct hf_ddb_range range = {
        .pk = l->pk, .from = "RUN#", .to = l->to, .backwards = true, .limit = PAGE};
    int r = hf_ddb_query(s, &range, &l->pointers, err);
    if (r < 0)
        return r;
    size_t n = json_array_size(l->pointers);
    l->ended = n == 0;
    if (n) {
        const char *last = hf_ddb_get_text(json_array_get(l->pointers, n - 1), "SK");
        snprintf(l->to, sizeof l->to, "RUN#%016lld", strtoll(last + 4, NULL, 10) - 1);
    }
    return fetch_items(s, l, err);
}

static const char *head(const struct list *l)
{
    return l->ended ? "" : hf_ddb_get_text(json_array_get(l->pointers, l->at), "SK");
}

/* The list whose next one is the newest; NULL: they have all ended. */
static struct list *newest(struct list *lists, size_t n)
{
    struct list *best = NULL;
    for (size_t i = 0; i < n; i++)
        if (!lists[i].ended && (!best || strcmp(head(&lists[i]), head(best)) > 0))
            best = &lists[i];
    return best;
}

static int show(struct hf_ddb *s, struct list *lists, size_t n,
                const struct hf_execution_query *query, hf_execution_fn fn, void *arg,
                struct hf_error *err)
{
    int64_t shown = 0;
    for (;;) {
        struct hf_execution x;
        for (size_t i = 0; i < n; i++) {
            int r = fill(s, &lists[i], err);
            if (r < 0)
                return r;
        }
        struct list *l = newest(lists, n);
        if (!l || (query->limit && shown == query->limit))
            return 0;
        const json_t *item = json_array_get(l->items, l->at++);
        if (json_is_null(item))
            continue; /* removed just now */
        int r = hf_ddb_read_run(item, &x, err);
        if (r < 0)
            return r;
        if (query->state >= 0 && (int)x.state != query->state)
            continue;
        shown++;
        if (fn(arg, &x))
            return 0;
    }
}

/* Where the last page ended; 0: there was none. */
static int find_before(struct hf_ddb *s, const char *id, int64_t *ret, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    json_t *item;
    *ret = 0;
    if (!id)
        return 0;
    hf_ddb_run_pk(id, pk);
    int r = hf_ddb_fetch(s, pk, "RUN", &item, err);
    if (r >= 0 && !item)
        r = hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
    if (r >= 0)
        *ret = hf_ddb_get_int(item, "Seq");
    json_decref(r >= 0 ? item : NULL);
    return r;
}

static void open_list(struct list *l, const char *workflow, int64_t before)
{
    hf_ddb_flow_pk(workflow, l->pk);
    if (before)
        snprintf(l->to, sizeof l->to, "RUN#%016lld", (long long)before - 1);
    else
        snprintf(l->to, sizeof l->to, "RUN#~");
}

int hf_ddb_executions(struct hf_store *store, const struct hf_execution_query *query,
                      hf_execution_fn fn, void *arg, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    json_t *flows = NULL;
    int64_t before;
    int r = hf_ddb_make_ready(s, err);
    if (r >= 0)
        r = find_before(s, query->before, &before, err);
    if (r >= 0 && !query->workflow)
        r = hf_ddb_names(s, "FLOWS", &flows, err);
    if (r < 0)
        return r;
    size_t n = query->workflow ? 1 : json_array_size(flows);
    struct list *lists = calloc(n + 1, sizeof *lists);
    for (size_t i = 0; lists && i < n; i++)
        open_list(&lists[i],
                  query->workflow ? query->workflow
                                  : hf_ddb_get_text(json_array_get(flows, i), "SK"),
                  before);
    json_decref(flows);
    r = lists ? show(s, lists, n, query, fn, arg, err) : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; lists && i < n; i++)
        clear_page(&lists[i]);
    free(lists);
    return r;
}
