#include "hold.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "announce.h"
#include "capture.h"
#include "failpoint.h"
#include "text.h"

enum { FAREWELL_S = 2 }; /* how long a store that hangs may keep one whose lease is lost */

/* Everything about one holding while it lasts. */
struct holding {
    struct cli *cli;
    const struct cli_hold *hold;
    struct hf_run *run;
    struct hf *hf;
    struct hf_run_end end;
    bool never_started;
    bool committed; /* what the command was for is done */
};

char *const *cli_command_words(const struct cli *cli, int argc, char **argv, char *shell[4])
{
    if (!cli->opts.shell_string) {
        argv[argc] = NULL; /* options that were taken out have left room for it */
        return argv + 1;
    }
    const char *program = getenv("SHELL");
    shell[0] = (char *)(uintptr_t)(program && *program ? program : "/bin/sh");
    shell[1] = (char *)(uintptr_t) "-c";
    shell[2] = (char *)(uintptr_t)cli->opts.shell_string;
    shell[3] = NULL;
    return shell;
}

/* ---- taking it ------------------------------------------------------------------------------ */

/* A signal came before the command could be started: the end, but nothing is left behind. */
static int cancelled(struct holding *h, int signal_number, const struct hf_lease *held)
{
    if (held)
        hf_release(h->hf, held, NULL);
    return HF_EXIT_SIGNAL + signal_number;
}

int cli_execution_code(const struct hf_execution *x)
{
    if (x->has_exit_code)
        return x->exit_code;
    return x->state == HF_SUCCESS   ? 0
           : x->state == HF_ABORTED ? hf_code_exit(HF_LOST)
           : x->state == HF_FAILED  ? EXIT_FAILURE
                                    : CLI_EXIT_HELD;
}

static int begin(struct holding *h, struct hf_lease *lease, struct hf_error *err)
{
    struct hf_begin_options options = *h->hold->begins;
    hf_run_bind(h->run, options.bound, &options.n_bound, &options.cancel_fd);
    if (!h->hold->cancels)
        return hf_begin(h->hf, &options, lease, h->hold->execution, err);
    int64_t wait_ms = options.wait_ms;
    options.wait_ms = 0;
    int r = hf_begin(h->hf, &options, lease, h->hold->execution, err);
    if (r != -HF_HELD)
        return r;
    if (err->has_holder && err->holder.execution_id[0])
        hf_cancel(h->hf, err->holder.execution_id, NULL, NULL);
    options.wait_ms = wait_ms;
    return hf_begin(h->hf, &options, lease, h->hold->execution, err);
}

int cli_skipped(const struct cli *cli, const struct hf_error *err)
{
    if (!cli->opts.quiet)
        cli_complain("%s; skipped, nothing was run", err->message);
    return 0;
}

static int acquire(struct holding *h, struct hf_lease *lease, struct hf_error *err)
{
    const struct cli_options *opts = &h->cli->opts;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    options.ttl_ms = opts->ttl_ms;
    options.wait_ms = opts->wait_ms;
    options.owner = opts->owner;
    options.note = opts->note;
    options.priority = (int32_t)opts->priority;
    options.once_key = h->hold->once_key;
    hf_run_bind(h->run, options.bound, &options.n_bound, &options.cancel_fd);
    return hf_acquire(h->hf, h->hold->name, &options, lease, err);
}

/* The key has an execution already: its outcome is ours. */
static int duplicate(const struct holding *h)
{
    const struct hf_execution *x = h->hold->execution;
    if (!h->cli->opts.quiet)
        cli_complain("%s: key %s has execution %s (%s) already; nothing was run", x->workflow,
                     x->key, x->id, hf_execution_state_name(x->state));
    return cli_execution_code(x);
}

/* True: it is held. Otherwise *ret_code is the exit code. */
static bool take(struct holding *h, struct hf_lease *lease, int *ret_code)
{
    struct hf_error err;
    int r = h->hold->begins ? begin(h, lease, &err) : acquire(h, lease, &err);
    if (r >= 0 && !lease->token[0]) {
        *ret_code = duplicate(h);
        return false;
    }
    int signal_number = r >= 0 || r == -HF_CANCELLED ? hf_run_cancelled_by(h->run) : 0;
    if (signal_number)
        *ret_code = cancelled(h, signal_number, r >= 0 ? lease : NULL);
    else if (r == -HF_DONE_ALREADY) {
        if (!h->cli->opts.quiet)
            cli_complain("%s; nothing was run", err.message);
        *ret_code = 0;
    } else if (r == -HF_HELD && h->hold->skips)
        *ret_code = cli_skipped(h->cli, &err);
    else if (r < 0)
        *ret_code = cli_fail(h->cli, &err);
    if (r < 0 || signal_number)
        return false;
    cli_announce_takeover(lease);
    return true;
}

