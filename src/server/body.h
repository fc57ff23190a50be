/* What clients send, read strictly: what is not expected is refused by name. */
#ifndef HF_SERVER_BODY_H
#define HF_SERVER_BODY_H

#include "server.h"

/* Every field that a JSON body may have. Absent ones are NULL or 0; the first three numbers -1. */
struct fields {
    uint64_t has; /* FIELD() of those that are there */
    int64_t ttl_ms, wait_ms, fence;
    const char *token, *owner, *note, *reason;
    int64_t priority;
    /* executions */
    const char *workflow, *lock, *key, *id, *worker;
    const json_t *input, *workflows;
    const char *input_base64, *output, *output_base64, *output_tail, *output_tail_base64;
    int64_t run_at_ms, retry_backoff_ms, overlap, on_lost, max_attempts, queue_limit, concurrency;
    int64_t state, exit_code, output_skipped, max, skip, spawned, verifies;
};

enum field_bit {
    FIELD_BIT_TOKEN,
    FIELD_BIT_OWNER,
    FIELD_BIT_NOTE,
    FIELD_BIT_REASON,
    FIELD_BIT_TTL,
    FIELD_BIT_WAIT,
    FIELD_BIT_FENCE,
    FIELD_BIT_PRIORITY,
    FIELD_BIT_WORKFLOW,
    FIELD_BIT_LOCK,
    FIELD_BIT_KEY,
    FIELD_BIT_ID,
    FIELD_BIT_WORKER,
    FIELD_BIT_WORKFLOWS,
    FIELD_BIT_INPUT,
    FIELD_BIT_INPUT_BASE64,
    FIELD_BIT_OUTPUT,
    FIELD_BIT_OUTPUT_BASE64,
    FIELD_BIT_OUTPUT_TAIL,
    FIELD_BIT_OUTPUT_TAIL_BASE64,
    FIELD_BIT_OUTPUT_SKIPPED,
    FIELD_BIT_RUN_AT,
    FIELD_BIT_RETRY_BACKOFF,
    FIELD_BIT_OVERLAP,
    FIELD_BIT_ON_LOST,
    FIELD_BIT_MAX_ATTEMPTS,
    FIELD_BIT_QUEUE_LIMIT,
    FIELD_BIT_CONCURRENCY,
    FIELD_BIT_STATE,
    FIELD_BIT_EXIT_CODE,
    FIELD_BIT_MAX,
    FIELD_BIT_SKIP,
    FIELD_BIT_SPAWNED,
    FIELD_BIT_VERIFIES
};
#define FIELD(name) (UINT64_C(1) << FIELD_BIT_##name)

/* Bounded, no duplicate keys, an object; it is kept in req->json. Safe on any thread. */
int body_load(struct request *req, struct hf_error *err);
/* Its fields, of which no others may be there. Safe on any thread. */
int body_fields(const struct request *req, uint64_t allowed, struct fields *ret,
                struct hf_error *err);
/* Both; false: answered with a problem. req->json is not always made. */
bool body_read(struct request *req, uint64_t allowed, struct fields *ret);
bool body_require(struct request *req, bool is_there, const char *what);

/*
 * A body that may be large: `read` it, on a lane where it is, and `go` on with the request here. A
 * failure is answered.
 */
typedef int body_read_fn(struct request *req, struct hf_error *err);
void body_take(struct request *req, body_read_fn *read, handler_fn *go);

bool body_is_token(const char *text);
bool decode_percent(const char *text, size_t n, char *ret, size_t size);
/* In a query a '+' is a space as well. */
bool decode_query(const char *text, size_t n, char *ret, size_t size);
/* A whole number of a query parameter, or `otherwise` where it is absent. False: answered. */
bool query_int(struct request *req, const char *name, int64_t min, int64_t max, int64_t otherwise,
               int64_t *ret);

#endif
