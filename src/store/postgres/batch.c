/*
 * Many requests travel together: one pipeline, one transaction, one round trip, sorted by name so that
 * two batches never lock crosswise. Each name has one request in a pipeline; what else concerns it
 * follows in the next one, so that a call that has to be repeated (because the server wants us to
 * look at a process first) is never overtaken by a later one. What is simple, and the many who wait for
 * one name, go in one statement.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "task.h"

enum { LINE_MIN = 8, LINE_AFTER = 8 /* waves: meanwhile those at the head have been served */ };

struct entry {
    const char *name;
    size_t i; /* in the caller's order */
    bool taken;
};

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->i > y->i) - (x->i < y->i);
}

/* Up to a pipeline's worth of requests, the next one of each name. */
static size_t next_wave(struct entry *entries, size_t n, size_t ret[HF_PG_MANY_MAX])
{
    size_t found = 0;
    const char *last = "";
    for (size_t k = 0; k < n && found < HF_PG_MANY_MAX; k++) {
        if (entries[k].taken || strcmp(entries[k].name, last) == 0)
            continue;
        last = entries[k].name;
        entries[k].taken = true;
        ret[found++] = entries[k].i;
    }
    return found;
}

static int apply_wave(struct hf_postgres *s, const struct hf_request *requests,
                      struct hf_answer *answers, const size_t *which, size_t n,
                      struct hf_pg_task *tasks, struct hf_error *err)
{
    size_t begun = 0;
    int r = 0;
    for (size_t k = 0; k < n; k++) {
        r = hf_pg_begin_task(s, &tasks[begun], &requests[which[k]], &answers[which[k]], err);
        if (r < 0)
            answers[which[k]] = (struct hf_answer){.code = r};
        else
            begun++;
    }
    r = begun ? hf_pg_apply_simple(s, tasks, begun, err) : 0;
    if (r >= 0 && begun)
        r = hf_pg_finish_all(s, tasks, begun, err);
    for (size_t k = 0; k < begun; k++)
        hf_pg_end_task(s, &tasks[k]);
    return r;
}

/* ---- those who wait for one name ------------------------------------------------------------ */

/* Does it only want a place in the queue? */
static bool is_wait(const struct hf_request *req)
{
    return req->op == HF_OP_ACQUIRE && req->wait_ms && !hf_pg_has_execution(req);
}

/* How many of the entries, all of one name and not yet taken, are waits; at most so many at once. */
static size_t line_at(const struct entry *entries, size_t n, const struct hf_request *requests)
{
    size_t found = 0;
    while (found < n && found < HF_PG_MANY_MAX && !entries[found].taken &&
           strcmp(entries[found].name, entries[0].name) == 0 &&
           is_wait(&requests[entries[found].i]))
        found++;
    return found;
}

static int apply_line(struct hf_postgres *s, const struct hf_request *requests,
                      struct hf_answer *answers, struct entry *entries, size_t n,
                      struct hf_pg_task *tasks, struct hf_error *err)
{
    size_t begun = 0;
    int r = 0;
    while (r >= 0 && begun < n) {
        size_t i = entries[begun].i;
        r = hf_pg_begin_task(s, &tasks[begun], &requests[i], &answers[i], err);
        begun += r >= 0;
    }
    r = r < 0 ? 0 : hf_pg_apply_line(s, tasks, n, err); /* the one that failed will fail again */
    for (size_t k = 0; k < begun; k++) {
        entries[k].taken |= tasks[k].done;
        hf_pg_end_task(s, &tasks[k]);
    }
    return r;
}

/* Whoever is next for its name, and waits, together with those behind it. */
static int apply_lines(struct hf_postgres *s, const struct hf_request *requests,
                       struct hf_answer *answers, struct entry *entries, size_t n,
                       struct hf_pg_task *tasks, struct hf_error *err)
{
    const char *last = NULL;
    int r = 0;
    for (size_t k = 0; r >= 0 && k < n; k++) {
        if (entries[k].taken || (last && strcmp(entries[k].name, last) == 0))
            continue;
        size_t found = line_at(&entries[k], n - k, requests);
        if (found >= LINE_MIN)
            r = apply_line(s, requests, answers, &entries[k], found, tasks, err);
        last = entries[k].taken ? NULL : entries[k].name;
    }
    return r;
}

