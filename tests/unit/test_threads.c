/*
 * One handle, many threads: everything at once, built under ThreadSanitizer by `make tsan`. And what
 * a fork leaves of a handle.
 *
 *     test_threads --store URL        (tests/store/in-scratch has one)
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../store/fresh.h"
#include "check.h"
#include "holdfast.h"
#include "process.h"

enum {
    THREADS = 8,
    ROUNDS = 40,
    NAMES = 2,
    TTL_MS = 3000 /* a busy machine may stand still for almost two thirds of it */
};

static const char *const names[NAMES] = {"first", "second"};
static const char *store_url;
static struct hf *hf;
static struct hf_error err; /* of the test's own thread */

static bool is_postgres(void) { return strncmp(store_url, "postgres:", 9) == 0; }

static int open_one(void **state)
{
    char url[FRESH_URL_MAX];
    return open_fresh(store_url, url, &hf);
}

static int close_one(void **state)
{
    hf_close(hf);
    return 0;
}

/* cmocka's assertions belong to the main thread: others note what went wrong. */
static _Atomic int mistakes;
static _Atomic long held_at_once[NAMES];
static long unguarded[NAMES]; /* only whoever holds the name touches it: TSan would tell */

static void expect(bool holds, const char *what, const struct hf_error *why)
{
    if (holds)
        return;
    mistakes++;
    print_error("%s: %s\n", what, why ? why->message : "");
}

/* ---- everything at once --------------------------------------------------------------------- */

static void work_under(int name)
{
    expect(++held_at_once[name] == 1, "two hold it at once", NULL);
    unguarded[name]++;
    held_at_once[name]--;
}

static void hold_once(int name, int round)
{
    struct hf_error e = {0};
    struct hf_lease lease;
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    options.wait_ms = HF_FOREVER;
    options.priority = round % 2;
    options.bound[0] = getpid();
    options.n_bound = round % 3 == 0;
    if (hf_acquire(hf, names[name], &options, &lease, &e) < 0) {
        expect(false, "acquire", &e);
        return;
    }
    work_under(name);
    if (round % 4 == 0)
        expect(hf_extend(hf, &lease, 0, &e) == 0, "extend", &e);
    expect(hf_guard(hf, names[name], lease.fence, &e) == 0, "guard", &e);
    struct hf_keeper *keeper = NULL;
    if (round % 5 == 0) {
        expect(hf_keep(hf, &lease, NULL, &keeper, &e) == 0, "keep", &e);
        expect(hf_keeper_check(keeper, NULL, &e) == 0, "keeper", &e);
        hf_keeper_stop(keeper);
    }
    work_under(name);
    expect(hf_release(hf, &lease, &e) == 0, "release", &e);
}

static void *hold_often(void *arg)
{
    for (int round = 0; round < ROUNDS; round++)
        hold_once((int)((intptr_t)arg + round) % NAMES, round);
    return NULL;
}

static int ignore_status(void *arg, const struct hf_status *status) { return 0; }
static int ignore_event(void *arg, const struct hf_event *event) { return 0; }

static void *look_often(void *arg)
{
    _Atomic bool *done = arg;
    struct hf_error e = {0};
    struct hf_status status;
    struct hf_totals totals;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    query.limit = 10;
    while (!*done) {
        expect(hf_status_of(hf, names[0], &status, &e) == 0, "status", &e);
        expect(hf_list(hf, HF_LIST_ALL, NULL, ignore_status, NULL, &e) == 0, "list", &e);
        expect(hf_events(hf, &query, ignore_event, NULL, &e) == 0, "events", &e);
        expect(hf_totals_of(hf, &totals, &e) == 0, "totals", &e);
        expect(hf_sweep(hf, false, NULL, NULL, NULL, &e) == 0, "sweep", &e);
        usleep(1000);
    }
    return NULL;
}

