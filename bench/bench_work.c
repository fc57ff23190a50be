/* Executions that do nothing: how many a second are scheduled and worked, how late, beside others. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "work.h"

enum { N = 20000, QUICK_N = 2000, SCHEDULE_BATCH = 1000, CREW_MAX = 10, CLAIMS_MAX = 30000 };

static const char *const peers[] = {"graphile-worker", "pg-boss"};
enum { PEERS = sizeof peers / sizeof *peers };

/* One way to do it, what is measured of it in each slice. */
struct way {
    const struct bench_env *env;
    const struct work_subject *subject; /* NULL: a peer in node */
    const char *peer;                   /* what it is called */
    bool sqlite;
    int n, batch, clients;
    struct samples scheduled, worked; /* per second */
    struct samples claim_p99_ns;
    struct samples claimed; /* per second of claiming */
};

/* ---- a crew of processes ----------------------------------------------------------------------- */

enum phase { OPENING, SCHEDULING, WORKING };

struct crew {
    const struct work_subject *subject;
    const char *where;
    int n, batch, clients;
    int64_t until_ns;
    atomic_int phase, ready, claimed;
    struct {
        int n_claims;
        float claim_ns[CLAIMS_MAX];
    } of[CREW_MAX];
};

/* This one is ready for the next phase; wait for it. */
static void await_phase(struct crew *c, int phase)
{
    atomic_fetch_add(&c->ready, 1);
    while (atomic_load(&c->phase) < phase)
        bench_sleep_us(200);
}

static void schedule_share(struct crew *c, void *state)
{
    int batch = c->batch > 1 ? SCHEDULE_BATCH : 1, left = c->n / c->clients;
    for (; left > 0; left -= batch)
        c->subject->schedule(state, left < batch ? left : batch);
}

/* Until all are claimed, by whomever, or time is up. */
static void work(struct crew *c, void *state, int index)
{
    int *n = &c->of[index].n_claims;
    while (atomic_load(&c->claimed) < c->n && bench_now_ns() < c->until_ns) {
        int64_t began_ns = bench_now_ns();
        int got = c->subject->claim(state, c->batch);
        if (!got)
            continue;
        if (*n < CLAIMS_MAX)
            c->of[index].claim_ns[(*n)++] = (float)(bench_now_ns() - began_ns);
        atomic_fetch_add(&c->claimed, got);
        c->subject->finish(state);
    }
}

static void crew_member(void *arg, int index)
{
    struct crew *c = arg;
    void *state = c->subject->open(c->where);
    await_phase(c, SCHEDULING);
    schedule_share(c, state);
    await_phase(c, WORKING);
    work(c, state, index);
    atomic_fetch_add(&c->ready, 1);
    c->subject->close(state);
}

/* All are ready for what comes after this phase; how long that took. */
static int64_t await_crew(struct crew *c)
{
    int64_t began_ns = bench_now_ns();
    while (atomic_load(&c->ready) < c->clients) {
        siginfo_t ended = {0};
        waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT);
        if (ended.si_pid && (ended.si_code != CLD_EXITED || ended.si_status != 0))
            errx(1, "one of the %d processes has failed", c->clients);
        bench_sleep_us(200);
    }
    atomic_store(&c->ready, 0);
    return bench_now_ns() - began_ns;
}

static int64_t run_phase(struct crew *c, enum phase phase)
{
    atomic_store(&c->phase, (int)phase);
    return await_crew(c);
}

static void note_claims(struct way *way, const struct crew *c, int claimed)
{
    struct samples ns = {0};
    double all_ns = 0;
    for (int i = 0; i < c->clients; i++)
        for (int j = 0; j < c->of[i].n_claims; j++) {
            samples_add(&ns, (double)c->of[i].claim_ns[j]);
            all_ns += (double)c->of[i].claim_ns[j];
        }
    samples_add(&way->claim_p99_ns, samples_quantile(&ns, 0.99));
    samples_add(&way->claimed, claimed * 1e9 * c->clients / all_ns);
    samples_clear(&ns);
}

