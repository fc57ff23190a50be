/*
 * The PostgreSQL store: the server decides. Every request is one call of a function in the schema
 * `holdfast` (schema/1-*.sql), which answers as core/lease.c would; this folder carries requests there
 * and answers back.
 *
 *     postgres.c    the store's table of operations; its URL
 *     libpq.c       the library, loaded on demand
 *     connection.c  connections and their deadlines, the pool
 *     exchange.c    statements sent and answered in one round trip; what is tried again
 *     prepare.c     those that are sent again and again are prepared, where that is possible
 *     fault.c       what errors mean: SQLSTATE -> code and advice
 *     call.c        requests -> calls
 *     batch.c       many requests: in what order, and together where they can be
 *     answer.c      rows -> answers
 *     columns.c     many rows as parameters
 *     many.c        the simple ones of a batch, in one statement
 *     line.c        those who wait for one name, in one statement
 *     processes.c   those that only this machine can judge: asked for, looked at, remembered
 *     listen.c      being woken: one LISTEN connection and its thread
 *     near.c        waking those of this machine without the server
 *     look.c        list, events, totals
 *     retention.c   how long executions are kept, and which one is the last of its kind
 *     executions.c  executions in requests and answers; lists of them, their data
 *     turns.c       which executions are due, and claims of them; workers that sleep until one is
 *     tokens.c      the service's tokens
 *     migrate.c     the schema, what it needs, and cautions
 *
 * Nothing belongs to a session but LISTEN, and prepared statements where there is certainly no pooler:
 * no setting and no advisory lock outlives its transaction, so that one in transaction mode may stand
 * between.
 */
#ifndef HF_STORE_POSTGRES_STORE_H
#define HF_STORE_POSTGRES_STORE_H

#include <pthread.h>

#include "buf.h"
#include "libpq.h"
#include "store.h"

enum {
    HF_PG_FORMAT = 1, /* of the schema that this program knows */
    HF_PG_POOL_DEFAULT = 4,
    HF_PG_POOL_MAX = 100,
    HF_PG_TIMEOUT_DEFAULT_MS = 5000,
    HF_PG_CHANNEL_LEN = 25 /* "holdfast_" and 16 hex digits, of which 8 are the machine's */
};

/* ---- connections (connection.c) ------------------------------------------------------------- */

enum { HF_PG_TEXTS_MAX = 24 };

/* What was sent on a connection, and may be prepared there (prepare.c). */
struct hf_pg_texts {
    enum { HF_PG_UNKNOWN_SESSION, HF_PG_OWN, HF_PG_SHARED } session;
    struct hf_pg_text {
        const char *sql; /* of a statement that says `again`; NULL: none yet */
        int uses;
        bool ready; /* it is prepared, or is about to be */
    } of[HF_PG_TEXTS_MAX];
};

struct hf_pg_connection {
    PGconn *pg;
    int fd; /* kept from children that are forked */
    int64_t idle_since_ms;
    struct hf_pg_texts texts;
    struct hf_pg_connection *next;
};

struct hf_pg_pool {
    pthread_mutex_t mutex;
    pthread_cond_t returned; /* on CLOCK_MONOTONIC */
    struct hf_pg_connection *idle;
    int n_open, max;
};

struct hf_pg_listener; /* listen.c */
struct hf_pg_memory;   /* processes.c */

struct hf_postgres {
    struct hf_store base;
    char url[HF_URL_MAX];        /* for libpq: without what is ours */
    char listen_url[HF_URL_MAX]; /* where to LISTEN; empty: at `url` */
    char shown[HF_URL_MAX];
    int64_t timeout_ms;
    _Atomic bool was_reached; /* there was a connection once */
    struct hf_pg_pool pool;
    struct hf_pg_memory *memory;
    struct hf_pg_listener *listener;
    char here[96]; /* boot and pid namespace: whose processes we can judge */
    char caution[HF_MESSAGE_MAX];
};

static inline struct hf_postgres *hf_postgres_of(struct hf_store *store)
{
    return (struct hf_postgres *)store;
}

/* CLOCK_MONOTONIC: deadlines here are about waiting, never about leases. */
int64_t hf_pg_now_ms(void);
void hf_pg_pause(int64_t ms);

/* Between half of it and all of it. */
int64_t hf_pg_jitter_ms(int64_t ms);

/* Connect before the deadline. */
int hf_pg_connect(struct hf_postgres *s, const char *url, int64_t deadline_ms,
                  struct hf_pg_connection **ret, struct hf_error *err);
