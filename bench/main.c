/*
 * bench [--quick] --holdfast PROGRAM --dir DIR --postgres SCRIPT --dynamodb SCRIPT [--node DIR] [FILTER]:
 * called by bench/run, which also stops the PostgreSQL that was started here.
 */
#include <err.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

static const struct {
    const char *name;
    bench_fn *fn;
    bool postgres; /* needs a server */
} benchmarks[] = {
    {"run", bench_run_command},
    {"pairs-sqlite", bench_pairs_sqlite},
    {"pairs-file", bench_pairs_file},
    {"eight-processes", bench_eight_processes},
    {"handover", bench_handover},
    {"names-sqlite", bench_names_sqlite},
    {"names-file", bench_names_file},
    {"waiters", bench_waiters},
    {"history-sqlite", bench_history_sqlite},
    {"sqlite-work", bench_sqlite_work},
    {"takeover", bench_takeover},
    {"memory", bench_memory},
    {"http", bench_http},
    {"webhook", bench_webhook},
    {"etcd-pairs", bench_etcd_pairs},
    {"etcd-handover", bench_etcd_handover},
    {"etcd-run", bench_etcd_run},
    {"pg-pairs", bench_pg_pairs, true},
    {"pg-seed", bench_pg_seed, true},
    {"pg-batch", bench_pg_batch, true},
    {"pg-handover", bench_pg_handover, true},
    {"pg-hot", bench_pg_hot, true},
    {"pg-names", bench_pg_names, true},
    {"pg-snapshot", bench_pg_snapshot, true},
    {"pg-history", bench_pg_history, true},
    {"pg-work", bench_pg_work, true},
    {"dynamodb", bench_dynamodb},
};

int bench_amount(const struct bench_env *env, int full)
{
    int amount = env->quick ? full / 10 : full;
    return amount > 0 ? amount : 1;
}

char *bench_path(const struct bench_env *env, const char *prefix, const char *name)
{
    char *path;
    if (asprintf(&path, "%s%s/%s", prefix, env->dir, name) < 0)
        err(1, "asprintf");
    return path;
}

/* Run one benchmark in a process of its own. False: it could not be measured. */
static bool run_apart(size_t i, const struct bench_env *env)
{
    pid_t pid = fork();
    if (pid < 0)
        err(1, "fork");
    if (pid == 0) {
        benchmarks[i].fn(env);
        exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) < 0)
        err(1, "waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    printf("%s: could not be measured (status 0x%x)\n", benchmarks[i].name, status);
    fflush(stdout);
    return false;
}

/* The first benchmark that needs a server starts it; bench/run stops it. */
static void start_postgres(const struct bench_env *env)
{
    static bool started;
    if (started)
        return;
    const char *const argv[] = {env->postgres, "start", env->dir, NULL};
    spawn_wait(spawn_start(argv, -1));
    started = true;
}

static void print_stamp(void)
{
    printf("%lld\n", (long long)bench_now_ns());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"quick", no_argument, NULL, 'q'},          {"holdfast", required_argument, NULL, 'h'},
        {"dir", required_argument, NULL, 'd'},      {"node", required_argument, NULL, 'n'},
        {"stamp", no_argument, NULL, 's'},          {"postgres", required_argument, NULL, 'p'},
        {"dynamodb", required_argument, NULL, 'D'}, {0},
    };
    struct bench_env env = {.self = argv[0]};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'q':
            env.quick = true;
            break;
        case 'h':
            env.holdfast = optarg;
            break;
        case 'd':
            env.dir = optarg;
            break;
        case 'n':
            env.node = optarg;
            break;
        case 'p':
            env.postgres = optarg;
            break;
        case 'D':
            env.dynamodb = optarg;
            break;
        case 's':
            print_stamp();
            return 0;
        default:
            return 64;
        }
    if (!env.holdfast || !env.dir || !env.postgres || !env.dynamodb)
        errx(64, "usage: bench/run BUILD-DIR [--quick] [FILTER]");
    const char *filter = optind < argc ? argv[optind] : "";
    bool all_measured = true;
    report_begin(&env);
    for (size_t i = 0; i < sizeof benchmarks / sizeof *benchmarks; i++) {
        if (!strstr(benchmarks[i].name, filter))
            continue;
        if (benchmarks[i].postgres)
            start_postgres(&env);
        all_measured &= run_apart(i, &env);
    }
    report_end();
    return all_measured ? 0 : 1;
}
