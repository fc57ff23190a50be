/* start: run a workflow here, as an execution. schedule: record one for later. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture.h"
#include "clock.h"
#include "error.h"
#include "hold.h"
#include "id.h"
#include "outfit.h"
#include "retention.h"

struct start {
    struct cli *cli;
    const struct hf_workflow *workflow;
    char lock[HF_NAME_MAX + 1];
    struct hf_buf input;
    struct hf_begin_options begins;
    struct hf_execution execution;
    struct hf_outfit outfit;
    struct hf_capture *capture;
    struct hf_pump pumps[HF_TAPS];
    struct hf_error err;
};

/* ---- what is asked for ---------------------------------------------------------------------- */

static int fail_input(const char *path, int saved_errno)
{
    cli_complain("can't read the input from %s: %s", path, strerror(saved_errno));
    return saved_errno == EACCES || saved_errno == EPERM ? hf_code_exit(HF_FORBIDDEN)
                                                         : CLI_EXIT_DATA;
}

static int read_input(const char *path, struct hf_buf *input)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    char chunk[65536];
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && !input->failed) {
        n = read(fd, chunk, sizeof chunk);
        if (n > 0)
            hf_buf_add(input, chunk, (size_t)n);
        else if (n < 0 && errno == EINTR)
            n = 1;
    }
    int saved_errno = errno;
    if (fd >= 0 && !is_stdin)
        close(fd);
    if (n < 0)
        return fail_input(is_stdin ? "stdin" : path, saved_errno);
    if (!input->failed)
        return 0;
    cli_complain("the input is larger than %d bytes", HF_INPUT_MAX);
    return hf_code_exit(HF_TOO_LARGE);
}

/* Who is to be waited for without having been told how long waits for ever. */
static int64_t choose_wait(int64_t asked_ms, enum hf_overlap overlap)
{
    if (asked_ms != CLI_WAIT_UNSAID)
        return asked_ms;
    return overlap == HF_OVERLAP_REJECT || overlap == HF_OVERLAP_SKIP ? 0 : HF_FOREVER;
}

static void set_options(struct start *s)
{
    struct cli_options *opts = &s->cli->opts;
    const struct hf_workflow *w = s->workflow;
    opts->ttl_ms = w->ttl_ms;
    opts->wait_ms = choose_wait(opts->wait_ms, w->overlap);
    hf_workflow_ask(w, &s->begins);
    s->begins.lock = s->lock;
    s->begins.key = opts->key;
    s->begins.input = s->input.data;
    s->begins.input_size = s->input.len;
    s->begins.wait_ms = opts->wait_ms;
    s->begins.owner = opts->owner;
    s->begins.note = opts->note;
    s->begins.priority = (int32_t)opts->priority;
}

/* ---- what goes in and out ------------------------------------------------------------------- */

/* With --json our stdout is for the execution alone. */
static int connect_command(struct start *s, struct cli_hold *hold)
{
    int out_fds[HF_TAPS] = {s->cli->opts.json ? -1 : STDOUT_FILENO, STDERR_FILENO};
    int *command_fds[HF_TAPS] = {&hold->command.out_fd, &hold->command.err_fd};
    int fd = hf_input_open();
    int failed = fd < 0 ? -fd : -hf_input_add(fd, s->input.data, s->input.len);
    if (fd >= 0)
        hf_input_rewind(fd);
    hold->command.in_fd = fd;
    for (int i = 0; !failed && i < HF_TAPS; i++) {
        failed = -hf_pump_open(&s->pumps[i], s->capture, out_fds[i], command_fds[i]);
        hold->taps[i] = hf_pump_tap(&s->pumps[i]);
    }
    if (!failed)
        return 0;
    cli_complain("can't connect the command's input and output: %s", strerror(failed));
    return hf_code_exit(HF_UNAVAILABLE);
}

/* ---- the command ---------------------------------------------------------------------------- */

/* As it is now; what can't be looked up any more is shown as it was begun. */
static int put_execution(struct start *s, int code)
{
    if (!s->cli->opts.json || !s->execution.id[0])
        return code;
    bool is_duplicate = s->execution.duplicate;
    hf_execution_of(s->cli->hf, s->execution.id, &s->execution, NULL);
    s->execution.duplicate = is_duplicate;
    int put_code = cli_put_execution(&s->execution);
    return code ? code : put_code;
}

