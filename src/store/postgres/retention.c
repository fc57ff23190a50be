#include <string.h>

#include "error.h"
#include "postgres_store.h"
#include "wire.h"

enum { RULES_MAX_BYTES = 8 << 20 };

int hf_pg_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                   char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT key FROM holdfast.execution WHERE workflow = $1"
                                        " AND key >= $2 AND key <= $3 AND NOT once"
                                        " ORDER BY key DESC LIMIT 1"};
    PGresult *result;
    hf_pg_bind_text(&st, workflow);
    hf_pg_bind_text(&st, from);
    hf_pg_bind_text(&st, to);
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 1)
        hf_pg_take_text(&(struct hf_pg_cursor){.result = result}, ret, HF_KEY_MAX + 1);
    else
        r = hf_fail(err, HF_NOT_FOUND, "%s has no key from %s to %s", workflow, from, to);
    hf_pg_clear(&result, 1);
    return r;
}

int hf_pg_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                 struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.retain($1::jsonb)"};
    struct hf_buf json = HF_BUF(RULES_MAX_BYTES);
    PGresult *result;
    for (size_t i = 0; i < n; i++) {
        const struct hf_retention *rule = &rules[i];
        hf_buf_puts(&json, i ? ",{\"workflow\":" : "[{\"workflow\":");
        hf_wire_string(&json, rule->workflow, strlen(rule->workflow));
        hf_buf_printf(&json, ",\"keep_ms\":%lld,\"keep_count\":%lld}",
                      (long long)(rule->keep_ms ? rule->keep_ms : HF_KEEP_DEFAULT_MS),
                      (long long)rule->keep_count);
    }
    hf_buf_putc(&json, ']');
    hf_pg_bind_text(&st, json.data);
    int r = json.failed ? hf_fail(err, HF_TOO_LARGE, "too many workflows at once")
                        : hf_pg_exchange(hf_postgres_of(store), &st, 1, true, &result, NULL, err);
    hf_buf_clear(&json);
    if (r >= 0)
        hf_pg_clear(&result, 1);
    return r;
}

/* A time travels as the server has it, in microseconds since 2000. */
int hf_pg_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                int64_t *ret_removed, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.prune_executions($1,$2,$3,$4,$5,$6)"};
    PGresult *result;
    hf_pg_bind_text(&st, place->workflow);
    hf_pg_bind_int(&st, HF_PG_INT4, place->where);
    hf_pg_bind_int(&st, HF_PG_INT8, place->from);
    hf_pg_bind_int(&st, HF_PG_INT8, place->upto);
    hf_pg_bind_int(&st, HF_PG_INT8, place->upto_seq);
    hf_pg_bind_int(&st, HF_PG_INT8, max);
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, true, &result, NULL, err);
    if (r < 0)
        return r;
    struct hf_pg_cursor at = hf_pg_open_composite(result, 0);
    hf_pg_take_text(&at, place->workflow, sizeof place->workflow);
    place->where = (int)hf_pg_take_int(&at);
    place->from = hf_pg_take_int(&at);
    place->upto = hf_pg_take_int(&at);
    place->upto_seq = hf_pg_take_int(&at);
    *ret_removed = hf_pg_take_int(&at);
    hf_pg_clear(&result, 1);
    return 0;
}
