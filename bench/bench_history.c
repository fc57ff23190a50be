/* Does a store stay fast beside what it keeps: executions that are far in the future, or have ended. */
#include <err.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "holdfast.h"

enum { WORKFLOWS = 100, CHUNK = 500000 };

/* How many of each kind. */
struct amount {
    int future, ended;
};

static struct amount amount_of(const struct bench_env *env)
{
    return env->quick ? (struct amount){10000, 100000} : (struct amount){1000000, 10000000};
}

static int64_t wall_ms(void) { return (int64_t)time(NULL) * 1000; }

/* ---- filling --------------------------------------------------------------------------------- */

static void run(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        errx(1, "%s: %s", sql, sqlite3_errmsg(db));
}

static int copy_text(void *arg, int n, char **values, char **names)
{
    (void)n, (void)names;
    *(char **)arg = strdup(values[0]);
    return 0;
}

/* Every column but the number, in a row, with what stands for some of them. */
static char *columns(sqlite3 *db, const char *instead)
{
    char *list = NULL, *sql;
    if (asprintf(&sql,
                 "WITH instead(name, value) AS (VALUES %s) SELECT group_concat(coalesce(value,"
                 " c.name), ', ') FROM pragma_table_info('execution') c LEFT JOIN instead ON"
                 " instead.name = c.name WHERE c.name <> 'seq'",
                 instead) < 0)
        err(1, "asprintf");
    if (sqlite3_exec(db, sql, copy_text, &list, NULL) != SQLITE_OK || !list)
        errx(1, "%s: %s", sql, sqlite3_errmsg(db));
    free(sql);
    return list;
}

/*
 * Copies of the execution that is there. Their ids and keys lie anywhere among those to come, but are
 * made in order: so it takes minutes and not hours.
 */
static void copy_in_sqlite(sqlite3 *db, int n, const char *instead)
{
    char *names = columns(db, "('', '')"), *values = columns(db, instead), *sql;
    for (int from = 0; from < n; from += CHUNK) {
        if (asprintf(&sql,
                     "WITH RECURSIVE n(i) AS (SELECT %d UNION ALL SELECT i + 1 FROM n WHERE i <"
                     " %d) INSERT INTO execution (%s) SELECT %s FROM n, (SELECT * FROM execution"
                     " WHERE workflow = 'template')",
                     from, (from + CHUNK < n ? from + CHUNK : n) - 1, names, values) < 0)
            err(1, "asprintf");
        run(db, sql);
        free(sql);
    }
    free(names);
    free(values);
}

static void fill_sqlite(const char *url, struct amount a)
{
    sqlite3 *db;
    struct hf *hf;
    struct hf_error error;
    struct hf_execution template;
    struct hf_begin_options o = HF_BEGIN_INIT;
    o.workflow = "template";
    o.run_at_ms = wall_ms() + INT64_C(1000) * 3600 * 24 * 30;
    if (hf_open(url, &hf, &error) < 0 || hf_enqueue(hf, &o, &template, &error) < 0)
        errx(1, "%s", error.message);
    hf_close(hf);
    if (sqlite3_open(strchr(url, ':') + 1, &db) != SQLITE_OK)
        errx(1, "%s: %s", url, sqlite3_errmsg(db));
    run(db, "PRAGMA cache_size = -500000; PRAGMA synchronous = OFF");
    copy_in_sqlite(db, a.future,
                   "('id', 'printf(''%08x-0000-4000-8000-%012x'', i * 4000, i)'),"
                   "('workflow', '''w'' || i % 100'), ('lock', '''future '' || i'),"
                   "('key', 'printf(''f%08d'', i)'), ('run_at', 'run_at + i')");
    copy_in_sqlite(db, a.ended,
                   "('id', 'printf(''%08x-0000-4000-8000-%012x'', i * 400, i + 100000000)'),"
                   "('workflow', '''w'' || i % 100'), ('lock', '''ended '' || i'),"
                   "('key', 'printf(''e%08d'', i)'), ('state', '''SUCCESS'''),"
                   "('finished_at', 'created_at - 1000 + i / 10000')");
    sqlite3_close(db);
}

