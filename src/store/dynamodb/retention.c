/*
 * How long executions are kept once they have ended: those of a workflow are found by OVER#, in the order
 * in which they ended; those of `run --once`, which age alone removes, by OVERONCE#.
 */
#include <stdio.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

enum { LOOKS_MAX = 16, TIME_DIGITS = 13 }; /* at workflows, before others have their turn */

/* ---- rules ---------------------------------------------------------------------------------- */

static int64_t keep_ms_of(const struct hf_retention *rule)
{
    return rule->keep_ms ? rule->keep_ms : HF_KEEP_DEFAULT_MS;
}

static int read_rule(struct hf_ddb *s, const char *workflow, struct hf_retention *ret,
                     struct hf_error *err)
{
    json_t *item;
    int r = hf_ddb_fetch(s, "RETAIN", workflow, &item, err);
    if (r < 0)
        return r;
    *ret = (struct hf_retention){.workflow = workflow,
                                 .keep_ms = hf_ddb_get_int(item, "KeepMs"),
                                 .keep_count = hf_ddb_get_int(item, "KeepCount")};
    ret->keep_ms = keep_ms_of(ret);
    json_decref(item);
    return 0;
}

int hf_ddb_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                  struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    int r = hf_ddb_make_ready(s, err);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        struct hf_retention known;
        if ((r = read_rule(s, rules[i].workflow, &known, err)) < 0)
            break;
        if (known.keep_ms == keep_ms_of(&rules[i]) && known.keep_count == rules[i].keep_count)
            continue;
        json_t *item = hf_ddb_object();
        hf_ddb_set_int(item, "KeepMs", keep_ms_of(&rules[i]));
        hf_ddb_set_int(item, "KeepCount", rules[i].keep_count);
        r = hf_ddb_store(s, "RETAIN", rules[i].workflow, item, err);
    }
    return r;
}

/* ---- one -------------------------------------------------------------------------------------- */

static int forget_key(struct hf_ddb_turn *t, const char *flow, const struct hf_execution *x,
                      struct hf_error *err)
{
    char sk[HF_DDB_KEY_MAX];
    const json_t *item;
    if (!x->key[0])
        return 0;
    snprintf(sk, sizeof sk, "%s#%s", x->once ? "ONCE" : "KEY", x->key);
    int r = hf_ddb_turn_get(t, flow, sk, &item, err);
    if (r < 0 || strcmp(hf_ddb_get_text(item, "Id"), x->id) != 0)
        return r; /* a newer one has it */
    return hf_ddb_turn_delete(t, flow, sk, HF_DDB_IF_SAME, err);
}

/* All of it, in one transaction. 0: it was changed or removed meanwhile. */
static int remove_in(struct hf_ddb_turn *t, const char *flow, const json_t *pointer,
                     struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], sk[HF_DDB_KEY_MAX];
    struct hf_execution x;
    const json_t *item;
    hf_ddb_run_pk(hf_ddb_get_text(pointer, "Id"), pk);
    int r = hf_ddb_turn_get(t, pk, "RUN", &item, err);
    if (r < 0 || !item)
        return r;
    snprintf(sk, sizeof sk, "RUN#%016lld", (long long)hf_ddb_get_int(item, "Seq"));
    if ((r = hf_ddb_read_run(item, &x, err)) < 0 || !hf_execution_is_over(&x))
        return r < 0 ? r : 0;
    if ((r = forget_key(t, flow, &x, err)) < 0 ||
        (r = hf_ddb_turn_delete(t, flow, sk, HF_DDB_BLINDLY, err)) < 0 ||
        (r = hf_ddb_turn_delete(t, flow, hf_ddb_get_text(pointer, "SK"), HF_DDB_BLINDLY, err)) <
            0 ||
        (r = hf_ddb_turn_delete(t, pk, "INPUT", HF_DDB_BLINDLY, err)) < 0 ||
        (r = hf_ddb_turn_delete(t, pk, "OUTPUT", HF_DDB_BLINDLY, err)) < 0 ||
        (r = hf_ddb_turn_delete(t, pk, "RUN", HF_DDB_IF_SAME, err)) < 0)
        return r;
    r = hf_ddb_turn_commit(t, err);
    return r == HF_DDB_CONFLICT ? 0 : r < 0 ? r : 1;
}

static int remove_one(struct hf_ddb *s, const char *flow, const json_t *pointer,
                      struct hf_error *err)
{
    struct hf_ddb_turn t;
    int r = hf_ddb_turn_begin(&t, s, "", err);
    if (r < 0)
        return r;
    r = remove_in(&t, flow, pointer, err);
    hf_ddb_turn_end(&t);
    return r;
}

/* ---- a workflow -------------------------------------------------------------------------------- */

/* The newest that its schedule has started: it tells how far that has got. "": none. */
static int find_kept(struct hf_ddb *s, const char *flow, char ret[HF_UUID_LEN + 1],
                     struct hf_error *err)
{
    json_t *items;
    struct hf_ddb_range range = {.pk = flow,
                                 .from = "KEY#" HF_PRUNE_KEPT_FROM,
                                 .to = "KEY#" HF_PRUNE_KEPT_TO,
                                 .backwards = true,
                                 .limit = 1};
    int r = hf_ddb_query(s, &range, &items, err);
    if (r < 0)
        return r;
    hf_ddb_copy_text(json_array_get(items, 0), "Id", ret, HF_UUID_LEN + 1);
    json_decref(items);
    return 0;
}

