/*
 * What the stores of one machine (sqlite, file) share: which filesystems can be trusted, what a
 * reboot means, and how a waiter in another process is woken.
 *
 * A wake-up is a byte in a FIFO named after the waiter's lock id, in the store's wake directory: a
 * FIFO can be polled beside the processes that are waited for, crosses every namespace that shares
 * the directory, and leaves nothing behind that a look at its readers would not reveal.
 */
#ifndef HF_STORE_LOCAL_H
#define HF_STORE_LOCAL_H

#include "lease.h"

/* Refuse what is not known to keep kernel locks and renames on this machine: NFS, 9p, FUSE, ... */
int hf_local_check_filesystem(const char *path, struct hf_error *err);

/* mkdir -p, for the owner only. */
int hf_local_make_directories(const char *path, struct hf_error *err);

/* Who has the kernel lock (flock) of this open file, and what to do about it, as the end of a sentence. */
enum { HF_BLAME_MAX = 160 };
void hf_local_blame(int fd, char ret[HF_BLAME_MAX]);

/* The clock that local leases are judged by. */
int64_t hf_local_now_ms(void);

/*
 * Bring a record of an earlier boot into this one's clock: a lease that is bound to no process
 * lives a full ttl from `first_open_ms`, when the store was first opened in this boot; waiters are
 * gone.
 */
void hf_local_rebase(struct hf_record *rec, int64_t first_open_ms);

int hf_local_watch(int wake_dir, const struct hf_lock_id *id, int *ret_fd, struct hf_error *err);
int hf_local_rewatch(int wake_dir, const struct hf_lock_id *from, const struct hf_lock_id *to);
void hf_local_unwatch(int wake_dir, const struct hf_lock_id *id, int fd);
void hf_local_wake(int wake_dir, const struct hf_lock_id *id);

/* Remove the FIFOs of waiters that were killed. */
void hf_local_sweep_wakes(int wake_dir);

#endif
