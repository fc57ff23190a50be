/*
 * The dynamodb store's own rooms:
 *
 *   call.c, clock.c, credentials*.c   the transport, behind dynamo.h
 *   dynamodb.c    the vtable, opening and closing, one request after the other
 *   setup.c       the table: creating it, its format, its fences' epoch
 *   item.c        attribute values; pages of items
 *   turn.c        one request at work: what it has read, what it will write, the commit
 *   plain.c       the same where the endpoint has no transactions
 *   quick.c       acquire, extend and release in one UpdateItem, where nothing stands in the way
 *   lock.c        a record <-> the seed's item SK=LOCK
 *   queue.c       waiters: SK=WAITER#id beside it
 *   log.c         events: the last ones in the lock's item, older ones in items of their own
 *   executions.c  SK=RUN and what is found by way of it
 *   turns.c       which of them are due, parked or in the way
 *   retention.c   how long executions are kept
 *   look.c        list, events, totals
 *   pages.c       executions, newest first
 *   tokens.c      the service's tokens
 *
 * The items, by partition (PK) and sort key (SK):
 *
 *   LOCK#name     LOCK, FENCE, WAITER#id, EVENTS#seq, READY#turn, PARKED#turn
 *   RUN#id        RUN, INPUT, OUTPUT           one execution
 *   FLOW#workflow FLOW, RUN#seq, KEY#key, ONCE#key, READY#turn, PARKED#turn, RUNNING#seq, OVER#end
 *   NAMES, FLOWS  the name of each lock and workflow that was ever used here
 *   EVENTS#day    the events of all names
 *   RETAIN        how long a workflow's executions are kept
 *   TOKENS        the service's tokens
 *   HOLDFAST      META: the format's version
 *
 * Whatever is said of executions and waiters of a name is changed together with its LOCK item, whose
 * Rev goes up with every change: who has read that item, then looked around below it, and writes only
 * if its Rev is still the same, has seen all of it as it is.
 */
#ifndef HF_DYNAMODB_STORE_H
#define HF_DYNAMODB_STORE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "dynamo.h"
#include "record.h"

enum {
    HF_DDB_FORMAT = 1,
    HF_DDB_CONFLICT = -1000, /* instead of a code: somebody else was first, do it all again */
    HF_DDB_KEY_MAX = 512,
    HF_DDB_LOG_FULL = 32,       /* so many events in the lock's item: the next release moves them */
    HF_DDB_LOG_FULL_BESIDE = 8, /* the same where more than that item is written anyway */
    HF_DDB_FENCES = 1000,       /* in a block */
    HF_DDB_AT_ONCE = 14,        /* executions that one transaction changes beside its own */
    HF_DDB_INPUT_MAX = 380 * 1024,
    HF_DDB_PAGE = 100 /* what one BatchGetItem may ask for */
};

#define HF_DDB_EVENTS_KEPT_MS (INT64_C(30) * 24 * 3600 * 1000)
#define HF_DDB_RELEASED_AT                                                                         \
    "1970-01-01T00:00:00Z" /* its absence would lock the seed's clients out */

struct hf_ddb {
    struct hf_store base;
    struct hf_dynamo *d;
    pthread_mutex_t mutex; /* guards what follows */
    bool ready;            /* the table is there and its format is ours */
    _Atomic bool is_plain; /* the endpoint has no TransactWriteItems: plain locks only */
};

static inline struct hf_ddb *hf_ddb_of(struct hf_store *store) { return (struct hf_ddb *)store; }

/* ---- item.c --------------------------------------------------------------------------------- */

/* Attributes. What can't be set for want of memory is noted: see hf_ddb_check_memory(). */
void hf_ddb_set(json_t *item, const char *name, json_t *value);
void hf_ddb_set_text(json_t *item, const char *name, const char *text); /* "": nothing */
void hf_ddb_set_int(json_t *item, const char *name, int64_t value);
void hf_ddb_set_bytes(json_t *item, const char *name, const void *bytes, size_t n);
json_t *hf_ddb_text(const char *text);
json_t *hf_ddb_int(int64_t value);
json_t *hf_ddb_object(void);

