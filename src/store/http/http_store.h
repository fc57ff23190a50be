/*
 * The http store's own rooms: another Holdfast's service keeps the locks.
 *
 *   http.c    the vtable: requests as batches, lists and events in pages
 *   call.c    one HTTP request: connections, deadlines, the token, problems as errors
 *   wakes.c   waiting: a request that stays open and says when to ask again
 *   curl.c    libcurl, loaded on demand
 *
 * A request whose reply was lost is unknown; the client asks again with the same token.
 */
#ifndef HF_HTTP_STORE_H
#define HF_HTTP_STORE_H

#include <jansson.h>
#include <pthread.h>

#include "curl.h"
#include "store.h"

enum { HF_HTTP_ANSWER_MAX = 16 << 20, HF_HTTP_IDLE_MAX = 8 };

struct hf_http_wake;

struct hf_http {
    struct hf_store base;
    const struct hf_curl *curl;
    char origin[HF_URL_MAX]; /* "http://host:port", no slash at the end */
    char socket[256];        /* a Unix socket's path; empty: TCP */
    char ca_file[256];       /* whose certificates are trusted; empty: the system's */
    char *token;             /* NULL: none */
    pthread_mutex_t mutex;   /* guards all below */
    CURL *idle[HF_HTTP_IDLE_MAX];
    size_t n_idle;
    struct hf_http_wake *wakes;
};

static inline struct hf_http *hf_http_of(struct hf_store *store) { return (struct hf_http *)store; }

/* ---- call.c --------------------------------------------------------------------------------- */

/* What every request of this store has; `headers` is the caller's to free. */
void hf_http_prepare(struct hf_http *h, CURL *easy, struct curl_slist **ret_headers);

/*
 * GET where `body` is NULL, else POST. 0 with the answer's JSON, the caller's; a problem becomes its
 * code. -HF_UNKNOWN: a POST may have been done.
 */
int hf_http_call(struct hf_http *h, const char *path, const struct hf_buf *body, json_t **ret,
                 struct hf_error *err);

/* Append `text` percent-encoded. */
void hf_http_escape(struct hf_buf *out, const char *text);

/* ---- wakes.c -------------------------------------------------------------------------------- */

int hf_http_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  int *ret_fd, struct hf_error *err);
void hf_http_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd);

#endif