void hf_pg_disconnect(struct hf_pg_connection *c);

/* Until the socket is ready for `events`; 0, or -1 when the deadline has passed. */
int hf_pg_await(const PGconn *pg, short events, int64_t deadline_ms);

int hf_pg_pool_open(struct hf_pg_pool *pool, int max, struct hf_error *err);
void hf_pg_pool_close(struct hf_pg_pool *pool);

/* A connection of the pool: an idle one that is still alive, else a new one, else wait for one. */
int hf_pg_take(struct hf_postgres *s, int64_t deadline_ms, struct hf_pg_connection **ret,
               struct hf_error *err);
void hf_pg_give_back(struct hf_postgres *s, struct hf_pg_connection *c);

/* It failed: close it, and with it those that idle, which have probably met the same end. */
void hf_pg_discard(struct hf_postgres *s, struct hf_pg_connection *c);

/* ---- faults (fault.c) ----------------------------------------------------------------------- */

struct hf_pg_fault {
    char sqlstate[6]; /* empty: the connection failed */
    bool ends_session;
    char message[HF_MESSAGE_MAX / 2];
};

/* The first line of libpq's or the server's text. */
void hf_pg_fault_text(struct hf_pg_fault *ret, const char *text);
void hf_pg_fault_of_result(struct hf_pg_fault *ret, const PGresult *result);

/* What a connection that could not be made says; its SQLSTATE is found in the text. */
void hf_pg_fault_of_connecting(struct hf_pg_fault *ret, const PGconn *pg);

/* Fill `err` with code, what happened, and what to do next. */
int hf_pg_fail(const struct hf_postgres *s, const struct hf_pg_fault *fault, struct hf_error *err);

bool hf_pg_is(const struct hf_pg_fault *fault, const char *sqlstate);

/* The schema, or a part of it, is not there. */
bool hf_pg_is_schema_missing(const struct hf_pg_fault *fault);

/* ---- exchanges (exchange.c) ----------------------------------------------------------------- */

enum { HF_PG_PARAMS_MAX = 25, HF_PG_NUMBERS_MAX = 10 };

/*
 * A statement with its parameters; values are text, but those with a length are binary. It points
 * into itself: fill it where it stays.
 */
struct hf_pg_statement {
    const char *sql;
    bool again; /* a constant text that is often sent: may be prepared */
    int n;
    Oid types[HF_PG_PARAMS_MAX];
    const char *values[HF_PG_PARAMS_MAX];
    int lengths[HF_PG_PARAMS_MAX];
    int formats[HF_PG_PARAMS_MAX];
    char numbers[HF_PG_NUMBERS_MAX][24];
    int n_numbers;
};

void hf_pg_bind_text(struct hf_pg_statement *st, const char *text); /* NULL: '' */
void hf_pg_bind_null(struct hf_pg_statement *st, Oid type);
void hf_pg_bind_as(struct hf_pg_statement *st, Oid type, const char *text);
void hf_pg_bind_id(struct hf_pg_statement *st, const struct hf_lock_id *id);
void hf_pg_bind_int(struct hf_pg_statement *st, Oid type, int64_t value);
void hf_pg_bind_bool(struct hf_pg_statement *st, bool value);
void hf_pg_bind_bytes(struct hf_pg_statement *st, const void *bytes, size_t n); /* none: NULL */

enum { HF_PG_BOOL = 16, HF_PG_BYTEA = 17, HF_PG_INT8 = 20, HF_PG_INT4 = 23, HF_PG_TEXT = 25 };
enum { HF_PG_BOOL_ARRAY = 1000, HF_PG_BYTEA_ARRAY = 1001, HF_PG_INT4_ARRAY = 1007 };
enum { HF_PG_TEXT_ARRAY = 1009, HF_PG_INT8_ARRAY = 1016 };
enum { HF_PG_UUID = 2950, HF_PG_UUID_ARRAY = 2951 };

/*
 * Send `n` statements in one round trip and one transaction; ret[i] is the i-th one's result, to be
 * cleared by the caller. Results are binary. `changes`: they are more than reads; then what was sent
 * and not answered is -HF_UNKNOWN. `fault` (may be NULL) tells more of a failure.
 */
int hf_pg_exchange(struct hf_postgres *s, const struct hf_pg_statement *statements, size_t n,
                   bool changes, PGresult **ret, struct hf_pg_fault *fault, struct hf_error *err);

