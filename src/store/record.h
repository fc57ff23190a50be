/*
 * What record stores share: load, settle, step, save, commit, wake. The engine only keeps bytes;
 * the semantics are core/lease.c's.
 */
#ifndef HF_STORE_RECORD_H
#define HF_STORE_RECORD_H

#include "store.h"

/* So many idle workers are to be woken that would claim executions of this workflow. */
struct hf_ready {
    char workflow[HF_NAME_MAX + 1];
    uint32_t n;
};

/* One of this workflow was parked, and is ready now. */
typedef void hf_unparked_fn(void *arg, const char *workflow);

/* How one record store keeps its records. Called with the store's own lock held by the thread. */
struct hf_record_ops {
    /*
     * Start changing these names (distinct, sorted): from here to commit or rollback no other
     * process or thread changes them. `durable`: the commit reaches the disk before it returns.
     */
    int (*begin)(struct hf_store *store, const char *const *names, size_t n, bool durable,
                 struct hf_error *err);
    int (*commit)(struct hf_store *store, struct hf_error *err);
    void (*rollback)(struct hf_store *store);

    /*
     * The record of `name` with the head of its queue, and `self`'s entry where it has one; and the
     * execution of its grant. A name never seen is an empty record. Also called outside begin/commit, for looking only.
     */
    int (*load)(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                struct hf_record *ret, struct hf_error *err);

    /*
     * Optional: until end_look() all loads are of one moment. Many looks together cost less so.
     */
    int (*begin_look)(struct hf_store *store, struct hf_error *err);
    void (*end_look)(struct hf_store *store);

    /*
     * Keep the record (where fx->changed) and all of the effects but the wake-ups. A new execution's
     * input, and the output of fx->output_of, are in ask->req.
     */
    int (*save)(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                const struct hf_effects *fx, struct hf_error *err);

    /* A fence above every one given before, whatever was lost with the power. Negative: a code. */
    int64_t (*next_fence)(struct hf_store *store);

    /*
     * Fill in ask->found, has_found and same_input. -HF_UNSUPPORTED where only locks are kept; what
     * follows is never called then.
     */
    int (*find)(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                struct hf_error *err);

    /* Fill in ask->n_running, n_waiting and waiting_id, as far as wanted; `wall_ms` is now. */
    int (*count)(struct hf_store *store, const struct hf_wanted *wanted, int64_t wall_ms,
                 struct hf_ask *ask, struct hf_error *err);

    /* As fx->unpark has it: `made` is called with the workflow of each; not at all: there is none. */
    int (*unpark)(struct hf_store *store, const char *name, hf_unparked_fn *made, void *arg,
                  struct hf_error *err);

    /* The store's clock, read after begin. */
    int64_t (*now_ms)(struct hf_store *store);
    int64_t (*unsure_ms)(struct hf_store *store); /* how much later it may be; NULL: 0 */

    /* Optional: the time for people, where it is not this machine's. */
    int64_t (*wall_ms)(struct hf_store *store);

    /* Tell the waiter, after the commit. Best effort: it polls too. */
    void (*wake)(struct hf_store *store, const char *name, const struct hf_lock_id *id);

    /* Wake idle workers, after the commit, counting ready[].n down; the same. */
    void (*wake_idle)(struct hf_store *store, struct hf_ready *ready, size_t n);
};

/* hf_store_ops.apply for a record store. The caller holds the store's thread lock. */
int hf_record_apply(struct hf_store *store, const struct hf_record_ops *ops,
                    const struct hf_request *requests, size_t n, struct hf_answer *answers,
                    struct hf_error *err);

/* Does the filter let a lock in this state through? */
bool hf_record_is_listed(enum hf_list_filter filter, enum hf_lock_state state);

/* Add what is counted of one name. */
void hf_record_add_counts(struct hf_totals *sum, const struct hf_counts *c);

/* The world as a local record store sees it: this machine's processes, its clock, its fences. */
struct hf_record_world {
    struct hf_store *store;
    const struct hf_record_ops *ops;
};
struct hf_world hf_record_world_now(struct hf_record_world *rw);

#endif
