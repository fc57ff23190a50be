/* What happened: pages, and a stream (server-sent events) that goes on as it happens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "error.h"
#include "server.h"
#include "text.h"
#include "wire.h"

enum {
    LOOK_MS = 250,     /* how often the store is asked for new events */
    PING_MS = 15000,   /* a comment keeps proxies from closing a quiet stream */
    STREAM_PAGE = 256, /* events that one look takes at most */
    STREAM_MAX = 1 << 20
};

/* Which events, as far as they are read; written as an array, or as lines of a stream. */
struct query {
    char name[HF_NAME_MAX + 1], prefix[HF_NAME_MAX + 1];
    int64_t after, since_ms, newest, limit, n; /* newest: only so many, 0: all */
    bool as_stream, more;
    struct hf_buf out;
};

static int add_event(void *arg, const struct hf_event *event)
{
    struct query *q = arg;
    if (q->n == q->limit) {
        q->more = true;
        return 1;
    }
    q->after = event->seq;
    if (strncmp(event->name, q->prefix, strlen(q->prefix)) != 0)
        return 0;
    if (q->as_stream)
        hf_buf_printf(&q->out, "id: %lld\nevent: %s\ndata: ", (long long)event->seq,
                      hf_event_kind_name(event->kind));
    else if (q->n)
        hf_buf_putc(&q->out, ',');
    hf_wire_event(&q->out, event);
    if (q->as_stream)
        hf_buf_puts(&q->out, "\n\n");
    q->n++;
    return 0;
}

static int read_events(struct query *q, struct hf *hf, struct hf_error *err)
{
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    query.name = q->name[0] ? q->name : NULL;
    query.after_seq = q->after;
    query.since_ms = q->since_ms;
    query.limit = q->newest;
    q->n = 0;
    q->more = false;
    return hf_events(hf, &query, add_event, q, err);
}

/* A token's prefix goes for events as well. False: answered. */
static bool take_query(struct request *req, struct query *q)
{
    struct hf_error err;
    snprintf(q->prefix, sizeof q->prefix, "%s", req->may.prefix);
    if (!query_int(req, "after", 0, INT64_MAX, 0, &q->after))
        return false;
    if (!request_has_query(req, "name"))
        return true;
    if (!request_query(req, "name", q->name, sizeof q->name) || hf_check_name(q->name, &err) < 0) {
        request_problem(req, HF_INVALID, "the parameter name is not a lock's name", NULL);
        return false;
    }
    return true;
}

/* ---- pages ---------------------------------------------------------------------------------- */

static void page_forget(struct request *req)
{
    struct query *q = req->context;
    if (req->working || !q)
        return;
    hf_buf_clear(&q->out);
    free(q);
    req->context = NULL;
}

static int page_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    return read_events(request_of(job)->context, hf, err);
}

static void page_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct request *req = request_of(job);
    struct query *q = req->context;
    (void)answer;
    if (!req->gone && code >= 0) {
        hf_buf_puts(&req->answer, "{\"items\":[");
        hf_buf_add(&req->answer, q->out.data, q->out.len);
        hf_buf_puts(&req->answer, "],\"nextCursor\":");
        hf_buf_printf(&req->answer, q->more ? "\"%lld\"}" : "null}", (long long)q->after);
    }
    req->working = false;
    page_forget(req);
    if (!(req = request_back(job)))
        return;
    if (code < 0)
        request_problem(req, -code, err->message, NULL);
    else
        request_answer(req, 200);
}

void get_events(struct request *req)
{
    struct query *q = req->context = calloc(1, sizeof *q);
    req->forget = page_forget;
    if (!q) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    q->out.cap = ANSWER_MAX;
    if (!take_query(req, q) || !query_int(req, "limit", 1, PAGE_MAX, PAGE_DEFAULT, &q->limit) ||
        !query_int(req, "since", 0, INT64_MAX, 0, &q->since_ms) ||
        !query_int(req, "newest", 0, INT64_MAX, 0, &q->newest))
        return;
    req->job.work = page_work;
    request_ask(req, LANE_CHORE, page_done);
}

/* ---- streams -------------------------------------------------------------------------------- */

struct stream {
    struct job job; /* first: looks for new events */
    struct stream *prev, *next;
    struct server *server;
    struct request *req; /* NULL: the client has gone */
    struct query query;
    struct hf_buf ready; /* to be sent, from `sent` on */
    size_t sent;
    int64_t look_ms, ping_ms;
    bool looking, ended, over; /* over: the answer that owns it is no more */
};

