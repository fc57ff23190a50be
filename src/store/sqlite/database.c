#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "error.h"
#include "failpoint.h"
#include "local.h"
#include "sqlite_store.h"

enum {
    FOREIGN_MAX_MS = 5000, /* how long another program may write before we give up */
    FOREIGN_SLEEP_NS = 500000,
    CHECK_EVERY_MS = 250, /* is the file still where it was? */
    /*
     * A checkpoint costs two fsyncs, so a process that goes on does it rarely, and outside of its
     * turn: the others write on. The log starts again only when all of it has been copied while
     * nobody wrote; where that never happens by itself, a turn is used for what is left. A process
     * that opens the store alone must first read all of the log, so whoever leaves keeps it short.
     */
    CHECKPOINT_FRAMES = 8000,
    CHECKPOINT_STEP = 2000,
    CHECKPOINT_IN_TURN = 2 * CHECKPOINT_FRAMES,
    LEAVE_FRAMES = 128
};

/* ---- errors --------------------------------------------------------------------------------- */

/* What to say of a primary result code; %s is the path. */
static const struct {
    int rc;
    int code;
    const char *text;
} texts[] = {
    {SQLITE_BUSY, HF_UNAVAILABLE,
     "%s is being written by another program (a sqlite3 shell?); try again when it is done"},
    {SQLITE_PROTOCOL, HF_UNAVAILABLE, "%s is too busy to be read; try again"},
    {SQLITE_FULL, HF_UNAVAILABLE, "no space left for %s; nothing was changed, free some space"},
    {SQLITE_NOTADB, HF_UNAVAILABLE,
     "%s is not a database; name another file with --store, or move it away"},
    {SQLITE_CORRUPT, HF_UNAVAILABLE,
     "%s is damaged; restore it from a backup, or move it away, then `holdfast init --bump-epoch`"},
    {SQLITE_READONLY, HF_FORBIDDEN, "%s can't be written"},
    {SQLITE_PERM, HF_FORBIDDEN, "%s can't be written"},
    {SQLITE_AUTH, HF_FORBIDDEN, "%s can't be written"},
    {SQLITE_CANTOPEN, HF_UNAVAILABLE, "can't open %s"},
    {SQLITE_IOERR, HF_UNAVAILABLE, "can't read or write %s"},
    {SQLITE_NOMEM, HF_NOMEM, "out of memory at %s"},
};

static int moved(struct hf_sqlite *s, struct hf_error *err)
{
    s->base.past_help = true;
    return hf_fail(err, HF_UNAVAILABLE,
                   "%s was moved or removed while it was open; start again to use the new one",
                   s->path);
}

static int fail_with_text(struct hf_sqlite *s, int code, const char *text, int saved,
                          struct hf_error *err)
{
    char what[HF_URL_MAX + 200];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(what, sizeof what, text, s->path);
#pragma GCC diagnostic pop
    if (saved == EACCES || saved == EPERM)
        code = HF_FORBIDDEN;
    if (saved == EROFS)
        code = HF_UNAVAILABLE;
    if (saved == ENOSPC || saved == EDQUOT)
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "%s", what);
    return saved ? hf_fail_errno(err, code, saved, "%s", what) : hf_fail(err, code, "%s", what);
}

int hf_sqlite_fail(struct hf_sqlite *s, int rc, struct hf_error *err)
{
    int primary = rc & 0xff;
    if (rc == SQLITE_READONLY_DBMOVED)
        return moved(s, err);
    bool by_system = primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN ||
                     primary == SQLITE_FULL || primary == SQLITE_READONLY;
    int saved = by_system ? sqlite3_system_errno(s->db) : 0;
    if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB)
        s->base.past_help = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].rc == primary)
            return fail_with_text(s, texts[i].code, texts[i].text, saved, err);
    return hf_fail(err, HF_UNAVAILABLE, "%s: SQLite says: %s (%d)", s->path, sqlite3_errmsg(s->db),
                   rc);
}

