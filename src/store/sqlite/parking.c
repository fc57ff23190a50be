/*
 * What is parked at a lock is made ready when that is free: the first of each kind, so that nobody
 * waits behind one that no worker takes. From kind to kind by the index, however many each has.
 */
#include "sqlite_store.h"

struct kind {
    char workflow[HF_NAME_MAX + 1];
    int64_t concurrency, to_verify;
};

/* 1: `at` is the next kind that is parked at the lock, 0: there is none. */
static int next_kind(struct hf_sqlite *s, const char *lock, struct kind *at, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_PARKED_KIND, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, lock, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, at->workflow, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(stmt, 3, at->concurrency);
    sqlite3_bind_int64(stmt, 4, at->to_verify + 1); /* SQLite would walk through those before it */
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    struct hf_sqlite_cursor from = {stmt, 0};
    hf_sqlite_take_text(&from, at->workflow, sizeof at->workflow);
    at->concurrency = hf_sqlite_take_int(&from);
    at->to_verify = hf_sqlite_take_int(&from);
    sqlite3_reset(stmt);
    return 1;
}

static int unpark_first(struct hf_sqlite *s, const char *lock, const struct kind *k,
                        struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_UNPARK, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, lock);
    hf_sqlite_put_text(&to, k->workflow);
    hf_sqlite_put_int(&to, k->concurrency);
    hf_sqlite_put_int(&to, k->to_verify);
    return hf_sqlite_run(s, stmt, err);
}

int hf_sqlite_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                     struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct kind at = {.concurrency = -1};
    int r;
    while ((r = next_kind(s, name, &at, err)) > 0) {
        if ((r = unpark_first(s, name, &at, err)) < 0)
            return r;
        made(arg, at.workflow);
    }
    return r;
}
