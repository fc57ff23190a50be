/*
 * What the file store keeps on disk, and what becomes of it: names, damage, a process killed
 * between two writes, a lost power supply, a reboot, growth. What locks mean is the conformance
 * suite's matter; what other programs see is test_file_foreign.py's.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boots.h"
#include "file/file_store.h"
#include "place.h"

/* ---- a disk that can fail ------------------------------------------------------------------- */

static int syncs, failing_syncs; /* since they were set to 0; how many are to fail from now on */
int __wrap_fdatasync(int fd);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
    syncs++;
    if (failing_syncs == 0)
        return __real_fdatasync(fd);
    failing_syncs--;
    errno = EIO;
    return -1;
}

/* ---- a store in a directory of its own ------------------------------------------------------ */

static int set_up(void **state) { return place_make(state, "file", ""); }

static struct hf_lease take(struct hf *hf, const char *name, int64_t ttl_ms)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    struct hf_error err = {0};
    opts.ttl_ms = ttl_ms;
    if (hf_acquire(hf, name, &opts, &lease, &err) < 0)
        fail_msg("acquire %s: %s", name, err.message);
    return lease;
}

static int64_t take_and_release(struct hf *hf, const char *name)
{
    struct hf_lease lease = take(hf, name, 0);
    assert_int_equal(hf_release(hf, &lease, NULL), 0);
    return lease.fence;
}

static enum hf_lock_state state_of(struct hf *hf, const char *name)
{
    struct hf_status status;
    assert_int_equal(hf_status_of(hf, name, &status, NULL), 0);
    return status.state;
}

/* ---- names ---------------------------------------------------------------------------------- */

static void encodes(const char *name, const char *file)
{
    char encoded[HF_FILE_NAME_SIZE], decoded[HF_NAME_MAX + 1];
    hf_file_encode(name, encoded);
    assert_string_equal(encoded, file);
    assert_true(hf_file_decode(encoded, decoded));
    assert_string_equal(decoded, name);
}

static void only_slash_and_percent_are_encoded(void **state)
{
    encodes("nightly-report", "nightly-report.lock");
    encodes(".index", ".index.lock");
    encodes("a/b", "a%2Fb.lock");
    encodes("100%", "100%25.lock");
    encodes("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd.lock");
    encodes(".", "..lock");
    encodes("..", "...lock");
    encodes("x.lock", "x.lock.lock");
    encodes("påske 🐣", "påske 🐣.lock");
}