/* ---- statements ----------------------------------------------------------------------------- */

sqlite3_stmt *hf_sqlite_stmt(struct hf_sqlite *s, enum hf_sqlite_stmt which, struct hf_error *err)
{
    static const char *const sql[] = {
#define X(name, text) [HF_STMT_##name] = text,
        HF_SQLITE_STATEMENTS(X)
#undef X
    };
    if (s->stmts[which])
        return s->stmts[which];
    int rc = sqlite3_prepare_v3(s->db, sql[which], -1, SQLITE_PREPARE_PERSISTENT, &s->stmts[which],
                                NULL);
    if (rc != SQLITE_OK && hf_sqlite_fail(s, rc, err) < 0 && err)
        err->code = -HF_UNAVAILABLE; /* what callers return, whatever it was */
    return s->stmts[which];
}

int hf_sqlite_row(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_error *err)
{
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        return 1;
    int r = rc == SQLITE_DONE ? 0 : hf_sqlite_fail(s, sqlite3_extended_errcode(s->db), err);
    sqlite3_reset(stmt);
    return r;
}

int hf_sqlite_run(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_error *err)
{
    int r = hf_sqlite_row(s, stmt, err);
    if (r > 0)
        sqlite3_reset(stmt);
    return r < 0 ? r : 0;
}

static int run(struct hf_sqlite *s, enum hf_sqlite_stmt which, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, which, err);
    return stmt ? hf_sqlite_run(s, stmt, err) : -HF_UNAVAILABLE;
}

int hf_sqlite_exec(struct hf_sqlite *s, const char *sql, struct hf_error *err)
{
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : hf_sqlite_fail(s, sqlite3_extended_errcode(s->db), err);
}

/* ---- transactions --------------------------------------------------------------------------- */

/* SQLite's busy handler: only a program that does not queue up with us can bring us here. */
static int wait_for_foreign(void *arg, int n_calls)
{
    struct hf_sqlite *s = arg;
    int64_t now_ms = hf_local_now_ms();
    if (n_calls == 0)
        s->busy_until_ms = now_ms + FOREIGN_MAX_MS;
    if (now_ms >= s->busy_until_ms)
        return 0;
    struct timespec nap = {.tv_nsec = FOREIGN_SLEEP_NS};
    nanosleep(&nap, NULL);
    return 1;
}

/* Somebody who deletes the file under us would otherwise split the world in two. */
static int check_in_place(struct hf_sqlite *s, struct hf_error *err)
{
    int64_t now_ms = hf_local_now_ms();
    if (now_ms - s->checked_ms < CHECK_EVERY_MS)
        return 0;
    int has_moved = 0;
    sqlite3_file_control(s->db, "main", SQLITE_FCNTL_HAS_MOVED, &has_moved);
    if (has_moved)
        return moved(s, err);
    s->checked_ms = now_ms;
    return 0;
}

