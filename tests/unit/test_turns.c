/* Whose turn it is, rule by rule, played to the model: overlap, parking, claiming. */
#include "execution_scene.h"

/* ---- overlap -------------------------------------------------------------------------------- */

static void overlap_does_not_matter_while_the_lock_has_none(void **state)
{
    static const char *const ids[] = {"x0", "x1", "x2", "x3", "x4"};
    for (int i = HF_OVERLAP_REJECT; i <= HF_OVERLAP_CANCEL; i++) {
        assert_int_equal(enqueue_as(ids[i], (enum hf_overlap)i, NOTHING_MORE), 0);
        assert_state(ids[i], HF_PENDING);
        assert_int_equal(m->n_ready, 1);
        claim("A", ids[i]);
        finish("A", HF_OUTCOME_SUCCESS);
        m->locks[0].rec.n_ended = 0; /* so that A may come again */
    }
    assert_int_equal(count_events(HF_EV_DENIED), 0);
}

static void overlap_reject_names_the_one_that_runs(void **state)
{
    begin("A", "x1");
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x1");
    assert_int_equal(a.holder.state, HF_STATE_HELD);
    assert_int_equal(m->n_executions, 1);
    assert_string_equal(last_event(HF_EV_DENIED)->execution_id, "x1");
}

static void overlap_reject_names_the_one_that_is_due(void **state)
{
    queue_up("x1", 0);
    queue_up("x2", 3);
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x2");
    assert_int_equal(a.holder.state, HF_STATE_FREE);
    assert_int_equal(m->n_executions, 2);
    take("P"); /* a plain lease has no execution to name */
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x2");
    assert_string_equal(last_event(HF_EV_DENIED)->reason, "held");
}

static void overlap_reject_is_refused_by_a_plain_lease_but_not_by_the_future(void **state)
{
    enqueue_as("x1", HF_OVERLAP_REJECT, (struct hf_request){.run_at_ms = wall_ms() + 1});
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_REJECT, NOTHING_MORE), 0);
    cancel("x2");
    m->now_ms++;
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    cancel("x1");
    take("P");
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "");
    assert_string_equal(a.holder.owner, "P");
}

static void overlap_skip_is_told_as_skipped_and_uses_no_key(void **state)
{
    struct hf_request keyed = {.key = "k"};
    begin("A", "x1");
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_SKIP, keyed), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x1");
    assert_int_equal(count_events(HF_EV_SKIPPED), 1);
    assert_int_equal(count_events(HF_EV_DENIED), 0);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_SKIP, keyed), 0);
    assert_false(a.execution.duplicate);
}

static void overlap_is_looked_at_after_the_key(void **state)
{
    struct hf_request keyed = {.key = "k", .input = "in", .input_size = 2};
    struct hf_request other = {.key = "k"};
    enqueue_as("x1", HF_OVERLAP_REJECT, keyed);
    claim("A", "x1");
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_REJECT, keyed), 0);
    assert_true(a.execution.duplicate);
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_CANCEL, other), -HF_KEY_REUSED);
    assert_false(execution("x1")->cancel_requested);
    assert_int_equal(enqueue_as("x1", HF_OVERLAP_REJECT, NOTHING_MORE), 0); /* the same again */
}

static void overlap_queue_is_bounded_by_what_is_due(void **state)
{
    struct hf_request two = {.queue_limit = 2}, later = {.run_at_ms = wall_ms() + 1000};
    enqueue_as("x0", HF_OVERLAP_QUEUE, later);
    assert_int_equal(enqueue_as("x1", HF_OVERLAP_QUEUE, two), 0);
    claim("A", "x1");
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_QUEUE, two), 0);
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_QUEUE, two), 0);
    assert_int_equal(enqueue_as("x4", HF_OVERLAP_QUEUE, two), -HF_QUEUE_FULL);
    assert_int_equal(m->n_executions, 4);
    assert_int_equal(enqueue_as("x4", HF_OVERLAP_QUEUE, NOTHING_MORE), 0); /* 0: any number */
    later.queue_limit = 1;
    assert_int_equal(enqueue_as("x5", HF_OVERLAP_QUEUE, later), 0); /* what is scheduled, too */
}

