/*
 * Waiters: an item each, beside the lock's. The whole queue is read at once, in pages of about three
 * thousand; who only says that it is still there writes its own item and no other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"

enum { REAPED_AFTER_S = 24 * 3600 };

static void waiter_sk(const struct hf_lock_id *id, char ret[HF_DDB_KEY_MAX])
{
    char hex[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, hex);
    snprintf(ret, HF_DDB_KEY_MAX, "WAITER#%s", hex);
}

static void read_waiter(const json_t *item, struct hf_waiter *w)
{
    const char *sk = hf_ddb_get_text(item, "SK");
    *w = (struct hf_waiter){
        .priority = (int32_t)hf_ddb_get_int(item, "Priority"),
        .ticket = hf_ddb_get_int(item, "Ticket"),
        .ttl_ms = hf_ddb_get_int(item, "TtlMs"),
        .until_ms = hf_ddb_has(item, "UntilMs") ? hf_ddb_get_int(item, "UntilMs") : INT64_MAX,
        .seen_ms = hf_ddb_get_int(item, "SeenMs"),
        .queued_ms = hf_ddb_get_int(item, "QueuedMs")};
    hf_lock_id_parse(strncmp(sk, "WAITER#", 7) == 0 ? sk + 7 : sk, &w->id);
    hf_ddb_copy_text(item, "Owner", w->owner, sizeof w->owner);
    hf_ddb_copy_text(item, "Note", w->note, sizeof w->note);
    hf_processes_parse(hf_ddb_get_text(item, "Bound"), &w->bound);
}

static json_t *write_waiter(const struct hf_waiter *w)
{
    json_t *item = hf_ddb_object();
    char bound[HF_PROCESSES_TEXT_MAX];
    hf_ddb_set_int(item, "Priority", w->priority);
    hf_ddb_set_int(item, "Ticket", w->ticket);
    hf_ddb_set_int(item, "TtlMs", w->ttl_ms);
    if (w->until_ms != INT64_MAX)
        hf_ddb_set_int(item, "UntilMs", w->until_ms);
    hf_ddb_set_int(item, "SeenMs", w->seen_ms);
    hf_ddb_set_int(item, "QueuedMs", w->queued_ms);
    hf_ddb_set_text(item, "Owner", w->owner);
    hf_ddb_set_text(item, "Note", w->note);
    hf_processes_format(&w->bound, bound);
    hf_ddb_set_text(item, "Bound", bound);
    hf_ddb_set_int(item, "TTL", w->seen_ms / 1000 + REAPED_AFTER_S);
    return item;
}

/* ---- the queue in memory -------------------------------------------------------------------- */

static int add(struct hf_ddb_turn *t, const struct hf_waiter *w, struct hf_error *err)
{
    if (!t->queue || t->n_queue == t->queue_size) {
        size_t size = 2 * t->queue_size + 8;
        struct hf_waiter *grown = realloc(t->queue, size * sizeof *grown);
        if (!grown)
            return hf_fail(err, HF_NOMEM, "out of memory");
        t->queue = grown;
        t->queue_size = size;
    }
    size_t i = t->n_queue++;
    for (; i > 0 && hf_waiter_before(w, &t->queue[i - 1]); i--)
        t->queue[i] = t->queue[i - 1];
    t->queue[i] = *w;
    return 0;
}

static struct hf_waiter *find(struct hf_ddb_turn *t, const struct hf_lock_id *id)
{
    for (size_t i = 0; i < t->n_queue; i++)
        if (hf_lock_id_equal(&t->queue[i].id, id))
            return &t->queue[i];
    return NULL;
}

static int read_queue(struct hf_ddb_turn *t, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    json_t *items, *item;
    size_t i;
    hf_ddb_lock_pk(t->name, pk);
    struct hf_ddb_range range = {.pk = pk, .from = "WAITER#", .to = "WAITER#~"};
    int r = hf_ddb_query(t->s, &range, &items, err);
    if (r < 0)
        return r;
    json_array_foreach(items, i, item)
    {
        struct hf_waiter w;
        read_waiter(item, &w);
        hf_ddb_turn_know(t, pk, hf_ddb_get_text(item, "SK"), item);
        if (w.ticket > t->tickets)
            t->tickets = w.ticket;
        if (r >= 0)
            r = add(t, &w, err);
    }
    json_decref(items);
    return r;
}

int hf_ddb_load_queue(struct hf_ddb_turn *t, const struct hf_lock_id *self, int64_t known,
                      struct hf_record *rec, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    const json_t *item;
    hf_ddb_lock_pk(t->name, pk);
    if (!t->has_queue) {
        int r = hf_ddb_turn_get(t, pk, "LOCK", &item, err);
        t->tickets = hf_ddb_get_int(item, "Tickets");
        if (r >= 0 && known != 0)
            r = read_queue(t, err);
        if (r < 0)
            return r;
        t->has_queue = true;
    }
    rec->n_waiters = (uint32_t)t->n_queue;
    rec->n_head = t->n_queue < HF_WINDOW ? (uint32_t)t->n_queue : HF_WINDOW;
    for (uint32_t i = 0; i < rec->n_head; i++)
        rec->head[i] = t->queue[i];
    const struct hf_waiter *own = self ? find(t, self) : NULL;
    rec->has_self = own != NULL;
    if (own)
        rec->self = *own;
    return 0;
}

/* ---- changing ------------------------------------------------------------------------------- */

static int drop(struct hf_ddb_turn *t, const char *pk, const struct hf_lock_id *id,
                struct hf_error *err)
{
    char sk[HF_DDB_KEY_MAX];
    struct hf_waiter *w = find(t, id);
    if (!w)
        return 0;
    size_t behind = (size_t)(&t->queue[t->n_queue] - w) - 1;
    memmove(w, w + 1, behind * sizeof *w);
    t->n_queue--;
    waiter_sk(id, sk);
    return hf_ddb_turn_delete(t, pk, sk, HF_DDB_IF_SAME, err);
}

int hf_ddb_save_queue(struct hf_ddb_turn *t, const struct hf_record *rec,
                      const struct hf_effects *fx, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], sk[HF_DDB_KEY_MAX];
    int r = 0;
    hf_ddb_lock_pk(rec->name, pk);
    for (uint32_t i = 0; r >= 0 && i < fx->n_dropped; i++)
        r = drop(t, pk, &fx->dropped[i], err);
    if (r < 0 || !fx->put_self)
        return r;
    struct hf_waiter w = rec->self, *own = find(t, &w.id);
    if (own)
        *own = w;
    else {
        w.ticket = ++t->tickets;
        if ((r = add(t, &w, err)) < 0)
            return r;
    }
    waiter_sk(&w.id, sk);
    return hf_ddb_turn_put(t, pk, sk, write_waiter(&w), HF_DDB_IF_SAME, err);
}
