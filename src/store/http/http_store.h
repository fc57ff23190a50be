/*
 * The http store's own rooms: another Holdfast's service keeps the locks.
 *
 *   http.c    the vtable: requests as batches, lists and events in pages
 *   executions.c  what is asked about executions
 *   call.c    one HTTP request: connections, deadlines, the token, problems as errors
 *   wakes.c   waiting: a request that stays open and says when to ask again
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

/* A POST that changes nothing: no answer is only a service that is out of reach. */
int hf_http_ask(struct hf_http *h, const char *path, const struct hf_buf *body, json_t **ret,
                struct hf_error *err);

/* GET what is no JSON; its bytes are appended to `ret`. */
int hf_http_bytes(struct hf_http *h, const char *path, struct hf_buf *ret, struct hf_error *err);

/* Append `text` percent-encoded. */
void hf_http_escape(struct hf_buf *out, const char *text);

/* ---- http.c --------------------------------------------------------------------------------- */

/* Reads one item of a page and hands it on. Positive: that was enough; negative: a code. */
typedef int hf_http_item_fn(const json_t *item, void *arg, struct hf_error *err);

/* Where the pages begin: a path with a query, the name of its cursor, and its first value or "". */
struct hf_http_pages {
    const char *path, *cursor_name;
    char cursor[HF_NAME_MAX + 1];
};
int hf_http_read_pages(struct hf_http *h, struct hf_http_pages *p, hf_http_item_fn *fn, void *arg,
                       struct hf_error *err);

/* ---- executions.c --------------------------------------------------------------------------- */

int hf_http_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                      struct hf_error *err);
int hf_http_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                           hf_data_fn fn, void *arg, struct hf_error *err);
int hf_http_executions(struct hf_store *store, const struct hf_execution_query *query,
                       hf_execution_fn fn, void *arg, struct hf_error *err);
int hf_http_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
                size_t *ret_n, struct hf_error *err);
int hf_http_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                     char ret[HF_KEY_MAX + 1], struct hf_error *err);
int hf_http_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                 int64_t *ret_next_ms, struct hf_error *err);

/* ---- wakes.c -------------------------------------------------------------------------------- */

int hf_http_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  int *ret_fd, struct hf_error *err);
void hf_http_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd);

#endif
