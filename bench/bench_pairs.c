/* How many times a second a name can be taken and given back: alone, and by eight processes. */
#include <err.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "bench.h"

enum { PROCESSES = 8 };

/* Many short slices: a median over them shrugs off whatever else the machine does meanwhile. */
enum { ROUNDS = 200, NODE_ROUNDS = 10 };
static const int64_t slice_ns = 30000000, node_slice_ns = 300000000;

static void report_pairs(const char *what, struct contestant *our, struct contestant *peer,
                         double limit)
{
    struct row row = {.what = what,
                      .ratio = bench_paired_ratio(&our->per_second, &peer->per_second),
                      .goal = limit > 0 ? GOAL_AT_LEAST : GOAL_NONE,
                      .limit = limit};
    format_rates(&our->per_second, row.ours, sizeof row.ours);
    format_rates(&peer->per_second, row.peer, sizeof row.peer);
    report_row(&row);
}

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
    if (asprintf(&command, "node '%s' '%s' %lld", env->node, dir, (long long)for_ns / 1000000) < 0)
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

/* What the workers of one slice share with their parent. */
struct crowd {
    const struct subject *subject;
    const char *where;
    atomic_int ready;
    atomic_bool go, stop;
    struct {
        int64_t pairs, longest_ns;
    } of[PROCESSES];
};

struct crowded {
    struct crowd *crowd;
    double longest_ns; /* of any slice */
};

static void note_longest(int64_t *longest_ns, int64_t began_ns)
{
    int64_t took_ns = bench_now_ns() - began_ns;
    if (took_ns > *longest_ns)
        *longest_ns = took_ns;
}

static void crowd_worker(void *arg, int index)
{
    struct crowd *c = arg;
    char name[32];
    subject_name(index, name);
    void *state = c->subject->open(c->where);
    c->subject->take(state, name);
    c->subject->give(state, name);
    atomic_fetch_add(&c->ready, 1);
    while (!atomic_load(&c->go))
        bench_sleep_us(500);
    for (; !atomic_load(&c->stop); c->of[index].pairs++) {
        int64_t began_ns = bench_now_ns();
        c->subject->take(state, name);
        note_longest(&c->of[index].longest_ns, began_ns);
        began_ns = bench_now_ns();
        c->subject->give(state, name);
        note_longest(&c->of[index].longest_ns, began_ns);
    }
    c->subject->close(state);
}

static double crowd_slice(void *arg, int64_t for_ns)
{
    struct crowded *crowded = arg;
    struct crowd *c = crowded->crowd;
    pid_t pids[PROCESSES];
    double pairs = 0;
    atomic_store(&c->ready, 0);
    atomic_store(&c->go, false);
    atomic_store(&c->stop, false);
    for (int i = 0; i < PROCESSES; i++) {
        c->of[i].pairs = c->of[i].longest_ns = 0;
        pids[i] = spawn_worker(crowd_worker, c, i);
    }
    for (int waited_ms = 0; atomic_load(&c->ready) < PROCESSES; waited_ms++) {
        if (waited_ms > 30000)
            errx(1, "the eight processes did not begin");
        bench_sleep_us(1000);
    }
    int64_t began_ns = bench_now_ns();
    atomic_store(&c->go, true);
    bench_sleep_us((long)(for_ns / 1000));
    atomic_store(&c->stop, true);
    int64_t took_ns = bench_now_ns() - began_ns;
    for (int i = 0; i < PROCESSES; i++) {
        spawn_wait(pids[i]);
        pairs += (double)c->of[i].pairs;
        if ((double)c->of[i].longest_ns > crowded->longest_ns)
            crowded->longest_ns = (double)c->of[i].longest_ns;
    }
    return pairs * 1e9 / (double)took_ns;
}

static struct crowded make_crowd(const struct subject *subject, const char *where)
{
    struct crowded crowded = {.crowd = spawn_shared(sizeof *crowded.crowd)};
    crowded.crowd->subject = subject;
    crowded.crowd->where = where;
    subject->close(subject->open(where)); /* made before the crowd meets it */
    return crowded;
}

void bench_eight_processes(const struct bench_env *env)
{
    struct crowded our = make_crowd(&ours, bench_path(env, "sqlite:", "crowd.db"));
    struct crowded bare = make_crowd(&bare_sqlite, bench_path(env, "", "crowd-bare.db"));
    struct contestant all[] = {{crowd_slice, &our, {0}}, {crowd_slice, &bare, {0}}};
    bench_contest(all, 2, env->quick ? 2 : 6, bench_amount(env, 2000) * INT64_C(1000000));
    report_pairs("8 processes, pairs/s, sqlite: vs bare", &all[0], &all[1], 1.0);
    struct row row = {.what = "8 processes, longest wait, sqlite: vs bare",
                      .ratio = our.longest_ns / bare.longest_ns,
                      .goal = GOAL_AT_MOST,
                      .limit = 100,
                      .unit = "ms",
                      .judged = our.longest_ns / 1e6};
    format_ns(our.longest_ns, row.ours, sizeof row.ours);
    format_ns(bare.longest_ns, row.peer, sizeof row.peer);
    report_row(&row);
}
