#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "waiters.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- the record as JSON --------------------------------------------------------------------- */

#define GRANT(kind, name, member) HF_ETCD_FIELD(kind, struct hf_record, name, grant.member)
static const struct hf_etcd_field grant_fields[] = {
    GRANT(BOOL, "offered", offered),
    GRANT(ID, "lockId", id),
    GRANT(TEXT, "owner", owner),
    GRANT(TEXT, "note", note),
    GRANT(INT64, "acquiredAt", acquired_at_ms),
    GRANT(INT64, "acquired", acquired_ms),
    GRANT(INT64, "expires", expires_ms),
    GRANT(INT64, "ttlMs", ttl_ms),
    GRANT(INT64, "told", told_ms),
    GRANT(TEXT, "executionId", execution_id),
    GRANT(PROCESSES, "processes", bound),
    GRANT(INT32, "tookReason", took.reason),
    GRANT(TEXT, "tookLockId", took.lock_id),
    GRANT(TEXT, "tookOwner", took.owner),
    GRANT(INT64, "tookFence", took.fence),
    GRANT(INT64, "tookAcquiredAt", took.acquired_at_ms),
    GRANT(INT64, "tookHeldFor", took.held_for_ms),
    GRANT(INT64, "tookTtl", took.ttl_ms),
};

#define RECORD(kind, name, member) HF_ETCD_FIELD(kind, struct hf_record, name, member)
static const struct hf_etcd_field record_fields[] = {
    RECORD(BOOL, "held", grant.held),
    RECORD(INT64, "fence", last_fence),
    RECORD(INT64, "deniedAt", denied_ms),
    RECORD(INT32, "deniedEvents", n_denied),
    RECORD(INT32, "waiters", n_waiters),
    RECORD(BOOL, "parked", parked),
    RECORD(INT64, "granted", counts.granted),
    RECORD(INT64, "denied", counts.held),
    RECORD(INT64, "released", counts.released),
    RECORD(INT64, "releaseLost", counts.release_lost),
    RECORD(INT64, "takenExpired", counts.taken_expired),
    RECORD(INT64, "takenDied", counts.taken_died),
    RECORD(INT64, "takenRebooted", counts.taken_rebooted),
    RECORD(INT64, "forced", counts.forced),
    RECORD(INT64, "lost", counts.lost),
};

#define ROW(kind, name, member) HF_ETCD_FIELD(kind, struct hf_etcd_row, name, member)
static const struct hf_etcd_field row_fields[] = {
    ROW(INT64, "lease", lease),
    ROW(INT64, "leaseTtlMs", lease_ttl_ms),
    ROW(INT64, "tickets", tickets),
    ROW(TEXT, "lastEvent", last_event),
};

/* How and the id, for each, newest first. */
static json_t *encode_ended(const struct hf_record *rec)
{
    char text[HF_ENDED_MAX * (HF_LOCK_ID_LEN + 2) + 1] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < rec->n_ended; i++) {
        char hex[HF_LOCK_ID_LEN + 1];
        hf_lock_id_format(&rec->ended[i].id, hex);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d%s", i ? " " : "",
                                 rec->ended[i].how, hex);
    }
    return json_string(text);
}

static void decode_ended(const char *text, struct hf_record *rec)
{
    while (text && *text && rec->n_ended < HF_ENDED_MAX) {
        struct hf_ended *e = &rec->ended[rec->n_ended];
        char hex[HF_LOCK_ID_LEN + 1];
        snprintf(hex, sizeof hex, "%.*s", HF_LOCK_ID_LEN, text + 1);
        e->how = (uint8_t)(text[0] - '0');
        if (!hf_lock_id_parse(hex, &e->id))
            return;
        rec->n_ended++;
        text = strchr(text, ' ');
        text = text ? text + 1 : NULL;
    }
}

static int put_record(struct hf_etcd_txn *t, const struct hf_record *rec, struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX], lost[HF_LOST_TEXT_MAX];
    hf_etcd_key(t->s, key, "lock/%s", rec->name);
    json_t *object = hf_etcd_encode(record_fields, COUNT(record_fields), rec);
    json_t *more = hf_etcd_encode(row_fields, COUNT(row_fields), &t->row);
    json_object_update(object, more);
    json_decref(more);
    if (rec->grant.held) {
        more = hf_etcd_encode(grant_fields, COUNT(grant_fields), rec);
        json_object_update(object, more);
        json_decref(more);
    }
    if (rec->n_ended)
        json_object_set_new_nocheck(object, "ended", encode_ended(rec));
    hf_lost_fences_format(rec, lost);
    if (*lost)
        json_object_set_new_nocheck(object, "lostFences", json_string(lost));
    json_object_set_new_nocheck(object, "txn", json_string(t->nonce));
    return hf_etcd_put_json(t, key, object, 0, err);
}

/*
 * While alive/NAME is there the lease has not run out, and when it is not it has, whatever a clock says:
 * the time in the record is for people.
 */
