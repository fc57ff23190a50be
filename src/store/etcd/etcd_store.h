/*
 * The etcd store's own rooms:
 *
 *   etcd.c        the vtable, opening and closing, a change and its repetition after a conflict
 *   call.c        one request to the gateway: endpoints, deadlines, the user, errors as codes
 *   message.c     what etcd is asked and answers, as JSON
 *   txn.c         one change: what was read is compared, what is written is written, in one Txn
 *   cache.c       what keys held when we last saw them
 *   leases.c      etcd's leases, which carry liveness; they are used again
 *   fields.c      structs <-> JSON values, by tables
 *   records.c     a record <-> its keys
 *   waiters.c     its queue
 *   executions.c  executions, their keys and indexes
 *   turns.c       which of them are due
 *   parking.c     those that wait for one lock
 *   walk.c        through an index, from turn to turn
 *   events.c      what happened
 *   look.c        list, totals
 *   retention.c   how long executions are kept
 *   wakes.c       the watch that wakes waiters and idle workers
 *   idle.c        workers that sleep
 *   tokens.c      tokens of the service
 *
 * Keys, each behind the prefix; \1 stands between parts, as no name has control characters:
 *
 *   meta                          the format's version, the epoch
 *   lock/NAME                     the record. Whatever changes of a name also puts this: it is what
 *                                 changes of one name are compared by. Never deleted.
 *   alive/NAME                    in an etcd lease: there while the lock's lease has not run out
 *   wait/NAME\1RANK.TICKET        a waiter
 *   place/NAME\1LOCKID            where the waiter with this id stands
 *   event/TIME.RANDOM             an event; each names the one before it of the same name
 *   exec/ID input/ID output/ID    an execution
 *   key/WORKFLOW\1KEY once/...    whose key it is
 *   st/STATE/ORDER                indexes: executions by state,
 *   wf/WORKFLOW\1STATE/ORDER      by workflow and state,
 *   due/WORKFLOW\1LIMIT\1TURN     those that are ready, by group and turn,
 *   ready/LOCK\1TURN, park/...    those of a lock that are ready, or parked,
 *   kind/LOCK\1WORKFLOW\1LIMIT\1TURN  the latter by kind,
 *   end/WORKFLOW\1TIME.ORDER      those that have ended
 *   limit/WORKFLOW                put whenever one of a limited workflow begins or ends to run
 *   wake/CHANNEL/ID idle/ID       wake-ups; workers that sleep
 *   retain/WORKFLOW token/ID      rules; the service's tokens
 */
#ifndef HF_ETCD_STORE_H
#define HF_ETCD_STORE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "buf.h"
#include "curl.h"
#include "record.h"

enum {
    HF_ETCD_ENDPOINTS_MAX = 16,
    HF_ETCD_IDLE_MAX = 32, /* connections that are kept */
    HF_ETCD_KEY_MAX = 1024,
    HF_ETCD_OPS_MAX = 128,         /* what etcd takes in one Txn as it comes */
    HF_ETCD_DATA_MAX = 1000 << 10, /* of an input; etcd takes 1.5 MB in one request */
    HF_ETCD_BODY_MAX = 4 << 20,
    HF_ETCD_ANSWER_MAX = 64 << 20,
    HF_ETCD_ORDER_LEN = 24,
    HF_ETCD_EVENT_ID_LEN = 24
};

struct hf_etcd_cache;
struct hf_etcd_leases;
struct hf_etcd_wakes;

struct hf_etcd {
    struct hf_store base;
    const struct hf_curl *curl;
    char endpoints[HF_ETCD_ENDPOINTS_MAX][280]; /* "http://host:port" */
    size_t n_endpoints;
    _Atomic size_t current; /* the endpoint that is asked first */
    char prefix[160];
    char user[128], password[256];
    char ca[512], cert[512], key[512];
    int64_t timeout_ms;
    char caution[200];
    bool has_version;
    pthread_mutex_t mutex; /* guards all below */
    char auth[512];        /* the token of our user; empty: none yet */
    CURL *idle[HF_ETCD_IDLE_MAX];
    size_t n_idle;
    struct hf_etcd_cache *cache;
    struct hf_etcd_leases *leases;
    struct hf_etcd_wakes *_Atomic wakes; /* NULL until somebody waits; then it stays */
    _Atomic int64_t events_made;
};

/* ---- call.c --------------------------------------------------------------------------------- */

int hf_etcd_parse_url(struct hf_etcd *s, const struct hf_url *url, struct hf_error *err);

