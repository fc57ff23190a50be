#include "body.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "plain.h"
#include "text.h"
#include "wire.h"

static bool decode(const char *text, size_t n, bool plus_is_space, char *ret, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '%') {
            if (n - i < 3 || !isxdigit((unsigned char)text[i + 1]) ||
                !isxdigit((unsigned char)text[i + 2]))
                return false;
            const char *high = strchr(digits, text[i + 1] | 32);
            const char *low = strchr(digits, text[i + 2] | 32);
            c = (char)((high - digits) << 4 | (low - digits));
            i += 2;
        } else if (c == '+' && plus_is_space)
            c = ' ';
        if (used + 1 >= size || !c)
            return false;
        ret[used++] = c;
    }
    ret[used] = '\0';
    return hf_is_utf8(ret, used);
}

bool decode_percent(const char *text, size_t n, char *ret, size_t size)
{
    return decode(text, n, false, ret, size);
}

bool decode_query(const char *text, size_t n, char *ret, size_t size)
{
    return decode(text, n, true, ret, size);
}

bool body_is_token(const char *text)
{
    return strlen(text) == HF_UUID_LEN && strspn(text, "0123456789abcdef-") == HF_UUID_LEN;
}

bool query_int(struct request *req, const char *name, int64_t min, int64_t max, int64_t otherwise,
               int64_t *ret)
{
    char text[24] = "", detail[160], *end;
    *ret = otherwise;
    if (!request_has_query(req, name))
        return true;
    if (request_query(req, name, text, sizeof text) && text[0] >= '0' && text[0] <= '9') {
        *ret = strtoll(text, &end, 10);
        if (!*end && *ret >= min && *ret <= max)
            return true;
    }
    snprintf(detail, sizeof detail, "the parameter %s must be a whole number from %lld to %lld",
             name, (long long)min, (long long)max);
    request_problem(req, HF_INVALID, detail, NULL);
    return false;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

struct shape {
    int depth;
    size_t values;
};

/* How deep it nests and how many values it has, at most, without building anything. */
static struct shape shape_of(const char *text, size_t n)
{
    struct shape shape = {0};
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"')
            in_string = true;
        else if (c == '{' || c == '[') {
            shape.values++;
            shape.depth = ++depth > shape.depth ? depth : shape.depth;
        } else if (c == '}' || c == ']')
            depth--;
        else
            shape.values += c == ',';
    }
    return shape;
}

int body_load(struct request *req, struct hf_error *err)
{
    json_error_t problem = {0};
    struct shape shape = shape_of(req->body.data, req->body.len);
    if (shape.depth > DEPTH_MAX)
        return hf_fail(err, HF_INVALID, "the body nests deeper than %d levels", DEPTH_MAX);
    if (shape.values > VALUES_MAX)
        return hf_fail(err, HF_INVALID, "the body has more than %d values", VALUES_MAX);
    if (!req->body.len)
        req->json = json_object();
    else
        req->json = json_loadb(req->body.data, req->body.len, JSON_REJECT_DUPLICATES, &problem);
    if (json_is_object(req->json))
        return 0;
    if (req->json)
        return hf_fail(err, HF_INVALID, "the body must be a JSON object");
    return hf_fail(err, HF_INVALID, "the body is not JSON: %.150s (line %d, column %d)",
                   problem.text, problem.line, problem.column);
}

/* ---- the fields of the routes --------------------------------------------------------------- */

enum field_type { TEXT, TOKEN, NAME, BYTES, DURATION, NUMBER, TIME, CHOICE, FLAG, NAMES, ANY };

