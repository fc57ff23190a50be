/*
 * Being woken. Each handle has one channel and, once somebody waits, one connection that LISTENs
 * there, one socket for those of this machine (near.c), and one thread that reads both. A waiter's
 * descriptor is an eventfd; a watch without a name is a pipe, in which it is told whom it concerns:
 * itself, or one of those that share it. Behind a pooler a LISTEN would end up on a connection that
 * others share: then nobody is told, and waiters poll.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "error.h"
#include "postgres_store.h"
#include "thread.h"

enum {
    CHECK_MS = 5000,       /* a connection that was silent for so long is asked whether it lives */
    RECONNECT_MIN_MS = 50, /* the pause grows to the maximum */
    RECONNECT_MAX_MS = 3000,
    UNTOLD_MS = 20, /* a pipe that was full is tried again so soon */
    BUCKETS = 4096
};

struct watch {
    struct watch *next;
    struct hf_lock_id id;
    int fd; /* an eventfd, or where to write into the pipe; -1: it shares one */
    bool is_pipe;
    struct hf_lock_id channel; /* whose pipe it shares */
    bool untold;               /* the pipe was full */
    bool queued;               /* it has been told that it is in the queue */
    char *ahead;               /* processes of the one just ahead, when it was told; or NULL */
};

struct hf_pg_listener {
    struct hf_postgres *store;
    char channel[HF_PG_CHANNEL_LEN + 1];
    pthread_mutex_t mutex; /* of what follows */
    pthread_mutex_t starting;
    struct watch *watches[BUCKETS]; /* by id */
    size_t n_untold;
    bool running;   /* there is a thread */
    bool listening; /* the channel may be named in requests */
    bool no_use;    /* a pooler is between */
    bool closing;
    int backend_pid; /* of the connection that listens */
    int kick_fd;     /* wakes the thread when it is to end */
    int near_fd;     /* where those of this machine tell us; -1: they can't */
    pthread_t thread;
    struct hf_pg_connection *connection; /* the thread's own */
};

