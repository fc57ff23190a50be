#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "etcd_store.h"

enum {
    LOOKS_MAX = 64, /* at workflows, before others have their turn */
    AT_ONCE = 12    /* each takes eight operations */
};

/* ---- the last key --------------------------------------------------------------------------- */

/* 1: found, 0: there is none. */
static int read_last_key(struct hf_etcd *s, const char *workflow, const char *from, const char *to,
                         char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    char first[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, first, "key/%s\1%s", workflow, from);
    hf_etcd_key(s, end, "key/%s\1%s\1", workflow, to);
    struct hf_etcd_span span = {
        .from = first, .to = end, .limit = 1, .descending = true, .keys_only = true};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    if (page.n)
        snprintf(ret, HF_KEY_MAX + 1, "%s", strrchr(page.of[0].key, '\1') + 1);
    r = page.n > 0;
    hf_etcd_page_clear(&page);
    return r;
}

int hf_etcd_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                     char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    int r = read_last_key(hf_etcd_of(store), workflow, from, to, ret, err);
    return r != 0 ? (r < 0 ? r : 0)
                  : hf_fail(err, HF_NOT_FOUND, "%s has no key from %s to %s", workflow, from, to);
}

/* ---- rules ---------------------------------------------------------------------------------- */

static void take_rule(const struct hf_etcd_kv *kv, struct hf_retention *ret)
{
    json_t *object = kv ? hf_etcd_parse(kv) : NULL;
    int64_t keep_ms = json_integer_value(json_object_get(object, "keepMs"));
    ret->keep_ms = keep_ms ? keep_ms : HF_KEEP_DEFAULT_MS;
    ret->keep_count = json_integer_value(json_object_get(object, "keepCount"));
    json_decref(object);
}

static int64_t keep_ms_of(const struct hf_retention *rule)
{
    return rule->keep_ms ? rule->keep_ms : HF_KEEP_DEFAULT_MS;
}

static int note_rule(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    const struct hf_retention *rule = *(const struct hf_retention **)arg;
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    struct hf_retention known;
    hf_etcd_key(t->s, key, "retain/%s", rule->workflow);
    int r = hf_etcd_get(t, key, false, &kv, err);
    if (r < 0)
        return r;
    take_rule(kv, &known);
    if (known.keep_ms == keep_ms_of(rule) && known.keep_count == rule->keep_count)
        return 0;
    return hf_etcd_put_json(t, key,
                            json_pack("{s:I,s:I}", "keepMs", (json_int_t)keep_ms_of(rule),
                                      "keepCount", (json_int_t)rule->keep_count),
                            0, err);
}

int hf_etcd_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                   struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        const struct hf_retention *rule = &rules[i];
        r = hf_etcd_change(hf_etcd_of(store), note_rule, &rule, err);
    }
    return r;
}

/* ---- what is to go -------------------------------------------------------------------------- */

/* From the oldest up to `to`, not included. */
struct surplus {
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    char kept[HF_UUID_LEN + 1]; /* the execution that is kept whatever its age; or empty */
};

static int read_rule(struct hf_etcd *s, const char *workflow, struct hf_retention *ret,
                     struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, key, "retain/%s", workflow);
    struct hf_etcd_span span = {.from = key};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    take_rule(page.n ? &page.of[0] : NULL, ret);
    hf_etcd_page_clear(&page);
    return 0;
}

/* Of the newest only so many are kept: all before those is to go. */
static int count_off(struct hf_etcd *s, const char *workflow, int64_t keep_count,
                     struct surplus *ret, struct hf_error *err)
{
    char end[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, end, "end/%s\2", workflow);
    struct hf_etcd_span span = {.from = ret->from,
                                .to = end,
                                .limit = keep_count + 1,
                                .descending = true,
                                .keys_only = true};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    if (page.n == (size_t)keep_count + 1 && strcmp(page.of[keep_count].key, ret->to) >= 0)
        snprintf(ret->to, sizeof ret->to, "%.*s\1", HF_ETCD_KEY_MAX - 2, page.of[keep_count].key);
    hf_etcd_page_clear(&page);
    return 0;
}