/* ---- executions that are recorded ----------------------------------------------------------- */

/* How many of the entries are of the first one's name, and whether all of them are plain enqueues. */
static size_t same_name(const struct entry *entries, size_t n, const struct hf_request *requests,
                        bool *ret_plain)
{
    size_t found = 0;
    *ret_plain = true;
    while (found < n && strcmp(entries[found].name, entries[0].name) == 0)
        *ret_plain &= hf_pg_is_plain_enqueue(&requests[entries[found++].i]);
    return found;
}

static int in_order(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return ((*x)->i > (*y)->i) - ((*x)->i < (*y)->i);
}

static int record(struct hf_postgres *s, const struct hf_request *requests,
                  struct hf_answer *answers, struct entry **which, size_t n,
                  struct hf_pg_task *tasks, struct hf_error *err)
{
    size_t begun = 0;
    int r = 0;
    while (r >= 0 && begun < n) {
        size_t i = which[begun]->i;
        r = hf_pg_begin_task(s, &tasks[begun], &requests[i], &answers[i], err);
        begun += r >= 0;
    }
    r = r < 0 ? 0 : hf_pg_apply_simple(s, tasks, n, err);
    for (size_t k = 0; k < begun; k++) {
        which[k]->taken |= tasks[k].done;
        hf_pg_end_task(s, &tasks[k]);
    }
    return r;
}

/* In the caller's order, which is that of their age; where a name has nothing else in this batch. */
static int apply_enqueues(struct hf_postgres *s, const struct hf_request *requests,
                          struct hf_answer *answers, struct entry *entries, size_t n,
                          struct hf_pg_task *tasks, struct hf_error *err)
{
    struct entry **which = calloc(n, sizeof *which);
    size_t found = 0;
    int r = which ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t k = 0, some; r >= 0 && k < n; k += some) {
        bool plain;
        some = same_name(&entries[k], n - k, requests, &plain);
        for (size_t j = 0; plain && j < some; j++)
            which[found++] = &entries[k + j];
    }
    if (found)
        qsort(which, found, sizeof *which, in_order);
    for (size_t k = 0; r >= 0 && k < found; k += HF_PG_MANY_MAX)
        r = record(s, requests, answers, which + k,
                   found - k < HF_PG_MANY_MAX ? found - k : HF_PG_MANY_MAX, tasks, err);
    free(which);
    return r;
}

/* ---- the batch ------------------------------------------------------------------------------ */

int hf_pg_apply_batch(struct hf_postgres *s, const struct hf_request *requests, size_t n,
                      struct hf_answer *answers, struct hf_error *err)
{
    struct entry *entries = calloc(n, sizeof *entries);
    struct hf_pg_task *tasks = calloc(n < HF_PG_MANY_MAX ? n : HF_PG_MANY_MAX, sizeof *tasks);
    size_t which[HF_PG_MANY_MAX];
    int r = entries && tasks ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < n; i++)
        entries[i] = (struct entry){requests[i].name, i, false};
    if (r >= 0)
        qsort(entries, n, sizeof *entries, by_name);
    if (r >= 0)
        r = apply_enqueues(s, requests, answers, entries, n, tasks, err);
    for (size_t wave = 0, found = 1; r >= 0 && found; wave++) {
        if (wave % LINE_AFTER == 0)
            r = apply_lines(s, requests, answers, entries, n, tasks, err);
        found = r < 0 ? 0 : next_wave(entries, n, which);
        if (found)
            r = apply_wave(s, requests, answers, which, found, tasks, err);
    }
    free(entries);
    free(tasks);
    return r;
}