static void signal_fd(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

/* ---- the connection ------------------------------------------------------------------------- */

/* Is it the backend itself that we talk to? 1, 0, or negative where it could not be asked. */
static int is_direct(struct hf_postgres *s, PGconn *pg, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT pg_backend_pid()"};
    struct hf_pg_fault fault;
    PGresult *result;
    int64_t deadline_ms = hf_pg_now_ms() + s->timeout_ms;
    if (hf_pg_send(pg, &st, 1, deadline_ms, &result, &fault) != HF_PG_DONE)
        return hf_pg_fail(s, &fault, err);
    bool same = hf_pq.PQntuples(result) == 1 &&
                hf_pg_take_int(&(struct hf_pg_cursor){.result = result}) == hf_pq.PQbackendPID(pg);
    hf_pg_clear(&result, 1);
    return same;
}

static int listen_there(struct hf_pg_listener *l, PGconn *pg, struct hf_error *err)
{
    char sql[16 + HF_PG_CHANNEL_LEN];
    struct hf_pg_statement st = {.sql = sql};
    struct hf_pg_fault fault;
    PGresult *result;
    snprintf(sql, sizeof sql, "LISTEN %s", l->channel);
    int64_t deadline_ms = hf_pg_now_ms() + l->store->timeout_ms;
    if (hf_pg_send(pg, &st, 1, deadline_ms, &result, &fault) != HF_PG_DONE)
        return hf_pg_fail(l->store, &fault, err);
    hf_pg_clear(&result, 1);
    return 0;
}

/* 1: connected and listening; 0: a pooler is between, it would be of no use. */
static int connect_listener(struct hf_pg_listener *l, struct hf_error *err)
{
    struct hf_postgres *s = l->store;
    struct hf_pg_connection *c;
    const char *url = s->listen_url[0] ? s->listen_url : s->url;
    int r = hf_pg_connect(s, url, hf_pg_now_ms() + s->timeout_ms, &c, err);
    if (r < 0)
        return r;
    r = is_direct(s, c->pg, err);
    if (r == 1 && listen_there(l, c->pg, err) < 0)
        r = -HF_UNAVAILABLE;
    if (r == 1) {
        l->connection = c;
        pthread_mutex_lock(&l->mutex);
        l->backend_pid = hf_pq.PQbackendPID(c->pg);
        pthread_mutex_unlock(&l->mutex);
    } else
        hf_pg_disconnect(c);
    return r;
}

/* ---- waking --------------------------------------------------------------------------------- */

/* Ids are hashes themselves. */
static struct watch **bucket_of(struct hf_pg_listener *l, const struct hf_lock_id *id)
{
    return &l->watches[(id->bytes[0] << 8 | id->bytes[1]) % BUCKETS];
}

static struct watch *find(struct hf_pg_listener *l, const struct hf_lock_id *id)
{
    struct watch *w = *bucket_of(l, id);
    while (w && !hf_lock_id_equal(&w->id, id))
        w = w->next;
    return w;
}

static void add(struct hf_pg_listener *l, struct watch *w)
{
    struct watch **bucket = bucket_of(l, &w->id);
    w->next = *bucket;
    *bucket = w;
}

static struct watch *take_out(struct hf_pg_listener *l, const struct hf_lock_id *id)
{
    struct watch *found = find(l, id), **w = bucket_of(l, id);
    while (*w && *w != found)
        w = &(*w)->next;
    if (found) {
        *w = found->next;
        l->n_untold -= found->untold;
        found->untold = false;
    }
    return found;
}

/* False: it is to be told, and its pipe is full. */
static bool tell(struct hf_pg_listener *l, const struct watch *w)
{
    const struct watch *channel = w->fd < 0 ? find(l, &w->channel) : w;
    if (!channel)
        return true;
    if (!channel->is_pipe) {
        signal_fd(channel->fd);
        return true;
    }
    return write(channel->fd, &w->id, sizeof w->id) >= 0 || errno != EAGAIN;
}

static void wake(struct hf_pg_listener *l, struct watch *w)
{
    bool was_untold = w->untold;
    w->untold = !tell(l, w);
    l->n_untold += (size_t)w->untold - (size_t)was_untold;
}

static void wake_id(struct hf_pg_listener *l, const struct hf_lock_id *id)
{
    pthread_mutex_lock(&l->mutex);
    struct watch *w = find(l, id);
    if (w)
        wake(l, w);
    pthread_mutex_unlock(&l->mutex);
}

/* Something may have been missed; or only those for whom there was no room. */
static void wake_all(struct hf_pg_listener *l, bool only_untold)
{
    pthread_mutex_lock(&l->mutex);
    for (int i = 0; i < BUCKETS && (l->n_untold || !only_untold); i++)
        for (struct watch *w = l->watches[i]; w; w = w->next)
            if (w->untold || !only_untold)
                wake(l, w);
    pthread_mutex_unlock(&l->mutex);
}

static bool any_untold(struct hf_pg_listener *l)
{
    pthread_mutex_lock(&l->mutex);
    bool any = l->n_untold > 0;
    pthread_mutex_unlock(&l->mutex);
    return any;
}

static void deliver(struct hf_pg_listener *l)
{
    struct hf_lock_id id;
    for (PGnotify *note; (note = hf_pq.PQnotifies(l->connection->pg));) {
        if (hf_lock_id_parse(note->extra, &id))
            wake_id(l, &id);
        hf_pq.PQfreemem(note);
    }
}

static void deliver_near(struct hf_pg_listener *l)
{
    struct hf_lock_id id;
    while (l->near_fd >= 0 && hf_pg_near_receive(l->near_fd, &id))
        wake_id(l, &id);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static bool is_closing(struct hf_pg_listener *l)
{
    pthread_mutex_lock(&l->mutex);
    bool closing = l->closing;
    pthread_mutex_unlock(&l->mutex);
    return closing;
}

static void set_listening(struct hf_pg_listener *l, bool listening)
{
    pthread_mutex_lock(&l->mutex);
    l->listening = listening;
    pthread_mutex_unlock(&l->mutex);
}

/* False: the listener is being closed. */
static bool sleep_unless_closed(struct hf_pg_listener *l, int64_t ms)
{
    struct pollfd fd = {.fd = l->kick_fd, .events = POLLIN};
    poll(&fd, 1, (int)ms);
    return !is_closing(l);
}

static void reconnect(struct hf_pg_listener *l)
{
    int64_t pause_ms = RECONNECT_MIN_MS;
    hf_pg_disconnect(l->connection);
    l->connection = NULL;
    set_listening(l, false);
    while (sleep_unless_closed(l, hf_pg_jitter_ms(pause_ms))) {
        if (connect_listener(l, NULL) == 1) {
            set_listening(l, true);
            wake_all(l, false);
            return;
        }
        pause_ms = 2 * pause_ms < RECONNECT_MAX_MS ? 2 * pause_ms : RECONNECT_MAX_MS;
    }
}

/* Read what came; where nothing did for a while, ask for a sign of life. */
static bool is_well(struct hf_pg_listener *l, bool readable)
{
    PGconn *pg = l->connection->pg;
    bool well = readable ? hf_pq.PQconsumeInput(pg) && hf_pq.PQstatus(pg) == CONNECTION_OK
                         : is_direct(l->store, pg, NULL) == 1;
    deliver(l);
    return well;
}

static void *run(void *arg)
{
    struct hf_pg_listener *l = arg;
    int64_t heard_ms = hf_pg_now_ms();
    while (!is_closing(l)) {
        struct pollfd fds[] = {{.fd = l->connection->fd, .events = POLLIN},
                               {.fd = l->near_fd, .events = POLLIN},
                               {.fd = l->kick_fd, .events = POLLIN}};
        bool untold = any_untold(l);
        int n = poll(fds, 3, untold ? UNTOLD_MS : CHECK_MS);
        if (untold)
            wake_all(l, true);
        deliver_near(l);
        if (is_closing(l) || (n < 0 && errno == EINTR) || (n == 0 && untold) ||
            (n > 0 && !fds[0].revents && hf_pg_now_ms() - heard_ms < CHECK_MS))
            continue;
        heard_ms = hf_pg_now_ms();
        if (!is_well(l, n > 0 && fds[0].revents))
            reconnect(l);
        if (!l->connection)
            break;
    }
    return NULL;
}

static int start_thread(struct hf_pg_listener *l, struct hf_error *err)
{
    int failed = hf_thread_start(&l->thread, run, l);
    return failed ? hf_fail_errno(err, HF_UNAVAILABLE, failed, "can't start a thread to listen")
                  : 0;
}

/* Listening, or in the way of it again; false: waiters must poll. */
static bool start_listening(struct hf_pg_listener *l)
{
    pthread_mutex_lock(&l->starting);
    if (!l->running && !l->no_use) {
        if (!l->channel[0])
            l->near_fd = hf_pg_near_open(l->store->here, l->channel);
        int r = connect_listener(l, NULL);
        if (r == 1 && start_thread(l, NULL) < 0) {
            hf_pg_disconnect(l->connection);
            l->connection = NULL;
            r = -HF_UNAVAILABLE;
        }
        pthread_mutex_lock(&l->mutex);
        l->running = l->listening = r == 1;
        l->no_use = r == 0;
        pthread_mutex_unlock(&l->mutex);
    }
    bool running = l->running;
    pthread_mutex_unlock(&l->starting);
    return running;
}

/* ---- the listener --------------------------------------------------------------------------- */

struct hf_pg_listener *hf_pg_listener_new(struct hf_postgres *s)
{
    struct hf_pg_listener *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->store = s;
    l->near_fd = -1;
    l->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_mutex_init(&l->starting, NULL);
    if (l->kick_fd >= 0)
        return l;
    hf_pg_listener_free(l);
    return NULL;
}

void hf_pg_listener_free(struct hf_pg_listener *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->mutex);
    l->closing = true;
    pthread_mutex_unlock(&l->mutex);
    if (l->running) {
        signal_fd(l->kick_fd);
        pthread_join(l->thread, NULL);
    }
    if (l->connection)
        hf_pg_disconnect(l->connection);
    if (l->kick_fd >= 0)
        close(l->kick_fd);
    if (l->near_fd >= 0)
        close(l->near_fd);
    pthread_mutex_destroy(&l->mutex);
    pthread_mutex_destroy(&l->starting);
    free(l);
}

bool hf_pg_channel(struct hf_pg_listener *l, const struct hf_lock_id *id,
                   char ret[HF_PG_CHANNEL_LEN + 1])
{
    pthread_mutex_lock(&l->mutex);
    const struct watch *w = find(l, id);
    strcpy(ret, w && l->listening ? l->channel : "");
    bool queued = w && w->queued;
    pthread_mutex_unlock(&l->mutex);
    return queued;
}

/* ---- what is known of a waiter -------------------------------------------------------------- */

static void free_watch(struct watch *w)
{
    if (w)
        free(w->ahead);
    free(w);
}

void hf_pg_note_queued(struct hf_pg_listener *l, const struct hf_lock_id *id, const char *ahead)
{
    char *copy = strdup(ahead);
    pthread_mutex_lock(&l->mutex);
    struct watch *w = find(l, id);
    if (w) {
        char *before = w->ahead;
        w->ahead = copy;
        w->queued = true;
        copy = before;
    }
    pthread_mutex_unlock(&l->mutex);
    free(copy);
}

bool hf_pg_take_ahead(struct hf_pg_listener *l, const struct hf_lock_id *id,
                      char ret[HF_PROCESSES_TEXT_MAX])
{
    pthread_mutex_lock(&l->mutex);
    struct watch *w = find(l, id);
    char *ahead = w ? w->ahead : NULL;
    if (w)
        w->ahead = NULL;
    pthread_mutex_unlock(&l->mutex);
    if (!ahead)
        return false;
    snprintf(ret, HF_PROCESSES_TEXT_MAX, "%s", ahead);
    free(ahead);
    return true;
}

/* ---- watching ------------------------------------------------------------------------------- */

/* What the waiter polls, and where we write. */
static int open_descriptors(bool is_pipe, int *ret_fd, int *ret_write_fd)
{
    int fds[2];
    if (!is_pipe) {
        *ret_fd = *ret_write_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        return *ret_fd;
    }
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    *ret_fd = fds[0];
    *ret_write_fd = fds[1];
    return 0;
}

int hf_pg_listener_pid(struct hf_pg_listener *l)
{
    pthread_mutex_lock(&l->mutex);
    int pid = l->backend_pid;
    pthread_mutex_unlock(&l->mutex);
    return pid;
}

int hf_pg_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int *ret_fd,
                struct hf_error *err)
{
    struct hf_pg_listener *l = hf_postgres_of(store)->listener;
    int fd;
    *ret_fd = -1;
    if (!start_listening(l))
        return 0;
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return hf_fail(err, HF_NOMEM, "out of memory");
    w->id = *id;
    w->is_pipe = !name || !*name;
    if (open_descriptors(w->is_pipe, &fd, &w->fd) < 0) {
        int saved_errno = errno;
        free(w);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved_errno, "can't wait for %s",
                             name ? name : "work");
    }
    pthread_mutex_lock(&l->mutex);
    add(l, w);
    pthread_mutex_unlock(&l->mutex);
    *ret_fd = fd;
    return 0;
}

