/*
 * A store keeps the records of names and answers requests about them. To add one: a file or folder
 * here, a `const struct hf_store_ops`, a line in the table of store.c, its URL in tests/store.
 *
 * Every operation may be called from many threads at once. Requests come validated. Tokens arrive
 * in requests; what is kept, shown or logged is only hf_lock_id_of() them.
 */
#ifndef HF_STORE_STORE_H
#define HF_STORE_STORE_H

#include "lease.h"
#include "url.h"

struct hf_store {
    const struct hf_store_ops *ops;
    char shown_url[HF_URL_MAX];
    _Atomic bool past_help; /* moved, removed or damaged: this handle need not ask again */
};

/* Which names are to be listed. */
struct hf_listing {
    enum hf_list_filter filter;
    const char *prefix; /* they begin so; may be empty */
    const char *after;  /* and come behind this one; may be empty */
};

/* Which executions are to be claimed. */
struct hf_due {
    const char *const *workflows;
    size_t n_workflows;
    int64_t wall_ms;
    bool verifies; /* also those that are to be verified */
    size_t skip, limit;
};

/* Keys that a schedule gives: "cron:" and a digit. The last one of a workflow tells how far it got. */
#define HF_PRUNE_KEPT_FROM "cron:0"
#define HF_PRUNE_KEPT_TO "cron::"

/* How far pruning has got: through the workflows, in the order of their bytes. */
struct hf_prune_place {
    char workflow[HF_NAME_MAX + 1];
    enum { HF_PRUNE_BEHIND, HF_PRUNE_AT, HF_PRUNE_WITHIN } where; /* all zero: at the beginning */
    int64_t from, upto, upto_seq; /* within: what is to go, in the engine's own terms */
};

struct hf_store_ops {
    const char *scheme;
    const char *alias; /* another name of the scheme, or NULL */
    const char *form;  /* "sqlite:PATH": how its URL looks, for error texts */
    bool is_local;     /* kept on this machine */

    /* Open, creating what is missing. It begins with a struct hf_store, filled by the caller. */
    int (*open)(const struct hf_url *url, struct hf_store **ret, struct hf_error *err);
    void (*close)(struct hf_store *store);

    /*
     * Answer `n` requests in order, in one transaction where the engine can. 0: every answer is
     * written. -HF_UNKNOWN: some may or may not have happened; the same tokens may be sent again.
     */
    int (*apply)(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err);

    /* Every name that is asked for, in name order. */
    int (*list)(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                struct hf_error *err);

    int (*events)(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                  void *arg, struct hf_error *err);

    /* Sums over all names; the locks_* and waiters of the result are counted by the caller. */
    int (*totals)(struct hf_store *store, struct hf_totals *ret, struct hf_error *err);

    /*
     * Executions; all NULL where only locks are kept. By id: -HF_NOT_FOUND. `due`: up to `limit` that
     * are PENDING, not parked, due at `wall_ms` and not to be verified (unless asked for), of these
     * workflows (none: of any), in the order in which they are to be claimed: priority, then run_at,
     * then age; without the first `skip`. It costs what it answers, whatever else is kept.
     */
    int (*execution)(struct hf_store *store, const char *id, struct hf_execution *ret,
                     struct hf_error *err);
    int (*execution_data)(struct hf_store *store, const char *id, enum hf_execution_data which,
                          hf_data_fn fn, void *arg, struct hf_error *err);
    int (*executions)(struct hf_store *store, const struct hf_execution_query *query,
                      hf_execution_fn fn, void *arg, struct hf_error *err);
    int (*due)(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
               size_t *ret_n, struct hf_error *err);

    /* As hf_last_key(). It costs one look into an index, whatever else is kept. NULL: not known. */
    int (*last_key)(struct hf_store *store, const char *workflow, const char *from, const char *to,
                    char ret[HF_KEY_MAX + 1], struct hf_error *err);

    /*
     * Take up to due->limit of those, in one transaction, as acquires with `claim` and otherwise like
     * `like` would; never two of one lock. `tokens`: as many, of which each answer's lease has one.
     * Fewer answers than asked for: there are no more; some may be refusals. `again`: the same call
     * had an unknown outcome. NULL: by due() and apply().
     */
    int (*claim)(struct hf_store *store, const struct hf_due *due, const struct hf_request *like,
                 const char *const *tokens, bool again, struct hf_answer *ret, size_t *ret_n,
                 struct hf_error *err);

