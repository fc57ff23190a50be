#include <err.h>
#include <libpq-fe.h>
#include <poll.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "holdfast.h"
#include "work.h"

static const char workflow[] = "noop";

static void *allocate(size_t size)
{
    void *p = calloc(1, size);
    if (!p)
        err(1, "calloc");
    return p;
}

static int64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* ---- ours: a lock for each, as "{workflow}/{key}" has it -------------------------------------- */

struct worker {
    struct hf *hf;
    int64_t serial, run_at_ms;
    char ids[WORK_BATCH_MAX][HF_UUID_LEN + 1], locks[WORK_BATCH_MAX][48];
    struct hf_request requests[WORK_BATCH_MAX];
    struct hf_answer answers[WORK_BATCH_MAX];
    struct hf_claimed claimed[WORK_BATCH_MAX];
    size_t n;
};

static void *open_ours(const char *url)
{
    struct worker *w = allocate(sizeof *w);
    struct hf_error error;
    if (hf_open(url, &w->hf, &error) < 0)
        errx(1, "%s", error.message);
    return w;
}

static void apply(struct worker *w, size_t n)
{
    struct hf_error error;
    if (hf_apply(w->hf, w->requests, n, w->answers, &error) < 0)
        errx(1, "%s", error.message);
    for (size_t i = 0; i < n; i++)
        if (w->answers[i].code < 0)
            errx(1, "%s: %s", w->requests[i].name, hf_code_meaning(w->answers[i].code));
}

static void schedule_ours(void *state, int n)
{
    struct worker *w = state;
    for (int i = 0; i < n; i++) {
        snprintf(w->locks[i], sizeof w->locks[i], "noop/%d-%lld", (int)getpid(),
                 (long long)w->serial++);
        hf_token(w->ids[i]);
        w->requests[i] =
            (struct hf_request){.op = HF_OP_ENQUEUE,
                                .name = w->locks[i],
                                .workflow = workflow,
                                .execution_id = w->ids[i],
                                .run_at_ms = w->run_at_ms ? w->run_at_ms : wall_ms() - 1};
    }
    apply(w, (size_t)n);
}

static int claim_ours(void *state, int n)
{
    struct worker *w = state;
    struct hf_error error;
    if (hf_claim(w->hf, NULL, (size_t)n, w->claimed, &w->n, &error) < 0)
        errx(1, "%s", error.message);
    return (int)w->n;
}

static void finish_ours(void *state)
{
    struct worker *w = state;
    for (size_t i = 0; i < w->n; i++) {
        const struct hf_lease *lease = &w->claimed[i].lease;
        w->requests[i] = (struct hf_request){.op = HF_OP_RELEASE,
                                             .name = lease->name,
                                             .token = lease->token,
                                             .fence = lease->fence,
                                             .execution_id = lease->execution_id,
                                             .outcome = HF_OUTCOME_SUCCESS,
                                             .has_exit_code = true};
    }
    apply(w, w->n);
}

static void close_ours(void *state)
{
    struct worker *w = state;
    hf_close(w->hf);
    free(w);
}

const struct work_subject ours_work = {open_ours, schedule_ours, claim_ours, finish_ours,
                                       close_ours};

/* ---- ours: how late --------------------------------------------------------------------------- */

/* Nothing is due: sleep until something is, or the store wakes us. */
static void sleep_until_due(struct hf_idle *idle)
{
    int64_t next_ms;
    struct hf_error error;
    if (hf_idle_begin(idle, NULL, &next_ms, &error) < 0)
        errx(1, "%s", error.message);
    int64_t left_ms = next_ms ? next_ms - wall_ms() : 1000;
    struct pollfd woken = {hf_idle_fd(idle), POLLIN, 0};
    if (left_ms > 0 && poll(&woken, 1, (int)left_ms) < 0)
        err(1, "poll");
    hf_idle_end(idle);
}

