/*
 * One change. Everything that was read is remembered with its revision, everything that is to be
 * written is collected; the commit is one Txn that compares the former and writes the latter. Where
 * somebody was faster, what was known is forgotten and read; from then on the same Txn reads all of it
 * again where it fails, and the next try begins with that. Not at first: the gateway takes its time for
 * each part of a request, needed or not.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "etcd_store.h"

enum { CACHED_TRIES = 8 }; /* then all is read */

void hf_etcd_txn_init(struct hf_etcd_txn *t, struct hf_etcd *s, bool writing)
{
    uint64_t random;
    memset(t, 0, sizeof *t);
    t->s = s;
    t->writing = writing;
    t->guesses = writing;
    hf_random(&random, sizeof random);
    snprintf(t->nonce, sizeof t->nonce, "%016llx", (unsigned long long)random);
}

void hf_etcd_txn_clear(struct hf_etcd_txn *t)
{
    for (size_t i = 0; i < t->n; i++)
        hf_etcd_kv_clear(&t->of[i].kv);
    free(t->of);
    t->of = NULL;
    t->n = t->size = 0;
    hf_etcd_page_clear(&t->head);
    t->has_head = false;
}

void hf_etcd_key(const struct hf_etcd *s, char ret[HF_ETCD_KEY_MAX], const char *format, ...)
{
    va_list args;
    size_t n = strlen(s->prefix);
    memcpy(ret, s->prefix, n);
    va_start(args, format);
    vsnprintf(ret + n, HF_ETCD_KEY_MAX - n, format, args);
    va_end(args);
}

/* ---- entries -------------------------------------------------------------------------------- */

static struct hf_etcd_entry *find(struct hf_etcd_txn *t, const char *key)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->of[i].kv.key, key) == 0)
            return &t->of[i];
    return NULL;
}

static struct hf_etcd_entry *add(struct hf_etcd_txn *t, const char *key)
{
    if (t->n == t->size) {
        size_t size = 2 * t->size + 16;
        struct hf_etcd_entry *of = realloc(t->of, size * sizeof *of);
        if (!of)
            return NULL;
        t->of = of;
        t->size = size;
    }
    struct hf_etcd_entry *e = &t->of[t->n];
    *e = (struct hf_etcd_entry){.kv.key = strdup(key)};
    if (!e->kv.key)
        return NULL;
    t->n++;
    return e;
}

static int no_memory(struct hf_error *err) { return hf_fail(err, HF_NOMEM, "out of memory"); }

static int raced(struct hf_etcd_txn *t, struct hf_error *err)
{
    t->conflict = true;
    return hf_fail(err, HF_RACED, "others change the same at the same time; try again");
}

/* What was read is this; the page's bytes move over. */
static void take_read(struct hf_etcd_entry *e, struct hf_etcd_kv *from)
{
    e->read = true;
    e->guessed = false;
    e->there = from && from->mod;
    if (!from)
        return;
    free(e->kv.value);
    e->kv.value = from->value;
    e->kv.len = from->len;
    e->kv.mod = from->mod;
    e->kv.lease = from->lease;
    from->value = NULL;
}

/* ---- reading -------------------------------------------------------------------------------- */

static void see_revision(struct hf_etcd_txn *t, int64_t revision)
{
    if (revision > t->revision)
        t->revision = revision;
}

int hf_etcd_fetch(struct hf_etcd_txn *t, const char *const *keys, size_t n, struct hf_error *err)
{
    return hf_etcd_fetch_with(t, keys, n, NULL, err);
}

int hf_etcd_fetch_with(struct hf_etcd_txn *t, const char *const *keys, size_t n,
                       const struct hf_etcd_span *head, struct hf_error *err)
{
    enum { MOST = 32 };
    struct hf_etcd_span spans[MOST + 1];
    struct hf_etcd_page pages[MOST + 1];
    size_t wanted = 0;
    for (size_t i = 0; i < n && wanted < MOST; i++)
        if (!find(t, keys[i]))
            spans[wanted++] = (struct hf_etcd_span){.from = keys[i]};
    if (!wanted)
        return 0;
    if (head)
        spans[wanted] = *head;
    int r = wanted == 1 && !head ? hf_etcd_read(t->s, spans, pages, err)
                                 : hf_etcd_read_all(t->s, spans, wanted + !!head, pages, err);
    if (r < 0)
        return r;
    if (head) {
        hf_etcd_page_clear(&t->head);
        t->head = pages[wanted];
        t->has_head = true;
    }
    for (size_t i = 0; i < wanted; i++) {
        struct hf_etcd_entry *e = find(t, spans[i].from);
        if (!e)
            e = add(t, spans[i].from);
        if (e)
            take_read(e, pages[i].n ? &pages[i].of[0] : NULL);
        else
            r = no_memory(err);
        see_revision(t, pages[i].revision);
        hf_etcd_page_clear(&pages[i]);
    }
    return r;
}

