#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "text.h"

/* ---- the handle ----------------------------------------------------------------------------- */

int hf_open(const char *url, struct hf **ret, struct hf_error *err)
{
    struct hf *hf = calloc(1, sizeof *hf);
    if (!hf)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf->pid = getpid();
    hf->poll_ms = HF_POLL_MS;
    int r = hf_store_open(url, &hf->store, err);
    if (r < 0) {
        free(hf);
        return r;
    }
    *ret = hf;
    return 0;
}

void hf_close(struct hf *hf)
{
    if (!hf)
        return;
    /* A forked child leaves the store alone: closing it would drop the parent's kernel locks. */
    if (hf->pid == getpid()) {
        hf_keeping_close(hf);
        hf_parked_close(hf);
        hf->store->ops->close(hf->store);
    }
    free(hf);
}

const char *hf_url(const struct hf *hf) { return hf->store->shown_url; }

bool hf_is_local(const struct hf *hf) { return hf->store->ops->is_local; }

int hf_check_handle(const struct hf *hf, struct hf_error *err)
{
    if (hf->pid == getpid())
        return 0;
    return hf_fail(err, HF_FORKED,
                   "this handle was opened by process %d before it forked; open a "
                   "new one here",
                   (int)hf->pid);
}

int hf_take_options(const void *opts, void *ret, size_t size, const char *init,
                    struct hf_error *err)
{
    size_t known = 0;
    if (!opts)
        return 0;
    memcpy(&known, opts, sizeof known);
    if (known < sizeof known || known > size)
        return hf_fail(err, HF_INVALID, "the options must start from %s", init);
    memcpy(ret, opts, known);
    return 0;
}

int64_t hf_deadline_ms(int64_t sent_ms, int64_t ttl_ms)
{
    enum { MARGIN_MAX_MS = 1000 };
    int64_t margin_ms = ttl_ms / 50 + 5, drift_ms = ttl_ms * HF_CLOCK_DRIFT_PPM / 1000000 + 5;
    if (margin_ms > MARGIN_MAX_MS)
        margin_ms = drift_ms > MARGIN_MAX_MS ? drift_ms : MARGIN_MAX_MS;
    return sent_ms + ttl_ms - margin_ms;
}

/* ---- checking what is asked ----------------------------------------------------------------- */

static int check_token(const char *token, struct hf_error *err)
{
    if (strlen(token) == HF_UUID_LEN && strspn(token, "0123456789abcdef-") == HF_UUID_LEN)
        return 0;
    return hf_fail(err, HF_INVALID,
                   "that is not a token; expected the %d characters that acquire printed",
                   HF_UUID_LEN);
}

static bool needs_token(enum hf_op op)
{
    return op == HF_OP_ACQUIRE || op == HF_OP_EXTEND || op == HF_OP_RELEASE || op == HF_OP_WITHDRAW;
}

static int check_id(const char *id, struct hf_error *err)
{
    if (!id || (strlen(id) == HF_UUID_LEN && strspn(id, "0123456789abcdef-") == HF_UUID_LEN))
        return 0;
    return hf_fail(err, HF_INVALID, "'%.40s' is not the id of an execution", id);
}

static int check_execution(const struct hf_request *req, struct hf_error *err)
{
    int r = req->workflow ? hf_check_name(req->workflow, err) : 0;
    if (r >= 0)
        r = hf_check_text("key", req->key, HF_KEY_MAX, err);
    if (r >= 0)
        r = check_id(req->execution_id, err);
    if (r >= 0)
        r = check_id(req->retry_of, err);
    if (r < 0)
        return r;
    bool needs_id = req->workflow || req->claim || req->op == HF_OP_CANCEL;
    if (needs_id && !req->execution_id)
        return hf_fail(err, HF_INVALID, "an execution needs an id");
    if (req->op == HF_OP_ENQUEUE && !req->workflow)
        return hf_fail(err, HF_INVALID, "an execution needs a workflow");
    if (req->once && !req->key)
        return hf_fail(err, HF_INVALID, "what is to happen once needs a key");
    if ((unsigned)req->on_lost > HF_ON_LOST_VERIFY || req->max_attempts < 0)
        return hf_fail(err, HF_INVALID, "there is no such on_lost, or a negative max_attempts");
    if ((unsigned)req->overlap > HF_OVERLAP_CANCEL || req->queue_limit < 0 || req->concurrency < 0)
        return hf_fail(err, HF_INVALID,
                       "there is no such overlap, or a negative queue_limit or concurrency");
    if (req->retry_backoff_ms < 0 || req->retry_backoff_ms > HF_TTL_MAX_MS)
        return hf_fail(err, HF_INVALID, "a retry waits between 0 ms and 366 days");
    if (req->input_size > HF_INPUT_MAX)
        return hf_fail(err, HF_TOO_LARGE, "the input has %zu bytes; at most %d are kept",
                       req->input_size, HF_INPUT_MAX);
    if (req->output_head_size > HF_OUTPUT_MAX || req->output_tail_size > HF_OUTPUT_MAX)
        return hf_fail(err, HF_TOO_LARGE, "the output is kept in two parts of at most %d bytes",
                       HF_OUTPUT_MAX);
    return 0;
}

