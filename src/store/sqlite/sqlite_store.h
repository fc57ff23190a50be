/*
 * The sqlite store's own rooms:
 *
 *   sqlite.c    the vtable, opening and closing, waking
 *   connect.c   from a path to an open connection
 *   database.c  the connection: statements, transactions, checkpoints, error texts
 *   logfile.c   the log's file: fewer system calls per commit
 *   queue.c     the kernel lock that our own processes queue up at
 *   schema.c    the SQL, the format's version, what a new boot means, how fences stay unique
 *   rows.c      a record <-> its rows in `lock` and `waiter`
 *   known.c     records that need not be read again
 *   executions.c  rows of `execution`
 *   turns.c     which of them are due, parked or in the way
 *   parking.c   which of those that are parked are made ready
 *   idle.c      workers that sleep until one becomes ready
 *   history.c   rows of `event`, and the pruning of what is old
 *   retention.c how long executions are kept, and which one is the last of its kind
 *   tokens.c    rows of `api_token`
 *   look.c      list, events, totals: in pages, so that no caller's code runs under the mutex
 *
 * One connection per store, guarded by one mutex. A store that was open at fork() must not be used
 * or closed in the child: SQLite's locks belong to the process, and closing would drop the
 * parent's.
 */
#ifndef HF_SQLITE_STORE_H
#define HF_SQLITE_STORE_H

#include <pthread.h>
#include <sqlite3.h>

#include "record.h"

enum { HF_SQLITE_SUFFIX_MAX = 16 }; /* "-wal", "-queue", ... behind the path */

/* Statements that are prepared once, at first use: X(name, SQL). */
#define HF_SQLITE_BOUND_COLUMNS "pid, pid_start, pid2, pid2_start, pid_ns"
/* What may change with every step, then what is known of the holder, or of the last one. */
#define HF_SQLITE_STATE_COLUMNS                                                                    \
    "held, fence, ended, lost_fences, denied_ms, denied_events, waiters, tickets, last_event,"     \
    " granted, denied, released, release_lost, taken_expired, taken_died, taken_rebooted, "        \
    "forced, lost, parked"
#define HF_SQLITE_STATE_VALUES "?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20"
#define HF_SQLITE_LOCK_COLUMNS                                                                     \
    HF_SQLITE_STATE_COLUMNS                                                                        \
    ", lock_id, offered, owner, note, acquired_at, acquired_ms, expires_ms, ttl_ms, told_ms,"      \
    " boot, " HF_SQLITE_BOUND_COLUMNS ", execution_id, took_over"
/* Of a lock with an execution: is that over? Its row may be gone as well. */
#define HF_SQLITE_ENDED                                                                            \
    "execution_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM execution WHERE id = execution_id"     \
    " AND state = 'RUNNING')"
#define HF_SQLITE_LOCK_VALUES                                                                      \
    HF_SQLITE_STATE_VALUES ",?21,?22,?23,?24,?25,?26,?27,?28,?29,?30,?31,?32,?33,?34,?35,?36,?37"
#define HF_SQLITE_WAITER_COLUMNS                                                                   \
    "lock_id, rank, ticket, ttl_ms, until_ms, seen_ms, queued_ms, owner, "                         \
    "note, " HF_SQLITE_BOUND_COLUMNS
#define HF_SQLITE_EVENT_COLUMNS                                                                    \
    "at, kind, name, fence, owner, execution_id, reason, detail, prev_seq"
#define HF_SQLITE_EXECUTION_COLUMNS                                                                \
    "id, workflow, lock, key, state, run_at, priority, attempt, fence, owner, created_at,"         \
    " started_at, finished_at, exit_code, reason, retry_of, cancel_requested, spawned, once,"      \
    " to_verify, on_lost, max_attempts, spent, retry_backoff_ms, concurrency, parked"
