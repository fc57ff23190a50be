/*
 * A file has the changes of the past, and a rule for those that come after its last one. The rule is
 * written out for as long as the calendar takes to repeat; what is later is looked up where it
 * repeats.
 */
#include "zone.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "calendar.h"
#include "error.h"

enum {
    CHANGES_MAX = 4096,
    RULE_MAX = 100,
    ERA_YEARS = 400,
    WRITTEN_YEARS = ERA_YEARS + 2, /* a whole era, with a year to spare on either side */
    HEADER_BYTES = 44,
    TYPE_BYTES = 6
};
static const int64_t day_s = 86400, era_s = 146097 * INT64_C(86400);
static const int64_t latest_s = INT64_C(253402300800); /* the year 10000 */

struct change {
    int64_t at_s;
    int32_t offset_s; /* from then on */
};

struct hf_zone {
    int32_t first_s; /* the offset before all changes */
    bool repeats;    /* what is after the last change is as it was an era before */
    size_t n;
    struct change changes[];
};

static struct hf_zone *make(size_t max)
{
    return calloc(1, sizeof(struct hf_zone) + max * sizeof(struct change));
}

struct hf_zone *hf_zone_utc(void) { return make(0); }

static int32_t last_offset(const struct hf_zone *zone)
{
    return zone->n ? zone->changes[zone->n - 1].offset_s : zone->first_s;
}

/* In order. What changes only the name of the time is none, and of two at once the second counts. */
static void add(struct hf_zone *zone, int64_t at_s, int32_t offset_s)
{
    if (zone->n && zone->changes[zone->n - 1].at_s == at_s)
        zone->n--;
    if (offset_s != last_offset(zone))
        zone->changes[zone->n++] = (struct change){at_s, offset_s};
}

/* ---- looking -------------------------------------------------------------------------------- */

struct hf_zone_span hf_zone_at(const struct hf_zone *zone, int64_t at_s)
{
    int64_t shift_s = 0;
    int64_t end_s = zone->n ? zone->changes[zone->n - 1].at_s : 0;
    if (zone->repeats && at_s >= end_s)
        shift_s = ((at_s - end_s) / era_s + 1) * era_s;
    size_t low = 0, high = zone->n; /* how many changes have happened by then */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (zone->changes[middle].at_s <= at_s - shift_s)
            low = middle + 1;
        else
            high = middle;
    }
    const struct change *c = zone->changes;
    return (struct hf_zone_span){
        .since_s = low ? c[low - 1].at_s + shift_s : INT64_MIN,
        .until_s = low < zone->n ? c[low].at_s + shift_s : INT64_MAX,
        .offset_s = low ? c[low - 1].offset_s : zone->first_s,
        .before_s = low > 1 ? c[low - 2].offset_s : zone->first_s,
    };
}

/* ---- the rule: POSIX's TZ, as "CET-1CEST,M3.5.0,M10.5.0/3" ---------------------------------- */

struct moment {
    char kind; /* M: month.week.weekday; J: a day from 1 that is never 29 February; D: one from 0 */
    int month, week, day;
    int32_t time_s;
};

struct rule {
    int32_t standard_s, summer_s;
    bool has_summer;
    struct moment begins, ends;
};

static bool take(const char **s, char c)
{
    if (**s != c)
        return false;
    (*s)++;
    return true;
}

static bool take_number(const char **s, int least, int most, int *ret)
{
    int value = 0, digits = 0;
    for (; isdigit((unsigned char)**s) && digits < 4; (*s)++, digits++)
        value = 10 * value + (**s - '0');
    *ret = value;
    return digits && value >= least && value <= most;
}

static bool take_name(const char **s)
{
    bool quoted = take(s, '<');
    size_t n = 0;
    for (; isalpha((unsigned char)**s) || (quoted && **s && strchr("+-0123456789", **s)); (*s)++)
        n++;
    return n >= 3 && (!quoted || take(s, '>'));
}

