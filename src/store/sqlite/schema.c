/*
 * The tables, their version, and what must be on disk before anything else relies on it.
 *
 * Fences and events share one numbering: every grant writes an event, so the newest event's number
 * is at least that of every fence given. Ordinary commits are not synced, so a power loss may take
 * the newest of them back. Therefore fences are given only up to `fence_limit`, which is raised in
 * blocks, on disk before the first of a block is used; at a new boot the numbering goes on above
 * it:
 *
 *     ... events and fences ...| lost with the power |........ limit | first of the next boot ...
 *
 * What is in the log need not be on disk: its writer may have been killed before the sync. So a
 * synced transaction first sets `fence_raised`, and only the next one the limit: who sees the limit
 * knows that what a new boot starts from is on disk.
 *
 * The jump is an event row without a name, which is never shown; it is made, and a new boot entered, by
 * that next one, so that nobody finds himself beyond the limit. The newest row is never pruned.
 *
 * To change the format: append a step to `steps`; never edit one that was released.
 */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "host.h"
#include "local.h"
#include "sqlite_store.h"

enum {
    APPLICATION_ID = 0x484f4c44, /* "HOLD" */
    FENCE_BLOCK = 100000,
    FENCE_HEADROOM = FENCE_BLOCK / 2, /* what one transaction may use up */
    BOOTS_MAX = 64                    /* of the machine, and of containers */
};
static const int64_t epoch_step = INT64_C(1) << 32;
static const int64_t fence_end = INT64_C(1) << 53;

