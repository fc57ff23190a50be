/*
 * Many simple requests in one statement: acquires of names that are free and releases of one's own
 * where nobody waits, renewals, executions that are recorded or end without ado. Whatever is not so
 * is left as it was, and goes the usual way.
 */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "failpoint.h"
#include "task.h"

enum { INPUT_MAX = 64 << 10 }; /* what is larger travels alone */

/* ---- requests as rows ----------------------------------------------------------------------- */

static void put_lease(struct hf_pg_columns *to, const struct hf_pg_task *t)
{
    hf_pg_put_text(to, t->req->name);
    hf_pg_put_bytes(to, t->id.bytes, sizeof t->id.bytes);
    hf_pg_put_int(to, t->req->op == HF_OP_ACQUIRE ? t->req->ttl_ms : t->req->fence);
}

static void put_acquire(struct hf_pg_columns *to, const struct hf_pg_task *t)
{
    put_lease(to, t);
    hf_pg_put_text(to, t->req->owner);
    hf_pg_put_text(to, t->req->note);
    hf_pg_put_text(to, t->processes);
}

static void put_release(struct hf_pg_columns *to, const struct hf_pg_task *t)
{
    put_lease(to, t);
    hf_pg_put_text(to, t->req->reason);
}

static void put_data(struct hf_pg_columns *to, const void *bytes, size_t n)
{
    if (n)
        hf_pg_put_bytes(to, bytes, n);
    else
        hf_pg_put_null(to);
}

static void put_output(struct hf_pg_columns *to, const struct hf_request *req)
{
    hf_pg_put_int(to, req->has_output);
    put_data(to, req->output_head, req->output_head_size);
    hf_pg_put_int(to, req->output_skipped);
    put_data(to, req->output_tail, req->output_tail_size);
}

static void put_extend(struct hf_pg_columns *to, const struct hf_pg_task *t)
{
    put_lease(to, t);
    hf_pg_put_int(to, t->req->ttl_ms);
    hf_pg_put_int(to, t->req->spawned);
    put_output(to, t->req);
}

static void put_finish(struct hf_pg_columns *to, const struct hf_pg_task *t)
{
    put_lease(to, t);
    hf_pg_put_int(to, t->req->outcome);
    hf_pg_put_int(to, t->req->has_exit_code);
    hf_pg_put_int(to, t->req->exit_code);
    hf_pg_put_text(to, t->req->reason);
    put_output(to, t->req);
}

static void put_enqueue(struct hf_pg_columns *to, const struct hf_pg_task *t)
{
    const struct hf_request *req = t->req;
    hf_pg_put_text(to, req->name);
    hf_pg_put_text(to, req->workflow);
    if (req->key)
        hf_pg_put_text(to, req->key);
    else
        hf_pg_put_null(to);
    hf_pg_put_int(to, req->once);
    put_data(to, req->input, req->input_size);
    hf_pg_put_uuid(to, req->execution_id);
    hf_pg_put_uuid(to, req->retry_of);
    hf_pg_put_int(to, req->run_at_ms);
    hf_pg_put_int(to, req->priority);
    hf_pg_put_int(to, req->on_lost);
    hf_pg_put_int(to, req->max_attempts);
    hf_pg_put_int(to, req->retry_backoff_ms);
    hf_pg_put_int(to, req->concurrency);
}

/* ---- rows as answers ------------------------------------------------------------------------ */

/* Granted, or given back: its fence, and when. */
static void take_lease(struct hf_pg_cursor at, const struct hf_pg_task *t)
{
    struct hf_pg_row row = {.ttl_ms = t->req->ttl_ms};
    row.lock.fence = hf_pg_take_int(&at);
    row.lock.locked_at_ms = hf_pg_take_int(&at);
    row.lock.locked_until_ms = row.lock.locked_at_ms + t->req->ttl_ms;
    snprintf(row.owner, sizeof row.owner, "%s", t->req->owner ? t->req->owner : "");
    snprintf(row.note, sizeof row.note, "%s", t->req->note ? t->req->note : "");
    hf_pg_fill_answer(&row, t->req, t->answer);
}

static void take_answer(struct hf_pg_cursor at, const struct hf_pg_task *t)
{
    struct hf_pg_row row;
    hf_pg_take_row(hf_pg_take_composite(&at), &row);
    hf_pg_fill_answer(&row, t->req, t->answer);
}

static void take_ended(struct hf_pg_cursor at, const struct hf_pg_task *t)
{
    *t->answer = (struct hf_answer){.has_execution = true};
    hf_pg_take_execution(hf_pg_take_composite(&at), &t->answer->execution);
}

static void take_recorded(struct hf_pg_cursor at, const struct hf_pg_task *t)
{
    *t->answer = (struct hf_answer){.has_execution = true};
    hf_pg_take_int(&at); /* its number */
    hf_execution_make(&t->answer->execution, t->req, hf_pg_take_int(&at));
}

/* ---- which are simple ----------------------------------------------------------------------- */

static bool is_acquire(const struct hf_pg_task *t)
{
    return !t->seen.n && !t->req->wait_ms && !hf_pg_has_execution(t->req);
}

static bool is_release(const struct hf_pg_task *t)
{
    return t->req->fence && t->req->outcome == HF_OUTCOME_NONE && !t->req->has_output;
}

static bool is_finish(const struct hf_pg_task *t)
{
    return t->req->fence && t->req->outcome != HF_OUTCOME_NONE &&
           t->req->outcome != HF_OUTCOME_LOST;
}

static bool is_extend(const struct hf_pg_task *t) { return t->req->fence != 0; }

/* Its command is about to be started, or has printed something. */
static bool is_beat(const struct hf_pg_task *t)
{
    return is_extend(t) && hf_pg_has_execution(t->req);
}

