/*
 * Which executions are due, parked or in the way. A turn is a text that sorts as turns go: priority,
 * when it is due, age. So each search goes from priority to priority, and within one only through what
 * is due; what is not due yet, parked or full is stepped over.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "etcd_store.h"

enum {
    PAGE = 128,
    PRIORITY_LEN = 8,
    RUN_AT_AT = PRIORITY_LEN + 1,
    RUN_AT_LEN = 16,
    CHANGED_AT_ONCE = 20, /* parked or made ready, which takes five operations each */
    REPLACED_AT_ONCE = 10 /* ... nine */
};

void hf_etcd_format_turn(const struct hf_execution *x, const char *order,
                         char ret[HF_ETCD_TURN_MAX])
{
    snprintf(ret, HF_ETCD_TURN_MAX, "%08x.%016llx.%s",
             (unsigned)(INT64_C(0x7fffffff) - x->priority), (unsigned long long)x->run_at_ms,
             order);
}

static int64_t run_at_of(const char *turn)
{
    char hex[RUN_AT_LEN + 1];
    snprintf(hex, sizeof hex, "%.*s", RUN_AT_LEN, strlen(turn) > RUN_AT_AT ? turn + RUN_AT_AT : "");
    return (int64_t)strtoull(hex, NULL, 16);
}

/* ---- a walk through an index ---------------------------------------------------------------- */

/* Keys in order up to `end`, read in pages, all as they were at one moment. */
struct walk {
    struct hf_etcd *s;
    struct hf_etcd_txn *t; /* not NULL: with what it has written */
    const char *end;
    struct hf_etcd_page page;
    char from[HF_ETCD_KEY_MAX]; /* the page begins here */
    bool whole;                 /* ... and goes up to the end */
    bool read;
    int64_t revision;
};

static int read_page(struct walk *w, const char *from, struct hf_error *err)
{
    struct hf_etcd_span span = {.from = from, .to = w->end, .limit = PAGE, .revision = w->revision};
    hf_etcd_page_clear(&w->page);
    w->read = false;
    int r = w->t ? hf_etcd_range(w->t, &span, false, &w->page, err)
                 : hf_etcd_read(w->s, &span, &w->page, err);
    if (r < 0)
        return r;
    snprintf(w->from, sizeof w->from, "%s", from);
    w->whole = w->page.n < PAGE;
    w->read = true;
    if (!w->t)
        w->revision = w->page.revision;
    return 0;
}

static const struct hf_etcd_kv *find_in_page(const struct walk *w, const char *from)
{
    for (size_t i = 0; i < w->page.n; i++)
        if (strcmp(w->page.of[i].key, from) >= 0)
            return &w->page.of[i];
    return NULL;
}

/* The first that is not before `from`; NULL: there is none. It lives until the next one. */
static int seek(struct walk *w, const char *from, const struct hf_etcd_kv **ret,
                struct hf_error *err)
{
    bool covered = w->read && strcmp(from, w->from) >= 0;
    *ret = covered ? find_in_page(w, from) : NULL;
    if (*ret || (covered && w->whole))
        return 0;
    char start[HF_ETCD_KEY_MAX];
    snprintf(start, sizeof start, "%s", from);
    int r = strcmp(start, w->end) < 0 ? read_page(w, start, err) : 0;
    if (r >= 0 && strcmp(start, w->end) < 0)
        *ret = find_in_page(w, start);
    return r;
}

/* Just behind a key: no other one lies between. */
static void go_behind(char at[HF_ETCD_KEY_MAX], const char *key)
{
    snprintf(at, HF_ETCD_KEY_MAX, "%.*s\1", HF_ETCD_KEY_MAX - 2, key);
}

/* What comes after all of this one's priority. */
static void skip_priority(char at[HF_ETCD_KEY_MAX], const char *prefix, const char *turn)
{
    snprintf(at, HF_ETCD_KEY_MAX, "%.900s%.*s/", prefix, PRIORITY_LEN, turn);
}

/*
 * The next turn behind `at` that is due, which `at` is moved behind: its key; NULL: there is none.
 * Prefix: what stands before turns.
 */
static int next_due_turn(struct walk *w, const char *prefix, char at[HF_ETCD_KEY_MAX],
                         int64_t wall_ms, const struct hf_etcd_kv **ret, struct hf_error *err)
{
    size_t n = strlen(prefix);
    for (;;) {
        int r = seek(w, at, ret, err);
        if (r < 0 || !*ret)
            return r;
        if (strncmp((*ret)->key, prefix, n) != 0) {
            *ret = NULL;
            return 0;
        }
        const char *turn = (*ret)->key + n;
        if (run_at_of(turn) <= wall_ms) {
            go_behind(at, (*ret)->key);
            return 0;
        }
        skip_priority(at, prefix, turn);
    }
}

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

typedef int group_fn(struct walk *w, const struct group *g, void *arg, struct hf_error *err);

