/*
 * Which executions are due, parked or in the way. Nothing here reads more than it answers: where
 * many wait that are not due yet, or are parked, or whose workflow is full, they are stepped over as
 * a whole. So each search goes from priority to priority, from the highest one down, and within one
 * from the longest due; and where not every workflow may be taken, from group to group of those that
 * have workflow, limit and to_verify in common.
 */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "sqlite_store.h"

/* ---- from priority to priority -------------------------------------------------------------- */

/* The first number of a bound statement's row; false: it is NULL, or there is no row. */
static int read_number(struct hf_sqlite *s, sqlite3_stmt *stmt, int64_t *ret, bool *ret_there,
                       struct hf_error *err)
{
    int r = hf_sqlite_row(s, stmt, err);
    *ret_there = r > 0 && sqlite3_column_type(stmt, 0) != SQLITE_NULL;
    if (*ret_there)
        *ret = sqlite3_column_int64(stmt, 0);
    if (r > 0)
        sqlite3_reset(stmt);
    return r < 0 ? r : 0;
}

/* Those that have this in common; workflow NULL: all that no limit concerns. */
struct group {
    const char *workflow;
    int64_t concurrency, to_verify;
};

/* Bind what the group's statements begin with. */
static void put_group(struct hf_sqlite_cursor *to, const struct group *g)
{
    if (!g->workflow)
        return;
    hf_sqlite_put_text(to, g->workflow);
    hf_sqlite_put_int(to, g->concurrency);
    hf_sqlite_put_int(to, g->to_verify);
}

