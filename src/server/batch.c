/*
 * Many requests in one, with whole answers: what a client needs that uses this service as its store,
 * and whoever handles many names at once. In order; together in one transaction as a rule.
 */
#include <stdlib.h>
#include <string.h>

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
    struct request *req = request_back(&call->req->job);
    if (req) {
        req->context = NULL;
        answer_call(call);
    }
    free(call);
}

/* What the library would refuse for the whole batch is refused here, with its place in it. */
static int check(const struct request *req, const struct hf_request *ask, struct hf_error *err)
{
    bool needs_token = ask->op == HF_OP_ACQUIRE || ask->op == HF_OP_EXTEND ||
                       ask->op == HF_OP_RELEASE || ask->op == HF_OP_WITHDRAW;
    if (!ask->name)
        return hf_fail(err, HF_INVALID, "a request of a batch needs a name");
    int r = hf_check_name(ask->name, err);
    if (r >= 0 && (ask->token ? !body_is_token(ask->token) : needs_token))
        r = hf_fail(err, HF_INVALID, "a token, a UUID in lower case, is needed");
    if (r >= 0 && (ask->op == HF_OP_ACQUIRE || ask->ttl_ms))
        r = hf_check_ttl(ask->ttl_ms, err);
    if (r >= 0)
        r = hf_check_text("owner", ask->owner, HF_OWNER_MAX, err);
    if (r >= 0)
        r = hf_check_text("note", ask->note, HF_NOTE_MAX, err);
    if (r >= 0)
        r = hf_check_text("reason", ask->reason, HF_REASON_MAX, err);
    if (r >= 0 && strncmp(ask->name, req->may.prefix, strlen(req->may.prefix)) != 0)
        r = hf_fail(err, HF_FORBIDDEN, "this token is for names with another prefix");
    if (r >= 0 && (ask->op == HF_OP_FORCE || ask->op == HF_OP_SETTLE) &&
        !(req->may.verbs & VERB_LOCKS_FORCE))
        r = hf_fail(err, HF_FORBIDDEN, "this token is not allowed to do that");
    return r;
}

static struct call *read_call(struct request *req, const json_t *requests, struct hf_error *err)
{
    size_t n = json_array_size(requests);
    struct call *call = calloc(1, sizeof *call + n * sizeof call->parts[0]);
    int r = call ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < n; i++) {
        struct part *part = &call->parts[i];
        part->call = call;
        part->job.done = part_done;
        r = hf_wire_read_request(json_array_get(requests, i), &part->job.ask, err);
        if (r >= 0)
            r = check(req, &part->job.ask, err);
        part->job.ask.durable = true;
    }
    if (r < 0) {
        free(call);
        return NULL;
    }
    call->req = req;
    call->n = call->left = n;
    return call;
}

void post_batch(struct request *req)
{
    struct hf_error err;
    if (!body_parse(req))
        return;
    const json_t *requests = json_object_get(req->json, "requests");
    size_t n = json_array_size(requests);
    if (json_object_size(req->json) != 1 || n < 1 || n > REQUESTS_MAX) {
        request_problem(req, HF_INVALID, "expected only \"requests\", an array of 1 to 256 of them",
                        NULL);
        return;
    }
    struct call *call = read_call(req, requests, &err);
    if (!call) {
        request_fail(req, &err);
        return;
    }
    req->working = true;
    for (size_t i = 0; i < n; i++)
        lane_put(req->server->lanes, LANE_WRITE, &call->parts[i].job);
}
