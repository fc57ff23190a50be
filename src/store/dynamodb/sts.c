#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "transport.h"

enum { ASK_MS = 5000, TOKEN_MAX = 64 << 10, VALUE_MAX = 16 << 10 };

/* ---- the question --------------------------------------------------------------------------- */

static void endpoint(const struct hf_dynamo *d, char *ret, size_t size)
{
    const char *given = getenv("AWS_ENDPOINT_URL_STS");
    if (!given || !*given)
        given = getenv("AWS_ENDPOINT_URL");
    if (given && *given)
        snprintf(ret, size, "%s", given);
    else
        snprintf(ret, size, "https://sts.%s.amazonaws.com%s", d->region,
                 strncmp(d->region, "cn-", 3) == 0 ? ".cn" : "");
}

static void add_field(struct hf_buf *out, const char *name, const char *value)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~";
    hf_buf_printf(out, "&%s=", name);
    for (; *value; value++)
        if (strchr(plain, *value))
            hf_buf_putc(out, *value);
        else
            hf_buf_printf(out, "%%%02X", (unsigned char)*value);
}

static int write_question(const struct hf_dynamo_role *role, struct hf_buf *out,
                          struct hf_error *err)
{
    struct hf_buf token = HF_BUF(TOKEN_MAX);
    char name[64];
    int r = hf_dynamo_read_file(role->token_file, &token, err);
    if (r >= 0 && !token.len)
        r = hf_fail(err, HF_UNAUTHORIZED, "%s: there is no token in it", role->token_file);
    if (r >= 0) {
        snprintf(name, sizeof name, "holdfast-%ld", (long)getpid());
        hf_buf_puts(out, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15");
        add_field(out, "RoleArn", role->arn);
        add_field(out, "RoleSessionName", role->session_name ? role->session_name : name);
        add_field(out, "WebIdentityToken", token.data);
        if (out->failed)
            r = hf_fail(err, HF_UNAUTHORIZED, "%s: too long for a token", role->token_file);
    }
    hf_dynamo_wipe(&token);
    return r;
}

/* ---- the answer ----------------------------------------------------------------------------- */

/* What stands between <tag> and </tag>; keys have nothing in them that XML would have to escape. */
static const char *element(const char *xml, const char *tag, char *ret, size_t size)
{
    char open[64], close[64];
    snprintf(open, sizeof open, "<%s>", tag);
    snprintf(close, sizeof close, "</%s>", tag);
    const char *from = strstr(xml, open), *to = from ? strstr(from, close) : NULL;
    ret[0] = '\0';
    if (!to)
        return ret;
    from += strlen(open);
    while (from < to && strchr(" \t\r\n", *from))
        from++;
    while (from < to && strchr(" \t\r\n", to[-1]))
        to--;
    if ((size_t)(to - from) < size) {
        memcpy(ret, from, (size_t)(to - from));
        ret[to - from] = '\0';
    }
    return ret;
}

static int read_keys(const struct hf_dynamo_fetched *answer, const char *url,
                     struct hf_dynamo_keys **ret, struct hf_error *err)
{
    const char *xml = answer->body.data ? answer->body.data : "";
    char id[256], secret[256], expiration[64], *session = malloc(VALUE_MAX);
    if (!session)
        return hf_fail(err, HF_NOMEM, "out of memory");
    struct hf_dynamo_found found = {
        .id = element(xml, "AccessKeyId", id, sizeof id),
        .secret = element(xml, "SecretAccessKey", secret, sizeof secret),
        .session = element(xml, "SessionToken", session, VALUE_MAX),
        .expiration = element(xml, "Expiration", expiration, sizeof expiration),
        .date_ms = answer->date_ms,
    };
    int r = hf_dynamo_keys_make(&found, url, ret, err);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(session, VALUE_MAX);
    free(session);
    return r;
}

/* Only the error's name: its text may repeat the token. */
static int refused(const struct hf_dynamo_fetched *answer, const struct hf_dynamo_role *role,
                   const char *url, struct hf_error *err)
{
    char code[80];
    element(answer->body.data ? answer->body.data : "", "Code", code, sizeof code);
    return hf_fail(err, answer->status >= 500 ? HF_UNAVAILABLE : HF_UNAUTHORIZED,
                   "%s does not let the web identity in %s be %s: HTTP %ld %s", url,
                   role->token_file, role->arn, answer->status, code);
}

int hf_dynamo_assume(struct hf_dynamo *d, const struct hf_dynamo_role *role,
                     struct hf_dynamo_keys **ret, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(4 * TOKEN_MAX);
    struct hf_dynamo_fetched answer;
    char url[1024];
    endpoint(d, url, sizeof url);
    int r = write_question(role, &body, err);
    if (r >= 0) {
        struct hf_dynamo_fetch q = {.method = "POST",
                                    .url = url,
                                    .body = body.data,
                                    .timeout_ms = ASK_MS,
                                    .direct = strncmp(url, "https:", 6) != 0};
        r = hf_dynamo_fetch(d, &q, &answer, err);
    }
    hf_dynamo_wipe(&body);
    if (r < 0)
        return r;
    r = answer.status == 200 ? read_keys(&answer, url, ret, err) : refused(&answer, role, url, err);
    hf_dynamo_wipe(&answer.body);
    return r;
}

int hf_dynamo_from_web_identity(struct hf_dynamo *d, struct hf_dynamo_keys **ret,
                                struct hf_error *err)
{
    struct hf_dynamo_role role = {.arn = getenv("AWS_ROLE_ARN"),
                                  .token_file = getenv("AWS_WEB_IDENTITY_TOKEN_FILE"),
                                  .session_name = getenv("AWS_ROLE_SESSION_NAME")};
    if (!role.token_file || !*role.token_file)
        return 0;
    if (!role.arn || !*role.arn)
        return hf_fail(err, HF_UNAUTHORIZED,
                       "AWS_WEB_IDENTITY_TOKEN_FILE is set, but not AWS_ROLE_ARN: whose keys?");
    if (role.session_name && !*role.session_name)
        role.session_name = NULL;
    return hf_dynamo_assume(d, &role, ret, err);
}
