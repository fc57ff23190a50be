/* Requests as libmicrohttpd brings them, and answers as it wants them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "body.h"
#include "error.h"
#include "server.h"
#include "tls.h"
#include "wire.h"

static const char type_json[] = "application/json", type_problem[] = "application/problem+json";

/* ---- what is due ---------------------------------------------------------------------------- */

static void due_leave(struct due *d)
{
    if (!d->next)
        return;
    d->prev->next = d->next;
    d->next->prev = d->prev;
    d->prev = d->next = NULL;
}

/* To the end of the list: all of one list are given the same time. */
static void due_enter(struct due *list, struct due *d, int64_t at_ms)
{
    due_leave(d);
    d->at_ms = at_ms;
    d->next = list;
    d->prev = list->prev;
    list->prev->next = d;
    list->prev = d;
}

/* A request that never ends is told so where nothing else was sent; then the library sees the end. */
static void cut_off(struct connection *c, bool receiving)
{
    static const char text[] = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                               "Content-Length: 0\r\n\r\n";
    if (receiving && !c->listener->tls)
        send(c->fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(c->fd, SHUT_RDWR);
    c->listener->run = true;
}

int64_t http_tick(struct server *server, int64_t at_ms)
{
    struct due *lists[] = {&server->receiving, &server->idle};
    int64_t next_ms = INT64_MAX;
    for (size_t i = 0; i < 2; i++) {
        struct due *first;
        while ((first = lists[i]->next) != lists[i] && first->at_ms <= at_ms) {
            due_leave(first);
            cut_off((struct connection *)first, lists[i] == &server->receiving);
        }
        if (first != lists[i] && first->at_ms < next_ms)
            next_ms = first->at_ms;
    }
    return next_ms;
}

/* ---- connections ---------------------------------------------------------------------------- */

/* At a Unix socket the kernel says who it is. */
static void check_peer(struct connection *c)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (!c->listener->is_unix)
        return;
    bool known = getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    c->peer_trusted = known && (peer.uid == 0 || peer.uid == geteuid());
    c->peer_refused = !c->peer_trusted;
}

static void on_connection(void *arg, struct MHD_Connection *mhd_connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct listener *listener = arg;
    struct server *server = listener->server;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            return;
        c->listener = listener;
        c->fd =
            MHD_get_connection_info(mhd_connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        check_peer(c);
        due_enter(&server->idle, &c->due, now_ms() + IDLE_MS);
        server->n_connections++;
        *context = c;
    } else if (*context) {
        due_leave(&((struct connection *)*context)->due);
        free(*context);
        server->n_connections--;
        *context = NULL;
    }
}

