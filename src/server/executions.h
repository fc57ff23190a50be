/*
 * Executions over HTTP:
 *
 *   creation.c     POST /v1/executions: queued for a worker, or begun for who runs it itself; retry
 *   executions.c   what is done to one: cancel, heartbeat, finish; and what these files share
 *   look.c         one of them, its input, output and log; lists; what is due
 *   claims.c       workers that look for work, and wait for it
 *
 * All changes go to LANE_WRITE as requests of hf_apply(), so that many of them share a commit. Such a
 * request needs the name of the execution's lock, which never changes: it is remembered by the id.
 */
#ifndef HF_SERVER_EXECUTIONS_H
#define HF_SERVER_EXECUTIONS_H

#include "body.h"
#include "workflows.h"

/* A request about executions: its context, freed with it. */
struct execution_call {
    struct request *req;
    struct fields fields;
    struct hf_request ask; /* as far as the body says it */
    struct hf_execution x; /* which it is about; from memory: only id, workflow and lock */
    handler_fn *go;        /* once that was found */
    char new_id[HF_UUID_LEN + 1];
    char owner[HF_OWNER_MAX + 1];
    struct hf_buf input, out;           /* out: an answer that a lane writes */
    const char *content_type;           /* ... and what it is */
    void (*clear)(struct request *req); /* of what it is part of */
    void *output_head, *output_tail;    /* decoded */
    struct job spawn; /* behind the request's own job: what it began is marked as started */
    struct hf_answer begun;
    int begin_code;
    struct hf_error begin_err;
};

/* The request's; made where there is none yet. NULL: no memory, and not yet answered. */
struct execution_call *execution_call(struct request *req);

/* The same for one that is the first member of something larger, all zero, which is freed as one. */
void execution_call_init(struct request *req, struct execution_call *call);

/* Read it whole from the store, or only remember which it is; then go on. Else it is answered. */
void execution_find(struct request *req, bool whole, handler_fn *go);

/* From now on it is known which lock this one has. */
void executions_learn(struct server *server, const struct hf_execution *x);

/* Is it for this client's token? False: answered. */
bool execution_is_for(struct request *req, const char *workflow);

/* The names of a body's array as texts, at most WORKFLOWS_MAX; how many. */
size_t execution_workflows(const json_t *array, const char **ret);
/* A token with a prefix claims only by names that it may use. False: answered. */
bool execution_workflows_are_for(struct request *req, const json_t *array);

/* In done(): the request, unless its client has gone, the store failed or refused. */
struct request *execution_answered(struct job *job, int code, const struct hf_answer *answer,
                                   const struct hf_error *err);
void execution_refuse(struct request *req, const struct hf_request *ask,
                      const struct hf_answer *answer);

/* The execution, and where it is not NULL what its runner needs of the lease. */
void execution_write(struct hf_buf *out, const struct hf_execution *x,
                     const struct hf_lease *lease);

/* Who asks, where it does not say. */
const char *execution_owner(struct request *req, const char *given);

/* An answer that a lane has written becomes the request's, with this status. */
void execution_answer_out(struct request *req, const char *content_type);

/* For a lane: "output":"...",... as show --json has it. */
int execution_write_output(struct hf *hf, const char *id, struct hf_buf *out, struct hf_error *err);

/* ---- claims.c ------------------------------------------------------------------------------- */

/* Something of this workflow may be there now; NULL: of any. */
void claims_nudge(struct server *server, const char *workflow);

#endif
