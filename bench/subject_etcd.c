/*
 * What a lock costs on etcd without us, through the same gateway: the two Txns that it needs at least,
 * the lock service that etcd brings along, and a watch with a Txn.
 */
#include <curl/curl.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { ANSWER_MAX = 4096, KEY_MAX = 400 };

struct peer {
    CURL *easy, *watch;
    struct curl_slist *headers;
    char origin[64];
    long long lease;
    char answer[ANSWER_MAX];
    size_t n;
    char key[KEY_MAX]; /* base64, of what is held; the lock service names it */
};

/* ---- talking to it --------------------------------------------------------------------------- */

static size_t keep(char *bytes, size_t size, size_t n, void *arg)
{
    struct peer *p = arg;
    size_t room = sizeof p->answer - 1 - p->n, add = size * n < room ? size * n : room;
    memcpy(p->answer + p->n, bytes, add);
    p->n += add;
    p->answer[p->n] = '\0';
    return size * n;
}

static void post(struct peer *p, CURL *easy, const char *path, const char *body)
{
    char url[128];
    snprintf(url, sizeof url, "%s%s", p->origin, path);
    p->n = 0;
    p->answer[0] = '\0';
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, p->headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, p);
}

static void ask(struct peer *p, const char *path, const char *body)
{
    post(p, p->easy, path, body);
    curl_easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, keep);
    CURLcode code = curl_easy_perform(p->easy);
    if (code != CURLE_OK)
        errx(1, "%s%s: %s", p->origin, path, curl_easy_strerror(code));
}

/* The value of a field, a string. */
static void take_field(const char *answer, const char *field, char ret[KEY_MAX])
{
    const char *at = strstr(answer, field);
    if (!at || sscanf(at + strlen(field), "\":\"%399[^\"]", ret) != 1)
        errx(1, "etcd answers %s", answer);
}

static void *open_etcd(const char *url)
{
    struct peer *p = calloc(1, sizeof *p);
    char id[KEY_MAX];
    if (!p)
        err(1, "calloc");
    snprintf(p->origin, sizeof p->origin, "http%s", strchr(url, ':'));
    p->origin[strcspn(p->origin + 8, "/") + 8] = '\0';
    p->easy = curl_easy_init();
    p->watch = curl_easy_init();
    p->headers = curl_slist_append(NULL, "Content-Type: application/json");
    ask(p, "/v3/lease/grant", "{\"TTL\":\"600\"}");
    take_field(p->answer, "\"ID", id);
    p->lease = strtoll(id, NULL, 10);
    return p;
}

static void close_etcd(void *state)
{
    struct peer *p = state;
    curl_easy_cleanup(p->easy);
    curl_easy_cleanup(p->watch);
    curl_slist_free_all(p->headers);
    free(p);
}

static void encode(const char *text, char ret[KEY_MAX])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(text), at = 0;
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)(unsigned char)text[i] << 16;
        v |= i + 1 < n ? (unsigned)(unsigned char)text[i + 1] << 8 : 0;
        v |= i + 2 < n ? (unsigned)(unsigned char)text[i + 2] : 0;
        ret[at++] = digits[v >> 18];
        ret[at++] = digits[v >> 12 & 63];
        ret[at++] = i + 1 < n ? digits[v >> 6 & 63] : '=';
        ret[at++] = i + 2 < n ? digits[v & 63] : '=';
    }
    ret[at] = '\0';
}

/* ---- bare: the two Txns that a lock needs ---------------------------------------------------- */

static bool try_bare(struct peer *p, const char *name)
{
    char body[2 * KEY_MAX + 400];
    encode(name, p->key);
    snprintf(body, sizeof body,
             "{\"compare\":[{\"target\":\"CREATE\",\"key\":\"%s\",\"create_revision\":\"0\"}],"
             "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"dG9rZW4=\",\"lease\":\"%"
             "lld\"}}]}",
             p->key, p->key, p->lease);
    ask(p, "/v3/kv/txn", body);
    return strstr(p->answer, "\"succeeded\":true");
}

static void take_bare(void *state, const char *name)
{
    if (!try_bare(state, name))
        errx(1, "bare etcd: %s is held", name);
}

static void give_bare(void *state, const char *name)
{
    struct peer *p = state;
    char body[2 * KEY_MAX + 300];
    (void)name;
    snprintf(body, sizeof body,
             "{\"compare\":[{\"target\":\"VALUE\",\"key\":\"%s\",\"value\":\"dG9rZW4=\"}],"
             "\"success\":[{\"request_delete_range\":{\"key\":\"%s\"}}]}",
             p->key, p->key);
    ask(p, "/v3/kv/txn", body);
    if (!strstr(p->answer, "\"succeeded\":true"))
        errx(1, "bare etcd: %s was not held", name);
}

const struct subject bare_etcd = {open_etcd, take_bare, give_bare, close_etcd};

/* ---- a watch with a Txn ---------------------------------------------------------------------- */

/* Enough: it was deleted. */
static size_t hear(char *bytes, size_t size, size_t n, void *arg)
{
    keep(bytes, size, n, arg);
    return strstr(((struct peer *)arg)->answer, "\"DELETE\"") ? 0 : size * n;
}

static void take_watching(void *state, const char *name)
{
    struct peer *p = state;
    char body[KEY_MAX + 300], revision[KEY_MAX];
    while (!try_bare(p, name)) {
        take_field(p->answer, "\"revision", revision);
        snprintf(body, sizeof body,
                 "{\"create_request\":{\"key\":\"%s\",\"filters\":[\"NOPUT\"],\"start_revision\":"
                 "\"%lld\"}}",
                 p->key, strtoll(revision, NULL, 10) + 1);
        post(p, p->watch, "/v3/watch", body);
        curl_easy_setopt(p->watch, CURLOPT_WRITEFUNCTION, hear);
        curl_easy_perform(p->watch);
    }
}

const struct subject watch_etcd = {open_etcd, take_watching, give_bare, close_etcd};

/* ---- etcd's own lock service ----------------------------------------------------------------- */

static void take_service(void *state, const char *name)
{
    struct peer *p = state;
    char body[KEY_MAX + 100], text[KEY_MAX];
    encode(name, text);
    snprintf(body, sizeof body, "{\"name\":\"%s\",\"lease\":\"%lld\"}", text, p->lease);
    ask(p, "/v3/lock/lock", body);
    take_field(p->answer, "\"key", p->key);
}

static void give_service(void *state, const char *name)
{
    struct peer *p = state;
    char body[KEY_MAX + 100];
    (void)name;
    snprintf(body, sizeof body, "{\"key\":\"%s\"}", p->key);
    ask(p, "/v3/lock/unlock", body);
}

const struct subject service_etcd = {open_etcd, take_service, give_service, close_etcd};
