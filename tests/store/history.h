/*
 * A random history: who asks for what. It depends on nothing but the seed and the model, so that a
 * seed replays exactly.
 */
#ifndef HF_TESTS_HISTORY_H
#define HF_TESTS_HISTORY_H

#include <sys/types.h>

#include "compare.h"
#include "model.h"
#include "store.h"

enum {
    NAMES = 3,
    HANDLES = 3,
    ACTORS = 32, /* per name; the oldest makes room */
    PROCESSES = 4,
    BATCH_MAX = 8,
    EDGE_MS = 400,   /* in real time nothing is asked so near to an edge */
    PAUSE_MS = 3000, /* ... but the machine may stand still so long */
    SKIPPED = 77,    /* the exit code of a test that can't tell */
    WAKE_MS = 10000  /* a wake-up that takes longer never comes */
};

/* Somebody with a token, alive or long gone. */
struct actor {
    char token[HF_UUID_LEN + 1];
    char owner[24];
    char execution_id[HF_UUID_LEN + 1];
    struct hf_lock_id id;
    /* the execution that it begins, if any */
    const char *workflow, *key, *input;
    bool once;
    enum hf_on_lost on_lost;
    int32_t max_attempts, concurrency, queue_limit;
    int64_t retry_backoff_ms;
    enum hf_overlap overlap;
    int64_t ttl_ms, wait_ms;
    int64_t fence; /* of the lease that it was granted, as the model counts; 0: none yet */
    int32_t priority;
    int process; /* index of the process it is bound to, or -1 */
    int wake_fd;
    struct hf_store *watched_on;
    int64_t moved_step; /* when it last came to watch on another handle */
};

/* The whole play; one per process. */
struct history {
    const char *url;
    uint64_t seed, random;
    int64_t steps;
    bool real_clock, has_once, has_executions, has_all_events, has_processes;
    int64_t paused_ms; /* in real time: the longest that the store had for one step */
    bool has_turns;    /* overlap, parking, concurrency, retries, verifying, idle workers */
    struct model *model;
    struct hf_store *handles[HANDLES];
    struct fences fences[NAMES];
    struct actor actors[NAMES][ACTORS];
    size_t n_actors[NAMES];
    int64_t actors_made;
    pid_t processes[PROCESSES];
    int64_t step;
};
extern struct history h;

extern const char *const names[NAMES];

/* Workflows are called as their locks are, but for one that uses them all. */
#define SHARED_WORKFLOW "shared"

/* 0 to n-1 */
int64_t chance(int64_t n);
#define PICK(array) ((array)[chance(sizeof(array) / sizeof *(array))])

/* Say what went wrong, where, and with which seed; and end the process. */
void give_up(const char *what, const char *why) __attribute__((noreturn));

pid_t start_process(void);
void kill_processes(void);

/* The actor with this id, or NULL. */
struct actor *find_actor(int name, const struct hf_lock_id *id);
void unwatch(struct actor *a, const char *name);

/* Forget the oldest, so that a whole batch of new ones finds room and nobody moves meanwhile. */
void make_room(int name);

/* The next request about this name; fences are the model's. */
struct hf_request make_request(int name);

/* Some that are alike, each about another name, or executions to be recorded about any. How many. */
size_t make_many(struct hf_request ret[BATCH_MAX]);

/* Somebody new who has been granted this name, for this execution, by this token. */
void add_worker(int name, const char *token, const char *execution_id);
void describe(const struct hf_request *req, char *ret, size_t size);

#endif
