/* What Prometheus is told: the store's totals, and what this service has seen itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "metrics.h"
#include "totals.h"

/* ---- what was seen -------------------------------------------------------------------------- */

static const double bounds_s[N_BOUNDS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                          0.05,   0.1,   0.25,   0.5,   1,    2.5,
                                          5,      10,    30,     60,    300,  3600};
enum { N_LEASES = 1 << 16, N_CLASSES = 6 };

static const struct {
    const char *name, *help;
} histograms[N_HISTOGRAMS] = {
    [H_ACQUIRE] = {"holdfast_acquire_duration_seconds", "From a request for a lock to its grant."},
    [H_WAIT] = {"holdfast_wait_duration_seconds",
                "How long those who had to wait did, granted or not."},
    [H_HOLD] = {"holdfast_hold_duration_seconds",
                "From a grant to its release, through this service."},
    [H_MARGIN] = {"holdfast_renewal_margin_seconds",
                  "What was left of a lease when it was renewed."},
    [H_REQUEST] = {"holdfast_http_request_duration_seconds",
                   "From a request's arrival to its end."},
    [H_LAG] = {"holdfast_schedule_lag_seconds",
               "From when an execution was due to when it was claimed through this service."},
};

static const char *const op_names[] = {
    [HF_OP_ACQUIRE] = "acquire",   [HF_OP_EXTEND] = "extend", [HF_OP_RELEASE] = "release",
    [HF_OP_WITHDRAW] = "withdraw", [HF_OP_FORCE] = "force",   [HF_OP_SETTLE] = "settle",
    [HF_OP_LOST] = "lost",         [HF_OP_STATUS] = "status", [HF_OP_GUARD] = "guard",
    [HF_OP_ENQUEUE] = "enqueue",   [HF_OP_CANCEL] = "cancel",
};
enum { N_OPS = sizeof op_names / sizeof *op_names };

/* A lease that is held through this service; a newer one may take its place. */
struct held {
    uint64_t key;
    int64_t granted_us, expires_us;
};

struct metrics {
    struct histogram histograms[N_HISTOGRAMS];
    struct tally *tally;
    uint64_t responses[N_CLASSES]; /* by the first digit of their status */
    uint64_t store_errors[N_OPS];
    uint64_t raced;
    struct held held[N_LEASES];
};

int metrics_open(struct server *server, struct hf_error *err)
{
    server->metrics = calloc(1, sizeof *server->metrics);
    if (!server->metrics || !(server->metrics->tally = tally_new()))
        return hf_fail(err, HF_NOMEM, "out of memory");
    return 0;
}

void metrics_close(struct server *server)
{
    if (server->metrics)
        tally_free(server->metrics->tally);
    free(server->metrics);
    server->metrics = NULL;
}

void histogram_observe(struct histogram *h, int64_t us)
{
    double s = (double)us / 1e6;
    size_t i = 0;
    while (i < N_BOUNDS && s > bounds_s[i])
        i++;
    h->buckets[i]++;
    h->sum_s += s > 0 ? s : 0;
}

void metrics_observe(struct server *server, enum histogram_name which, int64_t us)
{
    histogram_observe(&server->metrics->histograms[which], us);
}

void metrics_request(struct server *server, unsigned status)
{
    server->metrics->responses[status / 100 < N_CLASSES ? status / 100 : 0]++;
}

void metrics_store_error(struct server *server, enum hf_op op)
{
    server->metrics->store_errors[op]++;
}

void metrics_raced(struct server *server) { server->metrics->raced++; }

/* By FNV-1a: what two tokens with one key would spoil is a sample of a histogram. */
static struct held *place_of(struct server *server, const char *token, uint64_t *ret_key)
{
    *ret_key = UINT64_C(0xcbf29ce484222325);
    for (; *token; token++)
        *ret_key = (*ret_key ^ (unsigned char)*token) * UINT64_C(0x100000001b3);
    return &server->metrics->held[*ret_key % N_LEASES];
}

void metrics_lease(struct server *server, const struct hf_lease *lease, bool is_new)
{
    uint64_t key;
    struct held *held = place_of(server, lease->token, &key);
    int64_t at_us = now_us();
    if (!is_new && held->key == key)
        metrics_observe(server, H_MARGIN, held->expires_us - at_us);
    if (is_new)
        *held = (struct held){.key = key, .granted_us = at_us};
    if (held->key == key)
        held->expires_us = at_us + lease->ttl_ms * 1000;
}

void metrics_released(struct server *server, const char *token)
{
    uint64_t key;
    struct held *held = place_of(server, token, &key);
    if (held->key == key)
        metrics_observe(server, H_HOLD, now_us() - held->granted_us);
    held->key = 0;
}

void metrics_execution_claimed(struct server *server, const struct hf_execution *x)
{
    metrics_observe(server, H_LAG, (x->started_at_ms - x->run_at_ms) * 1000);
}

