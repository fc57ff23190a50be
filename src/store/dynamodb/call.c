#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "error.h"
#include "id.h"
#include "transport.h"

enum {
    TRY_MS = 5000,
    CALL_MS = 15000,
    PAUSE_MS = 25,
    PAUSE_MAX_MS = 2000,
    KNOWN_MS = 15 * 60 * 1000 /* after so long without an answer the bounds are too wide */
};

/* ---- what is sent --------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool only_reads(const char *action)
{
    static const char *const reads[] = {"Get",         "Query",    "Scan", "BatchGet",
                                        "TransactGet", "Describe", "List"};
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
        if (begins(action, reads[i]))
            return true;
    return false;
}

static void name_table(struct hf_dynamo *d, json_t *in)
{
    json_object_set_new(in, "TableName", json_string(d->table));
}

/* A transaction names it in each of its parts: {"TransactItems": [{"Put": {...}}, ...]}. */
static void set_table(struct hf_dynamo *d, const char *action, json_t *body)
{
    const json_t *items = json_object_get(body, "TransactItems");
    if (begins(action, "Batch") || begins(action, "List") || begins(action, "DescribeEndpoints"))
        return;
    if (!items)
        name_table(d, body);
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        name_table(d, json_object_iter_value(json_object_iter(item)));
    }
}

static int add_json(const char *bytes, size_t n, void *arg)
{
    struct hf_buf *out = arg;
    hf_buf_add(out, bytes, n);
    return out->failed ? -1 : 0;
}

static int write_body(struct hf_dynamo *d, const char *action, json_t *body, struct hf_buf *out,
                      struct hf_error *err)
{
    if (body)
        set_table(d, action, body);
    if (!body || (json_dump_callback(body, add_json, out, JSON_COMPACT) < 0 && !out->failed))
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (out->failed)
        return hf_fail(err, HF_TOO_LARGE,
                       "too large for DynamoDB: an item may have 400 KB, a transaction 4 MB");
    return 0;
}

/* ---- what an answer means ------------------------------------------------------------------- */

enum verdict {
    DONE,
    FAILS,     /* for the caller to judge; not done */
    THROTTLED, /* not done; to be tried again */
    BROKEN,    /* may have been done; to be tried again */
    MISTIMED,  /* by now the time is known: to be tried again, once */
    EXPIRED,   /* with other keys to be tried again, once */
    REFUSED,
};

static const struct meaning {
    const char *name;
    enum verdict verdict;
    int code; /* as an error */
    const char *advice;
} meanings[] = {
    {"ConditionalCheckFailedException", FAILS, HF_RACED, NULL},
    {"TransactionCanceledException", FAILS, HF_RACED, NULL},
    {"IdempotentParameterMismatchException", FAILS, HF_INTERNAL, NULL},
    {"ResourceInUseException", FAILS, HF_UNAVAILABLE, NULL},
    {"ResourceNotFoundException", FAILS, HF_NOT_FOUND,
     "there is no such table; make it, or check its name and region"},
    {"ValidationException", FAILS, HF_INVALID, NULL},
    {"ProvisionedThroughputExceededException", THROTTLED, HF_UNAVAILABLE, NULL},
    {"ThrottlingException", THROTTLED, HF_UNAVAILABLE, NULL},
    {"Throttling", THROTTLED, HF_UNAVAILABLE, NULL},
    {"RequestLimitExceeded", THROTTLED, HF_UNAVAILABLE, NULL},
    {"LimitExceededException", THROTTLED, HF_UNAVAILABLE, NULL},
    {"TransactionConflictException", THROTTLED, HF_UNAVAILABLE, NULL},
    {"TransactionInProgressException", BROKEN, HF_UNAVAILABLE, NULL},
    {"ReplicatedWriteConflictException", THROTTLED, HF_UNAVAILABLE, NULL},
    {"InvalidSignatureException", MISTIMED, HF_UNAUTHORIZED,
     "it refuses the signature; check the secret access key and the region"},
    {"RequestTimeTooSkewed", MISTIMED, HF_UNAUTHORIZED, "it refuses the time of the signature"},
    {"RequestExpired", MISTIMED, HF_UNAUTHORIZED, "it refuses the time of the signature"},
    {"ExpiredTokenException", EXPIRED, HF_UNAUTHORIZED, "the credentials have expired"},
    {"ExpiredToken", EXPIRED, HF_UNAUTHORIZED, "the credentials have expired"},
    {"UnrecognizedClientException", EXPIRED, HF_UNAUTHORIZED,
     "it does not know the access key or the session token"},
    {"InvalidClientTokenId", EXPIRED, HF_UNAUTHORIZED, "it does not know the access key"},
    {"IncompleteSignatureException", REFUSED, HF_UNAUTHORIZED, "it does not understand who asks"},
    {"MissingAuthenticationTokenException", REFUSED, HF_UNAUTHORIZED, "it was not told who asks"},
    {"OptInRequired", REFUSED, HF_FORBIDDEN, "the account may not use this region"},
    {"AccessDeniedException", REFUSED, HF_FORBIDDEN, NULL},
    {"ItemCollectionSizeLimitExceededException", REFUSED, HF_TOO_LARGE, NULL},
    {"UnknownOperationException", REFUSED, HF_UNSUPPORTED, "it does not know this action"},
};

