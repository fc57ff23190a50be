/* A lease by hand: acquire, extend, release, guard. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "announce.h"
#include "cli.h"
#include "process.h"
#include "text.h"
#include "wire.h"

/* ---- acquire -------------------------------------------------------------------------------- */

/* A signal while waiting leaves the queue first, and then ends us as it should. */
static int acquire(struct cli *cli, struct hf *hf, const char *name, struct hf_lease *ret,
                   struct hf_error *err)
{
    const struct cli_options *opts = &cli->opts;
    struct hf_acquire_options how = HF_ACQUIRE_INIT;
    char asker[HF_OWNER_MAX + 1];
    /* The process given by --pid, else our parent, since we are about to end. */
    hf_process_describe(opts->pid ? (int32_t)opts->pid : getppid(), asker, sizeof asker);
    how.ttl_ms = opts->ttl_ms;
    how.wait_ms = opts->wait_ms;
    how.owner = opts->owner ? opts->owner : asker;
    how.note = opts->note;
    how.priority = (int32_t)opts->priority;
    how.bound[0] = (int32_t)opts->pid;
    how.n_bound = opts->pid ? 1 : 0;
    cli_hold_signals();
    how.cancel_fd = cli_held_signals();
    int r = hf_acquire(hf, name, &how, ret, err);
    close(how.cancel_fd);
    return r;
}

/* Print what was acquired. Where it can't be printed nobody has the token: give it back. */
static int hand_over(const struct cli *cli, struct hf *hf, const struct hf_lease *lease)
{
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    if (!cli->opts.json)
        puts(lease->token);
    else {
        hf_wire_lease(&json, lease);
        cli_put_json(&json);
    }
    int code = cli_flush();
    if (code)
        hf_release(hf, lease, NULL);
    return code;
}

int cmd_acquire(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct hf *hf;
    struct hf_lease lease;
    struct hf_error err;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    cli_warn(cli);
    int r = acquire(cli, hf, argv[0], &lease, &err);
    if (r == -HF_CANCELLED)
        cli_die_of_signal();
    if (r < 0)
        return cli_fail(cli, &err);
    cli_announce_takeover(&lease);
    return hand_over(cli, hf, &lease);
}

/* ---- which lease ---------------------------------------------------------------------------- */

/* An operand, or the variable that `run` sets for its command. */
static const char *operand_or_env(int argc, char **argv, int i, const char *variable)
{
    return i < argc ? argv[i] : getenv(variable);
}

/* Two operands, or none and the environment; anything else is a misunderstanding. */
static int name_and(const struct cli *cli, int argc, char **argv, const char *what,
                    const char *variable, const char **ret_name, const char **ret_what)
{
    const char *name = operand_or_env(argc, argv, 0, "HOLDFAST_NAME");
    const char *second = operand_or_env(argc, argv, 1, variable);
    if (argc != 1 && name && second) {
        *ret_name = name;
        *ret_what = second;
        return 0;
    }
    if (argc == 1)
        cli_usage(cli, "%s needs NAME and %s, or neither", cli->command->name, what);
    else
        cli_usage(cli, "%s needs NAME and %s: HOLDFAST_NAME and %s are not set", cli->command->name,
                  what, variable);
    return CLI_EXIT_USAGE;
}

/* The lease as far as its holder knows it; from the environment its fence is known too. */
static int named_lease(const struct cli *cli, int argc, char **argv, struct hf_lease *ret)
{
    const char *name = NULL, *token = NULL, *fence = argc == 0 ? getenv("HOLDFAST_FENCE") : NULL;
    struct hf_lease lease = {0};
    struct hf_error err;
    int code = name_and(cli, argc, argv, "TOKEN", "HOLDFAST_TOKEN", &name, &token);
    if (code)
        return code;
    int r = hf_check_name(name, &err);
    if (r >= 0)
        r = hf_check_text("token", token, HF_UUID_LEN, &err);
    if (r >= 0 && fence)
        r = cli_parse_int(fence, 0, CLI_FENCE_MAX, &lease.fence, &err);
    if (r < 0)
        return cli_fail(cli, &err);
    strcpy(lease.name, name);
    strcpy(lease.token, token);
    *ret = lease;
    return 0;
}