/* Where a slice works: empty. */
static char *new_place(const struct way *way)
{
    static int serial;
    const char *prefix = way->subject == &ours_work ? "sqlite:" : "";
    char *name = bench_format("work_%d_%d", (int)way->batch, serial++);
    return way->sqlite ? bench_path(way->env, prefix, name) : postgres_database(way->env, name);
}

static double per_second(double n, double ns) { return n * 1e9 / ns; }

/* Both ends of it: what one costs to schedule, and to work. */
static double note(struct way *way, double scheduled, double worked)
{
    samples_add(&way->scheduled, scheduled);
    samples_add(&way->worked, worked);
    return 1 / (1 / scheduled + 1 / worked);
}

static double crew_slice(void *arg, int64_t for_ns)
{
    struct way *way = arg;
    pid_t pids[CREW_MAX] = {0};
    struct crew *c = spawn_shared(sizeof *c);
    c->subject = way->subject;
    c->where = new_place(way);
    c->n = way->n;
    c->batch = way->batch;
    c->clients = way->clients;
    c->subject->close(c->subject->open(c->where)); /* its tables are made */
    for (int i = 0; i < c->clients; i++)
        pids[i] = spawn_worker(crew_member, c, i);
    await_crew(c);
    int64_t scheduling_ns = run_phase(c, SCHEDULING);
    if (!way->sqlite)
        postgres_run(c->where, "ANALYZE"); /* as autovacuum does in a while; the peers do so too */
    c->until_ns = bench_now_ns() + for_ns;
    int64_t working_ns = run_phase(c, WORKING);
    for (int i = 0; i < c->clients; i++)
        spawn_wait(pids[i]);
    int claimed = atomic_load(&c->claimed);
    note_claims(way, c, claimed);
    return note(way, per_second(c->n, (double)scheduling_ns),
                per_second(claimed, (double)working_ns));
}

/* ---- peers in node ----------------------------------------------------------------------------- */

/* Run node/work.js; the numbers that it prints. */
static void run_node(const struct way *way, const char *rest, double *ret, int n)
{
    char *url = new_place(way);
    char *command =
        bench_format("node '%s/work.js' %s '%s' %s", way->env->node, way->peer, url, rest);
    FILE *f = popen(command, "re");
    for (int i = 0; f && i < n; i++)
        if (fscanf(f, "%lf", &ret[i]) != 1)
            errx(1, "%s: did not print %d numbers", command, n);
    if (!f || pclose(f) != 0)
        errx(1, "%s: failed", command);
}

static double node_slice(void *arg, int64_t for_ns)
{
    struct way *way = arg;
    double printed[4];
    run_node(way,
             bench_format("rate %d %d %d %lld", way->n, way->batch, way->clients,
                          (long long)for_ns / 1000000),
             printed, 4);
    samples_add(&way->claim_p99_ns, printed[3] * 1e6);
    return note(way, printed[0], printed[1]);
}

/* ---- rows -------------------------------------------------------------------------------------- */

static double median(struct samples *s) { return samples_quantile(s, 0.5); }

static void report_rates(const char *what, struct samples *our, struct samples *peer, double limit)
{
    struct contestant a = {.per_second = *our}, b = {.per_second = *peer};
    report_pairs(what, &a, &b, limit);
}

static void report_times(const char *what, double our_ns, double peer_ns)
{
    struct row row = {.what = what, .ratio = our_ns / peer_ns};
    format_ns(our_ns, row.ours, sizeof row.ours);
    format_ns(peer_ns, row.peer, sizeof row.peer);
    report_row(&row);
}

static const char *batch_name(int batch)
{
    return batch == 1 ? "one by one" : bench_format("by %d", batch);
}

/* The whole, and of what it is made. */
static void report_way(struct contestant *our, struct contestant *peer, double limit)
{
    struct way *a = our->arg, *b = peer->arg;
    const char *how = batch_name(a->batch);
    report_pairs(bench_format("executions/s, %s: vs %s", how, b->peer), our, peer, limit);
    report_rates(bench_format("- scheduled/s, %s: vs %s", how, b->peer), &a->scheduled,
                 &b->scheduled, 0);
    report_rates(bench_format("- worked/s, %s: vs %s", how, b->peer), &a->worked, &b->worked, 0);
    report_times(bench_format("- a claim, p99, %s: vs %s", how, b->peer), median(&a->claim_p99_ns),
                 median(&b->claim_p99_ns));
}

