/* What metrics.c and tally.c share: histograms as Prometheus has them. */
#ifndef HF_SERVER_METRICS_H
#define HF_SERVER_METRICS_H

#include "server.h"

enum { N_BOUNDS = 18 };

struct histogram {
    uint64_t buckets[N_BOUNDS + 1];
    double sum_s;
};

void histogram_observe(struct histogram *h, int64_t us);

/* HELP and TYPE, once per name; `label` is empty, or as {workflow="x"} but without the braces. */
void histogram_head(struct hf_buf *out, const char *name, const char *help);
void histogram_put(struct hf_buf *out, const char *name, const char *label,
                   const struct histogram *h);

/* ---- tally.c: executions by workflow -------------------------------------------------------- */

struct tally *tally_new(void);
void tally_free(struct tally *t);
void tally_put(struct hf_buf *out, const struct tally *t);
void tally_ended(struct tally *t, const struct hf_execution *x);

#endif
