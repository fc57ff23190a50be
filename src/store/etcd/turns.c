/* Which executions are due, and when the next one will be; what is parked or full is stepped over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "walk.h"

/* ---- the best so far ------------------------------------------------------------------------ */

struct candidate {
    char turn[HF_ETCD_TURN_MAX];
    char id[HF_UUID_LEN + 1];
};

/* The first `n` of at most `size`, in their order. */
struct best {
    struct candidate *of;
    size_t n, size;
};

/* False: there are enough that go before it, and so before all behind it. */
static bool consider(struct best *best, const char *turn, const char *id)
{
    size_t at = best->n;
    while (at > 0 && strcmp(turn, best->of[at - 1].turn) < 0)
        at--;
    if (at == best->size)
        return false;
    best->n += best->n < best->size;
    memmove(&best->of[at + 1], &best->of[at], (best->n - at - 1) * sizeof *best->of);
    snprintf(best->of[at].turn, sizeof best->of[at].turn, "%s", turn);
    snprintf(best->of[at].id, sizeof best->of[at].id, "%s", id);
    return true;
}

/* ---- from group to group -------------------------------------------------------------------- */

/* Those that have workflow, limit and to_verify in common. */
struct group {
    char workflow[HF_NAME_MAX + 1];
    int32_t concurrency;
    bool to_verify;
    char prefix[HF_ETCD_KEY_MAX];
};

static bool parse_group(const struct hf_etcd *s, const char *key, struct group *ret)
{
    const char *workflow = key + strlen(s->prefix) + strlen("due/");
    const char *limit = strchr(workflow, '\1'), *end = limit ? strchr(limit + 1, '\1') : NULL;
    if (!end || end - limit != 1 + 8 + 1 || (size_t)(limit - workflow) >= sizeof ret->workflow)
        return false;
    snprintf(ret->workflow, sizeof ret->workflow, "%.*s", (int)(limit - workflow), workflow);
    char hex[9];
    snprintf(hex, sizeof hex, "%.8s", limit + 1);
    ret->concurrency = (int32_t)strtoul(hex, NULL, 16);
    ret->to_verify = end[-1] == '1';
    snprintf(ret->prefix, sizeof ret->prefix, "%.*s", (int)(end + 1 - key), key);
    return true;
}

typedef int group_fn(struct hf_etcd_walk *w, const struct group *g, void *arg,
                     struct hf_error *err);