/* Of a workflow, what has ended; word for word the condition of the index execution_finished. */
#define HF_SQLITE_OVER "workflow = ?1 AND once = 0 AND finished_at IS NOT NULL"
/* Of that, what is to go: up to a place in that index, but not the one with this key. */
#define HF_SQLITE_TO_GO                                                                            \
    HF_SQLITE_OVER " AND finished_at >= ?2 AND finished_at <= ?3 AND (finished_at < ?3 OR seq <="  \
                   " ?4) AND (?5 IS NULL OR key IS NOT ?5) AND state NOT IN ('PENDING','RUNNING')"
/* Who occupies a key; word for word the condition of the index execution_once, or it is not used. */
#define HF_SQLITE_ONCE                                                                             \
    "workflow = ?1 AND key = ?2 AND once = 1 AND state IN ('PENDING','RUNNING','SUCCESS')"
/* Which are ready, of them those that no limit concerns, and the others; then those of one lock. Word
 * for word the conditions of their indexes, which are named so that no other one is ever used. */
#define HF_SQLITE_IS_READY "state = 'PENDING' AND parked = 0"
#define HF_SQLITE_PLAIN                                                                            \
    "execution INDEXED BY execution_plain WHERE " HF_SQLITE_IS_READY                               \
    " AND concurrency = 0 AND to_verify = 0"
#define HF_SQLITE_SPECIAL                                                                          \
    "execution INDEXED BY execution_special WHERE " HF_SQLITE_IS_READY                             \
    " AND (concurrency > 0 OR to_verify = 1)"
#define HF_SQLITE_READY "execution INDEXED BY execution_ready WHERE " HF_SQLITE_IS_READY
#define HF_SQLITE_GROUP HF_SQLITE_READY " AND workflow = ?1 AND concurrency = ?2 AND to_verify = ?3"
#define HF_SQLITE_PARKED                                                                           \
    "execution INDEXED BY execution_parked WHERE state = 'PENDING' AND parked = 1 AND lock = ?1"
#define HF_SQLITE_IS_WAITING "state = 'PENDING' AND lock = ?1 AND parked = ?2"
#define HF_SQLITE_WAITING "execution INDEXED BY execution_waiting WHERE " HF_SQLITE_IS_WAITING
/* A page of a list; the lists of a workflow's states are merged. */
#define HF_SQLITE_PAGE(condition)                                                                  \
    "SELECT " HF_SQLITE_EXECUTION_COLUMNS ", seq FROM execution WHERE " condition "seq < ?1"
#define HF_SQLITE_PAGE_IN(state) HF_SQLITE_PAGE("workflow = ?2 AND state = '" state "' AND ")
#define HF_SQLITE_OR_IN(state) " UNION ALL " HF_SQLITE_PAGE_IN(state)
#define HF_SQLITE_PAGE_IN_ANY                                                                      \
    HF_SQLITE_PAGE_IN("PENDING")                                                                   \
    HF_SQLITE_OR_IN("RUNNING")                                                                     \
    HF_SQLITE_OR_IN("SUCCESS") HF_SQLITE_OR_IN("FAILED") HF_SQLITE_OR_IN("ABORTED")
#define HF_SQLITE_PAGE_END " ORDER BY seq DESC LIMIT ?4"