/* The next priority of the group below *priority, which it replaces. */
static int next_priority(struct hf_sqlite *s, const struct group *g, int64_t *priority,
                         bool *ret_there, struct hf_error *err)
{
    sqlite3_stmt *stmt =
        hf_sqlite_stmt(s, g->workflow ? HF_STMT_GROUP_PRIORITY : HF_STMT_PLAIN_PRIORITY, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    put_group(&to, g);
    hf_sqlite_put_int(&to, *priority);
    return read_number(s, stmt, priority, ret_there, err);
}

/* ---- the best so far ------------------------------------------------------------------------ */

struct candidate {
    int64_t priority, run_at, seq;
};

/* The first `n` of at most `size`, in their order. */
struct best {
    struct candidate *of;
    size_t n, size;
};

static bool goes_before(const struct candidate *a, const struct candidate *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->run_at != b->run_at ? a->run_at < b->run_at : a->seq < b->seq;
}

/* False: there are enough that go before it, and so before all behind it. */
static bool consider(struct best *best, const struct candidate *c)
{
    size_t at = best->n;
    while (at > 0 && goes_before(c, &best->of[at - 1]))
        at--;
    if (at == best->size)
        return false;
    best->n += best->n < best->size;
    memmove(&best->of[at + 1], &best->of[at], (best->n - at - 1) * sizeof *best->of);
    best->of[at] = *c;
    return true;
}

/* Consider those of one priority, the longest due first. */
static int consider_priority(struct hf_sqlite *s, const struct group *g, int64_t priority,
                             int64_t wall_ms, struct best *best, bool *ret_more,
                             struct hf_error *err)
{
    sqlite3_stmt *stmt =
        hf_sqlite_stmt(s, g->workflow ? HF_STMT_GROUP_DUE : HF_STMT_PLAIN_DUE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    struct hf_sqlite_cursor to = {stmt, 1};
    put_group(&to, g);
    hf_sqlite_put_int(&to, priority);
    hf_sqlite_put_int(&to, wall_ms);
    hf_sqlite_put_int(&to, (int64_t)best->size);
    int r = 0;
    while (*ret_more && (r = hf_sqlite_row(s, stmt, err)) > 0) {
        struct candidate c = {priority, sqlite3_column_int64(stmt, 1),
                              sqlite3_column_int64(stmt, 0)};
        *ret_more = consider(best, &c);
    }
    sqlite3_reset(stmt);
    return r < 0 ? r : 0;
}

static int consider_group(struct hf_sqlite *s, const struct group *g, int64_t wall_ms,
                          struct best *best, struct hf_error *err)
{
    int64_t priority = INT64_MAX;
    bool more = true;
    for (;;) {
        int r = next_priority(s, g, &priority, &more, err);
        struct candidate first = {priority, INT64_MIN, 0};
        if (r < 0 || !more ||
            (best->n == best->size && goes_before(&best->of[best->n - 1], &first)))
            return r;
        if ((r = consider_priority(s, g, priority, wall_ms, best, &more, err)) < 0 || !more)
            return r;
    }
}

/* ---- from group to group -------------------------------------------------------------------- */

static int count_running(struct hf_sqlite *s, const char *workflow, const char *but, int64_t most,
                         int64_t *ret, struct hf_error *err)
{
    bool there;
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_RUNNING_COUNT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, workflow, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, but, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, most);
    return read_number(s, stmt, ret, &there, err);
}

/* A walk through groups: of one workflow, or of all those that a limit concerns. */
struct walk {
    struct group at;
    char workflow[HF_NAME_MAX + 1];
    bool of_any;
};

static void begin_walk(struct walk *w, const char *workflow)
{
    *w = (struct walk){.of_any = !workflow};
    strncpy(w->workflow, workflow ? workflow : "", sizeof w->workflow - 1);
    w->at = (struct group){w->workflow, -1, 0};
}

/* 1: w->at is the next one, 0: there is none. */
static int next_group(struct hf_sqlite *s, struct walk *w, struct hf_error *err)
{
    sqlite3_stmt *stmt =
        hf_sqlite_stmt(s, w->of_any ? HF_STMT_GROUP_OF_ANY : HF_STMT_GROUP_OF_ONE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, w->workflow, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 2, w->at.concurrency);
    sqlite3_bind_int64(stmt, 3,
                       w->at.to_verify + 1); /* SQLite would walk through those before it */
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    struct hf_sqlite_cursor from = {stmt, 0};
    char workflow[HF_NAME_MAX + 1];
    hf_sqlite_take_text(&from, workflow, sizeof workflow);
    w->at.concurrency = hf_sqlite_take_int(&from);
    w->at.to_verify = hf_sqlite_take_int(&from);
    sqlite3_reset(stmt);
    memcpy(w->workflow, workflow, sizeof w->workflow);
    return 1;
}

/* May those of this group be claimed now? */
static int may_be_claimed(struct hf_sqlite *s, const struct group *g, bool verifies, bool *ret,
                          struct hf_error *err)
{
    int64_t running = 0;
    int r = 0;
    *ret = verifies || !g->to_verify;
    if (*ret && g->concurrency > 0) {
        r = count_running(s, g->workflow, "", g->concurrency, &running, err);
        *ret = running < g->concurrency;
    }
    return r;
}

static int consider_groups(struct hf_sqlite *s, const char *workflow, const struct hf_due *due,
                           struct best *best, struct hf_error *err)
{
    struct walk w;
    int r;
    begin_walk(&w, workflow);
    while ((r = next_group(s, &w, err)) > 0) {
        bool claimable;
        r = may_be_claimed(s, &w.at, due->verifies, &claimable, err);
        if (r >= 0 && claimable)
            r = consider_group(s, &w.at, due->wall_ms, best, err);
        if (r < 0)
            return r;
    }
    return r;
}

/* ---- due ------------------------------------------------------------------------------------ */

/* Each workflow once, however often it was named. */
static int consider_workflows(struct hf_sqlite *s, const struct hf_due *due, struct best *best,
                              struct hf_error *err)
{
    size_t n = 0;
    int r = 0;
    const char **workflows = hf_due_workflows(due, &n);
    if (!workflows)
        return hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = consider_groups(s, workflows[i], due, best, err);
    free(workflows);
    return r;
}

static int find_best(struct hf_sqlite *s, const struct hf_due *due, struct best *best,
                     struct hf_error *err)
{
    static const struct group plain = {0};
    if (due->n_workflows)
        return consider_workflows(s, due, best, err);
    int r = consider_group(s, &plain, due->wall_ms, best, err);
    return r < 0 ? r : consider_groups(s, NULL, due, best, err);
}

static int read_best(struct hf_sqlite *s, const struct best *best, size_t skip,
                     struct hf_execution *ret, size_t *ret_n, struct hf_error *err)
{
    size_t n = 0;
    for (size_t i = skip; i < best->n; i++) {
        int r = hf_sqlite_execution_at(s, best->of[i].seq, &ret[n], err);
        if (r < 0)
            return r;
        n += r > 0;
    }
    *ret_n = n;
    return 0;
}

/* All of it as it is at one moment. */
static int read_due(struct hf_sqlite *s, const struct hf_due *due, struct best *best,
                    struct hf_execution *ret, size_t *ret_n, struct hf_error *err)
{
    sqlite3_stmt *begin = hf_sqlite_stmt(s, HF_STMT_READ, err);
    sqlite3_stmt *end = hf_sqlite_stmt(s, HF_STMT_COMMIT, err);
    int r = begin && end ? hf_sqlite_run(s, begin, err) : -HF_UNAVAILABLE;
    if (r < 0)
        return r;
    r = find_best(s, due, best, err);
    if (r >= 0)
        r = read_best(s, best, due->skip, ret, ret_n, err);
    hf_sqlite_run(s, end, NULL);
    return r;
}

int hf_sqlite_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
                  size_t *ret_n, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    struct best best = {.size = due->skip + due->limit};
    *ret_n = 0;
    if (!due->limit)
        return 0;
    best.of = malloc(best.size * sizeof *best.of);
    if (!best.of)
        return hf_fail(err, HF_NOMEM, "out of memory");
    pthread_mutex_lock(&s->mutex);
    int r = read_due(s, due, &best, ret, ret_n, err);
    pthread_mutex_unlock(&s->mutex);
    free(best.of);
    return r;
}

