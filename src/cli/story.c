/* Events as sentences, from one table of templates. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "text.h"

/*
 * %o owner, %f fence, %r reason, %d detail, %x execution. What stands in brackets is left out where
 * its value is empty.
 */
static const char *const templates[HF_EV_COUNT] = {
    [HF_EV_ACQUIRED] = "%o acquired it (fence %f)[, %d]",
    [HF_EV_RELEASED] = "%o released it (fence %f)[, %d][: %r]",
    [HF_EV_EXTENDED] = "%o still holds it (fence %f)",
    [HF_EV_DENIED] = "%o %r[: %d]",
    [HF_EV_EXPIRED] = "the lease of %o (fence %f) ended[ because %r][: %d]",
    [HF_EV_TAKEN_OVER] = "%o took over[ %d][, because %r] (now fence %f)",
    [HF_EV_FORCED] = "the lease of %o (fence %f) was freed by force[ %d][: %r]",
    [HF_EV_LOST] = "%o lost it (fence %f) and had to stop[: %r][, %d]",
    [HF_EV_STARTED] = "%o started a run[ (%d)][, execution %x]",
    [HF_EV_FINISHED] = "%o finished its run (fence %f)[: %r][, %d]",
    [HF_EV_SKIPPED] = "%o was skipped[: %r][ (%d)][, by execution %x]",
    [HF_EV_DUPLICATE] = "%o asked again for what was begun[: %r][ (%d)][, execution %x]",
};

/* Reasons that are codes; others are words already. */
static const struct {
    const char *code, *text;
} reasons[] = {{"expired", "its ttl ran out"},
               {"holder-died", "the holder died"},
               {"rebooted", "the machine was rebooted"},
               {"execution-ended", "its execution was over"},
               {"held", "was denied"}};

static const char *reason_text(const char *reason)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strcmp(reasons[i].code, reason) == 0)
            return reasons[i].text;
    return reason;
}

/* "held for 123456 ms": the same with the span as people say it. */
static void detail_text(const char *detail, char *ret, size_t size)
{
    size_t start = strcspn(detail, "0123456789");
    char *end;
    long long ms = strtoll(detail + start, &end, 10);
    char span[HF_SPAN_MAX];
    hf_format_span(ms, span);
    if (detail[start] && strcmp(end, " ms") == 0)
        snprintf(ret, size, "%.*s%s", (int)start, detail, span);
    else
        snprintf(ret, size, "%s", detail);
}

/* The value of a template's letter. */
static const char *value_of(const struct hf_event *e, char letter, char *room, size_t size)
{
    switch (letter) {
    case 'o':
        return e->owner[0] ? e->owner : "somebody";
    case 'f':
        snprintf(room, size, "%lld", (long long)e->fence);
        return room;
    case 'r':
        return reason_text(e->reason);
    case 'd':
        detail_text(e->detail, room, size);
        return room;
    default:
        return e->execution_id;
    }
}

void cli_tell_event(const struct hf_event *event, struct hf_buf *out)
{
    char room[HF_DETAIL_MAX + HF_SPAN_MAX];
    for (const char *t = templates[event->kind]; *t; t++) {
        if (*t == '[' && !*value_of(event, t[strcspn(t, "%") + 1], room, sizeof room))
            t += strcspn(t, "]");
        else if (*t == '%')
            hf_buf_puts(out, value_of(event, *++t, room, sizeof room));
        else if (*t != '[' && *t != ']')
            hf_buf_putc(out, *t);
    }
}
