/*
 * Many waits, few descriptors. Every wait of a watch is woken through one FIFO, which says whom it
 * means; a process that one of them stands behind has a descriptor of its own, since only the kernel
 * can tell that it died. All of them are in one epoll.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client.h"
#include "error.h"

enum { N_BUCKETS = 16384 };

struct entry {
    struct entry *next; /* in its bucket */
    struct hf_lock_id id;
    void *arg;
    int fds[HF_BOUND_MAX]; /* of those whom it stands behind */
};

struct hf_watch {
    struct hf *hf;
    int epoll_fd, channel_fd;
    struct hf_lock_id channel;
    pthread_mutex_t mutex; /* guards the entries */
    struct entry *buckets[N_BUCKETS];
};

/* ---- entries -------------------------------------------------------------------------------- */

/* A token, or the lock id that stands for it. */
static struct hf_lock_id id_of(const char *token)
{
    struct hf_lock_id id;
    return strlen(token) == HF_LOCK_ID_LEN && hf_lock_id_parse(token, &id) ? id
                                                                           : hf_lock_id_of(token);
}

/* Where the entry hangs, or would. */
static struct entry **find(struct hf_watch *w, const struct hf_lock_id *id)
{
    struct entry **at = &w->buckets[((unsigned)id->bytes[0] << 8 | id->bytes[1]) % N_BUCKETS];
    while (*at && !hf_lock_id_equal(&(*at)->id, id))
        at = &(*at)->next;
    return at;
}

static void close_fds(struct entry *e)
{
    for (int i = 0; i < HF_BOUND_MAX; i++) {
        if (e->fds[i] >= 0)
            close(e->fds[i]);
        e->fds[i] = -1;
    }
}

static void drop(struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    close_fds(e);
    free(e);
}

/* ---- open and close ------------------------------------------------------------------------- */

void hf_watch_close(struct hf_watch *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < N_BUCKETS; i++)
        while (w->buckets[i]) {
            w->hf->store->ops->unshare(w->hf->store, &w->buckets[i]->id);
            drop(&w->buckets[i]);
        }
    if (w->channel_fd >= 0)
        w->hf->store->ops->unwatch(w->hf->store, "", &w->channel, w->channel_fd);
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

static int fail_unable(const struct hf *hf, struct hf_error *err)
{
    return hf_fail(err, HF_UNSUPPORTED, "%s can't wake waiters; ask again from time to time",
                   hf_url(hf));
}

int hf_watch_open(struct hf *hf, struct hf_watch **ret, struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    if (r < 0)
        return r;
    if (!hf->store->ops->share)
        return fail_unable(hf, err);
    struct hf_watch *w = calloc(1, sizeof *w);
    if (!w)
        return hf_fail(err, HF_NOMEM, "out of memory");
    w->hf = hf;
    w->channel_fd = -1;
    pthread_mutex_init(&w->mutex, NULL);
    hf_random(&w->channel, sizeof w->channel);
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll_fd < 0)
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't watch %s", hf_url(hf));
    else
        r = hf->store->ops->watch(hf->store, "", &w->channel, &w->channel_fd, err);
    if (r >= 0 && w->channel_fd < 0) /* as things are: a pooler is between */
        r = fail_unable(hf, err);
    struct epoll_event event = {.events = EPOLLIN};
    if (r >= 0 && epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->channel_fd, &event) < 0)
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't watch %s", hf_url(hf));
    if (r < 0) {
        hf_watch_close(w);
        return r;
    }
    *ret = w;
    return 0;
}

int hf_watch_fd(const struct hf_watch *watch) { return watch->epoll_fd; }

/* ---- who waits ------------------------------------------------------------------------------ */

int hf_watch_add(struct hf_watch *w, const char *token, void *arg, struct hf_error *err)
{
    struct hf_lock_id id = id_of(token);
    pthread_mutex_lock(&w->mutex);
    struct entry **at = find(w, &id);
    struct entry *e = *at;
    int r = 0;
    if (!e) {
        e = calloc(1, sizeof *e);
        r = e ? w->hf->store->ops->share(w->hf->store, &id, &w->channel, err)
              : hf_fail(err, HF_NOMEM, "out of memory");
    }
    if (r >= 0) {
        if (!*at)
            *e = (struct entry){.id = id, .fds = {-1, -1}};
        e->arg = arg;
        *at = e;
    } else
        free(e);
    pthread_mutex_unlock(&w->mutex);
    return r;
}

void hf_watch_remove(struct hf_watch *w, const char *token, const void *arg)
{
    struct hf_lock_id id = id_of(token);
    pthread_mutex_lock(&w->mutex);
    struct entry **at = find(w, &id);
    bool was_there = *at && (*at)->arg == arg;
    if (was_there)
        drop(at);
    pthread_mutex_unlock(&w->mutex);
    if (was_there)
        w->hf->store->ops->unshare(w->hf->store, &id);
}

bool hf_watch_behind(struct hf_watch *w, const char *name, const char *token)
{
    struct hf_lock_id id = id_of(token);
    struct hf_processes ahead = {0};
    const struct hf_store_ops *ops = w->hf->store->ops;
    if (!ops->ahead || ops->ahead(w->hf->store, name, &id, &ahead, NULL) < 0)
        return true;
    pthread_mutex_lock(&w->mutex);
    struct entry *e = *find(w, &id);
    if (e) {
        close_fds(e);
        if (ahead.n)
            hf_processes_watch(&ahead, e->fds);
        for (int i = 0; i < HF_BOUND_MAX; i++) {
            struct epoll_event event = {.events = EPOLLIN, .data.ptr = e};
            if (e->fds[i] >= 0)
                epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, e->fds[i], &event);
        }
    }
    pthread_mutex_unlock(&w->mutex);
    return !ahead.n || hf_processes_alive(&ahead) != HF_DEAD;
}

/* ---- workers that sleep --------------------------------------------------------------------- */

int hf_watch_idle(struct hf_watch *w, const char *token, const struct hf_claim_options *opts,
                  int64_t *ret_next_ms, struct hf_error *err)
{
    struct hf_lock_id id = id_of(token);
    return hf_idle_as(w->hf, &id, opts, ret_next_ms, err);
}

void hf_watch_awake(struct hf_watch *w, const char *token)
{
    struct hf_lock_id id = id_of(token);
    struct hf_store *store = w->hf->store;
    if (store->ops->idle)
        store->ops->idle(store, &id, NULL, NULL, NULL);
}

/* ---- who was woken -------------------------------------------------------------------------- */

/* The next one that the FIFO names and that still waits. */
static void *next_named(struct hf_watch *w)
{
    struct hf_lock_id id;
    while (read(w->channel_fd, &id, sizeof id) == (ssize_t)sizeof id) {
        struct entry *e = *find(w, &id);
        if (e)
            return e->arg;
    }
    return NULL;
}

void *hf_watch_next(struct hf_watch *w)
{
    struct epoll_event event;
    void *arg = NULL;
    pthread_mutex_lock(&w->mutex);
    if ((arg = next_named(w)) == NULL && epoll_wait(w->epoll_fd, &event, 1, 0) == 1 &&
        event.data.ptr) {
        struct entry *e = event.data.ptr;
        arg = e->arg;
        close_fds(e); /* told once */
    }
    pthread_mutex_unlock(&w->mutex);
    return arg;
}
