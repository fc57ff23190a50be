#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "error.h"
#include "etcd_store.h"

#define TOKEN(kind, name, member) HF_ETCD_FIELD(kind, struct hf_api_token, name, member)
static const struct hf_etcd_field fields[] = {
    TOKEN(TEXT, "id", id),
    TOKEN(TEXT, "note", note),
    TOKEN(TEXT, "verbs", verbs),
    TOKEN(TEXT, "prefix", prefix),
    TOKEN(INT64, "createdAt", created_at_ms),
    TOKEN(INT64, "expiresAt", expires_at_ms),
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static int add(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    const struct hf_api_token *token = arg;
    struct hf_buf hash = HF_BUF(128);
    char key[HF_ETCD_KEY_MAX];
    hf_base64_write(&hash, token->hash, sizeof token->hash);
    hf_etcd_key(t->s, key, "token/%s", token->id);
    json_t *object = hf_etcd_encode(fields, N_FIELDS, token);
    json_object_set_new_nocheck(object, "hash", json_string(hash.data ? hash.data : ""));
    hf_buf_clear(&hash);
    return hf_etcd_put_json(t, key, object, 0, err);
}

int hf_etcd_token_add(struct hf_store *store, const struct hf_api_token *token,
                      struct hf_error *err)
{
    struct hf_api_token copy = *token;
    return hf_etcd_change(hf_etcd_of(store), add, &copy, err);
}

struct removal {
    const char *id;
    bool found;
};

static int take_away(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    struct removal *removal = arg;
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    hf_etcd_key(t->s, key, "token/%.40s", removal->id);
    int r = hf_etcd_get(t, key, false, &kv, err);
    removal->found = r >= 0 && kv;
    return r < 0 || !kv ? r : hf_etcd_delete(t, key, err);
}

int hf_etcd_token_remove(struct hf_store *store, const char *id, struct hf_error *err)
{
    struct removal removal = {.id = id};
    int r = hf_etcd_change(hf_etcd_of(store), take_away, &removal, err);
    if (r >= 0 && !removal.found)
        r = hf_fail(err, HF_NOT_FOUND, "there is no token %.40s; see holdfast token list", id);
    return r;
}

static void take_token(const struct hf_etcd_kv *kv, struct hf_api_token *ret)
{
    json_t *object = hf_etcd_parse(kv);
    const json_t *text = json_object_get(object, "hash");
    void *hash = NULL;
    size_t n = 0;
    memset(ret, 0, sizeof *ret);
    hf_etcd_decode(fields, N_FIELDS, object, ret);
    if (text && hf_base64_read(json_string_value(text), json_string_length(text), &hash, &n) &&
        n == sizeof ret->hash)
        memcpy(ret->hash, hash, n);
    free(hash);
    json_decref(object);
}

static int by_age(const void *a, const void *b)
{
    const struct hf_api_token *x = a, *y = b;
    if (x->created_at_ms != y->created_at_ms)
        return x->created_at_ms < y->created_at_ms ? -1 : 1;
    return strcmp(x->id, y->id);
}

int hf_etcd_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, from, "token/");
    hf_etcd_key(s, to, "token0");
    struct hf_etcd_span span = {.from = from, .to = to};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    struct hf_api_token *all = calloc(page.n + 1, sizeof *all);
    for (size_t i = 0; all && i < page.n; i++)
        take_token(&page.of[i], &all[i]);
    if (all && page.n)
        qsort(all, page.n, sizeof *all, by_age);
    int stop = 0;
    for (size_t i = 0; all && !stop && i < page.n; i++)
        stop = fn(arg, &all[i]);
    hf_etcd_page_clear(&page);
    r = all ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    free(all);
    return r;
}
