/*
 * What the sqlite store keeps on disk, and what becomes of it: versions, damage, a lost power
 * supply, a reboot, growth. What locks mean is the conformance suite's matter.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

#include "boots.h"
#include "place.h"

/* ---- a store in a directory of its own ------------------------------------------------------ */

static int set_up(void **state) { return place_make(state, "sqlite", "/h.db"); }

/* Opening fails with this code, and the message has this in it. */
static void refused(const struct place *p, int code, const char *text)
{
    struct hf *hf = NULL;
    struct hf_error err = {0};
    assert_int_equal(hf_open(p->url, &hf, &err), -code);
    assert_null(hf);
    if (!strstr(err.message, text))
        fail_msg("'%s' is not in: %s", text, err.message);
    if (strstr(err.message, "locked"))
        fail_msg("SQLite's own words: %s", err.message);
}

static struct hf_lease take(struct hf *hf, const char *name, const struct hf_acquire_options *opts)
{
    struct hf_lease lease;
    struct hf_error err = {0};
    if (hf_acquire(hf, name, opts, &lease, &err) < 0)
        fail_msg("acquire %s: %s", name, err.message);
    return lease;
}

static void give_back(struct hf *hf, const struct hf_lease *lease)
{
    struct hf_error err = {0};
    if (hf_release(hf, lease, &err) < 0)
        fail_msg("release: %s", err.message);
}

static int64_t take_and_give(struct hf *hf, const char *name)
{
    struct hf_lease lease = take(hf, name, NULL);
    give_back(hf, &lease);
    return lease.fence;
}

