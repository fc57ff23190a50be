#include "error.h"
#include "postgres_store.h"

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
