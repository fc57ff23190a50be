/*
 * Workers that look for work, and wait for it:
 *
 *     post_claim -> hungry -> look -> asked -> marked as started -> inputs read -> answered
 *                     ^        |        '-> all were refused: look again
 *                     |        '-> nothing is due: idle
 *                     '-- something may be there, or it was time to look again
 *
 * All that are hungry at one moment share a look (LANE_READ), and what they ask for shares a commit
 * with everything else (LANE_WRITE). Two never ask for the same one. An idle worker is an entry in a
 * list: no thread, no descriptor beside its connection.
 */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "executions.h"
#include "id.h"
#include "locks.h"
#include "wire.h"

enum {
    POLL_MS = 1000,      /* how often the idle look again by themselves; jittered down to half */
    LOOK_MAX = 64,       /* workers that one look is for */
    FLIGHT_MAX = 1024,   /* executions that are being asked for */
    FOUND_MAX = 1024,    /* that one look at a store takes */
    INPUT_MAX = 1 << 20, /* of an execution, in the answer; else it is fetched by itself */
    INPUTS_MAX = 4 << 20 /* of all of them */
};

typedef char execution_id[HF_UUID_LEN + 1];

/* One that is being asked for. */
struct item {
    struct job job; /* first */
    struct claim *claim;
    execution_id id;
    char lock[HF_NAME_MAX + 1], token[HF_UUID_LEN + 1];
    bool got;
    struct hf_lease lease;
    struct hf_execution x;
};

/* A worker's request. */
struct claim {
    struct execution_call call; /* first */
    struct claim *next;         /* in the list of the hungry, or of the idle */
    struct hf_claim_options options;
    const char *workflows[WORKFLOWS_MAX];
    size_t max;
    struct item *items;
    size_t n_items, left; /* left: not yet answered */
    size_t refused;       /* those that stand before others and can't be had */
    int64_t until_ms;
    bool is_idle, marks; /* marks: what it claims is taken to be started */
    int code;            /* of the first that failed */
    struct hf_error err;
};

struct list {
    struct claim *first, **end;
};

struct claims {
    struct job job; /* first: the look */
    struct server *server;
    struct list hungry, idle;
    struct claim *lookers[LOOK_MAX];
    size_t n_lookers;
    bool looking;
    execution_id flight[FLIGHT_MAX]; /* being asked for, on our thread ... */
    size_t n_flight;
    execution_id taken[FLIGHT_MAX]; /* ... and as the look knows it, with what it has found */
    size_t n_taken;
    int64_t next_ms; /* when an idle one's time is over, or all are to look again */
    int64_t poll_ms;
    uint32_t random;
};

static void find_work(struct claims *t);

/* ---- lists ---------------------------------------------------------------------------------- */

static void list_init(struct list *l)
{
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct list *l, struct claim *c)
{
    c->next = NULL;
    *l->end = c;
    l->end = &c->next;
}

/* Take out the one that *at points to. */
static struct claim *list_take(struct list *l, struct claim **at)
{
    struct claim *c = *at;
    *at = c->next;
    if (!*at)
        l->end = at;
    return c;
}

/* ---- a worker's way ------------------------------------------------------------------------- */

static struct claim *claim_of(struct request *req) { return req->context; }

static void claim_clear(struct request *req)
{
    free(claim_of(req)->items);
    claim_of(req)->call.clear(req);
}

/* From here on it may be freed only by request_back(). */
static void become_hungry(struct claims *t, struct claim *c)
{
    c->call.req->working = true;
    list_add(&t->hungry, c);
}

/* The client has gone, or is answered. */
static void claim_forget(struct request *req)
{
    struct claims *t = req->server->claims;
    struct claim **at = &t->idle.first;
    if (!claim_of(req)->is_idle)
        return;
    while (*at != claim_of(req))
        at = &(*at)->next;
    list_take(&t->idle, at)->is_idle = false;
}

static void answer_none(struct request *req)
{
    hf_buf_puts(&req->answer, "{\"items\":[]}");
    request_answer(req, 200);
}

