#include "guardian.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "failpoint.h"
#include "host.h"
#include "link.h"
#include "standin.h"
#include "tree.h"

struct guardian {
    const struct hf_command *command;
    int link, signal_fd, timer_fd;
    pid_t wrapper, wrapper_group;
    struct sigaction on_child; /* what SIGCHLD did in the wrapper, for the command */
    struct hf_plan plan;
    int64_t armed_ms;
    pid_t pid; /* of the command; 0: not started */
    int status;
    bool over;         /* the command has exited */
    bool stopped;      /* it was stopped */
    bool has_children; /* as of the last look */
    bool abandoned;    /* the wrapper has died */
    uint32_t left_behind;
    /* the stand-in, while the wrapper is stopped */
    bool paused;
    struct hf_lease lease;
    pid_t stand_in;
    int stand_in_link; /* -1: none */
};

static void tell(const struct guardian *g, struct hf_note note)
{
    hf_link_tell(g->link, &note, NULL, 0);
}

/* ---- the stand-in --------------------------------------------------------------------------- */

/* One while the wrapper is paused, none else; the old one is gone before another is started. */
static void settle_stand_in(struct guardian *g)
{
    bool wanted = g->paused && !g->over;
    if (!wanted && g->stand_in_link >= 0) {
        close(g->stand_in_link);
        g->stand_in_link = -1;
    }
    if (!wanted || g->stand_in > 0)
        return;
    int link = -1;
    pid_t pid = hf_stand_in_start(getenv("HOLDFAST_STORE"), &g->lease, &link);
    if (pid < 0)
        return; /* the deadline will tell; the next event tries again */
    g->stand_in = pid;
    g->stand_in_link = link;
    g->has_children = true;
}

/* The wrapper sleeps by its own will: what it must hear would not wake it. */
static void wake_wrapper(struct guardian *g)
{
    if (g->paused && g->wrapper && getppid() == g->wrapper)
        kill(g->wrapper, SIGCONT);
}

/* ---- the command's tree --------------------------------------------------------------------- */

/* What would have to be ended at once is not started: even its first moment is somebody else's. */
_Noreturn static void refuse_to_start(const struct guardian *g)
{
    tell(g, (struct hf_note){.kind = HF_NOTE_NOT_RUN, .number = ETIME});
    tell(g, (struct hf_note){.kind = HF_NOTE_ENDED, .why = g->plan.why});
    _exit(0);
}

static void start_command(struct guardian *g, const struct hf_note *note, char *environment,
                          size_t n)
{
    for (char *line = environment; line < environment + n; line += strlen(line) + 1)
        putenv(line);
    hf_plan_start(&g->plan, hf_clock_boot_ms(), note->deadline_ms, note->ttl_ms,
                  g->command->grace_ms, g->command->timeout_ms);
    /* The wrapper may have been stopped since it got the lease. */
    if (hf_plan_tick(&g->plan, hf_clock_boot_ms()) != HF_DUE_NOTHING)
        refuse_to_start(g);
    hf_failpoint(HF_FAIL_GUARDIAN);
    pid_t pid = hf_spawn(g->command, g->link, &g->on_child);
    if (pid < 0) {
        tell(g, (struct hf_note){.kind = HF_NOTE_NOT_RUN, .number = -pid});
        _exit(0);
    }
    g->pid = pid;
    g->has_children = true;
    hf_command_close(g->command); /* who reads what it writes waits for the last writer */
}

static void command_changed(struct guardian *g, int status)
{
    if (WIFSTOPPED(status)) {
        g->stopped = true;
        tell(g, (struct hf_note){.kind = HF_NOTE_STOPPED, .number = WSTOPSIG(status)});
    } else if (WIFCONTINUED(status)) {
        g->stopped = false;
        wake_wrapper(g);
    } else {
        g->over = true;
        g->status = status;
        hf_plan_end_leftovers(&g->plan, hf_clock_boot_ms());
    }
}

