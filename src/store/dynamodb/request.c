#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "clock.h"
#include "error.h"
#include "transport.h"

enum { CONNECT_MS = 3000, HEADER_MAX = 16 << 10 };

/* ---- connections ---------------------------------------------------------------------------- */

/* What every request of this endpoint has. */
static CURL *new_handle(struct hf_dynamo *d)
{
    const struct hf_curl *c = d->curl;
    const char *ca_file = getenv("AWS_CA_BUNDLE");
    CURL *easy = c->easy_init();
    if (!easy)
        return NULL;
    c->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    c->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    c->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    c->easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    if (strncmp(d->endpoint, "https:", 6) != 0)
        c->easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (ca_file && *ca_file)
        c->easy_setopt(easy, CURLOPT_CAINFO, ca_file);
    return easy;
}

static CURL *take_handle(struct hf_dynamo *d)
{
    pthread_mutex_lock(&d->mutex);
    CURL *easy = d->n_idle ? d->idle[--d->n_idle] : NULL;
    pthread_mutex_unlock(&d->mutex);
    return easy ? easy : new_handle(d);
}

static void give_handle(struct hf_dynamo *d, CURL *easy)
{
    pthread_mutex_lock(&d->mutex);
    bool kept = d->n_idle < HF_DYNAMO_IDLE_MAX;
    if (kept)
        d->idle[d->n_idle++] = easy;
    pthread_mutex_unlock(&d->mutex);
    if (!kept)
        d->curl->easy_cleanup(easy);
}

/* ---- what happens on the way ---------------------------------------------------------------- */

struct exchange {
    struct hf_buf *answer;
    struct hf_dynamo_sample sample;
    int sent; /* how often a connection was ready for it */
};

static size_t add_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;
    hf_buf_add(x->answer, bytes, size * n);
    return x->answer->failed ? 0 : size * n;
}

static size_t see_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;
    char line[64];
    if (size * n < sizeof line && size * n > 5 && strncasecmp(bytes, "Date:", 5) == 0) {
        memcpy(line, bytes, size * n);
        line[size * n] = '\0';
        x->sample.date_ms = hf_dynamo_parse_date(line + 5);
        x->sample.received_ms = hf_clock_boot_ms();
    }
    return size * n;
}

/*
 * libcurl sends a request again by itself when a connection that was kept turns out to be closed; but
 * it may have been done already. Whether to ask again is for the caller to say.
 */
static int see_sending(void *arg, char *remote, char *local, int remote_port, int local_port)
{
    struct exchange *x = arg;
    (void)remote, (void)local, (void)remote_port, (void)local_port;
    x->sample.asked_ms = hf_clock_boot_ms();
    return x->sent++ ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

/* ---- the request ---------------------------------------------------------------------------- */

/* The server's time where it is known: a signature by a clock that is off is refused. */
static int64_t signing_time(struct hf_dynamo *d)
{
    int64_t early, late;
    return hf_dynamo_time(d, &early, &late) ? early + (late - early) / 2 : hf_clock_wall_ms();
}

/* False: out of memory. */
static bool add_header(struct hf_dynamo *d, struct curl_slist **list, const char *name,
                       const char *value)
{
    struct hf_buf line = HF_BUF(HEADER_MAX);
    hf_buf_printf(&line, "%s: %s", name, value);
    struct curl_slist *longer = line.failed ? NULL : d->curl->slist_append(*list, line.data);
    if (line.data)
        explicit_bzero(line.data, line.len);
    hf_buf_clear(&line);
    if (longer)
        *list = longer;
    return longer;
}

/* All of them are signed: libcurl does so with what it is given, so none may be empty. */
static bool make_headers(struct hf_dynamo *d, const struct hf_dynamo_request *q,
                         struct curl_slist **ret)
{
    char stamp[HF_DYNAMO_STAMP_LEN + 1], target[128];
    hf_dynamo_format_stamp(signing_time(d), stamp);
    snprintf(target, sizeof target, "DynamoDB_20120810.%s", q->action);
    return add_header(d, ret, "Content-Type", "application/x-amz-json-1.0") &&
           add_header(d, ret, "X-Amz-Date", stamp) &&
           (!q->keys->session || add_header(d, ret, "X-Amz-Security-Token", q->keys->session)) &&
           add_header(d, ret, "X-Amz-Target", target);
}

/* Signed with `keys`, or a plain GET. */
static void set_up(struct hf_dynamo *d, CURL *easy, const struct hf_dynamo_request *q,
                   struct exchange *x, const struct curl_slist *headers)
{
    const struct hf_curl *c = d->curl;
    c->easy_setopt(easy, CURLOPT_URL, d->endpoint);
    c->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)q->timeout_ms);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, add_bytes);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, x);
    c->easy_setopt(easy, CURLOPT_HEADERFUNCTION, see_header);
    c->easy_setopt(easy, CURLOPT_HEADERDATA, x);
    c->easy_setopt(easy, CURLOPT_PREREQFUNCTION, see_sending);
    c->easy_setopt(easy, CURLOPT_PREREQDATA, x);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    c->easy_setopt(easy, CURLOPT_AWS_SIGV4, q->action ? d->signing : NULL);
    if (!q->action) {
        c->easy_setopt(easy, CURLOPT_HTTPGET, 1L);
        return;
    }
    c->easy_setopt(easy, CURLOPT_USERNAME, q->keys->id);
    c->easy_setopt(easy, CURLOPT_PASSWORD, q->keys->secret);
    c->easy_setopt(easy, CURLOPT_POSTFIELDS, q->body->data);
    c->easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)q->body->len);
}

static int fail(struct hf_dynamo *d, const struct exchange *x, CURLcode code, struct hf_error *err)
{
    if (!x->sent)
        return hf_fail(err, HF_UNAVAILABLE, "can't reach DynamoDB at %s: %s", d->endpoint,
                       d->curl->easy_strerror(code));
    return hf_fail(err, HF_UNKNOWN, "no answer from DynamoDB at %s: %s; it may or may not be done",
                   d->endpoint,
                   code == CURLE_ABORTED_BY_CALLBACK ? "the connection was closed"
                                                     : d->curl->easy_strerror(code));
}

static void learn(struct hf_dynamo *d, const struct hf_dynamo_sample *sample)
{
    if (!sample->date_ms)
        return;
    pthread_mutex_lock(&d->mutex);
    hf_dynamo_clock_learn(&d->clock, sample);
    pthread_mutex_unlock(&d->mutex);
}

int hf_dynamo_send(struct hf_dynamo *d, const struct hf_dynamo_request *q,
                   struct hf_dynamo_reply *ret, struct hf_error *err)
{
    struct exchange x = {.answer = &ret->body};
    struct curl_slist *headers = NULL;
    int r = 0;
    CURL *easy = take_handle(d);
    if (!easy || (q->action && !make_headers(d, q, &headers)))
        r = hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0) {
        set_up(d, easy, q, &x, headers);
        CURLcode code = d->curl->easy_perform(easy);
        d->curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &ret->status);
        d->curl->easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
        learn(d, &x.sample);
        if (code != CURLE_OK)
            r = fail(d, &x, code, err);
    }
    d->curl->slist_free_all(headers);
    if (easy)
        give_handle(d, easy);
    return r;
}