/* The newest that its schedule has started tells how far it got. */
static int find_kept(struct hf_etcd *s, const char *workflow, struct surplus *ret,
                     struct hf_error *err)
{
    char last[HF_KEY_MAX + 1], key[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    int r = read_last_key(s, workflow, HF_PRUNE_KEPT_FROM, HF_PRUNE_KEPT_TO, last, err);
    if (r <= 0)
        return r;
    hf_etcd_key(s, key, "key/%s\1%s", workflow, last);
    struct hf_etcd_span span = {.from = key};
    if ((r = hf_etcd_read(s, &span, &page, err)) < 0)
        return r;
    if (page.n)
        snprintf(ret->kept, sizeof ret->kept, "%s", page.of[0].value);
    hf_etcd_page_clear(&page);
    return 0;
}

static int find_surplus(struct hf_etcd *s, const char *workflow, int64_t wall_ms,
                        struct surplus *ret, struct hf_error *err)
{
    struct hf_retention rule;
    int r = read_rule(s, workflow, &rule, err);
    if (r < 0)
        return r;
    *ret = (struct surplus){0};
    hf_etcd_key(s, ret->from, "end/%s\1", workflow);
    hf_etcd_key(s, ret->to, "end/%s\1%016llx", workflow,
                (unsigned long long)(wall_ms - rule.keep_ms));
    if (rule.keep_count && (r = count_off(s, workflow, rule.keep_count, ret, err)) < 0)
        return r;
    return find_kept(s, workflow, ret, err);
}

/* ---- pruning -------------------------------------------------------------------------------- */

struct removal {
    const struct hf_etcd_page *page;
    const char *kept;
    int64_t n;
};

static int remove_page(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    struct removal *removal = arg;
    removal->n = 0;
    for (size_t i = 0; i < removal->page->n; i++) {
        const struct hf_etcd_kv *index = &removal->page->of[i];
        struct hf_etcd_stored old;
        char id[HF_UUID_LEN + 1];
        snprintf(id, sizeof id, "%s", index->value);
        if (strcmp(id, removal->kept) == 0)
            continue;
        int r = hf_etcd_read_execution(t, id, &old, err);
        if (r > 0)
            r = hf_execution_is_over(&old.x) ? hf_etcd_remove_execution(t, &old, err) : 0;
        if (r < 0)
            return r;
        removal->n++;
    }
    return 0;
}

/* At most `max` of them; the number. */
static int prune_surplus(struct hf_etcd *s, struct surplus *what, int64_t max, struct hf_error *err)
{
    int64_t removed = 0;
    while (removed < max && strcmp(what->from, what->to) < 0) {
        struct hf_etcd_page page;
        int64_t limit = max - removed < AT_ONCE ? max - removed : AT_ONCE;
        struct hf_etcd_span span = {.from = what->from, .to = what->to, .limit = limit};
        int r = hf_etcd_read(s, &span, &page, err);
        if (r < 0)
            return r;
        struct removal removal = {.page = &page, .kept = what->kept};
        bool more = page.n == (size_t)limit;
        if (page.n) {
            snprintf(what->from, sizeof what->from, "%.*s\1", HF_ETCD_KEY_MAX - 2,
                     page.of[page.n - 1].key);
            r = hf_etcd_change(s, remove_page, &removal, err);
        }
        hf_etcd_page_clear(&page);
        if (r < 0)
            return r;
        removed += removal.n;
        if (!more)
            break;
    }
    return (int)removed;
}

static int prune_once(struct hf_etcd *s, int64_t max, struct hf_error *err)
{
    struct surplus what = {0};
    hf_etcd_key(s, what.from, "endonce/\1");
    hf_etcd_key(s, what.to, "endonce/\1%016llx",
                (unsigned long long)(hf_clock_wall_ms() - HF_KEEP_DEFAULT_MS));
    return prune_surplus(s, &what, max, err);
}

/* Go to the next workflow of which something has ended. 0: there is none. */
static int find_next(struct hf_etcd *s, struct hf_prune_place *place, struct hf_error *err)
{
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, from, "end/%s%s", place->workflow, place->workflow[0] ? "\2" : "");
    hf_etcd_key(s, to, "end0");
    struct hf_etcd_span span = {.from = from, .to = to, .limit = 1, .keys_only = true};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    *place = (struct hf_prune_place){.where = page.n ? HF_PRUNE_AT : HF_PRUNE_BEHIND};
    if (page.n) {
        const char *workflow = page.of[0].key + strlen(s->prefix) + strlen("end/");
        snprintf(place->workflow, sizeof place->workflow, "%.*s", (int)strcspn(workflow, "\1"),
                 workflow);
    }
    r = page.n > 0;
    hf_etcd_page_clear(&page);
    return r;
}

int hf_etcd_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                  int64_t *ret_removed, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    *ret_removed = 0;
    int r = prune_once(s, max, err);
    if (r < 0)
        return r;
    for (int looks = 0; looks < LOOKS_MAX && *ret_removed < max; looks++) {
        struct surplus what;
        if (place->where == HF_PRUNE_BEHIND && (r = find_next(s, place, err)) <= 0)
            return r;
        if ((r = find_surplus(s, place->workflow, hf_clock_wall_ms(), &what, err)) < 0 ||
            (r = prune_surplus(s, &what, max - *ret_removed, err)) < 0)
            return r;
        *ret_removed += r;
        place->where = *ret_removed < max ? HF_PRUNE_BEHIND : HF_PRUNE_WITHIN;
    }
    return 0;
}