/* SQLite allows this only between transactions. */
static int set_sync(struct hf_sqlite *s, bool full, struct hf_error *err)
{
    if (s->full_sync == full)
        return 0;
    int r = hf_sqlite_exec(s, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", err);
    if (r >= 0)
        s->full_sync = full;
    return r;
}

static unsigned read_data_version(struct hf_sqlite *s)
{
    unsigned version = 0;
    sqlite3_file_control(s->db, "main", SQLITE_FCNTL_DATA_VERSION, &version);
    return version;
}

static void forget(struct hf_sqlite *s)
{
    s->seq_known = false;
    hf_sqlite_forget_known(s);
}

int hf_sqlite_begin(struct hf_sqlite *s, bool full_sync, struct hf_error *err)
{
    int r = hf_sqlite_queue_enter(s, err);
    if (r < 0)
        return r;
    if ((r = check_in_place(s, err)) >= 0 && (r = set_sync(s, full_sync, err)) >= 0)
        r = run(s, HF_STMT_BEGIN, err);
    if (r < 0) {
        hf_sqlite_queue_leave(s);
        return r;
    }
    if (read_data_version(s) != s->data_version)
        forget(s);
    s->writing = true;
    s->given = 0;
    return 0;
}

void hf_sqlite_rollback(struct hf_sqlite *s)
{
    s->writing = false;
    forget(s);
    /* After some failures SQLite has rolled back by itself. */
    if (!sqlite3_get_autocommit(s->db))
        run(s, HF_STMT_ROLLBACK, NULL);
    hf_sqlite_queue_leave(s);
}

int hf_sqlite_begin_look(struct hf_sqlite *s, struct hf_error *err)
{
    return run(s, HF_STMT_LOOK, err);
}

void hf_sqlite_end_look(struct hf_sqlite *s)
{
    if (!sqlite3_get_autocommit(s->db))
        run(s, HF_STMT_ROLLBACK, NULL);
}

static int note_frames(void *arg, sqlite3 *db, const char *schema, int frames)
{
    (void)db;
    (void)schema;
    ((struct hf_sqlite *)arg)->wal_frames = frames;
    return SQLITE_OK;
}

/* Copy from the log to the database what nobody reads from it any more; never waits. */
static void checkpoint(struct hf_sqlite *s)
{
    s->copied_frames = s->wal_frames;
    sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

int hf_sqlite_commit(struct hf_sqlite *s, struct hf_error *err)
{
    if (s->given > s->last_seq) { /* its number would be given again */
        hf_sqlite_rollback(s);
        return hf_fail(err, HF_INTERNAL, "a fence without an event");
    }
    if (s->full_sync)
        hf_failpoint(HF_FAIL_BEFORE_COMMIT);
    int r = run(s, HF_STMT_COMMIT, err);
    if (s->full_sync)
        hf_failpoint(HF_FAIL_AFTER_COMMIT);
    if (r < 0) {
        /* A log that could be written but not synced may still be found after a crash. */
        bool unknown = (sqlite3_extended_errcode(s->db) & 0xff) == SQLITE_IOERR;
        hf_sqlite_rollback(s);
        if (unknown && err)
            err->code = -HF_UNKNOWN;
        return unknown ? -HF_UNKNOWN : r;
    }
    s->writing = false;
    s->data_version = read_data_version(s);
    bool in_turn = s->wal_frames >= CHECKPOINT_IN_TURN;
    if (in_turn)
        checkpoint(s);
    hf_sqlite_queue_leave(s);
    if (!in_turn && s->wal_frames >= CHECKPOINT_FRAMES &&
        (s->wal_frames >= s->copied_frames + CHECKPOINT_STEP || s->wal_frames < s->copied_frames))
        checkpoint(s);
    return 0;
}

/* ---- settings ------------------------------------------------------------------------------- */

int hf_sqlite_configure(struct hf_sqlite *s, struct hf_error *err)
{
    sqlite3_extended_result_codes(s->db, 1);
    sqlite3_busy_handler(s->db, wait_for_foreign, s);
    sqlite3_wal_hook(s->db, note_frames, s);
    /* Leaving must cost nothing; what SQLite would do then, hf_sqlite_tidy() does now and then. */
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    int persist = 1;
    sqlite3_file_control(s->db, "main", SQLITE_FCNTL_PERSIST_WAL, &persist);
    /* The inner pages of a million names stay in memory. What logfile.c needs is cache_spill=OFF. */
    return hf_sqlite_exec(
        s, "PRAGMA synchronous=NORMAL; PRAGMA cache_size=-32000; PRAGMA cache_spill=OFF", err);
}

void hf_sqlite_tidy(struct hf_sqlite *s)
{
    if (s->wal_frames < LEAVE_FRAMES || !hf_sqlite_queue_try(s))
        return;
    sqlite3_busy_handler(s->db, NULL, NULL); /* readers make it a partial one */
    sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    hf_sqlite_queue_leave(s);
}