#define HF_SQLITE_STATEMENTS(X)                                                                    \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(LOOK, "BEGIN")                                                                               \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(META,                                                                                        \
      "SELECT fence_limit, fence_raised, counted_seq, event_count, n, first_open_ms, booted_at"    \
      " FROM meta LEFT JOIN boot ON id = ?1")                                                      \
    X(BOOT_ID, "SELECT id FROM boot WHERE n = ?1")                                                 \
    X(RAISE, "UPDATE meta SET fence_raised = ?1")                                                  \
    X(SET_LIMIT, "UPDATE meta SET fence_limit = max(fence_limit, ?1)")                             \
    X(SET_COUNTED, "UPDATE meta SET counted_seq = ?1, event_count = ?2")                           \
    X(LAST_SEQ, "SELECT max(seq) FROM event")                                                      \
    X(LOCK, "SELECT name, " HF_SQLITE_LOCK_COLUMNS " FROM lock WHERE id = ?1")                     \
    X(LOCK_INSERT, "INSERT INTO lock (id, " HF_SQLITE_LOCK_COLUMNS                                 \
                   ", name) VALUES (?1," HF_SQLITE_LOCK_VALUES ",?38)")                            \
    X(LOCK_UPDATE,                                                                                 \
      "UPDATE lock SET (" HF_SQLITE_LOCK_COLUMNS ") = (" HF_SQLITE_LOCK_VALUES ") WHERE id = ?1")  \
    X(LOCK_FREE, "UPDATE lock SET (" HF_SQLITE_STATE_COLUMNS ") = (" HF_SQLITE_STATE_VALUES        \
                 ") WHERE id = ?1")                                                                \
    X(LOCK_PAGE, "SELECT name, " HF_SQLITE_LOCK_COLUMNS ", " HF_SQLITE_ENDED " FROM lock"          \
                 " WHERE name >= ?1 AND name < ?2 AND (?3 OR held)"                                \
                 " ORDER BY name LIMIT ?4")                                                        \
    X(TOTALS, "SELECT total(granted), total(denied), total(released), total(release_lost),"        \
              " total(taken_expired), total(taken_died), total(taken_rebooted), total(forced),"    \
              " total(lost), (SELECT count(*) FROM execution WHERE state = 'PENDING'),"            \
              " (SELECT count(*) FROM execution WHERE state = 'RUNNING') FROM lock")               \
    X(HEAD, "SELECT " HF_SQLITE_WAITER_COLUMNS " FROM waiter WHERE lock = ?1"                      \
            " ORDER BY rank, ticket LIMIT ?2")                                                     \
    X(SELF, "SELECT " HF_SQLITE_WAITER_COLUMNS " FROM waiter WHERE lock = ?1 AND lock_id = ?2")    \
    X(BEFORE, "SELECT " HF_SQLITE_BOUND_COLUMNS " FROM waiter WHERE lock = ?1"                     \
              " AND (rank, ticket) < (?2, ?3) ORDER BY rank DESC, ticket DESC LIMIT 1")            \
    X(RUNNERS, "SELECT DISTINCT " HF_SQLITE_BOUND_COLUMNS " FROM (SELECT id, lock FROM execution"  \
               " WHERE state = 'RUNNING' ORDER BY seq DESC LIMIT 1024) x JOIN lock l"              \
               " ON l.name = x.lock WHERE l.held = 1 AND l.execution_id = x.id AND l.boot = ?1"    \
               " AND l.pid > 0 LIMIT ?2")                                                          \
    X(WAITER_INSERT, "INSERT INTO waiter (lock, " HF_SQLITE_WAITER_COLUMNS                         \
                     ") VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15)")              \
    X(WAITER_SEEN,                                                                                 \
      "UPDATE waiter SET seen_ms = ?3, until_ms = ?4 WHERE lock = ?1 AND lock_id = ?2")            \
    X(WAITER_DELETE, "DELETE FROM waiter WHERE lock = ?1 AND lock_id = ?2")                        \
    X(EVENT_INSERT,                                                                                \
      "INSERT INTO event (" HF_SQLITE_EVENT_COLUMNS ") VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)")       \
    X(EVENT, "SELECT seq, " HF_SQLITE_EVENT_COLUMNS " FROM event WHERE seq = ?1")                  \
    X(EVENT_PAGE, "SELECT seq, " HF_SQLITE_EVENT_COLUMNS " FROM event"                             \
                  " WHERE seq > ?1 AND at >= ?2 AND name IS NOT NULL ORDER BY seq LIMIT ?3")       \
    X(EVENT_NEWEST, "SELECT seq FROM event WHERE seq > ?1 AND at >= ?2 AND name IS NOT NULL"       \
                    " ORDER BY seq DESC LIMIT 1 OFFSET ?3")                                        \
    X(EVENT_LINK, "SELECT at, prev_seq FROM event WHERE seq = ?1")                                 \
    X(LAST_EVENT, "SELECT last_event FROM lock WHERE name = ?1")                                   \
    X(EVENT_OLDEST, "SELECT at FROM event ORDER BY seq LIMIT 1")                                   \
    X(EVENT_COUNT, "SELECT count(*) FROM event WHERE seq > ?1")                                    \
    X(EVENT_PRUNE, "DELETE FROM event WHERE seq IN (SELECT seq FROM event ORDER BY seq LIMIT ?1)"  \
                   " AND at < ?2 AND seq < ?3")                                                    \
    X(EXECUTION_BY_KEY, "SELECT " HF_SQLITE_EXECUTION_COLUMNS ", input IS ?3 FROM execution"       \
                        " WHERE workflow = ?1 AND key = ?2 AND once = 0")                          \
    X(EXECUTION_BY_ONCE, "SELECT " HF_SQLITE_EXECUTION_COLUMNS ", 1 FROM execution"                \
                         " WHERE " HF_SQLITE_ONCE)                                                 \
    X(EXECUTION, "SELECT " HF_SQLITE_EXECUTION_COLUMNS ", 1 FROM execution WHERE id = ?1")         \
    X(EXECUTION_INSERT, "INSERT INTO execution (" HF_SQLITE_EXECUTION_COLUMNS                      \
                        ", input) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16," \
                        "?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27)")                            \
    X(EXECUTION_UPDATE,                                                                            \
      "UPDATE execution SET (state, attempt, fence, owner, started_at, finished_at, exit_code,"    \
      " reason, cancel_requested, spawned, to_verify, run_at, spent, parked) ="                    \
      " (?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15) WHERE id = ?1")                          \
    X(EXECUTION_OUTPUT, "UPDATE execution SET (output_head, output_tail, output_skipped) ="        \
                        " (?2, ?3, ?4) WHERE id = ?1")                                             \
    X(EXECUTION_DATA,                                                                              \
      "SELECT input, output_head, output_tail, output_skipped FROM execution WHERE id = ?1")       \
    X(EXECUTION_PLACE, "SELECT seq FROM execution WHERE id = ?1")                                  \
    X(EXECUTION_PAGE, HF_SQLITE_PAGE("") HF_SQLITE_PAGE_END)                                       \
    X(EXECUTION_PAGE_STATE, HF_SQLITE_PAGE("state = ?3 AND ") HF_SQLITE_PAGE_END)                  \
    X(EXECUTION_PAGE_WORKFLOW, HF_SQLITE_PAGE_IN_ANY HF_SQLITE_PAGE_END)                           \
    X(EXECUTION_PAGE_BOTH, HF_SQLITE_PAGE("workflow = ?2 AND state = ?3 AND ") HF_SQLITE_PAGE_END) \
    X(EXECUTION_LAST_KEY, "SELECT key FROM execution WHERE workflow = ?1 AND key >= ?2"            \
                          " AND key <= ?3 AND once = 0 ORDER BY key DESC LIMIT 1")                 \
    X(EXECUTION_AT, "SELECT " HF_SQLITE_EXECUTION_COLUMNS ", 1 FROM execution WHERE seq = ?1")     \
    X(PLAIN_PRIORITY, "SELECT max(priority) FROM " HF_SQLITE_PLAIN " AND priority < ?1")           \
    X(PLAIN_DUE, "SELECT seq, run_at FROM " HF_SQLITE_PLAIN                                        \
                 " AND priority = ?1 AND run_at <= ?2 ORDER BY run_at, seq LIMIT ?3")              \
    X(PLAIN_NEXT, "SELECT min(run_at) FROM " HF_SQLITE_PLAIN " AND priority = ?1 AND run_at > ?2") \
    X(GROUP_PRIORITY, "SELECT max(priority) FROM " HF_SQLITE_GROUP " AND priority < ?4")           \
    X(GROUP_DUE, "SELECT seq, run_at FROM " HF_SQLITE_GROUP                                        \
                 " AND priority = ?4 AND run_at <= ?5 ORDER BY run_at, seq LIMIT ?6")              \
    X(GROUP_NEXT, "SELECT min(run_at) FROM " HF_SQLITE_GROUP " AND priority = ?4 AND run_at > ?5") \
    X(GROUP_OF_ANY, "SELECT workflow, concurrency, to_verify FROM"                                 \
                    " " HF_SQLITE_SPECIAL " AND (workflow, concurrency, to_verify) >= (?1,?2,?3)"  \
                    " ORDER BY workflow, concurrency, to_verify LIMIT 1")                          \
    X(GROUP_OF_ONE, "SELECT workflow, concurrency, to_verify FROM"                                 \
                    " " HF_SQLITE_READY " AND workflow = ?1 AND (concurrency, to_verify) >="       \
                    " (?2, ?3) ORDER BY concurrency, to_verify LIMIT 1")                           \
    X(RUNNING_COUNT, "SELECT count(*) FROM (SELECT 1 FROM execution INDEXED BY execution_workflow" \
                     " WHERE workflow = ?1 AND state = 'RUNNING' AND id <> ?2 LIMIT ?3)")          \
    X(WAITING_PRIORITY, "SELECT max(priority) FROM " HF_SQLITE_WAITING " AND priority < ?3")       \
    X(WAITING_FIRST, "SELECT id, run_at, seq FROM " HF_SQLITE_WAITING                              \
                     " AND priority = ?3 AND run_at <= ?4 AND (to_verify = 0 OR ?5)"               \
                     " ORDER BY run_at, seq LIMIT 1")                                              \
    X(WAITING_COUNT, "SELECT count(*) FROM (SELECT 1 FROM " HF_SQLITE_WAITING                      \
                     " AND priority = ?3 AND run_at <= ?4 LIMIT ?5)")                              \
    X(REPLACE, "UPDATE execution INDEXED BY execution_waiting SET state = 'ABORTED', parked = 0,"  \
               " finished_at = ?4, reason = ?5 WHERE " HF_SQLITE_IS_WAITING                        \
               " AND priority = ?3 AND run_at <= ?4 AND to_verify = 0")                            \
    X(PARK, "UPDATE execution SET parked = 1 WHERE seq IN (SELECT seq FROM"                        \
            " " HF_SQLITE_WAITING " AND priority = ?3 AND run_at <= ?4"                            \
            " ORDER BY run_at, seq LIMIT ?5)")                                                     \
    X(PARKED_KIND, "SELECT workflow, concurrency, to_verify FROM " HF_SQLITE_PARKED                \
                   " AND (workflow, concurrency, to_verify) >= (?2,?3,?4)"                         \
                   " ORDER BY workflow, concurrency, to_verify LIMIT 1")                           \
    X(UNPARK, "UPDATE execution SET parked = 0 WHERE seq = (SELECT seq FROM " HF_SQLITE_PARKED     \
              " AND workflow = ?2 AND concurrency = ?3 AND to_verify = ?4"                         \
              " ORDER BY priority DESC, run_at, seq LIMIT 1)")                                     \
    X(READ, "BEGIN")                                                                               \
    X(PRUNE_ONCE, "DELETE FROM execution WHERE seq IN (SELECT seq FROM execution WHERE once = 1"   \
                  " AND finished_at < ?1 AND state NOT IN ('PENDING','RUNNING')"                   \
                  " ORDER BY finished_at LIMIT ?2)")                                               \
    X(PRUNE_NEXT, "SELECT workflow FROM execution WHERE workflow > ?1 AND once = 0"                \
                  " AND finished_at IS NOT NULL ORDER BY workflow LIMIT 1")                        \
    X(PRUNE_PICK, "SELECT workflow FROM execution WHERE seq >= (SELECT min(seq) FROM execution) +" \
                  " abs(random() % (1 + (SELECT max(seq) FROM execution) - (SELECT min(seq) FROM"  \
                  " execution))) ORDER BY seq LIMIT 1")                                            \
    X(PRUNE_NEWEST, "SELECT finished_at, seq FROM execution WHERE " HF_SQLITE_OVER                 \
                    " ORDER BY finished_at DESC, seq DESC LIMIT 1 OFFSET ?2")                      \
    X(PRUNE_FIRST, "SELECT finished_at FROM execution WHERE " HF_SQLITE_TO_GO                      \
                   " ORDER BY finished_at, seq LIMIT 1")                                           \
    X(PRUNE, "DELETE FROM execution WHERE seq IN (SELECT seq FROM execution WHERE"                 \
             " " HF_SQLITE_TO_GO " ORDER BY finished_at, seq LIMIT ?6)")                           \
    X(RETENTION, "SELECT keep_ms, keep_count FROM retain WHERE workflow = ?1")                     \
    X(RETAIN, "INSERT INTO retain VALUES (?1, ?2, ?3) ON CONFLICT (workflow)"                      \
              " DO UPDATE SET (keep_ms, keep_count) = (?2, ?3)")                                   \
    X(RETAIN_NOT, "DELETE FROM retain WHERE workflow = ?1")

