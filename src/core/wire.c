#include "wire.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base64.h"
#include "error.h"
#include "text.h"

/* ---- the tables ----------------------------------------------------------------------------- */

#define COUNT(table) (sizeof(table) / sizeof *(table))

static const struct hf_wire_field lease_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_lease, member, name, type)
    F(name, "name", HF_WIRE_STRING),
    F(token, "token", HF_WIRE_STRING),
    F(fence, "fence", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_STRING),
    F(note, "note", HF_WIRE_TEXT),
    F(acquired_at_ms, "acquiredAt", HF_WIRE_TIME),
    F(expires_at_ms, "expiresAt", HF_WIRE_TIME),
    F(ttl_ms, "ttlMs", HF_WIRE_INT),
    F(execution_id, "executionId", HF_WIRE_TEXT),
#undef F
};

static const struct hf_wire_field status_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_status, member, name, type)
    F(name, "name", HF_WIRE_STRING),
    F(state, "state", HF_WIRE_STATE),
    F(fence, "fence", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_TEXT),
    F(alive, "alive", HF_WIRE_ALIVE),
    F(note, "note", HF_WIRE_TEXT),
    F(execution_id, "executionId", HF_WIRE_TEXT),
    F(locked_since_ms, "lockedSince", HF_WIRE_TIME),
    F(expires_at_ms, "expiresAt", HF_WIRE_TIME),
    F(remaining_ms, "remainingMs", HF_WIRE_INT),
    F(waiters, "waiters", HF_WIRE_COUNT),
#undef F
};

static const struct hf_wire_field event_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_event, member, name, type)
    F(seq, "seq", HF_WIRE_INT),
    F(at_ms, "at", HF_WIRE_TIME),
    F(kind, "kind", HF_WIRE_KIND),
    F(name, "name", HF_WIRE_STRING),
    F(fence, "fence", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_TEXT),
    F(execution_id, "executionId", HF_WIRE_TEXT),
    F(reason, "reason", HF_WIRE_TEXT),
    F(detail, "detail", HF_WIRE_TEXT),
#undef F
};

static const struct hf_wire_field execution_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_execution, member, name, type)
    F(id, "id", HF_WIRE_STRING),
    F(workflow, "workflow", HF_WIRE_STRING),
    F(state, "state", HF_WIRE_STAGE),
    F(key, "key", HF_WIRE_TEXT),
    F(run_at_ms, "runAt", HF_WIRE_TIME),
    F(priority, "priority", HF_WIRE_INT32),
    F(attempt, "attempt", HF_WIRE_INT32),
    F(fence, "fence", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_TEXT),
    F(created_at_ms, "createdAt", HF_WIRE_TIME),
    F(started_at_ms, "startedAt", HF_WIRE_TIME),
    F(finished_at_ms, "finishedAt", HF_WIRE_TIME),
    F(has_exit_code, "exitCode", HF_WIRE_EXIT),
    F(reason, "reason", HF_WIRE_TEXT),
    F(retry_of, "retryOf", HF_WIRE_TEXT),
    F(duplicate, "duplicate", HF_WIRE_BOOL),
    F(lock, "lock", HF_WIRE_STRING),
    F(cancel_requested, "cancelRequested", HF_WIRE_BOOL),
    F(spawned, "spawned", HF_WIRE_BOOL),
    F(to_verify, "toVerify", HF_WIRE_BOOL),
    F(parked, "parked", HF_WIRE_BOOL),
    F(once, "once", HF_WIRE_BOOL),
    F(on_lost, "onLost", HF_WIRE_ON_LOST),
    F(max_attempts, "maxAttempts", HF_WIRE_INT32),
    F(spent, "spent", HF_WIRE_INT32),
    F(retry_backoff_ms, "retryBackoffMs", HF_WIRE_INT),
    F(concurrency, "concurrency", HF_WIRE_INT32),
#undef F
};

/* ---- writing -------------------------------------------------------------------------------- */

/* How many bytes may stand in a JSON string as they are: no quote, backslash, control, non-ASCII. */
static size_t plain_run(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && (unsigned char)text[i] >= 0x20 && (unsigned char)text[i] < 0x7f &&
           text[i] != '"' && text[i] != '\\')
        i++;
    return i;
}

static size_t utf8_length(const char *text, size_t n)
{
    for (size_t len = 2; len <= 4 && len <= n; len++)
        if (hf_is_utf8(text, len))
            return len;
    return 0;
}

