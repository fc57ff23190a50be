/* What people type: names, durations, times. */
#include "text.h"

#include <stdio.h>

#include "check.h"

static struct hf_error err;

/* ---- names ---------------------------------------------------------------------------------- */

static void names_that_are_good(void **state)
{
    static const char *const good[] = {
        "a",
        "nightly-report",
        "with space inside",
        ".index",
        "a/b/../c",
        "%41",
        "日本語",
        "é",
        "\xf4\x8f\xbf\xbf" /* U+10FFFF */,
        "\xee\x80\x80" /* U+E000 */,
        "\xc2\xa0" /* U+00A0 */,
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(hf_check_name(good[i], &err), 0);
}

static void names_that_are_bad_say_why(void **state)
{
    static const struct {
        const char *name, *says;
    } bad[] = {
        {"", "empty"},
        {" a", "space"},
        {"a ", "space"},
        {" ", "space"},
        {"a\nb", "control"},
        {"a\tb", "control"},
        {"\x7f", "control"},
        {"a\xc2\x85", "control"},          /* U+0085 */
        {"\xc3", "UTF-8"},                 /* cut short */
        {"\xe2\x82", "UTF-8"},             /* cut short */
        {"\x80", "UTF-8"},                 /* a tail without a head */
        {"\xc0\xaf", "UTF-8"},             /* '/' in two bytes */
        {"\xe0\x80\xaf", "UTF-8"},         /* '/' in three */
        {"\xed\xa0\x80", "UTF-8"},         /* a surrogate */
        {"\xf4\x90\x80\x80", "UTF-8"},     /* above U+10FFFF */
        {"\xf8\x88\x80\x80\x80", "UTF-8"}, /* five bytes */
        {"\xff", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hf_check_name(bad[i].name, &err), -HF_INVALID);
        assert_int_equal(err.code, -HF_INVALID);
        assert_non_null(strstr(err.message, bad[i].says));
    }
    assert_int_equal(hf_check_name(NULL, &err), -HF_INVALID);
    assert_int_equal(hf_check_name("a\n", NULL), -HF_INVALID);
}

static void names_have_at_most_200_bytes(void **state)
{
    char name[HF_NAME_MAX + 2];
    memset(name, 'x', sizeof name);
    name[HF_NAME_MAX] = '\0';
    assert_int_equal(hf_check_name(name, &err), 0);
    name[HF_NAME_MAX] = 'x';
    name[HF_NAME_MAX + 1] = '\0';
    assert_int_equal(hf_check_name(name, &err), -HF_INVALID);
    assert_non_null(strstr(err.message, "201"));
}

static void texts_are_optional_and_bounded(void **state)
{
    assert_int_equal(hf_check_text("note", NULL, 3, &err), 0);
    assert_int_equal(hf_check_text("note", "", 3, &err), 0);
    assert_int_equal(hf_check_text("note", "abc", 3, &err), 0);
    assert_int_equal(hf_check_text("note", "abcd", 3, &err), -HF_INVALID);
    assert_non_null(strstr(err.message, "note"));
    assert_int_equal(hf_check_text("note", "a\x1b[31m", 30, &err), -HF_INVALID);
}

/* ---- durations ------------------------------------------------------------------------------ */

static void durations_that_are_good(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {
        {"500ms", 500},    {"30s", 30000},
        {"5m", 300000},    {"1h", 3600000},
        {"2d", 172800000}, {"7", 7000},
        {"0", 0},          {"0ms", 0},
        {"007s", 7000},    {"4503599627370496ms", INT64_C(1) << 52},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t ms = -1;
        assert_int_equal(hf_parse_duration(good[i].text, &ms, &err), 0);
        assert_ms(ms, good[i].ms);
    }
}

static void durations_that_are_bad_leave_the_output_alone(void **state)
{
    static const char *const bad[] = {
        "",
        "s",
        "-1",
        "-5s",
        "+5s",
        " 5s",
        "5s ",
        "5 s",
        "1.5s",
        "5S",
        "5min",
        "1h30m",
        "0x5",
        "five",
        "1e3",
        "5ms5",
        "9223372036854775808",
        "99999999999999999999999999s",
        "9223372036854775807d",
        "4503599627370497ms",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t ms = 42;
        assert_int_equal(hf_parse_duration(bad[i], &ms, &err), -HF_INVALID);
        assert_ms(ms, 42);
        assert_true(strlen(err.message) > 0);
    }
}

static void a_ttl_has_bounds(void **state)
{
    assert_int_equal(hf_check_ttl(HF_TTL_MIN_MS, &err), 0);
    assert_int_equal(hf_check_ttl(HF_TTL_MAX_MS, &err), 0);
    assert_int_equal(hf_check_ttl(HF_TTL_MIN_MS - 1, &err), -HF_INVALID);
    assert_int_equal(hf_check_ttl(0, &err), -HF_INVALID);
    assert_int_equal(hf_check_ttl(-1, &err), -HF_INVALID);
    assert_int_equal(hf_check_ttl(INT64_C(100) * 366 * 86400000, &err), -HF_INVALID);
    assert_non_null(strstr(err.message, "366d"));
}

static void spans_are_for_people(void **state)
{
    static const struct {
        int64_t ms;
        const char *text;
    } spans[] = {
        {-5, "0 ms"},
        {0, "0 ms"},
        {999, "999 ms"},
        {1000, "1 s"},
        {119999, "119 s"},
        {120000, "2 min"},
        {7199999, "119 min"},
        {7200000, "2 h"},
        {172799999, "47 h"},
        {172800000, "2 days"},
        {INT64_MAX, "106751991167 days"},
    };
    char text[HF_SPAN_MAX];
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        hf_format_span(spans[i].ms, text);
        assert_string_equal(text, spans[i].text);
    }
}