/* The same, and in the same round trip another transaction, whose fate is nobody's concern. */
int hf_pg_exchange_then(struct hf_postgres *s, const struct hf_pg_statement *statements, size_t n,
                        const struct hf_pg_statement *after, bool changes, PGresult **ret,
                        struct hf_pg_fault *fault, struct hf_error *err);

/* The same on a connection of one's own; nothing is tried again. Binary results. */
enum hf_pg_fate {
    HF_PG_DONE,
    HF_PG_REFUSED, /* the server said no: nothing has happened */
    HF_PG_LOST,    /* sent, and the connection failed or nothing came in time */
    HF_PG_UNSENT
};
enum hf_pg_fate hf_pg_send(PGconn *pg, const struct hf_pg_statement *statements, size_t n,
                           int64_t deadline_ms, PGresult **ret, struct hf_pg_fault *fault);

/* Several statements as one text, without parameters or results. Not in a pipeline. */
enum hf_pg_fate hf_pg_send_script(PGconn *pg, const char *sql, int64_t deadline_ms,
                                  struct hf_pg_fault *fault);

void hf_pg_clear(PGresult **results, size_t n);

/* ---- what is prepared (prepare.c) ----------------------------------------------------------- */

enum { HF_PG_PIPELINE_MAX = 128 };

/* Statements on their way: first what is prepared, then all of them, then maybe a question. */
struct hf_pg_sending {
    const struct hf_pg_statement *statements;
    size_t n;                  /* at most HF_PG_PIPELINE_MAX */
    struct hf_pg_texts *texts; /* of the connection; NULL: nothing is prepared */
    struct hf_pg_text *named[HF_PG_PIPELINE_MAX], *preparing[HF_PG_TEXTS_MAX];
    size_t n_preparing;
    bool asks;
    PGresult *prepared[HF_PG_TEXTS_MAX], *asked;
};

/* Send them all; the caller's Sync follows. */
bool hf_pg_send_all(PGconn *pg, struct hf_pg_sending *p);

/* Where the i-th result belongs: ret[] has a place for each statement. NULL: nowhere. */
PGresult **hf_pg_slot(struct hf_pg_sending *p, size_t i, PGresult **ret);

/* Learn from what came beside the statements' own results. Always called. */
void hf_pg_end_sending(PGconn *pg, struct hf_pg_sending *p);

/* Was it refused because it was prepared? Then nothing has happened: send it again, as it is. */
bool hf_pg_was_misled(struct hf_pg_texts *texts, const struct hf_pg_fault *fault);

/* ---- many rows as parameters (columns.c) ---------------------------------------------------- */

enum { HF_PG_COLUMNS_MAX = 13 };

/*
 * Arrays to be unnested. The columns are letters: t text, b bytea, l bigint, i integer, o boolean, u
 * uuid. Begin, put the values row by row, bind, and clear it after the exchange.
 */
struct hf_pg_columns {
    const char *letters;
    struct hf_buf of[HF_PG_COLUMNS_MAX];
    size_t at; /* which column is next */
};
void hf_pg_columns_begin(struct hf_pg_columns *c, const char *letters, size_t n_rows);
void hf_pg_columns_clear(struct hf_pg_columns *c);
void hf_pg_put_null(struct hf_pg_columns *c);
void hf_pg_put_bytes(struct hf_pg_columns *c, const void *bytes, size_t n);
void hf_pg_put_text(struct hf_pg_columns *c, const char *text); /* NULL: '' */
void hf_pg_put_int(struct hf_pg_columns *c, int64_t value);     /* l, i, o */
void hf_pg_put_uuid(struct hf_pg_columns *c, const char *text); /* NULL: NULL */
int hf_pg_bind_columns(struct hf_pg_statement *st, const struct hf_pg_columns *c,
                       struct hf_error *err);

/* ---- results (exchange.c) ------------------------------------------------------------------- */

struct hf_pg_cursor {
    const PGresult *result;
    int row, column;
    const char *field, *end; /* within a column that is itself a row; else NULL */
};

/* Over the fields of a row's first column, a composite: far cheaper than so many columns. */
struct hf_pg_cursor hf_pg_open_composite(const PGresult *result, int row);
struct hf_pg_cursor hf_pg_take_composite(struct hf_pg_cursor *at); /* NULL has no fields */

