#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "error.h"
#include "etcd_store.h"

enum {
    FORMAT = 1,
    TRIES_MAX = 400,
    PATIENCE_MS = 15000,
    PAUSE_MAX_US = 20000,
    UNKNOWN_MAX = 3,
    PLAIN_AT_ONCE = 24,    /* requests in one Txn, of which each takes up to five operations */
    EXECUTIONS_AT_ONCE = 6 /* ... up to twenty */
};
#define EPOCH_STEP INT64_C(1000000000)

/* What a lease of etcd's lives longer than the ttl it carries: see leases.c. */
enum { EXTRA_S = 4 };
int64_t hf_etcd_lease_s(int64_t ttl_ms) { return (ttl_ms + 999) / 1000 + EXTRA_S; }

/* ---- what record.c calls -------------------------------------------------------------------- */

static int begin(struct hf_store *store, const char *const *names, size_t n, bool durable,
                 struct hf_error *err)
{
    (void)store, (void)names, (void)n, (void)durable, (void)err;
    return 0;
}

static int commit(struct hf_store *store, struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    int r = hf_etcd_finish_wakes(t, err);
    return r < 0 ? r : hf_etcd_commit(t, err);
}

static void rollback(struct hf_store *store) { (void)store; }

/*
 * Of the machines that use a store, each has its own: for people, and for how long ago a waiter asked.
 * No lease is judged by it.
 */
static int64_t now_ms(struct hf_store *store)
{
    (void)store;
    return hf_clock_wall_ms();
}

/* Waiters are woken by the Txn itself. */
static void wake(struct hf_store *store, const char *name, const struct hf_lock_id *id)
{
    (void)store, (void)name, (void)id;
}

const struct hf_record_ops hf_etcd_record_ops = {
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
    .load = hf_etcd_load,
    .save = hf_etcd_save,
    .next_fence = hf_etcd_next_fence,
    .find = hf_etcd_find,
    .count = hf_etcd_count,
    .unpark = hf_etcd_unpark,
    .now_ms = now_ms,
    .wake = wake,
    .wake_idle = hf_etcd_wake_idle,
};

/* ---- tries ---------------------------------------------------------------------------------- */

static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Longer the more often others were faster. */
static void pause_for(int tries)
{
    uint32_t random;
    long most_us = 500L << (tries < 6 ? tries : 6);
    hf_random(&random, sizeof random);
    if (most_us > PAUSE_MAX_US)
        most_us = PAUSE_MAX_US;
    struct timespec t = {0, (long)(random % (uint32_t)most_us) * 1000};
    nanosleep(&t, NULL);
}

static bool is_used(const struct hf_etcd_txn *t, int64_t lease)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->of[i].put && t->of[i].kv.lease == lease)
            return true;
    return false;
}

/* What becomes of the leases when a try is over. */
static void settle_leases(struct hf_etcd_txn *t, bool done)
{
    for (size_t i = 0; i < t->n_taken; i++)
        if (t->unknown)
            hf_etcd_lease_forget(t->s, t->taken[i]);
        else if (!done || !is_used(t, t->taken[i]))
            hf_etcd_lease_give(t->s, t->taken[i]);
    for (size_t i = 0; done && i < t->n_freed; i++)
        if (!is_used(t, t->freed[i]))
            hf_etcd_lease_give(t->s, t->freed[i]);
}

struct patience {
    int tries, unknown;
    int64_t until_ms;
};

/* After a try that failed with `r`: may it be tried again? */
static bool may_try_again(struct patience *p, const struct hf_etcd_txn *t, int r)
{
    if (r == -HF_UNKNOWN)
        return p->unknown++ < UNKNOWN_MAX;
    if (!t->conflict || ++p->tries > TRIES_MAX || real_ms() > p->until_ms)
        return false;
    if (p->tries > 1) /* at first it may only be that we knew less than there was */
        pause_for(p->tries);
    return true;
}

int hf_etcd_change(struct hf_etcd *s, hf_etcd_change_fn *change, void *arg, struct hf_error *err)
{
    struct patience patience = {.until_ms = real_ms() + PATIENCE_MS};
    struct hf_etcd_txn *t = malloc(sizeof *t);
    int r;
    if (!t)
        return hf_fail(err, HF_NOMEM, "out of memory");
    do {
        hf_etcd_txn_init(t, s, true);
        t->tries = patience.tries + patience.unknown;
        r = change(t, arg, err);
        if (r >= 0)
            r = hf_etcd_commit(t, err);
        hf_etcd_txn_clear(t);
    } while (r < 0 && may_try_again(&patience, t, r));
    free(t);
    return r;
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Have all the records read at once that will be looked at. */
static int fetch_names(struct hf_etcd_txn *t, const struct hf_request *requests, size_t n,
                       struct hf_error *err)
{
    enum { MOST = 16 };
    char keys[2 * MOST][HF_ETCD_KEY_MAX];
    const char *of[2 * MOST];
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n;) {
        size_t some = 0;
        for (; some < 2 * MOST && i < n; i++) {
            hf_etcd_key(t->s, keys[some], "lock/%s", requests[i].name);
            of[some] = keys[some];
            some++;
            hf_etcd_key(t->s, keys[some], "alive/%s", requests[i].name);
            of[some] = keys[some];
            some++;
        }
        r = hf_etcd_fetch(t, of, some, err);
    }
    return r;
}