/* Nothing is there for it: it waits, if it wanted to. */
static void become_idle(struct claim *c)
{
    struct request *req = request_back(&c->call.req->job);
    if (!req)
        return;
    struct claims *t = req->server->claims;
    if (req->server->draining || c->until_ms <= now_ms()) {
        answer_none(req);
        return;
    }
    c->is_idle = true;
    list_add(&t->idle, c);
    if (c->until_ms < t->next_ms)
        t->next_ms = c->until_ms;
    request_watch_client(req);
}

/* ---- inputs, and the answer ----------------------------------------------------------------- */

static int keep_bytes(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    (void)skipped;
    hf_buf_add(arg, bytes, n);
    return 0;
}

/* {execution, lease, input}; a large input is null, and fetched by itself. */
static int write_item(struct hf *hf, const struct item *item, struct hf_buf *out, size_t *left,
                      struct hf_error *err)
{
    struct hf_buf input = HF_BUF(HF_INPUT_MAX);
    int r = hf_execution_data(hf, item->id, HF_DATA_INPUT, keep_bytes, &input, err);
    execution_write(out, &item->x, &item->lease);
    hf_wire_reopen(out, "inputSize");
    hf_buf_printf(out, "%zu,", input.len);
    if (input.len <= INPUT_MAX && input.len <= *left) {
        *left -= input.len;
        hf_wire_bytes(out, "input", input.data, input.len);
    } else
        hf_buf_puts(out, "\"input\":null,\"inputEncoding\":null");
    hf_buf_putc(out, '}');
    hf_buf_clear(&input);
    return r;
}

static int inputs_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = (struct request *)((char *)job - offsetof(struct request, job));
    struct claim *c = claim_of(req);
    struct hf_buf *out = &c->call.out;
    size_t left = INPUTS_MAX;
    bool first = true;
    int r = 0;
    out->cap = 8 * INPUTS_MAX;
    hf_buf_puts(out, "{\"items\":[");
    for (size_t i = 0; r >= 0 && i < c->n_items; i++) {
        if (!c->items[i].got)
            continue;
        if (!first)
            hf_buf_putc(out, ',');
        first = false;
        r = write_item(hf, &c->items[i], out, &left, err);
    }
    hf_buf_puts(out, "]}");
    return r;
}

static void inputs_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (!req)
        return;
    if (code < 0)
        request_fail(req, err);
    else
        execution_answer_out(req, "application/json");
}

/* ---- asking --------------------------------------------------------------------------------- */

static size_t count_got(const struct claim *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_items; i++)
        n += c->items[i].got;
    return n;
}

/* All answers are there, and what was to be marked is. */
static void go_on(struct claim *c)
{
    struct request *req = c->call.req;
    struct server *server = req->server;
    if (count_got(c) && !req->gone) {
        req->job = (struct job){.work = inputs_work};
        request_ask(req, LANE_READ, inputs_done);
    } else if (c->code < 0 || req->gone) {
        if ((req = request_back(&req->job)))
            request_fail(req, &c->err);
    } else { /* others were quicker: there may be more */
        become_hungry(server->claims, c);
        find_work(server->claims);
    }
}

static void keep_failure(struct item *item, int code, const struct hf_error *err)
{
    struct claim *c = item->claim;
    metrics_store_error(c->call.req->server, item->job.ask.op);
    item->got = false;
    if (c->code >= 0) {
        c->code = code;
        c->err = *err;
    }
}

static void give_up_done(struct job *job, int code, const struct hf_answer *answer,
                         const struct hf_error *err)
{
    struct item *item = (struct item *)job;
    (void)answer;
    if (code < 0)
        keep_failure(item, code, err);
    if (--item->claim->left == 0)
        go_on(item->claim);
}

