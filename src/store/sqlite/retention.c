#include "clock.h"
#include "error.h"
#include "sqlite_store.h"

enum { LOOKS_MAX = 64 }; /* at workflows, before others have their turn */

/* ---- the last key --------------------------------------------------------------------------- */

/* 1: found, 0: there is none. */
static int read_last_key(struct hf_sqlite *s, const char *workflow, const char *from,
                         const char *to, char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_EXECUTION_LAST_KEY, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, workflow, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, from, -1, SQLITE_STATIC);
    sqlite3_bind_text(stmt, 3, to, -1, SQLITE_STATIC);
    int r = hf_sqlite_row(s, stmt, err);
    if (r > 0) {
        hf_sqlite_take_text(&(struct hf_sqlite_cursor){stmt, 0}, ret, HF_KEY_MAX + 1);
        sqlite3_reset(stmt);
    }
    return r;
}

int hf_sqlite_last_key(struct hf_store *store, const char *workflow, const char *from,
                       const char *to, char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    int r = read_last_key(s, workflow, from, to, ret, err);
    pthread_mutex_unlock(&s->mutex);
    return r != 0 ? (r < 0 ? r : 0)
                  : hf_fail(err, HF_NOT_FOUND, "%s has no key from %s to %s", workflow, from, to);
}

/* ---- rules ---------------------------------------------------------------------------------- */

static int read_rule(struct hf_sqlite *s, const char *workflow, struct hf_retention *ret,
                     struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_RETENTION, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, workflow, -1, SQLITE_STATIC);
    int r = hf_sqlite_row(s, stmt, err);
    *ret = (struct hf_retention){.workflow = workflow, .keep_ms = HF_KEEP_DEFAULT_MS};
    if (r > 0) {
        ret->keep_ms = sqlite3_column_int64(stmt, 0);
        ret->keep_count = sqlite3_column_int64(stmt, 1);
        sqlite3_reset(stmt);
    }
    return r < 0 ? r : 0;
}

static int64_t keep_ms_of(const struct hf_retention *rule)
{
    return rule->keep_ms ? rule->keep_ms : HF_KEEP_DEFAULT_MS;
}

/* Is any of them new? */
static int find_new(struct hf_sqlite *s, const struct hf_retention *rules, size_t n, bool *ret,
                    struct hf_error *err)
{
    int r = 0;
    *ret = false;
    for (size_t i = 0; r >= 0 && !*ret && i < n; i++) {
        struct hf_retention known;
        r = read_rule(s, rules[i].workflow, &known, err);
        *ret = r >= 0 &&
               (known.keep_ms != keep_ms_of(&rules[i]) || known.keep_count != rules[i].keep_count);
    }
    return r;
}

static int write_rule(struct hf_sqlite *s, const struct hf_retention *rule, struct hf_error *err)
{
    bool usual = keep_ms_of(rule) == HF_KEEP_DEFAULT_MS && !rule->keep_count;
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, usual ? HF_STMT_RETAIN_NOT : HF_STMT_RETAIN, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, rule->workflow, -1, SQLITE_STATIC);
    if (!usual) {
        sqlite3_bind_int64(stmt, 2, keep_ms_of(rule));
        sqlite3_bind_int64(stmt, 3, rule->keep_count);
    }
    return hf_sqlite_run(s, stmt, err);
}

static int write_rules(struct hf_sqlite *s, const struct hf_retention *rules, size_t n,
                       struct hf_error *err)
{
    int r = hf_sqlite_begin(s, false, err);
    if (r < 0)
        return r;
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = write_rule(s, &rules[i], err);
    if (r >= 0)
        return hf_sqlite_commit(s, err);
    hf_sqlite_rollback(s);
    return r;
}

int hf_sqlite_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                     struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    bool is_new;
    pthread_mutex_lock(&s->mutex);
    int r = find_new(s, rules, n, &is_new, err);
    if (r >= 0 && is_new)
        r = write_rules(s, rules, n, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

/* ---- what is to go -------------------------------------------------------------------------- */

/* Where the newest `keep_count` begin: all up to there is to go. 0: there are not so many. */
static int find_surplus(struct hf_sqlite *s, struct hf_prune_place *place, int64_t keep_count,
                        struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_PRUNE_NEWEST, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, place->workflow, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 2, keep_count);
    int r = hf_sqlite_row(s, stmt, err);
    if (r > 0) {
        int64_t at_ms = sqlite3_column_int64(stmt, 0);
        if (at_ms > place->upto) {
            place->upto = at_ms;
            place->upto_seq = sqlite3_column_int64(stmt, 1);
        }
        sqlite3_reset(stmt);
    }
    return r;
}

/* Go into the workflow that the place is at. */
static int enter(struct hf_sqlite *s, struct hf_prune_place *place, int64_t wall_ms, bool by_count,
                 struct hf_error *err)
{
    struct hf_retention rule;
    int r = read_rule(s, place->workflow, &rule, err);
    if (r < 0)
        return r;
    place->where = HF_PRUNE_WITHIN;
    place->from = INT64_MIN;
    place->upto = wall_ms - rule.keep_ms - 1;
    place->upto_seq = INT64_MAX;
    if (by_count && rule.keep_count)
        r = find_surplus(s, place, rule.keep_count, err);
    return r < 0 ? r : 0;
}

/* PRUNE or PRUNE_FIRST with what they have in common; NULL with `err` filled. */
static sqlite3_stmt *bind_to_go(struct hf_sqlite *s, enum hf_sqlite_stmt which,
                                const struct hf_prune_place *place, const char *kept_key,
                                struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, which, err);
    if (!stmt)
        return NULL;
    struct hf_sqlite_cursor to = {stmt, 1};
    hf_sqlite_put_text(&to, place->workflow);
    hf_sqlite_put_int(&to, place->from);
    hf_sqlite_put_int(&to, place->upto);
    hf_sqlite_put_int(&to, place->upto_seq);
    hf_sqlite_put_text(&to, kept_key);
    return stmt;
}

