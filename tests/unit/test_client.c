/* What the library checks before it asks a store, and what a struct's size means. */
#include "client.h"
#include "place.h"

static struct hf *hf;
static struct hf_error err;

static int set_up(void **state)
{
    if (place_make(state, "file", "") < 0)
        return -1;
    hf = open_ok(*state);
    err = (struct hf_error){0};
    return 0;
}

static int end(void **state)
{
    hf_close(hf);
    return tear_down(state);
}

static int count(void *arg, const struct hf_event *event)
{
    ++*(int *)arg;
    return 0;
}

/* A program that was compiled with an older header knows fewer fields. */
static void an_older_programs_options_are_understood(void **state)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    struct hf_lease lease;
    int n = 0;
    opts.owner = "an old program";
    opts.size = offsetof(struct hf_acquire_options, note);
    opts.note = "it knows nothing of this field";
    assert_int_equal(hf_acquire(hf, "a", &opts, &lease, &err), 0);
    assert_string_equal(lease.owner, "an old program");
    assert_string_equal(lease.note, "");
    query.limit = 1;
    query.name = "b";
    query.size = offsetof(struct hf_event_query, name);
    assert_int_equal(hf_events(hf, &query, count, &n, &err), 0);
    assert_int_equal(n, 1); /* of every name */
}

static void a_newer_programs_options_are_refused(void **state)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_keep_options keep = HF_KEEP_INIT;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    struct hf_lease lease;
    struct hf_keeper *keeper = NULL;
    int n = 0;
    opts.size++;
    assert_int_equal(hf_acquire(hf, "a", &opts, &lease, &err), -HF_INVALID);
    assert_string_equal(err.message, "the options must start from HF_ACQUIRE_INIT");
    assert_int_equal(hf_acquire(hf, "a", NULL, &lease, &err), 0);
    keep.size++;
    assert_int_equal(hf_keep(hf, &lease, &keep, &keeper, &err), -HF_INVALID);
    assert_null(keeper);
    query.size = 0; /* forgotten */
    assert_int_equal(hf_events(hf, &query, count, &n, &err), -HF_INVALID);
    assert_int_equal(n, 0);
}

static void what_can_not_be_asked_is_refused_before_the_store_is(void **state)
{
    struct hf_lease lease = {.name = "a", .token = "not a token"};
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_request request = {.op = HF_OP_RELEASE, .name = "a"};
    struct hf_answer answer;
    assert_int_equal(hf_release(hf, &lease, &err), -HF_INVALID);
    assert_int_equal(hf_apply(hf, &request, 1, &answer, &err), -HF_INVALID);
    assert_string_equal(err.message, "a token is needed");
    assert_int_equal(hf_acquire(hf, NULL, NULL, &lease, &err), -HF_INVALID);
    opts.ttl_ms = 1;
    assert_int_equal(hf_acquire(hf, "a", &opts, &lease, NULL), -HF_INVALID);
}

static void the_deadline_lies_before_the_expiry(void **state)
{
    for (int64_t ttl_ms = HF_TTL_MIN_MS; ttl_ms < HF_TTL_MAX_MS; ttl_ms *= 3) {
        assert_true(hf_deadline_ms(1000, ttl_ms) < 1000 + ttl_ms);
        assert_true(hf_deadline_ms(1000, ttl_ms) > 1000 + ttl_ms / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, end)
        T(an_older_programs_options_are_understood),
        T(a_newer_programs_options_are_refused),
        T(what_can_not_be_asked_is_refused_before_the_store_is),
        T(the_deadline_lies_before_the_expiry),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
