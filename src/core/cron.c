#include "cron.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "calendar.h"
#include "error.h"

enum {
    TEXT_MAX = 1000,
    N_FIELDS = 5,
    HORIZON_YEARS = 60 /* 29 February on a certain weekday may be 40 years away */
};
static const int64_t minute_s = 60, hour_s = 3600, day_s = 86400;

/* ---- the table of fields -------------------------------------------------------------------- */

struct field {
    const char *name;
    int least, most;
    const char *const *words; /* what may stand for a number, from `least` on; NULL: nothing */
    const char *example;
};

static const char *const month_words[] = {"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL",
                                          "AUG", "SEP", "OCT", "NOV", "DEC", NULL};
static const char *const day_words[] = {"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", NULL};

static const struct field fields[N_FIELDS] = {
    {"minute", 0, 59, NULL, "*, 30, 0-29, */5 or 0,15,30"},
    {"hour", 0, 23, NULL, "*, 9, 9-17, */2 or 6,18"},
    {"day of the month", 1, 31, NULL, "*, 1, 1-7, */2 or 1,15"},
    {"month", 1, 12, month_words, "*, 1, JAN, MAR-OCT, */3 or 1,7"},
    {"day of the week", 0, 7, day_words, "*, 0 (Sunday), MON, MON-FRI or 6,7"},
};

static const struct {
    const char *name, *fields;
} nicknames[] = {
    {"@hourly", "0 * * * *"},   {"@daily", "0 0 * * *"},   {"@midnight", "0 0 * * *"},
    {"@weekly", "0 0 * * 0"},   {"@monthly", "0 0 1 * *"}, {"@yearly", "0 0 1 1 *"},
    {"@annually", "0 0 1 1 *"},
};

/* ---- reading a field ------------------------------------------------------------------------ */

/* What has been found of a field. */
struct found {
    uint64_t bits;
    bool from_star; /* it begins with a * */
    bool stepped;   /* it has a * or a step in it */
};

static int bad_field(const struct field *f, const char *text, struct hf_error *err)
{
    return hf_fail(err, HF_INVALID, "the %s '%.40s' is not understood; expected %d-%d as in %s",
                   f->name, text, f->least, f->most, f->example);
}

/* A number within the field's bounds or one of its words; moves *s on. */
static bool take_value(const char **s, const struct field *f, int *ret)
{
    for (int i = 0; f->words && f->words[i]; i++)
        if (strncasecmp(*s, f->words[i], 3) == 0) {
            *s += 3;
            *ret = f->least + i;
            return true;
        }
    int value = 0, digits = 0;
    for (; isdigit((unsigned char)**s) && digits < 4; (*s)++, digits++)
        value = 10 * value + (**s - '0');
    *ret = value;
    return digits && value >= f->least && value <= f->most;
}

static bool take(const char **s, char c)
{
    if (**s != c)
        return false;
    (*s)++;
    return true;
}

/* The step of "*" or of a range; it may be as long as the field, which leaves the first value. */
static bool take_step(const char **s, const struct field *f, int *ret)
{
    int value = 0, digits = 0;
    for (; isdigit((unsigned char)**s) && digits < 4; (*s)++, digits++)
        value = 10 * value + (**s - '0');
    *ret = value;
    return value >= 1 && value <= f->most - f->least + 1;
}

/* One of a list: *, V, V-V, each of * and V-V with a /STEP. */
static bool take_item(const char **s, const struct field *f, struct found *found)
{
    int from = f->least, to = f->most, step = 1;
    bool star = take(s, '*'), range = star;
    if (f->words == day_words && star)
        to = 6; /* 7 is Sunday too, and would break the step */
    if (!star) {
        if (!take_value(s, f, &from))
            return false;
        to = from;
        if ((range = take(s, '-')) && !take_value(s, f, &to))
            return false;
        if (f->words == day_words && to == 0 && from > 0)
            to = 7; /* FRI-SUN */
    }
    bool stepped = take(s, '/');
    if (from < 0 || from > to || (stepped && (!range || !take_step(s, f, &step))))
        return false;
    for (int value = from; value <= to; value += step)
        found->bits |= UINT64_C(1) << value;
    found->stepped |= star || stepped;
    return true;
}

