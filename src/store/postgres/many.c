/*
 * Many simple requests in one statement: acquires of names that are free and releases of one's own,
 * where nobody waits. Whatever is not so is left as it was, and goes the usual way.
 */
#include <string.h>

#include "error.h"
#include "postgres_store.h"

enum { ARRAY_MAX_BYTES = 1 << 20, COLUMNS = 6 };

/* ---- arrays in their binary form ------------------------------------------------------------ */

static void add_int(struct hf_buf *b, uint64_t value, int n_bytes)
{
    for (int i = n_bytes - 1; i >= 0; i--)
        hf_buf_putc(b, (char)(value >> 8 * i));
}

static void begin_array(struct hf_buf *b, Oid element, size_t n)
{
    *b = (struct hf_buf)HF_BUF(ARRAY_MAX_BYTES);
    add_int(b, 1, 4); /* dimensions */
    add_int(b, 0, 4); /* no NULLs */
    add_int(b, element, 4);
    add_int(b, n, 4);
    add_int(b, 1, 4); /* the first index */
}

static void add_bytes(struct hf_buf *b, const void *bytes, size_t n)
{
    add_int(b, n, 4);
    hf_buf_add(b, bytes, n);
}

static void add_text(struct hf_buf *b, const char *text)
{
    add_bytes(b, text ? text : "", text ? strlen(text) : 0);
}

static void add_int8(struct hf_buf *b, int64_t value)
{
    add_int(b, 8, 4);
    add_int(b, (uint64_t)value, 8);
}

/* ---- statements ----------------------------------------------------------------------------- */

static const struct kind {
    enum hf_op op;
    const char *sql;
    int n_columns;
    struct {
        Oid array, element;
    } types[COLUMNS];
} kinds[] = {
    {HF_OP_ACQUIRE,
     "SELECT * FROM holdfast.acquire_many($1,$2,$3,$4,$5,$6)",
     6,
     {{HF_PG_TEXT_ARRAY, HF_PG_TEXT},
      {HF_PG_BYTEA_ARRAY, HF_PG_BYTEA},
      {HF_PG_INT8_ARRAY, HF_PG_INT8},
      {HF_PG_TEXT_ARRAY, HF_PG_TEXT},
      {HF_PG_TEXT_ARRAY, HF_PG_TEXT},
      {HF_PG_TEXT_ARRAY, HF_PG_TEXT}}},
    {HF_OP_RELEASE,
     "SELECT * FROM holdfast.release_many($1,$2,$3,$4)",
     4,
     {{HF_PG_TEXT_ARRAY, HF_PG_TEXT},
      {HF_PG_BYTEA_ARRAY, HF_PG_BYTEA},
      {HF_PG_INT8_ARRAY, HF_PG_INT8},
      {HF_PG_TEXT_ARRAY, HF_PG_TEXT}}},
};

static void add_row(struct hf_buf columns[COLUMNS], const struct hf_pg_simple *one)
{
    const struct hf_request *req = one->req;
    bool acquires = req->op == HF_OP_ACQUIRE;
    add_text(&columns[0], req->name);
    add_bytes(&columns[1], one->id->bytes, sizeof one->id->bytes);
    add_int8(&columns[2], acquires ? req->ttl_ms : req->fence);
    add_text(&columns[3], acquires ? req->owner : req->reason);
    if (acquires) {
        add_text(&columns[4], req->note);
        add_text(&columns[5], one->processes);
    }
}

static int send_kind(struct hf_postgres *s, const struct kind *kind, struct hf_buf columns[COLUMNS],
                     PGresult **ret, struct hf_pg_fault *fault, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = kind->sql};
    for (int i = 0; i < kind->n_columns; i++) {
        if (columns[i].failed)
            return hf_fail(err, HF_NOMEM, "out of memory");
        st.formats[i] = 1;
        st.lengths[i] = (int)columns[i].len;
        hf_pg_bind_as(&st, kind->types[i].array, columns[i].data);
    }
    return hf_pg_exchange(s, &st, 1, true, ret, fault, err);
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
    struct hf_buf columns[COLUMNS] = {0};
    struct hf_pg_fault fault = {0};
    PGresult *result;
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (all[i].req->op == kind->op)
            mine[found++] = &all[i];
    if (found < HF_PG_MANY_MIN)
        return 0;
    for (int i = 0; i < kind->n_columns; i++)
        begin_array(&columns[i], kind->types[i].element, found);
    for (size_t i = 0; i < found; i++)
        add_row(columns, mine[i]);
    int r = send_kind(s, kind, columns, &result, &fault, err);
    for (int i = 0; i < kind->n_columns; i++)
        hf_buf_clear(&columns[i]);
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
