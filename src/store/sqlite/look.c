#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "sqlite_store.h"

enum { PAGE = 64 };

/* ---- list ----------------------------------------------------------------------------------- */

struct list_page {
    enum hf_list_filter filter;
    char from[HF_NAME_MAX + 2]; /* the first name that may come next */
    char end[HF_NAME_MAX + 1];  /* the first one behind the prefix's; empty: none */
    struct hf_status found[PAGE];
    size_t n_found;
    bool more;
};

static void bind_range(sqlite3_stmt *stmt, const struct list_page *page)
{
    sqlite3_bind_text(stmt, 1, page->from, -1, SQLITE_STATIC);
    if (page->end[0])
        sqlite3_bind_text(stmt, 2, page->end, -1, SQLITE_STATIC);
    else
        sqlite3_bind_zeroblob(stmt, 2, 0); /* greater than any text */
    sqlite3_bind_int(stmt, 3, page->filter == HF_LIST_ALL);
    sqlite3_bind_int(stmt, 4, PAGE);
}

/* Names have no control characters: nothing lies between a name and this. */
static void go_behind(struct list_page *page, const char *name)
{
    snprintf(page->from, sizeof page->from, "%s\x01", name);
}

static int read_page(struct hf_sqlite *s, struct list_page *page, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_LOCK_PAGE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_record_world rw = {&s->base, &hf_sqlite_record_ops};
    struct hf_world world = hf_record_world_now(&rw);
    char last[HF_NAME_MAX + 1] = "";
    bind_range(stmt, page);
    page->n_found = 0;
    int r, n = 0;
    while ((r = hf_sqlite_row(s, stmt, err)) > 0 && n < PAGE) {
        n++;
        struct hf_record rec = {0};
        struct hf_status *status = &page->found[page->n_found];
        hf_sqlite_take_record(s, stmt, &rec);
        hf_record_status(&rec, &world, status);
        page->n_found += hf_record_is_listed(page->filter, status->state);
        memcpy(last, rec.name, sizeof last);
    }
    page->more = n == PAGE;
    go_behind(page, last);
    return r;
}

int hf_sqlite_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn,
                   void *arg, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    size_t n = strlen(which->prefix);
    struct list_page *page = calloc(1, sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    page->filter = which->filter;
    if (n) {
        memcpy(page->from, which->prefix, n);
        memcpy(page->end, which->prefix, n);
        page->end[n - 1]++; /* UTF-8 has no 0xff */
    }
    if (*which->after && strcmp(which->after, which->prefix) >= 0)
        go_behind(page, which->after);
    int r, stop = 0;
    do {
        pthread_mutex_lock(&s->mutex);
        r = read_page(s, page, err);
        pthread_mutex_unlock(&s->mutex);
        for (size_t i = 0; r >= 0 && !stop && i < page->n_found; i++)
            stop = fn(arg, &page->found[i]);
    } while (r >= 0 && !stop && page->more);
    free(page);
    return r < 0 ? r : 0;
}

int hf_sqlite_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_TOTALS, err);
    int r = stmt ? hf_sqlite_row(s, stmt, err) : -HF_UNAVAILABLE;
    if (r > 0) {
        struct hf_sqlite_cursor from = {stmt, 0};
        *ret = (struct hf_totals){0};
        int64_t *const sums[] = {&ret->acquire_granted,
                                 &ret->acquire_held,
                                 &ret->release_done,
                                 &ret->release_lost,
                                 &ret->takeover_expired,
                                 &ret->takeover_holder_died,
                                 &ret->takeover_rebooted,
                                 &ret->forced,
                                 &ret->lost,
                                 &ret->executions_pending,
                                 &ret->executions_running};
        for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
            *sums[i] = hf_sqlite_take_int(&from);
        sqlite3_reset(stmt);
    }
    pthread_mutex_unlock(&s->mutex);
    return r < 0 ? r : 0;
}

/* ---- events --------------------------------------------------------------------------------- */

static void take_event(sqlite3_stmt *stmt, struct hf_event *ret)
{
    struct hf_sqlite_cursor from = {stmt, 0};
    char kind[16];
    ret->seq = hf_sqlite_take_int(&from);
    ret->at_ms = hf_sqlite_take_int(&from);
    hf_sqlite_take_text(&from, kind, sizeof kind);
    ret->kind = 0;
    for (int i = 0; i < HF_EV_COUNT; i++)
        if (strcmp(kind, hf_event_kind_name((enum hf_event_kind)i)) == 0)
            ret->kind = (enum hf_event_kind)i;
    hf_sqlite_take_text(&from, ret->name, sizeof ret->name);
    ret->fence = hf_sqlite_take_int(&from);
    hf_sqlite_take_text(&from, ret->owner, sizeof ret->owner);
    hf_sqlite_take_text(&from, ret->execution_id, sizeof ret->execution_id);
    hf_sqlite_take_text(&from, ret->reason, sizeof ret->reason);
    hf_sqlite_take_text(&from, ret->detail, sizeof ret->detail);
}

struct event_page {
    struct hf_event found[PAGE];
    size_t n_found;
};

/* One number, or 0 where there is none. */
static int read_seq(struct hf_sqlite *s, sqlite3_stmt *stmt, int64_t *ret, struct hf_error *err)
{
    *ret = 0;
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    *ret = sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    return 0;
}

