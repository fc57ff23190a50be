/*
 * holdfast.h - only one execution of a thing at a time.
 *
 * A lock in ten lines:
 *
 *     struct hf *hf;
 *     struct hf_error err;
 *     struct hf_lease lease;
 *     if (hf_open(NULL, &hf, &err) < 0)                  // NULL: the default store
 *         errx(1, "%s", err.message);
 *     if (hf_acquire(hf, "nightly-report", NULL, &lease, &err) < 0)
 *         errx(1, "%s", err.message);                    // names the holder
 *     ...                                                // pass lease.fence to what you write to
 *     hf_release(hf, &lease, NULL);
 *     hf_close(hf);
 *
 * Work that may outlast the ttl is kept alive by a keeper: hf_keep() after hf_acquire(),
 * hf_keeper_stop() before hf_release(). Its descriptor becomes readable when the lease is lost.
 *
 * Every function returns 0 or a negative code (-HF_HELD, ...). On failure outputs are untouched and
 * `err`, when not NULL, says what happened, to what, who holds it and what to do next.
 *
 * A handle may be used from many threads at once. After fork() the child's handles answer
 * -HF_FORKED: open a new one. The library never logs, never exits, touches no signals and raises no
 * SIGPIPE.
 *
 * Times: `*_at_ms` and `*_since_ms` are milliseconds since 1970 for people; `*_ms` are durations;
 * `deadline_ms` is on CLOCK_BOOTTIME, see docs/timing.md.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HF_API __attribute__((visibility("default")))
#else
#define HF_API
#endif

#define HF_VERSION "0.1.0"

enum {
    HF_NAME_MAX = 200,
    HF_OWNER_MAX = 200,
    HF_NOTE_MAX = 400,
    HF_KEY_MAX = 200,
    HF_REASON_MAX = 200,
    HF_DETAIL_MAX = 400,
    HF_UUID_LEN = 36, /* tokens, execution ids, boot ids */
    HF_LOCK_ID_LEN = 32,
    HF_BOUND_MAX = 2, /* processes that one lease may be bound to */
    HF_MESSAGE_MAX = 1200,
    HF_INPUT_MAX = 16 << 20, /* bytes of an execution's input */
    HF_OUTPUT_MAX =
        64 * 1024 /* bytes kept of the beginning of its output, and as many of its end */
};

#define HF_TTL_DEFAULT_MS INT64_C(60000)
#define HF_TTL_MIN_MS INT64_C(100)
#define HF_TTL_MAX_MS (INT64_C(366) * 24 * 3600 * 1000)
#define HF_KEEP_DEFAULT_MS (INT64_C(90) * 24 * 3600 * 1000)
#define HF_FOREVER INT64_C(-1) /* as a wait: until granted */

/* ---- codes ---------------------------------------------------------------------------------- */

/* X(name, number, code in JSON, exit code, HTTP status, meaning). Numbers are ABI: append only. */
#define HF_CODE_MAP(X)                                                                             \
    X(HELD, 1, "LOCK_HELD", 75, 409, "held by another")                                            \
    X(RACED, 2, "LOCK_RACED", 75, 409, "lost the race for it")                                     \
    X(LOST, 3, "LEASE_LOST", 76, 409, "the lease was lost or is not yours")                        \
    X(FENCE_STALE, 4, "FENCE_STALE", 76, 409, "the fence is not current")                          \
    X(KEY_REUSED, 5, "KEY_REUSED", 65, 422, "the key was used with another input")                 \
    X(INVALID, 6, "INVALID", 65, 400, "bad input")                                                 \
    X(UNAUTHORIZED, 7, "UNAUTHORIZED", 77, 401, "no valid credentials")                            \
    X(FORBIDDEN, 8, "FORBIDDEN", 77, 403, "not permitted")                                         \
    X(NOT_FOUND, 9, "NOT_FOUND", 65, 404, "no such thing")                                         \
    X(TOO_LARGE, 10, "TOO_LARGE", 65, 413, "too large for this store")                             \
    X(QUEUE_FULL, 11, "QUEUE_FULL", 75, 429, "too many are waiting already")                       \
    X(UNSUPPORTED, 12, "UNSUPPORTED", 69, 501, "this store does not support it")                   \
    X(UNAVAILABLE, 13, "STORE_UNAVAILABLE", 69, 503, "the store can't be reached")                 \
    X(UNKNOWN, 14, "UNKNOWN", 69, 503, "the outcome is unknown: ask again with the same token")    \
    X(INTERNAL, 15, "INTERNAL", 70, 500, "a bug in holdfast")                                      \
    X(NOMEM, 16, "NOMEM", 70, 500, "out of memory")                                                \
    X(CANCELLED, 17, "CANCELLED", 75, 503, "the wait was cancelled")                               \
    X(FORKED, 18, "FORKED", 70, 500, "this handle was opened before fork; open a new one")         \
    X(DONE_ALREADY, 19, "DONE_ALREADY", 0, 200, "this key has already succeeded")

enum hf_code {
    HF_OK = 0,
#define X(name, number, code, exit_code, http, meaning) HF_##name = (number),
    HF_CODE_MAP(X)
#undef X
};

