/*
 * Descriptors that a forked child must not keep. A kernel lock taken by flock() belongs to the open
 * file, which a child shares: were its parent killed with the lock held, the child would go on
 * holding it without knowing.
 */
#ifndef HF_BASE_FORKED_H
#define HF_BASE_FORKED_H

#include "holdfast.h"

/* Close `fd` in every child forked from now on. */
int hf_forked_add(int fd, struct hf_error *err);

/* Before it is closed here, or given to somebody else. */
void hf_forked_remove(int fd);

#endif
