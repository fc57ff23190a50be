/* The pure step: who waits, in which order, and who announces what was taken over. */
#include "scene.h"
#include "waiting.h"

/* ---- rule 10: takeovers are announced ------------------------------------------------------- */

static void rule_10_a_takeover_is_an_event_a_count_and_an_answer(void **state)
{
    take("A");
    m->now_ms += TTL;
    take("B");
    assert_string_equal(last_event(HF_EV_EXPIRED)->owner, "A");
    assert_string_equal(last_event(HF_EV_TAKEN_OVER)->reason, "expired");
    assert_string_equal(last_event(HF_EV_TAKEN_OVER)->owner, "B");
    assert_int_equal(a.lease.takeover.reason, HF_STALE_EXPIRED);
    take("B"); /* a lost reply does not hide it */
    assert_int_equal(a.lease.takeover.reason, HF_STALE_EXPIRED);
    release("B");
    take("C");
    assert_int_equal(a.lease.takeover.reason, HF_STALE_NOT);
}

static void rule_10_a_takeover_by_a_waiter_that_never_confirms_is_announced_by_the_next(void **s)
{
    take("A");
    wait_for_it("B", 0);
    m->now_ms += TTL - 1;
    wait_for_it("B", 0);
    m->now_ms += 1;
    settle();
    assert_int_equal(a.freed, HF_STALE_EXPIRED);
    assert_held_by("B"); /* an offer */
    m->now_ms += HF_OFFER_MS;
    assert_int_equal(take("C"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_EXPIRED);
    assert_string_equal(a.lease.takeover.owner, "A");
    assert_int_equal(record()->counts.taken_expired, 1);
    assert_int_equal(count_events(HF_EV_TAKEN_OVER), 1);
}

static void rule_10_an_offer_that_lapsed_is_no_stale_lease(void **state)
{
    take("A");
    wait_for_it("B", 0);
    release("A");
    m->now_ms += HF_OFFER_MS;
    settle();
    assert_int_equal(a.freed, HF_STALE_NOT);
    assert_int_equal(take("C"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_NOT);
    assert_int_equal(record()->counts.taken_expired, 0);
}

static void rule_10_who_withdraws_from_a_takeover_passes_it_on(void **state)
{
    take_bound("A", 11, 0);
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    model_kill(m, 11);
    assert_int_equal(withdraw("B"), 0);
    assert_held_by("C");
    assert_int_equal(wait_for_it("C", 0), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_DIED);
    assert_int_equal(record()->counts.taken_died, 1);
}

/* ---- rule 12: the queue --------------------------------------------------------------------- */

static void rule_12_first_come_first_served_within_a_priority(void **state)
{
    static const struct {
        const char *who;
        int32_t priority;
    } arrivals[] = {{"B", 0}, {"C", 5}, {"D", 0}, {"E", 5}, {"F", -1}};
    static const char *const order[] = {"C", "E", "B", "D", "F"};
    take("A");
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(wait_for_it(arrivals[i].who, arrivals[i].priority), -HF_HELD);
    const char *holder = "A";
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(release(holder), 0);
        holder = order[i];
        assert_held_by(holder);
        assert_int_equal(m->n_wakes, 0); /* of the look; the release woke it */
        assert_int_equal(extend(holder), 0);
    }
}

static void rule_12_release_offers_it_in_the_same_step_and_wakes_only_the_head(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    assert_int_equal(release("A"), 0);
    struct hf_lock_id head = hf_lock_id_of("B");
    assert_int_equal(m->n_wakes, 1);
    assert_true(hf_lock_id_equal(&m->wakes[0], &head));
    look();
    assert_ms(a.holder.remaining_ms, HF_OFFER_MS);
    assert_int_equal(a.holder.waiters, 1);
}

static void rule_12_an_offer_lasts_no_longer_than_the_ttl(void **state)
{
    take("A");
    ask((struct hf_request){.op = HF_OP_ACQUIRE, .token = "B", .ttl_ms = 500, .wait_ms = FOREVER});
    release("A");
    assert_ms(look()->remaining_ms, 500);
}

static void rule_12_confirming_keeps_the_fence_and_gives_the_whole_ttl(void **state)
{
    take("A");
    wait_for_it("B", 0);
    release("A");
    int64_t fence = look()->fence;
    m->now_ms += HF_OFFER_MS - 1;
    assert_int_equal(extend("B"), 0);
    assert_ms(a.lease.fence, fence);
    assert_ms(look()->remaining_ms, TTL);
    m->now_ms += HF_OFFER_MS;
    assert_held_by("B");
}

static void rule_12_asking_again_confirms_too(void **state)
{
    take("A");
    wait_for_it("B", 0);
    release("A");
    assert_int_equal(wait_for_it("B", 0), 0);
    assert_ms(look()->remaining_ms, TTL);
}

static void rule_12_bug_13_an_offer_that_lapsed_is_not_confirmed(void **state)
{
    take("A");
    wait_for_it("B", 0);
    release("A");
    m->now_ms += HF_OFFER_MS;
    assert_int_equal(extend("B"), -HF_LOST);
    assert_int_equal(wait_for_it("B", 0), -HF_LOST); /* its token is spent */
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void rule_12_a_lapsed_offer_goes_to_the_next(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    release("A");
    m->now_ms += HF_OFFER_MS;
    assert_int_equal(take("D"), -HF_HELD);
    assert_held_by("C");
}

static void rule_12_a_try_never_overtakes_a_live_waiter(void **state)
{
    take("A");
    wait_for_it("B", 0);
    m->now_ms += TTL / 4; /* B is still thought to be there */
    release("A");
    assert_int_equal(take("C"), -HF_HELD);
    assert_string_equal(a.holder.owner, "B");
    m->now_ms += TTL;
    assert_int_equal(take("D"), 0);
}

static void rule_12_a_takeover_goes_to_the_waiter_before_the_asker(void **state)
{
    take_bound("A", 11, 0);
    wait_for_it("B", 0);
    model_kill(m, 11);
    assert_int_equal(take("C"), -HF_HELD);
    assert_held_by("B");
    assert_int_equal(extend("B"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_DIED);
}

static void rule_12_waiters_that_are_gone_are_passed_over(void **state)
{
    take("A");
    take_bound("dead", 11, FOREVER);
    ask((struct hf_request){.op = HF_OP_ACQUIRE, .token = "late", .ttl_ms = TTL, .wait_ms = 100});
    wait_for_it("silent", 0);
    m->now_ms += HF_WAITER_MS - 1;
    wait_for_it("B", 0);
    m->now_ms += 1;
    model_kill(m, 11);
    assert_int_equal(release("A"), 0);
    assert_held_by("B");
    assert_int_equal(a.holder.waiters, 0);
}

static void rule_12_a_waiter_of_another_boots_clock_is_gone(void **state)
{
    take("A");
    wait_for_it("B", 0);
    model_lock(m, NAME)->queue[0].seen_ms += 1000 * HF_WAITER_MS;
    release("A");
    assert_int_equal(look()->state, HF_STATE_FREE);
    assert_int_equal(a.holder.waiters, 0);
}

static void rule_12_more_dead_waiters_than_the_window_holds(void **state)
{
    take("A");
    char who[16];
    for (int i = 0; i < 3 * HF_WINDOW + 1; i++) {
        snprintf(who, sizeof who, "w%d", i);
        take_bound(who, 11, FOREVER);
    }
    wait_for_it("B", 0);
    model_kill(m, 11);
    assert_int_equal(release("A"), 0);
    assert_held_by("B");
    assert_int_equal(a.holder.waiters, 0);
    assert_int_equal(m->last_fence, 2); /* no fence was spent on the dead */
}

static void rule_12_dead_waiters_do_not_stop_a_newcomer(void **state)
{
    take_bound("A", 10, 0);
    char who[16];
    for (int i = 0; i < 2 * HF_WINDOW; i++) {
        snprintf(who, sizeof who, "w%d", i);
        take_bound(who, 11, FOREVER);
    }
    model_kill(m, 10);
    model_kill(m, 11);
    assert_int_equal(take("B"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_DIED);
    assert_int_equal(look()->waiters, 0);
}

static void rule_12_a_waiter_that_asks_after_its_time_is_served_if_it_can_be(void **state)
{
    take("A");
    ask((struct hf_request){.op = HF_OP_ACQUIRE, .token = "B", .ttl_ms = TTL, .wait_ms = 100});
    m->now_ms += TTL;
    assert_int_equal(take("B"), 0);
}

static void rule_12_a_waiter_never_stands_behind_the_dead(void **state)
{
    take("A");
    wait_for_it("B", 0);
    take_bound("dead", 11, FOREVER);
    take_bound("dead too", 11, FOREVER);
    wait_for_it("C", 0);
    assert_int_equal(a.ahead, 3);
    model_kill(m, 11);
    wait_for_it("C", 0);
    assert_int_equal(a.ahead, 1);
    assert_int_equal(a.holder.waiters, 2);
    assert_int_equal(look()->waiters, 2);
}

static void rule_12_withdraw_leaves_the_queue(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    assert_int_equal(withdraw("B"), 0);
    assert_int_equal(look()->waiters, 1);
    assert_string_equal(last_event(HF_EV_DENIED)->reason, "gave up waiting");
    assert_string_equal(last_event(HF_EV_DENIED)->owner, "B");
    assert_int_equal(withdraw("B"), 0);
    release("A");
    assert_held_by("C");
}

static void rule_12_withdraw_gives_back_an_offer(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    release("A");
    assert_held_by("B");
    assert_int_equal(withdraw("B"), 0);
    assert_held_by("C");
    assert_int_equal(wait_for_it("B", 0), -HF_LOST);
}

static void rule_12_a_last_try_leaves_the_queue(void **state)
{
    take("A");
    wait_for_it("B", 0);
    assert_int_equal(take("B"), -HF_HELD);
    assert_int_equal(a.holder.waiters, 0);
    assert_int_equal(look()->waiters, 0);
    assert_string_equal(last_event(HF_EV_DENIED)->reason, "gave up waiting");
}

static void rule_12_a_waiter_keeps_its_place_when_no_fence_can_be_had(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    m->fence_failure = -HF_UNAVAILABLE;
    assert_int_equal(release("A"), 0);
    assert_int_equal(look()->waiters, 2);
    assert_int_equal(take("D"), -HF_UNAVAILABLE);
    m->fence_failure = 0;
    settle();
    assert_held_by("B");
}

static void rule_12_a_higher_priority_joins_ahead(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 7);
    assert_int_equal(a.ahead, 0);
    wait_for_it("D", 7);
    assert_int_equal(a.ahead, 1);
    wait_for_it("E", 0);
    assert_int_equal(a.ahead, 3);
}

static void a_wait_of_centuries_does_not_overflow(void **state)
{
    take("A");
    struct hf_request patient = {
        .op = HF_OP_ACQUIRE, .token = "B", .ttl_ms = TTL, .wait_ms = INT64_MAX - 1};
    assert_int_equal(ask(patient), -HF_HELD);
    release("A");
    assert_int_equal(ask(patient), 0);
}

static void who_finds_the_one_ahead_dead_asks_again_and_then_waits(void **state)
{
    struct hf_answer first = {.ahead = 0}, second = {.ahead = 1, .holder = {.remaining_ms = 100}};
    bool asked_twice = false;
    assert_true(hf_waiter_asks_at_once(&asked_twice, &first, true));
    assert_true(hf_waiter_asks_at_once(&asked_twice, &first, true));
    assert_false(hf_waiter_asks_at_once(&asked_twice, &first, false));
    assert_true(hf_waiter_asks_at_once(&asked_twice, &second, true));
    assert_false(hf_waiter_asks_at_once(&asked_twice, &second, true)); /* no busy loop */
    assert_false(hf_waiter_asks_at_once(&asked_twice, &second, false));
    assert_true(hf_waiter_asks_at_once(&asked_twice, &second, true));
    assert_ms(hf_waiter_looks_in_ms(&second), 101 + HF_STAGGER_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(rule_10_a_takeover_is_an_event_a_count_and_an_answer),
        T(rule_10_a_takeover_by_a_waiter_that_never_confirms_is_announced_by_the_next),
        T(rule_10_an_offer_that_lapsed_is_no_stale_lease),
        T(rule_10_who_withdraws_from_a_takeover_passes_it_on),
        T(rule_12_first_come_first_served_within_a_priority),
        T(rule_12_release_offers_it_in_the_same_step_and_wakes_only_the_head),
        T(rule_12_an_offer_lasts_no_longer_than_the_ttl),
        T(rule_12_confirming_keeps_the_fence_and_gives_the_whole_ttl),
        T(rule_12_asking_again_confirms_too),
        T(rule_12_bug_13_an_offer_that_lapsed_is_not_confirmed),
        T(rule_12_a_lapsed_offer_goes_to_the_next),
        T(rule_12_a_try_never_overtakes_a_live_waiter),
        T(rule_12_a_takeover_goes_to_the_waiter_before_the_asker),
        T(rule_12_waiters_that_are_gone_are_passed_over),
        T(rule_12_a_waiter_of_another_boots_clock_is_gone),
        T(rule_12_more_dead_waiters_than_the_window_holds),
        T(rule_12_dead_waiters_do_not_stop_a_newcomer),
        T(rule_12_a_waiter_that_asks_after_its_time_is_served_if_it_can_be),
        T(rule_12_a_waiter_never_stands_behind_the_dead),
        T(rule_12_withdraw_leaves_the_queue),
        T(rule_12_withdraw_gives_back_an_offer),
        T(rule_12_a_last_try_leaves_the_queue),
        T(rule_12_a_waiter_keeps_its_place_when_no_fence_can_be_had),
        T(rule_12_a_higher_priority_joins_ahead),
        T(a_wait_of_centuries_does_not_overflow),
        T(who_finds_the_one_ahead_dead_asks_again_and_then_waits),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
