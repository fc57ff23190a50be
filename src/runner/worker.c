/* The loop: one thread, everything that happens to the commands, and what is due; then sleep. */
#include "worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "desk.h"
#include "error.h"
#include "link.h"
#include "log.h"
#include "process.h"
#include "tree.h"

/* How far its end has come. */
enum stage {
    WORKING,
    STOPPING, /* nothing more is claimed, what runs may go on for the grace */
    ENDING,   /* SIGTERM was sent, SIGKILL follows */
    KILLING
};

struct loop {
    const struct hf_work_options *opts;
    struct hf_nursery nursery;
    int64_t nursery_ticks; /* when it was started */
    bool nursery_died;
    struct hf_desk *desk;
    int epoll_fd;
    struct hf_source signals, words, letters; /* of the nursery, of the desk */
    struct hf_job *jobs;
    size_t n_jobs;
    bool some_over; /* a job may have to leave */
    enum stage stage;
    int64_t stop_ms; /* boot clock: when the grace is over */
};

/* ---- descriptors ---------------------------------------------------------------------------- */

typedef void ready_fn(void *loop, struct hf_source *source);

static bool wait_for(struct loop *l, struct hf_source *source, int fd, ready_fn *ready)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    if (fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return false;
    source->fd = fd;
    source->ready = ready;
    return true;
}

static void wait_no_more(struct loop *l, struct hf_source *source)
{
    if (source->fd >= 0)
        epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    source->fd = -1;
}

/* ---- a job ---------------------------------------------------------------------------------- */

static void tell(const struct hf_job *job, struct hf_note note)
{
    hf_link_tell(job->link, &note, NULL, 0);
}

/* Its command must not live any longer. */
static void order_kill(struct hf_job *job)
{
    job->told_lost = true;
    tell(job, (struct hf_note){.kind = HF_NOTE_LOST});
    hf_keeper_check(job->keeper, &job->lease, NULL);
    job->patience_ms =
        hf_guardian_ends_ms(hf_clock_boot_ms(), job->lease.deadline_ms, job->lead_ms);
}

static void keeper_ready(void *loop, struct hf_source *source)
{
    wait_no_more(loop, source);
    order_kill(source->job);
}

static void pump_ready(void *loop, struct hf_source *source)
{
    struct hf_job *job = source->job;
    if (hf_pump_read(&job->pumps[source - &job->sources[HF_JOB_OUT]]) < 0)
        wait_no_more(loop, source);
}

static void take_note(struct loop *l, struct hf_job *job, const struct hf_note *note)
{
    if (note->kind == HF_NOTE_NOT_RUN)
        job->end.not_run = note->number;
    if (note->kind != HF_NOTE_ENDED)
        return;
    job->end.why = note->why;
    job->end.status = note->number;
    job->end.left_behind = note->left_behind;
    job->ended = l->some_over = true;
}

/* The line's end without a word of the tree's: the nursery sees to what is left of that. */
static void link_ready(void *loop, struct hf_source *source)
{
    struct loop *l = loop;
    struct hf_job *job = source->job;
    struct hf_note note;
    int r = 1;
    while (!job->ended && (r = hf_link_hear(job->link, &note, NULL, 0, NULL)) > 0)
        take_note(l, job, &note);
    if (job->ended || r == 0)
        return;
    wait_no_more(l, source);
    hf_nursery_kill(&l->nursery, job->id);
}

static void unguarded(struct loop *l, struct hf_job *job)
{
    job->end.why = job->end.not_run     ? HF_ENDING_SELF /* there was nothing to guard */
                   : job->told_lost     ? HF_ENDING_LOST
                   : l->stage > WORKING ? HF_ENDING_STOPPED
                                        : HF_ENDING_UNGUARDED;
    job->gone = l->some_over = true;
}

static void words_ready(void *loop, struct hf_source *source)
{
    struct loop *l = loop;
    uint64_t id;
    int r;
    while ((r = hf_nursery_hear(&l->nursery, &id)) > 0)
        for (struct hf_job *job = l->jobs; job; job = job->next)
            if (job->id == id && !job->ended)
                unguarded(l, job);
    if (r == 0)
        return;
    /* The guardians and what they guard have come to us. */
    struct hf_tree tree = {.root = getpid(), .since_ticks = l->nursery_ticks};
    wait_no_more(l, source);
    log_event("nursery-killed", "message", "every command is ended", LOG_END);
    l->nursery_died = true;
    hf_desk_stop(l->desk);
    hf_tree_kill(&tree);
    for (struct hf_job *job = l->jobs; job; job = job->next)
        if (!job->ended)
            unguarded(l, job);
}

