#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "postgres_store.h"

enum { PAGE = 64 };

/* ---- in requests ---------------------------------------------------------------------------- */

void hf_pg_bind_wish(struct hf_pg_statement *st, const struct hf_request *req)
{
    hf_pg_bind_text(st, req->workflow);
    hf_pg_bind_as(st, HF_PG_TEXT, req->claim ? NULL : req->key);
    hf_pg_bind_bool(st, req->once);
    hf_pg_bind_bytes(st, req->input, req->input_size);
    hf_pg_bind_as(st, HF_PG_UUID, req->execution_id);
    hf_pg_bind_as(st, HF_PG_UUID, req->retry_of);
    hf_pg_bind_int(st, HF_PG_INT8, req->run_at_ms);
    hf_pg_bind_int(st, HF_PG_INT4, req->on_lost);
    hf_pg_bind_int(st, HF_PG_INT4, req->max_attempts);
    hf_pg_bind_int(st, HF_PG_INT8, req->retry_backoff_ms);
    hf_pg_bind_int(st, HF_PG_INT4, req->concurrency);
}

void hf_pg_bind_output(struct hf_pg_statement *st, const struct hf_request *req)
{
    hf_pg_bind_bool(st, req->has_output);
    hf_pg_bind_bytes(st, req->output_head, req->output_head_size);
    hf_pg_bind_int(st, HF_PG_INT8, req->output_skipped);
    hf_pg_bind_bytes(st, req->output_tail, req->output_tail_size);
}

/* ---- in answers ----------------------------------------------------------------------------- */

static enum hf_execution_state take_state(struct hf_pg_cursor *at)
{
    char text[16];
    hf_pg_take_text(at, text, sizeof text);
    for (int i = 0; i < HF_EXECUTION_STATE_COUNT; i++)
        if (strcmp(text, hf_execution_state_name((enum hf_execution_state)i)) == 0)
            return (enum hf_execution_state)i;
    return HF_ABORTED;
}

/* The columns in their order. */
void hf_pg_take_execution(struct hf_pg_cursor at, struct hf_execution *ret)
{
    size_t n;
    *ret = (struct hf_execution){0};
    hf_pg_take_int(&at); /* seq */
    ret->created_at_ms = hf_pg_take_time_ms(&at);
    ret->run_at_ms = hf_pg_take_time_ms(&at);
    ret->priority = (int32_t)hf_pg_take_int(&at);
    ret->max_attempts = (int32_t)hf_pg_take_int(&at);
    ret->on_lost = (enum hf_on_lost)hf_pg_take_int(&at);
    ret->concurrency = (int32_t)hf_pg_take_int(&at);
    ret->retry_backoff_ms = hf_pg_take_int(&at);
    ret->once = hf_pg_take_bool(&at);
    hf_pg_take_uuid(&at, ret->id);
    hf_pg_take_uuid(&at, ret->retry_of);
    hf_pg_take_text(&at, ret->workflow, sizeof ret->workflow);
    hf_pg_take_text(&at, ret->lock, sizeof ret->lock);
    hf_pg_take_text(&at, ret->key, sizeof ret->key);
    ret->started_at_ms = hf_pg_take_time_ms(&at);
    ret->fence = hf_pg_take_int(&at);
    ret->finished_at_ms = hf_pg_take_time_ms(&at);
    ret->attempt = (int32_t)hf_pg_take_int(&at);
    ret->spent = (int32_t)hf_pg_take_int(&at);
    struct hf_pg_cursor code = at;
    hf_pg_take_bytes(&at, &n);
    ret->has_exit_code = n > 0;
    ret->exit_code = (int)hf_pg_take_int(&code);
    ret->spawned = hf_pg_take_bool(&at);
    ret->cancel_requested = hf_pg_take_bool(&at);
    ret->to_verify = hf_pg_take_bool(&at);
    ret->parked = hf_pg_take_bool(&at);
    hf_pg_take_bool(&at); /* whether its key is free */
    ret->state = take_state(&at);
    hf_pg_take_text(&at, ret->owner, sizeof ret->owner);
    hf_pg_take_text(&at, ret->reason, sizeof ret->reason);
}

/* ---- looking -------------------------------------------------------------------------------- */

/* What the server would not even take for an id is nobody's. */
static bool is_id(const char *id)
{
    static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    size_t i = 0;
    while (id[i] && form[i] && (form[i] == '-' ? id[i] == '-' : isxdigit((unsigned char)id[i])))
        i++;
    return !id[i] && !form[i];
}

static int fail_not_found(const char *id, struct hf_error *err)
{
    return hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
}

int hf_pg_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                    struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT x FROM holdfast.execution x WHERE id = $1"};
    PGresult *result;
    if (!is_id(id))
        return fail_not_found(id, err);
    hf_pg_bind_as(&st, HF_PG_UUID, id);
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 1)
        hf_pg_take_execution(hf_pg_open_composite(result, 0), ret);
    else
        r = fail_not_found(id, err);
    hf_pg_clear(&result, 1);
    return r;
}