static void many_threads_share_one_handle(void **state)
{
    pthread_t threads[THREADS], looker;
    _Atomic bool done = false;
    memset(unguarded, 0, sizeof unguarded);
    assert_int_equal(pthread_create(&looker, NULL, look_often, &done), 0);
    for (intptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hold_often, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    done = true;
    pthread_join(looker, NULL);
    assert_int_equal(mistakes, 0);
    assert_int_equal(unguarded[0] + unguarded[1], 2 * THREADS * ROUNDS);
}

/* ---- keepers -------------------------------------------------------------------------------- */

static _Atomic int renewals;

static void count_renewal(void *arg, const struct hf_lease *lease) { renewals++; }

static void a_keeper_renews_until_it_is_stopped(void **state)
{
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    struct hf_keep_options keep = HF_KEEP_INIT;
    struct hf_lease lease;
    struct hf_status status = {0};
    struct hf_keeper *keeper;
    options.ttl_ms = TTL_MS;
    keep.renewed = count_renewal;
    renewals = 0;
    assert_int_equal(hf_acquire(hf, "kept", &options, &lease, &err), 0);
    assert_int_equal(hf_keep(hf, &lease, &keep, &keeper, &err), 0);
    for (int i = 0; i < 6000 && renewals < 4; i++)
        usleep(10000);
    assert_true(renewals >= 4); /* by now it would have run out */
    assert_int_equal(hf_keeper_check(keeper, &lease, &err), 0);
    hf_keeper_stop(keeper);
    int after = renewals;
    for (int i = 0; i < 6000 && status.state != HF_STATE_STALE; i++) {
        usleep(10000);
        assert_int_equal(hf_status_of(hf, "kept", &status, &err), 0);
    }
    assert_int_equal(status.state, HF_STATE_STALE);
    assert_int_equal(renewals, after); /* bug 11: nothing is renewed after */
    assert_int_equal(hf_release(hf, &lease, &err), -HF_LOST);
}

static void a_keepers_descriptor_tells_of_the_loss(void **state)
{
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    struct hf_keeper *keeper;
    options.ttl_ms = TTL_MS;
    assert_int_equal(hf_acquire(hf, "forced", &options, &lease, &err), 0);
    assert_int_equal(hf_keep(hf, &lease, NULL, &keeper, &err), 0);
    struct pollfd fd = {.fd = hf_keeper_fd(keeper), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(hf_force_release(hf, "forced", lease.fence, "a test", &err), 0);
    assert_int_equal(poll(&fd, 1, 60000), 1);
    assert_int_equal(hf_keeper_check(keeper, NULL, &err), -HF_LOST);
    assert_true(strlen(err.message) > 0);
    hf_keeper_stop(keeper);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static void a_wait_ends_when_it_is_cancelled(void **state)
{
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    struct hf_lease lease, other;
    struct hf_status status;
    int cancel[2];
    assert_int_equal(pipe(cancel), 0);
    assert_int_equal(hf_acquire(hf, "busy", NULL, &lease, &err), 0);
    options.wait_ms = HF_FOREVER;
    options.cancel_fd = cancel[0];
    assert_int_equal(write(cancel[1], "x", 1), 1);
    memset(&other, 0x55, sizeof other);
    assert_int_equal(hf_acquire(hf, "busy", &options, &other, &err), -HF_CANCELLED);
    assert_int_equal(other.name[0], 0x55); /* outputs are untouched on failure */
    assert_int_equal(hf_status_of(hf, "busy", &status, &err), 0);
    assert_int_equal(status.waiters, 0);
    assert_int_equal(hf_release(hf, &lease, &err), 0);
    close(cancel[0]);
    close(cancel[1]);
}

static void waits_fit_into_an_event_loop(void **state)
{
    struct hf_acquire_options options = HF_ACQUIRE_INIT;
    struct hf_wait *waits[3];
    struct hf_lease lease, next;
    options.wait_ms = HF_FOREVER;
    assert_int_equal(hf_acquire(hf, "loop", NULL, &lease, &err), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hf_wait_start(hf, "loop", &options, &waits[i], &err), 0);
        assert_int_equal(hf_wait_check(waits[i], &next, &err), -HF_HELD);
        assert_true(err.has_holder);
        assert_false(hf_wait_is_over(waits[i]));
    }
    hf_wait_end(waits[1]); /* gives up: it is passed over */
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(hf_release(hf, &lease, &err), 0);
        struct pollfd fd = {.fd = hf_wait_fd(waits[i]), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 60000), 1);
        assert_int_equal(hf_wait_check(waits[i], &lease, &err), 0);
        assert_true(hf_wait_is_over(waits[i]));
        hf_wait_end(waits[i]);
    }
    assert_int_equal(hf_release(hf, &lease, &err), 0);
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* In the child; its exit code is the number of the first thing that went wrong. */
static int try_after_fork(const char *url)
{
    struct hf_error e = {0};
    struct hf_lease lease;
    struct hf_status status;
    struct hf *own;
    if (hf_acquire(hf, "child", NULL, &lease, &e) != -HF_FORKED || e.code != -HF_FORKED)
        return 1;
    if (hf_status_of(hf, "child", &status, &e) != -HF_FORKED)
        return 2;
    hf_close(hf); /* harmless */
    if (hf_open(url, &own, &e) < 0)
        return 3;
    if (hf_acquire(own, "parent", NULL, &lease, &e) != -HF_HELD)
        return 4;
    if (hf_acquire(own, "child", NULL, &lease, &e) < 0 || hf_release(own, &lease, &e) < 0)
        return 5;
    hf_close(own);
    return 0;
}

/*
 * The sanitizers' allocator does not expect a child that was forked while another thread was in it:
 * fork when all others sleep.
 */
static void wait_until_other_threads_sleep(void)
{
    for (bool all_sleep = false; !all_sleep; usleep(1000)) {
        DIR *tasks = opendir("/proc/self/task");
        all_sleep = true;
        for (struct dirent *task; (task = readdir(tasks));) {
            struct hf_process_stat stat;
            pid_t tid = (pid_t)strtol(task->d_name, NULL, 10);
            if (tid > 0 && tid != gettid() && hf_process_read_stat(tid, &stat))
                all_sleep = all_sleep && stat.state == 'S';
        }
        closedir(tasks);
    }
}

static void after_fork_the_childs_handle_says_so(void **state)
{
    struct hf_lease lease;
    struct hf_keeper *keeper;
    char url[HF_MESSAGE_MAX];
    snprintf(url, sizeof url, "%s", hf_url(hf));
    assert_int_equal(hf_acquire(hf, "parent", NULL, &lease, &err), 0);
    assert_int_equal(hf_keep(hf, &lease, NULL, &keeper, &err), 0);
    wait_until_other_threads_sleep();
    pid_t pid = fork();
    if (pid == 0)
        _exit(try_after_fork(url));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    hf_keeper_stop(keeper);
    assert_int_equal(hf_extend(hf, &lease, 0, &err), 0); /* the parent's is as it was */
    assert_int_equal(hf_release(hf, &lease, &err), 0);
}

static bool is_locked_by_us(const char *path)
{
    if (is_postgres())
        return strstr(path, "socket:["); /* a connection, which the child would share */
    return strstr(path, strchr(store_url, ':') + 1) &&
           (strstr(path, "-queue") || strstr(path, "/.holdfast/names/") ||
            strstr(path, "/.holdfast/state"));
}

/* Open or mapped, either keeps the file's kernel lock. */
static int count_lock_files(void)
{
    char line[500], path[64];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        n += is_locked_by_us(line);
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(path, line, sizeof line - 1);
        line[len < 0 ? 0 : len] = '\0';
        n += is_locked_by_us(line);
    }
    fclose(maps);
    return n;
}

