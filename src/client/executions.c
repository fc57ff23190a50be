/* Executions: their records are the store's, what happens to them is core/begin.c's. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "process.h"
#include "text.h"

enum { CLAIM_BATCH = 128 };

/* -HF_FORKED, or -HF_UNSUPPORTED where the store keeps locks only. */
static int check_store(const struct hf *hf, struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    if (r < 0 || hf->store->ops->executions)
        return r;
    return hf_fail(err, HF_UNSUPPORTED,
                   "the %s store keeps locks only; use sqlite: or postgres: for executions",
                   hf->store->ops->scheme);
}

/* ---- beginning ------------------------------------------------------------------------------ */

static struct hf_request begin_request(const struct hf_begin_options *o, const char *new_id)
{
    return (struct hf_request){.name = o->lock ? o->lock : o->workflow,
                               .workflow = o->workflow,
                               .key = o->key,
                               .once = o->once,
                               .input = o->input,
                               .input_size = o->input_size,
                               .execution_id = o->id ? o->id : new_id,
                               .retry_of = o->retry_of,
                               .run_at_ms = o->run_at_ms,
                               .priority = o->priority,
                               .on_lost = o->on_lost,
                               .max_attempts = o->max_attempts,
                               .retry_backoff_ms = o->retry_backoff_ms,
                               .concurrency = o->concurrency,
                               .overlap = o->overlap,
                               .queue_limit = o->queue_limit};
}

static int take_begin_options(const struct hf_begin_options *opts, struct hf_begin_options *ret,
                              struct hf_error *err)
{
    int r = hf_take_options(opts, ret, sizeof *ret, "HF_BEGIN_INIT", err);
    if (r >= 0 && !ret->workflow)
        r = hf_fail(err, HF_INVALID, "an execution needs a workflow");
    return r;
}

int hf_begin(struct hf *hf, const struct hf_begin_options *opts, struct hf_lease *ret,
             struct hf_execution *ret_execution, struct hf_error *err)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    char new_id[HF_UUID_LEN + 1];
    int r = check_store(hf, err);
    if (r >= 0)
        r = take_begin_options(opts, &o, err);
    if (r < 0)
        return r;
    hf_token(new_id);
    struct hf_request begun = begin_request(&o, new_id);
    struct hf_acquire_options acquire = HF_ACQUIRE_INIT;
    acquire.ttl_ms = o.ttl_ms;
    acquire.wait_ms = o.wait_ms;
    acquire.owner = o.owner;
    acquire.note = o.note;
    acquire.token = o.token;
    acquire.priority = o.priority;
    memcpy(acquire.bound, o.bound, sizeof acquire.bound);
    acquire.n_bound = o.n_bound;
    acquire.cancel_fd = o.cancel_fd;
    return hf_acquire_for(hf, begun.name, &acquire, &begun, ret, ret_execution, err);
}

int hf_enqueue(struct hf *hf, const struct hf_begin_options *opts,
               struct hf_execution *ret_execution, struct hf_error *err)
{
    struct hf_begin_options o = HF_BEGIN_INIT;
    char new_id[HF_UUID_LEN + 1], owner[HF_OWNER_MAX + 1];
    struct hf_answer answer;
    int r = check_store(hf, err);
    if (r >= 0)
        r = take_begin_options(opts, &o, err);
    if (r < 0)
        return r;
    hf_token(new_id);
    hf_process_describe(getpid(), owner, sizeof owner);
    struct hf_request req = begin_request(&o, new_id);
    req.op = HF_OP_ENQUEUE;
    req.owner = o.owner ? o.owner : owner;
    if ((r = hf_ask_store(hf, &req, &answer, NULL, err)) < 0)
        return r;
    if (ret_execution)
        *ret_execution = answer.execution;
    return 0;
}

/* ---- claiming ------------------------------------------------------------------------------- */

static struct hf_due due_of(const struct hf_claim_options *o, size_t skip, size_t limit)
{
    return (struct hf_due){.workflows = o->workflows,
                           .n_workflows = o->workflows ? o->n_workflows : 0,
                           .wall_ms = hf_clock_wall_ms(),
                           .verifies = o->verifies,
                           .skip = skip,
                           .limit = limit};
}

