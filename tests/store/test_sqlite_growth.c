/*
 * What the sqlite store does costs what it is about, however much else is kept. Cost is counted in
 * steps of SQLite's machine, and never in time.
 */
#include <sqlite3.h>
#include <string.h>

#include "client.h"
#include "place.h"
#include "sqlite/sqlite_store.h"

static int set_up(void **state) { return place_make(state, "sqlite", "/h.db"); }

static sqlite3 *connection_of(const struct hf *hf) { return hf_sqlite_of(hf->store)->db; }

/* ---- plans ---------------------------------------------------------------------------------- */

static const struct {
    const char *name, *sql;
} statements[] = {
#define X(name, sql) {#name, sql},
    HF_SQLITE_STATEMENTS(X)
#undef X
};

/* Rows of a sub-query are counted where that is limited. */
static bool reads_all(const char *step)
{
    return (strncmp(step, "SCAN ", 5) == 0 && strncmp(step, "SCAN (subquery", 14) != 0) ||
           strstr(step, "TEMP B-TREE") || strstr(step, "AUTOMATIC");
}

static void check_plan(sqlite3 *db, const char *name, const char *sql)
{
    char explain[6000];
    sqlite3_stmt *stmt;
    assert_true(snprintf(explain, sizeof explain, "EXPLAIN QUERY PLAN %s", sql) <
                (int)sizeof explain);
    if (sqlite3_prepare_v2(db, explain, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", name, sqlite3_errmsg(db));
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *step = (const char *)sqlite3_column_text(stmt, 3);
        if (reads_all(step))
            fail_msg("%s: %s", name, step);
    }
    sqlite3_finalize(stmt);
}

static void no_statement_about_executions_reads_or_sorts_them_all(void **state)
{
    struct hf *hf = open_ok(*state);
    int n = 0;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (strstr(statements[i].sql, "execution ")) {
            check_plan(connection_of(hf), statements[i].name, statements[i].sql);
            n++;
        }
    assert_true(n > 20);
    hf_close(hf);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(no_statement_about_executions_reads_or_sorts_them_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