/* clang-format off */
static const char format_1[] =
"-- One row: which fences may have been given, and how many events there were.\n"
"CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), fence_limit INTEGER NOT NULL,\n"
"  counted_seq INTEGER NOT NULL, event_count INTEGER NOT NULL,\n"
"  fence_raised INTEGER NOT NULL);\n"
"INSERT INTO meta VALUES (1, 0, 0, 0, 0);\n"
"\n"
"-- The boots that used it. containers: not the machine's id, but one that a container was told.\n"
"CREATE TABLE boot (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, containers INTEGER NOT NULL,\n"
"  first_open_ms INTEGER NOT NULL, booted_at INTEGER NOT NULL);\n"
"\n"
"-- One row per name ever locked. What is known of the holder stays when it leaves: it is the last\n"
"-- one's then. lock_id is a hash of the token. *_at are ms since 1970, *_ms are ms of this boot's\n"
"-- CLOCK_BOOTTIME. id is a hash of the name. parked: executions may be parked at it.\n"
"CREATE TABLE lock (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, held INTEGER,\n"
"  fence INTEGER, ended BLOB, lost_fences TEXT, denied_ms INTEGER, denied_events INTEGER,\n"
"  waiters INTEGER, tickets INTEGER,\n"
"  last_event INTEGER, granted INTEGER, denied INTEGER, released INTEGER, release_lost INTEGER,\n"
"  taken_expired INTEGER, taken_died INTEGER, taken_rebooted INTEGER, forced INTEGER,\n"
"  lost INTEGER, parked INTEGER, lock_id BLOB, offered INTEGER, owner TEXT, note TEXT,\n"
"  acquired_at INTEGER, acquired_ms INTEGER, expires_ms INTEGER, ttl_ms INTEGER,\n"
"  told_ms INTEGER, boot INTEGER, pid INTEGER, pid_start INTEGER, pid2 INTEGER,\n"
"  pid2_start INTEGER, pid_ns INTEGER, execution_id TEXT, took_over TEXT);\n"
"\n"
"-- Who waits, first in line first: rank is -priority.\n"
"CREATE TABLE waiter (lock INTEGER NOT NULL, rank INTEGER NOT NULL, ticket INTEGER NOT NULL,\n"
"  lock_id BLOB NOT NULL, ttl_ms INTEGER, until_ms INTEGER, seen_ms INTEGER, queued_ms INTEGER,\n"
"  owner TEXT, note TEXT, pid INTEGER, pid_start INTEGER, pid2 INTEGER, pid2_start INTEGER,\n"
"  pid_ns INTEGER, PRIMARY KEY (lock, rank, ticket), UNIQUE (lock, lock_id)) WITHOUT ROWID;\n"
"\n"
"-- What happened; prev_seq leads to the same name's event before it.\n"
"CREATE TABLE event (seq INTEGER PRIMARY KEY, at INTEGER, kind TEXT, name TEXT, fence INTEGER,\n"
"  owner TEXT, execution_id TEXT, reason TEXT, detail TEXT, prev_seq INTEGER);\n"
"\n"
"-- Runs of workflows. With `once` only those that may still succeed, or have, occupy their key.\n"
"-- spawned: its command may have been started. on_lost: 0 abort, 1 retry, 2 verify; to_verify: the\n"
"-- latter is due. parked: PENDING, and not looked at before its lock is free. spent: how often its\n"
"-- command was started. What is large stands last, so that nobody who looks reads it.\n"
"CREATE TABLE execution (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, workflow TEXT NOT NULL,\n"
"  lock TEXT NOT NULL, key TEXT, state TEXT NOT NULL, run_at INTEGER NOT NULL,\n"
"  priority INTEGER NOT NULL, attempt INTEGER NOT NULL, fence INTEGER, owner TEXT,\n"
"  created_at INTEGER NOT NULL, started_at INTEGER, finished_at INTEGER, exit_code INTEGER,\n"
"  reason TEXT, retry_of TEXT, cancel_requested INTEGER NOT NULL, spawned INTEGER NOT NULL,\n"
"  once INTEGER NOT NULL, to_verify INTEGER NOT NULL, on_lost INTEGER NOT NULL,\n"
"  max_attempts INTEGER NOT NULL, spent INTEGER NOT NULL, retry_backoff_ms INTEGER NOT NULL,\n"
"  concurrency INTEGER NOT NULL, parked INTEGER NOT NULL, output_skipped INTEGER, input BLOB, output_head BLOB,\n"
"  output_tail BLOB);\n"
"CREATE UNIQUE INDEX execution_key ON execution (workflow, key)\n"
"  WHERE once = 0 AND key IS NOT NULL;\n"
"CREATE UNIQUE INDEX execution_once ON execution (workflow, key)\n"
"  WHERE once = 1 AND state IN ('PENDING','RUNNING','SUCCESS');\n"
"-- Whoever looks for work reads only what it takes: per workflow, or of all those that no limit\n"
"-- concerns and, group by group, of the others.\n"
"CREATE INDEX execution_ready ON execution (workflow, concurrency, to_verify, priority DESC, run_at)\n"
"  WHERE state = 'PENDING' AND parked = 0;\n"
"CREATE INDEX execution_plain ON execution (priority DESC, run_at)\n"
"  WHERE state = 'PENDING' AND parked = 0 AND concurrency = 0 AND to_verify = 0;\n"
"CREATE INDEX execution_special ON execution (workflow, concurrency, to_verify)\n"
"  WHERE state = 'PENDING' AND parked = 0 AND (concurrency > 0 OR to_verify = 1);\n"
"CREATE INDEX execution_waiting ON execution (lock, parked, priority DESC, run_at)\n"
"  WHERE state = 'PENDING';\n"
"CREATE INDEX execution_parked ON execution\n"
"  (lock, workflow, concurrency, to_verify, priority DESC, run_at)\n"
"  WHERE state = 'PENDING' AND parked = 1;\n"
"-- For lists, the newest first, for sweeps and for limits.\n"
"CREATE INDEX execution_state ON execution (state);\n"
"CREATE INDEX execution_workflow ON execution (workflow, state);\n"
"CREATE INDEX execution_finished ON execution (workflow, once, finished_at)\n"
"  WHERE once = 0 AND finished_at IS NOT NULL;\n"
"CREATE INDEX execution_once_finished ON execution (finished_at)\n"
"  WHERE once = 1 AND finished_at IS NOT NULL;\n"
"\n"
"-- How long what has ended is kept, and how many at most (0: any number); no row: 90 days.\n"
"CREATE TABLE retain (workflow TEXT PRIMARY KEY, keep_ms INTEGER NOT NULL,\n"
"  keep_count INTEGER NOT NULL) WITHOUT ROWID;\n";
/* clang-format on */

