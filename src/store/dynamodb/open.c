#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "transport.h"

static bool consists_of(const char *text, size_t n, const char *extra)
{
    for (size_t i = 0; i < n; i++)
        if (!(text[i] >= 'a' && text[i] <= 'z') && !(text[i] >= '0' && text[i] <= '9') &&
            !strchr(extra, text[i]))
            return false;
    return true;
}

/* "//REGION/TABLE" */
static int take_names(struct hf_dynamo *d, const struct hf_url *url, struct hf_error *err)
{
    const char *region = strncmp(url->path, "//", 2) == 0 ? url->path + 2 : "";
    size_t n = strcspn(region, "/");
    const char *table = region[n] ? region + n + 1 : "";
    size_t m = strlen(table);
    if (!n || !m)
        return hf_fail(err, HF_INVALID,
                       "dynamodb: needs a region and a table, e.g. dynamodb://eu-west-1/locks");
    if (n >= sizeof d->region || !consists_of(region, n, "-"))
        return hf_fail(err, HF_INVALID, "'%.*s' is not a region; expected e.g. eu-west-1",
                       n > 60 ? 60 : (int)n, region);
    if (m < 3 || m >= sizeof d->table || !consists_of(table, m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_.-"))
        return hf_fail(err, HF_INVALID,
                       "'%.60s' is not a table's name; expected 3 to 255 letters, digits, '_', '-' "
                       "and '.'",
                       table);
    memcpy(d->region, region, n);
    memcpy(d->table, table, m);
    return 0;
}

/* As the SDKs have it, but a URL's own word comes first. */
static int take_endpoint(struct hf_dynamo *d, const struct hf_url *url, struct hf_error *err)
{
    const char *given = hf_url_param(url, "endpoint");
    if (!given || !*given)
        given = getenv("AWS_ENDPOINT_URL_DYNAMODB");
    if (!given || !*given)
        given = getenv("AWS_ENDPOINT_URL");
    if (!given || !*given) {
        snprintf(d->endpoint, sizeof d->endpoint, "https://dynamodb.%s.amazonaws.com%s", d->region,
                 strncmp(d->region, "cn-", 3) == 0 ? ".cn" : "");
        return 0;
    }
    size_t n = strlen(given);
    while (n && given[n - 1] == '/')
        n--;
    if ((strncmp(given, "http://", 7) != 0 && strncmp(given, "https://", 8) != 0) ||
        strchr(given, '@') || n >= sizeof d->endpoint)
        return hf_fail(
            err, HF_INVALID,
            "an endpoint of DynamoDB is http://HOST:PORT or https://HOST[:PORT], without "
            "a user or password");
    snprintf(d->endpoint, sizeof d->endpoint, "%.*s", (int)n, given);
    return 0;
}

void hf_dynamo_close(struct hf_dynamo *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n_idle; i++)
        d->curl->easy_cleanup(d->idle[i]);
    hf_dynamo_credentials_clear(&d->credentials);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

int hf_dynamo_open(const struct hf_url *url, struct hf_dynamo **ret, struct hf_error *err)
{
    struct hf_dynamo *d = calloc(1, sizeof *d);
    int r;
    if (!d)
        return hf_fail(err, HF_NOMEM, "out of memory");
    pthread_mutex_init(&d->mutex, NULL);
    hf_dynamo_credentials_init(&d->credentials);
    if ((r = take_names(d, url, err)) < 0 || (r = take_endpoint(d, url, err)) < 0 ||
        (r = hf_curl_load(&d->curl, err)) < 0) {
        hf_dynamo_close(d);
        return r;
    }
    snprintf(d->signing, sizeof d->signing, "aws:amz:%s:dynamodb", d->region);
    *ret = d;
    return 0;
}

const char *hf_dynamo_table(const struct hf_dynamo *d) { return d->table; }

const char *hf_dynamo_endpoint(const struct hf_dynamo *d) { return d->endpoint; }
