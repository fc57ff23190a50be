/*
 * What a lock costs on PostgreSQL without us. All statements are unnamed and parameterised, as ours
 * are: only such pass through a pooler that gives each transaction another session.
 */
#include <err.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { PORT = 54329, HUNDRED = 100, POLL_US = 100000 };

struct peer {
    PGconn *conn;
    int64_t serial;
    char token[40];
    char names[HUNDRED * 48], tokens[HUNDRED * 40]; /* arrays, as PostgreSQL reads them */
};

/* ---- talking to it --------------------------------------------------------------------------- */

static void no_notices(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

static PGconn *connect_to(const char *url)
{
    PGconn *conn = PQconnectdb(url);
    if (PQstatus(conn) != CONNECTION_OK)
        errx(1, "%s", PQerrorMessage(conn));
    PQsetNoticeProcessor(conn, no_notices, NULL);
    return conn;
}

static void run_all(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        errx(1, "%s: %s", sql, PQerrorMessage(conn));
    PQclear(result);
}

/* One statement, one round trip: how many rows it changed or returned; the first value in `ret`. */
static int ask(struct peer *p, const char *sql, int n, const char *const values[], char ret[40])
{
    PGresult *result = PQexecParams(p->conn, sql, n, NULL, values, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        errx(1, "%s: %s", sql, PQerrorMessage(p->conn));
    int rows = status == PGRES_TUPLES_OK ? PQntuples(result) : atoi(PQcmdTuples(result));
    if (ret && rows > 0)
        snprintf(ret, 40, "%s", PQgetvalue(result, 0, 0));
    PQclear(result);
    return rows;
}

char *postgres_database(const struct bench_env *env, const char *name)
{
    char *server, *url, sql[128];
    if (asprintf(&server, "postgres://bench@/postgres?host=%s/postgres&port=%d", env->dir, PORT) <
            0 ||
        asprintf(&url, "postgres://bench@/%s?host=%s/postgres&port=%d", name, env->dir, PORT) < 0)
        err(1, "asprintf");
    snprintf(sql, sizeof sql, "CREATE DATABASE %s", name);
    postgres_run(server, sql);
    free(server);
    return url;
}

void postgres_run(const char *url, const char *sql)
{
    PGconn *conn = connect_to(url);
    run_all(conn, sql);
    PQfinish(conn);
}

double postgres_pgbench(const char *url, const char *script, int n, int seconds)
{
    char *command, line[256];
    double per_second = 0;
    if (asprintf(&command, "pgbench -n -M extended -c %d -j %d -T %d -f '%s' '%s' 2>&1", n,
                 n < 2 ? n : 2, seconds, script, url) < 0)
        err(1, "asprintf");
    FILE *f = popen(command, "re");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "tps = %lf", &per_second);
    if (!f || pclose(f) != 0 || per_second <= 0)
        errx(1, "%s: did not print tps", command);
    free(command);
    return per_second;
}

static void *open_peer(const char *url, const char *schema)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p)
        err(1, "calloc");
    p->conn = connect_to(url);
    run_all(p->conn, schema);
    return p;
}

static void close_peer(void *state)
{
    struct peer *p = state;
    PQfinish(p->conn);
    free(p);
}

/* ---- bare: the two statements that a lock needs ---------------------------------------------- */

static const char bare_schema[] =
    "CREATE TABLE IF NOT EXISTS bare(name text PRIMARY KEY, lock_id uuid, fence bigint NOT NULL,"
    " owner text, locked_at timestamptz, locked_until timestamptz NOT NULL)";

#define BARE_CONFLICT                                                                              \
    " ON CONFLICT (name) DO UPDATE SET lock_id = excluded.lock_id, fence = bare.fence + 1,"        \
    " owner = excluded.owner, locked_at = excluded.locked_at,"                                     \
    " locked_until = excluded.locked_until WHERE bare.locked_until < clock_timestamp()"            \
    " RETURNING fence"
#define BARE_VALUES "1, 'owner/1', clock_timestamp(), clock_timestamp() + interval '60 s'"
#define BARE_GIVE "UPDATE bare SET lock_id = NULL, locked_until = '-infinity'"

static void *open_bare(const char *url) { return open_peer(url, bare_schema); }

static void next_token(struct peer *p, char ret[40])
{
    snprintf(ret, 40, "%08x-0000-4000-8000-%012llx", (unsigned)getpid(), (long long)++p->serial);
}

static bool try_bare(struct peer *p, const char *name)
{
    next_token(p, p->token);
    return ask(p, "INSERT INTO bare VALUES($1, $2, " BARE_VALUES ")" BARE_CONFLICT, 2,
               (const char *[]){name, p->token}, NULL) == 1;
}

static void take_bare(void *state, const char *name)
{
    if (!try_bare(state, name))
        errx(1, "bare PostgreSQL: %s is held", name);
}

static void give_bare(void *state, const char *name)
{
    struct peer *p = state;
    if (ask(p, BARE_GIVE " WHERE name = $1 AND lock_id = $2", 2, (const char *[]){name, p->token},
            NULL) != 1)
        errx(1, "bare PostgreSQL: %s was lost", name);
}

const char bare_pgbench_script[] =
    "\\set token random(1, 1000000000)\n"
    "INSERT INTO bare VALUES('item-' || lpad(:client_id::text, 8, '0'),"
    " ('00000000-0000-4000-8000-' || lpad(:token::text, 12, '0'))::uuid, " BARE_VALUES
    ")" BARE_CONFLICT ";\n" BARE_GIVE " WHERE name = 'item-' || lpad(:client_id::text, 8, '0') AND"
    " lock_id = ('00000000-0000-4000-8000-' || lpad(:token::text, 12, '0'))::uuid;\n";

