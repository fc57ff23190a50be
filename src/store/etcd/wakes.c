/*
 * Who waits here is woken through one stream: a watch on wake/CHANNEL/, where CHANNEL is this handle's.
 * Who grants the lock to a waiter puts the waiter's id there, in the same Txn. A stream that breaks goes
 * on from the revision after the last that was seen; where that was compacted away, everybody is woken
 * and looks. While workers sleep, the same thread keeps the etcd lease alive that says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "thread.h"
#include "wakes.h"

enum { READY_MS = 5000, RETRY_MS = 200, LOOK_MS = 1000, RENEW_EVERY = 5, LINE_MAX_BYTES = 4 << 20 };

/* ---- who is to be woken --------------------------------------------------------------------- */

static void signal_watcher(const struct hf_etcd_watcher *one)
{
    ssize_t ignored =
        write(one->write_fd, &one->id, sizeof one->id); /* a full pipe wakes as well */
    (void)ignored;
}

static void wake_one(struct hf_etcd_wakes *w, const struct hf_lock_id *id, bool told)
{
    pthread_mutex_lock(&w->mutex);
    for (size_t i = 0; i < w->n; i++) {
        if (!hf_lock_id_equal(&w->of[i].id, id))
            continue;
        w->of[i].told = told;
        signal_watcher(&w->of[i]);
    }
    pthread_mutex_unlock(&w->mutex);
}

static void wake_all(struct hf_etcd_wakes *w)
{
    pthread_mutex_lock(&w->mutex);
    for (size_t i = 0; i < w->n; i++)
        signal_watcher(&w->of[i]);
    pthread_mutex_unlock(&w->mutex);
}

static int add_watcher(struct hf_etcd_wakes *w, const struct hf_etcd_watcher *one)
{
    pthread_mutex_lock(&w->mutex);
    if (w->n == w->size) {
        size_t size = 2 * w->size + 8;
        struct hf_etcd_watcher *of = realloc(w->of, size * sizeof *of);
        if (of) {
            w->of = of;
            w->size = size;
        }
    }
    bool added = w->n < w->size;
    if (added)
        w->of[w->n++] = *one;
    pthread_mutex_unlock(&w->mutex);
    return added ? 0 : -HF_NOMEM;
}

/* ---- the stream ----------------------------------------------------------------------------- */

/* What was put together with the wake-up: NAME \1 RECORD. False: it does not say. */
static bool keep_news(struct hf_etcd *s, struct hf_etcd_kv *kv)
{
    char lock[HF_ETCD_KEY_MAX], alive[HF_ETCD_KEY_MAX];
    char *record = strchr(kv->value, '\1');
    if (!record || record - kv->value > HF_NAME_MAX)
        return false;
    *record++ = '\0';
    hf_etcd_key(s, lock, "lock/%s", kv->value);
    hf_etcd_key(s, alive, "alive/%s", kv->value);
    struct hf_etcd_kv its_lock = {
        .key = lock, .value = record, .len = strlen(record), .mod = kv->mod};
    struct hf_etcd_kv its_life = {.key = alive, .mod = kv->mod, .lease = kv->lease};
    hf_etcd_cache_keep(s->cache, &its_lock);
    hf_etcd_cache_keep(s->cache, &its_life);
    return true;
}

static void hear_event(struct hf_etcd_wakes *w, const json_t *event)
{
    struct hf_etcd_kv kv = {0};
    struct hf_lock_id id;
    size_t n;
    if (hf_etcd_take_kv(json_object_get(event, "kv"), &kv) &&
        (n = strlen(kv.key)) >= HF_LOCK_ID_LEN &&
        hf_lock_id_parse(kv.key + n - HF_LOCK_ID_LEN, &id))
        wake_one(w, &id, keep_news(w->s, &kv));
    hf_etcd_kv_clear(&kv);
}

static void hear_line(struct hf_etcd_wakes *w, const char *line, size_t n)
{
    json_t *json = json_loadb(line, n, 0, NULL);
    const json_t *result = json_object_get(json, "result");
    const json_t *events = json_object_get(result, "events");
    int64_t revision = hf_etcd_revision(result);
    if (json_is_true(json_object_get(result, "created")))
        eventfd_write(w->ready_fd, 1);
    for (size_t i = 0; i < json_array_size(events); i++)
        hear_event(w, json_array_get(events, i));
    if (json_is_true(json_object_get(result, "canceled"))) { /* compacted: begin with what is now */
        w->broken = true;
        revision = 0;
        w->last_revision = 0;
    }
    if (revision > w->last_revision)
        w->last_revision = revision;
    json_decref(json);
}

