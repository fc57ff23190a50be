/* Attribute values as DynamoDB's JSON has them ({"S": ...}, {"N": "..."}), and requests for items. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "dynamodb_store.h"
#include "error.h"

static _Thread_local bool out_of_memory;

int hf_ddb_check_memory(struct hf_error *err)
{
    bool failed = out_of_memory;
    out_of_memory = false;
    return failed ? hf_fail(err, HF_NOMEM, "out of memory") : 0;
}

static json_t *noted(json_t *value)
{
    out_of_memory |= !value;
    return value;
}

json_t *hf_ddb_object(void) { return noted(json_object()); }

/* ---- values --------------------------------------------------------------------------------- */

void hf_ddb_set(json_t *item, const char *name, json_t *value)
{
    if (!value || json_object_set_new(item, name, value) < 0)
        out_of_memory = true;
}

json_t *hf_ddb_text(const char *text) { return noted(json_pack("{s:s}", "S", text)); }

json_t *hf_ddb_int(int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return noted(json_pack("{s:s}", "N", text));
}

void hf_ddb_set_text(json_t *item, const char *name, const char *text)
{
    if (text && *text)
        hf_ddb_set(item, name, hf_ddb_text(text));
}

void hf_ddb_set_int(json_t *item, const char *name, int64_t value)
{
    hf_ddb_set(item, name, hf_ddb_int(value));
}

void hf_ddb_set_bytes(json_t *item, const char *name, const void *bytes, size_t n)
{
    struct hf_buf text = HF_BUF(1 << 20);
    hf_base64_write(&text, bytes, n);
    hf_ddb_set(item, name,
               text.failed ? NULL : json_pack("{s:s}", "B", text.data ? text.data : ""));
    hf_buf_clear(&text);
}

static const char *value_of(const json_t *item, const char *name, const char *type)
{
    return json_string_value(json_object_get(json_object_get(item, name), type));
}

bool hf_ddb_has(const json_t *item, const char *name)
{
    return json_object_get(item, name) != NULL;
}

const char *hf_ddb_get_text(const json_t *item, const char *name)
{
    const char *text = value_of(item, name, "S");
    return text ? text : "";
}

void hf_ddb_copy_text(const json_t *item, const char *name, char *ret, size_t size)
{
    snprintf(ret, size, "%s", hf_ddb_get_text(item, name));
}

int64_t hf_ddb_get_int(const json_t *item, const char *name)
{
    const char *text = value_of(item, name, "N");
    return text ? strtoll(text, NULL, 10) : 0;
}

int hf_ddb_get_bytes(const json_t *item, const char *name, void **ret, size_t *ret_n,
                     struct hf_error *err)
{
    const char *text = value_of(item, name, "B");
    *ret = NULL;
    *ret_n = 0;
    if (!text || !*text)
        return 0;
    if (!hf_base64_read(text, strlen(text), ret, ret_n))
        return hf_fail(err, HF_UNAVAILABLE, "the table's attribute %s can't be read as bytes",
                       name);
    return 0;
}

/* ---- items ---------------------------------------------------------------------------------- */

static json_t *key_object(const char *pk, const char *sk)
{
    return noted(json_pack("{s:{s:s},s:{s:s}}", "PK", "S", pk, "SK", "S", sk));
}

json_t *hf_ddb_key(const char *pk, const char *sk)
{
    json_t *body = hf_ddb_object();
    hf_ddb_set(body, "Key", key_object(pk, sk));
    return body;
}

/* What came of a call: `answer` and `failure` for the caller, or an error. */
static int conclude(struct hf_ddb *s, const char *action, int r, json_t *answer,
                    const char *failure, json_t **ret, const char **ret_failure,
                    struct hf_error *err)
{
    bool no_table = r >= 0 && failure && strcmp(failure, "ResourceNotFoundException") == 0;
    if (no_table)
        r = hf_fail(err, HF_UNAVAILABLE,
                    "DynamoDB at %s has no table %s; 'holdfast init' makes it, if that is its name",
                    hf_dynamo_endpoint(s->d), hf_dynamo_table(s->d));
    else if (r >= 0 && failure && !ret_failure)
        r = hf_dynamo_fail(s->d, action, failure, answer, err);
    if (r < 0) {
        json_decref(answer);
        return r;
    }
    if (ret_failure)
        *ret_failure = failure;
    if (ret)
        *ret = answer;
    else
        json_decref(answer);
    return 0;
}

