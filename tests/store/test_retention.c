/*
 * How long executions are kept, on a real store: what goes, what stays, and by whose rules.
 *
 *     test_retention --store URL        (tests/store/in-scratch has one)
 */
#include "retention.h"

#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../unit/check.h"
#include "clock.h"
#include "sqlite/sqlite_store.h"

#define DAY INT64_C(86400000)

static const char *store_url;
static char url[300]; /* of this test's own store */
static struct hf *hf;
static struct hf_error err;
static PGconn *conn;
static sqlite3 *db;

static bool is_postgres(void) { return strncmp(store_url, "postgres:", 9) == 0; }

/* ---- past the library ----------------------------------------------------------------------- */

static int64_t ask_postgres(const char *text)
{
    PGresult *result = PQexec(conn, text);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    int64_t number = PQntuples(result) && !PQgetisnull(result, 0, 0)
                         ? strtoll(PQgetvalue(result, 0, 0), NULL, 10)
                         : 0;
    PQclear(result);
    return number;
}

static int note_number(void *arg, int n, char **values, char **names)
{
    if (n && values[0])
        *(int64_t *)arg = strtoll(values[0], NULL, 10);
    return 0;
}

static int64_t ask_sqlite(const char *text)
{
    int64_t number = 0;
    if (sqlite3_exec(db, text, note_number, &number, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    return number;
}

/* The first number of the answer; tables are named as sqlite has them. */
static int64_t sql(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int64_t sql(const char *format, ...)
{
    char text[2000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return is_postgres() ? ask_postgres(text) : ask_sqlite(text);
}

static int open_one(void **state)
{
    static int stores;
    snprintf(url, sizeof url, is_postgres() ? "%s" : "%s%d", store_url, ++stores);
    if (is_postgres()) {
        conn = PQconnectdb(url);
        sql("SET client_min_messages = error; DROP SCHEMA IF EXISTS holdfast CASCADE;"
            "SET search_path = holdfast, public");
    } else if (sqlite3_open(strchr(url, ':') + 1, &db) == SQLITE_OK)
        sqlite3_busy_timeout(db, 60000);
    if (hf_open(url, &hf, &err) < 0) {
        print_error("%s: %s\n", url, err.message);
        return -1;
    }
    return 0;
}

static int close_one(void **state)
{
    hf_close(hf);
    if (is_postgres())
        PQfinish(conn);
    else
        sqlite3_close(db);
    return 0;
}

/* ---- executions by the thousand -------------------------------------------------------------- */

struct batch {
    const char *workflow, *key, *state; /* key: with its number behind it; NULL: none */
    int n;
    int64_t ended_ms; /* ago; a day earlier each where `daily`; 0: not at all */
    bool once, daily;
};

static void add_to_postgres(const struct batch *b)
{
    sql("WITH made AS (INSERT INTO execution (id, workflow, lock, state, key, once, run_at,"
        " created_at, finished_at) SELECT gen_random_uuid(), '%s', '%s', '%s', %s%s%s%s, %s, now(),"
        " now(), CASE WHEN %lld > 0 THEN now() - (%lld + (%d - i) * %lld) * interval '1"
        " millisecond' END FROM generate_series(1, %d) AS i ORDER BY i RETURNING *)"
        " INSERT INTO ended (finished_at, seq, once, workflow) SELECT finished_at, seq, once,"
        " workflow FROM made WHERE finished_at IS NOT NULL",
        b->workflow, b->workflow, b->state, b->key ? "'" : "", b->key ? b->key : "NULL",
        b->key ? "'" : "", b->key ? " || i" : "", b->once ? "true" : "false",
        (long long)b->ended_ms, (long long)b->ended_ms, b->n, (long long)(b->daily ? DAY : 0),
        b->n);
}

/* Copies of one that the store has made: so it need not be known which columns there are. */
static void add_to_sqlite(const struct batch *b)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    struct hf_execution x;
    o.workflow = "template";
    o.run_at_ms = hf_clock_wall_ms() + DAY;
    assert_int_equal(hf_enqueue(hf, &o, &x, &err), 0);
    sql("CREATE TEMP TABLE copy AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
        " WHERE i < %d) SELECT execution.* FROM execution, n WHERE workflow = 'template'",
        b->n);
    sql("UPDATE copy SET seq = NULL, id = lower(hex(randomblob(18))), workflow = '%s',"
        " lock = '%s', state = '%s', once = %d, key = %s%s%s%s, finished_at = CASE WHEN %lld > 0"
        " THEN %lld - (%d - rowid) * %lld END",
        b->workflow, b->workflow, b->state, b->once, b->key ? "'" : "", b->key ? b->key : "NULL",
        b->key ? "'" : "", b->key ? " || rowid" : "", (long long)b->ended_ms,
        (long long)(hf_clock_wall_ms() - b->ended_ms), b->n, (long long)(b->daily ? DAY : 0));
    sql("INSERT INTO execution SELECT * FROM copy");
    sql("DROP TABLE copy");
    sql("DELETE FROM execution WHERE workflow = 'template'");
}

static void add(struct batch b)
{
    if (!b.state)
        b.state = "SUCCESS";
    is_postgres() ? add_to_postgres(&b) : add_to_sqlite(&b);
}

static int64_t count(const char *workflow)
{
    return sql("SELECT count(*) FROM execution WHERE workflow = '%s'", workflow);
}

static int64_t prune_by(struct hf *by, const struct hf_retention *rules, size_t n)
{
    int64_t removed = -1;
    if (hf_prune(by, rules, n, HF_FOREVER, &removed, &err) < 0)
        fail_msg("%s", err.message);
    return removed;
}

static int64_t prune(void) { return prune_by(hf, NULL, 0); }

static void note(const char *workflow, int64_t keep_ms, int64_t keep_count)
{
    struct hf_retention rule = {workflow, keep_ms, keep_count};
    int64_t removed = -1;
    assert_int_equal(hf_prune(hf, &rule, 1, 0, &removed, &err), 0);
    assert_int_equal(removed, 0);
}

/* ---- what goes and what stays --------------------------------------------------------------- */

static void what_ended_long_ago_goes(void **state)
{
    add((struct batch){.workflow = "a", .n = 1700, .ended_ms = 91 * DAY, .key = "k"});
    add((struct batch){.workflow = "a", .n = 40, .ended_ms = 89 * DAY});
    add((struct batch){.workflow = "b", .n = 30, .ended_ms = 91 * DAY, .state = "FAILED"});
    add((struct batch){.workflow = "b", .n = 20, .ended_ms = 91 * DAY, .state = "ABORTED"});
    assert_int_equal(prune(), 1750);
    assert_int_equal(count("a"), 40);
    assert_int_equal(count("b"), 0);
    assert_int_equal(prune(), 0);
}

/* Even where somebody has written a time of an end into it. */
static void what_has_not_ended_stays(void **state)
{
    add((struct batch){.workflow = "a", .n = 5, .ended_ms = 91 * DAY, .state = "PENDING"});
    add((struct batch){.workflow = "a", .n = 5, .ended_ms = 91 * DAY, .state = "RUNNING"});
    add((struct batch){.workflow = "b", .n = 5, .state = "PENDING"});
    note("a", 1000, 1);
    note("b", 1000, 1);
    assert_int_equal(prune(), 0);
    assert_int_equal(count("a") + count("b"), 15);
}

static void each_workflow_has_its_own_rule(void **state)
{
    add((struct batch){.workflow = "long", .n = 10, .ended_ms = 200 * DAY});
    add((struct batch){.workflow = "short", .n = 10, .ended_ms = 8 * DAY});
    add((struct batch){.workflow = "usual", .n = 10, .ended_ms = 8 * DAY});
    note("long", 365 * DAY, 0);
    note("short", 7 * DAY, 0);
    struct hf *other; /* which has been told nothing */
    assert_int_equal(hf_open(url, &other, &err), 0);
    assert_int_equal(prune_by(other, NULL, 0), 10);
    hf_close(other);
    assert_int_equal(count("short"), 0);
    note("long", 0, 0);
    assert_int_equal(sql("SELECT count(*) FROM retain"), 1);
    assert_int_equal(prune(), 10);
    assert_int_equal(count("long"), 0);
    assert_int_equal(count("usual"), 10);
}

static void only_so_many_are_kept(void **state)
{
    add((struct batch){.workflow = "a", .n = 1300, .ended_ms = DAY}); /* in the same moment */
    add((struct batch){.workflow = "a", .n = 20, .ended_ms = DAY / 2, .key = "new"});
    add((struct batch){.workflow = "b", .n = 5, .ended_ms = DAY, .daily = true});
    note("a", 0, 30);
    note("b", 2 * DAY + DAY / 2, 3);
    assert_int_equal(prune(), 1290 + 3);
    assert_int_equal(count("a"), 30);
    assert_int_equal(sql("SELECT count(*) FROM execution WHERE key LIKE 'new%%'"), 20);
    assert_int_equal(count("b"), 2);
    assert_int_equal(prune(), 0);
}

static void the_last_slot_of_a_schedule_stays(void **state)
{
    static const char last[] = "cron:2020-01-01T00:00:00.003";
    char key[HF_KEY_MAX + 1];
    add((struct batch){
        .workflow = "a", .n = 3, .key = "cron:2020-01-01T00:00:00.00", .ended_ms = 99 * DAY});
    add((struct batch){.workflow = "a", .n = 3, .key = "cronies", .ended_ms = 99 * DAY});
    note("a", 1000, 1);
    assert_int_equal(prune(), 5);
    assert_int_equal(hf_last_key(hf, "a", "cron:", "cron;", key, &err), 0);
    assert_string_equal(key, last);
    assert_int_equal(prune(), 0);
}

static void a_key_goes_with_its_record(void **state)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    struct hf_execution first, second;
    o.workflow = "a";
    o.key = "k1";
    add((struct batch){.workflow = "a", .n = 1, .key = "k", .ended_ms = 99 * DAY});
    assert_int_equal(hf_enqueue(hf, &o, &first, &err), 0);
    assert_true(first.duplicate);
    assert_int_equal(prune(), 1);
    assert_int_equal(hf_enqueue(hf, &o, &second, &err), 0);
    assert_false(second.duplicate);
}

static void input_and_output_go_with_it(void **state)
{
    char big[20000] = "";
    struct hf_begin_options o = HF_BEGIN_INIT;
    struct hf_result result = HF_RESULT_INIT;
    struct hf_lease lease;
    struct hf_execution x;
    o.workflow = "a";
    o.input = result.output_head = big;
    o.input_size = result.output_head_size = sizeof big;
    assert_int_equal(hf_begin(hf, &o, &lease, &x, &err), 0);
    assert_int_equal(hf_finish(hf, &lease, &result, &err), 0);
    sql(is_postgres() ? "UPDATE execution SET finished_at = finished_at - interval '91 days';"
                        "UPDATE ended SET finished_at = finished_at - interval '91 days'"
                      : "UPDATE execution SET finished_at = finished_at - 91 * 86400000");
    assert_int_equal(prune(), 1);
    assert_int_equal(hf_execution_of(hf, x.id, &x, &err), -HF_NOT_FOUND);
    if (is_postgres())
        assert_int_equal(sql("SELECT count(*) FROM execution_data"), 0);
}

/* ---- in steps ------------------------------------------------------------------------------- */

static void who_has_little_time_goes_on_where_it_stopped(void **state)
{
    struct hf_retention rule = {.workflow = "m"};
    int64_t all = 0, removed = -1;
    char name[8];
    for (char c = 'a'; c <= 'z'; c++) {
        snprintf(name, sizeof name, "%c", c);
        add((struct batch){.workflow = name, .n = 100, .ended_ms = 91 * DAY});
    }
    assert_int_equal(hf_prune(hf, &rule, 1, 1, &removed, &err), 0);
    assert_true(removed >= 64); /* a step, at least */
    assert_true(count("m") < 100);
    for (int turn = 0; turn < 100 && sql("SELECT count(*) FROM execution"); turn++) {
        all += removed;
        assert_int_equal(hf_prune(hf, NULL, 0, 1, &removed, &err), 0);
    }
    assert_int_equal(all + removed, 2600);
}

static void a_tick_notes_the_rules_and_asks_to_be_called_again(void **state)
{
    struct hf_workflow of[] = {{.name = "a", .keep_ms = DAY}, {.name = "b", .keep_count = 7}};
    struct hf_workflows all = {.of = of, .n = 2};
    add((struct batch){.workflow = "a", .n = 10, .ended_ms = 2 * DAY});
    add((struct batch){.workflow = "b", .n = 10, .ended_ms = 2 * DAY});
    int64_t next_ms = hf_retention_tick(&all, hf, 5000);
    assert_true(next_ms >= 5000 + 45000 && next_ms <= 5000 + 75000);
    for (int turn = 0; turn < 100 && count("a") + count("b") > 7; turn++)
        hf_retention_tick(&all, hf, 5000);
    assert_int_equal(count("a"), 0);
    assert_int_equal(count("b"), 7);
    assert_true(hf_retention_tick(NULL, hf, 0) > 0);
}

/* For stores that nobody sweeps. */
static void some_go_along_with_ordinary_writes(void **state)
{
    add((struct batch){.workflow = "a", .n = 100, .ended_ms = 91 * DAY});
    add((struct batch){.workflow = "nightly", .n = 100, .ended_ms = 91 * DAY, .once = true});
    add((struct batch){.workflow = "nightly", .n = 1, .ended_ms = 89 * DAY, .once = true});
    note("nightly", 1000, 1); /* is of another kind */
    for (int i = 0; i < 2000 && count("a") + count("nightly") > 1; i++) {
        struct hf_lease lease;
        assert_int_equal(hf_acquire(hf, "x", NULL, &lease, &err), 0);
        assert_int_equal(hf_release(hf, &lease, &err), 0);
    }
    assert_int_equal(count("a"), 0);
    assert_int_equal(count("nightly"), 1);
}

/* ---- sqlite --------------------------------------------------------------------------------- */

static void its_space_is_used_again(void **state)
{
    if (is_postgres())
        return;
    int64_t pages = 0;
    for (int turn = 0; turn < 6; turn++) {
        add((struct batch){.workflow = "a", .n = 2000, .ended_ms = 91 * DAY, .key = "key"});
        if (turn == 1)
            pages = sql("PRAGMA page_count");
        assert_int_equal(prune(), 2000);
    }
    assert_true(sql("PRAGMA page_count") <= pages + pages / 10);
}

static int note_plan(void *arg, int n, char **values, char **names)
{
    char *plan = arg;
    snprintf(plan + strlen(plan), 2000 - strlen(plan), "%s; ", values[n - 1]);
    return 0;
}

static void every_look_goes_by_an_index(void **state)
{
    static const struct {
        enum hf_sqlite_stmt which;
        const char *index;
    } looks[] = {
        {HF_STMT_PRUNE,
         "INDEX execution_finished (workflow=? AND once=? AND finished_at>? AND finished_at<?)"},
        {HF_STMT_PRUNE_FIRST,
         "INDEX execution_finished (workflow=? AND once=? AND finished_at>? AND finished_at<?)"},
        {HF_STMT_PRUNE_NEWEST, "COVERING INDEX execution_finished (workflow=? AND once=?"},
        {HF_STMT_PRUNE_NEXT, "COVERING INDEX execution_finished (workflow>?)"},
        {HF_STMT_PRUNE_ONCE, "INDEX execution_once_finished (finished_at<?)"},
        {HF_STMT_PRUNE_PICK, "SEARCH execution USING INTEGER PRIMARY KEY (rowid>?)"},
        {HF_STMT_EXECUTION_LAST_KEY, "execution_key (workflow=? AND key>? AND key<?)"},
    };
    static const char *const texts[] = {
#define X(name, text) [HF_STMT_##name] = text,
        HF_SQLITE_STATEMENTS(X)
#undef X
    };
    if (is_postgres())
        return; /* tests/store/test_postgres_retention.py */
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        char explain[2000], plan[2000] = "";
        snprintf(explain, sizeof explain, "EXPLAIN QUERY PLAN %s", texts[looks[i].which]);
        assert_int_equal(sqlite3_exec(db, explain, note_plan, plan, NULL), SQLITE_OK);
        if (!strstr(plan, looks[i].index) || strstr(plan, "TEMP B-TREE"))
            fail_msg("%s: %s", texts[looks[i].which], plan);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, open_one, close_one)
        T(what_ended_long_ago_goes),
        T(what_has_not_ended_stays),
        T(each_workflow_has_its_own_rule),
        T(only_so_many_are_kept),
        T(the_last_slot_of_a_schedule_stays),
        T(a_key_goes_with_its_record),
        T(input_and_output_go_with_it),
        T(who_has_little_time_goes_on_where_it_stopped),
        T(a_tick_notes_the_rules_and_asks_to_be_called_again),
        T(some_go_along_with_ordinary_writes),
        T(its_space_is_used_again),
        T(every_look_goes_by_an_index),
#undef T
    };
    if (argc != 3 || strcmp(argv[1], "--store") != 0) {
        fprintf(stderr, "usage: test_retention --store URL\n");
        return 2;
    }
    store_url = argv[2];
    return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
