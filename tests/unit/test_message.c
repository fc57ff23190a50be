/* HTTP messages: what is read, and that everything which could be read in two ways is refused. */
#include "message.h"

#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static struct head head;
static char *room;
static const char *why;

/* The status of this head: 0 where it is read; 1: more must come. */
static int read_head(const char *text, size_t n)
{
    size_t scanned = 0;
    ssize_t length = head_length(text, n, &scanned);
    if (length <= 0)
        return length ? (int)-length : 1;
    char *exact = malloc((size_t)length); /* so that a sanitizer sees every byte beyond it */
    memcpy(exact, text, (size_t)length);
    room = realloc(room, (size_t)length);
    why = "";
    int status = head_read(exact, (size_t)length, room, &head, &why);
    assert_true(!status == !*why);
    free(exact);
    return status;
}

static int read_text(const char *text) { return read_head(text, strlen(text)); }

static const char *field(const char *wanted)
{
    const char *at = head.fields, *name, *value;
    while (head_next_field(&at, &name, &value))
        if (strcmp(name, wanted) == 0)
            return value;
    return NULL;
}

static void a_head_is_read(void **state)
{
    assert_int_equal(read_text("GET /v1/locks/a%2Fb?x=1&y=?& HTTP/1.1\r\nHost: here:80\r\n"
                               "X-Empty:\r\nX-Blank: \t \r\nX-Text: \t a b\xff \t\r\n\r\nmore"),
                     0);
    assert_string_equal(head.method, "GET");
    assert_string_equal(head.path, "/v1/locks/a%2Fb");
    assert_string_equal(head.query, "x=1&y=?&");
    assert_string_equal(head.host, "here:80");
    assert_string_equal(field("Host"), "here:80");
    assert_string_equal(field("X-Empty"), "");
    assert_string_equal(field("X-Blank"), "");
    assert_string_equal(field("X-Text"), "a b\xff");
    assert_null(field("X"));
    assert_false(head.is_old || head.chunked || head.close || head.keep_alive || head.wants_go_on);
    assert_true(head.length == 0);
}

static void what_is_about_the_message_is_noted(void **state)
{
    assert_int_equal(read_text("POST / HTTP/1.1\r\nhOST: x\r\ncontent-LENGTH: 0042\r\n"
                               "Expect: 100-Continue\r\nConnection: Upgrade ,\tCLOSE\r\n\r\n"),
                     0);
    assert_true(head.length == 42 && head.close && head.wants_go_on && !head.keep_alive);
    assert_null(head.query);
    assert_int_equal(read_text("POST /? HTTP/1.0\r\nConnection: Keep-Alive, closed\r\n\r\n"), 0);
    assert_true(head.is_old && head.keep_alive && !head.close && !head.host);
    assert_string_equal(head.query, "");
    assert_int_equal(read_text("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"),
                     0);
    assert_true(head.chunked);
}

