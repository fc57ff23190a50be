#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "sqlite_store.h"

enum { PAGE = 64 };

/* ---- a row ---------------------------------------------------------------------------------- */

static enum hf_execution_state take_state(struct hf_sqlite_cursor *from)
{
    char text[16];
    hf_sqlite_take_text(from, text, sizeof text);
    for (int i = 0; i < HF_EXECUTION_STATE_COUNT; i++)
        if (strcmp(text, hf_execution_state_name((enum hf_execution_state)i)) == 0)
            return (enum hf_execution_state)i;
    return HF_ABORTED; /* whoever edited it by hand does not want it to run */
}

/* The columns in their order; the cursor is left behind them. */
static void take_execution(struct hf_sqlite_cursor *from, struct hf_execution *ret)
{
    *ret = (struct hf_execution){0};
    hf_sqlite_take_text(from, ret->id, sizeof ret->id);
    hf_sqlite_take_text(from, ret->workflow, sizeof ret->workflow);
    hf_sqlite_take_text(from, ret->lock, sizeof ret->lock);
    hf_sqlite_take_text(from, ret->key, sizeof ret->key);
    ret->state = take_state(from);
    ret->run_at_ms = hf_sqlite_take_int(from);
    ret->priority = (int32_t)hf_sqlite_take_int(from);
    ret->attempt = (int32_t)hf_sqlite_take_int(from);
    ret->fence = hf_sqlite_take_int(from);
    hf_sqlite_take_text(from, ret->owner, sizeof ret->owner);
    ret->created_at_ms = hf_sqlite_take_int(from);
    ret->started_at_ms = hf_sqlite_take_int(from);
    ret->finished_at_ms = hf_sqlite_take_int(from);
    ret->has_exit_code = sqlite3_column_type(from->stmt, from->at) != SQLITE_NULL;
    ret->exit_code = (int)hf_sqlite_take_int(from);
    hf_sqlite_take_text(from, ret->reason, sizeof ret->reason);
    hf_sqlite_take_text(from, ret->retry_of, sizeof ret->retry_of);
    ret->cancel_requested = hf_sqlite_take_int(from);
    ret->spawned = hf_sqlite_take_int(from);
    ret->once = hf_sqlite_take_int(from);
    ret->to_verify = hf_sqlite_take_int(from);
    ret->on_lost = (enum hf_on_lost)hf_sqlite_take_int(from);
    ret->max_attempts = (int32_t)hf_sqlite_take_int(from);
    ret->spent = (int32_t)hf_sqlite_take_int(from);
    ret->retry_backoff_ms = hf_sqlite_take_int(from);
    ret->concurrency = (int32_t)hf_sqlite_take_int(from);
    ret->parked = hf_sqlite_take_int(from);
}

static void put_bytes(struct hf_sqlite_cursor *to, const void *bytes, size_t n)
{
    if (n)
        sqlite3_bind_blob64(to->stmt, to->at++, bytes, n, SQLITE_STATIC);
    else
        sqlite3_bind_null(to->stmt, to->at++);
}

static void put_end(struct hf_sqlite_cursor *to, const struct hf_execution *x)
{
    hf_sqlite_put_int_if(to, x->started_at_ms, x->started_at_ms);
    hf_sqlite_put_int_if(to, x->finished_at_ms, x->finished_at_ms);
    hf_sqlite_put_int_if(to, x->has_exit_code, x->exit_code);
    hf_sqlite_put_text(to, x->reason);
}

static int insert(struct hf_sqlite *s, const struct hf_execution *x, const struct hf_request *req,
                  struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION_INSERT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, x->id);
    hf_sqlite_put_text(&to, x->workflow);
    hf_sqlite_put_text(&to, x->lock);
    hf_sqlite_put_text(&to, x->key);
    hf_sqlite_put_text(&to, hf_execution_state_name(x->state));
    hf_sqlite_put_int(&to, x->run_at_ms);
    hf_sqlite_put_int(&to, x->priority);
    hf_sqlite_put_int(&to, x->attempt);
    hf_sqlite_put_int_if(&to, x->fence, x->fence);
    hf_sqlite_put_text(&to, x->owner);
    hf_sqlite_put_int(&to, x->created_at_ms);
    put_end(&to, x);
    hf_sqlite_put_text(&to, x->retry_of);
    hf_sqlite_put_int(&to, x->cancel_requested);
    hf_sqlite_put_int(&to, x->spawned);
    hf_sqlite_put_int(&to, x->once);
    hf_sqlite_put_int(&to, x->to_verify);
    hf_sqlite_put_int(&to, x->on_lost);
    hf_sqlite_put_int(&to, x->max_attempts);
    hf_sqlite_put_int(&to, x->spent);
    hf_sqlite_put_int(&to, x->retry_backoff_ms);
    hf_sqlite_put_int(&to, x->concurrency);
    hf_sqlite_put_int(&to, x->parked);
    put_bytes(&to, req->input, req->input_size);
    return hf_sqlite_run(s, stmt, err);
}

