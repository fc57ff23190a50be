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
    HF_MESSAGE_MAX = 1200
};

#define HF_TTL_DEFAULT_MS INT64_C(60000)
#define HF_TTL_MIN_MS INT64_C(100)
#define HF_TTL_MAX_MS (INT64_C(366) * 24 * 3600 * 1000)
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

/* Why a lease could be taken from its holder. */
enum hf_stale_reason { HF_STALE_NOT, HF_STALE_EXPIRED, HF_STALE_DIED, HF_STALE_REBOOTED };

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

/* Renew `lease` for `ttl_ms` (0: its own ttl) and update its times. -HF_LOST: stop working. */
HF_API int hf_extend(struct hf *hf, struct hf_lease *lease, int64_t ttl_ms, struct hf_error *err);

/* Give it back. -HF_LOST: it was no longer yours; nobody else's lease was touched. */
HF_API int hf_release(struct hf *hf, const struct hf_lease *lease, struct hf_error *err);

/* Release, and in the same transaction record how the execution of an `once_key` ended. */
HF_API int hf_finish(struct hf *hf, const struct hf_lease *lease, bool success, int exit_code,
                     const char *reason, struct hf_error *err);

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

/* ---- keeping -------------------------------------------------------------------------------- */

struct hf_keeper;

struct hf_keep_options {
    size_t size;
    /* Called on the keeper's thread after each confirmed renewal, with the new deadline. */
    void (*renewed)(void *arg, const struct hf_lease *lease);
    void *arg;
};
#define HF_KEEP_INIT                                                                               \
    {                                                                                              \
        sizeof(struct hf_keep_options), NULL, NULL                                                 \
    }

/* Renew `lease` in the background every third of its ttl. `opts` may be NULL. */
HF_API int hf_keep(struct hf *hf, const struct hf_lease *lease, const struct hf_keep_options *opts,
                   struct hf_keeper **ret, struct hf_error *err);

/* Readable once the lease is lost or its deadline has passed. Poll it; do not read or close it. */
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

/* ---- looking -------------------------------------------------------------------------------- */

HF_API int hf_status_of(struct hf *hf, const char *name, struct hf_status *ret,
                        struct hf_error *err);

/* HELD: whatever is not free, so that nobody overlooks what is stale. */
enum hf_list_filter { HF_LIST_HELD, HF_LIST_STALE, HF_LIST_ALL };

/* Called per lock, in name order; a non-zero answer ends the listing, which then returns 0. */
typedef int (*hf_status_fn)(void *arg, const struct hf_status *status);
HF_API int hf_list(struct hf *hf, enum hf_list_filter filter, const char *prefix, hf_status_fn fn,
                   void *arg, struct hf_error *err);

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

/* Totals since the store was made. */
struct hf_totals {
    int64_t acquire_granted, acquire_held, release_done, release_lost;
    int64_t takeover_expired, takeover_holder_died, takeover_rebooted;
    int64_t forced, lost;
    int64_t locks_held, locks_stale, locks_free, waiters;
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
    HF_OP_GUARD
};

/* How an execution ended, where the lease belongs to one. */
enum hf_outcome { HF_OUTCOME_NONE, HF_OUTCOME_SUCCESS, HF_OUTCOME_FAILED, HF_OUTCOME_ABORTED };

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
    const char *once_key;
    const char *execution_id; /* acquire: the id to give a new execution of `once_key` */
    enum hf_outcome outcome;  /* release: how the execution ended */
    int exit_code;
    bool durable; /* on disk before it is acknowledged */
};

struct hf_answer {
    int code;              /* 0 or negative */
    struct hf_lease lease; /* acquire, extend: when code is 0 */
    bool queued;           /* acquire: refused, and now in the queue ... */
    uint32_t ahead;        /* ... behind so many others (counted up to a few) */
    bool has_holder;
    struct hf_status holder;    /* who holds it; for status the answer itself */
    enum hf_stale_reason freed; /* settle: what was freed, and why */
};

/*
 * Apply `n` requests in order, together where the store can: one transaction, one round trip.
 * Returns 0 when every answer was written; each has its own code.
 */
HF_API int hf_apply(struct hf *hf, const struct hf_request *requests, size_t n,
                    struct hf_answer *answers, struct hf_error *err);

/* ---- small tools ---------------------------------------------------------------------------- */

/* A new random token. */
HF_API void hf_token(char ret[HF_UUID_LEN + 1]);

/* "30s", "5m", "500ms", a bare number is seconds. */
HF_API int hf_parse_duration(const char *text, int64_t *ret_ms, struct hf_error *err);

#ifdef __cplusplus
}
#endif

#endif
