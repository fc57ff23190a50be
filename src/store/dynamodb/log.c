/*
 * Events. The newest of a name are in its lock's item, so that what happens and what is told of it
 * are one write; when there are many they move, together, into an item of their own beside it, and
 * a copy into the day's partition, for who asks about all names. DynamoDB removes both when they are
 * old.
 *
 * Quick.c appends without having read: such an event has no fence and, of a release, no owner. Each
 * quick acquire takes the next fence, so they are counted back from the item's own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"
#include "text.h"
#include "wire.h"

enum { EVENT_MAX = 8192, DAY_S = 24 * 3600 };

/* ---- one event ------------------------------------------------------------------------------ */

/*
 * ["released", at in ms, seq less at's first stamp, fence, owner, execution, reason, detail], without
 * the empty ones at its end; the fence of a quick one is null. Every change of a lock writes all of its
 * log, and pays for it by the kilobyte.
 */
static void format(struct hf_buf *out, const struct hf_event *e, bool quick)
{
    const char *const texts[] = {e->owner, e->execution_id, e->reason, e->detail};
    size_t n = sizeof texts / sizeof *texts;
    hf_buf_printf(out, "[\"%s\",%lld,%lld", hf_event_kind_name(e->kind), (long long)e->at_ms,
                  (long long)(e->seq - hf_ddb_first_stamp(e->at_ms)));
    while (n > 0 && !*texts[n - 1])
        n--;
    if (!quick)
        hf_buf_printf(out, ",%lld", (long long)e->fence);
    else if (n)
        hf_buf_puts(out, ",null");
    for (size_t i = 0; i < n; i++) {
        hf_buf_putc(out, ',');
        hf_wire_string(out, texts[i], strlen(texts[i]));
    }
    hf_buf_putc(out, ']');
}

void hf_ddb_quick_event(struct hf_buf *out, enum hf_event_kind kind, int64_t at_ms,
                        const char *owner, const char *reason)
{
    struct hf_event event = {.kind = kind, .at_ms = at_ms, .seq = hf_ddb_stamp(at_ms)};
    snprintf(event.owner, sizeof event.owner, "%s", owner ? owner : "");
    snprintf(event.reason, sizeof event.reason, "%s", reason ? reason : "");
    format(out, &event, true);
}

static enum hf_event_kind kind_of(const char *name)
{
    int kind = 0;
    while (name && kind < HF_EV_COUNT - 1 && strcmp(name, hf_event_kind_name(kind)) != 0)
        kind++;
    return kind;
}

static void read_text(const json_t *list, size_t i, char *ret, size_t size)
{
    const char *text = json_string_value(json_array_get(list, i));
    snprintf(ret, size, "%s", text ? text : "");
}

/* True: it was made by quick.c. */
static bool read_one(const json_t *entry, struct hf_event *ret)
{
    const char *text = json_string_value(json_object_get(entry, "S"));
    json_t *list = text ? json_loads(text, 0, NULL) : NULL;
    ret->kind = kind_of(json_string_value(json_array_get(list, 0)));
    ret->at_ms = json_integer_value(json_array_get(list, 1));
    ret->seq = hf_ddb_first_stamp(ret->at_ms) + json_integer_value(json_array_get(list, 2));
    ret->fence = json_integer_value(json_array_get(list, 3));
    read_text(list, 4, ret->owner, sizeof ret->owner);
    read_text(list, 5, ret->execution_id, sizeof ret->execution_id);
    read_text(list, 6, ret->reason, sizeof ret->reason);
    read_text(list, 7, ret->detail, sizeof ret->detail);
    bool quick = !json_is_integer(json_array_get(list, 3));
    json_decref(list);
    return quick;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* What the quick ones did not know; and that they follow each other. */
static void complete(const json_t *item, struct hf_event *events, const bool *quick, size_t n)
{
    int64_t fence = hf_ddb_get_int(item, "Fence"), since_ms = hf_ddb_get_int(item, "LogSince");
    const char *owner = hf_ddb_get_text(item, "LogOwner");
    for (size_t i = n; i-- > 0 && quick[i];) {
        events[i].fence = fence;
        fence -= events[i].kind == HF_EV_ACQUIRED;
    }
    for (size_t i = 0; i < n; i++) {
        struct hf_event *e = &events[i];
        if (i && e->seq <= events[i - 1].seq)
            e->seq = events[i - 1].seq + 1;
        if (e->kind == HF_EV_ACQUIRED) {
            owner = e->owner;
            since_ms = e->at_ms;
        } else if (quick[i]) {
            snprintf(e->owner, sizeof e->owner, "%s", owner);
            int64_t held_ms = e->at_ms - since_ms; /* by two looks at the server's clock */
            snprintf(e->detail, sizeof e->detail, "held for %lld ms",
                     (long long)(held_ms > 0 ? held_ms : 0));
        }
    }
}

int hf_ddb_read_log(const char *name, const json_t *item, struct hf_event **ret, size_t *ret_n,
                    struct hf_error *err)
{
    json_t *list = json_object_get(json_object_get(item, "EventLog"), "L"), *entry;
    size_t i, n = json_array_size(list);
    struct hf_event *events = calloc(n + 1, sizeof *events);
    bool *quick = calloc(n + 1, sizeof *quick);
    if (!events || !quick) {
        free(events);
        free(quick);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    json_array_foreach(list, i, entry)
    {
        quick[i] = read_one(entry, &events[i]);
        snprintf(events[i].name, sizeof events[i].name, "%s", name);
    }
    complete(item, events, quick, n);
    free(quick);
    *ret = events;
    *ret_n = n;
    return 0;
}

/* ---- writing -------------------------------------------------------------------------------- */

static json_t *write_one(const struct hf_event *event)
{
    struct hf_buf text = HF_BUF(EVENT_MAX);
    format(&text, event, false);
    json_t *entry = text.failed ? NULL : hf_ddb_text(text.data);
    hf_buf_clear(&text);
    return entry;
}

static json_t *write_all(const struct hf_event *events, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, write_one(&events[i])) < 0) {
            json_decref(list);
            return NULL;
        }
    return json_pack("{s:o}", "L", list);
}

