#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "postgres_store.h"

enum {
    PAGE = 256,
    UNSETTLED_MS =
        2000, /* how long an event may wait for one with a lower number to be committed */
    UNSETTLED_POLL_MS = 20
};

#define LAST_CHARACTER "\xf4\x8f\xbf\xbf" /* of Unicode, in UTF-8 */

/* ---- list ----------------------------------------------------------------------------------- */

struct list_page {
    enum hf_list_filter filter;
    char after[HF_NAME_MAX + 1];
    const char *prefix;
    char end[5 * HF_NAME_MAX + 1]; /* nothing that begins with the prefix is behind it */
    struct hf_status found[PAGE];
    size_t n_found;
    bool more;
};

static void take_status(struct hf_pg_cursor at, struct hf_status *ret)
{
    struct hf_pg_lock lock = {0};
    char processes[HF_PROCESSES_TEXT_MAX];
    *ret = (struct hf_status){0};
    hf_pg_take_text(&at, ret->name, sizeof ret->name);
    lock.held = hf_pg_take_bool(&at);
    lock.fence = hf_pg_take_int(&at);
    lock.now_ms = hf_pg_take_int(&at);
    lock.locked_at_ms = hf_pg_take_int(&at);
    lock.locked_until_ms = hf_pg_take_int(&at);
    lock.waiters = (uint32_t)hf_pg_take_int(&at);
    hf_pg_take_text(&at, processes, sizeof processes);
    hf_processes_parse(processes, &lock.bound);
    hf_pg_take_text(&at, ret->owner, sizeof ret->owner);
    hf_pg_take_text(&at, ret->note, sizeof ret->note);
    hf_pg_take_text(&at, ret->execution_id, sizeof ret->execution_id);
    lock.ended = hf_pg_take_bool(&at);
    hf_pg_status(&lock, ret);
}

static bool is_listed(enum hf_list_filter filter, enum hf_lock_state state)
{
    return filter == HF_LIST_ALL || (filter == HF_LIST_HELD && state != HF_STATE_FREE) ||
           (filter == HF_LIST_STALE && state == HF_STATE_STALE);
}

static int read_page(struct hf_postgres *s, struct list_page *page, struct hf_error *err)
{
    static const char sql[] =
        "SELECT l.name, l.lock_id IS NOT NULL, l.fence, holdfast.ms(holdfast.clock()),"
        " holdfast.ms(l.locked_at), holdfast.ms(l.locked_until),"
        " l.waiters, h.processes, h.owner, h.note, h.execution_id::text, h.execution_id IS NOT NULL"
        " AND NOT EXISTS (SELECT FROM holdfast.execution x WHERE x.id = h.execution_id"
        " AND x.state = 'RUNNING')"
        " FROM holdfast.lock l"
        " LEFT JOIN LATERAL (SELECT l.*) h ON h.lock_id IS NOT NULL" /* else it is the last one's */
        " WHERE l.name > $1 AND l.name >= $2 AND l.name < $3"
        " AND ($4 OR l.lock_id IS NOT NULL) ORDER BY l.name LIMIT $5";
    struct hf_pg_statement st = {.sql = sql};
    PGresult *result;
    hf_pg_bind_text(&st, page->after);
    hf_pg_bind_text(&st, page->prefix);
    hf_pg_bind_text(&st, page->end);
    hf_pg_bind_as(&st, HF_PG_BOOL, page->filter == HF_LIST_ALL ? "t" : "f");
    hf_pg_bind_int(&st, HF_PG_INT8, PAGE);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    int n = hf_pq.PQntuples(result);
    page->n_found = 0;
    for (int i = 0; i < n && i < PAGE; i++) {
        struct hf_status *status = &page->found[page->n_found];
        take_status((struct hf_pg_cursor){.result = result, .row = i}, status);
        memcpy(page->after, status->name, sizeof page->after);
        page->n_found += is_listed(page->filter, status->state);
    }
    page->more = n == PAGE;
    hf_pg_clear(&result, 1);
    return 0;
}