bool hf_pg_take_bool(struct hf_pg_cursor *at);
int64_t hf_pg_take_int(struct hf_pg_cursor *at); /* of any width; NULL is 0 */
void hf_pg_take_text(struct hf_pg_cursor *at, char *ret, size_t size);
bool hf_pg_take_id(struct hf_pg_cursor *at, struct hf_lock_id *ret);
int64_t hf_pg_take_time_ms(struct hf_pg_cursor *at); /* timestamptz; NULL is 0 */
void hf_pg_take_uuid(struct hf_pg_cursor *at, char ret[HF_UUID_LEN + 1]);
const char *hf_pg_take_bytes(struct hf_pg_cursor *at, size_t *ret_n); /* of the result */

/* ---- processes that only we can judge (processes.c) ----------------------------------------- */

/* "BOOT PIDNS PID:START PID:START", empty where there is none. */

/* What a holder or waiter is bound to, of this machine. */
struct hf_pg_candidate {
    char key[HF_PROCESSES_TEXT_MAX]; /* as the server is told of them */
    struct hf_processes bound;
    bool dead;
};

/* Those of one name; start from zero. */
struct hf_pg_seen {
    struct hf_pg_candidate *of;
    size_t n, size;
};
void hf_pg_seen_clear(struct hf_pg_seen *seen);

struct hf_pg_memory *hf_pg_memory_new(void);
void hf_pg_memory_free(struct hf_pg_memory *memory);

/* Whom we last looked at for this name, looked at again. */
void hf_pg_recall(struct hf_pg_memory *memory, const char *name, struct hf_pg_seen *ret);
void hf_pg_remember(struct hf_pg_memory *memory, const char *name, const struct hf_pg_seen *seen);

/* Look at those that the server asks for, a line each. False: it asked for nobody new. */
bool hf_pg_look(struct hf_pg_seen *seen, const char *lines);

/* Those that are dead, or the others, as an array literal. */
void hf_pg_list_seen(const struct hf_pg_seen *seen, bool dead, struct hf_buf *ret);

/* How many requests are looked at together. */
enum { HF_PG_MANY_MAX = 512 };

/* ---- what the vtable points at -------------------------------------------------------------- */

int hf_pg_apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                struct hf_answer *answers, struct hf_error *err);
int hf_pg_runners(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                  struct hf_error *err);
int hf_pg_ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                struct hf_processes *ret, struct hf_error *err);

/* A lock as people see it, from what the server keeps of it. */
struct hf_pg_lock {
    bool held;
    bool ended; /* its execution is over, and so is the lease */
    int64_t now_ms, fence, locked_at_ms, locked_until_ms;
    uint32_t waiters;
    struct hf_processes bound;
};
void hf_pg_status(const struct hf_pg_lock *lock, struct hf_status *ret);

int hf_pg_list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
               struct hf_error *err);
int hf_pg_events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                 void *arg, struct hf_error *err);
int hf_pg_totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err);

/* ---- answers (answer.c) --------------------------------------------------------------------- */

/* "REASON LOCK_ID FENCE ACQUIRED_AT_MS HELD_FOR_MS TTL_MS OWNER"; `ret` is untouched without one. */
enum {
    HF_PG_TOOK_MAX = HF_OWNER_MAX + 200,
    HF_PG_READY_MAX = 4 * (HF_NAME_MAX + 1), /* of one request */
    HF_PG_ALL_READY_MAX = 256 << 10
};
void hf_pg_parse_takeover(const char *text, struct hf_takeover *ret);

/* holdfast.answer, in the order of its columns. */
struct hf_pg_row {
    int code;
    bool queued;
    uint32_t ahead;
    enum hf_stale_reason freed;
    int64_t ttl_ms;
    struct hf_pg_lock lock;
    struct hf_lock_id id;
    char owner[HF_OWNER_MAX + 1], note[HF_NOTE_MAX + 1], execution_id[HF_UUID_LEN + 1];
    char took[HF_PG_TOOK_MAX];
    bool has_holder;
    char look[4096];
    char ready[HF_PG_READY_MAX];   /* workflows, a line each, of which executions were made so */
    struct hf_execution execution; /* its id is empty: there is none */
};
void hf_pg_take_row(struct hf_pg_cursor at, struct hf_pg_row *ret);
void hf_pg_fill_answer(const struct hf_pg_row *row, const struct hf_request *req,
                       struct hf_answer *answer);

/* ---- executions (executions.c) -------------------------------------------------------------- */

