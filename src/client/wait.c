/*
 * Acquiring, with or without waiting. A waiter stands in the store's queue and sleeps on one
 * descriptor, an epoll of three things: the store's wake-up, the end of the processes it stands
 * behind, and a timer. Whatever wakes it, it asks again with the same token: that either confirms
 * what it was granted meanwhile, or keeps its place. A lost wake-up costs a poll, never the lock.
 * A store that fails while somebody waits is asked again until the wait itself ends.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "text.h"
#include "waiting.h"

enum {
    BLIND_POLL_MS = 100,  /* where nobody will wake us: no watch, or a foreign holder */
    TROUBLE_MIN_MS = 100, /* before a store that failed is asked again; doubled each time, */
    TROUBLE_MAX_MS = 4000 /* up to this; jittered down to half */
};

struct hf_wait {
    struct hf *hf;
    struct hf_request req;
    char name[HF_NAME_MAX + 1], owner[HF_OWNER_MAX + 1], note[HF_NOTE_MAX + 1];
    char token[HF_UUID_LEN + 1], key[HF_KEY_MAX + 1], execution_id[HF_UUID_LEN + 1];
    bool own_token;       /* made by us: a new one may be made when it is spent */
    struct hf_lock_id id; /* of the token, once we are watching */
    int64_t until_ms;     /* INT64_MAX: for ever */
    int cancel_fd;
    struct hf_execution execution; /* of the last answer */
    bool over, queued, watching;   /* queued: there may be something to withdraw */
    bool accepted;                 /* it has stood in the queue, ready to be woken */
    bool asked_twice;         /* since whoever was ahead was found dead after the first answer */
    int64_t trouble_since_ms; /* since when the store fails; 0: it does not */
    int64_t trouble_pause_ms;
    struct bed {
        int epoll_fd, timer_fd, wake_fd, ahead_fds[HF_BOUND_MAX]; /* -1: not open */
        struct hf_lock_id wake_id; /* whom wake_fd watches for; maybe of a wait before this one */
        bool was_needed;           /* the wait before this one stood in the queue */
    } bed;
};

/* ---- the request ---------------------------------------------------------------------------- */

static int copy_checked(char *to, size_t size, const char *what, const char *from,
                        struct hf_error *err)
{
    if (from && strlen(from) >= size)
        return hf_fail(err, HF_INVALID, "the %s has %zu bytes; at most %zu are kept", what,
                       strlen(from), size - 1);
    strcpy(to, from ? from : "");
    return 0;
}

static int make_request(struct hf_wait *w, const char *name, const struct hf_acquire_options *o,
                        struct hf_error *err)
{
    int r = copy_checked(w->name, sizeof w->name, "name", name, err);
    if (r >= 0)
        r = copy_checked(w->owner, sizeof w->owner, "owner", o->owner, err);
    if (r >= 0)
        r = copy_checked(w->note, sizeof w->note, "note", o->note, err);
    if (r >= 0)
        r = copy_checked(w->key, sizeof w->key, "key", o->once_key, err);
    if (r >= 0)
        r = copy_checked(w->token, sizeof w->token, "token", o->token, err);
    if (r < 0)
        return r;
    if (o->n_bound > HF_BOUND_MAX)
        return hf_fail(err, HF_INVALID, "a lease can be bound to at most %d processes",
                       HF_BOUND_MAX);
    if (!o->owner)
        hf_process_describe(o->n_bound ? o->bound[o->n_bound - 1] : getpid(), w->owner,
                            sizeof w->owner);
    w->own_token = !o->token;
    if (w->own_token)
        hf_token(w->token);
    w->req = (struct hf_request){.op = HF_OP_ACQUIRE,
                                 .name = w->name,
                                 .token = w->token,
                                 .ttl_ms = o->ttl_ms ? o->ttl_ms : HF_TTL_DEFAULT_MS,
                                 .owner = w->owner,
                                 .note = w->note,
                                 .priority = o->priority,
                                 .bound = {o->bound[0], o->bound[1]},
                                 .n_bound = o->n_bound};
    if (o->once_key) {
        hf_token(w->execution_id);
        w->req.workflow = w->name;
        w->req.key = w->key;
        w->req.once = true;
        w->req.execution_id = w->execution_id;
    }
    return 0;
}

static void add_execution(struct hf_request *req, const struct hf_request *begun)
{
    req->workflow = begun->workflow;
    req->key = begun->key;
    req->once = begun->once;
    req->input = begun->input;
    req->input_size = begun->input_size;
    req->execution_id = begun->execution_id;
    req->retry_of = begun->retry_of;
    req->on_lost = begun->on_lost;
    req->max_attempts = begun->max_attempts;
    req->retry_backoff_ms = begun->retry_backoff_ms;
    req->concurrency = begun->concurrency;
}