enum hf_sqlite_stmt {
#define X(name, sql) HF_STMT_##name,
    HF_SQLITE_STATEMENTS(X)
#undef X
        HF_STMT_COUNT
};

/* What of a lock's row the record does not carry; of the record loaded last. */
struct hf_sqlite_row {
    int64_t id;
    bool exists; /* else `id` is where it will be */
    int64_t last_event;
    int64_t tickets; /* given to waiters so far */
    int64_t boot;    /* of the grant, as it was loaded; 0: of an earlier one */
    uint32_t n_waiters;
};

struct hf_sqlite {
    struct hf_store base;
    pthread_mutex_t mutex; /* guards all below */
    sqlite3 *db;
    char path[HF_URL_MAX];
    sqlite3_stmt *stmts[HF_STMT_COUNT];
    int queue_fd;
    struct hf_sqlite_elder *elder; /* in the queue's file; NULL: not mapped */
    int wake_dir;                  /* -1 until somebody waits */
    int64_t boot;                  /* this boot's number in the store */
    int64_t first_open_ms;
    int64_t fence_limit;  /* fences up to here are reserved on disk, as far as we have seen */
    int64_t fence_raised; /* what the next boot starts from; above the limit: perhaps not on disk */
    int64_t raising;      /* what this transaction raises it to; 0: nothing */
    int64_t jump_to;      /* where the numbering goes on when that may be used; 0: where it was */
    bool entering;        /* and a boot is entered then */
    int64_t last_seq;     /* the newest event; exact where seq_known, and in a transaction */
    int64_t given;        /* the newest fence of this transaction, or 0 */
    bool seq_known;
    bool writing; /* inside a transaction */
    bool full_sync;
    int wal_frames;    /* after our last commit */
    int copied_frames; /* when we last made a checkpoint */
    int64_t checked_ms;
    int64_t busy_until_ms;
    struct hf_sqlite_row row;
    struct hf_sqlite_known *known, *last_known; /* known.c: a table, and what was kept last */
    size_t n_known;
    uint64_t known_from; /* what was kept under another number is not good any more; not 0 */
    unsigned data_version;
};