int hf_ddb_call(struct hf_ddb *s, const char *action, json_t *body, json_t **ret,
                const char **ret_failure, struct hf_error *err)
{
    json_t *answer = NULL;
    const char *failure = NULL;
    int r = hf_ddb_check_memory(err);
    if (r >= 0)
        r = hf_dynamo_call(s->d, action, body, &answer, &failure, err);
    json_decref(body);
    return conclude(s, action, r, answer, failure, ret, ret_failure, err);
}

int hf_ddb_call_text(struct hf_ddb *s, const char *action, const struct hf_buf *body, json_t **ret,
                     const char **ret_failure, struct hf_error *err)
{
    json_t *answer = NULL;
    const char *failure = NULL;
    int r = body->failed ? hf_fail(err, HF_NOMEM, "out of memory")
                         : hf_dynamo_call_text(s->d, action, body, &answer, &failure, err);
    return conclude(s, action, r, answer, failure, ret, ret_failure, err);
}

int hf_ddb_fetch(struct hf_ddb *s, const char *pk, const char *sk, json_t **ret,
                 struct hf_error *err)
{
    json_t *body = hf_ddb_key(pk, sk), *answer;
    hf_ddb_set(body, "ConsistentRead", json_true());
    int r = hf_ddb_call(s, "GetItem", body, &answer, NULL, err);
    if (r < 0)
        return r;
    *ret = json_incref(json_object_get(answer, "Item"));
    json_decref(answer);
    return 0;
}

int hf_ddb_store(struct hf_ddb *s, const char *pk, const char *sk, json_t *item,
                 struct hf_error *err)
{
    json_t *body = hf_ddb_object();
    hf_ddb_set(item, "PK", hf_ddb_text(pk));
    hf_ddb_set(item, "SK", hf_ddb_text(sk));
    hf_ddb_set(body, "Item", item);
    return hf_ddb_call(s, "PutItem", body, NULL, NULL, err);
}

/* ---- ranges --------------------------------------------------------------------------------- */

static json_t *query_body(const struct hf_ddb_range *range, bool count)
{
    json_t *body =
        noted(json_pack("{s:s,s:{s:{s:s},s:{s:s},s:{s:s}},s:b,s:b}", "KeyConditionExpression",
                        "PK = :pk AND SK BETWEEN :from AND :to", "ExpressionAttributeValues", ":pk",
                        "S", range->pk, ":from", "S", range->from, ":to", "S", range->to,
                        "ConsistentRead", 1, "ScanIndexForward", !range->backwards));
    if (count)
        hf_ddb_set(body, "Select", json_string("COUNT"));
    if (range->limit)
        hf_ddb_set(body, "Limit", json_integer((json_int_t)range->limit));
    return body;
}

/* Page by page, until there is no more or enough. */
static int query_pages(struct hf_ddb *s, const struct hf_ddb_range *range, json_t *items,
                       int64_t *count, struct hf_error *err)
{
    json_t *start = NULL;
    int r = 0;
    do {
        json_t *body = query_body(range, count != NULL), *answer = NULL;
        if (start)
            hf_ddb_set(body, "ExclusiveStartKey", start);
        start = NULL;
        if ((r = hf_ddb_call(s, "Query", body, &answer, NULL, err)) < 0)
            break;
        if (count)
            *count += json_integer_value(json_object_get(answer, "Count"));
        else if (json_array_extend(items, json_object_get(answer, "Items")) < 0)
            r = hf_fail(err, HF_NOMEM, "out of memory");
        start = json_incref(json_object_get(answer, "LastEvaluatedKey"));
        json_decref(answer);
        if (range->limit && json_array_size(items) >= range->limit)
            break;
    } while (r >= 0 && start);
    json_decref(start);
    return r;
}

