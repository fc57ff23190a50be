/* Requests become calls of the functions in schema/1-*.sql, and their rows become answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "failpoint.h"
#include "host.h"
#include "task.h"

enum {
    IDS_MAX_BYTES = 1 << 22,
    LOOK = 100,       /* the answer's code: look at these processes, and ask again */
    PRUNE_EVERY = 511 /* fences; odd, since a grant and its release take two numbers */
};

/* ---- requests ------------------------------------------------------------------------------- */

/* Whom we can judge, and how we have: the last parameters of every function that may have to. */
void hf_pg_bind_judgement(struct hf_postgres *s, struct hf_pg_task *t, struct hf_pg_statement *st)
{
    bool any = t->seen.n > 0;
    if (any) {
        hf_pg_list_seen(&t->seen, false, &t->alive);
        hf_pg_list_seen(&t->seen, true, &t->dead);
    }
    hf_pg_bind_text(st, s->here);
    hf_pg_bind_as(st, HF_PG_BYTEA_ARRAY, any && !t->alive.failed ? t->alive.data : "{}");
    hf_pg_bind_as(st, HF_PG_BYTEA_ARRAY, any && !t->dead.failed ? t->dead.data : "{}");
}

static void bind_acquire(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
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

static void bind_begin(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    bind_acquire(t, channel, st);
    hf_pg_bind_wish(st, t->req);
    hf_pg_bind_bool(st, t->req->claim);
    hf_pg_bind_bool(st, t->req->verifies);
}

static void bind_extend(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->ttl_ms);
}

static void bind_beat(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    bind_extend(t, channel, st);
    hf_pg_bind_bool(st, t->req->spawned);
    hf_pg_bind_output(st, t->req);
}

static void bind_release(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_text(st, t->req->reason);
}

static void bind_finish(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
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

static void bind_withdraw(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_id(st, &t->id);
}

/* force, report_lost */
static void bind_word(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_int(st, HF_PG_INT8, t->req->fence);
    hf_pg_bind_text(st, t->req->owner);
    hf_pg_bind_text(st, t->req->reason);
}

static void bind_enqueue(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_text(st, t->req->owner);
    hf_pg_bind_int(st, HF_PG_INT4, t->req->priority);
    hf_pg_bind_wish(st, t->req);
    hf_pg_bind_int(st, HF_PG_INT4, t->req->overlap);
    hf_pg_bind_int(st, HF_PG_INT4, t->req->queue_limit);
}

static void bind_cancel(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_as(st, HF_PG_UUID, t->req->execution_id);
    hf_pg_bind_text(st, t->req->owner);
}

static void bind_settle_execution(struct hf_pg_task *t, const char *channel,
                                  struct hf_pg_statement *st)
{
    (void)channel;
    hf_pg_bind_as(st, HF_PG_UUID, t->req->execution_id);
}

struct call {
    const char *sql;
    void (*bind)(struct hf_pg_task *t, const char *channel, struct hf_pg_statement *st);
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
                       "$13,$14,$15,$16,$17,$18,$19)",
                       bind_enqueue},
    [HF_OP_CANCEL] = {"SELECT holdfast.cancel_execution($1,$2,$3,$4,$5,$6)", bind_cancel},
};

/* The same with an execution; who has none does not pay for it. */
static const struct call calls_with_execution[] = {
    [HF_OP_ACQUIRE] = {"SELECT holdfast.begin_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,"
                       "$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24,$25)",
                       bind_begin},
    [HF_OP_EXTEND] = {"SELECT holdfast.extend_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)",
                      bind_beat},
    [HF_OP_RELEASE] = {"SELECT holdfast.finish_execution($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,"
                       "$13,$14,$15)",
                       bind_finish},
    [HF_OP_SETTLE] = {"SELECT holdfast.settle_execution($1,$2,$3,$4,$5)", bind_settle_execution},
};

bool hf_pg_has_execution(const struct hf_request *req)
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

/* One who is in the queue has probably been woken because it was granted. */
static const struct call acquire_again = {
    "SELECT holdfast.acquire_again($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)", bind_acquire};

static const struct call *call_of(const struct hf_request *req, bool queued)
{
    if (hf_pg_has_execution(req))
        return &calls_with_execution[req->op];
    return req->op == HF_OP_ACQUIRE && queued ? &acquire_again : &calls[req->op];
}

static void make_statement(struct hf_postgres *s, struct hf_pg_task *t, struct hf_pg_statement *ret)
{
    bool queued = hf_pg_channel(s->listener, &t->id, t->channel);
    const struct call *call = call_of(t->req, queued);
    *ret = (struct hf_pg_statement){.sql = call->sql, .again = true};
    hf_pg_bind_text(ret, t->req->name);
    if (call->bind)
        call->bind(t, t->channel, ret);
    if (!hf_op_is_read(t->req->op))
        hf_pg_bind_judgement(s, t, ret);
}

