/* The schema: is it there, is it one that we know, and does the server keep what it acknowledges? */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "postgres_store.h"

#define ADVISORY_KEY "7525352680829580148" /* the bytes of "holdfast" */

enum { MIGRATION_TIMEOUT_MS = 60000 };

/* schema/1.sql, made into a C string by scripts/embed. */
extern const char hf_pg_schema_1[];

const char *hf_pg_schema(void) { return hf_pg_schema_1; }

/* ---- migrating ------------------------------------------------------------------------------ */

static int fail_newer(const struct hf_postgres *s, int64_t format, struct hf_error *err)
{
    return hf_fail(err, HF_UNAVAILABLE,
                   "%s: its schema has format %lld, and this program knows only up to %d; use a "
                   "newer holdfast",
                   s->shown, (long long)format, HF_PG_FORMAT);
}

/* The schema's format, 0 where there is none; in the transaction that is open. */
static enum hf_pg_fate read_format(PGconn *pg, int64_t deadline_ms, int64_t *ret,
                                   struct hf_pg_fault *fault)
{
    struct hf_pg_statement exists = {.sql = "SELECT to_regclass('holdfast.meta') IS NOT NULL"};
    struct hf_pg_statement format = {.sql = "SELECT format FROM holdfast.meta"};
    PGresult *result;
    *ret = 0;
    enum hf_pg_fate fate = hf_pg_send(pg, &exists, 1, deadline_ms, &result, fault);
    if (fate != HF_PG_DONE)
        return fate;
    bool there = hf_pg_take_bool(&(struct hf_pg_cursor){result, 0, 0});
    hf_pg_clear(&result, 1);
    if (!there)
        return HF_PG_DONE;
    fate = hf_pg_send(pg, &format, 1, deadline_ms, &result, fault);
    if (fate != HF_PG_DONE)
        return fate;
    if (hf_pq.PQntuples(result) == 1)
        *ret = hf_pg_take_int(&(struct hf_pg_cursor){result, 0, 0});
    hf_pg_clear(&result, 1);
    return HF_PG_DONE;
}

/* Alone with the schema until the transaction ends, so that two who start at once both succeed. */
static enum hf_pg_fate migrate_alone(PGconn *pg, struct hf_pg_fault *fault)
{
    int64_t deadline_ms = hf_pg_now_ms() + MIGRATION_TIMEOUT_MS, format;
    enum hf_pg_fate fate = hf_pg_send_script(
        pg, "BEGIN; SELECT pg_advisory_xact_lock(" ADVISORY_KEY ")", deadline_ms, fault);
    if (fate == HF_PG_DONE)
        fate = read_format(pg, deadline_ms, &format, fault);
    if (fate == HF_PG_DONE && format == 0)
        fate = hf_pg_send_script(pg, hf_pg_schema_1, deadline_ms, fault);
    if (fate == HF_PG_DONE)
        fate = hf_pg_send_script(pg, "COMMIT", deadline_ms, fault);
    return fate;
}

static int fail_to_migrate(const struct hf_postgres *s, const struct hf_pg_fault *fault,
                           struct hf_error *err)
{
    if (!hf_pg_is(fault, "42501"))
        return hf_pg_fail(s, fault, err);
    return hf_fail(err, HF_FORBIDDEN,
                   "%s: there is no schema holdfast, and this role may not create it (%s); run: "
                   "holdfast --store URL init, as a role that may; or hand the output of holdfast "
                   "--store '%s' init --print to who administers the database",
                   s->shown, fault->message, s->shown);
}

static int migrate(struct hf_postgres *s, struct hf_error *err)
{
    struct hf_pg_connection *c;
    struct hf_pg_fault fault;
    int r = hf_pg_take(s, hf_pg_now_ms() + s->timeout_ms, &c, err);
    if (r < 0)
        return r;
    enum hf_pg_fate fate = migrate_alone(c->pg, &fault);
    if (fate == HF_PG_DONE)
        hf_pg_give_back(s, c);
    else
        hf_pg_discard(s, c); /* and with it the transaction, if one is open */
    return fate == HF_PG_DONE ? 0 : fail_to_migrate(s, &fault, err);
}

