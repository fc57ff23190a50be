#include "run.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capture.h"
#include "clock.h"
#include "environment.h"
#include "error.h"
#include "failpoint.h"
#include "link.h"
#include "process.h"
#include "terminal.h"
#include "tree.h"

enum {
    BEAT_MS = 1000,     /* how often the lease of an execution is renewed */
    KEEP_AGAIN_MS = 100 /* where the renewing thread could not be started */
};

/* ---- before the command --------------------------------------------------------------------- */

int hf_run_prepare(struct hf_run *run, struct hf_command *command, struct hf_error *err)
{
    *run = (struct hf_run){.timer_fd = -1, .guardian.link = -1};
    for (int i = 0; i < HF_TAPS; i++)
        run->taps[i].fd = -1;
    int r = hf_signals_open(&run->signals, err);
    if (r < 0)
        return r;
    run->has_terminal = hf_terminal_is_there();
    command->mask = run->signals.inherited;
    command->group = run->has_terminal ? getpgrp() : 0;
    run->grace_ms = command->grace_ms;
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what a dead guardian leaves comes to us */
    r = hf_guardian_start(command, &run->guardian, err);
    hf_command_close(command); /* the guardian has its own; who reads it must see its end */
    return r;
}

void hf_run_bind(const struct hf_run *run, int32_t bound[HF_BOUND_MAX], size_t *ret_n_bound,
                 int *ret_cancel_fd)
{
    bound[0] = run->guardian.pid;
    bound[1] = getpid();
    *ret_n_bound = 2;
    *ret_cancel_fd = run->signals.fd;
}

int hf_run_cancelled_by(struct hf_run *run)
{
    struct signalfd_siginfo info;
    return hf_signals_next(&run->signals, &info) ? (int)info.ssi_signo : 0;
}

static void tell(const struct hf_run *run, struct hf_note note)
{
    hf_link_tell(run->guardian.link, &note, NULL, 0);
}

/* From here on it may have had effects: that is on disk before anything is started. */
static int mark_spawned(struct hf_run *run, struct hf_error *err)
{
    if (!run->execution || run->execution->once)
        return 0; /* a once-run that is lost is aborted either way */
    hf_failpoint(HF_FAIL_BEGUN);
    int r = hf_spawned(run->hf, &run->lease, err);
    hf_failpoint(HF_FAIL_MARKED);
    if (r >= 0 && run->lease.cancel_requested)
        r = hf_fail(err, HF_CANCELLED, "%s: execution %s was cancelled before it was started",
                    run->lease.name, run->lease.execution_id);
    return r;
}

/* When to begin renewing: an execution beats more often, to learn soon that it is to stop. */
static int64_t first_beat_ms(const struct hf_run *run)
{
    const struct hf_lease *lease = &run->lease;
    int64_t third_ms = lease->deadline_ms - lease->ttl_ms * 2 / 3;
    int64_t beat_ms = hf_clock_boot_ms() + BEAT_MS;
    return run->execution && beat_ms < third_ms ? beat_ms : third_ms;
}

int hf_run_start(struct hf_run *run, const char *store_url, struct hf_error *err)
{
    const struct hf_lease *lease = &run->lease;
    struct hf_buf environment = HF_BUF(HF_NOTE_DATA_MAX);
    int r = mark_spawned(run, err);
    if (r >= 0)
        r = hf_environment_write(&environment, lease, store_url, run->execution, err);
    if (r >= 0) {
        run->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
        if (run->timer_fd < 0)
            r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make a timer");
    }
    run->lead_ms = hf_lead_ms(lease->ttl_ms, run->grace_ms);
    run->too_late =
        hf_plan_is_too_late(hf_clock_boot_ms(), lease->deadline_ms, lease->ttl_ms, run->grace_ms);
    if (r >= 0 && !run->too_late) {
        hf_clock_arm(run->timer_fd, first_beat_ms(run));
        hf_signals_pass_on(&run->signals);
        struct hf_note note = {
            .kind = HF_NOTE_START, .deadline_ms = lease->deadline_ms, .ttl_ms = lease->ttl_ms};
        hf_link_tell(run->guardian.link, &note, environment.data, environment.len);
    }
    hf_buf_clear(&environment);
    return r;
}

/* ---- renewing ------------------------------------------------------------------------------- */

