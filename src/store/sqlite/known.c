/*
 * Records as they were saved last: good for as long as nobody else has written (data_version), so
 * that their rows need not be read again. One of them for a process that handles one name; many for
 * a service, whose clients come back with the same names.
 *
 * Only what has no queue is kept. An execution can be changed through another request than one for
 * its lock, so a record that has one is good only until something else is saved.
 */
#include <stdlib.h>
#include <string.h>

#include "sqlite_store.h"

enum { MANY = 256, WAYS = 4, HEAD = offsetof(struct hf_record, head) };

struct hf_sqlite_known {
    uint64_t of; /* the `known_from` it was kept in; 0: never */
    struct hf_sqlite_row row;
    _Alignas(int64_t) char record[HEAD]; /* without its queue */
};

static const struct hf_record *record_of(const struct hf_sqlite_known *k)
{
    return (const struct hf_record *)k->record;
}

static bool is_of(const struct hf_sqlite *s, const struct hf_sqlite_known *k, const char *name)
{
    return k->of == s->known_from && strcmp(record_of(k)->name, name) == 0;
}

/* Where the name is kept, or else where it would be: in one of a few places, a free one if there is. */
static struct hf_sqlite_known *place_of(const struct hf_sqlite *s, const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *at = name; *at && s->n_known > 1; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    struct hf_sqlite_known *free_one = NULL;
    for (uint32_t i = 0; i < WAYS && s->n_known; i++) {
        struct hf_sqlite_known *k = &s->known[(hash + i) % s->n_known];
        if (is_of(s, k, name))
            return k;
        if (!free_one && k->of != s->known_from)
            free_one = k;
    }
    return free_one || !s->n_known ? free_one : &s->known[hash % s->n_known];
}

void hf_sqlite_know_many(struct hf_sqlite *s)
{
    struct hf_sqlite_known *table = s->n_known < MANY ? calloc(MANY, sizeof *table) : NULL;
    if (!table)
        return;
    hf_sqlite_known_close(s);
    s->known = table;
    s->n_known = MANY;
}

void hf_sqlite_keep_known(struct hf_sqlite *s, const struct hf_record *rec)
{
    if (!s->n_known && (s->known = calloc(1, sizeof *s->known)))
        s->n_known = 1;
    struct hf_sqlite_known *k = place_of(s, rec->name);
    s->last_known = k;
    if (!k)
        return;
    k->of = rec->n_waiters ? 0 : s->known_from;
    memcpy(k->record, rec, rec->n_waiters ? 0 : HEAD);
    k->row = s->row;
}

bool hf_sqlite_find_known(struct hf_sqlite *s, const char *name, struct hf_record *ret)
{
    struct hf_sqlite_known *k = place_of(s, name);
    if (!k || !is_of(s, k, name))
        return false;
    if (record_of(k)->grant.execution_id[0] && k != s->last_known)
        return false;
    memcpy(ret, k->record, HEAD);
    s->row = k->row;
    return true;
}

void hf_sqlite_forget_known(struct hf_sqlite *s) { s->known_from++; }

void hf_sqlite_known_close(struct hf_sqlite *s)
{
    free(s->known);
    s->known = s->last_known = NULL;
    s->n_known = 0;
}
