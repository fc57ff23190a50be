/*
 * A workflow's slots up to `done_ms` have been seen to; those from there to now are due. Only the
 * newest of them may be late by chance (the loop was busy); the others were missed while nobody was
 * there, and `catch-up` decides.
 *
 * A clock that was put back makes slots due again: their keys are taken, so nothing comes of it. Where
 * all slots up to now have been removed for their age, the newest one is left, in the future of such a
 * clock: then nothing is due until after it. Only one that lies more than AHEAD_MS in the future is no
 * such sign, but the work of a clock that was ahead: no schedule stands still for years.
 */
#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cron.h"
#include "error.h"
#include "id.h"
#include "process.h"
#include "text.h"
#include "zones.h"

enum {
    BATCH = 50,             /* executions per transaction */
    CATCH_UP_MAX = 1000,    /* of one workflow, the newest */
    ON_TIME_MS = 60 * 1000, /* a slot that is not older was not missed */
    LOOK_MS = 60 * 1000,    /* how long a change of the clock may go unnoticed */
    RETRY_MS = 5 * 1000     /* after a store that failed */
};
static const int64_t hour_ms = INT64_C(3600) * 1000;
#define AHEAD_MS (24 * hour_ms)

/* Slots that are due, the oldest first. */
struct due {
    int64_t first_ms;
    int64_t n;
    bool missed; /* older ones are left out, or this one is late */
};

struct recurring {
    const struct hf_workflow *workflow;
    struct hf_cron cron;
    struct hf_zone *zone;
    bool is_known; /* how far it has got */
    int64_t done_ms;
    int64_t ahead_ms; /* not 0: all slots up to this one, in the future, have been seen to */
    bool said_ahead;
    struct due due; /* in this tick */
};

struct hf_scheduler {
    struct recurring *of;
    size_t n;
    hf_scheduler_say_fn say;
    void *say_arg;
    bool failing; /* and said so */
};

/* ---- saying --------------------------------------------------------------------------------- */

