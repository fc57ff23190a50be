/*
 * Acquiring, and those who wait. A wait is a row in the store's queue and an entry here: no thread,
 * no descriptor beside its connection. It asks again, together with all others whose time has come,
 * when the store names it (hf_watch), when the holder's lease runs out, and now and then, which
 * keeps its place. A client that leaves is withdrawn.
 *
 *     waits_begin -> ask -> granted: answered
 *                     ^ |-> queued: sleeps until woken or due, then asks again
 *                     | '-> refused, or its time is over: answered
 *                     '-- the client left while it was asked for: what came is given back
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "error.h"
#include "id.h"
#include "locks.h"
#include "waiting.h"

enum {
    POLL_MS =
        8000, /* how often a place is kept, jittered down to half; the store forgets after 20 s */
    BLIND_MS = 250,    /* where the store can't wake: so often, and ... */
    BLIND_EACH_MS = 1, /* ... so much more rarely for each one that waits */
    LOOK_MAX = 8,      /* so many look when a lease runs out: the others are behind them */
    N_BUCKETS = 4096
};

struct wait {
    struct job job; /* first: a job is its wait */
    struct woken woken;
    struct server *server;
    struct request *req; /* NULL: nobody is interested any more */
    struct wait *next;   /* in its bucket */
    int64_t until_ms, due_ms, began_us;
    size_t heap_at; /* 0: not in the heap */
    bool asking, again, watched, queued, waited, own_token;
    bool asked_twice; /* since whoever was ahead was found dead after the first answer */
    char token[HF_UUID_LEN + 1];
    char texts[]; /* name, owner, note */
};

struct waits {
    struct wait **heap; /* by due_ms, from index 1 */
    size_t n_heap, size;
    struct wait *buckets[N_BUCKETS]; /* by token: two requests with one are one wait */
    size_t n;
    uint32_t random;
};

static void ask(struct wait *w);
static void wake(struct woken *woken);

/* ---- when each is due ----------------------------------------------------------------------- */

static void heap_set(struct waits *t, size_t at, struct wait *w)
{
    t->heap[at] = w;
    w->heap_at = at;
}

static void heap_rise(struct waits *t, size_t at)
{
    struct wait *w = t->heap[at];
    for (; at > 1 && t->heap[at / 2]->due_ms > w->due_ms; at /= 2)
        heap_set(t, at, t->heap[at / 2]);
    heap_set(t, at, w);
}

static void heap_sink(struct waits *t, size_t at)
{
    struct wait *w = t->heap[at];
    for (size_t child; (child = 2 * at) <= t->n_heap; at = child) {
        if (child < t->n_heap && t->heap[child + 1]->due_ms < t->heap[child]->due_ms)
            child++;
        if (t->heap[child]->due_ms >= w->due_ms)
            break;
        heap_set(t, at, t->heap[child]);
    }
    heap_set(t, at, w);
}

static void heap_leave(struct waits *t, struct wait *w)
{
    size_t at = w->heap_at;
    if (!at)
        return;
    w->heap_at = 0;
    struct wait *last = t->heap[t->n_heap--];
    if (last == w)
        return;
    heap_set(t, at, last);
    heap_rise(t, at);
    heap_sink(t, last->heap_at);
}

static bool heap_enter(struct waits *t, struct wait *w, int64_t due_ms)
{
    heap_leave(t, w);
    if (t->n_heap + 2 > t->size) {
        size_t size = t->size ? 2 * t->size : 256;
        struct wait **heap = realloc(t->heap, size * sizeof(struct wait *));
        if (!heap)
            return false;
        t->heap = heap;
        t->size = size;
    }
    w->due_ms = due_ms;
    heap_set(t, ++t->n_heap, w);
    heap_rise(t, t->n_heap);
    return true;
}

/* ---- by token ------------------------------------------------------------------------------- */

static struct wait **bucket(struct waits *t, const char *token)
{
    unsigned hash = 5381;
    for (; *token; token++)
        hash = hash * 33 + (unsigned char)*token;
    return &t->buckets[hash % N_BUCKETS];
}

static void list_enter(struct waits *t, struct wait *w)
{
    struct wait **at = bucket(t, w->token);
    w->next = *at;
    *at = w;
    t->n++;
}

static void list_leave(struct waits *t, struct wait *w)
{
    struct wait **at = bucket(t, w->token);
    while (*at && *at != w)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = w->next;
    t->n--;
}

/* ---- ending --------------------------------------------------------------------------------- */

/* Another wait with the same token that somebody is interested in, or NULL. */
static struct wait *other_with_token(const struct wait *w)
{
    struct wait *other = *bucket(w->server->waits, w->token);
    while (other && (other == w || !other->req || strcmp(other->token, w->token) != 0))
        other = other->next;
    return other;
}

static void wait_free(struct wait *w)
{
    struct waits *t = w->server->waits;
    heap_leave(t, w);
    if (w->watched)
        hf_watch_remove(w->server->watch, w->token, &w->woken);
    list_leave(t, w);
    free(w);
}