/* Somebody wanted it to stop just now: it was not marked, and is over. */
static void give_up(struct item *item)
{
    item->got = false;
    item->job.done = give_up_done;
    item->job.ask = (struct hf_request){.op = HF_OP_RELEASE,
                                        .name = item->lock,
                                        .token = item->token,
                                        .execution_id = item->id,
                                        .outcome = HF_OUTCOME_ABORTED,
                                        .reason = "cancelled",
                                        .durable = true};
    lane_put(item->claim->call.req->server->lanes, LANE_WRITE, &item->job);
}

static void mark_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct item *item = (struct item *)job;
    if (code < 0)
        keep_failure(item, code, err);
    else if (answer->code < 0)
        item->got = false;
    else if (answer->lease.cancel_requested) {
        give_up(item);
        return;
    } else {
        item->lease = answer->lease;
        item->x = answer->execution;
    }
    if (--item->claim->left == 0)
        go_on(item->claim);
}

/* What was claimed and not yet told to anybody is PENDING again when its lease runs out. */
static void mark_all(struct claim *c)
{
    struct request *req = c->call.req;
    c->left = req->gone || !c->marks ? 0 : count_got(c);
    if (!c->left) {
        go_on(c);
        return;
    }
    for (size_t i = 0; i < c->n_items; i++) {
        struct item *item = &c->items[i];
        if (!item->got)
            continue;
        item->job.done = mark_done;
        item->job.ask = (struct hf_request){
            .op = HF_OP_EXTEND, .name = item->lock, .token = item->token, .spawned = true};
        lane_put(req->server->lanes, LANE_WRITE, &item->job);
    }
}

static void leave_flight(struct claims *t, const char *id)
{
    for (size_t i = 0; i < t->n_flight; i++)
        if (strcmp(t->flight[i], id) == 0) {
            memcpy(t->flight[i], t->flight[--t->n_flight], sizeof t->flight[i]);
            return;
        }
}

static void keep_item(struct item *item, const struct hf_answer *answer)
{
    struct request *req = item->claim->call.req;
    item->got = true;
    item->lease = answer->lease;
    item->x = answer->execution;
    executions_learn(req->server, &item->x);
    metrics_lease(req->server, &item->lease, true);
    metrics_execution_claimed(req->server, &item->x);
    if (!req->gone)
        announce_takeover(req, &item->lease);
}

static void ask_done(struct job *job, int code, const struct hf_answer *answer,
                     const struct hf_error *err)
{
    struct item *item = (struct item *)job;
    struct claim *c = item->claim;
    leave_flight(c->call.req->server->claims, item->id);
    if (code < 0)
        keep_failure(item, code, err);
    else if (answer->code == 0)
        keep_item(item, answer);
    else
        c->refused += answer->code == -HF_HELD;
    struct claims *t = c->call.req->server->claims;
    if (--c->left == 0)
        mark_all(c);
    find_work(t);
}

static void ask_all(struct claim *c)
{
    struct request *req = c->call.req;
    struct claims *t = req->server->claims;
    c->left = c->n_items;
    for (size_t i = 0; i < c->n_items; i++) {
        struct item *item = &c->items[i];
        memcpy(t->flight[t->n_flight++], item->id, sizeof item->id);
        hf_token(item->token);
        item->claim = c;
        item->job.done = ask_done;
        item->job.ask = (struct hf_request){.op = HF_OP_ACQUIRE,
                                            .name = item->lock,
                                            .token = item->token,
                                            .ttl_ms = c->options.ttl_ms,
                                            .owner = c->options.owner,
                                            .execution_id = item->id,
                                            .claim = true,
                                            .durable = true};
        lane_put(req->server->lanes, LANE_WRITE, &item->job);
    }
}

/* ---- looking -------------------------------------------------------------------------------- */

static bool is_taken(const struct claims *t, const char *id)
{
    for (size_t i = 0; i < t->n_taken; i++)
        if (strcmp(t->taken[i], id) == 0)
            return true;
    return false;
}

