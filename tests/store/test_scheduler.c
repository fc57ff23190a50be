/*
 * Recurring work on a real store, by a clock that the tests move: one execution per slot, whatever
 * becomes of processes and clocks.
 *
 *     test_scheduler --store URL        (tests/store/in-scratch has one)
 */
#include "scheduler.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../unit/check.h"
#include "fresh.h"
#include "place.h"
#include "text.h"

#define MINUTE INT64_C(60000)
#define HOUR (60 * MINUTE)

static const char *store_url;
static char url[FRESH_URL_MAX]; /* of this test's own store */
static struct hf *hf;
static struct hf_error err;

static int open_one(void **state) { return open_fresh(store_url, url, &hf); }

static int close_one(void **state)
{
    hf_close(hf);
    return 0;
}

static int64_t at(const char *text)
{
    int64_t ms;
    if (hf_parse_time(text, &ms, &err) < 0)
        fail_msg("%s", err.message);
    return ms;
}

/* ---- workflows ------------------------------------------------------------------------------ */

static char schedule[40], zone[40], lock[] = "{workflow}/{key}";
static struct hf_workflow flow;
static struct hf_workflows flows = {.of = &flow, .n = 1};

static void set_flow(const char *when, const char *where, enum hf_catch_up catch_up)
{
    snprintf(schedule, sizeof schedule, "%s", when);
    snprintf(zone, sizeof zone, "%s", where);
    flow = (struct hf_workflow){.name = "report",
                                .schedule = schedule,
                                .time_zone = zone,
                                .catch_up = catch_up,
                                .lock = lock,
                                .retries = -1};
}

static char said[2000];

static void remember(void *arg, const char *sentence)
{
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", sentence);
}

static struct hf_scheduler *start(const struct hf_scheduler *before)
{
    struct hf_scheduler *s = NULL;
    if (hf_scheduler_open(&flows, before, &s, &err) < 0)
        fail_msg("%s", err.message);
    said[0] = '\0';
    hf_scheduler_on_say(s, remember, NULL);
    return s;
}

/* One that was there at this time, and no longer. */
static void be_there(int64_t now_ms)
{
    struct hf_scheduler *s = start(NULL);
    hf_scheduler_tick(s, hf, now_ms);
    hf_scheduler_free(s);
}

/* Let the clock go on to `to_ms`, with a tick whenever one is asked for. */
static void go_on(struct hf_scheduler *s, int64_t from_ms, int64_t to_ms)
{
    for (int64_t now_ms = from_ms; now_ms <= to_ms;) {
        int64_t next_ms = hf_scheduler_tick(s, hf, now_ms);
        assert_true(next_ms > now_ms && next_ms <= now_ms + MINUTE);
        now_ms = next_ms;
    }
}

/* ---- what is there -------------------------------------------------------------------------- */

struct listed {
    int n;
    char keys[1200][HF_KEY_MAX + 1]; /* newest first */
    int64_t run_at_ms[1200];
};
static struct listed listed;

static int list_one(void *arg, const struct hf_execution *x)
{
    assert_true(listed.n < 1200);
    strcpy(listed.keys[listed.n], x->key);
    listed.run_at_ms[listed.n++] = x->run_at_ms;
    return 0;
}

static int count(void)
{
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    listed.n = 0;
    query.workflow = flow.name;
    if (hf_executions(hf, &query, list_one, NULL, &err) < 0)
        fail_msg("%s", err.message);
    return listed.n;
}

static bool is_there(const char *slot)
{
    char key[HF_KEY_MAX + 1] = HF_SCHEDULE_PREFIX;
    hf_format_time(at(slot), key + strlen(key));
    count();
    for (int i = 0; i < listed.n; i++)
        if (strcmp(listed.keys[i], key) == 0)
            return true;
    return false;
}

/* ---- two processes, one cron line ----------------------------------------------------------- */

enum { SLOTS = 100 };
static _Atomic int64_t *clock_ms; /* shared */

