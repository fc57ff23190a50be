/* The service's tokens. Their table is made when the first one is: most stores never have any. */
#include <string.h>

#include "error.h"
#include "sqlite_store.h"

static const char make_table[] =
    "CREATE TABLE IF NOT EXISTS api_token (id TEXT PRIMARY KEY, hash BLOB NOT NULL, note TEXT,"
    " verbs TEXT NOT NULL, prefix TEXT, created_at INTEGER, expires_at INTEGER) WITHOUT ROWID";

/* Rarely used: prepared each time. NULL with `err` filled. */
static sqlite3_stmt *prepare(struct hf_sqlite *s, const char *sql, struct hf_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &stmt, NULL);
    if (rc != SQLITE_OK)
        hf_sqlite_fail(s, rc, err);
    return stmt;
}

static int insert(struct hf_sqlite *s, const struct hf_api_token *t, struct hf_error *err)
{
    sqlite3_stmt *stmt = prepare(s, "INSERT INTO api_token VALUES (?1,?2,?3,?4,?5,?6,?7)", err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, t->id, -1, SQLITE_STATIC);
    sqlite3_bind_blob(stmt, 2, t->hash, sizeof t->hash, SQLITE_STATIC);
    struct hf_sqlite_cursor to = {stmt, 3};
    hf_sqlite_put_text(&to, t->note);
    hf_sqlite_put_text(&to, t->verbs);
    hf_sqlite_put_text(&to, t->prefix);
    hf_sqlite_put_int(&to, t->created_at_ms);
    hf_sqlite_put_int(&to, t->expires_at_ms);
    int r = hf_sqlite_run(s, stmt, err);
    sqlite3_finalize(stmt);
    return r;
}

static int delete (struct hf_sqlite *s, const char *id, struct hf_error *err)
{
    sqlite3_stmt *stmt = prepare(s, "DELETE FROM api_token WHERE id = ?1", err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, id, -1, SQLITE_STATIC);
    int r = hf_sqlite_run(s, stmt, err);
    sqlite3_finalize(stmt);
    if (r >= 0 && sqlite3_changes(s->db) == 0)
        r = hf_fail(err, HF_NOT_FOUND, "there is no token %.40s; see holdfast token list", id);
    return r;
}

/* One change of the table in a transaction of its own: add `token`, or remove `id`. */
static int change(struct hf_sqlite *s, const struct hf_api_token *token, const char *id,
                  struct hf_error *err)
{
    int r = hf_sqlite_begin(s, true, err);
    if (r < 0)
        return r;
    if ((r = hf_sqlite_exec(s, make_table, err)) >= 0)
        r = token ? insert(s, token, err) : delete (s, id, err);
    if (r >= 0)
        return hf_sqlite_commit(s, err);
    hf_sqlite_rollback(s);
    return r;
}

int hf_sqlite_token_add(struct hf_store *store, const struct hf_api_token *token,
                        struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    int r = change(s, token, NULL, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

int hf_sqlite_token_remove(struct hf_store *store, const char *id, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    int r = change(s, NULL, id, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

static void take_token(sqlite3_stmt *stmt, struct hf_api_token *ret)
{
    struct hf_sqlite_cursor from = {stmt, 0};
    hf_sqlite_take_text(&from, ret->id, sizeof ret->id);
    const void *hash = sqlite3_column_blob(stmt, from.at++);
    memset(ret->hash, 0, sizeof ret->hash);
    if (hash && sqlite3_column_bytes(stmt, from.at - 1) == (int)sizeof ret->hash)
        memcpy(ret->hash, hash, sizeof ret->hash);
    hf_sqlite_take_text(&from, ret->note, sizeof ret->note);
    hf_sqlite_take_text(&from, ret->verbs, sizeof ret->verbs);
    hf_sqlite_take_text(&from, ret->prefix, sizeof ret->prefix);
    ret->created_at_ms = hf_sqlite_take_int(&from);
    ret->expires_at_ms = hf_sqlite_take_int(&from);
}

/* There are few: the callback runs under the mutex, and must not use this handle. */
int hf_sqlite_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg,
                         struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct hf_api_token token;
    pthread_mutex_lock(&s->mutex);
    sqlite3_stmt *stmt = NULL;
    int r = 0, stop = 0;
    sqlite3_prepare_v2(s->db, "SELECT * FROM api_token ORDER BY created_at, id", -1, &stmt, NULL);
    while (stmt && !stop && (r = hf_sqlite_row(s, stmt, err)) > 0) { /* no table: none yet */
        take_token(stmt, &token);
        stop = fn(arg, &token);
    }
    sqlite3_finalize(stmt);
    pthread_mutex_unlock(&s->mutex);
    return r < 0 ? r : 0;
}
