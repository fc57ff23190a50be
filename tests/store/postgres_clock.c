/* holdfast.clock() replaced by one that reads a row, through a connection of the test's own. */
#include <err.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_clock.h"

static PGconn *conn;

static void run(const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        errx(1, "%s: %s", sql, PQerrorMessage(conn));
    PQclear(result);
}

static void take(const char *url)
{
    conn = PQconnectdb(url);
    if (PQstatus(conn) != CONNECTION_OK)
        errx(1, "%s", PQerrorMessage(conn));
    run("SET client_min_messages = warning");
    run("SET synchronous_commit = off");
    run("CREATE TABLE test_clock (now timestamptz NOT NULL)");
    run("INSERT INTO test_clock VALUES (clock_timestamp())");
    run("CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
        " AS 'SELECT now FROM public.test_clock'");
}

static void set(int64_t wall_ms)
{
    char sql[128];
    snprintf(sql, sizeof sql, "UPDATE test_clock SET now = to_timestamp(%lld / 1000.0)",
             (long long)wall_ms);
    run(sql);
}

static void give_back(void)
{
    PQfinish(conn);
    conn = NULL;
}

const struct engine_clock postgres_clock = {
    .scheme = "postgres", .take = take, .set = set, .give_back = give_back};
