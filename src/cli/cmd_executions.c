/* Executions as people see them: executions, show, cancel, retry. */
#include <stdlib.h>
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

/* ---- retry ---------------------------------------------------------------------------------- */

static int keep_bytes(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    (void)skipped;
    hf_buf_add(arg, bytes, n);
    return 0;
}

/* Queue a new one with the same input. Its key stays the old one's. */
static int retry_one(struct cli *cli, struct hf *hf, const struct hf_execution *old)
{
    struct hf_buf input = HF_BUF(HF_INPUT_MAX + 1);
    struct hf_begin_options options = HF_BEGIN_INIT;
    struct hf_execution made;
    struct hf_error err;
    int code = 0;
    options.workflow = old->workflow;
    options.lock = old->lock;
    options.priority = old->priority;
    options.retry_of = old->id;
    options.on_lost = old->on_lost;
    options.max_attempts = old->max_attempts;
    options.retry_backoff_ms = old->retry_backoff_ms;
    options.concurrency = old->concurrency;
    options.overlap = HF_OVERLAP_QUEUE;
    if (hf_execution_data(hf, old->id, HF_DATA_INPUT, keep_bytes, &input, &err) < 0)
        code = cli_fail(cli, &err);
    options.input = input.data;
    options.input_size = input.len;
    if (!code && hf_enqueue(hf, &options, &made, &err) < 0)
        code = cli_fail(cli, &err);
    hf_buf_clear(&input);
    if (code)
        return code;
    if (cli->opts.json)
        return cli_put_execution(&made);
    puts(made.id);
    return 0;
}

static int retry_id(struct cli *cli, struct hf *hf, const char *id)
{
    struct hf_execution x;
    struct hf_error err;
    if (hf_execution_of(hf, id, &x, &err) < 0)
        return cli_fail(cli, &err);
    if (x.state == HF_PENDING || x.state == HF_RUNNING) {
        cli_complain("%s %s is %s; only what has ended can be retried", x.workflow, x.id,
                     hf_execution_state_name(x.state));
        return CLI_EXIT_DATA;
    }
    if (x.once) {
        cli_complain("%s %s was run by holdfast run --once; run that again", x.workflow, x.id);
        return CLI_EXIT_DATA;
    }
    return retry_one(cli, hf, &x);
}

/* Which ones, found first: new ones must not come into the list that is being read. */
struct found {
    struct hf_execution *of;
    size_t n, size;
    bool failed;
};

static int keep_execution(void *arg, const struct hf_execution *x)
{
    struct found *found = arg;
    if (found->n == found->size) {
        size_t size = found->size ? 2 * found->size : 64;
        struct hf_execution *of = realloc(found->of, size * sizeof *of);
        if (!of) {
            found->failed = true;
            return 1;
        }
        found->of = of;
        found->size = size;
    }
    found->of[found->n++] = *x;
    return 0;
}

/* Newest first, so a retry comes before what it repeats. */
static bool was_retried(const struct found *found, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (strcmp(found->of[j].retry_of, found->of[i].id) == 0)
            return true;
    return false;
}

static int retry_state(struct cli *cli, struct hf *hf)
{
    struct found found = {0};
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    struct hf_error err;
    query.workflow = cli->opts.workflow;
    int code =
        hf_executions(hf, &query, keep_execution, &found, &err) < 0 ? cli_fail(cli, &err) : 0;
    if (!code && found.failed) {
        cli_complain("out of memory");
        code = CLI_EXIT_INTERNAL;
    }
    for (size_t i = found.n; !code && i-- > 0;) { /* oldest first */
        const struct hf_execution *x = &found.of[i];
        if ((int64_t)x->state != cli->opts.state || x->once || was_retried(&found, i))
            continue;
        if (!cli->opts.dry_run)
            code = retry_one(cli, hf, x);
        else if (cli->opts.json)
            code = cli_put_execution(x);
        else
            puts(x->id);
    }
    free(found.of);
    return code;
}

int cmd_retry(struct cli *cli, int argc, char **argv)
{
    struct hf *hf;
    bool by_state = cli->opts.state >= 0 && cli->opts.workflow;
    if (argc == 1 ? cli->opts.state >= 0 || cli->opts.workflow || cli->opts.dry_run : !by_state)
        return cli_usage(cli, "retry needs either ID, or --state S and --workflow W");
    if (argc == 0 && (cli->opts.state == HF_PENDING || cli->opts.state == HF_RUNNING))
        return cli_usage(cli, "--state: only what has ended can be retried");
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    return argc == 1 ? retry_id(cli, hf, argv[0]) : retry_state(cli, hf);
}
