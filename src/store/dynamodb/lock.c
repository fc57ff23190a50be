/* A record and the item SK=LOCK: the seed's attributes, and ours beside them. */
#include <stdio.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"
#include "text.h"
#include "wire.h"

enum { REAPED_AFTER_S = 24 * 3600 }; /* DynamoDB removes an item so long after its lease ended */

void hf_ddb_lock_pk(const char *name, char ret[HF_DDB_KEY_MAX])
{
    snprintf(ret, HF_DDB_KEY_MAX, "LOCK#%s", name);
}

/* ---- small pieces --------------------------------------------------------------------------- */

/* Whole seconds, rounded up: as text "05.900Z" would come before "05Z". */
static void format_seconds(int64_t at_ms, char ret[32])
{
    char whole[HF_TIME_LEN + 1];
    hf_format_time((at_ms + 999) / 1000 * 1000, whole);
    snprintf(ret, 32, "%.*sZ", HF_TIME_LEN - 5, whole);
}

int64_t hf_ddb_expiry(int64_t expires_ms, char ret_text[32])
{
    format_seconds(expires_ms, ret_text);
    return (expires_ms + 999) / 1000 + REAPED_AFTER_S;
}

static const struct hf_wire_field takeover_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_takeover, member, name, type)
    F(reason, "reason", HF_WIRE_STALE),       F(lock_id, "lockId", HF_WIRE_STRING),
    F(owner, "owner", HF_WIRE_STRING),        F(fence, "fence", HF_WIRE_INT),
    F(acquired_at_ms, "since", HF_WIRE_TIME), F(held_for_ms, "heldForMs", HF_WIRE_INT),
    F(ttl_ms, "ttlMs", HF_WIRE_INT),
#undef F
};
enum { N_TAKEOVER = sizeof takeover_fields / sizeof *takeover_fields };

static void set_takeover(json_t *item, const struct hf_takeover *took)
{
    struct hf_buf text = HF_BUF(2048);
    if (took->reason == HF_STALE_NOT)
        return;
    hf_wire_write(&text, took, takeover_fields, N_TAKEOVER);
    hf_ddb_set(item, "TookOver", text.failed ? NULL : hf_ddb_text(text.data));
    hf_buf_clear(&text);
}

static void get_takeover(const json_t *item, struct hf_takeover *ret)
{
    json_t *json = json_loads(hf_ddb_get_text(item, "TookOver"), 0, NULL);
    if (json)
        hf_wire_read(json, ret, takeover_fields, N_TAKEOVER, NULL);
    json_decref(json);
}

/* ---- counts --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset;
} counted[] = {
#define F(member, name)                                                                            \
    {                                                                                              \
        name, offsetof(struct hf_counts, member)                                                   \
    }
    F(granted, "Granted"),
    F(held, "Denied"),
    F(released, "Released"),
    F(release_lost, "ReleaseLost"),
    F(taken_expired, "TakenStale"),
    F(taken_died, "TakenDead"),
    F(taken_rebooted, "TakenReboot"),
    F(forced, "ForcedFree"),
    F(lost, "LostLeases"),
#undef F
};

static int64_t *count_at(const struct hf_counts *counts, size_t i)
{
    return (int64_t *)((uintptr_t)counts + counted[i].offset);
}

/* ---- reading -------------------------------------------------------------------------------- */

static int64_t parse_time(const char *text)
{
    int64_t at_ms = 0;
    return hf_parse_time(text, &at_ms, NULL) < 0 ? 0 : at_ms;
}

/*
 * Somebody else's: only the seed's attributes are there. Without a fraction its end may be cut off:
 * among its own kind it holds until the next second. What is no time at all never ends by itself.
 */
