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

/* Rows of a sub-query (called x) are limited there, and totals are of all locks. */
static bool reads_all(const char *step)
{
    static const char *const bounded[] = {"SCAN (subquery", "SCAN x", "SCAN lock",
                                          "USE TEMP B-TREE FOR DISTINCT"};
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++)
        if (strncmp(step, bounded[i], strlen(bounded[i])) == 0)
            return false;
    return strncmp(step, "SCAN ", 5) == 0 || strstr(step, "TEMP B-TREE") ||
           strstr(step, "AUTOMATIC");
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

/* ---- costs ---------------------------------------------------------------------------------- */

static void run_sql(struct hf *hf, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void run_sql(struct hf *hf, const char *format, ...)
{
    char sql[1000], *message = NULL;
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    if (sqlite3_exec(connection_of(hf), sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
}

/* `n` executions; `lock` and the rest are SQL, in which i counts them. */
static void add_rows(struct hf *hf, int n, const char *lock, const char *state, const char *run_at,
                     const char *concurrency)
{
    run_sql(
        hf,
        "INSERT INTO execution (id, workflow, lock, state, run_at, priority, attempt, created_at,"
        " finished_at, cancel_requested, spawned, once, to_verify, on_lost, max_attempts, spent,"
        " retry_backoff_ms, concurrency, parked)"
        " WITH RECURSIVE many(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM many WHERE i < %d - 1)"
        " SELECT lower(hex(randomblob(18))), 'pay', %s, '%s', %s, i %% 4, 0, 1,"
        " iif('%s' = 'PENDING', NULL, unixepoch() * 1000), 0, 0, 0, 0, 0, 0, 0, 0, %s, 0 FROM many",
        n, lock, state, run_at, state, concurrency);
}

static int64_t count_steps(struct hf *hf)
{
    int64_t steps = 0;
    sqlite3_stmt *stmt = NULL;
    while ((stmt = sqlite3_next_stmt(connection_of(hf), stmt)))
        steps += sqlite3_stmt_status(stmt, SQLITE_STMTSTATUS_VM_STEP, 1);
    return steps;
}

static int ignore(void *arg, const struct hf_execution *x)
{
    (void)arg;
    assert_non_null(x);
    return 0;
}

static void list(struct hf *hf, const char *workflow, int state)
{
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    query.workflow = workflow;
    query.state = state;
    query.limit = 5;
    assert_int_equal(hf_executions(hf, &query, ignore, NULL, NULL), 0);
}

enum { ENQUEUE, REJECT, CLAIM, CLAIM_OF, SPAWN, FINISH, BEGIN, SWEEP, LISTS, LIMITED, COSTS };
static const char *const cost_names[COSTS] = {"enqueue", "reject", "claim", "claim of a workflow",
                                              "spawned", "finish", "begin", "sweep",
                                              "lists",   "limited"};

static struct hf_begin_options of_lock(const char *lock)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    o.workflow = "pay";
    o.lock = lock;
    o.overlap = HF_OVERLAP_QUEUE;
    o.priority = 1;
    return o;
}

static struct hf_lease claim(struct hf *hf, const char *workflow)
{
    struct hf_claim_options o = HF_CLAIM_INIT;
    struct hf_claimed claimed;
    size_t n = 0;
    o.workflows = &workflow;
    o.n_workflows = workflow != NULL;
    assert_int_equal(hf_claim(hf, &o, 1, &claimed, &n, NULL), 0);
    assert_int_equal(n, 1);
    return claimed.lease;
}

static void end(struct hf *hf, const struct hf_lease *lease)
{
    struct hf_result done = HF_RESULT_INIT;
    assert_int_equal(hf_finish(hf, lease, &done, NULL), 0);
}

/* One of everything that happens all the time, each with what it costs. */
static void live(struct hf *hf, int64_t costs[COSTS])
{
    struct hf_begin_options o = of_lock("pay"), limited = of_lock("few"), now = of_lock("now");
    struct hf_lease lease;
    struct hf_execution x;
    o.overlap = HF_OVERLAP_REJECT;
    limited.concurrency = 3;
    count_steps(hf);
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    costs[ENQUEUE] = count_steps(hf);
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), -HF_HELD);
    costs[REJECT] = count_steps(hf);
    lease = claim(hf, NULL);
    costs[CLAIM] = count_steps(hf);
    assert_int_equal(hf_spawned(hf, &lease, NULL), 0);
    costs[SPAWN] = count_steps(hf);
    end(hf, &lease);
    costs[FINISH] = count_steps(hf);
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    count_steps(hf);
    lease = claim(hf, "pay");
    costs[CLAIM_OF] = count_steps(hf);
    end(hf, &lease);
    count_steps(hf);
    assert_int_equal(hf_begin(hf, &now, &lease, &x, NULL), 0);
    costs[BEGIN] = count_steps(hf);
    assert_int_equal(hf_sweep(hf, false, NULL, NULL, NULL, NULL), 0);
    costs[SWEEP] = count_steps(hf);
    for (int state = -1; state < HF_EXECUTION_STATE_COUNT; state++) {
        list(hf, NULL, state);
        list(hf, "pay", state);
        list(hf, "none", state);
    }
    costs[LISTS] = count_steps(hf);
    end(hf, &lease);
    assert_int_equal(hf_enqueue(hf, &limited, &x, NULL), 0);
    count_steps(hf);
    lease = claim(hf, NULL);
    costs[LIMITED] = count_steps(hf);
    end(hf, &lease);
}