/* A service: until the clock has reached `end_ms`. */
static pid_t spawn_service(int64_t end_ms)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct hf *own;
    struct hf_scheduler *s;
    if (hf_open(url, &own, &err) < 0 || hf_scheduler_open(&flows, NULL, &s, &err) < 0)
        _exit(1);
    int64_t now_ms;
    do {
        now_ms = atomic_load(clock_ms);
        hf_scheduler_tick(s, own, now_ms);
        usleep(500);
    } while (now_ms < end_ms);
    hf_scheduler_free(s);
    hf_close(own);
    _exit(0);
}

static void expect_end(pid_t pid, int how)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    if (how)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == how);
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* As a worker does: each is claimed, run and finished once. */
static int run_everything(void)
{
    int runs = 0;
    for (;;) {
        static struct hf_claimed claimed[32];
        struct hf_result result = HF_RESULT_INIT;
        size_t n = 0;
        if (hf_claim(hf, NULL, 32, claimed, &n, &err) < 0)
            fail_msg("%s", err.message);
        if (n == 0)
            return runs;
        for (size_t i = 0; i < n; i++, runs++) {
            assert_int_equal(claimed[i].execution.attempt, 1);
            assert_int_equal(hf_finish(hf, &claimed[i].lease, &result, &err), 0);
        }
    }
}

