#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "etcd_store.h"
#include "host.h"

enum { PAGE = 64 };

/* Locks in the order of their names, a page at a time, each page of one moment. */
struct page {
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_record of[PAGE];
    size_t n;
    bool more;
};

static size_t name_at(const struct hf_etcd *s) { return strlen(s->prefix) + strlen("lock/"); }

/* Which of the page are alive, and whose executions are over: at the same moment. */
static int read_lives(struct hf_etcd *s, const struct hf_etcd_page *locks, struct page *ret,
                      struct hf_error *err)
{
    struct hf_etcd_span *spans = calloc(2 * PAGE, sizeof *spans);
    struct hf_etcd_page *pages = calloc(2 * PAGE, sizeof *pages);
    char(*keys)[HF_ETCD_KEY_MAX] = malloc(2 * PAGE * sizeof *keys);
    size_t n = 0;
    int r = spans && pages && keys ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < ret->n; i++) {
        if (!ret->of[i].grant.held)
            continue;
        hf_etcd_key(s, keys[n], "alive/%s", ret->of[i].name);
        hf_etcd_key(s, keys[n + 1], "exec/%s", ret->of[i].grant.execution_id);
        for (int j = 0; j < 2; j++, n++)
            spans[n] = (struct hf_etcd_span){.from = keys[n], .revision = locks->revision};
    }
    if (r >= 0 && n)
        r = hf_etcd_read_all(s, spans, n, pages, err);
    for (size_t i = 0, at = 0; r >= 0 && i < ret->n; i++) {
        struct hf_record *rec = &ret->of[i];
        struct hf_etcd_row row = {0};
        struct hf_etcd_stored x = {0};
        if (!rec->grant.held)
            continue;
        memset(rec, 0, sizeof *rec);
        snprintf(rec->name, sizeof rec->name, "%s", locks->of[i].key + name_at(s));
        hf_etcd_take_record(&locks->of[i], pages[at].n, hf_clock_wall_ms(), rec, &row);
        if (pages[at + 1].n)
            hf_etcd_take_execution(&pages[at + 1].of[0], &x);
        rec->grant.ended = rec->grant.execution_id[0] && x.x.state != HF_RUNNING;
        hf_etcd_page_clear(&pages[at]);
        hf_etcd_page_clear(&pages[at + 1]);
        at += 2;
    }
    free(keys);
    free(pages);
    free(spans);
    return r;
}

static int read_locks(struct hf_etcd *s, struct page *ret, struct hf_error *err)
{
    struct hf_etcd_page locks;
    struct hf_etcd_span span = {.from = ret->from, .to = ret->to, .limit = PAGE};
    int r = hf_etcd_read(s, &span, &locks, err);
    if (r < 0)
        return r;
    ret->n = 0;
    for (size_t i = 0; i < locks.n; i++) {
        struct hf_record *rec = &ret->of[ret->n++];
        struct hf_etcd_row row = {0};
        memset(rec, 0, sizeof *rec);
        snprintf(rec->name, sizeof rec->name, "%s", locks.of[i].key + name_at(s));
        hf_etcd_take_record(&locks.of[i], true, 0, rec, &row);
    }
    ret->more = locks.n == PAGE;
    if (locks.n)
        snprintf(ret->from, sizeof ret->from, "%.*s\1", HF_ETCD_KEY_MAX - 2,
                 locks.of[locks.n - 1].key);
    r = read_lives(s, &locks, ret, err);
    hf_etcd_page_clear(&locks);
    return r;
}

int hf_etcd_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                 struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    struct page *page = malloc(sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf_etcd_key(s, page->from, "lock/%s", which->prefix);
    snprintf(page->to, sizeof page->to, "%s", page->from);
    page->to[strlen(page->to) - 1]++; /* UTF-8 has no 0xff */
    if (*which->after && strcmp(which->after, which->prefix) >= 0)
        hf_etcd_key(s, page->from, "lock/%s\1", which->after);
    int r, stop = 0;
    do {
        r = read_locks(s, page, err);
        struct hf_record_world rw = {store, &hf_etcd_record_ops};
        struct hf_world world = hf_record_world_now(&rw);
        for (size_t i = 0; r >= 0 && !stop && i < page->n; i++) {
            struct hf_status status;
            hf_record_status(&page->of[i], &world, &status);
            if (hf_record_is_listed(which->filter, status.state))
                stop = fn(arg, &status);
        }
    } while (r >= 0 && !stop && page->more);
    free(page);
    return r < 0 ? r : 0;
}

/* ---- totals --------------------------------------------------------------------------------- */

static int count_state(struct hf_etcd *s, const char *state, int64_t *ret, struct hf_error *err)
{
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, from, "st/%s/", state);
    hf_etcd_key(s, to, "st/%s0", state);
    struct hf_etcd_span span = {.from = from, .to = to, .count_only = true};
    int r = hf_etcd_read(s, &span, &page, err);
    if (r < 0)
        return r;
    *ret = page.count;
    hf_etcd_page_clear(&page);
    return 0;
}

