/*
 * What is sent again and again is prepared, named by its text: parsing and planning a call takes as
 * long as half of what it does. A prepared statement belongs to a session, so only where the session
 * is our own, which the server is asked in passing. Where that was wrong all the same (a pooler that
 * pretends, a session that was reset, a function that was replaced), nothing has happened, and the
 * connection goes on without.
 */
#include <string.h>

#include "postgres_store.h"

enum { USES_MIN = 2 }; /* before a text is worth it: who asks once or twice does not pay */

static struct hf_pg_text *find(struct hf_pg_texts *texts, const char *sql)
{
    for (struct hf_pg_text *text = texts->of; text < texts->of + HF_PG_TEXTS_MAX; text++) {
        if (!text->sql)
            text->sql = sql;
        if (text->sql == sql)
            return text;
    }
    return NULL;
}

/* Count this use; the text where it is to be sent by name. */
static struct hf_pg_text *use(struct hf_pg_texts *texts, const struct hf_pg_statement *st)
{
    struct hf_pg_text *text =
        texts && st->again && texts->session != HF_PG_SHARED ? find(texts, st->sql) : NULL;
    if (text && text->uses < USES_MIN) {
        text->uses++;
        return NULL;
    }
    return text && texts->session == HF_PG_OWN ? text : NULL;
}

/* Prepare what of them is due, before all of them; how many were, or -1. */
static int send_prepares(PGconn *pg, struct hf_pg_sending *p)
{
    for (size_t i = 0; i < p->n; i++) {
        struct hf_pg_text *text = p->named[i] = use(p->texts, &p->statements[i]);
        if (!text || text->ready)
            continue;
        if (!hf_pq.PQsendPrepare(pg, text->sql, text->sql, p->statements[i].n,
                                 p->statements[i].types))
            return -1;
        text->ready = true;
        p->preparing[p->n_preparing++] = text;
    }
    return 0;
}

static int send_statement(PGconn *pg, const struct hf_pg_statement *st, const char *name)
{
    if (name)
        return hf_pq.PQsendQueryPrepared(pg, name, st->n, st->values, st->lengths, st->formats, 1);
    return hf_pq.PQsendQueryParams(pg, st->sql, st->n, st->types, st->values, st->lengths,
                                   st->formats, 1);
}

/* Is the session our own? Asked when something has come for the second time, and with it. */
static bool is_worth_asking(const struct hf_pg_texts *texts)
{
    if (texts && texts->session == HF_PG_UNKNOWN_SESSION)
        for (int i = 0; i < HF_PG_TEXTS_MAX; i++)
            if (texts->of[i].uses >= USES_MIN)
                return true;
    return false;
}

bool hf_pg_send_all(PGconn *pg, struct hf_pg_sending *p)
{
    if (send_prepares(pg, p) < 0)
        return false;
    for (size_t i = 0; i < p->n; i++)
        if (!send_statement(pg, &p->statements[i], p->named[i] ? p->named[i]->sql : NULL))
            return false;
    p->asks = is_worth_asking(p->texts);
    return !p->asks ||
           hf_pq.PQsendQueryParams(pg, "SELECT pg_backend_pid()", 0, NULL, NULL, NULL, NULL, 1);
}

PGresult **hf_pg_slot(struct hf_pg_sending *p, size_t i, PGresult **ret)
{
    if (i < p->n_preparing)
        return &p->prepared[i];
    i -= p->n_preparing;
    if (i < p->n)
        return &ret[i];
    return i == p->n && p->asks ? &p->asked : NULL;
}

void hf_pg_end_sending(PGconn *pg, struct hf_pg_sending *p)
{
    for (size_t i = 0; i < p->n_preparing; i++)
        p->preparing[i]->ready = p->prepared[i] != NULL; /* also where a later one has failed */
    if (p->asked)
        p->texts->session =
            hf_pg_take_int(&(struct hf_pg_cursor){.result = p->asked}) == hf_pq.PQbackendPID(pg)
                ? HF_PG_OWN
                : HF_PG_SHARED;
    hf_pg_clear(p->prepared, p->n_preparing);
    hf_pg_clear(&p->asked, 1);
}

bool hf_pg_was_misled(struct hf_pg_texts *texts, const struct hf_pg_fault *fault)
{
    bool misled =
        texts->session == HF_PG_OWN &&
        (hf_pg_is(fault, "26000") || hf_pg_is(fault, "42P05") || hf_pg_is(fault, "0A000"));
    if (misled)
        texts->session = HF_PG_SHARED;
    return misled;
}
