/* Kernel locks of open files, and who has one. */
#ifndef HF_BASE_FLOCK_H
#define HF_BASE_FLOCK_H

#include "holdfast.h"

/* Take the lock (LOCK_EX, LOCK_SH) within `patience_ms`; else the error says who has it. */
int hf_flock(int fd, int how, int64_t patience_ms, const char *what, struct hf_error *err);

/* Who has the lock of this open file, and what to do about it, as the end of a sentence. */
enum { HF_BLAME_MAX = 160 };
void hf_flock_blame(int fd, char ret[HF_BLAME_MAX]);

#endif