static void overlap_replace_ends_those_that_wait(void **state)
{
    struct hf_request later = {.run_at_ms = wall_ms() + 1000};
    queue_up("x1", 0);
    queue_up("x2", 1);
    enqueue_as("x3", HF_OVERLAP_QUEUE, later);
    begin("A", "x4");
    queue_up("x5", 0);
    assert_true(execution("x5")->parked);
    assert_int_equal(enqueue_as("x6", HF_OVERLAP_REPLACE, NOTHING_MORE), 0);
    assert_state("x1", HF_ABORTED);
    assert_state("x2", HF_ABORTED);
    assert_state("x3", HF_PENDING);
    assert_state("x4", HF_RUNNING);
    assert_state("x5", HF_ABORTED);
    assert_false(execution("x5")->parked);
    assert_string_equal(execution("x5")->reason, "replaced by x6");
    assert_true(execution("x5")->finished_at_ms > 0);
    assert_false(execution("x4")->cancel_requested);
    assert_string_equal(last_event(HF_EV_FINISHED)->execution_id, "x2");
    assert_string_equal(last_event(HF_EV_FINISHED)->reason, "replaced by x6");
    finish("A", HF_OUTCOME_SUCCESS);
    assert_string_equal(due(), "x6");
}

static void overlap_replace_leaves_what_is_to_be_verified(void **state)
{
    begin_with("A", "x1", NULL, NULL, (struct hf_request){.on_lost = HF_ON_LOST_VERIFY});
    spawn("A");
    m->now_ms += TTL;
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_REPLACE, NOTHING_MORE), 0);
    assert_state("x1", HF_PENDING);
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x1"); /* it counts as one that waits */
}

static void overlap_cancel_asks_the_running_one_to_stop(void **state)
{
    begin("A", "x1");
    spawn("A");
    queue_up("x2", 0);
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_CANCEL, NOTHING_MORE), 0);
    assert_state("x2", HF_ABORTED);
    assert_state("x1", HF_RUNNING);
    extend("A");
    assert_true(a.lease.cancel_requested);
    assert_string_equal(due(), "");
    finish("A", HF_OUTCOME_ABORTED);
    assert_string_equal(due(), "x3");
}

static void overlap_is_judged_by_a_settled_lock(void **state)
{
    begin("A", "x1");
    spawn("A");
    m->now_ms += TTL; /* x1 is ABORTED: its lock is free, and nothing waits */
    assert_int_equal(enqueue_as("x2", HF_OVERLAP_REJECT, NOTHING_MORE), 0);
    claim("B", "x2");
    m->now_ms += TTL; /* x2 was not spawned: it is PENDING again, and so in the way */
    assert_int_equal(enqueue_as("x3", HF_OVERLAP_REJECT, NOTHING_MORE), -HF_HELD);
    assert_string_equal(a.holder.execution_id, "x2");
}

/* ---- parking -------------------------------------------------------------------------------- */

static void parked_by_a_claim_that_found_its_lock_held(void **state)
{
    queue_up("x1", 0);
    queue_up("x2", 0);
    claim("A", "x1");
    assert_string_equal(due(), "x2");
    assert_int_equal(claim("B", "x2"), -HF_HELD);
    assert_true(a.has_execution);
    assert_true(a.execution.parked);
    assert_string_equal(a.holder.execution_id, "x1");
    assert_string_equal(due(), "");
    assert_true(record()->parked);
    assert_int_equal(count_events(HF_EV_DENIED), 0);
}

static void parked_with_what_else_is_due(void **state)
{
    queue_up("x1", 0);
    queue_up("x2", 0);
    queue_up("x3", 3);
    enqueue_as("x4", HF_OVERLAP_QUEUE, (struct hf_request){.run_at_ms = wall_ms() + 1});
    enqueue_as("other", HF_OVERLAP_QUEUE, (struct hf_request){.name = "other"});
    claim("A", "x3");
    assert_int_equal(claim("B", "x1"), -HF_HELD);
    assert_true(execution("x2")->parked);
    assert_false(execution("x4")->parked);
    assert_string_equal(due(), "other");
    assert_int_equal(claim("B", "x2"), -HF_HELD);
    assert_true(a.execution.parked);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_string_equal(due(), "x1 other");
}

