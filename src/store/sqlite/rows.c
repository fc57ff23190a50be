#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "host.h"
#include "local.h"
#include "sqlite_store.h"

/* ---- values --------------------------------------------------------------------------------- */

void hf_sqlite_put_int(struct hf_sqlite_cursor *to, int64_t value)
{
    sqlite3_bind_int64(to->stmt, to->at++, value);
}

/* NULL where the number means nothing. */
void hf_sqlite_put_int_if(struct hf_sqlite_cursor *to, bool condition, int64_t value)
{
    if (condition)
        sqlite3_bind_int64(to->stmt, to->at++, value);
    else
        sqlite3_bind_null(to->stmt, to->at++);
}

void hf_sqlite_put_text(struct hf_sqlite_cursor *to, const char *text)
{
    if (text && *text)
        sqlite3_bind_text(to->stmt, to->at++, text, -1, SQLITE_STATIC);
    else
        sqlite3_bind_null(to->stmt, to->at++);
}

static void put_id(struct hf_sqlite_cursor *to, const struct hf_lock_id *id)
{
    sqlite3_bind_blob(to->stmt, to->at++, id->bytes, sizeof id->bytes, SQLITE_STATIC);
}

int64_t hf_sqlite_take_int(struct hf_sqlite_cursor *from)
{
    return sqlite3_column_int64(from->stmt, from->at++);
}

void hf_sqlite_take_text(struct hf_sqlite_cursor *from, char *ret, size_t size)
{
    const void *text = sqlite3_column_text(from->stmt, from->at);
    size_t n = (size_t)sqlite3_column_bytes(from->stmt, from->at++);
    if (n >= size)
        n = size - 1;
    if (text)
        memcpy(ret, text, n);
    ret[text ? n : 0] = '\0';
}

/* True: there is an id of the right size. */
static bool take_id(struct hf_sqlite_cursor *from, struct hf_lock_id *ret)
{
    const void *bytes = sqlite3_column_blob(from->stmt, from->at);
    int n = sqlite3_column_bytes(from->stmt, from->at++);
    if (!bytes || n != (int)sizeof ret->bytes)
        return false;
    memcpy(ret->bytes, bytes, sizeof ret->bytes);
    return true;
}

/* ---- processes, tokens that ended, takeovers ------------------------------------------------ */

static void put_bound(struct hf_sqlite_cursor *to, const struct hf_processes *bound)
{
    for (uint32_t i = 0; i < HF_BOUND_MAX; i++) {
        hf_sqlite_put_int_if(to, i < bound->n, bound->of[i].pid);
        hf_sqlite_put_int_if(to, i < bound->n, bound->of[i].start_ticks);
    }
    hf_sqlite_put_int_if(to, bound->n, (int64_t)bound->pid_namespace);
}

static void take_bound(struct hf_sqlite_cursor *from, struct hf_processes *ret)
{
    for (uint32_t i = 0; i < HF_BOUND_MAX; i++) {
        ret->of[i].pid = (int32_t)hf_sqlite_take_int(from);
        ret->of[i].start_ticks = hf_sqlite_take_int(from);
        if (ret->of[i].pid && ret->n == i)
            ret->n++;
    }
    ret->pid_namespace = (uint64_t)hf_sqlite_take_int(from);
    memcpy(ret->boot, hf_boot_id(), HF_UUID_LEN + 1);
}

/* One byte of how and the id, for each, newest first. */
enum { ENDED_SIZE = 1 + HF_LOCK_ID_LEN / 2 };

static void put_ended(struct hf_sqlite_cursor *to, const struct hf_record *rec, uint8_t *bytes)
{
    for (uint32_t i = 0; i < rec->n_ended; i++) {
        bytes[i * ENDED_SIZE] = rec->ended[i].how;
        memcpy(&bytes[i * ENDED_SIZE + 1], rec->ended[i].id.bytes, ENDED_SIZE - 1);
    }
    sqlite3_bind_blob(to->stmt, to->at++, bytes, (int)(rec->n_ended * ENDED_SIZE), SQLITE_STATIC);
}

static void take_ended(struct hf_sqlite_cursor *from, struct hf_record *ret)
{
    const uint8_t *bytes = sqlite3_column_blob(from->stmt, from->at);
    int n = sqlite3_column_bytes(from->stmt, from->at++) / ENDED_SIZE;
    for (int i = 0; bytes && i < n && i < HF_ENDED_MAX; i++) {
        ret->ended[i].how = bytes[i * ENDED_SIZE];
        memcpy(ret->ended[i].id.bytes, &bytes[i * ENDED_SIZE + 1], ENDED_SIZE - 1);
        ret->n_ended++;
    }
}

