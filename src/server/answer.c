/* Answers: what handlers give, as HTTP. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "server.h"
#include "wire.h"

enum {
    PIECE_SIZE = 16 << 10, /* of a stream */
    FIRST = 4096           /* bytes of an answer that are sent together with its head */
};

static const char type_json[] = "application/json", type_problem[] = "application/problem+json";

/* ---- the head of an answer ------------------------------------------------------------------ */

static const char *reason_of(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {201, "Created"},
                   {202, "Accepted"},
                   {204, "No Content"},
                   {304, "Not Modified"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {422, "Unprocessable Content"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Other"; /* nobody reads it */
}

static void put_number(struct hf_buf *out, uint64_t n)
{
    char digits[24], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + n % 10);
    while (n /= 10);
    hf_buf_add(out, at, (size_t)(digits + sizeof digits - at));
}

static void put_field(struct hf_buf *out, const char *name, const char *value)
{
    if (!value)
        return;
    hf_buf_puts(out, name);
    hf_buf_puts(out, ": ");
    hf_buf_puts(out, value);
    hf_buf_puts(out, "\r\n");
}

/* Made anew once a second. */
static const char *date_of(struct server *server)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = time(NULL);
    struct tm t;
    if (now == server->dated || !gmtime_r(&now, &t))
        return server->date;
    server->dated = now;
    snprintf(server->date, sizeof server->date, "%.3s, %02d %.3s %d %02d:%02d:%02d GMT",
             days + 3 * t.tm_wday, t.tm_mday, months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour,
             t.tm_min, t.tm_sec);
    return server->date;
}

static void put_head(const struct request *req, struct hf_buf *out)
{
    const struct connection *c = req->connection;
    out->len = 0;
    hf_buf_puts(out, "HTTP/1.1 ");
    put_number(out, req->status);
    hf_buf_putc(out, ' ');
    hf_buf_puts(out, reason_of(req->status));
    hf_buf_puts(out, "\r\n");
    put_field(out, "Date", date_of(req->server));
    put_field(out, "Content-Type", req->content_type);
    put_field(out, "X-Request-Id", req->id);
    put_field(out, "X-Content-Type-Options", "nosniff"); /* a log is no page */
    put_field(out, "Cache-Control", req->cache_control);
    put_field(out, "Allow", req->allow);
    if (req->status == 401)
        put_field(out, "WWW-Authenticate", "Bearer realm=\"holdfast\"");
    if (req->retry_after_s) {
        hf_buf_puts(out, "Retry-After: ");
        put_number(out, (uint64_t)req->retry_after_s);
        hf_buf_puts(out, "\r\n");
    }
    if (req->waited_s) {
        hf_buf_puts(out, "Preference-Applied: wait=");
        put_number(out, (uint64_t)req->waited_s);
        hf_buf_puts(out, "\r\n");
    }
    if (!req->stream.read) {
        hf_buf_puts(out, "Content-Length: ");
        put_number(out, req->answer.len);
        hf_buf_puts(out, "\r\n");
    } else if (!req->head.is_old)
        put_field(out, "Transfer-Encoding", "chunked");
    if (c->closing)
        put_field(out, "Connection", "close");
    else if (req->head.is_old)
        put_field(out, "Connection", "keep-alive");
    hf_buf_puts(out, "\r\n");
}

/* ---- sending -------------------------------------------------------------------------------- */

static bool is_head(const struct request *req) { return strcmp(req->method, "HEAD") == 0; }

static void send_begin(struct request *req)
{
    struct connection *c = req->connection;
    struct hf_buf *head = &req->server->head;
    req->sending = true;
    if (req->answer.failed) {
        hf_buf_clear(&req->answer);
        req->status = 500;
    }
    c->closing |= req->server->draining || req->head.close ||
                  (req->head.is_old && (!req->head.keep_alive || req->stream.read));
    put_head(req, head);
    if (is_head(req) || req->stream.read)
        req->sent = req->answer.len;
    else {
        req->sent = req->answer.len < FIRST ? req->answer.len : FIRST;
        hf_buf_add(head, req->answer.data, req->sent);
    }
    connection_send(c, &(struct iovec){head->data, head->len}, 1);
}