static inline struct hf_sqlite *hf_sqlite_of(struct hf_store *store)
{
    return (struct hf_sqlite *)store;
}

/* ---- known.c -------------------------------------------------------------------------------- */

/* From now on keep many: for a batch. */
void hf_sqlite_know_many(struct hf_sqlite *s);
/* Keep what was just saved, with s->row. */
void hf_sqlite_keep_known(struct hf_sqlite *s, const struct hf_record *rec);
/* In a transaction: the record of `name`, without a queue, and s->row; false: it must be read. */
bool hf_sqlite_find_known(struct hf_sqlite *s, const char *name, struct hf_record *ret);
/* Somebody else may have written. */
void hf_sqlite_forget_known(struct hf_sqlite *s);
void hf_sqlite_known_close(struct hf_sqlite *s);

/* ---- connect.c ------------------------------------------------------------------------------ */

/* Find or make the file `path` and open it; its schema is not looked at yet. */
int hf_sqlite_connect(struct hf_sqlite *s, const char *path, struct hf_error *err);
void hf_sqlite_disconnect(struct hf_sqlite *s);

/*
 * Give a new side file or directory the owner and mode of the database, as SQLite does with its own:
 * root must not lock out whose store it is.
 */
void hf_sqlite_share(const struct hf_sqlite *s, int fd);

