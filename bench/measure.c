#include <err.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

int64_t bench_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void bench_sleep_us(long us)
{
    struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

void samples_add(struct samples *s, double value)
{
    if (s->n == s->size) {
        s->size = s->size ? 2 * s->size : 64;
        s->values = realloc(s->values, s->size * sizeof *s->values);
        if (!s->values)
            err(1, "samples");
    }
    s->values[s->n++] = value;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_quantile(struct samples *s, double q)
{
    if (!s->n)
        errx(1, "nothing was measured");
    /* A sorted copy: the order in which they were taken pairs them with their neighbours. */
    double *sorted = malloc(s->n * sizeof *sorted);
    if (!sorted)
        err(1, "samples");
    for (size_t i = 0; i < s->n; i++)
        sorted[i] = s->values[i];
    qsort(sorted, s->n, sizeof *sorted, compare_doubles);
    double value = sorted[(size_t)(q * (double)(s->n - 1) + 0.5)];
    free(sorted);
    return value;
}

void samples_clear(struct samples *s)
{
    free(s->values);
    *s = (struct samples){0};
}

void bench_contest(struct contestant *all, size_t n, int rounds, int64_t slice_ns)
{
    for (int round = -1; round < rounds; round++)
        for (size_t i = 0; i < n; i++) {
            double done = all[i].slice(all[i].arg, slice_ns);
            if (round >= 0)
                samples_add(&all[i].per_second, done);
        }
}

double bench_paired_ratio(const struct samples *a, const struct samples *b)
{
    struct samples ratios = {0};
    for (size_t i = 0; i < a->n && i < b->n; i++)
        samples_add(&ratios, a->values[i] / b->values[i]);
    double median = samples_quantile(&ratios, 0.5);
    samples_clear(&ratios);
    return median;
}