/*
 * What the cache has. A key that was never seen is taken not to be there, at first: that may have been
 * why somebody seemed faster. NULL: it must be read.
 */
static struct hf_etcd_entry *guess(struct hf_etcd_txn *t, const char *key)
{
    struct hf_etcd_kv kv;
    bool known = t->tries < CACHED_TRIES && hf_etcd_cache_find(t->s->cache, key, &kv);
    if (!known && t->tries)
        return NULL;
    struct hf_etcd_entry *e = add(t, key);
    if (known && e)
        take_read(e, &kv);
    if (known)
        hf_etcd_kv_clear(&kv);
    if (e)
        e->read = e->guessed = true;
    return e;
}

int hf_etcd_get(struct hf_etcd_txn *t, const char *key, bool may_guess,
                const struct hf_etcd_kv **ret, struct hf_error *err)
{
    struct hf_etcd_entry *e = find(t, key);
    if (!e && may_guess && t->guesses)
        e = guess(t, key);
    if (!e) {
        int r = hf_etcd_fetch(t, &key, 1, err);
        if (r < 0)
            return r;
        e = find(t, key);
    }
    if (!e)
        return no_memory(err);
    e->often |= may_guess;
    if (!e->read && !e->put && !e->gone)
        return hf_fail(err, HF_INTERNAL, "a key of the etcd store was not read");
    *ret = e->there ? &e->kv : NULL;
    return 0;
}

int hf_etcd_expect_same(struct hf_etcd_txn *t, const struct hf_etcd_txn *other,
                        struct hf_error *err)
{
    for (size_t i = 0; i < other->n; i++) {
        const struct hf_etcd_entry *theirs = &other->of[i];
        if (!theirs->read)
            continue;
        struct hf_etcd_entry *e = find(t, theirs->kv.key);
        if (e && e->read && e->kv.mod != theirs->kv.mod) {
            hf_etcd_cache_drop(t->s->cache, theirs->kv.key);
            return raced(t, err);
        }
        if (!e && !(e = add(t, theirs->kv.key)))
            return no_memory(err);
        e->read = true;
        e->kv.mod = theirs->kv.mod;
    }
    return 0;
}

/* ---- ranges --------------------------------------------------------------------------------- */

static bool is_within(const struct hf_etcd_span *span, const char *key)
{
    return strcmp(key, span->from) >= 0 && strcmp(key, span->to) < 0;
}

static int copy_into(struct hf_etcd_page *page, const struct hf_etcd_kv *from, struct hf_error *err)
{
    struct hf_etcd_kv *kv = hf_etcd_page_add(page);
    if (!kv)
        return no_memory(err);
    kv->mod = from->mod;
    kv->lease = from->lease;
    kv->len = from->len;
    kv->key = strdup(from->key);
    kv->value = malloc(from->len + 1);
    if (!kv->key || !kv->value)
        return no_memory(err);
    memcpy(kv->value, from->value ? from->value : "", from->len);
    kv->value[from->len] = '\0';
    return 0;
}

static int ascending(const void *a, const void *b)
{
    return strcmp(((const struct hf_etcd_kv *)a)->key, ((const struct hf_etcd_kv *)b)->key);
}

static int descending(const void *a, const void *b) { return ascending(b, a); }

/* Replace what we have written to, and cut to the limit. */
static int overlay(struct hf_etcd_txn *t, const struct hf_etcd_span *span,
                   struct hf_etcd_page *page, struct hf_error *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < page->n; i++) {
        const struct hf_etcd_entry *e = find(t, page->of[i].key);
        if (e && (e->put || e->gone))
            hf_etcd_kv_clear(&page->of[i]);
        else
            page->of[kept++] = page->of[i];
    }
    page->n = kept;
    int r = 0;
    for (size_t i = 0; r >= 0 && i < t->n; i++)
        if (t->of[i].put && is_within(span, t->of[i].kv.key))
            r = copy_into(page, &t->of[i].kv, err);
    if (r < 0)
        return r;
    if (page->n)
        qsort(page->of, page->n, sizeof *page->of, span->descending ? descending : ascending);
    while (span->limit && page->n > (size_t)span->limit)
        hf_etcd_kv_clear(&page->of[--page->n]);
    return 0;
}

static int note_read(struct hf_etcd_txn *t, const struct hf_etcd_page *page, struct hf_error *err)
{
    for (size_t i = 0; i < page->n; i++) {
        struct hf_etcd_entry *e = find(t, page->of[i].key);
        if (e)
            continue;
        if (!(e = add(t, page->of[i].key)))
            return no_memory(err);
        struct hf_etcd_page copy = {0};
        int r = copy_into(&copy, &page->of[i], err);
        if (r >= 0)
            take_read(e, &copy.of[0]);
        hf_etcd_page_clear(&copy);
        if (r < 0)
            return r;
    }
    return 0;
}

