/* Executions as people see them: executions, show, cancel. */
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "output.h"
#include "text.h"
#include "wire.h"

int cli_put_execution(const struct hf_execution *execution)
{
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    hf_wire_execution(&json, execution);
    return cli_put_json(&json);
}

static enum cli_style style_of(enum hf_execution_state state)
{
    static const enum cli_style styles[] = {[HF_PENDING] = CLI_PLAIN,
                                            [HF_RUNNING] = CLI_GOOD,
                                            [HF_SUCCESS] = CLI_PLAIN,
                                            [HF_FAILED] = CLI_BAD,
                                            [HF_ABORTED] = CLI_BAD};
    return styles[state];
}

/* ---- executions ----------------------------------------------------------------------------- */

static const char *const heads[] = {"ID",      "WORKFLOW", "STATE", "KEY",
                                    "CREATED", "TOOK",     "EXIT",  "REASON"};

struct listing {
    struct cli_table table;
    bool json;
    int code;
};

static void add_row(struct cli_table *table, const struct hf_execution *x)
{
    char created[HF_TIME_LEN + 1], took[HF_SPAN_MAX] = "-", exit_code[16] = "-";
    hf_format_time(x->created_at_ms, created);
    created[19] = '\0'; /* seconds are enough here */
    int64_t end_ms = x->finished_at_ms ? x->finished_at_ms : hf_clock_wall_ms();
    if (x->started_at_ms)
        hf_format_span(end_ms - x->started_at_ms, took);
    if (x->has_exit_code)
        snprintf(exit_code, sizeof exit_code, "%d", x->exit_code);
    const char *const cells[] = {
        x->id, x->workflow, hf_execution_state_name(x->state), x->key[0] ? x->key : "-", created,
        took,  exit_code,   x->reason[0] ? x->reason : "-",
    };
    cli_table_row(table, style_of(x->state), cells);
}

static int list_one(void *arg, const struct hf_execution *x)
{
    struct listing *listing = arg;
    if (listing->json)
        listing->code = cli_put_execution(x);
    else
        add_row(&listing->table, x);
    return listing->code || ferror(stdout);
}

int cmd_executions(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    struct listing listing = {.table = {.heads = heads, .n_columns = sizeof heads / sizeof *heads},
                              .json = cli->opts.json};
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    struct hf *hf;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    query.workflow = cli->opts.workflow;
    query.state = (int)cli->opts.state;
    query.limit = cli->opts.limit;
    int r = hf_executions(hf, &query, list_one, &listing, &err);
    cli_table_end(&listing.table);
    if (r < 0)
        return cli_fail(cli, &err);
    if (!listing.json && !listing.table.headed && isatty(STDOUT_FILENO) && !cli->opts.quiet)
        cli_say(CLI_FAINT, "no executions");
    return listing.code;
}

/* ---- show ----------------------------------------------------------------------------------- */

static void say_time(const char *label, int64_t at_ms)
{
    char text[HF_TIME_LEN + 1];
    hf_format_time(at_ms, text);
    if (at_ms)
        cli_say(CLI_PLAIN, "  %-10s  %s", label, text);
}

static void say_text(const char *label, const char *text)
{
    if (*text)
        cli_say(CLI_PLAIN, "  %-10s  %s", label, text);
}

static void say_execution(const struct hf_execution *x)
{
    cli_say(style_of(x->state), "%s %s is %s%s", x->workflow, x->id,
            hf_execution_state_name(x->state),
            x->state == HF_RUNNING && x->cancel_requested ? ", and asked to stop" : "");
    say_text("key", x->key);
    if (strcmp(x->lock, x->workflow) != 0)
        say_text("lock", x->lock);
    say_time("created", x->created_at_ms);
    if (x->state == HF_PENDING)
        say_time("to run at", x->run_at_ms);
    say_time("started", x->started_at_ms);
    say_time("finished", x->finished_at_ms);
    say_text("owner", x->owner);
    if (x->attempt)
        cli_say(CLI_PLAIN, "  attempt     %d, fence %lld", x->attempt, (long long)x->fence);
    if (x->has_exit_code)
        cli_say(CLI_PLAIN, "  exit code   %d", x->exit_code);
    say_text("reason", x->reason);
    if (x->to_verify)
        cli_say(CLI_PLAIN, "  to verify   its lease was lost when it may have been done");
    say_text("retry of", x->retry_of);
}

int cmd_show(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct hf *hf;
    struct hf_execution x;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_execution_of(hf, argv[0], &x, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json)
        return cli_put_whole_execution(cli, hf, &x);
    say_execution(&x);
    return 0;
}

/* ---- cancel --------------------------------------------------------------------------------- */

int cmd_cancel(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct hf *hf;
    struct hf_execution before, x;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_execution_of(hf, argv[0], &before, &err) < 0 || hf_cancel(hf, argv[0], &x, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json)
        return cli_put_execution(&x);
    if (cli->opts.quiet)
        return 0;
    if (x.state == HF_RUNNING)
        cli_say(CLI_PLAIN, "%s %s was asked to stop; it does within its next heartbeat", x.workflow,
                x.id);
    else if (x.finished_at_ms == before.finished_at_ms)
        cli_say(CLI_PLAIN, "%s %s has ended already (%s)", x.workflow, x.id,
                hf_execution_state_name(x.state));
    else
        cli_say(CLI_PLAIN, "%s %s is %s", x.workflow, x.id, hf_execution_state_name(x.state));
    return 0;
}