static void judge(struct hf_grant *g, bool alive, int64_t now_ms)
{
    if (alive && g->expires_ms <= now_ms)
        g->expires_ms = now_ms + 1;
    if (!alive && g->expires_ms > now_ms)
        g->expires_ms = now_ms;
}

void hf_etcd_take_record(const struct hf_etcd_kv *kv, bool alive, int64_t now_ms,
                         struct hf_record *ret, struct hf_etcd_row *row)
{
    json_t *object = hf_etcd_parse(kv);
    hf_etcd_decode(record_fields, COUNT(record_fields), object, ret);
    hf_etcd_decode(row_fields, COUNT(row_fields), object, row);
    decode_ended(json_string_value(json_object_get(object, "ended")), ret);
    hf_lost_fences_parse(json_string_value(json_object_get(object, "lostFences")), ret);
    ret->grant.fence = row->given = ret->last_fence;
    if (ret->grant.held) {
        hf_etcd_decode(grant_fields, COUNT(grant_fields), object, ret);
        judge(&ret->grant, alive, now_ms);
    }
    json_decref(object);
}

static void note_row(struct hf_etcd_row *row, const struct hf_grant *g)
{
    row->held = g->held;
    row->fence = g->fence;
    row->offered = g->offered;
}

/* ---- liveness ------------------------------------------------------------------------------- */

static void free_lease(struct hf_etcd_txn *t, int64_t lease)
{
    if (lease && t->n_freed < HF_ETCD_TAKEN_MAX)
        t->freed[t->n_freed++] = lease;
}

static int take_lease(struct hf_etcd_txn *t, const struct hf_grant *g, struct hf_error *err)
{
    int64_t ttl_ms = g->offered && g->ttl_ms > HF_OFFER_MS ? HF_OFFER_MS : g->ttl_ms;
    free_lease(t, t->row.lease);
    t->row.lease = 0;
    t->row.lease_ttl_ms = ttl_ms;
    if (g->offered)
        return hf_etcd_lease_of_offers(t->s, ttl_ms, &t->row.lease, err);
    if (t->n_taken == HF_ETCD_TAKEN_MAX)
        return hf_fail(err, HF_TOO_LARGE, "too many grants at once");
    int r = hf_etcd_lease_take(t->s, ttl_ms, &t->row.lease, err);
    if (r >= 0)
        t->taken[t->n_taken++] = t->row.lease;
    return r;
}

/* The etcd lease that carries it goes on, or, where that was taken for another ttl, another one begins. */
static int renew_lease(struct hf_etcd_txn *t, const struct hf_grant *g, struct hf_error *err)
{
    bool stays = t->row.lease_ttl_ms == g->ttl_ms;
    int r = 0;
    if (stays)
        r = hf_etcd_lease_renew(t->s, t->row.lease, err);
    else if (t->row.lease_ttl_ms > g->ttl_ms) /* its end does not move back */
        r = hf_etcd_lease_outlives(t->s, t->row.lease, g->ttl_ms, &stays, err);
    if (r >= 0 && !stays)
        r = take_lease(t, g, err);
    if (r != -HF_NOT_FOUND)
        return r;
    char key[HF_ETCD_KEY_MAX];
    hf_etcd_key(t->s, key, "alive/%s", t->row.name);
    hf_etcd_cache_drop(t->s->cache, key);
    t->conflict = true; /* it has run out: look again */
    return hf_fail(err, HF_RACED, "the lease has run out");
}

/* alive/NAME as the grant wants it. */
static int save_alive(struct hf_etcd_txn *t, const struct hf_record *rec,
                      const struct hf_effects *fx, struct hf_error *err)
{
    const struct hf_grant *g = &rec->grant;
    const struct hf_etcd_row *row = &t->row;
    char key[HF_ETCD_KEY_MAX], text[32];
    int r = 0;
    hf_etcd_key(t->s, key, "alive/%s", rec->name);
    if (!g->held) {
        free_lease(t, t->row.lease);
        t->row.lease = 0;
        r = row->held ? hf_etcd_delete(t, key, err) : 0;
    } else {
        bool is_same = row->held && row->fence == g->fence && row->lease;
        if (is_same && !fx->renewed)
            return 0;
        if (is_same && row->offered == g->offered)
            r = renew_lease(t, g, err);
        else
            r = take_lease(t, g, err);
        snprintf(text, sizeof text, "%lld", (long long)g->expires_ms);
        if (r >= 0)
            r = hf_etcd_put(t, key, text, strlen(text), t->row.lease, err);
    }
    note_row(&t->row, g);
    return r;
}

/* ---- load and save -------------------------------------------------------------------------- */

static int load_execution(struct hf_etcd_txn *t, struct hf_record *rec, struct hf_error *err)
{
    struct hf_etcd_stored found;
    int r = hf_etcd_read_execution(t, rec->grant.execution_id, &found, err);
    if (r > 0)
        rec->execution = found.x;
    rec->grant.ended = r == 0 || (r > 0 && rec->execution.state != HF_RUNNING);
    return r < 0 ? r : 0;
}

