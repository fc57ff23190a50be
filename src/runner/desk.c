#include "desk.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "id.h"
#include "log.h"
#include "retention.h"
#include "thread.h"

enum {
    POLL_MS = 500, /* how often it looks for what is due where nobody wakes it; up to twice that */
    ASLEEP_MS = 5000, /* how often where somebody does */
    SWEEP_MS = 4000,  /* how often it sweeps; up to twice that */
    WATCH_MS = 1000, /* how often it looks who works beside it, on this machine; up to twice that */
    SAY_AGAIN_MS = 10000, /* how often trouble that lasts is told */
};

/* ---- lists ---------------------------------------------------------------------------------- */

void hf_jobs_init(struct hf_jobs *list)
{
    list->first = NULL;
    list->end = &list->first;
}

void hf_jobs_add(struct hf_jobs *list, struct hf_job *job)
{
    job->next = NULL;
    *list->end = job;
    list->end = &job->next;
}

struct hf_job *hf_jobs_take(struct hf_jobs *list)
{
    struct hf_job *job = list->first;
    if (job && !(list->first = job->next))
        list->end = &list->first;
    return job;
}

static void wake(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

/* ---- for the loop --------------------------------------------------------------------------- */

struct hf_job *hf_desk_started(struct hf_desk *d)
{
    uint64_t count;
    pthread_mutex_lock(&d->lock);
    struct hf_job *job = hf_jobs_take(&d->started);
    if (!job && read(d->ready_fd, &count, sizeof count) < 0)
        job = NULL; /* it was read before */
    pthread_mutex_unlock(&d->lock);
    return job;
}

void hf_desk_end(struct hf_desk *d, struct hf_job *job)
{
    pthread_mutex_lock(&d->lock);
    hf_jobs_add(&d->ended, job);
    pthread_mutex_unlock(&d->lock);
    wake(d->wake_fd);
}

void hf_desk_stop(struct hf_desk *d)
{
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    pthread_mutex_unlock(&d->lock);
    wake(d->wake_fd);
}

bool hf_desk_is_done(struct hf_desk *d)
{
    pthread_mutex_lock(&d->lock);
    bool done = d->done && !d->started.first;
    pthread_mutex_unlock(&d->lock);
    return done;
}

/* ---- which workflows ------------------------------------------------------------------------ */

static int check_wanted(const struct hf_work_options *opts, const struct hf_workflows *all,
                        struct hf_error *err)
{
    const struct hf_workflow *found;
    int r = 0;
    for (size_t i = 0; r >= 0 && i < opts->n_workflows; i++)
        r = hf_workflows_find(all, opts->workflows[i], &found, err);
    return r;
}

static void say_schedule(void *arg, const char *sentence)
{
    (void)arg;
    log_event("schedule", "message", sentence, LOG_END);
}

/* Only what the file describes is claimed: nobody else would know how to run it. */
static int use_workflows(struct hf_desk *d, struct hf_workflows *all, struct hf_error *err)
{
    struct hf_scheduler *scheduler;
    int r = hf_scheduler_open(all, d->scheduler, &scheduler, err);
    if (r >= 0 && (r = hf_desk_choose(d, all, err)) < 0)
        hf_scheduler_free(scheduler);
    if (r < 0)
        return r;
    hf_scheduler_on_say(scheduler, say_schedule, NULL);
    hf_scheduler_free(d->scheduler);
    hf_workflows_free(d->all);
    d->all = all;
    d->scheduler = scheduler;
    d->schedule_ms = 0;
    return 0;
}

int hf_desk_reload(struct hf_desk *d, struct hf_workflows *all, struct hf_error *err)
{
    int r = check_wanted(d->opts, all, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&d->lock);
    hf_workflows_free(d->reloaded);
    d->reloaded = all;
    pthread_mutex_unlock(&d->lock);
    wake(d->wake_fd);
    return 0;
}

/* ---- with the store ------------------------------------------------------------------------- */

bool hf_desk_may_hope(int r) { return r == -HF_UNAVAILABLE || r == -HF_UNKNOWN || r == -HF_NOMEM; }

static int ask(struct hf_desk *d, size_t from, size_t n, struct hf_error *err)
{
    static const struct timespec pauses[] = {{0, 20000000}, {0, 100000000}, {0, 400000000}};
    for (size_t i = 0;; i++) {
        int r = hf_apply(d->hf, d->requests + from, n, d->answers + from, err);
        if (r != -HF_UNKNOWN || i == sizeof pauses / sizeof *pauses)
            return r;
        nanosleep(&pauses[i], NULL);
    }
}

int hf_desk_apply(struct hf_desk *d, size_t n, struct hf_error *err)
{
    int r = ask(d, 0, n, err);
    if (r >= 0 || hf_desk_may_hope(r))
        return r;
    for (size_t i = 0; i < n; i++) {
        r = ask(d, i, 1, err);
        if (r < 0 && hf_desk_may_hope(r))
            return r;
        if (r < 0)
            d->answers[i] = (struct hf_answer){.code = r};
    }
    return 0;
}

void hf_desk_trouble(struct hf_desk *d, const struct hf_error *err)
{
    int64_t now_ms = hf_clock_boot_ms();
    if (!err) {
        if (d->trouble_ms)
            log_event("store-answers", "store", hf_url(d->hf), LOG_END);
        d->trouble_ms = d->said_ms = 0;
        return;
    }
    if (!d->trouble_ms)
        d->trouble_ms = now_ms;
    if (d->said_ms && now_ms < d->said_ms + SAY_AGAIN_MS)
        return;
    d->said_ms = now_ms;
    log_event("store-trouble", "store", hf_url(d->hf), "message", err->message, LOG_END);
}

/* ---- when to do what ------------------------------------------------------------------------ */

/* At least so long, at most twice: many workers must not come together. */
static int64_t jittered(int64_t ms)
{
    uint32_t random;
    hf_random(&random, sizeof random);
    return ms + (int64_t)random % ms;
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void take_letters(struct hf_desk *d)
{
    struct hf_workflows *reloaded;
    pthread_mutex_lock(&d->lock);
    for (struct hf_job *job; (job = hf_jobs_take(&d->ended));)
        hf_jobs_add(&d->ending, job);
    reloaded = d->reloaded;
    d->reloaded = NULL;
    d->is_stopping = d->stopping;
    pthread_mutex_unlock(&d->lock);
    struct hf_error err;
    if (reloaded && use_workflows(d, reloaded, &err) < 0) {
        log_event("not-reloaded", "message", err.message, LOG_END);
        hf_workflows_free(reloaded);
    }
}

static size_t room(const struct hf_desk *d)
{
    size_t n = d->concurrency - d->n_jobs;
    int64_t left = d->opts->max ? d->opts->max - d->n_claimed : INT64_MAX;
    if (d->is_stopping || d->drained || d->refused.code || left <= 0)
        return 0;
    return (int64_t)n < left ? n : (size_t)left;
}

static void sweep(struct hf_desk *d)
{
    struct hf_error err;
    int64_t n_freed = 0;
    int r = hf_sweep(d->hf, false, log_swept, NULL, &n_freed, &err);
    if (r < 0)
        hf_desk_trouble(d, &err);
    else if (n_freed)
        d->claim_ms = 0; /* what it ran may be ours now; whoever is woken for it may be dead, too */
    d->sweep_ms = hf_clock_boot_ms() + jittered(SWEEP_MS);
}

static void unwatch_others(struct hf_desk *d)
{
    while (d->n_others)
        close(d->others[--d->n_others]);
}

/* What a dead one ran is to be found at once, and not when it is time to sweep. */
static void watch_others(struct hf_desk *d)
{
    bool dead = false, near = hf_is_local(d->hf);
    unwatch_others(d);
    int r = hf_runners_watch(d->hf, d->others, HF_DESK_OTHERS, &d->n_others, &dead, NULL);
    if (r < 0)
        dead = near = false;
    d->watch_ms = hf_clock_boot_ms() + jittered(near || d->n_others ? WATCH_MS : SWEEP_MS);
    if (dead)
        d->sweep_ms = 0;
}

/* Slots of schedules become executions, also of workflows that others are to run. */
static void schedule(struct hf_desk *d)
{
    int64_t wall_ms = hf_clock_wall_ms();
    int64_t next_ms = hf_scheduler_tick(d->scheduler, d->hf, wall_ms);
    d->schedule_ms = next_ms == INT64_MAX ? INT64_MAX : hf_clock_boot_ms() + (next_ms - wall_ms);
    d->claim_ms = 0;
}

static void prune(struct hf_desk *d)
{
    int64_t wall_ms = hf_clock_wall_ms();
    int64_t next_ms = hf_retention_tick(d->all, d->hf, wall_ms);
    d->prune_ms = hf_clock_boot_ms() + (next_ms - wall_ms);
}

/* ---- sleeping ------------------------------------------------------------------------------- */

/* Whoever is asleep must be able to take what it is woken for. */
static void get_up(struct hf_desk *d)
{
    if (d->asleep)
        hf_idle_end(d->idle);
    d->asleep = false;
}

/* When the next one is due, as far as the store knows; 0: one is now, INT64_MAX: none is known. */
static int64_t next_due(struct hf_desk *d)
{
    struct hf_error err;
    int64_t next_ms;
    struct hf_claim_options wants = hf_desk_wants(d);
    int r = hf_idle_begin(d->idle, &wants, &next_ms, &err);
    d->asleep = r >= 0;
    if (r < 0)
        hf_desk_trouble(d, &err);
    if (r < 0 || next_ms == 0)
        return INT64_MAX;
    int64_t in_ms = next_ms - hf_clock_wall_ms();
    return in_ms > 0 ? hf_clock_boot_ms() + in_ms : 0;
}

/* Nothing was claimed. What has come before we could be woken wakes nobody: claim again. */
static void lie_down(struct hf_desk *d)
{
    int64_t before = d->n_claimed, next_ms = d->idle && d->n_open ? next_due(d) : INT64_MAX;
    if (next_ms == 0 || d->asleep)
        hf_desk_claim(d, room(d));
    if (d->n_claimed > before || d->claim_ms != 0)
        return;
    /* What is still due is not for us: no reason to hurry. */
    d->claim_ms = hf_clock_boot_ms() + jittered(d->asleep && next_ms ? ASLEEP_MS : POLL_MS);
    if (next_ms)
        d->claim_ms = earlier(d->claim_ms, next_ms);
}

/* With --drain what a dead holder has left is looked for once more before the end. */
static void claim(struct hf_desk *d)
{
    int64_t before = d->n_claimed;
    bool had_jobs = d->n_jobs > 0;
    get_up(d);
    hf_desk_claim(d, room(d));
    if (d->claim_ms == 0 && d->n_claimed == before)
        lie_down(d);
    bool found = d->n_claimed > before;
    if (!d->opts->drain || found || had_jobs || d->trouble_ms || d->pace_ms != INT64_MAX)
        return;
    sweep(d);
    d->claim_ms = 0;
    hf_desk_claim(d, room(d));
    d->drained = d->n_claimed == before && !d->trouble_ms;
}

static bool goes_on(const struct hf_desk *d)
{
    return !d->is_stopping && !d->drained && !d->refused.code &&
           !(d->opts->max && d->n_claimed >= d->opts->max);
}

static bool is_over(const struct hf_desk *d) { return !goes_on(d) && d->n_jobs == 0; }

static void sleep_until(struct hf_desk *d, int64_t next_ms)
{
    struct pollfd fds[2 + HF_DESK_OTHERS] = {
        {.fd = d->wake_fd, .events = POLLIN},
        {.fd = d->asleep ? hf_idle_fd(d->idle) : -1, .events = POLLIN}};
    for (size_t i = 0; i < d->n_others; i++)
        fds[2 + i] = (struct pollfd){.fd = d->others[i], .events = POLLIN};
    uint64_t count;
    int64_t in_ms = next_ms == INT64_MAX ? -1 : next_ms - hf_clock_boot_ms();
    if (next_ms != INT64_MAX && in_ms <= 0)
        return;
    if (poll(fds, 2 + d->n_others, in_ms > 60000 ? 60000 : (int)in_ms) <= 0)
        return;
    while (read(d->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
        continue;
    if (fds[1].revents)
        d->claim_ms = 0;
    for (size_t i = 0; i < d->n_others; i++)
        if (fds[2 + i].revents)
            d->watch_ms = 0;
}

/* Everything that is due; when something will be again. */
static int64_t tick(struct hf_desk *d)
{
    int64_t now_ms = hf_clock_boot_ms(), next_ms = INT64_MAX;
    if (d->ending.first && now_ms >= d->finish_ms) {
        hf_desk_finish(d);
        d->claim_ms = 0; /* what it held may be waited for */
    }
    if (!d->is_stopping && now_ms >= d->watch_ms)
        watch_others(d);
    if (!d->is_stopping && now_ms >= d->sweep_ms)
        sweep(d);
    if (goes_on(d) && now_ms >= d->schedule_ms)
        schedule(d);
    if (room(d) && now_ms >= earlier(d->claim_ms, d->pace_ms)) {
        d->claim_ms = 0;
        claim(d);
    }
    if (!room(d))
        get_up(d);
    if (goes_on(d) && !d->trouble_ms && now_ms >= d->prune_ms)
        prune(d);
    if (d->ending.first)
        next_ms = earlier(next_ms, d->finish_ms);
    if (room(d))
        next_ms = earlier(next_ms, earlier(d->claim_ms, d->pace_ms));
    if (!d->is_stopping)
        next_ms = earlier(next_ms, earlier(d->sweep_ms, d->watch_ms));
    if (goes_on(d))
        next_ms = earlier(next_ms, earlier(d->schedule_ms, d->prune_ms));
    return next_ms;
}

static void *desk_main(void *arg)
{
    struct hf_desk *d = arg;
    take_letters(d);
    while (!is_over(d)) {
        int64_t next_ms = tick(d);
        if (!is_over(d))
            sleep_until(d, next_ms);
        take_letters(d);
    }
    pthread_mutex_lock(&d->lock);
    d->done = true;
    pthread_mutex_unlock(&d->lock);
    wake(d->ready_fd);
    return NULL;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static void clear(struct hf_desk *d)
{
    unwatch_others(d);
    hf_idle_close(d->idle);
    if (d->hf)
        hf_close(d->hf);
    if (d->keeping)
        hf_close(d->keeping);
    if (d->wake_fd >= 0)
        close(d->wake_fd);
    if (d->ready_fd >= 0)
        close(d->ready_fd);
    free(d->open);
    free(d->paces);
    hf_scheduler_free(d->scheduler);
    hf_workflows_free(d->all);
    hf_workflows_free(d->reloaded);
    pthread_mutex_destroy(&d->lock);
}

int hf_desk_open(struct hf_desk *d, struct hf_workflows *all, struct hf_error *err)
{
    pthread_mutex_init(&d->lock, NULL);
    hf_jobs_init(&d->ended);
    hf_jobs_init(&d->started);
    hf_jobs_init(&d->ending);
    d->sweep_ms = hf_clock_boot_ms() + jittered(SWEEP_MS);
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = check_wanted(d->opts, all, err);
    if (r >= 0)
        r = use_workflows(d, all, err);
    if (r < 0)
        hf_workflows_free(all);
    if (r >= 0)
        r = hf_open(d->opts->store_url, &d->hf, err);
    if (r >= 0)
        r = hf_open(d->opts->store_url, &d->keeping, err);
    if (r >= 0 && !d->opts->drain && hf_idle_open(d->hf, &d->idle, NULL) < 0)
        d->idle = NULL; /* then we poll */
    if (r >= 0 && (d->wake_fd < 0 || d->ready_fd < 0))
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't start the worker");
    if (r < 0)
        clear(d);
    return r;
}

int hf_desk_start(struct hf_desk *d, struct hf_error *err)
{
    int failed = hf_thread_start(&d->thread, desk_main, d);
    d->has_thread = !failed;
    return failed ? hf_fail_errno(err, HF_UNAVAILABLE, failed, "can't start the worker's thread")
                  : 0;
}

int hf_desk_close(struct hf_desk *d, struct hf_error *err)
{
    if (d->has_thread)
        pthread_join(d->thread, NULL);
    int64_t n = d->n_unrecorded;
    struct hf_error refused = d->refused;
    clear(d);
    if (refused.code)
        return hf_fail(err, -refused.code, "%s", refused.message);
    return n ? hf_fail(err, HF_UNAVAILABLE,
                       "the store did not answer: how %lld execution%s ended was not recorded",
                       (long long)n, n == 1 ? "" : "s")
             : 0;
}
