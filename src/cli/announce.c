#include "announce.h"

#include "cli.h"
#include "text.h"

#define RULE "=================================================================="

static const char *explain(enum hf_stale_reason reason)
{
    static const char *const why[] = {
        [HF_STALE_EXPIRED] = "it was not renewed within its ttl",
        [HF_STALE_DIED] = "its processes on this machine are dead",
        [HF_STALE_REBOOTED] = "this machine was restarted since",
        [HF_STALE_ENDED] = "the execution that it was taken for is not running",
    };
    return why[reason];
}

void cli_announce_takeover(const struct hf_lease *lease)
{
    const struct hf_takeover *took = &lease->takeover;
    char since[HF_TIME_LEN + 1], held_for[HF_SPAN_MAX], ttl[HF_SPAN_MAX];
    if (took->reason == HF_STALE_NOT)
        return;
    hf_format_time(took->acquired_at_ms, since);
    hf_format_span(took->held_for_ms, held_for);
    hf_format_span(took->ttl_ms, ttl);
    cli_complain(RULE);
    cli_complain("STALE LOCK taken over: %s", lease->name);
    cli_complain("  lock id  %s, fence %lld", took->lock_id, (long long)took->fence);
    cli_complain("  owner    %s", took->owner[0] ? took->owner : "(not said)");
    cli_complain("  since    %s, held for %s, ttl %s", since, held_for, ttl);
    cli_complain("  why      %s: %s", hf_stale_reason_name(took->reason), explain(took->reason));
    cli_complain("  now      held by %s, fence %lld", lease->owner, (long long)lease->fence);
    cli_complain(RULE);
}

void cli_announce_sweep(const struct hf_status *status)
{
    char since[HF_TIME_LEN + 1], held_for[HF_SPAN_MAX];
    hf_format_time(status->locked_since_ms, since);
    hf_format_span(status->held_for_ms, held_for);
    cli_complain(RULE);
    cli_complain("STALE LOCK freed: %s", status->name);
    cli_complain("  owner    %s, fence %lld", status->owner[0] ? status->owner : "(not said)",
                 (long long)status->fence);
    cli_complain("  since    %s, held for %s", since, held_for);
    cli_complain("  why      %s",
                 status->alive == HF_DEAD ? explain(HF_STALE_DIED) : explain(HF_STALE_EXPIRED));
    cli_complain(RULE);
}
