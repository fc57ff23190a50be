/*
 * Our figures beside our peers', as ratios measured in one run: see docs/benchmarks.md.
 *
 * A benchmark measures ours and its peer in turns (A, B, A, B, ...), so that a noisy moment hits
 * both, and reports one row per goal. main.c has the table of benchmarks, measure.c clocks and
 * medians, subject.c what is measured (ours and the bare peers), spawn.c processes, and each
 * bench_*.c one family of goals. A benchmark that can't go on exits by err(); it runs in a process
 * of its own, so the others still run.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What every benchmark is told. */
struct bench_env {
    const char *holdfast; /* the program */
    const char *self;     /* this program: `self --stamp` prints the clock */
    const char *dir;      /* an empty directory on the disk that is measured */
    const char *node;     /* the script that measures npm's proper-lockfile; NULL: not there */
    bool quick;           /* seconds rather than minutes */
};

/* `full`, or a tenth of it (at least 1) in quick mode. */
int bench_amount(const struct bench_env *env, int full);

/* A path below env->dir; the caller frees it. `prefix` makes it a store URL ("sqlite:"). */
char *bench_path(const struct bench_env *env, const char *prefix, const char *name);

typedef void bench_fn(const struct bench_env *env);
bench_fn bench_run_command, bench_pairs_sqlite, bench_pairs_file, bench_eight_processes,
    bench_handover, bench_names_sqlite, bench_names_file, bench_waiters, bench_takeover,
    bench_memory, bench_http;

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

void report_begin(const struct bench_env *env);
void report_row(const struct row *row);
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
extern const struct subject ours_waiting;    /* the same, waits for ever */
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