/* ---- tasks ---------------------------------------------------------------------------------- */

int hf_pg_begin_task(struct hf_postgres *s, struct hf_pg_task *t, const struct hf_request *req,
                     struct hf_answer *answer, struct hf_error *err)
{
    struct hf_processes bound;
    *t = (struct hf_pg_task){.req = req,
                             .answer = answer,
                             .alive = HF_BUF(IDS_MAX_BYTES),
                             .dead = HF_BUF(IDS_MAX_BYTES)};
    if (req->token)
        t->id = hf_lock_id_of(req->token);
    int r = hf_processes_identify(req->bound, req->n_bound, &bound, err);
    if (r < 0)
        return r;
    hf_processes_format(&bound, t->processes);
    if (!hf_op_is_read(req->op))
        hf_pg_recall(s->memory, req->name, &t->seen);
    return 0;
}

void hf_pg_end_task(struct hf_postgres *s, struct hf_pg_task *t)
{
    hf_pg_remember(s->memory, t->req->name, &t->seen);
    hf_pg_seen_clear(&t->seen);
    hf_buf_clear(&t->alive);
    hf_buf_clear(&t->dead);
}

/* Old events and executions go in small pieces, now and then, after a grant. Nobody waits for it. */
void hf_pg_prune_sometimes(struct hf_postgres *s, const struct hf_answer *answer)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.prune(1000)"};
    PGresult *result;
    if (answer->lease.fence && answer->lease.fence % PRUNE_EVERY == 0 &&
        hf_pg_exchange(s, &st, 1, true, &result, NULL, NULL) >= 0)
        hf_pg_clear(&result, 1);
}

/* Given back, and granted to another, who is told at once; it may not be on the disk yet. */
static void hand_over(struct hf_postgres *s, struct hf_pg_task *t, const struct hf_pg_row *row)
{
    t->handed = t->req->op == HF_OP_RELEASE && row->code == 0 && row->lock.held &&
                !hf_pg_has_execution(t->req);
    if (t->handed && row->look[0])
        hf_pg_wake_near(s, row->look, &row->id);
}

/* Wait until what was handed over can't be lost, unless it has been: then it is unknown. */
static int flush(struct hf_postgres *s, struct hf_pg_task *t, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.flush($1,$2)", .again = true};
    PGresult *result;
    hf_pg_bind_text(&st, t->req->name);
    hf_pg_bind_id(&st, &t->id);
    int r = hf_pg_exchange(s, &st, 1, true, &result, NULL, err);
    if (r < 0)
        return r;
    struct hf_pg_cursor at = {.result = result};
    bool kept = hf_pq.PQntuples(result) == 1 && hf_pg_take_bool(&at);
    hf_pg_clear(&result, 1);
    if (kept)
        return 0;
    return hf_fail(err, HF_UNKNOWN,
                   "%s: the server stopped before it had kept that %s was released", s->shown,
                   t->req->name);
}

/* A row for each call: an answer, or somebody to look at. */
static int take_results(struct hf_postgres *s, struct hf_pg_task **tasks, size_t n,
                        PGresult **results, struct hf_buf *ready, struct hf_error *err)
{
    struct hf_pg_row row;
    for (size_t i = 0; i < n; i++) {
        if (!results[i] || hf_pq.PQntuples(results[i]) != 1)
            return hf_fail(err, HF_INTERNAL, "holdfast's function answered no row for %s",
                           tasks[i]->req->name);
        hf_pg_take_row(hf_pg_open_composite(results[i], 0), &row);
        if (row.code != LOOK) {
            row.lock.ended = hf_op_is_read(tasks[i]->req->op) && row.execution_id[0] &&
                             row.execution.state != HF_RUNNING;
            hf_pg_fill_answer(&row, tasks[i]->req, tasks[i]->answer);
            tasks[i]->done = true;
            hf_buf_puts(ready, row.ready);
            if (row.queued && !hf_pg_has_execution(tasks[i]->req))
                hf_pg_note_queued(s->listener, &tasks[i]->id, row.look);
            hand_over(s, tasks[i], &row);
        } else if (!hf_pg_look(&tasks[i]->seen, row.look))
            return hf_fail(err, HF_INTERNAL, "holdfast's function asks again and again who lives");
    }
    return 0;
}

/* One round trip for those that are not done yet. */
static int send_tasks(struct hf_postgres *s, struct hf_pg_task **tasks, size_t n,
                      struct hf_pg_fault *fault, struct hf_error *err)
{
    struct hf_pg_statement statements[HF_PG_PIPELINE_MAX];
    PGresult *results[HF_PG_PIPELINE_MAX];
    bool changes = false, durable = false;
    struct hf_buf ready = HF_BUF(HF_PG_ALL_READY_MAX);
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
    r = take_results(s, tasks, n, results, &ready, err);
    hf_pg_clear(results, n);
    for (i = 0; r >= 0 && i < n; i++)
        r = tasks[i]->handed ? flush(s, tasks[i], err) : 0;
    hf_pg_wake_idle(s, &ready);
    return r;
}