static void say(const struct hf_scheduler *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(const struct hf_scheduler *s, const char *format, ...)
{
    char text[HF_MESSAGE_MAX];
    va_list args;
    if (!s->say)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    s->say(s->say_arg, text);
}

/* Once, until it works again. */
static void say_failing(struct hf_scheduler *s, const struct hf_error *err)
{
    if (!s->failing)
        say(s, "what is due by its schedule can't be recorded: %s", err->message);
    s->failing = true;
}

/* ---- open and free -------------------------------------------------------------------------- */

static const struct recurring *find(const struct hf_scheduler *s, const char *workflow)
{
    for (size_t i = 0; s && i < s->n; i++)
        if (strcmp(s->of[i].workflow->name, workflow) == 0)
            return &s->of[i];
    return NULL;
}

static int prepare(struct recurring *r, const struct hf_workflow *w,
                   const struct hf_scheduler *before, struct hf_error *err)
{
    const struct recurring *old = find(before, w->name);
    *r = (struct recurring){.workflow = w};
    if (old) {
        r->is_known = old->is_known;
        r->done_ms = old->done_ms;
        r->said_ahead = old->said_ahead;
    }
    int code = hf_cron_parse(w->schedule, &r->cron, err);
    return code < 0 ? code : hf_zone_load(w->time_zone, &r->zone, err);
}

int hf_scheduler_open(const struct hf_workflows *workflows, const struct hf_scheduler *before,
                      struct hf_scheduler **ret, struct hf_error *err)
{
    struct hf_scheduler *s = calloc(1, sizeof *s);
    if (!s || !(s->of = calloc(workflows->n + 1, sizeof *s->of))) {
        free(s);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < workflows->n; i++) {
        if (!workflows->of[i].schedule)
            continue;
        int code = prepare(&s->of[s->n++], &workflows->of[i], before, err);
        if (code < 0) {
            hf_scheduler_free(s);
            return code;
        }
    }
    *ret = s;
    return 0;
}

void hf_scheduler_free(struct hf_scheduler *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        free(s->of[i].zone);
    free(s->of);
    free(s);
}

void hf_scheduler_on_say(struct hf_scheduler *s, hf_scheduler_say_fn fn, void *arg)
{
    s->say = fn;
    s->say_arg = arg;
}

/* ---- keys ----------------------------------------------------------------------------------- */

enum { SLOT_KEY_MAX = sizeof HF_SCHEDULE_PREFIX + HF_TIME_LEN };

static void format_key(int64_t slot_ms, char ret[SLOT_KEY_MAX])
{
    strcpy(ret, HF_SCHEDULE_PREFIX);
    hf_format_time(slot_ms, ret + strlen(HF_SCHEDULE_PREFIX));
}

/* The same for everybody who asks, and within the workflow's bound. */
static int64_t jitter_of(const struct hf_workflow *w, const char *key)
{
    char text[HF_NAME_MAX + 1 + SLOT_KEY_MAX];
    uint8_t hash[HF_SHA256_LEN];
    uint64_t number;
    if (!w->jitter_ms)
        return 0;
    int n = snprintf(text, sizeof text, "%s\n%s", w->name, key);
    hf_sha256(text, (size_t)n, hash);
    memcpy(&number, hash, sizeof number);
    return (int64_t)(number % ((uint64_t)w->jitter_ms + 1));
}

/* 1: it is the newest up to `to_ms`, 0: there is none. */
static int newest_slot(const struct recurring *r, struct hf *hf, int64_t to_ms, int64_t *ret_ms,
                       struct hf_error *err)
{
    char to[SLOT_KEY_MAX], key[HF_KEY_MAX + 1];
    format_key(to_ms, to);
    int code = hf_last_key(hf, r->workflow->name, HF_SCHEDULE_PREFIX, to, key, err);
    if (code < 0)
        return code == -HF_NOT_FOUND ? 0 : code;
    return hf_parse_time(key + strlen(HF_SCHEDULE_PREFIX), ret_ms, NULL) >= 0;
}

/* How far it has got, as its newest key tells. A schedule that has none has missed nothing. */
static int find_done(struct recurring *r, struct hf *hf, int64_t now_ms, struct hf_error *err)
{
    int64_t newest_ms;
    int found = newest_slot(r, hf, now_ms, &newest_ms, err);
    bool ahead = found == 0;
    if (ahead)
        found = newest_slot(r, hf, now_ms + AHEAD_MS, &newest_ms, err);
    if (found < 0)
        return found;
    r->ahead_ms = found && ahead ? newest_ms : 0;
    if (!r->is_known || r->ahead_ms)
        r->done_ms = found ? newest_ms : now_ms;
    r->is_known = true;
    return 0;
}

/* ---- what is due ---------------------------------------------------------------------------- */

static int64_t next_slot(const struct recurring *r, int64_t after_ms)
{
    return hf_cron_next(&r->cron, r->zone, after_ms);
}

static int64_t count_slots(const struct recurring *r, int64_t after_ms, int64_t until_ms)
{
    int64_t n = 0;
    for (int64_t slot = next_slot(r, after_ms); slot <= until_ms; slot = next_slot(r, slot))
        n++;
    return n;
}

/* The newest slots that have not been seen to, at most `max`: looked for ever further back. */
static struct due newest_slots(const struct recurring *r, int64_t now_ms, int64_t max)
{
    int64_t after_ms, n;
    for (int64_t window_ms = hour_ms;; window_ms *= 4) {
        after_ms = r->done_ms < now_ms - window_ms ? now_ms - window_ms : r->done_ms;
        n = count_slots(r, after_ms, now_ms);
        if (n >= max || after_ms == r->done_ms)
            break;
    }
    struct due due = {.first_ms = next_slot(r, after_ms), .n = n};
    for (; due.n > max; due.n--)
        due.first_ms = next_slot(r, due.first_ms);
    return due;
}

static bool is_due(const struct recurring *r, int64_t now_ms)
{
    return !r->is_known || next_slot(r, r->done_ms) <= now_ms;
}

/* What of it counts, as the workflow's catch-up has it. */
static struct due what_is_due(const struct recurring *r, int64_t now_ms)
{
    int64_t catch_up = r->workflow->catch_up;
    struct due due = newest_slots(r, now_ms, catch_up == HF_CATCH_UP_ALL ? CATCH_UP_MAX : 1);
    bool late = due.n && due.first_ms < now_ms - ON_TIME_MS;
    due.missed = late || (due.n && next_slot(r, r->done_ms) < due.first_ms);
    if (catch_up == HF_CATCH_UP_NONE && late)
        due.n = 0;
    return due;
}

/* Once, until it goes on. */
static void say_ahead(const struct hf_scheduler *s, struct recurring *r, int64_t now_ms)
{
    char until[HF_TIME_LEN + 1];
    bool ahead = r->ahead_ms > now_ms + ON_TIME_MS;
    if (ahead && !r->said_ahead) {
        hf_format_time(r->ahead_ms, until);
        say(s,
            "%s: the only slot that is kept, %s, is later than this clock; it goes on after that",
            r->workflow->name, until);
    }
    r->said_ahead = ahead;
}

static void say_missed(const struct hf_scheduler *s, const struct recurring *r)
{
    char since[HF_TIME_LEN + 1], first[HF_TIME_LEN + 1];
    const char *name = r->workflow->name;
    const struct due *due = &r->due;
    hf_format_time(next_slot(r, r->done_ms), since);
    hf_format_time(due->first_ms, first);
    if (!due->n)
        say(s, "%s was due at %s and nobody was there; catch-up: none leaves it at that", name,
            since);
    else if (due->n == 1)
        say(s, "%s was due at %s and nobody was there; what was due last, at %s, is caught up with",
            name, since, first);
    else
        say(s, "%s was due at %s and nobody was there; %lld slots from %s on are caught up with%s",
            name, since, (long long)due->n, first,
            due->n == CATCH_UP_MAX ? ", which is the limit" : "");
}

/* ---- recording ------------------------------------------------------------------------------ */

/* One transaction's worth. Requests point into it: it stays where it is. */
struct batch {
    struct hf_scheduler *scheduler;
    struct hf *hf;
    char owner[HF_OWNER_MAX + 1];
    size_t n;
    struct hf_request requests[BATCH];
    struct hf_answer answers[BATCH];
    char keys[BATCH][SLOT_KEY_MAX], locks[BATCH][HF_NAME_MAX + 1], ids[BATCH][HF_UUID_LEN + 1];
};

/* All of it, or none: who fails is asked for all of it again. */
static int flush(struct batch *b, struct hf_error *err)
{
    size_t n = b->n;
    b->n = 0;
    int r = hf_apply(b->hf, b->requests, n, b->answers, err);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        const struct hf_request *req = &b->requests[i];
        int code = b->answers[i].code;
        if (code == -HF_KEY_REUSED)
            say(b->scheduler, "%s has an execution with key %s and an input; its slot is not run",
                req->workflow, req->key);
        else if (code < 0)
            r = hf_fail(err, -code, "%s, key %s: %s", req->workflow, req->key,
                        hf_code_meaning(code));
    }
    return r;
}

