/* New executions: queued for a worker, begun for the client itself, repeated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "config.h"
#include "error.h"
#include "executions.h"
#include "jsontext.h"
#include "locks.h"
#include "printed.h"
#include "wire.h"

enum { INPUT_DEPTH_MAX = 200 };

/* ---- the body ------------------------------------------------------------------------------- */

/*
 * The input is kept as it came but for white space: numbers keep their digits, and a large one is
 * never built in memory. What is left in its place is a digit.
 */
static int cut_input(struct request *req, struct execution_call *call, struct hf_error *err)
{
    const char *value;
    size_t n;
    int r = hf_json_member(req->body.data, req->body.len, "input", INPUT_DEPTH_MAX, &value, &n);
    if (r < 0)
        return hf_fail(err, HF_INVALID, "the input is not JSON, or nests deeper than %d levels",
                       INPUT_DEPTH_MAX);
    if (r == 0 || (n == 4 && memcmp(value, "null", 4) == 0))
        return 0;
    hf_json_compact(&call->input, value, n);
    if (call->input.failed)
        return hf_fail(err, HF_TOO_LARGE, "the input has more than %d bytes", HF_INPUT_MAX);
    char *place = req->body.data + (value - req->body.data);
    memset(place, ' ', n);
    place[0] = '0';
    return 0;
}

static int decode_input(struct request *req, struct execution_call *call, struct hf_error *err)
{
    const struct fields *f = &call->fields;
    void *bytes;
    size_t n;
    if (f->has & FIELD(INPUT) && !call->input.len)
        return hf_fail(err, HF_INVALID,
                       "the name of the field input must be written without escapes");
    if (!f->input_base64)
        return 0;
    if (call->input.len)
        return hf_fail(err, HF_INVALID, "the input is given twice, as JSON and as base64");
    if (!hf_base64_read(f->input_base64, strlen(f->input_base64), &bytes, &n))
        return hf_fail(err, HF_INVALID, "inputBase64 is not base64");
    call->input = (struct hf_buf){.data = bytes, .len = n, .size = n, .cap = n};
    json_object_del(req->json, "inputBase64");
    return n > HF_INPUT_MAX
               ? hf_fail(err, HF_TOO_LARGE, "the input has %zu bytes; at most %d are kept", n,
                         HF_INPUT_MAX)
               : 0;
}

static int read_creation(struct request *req, struct hf_error *err)
{
    const uint64_t known = FIELD(WORKFLOW) | FIELD(KEY) | FIELD(INPUT) | FIELD(INPUT_BASE64) |
                           FIELD(RUN_AT) | FIELD(PRIORITY) | FIELD(LOCK) | FIELD(TTL) |
                           FIELD(OVERLAP) | FIELD(QUEUE_LIMIT) | FIELD(OWNER) | FIELD(NOTE) |
                           FIELD(TOKEN) | FIELD(ID) | FIELD(ON_LOST) | FIELD(MAX_ATTEMPTS) |
                           FIELD(RETRY_BACKOFF) | FIELD(CONCURRENCY) | FIELD(SPAWNED);
    struct execution_call *call = execution_call(req);
    int r = call ? cut_input(req, call, err) : hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0)
        r = body_load(req, err);
    if (r >= 0)
        r = body_fields(req, known, &call->fields, err);
    if (r >= 0 && !call->fields.workflow)
        r = hf_fail(err, HF_INVALID, "the field workflow is needed");
    if (r >= 0)
        r = decode_input(req, call, err);
    hf_buf_clear(&req->body);
    return r;
}

/* ---- what is asked for ---------------------------------------------------------------------- */

/* The body decides: for workers that this service knows nothing of. */
static int ask_by_body(struct execution_call *call, struct hf_error *err)
{
    const struct fields *f = &call->fields;
    if (f->token && f->has & (FIELD(RUN_AT) | FIELD(OVERLAP) | FIELD(QUEUE_LIMIT)))
        return hf_fail(err, HF_INVALID,
                       "with token it is begun now, by you; leave out runAt, overlap and "
                       "queueLimit, or token to queue it for a worker");
    if (!f->token && f->has & FIELD(SPAWNED))
        return hf_fail(err, HF_INVALID, "spawned goes with token: else it is the worker's to say");
    call->ask = (struct hf_request){.name = f->lock ? f->lock : f->workflow,
                                    .on_lost = (enum hf_on_lost)f->on_lost,
                                    .max_attempts = (int32_t)f->max_attempts,
                                    .retry_backoff_ms = f->retry_backoff_ms,
                                    .concurrency = (int32_t)f->concurrency,
                                    .overlap = (enum hf_overlap)f->overlap,
                                    .queue_limit = (int32_t)f->queue_limit,
                                    .ttl_ms = f->ttl_ms > 0 ? f->ttl_ms : HF_TTL_DEFAULT_MS};
    return 0;
}

