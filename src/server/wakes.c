/*
 * Streams for those who use this service as their store and ask by themselves (POST /v1/batch): a
 * line as soon as their waiter is watched, and one whenever it should ask again.
 */
#include <stdlib.h>
#include <string.h>

#include "id.h"
#include "server.h"

struct waker {
    struct woken woken; /* first */
    struct waker *next; /* in its bucket */
    struct server *server;
    struct request *req; /* NULL: the client has gone */
    char id[HF_LOCK_ID_LEN + 1];
    bool told_ready, is_woken, ended;
};

static ssize_t waker_read(void *arg, char *to, size_t size)
{
    static const char ready[] = ": watching\n\n", woken[] = "event: woken\ndata: {}\n\n";
    struct waker *w = arg;
    const char *text = !w->told_ready ? ready : w->is_woken ? woken : NULL;
    if (w->ended || !w->req)
        return STREAM_END;
    if (text && strlen(text) <= size) {
        w->is_woken &= !w->told_ready;
        w->told_ready = true;
        memcpy(to, text, strlen(text));
        return (ssize_t)strlen(text);
    }
    return 0;
}

static struct waker **bucket_of(struct server *server, const char *id)
{
    unsigned hash = 5381;
    for (; *id; id++)
        hash = hash * 33 + (unsigned char)*id;
    return &server->wakers[hash % WAKER_BUCKETS];
}

static struct waker **link_to(const struct waker *w)
{
    struct waker **at = bucket_of(w->server, w->id);
    while (*at != w)
        at = &(*at)->next;
    return at;
}

static void waker_free(void *arg)
{
    struct waker *w = arg;
    struct server *server = w->server;
    *link_to(w) = w->next;
    struct waker *other = *bucket_of(server, w->id);
    while (other && strcmp(other->id, w->id) != 0)
        other = other->next;
    if (!other)
        hf_watch_remove(server->watch, w->id, &w->woken);
    else /* who asked for a new stream may close the old one only now */
        hf_watch_add(server->watch, w->id, &other->woken, NULL);
    free(w);
}

static void waker_forget(struct request *req)
{
    struct waker *w = req->context;
    req->context = NULL;
    if (w)
        w->req = NULL;
}

/* All streams of that waiter: which of them is still read, nobody knows. */
static void wake(struct woken *woken)
{
    const struct waker *named = (struct waker *)woken;
    for (struct waker *w = *bucket_of(named->server, named->id); w; w = w->next) {
        if (strcmp(w->id, named->id) != 0)
            continue;
        w->is_woken = true;
        if (w->req)
            request_resume(w->req);
    }
}

void wakes_drain(struct server *server)
{
    for (int i = 0; i < WAKER_BUCKETS; i++)
        for (struct waker *w = server->wakers[i]; w; w = w->next) {
            w->ended = true;
            if (w->req)
                request_resume(w->req);
        }
}

/* Watched from here on; the answer that carries it owns it. */
static struct waker *waker_new(struct request *req, const char *id)
{
    struct server *server = req->server;
    struct waker *w = calloc(1, sizeof *w);
    if (!w || !server->watch || hf_watch_add(server->watch, id, &w->woken, NULL) < 0) {
        free(w);
        return NULL;
    }
    w->woken.wake = wake;
    w->server = server;
    w->req = req;
    req->context = w;
    req->forget = waker_forget;
    strcpy(w->id, id);
    struct waker **bucket = bucket_of(server, id);
    w->next = *bucket;
    *bucket = w;
    return w;
}

void get_wakes(struct request *req)
{
    char text[HF_LOCK_ID_LEN + 1] = "";
    struct hf_lock_id id;
    if (!request_query(req, "id", text, sizeof text) || !hf_lock_id_parse(text, &id)) {
        request_problem(req, HF_INVALID, "the parameter id must be the 32 digits of a lock id",
                        NULL);
        return;
    }
    struct waker *w = waker_new(req, text);
    if (!w) {
        request_problem(req, HF_UNSUPPORTED, "this store can't wake; ask from time to time", NULL);
        return;
    }
    request_stream(req, &(struct stream_source){waker_read, waker_free, w});
}
