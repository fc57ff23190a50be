/* From what is due to commands that run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "desk.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"

enum {
    AGAIN_MS = 1000,         /* the next claim, after something failed here */
    MARK_PAUSE_MS = 200,     /* the next attempt to mark, while the store fails */
    CLAIM_TTL_MIN_MS = 10000 /* time enough to mark what was claimed */
};

static void say_started(const struct hf_desk *d, const struct hf_job *job)
{
    const struct hf_execution *x = &job->execution;
    char attempt[16], fence[24];
    log_takeover(&job->lease, NULL);
    if (d->opts->quiet)
        return;
    snprintf(attempt, sizeof attempt, "%d", (int)x->attempt);
    snprintf(fence, sizeof fence, "%lld", (long long)job->lease.fence);
    log_event("started", "execution", x->id, "workflow", x->workflow, "key",
              x->key[0] ? x->key : NULL, "attempt", attempt, "fence", fence, LOG_END);
}

/* ---- not to be started ---------------------------------------------------------------------- */

/* Something here is lacking, perhaps only now: others may have more luck, and we later. */
static void leave_to_others(struct hf_desk *d, struct hf_job *job, const char *why)
{
    job->stopped = why;
    d->claim_ms = hf_clock_boot_ms() + AGAIN_MS;
    hf_jobs_add(&d->ending, job);
}

static void not_started(struct hf_desk *d, struct hf_job *job, int r, const struct hf_error *err)
{
    job->never_started = true;
    log_event("not-started", "execution", job->execution.id, "workflow", job->execution.workflow,
              "message", err->message, LOG_END);
    if (r != -HF_FORBIDDEN && r != -HF_INVALID) {
        leave_to_others(d, job, "could not be started");
        return;
    }
    snprintf(job->why_not, sizeof job->why_not, "%.*s", HF_REASON_MAX, err->message);
    hf_jobs_add(&d->ending, job);
}

/* Somebody else has it by now, or will. */
static void drop(struct hf_desk *d, struct hf_job *job, const char *why)
{
    log_event("lost", "execution", job->execution.id, "workflow", job->execution.workflow, "reason",
              why, LOG_END);
    hf_job_free(job);
    d->n_jobs--;
}

/* ---- making them ready ---------------------------------------------------------------------- */

static struct hf_claim_options wants(const struct hf_desk *d, const char *const *names, size_t n)
{
    struct hf_claim_options opts = HF_CLAIM_INIT;
    opts.workflows = names;
    opts.n_workflows = n;
    opts.ttl_ms = d->claim_ttl_ms;
    opts.bound[0] = getpid();
    opts.bound[1] = d->nursery->pid;
    opts.n_bound = 2;
    opts.verifies = true;
    return opts;
}

struct hf_claim_options hf_desk_wants(const struct hf_desk *d)
{
    return wants(d, d->open, d->n_open);
}

static int64_t now_us(void) { return hf_clock_boot_ms() * 1000; }

/* What may be claimed now, and when the others may be. */
static void choose_open(struct hf_desk *d)
{
    int64_t now = now_us();
    d->n_open = d->n_unpaced;
    d->pace_ms = INT64_MAX;
    for (size_t i = 0; i < d->n_paces; i++) {
        const struct hf_pace *pace = &d->paces[i];
        int64_t open_ms = pace->open_us / 1000 + 1;
        if (hf_pace_room(pace, now))
            d->open[d->n_open++] = pace->workflow;
        else if (open_ms < d->pace_ms)
            d->pace_ms = open_ms;
    }
}

