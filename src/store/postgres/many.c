/*
 * Many simple requests in one statement: acquires of names that are free and releases of one's own,
 * where nobody waits. Whatever is not so is left as it was, and goes the usual way.
 */
#include <string.h>

#include "error.h"
#include "postgres_store.h"

static const struct kind {
    enum hf_op op;
    const char *sql, *letters;
} kinds[] = {
    {HF_OP_ACQUIRE, "SELECT * FROM holdfast.acquire_many($1,$2,$3,$4,$5,$6)", "tblttt"},
    {HF_OP_RELEASE, "SELECT * FROM holdfast.release_many($1,$2,$3,$4)", "tblt"},
};

static void put_row(struct hf_pg_columns *to, const struct hf_pg_simple *one)
{
    const struct hf_request *req = one->req;
    bool acquires = req->op == HF_OP_ACQUIRE;
    hf_pg_put_text(to, req->name);
    hf_pg_put_bytes(to, one->id->bytes, sizeof one->id->bytes);
    hf_pg_put_int(to, acquires ? req->ttl_ms : req->fence);
    hf_pg_put_text(to, acquires ? req->owner : req->reason);
    if (acquires) {
        hf_pg_put_text(to, req->note);
        hf_pg_put_text(to, one->processes);
    }
}

/* Which of them are done: (index from 1, fence, now_ms). */
static void take_done(const PGresult *result, struct hf_pg_simple *const mine[], size_t n)
{
    int rows = hf_pq.PQntuples(result);
    for (int row = 0; row < rows; row++) {
        struct hf_pg_cursor at = {.result = result, .row = row};
        int64_t i = hf_pg_take_int(&at);
        if (i < 1 || (uint64_t)i > n)
            continue;
        mine[i - 1]->fence = hf_pg_take_int(&at);
        mine[i - 1]->now_ms = hf_pg_take_int(&at);
        mine[i - 1]->done = true;
    }
}

static int apply_kind(struct hf_postgres *s, const struct kind *kind, struct hf_pg_simple *all,
                      size_t n, struct hf_error *err)
{
    struct hf_pg_simple *mine[HF_PG_MANY_MAX];
    struct hf_pg_columns columns;
    struct hf_pg_statement st = {.sql = kind->sql, .again = true};
    struct hf_pg_fault fault = {0};
    PGresult *result;
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (all[i].req->op == kind->op)
            mine[found++] = &all[i];
    if (found < HF_PG_MANY_MIN)
        return 0;
    hf_pg_columns_begin(&columns, kind->letters, found);
    for (size_t i = 0; i < found; i++)
        put_row(&columns, mine[i]);
    int r = hf_pg_bind_columns(&st, &columns, err);
    if (r >= 0)
        r = hf_pg_exchange(s, &st, 1, true, &result, &fault, err);
    hf_pg_columns_clear(&columns);
    if (r < 0) /* refused by the server: nothing was done, each may try for itself */
        return r != -HF_UNKNOWN && fault.sqlstate[0] ? 0 : r;
    take_done(result, mine, found);
    hf_pg_clear(&result, 1);
    return 0;
}

int hf_pg_apply_simple(struct hf_postgres *s, struct hf_pg_simple *all, size_t n,
                       struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < sizeof kinds / sizeof *kinds; i++)
        r = apply_kind(s, &kinds[i], all, n, err);
    return r;
}