/* Within a transaction; the number that was removed. */
static int remove_some(struct hf_sqlite *s, const struct hf_prune_place *place, int64_t max,
                       struct hf_error *err)
{
    char kept[HF_KEY_MAX + 1] = "";
    int r = read_last_key(s, place->workflow, HF_PRUNE_KEPT_FROM, HF_PRUNE_KEPT_TO, kept, err);
    sqlite3_stmt *stmt = r < 0 ? NULL : bind_to_go(s, HF_STMT_PRUNE, place, kept, err);
    if (!stmt)
        return r < 0 ? r : -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 6, max);
    r = hf_sqlite_run(s, stmt, err);
    return r < 0 ? r : sqlite3_changes(s->db);
}

/* Is there anything? It moves the place on to that. */
static int find_first(struct hf_sqlite *s, struct hf_prune_place *place, struct hf_error *err)
{
    char kept[HF_KEY_MAX + 1] = "";
    int r = read_last_key(s, place->workflow, HF_PRUNE_KEPT_FROM, HF_PRUNE_KEPT_TO, kept, err);
    sqlite3_stmt *stmt = r < 0 ? NULL : bind_to_go(s, HF_STMT_PRUNE_FIRST, place, kept, err);
    if (!stmt)
        return r < 0 ? r : -HF_UNAVAILABLE;
    if ((r = hf_sqlite_row(s, stmt, err)) > 0) {
        place->from = sqlite3_column_int64(stmt, 0);
        sqlite3_reset(stmt);
    }
    return r;
}

/* ---- pruning -------------------------------------------------------------------------------- */

/* Who only looks disturbs nobody: there is a transaction only where something is to go. */
static int prune_workflow(struct hf_sqlite *s, struct hf_prune_place *place, int64_t max,
                          struct hf_error *err)
{
    int r = find_first(s, place, err);
    if (r <= 0 || (r = hf_sqlite_begin(s, false, err)) < 0)
        return r;
    int n = remove_some(s, place, max, err);
    if (n < 0) {
        hf_sqlite_rollback(s);
        return n;
    }
    return (r = hf_sqlite_commit(s, err)) < 0 ? r : n;
}

/* Go to the next workflow of which something has ended. 0: there is none. */
static int find_next(struct hf_sqlite *s, struct hf_prune_place *place, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_PRUNE_NEXT, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_text(stmt, 1, place->workflow, -1, SQLITE_STATIC);
    int r = hf_sqlite_row(s, stmt, err);
    if (r < 0)
        return r;
    *place = (struct hf_prune_place){.where = r ? HF_PRUNE_AT : HF_PRUNE_BEHIND};
    if (r > 0) {
        hf_sqlite_take_text(&(struct hf_sqlite_cursor){stmt, 0}, place->workflow,
                            sizeof place->workflow);
        sqlite3_reset(stmt);
    }
    return r;
}

static int prune_on(struct hf_sqlite *s, struct hf_prune_place *place, int64_t max,
                    int64_t *ret_removed, struct hf_error *err)
{
    int r = 1;
    for (int looks = 0; looks < LOOKS_MAX && *ret_removed < max; looks++) {
        if (place->where == HF_PRUNE_BEHIND && (r = find_next(s, place, err)) <= 0)
            return r;
        if (place->where == HF_PRUNE_AT && (r = enter(s, place, hf_clock_wall_ms(), true, err)) < 0)
            return r;
        if ((r = prune_workflow(s, place, max - *ret_removed, err)) < 0)
            return r;
        *ret_removed += r;
        if (*ret_removed < max)
            place->where = HF_PRUNE_BEHIND;
    }
    return 0;
}

int hf_sqlite_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                    int64_t *ret_removed, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    *ret_removed = 0;
    int r = prune_on(s, place, max, ret_removed, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

/* ---- along with ordinary writes ------------------------------------------------------------- */

static int prune_once(struct hf_sqlite *s, int64_t wall_ms, int64_t max, struct hf_error *err)
{
    sqlite3_stmt *stmt = hf_sqlite_stmt(s, HF_STMT_PRUNE_ONCE, err);
    if (!stmt)
        return -HF_UNAVAILABLE;
    sqlite3_bind_int64(stmt, 1, wall_ms - HF_KEEP_DEFAULT_MS);
    sqlite3_bind_int64(stmt, 2, max);
    return hf_sqlite_run(s, stmt, err);
}

/* For stores that nobody sweeps: the workflow of a row that is chosen by lot, so mostly of those that
 * have many, and by age alone, since counting takes time. */
int hf_sqlite_prune_some(struct hf_sqlite *s, int64_t wall_ms, int64_t max, struct hf_error *err)
{
    struct hf_prune_place place = {.where = HF_PRUNE_AT};
    int r = prune_once(s, wall_ms, max, err);
    sqlite3_stmt *stmt = r < 0 ? NULL : hf_sqlite_stmt(s, HF_STMT_PRUNE_PICK, err);
    if (!stmt)
        return r < 0 ? r : -HF_UNAVAILABLE;
    if ((r = hf_sqlite_row(s, stmt, err)) <= 0)
        return r;
    hf_sqlite_take_text(&(struct hf_sqlite_cursor){stmt, 0}, place.workflow, sizeof place.workflow);
    sqlite3_reset(stmt);
    if ((r = enter(s, &place, wall_ms, false, err)) >= 0)
        r = remove_some(s, &place, max, err);
    return r < 0 ? r : 0;
}
