/* The PostgreSQL store beside what a team would write on its PostgreSQL without us. */
#include <err.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

enum { NAMES = 1000, SIZES = BENCH_SIZES };

static const int crowds[] = {1, 8, 32};
#define N_CROWDS (sizeof crowds / sizeof *crowds)

/* A database of ours that knows so many names: as if each had been taken and given back, long ago. */
static char *our_database(const struct bench_env *env, const char *name, int names)
{
    char *url = postgres_database(env, name);
    ours.close(ours.open(url));
    postgres_run(url,
                 bench_format("INSERT INTO holdfast.name SELECT 'item-' || lpad(i::text, 8, '0')"
                              " FROM generate_series(0, %d) AS i; INSERT INTO holdfast.lock(name,"
                              " fence, granted, released, lost_fences) SELECT name,"
                              " nextval('holdfast.seq'), 1, 1, '{0}'"
                              " FROM holdfast.name",
                              names - 1));
    return url;
}

/* The bare table with as many rows as the store beside it has names. */
static char *bare_database(const struct bench_env *env, const char *name, int names)
{
    char *url = postgres_database(env, name);
    bare_postgres.close(bare_postgres.open(url));
    postgres_run(
        url, bench_format("INSERT INTO bare SELECT 'item-' || lpad(i::text, 8, '0'), NULL, 1, NULL,"
                          " NULL, '-infinity' FROM generate_series(0, %d) AS i",
                          names - 1));
    return url;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

struct pgbench {
    char *url, *script;
    int clients;
};

static double pgbench_slice(void *arg, int64_t for_ns)
{
    struct pgbench *p = arg;
    int seconds = (int)(for_ns / 1000000000);
    return postgres_pgbench(p->url, p->script, p->clients, seconds > 0 ? seconds : 1);
}

static char *write_pgbench_script(const struct bench_env *env)
{
    char *path = bench_path(env, "", "pair.sql");
    FILE *f = fopen(path, "we");
    if (!f || fputs(bare_pgbench_script, f) < 0 || fclose(f) != 0)
        err(1, "%s", path);
    return path;
}

/* pgbench's clients share two threads, ours are processes: so the bare statements are also sent by a
   loop like ours, which is the harder peer. */
void bench_pg_pairs(const struct bench_env *env)
{
    char *our_url = our_database(env, "pairs_ours", NAMES);
    char *bare_url = bare_database(env, "pairs_bare", NAMES);
    struct pgbench pgbench = {bare_url, write_pgbench_script(env), 0};
    for (size_t i = 0; i < N_CROWDS; i++) {
        int n = pgbench.clients = crowds[i];
        struct contestant all[] = {{crowd_slice, crowd_make(&ours, our_url, n), {0}},
                                   {crowd_slice, crowd_make(&bare_postgres, bare_url, n), {0}},
                                   {pgbench_slice, &pgbench, {0}}};
        bench_contest(all, 3, env->quick ? 3 : 10, INT64_C(1000000000));
        report_pairs(bench_format("pairs/s, %d client(s), postgres: vs bare", n), &all[0], &all[1],
                     0.85);
        report_pairs(bench_format("pairs/s, %d client(s), postgres: vs pgbench", n), &all[0],
                     &all[2], 0.85);
    }
}

/* ---- seed 003 -------------------------------------------------------------------------------- */

static void seed_refill(const char *url, int rows)
{
    postgres_run(
        url, bench_format("TRUNCATE instance_locks; INSERT INTO instance_locks(instance_id,"
                          " locked_until, locked_by) SELECT i %% %d, current_timestamp, 'owner/1'"
                          " FROM generate_series(1, %d) AS i; ANALYZE instance_locks",
                          NAMES, rows));
}

/* Its table grows with every pair: each slice begins with as many rows as ours has names. */
static double seed_slice(void *arg, int64_t for_ns)
{
    struct crowd *crowd = arg;
    seed_refill(crowd->where, NAMES);
    return crowd_slice(crowd, for_ns);
}

static char *seed_database(const struct bench_env *env, const char *name,
                           const struct subject *subject)
{
    char *url = postgres_database(env, name);
    subject->close(subject->open(url));
    return url;
}

static void seed_growth(const struct bench_env *env)
{
    static const int full[SIZES] = {1000, 10000, 100000}, quick[SIZES] = {1000, 3000, 10000};
    const int *pairs = env->quick ? quick : full;
    struct opened our[SIZES], seed[SIZES];
    struct samples ns[SIZES] = {0}, seed_ns[SIZES] = {0};
    for (int i = 0; i < SIZES; i++) {
        char *url = our_database(env, bench_format("seed_ours_%d", pairs[i]), NAMES);
        for (int done = NAMES; done < pairs[i]; done += NAMES)
            fill(url, NAMES);
        our[i] = (struct opened){&ours, ours.open(url), NULL};
        url = seed_database(env, bench_format("seed_%d", pairs[i]), &seed_postgres);
        seed_refill(url, pairs[i]);
        seed[i] = (struct opened){&seed_postgres, seed_postgres.open(url), NULL};
    }
    for (int round = 0; round < bench_amount(env, 50); round++)
        for (int i = 0; i < SIZES; i++) {
            sample_takes(&our[i], NAMES, 20, &ns[i]);
            sample_takes(&seed[i], NAMES, 20, &seed_ns[i]);
        }
    report_growth(env->quick ? "acquire after 10^3/3k/10^4 pairs, pg: vs seed"
                             : "acquire after 10^3/4/5 pairs, postgres: vs seed",
                  ns, seed_ns);
}

void bench_pg_seed(const struct bench_env *env)
{
    char *our_url = our_database(env, "seed_ours", NAMES);
    char *seed_url = seed_database(env, "seed_plain", &seed_postgres);
    char *indexed_url = seed_database(env, "seed_indexed", &seed_indexed);
    for (size_t i = 0; i < N_CROWDS; i++) {
        int n = crowds[i];
        struct contestant all[] = {{crowd_slice, crowd_make(&ours, our_url, n), {0}},
                                   {seed_slice, crowd_make(&seed_postgres, seed_url, n), {0}},
                                   {seed_slice, crowd_make(&seed_indexed, indexed_url, n), {0}}};
        bench_contest(all, 3, env->quick ? 3 : 10, INT64_C(1000000000));
        report_pairs(bench_format("pairs/s, %d client(s), postgres: vs seed 003", n), &all[0],
                     &all[1], 1.3);
        report_pairs(bench_format("pairs/s, %d client(s), pg: vs seed with index", n), &all[0],
                     &all[2], 1.3);
    }
    seed_growth(env);
}

/* ---- many names from one process ------------------------------------------------------------- */

static double hundred_slice(void *crowd, int64_t for_ns)
{
    return 100 * crowd_slice(crowd, for_ns);
}

void bench_pg_batch(const struct bench_env *env)
{
    char *our_url = our_database(env, "batch_ours", NAMES);
    char *bare_url = bare_database(env, "batch_bare", NAMES);
    static const int connections[] = {1, 4};
    for (size_t i = 0; i < 2; i++) {
        int n = connections[i];
        struct contestant all[] = {{hundred_slice, crowd_make(&ours_hundred, our_url, n), {0}},
                                   {hundred_slice, crowd_make(&bare_hundred, bare_url, n), {0}}};
        bench_contest(all, 2, env->quick ? 3 : 10, INT64_C(1000000000));
        report_pairs(bench_format("pairs/s by 100, %d conn., postgres: vs unnest", n), &all[0],
                     &all[1], 0.8);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Released at any moment between two polls of the one who waits. */
enum { ANY_PHASE_US = 100000 };

void bench_pg_handover(const struct bench_env *env)
{
    enum { OURS, UNBOUND, NOTIFY, POLL, N };
    const struct subject *subjects[N] = {&ours_waiting, &ours_unbound, &notify_postgres,
                                         &poll_postgres};
    char *where[N] = {
        our_database(env, "handover_ours", 1), our_database(env, "handover_unbound", 1),
        bare_database(env, "handover_notify", 1), bare_database(env, "handover_poll", 1)};
    struct samples ns[N] = {0};
    for (int block = 0; block < bench_amount(env, 5); block++)
        for (int i = 0; i < N; i++)
            play(subjects[i], where[i], ANY_PHASE_US, &ns[i]);
    report_handover("hand-over, postgres: vs NOTIFY + upsert",
                    "hand-over, postgres: vs NOTIFY, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 1.2}, &ns[OURS], &ns[NOTIFY]);
    report_handover("hand-over, postgres, unbound: vs NOTIFY + upsert",
                    "hand-over, postgres, unbound: vs NOTIFY, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 1.2}, &ns[UNBOUND], &ns[NOTIFY]);
    report_handover("hand-over, postgres: vs a poll of 100 ms",
                    "hand-over, postgres: vs a poll of 100 ms, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 0.05}, &ns[OURS], &ns[POLL]);
}

static struct crowd *hot_crowd(const struct subject *subject, const char *url)
{
    struct crowd *crowd = crowd_make(subject, url, CROWD_MAX);
    crowd->same_name = true;
    crowd->warm_up = 1;
    return crowd;
}

void bench_pg_hot(const struct bench_env *env)
{
    char *our_url = our_database(env, "hot_ours", 1), *bare_url = bare_database(env, "hot_bare", 1);
    struct contestant all[] = {{crowd_slice, hot_crowd(&ours_waiting, our_url), {0}},
                               {crowd_slice, hot_crowd(&retry_postgres, bare_url), {0}},
                               {crowd_slice, hot_crowd(&poll_postgres, bare_url), {0}}};
    bench_contest(all, 3, env->quick ? 2 : 6, INT64_C(3000000000));
    report_pairs("32 want one name, pairs/s, pg: vs retry loops", &all[0], &all[1], 3);
    report_pairs("32 want one name, pairs/s, pg: vs 100 ms polls", &all[0], &all[2], 0);
}

/* ---- growing --------------------------------------------------------------------------------- */

void bench_pg_names(const struct bench_env *env)
{
    static const int full[SIZES] = {1000, 30000, 1000000}, quick[SIZES] = {1000, 3000, 10000};
    const int *names = env->quick ? quick : full;
    struct opened our[SIZES], bare[SIZES];
    struct samples ns[SIZES] = {0}, bare_ns[SIZES] = {0};
    for (int i = 0; i < SIZES; i++) {
        char *url = our_database(env, bench_format("names_%d", names[i]), names[i]);
        our[i] = (struct opened){&ours, ours.open(url), NULL};
        url = bare_database(env, bench_format("names_bare_%d", names[i]), names[i]);
        bare[i] = (struct opened){&bare_postgres, bare_postgres.open(url), NULL};
    }
    for (int round = 0; round < bench_amount(env, 50); round++)
        for (int i = 0; i < SIZES; i++) {
            sample_takes(&our[i], names[i], 50, &ns[i]);
            sample_takes(&bare[i], names[i], 50, &bare_ns[i]);
        }
    report_growth(env->quick ? "acquire at 10^3/3k/10^4 names, pg: vs bare"
                             : "acquire at 10^3/30k/10^6 names, pg: vs bare",
                  ns, bare_ns);
}

/* A transaction that does nothing but keep a snapshot: no dead row can be removed meanwhile. */
static void hold_snapshot(const char *url)
{
    PGconn *conn = PQconnectdb(url); /* open until this process ends */
    PQclear(PQexec(conn, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PGresult *result = PQexec(conn, "SELECT count(*) FROM pg_class");
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        errx(1, "%s", PQerrorMessage(conn));
    PQclear(result);
}

static void sample_pairs(const struct opened *o, int n, struct samples *ns)
{
    int64_t began_ns = bench_now_ns();
    for (int i = 0; i < n; i++) {
        o->subject->take(o->state, "x");
        o->subject->give(o->state, "x");
    }
    samples_add(ns, (double)(bench_now_ns() - began_ns) / n);
}

/* The median of the last tenth. */
static double last_tenth(struct samples *ns)
{
    struct samples last = {ns->values + ns->n - ns->n / 10, ns->n / 10, 0};
    return samples_quantile(&last, 0.5);
}

static double format_pressure(struct samples *calm, struct samples *held, char *buf, size_t size)
{
    double without = last_tenth(calm), with = last_tenth(held);
    snprintf(buf, size, "%.0f / %.0f us", without / 1e3, with / 1e3);
    return with / without;
}

/* Ours: 10^5 pairs on one name; the bare statements, which suffer, a tenth of that. */
void bench_pg_snapshot(const struct bench_env *env)
{
    enum { CALM, HELD, ROUNDS = 100 };
    char *urls[2];
    struct opened our[2], bare[2];
    struct samples ns[2] = {0}, bare_ns[2] = {0};
    for (int i = 0; i < 2; i++) {
        char *url = urls[i] = our_database(env, bench_format("snapshot_%d", i), 1);
        our[i] = (struct opened){&ours, ours.open(url), NULL};
        char *bare_url = bare_database(env, bench_format("snapshot_bare_%d", i), 1);
        bare[i] = (struct opened){&bare_postgres, bare_postgres.open(bare_url), NULL};
        if (i == HELD) {
            hold_snapshot(url);
            hold_snapshot(bare_url);
        }
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < 2; i++) {
            if (round ==
                ROUNDS / 2) /* autovacuum may do so at any time, and plans change with it */
                postgres_run(urls[i], "ANALYZE");
            sample_pairs(&our[i], bench_amount(env, 1000), &ns[i]);
            sample_pairs(&bare[i], bench_amount(env, 100), &bare_ns[i]);
        }
    struct row row = {.what = env->quick ? "pair without/with idle snapshot, 10^4 (bare 10^3)"
                                         : "pair without/with idle snapshot, 10^5 (bare 10^4)",
                      .goal = GOAL_AT_MOST,
                      .limit = 1.5};
    row.ratio = format_pressure(&ns[CALM], &ns[HELD], row.ours, sizeof row.ours);
    format_pressure(&bare_ns[CALM], &bare_ns[HELD], row.peer, sizeof row.peer);
    report_row(&row);
}