/* What a code (or its negative) is called and means, and the exit code a program should use. */
HF_API const char *hf_code_name(int code);
HF_API const char *hf_code_meaning(int code);
HF_API int hf_code_exit(int code);
HF_API int hf_code_http(int code);

/* ---- what you are told ---------------------------------------------------------------------- */

enum hf_lock_state { HF_STATE_FREE, HF_STATE_HELD, HF_STATE_STALE };
enum hf_alive { HF_ALIVE_UNKNOWN = -1, HF_DEAD = 0, HF_ALIVE = 1 };

struct hf_status {
    char name[HF_NAME_MAX + 1];
    enum hf_lock_state state;
    int64_t fence; /* the holder's; of a free lock the last one known, or 0 */
    char owner[HF_OWNER_MAX + 1];
    enum hf_alive alive; /* unknown: bound to no process of this machine; only the ttl ends it */
    char note[HF_NOTE_MAX + 1];
    char execution_id[HF_UUID_LEN + 1];
    int64_t locked_since_ms;
    int64_t held_for_ms;
    int64_t expires_at_ms;
    int64_t remaining_ms;
    uint32_t waiters;
};

struct hf_error {
    int code; /* the same negative number that the function returned */
    char message[HF_MESSAGE_MAX];
    bool has_holder;
    struct hf_status holder;
};

/* Why a lease could be taken from its holder; ENDED: the execution that it was taken for is over. */
enum hf_stale_reason {
    HF_STALE_NOT,
    HF_STALE_EXPIRED,
    HF_STALE_DIED,
    HF_STALE_REBOOTED,
    HF_STALE_ENDED
};

/* The stale lease that this grant took over: announce it loudly. */
struct hf_takeover {
    enum hf_stale_reason reason; /* HF_STALE_NOT: nothing was taken over */
    char lock_id[HF_LOCK_ID_LEN + 1];
    char owner[HF_OWNER_MAX + 1];
    int64_t fence;
    int64_t acquired_at_ms;
    int64_t held_for_ms;
    int64_t ttl_ms;
};

struct hf_lease {
    char name[HF_NAME_MAX + 1];
    char token[HF_UUID_LEN + 1]; /* the authority to extend and release: keep it to yourself */
    int64_t fence;
    char owner[HF_OWNER_MAX + 1];
    char note[HF_NOTE_MAX + 1];
    int64_t acquired_at_ms;
    int64_t expires_at_ms;
    int64_t ttl_ms;
    char execution_id[HF_UUID_LEN + 1];
    int64_t deadline_ms; /* have stopped by then unless extended */
    struct hf_takeover takeover;
    bool cancel_requested; /* somebody wants its execution to stop: set by begin and extend */
};

#define HF_EVENT_MAP(X)                                                                            \
    X(ACQUIRED, "acquired")                                                                        \
    X(RELEASED, "released")                                                                        \
    X(EXTENDED, "extended")                                                                        \
    X(DENIED, "denied")                                                                            \
    X(EXPIRED, "expired")                                                                          \
    X(TAKEN_OVER, "taken-over")                                                                    \
    X(FORCED, "forced")                                                                            \
    X(LOST, "lost")                                                                                \
    X(STARTED, "started")                                                                          \
    X(FINISHED, "finished")                                                                        \
    X(SKIPPED, "skipped")                                                                          \
    X(DUPLICATE, "duplicate")

enum hf_event_kind {
#define X(name, text) HF_EV_##name,
    HF_EVENT_MAP(X)
#undef X
        HF_EV_COUNT
};

struct hf_event {
    int64_t seq;
    int64_t at_ms;
    enum hf_event_kind kind;
    char name[HF_NAME_MAX + 1];
    int64_t fence;
    char owner[HF_OWNER_MAX + 1];
    char execution_id[HF_UUID_LEN + 1];
    char reason[HF_REASON_MAX + 1];
    char detail[HF_DETAIL_MAX + 1];
};

/* PENDING -> RUNNING -> SUCCESS | FAILED | ABORTED; a lost attempt may be PENDING again. */
#define HF_EXECUTION_STATE_MAP(X)                                                                  \
    X(PENDING, "PENDING")                                                                          \
    X(RUNNING, "RUNNING")                                                                          \
    X(SUCCESS, "SUCCESS")                                                                          \
    X(FAILED, "FAILED")                                                                            \
    X(ABORTED, "ABORTED")

enum hf_execution_state {
#define X(name, text) HF_##name,
    HF_EXECUTION_STATE_MAP(X)
#undef X
        HF_EXECUTION_STATE_COUNT
};

/* What becomes of an execution whose lease was lost after its command was started. */
enum hf_on_lost {
    HF_ON_LOST_ABORT, /* ABORTED: what may have happened is never repeated */
    HF_ON_LOST_RETRY, /* PENDING again, while attempts are left */
    HF_ON_LOST_VERIFY /* PENDING again, but only after it was verified that it was not done */
};