/* ---- how it ended --------------------------------------------------------------------------- */

static void say_not_run(const struct holding *h)
{
    cli_complain("can't run %s: %s", h->hold->command.argv[0], strerror(h->end.not_run));
}

static void say_timed_out(const struct holding *h)
{
    char span[HF_SPAN_MAX];
    hf_format_span(h->cli->opts.timeout_ms, span);
    if (!h->cli->opts.quiet)
        cli_complain("%s: the command was ended because it took longer than %s", h->hold->name,
                     span);
}

static void say_unguarded(const struct holding *h)
{
    cli_complain("%s: the guardian process was killed, so the command was ended", h->hold->name);
}

static void say_cancelled(const struct holding *h)
{
    if (!h->cli->opts.quiet)
        cli_complain("%s: the command was ended because its execution %s was cancelled",
                     h->hold->name, h->run->lease.execution_id);
}

static void say_left_behind(const struct holding *h)
{
    uint32_t n = h->end.left_behind;
    if (n && !h->cli->opts.quiet)
        cli_complain("%s: the command left %u process%s behind; ended %s", h->hold->name, n,
                     n == 1 ? "" : "es", n == 1 ? "it" : "them");
}

static int exit_code(const struct holding *h)
{
    bool is_run = !h->end.not_run;
    if (is_run && h->run->aborted)
        return *h->hold->tap_failed;
    if (!is_run)
        say_not_run(h);
    else if (h->end.why == HF_ENDING_TIMEOUT)
        say_timed_out(h);
    else if (h->end.why == HF_ENDING_UNGUARDED)
        say_unguarded(h);
    else {
        if (h->end.why == HF_ENDING_CANCELLED)
            say_cancelled(h);
        say_left_behind(h);
    }
    return hf_end_code(&h->end);
}

/* ---- the lease was lost --------------------------------------------------------------------- */

static struct {
    char line[HF_NAME_MAX + 128];
    size_t n;
} last_words;

static void give_up(int signal_number)
{
    (void)signal_number;
    ssize_t ignored = write(STDERR_FILENO, last_words.line, last_words.n);
    (void)ignored;
    _exit(hf_code_exit(HF_LOST));
}

/* From here on a store that does not answer can't keep us: then this is all that is said. */
static void bound_farewell(const char *name, const char *fate)
{
    struct sigaction action = {.sa_handler = give_up};
    sigset_t set;
    last_words.n = (size_t)snprintf(last_words.line, sizeof last_words.line,
                                    "holdfast: %s: the command was %s because its lease was lost; "
                                    "the store does not answer\n",
                                    name, fate);
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    alarm(FAREWELL_S);
}

/* What is still ours is given back; of an execution, with what it has printed. */
static int end_lost(struct holding *h)
{
    if (!h->hold->begins)
        return hf_release(h->hf, &h->run->lease, NULL);
    struct hf_result result = *hf_capture_copy(h->hold->capture);
    result.state = HF_ABORTED;
    result.reason = "its lease could not be renewed in time";
    return hf_finish(h->hf, &h->run->lease, &result, NULL);
}

/*
 * The command was ended for the lease's sake. Where it only could not be renewed in time it may be
 * ours still: then it is given back, so that others need not wait for it to expire.
 */
static int lost(struct holding *h)
{
    struct hf_run *run = h->run;
    struct hf_error why = {.message = "it could not be renewed before its deadline"};
    struct hf_status now;
    char holder[HF_MESSAGE_MAX / 2] = "";
    const char *fate = h->end.not_run ? "not started" : "ended";
    bound_farewell(h->hold->name, fate);
    if (run->keeper)
        hf_keeper_check(run->keeper, NULL, &why);
    hf_run_stop_keeping(run);
    bool released = end_lost(h) >= 0;
    hf_report_lost(h->hf, &run->lease,
                   h->end.why == HF_ENDING_DEADLINE ? "not renewed in time" : "no longer ours",
                   NULL);
    if (!why.has_holder && hf_status_of(h->hf, h->hold->name, &now, NULL) >= 0)
        hf_describe_status(&now, holder, sizeof holder);
    alarm(0);
    cli_complain("%s: the command was %s because its lease was lost: %s%s%s%s", h->hold->name, fate,
                 why.message, released ? " and was given back" : "", *holder ? "; " : "", holder);
    return hf_code_exit(HF_LOST);
}

/* ---- giving it back ------------------------------------------------------------------------- */

/*
 * A command that ran to its end under a lease that was not ours any more must not look well; what was
 * committed must, or it would be done again.
 */
