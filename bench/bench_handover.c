/* How soon the next one holds it: after a release, and after the holder was killed. */
#include <err.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "holdfast.h"

/* ---- release to the next waiter -------------------------------------------------------------- */

enum { BLOCK = PLAY_HANDOVERS / 2, QUEUED_US = 1000, PAUSE_US = 50 };

/* Two processes that hand one lock to and fro. */
struct pingpong {
    const struct subject *subject;
    const char *where;
    int jitter_us;
    atomic_int waiting[2]; /* how many times each has begun to wait */
    atomic_int held;       /* how many times the lock was taken */
    _Atomic int64_t released_ns;
    double took_ns[2 * BLOCK];
};

static void player(void *arg, int me)
{
    struct pingpong *p = arg;
    void *state = p->subject->open(p->where);
    if (me == 1) /* the first to hold it is player 0 */
        while (atomic_load(&p->held) == 0)
            bench_sleep_us(PAUSE_US);
    for (int turn = 0; turn < BLOCK; turn++) {
        int nth = 2 * turn + me;
        atomic_fetch_add(&p->waiting[me], 1);
        p->subject->take(state, "x");
        p->took_ns[nth] = (double)(bench_now_ns() - atomic_load(&p->released_ns));
        atomic_store(&p->held, nth + 1);
        if (nth == 2 * BLOCK - 1) {
            p->subject->give(state, "x");
            break;
        }
        /* The other must be asleep in the queue, not on its way there. */
        while (atomic_load(&p->waiting[!me]) <= (nth + 1) / 2 - (me == 0))
            bench_sleep_us(PAUSE_US);
        bench_sleep_us(QUEUED_US + random() % (p->jitter_us + 1));
        atomic_store(&p->released_ns, bench_now_ns());
        p->subject->give(state, "x");
        /* Who gave it back stays away until the other has it: flock is not fair. */
        while (atomic_load(&p->held) <= nth + 1)
            bench_sleep_us(PAUSE_US);
    }
    p->subject->close(state);
}

void play(const struct subject *subject, const char *where, int jitter_us, struct samples *ns)
{
    static struct pingpong *p;
    if (!p)
        p = spawn_shared(sizeof *p);
    *p = (struct pingpong){.subject = subject, .where = where, .jitter_us = jitter_us};
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        pids[i] = spawn_worker(player, p, i);
    for (int i = 0; i < 2; i++)
        spawn_wait(pids[i]);
    for (int i = 2; i < 2 * BLOCK; i++) /* the first of each were not waited for */
        samples_add(ns, p->took_ns[i]);
}

void report_handover(const char *what, const char *what_p99, struct row goal, struct samples *ns,
                     struct samples *peer_ns)
{
    double our = samples_quantile(ns, 0.5), its = samples_quantile(peer_ns, 0.5);
    goal.what = what;
    goal.ratio = our / its;
    goal.judged = our / 1e3;
    format_times(ns, goal.ours, sizeof goal.ours);
    format_times(peer_ns, goal.peer, sizeof goal.peer);
    report_row(&goal);
    our = samples_quantile(ns, 0.99);
    its = samples_quantile(peer_ns, 0.99);
    struct row p99 = {.what = what_p99, .ratio = our / its};
    format_ns(our, p99.ours, sizeof p99.ours);
    format_ns(its, p99.peer, sizeof p99.peer);
    report_row(&p99);
}