static void put_lost_fences(struct hf_sqlite_cursor *to, const struct hf_record *rec,
                            char text[HF_LOST_TEXT_MAX])
{
    hf_lost_fences_format(rec, text);
    hf_sqlite_put_text(to, text);
}

static void take_lost_fences(struct hf_sqlite_cursor *from, struct hf_record *ret)
{
    char text[HF_LOST_TEXT_MAX];
    hf_sqlite_take_text(from, text, sizeof text);
    hf_lost_fences_parse(text, ret);
}

enum { TAKEOVER_TEXT_MAX = HF_OWNER_MAX + HF_LOCK_ID_LEN + 120 };

/* "REASON LOCK_ID FENCE ACQUIRED_AT HELD_FOR TTL OWNER"; empty: nothing was taken over. */
static void format_takeover(const struct hf_takeover *took, char ret[TAKEOVER_TEXT_MAX])
{
    ret[0] = '\0';
    if (took->reason != HF_STALE_NOT)
        snprintf(ret, TAKEOVER_TEXT_MAX, "%s %s %lld %lld %lld %lld %s",
                 hf_stale_reason_name(took->reason), took->lock_id, (long long)took->fence,
                 (long long)took->acquired_at_ms, (long long)took->held_for_ms,
                 (long long)took->ttl_ms, took->owner);
}

static void parse_takeover(const char *text, struct hf_takeover *ret)
{
    char reason[20], lock_id[HF_LOCK_ID_LEN + 1];
    long long fence, acquired_at_ms, held_for_ms, ttl_ms;
    int owner_at = 0;
    if (sscanf(text, "%19s %32s %lld %lld %lld %lld %n", reason, lock_id, &fence, &acquired_at_ms,
               &held_for_ms, &ttl_ms, &owner_at) != 6)
        return;
    for (int i = HF_STALE_EXPIRED; i <= HF_STALE_ENDED; i++)
        if (strcmp(reason, hf_stale_reason_name((enum hf_stale_reason)i)) == 0)
            ret->reason = (enum hf_stale_reason)i;
    memcpy(ret->lock_id, lock_id, sizeof lock_id);
    ret->fence = fence;
    ret->acquired_at_ms = acquired_at_ms;
    ret->held_for_ms = held_for_ms;
    ret->ttl_ms = ttl_ms;
    snprintf(ret->owner, sizeof ret->owner, "%s", text + owner_at);
}

/* ---- the lock's row ------------------------------------------------------------------------- */

static void put_counts(struct hf_sqlite_cursor *to, const struct hf_counts *c)
{
    const int64_t counts[] = {c->granted,        c->held,          c->released,
                              c->release_lost,   c->taken_expired, c->taken_died,
                              c->taken_rebooted, c->forced,        c->lost};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        hf_sqlite_put_int(to, counts[i]);
}

static void take_counts(struct hf_sqlite_cursor *from, struct hf_counts *c)
{
    int64_t *const counts[] = {&c->granted,        &c->held,          &c->released,
                               &c->release_lost,   &c->taken_expired, &c->taken_died,
                               &c->taken_rebooted, &c->forced,        &c->lost};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        *counts[i] = hf_sqlite_take_int(from);
}

static int64_t boot_number(const struct hf_sqlite *s, const char *id)
{
    if (!*id)
        return 0;
    return strcmp(id, hf_boot_id()) == 0 ? s->boot : s->row.boot;
}

/* "unknown": of one that was forgotten, as so many came after it. */
static void find_boot_id(struct hf_sqlite *s, int64_t number, char ret[HF_UUID_LEN + 1])
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_BOOT_ID, NULL);
    strcpy(ret, "unknown");
    if (!stmt)
        return;
    sqlite3_bind_int64(stmt, 1, number);
    if (hf_sqlite_row(s, stmt, NULL) <= 0)
        return;
    hf_sqlite_take_text(&(struct hf_sqlite_cursor){stmt, 0}, ret, HF_UUID_LEN + 1);
    sqlite3_reset(stmt);
}

