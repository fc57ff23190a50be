/*
 * The semantics of a lock, pure: a record, a request and a world in; a new record, an answer and
 * effects out. No I/O, and no clock but the one in `struct hf_world`. This is the specification:
 * record stores run it, statement stores are tested against it.
 *
 *     load the record
 *     while (hf_settle(&rec, &ask, &world, &fx))    // end what is over, offer it to who waits
 *         save rec and fx, load again               // the queue's window held only the dead
 *     find the execution that the request means     // see hf_ask_finds()
 *     count what else it must know                  // see hf_ask_wants()
 *     hf_step(&rec, &ask, &world, &answer, &fx)
 *     save rec and fx in one transaction; after the commit, wake fx.wake, and idle workers for
 *     executions that became ready, see hf_kept_wakes()
 *
 * The rules it keeps (numbers as in docs/promise.md, and in tests/unit/test_lease.c):
 *  1 extend and release need the token and a lease that has not expired
 *  2 the same token is the same acquire; a token that ended is never granted again
 *  4 a renewal changes neither token nor fence
 *  6 a contender honours the holder's ttl
 *  7 acquire itself takes over what is stale; a sweep frees only what is stale at that moment
 *  8 a record outlives its leases
 *  9 a lease that is taken, swept or forced ends its execution's attempt in the same step
 * 11 force names the fence that the operator saw
 * 12 first come, first served within a priority; nobody overtakes a live waiter
 */
#ifndef HF_CORE_LEASE_H
#define HF_CORE_LEASE_H

#include "execution.h"
#include "id.h"
#include "process.h"

enum {
    HF_ENDED_MAX = 8,         /* tokens remembered after their lease ended, per name */
    HF_LOST_MAX = 8,          /* lost leases whose fences are remembered, per name */
    HF_WINDOW = 8,            /* waiters at the head of the queue that a record carries */
    HF_OFFER_MS = 5000,       /* how long a waiter has to confirm what it was granted */
    HF_WAITER_MS = 20000,     /* a waiter that has not asked again for so long is gone */
    HF_PARKED_AT_ONCE = 1000, /* executions that are parked with the one that found its lock held */
    HF_DENIED_PER_WINDOW = 16,
    HF_DENIED_WINDOW_MS = 1000,   /* at most so many "denied" events in so long */
    HF_EXTENDED_EVERY_MS = 300000 /* an "extended" event at most so often */
};

/* What is persisted of a grant. Times are in the store's clock unless called `_at`. */
struct hf_grant {
    bool held;
    bool offered; /* granted to a waiter that has not confirmed it yet */
    struct hf_lock_id id;
    int64_t fence;
    char owner[HF_OWNER_MAX + 1];
    char note[HF_NOTE_MAX + 1];
    int64_t acquired_at_ms;
    int64_t acquired_ms;
    int64_t expires_ms;
    int64_t ttl_ms;
    int64_t told_ms; /* of the last event that said it is alive */
    char execution_id[HF_UUID_LEN + 1];
    bool ended; /* its execution is not RUNNING: whatever ended it, the lease is over too */
    struct hf_processes bound;
    struct hf_takeover took; /* the stale lease it took over, for whoever confirms it */
};

struct hf_waiter {
    struct hf_lock_id id;
    int32_t priority;
    int64_t ticket; /* 0: not yet in the queue; the store gives the next one */
    int64_t ttl_ms;
    int64_t until_ms; /* when it gives up; INT64_MAX: never */
    int64_t seen_ms;  /* when it last asked */
    int64_t queued_ms;
    char owner[HF_OWNER_MAX + 1];
    char note[HF_NOTE_MAX + 1];
    struct hf_processes bound;
};

/* How a remembered token's lease ended. */
enum hf_end { HF_END_RELEASED = 1, HF_END_LOST = 2 };

struct hf_ended {
    struct hf_lock_id id;
    uint8_t how;
};

/* Totals of one name, for metrics. */
struct hf_counts {
    int64_t granted, held, released, release_lost;
    int64_t taken_expired, taken_died, taken_rebooted;
    int64_t forced, lost;
};

/* All that a store keeps of one name. A new name is all zero but for `name`. */
struct hf_record {
    char name[HF_NAME_MAX + 1];
    struct hf_grant grant;
    int64_t last_fence;
    struct hf_ended ended[HF_ENDED_MAX]; /* newest first */
    uint32_t n_ended;
    /* Fences of leases that were lost, newest first. Of those up to the last one nothing is known;
     * every other lease was given back by its holder. */
    int64_t lost_fences[HF_LOST_MAX];
    uint32_t n_lost_fences;
    int64_t denied_ms; /* the window of "denied" events, and how many it has */
    uint32_t n_denied;
    struct hf_counts counts;
    struct hf_execution execution; /* that the grant has; its id is empty where there is none */
    bool parked; /* PENDING executions may be parked here: made ready when it is free, in order */
    /* The queue: its head in order, the asker's own entry wherever it stands, how many in all. */
    struct hf_waiter head[HF_WINDOW];
    uint32_t n_head;
    struct hf_waiter self;
    bool has_self;
    uint32_t n_waiters;
};

/* What the step may ask of the world. */
struct hf_world {
    int64_t now_ms;    /* the store's clock */
    int64_t wall_ms;   /* for people */
    int64_t unsure_ms; /* how much later it may be than now_ms: a lease lasts so much longer */
    void *ctx;
    /* Is this holder or waiter certainly dead, and why? HF_STALE_NOT also in doubt. */
    enum hf_stale_reason (*dead)(void *ctx, const struct hf_processes *bound,
                                 enum hf_alive *ret_alive);
    /* The next fence, above every earlier one of this name; negative: the code of a failure. */
    int64_t (*next_fence)(void *ctx);
};