/* Learn what became of the children: the command, the stand-in, and the orphans that came to us. */
static void reap(struct guardian *g)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
        if (pid == g->pid)
            command_changed(g, status);
        else if (pid == g->stand_in && !WIFSTOPPED(status) && !WIFCONTINUED(status))
            g->stand_in = 0;
    }
    g->has_children = pid == 0;
}

static void act(struct guardian *g)
{
    struct hf_tree tree = {.root = getpid(), .spared = &g->stand_in, .n_spared = 1};
    enum hf_due due = hf_plan_tick(&g->plan, hf_clock_boot_ms());
    if (due == HF_DUE_NOTHING)
        return;
    if (due == HF_DUE_KILL) {
        setpriority(PRIO_PROCESS, 0, -20); /* if we may: what we kill may be many, and forking */
        if (g->over)
            tree.n_spared = 0; /* a stand-in that hangs must not keep us */
    }
    uint32_t n = hf_tree_signal(&tree, due == HF_DUE_KILL ? SIGKILL : SIGTERM);
    if (g->over && g->plan.why == HF_ENDING_SELF && g->left_behind == 0)
        g->left_behind = n;
}

/* ---- what the others say -------------------------------------------------------------------- */

/* The terminal's signals go to a whole process group: they must not reach the command twice. */
static void pass_on(struct guardian *g, const struct hf_note *note)
{
    if (g->over) {
        struct hf_tree tree = {.root = getpid(), .spared = &g->stand_in, .n_spared = 1};
        hf_tree_signal(&tree, note->number);
    } else if (!note->from_terminal || getpgid(g->pid) != g->wrapper_group)
        kill(g->pid, note->number);
}

static void resume(struct guardian *g)
{
    g->paused = false;
    if (g->stopped && !g->over)
        kill(g->pid, SIGCONT);
    tell(g, (struct hf_note){.kind = HF_NOTE_RESUMED, .deadline_ms = g->plan.deadline_ms});
}

static void renewed(struct guardian *g, const struct hf_note *note)
{
    hf_plan_renew(&g->plan, note->deadline_ms);
    if (note->cancel)
        hf_plan_end_soon(&g->plan, HF_ENDING_CANCELLED, hf_clock_boot_ms());
}

static void stop(struct guardian *g, bool at_once)
{
    if (at_once)
        hf_plan_end_now(&g->plan, HF_ENDING_STOPPED, hf_clock_boot_ms());
    else
        hf_plan_end_soon(&g->plan, HF_ENDING_STOPPED, hf_clock_boot_ms());
}

static void obey(struct guardian *g, const struct hf_note *note, char *data, size_t n)
{
    if (g->pid == 0) {
        if (note->kind == HF_NOTE_START)
            start_command(g, note, data, n);
        return;
    }
    switch (note->kind) {
    case HF_NOTE_RENEWED:
        renewed(g, note);
        break;
    case HF_NOTE_SIGNAL:
        pass_on(g, note);
        break;
    case HF_NOTE_PAUSE:
        g->paused = true;
        memcpy(&g->lease, data, sizeof g->lease);
        break;
    case HF_NOTE_RESUME:
        resume(g);
        break;
    case HF_NOTE_LOST:
        hf_plan_end_now(&g->plan, HF_ENDING_LOST, hf_clock_boot_ms());
        break;
    case HF_NOTE_STOP:
        stop(g, note->number != 0);
        break;
    default:
        break;
    }
}

static void listen_to_wrapper(struct guardian *g)
{
    static char data[HF_NOTE_DATA_MAX]; /* the environment keeps pointing into it */
    static char environment[HF_NOTE_DATA_MAX];
    char *buffer = g->pid ? data : environment;
    struct hf_note note;
    size_t n = 0;
    int r = hf_link_hear(g->link, &note, buffer, HF_NOTE_DATA_MAX, &n);
    if (r > 0)
        obey(g, &note, buffer, n);
    if (r >= 0)
        return;
    g->abandoned = true;
    hf_plan_end_now(&g->plan, HF_ENDING_ABANDONED, hf_clock_boot_ms());
}