static void parked_at_once_where_the_lock_is_held(void **state)
{
    take("P");
    queue_up("x1", 0);
    assert_true(a.execution.parked);
    assert_int_equal(m->n_ready, 0);
    enqueue_as("x2", HF_OVERLAP_QUEUE, (struct hf_request){.run_at_ms = wall_ms() + 1});
    assert_false(a.execution.parked); /* it may be free by then */
    assert_int_equal(claim("A", "x2"), -HF_HELD);
    assert_false(execution("x2")->parked);
    m->now_ms++;
    assert_string_equal(due(), "x2");
}

static void unparked_one_by_one_in_order(void **state)
{
    take("P");
    queue_up("x1", 0);
    queue_up("x2", 5);
    m->now_ms++;
    queue_up("x3", 5);
    release("P");
    assert_int_equal(m->n_ready, 1);
    assert_string_equal(due(), "x2");
    assert_int_equal(claim("A", "x2"), 0);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_string_equal(due(), "x3");
    claim("B", "x3");
    finish("B", HF_OUTCOME_SUCCESS);
    assert_string_equal(due(), "x1");
    claim("C", "x1");
    assert_true(record()->parked);
    finish("C", HF_OUTCOME_SUCCESS);
    assert_int_equal(m->n_ready, 0);
    assert_false(record()->parked);
}

static void unparked_by_whatever_frees_the_lock(void **state)
{
    take("P");
    queue_up("x1", 0);
    queue_up("x2", 0);
    queue_up("x3", 0);
    force(record()->grant.fence);
    assert_string_equal(due(), "x1");
    claim("A", "x1");
    m->now_ms += TTL;
    settle(); /* x1 is PENDING again as well: it was not spawned */
    assert_int_equal(m->n_ready, 2);
    assert_string_equal(due(), "x1 x2");
}

static void unparked_not_while_another_one_is_given_the_lock(void **state)
{
    take("P");
    queue_up("x1", 0);
    wait_for_it("Q", 0);
    release("P"); /* offered to Q */
    assert_int_equal(m->n_ready, 0);
    withdraw("Q");
    assert_string_equal(due(), "x1");
    take("R");
    m->now_ms += TTL;
    assert_int_equal(claim("B", "x1"), 0); /* takes it over */
    queue_up("x2", 0);
    m->now_ms += TTL;
    take("S"); /* and so does S: nothing is made ready but what was lost */
    assert_int_equal(m->n_ready, 1);
    assert_string_equal(due(), "x1");
}

static void unparked_where_the_ready_one_is_cancelled(void **state)
{
    take("P");
    queue_up("x1", 2);
    queue_up("x2", 1);
    queue_up("x3", 0);
    release("P");
    assert_string_equal(due(), "x1");
    cancel("x3"); /* one that is parked */
    assert_string_equal(due(), "x1");
    cancel("x1");
    assert_string_equal(due(), "x2");
}

static int queue_up_of(const char *workflow, const char *id, struct hf_request more)
{
    more.workflow = workflow;
    return enqueue_as(id, HF_OVERLAP_QUEUE, more);
}

static void unparked_the_first_of_each_workflow(void **state)
{
    take("P");
    queue_up_of("nobody's", "x1", (struct hf_request){.priority = 9});
    queue_up_of("nobody's", "x2", (struct hf_request){.priority = 9});
    queue_up_of("ours", "x3", NOTHING_MORE);
    queue_up_of("ours", "x4", (struct hf_request){.priority = 1});
    queue_up_of("ours", "x5", (struct hf_request){.concurrency = 2});
    release("P");
    assert_int_equal(m->n_ready, 3);
    assert_string_equal(due(), "x1 x4 x5");
    assert_int_equal(claim("A", "x4"), 0); /* by one who takes only ours */
    assert_string_equal(due(), "");        /* the others are not looked at meanwhile */
    finish("A", HF_OUTCOME_SUCCESS);
    assert_string_equal(due(), "x1 x3 x5");
    assert_int_equal(claim("B", "x1"), 0);
    finish("B", HF_OUTCOME_SUCCESS);
    assert_string_equal(due(), "x2 x3 x5");
}

static void unparked_beside_what_is_to_be_verified(void **state)
{
    begin_with("A", "x1", NULL, NULL, (struct hf_request){.on_lost = HF_ON_LOST_VERIFY});
    spawn("A");
    queue_up("x2", 0);
    queue_up("x3", 0);
    m->now_ms += TTL;
    settle();
    assert_string_equal(due(), "x2");
    take("P");
    assert_int_equal(claim("B", "x1"), -HF_RACED); /* B does not verify */
    assert_int_equal(claim("B", "x2"), -HF_HELD);
    assert_true(execution("x1")->parked);
    release("P");
    assert_string_equal(due(), "x2"); /* x1 goes before it, but not for everybody */
    assert_string_equal(due_with((struct hf_due){.verifies = true}), "x1 x2");
}