static void withdraw_done(struct job *job, int code, const struct hf_answer *answer,
                          const struct hf_error *err)
{
    struct wait *w = (struct wait *)job;
    (void)answer, (void)err;
    if (code < 0)
        metrics_store_error(w->server, HF_OP_WITHDRAW);
    wait_free(w);
}

/* Leave the queue and give back what came meanwhile, unless another request has the same token. */
static void withdraw(struct wait *w)
{
    heap_leave(w->server->waits, w);
    if (!w->queued || other_with_token(w)) {
        wait_free(w);
        return;
    }
    w->job.ask = (struct hf_request){
        .op = HF_OP_WITHDRAW, .name = w->texts, .token = w->token, .durable = true};
    w->job.watch = NULL;
    w->job.done = withdraw_done;
    lane_put(w->server->lanes, LANE_WRITE, &w->job);
}

/* The client is not interested any more: it left, or was told something else. */
static void let_go(struct request *req)
{
    struct wait *w = req->context;
    if (!w)
        return;
    req->context = NULL;
    w->req = NULL;
    if (!w->asking) /* else when its answer has come */
        withdraw(w);
}

/* The answer was given: nothing is left to withdraw. */
static struct request *part(struct wait *w)
{
    struct request *req = w->req;
    if (w->waited)
        metrics_observe(w->server, H_WAIT, now_us() - w->began_us);
    req->context = NULL;
    w->queued = false;
    w->req = NULL;
    withdraw(w);
    return req;
}

/* The service stops: who knows the token keeps the place in the queue, and asks elsewhere. */
static void send_away(struct wait *w)
{
    struct request *req = w->req;
    req->context = NULL;
    w->req = NULL;
    w->queued &= w->own_token;
    withdraw(w);
    request_problem(req, HF_CANCELLED,
                    "the service is stopping; ask again, with the same token to keep your place",
                    NULL);
}

/* ---- asking --------------------------------------------------------------------------------- */

static int64_t jittered(struct waits *t, int64_t ms)
{
    t->random = t->random * 1664525 + 1013904223;
    return ms / 2 + (int64_t)((t->random >> 8) % (uint32_t)(ms / 2 + 1));
}

/* Sleep until the answer may be another one without anybody telling us. */
static void sleep_on(struct wait *w, const struct hf_answer *answer)
{
    struct waits *t = w->server->waits;
    int64_t at_ms = now_ms();
    int64_t in_ms = w->watched ? jittered(t, POLL_MS)
                               : jittered(t, 2 * (BLIND_MS + BLIND_EACH_MS * (int64_t)t->n));
    if (in_ms > POLL_MS)
        in_ms = POLL_MS;
    int64_t looks_in_ms = hf_waiter_looks_in_ms(answer);
    if (answer->ahead < LOOK_MAX && looks_in_ms < in_ms)
        in_ms = looks_in_ms;
    if (hf_waiter_asks_at_once(&w->asked_twice, answer, w->job.dead_ahead))
        in_ms = 1;
    if (in_ms > w->until_ms - at_ms)
        in_ms = w->until_ms - at_ms;
    if (!heap_enter(t, w, at_ms + (in_ms > 0 ? in_ms : 0)))
        request_problem(part(w), HF_NOMEM, "out of memory", NULL);
}

/* From now on the store may wake it; it may have done so just before, so it is asked once more. */
static bool begin_watching(struct wait *w)
{
    struct hf_error err;
    w->waited = true;
    if (!w->server->watch || hf_watch_add(w->server->watch, w->token, &w->woken, &err) < 0)
        return false;
    w->watched = true;
    w->job.watch = w->server->watch;
    request_watch_client(w->req);
    return true;
}

static void queued(struct wait *w, const struct hf_answer *answer)
{
    w->queued = true;
    if (!w->req)
        withdraw(w);
    else if (w->server->draining)
        send_away(w);
    else if (!w->waited && begin_watching(w))
        ask(w);
    else if (w->again)
        ask(w);
    else {
        request_watch_client(w->req);
        sleep_on(w, answer);
    }
}

/* It slept through an offer, and its token is spent: back to the end of the queue with a new one. */
static void start_again(struct wait *w)
{
    if (w->watched)
        hf_watch_remove(w->server->watch, w->token, &w->woken);
    list_leave(w->server->waits, w);
    w->watched = w->waited = w->queued = false;
    w->job.watch = NULL;
    hf_token(w->token);
    list_enter(w->server->waits, w);
    ask(w);
}