static void read_foreign(const json_t *item, struct hf_grant *g)
{
    const char *expires = hf_ddb_get_text(item, "ExpiresAt");
    const char *lock_id = hf_ddb_get_text(item, "LockID");
    if (!hf_lock_id_parse(lock_id, &g->id))
        g->id = hf_lock_id_of(lock_id);
    g->expires_ms = parse_time(expires);
    if (g->expires_ms && !strchr(expires, '.'))
        g->expires_ms += 1000;
    if (!g->expires_ms)
        g->expires_ms = INT64_MAX / 4;
    g->acquired_at_ms = parse_time(hf_ddb_get_text(item, "AcquiredAt"));
    g->acquired_ms = g->told_ms = g->acquired_at_ms;
    g->ttl_ms = g->expires_ms - g->acquired_ms;
}

static void read_own(const json_t *item, struct hf_grant *g)
{
    hf_lock_id_parse(hf_ddb_get_text(item, "LockID"), &g->id);
    g->fence = hf_ddb_get_int(item, "Fence");
    g->offered = hf_ddb_has(item, "Offered");
    g->expires_ms = hf_ddb_get_int(item, "ExpiresMs");
    g->ttl_ms = hf_ddb_get_int(item, "TtlMs");
    g->acquired_at_ms = hf_ddb_get_int(item, "AcquiredMs");
    g->acquired_ms = hf_ddb_get_int(item, "SinceMs");
    g->told_ms = hf_ddb_get_int(item, "ToldMs");
    hf_ddb_copy_text(item, "Note", g->note, sizeof g->note);
    hf_ddb_copy_text(item, "ExecutionId", g->execution_id, sizeof g->execution_id);
    hf_processes_parse(hf_ddb_get_text(item, "Bound"), &g->bound);
    get_takeover(item, &g->took);
}

static bool is_foreign(const json_t *item)
{
    return hf_ddb_has(item, "LockID") && !hf_ddb_has(item, "ExpiresMs");
}

static void read_ended(const json_t *item, struct hf_record *rec)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(json_object_get(item, "EndedIds"), "L"), i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "S"));
        struct hf_ended *e = &rec->ended[rec->n_ended];
        if (rec->n_ended == HF_ENDED_MAX)
            break;
        if (text && *text && hf_lock_id_parse(text + 1, &e->id)) {
            e->how = *text == 'R' ? HF_END_RELEASED : HF_END_LOST;
            rec->n_ended++;
        }
    }
}

void hf_ddb_read_lock(const char *name, const json_t *item, struct hf_record *ret)
{
    struct hf_grant *g = &ret->grant;
    memset(ret, 0, sizeof *ret);
    snprintf(ret->name, sizeof ret->name, "%s", name);
    ret->last_fence = hf_ddb_get_int(item, "Fence");
    g->held = hf_ddb_has(item, "LockID");
    if (g->held) {
        hf_ddb_copy_text(item, "Owner", g->owner, sizeof g->owner);
        if (is_foreign(item))
            read_foreign(item, g);
        else
            read_own(item, g);
    } else
        g->fence = ret->last_fence;
    read_ended(item, ret);
    hf_lost_fences_parse(hf_ddb_get_text(item, "LostFences"), ret);
    ret->denied_ms = hf_ddb_get_int(item, "DeniedMs");
    ret->n_denied = (uint32_t)hf_ddb_get_int(item, "DeniedEvents");
    ret->parked = hf_ddb_has(item, "ParkedRuns");
    ret->n_waiters = (uint32_t)hf_ddb_get_int(item, "WaiterCount");
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        *count_at(&ret->counts, i) = hf_ddb_get_int(item, counted[i].name);
}