void hf_pg_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd)
{
    struct hf_pg_listener *l = hf_postgres_of(store)->listener;
    (void)name;
    pthread_mutex_lock(&l->mutex);
    struct watch *w = take_out(l, id);
    pthread_mutex_unlock(&l->mutex);
    if (w && w->is_pipe)
        close(w->fd);
    free_watch(w);
    close(fd);
}

int hf_pg_rewatch(struct hf_store *store, const struct hf_lock_id *from,
                  const struct hf_lock_id *to)
{
    struct hf_pg_listener *l = hf_postgres_of(store)->listener;
    pthread_mutex_lock(&l->mutex);
    struct watch *w = take_out(l, from);
    if (w) {
        w->id = *to;
        w->queued = false;
        free(w->ahead);
        w->ahead = NULL;
        add(l, w);
    }
    pthread_mutex_unlock(&l->mutex);
    return w ? 0 : -HF_UNSUPPORTED;
}

int hf_pg_share(struct hf_store *store, const struct hf_lock_id *id,
                const struct hf_lock_id *channel, struct hf_error *err)
{
    struct hf_pg_listener *l = hf_postgres_of(store)->listener;
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return hf_fail(err, HF_NOMEM, "out of memory");
    *w = (struct watch){.id = *id, .fd = -1, .channel = *channel};
    pthread_mutex_lock(&l->mutex);
    bool is_new = !find(l, id);
    if (is_new)
        add(l, w);
    pthread_mutex_unlock(&l->mutex);
    if (!is_new)
        free(w);
    return 0;
}

void hf_pg_unshare(struct hf_store *store, const struct hf_lock_id *id)
{
    struct hf_pg_listener *l = hf_postgres_of(store)->listener;
    pthread_mutex_lock(&l->mutex);
    struct watch *w = take_out(l, id);
    pthread_mutex_unlock(&l->mutex);
    free_watch(w);
}
