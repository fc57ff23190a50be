#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "clock.h"
#include "error.h"
#include "transport.h"

enum { CONNECT_MS = 3000, HEADER_MAX = 16 << 10 };

/* ---- connections ---------------------------------------------------------------------------- */

void hf_dynamo_set_up(const struct hf_curl *c, CURL *easy, bool direct)
{
    const char *ca_file = getenv("AWS_CA_BUNDLE");
    c->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    c->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    c->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy has its own Date */
    if (direct)
        c->easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (ca_file && *ca_file)
        c->easy_setopt(easy, CURLOPT_CAINFO, ca_file);
}

static CURL *new_handle(struct hf_dynamo *d)
{
    const struct hf_curl *c = d->curl;
    CURL *easy = c->easy_init();
    if (!easy)
        return NULL;
    hf_dynamo_set_up(c, easy, strncmp(d->endpoint, "https:", 6) != 0);
    c->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    c->easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
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

int64_t hf_dynamo_see_date(const char *line, size_t n)
{
    char text[64];
    if (n <= 5 || n >= sizeof text || strncasecmp(line, "Date:", 5) != 0)
        return 0;
    memcpy(text, line, n);
    text[n] = '\0';
    return hf_dynamo_parse_date(text + 5);
}

static size_t see_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;
    int64_t date_ms = hf_dynamo_see_date(bytes, size * n);
    if (date_ms) {
        x->sample.date_ms = date_ms;
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
    pthread_mutex_lock(&d->mutex);
    bool known = hf_dynamo_clock_read(&d->clock, hf_clock_boot_ms(), &early, &late);
    pthread_mutex_unlock(&d->mutex);
    return known ? early + (late - early) / 2 : hf_clock_wall_ms();
}

/* False: out of memory. */
static bool add_header(const struct hf_curl *c, struct curl_slist **list, const char *name,
                       const char *value)
{
    struct hf_buf line = HF_BUF(HEADER_MAX);
    hf_buf_printf(&line, "%s: %s", name, value);
    struct curl_slist *longer = line.failed ? NULL : c->slist_append(*list, line.data);
    hf_dynamo_wipe(&line);
    if (longer)
        *list = longer;
    return longer;
}

bool hf_dynamo_sign(const struct hf_curl *c, CURL *easy, const struct hf_dynamo_signature *s,
                    struct curl_slist **headers)
{
    char stamp[HF_DYNAMO_STAMP_LEN + 1];
    hf_dynamo_format_stamp(s->at_ms, stamp);
    c->easy_setopt(easy, CURLOPT_AWS_SIGV4, s->scope);
    c->easy_setopt(easy, CURLOPT_USERNAME, s->keys->id);
    c->easy_setopt(easy, CURLOPT_PASSWORD, s->keys->secret);
    return add_header(c, headers, "X-Amz-Date", stamp) &&
           (!s->keys->session || add_header(c, headers, "X-Amz-Security-Token", s->keys->session));
}

static bool sign(struct hf_dynamo *d, CURL *easy, const struct hf_dynamo_request *q,
                 struct curl_slist **headers)
{
    struct hf_dynamo_signature s = {.scope = d->signing, .keys = q->keys, .at_ms = signing_time(d)};
    char target[128];
    snprintf(target, sizeof target, "DynamoDB_20120810.%s", q->action);
    return add_header(d->curl, headers, "Content-Type", "application/x-amz-json-1.0") &&
           add_header(d->curl, headers, "X-Amz-Target", target) &&
           hf_dynamo_sign(d->curl, easy, &s, headers);
}

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
    if (q->action) {
        c->easy_setopt(easy, CURLOPT_POSTFIELDS, q->body->data);
        c->easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)q->body->len);
    } else {
        c->easy_setopt(easy, CURLOPT_AWS_SIGV4, NULL);
        c->easy_setopt(easy, CURLOPT_USERNAME, NULL);
        c->easy_setopt(easy, CURLOPT_PASSWORD, NULL);
        c->easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    }
}

static int fail(struct hf_dynamo *d, const struct hf_dynamo_request *q, const struct exchange *x,
                CURLcode code, struct hf_error *err)
{
    const char *why = code == CURLE_ABORTED_BY_CALLBACK ? "the connection was closed"
                                                        : d->curl->easy_strerror(code);
    if (!x->sent)
        return hf_fail(err, HF_UNAVAILABLE, "can't reach DynamoDB at %s: %s", d->endpoint, why);
    return hf_fail(err, HF_UNKNOWN, "no answer from DynamoDB at %s: %s%s", d->endpoint, why,
                   q->changes ? "; it may or may not be done" : "");
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
    if (!easy || (q->action && !sign(d, easy, q, &headers)))
        r = hf_fail(err, HF_NOMEM, "out of memory");
    if (r >= 0) {
        set_up(d, easy, q, &x, headers);
        CURLcode code = d->curl->easy_perform(easy);
        d->curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &ret->status);
        d->curl->easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
        learn(d, &x.sample);
        if (code != CURLE_OK)
            r = fail(d, q, &x, code, err);
    }
    d->curl->slist_free_all(headers);
    if (easy)
        give_handle(d, easy);
    return r;
}
