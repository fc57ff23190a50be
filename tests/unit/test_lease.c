/*
 * The pure step, rule by rule. Names begin with the rule of docs/promise.md that they hold
 * (rule_N_), or with the number of somebody else's bug that must not be ours (bug_N_). The queue
 * has a file of its own.
 */
#include "scene.h"

/* ---- rule 1: token, fence and time decide --------------------------------------------------- */

static void rule_1_extend_and_release_need_the_token(void **state)
{
    assert_int_equal(take("A"), 0);
    assert_int_equal(extend("B"), -HF_LOST);
    assert_true(a.has_holder);
    assert_string_equal(a.holder.owner, "A");
    assert_int_equal(release("B"), -HF_LOST);
    assert_int_equal(record()->counts.release_lost, 1);
    assert_held_by("A");
    assert_int_equal(release("A"), 0);
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void rule_1_the_fence_is_checked_where_given(void **state)
{
    take("A");
    int64_t fence = a.lease.fence;
    struct hf_request req = {.op = HF_OP_EXTEND, .token = "A", .fence = fence + 1};
    assert_int_equal(ask(req), -HF_LOST);
    req.op = HF_OP_RELEASE;
    assert_int_equal(ask(req), -HF_LOST);
    assert_held_by("A");
    req.fence = fence;
    assert_int_equal(ask(req), 0);
}

static void rule_1_an_expired_lease_is_not_extended_even_if_nobody_took_it(void **state)
{
    take("A");
    m->now_ms += TTL - 1;
    assert_int_equal(extend("A"), 0);
    m->now_ms += TTL;
    assert_int_equal(extend("A"), -HF_LOST);
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void rule_1_an_expired_lease_is_not_released(void **state)
{
    take("A");
    m->now_ms += TTL;
    assert_int_equal(release("A"), -HF_LOST);
}

static void rule_1_without_a_token_nobody_is_the_holder(void **state)
{
    take("A");
    record()->grant.id = (struct hf_lock_id){0}; /* a holder that we know no token of */
    assert_int_equal(ask((struct hf_request){.op = HF_OP_RELEASE}), -HF_LOST);
    assert_int_equal(ask((struct hf_request){.op = HF_OP_EXTEND}), -HF_LOST);
    assert_held_by("A");
}

static void bug_1_release_never_frees_the_successor(void **state)
{
    take("A");
    m->now_ms += TTL;
    assert_int_equal(take("B"), 0);
    assert_int_equal(release("A"), -HF_LOST);
    assert_string_equal(a.holder.owner, "B");
    assert_held_by("B");
    assert_int_equal(extend("B"), 0);
}

/* ---- rule 2: the same token is the same acquire --------------------------------------------- */

static void rule_2_a_retry_gets_the_same_fence_and_a_renewed_lease(void **state)
{
    take("A");
    struct hf_lease first = a.lease;
    m->now_ms += 1000;
    assert_int_equal(take("A"), 0);
    assert_ms(a.lease.fence, first.fence);
    assert_ms(a.lease.acquired_at_ms, first.acquired_at_ms);
    assert_ms(a.lease.expires_at_ms, first.expires_at_ms + 1000);
    assert_int_equal(record()->counts.granted, 1);
    assert_int_equal(count_events(HF_EV_ACQUIRED), 1);
}

static void rule_2_a_released_token_is_never_granted_again(void **state)
{
    take("A");
    release("A");
    assert_int_equal(take("A"), -HF_LOST);
    assert_int_equal(wait_for_it("A", 0), -HF_LOST);
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void rule_2_a_forced_token_is_never_granted_again(void **state)
{
    take("A");
    assert_int_equal(force(a.lease.fence), 0);
    assert_int_equal(take("A"), -HF_LOST);
}

static void rule_2_an_expired_token_is_never_granted_again(void **state)
{
    take("A");
    m->now_ms += TTL;
    assert_int_equal(take("A"), -HF_LOST);
    take("B");
    release("B");
    assert_int_equal(take("A"), -HF_LOST);
}

static void rule_2_ended_tokens_are_remembered_over_several_grants(void **state)
{
    char who[16];
    for (int i = 0; i < HF_ENDED_MAX; i++) {
        snprintf(who, sizeof who, "t%d", i);
        assert_int_equal(take(who), 0);
        assert_int_equal(release(who), 0);
    }
    assert_int_equal(take("t0"), -HF_LOST);
    assert_int_equal(record()->n_ended, HF_ENDED_MAX);
    take("last");
    release("last");
    assert_int_equal(record()->n_ended, HF_ENDED_MAX);
    assert_int_equal(take("t1"), -HF_LOST);
}

/* `n` others take it and give it back: their tokens are remembered, and those before are not. */
static void pass_through_hands(int n)
{
    static int number;
    for (int i = 0; i < n; i++) {
        char who[16];
        snprintf(who, sizeof who, "o%d", number++);
        assert_int_equal(take(who), 0);
        assert_int_equal(release(who), 0);
    }
}

static void bug_2_a_good_release_is_not_called_lost_however_late_it_is_repeated(void **state)
{
    take("A");
    int64_t fence = a.lease.fence;
    assert_int_equal(release_fence("A", fence), 0);
    pass_through_hands(HF_ENDED_MAX + 1);
    assert_int_equal(release_fence("A", fence), 0);
    take("B");
    assert_int_equal(release_fence("A", fence), 0);
    assert_held_by("B");
    assert_int_equal(record()->counts.release_lost, 0);
}

static void rule_1_a_lost_lease_is_never_called_released_however_late(void **state)
{
    take("A");
    int64_t fence = a.lease.fence;
    m->now_ms += TTL;
    pass_through_hands(HF_ENDED_MAX + 1);
    assert_int_equal(release_fence("A", fence), -HF_LOST);
    for (int i = 0; i <= HF_LOST_MAX; i++) {
        take("B");
        assert_int_equal(force(a.lease.fence), 0);
        m->locks[0].rec.n_ended = 0; /* so that B may come again */
    }
    assert_int_equal(record()->n_lost_fences, HF_LOST_MAX);
    assert_int_equal(release_fence("A", fence), -HF_LOST);
}

static void rule_1_nobody_releases_by_a_fence_that_is_not_over(void **state)
{
    pass_through_hands(1);
    take("A");
    int64_t fence = a.lease.fence;
    assert_int_equal(release_fence("B", fence), -HF_LOST);
    assert_int_equal(release_fence("B", fence + 1), -HF_LOST);
    assert_int_equal(release_fence("A", fence - 1), -HF_LOST);
    assert_held_by("A");
}

static void bug_2_a_retried_release_is_done_and_leaves_a_newer_grant_alone(void **state)
{
    take("A");
    assert_int_equal(release("A"), 0);
    assert_int_equal(release("A"), 0); /* its reply was lost */
    take("B");
    assert_int_equal(release("A"), 0);
    assert_held_by("B");
    assert_int_equal(record()->counts.released, 1);
}

static void rule_2_a_retried_wait_keeps_its_place(void **state)
{
    take("A");
    wait_for_it("B", 0);
    wait_for_it("C", 0);
    assert_int_equal(a.ahead, 1);
    m->now_ms += 1000;
    assert_int_equal(wait_for_it("B", 0), -HF_HELD);
    assert_true(a.queued);
    assert_int_equal(a.ahead, 0);
    assert_int_equal(look()->waiters, 2);
}

/* ---- rule 4: a renewal changes neither token nor fence -------------------------------------- */

static void rule_4_a_heartbeat_changes_times_only(void **state)
{
    take("A");
    struct hf_lease before = a.lease;
    m->now_ms += TTL / 3;
    assert_int_equal(extend("A"), 0);
    assert_ms(a.lease.fence, before.fence);
    assert_string_equal(a.lease.token, before.token);
    assert_ms(a.lease.acquired_at_ms, before.acquired_at_ms);
    assert_ms(a.lease.expires_at_ms, before.expires_at_ms + TTL / 3);
    assert_ms(a.lease.ttl_ms, TTL);
}

static int extend_for(const char *who, int64_t ttl_ms)
{
    return ask((struct hf_request){.op = HF_OP_EXTEND, .token = who, .ttl_ms = ttl_ms});
}

static void rule_4_extend_may_change_the_ttl(void **state)
{
    take("A");
    m->now_ms += TTL - 500;
    assert_int_equal(extend_for("A", 1000), 0);
    assert_ms(a.lease.ttl_ms, 1000);
    m->now_ms += 900;
    assert_int_equal(extend("A"), 0);
    m->now_ms += 1000;
    assert_int_equal(extend("A"), -HF_LOST);
}

/* exclusion.md, row 6 */
static void rule_4_a_late_copy_of_a_request_ends_no_lease_earlier(void **state)
{
    struct hf_request first = {.op = HF_OP_ACQUIRE, .token = "A", .owner = "A", .ttl_ms = 3000};
    assert_int_equal(ask(first), 0);
    assert_int_equal(extend_for("A", TTL), 0);
    int64_t expires_at_ms = a.lease.expires_at_ms;
    assert_int_equal(ask(first), 0);
    assert_ms(a.lease.expires_at_ms, expires_at_ms);
    assert_int_equal(extend_for("A", 1000), 0);
    assert_ms(a.lease.expires_at_ms, expires_at_ms);
    m->now_ms += TTL - 1;
    assert_held_by("A");
    m->now_ms += 1;
    assert_int_equal(extend("A"), -HF_LOST);
}

static void extended_events_are_sampled(void **state)
{
    take("A");
    for (int i = 0; i < 60; i++) {
        m->now_ms += TTL / 3;
        assert_int_equal(extend("A"), 0);
    }
    assert_int_equal(count_events(HF_EV_EXTENDED), 60 * (TTL / 3) / HF_EXTENDED_EVERY_MS);
}

/* ---- rule 6: the holder's ttl counts -------------------------------------------------------- */

static void rule_6_bug_10_a_contender_honours_the_holders_ttl(void **state)
{
    take("A");
    struct hf_request hasty = {.op = HF_OP_ACQUIRE, .token = "B", .owner = "B", .ttl_ms = 100};
    m->now_ms += 200;
    assert_int_equal(ask(hasty), -HF_HELD);
    m->now_ms += TTL - 201;
    assert_int_equal(ask(hasty), -HF_HELD);
    m->now_ms += 1;
    assert_int_equal(ask(hasty), 0);
}

/* ---- rule 7: takeover inside acquire; sweep only what is stale ------------------------------ */

static void rule_7_acquire_takes_over_an_expired_lease(void **state)
{
    take("A");
    int64_t fence = a.lease.fence;
    m->now_ms += TTL + 5;
    assert_int_equal(take("B"), 0);
    assert_true(a.lease.fence > fence);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_EXPIRED);
    assert_string_equal(a.lease.takeover.owner, "A");
    assert_ms(a.lease.takeover.fence, fence);
    assert_ms(a.lease.takeover.held_for_ms, TTL + 5);
    assert_ms(a.lease.takeover.ttl_ms, TTL);
    assert_int_equal(strlen(a.lease.takeover.lock_id), HF_LOCK_ID_LEN);
    assert_int_equal(record()->counts.taken_expired, 1);
}

static void rule_7_acquire_takes_over_a_dead_holder_at_once(void **state)
{
    take_bound("A", 11, 0);
    assert_int_equal(take("B"), -HF_HELD);
    assert_int_equal(a.holder.alive, HF_ALIVE);
    model_kill(m, 11);
    assert_int_equal(look()->state, HF_STATE_STALE);
    assert_int_equal(a.holder.alive, HF_DEAD);
    assert_int_equal(take("B"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_DIED);
    assert_int_equal(record()->counts.taken_died, 1);
    assert_int_equal(extend("A"), -HF_LOST);
}

static void rule_7_one_living_process_keeps_the_lease(void **state)
{
    ask((struct hf_request){
        .op = HF_OP_ACQUIRE, .token = "A", .ttl_ms = TTL, .bound = {11, 12}, .n_bound = 2});
    model_kill(m, 11);
    assert_int_equal(take("B"), -HF_HELD);
    model_kill(m, 12);
    assert_int_equal(take("B"), 0);
}

static void rule_7_sweep_frees_only_what_is_stale(void **state)
{
    take("A");
    m->now_ms += TTL - 1;
    extend("A"); /* a moment before */
    m->now_ms += 1;
    assert_int_equal(settle(), 0);
    assert_int_equal(a.freed, HF_STALE_NOT);
    assert_held_by("A");
    m->now_ms += TTL;
    assert_int_equal(settle(), 0);
    assert_int_equal(a.freed, HF_STALE_EXPIRED);
    assert_int_equal(look()->state, HF_STATE_FREE);
    settle();
    assert_int_equal(a.freed, HF_STALE_NOT);
}

static void rule_7_looking_changes_nothing(void **state)
{
    take("A");
    m->now_ms += TTL;
    size_t events = m->n_events;
    assert_int_equal(look()->state, HF_STATE_STALE);
    assert_int_equal(guard(1), -HF_FENCE_STALE);
    assert_true(record()->grant.held);
    assert_int_equal(m->n_events, events);
}

/* ---- rule 8: the fence outlives everything -------------------------------------------------- */

static void rule_8_bug_9_fences_grow_over_release_sweep_force_and_takeover(void **state)
{
    int64_t last = 0;
    char who[16];
    for (int i = 0; i < 40; i++) {
        snprintf(who, sizeof who, "t%d", i);
        assert_int_equal(take(who), 0);
        assert_true(a.lease.fence > last);
        last = a.lease.fence;
        if (i % 4 == 0)
            release(who);
        else if (i % 4 == 1)
            force(last);
        else
            m->now_ms += TTL;
        if (i % 4 == 2)
            settle();
        look();
        assert_ms(a.holder.fence, last); /* a free lock still knows it */
    }
}

static void rule_8_a_store_that_repeats_a_fence_grants_nothing(void **state)
{
    take("A");
    release("A");
    m->last_fence = 0;
    assert_int_equal(take("B"), -HF_INTERNAL);
    assert_int_equal(look()->state, HF_STATE_FREE);
}

/* ---- rule 9: the execution ends with its lease ---------------------------------------------- */

static void rule_9_takeover_sweep_and_force_abort_the_execution(void **state)
{
    take_once("A", "k1", "x1", 0);
    assert_string_equal(a.lease.execution_id, "x1");
    m->now_ms += TTL;
    take_once("B", "k2", "x2", 0);
    assert_int_equal(execution("x1")->state, HF_ABORTED);
    assert_string_equal(execution("x1")->reason, "expired");
    force(a.lease.fence);
    assert_int_equal(execution("x2")->state, HF_ABORTED);
    take_once("C", "k3", "x3", 0);
    m->now_ms += TTL;
    settle();
    assert_int_equal(execution("x3")->state, HF_ABORTED);
}

static void rule_9_a_zombies_finish_changes_nothing(void **state)
{
    take_once("A", "k", "x1", 0);
    m->now_ms += TTL;
    take_once("B", "k", "x2", 0);
    assert_int_equal(finish("A", HF_OUTCOME_SUCCESS), -HF_LOST);
    assert_int_equal(execution("x1")->state, HF_ABORTED);
    assert_int_equal(execution("x2")->state, HF_RUNNING);
    assert_int_equal(finish("B", HF_OUTCOME_SUCCESS), 0);
    assert_int_equal(execution("x2")->state, HF_SUCCESS);
}

static void once_success_occupies_the_key_and_failure_does_not(void **state)
{
    take_once("A", "k", "x1", 0);
    assert_int_equal(finish("A", HF_OUTCOME_FAILED), 0);
    assert_int_equal(take_once("B", "k", "x2", 0), 0);
    assert_int_equal(finish("B", HF_OUTCOME_SUCCESS), 0);
    assert_int_equal(take_once("C", "k", "x3", 0), -HF_DONE_ALREADY);
    assert_string_equal(last_event(HF_EV_SKIPPED)->execution_id, "x2");
    assert_int_equal(take_once("D", "other", "x4", 0), 0);
}

static void once_the_same_token_again_is_the_same_run(void **state)
{
    take_once("A", "k", "x1", 0);
    assert_int_equal(take_once("A", "k", "x1-again", 0), 0);
    assert_string_equal(a.lease.execution_id, "x1");
    assert_int_equal(count_events(HF_EV_STARTED), 1);
}

static void once_is_checked_again_after_waiting(void **state)
{
    take_once("A", "k", "x1", 0);
    assert_int_equal(take_once("B", "k", "x2", FOREVER), -HF_HELD);
    wait_for_it("C", 0);
    finish("A", HF_OUTCOME_SUCCESS); /* offers it to B */
    assert_held_by("B");
    assert_int_equal(take_once("B", "k", "x2", FOREVER), -HF_DONE_ALREADY);
    assert_held_by("C");
    assert_int_equal(wait_for_it("C", 0), 0);
}

/* ---- rule 11: force names the fence --------------------------------------------------------- */

static void rule_11_force_frees_at_once_whom_the_operator_saw(void **state)
{
    take("A");
    int64_t seen = a.lease.fence;
    assert_int_equal(force(seen + 1), -HF_FENCE_STALE);
    assert_held_by("A");
    assert_int_equal(force(seen), 0);
    assert_string_equal(a.holder.owner, "A");
    assert_int_equal(look()->state, HF_STATE_FREE);
    assert_int_equal(record()->counts.forced, 1);
    assert_int_equal(extend("A"), -HF_LOST);
}

static void rule_11_force_never_frees_a_successor(void **state)
{
    take("A");
    int64_t seen = a.lease.fence;
    release("A");
    take("B");
    assert_int_equal(force(seen), -HF_FENCE_STALE);
    assert_string_equal(a.holder.owner, "B");
    assert_held_by("B");
}

static void rule_11_force_of_what_is_stale_is_done_too(void **state)
{
    take("A");
    int64_t seen = a.lease.fence;
    m->now_ms += TTL;
    assert_int_equal(force(seen), 0);
    assert_int_equal(look()->state, HF_STATE_FREE);
    assert_int_equal(force(seen), -HF_FENCE_STALE);
}

static void rule_11_force_hands_over_to_who_waits(void **state)
{
    take("A");
    int64_t seen = a.lease.fence;
    wait_for_it("B", 0);
    assert_int_equal(force(seen), 0);
    assert_held_by("B");
}

static void guard_accepts_only_the_live_fence(void **state)
{
    take("A");
    int64_t fence = a.lease.fence;
    assert_int_equal(guard(fence), 0);
    assert_int_equal(guard(fence + 1), -HF_FENCE_STALE);
    assert_string_equal(a.holder.owner, "A");
    m->now_ms += TTL;
    assert_int_equal(guard(fence), -HF_FENCE_STALE);
    take("B");
    assert_int_equal(guard(fence), -HF_FENCE_STALE);
    assert_int_equal(guard(a.holder.fence), 0);
}

/* ---- events --------------------------------------------------------------------------------- */

static void denied_events_are_bounded_and_all_are_counted(void **state)
{
    take("A");
    for (int i = 0; i < 3 * HF_DENIED_PER_WINDOW; i++)
        take("B");
    assert_int_equal(count_events(HF_EV_DENIED), HF_DENIED_PER_WINDOW);
    assert_int_equal(record()->counts.held, 3 * HF_DENIED_PER_WINDOW);
    m->now_ms += HF_DENIED_WINDOW_MS;
    take("B");
    assert_int_equal(count_events(HF_EV_DENIED), HF_DENIED_PER_WINDOW + 1);
}

static void a_loss_is_told_with_the_fence_that_was_lost(void **state)
{
    take("A");
    int64_t fence = a.lease.fence;
    m->now_ms += TTL;
    take("B");
    ask((struct hf_request){.op = HF_OP_LOST, .token = "A", .fence = fence, .reason = "paused"});
    assert_ms(last_event(HF_EV_LOST)->fence, fence);
    assert_int_equal(record()->counts.lost, 1);
    assert_held_by("B");
}

static void status_of_an_unbound_holder_does_not_know_whether_it_lives(void **state)
{
    take("A");
    m->now_ms += 1234;
    look();
    assert_int_equal(a.holder.alive, HF_ALIVE_UNKNOWN);
    assert_ms(a.holder.held_for_ms, 1234);
    assert_ms(a.holder.remaining_ms, TTL - 1234);
    assert_ms(a.holder.locked_since_ms, m->now_ms + m->wall_offset_ms - 1234);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(rule_1_extend_and_release_need_the_token),
        T(rule_1_the_fence_is_checked_where_given),
        T(rule_1_an_expired_lease_is_not_extended_even_if_nobody_took_it),
        T(rule_1_an_expired_lease_is_not_released),
        T(rule_1_without_a_token_nobody_is_the_holder),
        T(bug_1_release_never_frees_the_successor),
        T(rule_2_a_retry_gets_the_same_fence_and_a_renewed_lease),
        T(rule_2_a_released_token_is_never_granted_again),
        T(rule_2_a_forced_token_is_never_granted_again),
        T(rule_2_an_expired_token_is_never_granted_again),
        T(rule_2_ended_tokens_are_remembered_over_several_grants),
        T(bug_2_a_good_release_is_not_called_lost_however_late_it_is_repeated),
        T(rule_1_a_lost_lease_is_never_called_released_however_late),
        T(rule_1_nobody_releases_by_a_fence_that_is_not_over),
        T(bug_2_a_retried_release_is_done_and_leaves_a_newer_grant_alone),
        T(rule_2_a_retried_wait_keeps_its_place),
        T(rule_4_a_heartbeat_changes_times_only),
        T(rule_4_extend_may_change_the_ttl),
        T(rule_4_a_late_copy_of_a_request_ends_no_lease_earlier),
        T(extended_events_are_sampled),
        T(rule_6_bug_10_a_contender_honours_the_holders_ttl),
        T(rule_7_acquire_takes_over_an_expired_lease),
        T(rule_7_acquire_takes_over_a_dead_holder_at_once),
        T(rule_7_one_living_process_keeps_the_lease),
        T(rule_7_sweep_frees_only_what_is_stale),
        T(rule_7_looking_changes_nothing),
        T(rule_8_bug_9_fences_grow_over_release_sweep_force_and_takeover),
        T(rule_8_a_store_that_repeats_a_fence_grants_nothing),
        T(rule_9_takeover_sweep_and_force_abort_the_execution),
        T(rule_9_a_zombies_finish_changes_nothing),
        T(once_success_occupies_the_key_and_failure_does_not),
        T(once_the_same_token_again_is_the_same_run),
        T(once_is_checked_again_after_waiting),
        T(rule_11_force_frees_at_once_whom_the_operator_saw),
        T(rule_11_force_never_frees_a_successor),
        T(rule_11_force_of_what_is_stale_is_done_too),
        T(rule_11_force_hands_over_to_who_waits),
        T(guard_accepts_only_the_live_fence),
        T(denied_events_are_bounded_and_all_are_counted),
        T(a_loss_is_told_with_the_fence_that_was_lost),
        T(status_of_an_unbound_holder_does_not_know_whether_it_lives),
    };
    return cmocka_run_group_tests_name("lease", tests, NULL, NULL);
}