/* ---- what the server may lose --------------------------------------------------------------- */

/* As the server is now; the words of the caution say what to set. */
struct server {
    int64_t format;
    bool standby;
    char fsync[8], synchronous_commit[16];
    int64_t standbys, synchronous; /* 0, 0 also where we may not see them */
};

static void note_caution(struct hf_postgres *s, const struct server *now)
{
    const char *what = NULL;
    if (strcmp(now->fsync, "off") == 0)
        what = "fsync is off: a power loss may destroy the database or repeat fences; set fsync = "
               "on";
    else if (strcmp(now->synchronous_commit, "off") == 0)
        what = "synchronous_commit is off: a crash of the server may lose grants that were "
               "acknowledged, and repeat their fences; set it to on for this role";
    else if (now->standbys && (!now->synchronous || strcmp(now->synchronous_commit, "local") == 0))
        what =
            "its standby is asynchronous: a failover may lose grants that were acknowledged; set "
            "synchronous_standby_names, or run holdfast init --bump-epoch after each failover";
    snprintf(s->caution, sizeof s->caution, "%s", what ? what : "");
}

static int look_at_server(struct hf_postgres *s, struct server *ret, struct hf_pg_fault *fault,
                          struct hf_error *err)
{
    static const char sql[] =
        "SELECT m.format, pg_is_in_recovery(), current_setting('fsync'),"
        " current_setting('synchronous_commit'),"
        " (SELECT count(*) FROM pg_stat_replication WHERE state IN ('streaming', 'catchup')),"
        " (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))"
        " FROM holdfast.meta m";
    struct hf_pg_statement st = {.sql = sql};
    PGresult *result;
    int r = hf_pg_exchange(s, &st, 1, false, &result, fault, err);
    if (r < 0)
        return r;
    *ret = (struct server){0};
    if (hf_pq.PQntuples(result) == 1) {
        struct hf_pg_cursor at = {result, 0, 0};
        ret->format = hf_pg_take_int(&at);
        ret->standby = hf_pg_take_bool(&at);
        hf_pg_take_text(&at, ret->fsync, sizeof ret->fsync);
        hf_pg_take_text(&at, ret->synchronous_commit, sizeof ret->synchronous_commit);
        ret->standbys = hf_pg_take_int(&at);
        ret->synchronous = hf_pg_take_int(&at);
    }
    hf_pg_clear(&result, 1);
    return 0;
}

static int fail_standby(const struct hf_postgres *s, struct hf_error *err)
{
    return hf_fail(err, HF_UNAVAILABLE,
                   "%s is a standby, which only reads; name the primary, or several hosts with "
                   "target_session_attrs=read-write",
                   s->shown);
}

int hf_pg_prepare(struct hf_postgres *s, struct hf_error *err)
{
    struct server now;
    struct hf_pg_fault fault;
    int r = look_at_server(s, &now, &fault, err);
    if ((r >= 0 && now.format < HF_PG_FORMAT && !now.standby) ||
        (r < 0 && hf_pg_is_schema_missing(&fault))) {
        r = migrate(s, err);
        if (r >= 0)
            r = look_at_server(s, &now, &fault, err);
    }
    if (r < 0)
        return r;
    if (now.format > HF_PG_FORMAT)
        return fail_newer(s, now.format, err);
    if (now.standby)
        return fail_standby(s, err);
    note_caution(s, &now);
    return 0;
}

int hf_pg_init(struct hf_store *store, bool bump_epoch, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_statement statements[] = {
        {.sql = "UPDATE holdfast.meta SET epoch = epoch + 1"},
        {.sql = "SELECT setval('holdfast.seq', greatest((SELECT last_value FROM holdfast.seq),"
                " (SELECT coalesce(max(fence), 0) FROM holdfast.lock)) + 4294967296)"},
    };
    PGresult *results[2];
    int r = hf_pg_prepare(s, err);
    if (r < 0 || !bump_epoch)
        return r;
    r = hf_pg_exchange(s, statements, 2, true, results, NULL, err);
    if (r >= 0)
        hf_pg_clear(results, 2);
    return r;
}
