#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "postgres_store.h"

enum { CONFLICTS_MAX = 8, CONFLICT_PAUSE_MS = 5 };

/* ---- statements ----------------------------------------------------------------------------- */

void hf_pg_bind_as(struct hf_pg_statement *st, Oid type, const char *text)
{
    st->types[st->n] = type;
    st->values[st->n++] = text;
}

void hf_pg_bind_text(struct hf_pg_statement *st, const char *text)
{
    hf_pg_bind_as(st, HF_PG_TEXT, text ? text : "");
}

void hf_pg_bind_null(struct hf_pg_statement *st, Oid type) { hf_pg_bind_as(st, type, NULL); }

void hf_pg_bind_id(struct hf_pg_statement *st, const struct hf_lock_id *id)
{
    st->lengths[st->n] = (int)sizeof id->bytes;
    st->formats[st->n] = 1;
    hf_pg_bind_as(st, HF_PG_BYTEA, (const char *)id->bytes);
}

void hf_pg_bind_int(struct hf_pg_statement *st, Oid type, int64_t value)
{
    char *text = st->numbers[st->n_numbers++];
    snprintf(text, sizeof st->numbers[0], "%lld", (long long)value);
    hf_pg_bind_as(st, type, text);
}

/* ---- columns -------------------------------------------------------------------------------- */

int64_t hf_pg_take_int(struct hf_pg_cursor *at)
{
    int column = at->column++;
    const char *bytes = hf_pq.PQgetvalue(at->result, at->row, column);
    int n = hf_pq.PQgetlength(at->result, at->row, column);
    int64_t value = n > 0 && (bytes[0] & 0x80) ? -1 : 0;
    for (int i = 0; i < n && i < 8; i++)
        value = (int64_t)((uint64_t)value << 8 | (uint8_t)bytes[i]);
    return value;
}

bool hf_pg_take_bool(struct hf_pg_cursor *at) { return hf_pg_take_int(at) != 0; }

void hf_pg_take_text(struct hf_pg_cursor *at, char *ret, size_t size)
{
    int column = at->column++;
    snprintf(ret, size, "%.*s", hf_pq.PQgetlength(at->result, at->row, column),
             hf_pq.PQgetvalue(at->result, at->row, column));
}

bool hf_pg_take_id(struct hf_pg_cursor *at, struct hf_lock_id *ret)
{
    int column = at->column++;
    if (hf_pq.PQgetlength(at->result, at->row, column) != (int)sizeof ret->bytes)
        return false;
    memcpy(ret->bytes, hf_pq.PQgetvalue(at->result, at->row, column), sizeof ret->bytes);
    return true;
}

void hf_pg_clear(PGresult **results, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hf_pq.PQclear(results[i]);
        results[i] = NULL;
    }
}

/* ---- one round trip ------------------------------------------------------------------------- */

/* The next result (NULL: a statement's end). False: the connection failed, or it took too long. */
static bool next_result(PGconn *pg, int64_t deadline_ms, PGresult **ret, struct hf_pg_fault *fault)
{
    int unsent = hf_pq.PQflush(pg);
    while (hf_pq.PQisBusy(pg)) {
        if (hf_pg_await(pg, (short)(unsent ? POLLIN | POLLOUT : POLLIN), deadline_ms) < 0) {
            hf_pg_fault_text(fault, "the server did not answer in time");
            return false;
        }
        if (!hf_pq.PQconsumeInput(pg)) {
            hf_pg_fault_text(fault, hf_pq.PQerrorMessage(pg));
            return false;
        }
        if (unsent)
            unsent = hf_pq.PQflush(pg);
    }
    *ret = hf_pq.PQgetResult(pg);
    return true;
}

/* Take in one result. False: the session is at its end. */
static bool accept_result(PGconn *pg, PGresult *result, PGresult **slot, struct hf_pg_fault *fault)
{
    ExecStatusType status = hf_pq.PQresultStatus(result);
    if (slot && !*slot && (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)) {
        *slot = result;
        return true;
    }
    if (status == PGRES_FATAL_ERROR && !fault->message[0])
        hf_pg_fault_of_result(fault, result);
    hf_pq.PQclear(result);
    return hf_pq.PQstatus(pg) == CONNECTION_OK && !fault->ends_session;
}