/* With a limit only the newest count: start just before the oldest of those. */
static int skip_to_newest(struct hf_sqlite *s, const struct hf_event_query *query,
                          int64_t *ret_after, struct hf_error *err)
{
    int64_t first;
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EVENT_NEWEST, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, query->after_seq);
    sqlite3_bind_int64(stmt, 2, query->since_ms);
    sqlite3_bind_int64(stmt, 3, query->limit - 1);
    int r = read_seq(s, stmt, &first, err);
    *ret_after = r >= 0 && first ? first - 1 : query->after_seq;
    return r;
}

static int read_events(struct hf_sqlite *s, int64_t after, int64_t since_ms,
                       struct event_page *page, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EVENT_PAGE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, after);
    sqlite3_bind_int64(stmt, 2, since_ms);
    sqlite3_bind_int(stmt, 3, PAGE);
    page->n_found = 0;
    int r;
    while ((r = hf_sqlite_row(s, stmt, err)) > 0 && page->n_found < PAGE)
        take_event(stmt, &page->found[page->n_found++]);
    sqlite3_reset(stmt);
    return r < 0 ? r : 0;
}

static int events_of_all(struct hf_sqlite *s, const struct hf_event_query *query, hf_event_fn fn,
                         void *arg, struct event_page *page, struct hf_error *err)
{
    int64_t after = query->after_seq;
    int r = 0, stop = 0;
    if (query->limit > 0) {
        pthread_mutex_lock(&s->mutex);
        r = skip_to_newest(s, query, &after, err);
        pthread_mutex_unlock(&s->mutex);
    }
    page->n_found = PAGE;
    while (r >= 0 && !stop && page->n_found == PAGE) {
        pthread_mutex_lock(&s->mutex);
        r = read_events(s, after, query->since_ms, page, err);
        pthread_mutex_unlock(&s->mutex);
        for (size_t i = 0; r >= 0 && !stop && i < page->n_found; i++) {
            after = page->found[i].seq;
            stop = fn(arg, &page->found[i]);
        }
    }
    return r;
}

/* ---- the story of one name ------------------------------------------------------------------ */

struct chain {
    int64_t *seqs; /* newest first */
    size_t n, size;
};

static int add_link(struct chain *chain, int64_t seq, struct hf_error *err)
{
    if (chain->n == chain->size) {
        size_t size = chain->size ? 2 * chain->size : PAGE;
        int64_t *seqs = realloc(chain->seqs, size * sizeof *seqs);
        if (!seqs)
            return hf_fail(err, HF_NOMEM, "out of memory");
        chain->seqs = seqs;
        chain->size = size;
    }
    chain->seqs[chain->n++] = seq;
    return 0;
}

/* From the name's newest event back, as far as events are kept and the query asks. */
static int follow(struct hf_sqlite *s, const struct hf_event_query *query, struct chain *chain,
                  struct hf_error *err)
{
    sqlite3_stmt *last = hf_sqlite_stmt(s, HF_STMT_LAST_EVENT, err);
    sqlite3_stmt *link = hf_sqlite_stmt(s, HF_STMT_EVENT_LINK, err);
    if (!last || !link)
        return -HF_UNAVAILABLE;
    int64_t seq;
    sqlite3_bind_text(last, 1, query->name, -1, SQLITE_STATIC);
    int r = read_seq(s, last, &seq, err);
    while (r >= 0 && seq > query->after_seq &&
           (query->limit <= 0 || (int64_t)chain->n < query->limit)) {
        sqlite3_bind_int64(link, 1, seq);
        if ((r = hf_sqlite_row(s, link, err)) <= 0)
            break; /* pruned */
        int64_t at_ms = sqlite3_column_int64(link, 0), prev = sqlite3_column_int64(link, 1);
        sqlite3_reset(link);
        if (at_ms >= query->since_ms)
            r = add_link(chain, seq, err);
        seq = prev < seq ? prev : 0;
    }
    return r < 0 ? r : 0;
}

/* Fill a page with the oldest events left in the chain. */
static int read_links(struct hf_sqlite *s, struct chain *chain, struct event_page *page,
                      struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EVENT, err);
    int r = stmt ? 0 : -HF_UNAVAILABLE;
    page->n_found = 0;
    while (r >= 0 && page->n_found < PAGE && chain->n) {
        sqlite3_bind_int64(stmt, 1, chain->seqs[--chain->n]);
        if ((r = hf_sqlite_row(s, stmt, err)) <= 0)
            continue; /* pruned meanwhile */
        take_event(stmt, &page->found[page->n_found++]);
        sqlite3_reset(stmt);
    }
    return r;
}

static int events_of_name(struct hf_sqlite *s, const struct hf_event_query *query, hf_event_fn fn,
                          void *arg, struct event_page *page, struct hf_error *err)
{
    struct chain chain = {0};
    int stop = 0;
    pthread_mutex_lock(&s->mutex);
    int r = follow(s, query, &chain, err);
    pthread_mutex_unlock(&s->mutex);
    while (r >= 0 && !stop && chain.n) {
        pthread_mutex_lock(&s->mutex);
        r = read_links(s, &chain, page, err);
        pthread_mutex_unlock(&s->mutex);
        for (size_t i = 0; r >= 0 && !stop && i < page->n_found; i++)
            stop = fn(arg, &page->found[i]);
    }
    free(chain.seqs);
    return r < 0 ? r : 0;
}

int hf_sqlite_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                     void *arg, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct event_page *page = malloc(sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    int r = query->name ? events_of_name(s, query, fn, arg, page, err)
                        : events_of_all(s, query, fn, arg, page, err);
    free(page);
    return r;
}
