/* Executions through the library, on the sqlite store: what holdfast.h promises of them. */
#include <poll.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include "place.h"

static int set_up(void **state) { return place_make(state, "sqlite", "/store.db"); }

static int64_t sql(const struct place *p, const char *text)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(p->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &stmt, NULL), SQLITE_OK);
    int64_t number = sqlite3_step(stmt) == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return number;
}

struct begun {
    struct hf_lease lease;
    struct hf_execution x;
    struct hf_error err;
};

static struct hf_begin_options options(const char *workflow, const char *key, const char *input)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    o.workflow = workflow;
    o.key = key;
    o.input = input;
    o.input_size = input ? strlen(input) : 0;
    o.overlap = HF_OVERLAP_QUEUE;
    return o;
}

static int begin(struct hf *hf, const char *key, const char *input, struct begun *ret)
{
    struct hf_begin_options o = options("pay", key, input);
    return hf_begin(hf, &o, &ret->lease, &ret->x, &ret->err);
}

static int finish(struct hf *hf, const struct begun *b, enum hf_execution_state how)
{
    struct hf_result result = HF_RESULT_INIT;
    result.state = how;
    return hf_finish(hf, &b->lease, &result, NULL);
}

static enum hf_execution_state state_of(struct hf *hf, const char *id)
{
    struct hf_execution x;
    assert_int_equal(hf_execution_of(hf, id, &x, NULL), 0);
    return x.state;
}

/* ---- begin and finish ----------------------------------------------------------------------- */

static void a_whole_life(void **state)
{
    struct hf *hf = open_ok(*state);
    struct begun a, b;
    assert_int_equal(begin(hf, "evt_1", "in", &a), 0);
    assert_false(a.x.duplicate);
    assert_string_equal(a.lease.execution_id, a.x.id);
    assert_string_equal(a.x.lock, "pay");
    assert_int_equal(begin(hf, "evt_2", "in", &b), -HF_HELD);
    assert_string_equal(b.err.holder.execution_id, a.x.id);
    assert_int_equal(begin(hf, "evt_1", "in", &b), 0);
    assert_true(b.x.duplicate);
    assert_string_equal(b.x.id, a.x.id);
    assert_string_equal(b.lease.token, "");
    assert_int_equal(begin(hf, "evt_1", "other", &b), -HF_KEY_REUSED);
    assert_non_null(strstr(b.err.message, a.x.id));
    assert_int_equal(hf_spawned(hf, &a.lease, NULL), 0);
    assert_int_equal(finish(hf, &a, HF_SUCCESS), 0);
    assert_int_equal(finish(hf, &a, HF_SUCCESS), 0);
    assert_int_equal(finish(hf, &a, HF_FAILED), -HF_LOST);
    assert_int_equal(state_of(hf, a.x.id), HF_SUCCESS);
    assert_int_equal(begin(hf, "evt_2", "in", &b), 0);
    hf_close(hf);
}

static void a_refused_start_leaves_nothing_behind(void **state)
{
    struct hf *hf = open_ok(*state);
    struct begun a, b;
    begin(hf, NULL, NULL, &a);
    assert_int_equal(begin(hf, NULL, NULL, &b), -HF_HELD);
    assert_int_equal(sql(*state, "SELECT count(*) FROM execution"), 1);
    hf_close(hf);
}

static void the_same_token_is_the_same_begin(void **state)
{
    struct hf *hf = open_ok(*state);
    struct begun a, b;
    struct hf_begin_options o = options("pay", NULL, "in");
    char token[HF_UUID_LEN + 1];
    hf_token(token);
    o.token = token;
    assert_int_equal(hf_begin(hf, &o, &a.lease, &a.x, &a.err), 0);
    assert_int_equal(hf_begin(hf, &o, &b.lease, &b.x, &b.err), 0);
    assert_string_equal(a.x.id, b.x.id);
    assert_ms(a.lease.fence, b.lease.fence);
    assert_int_equal(b.x.attempt, 1);
    hf_close(hf);
}