int hf_pg_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
               struct hf_error *err)
{
    size_t n = strlen(which->prefix);
    struct list_page *page = calloc(1, sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    page->filter = which->filter;
    page->prefix = which->prefix;
    strcpy(page->after, which->after);
    memcpy(page->end, which->prefix, n);
    for (size_t i = n; i < n + HF_NAME_MAX; i += strlen(LAST_CHARACTER))
        memcpy(page->end + i, LAST_CHARACTER, strlen(LAST_CHARACTER));
    int r, stop = 0;
    do {
        r = read_page(hf_postgres_of(store), page, err);
        for (size_t i = 0; r >= 0 && !stop && i < page->n_found; i++)
            stop = fn(arg, &page->found[i]);
    } while (r >= 0 && !stop && page->more);
    free(page);
    return r;
}

/* ---- totals --------------------------------------------------------------------------------- */

int hf_pg_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    static const char sql[] =
        "SELECT sum(granted)::bigint, (SELECT sum(total)::bigint FROM holdfast.denial),"
        " sum(released)::bigint, sum(release_lost)::bigint, sum(taken_expired)::bigint,"
        " sum(taken_died)::bigint, 0, sum(forced)::bigint, sum(lost)::bigint,"
        " (SELECT count(*) FROM holdfast.pending WHERE seq > 0),"
        " (SELECT count(*) FROM holdfast.running) FROM holdfast.lock";
    struct hf_pg_statement st = {.sql = sql};
    PGresult *result;
    int r = hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    struct hf_pg_cursor at = {.result = result};
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
        *sums[i] = hf_pg_take_int(&at);
    hf_pg_clear(&result, 1);
    return 0;
}

/* ---- events --------------------------------------------------------------------------------- */

static void take_event(struct hf_pg_cursor at, struct hf_event *ret)
{
    char kind[16];
    ret->seq = hf_pg_take_int(&at);
    ret->at_ms = hf_pg_take_int(&at);
    hf_pg_take_text(&at, kind, sizeof kind);
    ret->kind = 0;
    for (int i = 0; i < HF_EV_COUNT; i++)
        if (strcmp(kind, hf_event_kind_name((enum hf_event_kind)i)) == 0)
            ret->kind = (enum hf_event_kind)i;
    hf_pg_take_text(&at, ret->name, sizeof ret->name);
    ret->fence = hf_pg_take_int(&at);
    hf_pg_take_text(&at, ret->owner, sizeof ret->owner);
    hf_pg_take_text(&at, ret->execution_id, sizeof ret->execution_id);
    hf_pg_take_text(&at, ret->reason, sizeof ret->reason);
    hf_pg_take_text(&at, ret->detail, sizeof ret->detail);
}

/* A query as it is sent: events behind `after` up to `last`, the oldest or the newest of them. */
struct event_page {
    const struct hf_event_query *query;
    int64_t after, last, limit;
    struct hf_event found[PAGE];
    size_t n_found;
};

