/*
 * What the files of the step share: lease.c (locks and their queues), requests.c (what is asked of
 * them), begin.c (their executions), turns.c (whose turn it is).
 */
#ifndef HF_CORE_STEP_H
#define HF_CORE_STEP_H

#include "lease.h"

typedef void hf_step_fn(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx);

/* ---- lease.c -------------------------------------------------------------------------------- */

/* Cut to fit; NULL is empty. */
void hf_copy_text(char *to, size_t size, const char *from);

/* Record an event; the caller may go on to fill in what is special about it. */
struct hf_event *hf_step_tell(struct hf_effects *fx, const struct hf_world *world,
                              const struct hf_record *rec, enum hf_event_kind kind,
                              const char *owner, const char *reason);

/* False: there were too many refusals of late to tell of another one. */
bool hf_step_may_tell(struct hf_record *rec, const struct hf_world *world, struct hf_effects *fx);

/* Count somebody who did not get it, and say so in an event; NULL: there were too many of late. */
struct hf_event *hf_step_deny(struct hf_record *rec, const char *owner, const char *reason,
                              const struct hf_world *world, struct hf_effects *fx);

/* Answer with this code, and who holds the lock. */
void hf_step_refuse(struct hf_record *rec, int code, const struct hf_world *world,
                    struct hf_answer *answer);

/* What a new grant is made of, whether the asker gets it at once or a waiter later. */
struct hf_terms {
    struct hf_lock_id id;
    const char *owner, *note;
    int64_t ttl_ms;
    const struct hf_processes *bound;
    bool offer;
    int64_t waited_ms;
};

/* Grant a lock that is free; 0 or the code of a failure. */
int hf_lease_grant(struct hf_record *rec, const struct hf_terms *t, const struct hf_world *world,
                   struct hf_effects *fx);

/* Does the holder itself ask? */
bool hf_lease_is_own(const struct hf_record *rec, const struct hf_ask *ask);

/* How the asker's token ended earlier, or 0. */
enum hf_end hf_lease_ended_before(const struct hf_record *rec, const struct hf_ask *ask);

/*
 * Was the lease that the asker names given back by its holder? Its token is remembered for a while; by
 * its fence that is known for as long as few leases of the name are lost.
 */
bool hf_lease_was_released(const struct hf_record *rec, const struct hf_ask *ask);

/* End the lease: its token is spent. What becomes of its execution, its caller decides before. */
void hf_lease_end(struct hf_record *rec, struct hf_effects *fx, enum hf_end how);

/* The lease is taken away: so ends its execution's attempt. */
void hf_lease_lose(struct hf_record *rec, const struct hf_world *world, struct hf_effects *fx,
                   const char *reason);

/*
 * Offer a free lock to the first waiter that is still there. True: every waiter in the window was
 * gone, and there are more behind it.
 */
bool hf_lease_offer(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                    struct hf_effects *fx);

bool hf_waiter_is_gone(const struct hf_waiter *w, const struct hf_world *world);
void hf_waiter_drop(struct hf_record *rec, const struct hf_lock_id *id, struct hf_effects *fx);

/* ---- begin.c -------------------------------------------------------------------------------- */

/* Have the store keep this execution as it is now. */
void hf_step_keep(struct hf_effects *fx, const struct hf_execution *x, bool is_new);

/* The same of one that was RUNNING until now. */
void hf_step_keep_left(struct hf_effects *fx, const struct hf_execution *x);

/* The execution that the request means, as this very request has left it so far; or NULL. */
const struct hf_execution *hf_step_found(const struct hf_ask *ask, struct hf_effects *fx);

/* Is it the one that the lock is held for? */
bool hf_step_is_of_grant(const struct hf_record *rec, const struct hf_execution *x);

void hf_step_answer_with(struct hf_answer *answer, const struct hf_execution *x, bool duplicate);

/* Answer what needs no lock, as hf_step_key_answers() does. */
void hf_step_answer_key(struct hf_record *rec, const struct hf_ask *ask,
                        const struct hf_world *world, struct hf_answer *answer,
                        struct hf_effects *fx, enum hf_key_state state,
                        const struct hf_execution *x);

/* An execution that is RUNNING without the lease of its lock has lost it. */
void hf_step_mend(const struct hf_record *rec, const struct hf_ask *ask,
                  const struct hf_world *world, struct hf_effects *fx);

/* Acquire: is the request's key the answer, whoever holds the lock? */
bool hf_step_key_answers(struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_answer *answer,
                         struct hf_effects *fx);

/* The lock is granted and confirmed: begin the request's execution, if it has one. */
void hf_step_start_execution(struct hf_record *rec, const struct hf_ask *ask,
                             const struct hf_world *world, struct hf_effects *fx);

/* Extend: the command is about to be started, has printed something. */
void hf_step_beat(struct hf_record *rec, const struct hf_ask *ask, struct hf_effects *fx);

/* Release: the end of its execution. */
void hf_step_finish(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                    struct hf_answer *answer, struct hf_effects *fx, const char *reason);

/* Release without the lease: was the same said before? Then it is answered. */
bool hf_step_finished_before(const struct hf_ask *ask, bool released, struct hf_answer *answer,
                             struct hf_effects *fx);

hf_step_fn hf_step_cancel;

/* ---- turns.c -------------------------------------------------------------------------------- */

hf_step_fn hf_step_enqueue;

/* A claim found its lock held: it is not looked at again before that is free, nor are the others. */
void hf_step_park(struct hf_record *rec, const struct hf_ask *ask, const struct hf_world *world,
                  struct hf_answer *answer, struct hf_effects *fx);

/* Has the workflow of what is to be begun as many RUNNING ones as it may? */
bool hf_step_is_full(const struct hf_ask *ask, struct hf_effects *fx);

/* A claim was granted: the others that were made ready when the lock became free were not first. */
void hf_step_park_others(const struct hf_record *rec, const struct hf_ask *ask,
                         const struct hf_world *world, struct hf_effects *fx);

/* At the end: where the lock is free, the turn of the next ones that are parked has come. */
void hf_step_unpark(const struct hf_record *rec, struct hf_effects *fx);

#endif
