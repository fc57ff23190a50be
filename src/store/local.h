/*
 * What the stores of one machine (sqlite, file) share: which filesystems can be trusted, what a
 * reboot means, and how a waiter in another process is woken.
 *
 * A wake-up is the waiter's lock id, written into a FIFO of that name in the store's wake directory.
 * Who waits for many has one FIFO with many names (hard links), and reads which it was. A FIFO can
 * be polled beside the processes that are waited for, crosses every namespace that shares the
 * directory, and leaves nothing behind that a look at its readers would not reveal.
 */
#ifndef HF_STORE_LOCAL_H
#define HF_STORE_LOCAL_H

#include "lease.h"

/* Refuse what is not known to keep kernel locks and renames on this machine: NFS, 9p, FUSE, ... */
int hf_local_check_filesystem(const char *path, struct hf_error *err);

/*
 * Refuse a file to which another path may lead, past what lies beside it: one with several names (hard
 * links), or one that is mounted by itself, as a directory must not be, either. Once at open is enough:
 * whoever comes by the other path is refused. An empty `file`: `at` itself, as for statx().
 */
int hf_local_check_names(int at, const char *file, const char *path, struct hf_error *err);

/* mkdir -p, for the owner only. */
int hf_local_make_directories(const char *path, struct hf_error *err);

/* The clock that local leases are judged by. */
int64_t hf_local_now_ms(void);

/* -HF_UNAVAILABLE: the machine does not tell this process what local leases are judged by. */
int hf_local_check_host(struct hf_error *err);

/*
 * Is what was kept of this boot's id, when it was first seen, of this boot? A container may tell its id
 * again after the machine was booted again: then the clocks must have gone on since, too.
 */
bool hf_local_is_this_boot(int64_t first_open_ms, int64_t booted_at_ms);

/* When the machine was booted, by the wall clock, for what that is worth. */
int64_t hf_local_booted_at_ms(void);

/* Has the clock not come so far yet? What was noted then is of an earlier boot. */
bool hf_local_is_to_come(int64_t boot_ms);

/*
 * Is what was told at `told_ms` of this boot's clock of an earlier boot? Only where that is certain:
 * two ids of the machine differ, or the clock has not come so far yet. A container's own id differs
 * from the machine's in the same boot. An empty id: yes.
 */
bool hf_local_is_over(const char *boot, int64_t told_ms);

/*
 * Bring a lease of an earlier boot into this one's clock: it lives a full ttl from `first_open_ms`, when
 * the store was first opened in this boot; and where it is bound to processes, those are gone: its boot
 * is empty.
 */
void hf_local_rebase(struct hf_record *rec, int64_t first_open_ms);

int hf_local_watch(int wake_dir, const struct hf_lock_id *id, int *ret_fd, struct hf_error *err);
int hf_local_rewatch(int wake_dir, const struct hf_lock_id *from, const struct hf_lock_id *to);
void hf_local_unwatch(int wake_dir, const struct hf_lock_id *id, int fd);
/* Let the waiter `id` be woken through the FIFO of `channel`, which says whom it means. */
int hf_local_share(int wake_dir, const struct hf_lock_id *id, const struct hf_lock_id *channel,
                   struct hf_error *err);
void hf_local_unshare(int wake_dir, const struct hf_lock_id *id);

void hf_local_wake(int wake_dir, const struct hf_lock_id *id);

/* Remove the FIFOs of waiters that were killed. */
void hf_local_sweep_wakes(int wake_dir);

#endif