/* A transaction that guards the fence is in the way: held, by it, whoever held it before. */
static int answer_guarded(struct hf_postgres *s, struct hf_pg_task *t, struct hf_error *err)
{
    const struct hf_request *req = t->req, ask = {.op = HF_OP_STATUS, .name = req->name};
    struct hf_pg_task look = {.req = &ask, .answer = t->answer}, *one = &look;
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
int hf_pg_finish_alone(struct hf_postgres *s, struct hf_pg_task *t, struct hf_error *err)
{
    struct hf_pg_fault fault;
    while (!t->done) {
        int r = send_tasks(s, &t, 1, &fault, err);
        if (r < 0 && t->req->op == HF_OP_ACQUIRE && hf_pg_is(&fault, "55P03"))
            r = answer_guarded(s, t, err);
        if (r < 0)
            return r;
    }
    hf_pg_prune_sometimes(s, t->answer);
    return 0;
}

/* One by one, so that what is wrong with one of them is only its own. */
static int finish_each(struct hf_postgres *s, struct hf_pg_task **tasks, size_t n,
                       struct hf_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int r = hf_pg_finish_alone(s, tasks[i], err);
        if (r == -HF_UNKNOWN)
            return r;
        if (r < 0)
            *tasks[i]->answer = (struct hf_answer){.code = r};
        tasks[i]->done = true;
    }
    return 0;
}

int hf_pg_finish_all(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                     struct hf_error *err)
{
    struct hf_pg_task *open[HF_PG_PIPELINE_MAX];
    size_t n_open;
    int r = 0;
    do {
        struct hf_pg_fault fault = {0};
        n_open = 0;
        for (size_t i = 0; i < n && n_open < HF_PG_PIPELINE_MAX; i++)
            if (!tasks[i].done)
                open[n_open++] = &tasks[i];
        r = n_open ? send_tasks(s, open, n_open, &fault, err) : 0;
        if (r < 0 && fault.sqlstate[0])
            r = finish_each(s, open, n_open, err);
    } while (r >= 0 && n_open);
    return r;
}

/* ---- one alone ------------------------------------------------------------------------------ */

int hf_pg_apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                struct hf_answer *answers, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_task task;
    if (n > 1)
        return hf_pg_apply_batch(s, requests, n, answers, err);
    int r = hf_pg_begin_task(s, &task, requests, answers, err);
    if (r < 0)
        return r;
    r = hf_pg_apply_simple(s, &task, 1, err);
    if (r >= 0 && !task.done)
        r = hf_pg_finish_alone(s, &task, err);
    hf_pg_end_task(s, &task);
    return r;
}

/* ---- whom a waiter stands behind ------------------------------------------------------------ */

int hf_pg_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                struct hf_processes *ret, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_statement st = {.sql = "SELECT holdfast.ahead($1,$2)", .again = true};
    char processes[HF_PROCESSES_TEXT_MAX] = "";
    PGresult *result;
    if (hf_pg_take_ahead(s->listener, id, processes)) { /* told with the answer */
        hf_processes_parse(processes, ret);
        return 0;
    }
    hf_pg_bind_text(&st, name);
    hf_pg_bind_id(&st, id);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 1)
        hf_pg_take_text(&(struct hf_pg_cursor){.result = result}, processes, sizeof processes);
    hf_pg_clear(&result, 1);
    hf_processes_parse(processes, ret);
    return 0;
}

/* Sets of processes begin with the boot that they are of. */
int hf_pg_runners(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                  struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_statement st = {
        .sql = "SELECT DISTINCT l.processes FROM (SELECT x.id, x.lock FROM holdfast.running r"
               " JOIN holdfast.execution x USING (seq) LIMIT 1024) x"
               " JOIN holdfast.lock l ON l.name = x.lock WHERE l.lock_id IS NOT NULL"
               " AND l.execution_id = x.id AND starts_with(l.processes, $1) LIMIT $2"};
    char processes[HF_PROCESSES_TEXT_MAX];
    PGresult *result;
    hf_pg_bind_text(&st, hf_boot_id());
    hf_pg_bind_int(&st, HF_PG_INT4, (int64_t)max);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    struct hf_pg_cursor at = {.result = result};
    size_t n = 0;
    for (; n < max && at.row < hf_pq.PQntuples(result); at.row++, at.column = 0) {
        hf_pg_take_text(&at, processes, sizeof processes);
        hf_processes_parse(processes, &ret[n++]);
    }
    hf_pg_clear(&result, 1);
    *ret_n = n;
    return 0;
}