/* ---- extend, release, guard ----------------------------------------------------------------- */

int cmd_extend(struct cli *cli, int argc, char **argv)
{
    struct hf *hf;
    struct hf_lease lease;
    struct hf_error err;
    int code = named_lease(cli, argc, argv, &lease);
    if (!code)
        code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_extend(hf, &lease, cli->opts.ttl_ms, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json) {
        struct hf_buf json = HF_BUF(CLI_JSON_MAX);
        hf_wire_lease(&json, &lease);
        return cli_put_json(&json);
    }
    char span[HF_SPAN_MAX], until[HF_TIME_LEN + 1];
    hf_format_span(lease.ttl_ms, span);
    hf_format_time(lease.expires_at_ms, until);
    if (!cli->opts.quiet)
        cli_say(CLI_PLAIN, "extended %s until %s (ttl %s, fence %lld)", lease.name, until, span,
                (long long)lease.fence);
    return 0;
}

/* What was done to NAME, in a sentence or as {"name":NAME,"VERB":true}. */
static int confirm(const struct cli *cli, const char *name, const char *verb)
{
    if (cli->opts.json) {
        struct hf_buf json = HF_BUF(CLI_JSON_MAX);
        hf_buf_puts(&json, "{\"name\":");
        hf_wire_string(&json, name, strlen(name));
        hf_buf_printf(&json, ",\"%s\":true}", verb);
        return cli_put_json(&json);
    }
    if (!cli->opts.quiet)
        cli_say(CLI_PLAIN, "%s %s", verb, name);
    return 0;
}

static int force_release(struct cli *cli, int argc, char **argv)
{
    const struct cli_options *opts = &cli->opts;
    struct hf *hf;
    struct hf_error err;
    if (argc != 1)
        return cli_usage(cli, "release --force takes NAME alone, without a token");
    if (opts->fence < 0)
        return cli_usage(cli, "release --force needs --fence N: the one that holdfast status "
                              "shows, so that no successor is freed");
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_force_release(hf, argv[0], opts->fence, opts->reason, &err) < 0)
        return cli_fail(cli, &err);
    return confirm(cli, argv[0], "released");
}

int cmd_release(struct cli *cli, int argc, char **argv)
{
    struct hf *hf;
    struct hf_lease lease;
    struct hf_error err;
    if (cli->opts.force)
        return force_release(cli, argc, argv);
    if (cli->opts.fence >= 0 || cli->opts.reason)
        return cli_usage(cli, "--fence and --reason go with --force");
    int code = named_lease(cli, argc, argv, &lease);
    if (!code)
        code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_release(hf, &lease, &err) < 0)
        return cli_fail(cli, &err);
    return confirm(cli, lease.name, "released");
}

int cmd_guard(struct cli *cli, int argc, char **argv)
{
    const char *name = NULL, *text = NULL;
    int64_t fence = 0;
    struct hf *hf;
    struct hf_error err;
    int code = name_and(cli, argc, argv, "FENCE", "HOLDFAST_FENCE", &name, &text);
    if (code)
        return code;
    if (cli_parse_int(text, 0, CLI_FENCE_MAX, &fence, &err) < 0)
        return cli_fail(cli, &err);
    code = cli_open(cli, &hf);
    if (code)
        return code;
    if (hf_guard(hf, name, fence, &err) < 0)
        return cli_fail(cli, &err);
    if (!cli->opts.json)
        return 0;
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    hf_buf_puts(&json, "{\"name\":");
    hf_wire_string(&json, name, strlen(name));
    hf_buf_printf(&json, ",\"fence\":%lld,\"current\":true}", (long long)fence);
    return cli_put_json(&json);
}