/* One run of a workflow. Its input and output are read by hf_execution_data(). */
struct hf_execution {
    char id[HF_UUID_LEN + 1];
    char workflow[HF_NAME_MAX + 1];
    char lock[HF_NAME_MAX + 1]; /* the name that it holds while it runs */
    char key[HF_KEY_MAX + 1];
    enum hf_execution_state state;
    int64_t run_at_ms;
    int32_t priority;
    int32_t attempt; /* how often it was begun */
    int64_t fence;   /* of the latest attempt */
    char owner[HF_OWNER_MAX + 1];
    int64_t created_at_ms, started_at_ms, finished_at_ms; /* 0: not yet */
    bool has_exit_code;
    int exit_code;
    char reason[HF_REASON_MAX + 1];
    char retry_of[HF_UUID_LEN + 1];
    bool cancel_requested;
    bool spawned;   /* its command may have been started */
    bool duplicate; /* in an answer: it was there before */
    bool once;      /* of `run --once`: FAILED and ABORTED leave the key free */
    bool to_verify; /* PENDING: whether it was done is to be found out first */
    enum hf_on_lost on_lost;
    int32_t max_attempts;     /* how often its command may be started; 0: no limit */
    int32_t spent;            /* how often it was */
    int64_t retry_backoff_ms; /* FAILED is PENDING again while attempts are left; 0: it is final */
    int32_t concurrency;      /* of its workflow, so many at once may run; 0: any number */
    bool parked;              /* PENDING: its lock was held; made ready when that is free */
};

/* What becomes of an execution that is wanted now (hf_enqueue) while its lock has another one. */
enum hf_overlap {
    HF_OVERLAP_REJECT,  /* refused with -HF_HELD, naming the one that runs or is about to */
    HF_OVERLAP_QUEUE,   /* it waits its turn: priority, then age; -HF_QUEUE_FULL */
    HF_OVERLAP_SKIP,    /* as reject, but told as skipped */
    HF_OVERLAP_REPLACE, /* those that wait are ABORTED, it waits in their stead */
    HF_OVERLAP_CANCEL   /* as replace, and the one that runs is asked to stop */
};

HF_API const char *hf_execution_state_name(enum hf_execution_state state);
HF_API const char *hf_event_kind_name(enum hf_event_kind kind);
HF_API const char *hf_stale_reason_name(enum hf_stale_reason reason);
HF_API const char *hf_lock_state_name(enum hf_lock_state state);

/* ---- open and close ------------------------------------------------------------------------- */

struct hf;

/*
 * Open a store by URL: sqlite:PATH, file:DIR, postgres://... NULL means $HOLDFAST_STORE, else the default
 * sqlite store of this user. Creates it where it does not exist.
 */
HF_API int hf_open(const char *url, struct hf **ret, struct hf_error *err);
HF_API void hf_close(struct hf *hf);

/* The store's URL as it may be shown: passwords redacted. Lives as long as the handle. */
HF_API const char *hf_url(const struct hf *hf);

/* Is the store on this machine, so that a look at a name waits for nobody? */
HF_API bool hf_is_local(const struct hf *hf);

/* ---- a lease's life ------------------------------------------------------------------------- */

/* Start from HF_ACQUIRE_INIT and set what differs. */
struct hf_acquire_options {
    size_t size;       /* sizeof(struct hf_acquire_options): lets the library grow */
    int64_t ttl_ms;    /* 0: HF_TTL_DEFAULT_MS */
    int64_t wait_ms;   /* 0: do not wait; HF_FOREVER; else at most so long */
    const char *owner; /* NULL: host/pid */
    const char *note;
    const char *token;           /* NULL: a new one. The same token again is the same acquire */
    int32_t priority;            /* the higher goes first among those who wait */
    int32_t bound[HF_BOUND_MAX]; /* the lease ends when all these local processes are dead */
    size_t n_bound;
    int cancel_fd;        /* waiting ends with -HF_CANCELLED when it becomes readable; -1: none */
    const char *once_key; /* refuse with -HF_DONE_ALREADY if a run with this key has succeeded */
};
#define HF_ACQUIRE_INIT                                                                            \
    {                                                                                              \
        sizeof(struct hf_acquire_options), 0, 0, NULL, NULL, NULL, 0, {0, 0}, 0, -1, NULL          \
    }

/*
 * Take NAME. -HF_HELD brings the holder in `err`. `opts` may be NULL. A store that fails is an error
 * at once; while NAME is waited for it is asked again, and only still failing at the end is one.
 */
HF_API int hf_acquire(struct hf *hf, const char *name, const struct hf_acquire_options *opts,
                      struct hf_lease *ret, struct hf_error *err);

/*
 * Renew `lease` for `ttl_ms` (0: its own ttl) and update its times. Its end never moves back, whatever
 * `ttl_ms` is. -HF_LOST: stop working.
 */
HF_API int hf_extend(struct hf *hf, struct hf_lease *lease, int64_t ttl_ms, struct hf_error *err);

/* Give it back. -HF_LOST: it was no longer yours; nobody else's lease was touched. After -HF_UNKNOWN ask
 * again, however late: the fence in `lease` tells a release that was done from a lease that was lost. */
HF_API int hf_release(struct hf *hf, const struct hf_lease *lease, struct hf_error *err);

