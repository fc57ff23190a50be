/* One request at work: items are read once and written together, if nobody else has changed them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "dynamodb_store.h"
#include "error.h"

struct hf_ddb_slot {
    char *pk, *sk;
    json_t *old; /* as it was read; NULL: there was none */
    json_t *now; /* as it is to be; NULL: it is to be gone */
    bool is_read, is_written;
    enum hf_ddb_how how;
};

enum { TRANSACTION_MAX = 100 };

int hf_ddb_turn_begin(struct hf_ddb_turn *t, struct hf_ddb *s, const char *name,
                      struct hf_error *err)
{
    int64_t early_ms, late_ms;
    *t = (struct hf_ddb_turn){.s = s, .name = name};
    if (!hf_dynamo_time(s->d, &early_ms, &late_ms)) {
        int r = hf_dynamo_learn_time(s->d, err);
        if (r < 0)
            return r;
        if (!hf_dynamo_time(s->d, &early_ms, &late_ms))
            return hf_fail(err, HF_UNAVAILABLE, "DynamoDB's endpoint does not say what time it is");
    }
    t->now_ms = early_ms - HF_DYNAMO_SKEW_MS;
    t->unsure_ms = late_ms - t->now_ms;
    t->wall_ms = late_ms;
    return 0;
}

void hf_ddb_turn_end(struct hf_ddb_turn *t)
{
    for (size_t i = 0; i < t->n_slots; i++) {
        json_decref(t->slots[i].old);
        json_decref(t->slots[i].now);
        free(t->slots[i].pk);
        free(t->slots[i].sk);
    }
    free(t->slots);
    free(t->queue);
    t->slots = NULL;
    t->queue = NULL;
    t->n_slots = t->n_queue = 0;
}

enum { AHEAD_MAX_MS = 10000 }; /* further ahead than this no honest clock was */

int hf_ddb_turn_follow(struct hf_ddb_turn *t, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    const json_t *item;
    hf_ddb_lock_pk(t->name, pk);
    int r = hf_ddb_turn_get(t, pk, "LOCK", &item, err);
    if (r < 0)
        return r;
    t->last_stamp = hf_ddb_get_int(item, "LastSeq");
    int64_t last_ms = hf_ddb_stamp_ms(t->last_stamp);
    if (last_ms > t->wall_ms && last_ms < t->wall_ms + AHEAD_MAX_MS)
        t->wall_ms = last_ms;
    return 0;
}

int64_t hf_ddb_turn_stamp(struct hf_ddb_turn *t)
{
    int64_t stamp = hf_ddb_stamp(t->wall_ms);
    t->last_stamp = stamp > t->last_stamp ? stamp : t->last_stamp + 1;
    return t->last_stamp;
}

/* ---- reading -------------------------------------------------------------------------------- */

static struct hf_ddb_slot *find(struct hf_ddb_turn *t, const char *pk, const char *sk)
{
    for (size_t i = 0; i < t->n_slots; i++)
        if (strcmp(t->slots[i].sk, sk) == 0 && strcmp(t->slots[i].pk, pk) == 0)
            return &t->slots[i];
    return NULL;
}

/* The item's own, made where it is new; NULL: no memory. */
static struct hf_ddb_slot *slot_of(struct hf_ddb_turn *t, const char *pk, const char *sk)
{
    struct hf_ddb_slot *slot = find(t, pk, sk);
    if (slot)
        return slot;
    if (t->n_slots == t->slots_size) {
        size_t size = 2 * t->slots_size + 16;
        struct hf_ddb_slot *grown = realloc(t->slots, size * sizeof *grown);
        if (!grown)
            return NULL;
        t->slots = grown;
        t->slots_size = size;
    }
    slot = &t->slots[t->n_slots];
    *slot = (struct hf_ddb_slot){.pk = strdup(pk), .sk = strdup(sk)};
    if (!slot->pk || !slot->sk) {
        free(slot->pk);
        free(slot->sk);
        return NULL;
    }
    t->n_slots++;
    return slot;
}

void hf_ddb_turn_know(struct hf_ddb_turn *t, const char *pk, const char *sk, const json_t *item)
{
    struct hf_ddb_slot *slot = item ? slot_of(t, pk, sk) : NULL;
    if (!slot || slot->is_read)
        return;
    slot->old = json_incref((json_t *)(uintptr_t)item);
    slot->is_read = true;
}