/* Every group of a workflow, or of all. */
static int each_group(struct hf_etcd *s, const char *workflow, group_fn *fn, void *arg,
                      struct hf_error *err)
{
    char at[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct hf_etcd_walk w = {.s = s, .end = end};
    const struct hf_etcd_kv *kv;
    struct group g;
    int r;
    if (workflow) {
        hf_etcd_key(s, at, "due/%s\1", workflow);
        hf_etcd_key(s, end, "due/%s\2", workflow);
    } else {
        hf_etcd_key(s, at, "due/");
        hf_etcd_key(s, end, "due0");
    }
    while ((r = hf_etcd_seek(&w, at, &kv, err)) >= 0 && kv) {
        if (!parse_group(s, kv->key, &g)) {
            hf_etcd_go_behind(at, kv->key);
            continue;
        }
        if ((r = fn(&w, &g, arg, err)) < 0)
            break;
        snprintf(at, sizeof at, "%s", g.prefix);
        at[strlen(at) - 1]++;
    }
    hf_etcd_page_clear(&w.page);
    return r;
}

/* Of each workflow once, however often it was named; of all where none was. */
static int each_wanted(struct hf_etcd *s, const struct hf_due *due, group_fn *fn, void *arg,
                       struct hf_error *err)
{
    if (!due->n_workflows)
        return each_group(s, NULL, fn, arg, err);
    size_t n = 0;
    int r = 0;
    const char **workflows = hf_due_workflows(due, &n);
    if (!workflows)
        return hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = each_group(s, workflows[i], fn, arg, err);
    free(workflows);
    return r;
}

/* ---- due ------------------------------------------------------------------------------------ */

static int is_full(struct hf_etcd *s, const struct group *g, bool *ret, struct hf_error *err)
{
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    *ret = false;
    if (g->concurrency <= 0)
        return 0;
    hf_etcd_key(s, from, "wf/%s\1RUNNING/", g->workflow);
    hf_etcd_key(s, to, "wf/%s\1RUNNING0", g->workflow);
    struct hf_etcd_span span = {.from = from, .to = to, .count_only = true};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    *ret = page.count >= g->concurrency;
    hf_etcd_page_clear(&page);
    return 0;
}

struct due_search {
    const struct hf_due *due;
    struct best best;
};

static int consider_group(struct hf_etcd_walk *w, const struct group *g, void *arg,
                          struct hf_error *err)
{
    struct due_search *search = arg;
    char at[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    bool full;
    if (g->to_verify && !search->due->verifies)
        return 0;
    int r = is_full(w->s, g, &full, err);
    if (r < 0 || full)
        return r;
    snprintf(at, sizeof at, "%s", g->prefix);
    while ((r = hf_etcd_next_due_turn(w, g->prefix, at, search->due->wall_ms, &kv, err)) >= 0 && kv)
        if (!consider(&search->best, kv->key + strlen(g->prefix), kv->value))
            break;
    return r;
}

static int read_best(struct hf_etcd *s, const struct due_search *search, struct hf_execution *ret,
                     size_t *ret_n, struct hf_error *err)
{
    enum { AT_ONCE = 64 };
    char(*keys)[HF_ETCD_KEY_MAX] = malloc(AT_ONCE * sizeof *keys);
    struct hf_etcd_span spans[AT_ONCE];
    struct hf_etcd_page pages[AT_ONCE];
    size_t n = 0;
    int r = keys ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = search->due->skip; r >= 0 && i < search->best.n;) {
        size_t some = 0;
        for (; some < AT_ONCE && i < search->best.n; i++, some++) {
            hf_etcd_key(s, keys[some], "exec/%.36s", search->best.of[i].id);
            spans[some] = (struct hf_etcd_span){.from = keys[some]};
        }
        if ((r = hf_etcd_read_all(s, spans, some, pages, err)) < 0)
            break;
        for (size_t j = 0; j < some; j++) {
            struct hf_etcd_stored found;
            if (pages[j].n) {
                hf_etcd_take_execution(&pages[j].of[0], &found);
                ret[n++] = found.x;
            }
            hf_etcd_page_clear(&pages[j]);
        }
    }
    free(keys);
    *ret_n = n;
    return r;
}

int hf_etcd_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
                size_t *ret_n, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    struct due_search search = {.due = due, .best.size = due->skip + due->limit};
    *ret_n = 0;
    if (!due->limit)
        return 0;
    search.best.of = malloc(search.best.size * sizeof *search.best.of);
    if (!search.best.of)
        return hf_fail(err, HF_NOMEM, "out of memory");
    int r = each_wanted(s, due, consider_group, &search, err);
    if (r >= 0)
        r = read_best(s, &search, ret, ret_n, err);
    free(search.best.of);
    return r;
}

/* ---- the next that falls due ---------------------------------------------------------------- */

struct next_search {
    int64_t wall_ms, next_ms;
};

static int earlier_of_group(struct hf_etcd_walk *w, const struct group *g, void *arg,
                            struct hf_error *err)
{
    struct next_search *search = arg;
    char at[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    size_t n = strlen(g->prefix);
    int r;
    snprintf(at, sizeof at, "%s", g->prefix);
    while ((r = hf_etcd_seek(w, at, &kv, err)) >= 0 && kv && strncmp(kv->key, g->prefix, n) == 0) {
        char turn[HF_ETCD_TURN_MAX];
        snprintf(turn, sizeof turn, "%s", kv->key + n);
        int64_t run_at_ms = hf_etcd_run_at_of(turn);
        if (run_at_ms <= search->wall_ms) { /* to the first of this priority that is not due */
            snprintf(at, sizeof at, "%.900s%.*s.%016llx", g->prefix, HF_ETCD_PRIORITY_LEN, turn,
                     (unsigned long long)search->wall_ms + 1);
            continue;
        }
        if (!search->next_ms || run_at_ms < search->next_ms)
            search->next_ms = run_at_ms;
        hf_etcd_skip_priority(at, g->prefix, turn);
    }
    return r;
}

int hf_etcd_next_due(struct hf_etcd *s, const struct hf_due *wanted, int64_t *ret,
                     struct hf_error *err)
{
    struct next_search search = {.wall_ms = wanted->wall_ms};
    int r = each_wanted(s, wanted, earlier_of_group, &search, err);
    *ret = search.next_ms;
    return r;
}