static int read_one_int_pair(struct hf_postgres *s, struct hf_pg_statement *st, int64_t *ret_first,
                             int64_t *ret_second, struct hf_error *err)
{
    PGresult *result;
    int r = hf_pg_exchange(s, st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    struct hf_pg_cursor at = {.result = result};
    bool any = hf_pq.PQntuples(result) > 0;
    *ret_first = any ? hf_pg_take_int(&at) : 0;
    *ret_second = any ? hf_pg_take_int(&at) : 0;
    hf_pg_clear(&result, 1);
    return 0;
}

/*
 * The number of the newest event, once all below it are there. Numbers are given before the
 * transactions commit, in another order: where one is missing, it may be of a transaction that is
 * still on its way. Who follows events would never see it; so we wait for it, but not for long,
 * since what was rolled back leaves a gap too.
 */
static int read_last(struct hf_postgres *s, int64_t after, int64_t *ret, struct hf_error *err)
{
    static const char sql[] =
        "SELECT m.seq, coalesce((SELECT bool_or(e.gap) FROM (SELECT"
        " at > holdfast.clock() - interval '2 s' AND lag(seq) OVER (ORDER BY seq) <> seq - 1 AS gap"
        " FROM holdfast.event WHERE seq > m.seq - 4096) e), false)"
        " FROM (SELECT max(seq) AS seq FROM holdfast.event) m WHERE m.seq > $1";
    int64_t until_ms = hf_pg_now_ms() + UNSETTLED_MS, gap = 0;
    for (;;) {
        struct hf_pg_statement st = {.sql = sql};
        hf_pg_bind_int(&st, HF_PG_INT8, after);
        int r = read_one_int_pair(s, &st, ret, &gap, err);
        if (r < 0 || !gap || hf_pg_now_ms() >= until_ms)
            return r;
        hf_pg_pause(UNSETTLED_POLL_MS);
    }
}

#define EVENTS_WANTED                                                                              \
    " FROM holdfast.event WHERE seq > $1 AND seq <= $2 AND ($3 = '' OR name = $3)"                 \
    " AND ($4 = 0 OR at >= to_timestamp($4 / 1000.0))"

static void bind_wanted(struct hf_pg_statement *st, const struct event_page *page)
{
    hf_pg_bind_int(st, HF_PG_INT8, page->after);
    hf_pg_bind_int(st, HF_PG_INT8, page->last);
    hf_pg_bind_text(st, page->query->name);
    hf_pg_bind_int(st, HF_PG_INT8, page->query->since_ms);
}

/* With a limit only the newest count: start just before the oldest of those. */
static int skip_to_newest(struct hf_postgres *s, struct event_page *page, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT seq, 0" EVENTS_WANTED
                                        " ORDER BY seq DESC OFFSET $5 LIMIT 1"};
    int64_t first, ignored;
    bind_wanted(&st, page);
    hf_pg_bind_int(&st, HF_PG_INT8, page->query->limit - 1);
    int r = read_one_int_pair(s, &st, &first, &ignored, err);
    if (r >= 0 && first)
        page->after = first - 1;
    return r;
}

static int read_events(struct hf_postgres *s, struct event_page *page, struct hf_error *err)
{
    struct hf_pg_statement st = {
        .sql = "SELECT seq, holdfast.ms(at), kind, name, fence, owner, execution_id::text, reason,"
               " detail" EVENTS_WANTED " ORDER BY seq LIMIT $5"};
    PGresult *result;
    bind_wanted(&st, page);
    hf_pg_bind_int(&st, HF_PG_INT8, PAGE);
    int r = hf_pg_exchange(s, &st, 1, false, &result, NULL, err);
    if (r < 0)
        return r;
    page->n_found = (size_t)hf_pq.PQntuples(result);
    for (size_t i = 0; i < page->n_found; i++)
        take_event((struct hf_pg_cursor){.result = result, .row = (int)i}, &page->found[i]);
    hf_pg_clear(&result, 1);
    return 0;
}

int hf_pg_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                 void *arg, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct event_page *page = malloc(sizeof *page);
    if (!page)
        return hf_fail(err, HF_NOMEM, "out of memory");
    page->query = query;
    page->after = query->after_seq;
    page->last = 0;
    int stop = 0, r = read_last(s, query->after_seq, &page->last, err);
    if (r >= 0 && query->limit > 0)
        r = skip_to_newest(s, page, err);
    page->n_found = page->last > page->after ? PAGE : 0;
    while (r >= 0 && !stop && page->n_found == PAGE) {
        r = read_events(s, page, err);
        for (size_t i = 0; r >= 0 && !stop && i < page->n_found; i++) {
            page->after = page->found[i].seq;
            stop = fn(arg, &page->found[i]);
        }
    }
    free(page);
    return r;
}