/* Record that the holder had to stop: for `why`, after -HF_LOST. Never blocks anything. */
HF_API int hf_report_lost(struct hf *hf, const struct hf_lease *lease, const char *reason,
                          struct hf_error *err);

/*
 * Free NAME without its token: the operator's word that the holder is dead. `fence` is the one the
 * operator saw, so that a successor is never freed: -HF_FENCE_STALE.
 */
HF_API int hf_force_release(struct hf *hf, const char *name, int64_t fence, const char *reason,
                            struct hf_error *err);

/* 0 if `fence` is NAME's current, live fence, else -HF_FENCE_STALE with the holder. */
HF_API int hf_guard(struct hf *hf, const char *name, int64_t fence, struct hf_error *err);

/* ---- executions ----------------------------------------------------------------------------- */

/*
 * An execution is a run of a workflow under a lock, with a record that outlives it:
 *
 *     hf_begin()         its record and its lock, in one transaction; or that of the same key
 *     hf_spawned()       just before its command is started: from here on it may have had effects
 *     hf_keep()          while it runs; lease->cancel_requested tells that it is to stop
 *     hf_finish()        how it ended and the release, in one transaction
 *
 * Whatever these acknowledge is on disk. A lease that is lost, swept or forced ends the attempt in
 * the same step: PENDING again where nothing was spawned, else as `on_lost` says.
 */

/* Start from HF_BEGIN_INIT and set what differs; `workflow` is needed. */
struct hf_begin_options {
    size_t size;
    const char *workflow;
    const char *lock;  /* what is locked while it runs; NULL: the workflow's name */
    const char *key;   /* idempotency: one execution per workflow and key; NULL: none */
    const void *input; /* bytes; another input under the same key is refused */
    size_t input_size;
    bool once;         /* the key is free again after FAILED and ABORTED; -HF_DONE_ALREADY */
    int64_t ttl_ms;    /* 0: HF_TTL_DEFAULT_MS */
    int64_t wait_ms;   /* for the lock; as in hf_acquire_options */
    const char *owner; /* NULL: host/pid */
    const char *note;
    int32_t priority;
    int32_t bound[HF_BOUND_MAX];
    size_t n_bound;
    int cancel_fd;
    const char *token;    /* NULL: a new one. The same token again is the same begin */
    const char *id;       /* NULL: a new one. The same id again is the same execution */
    const char *retry_of; /* the id of the execution that this one repeats, or NULL */
    enum hf_on_lost on_lost;
    int32_t max_attempts;     /* 0: no limit */
    int64_t run_at_ms;        /* hf_enqueue: not before this time since 1970; 0: now */
    int64_t retry_backoff_ms; /* as in hf_execution; doubled with each attempt, with jitter */
    int32_t concurrency;      /* as in hf_execution */
    enum hf_overlap overlap;  /* hf_enqueue without run_at_ms: what is scheduled always queues */
    int32_t queue_limit;      /* hf_enqueue: so many of its lock may wait; 0: any number */
};
#define HF_BEGIN_INIT                                                                              \
    {                                                                                              \
        sizeof(struct hf_begin_options), NULL, NULL, NULL, NULL, 0, false, 0, 0, NULL, NULL, 0,    \
            {0, 0}, 0, -1, NULL, NULL, NULL, HF_ON_LOST_ABORT, 0, 0, 0, 0, HF_OVERLAP_REJECT, 0    \
    }

/*
 * Start one now. 0: RUNNING under `ret`; a PENDING one with that key (or id) is taken up. 0 with
 * ret_execution->duplicate: this key and input have an execution already, returned as it is;
 * ret->token is empty. -HF_HELD names the running one in err->holder.execution_id and leaves nothing
 * behind; -HF_KEY_REUSED: the key came with another input; -HF_DONE_ALREADY: `once`.
 */
HF_API int hf_begin(struct hf *hf, const struct hf_begin_options *opts, struct hf_lease *ret,
                    struct hf_execution *ret_execution, struct hf_error *err);

/*
 * Record it as PENDING, for whoever claims it; no lock is taken. Duplicates as with hf_begin(). Where
 * its lock has another one that runs or is due, `overlap` decides.
 */
HF_API int hf_enqueue(struct hf *hf, const struct hf_begin_options *opts,
                      struct hf_execution *ret_execution, struct hf_error *err);

/* What hf_claim() is to take; start from HF_CLAIM_INIT. */
struct hf_claim_options {
    size_t size;
    const char *const *workflows; /* NULL: of any workflow */
    size_t n_workflows;
    int64_t ttl_ms;    /* 0: HF_TTL_DEFAULT_MS */
    const char *owner; /* NULL: host/pid */
    int32_t bound[HF_BOUND_MAX];
    size_t n_bound;
    bool verifies; /* also those of which it is to be found out whether they were done: to_verify */
};
#define HF_CLAIM_INIT                                                                              \
    {                                                                                              \
        sizeof(struct hf_claim_options), NULL, 0, 0, NULL, {0, 0}, 0, false                        \
    }

struct hf_claimed {
    struct hf_lease lease;
    struct hf_execution execution;
};

/*
 * Take up to `max` PENDING executions that are due and whose lock is free, the highest priority
 * first, then the longest due, then the oldest; never two of one lock. *ret_n may be 0.
 */
