/* From commands that have ended to what is recorded of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "desk.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"

enum {
    NOT_DONE = 1,        /* what verify exits with */
    AGAIN_MS = 500,      /* the next attempt, while the store fails */
    FAREWELL_MS = 10000, /* how long a worker that is to stop goes on trying */
};

/* ---- what is to be recorded ----------------------------------------------------------------- */

/* Ended for no reason of its own: its workflow says whether it is to be repeated. */
static const char *why_lost(const struct hf_job *job)
{
    if (job->stopped)
        return job->stopped;
    if (job->end.why == HF_ENDING_STOPPED)
        return "its worker was stopped";
    if (job->end.why == HF_ENDING_UNGUARDED)
        return "its guardian was killed";
    return hf_end_is_lost(&job->end) ? "its lease could not be renewed in time" : NULL;
}

/* Its verify command has told: exit code 0 means that it was done. Else nobody knows. */
static void judge(struct hf_job *job, int code, struct hf_result *result)
{
    if (code == 0 && result->state == HF_SUCCESS)
        result->reason = "it was done, as verify says";
    if (result->state == HF_SUCCESS || job->end.why == HF_ENDING_CANCELLED)
        return;
    result->state = HF_ABORTED;
    result->has_exit_code = false;
    result->reason = job->verdict;
    if (code == NOT_DONE)
        snprintf(job->verdict, sizeof job->verdict,
                 "it was not done, and its attempts are used up");
    else if (job->why_not[0])
        snprintf(job->verdict, sizeof job->verdict, "can't be verified: %.150s", job->why_not);
    else
        snprintf(job->verdict, sizeof job->verdict,
                 "nobody knows whether it was done: verify ended with %d", code);
}

static struct hf_result result_of(struct hf_job *job)
{
    int code = job->why_not[0] ? HF_EXIT_NOT_EXECUTABLE : hf_end_code(&job->end);
    struct hf_result result = hf_end_result(&job->end, job->never_started, code, job->capture);
    const char *lost = why_lost(job);
    if (job->verifies && !lost) {
        judge(job, code, &result);
        return result;
    }
    if (lost) {
        result.state = HF_ABORTED;
        result.has_exit_code = false;
        result.reason = lost;
    } else if (job->why_not[0]) {
        result.state = HF_FAILED;
        result.has_exit_code = true;
        result.reason = job->why_not;
    }
    return result;
}

static void fill_finish(struct hf_request *req, const struct hf_result *result)
{
    req->outcome = result->state == HF_SUCCESS  ? HF_OUTCOME_SUCCESS
                   : result->state == HF_FAILED ? HF_OUTCOME_FAILED
                                                : HF_OUTCOME_ABORTED;
    req->has_exit_code = result->has_exit_code;
    req->exit_code = result->exit_code;
    req->reason = result->reason;
    req->has_output =
        result->output_head_size || result->output_tail_size || result->output_skipped;
    req->output_head = result->output_head;
    req->output_head_size = result->output_head_size;
    req->output_tail = result->output_tail;
    req->output_tail_size = result->output_tail_size;
    req->output_skipped = result->output_skipped;
}

/* What was lost is given up: the store decides by `on-lost`, as it does where a holder has died. */
static struct hf_request request_for(struct hf_job *job)
{
    const struct hf_lease *lease = &job->lease;
    struct hf_request req = {.op = HF_OP_RELEASE,
                             .name = lease->name,
                             .token = lease->token,
                             .fence = lease->fence,
                             .execution_id = job->execution.id};
    struct hf_result result = result_of(job);
    fill_finish(&req, &result);
    if (why_lost(job))
        req.outcome = HF_OUTCOME_LOST;
    return req;
}

/* ---- what became of it ---------------------------------------------------------------------- */

static void say_finished(const struct hf_desk *d, const struct hf_job *job,
                         const struct hf_request *req, const struct hf_answer *answer)
{
    const struct hf_execution *x = &job->execution;
    char code[16], took[24], left[16];
    if (d->opts->quiet)
        return;
    snprintf(code, sizeof code, "%d", req->exit_code);
    snprintf(took, sizeof took, "%lld", (long long)(hf_clock_boot_ms() - job->began_ms));
    snprintf(left, sizeof left, "%u", job->end.left_behind);
    log_event("finished", "execution", x->id, "workflow", x->workflow, "key",
              x->key[0] ? x->key : NULL, "state", hf_execution_state_name(answer->execution.state),
              "exit-code", req->has_exit_code ? code : NULL, "reason",
              req->reason && *req->reason ? req->reason : NULL, "took-ms", took, "left-behind",
              job->end.left_behind ? left : NULL, LOG_END);
}

