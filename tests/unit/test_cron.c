/* Schedules and time zones: what is understood, what is refused, and when slots are. */
#include "cron.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "calendar.h"
#include "check.h"
#include "seed.h"
#include "text.h"
#include "zones.h"

#define ZONES "/usr/share/zoneinfo"

static struct hf_error err;

static struct hf_zone *zone_of(const char *name)
{
    struct hf_zone *zone = NULL;
    if (hf_zone_load(name, &zone, &err) < 0)
        fail_msg("%s", err.message);
    return zone;
}

static struct hf_cron cron_of(const char *text)
{
    struct hf_cron cron = {0};
    if (hf_cron_parse(text, &cron, &err) < 0)
        fail_msg("%s", err.message);
    return cron;
}

static int64_t at(const char *text)
{
    int64_t ms;
    if (hf_parse_time(text, &ms, &err) < 0)
        fail_msg("%s", err.message);
    return ms;
}

/* ---- the calendar --------------------------------------------------------------------------- */

static void days_are_those_of_the_c_library(void **state)
{
    for (int64_t day = -200000; day < 400000; day += 13) {
        time_t seconds = day * 86400;
        struct tm tm;
        gmtime_r(&seconds, &tm);
        struct hf_date date = hf_date_of(day);
        assert_ms(date.year, tm.tm_year + 1900);
        assert_int_equal(date.month, tm.tm_mon + 1);
        assert_int_equal(date.day, tm.tm_mday);
        assert_int_equal(hf_weekday_of(day), tm.tm_wday);
        assert_ms(hf_days_of(date), day);
    }
}

/* ---- what is understood --------------------------------------------------------------------- */

static void schedules_that_are_bad_say_what_was_expected(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "has 0 fields; expected five"},
        {"* * * *", "has 4 fields"},
        {"* * * * * *", "has 6 fields"},
        {"60 * * * *", "the minute '60' is not understood; expected 0-59"},
        {"-1 * * * *", "the minute '-1'"},
        {"* 24 * * *", "the hour '24' is not understood; expected 0-23"},
        {"* * 0 * *", "the day of the month '0'"},
        {"* * 32 * *", "the day of the month '32'"},
        {"* * * 13 *", "the month '13'"},
        {"* * * JANUARY *", "the month 'JANUARY'"},
        {"* * * * 8", "the day of the week '8'"},
        {"* * * * MO", "the day of the week 'MO'"},
        {"*/0 * * * *", "the minute '*/0'"},
        {"*/61 * * * *", "the minute '*/61'"},
        {"*/ * * * *", "the minute '*/'"},
        {"5/10 * * * *", "the minute '5/10'"},
        {"10-5 * * * *", "the minute '10-5'"},
        {"1,,2 * * * *", "the minute '1,,2'"},
        {"1, * * * *", "the minute '1,'"},
        {"1- * * * *", "the minute '1-'"},
        {"*5 * * * *", "the minute '*5'"},
        {"00000 * * * *", "the minute '00000'"},
        {"a * * * *", "the minute 'a'"},
        {"MON * * * *", "the minute 'MON'"},
        {"0 0 30 2 *", "never comes"},
        {"0 0 31 4,6,9,11 *", "never comes"},
        {"@reboot", "expected @hourly, @daily"},
        {"@daily 5", "expected @hourly, @daily"},
        {"0 0 * * *\n", "the day of the week '*\n'"},
    };
    struct hf_cron cron;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hf_cron_parse(bad[i].text, &cron, &err), -HF_INVALID);
        if (!strstr(err.message, bad[i].says))
            fail_msg("'%s': %s", bad[i].text, err.message);
    }
    char longest[3000];
    memset(longest, '1', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(hf_cron_parse(longest, &cron, &err), -HF_INVALID);
}