HF_API int hf_claim(struct hf *hf, const struct hf_claim_options *opts, size_t max,
                    struct hf_claimed *ret, size_t *ret_n, struct hf_error *err);

/*
 * Those that hf_claim() would try to take now, in its order, without the first `skip`; nothing is
 * taken. For a program that claims for many by hf_apply().
 */
HF_API int hf_due(struct hf *hf, const struct hf_claim_options *opts, size_t skip, size_t max,
                  struct hf_execution *ret, size_t *ret_n, struct hf_error *err);

/*
 * A worker that finds nothing to claim sleeps until there is something:
 *
 *     hf_idle_open(hf, &idle, &err)
 *     hf_claim() claimed nothing:
 *         hf_idle_begin(idle, &opts, &next, &err)   from now on the store may wake us; claim once more
 *         poll hf_idle_fd(idle) until it is readable or the wall clock reaches `next`
 *         hf_idle_end(idle)                         whom nobody need wake; then claim
 *
 * For each execution that becomes ready one sleeper is woken that would claim one of its workflow; the
 * same where one of a workflow with a limit ends, and so leaves room for another. -HF_UNSUPPORTED from
 * open: the engine can't wake; claim every few seconds, with jitter.
 */
struct hf_idle;

HF_API int hf_idle_open(struct hf *hf, struct hf_idle **ret, struct hf_error *err);
HF_API void hf_idle_close(struct hf_idle *idle); /* before the handle */
HF_API int hf_idle_fd(const struct hf_idle *idle);

/*
 * `opts`: what hf_claim() is given; NULL: anything. *ret_next_ms: when, since 1970, the next one that
 * is known falls due; 0: none is known.
 */
HF_API int hf_idle_begin(struct hf_idle *idle, const struct hf_claim_options *opts,
                         int64_t *ret_next_ms, struct hf_error *err);

/* It is awake, for whatever reason: the next wake-up is for another one. */
HF_API void hf_idle_end(struct hf_idle *idle);

/*
 * Descriptors, for the caller to close, that become readable when processes end that run executions
 * on this machine; not those of the caller. Then, and where *ret_dead says that some have ended
 * already, hf_sweep() gives what they ran to others, and this is to be asked again: more have come
 * meanwhile. A hint: who sweeps every few seconds finds everything.
 */
HF_API int hf_runners_watch(struct hf *hf, int *ret_fds, size_t max, size_t *ret_n, bool *ret_dead,
                            struct hf_error *err);

/*
 * The command is about to be started: on disk before this returns, and the lease is renewed. Where
 * lease->cancel_requested is set afterwards, it was not marked and must not be started.
 */
HF_API int hf_spawned(struct hf *hf, struct hf_lease *lease, struct hf_error *err);

/* How an execution ended; start from HF_RESULT_INIT. */
struct hf_result {
    size_t size;
    enum hf_execution_state state; /* SUCCESS, FAILED or ABORTED */
    bool has_exit_code;
    int exit_code;
    const char *reason;
    const void *output_head, *output_tail; /* at most HF_OUTPUT_MAX bytes each */
    size_t output_head_size, output_tail_size;
    int64_t output_skipped; /* bytes between the two that were not kept */
};
#define HF_RESULT_INIT                                                                             \
    {                                                                                              \
        sizeof(struct hf_result), HF_SUCCESS, false, 0, NULL, NULL, NULL, 0, 0, 0                  \
    }

/*
 * Its end, its output and the release, in one transaction. -HF_LOST: the lease was no longer ours,
 * nothing was changed. The same finish again is done.
 */
HF_API int hf_finish(struct hf *hf, const struct hf_lease *lease, const struct hf_result *result,
                     struct hf_error *err);

/*
 * PENDING becomes ABORTED at once; a RUNNING one learns by its next heartbeat that it is to stop;
 * one that has ended stays as it is. `ret` (may be NULL): as it is now.
 */
HF_API int hf_cancel(struct hf *hf, const char *id, struct hf_execution *ret, struct hf_error *err);

HF_API int hf_execution_of(struct hf *hf, const char *id, struct hf_execution *ret,
                           struct hf_error *err);

/* What is kept of an execution beside its record. OUTPUT: its head, then its tail. */
enum hf_execution_data { HF_DATA_INPUT, HF_DATA_OUTPUT };

/* Bytes of it, in order; `skipped`: so many before these were not kept. Not 0 ends it. */
typedef int (*hf_data_fn)(void *arg, const void *bytes, size_t n, int64_t skipped);
HF_API int hf_execution_data(struct hf *hf, const char *id, enum hf_execution_data which,
                             hf_data_fn fn, void *arg, struct hf_error *err);

struct hf_execution_query {
    size_t size;
    const char *workflow; /* NULL: of every workflow */
    int state;            /* enum hf_execution_state; -1: in any */
    int64_t limit;        /* at most so many; 0: all */
    const char *before;   /* only those older than this id: where the last page ended */
};
#define HF_EXECUTION_QUERY_INIT                                                                    \
    {                                                                                              \
        sizeof(struct hf_execution_query), NULL, -1, 0, NULL                                       \
    }