/* steps[v] leads from format v to v + 1. */
static const char *const steps[] = {format_1};
enum { FORMAT = sizeof steps / sizeof *steps };

const char *hf_sqlite_schema(void) { return format_1; }

/* ---- what is raised before it is used ------------------------------------------------------- */

/* Read the one row of meta, and this boot's where *ret_same: it is known. */
static int read_meta(struct hf_sqlite *s, bool *ret_same, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_META, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, hf_boot_id(), -1, SQLITE_STATIC);
    int r = hf_sqlite_row(s, stmt, err);
    if (r == 0)
        return hf_fail(err, HF_UNAVAILABLE, "%s is damaged: its table meta is empty", s->path);
    if (r < 0)
        return r;
    s->fence_limit = sqlite3_column_int64(stmt, 0);
    s->fence_raised = sqlite3_column_int64(stmt, 1);
    *ret_same = sqlite3_column_type(stmt, 4) != SQLITE_NULL &&
                hf_local_is_this_boot(sqlite3_column_int64(stmt, 5), sqlite3_column_int64(stmt, 6));
    if (*ret_same) { /* else what we know stays right: numbers are not given again */
        s->boot = sqlite3_column_int64(stmt, 4);
        s->first_open_ms = sqlite3_column_int64(stmt, 5);
    }
    sqlite3_reset(stmt);
    return 0;
}

/* The newest event's number; 0: none. Exact for the rest of the transaction. */
static int read_last_seq(struct hf_sqlite *s, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_LAST_SEQ, err);
    int r = stmt ? hf_sqlite_row(s, stmt, err) : -HF_UNAVAILABLE;
    if (r <= 0)
        return r;
    s->last_seq = sqlite3_column_int64(stmt, 0);
    s->seq_known = true;
    sqlite3_reset(stmt);
    return 0;
}

static int raise_to(struct hf_sqlite *s, int64_t limit, struct hf_error *err)
{
    if (limit >= fence_end)
        return hf_fail(err, HF_UNAVAILABLE, "%s has used up its fences; start a new store",
                       s->path);
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_RAISE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, limit);
    int r = hf_sqlite_run(s, stmt, err);
    if (r >= 0)
        s->raising = limit;
    return r;
}

/* Let the numbering go on so far above all that may have been given, and reserve a block there. */
static int prepare_jump(struct hf_sqlite *s, int64_t step, struct hf_error *err)
{
    int r = read_last_seq(s, err);
    if (r < 0)
        return r;
    s->jump_to = (s->last_seq > s->fence_raised ? s->last_seq : s->fence_raised) + step;
    return raise_to(s, s->jump_to + FENCE_BLOCK, err);
}

static int jump(struct hf_sqlite *s, struct hf_error *err)
{
    char sql[100];
    snprintf(sql, sizeof sql, "INSERT OR IGNORE INTO event (seq, at) VALUES (%lld, %lld)",
             (long long)s->jump_to, (long long)hf_clock_wall_ms());
    int r = hf_sqlite_exec(s, sql, err);
    return r < 0 ? r : read_last_seq(s, err);
}

/*
 * A new boot's row; no waiters that were seen before it (others who are gone are judged in their turn).
 * Where another process was here first, it has jumped as well.
 */
static int enter_boot(struct hf_sqlite *s, struct hf_error *err)
{
    bool same = false;
    int r = read_meta(s, &same, err);
    if (r >= 0 && same)
        s->jump_to = 0;
    if (r < 0 || same)
        return r;
    char sql[700];
    int64_t now_ms = hf_local_now_ms();
    int containers = !hf_boot_id_is_the_machines(hf_boot_id());
    snprintf(sql, sizeof sql,
             "INSERT INTO boot (id, containers, first_open_ms, booted_at)"
             " VALUES ('%s', %d, %lld, %lld)"
             " ON CONFLICT (id) DO UPDATE SET (first_open_ms, booted_at) ="
             " (excluded.first_open_ms, excluded.booted_at);"
             "DELETE FROM waiter WHERE seen_ms > %lld;"
             "UPDATE lock SET waiters = (SELECT count(*) FROM waiter WHERE lock = lock.id)"
             " WHERE waiters > 0;"
             "DELETE FROM boot WHERE n IN (SELECT n FROM boot WHERE containers = %d"
             " ORDER BY n DESC LIMIT -1 OFFSET %d)",
             hf_boot_id(), containers, (long long)now_ms, (long long)hf_local_booted_at_ms(),
             (long long)now_ms, containers, BOOTS_MAX);
    r = hf_sqlite_exec(s, sql, err);
    return r < 0 ? r : read_meta(s, &same, err);
}

