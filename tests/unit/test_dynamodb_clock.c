/* The server's time, from the Date of its answers. */
#include "check.h"
#include "dynamodb/transport.h"

static void test_dates(void **state)
{
    static const char *const bad[] = {"",
                                      "Mon, 16 Nov 2026 06:23:00 CET",
                                      "Mon, 16 Nox 2026 06:23:00 GMT",
                                      "Mon, 16 anF 2026 06:23:00 GMT",
                                      "Mon, 00 Nov 2026 06:23:00 GMT",
                                      "Mon, 16 Nov 2026 24:23:00 GMT",
                                      "2026-11-16T06:23:00Z"};
    assert_int_equal(hf_dynamo_parse_date(" Mon, 16 Nov 2026 06:23:05 GMT\r\n"), 1794810185000);
    assert_int_equal(hf_dynamo_parse_date("Thu, 29 Feb 2024 23:59:59 GMT"), 1709251199000);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(hf_dynamo_parse_date(bad[i]), 0);
}

static void test_stamps(void **state)
{
    char stamp[HF_DYNAMO_STAMP_LEN + 1];
    hf_dynamo_format_stamp(1440938160999, stamp);
    assert_string_equal(stamp, "20150830T123600Z");
    hf_dynamo_format_stamp(1709251199000, stamp);
    assert_string_equal(stamp, "20240229T235959Z");
}

enum { DATE = 1000000, BOOT = 500000 };

static void learn(struct hf_dynamo_clock *c, int64_t date, int64_t asked, int64_t received)
{
    struct hf_dynamo_sample s = {.date_ms = date, .asked_ms = asked, .received_ms = received};
    hf_dynamo_clock_learn(c, &s);
}

static void check_bounds(const struct hf_dynamo_clock *c, int64_t boot, int64_t early, int64_t late)
{
    int64_t got_early, got_late;
    assert_true(hf_dynamo_clock_read(c, boot, &got_early, &got_late));
    assert_int_equal(got_early, early);
    assert_int_equal(got_late, late);
}

static void test_bounds(void **state)
{
    struct hf_dynamo_clock c = {0};
    int64_t early, late;
    assert_false(hf_dynamo_clock_read(&c, BOOT, &early, &late));
    learn(&c, DATE, BOOT, BOOT + 40);
    check_bounds(&c, BOOT + 40, DATE - 1, DATE + 1041); /* 1: for any drift, rounded up */
    check_bounds(&c, BOOT + 140, DATE + 99, DATE + 1141);
    /* Within ten seconds two clocks may part by 5 ms, and within an hour by 1.8 s. */
    check_bounds(&c, BOOT + 10040, DATE + 9994, DATE + 11046);
    check_bounds(&c, BOOT + 3600040, DATE + 3598199, DATE + 3602841);
}

static void test_samples_narrow_the_bounds(void **state)
{
    struct hf_dynamo_clock c = {0};
    learn(&c, DATE, BOOT, BOOT + 40);
    learn(&c, DATE, BOOT + 700, BOOT + 740); /* the same second, later: says more of its end */
    check_bounds(&c, BOOT + 740, DATE + 699, DATE + 1041);
    learn(&c, DATE + 1000, BOOT + 1100, BOOT + 1110); /* hardly more */
    check_bounds(&c, BOOT + 1110, DATE + 1069, DATE + 1411);
    learn(&c, DATE + 1000, BOOT + 900, BOOT + 1300); /* a slow one takes nothing back */
    check_bounds(&c, BOOT + 1300, DATE + 1259, DATE + 1601);
}

static void test_a_contradiction_counts_alone(void **state)
{
    static const int64_t steps[] = {3600000, -3600000, 1500};
    for (size_t i = 0; i < 3; i++) {
        struct hf_dynamo_clock c = {0};
        learn(&c, DATE, BOOT, BOOT + 10);
        learn(&c, DATE + steps[i], BOOT + 100, BOOT + 110);
        check_bounds(&c, BOOT + 110, DATE + steps[i] - 1, DATE + steps[i] + 1011);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dates),
        cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_samples_narrow_the_bounds),
        cmocka_unit_test(test_a_contradiction_counts_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