int hf_ddb_load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                struct hf_record *ret, struct hf_error *err)
{
    struct hf_ddb_turn *t = hf_ddb_turn_of(store);
    char pk[HF_DDB_KEY_MAX];
    const json_t *item;
    hf_ddb_lock_pk(name, pk);
    int r = hf_ddb_turn_get(t, pk, "LOCK", &item, err);
    if (r < 0)
        return r;
    hf_ddb_read_lock(name, item, ret);
    t->block_first = ret->last_fence;
    t->block_limit = hf_ddb_get_int(item, "FenceLimit");
    /* Taken by ourselves, but the answer to that or the fence never came: see commit_plainly(). */
    if (ret->grant.held && !is_foreign(item) && !ret->grant.fence && self &&
        hf_lock_id_equal(self, &ret->grant.id))
        ret->grant = (struct hf_grant){0};
    r = hf_ddb_load_queue(t, self, hf_ddb_has(item, "Rev") ? (int64_t)ret->n_waiters : -1, ret,
                          err);
    return r < 0 ? r : hf_ddb_load_execution(t, ret, err);
}

/* ---- fences --------------------------------------------------------------------------------- */

/* From the block that the item has; where that is spent, another one comes with the same commit. */
int64_t hf_ddb_next_fence(struct hf_store *store)
{
    struct hf_ddb_turn *t = hf_ddb_turn_of(store);
    if (t->block_first < t->block_limit)
        return ++t->block_first;
    char pk[HF_DDB_KEY_MAX];
    const json_t *old;
    hf_ddb_lock_pk(t->name, pk);
    int r = hf_ddb_turn_get(t, pk, "FENCE", &old, NULL);
    if (r < 0)
        return r;
    int64_t high = hf_ddb_get_int(old, "High");
    json_t *item = hf_ddb_object();
    hf_ddb_set_int(item, "High", high + HF_DDB_FENCES);
    if ((r = hf_ddb_turn_put(t, pk, "FENCE", item, HF_DDB_IF_SAME, NULL)) < 0)
        return r;
    t->block_first = high;
    t->block_limit = high + HF_DDB_FENCES;
    return ++t->block_first;
}

/* ---- writing -------------------------------------------------------------------------------- */

static void write_grant(const struct hf_grant *g, json_t *next)
{
    char text[HF_PROCESSES_TEXT_MAX], id[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(&g->id, id);
    hf_ddb_set_text(next, "LockID", id);
    hf_ddb_set_text(next, "Owner", g->owner);
    format_seconds(g->acquired_at_ms, text);
    hf_ddb_set_text(next, "AcquiredAt", text);
    int64_t reaped_s = hf_ddb_expiry(g->expires_ms, text);
    hf_ddb_set_text(next, "ExpiresAt", text);
    if (!g->execution_id[0]) /* who takes it over ends its execution: it must not just vanish */
        hf_ddb_set_int(next, "TTL", reaped_s);
    hf_ddb_set_int(next, "ExpiresMs", g->expires_ms);
    hf_ddb_set_int(next, "TtlMs", g->ttl_ms);
    hf_ddb_set_int(next, "AcquiredMs", g->acquired_at_ms);
    hf_ddb_set_int(next, "SinceMs", g->acquired_ms);
    hf_ddb_set_int(next, "ToldMs", g->told_ms);
    hf_ddb_set_text(next, "Note", g->note);
    hf_ddb_set_text(next, "ExecutionId", g->execution_id);
    hf_processes_format(&g->bound, text);
    hf_ddb_set_text(next, "Bound", text);
    if (g->offered)
        hf_ddb_set_int(next, "Offered", 1);
    set_takeover(next, &g->took);
}

static void write_ended(const struct hf_record *rec, json_t *next)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < rec->n_ended; i++) {
        char text[HF_LOCK_ID_LEN + 2];
        text[0] = rec->ended[i].how == HF_END_RELEASED ? 'R' : 'L';
        hf_lock_id_format(&rec->ended[i].id, text + 1);
        json_array_append_new(list, hf_ddb_text(text));
    }
    hf_ddb_set(next, "EndedIds", json_pack("{s:o}", "L", list));
}

/* What is nothing is left out: an item's size is paid for with every change. */
static void set_count(json_t *next, const char *name, int64_t value)
{
    json_object_del(next, name);
    if (value)
        hf_ddb_set_int(next, name, value);
}

