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
#include "locks.h"
#include "results.h"
#include "text.h"
#include "wire.h"

enum { PREFER_WAIT_MAX_S = 300 };

struct hook {
    struct result result; /* first: its end, where the client waits for that */
    const struct hf_workflow *workflow;
    char id[HF_UUID_LEN + 1], key[HF_KEY_MAX + 1], lock[HF_NAME_MAX + 1], owner[100];
    bool duplicate;
    int64_t wait_s;
};

static const char *header_of(const struct request *req, const char *name)
{
    return MHD_lookup_connection_value(req->mhd, MHD_HEADER_KIND, name);
}

/* ---- who sends it --------------------------------------------------------------------------- */

bool webhook_is_to_be_signed(struct request *req)
{
    const struct secrets *secrets = NULL;
    if (req->route->verb == VERB_WEBHOOKS_WRITE)
        request_workflow(req, req->name, &secrets);
    return secrets != NULL;
}

static int check_signature(const struct request *req, const struct secrets *secrets,
                           enum signature_scheme *ret, struct hf_error *err)
{
    struct signed_message message = {.webhook_id = header_of(req, "webhook-id"),
                                     .webhook_timestamp = header_of(req, "webhook-timestamp"),
                                     .webhook_signature = header_of(req, "webhook-signature"),
                                     .hub_signature = header_of(req, "X-Hub-Signature-256"),
                                     .stripe_signature = header_of(req, "Stripe-Signature"),
                                     .body = {req->body.data, req->body.len}};
    return signature_check(&message, secrets, hf_clock_wall_ms() / 1000, ret, err);
}

/* ---- what is asked for ---------------------------------------------------------------------- */

/* The key of the first of these headers that is there. */
static int take_header_key(const struct request *req, const char *const *names, struct hook *h,
                           struct hf_error *err)
{
    const char *value = NULL;
    while (!value && *names)
        value = header_of(req, *names++);
    if (!value)
        return 0;
    if (!*value || hf_check_text("key", value, HF_KEY_MAX, NULL) < 0)
        return hf_fail(err, HF_INVALID,
                       "the header %s must be text of 1 to %d bytes without control characters",
                       names[-1], HF_KEY_MAX);
    strcpy(h->key, value);
    return 0;
}

static int take_path_key(const struct request *req, struct hook *h, struct hf_error *err)
{
    return h->key[0] ? 0 : hf_workflow_key(h->workflow, req->body.data, req->body.len, h->key, err);
}

/* What a signature covers comes first: who replays it may have changed the rest. */
static int choose_signed_key(const struct request *req, enum signature_scheme scheme,
                             struct hook *h, struct hf_error *err)
{
    static const char *const id_alone[] = {"webhook-id", NULL};
    return scheme == SIGNED_STANDARD ? take_header_key(req, id_alone, h, err)
                                     : take_path_key(req, h, err);
}

static int choose_key(const struct request *req, struct hook *h, struct hf_error *err)
{
    static const char *const all[] = {"Idempotency-Key", "webhook-id", "X-GitHub-Delivery", NULL};
    int r = h->key[0] ? 0 : take_header_key(req, all, h, err);
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
    const struct hf_workflow *w = h->workflow;
    int64_t backoff_ms = w->retry_backoff_ms > 0 ? w->retry_backoff_ms : 1; /* 0: never again */
    return (struct hf_request){.op = HF_OP_ENQUEUE,
                               .name = h->lock,
                               .owner = h->owner,
                               .durable = true,
                               .workflow = w->name,
                               .key = h->key[0] ? h->key : NULL,
                               .input = req->body.data,
                               .input_size = req->body.len,
                               .execution_id = h->id,
                               .on_lost = (enum hf_on_lost)w->on_lost,
                               .max_attempts = hf_workflow_max_attempts(w),
                               .retry_backoff_ms = w->retries > 0 ? backoff_ms : 0,
                               .concurrency = (int32_t)w->concurrency,
                               .overlap = (enum hf_overlap)w->overlap,
                               .queue_limit = (int32_t)w->queue_limit};
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

static void hook_forget(struct request *req)
{
    struct hook *h = req->context;
    if (!h)
        return;
    if (req->working) { /* a lane uses it: forgotten when that is done */
        results_leave(&h->result);
        return;
    }
    results_end(&h->result);
    free(h);
    req->context = NULL;
}

static void answer_store(struct request *req, struct hook *h, const struct hf_answer *answer)
{
    switch (-answer->code) {
    case HF_OK:
        h->duplicate = answer->execution.duplicate;
        if (h->wait_s)
            results_begin(&h->result, req, &answer->execution, h->wait_s * 1000, answer_result);
        else
            answer_execution(req, h, &answer->execution);
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
    struct request *req = (struct request *)((char *)job - offsetof(struct request, job));
    req->working = false;
    if (req->gone)
        hook_forget(req);
    if (!(req = request_back(job)))
        return;
    if (code < 0) {
        metrics_store_error(req->server, HF_OP_ENQUEUE);
        request_problem(req, -code, err->message, NULL);
    } else
        answer_store(req, req->context, answer);
}

/* All that can be refused before the store is asked. */
static int prepare(struct request *req, struct hook *h, const struct secrets *secrets,
                   struct hf_error *err)
{
    enum signature_scheme scheme;
    char client[64];
    int r = secrets ? check_signature(req, secrets, &scheme, err) : 0;
    if (r >= 0 && secrets)
        r = choose_signed_key(req, scheme, h, err);
    if (r >= 0)
        r = choose_key(req, h, err);
    if (r >= 0)
        r = hf_workflow_lock(h->workflow, h->key[0] ? h->key : NULL, req->body.data, req->body.len,
                             h->lock, err);
    describe_client(req, client, sizeof client);
    snprintf(h->owner, sizeof h->owner, "webhook from %s", client);
    hf_token(h->id);
    h->wait_s = read_prefer(header_of(req, "Prefer"));
    return r;
}

void post_webhook(struct request *req)
{
    struct hf_error err;
    const struct secrets *secrets = NULL;
    const struct hf_workflow *workflow = request_workflow(req, req->name, &secrets);
    if (!workflow) {
        request_problem(req, HF_NOT_FOUND, "this service has no workflow of that name", NULL);
        return;
    }
    struct hook *h = req->context = calloc(1, sizeof *h);
    if (!h) {
        request_problem(req, HF_NOMEM, "out of memory", NULL);
        return;
    }
    h->workflow = workflow;
    req->forget = hook_forget;
    if (prepare(req, h, secrets, &err) < 0) {
        request_fail(req, &err);
        return;
    }
    req->job = (struct job){.ask = ask_for(req, h)};
    request_ask(req, LANE_WRITE, enqueue_done);
}
