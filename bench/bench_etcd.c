/* The etcd store beside what etcd itself offers, through the same gateway of the same server. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define OURS_URL "etcd://127.0.0.1:7493/ours"
#define BARE_URL "etcd://127.0.0.1:7493/"

static const int crowds[] = {1, 8, 32};
enum { N_CROWDS = sizeof crowds / sizeof *crowds, ANY_PHASE_US = 5000 };

static void need_etcd(const struct bench_env *env)
{
    if (!bench_start_etcd(env))
        errx(1, "etcd is not installed, or does not start; run scripts/deps bench");
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static void time_pairs(const struct subject *subject, const char *url, int n, struct samples *ns)
{
    void *state = subject->open(url);
    for (int i = -10; i < n; i++) {
        int64_t began_ns = bench_now_ns();
        subject->take(state, "latency");
        subject->give(state, "latency");
        if (i >= 0)
            samples_add(ns, (double)(bench_now_ns() - began_ns));
    }
    subject->close(state);
}

static void report_latency(const char *what, struct samples *our, struct samples *its, double q)
{
    struct row row = {.what = what, .ratio = samples_quantile(our, q) / samples_quantile(its, q)};
    format_ns(samples_quantile(our, q), row.ours, sizeof row.ours);
    format_ns(samples_quantile(its, q), row.peer, sizeof row.peer);
    report_row(&row);
}

void bench_etcd_pairs(const struct bench_env *env)
{
    struct samples our = {0}, its = {0};
    need_etcd(env);
    for (size_t i = 0; i < N_CROWDS; i++) {
        int n = crowds[i];
        struct contestant all[] = {{crowd_slice, crowd_make(&ours, OURS_URL, n), {0}},
                                   {crowd_slice, crowd_make(&bare_etcd, BARE_URL, n), {0}},
                                   {crowd_slice, crowd_make(&service_etcd, BARE_URL, n), {0}}};
        bench_contest(all, 3, env->quick ? 3 : 10, INT64_C(1000000000));
        report_pairs(bench_format("pairs/s, %d client(s), etcd: vs bare Txn", n), &all[0], &all[1],
                     0.9);
        report_pairs(bench_format("pairs/s, %d client(s), etcd: vs its lock service", n), &all[0],
                     &all[2], 1);
    }
    for (int block = 0; block < bench_amount(env, 20); block++) {
        time_pairs(&ours, OURS_URL, 100, &our);
        time_pairs(&bare_etcd, BARE_URL, 100, &its);
    }
    report_latency("a pair, etcd: vs bare Txn, p50", &our, &its, 0.5);
    report_latency("a pair, etcd: vs bare Txn, p99", &our, &its, 0.99);
}

/* ---- hand-over ------------------------------------------------------------------------------- */

void bench_etcd_handover(const struct bench_env *env)
{
    enum { OURS, WATCH, SERVICE, N };
    const struct subject *subjects[N] = {&ours_waiting, &watch_etcd, &service_etcd};
    const char *where[N] = {OURS_URL, BARE_URL, BARE_URL};
    struct samples ns[N] = {0};
    need_etcd(env);
    for (int block = 0; block < bench_amount(env, 10); block++)
        for (int i = 0; i < N; i++)
            play(subjects[i], where[i], ANY_PHASE_US, &ns[i]);
    report_handover("hand-over, etcd: vs watch + Txn", "hand-over, etcd: vs watch + Txn, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 1.2}, &ns[OURS], &ns[WATCH]);
    report_handover("hand-over, etcd: vs its lock service",
                    "hand-over, etcd: vs its lock service, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 1.2}, &ns[OURS], &ns[SERVICE]);
}

/* ---- run ------------------------------------------------------------------------------------- */

void bench_etcd_run(const struct bench_env *env)
{
    enum { OURS, ETCDCTL, N };
    const char *const commands[N][9] = {
        [OURS] = {env->holdfast, "-q", "--store", OURS_URL, "run", "x", "--", "true"},
        [ETCDCTL] = {"etcdctl", "--endpoints", "127.0.0.1:7493", "lock", "x", "true"},
    };
    struct samples ns[N] = {0};
    need_etcd(env);
    for (int round = -1; round < bench_amount(env, 200); round++)
        for (int i = 0; i < N; i++) {
            double took_ns = spawn_timed_ns(commands[i]);
            if (round >= 0)
                samples_add(&ns[i], took_ns);
        }
    struct row row = {.what = "run x -- true, etcd: vs etcdctl lock x true",
                      .ratio =
                          samples_quantile(&ns[OURS], 0.5) / samples_quantile(&ns[ETCDCTL], 0.5),
                      .goal = GOAL_AT_MOST,
                      .limit = 0.5};
    format_times(&ns[OURS], row.ours, sizeof row.ours);
    format_times(&ns[ETCDCTL], row.peer, sizeof row.peer);
    report_row(&row);
}
