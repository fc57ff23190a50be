/*
 * The rooms behind dynamo.h.
 *
 *   call.c         an action: its table, tries, what an error means
 *   request.c      one HTTP request: connections, signing by libcurl, was it sent, Date
 *   clock.c        the server's time
 *   credentials.c  who we are: whom to ask for keys, and when to ask again
 *   profile.c      keys from the files that AWS's tools share
 *   sts.c          keys for a web identity
 *   metadata.c     keys from a container's or an instance's own endpoint
 *   fetch.c        what those three ask
 *
 * Secrets are in struct hf_dynamo_keys only, and never in an error.
 */
#ifndef HF_DYNAMODB_TRANSPORT_H
#define HF_DYNAMODB_TRANSPORT_H

#include <pthread.h>

#include "buf.h"
#include "curl.h"
#include "dynamo.h"

enum {
    HF_DYNAMO_IDLE_MAX = 16,
    HF_DYNAMO_BODY_MAX = 24 << 20,  /* a transaction has 4 MB, in JSON and base64 more */
    HF_DYNAMO_ANSWER_MAX = 32 << 20 /* a page has 1 MB, a transaction 4 MB */
};

/* ---- clock.c -------------------------------------------------------------------------------- */

/* One Date, and between which moments of the boot clock it was written. */
struct hf_dynamo_sample {
    int64_t date_ms; /* 0: the answer had none */
    int64_t asked_ms, received_ms;
};

/* The server's time less the boot clock, from below and from above, and when that was measured. */
struct hf_dynamo_clock {
    bool known;
    int64_t early_ms, early_at_ms;
    int64_t late_ms, late_at_ms;
    int64_t learnt_at_ms; /* the last time that anything was answered */
};

void hf_dynamo_clock_learn(struct hf_dynamo_clock *clock, const struct hf_dynamo_sample *sample);
/* At this moment of the boot clock. False: nothing was learnt yet. */
bool hf_dynamo_clock_read(const struct hf_dynamo_clock *clock, int64_t boot_ms,
                          int64_t *ret_early_ms, int64_t *ret_late_ms);

/* "Mon, 16 Nov 2026 06:23:00 GMT"; 0: it is no such time. */
int64_t hf_dynamo_parse_date(const char *text);

/* "20261116T062300Z" */
enum { HF_DYNAMO_STAMP_LEN = 16 };
void hf_dynamo_format_stamp(int64_t at_ms, char ret[HF_DYNAMO_STAMP_LEN + 1]);

/* ---- credentials.c -------------------------------------------------------------------------- */

/* Shared by those who sign with them; never changed. */
struct hf_dynamo_keys {
    _Atomic int refs;
    int64_t refresh_ms; /* on the boot clock: when to ask for others. INT64_MAX: never */
    int64_t expires_ms; /* and when they are of no use any more */
    char *id, *secret;
    char *session; /* NULL: none */
};

struct hf_dynamo_credentials {
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t changed;
    struct hf_dynamo_keys *keys; /* NULL: none yet */
    bool asking;                 /* a thread is looking for others */
    int64_t not_before_ms;       /* it was in vain: no other tries until then, while these last */
    unsigned failures;
    struct hf_error failure; /* of the last look */
};

void hf_dynamo_credentials_init(struct hf_dynamo_credentials *c);
void hf_dynamo_credentials_clear(struct hf_dynamo_credentials *c);

/* Keys to sign with now; to be given back. */
int hf_dynamo_keys_get(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err);
void hf_dynamo_keys_put(struct hf_dynamo_keys *keys);

/* The service has refused them as expired or unknown: the next get looks for others. */
void hf_dynamo_keys_reject(struct hf_dynamo *d, const struct hf_dynamo_keys *keys);

struct hf_dynamo_found {
    const char *id, *secret;
    const char *session;    /* NULL or empty: none */
    const char *expiration; /* NULL or empty: never */
    int64_t date_ms;        /* what time it was where that was said; 0: not known */
};

/*
 * Where keys may come from. 1: they are found; 0: nothing of this kind is set up here; negative: it
 * is, but fails.
 */