bool hf_ddb_has(const json_t *item, const char *name);
const char *hf_ddb_get_text(const json_t *item, const char *name); /* absent: "" */
void hf_ddb_copy_text(const json_t *item, const char *name, char *ret, size_t size);
int64_t hf_ddb_get_int(const json_t *item, const char *name); /* absent: 0 */
/* To be freed by the caller; NULL and 0 where there are none. */
int hf_ddb_get_bytes(const json_t *item, const char *name, void **ret, size_t *ret_n,
                     struct hf_error *err);

/* -HF_NOMEM where an attribute could not be set by this thread since it was last asked. */
int hf_ddb_check_memory(struct hf_error *err);

/* A request's body with "Key", consistent. */
json_t *hf_ddb_key(const char *pk, const char *sk);

/* One action; `body` is taken. A failure that is not named here is an error: see dynamo.h. */
int hf_ddb_call(struct hf_ddb *s, const char *action, json_t *body, json_t **ret,
                const char **ret_failure, struct hf_error *err);
/* The same with a body that is written already, TableName and all. */
int hf_ddb_call_text(struct hf_ddb *s, const char *action, const struct hf_buf *body, json_t **ret,
                     const char **ret_failure, struct hf_error *err);

/* The item, for json_decref(); NULL: there is none. */
int hf_ddb_fetch(struct hf_ddb *s, const char *pk, const char *sk, json_t **ret,
                 struct hf_error *err);

/* Write it whatever is there; `item` without its key is taken. */
int hf_ddb_store(struct hf_ddb *s, const char *pk, const char *sk, json_t *item,
                 struct hf_error *err);

/* A range of one partition, from `from` to `to`, both included, in the order of SK. */
struct hf_ddb_range {
    const char *pk, *from, *to;
    bool backwards;
    size_t limit; /* 0: all */
};
/* An array of items, for json_decref(). */
int hf_ddb_query(struct hf_ddb *s, const struct hf_ddb_range *range, json_t **ret,
                 struct hf_error *err);
int hf_ddb_count(struct hf_ddb *s, const struct hf_ddb_range *range, int64_t *ret,
                 struct hf_error *err);

/* Up to HF_DDB_PAGE items by their keys, in that order; null where there is none. */
int hf_ddb_fetch_many(struct hf_ddb *s, const json_t *keys, json_t **ret, struct hf_error *err);

/* A number that only grows in this process, and by time among all; below 2^53 until 2109. */
int64_t hf_ddb_stamp(int64_t wall_ms);
int64_t hf_ddb_stamp_ms(int64_t stamp);
int64_t hf_ddb_first_stamp(int64_t wall_ms); /* of that millisecond */

/* ---- turn.c --------------------------------------------------------------------------------- */

enum hf_ddb_how {
    HF_DDB_IF_SAME, /* as it was read; its Rev goes up */
    HF_DDB_BLINDLY, /* another item's Rev says that nobody else writes it */
    HF_DDB_AHEAD    /* it says what is so already: may be written before the others, or twice */
};

struct hf_ddb_slot; /* one item that was read or is to be written */

/* One request at work. Handed to record.c as its store. */
struct hf_ddb_turn {
    struct hf_store base;
    struct hf_ddb *s;
    const char *name;
    int64_t now_ms;    /* a lease that ends by then is over: the early bound, less the margin */
    int64_t unsure_ms; /* what is added to a lease's end, so that it is by the late bound */
    int64_t wall_ms;
    int64_t last_stamp; /* of this name: LastSeq in its item, then what this turn has given */
    struct hf_ddb_slot *slots;
    size_t n_slots, slots_size;
    /* the queue of `name`, once it was read */
    struct hf_waiter *queue;
    size_t n_queue, queue_size;
    bool has_queue;
    int64_t tickets;
    int64_t block_first, block_limit; /* the fences that this turn may give */
};

static inline struct hf_ddb_turn *hf_ddb_turn_of(struct hf_store *store)
{
    return (struct hf_ddb_turn *)store;
}

