/*
 * Our figures beside our peers', as ratios measured in one run: see docs/benchmarks.md.
 *
 * A benchmark measures ours and its peer in turns (A, B, A, B, ...), so that a noisy moment hits
 * both, and reports one row per goal. main.c has the table of benchmarks, measure.c clocks and
 * medians, subject.c and subject_postgres.c what is measured (ours and the bare peers), spawn.c
 * processes, crowd.c many of them at once, and each bench_*.c one family of goals. A benchmark that can't go on exits by err(); it runs in a process
 * of its own, so the others still run.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What every benchmark is told. */
struct bench_env {
    const char *holdfast; /* the program */
    const char *self;     /* this program: `self --stamp` prints the clock */
    const char *dir;      /* an empty directory on the disk that is measured */
    const char *node;     /* where node/ is installed, with npm's peers; NULL: not there */
    const char *postgres; /* the script that starts a server in `dir` */
    const char *dynamodb; /* the script that starts an emulator and prints its endpoint */
    bool quick;           /* seconds rather than minutes */
};

/* `full`, or a tenth of it (at least 1) in quick mode. */
int bench_amount(const struct bench_env *env, int full);

/* A path below env->dir; the caller frees it. `prefix` makes it a store URL ("sqlite:"). */
char *bench_path(const struct bench_env *env, const char *prefix, const char *name);

typedef void bench_fn(const struct bench_env *env);
bench_fn bench_run_command, bench_pairs_sqlite, bench_pairs_file, bench_eight_processes,
    bench_handover, bench_names_sqlite, bench_names_file, bench_waiters, bench_takeover,
    bench_memory, bench_http, bench_webhook, bench_pg_pairs, bench_pg_seed, bench_pg_batch,
    bench_pg_handover, bench_pg_hot, bench_pg_names, bench_pg_snapshot, bench_history_sqlite,
    bench_pg_history, bench_pg_work, bench_sqlite_work, bench_dynamodb, bench_etcd_pairs,
    bench_etcd_handover, bench_etcd_run;

/* ---- measure.c ------------------------------------------------------------------------------ */

int64_t bench_now_ns(void); /* CLOCK_MONOTONIC: the same in every process */
void bench_sleep_us(long us);

struct samples {
    double *values;
    size_t n, size;
};

void samples_add(struct samples *s, double value);
/* The value below which a share `q` (0..1) of the samples lies; 0.5 is the median. */
double samples_quantile(struct samples *s, double q);
void samples_clear(struct samples *s);

/* One slice of a contest: work for so long and return how much was done per second. */
typedef double slice_fn(void *arg, int64_t for_ns);

struct contestant {
    slice_fn *slice;
    void *arg;
    struct samples per_second;
};

/* Slices of all in turns, after one turn that is not counted. */
void bench_contest(struct contestant *all, size_t n, int rounds, int64_t slice_ns);

/* The median of what `a` did per slice over what `b` did in the slice beside it. */
double bench_paired_ratio(const struct samples *a, const struct samples *b);

/* ---- report.c ------------------------------------------------------------------------------- */

enum goal { GOAL_NONE, GOAL_AT_MOST, GOAL_AT_LEAST };

struct row {
    const char *what;
    char ours[48], peer[48];
    double ratio; /* 0: there is none */
    enum goal goal;
    double limit;
    const char *unit; /* of the limit; NULL: the ratio is judged, else `judged` */
    double judged;
};

/* A text for a row or a database; they are few, nobody frees them. */
char *bench_format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));

void report_begin(const struct bench_env *env);
void report_row(const struct row *row);
/* A row that compares what two did per second; limit 0: without a goal. */
void report_pairs(const char *what, struct contestant *our, struct contestant *peer, double limit);
/* Prints the summary. */
void report_end(void);

/* "1.92 ms [1.80-2.10]": median, 10th and 90th percentile of samples in ns. */
void format_times(struct samples *ns, char *buf, size_t size);
/* "29.8k/s [28.1-30.2]" */
void format_rates(struct samples *per_second, char *buf, size_t size);
void format_ns(double ns, char *buf, size_t size);

/* ---- subject.c ------------------------------------------------------------------------------ */

/* Something that can be taken and given back by name: ours, or a bare peer. */
struct subject {
    void *(*open)(const char *where);
    void (*take)(void *state, const char *name);
    void (*give)(void *state, const char *name);
    void (*close)(void *state);
};

extern const struct subject ours;            /* where: a store URL; does not wait */
extern const struct subject ours_waiting;    /* the same, waits for ever; bound to this process */
extern const struct subject ours_unbound;    /* the same, bound to none */
extern const struct subject bare_sqlite;     /* an upsert and an update, WAL, NORMAL */
extern const struct subject bare_create;     /* O_EXCL create + unlink in a directory */
extern const struct subject bare_create_300; /* the same, with 300 bytes written */
extern const struct subject bare_flock;      /* blocking flock of a file that stays open */