/* ---- the next that falls due ---------------------------------------------------------------- */

static int earlier_of_group(struct hf_sqlite *s, const struct group *g, int64_t wall_ms,
                            int64_t *next_ms, struct hf_error *err)
{
    int64_t priority = INT64_MAX, at_ms = 0;
    bool there = true;
    int r;
    while ((r = next_priority(s, g, &priority, &there, err)) >= 0 && there) {
        sqlite3_stmt *stmt =
            hf_sqlite_stmt(s, g->workflow ? HF_STMT_GROUP_NEXT : HF_STMT_PLAIN_NEXT, err);
        if (!stmt)
            return -HF_UNAVAILABLE;
        struct hf_sqlite_cursor to = {stmt, 1};
        put_group(&to, g);
        hf_sqlite_put_int(&to, priority);
        hf_sqlite_put_int(&to, wall_ms);
        bool found;
        if ((r = read_number(s, stmt, &at_ms, &found, err)) < 0)
            return r;
        if (found && (!*next_ms || at_ms < *next_ms))
            *next_ms = at_ms;
    }
    return r;
}

static int earlier_of_groups(struct hf_sqlite *s, const char *workflow, int64_t wall_ms,
                             int64_t *next_ms, struct hf_error *err)
{
    struct walk w;
    int r = 0;
    begin_walk(&w, workflow);
    while (r >= 0 && (r = next_group(s, &w, err)) > 0)
        r = earlier_of_group(s, &w.at, wall_ms, next_ms, err);
    return r;
}

int hf_sqlite_next_due(struct hf_sqlite *s, const struct hf_due *wanted, int64_t *ret,
                       struct hf_error *err)
{
    static const struct group plain = {0};
    int r = 0;
    *ret = 0;
    for (size_t i = 0; r >= 0 && i < wanted->n_workflows; i++)
        r = earlier_of_groups(s, wanted->workflows[i], wanted->wall_ms, ret, err);
    if (wanted->n_workflows)
        return r;
    r = earlier_of_group(s, &plain, wanted->wall_ms, ret, err);
    return r < 0 ? r : earlier_of_groups(s, NULL, wanted->wall_ms, ret, err);
}

/* ---- those of one lock ---------------------------------------------------------------------- */

/* What is done with each priority of a lock's executions, parked or not. Not 0: that was enough. */
typedef int waiting_fn(struct hf_sqlite *s, const char *lock, bool parked, int64_t priority,
                       void *arg, struct hf_error *err);

static sqlite3_stmt *waiting_stmt(struct hf_sqlite *s, enum hf_sqlite_stmt which, const char *lock,
                                  bool parked, int64_t priority, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, which, err);
    if (!stmt)
        return NULL;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, lock);
    hf_sqlite_put_int(&to, parked);
    hf_sqlite_put_int(&to, priority);
    return stmt;
}

static int each_priority(struct hf_sqlite *s, const char *lock, bool parked, waiting_fn *fn,
                         void *arg, struct hf_error *err)
{
    int64_t priority = INT64_MAX;
    for (;;) {
        bool there;
        sqlite3_stmt *stmt = waiting_stmt(s, HF_STMT_WAITING_PRIORITY, lock, parked, priority, err);
        int r = stmt ? read_number(s, stmt, &priority, &there, err) : -HF_UNAVAILABLE;
        if (r < 0 || !there || (r = fn(s, lock, parked, priority, arg, err)) != 0)
            return r < 0 ? r : 0;
    }
}

