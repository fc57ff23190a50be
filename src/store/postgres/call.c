/*
 * Requests become calls of the functions in schema/1-requests.sql, and their rows become answers. Many
 * requests travel together: one pipeline, one transaction, one round trip, sorted by name so that
 * two batches never lock crosswise. Each name has one request in a pipeline; what else concerns it
 * follows in the next one, so that a call that has to be repeated (because the server wants us to
 * look at a process first) is never overtaken by a later one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "failpoint.h"
#include "postgres_store.h"

enum {
    PIPELINE_MAX = HF_PG_MANY_MAX,
    IDS_MAX_BYTES = 1 << 22,
    LOOK = 100,       /* the answer's code: look at these processes, and ask again */
    PRUNE_EVERY = 511 /* fences; odd, since a grant and its release take two numbers */
};

/* One request on its way. */
struct task {
    const struct hf_request *req;
    struct hf_answer *answer;
    bool done;
    struct hf_lock_id id;
    char processes[HF_PG_PROCESSES_MAX], channel[HF_PG_CHANNEL_LEN + 1];
    struct hf_pg_seen seen;
    struct hf_buf alive, dead;
};

/* ---- requests ------------------------------------------------------------------------------- */

/* Whom we can judge, and how we have: the last parameters of every function that may have to. */
static void bind_judgement(struct hf_postgres *s, struct task *t, struct hf_pg_statement *st)
{
    bool any = t->seen.n > 0;
    if (any) {
        hf_pg_ids(&t->seen, false, &t->alive);
        hf_pg_ids(&t->seen, true, &t->dead);
    }
    hf_pg_bind_text(st, s->here);
    hf_pg_bind_as(st, HF_PG_BYTEA_ARRAY, any && !t->alive.failed ? t->alive.data : "{}");
    hf_pg_bind_as(st, HF_PG_BYTEA_ARRAY, any && !t->dead.failed ? t->dead.data : "{}");
}

static void bind_acquire(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    const struct hf_request *req = t->req;
    hf_pg_bind_id(st, &t->id);
    hf_pg_bind_int(st, HF_PG_INT8, req->ttl_ms);
    hf_pg_bind_int(st, HF_PG_INT8, req->wait_ms);
    hf_pg_bind_text(st, req->owner);
    hf_pg_bind_text(st, req->note);
    hf_pg_bind_int(st, HF_PG_INT4, req->priority);
    hf_pg_bind_text(st, t->processes);
    hf_pg_bind_text(st, channel);
}

static void bind_begin(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    bind_acquire(t, channel, st);
    hf_pg_bind_wish(st, t->req);
    hf_pg_bind_bool(st, t->req->claim);
}

static void bind_extend(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->ttl_ms);
}

static void bind_beat(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    bind_extend(t, channel, st);
    hf_pg_bind_bool(st, t->req->spawned);
    hf_pg_bind_output(st, t->req);
}

static void bind_release(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_text(st, t->req->reason);
}

static void bind_finish(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_int(st, HF_PG_INT4, t->req->outcome);
    hf_pg_bind_bool(st, t->req->has_exit_code);
    hf_pg_bind_int(st, HF_PG_INT4, t->req->exit_code);
    hf_pg_bind_text(st, t->req->reason);
    hf_pg_bind_as(st, HF_PG_UUID, t->req->execution_id);
    hf_pg_bind_output(st, t->req);
}

static void bind_withdraw(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
}

/* force, report_lost */
static void bind_word(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_text(st, t->req->owner);
    hf_pg_bind_text(st, t->req->reason);
}

static void bind_enqueue(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_text(st, t->req->owner);
    hf_pg_bind_int(st, HF_PG_INT4, t->req->priority);
    hf_pg_bind_wish(st, t->req);
}

static void bind_cancel(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_as(st, HF_PG_UUID, t->req->execution_id);
    hf_pg_bind_text(st, t->req->owner);
}

static void bind_settle_execution(struct task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_as(st, HF_PG_UUID, t->req->execution_id);
}

struct call {
    const char *sql;
    void (*bind)(struct task *t, const char *channel, struct hf_pg_statement *st);
};

