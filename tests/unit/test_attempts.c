/* How many attempts, rule by rule, played to the model: concurrency, retries, verifying. */
#include "execution_scene.h"

/* ---- concurrency ---------------------------------------------------------------------------- */

/* Of the workflow NAME, two at once, each with a lock of its own. */
static int enqueue_limited(const char *id)
{
    return enqueue_as(id, HF_OVERLAP_QUEUE, (struct hf_request){.name = id, .concurrency = 2});
}

static int claim_at(const char *who, const char *id)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                   .name = id,
                                   .token = who,
                                   .owner = who,
                                   .ttl_ms = TTL,
                                   .execution_id = id,
                                   .claim = true});
}

static int begin_at(const char *who, const char *id, struct hf_request more)
{
    more.name = id;
    more.concurrency = 2;
    return begin_with(who, id, NULL, NULL, more);
}

static void concurrency_keeps_the_third_from_being_claimed(void **state)
{
    enqueue_limited("x1");
    enqueue_limited("x2");
    enqueue_limited("x3");
    enqueue_as("y1", HF_OVERLAP_QUEUE, (struct hf_request){.name = "y1", .workflow = "w2"});
    assert_int_equal(claim_at("A", "x1"), 0);
    assert_string_equal(due(), "x2 x3 y1");
    assert_int_equal(claim_at("B", "x2"), 0);
    assert_string_equal(due(), "y1");
    assert_int_equal(claim_at("C", "x3"), -HF_RACED);
    assert_state("x3", HF_PENDING);
    assert_false(execution("x3")->parked);
    assert_int_equal(claim_at("A", "x1"), 0); /* the reply was lost: it runs already */
    ask((struct hf_request){
        .op = HF_OP_RELEASE, .name = "x1", .token = "A", .outcome = HF_OUTCOME_SUCCESS});
    assert_string_equal(due(), "x3 y1");
    assert_int_equal(claim_at("C", "x3"), 0);
}

static void concurrency_refuses_a_begin(void **state)
{
    begin_at("A", "x1", NOTHING_MORE);
    begin_at("B", "x2", NOTHING_MORE);
    assert_int_equal(begin_at("C", "x3", NOTHING_MORE), -HF_HELD);
    assert_int_equal(a.holder.state, HF_STATE_FREE);
    assert_int_equal(m->n_executions, 2);
    assert_string_equal(last_event(HF_EV_DENIED)->reason, "concurrency");
    assert_int_equal(begin_with("D", "x4", NULL, NULL, (struct hf_request){.name = "x4"}), 0);
}

static void concurrency_counts_others_only(void **state)
{
    struct hf_request one = {.name = "x1", .concurrency = 1};
    begin_with("A", "x1", "k", NULL, one);
    m->now_ms += TTL; /* not spawned: PENDING again */
    assert_int_equal(begin_with("B", "x9", "k", NULL, one), 0);
    assert_string_equal(a.execution.id, "x1");
    model_lock(m, "x1")->rec.grant = (struct hf_grant){.fence = 99}; /* edited by hand */
    assert_int_equal(begin_with("C", "x9", "k", NULL, one), 0);
    assert_int_equal(a.execution.attempt, 3);
}

static void concurrency_hands_an_offer_on(void **state)
{
    begin_at("A", "x1", NOTHING_MORE);
    begin_at("B", "x2", NOTHING_MORE);
    assert_int_equal(take("P"), 0);
    struct hf_request waits = {.wait_ms = FOREVER, .concurrency = 2};
    assert_int_equal(begin_with("C", "x3", NULL, NULL, waits), -HF_HELD);
    assert_true(a.queued);
    wait_for_it("Q", 0);
    release("P"); /* offered to C, which may not begin */
    assert_int_equal(begin_with("C", "x3", NULL, NULL, waits), -HF_HELD);
    assert_false(a.queued);
    assert_held_by("Q");
}

static void concurrency_is_told_where_there_is_room(void **state)
{
    struct hf_request limited = {.concurrency = 1};
    begin_with("A", "x1", NULL, NULL, limited);
    assert_int_equal(m->n_ready, 0);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_int_equal(m->n_ready, 1);
    assert_string_equal(m->ready[0], NAME);
    begin_with("B", "x2", NULL, NULL, limited);
    m->now_ms += TTL;
    settle();
    assert_state("x2", HF_PENDING);
    assert_int_equal(m->n_ready, 2); /* it is ready, and so may be another one */
    begin("C", "x3");
    finish("C", HF_OUTCOME_SUCCESS);
    assert_int_equal(m->n_ready, 0); /* without a limit there was room before */
}