static void write_special(struct hf_buf *out, const char **text, size_t *n)
{
    unsigned char c = (unsigned char)**text;
    size_t len = 1;
    if (c == '"' || c == '\\')
        hf_buf_printf(out, "\\%c", c);
    else if (c == '\n')
        hf_buf_puts(out, "\\n");
    else if (c == '\t')
        hf_buf_puts(out, "\\t");
    else if (c < 0x20 || c == 0x7f)
        hf_buf_printf(out, "\\u%04x", c);
    else if ((len = utf8_length(*text, *n)))
        hf_buf_add(out, *text, len);
    else {
        hf_buf_puts(out, "\xef\xbf\xbd");
        len = 1;
    }
    *text += len;
    *n -= len;
}

void hf_wire_string(struct hf_buf *out, const char *text, size_t n)
{
    hf_buf_putc(out, '"');
    while (n) {
        size_t run = plain_run(text, n);
        hf_buf_add(out, text, run);
        text += run;
        n -= run;
        if (n)
            write_special(out, &text, &n);
    }
    hf_buf_putc(out, '"');
}

static void write_text(struct hf_buf *out, const char *text)
{
    hf_wire_string(out, text, strlen(text));
}

/* By hand: lock files and events are written with every grant, and printf is most of their cost. */
static void write_int(struct hf_buf *out, int64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do
        digits[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0)
        digits[--at] = '-';
    hf_buf_add(out, digits + at, sizeof digits - at);
}

static void write_time(struct hf_buf *out, int64_t at_ms)
{
    char text[HF_TIME_LEN + 1];
    hf_format_time(at_ms, text);
    write_text(out, text);
}

/* ---- enums ---------------------------------------------------------------------------------- */

static const char *const op_names[] = {
    [HF_OP_ACQUIRE] = "acquire",   [HF_OP_EXTEND] = "extend", [HF_OP_RELEASE] = "release",
    [HF_OP_WITHDRAW] = "withdraw", [HF_OP_FORCE] = "force",   [HF_OP_SETTLE] = "settle",
    [HF_OP_LOST] = "lost",         [HF_OP_STATUS] = "status", [HF_OP_GUARD] = "guard",
    [HF_OP_ENQUEUE] = "enqueue",   [HF_OP_CANCEL] = "cancel",
};
static const char *const on_lost_names[] = {
    [HF_ON_LOST_ABORT] = "abort", [HF_ON_LOST_RETRY] = "retry", [HF_ON_LOST_VERIFY] = "verify"};
static const char *const overlap_names[] = {
    [HF_OVERLAP_REJECT] = "reject",   [HF_OVERLAP_QUEUE] = "queue",   [HF_OVERLAP_SKIP] = "skip",
    [HF_OVERLAP_REPLACE] = "replace", [HF_OVERLAP_CANCEL] = "cancel",
};
static const char *const outcome_names[] = {
    [HF_OUTCOME_NONE] = "",         [HF_OUTCOME_SUCCESS] = "SUCCESS",
    [HF_OUTCOME_FAILED] = "FAILED", [HF_OUTCOME_ABORTED] = "ABORTED",
    [HF_OUTCOME_LOST] = "LOST",
};

static const char *op_name(unsigned i) { return op_names[i]; }
static const char *on_lost_name(unsigned i) { return on_lost_names[i]; }
static const char *overlap_name(unsigned i) { return overlap_names[i]; }
static const char *outcome_name(unsigned i) { return outcome_names[i]; }
static const char *kind_name(unsigned i) { return hf_event_kind_name((enum hf_event_kind)i); }
static const char *state_name(unsigned i) { return hf_lock_state_name((enum hf_lock_state)i); }
static const char *stale_name(unsigned i) { return hf_stale_reason_name((enum hf_stale_reason)i); }
static const char *code_name(unsigned i) { return hf_code_name((int)i); }
static const char *stage_name(unsigned i)
{
    return hf_execution_state_name((enum hf_execution_state)i);
}

/* Values that are written as one of a few texts. */
static const struct enumeration {
    const char *(*name_of)(unsigned);
    unsigned n;
    bool zero_is_null;
} enumerations[] = {
    [HF_WIRE_STATE] = {state_name, HF_STATE_STALE + 1, false},
    [HF_WIRE_KIND] = {kind_name, HF_EV_COUNT, false},
    [HF_WIRE_OP] = {op_name, COUNT(op_names), false},
    [HF_WIRE_STALE] = {stale_name, HF_STALE_ENDED + 1, true},
    [HF_WIRE_CODE] = {code_name, HF_DONE_ALREADY + 1, true}, /* negative in C */
    [HF_WIRE_STAGE] = {stage_name, HF_EXECUTION_STATE_COUNT, false},
    [HF_WIRE_ON_LOST] = {on_lost_name, COUNT(on_lost_names), false},
    [HF_WIRE_OVERLAP] = {overlap_name, COUNT(overlap_names), false},
    [HF_WIRE_OUTCOME] = {outcome_name, COUNT(outcome_names), true},
};