static void ask_done(struct job *job, int code, const struct hf_answer *answer,
                     const struct hf_error *err)
{
    struct wait *w = (struct wait *)job;
    w->asking = false;
    if (code >= 0 && answer->code == -HF_HELD && answer->queued) {
        queued(w, answer);
        return;
    }
    if (!w->req) { /* the client left meanwhile: what came is given back */
        w->queued |= code < 0 || answer->code == 0;
        withdraw(w);
        return;
    }
    if (code >= 0 && answer->code == -HF_LOST && w->own_token && w->waited) {
        start_again(w);
        return;
    }
    bool granted = code >= 0 && answer->code == 0;
    int64_t began_us = w->began_us;
    struct hf_request asked = w->job.ask;
    struct server *server = w->server;
    char name[HF_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", w->texts);
    asked.name = name;
    struct request *req = part(w);
    if (code < 0) {
        metrics_store_error(server, HF_OP_ACQUIRE);
        request_problem(req, -code, err->message, NULL);
    } else if (!granted)
        answer_refusal(req, &asked, answer);
    else {
        metrics_observe(server, H_ACQUIRE, now_us() - began_us);
        answer_lease(req, &answer->lease, true);
    }
}

static void ask(struct wait *w)
{
    int64_t left_ms = w->until_ms - now_ms();
    w->job.ask.wait_ms = left_ms > 0 ? left_ms : 0;
    w->job.done = ask_done;
    w->asking = true;
    w->again = false;
    heap_leave(w->server->waits, w);
    lane_put(w->server->lanes, LANE_WRITE, &w->job);
}

/* ---- beginning ------------------------------------------------------------------------------ */

static char *put_text(char **to, const char *text)
{
    size_t n = strlen(text) + 1;
    char *at = memcpy(*to, text, n);
    *to += n;
    return at;
}

static struct wait *wait_new(struct request *req, const struct fields *f)
{
    char client[64] = "";
    if (!f->owner)
        describe_client(req, client, sizeof client);
    const char *owner = f->owner ? f->owner : client, *note = f->note ? f->note : "";
    struct wait *w = calloc(1, sizeof *w + strlen(req->name) + strlen(owner) + strlen(note) + 3);
    if (!w)
        return NULL;
    char *to = w->texts;
    w->woken.wake = wake;
    w->server = req->server;
    w->req = req;
    w->began_us = req->received_us;
    w->own_token = !f->token;
    if (f->token)
        memcpy(w->token, f->token, sizeof w->token);
    else
        hf_token(w->token);
    w->until_ms = now_ms() + (f->wait_ms > 0 ? f->wait_ms : 0);
    w->job.ask = (struct hf_request){.op = HF_OP_ACQUIRE,
                                     .token = w->token,
                                     .ttl_ms = f->ttl_ms > 0 ? f->ttl_ms : HF_TTL_DEFAULT_MS,
                                     .priority = (int32_t)f->priority,
                                     .durable = true};
    w->job.ask.name = put_text(&to, req->name);
    w->job.ask.owner = put_text(&to, owner);
    w->job.ask.note = put_text(&to, note);
    return w;
}

/* The same token again is the same acquire: who asks later is who wants the answer. */
static void supersede(const struct wait *w)
{
    struct wait *other = other_with_token(w);
    if (!other)
        return;
    struct request *req = other->req;
    let_go(req);
    metrics_raced(req->server);
    request_problem(req, HF_RACED, "another request with the same token waits now", NULL);
}

void waits_begin(struct request *req, const struct fields *fields)
{
    struct wait *w = wait_new(req, fields);
    if (!w) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    list_enter(req->server->waits, w);
    if (fields->token)
        supersede(w);
    req->context = w;
    req->forget = let_go;
    ask(w);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static void wake(struct woken *woken)
{
    struct wait *w = (struct wait *)((char *)woken - offsetof(struct wait, woken));
    if (w->asking)
        w->again = true;
    else if (w->req)
        ask(w);
}

void waits_woken(struct server *server)
{
    for (struct woken *woken; (woken = hf_watch_next(server->watch));)
        woken->wake(woken);
}

int64_t waits_tick(struct server *server, int64_t at_ms)
{
    struct waits *t = server->waits;
    while (t->n_heap && t->heap[1]->due_ms <= at_ms)
        ask(t->heap[1]);
    return t->n_heap ? t->heap[1]->due_ms : INT64_MAX;
}

void waits_drain(struct server *server)
{
    struct waits *t = server->waits;
    for (size_t n = t->n_heap; n > 0; n--) { /* from the end: nobody else moves */
        struct wait *w = t->heap[n];
        heap_leave(t, w);
        send_away(w);
    }
}

size_t waits_count(const struct server *server) { return server->waits->n; }

int waits_open(struct server *server, struct hf_error *err)
{
    server->waits = calloc(1, sizeof *server->waits);
    if (!server->waits)
        return hf_set_error(err, HF_NOMEM, "out of memory");
    hf_random(&server->waits->random, sizeof server->waits->random);
    int r = hf_watch_open(lanes_handle(server->lanes, LANE_WRITE), &server->watch, err);
    return r == -HF_UNSUPPORTED ? 0 : r;
}

void waits_close(struct server *server)
{
    if (!server->waits)
        return;
    free(server->waits->heap);
    free(server->waits);
    server->waits = NULL;
}
