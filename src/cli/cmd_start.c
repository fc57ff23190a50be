/* start: run a workflow here, as an execution. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture.h"
#include "error.h"
#include "hold.h"
#include "retention.h"

enum { GRACE_DEFAULT_MS = 10000 };

struct start {
    struct cli *cli;
    const struct hf_workflow *workflow;
    char lock[HF_NAME_MAX + 1];
    struct hf_buf input;
    struct hf_begin_options begins;
    struct hf_execution execution;
    struct hf_user user;
    char home[4096 + 8], user_name[2][300];
    char **env;
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

/* Where a setting can't be done yet, and doing without it would not be what was asked for. */
static int check_supported(const struct hf_workflow *w)
{
    const char *what = w->overlap != HF_OVERLAP_REJECT ? "overlap other than reject"
                       : w->concurrency > 1            ? "concurrency above 1"
                                                       : NULL;
    if (!what)
        return 0;
    cli_complain("%s: %s is not supported yet by start; leave it out", w->name, what);
    return hf_code_exit(HF_UNSUPPORTED);
}

static void set_options(struct start *s)
{
    struct cli_options *opts = &s->cli->opts;
    const struct hf_workflow *w = s->workflow;
    opts->ttl_ms = w->ttl_ms;
    opts->timeout_ms = w->timeout_ms;
    opts->grace_ms = w->ttl_ms / 3 < GRACE_DEFAULT_MS ? w->ttl_ms / 3 : GRACE_DEFAULT_MS;
    s->begins = (struct hf_begin_options)HF_BEGIN_INIT;
    s->begins.workflow = w->name;
    s->begins.lock = s->lock;
    s->begins.key = opts->key;
    s->begins.input = s->input.data;
    s->begins.input_size = s->input.len;
    s->begins.ttl_ms = w->ttl_ms;
    s->begins.wait_ms = opts->wait_ms;
    s->begins.owner = opts->owner;
    s->begins.note = opts->note;
    s->begins.priority = (int32_t)opts->priority;
    s->begins.on_lost = (enum hf_on_lost)w->on_lost;
    s->begins.max_attempts = hf_workflow_max_attempts(w);
}

/* ---- who and where -------------------------------------------------------------------------- */

static int forbid_user(const struct start *s, const char *why)
{
    cli_complain("%s runs as user %s: %s", s->workflow->name, s->workflow->user, why);
    return hf_code_exit(HF_FORBIDDEN);
}

/* Whom the command runs as, and what that user's environment says of it. */
static int choose_user(struct start *s, struct hf_command *command)
{
    const char *name = s->workflow->user;
    const struct passwd *found = name ? getpwnam(name) : NULL;
    if (!name)
        return 0;
    if (!found)
        return forbid_user(s, "there is no such user");
    if (found->pw_uid == geteuid())
        return 0;
    if (geteuid() != 0)
        return forbid_user(s, "only root can do that");
    s->user = (struct hf_user){.uid = found->pw_uid, .gid = found->pw_gid};
    s->user.n_groups = (int)(sizeof s->user.groups / sizeof s->user.groups[0]);
    snprintf(s->home, sizeof s->home, "HOME=%s", found->pw_dir);
    snprintf(s->user_name[0], sizeof s->user_name[0], "USER=%s", name);
    snprintf(s->user_name[1], sizeof s->user_name[1], "LOGNAME=%s", name);
    if (getgrouplist(name, found->pw_gid, s->user.groups, &s->user.n_groups) < 0)
        return forbid_user(s, "it is in too many groups");
    command->user = &s->user;
    return 0;
}

/* The workflow's own variables come last, so that they win. */
static int choose_environment(struct start *s, struct hf_command *command)
{
    char **own = s->workflow->env;
    size_t n = 0, at = 0;
    while (own && own[n])
        n++;
    s->env = calloc(n + 4, sizeof *s->env);
    if (!s->env) {
        cli_complain("out of memory");
        return CLI_EXIT_INTERNAL;
    }
    if (command->user) {
        s->env[at++] = s->home;
        s->env[at++] = s->user_name[0];
        s->env[at++] = s->user_name[1];
    }
    for (size_t i = 0; i < n; i++)
        s->env[at++] = own[i];
    command->env = s->env;
    command->cwd = s->workflow->cwd;
    if (!command->cwd || access(command->cwd, X_OK) == 0)
        return 0;
    cli_complain("%s: can't run in %s: %s", s->workflow->name, command->cwd, strerror(errno));
    return CLI_EXIT_DATA;
}

