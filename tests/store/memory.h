/*
 * A record store in memory, for the tests of the tests: the conformance suite must accept it as it
 * is, and must catch it with any one of the mistakes below, each of which a real store could make.
 */
#ifndef HF_TESTS_MEMORY_H
#define HF_TESTS_MEMORY_H

#include "store.h"

#define MUTANT_MAP(X)                                                                              \
    X(REPEATS_FENCES, "the next fence is forgotten when the store is opened again")                \
    X(KEEPS_THE_GRANTED_QUEUED, "who was granted the lock stays in the queue")                     \
    X(NEVER_WAKES, "wake-ups are not sent")                                                        \
    X(LAST_COME_FIRST_SERVED, "the two waiters at the head are swapped")                           \
    X(FORGETS_SPENT_TOKENS, "tokens that ended are not kept")                                      \
    X(FORGETS_WHO_RELEASED, "that an older lease was given back is not known by its fence")        \
    X(FORGETS_LOST_FENCES, "a lease that was lost some time ago counts as given back")             \
    X(EXPIRES_LATE, "a lease lasts a millisecond longer than it should")                           \
    X(SHORTENS_BY_RENEWING, "a renewal for less makes a lease end earlier")                        \
    X(LOSES_THE_TAIL, "waiters behind the window are not counted")                                 \
    X(FORGETS_THE_TAKEOVER, "whose stale lease was taken over is not kept")                        \
    X(FORGETS_PROCESSES, "the processes of a lease are not kept")                                  \
    X(DROPS_EVENTS, "only the first event of a request is kept")                                   \
    X(FORGETS_THE_CONFIRMATION, "a confirmed offer is still an offer when it is loaded again")     \
    X(LOSES_THE_OWN_PLACE, "a waiter that asks again goes to the end of the queue")                \
    X(FORGETS_KEYS, "an execution is not found by its key")                                        \
    X(FORGETS_SUCCESS, "a once-run that has succeeded leaves its key free")                        \
    X(IGNORES_THE_INPUT, "every input is taken for the same")                                      \
    X(LEAVES_THE_LOST_RUNNING, "an execution whose lease was lost stays RUNNING")                  \
    X(FORGETS_SPAWNED, "that a command was started is not kept")                                   \
    X(REPEATS_WHAT_WAS_SPAWNED, "on_lost is taken for retry")                                      \
    X(FORGETS_TO_VERIFY, "what is to be verified is begun again at once")                          \
    X(FORGETS_ATTEMPTS, "attempts are not counted")                                                \
    X(FORGETS_CANCEL, "that somebody wants it to stop is not kept")                                \
    X(KEEPS_THE_FIRST_END, "an end is kept only where the execution was spawned")                  \
    X(LOSES_THE_OUTPUT, "what a command printed is not kept")                                      \
    X(IS_EARLY, "what is to run later is due now")                                                 \
    X(ONE_TWICE, "an execution is due twice")                                                      \
    X(SEES_THE_FUTURE_IN_THE_WAY, "what is to run later is in the way of what is wanted now")      \
    X(COUNTS_NOBODY_RUNNING, "a workflow is never full")                                           \
    X(KEEPS_THE_REPLACED, "those that wait are not replaced")                                      \
    X(FORGETS_PARKING, "what waits for a held lock is looked at again and again")                  \
    X(PARKS_ONE_BY_ONE, "of those that wait for a held lock only the claimed one is parked")       \
    X(NEVER_UNPARKS, "what is parked stays so when its lock is free")                              \
    X(UNPARKS_ONE, "of all that is parked only one is made ready, of whatever workflow")           \
    X(FORGETS_WHAT_WAS_SPENT, "how often a command was started is not kept")                       \
    X(RETRIES_AT_ONCE, "what has failed is due again at once")                                     \
    X(WAKES_WHOEVER_SLEEPS, "an idle worker is woken, whatever it would claim")                    \
    X(LETS_THE_IDLE_SLEEP, "idle workers are not woken")

enum mutant {
    MUTANT_NONE,
#define X(name, text) MUTANT_##name,
    MUTANT_MAP(X)
#undef X
        MUTANT_COUNT
};
const char *mutant_text(enum mutant mutant);

/* Every handle opened between two resets shares one store. */
void memory_reset(enum mutant mutant);
int memory_open(struct hf_store **ret, struct hf_error *err);

#endif
