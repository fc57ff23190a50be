/* A long line for one name: who joins it, or keeps a place far behind, is written down together. */
#include "error.h"
#include "task.h"

static void put_waiter(struct hf_postgres *s, struct hf_pg_columns *to, struct hf_pg_task *t)
{
    const struct hf_request *req = t->req;
    hf_pg_channel(s->listener, &t->id, t->channel);
    hf_pg_put_bytes(to, t->id.bytes, sizeof t->id.bytes);
    hf_pg_put_int(to, req->ttl_ms);
    hf_pg_put_int(to, req->wait_ms);
    hf_pg_put_text(to, req->owner);
    hf_pg_put_text(to, req->note);
    hf_pg_put_int(to, req->priority);
    hf_pg_put_text(to, t->processes);
    hf_pg_put_text(to, t->channel);
}

int hf_pg_apply_line(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                     struct hf_error *err)
{
    struct hf_pg_statement st = {
        .sql = "SELECT a FROM holdfast.wait_many($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12) a",
        .again = true};
    struct hf_pg_columns columns;
    struct hf_pg_fault fault = {0};
    struct hf_pg_row row;
    PGresult *result;
    hf_pg_columns_begin(&columns, "bllttitt", n);
    for (size_t i = 0; i < n; i++)
        put_waiter(s, &columns, &tasks[i]);
    hf_pg_bind_text(&st, tasks[0].req->name);
    int r = hf_pg_bind_columns(&st, &columns, err);
    if (r >= 0) {
        hf_pg_bind_judgement(s, &tasks[0], &st);
        r = hf_pg_exchange(s, &st, 1, true, &result, &fault, err);
    }
    hf_pg_columns_clear(&columns);
    if (r < 0) /* refused by the server: nothing was done, each may try for itself */
        return r != -HF_UNKNOWN && fault.sqlstate[0] ? 0 : r;
    if (hf_pq.PQntuples(result) == (int)n)
        for (size_t i = 0; i < n; i++) {
            hf_pg_take_row(hf_pg_open_composite(result, (int)i), &row);
            hf_pg_fill_answer(&row, tasks[i].req, tasks[i].answer);
            tasks[i].done = true;
        }
    hf_pg_clear(&result, 1);
    return 0;
}