static void put_grant(struct hf_sqlite_cursor *to, const struct hf_sqlite *s,
                      const struct hf_grant *g, const char *took)
{
    put_id(to, &g->id);
    hf_sqlite_put_int_if(to, g->offered, 1);
    hf_sqlite_put_text(to, g->owner);
    hf_sqlite_put_text(to, g->note);
    hf_sqlite_put_int(to, g->acquired_at_ms);
    hf_sqlite_put_int(to, g->acquired_ms);
    hf_sqlite_put_int(to, g->expires_ms);
    hf_sqlite_put_int(to, g->ttl_ms);
    hf_sqlite_put_int(to, g->told_ms);
    hf_sqlite_put_int(to, boot_number(s, g->bound.boot));
    put_bound(to, &g->bound);
    hf_sqlite_put_text(to, g->execution_id);
    hf_sqlite_put_text(to, took);
}

static void take_grant(struct hf_sqlite *s, struct hf_sqlite_cursor *from,
                       struct hf_sqlite_row *row, struct hf_grant *ret)
{
    ret->held = take_id(from, &ret->id);
    ret->offered = hf_sqlite_take_int(from);
    hf_sqlite_take_text(from, ret->owner, sizeof ret->owner);
    hf_sqlite_take_text(from, ret->note, sizeof ret->note);
    ret->acquired_at_ms = hf_sqlite_take_int(from);
    ret->acquired_ms = hf_sqlite_take_int(from);
    ret->expires_ms = hf_sqlite_take_int(from);
    ret->ttl_ms = hf_sqlite_take_int(from);
    ret->told_ms = hf_sqlite_take_int(from);
    row->boot = hf_sqlite_take_int(from);
    take_bound(from, &ret->bound);
    if (!row->boot)
        ret->bound.boot[0] = '\0';
    else if (row->boot != s->boot)
        find_boot_id(s, row->boot, ret->bound.boot);
    hf_sqlite_take_text(from, ret->execution_id, sizeof ret->execution_id);
    char took[TAKEOVER_TEXT_MAX];
    hf_sqlite_take_text(from, took, sizeof took);
    if (took[0])
        parse_takeover(took, &ret->took);
}

static void take_row(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_record *rec,
                     struct hf_sqlite_row *row)
{
    struct hf_sqlite_cursor from = {stmt, 0};
    hf_sqlite_take_text(&from, rec->name, sizeof rec->name);
    bool held = hf_sqlite_take_int(&from);
    /* The step keeps it when a lease ends, so that one column is enough for both. */
    rec->grant.fence = rec->last_fence = hf_sqlite_take_int(&from);
    take_ended(&from, rec);
    take_lost_fences(&from, rec);
    rec->denied_ms = hf_sqlite_take_int(&from);
    rec->n_denied = (uint32_t)hf_sqlite_take_int(&from);
    rec->n_waiters = row->n_waiters = (uint32_t)hf_sqlite_take_int(&from);
    row->tickets = hf_sqlite_take_int(&from);
    row->last_event = hf_sqlite_take_int(&from);
    take_counts(&from, &rec->counts);
    rec->parked = hf_sqlite_take_int(&from);
    if (held)
        take_grant(s, &from, row, &rec->grant);
    hf_local_rebase(rec, s->first_open_ms);
}

void hf_sqlite_take_record(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_record *ret)
{
    struct hf_sqlite_row ignored;
    take_row(s, stmt, ret, &ignored);
    ret->grant.ended = ret->grant.held && sqlite3_column_int(stmt, sqlite3_column_count(stmt) - 1);
}

/*
 * A lock that is given back keeps the last holder's columns: a row that does not change its size is
 * overwritten in place and never splits its page.
 */