enum { HF_EFFECTS_MAX = HF_WINDOW + 4, HF_EXECUTIONS_MAX = 4 };

/* An execution as it is now; a new one comes with the request's input. */
struct hf_kept_execution {
    struct hf_execution x;
    bool is_new;
    bool left; /* it was RUNNING */
};

/* What the store must do beside saving the record, all in the same transaction but `wake`. */
struct hf_effects {
    struct hf_event events[HF_EFFECTS_MAX];
    uint32_t n_events;
    struct hf_lock_id dropped[HF_EFFECTS_MAX]; /* leave the queue */
    uint32_t n_dropped;
    bool put_self; /* rec->self joins the queue or is refreshed in it */
    struct hf_kept_execution executions[HF_EXECUTIONS_MAX]; /* in this order */
    uint32_t n_executions;
    char output_of[HF_UUID_LEN + 1]; /* the request's output is this execution's; empty: nobody's */
    struct hf_lock_id wake[2];       /* waiters that were offered the lock: after the commit */
    uint32_t n_wake;
    /* Not empty: every replaceable one of the lock ends as hf_execution_replace() says, before the
     * others are kept. */
    char replaced_by[HF_UUID_LEN + 1];
    int64_t replaced_at_ms; /* who is due at this time is replaceable */
    /* Of those that are parked, the first of each workflow is made ready (of each `concurrency` and
     * to_verify that it has, where these differ); rec->parked becomes false where there is none. After
     * all else was kept. */
    bool unpark;
    /* Not 0: so are parked, in their order, as many as HF_PARKED_AT_ONCE others of the lock that are
     * ready and due at this time. When the executions above were kept. */
    int64_t park_due_ms;
    bool vacated, stepped;    /* a lease ended, or one that was ready; the request was applied */
    struct hf_takeover freed; /* the stale lease that ended here: the next grant takes it over */
    bool inherited;           /* `freed` was counted when it was offered; nobody confirmed that */
    bool renewed; /* the lease lasts its ttl from now, if it did not last longer already */
    bool changed; /* the record differs from what was loaded */
};

/* A request as the step sees it: the token hashed, the processes identified. */
struct hf_ask {
    const struct hf_request *req;
    struct hf_lock_id id;
    struct hf_processes bound;
    bool same_input;   /* found by its key: its input is the request's */
    int32_t n_running; /* the others of its workflow that are RUNNING; as far as wanted */
    int32_t n_waiting; /* of the executions of this lock that are due ... */
    char waiting_id[HF_UUID_LEN + 1]; /* ... and which goes first; as far as wanted */
    bool has_found;
    struct hf_execution found; /* the execution that the request means; last, as it is large */
};

/*
 * Which execution must be looked for before the step: the one that has this workflow's key, else the
 * one with this id. With `once` only PENDING, RUNNING and SUCCESS have a key.
 */
struct hf_sought {
    const char *workflow, *key; /* NULL: not by its key */
    bool once;
    const char *id; /* NULL: not by its id */
};
struct hf_sought hf_ask_finds(const struct hf_request *req);

/*
 * What else must be known, when that one was looked for and settling was saved. `running_of`: how
 * many of this workflow are RUNNING, `found` left out; counted up to `running_max`. `waiting`: of
 * the executions of this lock that are PENDING and due, which goes first, or how many there are.
 */
enum hf_waiting { HF_WAITING_NOT, HF_WAITING_FIRST, HF_WAITING_REPLACEABLE, HF_WAITING_COUNT };
struct hf_wanted {
    const char *running_of; /* NULL: that need not be known */
    int32_t running_max;
    enum hf_waiting waiting; /* REPLACEABLE: the first that is not to be verified */
    int32_t waiting_max;
};
struct hf_wanted hf_ask_wants(const struct hf_ask *ask);

/*
 * How many idle workers are to be woken that would claim executions of its workflow: one where it is
 * ready now, and one where there is room for another one of a workflow with a limit.
 */
uint32_t hf_kept_wakes(const struct hf_kept_execution *kept);

/*
 * End a lease that is over and offer the lock to the first live waiter. True: the window held only
 * dead waiters and there are more; save, load and settle again. Who asks with the holder's own
 * token is taken for a sign of life, so that a holder's renewals need no look at its processes.
 */
bool hf_settle(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
               struct hf_effects *fx);

/* Apply one request to a settled record. The answer's code is the outcome. */
void hf_step(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
             struct hf_answer *answer, struct hf_effects *fx);

/* Why the record's lease is over, or HF_STALE_NOT (also when it is free). */
enum hf_stale_reason hf_grant_stale(const struct hf_grant *grant, const struct hf_world *world);

/* The record as people see it. */
void hf_record_status(const struct hf_record *rec, const struct hf_world *world,
                      struct hf_status *ret);

/* May requests of this kind be answered without changing anything? */
bool hf_op_is_read(enum hf_op op);

/* Must it be on disk before it is acknowledged? What concerns an execution, but not its heartbeats. */
bool hf_request_is_durable(const struct hf_request *req);

/* From now on the token of this lease is refused: how it ended. The oldest one is forgotten. */
void hf_remember_ended(struct hf_record *rec, const struct hf_grant *grant, enum hf_end how);

/* The fences of lost leases as text, for stores that keep it so: numbers with a space between. */
enum { HF_LOST_TEXT_MAX = HF_LOST_MAX * 20 };
void hf_lost_fences_format(const struct hf_record *rec, char ret[HF_LOST_TEXT_MAX]);
void hf_lost_fences_parse(const char *text, struct hf_record *ret);

/* a before b in the queue */
bool hf_waiter_before(const struct hf_waiter *a, const struct hf_waiter *b);

#endif
