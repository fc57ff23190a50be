/*
 * Many requests in one, with whole answers: what a client needs that uses this service as its store,
 * and whoever handles many names at once. In order; together in one transaction as a rule.
 */
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "error.h"
#include "locks.h"
#include "text.h"
#include "wire.h"

enum { REQUESTS_MAX = 256 };

struct call;

struct part {
    struct job job; /* first */
    struct call *call;
    struct hf_answer answer;
};

struct call {
    struct request *req;
    size_t n, left;
    int code; /* the first that failed */
    struct hf_error err;
    struct part parts[];
};

static void answer_call(struct call *call)
{
    struct request *req = call->req;
    struct hf_buf *out = &req->answer;
    if (call->code < 0) {
        request_problem(req, -call->code, call->err.message, NULL);
        return;
    }
    hf_buf_puts(out, "{\"answers\":[");
    for (size_t i = 0; i < call->n; i++) {
        const struct hf_answer *answer = &call->parts[i].answer;
        const struct hf_request *ask = &call->parts[i].job.ask;
        if (i)
            hf_buf_putc(out, ',');
        hf_wire_answer(out, answer);
        bool granted = answer->code == 0 && ask->op == HF_OP_ACQUIRE;
        if (granted || (answer->code == 0 && ask->op == HF_OP_EXTEND))
            metrics_lease(req->server, &answer->lease, granted);
        if (answer->code == -HF_RACED)
            metrics_raced(req->server);
        if (granted)
            announce_takeover(req, &answer->lease);
        if (answer->code == 0 && ask->op == HF_OP_RELEASE)
            metrics_released(req->server, ask->token);
    }
    hf_buf_puts(out, "]}");
    request_answer(req, 200);
}

static void part_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct part *part = (struct part *)job;
    struct call *call = part->call;
    if (code >= 0)
        part->answer = *answer;
    else if (call->code >= 0) {
        call->code = code;
        call->err = *err;
        metrics_store_error(call->req->server, job->ask.op);
    }
    if (--call->left)
        return;
    if (request_back(&call->req->job))
        answer_call(call);
}

/* What a token must allow for this one. */
static unsigned verbs_for(const struct hf_request *ask)
{
    unsigned runs = VERB_EXECUTIONS_WRITE | VERB_EXECUTIONS_WORK;
    switch (ask->op) {
    case HF_OP_ACQUIRE:
        return ask->claim      ? VERB_EXECUTIONS_WORK
               : ask->workflow ? VERB_EXECUTIONS_WRITE
                               : VERB_LOCKS_WRITE;
    case HF_OP_EXTEND:
    case HF_OP_RELEASE: /* who has the lease's token may; also of an execution that it began */
        return ask->outcome || ask->spawned || ask->has_output ? runs : runs | VERB_LOCKS_WRITE;
    case HF_OP_ENQUEUE:
    case HF_OP_CANCEL:
        return VERB_EXECUTIONS_WRITE;
    case HF_OP_FORCE:
    case HF_OP_SETTLE:
        return VERB_LOCKS_FORCE;
    default:
        return VERB_BATCH;
    }
}

static bool has_prefix(const struct request *req, const char *name)
{
    return !name || strncmp(name, req->may.prefix, strlen(req->may.prefix)) == 0;
}

/* What the library would refuse for the whole batch is refused here. */
static int check(const struct request *req, const struct hf_request *ask, struct hf_error *err)
{
    int r = hf_check_request(ask, err);
    if (r >= 0 && !(has_prefix(req, ask->name) && has_prefix(req, ask->workflow)))
        r = hf_fail(err, HF_FORBIDDEN, "this token is for names with another prefix");
    if (r >= 0 && !(req->may.verbs & verbs_for(ask)))
        r = hf_fail(err, HF_FORBIDDEN, "this token is not allowed to do that");
    return r;
}

static void call_free(struct call *call)
{
    for (size_t i = 0; call && i < call->n; i++)
        hf_wire_request_clear(&call->parts[i].job.ask);
    free(call);
}

static void call_clear(struct request *req) { call_free(req->context); }

static int read_parts(struct request *req, const json_t *requests, struct call *call,
                      struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < call->n; i++) {
        struct part *part = &call->parts[i];
        part->call = call;
        part->job.done = part_done;
        r = hf_wire_read_request(json_array_get(requests, i), &part->job.ask, err);
        if (r >= 0)
            r = check(req, &part->job.ask, err);
        part->job.ask.durable = true;
    }
    return r;
}

static int read_call(struct request *req, struct hf_error *err)
{
    int r = body_load(req, err);
    if (r < 0)
        return r;
    const json_t *requests = json_object_get(req->json, "requests");
    size_t n = json_array_size(requests);
    if (json_object_size(req->json) != 1 || n < 1 || n > REQUESTS_MAX)
        return hf_fail(err, HF_INVALID, "expected only \"requests\", an array of 1 to %d of them",
                       REQUESTS_MAX);
    struct call *call = calloc(1, sizeof *call + n * sizeof call->parts[0]);
    if (!call)
        return hf_fail(err, HF_NOMEM, "out of memory");
    call->req = req;
    call->n = call->left = n;
    req->context = call;
    req->clear = call_clear;
    return read_parts(req, requests, call, err);
}

static void put_call(struct request *req)
{
    struct call *call = req->context;
    req->working = true;
    for (size_t i = 0; i < call->n; i++)
        lane_put(req->server->lanes, LANE_WRITE, &call->parts[i].job);
}

void post_batch(struct request *req) { body_take(req, read_call, put_call); }