/* ---- retries -------------------------------------------------------------------------------- */

enum { BACKOFF = 1000 };

static int fail_with(const char *who, int exit_code)
{
    return ask((struct hf_request){.op = HF_OP_RELEASE,
                                   .token = who,
                                   .outcome = HF_OUTCOME_FAILED,
                                   .has_exit_code = true,
                                   .exit_code = exit_code});
}

static void assert_delay(int64_t ms)
{
    int64_t delay_ms = a.execution.run_at_ms - wall_ms();
    assert_in_range(delay_ms, ms, ms + ms / 4);
}

static void retry_waits_longer_each_time_until_attempts_are_spent(void **state)
{
    struct hf_request thrice = {.retry_backoff_ms = BACKOFF, .max_attempts = 3};
    enqueue_as("x1", HF_OVERLAP_QUEUE, thrice);
    static const char *const who[] = {"A", "B", "C"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(claim(who[i], "x1"), 0);
        spawn(who[i]);
        spawn(who[i]); /* said twice, done once */
        assert_int_equal(execution("x1")->spent, i + 1);
        assert_int_equal(fail_with(who[i], 3), 0);
        assert_int_equal(look()->state, HF_STATE_FREE);
        ask((struct hf_request){.op = HF_OP_SETTLE});
        assert_state("x1", i < 2 ? HF_PENDING : HF_FAILED);
        a.execution = *execution("x1");
        if (i == 2)
            break;
        assert_delay(BACKOFF << i);
        assert_ms(a.execution.finished_at_ms, 0);
        assert_int_equal(a.execution.exit_code, 3);
        assert_string_equal(due(), "");
        m->now_ms = a.execution.run_at_ms - m->wall_offset_ms;
        assert_string_equal(due(), "x1");
    }
    assert_int_equal(count_events(HF_EV_FINISHED), 3);
    assert_string_equal(last_event(HF_EV_FINISHED)->reason, "failed with exit code 3");
}

static void retry_is_answered_as_pending_and_once_more_where_the_reply_was_lost(void **state)
{
    enqueue_as("x1", HF_OVERLAP_QUEUE, (struct hf_request){.retry_backoff_ms = BACKOFF});
    claim("A", "x1");
    struct hf_request failed = {.op = HF_OP_RELEASE,
                                .token = "A",
                                .fence = a.lease.fence,
                                .execution_id = "x1",
                                .outcome = HF_OUTCOME_FAILED};
    assert_int_equal(ask(failed), 0);
    assert_int_equal(a.execution.state, HF_PENDING);
    assert_int_equal(a.execution.spent, 1); /* by a runner that never says when it starts */
    assert_int_equal(m->n_ready, 1);
    assert_int_equal(ask(failed), 0);
    assert_int_equal(a.execution.state, HF_PENDING);
    failed.outcome = HF_OUTCOME_SUCCESS;
    assert_int_equal(ask(failed), -HF_LOST);
    assert_int_equal(execution("x1")->spent, 1);
}

/* Its attempt ended as it said, and the execution was cancelled before there was another one. */
static void retry_that_was_cancelled_is_no_loss_of_the_attempt_before(void **state)
{
    static const enum hf_outcome outcomes[] = {HF_OUTCOME_FAILED, HF_OUTCOME_LOST};
    for (size_t i = 0; i < 2; i++) {
        model_clear(m);
        begin_with("A", "x1", NULL, NULL,
                   (struct hf_request){.on_lost = HF_ON_LOST_RETRY, .retry_backoff_ms = BACKOFF});
        struct hf_request end = {.op = HF_OP_RELEASE,
                                 .token = "A",
                                 .fence = a.lease.fence,
                                 .execution_id = "x1",
                                 .outcome = outcomes[i]};
        assert_int_equal(ask(end), 0);
        assert_state("x1", HF_PENDING);
        cancel("x1");
        assert_int_equal(ask(end), 0);
        assert_state("x1", HF_ABORTED);
    }
}

static void a_loss_that_was_cancelled_is_not_called_a_failure(void **state)
{
    begin_with("A", "x1", NULL, NULL, (struct hf_request){.on_lost = HF_ON_LOST_RETRY});
    struct hf_request end = {.op = HF_OP_RELEASE,
                             .token = "A",
                             .fence = a.lease.fence,
                             .execution_id = "x1",
                             .outcome = HF_OUTCOME_FAILED};
    m->now_ms += TTL;
    settle();
    cancel("x1");
    assert_state("x1", HF_ABORTED);
    assert_int_equal(ask(end), -HF_LOST);
}

