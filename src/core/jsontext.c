#include "jsontext.h"

#include <ctype.h>
#include <string.h>

#include "text.h"

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && is_space(*at))
        at++;
    return at;
}

/* ---- scalars -------------------------------------------------------------------------------- */

/* Behind a backslash. */
static const char *skip_escape(const char *at, const char *end)
{
    if (at == end || !strchr("\"\\/bfnrtu", *at) || !*at)
        return NULL;
    if (*at++ != 'u')
        return at;
    for (int i = 0; i < 4; i++)
        if (at == end || !isxdigit((unsigned char)*at++))
            return NULL;
    return at;
}

static const char *skip_string(const char *at, const char *end)
{
    for (at++; at && at < end;) {
        if (*at == '"')
            return at + 1;
        if ((unsigned char)*at < 0x20)
            return NULL;
        at = *at == '\\' ? skip_escape(at + 1, end) : at + 1;
    }
    return NULL;
}

static const char *skip_digits(const char *at, const char *end)
{
    const char *from = at;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at > from ? at : NULL;
}

static const char *skip_number(const char *at, const char *end)
{
    at += *at == '-';
    at = at < end && *at == '0' ? at + 1 : skip_digits(at, end);
    if (at && at < end && *at == '.')
        at = skip_digits(at + 1, end);
    if (at && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '+' || *at == '-');
        at = skip_digits(at, end);
    }
    return at;
}

static const char *skip_word(const char *at, const char *end)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(end - at) >= n && memcmp(at, words[i], n) == 0)
            return at + n;
    }
    return NULL;
}

/* ---- objects and arrays --------------------------------------------------------------------- */

/* "name": as it is written, and the value's place behind it. */
static const char *skip_name(const char *at, const char *end)
{
    at = at < end && *at == '"' ? skip_string(at, end) : NULL;
    at = at ? skip_space(at, end) : NULL;
    return at && at < end && *at == ':' ? skip_space(at + 1, end) : NULL;
}

static const char *skip_items(const char *at, const char *end, int depth, char closing)
{
    at = skip_space(at + 1, end);
    if (at < end && *at == closing)
        return at + 1;
    while (at && at < end) {
        if (closing == '}')
            at = skip_name(at, end);
        at = at ? hf_json_skip(at, end, depth) : NULL;
        at = at ? skip_space(at, end) : NULL;
        if (!at || at == end)
            return NULL;
        if (*at == closing)
            return at + 1;
        at = *at == ',' ? skip_space(at + 1, end) : NULL;
    }
    return NULL;
}

const char *hf_json_skip(const char *at, const char *end, int depth)
{
    if (at == end)
        return NULL;
    switch (*at) {
    case '{':
    case '[':
        return depth > 0 ? skip_items(at, end, depth - 1, *at == '{' ? '}' : ']') : NULL;
    case '"':
        return skip_string(at, end);
    case '-':
    case '0' ... '9':
        return skip_number(at, end);
    default:
        return skip_word(at, end);
    }
}

/* ---- what is asked -------------------------------------------------------------------------- */

int hf_json_member(const char *text, size_t n, const char *name, int depth, const char **ret,
                   size_t *ret_n)
{
    const char *end = text + n, *at = n ? skip_space(text, end) : end;
    size_t n_name = strlen(name);
    if (at == end || *at != '{')
        return 0;
    for (at = skip_space(at + 1, end); at < end && *at == '"';) {
        bool found = (size_t)(end - at) > n_name + 2 && memcmp(at + 1, name, n_name) == 0 &&
                     at[n_name + 1] == '"';
        const char *value = skip_name(at, end);
        at = value ? hf_json_skip(value, end, depth) : NULL;
        if (found && (!at || !hf_is_utf8(value, (size_t)(at - value))))
            return -1;
        if (found) {
            *ret = value;
            *ret_n = (size_t)(at - value);
            return 1;
        }
        at = at ? skip_space(at, end) : NULL;
        if (!at || at == end || *at != ',')
            return 0;
        at = skip_space(at + 1, end);
    }
    return 0;
}

void hf_json_compact(struct hf_buf *out, const char *text, size_t n)
{
    const char *end = text + n;
    while (text < end) {
        const char *from = text = skip_space(text, end);
        while (text < end && !is_space(*text))
            text = *text == '"' ? skip_string(text, end) : text + 1;
        hf_buf_add(out, from, (size_t)(text - from));
    }
}