static int save_lock(struct hf_sqlite *s, const struct hf_record *rec, struct hf_error *err)
{
    struct hf_sqlite_row *row = &s->row;
    bool whole = !row->exists || rec->grant.held;
    sqlite3_stmt *stmt = hf_sqlite_stmt(s,
                                        !row->exists ? HF_STMT_LOCK_INSERT
                                        : whole      ? HF_STMT_LOCK_UPDATE
                                                     : HF_STMT_LOCK_FREE,
                                        err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    uint8_t ended[HF_ENDED_MAX * ENDED_SIZE];
    char lost[HF_LOST_TEXT_MAX], took[TAKEOVER_TEXT_MAX];
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_int(&to, row->id);
    hf_sqlite_put_int(&to, rec->grant.held);
    hf_sqlite_put_int(&to, rec->last_fence);
    put_ended(&to, rec, ended);
    put_lost_fences(&to, rec, lost);
    hf_sqlite_put_int(&to, rec->denied_ms);
    hf_sqlite_put_int(&to, rec->n_denied);
    hf_sqlite_put_int(&to, rec->n_waiters);
    hf_sqlite_put_int(&to, row->tickets);
    hf_sqlite_put_int(&to, row->last_event);
    put_counts(&to, &rec->counts);
    hf_sqlite_put_int(&to, rec->parked);
    if (whole) {
        format_takeover(&rec->grant.took, took);
        put_grant(&to, s, &rec->grant, took);
    }
    if (!row->exists)
        hf_sqlite_put_text(&to, rec->name);
    int r = hf_sqlite_run(s, stmt, err);
    row->exists |= r >= 0;
    row->n_waiters = rec->n_waiters;
    return r;
}

/* ---- waiters -------------------------------------------------------------------------------- */

static void take_waiter(sqlite3_stmt *stmt, struct hf_waiter *ret)
{
    struct hf_sqlite_cursor from = {stmt, 0};
    *ret = (struct hf_waiter){0};
    take_id(&from, &ret->id);
    ret->priority = (int32_t)-hf_sqlite_take_int(&from);
    ret->ticket = hf_sqlite_take_int(&from);
    ret->ttl_ms = hf_sqlite_take_int(&from);
    ret->until_ms = hf_sqlite_take_int(&from);
    ret->seen_ms = hf_sqlite_take_int(&from);
    ret->queued_ms = hf_sqlite_take_int(&from);
    hf_sqlite_take_text(&from, ret->owner, sizeof ret->owner);
    hf_sqlite_take_text(&from, ret->note, sizeof ret->note);
    take_bound(&from, &ret->bound);
}

static int load_self(struct hf_sqlite *s, const struct hf_lock_id *self, struct hf_record *rec,
                     struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_SELF, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_int(&to, s->row.id);
    put_id(&to, self);
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    take_waiter(stmt, &rec->self);
    rec->has_self = true;
    sqlite3_reset(stmt);
    return 0;
}

static int load_head(struct hf_sqlite *s, struct hf_record *rec, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_HEAD, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_int(&to, s->row.id);
    hf_sqlite_put_int(&to, HF_WINDOW);
    int r;
    while ((r = hf_sqlite_row(s, stmt, err)) > 0 && rec->n_head < HF_WINDOW)
        take_waiter(stmt, &rec->head[rec->n_head++]);
    sqlite3_reset(stmt);
    /* Whoever edits rows by hand must not make us look for waiters that are not there. */
    if (r >= 0 && rec->n_head < HF_WINDOW)
        rec->n_waiters = rec->n_head;
    return r < 0 ? r : 0;
}

/* until_ms is kept as it is: INT64_MAX is never. */
static int put_self(struct hf_sqlite *s, const struct hf_waiter *w, struct hf_error *err)
{
    sqlite3_stmt *stmt =
        hf_sqlite_stmt(s, w->ticket ? HF_STMT_WAITER_SEEN : HF_STMT_WAITER_INSERT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_int(&to, s->row.id);
    put_id(&to, &w->id);
    if (w->ticket) {
        hf_sqlite_put_int(&to, w->seen_ms);
        hf_sqlite_put_int(&to, w->until_ms);
        return hf_sqlite_run(s, stmt, err);
    }
    hf_sqlite_put_int(&to, -(int64_t)w->priority);
    hf_sqlite_put_int(&to, s->row.tickets);
    hf_sqlite_put_int(&to, w->ttl_ms);
    hf_sqlite_put_int(&to, w->until_ms);
    hf_sqlite_put_int(&to, w->seen_ms);
    hf_sqlite_put_int(&to, w->queued_ms);
    hf_sqlite_put_text(&to, w->owner);
    hf_sqlite_put_text(&to, w->note);
    put_bound(&to, &w->bound);
    return hf_sqlite_run(s, stmt, err);
}

static int drop_waiters(struct hf_sqlite *s, const struct hf_effects *fx, struct hf_error *err)
{
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_dropped; i++) {
        sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_WAITER_DELETE, err);
        if (!stmt)
            return -HF_UNAVAILABLE;
        struct hf_sqlite_cursor to = {stmt, 1};
        hf_sqlite_put_int(&to, s->row.id);
        put_id(&to, &fx->dropped[i]);
        r = hf_sqlite_run(s, stmt, err);
    }
    return r;
}

/* ---- load and save -------------------------------------------------------------------------- */

/*
 * Rows are found by a hash of the name: one search instead of two, and pages that are not packed
 * full by names that came in a row. In the unlikely case that a place is taken by another name, the
 * next one is used; rows are never deleted, so the way to it stays.
 */
