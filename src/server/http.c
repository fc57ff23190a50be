/* Requests, from their bytes to their end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "body.h"
#include "error.h"
#include "metrics.h"
#include "server.h"

enum {
    AT_ONCE = 32,        /* steps of one connection before the others have their turn */
    READY_AT_ONCE = 1024 /* connections in one go */
};

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

static void log_request(const struct request *req, int64_t took_us)
{
    char status[8], took[24];
    if (!req->server->opts->log_requests && req->status < 500)
        return;
    snprintf(status, sizeof status, "%u", req->status);
    snprintf(took, sizeof took, "%lld", (long long)took_us);
    log_event("request", "id", req->id, "method", req->method, "path",
              req->route ? req->route->path : "?", "name", req->name, "execution",
              req->execution[0] ? req->execution : NULL, "status", status, "us", took, "client",
              req->left ? "gone" : NULL, LOG_END);
}

void request_end(struct request *req)
{
    struct server *server = req->server;
    int64_t took_us = now_us() - req->received_us;
    req->watched = false;
    if (req->forget)
        req->forget(req);
    if (req->stream.gone)
        req->stream.gone(req->stream.arg);
    metrics_observe(server, H_REQUEST, took_us);
    metrics_request(server, req->status);
    log_request(req, took_us);
    ring_leave(&req->ring);
    server->n_requests--;
    req->connection->req = NULL;
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

/* Note the headers that somebody here asks for. */
static void take_headers(struct request *req)
{
    const struct {
        const char *name, **at;
    } wanted[] = {{"Authorization", &req->header.authorization},
                  {"Origin", &req->header.origin},
                  {"Last-Event-ID", &req->header.last_event_id},
                  {"X-Request-Id", &req->header.id}};
    const char *at = req->head.fields, *name, *value;
    req->header.host = req->head.host;
    while (head_next_field(&at, &name, &value))
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if ((name[0] | 32) == (wanted[i].name[0] | 32) && strcasecmp(name, wanted[i].name) == 0)
                *wanted[i].at = value;
}

/* A new one, with room for a head of so many bytes. NULL: out of memory. */
static struct request *request_new(struct connection *c, size_t n_head)
{
    struct server *server = c->listener->server;
    struct request *req = calloc(1, sizeof *req + n_head);
    if (!req) {
        c->broken = true;
        return NULL;
    }
    req->server = server;
    req->connection = c;
    req->head = (struct head){.method = "", .path = "", .fields = ""};
    req->method = req->path = "";
    req->received_us = now_us();
    req->body.cap = BODY_MAX;
    req->answer.cap = ANSWER_MAX;
    make_id(server, req->id);
    ring_enter(&server->requests, &req->ring);
    server->n_requests++;
    c->req = req;
    return req;
}

/* ---- as it arrives -------------------------------------------------------------------------- */

/* Answer it, and listen to no more: where it ends is not known, or too far away. */
static void turn_away(struct connection *c, unsigned status, const char *why)
{
    struct request *req = c->req ? c->req : request_new(c, 0);
    c->closing = true;
    if (req)
        request_refuse(req, status, status == 413 ? HF_TOO_LARGE : HF_INVALID, why);
}

void http_too_slow(struct connection *c)
{
    turn_away(c, 408, "the request did not arrive in time");
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
    turn_away(req->connection, 413, detail);
}

/*
 * More than every request may send: only to a route that is for it, from whom it is for, and while
 * there is room. `bytes`, 0: it does not say. What is refused is answered, and not listened to.
 */
static void admit_large(struct request *req, uint64_t bytes)
{
    size_t most = body_most(req);
    if (bytes > most || most == BODY_MAX || req->reserved)
        refuse_large(req);
    else if (!route_enter(req))
        req->connection->closing = true;
    else if (request_reserve(req, bytes ? (size_t)bytes : most))
        req->body.cap = most;
    else {
        request_problem(req, HF_UNAVAILABLE, "too many large requests at once; try again", NULL);
        req->connection->closing = true;
    }
}

static void begin(struct connection *c, const char *text, size_t n)
{
    static char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const char *why = "";
    struct request *req = request_new(c, n);
    if (!req)
        return;
    int status = head_read(text, n, req->head_room, &req->head, &why);
    if (status) {
        turn_away(c, (unsigned)status, why);
        return;
    }
    req->method = req->head.method;
    req->path = req->head.path;
    req->route = route_find(req->method, req->path);
    take_headers(req);
    if (req->header.id && is_plain_id(req->header.id))
        strcpy(req->id, req->header.id);
    if (req->head.length > BODY_MAX)
        admit_large(req, req->head.length);
    if (!req->answered && req->head.wants_go_on && !req->head.is_old &&
        (req->head.length || req->head.chunked))
        connection_send(c, &(struct iovec){go_on, sizeof go_on - 1}, 1);
}

/* The head of the next request, if it is there; how many bytes were used. */
static size_t take_head(struct connection *c, const char *text, size_t n)
{
    size_t skipped = 0;
    while (n - skipped >= 2 && text[skipped] == '\r' && text[skipped + 1] == '\n')
        skipped += 2; /* some clients send an empty line behind a body */
    text += skipped;
    n -= skipped;
    if (!n || (n == 1 && text[0] == '\r'))
        return skipped;
    ssize_t length = head_length(text, n, &c->scanned);
    if (length > HEADERS_MAX || (length == 0 && n >= HEADERS_MAX))
        turn_away(c, 431, "the headers have more than 12288 bytes");
    else if (length < 0)
        turn_away(c, (unsigned)-length, "this is not HTTP/1.1");
    else if (length > 0) {
        c->scanned = 0;
        begin(c, text, (size_t)length);
        return skipped + (size_t)length;
    } else if (!c->receiving) {
        c->receiving = true;
        connection_due(c, &c->listener->server->receiving, c->listener->server->opts->receive_ms);
    }
    return skipped;
}

static size_t take_chunks(struct request *req, const char *text, size_t n)
{
    size_t used, more;
    int r = chunks_read(&req->chunks, text, n, &used, &req->body);
    if (r == -413) {
        admit_large(req, 0);
        if (req->answered)
            return used;
        r = chunks_read(&req->chunks, text + used, n - used, &more, &req->body);
        used += more;
    }
    if (r == -413)
        refuse_large(req);
    else if (r < 0)
        turn_away(req->connection, (unsigned)-r, "the chunks of the body are broken");
    req->arrived = r > 0;
    return used;
}

static size_t take_sized(struct request *req, const char *text, size_t n)
{
    size_t left = (size_t)req->head.length - req->body.len;
    size_t used = left < n ? left : n;
    if (used)
        hf_buf_add(&req->body, text, used);
    req->arrived = used == left;
    return used;
}

/* What has come of the body; how many bytes were used. */
static size_t take_body(struct request *req, const char *text, size_t n)
{
    struct connection *c = req->connection;
    size_t used = req->head.chunked ? take_chunks(req, text, n) : take_sized(req, text, n);
    bool in_time = req->body.len - req->progress >= RECEIVE_BYTES;
    if (req->body.failed) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        c->closing = true;
    }
    if (in_time)
        req->progress = req->body.len;
    if (!req->arrived && !req->answered && (!c->receiving || in_time)) {
        c->receiving = true;
        connection_due(c, &req->server->receiving, req->server->opts->receive_ms);
    }
    return used;
}