/* ---- times ---------------------------------------------------------------------------------- */

static void times_that_are_good(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"1970-01-01T00:00:00.001Z", 1},
        {"1969-12-31T23:59:59.999Z", -1},
        {"2000-02-29T12:00:00Z", INT64_C(951825600000)},
        {"2024-02-29T00:00:00Z", INT64_C(1709164800000)},
        {"2026-11-15T20:30:00+01:30", INT64_C(1794769200000)},
        {"2026-11-15T20:30:00-01:30", INT64_C(1794780000000)},
        {"2026-11-15t20:30:00z", INT64_C(1794774600000)},
        {"2026-11-15 20:30:00Z", INT64_C(1794774600000)},
        {"2026-11-15T20:30:00.5Z", INT64_C(1794774600500)},
        {"2026-11-15T20:30:00.123456789123Z", INT64_C(1794774600123)},
        {"2026-11-15T20:30:00-00:00", INT64_C(1794774600000)},
        {"2016-12-31T23:59:60Z", INT64_C(1483228800000)}, /* a leap second */
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t ms = 42;
        assert_int_equal(hf_parse_time(good[i].text, &ms, &err), 0);
        assert_ms(ms, good[i].ms);
    }
}

static void times_that_are_bad_leave_the_output_alone(void **state)
{
    static const char *const bad[] = {
        "",
        "now",
        "2026",
        "2026-11-15",
        "2026-11-15T20:30Z",
        "2026-11-15T20:30:00",
        "2023-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-04-00T00:00:00Z",
        "2026-11-15T24:00:00Z",
        "2026-11-15T20:60:00Z",
        "2026-11-15T20:30:61Z",
        "2026-11-15T20:30:00.Z",
        "2026-11-15T20:30:00+24:00",
        "2026-11-15T20:30:00+0130",
        "2026-11-15T20:30:00Zx",
        " 2026-11-15T20:30:00Z",
        "-026-11-15T20:30:00Z",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t ms = 42;
        assert_int_equal(hf_parse_time(bad[i], &ms, &err), -HF_INVALID);
        assert_ms(ms, 42);
        assert_non_null(strstr(err.message, "RFC 3339"));
    }
}

static void times_come_back_as_they_went(void **state)
{
    static const int64_t times[] = {0, 1, -1, -1000, 951825599999, 1794774600123, 253402300799999};
    char text[HF_TIME_LEN + 1];
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        int64_t ms;
        hf_format_time(times[i], text);
        assert_int_equal(strlen(text), HF_TIME_LEN);
        assert_int_equal(hf_parse_time(text, &ms, &err), 0);
        assert_ms(ms, times[i]);
    }
    hf_format_time(INT64_C(1794774600123), text);
    assert_string_equal(text, "2026-11-15T20:30:00.123Z");
    hf_format_time(INT64_MAX, text); /* beyond year 9999: cut, never overrun */
    assert_int_equal(strlen(text), HF_TIME_LEN);
}

/* ---- a status ------------------------------------------------------------------------------- */

static void a_status_says_who_since_when_and_whether_it_lives(void **state)
{
    struct hf_status s = {.name = "job",
                          .state = HF_STATE_HELD,
                          .fence = 7,
                          .owner = "web1/4121",
                          .alive = HF_ALIVE,
                          .held_for_ms = 120000};
    char text[HF_MESSAGE_MAX];
    hf_describe_status(&s, text, sizeof text);
    assert_string_equal(text, "job is held by web1/4121 (alive) since 2 min ago, fence 7");
    s.alive = HF_ALIVE_UNKNOWN;
    hf_describe_status(&s, text, sizeof text);
    assert_string_equal(text, "job is held by web1/4121 since 2 min ago, fence 7");
    hf_describe_status(&s, text, 10);
    assert_string_equal(text, "job is he");
    s.state = HF_STATE_FREE;
    hf_describe_status(&s, text, sizeof text);
    assert_string_equal(text, "job is free");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_are_good),
        cmocka_unit_test(names_that_are_bad_say_why),
        cmocka_unit_test(names_have_at_most_200_bytes),
        cmocka_unit_test(texts_are_optional_and_bounded),
        cmocka_unit_test(durations_that_are_good),
        cmocka_unit_test(durations_that_are_bad_leave_the_output_alone),
        cmocka_unit_test(a_ttl_has_bounds),
        cmocka_unit_test(spans_are_for_people),
        cmocka_unit_test(times_that_are_good),
        cmocka_unit_test(times_that_are_bad_leave_the_output_alone),
        cmocka_unit_test(times_come_back_as_they_went),
        cmocka_unit_test(a_status_says_who_since_when_and_whether_it_lives),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
