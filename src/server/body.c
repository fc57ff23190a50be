/* JSON bodies and what else a client sends, read strictly: what is not expected is refused by name. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "plain.h"
#include "server.h"
#include "text.h"

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

/* How deep it nests, without building anything. */
static int depth_of(const char *text, size_t n)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                in_string = false;
        } else if (text[i] == '"')
            in_string = true;
        else if (text[i] == '{' || text[i] == '[')
            deepest = ++depth > deepest ? depth : deepest;
        else if (text[i] == '}' || text[i] == ']')
            depth--;
    }
    return deepest;
}

bool body_parse(struct request *req)
{
    json_error_t problem = {0};
    char detail[300];
    if (depth_of(req->body.data, req->body.len) > DEPTH_MAX) {
        request_problem(req, HF_INVALID, "the body nests deeper than 16 levels", NULL);
        return false;
    }
    if (!req->body.len)
        req->json = json_object();
    else
        req->json = json_loadb(req->body.data, req->body.len, JSON_REJECT_DUPLICATES, &problem);
    if (json_is_object(req->json))
        return true;
    if (req->json)
        snprintf(detail, sizeof detail, "the body must be a JSON object");
    else
        snprintf(detail, sizeof detail, "the body is not JSON: %.150s (line %d, column %d)",
                 problem.text, problem.line, problem.column);
    request_problem(req, HF_INVALID, detail, NULL);
    return false;
}

/* ---- the fields of a lock's routes ---------------------------------------------------------- */

enum field_type { TEXT, DURATION, MILLISECONDS, NUMBER };

static const struct field {
    const char *name;
    unsigned bit;
    enum field_type type;
    size_t offset;
    int64_t min, max; /* of texts: bytes */
    const char *expected;
} fields[] = {
#define AT(member) offsetof(struct fields, member)
    {"token", FIELD_TOKEN, TEXT, AT(token), 0, HF_UUID_LEN, "a UUID in lower case"},
    {"owner", FIELD_OWNER, TEXT, AT(owner), 0, HF_OWNER_MAX, "a text of at most 200 bytes"},
    {"note", FIELD_NOTE, TEXT, AT(note), 0, HF_NOTE_MAX, "a text of at most 400 bytes"},
    {"reason", FIELD_REASON, TEXT, AT(reason), 0, HF_REASON_MAX, "a text of at most 200 bytes"},
    {"ttl", FIELD_TTL, DURATION, AT(ttl_ms), HF_TTL_MIN_MS, HF_TTL_MAX_MS,
     "a duration such as \"30s\" or a number of seconds, from 100ms to 366d"},
    {"ttlMs", FIELD_TTL, MILLISECONDS, AT(ttl_ms), HF_TTL_MIN_MS, HF_TTL_MAX_MS,
     "a whole number of milliseconds from 100 to 31622400000"},
    {"wait", FIELD_WAIT, DURATION, AT(wait_ms), 0, WAIT_MAX_MS,
     "a duration such as \"30s\" or a number of seconds, up to 24h"},
    {"waitMs", FIELD_WAIT, MILLISECONDS, AT(wait_ms), 0, WAIT_MAX_MS,
     "a whole number of milliseconds up to 86400000"},
    {"fence", FIELD_FENCE, NUMBER, AT(fence), 0, (INT64_C(1) << 53) - 1,
     "a whole number below 2^53"},
    {"priority", FIELD_PRIORITY, NUMBER, AT(priority), -1000000, 1000000,
     "a whole number from -1000000 to 1000000"},
#undef AT
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static bool read_text(const struct field *f, const struct member *m, struct fields *ret)
{
    if (m->kind != VALUE_TEXT || hf_check_text(f->name, m->text, (size_t)f->max, NULL) < 0)
        return false;
    if (f->bit == FIELD_TOKEN && !body_is_token(m->text))
        return false;
    *(const char **)((char *)ret + f->offset) = m->text;
    return true;
}

static bool read_duration(const struct member *m, int64_t *ret_ms)
{
    if (m->kind == VALUE_TEXT)
        return hf_parse_duration(m->text, ret_ms, NULL) == 0;
    double s = m->kind == VALUE_WHOLE ? (double)m->whole : m->real;
    *ret_ms = (int64_t)(s * 1000);
    return (m->kind == VALUE_WHOLE || m->kind == VALUE_REAL) && s >= 0 && s < 1e10;
}

static bool read_field(const struct field *f, const struct member *m, struct fields *ret)
{
    int64_t number = m->whole;
    if (f->type == TEXT)
        return read_text(f, m, ret);
    if (f->type == DURATION ? !read_duration(m, &number) : m->kind != VALUE_WHOLE)
        return false;
    if (number < f->min || number > f->max)
        return false;
    *(int64_t *)((char *)ret + f->offset) = number;
    ret->has_priority |= f->bit == FIELD_PRIORITY;
    return true;
}

static const struct field *find_field(const char *name, unsigned allowed)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].bit & allowed && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static void refuse_unknown(struct request *req, const char *name, unsigned allowed)
{
    char detail[400];
    int n = snprintf(detail, sizeof detail, "there is no field '%.60s' here; known are", name);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].bit & allowed)
            n += snprintf(detail + n, sizeof detail - (size_t)n, " %s", fields[i].name);
    request_problem(req, HF_INVALID, detail, NULL);
}

struct reading {
    unsigned allowed, seen;
    struct fields *ret;
};

/* False: answered with a problem. */
static bool take_member(struct request *req, struct reading *r, const struct member *m)
{
    char detail[300];
    const struct field *f = find_field(m->name, r->allowed);
    if (!f) {
        refuse_unknown(req, m->name, r->allowed);
        return false;
    }
    if (m->kind == VALUE_NULL)
        return true;
    if (!read_field(f, m, r->ret))
        snprintf(detail, sizeof detail, "the field %s must be %s", f->name, f->expected);
    else if (r->seen & f->bit)
        snprintf(detail, sizeof detail, "%s is given twice, as a duration and in milliseconds",
                 f->name);
    else {
        r->seen |= f->bit;
        return true;
    }
    request_problem(req, HF_INVALID, detail, NULL);
    return false;
}

static struct member member_of(const char *name, const json_t *value)
{
    return (struct member){.name = name,
                           .kind = json_is_null(value)      ? VALUE_NULL
                                   : json_is_string(value)  ? VALUE_TEXT
                                   : json_is_integer(value) ? VALUE_WHOLE
                                   : json_is_real(value)    ? VALUE_REAL
                                                            : VALUE_OTHER,
                           .text = json_string_value(value),
                           .whole = json_integer_value(value),
                           .real = json_real_value(value)};
}

bool body_read(struct request *req, unsigned allowed, struct fields *ret)
{
    struct member members[PLAIN_MAX];
    struct reading r = {.allowed = allowed, .ret = ret};
    *ret = (struct fields){.ttl_ms = -1, .wait_ms = -1, .fence = -1};
    if (!req->body.len)
        return true;
    ssize_t n = plain_read(req->body.data, req->body.len, members);
    for (ssize_t i = 0; i < n; i++)
        if (!take_member(req, &r, &members[i]))
            return false;
    if (n >= 0)
        return true;
    if (!body_parse(req))
        return false;
    const char *name;
    json_t *value;
    json_object_foreach(req->json, name, value)
    {
        struct member m = member_of(name, value);
        if (!take_member(req, &r, &m))
            return false;
    }
    return true;
}