/* What every request has; `headers` is the caller's to free. */
void hf_etcd_prepare(struct hf_etcd *s, CURL *easy, struct curl_slist **ret_headers);
/* The next endpoint's turn: `used` did not answer. */
void hf_etcd_move_on(struct hf_etcd *s, size_t used);
/* Log in where there is a user; `again`: the token is not good any more. */
int hf_etcd_log_in(struct hf_etcd *s, bool again, struct hf_error *err);

/*
 * POST a body; 0 with the answer, the caller's. `changes`: an answer that is lost is -HF_UNKNOWN; else
 * every endpoint is asked until one answers or the time is up. -HF_NOT_FOUND: no such lease. -HF_INVALID: etcd
 * does not take it.
 */
int hf_etcd_call(struct hf_etcd *s, const char *path, const struct hf_buf *body, bool changes,
                 json_t **ret, struct hf_error *err);
/* GET; the version is asked for so. */
int hf_etcd_get_path(struct hf_etcd *s, const char *path, json_t **ret, struct hf_error *err);

/* ---- message.c ------------------------------------------------------------------------------ */

/* Bytes of one key, as etcd has them. */
struct hf_etcd_kv {
    char *key;
    char *value;
    size_t len;
    int64_t mod, lease; /* mod 0: there is no such key */
};
struct hf_etcd_page {
    struct hf_etcd_kv *of;
    size_t n, size;
    int64_t count, revision;
    bool more;
};
void hf_etcd_kv_clear(struct hf_etcd_kv *kv);
void hf_etcd_page_clear(struct hf_etcd_page *page);
/* A place at its end; NULL: no memory. */
struct hf_etcd_kv *hf_etcd_page_add(struct hf_etcd_page *page);

struct hf_etcd_span {
    const char *from, *to; /* `to` NULL: only the key `from` */
    int64_t limit;         /* 0: all */
    int64_t revision;      /* 0: now */
    bool descending, keys_only, count_only;
};
void hf_etcd_put_text(struct hf_buf *out, const char *name, const void *bytes, size_t n);
void hf_etcd_put_span(struct hf_buf *out, const struct hf_etcd_span *span);
bool hf_etcd_take_kv(const json_t *json, struct hf_etcd_kv *ret);
int hf_etcd_take_page(const json_t *answer, struct hf_etcd_page *ret, struct hf_error *err);
int64_t hf_etcd_number(const json_t *object, const char *name);
int64_t hf_etcd_revision(const json_t *answer);

/* Read outside of any change. */
int hf_etcd_read(struct hf_etcd *s, const struct hf_etcd_span *span, struct hf_etcd_page *ret,
                 struct hf_error *err);
/* Several at one moment: ret[n]. */
int hf_etcd_read_all(struct hf_etcd *s, const struct hf_etcd_span *spans, size_t n,
                     struct hf_etcd_page *ret, struct hf_error *err);

/* ---- cache.c -------------------------------------------------------------------------------- */

struct hf_etcd_cache *hf_etcd_cache_new(void);
void hf_etcd_cache_free(struct hf_etcd_cache *cache);
/* What the key held when it was last seen: 1 with a copy; 0: it was never seen. */
int hf_etcd_cache_find(struct hf_etcd_cache *cache, const char *key, struct hf_etcd_kv *ret);
void hf_etcd_cache_keep(struct hf_etcd_cache *cache, const struct hf_etcd_kv *kv);
void hf_etcd_cache_drop(struct hf_etcd_cache *cache, const char *key);
/* Do others change it, too, so that it is better looked at first? */
void hf_etcd_cache_contend(struct hf_etcd_cache *cache, const char *key, bool contended);
/* It is known, and nobody else seems to change it. *ret_mod: its revision when it was last seen; 0: never. */
bool hf_etcd_cache_is_good(struct hf_etcd_cache *cache, const char *key, int64_t *ret_mod);

/* ---- leases.c ------------------------------------------------------------------------------- */

struct hf_etcd_leases *hf_etcd_leases_new(void);
void hf_etcd_leases_free(struct hf_etcd_leases *leases);

/* How long an etcd lease lives that carries a ttl: longer, as it may have been renewed before. */
int64_t hf_etcd_lease_s(int64_t ttl_ms);

/* One that nobody uses, fresh. */
int hf_etcd_lease_take(struct hf_etcd *s, int64_t ttl_ms, int64_t *ret_id, struct hf_error *err);
/* For an offer: others may hang on it, too. */
int hf_etcd_lease_of_offers(struct hf_etcd *s, int64_t ttl_ms, int64_t *ret_id,
                            struct hf_error *err);