/* Newest first; a non-zero answer ends the listing, which then returns 0. */
typedef int (*hf_execution_fn)(void *arg, const struct hf_execution *execution);
HF_API int hf_executions(struct hf *hf, const struct hf_execution_query *query, hf_execution_fn fn,
                         void *arg, struct hf_error *err);

/*
 * The last key, in the order of their bytes, of those that executions of `workflow` have (`once` does
 * not count) and that are neither before `from` nor behind `to`. -HF_NOT_FOUND: there is none.
 */
HF_API int hf_last_key(struct hf *hf, const char *workflow, const char *from, const char *to,
                       char ret[HF_KEY_MAX + 1], struct hf_error *err);

/* ---- keeping -------------------------------------------------------------------------------- */

struct hf_keeper;

struct hf_keep_options {
    size_t size;
    /* Called on the keeper's thread after each confirmed renewal, with the new deadline. */
    void (*renewed)(void *arg, const struct hf_lease *lease);
    void *arg;
    int64_t every_ms; /* renew at least so often, to learn of a cancel soon; 0: only as needed */
    /*
     * Called on the keeper's thread before each renewal of an execution's lease: what it has printed
     * so far, of which the output_* are kept with the renewal; NULL: nothing new. What it points to
     * must stay until the next call.
     */
    const struct hf_result *(*output)(void *arg);
    int64_t early_ms; /* let hf_keeper_fd() tell of the deadline so long before it */
};
#define HF_KEEP_INIT                                                                               \
    {                                                                                              \
        sizeof(struct hf_keep_options), NULL, NULL, 0, NULL, 0                                     \
    }

/* Renew `lease` in the background every third of its ttl. `opts` may be NULL. */
HF_API int hf_keep(struct hf *hf, const struct hf_lease *lease, const struct hf_keep_options *opts,
                   struct hf_keeper **ret, struct hf_error *err);

/* Readable once the lease is lost or its deadline (less early_ms) has passed. Poll it; do not read or close it. */
HF_API int hf_keeper_fd(const struct hf_keeper *keeper);

/* 0 while the lease holds, with its latest times in `ret` (may be NULL); else -HF_LOST and why. */
HF_API int hf_keeper_check(struct hf_keeper *keeper, struct hf_lease *ret, struct hf_error *err);

/* Stop renewing: after it returns no renewal is under way or will be sent. Does not release. */
HF_API void hf_keeper_stop(struct hf_keeper *keeper);

/* ---- without blocking ----------------------------------------------------------------------- */

struct hf_wait;

/*
 * Waiting inside an event loop. hf_wait_start() sends nothing. Then, until it is over:
 * hf_wait_check() asks once and answers 0 with the lease, a final refusal, or -HF_HELD: where
 * hf_wait_is_over() is false, poll hf_wait_fd() for reading and check again when it is readable.
 * Once it stands in the queue, a store that fails is asked again, ever less often, until the wait
 * ends: meanwhile that is -HF_HELD too, not over, with no holder and the trouble as its message.
 * hf_wait_end() frees it in every case and, where nothing was granted, leaves the queue.
 */
HF_API int hf_wait_start(struct hf *hf, const char *name, const struct hf_acquire_options *opts,
                         struct hf_wait **ret, struct hf_error *err);
HF_API int hf_wait_fd(const struct hf_wait *wait);
HF_API int hf_wait_check(struct hf_wait *wait, struct hf_lease *ret, struct hf_error *err);
HF_API bool hf_wait_is_over(const struct hf_wait *wait);
HF_API void hf_wait_end(struct hf_wait *wait);

/*
 * Many waits in one event loop, with one descriptor for all of them. The caller asks by hf_apply()
 * with HF_OP_ACQUIRE and a wait. Where the answer is that it is queued: hf_watch_add(), ask again
 * (it may have been granted just before), hf_watch_behind(); then ask whenever hf_watch_next() names
 * it, when the holder's lease runs out, and at least every 10 s, or the store takes it for gone.
 * hf_watch_remove() when it is over. -HF_UNSUPPORTED where the engine can't wake: only ask.
 */
struct hf_watch;

HF_API int hf_watch_open(struct hf *hf, struct hf_watch **ret, struct hf_error *err);
HF_API void hf_watch_close(struct hf_watch *watch); /* before the handle */

/* Readable when hf_watch_next() has something to tell; that answers NULL when it has no more. */
HF_API int hf_watch_fd(const struct hf_watch *watch);
HF_API void *hf_watch_next(struct hf_watch *watch);

/* `token`: or the lock id that stands for it. `arg`, not NULL, is what hf_watch_next() answers. */
HF_API int hf_watch_add(struct hf_watch *watch, const char *token, void *arg, struct hf_error *err);
/* Only if it was added with this `arg`: who was added after it stays. */
HF_API void hf_watch_remove(struct hf_watch *watch, const char *token, const void *arg);

/* Look after the processes just ahead of it. False: they are dead already, ask again at once. */
HF_API bool hf_watch_behind(struct hf_watch *watch, const char *name, const char *token);

