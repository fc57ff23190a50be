/* Requests and answers whole, as POST /v1/batch has them. */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "error.h"
#include "wire.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* ---- requests ------------------------------------------------------------------------------- */

static const struct hf_wire_field request_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_request, member, name, type)
    F(op, "op", HF_WIRE_OP),
    F(name, "name", HF_WIRE_POINTER),
    F(token, "token", HF_WIRE_POINTER),
    F(fence, "fence", HF_WIRE_INT),
    F(ttl_ms, "ttlMs", HF_WIRE_INT),
    F(wait_ms, "waitMs", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_POINTER),
    F(note, "note", HF_WIRE_POINTER),
    F(priority, "priority", HF_WIRE_INT32),
    F(reason, "reason", HF_WIRE_POINTER),
    /* from here on what concerns an execution; written only where the request does */
    F(workflow, "workflow", HF_WIRE_POINTER),
    F(key, "key", HF_WIRE_POINTER),
    F(once, "once", HF_WIRE_BOOL),
    F(execution_id, "executionId", HF_WIRE_POINTER),
    F(retry_of, "retryOf", HF_WIRE_POINTER),
    F(run_at_ms, "runAt", HF_WIRE_TIME),
    F(on_lost, "onLost", HF_WIRE_ON_LOST),
    F(max_attempts, "maxAttempts", HF_WIRE_INT32),
    F(retry_backoff_ms, "retryBackoffMs", HF_WIRE_INT),
    F(concurrency, "concurrency", HF_WIRE_INT32),
    F(overlap, "overlap", HF_WIRE_OVERLAP),
    F(queue_limit, "queueLimit", HF_WIRE_INT32),
    F(claim, "claim", HF_WIRE_BOOL),
    F(verifies, "verifies", HF_WIRE_BOOL),
    F(spawned, "spawned", HF_WIRE_BOOL),
    F(outcome, "outcome", HF_WIRE_OUTCOME),
    F(has_exit_code, "exitCode", HF_WIRE_EXIT),
    F(output_skipped, "outputSkipped", HF_WIRE_INT),
#undef F
};
enum { N_PLAIN = 10 };

static_assert(offsetof(struct hf_request, exit_code) - offsetof(struct hf_request, has_exit_code) ==
                  offsetof(struct hf_execution, exit_code) -
                      offsetof(struct hf_execution, has_exit_code),
              "HF_WIRE_EXIT is one type for both");

/* Bytes, as base64. */
static const struct bytes_field {
    const char *name;
    size_t bytes, size; /* offsets */
    bool is_output;
} bytes_fields[] = {
#define B(name, member, is_output)                                                                 \
    {                                                                                              \
        name, offsetof(struct hf_request, member), offsetof(struct hf_request, member##_size),     \
            is_output                                                                              \
    }
    B("inputBase64", input, false),
    B("outputBase64", output_head, true),
    B("outputTailBase64", output_tail, true),
#undef B
};

static bool concerns_execution(const struct hf_request *r)
{
    return r->workflow || r->execution_id || r->claim || r->spawned || r->outcome || r->has_output;
}

static void write_bytes(struct hf_buf *out, const struct hf_request *request)
{
    for (size_t i = 0; i < COUNT(bytes_fields); i++) {
        const struct bytes_field *f = &bytes_fields[i];
        const void *bytes = *(const void *const *)((const char *)request + f->bytes);
        size_t n = *(const size_t *)((const char *)request + f->size);
        if (f->is_output ? !request->has_output : !n)
            continue;
        hf_wire_reopen(out, f->name);
        hf_buf_putc(out, '"');
        hf_base64_write(out, bytes, n);
        hf_buf_puts(out, "\"}");
    }
}

void hf_wire_request(struct hf_buf *out, const struct hf_request *request)
{
    bool whole = concerns_execution(request);
    hf_wire_write(out, request, request_fields, whole ? COUNT(request_fields) : (size_t)N_PLAIN);
    if (whole)
        write_bytes(out, request);
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < COUNT(request_fields); i++)
        if (strcmp(request_fields[i].name, name) == 0)
            return true;
    for (size_t i = 0; i < COUNT(bytes_fields); i++)
        if (strcmp(bytes_fields[i].name, name) == 0)
            return true;
    return false;
}

static int read_bytes(const json_t *object, struct hf_request *request, struct hf_error *err)
{
    for (size_t i = 0; i < COUNT(bytes_fields); i++) {
        const struct bytes_field *f = &bytes_fields[i];
        const json_t *value = json_object_get(object, f->name);
        if (!value || json_is_null(value))
            continue;
        if (!json_is_string(value) ||
            !hf_base64_read(json_string_value(value), json_string_length(value),
                            (void **)((char *)request + f->bytes),
                            (size_t *)((char *)request + f->size)))
            return hf_fail(err, HF_INVALID, "the field '%s' is not base64", f->name);
        request->has_output |= f->is_output;
    }
    return 0;
}

