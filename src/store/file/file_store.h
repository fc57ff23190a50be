/*
 * The file store's parts, and what they share. On disk:
 *
 *     DIR/NAME.lock                 the lock, while it is held; JSON that anybody may read (lockfile.c)
 *     DIR/metrics.json              stale locks that were cleaned up (metrics.c)
 *     DIR/.holdfast/state           format, boot, the fence's counter and durable limit (state.c)
 *     DIR/.holdfast/names/NAME.lock the guard: kernel lock, the rest of the record, queue (guard.c)
 *     DIR/.holdfast/pages[01]/...   two files per name that take turns as its lock file (lockfile.c)
 *     DIR/.holdfast/swap/           where a new lock file stands before it replaces the old one
 *     DIR/.holdfast/wake/           FIFOs of those who wait (../local.c)
 *     DIR/.holdfast/events*.jsonl   what happened, in two segments (events.c)
 *
 * A name is changed like this: lock its guard, read the guard, look at the lock file, decide
 * (record.c), change the lock file, write the guard, unlock. The order of the last two is such
 * that a process killed between them leaves something that the next one reads correctly: a lock
 * file newer than the guard is believed; one whose lease the guard knows to have ended is removed.
 *
 * What is kept in `state` and the guards are structs of this machine, fenced by a checksum. To
 * change one: raise HF_FILE_FORMAT, and read the format before it as well.
 */
#ifndef HF_STORE_FILE_STORE_H
#define HF_STORE_FILE_STORE_H

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>

#include "record.h"

enum {
    HF_FILE_FORMAT = 1,
    HF_FILE_NAME_SIZE = 256,    /* an encoded name with ".lock" and a NUL */
    HF_FILE_WAITERS_MAX = 1000, /* per name */
    HF_FILE_PATIENCE_MS = 30000 /* for a kernel lock whose owner may have been stopped */
};

#define HF_FILE_STALE_MS INT64_C(300000) /* a lock file of others is stale after so long */

/* ---- dir.c: the directory, who may use it, and what its files are called -------------------- */

struct hf_file_dir {
    char path[PATH_MAX];
    int top, inner, names, pages[2], swap, wake;
    uid_t owner;
    gid_t group;
    bool shared; /* its group may write: several users share the store */
};

int hf_file_dir_open(const char *path, struct hf_file_dir *ret, struct hf_error *err);
void hf_file_dir_close(struct hf_file_dir *dir);

/* Open one of our own files for reading and writing; `create`: where it is missing. */
int hf_file_open_own(const struct hf_file_dir *dir, int at, const char *file, int flags,
                     int *ret_fd, struct hf_error *err);

/* Refuse what is not a plain file, or belongs to somebody who could trick us with it. */
int hf_file_check_own(const struct hf_file_dir *dir, const char *file, const struct stat *st,
                      struct hf_error *err);

/* Refuse what others may reach by another path: `file` below .holdfast, or one of its directories. */
int hf_file_check_names(const struct hf_file_dir *dir, int fd, const char *file,
                        struct hf_error *err);

/* NAME.lock: `/` and `%` percent-encoded; long ones cut and told apart by a hash. */
void hf_file_encode(const char *name, char ret[HF_FILE_NAME_SIZE]);

/* The name behind a file in DIR; false where the file can't be one of ours (or is a cut one). */
bool hf_file_decode(const char *file, char ret_name[HF_NAME_MAX + 1]);

/* How many names the open file still has. */
uint32_t hf_file_links(int fd);

/* Detects what a crash tore; not meant against malice. */
uint64_t hf_file_checksum(const void *bytes, size_t n, uint64_t seed);

/* ---- state.c: what is true of the whole store ----------------------------------------------- */

struct hf_file_state {
    int fd;
    pthread_mutex_t mutex; /* a kernel lock belongs to the descriptor, which threads share */
    int64_t first_open_ms; /* of this boot */
    int64_t jumped;        /* a name's reserve from here or below is not used any more */
};

int hf_file_state_open(const struct hf_file_dir *dir, struct hf_file_state *ret,
                       struct hf_error *err);
void hf_file_state_close(struct hf_file_state *state);

/*
 * Reserve `n` fences in a row, above `at_least` and above all that were reserved before: the first
 * of them. Negative: a code.
 */
int64_t hf_file_reserve_fences(struct hf_file_state *state, int64_t n, int64_t at_least,
                               struct hf_error *err);

/* Raise all later fences past any that a restored copy may have lost, durably. */
int hf_file_bump_epoch(struct hf_file_state *state, struct hf_error *err);

/* Run `fn` alone among all processes, with the first event number of a new segment. */
int hf_file_with_segment(struct hf_file_state *state, int64_t span,
                         int (*fn)(void *arg, int64_t base), void *arg);

/* ---- guard.c: the rest of a name's record --------------------------------------------------- */

/* Which file it is. Our own can't be mistaken by inode and size: its page keeps the inode. */
struct hf_file_ident {
    uint64_t inode;
    int64_t size;
    int64_t mtime_ns; /* 0: not asked for */
};

/* One waiter in the guard's index, in queue order; the rest of it is in its seat. */
struct hf_file_place {
    struct hf_lock_id id;
    int64_t ticket, seen_ms, until_ms;
    int32_t priority, pid; /* of the process that waits, for the lock file that it may get */
    uint64_t seat;
};

