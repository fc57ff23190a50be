/*
 * The semantics of an execution, pure: what its record becomes. Together with lease.h this is the
 * specification; the steps of lease.c decide when, and hand what changed to the store as effects.
 *
 *     PENDING ---start---> RUNNING ---finish---> SUCCESS | FAILED | ABORTED
 *        ^  \                 |
 *        |   `---cancel-------|----------------> ABORTED
 *        `------lose----------'----------------> ABORTED
 *
 * The rules (as tests/unit/test_execution.c names them):
 *  - a key maps to one execution; another input under it is refused
 *  - with `once` only PENDING, RUNNING and SUCCESS occupy the key
 *  - an attempt that is lost before its command was started is PENDING again
 *  - one that is lost after that goes by its on_lost; what is to be cancelled is never repeated
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

/* The next attempt: RUNNING under this fence. */
void hf_execution_start(struct hf_execution *x, int64_t fence, const char *owner, int64_t wall_ms);

/* The command is about to be started. False: it must not be, somebody wants it to stop. */
bool hf_execution_spawn(struct hf_execution *x);

/* The end, as its runner tells it. Nothing happens to one that is over. */
void hf_execution_finish(struct hf_execution *x, const struct hf_request *req, const char *reason,
                         int64_t wall_ms);

/* Its lease ended without that: the attempt is over. */
void hf_execution_lose(struct hf_execution *x, const char *reason, int64_t wall_ms);

/* Somebody wants it to stop. False: it is over already. */
bool hf_execution_cancel(struct hf_execution *x, int64_t wall_ms);

/* Is this how it has ended? */
bool hf_execution_ended_so(const struct hf_execution *x, const struct hf_request *req);

#endif