int hf_check_request(const struct hf_request *req, struct hf_error *err)
{
    if ((unsigned)req->op > HF_OP_CANCEL)
        return hf_fail(err, HF_INVALID, "there is no operation %d", (int)req->op);
    int r = req->name ? hf_check_name(req->name, err)
                      : hf_fail(err, HF_INVALID, "a request needs a name");
    if (r >= 0 && req->token)
        r = check_token(req->token, err);
    else if (r >= 0 && needs_token(req->op))
        r = hf_fail(err, HF_INVALID, "a token is needed");
    if (r >= 0 && (req->op == HF_OP_ACQUIRE || req->ttl_ms))
        r = hf_check_ttl(req->ttl_ms, err);
    if (r >= 0)
        r = hf_check_text("owner", req->owner, HF_OWNER_MAX, err);
    if (r >= 0)
        r = hf_check_text("note", req->note, HF_NOTE_MAX, err);
    if (r >= 0)
        r = hf_check_text("reason", req->reason, HF_REASON_MAX, err);
    if (r >= 0)
        r = check_execution(req, err);
    return r;
}

int hf_apply(struct hf *hf, const struct hf_request *requests, size_t n, struct hf_answer *answers,
             struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = hf_check_request(&requests[i], err);
    if (r < 0 || n == 0)
        return r;
    int64_t sent_ms = hf_clock_boot_ms();
    r = hf->store->ops->apply(hf->store, requests, n, answers, err);
    for (size_t i = 0; r >= 0 && i < n; i++)
        if (answers[i].code >= 0 && answers[i].lease.ttl_ms)
            answers[i].lease.deadline_ms = hf_deadline_ms(sent_ms, answers[i].lease.ttl_ms);
    return r;
}

/* ---- asking --------------------------------------------------------------------------------- */

/* A start may be refused though its lock is free. */
static void refuse_held(const struct hf_request *request, const struct hf_answer *answer,
                        const char *who, struct hf_error *err)
{
    if (answer->holder.state == HF_STATE_HELD || !request->workflow)
        hf_fail(err, HF_HELD, "%s", who);
    else if (answer->holder.execution_id[0])
        hf_fail(err, HF_HELD, "%s has an execution that runs or waits: %s", request->name,
                answer->holder.execution_id);
    else
        hf_fail(err, HF_HELD,
                "%s has as many executions running as it may; try again when one has ended",
                request->workflow);
}

int hf_refusal(const struct hf_request *request, const struct hf_answer *answer,
               struct hf_error *err)
{
    if (!err)
        return answer->code;
    char who[HF_MESSAGE_MAX / 2];
    hf_describe_status(&answer->holder, who, sizeof who);
    switch (-answer->code) {
    case HF_HELD:
        refuse_held(request, answer, who, err);
        break;
    case HF_QUEUE_FULL:
        hf_fail(err, HF_QUEUE_FULL, "%d executions wait for %s already; try again later",
                request->queue_limit, request->name);
        break;
    case HF_LOST:
        hf_fail(err, HF_LOST, "the lease on %s was lost or is not yours; %s", request->name, who);
        break;
    case HF_FENCE_STALE:
        hf_fail(err, HF_FENCE_STALE, "fence %lld is not the current one; %s",
                (long long)request->fence, who);
        break;
    case HF_DONE_ALREADY:
        hf_fail(err, HF_DONE_ALREADY, "%s has already succeeded with key %s", request->workflow,
                request->key);
        break;
    case HF_KEY_REUSED:
        hf_fail(err, HF_KEY_REUSED,
                "%s has an execution with key %s and another input (%s); use another key",
                request->workflow, request->key, answer->execution.id);
        break;
    case HF_NOT_FOUND:
        hf_fail(err, HF_NOT_FOUND, "there is no execution %s", request->execution_id);
        break;
    default:
        hf_fail(err, -answer->code, "%s: %s", request->name, hf_code_meaning(answer->code));
    }
    err->has_holder = answer->has_holder;
    err->holder = answer->holder;
    return answer->code;
}

