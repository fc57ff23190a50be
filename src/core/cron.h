/*
 * When recurring work is due, as a crontab says it: "0 9 * * MON-FRI". Pure; the zone is the caller's.
 *
 *     hf_cron_parse("0 9 * * MON-FRI", &cron, &err)
 *     hf_cron_next(&cron, zone, after_ms)      the next slot
 *
 * A slot is an instant at which the clocks of the zone show a time that matches. Where they are
 * changed:
 *  - put forward: the times that they leave out have one slot together, right after the change; but
 *    where the hour has a * or a step in it they have none
 *  - put back: of the times that they show twice, only the first counts; but a schedule that goes by
 *    intervals (its minute or hour has a * or a step in it) goes on through both
 */
#ifndef HF_CORE_CRON_H
#define HF_CORE_CRON_H

#include "zone.h"

/* Bit n is set where the value n matches. */
struct hf_cron {
    uint64_t minutes;
    uint32_t hours, days, months, weekdays;
    bool either_day;   /* day and weekday are both given: one of them is enough */
    bool by_intervals; /* it goes by intervals, and not at certain times */
    bool at_hours;     /* it goes at certain hours: one that is left out is made up for */
};

/* Five fields or @hourly, @daily, @weekly, @monthly, @yearly; errors say what was expected. */
int hf_cron_parse(const char *text, struct hf_cron *ret, struct hf_error *err);

/* The first slot after this instant, both in ms since 1970; INT64_MAX: there is none. */
int64_t hf_cron_next(const struct hf_cron *cron, const struct hf_zone *zone, int64_t after_ms);

/* Does a minute that clocks show as this, in seconds since 1970 of their own, match? */
bool hf_cron_matches(const struct hf_cron *cron, int64_t shown_s);

#endif