/* Up to the answer to the Sync: only then the transaction is committed. */
static enum hf_pg_fate receive(PGconn *pg, size_t n, int64_t deadline_ms, PGresult **ret,
                               struct hf_pg_fault *fault)
{
    PGresult *result = NULL;
    /* Each statement's end counts; libpq repeats the last one where a connection has died. */
    for (size_t i = 0; i < n + 4;) {
        if (!next_result(pg, deadline_ms, &result, fault))
            return HF_PG_LOST;
        if (!result) {
            i++;
            continue;
        }
        bool synced = hf_pq.PQresultStatus(result) == PGRES_PIPELINE_SYNC;
        if (!accept_result(pg, result, i < n ? &ret[i] : NULL, fault))
            return HF_PG_LOST;
        if (synced)
            return fault->message[0] ? HF_PG_REFUSED : HF_PG_DONE;
    }
    hf_pg_fault_text(fault, "the connection was lost");
    return HF_PG_LOST;
}

enum hf_pg_fate hf_pg_send(PGconn *pg, const struct hf_pg_statement *statements, size_t n,
                           int64_t deadline_ms, PGresult **ret, struct hf_pg_fault *fault)
{
    *fault = (struct hf_pg_fault){.sqlstate = ""};
    memset(ret, 0, n * sizeof *ret);
    for (size_t i = 0; i < n; i++) {
        const struct hf_pg_statement *st = &statements[i];
        if (!hf_pq.PQsendQueryParams(pg, st->sql, st->n, st->types, st->values, st->lengths,
                                     st->formats, 1)) {
            hf_pg_fault_text(fault, hf_pq.PQerrorMessage(pg));
            return HF_PG_UNSENT; /* without its Sync nothing of it is committed */
        }
    }
    enum hf_pg_fate fate = HF_PG_LOST;
    if (hf_pq.PQpipelineSync(pg))
        fate = receive(pg, n, deadline_ms, ret, fault);
    else
        hf_pg_fault_text(fault, hf_pq.PQerrorMessage(pg));
    if (fate != HF_PG_DONE)
        hf_pg_clear(ret, n);
    return fate;
}

enum hf_pg_fate hf_pg_send_script(PGconn *pg, const char *sql, int64_t deadline_ms,
                                  struct hf_pg_fault *fault)
{
    PGresult *result = NULL;
    *fault = (struct hf_pg_fault){.sqlstate = ""};
    if (!hf_pq.PQexitPipelineMode(pg) || !hf_pq.PQsendQuery(pg, sql)) {
        hf_pg_fault_text(fault, hf_pq.PQerrorMessage(pg));
        return HF_PG_UNSENT;
    }
    do {
        if (!next_result(pg, deadline_ms, &result, fault))
            return HF_PG_LOST;
        if (result && !accept_result(pg, result, NULL, fault))
            return HF_PG_LOST;
    } while (result);
    hf_pq.PQenterPipelineMode(pg);
    return fault->message[0] ? HF_PG_REFUSED : HF_PG_DONE;
}

/* ---- with the pool, and what is tried again ------------------------------------------------- */

static bool is_conflict(const struct hf_pg_fault *fault)
{
    return hf_pg_is(fault, "40001") || hf_pg_is(fault, "40P01");
}

static int fail_lost(const struct hf_postgres *s, bool changes, const struct hf_pg_fault *fault,
                     struct hf_error *err)
{
    if (changes)
        return hf_fail(err, HF_UNKNOWN, "%s: it was sent, but whether it was done is unknown: %s",
                       s->shown, fault->message);
    return hf_fail(err, HF_UNAVAILABLE, "%s: %s", s->shown, fault->message);
}

int hf_pg_exchange(struct hf_postgres *s, const struct hf_pg_statement *statements, size_t n,
                   bool changes, PGresult **ret, struct hf_pg_fault *ret_fault,
                   struct hf_error *err)
{
    struct hf_pg_fault own = {0}, *fault = ret_fault ? ret_fault : &own;
    int64_t deadline_ms = hf_pg_now_ms() + s->timeout_ms;
    bool retried = false;
    for (int conflicts = 0;;) {
        struct hf_pg_connection *c;
        *fault = (struct hf_pg_fault){.sqlstate = ""};
        int r = hf_pg_take(s, deadline_ms, &c, err);
        if (r < 0)
            return r;
        enum hf_pg_fate fate = hf_pg_send(c->pg, statements, n, deadline_ms, ret, fault);
        if (fate == HF_PG_DONE || fate == HF_PG_REFUSED)
            hf_pg_give_back(s, c);
        else
            hf_pg_discard(s, c);
        if (fate == HF_PG_DONE)
            return 0;
        if (fate == HF_PG_REFUSED) {
            if (!is_conflict(fault) || conflicts == CONFLICTS_MAX)
                return hf_pg_fail(s, fault, err);
            hf_pg_pause(hf_pg_jitter_ms(CONFLICT_PAUSE_MS << conflicts++));
        } else if (retried || (fate == HF_PG_LOST && changes))
            return fail_lost(s, fate == HF_PG_LOST && changes, fault, err);
        else
            retried = true; /* nothing can have happened, or it only reads */
    }
}