static bool same_filter(const struct claim *a, const struct claim *b)
{
    const struct hf_claim_options *x = &a->options, *y = &b->options;
    if (x->n_workflows != y->n_workflows || x->verifies != y->verifies || a->refused != b->refused)
        return false;
    for (size_t i = 0; i < x->n_workflows; i++)
        if (strcmp(x->workflows[i], y->workflows[i]) != 0)
            return false;
    return true;
}

/* One before it, that looks for the same, has got less than it wanted: there is nothing more. */
static bool is_in_vain(const struct claims *t, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (t->lookers[j]->n_items < t->lookers[j]->max &&
            same_filter(t->lookers[j], t->lookers[i]))
            return true;
    return false;
}

/* Take for this worker what nobody else is asking for. */
static int pick(struct claims *t, struct claim *c, const struct hf_execution *found, size_t n,
                struct hf_error *err)
{
    struct item *items = calloc(c->max, sizeof *items);
    if (!items)
        return hf_fail(err, HF_NOMEM, "out of memory");
    c->items = items;
    for (size_t i = 0; i < n && c->n_items < c->max && t->n_taken < FLIGHT_MAX; i++) {
        if (is_taken(t, found[i].id))
            continue;
        struct item *item = &items[c->n_items++];
        memcpy(item->id, found[i].id, sizeof item->id);
        memcpy(item->lock, found[i].lock, sizeof item->lock);
        memcpy(t->taken[t->n_taken++], found[i].id, sizeof item->id);
    }
    return 0;
}

/* For each of the lookers; on a lane's thread, which has them and `taken` meanwhile. */
static int look_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct claims *t = (struct claims *)job;
    struct hf_execution *found = calloc(FOUND_MAX, sizeof *found);
    int r = found ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < t->n_lookers; i++) {
        struct claim *c = t->lookers[i];
        size_t n = 0, most = c->max + t->n_taken;
        if (is_in_vain(t, i))
            continue;
        r = hf_due(hf, &c->options, c->refused, most < FOUND_MAX ? most : FOUND_MAX, found, &n,
                   err);
        if (r >= 0 && n)
            r = pick(t, c, found, n, err);
    }
    free(found);
    return r;
}

static void look_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct claims *t = (struct claims *)job;
    (void)answer;
    t->looking = false;
    for (size_t i = 0; i < t->n_lookers; i++) {
        struct claim *c = t->lookers[i];
        struct request *req;
        if (code < 0 || c->call.req->gone) {
            if ((req = request_back(&c->call.req->job)))
                request_fail(req, err);
        } else if (c->n_items)
            ask_all(c);
        else
            become_idle(c);
    }
    t->n_lookers = 0;
    find_work(t);
}

/* The service stops: nobody looks any more. */
static void drop_hungry(struct claims *t)
{
    struct request *req;
    while (t->hungry.first)
        if ((req = request_back(&list_take(&t->hungry, &t->hungry.first)->call.req->job)))
            request_problem(req, HF_UNAVAILABLE, "the service is stopping", NULL);
}

/* Let the hungry look, unless others are looking. */
static void find_work(struct claims *t)
{
    if (t->server->closed)
        drop_hungry(t);
    if (t->looking || t->n_flight + LOOK_MAX > FLIGHT_MAX)
        return;
    while (t->hungry.first && t->n_lookers < LOOK_MAX) {
        struct claim *c = list_take(&t->hungry, &t->hungry.first);
        free(c->items);
        c->items = NULL;
        c->n_items = 0;
        t->lookers[t->n_lookers++] = c;
    }
    if (!t->n_lookers)
        return;
    t->looking = true;
    t->n_taken = t->n_flight;
    memcpy(t->taken, t->flight, t->n_flight * sizeof t->flight[0]);
    t->job = (struct job){.work = look_work, .done = look_done};
    lane_put(t->server->lanes, LANE_READ, &t->job);
}

/* ---- those who wait ------------------------------------------------------------------------- */

static bool wants(const struct claim *c, const char *workflow)
{
    bool any = !workflow || !c->options.n_workflows;
    for (size_t i = 0; !any && i < c->options.n_workflows; i++)
        any = strcmp(c->options.workflows[i], workflow) == 0;
    return any;
}