/* Learns the time where it is not known. */
int hf_ddb_turn_begin(struct hf_ddb_turn *t, struct hf_ddb *s, const char *name,
                      struct hf_error *err);
void hf_ddb_turn_end(struct hf_ddb_turn *t);

/* What somebody else has read just now; NULL is not known. */
void hf_ddb_turn_know(struct hf_ddb_turn *t, const char *pk, const char *sk, const json_t *item);

/* The item as it is after what this turn has written so far; NULL: there is none. */
int hf_ddb_turn_get(struct hf_ddb_turn *t, const char *pk, const char *sk, const json_t **ret,
                    struct hf_error *err);
/* As it was before that; NULL also where it was not read. */
const json_t *hf_ddb_turn_seen(struct hf_ddb_turn *t, const char *pk, const char *sk);
/* `item`, without key and Rev, is taken. */
int hf_ddb_turn_put(struct hf_ddb_turn *t, const char *pk, const char *sk, json_t *item,
                    enum hf_ddb_how how, struct hf_error *err);
int hf_ddb_turn_delete(struct hf_ddb_turn *t, const char *pk, const char *sk, enum hf_ddb_how how,
                       struct hf_error *err);
/* As hf_ddb_query(), with what this turn has written so far. */
int hf_ddb_turn_query(struct hf_ddb_turn *t, const struct hf_ddb_range *range, json_t **ret,
                      struct hf_error *err);
/*
 * Time and stamps of one name only grow, whoever changes it, though two processes may have looked at
 * the server's clock a second apart. To be called before the turn's time is used.
 */
int hf_ddb_turn_follow(struct hf_ddb_turn *t, struct hf_error *err);
int64_t hf_ddb_turn_stamp(struct hf_ddb_turn *t);

/* How many items are to be written. */
size_t hf_ddb_turn_size(const struct hf_ddb_turn *t);
int hf_ddb_turn_commit(struct hf_ddb_turn *t, struct hf_error *err);

/* ---- plain.c -------------------------------------------------------------------------------- */

/*
 * The item was `written` without a fence: give it a block, of which `fence` is the first, if that is
 * the block behind `first`; else give the lock back. HF_DDB_CONFLICT: it is not ours.
 */
int hf_ddb_give_block(struct hf_ddb *s, const char *pk, const json_t *written, int64_t first,
                      int64_t fence, struct hf_error *err);

/* ---- lock.c --------------------------------------------------------------------------------- */

void hf_ddb_lock_pk(const char *name, char ret[HF_DDB_KEY_MAX]);
/* The record without queue and execution; NULL: a name never seen. */
void hf_ddb_read_lock(const char *name, const json_t *item, struct hf_record *ret);
/* ExpiresAt, in whole seconds, never before `expires_ms`; returns TTL. */
int64_t hf_ddb_expiry(int64_t expires_ms, char ret_text[32]);

int hf_ddb_load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                struct hf_record *ret, struct hf_error *err);
int hf_ddb_save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                const struct hf_effects *fx, struct hf_error *err);
int64_t hf_ddb_next_fence(struct hf_store *store);

/* ---- queue.c -------------------------------------------------------------------------------- */

/* Fill in the record's queue; `known` is how many there are, or -1. */
int hf_ddb_load_queue(struct hf_ddb_turn *t, const struct hf_lock_id *self, int64_t known,
                      struct hf_record *rec, struct hf_error *err);
int hf_ddb_save_queue(struct hf_ddb_turn *t, const struct hf_record *rec,
                      const struct hf_effects *fx, struct hf_error *err);

/* ---- log.c ---------------------------------------------------------------------------------- */

/* An event that quick.c appends, as text: what it can't know is filled in when it is read. */
void hf_ddb_quick_event(struct hf_buf *out, enum hf_event_kind kind, int64_t at_ms,
                        const char *owner, const char *reason);
/* The events in a lock's item, oldest first; to be freed. */
int hf_ddb_read_log(const char *name, const json_t *item, struct hf_event **ret, size_t *ret_n,
                    struct hf_error *err);