void ours_work_lag(const char *url, int n, int64_t over_ms, struct samples *late_ns)
{
    struct worker *w = open_ours(url);
    struct hf_idle *idle;
    struct hf_error error;
    int64_t first_ms = wall_ms() + 1000;
    for (int i = 0; i < n; i++) {
        w->run_at_ms = first_ms + i * over_ms / n;
        schedule_ours(w, 1);
    }
    if (hf_idle_open(w->hf, &idle, &error) < 0)
        errx(1, "%s", error.message);
    for (int done = 0; done < n; done += (int)w->n) {
        if (claim_ours(w, 100) == 0)
            sleep_until_due(idle);
        int64_t now_ms = wall_ms();
        for (size_t i = 0; i < w->n; i++)
            samples_add(late_ns, (double)(now_ms - w->claimed[i].execution.run_at_ms) * 1e6);
        if (w->n)
            finish_ours(w);
    }
    hf_idle_close(idle);
    close_ours(w);
}

/* ---- bare SQLite: our tables, and what is written to them ------------------------------------- */

enum { BEGIN, COMMIT, SCHEDULE, DUE, LOCK, TELL, START, UNLOCK, END, STATEMENTS };

static const char *const statements[STATEMENTS] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [SCHEDULE] = "INSERT INTO execution (id, workflow, lock, state, run_at, priority, attempt,"
                 " created_at, cancel_requested, spawned, once, to_verify, on_lost, max_attempts,"
                 " spent, retry_backoff_ms, concurrency, parked) VALUES (?1, 'noop', ?2, 'PENDING',"
                 " ?3, 0, 0, ?3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
    [DUE] = "SELECT seq, id, lock FROM execution WHERE state = 'PENDING' AND parked = 0 AND"
            " concurrency = 0 AND to_verify = 0 AND priority = 0 AND run_at <= ?1 ORDER BY run_at,"
            " seq LIMIT ?2",
    [LOCK] = "INSERT INTO lock (id, name, held, fence, lock_id, owner, acquired_at, expires_ms,"
             " ttl_ms, execution_id, granted, last_event) VALUES (?1, ?2, 1, ?3, ?4, 'owner/1', ?5,"
             " ?5 + 60000, 60000, ?6, 1, ?7) ON CONFLICT (id) DO UPDATE SET held = 1, fence = ?3,"
             " lock_id = ?4, acquired_at = ?5, expires_ms = ?5 + 60000, execution_id = ?6, granted"
             " = granted + 1, last_event = ?7",
    [TELL] = "INSERT INTO event VALUES (?1, ?2, ?3, ?4, ?5, 'owner/1', ?6, '', '', ?7)",
    [START] = "UPDATE execution SET state = 'RUNNING', attempt = attempt + 1, fence = ?2, owner ="
              " 'owner/1', started_at = ?3 WHERE seq = ?1",
    [UNLOCK] = "UPDATE lock SET held = 0, lock_id = NULL, execution_id = NULL, ended = ?2,"
               " released = 1, last_event = ?3 WHERE id = ?1",
    [END] =
        "UPDATE execution SET state = 'SUCCESS', finished_at = ?2, exit_code = 0 WHERE seq = ?1",
};

struct bare_sqlite {
    sqlite3 *db;
    sqlite3_stmt *of[STATEMENTS];
    int64_t serial, fence;
    struct {
        int64_t seq, fence;
        char id[HF_UUID_LEN + 1], lock[48], token[HF_UUID_LEN + 1];
    } claimed[WORK_BATCH_MAX];
    int n;
};

static void exec_sqlite(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        errx(1, "bare SQLite: %s", sqlite3_errmsg(db));
}

/* Bind numbers ("i"), texts ("t") and NULLs ("0") in their order. */
static void bind(sqlite3_stmt *stmt, const char *letters, ...)
{
    va_list args;
    va_start(args, letters);
    for (int i = 1; *letters; letters++, i++)
        if (*letters == 'i')
            sqlite3_bind_int64(stmt, i, va_arg(args, int64_t));
        else if (*letters == 't')
            sqlite3_bind_text(stmt, i, va_arg(args, const char *), -1, SQLITE_STATIC);
        else
            sqlite3_bind_null(stmt, i);
    va_end(args);
}

