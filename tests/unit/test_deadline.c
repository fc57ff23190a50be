/* When a tree ends, and when its guardian does that has not ended it. */
#include "check.h"
#include "deadline.h"

enum { NOW = 1000000 };

static const int64_t ttls[] = {100, 1000, 3000, 10000, 60000, 3600000};
static const int64_t graces[] = {0, 100, 10000};

#define EACH(var, array)                                                                           \
    for (const int64_t *var = array; var < (array) + sizeof(array) / sizeof *(array); var++)

static void sigkill_comes_one_lead_before_the_deadline(void **state)
{
    EACH(ttl, ttls)
    EACH(grace, graces)
    {
        struct hf_plan plan;
        int64_t lead_ms = hf_lead_ms(*ttl, *grace), deadline_ms = NOW + *ttl;
        hf_plan_start(&plan, NOW, deadline_ms, *ttl, *grace, 0);
        assert_true(lead_ms >= 10 && lead_ms <= 500);
        assert_int_not_equal(hf_plan_tick(&plan, deadline_ms - lead_ms - 1), HF_DUE_KILL);
        while (hf_plan_tick(&plan, deadline_ms - lead_ms) == HF_DUE_TERM)
            continue;
        assert_int_equal(hf_plan_tick(&plan, deadline_ms - lead_ms), HF_DUE_KILL);
    }
}

/* exclusion.md, row 8 */
static void a_guardian_that_has_not_killed_ends_before_the_deadline(void **state)
{
    EACH(ttl, ttls)
    EACH(grace, graces)
    {
        int64_t lead_ms = hf_lead_ms(*ttl, *grace), deadline_ms = NOW + *ttl;
        int64_t told_ms = deadline_ms - lead_ms / 2;
        int64_t ends_ms = hf_guardian_ends_ms(told_ms, deadline_ms, lead_ms);
        assert_true(ends_ms > told_ms);
        assert_true(ends_ms < deadline_ms);
    }
}

static void a_guardian_whose_lease_is_gone_has_a_second(void **state)
{
    int64_t lead_ms = hf_lead_ms(60000, 10000);
    assert_int_equal(hf_guardian_ends_ms(NOW, NOW + 60000, lead_ms), NOW + 1000);
    assert_true(hf_guardian_ends_ms(NOW, NOW - 1, lead_ms) > NOW);
    assert_true(hf_guardian_ends_ms(NOW, NOW - 1, lead_ms) < NOW + 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sigkill_comes_one_lead_before_the_deadline),
        cmocka_unit_test(a_guardian_that_has_not_killed_ends_before_the_deadline),
        cmocka_unit_test(a_guardian_whose_lease_is_gone_has_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
