#include "executions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "error.h"
#include "locks.h"
#include "text.h"
#include "wire.h"

/* ---- which one ------------------------------------------------------------------------------ */

enum { N_KNOWN = 4096 };

/* What requests need to know of an execution. A newer one may take its place. */
struct known {
    char id[HF_UUID_LEN + 1];
    char workflow[HF_NAME_MAX + 1], lock[HF_NAME_MAX + 1];
    bool counted; /* its end */
};

int executions_open(struct server *server, struct hf_error *err)
{
    server->known = calloc(N_KNOWN, sizeof *server->known);
    return server->known ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
}

void executions_close(struct server *server)
{
    free(server->known);
    server->known = NULL;
}

static struct known *place_of(struct server *server, const char *id)
{
    unsigned hash = 5381;
    for (; *id; id++)
        hash = hash * 33 + (unsigned char)*id;
    return &server->known[hash % N_KNOWN];
}

void executions_learn(struct server *server, const struct hf_execution *x)
{
    struct known *known = place_of(server, x->id);
    if (strcmp(known->id, x->id) == 0)
        return;
    known->counted = false;
    memcpy(known->id, x->id, sizeof known->id);
    memcpy(known->workflow, x->workflow, sizeof known->workflow);
    memcpy(known->lock, x->lock, sizeof known->lock);
}

bool execution_is_for(struct request *req, const char *workflow)
{
    if (strncmp(workflow, req->may.prefix, strlen(req->may.prefix)) == 0)
        return true;
    request_problem(req, HF_FORBIDDEN, "this token is for workflows with another prefix", NULL);
    return false;
}

size_t execution_workflows(const json_t *array, const char **ret)
{
    size_t n = json_array_size(array);
    for (size_t i = 0; i < n; i++)
        ret[i] = json_string_value(json_array_get(array, i));
    return n;
}

bool execution_workflows_are_for(struct request *req, const json_t *array)
{
    if (!req->may.prefix[0])
        return true;
    if (!json_array_size(array)) {
        request_problem(req, HF_FORBIDDEN, "a token with a prefix must name its workflows", NULL);
        return false;
    }
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!execution_is_for(req, json_string_value(json_array_get(array, i))))
            return false;
    return true;
}

static void go_on(struct request *req)
{
    struct execution_call *call = req->context;
    if (execution_is_for(req, call->x.workflow))
        call->go(req);
}

static int find_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    return hf_execution_of(hf, req->execution, &call->x, err);
}

static void find_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (!req)
        return;
    req->job = (struct job){0};
    if (code < 0)
        request_fail(req, err);
    else {
        executions_learn(req->server, &((struct execution_call *)req->context)->x);
        go_on(req);
    }
}

void execution_find(struct request *req, bool whole, handler_fn *go)
{
    const struct known *known = place_of(req->server, req->execution);
    struct execution_call *call = execution_call(req);
    if (!call) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    call->go = go;
    if (!whole && strcmp(known->id, req->execution) == 0) {
        memcpy(call->x.id, known->id, sizeof call->x.id);
        memcpy(call->x.workflow, known->workflow, sizeof call->x.workflow);
        memcpy(call->x.lock, known->lock, sizeof call->x.lock);
        go_on(req);
        return;
    }
    req->job.work = find_work;
    request_ask(req, LANE_READ, find_done);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void call_clear(struct request *req)
{
    struct execution_call *call = req->context;
    hf_buf_clear(&call->input);
    hf_buf_clear(&call->out);
    free(call->output_head);
    free(call->output_tail);
    free(call);
}

void execution_call_init(struct request *req, struct execution_call *call)
{
    call->req = req;
    call->input.cap = HF_INPUT_MAX;
    req->context = call;
    req->clear = call_clear;
}

struct execution_call *execution_call(struct request *req)
{
    if (req->context)
        return req->context;
    struct execution_call *call = calloc(1, sizeof *call);
    if (call)
        execution_call_init(req, call);
    return call;
}

const char *execution_owner(struct request *req, const char *given)
{
    struct execution_call *call = req->context;
    if (given)
        return given;
    describe_client(req, call->owner, sizeof call->owner);
    return call->owner;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* What a worker needs of its lease beside the execution, whose fields have the rest. */
static const struct hf_wire_field runner_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_lease, member, name, type)
    F(token, "token", HF_WIRE_STRING),
    F(acquired_at_ms, "acquiredAt", HF_WIRE_TIME),
    F(expires_at_ms, "expiresAt", HF_WIRE_TIME),
    F(ttl_ms, "ttlMs", HF_WIRE_INT),
#undef F
};

void execution_write(struct hf_buf *out, const struct hf_execution *x, const struct hf_lease *lease)
{
    hf_wire_execution(out, x);
    if (lease)
        hf_wire_append(out, lease, runner_fields, sizeof runner_fields / sizeof *runner_fields);
}