static void unparked_ones_stay_ready_while_a_plain_lease_comes_and_goes(void **state)
{
    take("P");
    queue_up("x1", 0);
    queue_up("x2", 0);
    release("P");
    take("Q");
    assert_string_equal(due(), "x1");
    release("Q");
    assert_string_equal(due(), "x1 x2");
    claim("A", "x1");
    assert_string_equal(due(), "");
}

/* ---- claiming ------------------------------------------------------------------------------- */

static void claim_takes_only_what_is_pending_and_free(void **state)
{
    queue_up("x1", 0);
    queue_up("x2", 0);
    assert_int_equal(claim("A", "x1"), 0);
    assert_int_equal(claim("B", "x1"), -HF_RACED);
    assert_int_equal(claim("B", "x2"), -HF_HELD);
    assert_int_equal(claim("A", "x1"), 0); /* the reply was lost */
    assert_int_equal(a.execution.attempt, 1);
    finish("A", HF_OUTCOME_SUCCESS);
    assert_int_equal(claim("B", "x2"), 0);
    assert_false(a.execution.parked);
}

static void claim_goes_by_priority_then_time_then_age(void **state)
{
    queue_up("x1", 0);
    queue_up("x2", 5);
    queue_up("x3", 0);
    enqueue_as("x4", HF_OVERLAP_QUEUE, (struct hf_request){.run_at_ms = wall_ms() - 1});
    enqueue_as("x5", HF_OVERLAP_QUEUE,
               (struct hf_request){.run_at_ms = wall_ms() + 1, .workflow = "w2"});
    assert_string_equal(due(), "x2 x4 x1 x3");
    assert_string_equal(due_with((struct hf_due){.skip = 1, .limit = 2}), "x4 x1");
    assert_ms(next_due(), wall_ms() + 1);
    m->now_ms++;
    assert_string_equal(due(), "x2 x4 x1 x3 x5");
    const char *const workflows[] = {"w2", "w3"};
    assert_string_equal(due_with((struct hf_due){.workflows = workflows, .n_workflows = 2}), "x5");
    assert_ms(next_due(), 0);
}

static void enqueue_again_with_its_id_is_the_same(void **state)
{
    assert_int_equal(enqueue("x1", "k", NULL, 0), 0);
    assert_int_equal(enqueue("x1", "k", NULL, 0), 0);
    assert_false(a.execution.duplicate);
    assert_int_equal(m->n_ready, 0);
    assert_int_equal(enqueue("x2", "k", NULL, 0), 0);
    assert_true(a.execution.duplicate);
    assert_int_equal(m->n_executions, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(overlap_does_not_matter_while_the_lock_has_none),
        T(overlap_reject_names_the_one_that_runs),
        T(overlap_reject_names_the_one_that_is_due),
        T(overlap_reject_is_refused_by_a_plain_lease_but_not_by_the_future),
        T(overlap_skip_is_told_as_skipped_and_uses_no_key),
        T(overlap_is_looked_at_after_the_key),
        T(overlap_queue_is_bounded_by_what_is_due),
        T(overlap_replace_ends_those_that_wait),
        T(overlap_replace_leaves_what_is_to_be_verified),
        T(overlap_cancel_asks_the_running_one_to_stop),
        T(overlap_is_judged_by_a_settled_lock),
        T(parked_by_a_claim_that_found_its_lock_held),
        T(parked_with_what_else_is_due),
        T(parked_at_once_where_the_lock_is_held),
        T(unparked_one_by_one_in_order),
        T(unparked_by_whatever_frees_the_lock),
        T(unparked_not_while_another_one_is_given_the_lock),
        T(unparked_where_the_ready_one_is_cancelled),
        T(unparked_the_first_of_each_workflow),
        T(unparked_beside_what_is_to_be_verified),
        T(unparked_ones_stay_ready_while_a_plain_lease_comes_and_goes),
        T(claim_takes_only_what_is_pending_and_free),
        T(claim_goes_by_priority_then_time_then_age),
        T(enqueue_again_with_its_id_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