/* ---- jobs come and go ----------------------------------------------------------------------- */

static void stop_job(const struct loop *l, const struct hf_job *job)
{
    if (l->stage >= ENDING)
        tell(job, (struct hf_note){.kind = HF_NOTE_STOP, .number = l->stage == KILLING});
}

/* What can't be waited for is not let run: its guardian is told at once. */
static void take_job(struct loop *l, struct hf_job *job)
{
    job->next = l->jobs;
    l->jobs = job;
    l->n_jobs++;
    struct hf_source *of = job->sources;
    bool heard = wait_for(l, &of[HF_JOB_OUT], job->pumps[0].in_fd, pump_ready) &&
                 wait_for(l, &of[HF_JOB_ERR], job->pumps[1].in_fd, pump_ready) &&
                 wait_for(l, &of[HF_JOB_KEEPER], hf_keeper_fd(job->keeper), keeper_ready) &&
                 wait_for(l, &of[HF_JOB_LINK], job->link, link_ready);
    if (!heard) {
        hf_nursery_kill(&l->nursery, job->id);
        job->told_lost = true;
    }
    if (l->nursery_died)
        unguarded(l, job);
    stop_job(l, job);
}

static void letters_ready(void *loop, struct hf_source *source)
{
    (void)source;
    struct loop *l = loop;
    for (struct hf_job *job; (job = hf_desk_started(l->desk));)
        take_job(l, job);
}

/* Its tree is gone, so what it wrote last is in the pipes. */
static void let_go(struct loop *l, struct hf_job *job)
{
    for (int i = 0; i < HF_JOB_SOURCES; i++)
        wait_no_more(l, &job->sources[i]);
    for (int i = 0; i < HF_TAPS; i++)
        while (hf_pump_read(&job->pumps[i]) > 0)
            continue;
    l->n_jobs--;
    hf_desk_end(l->desk, job);
}

static void let_go_of_those_over(struct loop *l)
{
    if (!l->some_over)
        return;
    l->some_over = false;
    for (struct hf_job **at = &l->jobs, *job; (job = *at);) {
        if (!job->ended && !job->gone) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        let_go(l, job);
    }
}

/* ---- signals -------------------------------------------------------------------------------- */

static void go_to(struct loop *l, enum stage stage)
{
    if (stage <= l->stage)
        return;
    l->stage = stage;
    for (struct hf_job *job = l->jobs; job; job = job->next)
        stop_job(l, job);
}

static void stop(struct loop *l)
{
    char running[24];
    if (l->stage > WORKING) {
        go_to(l, KILLING);
        return;
    }
    snprintf(running, sizeof running, "%zu", l->n_jobs);
    if (!l->opts->quiet)
        log_event("stopping", "running", running, LOG_END);
    go_to(l, STOPPING);
    l->stop_ms = hf_clock_boot_ms() + l->opts->grace_ms;
    hf_desk_stop(l->desk);
}

static void reload(struct loop *l)
{
    struct hf_workflows *all;
    struct hf_error err;
    int r = hf_workflows_load(l->opts->config_path, &all, &err);
    if (r >= 0 && (r = hf_desk_reload(l->desk, all, &err)) < 0)
        hf_workflows_free(all);
    if (r < 0)
        log_event("not-reloaded", "message", err.message, LOG_END);
    else
        log_event("reloaded", "config", hf_workflows_path(l->opts->config_path), LOG_END);
}

