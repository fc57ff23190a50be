/*
 * Executions, rule by rule, played to the model. First the behaviour matrix of the document that
 * asked for them (one RUNNING execution per workflow), row by row; then keys, attempts, cancelling.
 * Whose turn it is: test_turns.c.
 */
#include "execution_scene.h"

/* ---- the matrix ----------------------------------------------------------------------------- */

static void row_1_execution_starts_no_lock_acquire_execute(void **state)
{
    assert_int_equal(begin("A", "x1"), 0);
    assert_true(a.has_execution);
    assert_false(a.execution.duplicate);
    assert_string_equal(a.lease.execution_id, "x1");
    assert_ms(a.execution.fence, a.lease.fence);
    assert_int_equal(a.execution.attempt, 1);
    assert_state("x1", HF_RUNNING);
    assert_string_equal(look()->execution_id, "x1");
}

static void row_2_concurrent_start_is_refused_with_the_running_id_and_leaves_no_record(void **state)
{
    begin("A", "x1");
    assert_int_equal(begin("B", "x2"), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x1");
    assert_int_equal(m->n_executions, 1);
    assert_state("x1", HF_RUNNING);
}

static void
row_3_lock_whose_execution_is_not_running_is_cleaned_and_the_start_goes_ahead(void **state)
{
    begin("A", "x1");
    spawn("A");
    model_execution(m, "x1")->x.state =
        HF_FAILED; /* as a crash between two writes would leave it */
    assert_int_equal(look()->state, HF_STATE_STALE);
    assert_int_equal(begin("B", "x2"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_ENDED);
    assert_int_equal(count_events(HF_EV_TAKEN_OVER), 1);
    assert_state("x1", HF_FAILED);
    assert_state("x2", HF_RUNNING);
    assert_int_equal(extend("A"), -HF_LOST);
}

static void row_3_its_own_holder_is_told_that_it_is_over(void **state)
{
    begin("A", "x1");
    model_execution(m, "x1")->x.state = HF_ABORTED;
    assert_int_equal(extend("A"), -HF_LOST);
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void row_4_expired_lock_is_cleaned_and_the_start_goes_ahead(void **state)
{
    begin("A", "x1");
    spawn("A");
    m->now_ms += TTL;
    assert_int_equal(begin("B", "x2"), 0);
    assert_int_equal(a.lease.takeover.reason, HF_STALE_EXPIRED);
    assert_state("x1", HF_ABORTED);
    assert_string_equal(execution("x1")->reason, "expired");
    assert_state("x2", HF_RUNNING);
}

static void row_5_lock_is_released_on_success_failed_and_aborted(void **state)
{
    static const enum hf_outcome outcomes[] = {HF_OUTCOME_SUCCESS, HF_OUTCOME_FAILED,
                                               HF_OUTCOME_ABORTED};
    static const enum hf_execution_state states[] = {HF_SUCCESS, HF_FAILED, HF_ABORTED};
    static const char *const who[] = {"A", "B", "C"}, *const ids[] = {"x1", "x2", "x3"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(begin(who[i], ids[i]), 0);
        assert_int_equal(finish(who[i], outcomes[i]), 0);
        assert_true(a.has_execution);
        assert_state(ids[i], states[i]);
        assert_true(execution(ids[i])->finished_at_ms > 0);
        assert_int_equal(look()->state, HF_STATE_FREE);
    }
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void key_same_input_is_the_same_execution(void **state)
{
    begin_key("A", "x1", "k", "in");
    assert_int_equal(begin_key("B", "x2", "k", "in"), 0);
    assert_true(a.execution.duplicate);
    assert_string_equal(a.execution.id, "x1");
    assert_int_equal(a.execution.state, HF_RUNNING);
    assert_string_equal(a.lease.token, "");
    assert_int_equal(m->n_executions, 1);
    assert_int_equal(count_events(HF_EV_DUPLICATE), 1);
    finish("A", HF_OUTCOME_FAILED);
    assert_int_equal(begin_key("C", "x3", "k", "in"), 0);
    assert_true(a.execution.duplicate);
    assert_int_equal(a.execution.state, HF_FAILED);
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void key_other_input_is_refused_in_every_state(void **state)
{
    begin_key("A", "x1", "k", "in");
    assert_int_equal(begin_key("B", "x2", "k", "other"), -HF_KEY_REUSED);
    assert_string_equal(a.execution.id, "x1");
    assert_int_equal(begin_key("B", "x2", "k", NULL), -HF_KEY_REUSED);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_int_equal(begin_key("B", "x2", "k", "other"), -HF_KEY_REUSED);
    assert_int_equal(enqueue("x3", "k", "other", 0), -HF_KEY_REUSED);
    assert_int_equal(m->n_executions, 1);
}

static void key_is_of_one_workflow(void **state)
{
    begin_key("A", "x1", "k", "in");
    assert_int_equal(ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                             .name = "another",
                                             .workflow = "another",
                                             .token = "B",
                                             .owner = "B",
                                             .ttl_ms = TTL,
                                             .execution_id = "x2",
                                             .key = "k"}),
                     0);
    assert_false(a.execution.duplicate);
}

static void key_is_checked_before_the_lock(void **state)
{
    begin_key("A", "x1", "k", NULL);
    finish("A", HF_OUTCOME_SUCCESS);
    begin("B", "x2");
    assert_int_equal(begin_key("C", "x3", "k", NULL), 0);
    assert_true(a.execution.duplicate);
}

static void key_that_is_pending_is_taken_up(void **state)
{
    enqueue("x1", "k", "in", 0);
    assert_int_equal(begin_key("A", "x2", "k", "in"), 0);
    assert_false(a.execution.duplicate);
    assert_string_equal(a.lease.execution_id, "x1");
    assert_int_equal(m->n_executions, 1);
    assert_state("x1", HF_RUNNING);
}

static void key_that_is_pending_stays_so_while_the_lock_is_held(void **state)
{
    enqueue("x1", "k", NULL, 0);
    begin("A", "x2");
    assert_int_equal(begin_key("B", "x3", "k", NULL), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x2");
    assert_state("x1", HF_PENDING);
}

static void key_found_after_waiting_hands_the_offer_on(void **state)
{
    begin_key("A", "x1", "k1", NULL);
    struct hf_request waits = {.wait_ms = FOREVER};
    assert_int_equal(begin_with("B", "x2", "k2", NULL, waits), -HF_HELD);
    assert_int_equal(begin_with("C", "x3", "k2", NULL, waits), -HF_HELD);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_int_equal(begin_with("B", "x2", "k2", NULL, waits), 0);
    assert_int_equal(finish("B", HF_OUTCOME_SUCCESS), 0); /* offers it to C */
    assert_int_equal(begin_with("C", "x3", "k2", NULL, waits), 0);
    assert_true(a.execution.duplicate);
    assert_string_equal(a.execution.id, "x2");
    assert_int_equal(look()->state, HF_STATE_FREE);
}

static void id_is_never_used_twice(void **state)
{
    begin("A", "x1");
    finish("A", HF_OUTCOME_FAILED);
    assert_int_equal(begin("B", "x1"), 0);
    assert_true(a.execution.duplicate);
    assert_int_equal(a.execution.state, HF_FAILED);
}

static void same_token_is_the_same_begin(void **state)
{
    begin_key("A", "x1", "k", "in");
    int64_t fence = a.lease.fence;
    assert_int_equal(begin_key("A", "x9", "k", "in"), 0);
    assert_false(a.execution.duplicate);
    assert_ms(a.lease.fence, fence);
    assert_int_equal(a.execution.attempt, 1);
    assert_int_equal(count_events(HF_EV_STARTED), 1);
}

static void once_run_elsewhere_is_held(void **state)
{
    take_once("A", "k", "x1", 0);
    assert_int_equal(ask((struct hf_request){.op = HF_OP_ACQUIRE,
                                             .name = "another lock",
                                             .workflow = NAME,
                                             .token = "B",
                                             .owner = "B",
                                             .ttl_ms = TTL,
                                             .execution_id = "x2",
                                             .key = "k",
                                             .once = true}),
                     -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x1");
    assert_int_equal(m->n_executions, 1);
}

/* ---- lost attempts -------------------------------------------------------------------------- */

static void lost_before_it_was_spawned_is_pending_again(void **state)
{
    begin_key("A", "x1", "k", NULL);
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_PENDING);
    assert_int_equal(finish("A", HF_OUTCOME_SUCCESS), -HF_LOST);
    assert_state("x1", HF_PENDING);
    assert_int_equal(begin_key("B", "x2", "k", NULL), 0);
    assert_string_equal(a.execution.id, "x1");
    assert_int_equal(a.execution.attempt, 2);
}

static void lost_and_taken_up_in_one_step(void **state)
{
    begin_key("A", "x1", "k", NULL);
    m->now_ms += TTL;
    assert_int_equal(begin_key("B", "x2", "k", NULL), 0);
    assert_string_equal(a.lease.execution_id, "x1");
    assert_int_equal(a.execution.attempt, 2);
    assert_int_equal(m->n_executions, 1);
}

static void lost_after_it_was_spawned_is_aborted_by_default(void **state)
{
    begin("A", "x1");
    assert_int_equal(spawn("A"), 0);
    assert_true(execution("x1")->spawned);
    force(execution("x1")->fence);
    assert_state("x1", HF_ABORTED);
    assert_string_equal(execution("x1")->reason, "forced");
}

static void lost_with_retry_is_pending_while_attempts_are_left(void **state)
{
    struct hf_request retry = {.on_lost = HF_ON_LOST_RETRY, .max_attempts = 2};
    begin_with("A", "x1", NULL, NULL, retry);
    spawn("A");
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_PENDING);
    assert_int_equal(claim("B", "x1"), 0);
    assert_false(a.execution.spawned);
    spawn("B");
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_ABORTED);
}

static void lost_with_verify_is_never_begun_before_it_was_verified(void **state)
{
    struct hf_request verify = {.on_lost = HF_ON_LOST_VERIFY};
    begin_with("A", "x1", "k", NULL, verify);
    spawn("A");
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_PENDING);
    assert_true(execution("x1")->to_verify);
    assert_int_equal(claim("B", "x1"), -HF_RACED);
    assert_int_equal(begin_with("C", "x2", "k", NULL, verify), 0);
    assert_true(a.execution.duplicate);
    assert_state("x1", HF_PENDING);
}

static void lost_once_run_is_aborted_as_nobody_would_run_it(void **state)
{
    take_once("A", "k", "x1", 0);
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_ABORTED);
}