/* It carries nothing any more. Also of those that we have not made: then it is left to run out. */
void hf_etcd_lease_give(struct hf_etcd *s, int64_t id);
/* etcd does not know it. */
void hf_etcd_lease_forget(struct hf_etcd *s, int64_t id);
/* -HF_NOT_FOUND: it has run out. */
int hf_etcd_lease_renew(struct hf_etcd *s, int64_t id, struct hf_error *err);
/* Whether it lives at least so long yet. -HF_NOT_FOUND: it has run out. */
int hf_etcd_lease_outlives(struct hf_etcd *s, int64_t id, int64_t ttl_ms, bool *ret,
                           struct hf_error *err);

/* ---- txn.c ---------------------------------------------------------------------------------- */

/* A key as a change sees it. */
struct hf_etcd_entry {
    struct hf_etcd_kv kv;
    bool read;    /* it must be as it was: kv.mod, before we wrote */
    bool guessed; /* known from the cache only */
    bool often;   /* worth to be kept in the cache */
    bool there;   /* as it is for us now */
    bool put, gone;
};

/* Of the record that was loaded last, what the record does not carry. */
struct hf_etcd_row {
    char name[HF_NAME_MAX + 1];
    bool held;
    bool offered;
    int64_t fence;
    int64_t lease;        /* of etcd, which carries alive/NAME */
    int64_t lease_ttl_ms; /* the ttl that it was taken for */
    int64_t tickets;
    char last_event[HF_ETCD_EVENT_ID_LEN + 1];
    int64_t given; /* the newest fence, of the record or of this change */
};

struct hf_etcd_known_waiter {
    struct hf_lock_id id;
    int32_t priority;
    int64_t ticket;
    char channel[HF_UUID_LEN + 1];
};

enum { HF_ETCD_TAKEN_MAX = HF_ETCD_OPS_MAX, HF_ETCD_WAITERS_KNOWN = 64 };

struct hf_etcd_txn {
    struct hf_store base; /* what record.c hands to us */
    struct hf_etcd *s;
    bool writing;
    bool alone;   /* it is one request */
    bool guesses; /* may begin with what the cache has */
    bool told;    /* ... which is surely what is there */
    int tries;    /* before this one: then a key that the cache does not know is read */
    struct hf_etcd_entry *of;
    size_t n, size;
    int64_t revision; /* the newest that was seen */
    struct hf_etcd_row row;
    int64_t taken[HF_ETCD_TAKEN_MAX]; /* leases for this change */
    size_t n_taken;
    int64_t freed[HF_ETCD_TAKEN_MAX]; /* that carry nothing once it is done */
    size_t n_freed;
    struct hf_etcd_page head; /* of a queue, read together with its record */
    bool has_head;
    struct hf_etcd_known_waiter waiters[HF_ETCD_WAITERS_KNOWN];
    size_t n_waiters;
    unsigned made; /* of executions and events: so that each is unique */
    char nonce[20];
    bool conflict, too_large;
    bool unknown; /* whether it was committed */
};

static inline struct hf_etcd *hf_etcd_of(struct hf_store *store) { return (struct hf_etcd *)store; }
static inline struct hf_etcd_txn *hf_etcd_txn_of(struct hf_store *store)
{
    return (struct hf_etcd_txn *)store;
}

void hf_etcd_txn_init(struct hf_etcd_txn *t, struct hf_etcd *s, bool writing);
void hf_etcd_txn_clear(struct hf_etcd_txn *t);