static void many_begins_and_finishes_share_one_transaction(void **state)
{
    enum { N = 50 };
    struct hf *hf = open_ok(*state);
    struct hf_request requests[N] = {0};
    static struct hf_answer answers[N];
    char tokens[N][HF_UUID_LEN + 1], ids[N][HF_UUID_LEN + 1], names[N][8];
    for (int i = 0; i < N; i++) {
        hf_token(tokens[i]);
        hf_token(ids[i]);
        snprintf(names[i], sizeof names[i], "w%d", i);
        requests[i] = (struct hf_request){.op = HF_OP_ACQUIRE,
                                          .name = names[i],
                                          .workflow = names[i],
                                          .token = tokens[i],
                                          .execution_id = ids[i],
                                          .ttl_ms = 60000,
                                          .owner = "batch"};
    }
    assert_int_equal(hf_apply(hf, requests, N, answers, NULL), 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(answers[i].code, 0);
        assert_string_equal(answers[i].execution.id, ids[i]);
        requests[i] = (struct hf_request){.op = HF_OP_RELEASE,
                                          .name = names[i],
                                          .token = tokens[i],
                                          .outcome = HF_OUTCOME_SUCCESS};
    }
    assert_int_equal(hf_apply(hf, requests, N, answers, NULL), 0);
    assert_int_equal(sql(*state, "SELECT count(*) FROM execution WHERE state = 'SUCCESS'"), N);
    hf_close(hf);
}

static void an_execution_that_is_not_running_frees_its_lock(void **state)
{
    struct hf *hf = open_ok(*state);
    struct begun a, b;
    struct hf_status status;
    begin(hf, NULL, NULL, &a);
    sql(*state, "UPDATE execution SET state = 'FAILED'");
    assert_int_equal(hf_status_of(hf, "pay", &status, NULL), 0);
    assert_int_equal(status.state, HF_STATE_STALE);
    assert_int_equal(begin(hf, NULL, NULL, &b), 0);
    assert_int_equal(b.lease.takeover.reason, HF_STALE_ENDED);
    assert_int_equal(hf_extend(hf, &a.lease, 0, NULL), -HF_LOST);
    sql(*state, "DELETE FROM execution");
    assert_int_equal(begin(hf, NULL, NULL, &a), 0);
    hf_close(hf);
}

static int count_status(void *arg, const struct hf_status *status)
{
    assert_int_equal(status->state, HF_STATE_STALE);
    ++*(int *)arg;
    return 0;
}

static void a_sweep_leaves_no_execution_running_without_a_lease(void **state)
{
    struct hf *hf = open_ok(*state);
    struct begun a;
    int64_t freed = 0;
    int listed = 0;
    begin(hf, NULL, NULL, &a);
    hf_spawned(hf, &a.lease, NULL);
    sql(*state, "UPDATE lock SET held = 0");
    assert_int_equal(hf_sweep(hf, false, NULL, NULL, &freed, NULL), 0);
    assert_int_equal(state_of(hf, a.x.id), HF_ABORTED);
    begin(hf, NULL, NULL, &a);
    sql(*state, "UPDATE execution SET state = 'ABORTED'");
    assert_int_equal(hf_list(hf, HF_LIST_STALE, NULL, count_status, &listed, NULL), 0);
    assert_int_equal(listed, 1);
    assert_int_equal(hf_sweep(hf, false, NULL, NULL, &freed, NULL), 0);
    assert_ms(freed, 1);
    hf_close(hf);
}

/* ---- claim and cancel ----------------------------------------------------------------------- */