/* Run SQL beside the store; the answer is the last number it gave. */
static int64_t sql(const struct place *p, const char *text)
{
    sqlite3 *db;
    int64_t answer = 0;
    assert_int_equal(sqlite3_open(p->path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    for (const char *rest = text; *rest;) {
        sqlite3_stmt *stmt = NULL;
        if (sqlite3_prepare_v2(db, rest, -1, &stmt, &rest) != SQLITE_OK)
            fail_msg("%s: %s", text, sqlite3_errmsg(db));
        int rc;
        while (stmt && (rc = sqlite3_step(stmt)) == SQLITE_ROW)
            answer = sqlite3_column_int64(stmt, 0);
        if (stmt && rc != SQLITE_DONE)
            fail_msg("%s: %s", text, sqlite3_errmsg(db));
        sqlite3_finalize(stmt);
    }
    sqlite3_close(db);
    return answer;
}

static int64_t size_of(const struct place *p, const char *suffix)
{
    char path[sizeof p->path + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s%s", p->path, suffix);
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void newer_format_is_refused(void **state)
{
    struct place *p = *state;
    hf_close(open_ok(p));
    sql(p, "PRAGMA user_version=99");
    refused(p, HF_UNAVAILABLE, "was written by a newer holdfast (format 99; this one knows 1)");
    assert_int_equal(sql(p, "PRAGMA user_version"), 99);
}

static void foreign_database_is_refused_and_kept(void **state)
{
    struct place *p = *state;
    sql(p, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (7)");
    refused(p, HF_UNAVAILABLE, "another program's database");
    assert_int_equal(sql(p, "SELECT x FROM theirs"), 7);
    assert_int_equal(sql(p, "SELECT count(*) FROM sqlite_schema"), 1);
}

static void text_file_is_refused_and_kept(void **state)
{
    struct place *p = *state;
    shell("echo 'dear diary' > %s", p->path);
    refused(p, HF_UNAVAILABLE, "is not a database");
    shell("echo 'dear diary' | cmp - %s", p->path);
}

static void directory_is_refused(void **state)
{
    struct place *p = *state;
    assert_int_equal(mkdir(p->path, 0700), 0);
    refused(p, HF_UNAVAILABLE, "is a directory");
}

static void damaged_file_gives_one_clear_error(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "job-%d", i);
        take_and_give(hf, name);
    }
    hf_close(hf);
    sql(p, "PRAGMA wal_checkpoint(TRUNCATE)");
    /* Leave the header and the schema, so that it opens. */
    shell("dd if=/dev/urandom of=%s bs=1024 seek=6 count=60 conv=notrunc status=none", p->path);
    struct hf_error err = {0};
    struct hf_lease lease;
    if (hf_open(p->url, &hf, &err) == 0) {
        assert_int_equal(hf_acquire(hf, "job-5", NULL, &lease, &err), -HF_UNAVAILABLE);
        hf_close(hf);
    }
    assert_non_null(strstr(err.message, "is damaged"));
}

/* Run `fn` as a user who owns nothing here; its exit code. */
static int as_nobody(int (*fn)(const struct place *p), const struct place *p)
{
    pid_t child = fork();
    if (child == 0)
        _exit(setgid(65534) < 0 || setuid(65534) < 0 ? 99 : fn(p));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static int open_code(const struct place *p)
{
    struct hf *hf;
    struct hf_error err = {0};
    int code = hf_open(p->url, &hf, &err);
    return code == 0 ? 0 : strstr(err.message, p->dir) ? -code : 97;
}

static void unwritable_places_are_forbidden(void **state)
{
    struct place *p = *state;
    if (getuid() != 0)
        skip();
    assert_int_equal(as_nobody(open_code, p), HF_FORBIDDEN); /* a directory of ours */
    hf_close(open_ok(p));
    shell("chmod 755 %s", p->dir);
    assert_int_equal(as_nobody(open_code, p), HF_FORBIDDEN); /* a file of ours */
    assert_int_equal(sql(p, "PRAGMA user_version"), 1);
}

static void missing_directories_are_made_private(void **state)
{
    struct place *p = *state;
    struct stat st;
    snprintf(p->path, sizeof p->path, "%s/a/b/h.db", p->dir);
    snprintf(p->url, sizeof p->url, "sqlite:%s", p->path);
    hf_close(open_ok(p));
    assert_int_equal(stat(p->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void foreign_writer_is_waited_for_and_named(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(p->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    struct hf_error err = {0};
    struct hf_lease lease;
    assert_int_equal(hf_acquire(hf, "job", NULL, &lease, &err), -HF_UNAVAILABLE);
    assert_non_null(strstr(err.message, "another program"));
    assert_null(strstr(err.message, "locked"));
    sqlite3_close(db);
    take_and_give(hf, "job");
    hf_close(hf);
}

/* The bugs: a waiter ended with an error; and then its place in the queue stayed. */
static void a_waiter_outlasts_a_foreign_writer_and_leaves_the_queue_when_it_ends(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    struct hf_wait *wait;
    struct hf_lease lease = take(hf, "job", NULL), none;
    opts.wait_ms = HF_FOREVER;
    assert_int_equal(hf_wait_start(hf, "job", &opts, &wait, NULL), 0);
    assert_int_equal(hf_wait_check(wait, &none, NULL), -HF_HELD);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(p->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    struct hf_error err = {0};
    assert_int_equal(hf_wait_check(wait, &none, &err), -HF_HELD);
    assert_false(hf_wait_is_over(wait));
    assert_non_null(strstr(err.message, "another program"));
    sqlite3_close(db);
    assert_int_equal(hf_wait_check(wait, &none, &err), -HF_HELD);
    assert_true(err.has_holder);
    hf_wait_end(wait);
    assert_int_equal(sql(p, "SELECT count(*) FROM waiter"), 0);
    give_back(hf, &lease);
    hf_close(hf);
}

static void removed_database_is_noticed(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    take_and_give(hf, "job");
    unlink(p->path);
    struct hf_error err = {0};
    struct hf_lease lease;
    int code = 0;
    for (int i = 0; i < 100 && code == 0; i++) {
        if ((code = hf_acquire(hf, "job", NULL, &lease, &err)) == 0)
            code = hf_release(hf, &lease, &err);
        usleep(20000);
    }
    assert_int_equal(code, -HF_UNAVAILABLE);
    assert_non_null(strstr(err.message, "moved or removed"));
    hf_close(hf);
}

/* ---- making it ------------------------------------------------------------------------------ */

enum { RACERS = 8, RACES = 20 };

static int open_and_take(const struct place *p, int i)
{
    char name[16];
    struct hf *hf;
    struct hf_lease lease;
    snprintf(name, sizeof name, "job-%d", i);
    if (hf_open(p->url, &hf, NULL) < 0)
        return 1;
    if (hf_acquire(hf, name, NULL, &lease, NULL) < 0)
        return 2;
    hf_close(hf);
    return 0;
}

static void many_may_create_it_at_once(void **state)
{
    struct place *p = *state;
    for (int race = 0; race < RACES; race++) {
        shell("rm -f %s*", p->path);
        for (int i = 0; i < RACERS; i++)
            if (fork() == 0)
                _exit(open_and_take(p, i));
        for (int i = 0; i < RACERS; i++) {
            int status;
            assert_true(wait(&status) > 0);
            assert_int_equal(status, 0);
        }
        assert_int_equal(sql(p, "SELECT count(DISTINCT fence) FROM lock"), RACERS);
    }
}

static void the_first_fence_is_1(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    assert_int_equal(take_and_give(hf, "job"), 1);
    hf_close(hf);
}

/* ---- fences --------------------------------------------------------------------------------- */

static void power_loss_never_repeats_a_fence(void **state)
{
    struct place *p = *state;
    int64_t highest = 0;
    hf_close(open_ok(p));
    /* All that is certainly on disk, with nothing that came later. */
    shell("cd %s && mkdir kept && cp h.db h.db-wal kept", p->dir);
    struct hf *hf = open_ok(p);
    for (int i = 0; i < 50; i++)
        highest = take_and_give(hf, "job");
    hf_close(hf);
    shell("cd %s && rm h.db* && cp kept/* .", p->dir);
    assert_int_equal(sql(p, "SELECT count(*) FROM lock"), 0);
    boot_again();
    hf = open_ok(p);
    assert_true(take_and_give(hf, "job") > highest);
    hf_close(hf);
}

/* Grants and releases of one name, many per transaction; the last fence. */
static int64_t churn(struct hf *hf, int pairs)
{
    struct hf_request *requests = calloc(2 * (size_t)pairs, sizeof *requests);
    struct hf_answer *answers = calloc(2 * (size_t)pairs, sizeof *answers);
    char(*tokens)[HF_UUID_LEN + 1] = calloc((size_t)pairs, sizeof *tokens);
    struct hf_error err = {0};
    for (int i = 0; i < pairs; i++) {
        hf_token(tokens[i]);
        requests[2 * i] = (struct hf_request){.op = HF_OP_ACQUIRE,
                                              .name = "churn",
                                              .token = tokens[i],
                                              .ttl_ms = 60000,
                                              .owner = "me"};
        requests[2 * i + 1] =
            (struct hf_request){.op = HF_OP_RELEASE, .name = "churn", .token = tokens[i]};
    }
    if (hf_apply(hf, requests, 2 * (size_t)pairs, answers, &err) < 0)
        fail_msg("%s", err.message);
    int64_t fence = answers[2 * pairs - 2].lease.fence;
    for (int i = 0; i < 2 * pairs; i++)
        assert_int_equal(answers[i].code, 0);
    free(requests);
    free(answers);
    free(tokens);
    return fence;
}

static void fences_stay_within_what_is_reserved(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p), *other = open_ok(p);
    int64_t first_limit = sql(p, "SELECT fence_limit FROM meta"), last = 0;
    while (last < first_limit + 1000) {
        int64_t reserved = sql(p, "SELECT fence_limit FROM meta");
        int64_t fence = churn(hf, 400);
        assert_true(fence > last);
        assert_true(fence <= reserved || fence <= sql(p, "SELECT fence_limit FROM meta"));
        last = fence;
    }
    /* One that has slept through it all goes on from there. */
    assert_true(take_and_give(other, "churn") > last);
    hf_close(other);
    hf_close(hf);
}

/* The bug: each took itself to be at the start of the block, and at its end nobody got a lock. */
static void short_lived_processes_reserve_more_fences(void **state)
{
    struct place *p = *state;
    hf_close(open_ok(p));
    sql(p, "INSERT INTO event (seq, at) SELECT fence_limit - 2, 0 FROM meta");
    int64_t last = 0;
    for (int i = 0; i < 3; i++) {
        struct hf *hf = open_ok(p);
        int64_t fence = take_and_give(hf, "job");
        assert_true(fence > last);
        assert_true(fence <= sql(p, "SELECT fence_limit FROM meta"));
        last = fence;
        hf_close(hf);
    }
}

/*
 * The bug: who raised the limit was killed before the sync, and the next one believed what it found
 * in the log. SQLite syncs nothing where nothing changes, so the same number again is not enough.
 */
static void what_a_killed_process_raised_is_raised_again(void **state)
{
    struct place *p = *state;
    hf_close(open_ok(p));
    sql(p, "INSERT INTO event (seq, at) SELECT fence_limit - 2, 0 FROM meta");
    sql(p, "UPDATE meta SET fence_raised = fence_limit - 2 + 100000");
    int64_t doubtful = sql(p, "SELECT fence_raised FROM meta");
    struct hf *hf = open_ok(p);
    int64_t fence = take_and_give(hf, "job");
    hf_close(hf);
    assert_true(sql(p, "SELECT fence_raised FROM meta") > doubtful);
    assert_true(fence <= sql(p, "SELECT fence_limit FROM meta"));
    boot_again();
    hf = open_ok(p);
    assert_true(take_and_give(hf, "job") > doubtful);
    hf_close(hf);
}

static void bumped_epoch_is_far_above(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p), *other = open_ok(p);
    int64_t before = take_and_give(hf, "job");
    assert_int_equal(hf_init(hf, true, NULL), 0);
    int64_t after = take_and_give(other, "job");
    assert_true(after > before + 1000000);
    assert_true(after < INT64_C(1) << 53);
    assert_true(take_and_give(hf, "job") > after);
    hf_close(hf);
    hf_close(other);
}

/* ---- boots ---------------------------------------------------------------------------------- */

static void reboot_frees_what_was_bound_to_a_process(void **state)
{
    struct place *p = *state;
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    struct hf *hf = open_ok(p);
    take(hf, "bound", &bound);
    take(hf, "free", NULL);
    hf_close(hf);
    boot_again();
    hf = open_ok(p);
    struct hf_lease lease;
    struct hf_error err = {0};
    assert_int_equal(hf_acquire(hf, "bound", NULL, &lease, &err), 0);
    assert_int_equal(lease.takeover.reason, HF_STALE_REBOOTED);
    /* Only its ttl ends the other one, counted from now. */
    assert_int_equal(hf_acquire(hf, "free", NULL, &lease, &err), -HF_HELD);
    assert_true(err.holder.remaining_ms > HF_TTL_DEFAULT_MS / 2);
    hf_close(hf);
}

static void wait_in_line(struct hf *hf, const char *name)
{
    struct hf_answer answer;
    char token[HF_UUID_LEN + 1];
    hf_token(token);
    struct hf_request request = {.op = HF_OP_ACQUIRE,
                                 .name = name,
                                 .token = token,
                                 .ttl_ms = 60000,
                                 .wait_ms = HF_FOREVER,
                                 .owner = "me"};
    assert_int_equal(hf_apply(hf, &request, 1, &answer, NULL), 0);
    assert_true(answer.queued);
}

static void reboot_forgets_who_waited(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_lease lease = take(hf, "job", NULL);
    wait_in_line(hf, "job");
    hf_close(hf);
    assert_int_equal(sql(p, "SELECT waiters FROM lock"), 1);
    boot_again();
    hf = open_ok(p);
    struct hf_status status;
    assert_int_equal(hf_status_of(hf, "job", &status, NULL), 0);
    assert_int_equal(status.waiters, 0);
    give_back(hf, &lease);
    take_and_give(hf, "job");
    hf_close(hf);
}

/*
 * The bug (exclusion.md, row 3): LXC and systemd-nspawn tell a container a boot id of its own, and every
 * lease of the machine's other processes was taken at once, as of an earlier boot.
 */
static void a_containers_own_boot_id_ends_no_lease(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    struct hf_lease ours = take(hf, "bound", &bound);
    take(hf, "free", NULL);
    wait_in_line(hf, "free");
    enter_container();
    struct hf *inside = open_ok(p);
    assert_int_equal(hf_acquire(inside, "bound", NULL, &lease, NULL), -HF_HELD);
    assert_int_equal(hf_acquire(inside, "free", NULL, &lease, NULL), -HF_HELD);
    struct hf_status status;
    assert_int_equal(hf_status_of(inside, "bound", &status, NULL), 0);
    assert_int_equal(status.alive, HF_ALIVE_UNKNOWN);
    assert_int_equal(hf_status_of(inside, "free", &status, NULL), 0);
    assert_int_equal(status.waiters, 1);
    struct hf_lease theirs = take(inside, "theirs", &bound);
    assert_true(theirs.fence > ours.fence);
    leave_container();
    assert_int_equal(hf_acquire(hf, "theirs", NULL, &lease, NULL), -HF_HELD);
    give_back(hf, &ours);
    hf_close(hf);
    enter_container();
    hf_close(inside);
    leave_container();
}

/*
 * The bug: between two transactions of whoever entered a boot, the numbering had jumped and the limit had
 * not yet: others were told that their request was too large.
 */
static void nobody_is_refused_while_another_boot_is_entered(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 200; i++) {
            struct hf *inside;
            enter_container();
            if (hf_open(p->url, &inside, NULL) < 0)
                _exit(1);
            hf_close(inside);
        }
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0)
        take_and_give(hf, "job");
    assert_int_equal(status, 0);
    hf_close(hf);
}

static void a_boot_that_is_known_is_entered_once(void **state)
{
    struct place *p = *state;
    hf_close(open_ok(p));
    enter_container();
    hf_close(open_ok(p));
    int64_t raised = sql(p, "SELECT fence_raised FROM meta");
    for (int i = 0; i < 3; i++) {
        char own_id[sizeof machine.own_id];
        strcpy(own_id, machine.own_id);
        leave_container();
        hf_close(open_ok(p));
        strcpy(machine.own_id, own_id);
        hf_close(open_ok(p));
    }
    leave_container();
    assert_int_equal(sql(p, "SELECT fence_raised FROM meta"), raised);
    assert_int_equal(sql(p, "SELECT count(*) FROM boot"), 2);
}

static void a_container_that_keeps_its_boot_id_is_told_from_before_by_the_clock(void **state)
{
    struct place *p = *state;
    boot(3600000);
    enter_container();
    struct hf *hf = open_ok(p);
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    take(hf, "bound", &bound);
    hf_close(hf);
    int64_t raised = sql(p, "SELECT fence_raised FROM meta");
    boot_again();
    hf = open_ok(p);
    struct hf_lease lease = take(hf, "bound", NULL);
    assert_int_equal(lease.takeover.reason, HF_STALE_REBOOTED);
    assert_true(lease.fence > raised);
    hf_close(hf);
    leave_container();
}

static void of_many_containers_the_newest_are_remembered(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options bound = HF_ACQUIRE_INIT;
    struct hf_lease lease;
    bound.bound[0] = getpid();
    bound.n_bound = 1;
    enter_container();
    struct hf *inside = open_ok(p);
    take(inside, "job", &bound);
    hf_close(inside);
    for (int i = 0; i < 100; i++) {
        enter_container();
        hf_close(open_ok(p));
    }
    assert_true(sql(p, "SELECT count(*) FROM boot") < 100);
    leave_container();
    assert_int_equal(hf_acquire(hf, "job", NULL, &lease, NULL), -HF_HELD);
    assert_true(take_and_give(hf, "other") > 0);
    hf_close(hf);
}

/* ---- growth --------------------------------------------------------------------------------- */

static void log_stays_short_with_short_lived_processes(void **state)
{
    struct place *p = *state;
    int64_t longest = 0;
    for (int i = 0; i < 400; i++) {
        struct hf *hf = open_ok(p);
        take(hf, "job", NULL); /* one commit, then gone */
        hf_close(hf);
        sql(p, "UPDATE lock SET held = 0");
        int64_t size = size_of(p, "-wal");
        longest = size > longest ? size : longest;
    }
    assert_true(longest < 1 << 20);
}

static void log_stays_bounded_in_a_long_life(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    for (int i = 0; i < 10000; i++)
        take_and_give(hf, "job");
    assert_true(size_of(p, "-wal") < 16 << 20);
    hf_close(hf);
}

static int count_event(void *arg, const struct hf_event *event)
{
    assert_string_equal(event->name, "job");
    ++*(int *)arg;
    return 0;
}

static void old_events_go_but_the_newest_stays(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    int64_t fence = churn(hf, 1000);
    sql(p, "UPDATE event SET at = 1000");
    int64_t before = sql(p, "SELECT count(*) FROM event");
    fence = churn(hf, 500);
    int64_t after = sql(p, "SELECT count(*) FROM event WHERE at = 1000");
    assert_true(after < before);
    assert_true(sql(p, "SELECT max(seq) FROM event") >= fence);
    assert_true(take_and_give(hf, "churn") > fence);
    hf_close(hf);
}

static void nothing_but_the_newest_event_is_enough(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    int64_t fence = take_and_give(hf, "job");
    sql(p, "DELETE FROM event WHERE seq < (SELECT max(seq) FROM event)");
    int n = 0;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    query.name = "job";
    assert_int_equal(hf_events(hf, &query, count_event, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_true(take_and_give(hf, "job") > fence);
    hf_close(hf);
}

static void story_of_one_name(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    for (int i = 0; i < 100; i++) {
        take_and_give(hf, "job");
        take_and_give(hf, "other");
    }
    int n = 0;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    query.name = "job";
    assert_int_equal(hf_events(hf, &query, count_event, &n, NULL), 0);
    assert_int_equal(n, 200);
    n = 0;
    query.limit = 70;
    assert_int_equal(hf_events(hf, &query, count_event, &n, NULL), 0);
    assert_int_equal(n, 70);
    hf_close(hf);
}

/* ---- once ----------------------------------------------------------------------------------- */

static struct hf_acquire_options once(const char *key)
{
    struct hf_acquire_options opts = HF_ACQUIRE_INIT;
    opts.once_key = key;
    return opts;
}

static int finish(struct hf *hf, const struct hf_lease *lease, enum hf_execution_state how,
                  int code)
{
    struct hf_result result = HF_RESULT_INIT;
    result.state = how;
    result.has_exit_code = true;
    result.exit_code = code;
    return hf_finish(hf, lease, &result, NULL);
}

static int64_t executions(const struct place *p, const char *state)
{
    char text[100];
    snprintf(text, sizeof text, "SELECT count(*) FROM execution WHERE state = '%s'", state);
    return sql(p, text);
}

static void key_is_free_until_it_succeeds(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options opts = once("2026-11-15");
    struct hf_error err = {0};
    struct hf_lease lease = take(hf, "report", &opts);
    assert_int_equal(executions(p, "RUNNING"), 1);
    assert_int_equal(finish(hf, &lease, HF_FAILED, 3), 0);
    assert_int_equal(sql(p, "SELECT exit_code FROM execution WHERE state = 'FAILED'"), 3);
    lease = take(hf, "report", &opts);
    assert_int_equal(finish(hf, &lease, HF_SUCCESS, 0), 0);
    assert_int_equal(executions(p, "SUCCESS"), 1);
    assert_int_equal(hf_acquire(hf, "report", &opts, &lease, &err), -HF_DONE_ALREADY);
    struct hf_acquire_options other = once("2026-11-16");
    lease = take(hf, "report", &other);
    give_back(hf, &lease); /* without a word of how it went */
    assert_int_equal(executions(p, "ABORTED"), 1);
    hf_close(hf);
}

static void run_without_its_lease_does_not_block_the_key(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options opts = once("k");
    take(hf, "report", &opts);
    sql(p, "UPDATE lock SET held = 0");
    struct hf_lease lease = take(hf, "report", &opts);
    assert_int_equal(executions(p, "ABORTED"), 1);
    assert_int_equal(executions(p, "RUNNING"), 1);
    give_back(hf, &lease);
    hf_close(hf);
}

static void same_token_again_is_the_same_run(void **state)
{
    struct place *p = *state;
    struct hf *hf = open_ok(p);
    struct hf_acquire_options opts = once("k");
    struct hf_lease first = take(hf, "report", &opts);
    opts.token = first.token;
    struct hf_lease again = take(hf, "report", &opts);
    assert_int_equal(first.fence, again.fence);
    assert_string_equal(first.execution_id, again.execution_id);
    assert_int_equal(sql(p, "SELECT count(*) FROM execution"), 1);
    hf_close(hf);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(newer_format_is_refused),
        TEST(foreign_database_is_refused_and_kept),
        TEST(text_file_is_refused_and_kept),
        TEST(directory_is_refused),
        TEST(damaged_file_gives_one_clear_error),
        TEST(unwritable_places_are_forbidden),
        TEST(missing_directories_are_made_private),
        TEST(foreign_writer_is_waited_for_and_named),
        TEST(a_waiter_outlasts_a_foreign_writer_and_leaves_the_queue_when_it_ends),
        TEST(removed_database_is_noticed),
        TEST(many_may_create_it_at_once),
        TEST(the_first_fence_is_1),
        TEST(power_loss_never_repeats_a_fence),
        TEST(fences_stay_within_what_is_reserved),
        TEST(short_lived_processes_reserve_more_fences),
        TEST(what_a_killed_process_raised_is_raised_again),
        TEST(bumped_epoch_is_far_above),
        TEST(reboot_frees_what_was_bound_to_a_process),
        TEST(reboot_forgets_who_waited),
        TEST(a_containers_own_boot_id_ends_no_lease),
        TEST(nobody_is_refused_while_another_boot_is_entered),
        TEST(a_boot_that_is_known_is_entered_once),
        TEST(a_container_that_keeps_its_boot_id_is_told_from_before_by_the_clock),
        TEST(of_many_containers_the_newest_are_remembered),
        TEST(log_stays_short_with_short_lived_processes),
        TEST(log_stays_bounded_in_a_long_life),
        TEST(old_events_go_but_the_newest_stays),
        TEST(nothing_but_the_newest_event_is_enough),
        TEST(story_of_one_name),
        TEST(key_is_free_until_it_succeeds),
        TEST(run_without_its_lease_does_not_block_the_key),
        TEST(same_token_again_is_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