/* The guard as it is on disk, up to the seats. */
struct hf_file_guard_head {
    char magic[8];
    uint32_t format, n_waiters;
    uint64_t checksum, index_checksum;
    char name[HF_NAME_MAX + 1];
    struct hf_file_ident shown; /* the lock file that says `grant` */
    int64_t shown_expires_ms;   /* what it says; it may lag a little behind the grant */
    int64_t holder_pid;         /* the process that asked for it, for people */
    struct hf_grant grant;
    int64_t last_fence;
    int64_t next_fence, end_fence; /* reserved for this name; see hf_file_state.jumped */
    struct hf_ended ended[HF_ENDED_MAX];
    int64_t lost_fences[HF_LOST_MAX];
    uint32_t n_ended, n_denied;
    uint32_t spare; /* swap/NAME.lock is a link of this page, counted from 1; 0: neither */
    uint32_t n_lost_fences;
    int64_t denied_ms;
    struct hf_counts counts;
    int64_t next_ticket;
};

struct hf_file_guard {
    struct hf_file_guard *next; /* in the cache, last used first */
    bool busy;                  /* a thread works on it */
    int fd, page_fds[2];        /* -1: not open */
    uint64_t page_inodes[2];
    char file[HF_FILE_NAME_SIZE];
    struct hf_file_guard_head head;
    struct hf_file_place index[HF_FILE_WAITERS_MAX];
};

struct hf_file_guards {
    pthread_mutex_t mutex;
    pthread_cond_t idle;
    struct hf_file_guard *first;
};

struct hf_file_store;

/*
 * Lock the guard of `name` and read it. `exclusive`: to change it, made where it is missing; else
 * for looking: one that does not exist is empty. Damaged contents are empty too: the fence is safe
 * in `state` and in the lock file.
 */
int hf_file_guard_take(struct hf_file_store *fs, const char *name, bool exclusive,
                       struct hf_file_guard **ret, struct hf_error *err);
int hf_file_guard_write(struct hf_file_guard *guard, struct hf_error *err);
void hf_file_guard_give(struct hf_file_store *fs, struct hf_file_guard *guard);
void hf_file_guards_close(struct hf_file_guards *guards);

/* The queue: find, read a seat, join (gives the ticket) or refresh, leave. */
struct hf_file_place *hf_file_find_waiter(struct hf_file_guard *guard, const struct hf_lock_id *id);
int hf_file_read_waiter(const struct hf_file_guard *guard, const struct hf_file_place *place,
                        struct hf_waiter *ret, struct hf_error *err);
int hf_file_put_waiter(struct hf_file_guard *guard, const struct hf_waiter *waiter,
                       struct hf_error *err);
void hf_file_drop_waiter(struct hf_file_guard *guard, const struct hf_lock_id *id);

/* ---- lockfile.c: NAME.lock ------------------------------------------------------------------ */

enum hf_file_lock_kind { HF_FILE_NO_LOCK, HF_FILE_OUR_LOCK, HF_FILE_FOREIGN_LOCK };

/* The lock file as it was found. */
struct hf_file_view {
    enum hf_file_lock_kind kind;
    bool leftover; /* ours, of a lease that has ended: the one who ended it was killed */
    struct hf_file_ident ident;
    struct hf_grant grant; /* ours, or what a foreign file amounts to */
    char lock_id[80];      /* as a foreign file has them, for metrics.json */
    char process_id[80];
};

int hf_file_look(struct hf_file_store *fs, const struct hf_file_guard *guard,
                 struct hf_file_view *ret, struct hf_error *err);

/*
 * Write the lock file for the guard's grant, in place of what `view` found, and note in the guard
 * what it says. -HF_RACED: a foreign program has changed it since. `doubtful`: foreign programs
 * may be taking the old one over as well; look twice.
 */
int hf_file_show(struct hf_file_store *fs, struct hf_file_guard *guard,
                 const struct hf_file_view *view, bool doubtful, struct hf_error *err);
int hf_file_remove(struct hf_file_store *fs, const struct hf_file_guard *guard,
                   const struct hf_file_view *view, bool doubtful, struct hf_error *err);

/* When the lease ends as the lock file says it: an offer is shown as if it were confirmed. */
int64_t hf_file_shown_expiry(const struct hf_grant *grant);

/* ---- events.c, metrics.c -------------------------------------------------------------------- */

struct hf_file_events {
    pthread_mutex_t mutex;
    int fd; /* the segment we append to; -1: not open */
};

/* Best effort: a lock is not refused because its story can't be written. */
void hf_file_tell(struct hf_file_store *fs, const struct hf_event *events, size_t n);
int hf_file_read_events(struct hf_file_store *fs, const struct hf_event_query *query,
                        hf_event_fn fn, void *arg, struct hf_error *err);

/* A stale lock that was cleaned up. */
struct hf_file_cleanup {
    char lock_id[80], process_id[80], reason[16];
    int64_t created_at_ms, age_ms, at_ms;
};
void hf_file_count_cleanup(struct hf_file_store *fs, const struct hf_file_cleanup *cleanup);

/* ---- turn.c: one request, one name ---------------------------------------------------------- */

int hf_file_apply(struct hf_file_store *fs, const struct hf_request *request,
                  struct hf_answer *answer, struct hf_error *err);
int hf_file_status(struct hf_file_store *fs, const char *name, struct hf_status *ret,
                   struct hf_error *err);

/* ---- the store ------------------------------------------------------------------------------ */

struct hf_file_store {
    struct hf_store base;
    struct hf_file_dir dir;
    struct hf_file_state state;
    struct hf_file_guards guards;
    struct hf_file_events events;
    int64_t stale_ms;
};

#endif
