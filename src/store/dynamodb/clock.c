#include <stdio.h>
#include <string.h>

#include "calendar.h"
#include "clock.h"
#include "transport.h"

/*
 * Of all samples the narrowest bounds are kept, on either side:
 *
 *     asked ....... Date is written ....... received
 *       |  late bound: it was written here     |  early bound: it was written here,
 *       |  at the end of its second            |  at the beginning of its second
 *
 * As they age they widen, for two clocks never run alike. A sample that contradicts them comes from
 * another front end, or the server's clock was set: then it alone counts.
 */
enum { SECOND_MS = 1000 };

static int64_t drift(int64_t age_ms) { return age_ms * HF_CLOCK_DRIFT_PPM / 1000000 + 1; }

void hf_dynamo_clock_learn(struct hf_dynamo_clock *c, const struct hf_dynamo_sample *s)
{
    int64_t early = s->date_ms - s->received_ms;
    int64_t late = s->date_ms + SECOND_MS - s->asked_ms;
    int64_t kept_early = c->early_ms - drift(s->received_ms - c->early_at_ms);
    int64_t kept_late = c->late_ms + drift(s->received_ms - c->late_at_ms);
    bool alone = !c->known || early > kept_late || late < kept_early;
    if (alone || early >= kept_early) {
        c->early_ms = early;
        c->early_at_ms = s->received_ms;
    }
    if (alone || late <= kept_late) {
        c->late_ms = late;
        c->late_at_ms = s->received_ms;
    }
    c->known = true;
    c->learnt_at_ms = s->received_ms;
}

bool hf_dynamo_clock_read(const struct hf_dynamo_clock *c, int64_t boot_ms, int64_t *ret_early_ms,
                          int64_t *ret_late_ms)
{
    if (!c->known)
        return false;
    *ret_early_ms = boot_ms + c->early_ms - drift(boot_ms - c->early_at_ms);
    *ret_late_ms = boot_ms + c->late_ms + drift(boot_ms - c->late_at_ms);
    return true;
}

int64_t hf_dynamo_parse_date(const char *text)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char month[4], zone[4];
    int day, year, hour, minute, second;
    if (sscanf(text, " %*3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d %3s", &day, month, &year, &hour,
               &minute, &second, zone) != 7 ||
        strcmp(zone, "GMT") != 0)
        return 0;
    const char *found = strlen(month) == 3 ? strstr(months, month) : NULL;
    if (!found || (found - months) % 3 || day < 1 || day > 31 || year < 1970 || hour < 0 ||
        hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
        return 0;
    struct hf_date date = {.year = year, .month = (int)(found - months) / 3 + 1, .day = day};
    return (hf_days_of(date) * 86400 + hour * 3600 + minute * 60 + second) * 1000;
}

void hf_dynamo_format_stamp(int64_t at_ms, char ret[HF_DYNAMO_STAMP_LEN + 1])
{
    int64_t seconds = hf_floor_div(at_ms, 1000), days = hf_floor_div(seconds, 86400);
    int of_day = (int)(seconds - days * 86400);
    struct hf_date date = hf_date_of(days);
    char text[64];
    snprintf(text, sizeof text, "%04d%02d%02dT%02d%02d%02dZ", (int)date.year, date.month, date.day,
             of_day / 3600, of_day / 60 % 60, of_day % 60);
    snprintf(ret, HF_DYNAMO_STAMP_LEN + 1, "%.*s", HF_DYNAMO_STAMP_LEN, text);
}