int hf_due(struct hf *hf, const struct hf_claim_options *opts, size_t skip, size_t max,
           struct hf_execution *ret, size_t *ret_n, struct hf_error *err)
{
    struct hf_claim_options o = HF_CLAIM_INIT;
    int r = check_store(hf, err);
    if (r >= 0)
        r = hf_take_options(opts, &o, sizeof o, "HF_CLAIM_INIT", err);
    struct hf_due due = due_of(&o, skip, max);
    return r < 0 ? r : hf->store->ops->due(hf->store, &due, ret, ret_n, err);
}

struct claiming {
    struct hf *hf;
    struct hf_claim_options opts;
    char owner[HF_OWNER_MAX + 1];
    struct hf_execution found[CLAIM_BATCH];
    char tokens[CLAIM_BATCH][HF_UUID_LEN + 1];
    struct hf_request requests[CLAIM_BATCH];
    struct hf_answer answers[CLAIM_BATCH];
    size_t n;       /* answers */
    size_t refused; /* so far, and not parked: they stand before the others the next time */
    bool more;      /* there may be */
};

static struct hf_request claim_request(const struct claiming *c)
{
    return (struct hf_request){.op = HF_OP_ACQUIRE,
                               .ttl_ms = c->opts.ttl_ms,
                               .owner = c->owner,
                               .bound = {c->opts.bound[0], c->opts.bound[1]},
                               .n_bound = c->opts.n_bound,
                               .claim = true,
                               .verifies = c->opts.verifies};
}

/* What is due is looked for, then asked for; all in one transaction. */
static int ask_for_due(struct claiming *c, const struct hf_due *due, bool again,
                       struct hf_error *err)
{
    const struct hf_store_ops *ops = c->hf->store->ops;
    int r = again ? 0 : ops->due(c->hf->store, due, c->found, &c->n, err);
    for (size_t i = 0; r >= 0 && i < c->n; i++) {
        c->requests[i] = claim_request(c);
        c->requests[i].name = c->found[i].lock;
        c->requests[i].execution_id = c->found[i].id;
        c->requests[i].token = c->tokens[i];
    }
    return r < 0 || c->n == 0 ? r : hf_apply(c->hf, c->requests, c->n, c->answers, err);
}

/* Where the store does both at once. */
static int ask_for_claim(struct claiming *c, const struct hf_due *due, bool again,
                         struct hf_error *err)
{
    const char *tokens[CLAIM_BATCH];
    struct hf_request like = claim_request(c);
    for (size_t i = 0; i < due->limit; i++)
        tokens[i] = c->tokens[i];
    return c->hf->store->ops->claim(c->hf->store, due, &like, tokens, again, c->answers, &c->n,
                                    err);
}

/* An unknown outcome is asked for again with the same tokens. */
static int ask_for_some(struct claiming *c, const struct hf_due *due, int64_t *ret_sent_ms,
                        struct hf_error *err)
{
    static const struct timespec pause = {.tv_nsec = 100000000};
    for (size_t i = 0; i < due->limit; i++)
        hf_token(c->tokens[i]);
    for (int attempt = 0;; attempt++) {
        *ret_sent_ms = hf_clock_boot_ms();
        int r = c->hf->store->ops->claim ? ask_for_claim(c, due, attempt > 0, err)
                                         : ask_for_due(c, due, attempt > 0, err);
        if (r != -HF_UNKNOWN || attempt == 3)
            return r;
        nanosleep(&pause, NULL);
    }
}

static int claim_some(struct claiming *c, size_t max, struct hf_claimed *ret, size_t *ret_n,
                      struct hf_error *err)
{
    struct hf_due due = due_of(&c->opts, c->refused, max < CLAIM_BATCH ? max : CLAIM_BATCH);
    int64_t sent_ms;
    size_t refused = c->refused;
    *ret_n = c->n = 0;
    int r = ask_for_some(c, &due, &sent_ms, err);
    for (size_t i = 0; r >= 0 && i < c->n; i++) {
        if (c->answers[i].code < 0) {
            c->refused += c->answers[i].code == -HF_HELD && !c->answers[i].execution.parked;
            continue;
        }
        struct hf_claimed *claimed = &ret[(*ret_n)++];
        claimed->lease = c->answers[i].lease;
        claimed->lease.deadline_ms = hf_deadline_ms(sent_ms, claimed->lease.ttl_ms);
        claimed->execution = c->answers[i].execution;
    }
    /* Fewer than asked for: that was all. Only what could not be had for now: not again. */
    c->more = c->n == due.limit && c->refused - refused < c->n;
    return r;
}

