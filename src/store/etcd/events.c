/*
 * What happened. An event's key begins with its time, so that old ones are removed as one range; its
 * number is the revision at which it was written. Each names the one before it of the same name, and
 * the record the last one: so is the story of a name told, whatever else happened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "etcd_store.h"

enum {
    PAGE = 256,
    PRUNE_EVERY = 256,   /* events of this process */
    EVENTS_MAX = 100000, /* etcd keeps all keys in memory */
    PER_REVISION = 4096
};
static const int64_t day_ms = INT64_C(24) * 3600 * 1000;
static const int64_t event_days = 30;
static const int64_t skew_ms = 600000; /* so far apart clocks may be where events are followed */

struct kept_event {
    struct hf_event e;
    char prev[HF_ETCD_EVENT_ID_LEN + 1];
};

#define EVENT(kind, name, member) HF_ETCD_FIELD(kind, struct kept_event, name, member)
static const struct hf_etcd_field fields[] = {
    EVENT(INT64, "at", e.at_ms),
    EVENT(TEXT, "name", e.name),
    EVENT(INT64, "fence", e.fence),
    EVENT(TEXT, "owner", e.owner),
    EVENT(TEXT, "executionId", e.execution_id),
    EVENT(TEXT, "reason", e.reason),
    EVENT(TEXT, "detail", e.detail),
    EVENT(TEXT, "prev", prev),
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* ---- writing -------------------------------------------------------------------------------- */

static int add_event(struct hf_etcd_txn *t, const struct hf_event *e, struct hf_error *err)
{
    struct kept_event k = {.e = *e};
    char key[HF_ETCD_KEY_MAX], id[HF_ETCD_EVENT_ID_LEN + 1];
    memcpy(k.prev, t->row.last_event, sizeof k.prev);
    snprintf(id, sizeof id, "%012llx.%.8s%03x", (unsigned long long)e->at_ms & 0xffffffffffff,
             t->nonce, t->made++ % PER_REVISION);
    hf_etcd_key(t->s, key, "event/%s", id);
    memcpy(t->row.last_event, id, sizeof id);
    json_t *object = hf_etcd_encode(fields, N_FIELDS, &k);
    json_object_set_new_nocheck(object, "kind", json_string(hf_event_kind_name(e->kind)));
    return hf_etcd_put_json(t, key, object, 0, err);
}

int hf_etcd_add_events(struct hf_etcd_txn *t, const struct hf_effects *fx, struct hf_error *err)
{
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_events; i++)
        r = add_event(t, &fx->events[i], err);
    t->s->events_made += fx->n_events;
    return r;
}

/* ---- pruning -------------------------------------------------------------------------------- */

static void delete_before(struct hf_etcd *s, const char *to)
{
    char from[HF_ETCD_KEY_MAX];
    struct hf_buf body = HF_BUF(4096);
    json_t *answer;
    hf_etcd_key(s, from, "event/");
    hf_buf_putc(&body, '{');
    hf_etcd_put_text(&body, "key", from, strlen(from));
    hf_buf_putc(&body, ',');
    hf_etcd_put_text(&body, "range_end", to, strlen(to));
    hf_buf_putc(&body, '}');
    if (hf_etcd_call(s, "/v3/kv/deleterange", &body, true, &answer, NULL) >= 0)
        json_decref(answer);
    hf_buf_clear(&body);
}

/* There are too many: the oldest go. */
static void prune_surplus(struct hf_etcd *s)
{
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, from, "event/");
    hf_etcd_key(s, to, "event0");
    struct hf_etcd_span count = {.from = from, .to = to, .count_only = true};
    if (hf_etcd_read(s, &count, &page, NULL) < 0)
        return;
    int64_t over = page.count - EVENTS_MAX;
    hf_etcd_page_clear(&page);
    if (over <= 0)
        return;
    struct hf_etcd_span oldest = {.from = from,
                                  .to = to,
                                  .keys_only = true,
                                  .limit = over < 2 * PRUNE_EVERY ? over : 2 * PRUNE_EVERY};
    if (hf_etcd_read(s, &oldest, &page, NULL) < 0)
        return;
    if (page.n)
        delete_before(s, page.of[page.n - 1].key);
    hf_etcd_page_clear(&page);
}

void hf_etcd_prune_events(struct hf_etcd *s)
{
    char to[HF_ETCD_KEY_MAX];
    int64_t made = s->events_made;
    if (made < PRUNE_EVERY || !atomic_compare_exchange_strong(&s->events_made, &made, 0))
        return;
    hf_etcd_key(s, to, "event/%012llx",
                (unsigned long long)(hf_clock_wall_ms() - event_days * day_ms));
    delete_before(s, to);
    prune_surplus(s);
}

/* ---- reading -------------------------------------------------------------------------------- */