static void files_that_are_no_names_are_not_decoded(void **state)
{
    char name[HF_NAME_MAX + 1];
    const char *const files[] = {".lock",     "x",       "metrics.json", ".holdfast", "a%41.lock",
                                 "a%2f.lock", "a%.lock", "a\n.lock",     " a.lock",   "\xff.lock"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_false(hf_file_decode(files[i], name));
}

static void long_names_are_cut_and_told_apart(void **state)
{
    char a[HF_NAME_MAX + 1], b[HF_NAME_MAX + 1];
    char file_a[HF_FILE_NAME_SIZE], file_b[HF_FILE_NAME_SIZE];
    memset(a, '/', HF_NAME_MAX);
    memset(b, '/', HF_NAME_MAX);
    a[HF_NAME_MAX] = b[HF_NAME_MAX] = '\0';
    b[HF_NAME_MAX - 1] = 'x';
    hf_file_encode(a, file_a);
    hf_file_encode(b, file_b);
    assert_string_not_equal(file_a, file_b);
    assert_true(strlen(file_a) <= 245 && strlen(file_b) <= 245);
}

static int note_name(void *arg, const struct hf_status *status)
{
    strcat(arg, status->name);
    strcat(arg, "\n");
    return 0;
}

static void list_knows_cut_names(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    char name[HF_NAME_MAX + 1], listed[1000] = "", expected[1000];
    memset(name, '%', HF_NAME_MAX);
    name[HF_NAME_MAX] = '\0';
    take(hf, name, 0);
    take(hf, ".index", 0);
    take_and_release(hf, "free");
    assert_int_equal(hf_list(hf, HF_LIST_HELD, NULL, note_name, listed, NULL), 0);
    snprintf(expected, sizeof expected, "%s\n.index\n", name);
    assert_string_equal(listed, expected);
    listed[0] = '\0';
    assert_int_equal(hf_list(hf, HF_LIST_ALL, "f", note_name, listed, NULL), 0);
    assert_string_equal(listed, "free\n");
    hf_close(hf);
}

/* ---- fences --------------------------------------------------------------------------------- */

static void fences_grow_though_the_power_was_lost(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    take_and_release(hf, "x");
    shell("cp %s/.holdfast/state %s/../$(basename %s).old", p->dir, p->dir, p->dir);
    int64_t last = 0;
    for (int i = 0; i < 100; i++)
        last = take_and_release(hf, "x");
    hf_close(hf);
    /* Nothing since then has reached the disk; the guards did not survive at all. */
    shell("mv %s/../$(basename %s).old %s/.holdfast/state && rm %s/.holdfast/names/*", p->dir,
          p->dir, p->dir, p->dir);
    boot_again();
    hf = open_ok(p);
    assert_true(take_and_release(hf, "x") > last);
    hf_close(hf);
}

/* The bug: a limit that was written but not synced was taken for one that is on disk. */
static void a_limit_whose_sync_failed_is_synced_before_it_is_used(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_lease lease;
    take_and_release(hf, "an event, so that its segment is there");
    failing_syncs = 1;
    assert_true(hf_init(hf, true, NULL) < 0); /* raises the limit */
    failing_syncs = 1;
    assert_true(hf_acquire(hf, "y", NULL, &lease, NULL) < 0);
    syncs = 0;
    take_and_release(hf, "y");
    assert_int_equal(syncs, 1);
    take_and_release(hf, "z");
    assert_int_equal(syncs, 1);
    hf_close(hf);
}

static void fences_grow_though_the_guard_is_damaged_or_gone(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p), *other = open_ok(p);
    int64_t last = 0, next;
    const char *const accidents[] = {"rm", "truncate -s 0", "truncate -s 100", "cp /bin/ls"};
    for (size_t i = 0; i < sizeof accidents / sizeof *accidents; i++) {
        last = take_and_release(hf, "x");
        shell("%s %s/.holdfast/names/x.lock", accidents[i], p->dir);
        assert_true((next = take_and_release(other, "x")) > last);
        assert_true((last = take_and_release(hf, "x")) > next);
    }
    hf_close(other);
    hf_close(hf);
}

static void bump_epoch_goes_past_what_a_backup_has_lost(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    take_and_release(hf, "x");
    shell("cp -a %s %s.backup", p->dir, p->dir);
    int64_t last = 0;
    for (int i = 0; i < 100; i++)
        last = take_and_release(hf, "x");
    hf_close(hf);
    shell("rm -r %s && mv %s.backup %s", p->dir, p->dir, p->dir);
    hf = open_ok(p);
    assert_int_equal(hf_init(hf, true, NULL), 0);
    assert_true(take_and_release(hf, "x") > last);
    hf_close(hf);
}

/* ---- killed between two writes, or meddled with --------------------------------------------- */

static void a_lock_file_newer_than_its_guard_is_believed(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    take_and_release(hf, "x");
    shell("cp %s/.holdfast/names/x.lock %s/old", p->dir, p->dir);
    struct hf_lease lease = take(hf, "x", 0);
    shell("cat %s/old > %s/.holdfast/names/x.lock", p->dir, p->dir);
    struct hf_lease none;
    assert_int_equal(hf_acquire(hf, "x", NULL, &none, NULL), -HF_HELD);
    assert_int_equal(hf_extend(hf, &lease, 0, NULL), 0);
    assert_int_equal(hf_release(hf, &lease, NULL), 0);
    assert_true(take_and_release(hf, "x") > lease.fence);
    hf_close(hf);
}

static void a_lock_file_that_outlived_its_release_is_removed(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_lease lease = take(hf, "x", 0);
    shell("cp %s/x.lock %s/old", p->dir, p->dir);
    assert_int_equal(hf_release(hf, &lease, NULL), 0);
    shell("mv %s/old %s/x.lock", p->dir, p->dir);
    assert_int_equal(state_of(hf, "x"), HF_STATE_FREE);
    struct hf_lease next = take(hf, "x", 0);
    assert_true(next.fence > lease.fence);
    assert_int_equal(next.takeover.reason, HF_STALE_NOT);
    assert_int_equal(hf_release(hf, &next, NULL), 0);
    shell("test ! -e %s/x.lock", p->dir);
    hf_close(hf);
}

