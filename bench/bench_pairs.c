/* How many times a second a name can be taken and given back: alone, and by eight processes. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "bench.h"

enum { PROCESSES = 8 };

/* Many short slices: a median over them shrugs off whatever else the machine does meanwhile. */
enum { ROUNDS = 200, NODE_ROUNDS = 10 };
static const int64_t slice_ns = 30000000, node_slice_ns = 300000000;

static struct opened open_subject(const struct subject *subject, const char *where)
{
    return (struct opened){subject, subject->open(where), "x"};
}

/* ---- one process ---------------------------------------------------------------------------- */

void bench_pairs_sqlite(const struct bench_env *env)
{
    struct opened our = open_subject(&ours, bench_path(env, "sqlite:", "pairs.db"));
    struct opened bare = open_subject(&bare_sqlite, bench_path(env, "", "pairs-bare.db"));
    struct contestant all[] = {{opened_slice, &our, {0}}, {opened_slice, &bare, {0}}};
    bench_contest(all, 2, bench_amount(env, ROUNDS), slice_ns);
    report_pairs("pairs/s, sqlite: vs bare SQLite, WAL NORMAL", &all[0], &all[1], 0.8);
}

/* proper-lockfile measures itself: it is given the time and prints pairs/s. */
static double node_slice(void *arg, int64_t for_ns)
{
    const struct bench_env *env = arg;
    char *command, *dir = bench_path(env, "", "pairs-node");
    double per_second = 0;
    if (asprintf(&command, "node '%s/proper-lockfile.js' '%s' %lld", env->node, dir,
                 (long long)for_ns / 1000000) < 0)
        err(1, "asprintf");
    FILE *f = popen(command, "re");
    if (!f || fscanf(f, "%lf", &per_second) != 1 || pclose(f) != 0)
        errx(1, "%s: did not print pairs/s", command);
    free(command);
    free(dir);
    return per_second;
}

void bench_pairs_file(const struct bench_env *env)
{
    char *bare_dir = bench_path(env, "", "pairs-bare");
    if (mkdir(bare_dir, 0700) < 0)
        err(1, "%s", bare_dir);
    struct opened our = open_subject(&ours, bench_path(env, "file:", "pairs-locks"));
    struct opened bare = open_subject(&bare_create, bare_dir);
    struct opened with_content = open_subject(&bare_create_300, bare_dir);
    struct contestant all[] = {
        {opened_slice, &our, {0}}, {opened_slice, &bare, {0}}, {opened_slice, &with_content, {0}}};
    bench_contest(all, 3, bench_amount(env, ROUNDS), slice_ns);
    report_pairs("pairs/s, file: vs bare O_EXCL create + unlink", &all[0], &all[1], 0.5);
    report_pairs("pairs/s, file: vs create, 300 bytes, unlink", &all[0], &all[2], 0);
    if (!env->node)
        return;
    struct bench_env node_env = *env;
    struct contestant with_node[] = {{opened_slice, &our, {0}}, {node_slice, &node_env, {0}}};
    bench_contest(with_node, 2, bench_amount(env, NODE_ROUNDS), node_slice_ns);
    report_pairs("pairs/s, file: vs npm proper-lockfile", &with_node[0], &with_node[1], 5);
}

/* ---- eight processes at once, each with a name of its own ------------------------------------ */

void bench_eight_processes(const struct bench_env *env)
{
    struct crowd *our = crowd_make(&ours, bench_path(env, "sqlite:", "crowd.db"), PROCESSES);
    struct crowd *bare = crowd_make(&bare_sqlite, bench_path(env, "", "crowd-bare.db"), PROCESSES);
    struct contestant all[] = {{crowd_slice, our, {0}}, {crowd_slice, bare, {0}}};
    bench_contest(all, 2, env->quick ? 2 : 6, bench_amount(env, 2000) * INT64_C(1000000));
    report_pairs("8 processes, pairs/s, sqlite: vs bare", &all[0], &all[1], 1.0);
    struct row row = {.what = "8 processes, longest wait, sqlite: vs bare",
                      .ratio = (double)our->longest_ns / (double)bare->longest_ns,
                      .goal = GOAL_AT_MOST,
                      .limit = 100,
                      .unit = "ms",
                      .judged = (double)our->longest_ns / 1e6};
    format_ns((double)our->longest_ns, row.ours, sizeof row.ours);
    format_ns((double)bare->longest_ns, row.peer, sizeof row.peer);
    report_row(&row);
}