static size_t hear(char *bytes, size_t size, size_t n, void *arg)
{
    struct hf_etcd_wakes *w = arg;
    hf_buf_add(&w->line, bytes, size * n);
    if (w->line.failed)
        return 0;
    char *end;
    while (w->line.len && (end = memchr(w->line.data, '\n', w->line.len))) {
        size_t used = (size_t)(end - w->line.data) + 1;
        hear_line(w, w->line.data, used);
        memmove(w->line.data, w->line.data + used, w->line.len - used);
        w->line.len -= used;
    }
    return size * n;
}

static void write_request(struct hf_etcd_wakes *w, struct hf_buf *body)
{
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    hf_etcd_key(w->s, from, "wake/%s/", w->channel);
    hf_etcd_key(w->s, to, "wake/%s0", w->channel);
    hf_buf_puts(body, "{\"create_request\":{");
    hf_etcd_put_text(body, "key", from, strlen(from));
    hf_buf_putc(body, ',');
    hf_etcd_put_text(body, "range_end", to, strlen(to));
    hf_buf_puts(body, ",\"filters\":[\"NODELETE\"],\"progress_notify\":true");
    if (w->last_revision)
        hf_buf_printf(body, ",\"start_revision\":\"%lld\"", (long long)w->last_revision + 1);
    hf_buf_puts(body, "}}");
}

static void renew_lease(struct hf_etcd_wakes *w)
{
    pthread_mutex_lock(&w->mutex);
    int64_t lease = w->lease;
    pthread_mutex_unlock(&w->mutex);
    if (!lease || hf_etcd_lease_renew(w->s, lease, NULL) != -HF_NOT_FOUND)
        return;
    pthread_mutex_lock(&w->mutex);
    w->lease = 0;
    pthread_mutex_unlock(&w->mutex);
    wake_all(w); /* nobody knows any more that they sleep */
}

/* The stream that is open: from where, and when the lease was last renewed beside it. */
struct listening {
    struct hf_etcd_wakes *w;
    size_t endpoint;
    time_t renewed;
};

static void ask(void *arg, CURL *easy, struct curl_slist **ret_headers)
{
    struct listening *l = arg;
    struct hf_etcd_wakes *w = l->w;
    const struct hf_curl *c = w->s->curl;
    struct hf_buf body = HF_BUF(8192);
    char url[400];
    l->endpoint = w->s->current;
    l->renewed = time(NULL);
    w->broken = false;
    w->line.len = 0;
    w->line.failed = false;
    write_request(w, &body);
    snprintf(url, sizeof url, "%s/v3/watch", w->s->endpoints[l->endpoint]);
    hf_etcd_prepare(w->s, easy, ret_headers);
    c->easy_setopt(easy, CURLOPT_URL, url);
    c->easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)body.len);
    c->easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, body.data);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, hear);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, w);
    hf_buf_clear(&body);
}

/* Until it is broken, or another endpoint is better. */
static bool look(void *arg)
{
    struct listening *l = arg;
    struct hf_etcd_wakes *w = l->w;
    if (w->s->current != l->endpoint)
        return false;
    if (time(NULL) - l->renewed >= RENEW_EVERY) {
        renew_lease(w);
        l->renewed = time(NULL);
    }
    return !w->broken;
}

static void ended(void *arg, long status)
{
    struct listening *l = arg;
    (void)status;
    wake_all(l->w);
    hf_etcd_log_in(l->w->s, false, NULL);
}

static void *listen_main(void *arg)
{
    struct listening l = {.w = arg};
    struct hf_curl_stream stream = {.curl = l.w->s->curl,
                                    .stop_fd = l.w->stop_fd,
                                    .look_ms = LOOK_MS,
                                    .retry_ms = RETRY_MS,
                                    .arg = &l,
                                    .ask = ask,
                                    .look = look,
                                    .ended = ended};
    hf_curl_listen(&stream);
    return NULL;
}

/* ---- its life ------------------------------------------------------------------------------- */

static void wakes_free(struct hf_etcd_wakes *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->of[i].read_fd >= 0) {
            close(w->of[i].read_fd);
            close(w->of[i].write_fd);
        }
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    if (w->ready_fd >= 0)
        close(w->ready_fd);
    free(w->of);
    hf_buf_clear(&w->line);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

static int start(struct hf_etcd_wakes *w, struct hf_error *err)
{
    int failed = hf_thread_start(&w->thread, listen_main, w);
    return failed ? hf_fail_errno(err, HF_UNAVAILABLE, failed, "can't start a thread") : 0;
}

static void stop(struct hf_etcd_wakes *w)
{
    eventfd_write(w->stop_fd, 1);
    pthread_join(w->thread, NULL);
    wakes_free(w);
}