/* The options as they are sent: checked, and with what was left out. */
static int take_claim_options(struct claiming *c, const struct hf_claim_options *opts,
                              struct hf_error *err)
{
    c->opts = (struct hf_claim_options)HF_CLAIM_INIT;
    int r = hf_take_options(opts, &c->opts, sizeof c->opts, "HF_CLAIM_INIT", err);
    if (r < 0)
        return r;
    if (!c->opts.ttl_ms)
        c->opts.ttl_ms = HF_TTL_DEFAULT_MS;
    r = hf_check_ttl(c->opts.ttl_ms, err);
    if (r >= 0)
        r = hf_check_text("owner", c->opts.owner, HF_OWNER_MAX, err);
    if (r >= 0 && c->opts.owner)
        strcpy(c->owner, c->opts.owner);
    else if (r >= 0)
        hf_process_describe(getpid(), c->owner, sizeof c->owner);
    return r;
}

int hf_claim(struct hf *hf, const struct hf_claim_options *opts, size_t max, struct hf_claimed *ret,
             size_t *ret_n, struct hf_error *err)
{
    int r = check_store(hf, err);
    struct claiming *c = r < 0 ? NULL : calloc(1, sizeof *c);
    if (!c)
        return r < 0 ? r : hf_fail(err, HF_NOMEM, "out of memory");
    c->hf = hf;
    r = take_claim_options(c, opts, err);
    size_t n = 0, some;
    do {
        some = 0;
        if (r >= 0)
            r = claim_some(c, max - n, ret + n, &some, err);
        n += some;
    } while (r >= 0 && n < max && c->more);
    free(c);
    if (r < 0 && n == 0)
        return r; /* what was claimed before a failure is ours all the same */
    *ret_n = n;
    return 0;
}

/* ---- while it runs, and its end ------------------------------------------------------------- */

void hf_request_output(struct hf_request *req, const struct hf_result *result)
{
    req->has_output = true;
    req->output_head = result->output_head;
    req->output_head_size = result->output_head_size;
    req->output_tail = result->output_tail;
    req->output_tail_size = result->output_tail_size;
    req->output_skipped = result->output_skipped;
}

int hf_spawned(struct hf *hf, struct hf_lease *lease, struct hf_error *err)
{
    struct hf_request req = {.op = HF_OP_EXTEND,
                             .name = lease->name,
                             .token = lease->token,
                             .fence = lease->fence,
                             .spawned = true};
    return hf_renew(hf, &req, lease, err);
}

int hf_finish(struct hf *hf, const struct hf_lease *lease, const struct hf_result *result,
              struct hf_error *err)
{
    static const enum hf_outcome outcomes[HF_EXECUTION_STATE_COUNT] = {
        [HF_SUCCESS] = HF_OUTCOME_SUCCESS,
        [HF_FAILED] = HF_OUTCOME_FAILED,
        [HF_ABORTED] = HF_OUTCOME_ABORTED};
    struct hf_result r = HF_RESULT_INIT;
    struct hf_answer answer;
    int code = hf_take_options(result, &r, sizeof r, "HF_RESULT_INIT", err);
    if (code < 0)
        return code;
    if ((unsigned)r.state >= HF_EXECUTION_STATE_COUNT || outcomes[r.state] == HF_OUTCOME_NONE)
        return hf_fail(err, HF_INVALID, "an execution ends as SUCCESS, FAILED or ABORTED");
    struct hf_request req = {.op = HF_OP_RELEASE,
                             .name = lease->name,
                             .token = lease->token,
                             .fence = lease->fence,
                             .reason = r.reason,
                             .execution_id = lease->execution_id[0] ? lease->execution_id : NULL,
                             .outcome = outcomes[r.state],
                             .has_exit_code = r.has_exit_code,
                             .exit_code = r.exit_code};
    if (r.output_head_size || r.output_tail_size || r.output_skipped)
        hf_request_output(&req, &r);
    return hf_ask_store(hf, &req, &answer, NULL, err);
}