/* Into `next`, the lock's new item: what `item` has, then these; moving them out where they are many. */
int hf_ddb_write_log(struct hf_ddb_turn *t, const json_t *item, json_t *next,
                     const struct hf_effects *fx, struct hf_error *err);

/* ---- quick.c -------------------------------------------------------------------------------- */

/*
 * 1: answered. 0: it can't be done so; *ret_item is the lock's item where that is known, for
 * json_decref().
 */
int hf_ddb_try_quick(struct hf_ddb *s, const struct hf_request *req, struct hf_answer *answer,
                     json_t **ret_item, struct hf_error *err);

/* ---- executions.c --------------------------------------------------------------------------- */

void hf_ddb_flow_pk(const char *workflow, char ret[HF_DDB_KEY_MAX]);
void hf_ddb_run_pk(const char *id, char ret[HF_DDB_KEY_MAX]);
int hf_ddb_read_run(const json_t *item, struct hf_execution *ret, struct hf_error *err);
/* The execution with this id, as this turn has left it. 1: found, 0: there is none. */
int hf_ddb_turn_run(struct hf_ddb_turn *t, const char *id, struct hf_execution *ret,
                    struct hf_error *err);
/* Keep one that is there already as it is now. */
int hf_ddb_update_run(struct hf_ddb_turn *t, const struct hf_execution *x, struct hf_error *err);

int hf_ddb_find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                struct hf_error *err);
int hf_ddb_load_execution(struct hf_ddb_turn *t, struct hf_record *rec, struct hf_error *err);
int hf_ddb_save_executions(struct hf_ddb_turn *t, const struct hf_ask *ask,
                           const struct hf_effects *fx, struct hf_error *err);
int hf_ddb_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                     struct hf_error *err);
int hf_ddb_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                          hf_data_fn fn, void *arg, struct hf_error *err);

/* ---- turns.c -------------------------------------------------------------------------------- */

int hf_ddb_count_turns(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                       struct hf_ask *ask, struct hf_error *err);
int hf_ddb_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                  struct hf_error *err);
/* `claimed`, `first`: the one that the request itself is about. */
int hf_ddb_park(struct hf_ddb_turn *t, const char *claimed, const struct hf_effects *fx,
                struct hf_error *err);
int hf_ddb_replace(struct hf_ddb_turn *t, const char *first, const struct hf_effects *fx,
                   struct hf_error *err);
int hf_ddb_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
               size_t *ret_n, struct hf_error *err);
int hf_ddb_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                    char ret[HF_KEY_MAX + 1], struct hf_error *err);

/* ---- retention.c ---------------------------------------------------------------------------- */

int hf_ddb_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                  struct hf_error *err);
int hf_ddb_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                 int64_t *ret_removed, struct hf_error *err);

/* ---- look.c --------------------------------------------------------------------------------- */

int hf_ddb_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                struct hf_error *err);
int hf_ddb_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                  void *arg, struct hf_error *err);
int hf_ddb_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err);
/* Every name or workflow that was ever used: items of NAMES or FLOWS, for json_decref(). */
int hf_ddb_names(struct hf_ddb *s, const char *pk, json_t **ret, struct hf_error *err);

/* ---- pages.c -------------------------------------------------------------------------------- */

int hf_ddb_executions(struct hf_store *store, const struct hf_execution_query *query,
                      hf_execution_fn fn, void *arg, struct hf_error *err);

/* ---- setup.c -------------------------------------------------------------------------------- */

/* The table is there, and what it holds is understood. Asks once. */
int hf_ddb_make_ready(struct hf_ddb *s, struct hf_error *err);
int hf_ddb_init(struct hf_store *store, bool bump_epoch, struct hf_error *err);

/* ---- tokens.c ------------------------------------------------------------------------------- */

int hf_ddb_token_add(struct hf_store *store, const struct hf_api_token *token,
                     struct hf_error *err);
int hf_ddb_token_remove(struct hf_store *store, const char *id, struct hf_error *err);
int hf_ddb_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err);

/* ---- dynamodb.c ----------------------------------------------------------------------------- */

extern const struct hf_record_ops hf_ddb_record_ops;

#endif