/*
 * Out of the lock's item, into two of their own. They may be written though this turn comes to nothing:
 * under the same key is always the same, and who reads what was moved twice tells it once.
 */
static int move_out(struct hf_ddb_turn *t, const struct hf_event *events, size_t n,
                    struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], sk[HF_DDB_KEY_MAX];
    int64_t first = events[0].seq, last = events[n - 1].seq, at_s = events[n - 1].at_ms / 1000;
    json_t *item = hf_ddb_object();
    hf_ddb_set(item, "Events", write_all(events, n));
    hf_ddb_set_text(item, "LockName", events[0].name);
    hf_ddb_set_int(item, "TTL", at_s + HF_DDB_EVENTS_KEPT_MS / 1000);
    json_t *copy = json_copy(item);
    hf_ddb_lock_pk(t->name, pk);
    snprintf(sk, sizeof sk, "EVENTS#%016lld-%016lld", (long long)first, (long long)last);
    int r = hf_ddb_turn_put(t, pk, sk, item, HF_DDB_AHEAD, err);
    snprintf(pk, sizeof pk, "EVENTS#%lld", (long long)(at_s / DAY_S));
    snprintf(sk, sizeof sk, "%016lld-%016lld#%s", (long long)first, (long long)last, t->name);
    if (r < 0) {
        json_decref(copy);
        return r;
    }
    return hf_ddb_turn_put(t, pk, sk, copy, HF_DDB_AHEAD, err);
}

int hf_ddb_write_log(struct hf_ddb_turn *t, const json_t *item, json_t *next,
                     const struct hf_effects *fx, struct hf_error *err)
{
    struct hf_event *events, *all;
    size_t n;
    int r = hf_ddb_read_log(t->name, item, &events, &n, err);
    if (r < 0)
        return r;
    size_t n_old = n;
    all = realloc(events, (n + fx->n_events + 1) * sizeof *events);
    if (!all) {
        free(events);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < fx->n_events; i++) {
        all[n + i] = fx->events[i];
        int64_t seq = hf_ddb_turn_stamp(t), last = n + i ? all[n + i - 1].seq : 0;
        all[n + i].seq = seq > last ? seq : last + 1;
    }
    n += fx->n_events;
    size_t full = hf_ddb_turn_size(t) > 0 ? HF_DDB_LOG_FULL_BESIDE : HF_DDB_LOG_FULL;
    bool moves = n_old && n >= full && !(t->s->is_plain && n < HF_DDB_LOG_FULL);
    if (moves) /* those that have happened, whatever becomes of this turn */
        r = move_out(t, all, n_old, err);
    hf_ddb_set(next, "EventLog", moves ? write_all(all + n_old, n - n_old) : write_all(all, n));
    free(all);
    return r;
}