/* The service's configuration decides, and a worker of its own runs it. */
static int ask_by_workflow(struct execution_call *call, const struct hf_workflow *w,
                           struct hf_error *err)
{
    const struct fields *f = &call->fields;
    const uint64_t decided = FIELD(LOCK) | FIELD(TTL) | FIELD(OVERLAP) | FIELD(QUEUE_LIMIT) |
                             FIELD(TOKEN) | FIELD(ON_LOST) | FIELD(MAX_ATTEMPTS) |
                             FIELD(RETRY_BACKOFF) | FIELD(CONCURRENCY) | FIELD(SPAWNED);
    if (f->has & decided)
        return hf_fail(err, HF_INVALID,
                       "%s is a workflow of this service, whose configuration says what is locked "
                       "and what runs it; send workflow, key, input, runAt, priority, owner, note",
                       w->name);
    struct hf_begin_options o;
    hf_workflow_ask(w, &o);
    call->ask = (struct hf_request){.name = call->x.lock,
                                    .on_lost = o.on_lost,
                                    .max_attempts = o.max_attempts,
                                    .retry_backoff_ms = o.retry_backoff_ms,
                                    .concurrency = o.concurrency,
                                    .overlap = o.overlap,
                                    .queue_limit = o.queue_limit};
    return hf_workflow_lock(w, f->key, call->input.data, call->input.len, call->x.lock, err);
}

static void fill_ask(struct request *req, struct execution_call *call)
{
    const struct fields *f = &call->fields;
    struct hf_request *ask = &call->ask;
    if (f->id)
        memcpy(call->new_id, f->id, sizeof call->new_id);
    else
        hf_token(call->new_id);
    ask->op = f->token ? HF_OP_ACQUIRE : HF_OP_ENQUEUE;
    ask->token = f->token;
    ask->owner = execution_owner(req, f->owner);
    ask->note = f->note;
    ask->priority = (int32_t)f->priority;
    ask->workflow = f->workflow;
    ask->key = f->key;
    ask->input = call->input.len ? call->input.data : NULL;
    ask->input_size = call->input.len;
    ask->execution_id = call->new_id;
    ask->run_at_ms = f->run_at_ms;
    ask->durable = true;
}

/* ---- answers -------------------------------------------------------------------------------- */

static bool was_skipped(const struct request *req, const struct hf_answer *answer)
{
    return req->job.ask.op == HF_OP_ENQUEUE && req->job.ask.overlap == HF_OVERLAP_SKIP &&
           answer->code == -HF_HELD;
}

static void answer_skipped(struct request *req, const struct hf_answer *answer)
{
    hf_buf_puts(&req->answer, "{\"outcome\":\"skipped\",\"existingExecutionId\":");
    if (answer->holder.execution_id[0])
        hf_buf_printf(&req->answer, "\"%s\"}", answer->holder.execution_id);
    else
        hf_buf_puts(&req->answer, "null}"); /* held by somebody who is no execution */
    request_answer(req, 200);
}

static void enqueue_done(struct job *job, int code, const struct hf_answer *answer,
                         const struct hf_error *err)
{
    struct request *req;
    if (code >= 0 && was_skipped(request_of(job), answer)) {
        if ((req = request_back(job)))
            answer_skipped(req, answer);
        return;
    }
    if (!(req = execution_answered(job, code, answer, err)))
        return;
    if (!answer->execution.duplicate)
        claims_nudge(req->server, answer->execution.workflow);
    hf_wire_execution(&req->answer, &answer->execution);
    bool created = !answer->execution.duplicate && req->route->handle == post_execution;
    request_answer(req, created ? 201 : 200);
}

/* With the lease, where it was begun and not found. */
static void begin_answer(struct request *req, const struct hf_answer *answer)
{
    const struct hf_execution *x = &answer->execution;
    bool begun = answer->lease.token[0] && !x->duplicate;
    if (begun) {
        metrics_lease(req->server, &answer->lease, true);
        announce_takeover(req, &answer->lease);
    }
    execution_write(&req->answer, x, begun ? &answer->lease : NULL);
    request_answer(req, begun ? 201 : 200);
}

