/*
 * Keeping leases alive. One thread per handle renews all of them, those that are due together in
 * one request. What a keeper promises does not depend on that thread: its descriptor is an epoll
 * over a timer set to the deadline of the last confirmed renewal, so a hung store can't hide the
 * loss.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "thread.h"

enum { BATCH_MAX = 64, RETRY_MIN_MS = 20 };

struct hf_keeper {
    struct hf_keeper *next;
    struct hf *hf;
    struct hf_keep_options opts;
    struct hf_lease lease; /* as of the last confirmed renewal */
    int64_t renew_ms;      /* boot clock: when to renew next */
    bool busy;             /* a renewal of it is under way */
    bool lost;
    struct hf_error why;
    int epoll_fd, timer_fd, lost_fd;
};

struct hf_keeping {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t idle; /* a keeper is no longer busy */
    struct hf_keeper *keepers;
    bool closing;
    int kick_fd;  /* the list has changed */
    int timer_fd; /* CLOCK_BOOTTIME, for the next renewal */
};

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static void signal_fd(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

/* ---- what a renewal brings ------------------------------------------------------------------ */

static void mark_lost(struct hf_keeper *k, const struct hf_error *why)
{
    k->lost = true;
    k->why = *why;
    signal_fd(k->lost_fd);
}

static int64_t interval_ms(const struct hf_keeper *k)
{
    int64_t ms = k->lease.ttl_ms / 3;
    return k->opts.every_ms > 0 && k->opts.every_ms < ms ? k->opts.every_ms : ms;
}

static void confirm(struct hf_keeper *k, const struct hf_lease *lease, int64_t sent_ms)
{
    k->lease = *lease;
    k->lease.deadline_ms = hf_deadline_ms(sent_ms, lease->ttl_ms);
    k->renew_ms = sent_ms + interval_ms(k);
    hf_clock_arm(k->timer_fd, k->lease.deadline_ms - k->opts.early_ms);
}

/* Not answered: try again soon, until the deadline says that it is lost. */
static void postpone(struct hf_keeper *k, const struct hf_error *why)
{
    int64_t now_ms = hf_clock_boot_ms(), pause_ms = k->lease.ttl_ms / 30;
    if (now_ms >= k->lease.deadline_ms)
        mark_lost(k, why);
    k->renew_ms = now_ms + (pause_ms > RETRY_MIN_MS ? pause_ms : RETRY_MIN_MS);
}

/* ---- the thread ----------------------------------------------------------------------------- */

struct batch {
    struct hf_keeper *keepers[BATCH_MAX];
    struct hf_request requests[BATCH_MAX];
    struct hf_lease leases[BATCH_MAX]; /* the strings of the requests */
    struct hf_answer answers[BATCH_MAX];
    size_t n;
};

/* The one that is to be renewed first, of those that are not being renewed. */
static struct hf_keeper *first_due(const struct hf_keeping *all)
{
    struct hf_keeper *first = NULL;
    for (struct hf_keeper *k = all->keepers; k; k = k->next)
        if (!k->lost && !k->busy && (!first || k->renew_ms < first->renew_ms))
            first = k;
    return first;
}

static void add_to_batch(struct batch *b, struct hf_keeper *k)
{
    struct hf_lease *lease = &b->leases[b->n];
    *lease = k->lease;
    b->requests[b->n] = (struct hf_request){
        .op = HF_OP_EXTEND, .name = lease->name, .token = lease->token, .fence = lease->fence};
    b->keepers[b->n++] = k;
    k->busy = true;
}

/*
 * Those that are due now, marked busy; returns when the next one will be. Where one is due, those
 * that would be within half of their interval come along: from then on they are due together.
 */
static int64_t collect_due(struct hf_keeping *all, struct batch *b)
{
    int64_t now_ms = hf_clock_boot_ms();
    b->n = 0;
    for (struct hf_keeper *k; (k = first_due(all)); add_to_batch(b, k))
        if (b->n == BATCH_MAX || k->renew_ms > now_ms + (b->n ? interval_ms(k) / 2 : 0))
            return k->renew_ms;
    return INT64_MAX;
}

static void settle_one(struct hf_keeper *k, int r, const struct hf_request *request,
                       const struct hf_answer *answer, int64_t sent_ms, struct hf_error *err)
{
    if (r >= 0 && answer->code < 0)
        r = hf_refusal(request, answer, err);
    if (r >= 0)
        confirm(k, &answer->lease, sent_ms);
    else if (r == -HF_LOST)
        mark_lost(k, err);
    else
        postpone(k, err);
}

/* What its execution has printed since, if anything. It is busy, so nobody frees it meanwhile. */
static void add_output(const struct hf_keeper *k, struct hf_request *req)
{
    const struct hf_result *so_far = k->opts.output ? k->opts.output(k->opts.arg) : NULL;
    if (so_far)
        hf_request_output(req, so_far);
}

static void renew_batch(struct hf_keeping *all, struct hf *hf, struct batch *b)
{
    struct hf_error err = {0};
    pthread_mutex_unlock(&all->lock);
    for (size_t i = 0; i < b->n; i++)
        add_output(b->keepers[i], &b->requests[i]);
    int64_t sent_ms = hf_clock_boot_ms();
    int r = hf_apply(hf, b->requests, b->n, b->answers, &err);
    pthread_mutex_lock(&all->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct hf_keeper *k = b->keepers[i];
        settle_one(k, r, &b->requests[i], &b->answers[i], sent_ms, &err);
        b->leases[i] = k->lease;
        bool renewed = r >= 0 && b->answers[i].code >= 0;
        if (renewed && k->opts.renewed) {
            pthread_mutex_unlock(&all->lock);
            k->opts.renewed(k->opts.arg, &b->leases[i]);
            pthread_mutex_lock(&all->lock);
        }
        k->busy = false;
    }
    pthread_cond_broadcast(&all->idle);
}

static void sleep_until(struct hf_keeping *all, int64_t next_ms)
{
    struct pollfd fds[] = {{.fd = all->kick_fd, .events = POLLIN},
                           {.fd = all->timer_fd, .events = POLLIN}};
    if (next_ms != INT64_MAX)
        hf_clock_arm(all->timer_fd, next_ms);
    poll(fds, 2, -1);
    uint64_t count;
    bool woken = read(all->kick_fd, &count, sizeof count) > 0;
    bool due = read(all->timer_fd, &count, sizeof count) > 0;
    (void)woken, (void)due; /* either way the list is looked at again */
}

static void *keep_renewing(void *arg)
{
    struct hf *hf = arg;
    struct hf_keeping *all = hf->keeping;
    struct batch *b = calloc(1, sizeof *b);
    pthread_mutex_lock(&all->lock);
    while (b && !all->closing) {
        int64_t next_ms = collect_due(all, b);
        if (b->n) {
            renew_batch(all, hf, b);
            continue;
        }
        pthread_mutex_unlock(&all->lock);
        sleep_until(all, next_ms);
        pthread_mutex_lock(&all->lock);
    }
    pthread_mutex_unlock(&all->lock);
    free(b);
    return NULL;
}

/* ---- starting and stopping ------------------------------------------------------------------ */

static void free_keeping(struct hf_keeping *all)
{
    if (all->kick_fd >= 0)
        close(all->kick_fd);
    if (all->timer_fd >= 0)
        close(all->timer_fd);
    pthread_mutex_destroy(&all->lock);
    pthread_cond_destroy(&all->idle);
    free(all);
}

static int start_keeping(struct hf *hf, struct hf_error *err)
{
    struct hf_keeping *all = calloc(1, sizeof *all);
    if (!all)
        return hf_fail(err, HF_NOMEM, "out of memory");
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->idle, NULL);
    all->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    all->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    hf->keeping = all;
    int failed = all->kick_fd < 0 || all->timer_fd < 0
                     ? errno
                     : hf_thread_start(&all->thread, keep_renewing, hf);
    if (!failed)
        return 0;
    hf->keeping = NULL;
    free_keeping(all);
    return hf_fail_errno(err, HF_UNAVAILABLE, failed, "can't start the thread that renews");
}

