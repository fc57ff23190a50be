/*
 * The semantics of an execution, pure: what its record becomes. Together with lease.h this is the
 * specification; the steps of lease.c decide when, and hand what changed to the store as effects.
 *
 *     PENDING ---start---> RUNNING ---finish---> SUCCESS | FAILED | ABORTED
 *        ^  \                 |
 *        |   `---cancel-------|----------------> ABORTED
 *        `--lose, FAILED------'----------------> ABORTED
 *
 * The rules (as tests/unit/test_execution.c names them):
 *  - a key maps to one execution; another input under it is refused
 *  - with `once` only PENDING, RUNNING and SUCCESS occupy the key
 *  - an attempt that is lost before its command was started is PENDING again
 *  - one that is lost after that goes by its on_lost; what is to be cancelled is never repeated
 *  - what FAILED is PENDING again while attempts are left and retry_backoff_ms is given
 *  - max_attempts counts what was started: an attempt that is lost before that costs nothing
 *  - a terminal state is final
 */
#ifndef HF_CORE_EXECUTION_H
#define HF_CORE_EXECUTION_H

#include "holdfast.h"

/* How the execution that was found under a request's key (or id) answers it. */
enum hf_key_state {
    HF_KEY_IS_FREE,      /* there is none, or none that counts */
    HF_KEY_IS_PENDING,   /* it waits to be run: take it up */
    HF_KEY_IS_BUSY,      /* once: it runs, and its lock says so */
    HF_KEY_IS_DONE,      /* once: it has succeeded */
    HF_KEY_IS_DUPLICATE, /* the same input: this is the answer */
    HF_KEY_IS_REUSED     /* another input */
};
enum hf_key_state hf_key_state_of(const struct hf_execution *found, const struct hf_request *req,
                                  bool same_input);

bool hf_execution_is_over(const struct hf_execution *x);

/* A new one, PENDING, as the request has it. */
void hf_execution_make(struct hf_execution *ret, const struct hf_request *req, int64_t wall_ms);

/* The next attempt: RUNNING under this fence. One that is to be verified stays so. */
void hf_execution_start(struct hf_execution *x, int64_t fence, const char *owner, int64_t wall_ms);

/*
 * The command is about to be started, also where it was found out that it was not before. False:
 * nothing changed, as it was said before or somebody wants it to stop.
 */
bool hf_execution_spawn(struct hf_execution *x);

/*
 * The end, as its runner tells it; PENDING again where it is to be retried, or was given up and may be
 * repeated. Nothing happens to one that is over.
 */
void hf_execution_finish(struct hf_execution *x, const struct hf_request *req, const char *reason,
                         int64_t wall_ms);

/* Its lease ended without that: the attempt is over. */
void hf_execution_lose(struct hf_execution *x, const char *reason, int64_t wall_ms);

/* It is due and waits, and another one is wanted in its stead: which one, where it is so. */
bool hf_execution_is_replaceable(const struct hf_execution *x, int64_t wall_ms);
void hf_execution_replace(struct hf_execution *x, const char *by, int64_t wall_ms);

/* Somebody wants it to stop. False: it is over already. */
bool hf_execution_cancel(struct hf_execution *x, int64_t wall_ms);

/* Is this how it, or its last attempt, has ended? */
bool hf_execution_ended_so(const struct hf_execution *x, const struct hf_request *req);

/* How long after its failure it is tried again: doubled with each attempt, the jitter of its own. */
int64_t hf_execution_backoff_ms(const struct hf_execution *x);

/* Of two that are due, does `a` go before `b`? The older one does where this is false both ways. */
bool hf_execution_before(const struct hf_execution *a, const struct hf_execution *b);

/* Waits for somebody to claim it at this time: whether or not its lock is free. */
bool hf_execution_is_due(const struct hf_execution *x, int64_t wall_ms);

#endif
