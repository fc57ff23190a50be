/*
 * The common case in one UpdateItem: the condition says that nothing stands in the way (nobody waits,
 * nothing stale is to be told of, no execution is concerned, the block of fences is not spent), and
 * what it changes is what lease.c would change then. Where the condition does not hold, the request
 * goes the long way, with the item that the refusal brought.
 */
#include <stdio.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"
#include "text.h"

/* Behind its last element, wherever that is; UPDATED_NEW then returns no other. */
#define APPEND_EVENT "EventLog[999] = :event"

/* What one UpdateItem is made of. */
struct update {
    struct hf_buf set, remove, condition;
    json_t *values, *names;
};

static void begin_update(struct update *u)
{
    *u = (struct update){.set = HF_BUF(2048), .remove = HF_BUF(512), .condition = HF_BUF(1024)};
    u->values = hf_ddb_object();
    u->names = hf_ddb_object();
}

static json_t *body_of(struct update *u, const char *name, const char *returns)
{
    char pk[HF_DDB_KEY_MAX];
    struct hf_buf expression = HF_BUF(4096);
    hf_ddb_lock_pk(name, pk);
    json_t *body = hf_ddb_key(pk, "LOCK");
    hf_buf_printf(&expression, "SET %s", u->set.data ? u->set.data : "");
    if (u->remove.len)
        hf_buf_printf(&expression, " REMOVE %s", u->remove.data);
    bool failed = expression.failed || u->set.failed || u->remove.failed || u->condition.failed;
    hf_ddb_set(body, "UpdateExpression", failed ? NULL : json_string(expression.data));
    hf_ddb_set(body, "ConditionExpression", failed ? NULL : json_string(u->condition.data));
    hf_ddb_set(body, "ExpressionAttributeValues", u->values);
    if (json_object_size(u->names))
        hf_ddb_set(body, "ExpressionAttributeNames", u->names);
    else
        json_decref(u->names);
    hf_ddb_set(body, "ReturnValuesOnConditionCheckFailure", json_string("ALL_OLD"));
    if (returns)
        hf_ddb_set(body, "ReturnValues", json_string(returns));
    hf_buf_clear(&expression);
    hf_buf_clear(&u->set);
    hf_buf_clear(&u->remove);
    hf_buf_clear(&u->condition);
    return body;
}

static void set_id(struct update *u, const char *placeholder, const char *prefix,
                   const struct hf_lock_id *id)
{
    char text[HF_LOCK_ID_LEN + 2];
    snprintf(text, sizeof text, "%s", prefix);
    hf_lock_id_format(id, text + strlen(prefix));
    hf_ddb_set_text(u->values, placeholder, text);
}

static void set_end(struct update *u, const struct hf_ddb_turn *t, int64_t ttl_ms)
{
    int64_t expires_ms = t->now_ms + ttl_ms + t->lasting_ms;
    json_t *shown = hf_ddb_object();
    hf_ddb_set_expiry(shown, expires_ms, NULL);
    hf_ddb_set(u->values, ":shown", json_incref(json_object_get(shown, "ExpiresAt")));
    hf_ddb_set(u->values, ":reap", json_incref(json_object_get(shown, "TTL")));
    json_decref(shown);
    hf_ddb_set_int(u->values, ":expires", expires_ms);
    hf_ddb_set_int(u->values, ":ttl", ttl_ms);
    hf_ddb_set(u->names, "#ttl", json_string("TTL"));
    hf_buf_puts(&u->set, ", ExpiresAt = :shown, #ttl = :reap, ExpiresMs = :expires, TtlMs = :ttl");
}

/* ---- acquire -------------------------------------------------------------------------------- */

static void set_or_remove(struct update *u, const char *name, const char *placeholder,
                          const char *text)
{
    if (text && *text) {
        hf_ddb_set_text(u->values, placeholder, text);
        hf_buf_printf(&u->set, ", %s = %s", name, placeholder);
    } else
        hf_buf_printf(&u->remove, "%s%s", u->remove.len ? ", " : "", name);
}

