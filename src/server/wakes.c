/*
 * Streams for those who use this service as their store and ask by themselves (POST /v1/batch): a
 * line as soon as their waiter is watched, and one whenever it should ask again. A worker that has
 * such a stream sleeps among the store's workers under its own id, and is woken as they are.
 */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "executions.h"
#include "id.h"

struct waker {
    struct woken woken; /* first */
    struct waker *next; /* in its bucket */
    struct server *server;
    struct request *req; /* NULL: the client has gone */
    char id[HF_LOCK_ID_LEN + 1];
    bool told_ready, is_woken, ended;
    bool slept; /* it may stand among the store's sleepers */
};

static ssize_t waker_read(void *arg, char *to, size_t size)
{
    static const char ready[] = ": watching\n\n", woken[] = "event: woken\ndata: {}\n\n";
    struct waker *w = arg;
    const char *text = !w->told_ready ? ready : w->is_woken ? woken : NULL;
    if (w->ended || !w->req)
        return STREAM_END;
    if (text && strlen(text) <= size) {
        w->is_woken &= !w->told_ready;
        w->told_ready = true;
        memcpy(to, text, strlen(text));
        return (ssize_t)strlen(text);
    }
    return 0;
}

static struct waker **bucket_of(struct server *server, const char *id)
{
    unsigned hash = 5381;
    for (; *id; id++)
        hash = hash * 33 + (unsigned char)*id;
    return &server->wakers[hash % WAKER_BUCKETS];
}

static struct waker *first_of(struct server *server, const char *id)
{
    struct waker *w = *bucket_of(server, id);
    while (w && strcmp(w->id, id) != 0)
        w = w->next;
    return w;
}

static struct waker **link_to(const struct waker *w)
{
    struct waker **at = bucket_of(w->server, w->id);
    while (*at != w)
        at = &(*at)->next;
    return at;
}

/* ---- a worker's sleep ----------------------------------------------------------------------- */

struct sleep {
    struct execution_call call; /* first: freed as one */
    char id[HF_LOCK_ID_LEN + 1];
};

static int sleep_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct sleep *s = req->context;
    const char *workflows[WORKFLOWS_MAX];
    struct hf_claim_options wants = HF_CLAIM_INIT;
    int64_t next_ms;
    (void)hf;
    wants.workflows = workflows;
    wants.n_workflows = execution_workflows(s->call.fields.workflows, workflows);
    wants.verifies = s->call.fields.verifies;
    int r = hf_watch_idle(req->server->watch, s->id, &wants, &next_ms, err);
    if (r < 0)
        return r;
    int64_t in_ms = next_ms - hf_clock_wall_ms();
    if (next_ms)
        hf_buf_printf(&s->call.out, "{\"nextInMs\":%lld}", (long long)(in_ms > 0 ? in_ms : 0));
    else
        hf_buf_puts(&s->call.out, "{\"nextInMs\":null}");
    return 0;
}

static int awake_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct sleep *s = req->context;
    (void)hf, (void)err;
    hf_watch_awake(req->server->watch, s->id);
    hf_buf_puts(&s->call.out, "{\"awake\":true}");
    return 0;
}

static void sleep_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (req && code < 0)
        request_fail(req, err);
    else if (req)
        execution_answer_out(req, "application/json");
}

static bool take_id(struct request *req, char ret[HF_LOCK_ID_LEN + 1])
{
    struct hf_lock_id id;
    if (request_query(req, "id", ret, HF_LOCK_ID_LEN + 1) && hf_lock_id_parse(ret, &id))
        return true;
    request_problem(req, HF_INVALID, "the parameter id must be the 32 digits of a lock id", NULL);
    return false;
}

static struct sleep *sleep_new(struct request *req, uint64_t fields)
{
    struct sleep *s = calloc(1, sizeof *s);
    if (!s) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return NULL;
    }
    execution_call_init(req, &s->call);
    s->call.out.cap = 100;
    return take_id(req, s->id) && body_read(req, fields, &s->call.fields) ? s : NULL;
}