static void hand_out(const PGresult *result, hf_data_fn fn, void *arg)
{
    struct hf_pg_cursor at = {.result = result};
    size_t n_head, n_tail;
    const char *head = hf_pg_take_bytes(&at, &n_head), *tail = hf_pg_take_bytes(&at, &n_tail);
    int64_t skipped = hf_pg_take_int(&at);
    int stop = n_head ? fn(arg, head, n_head, 0) : 0;
    if (!stop && (n_tail || skipped))
        fn(arg, tail, n_tail, skipped);
}

int hf_pg_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                         hf_data_fn fn, void *arg, struct hf_error *err)
{
    static const char *const sqls[] = {
        [HF_DATA_INPUT] = "SELECT d.input, NULL::bytea, 0 FROM holdfast.execution x"
                          " LEFT JOIN holdfast.execution_data d USING (id) WHERE x.id = $1",
        [HF_DATA_OUTPUT] = "SELECT d.output_head, d.output_tail, d.output_skipped FROM"
                           " holdfast.execution x LEFT JOIN holdfast.execution_data d USING (id)"
                           " WHERE x.id = $1"};
    struct hf_pg_statement st = {.sql = sqls[which]};
    PGresult *result;
    if (!is_id(id))
        return fail_not_found(id, err);
    hf_pg_bind_as(&st, HF_PG_UUID, id);
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 1)
        hand_out(result, fn, arg);
    else
        r = fail_not_found(id, err);
    hf_pg_clear(&result, 1);
    return r;
}

/* ---- lists ---------------------------------------------------------------------------------- */

struct page {
    struct hf_execution found[PAGE];
    size_t n;
    char before[24]; /* the next page is of those before this number */
};

static int find_place(struct hf_postgres *s, const char *id, struct page *page,
                      struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT seq::text FROM holdfast.execution WHERE id = $1"};
    PGresult *result;
    if (!is_id(id))
        return fail_not_found(id, err);
    hf_pg_bind_as(&st, HF_PG_UUID, id);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 1)
        hf_pg_take_text(&(struct hf_pg_cursor){.result = result}, page->before,
                        sizeof page->before);
    else
        r = fail_not_found(id, err);
    hf_pg_clear(&result, 1);
    return r;
}

static int read_page(struct hf_postgres *s, const struct hf_execution_query *query, int64_t limit,
                     struct page *page, struct hf_error *err)
{
    static const char any[] =
        "SELECT x, x.seq::text FROM holdfast.execution x WHERE x.seq < $1"
        " AND ($2::text IS NULL OR x.workflow = $2)"
        " AND ($3::text IS NULL OR x.state = $3) ORDER BY x.seq DESC LIMIT $4";
    /* Few, and asked for by every sweep: by their own table, whatever else is kept. */
    static const char running[] =
        "SELECT x, x.seq::text FROM (SELECT seq FROM holdfast.running WHERE seq < $1 AND"
        " ($2::text IS NULL OR workflow = $2) AND $3 = 'RUNNING' ORDER BY seq DESC LIMIT $4) r"
        " JOIN holdfast.execution x USING (seq) ORDER BY x.seq DESC";
    struct hf_pg_statement st = {.sql = query->state == HF_RUNNING ? running : any};
    PGresult *result;
    hf_pg_bind_as(&st, HF_PG_INT8, page->before);
    hf_pg_bind_as(&st, HF_PG_TEXT, query->workflow);
    hf_pg_bind_as(&st, HF_PG_TEXT,
                  query->state >= 0 ? hf_execution_state_name((enum hf_execution_state)query->state)
                                    : NULL);
    hf_pg_bind_int(&st, HF_PG_INT8, limit);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    int n = hf_pq.PQntuples(result);
    page->n = 0;
    for (int i = 0; i < n && i < PAGE; i++) {
        struct hf_pg_cursor place = {.result = result, .row = i, .column = 1};
        hf_pg_take_execution(hf_pg_open_composite(result, i), &page->found[page->n++]);
        hf_pg_take_text(&place, page->before, sizeof page->before);
    }
    hf_pg_clear(&result, 1);
    return 0;
}

static int list(struct hf_postgres *s, const struct hf_execution_query *query, hf_execution_fn fn,
                void *arg, struct page *page, struct hf_error *err)
{
    int stop = 0;
    int64_t left = query->limit > 0 ? query->limit : INT64_MAX;
    page->n = PAGE;
    while (!stop && left > 0 && page->n == PAGE) {
        int r = read_page(s, query, left < PAGE ? left : PAGE, page, err);
        if (r < 0)
            return r;
        left -= (int64_t)page->n;
        for (size_t i = 0; !stop && i < page->n; i++)
            stop = fn(arg, &page->found[i]);
    }
    return 0;
}

int hf_pg_executions(struct hf_store *store, const struct hf_execution_query *query,
                     hf_execution_fn fn, void *arg, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct page *page = malloc(sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    strcpy(page->before, "9223372036854775807");
    int r = query->before ? find_place(s, query->before, page, err) : 0;
    if (r >= 0)
        r = list(s, query, fn, arg, page, err);
    free(page);
    return r;
}