static void signals_ready(void *loop, struct hf_source *source)
{
    struct signalfd_siginfo info;
    while (read(source->fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGHUP)
            reload(loop);
        else if (info.ssi_signo != HF_WORK_ORPHANED || ((struct loop *)loop)->stage == WORKING)
            stop(loop);
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* Everything that is due; when something will be again. */
static int64_t tick(struct loop *l)
{
    int64_t now_ms = hf_clock_boot_ms(), next_ms = INT64_MAX;
    if (l->stage == STOPPING && now_ms >= l->stop_ms)
        go_to(l, ENDING);
    if (l->stage == STOPPING)
        next_ms = l->stop_ms;
    for (struct hf_job *job = l->jobs; job; job = job->next) {
        if (!job->patience_ms)
            continue;
        if (now_ms >= job->patience_ms) {
            hf_nursery_kill(&l->nursery, job->id);
            job->patience_ms = 0;
        } else if (job->patience_ms < next_ms)
            next_ms = job->patience_ms;
    }
    return next_ms;
}

static void run(struct loop *l)
{
    enum { EVENTS = 64, LONG_MS = 3600000 };
    struct epoll_event events[EVENTS];
    while (!hf_desk_is_done(l->desk)) {
        int64_t next_ms = tick(l);
        log_flush();
        int64_t in_ms = next_ms == INT64_MAX ? LONG_MS : next_ms - hf_clock_boot_ms();
        in_ms = in_ms < 0 ? 0 : in_ms > LONG_MS ? LONG_MS : in_ms;
        int n = epoll_wait(l->epoll_fd, events, EVENTS, (int)in_ms);
        for (int i = 0; i < n; i++) {
            struct hf_source *source = events[i].data.ptr;
            if (source->fd >= 0)
                source->ready(l, source);
        }
        let_go_of_those_over(l);
    }
}

/* ---- starting ------------------------------------------------------------------------------- */

static int open_signals(struct loop *l, struct hf_error *err)
{
    static const int wanted[] = {SIGTERM, SIGINT, SIGHUP, HF_WORK_ORPHANED};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        sigaddset(&set, wanted[i]);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    sigaddset(&set, SIGPIPE); /* a closed stderr is no reason to end */
    sigprocmask(SIG_BLOCK, &set, NULL);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0 || l->epoll_fd < 0 || !wait_for(l, &l->signals, fd, signals_ready))
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't receive signals");
    return 0;
}

/* Before there is a thread, or a store to inherit; what it starts keeps our limits and signals. */
static int start_nursery(struct loop *l, struct hf_error *err)
{
    struct hf_process_stat stat;
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* what a dead nursery leaves comes to us */
    int r = hf_nursery_start(&l->nursery, err);
    if (r >= 0 && hf_process_read_stat(l->nursery.pid, &stat))
        l->nursery_ticks = stat.start_ticks;
    return r;
}

/* Each command is six descriptors. */
static void raise_limits(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static size_t choose_concurrency(const struct hf_work_options *opts)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return opts->concurrency ? (size_t)opts->concurrency : processors > 0 ? (size_t)processors : 1;
}

static int open_desk(struct loop *l, struct hf_workflows *all, struct hf_error *err)
{
    struct hf_desk *desk = calloc(1, sizeof *desk);
    if (!desk) {
        hf_workflows_free(all);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    desk->opts = l->opts;
    desk->nursery = &l->nursery;
    desk->concurrency = choose_concurrency(l->opts);
    int r = hf_desk_open(desk, all, err);
    if (r < 0)
        free(desk);
    else
        l->desk = desk;
    return r;
}

static void say_working(const struct loop *l)
{
    char concurrency[24];
    if (l->opts->quiet)
        return;
    const char *caution = hf_caution(l->desk->hf);
    snprintf(concurrency, sizeof concurrency, "%zu", l->desk->concurrency);
    if (caution)
        log_event("warning", "message", caution, LOG_END);
    log_event("working", "store", hf_url(l->desk->hf), "config",
              hf_workflows_path(l->opts->config_path), "concurrency", concurrency, LOG_END);
}

static int work(struct loop *l, struct hf_error *err)
{
    if (!wait_for(l, &l->words, l->nursery.link, words_ready) ||
        !wait_for(l, &l->letters, l->desk->ready_fd, letters_ready))
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait for what happens");
    say_working(l);
    int r = hf_desk_start(l->desk, err);
    if (r < 0)
        return r;
    run(l);
    if (!l->opts->quiet)
        log_event("stopped", LOG_END);
    return l->nursery_died ? hf_fail(err, HF_LOST,
                                     "the process that starts commands was killed, so every "
                                     "command was ended; start the worker again")
                           : 0;
}

int hf_work(const struct hf_work_options *opts, struct hf_error *err)
{
    struct loop l = {.opts = opts, .epoll_fd = -1, .signals.fd = -1, .nursery.link = -1};
    struct hf_workflows *all;
    prctl(PR_SET_NAME, "holdfast-work"); /* the service starts us as /proc/self/exe */
    int r = hf_workflows_load(opts->config_path, &all, err);
    if (r < 0)
        return r;
    if ((r = start_nursery(&l, err)) < 0 || (r = open_signals(&l, err)) < 0)
        hf_workflows_free(all);
    raise_limits();
    if (r >= 0 && (r = open_desk(&l, all, err)) >= 0) {
        r = work(&l, err);
        int closed = hf_desk_close(l.desk, r < 0 ? NULL : err);
        r = r < 0 ? r : closed;
        free(l.desk);
    }
    if (l.nursery.link >= 0)
        hf_nursery_end(&l.nursery);
    if (l.signals.fd >= 0)
        close(l.signals.fd);
    if (l.epoll_fd >= 0)
        close(l.epoll_fd);
    log_flush();
    return r;
}