/* Others have it, or it was taken away: nothing was changed, and `why` shall tell of it. */
static void report_lost(struct hf_desk *d, const struct hf_job *job)
{
    bool in_time = job->end.why != HF_ENDING_DEADLINE;
    const char *reason = in_time ? "no longer ours" : "not renewed in time";
    log_event("lost", "execution", job->execution.id, "workflow", job->execution.workflow, "key",
              job->execution.key[0] ? job->execution.key : NULL, "reason", reason, LOG_END);
    hf_report_lost(d->hf, &job->lease, reason, NULL);
}

static void settle(struct hf_desk *d, struct hf_job *job, const struct hf_request *req,
                   const struct hf_answer *answer)
{
    if (answer->code >= 0)
        say_finished(d, job, req, answer);
    if (answer->code == -HF_LOST || (answer->code >= 0 && hf_end_is_lost(&job->end)))
        report_lost(d, job);
    else if (answer->code < 0)
        log_event("not-recorded", "execution", job->execution.id, "message",
                  hf_code_meaning(answer->code), LOG_END);
    hf_job_free(job);
    d->n_jobs--;
}

/* ---- together ------------------------------------------------------------------------------- */

static void give_up(struct hf_desk *d)
{
    for (struct hf_job *job; (job = hf_jobs_take(&d->ending)); d->n_jobs--, d->n_unrecorded++) {
        log_event("not-recorded", "execution", job->execution.id, "message",
                  "the store does not answer; its lease ends with this process", LOG_END);
        hf_job_free(job);
    }
}

/* What is to be run now, since it was not done before. */
static bool was_not_done(const struct hf_job *job)
{
    const struct hf_execution *x = &job->execution;
    return job->verifies && !job->why_not[0] && job->end.why == HF_ENDING_SELF && !why_lost(job) &&
           hf_end_code(&job->end) == NOT_DONE && (!x->max_attempts || x->spent < x->max_attempts);
}

static void run_what_was_not_done(struct hf_desk *d)
{
    struct hf_jobs all = d->ending;
    if (!all.first)
        return;
    hf_jobs_init(&d->ending);
    for (struct hf_job *job = all.first, *next; job; job = next) {
        next = job->next;
        bool to_run = was_not_done(job);
        if (to_run && d->is_stopping)
            job->stopped = "its worker was stopped"; /* others ask again */
        if (to_run && !d->is_stopping)
            hf_desk_run_after_all(d, job);
        else
            hf_jobs_add(&d->ending, job);
    }
}

/* Renewing stops before anything is given back. */
static size_t fill_batch(struct hf_desk *d)
{
    size_t n = 0;
    for (struct hf_job *job = d->ending.first; job && n < HF_DESK_BATCH; job = job->next) {
        hf_job_stop_keeping(job);
        d->batch[n] = job;
        d->requests[n++] = request_for(job);
    }
    return n;
}

void hf_desk_finish(struct hf_desk *d)
{
    struct hf_error err;
    run_what_was_not_done(d);
    while (d->ending.first) {
        size_t n = fill_batch(d);
        hf_failpoint(HF_FAIL_ENDED);
        int r = hf_desk_apply(d, n, &err);
        hf_failpoint(HF_FAIL_FINISHED);
        hf_desk_trouble(d, r < 0 ? &err : NULL);
        if (r < 0) {
            int64_t now_ms = hf_clock_boot_ms();
            d->finish_ms = now_ms + AGAIN_MS;
            if (d->is_stopping && now_ms > d->trouble_ms + FAREWELL_MS)
                give_up(d);
            return;
        }
        for (size_t i = 0; i < n; i++) {
            hf_jobs_take(&d->ending);
            settle(d, d->batch[i], &d->requests[i], &d->answers[i]);
        }
    }
}