/* ---- given up by its runner ------------------------------------------------------------------- */

static int give_up(const char *who, int64_t fence)
{
    return ask((struct hf_request){.op = HF_OP_RELEASE,
                                   .token = who,
                                   .fence = fence,
                                   .execution_id = "x1",
                                   .reason = "stopped",
                                   .outcome = HF_OUTCOME_LOST});
}

static void given_up_goes_by_on_lost(void **state)
{
    static const enum hf_execution_state becomes[] = {[HF_ON_LOST_ABORT] = HF_ABORTED,
                                                      [HF_ON_LOST_RETRY] = HF_PENDING,
                                                      [HF_ON_LOST_VERIFY] = HF_PENDING};
    for (int i = HF_ON_LOST_ABORT; i <= HF_ON_LOST_VERIFY; i++) {
        model_clear(m);
        begin_with("A", "x1", NULL, NULL, (struct hf_request){.on_lost = (enum hf_on_lost)i});
        int64_t fence = a.lease.fence;
        spawn("A");
        assert_int_equal(give_up("A", fence), 0);
        assert_int_equal(a.execution.state, becomes[i]);
        assert_state("x1", becomes[i]);
        assert_string_equal(execution("x1")->reason, "stopped");
        assert_int_equal(execution("x1")->to_verify, i == HF_ON_LOST_VERIFY);
        assert_int_equal(look()->state, HF_STATE_FREE);
        assert_int_equal(give_up("A", fence), 0); /* the reply was lost */
        assert_int_equal(m->n_ready, 0);
        assert_int_equal(count_events(HF_EV_FINISHED), 1);
        assert_int_equal(count_events(HF_EV_FORCED), 0);
    }
}

static void given_up_before_it_was_started_costs_nothing(void **state)
{
    queue_up("x1", 0);
    queue_up("x2", 0);
    claim("A", "x1");
    assert_int_equal(give_up("A", a.lease.fence), 0);
    assert_int_equal(execution("x1")->spent, 0);
    assert_string_equal(due(), "x1 x2");
}

static void given_up_not_by_who_has_lost_it(void **state)
{
    queue_up("x1", 0);
    claim("A", "x1");
    int64_t fence = a.lease.fence;
    m->now_ms += TTL;
    assert_int_equal(claim("B", "x1"), 0);
    assert_int_equal(give_up("A", fence), -HF_LOST);
    assert_state("x1", HF_RUNNING);
}

/* ---- retries, on ------------------------------------------------------------------------------ */

static void retry_of_what_was_lost_is_no_answer_to_a_zombie(void **state)
{
    enqueue_as("x1", HF_OVERLAP_QUEUE, (struct hf_request){.retry_backoff_ms = BACKOFF});
    claim("A", "x1");
    int64_t fence = a.lease.fence;
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_PENDING);
    assert_int_equal(ask((struct hf_request){.op = HF_OP_RELEASE,
                                             .token = "A",
                                             .fence = fence,
                                             .execution_id = "x1",
                                             .outcome = HF_OUTCOME_FAILED}),
                     -HF_LOST);
    assert_int_equal(execution("x1")->spent, 0); /* lost before it was started: costs nothing */
}

static void retry_not_of_what_was_cancelled_or_is_to_happen_once(void **state)
{
    struct hf_request retried = {.retry_backoff_ms = BACKOFF};
    begin_with("A", "x1", NULL, NULL, retried);
    cancel("x1");
    fail_with("A", 1);
    assert_state("x1", HF_FAILED);
    retried.once = true;
    begin_with("B", "x2", "k", NULL, retried);
    fail_with("B", 1);
    assert_state("x2", HF_FAILED);
    begin_with("C", "x3", NULL, NULL, NOTHING_MORE);
    fail_with("C", 1);
    assert_state("x3", HF_FAILED);
}