static bool changes_something(const struct hf_request *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!hf_op_is_read(requests[i].op))
            return true;
    return false;
}

/* The reply was lost: was it done? 1: yes. */
static int find_out(struct hf_etcd_txn *t, const struct hf_request *requests, size_t n,
                    struct hf_error *err)
{
    bool done = false;
    size_t i = 0;
    while (i + 1 < n && hf_op_is_read(requests[i].op))
        i++;
    int r = hf_etcd_was_last(t->s, requests[i].name, t->nonce, &done, NULL);
    if (r < 0)
        return hf_fail(err, HF_UNKNOWN, "etcd does not answer; it may or may not be done");
    return done;
}

static int try_once(struct hf_etcd_txn *t, const struct hf_request *requests, size_t n,
                    struct hf_answer *answers, struct hf_error *err)
{
    int r = t->writing ? 0 : fetch_names(t, requests, n, err);
    if (r >= 0)
        r = hf_record_apply(&t->base, &hf_etcd_record_ops, requests, n, answers, err);
    int found = 0;
    if (r == -HF_UNKNOWN && t->unknown && (found = find_out(t, requests, n, err)) != 0)
        r = found < 0 ? found : 0;
    if (found > 0)
        t->unknown = false;
    settle_leases(t, r >= 0);
    return r;
}

/* So many that they fit into one Txn; *ret_too_large: they do not. */
static int apply_some(struct hf_etcd *s, const struct hf_request *requests, size_t n,
                      struct hf_answer *answers, bool *ret_too_large, struct hf_error *err)
{
    struct patience patience = {.until_ms = real_ms() + PATIENCE_MS};
    struct hf_etcd_txn *t = malloc(sizeof *t);
    int r;
    if (!t)
        return hf_fail(err, HF_NOMEM, "out of memory");
    do {
        hf_etcd_txn_init(t, s, changes_something(requests, n));
        t->tries = patience.tries + patience.unknown;
        t->alone = n == 1;
        enum hf_etcd_news news = n == 1 && requests[0].wait_ms
                                     ? hf_etcd_news_for(s, requests[0].token)
                                     : HF_ETCD_NOT_WAITING;
        t->guesses &= news != HF_ETCD_NO_NEWS; /* all has changed since, but how? */
        t->told = news == HF_ETCD_NEWS;
        r = try_once(t, requests, n, answers, err);
        hf_etcd_txn_clear(t);
    } while (r < 0 && may_try_again(&patience, t, r));
    *ret_too_large = t->too_large;
    if (r == -HF_RACED)
        r = hf_fail(err, HF_UNAVAILABLE, "etcd: too many change %s at the same time; try again",
                    requests[0].name);
    free(t);
    return r;
}

static size_t at_once(const struct hf_request *requests, size_t n)
{
    size_t most = PLAIN_AT_ONCE;
    for (size_t i = 0; i < n && i < PLAIN_AT_ONCE; i++)
        if (requests[i].workflow || requests[i].claim || requests[i].execution_id ||
            requests[i].outcome != HF_OUTCOME_NONE)
            most = EXECUTIONS_AT_ONCE;
    return n < most ? n : most;
}

static int apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    size_t done = 0;
    while (done < n) {
        size_t some = at_once(requests + done, n - done);
        bool too_large = false;
        int r;
        do {
            r = apply_some(s, requests + done, some, answers + done, &too_large, err);
        } while (r < 0 && too_large && some > 1 && (some = some / 2));
        if (r < 0)
            return r == -HF_UNAVAILABLE && done ? -HF_UNKNOWN : r; /* some of it is done */
        done += some;
    }
    hf_etcd_prune_events(s);
    return 0;
}

/* ---- open, init, close ---------------------------------------------------------------------- */

struct meta {
    bool bump;
    int64_t format;
};