static void write_rest(struct hf_ddb_turn *t, const struct hf_record *rec, json_t *next)
{
    char lost[HF_LOST_TEXT_MAX];
    if (rec->last_fence) {
        hf_ddb_set_int(next, "Fence", rec->last_fence);
        hf_ddb_set_int(next, "FenceLimit", t->block_limit);
    }
    write_ended(rec, next);
    hf_lost_fences_format(rec, lost);
    hf_ddb_set_text(next, "LostFences", lost);
    set_count(next, "DeniedMs", rec->denied_ms);
    set_count(next, "DeniedEvents", rec->n_denied);
    hf_ddb_set_int(next, "WaiterCount", rec->n_waiters);
    set_count(next, "Tickets", t->tickets);
    hf_ddb_set_int(next, "LastSeq", t->last_stamp);
    set_count(next, "ParkedRuns", rec->parked);
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        set_count(next, counted[i].name, *count_at(&rec->counts, i));
    if (!hf_ddb_has(next, "Granted")) /* quick.c adds to these */
        hf_ddb_set_int(next, "Granted", 0);
    if (!hf_ddb_has(next, "Released"))
        hf_ddb_set_int(next, "Released", 0);
}

/* The lock's item as the record has it. A foreign holder's attributes stay as they are. */
static int write_lock(struct hf_ddb_turn *t, const char *pk, const struct hf_record *rec,
                      const struct hf_effects *fx, struct hf_error *err)
{
    const json_t *item;
    int r = hf_ddb_turn_get(t, pk, "LOCK", &item, err);
    if (r < 0)
        return r;
    if (!hf_ddb_has(item, "Rev"))
        r = hf_ddb_turn_put(t, "NAMES", rec->name, hf_ddb_object(), HF_DDB_BLINDLY, err);
    bool foreign = rec->grant.held && !rec->grant.fence && is_foreign(item);
    json_t *next = foreign ? json_copy((json_t *)(uintptr_t)item) : hf_ddb_object();
    if (!next)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (rec->grant.held && !foreign)
        write_grant(&rec->grant, next);
    else if (!foreign)
        hf_ddb_set_text(next, "ExpiresAt", HF_DDB_RELEASED_AT);
    if (rec->grant.held) { /* what a quick release leaves to be found out later */
        hf_ddb_set_text(next, "LogOwner", rec->grant.owner);
        hf_ddb_set_int(next, "LogSince", rec->grant.acquired_at_ms);
    }
    if (r >= 0)
        r = hf_ddb_write_log(t, item, next, fx, err);
    write_rest(t, rec, next);
    if (r < 0) {
        json_decref(next);
        return r;
    }
    return hf_ddb_turn_put(t, pk, "LOCK", next, HF_DDB_IF_SAME, err);
}

/* A waiter that only says that it is still there changes nothing but its own item. */
static bool is_refresh(const struct hf_record *rec, const struct hf_effects *fx)
{
    return fx->put_self && rec->self.ticket && !fx->changed && !fx->n_events && !fx->n_dropped &&
           !fx->n_executions && !fx->unpark && !fx->output_of[0] && !fx->replaced_by[0];
}

int hf_ddb_save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                const struct hf_effects *fx, struct hf_error *err)
{
    struct hf_ddb_turn *t = hf_ddb_turn_of(store);
    char pk[HF_DDB_KEY_MAX];
    hf_ddb_lock_pk(rec->name, pk);
    int r = hf_ddb_save_queue(t, rec, fx, err);
    if (r >= 0 && fx->replaced_by[0])
        r = hf_ddb_replace(t, ask->waiting_id, fx, err);
    if (r >= 0)
        r = hf_ddb_save_executions(t, ask, fx, err);
    if (r >= 0 && fx->park_due_ms)
        r = hf_ddb_park(t, ask->req->execution_id, fx, err);
    if (r < 0 || is_refresh(rec, fx))
        return r;
    return write_lock(t, pk, rec, fx, err);
}
