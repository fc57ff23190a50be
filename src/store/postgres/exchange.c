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

void hf_pg_bind_bool(struct hf_pg_statement *st, bool value)
{
    hf_pg_bind_as(st, HF_PG_BOOL, value ? "t" : "f");
}

void hf_pg_bind_bytes(struct hf_pg_statement *st, const void *bytes, size_t n)
{
    st->lengths[st->n] = (int)n;
    st->formats[st->n] = 1;
    hf_pg_bind_as(st, HF_PG_BYTEA, n ? bytes : NULL);
}

/* ---- columns -------------------------------------------------------------------------------- */

static int64_t read_int(const char *bytes, int n)
{
    int64_t value = n > 0 && (bytes[0] & 0x80) ? -1 : 0;
    for (int i = 0; i < n && i < 8; i++)
        value = (int64_t)((uint64_t)value << 8 | (uint8_t)bytes[i]);
    return value;
}

/* Binary form of a row: how many fields; of each its type, its length (-1: NULL), its bytes. */
enum { COUNT_SIZE = 4, FIELD_HEAD_SIZE = 8 };

static struct hf_pg_cursor open_fields(const PGresult *result, const char *bytes, int n)
{
    return (struct hf_pg_cursor){
        .result = result, .field = bytes + (n < COUNT_SIZE ? n : COUNT_SIZE), .end = bytes + n};
}

struct hf_pg_cursor hf_pg_open_composite(const PGresult *result, int row)
{
    return open_fields(result, hf_pq.PQgetvalue(result, row, 0), hf_pq.PQgetlength(result, row, 0));
}

/* The next value; NULL is empty. */
static const char *take(struct hf_pg_cursor *at, int *ret_n)
{
    if (!at->field) {
        int column = at->column++;
        *ret_n = hf_pq.PQgetlength(at->result, at->row, column);
        return hf_pq.PQgetvalue(at->result, at->row, column);
    }
    *ret_n = 0;
    if (at->end - at->field < FIELD_HEAD_SIZE)
        return "";
    int64_t n = read_int(at->field + 4, 4);
    at->field += FIELD_HEAD_SIZE;
    if (n <= 0 || n > at->end - at->field)
        return "";
    const char *bytes = at->field;
    at->field += n;
    *ret_n = (int)n;
    return bytes;
}

int64_t hf_pg_take_int(struct hf_pg_cursor *at)
{
    int n;
    const char *bytes = take(at, &n);
    return read_int(bytes, n);
}

bool hf_pg_take_bool(struct hf_pg_cursor *at) { return hf_pg_take_int(at) != 0; }

void hf_pg_take_text(struct hf_pg_cursor *at, char *ret, size_t size)
{
    int n;
    const char *bytes = take(at, &n);
    size_t length = (size_t)n < size ? (size_t)n : size - 1;
    memcpy(ret, bytes, length);
    ret[length] = '\0';
}

bool hf_pg_take_id(struct hf_pg_cursor *at, struct hf_lock_id *ret)
{
    int n;
    const char *bytes = take(at, &n);
    if (n != (int)sizeof ret->bytes)
        return false;
    memcpy(ret->bytes, bytes, sizeof ret->bytes);
    return true;
}

struct hf_pg_cursor hf_pg_take_composite(struct hf_pg_cursor *at)
{
    int n;
    const char *bytes = take(at, &n);
    return open_fields(at->result, bytes, n);
}

const char *hf_pg_take_bytes(struct hf_pg_cursor *at, size_t *ret_n)
{
    int n;
    const char *bytes = take(at, &n);
    *ret_n = (size_t)n;
    return bytes;
}

int64_t hf_pg_take_time_ms(struct hf_pg_cursor *at)
{
    static const int64_t Y2000_MS = INT64_C(946684800000);
    int n;
    const char *bytes = take(at, &n);
    return n ? read_int(bytes, n) / 1000 + Y2000_MS : 0;
}