void execution_refuse(struct request *req, const struct hf_request *ask,
                      const struct hf_answer *answer)
{
    struct hf_error err;
    const char *existing = answer->code == -HF_KEY_REUSED ? answer->execution.id
                           : answer->code == -HF_HELD     ? answer->holder.execution_id
                                                          : "";
    snprintf(req->existing, sizeof req->existing, "%s", existing);
    hf_refusal(ask, answer, &err);
    err.has_holder = answer->code == -HF_HELD || answer->code == -HF_LOST;
    request_fail(req, &err);
}

struct request *execution_answered(struct job *job, int code, const struct hf_answer *answer,
                                   const struct hf_error *err)
{
    enum hf_op op = job->ask.op;
    struct request *req = request_back(job);
    if (!req)
        return NULL;
    if (code < 0) {
        metrics_store_error(req->server, op);
        request_fail(req, err);
        return NULL;
    }
    if (answer->has_execution)
        executions_learn(req->server, &answer->execution);
    if (answer->code >= 0)
        return req;
    execution_refuse(req, &req->job.ask, answer);
    return NULL;
}

void execution_answer_out(struct request *req, const char *content_type)
{
    struct execution_call *call = req->context;
    if (call->out.failed)
        request_problem(req, HF_TOO_LARGE, "too large for one answer; its input is at /input",
                        NULL);
    else if (call->out.len > ANSWER_MAX && !request_reserve(req, call->out.len))
        request_problem(req, HF_UNAVAILABLE, "too many large requests at once; try again", NULL);
    else {
        req->answer = call->out;
        call->out = (struct hf_buf){0};
        req->content_type = content_type;
        request_answer(req, 200);
    }
}

/* It has ended now; who says so again, because the answer was lost, is not counted again. */
static void count_end(struct server *server, const struct hf_execution *x)
{
    struct known *known = place_of(server, x->id);
    executions_learn(server, x);
    if (!x->finished_at_ms || known->counted)
        return;
    known->counted = true;
    metrics_execution_ended(server, x);
}

/* ---- cancel --------------------------------------------------------------------------------- */

static void cancel_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = execution_answered(job, code, answer, err);
    if (!req)
        return;
    struct execution_call *call = req->context;
    if (call->x.state == HF_PENDING)
        count_end(req->server, &answer->execution);
    hf_wire_execution(&req->answer, &answer->execution);
    request_answer(req, 200);
}

static void cancel(struct request *req)
{
    struct execution_call *call = req->context;
    req->job.ask = (struct hf_request){.op = HF_OP_CANCEL,
                                       .name = call->x.lock,
                                       .execution_id = call->x.id,
                                       .owner = execution_owner(req, NULL)};
    request_ask(req, LANE_WRITE, cancel_done);
}

void post_cancel(struct request *req)
{
    struct fields f;
    if (body_read(req, 0, &f))
        execution_find(req, true, cancel);
}

/* ---- what was printed ----------------------------------------------------------------------- */

struct bytes {
    const char *of;
    size_t n;
};

/* Text as it is, or base64 decoded into *own. */
static int take_bytes(const char *text, const char *base64, const char *name, void **own,
                      struct bytes *ret, struct hf_error *err)
{
    if (text && base64)
        return hf_fail(err, HF_INVALID, "%s is given twice, as text and as base64", name);
    *ret = (struct bytes){text, text ? strlen(text) : 0};
    if (!base64)
        return 0;
    if (!hf_base64_read(base64, strlen(base64), own, &ret->n))
        return hf_fail(err, HF_INVALID, "%sBase64 is not base64", name);
    ret->of = *own;
    return 0;
}

/* The first and the last of it are kept. */
static void cut(struct hf_request *ask, struct bytes head, struct bytes tail, int64_t skipped)
{
    if (head.n > HF_OUTPUT_MAX) {
        tail = (struct bytes){head.of + HF_OUTPUT_MAX, head.n - HF_OUTPUT_MAX};
        head.n = HF_OUTPUT_MAX;
    }
    size_t over = tail.n > HF_OUTPUT_MAX ? tail.n - HF_OUTPUT_MAX : 0;
    ask->has_output = true;
    ask->output_head = head.of;
    ask->output_head_size = head.n;
    ask->output_tail = tail.n ? tail.of + over : NULL;
    ask->output_tail_size = tail.n - over;
    ask->output_skipped = skipped + (int64_t)over;
}

static const uint64_t output_fields = FIELD(OUTPUT) | FIELD(OUTPUT_BASE64) | FIELD(OUTPUT_TAIL) |
                                      FIELD(OUTPUT_TAIL_BASE64) | FIELD(OUTPUT_SKIPPED);