static int use_raised(struct hf_sqlite *s, struct hf_error *err)
{
    int r = s->entering ? enter_boot(s, err) : 0;
    if (r >= 0 && s->jump_to)
        r = jump(s, err);
    sqlite3_stmt *stmt = r < 0 ? NULL : hf_sqlite_stmt(s, HF_STMT_SET_LIMIT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, s->raising);
    return hf_sqlite_run(s, stmt, err);
}

/* What we have raised is on disk now: from here on everybody may use it. */
static int allow_raised(struct hf_sqlite *s, struct hf_error *err)
{
    int r = hf_sqlite_begin(s, false, err);
    if (r < 0)
        return r;
    if ((r = use_raised(s, err)) < 0)
        hf_sqlite_rollback(s);
    else
        r = hf_sqlite_commit(s, err);
    if (r >= 0 && s->fence_limit < s->raising)
        s->fence_limit = s->raising;
    return r;
}

/* Run `change` in a transaction of its own that is on disk when this returns. */
static int change_durably(struct hf_sqlite *s,
                          int (*change)(struct hf_sqlite *s, struct hf_error *err),
                          struct hf_error *err)
{
    int r = hf_sqlite_begin(s, true, err);
    if (r < 0)
        return r;
    s->raising = s->jump_to = 0;
    s->entering = false;
    if ((r = change(s, err)) < 0)
        hf_sqlite_rollback(s);
    else
        r = hf_sqlite_commit(s, err);
    if (r < 0)
        s->fence_limit = 0; /* what was to be reserved is not: read it again before a grant */
    return r >= 0 && s->raising ? allow_raised(s, err) : r;
}

/* ---- the format ----------------------------------------------------------------------------- */

static int read_number(struct hf_sqlite *s, const char *sql, int64_t *ret, struct hf_error *err)
{
    sqlite3_stmt *stmt;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &stmt, NULL);
    if (rc != SQLITE_OK)
        return hf_sqlite_fail(s, rc, err);
    int r = hf_sqlite_row(s, stmt, err);
    if (r > 0)
        *ret = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return r < 0 ? r : 0;
}

/* Which format the file has, 0: none of ours. Refuses what is newer than we are. */
static int read_format(struct hf_sqlite *s, int64_t *ret, struct hf_error *err)
{
    int64_t application = 0, format = 0;
    int r = read_number(s, "PRAGMA application_id", &application, err);
    if (r >= 0 && application == APPLICATION_ID)
        r = read_number(s, "PRAGMA user_version", &format, err);
    if (r < 0)
        return r;
    if (format > FORMAT)
        return hf_fail(err, HF_UNAVAILABLE,
                       "%s was written by a newer holdfast (format %lld; this one knows %d); "
                       "upgrade holdfast",
                       s->path, (long long)format, FORMAT);
    *ret = format;
    return 0;
}

/* A file without our format must have nothing else in it. Called in our turn. */
static int check_empty(struct hf_sqlite *s, struct hf_error *err)
{
    int64_t application = 0, format = 0, tables = 0;
    int r = read_number(s, "PRAGMA application_id", &application, err);
    if (r >= 0)
        r = read_number(s, "PRAGMA user_version", &format, err);
    if (r >= 0)
        r = read_number(s, "SELECT count(*) FROM sqlite_schema", &tables, err);
    if (r >= 0 && (application || format || tables))
        r = hf_fail(err, HF_UNAVAILABLE,
                    "%s is another program's database; name another file with --store", s->path);
    return r;
}

