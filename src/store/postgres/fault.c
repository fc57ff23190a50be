#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "postgres_store.h"

/* What the server's errors mean here; the first row whose SQLSTATE begins so. */
static const struct {
    const char *sqlstate;
    int code;
    const char *advice;
} meanings[] = {
    {"28", HF_UNAUTHORIZED,
     "check user, password (~/.pgpass and PGPASSWORD keep it out of the URL) and pg_hba.conf"},
    {"42501", HF_FORBIDDEN,
     "the role lacks a privilege; docs/stores.md has the GRANTs that it needs"},
    {"3D000", HF_UNAVAILABLE, "make it with createdb, or name another in the URL"},
    {"53300", HF_UNAVAILABLE,
     "raise max_connections, or use fewer with ?pool=N or a pooler such as PgBouncer"},
    {"53", HF_UNAVAILABLE, "the server is short of memory or disk"},
    {"57P03", HF_UNAVAILABLE, "try again when the server is up"},
    {"25006", HF_UNAVAILABLE,
     "that server only reads (a standby?): name the primary, or several hosts with "
     "target_session_attrs=read-write"},
    {"3F000", HF_UNAVAILABLE, NULL}, /* the schema is missing, or a part of it */
    {"42P01", HF_UNAVAILABLE, NULL},
    {"42883", HF_UNAVAILABLE, NULL},
    {"42704", HF_UNAVAILABLE, NULL},
    {"22021", HF_INVALID, "the database's encoding can't hold that text; UTF8 can"},
    {"22P05", HF_INVALID, "the database's encoding can't hold that text; UTF8 can"},
    {"22", HF_INTERNAL, NULL},
    {"23", HF_INTERNAL, NULL},
    {"42", HF_INTERNAL, NULL},
    {"57014", HF_UNAVAILABLE, "it was cancelled, by statement_timeout or by hand"},
    {"55P03", HF_UNAVAILABLE, "another transaction holds on to it: a guard that has not ended?"},
    {"40", HF_UNAVAILABLE, "too many conflicts with other transactions; try again"},
    {"", HF_UNAVAILABLE, NULL},
};

bool hf_pg_is(const struct hf_pg_fault *fault, const char *sqlstate)
{
    return strncmp(fault->sqlstate, sqlstate, strlen(sqlstate)) == 0;
}

bool hf_pg_is_schema_missing(const struct hf_pg_fault *fault)
{
    static const char *const states[] = {"3F000", "42P01", "42883", "42704"};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (hf_pg_is(fault, states[i]))
            return true;
    return false;
}

/* ---- reading them --------------------------------------------------------------------------- */

void hf_pg_fault_text(struct hf_pg_fault *ret, const char *text)
{
    *ret = (struct hf_pg_fault){.sqlstate = ""};
    snprintf(ret->message, sizeof ret->message, "%.*s", (int)strcspn(text, "\n"), text);
}

void hf_pg_fault_of_result(struct hf_pg_fault *ret, const PGresult *result)
{
    const char *text = hf_pq.PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *state = hf_pq.PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *severity = hf_pq.PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    hf_pg_fault_text(ret, text ? text : "the connection was lost");
    snprintf(ret->sqlstate, sizeof ret->sqlstate, "%s", state ? state : "");
    ret->ends_session = !severity || strcmp(severity, "ERROR") != 0;
}

/* "FATAL:  28P01: text": where the SQLSTATE begins, in whatever language the rest is. */
static const char *find_sqlstate(const char *text)
{
    for (const char *at = text; (at = strstr(at, ":  ")); at++) {
        size_t n = 0;
        while (n < 5 && (isdigit((unsigned char)at[3 + n]) || isupper((unsigned char)at[3 + n])))
            n++;
        if (n == 5 && at[8] == ':' && at[9] == ' ')
            return at + 3;
    }
    return NULL;
}

void hf_pg_fault_of_connecting(struct hf_pg_fault *ret, const PGconn *pg)
{
    const char *text = hf_pq.PQerrorMessage(pg), *state = find_sqlstate(text);
    hf_pg_fault_text(ret, state ? state + 7 : text);
    if (state)
        snprintf(ret->sqlstate, sizeof ret->sqlstate, "%.5s", state);
    /* No password was there to send; or a pooler refused it, which has one SQLSTATE for all. */
    if (hf_pq.PQconnectionNeedsPassword(pg) || strstr(text, "authentication failed"))
        strcpy(ret->sqlstate, "28P01");
    ret->ends_session = true;
}

/* ---- telling -------------------------------------------------------------------------------- */

int hf_pg_fail(const struct hf_postgres *s, const struct hf_pg_fault *fault, struct hf_error *err)
{
    struct hf_buf text = HF_BUF(2 * HF_URL_MAX + HF_MESSAGE_MAX);
    size_t i = 0;
    while (!hf_pg_is(fault, meanings[i].sqlstate))
        i++;
    hf_buf_printf(&text, "%s: %s", s->shown, fault->message);
    if (fault->sqlstate[0])
        hf_buf_printf(&text, " (SQLSTATE %s)", fault->sqlstate);
    if (meanings[i].advice)
        hf_buf_printf(&text, "; %s", meanings[i].advice);
    if (hf_pg_is_schema_missing(fault))
        hf_buf_printf(&text, "; run: holdfast --store '%s' init", s->shown);
    int r = hf_fail(err, meanings[i].code, "%s", text.failed ? fault->message : text.data);
    hf_buf_clear(&text);
    return r;
}
