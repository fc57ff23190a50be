/*
 * Records as JSON, from one table of fields per record (wire.c): what the command line prints, what
 * the service answers and what files hold have the same names and forms everywhere.
 */
#ifndef HF_CORE_WIRE_H
#define HF_CORE_WIRE_H

#include "buf.h"
#include "holdfast.h"

/* One compact JSON object, no newline. */
void hf_wire_lease(struct hf_buf *out, const struct hf_lease *lease);
void hf_wire_status(struct hf_buf *out, const struct hf_status *status);
void hf_wire_event(struct hf_buf *out, const struct hf_event *event);
void hf_wire_execution(struct hf_buf *out, const struct hf_execution *execution);

/* How one field of a C struct is written. */
enum hf_wire_type {
    HF_WIRE_TEXT,    /* char[]; empty: null */
    HF_WIRE_STRING,  /* char[]; empty: "" */
    HF_WIRE_INT,     /* int64_t */
    HF_WIRE_COUNT,   /* uint32_t */
    HF_WIRE_TIME,    /* int64_t since 1970, as RFC 3339; 0: null */
    HF_WIRE_ALIVE,   /* enum hf_alive: true, false, null */
    HF_WIRE_STATE,   /* enum hf_lock_state */
    HF_WIRE_KIND,    /* enum hf_event_kind */
    HF_WIRE_BOOL,    /* bool */
    HF_WIRE_POINTER, /* const char *; NULL: null. Read: as long as the JSON lives */
    HF_WIRE_INT32,   /* int32_t */
    HF_WIRE_OP,      /* enum hf_op */
    HF_WIRE_STALE,   /* enum hf_stale_reason; not stale: null */
    HF_WIRE_CODE,    /* int, as in hf_answer; 0: null */
    HF_WIRE_STAGE,   /* enum hf_execution_state */
    HF_WIRE_EXIT,    /* int, whose bool has_exit_code stands before it; false: null */
    HF_WIRE_ON_LOST, /* enum hf_on_lost */
    HF_WIRE_OVERLAP, /* enum hf_overlap */
    HF_WIRE_OUTCOME  /* enum hf_outcome; none: null */
};
struct hf_wire_field {
    const char *name;
    enum hf_wire_type type;
    size_t offset, size;
};
#define HF_WIRE(struct_type, member, json_name, wire_type)                                         \
    {                                                                                              \
        json_name, wire_type, offsetof(struct_type, member), sizeof(((struct_type *)0)->member)    \
    }

void hf_wire_write(struct hf_buf *out, const void *record, const struct hf_wire_field *fields,
                   size_t n);
/* The same, into the object that was written last. */
void hf_wire_append(struct hf_buf *out, const void *record, const struct hf_wire_field *fields,
                    size_t n);

/* Read what is there; absent and null fields become empty or 0. A wrong type is an error. */
struct json_t;
int hf_wire_read(const struct json_t *object, void *record, const struct hf_wire_field *fields,
                 size_t n, struct hf_error *err);

int hf_wire_read_lease(const struct json_t *object, struct hf_lease *ret, struct hf_error *err);
int hf_wire_read_status(const struct json_t *object, struct hf_status *ret, struct hf_error *err);
int hf_wire_read_event(const struct json_t *object, struct hf_event *ret, struct hf_error *err);
int hf_wire_read_execution(const struct json_t *object, struct hf_execution *ret,
                           struct hf_error *err);

/* The value of an enum that is called so, or -1. */
int hf_wire_find(const char *text, enum hf_wire_type type);

/* "NAME":"...","NAMEEncoding":"utf-8"; what is not valid UTF-8 is base64. */
void hf_wire_bytes(struct hf_buf *out, const char *name, const void *bytes, size_t n);

/* Take the closing brace off again and append ,"name": to the object, or only the comma for NULL. */
void hf_wire_reopen(struct hf_buf *out, const char *name);

/* wire_batch.c: requests and answers whole, so that a store can be used through the service. */
void hf_wire_request(struct hf_buf *out, const struct hf_request *request);
void hf_wire_answer(struct hf_buf *out, const struct hf_answer *answer);

/*
 * Unknown fields are refused by name. Texts live as long as the JSON; input and output are the
 * request's own, for hf_wire_request_clear().
 */
int hf_wire_read_request(const struct json_t *object, struct hf_request *ret, struct hf_error *err);
void hf_wire_request_clear(struct hf_request *request);
int hf_wire_read_answer(const struct json_t *object, struct hf_answer *ret, struct hf_error *err);

/* A JSON string with its quotes; invalid UTF-8 becomes U+FFFD. */
void hf_wire_string(struct hf_buf *out, const char *text, size_t n);

#endif
