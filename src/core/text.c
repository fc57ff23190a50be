#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calendar.h"
#include "error.h"

/* ---- UTF-8, names, free text ---------------------------------------------------------------- */

/* Length of the valid UTF-8 sequence at `s` (at most `n` bytes), or 0. */
static size_t utf8_sequence(const unsigned char *s, size_t n)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t len = 1; len <= 4; len++) {
        if ((s[0] & forms[len - 1].mask) != forms[len - 1].lead)
            continue;
        if (len > n)
            return 0;
        uint32_t point = s[0] & (unsigned char)~forms[len - 1].mask;
        for (size_t i = 1; i < len; i++) {
            if ((s[i] & 0xc0) != 0x80)
                return 0;
            point = point << 6 | (s[i] & 0x3f);
        }
        bool surrogate = point >= 0xd800 && point <= 0xdfff;
        return point >= forms[len - 1].least && point <= 0x10ffff && !surrogate ? len : 0;
    }
    return 0;
}

bool hf_is_utf8(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence(s + i, n - i);
        if (!len)
            return false;
        i += len;
    }
    return true;
}

/* Control characters: C0, DEL, and C1 (U+0080 to U+009F, two bytes in UTF-8). */
static bool has_control(const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        if (*s < 0x20 || *s == 0x7f || (*s == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f))
            return true;
    return false;
}

int hf_check_text(const char *what, const char *text, size_t max, struct hf_error *err)
{
    if (!text)
        return 0;
    size_t n = strlen(text);
    if (n > max)
        return hf_fail(err, HF_INVALID, "the %s has %zu bytes; at most %zu are kept", what, n, max);
    if (!hf_is_utf8(text, n))
        return hf_fail(err, HF_INVALID, "the %s is not valid UTF-8", what);
    if (has_control(text))
        return hf_fail(err, HF_INVALID, "the %s has a control character in it", what);
    return 0;
}

int hf_check_name(const char *name, struct hf_error *err)
{
    if (!name || !*name)
        return hf_fail(err, HF_INVALID, "the name is empty; expected 1 to %d bytes", HF_NAME_MAX);
    int r = hf_check_text("name", name, HF_NAME_MAX, err);
    if (r < 0)
        return r;
    if (name[0] == ' ' || name[strlen(name) - 1] == ' ')
        return hf_fail(err, HF_INVALID, "the name '%s' begins or ends with a space", name);
    return 0;
}

/* ---- durations ------------------------------------------------------------------------------ */

static const struct {
    const char *unit;
    int64_t ms;
} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}, {"", 1000}};

static int bad_duration(const char *text, struct hf_error *err)
{
    return hf_fail(
        err, HF_INVALID,
        "'%.40s' is not a duration; expected a number with ms, s, m, h or d, as in 500ms, "
        "30s, 5m, 1h, 2d",
        text);
}

int hf_parse_duration(const char *text, int64_t *ret_ms, struct hf_error *err)
{
    if (*text < '0' || *text > '9')
        return bad_duration(text, err);
    int64_t value = 0;
    const char *s = text;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *s - '0', &value))
            return bad_duration(text, err);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        int64_t ms;
        if (strcmp(s, units[i].unit) != 0)
            continue;
        if (__builtin_mul_overflow(value, units[i].ms, &ms) || ms > INT64_C(1) << 52)
            return hf_fail(err, HF_INVALID, "the duration '%.40s' is too long", text);
        *ret_ms = ms;
        return 0;
    }
    return bad_duration(text, err);
}

int hf_check_ttl(int64_t ttl_ms, struct hf_error *err)
{
    if (ttl_ms >= HF_TTL_MIN_MS && ttl_ms <= HF_TTL_MAX_MS)
        return 0;
    char span[HF_SPAN_MAX];
    hf_format_span(ttl_ms, span);
    return hf_fail(err, HF_INVALID, "a ttl of %s can't be had; expected 100ms to 366d", span);
}

void hf_format_span(int64_t ms, char ret[HF_SPAN_MAX])
{
    if (ms < 0)
        ms = 0;
    if (ms < 1000)
        snprintf(ret, HF_SPAN_MAX, "%lld ms", (long long)ms);
    else if (ms < 120000)
        snprintf(ret, HF_SPAN_MAX, "%lld s", (long long)(ms / 1000));
    else if (ms < 7200000)
        snprintf(ret, HF_SPAN_MAX, "%lld min", (long long)(ms / 60000));
    else if (ms < 172800000)
        snprintf(ret, HF_SPAN_MAX, "%lld h", (long long)(ms / 3600000));
    else
        snprintf(ret, HF_SPAN_MAX, "%lld days", (long long)(ms / 86400000));
}

/* ---- times ---------------------------------------------------------------------------------- */

static char *put_digits(char *to, int value, int n)
{
    for (int i = n - 1; i >= 0; i--, value /= 10)
        to[i] = (char)('0' + value % 10);
    return to + n;
}

