/* Which executions are due, and workers that sleep until one is. */
#include "error.h"
#include "postgres_store.h"

enum { WORKFLOWS_MAX_BYTES = 1 << 20 };

/* ---- what is due ---------------------------------------------------------------------------- */

/* An array literal of names, each in quotes. */
static void put_names(struct hf_buf *to, const char *const *names, size_t n)
{
    hf_buf_putc(to, '{');
    for (size_t i = 0; i < n; i++) {
        hf_buf_printf(to, "%s\"", i ? "," : "");
        for (const char *c = names[i]; *c; c++) {
            if (*c == '"' || *c == '\\')
                hf_buf_putc(to, '\\');
            hf_buf_putc(to, *c);
        }
        hf_buf_putc(to, '"');
    }
    hf_buf_putc(to, '}');
}

/* By the server's clock, whatever ours says. */
int hf_pg_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
              size_t *ret_n, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT x FROM holdfast.due($1,$2,$3,$4) x"};
    struct hf_buf workflows = HF_BUF(WORKFLOWS_MAX_BYTES);
    PGresult *result;
    put_names(&workflows, due->workflows, due->n_workflows);
    hf_pg_bind_as(&st, HF_PG_TEXT_ARRAY, due->n_workflows ? workflows.data : NULL);
    hf_pg_bind_bool(&st, due->verifies);
    hf_pg_bind_int(&st, HF_PG_INT8, (int64_t)due->skip);
    hf_pg_bind_int(&st, HF_PG_INT8, (int64_t)due->limit);
    int r = workflows.failed
                ? hf_fail(err, HF_TOO_LARGE, "too many workflows at once")
                : hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err);
    hf_buf_clear(&workflows);
    if (r < 0)
        return r;
    size_t n = (size_t)hf_pq.PQntuples(result);
    *ret_n = n < due->limit ? n : due->limit;
    for (size_t i = 0; i < *ret_n; i++)
        hf_pg_take_execution(hf_pg_open_composite(result, (int)i), &ret[i]);
    hf_pg_clear(&result, 1);
    return 0;
}

/* ---- workers that sleep --------------------------------------------------------------------- */

static int wake_up(struct hf_postgres *s, const struct hf_lock_id *id, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.awake($1)"};
    PGresult *result;
    hf_pg_bind_id(&st, id);
    int r = hf_pg_exchange(s, &st, 1, true, &result, NULL, err);
    if (r >= 0)
        hf_pg_clear(&result, 1);
    return r;
}

int hf_pg_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
               int64_t *ret_next_ms, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_statement st = {.sql = "SELECT holdfast.sleep($1,$2,$3)"};
    char channel[HF_PG_CHANNEL_LEN + 1];
    PGresult *result;
    if (!wanted)
        return wake_up(s, id, err);
    hf_pg_channel(s->listener, id, channel);
    hf_pg_bind_id(&st, id);
    hf_pg_bind_text(&st, channel);
    hf_pg_bind_int(&st, HF_PG_INT4, hf_pg_listener_pid(s->listener));
    int r = hf_pg_exchange(s, &st, 1, true, &result, NULL, err);
    if (r < 0)
        return r;
    *ret_next_ms = hf_pg_take_int(&(struct hf_pg_cursor){.result = result});
    hf_pg_clear(&result, 1);
    return 0;
}

void hf_pg_wake_idle(struct hf_postgres *s, uint32_t n_ready)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.wake_idle($1)"};
    PGresult *result;
    hf_pg_bind_int(&st, HF_PG_INT4, n_ready);
    if (n_ready && hf_pg_exchange(s, &st, 1, true, &result, NULL, NULL) >= 0)
        hf_pg_clear(&result, 1);
}
