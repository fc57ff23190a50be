#include "claims.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "execution.h"
#include "locks.h"
#include "printed.h"
#include "wire.h"

enum {
    INPUT_MAX = 1 << 20, /* of an execution, in the answer; else it is fetched by itself */
    INPUTS_MAX = 4 << 20 /* of all of them */
};

static struct claim *claim_of(struct request *req) { return req->context; }

/* ---- nobody is told ------------------------------------------------------------------------- */

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

/* The request is over: its client has gone, or is told what went wrong. */
static void end_claim(struct claim *c)
{
    struct request *req = request_back(&c->call.req->job);
    if (req)
        request_fail(req, &c->err);
}

static void give_back_done(struct job *job, int code, const struct hf_answer *answer,
                           const struct hf_error *err)
{
    struct claim *c = ((struct item *)job)->claim;
    struct server *server = c->call.req->server;
    (void)code, (void)answer, (void)err; /* where it failed, its lease runs out */
    if (--c->left)
        return;
    end_claim(c);
    claims_nudge(server, NULL);
}

/*
 * Its client never hears of what was claimed for it. Each is given up, as if its holder had died: what
 * was not marked as started is PENDING again, at once.
 */
static void give_back(struct claim *c)
{
    struct server *server = c->call.req->server;
    for (size_t i = 0; i < c->n_items; i++)
        c->left += c->items[i].got;
    if (!c->left || server->closed) {
        end_claim(c);
        return;
    }
    for (size_t i = 0; i < c->n_items; i++) {
        struct item *item = &c->items[i];
        if (!item->got)
            continue;
        item->job.done = give_back_done;
        item->job.ask = (struct hf_request){.op = HF_OP_RELEASE,
                                            .name = item->lock,
                                            .token = item->token,
                                            .execution_id = item->id,
                                            .outcome = HF_OUTCOME_LOST,
                                            .reason = "its worker left before it was told",
                                            .durable = true};
        lane_put(server->lanes, LANE_WRITE, &item->job);
    }
}

/* ---- inputs, and the answer ----------------------------------------------------------------- */

/* One that is to be verified is started, if at all, when its worker says so. */
static bool is_marked(const struct claim *c, const struct item *item)
{
    return item->got && c->marks && !item->x.to_verify;
}

/* {execution, lease, input}; a large input is null, and fetched by itself. */
static int write_item(struct hf *hf, const struct item *item, struct hf_buf *out, size_t *left,
                      struct hf_error *err)
{
    struct hf_buf input = HF_BUF(HF_INPUT_MAX);
    struct hf_execution x = item->x;
    int r = hf_execution_data(hf, item->id, HF_DATA_INPUT, hf_data_add, &input, err);
    if (is_marked(item->claim, item)) /* or will be, before anybody reads this */
        hf_execution_spawn(&x);
    execution_write(out, &x, &item->lease);
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

static int answer_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct claim *c = claim_of(req);
    struct hf_buf *out = &c->call.out;
    size_t left = INPUTS_MAX;
    bool first = true;
    int r = 0;
    hf_buf_clear(out);
    *out = (struct hf_buf)HF_BUF(8 * INPUTS_MAX);
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

static void answer_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err);

static size_t count_got(const struct claim *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_items; i++)
        n += c->items[i].got;
    return n;
}

/* As many as have been claimed are answered for, marked, and told. */
static void go_on(struct claim *c)
{
    struct request *req = c->call.req;
    struct server *server = req->server;
    size_t n = count_got(c);
    if (req->gone)
        give_back(c);
    else if (n && n == c->n_told) {
        request_back(&req->job);
        execution_answer_out(req, "application/json");
    } else if (n) {
        c->n_told = n;
        req->job = (struct job){.work = answer_work};
        request_ask(req, LANE_READ, answer_done);
    } else if (c->code < 0)
        end_claim(c);
    else { /* others were quicker: there may be more */
        c->n_told = 0;
        claim_hungers(c);
        claims_find_work(server->claims);
    }
}

/* ---- marking -------------------------------------------------------------------------------- */

static void item_done(struct item *item)
{
    if (--item->claim->left == 0)
        go_on(item->claim);
}

static void give_up_done(struct job *job, int code, const struct hf_answer *answer,
                         const struct hf_error *err)
{
    struct item *item = (struct item *)job;
    (void)answer;
    if (code < 0)
        keep_failure(item, code, err);
    item_done(item);
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
    item->marked = code >= 0 && answer->code >= 0;
    if (code < 0)
        keep_failure(item, code, err);
    else if (answer->code < 0)
        item->got = false;
    else if (answer->lease.cancel_requested) {
        give_up(item);
        return;
    } else
        item->x = answer->execution;
    item_done(item);
}

/* The last step before they are told: nothing may fail behind it but the client. */
static void mark_all(struct claim *c)
{
    struct request *req = c->call.req;
    for (size_t i = 0; i < c->n_items; i++)
        c->left += is_marked(c, &c->items[i]) && !c->items[i].marked;
    if (!c->left) {
        go_on(c);
        return;
    }
    for (size_t i = 0; i < c->n_items; i++) {
        struct item *item = &c->items[i];
        if (!is_marked(c, item) || item->marked)
            continue;
        item->job.done = mark_done;
        item->job.ask = (struct hf_request){
            .op = HF_OP_EXTEND, .name = item->lock, .token = item->token, .spawned = true};
        lane_put(req->server->lanes, LANE_WRITE, &item->job);
    }
}

static void answer_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = request_of(job);
    struct claim *c = claim_of(req);
    (void)answer;
    if (code < 0)
        c->err = *err;
    if (code < 0 || req->gone)
        give_back(c);
    else
        mark_all(c);
}

/* ---- asking --------------------------------------------------------------------------------- */

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
    else {
        c->refused += answer->code == -HF_HELD && !answer->execution.parked;
        if (answer->code == -HF_RACED)
            metrics_raced(c->call.req->server);
    }
    struct claims *t = c->call.req->server->claims;
    if (--c->left == 0)
        go_on(c);
    claims_find_work(t);
}

void claim_ask_all(struct claim *c)
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
                                            .verifies = c->options.verifies,
                                            .durable = true};
        lane_put(req->server->lanes, LANE_WRITE, &item->job);
    }
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
    claim_hungers(c);
    if (f->wait_ms > 0) /* from the first look on: it may leave with what that finds */
        request_watch_client(req);
    claims_find_work(req->server->claims);
}

static void claim_clear(struct request *req)
{
    free(claim_of(req)->items);
    claim_of(req)->call.clear(req);
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