/* ---- asking --------------------------------------------------------------------------------- */

static void close_watch(struct hf_wait *w)
{
    if (w->bed.wake_fd >= 0)
        w->hf->store->ops->unwatch(w->hf->store, w->name, &w->bed.wake_id, w->bed.wake_fd);
    w->bed.wake_fd = -1;
    w->watching = false;
}

/* How long is left, as a request says it; 0: this is the last time that we ask. */
static int64_t left_ms(const struct hf_wait *w)
{
    if (w->until_ms == INT64_MAX)
        return HF_FOREVER;
    int64_t left = w->until_ms - hf_clock_boot_ms();
    return left > 0 ? left : 0;
}

/* One acquire; what it answers decides how to go on waiting. */
static int ask(struct hf_wait *w, struct hf_answer *answer, struct hf_lease *ret,
               struct hf_error *err)
{
    int64_t sent_ms;
    w->req.wait_ms = left_ms(w);
    int r = hf_ask_store(w->hf, &w->req, answer, &sent_ms, err);
    if (r == -HF_LOST && w->own_token && w->queued) {
        /* We slept through an offer; its token is spent. Start again at the end of the queue. */
        w->watching = false;
        hf_token(w->token);
        r = hf_ask_store(w->hf, &w->req, answer, &sent_ms, err);
    }
    if (r >= 0) {
        if (answer->lease.token[0])
            answer->lease.deadline_ms = hf_deadline_ms(sent_ms, answer->lease.ttl_ms);
        *ret = answer->lease;
        w->execution = answer->execution;
    }
    bool waits = r == -HF_HELD && answer->queued;
    if (r != -HF_UNAVAILABLE) /* where nothing changed, we stand where we stood */
        w->queued = waits || r == -HF_UNKNOWN;
    w->over = !waits;
    return r;
}

/* Leave the queue; what was granted in that moment is given back. */
static void withdraw(struct hf_wait *w)
{
    struct hf_request req = {.op = HF_OP_WITHDRAW, .name = w->name, .token = w->token};
    struct hf_answer answer;
    if (w->queued)
        hf_ask_store(w->hf, &req, &answer, NULL, NULL);
    w->queued = false;
    w->over = true;
}

/* ---- sleeping ------------------------------------------------------------------------------- */

static void sleep_at_most(struct hf_wait *w, int64_t in_ms)
{
    int64_t now_ms = hf_clock_boot_ms();
    if (w->until_ms != INT64_MAX && w->until_ms - now_ms < in_ms)
        in_ms = w->until_ms - now_ms;
    hf_clock_arm(w->bed.timer_fd, now_ms + (in_ms < 1 ? 1 : in_ms));
}

