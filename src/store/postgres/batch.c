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

static bool is_simple(const struct hf_pg_task *t)
{
    const struct hf_request *req = t->req;
    if (t->seen.n || hf_pg_has_execution(req))
        return false;
    return req->op == HF_OP_ACQUIRE ? !req->wait_ms : req->op == HF_OP_RELEASE && req->fence;
}

static void answer_simple(const struct hf_pg_simple *one, struct hf_pg_task *t)
{
    struct hf_pg_row row = {.ttl_ms = t->req->ttl_ms,
                            .lock = {.fence = one->fence,
                                     .locked_at_ms = one->now_ms,
                                     .locked_until_ms = one->now_ms + t->req->ttl_ms}};
    snprintf(row.owner, sizeof row.owner, "%s", t->req->owner ? t->req->owner : "");
    snprintf(row.note, sizeof row.note, "%s", t->req->note ? t->req->note : "");
    hf_pg_fill_answer(&row, t->req, t->answer);
    t->done = true;
}

/* What can be done in one statement for all is done so. */
static int finish_simple(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                         struct hf_error *err)
{
    struct hf_pg_simple simple[HF_PG_MANY_MAX];
    struct hf_pg_task *of[HF_PG_MANY_MAX];
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (is_simple(&tasks[i])) {
            of[found] = &tasks[i];
            simple[found++] = (struct hf_pg_simple){
                .req = tasks[i].req, .id = &tasks[i].id, .processes = tasks[i].processes};
        }
    int r = hf_pg_apply_simple(s, simple, found, err);
    for (size_t i = 0; i < found; i++)
        if (simple[i].done) {
            answer_simple(&simple[i], of[i]);
            hf_pg_prune_sometimes(s, of[i]->answer);
        }
    return r;
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
    r = begun > 1 ? finish_simple(s, tasks, begun, err) : 0;
    if (r >= 0 && begun)
        r = hf_pg_finish_all(s, tasks, begun, err);
    for (size_t k = 0; k < begun; k++)
        hf_pg_end_task(s, &tasks[k]);
    return r;
}

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
