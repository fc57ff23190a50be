#include "totals.h"

#include <string.h>

#include "wire.h"

/* One sample: consecutive rows of one metric share its HELP and TYPE. */
static const struct sample {
    const char *metric, *label, *type, *help;
    struct hf_wire_field total; /* where it stands in struct hf_totals, and its name in JSON */
} samples[] = {
#define S(metric, label, type, help, member, json)                                                 \
    {                                                                                              \
        metric, label, type, help, HF_WIRE(struct hf_totals, member, json, HF_WIRE_INT)            \
    }
    S("holdfast_acquire_total", "result=\"granted\"", "counter", "Requests for a lock.",
      acquire_granted, "acquireGranted"),
    S("holdfast_acquire_total", "result=\"held\"", "counter", "", acquire_held, "acquireHeld"),
    S("holdfast_acquire_total", "result=\"raced\"", "counter", "", acquire_raced, "acquireRaced"),
    S("holdfast_acquire_total", "result=\"error\"", "counter", "", acquire_error, "acquireError"),
    S("holdfast_release_total", "result=\"done\"", "counter", "Releases.", release_done,
      "releaseDone"),
    S("holdfast_release_total", "result=\"lost\"", "counter", "", release_lost, "releaseLost"),
    S("holdfast_stale_takeovers_total", "reason=\"expired\"", "counter",
      "Stale locks that were taken over.", takeover_expired, "takeoverExpired"),
    S("holdfast_stale_takeovers_total", "reason=\"holder-died\"", "counter", "",
      takeover_holder_died, "takeoverHolderDied"),
    S("holdfast_stale_takeovers_total", "reason=\"rebooted\"", "counter", "", takeover_rebooted,
      "takeoverRebooted"),
    S("holdfast_forced_releases_total", "", "counter", "Locks that an operator freed by force.",
      forced, "forced"),
    S("holdfast_lost_leases_total", "", "counter", "Leases whose holder had to stop.", lost,
      "lost"),
    S("holdfast_locks", "state=\"held\"", "gauge", "Locks by state.", locks_held, "locksHeld"),
    S("holdfast_locks", "state=\"stale\"", "gauge", "", locks_stale, "locksStale"),
    S("holdfast_locks", "state=\"free\"", "gauge", "", locks_free, "locksFree"),
    S("holdfast_waiters", "", "gauge", "Those who wait for a lock.", waiters, "waiters"),
    S("holdfast_executions", "state=\"PENDING\"", "gauge",
      "Executions that have not ended, by state.", executions_pending, "executionsPending"),
    S("holdfast_executions", "state=\"RUNNING\"", "gauge", "", executions_running,
      "executionsRunning"),
#undef S
};

enum { N_SAMPLES = sizeof samples / sizeof *samples };

static void take_fields(struct hf_wire_field *ret)
{
    for (size_t i = 0; i < N_SAMPLES; i++)
        ret[i] = samples[i].total;
}

void hf_totals_json(struct hf_buf *out, const struct hf_totals *totals)
{
    struct hf_wire_field fields[N_SAMPLES];
    take_fields(fields);
    hf_wire_write(out, totals, fields, N_SAMPLES);
}

int hf_totals_read(const struct json_t *object, struct hf_totals *ret, struct hf_error *err)
{
    struct hf_wire_field fields[N_SAMPLES];
    take_fields(fields);
    return hf_wire_read(object, ret, fields, N_SAMPLES, err);
}

void hf_totals_prometheus(struct hf_buf *out, const struct hf_totals *totals)
{
    for (size_t i = 0; i < N_SAMPLES; i++) {
        const struct sample *s = &samples[i];
        int64_t value;
        memcpy(&value, (const char *)totals + s->total.offset, sizeof value);
        if (s->help[0])
            hf_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", s->metric, s->help, s->metric,
                          s->type);
        hf_buf_printf(out, s->label[0] ? "%s{%s} %lld\n" : "%s%s %lld\n", s->metric, s->label,
                      (long long)value);
    }
    hf_buf_puts(out, "# HELP holdfast_build_info The version that wrote this.\n"
                     "# TYPE holdfast_build_info gauge\n"
                     "holdfast_build_info{version=\"" HF_VERSION "\"} 1");
}