static const struct field {
    const char *name;
    enum field_bit bit;
    enum field_type type;
    size_t offset;
    int64_t min, max; /* of texts: bytes; of a choice, min: its wire type */
    const char *expected;
} fields[] = {
#define F(name, bit, type, member, min, max, expected)                                             \
    {                                                                                              \
        name, FIELD_BIT_##bit, type, offsetof(struct fields, member), min, max, expected           \
    }
    F("token", TOKEN, TOKEN, token, 0, HF_UUID_LEN, "a UUID in lower case"),
    F("owner", OWNER, TEXT, owner, 0, HF_OWNER_MAX, "a text of at most 200 bytes"),
    F("note", NOTE, TEXT, note, 0, HF_NOTE_MAX, "a text of at most 400 bytes"),
    F("reason", REASON, TEXT, reason, 0, HF_REASON_MAX, "a text of at most 200 bytes"),
    F("ttl", TTL, DURATION, ttl_ms, HF_TTL_MIN_MS, HF_TTL_MAX_MS,
      "a duration such as \"30s\" or a number of seconds, from 100ms to 366d"),
    F("ttlMs", TTL, NUMBER, ttl_ms, HF_TTL_MIN_MS, HF_TTL_MAX_MS,
      "a whole number of milliseconds from 100 to 31622400000"),
    F("wait", WAIT, DURATION, wait_ms, 0, WAIT_MAX_MS,
      "a duration such as \"30s\" or a number of seconds, up to 24h"),
    F("waitMs", WAIT, NUMBER, wait_ms, 0, WAIT_MAX_MS,
      "a whole number of milliseconds up to 86400000"),
    F("fence", FENCE, NUMBER, fence, 0, (INT64_C(1) << 53) - 1, "a whole number below 2^53"),
    F("priority", PRIORITY, NUMBER, priority, -1000000, 1000000,
      "a whole number from -1000000 to 1000000"),
    F("workflow", WORKFLOW, NAME, workflow, 0, HF_NAME_MAX, "a name of 1 to 200 bytes"),
    F("lock", LOCK, NAME, lock, 0, HF_NAME_MAX, "a name of 1 to 200 bytes"),
    F("key", KEY, TEXT, key, 1, HF_KEY_MAX, "a text of 1 to 200 bytes"),
    F("id", ID, TOKEN, id, 0, HF_UUID_LEN, "a UUID in lower case"),
    F("worker", WORKER, TEXT, worker, 0, HF_OWNER_MAX, "a text of at most 200 bytes"),
    F("workflows", WORKFLOWS, NAMES, workflows, 0, WORKFLOWS_MAX, "an array of up to 256 names"),
    F("input", INPUT, ANY, input, 0, 0, "a JSON value"),
    F("inputBase64", INPUT_BASE64, BYTES, input_base64, 0, 0, "a text"),
    F("output", OUTPUT, BYTES, output, 0, 0, "a text"),
    F("outputBase64", OUTPUT_BASE64, BYTES, output_base64, 0, 0, "a text"),
    F("outputTail", OUTPUT_TAIL, BYTES, output_tail, 0, 0, "a text"),
    F("outputTailBase64", OUTPUT_TAIL_BASE64, BYTES, output_tail_base64, 0, 0, "a text"),
    F("outputSkipped", OUTPUT_SKIPPED, NUMBER, output_skipped, 0, INT64_MAX,
      "a whole number of bytes"),
    F("runAt", RUN_AT, TIME, run_at_ms, 1, INT64_MAX, "a time such as 2026-11-15T20:30:00Z"),
    F("retryBackoff", RETRY_BACKOFF, DURATION, retry_backoff_ms, 0, BACKOFF_MAX_MS,
      "a duration such as \"5s\" or a number of seconds, up to 7d"),
    F("retryBackoffMs", RETRY_BACKOFF, NUMBER, retry_backoff_ms, 0, BACKOFF_MAX_MS,
      "a whole number of milliseconds up to 604800000"),
    F("overlap", OVERLAP, CHOICE, overlap, HF_WIRE_OVERLAP, 0,
      "reject, queue, skip, replace or cancel"),
    F("onLost", ON_LOST, CHOICE, on_lost, HF_WIRE_ON_LOST, 0, "abort, retry or verify"),
    F("maxAttempts", MAX_ATTEMPTS, NUMBER, max_attempts, 0, 1000000,
      "a whole number up to 1000000"),
    F("queueLimit", QUEUE_LIMIT, NUMBER, queue_limit, 0, 1000000, "a whole number up to 1000000"),
    F("concurrency", CONCURRENCY, NUMBER, concurrency, 0, 1000000, "a whole number up to 1000000"),
    F("state", STATE, CHOICE, state, HF_WIRE_OUTCOME, 0, "SUCCESS, FAILED, ABORTED or LOST"),
    F("exitCode", EXIT_CODE, NUMBER, exit_code, INT32_MIN, INT32_MAX, "a whole number"),
    F("max", MAX, NUMBER, max, 1, CLAIM_MAX, "a whole number from 1 to 256"),
    F("skip", SKIP, NUMBER, skip, 0, 1000000, "a whole number up to 1000000"),
    F("spawned", SPAWNED, FLAG, spawned, 0, 1, "true or false"),
    F("verifies", VERIFIES, FLAG, verifies, 0, 1, "true or false"),
#undef F
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static bool read_text(const struct field *f, const struct member *m, const char **ret)
{
    const char *text = m->text;
    if (m->kind != VALUE_TEXT)
        return false;
    switch (f->type) {
    case TOKEN:
        if (!body_is_token(text))
            return false;
        break;
    case NAME:
        if (hf_check_name(text, NULL) < 0)
            return false;
        break;
    case TEXT:
        if (strlen(text) < (size_t)f->min || hf_check_text(f->name, text, (size_t)f->max, NULL) < 0)
            return false;
        break;
    default: /* bytes: whatever they are */
        break;
    }
    *ret = text;
    return true;
}

static bool read_names(const struct field *f, const json_t *value, const json_t **ret)
{
    size_t i;
    const json_t *name;
    if (!json_is_array(value) || json_array_size(value) > (size_t)f->max)
        return false;
    json_array_foreach(value, i,
                       name) if (!json_is_string(name) ||
                                 hf_check_name(json_string_value(name), NULL) < 0) return false;
    *ret = value;
    return true;
}

static bool read_duration(const struct member *m, int64_t *ret_ms)
{
    if (m->kind == VALUE_TEXT)
        return hf_parse_duration(m->text, ret_ms, NULL) == 0;
    double s = m->kind == VALUE_WHOLE ? (double)m->whole : json_real_value(m->json);
    *ret_ms = (int64_t)(s * 1000);
    return (m->kind == VALUE_WHOLE || json_is_real(m->json)) && s >= 0 && s < 1e10;
}

static bool read_number(const struct field *f, const struct member *m, int64_t *ret)
{
    int64_t number = m->whole;
    switch (f->type) {
    case DURATION:
        if (!read_duration(m, &number))
            return false;
        break;
    case TIME:
        if (m->kind != VALUE_TEXT || hf_parse_time(m->text, &number, NULL) < 0)
            return false;
        break;
    case CHOICE:
        number = m->kind == VALUE_TEXT ? hf_wire_find(m->text, (enum hf_wire_type)f->min) : -1;
        *ret = number;
        return number >= 0;
    case FLAG:
        number = json_is_true(m->json);
        if (!json_is_boolean(m->json))
            return false;
        break;
    default:
        if (m->kind != VALUE_WHOLE)
            return false;
    }
    *ret = number;
    return number >= f->min && number <= f->max;
}

static bool read_field(const struct field *f, const struct member *m, struct fields *ret)
{
    void *at = (char *)ret + f->offset;
    if (f->type <= BYTES)
        return read_text(f, m, at);
    if (f->type == NAMES)
        return read_names(f, m->json, at);
    if (f->type != ANY)
        return read_number(f, m, at);
    *(const json_t **)at = m->json;
    return true;
}

static const struct field *find_field(const char *name, uint64_t allowed)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (allowed >> fields[i].bit & 1 && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static int refuse_unknown(const char *name, uint64_t allowed, struct hf_error *err)
{
    struct hf_buf known = HF_BUF(800);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (allowed >> fields[i].bit & 1)
            hf_buf_printf(&known, " %s", fields[i].name);
    int r = hf_fail(err, HF_INVALID, "there is no field '%.60s' here; known are%s", name,
                    known.data ? known.data : " none");
    hf_buf_clear(&known);
    return r;
}

static int take_member(const struct member *m, uint64_t allowed, struct fields *ret,
                       struct hf_error *err)
{
    const struct field *f = find_field(m->name, allowed);
    if (!f)
        return refuse_unknown(m->name, allowed, err);
    if (m->kind == VALUE_NULL)
        return 0;
    if (!read_field(f, m, ret))
        return hf_fail(err, HF_INVALID, "the field %s must be %s", f->name, f->expected);
    if (ret->has >> f->bit & 1)
        return hf_fail(err, HF_INVALID, "%s is given twice, as a duration and in milliseconds",
                       f->name);
    ret->has |= UINT64_C(1) << f->bit;
    return 0;
}

static const struct fields no_fields = {.ttl_ms = -1, .wait_ms = -1, .fence = -1};

int body_fields(const struct request *req, uint64_t allowed, struct fields *ret,
                struct hf_error *err)
{
    const char *name;
    json_t *value;
    int r = 0;
    *ret = no_fields;
    json_object_foreach(req->json, name, value)
    {
        struct member m = {.name = name,
                           .kind = json_is_null(value)      ? VALUE_NULL
                                   : json_is_string(value)  ? VALUE_TEXT
                                   : json_is_integer(value) ? VALUE_WHOLE
                                                            : VALUE_OTHER,
                           .text = json_string_value(value),
                           .whole = json_integer_value(value),
                           .json = value};
        if ((r = take_member(&m, allowed, ret, err)) < 0)
            break;
    }
    return r;
}

/* What most requests are about, and can be read in place. */
static const uint64_t plain_fields = FIELD(TOKEN) | FIELD(OWNER) | FIELD(NOTE) | FIELD(REASON) |
                                     FIELD(TTL) | FIELD(WAIT) | FIELD(FENCE) | FIELD(PRIORITY);

bool body_read(struct request *req, uint64_t allowed, struct fields *ret)
{
    struct hf_error err;
    struct member members[PLAIN_MAX];
    bool may_be_plain = req->body.len && !(allowed & ~plain_fields);
    ssize_t n = may_be_plain ? plain_read(req->body.data, req->body.len, members) : -1;
    int r = 0;
    *ret = no_fields;
    for (ssize_t i = 0; r >= 0 && i < n; i++)
        r = take_member(&members[i], allowed, ret, &err);
    if (n < 0 && (r = body_load(req, &err)) >= 0)
        r = body_fields(req, allowed, ret, &err);
    if (r < 0)
        request_fail(req, &err);
    return r >= 0;
}

bool body_require(struct request *req, bool is_there, const char *what)
{
    char detail[80];
    if (is_there)
        return true;
    snprintf(detail, sizeof detail, "the field %s is needed", what);
    request_problem(req, HF_INVALID, detail, NULL);
    return false;
}

/* ---- large bodies --------------------------------------------------------------------------- */

static int take_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    (void)hf;
    return request_of(job)->read(request_of(job), err);
}

static void take_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct request *req = request_back(job);
    (void)answer;
    if (!req)
        return;
    req->job = (struct job){0};
    if (code < 0)
        request_fail(req, err);
    else
        req->go(req);
}

void body_take(struct request *req, body_read_fn *read, handler_fn *go)
{
    struct hf_error err;
    req->read = read;
    req->go = go;
    if (req->body.len > BODY_MAX) {
        req->job.work = take_work;
        request_ask(req, LANE_CHORE, take_done);
    } else if (read(req, &err) < 0)
        request_fail(req, &err);
    else
        go(req);
}