void hf_pg_take_uuid(struct hf_pg_cursor *at, char ret[HF_UUID_LEN + 1])
{
    int n;
    const char *bytes = take(at, &n);
    size_t used = 0;
    ret[0] = '\0';
    for (int i = 0; i < n && n == 16; i++)
        used +=
            (size_t)snprintf(ret + used, HF_UUID_LEN + 1 - used, "%s%02x",
                             i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (uint8_t)bytes[i]);
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
static enum hf_pg_fate receive(PGconn *pg, struct hf_pg_sending *p, int64_t deadline_ms,
                               PGresult **ret, struct hf_pg_fault *fault)
{
    PGresult *result = NULL;
    /* Each statement's end counts; libpq repeats the last one where a connection has died. */
    for (size_t i = 0; i < p->n_preparing + p->n + 5;) {
        if (!next_result(pg, deadline_ms, &result, fault))
            return HF_PG_LOST;
        if (!result) {
            i++;
            continue;
        }
        bool synced = hf_pq.PQresultStatus(result) == PGRES_PIPELINE_SYNC;
        if (!accept_result(pg, result, hf_pg_slot(p, i, ret), fault))
            return HF_PG_LOST;
        if (synced)
            return fault->message[0] ? HF_PG_REFUSED : HF_PG_DONE;
    }
    hf_pg_fault_text(fault, "the connection was lost");
    return HF_PG_LOST;
}

/* The answer to what was sent after the commit. False: there was none, and it may still come. */
static bool receive_after(PGconn *pg, struct hf_pg_sending *p, int64_t deadline_ms)
{
    struct hf_pg_fault fault = {.sqlstate = ""};
    PGresult *result = NULL;
    enum hf_pg_fate fate = receive(pg, p, deadline_ms, &result, &fault);
    if (fate == HF_PG_DONE)
        hf_pg_clear(&result, 1);
    else if (fate == HF_PG_REFUSED && p->texts)
        hf_pg_was_misled(p->texts, &fault);
    return fate != HF_PG_LOST;
}

/*
 * `after` (may be NULL): a transaction of its own that follows in the same round trip. Whatever comes
 * of it, the rest is done; but *ret_usable is false where the connection can't be used any more.
 */
static enum hf_pg_fate send_and_receive(PGconn *pg, struct hf_pg_texts *texts,
                                        const struct hf_pg_statement *statements, size_t n,
                                        const struct hf_pg_statement *after, int64_t deadline_ms,
                                        PGresult **ret, bool *ret_usable, struct hf_pg_fault *fault)
{
    struct hf_pg_sending p = {.statements = statements, .n = n, .texts = texts};
    enum hf_pg_fate fate = HF_PG_UNSENT; /* without its Sync nothing of it is committed */
    *fault = (struct hf_pg_fault){.sqlstate = ""};
    memset(ret, 0, n * sizeof *ret);
    struct hf_pg_sending then = {.statements = after, .n = 1, .texts = texts};
    if (hf_pg_send_all(pg, &p))
        fate = HF_PG_LOST;
    if (fate == HF_PG_LOST && hf_pq.PQpipelineSync(pg) &&
        (!after || (hf_pg_send_all(pg, &then) && hf_pq.PQpipelineSync(pg))))
        fate = receive(pg, &p, deadline_ms, ret, fault);
    else
        hf_pg_fault_text(fault, hf_pq.PQerrorMessage(pg));
    hf_pg_end_sending(pg, &p);
    *ret_usable = fate == HF_PG_DONE || fate == HF_PG_REFUSED;
    if (after && *ret_usable)
        *ret_usable = receive_after(pg, &then, deadline_ms);
    if (after)
        hf_pg_end_sending(pg, &then);
    if (fate != HF_PG_DONE)
        hf_pg_clear(ret, n);
    return fate;
}

enum hf_pg_fate hf_pg_send(PGconn *pg, const struct hf_pg_statement *statements, size_t n,
                           int64_t deadline_ms, PGresult **ret, struct hf_pg_fault *fault)
{
    bool usable;
    return send_and_receive(pg, NULL, statements, n, NULL, deadline_ms, ret, &usable, fault);
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
    return hf_pg_exchange_then(s, statements, n, NULL, changes, ret, ret_fault, err);
}

int hf_pg_exchange_then(struct hf_postgres *s, const struct hf_pg_statement *statements, size_t n,
                        const struct hf_pg_statement *after, bool changes, PGresult **ret,
                        struct hf_pg_fault *ret_fault, struct hf_error *err)
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
        bool usable;
        enum hf_pg_fate fate = send_and_receive(c->pg, &c->texts, statements, n, after, deadline_ms,
                                                ret, &usable, fault);
        bool misled = fate == HF_PG_REFUSED && hf_pg_was_misled(&c->texts, fault);
        if (usable)
            hf_pg_give_back(s, c);
        else
            hf_pg_discard(s, c);
        if (fate == HF_PG_DONE)
            return 0;
        if (misled)
            continue;
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