int hf_ddb_turn_get(struct hf_ddb_turn *t, const char *pk, const char *sk, const json_t **ret,
                    struct hf_error *err)
{
    struct hf_ddb_slot *slot = slot_of(t, pk, sk);
    if (!slot)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (!slot->is_read && !slot->is_written) {
        int r = hf_ddb_fetch(t->s, pk, sk, &slot->old, err);
        if (r < 0)
            return r;
        slot->is_read = true;
    }
    *ret = slot->is_written ? slot->now : slot->old;
    return 0;
}

const json_t *hf_ddb_turn_seen(struct hf_ddb_turn *t, const char *pk, const char *sk)
{
    const struct hf_ddb_slot *slot = find(t, pk, sk);
    return slot ? slot->old : NULL;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int write_slot(struct hf_ddb_turn *t, const char *pk, const char *sk, json_t *item,
                      enum hf_ddb_how how, struct hf_error *err)
{
    const json_t *current;
    const struct hf_ddb_slot *known = find(t, pk, sk);
    int r = 0;
    if (how == HF_DDB_IF_SAME && !(known && known->is_read))
        r = hf_ddb_turn_get(t, pk, sk, &current, err);
    struct hf_ddb_slot *slot = r < 0 ? NULL : slot_of(t, pk, sk);
    if (r >= 0 && !slot)
        r = hf_fail(err, HF_NOMEM, "out of memory");
    if (!slot) {
        json_decref(item);
        return r;
    }
    json_decref(slot->now);
    slot->now = item;
    slot->is_written = true;
    slot->how = how;
    return 0;
}

int hf_ddb_turn_put(struct hf_ddb_turn *t, const char *pk, const char *sk, json_t *item,
                    enum hf_ddb_how how, struct hf_error *err)
{
    if (!item)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf_ddb_set(item, "PK", hf_ddb_text(pk));
    hf_ddb_set(item, "SK", hf_ddb_text(sk));
    return write_slot(t, pk, sk, item, how, err);
}

int hf_ddb_turn_delete(struct hf_ddb_turn *t, const char *pk, const char *sk, enum hf_ddb_how how,
                       struct hf_error *err)
{
    return write_slot(t, pk, sk, NULL, how, err);
}

size_t hf_ddb_turn_size(const struct hf_ddb_turn *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_slots; i++)
        n += t->slots[i].is_written;
    return n;
}

/* ---- ranges --------------------------------------------------------------------------------- */

static bool is_in(const struct hf_ddb_slot *slot, const struct hf_ddb_range *range)
{
    return slot->is_written && strcmp(slot->pk, range->pk) == 0 &&
           strcmp(slot->sk, range->from) >= 0 && strcmp(slot->sk, range->to) <= 0;
}

/* In the order of SK; those with the same one are the same. */
static int place(json_t *items, const struct hf_ddb_slot *slot, bool backwards)
{
    size_t i = 0, n = json_array_size(items);
    int order = 1;
    for (; i < n && order > 0; i++) {
        order = strcmp(slot->sk, hf_ddb_get_text(json_array_get(items, i), "SK"));
        order = backwards ? -order : order;
        if (order <= 0)
            break;
    }
    if (i < n && order == 0)
        return slot->now ? json_array_set(items, i, slot->now) : json_array_remove(items, i);
    return slot->now ? json_array_insert(items, i, slot->now) : 0;
}

int hf_ddb_turn_query(struct hf_ddb_turn *t, const struct hf_ddb_range *range, json_t **ret,
                      struct hf_error *err)
{
    struct hf_ddb_range wider = *range;
    for (size_t i = 0; i < t->n_slots && wider.limit; i++)
        wider.limit += is_in(&t->slots[i], range) && !t->slots[i].now;
    int r = hf_ddb_query(t->s, &wider, ret, err);
    for (size_t i = 0; r >= 0 && i < t->n_slots; i++)
        if (is_in(&t->slots[i], range) && place(*ret, &t->slots[i], range->backwards) < 0) {
            json_decref(*ret);
            r = hf_fail(err, HF_NOMEM, "out of memory");
        }
    while (r >= 0 && range->limit && json_array_size(*ret) > range->limit)
        json_array_remove(*ret, json_array_size(*ret) - 1);
    return r;
}

