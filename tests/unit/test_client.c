/* What the library checks before it asks a store, what a struct's size means, and how it waits for a
 * store that fails. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "flock.h"
#include "local.h"
#include "place.h"

/* ---- a filesystem that tests can choose: this kernel may have no network ones ---------------- */

static long pretended_magic; /* 0: what is there */
/* With 64-bit offsets this is what statfs() is called. */
int __real_statfs64(const char *path, struct statfs *ret);
int __wrap_statfs64(const char *path, struct statfs *ret);
int __wrap_statfs64(const char *path, struct statfs *ret)
{
    int r = __real_statfs64(path, ret);
    if (r == 0 && pretended_magic)
        ret->f_type = pretended_magic;
    return r;
}

/* ---- the tests ------------------------------------------------------------------------------ */

static struct hf *hf;
static struct hf_error err;

static int set_up(void **state)
{
    if (place_make(state, "file", "") < 0)
        return -1;
    hf = open_ok(*state);
    hf->poll_ms = 100; /* these tests wait for it */
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

/* As much as dynamodb/clock.c takes for granted of two sound clocks. */
static void the_deadline_leaves_room_for_drift_however_long_the_ttl(void **state)
{
    for (int64_t ttl_ms = HF_TTL_MIN_MS; ttl_ms < HF_TTL_MAX_MS; ttl_ms = ttl_ms * 3 / 2)
        assert_true(hf_deadline_ms(0, ttl_ms) <= ttl_ms - ttl_ms / 1000000 * HF_CLOCK_DRIFT_PPM);
}

static void a_store_on_a_network_filesystem_is_refused(void **state)
{
    static const struct {
        long magic;
        const char *name;
    } kinds[] = {{0x6969, "NFS"},      {0xff534d42, "CIFS"},     {0x01021997, "9p"},
                 {0x65735546, "FUSE"}, {0x6a656a63, "virtiofs"}, {0x1234, "unknown"}};
    const struct place *p = *state;
    for (size_t i = 0; i < 2 * sizeof kinds / sizeof *kinds; i++) {
        char url[200];
        struct hf *other = NULL;
        snprintf(url, sizeof url, "%s:%s/other", i % 2 ? "sqlite" : "file", p->dir);
        pretended_magic = kinds[i / 2].magic;
        assert_int_equal(hf_open(url, &other, &err), -HF_UNAVAILABLE);
        pretended_magic = 0;
        assert_null(other);
        assert_non_null(strstr(err.message, kinds[i / 2].name));
        assert_non_null(strstr(err.message, "name a place on a local disk with --store"));
    }
}

/* ---- a store that is kept busy --------------------------------------------------------------- */

_Noreturn static void lock_and_stop(const char *path)
{
    int own_fd = open(path, O_RDWR | O_CLOEXEC); /* another description: the lock is the child's */
    if (own_fd < 0 || flock(own_fd, LOCK_EX) < 0)
        _exit(1);
    raise(SIGSTOP);
    for (;;)
        pause();
}

static void who_keeps_a_store_busy_is_named(void **state)
{
    const struct place *p = *state;
    char path[sizeof p->dir + 8], blame[HF_BLAME_MAX], wanted[HF_BLAME_MAX];
    int status;
    snprintf(path, sizeof path, "%s/file", p->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    hf_flock_blame(fd, blame);
    assert_non_null(strstr(blame, "(see: lslocks)"));
    pid_t pid = fork();
    if (pid == 0)
        lock_and_stop(path);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    hf_flock_blame(fd, blame);
    snprintf(wanted, sizeof wanted, "process %d is stopped in the middle of a change; ", (int)pid);
    assert_memory_equal(blame, wanted, strlen(wanted));
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, WCONTINUED), pid);
    hf_flock_blame(fd, blame);
    snprintf(wanted, sizeof wanted, "process %d has it (state ", (int)pid);
    assert_memory_equal(blame, wanted, strlen(wanted));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(fd);
}

/* ---- a store that fails at will -------------------------------------------------------------- */

static const struct hf_store_ops *sound_ops;
static struct hf_store_ops failing_ops;
static struct {
    int after; /* so many requests are answered first */
    int times; /* then so many fail; with the last one the holder gives the name back */
    int code;  /* with this; -HF_UNKNOWN: though they were carried out */
    bool past_help;
} fault;
static struct hf *elsewhere; /* a handle that has no faults */
static struct hf_lease held;

static int apply_or_fail(struct hf_store *store, const struct hf_request *requests, size_t n,
                         struct hf_answer *answers, struct hf_error *e)
{
    int r = 0;
    bool fails = fault.after-- <= 0 && fault.times > 0;
    if (!fails || fault.code == -HF_UNKNOWN)
        r = sound_ops->apply(store, requests, n, answers, e);
    if (!fails)
        return r;
    store->past_help = fault.past_help;
    if (--fault.times == 0)
        assert_int_equal(hf_release(elsewhere, &held, NULL), 0);
    return hf_fail(e, -fault.code, "the disk is on fire");
}

