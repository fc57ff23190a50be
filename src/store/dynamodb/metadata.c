#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "error.h"
#include "transport.h"

enum { CONTAINER_MS = 5000, INSTANCE_MS = 2000, LINE_MAX_LEN = 8 << 10 };

/* ---- what both answer ----------------------------------------------------------------------- */

static const char *text_of(const json_t *json, const char *key)
{
    return json_string_value(json_object_get(json, key));
}

static int read_keys(const struct hf_dynamo_fetched *answer, const char *url,
                     struct hf_dynamo_keys **ret, struct hf_error *err)
{
    json_t *json =
        answer->body.len ? json_loadb(answer->body.data, answer->body.len, 0, NULL) : NULL;
    struct hf_dynamo_found found = {.id = text_of(json, "AccessKeyId"),
                                    .secret = text_of(json, "SecretAccessKey"),
                                    .session = text_of(json, "Token"),
                                    .expiration = text_of(json, "Expiration"),
                                    .date_ms = answer->date_ms};
    int r = hf_dynamo_keys_make(&found, url, ret, err);
    json_decref(json);
    return r;
}

static int ask_for_keys(struct hf_dynamo *d, const struct hf_dynamo_fetch *q,
                        struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_dynamo_fetched answer;
    int r = hf_dynamo_fetch(d, q, &answer, err);
    if (r < 0)
        return r;
    r = answer.status == 200
            ? read_keys(&answer, q->url, ret, err)
            : hf_fail(err, answer.status >= 500 ? HF_UNAVAILABLE : HF_UNAUTHORIZED,
                      "%s gives no AWS credentials: HTTP %ld", q->url, answer.status);
    hf_dynamo_wipe(&answer.body);
    return r;
}

/* ---- a container's -------------------------------------------------------------------------- */

/* Keys cross no network in the clear: plain HTTP goes to this machine or its host only. */
static bool may_ask(const char *url)
{
    static const char *const near[] = {"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]",
                                       "127.0.0.1",     "localhost",      "[::1]"};
    if (strncasecmp(url, "https://", 8) == 0)
        return true;
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    const char *host = url + 7;
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        if (strlen(near[i]) == n && strncasecmp(host, near[i], n) == 0 &&
            (!host[n] || strchr(":/?#", host[n])) && !strchr(host, '@'))
            return true;
    return false;
}

/* The line of the token, if there is one. */
static int container_token(struct hf_buf *line, struct hf_error *err)
{
    const char *file = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *token = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    bool from_file = file && *file;
    int r = 0;
    if (!from_file && (!token || !*token))
        return 0;
    hf_buf_puts(line, "Authorization: ");
    if (from_file)
        r = hf_dynamo_read_file(file, line, err);
    else
        hf_buf_puts(line, token);
    if (r >= 0 && (line->failed || strpbrk(line->data, "\r\n")))
        r = hf_fail(err, HF_UNAUTHORIZED, "%s: is not one line",
                    from_file ? file : "AWS_CONTAINER_AUTHORIZATION_TOKEN");
    return r;
}

int hf_dynamo_from_container(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    const char *relative = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    struct hf_buf token = HF_BUF(LINE_MAX_LEN);
    char url[1024];
    if (relative && *relative)
        snprintf(url, sizeof url, "http://169.254.170.2%s", relative);
    else if (full && *full)
        snprintf(url, sizeof url, "%s", full);
    else
        return 0;
    if (!may_ask(url))
        return hf_fail(err, HF_UNAUTHORIZED,
                       "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https://, or http:// to this "
                       "machine or its host");
    int r = container_token(&token, err);
    if (r >= 0) {
        struct hf_dynamo_fetch q = {.method = "GET",
                                    .url = url,
                                    .headers = {token.data},
                                    .timeout_ms = CONTAINER_MS,
                                    .direct = true};
        r = ask_for_keys(d, &q, ret, err);
    }
    hf_dynamo_wipe(&token);
    return r;
}

/* ---- an instance's -------------------------------------------------------------------------- */

static bool is_disabled(void)
{
    const char *disabled = getenv("AWS_EC2_METADATA_DISABLED");
    return disabled && strcasecmp(disabled, "true") == 0;
}

static void instance_endpoint(char *ret, size_t size)
{
    const char *given = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    const char *mode = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    if (!given || !*given)
        given = mode && strcasecmp(mode, "IPv6") == 0 ? "http://[fd00:ec2::254]"
                                                      : "http://169.254.169.254";
    snprintf(ret, size, "%s", given);
    for (size_t n = strlen(ret); n && ret[n - 1] == '/'; n--)
        ret[n - 1] = '\0';
}

/* The first line of an answer behind what `out` has already. 0: there is no such thing there. */
static int ask_line(struct hf_dynamo *d, const struct hf_dynamo_fetch *q, struct hf_buf *out,
                    struct hf_error *err)
{
    struct hf_dynamo_fetched answer;
    int r = hf_dynamo_fetch(d, q, &answer, err);
    if (r < 0)
        return r;
    size_t n = answer.body.data ? strcspn(answer.body.data, "\r\n") : 0;
    if (answer.status == 200)
        hf_buf_add(out, answer.body.data ? answer.body.data : "", n);
    else if (answer.status >= 500)
        r = hf_fail(err, HF_UNAVAILABLE, "%s answers HTTP %ld", q->url, answer.status);
    bool found = answer.status == 200 && n && !out->failed;
    hf_dynamo_wipe(&answer.body);
    return r < 0 ? r : found;
}

/* With the session's token: the role's name, then its keys. */
static int ask_instance(struct hf_dynamo *d, const char *base, const char *token,
                        struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_buf url = HF_BUF(2048);
    hf_buf_printf(&url, "%s/latest/meta-data/iam/security-credentials/", base);
    if (url.failed)
        return hf_fail(err, HF_NOMEM, "out of memory");
    struct hf_dynamo_fetch q = {.method = "GET",
                                .url = url.data,
                                .headers = {token},
                                .timeout_ms = INSTANCE_MS,
                                .direct = true};
    struct hf_buf role = HF_BUF(256);
    int r = ask_line(d, &q, &role, err);
    if (r > 0) {
        hf_buf_puts(&url, role.data);
        q.url = url.data;
        r = ask_for_keys(d, &q, ret, err);
    }
    hf_buf_clear(&role);
    hf_buf_clear(&url);
    return r;
}

int hf_dynamo_from_instance(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_buf token = HF_BUF(LINE_MAX_LEN);
    char base[512], url[600];
    if (is_disabled())
        return 0;
    instance_endpoint(base, sizeof base);
    snprintf(url, sizeof url, "%s/latest/api/token", base);
    struct hf_dynamo_fetch q = {.method = "PUT",
                                .url = url,
                                .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"},
                                .body = "",
                                .timeout_ms = INSTANCE_MS,
                                .direct = true};
    hf_buf_puts(&token, "X-aws-ec2-metadata-token: ");
    int r = ask_line(d, &q, &token, err);
    if (r == -HF_UNAVAILABLE)
        r = 0; /* most machines are none of EC2's */
    if (r > 0)
        r = ask_instance(d, base, token.data, ret, err);
    hf_dynamo_wipe(&token);
    return r;
}