static int each_waiting(struct hf_sqlite *s, const char *lock, waiting_fn *fn, void *arg,
                        struct hf_error *err)
{
    int r = each_priority(s, lock, false, fn, arg, err);
    return r < 0 ? r : each_priority(s, lock, true, fn, arg, err);
}

struct waiting {
    int64_t wall_ms;
    bool to_verify; /* those that are to be verified count as well */
    int64_t most, n;
    struct candidate first;
    char *first_id;
};

static int find_first(struct hf_sqlite *s, const char *lock, bool parked, int64_t priority,
                      void *arg, struct hf_error *err)
{
    struct waiting *w = arg;
    sqlite3_stmt *stmt = waiting_stmt(s, HF_STMT_WAITING_FIRST, lock, parked, priority, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 4, w->wall_ms);
    sqlite3_bind_int(stmt, 5, w->to_verify);
    int r = hf_sqlite_row(s, stmt, err);
    if (r <= 0)
        return r;
    struct candidate c = {priority, sqlite3_column_int64(stmt, 1), sqlite3_column_int64(stmt, 2)};
    struct hf_sqlite_cursor from = {stmt, 0};
    if (!w->first_id[0] || goes_before(&c, &w->first)) {
        w->first = c;
        hf_sqlite_take_text(&from, w->first_id, HF_UUID_LEN + 1);
    }
    sqlite3_reset(stmt);
    return 1;
}

static int count_waiting(struct hf_sqlite *s, const char *lock, bool parked, int64_t priority,
                         void *arg, struct hf_error *err)
{
    struct waiting *w = arg;
    int64_t n = 0;
    bool there;
    sqlite3_stmt *stmt = waiting_stmt(s, HF_STMT_WAITING_COUNT, lock, parked, priority, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 4, w->wall_ms);
    sqlite3_bind_int64(stmt, 5, w->most - w->n);
    int r = read_number(s, stmt, &n, &there, err);
    w->n += n;
    return r < 0 ? r : w->n >= w->most;
}

int hf_sqlite_count(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                    struct hf_ask *ask, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    int64_t running = 0;
    int r = 0;
    if (wanted->running_of)
        r = count_running(s, wanted->running_of, ask->has_found ? ask->found.id : "",
                          wanted->running_max, &running, err);
    ask->n_running = (int32_t)running;
    struct waiting w = {.wall_ms = wall_ms,
                        .to_verify = wanted->waiting == HF_WAITING_FIRST,
                        .most = wanted->waiting_max,
                        .first_id = ask->waiting_id};
    ask->waiting_id[0] = '\0';
    if (r >= 0 && wanted->waiting != HF_WAITING_NOT)
        r = each_waiting(s, ask->req->name,
                         wanted->waiting == HF_WAITING_COUNT ? count_waiting : find_first, &w, err);
    ask->n_waiting = (int32_t)w.n;
    return r;
}

static int replace_priority(struct hf_sqlite *s, const char *lock, bool parked, int64_t priority,
                            void *arg, struct hf_error *err)
{
    const struct hf_execution *like = arg;
    sqlite3_stmt *stmt = waiting_stmt(s, HF_STMT_REPLACE, lock, parked, priority, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 4, like->finished_at_ms);
    sqlite3_bind_text(stmt, 5, like->reason, -1, SQLITE_STATIC);
    return hf_sqlite_run(s, stmt, err);
}

int hf_sqlite_replace(struct hf_sqlite *s, const char *name, const struct hf_effects *fx,
                      struct hf_error *err)
{
    struct hf_execution like = {.state = HF_PENDING};
    hf_execution_replace(&like, fx->replaced_by, fx->replaced_at_ms);
    return each_waiting(s, name, replace_priority, &like, err);
}

static int park_priority(struct hf_sqlite *s, const char *lock, bool parked, int64_t priority,
                         void *arg, struct hf_error *err)
{
    struct waiting *w = arg;
    sqlite3_stmt *stmt = waiting_stmt(s, HF_STMT_PARK, lock, parked, priority, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 4, w->wall_ms);
    sqlite3_bind_int64(stmt, 5, w->most - w->n);
    int r = hf_sqlite_run(s, stmt, err);
    w->n += sqlite3_changes(s->db);
    return r < 0 ? r : w->n >= w->most;
}

int hf_sqlite_park(struct hf_sqlite *s, const char *name, const struct hf_effects *fx,
                   struct hf_error *err)
{
    struct waiting w = {.wall_ms = fx->park_due_ms, .most = HF_PARKED_AT_ONCE};
    return each_priority(s, name, false, park_priority, &w, err);
}