static void claim_takes_what_is_due_one_per_lock(void **state)
{
    struct hf *hf = open_ok(*state);
    struct hf_claimed claimed[8];
    struct hf_execution x;
    struct begun held;
    size_t n = 99;
    char workflow[16];
    assert_int_equal(hf_claim(hf, NULL, 8, claimed, &n, NULL), 0);
    assert_int_equal(n, 0);
    begin(hf, NULL, NULL, &held);
    for (int i = 0; i < 60; i++) {
        snprintf(workflow, sizeof workflow, "w%d", i % 50);
        struct hf_begin_options o = options(i < 10 ? "pay" : workflow, NULL, "in");
        o.priority = i;
        assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
        assert_int_equal(x.state, HF_PENDING);
    }
    assert_int_equal(hf_claim(hf, NULL, 8, claimed, &n, NULL), 0);
    assert_int_equal(n, 8);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(claimed[i].execution.priority, 59 - (int)i);
        assert_string_equal(claimed[i].lease.execution_id, claimed[i].execution.id);
        assert_int_equal(claimed[i].execution.attempt, 1);
        assert_true(claimed[i].lease.deadline_ms > 0);
    }
    const char *const only[] = {"pay"};
    struct hf_claim_options o = HF_CLAIM_INIT;
    o.workflows = only;
    o.n_workflows = 1;
    assert_int_equal(hf_claim(hf, &o, 8, claimed, &n, NULL), 0);
    assert_int_equal(n, 0);
    finish(hf, &held, HF_SUCCESS);
    assert_int_equal(hf_claim(hf, &o, 8, claimed, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_int_equal(claimed[0].execution.priority, 9);
    hf_close(hf);
}

static void held_names_do_not_starve_the_rest(void **state)
{
    enum { HELD = 70 };
    struct hf *hf = open_ok(*state);
    struct hf_claimed claimed[4];
    size_t n;
    char workflow[16];
    for (int i = 0; i <= HELD; i++) {
        snprintf(workflow, sizeof workflow, "w%d", i);
        struct hf_begin_options o = options(workflow, NULL, NULL);
        struct hf_lease lease;
        struct hf_execution x;
        if (i < HELD)
            assert_int_equal(hf_begin(hf, &o, &lease, &x, NULL), 0);
        o.priority = HELD - i;
        assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    }
    assert_int_equal(hf_claim(hf, NULL, 4, claimed, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_string_equal(claimed[0].execution.workflow, workflow);
    hf_close(hf);
}

static void cancel_reaches_the_heartbeat(void **state)
{
    struct hf *hf = open_ok(*state), *other = open_ok(*state);
    struct begun a;
    struct hf_execution x;
    begin(hf, NULL, NULL, &a);
    hf_spawned(hf, &a.lease, NULL);
    assert_int_equal(hf_cancel(other, a.x.id, &x, NULL), 0);
    assert_int_equal(x.state, HF_RUNNING);
    assert_true(x.cancel_requested);
    assert_int_equal(hf_extend(hf, &a.lease, 0, NULL), 0);
    assert_true(a.lease.cancel_requested);
    assert_int_equal(finish(hf, &a, HF_ABORTED), 0);
    assert_int_equal(hf_cancel(other, a.x.id, &x, NULL), 0);
    assert_int_equal(x.state, HF_ABORTED);
    struct hf_error err;
    assert_int_equal(hf_cancel(other, "00000000-0000-4000-8000-000000000000", &x, &err),
                     -HF_NOT_FOUND);
    hf_close(other);
    hf_close(hf);
}

/* ---- turns ---------------------------------------------------------------------------------- */

static int enqueue(struct hf *hf, const char *workflow, enum hf_overlap overlap,
                   struct hf_execution *ret, struct hf_error *err)
{
    struct hf_begin_options o = options(workflow, NULL, NULL);
    o.overlap = overlap;
    o.queue_limit = 2;
    o.concurrency = 1;
    return hf_enqueue(hf, &o, ret, err);
}

static void refused_starts_say_why(void **state)
{
    struct hf *hf = open_ok(*state);
    struct hf_execution first, x;
    struct hf_error err;
    assert_int_equal(enqueue(hf, "pay", HF_OVERLAP_REJECT, &first, &err), 0);
    assert_int_equal(enqueue(hf, "pay", HF_OVERLAP_SKIP, &x, &err), -HF_HELD);
    assert_string_equal(err.holder.execution_id, first.id);
    assert_non_null(strstr(err.message, first.id));
    assert_int_equal(enqueue(hf, "pay", HF_OVERLAP_QUEUE, &x, &err), 0);
    assert_int_equal(enqueue(hf, "pay", HF_OVERLAP_QUEUE, &x, &err), -HF_QUEUE_FULL);
    assert_non_null(strstr(err.message, "2 executions wait for pay already"));
    assert_int_equal(enqueue(hf, "pay", HF_OVERLAP_REPLACE, &x, &err), 0);
    assert_int_equal(state_of(hf, first.id), HF_ABORTED);
    struct hf_claimed claimed;
    size_t n = 0;
    assert_int_equal(hf_claim(hf, NULL, 1, &claimed, &n, NULL), 0);
    assert_string_equal(claimed.execution.id, x.id);
    struct hf_begin_options o = options("pay", NULL, NULL);
    o.lock = "another lock";
    o.concurrency = 1;
    struct begun b;
    assert_int_equal(hf_begin(hf, &o, &b.lease, &b.x, &b.err), -HF_HELD);
    assert_non_null(strstr(b.err.message, "as many executions running as it may"));
    o.overlap = HF_OVERLAP_CANCEL + 1;
    assert_int_equal(hf_enqueue(hf, &o, &x, &err), -HF_INVALID);
    hf_close(hf);
}

static size_t claim_one(struct hf *hf, bool verifies, struct hf_claimed *ret)
{
    struct hf_claim_options o = HF_CLAIM_INIT;
    size_t n = 0;
    o.verifies = verifies;
    assert_int_equal(hf_claim(hf, &o, 1, ret, &n, NULL), 0);
    return n;
}

static void what_failed_comes_again_and_what_was_lost_is_verified(void **state)
{
    struct hf *hf = open_ok(*state);
    struct hf_begin_options o = options("pay", NULL, "in");
    struct hf_result failed = HF_RESULT_INIT;
    struct hf_claimed claimed;
    struct hf_execution x;
    failed.state = HF_FAILED;
    o.retry_backoff_ms = 1;
    o.max_attempts = 2;
    o.on_lost = HF_ON_LOST_VERIFY;
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    assert_int_equal(claim_one(hf, false, &claimed), 1);
    assert_int_equal(hf_spawned(hf, &claimed.lease, NULL), 0);
    assert_int_equal(hf_finish(hf, &claimed.lease, &failed, NULL), 0);
    assert_int_equal(state_of(hf, x.id), HF_PENDING);
    while (claim_one(hf, false, &claimed) == 0)
        continue; /* a millisecond */
    assert_int_equal(hf_spawned(hf, &claimed.lease, NULL), 0);
    assert_int_equal(hf_force_release(hf, "pay", claimed.lease.fence, "for a test", NULL), 0);
    assert_int_equal(claim_one(hf, false, &claimed), 0);
    assert_int_equal(claim_one(hf, true, &claimed), 1);
    assert_true(claimed.execution.to_verify);
    assert_int_equal(claimed.execution.spent, 2);
    assert_int_equal(hf_spawned(hf, &claimed.lease, NULL), 0);
    assert_int_equal(hf_finish(hf, &claimed.lease, &failed, NULL), 0);
    assert_int_equal(state_of(hf, x.id), HF_FAILED);
    hf_close(hf);
}

static bool is_woken(const struct hf_idle *idle, int within_ms)
{
    struct pollfd fd = {.fd = hf_idle_fd(idle), .events = POLLIN};
    return poll(&fd, 1, within_ms) == 1;
}

/* A worker that sleeps in a process of its own, and is killed asleep. */
static void die_asleep(const struct place *p)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct hf *hf;
        struct hf_idle *idle;
        if (hf_open(p->url, &hf, NULL) < 0 || hf_idle_open(hf, &idle, NULL) < 0)
            _exit(1);
        _exit(hf_idle_begin(idle, NULL, NULL, NULL) < 0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void an_idle_worker_is_woken_once_and_the_dead_are_passed_over(void **state)
{
    enum { DEAD = 5, LONG_MS = 60000 };
    struct hf *hf = open_ok(*state), *other = open_ok(*state);
    struct hf_idle *a, *b;
    struct hf_execution x;
    int64_t next_ms = -1;
    for (int i = 0; i < DEAD; i++)
        die_asleep(*state);
    assert_int_equal(hf_idle_open(hf, &a, NULL), 0);
    assert_int_equal(hf_idle_open(other, &b, NULL), 0);
    assert_int_equal(hf_idle_begin(a, NULL, &next_ms, NULL), 0);
    assert_ms(next_ms, 0);
    assert_int_equal(hf_idle_begin(b, NULL, &next_ms, NULL), 0);
    struct hf_begin_options later = options("later", NULL, NULL);
    later.run_at_ms = INT64_C(99999999999999);
    assert_int_equal(hf_enqueue(other, &later, &x, NULL), 0);
    struct pollfd fds[] = {{.fd = hf_idle_fd(a), .events = POLLIN},
                           {.fd = hf_idle_fd(b), .events = POLLIN}};
    assert_int_equal(poll(fds, 2, LONG_MS), 1); /* one of them, and only one */
    struct hf_idle *woken = is_woken(a, 0) ? a : b, *asleep = woken == a ? b : a;
    assert_false(is_woken(asleep, 0));
    hf_idle_end(woken);
    assert_int_equal(enqueue(hf, "pay", HF_OVERLAP_REJECT, &x, NULL), 0);
    assert_true(is_woken(asleep, LONG_MS));
    assert_int_equal(hf_idle_begin(asleep, NULL, &next_ms, NULL), 0);
    assert_ms(next_ms, INT64_C(99999999999999));
    hf_idle_end(asleep); /* nobody is idle now */
    assert_int_equal(enqueue(hf, "pay2", HF_OVERLAP_REJECT, &x, NULL), 0);
    assert_false(is_woken(asleep, 0));
    hf_idle_close(a);
    hf_idle_close(b);
    hf_close(other);
    hf_close(hf);
}

static struct hf_idle *sleep_for(struct hf *hf, const char *workflow)
{
    struct hf_claim_options o = HF_CLAIM_INIT;
    struct hf_idle *idle;
    o.workflows = &workflow;
    o.n_workflows = 1;
    assert_int_equal(hf_idle_open(hf, &idle, NULL), 0);
    assert_int_equal(hf_idle_begin(idle, &o, NULL, NULL), 0);
    return idle;
}

static void an_idle_worker_is_woken_for_what_it_would_claim(void **state)
{
    enum { LONG_MS = 60000 };
    struct hf *hf = open_ok(*state);
    struct hf_idle *pay = sleep_for(hf, "pay"), *pay2 = sleep_for(hf, "pay2");
    struct hf_begin_options later = options("pay", NULL, NULL);
    struct hf_claim_options o = HF_CLAIM_INIT;
    struct hf_execution x;
    int64_t next_ms = -1;
    assert_int_equal(enqueue(hf, "pay2", HF_OVERLAP_REJECT, &x, NULL), 0);
    assert_true(is_woken(pay2, LONG_MS));
    assert_false(is_woken(pay, 0));
    later.run_at_ms = INT64_C(99999999999999);
    assert_int_equal(hf_enqueue(hf, &later, &x, NULL), 0);
    assert_true(is_woken(pay, LONG_MS));
    o.workflows = (const char *[]){"none", "pay2"};
    o.n_workflows = 2;
    assert_int_equal(hf_idle_begin(pay2, &o, &next_ms, NULL), 0);
    assert_ms(next_ms, 0); /* what is to run later is not for it */
    o.workflows = (const char *[]){"pay\n"};
    o.n_workflows = 1;
    assert_int_equal(hf_idle_begin(pay, &o, NULL, NULL), -HF_INVALID);
    hf_idle_close(pay);
    hf_idle_close(pay2);
    struct place *p = *state;
    shell("test -z \"$(ls -A %s-wake/idle)\"", p->path);
    hf_close(hf);
}

static void an_idle_worker_is_woken_when_there_is_room(void **state)
{
    enum { LONG_MS = 60000 };
    struct hf *hf = open_ok(*state);
    struct hf_begin_options o = options("pay", NULL, NULL);
    struct hf_claimed claimed;
    struct hf_execution x;
    o.concurrency = 1;
    o.lock = "a";
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    o.lock = "b";
    assert_int_equal(hf_enqueue(hf, &o, &x, NULL), 0);
    assert_int_equal(claim_one(hf, false, &claimed), 1);
    struct hf_idle *other = sleep_for(hf, "other"), *pay = sleep_for(hf, "pay");
    struct hf_claimed none;
    assert_int_equal(claim_one(hf, false, &none), 0); /* its workflow is full */
    struct hf_result done = HF_RESULT_INIT;
    assert_int_equal(hf_finish(hf, &claimed.lease, &done, NULL), 0);
    assert_true(is_woken(pay, LONG_MS));
    assert_false(is_woken(other, 0));
    assert_int_equal(claim_one(hf, false, &claimed), 1);
    hf_idle_close(pay);
    hf_idle_close(other);
    hf_close(hf);
}

/* ---- data and lists ------------------------------------------------------------------------- */

struct bytes {
    char *of;
    size_t n;
    int64_t skipped;
};

static int add_bytes(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    struct bytes *b = arg;
    b->of = realloc(b->of, b->n + n + 1);
    assert_non_null(b->of);
    if (n)
        memcpy(b->of + b->n, bytes, n);
    b->n += n;
    b->skipped += skipped;
    return 0;
}

static void bytes_survive_as_they_are(void **state)
{
    enum { LARGE = 3 << 20 };
    struct hf *hf = open_ok(*state);
    struct hf_begin_options o = options("pay", "k", NULL);
    char *large = calloc(1, LARGE);
    struct begun a;
    assert_non_null(large);
    memset(large, 0xff, LARGE / 2);
    o.input = large;
    o.input_size = LARGE;
    assert_int_equal(hf_begin(hf, &o, &a.lease, &a.x, NULL), 0);
    struct hf_result result = HF_RESULT_INIT;
    result.output_head = "\0\xff\xfe";
    result.output_head_size = 3;
    result.output_skipped = 1000;
    result.output_tail = "end";
    result.output_tail_size = 3;
    assert_int_equal(hf_finish(hf, &a.lease, &result, NULL), 0);
    struct bytes input = {0}, output = {0};
    assert_int_equal(hf_execution_data(hf, a.x.id, HF_DATA_INPUT, add_bytes, &input, NULL), 0);
    assert_int_equal(input.n, LARGE);
    assert_memory_equal(input.of, large, LARGE);
    assert_int_equal(hf_execution_data(hf, a.x.id, HF_DATA_OUTPUT, add_bytes, &output, NULL), 0);
    assert_int_equal(output.n, 6);
    assert_memory_equal(output.of,
                        "\0\xff\xfe"
                        "end",
                        6);
    assert_ms(output.skipped, 1000);
    o.input_size = HF_INPUT_MAX + 1;
    assert_int_equal(hf_begin(hf, &o, &a.lease, &a.x, NULL), -HF_TOO_LARGE);
    free(input.of);
    free(output.of);
    free(large);
    hf_close(hf);
}

struct pages {
    int n;
    char last[HF_UUID_LEN + 1];
    int64_t newest_ms;
};

static int count_execution(void *arg, const struct hf_execution *x)
{
    struct pages *p = arg;
    p->n++;
    memcpy(p->last, x->id, sizeof p->last);
    return 0;
}

static void lists_come_in_pages_newest_first(void **state)
{
    struct hf *hf = open_ok(*state);
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    struct hf_execution first, x;
    for (int i = 0; i < 150; i++) {
        struct hf_begin_options o = options(i % 2 ? "a" : "b", NULL, NULL);
        assert_int_equal(hf_enqueue(hf, &o, i ? &x : &first, NULL), 0);
    }
    struct pages pages = {0};
    assert_int_equal(hf_executions(hf, &query, count_execution, &pages, NULL), 0);
    assert_int_equal(pages.n, 150);
    assert_string_equal(pages.last, first.id);
    query.limit = 100;
    pages = (struct pages){0};
    assert_int_equal(hf_executions(hf, &query, count_execution, &pages, NULL), 0);
    assert_int_equal(pages.n, 100);
    query.before = pages.last;
    assert_int_equal(hf_executions(hf, &query, count_execution, &pages, NULL), 0);
    assert_int_equal(pages.n, 150);
    assert_string_equal(pages.last, first.id);
    query = (struct hf_execution_query)HF_EXECUTION_QUERY_INIT;
    query.workflow = "a";
    query.state = HF_PENDING;
    pages = (struct pages){0};
    assert_int_equal(hf_executions(hf, &query, count_execution, &pages, NULL), 0);
    assert_int_equal(pages.n, 75);
    query.state = HF_RUNNING;
    assert_int_equal(hf_executions(hf, &query, count_execution, &pages, NULL), 0);
    assert_int_equal(pages.n, 75);
    hf_close(hf);
}

static void the_file_store_says_that_it_keeps_none(void **state)
{
    struct place *p = *state;
    struct hf *hf = NULL;
    struct begun a;
    size_t n;
    struct hf_claimed claimed;
    char url[sizeof p->url];
    snprintf(url, sizeof url, "file:%s/locks", p->dir);
    assert_int_equal(hf_open(url, &hf, NULL), 0);
    assert_int_equal(begin(hf, NULL, NULL, &a), -HF_UNSUPPORTED);
    assert_non_null(strstr(a.err.message, "the file store keeps locks only"));
    struct hf_begin_options o = options("pay", NULL, NULL);
    assert_int_equal(hf_enqueue(hf, &o, &a.x, NULL), -HF_UNSUPPORTED);
    assert_int_equal(hf_claim(hf, NULL, 1, &claimed, &n, NULL), -HF_UNSUPPORTED);
    assert_int_equal(hf_executions(hf, NULL, count_execution, NULL, NULL), -HF_UNSUPPORTED);
    hf_close(hf);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_whole_life),
        TEST(a_refused_start_leaves_nothing_behind),
        TEST(the_same_token_is_the_same_begin),
        TEST(many_begins_and_finishes_share_one_transaction),
        TEST(an_execution_that_is_not_running_frees_its_lock),
        TEST(a_sweep_leaves_no_execution_running_without_a_lease),
        TEST(claim_takes_what_is_due_one_per_lock),
        TEST(held_names_do_not_starve_the_rest),
        TEST(cancel_reaches_the_heartbeat),
        TEST(refused_starts_say_why),
        TEST(what_failed_comes_again_and_what_was_lost_is_verified),
        TEST(an_idle_worker_is_woken_once_and_the_dead_are_passed_over),
        TEST(an_idle_worker_is_woken_for_what_it_would_claim),
        TEST(an_idle_worker_is_woken_when_there_is_room),
        TEST(bytes_survive_as_they_are),
        TEST(lists_come_in_pages_newest_first),
        TEST(the_file_store_says_that_it_keeps_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