int hf_ask_store(struct hf *hf, const struct hf_request *request, struct hf_answer *answer,
                 int64_t *ret_sent_ms, struct hf_error *err)
{
    static const struct timespec pauses[] = {{0, 20000000}, {0, 100000000}, {0, 400000000}};
    for (size_t attempt = 0;; attempt++) {
        int64_t sent_ms = hf_clock_boot_ms();
        int r = hf_apply(hf, request, 1, answer, err);
        if (r == -HF_UNKNOWN && attempt < sizeof pauses / sizeof *pauses) {
            nanosleep(&pauses[attempt], NULL);
            continue;
        }
        if (r < 0)
            return r;
        if (ret_sent_ms)
            *ret_sent_ms = sent_ms;
        return answer->code < 0 ? hf_refusal(request, answer, err) : 0;
    }
}

/* ---- a lease's life after it was acquired --------------------------------------------------- */

int hf_renew(struct hf *hf, const struct hf_request *extend, struct hf_lease *ret,
             struct hf_error *err)
{
    struct hf_answer answer;
    int64_t sent_ms;
    int r = hf_ask_store(hf, extend, &answer, &sent_ms, err);
    if (r < 0)
        return r;
    answer.lease.deadline_ms = hf_deadline_ms(sent_ms, answer.lease.ttl_ms);
    *ret = answer.lease;
    return 0;
}

int hf_extend(struct hf *hf, struct hf_lease *lease, int64_t ttl_ms, struct hf_error *err)
{
    struct hf_request req = {.op = HF_OP_EXTEND,
                             .name = lease->name,
                             .token = lease->token,
                             .fence = lease->fence,
                             .ttl_ms = ttl_ms};
    return hf_renew(hf, &req, lease, err);
}

int hf_release(struct hf *hf, const struct hf_lease *lease, struct hf_error *err)
{
    struct hf_request req = {.op = HF_OP_RELEASE,
                             .name = lease->name,
                             .token = lease->token,
                             .fence = lease->fence,
                             .durable = lease->execution_id[0]};
    struct hf_answer answer;
    return hf_ask_store(hf, &req, &answer, NULL, err);
}

int hf_report_lost(struct hf *hf, const struct hf_lease *lease, const char *reason,
                   struct hf_error *err)
{
    struct hf_request req = {.op = HF_OP_LOST,
                             .name = lease->name,
                             .fence = lease->fence,
                             .owner = lease->owner,
                             .reason = reason};
    struct hf_answer answer;
    return hf_ask_store(hf, &req, &answer, NULL, err);
}

int hf_force_release(struct hf *hf, const char *name, int64_t fence, const char *reason,
                     struct hf_error *err)
{
    char owner[HF_OWNER_MAX + 1], host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(owner, sizeof owner, "uid %d on %s", (int)getuid(), host);
    struct hf_request req = {
        .op = HF_OP_FORCE, .name = name, .fence = fence, .reason = reason, .owner = owner};
    struct hf_answer answer;
    return hf_ask_store(hf, &req, &answer, NULL, err);
}

int hf_guard(struct hf *hf, const char *name, int64_t fence, struct hf_error *err)
{
    struct hf_request req = {.op = HF_OP_GUARD, .name = name, .fence = fence};
    struct hf_answer answer;
    return hf_ask_store(hf, &req, &answer, NULL, err);
}

/* ---- looking -------------------------------------------------------------------------------- */

int hf_status_of(struct hf *hf, const char *name, struct hf_status *ret, struct hf_error *err)
{
    struct hf_request req = {.op = HF_OP_STATUS, .name = name};
    struct hf_answer answer;
    int r = hf_ask_store(hf, &req, &answer, NULL, err);
    if (r >= 0)
        *ret = answer.holder;
    return r;
}

int hf_list_after(struct hf *hf, enum hf_list_filter filter, const char *prefix, const char *after,
                  hf_status_fn fn, void *arg, struct hf_error *err)
{
    struct hf_listing which = {filter, prefix ? prefix : "", after ? after : ""};
    int r = hf_check_handle(hf, err);
    if (r < 0 || strlen(which.prefix) > HF_NAME_MAX)
        return r; /* no name begins with what is longer */
    if (strlen(which.after) > HF_NAME_MAX)
        return hf_fail(err, HF_INVALID, "no name has more than %d bytes", HF_NAME_MAX);
    return hf->store->ops->list(hf->store, &which, fn, arg, err);
}