bool hf_pg_is_plain_enqueue(const struct hf_request *req)
{
    return req->op == HF_OP_ENQUEUE && req->input_size <= INPUT_MAX &&
           (req->run_at_ms || (req->overlap == HF_OVERLAP_QUEUE && !req->queue_limit));
}

static bool is_enqueue(const struct hf_pg_task *t) { return hf_pg_is_plain_enqueue(t->req); }

/* One text, since it is prepared by its address. */
static const char extend_many[] = "SELECT * FROM holdfast.extend_many($1,$2,$3,$4,$5,$6,$7,$8,$9)";

static const struct kind {
    enum hf_op op;
    size_t
        min; /* so few are better off alone: what has a function of its own for the simple case */
    bool (*matches)(const struct hf_pg_task *t);
    const char *sql, *letters;
    void (*put)(struct hf_pg_columns *to, const struct hf_pg_task *t);
    void (*take)(struct hf_pg_cursor at, const struct hf_pg_task *t);
    bool makes_ready;
} kinds[] = {
    {HF_OP_ACQUIRE, 3, is_acquire, "SELECT * FROM holdfast.acquire_many($1,$2,$3,$4,$5,$6)",
     "tblttt", put_acquire, take_lease, false},
    {HF_OP_RELEASE, 3, is_release, "SELECT * FROM holdfast.release_many($1,$2,$3,$4)", "tblt",
     put_release, take_lease, false},
    {HF_OP_RELEASE, 1, is_finish,
     "SELECT * FROM holdfast.finish_many($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)", "tblioitoblb",
     put_finish, take_ended, false},
    {HF_OP_EXTEND, 1, is_beat, extend_many, "tbllooblb", put_extend, take_answer, false},
    {HF_OP_EXTEND, 2, is_extend, extend_many, "tbllooblb", put_extend, take_answer, false},
    {HF_OP_ENQUEUE, 1, is_enqueue,
     "SELECT * FROM holdfast.enqueue_many($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)",
     "tttobuuliiili", put_enqueue, take_recorded, true},
};

/* ---- one statement -------------------------------------------------------------------------- */

/* Which of them are done: a row for each, that begins with its index from 1. */
static void take_done(const struct kind *kind, const PGresult *result,
                      struct hf_pg_task *const mine[], size_t n)
{
    int rows = hf_pq.PQntuples(result);
    for (int row = 0; row < rows; row++) {
        struct hf_pg_cursor at = {.result = result, .row = row};
        int64_t i = hf_pg_take_int(&at);
        if (i < 1 || (uint64_t)i > n)
            continue;
        kind->take(at, mine[i - 1]);
        mine[i - 1]->done = true;
    }
}

/* What is ready then is told to workers that sleep, in the same round trip. */
static int send_and_wake(struct hf_postgres *s, const struct hf_pg_statement *st,
                         struct hf_pg_task *const mine[], size_t n, PGresult **ret,
                         struct hf_pg_fault *fault, struct hf_error *err)
{
    struct hf_pg_statement wake = {.sql = "SELECT holdfast.wake_for($1)", .again = true};
    struct hf_pg_columns ids;
    hf_pg_columns_begin(&ids, "u", n);
    for (size_t i = 0; i < n; i++)
        hf_pg_put_uuid(&ids, mine[i]->req->execution_id);
    int r = hf_pg_bind_columns(&wake, &ids, err);
    if (r >= 0)
        r = hf_pg_exchange_then(s, st, 1, &wake, true, ret, fault, err);
    hf_pg_columns_clear(&ids);
    return r;
}

static int send_kind(struct hf_postgres *s, const struct kind *kind,
                     struct hf_pg_task *const mine[], size_t n, PGresult **ret,
                     struct hf_pg_fault *fault, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = kind->sql, .again = true};
    struct hf_pg_columns columns;
    bool durable = false;
    hf_pg_columns_begin(&columns, kind->letters, n);
    for (size_t i = 0; i < n; i++) {
        kind->put(&columns, mine[i]);
        durable |= hf_request_is_durable(mine[i]->req);
    }
    int r = hf_pg_bind_columns(&st, &columns, err);
    if (durable)
        hf_failpoint(HF_FAIL_BEFORE_COMMIT);
    if (r >= 0)
        r = kind->makes_ready ? send_and_wake(s, &st, mine, n, ret, fault, err)
                              : hf_pg_exchange(s, &st, 1, true, ret, fault, err);
    if (durable)
        hf_failpoint(HF_FAIL_AFTER_COMMIT);
    hf_pg_columns_clear(&columns);
    return r;
}

static int apply_kind(struct hf_postgres *s, const struct kind *kind, struct hf_pg_task *tasks,
                      size_t n, struct hf_error *err)
{
    struct hf_pg_task *mine[HF_PG_MANY_MAX];
    struct hf_pg_fault fault = {0};
    PGresult *result;
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (!tasks[i].done && tasks[i].req->op == kind->op && kind->matches(&tasks[i]))
            mine[found++] = &tasks[i];
    if (found < kind->min)
        return 0;
    int r = send_kind(s, kind, mine, found, &result, &fault, err);
    if (r < 0) /* refused by the server: nothing was done, each may try for itself */
        return r != -HF_UNKNOWN && fault.sqlstate[0] ? 0 : r;
    take_done(kind, result, mine, found);
    hf_pg_clear(&result, 1);
    return 0;
}

int hf_pg_apply_simple(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                       struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < sizeof kinds / sizeof *kinds; i++)
        r = apply_kind(s, &kinds[i], tasks, n, err);
    for (size_t i = 0; i < n; i++)
        if (tasks[i].done)
            hf_pg_prune_sometimes(s, tasks[i].answer);
    return r;
}