/* "a" is held through another handle; the next requests but `after` of `hf` will fail. */
static void set_fire(void **state, int after, int times, int code)
{
    elsewhere = open_ok(*state);
    assert_int_equal(hf_acquire(elsewhere, "a", NULL, &held, &err), 0);
    sound_ops = hf->store->ops;
    failing_ops = *sound_ops;
    failing_ops.apply = apply_or_fail;
    hf->store->ops = &failing_ops;
    memset(&fault, 0, sizeof fault);
    fault.after = after;
    fault.times = times;
    fault.code = code;
}

static void put_out(void)
{
    hf->store->ops = sound_ops;
    hf_close(elsewhere);
}

static struct hf_acquire_options waiting(int64_t wait_ms)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    opts.wait_ms = wait_ms;
    return opts;
}

enum { FIRST_ASKS = 2 /* of a waiter: into the queue, and again when it can be woken */ };

static void who_waits_outlasts_a_store_that_fails(void **state)
{
    static const int codes[] = {-HF_UNAVAILABLE, -HF_UNKNOWN};
    for (int i = 0; i < 2; i++) {
        struct hf_acquire_options opts = waiting(HF_FOREVER);
        struct hf_lease lease;
        set_fire(state, FIRST_ASKS, 5, codes[i]); /* an unknown is asked for four times at once */
        assert_int_equal(hf_acquire(hf, "a", &opts, &lease, &err), 0);
        assert_int_equal(fault.times, 0);
        assert_true(lease.fence > held.fence);
        assert_int_equal(hf_release(hf, &lease, &err), 0);
        put_out();
    }
}

static void an_event_loop_sleeps_while_the_store_fails(void **state)
{
    struct hf_acquire_options opts = waiting(HF_FOREVER);
    struct hf_lease lease;
    struct hf_wait *wait;
    int r, failures = 0;
    set_fire(state, FIRST_ASKS, 3, -HF_UNAVAILABLE);
    assert_int_equal(hf_wait_start(hf, "a", &opts, &wait, &err), 0);
    assert_int_equal(hf_wait_check(wait, &lease, &err), -HF_HELD);
    assert_true(err.has_holder);
    struct pollfd fd = {.fd = hf_wait_fd(wait), .events = POLLIN};
    while ((r = hf_wait_check(wait, &lease, &err)) == -HF_HELD) {
        assert_false(hf_wait_is_over(wait));
        if (strstr(err.message,
                   "still waiting for a though the store fails: the disk is on fire")) {
            assert_false(err.has_holder);
            failures++;
        }
        assert_int_equal(poll(&fd, 1, 60000), 1);
    }
    assert_int_equal(r, 0);
    assert_int_equal(failures, 3);
    assert_true(hf_wait_is_over(wait));
    hf_wait_end(wait);
    put_out();
}

static void a_wait_that_ends_while_the_store_fails_says_so(void **state)
{
    struct hf_acquire_options opts = waiting(1000);
    struct hf_lease lease;
    set_fire(state, FIRST_ASKS, 1000, -HF_UNAVAILABLE);
    assert_int_equal(hf_extend(elsewhere, &held, 200, &err), 0); /* then it looks, and fails */
    int64_t before_ms = hf_clock_boot_ms();
    assert_int_equal(hf_acquire(hf, "a", &opts, &lease, &err), -HF_UNAVAILABLE);
    assert_true(hf_clock_boot_ms() >= before_ms + 1000);
    assert_true(fault.times > 900); /* it slept in between */
    assert_non_null(strstr(err.message, "the disk is on fire (still so after "));
    put_out();
}

static void a_store_that_fails_at_first_or_for_good_is_an_error_at_once(void **state)
{
    struct hf_acquire_options opts = waiting(HF_FOREVER);
    struct hf_lease lease;
    for (int past_help = 0; past_help < 2; past_help++) {
        set_fire(state, past_help ? FIRST_ASKS : 0, 1000, -HF_UNAVAILABLE);
        fault.past_help = past_help;
        if (past_help)
            opts.wait_ms = 600000; /* nobody wakes it: it looks by itself */
        assert_int_equal(hf_acquire(hf, "a", &opts, &lease, &err), -HF_UNAVAILABLE);
        assert_string_equal(err.message, "the disk is on fire");
        assert_int_equal(hf_release(elsewhere, &held, NULL), 0);
        put_out();
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
        T(the_deadline_leaves_room_for_drift_however_long_the_ttl),
        T(a_store_on_a_network_filesystem_is_refused),
        T(who_keeps_a_store_busy_is_named),
        T(who_waits_outlasts_a_store_that_fails),
        T(an_event_loop_sleeps_while_the_store_fails),
        T(a_wait_that_ends_while_the_store_fails_says_so),
        T(a_store_that_fails_at_first_or_for_good_is_an_error_at_once),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