static const struct meaning *find_meaning(const char *name)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (strcmp(meanings[i].name, name) == 0)
            return &meanings[i];
    return NULL;
}

/* "com.amazonaws.dynamodb.v20120810#ThrottlingException" is a ThrottlingException. */
static const char *error_name(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "__type"));
    const char *hash = type ? strrchr(type, '#') : NULL;
    return hash ? hash + 1 : type ? type : "";
}

static const char *error_message(const json_t *json)
{
    const char *message = json_string_value(json_object_get(json, "message"));
    if (!message)
        message = json_string_value(json_object_get(json, "Message"));
    return message ? message : "";
}

/* Was it cancelled by nothing but others who were there at the same time, or too many of them? */
static bool met_others(const json_t *json)
{
    static const char *const passing[] = {"None", "TransactionConflict", "ThrottlingError",
                                          "ProvisionedThroughputExceeded"};
    const json_t *reason;
    size_t i, n = 0;
    json_array_foreach(json_object_get(json, "CancellationReasons"), i, reason)
    {
        const char *code = json_string_value(json_object_get(reason, "Code"));
        size_t k = 0;
        while (code && k < 4 && strcmp(code, passing[k]) != 0)
            k++;
        if (!code || k == 4)
            return false;
        n += k > 0;
    }
    return n > 0;
}

static enum verdict judge(long status, const json_t *json, const struct meaning **ret)
{
    const struct meaning *m = *ret = find_meaning(error_name(json));
    if (status == 200)
        return json ? DONE : BROKEN;
    if (status >= 500)
        return BROKEN;
    if (!m)
        return REFUSED;
    return m->verdict == FAILS && met_others(json) ? THROTTLED : m->verdict;
}

/* ---- as an error ---------------------------------------------------------------------------- */

/*
 * What the service says of a signature repeats what was signed, the session token too: where we have
 * words of our own, its words are not shown.
 */
static int fail(struct hf_dynamo *d, const char *action, const json_t *json, long status,
                struct hf_error *err)
{
    const char *name = error_name(json), *message = error_message(json);
    const struct meaning *m = find_meaning(name);
    int code = m ? m->code : status == 413 ? HF_TOO_LARGE : HF_UNAVAILABLE;
    if (!json || !*name)
        return hf_fail(err, code, "%s answers HTTP %ld to %s, as DynamoDB does not", d->endpoint,
                       status, action);
    if (strstr(message, "size has exceeded"))
        code = HF_TOO_LARGE;
    return hf_fail(err, code, "DynamoDB at %s, table %s, %s: %.80s: %.400s", d->endpoint, d->table,
                   action, name,
                   m && m->advice ? m->advice
                   : m            ? message
                                  : "");
}

int hf_dynamo_fail(struct hf_dynamo *d, const char *action, const char *failure, const json_t *json,
                   struct hf_error *err)
{
    (void)failure;
    return fail(d, action, json, 400, err);
}

/* ---- tries ---------------------------------------------------------------------------------- */

struct call {
    struct hf_dynamo *d;
    const char *action;
    const struct hf_buf *body;
    bool reads;
    bool maybe_done; /* a try ended so that it may have been done */
    bool retimed, rekeyed;
    int pauses;
    int64_t deadline_ms;
};

/* Full jitter: anything between nothing and twice as long as the last time. */
static bool pause_before_next(struct call *c)
{
    uint32_t random;
    int64_t longest = PAUSE_MS << (c->pauses < 10 ? c->pauses : 10);
    hf_random(&random, sizeof random);
    int64_t ms = random % ((longest < PAUSE_MAX_MS ? longest : PAUSE_MAX_MS) + 1);
    if (hf_clock_boot_ms() + ms >= c->deadline_ms)
        return false;
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&t, &t) < 0)
        continue;
    c->pauses++;
    return true;
}

static int send_once(struct call *c, const struct hf_dynamo_keys *keys, struct hf_dynamo_reply *ret,
                     struct hf_error *err)
{
    int64_t left = c->deadline_ms - hf_clock_boot_ms();
    struct hf_dynamo_request q = {.action = c->action,
                                  .body = c->body,
                                  .keys = keys,
                                  .changes = !c->reads,
                                  .timeout_ms = left < 1        ? 1
                                                : left < TRY_MS ? left
                                                                : TRY_MS};
    return hf_dynamo_send(c->d, &q, ret, err);
}

/* Is there any use in another try? It is prepared, then. */
static bool goes_on(struct call *c, enum verdict verdict, const struct hf_dynamo_keys *keys)
{
    switch (verdict) {
    case BROKEN:
        c->maybe_done |= !c->reads;
        return pause_before_next(c);
    case THROTTLED:
        return pause_before_next(c);
    case MISTIMED: /* signed by the wrong clock; by the answer's Date it will not be */
        return !c->retimed && (c->retimed = true);
    case EXPIRED:
        if (!c->rekeyed)
            hf_dynamo_keys_reject(c->d, keys);
        return !c->rekeyed && (c->rekeyed = true);
    default:
        return false;
    }
}

