/*
 * A waiter is woken through a request that stays open: the service sends a line as soon as it
 * watches, and another whenever the waiter should ask again. A thread reads them; who waits polls an
 * eventfd. A stream that breaks wakes the waiter: it asks, and learns how things stand.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "error.h"
#include "http_store.h"
#include "thread.h"

enum { READY_MS = 5000, LOOK_MS = 60000, RETRY_MS = 1000 };

struct hf_http_wake {
    struct hf_http_wake *next;
    struct hf_http *store;
    pthread_t thread;
    int wake_fd, stop_fd, ready_fd; /* eventfds; ready: the service watches */
    bool heard;                     /* the first line has come */
    _Atomic bool refused;           /* the service can't wake, and says so */
    struct hf_buf url;
};

static size_t hear(char *bytes, size_t size, size_t n, void *arg)
{
    struct hf_http_wake *w = arg;
    (void)bytes;
    eventfd_write(w->heard ? w->wake_fd : w->ready_fd, 1);
    w->heard = true;
    return size * n;
}

static void ask(void *arg, CURL *easy, struct curl_slist **ret_headers)
{
    struct hf_http_wake *w = arg;
    const struct hf_curl *c = w->store->curl;
    hf_http_prepare(w->store, easy, ret_headers);
    c->easy_setopt(easy, CURLOPT_URL, w->url.data);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, hear);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, w);
}

static void ended(void *arg, long status)
{
    struct hf_http_wake *w = arg;
    w->refused = status == 404 || status == 501;
    w->heard = false;
    eventfd_write(w->wake_fd, 1);
    eventfd_write(w->ready_fd, 1);
}

static void *listen_main(void *arg)
{
    struct hf_http_wake *w = arg;
    struct hf_curl_stream stream = {.curl = w->store->curl,
                                    .stop_fd = w->stop_fd,
                                    .look_ms = LOOK_MS,
                                    .retry_ms = RETRY_MS,
                                    .arg = w,
                                    .ask = ask,
                                    .ended = ended};
    hf_curl_listen(&stream);
    return NULL;
}

static void wake_free(struct hf_http_wake *w)
{
    close(w->wake_fd);
    close(w->stop_fd);
    close(w->ready_fd);
    hf_buf_clear(&w->url);
    free(w);
}

static struct hf_http_wake *wake_new(struct hf_http *h, const char *name,
                                     const struct hf_lock_id *id)
{
    char hex[HF_LOCK_ID_LEN + 1];
    struct hf_http_wake *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->store = h;
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->url.cap = 2 * HF_URL_MAX;
    hf_lock_id_format(id, hex);
    hf_buf_printf(&w->url, "%s/v1/%s", h->origin, name ? "locks/" : "executions");
    if (name)
        hf_http_escape(&w->url, name);
    hf_buf_printf(&w->url, "/wakes?id=%s", hex);
    if (w->wake_fd >= 0 && w->stop_fd >= 0 && w->ready_fd >= 0 && !w->url.failed)
        return w;
    wake_free(w);
    return NULL;
}

static void stop(struct hf_http_wake *w)
{
    eventfd_write(w->stop_fd, 1);
    pthread_join(w->thread, NULL);
    wake_free(w);
}

/* Wait until the service watches, but not for ever: a waiter polls as well. */
static void await_ready(const struct hf_http_wake *w)
{
    struct pollfd ready = {.fd = w->ready_fd, .events = POLLIN};
    poll(&ready, 1, READY_MS);
}

int hf_http_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  int *ret_fd, struct hf_error *err)
{
    struct hf_http *h = hf_http_of(store);
    struct hf_http_wake *w = wake_new(h, name, id);
    if (!w)
        return hf_fail(err, HF_NOMEM, "out of memory or descriptors");
    int failed = hf_thread_start(&w->thread, listen_main, w);
    if (failed) {
        wake_free(w);
        return hf_fail_errno(err, HF_UNAVAILABLE, failed, "can't start a thread");
    }
    await_ready(w);
    if (!name && w->refused) { /* then a worker polls */
        stop(w);
        *ret_fd = -1;
        return 0;
    }
    pthread_mutex_lock(&h->mutex);
    w->next = h->wakes;
    h->wakes = w;
    pthread_mutex_unlock(&h->mutex);
    *ret_fd = w->wake_fd;
    return 0;
}

void hf_http_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd)
{
    struct hf_http *h = hf_http_of(store);
    (void)name, (void)id;
    pthread_mutex_lock(&h->mutex);
    struct hf_http_wake **at = &h->wakes;
    while (*at && (*at)->wake_fd != fd)
        at = &(*at)->next;
    struct hf_http_wake *w = *at;
    if (w)
        *at = w->next;
    pthread_mutex_unlock(&h->mutex);
    if (w)
        stop(w);
}
