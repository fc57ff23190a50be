/* What the library checks before it asks a store, and what a struct's size means. */
#include <sys/vfs.h>

#include "client.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, end)
        T(an_older_programs_options_are_understood),
        T(a_newer_programs_options_are_refused),
        T(what_can_not_be_asked_is_refused_before_the_store_is),
        T(the_deadline_lies_before_the_expiry),
        T(a_store_on_a_network_filesystem_is_refused),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