int hf_ddb_query(struct hf_ddb *s, const struct hf_ddb_range *range, json_t **ret,
                 struct hf_error *err)
{
    json_t *items = json_array();
    int r =
        items ? query_pages(s, range, items, NULL, err) : hf_fail(err, HF_NOMEM, "out of memory");
    if (r < 0) {
        json_decref(items);
        return r;
    }
    while (range->limit && json_array_size(items) > range->limit)
        json_array_remove(items, json_array_size(items) - 1);
    *ret = items;
    return 0;
}

int hf_ddb_count(struct hf_ddb *s, const struct hf_ddb_range *range, int64_t *ret,
                 struct hf_error *err)
{
    int64_t n = 0;
    int r = query_pages(s, range, NULL, &n, err);
    if (r >= 0)
        *ret = n;
    return r;
}

/* ---- many ----------------------------------------------------------------------------------- */

static json_t *find_item(const json_t *items, const json_t *key)
{
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        if (json_equal(json_object_get(item, "PK"), json_object_get(key, "PK")) &&
            json_equal(json_object_get(item, "SK"), json_object_get(key, "SK")))
            return json_incref(item);
    }
    return json_null();
}

/* What the service did not come to is asked for again. */
static int fetch_all(struct hf_ddb *s, const json_t *keys, json_t *items, struct hf_error *err)
{
    const char *table = hf_dynamo_table(s->d);
    json_t *asked = noted(json_pack("{s:{s:O,s:b}}", table, "Keys", keys, "ConsistentRead", 1));
    int r = 0;
    while (r >= 0 && json_object_size(asked) > 0) {
        json_t *body = hf_ddb_object(), *answer = NULL;
        hf_ddb_set(body, "RequestItems", asked);
        asked = NULL;
        if ((r = hf_ddb_call(s, "BatchGetItem", body, &answer, NULL, err)) < 0)
            break;
        if (json_array_extend(items, json_object_get(json_object_get(answer, "Responses"), table)) <
            0)
            r = hf_fail(err, HF_NOMEM, "out of memory");
        asked = json_incref(json_object_get(answer, "UnprocessedKeys"));
        json_decref(answer);
    }
    json_decref(asked);
    return r;
}

int hf_ddb_fetch_many(struct hf_ddb *s, const json_t *keys, json_t **ret, struct hf_error *err)
{
    json_t *items = json_array(), *ordered = json_array(), *key;
    size_t i;
    int r = items && ordered ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0 && json_array_size(keys) > 0)
        r = fetch_all(s, keys, items, err);
    json_array_foreach(keys, i, key)
    {
        if (r >= 0 && json_array_append_new(ordered, find_item(items, key)) < 0)
            r = hf_fail(err, HF_NOMEM, "out of memory");
    }
    json_decref(items);
    if (r < 0) {
        json_decref(ordered);
        return r;
    }
    *ret = ordered;
    return 0;
}

/* ---- stamps --------------------------------------------------------------------------------- */

enum { STAMPS_PER_MS = 2048, STAMPS_START = STAMPS_PER_MS / 2 };

int64_t hf_ddb_stamp_ms(int64_t stamp) { return stamp / STAMPS_PER_MS; }

int64_t hf_ddb_first_stamp(int64_t wall_ms) { return wall_ms * STAMPS_PER_MS; }

int64_t hf_ddb_stamp(int64_t wall_ms)
{
    static _Atomic int64_t last;
    uint16_t random;
    hf_random(&random, sizeof random); /* two processes in the same millisecond differ */
    int64_t before = atomic_load(&last), stamp;
    do {
        stamp = hf_ddb_first_stamp(wall_ms) + random % STAMPS_START;
        if (stamp <= before)
            stamp = before + 1;
    } while (!atomic_compare_exchange_weak(&last, &before, stamp));
    return stamp;
}