/* What begin_execution and enqueue_execution are told of it, and of its output so far. */
void hf_pg_bind_wish(struct hf_pg_statement *st, const struct hf_request *req);
void hf_pg_bind_output(struct hf_pg_statement *st, const struct hf_request *req);

/* From a row of holdfast.execution; its id is empty where that is NULL. */
void hf_pg_take_execution(struct hf_pg_cursor at, struct hf_execution *ret);

int hf_pg_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                    struct hf_error *err);
int hf_pg_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                         hf_data_fn fn, void *arg, struct hf_error *err);
int hf_pg_executions(struct hf_store *store, const struct hf_execution_query *query,
                     hf_execution_fn fn, void *arg, struct hf_error *err);

/* ---- whose turn it is (turns.c) ------------------------------------------------------------- */

int hf_pg_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
              size_t *ret_n, struct hf_error *err);
int hf_pg_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
               int64_t *ret_next_ms, struct hf_error *err);

/*
 * After the commit: executions of these workflows, a line each, have become ready. Best effort: workers
 * poll too. It is cleared.
 */
void hf_pg_wake_idle(struct hf_postgres *s, struct hf_buf *ready);

int hf_pg_claim(struct hf_store *store, const struct hf_due *due, const struct hf_request *like,
                const char *const *tokens, bool again, struct hf_answer *ret, size_t *ret_n,
                struct hf_error *err);

/* ---- retention (retention.c) ------------------------------------------------------------------ */

int hf_pg_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                   char ret[HF_KEY_MAX + 1], struct hf_error *err);
int hf_pg_retain(struct hf_store *store, const struct hf_retention *rules, size_t n,
                 struct hf_error *err);
int hf_pg_prune(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                int64_t *ret_removed, struct hf_error *err);

/* ---- the schema (migrate.c) ----------------------------------------------------------------- */

int hf_pg_init(struct hf_store *store, bool bump_epoch, struct hf_error *err);
const char *hf_pg_schema(void);

/* Is the schema there, and one that we know? Make or migrate it where we may; note cautions. */
int hf_pg_prepare(struct hf_postgres *s, struct hf_error *err);

/* ---- waking (listen.c) ---------------------------------------------------------------------- */

struct hf_pg_listener *hf_pg_listener_new(struct hf_postgres *s);
void hf_pg_listener_free(struct hf_pg_listener *l);

/*
 * The channel to name in the waiter's requests; empty while nobody listens there for it. True: it is
 * known to be in the queue, so that what it asks for next has probably been granted.
 */
bool hf_pg_channel(struct hf_pg_listener *l, const struct hf_lock_id *id,
                   char ret[HF_PG_CHANNEL_LEN + 1]);

int hf_pg_listener_pid(struct hf_pg_listener *l); /* of the server's process that listens */
/* It is in the queue, behind these processes; where it is watched that is kept, and told once. */
void hf_pg_note_queued(struct hf_pg_listener *l, const struct hf_lock_id *id, const char *ahead);
bool hf_pg_take_ahead(struct hf_pg_listener *l, const struct hf_lock_id *id,
                      char ret[HF_PROCESSES_TEXT_MAX]);

int hf_pg_watch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int *ret_fd,
                struct hf_error *err);
void hf_pg_unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd);
int hf_pg_rewatch(struct hf_store *store, const struct hf_lock_id *from,
                  const struct hf_lock_id *to);
int hf_pg_share(struct hf_store *store, const struct hf_lock_id *id,
                const struct hf_lock_id *channel, struct hf_error *err);
void hf_pg_unshare(struct hf_store *store, const struct hf_lock_id *id);

/* ---- waking those of this machine (near.c) -------------------------------------------------- */

/*
 * A new channel of a listener who is `here`, which release() can tell by its name, and where it is told:
 * a descriptor for poll. -1: it can't be told so, and the channel is as any other.
 */
int hf_pg_near_open(const char *here, char ret_channel[HF_PG_CHANNEL_LEN + 1]);

/* The next one to wake; false: there is none. */
bool hf_pg_near_receive(int fd, struct hf_lock_id *ret);

/* Tell the listener of that channel, one way or the other. */
void hf_pg_wake_near(struct hf_postgres *s, const char *channel, const struct hf_lock_id *id);

/* ---- the service's tokens (tokens.c) -------------------------------------------------------- */

int hf_pg_token_add(struct hf_store *store, const struct hf_api_token *token, struct hf_error *err);
int hf_pg_token_remove(struct hf_store *store, const char *id, struct hf_error *err);
int hf_pg_token_list(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err);

#endif