/* On the keeper's thread. */
static void tell_renewed(void *arg, const struct hf_lease *lease)
{
    const struct hf_run *run = arg;
    tell(run, (struct hf_note){.kind = HF_NOTE_RENEWED,
                               .deadline_ms = lease->deadline_ms,
                               .cancel = lease->cancel_requested});
}

static const struct hf_result *tell_output(void *arg)
{
    const struct hf_run *run = arg;
    return run->capture ? hf_capture_news(run->capture) : NULL;
}

void hf_run_keep(struct hf_run *run)
{
    struct hf_keep_options options = HF_KEEP_INIT;
    options.renewed = tell_renewed;
    options.early_ms = run->lead_ms / 2;
    options.arg = run;
    if (run->execution) {
        options.every_ms = BEAT_MS;
        options.output = tell_output;
    }
    if (!run->keeper && hf_keep(run->hf, &run->lease, &options, &run->keeper, NULL) < 0)
        hf_clock_arm(run->timer_fd, hf_clock_boot_ms() + KEEP_AGAIN_MS);
}

void hf_run_stop_keeping(struct hf_run *run)
{
    if (!run->keeper)
        return;
    hf_keeper_check(run->keeper, &run->lease, NULL);
    hf_keeper_stop(run->keeper);
    run->keeper = NULL;
}

/* The command must not live any longer. */
static void order_kill(struct hf_run *run)
{
    run->told_lost = true;
    tell(run, (struct hf_note){.kind = HF_NOTE_LOST});
    if (run->keeper)
        hf_keeper_check(run->keeper, &run->lease, NULL);
    hf_clock_arm(run->timer_fd,
                 hf_guardian_ends_ms(hf_clock_boot_ms(), run->lease.deadline_ms, run->lead_ms));
}

/* Either the first third of the ttl has passed, or the guardian does not answer any more. */
static void timer_fired(struct hf_run *run)
{
    uint64_t count;
    if (read(run->timer_fd, &count, sizeof count) < 0)
        return;
    if (run->told_lost)
        kill(run->guardian.pid, SIGKILL);
    else if (!run->paused)
        hf_run_keep(run);
    if (!run->told_lost && !run->paused && !run->keeper &&
        hf_clock_boot_ms() >= run->lease.deadline_ms - run->lead_ms / 2)
        order_kill(run);
}

/* ---- stopping and continuing ---------------------------------------------------------------- */

/* The command was stopped: if a shell is there to continue us, stop too, but not the renewing. */
static void command_stopped(struct hf_run *run, int signal_number)
{
    if (!run->has_terminal)
        return;
    if (!hf_terminal_shell_is_there()) {
        /* Nobody could continue it; the kernel would not have let the terminal stop it alone. */
        if (signal_number == SIGTSTP)
            tell(run, (struct hf_note){.kind = HF_NOTE_SIGNAL, .number = SIGCONT});
        return;
    }
    hf_run_stop_keeping(run);
    run->paused = true;
    struct hf_note note = {.kind = HF_NOTE_PAUSE};
    hf_link_tell(run->guardian.link, &note, &run->lease, sizeof run->lease);
    hf_terminal_stop(signal_number == SIGSTOP ? SIGTSTP : signal_number);
}

static void continued(struct hf_run *run, const struct signalfd_siginfo *info)
{
    if (run->paused)
        tell(run, (struct hf_note){.kind = HF_NOTE_RESUME});
    else if ((pid_t)info->ssi_pid != run->guardian.pid)
        tell(run, (struct hf_note){.kind = HF_NOTE_SIGNAL, .number = SIGCONT});
}

static void pass_on(struct hf_run *run, const struct signalfd_siginfo *info)
{
    int number = (int)info->ssi_signo;
    /* A hangup is told to the leader of the session alone, which we may be. */
    bool from_terminal = info->ssi_code == SI_KERNEL && number != SIGHUP;
    if (number == SIGCONT) {
        continued(run, info);
        return;
    }
    if (number == SIGTTIN || number == SIGTTOU)
        return; /* for a whole group; it is the command's stopping that counts */
    if (number == SIGTSTP && run->has_terminal && getpgid((pid_t)info->ssi_pid) == getpgrp())
        from_terminal = true; /* an editor stops its whole group as the terminal would */
    tell(run, (struct hf_note){
                  .kind = HF_NOTE_SIGNAL, .number = number, .from_terminal = from_terminal});
}