int hf_etcd_take_head(struct hf_etcd_txn *t, struct hf_etcd_page *ret, struct hf_error *err)
{
    if (!t->has_head || hf_etcd_ops(t))
        return 0;
    int r = note_read(t, &t->head, err);
    if (r < 0)
        return r;
    *ret = t->head;
    t->head = (struct hf_etcd_page){0};
    t->has_head = false;
    return 1;
}

int hf_etcd_range(struct hf_etcd_txn *t, const struct hf_etcd_span *span, bool compare,
                  struct hf_etcd_page *ret, struct hf_error *err)
{
    struct hf_etcd_span asked = *span;
    for (size_t i = 0; asked.limit && i < t->n; i++)
        asked.limit += (t->of[i].gone || t->of[i].put) && is_within(span, t->of[i].kv.key);
    int r = hf_etcd_read(t->s, &asked, ret, err);
    if (r < 0)
        return r;
    see_revision(t, ret->revision);
    r = overlay(t, span, ret, err);
    if (r >= 0 && compare)
        r = note_read(t, ret, err);
    if (r < 0)
        hf_etcd_page_clear(ret);
    return r;
}

/* ---- writing -------------------------------------------------------------------------------- */

static struct hf_etcd_entry *entry_of(struct hf_etcd_txn *t, const char *key)
{
    struct hf_etcd_entry *e = find(t, key);
    return e ? e : add(t, key);
}

int hf_etcd_put(struct hf_etcd_txn *t, const char *key, const void *value, size_t len,
                int64_t lease, struct hf_error *err)
{
    struct hf_etcd_entry *e = entry_of(t, key);
    char *copy = malloc(len + 1);
    if (!e || !copy) {
        free(copy);
        return no_memory(err);
    }
    if (len)
        memcpy(copy, value, len);
    copy[len] = '\0';
    free(e->kv.value);
    e->kv.value = copy;
    e->kv.len = len;
    e->kv.lease = lease;
    e->there = e->put = true;
    e->gone = false;
    return 0;
}

int hf_etcd_put_string(struct hf_etcd_txn *t, const char *key, const char *value,
                       struct hf_error *err)
{
    return hf_etcd_put(t, key, value, strlen(value), 0, err);
}

int hf_etcd_delete(struct hf_etcd_txn *t, const char *key, struct hf_error *err)
{
    struct hf_etcd_entry *e = entry_of(t, key);
    if (!e)
        return no_memory(err);
    e->there = e->put = false;
    e->gone = true;
    return 0;
}

const struct hf_etcd_kv *hf_etcd_written(struct hf_etcd_txn *t, const char *key)
{
    const struct hf_etcd_entry *e = find(t, key);
    return e && e->put ? &e->kv : NULL;
}

/* Does a key that is to be gone need no delete, as it was never there? */
static bool is_void(const struct hf_etcd_entry *e) { return e->gone && e->read && !e->kv.mod; }

size_t hf_etcd_ops(const struct hf_etcd_txn *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->of[i].put || (t->of[i].gone && !is_void(&t->of[i]));
    return n;
}

/* ---- the Txn -------------------------------------------------------------------------------- */

static void write_compares(const struct hf_etcd_txn *t, struct hf_buf *body)
{
    const char *before = "";
    hf_buf_puts(body, "{\"compare\":[");
    for (size_t i = 0; i < t->n; i++) {
        const struct hf_etcd_entry *e = &t->of[i];
        if (!e->read)
            continue;
        hf_buf_printf(body, "%s{\"target\":\"MOD\",", before);
        hf_etcd_put_text(body, "key", e->kv.key, strlen(e->kv.key));
        hf_buf_printf(body, ",\"mod_revision\":\"%lld\"}", (long long)e->kv.mod);
        before = ",";
    }
}

static void write_changes(const struct hf_etcd_txn *t, struct hf_buf *body)
{
    const char *before = "";
    hf_buf_puts(body, "],\"success\":[");
    for (size_t i = 0; i < t->n; i++) {
        const struct hf_etcd_entry *e = &t->of[i];
        if (!e->put && (!e->gone || is_void(e)))
            continue;
        hf_buf_printf(body, "%s{\"request_%s\":{", before, e->put ? "put" : "delete_range");
        hf_etcd_put_text(body, "key", e->kv.key, strlen(e->kv.key));
        if (e->put) {
            hf_buf_putc(body, ',');
            hf_etcd_put_text(body, "value", e->kv.value, e->kv.len);
        }
        if (e->put && e->kv.lease)
            hf_buf_printf(body, ",\"lease\":\"%lld\"", (long long)e->kv.lease);
        hf_buf_puts(body, "}}");
        before = ",";
    }
}