int hf_cancel(struct hf *hf, const char *id, struct hf_execution *ret, struct hf_error *err)
{
    struct hf_execution x;
    struct hf_answer answer;
    char owner[HF_OWNER_MAX + 1];
    int r = hf_execution_of(hf, id, &x, err);
    if (r < 0)
        return r;
    hf_process_describe(getpid(), owner, sizeof owner);
    struct hf_request req = {
        .op = HF_OP_CANCEL, .name = x.lock, .execution_id = x.id, .owner = owner};
    if ((r = hf_ask_store(hf, &req, &answer, NULL, err)) < 0)
        return r;
    if (ret)
        *ret = answer.execution;
    return 0;
}

/* ---- looking -------------------------------------------------------------------------------- */

int hf_execution_of(struct hf *hf, const char *id, struct hf_execution *ret, struct hf_error *err)
{
    int r = check_store(hf, err);
    return r < 0 ? r : hf->store->ops->execution(hf->store, id, ret, err);
}

int hf_execution_data(struct hf *hf, const char *id, enum hf_execution_data which, hf_data_fn fn,
                      void *arg, struct hf_error *err)
{
    int r = check_store(hf, err);
    return r < 0 ? r : hf->store->ops->execution_data(hf->store, id, which, fn, arg, err);
}

int hf_executions(struct hf *hf, const struct hf_execution_query *query, hf_execution_fn fn,
                  void *arg, struct hf_error *err)
{
    struct hf_execution_query q = HF_EXECUTION_QUERY_INIT;
    int r = check_store(hf, err);
    if (r >= 0)
        r = hf_take_options(query, &q, sizeof q, "HF_EXECUTION_QUERY_INIT", err);
    if (r >= 0 && q.state >= HF_EXECUTION_STATE_COUNT)
        r = hf_fail(err, HF_INVALID, "there is no execution state %d", q.state);
    return r < 0 ? r : hf->store->ops->executions(hf->store, &q, fn, arg, err);
}

int hf_last_key(struct hf *hf, const char *workflow, const char *from, const char *to,
                char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    int r = check_store(hf, err);
    if (r < 0)
        return r;
    if (!hf->store->ops->last_key)
        return hf_fail(err, HF_UNSUPPORTED, "the %s store can't be asked for its last key",
                       hf->store->ops->scheme);
    return hf->store->ops->last_key(hf->store, workflow, from, to, ret, err);
}

/* ---- who runs them -------------------------------------------------------------------------- */

static bool is_ours(const struct hf_processes *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (all->of[i].pid == getpid())
            return true;
    return false;
}

int hf_runners_watch(struct hf *hf, int *ret_fds, size_t max, size_t *ret_n, bool *ret_dead,
                     struct hf_error *err)
{
    enum { SETS = 64 };
    struct hf_processes sets[SETS];
    size_t n_sets = 0, n = 0;
    bool dead = false;
    int r = hf_check_handle(hf, err);
    if (r < 0)
        return r;
    if (!hf->store->ops->runners)
        return hf_fail(err, HF_UNSUPPORTED, "%s can't tell who runs executions", hf_url(hf));
    r = hf->store->ops->runners(hf->store, sets, SETS, &n_sets, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n_sets; i++) {
        int fds[HF_BOUND_MAX];
        if (is_ours(&sets[i]))
            continue;
        hf_processes_watch(&sets[i], fds);
        for (int k = 0; k < HF_BOUND_MAX; k++)
            if (fds[k] >= 0 && n < max)
                ret_fds[n++] = fds[k];
            else if (fds[k] >= 0)
                close(fds[k]);
        dead |= hf_processes_alive(&sets[i]) == HF_DEAD;
    }
    *ret_n = n;
    *ret_dead = dead;
    return 0;
}