/* The key with the prefix. */
void hf_etcd_key(const struct hf_etcd *s, char ret[HF_ETCD_KEY_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* `*ret` lives until the change ends, or something is written to the key; NULL: there is none. */
int hf_etcd_get(struct hf_etcd_txn *t, const char *key, bool may_guess,
                const struct hf_etcd_kv **ret, struct hf_error *err);
/* Have these keys read at once, where they are not known. */
int hf_etcd_fetch(struct hf_etcd_txn *t, const char *const *keys, size_t n, struct hf_error *err);
/* The same, and one range, for hf_etcd_take_head(). */
int hf_etcd_fetch_with(struct hf_etcd_txn *t, const char *const *keys, size_t n,
                       const struct hf_etcd_span *head, struct hf_error *err);
/* What was fetched so, each of which must stay as it is. 1: there it is; 0: there was none. */
int hf_etcd_take_head(struct hf_etcd_txn *t, struct hf_etcd_page *ret, struct hf_error *err);
/* With what this change has written. `compare`: each must stay as it is. */
int hf_etcd_range(struct hf_etcd_txn *t, const struct hf_etcd_span *span, bool compare,
                  struct hf_etcd_page *ret, struct hf_error *err);
int hf_etcd_put(struct hf_etcd_txn *t, const char *key, const void *value, size_t len,
                int64_t lease, struct hf_error *err);
int hf_etcd_put_string(struct hf_etcd_txn *t, const char *key, const char *value,
                       struct hf_error *err);
int hf_etcd_delete(struct hf_etcd_txn *t, const char *key, struct hf_error *err);
/* All that `other` has read must be so for this one, too; -HF_RACED with t->conflict: it is not. */
int hf_etcd_expect_same(struct hf_etcd_txn *t, const struct hf_etcd_txn *other,
                        struct hf_error *err);
/* What is to be put there; NULL: nothing. */
const struct hf_etcd_kv *hf_etcd_written(struct hf_etcd_txn *t, const char *key);
/* How many operations it has so far. */
size_t hf_etcd_ops(const struct hf_etcd_txn *t);

/* -HF_RACED with t->conflict: somebody else was faster; with t->too_large: for one Txn. */
int hf_etcd_commit(struct hf_etcd_txn *t, struct hf_error *err);

/* ---- fields.c ------------------------------------------------------------------------------- */

enum hf_etcd_type {
    HF_FIELD_TEXT,
    HF_FIELD_INT64,
    HF_FIELD_INT32,
    HF_FIELD_BOOL,
    HF_FIELD_ID,
    HF_FIELD_PROCESSES
};
struct hf_etcd_field {
    const char *name;
    enum hf_etcd_type type;
    size_t at, size;
};
#define HF_ETCD_FIELD(kind, type, name, member)                                                    \
    {                                                                                              \
        name, HF_FIELD_##kind, offsetof(type, member), sizeof(((type *)0)->member)                 \
    }
/* An object without what is zero or empty; what is missing is left as it is. */
json_t *hf_etcd_encode(const struct hf_etcd_field *fields, size_t n, const void *from);
void hf_etcd_decode(const struct hf_etcd_field *fields, size_t n, const json_t *object, void *to);
json_t *hf_etcd_parse(const struct hf_etcd_kv *kv);
/* Put the object, which is given away. */
int hf_etcd_put_json(struct hf_etcd_txn *t, const char *key, json_t *object, int64_t lease,
                     struct hf_error *err);

/* ---- records.c ------------------------------------------------------------------------------ */

int hf_etcd_load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                 struct hf_record *ret, struct hf_error *err);
int hf_etcd_save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                 const struct hf_effects *fx, struct hf_error *err);
int64_t hf_etcd_next_fence(struct hf_store *store);
/* From a value of lock/NAME, and whether alive/NAME is there. */
void hf_etcd_take_record(const struct hf_etcd_kv *kv, bool alive, int64_t now_ms,
                         struct hf_record *ret, struct hf_etcd_row *row);
/* Was the change with this nonce the last one of the name? */
int hf_etcd_was_last(struct hf_etcd *s, const char *name, const char *nonce, bool *ret,
                     struct hf_error *err);

/* ---- waiters.c ------------------------------------------------------------------------------ */

int hf_etcd_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  struct hf_processes *ret, struct hf_error *err);
/* All is written: have those who are woken told what they will find. */
int hf_etcd_finish_wakes(struct hf_etcd_txn *t, struct hf_error *err);

/* ---- events.c ------------------------------------------------------------------------------- */

int hf_etcd_add_events(struct hf_etcd_txn *t, const struct hf_effects *fx, struct hf_error *err);
int hf_etcd_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                   void *arg, struct hf_error *err);
/* Remove a little of what is old; nothing that goes wrong matters. */
void hf_etcd_prune_events(struct hf_etcd *s);

/* ---- executions.c --------------------------------------------------------------------------- */

struct hf_etcd_stored {
    struct hf_execution x;
    char order[HF_ETCD_ORDER_LEN + 1];
};
/* 1: found, 0: there is none. */
int hf_etcd_read_execution(struct hf_etcd_txn *t, const char *id, struct hf_etcd_stored *ret,
                           struct hf_error *err);
/* Keep it as it is now. */
int hf_etcd_write_execution(struct hf_etcd_txn *t, const struct hf_execution *x,
                            struct hf_error *err);
