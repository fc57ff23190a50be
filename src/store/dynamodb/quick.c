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
#include "wire.h"

/* Behind its last element, wherever that is; UPDATED_NEW then returns no other. */
#define APPEND_EVENT "EventLog[999] = :event"

/* What one UpdateItem is made of; `values` are members of a JSON object. */
struct update {
    struct hf_buf set, remove, condition, values;
    const char *names, *returns;
};

static void begin_update(struct update *u, const char *names, const char *returns)
{
    *u = (struct update){.set = HF_BUF(2048),
                         .remove = HF_BUF(512),
                         .condition = HF_BUF(1024),
                         .values = HF_BUF(1 << 16),
                         .names = names,
                         .returns = returns};
}

static const char *text_of(const struct hf_buf *b) { return b->data ? b->data : ""; }

static void put_text(struct update *u, const char *placeholder, const char *text)
{
    hf_buf_printf(&u->values, "%s\"%s\":{\"S\":", u->values.len ? "," : "", placeholder);
    hf_wire_string(&u->values, text, strlen(text));
    hf_buf_putc(&u->values, '}');
}

static void put_int(struct update *u, const char *placeholder, int64_t value)
{
    hf_buf_printf(&u->values, "%s\"%s\":{\"N\":\"%lld\"}", u->values.len ? "," : "", placeholder,
                  (long long)value);
}

static void put_event(struct update *u, enum hf_event_kind kind, int64_t at_ms, const char *owner,
                      const char *reason)
{
    struct hf_buf text = HF_BUF(8192);
    hf_ddb_quick_event(&text, kind, at_ms, owner, reason);
    put_text(u, ":event", text_of(&text));
    u->values.failed |= text.failed;
    hf_buf_clear(&text);
}

static void put_id(struct update *u, const char *placeholder, const char *prefix,
                   const struct hf_lock_id *id)
{
    char text[HF_LOCK_ID_LEN + 2];
    snprintf(text, sizeof text, "%s", prefix);
    hf_lock_id_format(id, text + strlen(prefix));
    put_text(u, placeholder, text);
}

static void set_end(struct update *u, const struct hf_ddb_turn *t, int64_t ttl_ms)
{
    int64_t expires_ms = t->now_ms + ttl_ms + t->unsure_ms;
    char shown[32];
    put_int(u, ":reap", hf_ddb_expiry(expires_ms, shown));
    put_text(u, ":shown", shown);
    put_int(u, ":expires", expires_ms);
    put_int(u, ":ttl", ttl_ms);
    hf_buf_puts(&u->set, ", ExpiresAt = :shown, #ttl = :reap, ExpiresMs = :expires, TtlMs = :ttl");
}

/* The body, written here rather than by jansson: that was a fifth of what an acquire costs its client. */
static void write_update(struct update *u, const struct hf_ddb *s, const char *name,
                         struct hf_buf *out)
{
    char pk[HF_DDB_KEY_MAX];
    const char *table = hf_dynamo_table(s->d);
    hf_ddb_lock_pk(name, pk);
    hf_buf_puts(out, "{\"TableName\":");
    hf_wire_string(out, table, strlen(table));
    hf_buf_puts(out, ",\"Key\":{\"PK\":{\"S\":");
    hf_wire_string(out, pk, strlen(pk));
    hf_buf_printf(out, "},\"SK\":{\"S\":\"LOCK\"}},\"UpdateExpression\":\"SET %s%s%s\"",
                  text_of(&u->set), u->remove.len ? " REMOVE " : "", text_of(&u->remove));
    hf_buf_printf(out, ",\"ConditionExpression\":\"%s\",\"ExpressionAttributeValues\":{%s}",
                  text_of(&u->condition), text_of(&u->values));
    hf_buf_printf(out, ",\"ExpressionAttributeNames\":{%s}", u->names);
    hf_buf_puts(out, ",\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\"");
    hf_buf_printf(out, ",\"ReturnValues\":\"%s\"}", u->returns);
    out->failed |= u->set.failed || u->remove.failed || u->condition.failed || u->values.failed;
    hf_buf_clear(&u->set);
    hf_buf_clear(&u->remove);
    hf_buf_clear(&u->condition);
    hf_buf_clear(&u->values);
}

/* ---- acquire -------------------------------------------------------------------------------- */

static void set_or_remove(struct update *u, const char *name, const char *placeholder,
                          const char *text)
{
    if (text && *text) {
        put_text(u, placeholder, text);
        hf_buf_printf(&u->set, ", %s = %s", name, placeholder);
    } else
        hf_buf_printf(&u->remove, "%s%s", u->remove.len ? ", " : "", name);
}

