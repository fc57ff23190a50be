/*
 * A worker runs many commands, each behind a guardian of its own. The guardians' parent is not the
 * worker, whose threads and open store a fork would copy, but the nursery: a small process with one
 * thread that starts them at the worker's word.
 *
 *     worker ── threads, the store
 *      └─ nursery ── subreaper
 *          ├─ guardian ── command
 *          └─ guardian ── command
 *
 * Every lease is bound to the worker and to the nursery, and the nursery stays until the last
 * guardian and all that one may have left behind are gone. So a worker that is killed is dead for
 * others only when nothing of its commands is left; and a guardian that is killed leaves its tree to
 * the nursery, which ends it.
 *
 *     hf_nursery_start()     before any thread is started and the store is opened
 *     hf_nursery_order()     a guardian for this command; the line to it is the caller's
 *     hf_nursery_kill()      it has died without a word, or does not answer: end it and its tree
 *     hf_nursery_hear()      which of those are gone, and all below them
 */
#ifndef HF_RUNNER_NURSERY_H
#define HF_RUNNER_NURSERY_H

#include "holdfast.h"
#include "spawn.h"

struct hf_nursery {
    pid_t pid;
    int link;
};

int hf_nursery_start(struct hf_nursery *ret, struct hf_error *err);

/* No more orders: it goes when the last guardian has. Waits for that. */
void hf_nursery_end(struct hf_nursery *nursery);

/*
 * Start a guardian for this command, which takes over its descriptors (closed here in any case).
 * `id` is the caller's name for it. *ret_link: see link.h; it runs nothing before HF_NOTE_START.
 */
int hf_nursery_order(const struct hf_nursery *nursery, uint64_t id,
                     const struct hf_command *command, int *ret_link, struct hf_error *err);

/*
 * See to it that a guardian which does not answer, or has died, is gone, and its tree with it; then
 * hf_nursery_hear() says so.
 */
void hf_nursery_kill(const struct hf_nursery *nursery, uint64_t id);

/* 1: the guardian `id` is gone, and all below it; 0: nothing new; -1: the nursery has died. */
int hf_nursery_hear(const struct hf_nursery *nursery, uint64_t *ret_id);

#endif