static int release_failed(struct holding *h, int code, const struct hf_error *err)
{
    if (err->code == -HF_LOST) {
        cli_complain("%s: the command ended with exit code %d, but meanwhile %s", h->hold->name,
                     code, err->message);
        hf_report_lost(h->hf, &h->run->lease, "found at the release", NULL);
        return h->committed ? code : hf_code_exit(HF_LOST);
    }
    cli_complain("%s: the command ended with exit code %d, but the lock could not be given back "
                 "(it ends with this process): %s",
                 h->hold->name, code, err->message);
    bool recorded = h->hold->once_key || h->hold->begins;
    return code == 0 && recorded ? hf_code_exit(err->code) : code;
}

static int give_back(struct holding *h, int code)
{
    struct hf_error err;
    int r;
    hf_run_stop_keeping(h->run);
    hf_failpoint(HF_FAIL_ENDED);
    if (h->hold->once_key || h->hold->begins) {
        struct hf_result result = hf_end_result(&h->end, h->never_started, code, h->hold->capture);
        r = hf_finish(h->hf, &h->run->lease, &result, &err);
    } else
        r = hf_release(h->hf, &h->run->lease, &err);
    hf_failpoint(HF_FAIL_FINISHED);
    return r < 0 ? release_failed(h, code, &err) : code;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* What a command that runs once is told of its execution. */
static struct hf_execution once_execution(const struct holding *h)
{
    struct hf_execution x = {.attempt = 1, .once = true};
    memcpy(x.id, h->run->lease.execution_id, sizeof x.id);
    memcpy(x.workflow, h->run->lease.name, sizeof x.workflow);
    snprintf(x.key, sizeof x.key, "%s", h->hold->once_key ? h->hold->once_key : "");
    return x;
}

/* It was cancelled, or something failed, before anything was started. */
static int not_started(struct holding *h, int r, const struct hf_error *err)
{
    h->never_started = true;
    int code = cli_fail(h->cli, err);
    if (r == -HF_CANCELLED) {
        h->end.why = HF_ENDING_CANCELLED;
        code = hf_code_exit(HF_LOST);
    }
    return give_back(h, code);
}

static int run_held(struct holding *h, const struct hf_lease *lease)
{
    struct hf_error err;
    struct hf_run *run = h->run;
    run->hf = h->hf;
    run->lease = *lease;
    int code = h->hold->begin ? h->hold->begin(h->hold->arg) : 0;
    if (code)
        return give_back(h, code);
    struct hf_execution once = once_execution(h);
    memcpy(run->taps, h->hold->taps, sizeof run->taps);
    run->execution = h->hold->begins ? h->hold->execution : h->hold->once_key ? &once : NULL;
    run->capture = h->hold->capture;
    int r = hf_run_start(run, h->cli->opts.store_url, &err);
    if (r < 0)
        return not_started(h, r, &err);
    hf_run_wait(run, &h->end);
    if (hf_end_is_lost(&h->end) && !run->aborted)
        return lost(h);
    code = exit_code(h);
    if (code == 0 && h->hold->commit) {
        hf_run_keep(run);
        code = h->hold->commit(h->hold->arg, h->hf, &run->lease);
        h->committed = code == 0;
    }
    return give_back(h, code);
}

static int hold_prepared(struct holding *h)
{
    struct hf_lease lease;
    int code = cli_open(h->cli, &h->hf);
    if (code)
        return code;
    cli_warn(h->cli);
    return take(h, &lease, &code) ? run_held(h, &lease) : code;
}

/*
 * A shell ends its loop or script at Ctrl-C only if that is what its child died of; $? is the same.
 * Without a shell around us the exit code says it.
 */
static void die_of_interrupt(struct holding *h)
{
    struct sigaction action;
    sigset_t set;
    if (!h->run->has_terminal || getsid(0) == getpid() || sigaction(SIGINT, NULL, &action) < 0 ||
        action.sa_handler != SIG_DFL)
        return;
    hf_close(h->cli->hf);
    h->cli->hf = NULL;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    raise(SIGINT);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int cli_hold(struct cli *cli, const struct cli_hold *hold)
{
    struct hf_command command = hold->command;
    command.grace_ms = cli->opts.grace_ms;
    command.timeout_ms = cli->opts.timeout_ms;
    struct hf_run run;
    struct hf_error err;
    struct holding h = {.cli = cli, .hold = hold, .run = &run};
    int code = hf_run_prepare(&run, &command, &err) < 0 ? cli_fail(cli, &err) : hold_prepared(&h);
    hf_run_clear(&run);
    if (code == HF_EXIT_SIGNAL + SIGINT)
        die_of_interrupt(&h);
    return code;
}