/* ---- what goes in and out ------------------------------------------------------------------- */

/* The input as a file of its own that needs no place on disk and can be read again. */
static int open_input(const struct start *s)
{
    int fd = memfd_create("holdfast-input", MFD_CLOEXEC);
    for (size_t at = 0; fd >= 0 && at < s->input.len;) {
        ssize_t n = write(fd, s->input.data + at, s->input.len - at);
        if (n < 0 && errno != EINTR) {
            close(fd);
            return -1;
        }
        at += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0)
        lseek(fd, 0, SEEK_SET);
    return fd;
}

/* With --json our stdout is for the execution alone. */
static int connect_command(struct start *s, struct cli_hold *hold)
{
    int out_fds[HF_TAPS] = {s->cli->opts.json ? -1 : STDOUT_FILENO, STDERR_FILENO};
    int *command_fds[HF_TAPS] = {&hold->command.out_fd, &hold->command.err_fd};
    hold->command.in_fd = open_input(s);
    int failed = hold->command.in_fd < 0 ? errno : 0;
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
    struct cli_hold hold = {
        .name = s->lock,
        .command = {.argv = s->workflow->command, .in_fd = -1, .out_fd = -1, .err_fd = -1},
        .begins = &s->begins,
        .execution = &s->execution,
        .capture = s->capture,
        .taps = {{.fd = -1}, {.fd = -1}}};
    int code = choose_user(s, &hold.command);
    if (!code)
        code = choose_environment(s, &hold.command);
    if (!code)
        code = connect_command(s, &hold);
    if (code)
        return code;
    code = cli_hold(s->cli, &hold);
    for (int i = 0; i < HF_TAPS; i++)
        hf_pump_close(&s->pumps[i]);
    return put_execution(s, code);
}

static int detach(struct start *s)
{
    struct hf *hf;
    int code = cli_open(s->cli, &hf);
    if (code)
        return code;
    if (hf_enqueue(hf, &s->begins, &s->execution, &s->err) < 0)
        return cli_fail(s->cli, &s->err);
    if (s->cli->opts.json)
        return cli_put_execution(&s->execution);
    puts(s->execution.id);
    return 0;
}

static int start(struct start *s)
{
    const struct cli_options *opts = &s->cli->opts;
    int code = check_supported(s->workflow);
    if (!code && opts->input_path)
        code = read_input(opts->input_path, &s->input);
    if (code)
        return code;
    if (hf_workflow_lock(s->workflow, opts->key, s->input.data, s->input.len, s->lock, &s->err) < 0)
        return cli_fail(s->cli, &s->err);
    set_options(s);
    if (opts->detach)
        return detach(s);
    hf_capture_init(s->capture);
    return run_here(s);
}

int cmd_start(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct hf_workflows *all = NULL;
    struct start s = {.cli = cli, .input = HF_BUF(HF_INPUT_MAX)};
    int code;
    if (hf_workflows_load(cli->opts.config_path, &all, &s.err) < 0 ||
        hf_workflows_find(all, argv[0], &s.workflow, &s.err) < 0)
        code = cli_fail(cli, &s.err);
    else if (!(s.capture = malloc(sizeof *s.capture))) {
        cli_complain("out of memory");
        code = CLI_EXIT_INTERNAL;
    } else
        code = start(&s);
    if (s.execution.id[0] && code != hf_code_exit(HF_UNAVAILABLE) && code != hf_code_exit(HF_LOST))
        hf_retention_once(s.workflow, cli->hf);
    free(s.capture);
    free(s.env);
    hf_buf_clear(&s.input);
    hf_workflows_free(all);
    return code;
}