int hf_etcd_remove_execution(struct hf_etcd_txn *t, const struct hf_etcd_stored *old,
                             struct hf_error *err);
void hf_etcd_take_execution(const struct hf_etcd_kv *kv, struct hf_etcd_stored *ret);
int hf_etcd_save_executions(struct hf_etcd_txn *t, const struct hf_ask *ask,
                            const struct hf_effects *fx, struct hf_error *err);
int hf_etcd_find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                 struct hf_error *err);
int hf_etcd_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                      struct hf_error *err);
int hf_etcd_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                           hf_data_fn fn, void *arg, struct hf_error *err);
int hf_etcd_executions(struct hf_store *store, const struct hf_execution_query *query,
                       hf_execution_fn fn, void *arg, struct hf_error *err);

/* ---- walk.c --------------------------------------------------------------------------------- */

enum { HF_ETCD_TURN_MAX = 8 + 1 + 16 + 1 + HF_ETCD_ORDER_LEN + 1 };
/* PRIORITY.RUN_AT.ORDER, so that who goes first sorts first. */
void hf_etcd_format_turn(const struct hf_execution *x, const char *order,
                         char ret[HF_ETCD_TURN_MAX]);

/* ---- turns.c -------------------------------------------------------------------------------- */

int hf_etcd_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
                size_t *ret_n, struct hf_error *err);
int hf_etcd_next_due(struct hf_etcd *s, const struct hf_due *wanted, int64_t *ret,
                     struct hf_error *err);

/* ---- parking.c ------------------------------------------------------------------------------ */

int hf_etcd_count(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                  struct hf_ask *ask, struct hf_error *err);
int hf_etcd_unpark(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                   struct hf_error *err);
int hf_etcd_park(struct hf_etcd_txn *t, const char *name, const struct hf_effects *fx,
                 struct hf_error *err);
int hf_etcd_replace(struct hf_etcd_txn *t, const char *name, const struct hf_ask *ask,
                    const struct hf_effects *fx, struct hf_error *err);

/* ---- look.c --------------------------------------------------------------------------------- */

int hf_etcd_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                 struct hf_error *err);
int hf_etcd_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err);

int hf_etcd_runners(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                    struct hf_error *err);

/* ---- retention.c ---------------------------------------------------------------------------- */

int hf_etcd_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                     char ret[HF_KEY_MAX + 1], struct hf_error *err);
int hf_etcd_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                   struct hf_error *err);
int hf_etcd_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                  int64_t *ret_removed, struct hf_error *err);

/* ---- wakes.c -------------------------------------------------------------------------------- */

int hf_etcd_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                  int *ret_fd, struct hf_error *err);
void hf_etcd_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd);
int hf_etcd_share(struct hf_store *store, const struct hf_lock_id *id,
                  const struct hf_lock_id *channel, struct hf_error *err);
void hf_etcd_unshare(struct hf_store *store, const struct hf_lock_id *id);
/* By what name the granting process wakes this handle; empty: nobody watches here. */
void hf_etcd_channel(struct hf_etcd *s, char ret[HF_UUID_LEN + 1]);
/* Has somebody who waits here by this token been told what is in the cache now? Asked once. */
enum hf_etcd_news { HF_ETCD_NOT_WAITING, HF_ETCD_NO_NEWS, HF_ETCD_NEWS };
enum hf_etcd_news hf_etcd_news_for(struct hf_etcd *s, const char *token);
void hf_etcd_wakes_close(struct hf_etcd *s);

/* ---- idle.c --------------------------------------------------------------------------------- */

int hf_etcd_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                 int64_t *ret_next_ms, struct hf_error *err);
void hf_etcd_wake_idle(struct hf_store *store, struct hf_ready *ready, size_t n);

/* ---- tokens.c ------------------------------------------------------------------------------- */

int hf_etcd_token_add(struct hf_store *store, const struct hf_api_token *token,
                      struct hf_error *err);
int hf_etcd_token_remove(struct hf_store *store, const char *id, struct hf_error *err);
int hf_etcd_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err);

/* ---- etcd.c --------------------------------------------------------------------------------- */

extern const struct hf_record_ops hf_etcd_record_ops;

/* Do `change` in a Txn of its own until nobody was faster. */
typedef int hf_etcd_change_fn(struct hf_etcd_txn *t, void *arg, struct hf_error *err);
int hf_etcd_change(struct hf_etcd *s, hf_etcd_change_fn *change, void *arg, struct hf_error *err);

#endif