static json_t *acquire_body(const struct hf_ddb_turn *t, const struct hf_request *req,
                            const struct hf_lock_id *id, const struct hf_processes *bound)
{
    struct update u;
    char since[HF_TIME_LEN + 1], processes[HF_PROCESSES_TEXT_MAX];
    begin_update(&u);
    hf_format_time(t->wall_ms, since);
    snprintf(since + HF_TIME_LEN - 5, 2, "Z");
    hf_processes_format(bound, processes);
    set_id(&u, ":id", "", id);
    set_id(&u, ":released", "R", id);
    set_id(&u, ":lost", "L", id);
    hf_ddb_set_int(u.values, ":one", 1);
    hf_ddb_set_int(u.values, ":none", 0);
    hf_ddb_set_text(u.values, ":since", since);
    hf_ddb_set_int(u.values, ":at", t->wall_ms);
    hf_ddb_set_int(u.values, ":now", t->now_ms);
    hf_ddb_set(u.values, ":event",
               hf_ddb_quick_event(HF_EV_ACQUIRED, t->wall_ms, req->owner, NULL));
    hf_buf_puts(&u.set, "Fence = Fence + :one, Rev = Rev + :one, Granted = Granted + :one,"
                        " LockID = :id, AcquiredAt = :since, AcquiredMs = :at, SinceMs = :now,"
                        " ToldMs = :now, " APPEND_EVENT);
    set_end(&u, t, req->ttl_ms);
    hf_ddb_set(u.names, "#owner", json_string("Owner"));
    set_or_remove(&u, "#owner", ":owner", req->owner);
    set_or_remove(&u, "Note", ":note", req->note);
    set_or_remove(&u, "Bound", ":bound", processes);
    hf_buf_puts(&u.condition,
                "attribute_not_exists(LockID) AND Fence < FenceLimit AND WaiterCount ="
                " :none AND NOT contains(EndedIds, :released) AND NOT contains(EndedIds, :lost)");
    return body_of(&u, req->name, "UPDATED_NEW");
}

/* Only the fence is news: a lock that was free has not been taken over. */
static void answer_acquire(const struct hf_ddb_turn *t, const struct hf_request *req,
                           const json_t *updated, struct hf_answer *answer)
{
    struct hf_lease *l = &answer->lease;
    *answer = (struct hf_answer){0};
    snprintf(l->name, sizeof l->name, "%s", req->name);
    snprintf(l->token, sizeof l->token, "%s", req->token);
    snprintf(l->owner, sizeof l->owner, "%s", req->owner ? req->owner : "");
    snprintf(l->note, sizeof l->note, "%s", req->note ? req->note : "");
    l->fence = hf_ddb_get_int(updated, "Fence");
    l->acquired_at_ms = t->wall_ms;
    l->expires_at_ms = t->wall_ms + req->ttl_ms;
    l->ttl_ms = req->ttl_ms;
}

/* ---- extend and release --------------------------------------------------------------------- */

/* It is the asker's, not over, and has no execution. */
static void require_own(struct update *u, const struct hf_ddb_turn *t, const struct hf_request *req,
                        const struct hf_lock_id *id)
{
    set_id(u, ":id", "", id);
    hf_ddb_set_int(u->values, ":now", t->now_ms);
    hf_buf_puts(&u->condition,
                "LockID = :id AND ExpiresMs > :now AND attribute_not_exists(Offered)"
                " AND attribute_not_exists(ExecutionId) AND attribute_exists(Fence)");
    if (req->fence) {
        hf_ddb_set_int(u->values, ":fence", req->fence);
        hf_buf_puts(&u->condition, " AND Fence = :fence");
    }
}

static json_t *extend_body(const struct hf_ddb_turn *t, const struct hf_request *req,
                           const struct hf_lock_id *id)
{
    struct update u;
    begin_update(&u);
    require_own(&u, t, req, id);
    hf_ddb_set_int(u.values, ":one", 1);
    hf_ddb_set_int(u.values, ":told", t->now_ms - HF_EXTENDED_EVERY_MS);
    hf_buf_puts(&u.condition, " AND ToldMs > :told");
    hf_buf_puts(&u.set, "Rev = Rev + :one");
    set_end(&u, t, req->ttl_ms);
    return body_of(&u, req->name, "ALL_NEW");
}