/* All up to `to` is to go: what is too old, and what is more than `keep_count`. */
static int find_end(struct hf_ddb *s, const char *flow, const struct hf_retention *rule,
                    int64_t wall_ms, char to[HF_DDB_KEY_MAX], struct hf_error *err)
{
    json_t *items;
    snprintf(to, HF_DDB_KEY_MAX, "OVER#%0*lld", TIME_DIGITS, (long long)(wall_ms - rule->keep_ms));
    if (!rule->keep_count)
        return 0;
    struct hf_ddb_range range = {.pk = flow,
                                 .from = "OVER#",
                                 .to = "OVER#~",
                                 .backwards = true,
                                 .limit = (size_t)rule->keep_count + 1};
    int r = hf_ddb_query(s, &range, &items, err);
    if (r < 0)
        return r;
    const char *surplus = hf_ddb_get_text(json_array_get(items, (size_t)rule->keep_count), "SK");
    if (strcmp(surplus, to) > 0)
        snprintf(to, HF_DDB_KEY_MAX, "%s", surplus);
    json_decref(items);
    return 0;
}

/* The number that was removed, at most `max`; *ret_more: there may be more. */
static int64_t remove_range(struct hf_ddb *s, const struct hf_ddb_range *range, const char *kept,
                            int64_t max, bool *ret_more, struct hf_error *err)
{
    json_t *items, *item;
    size_t i;
    int64_t n = 0;
    int r = hf_ddb_query(s, range, &items, err);
    if (r < 0)
        return r;
    *ret_more = json_array_size(items) == range->limit;
    json_array_foreach(items, i, item)
    {
        if (strcmp(hf_ddb_get_text(item, "Id"), kept) == 0)
            continue;
        if (n == max)
            break;
        if ((r = remove_one(s, range->pk, item, err)) < 0)
            break;
        n += r;
    }
    json_decref(items);
    return r < 0 ? r : n;
}

static int64_t prune_workflow(struct hf_ddb *s, const char *workflow, int64_t wall_ms, int64_t max,
                              bool *ret_more, struct hf_error *err)
{
    char flow[HF_DDB_KEY_MAX], to[HF_DDB_KEY_MAX], old[HF_DDB_KEY_MAX], kept[HF_UUID_LEN + 1];
    struct hf_retention rule;
    bool more_once = false;
    hf_ddb_flow_pk(workflow, flow);
    int r = read_rule(s, workflow, &rule, err);
    if (r < 0 || (r = find_end(s, flow, &rule, wall_ms, to, err)) < 0 ||
        (r = find_kept(s, flow, kept, err)) < 0)
        return r;
    /* One more than may be removed, for the one that is kept. */
    struct hf_ddb_range range = {.pk = flow, .from = "OVER#", .to = to, .limit = (size_t)max + 1};
    int64_t n = remove_range(s, &range, kept, max, ret_more, err);
    if (n < 0 || n >= max)
        return n;
    snprintf(old, sizeof old, "OVERONCE#%0*lld", TIME_DIGITS,
             (long long)(wall_ms - HF_KEEP_DEFAULT_MS));
    range = (struct hf_ddb_range){
        .pk = flow, .from = "OVERONCE#", .to = old, .limit = (size_t)(max - n)};
    int64_t once = remove_range(s, &range, "", max - n, &more_once, err);
    *ret_more |= more_once;
    return once < 0 ? once : n + once;
}

/* ---- all of them ------------------------------------------------------------------------------- */

/* 1: the place is at the next workflow; 0: there is none, it is at the beginning. */
static int find_next(struct hf_ddb *s, struct hf_prune_place *place, struct hf_error *err)
{
    json_t *items;
    char from[HF_DDB_KEY_MAX];
    snprintf(from, sizeof from, "%s ", place->workflow);
    struct hf_ddb_range range = {.pk = "FLOWS", .from = from, .to = "\xf4\x8f\xbf\xbf", .limit = 1};
    int r = hf_ddb_query(s, &range, &items, err);
    if (r < 0)
        return r;
    r = json_array_size(items) > 0;
    *place = (struct hf_prune_place){.where = r ? HF_PRUNE_AT : HF_PRUNE_BEHIND};
    hf_ddb_copy_text(json_array_get(items, 0), "SK", place->workflow, sizeof place->workflow);
    json_decref(items);
    return r;
}

int hf_ddb_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                 int64_t *ret_removed, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    struct hf_ddb_turn t;
    int r = hf_ddb_make_ready(s, err);
    if (r < 0 || (r = hf_ddb_turn_begin(&t, s, "", err)) < 0)
        return r;
    *ret_removed = 0;
    for (int looks = 0; looks < LOOKS_MAX && *ret_removed < max; looks++) {
        bool more = false;
        if (place->where == HF_PRUNE_BEHIND && (r = find_next(s, place, err)) <= 0)
            return r;
        int64_t n = prune_workflow(s, place->workflow, t.wall_ms, max - *ret_removed, &more, err);
        if (n < 0)
            return (int)n;
        *ret_removed += n;
        if (!more || n == 0)
            place->where = HF_PRUNE_BEHIND;
    }
    return 0;
}