void metrics_execution_ended(struct server *server, const struct hf_execution *x)
{
    tally_ended(server->metrics->tally, x);
}

/* ---- as text -------------------------------------------------------------------------------- */

void histogram_head(struct hf_buf *out, const char *name, const char *help)
{
    hf_buf_printf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
}

void histogram_put(struct hf_buf *out, const char *name, const char *label,
                   const struct histogram *h)
{
    const char *comma = *label ? "," : "", *open = *label ? "{" : "", *close = *label ? "}" : "";
    unsigned long long sum = 0;
    for (size_t i = 0; i < N_BOUNDS; i++) {
        sum += h->buckets[i];
        hf_buf_printf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, label, comma, bounds_s[i], sum);
    }
    sum += h->buckets[N_BOUNDS];
    hf_buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n%s_sum%s%s%s %.6f\n%s_count%s%s%s %llu\n",
                  name, label, comma, sum, name, open, label, close, h->sum_s, name, open, label,
                  close, sum);
}

static void put_own(struct hf_buf *out, const struct server *server)
{
    const struct metrics *m = server->metrics;
    for (int i = 0; i < N_HISTOGRAMS; i++) {
        histogram_head(out, histograms[i].name, histograms[i].help);
        histogram_put(out, histograms[i].name, "", &m->histograms[i]);
    }
    tally_put(out, m->tally);
    hf_buf_puts(out, "# HELP holdfast_store_errors_total Operations that the store failed.\n"
                     "# TYPE holdfast_store_errors_total counter\n");
    for (size_t i = 0; i < N_OPS; i++)
        hf_buf_printf(out, "holdfast_store_errors_total{op=\"%s\"} %llu\n", op_names[i],
                      (unsigned long long)m->store_errors[i]);
    hf_buf_puts(out, "# HELP holdfast_http_responses_total Answers, by the class of their status.\n"
                     "# TYPE holdfast_http_responses_total counter\n");
    for (int i = 2; i < N_CLASSES; i++)
        hf_buf_printf(out, "holdfast_http_responses_total{status=\"%dxx\"} %llu\n", i,
                      (unsigned long long)m->responses[i]);
    hf_buf_printf(out,
                  "# HELP holdfast_http_connections Open connections.\n"
                  "# TYPE holdfast_http_connections gauge\nholdfast_http_connections %zu\n"
                  "# HELP holdfast_http_waiting Requests that wait for a lock here.\n"
                  "# TYPE holdfast_http_waiting gauge\nholdfast_http_waiting %zu\n",
                  server->n_connections, waits_count(server));
}

/* What is known without the store, where that does not answer: else it is among its totals. */
static void put_acquires(struct hf_buf *out, const struct metrics *m)
{
    hf_buf_printf(out,
                  "# HELP holdfast_acquire_total Requests for a lock.\n"
                  "# TYPE holdfast_acquire_total counter\n"
                  "holdfast_acquire_total{result=\"raced\"} %llu\n"
                  "holdfast_acquire_total{result=\"error\"} %llu",
                  (unsigned long long)m->raced, (unsigned long long)m->store_errors[HF_OP_ACQUIRE]);
}

/* ---- the routes ----------------------------------------------------------------------------- */

static void totals_forget(struct request *req)
{
    if (req->working)
        return;
    free(req->context);
    req->context = NULL;
}

static int totals_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    return hf_totals_of(hf, request_of(job)->context, err);
}

static void totals_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = request_of(job);
    struct hf_totals totals = *(struct hf_totals *)req->context;
    (void)answer;
    req->working = false;
    totals_forget(req);
    if (!(req = request_back(job)))
        return;
    bool json = req->route->handle == get_totals;
    const struct metrics *m = req->server->metrics;
    totals.acquire_raced = (int64_t)m->raced;
    totals.acquire_error = (int64_t)m->store_errors[HF_OP_ACQUIRE];
    if (code < 0 && json) {
        request_problem(req, -code, err->message, NULL);
        return;
    }
    if (json)
        hf_totals_json(&req->answer, &totals);
    else { /* what we know ourselves is told even if the store is out of reach */
        put_own(&req->answer, req->server);
        if (code >= 0)
            hf_totals_prometheus(&req->answer, &totals);
        else
            put_acquires(&req->answer, m);
        hf_buf_putc(&req->answer, '\n');
        req->content_type = "text/plain; version=0.0.4; charset=utf-8";
    }
    request_answer(req, 200);
}

void get_totals(struct request *req)
{
    req->context = calloc(1, sizeof(struct hf_totals));
    req->forget = totals_forget;
    if (!req->context) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    req->job.work = totals_work;
    request_ask(req, LANE_CHORE, totals_done);
}

void get_metrics(struct request *req) { get_totals(req); }