static const struct call calls[] = {
    [HF_OP_ACQUIRE] = {"SELECT holdfast.acquire($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)",
                       bind_acquire},
    [HF_OP_EXTEND] = {"SELECT holdfast.extend($1,$2,$3,$4,$5,$6,$7)", bind_extend},
    [HF_OP_RELEASE] = {"SELECT holdfast.release($1,$2,$3,$4,$5,$6,$7)", bind_release},
    [HF_OP_WITHDRAW] = {"SELECT holdfast.withdraw($1,$2,$3,$4,$5)", bind_withdraw},
    [HF_OP_FORCE] = {"SELECT holdfast.force($1,$2,$3,$4,$5,$6,$7)", bind_word},
    [HF_OP_SETTLE] = {"SELECT holdfast.settle($1,$2,$3,$4)", NULL},
    [HF_OP_LOST] = {"SELECT holdfast.report_lost($1,$2,$3,$4,$5,$6,$7)", bind_word},
    [HF_OP_STATUS] = {"SELECT holdfast.status($1)", NULL},
    [HF_OP_GUARD] = {"SELECT holdfast.status($1)", NULL},
    [HF_OP_ENQUEUE] = {"SELECT holdfast.enqueue_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,"
                       "$13,$14,$15)",
                       bind_enqueue},
    [HF_OP_CANCEL] = {"SELECT holdfast.cancel_execution($1,$2,$3,$4,$5,$6)", bind_cancel},
};

/* The same with an execution; who has none does not pay for it. */
static const struct call calls_with_execution[] = {
    [HF_OP_ACQUIRE] = {"SELECT holdfast.begin_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,"
                       "$14,$15,$16,$17,$18,$19,$20,$21,$22)",
                       bind_begin},
    [HF_OP_EXTEND] = {"SELECT holdfast.extend_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)",
                      bind_beat},
    [HF_OP_RELEASE] = {"SELECT holdfast.finish_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,"
                       "$13,$14,$15)",
                       bind_finish},
    [HF_OP_SETTLE] = {"SELECT holdfast.settle_execution($1,$2,$3,$4,$5)", bind_settle_execution},
};

static bool has_execution(const struct hf_request *req)
{
    switch (req->op) {
    case HF_OP_ACQUIRE:
        return req->workflow || req->claim;
    case HF_OP_EXTEND:
        return req->spawned || req->has_output;
    case HF_OP_RELEASE:
        return req->outcome != HF_OUTCOME_NONE || req->has_output;
    case HF_OP_SETTLE:
        return req->execution_id != NULL;
    default:
        return false;
    }
}

static void make_statement(struct hf_postgres *s, struct task *t, struct hf_pg_statement *ret)
{
    hf_pg_channel(s->listener, &t->id, t->channel);
    const struct call *call =
        has_execution(t->req) ? &calls_with_execution[t->req->op] : &calls[t->req->op];
    *ret = (struct hf_pg_statement){.sql = call->sql};
    hf_pg_bind_text(ret, t->req->name);
    if (call->bind)
        call->bind(t, t->channel, ret);
    if (!hf_op_is_read(t->req->op))
        bind_judgement(s, t, ret);
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static int begin_task(struct hf_postgres *s, struct task *t, const struct hf_request *req,
                      struct hf_answer *answer, struct hf_error *err)
{
    struct hf_processes bound;
    *t = (struct task){.req = req,
                       .answer = answer,
                       .alive = HF_BUF(IDS_MAX_BYTES),
                       .dead = HF_BUF(IDS_MAX_BYTES)};
    if (req->token)
        t->id = hf_lock_id_of(req->token);
    int r = hf_processes_identify(req->bound, req->n_bound, &bound, err);
    if (r < 0)
        return r;
    hf_pg_format_processes(&bound, t->processes);
    if (!hf_op_is_read(req->op))
        hf_pg_recall(s->memory, req->name, &t->seen);
    return 0;
}

static void end_task(struct hf_postgres *s, struct task *t)
{
    hf_pg_remember(s->memory, t->req->name, &t->seen);
    hf_pg_seen_clear(&t->seen);
    hf_buf_clear(&t->alive);
    hf_buf_clear(&t->dead);
}

/* Old events and executions go in small pieces, now and then, after a grant. Nobody waits for it. */
static void prune_sometimes(struct hf_postgres *s, const struct hf_answer *answer)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.prune(1000)"};
    PGresult *result;
    if (answer->lease.fence && answer->lease.fence % PRUNE_EVERY == 0 &&
        hf_pg_exchange(s, &st, 1, true, &result, NULL, NULL) >= 0)
        hf_pg_clear(&result, 1);
}