const struct subject bare_postgres = {open_bare, take_bare, give_bare, close_peer};

/* ---- waiting for it -------------------------------------------------------------------------- */

static void take_retrying(void *state, const char *name)
{
    while (!try_bare(state, name)) {
    }
}

static void take_polling(void *state, const char *name)
{
    while (!try_bare(state, name))
        bench_sleep_us(POLL_US);
}

const struct subject retry_postgres = {open_bare, take_retrying, give_bare, close_peer};
const struct subject poll_postgres = {open_bare, take_polling, give_bare, close_peer};

static void *open_notify(const char *url)
{
    struct peer *p = open_bare(url);
    run_all(p->conn, "LISTEN bare");
    return p;
}

static bool was_notified(struct peer *p)
{
    PGnotify *notify = PQnotifies(p->conn);
    PQfreemem(notify);
    return notify != NULL;
}

static void take_notified(void *state, const char *name)
{
    struct peer *p = state;
    while (!try_bare(p, name))
        while (!was_notified(p)) {
            struct pollfd wait = {PQsocket(p->conn), POLLIN, 0};
            if (poll(&wait, 1, -1) < 0 || !PQconsumeInput(p->conn))
                errx(1, "waiting for NOTIFY: %s", PQerrorMessage(p->conn));
        }
}

static void give_notify(void *state, const char *name)
{
    struct peer *p = state;
    if (ask(p,
            "WITH given AS (" BARE_GIVE " WHERE name = $1 AND lock_id = $2 RETURNING name)"
            " SELECT pg_notify('bare', name) FROM given",
            2, (const char *[]){name, p->token}, NULL) != 1)
        errx(1, "bare PostgreSQL: %s was lost", name);
}

const struct subject notify_postgres = {open_notify, take_notified, give_notify, close_peer};

/* ---- a hundred at once ----------------------------------------------------------------------- */

static void take_hundred(void *state, const char *name)
{
    struct peer *p = state;
    char *names = p->names, *tokens = p->tokens, token[40];
    for (int i = 0; i < HUNDRED; i++) {
        char before = i == 0 ? '{' : ',';
        next_token(p, token);
        names += sprintf(names, "%c%s-%d", before, name, i);
        tokens += sprintf(tokens, "%c%s", before, token);
    }
    strcpy(names, "}");
    strcpy(tokens, "}");
    if (ask(p,
            "INSERT INTO bare SELECT n, t, " BARE_VALUES
            " FROM unnest($1::text[], $2::uuid[]) AS u(n, t)" BARE_CONFLICT,
            2, (const char *[]){p->names, p->tokens}, NULL) != HUNDRED)
        errx(1, "bare PostgreSQL: not all hundred were free");
}

static void give_hundred(void *state, const char *name)
{
    (void)name;
    struct peer *p = state;
    if (ask(p,
            BARE_GIVE " FROM unnest($1::text[], $2::uuid[]) AS u(n, t)"
                      " WHERE name = n AND lock_id = t",
            2, (const char *[]){p->names, p->tokens}, NULL) != HUNDRED)
        errx(1, "bare PostgreSQL: not all hundred were held");
}

const struct subject bare_hundred = {open_bare, take_hundred, give_hundred, close_peer};

/* ---- seed 003: a row per lock ever taken ----------------------------------------------------- */

#define SEED_TABLE                                                                                 \
    "CREATE TABLE IF NOT EXISTS instance_locks(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY "    \
    "KEY,"                                                                                         \
    " instance_id bigint NOT NULL, lock_token uuid UNIQUE NOT NULL DEFAULT gen_random_uuid(),"     \
    " locked_at timestamptz NOT NULL DEFAULT current_timestamp, locked_until timestamptz NOT "     \
    "NULL,"                                                                                        \
    " locked_by varchar(255) NOT NULL)"

static const char seed_take[] =
    "WITH attempt AS (SELECT pg_try_advisory_xact_lock($1::bigint) AS acquired)"
    " INSERT INTO instance_locks(instance_id, locked_until, locked_by)"
    " SELECT $1::bigint, current_timestamp + interval '5 min', 'owner/1' FROM attempt"
    " WHERE acquired AND NOT EXISTS (SELECT 1 FROM instance_locks WHERE instance_id = $1::bigint"
    " AND locked_until > current_timestamp) RETURNING lock_token";
static const char seed_give[] =
    "UPDATE instance_locks SET locked_until = current_timestamp WHERE lock_token = $1";

static void *open_seed(const char *url) { return open_peer(url, SEED_TABLE); }

static void *open_seed_indexed(const char *url)
{
    return open_peer(url, SEED_TABLE "; CREATE INDEX IF NOT EXISTS instance_locks_instance ON"
                                     " instance_locks(instance_id, locked_until)");
}

/* Its names are numbers: the digits of ours. */
static void take_seed(void *state, const char *name)
{
    struct peer *p = state;
    const char *digits = strpbrk(name, "0123456789");
    if (ask(p, seed_take, 1, (const char *[]){digits ? digits : "0"}, p->token) != 1)
        errx(1, "seed 003: %s is held", name);
}

static void give_seed(void *state, const char *name)
{
    struct peer *p = state;
    if (ask(p, seed_give, 1, (const char *[]){p->token}, NULL) != 1)
        errx(1, "seed 003: %s was lost", name);
}

const struct subject seed_postgres = {open_seed, take_seed, give_seed, close_peer};
const struct subject seed_indexed = {open_seed_indexed, take_seed, give_seed, close_peer};