/* ---- while it runs -------------------------------------------------------------------------- */

/*
 * The guardian has died. Once it can be reaped all that was below it is below us; what is older
 * than it was here before us and is not ours to end.
 */
static void end_unguarded(struct hf_run *run, struct hf_run_end *end)
{
    siginfo_t info;
    struct hf_process_stat stat;
    struct hf_tree tree = {.root = getpid()};
    while (waitid(P_PID, (id_t)run->guardian.pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        continue;
    if (hf_process_read_stat(run->guardian.pid, &stat))
        tree.since_ticks = stat.start_ticks;
    waitpid(run->guardian.pid, NULL, 0);
    run->guardian.pid = 0;
    end->why = run->told_lost ? HF_ENDING_LOST : HF_ENDING_UNGUARDED;
    if (end->not_run)
        end->why = HF_ENDING_SELF; /* there was nothing to guard */
    hf_tree_kill(&tree);
}

/* True: it is over. */
static bool listen_to_guardian(struct hf_run *run, struct hf_run_end *end)
{
    struct hf_note note;
    int r = hf_link_hear(run->guardian.link, &note, NULL, 0, NULL);
    if (r < 0)
        end_unguarded(run, end);
    if (r <= 0)
        return r < 0;
    switch (note.kind) {
    case HF_NOTE_NOT_RUN:
        end->not_run = note.number;
        break;
    case HF_NOTE_STOPPED:
        command_stopped(run, note.number);
        break;
    case HF_NOTE_RESUMED:
        run->paused = false;
        run->lease.deadline_ms = note.deadline_ms;
        hf_run_keep(run);
        break;
    case HF_NOTE_ENDED:
        end->why = note.why;
        end->status = note.number;
        end->left_behind = note.left_behind;
        return true;
    default:
        break;
    }
    return false;
}

/* True: there may be more to read at once. */
static bool use_tap(struct hf_run *run, struct hf_tap *tap)
{
    int r = tap->fd >= 0 ? tap->use(run, tap) : 0;
    if (r < 0 && !run->told_lost) {
        run->aborted = true;
        order_kill(run);
    }
    return r > 0;
}

void hf_run_wait(struct hf_run *run, struct hf_run_end *ret)
{
    enum { GUARDIAN, SIGNALS, TIMER, KEEPER, TAP, N_FDS = TAP + HF_TAPS };
    struct hf_run_end end = {0};
    if (run->too_late) /* as the guardian would say it */
        end = (struct hf_run_end){.not_run = ETIME, .why = HF_ENDING_DEADLINE};
    for (bool over = run->too_late; !over;) {
        bool keeps = run->keeper && !run->told_lost;
        struct pollfd fds[] = {
            [GUARDIAN] = {.fd = run->guardian.link, .events = POLLIN},
            [SIGNALS] = {.fd = run->signals.fd, .events = POLLIN},
            [TIMER] = {.fd = run->timer_fd, .events = POLLIN},
            [KEEPER] = {.fd = keeps ? hf_keeper_fd(run->keeper) : -1, .events = POLLIN},
            [TAP] = {.fd = run->taps[0].fd, .events = run->taps[0].events},
            [TAP + 1] = {.fd = run->taps[1].fd, .events = run->taps[1].events},
        };
        if (poll(fds, N_FDS, -1) <= 0)
            continue;
        struct signalfd_siginfo info;
        if (fds[SIGNALS].revents && hf_signals_next(&run->signals, &info))
            pass_on(run, &info);
        if (fds[TIMER].revents)
            timer_fired(run);
        if (fds[KEEPER].revents)
            order_kill(run);
        for (int i = 0; i < HF_TAPS; i++)
            if (fds[TAP + i].revents)
                use_tap(run, &run->taps[i]);
        if (fds[GUARDIAN].revents)
            over = listen_to_guardian(run, &end);
    }
    run->over = true;
    for (int i = 0; i < HF_TAPS; i++)
        while (use_tap(run, &run->taps[i]))
            continue;
    *ret = end;
}

void hf_run_clear(struct hf_run *run)
{
    hf_run_stop_keeping(run);
    int fds[] = {run->guardian.link, run->timer_fd, run->signals.fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (run->guardian.pid > 0)
        waitpid(run->guardian.pid, NULL, 0);
    run->guardian.pid = 0;
}
