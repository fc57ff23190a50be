#include <err.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "holdfast.h"

char *bench_format(const char *pattern, ...)
{
    char *text;
    va_list args;
    va_start(args, pattern);
    if (vasprintf(&text, pattern, args) < 0)
        err(1, "vasprintf");
    va_end(args);
    return text;
}

/* Benchmarks run in children: what they reached is counted in memory that all share. */
static struct tally {
    int met, missed;
} * tally;

/* The first line of a /proc file that begins with `prefix`, behind its colon. */
static void proc_line(const char *path, const char *prefix, char *buf, size_t size)
{
    char line[512];
    FILE *f = fopen(path, "re");
    snprintf(buf, size, "?");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, prefix, strlen(prefix)) != 0)
            continue;
        char *value = strchr(line, ':');
        value = value ? value + 1 : line;
        snprintf(buf, size, "%s", value + strspn(value, " \t"));
        buf[strcspn(buf, "\n")] = '\0';
        break;
    }
    if (f)
        fclose(f);
}

void report_begin(const struct bench_env *env)
{
    char cpu[128], memory[64], load[64], date[32];
    struct utsname os;
    time_t now = time(NULL);
    struct tm utc;
    uname(&os);
    proc_line("/proc/cpuinfo", "model name", cpu, sizeof cpu);
    proc_line("/proc/meminfo", "MemTotal", memory, sizeof memory);
    proc_line("/proc/loadavg", "", load, sizeof load);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
    printf("holdfast %s, %s%s: %s, %ld cores, %s, Linux %s, SQLite %s, in %s, load %s\n\n",
           HF_VERSION, date, env->quick ? " (quick)" : "", cpu, sysconf(_SC_NPROCESSORS_ONLN),
           memory, os.release, sqlite3_libversion(), env->dir, load);
    printf("| %-47s | %-26s | %-26s | %6s | %-9s | %-6s |\n", "what", "ours", "peer", "ratio",
           "goal", "ok?");
    printf("|-------------------------------------------------|----------------------------|"
           "----------------------------|-------:|-----------|--------|\n");
    fflush(stdout);
    tally = spawn_shared(sizeof *tally);
}

/* "met", "MISSED", or nothing where there is no goal. */
static const char *verdict(const struct row *row)
{
    double value = row->unit ? row->judged : row->ratio;
    if (row->goal == GOAL_NONE)
        return "";
    bool met = row->goal == GOAL_AT_MOST ? value <= row->limit : value >= row->limit;
    *(met ? &tally->met : &tally->missed) += 1;
    return met ? "met" : "MISSED";
}

void report_row(const struct row *row)
{
    char ratio[16] = "", goal[32] = "";
    if (row->ratio > 0)
        snprintf(ratio, sizeof ratio, row->ratio < 0.1 ? "%.3f" : "%.2f", row->ratio);
    if (row->goal != GOAL_NONE)
        snprintf(goal, sizeof goal, "%s %g%s%s",
                 row->goal == GOAL_AT_MOST ? "<=" : ">=", row->limit, row->unit ? " " : "",
                 row->unit ? row->unit : "");
    printf("| %-47s | %-26s | %-26s | %6s | %-9s | %-6s |\n", row->what, row->ours, row->peer,
           ratio, goal, verdict(row));
    fflush(stdout);
}

void report_pairs(const char *what, struct contestant *our, struct contestant *peer, double limit)
{
    struct row row = {.what = what,
                      .ratio = bench_paired_ratio(&our->per_second, &peer->per_second),
                      .goal = limit > 0 ? GOAL_AT_LEAST : GOAL_NONE,
                      .limit = limit};
    format_rates(&our->per_second, row.ours, sizeof row.ours);
    format_rates(&peer->per_second, row.peer, sizeof row.peer);
    report_row(&row);
}

void report_end(void)
{
    char load[64];
    proc_line("/proc/loadavg", "", load, sizeof load);
    printf("\n%d goals met, %d missed; load at the end %s\n", tally->met, tally->missed, load);
}

/* ---- numbers as people read them ------------------------------------------------------------ */

struct scale {
    double from, divisor;
    const char *unit;
};

static const struct scale times[] = {{1e9, 1e9, " s"}, {1e6, 1e6, " ms"}, {0, 1e3, " us"}};
static const struct scale rates[] = {{1e6, 1e6, "M/s"}, {1e3, 1e3, "k/s"}, {0, 1, "/s"}};

static const struct scale *scale_for(const struct scale *scale, double value)
{
    while (value < scale->from)
        scale++;
    return scale;
}

static int digits(double value) { return value < 10 ? 2 : value < 100 ? 1 : 0; }

static void format_spread(struct samples *s, const struct scale *scales, char *buf, size_t size)
{
    double mid = samples_quantile(s, 0.5), low = samples_quantile(s, 0.1),
           high = samples_quantile(s, 0.9);
    const struct scale *scale = scale_for(scales, mid);
    int d = digits(mid / scale->divisor);
    snprintf(buf, size, "%.*f%s [%.*f-%.*f]", d, mid / scale->divisor, scale->unit, d,
             low / scale->divisor, d, high / scale->divisor);
}

void format_times(struct samples *ns, char *buf, size_t size)
{
    format_spread(ns, times, buf, size);
}

void format_rates(struct samples *per_second, char *buf, size_t size)
{
    format_spread(per_second, rates, buf, size);
}

void format_ns(double ns, char *buf, size_t size)
{
    const struct scale *scale = scale_for(times, ns);
    snprintf(buf, size, "%.*f%s", digits(ns / scale->divisor), ns / scale->divisor, scale->unit);
}
