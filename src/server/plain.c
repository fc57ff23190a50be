#include "plain.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "text.h"

enum { DIGITS_MAX = 15 };

struct reader {
    char *at, *end;
    char *ends[2 * PLAIN_MAX]; /* of the strings: where their NULs will be */
    size_t n_ends;
};

static void skip_blanks(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool take(struct reader *r, char wanted)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != wanted)
        return false;
    r->at++;
    return true;
}

static bool take_text(struct reader *r, const char **ret)
{
    if (!take(r, '"'))
        return false;
    *ret = r->at;
    while (r->at < r->end && *r->at != '"') {
        if ((unsigned char)*r->at < ' ' || *r->at == '\\')
            return false;
        r->at++;
    }
    if (r->at == r->end)
        return false;
    r->ends[r->n_ends++] = r->at++;
    return true;
}

static bool take_whole(struct reader *r, int64_t *ret)
{
    bool negative = *r->at == '-';
    const char *digits = r->at += negative;
    *ret = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && r->at - digits < DIGITS_MAX)
        *ret = *ret * 10 + (*r->at++ - '0');
    if (r->at == digits || r->at == r->end || (digits[0] == '0' && r->at > digits + 1))
        return false;
    if (negative)
        *ret = -*ret;
    return strchr(" \t\r\n,}", *r->at) && *r->at;
}

static bool take_value(struct reader *r, struct member *m)
{
    static const char null[] = "null";
    skip_blanks(r);
    if (r->at == r->end)
        return false;
    if (*r->at == '"') {
        m->kind = VALUE_TEXT;
        return take_text(r, &m->text);
    }
    if ((size_t)(r->end - r->at) > sizeof null - 1 && memcmp(r->at, null, sizeof null - 1) == 0) {
        m->kind = VALUE_NULL;
        r->at += sizeof null - 1;
        return true;
    }
    m->kind = VALUE_WHOLE;
    return take_whole(r, &m->whole);
}

/* Both names end with a quote still. */
static bool same_name(const char *a, const char *b)
{
    while (*a == *b && *a != '"')
        a++, b++;
    return *a == *b;
}

static bool take_member(struct reader *r, struct member *members, size_t n)
{
    struct member *m = &members[n];
    *m = (struct member){0};
    if (!take_text(r, &m->name) || !take(r, ':') || !take_value(r, m))
        return false;
    for (size_t i = 0; i < n; i++)
        if (same_name(members[i].name, m->name))
            return false;
    return true;
}

ssize_t plain_read(char *text, size_t n, struct member ret[PLAIN_MAX])
{
    struct reader r = {.at = text, .end = text + n};
    size_t members = 0;
    if (!take(&r, '{'))
        return -1;
    if (!take(&r, '}'))
        do
            if (members == PLAIN_MAX || !take_member(&r, ret, members++))
                return -1;
        while (take(&r, ','));
    if (members && !take(&r, '}'))
        return -1;
    skip_blanks(&r);
    if (r.at != r.end || !hf_is_utf8(text, n))
        return -1;
    for (size_t i = 0; i < r.n_ends; i++)
        *r.ends[i] = '\0';
    return (ssize_t)members;
}