static int ask(struct hf *hf, enum hf_op op, const char *token, int64_t wait_ms)
{
    struct hf_request req = {.op = op,
                             .name = "x",
                             .token = token,
                             .owner = "me",
                             .ttl_ms = op == HF_OP_ACQUIRE ? HF_TTL_DEFAULT_MS : 0,
                             .wait_ms = wait_ms};
    struct hf_answer answer;
    assert_int_equal(hf_apply(hf, &req, 1, &answer, NULL), 0);
    return answer.code;
}

/* The bug: it stayed in the queue, and its own release offered the lock to it once more. */
static void a_waiter_whose_offer_was_cut_short_is_no_longer_in_the_queue(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    char waiter[HF_UUID_LEN + 1];
    hf_token(waiter);
    struct hf_lease lease = take(hf, "x", 0);
    assert_int_equal(ask(hf, HF_OP_ACQUIRE, waiter, HF_FOREVER), -HF_HELD);
    shell("cp %s/.holdfast/names/x.lock %s/guard", p->dir, p->dir);
    assert_int_equal(hf_release(hf, &lease, NULL), 0);
    /* Killed after the lock file was the waiter's, before the guard was written. */
    shell("cp %s/guard %s/.holdfast/names/x.lock", p->dir, p->dir);
    assert_int_equal(ask(hf, HF_OP_ACQUIRE, waiter, HF_FOREVER), 0);
    assert_int_equal(ask(hf, HF_OP_RELEASE, waiter, 0), 0);
    assert_int_equal(state_of(hf, "x"), HF_STATE_FREE);
    hf_close(hf);
}

/* The bug: the keeper renews many names in one request, which ended at the first failure. */
static void trouble_with_one_name_does_not_lose_the_others(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_lease leases[3];
    struct hf_keeper *keepers[3];
    const char *const names[] = {"first", "x", "last"};
    for (int i = 0; i < 3; i++) {
        leases[i] = take(hf, names[i], 1000);
        assert_int_equal(hf_keep(hf, &leases[i], NULL, &keepers[i], NULL), 0);
    }
    shell("ln -sf /etc/passwd %s/x.lock", p->dir); /* is not followed */
    struct pollfd lost = {.fd = hf_keeper_fd(keepers[1]), .events = POLLIN};
    assert_int_equal(poll(&lost, 1, 60000), 1);
    assert_int_equal(hf_keeper_check(keepers[0], NULL, NULL), 0);
    assert_int_equal(hf_keeper_check(keepers[1], NULL, NULL), -HF_LOST);
    assert_int_equal(hf_keeper_check(keepers[2], NULL, NULL), 0);
    for (int i = 0; i < 3; i++)
        hf_keeper_stop(keepers[i]);
    hf_close(hf);
}

/* The bug: what stood in its place was shown for a moment, and for good where that was the last. */
static void a_spare_page_is_looked_at_before_it_is_shown(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_lease lease = take(hf, "x", 0);
    char swap[sizeof p->dir + 32];
    snprintf(swap, sizeof swap, "%s/.holdfast/swap/x.lock", p->dir);
    shell("cd %s && (while cat x.lock; do :; done > seen 2>&1 & echo $! > pid)", p->dir);
    for (int i = 0; i < 500; i++) { /* longer each time, so that the lock file is written anew */
        assert_int_equal(hf_extend(hf, &lease, 100000 + 10000 * i, NULL), 0);
        if (unlink(swap) < 0)
            continue;
        FILE *other = fopen(swap, "w");
        assert_true(fputs("old\n", other) >= 0 && fclose(other) == 0);
    }
    shell("cd %s && kill $(cat pid) && ! grep -q old seen", p->dir);
    hf_close(hf);
}

static void a_removed_lock_file_is_a_lost_lease(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options again = HF_ACQUIRE_INIT;
    struct hf_lease lease = take(hf, "x", 0), next;
    shell("rm %s/x.lock", p->dir);
    assert_int_equal(hf_extend(hf, &lease, 0, NULL), -HF_LOST);
    assert_int_equal(hf_release(hf, &lease, NULL), -HF_LOST);
    again.token = lease.token;
    assert_int_equal(hf_acquire(hf, "x", &again, &next, NULL), -HF_LOST);
    assert_true(take_and_release(hf, "x") > lease.fence);
    hf_close(hf);
}

