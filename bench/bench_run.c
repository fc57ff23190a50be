/* What `holdfast run` costs around a command, as time and, while it waits, as memory. */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "holdfast.h"

enum { FLOCK, OURS_FILE, OURS_SQLITE, BARE, N_COMMANDS };

/* ---- time ----------------------------------------------------------------------------------- */

static void report_run(const char *what, struct samples *ns, struct samples *peer_ns, double limit)
{
    struct row row = {.what = what,
                      .ratio = samples_quantile(ns, 0.5) / samples_quantile(peer_ns, 0.5),
                      .goal = limit > 0 ? GOAL_AT_MOST : GOAL_NONE,
                      .limit = limit};
    format_times(ns, row.ours, sizeof row.ours);
    format_times(peer_ns, row.peer, sizeof row.peer);
    report_row(&row);
}

void bench_run_command(const struct bench_env *env)
{
    char *file = bench_path(env, "file:", "run-locks");
    char *sqlite = bench_path(env, "sqlite:", "run.db");
    char *lock = bench_path(env, "", "run-flock");
    const char *const commands[N_COMMANDS][8] = {
        [FLOCK] = {"flock", lock, "true"},
        [OURS_FILE] = {env->holdfast, "--store", file, "run", "x", "--", "true"},
        [OURS_SQLITE] = {env->holdfast, "--store", sqlite, "run", "x", "--", "true"},
        [BARE] = {"true"},
    };
    struct samples ns[N_COMMANDS] = {0};
    for (int round = -1; round < bench_amount(env, 600); round++)
        for (int i = 0; i < N_COMMANDS; i++) {
            double took_ns = spawn_timed_ns(commands[i]);
            if (round >= 0) /* the first makes the store and warms the caches */
                samples_add(&ns[i], took_ns);
        }
    report_run("run x -- true, file: vs flock", &ns[OURS_FILE], &ns[FLOCK], 1.5);
    report_run("run x -- true, sqlite: vs flock", &ns[OURS_SQLITE], &ns[FLOCK], 2);
    report_run("(flock f true vs bare true)", &ns[FLOCK], &ns[BARE], 0);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* kB that a process has to itself, and its share of what it shares (PSS); and all it maps (RSS). */
struct memory {
    double pss_kb, rss_kb;
};

static void add_memory_of(pid_t pid, struct memory *sum)
{
    char path[64], line[256];
    double kb;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Pss: %lf", &kb) == 1)
            sum->pss_kb += kb;
        else if (sscanf(line, "Rss: %lf", &kb) == 1)
            sum->rss_kb += kb;
    }
    if (f)
        fclose(f);
}

/* A process and all that it started. */
static void add_memory_of_tree(pid_t pid, struct memory *sum)
{
    char path[64];
    int child;
    add_memory_of(pid, sum);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%d", &child) == 1)
        add_memory_of_tree(child, sum);
    if (f)
        fclose(f);
}

/* The memory of a command that waits, after it has had time to begin. */
static struct memory memory_while_waiting(const char *const argv[])
{
    struct memory sum = {0};
    pid_t pid = spawn_start(argv, -1);
    bench_sleep_us(300000);
    add_memory_of_tree(pid, &sum);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    return sum;
}

static void report_memory(const struct bench_env *env, const char *what, const char *url)
{
    char *lock = bench_path(env, "", "memory-flock");
    const char *const waiting[] = {env->holdfast, "--store", url,    "run", "--wait",
                                   "x",           "--",      "true", NULL};
    const char *const peer[] = {"flock", lock, "true", NULL};
    void *mine = ours.open(url), *theirs = bare_flock.open(lock);
    ours.take(mine, "x");
    bare_flock.take(theirs, "x");
    struct memory our = memory_while_waiting(waiting), its = memory_while_waiting(peer);
    ours.give(mine, "x");
    struct row row = {.what = what,
                      .ratio = our.pss_kb / its.pss_kb,
                      .goal = GOAL_AT_MOST,
                      .limit = 4,
                      .unit = "MB",
                      .judged = our.pss_kb / 1024};
    snprintf(row.ours, sizeof row.ours, "%.1f MB (RSS %.1f)", our.pss_kb / 1024, our.rss_kb / 1024);
    snprintf(row.peer, sizeof row.peer, "%.1f MB (RSS %.1f)", its.pss_kb / 1024, its.rss_kb / 1024);
    report_row(&row);
    ours.close(mine);
    bare_flock.close(theirs);
    free(lock);
}

void bench_memory(const struct bench_env *env)
{
    report_memory(env, "PSS of a waiting run, file: vs flock",
                  bench_path(env, "file:", "memory-locks"));
    report_memory(env, "PSS of a waiting run, sqlite: vs flock",
                  bench_path(env, "sqlite:", "memory.db"));
}
