/* Housekeeping: sweep, metrics, init. */
#include <string.h>

#include "announce.h"
#include "cli.h"
#include "text.h"
#include "totals.h"
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
    int64_t freed, removed = 0;
    struct hf_error err;
    if (hf_sweep(hf, opts->dry_run, say_swept, cli, &freed, &err) < 0)
        return cli_fail(cli, &err);
    if (!opts->dry_run && hf_prune(hf, NULL, 0, HF_FOREVER, &removed, &err) < 0)
        return cli_fail(cli, &err);
    if (opts->json)
        printf("{\"freed\":%lld,\"removed\":%lld,\"dryRun\":%s}\n", (long long)freed,
               (long long)removed, opts->dry_run ? "true" : "false");
    else if (!opts->quiet && (freed || !opts->every_ms))
        cli_say(CLI_PLAIN, "%s %lld", opts->dry_run ? "would free" : "freed", (long long)freed);
    if (!opts->json && !opts->quiet && removed)
        cli_say(CLI_PLAIN, "removed %lld executions that need not be kept any longer",
                (long long)removed);
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

/* Totals in the form `write` gives them. */
static int put_totals(const struct hf_totals *totals,
                      void (*write)(struct hf_buf *out, const struct hf_totals *totals))
{
    struct hf_buf text = HF_BUF(CLI_JSON_MAX);
    write(&text, totals);
    return cli_put_json(&text);
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
    return put_totals(&totals, cli->opts.json ? hf_totals_json : hf_totals_prometheus);
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
