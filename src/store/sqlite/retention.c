#include "error.h"
#include "sqlite_store.h"

/* ---- the last key --------------------------------------------------------------------------- */

static int read_last_key(struct hf_sqlite *s, const char *workflow, const char *from,
                         const char *to, char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION_LAST_KEY, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, workflow, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, from, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 3, to, -1, SQLITE_STATIC);
    int r = hf_sqlite_row(s, stmt, err);
    if (r > 0) {
        hf_sqlite_take_text(&(struct hf_sqlite_cursor){stmt, 0}, ret, HF_KEY_MAX + 1);
        sqlite3_reset(stmt);
    }
    return r;
}

int hf_sqlite_last_key(struct hf_store *store, const char *workflow, const char *from,
                       const char *to, char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    int r = read_last_key(s, workflow, from, to, ret, err);
    pthread_mutex_unlock(&s->mutex);
    return r != 0 ? (r < 0 ? r : 0)
                  : hf_fail(err, HF_NOT_FOUND, "%s has no key from %s to %s", workflow, from, to);
}