/* Both jobs are done, in one commit as a rule: nothing is answered before. */
static void spawn_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    struct execution_call *call =
        (struct execution_call *)((char *)job - offsetof(struct execution_call, spawn));
    struct hf_answer *begun = &call->begun;
    bool was_begun = call->begin_code >= 0 && begun->code == 0 && begun->lease.token[0];
    if (was_begun && code >= 0) { /* refused: whoever has the lock now is not us */
        begun->code = answer->code;
        begun->lease = answer->lease;
        begun->execution = answer->execution;
        begun->has_holder = answer->has_holder;
        begun->holder = answer->holder;
    }
    struct request *req =
        was_begun ? execution_answered(&call->req->job, code, begun, err)
                  : execution_answered(&call->req->job, call->begin_code, begun, &call->begin_err);
    if (req)
        begin_answer(req, begun);
}

static void begin_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    if (!call->spawn.done) {
        if ((req = execution_answered(job, code, answer, err)))
            begin_answer(req, answer);
        return;
    }
    call->begin_code = code;
    if (code < 0)
        call->begin_err = *err;
    else
        call->begun = *answer;
}

/* ---- the route ------------------------------------------------------------------------------ */

/* Who runs it itself is taken to have started, unless it says that it will tell (heartbeat). */
static void begin(struct request *req, struct execution_call *call)
{
    bool tells = call->fields.has & FIELD(SPAWNED) && !call->fields.spawned;
    if (!tells) {
        call->spawn.done = spawn_done;
        call->spawn.ask = (struct hf_request){
            .op = HF_OP_EXTEND, .name = call->ask.name, .token = call->ask.token, .spawned = true};
    }
    request_ask(req, LANE_WRITE, begin_done);
    if (!tells)
        lane_put(req->server->lanes, LANE_WRITE, &call->spawn);
}

static void create(struct request *req)
{
    struct execution_call *call = req->context;
    const struct fields *f = &call->fields;
    const struct hf_workflow *w = request_workflow(req, f->workflow, NULL);
    struct hf_error err;
    if (!execution_is_for(req, f->workflow) || (f->lock && !execution_is_for(req, f->lock)))
        return;
    if ((w ? ask_by_workflow(call, w, &err) : ask_by_body(call, &err)) < 0) {
        request_fail(req, &err);
        return;
    }
    fill_ask(req, call);
    if (hf_check_request(&call->ask, &err) < 0) {
        request_fail(req, &err);
        return;
    }
    req->job.ask = call->ask;
    if (f->token)
        begin(req, call);
    else
        request_ask(req, LANE_WRITE, enqueue_done);
}

void post_execution(struct request *req) { body_take(req, read_creation, create); }

/* ---- retry ---------------------------------------------------------------------------------- */

static int input_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct request *req = request_of(job);
    struct execution_call *call = req->context;
    int r = hf_execution_data(hf, req->execution, HF_DATA_INPUT, hf_data_add, &call->input, err);
    return r >= 0 && call->input.failed ? hf_fail(err, HF_NOMEM, "out of memory") : r;
}

/* A new one with the same input; the key stays the old one's. */
static void input_done(struct job *job, int code, const struct hf_answer *answer,
                       const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (!req)
        return;
    struct execution_call *call = req->context;
    const struct hf_execution *old = &call->x;
    if (code < 0) {
        request_fail(req, err);
        return;
    }
    if (call->input.len > BODY_MAX && !request_reserve(req, call->input.len)) {
        request_problem(req, HF_UNAVAILABLE, "too many large requests at once; try again", NULL);
        return;
    }
    hf_retry_id(old->id, call->new_id);
    req->job = (struct job){.ask = {.op = HF_OP_ENQUEUE,
                                    .name = old->lock,
                                    .workflow = old->workflow,
                                    .owner = execution_owner(req, NULL),
                                    .input = call->input.len ? call->input.data : NULL,
                                    .input_size = call->input.len,
                                    .execution_id = call->new_id,
                                    .retry_of = old->id,
                                    .priority = old->priority,
                                    .on_lost = old->on_lost,
                                    .max_attempts = old->max_attempts,
                                    .retry_backoff_ms = old->retry_backoff_ms,
                                    .concurrency = old->concurrency,
                                    .overlap = HF_OVERLAP_QUEUE,
                                    .durable = true}};
    request_ask(req, LANE_WRITE, enqueue_done);
}

static void retry(struct request *req)
{
    const struct hf_execution *x = &((struct execution_call *)req->context)->x;
    char detail[HF_MESSAGE_MAX];
    if (!x->finished_at_ms || x->once) {
        snprintf(detail, sizeof detail,
                 x->once ? "%s was run by holdfast run --once; run that again"
                         : "%s is %s; only what has ended can be retried",
                 x->id, hf_execution_state_name(x->state));
        request_problem(req, HF_INVALID, detail, NULL);
        return;
    }
    req->job.work = input_work;
    request_ask(req, LANE_READ, input_done);
}

void post_retry(struct request *req)
{
    struct fields f;
    if (body_read(req, 0, &f))
        execution_find(req, true, retry);
}
