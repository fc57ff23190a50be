/* What the files of this room share: the handle, and requests checked before they are sent. */
#ifndef HF_CLIENT_CLIENT_H
#define HF_CLIENT_CLIENT_H

#include <sys/types.h>

#include "store.h"

struct hf_keeping; /* keeper.c: the thread that renews */

struct hf {
    struct hf_store *store;
    pid_t pid; /* of the process that opened it: a forked child must not use it */
    struct hf_keeping *keeping;
    _Atomic bool pruning; /* retention.c: a thread is at it, and only that one uses the next */
    struct hf_prune_place prune_place;
    _Atomic(struct hf_wait *) parked; /* wait.c: its descriptors serve the next hf_acquire */
    int64_t poll_ms;                  /* wait.c: how often a waiter asks that nobody wakes */
};

enum { HF_POLL_MS = 5000 }; /* the backup of a lost wake-up; jittered down to half */

/* -HF_FORKED in a child of the process that opened the handle. */
int hf_check_handle(const struct hf *hf, struct hf_error *err);

/*
 * The caller's struct, which begins with its size, as far as the caller knew it when it was
 * compiled; `ret` has the defaults of the rest, and of everything where `opts` is NULL.
 */
int hf_take_options(const void *opts, void *ret, size_t size, const char *init,
                    struct hf_error *err);

/*
 * One request, whose answer's refusal becomes the return value and `err`. An unknown outcome is
 * resolved by asking again with the same token. `ret_sent_ms` (may be NULL): the boot clock when
 * the request that was answered had been sent.
 */
int hf_ask_store(struct hf *hf, const struct hf_request *request, struct hf_answer *answer,
                 int64_t *ret_sent_ms, struct hf_error *err);

/*
 * When a holder must have stopped: a ttl after the request was sent, less a margin for clocks that
 * tick in milliseconds and at slightly different rates.
 */
int64_t hf_deadline_ms(int64_t sent_ms, int64_t ttl_ms);

/* One extend, and the lease as it is then, with its deadline. */
int hf_renew(struct hf *hf, const struct hf_request *extend, struct hf_lease *ret,
             struct hf_error *err);

/*
 * hf_acquire(); where `begun` is not NULL its fields that tell of an execution are in the request,
 * and the execution that was begun or found is in `ret_execution`.
 */
int hf_acquire_for(struct hf *hf, const char *name, const struct hf_acquire_options *opts,
                   const struct hf_request *begun, struct hf_lease *ret,
                   struct hf_execution *ret_execution, struct hf_error *err);

/* Have the request carry what an execution has printed. */
void hf_request_output(struct hf_request *req, const struct hf_result *result);

/* The worker `id`, which watches, sleeps: hf_idle_begin(). */
int hf_idle_as(struct hf *hf, const struct hf_lock_id *id, const struct hf_claim_options *opts,
               int64_t *ret_next_ms, struct hf_error *err);

/* Close what hf_acquire has kept for its next wait. */
void hf_parked_close(struct hf *hf);

/* Stop the keeper thread, if there is one. */
void hf_keeping_close(struct hf *hf);

#endif