/* A row for each call: an answer, or somebody to look at. */
static int take_results(struct task **tasks, size_t n, PGresult **results, struct hf_error *err)
{
    struct hf_pg_row row;
    for (size_t i = 0; i < n; i++) {
        if (!results[i] || hf_pq.PQntuples(results[i]) != 1)
            return hf_fail(err, HF_INTERNAL, "holdfast's function answered no row for %s",
                           tasks[i]->req->name);
        memset(&row, 0, sizeof row);
        hf_pg_take_row(results[i], &row);
        if (row.code != LOOK) {
            row.lock.ended = hf_op_is_read(tasks[i]->req->op) && row.execution_id[0] &&
                             row.execution.state != HF_RUNNING;
            hf_pg_fill_answer(&row, tasks[i]->req, tasks[i]->answer);
            tasks[i]->done = true;
        } else if (!hf_pg_look(&tasks[i]->seen, row.look))
            return hf_fail(err, HF_INTERNAL, "holdfast's function asks again and again who lives");
    }
    return 0;
}

/* One round trip for those that are not done yet. */
static int send_tasks(struct hf_postgres *s, struct task **tasks, size_t n,
                      struct hf_pg_fault *fault, struct hf_error *err)
{
    struct hf_pg_statement statements[PIPELINE_MAX];
    PGresult *results[PIPELINE_MAX];
    bool changes = false, durable = false;
    size_t i = 0;
    do {
        make_statement(s, tasks[i], &statements[i]);
        changes |= !hf_op_is_read(tasks[i]->req->op);
        durable |= hf_request_is_durable(tasks[i]->req);
    } while (++i < n);
    if (durable)
        hf_failpoint(HF_FAIL_BEFORE_COMMIT);
    int r = hf_pg_exchange(s, statements, n, changes, results, fault, err);
    if (durable)
        hf_failpoint(HF_FAIL_AFTER_COMMIT);
    if (r < 0)
        return r;
    r = take_results(tasks, n, results, err);
    hf_pg_clear(results, n);
    return r;
}

/* A transaction that guards the fence is in the way: held, by it, whoever held it before. */
static int answer_guarded(struct hf_postgres *s, struct task *t, struct hf_error *err)
{
    const struct hf_request *req = t->req, ask = {.op = HF_OP_STATUS, .name = req->name};
    struct task look = {.req = &ask, .answer = t->answer}, *one = &look;
    struct hf_pg_fault fault;
    int r = send_tasks(s, &one, 1, &fault, err);
    if (r < 0)
        return r;
    struct hf_answer *answer = t->answer;
    answer->code = -HF_HELD;
    answer->queued = req->wait_ms != 0;
    if (answer->holder.state != HF_STATE_HELD) {
        answer->holder.state = HF_STATE_HELD;
        strcpy(answer->holder.owner, "a transaction that guards its last fence");
    }
    t->done = true;
    return 0;
}

/* Until it is answered; each turn the server knows of more processes whether they live. */
static int finish_alone(struct hf_postgres *s, struct task *t, struct hf_error *err)
{
    struct hf_pg_fault fault;
    while (!t->done) {
        int r = send_tasks(s, &t, 1, &fault, err);
        if (r < 0 && t->req->op == HF_OP_ACQUIRE && hf_pg_is(&fault, "55P03"))
            r = answer_guarded(s, t, err);
        if (r < 0)
            return r;
    }
    prune_sometimes(s, t->answer);
    return 0;
}

/* The same for a batch: what goes wrong with one must not keep the others from being answered. */
static int finish_all(struct hf_postgres *s, struct task *tasks, size_t n, struct hf_error *err)
{
    struct task *open[PIPELINE_MAX];
    struct hf_pg_fault fault;
    size_t n_open;
    int r = 0;
    do {
        n_open = 0;
        for (size_t i = 0; i < n; i++)
            if (!tasks[i].done)
                open[n_open++] = &tasks[i];
        r = n_open ? send_tasks(s, open, n_open, &fault, err) : 0;
    } while (r >= 0 && n_open);
    if (r >= 0 || !fault.sqlstate[0])
        return r;
    for (size_t i = 0; i < n_open; i++) {
        r = finish_alone(s, open[i], err);
        if (r == -HF_UNKNOWN)
            return r;
        if (r < 0)
            *open[i]->answer = (struct hf_answer){.code = r};
        open[i]->done = true;
    }
    return 0;
}

/* ---- batches -------------------------------------------------------------------------------- */

struct entry {
    const char *name;
    size_t i; /* in the caller's order */
    bool taken;
};

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->i > y->i) - (x->i < y->i);
}