void post_idle(struct request *req)
{
    struct sleep *s = sleep_new(req, FIELD(WORKFLOWS) | FIELD(VERIFIES));
    if (!s || !execution_workflows_are_for(req, s->call.fields.workflows))
        return;
    struct waker *w = first_of(req->server, s->id);
    if (!w) {
        request_problem(req, HF_UNAVAILABLE,
                        "nobody reads GET /v1/executions/wakes with this id; ask for that first",
                        NULL);
        return;
    }
    w->slept = true;
    req->job = (struct job){.work = sleep_work};
    request_ask(req, LANE_READ, sleep_done);
}

void post_awake(struct request *req)
{
    struct sleep *s = sleep_new(req, 0);
    if (!s)
        return;
    if (!first_of(req->server, s->id)) {
        hf_buf_puts(&req->answer, "{\"awake\":true}");
        request_answer(req, 200);
        return;
    }
    req->job = (struct job){.work = awake_work};
    request_ask(req, LANE_READ, sleep_done);
}

/* ---- one that has left ---------------------------------------------------------------------- */

/* Whom the store must not wake any more: a wake-up that nobody hears is lost to the others. */
struct leave {
    struct job job; /* first */
    struct server *server;
    char id[HF_LOCK_ID_LEN + 1];
};

static int leave_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct leave *leave = (struct leave *)job;
    (void)hf, (void)err;
    hf_watch_awake(leave->server->watch, leave->id);
    return 0;
}

static void leave_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    (void)code, (void)answer, (void)err;
    free(job);
}

static void leave_sleepers(const struct waker *w)
{
    struct leave *leave = w->slept ? calloc(1, sizeof *leave) : NULL;
    if (!leave)
        return;
    leave->job = (struct job){.work = leave_work, .done = leave_done};
    leave->server = w->server;
    memcpy(leave->id, w->id, sizeof leave->id);
    lane_put(w->server->lanes, LANE_READ, &leave->job);
}

static void waker_free(void *arg)
{
    struct waker *w = arg;
    struct server *server = w->server;
    *link_to(w) = w->next;
    struct waker *other = first_of(server, w->id);
    if (other) { /* who asked for a new stream may close the old one only now */
        other->slept |= w->slept;
        hf_watch_add(server->watch, w->id, &other->woken, NULL);
    } else {
        hf_watch_remove(server->watch, w->id, &w->woken);
        leave_sleepers(w);
    }
    free(w);
}

static void waker_forget(struct request *req)
{
    struct waker *w = req->context;
    req->context = NULL;
    if (w)
        w->req = NULL;
}

/* All streams of that waiter: which of them is still read, nobody knows. */
static void wake(struct woken *woken)
{
    const struct waker *named = (struct waker *)woken;
    for (struct waker *w = *bucket_of(named->server, named->id); w; w = w->next) {
        if (strcmp(w->id, named->id) != 0)
            continue;
        w->is_woken = true;
        if (w->req)
            request_resume(w->req);
    }
}

void wakes_drain(struct server *server)
{
    for (int i = 0; i < WAKER_BUCKETS; i++)
        for (struct waker *w = server->wakers[i]; w; w = w->next) {
            w->ended = true;
            if (w->req)
                request_resume(w->req);
        }
}

/* Watched from here on; the answer that carries it owns it. */
static struct waker *waker_new(struct request *req, const char *id)
{
    struct server *server = req->server;
    struct waker *w = calloc(1, sizeof *w);
    if (!w || !server->watch || hf_watch_add(server->watch, id, &w->woken, NULL) < 0) {
        free(w);
        return NULL;
    }
    w->woken.wake = wake;
    w->server = server;
    w->req = req;
    w->ended = server->draining;
    req->context = w;
    req->forget = waker_forget;
    strcpy(w->id, id);
    struct waker **bucket = bucket_of(server, id);
    w->next = *bucket;
    *bucket = w;
    return w;
}

void get_wakes(struct request *req)
{
    char id[HF_LOCK_ID_LEN + 1];
    if (!take_id(req, id))
        return;
    struct waker *w = waker_new(req, id);
    if (!w) {
        request_problem(req, HF_UNSUPPORTED, "this store can't wake; ask from time to time", NULL);
        return;
    }
    request_stream(req, &(struct stream_source){waker_read, waker_free, w});
}