static int add(struct batch *b, const struct hf_workflow *w, int64_t slot_ms, struct hf_error *err)
{
    int r = b->n == BATCH ? flush(b, err) : 0;
    if (r < 0)
        return r;
    size_t i = b->n;
    format_key(slot_ms, b->keys[i]);
    hf_token(b->ids[i]);
    if ((r = hf_workflow_lock(w, b->keys[i], NULL, 0, b->locks[i], err)) < 0)
        return r;
    b->requests[i] =
        (struct hf_request){.op = HF_OP_ENQUEUE,
                            .name = b->locks[i],
                            .owner = b->owner,
                            .workflow = w->name,
                            .key = b->keys[i],
                            .execution_id = b->ids[i],
                            .run_at_ms = slot_ms + jitter_of(w, b->keys[i]),
                            .on_lost = (enum hf_on_lost)w->on_lost,
                            .max_attempts = hf_workflow_max_attempts(w),
                            .retry_backoff_ms = w->retries > 0 ? w->retry_backoff_ms : 0,
                            .concurrency = (int32_t)w->concurrency,
                            .overlap = HF_OVERLAP_QUEUE};
    b->n++;
    return 0;
}

/* The oldest first: whoever has to go on after us goes on from the newest that is there. */
static int record(struct batch *b, struct recurring *r, int64_t now_ms, struct hf_error *err)
{
    r->due = (struct due){0};
    int code = is_due(r, now_ms) ? find_done(r, b->hf, now_ms, err) : 0;
    if (code < 0)
        return code;
    if (is_due(r, now_ms))
        r->due = what_is_due(r, now_ms);
    int64_t slot = r->due.first_ms;
    for (int64_t i = 0; code >= 0 && i < r->due.n; i++, slot = next_slot(r, slot))
        code = add(b, r->workflow, slot, err);
    return code;
}

static int record_all(struct hf_scheduler *s, struct batch *b, int64_t now_ms, struct hf_error *err)
{
    int code = 0;
    for (size_t i = 0; code >= 0 && i < s->n; i++)
        code = record(b, &s->of[i], now_ms, err);
    return code >= 0 && b->n ? flush(b, err) : code;
}

/* False: it could not be recorded, and is to be tried again. */
static bool record_now(struct hf_scheduler *s, struct hf *hf, int64_t now_ms)
{
    struct hf_error err = {0};
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        return false;
    b->scheduler = s;
    b->hf = hf;
    hf_process_describe(getpid(), b->owner, sizeof b->owner);
    int code = record_all(s, b, now_ms, &err);
    free(b);
    if (code < 0)
        say_failing(s, &err);
    for (size_t i = 0; code >= 0 && i < s->n; i++)
        if (s->of[i].due.missed)
            say_missed(s, &s->of[i]);
    return code >= 0;
}

int64_t hf_scheduler_tick(struct hf_scheduler *s, struct hf *hf, int64_t now_ms)
{
    bool due = false;
    for (size_t i = 0; i < s->n; i++) {
        s->of[i].is_known &= s->of[i].ahead_ms <= now_ms + AHEAD_MS;
        due |= is_due(&s->of[i], now_ms);
    }
    if (due && !record_now(s, hf, now_ms))
        return now_ms + RETRY_MS;
    int64_t next_ms = s->n ? now_ms + LOOK_MS : INT64_MAX;
    for (size_t i = 0; i < s->n; i++) {
        struct recurring *r = &s->of[i];
        say_ahead(s, r, now_ms);
        r->done_ms = r->ahead_ms > now_ms ? r->ahead_ms : now_ms;
        int64_t slot = next_slot(r, r->done_ms);
        next_ms = slot < next_ms ? slot : next_ms;
    }
    s->failing = false;
    return next_ms;
}
