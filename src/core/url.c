#include "url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "text.h"

/* ---- the default ---------------------------------------------------------------------------- */

/* The state directory's database; as root the machine's own. */
static int default_url(char *ret, size_t size, struct hf_error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (geteuid() == 0)
        n = snprintf(ret, size, "sqlite:/var/lib/holdfast/holdfast.db");
    else if (state && *state == '/')
        n = snprintf(ret, size, "sqlite:%s/holdfast/holdfast.db", state);
    else if (home && *home == '/')
        n = snprintf(ret, size, "sqlite:%s/.local/state/holdfast/holdfast.db", home);
    else
        return hf_fail(err, HF_INVALID,
                       "no store: neither HOME nor XDG_STATE_HOME is set; use --store or "
                       "HOLDFAST_STORE");
    return n < (int)size ? 0 : hf_fail(err, HF_INVALID, "the default store's path is too long");
}

/* ---- parts ---------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decode [from, end) into `to`; a NUL byte, a bad escape or too little room is an error. */
static int decode(const char *from, const char *end, char *to, size_t size, struct hf_error *err)
{
    size_t used = 0;
    while (from < end) {
        char c = *from++;
        if (c == '%') {
            int high = end - from >= 2 ? hex_value(from[0]) : -1;
            int low = high >= 0 ? hex_value(from[1]) : -1;
            if (low < 0 || (high == 0 && low == 0))
                return hf_fail(err, HF_INVALID,
                               "the store's URL has a '%%' that is not followed by two hex digits "
                               "(write %%25 for a percent sign)");
            c = (char)(high << 4 | low);
            from += 2;
        }
        if (used + 1 >= size)
            return hf_fail(err, HF_INVALID, "the store's URL is too long");
        to[used++] = c;
    }
    to[used] = '\0';
    return 0;
}

static int parse_params(const char *query, struct hf_url *url, struct hf_error *err)
{
    while (*query) {
        const char *end = query + strcspn(query, "&");
        const char *equals = memchr(query, '=', (size_t)(end - query));
        if (!equals || equals == query)
            return hf_fail(err, HF_INVALID,
                           "the store's URL has a '?' that key=value does not follow");
        if (url->n_params == HF_URL_PARAMS_MAX)
            return hf_fail(err, HF_INVALID, "the store's URL has too many parameters");
        int r =
            decode(query, equals, url->params[url->n_params].key, sizeof url->params[0].key, err);
        if (r >= 0)
            r = decode(equals + 1, end, url->params[url->n_params].value,
                       sizeof url->params[0].value, err);
        if (r < 0)
            return r;
        url->n_params++;
        query = *end ? end + 1 : end;
    }
    return 0;
}

/* The value of every parameter whose name ends so becomes ***. */
static void redact_param(const char *key, char *shown, size_t size)
{
    char rest[HF_URL_MAX];
    for (char *at = shown; (at = strstr(at, key));) {
        at += strlen(key);
        snprintf(rest, sizeof rest, "%s", at + strcspn(at, "& "));
        snprintf(at, size - (size_t)(at - shown), "***%s", rest);
    }
}

/* scheme://user:PASSWORD@host becomes scheme://user:***@host; rather too much than too little. */
static void redact(const char *whole, char *shown, size_t size)
{
    const char *authority = strstr(whole, "://");
    const char *start = authority ? authority + 3 : NULL;
    const char *end = start ? start + strcspn(start, "?") : NULL;
    const char *at = start ? memrchr(start, '@', (size_t)(end - start)) : NULL;
    const char *colon = at ? memchr(start, ':', (size_t)(at - start)) : NULL;
    if (colon)
        snprintf(shown, size, "%.*s***%s", (int)(colon + 1 - whole), whole, at);
    else
        snprintf(shown, size, "%s", whole);
    redact_param("password=", shown, size);
    redact_param("listen=", shown, size); /* another URL, which may have one inside */
}

int hf_url_parse(const char *text, struct hf_url *ret, struct hf_error *err)
{
    struct hf_url url = {0};
    char fallback[HF_URL_MAX];
    if (!text)
        text = getenv("HOLDFAST_STORE");
    if (!text || !*text || strcmp(text, "sqlite:") == 0) {
        int r = default_url(fallback, sizeof fallback, err);
        if (r < 0)
            return r;
        text = fallback;
    }
    size_t scheme = strcspn(text, ":");
    if (strlen(text) >= sizeof url.whole)
        return hf_fail(err, HF_INVALID, "the store's URL is too long");
    if (!text[scheme] || scheme == 0 || scheme >= sizeof url.scheme)
        return hf_fail(err, HF_INVALID,
                       "'%.60s' is not a store; expected SCHEME:..., as in sqlite:PATH or file:DIR",
                       text);
    strcpy(url.whole, text);
    redact(text, url.shown, sizeof url.shown);
    memcpy(url.scheme, text, scheme);
    const char *rest = text + scheme + 1, *query = strchr(rest, '?');
    int r = decode(rest, query ? query : rest + strlen(rest), url.path, sizeof url.path, err);
    if (r >= 0 && query)
        r = parse_params(query + 1, &url, err);
    if (r < 0)
        return r;
    *ret = url;
    return 0;
}

const char *hf_url_param(const struct hf_url *url, const char *key)
{
    for (size_t i = 0; i < url->n_params; i++)
        if (strcmp(url->params[i].key, key) == 0)
            return url->params[i].value;
    return NULL;
}

int hf_url_check_params(const struct hf_url *url, const char *const *known, struct hf_error *err)
{
    for (size_t i = 0; i < url->n_params; i++) {
        size_t k = 0;
        while (known[k] && strcmp(known[k], url->params[i].key) != 0)
            k++;
        if (!known[k])
            return hf_fail(err, HF_INVALID, "the %s store knows no parameter '%s'", url->scheme,
                           url->params[i].key);
    }
    return 0;
}
