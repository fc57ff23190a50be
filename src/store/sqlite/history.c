#include <string.h>

#include "clock.h"
#include "error.h"
#include "sqlite_store.h"

/* Nothing grows for ever: a little of what is old goes with the ordinary writes. */
enum {
    PRUNE_EVERY = 256, /* events */
    PRUNE_BATCH = 2 * PRUNE_EVERY,
    EVENTS_MAX = 1000000
};
static const int64_t day_ms = INT64_C(24) * 3600 * 1000;
static const int64_t event_days = 30;

/* ---- pruning -------------------------------------------------------------------------------- */

static int read_count(struct hf_sqlite *s, int64_t *ret, struct hf_error *err)
{
    sqlite3_stmt *meta = hf_sqlite_stmt(s, HF_STMT_META, err);
    sqlite3_stmt *count = hf_sqlite_stmt(s, HF_STMT_EVENT_COUNT, err);
    int r = meta && count ? hf_sqlite_row(s, meta, err) : -HF_UNAVAILABLE;
    if (r <= 0)
        return r;
    sqlite3_bind_int64(count, 1, sqlite3_column_int64(meta, 2));
    *ret = sqlite3_column_int64(meta, 3);
    sqlite3_reset(meta);
    if ((r = hf_sqlite_row(s, count, err)) > 0)
        *ret += sqlite3_column_int64(count, 0);
    sqlite3_reset(count);
    return r < 0 ? r : 0;
}

static int delete_events(struct hf_sqlite *s, int64_t limit, int64_t before_ms,
                         struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EVENT_PRUNE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, limit);
    sqlite3_bind_int64(stmt, 2, before_ms);
    sqlite3_bind_int64(stmt, 3, s->last_seq); /* the numbering goes on from the newest */
    int r = hf_sqlite_run(s, stmt, err);
    return r < 0 ? r : sqlite3_changes(s->db);
}

/* Is the oldest event older than that? */
static bool has_older(struct hf_sqlite *s, int64_t before_ms)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EVENT_OLDEST, NULL);
    if (!stmt || hf_sqlite_row(s, stmt, NULL) <= 0)
        return false;
    bool older = sqlite3_column_int64(stmt, 0) < before_ms;
    sqlite3_reset(stmt);
    return older;
}

static int prune_events(struct hf_sqlite *s, int64_t wall_ms, struct hf_error *err)
{
    int64_t count = 0, before_ms = wall_ms - event_days * day_ms;
    sqlite3_stmt *note = hf_sqlite_stmt(s, HF_STMT_SET_COUNTED, err);
    int r = note ? read_count(s, &count, err) : -HF_UNAVAILABLE;
    if (r < 0)
        return r;
    int64_t over = count - EVENTS_MAX;
    if (over > 0)
        r = delete_events(s, over < PRUNE_BATCH ? over : PRUNE_BATCH, INT64_MAX, err);
    else if (has_older(s, before_ms))
        r = delete_events(s, PRUNE_BATCH, before_ms, err);
    if (r < 0)
        return r;
    sqlite3_bind_int64(note, 1, s->last_seq);
    sqlite3_bind_int64(note, 2, count - r);
    return hf_sqlite_run(s, note, err);
}

static int prune(struct hf_sqlite *s, int64_t wall_ms, struct hf_error *err)
{
    int r = prune_events(s, wall_ms, err);
    return r < 0 ? r : hf_sqlite_prune_some(s, wall_ms, PRUNE_BATCH, err);
}

/* ---- events --------------------------------------------------------------------------------- */

static int add_event(struct hf_sqlite *s, const struct hf_event *e, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EVENT_INSERT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_int(&to, e->at_ms);
    hf_sqlite_put_text(&to, hf_event_kind_name(e->kind));
    hf_sqlite_put_text(&to, e->name);
    hf_sqlite_put_int(&to, e->fence);
    hf_sqlite_put_text(&to, e->owner);
    hf_sqlite_put_text(&to, e->execution_id);
    hf_sqlite_put_text(&to, e->reason);
    hf_sqlite_put_text(&to, e->detail);
    hf_sqlite_put_int(&to, s->row.last_event);
    int r = hf_sqlite_run(s, stmt, err);
    if (r < 0)
        return r;
    s->row.last_event = s->last_seq = sqlite3_last_insert_rowid(s->db);
    s->seq_known = true;
    return 0;
}

int hf_sqlite_add_events(struct hf_sqlite *s, const struct hf_effects *fx, struct hf_error *err)
{
    for (uint32_t i = 0; i < fx->n_events; i++) {
        int r = add_event(s, &fx->events[i], err);
        /* Each number is written by one process only, so short-lived ones prune as well. */
        if (r >= 0 && s->last_seq % PRUNE_EVERY == 0)
            r = prune(s, fx->events[i].at_ms, err);
        if (r < 0)
            return r;
    }
    return 0;
}
