#include <string.h>

#include "error.h"
#include "http_store.h"

enum { CONNECT_MS = 5000, TOTAL_MS = 20000 };

void hf_http_escape(struct hf_buf *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~";
    for (; *text; text++)
        if (strchr(plain, *text))
            hf_buf_putc(out, *text);
        else
            hf_buf_printf(out, "%%%02X", (unsigned char)*text);
}

/* ---- connections ---------------------------------------------------------------------------- */

static CURL *take_handle(struct hf_http *h)
{
    pthread_mutex_lock(&h->mutex);
    CURL *easy = h->n_idle ? h->idle[--h->n_idle] : NULL;
    pthread_mutex_unlock(&h->mutex);
    return easy ? easy : h->curl->easy_init();
}

static void give_handle(struct hf_http *h, CURL *easy)
{
    pthread_mutex_lock(&h->mutex);
    bool kept = h->n_idle < HF_HTTP_IDLE_MAX;
    if (kept)
        h->idle[h->n_idle++] = easy;
    pthread_mutex_unlock(&h->mutex);
    if (!kept)
        h->curl->easy_cleanup(easy);
}

void hf_http_prepare(struct hf_http *h, CURL *easy, struct curl_slist **ret_headers)
{
    const struct hf_curl *c = h->curl;
    struct hf_buf line = HF_BUF(1024);
    struct curl_slist *headers = c->slist_append(NULL, "Content-Type: application/json");
    headers = c->slist_append(headers, "Expect:");
    if (h->token) {
        hf_buf_printf(&line, "Authorization: Bearer %s", h->token);
        headers = c->slist_append(headers, line.data ? line.data : "");
        hf_buf_clear(&line);
    }
    c->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    c->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    c->easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (h->ca_file[0])
        c->easy_setopt(easy, CURLOPT_CAINFO, h->ca_file);
    if (h->socket[0])
        c->easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, h->socket);
    *ret_headers = headers;
}

/* ---- what went wrong ------------------------------------------------------------------------ */

/* Was the request certainly not sent? */
static bool was_not_sent(CURLcode code)
{
    return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
           code == CURLE_SSL_CONNECT_ERROR || code == CURLE_PEER_FAILED_VERIFICATION ||
           code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
           code == CURLE_SSL_CACERT_BADFILE;
}

static int fail_transport(struct hf_http *h, CURLcode code, bool changes, struct hf_error *err)
{
    if (changes && !was_not_sent(code))
        return hf_fail(err, HF_UNKNOWN, "no answer from %s: %s; it may or may not be done",
                       h->origin, h->curl->easy_strerror(code));
    return hf_fail(err, HF_UNAVAILABLE, "can't reach the service at %s: %s", h->origin,
                   h->curl->easy_strerror(code));
}

static int code_of(const char *name)
{
    for (int i = 1; name && i <= HF_DONE_ALREADY; i++)
        if (strcmp(hf_code_name(i), name) == 0)
            return i;
    return 0;
}

/* A problem document is an error of ours; anything else did not come from a Holdfast. */
static int fail_status(struct hf_http *h, long status, const json_t *problem, struct hf_error *err)
{
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    int code = code_of(json_string_value(json_object_get(problem, "code")));
    if (!code || !detail)
        return hf_fail(err, HF_UNAVAILABLE, "%s answers HTTP %ld, as no Holdfast does", h->origin,
                       status);
    if (code == HF_UNAUTHORIZED)
        return hf_fail(err, code,
                       "%s: %s; name a file with it in HOLDFAST_API_TOKEN_FILE or ?token-file=",
                       h->origin, detail);
    return hf_fail(err, code, "%s", detail);
}

/* ---- a call --------------------------------------------------------------------------------- */

static size_t add_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct hf_buf *out = arg;
    hf_buf_add(out, bytes, size * n);
    return out->failed ? 0 : size * n;
}

static CURLcode perform(struct hf_http *h, CURL *easy, const char *url, const struct hf_buf *body,
                        struct hf_buf *answer, long *ret_status)
{
    const struct hf_curl *c = h->curl;
    struct curl_slist *headers;
    hf_http_prepare(h, easy, &headers);
    c->easy_setopt(easy, CURLOPT_URL, url);
    c->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)TOTAL_MS);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, add_bytes);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    if (body) {
        c->easy_setopt(easy, CURLOPT_POSTFIELDS, body->data);
        c->easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)body->len);
    } else
        c->easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    CURLcode code = c->easy_perform(easy);
    c->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, ret_status);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
    c->slist_free_all(headers);
    return code;
}

/* 0 with the bytes of an answer that is well; a problem becomes its code. */
static int request(struct hf_http *h, const char *path, const struct hf_buf *body, bool changes,
                   struct hf_buf *answer, struct hf_error *err)
{
    struct hf_buf url = HF_BUF(3 * HF_URL_MAX);
    CURL *easy = take_handle(h);
    long status = 0;
    int r = 0;
    if (!easy)
        return hf_fail(err, HF_NOMEM, "out of memory");
    hf_buf_puts(&url, h->origin);
    hf_buf_puts(&url, path);
    CURLcode code = perform(h, easy, url.data ? url.data : "", body, answer, &status);
    if (code != CURLE_OK)
        r = fail_transport(h, code, changes, err);
    else if (status != 200) {
        json_t *problem = answer->len ? json_loadb(answer->data, answer->len, 0, NULL) : NULL;
        r = fail_status(h, status, problem, err);
        json_decref(problem);
    }
    hf_buf_clear(&url);
    give_handle(h, easy);
    return r;
}

static int call(struct hf_http *h, const char *path, const struct hf_buf *body, bool changes,
                json_t **ret, struct hf_error *err)
{
    struct hf_buf answer = HF_BUF(HF_HTTP_ANSWER_MAX);
    int r = request(h, path, body, changes, &answer, err);
    json_t *json =
        r >= 0 && answer.len ? json_loadb(answer.data, answer.len, JSON_ALLOW_NUL, NULL) : NULL;
    if (r >= 0 && !json)
        r = hf_fail(err, changes ? HF_UNKNOWN : HF_UNAVAILABLE, "%s answers what is not JSON",
                    h->origin);
    if (r >= 0)
        *ret = json;
    hf_buf_clear(&answer);
    return r;
}

int hf_http_call(struct hf_http *h, const char *path, const struct hf_buf *body, json_t **ret,
                 struct hf_error *err)
{
    return call(h, path, body, body, ret, err);
}

int hf_http_ask(struct hf_http *h, const char *path, const struct hf_buf *body, json_t **ret,
                struct hf_error *err)
{
    return call(h, path, body, false, ret, err);
}

int hf_http_bytes(struct hf_http *h, const char *path, struct hf_buf *ret, struct hf_error *err)
{
    return request(h, path, NULL, false, ret, err);
}
