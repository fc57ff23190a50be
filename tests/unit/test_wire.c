/* Records as JSON. */
#include "wire.h"

#include <jansson.h>
#include <stdio.h>

#include "base64.h"
#include "check.h"
#include "jsontext.h"

static struct hf_error err;

static void assert_string_written(const char *bytes, size_t n, const char *json)
{
    struct hf_buf out = HF_BUF(1000);
    hf_wire_string(&out, bytes, n);
    assert_false(out.failed);
    assert_string_equal(out.data, json);
    json_t *back = json_loads(out.data, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(back); /* whatever went in, it is JSON */
    json_decref(back);
    hf_buf_clear(&out);
}

static void strings_are_escaped(void **state)
{
    assert_string_written("", 0, "\"\"");
    assert_string_written("plain", 5, "\"plain\"");
    assert_string_written("a\"b\\c/", 6, "\"a\\\"b\\\\c/\"");
    assert_string_written("\n\t\r\x01\x7f", 5, "\"\\n\\t\\u000d\\u0001\\u007f\"");
    assert_string_written("a\0b", 3, "\"a\\u0000b\"");
    assert_string_written("é日\xf0\x9f\x94\x92", 9, "\"é日\xf0\x9f\x94\x92\"");
}

static void invalid_utf8_becomes_the_replacement_character(void **state)
{
    assert_string_written("\xff", 1, "\"\xef\xbf\xbd\"");
    assert_string_written("a\xc3", 2, "\"a\xef\xbf\xbd\"");
    assert_string_written("\xc3(", 2, "\"\xef\xbf\xbd(\"");
    assert_string_written("\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"");
    assert_string_written("\xed\xa0\x80z", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
}

static void a_buffer_that_is_full_says_so(void **state)
{
    struct hf_buf out = HF_BUF(4);
    hf_wire_string(&out, "abc", 3);
    assert_true(out.failed);
    hf_buf_clear(&out);
}

static json_t *written(void (*write)(struct hf_buf *, const void *), const void *record)
{
    struct hf_buf out = HF_BUF(8000);
    write(&out, record);
    assert_false(out.failed);
    assert_null(strchr(out.data, '\n'));
    json_t *object = json_loads(out.data, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    hf_buf_clear(&out);
    return object;
}

static void write_lease(struct hf_buf *b, const void *r) { hf_wire_lease(b, r); }
static void write_status(struct hf_buf *b, const void *r) { hf_wire_status(b, r); }
static void write_event(struct hf_buf *b, const void *r) { hf_wire_event(b, r); }

static void assert_fields(json_t *object, const char *const *names, size_t n)
{
    assert_int_equal(json_object_size(object), n);
    for (size_t i = 0; i < n; i++)
        assert_non_null(json_object_get(object, names[i]));
}

static void a_lease_has_the_documented_fields(void **state)
{
    static const char *const names[] = {"name",       "token",     "fence", "owner",      "note",
                                        "acquiredAt", "expiresAt", "ttlMs", "executionId"};
    struct hf_lease lease = {.name = "é\"",
                             .fence = INT64_C(9007199254740991),
                             .ttl_ms = 60000,
                             .acquired_at_ms = INT64_C(1794774600123)};
    json_t *object = written(write_lease, &lease);
    assert_fields(object, names, 9);
    assert_string_equal(json_string_value(json_object_get(object, "name")), "é\"");
    assert_true(json_integer_value(json_object_get(object, "fence")) == lease.fence);
    assert_string_equal(json_string_value(json_object_get(object, "acquiredAt")),
                        "2026-11-15T20:30:00.123Z");
    assert_true(json_is_null(json_object_get(object, "note")));
    assert_true(json_is_null(json_object_get(object, "executionId")));
    json_decref(object);
}

static void a_status_has_the_documented_fields_and_never_a_token(void **state)
{
    static const char *const names[] = {"name",      "state",       "fence",       "owner",
                                        "alive",     "note",        "executionId", "lockedSince",
                                        "expiresAt", "remainingMs", "waiters"};
    struct hf_status s = {
        .name = "x", .state = HF_STATE_STALE, .alive = HF_ALIVE_UNKNOWN, .waiters = 3};
    json_t *object = written(write_status, &s);
    assert_fields(object, names, 11);
    assert_string_equal(json_string_value(json_object_get(object, "state")), "stale");
    assert_true(json_is_null(json_object_get(object, "alive")));
    json_decref(object);
    s.alive = HF_DEAD;
    object = written(write_status, &s);
    assert_true(json_is_false(json_object_get(object, "alive")));
    json_decref(object);
}

static void an_event_has_the_documented_fields(void **state)
{
    static const char *const names[] = {"seq",   "at",          "kind",   "name",  "fence",
                                        "owner", "executionId", "reason", "detail"};
    struct hf_event e = {.seq = 4, .kind = HF_EV_TAKEN_OVER, .name = "x"};
    json_t *object = written(write_event, &e);
    assert_fields(object, names, 9);
    assert_string_equal(json_string_value(json_object_get(object, "kind")), "taken-over");
    json_decref(object);
}

struct sample {
    char text[8];
    int64_t number, at_ms;
    uint32_t count;
    enum hf_alive alive;
    bool flag;
};
static const struct hf_wire_field sample_fields[] = {
    HF_WIRE(struct sample, text, "text", HF_WIRE_TEXT),
    HF_WIRE(struct sample, number, "number", HF_WIRE_INT),
    HF_WIRE(struct sample, at_ms, "at", HF_WIRE_TIME),
    HF_WIRE(struct sample, count, "count", HF_WIRE_COUNT),
    HF_WIRE(struct sample, alive, "alive", HF_WIRE_ALIVE),
    HF_WIRE(struct sample, flag, "flag", HF_WIRE_BOOL),
};
enum { N_SAMPLE = sizeof sample_fields / sizeof *sample_fields };

static int read_sample(const char *json, struct sample *ret)
{
    json_t *object = json_loads(json, 0, NULL);
    assert_non_null(object);
    int r = hf_wire_read(object, ret, sample_fields, N_SAMPLE, &err);
    json_decref(object);
    return r;
}

static void what_is_written_is_read_back(void **state)
{
    struct sample in = {"abcdefg", -5, 1794774600123, UINT32_MAX, HF_DEAD, true}, out;
    struct hf_buf json = HF_BUF(1000);
    hf_wire_write(&json, &in, sample_fields, N_SAMPLE);
    assert_int_equal(read_sample(json.data, &out), 0);
    assert_string_equal(out.text, in.text);
    assert_true(out.number == in.number && out.at_ms == in.at_ms && out.count == in.count);
    assert_true(out.alive == in.alive && out.flag == in.flag);
    hf_buf_clear(&json);
}

static void what_is_absent_or_null_is_empty(void **state)
{
    struct sample out;
    memset(&out, 0x55, sizeof out);
    assert_int_equal(read_sample("{\"text\":null,\"unknown\":[1]}", &out), 0);
    assert_string_equal(out.text, "");
    assert_true(out.number == 0 && out.alive == HF_ALIVE_UNKNOWN && !out.flag);
}

static void a_wrong_type_is_named(void **state)
{
    static const struct {
        const char *json, *field;
    } bad[] = {
        {"{\"text\":5}", "text"},
        {"{\"text\":\"abcdefgh\"}", "text"},
        {"{\"number\":\"5\"}", "number"},
        {"{\"number\":1.5}", "number"},
        {"{\"at\":\"yesterday\"}", "at"},
        {"{\"count\":-1}", "count"},
        {"{\"count\":4294967296}", "count"},
        {"{\"alive\":\"yes\"}", "alive"},
        {"{\"flag\":0}", "flag"},
    };
    struct sample out;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_sample(bad[i].json, &out), -HF_INVALID);
        assert_non_null(strstr(err.message, bad[i].field));
    }
}

/* ---- batches -------------------------------------------------------------------------------- */

static void a_request_with_an_execution_is_read_back(void **state)
{
    struct hf_request in = {.op = HF_OP_ACQUIRE,
                            .name = "lock",
                            .token = "t",
                            .ttl_ms = 5,
                            .workflow = "pay",
                            .key = "k\"1",
                            .once = true,
                            .input = "\0\xff",
                            .input_size = 2,
                            .execution_id = "id",
                            .retry_of = "old",
                            .run_at_ms = 1794774600123,
                            .on_lost = HF_ON_LOST_VERIFY,
                            .max_attempts = 3,
                            .retry_backoff_ms = 5000,
                            .concurrency = 2,
                            .overlap = HF_OVERLAP_SKIP,
                            .queue_limit = 7,
                            .claim = true,
                            .verifies = true,
                            .spawned = true,
                            .outcome = HF_OUTCOME_ABORTED,
                            .has_exit_code = true,
                            .exit_code = -3,
                            .has_output = true,
                            .output_tail = "end",
                            .output_tail_size = 3,
                            .output_skipped = 99};
    struct hf_request out;
    struct hf_buf text = HF_BUF(10000);
    hf_wire_request(&text, &in);
    json_t *object = json_loads(text.data, 0, NULL);
    assert_int_equal(hf_wire_read_request(object, &out, &err), 0);
    assert_string_equal(out.workflow, in.workflow);
    assert_string_equal(out.key, in.key);
    assert_true(out.once && out.claim && out.verifies && out.spawned && out.has_output &&
                out.has_exit_code);
    assert_int_equal(out.input_size, 2);
    assert_memory_equal(out.input, in.input, 2);
    assert_string_equal(out.execution_id, "id");
    assert_string_equal(out.retry_of, "old");
    assert_true(out.run_at_ms == in.run_at_ms && out.retry_backoff_ms == in.retry_backoff_ms);
    assert_int_equal(out.on_lost, in.on_lost);
    assert_int_equal(out.overlap, in.overlap);
    assert_int_equal(out.outcome, in.outcome);
    assert_int_equal(out.max_attempts, 3);
    assert_int_equal(out.concurrency, 2);
    assert_int_equal(out.queue_limit, 7);
    assert_int_equal(out.exit_code, -3);
    assert_int_equal(out.output_head_size, 0);
    assert_int_equal(out.output_tail_size, 3);
    assert_memory_equal(out.output_tail, "end", 3);
    assert_true(out.output_skipped == 99);
    hf_wire_request_clear(&out);
    json_decref(object);
    hf_buf_clear(&text);
}

static void a_plain_request_says_nothing_of_executions(void **state)
{
    struct hf_request in = {.op = HF_OP_STATUS, .name = "a"}, out;
    struct hf_buf text = HF_BUF(10000);
    hf_wire_request(&text, &in);
    assert_null(strstr(text.data, "workflow"));
    json_t *object = json_loads(text.data, 0, NULL);
    assert_int_equal(hf_wire_read_request(object, &out, &err), 0);
    assert_false(out.has_output || out.has_exit_code || out.once);
    json_decref(object);
    hf_buf_clear(&text);
}

static void an_answer_with_an_execution_is_read_back(void **state)
{
    struct hf_answer in = {.lease = {.name = "a", .token = "t", .cancel_requested = true},
                           .has_execution = true,
                           .execution = {.id = "id",
                                         .workflow = "pay",
                                         .lock = "a",
                                         .state = HF_FAILED,
                                         .has_exit_code = true,
                                         .exit_code = 9,
                                         .spawned = true,
                                         .to_verify = true,
                                         .parked = true,
                                         .on_lost = HF_ON_LOST_RETRY,
                                         .max_attempts = 4,
                                         .spent = 2,
                                         .retry_backoff_ms = 1000,
                                         .concurrency = 6}};
    struct hf_answer out;
    struct hf_buf text = HF_BUF(10000);
    hf_wire_answer(&text, &in);
    json_t *object = json_loads(text.data, 0, NULL);
    assert_int_equal(hf_wire_read_answer(object, &out, &err), 0);
    assert_true(out.lease.cancel_requested && out.has_execution && !out.has_holder);
    assert_memory_equal(&out.execution, &in.execution, sizeof out.execution);
    json_decref(object);
    hf_buf_clear(&text);
}

static void bytes_survive_as_base64(void **state)
{
    unsigned char bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        struct hf_buf text = HF_BUF(1000);
        void *back = NULL;
        size_t n_back = 1;
        hf_base64_write(&text, bytes, n);
        assert_true(hf_base64_read(text.data ? text.data : "", text.len, &back, &n_back));
        assert_int_equal(n_back, n);
        if (n)
            assert_memory_equal(back, bytes, n);
        free(back);
        hf_buf_clear(&text);
    }
}

static void what_is_not_base64_is_refused(void **state)
{
    static const char *const bad[] = {"A",    "AA",   "AAA",  "A===",  "====", "AA=A",    "AB==",
                                      "AAB=", "AA A", "AA-_", "AAAA=", "=AAA", "AA==AAAA"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *back = NULL;
        size_t n;
        assert_false(hf_base64_read(bad[i], strlen(bad[i]), &back, &n));
        assert_null(back);
    }
}

/* ---- JSON as text --------------------------------------------------------------------------- */

static void json_is_told_from_what_is_not(void **state)
{
    static const char *const good[] = {
        "0",    "-0.5e+10", "1E5", "\"\"", "\"a\\\"\\u12aF\"", "true",
        "null", "[]",       "{}",  "[ ]",  "[1, [2]]",         "{\"a\" : {\"b\":[ ]} ,\"c\":1}"};
    static const char *const bad[] = {
        "",        "-",         ".5",         "1.",       "1e",   "+1",         "tru", "\"",
        "\"\\x\"", "\"\\u12\"", "[",          "[1",       "[1,",  "[1,]",       "{",   "{1:2}",
        "{\"a\"}", "{\"a\":}",  "{\"a\":1,}", "\"\x01\"", "\"\\", "[[[[[]]]]]", "]",   "nul"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ptr_equal(hf_json_skip(good[i], good[i] + strlen(good[i]), 4),
                         good[i] + strlen(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(hf_json_skip(bad[i], bad[i] + strlen(bad[i]), 4));
}

static void a_member_is_found_where_it_stands(void **state)
{
    static const struct {
        const char *text, *value;
        int found;
    } cases[] = {
        {"{\"in\":1,\"input\": [ 1 ] }", "[ 1 ]", 1},
        {" {\"a\":{\"input\":1},\"input\":\"x\"}", "\"x\"", 1},
        {"{\"a\":\"\\\"input\\\":1\"}", NULL, 0},
        {"{\"input\":}", NULL, -1},
        {"{\"input\":[[[]]]}", NULL, -1},
        {"{\"input\":\"\xff\"}", NULL, -1},
        {"{\"inputs\":1}", NULL, 0},
        {"[\"input\"]", NULL, 0},
        {"{\"x\":bad,\"input\":1}", NULL, 0},
        {"{\"input", NULL, 0},
        {"", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = NULL;
        size_t n = 0;
        assert_int_equal(hf_json_member(cases[i].text, strlen(cases[i].text), "input", 2, &at, &n),
                         cases[i].found);
        if (cases[i].found > 0) {
            assert_int_equal(n, strlen(cases[i].value));
            assert_memory_equal(at, cases[i].value, n);
        }
    }
}

static void space_between_tokens_is_left_out(void **state)
{
    static const char text[] = " { \"a b\" : [ 1 ,\n\t2 ] , \"c\":\" \\\" \" } ";
    struct hf_buf out = HF_BUF(100);
    hf_json_compact(&out, text, strlen(text));
    assert_string_equal(out.data, "{\"a b\":[1,2],\"c\":\" \\\" \"}");
    hf_buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_are_escaped),
        cmocka_unit_test(invalid_utf8_becomes_the_replacement_character),
        cmocka_unit_test(a_buffer_that_is_full_says_so),
        cmocka_unit_test(a_lease_has_the_documented_fields),
        cmocka_unit_test(a_status_has_the_documented_fields_and_never_a_token),
        cmocka_unit_test(an_event_has_the_documented_fields),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(what_is_absent_or_null_is_empty),
        cmocka_unit_test(a_wrong_type_is_named),
        cmocka_unit_test(a_request_with_an_execution_is_read_back),
        cmocka_unit_test(a_plain_request_says_nothing_of_executions),
        cmocka_unit_test(an_answer_with_an_execution_is_read_back),
        cmocka_unit_test(bytes_survive_as_base64),
        cmocka_unit_test(what_is_not_base64_is_refused),
        cmocka_unit_test(json_is_told_from_what_is_not),
        cmocka_unit_test(a_member_is_found_where_it_stands),
        cmocka_unit_test(space_between_tokens_is_left_out),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