static void retry_waits_at_most_an_hour_or_its_own_backoff(void **state)
{
    enum { HOUR = 3600000 };
    struct hf_execution x = {.retry_backoff_ms = 5000, .spent = 1, .id = "x1"};
    int64_t first = hf_execution_backoff_ms(&x);
    assert_in_range(first, 5000, 6250);
    x.spent = 9;
    assert_in_range(hf_execution_backoff_ms(&x), 5000 * 256, 5000 * 256 * 5 / 4);
    x.spent = INT32_MAX;
    assert_in_range(hf_execution_backoff_ms(&x), HOUR, HOUR + HOUR / 4);
    x.retry_backoff_ms = HF_TTL_MAX_MS;
    assert_in_range(hf_execution_backoff_ms(&x), HF_TTL_MAX_MS, HF_TTL_MAX_MS / 4 * 5);
    x = (struct hf_execution){.retry_backoff_ms = 4000, .spent = 1, .id = "x2"};
    int64_t other = hf_execution_backoff_ms(&x);
    x.id[1] = '1';
    assert_true(other != hf_execution_backoff_ms(&x)); /* they do not all come at once */
}

/* ---- verifying ------------------------------------------------------------------------------ */

static int claim_to_verify(const char *who, const char *id)
{
    return ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                   .token = who,
                                   .owner = who,
                                   .ttl_ms = TTL,
                                   .execution_id = id,
                                   .claim = true,
                                   .verifies = true});
}

static void lose_to_verify(void)
{
    begin_with("A", "x1", NULL, NULL, (struct hf_request){.on_lost = HF_ON_LOST_VERIFY});
    spawn("A");
    m->now_ms += TTL;
    settle();
}

static void verify_is_for_those_who_can(void **state)
{
    lose_to_verify();
    assert_string_equal(due(), "");
    assert_string_equal(due_with((struct hf_due){.verifies = true}), "x1");
    assert_int_equal(claim("B", "x1"), -HF_RACED);
    assert_int_equal(claim_to_verify("B", "x1"), 0);
    assert_true(a.execution.to_verify);
    assert_true(a.execution.spawned);
    assert_int_equal(a.execution.attempt, 2);
    assert_int_equal(a.execution.spent, 1);
    assert_state("x1", HF_RUNNING);
}

static void verify_that_it_was_done(void **state)
{
    lose_to_verify();
    claim_to_verify("B", "x1");
    assert_int_equal(finish("B", HF_OUTCOME_SUCCESS), 0);
    assert_state("x1", HF_SUCCESS);
    assert_int_equal(execution("x1")->spent, 1);
}

static void verify_that_it_was_not_and_start_it(void **state)
{
    lose_to_verify();
    claim_to_verify("B", "x1");
    assert_int_equal(spawn("B"), 0);
    assert_false(a.execution.to_verify);
    assert_true(a.execution.spawned);
    assert_int_equal(a.execution.spent, 2);
    spawn("B");
    assert_int_equal(execution("x1")->spent, 2);
}

static void verify_lost_is_to_be_verified_again(void **state)
{
    lose_to_verify();
    claim_to_verify("B", "x1");
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_PENDING);
    assert_true(execution("x1")->to_verify);
    assert_true(execution("x1")->spawned);
}

static void verify_that_fails_is_not_repeated_without_an_answer(void **state)
{
    struct hf_request both = {.on_lost = HF_ON_LOST_VERIFY, .retry_backoff_ms = BACKOFF};
    begin_with("A", "x1", NULL, NULL, both);
    spawn("A");
    m->now_ms += TTL;
    settle();
    claim_to_verify("B", "x1");
    fail_with("B", 1);
    assert_state("x1", HF_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(concurrency_keeps_the_third_from_being_claimed),
        T(concurrency_refuses_a_begin),
        T(concurrency_counts_others_only),
        T(concurrency_hands_an_offer_on),
        T(concurrency_is_told_where_there_is_room),
        T(retry_waits_longer_each_time_until_attempts_are_spent),
        T(retry_is_answered_as_pending_and_once_more_where_the_reply_was_lost),
        T(retry_of_what_was_lost_is_no_answer_to_a_zombie),
        T(retry_that_was_cancelled_is_no_loss_of_the_attempt_before),
        T(a_loss_that_was_cancelled_is_not_called_a_failure),
        T(given_up_goes_by_on_lost),
        T(given_up_before_it_was_started_costs_nothing),
        T(given_up_not_by_who_has_lost_it),
        T(retry_not_of_what_was_cancelled_or_is_to_happen_once),
        T(retry_waits_at_most_an_hour_or_its_own_backoff),
        T(verify_is_for_those_who_can),
        T(verify_that_it_was_done),
        T(verify_that_it_was_not_and_start_it),
        T(verify_lost_is_to_be_verified_again),
        T(verify_that_fails_is_not_repeated_without_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