static int64_t first_place(const char *name)
{
    struct hf_lock_id hash = hf_lock_id_of(name);
    uint64_t place;
    memcpy(&place, hash.bytes, sizeof place);
    return (int64_t)(place >> 1);
}

/* 1: `stmt` stands at the name's row; 0: it has none, s->row.id is where it belongs. */
static int find_row(struct hf_sqlite *s, sqlite3_stmt *stmt, const char *name, struct hf_error *err)
{
    s->row = (struct hf_sqlite_row){.id = first_place(name)};
    for (;; s->row.id = (s->row.id + 1) & INT64_MAX) {
        sqlite3_bind_int64(stmt, 1, s->row.id);
        int r = hf_sqlite_row(s, stmt, err);
        if (r <= 0)
            return r;
        const char *there = (const char *)sqlite3_column_text(stmt, 0);
        if (there && strcmp(there, name) == 0)
            return 1;
        sqlite3_reset(stmt);
    }
}

/* Only a change needs the queue's entries; for looking, their count is in the lock's row. */
int hf_sqlite_load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                   struct hf_record *ret, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_LOCK, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    ret->n_head = ret->n_waiters = 0;
    ret->has_self = false;
    if (s->writing && hf_sqlite_find_known(s, name, ret))
        return 0;
    memset(ret, 0, offsetof(struct hf_record, head)); /* what is behind it is large */
    snprintf(ret->name, sizeof ret->name, "%s", name);
    int r = find_row(s, stmt, name, err);
    if (r <= 0)
        return r;
    s->row.exists = true;
    take_row(s, stmt, ret, &s->row);
    sqlite3_reset(stmt);
    if (ret->grant.execution_id[0] && (r = hf_sqlite_load_execution(s, ret, err)) < 0)
        return r;
    if (!ret->n_waiters || !s->writing)
        return 0;
    if ((r = load_head(s, ret, err)) < 0 || !self)
        return r;
    return load_self(s, self, ret, err);
}

int hf_sqlite_save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                   const struct hf_effects *fx, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    int r = hf_sqlite_add_events(s, fx, err);
    bool queues = fx->put_self && !rec->self.ticket;
    s->row.tickets += queues;
    /* last_event and tickets are in the row, too: an event or a new waiter alone changes it. */
    if (r >= 0 && (fx->changed || fx->n_events || queues || rec->n_waiters != s->row.n_waiters))
        r = save_lock(s, rec, err);
    if (r >= 0)
        r = drop_waiters(s, fx, err);
    if (r >= 0 && fx->put_self)
        r = put_self(s, &rec->self, err);
    if (r >= 0)
        r = hf_sqlite_save_executions(s, ask, fx, err);
    if (r >= 0)
        hf_sqlite_keep_known(s, rec);
    return r;
}

/* ---- who is ahead --------------------------------------------------------------------------- */

static int processes_before(struct hf_sqlite *s, const struct hf_waiter *w,
                            struct hf_processes *ret, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_BEFORE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1}, from = {stmt, 0};
    hf_sqlite_put_int(&to, s->row.id);
    hf_sqlite_put_int(&to, -(int64_t)w->priority);
    hf_sqlite_put_int(&to, w->ticket);
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    *ret = (struct hf_processes){0};
    take_bound(&from, ret);
    sqlite3_reset(stmt);
    return 1;
}

int hf_sqlite_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                    struct hf_processes *ret, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct hf_record rec;
    pthread_mutex_lock(&s->mutex);
    int r = hf_sqlite_load(store, name, NULL, &rec, err);
    if (r >= 0 && rec.n_waiters)
        r = load_self(s, id, &rec, err);
    if (r >= 0)
        r = rec.has_self ? processes_before(s, &rec.self, ret, err) : 0;
    if (r == 0)
        *ret = rec.grant.bound;
    pthread_mutex_unlock(&s->mutex);
    return r < 0 ? r : 0;
}

int hf_sqlite_runners(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                      struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    size_t n = 0;
    int r = -HF_UNAVAILABLE;
    pthread_mutex_lock(&s->mutex);
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_RUNNERS, err);
    if (stmt) {
        struct hf_sqlite_cursor to = {stmt, 1};
        hf_sqlite_put_int(&to, s->boot);
        hf_sqlite_put_int(&to, (int64_t)max);
        while ((r = hf_sqlite_row(s, stmt, err)) > 0) {
            struct hf_sqlite_cursor from = {stmt, 0};
            ret[n] = (struct hf_processes){0};
            take_bound(&from, &ret[n++]);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    if (r >= 0)
        *ret_n = n;
    return r;
}