static void two_ways_to_say_the_same(void **state)
{
    static const char *const pairs[][2] = {
        {"@hourly", "0 * * * *"},           {"@daily", "0 0 * * *"},
        {"@midnight", "0 0 * * *"},         {"@weekly", "0 0 * * SUN"},
        {"@monthly", "0 0 1 * *"},          {"@yearly", "0 0 1 JAN *"},
        {"@ANNUALLY", "0 0 1 1 *"},         {"* * * * 0", "* * * * 7"},
        {"* * * * 5-7", "* * * * FRI-SUN"}, {"* * * * 0,6,7", "* * * * sat,sun"},
        {"* * * * 0-7", "* * * * 0-6"},     {"1-10/3 * * * *", "1-9/3,10 * * * *"},
        {"  0\t0   1 1  *  ", "0 0 1 1 *"}, {"0 0 1 mar-may/2 *", "0 0 1 3,5 *"},
        {"007 * * * *", "7 * * * *"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct hf_cron a, b;
        bool both =
            hf_cron_parse(pairs[i][0], &a, &err) == 0 && hf_cron_parse(pairs[i][1], &b, &err) == 0;
        assert_true(both);
        assert_true(a.minutes == b.minutes && a.hours == b.hours && a.days == b.days);
        assert_true(a.months == b.months && a.weekdays == b.weekdays);
        assert_int_equal(a.either_day, b.either_day);
    }
}

/* ---- slots ---------------------------------------------------------------------------------- */

/* From an instant on: the slots that follow, then NULL. */
static const struct {
    const char *zone, *schedule, *after;
    const char *slots[6];
} table[] = {
    {"UTC",
     "*/5 * * * *",
     "2026-11-16T02:57:23Z",
     {"2026-11-16T03:00:00Z", "2026-11-16T03:05:00Z"}},
    {"UTC", "*/5 * * * *", "2026-11-16T03:00:00Z", {"2026-11-16T03:05:00Z"}},
    {"UTC", "*/5 * * * *", "2026-11-16T02:59:59.999Z", {"2026-11-16T03:00:00Z"}},
    {"UTC", "0 0 29 2 *", "2026-01-01T00:00:00Z", {"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
    {"UTC", "0 0 29 2 *", "2096-03-01T00:00:00Z", {"2104-02-29T00:00:00Z"}},
    {"UTC", "0 0 29 2 */7", "2028-03-01T00:00:00Z", {"2032-02-29T00:00:00Z"}},
    {"UTC", "59 23 31 12 *", "2026-12-31T23:59:00Z", {"2027-12-31T23:59:00Z"}},
    {"UTC",
     "0 12 13 * FRI",
     "2026-11-11T00:00:00Z", /* either is enough */
     {"2026-11-13T12:00:00Z", "2026-11-20T12:00:00Z", "2026-11-27T12:00:00Z",
      "2026-12-04T12:00:00Z", "2026-12-11T12:00:00Z", "2026-12-13T12:00:00Z"}},
    {"UTC", "0 12 */13 * FRI", "2026-11-11T00:00:00Z", {"2026-11-27T12:00:00Z"}}, /* both */
    {"UTC", "0 12 * * 7", "2026-11-16T00:00:00Z", {"2026-11-22T12:00:00Z"}},
    {"Asia/Kathmandu",
     "0 6 * * *",
     "2026-11-16T00:00:00Z",
     {"2026-11-16T00:15:00Z", "2026-11-17T00:15:00Z"}},
    {"Asia/Kathmandu",
     "*/30 * * * *",
     "2026-11-16T00:00:00Z",
     {"2026-11-16T00:15:00Z", "2026-11-16T00:45:00Z"}},

    /* Put forward: 02:00 is 03:00. What is left out has its slot right after the change. */
    {"Europe/Oslo",
     "30 2 * * *",
     "2026-03-27T12:00:00Z",
     {"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
    {"Europe/Oslo",
     "0 2,3 * * *",
     "2026-03-28T12:00:00Z",
     {"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T01:00:00Z"}},
    {"Europe/Oslo",
     "*/20 2 * * *",
     "2026-03-28T12:00:00Z",
     {"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:20:00Z"}},
    {"Europe/Oslo",
     "*/20 * * * *",
     "2026-03-29T00:20:00Z",
     {"2026-03-29T00:40:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z"}},
    {"Europe/Oslo",
     "0 */2 * * *",
     "2026-03-28T22:59:00Z",
     {"2026-03-28T23:00:00Z", "2026-03-29T02:00:00Z", "2026-03-29T04:00:00Z"}},
    {"Europe/Oslo",
     "30 * * * *",
     "2026-03-29T00:00:00Z", /* by intervals: nothing is made up for */
     {"2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T02:30:00Z"}},
    {"Europe/Oslo",
     "30 0-6/2 * * *",
     "2026-03-28T23:00:00Z",
     {"2026-03-28T23:30:00Z", "2026-03-29T02:30:00Z", "2026-03-29T04:30:00Z"}},
    {"Europe/Oslo",
     "30 1-3 * * *",
     "2026-03-29T00:00:00Z",
     {"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z",
      "2026-03-29T23:30:00Z"}},
    {"Europe/Oslo", "0 1 29 3 *", "2026-01-01T00:00:00Z", {"2026-03-29T00:00:00Z"}},
    {"America/New_York",
     "30 2 * * *",
     "2026-03-08T00:00:00Z",
     {"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
    {"Australia/Lord_Howe",
     "15 2 * * *",
     "2026-10-03T00:00:00Z",
     {"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
    {"Australia/Lord_Howe",
     "*/15 * * * *",
     "2026-10-03T15:00:00Z",
     {"2026-10-03T15:15:00Z", "2026-10-03T15:30:00Z", "2026-10-03T15:45:00Z"}},
    {"Pacific/Apia",
     "0 12 * * *",
     "2011-12-29T12:00:00Z", /* a day was left out */
     {"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},

    /* Put back: 03:00 is 02:00 again. At a certain hour once, by intervals through both. */
    {"Europe/Oslo",
     "30 2 * * *",
     "2026-10-24T12:00:00Z",
     {"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
    {"Europe/Oslo", "30 2 * * *", "2026-10-25T00:30:00Z", {"2026-10-26T01:30:00Z"}},
    {"Europe/Oslo", "30 2 * * *", "2026-10-25T01:10:00Z", {"2026-10-26T01:30:00Z"}},
    {"Europe/Oslo",
     "0 3 * * *",
     "2026-10-24T12:00:00Z",
     {"2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"}},
    {"Europe/Oslo",
     "0,30 2 * * *",
     "2026-10-24T12:00:00Z",
     {"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:00:00Z"}},
    {"Europe/Oslo",
     "30 * * * *",
     "2026-10-24T23:00:00Z",
     {"2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z",
      "2026-10-25T02:30:00Z"}},
    {"Europe/Oslo",
     "*/30 2 * * *",
     "2026-10-24T12:00:00Z",
     {"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z",
      "2026-10-25T01:30:00Z", "2026-10-26T01:00:00Z"}},
    {"America/New_York",
     "30 1 * * *",
     "2026-11-01T00:00:00Z",
     {"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
    {"America/New_York",
     "*/30 1 * * *",
     "2026-11-01T00:00:00Z",
     {"2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-01T06:00:00Z",
      "2026-11-01T06:30:00Z", "2026-11-02T06:00:00Z"}},
    {"Australia/Lord_Howe",
     "45 1 * * *",
     "2026-04-04T00:00:00Z",
     {"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
    {"Australia/Lord_Howe",
     "15,45 1 * * *",
     "2026-04-04T00:00:00Z",
     {"2026-04-04T14:15:00Z", "2026-04-04T14:45:00Z", "2026-04-05T14:45:00Z"}},
    {"Australia/Lord_Howe",
     "*/15 * * * *",
     "2026-04-04T14:30:00Z",
     {"2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:15:00Z",
      "2026-04-04T15:30:00Z"}},
    {"Africa/Casablanca",
     "30 2 * * *",
     "2026-02-14T12:00:00Z", /* Ramadan's change, from the file */
     {"2026-02-15T01:30:00Z", "2026-02-16T02:30:00Z"}},
    {"Europe/Dublin",
     "30 1 * * *",
     "2026-10-24T12:00:00Z", /* winter is the exception there */
     {"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},

    /* By the rule behind the file's last change, and where the calendar has repeated. */
    {"Europe/Oslo",
     "30 2 * * *",
     "2400-03-25T12:00:00Z",
     {"2400-03-26T01:00:00Z", "2400-03-27T00:30:00Z"}},
    {"Europe/Oslo",
     "30 2 * * *",
     "4000-03-25T12:00:00Z",
     {"4000-03-26T01:00:00Z", "4000-03-27T00:30:00Z"}},
};

static void slots_are_where_the_table_has_them(void **state)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct hf_zone *zone = zone_of(table[i].zone);
        struct hf_cron cron = cron_of(table[i].schedule);
        int64_t now_ms = at(table[i].after);
        for (size_t j = 0; j < 6 && table[i].slots[j]; j++) {
            char got[HF_TIME_LEN + 1], wanted[HF_TIME_LEN + 1];
            now_ms = hf_cron_next(&cron, zone, now_ms);
            hf_format_time(now_ms, got);
            hf_format_time(at(table[i].slots[j]), wanted);
            if (strcmp(got, wanted) != 0)
                fail_msg("%s in %s after %s, slot %zu: %s, not %s", table[i].schedule,
                         table[i].zone, table[i].after, j, got, wanted);
        }
        free(zone);
    }
}

/* ---- slots against a walk from minute to minute --------------------------------------------- */

/* A schedule made of plain lists, so that matching needs nothing of the parser. */
struct plain {
    bool minutes[60], hours[24], days[32], months[13], weekdays[7];
    bool day_given, weekday_given, by_intervals, at_hours;
    char text[1200];
};

static uint64_t seed = 1;

static unsigned dice(unsigned n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(seed >> 33) % n;
}

/* One field: *, a step, a range or a list. */
static void random_field(struct plain *p, bool *bits, int least, int most, bool *given,
                         bool *stepped)
{
    char word[200] = "";
    unsigned kind = dice(4);
    int from = least + (int)dice((unsigned)(most - least + 1));
    int to = from + (int)dice((unsigned)(most - from + 1)), step = 1 + (int)dice(7);
    *given = kind >= 2;
    *stepped = kind < 2 || (kind == 2 && step > 1);
    if (kind < 2) {
        from = least;
        to = most;
        if (kind == 0)
            step = 1;
        snprintf(word, sizeof word, step == 1 ? "*" : "*/%d", step);
    } else if (kind == 2)
        snprintf(word, sizeof word, step == 1 ? "%d-%d" : "%d-%d/%d", from, to, step);
    for (int i = from; kind < 3 && i <= to; i += step)
        bits[i] = true;
    for (unsigned i = 0, n = 1 + dice(5); kind == 3 && i < n; i++) {
        int value = least + (int)dice((unsigned)(most - least + 1));
        bits[value] = true;
        snprintf(word + strlen(word), sizeof word - strlen(word), "%s%d", i ? "," : "", value);
    }
    snprintf(p->text + strlen(p->text), sizeof p->text - strlen(p->text), "%s ", word);
}

static struct plain random_schedule(void)
{
    struct plain p = {0};
    bool ignored, minute_stepped, hour_stepped;
    random_field(&p, p.minutes, 0, 59, &ignored, &minute_stepped);
    random_field(&p, p.hours, 0, 23, &ignored, &hour_stepped);
    random_field(&p, p.days, 1, 31, &p.day_given, &ignored);
    random_field(&p, p.months, 1, 12, &ignored, &ignored);
    random_field(&p, p.weekdays, 0, 6, &p.weekday_given, &ignored);
    p.by_intervals = minute_stepped || hour_stepped;
    p.at_hours = !hour_stepped;
    return p;
}

static bool plain_matches(const struct plain *p, int64_t shown_s)
{
    time_t seconds = shown_s;
    struct tm tm;
    gmtime_r(&seconds, &tm);
    bool day = p->days[tm.tm_mday], weekday = p->weekdays[tm.tm_wday];
    bool date = p->day_given && p->weekday_given ? day || weekday : day && weekday;
    return p->minutes[tm.tm_min] && p->hours[tm.tm_hour] && p->months[tm.tm_mon + 1] && date;
}

static int64_t shown(const struct hf_zone *zone, int64_t at_s)
{
    return at_s + hf_zone_at(zone, at_s).offset_s;
}

/* Is this minute a slot? By nothing but what the clocks show now, a minute ago and a day ago. */
static bool is_slot(const struct plain *p, const struct hf_zone *zone, int64_t at_s)
{
    int64_t now_s = shown(zone, at_s), before_s = shown(zone, at_s - 60);
    for (int64_t out_s = before_s + 60; p->at_hours && out_s < now_s; out_s += 60)
        if (plain_matches(p, out_s))
            return true;
    if (!plain_matches(p, now_s))
        return false;
    for (int64_t ago_s = 60; !p->by_intervals && ago_s <= 3 * 3600; ago_s += 60)
        if (shown(zone, at_s - ago_s) == now_s)
            return false;
    return true;
}

static void walk(const struct plain *p, const struct hf_zone *zone, int64_t from_s, int64_t to_s)
{
    struct hf_cron cron = cron_of(p->text);
    int64_t next_ms = hf_cron_next(&cron, zone, from_s * 1000 - 1);
    for (int64_t at_s = from_s; at_s < to_s; at_s += 60) {
        bool wanted = is_slot(p, zone, at_s), got = next_ms == at_s * 1000;
        if (wanted != got)
            fail_msg("'%s' at %lld: slot %d, not %d", p->text, (long long)at_s, got, wanted);
        if (got) {
            int64_t after_ms = next_ms + (int64_t)dice(60000);
            assert_true(hf_cron_next(&cron, zone, after_ms) > next_ms);
            next_ms = hf_cron_next(&cron, zone, next_ms);
        }
    }
    assert_true(next_ms >= to_s * 1000);
}

static void no_slot_is_skipped_and_none_invented(void **state)
{
    static const char *const zones[] = {
        "Europe/Oslo",       "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC",
        "Africa/Casablanca", "Pacific/Apia",     "America/Godthab",     "Europe/Dublin"};
    seed = seed_of_run();
    print_message("# HOLDFAST_SEED=%llu\n", (unsigned long long)seed);
    for (int turn = 0; turn < 600; turn++) {
        struct hf_zone *zone = zone_of(zones[turn % (int)(sizeof zones / sizeof *zones)]);
        struct plain p = random_schedule();
        struct hf_cron cron;
        if (hf_cron_parse(p.text, &cron, &err) < 0) {
            assert_non_null(strstr(err.message, "never comes"));
            free(zone);
            continue;
        }
        /* Around a change of the clocks, where the zone has any. */
        int64_t near_s = at("2011-01-01T00:00:00Z") / 1000 + (int64_t)dice(1000000) * 3600;
        struct hf_zone_span span = hf_zone_at(zone, near_s);
        int64_t middle_s = span.until_s == INT64_MAX ? near_s : span.until_s;
        int64_t from_s = middle_s - middle_s % 60 - 86400;
        walk(&p, zone, from_s, from_s + 2 * 86400);
        free(zone);
    }
}

/* ---- zones ---------------------------------------------------------------------------------- */

/* Each change and the second before it, and instants in between, as the C library has them. */
static void compare_with_libc(const char *name, const struct hf_zone *zone)
{
    char tz[300];
    snprintf(tz, sizeof tz, ":" ZONES "/%s", name);
    setenv("TZ", tz, 1);
    tzset();
    time_t from = (time_t)(at("1971-01-01T00:00:00Z") / 1000);
    time_t to = (time_t)(at("2500-01-01T00:00:00Z") / 1000);
    for (time_t t = from; t < to;) {
        struct hf_zone_span span = hf_zone_at(zone, t);
        const time_t looks[] = {t, span.until_s > to ? to : (time_t)span.until_s - 1};
        for (size_t i = 0; i < 2; i++) {
            struct tm tm;
            localtime_r(&looks[i], &tm);
            if (tm.tm_gmtoff != span.offset_s)
                fail_msg("%s at %lld: %d, not %ld", name, (long long)looks[i], span.offset_s,
                         tm.tm_gmtoff);
        }
        t += 40 * 86400;
        if (span.until_s < t)
            t = (time_t)span.until_s;
    }
}

static int compare_all(const char *prefix)
{
    char path[400];
    struct stat st;
    int n = 0;
    snprintf(path, sizeof path, ZONES "/%s", prefix);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char name[280] = "";
        struct hf_zone *zone = NULL;
        if (strlen(prefix) + strlen(e->d_name) > 200)
            continue;
        strcat(strcpy(name, prefix), e->d_name);
        snprintf(path, sizeof path, ZONES "/%s", name);
        if (strchr(e->d_name, '.') || lstat(path, &st) < 0 || !strcmp(name, "right") ||
            !strcmp(name, "posix") || !strcmp(name, "leapseconds"))
            continue;
        if (S_ISDIR(st.st_mode)) {
            strcat(name, "/");
            n += compare_all(name);
        } else if (S_ISREG(st.st_mode) && hf_zone_load(name, &zone, &err) == 0) {
            compare_with_libc(name, zone);
            n++;
        } else if (S_ISREG(st.st_mode))
            fail_msg("%s", err.message);
        free(zone);
    }
    closedir(dir);
    return n;
}

static void zones_are_those_of_the_c_library(void **state)
{
    assert_true(compare_all("") > 300);
    unsetenv("TZ");
    tzset();
}

static void a_zone_that_there_is_not_is_refused_with_the_nearest(void **state)
{
    static const struct {
        const char *name, *says;
    } bad[] = {
        {"Europe/Olso", "there is no time zone 'Europe/Olso'; did you mean Europe/Oslo?"},
        {"europe/oslo", "did you mean Europe/Oslo?"},
        {"America/NewYork", "did you mean America/New_York?"},
        {"Mars/Olympus_Mons", "expected one of /usr/share/zoneinfo, such as Europe/Oslo"},
        {"", "there is no time zone ''"},
        {"Europe", "there is no time zone 'Europe'"},
        {"Europe/", "there is no time zone"},
        {"../../etc/passwd", "there is no time zone"},
        {"/etc/localtime", "there is no time zone"},
        {"zone.tab", "there is no time zone"},
        {"right/Europe/Oslo", "leap seconds"},
    };
    struct hf_zone *zone;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hf_zone_load(bad[i].name, &zone, &err), -HF_INVALID);
        if (!strstr(err.message, bad[i].says))
            fail_msg("%s", err.message);
    }
    setenv("TZDIR", "/nowhere", 1);
    assert_int_equal(hf_zone_load("Europe/Oslo", &zone, &err), -HF_INVALID);
    assert_non_null(strstr(err.message, "install tzdata, or use UTC"));
    assert_int_equal(hf_zone_load("UTC", &zone, &err), 0);
    free(zone);
    unsetenv("TZDIR");
}

/* A file of this rule and nothing before it. */
static int parse_rule(const char *rule, struct hf_zone **ret)
{
    char bytes[400] = {0}, *to = bytes;
    for (int i = 0; i < 2; i++, to += 44 + 6 + 4) {
        memcpy(to, "TZif2", 5);
        to[39] = 1; /* a type */
        to[43] = 4; /* letters */
    }
    to += sprintf(to, "\n%s\n", rule);
    return hf_zone_parse(bytes, (size_t)(to - bytes), ret, &err);
}

static void rules_of_every_kind(void **state)
{
    static const struct {
        const char *rule, *at;
        int32_t offset_s;
    } cases[] = {
        {"CET-1CEST,M3.5.0,M10.5.0/3", "2026-07-01T00:00:00Z", 7200},
        {"CET-1CEST,M3.5.0,M10.5.0/3", "2026-03-29T00:59:59Z", 3600},
        {"CET-1CEST,M3.5.0,M10.5.0/3", "2026-03-29T01:00:00Z", 7200},
        {"<-02>2<-01>,M3.5.0/-1,M10.5.0/0", "2026-03-29T00:59:59Z", -7200},
        {"<-02>2<-01>,M3.5.0/-1,M10.5.0/0", "2026-03-29T01:00:00Z", -3600},
        {"EST5EDT,J60/0,J300/0", "2028-03-01T05:00:00Z", -4 * 3600}, /* J60: 1 March, always */
        {"EST5EDT,J60/0,J300/0", "2028-03-01T04:59:59Z", -5 * 3600},
        {"EST5EDT,59/0,300/0", "2028-02-29T05:00:00Z", -4 * 3600},
        {"XXX3EDT4,0/0,J365/23", "2028-02-29T05:00:00Z", -4 * 3600}, /* summer for ever */
        {"IST-1GMT0,M10.5.0,M3.5.0/1", "2026-01-01T00:00:00Z", 0},
        {"IST-1GMT0,M10.5.0,M3.5.0/1", "2026-07-01T00:00:00Z", 3600},
        {"AAA-12:45:30BBB-13:45:30,M9.5.0/2:45,M4.1.0/3:45", "2026-01-01T00:00:00Z", 49530},
    };
    struct hf_zone *zone;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse_rule(cases[i].rule, &zone), 0);
        assert_int_equal(hf_zone_at(zone, at(cases[i].at) / 1000).offset_s, cases[i].offset_s);
        free(zone);
    }
    static const char *const bad[] = {"C-1",
                                      "CET",
                                      "CET-1CEST",
                                      "CET-1CEST,M3",
                                      "CET-1CEST,M13.5.0,M10.5.0",
                                      "<+0-1",
                                      "CET-25",
                                      "CET-1CEST,M3.5.0,M10.5.0x",
                                      "CET-1x",
                                      "CET-1CEST,J0,1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(parse_rule(bad[i], &zone), -HF_INVALID);
}

static void a_damaged_file_is_refused_or_read_but_never_overrun(void **state)
{
    FILE *file = fopen(ZONES "/Europe/Oslo", "rb");
    assert_non_null(file);
    static char good[8192];
    size_t n = fread(good, 1, sizeof good, file);
    fclose(file);
    assert_true(n > 100);
    struct hf_zone *zone;
    for (size_t cut = 0; cut < n; cut++) {
        char *some = malloc(cut + 1); /* of its exact size, for the sanitizers */
        memcpy(some, good, cut);
        assert_int_equal(hf_zone_parse(some, cut, &zone, &err), -HF_INVALID);
        free(some);
    }
    for (int turn = 0; turn < 20000; turn++) {
        char *some = malloc(n);
        memcpy(some, good, n);
        for (unsigned i = 0, times = 1 + dice(3); i < times; i++)
            some[dice((unsigned)n)] = (char)dice(256);
        if (hf_zone_parse(some, n, &zone, &err) == 0) {
            struct hf_cron cron = cron_of("30 2 * * *");
            hf_cron_next(&cron, zone, at("2026-03-28T12:00:00Z"));
            free(zone);
        }
        free(some);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(days_are_those_of_the_c_library),
        cmocka_unit_test(schedules_that_are_bad_say_what_was_expected),
        cmocka_unit_test(two_ways_to_say_the_same),
        cmocka_unit_test(slots_are_where_the_table_has_them),
        cmocka_unit_test(no_slot_is_skipped_and_none_invented),
        cmocka_unit_test(zones_are_those_of_the_c_library),
        cmocka_unit_test(a_zone_that_there_is_not_is_refused_with_the_nearest),
        cmocka_unit_test(rules_of_every_kind),
        cmocka_unit_test(a_damaged_file_is_refused_or_read_but_never_overrun),
    };
    return cmocka_run_group_tests_name("cron", tests, NULL, NULL);
}
