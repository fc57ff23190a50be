/* The service's tokens: items of the partition TOKENS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

int hf_ddb_token_add(struct hf_store *store, const struct hf_api_token *token, struct hf_error *err)
{
    json_t *item = hf_ddb_object();
    hf_ddb_set_bytes(item, "Hash", token->hash, sizeof token->hash);
    hf_ddb_set_text(item, "Note", token->note);
    hf_ddb_set_text(item, "Verbs", token->verbs);
    hf_ddb_set_text(item, "Prefix", token->prefix);
    hf_ddb_set_int(item, "CreatedAtMs", token->created_at_ms);
    hf_ddb_set_int(item, "ExpiresAtMs", token->expires_at_ms);
    int r = hf_ddb_make_ready(hf_ddb_of(store), err);
    if (r < 0) {
        json_decref(item);
        return r;
    }
    return hf_ddb_store(hf_ddb_of(store), "TOKENS", token->id, item, err);
}

int hf_ddb_token_remove(struct hf_store *store, const char *id, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    json_t *answer = NULL;
    int r = hf_ddb_make_ready(s, err);
    if (r < 0)
        return r;
    json_t *body = hf_ddb_key("TOKENS", *id ? id : "-");
    hf_ddb_set(body, "ReturnValues", json_string("ALL_OLD"));
    if ((r = hf_ddb_call(s, "DeleteItem", body, &answer, NULL, err)) < 0)
        return r;
    if (!json_object_get(answer, "Attributes"))
        r = hf_fail(err, HF_NOT_FOUND, "there is no token %s", id);
    json_decref(answer);
    return r;
}

static int read_token(const json_t *item, struct hf_api_token *ret, struct hf_error *err)
{
    void *hash;
    size_t n;
    *ret = (struct hf_api_token){.created_at_ms = hf_ddb_get_int(item, "CreatedAtMs"),
                                 .expires_at_ms = hf_ddb_get_int(item, "ExpiresAtMs")};
    hf_ddb_copy_text(item, "SK", ret->id, sizeof ret->id);
    hf_ddb_copy_text(item, "Note", ret->note, sizeof ret->note);
    hf_ddb_copy_text(item, "Verbs", ret->verbs, sizeof ret->verbs);
    hf_ddb_copy_text(item, "Prefix", ret->prefix, sizeof ret->prefix);
    int r = hf_ddb_get_bytes(item, "Hash", &hash, &n, err);
    if (r >= 0 && n == sizeof ret->hash)
        memcpy(ret->hash, hash, n);
    else if (r >= 0)
        r = hf_fail(err, HF_UNAVAILABLE, "the table's token %s can't be read", ret->id);
    if (r >= 0)
        free(hash);
    return r;
}

int hf_ddb_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    json_t *items, *item;
    size_t i;
    int r = hf_ddb_make_ready(s, err);
    if (r < 0 || (r = hf_ddb_names(s, "TOKENS", &items, err)) < 0)
        return r;
    json_array_foreach(items, i, item) if (r == 0)
    {
        struct hf_api_token token;
        r = read_token(item, &token, err);
        if (r >= 0)
            r = fn(arg, &token) != 0;
    }
    json_decref(items);
    return r < 0 ? r : 0;
}