/*
 * Read what the name's record is at once, where to guess would hardly be right: the first time that this handle
 * sees the name, and while others change it, too.
 */
static int look_first(struct hf_etcd_txn *t, const char *name, const char *lock, const char *alive,
                      struct hf_error *err)
{
    const char *const keys[] = {lock, alive};
    struct hf_etcd_cache *cache = t->s->cache;
    const struct hf_etcd_kv *kv;
    struct hf_etcd_head head;
    int64_t mod = 0;
    t->has_head = false; /* of another name */
    if (t->guesses &&
        (!t->alone || t->told || t->tries || hf_etcd_cache_is_good(cache, lock, &mod)))
        return 0;
    hf_etcd_head_of(t, name, &head);
    int r = hf_etcd_fetch_with(t, keys, COUNT(keys), t->writing ? &head.span : NULL, err);
    if (r >= 0 && mod && (r = hf_etcd_get(t, lock, true, &kv, err)) >= 0 && kv && kv->mod == mod)
        hf_etcd_cache_contend(cache, lock, false);
    return r;
}

int hf_etcd_load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                 struct hf_record *ret, struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    char lock[HF_ETCD_KEY_MAX], alive[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv, *life;
    hf_etcd_key(t->s, lock, "lock/%s", name);
    hf_etcd_key(t->s, alive, "alive/%s", name);
    int r = look_first(t, name, lock, alive, err);
    if (r < 0 || (r = hf_etcd_get(t, lock, true, &kv, err)) < 0)
        return r;
    memset(ret, 0, offsetof(struct hf_record, head)); /* what is behind it is large */
    ret->n_head = ret->n_waiters = 0;
    ret->has_self = false;
    snprintf(ret->name, sizeof ret->name, "%s", name);
    t->row = (struct hf_etcd_row){0};
    snprintf(t->row.name, sizeof t->row.name, "%s", name);
    if (!kv)
        return 0;
    hf_etcd_take_record(kv, true, INT64_MIN, ret, &t->row);
    if (ret->grant.held) { /* else it does not matter, and need not be compared */
        if ((r = hf_etcd_get(t, alive, true, &life, err)) < 0)
            return r;
        judge(&ret->grant, life, hf_clock_wall_ms());
    }
    note_row(&t->row, &ret->grant);
    if (ret->grant.execution_id[0] && (r = load_execution(t, ret, err)) < 0)
        return r;
    if (!ret->n_waiters || !t->writing)
        return 0;
    hf_etcd_cache_contend(t->s->cache, lock, true);
    return hf_etcd_load_queue(t, self, ret, err);
}

/* A waiter that has asked again changes nothing for others. */
static bool is_refresh_only(const struct hf_record *rec, const struct hf_effects *fx)
{
    return fx->put_self && rec->self.ticket && !fx->changed && !fx->n_events && !fx->n_dropped &&
           !fx->n_executions && !fx->output_of[0] && !fx->unpark;
}

int hf_etcd_save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                 const struct hf_effects *fx, struct hf_error *err)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    int r = hf_etcd_add_events(t, fx, err);
    t->row.tickets += fx->put_self && !rec->self.ticket;
    if (r >= 0)
        r = save_alive(t, rec, fx, err);
    if (r >= 0 && !is_refresh_only(rec, fx))
        r = put_record(t, rec, err);
    if (r >= 0)
        r = hf_etcd_put_wakes(t, rec->name, fx, err);
    if (r >= 0)
        r = hf_etcd_drop_waiters(t, rec->name, fx, err);
    if (r >= 0 && fx->put_self)
        r = hf_etcd_put_self(t, rec, err);
    if (r >= 0)
        r = hf_etcd_save_executions(t, ask, fx, err);
    return r;
}

int64_t hf_etcd_next_fence(struct hf_store *store)
{
    struct hf_etcd_txn *t = hf_etcd_txn_of(store);
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *meta;
    hf_etcd_key(t->s, key, "meta");
    int r = hf_etcd_get(t, key, true, &meta, NULL);
    if (r < 0)
        return r;
    json_t *object = meta ? hf_etcd_parse(meta) : NULL;
    int64_t epoch = json_integer_value(json_object_get(object, "epoch"));
    json_decref(object);
    if (t->row.given < epoch)
        t->row.given = epoch;
    return ++t->row.given;
}

int hf_etcd_was_last(struct hf_etcd *s, const char *name, const char *nonce, bool *ret,
                     struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, key, "lock/%s", name);
    struct hf_etcd_span span = {.from = key};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    json_t *object = page.n ? hf_etcd_parse(&page.of[0]) : NULL;
    const char *last = json_string_value(json_object_get(object, "txn"));
    *ret = last && strcmp(last, nonce) == 0;
    json_decref(object);
    hf_etcd_page_clear(&page);
    return 0;
}
