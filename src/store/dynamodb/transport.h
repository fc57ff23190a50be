/*
 * The rooms behind dynamo.h.
 *
 *   call.c         an action: its table, tries, what an error means
 *   request.c      one HTTP request: connections, signing by libcurl, was it sent, Date
 *   clock.c        the server's time
 *   credentials.c  whose turn it is to say who we are, and when to ask again
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
};

void hf_dynamo_clock_learn(struct hf_dynamo_clock *clock, const struct hf_dynamo_sample *sample);
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
    int64_t expires_ms; /* on the boot clock; INT64_MAX: never */
    char *id, *secret;
    char *session; /* NULL: none */
};

struct hf_dynamo_credentials {
    pthread_mutex_t mutex; /* guards all below; held while others are asked for keys */
    struct hf_dynamo_keys *keys;
};

void hf_dynamo_credentials_init(struct hf_dynamo_credentials *c);
void hf_dynamo_credentials_clear(struct hf_dynamo_credentials *c);

/* Keys to sign with now; to be given back. */
int hf_dynamo_keys_get(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err);
void hf_dynamo_keys_put(struct hf_dynamo_keys *keys);

/* The service has refused them as expired: the next get finds others. */
void hf_dynamo_keys_reject(struct hf_dynamo *d, const struct hf_dynamo_keys *keys);

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

struct hf_dynamo_request {
    const char *action; /* NULL: an unsigned GET */
    const struct hf_buf *body;
    const struct hf_dynamo_keys *keys;
    int64_t timeout_ms;
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