/* What is left of the answer. False: the client has not taken all of it yet. */
static bool send_rest(struct request *req)
{
    struct connection *c = req->connection;
    while (req->sent < req->answer.len && connection_flush(c)) {
        size_t n = connection_offer(c, req->answer.data + req->sent, req->answer.len - req->sent);
        req->sent += n;
        if (!n)
            break;
    }
    if (req->sent < req->answer.len || !connection_flush(c))
        return false;
    connection_settle(c);
    return true;
}

/* The next piece of a stream. False: there is none for now. */
static bool send_piece(struct request *req, bool *ret_ended)
{
    static char line_end[] = "\r\n", last[] = "0\r\n\r\n";
    char piece[PIECE_SIZE], size[24];
    ssize_t n = req->stream.read(req->stream.arg, piece, sizeof piece);
    bool chunked = !req->head.is_old;
    *ret_ended = n == STREAM_END;
    if (n > 0) {
        int n_size = snprintf(size, sizeof size, "%zx\r\n", (size_t)n);
        struct iovec parts[] = {
            {size, (size_t)n_size}, {piece, (size_t)n}, {line_end, sizeof line_end - 1}};
        connection_send(req->connection, chunked ? parts : &parts[1], chunked ? 3 : 1);
    } else if (*ret_ended && chunked)
        connection_send(req->connection, &(struct iovec){last, sizeof last - 1}, 1);
    return n > 0;
}

bool answer_send(struct request *req)
{
    struct connection *c = req->connection;
    bool ended = !req->stream.read || is_head(req);
    if (!req->sending)
        send_begin(req);
    while (!ended && !c->broken && connection_flush(c))
        if (!send_piece(req, &ended) && !ended)
            return false;
    return !c->broken && send_rest(req);
}

/* ---- what handlers call --------------------------------------------------------------------- */

void request_resume(struct request *req) { connection_ready(req->connection); }

void request_answer(struct request *req, unsigned status)
{
    req->status = status;
    if (!req->content_type)
        req->content_type = type_json;
    req->answered = true;
    request_unwatch_client(req);
    request_resume(req);
}

void request_stream(struct request *req, const struct stream_source *source)
{
    req->stream = *source;
    req->content_type = "text/event-stream";
    request_answer(req, 200);
    request_watch_client(req);
}

int retry_after_s(int code, const struct hf_status *holder)
{
    enum { LONGEST_S = 60 };
    if (code == HF_UNAVAILABLE || code == HF_UNKNOWN || code == HF_QUEUE_FULL ||
        code == HF_CANCELLED)
        return 1;
    if (code != HF_HELD && code != HF_RACED)
        return 0;
    int64_t s = holder ? holder->remaining_ms / 1000 + 1 : 1;
    return s < 1 ? 1 : s > LONGEST_S ? LONGEST_S : (int)s;
}

static void put_problem(struct request *req, unsigned status, int code, const char *detail,
                        const struct hf_status *holder)
{
    struct hf_buf *out = &req->answer;
    const char *name = hf_code_name(code), *title = hf_code_meaning(code);
    hf_buf_clear(out);
    *out = (struct hf_buf)HF_BUF(ANSWER_MAX);
    hf_buf_printf(out, "{\"type\":\"urn:holdfast:problem:%s\",\"title\":\"%s\",\"status\":%u,",
                  name, title, status);
    hf_buf_puts(out, "\"detail\":");
    hf_wire_string(out, detail, strlen(detail));
    hf_buf_printf(out, ",\"code\":\"%s\",\"requestId\":\"%s\"", name, req->id);
    if (holder) {
        hf_buf_puts(out, ",\"holder\":");
        hf_wire_status(out, holder);
    }
    if (req->existing[0])
        hf_buf_printf(out, ",\"existingExecutionId\":\"%s\"", req->existing);
    hf_buf_putc(out, '}');
    req->retry_after_s = retry_after_s(code < 0 ? -code : code, holder);
    req->content_type = type_problem;
    request_answer(req, status);
}

void request_problem(struct request *req, int code, const char *detail,
                     const struct hf_status *holder)
{
    put_problem(req, (unsigned)hf_code_http(code), code, detail, holder);
}

void request_refuse(struct request *req, unsigned status, int code, const char *detail)
{
    put_problem(req, status, code, detail, NULL);
}

void request_fail(struct request *req, const struct hf_error *err)
{
    request_problem(req, -err->code, err->message, err->has_holder ? &err->holder : NULL);
}