/* [+-]hh[:mm[:ss]] */
static bool take_time(const char **s, int most_hours, int32_t *ret_s)
{
    int sign = take(s, '-') ? -1 : (take(s, '+'), 1), hours, minutes = 0, seconds = 0;
    if (!take_number(s, 0, most_hours, &hours) ||
        (take(s, ':') &&
         (!take_number(s, 0, 59, &minutes) || (take(s, ':') && !take_number(s, 0, 59, &seconds)))))
        return false;
    *ret_s = sign * (hours * 3600 + minutes * 60 + seconds);
    return true;
}

static bool take_moment(const char **s, struct moment *ret)
{
    *ret = (struct moment){.kind = 'D', .time_s = 7200};
    bool ok = take(s, ',');
    if (ok && take(s, 'M')) {
        ret->kind = 'M';
        ok = take_number(s, 1, 12, &ret->month) && take(s, '.') &&
             take_number(s, 1, 5, &ret->week) && take(s, '.') && take_number(s, 0, 6, &ret->day);
    } else if (ok && take(s, 'J')) {
        ret->kind = 'J';
        ok = take_number(s, 1, 365, &ret->day);
    } else
        ok = ok && take_number(s, 0, 365, &ret->day);
    return ok && (!take(s, '/') || take_time(s, 167, &ret->time_s));
}

static bool read_rule(const char *s, struct rule *ret)
{
    *ret = (struct rule){0};
    if (!take_name(&s) || !take_time(&s, 24, &ret->standard_s))
        return false;
    ret->standard_s = -ret->standard_s; /* POSIX counts westwards */
    if (!*s)
        return true;
    ret->has_summer = true;
    ret->summer_s = ret->standard_s + 3600;
    if (!take_name(&s))
        return false;
    if (*s != ',') {
        if (!take_time(&s, 24, &ret->summer_s))
            return false;
        ret->summer_s = -ret->summer_s;
    }
    return take_moment(&s, &ret->begins) && take_moment(&s, &ret->ends) && !*s;
}

/* When it is in this year, as clocks show it that are `offset_s` ahead. */
static int64_t moment_at(const struct moment *m, int64_t year, int32_t offset_s)
{
    int64_t day = hf_days_of((struct hf_date){year, m->kind == 'M' ? m->month : 1, 1});
    if (m->kind == 'M') {
        int first = (m->day - hf_weekday_of(day) + 7) % 7 + 7 * (m->week - 1);
        day += first < hf_days_in_month(year, m->month) ? first : first - 7;
    } else if (m->kind == 'J')
        day += m->day - 1 + (m->day >= 60 && hf_days_in_month(year, 2) == 29);
    else
        day += m->day;
    return day * day_s + m->time_s - offset_s;
}

static void write_out(struct hf_zone *zone, const struct rule *rule)
{
    int64_t last_s = zone->n ? zone->changes[zone->n - 1].at_s : -1;
    int64_t first_year = hf_date_of(hf_floor_div(last_s > 0 ? last_s : 0, day_s)).year;
    for (int64_t year = first_year; year < first_year + WRITTEN_YEARS; year++) {
        int64_t begins_s = moment_at(&rule->begins, year, rule->standard_s);
        int64_t ends_s = moment_at(&rule->ends, year, rule->summer_s);
        bool ends_first = ends_s < begins_s;
        if (ends_first && ends_s > last_s)
            add(zone, ends_s, rule->standard_s);
        if (begins_s > last_s)
            add(zone, begins_s, rule->summer_s);
        if (!ends_first && ends_s > last_s)
            add(zone, ends_s, rule->standard_s);
    }
    zone->repeats = true;
}

/* ---- the file ------------------------------------------------------------------------------- */

struct input {
    const uint8_t *at;
    size_t left;
};

/* The next n bytes; NULL where there are fewer. */
static const uint8_t *take_bytes(struct input *in, size_t n)
{
    const uint8_t *at = in->at;
    if (n > in->left)
        return NULL;
    in->at += n;
    in->left -= n;
    return at;
}

