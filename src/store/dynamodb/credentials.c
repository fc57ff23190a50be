#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "transport.h"

/* ---- keys ----------------------------------------------------------------------------------- */

static void free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

void hf_dynamo_keys_put(struct hf_dynamo_keys *keys)
{
    if (!keys || --keys->refs > 0)
        return;
    free(keys->id);
    free_secret(keys->secret);
    free_secret(keys->session);
    free(keys);
}

static struct hf_dynamo_keys *new_keys(const char *id, const char *secret, const char *session)
{
    struct hf_dynamo_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return NULL;
    keys->refs = 1;
    keys->expires_ms = INT64_MAX;
    keys->id = strdup(id);
    keys->secret = strdup(secret);
    keys->session = session && *session ? strdup(session) : NULL;
    if (keys->id && keys->secret && (keys->session || !session || !*session))
        return keys;
    hf_dynamo_keys_put(keys);
    return NULL;
}

/* ---- sources -------------------------------------------------------------------------------- */

static int find_keys(struct hf_dynamo_keys **ret, struct hf_error *err)
{
    const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    if (!id || !*id || !secret || !*secret)
        return hf_fail(err, HF_UNAUTHORIZED,
                       "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    *ret = new_keys(id, secret, getenv("AWS_SESSION_TOKEN"));
    return *ret ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
}

/* ---- getting them --------------------------------------------------------------------------- */

void hf_dynamo_credentials_init(struct hf_dynamo_credentials *c)
{
    pthread_mutex_init(&c->mutex, NULL);
}

void hf_dynamo_credentials_clear(struct hf_dynamo_credentials *c)
{
    hf_dynamo_keys_put(c->keys);
    pthread_mutex_destroy(&c->mutex);
}

int hf_dynamo_keys_get(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_dynamo_credentials *c = &d->credentials;
    pthread_mutex_lock(&c->mutex);
    int r = c->keys ? 0 : find_keys(&c->keys, err);
    if (r >= 0) {
        c->keys->refs++;
        *ret = c->keys;
    }
    pthread_mutex_unlock(&c->mutex);
    return r;
}

void hf_dynamo_keys_reject(struct hf_dynamo *d, const struct hf_dynamo_keys *keys)
{
    struct hf_dynamo_credentials *c = &d->credentials;
    pthread_mutex_lock(&c->mutex);
    if (c->keys == keys) {
        hf_dynamo_keys_put(c->keys);
        c->keys = NULL;
    }
    pthread_mutex_unlock(&c->mutex);
}