static void two_processes_and_a_hundred_slots(void **state)
{
    int64_t begin_ms = at("2024-02-28T20:00:00Z"), end_ms = begin_ms + (SLOTS - 1) * 5 * MINUTE;
    clock_ms =
        mmap(NULL, sizeof *clock_ms, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(clock_ms != MAP_FAILED);
    set_flow("*/5 * * * *", "UTC", HF_CATCH_UP_ALL);
    struct hf_scheduler *first = start(NULL); /* so that who comes late knows that it is late */
    go_on(first, begin_ms - MINUTE, begin_ms);
    hf_scheduler_free(first);
    atomic_store(clock_ms, begin_ms);
    pid_t one = spawn_service(end_ms), other = spawn_service(end_ms);
    for (int64_t now_ms = begin_ms; now_ms <= end_ms; now_ms += MINUTE) {
        atomic_store(clock_ms, now_ms);
        usleep(3000);
        if ((now_ms - begin_ms) % (100 * MINUTE) == 50 * MINUTE) { /* one dies, and comes back */
            kill(other, SIGKILL);
            expect_end(other, SIGKILL);
            other = spawn_service(end_ms);
        }
    }
    expect_end(one, 0);
    expect_end(other, 0);
    assert_int_equal(count(), SLOTS);
    for (int i = 0; i < SLOTS; i++)
        assert_ms(listed.run_at_ms[i], end_ms - i * 5 * MINUTE);
    assert_int_equal(run_everything(), SLOTS);
    munmap(clock_ms, sizeof *clock_ms);
}

/* ---- catching up ---------------------------------------------------------------------------- */

static void who_was_never_there_has_missed_nothing(void **state)
{
    set_flow("* * * * *", "UTC", HF_CATCH_UP_ALL);
    be_there(at("2024-01-01T12:00:30Z"));
    be_there(at("2024-01-01T12:30:30Z"));
    assert_int_equal(count(), 0);
}

/* There at 12:00, where it fires, and back after an outage. */
static void miss_slots(enum hf_catch_up catch_up, const char *back)
{
    set_flow("*/10 * * * *", "UTC", catch_up);
    struct hf_scheduler *s = start(NULL);
    go_on(s, at("2024-01-01T11:55:00Z"), at("2024-01-01T12:01:00Z"));
    hf_scheduler_free(s);
    assert_string_equal(said, "");
    assert_int_equal(count(), 1);
    be_there(at(back));
}

static void catch_up_none_leaves_it_at_that(void **state)
{
    miss_slots(HF_CATCH_UP_NONE, "2024-01-01T13:05:00Z");
    assert_int_equal(count(), 1);
    assert_non_null(
        strstr(said, "report was due at 2024-01-01T12:10:00.000Z and nobody was there"));
    assert_non_null(strstr(said, "catch-up: none"));
}

static void what_is_not_a_minute_late_was_not_missed(void **state)
{
    miss_slots(HF_CATCH_UP_NONE, "2024-01-01T13:00:59Z");
    assert_int_equal(count(), 2);
    assert_true(is_there("2024-01-01T13:00:00Z"));
}

static void catch_up_last_runs_the_last_one(void **state)
{
    miss_slots(HF_CATCH_UP_LAST, "2024-01-03T13:05:00Z");
    assert_int_equal(count(), 2);
    assert_true(is_there("2024-01-03T13:00:00Z"));
    assert_non_null(strstr(said, "what was due last, at 2024-01-03T13:00:00.000Z, is caught up"));
    be_there(at("2024-01-03T13:05:00Z")); /* and only once */
    assert_int_equal(count(), 2);
    assert_string_equal(said, "");
}

static void catch_up_all_runs_every_one(void **state)
{
    miss_slots(HF_CATCH_UP_ALL, "2024-01-01T13:05:00Z");
    assert_int_equal(count(), 7);
    assert_true(is_there("2024-01-01T12:10:00Z") && is_there("2024-01-01T13:00:00Z"));
    assert_non_null(strstr(said, "6 slots from 2024-01-01T12:10:00.000Z on are caught up with\n"));
}

static void catch_up_all_has_a_limit_and_says_so(void **state)
{
    miss_slots(HF_CATCH_UP_ALL, "2024-01-31T12:05:00Z");
    assert_int_equal(count(), 1001);
    assert_true(is_there("2024-01-31T12:00:00Z"));
    assert_false(is_there("2024-01-01T12:10:00Z"));
    assert_non_null(strstr(said, "1000 slots"));
    assert_non_null(strstr(said, "which is the limit"));
}

static void a_slot_of_long_ago_is_found(void **state)
{
    set_flow("@yearly", "UTC", HF_CATCH_UP_LAST);
    struct hf_scheduler *s = start(NULL);
    go_on(s, at("2019-12-31T23:59:00Z"), at("2020-01-01T00:00:30Z"));
    hf_scheduler_free(s);
    be_there(at("2024-12-31T00:00:00Z"));
    assert_int_equal(count(), 2);
    assert_true(is_there("2024-01-01T00:00:00Z"));
}

/* ---- clocks that are wrong ------------------------------------------------------------------ */

static void a_clock_that_is_put_back_fires_nothing_twice(void **state)
{
    int64_t begin_ms = at("2024-01-01T12:00:00Z");
    set_flow("*/5 * * * *", "UTC", HF_CATCH_UP_ALL);
    struct hf_scheduler *s = start(NULL);
    go_on(s, begin_ms, begin_ms + 2 * HOUR);
    assert_int_equal(count(), 24);
    go_on(s, begin_ms + HOUR, begin_ms + 3 * HOUR);
    assert_int_equal(count(), 36);
    hf_scheduler_free(s);
    be_there(begin_ms + 2 * HOUR); /* and so for one that is started with such a clock */
    s = start(NULL);
    go_on(s, begin_ms + 2 * HOUR, begin_ms + 4 * HOUR);
    hf_scheduler_free(s);
    assert_int_equal(count(), 48);
}

/* As a worker does: all is run, and all but the newest is removed. */
static void run_and_remove(void)
{
    struct hf_retention rule = {.workflow = flow.name, .keep_ms = 1, .keep_count = 1};
    run_everything();
    usleep(2000);
    if (hf_prune(hf, &rule, 1, HF_FOREVER, NULL, &err) < 0)
        fail_msg("%s", err.message);
}

/* exclusion.md, row 7: what had been removed for its age was recorded again, and ran twice. */
static void a_clock_that_is_put_back_repeats_nothing_that_was_removed(void **state)
{
    int64_t begin_ms = at("2024-01-01T12:00:00Z");
    set_flow("*/5 * * * *", "UTC", HF_CATCH_UP_ALL);
    struct hf_scheduler *s = start(NULL);
    go_on(s, begin_ms, begin_ms + 2 * HOUR);
    run_and_remove();
    assert_int_equal(count(), 1);
    go_on(s, begin_ms, begin_ms + 2 * HOUR + MINUTE);
    assert_int_equal(count(), 1);
    assert_non_null(
        strstr(said, "report: the only slot that is kept, 2024-01-01T14:00:00.000Z, is later"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    hf_scheduler_free(s);
    s = start(NULL); /* and so for one that is started with such a clock */
    go_on(s, begin_ms + HOUR, begin_ms + 3 * HOUR);
    hf_scheduler_free(s);
    assert_int_equal(count(), 13);
    assert_false(is_there("2024-01-01T13:55:00Z"));
    assert_true(is_there("2024-01-01T14:05:00Z"));
}

static void a_host_whose_clock_is_behind_repeats_nothing(void **state)
{
    int64_t begin_ms = at("2024-01-01T12:00:00Z");
    set_flow("* * * * *", "UTC", HF_CATCH_UP_LAST);
    struct hf_scheduler *behind = start(NULL), *ahead = start(NULL);
    hf_scheduler_tick(behind, hf, begin_ms);
    hf_scheduler_tick(ahead, hf, begin_ms + 3 * MINUTE);
    for (int i = 1; i <= 10; i++) {
        hf_scheduler_tick(ahead, hf, begin_ms + (i + 3) * MINUTE);
        run_and_remove();
        hf_scheduler_tick(behind, hf, begin_ms + i * MINUTE);
        assert_int_equal(count(), 1);
    }
    hf_scheduler_free(behind);
    hf_scheduler_free(ahead);
}

static void a_clock_that_was_years_ahead_does_not_stop_it_though_nothing_else_is_kept(void **state)
{
    int64_t begin_ms = at("2022-01-01T12:00:00Z"), ahead_ms = at("2024-01-01T12:00:00Z");
    set_flow("0 * * * *", "UTC", HF_CATCH_UP_LAST);
    struct hf_scheduler *s = start(NULL);
    go_on(s, ahead_ms, ahead_ms + 2 * HOUR);
    run_and_remove();
    assert_int_equal(count(), 1);
    go_on(s, begin_ms, begin_ms + 2 * HOUR);
    hf_scheduler_free(s);
    assert_int_equal(count(), 3);
}

static void a_clock_that_was_years_ahead_does_not_stop_it(void **state)
{
    int64_t begin_ms = at("2024-01-01T12:00:00Z");
    set_flow("0 * * * *", "UTC", HF_CATCH_UP_LAST);
    struct hf_scheduler *s = start(NULL);
    go_on(s, begin_ms, begin_ms + 2 * HOUR);
    hf_scheduler_tick(s, hf, at("2036-01-01T12:30:00Z"));
    assert_int_equal(count(), 3);
    go_on(s, begin_ms + 2 * HOUR, begin_ms + 4 * HOUR);
    assert_int_equal(count(), 5);
    hf_scheduler_free(s);
    be_there(begin_ms + 6 * HOUR + 30 * MINUTE); /* what was missed is still known */
    assert_int_equal(count(), 6);
    assert_true(is_there("2024-01-01T18:00:00Z"));
}

static void keys_that_somebody_made_up_do_no_harm(void **state)
{
    static const char *const keys[] = {"cron:", "cron:0", "cron:zzz", "cron:9999-01-01"};
    set_flow("0 * * * *", "UTC", HF_CATCH_UP_ALL);
    for (size_t i = 0; i < 4; i++) {
        struct hf_begin_options o = HF_BEGIN_INIT;
        o.workflow = flow.name;
        o.key = keys[i];
        o.run_at_ms = 1;
        assert_int_equal(hf_enqueue(hf, &o, NULL, &err), 0);
    }
    be_there(at("2024-01-01T12:30:00Z"));
    assert_int_equal(count(), 4);
    struct hf_scheduler *s = start(NULL);
    go_on(s, at("2024-01-01T12:30:00Z"), at("2024-01-01T14:30:00Z"));
    hf_scheduler_free(s);
    assert_int_equal(count(), 6);
    be_there(at("2024-01-01T16:30:00Z"));
    assert_int_equal(count(), 8);
}

/* ---- clocks that are changed on purpose ----------------------------------------------------- */

static int slots_in_a_night(const char *when, const char *where, const char *from, const char *to)
{
    set_flow(when, where, HF_CATCH_UP_LAST);
    snprintf(flow.name, sizeof flow.name, "%s in %s at %s", when, where, from);
    struct hf_scheduler *s = start(NULL);
    go_on(s, at(from), at(to));
    hf_scheduler_free(s);
    assert_string_equal(said, "");
    return count();
}

static void summer_time_comes_and_goes(void **state)
{
    static const char *const spring[] = {"2026-03-29T00:00:30Z", "2026-03-29T03:59:30Z"};
    static const char *const autumn[] = {"2026-10-24T23:00:30Z", "2026-10-25T03:59:30Z"};
    assert_int_equal(slots_in_a_night("30 2 * * *", "Europe/Oslo", spring[0], spring[1]), 1);
    assert_true(is_there("2026-03-29T01:00:00Z"));
    assert_int_equal(slots_in_a_night("30 * * * *", "Europe/Oslo", spring[0], spring[1]), 4);
    assert_int_equal(slots_in_a_night("30 2 * * *", "Europe/Oslo", autumn[0], autumn[1]), 1);
    assert_true(is_there("2026-10-25T00:30:00Z"));
    assert_int_equal(slots_in_a_night("*/30 * * * *", "Europe/Oslo", autumn[0], autumn[1]), 9);
    assert_int_equal(slots_in_a_night("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z",
                                      "2026-04-04T16:00:00Z"),
                     1);
    assert_true(is_there("2026-04-04T14:45:00Z"));
}

/* ---- the rest ------------------------------------------------------------------------------- */

static void jitter_is_the_same_for_everybody(void **state)
{
    int64_t begin_ms = at("2024-01-01T00:00:00Z"), sum_ms = 0;
    set_flow("0 * * * *", "UTC", HF_CATCH_UP_ALL);
    flow.jitter_ms = 10 * MINUTE;
    struct hf_scheduler *s = start(NULL);
    go_on(s, begin_ms, begin_ms + 40 * HOUR);
    hf_scheduler_free(s);
    assert_int_equal(count(), 40);
    static struct listed first;
    first = listed;
    for (int i = 0; i < 40; i++) {
        int64_t jitter_ms = listed.run_at_ms[i] - (begin_ms + (40 - i) * HOUR);
        assert_true(jitter_ms >= 0 && jitter_ms <= 10 * MINUTE);
        sum_ms += jitter_ms;
    }
    assert_true(sum_ms > 40 * MINUTE && sum_ms < 360 * MINUTE);
    /* Another store, the same slots. */
    hf_close(hf);
    open_one(NULL);
    s = start(NULL);
    go_on(s, begin_ms, begin_ms + 40 * HOUR);
    hf_scheduler_free(s);
    assert_int_equal(count(), 40);
    assert_memory_equal(first.run_at_ms, listed.run_at_ms, 40 * sizeof(int64_t));
}

static void a_reload_goes_on_where_the_last_one_was(void **state)
{
    int64_t begin_ms = at("2024-01-01T12:00:30Z");
    set_flow("0 * * * *", "UTC", HF_CATCH_UP_ALL);
    struct hf_scheduler *before = start(NULL);
    go_on(before, begin_ms, begin_ms + HOUR + 30 * MINUTE);
    assert_int_equal(count(), 1);
    snprintf(schedule, sizeof schedule, "* * * * *");
    struct hf_scheduler *after = start(before);
    hf_scheduler_free(before);
    hf_scheduler_tick(after, hf, begin_ms + HOUR + 31 * MINUTE);
    assert_true(count() <= 3);
    hf_scheduler_free(after);
}

static void many_at_once(void **state)
{
    enum { N = 120 };
    static struct hf_workflow many[N];
    struct hf_workflows all = {.of = many, .n = N};
    struct hf_scheduler *s;
    set_flow("0 12 * * *", "UTC", HF_CATCH_UP_LAST);
    for (int i = 0; i < N; i++) {
        many[i] = flow;
        snprintf(many[i].name, sizeof many[i].name, "w%d", i);
        if (i % 10 == 0)
            many[i].schedule = NULL;
    }
    assert_int_equal(hf_scheduler_open(&all, NULL, &s, &err), 0);
    go_on(s, at("2024-01-01T11:59:30Z"), at("2024-01-01T12:00:30Z"));
    hf_scheduler_free(s);
    int there = 0;
    for (int i = 0; i < N; i++) {
        memcpy(flow.name, many[i].name, sizeof flow.name);
        there += count();
        assert_int_equal(listed.n, i % 10 != 0);
    }
    assert_int_equal(there, 108);
}

static void a_store_that_fails_is_asked_again_and_told_of_once(void **state)
{
    struct hf *locks_only;
    set_flow("* * * * *", "UTC", HF_CATCH_UP_LAST);
    char place[128] = "file:", remove[160];
    assert_non_null(make_directory(place + strlen("file:"), sizeof place - strlen("file:")));
    assert_int_equal(hf_open(place, &locks_only, &err), 0);
    struct hf_scheduler *s = start(NULL);
    int64_t now_ms = at("2024-01-01T12:00:30Z");
    for (int i = 0; i < 3; i++) {
        int64_t next_ms = hf_scheduler_tick(s, locks_only, now_ms);
        assert_true(next_ms > now_ms && next_ms < now_ms + MINUTE);
        now_ms = next_ms;
    }
    hf_close(locks_only);
    snprintf(remove, sizeof remove, "rm -rf %s", place + strlen("file:"));
    assert_int_equal(system(remove), 0);
    assert_non_null(strstr(said, "keeps locks only"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
    hf_scheduler_tick(s, hf, now_ms);
    hf_scheduler_tick(s, hf, at("2024-01-01T12:01:00Z"));
    hf_scheduler_free(s);
    assert_int_equal(count(), 1);
}

static void nothing_recurring_needs_no_tick(void **state)
{
    set_flow("* * * * *", "UTC", HF_CATCH_UP_LAST);
    flow.schedule = NULL;
    struct hf_scheduler *s = start(NULL);
    assert_ms(hf_scheduler_tick(s, hf, 1), INT64_MAX);
    hf_scheduler_free(s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, open_one, close_one)
        T(two_processes_and_a_hundred_slots),
        T(who_was_never_there_has_missed_nothing),
        T(catch_up_none_leaves_it_at_that),
        T(what_is_not_a_minute_late_was_not_missed),
        T(catch_up_last_runs_the_last_one),
        T(catch_up_all_runs_every_one),
        T(catch_up_all_has_a_limit_and_says_so),
        T(a_slot_of_long_ago_is_found),
        T(a_clock_that_is_put_back_fires_nothing_twice),
        T(a_clock_that_is_put_back_repeats_nothing_that_was_removed),
        T(a_host_whose_clock_is_behind_repeats_nothing),
        T(a_clock_that_was_years_ahead_does_not_stop_it),
        T(a_clock_that_was_years_ahead_does_not_stop_it_though_nothing_else_is_kept),
        T(keys_that_somebody_made_up_do_no_harm),
        T(summer_time_comes_and_goes),
        T(jitter_is_the_same_for_everybody),
        T(a_reload_goes_on_where_the_last_one_was),
        T(many_at_once),
        T(a_store_that_fails_is_asked_again_and_told_of_once),
        T(nothing_recurring_needs_no_tick),
#undef T
    };
    if (argc != 3 || strcmp(argv[1], "--store") != 0)
        return 64;
    store_url = argv[2];
    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