static int write_meta(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    struct meta *meta = arg;
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    hf_etcd_key(t->s, key, "meta");
    const char *const keys[] = {key};
    int r = hf_etcd_fetch(t, keys, 1, err);
    if (r < 0 || (r = hf_etcd_get(t, key, true, &kv, err)) < 0)
        return r;
    json_t *object = kv ? hf_etcd_parse(kv) : NULL;
    json_int_t epoch = json_integer_value(json_object_get(object, "epoch"));
    epoch += meta->bump ? EPOCH_STEP : 0;
    meta->format = kv ? json_integer_value(json_object_get(object, "format")) : FORMAT;
    json_decref(object);
    if (meta->format != FORMAT)
        return 0;
    if (kv && !meta->bump) {
        hf_etcd_cache_keep(t->s->cache, kv);
        return 0;
    }
    return hf_etcd_put_json(
        t, key, json_pack("{s:I,s:I}", "format", (json_int_t)FORMAT, "epoch", epoch), 0, err);
}

static int make_ready(struct hf_etcd *s, bool bump, struct hf_error *err)
{
    struct meta meta = {.bump = bump};
    int r = hf_etcd_change(s, write_meta, &meta, err);
    if (r >= 0 && meta.format != FORMAT)
        r = hf_fail(err, HF_UNAVAILABLE,
                    "this store was made by a newer holdfast (format %lld; this one knows %d)",
                    (long long)meta.format, FORMAT);
    return r;
}

static void close_store(struct hf_store *store)
{
    struct hf_etcd *s = hf_etcd_of(store);
    hf_etcd_wakes_close(s);
    while (s->n_idle)
        s->curl->easy_cleanup(s->idle[--s->n_idle]);
    hf_etcd_cache_free(s->cache);
    hf_etcd_leases_free(s->leases);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static int open_store(const struct hf_url *url, struct hf_store **ret, struct hf_error *err)
{
    struct hf_etcd *s = calloc(1, sizeof *s);
    if (!s)
        return hf_fail(err, HF_NOMEM, "out of memory");
    pthread_mutex_init(&s->mutex, NULL);
    s->cache = hf_etcd_cache_new();
    s->leases = hf_etcd_leases_new();
    int r = s->cache && s->leases ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0)
        r = hf_etcd_parse_url(s, url, err);
    if (r >= 0)
        r = hf_curl_load(&s->curl, err);
    if (r >= 0)
        r = make_ready(s, false, err);
    if (r < 0) {
        close_store(&s->base);
        return r;
    }
    *ret = &s->base;
    return 0;
}

static int init(struct hf_store *store, bool bump_epoch, struct hf_error *err)
{
    return bump_epoch ? make_ready(hf_etcd_of(store), true, err) : 0;
}

/* Before these, a leader that was stalled may end leases that are alive (etcd#15247). */
static bool is_sound(int major, int minor, int patch)
{
    if (major != 3)
        return major > 3;
    return minor > 5 || (minor == 5 && patch >= 28) || (minor == 4 && patch >= 42);
}

static const char *caution(struct hf_store *store)
{
    struct hf_etcd *s = hf_etcd_of(store);
    json_t *answer = NULL;
    int major, minor, patch;
    if (!s->has_version && hf_etcd_get_path(s, "/version", &answer, NULL) >= 0) {
        const char *version = json_string_value(json_object_get(answer, "etcdserver"));
        if (version && sscanf(version, "%d.%d.%d", &major, &minor, &patch) == 3 &&
            !is_sound(major, minor, patch))
            snprintf(
                s->caution, sizeof s->caution,
                "etcd %.20s may end live leases after its leader was stalled (fences still hold); "
                "3.4.42 and 3.5.28 do not",
                version);
        s->has_version = version;
        json_decref(answer);
    }
    return s->caution[0] ? s->caution : NULL;
}

const struct hf_store_ops hf_etcd_store = {
    .scheme = "etcd",
    .form = "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]",
    .open = open_store,
    .close = close_store,
    .apply = apply,
    .list = hf_etcd_list,
    .events = hf_etcd_events,
    .totals = hf_etcd_totals,
    .execution = hf_etcd_execution,
    .execution_data = hf_etcd_execution_data,
    .executions = hf_etcd_executions,
    .due = hf_etcd_due,
    .last_key = hf_etcd_last_key,
    .retain = hf_etcd_retain,
    .prune = hf_etcd_prune,
    .idle = hf_etcd_idle,
    .runners = hf_etcd_runners,
    .init = init,
    .caution = caution,
    .watch = hf_etcd_watch,
    .unwatch = hf_etcd_unwatch,
    .share = hf_etcd_share,
    .unshare = hf_etcd_unshare,
    .ahead = hf_etcd_ahead,
    .token_add = hf_etcd_token_add,
    .token_remove = hf_etcd_token_remove,
    .token_list = hf_etcd_token_list,
};
