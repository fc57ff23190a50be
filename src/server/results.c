#include "results.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "execution.h"
#include "executions.h"

enum {
    LOOK_MS = 100,  /* how often new events are looked for */
    SURE_MS = 3000, /* how often each one is looked at, whatever the events say */
    IDS_MAX = 1024, /* executions that one look at the events may name */
    N_BUCKETS = 1024,
    OUTPUT_JSON_MAX = ANSWER_MAX / 2
};

struct results {
    struct job job; /* first: reads events */
    struct server *server;
    struct result buckets[N_BUCKETS]; /* heads of lists, by the execution's id */
    size_t n;
    int64_t next_ms, after; /* the last event that was seen */
    bool reading, primed;   /* primed: `after` is of a moment when somebody waited already */
    bool priming;           /* of the look that is under way */
    char ids[IDS_MAX][HF_UUID_LEN + 1];
    size_t n_ids;
};

static struct result *bucket(struct results *t, const char *id)
{
    unsigned hash = 5381;
    for (; *id; id++)
        hash = hash * 33 + (unsigned char)*id;
    return &t->buckets[hash % N_BUCKETS];
}

void results_leave(struct result *r)
{
    if (!r->next)
        return;
    r->prev->next = r->next;
    r->next->prev = r->prev;
    r->prev = r->next = NULL;
    r->req->server->results->n--;
}

static void finish(struct result *r)
{
    results_leave(r);
    request_unwatch_client(r->req);
    r->done(r);
}

/* ---- looking at one ------------------------------------------------------------------------- */

/* The one that a request's job looks at: the request's context begins with it. */
static struct result *result_of(struct job *job)
{
    struct request *req = request_of(job);
    return req->context;
}

static int look_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct result *r = result_of(job);
    int code = hf_execution_of(hf, r->x.id, &r->seen, err);
    if (code >= 0 && hf_execution_is_over(&r->seen))
        code = execution_write_output(hf, r->seen.id, &r->output, err);
    return code;
}

static void look(struct result *r);

/* A store that fails is asked again until the time is over. */
static void look_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct result *r = result_of(job);
    (void)answer, (void)err;
    r->looking = false;
    if (code >= 0)
        r->x = r->seen;
    else {
        hf_buf_clear(&r->output);
        r->output = (struct hf_buf)HF_BUF(OUTPUT_JSON_MAX);
    }
    struct request *req = request_back(job);
    if (!req || !r->next) /* the client has left, or is about to */
        return;
    if (hf_execution_is_over(&r->x) || now_ms() >= r->until_ms || req->server->draining)
        finish(r);
    else if (r->again)
        look(r);
}

static void look(struct result *r)
{
    r->looking = true;
    r->again = false;
    r->look_ms = now_ms() + SURE_MS;
    r->req->job = (struct job){.work = look_work};
    request_ask(r->req, LANE_CHORE, look_done);
}

static void look_again(struct result *r)
{
    if (r->looking)
        r->again = true;
    else
        look(r);
}

/* ---- the events ----------------------------------------------------------------------------- */

static int see_event(void *arg, const struct hf_event *event)
{
    struct results *t = arg;
    if (t->n_ids == IDS_MAX)
        return 1;
    t->after = event->seq;
    if (event->execution_id[0] && event->kind != HF_EV_STARTED && event->kind != HF_EV_EXTENDED)
        memcpy(t->ids[t->n_ids++], event->execution_id, HF_UUID_LEN + 1);
    return 0;
}

/* At first only which event is the last one. */
static int events_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct results *t = (struct results *)job;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    query.after_seq = t->after;
    query.limit = t->priming ? 1 : 0;
    t->n_ids = 0;
    return hf_events(hf, &query, see_event, t, err);
}

static void look_at_named(struct results *t, const char *id)
{
    struct result *head = bucket(t, id);
    for (struct result *r = head->next, *next; r != head; r = next) {
        next = r->next;
        if (strcmp(r->x.id, id) == 0)
            look_again(r);
    }
}

static void look_at_all(struct results *t)
{
    for (size_t i = 0; i < N_BUCKETS; i++)
        for (struct result *r = t->buckets[i].next; r != &t->buckets[i]; r = r->next)
            look_again(r);
}

static void events_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct results *t = (struct results *)job;
    (void)answer, (void)err;
    t->reading = false;
    if (code < 0)
        return;
    if (t->priming)
        look_at_all(t); /* what ended before that event, but after it was looked at */
    for (size_t i = 0; i < t->n_ids && !t->priming; i++)
        look_at_named(t, t->ids[i]);
    t->primed |= t->priming;
    if (t->n_ids == IDS_MAX)
        t->next_ms = 0;
}

static void read_events(struct results *t)
{
    t->reading = true;
    t->priming = !t->primed;
    t->job = (struct job){.work = events_work, .done = events_done};
    lane_put(t->server->lanes, LANE_CHORE, &t->job);
}

/* ---- all of them ---------------------------------------------------------------------------- */

void results_begin(struct result *r, struct request *req, const struct hf_execution *x,
                   int64_t wait_ms, void (*done)(struct result *result))
{
    struct results *t = req->server->results;
    struct result *head = bucket(t, x->id);
    r->req = req;
    r->x = *x;
    r->output = (struct hf_buf)HF_BUF(OUTPUT_JSON_MAX);
    r->until_ms = req->server->draining ? 0 : now_ms() + wait_ms;
    r->done = done;
    r->next = head->next;
    r->prev = head;
    r->next->prev = r;
    head->next = r;
    if (!t->n++)
        t->primed = false; /* what happened since the last one waited is of no interest */
    request_watch_client(req);
    look(r);
    req->server->again = true;
}

int64_t results_tick(struct server *server, int64_t at_ms)
{
    struct results *t = server->results;
    if (!t->n)
        return INT64_MAX;
    if (at_ms < t->next_ms)
        return t->next_ms;
    t->next_ms = at_ms + LOOK_MS;
    if (!t->reading)
        read_events(t);
    for (size_t i = 0; i < N_BUCKETS; i++)
        for (struct result *r = t->buckets[i].next; r != &t->buckets[i]; r = r->next)
            if (!r->looking && (r->look_ms <= at_ms || r->until_ms <= at_ms))
                look(r);
    return t->next_ms;
}

/* What is known is the answer. */
void results_drain(struct server *server)
{
    struct results *t = server->results;
    for (size_t i = 0; i < N_BUCKETS; i++)
        for (struct result *r = t->buckets[i].next, *next; r != &t->buckets[i]; r = next) {
            next = r->next;
            r->until_ms = 0;
            if (!r->looking)
                finish(r);
        }
}

int results_open(struct server *server, struct hf_error *err)
{
    struct results *t = server->results = calloc(1, sizeof *t);
    if (!t)
        return hf_fail(err, HF_NOMEM, "out of memory");
    t->server = server;
    for (size_t i = 0; i < N_BUCKETS; i++)
        t->buckets[i].next = t->buckets[i].prev = &t->buckets[i];
    return 0;
}

void results_close(struct server *server)
{
    free(server->results);
    server->results = NULL;
}
