/* The service's tokens: few, and rarely changed. */
#include <string.h>

#include "error.h"
#include "postgres_store.h"

int hf_pg_token_add(struct hf_store *store, const struct hf_api_token *token, struct hf_error *err)
{
    struct hf_pg_statement st = {
        .sql = "INSERT INTO holdfast.api_token (id, hash, note, verbs, prefix, created_at,"
               " expires_at) VALUES ($1, $2, $3, $4, $5, to_timestamp($6 / 1000.0),"
               " to_timestamp(nullif($7, 0) / 1000.0)) ON CONFLICT (id) DO NOTHING"};
    PGresult *result;
    hf_pg_bind_text(&st, token->id);
    hf_pg_bind_bytes(&st, token->hash, sizeof token->hash);
    hf_pg_bind_text(&st, token->note);
    hf_pg_bind_text(&st, token->verbs);
    hf_pg_bind_text(&st, token->prefix);
    hf_pg_bind_int(&st, HF_PG_INT8, token->created_at_ms);
    hf_pg_bind_int(&st, HF_PG_INT8, token->expires_at_ms);
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, true, &result, NULL, err);
    if (r >= 0)
        hf_pg_clear(&result, 1);
    return r;
}

int hf_pg_token_remove(struct hf_store *store, const char *id, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "DELETE FROM holdfast.api_token WHERE id = $1 RETURNING 1"};
    PGresult *result;
    hf_pg_bind_text(&st, id);
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, true, &result, NULL, err);
    if (r < 0)
        return r;
    if (hf_pq.PQntuples(result) == 0)
        r = hf_fail(err, HF_NOT_FOUND, "there is no token %.40s; see holdfast token list", id);
    hf_pg_clear(&result, 1);
    return r;
}

static void take_token(const PGresult *result, int row, struct hf_api_token *ret)
{
    struct hf_pg_cursor at = {.result = result, .row = row};
    size_t n;
    *ret = (struct hf_api_token){0};
    hf_pg_take_text(&at, ret->id, sizeof ret->id);
    const char *hash = hf_pg_take_bytes(&at, &n);
    if (n == sizeof ret->hash)
        memcpy(ret->hash, hash, n);
    hf_pg_take_text(&at, ret->note, sizeof ret->note);
    hf_pg_take_text(&at, ret->verbs, sizeof ret->verbs);
    hf_pg_take_text(&at, ret->prefix, sizeof ret->prefix);
    ret->created_at_ms = hf_pg_take_time_ms(&at);
    ret->expires_at_ms = hf_pg_take_time_ms(&at);
}

int hf_pg_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT id, hash, note, verbs, prefix, created_at,"
                                        " expires_at FROM holdfast.api_token"
                                        " ORDER BY created_at, id"};
    struct hf_api_token token;
    PGresult *result;
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err), stop = 0;
    if (r < 0)
        return r;
    for (int i = 0; i < hf_pq.PQntuples(result) && !stop; i++) {
        take_token(result, i, &token);
        stop = fn(arg, &token);
    }
    hf_pg_clear(&result, 1);
    return 0;
}
