#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "http_store.h"
#include "totals.h"
#include "wire.h"

enum {
    BATCH_MAX = 256,
    BODY_MAX = 60 << 10, /* after so much the batch is sent; one with an input may have more */
    BODY_LARGE = 24 << 20,
    PAGE = 1000
};

/* ---- changing ------------------------------------------------------------------------------- */

/*
 * As many of the requests as one call may have. Processes of this machine mean nothing to the
 * service: such leases are bound to none there, and only their ttl ends them.
 */
static size_t write_batch(const struct hf_request *requests, size_t n, struct hf_buf *out)
{
    size_t i = 0;
    hf_buf_puts(out, "{\"requests\":[");
    for (; i < n && i < BATCH_MAX && out->len < BODY_MAX; i++) {
        if (i)
            hf_buf_putc(out, ',');
        hf_wire_request(out, &requests[i]);
    }
    hf_buf_puts(out, "]}");
    return i;
}

static int read_answers(const json_t *json, size_t n, struct hf_answer *answers,
                        struct hf_error *err)
{
    const json_t *array = json_object_get(json, "answers");
    if (json_array_size(array) != n)
        return hf_fail(err, HF_UNKNOWN, "the service gave another number of answers");
    for (size_t i = 0; i < n; i++)
        if (hf_wire_read_answer(json_array_get(array, i), &answers[i], err) < 0) {
            if (err)
                err->code = -HF_UNKNOWN;
            return -HF_UNKNOWN;
        }
    return 0;
}

static int apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err)
{
    int r = 0;
    while (r >= 0 && n) {
        struct hf_buf body = HF_BUF(BODY_LARGE);
        json_t *json = NULL;
        size_t sent = write_batch(requests, n, &body);
        r = body.failed ? hf_fail(err, HF_NOMEM, "out of memory")
                        : hf_http_call(hf_http_of(store), "/v1/batch", &body, &json, err);
        if (r >= 0)
            r = read_answers(json, sent, answers, err);
        json_decref(json);
        hf_buf_clear(&body);
        requests += sent;
        answers += sent;
        n -= sent;
    }
    return r;
}

/* ---- looking -------------------------------------------------------------------------------- */

int hf_http_read_pages(struct hf_http *h, struct hf_http_pages *p, hf_http_item_fn *fn, void *arg,
                       struct hf_error *err)
{
    int r = 0, stop = 0;
    do {
        struct hf_buf url = HF_BUF(3 * HF_URL_MAX);
        json_t *json = NULL, *item;
        size_t i;
        hf_buf_puts(&url, p->path);
        if (*p->cursor) {
            hf_buf_printf(&url, "&%s=", p->cursor_name);
            hf_http_escape(&url, p->cursor);
        }
        r = hf_http_call(h, url.data ? url.data : "", NULL, &json, err);
        json_array_foreach(json_object_get(json, "items"), i, item) if (r >= 0 && !stop)
        {
            r = fn(item, arg, err);
            stop = r > 0;
        }
        const char *next = json_string_value(json_object_get(json, "nextCursor"));
        snprintf(p->cursor, sizeof p->cursor, "%s", next ? next : "");
        json_decref(json);
        hf_buf_clear(&url);
    } while (r >= 0 && !stop && *p->cursor);
    return r < 0 ? r : 0;
}

struct status_reader {
    hf_status_fn fn;
    void *arg;
};

static int read_status(const json_t *item, void *arg, struct hf_error *err)
{
    struct status_reader *reader = arg;
    struct hf_status status;
    int r = hf_wire_read_status(item, &status, err);
    return r < 0 ? r : reader->fn(reader->arg, &status) != 0;
}

static int list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                struct hf_error *err)
{
    static const char *const states[] = {
        [HF_LIST_HELD] = "held", [HF_LIST_STALE] = "stale", [HF_LIST_ALL] = "all"};
    struct hf_buf path = HF_BUF(HF_URL_MAX);
    struct status_reader reader = {fn, arg};
    hf_buf_printf(&path, "/v1/locks?limit=%d&state=%s&prefix=", PAGE, states[which->filter]);
    hf_http_escape(&path, which->prefix);
    struct hf_http_pages pages = {path.data ? path.data : "", "cursor", ""};
    strcpy(pages.cursor, which->after);
    int r = hf_http_read_pages(hf_http_of(store), &pages, read_status, &reader, err);
    hf_buf_clear(&path);
    return r;
}

struct event_reader {
    hf_event_fn fn;
    void *arg;
};

static int read_event(const json_t *item, void *arg, struct hf_error *err)
{
    struct event_reader *reader = arg;
    struct hf_event event;
    int r = hf_wire_read_event(item, &event, err);
    return r < 0 ? r : reader->fn(reader->arg, &event) != 0;
}