static void write_reads(const struct hf_etcd_txn *t, struct hf_buf *body)
{
    const char *before = "";
    hf_buf_puts(body, "],\"failure\":[");
    for (size_t i = 0; i < t->n; i++) {
        if (!t->of[i].read)
            continue;
        struct hf_etcd_span span = {.from = t->of[i].kv.key};
        hf_buf_printf(body, "%s{\"request_range\":", before);
        hf_etcd_put_span(body, &span);
        hf_buf_putc(body, '}');
        before = ",";
    }
    hf_buf_puts(body, "]}");
}

static void forget(struct hf_etcd_txn *t)
{
    for (size_t i = 0; i < t->n; i++)
        hf_etcd_cache_drop(t->s->cache, t->of[i].kv.key);
}

static void learn_one(struct hf_etcd_txn *t, const struct hf_etcd_entry *e,
                      const struct hf_etcd_page *page)
{
    struct hf_etcd_cache *cache = t->s->cache;
    struct hf_etcd_kv none = {.key = e->kv.key};
    if (!e->often) {
        hf_etcd_cache_drop(cache, e->kv.key);
        return;
    }
    hf_etcd_cache_keep(cache, page->n ? &page->of[0] : &none);
    if (e->kv.mod && page->n && page->of[0].mod != e->kv.mod)
        hf_etcd_cache_contend(cache, e->kv.key, true);
}

/* Somebody was faster: remember how things stand now. */
static void learn(struct hf_etcd_txn *t, const json_t *answer)
{
    const json_t *responses = json_object_get(answer, "responses");
    size_t at = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!t->of[i].read)
            continue;
        const json_t *one = json_array_get(responses, at++);
        struct hf_etcd_page page;
        if (!one || hf_etcd_take_page(json_object_get(one, "response_range"), &page, NULL) < 0) {
            forget(t);
            return;
        }
        learn_one(t, &t->of[i], &page);
        hf_etcd_page_clear(&page);
    }
}

/* It is done: what we have written is what is there now. */
static void remember(struct hf_etcd_txn *t, int64_t revision)
{
    for (size_t i = 0; i < t->n; i++) {
        struct hf_etcd_entry *e = &t->of[i];
        if (!e->often && !(e->put && e->kv.lease)) /* an alive/NAME that was not read */
            continue;
        if (e->put)
            e->kv.mod = revision;
        struct hf_etcd_kv none = {.key = e->kv.key};
        hf_etcd_cache_keep(t->s->cache, e->there ? &e->kv : &none);
    }
}

static void forget_leases(struct hf_etcd_txn *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->of[i].put && t->of[i].kv.lease)
            hf_etcd_lease_forget(t->s, t->of[i].kv.lease);
    for (size_t i = 0; i < t->n_taken; i++)
        hf_etcd_lease_forget(t->s, t->taken[i]);
    t->n_taken = 0;
}

static size_t count_reads(const struct hf_etcd_txn *t, bool *ret_guessed)
{
    size_t n = 0;
    *ret_guessed = false;
    for (size_t i = 0; i < t->n; i++) {
        n += t->of[i].read;
        *ret_guessed |= t->of[i].guessed;
    }
    return n;
}

static int send_txn(struct hf_etcd_txn *t, bool changes, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(HF_ETCD_BODY_MAX);
    json_t *answer;
    write_compares(t, &body);
    write_changes(t, &body);
    if (t->tries)
        write_reads(t, &body);
    else
        hf_buf_puts(&body, "]}");
    int r = hf_etcd_call(t->s, "/v3/kv/txn", &body, changes, &answer, err);
    hf_buf_clear(&body);
    if (r == -HF_NOT_FOUND) { /* a lease that ran out: the next try takes others */
        forget_leases(t);
        forget(t);
        return raced(t, err);
    }
    if (r < 0) {
        forget(t);
        t->unknown = r == -HF_UNKNOWN;
        return r;
    }
    bool done = json_is_true(json_object_get(answer, "succeeded"));
    see_revision(t, hf_etcd_revision(answer));
    if (done)
        remember(t, hf_etcd_revision(answer));
    else if (t->tries)
        learn(t, answer);
    else
        forget(t);
    json_decref(answer);
    return done ? 0 : raced(t, err);
}

int hf_etcd_commit(struct hf_etcd_txn *t, struct hf_error *err)
{
    bool guessed;
    size_t writes = hf_etcd_ops(t), reads = count_reads(t, &guessed);
    if (!writes && !guessed)
        return 0;
    if (writes > HF_ETCD_OPS_MAX || reads > HF_ETCD_OPS_MAX) {
        t->too_large = true;
        return hf_fail(err, HF_TOO_LARGE,
                       "it takes more than the %d operations that etcd allows at once",
                       HF_ETCD_OPS_MAX);
    }
    return send_txn(t, writes > 0, err);
}