/* Made when somebody first waits; etcd watches when it returns, or the waiter polls. */
static int open_wakes(struct hf_etcd *s, struct hf_etcd_wakes **ret, struct hf_error *err)
{
    pthread_mutex_lock(&s->mutex);
    *ret = s->wakes;
    pthread_mutex_unlock(&s->mutex);
    if (*ret)
        return 0;
    struct hf_etcd_wakes *w = calloc(1, sizeof *w);
    if (!w)
        return hf_fail(err, HF_NOMEM, "out of memory");
    w->s = s;
    pthread_mutex_init(&w->mutex, NULL);
    w->line.cap = LINE_MAX_BYTES;
    hf_token(w->channel);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = w->stop_fd < 0 || w->ready_fd < 0
                ? hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait to be woken")
                : start(w, err);
    if (r < 0) {
        wakes_free(w);
        return r;
    }
    struct pollfd ready = {.fd = w->ready_fd, .events = POLLIN};
    poll(&ready, 1, READY_MS);
    pthread_mutex_lock(&s->mutex);
    struct hf_etcd_wakes *first = s->wakes;
    if (!first)
        s->wakes = w;
    pthread_mutex_unlock(&s->mutex);
    *ret = first ? first : w;
    if (first)
        stop(w);
    return 0;
}

void hf_etcd_wakes_close(struct hf_etcd *s)
{
    struct hf_etcd_wakes *w = s->wakes;
    if (!w)
        return;
    stop(w);
    s->wakes = NULL;
}

void hf_etcd_channel(struct hf_etcd *s, char ret[HF_UUID_LEN + 1])
{
    ret[0] = '\0';
    pthread_mutex_lock(&s->mutex);
    if (s->wakes)
        memcpy(ret, s->wakes->channel, HF_UUID_LEN + 1);
    pthread_mutex_unlock(&s->mutex);
}

enum hf_etcd_news hf_etcd_news_for(struct hf_etcd *s, const char *token)
{
    struct hf_etcd_wakes *w = s->wakes;
    enum hf_etcd_news found = HF_ETCD_NOT_WAITING;
    if (!w || !token)
        return found;
    struct hf_lock_id id = hf_lock_id_of(token);
    pthread_mutex_lock(&w->mutex);
    for (size_t i = 0; i < w->n; i++)
        if (hf_lock_id_equal(&w->of[i].id, &id)) {
            found = w->of[i].told ? HF_ETCD_NEWS : HF_ETCD_NO_NEWS;
            w->of[i].told = false;
        }
    pthread_mutex_unlock(&w->mutex);
    return found;
}

/* ---- what the store's operations are -------------------------------------------------------- */

int hf_etcd_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  int *ret_fd, struct hf_error *err)
{
    struct hf_etcd_wakes *w;
    int fds[2];
    (void)name;
    int r = open_wakes(hf_etcd_of(store), &w, err);
    if (r < 0)
        return r;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait to be woken");
    struct hf_etcd_watcher one = {.id = *id, .read_fd = fds[0], .write_fd = fds[1]};
    if (add_watcher(w, &one) < 0) {
        close(fds[0]);
        close(fds[1]);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    *ret_fd = fds[0];
    return 0;
}

void hf_etcd_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd)
{
    struct hf_etcd_wakes *w = hf_etcd_of(store)->wakes;
    (void)name, (void)id;
    if (!w || fd < 0)
        return;
    pthread_mutex_lock(&w->mutex);
    int write_fd = -1;
    for (size_t i = 0; i < w->n; i++)
        if (w->of[i].read_fd == fd)
            write_fd = w->of[i].write_fd;
    for (size_t i = w->n; write_fd >= 0 && i-- > 0;)
        if (w->of[i].write_fd == write_fd) /* those who share it go with it */
            w->of[i] = w->of[--w->n];
    if (write_fd >= 0) {
        close(fd);
        close(write_fd);
    }
    pthread_mutex_unlock(&w->mutex);
}

int hf_etcd_share(struct hf_store *store, const struct hf_lock_id *id,
                  const struct hf_lock_id *channel, struct hf_error *err)
{
    struct hf_etcd_wakes *w = hf_etcd_of(store)->wakes;
    struct hf_etcd_watcher one = {.id = *id, .read_fd = -1, .write_fd = -1};
    if (w) {
        pthread_mutex_lock(&w->mutex);
        for (size_t i = 0; i < w->n; i++)
            if (w->of[i].read_fd >= 0 && hf_lock_id_equal(&w->of[i].id, channel))
                one.write_fd = w->of[i].write_fd;
        pthread_mutex_unlock(&w->mutex);
    }
    if (one.write_fd < 0)
        return hf_fail(err, HF_INTERNAL, "nobody watches for this waiter");
    return add_watcher(w, &one) < 0 ? hf_fail(err, HF_NOMEM, "out of memory") : 0;
}

void hf_etcd_unshare(struct hf_store *store, const struct hf_lock_id *id)
{
    struct hf_etcd_wakes *w = hf_etcd_of(store)->wakes;
    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    for (size_t i = w->n; i-- > 0;)
        if (w->of[i].read_fd < 0 && hf_lock_id_equal(&w->of[i].id, id))
            w->of[i] = w->of[--w->n];
    pthread_mutex_unlock(&w->mutex);
}