/* Up to a pipeline's worth of requests, the next one of each name. */
static size_t next_wave(struct entry *entries, size_t n, size_t ret[PIPELINE_MAX])
{
    size_t found = 0;
    const char *last = "";
    for (size_t k = 0; k < n && found < PIPELINE_MAX; k++) {
        if (entries[k].taken || strcmp(entries[k].name, last) == 0)
            continue;
        last = entries[k].name;
        entries[k].taken = true;
        ret[found++] = entries[k].i;
    }
    return found;
}

static bool is_simple(const struct task *t)
{
    const struct hf_request *req = t->req;
    if (t->seen.n || has_execution(req))
        return false;
    return req->op == HF_OP_ACQUIRE ? !req->wait_ms : req->op == HF_OP_RELEASE && req->fence;
}

static void answer_simple(const struct hf_pg_simple *one, struct task *t)
{
    struct hf_pg_row row = {.ttl_ms = t->req->ttl_ms,
                            .lock = {.fence = one->fence,
                                     .locked_at_ms = one->now_ms,
                                     .locked_until_ms = one->now_ms + t->req->ttl_ms}};
    snprintf(row.owner, sizeof row.owner, "%s", t->req->owner ? t->req->owner : "");
    snprintf(row.note, sizeof row.note, "%s", t->req->note ? t->req->note : "");
    hf_pg_fill_answer(&row, t->req, t->answer);
    t->done = true;
}

/* What can be done in one statement for all is done so. */
static int finish_simple(struct hf_postgres *s, struct task *tasks, size_t n, struct hf_error *err)
{
    struct hf_pg_simple simple[PIPELINE_MAX];
    struct task *of[PIPELINE_MAX];
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (is_simple(&tasks[i])) {
            of[found] = &tasks[i];
            simple[found++] = (struct hf_pg_simple){
                .req = tasks[i].req, .id = &tasks[i].id, .processes = tasks[i].processes};
        }
    int r = hf_pg_apply_simple(s, simple, found, err);
    for (size_t i = 0; i < found; i++)
        if (simple[i].done) {
            answer_simple(&simple[i], of[i]);
            prune_sometimes(s, of[i]->answer);
        }
    return r;
}

static int apply_wave(struct hf_postgres *s, const struct hf_request *requests,
                      struct hf_answer *answers, const size_t *which, size_t n, struct task *tasks,
                      struct hf_error *err)
{
    size_t begun = 0;
    int r = 0;
    for (size_t k = 0; k < n; k++) {
        r = begin_task(s, &tasks[begun], &requests[which[k]], &answers[which[k]], err);
        if (r < 0)
            answers[which[k]] = (struct hf_answer){.code = r};
        else
            begun++;
    }
    r = begun > 1 ? finish_simple(s, tasks, begun, err) : 0;
    if (r >= 0 && begun)
        r = finish_all(s, tasks, begun, err);
    for (size_t k = 0; k < begun; k++)
        end_task(s, &tasks[k]);
    return r;
}

static int apply_many(struct hf_postgres *s, const struct hf_request *requests, size_t n,
                      struct hf_answer *answers, struct hf_error *err)
{
    struct entry *entries = calloc(n, sizeof *entries);
    struct task *tasks = calloc(n < PIPELINE_MAX ? n : PIPELINE_MAX, sizeof *tasks);
    size_t which[PIPELINE_MAX], found;
    int r = entries && tasks ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < n; i++)
        entries[i] = (struct entry){requests[i].name, i, false};
    if (r >= 0)
        qsort(entries, n, sizeof *entries, by_name);
    while (r >= 0 && (found = next_wave(entries, n, which)) > 0)
        r = apply_wave(s, requests, answers, which, found, tasks, err);
    free(entries);
    free(tasks);
    return r;
}

int hf_pg_apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                struct hf_answer *answers, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct task task;
    if (n > 1)
        return apply_many(s, requests, n, answers, err);
    int r = begin_task(s, &task, requests, answers, err);
    if (r < 0)
        return r;
    r = finish_alone(s, &task, err);
    end_task(s, &task);
    return r;
}

/* ---- whom a waiter stands behind ------------------------------------------------------------ */

int hf_pg_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                struct hf_processes *ret, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_statement st = {.sql = "SELECT holdfast.ahead($1,$2)"};
    char processes[HF_PG_PROCESSES_MAX] = "";
    PGresult *result;
    hf_pg_bind_text(&st, name);
    hf_pg_bind_id(&st, id);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 1)
        hf_pg_take_text(&(struct hf_pg_cursor){.result = result}, processes, sizeof processes);
    hf_pg_clear(&result, 1);
    hf_pg_parse_processes(processes, ret);
    return 0;
}