void hf_format_time(int64_t at_ms, char ret[HF_TIME_LEN + 1])
{
    int64_t ms = at_ms % 1000;
    if (ms < 0)
        ms += 1000;
    time_t seconds = (time_t)((at_ms - ms) / 1000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    const struct {
        int value, digits;
        char then;
    } parts[] = {{tm.tm_year + 1900, 4, '-'},
                 {tm.tm_mon + 1, 2, '-'},
                 {tm.tm_mday, 2, 'T'},
                 {tm.tm_hour, 2, ':'},
                 {tm.tm_min, 2, ':'},
                 {tm.tm_sec, 2, '.'},
                 {(int)ms, 3, 'Z'}};
    char *at = ret;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        at = put_digits(at, parts[i].value, parts[i].digits);
        *at++ = parts[i].then;
    }
    *at = '\0';
}

/* Exactly `n` digits at *s, within [least, most]; moves *s on. */
static bool take_digits(const char **s, int n, int least, int most, int *ret)
{
    int value = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        if (**s < '0' || **s > '9')
            return false;
        value = value * 10 + (**s - '0');
    }
    *ret = value;
    return value >= least && value <= most;
}

static bool take_char(const char **s, const char *any_of)
{
    if (!**s || !strchr(any_of, **s))
        return false;
    (*s)++;
    return true;
}

/* ".123456": to milliseconds, the rest cut off. Absent: 0. */
static bool take_fraction(const char **s, int *ret_ms)
{
    *ret_ms = 0;
    if (!take_char(s, "."))
        return true;
    int digits = 0;
    for (int weight = 100; **s >= '0' && **s <= '9'; (*s)++, digits++, weight /= 10)
        *ret_ms += weight * (**s - '0');
    return digits > 0;
}

static bool take_offset(const char **s, int *ret_minutes)
{
    *ret_minutes = 0;
    if (take_char(s, "Zz"))
        return true;
    int sign = **s == '-' ? -1 : 1, hours, minutes;
    if (!take_char(s, "+-") || !take_digits(s, 2, 0, 23, &hours) || !take_char(s, ":") ||
        !take_digits(s, 2, 0, 59, &minutes))
        return false;
    *ret_minutes = sign * (hours * 60 + minutes);
    return true;
}

int hf_parse_time(const char *text, int64_t *ret_at_ms, struct hf_error *err)
{
    const char *s = text;
    int year, month, day, hour, minute, second, ms, offset;
    bool ok = take_digits(&s, 4, 0, 9999, &year) && take_char(&s, "-") &&
              take_digits(&s, 2, 1, 12, &month) && take_char(&s, "-") &&
              take_digits(&s, 2, 1, hf_days_in_month(year, month), &day) && take_char(&s, "Tt ") &&
              take_digits(&s, 2, 0, 23, &hour) && take_char(&s, ":") &&
              take_digits(&s, 2, 0, 59, &minute) && take_char(&s, ":") &&
              take_digits(&s, 2, 0, 60, &second) && take_fraction(&s, &ms) &&
              take_offset(&s, &offset) && !*s;
    if (!ok)
        return hf_fail(err, HF_INVALID,
                       "'%.40s' is not a time; expected RFC 3339, as in 2026-11-15T20:30:00Z",
                       text);
    struct tm tm = {.tm_year = year - 1900,
                    .tm_mon = month - 1,
                    .tm_mday = day,
                    .tm_hour = hour,
                    .tm_min = minute,
                    .tm_sec = second};
    *ret_at_ms = ((int64_t)timegm(&tm) - offset * 60) * 1000 + ms;
    return 0;
}

/* ---- a status for people -------------------------------------------------------------------- */

void hf_describe_status(const struct hf_status *status, char *ret, size_t size)
{
    static const char *const life[] = {[HF_DEAD] = " (dead)", [HF_ALIVE] = " (alive)"};
    char span[HF_SPAN_MAX];
    if (status->state == HF_STATE_FREE) {
        snprintf(ret, size, "%s is free", status->name);
        return;
    }
    hf_format_span(status->held_for_ms, span);
    snprintf(ret, size, "%s is %s by %s%s since %s ago, fence %lld%s%s", status->name,
             status->state == HF_STATE_STALE ? "still marked as held" : "held",
             status->owner[0] ? status->owner : "somebody",
             status->alive == HF_ALIVE_UNKNOWN ? "" : life[status->alive], span,
             (long long)status->fence, status->execution_id[0] ? ", execution " : "",
             status->execution_id);
}

/* ---- what things are called ----------------------------------------------------------------- */

const char *hf_stale_reason_name(enum hf_stale_reason reason)
{
    static const char *const names[] = {"", "expired", "holder-died", "rebooted",
                                        "execution-ended"};
    return names[reason];
}

const char *hf_event_kind_name(enum hf_event_kind kind)
{
    static const char *const names[] = {
#define X(name, text) text,
        HF_EVENT_MAP(X)
#undef X
    };
    return names[kind];
}

const char *hf_execution_state_name(enum hf_execution_state state)
{
    static const char *const names[] = {
#define X(name, text) text,
        HF_EXECUTION_STATE_MAP(X)
#undef X
    };
    return names[state];
}

const char *hf_lock_state_name(enum hf_lock_state state)
{
    static const char *const names[] = {"free", "held", "stale"};
    return names[state];
}