static void pages_that_were_removed_are_made_again(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p), *other = open_ok(p);
    take_and_release(hf, "x");
    shell("rm %s/.holdfast/pages0/*", p->dir);
    take_and_release(other, "x");
    struct hf_lease lease = take(hf, "x", 0);
    shell("grep -q '\"fence\":%lld,' %s/x.lock", (long long)lease.fence, p->dir);
    assert_int_equal(hf_extend(hf, &lease, 70000, NULL), 0);
    assert_int_equal(hf_extend(other, &lease, 90000, NULL), 0);
    assert_int_equal(hf_release(other, &lease, NULL), 0);
    hf_close(other);
    hf_close(hf);
}

/* ---- a reboot ------------------------------------------------------------------------------- */

static void a_reboot_frees_what_was_bound_and_keeps_the_rest_for_its_ttl(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    assert_int_equal(hf_acquire(hf, "bound", &bound, &lease, NULL), 0);
    take(hf, "unbound", 60000);
    hf_close(hf);
    boot_again();
    hf = open_ok(p);
    lease = take(hf, "bound", 0);
    assert_int_equal(lease.takeover.reason, HF_STALE_REBOOTED);
    struct hf_status status;
    assert_int_equal(hf_status_of(hf, "unbound", &status, NULL), 0);
    assert_int_equal(status.state, HF_STATE_HELD);
    assert_true(status.remaining_ms > 0 && status.remaining_ms <= 60000);
    hf_close(hf);
}

/* The same rules as on sqlite, see test_sqlite_format.c. */
static void a_containers_own_boot_id_ends_no_lease(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    struct hf_status status;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    assert_int_equal(hf_acquire(hf, "bound", &bound, &lease, NULL), 0);
    int64_t last = lease.fence;
    take(hf, "unbound", 60000);
    for (int i = 0; i < 20; i++) { /* more than are remembered */
        enter_container();
        struct hf *inside = open_ok(p);
        assert_int_equal(hf_acquire(inside, "bound", NULL, &lease, NULL), -HF_HELD);
        assert_int_equal(hf_acquire(inside, "unbound", NULL, &lease, NULL), -HF_HELD);
        assert_int_equal(hf_status_of(inside, "bound", &status, NULL), 0);
        assert_int_equal(status.alive, HF_ALIVE_UNKNOWN);
        int64_t fence = take_and_release(inside, "theirs");
        assert_true(fence > last);
        last = fence;
        hf_close(inside);
    }
    leave_container();
    assert_true(take_and_release(hf, "theirs") > last);
    assert_int_equal(hf_status_of(hf, "bound", &status, NULL), 0);
    assert_int_equal(status.alive, HF_ALIVE);
    hf_close(hf);
}

static void a_container_that_keeps_its_boot_id_is_told_from_before_by_the_clock(void **state)
{
    struct place *p = *state;
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    boot(3600000);
    enter_container();
    struct hf *hf = open_ok(p);
    take_and_release(hf, "bound");
    shell("cp -a %s %s.old", p->dir, p->dir);
    take_and_release(hf, "bound");
    assert_int_equal(hf_acquire(hf, "bound", &bound, &lease, NULL), 0);
    int64_t last = lease.fence;
    hf_close(hf);
    boot_again();
    hf = open_ok(p);
    lease = take(hf, "bound", 0);
    assert_int_equal(lease.takeover.reason, HF_STALE_REBOOTED);
    assert_true(lease.fence > last);
    hf_close(hf);
    /* The same where nothing of it had reached the disk. */
    shell("rm -rf %s && mv %s.old %s", p->dir, p->dir, p->dir);
    hf = open_ok(p);
    assert_true(take_and_release(hf, "bound") > last);
    hf_close(hf);
    leave_container();
}

/* ---- versions ------------------------------------------------------------------------------- */

static void refused(const struct place *p, const char *text)
{
    struct hf *hf = NULL;
    struct hf_error err = {0};
    assert_int_equal(hf_open(p->url, &hf, &err), -HF_UNAVAILABLE);
    if (!strstr(err.message, text))
        fail_msg("'%s' is not in: %s", text, err.message);
}

static void a_newer_or_damaged_store_is_refused(void **state)
{
    struct place *p = *state;
    hf_close(open_ok(p));
    shell("printf '\\002' | dd of=%s/.holdfast/state bs=1 seek=8 conv=notrunc status=none", p->dir);
    refused(p, "newer holdfast (format 2");
    shell("echo nonsense > %s/.holdfast/state", p->dir);
    refused(p, "damaged");
}

/* ---- growth --------------------------------------------------------------------------------- */