static struct connection *connection_of(struct MHD_Connection *mhd_connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd_connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* The request line is there: the rest must follow soon. */
static void *on_request_line(void *arg, const char *uri, struct MHD_Connection *mhd_connection)
{
    (void)uri;
    struct server *server = ((struct listener *)arg)->server;
    struct connection *c = connection_of(mhd_connection);
    if (c)
        due_enter(&server->receiving, &c->due, now_ms() + RECEIVE_MS);
    return NULL;
}

/* ---- a request's life ----------------------------------------------------------------------- */

static void request_free(struct request *req)
{
    if (req->clear)
        req->clear(req);
    req->server->reserved -= req->reserved;
    request_forget_config(req);
    json_decref(req->json);
    hf_buf_clear(&req->body);
    hf_buf_clear(&req->answer);
    free(req->name);
    free(req);
}

static void log_request(const struct request *req)
{
    char status[8], took[24];
    if (!req->server->opts->log_requests && req->status < 500)
        return;
    snprintf(status, sizeof status, "%u", req->status);
    snprintf(took, sizeof took, "%lld", (long long)(now_us() - req->received_us));
    log_event("request", "id", req->id, "method", req->method, "path",
              req->route ? req->route->path : "?", "name", req->name, "execution",
              req->execution[0] ? req->execution : NULL, "status", status, "us", took, "client",
              req->left ? "gone" : NULL, LOG_END);
}

static void on_completed(void *arg, struct MHD_Connection *mhd_connection, void **context,
                         enum MHD_RequestTerminationCode how)
{
    struct listener *listener = arg;
    struct server *server = listener->server;
    struct request *req = *context;
    struct connection *c = connection_of(mhd_connection);
    (void)how;
    if (c) {
        c->busy = false;
        due_enter(&server->idle, &c->due, now_ms() + IDLE_MS);
    }
    if (!req)
        return;
    *context = NULL;
    request_unwatch_client(req);
    if (req->forget)
        req->forget(req);
    metrics_observe(server, H_REQUEST, now_us() - req->received_us);
    metrics_request(server, req->status);
    log_request(req);
    if (req->next)
        req->next->prev = req->prev;
    *(req->prev ? &req->prev->next : &server->requests) = req->next;
    server->n_requests--;
    req->gone = true;
    if (!req->working)
        request_free(req);
}

static bool is_plain_id(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/");
    return n > 0 && n <= REQUEST_ID_MAX && !text[n];
}

static void make_id(struct server *server, char ret[REQUEST_ID_MAX + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint64_t parts[] = {server->id_high, server->id_count++};
    for (int i = 0; i < 24; i++)
        ret[i] = i < 16 ? digits[parts[0] >> (60 - 4 * i) & 15]
                        : digits[parts[1] >> (28 - 4 * (i - 16)) & 15];
    ret[24] = '\0';
}

/* What one look at all headers finds. */
struct seen {
    struct request *req;
    const char *id, *length, *encoding;
    int n_lengths, n_encodings;
};

static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    struct seen *seen = arg;
    (void)kind;
    const struct {
        const char *name, **at;
    } wanted[] = {
        {"Host", &seen->req->header.host},     {"Authorization", &seen->req->header.authorization},
        {"Origin", &seen->req->header.origin}, {"Last-Event-ID", &seen->req->header.last_event_id},
        {"X-Request-Id", &seen->id},           {"Content-Length", &seen->length},
        {"Transfer-Encoding", &seen->encoding}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if ((key[0] | 32) == (wanted[i].name[0] | 32) && strcasecmp(key, wanted[i].name) == 0) {
            seen->n_lengths += wanted[i].at == &seen->length;
            seen->n_encodings += wanted[i].at == &seen->encoding;
            *wanted[i].at = value ? value : "";
        }
    return MHD_YES;
}

bool request_reserve(struct request *req, size_t bytes)
{
    if (bytes > LARGE_MAX - req->server->reserved)
        return false;
    req->server->reserved += bytes;
    req->reserved += bytes;
    return true;
}

static size_t body_most(const struct request *req)
{
    size_t most = req->route && req->route->body_max ? req->route->body_max : BODY_MAX;
    return most == BODY_HOOK ? (size_t)req->server->opts->max_body : most;
}

static void refuse_large(struct request *req)
{
    char detail[80];
    snprintf(detail, sizeof detail, "a body may have %zu bytes here", body_most(req));
    request_problem(req, HF_TOO_LARGE, detail, NULL);
}

/*
 * More than every request may send: only to a route that is for it, from whom it is for, and while
 * there is room. `bytes`, 0: it does not say. What is refused is answered.
 */
static void admit_large(struct request *req, unsigned long long bytes)
{
    size_t most = body_most(req);
    if (bytes > most || most == BODY_MAX)
        refuse_large(req);
    else if (!route_enter(req))
        return;
    else if (request_reserve(req, bytes ? (size_t)bytes : most))
        req->body.cap = most;
    else
        request_problem(req, HF_UNAVAILABLE, "too many large requests at once; try again", NULL);
}

/*
 * Where two readers could disagree on where a request ends, one of them can be made to read what the
 * other has not checked: such a request is refused.
 */
static void check_framing(struct request *req, const struct seen *seen)
{
    unsigned long long length = seen->length ? strtoull(seen->length, NULL, 10) : 0;
    if (seen->n_lengths > 1 || seen->n_encodings > 1 || (seen->length && seen->encoding))
        request_problem(req, HF_INVALID,
                        "the length of the body is given twice; send either one Content-Length or "
                        "one Transfer-Encoding",
                        NULL);
    else if (seen->encoding && strcasecmp(seen->encoding, "chunked") != 0)
        request_problem(req, HF_INVALID, "the only transfer encoding known here is chunked", NULL);
    else if (length > BODY_MAX)
        admit_large(req, length);
}

/* A piece of the body. What is refused is read to its end: only then it can be answered. */
static void take_piece(struct request *req, const char *data, size_t n)
{
    if (!req->answered && n > req->body.cap - req->body.len) {
        if (req->reserved)
            refuse_large(req);
        else
            admit_large(req, 0);
    }
    if (!req->answered)
        hf_buf_add(&req->body, data, n);
    if (req->body.failed && !req->answered)
        request_problem(req, HF_NOMEM, "out of memory", NULL);
    req->too_large = req->answered;
    if (req->body.len - req->progress >= RECEIVE_BYTES) {
        req->progress = req->body.len;
        due_enter(&req->server->receiving, &req->connection->due, now_ms() + RECEIVE_MS);
    }
}

static struct request *request_begin(struct listener *listener,
                                     struct MHD_Connection *mhd_connection, const char *method,
                                     const char *path)
{
    struct server *server = listener->server;
    struct request *req = calloc(1, sizeof *req);
    struct connection *c = connection_of(mhd_connection);
    if (!req || !c) {
        free(req);
        return NULL;
    }
    *req = (struct request){.server = server,
                            .connection = c,
                            .mhd = mhd_connection,
                            .method = method,
                            .path = path,
                            .route = route_find(method, path),
                            .received_us = now_us(),
                            .body.cap = BODY_MAX,
                            .answer.cap = ANSWER_MAX};
    struct seen seen = {.req = req};
    MHD_get_connection_values(mhd_connection, MHD_HEADER_KIND, see_header, &seen);
    if (seen.id && is_plain_id(seen.id))
        strcpy(req->id, seen.id);
    else
        make_id(server, req->id);
    req->next = server->requests;
    if (req->next)
        req->next->prev = req;
    server->requests = req;
    server->n_requests++;
    check_framing(req, &seen);
    return req;
}

static enum MHD_Result send_answer(struct request *req)
{
    struct MHD_Response *r = req->stream;
    if (!r) {
        if (req->answer.failed) {
            hf_buf_clear(&req->answer);
            req->status = 500;
        }
        r = MHD_create_response_from_buffer(req->answer.len, req->answer.data,
                                            MHD_RESPMEM_MUST_FREE);
        if (!r)
            return MHD_NO;
        req->answer = (struct hf_buf){0};
    }
    MHD_add_response_header(r, "Content-Type", req->content_type);
    MHD_add_response_header(r, "X-Request-Id", req->id);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff"); /* a log is no page */
    if (req->retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", req->retry_after_s);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    if (req->waited_s) {
        char applied[32];
        snprintf(applied, sizeof applied, "wait=%lld", (long long)req->waited_s);
        MHD_add_response_header(r, "Preference-Applied", applied);
    }
    if (req->allow)
        MHD_add_response_header(r, "Allow", req->allow);
    if (req->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer realm=\"holdfast\"");
    if (req->server->draining || req->too_large) /* who sends too much is not listened to again */
        MHD_add_response_header(r, "Connection", "close");
    enum MHD_Result done = MHD_queue_response(req->mhd, req->status, r);
    MHD_destroy_response(r);
    return done;
}

static void arrive(struct request *req)
{
    req->arrived = true;
    req->connection->busy = true;
    due_leave(&req->connection->due);
    if (req->answered)
        return;
    if (req->server->closed)
        request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
    else
        route_request(req);
}

/* Called with the headers, with each piece of the body, at its end, and when it was resumed. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd_connection,
                                  const char *path, const char *method, const char *version,
                                  const char *data, size_t *size, void **context)
{
    struct request *req = *context;
    (void)version;
    if (!req) {
        *context = req = request_begin(arg, mhd_connection, method, path);
        if (!req)
            return MHD_NO;
        return req->answered ? send_answer(req) : MHD_YES;
    }
    if (*size) {
        take_piece(req, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!req->arrived)
        arrive(req);
    if (req->left)
        return MHD_NO;
    if (req->answered)
        return send_answer(req);
    MHD_suspend_connection(mhd_connection);
    req->suspended = true;
    return MHD_YES;
}

/* ---- answers -------------------------------------------------------------------------------- */

void request_resume(struct request *req)
{
    if (!req->suspended)
        return;
    req->suspended = false;
    MHD_resume_connection(req->mhd);
    req->connection->listener->run = true;
}

void request_answer(struct request *req, unsigned status)
{
    req->status = status;
    if (!req->content_type)
        req->content_type = type_json;
    req->answered = true;
    request_unwatch_client(req);
    request_resume(req);
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

void request_problem(struct request *req, int code, const char *detail,
                     const struct hf_status *holder)
{
    struct hf_buf *out = &req->answer;
    const char *name = hf_code_name(code), *title = hf_code_meaning(code);
    int status = hf_code_http(code);
    hf_buf_clear(out);
    *out = (struct hf_buf)HF_BUF(ANSWER_MAX);
    hf_buf_printf(out, "{\"type\":\"urn:holdfast:problem:%s\",\"title\":\"%s\",\"status\":%d,",
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
    request_answer(req, (unsigned)status);
}

void request_fail(struct request *req, const struct hf_error *err)
{
    request_problem(req, -err->code, err->message, err->has_holder ? &err->holder : NULL);
}

void http_give_up(struct server *server)
{
    for (struct request *req = server->requests, *next; req; req = next) {
        next = req->next;
        if (req->suspended && !req->answered)
            request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
    }
}

void request_ask(struct request *req, enum lane_name lane, job_done_fn *done)
{
    req->job.done = done;
    req->working = true;
    lane_put(req->server->lanes, lane, &req->job);
}

struct request *request_back(struct job *job)
{
    struct request *req = (struct request *)((char *)job - offsetof(struct request, job));
    req->working = false;
    if (!req->gone)
        return req;
    request_free(req);
    return NULL;
}

/* ---- clients that wait ---------------------------------------------------------------------- */

void request_watch_client(struct request *req)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = req};
    if (!req->watched)
        req->watched =
            epoll_ctl(req->server->gone_fd, EPOLL_CTL_ADD, req->connection->fd, &event) == 0;
}

void request_unwatch_client(struct request *req)
{
    if (req->watched)
        epoll_ctl(req->server->gone_fd, EPOLL_CTL_DEL, req->connection->fd, NULL);
    req->watched = false;
}

void http_see_gone(struct server *server)
{
    struct epoll_event events[64];
    int n = epoll_wait(server->gone_fd, events, 64, 0);
    for (int i = 0; i < n; i++) {
        struct request *req = events[i].data.ptr;
        request_unwatch_client(req);
        req->left = true;
        if (req->forget)
            req->forget(req);
        request_resume(req);
    }
}

/* ---- queries -------------------------------------------------------------------------------- */

const char *request_query(const struct request *req, const char *name, char *room, size_t size)
{
    const char *raw = MHD_lookup_connection_value(req->mhd, MHD_GET_ARGUMENT_KIND, name);
    return raw && decode_percent(raw, strlen(raw), room, size) ? room : NULL;
}

/* ---- the library ---------------------------------------------------------------------------- */

/* Paths and queries are decoded by us: a %2F in a name is no slash of the path. */
static size_t leave_escaped(void *arg, struct MHD_Connection *mhd_connection, char *text)
{
    (void)arg, (void)mhd_connection;
    return strlen(text);
}

static void drop_message(void *arg, const char *format, va_list args)
{
    (void)arg, (void)format, (void)args;
}

int http_start(struct server *server, struct listener *l, struct hf_error *err)
{
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK, 0, tls_callback()},
                                   {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    l->daemon = MHD_start_daemon(
        flags | (l->tls ? MHD_USE_TLS : 0u), 0, NULL, NULL, on_request, l,
        MHD_OPTION_EXTERNAL_LOGGER, drop_message, NULL, MHD_OPTION_LISTEN_SOCKET, l->fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->opts->max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADERS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, 0u,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        l, MHD_OPTION_URI_LOG_CALLBACK, on_request_line, l, MHD_OPTION_UNESCAPE_CALLBACK,
        leave_escaped, NULL, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY,
        l->tls ? tls : &tls[1], MHD_OPTION_END);
    if (!l->daemon)
        return hf_fail(err, HF_UNAVAILABLE, "can't serve at %s", l->address);
    l->epoll_fd = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    return 0;
}
