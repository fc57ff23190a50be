/*
 * POST /api/webhooks/WORKFLOW: the body becomes the input of an execution, byte for byte, at most
 * once per key. It is only recorded here; a worker runs it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "clock.h"
#include "config.h"
#include "error.h"
#include "executions.h"
#include "locks.h"
#include "results.h"
#include "text.h"
#include "wire.h"

enum { PREFER_WAIT_MAX_S = 300 };

/* Headers that are read. X(member, name) */
#define HEADER_MAP(X)                                                                              \
    X(IDEMPOTENCY_KEY, "Idempotency-Key")                                                          \
    X(WEBHOOK_ID, "webhook-id")                                                                    \
    X(GITHUB_DELIVERY, "X-GitHub-Delivery")                                                        \
    X(WEBHOOK_TIMESTAMP, "webhook-timestamp")                                                      \
    X(WEBHOOK_SIGNATURE, "webhook-signature")                                                      \
    X(HUB_SIGNATURE, "X-Hub-Signature-256")                                                        \
    X(STRIPE_SIGNATURE, "Stripe-Signature")                                                        \
    X(PREFER, "Prefer")

enum header {
#define X(member, name) HEADER_##member,
    HEADER_MAP(X)
#undef X
        N_HEADERS
};

static const char *const header_names[] = {
#define X(member, name) [HEADER_##member] = name,
    HEADER_MAP(X)
#undef X
};

struct hook {
    struct result result; /* first: its end, where the client waits for that */
    const struct hf_workflow *workflow;
    const struct secrets *secrets; /* NULL: it need not be signed */
    char *headers[N_HEADERS];      /* NULL: absent. Copies: a lane may outlive the connection */
    char id[HF_UUID_LEN + 1], key[HF_KEY_MAX + 1], lock[HF_NAME_MAX + 1], owner[100];
    bool duplicate;
    int64_t wait_s;
};

static bool copy_headers(const struct request *req, struct hook *h)
{
    for (int i = 0; i < N_HEADERS; i++) {
        const char *value = request_header(req, header_names[i]);
        if (value && !(h->headers[i] = strdup(value)))
            return false;
    }
    return true;
}

/* ---- who sends it --------------------------------------------------------------------------- */

bool webhook_is_to_be_signed(struct request *req)
{
    const struct secrets *secrets = NULL;
    if (req->route->verb == VERB_WEBHOOKS_WRITE)
        request_workflow(req, req->name, &secrets);
    return secrets != NULL;
}

static int check_signature(const struct request *req, const struct hook *h,
                           enum signature_scheme *ret, struct hf_error *err)
{
    struct signed_message message = {.webhook_id = h->headers[HEADER_WEBHOOK_ID],
                                     .webhook_timestamp = h->headers[HEADER_WEBHOOK_TIMESTAMP],
                                     .webhook_signature = h->headers[HEADER_WEBHOOK_SIGNATURE],
                                     .hub_signature = h->headers[HEADER_HUB_SIGNATURE],
                                     .stripe_signature = h->headers[HEADER_STRIPE_SIGNATURE],
                                     .body = {req->body.data, req->body.len}};
    return signature_check(&message, h->secrets, hf_clock_wall_ms() / 1000, ret, err);
}

/* ---- what is asked for ---------------------------------------------------------------------- */

/* The key that a header has, unless there is one already. */
static int take_header_key(struct hook *h, enum header header, struct hf_error *err)
{
    const char *value = h->headers[header];
    if (h->key[0] || !value)
        return 0;
    if (!*value || hf_check_text("key", value, HF_KEY_MAX, NULL) < 0)
        return hf_fail(err, HF_INVALID,
                       "the header %s must be text of 1 to %d bytes without control characters",
                       header_names[header], HF_KEY_MAX);
    strcpy(h->key, value);
    return 0;
}

static int take_path_key(const struct request *req, struct hook *h, struct hf_error *err)
{
    return h->key[0] ? 0 : hf_workflow_key(h->workflow, req->body.data, req->body.len, h->key, err);
}

/* What a signature covers comes first: who replays it may have changed the rest. */
static int choose_signed_key(const struct request *req, struct hook *h, struct hf_error *err)
{
    enum signature_scheme scheme;
    int r = check_signature(req, h, &scheme, err);
    if (r < 0)
        return r;
    return scheme == SIGNED_STANDARD ? take_header_key(h, HEADER_WEBHOOK_ID, err)
                                     : take_path_key(req, h, err);
}