static int run_steps(struct hf_sqlite *s, struct hf_error *err)
{
    char mark[96];
    int64_t format = 0;
    int r = read_format(s, &format, err);
    for (int64_t v = format; r >= 0 && v < FORMAT; v++)
        r = hf_sqlite_exec(s, steps[v], err);
    snprintf(mark, sizeof mark, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION_ID,
             FORMAT);
    return r < 0 ? r : hf_sqlite_exec(s, mark, err);
}

/*
 * Bring the file to our format. Whoever comes second finds it done. The journal mode can be set
 * only outside a transaction, and only while nobody else is in one: the queue sees to that.
 */
static int migrate(struct hf_sqlite *s, struct hf_error *err)
{
    int64_t format = 0;
    int r = hf_sqlite_queue_enter(s, err);
    if (r < 0)
        return r;
    if ((r = read_format(s, &format, err)) >= 0 && format == 0 && (r = check_empty(s, err)) >= 0)
        r = hf_sqlite_exec(s, "PRAGMA page_size=1024; PRAGMA journal_mode=WAL", err);
    hf_sqlite_queue_leave(s);
    return r < 0 ? r : change_durably(s, run_steps, err);
}

/* ---- boots ---------------------------------------------------------------------------------- */

static int prepare_boot(struct hf_sqlite *s, struct hf_error *err)
{
    bool same = false;
    int r = read_meta(s, &same, err);
    if (r < 0 || same)
        return r;
    s->entering = true;
    return prepare_jump(s, 0, err);
}

int hf_sqlite_make_ready(struct hf_sqlite *s, struct hf_error *err)
{
    int64_t format = 0;
    bool same = false;
    int r = hf_local_check_host(err);
    if (r >= 0)
        r = read_format(s, &format, err);
    if (r >= 0 && format < FORMAT)
        r = migrate(s, err);
    if (r < 0 || (r = read_meta(s, &same, err)) < 0)
        return r;
    return same ? 0 : change_durably(s, prepare_boot, err);
}

static int raise_limit(struct hf_sqlite *s, struct hf_error *err)
{
    bool same = false;
    int r = read_meta(s, &same, err);
    if (r < 0 || (r = read_last_seq(s, err)) < 0)
        return r;
    if (s->last_seq + FENCE_HEADROOM <= s->fence_limit)
        return 0; /* somebody else has */
    int64_t limit = s->last_seq + FENCE_BLOCK;
    /* Where nothing changes, SQLite would not sync either. */
    return raise_to(s, limit <= s->fence_raised ? s->fence_raised + 1 : limit, err);
}

int hf_sqlite_reserve(struct hf_sqlite *s, struct hf_error *err)
{
    if (!s->last_seq) { /* we have written nothing yet, and the others may be as short-lived */
        int r = read_last_seq(s, err);
        s->seq_known = false; /* outside a transaction it is not exact for long */
        if (r < 0)
            return r;
    }
    if (s->last_seq + FENCE_HEADROOM <= s->fence_limit)
        return 0;
    return change_durably(s, raise_limit, err);
}

int64_t hf_sqlite_next_fence(struct hf_store *store)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    bool same = false;
    int r;
    if (!s->seq_known && (r = read_last_seq(s, NULL)) < 0)
        return r;
    int64_t fence = (s->last_seq > s->given ? s->last_seq : s->given) + 1;
    /* What we know of the limit may be old: whoever came near it has raised it. */
    if (fence > s->fence_limit && (r = read_meta(s, &same, NULL)) < 0)
        return r;
    if (fence > s->fence_limit)
        return -HF_TOO_LARGE; /* a batch of more grants than a block has */
    s->given = fence;
    return fence;
}

static int bump(struct hf_sqlite *s, struct hf_error *err)
{
    bool same = false;
    int r = read_meta(s, &same, err);
    return r < 0 ? r : prepare_jump(s, epoch_step, err);
}

int hf_sqlite_bump_epoch(struct hf_sqlite *s, struct hf_error *err)
{
    return change_durably(s, bump, err);
}