void bench_handover(const struct bench_env *env)
{
    enum { FLOCK, OURS_FILE, OURS_SQLITE, N };
    const struct subject *subjects[N] = {&bare_flock, &ours_waiting, &ours_waiting};
    char *where[N] = {bench_path(env, "", "handover-flock"),
                      bench_path(env, "file:", "handover-locks"),
                      bench_path(env, "sqlite:", "handover.db")};
    struct samples ns[N] = {0};
    for (int block = 0; block < bench_amount(env, 40); block++)
        for (int i = 0; i < N; i++)
            play(subjects[i], where[i], 0, &ns[i]);
    report_handover("hand-over, file: vs flock", "hand-over, file: vs flock, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 3}, &ns[OURS_FILE], &ns[FLOCK]);
    report_handover("hand-over, sqlite: vs flock", "hand-over, sqlite: vs flock, p99",
                    (struct row){.goal = GOAL_AT_MOST, .limit = 100, .unit = "us"},
                    &ns[OURS_SQLITE], &ns[FLOCK]);
}

/* ---- takeover after kill -9 ------------------------------------------------------------------ */

/* Wait until the store says so; a store that never does is a failure. */
static void await(struct hf *hf, enum hf_lock_state state, uint32_t waiters)
{
    struct hf_error error;
    struct hf_status status;
    for (int tries = 0; tries < 10000; tries++) {
        if (hf_status_of(hf, "x", &status, &error) < 0)
            errx(1, "%s", error.message);
        if (status.state == state && status.waiters == waiters)
            return;
        bench_sleep_us(1000);
    }
    errx(1, "the lock is not %s with %u waiting", hf_lock_state_name(state), waiters);
}

/* Kill the holder, and read when the command of the one who waited began. */
static double kill_to_stamp_ns(const char *const holder[], const char *const waiter[],
                               struct hf *hf)
{
    int pipe_fds[2];
    long long stamp_ns;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        err(1, "pipe");
    pid_t first = spawn_start(holder, -1);
    if (hf)
        await(hf, HF_STATE_HELD, 0);
    else
        bench_sleep_us(20000);
    pid_t second = spawn_start(waiter, pipe_fds[1]);
    close(pipe_fds[1]);
    if (hf)
        await(hf, HF_STATE_HELD, 1);
    bench_sleep_us(20000);
    int64_t killed_ns = bench_now_ns();
    kill(first, SIGKILL);
    FILE *f = fdopen(pipe_fds[0], "re");
    if (!f || fscanf(f, "%lld", &stamp_ns) != 1)
        errx(1, "the one who waited did not get it");
    fclose(f);
    waitpid(first, NULL, 0);
    spawn_wait(second);
    return (double)(stamp_ns - killed_ns);
}

static void report_takeover(const char *what, struct samples *ns, struct samples *peer_ns)
{
    struct row row = {.what = what,
                      .ratio = samples_quantile(ns, 0.5) / samples_quantile(peer_ns, 0.5),
                      .goal = GOAL_AT_MOST,
                      .limit = 50,
                      .unit = "ms",
                      .judged = samples_quantile(ns, 0.5) / 1e6};
    format_times(ns, row.ours, sizeof row.ours);
    format_times(peer_ns, row.peer, sizeof row.peer);
    report_row(&row);
}

/*
 * flock's command keeps the lock when flock itself is killed, so its own takeover is with -o: at
 * once, and with the first command still running, which ours never is.
 */
void bench_takeover(const struct bench_env *env)
{
    char *lock = bench_path(env, "", "takeover-flock");
    const char *const peer_holder[] = {"flock", "-o", lock, "sleep", "0.5", NULL};
    const char *const peer_waiter[] = {"flock", lock, env->self, "--stamp", NULL};
    char *urls[] = {bench_path(env, "file:", "takeover-locks"),
                    bench_path(env, "sqlite:", "takeover.db")};
    struct samples ns[2] = {0}, peer_ns = {0};
    struct hf *hf[2];
    struct hf_error error;
    for (int i = 0; i < 2; i++)
        if (hf_open(urls[i], &hf[i], &error) < 0)
            errx(1, "%s", error.message);
    for (int round = 0; round < bench_amount(env, 50); round++) {
        samples_add(&peer_ns, kill_to_stamp_ns(peer_holder, peer_waiter, NULL));
        for (int i = 0; i < 2; i++) {
            const char *const holder[] = {env->holdfast, "-q", "--store", urls[i], "run",
                                          "x",           "--", "sleep",   "100",   NULL};
            const char *const waiter[] = {env->holdfast, "-q",      "--store", urls[i],
                                          "run",         "--wait",  "x",       "--",
                                          env->self,     "--stamp", NULL};
            samples_add(&ns[i], kill_to_stamp_ns(holder, waiter, hf[i]));
        }
    }
    report_takeover("kill -9 to takeover, file: vs flock -o", &ns[0], &peer_ns);
    report_takeover("kill -9 to takeover, sqlite: vs flock -o", &ns[1], &peer_ns);
}