static int read_field(const struct field *f, const char *text, struct found *ret,
                      struct hf_error *err)
{
    const char *s = text;
    *ret = (struct found){.from_star = *text == '*'};
    do
        if (!take_item(&s, f, ret))
            return bad_field(f, text, err);
    while (take(&s, ','));
    return *s ? bad_field(f, text, err) : 0;
}

/* ---- reading a schedule --------------------------------------------------------------------- */

static bool any_date_matches(const struct hf_cron *cron)
{
    if (cron->either_day)
        return true;
    for (int month = 1; month <= 12; month++)
        for (int day = 1; day <= hf_days_in_month(2000, month); day++)
            if (cron->months >> month & 1 && cron->days >> day & 1)
                return true;
    return false;
}

static int put_together(const struct found found[N_FIELDS], const char *text, struct hf_cron *ret,
                        struct hf_error *err)
{
    struct hf_cron cron = {
        .minutes = found[0].bits,
        .hours = (uint32_t)found[1].bits,
        .days = (uint32_t)found[2].bits,
        .months = (uint32_t)found[3].bits,
        .weekdays = (uint32_t)((found[4].bits | found[4].bits >> 7) & 0x7f),
        /* As crontab(5): a field that begins with * does not count as given. */
        .either_day = !found[2].from_star && !found[4].from_star,
        .by_intervals = found[0].stepped || found[1].stepped,
        .at_hours = !found[1].stepped,
    };
    if (!any_date_matches(&cron))
        return hf_fail(err, HF_INVALID, "'%.80s' never comes: no such month has such a day", text);
    *ret = cron;
    return 0;
}

static int expand_nickname(const char *text, const char **ret, struct hf_error *err)
{
    for (size_t i = 0; i < sizeof nicknames / sizeof *nicknames; i++)
        if (strcasecmp(text, nicknames[i].name) == 0) {
            *ret = nicknames[i].fields;
            return 0;
        }
    return hf_fail(err, HF_INVALID,
                   "'%.40s' is not known; expected @hourly, @daily, @weekly, @monthly, @yearly or "
                   "five fields",
                   text);
}

int hf_cron_parse(const char *text, struct hf_cron *ret, struct hf_error *err)
{
    char copy[TEXT_MAX], *rest = copy, *word;
    struct found found[N_FIELDS];
    const char *whole = text;
    int r, n = 0;
    if (*text == '@' && (r = expand_nickname(text, &text, err)) < 0)
        return r;
    if (strlen(text) >= sizeof copy)
        return hf_fail(err, HF_INVALID, "a schedule has at most %d characters", TEXT_MAX - 1);
    strcpy(copy, text);
    while ((word = strsep(&rest, " \t"))) {
        if (!*word)
            continue;
        if (n < N_FIELDS && (r = read_field(&fields[n], word, &found[n], err)) < 0)
            return r;
        n++;
    }
    if (n != N_FIELDS)
        return hf_fail(err, HF_INVALID,
                       "'%.80s' has %d fields; expected five: minute, hour, day of the month, "
                       "month, day of the week",
                       whole, n);
    return put_together(found, whole, ret, err);
}

/* ---- what clocks show ----------------------------------------------------------------------- */

static bool day_matches(const struct hf_cron *cron, int64_t day, const struct hf_date *date)
{
    bool by_date = cron->days >> date->day & 1;
    bool by_weekday = cron->weekdays >> hf_weekday_of(day) & 1;
    return cron->months >> date->month & 1 &&
           (cron->either_day ? by_date || by_weekday : by_date && by_weekday);
}