static void what_two_readers_could_read_differently_is_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
    } bad[] = {
        {"\r\n", 400},
        {" GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\nHost: x\n\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n\n", 400},
        {"GET / HTTP/1.1\r\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /  HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400},
        {"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /\t HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET ?a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /\r\nHost: x\r\n\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"G@T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / http/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.10\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n X: folded\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n\tfolded\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n: no name\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nX: a\x01\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nX: a\x7f\r\n\r\n", 400},
#define POST "POST / HTTP/1.1\r\nHost: x\r\n"
        {POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {POST "Content-Length: 1, 1\r\n\r\n", 400},
        {POST "Content-Length: +1\r\n\r\n", 400},
        {POST "Content-Length: -1\r\n\r\n", 400},
        {POST "Content-Length: 0x1\r\n\r\n", 400},
        {POST "Content-Length: 1 \t2\r\n\r\n", 400},
        {POST "Content-Length:\r\n\r\n", 400},
        {POST "Content-Length: 18446744073709551617\r\n\r\n", 413},
        {POST "Content-Length : 1\r\n\r\n", 400},
        {POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: identity\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked;q=1\r\n\r\n", 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
#undef POST
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (read_text(bad[i].text) != bad[i].status)
            fail_msg("%s", bad[i].text);
    static const char with_nul[] = "GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n";
    assert_int_equal(read_head(with_nul, sizeof with_nul - 1), 400);
}

static void there_are_so_many_headers_at_most(void **state)
{
    char text[4000];
    for (int extra = 0; extra < 2; extra++) {
        int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\n");
        for (int i = 1; i < HEAD_FIELDS_MAX + extra; i++)
            n += snprintf(text + n, sizeof text - (size_t)n, "X%d: y\r\n", i);
        snprintf(text + n, sizeof text - (size_t)n, "\r\n");
        assert_int_equal(read_text(text), extra ? 431 : 0);
    }
}

/* However the bytes come, the head ends at the same place. */
static void a_head_that_comes_in_pieces_is_the_same(void **state)
{
    static const char text[] = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
    for (size_t step = 1; step < sizeof text; step++) {
        size_t scanned = 0;
        ssize_t length = 0;
        for (size_t n = step < sizeof text - 1 ? step : sizeof text - 1; !length;
             n = n + step < sizeof text - 1 ? n + step : sizeof text - 1)
            length = head_length(text, n, &scanned);
        assert_int_equal(length, sizeof text - 1 - 3);
    }
}

/* ---- chunks --------------------------------------------------------------------------------- */

/* The body in `out`, fed in pieces of so many bytes; what chunks_read says at the end. */
static int read_chunks(const char *text, size_t n, size_t step, size_t *ret_used,
                       struct hf_buf *out)
{
    struct chunks c = {0};
    size_t at = 0, used;
    int r = 0;
    hf_buf_clear(out);
    while (r == 0 && at < n) {
        size_t piece = n - at < step ? n - at : step;
        r = chunks_read(&c, text + at, piece, &used, out);
        assert_true(used <= piece && (r || used == piece));
        at += used;
    }
    *ret_used = at;
    return r;
}

static void chunks_are_put_together(void **state)
{
    static const struct {
        const char *text;
        const char *body;
        size_t rest;
    } good[] = {
        {"0\r\n\r\n", "", 0},
        {"3\r\nabc\r\n0\r\n\r\nGET", "abc", 3},
        {"1\r\na\r\n02\r\nbc\r\n000\r\n\r\n", "abc", 0},
        {"A;x=\"y\"\r\n0123456789\r\n0;z\r\nT: x\r\nU: y\r\n\r\n\r\n", "0123456789", 2},
        {"2 \r\n\r\n\r\n0\r\n\r\n", "\r\n", 0},
    };
    struct hf_buf out = HF_BUF(100);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (size_t step = 1; step <= strlen(good[i].text); step++) {
            size_t used, n = strlen(good[i].text);
            assert_int_equal(read_chunks(good[i].text, n, step, &used, &out), 1);
            assert_string_equal(out.len ? out.data : "", good[i].body);
            assert_int_equal(n - used, good[i].rest);
        }
    hf_buf_clear(&out);
}

static void broken_chunks_are_refused(void **state)
{
    static const struct {
        const char *text;
        int says;
    } bad[] = {
        {"\r\n", -400},           {"g\r\n", -400},           {"-1\r\n", -400},
        {"3\nabc", -400},         {"3\r\nabcd", -400},       {"3\r\nabc\n", -400},
        {"3\rx", -400},           {"0x3\r\nabc", -400},      {";x\r\n", -400},
        {"3;x\nabc", -400},       {"0\r\nT: x\n\r\n", -400}, {"0\r\n\rx", -400},
        {"0000000003\r\n", -413}, {"FFFFFFFFF\r\n", -413},   {"65\r\n", 0},
    };
    struct hf_buf out = HF_BUF(100);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t step = 1; step <= strlen(bad[i].text); step++) {
            size_t used;
            if (read_chunks(bad[i].text, strlen(bad[i].text), step, &used, &out) != bad[i].says)
                fail_msg("%s", bad[i].text);
        }
    hf_buf_clear(&out);
}

static void a_body_has_its_bound(void **state)
{
    struct hf_buf out = HF_BUF(100);
    char text[200];
    size_t used;
    int n = snprintf(text, sizeof text, "32\r\n%050d\r\n33\r\n%051d\r\n0\r\n\r\n", 1, 2);
    assert_int_equal(read_chunks(text, (size_t)n, 7, &used, &out), -413);
    hf_buf_clear(&out);
    char *trailers = malloc(10000);
    memset(trailers, 'x', 10000);
    memcpy(trailers, "0\r\n", 3);
    assert_int_equal(read_chunks(trailers, 10000, 100, &used, &out), -400);
    free(trailers);
    hf_buf_clear(&out);
}

/* ---- anything ------------------------------------------------------------------------------- */

static uint32_t dice = 1;

static uint32_t roll(uint32_t sides)
{
    dice = dice * 1664525 + 1013904223;
    return (dice >> 8) % sides;
}

/* Change some bytes of what is good: it is read or refused, and never read beyond its end. */
static void whatever_comes_does_no_harm(void **state)
{
    static const char *const good[] = {
        "POST /v1/locks/a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nX: y\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"};
    static const char bytes[] = "\r\n\t :;,/?%=0179afAF \xff\x01";
    struct hf_buf out = HF_BUF(64);
    for (int i = 0; i < 200000; i++) {
        char text[200];
        size_t n = (size_t)snprintf(text, sizeof text, "%s", good[i & 1]), used;
        for (uint32_t changes = roll(4); changes; changes--)
            text[roll((uint32_t)n)] = bytes[roll(sizeof bytes)];
        int status = read_head(text, n);
        assert_true(status == 0 || status == 1 || (status >= 400 && status <= 505));
        if (status == 0)
            assert_true(strlen(head.method) && strlen(head.path) && head.length < 1000000000000000);
        char chunks[40];
        n = (size_t)snprintf(chunks, sizeof chunks, "5;a\r\nhello\r\n1\r\n!\r\n0\r\nT:1\r\n\r\n");
        for (uint32_t changes = roll(3); changes; changes--)
            chunks[roll((uint32_t)n)] = bytes[roll(sizeof bytes)];
        int one = read_chunks(chunks, n, 1, &used, &out);
        size_t used_at_once, length = out.len;
        int all = read_chunks(chunks, n, n, &used_at_once, &out);
        assert_int_equal(one, all);
        assert_int_equal(used, used_at_once);
        if (all > 0)
            assert_int_equal(length, out.len);
    }
    hf_buf_clear(&out);
    free(room);
    room = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read),
        cmocka_unit_test(what_is_about_the_message_is_noted),
        cmocka_unit_test(what_two_readers_could_read_differently_is_refused),
        cmocka_unit_test(there_are_so_many_headers_at_most),
        cmocka_unit_test(a_head_that_comes_in_pieces_is_the_same),
        cmocka_unit_test(chunks_are_put_together),
        cmocka_unit_test(broken_chunks_are_refused),
        cmocka_unit_test(a_body_has_its_bound),
        cmocka_unit_test(whatever_comes_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
