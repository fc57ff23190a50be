#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "environment.h"
#include "error.h"
#include "link.h"
#include "outfit.h"

enum { BEAT_MS = 1000 }; /* how often a lease is renewed: a cancel is seen as soon */

struct hf_job *hf_job_make(const struct hf_claimed *claimed, uint64_t id)
{
    struct hf_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->capture = malloc(sizeof *job->capture);
    if (!job->capture) {
        free(job);
        return NULL;
    }
    hf_capture_init(job->capture);
    job->id = id;
    job->lease = claimed->lease;
    job->execution = claimed->execution;
    job->link = -1;
    job->began_ms = hf_clock_boot_ms();
    for (int i = 0; i < HF_TAPS; i++)
        job->pumps[i].in_fd = -1;
    for (int i = 0; i < HF_JOB_SOURCES; i++)
        job->sources[i] = (struct hf_source){.fd = -1, .job = job};
    return job;
}

/* ---- what goes in and out ------------------------------------------------------------------- */

struct copying {
    int fd, failed;
};

static int copy_input(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    (void)skipped;
    struct copying *c = arg;
    c->failed = -hf_input_add(c->fd, bytes, n);
    return c->failed;
}

static int open_input(const struct hf_job *job, struct hf *hf, int *ret_fd, struct hf_error *err)
{
    struct copying c = {.fd = hf_input_open()};
    if (c.fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, -c.fd, "can't hand over the input");
    int r = hf_execution_data(hf, job->execution.id, HF_DATA_INPUT, copy_input, &c, err);
    if (r >= 0 && c.failed)
        r = hf_fail_errno(err, HF_UNAVAILABLE, c.failed, "can't hand over the input");
    if (r < 0) {
        close(c.fd);
        return r;
    }
    hf_input_rewind(c.fd);
    *ret_fd = c.fd;
    return 0;
}

static int connect_command(struct hf_job *job, struct hf *hf, struct hf_command *command,
                           struct hf_error *err)
{
    int *fds[HF_TAPS] = {&command->out_fd, &command->err_fd};
    int r = open_input(job, hf, &command->in_fd, err);
    for (int i = 0; r >= 0 && i < HF_TAPS; i++) {
        int failed = hf_pump_open(&job->pumps[i], job->capture, -1, fds[i]);
        if (failed < 0) {
            job->pumps[i].in_fd = -1;
            r = hf_fail_errno(err, HF_UNAVAILABLE, -failed, "can't connect the command's output");
        }
    }
    return r;
}

int hf_job_prepare(struct hf_job *job, struct hf *hf, const struct hf_workflow *workflow,
                   const struct hf_nursery *nursery, struct hf_error *err)
{
    struct hf_outfit outfit;
    struct hf_command command = {.in_fd = -1, .out_fd = -1, .err_fd = -1};
    job->ttl_ms = workflow->ttl_ms;
    int r = hf_outfit_open(&outfit, workflow, &command, err);
    if (job->verifies)
        command.argv = workflow->verify;
    job->lead_ms = hf_lead_ms(job->ttl_ms, command.grace_ms);
    if (r >= 0)
        r = connect_command(job, hf, &command, err);
    if (r >= 0)
        r = hf_nursery_order(nursery, job->id, &command, &job->link, err);
    else
        hf_command_close(&command);
    hf_outfit_close(&outfit);
    return r;
}

/* ---- while it runs -------------------------------------------------------------------------- */

/* On the keeper's thread. */
static void tell_renewed(void *arg, const struct hf_lease *lease)
{
    const struct hf_job *job = arg;
    struct hf_note note = {.kind = HF_NOTE_RENEWED,
                           .deadline_ms = lease->deadline_ms,
                           .cancel = lease->cancel_requested};
    hf_link_tell(job->link, &note, NULL, 0);
}

static const struct hf_result *tell_output(void *arg)
{
    const struct hf_job *job = arg;
    return hf_capture_news(job->capture);
}

int hf_job_start(struct hf_job *job, struct hf *hf, const char *store_url, struct hf_error *err)
{
    struct hf_keep_options options = HF_KEEP_INIT;
    options.renewed = tell_renewed;
    options.output = tell_output;
    options.arg = job;
    options.every_ms = BEAT_MS;
    options.early_ms = job->lead_ms / 2;
    struct hf_buf environment = HF_BUF(HF_NOTE_DATA_MAX);
    int r = hf_environment_write(&environment, &job->lease, store_url, &job->execution, err);
    if (r >= 0)
        r = hf_keep(hf, &job->lease, &options, &job->keeper, err);
    if (r >= 0) {
        struct hf_note note = {.kind = HF_NOTE_START,
                               .deadline_ms = job->lease.deadline_ms,
                               .ttl_ms = job->lease.ttl_ms};
        hf_link_tell(job->link, &note, environment.data, environment.len);
    }
    hf_buf_clear(&environment);
    return r;
}

void hf_job_stop_keeping(struct hf_job *job)
{
    if (!job->keeper)
        return;
    hf_keeper_check(job->keeper, &job->lease, NULL);
    hf_keeper_stop(job->keeper);
    job->keeper = NULL;
}

void hf_job_free(struct hf_job *job)
{
    hf_job_stop_keeping(job);
    for (int i = 0; i < HF_TAPS; i++)
        if (job->pumps[i].in_fd >= 0)
            hf_pump_close(&job->pumps[i]);
    if (job->link >= 0)
        close(job->link); /* a guardian that was never told to start goes by that */
    free(job->capture);
    free(job);
}