static void free_keeper(struct hf_keeper *k)
{
    int fds[] = {k->epoll_fd, k->timer_fd, k->lost_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(k);
}

void hf_keeping_close(struct hf *hf)
{
    struct hf_keeping *all = hf->keeping;
    if (!all)
        return;
    pthread_mutex_lock(&all->lock);
    all->closing = true;
    pthread_mutex_unlock(&all->lock);
    signal_fd(all->kick_fd);
    pthread_join(all->thread, NULL);
    for (struct hf_keeper *k = all->keepers, *next; k; k = next) {
        next = k->next;
        free_keeper(k);
    }
    free_keeping(all);
    hf->keeping = NULL;
}

static int open_keeper(struct hf_keeper *k, struct hf_error *err)
{
    struct epoll_event event = {.events = EPOLLIN};
    k->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    k->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    k->lost_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (k->epoll_fd < 0 || k->timer_fd < 0 || k->lost_fd < 0 ||
        epoll_ctl(k->epoll_fd, EPOLL_CTL_ADD, k->timer_fd, &event) < 0 ||
        epoll_ctl(k->epoll_fd, EPOLL_CTL_ADD, k->lost_fd, &event) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't keep %s", k->lease.name);
    hf_clock_arm(k->timer_fd, k->lease.deadline_ms - k->opts.early_ms);
    return 0;
}

/* Into the list of the handle's thread, which is started for the first one. */
static int join_keeping(struct hf *hf, struct hf_keeper *k, struct hf_error *err)
{
    pthread_mutex_lock(&starting);
    int r = hf->keeping ? 0 : start_keeping(hf, err);
    pthread_mutex_unlock(&starting);
    if (r < 0)
        return r;
    pthread_mutex_lock(&hf->keeping->lock);
    k->next = hf->keeping->keepers;
    hf->keeping->keepers = k;
    pthread_mutex_unlock(&hf->keeping->lock);
    signal_fd(hf->keeping->kick_fd);
    return 0;
}

int hf_keep(struct hf *hf, const struct hf_lease *lease, const struct hf_keep_options *opts,
            struct hf_keeper **ret, struct hf_error *err)
{
    struct hf_keep_options o = HF_KEEP_INIT;
    int r = hf_check_handle(hf, err);
    if (r >= 0)
        r = hf_take_options(opts, &o, sizeof o, "HF_KEEP_INIT", err);
    if (r < 0)
        return r;
    struct hf_keeper *k = calloc(1, sizeof *k);
    if (!k)
        return hf_fail(err, HF_NOMEM, "out of memory");
    k->hf = hf;
    k->lease = *lease;
    k->opts = o;
    /* A third of the ttl after the last confirmed request, which set the deadline. */
    k->renew_ms = lease->deadline_ms - lease->ttl_ms * 2 / 3;
    int64_t soon_ms = hf_clock_boot_ms() + interval_ms(k);
    if (soon_ms < k->renew_ms)
        k->renew_ms = soon_ms;
    r = open_keeper(k, err);
    if (r >= 0)
        r = join_keeping(hf, k, err);
    if (r < 0) {
        free_keeper(k);
        return r;
    }
    *ret = k;
    return 0;
}

int hf_keeper_fd(const struct hf_keeper *keeper) { return keeper->epoll_fd; }

int hf_keeper_check(struct hf_keeper *k, struct hf_lease *ret, struct hf_error *err)
{
    int r = hf_check_handle(k->hf, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&k->hf->keeping->lock);
    if (k->lost) {
        r = -HF_LOST;
        if (err) {
            *err = k->why;
            err->code = r;
        }
    } else if (hf_clock_boot_ms() >= k->lease.deadline_ms)
        r = hf_fail(err, HF_LOST, "%s could not be renewed before its deadline", k->lease.name);
    else if (ret)
        *ret = k->lease;
    pthread_mutex_unlock(&k->hf->keeping->lock);
    return r;
}

void hf_keeper_stop(struct hf_keeper *k)
{
    if (!k)
        return;
    if (k->hf->pid == getpid()) {
        struct hf_keeping *all = k->hf->keeping;
        pthread_mutex_lock(&all->lock);
        while (k->busy)
            pthread_cond_wait(&all->idle, &all->lock);
        struct hf_keeper **at = &all->keepers;
        while (*at != k)
            at = &(*at)->next;
        *at = k->next;
        pthread_mutex_unlock(&all->lock);
    }
    free_keeper(k);
}