static int64_t number_at(const uint8_t *at, size_t size)
{
    uint64_t value = at[0] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = 0; i < size; i++)
        value = value << 8 | at[i];
    return (int64_t)value;
}

struct header {
    int version;
    int64_t n_utc, n_standard, n_leaps, n_times, n_types, n_letters;
};

static bool take_header(struct input *in, struct header *ret)
{
    const uint8_t *at = take_bytes(in, HEADER_BYTES);
    if (!at || memcmp(at, "TZif", 4) != 0)
        return false;
    int64_t *const counts[] = {&ret->n_utc,   &ret->n_standard, &ret->n_leaps,
                               &ret->n_times, &ret->n_types,    &ret->n_letters};
    ret->version = at[4];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        *counts[i] = number_at(at + 20 + 4 * i, 4);
        if (*counts[i] < 0 || *counts[i] > CHANGES_MAX)
            return false;
    }
    return ret->n_types > 0 && ret->n_types <= 256;
}

/* The changes of a block whose times have so many bytes; the zone has room for them. */
static bool take_block(struct input *in, const struct header *h, size_t size, struct hf_zone *zone)
{
    const uint8_t *times = take_bytes(in, (size_t)h->n_times * size);
    const uint8_t *types = take_bytes(in, (size_t)h->n_times);
    const uint8_t *offsets = take_bytes(in, (size_t)h->n_types * TYPE_BYTES);
    if (!times || !types || !offsets ||
        !take_bytes(in, (size_t)(h->n_letters + h->n_leaps * (int64_t)(size + 4) + h->n_standard +
                                 h->n_utc)))
        return false;
    if (!zone)
        return true;
    zone->first_s = (int32_t)number_at(offsets, 4);
    for (int64_t i = 0; i < h->n_times; i++) {
        int64_t at_s = number_at(times + (size_t)i * size, size);
        bool in_order = i == 0 || at_s > number_at(times + (size_t)(i - 1) * size, size);
        if (types[i] >= h->n_types || !in_order || at_s > latest_s)
            return false;
        add(zone, at_s, (int32_t)number_at(offsets + types[i] * TYPE_BYTES, 4));
    }
    return true;
}

/* "\n" RULE "\n"; an empty rule: nothing changes any more. */
static bool take_rule(struct input *in, struct hf_zone *zone)
{
    char text[RULE_MAX];
    struct rule rule;
    const uint8_t *end = in->left ? memchr(in->at + 1, '\n', in->left - 1) : NULL;
    size_t n = end ? (size_t)(end - in->at) - 1 : sizeof text;
    if (n >= sizeof text || *in->at != '\n')
        return false;
    memcpy(text, in->at + 1, n);
    text[n] = '\0';
    if (n && !read_rule(text, &rule))
        return false;
    if (n && rule.has_summer)
        write_out(zone, &rule);
    return true;
}

int hf_zone_parse(const void *bytes, size_t n, struct hf_zone **ret, struct hf_error *err)
{
    struct input in = {bytes, n};
    struct header h;
    bool ok = take_header(&in, &h);
    /* First all times in 32 bits, for old readers; then the same in 64. */
    bool wide = ok && h.version >= '2';
    if (wide)
        ok = take_block(&in, &h, 4, NULL) && take_header(&in, &h);
    if (ok && h.n_leaps)
        return hf_fail(err, HF_INVALID, "it counts leap seconds, which clocks here do not");
    struct hf_zone *zone = ok ? make((size_t)h.n_times + 2 * WRITTEN_YEARS) : NULL;
    if (ok && !zone)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (!ok || !take_block(&in, &h, wide ? 8 : 4, zone) || (wide && !take_rule(&in, zone))) {
        free(zone);
        return hf_fail(err, HF_INVALID, "it is not a TZif file, or damaged");
    }
    *ret = zone;
    return 0;
}
