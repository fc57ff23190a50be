#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "dynamodb_store.h"
#include "error.h"
#include "forked.h"

enum { CONFLICTS_MS = 30000, PAUSE_MIN_MS = 2 };

/* ---- for record.c --------------------------------------------------------------------------- */

static int begin(struct hf_store *store, const char *const *names, size_t n, bool durable,
                 struct hf_error *err)
{
    (void)store;
    (void)names;
    (void)n;
    (void)durable;
    (void)err;
    return 0;
}

static int commit(struct hf_store *store, struct hf_error *err)
{
    return hf_ddb_turn_commit(hf_ddb_turn_of(store), err);
}

static void rollback(struct hf_store *store) { (void)store; }

static int64_t now_ms(struct hf_store *store) { return hf_ddb_turn_of(store)->now_ms; }

static int64_t unsure_ms(struct hf_store *store) { return hf_ddb_turn_of(store)->unsure_ms; }

static int64_t wall_ms(struct hf_store *store) { return hf_ddb_turn_of(store)->wall_ms; }

/* Nobody can be told: who waits asks again. */
static void wake(struct hf_store *store, const char *name, const struct hf_lock_id *id)
{
    (void)store;
    (void)name;
    (void)id;
}

static void wake_idle(struct hf_store *store, struct hf_ready *ready, size_t n)
{
    (void)store;
    (void)ready;
    (void)n;
}

const struct hf_record_ops hf_ddb_record_ops = {
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
    .load = hf_ddb_load,
    .save = hf_ddb_save,
    .next_fence = hf_ddb_next_fence,
    .find = hf_ddb_find,
    .count = hf_ddb_count_turns,
    .unpark = hf_ddb_unpark,
    .now_ms = now_ms,
    .unsure_ms = unsure_ms,
    .wall_ms = wall_ms,
    .wake = wake,
    .wake_idle = wake_idle,
};

/* ---- requests ------------------------------------------------------------------------------- */

/* Full jitter, longer with every time. */
static void pause_after(int conflicts)
{
    uint32_t random;
    int64_t longest = PAUSE_MIN_MS << (conflicts < 8 ? conflicts : 8);
    hf_random(&random, sizeof random);
    struct timespec t = {.tv_nsec = (long)(random % (uint64_t)(longest * 1000000))};
    nanosleep(&t, NULL);
}

static int apply_once(struct hf_ddb *s, const struct hf_request *req, struct hf_answer *answer,
                      const json_t *known, struct hf_error *err)
{
    struct hf_ddb_turn t;
    char pk[HF_DDB_KEY_MAX];
    int r = hf_ddb_turn_begin(&t, s, req->name, err);
    if (r < 0)
        return r;
    hf_ddb_lock_pk(req->name, pk);
    hf_ddb_turn_know(&t, pk, "LOCK", known);
    r = hf_ddb_turn_follow(&t, err);
    if (r >= 0)
        r = hf_record_apply(&t.base, &hf_ddb_record_ops, req, 1, answer, err);
    hf_ddb_turn_end(&t);
    return r;
}

static int apply_one(struct hf_ddb *s, const struct hf_request *req, struct hf_answer *answer,
                     struct hf_error *err)
{
    json_t *known;
    int r = hf_ddb_try_quick(s, req, answer, &known, err);
    if (r != 0)
        return r < 0 ? r : 0;
    int64_t until_ms = hf_clock_boot_ms() + CONFLICTS_MS;
    r = apply_once(s, req, answer, known, err);
    json_decref(known);
    for (int i = 0; r == HF_DDB_CONFLICT && hf_clock_boot_ms() < until_ms; i++) {
        pause_after(i);
        r = apply_once(s, req, answer, NULL, err);
    }
    return r != HF_DDB_CONFLICT
               ? r
               : hf_fail(err, HF_UNAVAILABLE,
                         "too many others change %s at the same time; try again later", req->name);
}

/* Each is a transaction of its own. Where one fails behind others that were done, that is unknown. */
static int apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    int r = hf_ddb_make_ready(s, err);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        r = apply_one(s, &requests[i], &answers[i], err);
        if (r < 0 && r != -HF_UNKNOWN && i > 0 && err)
            err->code = -HF_UNKNOWN;
        if (r < 0 && i > 0)
            r = -HF_UNKNOWN;
    }
    return r;
}

/* ---- open and close ------------------------------------------------------------------------- */

static void close_store(struct hf_store *store)
{
    struct hf_ddb *s = hf_ddb_of(store);
    hf_dynamo_close(s->d);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static int open_store(const struct hf_url *url, struct hf_store **ret, struct hf_error *err)
{
    static const char *const known[] = {"endpoint", NULL};
    int r = hf_url_check_params(url, known, err);
    if (r < 0)
        return r;
    struct hf_ddb *s = calloc(1, sizeof *s);
    if (!s)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if ((r = hf_dynamo_open(url, &s->d, err)) < 0) {
        free(s);
        return r;
    }
    pthread_mutex_init(&s->mutex, NULL);
    *ret = &s->base;
    return 0;
}

const struct hf_store_ops hf_dynamodb_store = {
    .scheme = "dynamodb",
    .form = "dynamodb://REGION/TABLE",
    .open = open_store,
    .close = close_store,
    .apply = apply,
    .list = hf_ddb_list,
    .events = hf_ddb_events,
    .totals = hf_ddb_totals,
    .execution = hf_ddb_execution,
    .execution_data = hf_ddb_execution_data,
    .executions = hf_ddb_executions,
    .due = hf_ddb_due,
    .last_key = hf_ddb_last_key,
    .retain = hf_ddb_retain,
    .prune = hf_ddb_prune,
    .init = hf_ddb_init,
    .token_add = hf_ddb_token_add,
    .token_remove = hf_ddb_token_remove,
    .token_list = hf_ddb_token_list,
};