int hf_desk_choose(struct hf_desk *d, const struct hf_workflows *all, struct hf_error *err)
{
    const struct hf_work_options *opts = d->opts;
    size_t n = opts->n_workflows ? opts->n_workflows : all->n;
    const char **open = calloc(n + 1, sizeof *open);
    struct hf_pace *paces = calloc(n + 1, sizeof *paces);
    if (!open || !paces) {
        free(open);
        free(paces);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    free(d->open);
    free(d->paces);
    d->open = open;
    d->paces = paces;
    d->n_unpaced = d->n_paces = 0;
    d->claim_ttl_ms = HF_TTL_DEFAULT_MS;
    for (size_t i = 0; i < n; i++) {
        const struct hf_workflow *w = &all->of[i];
        if (opts->n_workflows && hf_workflows_find(all, opts->workflows[i], &w, NULL) < 0)
            continue; /* that was checked before */
        if (w->ttl_ms < d->claim_ttl_ms)
            d->claim_ttl_ms = w->ttl_ms > CLAIM_TTL_MIN_MS ? w->ttl_ms : CLAIM_TTL_MIN_MS;
        if (w->rate_us)
            paces[d->n_paces++] = (struct hf_pace){w->name, w->rate_us, 0};
        else
            open[d->n_unpaced++] = w->name;
    }
    choose_open(d);
    return 0;
}

/* Behind those that were claimed before. */
static int claim_of(struct hf_desk *d, const char *const *names, size_t n_names, size_t max,
                    size_t *n, struct hf_error *err)
{
    struct hf_claim_options opts = wants(d, names, n_names);
    size_t some = 0;
    int r = n_names && max ? hf_claim(d->hf, &opts, max, d->claimed + *n, &some, err) : 0;
    *n += r < 0 ? 0 : some;
    return r;
}

static int claim_paced(struct hf_desk *d, size_t max, size_t *n, struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < d->n_paces && *n < max; i++) {
        struct hf_pace *pace = &d->paces[i];
        size_t room = hf_pace_room(pace, now_us()), before = *n;
        r = claim_of(d, &pace->workflow, 1, room < max - before ? room : max - before, n, err);
        hf_pace_spend(pace, *n - before, now_us());
    }
    return r;
}

static int claim_due(struct hf_desk *d, size_t max, size_t *n, struct hf_error *err)
{
    int r = 0;
    d->paces_first = !d->paces_first;
    if (d->paces_first)
        r = claim_paced(d, max, n, err);
    if (r >= 0)
        r = claim_of(d, d->open, d->n_unpaced, max - *n, n, err);
    if (r >= 0 && !d->paces_first)
        r = claim_paced(d, max, n, err);
    choose_open(d);
    return *n ? 0 : r; /* what was claimed before a failure is ours all the same */
}

/* A job of the claimed one with its guardian ready, or NULL: it was seen to. */
static struct hf_job *make_ready(struct hf_desk *d, const struct hf_claimed *claimed)
{
    struct hf_error err;
    const struct hf_workflow *workflow;
    struct hf_job *job = hf_job_make(claimed, ++d->last_id);
    if (!job) { /* its lease ends by itself, and nothing was spawned */
        d->claim_ms = hf_clock_boot_ms() + AGAIN_MS;
        return NULL;
    }
    d->n_jobs++;
    int r = hf_workflows_find(d->all, job->execution.workflow, &workflow, &err);
    job->verifies = job->execution.to_verify;
    if (r >= 0 && job->verifies && !workflow->verify)
        r = hf_fail(&err, HF_INVALID, "%s has no verify any more: nobody knows whether it was done",
                    workflow->name);
    if (r >= 0)
        r = hf_job_prepare(job, d->hf, workflow, d->nursery, &err);
    if (r >= 0)
        return job;
    not_started(d, job, r, &err);
    return NULL;
}

/* ---- starting them -------------------------------------------------------------------------- */

/*
 * That they may have had effects is on disk before anything is started, for all of them in one
 * transaction. While the store fails they wait, until their leases are over.
 */