void hf_wire_request_clear(struct hf_request *request)
{
    for (size_t i = 0; i < COUNT(bytes_fields); i++) {
        void **bytes = (void **)((char *)request + bytes_fields[i].bytes);
        free(*bytes);
        *bytes = NULL;
    }
}

int hf_wire_read_request(const struct json_t *object, struct hf_request *ret, struct hf_error *err)
{
    struct hf_request request = {0};
    json_t *fields = (json_t *)(uintptr_t)object; /* its iterator is not const */
    for (void *at = json_object_iter(fields); at; at = json_object_iter_next(fields, at))
        if (!is_known(json_object_iter_key(at)))
            return hf_fail(err, HF_INVALID, "there is no field '%.60s' in a request of a batch",
                           json_object_iter_key(at));
    int r = hf_wire_read(object, &request, request_fields, COUNT(request_fields), err);
    if (r >= 0 && !json_is_string(json_object_get(object, "op")))
        r = hf_fail(err, HF_INVALID, "a request of a batch needs an op");
    if (r >= 0)
        r = read_bytes(object, &request, err);
    if (r >= 0)
        *ret = request;
    else
        hf_wire_request_clear(&request);
    return r;
}

/* ---- answers -------------------------------------------------------------------------------- */

static const struct hf_wire_field answer_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_answer, member, name, type)
    F(code, "code", HF_WIRE_CODE),
    F(queued, "queued", HF_WIRE_BOOL),
    F(ahead, "ahead", HF_WIRE_COUNT),
    F(freed, "freed", HF_WIRE_STALE),
    F(lease.cancel_requested, "cancelRequested", HF_WIRE_BOOL),
#undef F
};

static const struct hf_wire_field takeover_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_takeover, member, name, type)
    F(reason, "reason", HF_WIRE_STALE),
    F(lock_id, "lockId", HF_WIRE_STRING),
    F(owner, "owner", HF_WIRE_STRING),
    F(fence, "fence", HF_WIRE_INT),
    F(acquired_at_ms, "acquiredAt", HF_WIRE_TIME),
    F(held_for_ms, "heldForMs", HF_WIRE_INT),
    F(ttl_ms, "ttlMs", HF_WIRE_INT),
#undef F
};

static void write_lease(struct hf_buf *out, const struct hf_lease *lease)
{
    hf_wire_lease(out, lease);
    if (lease->takeover.reason == HF_STALE_NOT)
        return;
    hf_wire_reopen(out, "takeover");
    hf_wire_write(out, &lease->takeover, takeover_fields, COUNT(takeover_fields));
    hf_buf_putc(out, '}');
}

void hf_wire_answer(struct hf_buf *out, const struct hf_answer *answer)
{
    hf_wire_write(out, answer, answer_fields, COUNT(answer_fields));
    if (answer->lease.token[0]) {
        hf_wire_reopen(out, "lease");
        write_lease(out, &answer->lease);
        hf_buf_putc(out, '}');
    }
    if (answer->has_holder) {
        hf_wire_reopen(out, "holder");
        hf_wire_status(out, &answer->holder);
        hf_buf_putc(out, '}');
    }
    if (answer->has_execution) {
        hf_wire_reopen(out, "execution");
        hf_wire_execution(out, &answer->execution);
        hf_buf_putc(out, '}');
    }
}

static int read_lease(const json_t *lease, struct hf_answer *ret, struct hf_error *err)
{
    bool cancel_requested = ret->lease.cancel_requested;
    const json_t *takeover = json_object_get(lease, "takeover");
    int r = hf_wire_read_lease(lease, &ret->lease, err);
    ret->lease.cancel_requested = cancel_requested;
    if (r >= 0 && takeover)
        r = hf_wire_read(takeover, &ret->lease.takeover, takeover_fields, COUNT(takeover_fields),
                         err);
    return r;
}

int hf_wire_read_answer(const struct json_t *object, struct hf_answer *ret, struct hf_error *err)
{
    struct hf_answer answer = {0};
    const json_t *lease = json_object_get(object, "lease");
    const json_t *holder = json_object_get(object, "holder");
    const json_t *execution = json_object_get(object, "execution");
    int r = hf_wire_read(object, &answer, answer_fields, COUNT(answer_fields), err);
    if (r >= 0 && lease)
        r = read_lease(lease, &answer, err);
    if (r >= 0 && holder)
        r = hf_wire_read_status(holder, &answer.holder, err);
    if (r >= 0 && execution)
        r = hf_wire_read_execution(execution, &answer.execution, err);
    answer.has_holder = holder;
    answer.has_execution = execution;
    if (r >= 0)
        *ret = answer;
    return r;
}