static int take_output(struct execution_call *call, struct hf_error *err)
{
    const struct fields *f = &call->fields;
    struct bytes head = {0}, tail = {0};
    if (!(f->has & output_fields))
        return 0;
    int r = take_bytes(f->output, f->output_base64, "output", &call->output_head, &head, err);
    if (r >= 0)
        r = take_bytes(f->output_tail, f->output_tail_base64, "outputTail", &call->output_tail,
                       &tail, err);
    if (r >= 0 && head.n > HF_OUTPUT_MAX && (tail.n || f->output_skipped))
        r = hf_fail(err, HF_INVALID, "with outputTail, output may have %d bytes", HF_OUTPUT_MAX);
    if (r >= 0)
        cut(&call->ask, head, tail, f->output_skipped);
    return r;
}

/* ---- what its runner says ------------------------------------------------------------------- */

/* Whose lease, and what was printed: into the call's ask. */
static int read_runner(struct request *req, uint64_t allowed, struct hf_error *err)
{
    struct execution_call *call = execution_call(req);
    int r = call ? body_load(req, err) : hf_fail(err, HF_NOMEM, "out of memory");
    if (r < 0)
        return r;
    struct fields *f = &call->fields;
    r = body_fields(req, allowed | FIELD(TOKEN) | FIELD(FENCE) | output_fields, f, err);
    if (r >= 0 && !f->token)
        r = hf_fail(err, HF_INVALID, "the field token is needed");
    call->ask = (struct hf_request){.token = f->token, .fence = f->fence > 0 ? f->fence : 0};
    return r < 0 ? r : take_output(call, err);
}

/* The execution was found: now the lock's name is known as well. */
static void ask_of(struct request *req, job_done_fn *done)
{
    struct execution_call *call = req->context;
    req->job.ask = call->ask;
    req->job.ask.name = call->x.lock;
    request_ask(req, LANE_WRITE, done);
}

static int read_heartbeat(struct request *req, struct hf_error *err)
{
    int r = read_runner(req, FIELD(TTL) | FIELD(SPAWNED), err);
    if (r < 0)
        return r;
    struct execution_call *call = req->context;
    call->ask.op = HF_OP_EXTEND;
    call->ask.ttl_ms = call->fields.ttl_ms > 0 ? call->fields.ttl_ms : 0;
    call->ask.spawned = call->fields.spawned;
    return 0;
}

static void heartbeat_done(struct job *job, int code, const struct hf_answer *answer,
                           const struct hf_error *err)
{
    struct request *req = execution_answered(job, code, answer, err);
    if (!req)
        return;
    metrics_lease(req->server, &answer->lease, false);
    hf_wire_lease(&req->answer, &answer->lease);
    hf_wire_reopen(&req->answer, "cancelRequested");
    hf_buf_puts(&req->answer, answer->lease.cancel_requested ? "true}" : "false}");
    request_answer(req, 200);
}

static void heartbeat(struct request *req) { ask_of(req, heartbeat_done); }

static void find_for_heartbeat(struct request *req) { execution_find(req, false, heartbeat); }

void post_heartbeat(struct request *req) { body_take(req, read_heartbeat, find_for_heartbeat); }

static int read_finish(struct request *req, struct hf_error *err)
{
    int r = read_runner(req, FIELD(STATE) | FIELD(EXIT_CODE) | FIELD(REASON), err);
    if (r < 0)
        return r;
    struct execution_call *call = req->context;
    const struct fields *f = &call->fields;
    if (!(f->has & FIELD(STATE)))
        return hf_fail(err, HF_INVALID,
                       "the field state is needed: SUCCESS, FAILED, ABORTED or LOST");
    call->ask.op = HF_OP_RELEASE;
    call->ask.outcome = (enum hf_outcome)f->state;
    call->ask.has_exit_code = f->has & FIELD(EXIT_CODE);
    call->ask.exit_code = (int)f->exit_code;
    call->ask.reason = f->reason;
    call->ask.execution_id = req->execution;
    return 0;
}

static void finish_done(struct job *job, int code, const struct hf_answer *answer,
                        const struct hf_error *err)
{
    struct request *req = execution_answered(job, code, answer, err);
    if (!req)
        return;
    if (!answer->has_execution) {
        request_problem(req, HF_LOST, "the lease was not an execution's", NULL);
        return;
    }
    metrics_released(req->server, req->job.ask.token);
    count_end(req->server, &answer->execution);
    claims_nudge(req->server, NULL);
    hf_wire_execution(&req->answer, &answer->execution);
    request_answer(req, 200);
}

static void finish(struct request *req) { ask_of(req, finish_done); }

static void find_for_finish(struct request *req) { execution_find(req, false, finish); }

void post_finish(struct request *req) { body_take(req, read_finish, find_for_finish); }