/* ---- on PostgreSQL ----------------------------------------------------------------------------- */

static void work_by(const struct bench_env *env, int batch, int clients)
{
    int n = env->quick ? QUICK_N : N;
    struct way ways[2 + PEERS] = {
        {.env = env, .subject = &ours_work, .peer = "ours"},
        {.env = env, .subject = &bare_postgres_work, .peer = "bare SKIP LOCKED"}};
    struct contestant all[2 + PEERS] = {{crew_slice, &ways[0], {0}}, {crew_slice, &ways[1], {0}}};
    for (int i = 0; i < PEERS; i++) {
        ways[2 + i] = (struct way){.env = env, .peer = peers[i]};
        all[2 + i] = (struct contestant){node_slice, &ways[2 + i], {0}};
    }
    for (int i = 0; i < 2 + PEERS; i++) {
        ways[i].n = n;
        ways[i].batch = batch;
        ways[i].clients = clients;
    }
    size_t count = env->node ? 2 + PEERS : 2;
    bench_contest(all, count, env->quick ? 1 : 3, bench_amount(env, 10000) * INT64_C(1000000));
    for (size_t i = 2; i < count; i++)
        report_way(&all[0], &all[i], 2);
    report_pairs(bench_format("executions/s, %s: vs bare SKIP LOCKED", batch_name(batch)), &all[0],
                 &all[1], 0);
    report_rates(bench_format("claims/s, %s: vs bare SKIP LOCKED", batch_name(batch)),
                 &ways[0].claimed, &ways[1].claimed, batch > 1 ? 0.6 : 0);
}

static void report_lag(const struct bench_env *env)
{
    struct samples late_ns = {0};
    int n = env->quick ? 200 : 2000, over_ms = env->quick ? 2000 : 20000;
    struct way our = {.env = env};
    ours_work_lag(new_place(&our), n, over_ms, &late_ns);
    double p50_ns = median(&late_ns), p99_ns = samples_quantile(&late_ns, 0.99), printed[2];
    for (int i = 0; i < (env->node ? PEERS : 0); i++) {
        struct way peer = {.env = env, .peer = peers[i]};
        run_node(&peer, bench_format("lag %d %d", n, over_ms), printed, 2);
        report_times(bench_format("schedule lag, p50: vs %s", peers[i]), p50_ns, printed[0] * 1e6);
        report_times(bench_format("schedule lag, p99: vs %s", peers[i]), p99_ns, printed[1] * 1e6);
    }
    if (env->node)
        return;
    struct row row = {.what = "schedule lag, p50 / p99"};
    snprintf(row.ours, sizeof row.ours, "%.1f / %.1f ms", p50_ns / 1e6, p99_ns / 1e6);
    report_row(&row);
}

void bench_pg_work(const struct bench_env *env)
{
    work_by(env, 1, 10);
    work_by(env, 100, 2);
    if (!env->quick)
        work_by(env, 1000, 2);
    report_lag(env);
}

/* ---- on SQLite --------------------------------------------------------------------------------- */

void bench_sqlite_work(const struct bench_env *env)
{
    static const int batches[] = {1, 100};
    for (int i = 0; i < 2; i++) {
        int n = batches[i] == 1 ? QUICK_N : N;
        struct way ways[] = {{.env = env, .subject = &ours_work, .peer = "ours"},
                             {.env = env, .subject = &bare_sqlite_work, .peer = "bare SQLite"}};
        struct contestant all[] = {{crew_slice, &ways[0], {0}}, {crew_slice, &ways[1], {0}}};
        for (int j = 0; j < 2; j++) {
            ways[j].sqlite = true;
            ways[j].n = bench_amount(env, n);
            ways[j].batch = batches[i];
            ways[j].clients = 1;
        }
        bench_contest(all, 2, env->quick ? 3 : 10, INT64_C(10000000000));
        report_way(&all[0], &all[1], 0);
    }
}