static void run_bound(struct bare_sqlite *b, int which)
{
    if (sqlite3_step(b->of[which]) != SQLITE_DONE)
        errx(1, "bare SQLite: %s", sqlite3_errmsg(b->db));
    sqlite3_reset(b->of[which]);
}

/* What concerns executions is on disk before it is acknowledged: so it is here. */
static void *open_bare_sqlite(const char *path)
{
    struct bare_sqlite *b = allocate(sizeof *b);
    const char *schema;
    struct hf_error error;
    if (hf_schema("sqlite:", &schema, &error) < 0)
        errx(1, "%s", error.message);
    if (sqlite3_open(path, &b->db) != SQLITE_OK)
        errx(1, "%s: %s", path, sqlite3_errmsg(b->db));
    exec_sqlite(b->db, "PRAGMA page_size=1024; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                       " PRAGMA cache_size=-32000");
    if (sqlite3_table_column_metadata(b->db, NULL, "execution", NULL, NULL, NULL, NULL, NULL,
                                      NULL) != SQLITE_OK)
        exec_sqlite(b->db, schema);
    for (int i = 0; i < STATEMENTS; i++)
        if (sqlite3_prepare_v2(b->db, statements[i], -1, &b->of[i], NULL) != SQLITE_OK)
            errx(1, "bare SQLite: %s", sqlite3_errmsg(b->db));
    return b;
}

static void schedule_bare_sqlite(void *state, int n)
{
    struct bare_sqlite *b = state;
    char id[HF_UUID_LEN + 1], lock[48];
    run_bound(b, BEGIN);
    for (int i = 0; i < n; i++) {
        hf_token(id);
        snprintf(lock, sizeof lock, "noop/%lld", (long long)b->serial++);
        bind(b->of[SCHEDULE], "tti", id, lock, wall_ms() - 1);
        run_bound(b, SCHEDULE);
    }
    run_bound(b, COMMIT);
}

static void tell(struct bare_sqlite *b, int i, const char *kind, int64_t now_ms)
{
    bind(b->of[TELL], "iittiti", ++b->fence, now_ms, kind, b->claimed[i].lock, b->claimed[i].fence,
         b->claimed[i].id, (int64_t)0);
    run_bound(b, TELL);
}

static void start_bare_sqlite(struct bare_sqlite *b, int i, int64_t now_ms)
{
    b->claimed[i].fence = b->fence + 1;
    hf_token(b->claimed[i].token);
    tell(b, i, "acquired", now_ms);
    tell(b, i, "started", now_ms);
    bind(b->of[LOCK], "itititi", b->claimed[i].seq, b->claimed[i].lock, b->claimed[i].fence,
         b->claimed[i].token, now_ms, b->claimed[i].id, b->fence);
    run_bound(b, LOCK);
    bind(b->of[START], "iii", b->claimed[i].seq, b->claimed[i].fence, now_ms);
    run_bound(b, START);
}

static int claim_bare_sqlite(void *state, int n)
{
    struct bare_sqlite *b = state;
    sqlite3_stmt *due = b->of[DUE];
    int64_t now_ms = wall_ms();
    run_bound(b, BEGIN);
    bind(due, "ii", now_ms, (int64_t)n);
    for (b->n = 0; sqlite3_step(due) == SQLITE_ROW; b->n++) {
        b->claimed[b->n].seq = sqlite3_column_int64(due, 0);
        snprintf(b->claimed[b->n].id, sizeof b->claimed[0].id, "%s",
                 (const char *)sqlite3_column_text(due, 1));
        snprintf(b->claimed[b->n].lock, sizeof b->claimed[0].lock, "%s",
                 (const char *)sqlite3_column_text(due, 2));
    }
    sqlite3_reset(due);
    for (int i = 0; i < b->n; i++)
        start_bare_sqlite(b, i, now_ms);
    run_bound(b, COMMIT);
    return b->n;
}

static void finish_bare_sqlite(void *state)
{
    struct bare_sqlite *b = state;
    int64_t now_ms = wall_ms();
    run_bound(b, BEGIN);
    for (int i = 0; i < b->n; i++) {
        tell(b, i, "finished", now_ms);
        bind(b->of[UNLOCK], "iti", b->claimed[i].seq, b->claimed[i].token, b->fence);
        run_bound(b, UNLOCK);
        bind(b->of[END], "ii", b->claimed[i].seq, now_ms);
        run_bound(b, END);
    }
    run_bound(b, COMMIT);
}

static void close_bare_sqlite(void *state)
{
    struct bare_sqlite *b = state;
    for (int i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(b->of[i]);
    sqlite3_close(b->db);
    free(b);
}

const struct work_subject bare_sqlite_work = {open_bare_sqlite, schedule_bare_sqlite,
                                              claim_bare_sqlite, finish_bare_sqlite,
                                              close_bare_sqlite};

/* ---- bare PostgreSQL -------------------------------------------------------------------------- */

struct bare_postgres {
    PGconn *conn;
    char *ids; /* an array, as PostgreSQL reads it */
};

static PGresult *ask(struct bare_postgres *b, const char *sql, const char *value)
{
    PGresult *result = PQexecParams(b->conn, sql, 1, NULL, &value, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        errx(1, "%s: %s", sql, PQerrorMessage(b->conn));
    return result;
}

static void *open_bare_postgres(const char *url)
{
    struct bare_postgres *b = allocate(sizeof *b);
    b->ids = allocate(WORK_BATCH_MAX * 24 + 3);
    postgres_run(url,
                 "CREATE TABLE IF NOT EXISTS job(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY"
                 " KEY, run_at timestamptz NOT NULL, state text NOT NULL, lock_id uuid, owner text,"
                 " started_at timestamptz, finished_at timestamptz, name text NOT NULL); CREATE"
                 " INDEX IF NOT EXISTS job_due ON job(run_at, id) WHERE state = 'PENDING'");
    b->conn = PQconnectdb(url);
    if (PQstatus(b->conn) != CONNECTION_OK)
        errx(1, "%s", PQerrorMessage(b->conn));
    return b;
}

static void schedule_bare_postgres(void *state, int n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    PQclear(ask(state,
                "INSERT INTO job(run_at, state, name) SELECT clock_timestamp(), 'PENDING', 'noop/'"
                " || i FROM generate_series(1, $1::int) AS i",
                text));
}

static int claim_bare_postgres(void *state, int n)
{
    struct bare_postgres *b = state;
    char text[16], *to = b->ids;
    snprintf(text, sizeof text, "%d", n);
    PGresult *result = ask(
        b,
        "UPDATE job SET state = 'RUNNING', lock_id = gen_random_uuid(), owner = 'owner/1',"
        " started_at = clock_timestamp() WHERE id = ANY (ARRAY(SELECT id FROM job WHERE state ="
        " 'PENDING' AND run_at <= now() ORDER BY run_at, id LIMIT $1::int FOR UPDATE SKIP LOCKED))"
        " RETURNING id, name, lock_id",
        text);
    int rows = PQntuples(result);
    for (int i = 0; i < rows; i++)
        to += sprintf(to, "%c%s", i ? ',' : '{', PQgetvalue(result, i, 0));
    strcpy(to, rows ? "}" : "{}");
    PQclear(result);
    return rows;
}

static void finish_bare_postgres(void *state)
{
    struct bare_postgres *b = state;
    PQclear(ask(b,
                "UPDATE job SET state = 'SUCCESS', finished_at = clock_timestamp(), lock_id = NULL"
                " WHERE id = ANY ($1::bigint[])",
                b->ids));
}

static void close_bare_postgres(void *state)
{
    struct bare_postgres *b = state;
    PQfinish(b->conn);
    free(b->ids);
    free(b);
}

const struct work_subject bare_postgres_work = {open_bare_postgres, schedule_bare_postgres,
                                                claim_bare_postgres, finish_bare_postgres,
                                                close_bare_postgres};
