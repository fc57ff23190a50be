/*
 * When who waits asks again without having been told, pure: for the library's waiters (client/wait.c)
 * and the service's (server/waits.c).
 */
#ifndef HF_CORE_WAITING_H
#define HF_CORE_WAITING_H

#include "holdfast.h"

enum { HF_STAGGER_MS = 50 }; /* between the waiters who look when a lease runs out */

/* In how many ms a waiter who was answered so looks whether the holder's lease has run out. */
int64_t hf_waiter_looks_in_ms(const struct hf_answer *answer);

/*
 * Whoever stands just ahead is, or is not, dead already, so that nobody will tell of it: should the
 * waiter ask at once? `asked_twice` is its own, false when it begins to wait.
 */
bool hf_waiter_asks_at_once(bool *asked_twice, const struct hf_answer *answer, bool dead_ahead);

#endif