/* ---- committing ----------------------------------------------------------------------------- */

/* " AND name = :name", or that there is no such attribute. */
static void add_condition(struct hf_buf *condition, json_t *values, const json_t *old,
                          const char *name)
{
    json_t *value = json_object_get(old, name);
    char placeholder[32];
    if (!value) {
        hf_buf_printf(condition, " AND attribute_not_exists(%s)", name);
        return;
    }
    snprintf(placeholder, sizeof placeholder, ":%s", name);
    hf_buf_printf(condition, " AND %s = %s", name, placeholder);
    hf_ddb_set(values, placeholder, json_incref(value));
}

/* It is as it was read. A foreign client's put leaves no Rev; its own update would leave ours. */
static void set_condition(json_t *body, const struct hf_ddb_slot *slot)
{
    struct hf_buf condition = HF_BUF(512);
    if (!slot->old) {
        hf_ddb_set(body, "ConditionExpression", json_string("attribute_not_exists(PK)"));
        return;
    }
    json_t *values = hf_ddb_object();
    hf_buf_puts(&condition, "attribute_exists(PK)");
    add_condition(&condition, values, slot->old, "Rev");
    if (strcmp(slot->sk, "LOCK") == 0) {
        add_condition(&condition, values, slot->old, "LockID");
        add_condition(&condition, values, slot->old, "ExpiresAt");
    }
    hf_ddb_set(body, "ConditionExpression", condition.failed ? NULL : json_string(condition.data));
    if (json_object_size(values))
        hf_ddb_set(body, "ExpressionAttributeValues", values);
    else
        json_decref(values);
    hf_buf_clear(&condition);
}

/* What PutItem or DeleteItem is to be sent, also within a transaction. */
static json_t *body_of(struct hf_ddb_turn *t, const struct hf_ddb_slot *slot)
{
    json_t *body;
    if (slot->now) {
        body = hf_ddb_object();
        int64_t rev = hf_ddb_get_int(slot->old, "Rev");
        if (slot->how == HF_DDB_IF_SAME) /* of an item that was gone in between it never repeats */
            hf_ddb_set_int(slot->now, "Rev", rev ? rev + 1 : hf_ddb_stamp(t->wall_ms));
        hf_ddb_set(body, "Item", json_incref(slot->now));
    } else
        body = hf_ddb_key(slot->pk, slot->sk);
    if (slot->how == HF_DDB_IF_SAME)
        set_condition(body, slot);
    return body;
}

static int commit_one(struct hf_ddb_turn *t, const struct hf_ddb_slot *slot, struct hf_error *err)
{
    const char *failure = NULL;
    json_t *answer = NULL;
    int r = hf_ddb_call(t->s, slot->now ? "PutItem" : "DeleteItem", body_of(t, slot), &answer,
                        &failure, err);
    if (r >= 0 && failure)
        r = strcmp(failure, "ConditionalCheckFailedException") == 0
                ? HF_DDB_CONFLICT
                : hf_dynamo_fail(t->s->d, "PutItem", failure, answer, err);
    json_decref(answer);
    return r;
}

/* Was it only that somebody else was first? */
static bool is_conflict(const json_t *error)
{
    size_t i;
    json_t *reason;
    bool found = false;
    json_array_foreach(json_object_get(error, "CancellationReasons"), i, reason)
    {
        const char *code = json_string_value(json_object_get(reason, "Code"));
        if (!code || strcmp(code, "None") == 0)
            continue;
        if (strcmp(code, "ConditionalCheckFailed") != 0 && strcmp(code, "TransactionConflict") != 0)
            return false;
        found = true;
    }
    return found;
}

static json_t *transaction_of(struct hf_ddb_turn *t)
{
    json_t *items = json_array(), *body = hf_ddb_object();
    for (size_t i = 0; i < t->n_slots; i++) {
        const struct hf_ddb_slot *slot = &t->slots[i];
        if (!slot->is_written)
            continue;
        json_t *step = hf_ddb_object();
        hf_ddb_set(step, slot->now ? "Put" : "Delete", body_of(t, slot));
        json_array_append_new(items, step);
    }
    char token[HF_UUID_LEN + 1];
    hf_token(token);
    hf_ddb_set(body, "TransactItems", items);
    hf_ddb_set(body, "ClientRequestToken", json_string(token));
    return body;
}