static void lost_while_it_was_to_be_cancelled_is_not_repeated(void **state)
{
    begin("A", "x1");
    cancel("x1");
    m->now_ms += TTL;
    settle();
    assert_state("x1", HF_ABORTED);
}

static void running_without_its_lease_is_mended_by_whoever_comes(void **state)
{
    begin_key("A", "x1", "k", NULL);
    spawn("A");
    record()->grant = (struct hf_grant){.fence = record()->grant.fence}; /* the lock was edited */
    assert_int_equal(ask((struct hf_request){.op = HF_OP_SETTLE, .execution_id = "x1"}), 0);
    assert_state("x1", HF_ABORTED);
    assert_string_equal(execution("x1")->reason, "its lease was gone");
}

static void plain_release_aborts(void **state)
{
    begin("A", "x1");
    spawn("A");
    assert_int_equal(release("A"), 0);
    assert_state("x1", HF_ABORTED);
}

/* ---- finish --------------------------------------------------------------------------------- */

static int finish_fully(const char *who, const char *id, int64_t fence, enum hf_outcome outcome)
{
    return ask((struct hf_request){
        .op = HF_OP_RELEASE, .token = who, .fence = fence, .execution_id = id, .outcome = outcome});
}

static void finish_again_is_done_but_another_result_is_refused(void **state)
{
    begin("A", "x1");
    int64_t fence = a.lease.fence;
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_SUCCESS), 0);
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_SUCCESS), 0);
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_FAILED), -HF_LOST);
    assert_state("x1", HF_SUCCESS);
    assert_int_equal(count_events(HF_EV_FINISHED), 1);
}