/* No answer: a read is asked again; anything else is for the caller to find out. */
static bool goes_on_without(struct call *c, int r)
{
    return r == -HF_UNKNOWN && c->reads && pause_before_next(c);
}

static int conclude(struct call *c, enum verdict verdict, const struct meaning *m, json_t *json,
                    long status, json_t **ret, const char **ret_failure, struct hf_error *err)
{
    if (verdict == DONE || (verdict == FAILS && !c->maybe_done)) {
        *ret = json_incref(json);
        *ret_failure = verdict == DONE ? NULL : m->name;
        return 0;
    }
    if (c->maybe_done)
        return hf_fail(err, HF_UNKNOWN,
                       "DynamoDB at %s failed during %s (HTTP %ld at last); it may or may not be "
                       "done",
                       c->d->endpoint, c->action, status);
    return fail(c->d, c->action, json, status, err);
}

/* One try. Positive: another one is due. */
static int try_once(struct call *c, json_t **ret, const char **ret_failure, struct hf_error *err)
{
    struct hf_dynamo_reply reply = {.body = HF_BUF(HF_DYNAMO_ANSWER_MAX)};
    struct hf_dynamo_keys *keys = NULL;
    const struct meaning *m;
    int r = hf_dynamo_keys_get(c->d, &keys, err);
    if (r < 0)
        return c->maybe_done ? hf_fail(err, HF_UNKNOWN, "%s may or may not be done", c->action) : r;
    r = send_once(c, keys, &reply, err);
    if (r < 0) {
        bool again = goes_on_without(c, r);
        if (!again && r == -HF_UNKNOWN && c->reads)
            err->code = r = -HF_UNAVAILABLE;
        else if (!again && c->maybe_done)
            err->code = r = -HF_UNKNOWN;
        r = again ? 1 : r;
    } else {
        json_t *json = reply.body.len ? json_loadb(reply.body.data, reply.body.len, 0, NULL) : NULL;
        enum verdict verdict = judge(reply.status, json, &m);
        r = goes_on(c, verdict, keys)
                ? 1
                : conclude(c, verdict, m, json, reply.status, ret, ret_failure, err);
        json_decref(json);
    }
    hf_buf_clear(&reply.body);
    hf_dynamo_keys_put(keys);
    return r;
}

int hf_dynamo_call_text(struct hf_dynamo *d, const char *action, const struct hf_buf *body,
                        json_t **ret, const char **ret_failure, struct hf_error *err)
{
    struct hf_error ignored = {0};
    struct call c = {.d = d,
                     .action = action,
                     .body = body,
                     .reads = only_reads(action),
                     .deadline_ms = hf_clock_boot_ms() + CALL_MS};
    int r;
    do
        r = try_once(&c, ret, ret_failure, err ? err : &ignored);
    while (r > 0);
    return r;
}

int hf_dynamo_call(struct hf_dynamo *d, const char *action, json_t *body, json_t **ret,
                   const char **ret_failure, struct hf_error *err)
{
    struct hf_buf text = HF_BUF(HF_DYNAMO_BODY_MAX);
    int r = write_body(d, action, body, &text, err);
    if (r >= 0)
        r = hf_dynamo_call_text(d, action, &text, ret, ret_failure, err);
    hf_buf_clear(&text);
    return r;
}

/* ---- the time ------------------------------------------------------------------------------- */

bool hf_dynamo_time(struct hf_dynamo *d, int64_t *ret_early_ms, int64_t *ret_late_ms)
{
    int64_t now = hf_clock_boot_ms();
    pthread_mutex_lock(&d->mutex);
    bool known = now - d->clock.learnt_at_ms < KNOWN_MS &&
                 hf_dynamo_clock_read(&d->clock, now, ret_early_ms, ret_late_ms);
    pthread_mutex_unlock(&d->mutex);
    return known;
}

int hf_dynamo_learn_time(struct hf_dynamo *d, struct hf_error *err)
{
    struct hf_dynamo_reply reply = {.body = HF_BUF(HF_DYNAMO_ANSWER_MAX)};
    struct hf_dynamo_request q = {.timeout_ms = TRY_MS};
    int64_t early, late;
    int r = 0;
    for (int i = 0; i < 2 && !hf_dynamo_time(d, &early, &late); i++) {
        hf_buf_clear(&reply.body);
        r = hf_dynamo_send(d, &q, &reply, err);
    }
    hf_buf_clear(&reply.body);
    if (hf_dynamo_time(d, &early, &late))
        return 0;
    if (r < 0) {
        if (err)
            err->code = -HF_UNAVAILABLE;
        return -HF_UNAVAILABLE;
    }
    return hf_fail(err, HF_UNAVAILABLE, "%s does not say what time it is (no Date)", d->endpoint);
}