static int commit_many(struct hf_ddb_turn *t, struct hf_error *err)
{
    const char *failure = NULL;
    json_t *answer = NULL;
    if (hf_ddb_turn_size(t) > TRANSACTION_MAX)
        return hf_fail(err, HF_INTERNAL,
                       "more items would have to change at once than DynamoDB can");
    int r = hf_ddb_call(t->s, "TransactWriteItems", transaction_of(t), &answer, &failure, err);
    if (r >= 0 && failure)
        r = is_conflict(answer)
                ? HF_DDB_CONFLICT
                : hf_dynamo_fail(t->s->d, "TransactWriteItems", failure, answer, err);
    json_decref(answer);
    return r;
}

/* Everything beside the lock's item first; its fence last. See plain.c. */
static int commit_plainly(struct hf_ddb_turn *t, struct hf_error *err)
{
    struct hf_ddb_slot *lock = NULL, *fence = NULL;
    int r = 0;
    for (size_t i = 0; i < t->n_slots; i++) {
        struct hf_ddb_slot *slot = &t->slots[i];
        bool is_lock = strcmp(slot->sk, "LOCK") == 0, is_fence = strcmp(slot->sk, "FENCE") == 0;
        if (!slot->is_written)
            continue;
        if (slot->how == HF_DDB_IF_SAME && !is_lock && !is_fence)
            return hf_fail(err, HF_UNSUPPORTED,
                           "%s has no TransactWriteItems, which waiting and executions need; it "
                           "keeps plain locks only",
                           hf_dynamo_endpoint(t->s->d));
        lock = is_lock ? slot : lock;
        fence = is_fence ? slot : fence;
    }
    for (size_t i = 0; r >= 0 && i < t->n_slots; i++)
        if (t->slots[i].is_written && t->slots[i].how != HF_DDB_IF_SAME)
            r = commit_one(t, &t->slots[i], err);
    if (r < 0 || !lock)
        return r;
    int64_t given = hf_ddb_get_int(lock->now, "Fence"),
            first = hf_ddb_get_int(fence ? fence->old : NULL, "High");
    if (fence) {
        json_object_del(lock->now, "Fence");
        json_object_del(lock->now, "FenceLimit");
    }
    r = commit_one(t, lock, err);
    return r < 0 || !fence ? r : hf_ddb_give_block(t->s, lock->pk, lock->now, first, given, err);
}

/* A blind delete of what this turn made itself need not be sent. */
static void forget_needless(struct hf_ddb_turn *t)
{
    for (size_t i = 0; i < t->n_slots; i++) {
        struct hf_ddb_slot *slot = &t->slots[i];
        if (slot->is_written && slot->is_read && !slot->old && !slot->now)
            slot->is_written = false;
    }
}

/* How many may be written before the others. */
static size_t count_ahead(const struct hf_ddb_turn *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_slots; i++)
        n += t->slots[i].is_written && t->slots[i].how == HF_DDB_AHEAD;
    return n;
}

static int commit_ahead(struct hf_ddb_turn *t, struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < t->n_slots; i++) {
        struct hf_ddb_slot *slot = &t->slots[i];
        if (!slot->is_written || slot->how != HF_DDB_AHEAD)
            continue;
        r = commit_one(t, slot, err);
        slot->is_written = false;
    }
    return r;
}

int hf_ddb_turn_commit(struct hf_ddb_turn *t, struct hf_error *err)
{
    forget_needless(t);
    size_t ahead = count_ahead(t);
    if (ahead && hf_ddb_turn_size(t) == ahead + 1) { /* a transaction would cost twice as much */
        int r = commit_ahead(t, err);
        if (r < 0)
            return r;
    }
    size_t n = hf_ddb_turn_size(t);
    if (n == 0)
        return 0;
    if (n > 1 && !t->s->is_plain) {
        int r = commit_many(t, err);
        if (r != -HF_UNSUPPORTED)
            return r;
        t->s->is_plain = true; /* as this endpoint has just told us */
    }
    if (n > 1)
        return commit_plainly(t, err);
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].is_written)
            return commit_one(t, &t->slots[i], err);
    return 0;
}
