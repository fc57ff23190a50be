/*
 * Who waits for a name: wait/NAME\1RANK.TICKET, so that who is first sorts first, and place/NAME\1LOCKID for who asks
 * again. Whoever joins or leaves also puts lock/NAME; who only asks again does not.
 */
#include "waiters.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct kept_waiter {
    struct hf_waiter w;
    char channel[HF_UUID_LEN + 1];
};

#define WAITER(kind, name, member) HF_ETCD_FIELD(kind, struct kept_waiter, name, member)
static const struct hf_etcd_field waiter_fields[] = {
    WAITER(ID, "lockId", w.id),           WAITER(INT32, "priority", w.priority),
    WAITER(INT64, "ticket", w.ticket),    WAITER(INT64, "ttlMs", w.ttl_ms),
    WAITER(INT64, "until", w.until_ms),   WAITER(INT64, "seen", w.seen_ms),
    WAITER(INT64, "queued", w.queued_ms), WAITER(TEXT, "owner", w.owner),
    WAITER(TEXT, "note", w.note),         WAITER(PROCESSES, "processes", w.bound),
    WAITER(TEXT, "channel", channel),
};

static void waiter_key(struct hf_etcd_txn *t, const char *name, int32_t priority, int64_t ticket,
                       char ret[HF_ETCD_KEY_MAX])
{
    hf_etcd_key(t->s, ret, "wait/%s\1%08x.%016llx", name,
                (unsigned)(INT64_C(0x7fffffff) - priority), (unsigned long long)ticket);
}

static void place_key(struct hf_etcd_txn *t, const char *name, const struct hf_lock_id *id,
                      char ret[HF_ETCD_KEY_MAX])
{
    char hex[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, hex);
    hf_etcd_key(t->s, ret, "place/%s\1%s", name, hex);
}

/* The oldest are forgotten: then they are looked up. */
static void know_waiter(struct hf_etcd_txn *t, const struct kept_waiter *k)
{
    struct hf_etcd_known_waiter *known = &t->waiters[t->n_waiters++ % HF_ETCD_WAITERS_KNOWN];
    known->id = k->w.id;
    known->priority = k->w.priority;
    known->ticket = k->w.ticket;
    memcpy(known->channel, k->channel, sizeof known->channel);
}

static const struct hf_etcd_known_waiter *known_waiter(const struct hf_etcd_txn *t,
                                                       const struct hf_lock_id *id)
{
    size_t n = t->n_waiters < HF_ETCD_WAITERS_KNOWN ? t->n_waiters : HF_ETCD_WAITERS_KNOWN;
    const struct hf_etcd_known_waiter *found = NULL;
    for (size_t i = 0; i < n; i++)
        if (hf_lock_id_equal(&t->waiters[i].id, id) &&
            (!found || t->waiters[i].ticket >= found->ticket))
            found = &t->waiters[i];
    return found;
}

static void take_waiter(struct hf_etcd_txn *t, const struct hf_etcd_kv *kv, struct hf_waiter *ret)
{
    struct kept_waiter k = {0};
    json_t *object = hf_etcd_parse(kv);
    hf_etcd_decode(waiter_fields, COUNT(waiter_fields), object, &k);
    json_decref(object);
    *ret = k.w;
    know_waiter(t, &k);
}

void hf_etcd_head_of(struct hf_etcd_txn *t, const char *name, struct hf_etcd_head *ret)
{
    hf_etcd_key(t->s, ret->from, "wait/%s\1", name);
    hf_etcd_key(t->s, ret->to, "wait/%s\2", name);
    ret->span = (struct hf_etcd_span){.from = ret->from, .to = ret->to, .limit = HF_WINDOW};
}

static int load_head(struct hf_etcd_txn *t, struct hf_record *rec, struct hf_error *err)
{
    struct hf_etcd_head head;
    struct hf_etcd_page page;
    hf_etcd_head_of(t, rec->name, &head);
    int r = hf_etcd_take_head(t, &page, err);
    if (r == 0)
        r = hf_etcd_range(t, &head.span, true, &page, err);
    if (r < 0)
        return r;
    while (rec->n_head < page.n) {
        take_waiter(t, &page.of[rec->n_head], &rec->head[rec->n_head]);
        rec->n_head++;
    }
    /* Whoever edits keys by hand must not make us look for waiters that are not there. */
    if (rec->n_head < HF_WINDOW)
        rec->n_waiters = rec->n_head;
    hf_etcd_page_clear(&page);
    return 0;
}

/* The key of the waiter with this id. 1: there is one. */
static int find_place(struct hf_etcd_txn *t, const char *name, const struct hf_lock_id *id,
                      char ret[HF_ETCD_KEY_MAX], struct hf_error *err)
{
    const struct hf_etcd_kv *place;
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_known_waiter *known = known_waiter(t, id);
    if (known) {
        waiter_key(t, name, known->priority, known->ticket, ret);
        return 1;
    }
    place_key(t, name, id, key);
    int r = hf_etcd_get(t, key, false, &place, err);
    if (r < 0 || !place)
        return r;
    hf_etcd_key(t->s, ret, "wait/%s\1%s", name, place->value);
    return 1;
}

static int load_self(struct hf_etcd_txn *t, const struct hf_lock_id *id, struct hf_record *rec,
                     struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *kv;
    for (uint32_t i = 0; i < rec->n_head; i++)
        if (hf_lock_id_equal(&rec->head[i].id, id)) {
            rec->self = rec->head[i];
            rec->has_self = true;
            return 0;
        }
    if (rec->n_waiters <= rec->n_head)
        return 0;
    int r = find_place(t, rec->name, id, key, err);
    if (r <= 0 || (r = hf_etcd_get(t, key, false, &kv, err)) < 0 || !kv)
        return r < 0 ? r : 0;
    take_waiter(t, kv, &rec->self);
    rec->has_self = true;
    return 0;
}