static int run_here(struct start *s)
{
    struct cli_hold hold = {.name = s->lock,
                            .command = {.in_fd = -1, .out_fd = -1, .err_fd = -1},
                            .begins = &s->begins,
                            .execution = &s->execution,
                            .capture = s->capture,
                            .skips = s->workflow->overlap == HF_OVERLAP_SKIP,
                            .cancels = s->workflow->overlap == HF_OVERLAP_CANCEL,
                            .taps = {{.fd = -1}, {.fd = -1}}};
    if (hf_outfit_open(&s->outfit, s->workflow, &hold.command, &s->err) < 0)
        return cli_fail(s->cli, &s->err);
    s->cli->opts.timeout_ms = hold.command.timeout_ms;
    s->cli->opts.grace_ms = hold.command.grace_ms;
    int code = connect_command(s, &hold);
    if (code)
        return code;
    code = cli_hold(s->cli, &hold);
    for (int i = 0; i < HF_TAPS; i++)
        hf_pump_close(&s->pumps[i]);
    return put_execution(s, code);
}

/* For whoever claims it. */
static int enqueue(struct start *s)
{
    struct hf *hf;
    int code = cli_open(s->cli, &hf);
    if (code)
        return code;
    int r = hf_enqueue(hf, &s->begins, &s->execution, &s->err);
    if (r == -HF_HELD && s->begins.overlap == HF_OVERLAP_SKIP)
        return cli_skipped(s->cli, &s->err);
    if (r < 0)
        return cli_fail(s->cli, &s->err);
    const struct hf_execution *x = &s->execution;
    if (s->cli->opts.json)
        return cli_put_execution(x);
    puts(x->id);
    if (x->duplicate && !s->cli->opts.quiet)
        cli_complain("%s: key %s has this execution (%s) already; nothing was recorded",
                     x->workflow, x->key, hf_execution_state_name(x->state));
    return 0;
}

static int start(struct start *s)
{
    if (s->cli->opts.detach)
        return enqueue(s);
    s->capture = malloc(sizeof *s->capture);
    if (!s->capture) {
        cli_complain("out of memory");
        return CLI_EXIT_INTERNAL;
    }
    hf_capture_init(s->capture);
    int code = run_here(s);
    free(s->capture);
    if (s->execution.id[0] && code != hf_code_exit(HF_UNAVAILABLE) && code != hf_code_exit(HF_LOST))
        hf_retention_once(s->workflow, s->cli->hf);
    return code;
}

static int schedule(struct start *s)
{
    const struct cli_options *opts = &s->cli->opts;
    int64_t at_ms = opts->at_ms >= 0 ? opts->at_ms : hf_clock_wall_ms() + opts->in_ms;
    uint64_t random;
    hf_random(&random, sizeof random);
    if (opts->jitter_ms)
        at_ms += (int64_t)(random % (uint64_t)(opts->jitter_ms + 1));
    s->begins.run_at_ms = at_ms;
    return enqueue(s);
}

/* Read what is asked for, and do it. */
static int with_workflow(struct cli *cli, const char *name, int (*act)(struct start *s))
{
    struct hf_workflows *all = NULL;
    struct start s = {.cli = cli, .input = HF_BUF(HF_INPUT_MAX)};
    const struct cli_options *opts = &cli->opts;
    int code = 0;
    if (hf_workflows_load(opts->config_path, &all, &s.err) < 0 ||
        hf_workflows_find(all, name, &s.workflow, &s.err) < 0)
        code = cli_fail(cli, &s.err);
    if (!code && opts->input_path)
        code = read_input(opts->input_path, &s.input);
    if (!code &&
        hf_workflow_lock(s.workflow, opts->key, s.input.data, s.input.len, s.lock, &s.err) < 0)
        code = cli_fail(cli, &s.err);
    if (!code) {
        set_options(&s);
        code = act(&s);
    }
    hf_outfit_close(&s.outfit);
    hf_buf_clear(&s.input);
    hf_workflows_free(all);
    return code;
}

int cmd_start(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    return with_workflow(cli, argv[0], start);
}

int cmd_schedule(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    if ((cli->opts.at_ms >= 0) == (cli->opts.in_ms >= 0))
        return cli_usage(cli, "schedule needs --at TIME or --in D, one of the two");
    return with_workflow(cli, argv[0], schedule);
}