/* ---- database.c ----------------------------------------------------------------------------- */

/* Settings of a new connection. */
int hf_sqlite_configure(struct hf_sqlite *s, struct hf_error *err);

/* Before closing: shorten the log where it has grown, unless somebody is at work. */
void hf_sqlite_tidy(struct hf_sqlite *s);

/* One clear line for what SQLite answered. */
int hf_sqlite_fail(struct hf_sqlite *s, int rc, struct hf_error *err);

/* A statement ready to be bound; NULL with `err` filled. */
sqlite3_stmt *hf_sqlite_stmt(struct hf_sqlite *s, enum hf_sqlite_stmt which, struct hf_error *err);

/* Run to the end and reset. */
int hf_sqlite_run(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_error *err);

/* 1: a row to read, then sqlite3_reset(); 0: none, already reset; negative: failed, reset. */
int hf_sqlite_row(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_error *err);

int hf_sqlite_exec(struct hf_sqlite *s, const char *sql, struct hf_error *err);

/* Wait for our turn and start writing. `full_sync`: the commit is on disk when it returns. */
int hf_sqlite_begin(struct hf_sqlite *s, bool full_sync, struct hf_error *err);
/* A transaction that only reads, all of it as it was at the first read. */
int hf_sqlite_begin_look(struct hf_sqlite *s, struct hf_error *err);
void hf_sqlite_end_look(struct hf_sqlite *s);
int hf_sqlite_commit(struct hf_sqlite *s, struct hf_error *err);
void hf_sqlite_rollback(struct hf_sqlite *s);

