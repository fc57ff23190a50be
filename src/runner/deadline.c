#include "deadline.h"

enum {
    LEAD_MIN_MS = 10,
    LEAD_MAX_MS = 500,
    LEAD_PER_TTL = 20,
    LINGER_MAX_MS = 2000, /* `cmd > >(tee log)`: tee must be able to write its last lines */
    LINGER_PER_GRACE = 4,
    KILL_AGAIN_MS = 10, /* what is killed may have been forking */
    PATIENCE_MS = 1000  /* with a guardian whose lease is lost, but not by the deadline */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t hf_lead_ms(int64_t ttl_ms, int64_t grace_ms)
{
    int64_t lead_ms = smaller(larger(ttl_ms / LEAD_PER_TTL, LEAD_MIN_MS), LEAD_MAX_MS);
    return smaller(lead_ms, larger(grace_ms / 2, LEAD_MIN_MS));
}

int64_t hf_guardian_ends_ms(int64_t now_ms, int64_t deadline_ms, int64_t lead_ms)
{
    int64_t last_ms = larger(deadline_ms - lead_ms / 4, now_ms + lead_ms / 4);
    return smaller(last_ms, now_ms + PATIENCE_MS);
}

void hf_plan_start(struct hf_plan *plan, int64_t now_ms, int64_t deadline_ms, int64_t ttl_ms,
                   int64_t grace_ms, int64_t timeout_ms)
{
    *plan = (struct hf_plan){
        .grace_ms = grace_ms,
        .lead_ms = hf_lead_ms(ttl_ms, grace_ms),
        .deadline_ms = deadline_ms,
        .timeout_at_ms = timeout_ms ? now_ms + timeout_ms : INT64_MAX,
        .term_at_ms = INT64_MAX,
        .kill_at_ms = INT64_MAX,
    };
}

bool hf_plan_is_too_late(int64_t now_ms, int64_t deadline_ms, int64_t ttl_ms, int64_t grace_ms)
{
    struct hf_plan plan;
    hf_plan_start(&plan, now_ms, deadline_ms, ttl_ms, grace_ms, 0);
    return hf_plan_tick(&plan, now_ms) != HF_DUE_NOTHING;
}

void hf_plan_renew(struct hf_plan *plan, int64_t deadline_ms)
{
    plan->deadline_ms = larger(plan->deadline_ms, deadline_ms);
}

/* Whatever was planned before, it happens no later than this. */
static void end_by(struct hf_plan *plan, enum hf_ending why, int64_t term_at_ms, int64_t kill_at_ms)
{
    if (plan->why == HF_ENDING_NONE)
        plan->why = why;
    plan->term_at_ms = smaller(plan->term_at_ms, term_at_ms);
    plan->kill_at_ms = smaller(plan->kill_at_ms, kill_at_ms);
}

void hf_plan_end_leftovers(struct hf_plan *plan, int64_t now_ms)
{
    int64_t linger_ms = smaller(plan->grace_ms / LINGER_PER_GRACE, LINGER_MAX_MS);
    end_by(plan, HF_ENDING_SELF, now_ms + linger_ms, now_ms + linger_ms + plan->grace_ms);
    plan->termed = false; /* one that was just being forked may have missed it */
}

void hf_plan_end_soon(struct hf_plan *plan, enum hf_ending why, int64_t now_ms)
{
    if (plan->why == HF_ENDING_NONE)
        end_by(plan, why, now_ms, now_ms + plan->grace_ms);
}

void hf_plan_end_now(struct hf_plan *plan, enum hf_ending why, int64_t now_ms)
{
    end_by(plan, why, now_ms, now_ms);
}

/* With no grace at all, SIGTERM is passed over and SIGKILL keeps its lead. */
static int64_t lease_runs_out_ms(const struct hf_plan *plan)
{
    return plan->deadline_ms - larger(plan->grace_ms, plan->lead_ms);
}

enum hf_due hf_plan_tick(struct hf_plan *plan, int64_t now_ms)
{
    if (plan->why == HF_ENDING_NONE && now_ms >= plan->timeout_at_ms)
        hf_plan_end_soon(plan, HF_ENDING_TIMEOUT, now_ms);
    if (now_ms >= lease_runs_out_ms(plan))
        end_by(plan, HF_ENDING_DEADLINE, now_ms, plan->deadline_ms - plan->lead_ms);
    if (now_ms >= plan->kill_at_ms)
        return HF_DUE_KILL;
    if (plan->termed || now_ms < plan->term_at_ms)
        return HF_DUE_NOTHING;
    plan->termed = true;
    return HF_DUE_TERM;
}

int64_t hf_plan_next(const struct hf_plan *plan, int64_t now_ms)
{
    if (now_ms >= plan->kill_at_ms)
        return now_ms + KILL_AGAIN_MS;
    int64_t next_ms = plan->kill_at_ms;
    if (!plan->termed)
        next_ms = smaller(next_ms, plan->term_at_ms);
    if (plan->why == HF_ENDING_NONE)
        next_ms = smaller(next_ms, plan->timeout_at_ms);
    if (lease_runs_out_ms(plan) > now_ms)
        next_ms = smaller(next_ms, lease_runs_out_ms(plan));
    return next_ms;
}