static int choose_key(const struct request *req, struct hook *h, struct hf_error *err)
{
    int r = h->secrets ? choose_signed_key(req, h, err) : 0;
    if (r >= 0)
        r = take_header_key(h, HEADER_IDEMPOTENCY_KEY, err);
    if (r >= 0)
        r = take_header_key(h, HEADER_WEBHOOK_ID, err);
    if (r >= 0)
        r = take_header_key(h, HEADER_GITHUB_DELIVERY, err);
    return r < 0 ? r : take_path_key(req, h, err);
}

/* The seconds of "wait=10" in "respond-async, wait=10" (RFC 7240); what is malformed is ignored. */
static int64_t read_prefer(const char *header)
{
    for (const char *at = header ? header : ""; *at;) {
        at += strspn(at, " \t,");
        if (strncasecmp(at, "wait=", 5) == 0) {
            const char *digits = at + 5 + (at[5] == '"');
            if (*digits < '0' || *digits > '9')
                return 0;
            long long s = strtoll(digits, NULL, 10);
            return s < PREFER_WAIT_MAX_S ? s : PREFER_WAIT_MAX_S;
        }
        at += strcspn(at, ",");
    }
    return 0;
}

static struct hf_request ask_for(const struct request *req, const struct hook *h)
{
    struct hf_begin_options o;
    hf_workflow_ask(h->workflow, &o);
    return (struct hf_request){.op = HF_OP_ENQUEUE,
                               .name = h->lock,
                               .owner = h->owner,
                               .durable = true,
                               .workflow = o.workflow,
                               .key = h->key[0] ? h->key : NULL,
                               .input = req->body.data,
                               .input_size = req->body.len,
                               .execution_id = h->id,
                               .on_lost = o.on_lost,
                               .max_attempts = o.max_attempts,
                               .retry_backoff_ms = o.retry_backoff_ms,
                               .concurrency = o.concurrency,
                               .overlap = o.overlap,
                               .queue_limit = o.queue_limit};
}

/* ---- answers -------------------------------------------------------------------------------- */

static void put_id(struct hf_buf *out, const char *name, const char *id)
{
    hf_buf_printf(out, *id ? ",\"%s\":\"%s\"" : ",\"%s\":null", name, id);
}

/* It is recorded; once it is over, how it ended. */
static void answer_execution(struct request *req, const struct hook *h,
                             const struct hf_execution *x)
{
    struct hf_buf *out = &req->answer;
    hf_buf_puts(out, "{\"success\":true");
    put_id(out, "executionId", x->id);
    hf_buf_printf(out, ",\"duplicate\":%s,\"state\":\"%s\"", h->duplicate ? "true" : "false",
                  hf_execution_state_name(x->state));
    if (h->result.output.len) {
        if (x->has_exit_code)
            hf_buf_printf(out, ",\"exitCode\":%d,", x->exit_code);
        else
            hf_buf_puts(out, ",\"exitCode\":null,");
        hf_buf_puts(out, "\"reason\":");
        if (x->reason[0])
            hf_wire_string(out, x->reason, strlen(x->reason));
        else
            hf_buf_puts(out, "null");
        hf_buf_putc(out, ',');
        hf_buf_add(out, h->result.output.data, h->result.output.len);
    }
    hf_buf_putc(out, '}');
    request_answer(req, 200);
}

static void answer_result(struct result *result)
{
    struct hook *h = (struct hook *)result;
    result->req->waited_s = h->wait_s;
    answer_execution(result->req, h, &result->x);
}

static void answer_held(struct request *req, const struct hook *h, const struct hf_answer *answer)
{
    struct hf_buf *out = &req->answer;
    const struct hf_status *holder = &answer->holder;
    char details[HF_MESSAGE_MAX], who[HF_MESSAGE_MAX / 2];
    if (h->workflow->overlap == HF_OVERLAP_SKIP) {
        hf_buf_puts(out, "{\"success\":true,\"outcome\":\"skipped\"");
        put_id(out, "existingExecutionId", holder->execution_id);
        hf_buf_putc(out, '}');
        request_answer(req, 200);
        return;
    }
    hf_describe_status(holder, who, sizeof who);
    snprintf(details, sizeof details, "Only one execution can run at a time. %s%s",
             holder->execution_id[0] ? "Currently executing: " : "",
             holder->execution_id[0] ? holder->execution_id : who);
    hf_buf_puts(out, "{\"success\":false,\"error\":\"Workflow currently executing\",\"details\":");
    hf_wire_string(out, details, strlen(details));
    put_id(out, "existingExecutionId", holder->execution_id);
    hf_buf_putc(out, '}');
    req->retry_after_s = retry_after_s(HF_HELD, holder);
    request_answer(req, 409);
}