typedef int hf_dynamo_source(struct hf_dynamo *d, struct hf_dynamo_keys **ret,
                             struct hf_error *err);
hf_dynamo_source hf_dynamo_from_web_identity, hf_dynamo_from_profile, hf_dynamo_from_container,
    hf_dynamo_from_instance;

/* For sources: 1 with keys, refreshed before they expire. `where` is for error texts. */
int hf_dynamo_keys_make(const struct hf_dynamo_found *found, const char *where,
                        struct hf_dynamo_keys **ret, struct hf_error *err);

/* ---- sts.c ---------------------------------------------------------------------------------- */

struct hf_dynamo_role {
    const char *arn, *token_file;
    const char *session_name; /* NULL: ours */
};

/* As a source. */
int hf_dynamo_assume(struct hf_dynamo *d, const struct hf_dynamo_role *role,
                     struct hf_dynamo_keys **ret, struct hf_error *err);

/* ---- fetch.c -------------------------------------------------------------------------------- */

enum { HF_DYNAMO_FETCH_MAX = 64 << 10 };

struct hf_dynamo_fetch {
    const char *method, *url;
    const char *headers[2]; /* lines; NULL: none */
    const char *body;       /* NULL: none */
    int64_t timeout_ms;
    bool direct; /* never through a proxy */
};

struct hf_dynamo_fetched {
    long status;
    int64_t date_ms; /* 0: it does not say */
    struct hf_buf body;
};

/* 0: there is an answer, of whatever status; to be cleared. -HF_UNAVAILABLE: there is none. */
int hf_dynamo_fetch(struct hf_dynamo *d, const struct hf_dynamo_fetch *q,
                    struct hf_dynamo_fetched *ret, struct hf_error *err);

/* Append a small file's text, without the spaces and line ends behind it. */
int hf_dynamo_read_file(const char *path, struct hf_buf *out, struct hf_error *err);

/* Clear what may be a secret. */
void hf_dynamo_wipe(struct hf_buf *b);

/* ---- request.c ------------------------------------------------------------------------------ */

struct hf_dynamo {
    const struct hf_curl *curl;
    char region[64], table[256];
    char endpoint[1024]; /* "https://dynamodb.eu-west-1.amazonaws.com", no slash at the end */
    char signing[128];   /* for libcurl: "aws:amz:REGION:dynamodb" */
    struct hf_dynamo_credentials credentials;
    pthread_mutex_t mutex; /* guards all below */
    CURL *idle[HF_DYNAMO_IDLE_MAX];
    size_t n_idle;
    struct hf_dynamo_clock clock;
};

/* What every request has: no signals, HTTP only, AWS_CA_BUNDLE. `direct`: never through a proxy. */
void hf_dynamo_set_up(const struct hf_curl *c, CURL *easy, bool direct);

/* The time of a header's line, if it is Date; else 0. */
int64_t hf_dynamo_see_date(const char *line, size_t n);

/* `scope` as libcurl wants it: "aws:amz:REGION:SERVICE". */
struct hf_dynamo_signature {
    const char *scope;
    const struct hf_dynamo_keys *keys;
    int64_t at_ms;
};

/*
 * Let libcurl sign the request: it signs every header that it is given, so none may be empty. False:
 * out of memory.
 */
bool hf_dynamo_sign(const struct hf_curl *c, CURL *easy, const struct hf_dynamo_signature *s,
                    struct curl_slist **headers);

struct hf_dynamo_request {
    const char *action; /* NULL: an unsigned GET */
    const struct hf_buf *body;
    const struct hf_dynamo_keys *keys;
    int64_t timeout_ms;
    bool changes; /* so that it matters whether it was done */
};

struct hf_dynamo_reply {
    long status;
    struct hf_buf body;
};

/*
 * 0: there is a reply, of whatever status, and its Date was learnt from. -HF_UNAVAILABLE: it was not
 * sent. -HF_UNKNOWN: it may have been.
 */
int hf_dynamo_send(struct hf_dynamo *d, const struct hf_dynamo_request *request,
                   struct hf_dynamo_reply *ret, struct hf_error *err);

#endif