/* ---- logfile.c ------------------------------------------------------------------------------ */

/* The name of the VFS to open databases with. */
const char *hf_sqlite_vfs(void);

/* ---- queue.c -------------------------------------------------------------------------------- */

int hf_sqlite_queue_open(struct hf_sqlite *s, struct hf_error *err);
void hf_sqlite_queue_close(struct hf_sqlite *s);
int hf_sqlite_queue_enter(struct hf_sqlite *s, struct hf_error *err);
bool hf_sqlite_queue_try(struct hf_sqlite *s);
void hf_sqlite_queue_leave(struct hf_sqlite *s);

/* ---- schema.c ------------------------------------------------------------------------------- */

/* Create or migrate what is there, refuse what is newer or not ours, notice a new boot. */
int hf_sqlite_make_ready(struct hf_sqlite *s, struct hf_error *err);

/* Have enough fences reserved for a transaction that is about to begin. */
int hf_sqlite_reserve(struct hf_sqlite *s, struct hf_error *err);
int64_t hf_sqlite_next_fence(struct hf_store *store);
int hf_sqlite_bump_epoch(struct hf_sqlite *s, struct hf_error *err);
const char *hf_sqlite_schema(void);

/* ---- rows.c --------------------------------------------------------------------------------- */

/* Values in the order of the columns; empty texts are NULL. */
struct hf_sqlite_cursor {
    sqlite3_stmt *stmt;
    int at;
};
void hf_sqlite_put_int(struct hf_sqlite_cursor *to, int64_t value);
void hf_sqlite_put_int_if(struct hf_sqlite_cursor *to, bool condition, int64_t value);
void hf_sqlite_put_text(struct hf_sqlite_cursor *to, const char *text);
int64_t hf_sqlite_take_int(struct hf_sqlite_cursor *from);
void hf_sqlite_take_text(struct hf_sqlite_cursor *from, char *ret, size_t size);

/* The record in the row that `stmt` stands at, without its queue; a new boot's clock is applied.
 * `ret` is all zero before. */
void hf_sqlite_take_record(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_record *ret);

int hf_sqlite_load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                   struct hf_record *ret, struct hf_error *err);
int hf_sqlite_save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                   const struct hf_effects *fx, struct hf_error *err);
int hf_sqlite_runners(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                      struct hf_error *err);
int hf_sqlite_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                    struct hf_processes *ret, struct hf_error *err);