/* Every group of a workflow, or of all. */
static int each_group(struct hf_etcd *s, const char *workflow, group_fn *fn, void *arg,
                      struct hf_error *err)
{
    char at[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct walk w = {.s = s, .end = end};
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
    while ((r = seek(&w, at, &kv, err)) >= 0 && kv) {
        if (!parse_group(s, kv->key, &g)) {
            go_behind(at, kv->key);
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

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Of each workflow once, however often it was named; of all where none was. */
static int each_wanted(struct hf_etcd *s, const struct hf_due *due, group_fn *fn, void *arg,
                       struct hf_error *err)
{
    if (!due->n_workflows)
        return each_group(s, NULL, fn, arg, err);
    const char **sorted = malloc(due->n_workflows * sizeof *sorted);
    if (!sorted)
        return hf_fail(err, HF_NOMEM, "out of memory");
    memcpy(sorted, due->workflows, due->n_workflows * sizeof *sorted);
    qsort(sorted, due->n_workflows, sizeof *sorted, compare_texts);
    int r = 0;
    for (size_t i = 0; r >= 0 && i < due->n_workflows; i++)
        if (i == 0 || strcmp(sorted[i], sorted[i - 1]) != 0)
            r = each_group(s, sorted[i], fn, arg, err);
    free(sorted);
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

static int consider_group(struct walk *w, const struct group *g, void *arg, struct hf_error *err)
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
    while ((r = next_due_turn(w, g->prefix, at, search->due->wall_ms, &kv, err)) >= 0 && kv)
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

static int earlier_of_group(struct walk *w, const struct group *g, void *arg, struct hf_error *err)
{
    struct next_search *search = arg;
    char at[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    size_t n = strlen(g->prefix);
    int r;
    snprintf(at, sizeof at, "%s", g->prefix);
    while ((r = seek(w, at, &kv, err)) >= 0 && kv && strncmp(kv->key, g->prefix, n) == 0) {
        char turn[HF_ETCD_TURN_MAX];
        snprintf(turn, sizeof turn, "%s", kv->key + n);
        int64_t run_at_ms = run_at_of(turn);
        if (run_at_ms <= search->wall_ms) { /* to the first of this priority that is not due */
            snprintf(at, sizeof at, "%.900s%.*s.%016llx", g->prefix, PRIORITY_LEN, turn,
                     (unsigned long long)search->wall_ms + 1);
            continue;
        }
        if (!search->next_ms || run_at_ms < search->next_ms)
            search->next_ms = run_at_ms;
        skip_priority(at, g->prefix, turn);
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

/* ---- those of one lock ---------------------------------------------------------------------- */

/* Those of the lock in this index (ready, park) that are due, in their order; not 0: enough. */
typedef int waiting_fn(const char *turn, const char *id, bool to_verify, void *arg);

static int each_waiting(struct hf_etcd_txn *t, const char *index, const char *lock, int64_t wall_ms,
                        waiting_fn *fn, void *arg, struct hf_error *err)
{
    char prefix[HF_ETCD_KEY_MAX], at[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct walk w = {.s = t->s, .t = t, .end = end};
    const struct hf_etcd_kv *kv;
    int r = 0, stop = 0;
    hf_etcd_key(t->s, prefix, "%s/%s\1", index, lock);
    hf_etcd_key(t->s, end, "%s/%s\2", index, lock);
    snprintf(at, sizeof at, "%s", prefix);
    while (!stop && (r = next_due_turn(&w, prefix, at, wall_ms, &kv, err)) >= 0 && kv) {
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

/* The record as it was when `t` read it, put again, so that nobody misses what is changed here. */
static int touch_record(struct hf_etcd_txn *t, const struct hf_etcd_txn *like, const char *name,
                        bool parks, struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    hf_etcd_key(t->s, key, "lock/%s", name);
    int r = hf_etcd_get(t, key, true, &kv, err);
    if (r < 0 || !kv)
        return r;
    hf_etcd_cache_keep(t->s->cache, kv);
    for (size_t i = 0; i < like->n; i++)
        if (strcmp(like->of[i].kv.key, key) == 0 && like->of[i].kv.mod != kv->mod)
            return 1;
    json_t *object = hf_etcd_parse(kv);
    if (parks)
        json_object_set_new(object, "parked", json_integer(1));
    return hf_etcd_put_json(t, key, object, 0, err);
}

/*
 * There are more than one Txn takes: some of them go ahead, in one of their own, and then the whole
 * change begins anew.
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
    int r = touch_record(first, t, name, parks, err);
    if (r == 0)
        r = change_chosen(first, c, parks, fx, err);
    if (r == 0)
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

/* The first that is parked of each kind: a workflow, its limit, whether it is to be verified. */
static int choose_kinds(struct hf_etcd_txn *t, const char *lock, struct chosen *c,
                        struct hf_error *err)
{
    char at[HF_ETCD_KEY_MAX], end[HF_ETCD_KEY_MAX];
    struct walk w = {.s = t->s, .t = t, .end = end};
    const struct hf_etcd_kv *kv;
    int r = 0;
    hf_etcd_key(t->s, at, "kind/%s\1", lock);
    hf_etcd_key(t->s, end, "kind/%s\2", lock);
    while (c->n < c->most && (r = seek(&w, at, &kv, err)) >= 0 && kv) {
        const char *turn = strrchr(kv->key, '\1');
        choose(turn, kv->value, kv->len > HF_UUID_LEN, c);
        c->ids[c->n - 1][HF_UUID_LEN] = '\0';
        snprintf(at, sizeof at, "%.*s\2", (int)(turn - kv->key), kv->key);
    }
    hf_etcd_page_clear(&w.page);
    return c->n < c->most ? r : 0;
}

int hf_etcd_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                   struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    struct chosen c = {.most = CHANGED_AT_ONCE, .to_verify = true};
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