static void answer_extend(const struct hf_ddb_turn *t, const struct hf_request *req,
                          const json_t *item, struct hf_answer *answer)
{
    struct hf_record rec;
    hf_ddb_read_lock(req->name, item, &rec);
    struct hf_lease *l = &answer->lease;
    const struct hf_grant *g = &rec.grant;
    *answer = (struct hf_answer){0};
    memcpy(l->name, rec.name, sizeof l->name);
    snprintf(l->token, sizeof l->token, "%s", req->token);
    l->fence = g->fence;
    memcpy(l->owner, g->owner, sizeof l->owner);
    memcpy(l->note, g->note, sizeof l->note);
    l->acquired_at_ms = g->acquired_at_ms;
    l->expires_at_ms = t->wall_ms + (g->expires_ms - t->lasting_ms - t->now_ms);
    l->ttl_ms = g->ttl_ms;
    l->takeover = g->took;
}

static json_t *release_body(const struct hf_ddb_turn *t, const struct hf_request *req,
                            const struct hf_lock_id *id)
{
    struct update u;
    char text[HF_LOCK_ID_LEN + 2] = "R";
    begin_update(&u);
    require_own(&u, t, req, id);
    hf_lock_id_format(id, text + 1);
    hf_ddb_set_int(u.values, ":one", 1);
    hf_ddb_set_int(u.values, ":none", 0);
    hf_ddb_set_int(u.values, ":full", HF_DDB_LOG_FULL);
    hf_ddb_set_text(u.values, ":free", HF_DDB_RELEASED_AT);
    hf_ddb_set(u.values, ":ended", json_pack("{s:[{s:s}]}", "L", "S", text));
    hf_ddb_set(u.values, ":event",
               hf_ddb_quick_event(HF_EV_RELEASED, t->wall_ms, NULL, req->reason));
    hf_ddb_set(u.names, "#ttl", json_string("TTL"));
    hf_buf_puts(&u.condition, " AND WaiterCount = :none AND attribute_not_exists(ParkedRuns) AND"
                              " size(EventLog) < :full");
    hf_buf_puts(&u.set,
                "ExpiresAt = :free, Rev = Rev + :one, Released = Released + :one, EndedIds ="
                " list_append(:ended, EndedIds), " APPEND_EVENT);
    hf_buf_puts(&u.remove, "LockID, #ttl, ExpiresMs, Note, Bound, TookOver");
    return body_of(&u, req->name, NULL);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static bool is_plain(const struct hf_request *req)
{
    switch (req->op) {
    case HF_OP_ACQUIRE:
        return !req->workflow && !req->claim;
    case HF_OP_EXTEND:
        return req->ttl_ms && !req->spawned && !req->has_output;
    case HF_OP_RELEASE:
        return req->outcome == HF_OUTCOME_NONE;
    default:
        return false;
    }
}

/* NULL: without memory. */
static json_t *make_body(const struct hf_ddb_turn *t, const struct hf_request *req,
                         const struct hf_processes *bound)
{
    struct hf_lock_id id = hf_lock_id_of(req->token);
    if (req->op == HF_OP_ACQUIRE)
        return acquire_body(t, req, &id, bound);
    return req->op == HF_OP_EXTEND ? extend_body(t, req, &id) : release_body(t, req, &id);
}

int hf_ddb_try_quick(struct hf_ddb *s, const struct hf_request *req, struct hf_answer *answer,
                     json_t **ret_item, struct hf_error *err)
{
    struct hf_ddb_turn t;
    struct hf_processes bound;
    const char *failure = NULL;
    json_t *json = NULL;
    *ret_item = NULL;
    if (!is_plain(req))
        return 0;
    int r = hf_ddb_turn_begin(&t, s, req->name, err);
    if (r >= 0)
        r = hf_processes_identify(req->bound, req->n_bound, &bound, err);
    if (r >= 0)
        r = hf_ddb_call(s, "UpdateItem", make_body(&t, req, &bound), &json, &failure, err);
    if (r < 0)
        return r;
    if (failure) { /* also where an attribute of ours is not there: ValidationException */
        *ret_item = json_incref(json_object_get(json, "Item"));
        json_decref(json);
        return 0;
    }
    const json_t *attributes = json_object_get(json, "Attributes");
    if (req->op == HF_OP_ACQUIRE)
        answer_acquire(&t, req, attributes, answer);
    else if (req->op == HF_OP_EXTEND)
        answer_extend(&t, req, attributes, answer);
    else
        *answer = (struct hf_answer){0};
    json_decref(json);
    return 1;
}