static void write_enum(struct hf_buf *out, const int *at, enum hf_wire_type type)
{
    const struct enumeration *e = &enumerations[type];
    unsigned value = (unsigned)(type == HF_WIRE_CODE ? -*at : *at);
    if (e->zero_is_null && !value)
        hf_buf_puts(out, "null");
    else
        write_text(out, e->name_of(value));
}

int hf_wire_find(const char *text, enum hf_wire_type type)
{
    const struct enumeration *e = &enumerations[type];
    for (unsigned i = e->zero_is_null ? 1 : 0; i < e->n; i++)
        if (strcmp(text, e->name_of(i)) == 0)
            return (int)i;
    return -1;
}

static bool read_enum(const json_t *value, int *at, enum hf_wire_type type)
{
    int found = json_is_string(value) ? hf_wire_find(json_string_value(value), type) : -1;
    *at = type == HF_WIRE_CODE ? -found : found;
    return found >= 0;
}

/* ---- one value ------------------------------------------------------------------------------ */

/* From has_exit_code to exit_code, the two that make one field. */
static const size_t exit_code_offset =
    offsetof(struct hf_execution, exit_code) - offsetof(struct hf_execution, has_exit_code);

static void write_value(struct hf_buf *out, const void *at, enum hf_wire_type type)
{
    static const char *const alive[] = {"null", "false", "true"};
    switch (type) {
    case HF_WIRE_TEXT:
    case HF_WIRE_STRING:
        if (type == HF_WIRE_TEXT && !*(const char *)at)
            hf_buf_puts(out, "null");
        else
            write_text(out, at);
        break;
    case HF_WIRE_INT:
        write_int(out, *(const int64_t *)at);
        break;
    case HF_WIRE_COUNT:
        write_int(out, *(const uint32_t *)at);
        break;
    case HF_WIRE_TIME:
        if (*(const int64_t *)at)
            write_time(out, *(const int64_t *)at);
        else
            hf_buf_puts(out, "null");
        break;
    case HF_WIRE_ALIVE:
        hf_buf_puts(out, alive[*(const enum hf_alive *)at + 1]);
        break;
    case HF_WIRE_BOOL:
        hf_buf_puts(out, *(const bool *)at ? "true" : "false");
        break;
    case HF_WIRE_INT32:
        write_int(out, *(const int32_t *)at);
        break;
    case HF_WIRE_POINTER:
        if (*(const char *const *)at)
            write_text(out, *(const char *const *)at);
        else
            hf_buf_puts(out, "null");
        break;
    case HF_WIRE_EXIT:
        if (*(const bool *)at)
            write_int(out, *(const int *)((const char *)at + exit_code_offset));
        else
            hf_buf_puts(out, "null");
        break;
    default:
        write_enum(out, at, type);
    }
}

static void write_fields(struct hf_buf *out, char first, const void *record,
                         const struct hf_wire_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hf_buf_putc(out, i ? ',' : first);
        hf_buf_putc(out, '"');
        hf_buf_puts(out, fields[i].name);
        hf_buf_add(out, "\":", 2);
        write_value(out, (const char *)record + fields[i].offset, fields[i].type);
    }
    hf_buf_putc(out, '}');
}

void hf_wire_write(struct hf_buf *out, const void *record, const struct hf_wire_field *fields,
                   size_t n)
{
    write_fields(out, '{', record, fields, n);
}

void hf_wire_append(struct hf_buf *out, const void *record, const struct hf_wire_field *fields,
                    size_t n)
{
    if (out->len)
        out->len--;
    write_fields(out, ',', record, fields, n);
}

void hf_wire_lease(struct hf_buf *out, const struct hf_lease *lease)
{
    hf_wire_write(out, lease, lease_fields, COUNT(lease_fields));
}

void hf_wire_status(struct hf_buf *out, const struct hf_status *status)
{
    hf_wire_write(out, status, status_fields, COUNT(status_fields));
}

void hf_wire_event(struct hf_buf *out, const struct hf_event *event)
{
    hf_wire_write(out, event, event_fields, COUNT(event_fields));
}

void hf_wire_execution(struct hf_buf *out, const struct hf_execution *execution)
{
    hf_wire_write(out, execution, execution_fields, COUNT(execution_fields));
}