/* A subject opened in this process, as a contestant's argument; the slice works on `name`. */
struct opened {
    const struct subject *subject;
    void *state;
    const char *name;
};
double opened_slice(void *opened, int64_t for_ns);

/* The bare SQLite peer with rows 0..n-1 named by subject_name(), in one transaction. */
void bare_sqlite_fill(void *state, int n);
void subject_name(int i, char ret[32]);

/* A hundred names, <name>-0 to <name>-99, taken together and given back together. */
extern const struct subject ours_hundred;

/* ---- subject_postgres.c: where is the URL of a database -------------------------------------- */

extern const struct subject bare_postgres;   /* an upsert and an update, unnamed statements */
extern const struct subject retry_postgres;  /* the same, tries again at once until it has it */
extern const struct subject poll_postgres;   /* the same, tries again after 100 ms */
extern const struct subject notify_postgres; /* the same, with NOTIFY at the end, and LISTEN */
extern const struct subject bare_hundred;    /* the same over unnest(), as ours_hundred */
extern const struct subject seed_postgres;   /* shared/seeds/003: a row per lock ever taken */
extern const struct subject seed_indexed;    /* the same, with the index that its query asks for */

/* A new database on the benchmarks' server; the caller frees its URL. */
char *postgres_database(const struct bench_env *env, const char *name);
/* Run statements that return nothing of interest. */
void postgres_run(const char *url, const char *sql);
/* bare_postgres's two statements for pgbench. */
extern const char bare_pgbench_script[];
/* pgbench with `n` clients that run `script`, a file, for whole seconds: its transactions/s. */
double postgres_pgbench(const char *url, const char *script, int n, int seconds);

/* ---- subject_etcd.c: where is a store's URL, of which only the host counts --------------------- */

extern const struct subject bare_etcd;    /* two Txns, in a lease that is made once */
extern const struct subject watch_etcd;   /* the same, waits by a watch */
extern const struct subject service_etcd; /* etcd's own lock service */

/* etcd on 127.0.0.1:7493, until this process ends; false: there is none. Of bench_http.c. */
bool bench_start_etcd(const struct bench_env *env);

/* ---- crowd.c -------------------------------------------------------------------------------- */

enum { CROWD_MAX = 32 };

/* What the processes of one slice share with their parent; crowd_slice's argument. */
struct crowd {
    const struct subject *subject;
    const char *where;
    int n;
    int warm_up;    /* pairs that each does before they begin together */
    bool same_name; /* all want the same; else each has its own */
    atomic_int ready;
    atomic_bool go, stop;
    int64_t longest_ns; /* that any call took, in any slice */
    struct {
        int64_t pairs, longest_ns;
    } of[CROWD_MAX];
};

struct crowd *crowd_make(const struct subject *subject, const char *where, int n);
double crowd_slice(void *crowd, int64_t for_ns);

/* ---- handing over: bench_handover.c ----------------------------------------------------------- */

enum { PLAY_HANDOVERS = 100 };

/*
 * Two processes hand a lock to and fro so many times: from before the release to having it. Each
 * holds it for a millisecond, and for up to `jitter_us` more at random.
 */
void play(const struct subject *subject, const char *where, int jitter_us, struct samples *ns);
/* The median with its goal, and beside it the 99th percentile. */
void report_handover(const char *what, const char *what_p99, struct row goal, struct samples *ns,
                     struct samples *peer_ns);

/* ---- growing: bench_growth.c ------------------------------------------------------------------ */

enum { BENCH_SIZES = 3 };

/* A row of medians at three sizes; the goal is that the last is at most 1.5 of the first. */
void report_growth(const char *what, struct samples ns[BENCH_SIZES],
                   struct samples peer[BENCH_SIZES]);
/* Make n names known to the store: taken and given back. */
void fill(const char *url, int n);
/* Take random names of `n`, one after the other. */
void sample_takes(const struct opened *o, int n, int times, struct samples *ns);

/* ---- spawn.c -------------------------------------------------------------------------------- */

/* Start argv[0] (looked up in PATH); with stdout to `stdout_fd` and no stderr, unless that is -1. */
pid_t spawn_start(const char *const argv[], int stdout_fd);
void spawn_wait(pid_t pid);
/* Run to its end, which must be exit 0; how long that took. */
double spawn_timed_ns(const char *const argv[]);

/* Fork a worker that dies with this process and exits 0 after fn(arg, index). */
pid_t spawn_worker(void (*fn)(void *arg, int index), void *arg, int index);
/* Zeroed memory that workers share. */
void *spawn_shared(size_t size);

#endif
