/* One request on its way; between call.c, batch.c, many.c and line.c. */
#ifndef HF_STORE_POSTGRES_TASK_H
#define HF_STORE_POSTGRES_TASK_H

#include "postgres_store.h"

struct hf_pg_task {
    const struct hf_request *req;
    struct hf_answer *answer;
    bool done;
    bool handed; /* released to the next one, by a commit that did not wait for the disk */
    struct hf_lock_id id;
    char processes[HF_PROCESSES_TEXT_MAX], channel[HF_PG_CHANNEL_LEN + 1];
    struct hf_pg_seen seen;
    struct hf_buf alive, dead;
};

int hf_pg_begin_task(struct hf_postgres *s, struct hf_pg_task *t, const struct hf_request *req,
                     struct hf_answer *answer, struct hf_error *err);
void hf_pg_end_task(struct hf_postgres *s, struct hf_pg_task *t);

/* Whom we can judge, and how we have: the last parameters of every function that may have to. */
void hf_pg_bind_judgement(struct hf_postgres *s, struct hf_pg_task *t, struct hf_pg_statement *st);

/* Is an execution begun, told of or ended by it? */
bool hf_pg_has_execution(const struct hf_request *req);

/* Until it is answered; each turn the server knows of more processes whether they live. */
int hf_pg_finish_alone(struct hf_postgres *s, struct hf_pg_task *t, struct hf_error *err);

/* The same for a batch: what goes wrong with one must not keep the others from being answered. */
int hf_pg_finish_all(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                     struct hf_error *err);

/* Old events and executions go in small pieces, now and then, after a grant. Nobody waits for it. */
void hf_pg_prune_sometimes(struct hf_postgres *s, const struct hf_answer *answer);

/* Those of them that are simple, as many as are alike in one statement; each name once. */
int hf_pg_apply_simple(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                       struct hf_error *err);

/* An execution that is recorded whatever its lock has: it waits its turn. */
bool hf_pg_is_plain_enqueue(const struct hf_request *req);

int hf_pg_apply_batch(struct hf_postgres *s, const struct hf_request *requests, size_t n,
                      struct hf_answer *answers, struct hf_error *err);

/* Those who wait for one name, in their order: all of them are done, or none. */
int hf_pg_apply_line(struct hf_postgres *s, struct hf_pg_task *tasks, size_t n,
                     struct hf_error *err);

#endif