static void update_to_acquire(struct update *u, const struct hf_ddb_turn *t,
                              const struct hf_request *req, const struct hf_lock_id *id,
                              const struct hf_processes *bound)
{
    char since[HF_TIME_LEN + 1], processes[HF_PROCESSES_TEXT_MAX];
    begin_update(u, "\"#ttl\":\"TTL\",\"#owner\":\"Owner\"", "UPDATED_NEW");
    hf_format_time(t->wall_ms, since);
    snprintf(since + HF_TIME_LEN - 5, 2, "Z");
    hf_processes_format(bound, processes);
    put_id(u, ":id", "", id);
    put_id(u, ":released", "R", id);
    put_id(u, ":lost", "L", id);
    put_int(u, ":one", 1);
    put_int(u, ":none", 0);
    put_text(u, ":since", since);
    put_int(u, ":at", t->wall_ms);
    put_int(u, ":now", t->now_ms);
    put_event(u, HF_EV_ACQUIRED, t->wall_ms, req->owner, NULL);
    hf_buf_puts(&u->set, "Fence = Fence + :one, Rev = Rev + :one, Granted = Granted + :one,"
                         " LockID = :id, AcquiredAt = :since, AcquiredMs = :at, SinceMs = :now,"
                         " ToldMs = :now, " APPEND_EVENT);
    set_end(u, t, req->ttl_ms);
    set_or_remove(u, "#owner", ":owner", req->owner);
    set_or_remove(u, "Note", ":note", req->note);
    set_or_remove(u, "Bound", ":bound", processes);
    hf_buf_puts(&u->condition,
                "attribute_not_exists(LockID) AND Fence < FenceLimit AND WaiterCount ="
                " :none AND NOT contains(EndedIds, :released) AND NOT contains(EndedIds, :lost)");
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
    put_id(u, ":id", "", id);
    put_int(u, ":now", t->now_ms);
    hf_buf_puts(&u->condition, "LockID = :id AND ExpiresMs > :now AND attribute_not_exists(Offered)"
                               " AND attribute_not_exists(ExecutionId)");
    if (req->fence)
        put_int(u, ":fence", req->fence);
    hf_buf_puts(&u->condition, req->fence ? " AND Fence = :fence" : " AND attribute_exists(Fence)");
}

static void update_to_extend(struct update *u, const struct hf_ddb_turn *t,
                             const struct hf_request *req, const struct hf_lock_id *id)
{
    begin_update(u, "\"#ttl\":\"TTL\"", "ALL_NEW");
    require_own(u, t, req, id);
    put_int(u, ":one", 1);
    put_int(u, ":told", t->now_ms - HF_EXTENDED_EVERY_MS);
    hf_buf_puts(&u->condition, " AND ToldMs > :told AND ExpiresMs <= :expires");
    hf_buf_puts(&u->set, "Rev = Rev + :one");
    set_end(u, t, req->ttl_ms);
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
    l->expires_at_ms = t->wall_ms + (g->expires_ms - t->unsure_ms - t->now_ms);
    l->ttl_ms = g->ttl_ms;
    l->takeover = g->took;
}

static void update_to_release(struct update *u, const struct hf_ddb_turn *t,
                              const struct hf_request *req, const struct hf_lock_id *id)
{
    char hex[HF_LOCK_ID_LEN + 1];
    begin_update(u, "\"#ttl\":\"TTL\"", "NONE");
    require_own(u, t, req, id);
    hf_lock_id_format(id, hex);
    put_int(u, ":one", 1);
    put_int(u, ":none", 0);
    put_int(u, ":full", HF_DDB_LOG_FULL);
    put_text(u, ":free", HF_DDB_RELEASED_AT);
    hf_buf_printf(&u->values, ",\":ended\":{\"L\":[{\"S\":\"R%s\"}]}", hex);
    put_event(u, HF_EV_RELEASED, t->wall_ms, NULL, req->reason);
    hf_buf_puts(&u->condition, " AND WaiterCount = :none AND attribute_not_exists(ParkedRuns) AND"
                               " size(EventLog) < :full");
    hf_buf_puts(&u->set, "ExpiresAt = :free, Rev = Rev + :one, Released = Released + :one, EndedIds"
                         " = list_append(:ended, EndedIds), " APPEND_EVENT);
    hf_buf_puts(&u->remove, "LockID, #ttl, ExpiresMs, Note, Bound, TookOver");
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

static int send_update(const struct hf_ddb_turn *t, const struct hf_request *req,
                       const struct hf_processes *bound, json_t **ret, const char **ret_failure,
                       struct hf_error *err)
{
    struct update u;
    struct hf_buf body = HF_BUF(1 << 17);
    struct hf_lock_id id = hf_lock_id_of(req->token);
    if (req->op == HF_OP_ACQUIRE)
        update_to_acquire(&u, t, req, &id, bound);
    else if (req->op == HF_OP_EXTEND)
        update_to_extend(&u, t, req, &id);
    else
        update_to_release(&u, t, req, &id);
    write_update(&u, t->s, req->name, &body);
    int r = hf_ddb_call_text(t->s, "UpdateItem", &body, ret, ret_failure, err);
    hf_buf_clear(&body);
    return r;
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
        r = send_update(&t, req, &bound, &json, &failure, err);
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