int hf_etcd_load_queue(struct hf_etcd_txn *t, const struct hf_lock_id *self, struct hf_record *rec,
                       struct hf_error *err)
{
    int r = load_head(t, rec, err);
    return r < 0 || !self ? r : load_self(t, self, rec, err);
}

int hf_etcd_put_self(struct hf_etcd_txn *t, const struct hf_record *rec, struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX], place[HF_ETCD_KEY_MAX];
    struct kept_waiter k = {.w = rec->self};
    bool is_new = !k.w.ticket;
    if (is_new)
        k.w.ticket = t->row.tickets;
    hf_etcd_channel(t->s, k.channel);
    know_waiter(t, &k);
    waiter_key(t, rec->name, k.w.priority, k.w.ticket, key);
    json_t *object = hf_etcd_encode(waiter_fields, COUNT(waiter_fields), &k);
    int r = hf_etcd_put_json(t, key, object, 0, err);
    if (r < 0 || !is_new)
        return r;
    place_key(t, rec->name, &k.w.id, place);
    return hf_etcd_put_string(t, place, strrchr(key, '\1') + 1, err);
}

int hf_etcd_drop_waiters(struct hf_etcd_txn *t, const char *name, const struct hf_effects *fx,
                         struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_dropped; i++) {
        if ((r = find_place(t, name, &fx->dropped[i], key, err)) <= 0)
            continue;
        r = hf_etcd_delete(t, key, err);
        place_key(t, name, &fx->dropped[i], key);
        if (r >= 0)
            r = hf_etcd_delete(t, key, err);
    }
    return r < 0 ? r : 0;
}

int hf_etcd_put_wakes(struct hf_etcd_txn *t, const char *name, const struct hf_effects *fx,
                      struct hf_error *err)
{
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_wake; i++) {
        char key[HF_ETCD_KEY_MAX], hex[HF_LOCK_ID_LEN + 1];
        const struct hf_etcd_known_waiter *known = known_waiter(t, &fx->wake[i]);
        if (!known || !known->channel[0] || !t->row.lease)
            continue;
        hf_lock_id_format(&fx->wake[i], hex);
        hf_etcd_key(t->s, key, "wake/%s/%s", known->channel, hex);
        r = hf_etcd_put(t, key, name, strlen(name), t->row.lease, err);
    }
    return r;
}

/* With what the one who is woken will find in lock/NAME, where that and alive/NAME are put now, too. */
static int add_news(struct hf_etcd_txn *t, struct hf_etcd_kv *wake, struct hf_error *err)
{
    char lock[HF_ETCD_KEY_MAX], alive[HF_ETCD_KEY_MAX];
    struct hf_buf news = HF_BUF(HF_ETCD_BODY_MAX);
    hf_etcd_key(t->s, lock, "lock/%s", wake->value);
    hf_etcd_key(t->s, alive, "alive/%s", wake->value);
    const struct hf_etcd_kv *record = hf_etcd_written(t, lock);
    if (!record || !hf_etcd_written(t, alive))
        return 0;
    hf_buf_printf(&news, "%s\1", wake->value);
    hf_buf_add(&news, record->value, record->len);
    if (news.failed)
        return hf_fail(err, HF_NOMEM, "out of memory");
    free(wake->value);
    wake->value = news.data;
    wake->len = news.len;
    return 0;
}

int hf_etcd_finish_wakes(struct hf_etcd_txn *t, struct hf_error *err)
{
    char wakes[HF_ETCD_KEY_MAX];
    int r = 0;
    hf_etcd_key(t->s, wakes, "wake/");
    for (size_t i = 0; r >= 0 && i < t->n; i++)
        if (t->of[i].put && strncmp(t->of[i].kv.key, wakes, strlen(wakes)) == 0)
            r = add_news(t, &t->of[i].kv, err);
    return r;
}

/* ---- who is ahead --------------------------------------------------------------------------- */

static int processes_before(struct hf_etcd_txn *t, const char *name, const char *self,
                            struct hf_processes *ret, struct hf_error *err)
{
    char from[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    struct hf_waiter w;
    hf_etcd_key(t->s, from, "wait/%s\1", name);
    struct hf_etcd_span span = {.from = from, .to = self, .limit = 1, .descending = true};
    int r = hf_etcd_range(t, &span, false, &page, err);
    if (r < 0 || !page.n)
        return r;
    take_waiter(t, &page.of[0], &w);
    *ret = w.bound;
    hf_etcd_page_clear(&page);
    return 1;
}

int hf_etcd_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  struct hf_processes *ret, struct hf_error *err)
{
    struct hf_etcd_txn *t = malloc(sizeof *t);
    struct hf_record *rec = malloc(sizeof *rec);
    char self[HF_ETCD_KEY_MAX];
    int r = -HF_NOMEM;
    if (t && rec) {
        hf_etcd_txn_init(t, hf_etcd_of(store), false);
        r = hf_etcd_load(&t->base, name, NULL, rec, err);
        if (r >= 0 && rec->n_waiters)
            r = find_place(t, name, id, self, err);
        if (r > 0)
            r = processes_before(t, name, self, ret, err);
        if (r == 0)
            *ret = rec->grant.bound;
        hf_etcd_txn_clear(t);
    }
    free(rec);
    free(t);
    return r < 0 ? r : 0;
}