static void wake(struct claims *t, struct claim **at)
{
    struct claim *c = list_take(&t->idle, at);
    c->is_idle = false;
    c->refused = 0;
    become_hungry(t, c);
}

void claims_nudge(struct server *server, const char *workflow)
{
    struct claims *t = server->claims;
    struct claim **at = &t->idle.first;
    while (*at && !wants(*at, workflow))
        at = &(*at)->next;
    if (!*at)
        return;
    wake(t, at);
    find_work(t);
}

static void send_away(struct claims *t, struct claim **at)
{
    struct claim *c = list_take(&t->idle, at);
    c->is_idle = false;
    answer_none(c->call.req);
}

int64_t claims_tick(struct server *server, int64_t at_ms)
{
    struct claims *t = server->claims;
    if (!t->idle.first)
        return INT64_MAX;
    if (at_ms < t->next_ms && at_ms < t->poll_ms)
        return t->next_ms < t->poll_ms ? t->next_ms : t->poll_ms;
    t->next_ms = INT64_MAX;
    for (struct claim **at = &t->idle.first; *at;) {
        if ((*at)->until_ms <= at_ms)
            send_away(t, at);
        else if (at_ms >= t->poll_ms)
            wake(t, at);
        else {
            if ((*at)->until_ms < t->next_ms)
                t->next_ms = (*at)->until_ms;
            at = &(*at)->next;
        }
    }
    if (at_ms >= t->poll_ms) {
        t->random = t->random * 1664525 + 1013904223;
        t->poll_ms = at_ms + POLL_MS / 2 + (t->random >> 8) % (POLL_MS / 2);
    }
    find_work(t);
    return t->idle.first && t->next_ms < t->poll_ms ? t->next_ms : t->poll_ms;
}

void claims_drain(struct server *server)
{
    while (server->claims->idle.first)
        send_away(server->claims, &server->claims->idle.first);
}

int claims_open(struct server *server, struct hf_error *err)
{
    struct claims *t = server->claims = calloc(1, sizeof *t);
    if (!t)
        return hf_fail(err, HF_NOMEM, "out of memory");
    t->server = server;
    list_init(&t->hungry);
    list_init(&t->idle);
    hf_random(&t->random, sizeof t->random);
    return 0;
}

void claims_close(struct server *server)
{
    free(server->claims);
    server->claims = NULL;
}

/* ---- the route ------------------------------------------------------------------------------ */

static void begin(struct request *req, struct claim *c)
{
    const struct fields *f = &c->call.fields;
    c->max = f->max ? (size_t)f->max : 1;
    c->marks = !(f->has & FIELD(SPAWNED)) || f->spawned;
    c->until_ms = now_ms() + (f->wait_ms > 0 ? f->wait_ms : 0);
    c->options = (struct hf_claim_options)HF_CLAIM_INIT;
    c->options.workflows = c->workflows;
    c->options.n_workflows = execution_workflows(f->workflows, c->workflows);
    c->options.ttl_ms = f->ttl_ms > 0 ? f->ttl_ms : HF_TTL_DEFAULT_MS;
    c->options.owner = execution_owner(req, f->worker);
    c->options.verifies = f->verifies;
    req->forget = claim_forget;
    become_hungry(req->server->claims, c);
    find_work(req->server->claims);
}

void post_claim(struct request *req)
{
    struct claim *c = calloc(1, sizeof *c);
    if (!c) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    execution_call_init(req, &c->call);
    c->call.clear = req->clear;
    req->clear = claim_clear;
    if (body_read(req,
                  FIELD(WORKER) | FIELD(MAX) | FIELD(TTL) | FIELD(WORKFLOWS) | FIELD(WAIT) |
                      FIELD(SPAWNED) | FIELD(VERIFIES),
                  &c->call.fields) &&
        execution_workflows_are_for(req, c->call.fields.workflows))
        begin(req, c);
}