bool hf_cron_matches(const struct hf_cron *cron, int64_t shown_s)
{
    int64_t day = hf_floor_div(shown_s, day_s), of_day_s = shown_s - day * day_s;
    struct hf_date date = hf_date_of(day);
    return cron->minutes >> (of_day_s % hour_s / minute_s) & 1 &&
           cron->hours >> (of_day_s / hour_s) & 1 && day_matches(cron, day, &date);
}

/* The first day from this one on that matches; INT64_MAX: none for a long time. */
static int64_t next_day(const struct hf_cron *cron, int64_t day)
{
    struct hf_date date = hf_date_of(day);
    int64_t last_year = date.year + HORIZON_YEARS;
    while (date.year <= last_year) {
        if (day_matches(cron, day, &date))
            return day;
        bool month_is_over = date.day == hf_days_in_month(date.year, date.month);
        if (cron->months >> date.month & 1 && !month_is_over) {
            date.day++;
            day++;
        } else {
            date = (struct hf_date){date.year + date.month / 12, date.month % 12 + 1, 1};
            day = hf_days_of(date);
        }
    }
    return INT64_MAX;
}

/* The first minute of the day from `of_day_s` on that matches; -1: none. */
static int64_t next_in_day(const struct hf_cron *cron, int64_t of_day_s)
{
    for (int64_t at_s = of_day_s; at_s < day_s;) {
        if (!(cron->hours >> (at_s / hour_s) & 1))
            at_s = (at_s / hour_s + 1) * hour_s;
        else if (cron->minutes >> (at_s % hour_s / minute_s) & 1)
            return at_s;
        else
            at_s += minute_s;
    }
    return -1;
}

/* The first minute that clocks show from `shown_s` on and that matches. */
static int64_t next_shown(const struct hf_cron *cron, int64_t shown_s)
{
    int64_t from_s = hf_floor_div(shown_s + minute_s - 1, minute_s) * minute_s;
    int64_t today = hf_floor_div(from_s, day_s), day = next_day(cron, today);
    if (day == today) {
        int64_t at_s = next_in_day(cron, from_s - day * day_s);
        if (at_s >= 0)
            return day * day_s + at_s;
        day = next_day(cron, today + 1);
    }
    return day == INT64_MAX ? INT64_MAX : day * day_s + next_in_day(cron, 0);
}

/* ---- slots ---------------------------------------------------------------------------------- */

/* The clocks were put forward when this span began: was a time left out that matches? */
static bool left_out(const struct hf_cron *cron, const struct hf_zone_span *span)
{
    if (span->since_s == INT64_MIN || span->offset_s <= span->before_s)
        return false;
    return next_shown(cron, span->since_s + span->before_s) < span->since_s + span->offset_s;
}

/* The first slot from `from_s` on in this span, or INT64_MAX. */
static int64_t next_in_span(const struct hf_cron *cron, const struct hf_zone_span *span,
                            int64_t from_s)
{
    if (cron->at_hours && from_s == span->since_s && left_out(cron, span))
        return from_s;
    int64_t shown_s = from_s + span->offset_s;
    if (!cron->by_intervals && span->since_s != INT64_MIN) {
        int64_t shown_before_s = span->since_s + span->before_s; /* what is earlier was shown */
        shown_s = shown_s > shown_before_s ? shown_s : shown_before_s;
    }
    int64_t next_s = next_shown(cron, shown_s);
    if (next_s == INT64_MAX || next_s - span->offset_s >= span->until_s)
        return INT64_MAX;
    return next_s - span->offset_s;
}

int64_t hf_cron_next(const struct hf_cron *cron, const struct hf_zone *zone, int64_t after_ms)
{
    int64_t from_s = hf_floor_div(after_ms, 1000) + 1;
    int64_t until_s = from_s + HORIZON_YEARS * 366 * day_s;
    while (from_s < until_s) {
        struct hf_zone_span span = hf_zone_at(zone, from_s);
        int64_t slot_s = next_in_span(cron, &span, from_s);
        if (slot_s != INT64_MAX)
            return slot_s * 1000;
        from_s = span.until_s;
    }
    return INT64_MAX;
}