/* ---- history.c ------------------------------------------------------------------------------ */

int hf_sqlite_add_events(struct hf_sqlite *s, const struct hf_effects *fx, struct hf_error *err);

/* ---- executions.c --------------------------------------------------------------------------- */

int hf_sqlite_find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                   struct hf_error *err);

/* The execution of the record's grant, where it has one. */
int hf_sqlite_load_execution(struct hf_sqlite *s, struct hf_record *rec, struct hf_error *err);
int hf_sqlite_save_executions(struct hf_sqlite *s, const struct hf_ask *ask,
                              const struct hf_effects *fx, struct hf_error *err);
int hf_sqlite_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                        struct hf_error *err);
int hf_sqlite_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                             hf_data_fn fn, void *arg, struct hf_error *err);
int hf_sqlite_executions(struct hf_store *store, const struct hf_execution_query *query,
                         hf_execution_fn fn, void *arg, struct hf_error *err);

/* The execution in the row `seq`. 1: found, 0: there is none. */
int hf_sqlite_execution_at(struct hf_sqlite *s, int64_t seq, struct hf_execution *ret,
                           struct hf_error *err);

/* ---- turns.c -------------------------------------------------------------------------------- */

int hf_sqlite_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
                  size_t *ret_n, struct hf_error *err);
int hf_sqlite_count(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                    struct hf_ask *ask, struct hf_error *err);

/* Park what else of the lock is due, as fx->park_due_ms says. */
int hf_sqlite_park(struct hf_sqlite *s, const char *name, const struct hf_effects *fx,
                   struct hf_error *err);

/* End all that fx->replaced_by replaces. */
int hf_sqlite_replace(struct hf_sqlite *s, const char *name, const struct hf_effects *fx,
                      struct hf_error *err);

/* When the next wanted one that is not parked falls due; 0: none. Called with the mutex held. */
int hf_sqlite_next_due(struct hf_sqlite *s, const struct hf_due *wanted, int64_t *ret,
                       struct hf_error *err);

/* ---- parking.c ------------------------------------------------------------------------------ */

int hf_sqlite_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                     struct hf_error *err);

/* ---- idle.c --------------------------------------------------------------------------------- */

int hf_sqlite_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                   int64_t *ret_next_ms, struct hf_error *err);
void hf_sqlite_wake_idle(struct hf_store *store, struct hf_ready *ready, size_t n);

/* ---- retention.c ---------------------------------------------------------------------------- */

int hf_sqlite_last_key(struct hf_store *store, const char *workflow, const char *from,
                       const char *to, char ret[HF_KEY_MAX + 1], struct hf_error *err);
int hf_sqlite_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                     struct hf_error *err);
int hf_sqlite_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                    int64_t *ret_removed, struct hf_error *err);

/* A little of it within somebody's transaction: not more than `max` of each kind. */
int hf_sqlite_prune_some(struct hf_sqlite *s, int64_t wall_ms, int64_t max, struct hf_error *err);

/* ---- look.c --------------------------------------------------------------------------------- */

int hf_sqlite_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn,
                   void *arg, struct hf_error *err);
int hf_sqlite_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                     void *arg, struct hf_error *err);
int hf_sqlite_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err);

/* ---- tokens.c ------------------------------------------------------------------------------- */

int hf_sqlite_token_add(struct hf_store *store, const struct hf_api_token *token,
                        struct hf_error *err);
int hf_sqlite_token_remove(struct hf_store *store, const char *id, struct hf_error *err);
int hf_sqlite_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg,
                         struct hf_error *err);

/* ---- sqlite.c ------------------------------------------------------------------------------- */

/* The directory of FIFOs in s->wake_dir, made where `create`. Called with the mutex held. */
int hf_sqlite_open_wake_dir(struct hf_sqlite *s, bool create, struct hf_error *err);

/* What record.c calls; look.c asks it for the world. */
extern const struct hf_record_ops hf_sqlite_record_ops;

#endif