int hf_etcd_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    struct hf_totals sum = {0};
    struct page *page = malloc(sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf_etcd_key(s, page->from, "lock/");
    hf_etcd_key(s, page->to, "lock0");
    int r;
    do {
        r = read_locks(s, page, err);
        for (size_t i = 0; r >= 0 && i < page->n; i++)
            hf_record_add_counts(&sum, &page->of[i].counts);
    } while (r >= 0 && page->more);
    free(page);
    if (r >= 0)
        r = count_state(s, "PENDING", &sum.executions_pending, err);
    if (r >= 0)
        r = count_state(s, "RUNNING", &sum.executions_running, err);
    if (r >= 0)
        *ret = sum;
    return r;
}

/* ---- who runs what -------------------------------------------------------------------------- */

enum { RUNNERS_LOOKED_AT = 60 };

/* The keys of what the values of a page name, to be read at once. */
static size_t spans_of(struct hf_etcd *s, const struct hf_etcd_page *page,
                       char (*keys)[HF_ETCD_KEY_MAX], struct hf_etcd_span *spans)
{
    size_t n = 0;
    for (; n < page->n && n < RUNNERS_LOOKED_AT; n++) {
        hf_etcd_key(s, keys[n], "exec/%.36s", page->of[n].value);
        spans[n] = (struct hf_etcd_span){.from = keys[n]};
    }
    return n;
}

/* The locks of the executions that were read; what is gone leaves none. */
static size_t lock_spans_of(struct hf_etcd *s, struct hf_etcd_page *pages, size_t n,
                            char (*keys)[HF_ETCD_KEY_MAX], struct hf_etcd_span *spans)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        struct hf_etcd_stored x;
        if (pages[i].n) {
            hf_etcd_take_execution(&pages[i].of[0], &x);
            hf_etcd_key(s, keys[found], "lock/%s", x.x.lock);
            spans[found] = (struct hf_etcd_span){.from = keys[found]};
            found++;
        }
        hf_etcd_page_clear(&pages[i]);
    }
    return found;
}

static bool is_listed(const struct hf_processes *all, size_t n, const struct hf_processes *one)
{
    for (size_t i = 0; i < n; i++)
        if (all[i].n == one->n && all[i].pid_namespace == one->pid_namespace &&
            memcmp(all[i].of, one->of, one->n * sizeof one->of[0]) == 0)
            return true;
    return false;
}

/* Those of this boot, each once. */
static size_t take_runners(struct hf_etcd_page *pages, size_t n, struct hf_record *rec,
                           struct hf_processes *ret, size_t max)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        struct hf_etcd_row row = {0};
        memset(rec, 0, sizeof *rec);
        if (pages[i].n)
            hf_etcd_take_record(&pages[i].of[0], true, 0, rec, &row);
        hf_etcd_page_clear(&pages[i]);
        const struct hf_processes *bound = &rec->grant.bound;
        if (found < max && rec->grant.held && rec->grant.execution_id[0] && bound->n &&
            strcmp(bound->boot, hf_boot_id()) == 0 && !is_listed(ret, found, bound))
            ret[found++] = *bound;
    }
    return found;
}

struct runners {
    char keys[RUNNERS_LOOKED_AT][HF_ETCD_KEY_MAX];
    struct hf_etcd_span spans[RUNNERS_LOOKED_AT];
    struct hf_etcd_page pages[RUNNERS_LOOKED_AT];
    struct hf_record rec;
};

static int find_runners(struct hf_etcd *s, struct runners *w, const struct hf_etcd_page *running,
                        struct hf_processes *ret, size_t max, size_t *ret_n, struct hf_error *err)
{
    size_t n = spans_of(s, running, w->keys, w->spans);
    int r = n ? hf_etcd_read_all(s, w->spans, n, w->pages, err) : 0;
    if (r < 0)
        return r;
    n = lock_spans_of(s, w->pages, n, w->keys, w->spans);
    if (n && (r = hf_etcd_read_all(s, w->spans, n, w->pages, err)) < 0)
        return r;
    *ret_n = take_runners(w->pages, n, &w->rec, ret, max);
    return 0;
}

int hf_etcd_runners(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                    struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page running;
    hf_etcd_key(s, from, "st/RUNNING/");
    hf_etcd_key(s, to, "st/RUNNING0");
    struct hf_etcd_span span = {
        .from = from, .to = to, .limit = RUNNERS_LOOKED_AT, .descending = true};
    struct runners *w = calloc(1, sizeof *w);
    if (!w)
        return hf_fail(err, HF_NOMEM, "out of memory");
    int r = hf_etcd_read(s, &span, &running, err);
    if (r >= 0) {
        r = find_runners(s, w, &running, ret, max, ret_n, err);
        hf_etcd_page_clear(&running);
    }
    free(w);
    return r;
}