int hf_list(struct hf *hf, enum hf_list_filter filter, const char *prefix, hf_status_fn fn,
            void *arg, struct hf_error *err)
{
    return hf_list_after(hf, filter, prefix, NULL, fn, arg, err);
}

int hf_events(struct hf *hf, const struct hf_event_query *query, hf_event_fn fn, void *arg,
              struct hf_error *err)
{
    struct hf_event_query q = HF_EVENT_QUERY_INIT;
    int r = hf_check_handle(hf, err);
    if (r >= 0)
        r = hf_take_options(query, &q, sizeof q, "HF_EVENT_QUERY_INIT", err);
    if (r >= 0 && q.name)
        r = hf_check_name(q.name, err);
    return r < 0 ? r : hf->store->ops->events(hf->store, &q, fn, arg, err);
}

/* ---- housekeeping --------------------------------------------------------------------------- */

struct sweep {
    struct hf *hf;
    bool dry_run;
    hf_status_fn fn;
    void *arg;
    int64_t freed;
    int failed;
    struct hf_error *err;
};

/* What was stale when listed is freed only if it still is in the moment of freeing. */
static int sweep_one(void *arg, const struct hf_status *status)
{
    struct sweep *s = arg;
    struct hf_request req = {.op = HF_OP_SETTLE, .name = status->name};
    struct hf_answer answer;
    if (!s->dry_run) {
        s->failed = hf_ask_store(s->hf, &req, &answer, NULL, s->err);
        if (s->failed < 0)
            return 1;
        if (answer.freed == HF_STALE_NOT)
            return 0;
    }
    s->freed++;
    return s->fn ? s->fn(s->arg, status) : 0;
}

/* An execution that is RUNNING has the lease of its lock; else settling that lock ends it. */
static int mend_one(void *arg, const struct hf_execution *x)
{
    struct sweep *s = arg;
    struct hf_request look = {.op = HF_OP_STATUS, .name = x->lock};
    struct hf_request settle = {.op = HF_OP_SETTLE, .name = x->lock, .execution_id = x->id};
    struct hf_answer answer;
    s->failed = hf_ask_store(s->hf, &look, &answer, NULL, s->err); /* disturbs nobody */
    if (s->failed >= 0 && strcmp(answer.holder.execution_id, settle.execution_id) != 0)
        s->failed = hf_ask_store(s->hf, &settle, &answer, NULL, s->err);
    return s->failed < 0;
}

static int mend_executions(struct sweep *s)
{
    const struct hf_store *store = s->hf->store;
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    query.state = HF_RUNNING;
    if (s->dry_run || !store->ops->executions)
        return 0;
    int r = hf_executions(s->hf, &query, mend_one, s, s->err);
    return r < 0 ? r : s->failed;
}

int hf_sweep(struct hf *hf, bool dry_run, hf_status_fn fn, void *arg, int64_t *ret_freed,
             struct hf_error *err)
{
    struct sweep s = {.hf = hf, .dry_run = dry_run, .fn = fn, .arg = arg, .err = err};
    int r = hf_list(hf, HF_LIST_STALE, NULL, sweep_one, &s, err);
    if (r >= 0)
        r = s.failed;
    if (r >= 0)
        r = mend_executions(&s);
    if (r >= 0 && ret_freed)
        *ret_freed = s.freed;
    return r;
}

static int count_lock(void *arg, const struct hf_status *status)
{
    struct hf_totals *t = arg;
    t->locks_held += status->state == HF_STATE_HELD;
    t->locks_stale += status->state == HF_STATE_STALE;
    t->locks_free += status->state == HF_STATE_FREE;
    t->waiters += status->waiters;
    return 0;
}

int hf_totals_of(struct hf *hf, struct hf_totals *ret, struct hf_error *err)
{
    struct hf_totals totals = {0};
    int r = hf_check_handle(hf, err);
    if (r >= 0)
        r = hf->store->ops->totals(hf->store, &totals, err);
    if (r >= 0)
        r = hf_list(hf, HF_LIST_ALL, NULL, count_lock, &totals, err);
    if (r >= 0)
        *ret = totals;
    return r;
}

int hf_init(struct hf *hf, bool bump_epoch, struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    return r < 0 ? r : hf->store->ops->init(hf->store, bump_epoch, err);
}

int hf_schema(const char *url, const char **ret, struct hf_error *err)
{
    return hf_store_schema(url, ret, err);
}

const char *hf_caution(struct hf *hf)
{
    return hf->store->ops->caution ? hf->store->ops->caution(hf->store) : NULL;
}