static void fill_postgres(const char *url, struct amount a)
{
    char *sql;
    if (asprintf(
            &sql,
            "WITH x AS (INSERT INTO holdfast.execution (id, workflow, lock, key, state, run_at,"
            " created_at) SELECT gen_random_uuid(), 'w' || i %% %d, 'future ' || i, 'f' || i,"
            " 'PENDING', now() + interval '30 days' + i * interval '1 millisecond', now() FROM"
            " generate_series(1, %d) AS i RETURNING *) INSERT INTO holdfast.pending (seq, run_at,"
            " priority, concurrency, to_verify, parked, id, workflow, lock) SELECT seq, run_at,"
            " priority, concurrency, to_verify, parked, id, workflow, lock FROM x;"
            "WITH x AS (INSERT INTO holdfast.execution (id, workflow, lock, key, state, run_at,"
            " created_at, finished_at) SELECT gen_random_uuid(), 'w' || i %% %d, 'ended ' || i,"
            " 'e' || i, 'SUCCESS', now(), now(), now() - (%d - i) * interval '1 millisecond' FROM"
            " generate_series(1, %d) AS i RETURNING *) INSERT INTO holdfast.ended (finished_at,"
            " seq, once, workflow) SELECT finished_at, seq, once, workflow FROM x",
            WORKFLOWS, a.future, WORKFLOWS, a.ended, a.ended) < 0)
        err(1, "asprintf");
    postgres_run(url, sql);
    postgres_run(url, "VACUUM ANALYZE holdfast.execution, holdfast.pending, holdfast.ended");
    free(sql);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static void finish(struct hf *hf, const struct hf_lease *lease)
{
    struct hf_result result = HF_RESULT_INIT;
    struct hf_error error;
    if (hf_finish(hf, lease, &result, &error) < 0)
        errx(1, "%s", error.message);
}

/* A start with a key, from asking to being allowed to run. */
static double begin_ns(struct hf *hf, struct hf_begin_options *o)
{
    struct hf_lease lease;
    struct hf_execution x;
    struct hf_error error;
    int64_t began_ns = bench_now_ns();
    if (hf_begin(hf, o, &lease, &x, &error) < 0)
        errx(1, "%s", error.message);
    int64_t took_ns = bench_now_ns() - began_ns;
    finish(hf, &lease);
    return (double)took_ns;
}

/* What is due is found and taken. */
static double claim_ns(struct hf *hf, struct hf_begin_options *o)
{
    static struct hf_claimed claimed;
    struct hf_execution x;
    struct hf_error error;
    size_t n;
    if (hf_enqueue(hf, o, &x, &error) < 0)
        errx(1, "%s", error.message);
    int64_t began_ns = bench_now_ns();
    if (hf_claim(hf, NULL, 1, &claimed, &n, &error) < 0 || n != 1)
        errx(1, "claiming: %s", n == 1 ? error.message : "what is due was not found");
    int64_t took_ns = bench_now_ns() - began_ns;
    finish(hf, &claimed.lease);
    return (double)took_ns;
}

static void sample(struct hf *hf, int times, struct samples *begins, struct samples *claims)
{
    char key[HF_UUID_LEN + 1], workflow[16];
    for (int i = 0; i < times; i++) {
        struct hf_begin_options o = HF_BEGIN_INIT;
        snprintf(workflow, sizeof workflow, "w%d", (int)(random() % WORKFLOWS));
        o.workflow = workflow;
        o.key = key;
        hf_token(key);
        samples_add(begins, begin_ns(hf, &o));
        hf_token(key);
        samples_add(claims, claim_ns(hf, &o));
    }
}

static void report(const char *what, struct samples *full, struct samples *empty)
{
    struct row row = {.what = what, .goal = GOAL_AT_MOST, .limit = 1.5};
    format_times(full, row.ours, sizeof row.ours);
    format_times(empty, row.peer, sizeof row.peer);
    row.ratio = samples_quantile(full, 0.5) / samples_quantile(empty, 0.5);
    report_row(&row);
}

/* An empty store and a full one are asked in turns. */
static void measure(const struct bench_env *env, const char *begin, const char *claim,
                    const char *const urls[2])
{
    struct samples begins[2] = {0}, claims[2] = {0};
    struct hf *hf[2];
    struct hf_error error;
    for (int i = 0; i < 2; i++)
        if (hf_open(urls[i], &hf[i], &error) < 0)
            errx(1, "%s", error.message);
    for (int round = 0; round < bench_amount(env, 50); round++)
        for (int i = 0; i < 2; i++)
            sample(hf[i], 20, &begins[i], &claims[i]);
    report(begin, &begins[1], &begins[0]);
    report(claim, &claims[1], &claims[0]);
}

void bench_history_sqlite(const struct bench_env *env)
{
    const char *const urls[] = {bench_path(env, "sqlite:", "history-none"),
                                bench_path(env, "sqlite:", "history-full")};
    fill_sqlite(urls[1], amount_of(env));
    measure(env,
            env->quick ? "begin beside 10^4 future, 10^5 ended, sqlite:"
                       : "begin beside 10^6 future, 10^7 ended, sqlite:",
            env->quick ? "claim beside 10^4 future, 10^5 ended, sqlite:"
                       : "claim beside 10^6 future, 10^7 ended, sqlite:",
            urls);
}

void bench_pg_history(const struct bench_env *env)
{
    const char *const urls[] = {postgres_database(env, "history_none"),
                                postgres_database(env, "history_full")};
    for (int i = 0; i < 2; i++)
        ours.close(ours.open(urls[i]));
    fill_postgres(urls[1], amount_of(env));
    measure(env,
            env->quick ? "begin beside 10^4 future, 10^5 ended, postgres:"
                       : "begin beside 10^6 future, 10^7 ended, postgres:",
            env->quick ? "claim beside 10^4 future, 10^5 ended, postgres:"
                       : "claim beside 10^6 future, 10^7 ended, postgres:",
            urls);
}
