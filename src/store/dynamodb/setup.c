/* The table: made by `holdfast init`, or by the seed's own application; what it holds has a version. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "dynamodb_store.h"
#include "error.h"

enum { MADE_WITHIN_MS = 300000, EPOCH = 1000000 };

static int check_format(struct hf_ddb *s, const json_t *meta, struct hf_error *err)
{
    int64_t format = hf_ddb_get_int(meta, "Format");
    if (format > HF_DDB_FORMAT)
        return hf_fail(err, HF_UNSUPPORTED,
                       "table %s has format %lld, this holdfast knows %d; use a newer one",
                       hf_dynamo_table(s->d), (long long)format, HF_DDB_FORMAT);
    return 0;
}

/* A table without it was made for the seed's clients alone: from now on it is ours too. */
static int look_at_format(struct hf_ddb *s, struct hf_error *err)
{
    json_t *meta;
    int r = hf_ddb_fetch(s, "HOLDFAST", "META", &meta, err);
    if (r < 0)
        return r;
    r = check_format(s, meta, err);
    if (r >= 0 && !meta) {
        json_t *item = hf_ddb_object();
        hf_ddb_set_int(item, "Format", HF_DDB_FORMAT);
        r = hf_ddb_store(s, "HOLDFAST", "META", item, err);
    }
    json_decref(meta);
    return r;
}

int hf_ddb_make_ready(struct hf_ddb *s, struct hf_error *err)
{
    pthread_mutex_lock(&s->mutex);
    bool ready = s->ready;
    pthread_mutex_unlock(&s->mutex);
    if (ready)
        return 0;
    int r = look_at_format(s, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&s->mutex);
    s->ready = true;
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

/* ---- making it ------------------------------------------------------------------------------ */

static int create(struct hf_ddb *s, struct hf_error *err)
{
    json_t *body =
        json_pack("{s:[{s:s,s:s},{s:s,s:s}],s:[{s:s,s:s},{s:s,s:s}],s:s}", "AttributeDefinitions",
                  "AttributeName", "PK", "AttributeType", "S", "AttributeName", "SK",
                  "AttributeType", "S", "KeySchema", "AttributeName", "PK", "KeyType", "HASH",
                  "AttributeName", "SK", "KeyType", "RANGE", "BillingMode", "PAY_PER_REQUEST");
    json_t *answer = NULL;
    const char *failure = NULL;
    int r = hf_dynamo_call(s->d, "CreateTable", body, &answer, &failure, err);
    json_decref(body);
    if (r == -HF_UNKNOWN) /* whether it is there is asked for next */
        return 0;
    if (r >= 0 && failure && strcmp(failure, "ResourceInUseException") != 0)
        r = hf_dynamo_fail(s->d, "CreateTable", failure, answer, err);
    json_decref(answer);
    return r;
}

/* 1: it can be used; 0: not yet. */
static int is_active(struct hf_ddb *s, struct hf_error *err)
{
    json_t *body = json_object(), *answer = NULL;
    const char *failure = NULL;
    int r = hf_dynamo_call(s->d, "DescribeTable", body, &answer, &failure, err);
    json_decref(body);
    if (r < 0)
        return r;
    const char *status =
        json_string_value(json_object_get(json_object_get(answer, "Table"), "TableStatus"));
    r = !failure && status && strcmp(status, "ACTIVE") == 0;
    if (failure && strcmp(failure, "ResourceNotFoundException") != 0)
        r = hf_dynamo_fail(s->d, "DescribeTable", failure, answer, err);
    json_decref(answer);
    return r;
}

static int wait_until_active(struct hf_ddb *s, struct hf_error *err)
{
    static const struct timespec pause = {.tv_nsec = 250000000};
    int64_t until_ms = hf_clock_boot_ms() + MADE_WITHIN_MS;
    for (;;) {
        int r = is_active(s, err);
        if (r != 0)
            return r;
        if (hf_clock_boot_ms() >= until_ms)
            return hf_fail(err, HF_UNAVAILABLE, "table %s is still being made; try again later",
                           hf_dynamo_table(s->d));
        nanosleep(&pause, NULL);
    }
}

/* Only for tidiness: an emulator may not have it, and on a table that has it, it is refused. */
static int enable_ttl(struct hf_ddb *s, struct hf_error *err)
{
    json_t *body =
        json_pack("{s:{s:s,s:b}}", "TimeToLiveSpecification", "AttributeName", "TTL", "Enabled", 1);
    json_t *answer = NULL;
    const char *failure = NULL;
    int r = hf_dynamo_call(s->d, "UpdateTimeToLive", body, &answer, &failure, err);
    json_decref(body);
    json_decref(answer);
    return r == -HF_UNSUPPORTED ? 0 : r;
}

/* ---- the epoch ------------------------------------------------------------------------------ */

static int raise_fences_of(struct hf_ddb *s, const char *name, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    json_t *answer = NULL;
    const char *failure = NULL;
    hf_ddb_lock_pk(name, pk);
    json_t *body = hf_ddb_key(pk, "FENCE"), *values = hf_ddb_object();
    hf_ddb_set_int(values, ":more", EPOCH);
    hf_ddb_set_int(values, ":one", 1);
    hf_ddb_set(body, "UpdateExpression", json_string("ADD High :more, Rev :one"));
    hf_ddb_set(body, "ExpressionAttributeValues", values);
    int r = hf_ddb_call(s, "UpdateItem", body, NULL, NULL, err);
    if (r < 0)
        return r;
    body = hf_ddb_key(pk, "LOCK");
    hf_ddb_set(body, "UpdateExpression", json_string("SET FenceLimit = Fence ADD Rev :one"));
    hf_ddb_set(body, "ConditionExpression", json_string("attribute_exists(Fence)"));
    values = hf_ddb_object();
    hf_ddb_set_int(values, ":one", 1);
    hf_ddb_set(body, "ExpressionAttributeValues", values);
    r = hf_ddb_call(s, "UpdateItem", body, &answer, &failure, err);
    if (r >= 0 && failure && strcmp(failure, "ConditionalCheckFailedException") != 0)
        r = hf_dynamo_fail(s->d, "UpdateItem", failure, answer, err);
    json_decref(answer);
    return r;
}

static int raise_fences(struct hf_ddb *s, struct hf_error *err)
{
    json_t *names, *item;
    size_t i;
    int r = hf_ddb_names(s, "NAMES", &names, err);
    if (r < 0)
        return r;
    json_array_foreach(names, i, item) if (r >= 0)
    {
        r = raise_fences_of(s, hf_ddb_get_text(item, "SK"), err);
    }
    json_decref(names);
    return r;
}

int hf_ddb_init(struct hf_store *store, bool bump_epoch, struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    int r = is_active(s, err);
    if (r == 0) {
        if ((r = create(s, err)) < 0 || (r = wait_until_active(s, err)) < 0)
            return r;
    }
    if (r >= 0)
        r = enable_ttl(s, err);
    if (r >= 0)
        r = hf_ddb_make_ready(s, err);
    return r >= 0 && bump_epoch ? raise_fences(s, err) : r;
}
