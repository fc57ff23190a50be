/*
 * When a command's process tree must end, and how. Pure: times in, what is due out. All times are
 * milliseconds of the machine's boot clock.
 *
 *     request sent    renewed                 SIGTERM          SIGKILL    deadline    lease expires
 *     |---------------|-----------------------|----------------|----------|-----------|
 *     0               ttl/3                   deadline-grace   -lead                  ttl
 *
 * Every confirmed renewal moves the deadline, and all before it, to the right. Once the end has
 * begun it is not called off: a command that was told to stop is stopping.
 */
#ifndef HF_RUNNER_DEADLINE_H
#define HF_RUNNER_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

/* Why a tree came to its end: the first reason stays. */
enum hf_ending {
    HF_ENDING_NONE,
    HF_ENDING_SELF,      /* the command exited; what it left behind follows it */
    HF_ENDING_TIMEOUT,   /* it took longer than it was allowed to */
    HF_ENDING_DEADLINE,  /* nobody confirmed a renewal in time */
    HF_ENDING_LOST,      /* the lease is somebody else's now, or the wrapper wants it dead */
    HF_ENDING_ABANDONED, /* the wrapper died */
    HF_ENDING_UNGUARDED, /* the guardian died */
    HF_ENDING_CANCELLED, /* somebody asked for it */
    HF_ENDING_STOPPED,   /* its worker is to stop */
    HF_ENDING_COUNT
};

enum hf_due { HF_DUE_NOTHING, HF_DUE_TERM, HF_DUE_KILL };

struct hf_plan {
    int64_t grace_ms, lead_ms;
    int64_t deadline_ms, timeout_at_ms;
    enum hf_ending why;
    bool termed;
    int64_t term_at_ms, kill_at_ms; /* INT64_MAX: not yet decided */
};

/* How long before the deadline SIGKILL comes: a process needs time to die. */
int64_t hf_lead_ms(int64_t ttl_ms, int64_t grace_ms);

/*
 * A guardian may be stopped. Half a lead before the deadline the program tells it once more to kill. If the
 * tree still lives at this time, the program kills the guardian and then the tree: a quarter of a lead
 * before the deadline, and soon where the lease is lost already.
 */
int64_t hf_guardian_ends_ms(int64_t now_ms, int64_t deadline_ms, int64_t lead_ms);

/* A command that starts now; timeout_ms 0: none. */
void hf_plan_start(struct hf_plan *plan, int64_t now_ms, int64_t deadline_ms, int64_t ttl_ms,
                   int64_t grace_ms, int64_t timeout_ms);

/* A command that would be told to stop at once is not started. */
bool hf_plan_is_too_late(int64_t now_ms, int64_t deadline_ms, int64_t ttl_ms, int64_t grace_ms);

/* A renewal was confirmed; deadlines never go back. */
void hf_plan_renew(struct hf_plan *plan, int64_t deadline_ms);

/* The command has exited: what is left of its tree may go by itself, then is made to. */
void hf_plan_end_leftovers(struct hf_plan *plan, int64_t now_ms);

/* SIGTERM now, SIGKILL after the grace. */
void hf_plan_end_soon(struct hf_plan *plan, enum hf_ending why, int64_t now_ms);

/* Kill at once. */
void hf_plan_end_now(struct hf_plan *plan, enum hf_ending why, int64_t now_ms);

/* What is to be done now. HF_DUE_TERM comes once (and again for leftovers), HF_DUE_KILL again and again until it is over. */
enum hf_due hf_plan_tick(struct hf_plan *plan, int64_t now_ms);

/* When to tick again. */
int64_t hf_plan_next(const struct hf_plan *plan, int64_t now_ms);

#endif