static int update(struct hf_sqlite *s, const struct hf_execution *x, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION_UPDATE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, x->id);
    hf_sqlite_put_text(&to, hf_execution_state_name(x->state));
    hf_sqlite_put_int(&to, x->attempt);
    hf_sqlite_put_int_if(&to, x->fence, x->fence);
    hf_sqlite_put_text(&to, x->owner);
    put_end(&to, x);
    hf_sqlite_put_int(&to, x->cancel_requested);
    hf_sqlite_put_int(&to, x->spawned);
    hf_sqlite_put_int(&to, x->to_verify);
    hf_sqlite_put_int(&to, x->run_at_ms);
    hf_sqlite_put_int(&to, x->spent);
    hf_sqlite_put_int(&to, x->parked);
    return hf_sqlite_run(s, stmt, err);
}

static int update_output(struct hf_sqlite *s, const char *id, const struct hf_request *req,
                         struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION_OUTPUT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, id);
    put_bytes(&to, req->output_head, req->output_head_size);
    put_bytes(&to, req->output_tail, req->output_tail_size);
    hf_sqlite_put_int_if(&to, req->output_skipped, req->output_skipped);
    return hf_sqlite_run(s, stmt, err);
}

int hf_sqlite_save_executions(struct hf_sqlite *s, const struct hf_ask *ask,
                              const struct hf_effects *fx, struct hf_error *err)
{
    int r = fx->replaced_by[0] ? hf_sqlite_replace(s, ask->req->name, fx, err) : 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_executions; i++) {
        const struct hf_kept_execution *k = &fx->executions[i];
        r = k->is_new ? insert(s, &k->x, ask->req, err) : update(s, &k->x, err);
    }
    if (r >= 0 && fx->park_due_ms)
        r = hf_sqlite_park(s, ask->req->name, fx, err);
    if (r >= 0 && fx->output_of[0])
        r = update_output(s, fx->output_of, ask->req, err);
    return r;
}

/* ---- finding -------------------------------------------------------------------------------- */

/* The row that a bound statement finds, with the number behind its columns. 1: found, 0: none. */
static int find_row(struct hf_sqlite *s, sqlite3_stmt *stmt, struct hf_execution *ret,
                    int64_t *ret_behind, struct hf_error *err)
{
    struct hf_sqlite_cursor from = {stmt, 0};
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    take_execution(&from, ret);
    *ret_behind = hf_sqlite_take_int(&from);
    sqlite3_reset(stmt);
    return 1;
}

static int find_by_id(struct hf_sqlite *s, const char *id, struct hf_execution *ret,
                      struct hf_error *err)
{
    int64_t ignored;
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, id, -1, SQLITE_STATIC);
    return find_row(s, stmt, ret, &ignored, err);
}

int hf_sqlite_execution_at(struct hf_sqlite *s, int64_t seq, struct hf_execution *ret,
                           struct hf_error *err)
{
    int64_t ignored;
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION_AT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, seq);
    return find_row(s, stmt, ret, &ignored, err);
}

static int find_by_key(struct hf_sqlite *s, const struct hf_sought *sought, struct hf_ask *ask,
                       struct hf_error *err)
{
    sqlite3_stmt *stmt =
        hf_sqlite_stmt(s, sought->once ? HF_STMT_EXECUTION_BY_ONCE : HF_STMT_EXECUTION_BY_KEY, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, sought->workflow);
    hf_sqlite_put_text(&to, sought->key);
    if (!sought->once)
        put_bytes(&to, ask->req->input, ask->req->input_size);
    int64_t same_input = 0;
    int r = find_row(s, stmt, &ask->found, &same_input, err);
    ask->same_input = same_input;
    return r;
}

int hf_sqlite_find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                   struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    int r = sought->key ? find_by_key(s, sought, ask, err) : 0;
    if (r == 0 && sought->id)
        r = find_by_id(s, sought->id, &ask->found, err);
    ask->has_found = r > 0;
    return r < 0 ? r : 0;
}

int hf_sqlite_load_execution(struct hf_sqlite *s, struct hf_record *rec, struct hf_error *err)
{
    int r = find_by_id(s, rec->grant.execution_id, &rec->execution, err);
    rec->grant.ended = r == 0 || (r > 0 && rec->execution.state != HF_RUNNING);
    return r < 0 ? r : 0;
}

/* ---- looking -------------------------------------------------------------------------------- */

int hf_sqlite_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                        struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct hf_execution x;
    pthread_mutex_lock(&s->mutex);
    int r = find_by_id(s, id, &x, err);
    pthread_mutex_unlock(&s->mutex);
    if (r == 0)
        return hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
    if (r > 0)
        *ret = x;
    return r < 0 ? r : 0;
}

/* A copy of a column's bytes, so that the caller's code does not run under the mutex. */
struct copy {
    void *bytes;
    size_t n;
};

static int copy_column(sqlite3_stmt *stmt, int column, struct copy *ret, struct hf_error *err)
{
    const void *bytes = sqlite3_column_blob(stmt, column);
    ret->n = (size_t)sqlite3_column_bytes(stmt, column);
    if (!ret->n)
        return 0;
    ret->bytes = malloc(ret->n);
    if (!ret->bytes || !bytes)
        return hf_fail(err, HF_NOMEM, "out of memory");
    memcpy(ret->bytes, bytes, ret->n);
    return 0;
}

