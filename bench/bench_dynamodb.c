/* The DynamoDB store beside the two bare requests of the seed, and beside npm's dynamodb-lock-client. */
#include <curl/curl.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { ROUNDS = 30, NODE_ROUNDS = 5 };
static const int64_t slice_ns = 300000000, node_slice_ns = 2000000000, warm_up_ns = 10000000000;

/* ---- bare: a signed PutItem and DeleteItem on one connection ----------------------------------- */

struct bare {
    CURL *curl;
    struct curl_slist *put, *delete;
};

static size_t ignore(char *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

static struct curl_slist *headers_of(const char *action)
{
    char target[80];
    snprintf(target, sizeof target, "X-Amz-Target: DynamoDB_20120810.%s", action);
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/x-amz-json-1.0");
    return curl_slist_append(list, target);
}

static void *open_bare(const char *endpoint)
{
    struct bare *b = calloc(1, sizeof *b);
    if (!b || !(b->curl = curl_easy_init()))
        errx(1, "no libcurl");
    b->put = headers_of("PutItem");
    b->delete = headers_of("DeleteItem");
    curl_easy_setopt(b->curl, CURLOPT_URL, endpoint);
    curl_easy_setopt(b->curl, CURLOPT_AWS_SIGV4, "aws:amz:eu-west-1:dynamodb");
    curl_easy_setopt(b->curl, CURLOPT_USERPWD, "a:b");
    curl_easy_setopt(b->curl, CURLOPT_WRITEFUNCTION, ignore);
    curl_easy_setopt(b->curl, CURLOPT_TCP_NODELAY, 1L);
    return b;
}

static void ask(struct bare *b, struct curl_slist *headers, const char *body)
{
    long status = 0;
    curl_easy_setopt(b->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(b->curl, CURLOPT_POSTFIELDS, body);
    if (curl_easy_perform(b->curl) != CURLE_OK ||
        curl_easy_getinfo(b->curl, CURLINFO_RESPONSE_CODE, &status) != CURLE_OK || status != 200)
        errx(1, "DynamoDB answers %ld to the bare request", status);
}

static void take_bare(void *state, const char *name)
{
    char body[900];
    snprintf(
        body, sizeof body,
        "{\"TableName\":\"bare\",\"Item\":{\"PK\":{\"S\":\"LOCK#%s\"},\"SK\":{\"S\":\"LOCK\"},"
        "\"LockID\":{\"S\":\"0b9cbb7e-7d1c-4d1f-8f7b-2f8f5a3f0a11\"},\"Owner\":{\"S\":\"bench\"},"
        "\"AcquiredAt\":{\"S\":\"2026-11-16T07:00:00Z\"},\"ExpiresAt\":{\"S\":"
        "\"2026-11-16T07:01:00Z\"},\"TTL\":{\"N\":\"1794812460\"}},\"ConditionExpression\":"
        "\"attribute_not_exists(PK) OR ExpiresAt < :now\",\"ExpressionAttributeValues\":"
        "{\":now\":{\"S\":\"2026-11-16T07:00:00Z\"}}}",
        name);
    struct bare *b = state;
    ask(b, b->put, body);
}

static void give_bare(void *state, const char *name)
{
    char body[600];
    snprintf(
        body, sizeof body,
        "{\"TableName\":\"bare\",\"Key\":{\"PK\":{\"S\":\"LOCK#%s\"},\"SK\":{\"S\":\"LOCK\"}},"
        "\"ConditionExpression\":\"LockID = :id AND #o = :owner\",\"ExpressionAttributeNames\":"
        "{\"#o\":\"Owner\"},\"ExpressionAttributeValues\":{\":id\":{\"S\":"
        "\"0b9cbb7e-7d1c-4d1f-8f7b-2f8f5a3f0a11\"},\":owner\":{\"S\":\"bench\"}}}",
        name);
    struct bare *b = state;
    ask(b, b->delete, body);
}

static void close_bare(void *state)
{
    struct bare *b = state;
    curl_easy_cleanup(b->curl);
    curl_slist_free_all(b->put);
    curl_slist_free_all(b->delete);
    free(b);
}

static const struct subject bare_dynamodb = {open_bare, take_bare, give_bare, close_bare};

/* ---- npm's client measures itself ---------------------------------------------------------------- */

struct node {
    const char *script, *endpoint;
};

static double node_slice(void *arg, int64_t for_ns)
{
    const struct node *n = arg;
    char *command;
    double per_second = 0;
    if (asprintf(&command, "node '%s' '%s' %lld", n->script, n->endpoint,
                 (long long)for_ns / 1000000) < 0)
        err(1, "asprintf");
    FILE *f = popen(command, "re");
    if (!f || fscanf(f, "%lf", &per_second) != 1 || pclose(f) != 0)
        errx(1, "%s: did not print pairs/s", command);
    free(command);
    return per_second;
}

/* Beside the one for files. */
static char *find_script(const struct bench_env *env)
{
    char *path;
    if (asprintf(&path, "%s/dynamodb-lock-client.js", env->node) < 0)
        err(1, "asprintf");
    return path;
}

/* ---- the server ---------------------------------------------------------------------------------- */

static char *start_server(const struct bench_env *env)
{
    char *command, line[200] = "";
    if (asprintf(&command, "exec '%s' '%s'", env->dynamodb, env->holdfast) < 0)
        err(1, "asprintf");
    FILE *f = popen(command, "re"); /* it ends with us */
    if (!f || !fgets(line, sizeof line, f))
        errx(1, "%s: no emulator of DynamoDB", env->dynamodb);
    free(command);
    line[strcspn(line, "\n")] = '\0';
    return strdup(line);
}

void bench_dynamodb(const struct bench_env *env)
{
    char *endpoint = start_server(env), *url;
    if (!endpoint || asprintf(&url, "dynamodb://eu-west-1/ours?endpoint=%s", endpoint) < 0)
        err(1, "asprintf");
    setenv("AWS_ACCESS_KEY_ID", "a", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "b", 1);
    struct opened our = {&ours, ours.open(url), "x"};
    struct opened bare = {&bare_dynamodb, bare_dynamodb.open(endpoint), "x"};
    opened_slice(&our, warm_up_ns); /* Java compiles what is used often */
    opened_slice(&bare, warm_up_ns);
    struct contestant all[] = {{opened_slice, &our, {0}}, {opened_slice, &bare, {0}}};
    bench_contest(all, 2, bench_amount(env, ROUNDS), slice_ns);
    report_pairs("pairs/s, dynamodb: vs bare PutItem + DeleteItem", &all[0], &all[1], 0.9);
    if (!env->node)
        return;
    struct node node = {find_script(env), endpoint};
    struct contestant with_node[] = {{opened_slice, &our, {0}}, {node_slice, &node, {0}}};
    bench_contest(with_node, 2, bench_amount(env, NODE_ROUNDS), node_slice_ns);
    report_pairs("pairs/s, dynamodb: vs npm dynamodb-lock-client", &with_node[0], &with_node[1], 3);
}