static void answer_raced(struct request *req)
{
    hf_buf_puts(&req->answer,
                "{\"success\":false,\"error\":\"Concurrent execution attempted\",\"details\":"
                "\"Another concurrent request acquired the execution lock\"}");
    req->retry_after_s = retry_after_s(HF_RACED, NULL);
    request_answer(req, 409);
}

static void answer_refused(struct request *req, const struct hook *h,
                           const struct hf_answer *answer)
{
    char detail[HF_MESSAGE_MAX];
    if (answer->code == -HF_KEY_REUSED)
        snprintf(detail, sizeof detail,
                 "%s has an execution with key %s and another body (%s); use another key",
                 h->workflow->name, h->key, answer->execution.id);
    else if (answer->code == -HF_QUEUE_FULL)
        snprintf(detail, sizeof detail, "%lld executions wait for %s already; send it again later",
                 (long long)h->workflow->queue_limit, h->lock);
    else
        snprintf(detail, sizeof detail, "%s: %s", h->workflow->name, hf_code_meaning(answer->code));
    request_problem(req, -answer->code, detail, NULL);
}

/* ---- its way -------------------------------------------------------------------------------- */

static void hook_forget(struct request *req) { results_leave(req->context); }

static void hook_clear(struct request *req)
{
    struct hook *h = req->context;
    hf_buf_clear(&h->result.output);
    for (int i = 0; i < N_HEADERS; i++)
        free(h->headers[i]);
    free(h);
}

static void answer_store(struct request *req, struct hook *h, const struct hf_answer *answer)
{
    const struct hf_execution *x = &answer->execution;
    switch (-answer->code) {
    case HF_OK:
        executions_learn(req->server, x);
        if (!x->duplicate)
            claims_nudge(req->server, x->workflow);
        h->duplicate = x->duplicate;
        if (h->wait_s)
            results_begin(&h->result, req, x, h->wait_s * 1000, answer_result);
        else
            answer_execution(req, h, x);
        break;
    case HF_HELD:
        answer_held(req, h, answer);
        break;
    case HF_RACED:
        answer_raced(req);
        break;
    default:
        answer_refused(req, h, answer);
    }
}

static void enqueue_done(struct job *job, int code, const struct hf_answer *answer,
                         const struct hf_error *err)
{
    struct request *req = request_back(job);
    if (!req)
        return;
    if (code < 0) {
        metrics_store_error(req->server, HF_OP_ENQUEUE);
        request_problem(req, -code, err->message, NULL);
    } else
        answer_store(req, req->context, answer);
}

/* All that may take a while with a large body: on a lane then. */
static int read_hook(struct request *req, struct hf_error *err)
{
    struct hook *h = req->context;
    int r = choose_key(req, h, err);
    return r < 0 ? r
                 : hf_workflow_lock(h->workflow, h->key[0] ? h->key : NULL, req->body.data,
                                    req->body.len, h->lock, err);
}

static void enqueue(struct request *req)
{
    req->job = (struct job){.ask = ask_for(req, req->context)};
    request_ask(req, LANE_WRITE, enqueue_done);
}

void post_webhook(struct request *req)
{
    char client[64];
    const struct secrets *secrets = NULL;
    const struct hf_workflow *workflow = request_workflow(req, req->name, &secrets);
    if (!workflow) {
        request_problem(req, HF_NOT_FOUND, "this service has no workflow of that name", NULL);
        return;
    }
    struct hook *h = req->context = calloc(1, sizeof *h);
    if (h) {
        req->forget = hook_forget;
        req->clear = hook_clear;
    }
    if (!h || !copy_headers(req, h)) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    h->workflow = workflow;
    h->secrets = secrets;
    h->wait_s = read_prefer(h->headers[HEADER_PREFER]);
    describe_client(req, client, sizeof client);
    snprintf(h->owner, sizeof h->owner, "webhook from %s", client);
    hf_token(h->id);
    body_take(req, read_hook, enqueue);
}