static int mark_spawned(struct hf_desk *d, size_t n)
{
    static const struct timespec pause = {.tv_nsec = MARK_PAUSE_MS * 1000000};
    struct hf_error err = {0};
    int64_t deadline_ms = INT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const struct hf_job *job = d->batch[i];
        d->requests[i] = (struct hf_request){.op = HF_OP_EXTEND,
                                             .name = job->lease.name,
                                             .token = job->lease.token,
                                             .fence = job->lease.fence,
                                             .ttl_ms = job->ttl_ms,
                                             .spawned = true};
        if (job->lease.deadline_ms < deadline_ms)
            deadline_ms = job->lease.deadline_ms;
    }
    int r;
    while ((r = hf_desk_apply(d, n, &err)) < 0 && hf_clock_boot_ms() < deadline_ms) {
        hf_desk_trouble(d, &err);
        nanosleep(&pause, NULL);
    }
    hf_desk_trouble(d, r < 0 ? &err : NULL);
    return r;
}

static void deliver(struct hf_desk *d, struct hf_job *job)
{
    pthread_mutex_lock(&d->lock);
    hf_jobs_add(&d->started, job);
    pthread_mutex_unlock(&d->lock);
    eventfd_write(d->ready_fd, 1);
}

static void start_marked(struct hf_desk *d, struct hf_job *job, const struct hf_answer *answer)
{
    struct hf_error err;
    if (answer->code < 0) {
        drop(d, job, "before its command was started");
        return;
    }
    job->lease = answer->lease;
    if (job->lease.cancel_requested) {
        job->never_started = true;
        job->end.why = HF_ENDING_CANCELLED;
        hf_jobs_add(&d->ending, job);
        return;
    }
    job->execution.spawned = true;
    int r = hf_job_start(job, d->keeping, d->opts->store_url, &err);
    if (r < 0) {
        not_started(d, job, -HF_INVALID, &err);
        return;
    }
    say_started(d, job);
    deliver(d, job);
}

/* Its command, if it is started at all, will be marked then. */
static void start_verifying(struct hf_desk *d, struct hf_job *job)
{
    struct hf_error err;
    int r = hf_job_start(job, d->keeping, d->opts->store_url, &err);
    if (r < 0) {
        not_started(d, job, -HF_INVALID, &err);
        return;
    }
    if (!d->opts->quiet)
        log_event("verifying", "execution", job->execution.id, "workflow", job->execution.workflow,
                  "key", job->execution.key[0] ? job->execution.key : NULL, LOG_END);
    deliver(d, job);
}

static void start_ready(struct hf_desk *d, size_t n)
{
    hf_failpoint(HF_FAIL_BEGUN);
    int r = mark_spawned(d, n);
    hf_failpoint(HF_FAIL_MARKED);
    for (size_t i = 0; i < n; i++) {
        if (r < 0)
            drop(d, d->batch[i], "the store could not be reached to start its command");
        else
            start_marked(d, d->batch[i], &d->answers[i]);
    }
}

void hf_desk_claim(struct hf_desk *d, size_t room)
{
    struct hf_error err;
    size_t max = room < HF_DESK_BATCH ? room : HF_DESK_BATCH, n = 0, n_ready = 0;
    int r = claim_due(d, max, &n, &err);
    if (r >= 0 || hf_desk_may_hope(r))
        hf_desk_trouble(d, r < 0 ? &err : NULL);
    if (r < 0) {
        d->claim_ms = hf_clock_boot_ms() + AGAIN_MS;
        if (!hf_desk_may_hope(r))
            d->refused = err;
        return;
    }
    d->n_claimed += (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        struct hf_job *job = make_ready(d, &d->claimed[i]);
        if (job && job->verifies)
            start_verifying(d, job);
        else if (job)
            d->batch[n_ready++] = job;
    }
    if (n_ready)
        start_ready(d, n_ready);
}

void hf_desk_run_after_all(struct hf_desk *d, struct hf_job *verified)
{
    hf_job_stop_keeping(verified);
    struct hf_claimed again = {.lease = verified->lease, .execution = verified->execution};
    again.execution.to_verify = false;
    hf_job_free(verified);
    d->n_jobs--;
    struct hf_job *job = make_ready(d, &again);
    if (!job)
        return;
    d->batch[0] = job;
    start_ready(d, 1);
}
