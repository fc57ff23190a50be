/* Who holds what: status, list. */
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "text.h"
#include "wire.h"

static int put_status_json(const struct hf_status *status)
{
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    hf_wire_status(&json, status);
    return cli_put_json(&json);
}

/* ---- status --------------------------------------------------------------------------------- */

/* When the lease ends by itself: "in 41 s", or "12 s ago". */
static void describe_expiry(const struct hf_status *status, char *ret, size_t size)
{
    char span[HF_SPAN_MAX];
    if (status->remaining_ms >= 0) {
        hf_format_span(status->remaining_ms, span);
        snprintf(ret, size, "in %s", span);
    } else {
        hf_format_span(-status->remaining_ms, span);
        snprintf(ret, size, "%s ago", span);
    }
}

static void say_status(const struct hf_status *s)
{
    static const enum cli_style styles[] = {
        [HF_STATE_FREE] = CLI_PLAIN, [HF_STATE_HELD] = CLI_GOOD, [HF_STATE_STALE] = CLI_BAD};
    char line[HF_MESSAGE_MAX], since[HF_TIME_LEN + 1], until[HF_TIME_LEN + 1], expiry[64];
    hf_describe_status(s, line, sizeof line);
    cli_say(styles[s->state], "%s", line);
    if (s->state == HF_STATE_FREE) {
        if (s->fence)
            cli_say(CLI_PLAIN, "  last fence  %lld", (long long)s->fence);
    } else {
        hf_format_time(s->locked_since_ms, since);
        hf_format_time(s->expires_at_ms, until);
        describe_expiry(s, expiry, sizeof expiry);
        cli_say(CLI_PLAIN, "  since       %s", since);
        cli_say(CLI_PLAIN, "  expires     %s (%s)%s", until, expiry,
                s->alive == HF_ALIVE_UNKNOWN ? "; bound to no process of this machine" : "");
    }
    if (s->note[0])
        cli_say(CLI_PLAIN, "  note        %s", s->note);
    if (s->execution_id[0])
        cli_say(CLI_PLAIN, "  execution   %s", s->execution_id);
    cli_say(CLI_PLAIN, "  waiting     %u", s->waiters);
}

int cmd_status(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct hf *hf;
    struct hf_status status;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_status_of(hf, argv[0], &status, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json)
        return put_status_json(&status);
    say_status(&status);
    return 0;
}

/* ---- list ----------------------------------------------------------------------------------- */

static const char *const heads[] = {"NAME",  "STATE",   "OWNER", "ALIVE",
                                    "SINCE", "EXPIRES", "FENCE", "WAITERS"};

struct listing {
    struct cli_table table;
    bool json;
    int code;
};

static void add_row(struct cli_table *table, const struct hf_status *s)
{
    static const char *const alive[] = {"-", "no", "yes"};
    char since[HF_SPAN_MAX + 8] = "-", expires[HF_SPAN_MAX + 8] = "-", fence[24], waiters[16];
    if (s->state != HF_STATE_FREE) {
        hf_format_span(s->held_for_ms, since);
        strcat(since, " ago");
        describe_expiry(s, expires, sizeof expires);
    }
    snprintf(fence, sizeof fence, "%lld", (long long)s->fence);
    snprintf(waiters, sizeof waiters, "%u", s->waiters);
    const char *const cells[] = {s->name,
                                 hf_lock_state_name(s->state),
                                 s->owner[0] ? s->owner : "-",
                                 alive[s->alive - HF_ALIVE_UNKNOWN],
                                 since,
                                 expires,
                                 fence,
                                 waiters};
    cli_table_row(table, s->state == HF_STATE_STALE ? CLI_BAD : CLI_PLAIN, cells);
}

static int list_one(void *arg, const struct hf_status *status)
{
    struct listing *listing = arg;
    if (listing->json)
        listing->code = put_status_json(status);
    else
        add_row(&listing->table, status);
    return listing->code || ferror(stdout);
}

/* For people only: scripts count lines. */
static void say_nothing_listed(const struct cli *cli)
{
    if (!isatty(STDOUT_FILENO) || cli->opts.quiet)
        return;
    cli_say(CLI_FAINT,
            cli->opts.filter == HF_LIST_ALL ? "no locks" : "no locks; --all shows free ones too");
}

int cmd_list(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    struct listing listing = {.table = {.heads = heads, .n_columns = sizeof heads / sizeof *heads},
                              .json = cli->opts.json};
    struct hf *hf;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    int r = hf_list(hf, (enum hf_list_filter)cli->opts.filter, cli->opts.prefix, list_one, &listing,
                    &err);
    cli_table_end(&listing.table);
    if (r < 0)
        return cli_fail(cli, &err);
    if (!listing.json && !listing.table.headed)
        say_nothing_listed(cli);
    return listing.code;
}