static void listen_to_stand_in(struct guardian *g)
{
    struct hf_note note;
    int r = hf_link_hear(g->stand_in_link, &note, NULL, 0, NULL);
    if (r > 0 && note.kind == HF_NOTE_RENEWED)
        renewed(g, &note);
    if (r > 0 && note.kind == HF_NOTE_LOST)
        hf_plan_end_now(&g->plan, HF_ENDING_LOST, hf_clock_boot_ms());
    if (r >= 0)
        return;
    close(g->stand_in_link);
    g->stand_in_link = -1;
}

/* ---- its life ------------------------------------------------------------------------------- */

static void sleep_until_something_happens(struct guardian *g)
{
    enum { WRAPPER, CHILD, TIMER, STAND_IN };
    struct pollfd fds[] = {
        [WRAPPER] = {.fd = g->abandoned ? -1 : g->link, .events = POLLIN},
        [CHILD] = {.fd = g->signal_fd, .events = POLLIN},
        [TIMER] = {.fd = g->timer_fd, .events = POLLIN},
        [STAND_IN] = {.fd = g->stand_in_link, .events = POLLIN},
    };
    int64_t next_ms = hf_plan_next(&g->plan, hf_clock_boot_ms());
    if (g->pid && next_ms != g->armed_ms) {
        hf_clock_arm(g->timer_fd, next_ms);
        g->armed_ms = next_ms;
    }
    if (poll(fds, 4, -1) <= 0)
        return;
    uint64_t count;
    struct signalfd_siginfo info;
    ssize_t ignored = 0;
    if (fds[TIMER].revents)
        ignored = read(g->timer_fd, &count, sizeof count);
    if (fds[CHILD].revents)
        ignored = read(g->signal_fd, &info, sizeof info);
    (void)ignored;
    if (fds[STAND_IN].revents)
        listen_to_stand_in(g);
    if (fds[WRAPPER].revents)
        listen_to_wrapper(g);
}

_Noreturn static void guard(struct guardian *g)
{
    while (g->pid ? !g->over || g->has_children : !g->abandoned) {
        sleep_until_something_happens(g);
        if (!g->pid)
            continue;
        reap(g);
        act(g);
        settle_stand_in(g);
    }
    tell(g, (struct hf_note){.kind = HF_NOTE_ENDED,
                             .number = g->status,
                             .why = g->plan.why,
                             .left_behind = g->left_behind});
    wake_wrapper(g);
    _exit(0);
}

/* False: it could not become what a guardian must be. */
static bool prepare(struct guardian *g)
{
    sigset_t signals;
    sigfillset(&signals);
    sigprocmask(SIG_SETMASK, &signals, NULL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    /* Where it is inherited as ignored, children would vanish with their exit codes. */
    struct sigaction by_default = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &by_default, &g->on_child);
    setpgid(0, 0);
    prctl(PR_SET_NAME, "holdfast-guard");
    g->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    g->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && g->signal_fd >= 0 && g->timer_fd >= 0;
}

void hf_guardian_be(const struct hf_command *command, pid_t wrapper, int link)
{
    struct guardian g = {.command = command,
                         .link = link,
                         .wrapper = wrapper,
                         .wrapper_group = getpgrp(),
                         .stand_in_link = -1,
                         .plan = {.deadline_ms = INT64_MAX, .timeout_at_ms = INT64_MAX}};
    if (!prepare(&g))
        _exit(1);
    guard(&g);
}

int hf_guardian_start(const struct hf_command *command, struct hf_guardian *ret,
                      struct hf_error *err)
{
    int ends[2];
    pid_t wrapper = getpid();
    int r = hf_host_check_children(err);
    if (r < 0)
        return r;
    r = hf_link_open(ends);
    pid_t pid = r < 0 ? r : fork();
    if (pid == 0) {
        close(ends[0]);
        hf_guardian_be(command, wrapper, ends[1]);
    }
    if (pid < 0) {
        int saved_errno = r < 0 ? -r : errno;
        if (r >= 0)
            close(ends[0]), close(ends[1]);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved_errno, "can't start the guardian");
    }
    close(ends[1]);
    *ret = (struct hf_guardian){.pid = pid, .link = ends[0]};
    return 0;
}