/*
 * As hf_idle_begin() and hf_idle_end(), for a worker that was added to the watch and is woken through
 * it: for a program that sleeps on behalf of many.
 */
HF_API int hf_watch_idle(struct hf_watch *watch, const char *token,
                         const struct hf_claim_options *opts, int64_t *ret_next_ms,
                         struct hf_error *err);
HF_API void hf_watch_awake(struct hf_watch *watch, const char *token);

/* ---- looking -------------------------------------------------------------------------------- */

HF_API int hf_status_of(struct hf *hf, const char *name, struct hf_status *ret,
                        struct hf_error *err);

/* HELD: whatever is not free, so that nobody overlooks what is stale. */
enum hf_list_filter { HF_LIST_HELD, HF_LIST_STALE, HF_LIST_ALL };

/* Called per lock, in name order; a non-zero answer ends the listing, which then returns 0. */
typedef int (*hf_status_fn)(void *arg, const struct hf_status *status);
HF_API int hf_list(struct hf *hf, enum hf_list_filter filter, const char *prefix, hf_status_fn fn,
                   void *arg, struct hf_error *err);

/* The same from behind the name `after`, where the last page ended. */
HF_API int hf_list_after(struct hf *hf, enum hf_list_filter filter, const char *prefix,
                         const char *after, hf_status_fn fn, void *arg, struct hf_error *err);

typedef int (*hf_event_fn)(void *arg, const struct hf_event *event);

struct hf_event_query {
    size_t size;
    const char *name;  /* NULL: of every name */
    int64_t after_seq; /* only those after it; 0: from the oldest kept */
    int64_t since_ms;  /* only those at or after this time since 1970; 0: all */
    int64_t limit;     /* at most the newest so many; 0: all */
};
#define HF_EVENT_QUERY_INIT                                                                        \
    {                                                                                              \
        sizeof(struct hf_event_query), NULL, 0, 0, 0                                               \
    }

/* What happened, oldest first. */
HF_API int hf_events(struct hf *hf, const struct hf_event_query *query, hf_event_fn fn, void *arg,
                     struct hf_error *err);

/* ---- housekeeping --------------------------------------------------------------------------- */

/* Free what has expired or died. `fn` (may be NULL) is called with each; dry: only look. */
HF_API int hf_sweep(struct hf *hf, bool dry_run, hf_status_fn fn, void *arg, int64_t *ret_freed,
                    struct hf_error *err);

/* How long executions of `workflow` are kept once they have ended. */
struct hf_retention {
    const char *workflow;
    int64_t keep_ms;    /* 0: HF_KEEP_DEFAULT_MS */
    int64_t keep_count; /* of the newest, only so many; 0: any number */
};

/*
 * Remove executions that ended longer ago than they are kept, and with each its key. The `rules` (n may
 * be 0) are noted in the store before that: all who prune go by what was noted last, and keep for
 * HF_KEEP_DEFAULT_MS what has no rule. It is done in small steps, for about `within_ms` (0: only note
 * the rules; HF_FOREVER: until it is done); the next call goes on from there. Always kept: what has not
 * ended, and of each workflow the newest that its schedule has started. Nothing is done where the store
 * keeps no executions, or is a service, which does it by itself. `ret_removed` may be NULL.
 */
HF_API int hf_prune(struct hf *hf, const struct hf_retention *rules, size_t n, int64_t within_ms,
                    int64_t *ret_removed, struct hf_error *err);

/* Totals since the store was made. */
struct hf_totals {
    int64_t acquire_granted, acquire_held, release_done, release_lost;
    int64_t takeover_expired, takeover_holder_died, takeover_rebooted;
    int64_t forced, lost;
    int64_t locks_held, locks_stale, locks_free, waiters;
    int64_t executions_pending, executions_running; /* now */
    int64_t acquire_raced, acquire_error; /* seen by the service that was asked, since it started */
};
HF_API int hf_totals_of(struct hf *hf, struct hf_totals *ret, struct hf_error *err);

/* Create or migrate the store's schema. `bump_epoch`: raise every later fence past lost ones. */
HF_API int hf_init(struct hf *hf, bool bump_epoch, struct hf_error *err);

/*
 * The schema of a store as text, for those who must hand it to somebody; nothing is opened. `url` as
 * for hf_open(). -HF_UNSUPPORTED where the store has none.
 */
HF_API int hf_schema(const char *url, const char **ret, struct hf_error *err);

/*
 * What may break the promise on this store as it is set up: a server that may lose what it has
 * acknowledged. NULL where nothing is known. Lives as long as the handle.
 */
HF_API const char *hf_caution(struct hf *hf);

/* ---- tokens of the service -------------------------------------------------------------------- */

enum { HF_API_TOKEN_ID_LEN = 12, HF_API_TOKEN_LEN = 68, HF_VERBS_MAX = 200 };

/* Who may use the service, and for what. The token itself is nowhere: only its SHA-256. */
struct hf_api_token {
    char id[HF_API_TOKEN_ID_LEN + 1]; /* the first digits of the hash, for people */
    uint8_t hash[32];
    char note[HF_NOTE_MAX + 1];
    char verbs[HF_VERBS_MAX + 1];         /* "locks:read locks:write" */
    char prefix[HF_NAME_MAX + 1];         /* of names; empty: all */
    int64_t created_at_ms, expires_at_ms; /* 0: never */
};