void hf_wire_bytes(struct hf_buf *out, const char *name, const void *bytes, size_t n)
{
    bool is_text = n == 0 || hf_is_utf8(bytes, n);
    hf_buf_printf(out, "\"%s\":", name);
    if (is_text)
        hf_wire_string(out, n ? bytes : "", n);
    else {
        hf_buf_putc(out, '"');
        hf_base64_write(out, bytes, n);
        hf_buf_putc(out, '"');
    }
    hf_buf_printf(out, ",\"%sEncoding\":\"%s\"", name, is_text ? "utf-8" : "base64");
}

void hf_wire_reopen(struct hf_buf *out, const char *name)
{
    if (out->len)
        out->len--;
    hf_buf_putc(out, ',');
    if (name)
        hf_buf_printf(out, "\"%s\":", name);
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool read_text(const json_t *value, char *at, size_t size)
{
    if (!json_is_string(value) || json_string_length(value) >= size)
        return false;
    memcpy(at, json_string_value(value), json_string_length(value) + 1);
    return true;
}

static bool read_value(const json_t *value, void *at, const struct hf_wire_field *field)
{
    switch (field->type) {
    case HF_WIRE_TEXT:
    case HF_WIRE_STRING:
        return read_text(value, at, field->size);
    case HF_WIRE_INT:
        *(int64_t *)at = json_integer_value(value);
        return json_is_integer(value);
    case HF_WIRE_COUNT:
        *(uint32_t *)at = (uint32_t)json_integer_value(value);
        return json_is_integer(value) && json_integer_value(value) >= 0 &&
               json_integer_value(value) <= UINT32_MAX;
    case HF_WIRE_TIME:
        return json_is_string(value) && hf_parse_time(json_string_value(value), at, NULL) == 0;
    case HF_WIRE_ALIVE:
        *(enum hf_alive *)at = json_is_true(value) ? HF_ALIVE : HF_DEAD;
        return json_is_boolean(value);
    case HF_WIRE_BOOL:
        *(bool *)at = json_is_true(value);
        return json_is_boolean(value);
    case HF_WIRE_INT32:
        *(int32_t *)at = (int32_t)json_integer_value(value);
        return json_is_integer(value) && json_integer_value(value) >= INT32_MIN &&
               json_integer_value(value) <= INT32_MAX;
    case HF_WIRE_POINTER:
        *(const char **)at = json_string_value(value);
        return json_is_string(value);
    case HF_WIRE_EXIT:
        *(bool *)at = true;
        *(int *)((char *)at + exit_code_offset) = (int)json_integer_value(value);
        return json_is_integer(value) && json_integer_value(value) >= INT32_MIN &&
               json_integer_value(value) <= INT32_MAX;
    default:
        return read_enum(value, at, field->type);
    }
}

int hf_wire_read(const struct json_t *object, void *record, const struct hf_wire_field *fields,
                 size_t n, struct hf_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        void *at = (char *)record + fields[i].offset;
        memset(at, 0, fields[i].size);
        if (!value || json_is_null(value)) {
            if (fields[i].type == HF_WIRE_ALIVE)
                *(enum hf_alive *)at = HF_ALIVE_UNKNOWN;
        } else if (!read_value(value, at, &fields[i]))
            return hf_fail(err, HF_INVALID, "the field '%s' is not what was expected",
                           fields[i].name);
    }
    return 0;
}

int hf_wire_read_lease(const struct json_t *object, struct hf_lease *ret, struct hf_error *err)
{
    struct hf_lease lease = {0};
    int r = hf_wire_read(object, &lease, lease_fields, COUNT(lease_fields), err);
    if (r >= 0)
        *ret = lease;
    return r;
}

int hf_wire_read_status(const struct json_t *object, struct hf_status *ret, struct hf_error *err)
{
    struct hf_status s = {0};
    int r = hf_wire_read(object, &s, status_fields, COUNT(status_fields), err);
    if (r < 0)
        return r;
    if (s.state != HF_STATE_FREE) /* all three are of one moment, so this is exact */
        s.held_for_ms = s.expires_at_ms - s.locked_since_ms - s.remaining_ms;
    *ret = s;
    return 0;
}

int hf_wire_read_event(const struct json_t *object, struct hf_event *ret, struct hf_error *err)
{
    return hf_wire_read(object, ret, event_fields, COUNT(event_fields), err);
}

int hf_wire_read_execution(const struct json_t *object, struct hf_execution *ret,
                           struct hf_error *err)
{
    struct hf_execution x = {0};
    int r = hf_wire_read(object, &x, execution_fields, COUNT(execution_fields), err);
    if (r >= 0)
        *ret = x;
    return r;
}