static int events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                  void *arg, struct hf_error *err)
{
    struct hf_buf path = HF_BUF(HF_URL_MAX);
    struct event_reader reader = {fn, arg};
    hf_buf_printf(&path, "/v1/events?limit=%d&since=%lld&newest=%lld", PAGE,
                  (long long)query->since_ms, (long long)(query->limit > 0 ? query->limit : 0));
    if (query->name) {
        hf_buf_puts(&path, "&name=");
        hf_http_escape(&path, query->name);
    }
    struct hf_http_pages pages = {path.data ? path.data : "", "after", ""};
    snprintf(pages.cursor, sizeof pages.cursor, "%lld", (long long)query->after_seq);
    int r = hf_http_read_pages(hf_http_of(store), &pages, read_event, &reader, err);
    hf_buf_clear(&path);
    return r;
}

static int totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    json_t *json = NULL;
    struct hf_totals read = {0};
    int r = hf_http_call(hf_http_of(store), "/v1/totals", NULL, &json, err);
    if (r >= 0)
        r = hf_totals_read(json, &read, err);
    json_decref(json);
    if (r < 0)
        return r;
    read.locks_held = read.locks_stale = read.locks_free = read.waiters = 0; /* the caller counts */
    *ret = read;
    return 0;
}

static int init(struct hf_store *store, bool bump_epoch, struct hf_error *err)
{
    json_t *json = NULL;
    if (bump_epoch)
        return hf_fail(err, HF_UNSUPPORTED,
                       "the epoch can't be raised through a service; run init --bump-epoch on the "
                       "store that it serves");
    int r = hf_http_call(hf_http_of(store), "/readyz", NULL, &json, err);
    json_decref(json);
    return r;
}

/* ---- open and close ------------------------------------------------------------------------- */

static void close_store(struct hf_store *store)
{
    struct hf_http *h = hf_http_of(store);
    while (h->n_idle)
        h->curl->easy_cleanup(h->idle[--h->n_idle]);
    pthread_mutex_destroy(&h->mutex);
    if (h->token)
        explicit_bzero(h->token, strlen(h->token));
    free(h->token);
    free(h);
}

static int read_token(struct hf_http *h, const char *path, struct hf_error *err)
{
    char line[256] = "";
    FILE *file = fopen(path, "re");
    if (!file || !fgets(line, sizeof line, file))
        return hf_fail_errno(err, HF_UNAVAILABLE, file ? ENODATA : errno,
                             "can't read the service's token from %s", path);
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    h->token = strdup(line);
    explicit_bzero(line, sizeof line);
    return h->token ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
}

/* In a file rather than in the URL, which others can see in the list of processes. */
static int find_token(struct hf_http *h, const struct hf_url *url, struct hf_error *err)
{
    const char *file = hf_url_param(url, "token-file");
    const char *token = getenv("HOLDFAST_API_TOKEN");
    if (!file)
        file = getenv("HOLDFAST_API_TOKEN_FILE");
    if (file && *file)
        return read_token(h, file, err);
    if (token && *token && !(h->token = strdup(token)))
        return hf_fail(err, HF_NOMEM, "out of memory");
    return 0;
}

static int take_origin(struct hf_http *h, const struct hf_url *url, struct hf_error *err)
{
    const char *host = strstr(url->whole, "://");
    size_t n = strcspn(url->whole, "?");
    if (!host || host[3] == '\0' || host[3] == '/' || host[3] == '?')
        return hf_fail(err, HF_INVALID, "%s: needs a host, e.g. %s://localhost:7480", url->scheme,
                       url->scheme);
    if (memchr(host, '@', n - (size_t)(host - url->whole)))
        return hf_fail(
            err, HF_INVALID,
            "the service knows no passwords; name a file with its token by ?token-file=");
    while (n && url->whole[n - 1] == '/')
        n--;
    snprintf(h->origin, sizeof h->origin, "%.*s", (int)n, url->whole);
    const char *path = hf_url_param(url, "socket");
    snprintf(h->socket, sizeof h->socket, "%s", path ? path : "");
    path = hf_url_param(url, "ca-file");
    snprintf(h->ca_file, sizeof h->ca_file, "%s", path ? path : "");
    return 0;
}

static int open_store(const struct hf_url *url, struct hf_store **ret, struct hf_error *err)
{
    static const char *const known[] = {"token-file", "ca-file", "socket", NULL};
    int r = hf_url_check_params(url, known, err);
    if (r < 0)
        return r;
    struct hf_http *h = calloc(1, sizeof *h);
    if (!h)
        return hf_fail(err, HF_NOMEM, "out of memory");
    pthread_mutex_init(&h->mutex, NULL);
    if ((r = take_origin(h, url, err)) < 0 || (r = hf_curl_load(&h->curl, err)) < 0 ||
        (r = find_token(h, url, err)) < 0) {
        close_store(&h->base);
        return r;
    }
    *ret = &h->base;
    return 0;
}

const struct hf_store_ops hf_http_store = {
    .scheme = "http",
    .alias = "https",
    .form = "http://HOST:PORT",
    .open = open_store,
    .close = close_store,
    .apply = apply,
    .list = list,
    .events = events,
    .totals = totals,
    .execution = hf_http_execution,
    .execution_data = hf_http_execution_data,
    .executions = hf_http_executions,
    .due = hf_http_due,
    .last_key = hf_http_last_key,
    .idle = hf_http_idle,
    .init = init,
    .watch = hf_http_watch,
    .unwatch = hf_http_unwatch,
};