static void take_event(const struct hf_etcd_kv *kv, struct kept_event *ret)
{
    json_t *object = hf_etcd_parse(kv);
    const char *kind = json_string_value(json_object_get(object, "kind"));
    size_t n = strlen(kv->key);
    *ret = (struct kept_event){0};
    hf_etcd_decode(fields, N_FIELDS, object, ret);
    for (int i = 0; kind && i < HF_EV_COUNT; i++)
        if (strcmp(kind, hf_event_kind_name((enum hf_event_kind)i)) == 0)
            ret->e.kind = (enum hf_event_kind)i;
    json_decref(object);
    ret->e.seq = kv->mod * PER_REVISION + (n > 3 ? strtol(kv->key + n - 3, NULL, 16) : 0);
}

struct found {
    struct hf_event *of;
    size_t n, size;
};

static int add_found(struct found *f, const struct hf_event *e, struct hf_error *err)
{
    if (f->n == f->size) {
        size_t size = 2 * f->size + 64;
        struct hf_event *of = realloc(f->of, size * sizeof *of);
        if (!of)
            return hf_fail(err, HF_NOMEM, "out of memory");
        f->of = of;
        f->size = size;
    }
    f->of[f->n++] = *e;
    return 0;
}

static int by_seq(const void *a, const void *b)
{
    int64_t x = ((const struct hf_event *)a)->seq, y = ((const struct hf_event *)b)->seq;
    return x < y ? -1 : x > y;
}

/* From the name's newest event back, as far as events are kept and the query asks. */
static int follow(struct hf_etcd *s, const struct hf_event_query *query, struct found *found,
                  struct hf_error *err)
{
    char key[HF_ETCD_KEY_MAX];
    struct hf_record *rec = calloc(1, sizeof *rec);
    struct hf_etcd_row row = {0};
    struct hf_etcd_page page;
    struct kept_event k;
    if (!rec)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf_etcd_key(s, key, "lock/%s", query->name);
    struct hf_etcd_span span = {.from = key};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r >= 0 && page.n)
        hf_etcd_take_record(&page.of[0], true, 0, rec, &row);
    free(rec);
    if (r >= 0)
        hf_etcd_page_clear(&page);
    while (r >= 0 && row.last_event[0] && (query->limit <= 0 || (int64_t)found->n < query->limit)) {
        hf_etcd_key(s, key, "event/%s", row.last_event);
        if ((r = hf_etcd_read(s, &span, &page, err)) < 0 || !page.n)
            break; /* pruned */
        take_event(&page.of[0], &k);
        hf_etcd_page_clear(&page);
        if (k.e.seq <= query->after_seq)
            break;
        memcpy(row.last_event, k.prev, sizeof row.last_event);
        if (k.e.at_ms >= query->since_ms)
            r = add_found(found, &k.e, err);
    }
    return r;
}

/* One page back from the newest. 1: what comes before it is of no concern. */
static int take_back(const struct hf_event_query *query, const struct hf_etcd_page *page,
                     int64_t *oldest_ms, struct found *found, struct hf_error *err)
{
    struct kept_event k;
    for (size_t i = 0; i < page->n; i++) {
        take_event(&page->of[i], &k);
        if (k.e.seq > query->after_seq) {
            int r = k.e.at_ms >= query->since_ms ? add_found(found, &k.e, err) : 0;
            if (r < 0)
                return r;
        } else if (!*oldest_ms)
            *oldest_ms = k.e.at_ms - skew_ms;
        if ((*oldest_ms && k.e.at_ms < *oldest_ms) || k.e.at_ms < query->since_ms - skew_ms)
            return 1;
    }
    return 0;
}

static int read_back(struct hf_etcd *s, const struct hf_event_query *query, struct found *found,
                     struct hf_error *err)
{
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    int64_t oldest_ms = 0;
    int r = 0;
    bool more = true;
    hf_etcd_key(s, from, "event/");
    hf_etcd_key(s, to, "event0");
    while (r == 0 && more && (query->limit <= 0 || (int64_t)found->n < query->limit)) {
        struct hf_etcd_page page;
        struct hf_etcd_span span = {.from = from, .to = to, .limit = PAGE, .descending = true};
        if ((r = hf_etcd_read(s, &span, &page, err)) < 0)
            return r;
        r = take_back(query, &page, &oldest_ms, found, err);
        more = page.n == PAGE;
        if (page.n)
            snprintf(to, sizeof to, "%s", page.of[page.n - 1].key);
        hf_etcd_page_clear(&page);
    }
    return r;
}

int hf_etcd_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                   void *arg, struct hf_error *err)
{
    struct found found = {0};
    int r = query->name ? follow(hf_etcd_of(store), query, &found, err)
                        : read_back(hf_etcd_of(store), query, &found, err);
    if (r >= 0 && found.n)
        qsort(found.of, found.n, sizeof *found.of, by_seq);
    size_t first =
        query->limit > 0 && found.n > (size_t)query->limit ? found.n - (size_t)query->limit : 0;
    int stop = 0;
    for (size_t i = first; r >= 0 && !stop && i < found.n; i++)
        stop = fn(arg, &found.of[i]);
    free(found.of);
    return r < 0 ? r : 0;
}