/* Make a new one of the rest of `token`: fills id, hash and the time, and keeps it in the store. */
HF_API int hf_api_token_create(struct hf *hf, struct hf_api_token *token,
                               char ret_secret[HF_API_TOKEN_LEN + 1], struct hf_error *err);
HF_API int hf_api_token_revoke(struct hf *hf, const char *id, struct hf_error *err);

/* A non-zero answer ends the listing. */
typedef int (*hf_api_token_fn)(void *arg, const struct hf_api_token *token);
HF_API int hf_api_tokens(struct hf *hf, hf_api_token_fn fn, void *arg, struct hf_error *err);

/* ---- many at once --------------------------------------------------------------------------- */

enum hf_op {
    HF_OP_ACQUIRE,
    HF_OP_EXTEND,
    HF_OP_RELEASE,
    HF_OP_WITHDRAW,
    HF_OP_FORCE,
    HF_OP_SETTLE,
    HF_OP_LOST,
    HF_OP_STATUS,
    HF_OP_GUARD,
    HF_OP_ENQUEUE,
    HF_OP_CANCEL
};

/* How an execution ended, where the lease belongs to one. */
enum hf_outcome {
    HF_OUTCOME_NONE,
    HF_OUTCOME_SUCCESS,
    HF_OUTCOME_FAILED,
    HF_OUTCOME_ABORTED,
    HF_OUTCOME_LOST /* its runner gives it up: `on_lost` decides, as where a lease is lost */
};

/* One request to the store; unused fields are zero. Strings are the caller's. */
struct hf_request {
    enum hf_op op;
    const char *name;
    const char *token;
    int64_t fence; /* 0: not checked (force and guard need it) */
    int64_t ttl_ms;
    int64_t wait_ms; /* acquire: not 0 puts the refused into the queue */
    const char *owner;
    const char *note;
    int32_t priority;
    int32_t bound[HF_BOUND_MAX];
    size_t n_bound;
    const char *reason;
    bool durable; /* on disk before it is acknowledged; what concerns executions always is */
    /* acquire: begin an execution; enqueue: record one. `name` is its lock. */
    const char *workflow; /* NULL: a plain lock */
    const char *key;
    bool once;
    const void *input;
    size_t input_size;
    const char *execution_id; /* what a new one is to be called; cancel, settle, release: which */
    const char *retry_of;
    int64_t run_at_ms;
    enum hf_on_lost on_lost;
    int32_t max_attempts;
    int64_t retry_backoff_ms;
    int32_t concurrency;
    enum hf_overlap overlap; /* enqueue, without run_at_ms */
    int32_t queue_limit;     /* enqueue */
    bool claim; /* acquire: for the PENDING execution_id, else -HF_RACED; the rest is as recorded */
    bool verifies; /* claim: also where it is to be found out first whether it was done */
    /* extend, release: the lease's execution */
    bool spawned;            /* extend: the command is about to be started */
    enum hf_outcome outcome; /* release: how it ended */
    bool has_exit_code;
    int exit_code;
    bool has_output;
    const void *output_head, *output_tail;
    size_t output_head_size, output_tail_size;
    int64_t output_skipped;
};

struct hf_answer {
    int code;              /* 0 or negative */
    struct hf_lease lease; /* acquire, extend: when code is 0 */
    bool queued;           /* acquire: refused, and now in the queue ... */
    uint32_t ahead;        /* ... behind so many others (counted up to a few) */
    bool has_holder;
    struct hf_status holder;    /* who holds it; for status the answer itself */
    enum hf_stale_reason freed; /* settle: what was freed, and why */
    bool has_execution;
    struct hf_execution execution; /* that was begun, found, ended or cancelled */
};

/*
 * Apply `n` requests in order, together where the store can: one transaction, one round trip.
 * Returns 0 when every answer was written; each has its own code.
 */
HF_API int hf_apply(struct hf *hf, const struct hf_request *requests, size_t n,
                    struct hf_answer *answers, struct hf_error *err);

/* What a refusal says, in the words of the other functions: the answer's code, and `err` filled. */
HF_API int hf_refusal(const struct hf_request *request, const struct hf_answer *answer,
                      struct hf_error *err);

/* Is it a request that hf_apply() takes, whatever the store then answers? Else -HF_INVALID, ... */
HF_API int hf_check_request(const struct hf_request *request, struct hf_error *err);

/* ---- small tools ---------------------------------------------------------------------------- */

/* A new random token. */
HF_API void hf_token(char ret[HF_UUID_LEN + 1]);

/*
 * What the execution is to be called that repeats `id`: always the same, so that hf_enqueue() with this
 * as its id and `id` as retry_of repeats it once, whoever else does the same.
 */
HF_API void hf_retry_id(const char *id, char ret[HF_UUID_LEN + 1]);

/* "30s", "5m", "500ms", a bare number is seconds. */
HF_API int hf_parse_duration(const char *text, int64_t *ret_ms, struct hf_error *err);

#ifdef __cplusplus
}
#endif

#endif
