/*
 * The model: a record store in memory, complete queues and executions included, that runs
 * hf_settle() and hf_step() under a clock and a world that the test owns. Unit tests play scenes to
 * it, the simulator plays schedules, the conformance suite holds every real store against it.
 *
 *     struct model *m = model_new();
 *     model_apply(m, &request, &answer);
 *     m->now_ms += 1000;
 *     model_kill(m, pid);
 *     model_free(m);
 *
 * It shares no code with src/store/record.c: what is tested is not tested against itself.
 */
#ifndef HF_TESTS_MODEL_H
#define HF_TESTS_MODEL_H

#include "store.h"

enum { MODEL_NAMES_MAX = 32 };

/* What is kept of one name: the record, and the whole queue of which it carries the head. */
struct model_lock {
    struct hf_record rec;
    struct hf_waiter *queue;
    size_t n_queue, queue_size;
    int64_t last_ticket;
};

/* Inputs and outputs are short texts here. */
enum { MODEL_DATA_MAX = 32 };
struct model_data {
    char bytes[MODEL_DATA_MAX];
    size_t n;
};

struct model_execution {
    struct hf_execution x;
    struct model_data input, head, tail;
    int64_t skipped;
};

struct model {
    int64_t now_ms;         /* the store's clock: move it forward at will */
    int64_t wall_offset_ms; /* what the wall clock is ahead of it */
    int64_t last_fence;
    int fence_failure; /* not 0: the negative code that asking for a fence gives */
    struct model_lock locks[MODEL_NAMES_MAX]; /* in order of first use */
    size_t n_locks;
    int32_t *dead;
    size_t n_dead, dead_size;
    struct model_execution *executions; /* oldest first */
    size_t n_executions, executions_size;
    struct hf_event *events;
    size_t n_events, events_size;
    struct hf_lock_id wakes[4]; /* of the last request */
    size_t n_wakes;
    /* For which workflows the last request wakes idle workers, once each time it is here. */
    char ready[64][HF_NAME_MAX + 1];
    size_t n_ready;
    bool keeps_events; /* false saves the simulator their cost */
    struct hf_effects fx;
};

/* Never fails: out of memory aborts. */
struct model *model_new(void);
void model_free(struct model *m);

/* As new, but for the time. */
void model_clear(struct model *m);

void model_apply(struct model *m, const struct hf_request *req, struct hf_answer *ret);

/* From now on this process is dead, and what is bound to it. */
void model_kill(struct model *m, int32_t pid);

/* The lock of this name, made where it is new. */
struct model_lock *model_lock(struct model *m, const char *name);

/*
 * The two halves of keeping a record, for a store in memory: fill in the record's queue for this
 * asker (NULL: nobody); keep everything else that the effects ask for.
 */
void model_load(struct model_lock *lock, const struct hf_lock_id *self);
void model_save(struct model *m, struct model_lock *lock, const struct hf_ask *ask,
                const struct hf_effects *fx);

/* The execution that the request means, into the ask. */
void model_find(struct model *m, const struct hf_sought *sought, struct hf_ask *ask);

/* What else the step must know, into the ask. */
void model_count(struct model *m, const char *name, const struct hf_wanted *wanted, int64_t wall_ms,
                 struct hf_ask *ask);

/*
 * Make the next ones ready that are parked at this lock, as fx->unpark has it; `made` is called with
 * the workflow of each.
 */
void model_unpark(struct model *m, const char *name, void (*made)(void *arg, const char *workflow),
                  void *arg);

/* The execution with this id, or NULL. */
struct model_execution *model_execution(struct model *m, const char *id);

/* As a store's due() gives them. */
size_t model_due(struct model *m, const struct hf_due *due, struct hf_execution *ret);

/* When the next wanted one that is not parked falls due, as a store's idle() gives it. */
int64_t model_next_due(struct model *m, const struct hf_due *wanted);

/* Is this workflow among those? */
bool model_wants(const struct hf_due *wanted, const char *workflow);

/* The world as the model sees it now. */
struct hf_world model_world(struct model *m);

/* The sums of all names, as a store's totals() gives them. */
struct hf_totals model_totals(const struct model *m);

/* Whom the waiter `id` stands behind, as a store's ahead() gives it. */
struct hf_processes model_ahead(struct model *m, const char *name, const struct hf_lock_id *id);

#endif