static void finish_of_a_zombie_changes_nothing(void **state)
{
    struct hf_request retry = {.on_lost = HF_ON_LOST_RETRY};
    begin_with("A", "x1", NULL, NULL, retry);
    int64_t fence = a.lease.fence;
    spawn("A");
    m->now_ms += TTL;
    assert_int_equal(settle(), 0);
    assert_int_equal(claim("B", "x1"), 0);
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_FAILED), -HF_LOST);
    assert_state("x1", HF_RUNNING);
    int64_t later = a.holder.fence;
    assert_int_equal(finish_fully("B", "x1", later, HF_OUTCOME_SUCCESS), 0);
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_SUCCESS), -HF_LOST);
}

static void finish_of_an_attempt_is_done_though_the_next_one_has_begun(void **state)
{
    begin_with("A", "x1", NULL, NULL, (struct hf_request){.retry_backoff_ms = 1000});
    int64_t fence = a.lease.fence;
    spawn("A");
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_FAILED), 0);
    m->now_ms += TTL;
    assert_int_equal(claim("B", "x1"), 0);
    int64_t later = a.lease.fence;
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_FAILED), 0);
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_SUCCESS), -HF_LOST);
    assert_state("x1", HF_RUNNING);
    assert_int_equal(finish_fully("B", "x1", later, HF_OUTCOME_SUCCESS), 0);
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_FAILED), 0);
    assert_state("x1", HF_SUCCESS);
    assert_int_equal(count_events(HF_EV_FINISHED), 2);
}

static void finish_of_what_is_found_to_have_ended_so_is_done(void **state)
{
    begin("A", "x1");
    int64_t fence = a.lease.fence;
    spawn("A");
    m->now_ms += TTL; /* it is ABORTED by this very request */
    assert_int_equal(finish_fully("A", "x1", fence, HF_OUTCOME_ABORTED), 0);
    assert_string_equal(execution("x1")->reason, "expired");
}