static void handle(struct request *req)
{
    struct connection *c = req->connection;
    c->receiving = false;
    ring_leave(&c->due.ring);
    if (req->answered)
        return;
    if (req->server->closed)
        request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
    else
        route_request(req);
}

/* Take what has come. False: there is no more for now. */
static bool receive(struct connection *c)
{
    size_t n, used = 0;
    const char *text = c->listener->server->room;
    if (!connection_receive(c, &n)) {
        if (c->ended)
            connection_close(c);
        return false;
    }
    if (!c->req)
        used = take_head(c, text, n);
    if (c->req && !c->req->answered)
        used += take_body(c->req, text + used, n - used);
    bool whole = c->req && (c->req->arrived || c->req->answered);
    connection_keep(c, text + used, c->closing ? 0 : n - used, !whole);
    if (whole)
        handle(c->req);
    return whole || c->broken || c->readable || c->ended;
}

/* ---- going on ------------------------------------------------------------------------------- */

/* It was answered: the next one, or none. */
static void finish(struct connection *c)
{
    request_end(c->req);
    if (c->closing)
        connection_finish(c);
    else
        connection_due(c, &c->listener->server->idle, IDLE_MS);
}

/* One step. False: something must happen before the next. */
static bool go_on(struct connection *c)
{
    struct request *req = c->req;
    if (!connection_flush(c))
        return false;
    if (c->lingering) {
        connection_linger(c);
        return false;
    }
    if (req && req->answered) {
        if (!answer_send(req))
            return false;
        finish(c);
        return true;
    }
    bool with_a_lane = req && req->arrived; /* or it waits */
    return !with_a_lane && receive(c);
}

