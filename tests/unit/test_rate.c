/* How often a worker may begin executions of a workflow. */
#include "check.h"
#include "rate.h"

static struct hf_error err;

static int64_t interval_of(const char *text)
{
    int64_t us = -1;
    return hf_rate_parse(text, &us, &err) < 0 ? 0 : us;
}

static void a_rate_is_a_number_per_second_minute_or_hour(void **state)
{
    static const char *const bad[] = {"",       "10",    "/s",    "0/s",     "-1/s",         "10/d",
                                      "10/sec", "1.5/s", "10 /s", "10001/s", "99999999999/s"};
    assert_int_equal(interval_of("10/s"), 100000);
    assert_int_equal(interval_of("10000/s"), 100);
    assert_int_equal(interval_of("120/m"), 500000);
    assert_int_equal(interval_of("1/h"), 3600000000);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(interval_of(bad[i]), 0);
}

/* Whoever begins all that it may, as soon as it may. */
static int64_t begun_within(const char *rate, int64_t us)
{
    struct hf_pace pace = {.workflow = "w", .interval_us = interval_of(rate)};
    int64_t n = 0;
    for (int64_t now = 1000000; now < 1000000 + us; now = pace.open_us) {
        size_t room = hf_pace_room(&pace, now);
        assert_true(room > 0);
        n += (int64_t)room;
        hf_pace_spend(&pace, room, now);
        assert_int_equal(hf_pace_room(&pace, now), 0);
    }
    return n;
}

static void a_pace_is_kept_in_the_long_run(void **state)
{
    assert_int_equal(begun_within("1/h", INT64_C(7200) * 1000000), 2);
    assert_int_equal(begun_within("5/s", 10000000), 50);
    assert_int_equal(begun_within("1000/s", 10000000), 10000);
}

static void what_was_not_begun_is_not_made_up_for(void **state)
{
    struct hf_pace pace = {.workflow = "w", .interval_us = interval_of("5/s")};
    assert_int_equal(hf_pace_room(&pace, 1000000), 1);
    hf_pace_spend(&pace, 1, 1000000);
    assert_int_equal(hf_pace_room(&pace, 1199999), 0);
    assert_int_equal(hf_pace_room(&pace, 60000000), 1); /* after a long rest, too */
    hf_pace_spend(&pace, 0, 60000000);                  /* nothing was there */
    assert_int_equal(hf_pace_room(&pace, 60000000), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_is_a_number_per_second_minute_or_hour),
        cmocka_unit_test(a_pace_is_kept_in_the_long_run),
        cmocka_unit_test(what_was_not_begun_is_not_made_up_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