/* The execution's row of this statement, which is to be reset; -HF_NOT_FOUND where there is none. */
static int row_of(struct hf_sqlite *s, enum hf_sqlite_stmt which, const char *id,
                  sqlite3_stmt **ret, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, which, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, id, -1, SQLITE_STATIC);
    int r = hf_sqlite_row(s, stmt, err);
    if (r == 0)
        return hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
    *ret = stmt;
    return r;
}

static int copy_data(struct hf_sqlite *s, const char *id, enum hf_execution_data which,
                     struct copy copies[2], int64_t *ret_skipped, struct hf_error *err)
{
    sqlite3_stmt *stmt;
    int r = row_of(s, HF_STMT_EXECUTION_DATA, id, &stmt, err);
    if (r < 0)
        return r;
    r = copy_column(stmt, which == HF_DATA_INPUT ? 0 : 1, &copies[0], err);
    if (r >= 0 && which == HF_DATA_OUTPUT) {
        r = copy_column(stmt, 2, &copies[1], err);
        *ret_skipped = sqlite3_column_int64(stmt, 3);
    }
    sqlite3_reset(stmt);
    return r;
}

int hf_sqlite_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                             hf_data_fn fn, void *arg, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct copy copies[2] = {{0}};
    int64_t skipped = 0;
    pthread_mutex_lock(&s->mutex);
    int r = copy_data(s, id, which, copies, &skipped, err);
    pthread_mutex_unlock(&s->mutex);
    int stop = r >= 0 && copies[0].n ? fn(arg, copies[0].bytes, copies[0].n, 0) : 0;
    if (r >= 0 && !stop && (copies[1].n || skipped))
        fn(arg, copies[1].bytes, copies[1].n, skipped);
    free(copies[0].bytes);
    free(copies[1].bytes);
    return r;
}

/* ---- lists ---------------------------------------------------------------------------------- */

struct page {
    struct hf_execution found[PAGE];
    size_t n;
    int64_t before; /* the next page is of those before this one */
};

static int find_place(struct hf_sqlite *s, const char *id, int64_t *ret, struct hf_error *err)
{
    sqlite3_stmt *stmt;
    int r = row_of(s, HF_STMT_EXECUTION_PLACE, id, &stmt, err);
    if (r < 0)
        return r;
    *ret = sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    return 0;
}

/* Each has its index, so that a page costs what it holds. */
static enum hf_sqlite_stmt page_stmt(const struct hf_execution_query *query)
{
    if (query->state >= 0)
        return query->workflow ? HF_STMT_EXECUTION_PAGE_BOTH : HF_STMT_EXECUTION_PAGE_STATE;
    return query->workflow ? HF_STMT_EXECUTION_PAGE_WORKFLOW : HF_STMT_EXECUTION_PAGE;
}

static int read_page(struct hf_sqlite *s, const struct hf_execution_query *query, int64_t limit,
                     struct page *page, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, page_stmt(query), err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, page->before);
    if (query->workflow)
        sqlite3_bind_text(stmt, 2, query->workflow, -1, SQLITE_STATIC);
    if (query->state >= 0)
        sqlite3_bind_text(stmt, 3, hf_execution_state_name((enum hf_execution_state)query->state),
                          -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 4, limit);
    page->n = 0;
    int r;
    while ((r = hf_sqlite_row(s, stmt, err)) > 0 && page->n < PAGE) {
        struct hf_sqlite_cursor from = {stmt, 0};
        take_execution(&from, &page->found[page->n++]);
        page->before = hf_sqlite_take_int(&from);
    }
    sqlite3_reset(stmt);
    return r < 0 ? r : 0;
}

static int list(struct hf_sqlite *s, const struct hf_execution_query *query, hf_execution_fn fn,
                void *arg, struct page *page, struct hf_error *err)
{
    int r = 0, stop = 0;
    int64_t left = query->limit > 0 ? query->limit : INT64_MAX;
    page->n = PAGE;
    while (!stop && left > 0 && page->n == PAGE) {
        pthread_mutex_lock(&s->mutex);
        r = read_page(s, query, left < PAGE ? left : PAGE, page, err);
        pthread_mutex_unlock(&s->mutex);
        if (r < 0)
            return r;
        left -= (int64_t)page->n;
        for (size_t i = 0; !stop && i < page->n; i++)
            stop = fn(arg, &page->found[i]);
    }
    return 0;
}

int hf_sqlite_executions(struct hf_store *store, const struct hf_execution_query *query,
                         hf_execution_fn fn, void *arg, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct page *page = malloc(sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    page->before = INT64_MAX;
    int r = 0;
    if (query->before) {
        pthread_mutex_lock(&s->mutex);
        r = find_place(s, query->before, &page->before, err);
        pthread_mutex_unlock(&s->mutex);
    }
    if (r >= 0)
        r = list(s, query, fn, arg, page, err);
    free(page);
    return r;
}
