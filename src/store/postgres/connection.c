#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "forked.h"
#include "postgres_store.h"

enum {
    IDLE_MAX_MS = 240000, /* older ones may have been forgotten by a firewall between */
    PAUSE_MIN_MS = 20,    /* before trying again at a server that is starting or full */
    PAUSE_MAX_MS = 500
};

int64_t hf_pg_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void hf_pg_pause(int64_t ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

int hf_pg_await(const PGconn *pg, short events, int64_t deadline_ms)
{
    struct pollfd fd = {.fd = hf_pq.PQsocket(pg), .events = events};
    for (;;) {
        int64_t left_ms = deadline_ms - hf_pg_now_ms();
        if (fd.fd < 0 || left_ms <= 0)
            return -1;
        int n = poll(&fd, 1, left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
    }
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* libpq would print them. */
static void ignore_notice(void *arg, const char *message)
{
    (void)arg;
    (void)message;
}

/* What stands before `dbname` the URL may change, what stands behind it not. */
static PGconn *start(const char *url, int64_t timeout_ms)
{
    char user_timeout_ms[24];
    /* With several hosts one that does not answer must leave time for the next. */
    snprintf(user_timeout_ms, sizeof user_timeout_ms, "%lld",
             (long long)(strchr(url, ',') ? timeout_ms / 2 : timeout_ms));
    const char *const keys[] = {
        "keepalives_idle", "keepalives_interval",       "keepalives_count", "tcp_user_timeout",
        "dbname",          "fallback_application_name", "client_encoding",  NULL};
    const char *const values[] = {"10", "3", "3", user_timeout_ms, url, "holdfast", "UTF8", NULL};
    return hf_pq.PQconnectStartParams(keys, values, 1);
}

/* Drive the connection until it is made, has failed, or the time is up. */
static bool complete(PGconn *pg, int64_t deadline_ms)
{
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;
    while (hf_pq.PQstatus(pg) != CONNECTION_BAD && state != PGRES_POLLING_OK) {
        if (state == PGRES_POLLING_FAILED ||
            hf_pg_await(pg, state == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline_ms) < 0)
            return false;
        state = hf_pq.PQconnectPoll(pg);
    }
    return state == PGRES_POLLING_OK && hf_pq.PQsetnonblocking(pg, 1) == 0 &&
           hf_pq.PQenterPipelineMode(pg) == 1;
}

static void note_late(struct hf_pg_fault *fault, int64_t timeout_ms)
{
    *fault = (struct hf_pg_fault){.sqlstate = ""};
    snprintf(fault->message, sizeof fault->message, "no connection could be made within %lld ms",
             (long long)timeout_ms);
}

static PGconn *connect_once(struct hf_postgres *s, const char *url, int64_t deadline_ms,
                            struct hf_pg_fault *fault)
{
    PGconn *pg = start(url, s->timeout_ms);
    if (!pg) {
        hf_pg_fault_text(fault, "out of memory");
        return NULL;
    }
    hf_pq.PQsetNoticeProcessor(pg, ignore_notice, NULL);
    hf_pq.PQsetErrorVerbosity(pg, PQERRORS_VERBOSE); /* with it the text has the SQLSTATE */
    if (complete(pg, deadline_ms))
        return pg;
    if (hf_pg_now_ms() >= deadline_ms && hf_pq.PQstatus(pg) != CONNECTION_BAD)
        note_late(fault, s->timeout_ms);
    else
        hf_pg_fault_of_connecting(fault, pg);
    hf_pq.PQfinish(pg);
    return NULL;
}

int64_t hf_pg_jitter_ms(int64_t ms)
{
    uint32_t random;
    hf_random(&random, sizeof random);
    return ms / 2 + (int64_t)(random % (uint32_t)(ms / 2 + 1));
}

/* A pause that grows; false where no time is left for another try. */
static bool pause_before(int64_t deadline_ms, int64_t *pause_ms)
{
    int64_t ms = hf_pg_jitter_ms(*pause_ms);
    if (hf_pg_now_ms() + ms >= deadline_ms)
        return false;
    hf_pg_pause(ms);
    *pause_ms = *pause_ms < PAUSE_MAX_MS ? *pause_ms * 2 : *pause_ms;
    return true;
}

/*
 * A server that is starting, or has no connection left just now, may soon have one; and one that we
 * have reached before is probably being restarted.
 */
static bool may_pass(struct hf_postgres *s, const struct hf_pg_fault *fault)
{
    return hf_pg_is(fault, "57P") || hf_pg_is(fault, "53300") ||
           (!fault->sqlstate[0] && s->was_reached);
}

int hf_pg_connect(struct hf_postgres *s, const char *url, int64_t deadline_ms,
                  struct hf_pg_connection **ret, struct hf_error *err)
{
    struct hf_pg_fault fault = {0};
    int64_t pause_ms = PAUSE_MIN_MS;
    struct hf_pg_connection *c = calloc(1, sizeof *c);
    if (!c)
        return hf_fail(err, HF_NOMEM, "out of memory");
    do
        c->pg = connect_once(s, url, deadline_ms, &fault);
    while (!c->pg && may_pass(s, &fault) && pause_before(deadline_ms, &pause_ms));
    int r = c->pg ? 0 : hf_pg_fail(s, &fault, err);
    if (c->pg) {
        s->was_reached = true;
        c->fd = hf_pq.PQsocket(c->pg);
        r = hf_forked_add(c->fd, err);
    }
    if (r < 0) {
        if (c->pg)
            hf_pq.PQfinish(c->pg);
        free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void hf_pg_disconnect(struct hf_pg_connection *c)
{
    hf_forked_remove(c->fd);
    hf_pq.PQfinish(c->pg);
    free(c);
}

/* ---- the pool ------------------------------------------------------------------------------- */

int hf_pg_pool_open(struct hf_pg_pool *pool, int max, struct hf_error *err)
{
    pthread_condattr_t attr;
    pool->max = max;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&pool->returned, &attr);
    pthread_condattr_destroy(&attr);
    return failed ? hf_fail_errno(err, HF_NOMEM, failed, "can't make a pool of connections") : 0;
}

static void close_all(struct hf_pg_connection *list)
{
    while (list) {
        struct hf_pg_connection *next = list->next;
        hf_pg_disconnect(list);
        list = next;
    }
}

void hf_pg_pool_close(struct hf_pg_pool *pool)
{
    close_all(pool->idle);
    pthread_cond_destroy(&pool->returned);
    pthread_mutex_destroy(&pool->mutex);
}

/* Has the server closed it meanwhile? Then nothing need be sent to find that out. */
static bool is_alive(struct hf_pg_connection *c)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLIN | POLLRDHUP};
    if (hf_pg_now_ms() - c->idle_since_ms > IDLE_MAX_MS)
        return false;
    if (poll(&fd, 1, 0) == 0)
        return true;
    return !(fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) && hf_pq.PQconsumeInput(c->pg) &&
           hf_pq.PQstatus(c->pg) == CONNECTION_OK;
}

static int fail_exhausted(const struct hf_postgres *s, struct hf_error *err)
{
    return hf_fail(err, HF_UNAVAILABLE,
                   "all %d connections to %s were busy for %lld ms; allow more with ?pool=N, or a "
                   "longer wait with ?timeout=D",
                   s->pool.max, s->shown, (long long)s->timeout_ms);
}

/*
 * An idle one, taken out of the pool; or NULL, and there is room for one more, which is counted. -1:
 * neither in time.
 */
static int take_or_count(struct hf_pg_pool *pool, int64_t deadline_ms,
                         struct hf_pg_connection **ret)
{
    struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    int r = 0;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->idle && pool->n_open >= pool->max && r == 0)
        r = pthread_cond_timedwait(&pool->returned, &pool->mutex, &until);
    *ret = pool->idle;
    if (pool->idle)
        pool->idle = pool->idle->next;
    else if (pool->n_open < pool->max)
        pool->n_open++;
    else
        r = -1;
    pthread_mutex_unlock(&pool->mutex);
    return r == -1 ? -1 : 0;
}

static void uncount(struct hf_pg_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->n_open--;
    pthread_cond_signal(&pool->returned);
    pthread_mutex_unlock(&pool->mutex);
}

int hf_pg_take(struct hf_postgres *s, int64_t deadline_ms, struct hf_pg_connection **ret,
               struct hf_error *err)
{
    struct hf_pg_connection *c;
    for (;;) {
        if (take_or_count(&s->pool, deadline_ms, &c) < 0)
            return fail_exhausted(s, err);
        if (!c)
            break;
        if (is_alive(c)) {
            *ret = c;
            return 0;
        }
        hf_pg_disconnect(c);
        uncount(&s->pool);
    }
    int r = hf_pg_connect(s, s->url, deadline_ms, ret, err);
    if (r < 0)
        uncount(&s->pool);
    return r;
}

void hf_pg_give_back(struct hf_postgres *s, struct hf_pg_connection *c)
{
    c->idle_since_ms = hf_pg_now_ms();
    pthread_mutex_lock(&s->pool.mutex);
    c->next = s->pool.idle;
    s->pool.idle = c;
    pthread_cond_signal(&s->pool.returned);
    pthread_mutex_unlock(&s->pool.mutex);
}

void hf_pg_discard(struct hf_postgres *s, struct hf_pg_connection *c)
{
    struct hf_pg_pool *pool = &s->pool;
    pthread_mutex_lock(&pool->mutex);
    struct hf_pg_connection *idle = pool->idle;
    pool->idle = NULL;
    pool->n_open--;
    for (struct hf_pg_connection *i = idle; i; i = i->next)
        pool->n_open--;
    pthread_cond_broadcast(&pool->returned);
    pthread_mutex_unlock(&pool->mutex);
    c->next = idle;
    close_all(c);
}