static void watch_descriptor(struct hf_wait *w, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (fd >= 0)
        epoll_ctl(w->bed.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        close(*fd); /* also leaves the epoll */
    *fd = -1;
}

/*
 * Look after whoever stands just ahead of us now: their end is the next thing that concerns us.
 * True: they are dead already, so nobody will tell us.
 */
static bool watch_ahead(struct hf_wait *w)
{
    struct hf_processes ahead = {0};
    for (int i = 0; i < HF_BOUND_MAX; i++)
        close_if_open(&w->bed.ahead_fds[i]);
    const struct hf_store_ops *ops = w->hf->store->ops;
    if (!ops->ahead || ops->ahead(w->hf->store, w->name, &w->id, &ahead, NULL) < 0 || !ahead.n)
        return false;
    hf_processes_watch(&ahead, w->bed.ahead_fds);
    for (int i = 0; i < HF_BOUND_MAX; i++)
        watch_descriptor(w, w->bed.ahead_fds[i]);
    return hf_processes_alive(&ahead) == HF_DEAD;
}

static int64_t jitter_ms(int64_t ms)
{
    uint32_t random;
    hf_random(&random, sizeof random);
    return ms / 2 + (int64_t)(random % (uint32_t)(ms / 2 + 1));
}

/* Nobody will wake us: there is no watch, or the holder is a foreign one. */
static bool is_blind(const struct hf_wait *w, const struct hf_answer *answer)
{
    return w->bed.wake_fd < 0 || answer->holder.fence == 0;
}

/* How long to sleep where nothing else happens: the blind look the less often the more are ahead. */
static int64_t poll_ms(const struct hf_wait *w, const struct hf_answer *answer)
{
    int64_t ms =
        is_blind(w, answer) ? BLIND_POLL_MS * (1 + (int64_t)answer->ahead) : w->hf->poll_ms;
    return jitter_ms(ms);
}

/* Sleep until the next moment at which the answer may differ without anybody telling us. */
static void set_timer(struct hf_wait *w, const struct hf_answer *answer, bool dead_ahead)
{
    int64_t in_ms = poll_ms(w, answer);
    int64_t looks_in_ms = hf_waiter_looks_in_ms(answer);
    if (looks_in_ms < in_ms)
        in_ms = looks_in_ms;
    if (hf_waiter_asks_at_once(&w->asked_twice, answer, dead_ahead))
        in_ms = 1;
    sleep_at_most(w, in_ms);
}

/* ---- a store that fails --------------------------------------------------------------------- */

/* Is it the store's trouble, which may pass, and not the answer to somebody who just came? */
static bool may_pass(const struct hf_wait *w, int r)
{
    return (r == -HF_UNAVAILABLE || r == -HF_UNKNOWN) && w->accepted && !w->hf->store->past_help;
}

/* Go on waiting, and ask again after a pause; where the time is up, say how long it was tried. */
static int wait_out(struct hf_wait *w, int r, struct hf_error *err)
{
    char why[HF_MESSAGE_MAX] = "", span[HF_SPAN_MAX];
    int64_t now_ms = hf_clock_boot_ms();
    if (!w->trouble_since_ms) {
        w->trouble_since_ms = now_ms;
        w->trouble_pause_ms = TROUBLE_MIN_MS;
    }
    if (err)
        strcpy(why, err->message);
    hf_format_span(now_ms - w->trouble_since_ms, span);
    if (now_ms >= w->until_ms && now_ms == w->trouble_since_ms)
        return r; /* there was no time to try again */
    if (now_ms >= w->until_ms)
        return hf_fail(err, -r, "%s (still so after %s, when the wait ran out)", why, span);
    for (int i = 0; i < HF_BOUND_MAX; i++)
        close_if_open(&w->bed.ahead_fds[i]); /* one that has died would not let us sleep */
    sleep_at_most(w, jitter_ms(w->trouble_pause_ms));
    w->trouble_pause_ms *= 2;
    if (w->trouble_pause_ms > TROUBLE_MAX_MS)
        w->trouble_pause_ms = TROUBLE_MAX_MS;
    w->over = false;
    return hf_fail(err, HF_HELD, "still waiting for %s though the store fails: %s", w->name, why);
}

/* ---- asking and sleeping -------------------------------------------------------------------- */

static void drain(int fd)
{
    char bytes[64];
    while (fd >= 0 && read(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        continue;
}

static int open_descriptors(struct hf_wait *w, struct hf_error *err)
{
    struct bed *b = &w->bed;
    b->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    b->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (b->epoll_fd < 0 || b->timer_fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait for %s", w->name);
    watch_descriptor(w, b->timer_fd);
    return 0;
}

/* Have the store wake us; by the descriptor of an earlier wait, where there is one. */
static int watch_store(struct hf_wait *w, struct hf_error *err)
{
    const struct hf_store_ops *ops = w->hf->store->ops;
    struct bed *b = &w->bed;
    w->id = hf_lock_id_of(w->token);
    if (b->wake_fd >= 0 && ops->rewatch && ops->rewatch(w->hf->store, &b->wake_id, &w->id) >= 0) {
        b->wake_id = w->id;
        return 0;
    }
    close_watch(w);
    int r = ops->watch ? ops->watch(w->hf->store, w->name, &w->id, &b->wake_fd, err) : 0;
    if (r < 0)
        return r;
    b->wake_id = w->id;
    watch_descriptor(w, b->wake_fd);
    return 0;
}

/* Be told from now on; then ask once more, since it may have been granted just before. */
static int begin_waiting(struct hf_wait *w, struct hf_answer *answer, struct hf_lease *ret,
                         struct hf_error *err)
{
    int r = w->bed.epoll_fd < 0 ? open_descriptors(w, err) : 0;
    if (r >= 0)
        r = watch_store(w, err);
    if (r < 0) {
        withdraw(w);
        return r;
    }
    w->watching = w->accepted = true;
    return ask(w, answer, ret, err);
}

/* Ask, and where the answer is to wait, be ready to sleep on the descriptor. */
static int ask_and_arm(struct hf_wait *w, struct hf_lease *ret, struct hf_error *err)
{
    struct hf_answer answer;
    /* Who stood in the queue last time will probably again: then it need not ask a second time. */
    if (!w->watching && w->bed.was_needed && left_ms(w) != 0)
        w->watching = watch_store(w, NULL) >= 0;
    int r = ask(w, &answer, ret, err);
    if (r == -HF_HELD && w->queued && !w->watching)
        r = begin_waiting(w, &answer, ret, err);
    if (r == -HF_HELD && w->queued)
        w->accepted = true;
    if (may_pass(w, r))
        return wait_out(w, r, err);
    w->trouble_since_ms = 0;
    if (r == -HF_HELD && w->queued)
        set_timer(w, &answer, !is_blind(w, &answer) && watch_ahead(w));
    return r;
}

/* ---- the public forms ----------------------------------------------------------------------- */

static struct hf_wait *make_wait(struct hf_error *err)
{
    struct hf_wait *w = malloc(sizeof *w);
    if (w)
        w->bed = (struct bed){-1, -1, -1, {-1, -1}, {{0}}, false};
    else
        hf_fail(err, HF_NOMEM, "out of memory");
    return w;
}

/* Begin a wait of its own, on the bed that is there. */
static int begin(struct hf_wait *w, struct hf *hf, const char *name,
                 const struct hf_acquire_options *opts, struct hf_error *err)
{
    struct hf_acquire_options o = HF_ACQUIRE_INIT;
    *w = (struct hf_wait){.hf = hf, .bed = w->bed};
    int r = hf_check_handle(hf, err);
    if (r >= 0)
        r = hf_take_options(opts, &o, sizeof o, "HF_ACQUIRE_INIT", err);
    if (r < 0)
        return r;
    w->cancel_fd = o.cancel_fd;
    w->until_ms = INT64_MAX;
    if (o.wait_ms >= 0 && __builtin_add_overflow(hf_clock_boot_ms(), o.wait_ms, &w->until_ms))
        w->until_ms = INT64_MAX;
    return make_request(w, name ? name : "", &o, err);
}

int hf_wait_start(struct hf *hf, const char *name, const struct hf_acquire_options *opts,
                  struct hf_wait **ret, struct hf_error *err)
{
    struct hf_wait *w = make_wait(err);
    int r = w ? begin(w, hf, name, opts, err) : -HF_NOMEM;
    if (r < 0)
        free(w);
    else
        *ret = w;
    return r;
}

int hf_wait_fd(const struct hf_wait *wait) { return wait->bed.epoll_fd; }

bool hf_wait_is_over(const struct hf_wait *wait) { return wait->over; }

int hf_wait_check(struct hf_wait *w, struct hf_lease *ret, struct hf_error *err)
{
    if (w->over)
        return hf_fail(err, HF_INVALID, "this wait for %s is over", w->name);
    if (w->watching)
        drain(w->bed.wake_fd); /* the timer forgets that it has run out when it is set again */
    return ask_and_arm(w, ret, err);
}

void hf_wait_end(struct hf_wait *w)
{
    if (!w)
        return;
    withdraw(w);
    close_watch(w);
    for (int i = 0; i < HF_BOUND_MAX; i++)
        close_if_open(&w->bed.ahead_fds[i]);
    close_if_open(&w->bed.timer_fd);
    close_if_open(&w->bed.epoll_fd);
    free(w);
}

/*
 * Keep the bed for the next one who waits: closing it all takes longer than confirming what was
 * granted. Only where nobody was given hf_wait_fd(), which must be closed.
 */
static void park(struct hf_wait *w)
{
    withdraw(w);
    w->bed.was_needed = w->accepted;
    hf_wait_end(w->bed.epoll_fd < 0 ? w : atomic_exchange(&w->hf->parked, w));
}

void hf_parked_close(struct hf *hf) { hf_wait_end(atomic_exchange(&hf->parked, NULL)); }

static int sleep_until_woken(struct hf_wait *w, struct hf_error *err)
{
    struct pollfd fds[] = {{.fd = w->bed.epoll_fd, .events = POLLIN},
                           {.fd = w->cancel_fd, .events = POLLIN}};
    int n = poll(fds, 2, -1);
    if (n < 0 && errno != EINTR)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait for %s", w->name);
    if (n > 0 && fds[1].revents)
        return hf_fail(err, HF_CANCELLED, "the wait for %s was cancelled", w->name);
    return 0;
}

int hf_acquire_for(struct hf *hf, const char *name, const struct hf_acquire_options *opts,
                   const struct hf_request *begun, struct hf_lease *ret,
                   struct hf_execution *ret_execution, struct hf_error *err)
{
    struct hf_wait *w = atomic_exchange(&hf->parked, NULL);
    if (!w && !(w = make_wait(err)))
        return -HF_NOMEM;
    int r = begin(w, hf, name, opts, err);
    if (r < 0) {
        park(w);
        return r;
    }
    if (begun)
        add_execution(&w->req, begun);
    while ((r = hf_wait_check(w, ret, err)) == -HF_HELD && !w->over) {
        r = sleep_until_woken(w, err);
        if (r < 0)
            break;
    }
    if (r >= 0 && ret_execution)
        *ret_execution = w->execution;
    park(w);
    return r;
}

int hf_acquire(struct hf *hf, const char *name, const struct hf_acquire_options *opts,
               struct hf_lease *ret, struct hf_error *err)
{
    return hf_acquire_for(hf, name, opts, NULL, ret, NULL, err);
}