static void advance(struct connection *c)
{
    int n = 0;
    while (!c->broken && !(c->req && c->req->left) && go_on(c) && ++n < AT_ONCE)
        continue;
    if (c->broken || (c->req && c->req->left))
        connection_close(c);
    else if (n == AT_ONCE)
        connection_ready(c);
}

void http_run(struct server *server)
{
    for (int n = 0; n < READY_AT_ONCE && !ring_is_empty(&server->ready); n++) {
        struct ring *first = server->ready.next;
        ring_leave(first);
        advance((struct connection *)((char *)first - offsetof(struct connection, ready)));
    }
}

void http_give_up(struct server *server)
{
    for (struct ring *at = server->requests.next; at != &server->requests; at = at->next) {
        struct request *req = (struct request *)at;
        if (req->arrived && !req->answered)
            request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
    }
}

/* ---- lanes ---------------------------------------------------------------------------------- */

void request_ask(struct request *req, enum lane_name lane, job_done_fn *done)
{
    req->job.done = done;
    req->working = true;
    lane_put(req->server->lanes, lane, &req->job);
}

struct request *request_back(struct job *job)
{
    struct request *req = request_of(job);
    req->working = false;
    if (!req->gone)
        return req;
    request_free(req);
    return NULL;
}

/* ---- clients that wait ---------------------------------------------------------------------- */

void request_watch_client(struct request *req)
{
    req->watched = true;
    if (!req->connection->peer_left)
        return;
    req->left = true;
    connection_ready(req->connection);
}

void request_unwatch_client(struct request *req) { req->watched = false; }

/* ---- headers and queries -------------------------------------------------------------------- */

const char *request_header(const struct request *req, const char *wanted)
{
    const char *at = req->head.fields, *name, *value;
    while (head_next_field(&at, &name, &value))
        if (strcasecmp(name, wanted) == 0)
            return value;
    return NULL;
}

bool query_next(const char **at, struct query_part *ret)
{
    const char *part = *at;
    if (!part || !*part)
        return false;
    size_t n = strcspn(part, "&");
    const char *equals = memchr(part, '=', n);
    *ret = (struct query_part){.name = part, .n_name = equals ? (size_t)(equals - part) : n};
    if (equals) {
        ret->value = equals + 1;
        ret->n_value = n - ret->n_name - 1;
    }
    *at = part + n + (part[n] == '&');
    return true;
}

static bool find_query(const struct request *req, const char *name, struct query_part *ret)
{
    const char *at = req->head.query;
    while (query_next(&at, ret))
        if (ret->n_name == strlen(name) && memcmp(ret->name, name, ret->n_name) == 0)
            return true;
    return false;
}

bool request_has_query(const struct request *req, const char *name)
{
    struct query_part part;
    return find_query(req, name, &part);
}

const char *request_query(const struct request *req, const char *name, char *room, size_t size)
{
    struct query_part part;
    if (!find_query(req, name, &part) || !part.value)
        return NULL;
    return decode_query(part.value, part.n_value, room, size) ? room : NULL;
}