    /*
     * As hf_prune() has it, both NULL where it is not done: note rules; and remove at most `max` from
     * `place` on, which is moved behind what has been seen to; to the beginning after the last. `prune`
     * is a short transaction, and looks at a bounded number of workflows by their index.
     */
    int (*retain)(struct hf_store *store, const struct hf_retention *rules, size_t n,
                  struct hf_error *err);
    int (*prune)(struct hf_store *store, struct hf_prune_place *place, int64_t max,
                 int64_t *ret_removed, struct hf_error *err);

    /*
     * The worker `id`, which watches (watch() with no name), sleeps: it is woken once, by the first
     * execution of the workflows it wants (none: of any) that becomes ready after this, or that there
     * is room for (hf_kept_wakes()), if no other sleeper is. *ret_next_ms: when the next of them that
     * is not parked falls due after wanted->wall_ms; 0: there is none. With NULL for `wanted` it is awake
     * again, and not to be woken. NULL: it polls.
     */
    int (*idle)(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                int64_t *ret_next_ms, struct hf_error *err);

    /*
     * The processes that executions which run are bound to, each set once, at most `max`; of this boot,
     * as far as that is known. Of very many only some are looked at. NULL: never known.
     */
    int (*runners)(struct hf_store *store, struct hf_processes *ret, size_t max, size_t *ret_n,
                   struct hf_error *err);

    int (*init)(struct hf_store *store, bool bump_epoch, struct hf_error *err);
    const char *(*schema)(void); /* NULL: nothing to print */

    /* What may break the promise as the engine is set up; answers NULL where nothing does. */
    const char *(*caution)(struct hf_store *store);

    /*
     * A descriptor that becomes readable when the waiter `id` may have been granted NAME. Opened
     * before the waiter asks, so that no wake-up is lost. -1 where the engine can't tell: then the
     * waiter polls.
     */
    int (*watch)(struct hf_store *store, const char *name, const struct hf_lock_id *id, int *ret_fd,
                 struct hf_error *err);
    void (*unwatch)(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd);

    /* Let a descriptor that watched for `from` watch for `to` from now on. NULL: never possible. */
    int (*rewatch)(struct hf_store *store, const struct hf_lock_id *from,
                   const struct hf_lock_id *to);

    /*
     * The waiter `id` is woken through the descriptor that watch() gave for `channel`, where its own
     * id, sizeof(struct hf_lock_id) bytes, can be read then. NULL: the engine can't.
     */
    int (*share)(struct hf_store *store, const struct hf_lock_id *id,
                 const struct hf_lock_id *channel, struct hf_error *err);
    void (*unshare)(struct hf_store *store, const struct hf_lock_id *id);

    /*
     * Whom the waiter `id` stands behind: the processes of the one just ahead of it in the queue,
     * or of the holder; none where they are not known. NULL: never known.
     */
    int (*ahead)(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                 struct hf_processes *ret, struct hf_error *err);

    /* The service's tokens. NULL: the store keeps locks only. -HF_NOT_FOUND: no such id. */
    int (*token_add)(struct hf_store *store, const struct hf_api_token *token,
                     struct hf_error *err);
    int (*token_remove)(struct hf_store *store, const char *id, struct hf_error *err);
    int (*token_list)(struct hf_store *store, hf_api_token_fn fn, void *arg, struct hf_error *err);
};

/*
 * Each workflow once, in the order of their bytes, however often it was named. The array is the
 * caller's to free; NULL: no memory.
 */
const char **hf_due_workflows(const struct hf_due *due, size_t *ret_n);

int hf_store_open(const char *url, struct hf_store **ret, struct hf_error *err);

/* The schema of this URL's store, without opening it. */
int hf_store_schema(const char *url, const char **ret, struct hf_error *err);

extern const struct hf_store_ops hf_sqlite_store;
extern const struct hf_store_ops hf_file_store;
extern const struct hf_store_ops hf_postgres_store;
extern const struct hf_store_ops hf_http_store;
extern const struct hf_store_ops hf_dynamodb_store;
extern const struct hf_store_ops hf_etcd_store;

#endif