/* The least of a few: now and then one also prunes or makes a checkpoint. */
static void measure(struct hf *hf, int64_t least[COSTS])
{
    int64_t costs[COSTS];
    live(hf, least); /* prepares the statements */
    live(hf, least);
    for (int i = 0; i < 5; i++) {
        live(hf, costs);
        for (int j = 0; j < COSTS; j++)
            least[j] = costs[j] < least[j] ? costs[j] : least[j];
    }
}

static void compare(struct hf *hf, const int64_t before[COSTS], const char *what)
{
    int64_t costs[COSTS];
    measure(hf, costs);
    for (int i = 0; i < COSTS; i++)
        if (2 * costs[i] > 3 * before[i])
            fail_msg("%s: %s took %lld steps, and now %lld", what, cost_names[i],
                     (long long)before[i], (long long)costs[i]);
}

#define LATER "99999999999999 + i"

static void costs_do_not_grow_with_what_is_kept(void **state)
{
    struct hf *hf = open_ok(*state);
    int64_t before[COSTS];
    static const char *const states[] = {"SUCCESS", "FAILED", "ABORTED"};
    struct hf_begin_options o = of_lock("busy");
    struct hf_lease busy;
    struct hf_execution x;
    assert_int_equal(hf_begin(hf, &o, &busy, &x, NULL), 0);
    for (size_t i = 0; i < 3; i++)
        add_rows(hf, 10, "'pay'", states[i], "1", "0");
    add_rows(hf, 500, "'pay'", "PENDING", LATER, "0");
    add_rows(hf, 500, "'few'", "PENDING", LATER, "3");
    measure(hf, before);
    add_rows(hf, 50000, "'pay'", "PENDING", LATER, "0");
    add_rows(hf, 25000, "'few'", "PENDING", LATER, "3");
    add_rows(hf, 25000, "'other-' || i", "PENDING", LATER, "0");
    compare(hf, before, "with 100,000 that are to run later");
    for (size_t i = 0; i < 3; i++)
        add_rows(hf, 34000, "'pay'", states[i], "1", "0");
    compare(hf, before, "with 100,000 that are over");
    add_rows(hf, 5000, "'busy'", "PENDING", "1 + i", "0");
    compare(hf, before, "with 5,000 that wait for a held name");
    run_sql(hf, "ANALYZE");
    hf_close(hf);
    hf = open_ok(*state);
    compare(hf, before, "with statistics");
    hf_close(hf);
}

/* How many transactions were committed since the last time. */
static int count_commits(struct hf *hf)
{
    return sqlite3_stmt_status(hf_sqlite_of(hf->store)->stmts[HF_STMT_COMMIT],
                               SQLITE_STMTSTATUS_RUN, 1);
}

static void a_backlog_of_one_name_is_parked_together(void **state)
{
    enum { BACKLOG = 10000, WORKERS = 4 };
    struct hf *hf = open_ok(*state);
    struct hf_begin_options o = of_lock("other");
    struct hf_claimed claimed[WORKERS];
    struct hf_execution x;
    size_t n = 0;
    add_rows(hf, BACKLOG, "'busy'", "PENDING", "1 + i", "0");
    o.priority = -1; /* goes last */
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    count_commits(hf);
    assert_int_equal(hf_claim(hf, NULL, WORKERS, claimed, &n, NULL), 0);
    assert_int_equal(n, 2);
    assert_string_equal(claimed[0].lease.name, "busy");
    assert_string_equal(claimed[1].lease.name, "other");
    int commits = count_commits(hf);
    if (commits > 3 * BACKLOG / HF_PARKED_AT_ONCE)
        fail_msg("it took %d transactions", commits);
    assert_int_equal(hf_claim(hf, NULL, WORKERS, claimed, &n, NULL), 0);
    assert_int_equal(n, 0);
    hf_close(hf);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(no_statement_about_executions_reads_or_sorts_them_all),
        TEST(costs_do_not_grow_with_what_is_kept),
        TEST(a_backlog_of_one_name_is_parked_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
