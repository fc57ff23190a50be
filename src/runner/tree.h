/*
 * The processes below another one, whatever they did to get away: a subreaper (PR_SET_CHILD_SUBREAPER)
 * stays the ancestor of what daemonised, changed its session or lost its parent.
 */
#ifndef HF_RUNNER_TREE_H
#define HF_RUNNER_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Which descendants are meant. */
struct hf_tree {
    pid_t root;
    const pid_t *spared; /* these children, and all below them, are not meant */
    size_t n_spared;
    int64_t since_ticks; /* nor are children of the root that started before; 0: all */
};

/*
 * Send a signal to every live descendant and count them; signal 0 only counts. A process that forks
 * meanwhile may have a child that was not seen: call it again until nothing is left.
 */
uint32_t hf_tree_signal(const struct hf_tree *tree, int signal_number);

/* In the root itself: SIGKILL once. False: nobody was found, not even one that is to be reaped. */
bool hf_tree_kill_once(const struct hf_tree *tree);

/* In the root itself: SIGKILL, reap and look again until no descendant is left. */
void hf_tree_kill(const struct hf_tree *tree);

#endif