struct streams {
    struct stream first; /* the head of the list */
};

static void stream_free(struct stream *s)
{
    s->prev->next = s->next;
    s->next->prev = s->prev;
    hf_buf_clear(&s->query.out);
    hf_buf_clear(&s->ready);
    free(s);
}

/* Nobody will read it any more; a look may be under way still. */
static void stream_gone(void *arg)
{
    struct stream *s = arg;
    s->over = true;
    if (!s->looking)
        stream_free(s);
}

static void stream_forget(struct request *req)
{
    struct stream *s = req->context;
    req->context = NULL;
    if (s)
        s->req = NULL;
}

static ssize_t stream_read(void *arg, char *to, size_t size)
{
    struct stream *s = arg;
    size_t left = s->ready.len - s->sent;
    if (left) {
        size_t n = left < size ? left : size;
        memcpy(to, s->ready.data + s->sent, n);
        s->sent += n;
        return (ssize_t)n;
    }
    return s->ended || !s->req ? STREAM_END : 0;
}

static void send_text(struct stream *s, struct hf_buf *text)
{
    hf_buf_clear(&s->ready);
    s->ready = *text;
    s->sent = 0;
    *text = (struct hf_buf)HF_BUF(STREAM_MAX);
    s->ping_ms = now_ms() + PING_MS;
    request_resume(s->req);
}

static int look_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    return read_events(&((struct stream *)job)->query, hf, err);
}

static void look_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct stream *s = (struct stream *)job;
    (void)answer, (void)err;
    s->looking = false;
    if (s->over) {
        stream_free(s);
        return;
    }
    if (!s->req)
        return;
    s->look_ms = now_ms() + (code >= 0 && s->query.more ? 0 : LOOK_MS);
    if (s->query.out.len)
        send_text(s, &s->query.out);
}

static void look(struct stream *s)
{
    s->looking = true;
    s->job = (struct job){.work = look_work, .done = look_done};
    lane_put(s->server->lanes, LANE_CHORE, &s->job);
}

int64_t streams_tick(struct server *server, int64_t at_ms)
{
    struct stream *head = &server->streams->first;
    int64_t next_ms = INT64_MAX;
    for (struct stream *s = head->next; s != head; s = s->next) {
        bool idle = s->req && !s->looking && s->sent == s->ready.len;
        if (idle && s->look_ms <= at_ms)
            look(s);
        else if (idle && s->ping_ms <= at_ms) {
            struct hf_buf ping = HF_BUF(64);
            hf_buf_puts(&ping, ": still here\n\n");
            send_text(s, &ping);
        }
        if (idle && !s->looking && s->look_ms < next_ms)
            next_ms = s->look_ms;
        else if (s->req && !s->looking && at_ms + LOOK_MS < next_ms)
            next_ms = at_ms + LOOK_MS; /* its client reads slowly */
    }
    return next_ms;
}

void streams_drain(struct server *server)
{
    struct stream *head = &server->streams->first;
    for (struct stream *s = head->next; s != head; s = s->next) {
        s->ended = true;
        if (s->req)
            request_resume(s->req);
    }
}

void get_stream(struct request *req)
{
    struct stream *s = calloc(1, sizeof *s), *head = &req->server->streams->first;
    if (!s) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    s->query.out.cap = STREAM_MAX;
    s->query.as_stream = true;
    s->query.limit = STREAM_PAGE;
    if (!take_query(req, &s->query)) {
        free(s);
        return;
    }
    if (req->header.last_event_id)
        s->query.after = strtoll(req->header.last_event_id, NULL, 10);
    s->server = req->server;
    s->req = req;
    s->ended = req->server->draining; /* those that are there have been told */
    req->context = s;
    req->forget = stream_forget;
    s->ping_ms = now_ms() + PING_MS;
    s->next = head->next;
    s->prev = head;
    s->next->prev = s;
    head->next = s;
    req->cache_control = "no-store";
    request_stream(req, &(struct stream_source){stream_read, stream_gone, s});
    req->server->again = true;
}

int streams_open(struct server *server, struct hf_error *err)
{
    server->streams = calloc(1, sizeof *server->streams);
    if (!server->streams)
        return hf_fail(err, HF_NOMEM, "out of memory");
    server->streams->first.next = server->streams->first.prev = &server->streams->first;
    return 0;
}

void streams_close(struct server *server)
{
    free(server->streams);
    server->streams = NULL;
}
