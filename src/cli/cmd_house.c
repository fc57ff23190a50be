/* Housekeeping: sweep, metrics, init. */
#include <string.h>

#include "announce.h"
#include "cli.h"
#include "text.h"
#include "wire.h"

/* ---- sweep ---------------------------------------------------------------------------------- */

/* Say loudly what was freed, or plainly what would be. */
static int say_swept(void *arg, const struct hf_status *status)
{
    const struct cli *cli = arg;
    char line[HF_MESSAGE_MAX];
    if (!cli->opts.dry_run)
        cli_announce_sweep(status);
    else if (!cli->opts.json) {
        hf_describe_status(status, line, sizeof line);
        cli_say(CLI_PLAIN, "would free: %s", line);
    }
    return ferror(stdout);
}

static int sweep_once(struct cli *cli, struct hf *hf)
{
    const struct cli_options *opts = &cli->opts;
    int64_t freed;
    struct hf_error err;
    if (hf_sweep(hf, opts->dry_run, say_swept, cli, &freed, &err) < 0)
        return cli_fail(cli, &err);
    if (opts->json)
        printf("{\"freed\":%lld,\"dryRun\":%s}\n", (long long)freed,
               opts->dry_run ? "true" : "false");
    else if (!opts->quiet && (freed || !opts->every_ms))
        cli_say(CLI_PLAIN, "%s %lld", opts->dry_run ? "would free" : "freed", (long long)freed);
    return cli_flush();
}

int cmd_sweep(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    struct hf *hf;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (cli->opts.every_ms)
        cli_hold_signals();
    do
        code = sweep_once(cli, hf);
    while (!code && cli->opts.every_ms && !cli_pause(cli->opts.every_ms));
    return code;
}

/* ---- metrics -------------------------------------------------------------------------------- */

/* One sample: consecutive rows of one metric share its HELP and TYPE. */
static const struct {
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
#undef S
};

enum { N_SAMPLES = sizeof samples / sizeof *samples };

static int metrics_json(const struct hf_totals *totals)
{
    struct hf_wire_field fields[N_SAMPLES];
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    for (size_t i = 0; i < N_SAMPLES; i++)
        fields[i] = samples[i].total;
    hf_wire_write(&json, totals, fields, N_SAMPLES);
    return cli_put_json(&json);
}

static void print_samples(const struct hf_totals *totals)
{
    for (size_t i = 0; i < N_SAMPLES; i++) {
        int64_t value;
        memcpy(&value, (const char *)totals + samples[i].total.offset, sizeof value);
        if (samples[i].help[0])
            printf("# HELP %s %s\n# TYPE %s %s\n", samples[i].metric, samples[i].help,
                   samples[i].metric, samples[i].type);
        printf(samples[i].label[0] ? "%s{%s} %lld\n" : "%s%s %lld\n", samples[i].metric,
               samples[i].label, (long long)value);
    }
    puts("# HELP holdfast_build_info The version that wrote this.\n"
         "# TYPE holdfast_build_info gauge\n"
         "holdfast_build_info{version=\"" HF_VERSION "\"} 1");
}

int cmd_metrics(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    struct hf *hf;
    struct hf_totals totals;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_totals_of(hf, &totals, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json)
        return metrics_json(&totals);
    print_samples(&totals);
    return 0;
}

/* ---- init ----------------------------------------------------------------------------------- */

static int print_schema(const struct cli *cli)
{
    const char *schema;
    struct hf_error err;
    if (hf_schema(cli->opts.store_url, &schema, &err) < 0)
        return cli_fail(cli, &err);
    fputs(schema, stdout);
    return 0;
}

int cmd_init(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    bool bump = cli->opts.bump_epoch;
    struct hf *hf;
    struct hf_error err;
    if (cli->opts.print_schema)
        return print_schema(cli);
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    cli_warn(cli);
    if (hf_init(hf, bump, &err) < 0)
        return cli_fail(cli, &err);
    const char *url = hf_url(hf);
    if (cli->opts.json) {
        struct hf_buf json = HF_BUF(CLI_JSON_MAX);
        hf_buf_puts(&json, "{\"store\":");
        hf_wire_string(&json, url, strlen(url));
        hf_buf_printf(&json, ",\"epochBumped\":%s}", bump ? "true" : "false");
        return cli_put_json(&json);
    }
    if (!cli->opts.quiet)
        cli_say(CLI_PLAIN, "%s is ready%s", url,
                bump ? "; every later fence is past any that was lost" : "");
    return 0;
}
