/*
 * An endpoint without TransactWriteItems (dynalite): plain locks only. What is beside the lock's item
 * is written before it, and is the same when it is written again. Only a new block of fences takes
 * steps, as a foreign client might put and delete the item meanwhile: the lock is taken without a
 * fence; while it is ours the block is taken; then, if it is still ours, it gets the block.
 */
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

/* The block that comes next, by ADD: whoever else does the same has another one. */
static int take_block(struct hf_ddb *s, const char *pk, int64_t *ret_high, struct hf_error *err)
{
    json_t *body = hf_ddb_key(pk, "FENCE"), *values = hf_ddb_object(), *answer;
    hf_ddb_set_int(values, ":block", HF_DDB_FENCES);
    hf_ddb_set(body, "UpdateExpression", json_string("ADD High :block"));
    hf_ddb_set(body, "ExpressionAttributeValues", values);
    hf_ddb_set(body, "ReturnValues", json_string("UPDATED_NEW"));
    int r = hf_ddb_call(s, "UpdateItem", body, &answer, NULL, err);
    if (r < 0)
        return r;
    *ret_high = hf_ddb_get_int(json_object_get(answer, "Attributes"), "High");
    json_decref(answer);
    return 0;
}

/* Change the item, if it is still the one that was written. */
static int update_own(struct hf_ddb *s, const char *pk, const json_t *written,
                      const char *expression, json_t *values, struct hf_error *err)
{
    const char *failure = NULL;
    json_t *body = hf_ddb_key(pk, "LOCK"), *answer = NULL;
    hf_ddb_set(values, ":rev", json_incref(json_object_get(written, "Rev")));
    hf_ddb_set(values, ":id", json_incref(json_object_get(written, "LockID")));
    hf_ddb_set(body, "UpdateExpression", json_string(expression));
    hf_ddb_set(body, "ConditionExpression", json_string("Rev = :rev AND LockID = :id"));
    hf_ddb_set(body, "ExpressionAttributeValues", values);
    int r = hf_ddb_call(s, "UpdateItem", body, &answer, &failure, err);
    if (r >= 0 && failure)
        r = strcmp(failure, "ConditionalCheckFailedException") == 0
                ? HF_DDB_CONFLICT
                : hf_dynamo_fail(s->d, "UpdateItem", failure, answer, err);
    json_decref(answer);
    return r;
}

int hf_ddb_give_block(struct hf_ddb *s, const char *pk, const json_t *written, int64_t first,
                      int64_t fence, struct hf_error *err)
{
    int64_t high;
    json_t *values = hf_ddb_object();
    int r = take_block(s, pk, &high, err);
    if (r < 0) {
        json_decref(values);
        return r;
    }
    if (high - HF_DDB_FENCES == first) {
        hf_ddb_set_int(values, ":fence", fence);
        hf_ddb_set_int(values, ":limit", high);
        return update_own(s, pk, written, "SET Fence = :fence, FenceLimit = :limit", values, err);
    }
    /* Another one has taken the block that we counted on: give the lock back, and begin anew. */
    hf_ddb_set_text(values, ":free", HF_DDB_RELEASED_AT);
    r = update_own(s, pk, written, "SET ExpiresAt = :free REMOVE LockID, ExpiresMs", values, err);
    return r < 0 ? r : HF_DDB_CONFLICT;
}