/* The bug: a parent killed in the middle of a change stayed in it for as long as its child lived. */
static void a_forked_child_keeps_no_kernel_lock(void **state)
{
    struct hf_lease lease;
    if (strncmp(store_url, "etcd:", 5) == 0)
        return; /* it has none */
    assert_int_equal(hf_acquire(hf, "parent", NULL, &lease, &err), 0);
    assert_true(count_lock_files() > 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(count_lock_files());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(hf_release(hf, &lease, &err), 0);
}

/* ---- batches -------------------------------------------------------------------------------- */

static void a_batch_is_answered_one_by_one(void **state)
{
    char tokens[2][HF_UUID_LEN + 1];
    static struct hf_answer answers[4];
    hf_token(tokens[0]);
    hf_token(tokens[1]);
    struct hf_request requests[] = {
        {.op = HF_OP_ACQUIRE, .name = "one", .token = tokens[0], .ttl_ms = 5000, .owner = "me"},
        {.op = HF_OP_ACQUIRE, .name = "two", .token = tokens[0], .ttl_ms = 5000, .owner = "me"},
        {.op = HF_OP_ACQUIRE, .name = "one", .token = tokens[1], .ttl_ms = 5000, .owner = "you"},
        {.op = HF_OP_RELEASE, .name = "two", .token = tokens[0]},
    };
    assert_int_equal(hf_apply(hf, requests, 4, answers, &err), 0);
    assert_int_equal(answers[0].code, 0);
    assert_int_equal(answers[1].code, 0);
    assert_int_equal(answers[2].code, -HF_HELD);
    assert_string_equal(answers[2].holder.owner, "me");
    assert_int_equal(answers[3].code, 0);
}

/* ---- what a caller may get wrong ---------------------------------------------------------------
 */

static void the_longest_wait_is_for_ever(void **state)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_lease lease, none;
    struct hf_wait *wait;
    opts.wait_ms = INT64_MAX;
    assert_int_equal(hf_acquire(hf, "a", NULL, &lease, &err), 0);
    assert_int_equal(hf_wait_start(hf, "a", &opts, &wait, &err), 0);
    assert_int_equal(hf_wait_check(wait, &none, &err), -HF_HELD);
    assert_false(hf_wait_is_over(wait));
    hf_wait_end(wait);
}

static void too_many_processes_and_unknown_operations_are_refused(void **state)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    struct hf_answer answer;
    struct hf_request req = {.op = (enum hf_op)(HF_OP_GUARD + 1), .name = "a"};
    opts.n_bound = 1000000000;
    assert_int_equal(hf_acquire(hf, "a", &opts, &lease, &err), -HF_INVALID);
    assert_int_equal(hf_apply(hf, &req, 1, &answer, &err), -HF_INVALID);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, open_one, close_one)
        T(many_threads_share_one_handle),
        T(a_keeper_renews_until_it_is_stopped),
        T(a_keepers_descriptor_tells_of_the_loss),
        T(a_wait_ends_when_it_is_cancelled),
        T(a_forked_child_keeps_no_kernel_lock),
        T(waits_fit_into_an_event_loop),
        T(after_fork_the_childs_handle_says_so),
        T(a_batch_is_answered_one_by_one),
        T(the_longest_wait_is_for_ever),
        T(too_many_processes_and_unknown_operations_are_refused),
#undef T
    };
    if (argc != 3 || strcmp(argv[1], "--store") != 0)
        return 64;
    store_url = argv[2];
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