static void the_queue_has_an_end(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_lease lease = take(hf, "x", 0);
    static char tokens[HF_FILE_WAITERS_MAX + 1][HF_UUID_LEN + 1];
    struct hf_answer answer;
    for (int i = 0; i <= HF_FILE_WAITERS_MAX; i++) {
        hf_token(tokens[i]);
        struct hf_request req = {.op = HF_OP_ACQUIRE,
                                 .name = "x",
                                 .token = tokens[i],
                                 .ttl_ms = 60000,
                                 .wait_ms = 600000,
                                 .priority = i % 2};
        int r = hf_apply(hf, &req, 1, &answer, NULL);
        assert_int_equal(r < 0 ? r : answer.code,
                         i < HF_FILE_WAITERS_MAX ? -HF_HELD : -HF_QUEUE_FULL);
    }
    assert_int_equal(hf_release(hf, &lease, NULL), 0);
    struct hf_request first = {.op = HF_OP_EXTEND, .name = "x", .token = tokens[1]};
    assert_int_equal(hf_apply(hf, &first, 1, &answer, NULL), 0);
    assert_int_equal(answer.code, 0);
    hf_close(hf);
}

struct seen {
    int64_t last_seq;
    int n, at_most;
};

static int note_event(void *arg, const struct hf_event *event)
{
    struct seen *seen = arg;
    assert_true(event->seq > seen->last_seq);
    seen->last_seq = event->seq;
    return ++seen->n == seen->at_most;
}

/* Fill the current segment of events up to where the next one begins. */
static void fill_segment(const struct place *p)
{
    shell("head -c 4200000 /dev/zero | tr '\\0' '\\n' >> %s/.holdfast/events.jsonl", p->dir);
}

static void events_are_kept_in_two_segments(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p), *other = open_ok(p);
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    struct seen seen = {0};
    query.name = "x";
    take_and_release(hf, "x");
    assert_int_equal(hf_events(hf, &query, note_event, &seen, NULL), 0);
    assert_int_equal(seen.n, 2);
    for (int i = 0; i < 3; i++) {
        take_and_release(other, "x");
        take_and_release(hf, "y");
        fill_segment(p);
    }
    take_and_release(hf, "x");
    query.after_seq = seen.last_seq;
    seen.n = 0;
    assert_int_equal(hf_events(hf, &query, note_event, &seen, NULL), 0);
    assert_int_equal(seen.n, 4); /* of the last two segments */
    query.limit = 1;
    seen = (struct seen){0};
    assert_int_equal(hf_events(hf, &query, note_event, &seen, NULL), 0);
    assert_int_equal(seen.n, 1);
    shell("test $(ls %s/.holdfast | grep -c events) = 2", p->dir);
    hf_close(other);
    hf_close(hf);
}

static void many_names_use_few_descriptors(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    char name[32];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "name-%d", i);
        take(hf, name, 0);
    }
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    assert_true(n < 150);
    struct hf_totals totals;
    assert_int_equal(hf_totals_of(hf, &totals, NULL), 0);
    assert_int_equal(totals.acquire_granted, 200);
    assert_int_equal(totals.locks_held, 200);
    hf_close(hf);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_slash_and_percent_are_encoded),
        cmocka_unit_test(files_that_are_no_names_are_not_decoded),
        cmocka_unit_test(long_names_are_cut_and_told_apart),
        TEST(list_knows_cut_names),
        TEST(fences_grow_though_the_power_was_lost),
        TEST(a_limit_whose_sync_failed_is_synced_before_it_is_used),
        TEST(fences_grow_though_the_guard_is_damaged_or_gone),
        TEST(bump_epoch_goes_past_what_a_backup_has_lost),
        TEST(a_lock_file_newer_than_its_guard_is_believed),
        TEST(a_lock_file_that_outlived_its_release_is_removed),
        TEST(a_waiter_whose_offer_was_cut_short_is_no_longer_in_the_queue),
        TEST(trouble_with_one_name_does_not_lose_the_others),
        TEST(a_spare_page_is_looked_at_before_it_is_shown),
        TEST(a_removed_lock_file_is_a_lost_lease),
        TEST(pages_that_were_removed_are_made_again),
        TEST(a_reboot_frees_what_was_bound_and_keeps_the_rest_for_its_ttl),
        TEST(a_containers_own_boot_id_ends_no_lease),
        TEST(a_container_that_keeps_its_boot_id_is_told_from_before_by_the_clock),
        TEST(a_newer_or_damaged_store_is_refused),
        TEST(the_queue_has_an_end),
        TEST(events_are_kept_in_two_segments),
        TEST(many_names_use_few_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