static void finish_keeps_exit_code_and_output(void **state)
{
    begin("A", "x1");
    assert_int_equal(ask((struct hf_request){.op = HF_OP_RELEASE,
                                             .token = "A",
                                             .outcome = HF_OUTCOME_FAILED,
                                             .has_exit_code = true,
                                             .exit_code = 3,
                                             .reason = "exit code 3",
                                             .has_output = true,
                                             .output_head = "ab",
                                             .output_head_size = 2,
                                             .output_tail = "z",
                                             .output_tail_size = 1,
                                             .output_skipped = 7}),
                     0);
    const struct model_execution *x = model_execution(m, "x1");
    assert_int_equal(x->x.exit_code, 3);
    assert_true(x->x.has_exit_code);
    assert_string_equal(x->x.reason, "exit code 3");
    assert_int_equal(x->head.n, 2);
    assert_int_equal(x->tail.n, 1);
    assert_ms(x->skipped, 7);
}

/* ---- cancel --------------------------------------------------------------------------------- */

static void cancel_of_a_pending_one_aborts_it_at_once(void **state)
{
    enqueue("x1", NULL, NULL, 0);
    assert_int_equal(cancel("x1"), 0);
    assert_int_equal(a.execution.state, HF_ABORTED);
    assert_state("x1", HF_ABORTED);
    assert_int_equal(claim("A", "x1"), -HF_RACED);
}

static void cancel_of_a_running_one_is_told_by_its_heartbeat(void **state)
{
    begin("A", "x1");
    spawn("A");
    assert_int_equal(extend("A"), 0);
    assert_false(a.lease.cancel_requested);
    assert_int_equal(cancel("x1"), 0);
    assert_state("x1", HF_RUNNING);
    assert_int_equal(extend("A"), 0);
    assert_true(a.lease.cancel_requested);
    assert_int_equal(finish("A", HF_OUTCOME_ABORTED), 0);
    assert_state("x1", HF_ABORTED);
}

static void cancel_before_spawn_keeps_it_from_being_marked(void **state)
{
    begin("A", "x1");
    cancel("x1");
    assert_int_equal(spawn("A"), 0);
    assert_true(a.lease.cancel_requested);
    assert_false(execution("x1")->spawned);
}

static void cancel_of_a_terminal_one_changes_nothing(void **state)
{
    begin("A", "x1");
    finish("A", HF_OUTCOME_SUCCESS);
    assert_int_equal(cancel("x1"), 0);
    assert_int_equal(a.execution.state, HF_SUCCESS);
    assert_false(execution("x1")->cancel_requested);
    assert_int_equal(cancel("never"), -HF_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(row_1_execution_starts_no_lock_acquire_execute),
        T(row_2_concurrent_start_is_refused_with_the_running_id_and_leaves_no_record),
        T(row_3_lock_whose_execution_is_not_running_is_cleaned_and_the_start_goes_ahead),
        T(row_3_its_own_holder_is_told_that_it_is_over),
        T(row_4_expired_lock_is_cleaned_and_the_start_goes_ahead),
        T(row_5_lock_is_released_on_success_failed_and_aborted),
        T(key_same_input_is_the_same_execution),
        T(key_other_input_is_refused_in_every_state),
        T(key_is_of_one_workflow),
        T(key_is_checked_before_the_lock),
        T(key_that_is_pending_is_taken_up),
        T(key_that_is_pending_stays_so_while_the_lock_is_held),
        T(key_found_after_waiting_hands_the_offer_on),
        T(id_is_never_used_twice),
        T(same_token_is_the_same_begin),
        T(once_run_elsewhere_is_held),
        T(lost_before_it_was_spawned_is_pending_again),
        T(lost_and_taken_up_in_one_step),
        T(lost_after_it_was_spawned_is_aborted_by_default),
        T(lost_with_retry_is_pending_while_attempts_are_left),
        T(lost_with_verify_is_never_begun_before_it_was_verified),
        T(lost_once_run_is_aborted_as_nobody_would_run_it),
        T(lost_while_it_was_to_be_cancelled_is_not_repeated),
        T(running_without_its_lease_is_mended_by_whoever_comes),
        T(plain_release_aborts),
        T(finish_again_is_done_but_another_result_is_refused),
        T(finish_of_a_zombie_changes_nothing),
        T(finish_of_an_attempt_is_done_though_the_next_one_has_begun),
        T(finish_of_what_is_found_to_have_ended_so_is_done),
        T(finish_keeps_exit_code_and_output),
        T(cancel_of_a_pending_one_aborts_it_at_once),
        T(cancel_of_a_running_one_is_told_by_its_heartbeat),
        T(cancel_before_spawn_keeps_it_from_being_marked),
        T(cancel_of_a_terminal_one_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
