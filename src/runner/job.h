/* One execution in work: from its claim until its end is recorded. */
#ifndef HF_RUNNER_JOB_H
#define HF_RUNNER_JOB_H

#include "capture.h"
#include "ending.h"
#include "nursery.h"
#include "workflows.h"

struct hf_job;

/* A descriptor that the loop waits for. */
struct hf_source {
    int fd; /* -1: not waited for */
    void (*ready)(void *loop, struct hf_source *source);
    struct hf_job *job;
};

enum { HF_JOB_LINK, HF_JOB_KEEPER, HF_JOB_OUT, HF_JOB_ERR, HF_JOB_SOURCES };

struct hf_job {
    struct hf_job *next; /* in whichever list has it */
    uint64_t id;         /* what the nursery calls it */
    struct hf_lease lease;
    struct hf_execution execution;
    int64_t ttl_ms; /* of its workflow */
    bool verifies;  /* the command is the one that tells whether it was done */
    struct hf_capture *capture;
    struct hf_pump pumps[HF_TAPS];
    int link; /* to its guardian; -1: there is none */
    struct hf_keeper *keeper;
    /* the loop's */
    struct hf_source sources[HF_JOB_SOURCES];
    int64_t lead_ms;     /* see deadline.h */
    bool told_lost;      /* the guardian was told to kill */
    int64_t patience_ms; /* boot clock: a guardian that has not killed by then is killed; 0 */
    bool ended, gone;    /* the guardian said so; the nursery did */
    /* how it ended */
    struct hf_run_end end;
    bool never_started;
    char verdict[HF_REASON_MAX + 1]; /* verifies: why it is ABORTED */
    const char *stopped; /* why it was not even started, and is to be left to others; or NULL */
    char why_not[HF_REASON_MAX + 1]; /* never_started: what failed */
    int64_t began_ms;                /* boot clock */
};

/* Of what was claimed. NULL: out of memory. */
struct hf_job *hf_job_make(const struct hf_claimed *claimed, uint64_t id);

/* Read its input, have its guardian ready. The job is to be freed in any case. */
int hf_job_prepare(struct hf_job *job, struct hf *hf, const struct hf_workflow *workflow,
                   const struct hf_nursery *nursery, struct hf_error *err);

/* It is marked as spawned: run the command, and keep the lease by `hf`. */
int hf_job_start(struct hf_job *job, struct hf *hf, const char *store_url, struct hf_error *err);

/* No renewal is under way after this. */
void hf_job_stop_keeping(struct hf_job *job);

void hf_job_free(struct hf_job *job);

#endif
