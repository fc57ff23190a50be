#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "etcd_store.h"

enum {
    CONNECT_MS = 1500,
    ANSWER_MS = 4000, /* then another endpoint is asked */
    TOTAL_MS = 12000, /* unless ?timeout= says otherwise */
    TIMEOUT_MIN_MS = 100,
    PAUSE_MS = 50,
    PORT = 2379
};

/* ---- the URL -------------------------------------------------------------------------------- */

static int add_endpoint(struct hf_etcd *s, const char *host, size_t n, bool tls,
                        struct hf_error *err)
{
    const char *end = host + n, *bracket = memrchr(host, ']', n);
    bool has_port =
        memchr(bracket ? bracket : host, ':', (size_t)(end - (bracket ? bracket : host)));
    if (!n || n > 255 || host[0] == ':')
        return hf_fail(err, HF_INVALID, "the store's URL names no host; expected etcd://HOST:PORT");
    if (s->n_endpoints == HF_ETCD_ENDPOINTS_MAX)
        return hf_fail(err, HF_INVALID, "the store's URL has more than %d endpoints",
                       HF_ETCD_ENDPOINTS_MAX);
    char *to = s->endpoints[s->n_endpoints++];
    int used = snprintf(to, sizeof s->endpoints[0], "http%s://%.*s", tls ? "s" : "", (int)n, host);
    if (!has_port)
        snprintf(to + used, sizeof s->endpoints[0] - (size_t)used, ":%d", PORT);
    return 0;
}

static int copy_param(const struct hf_url *url, const char *name, char *to, size_t size,
                      struct hf_error *err)
{
    const char *value = hf_url_param(url, name);
    if (value && strlen(value) >= size)
        return hf_fail(err, HF_INVALID, "the store's URL has a %s that is too long", name);
    strcpy(to, value ? value : "");
    return 0;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decode `n` bytes; that they are well formed the URL's parser has seen. */
static int decode(const char *from, size_t n, char *to, size_t size, const char *what,
                  struct hf_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < n && used + 1 < size; i++) {
        bool escaped = from[i] == '%' && i + 2 < n && hex_value(from[i + 1]) >= 0;
        to[used++] = from[i];
        if (escaped)
            to[used - 1] = (char)(hex_value(from[i + 1]) * 16 + hex_value(from[i + 2]));
        i += escaped ? 2 : 0;
    }
    to[used] = '\0';
    return used + 1 < size
               ? 0
               : hf_fail(err, HF_INVALID, "the %s in the store's URL is too long", what);
}

/* USER:PASSWORD in front of the hosts. */
static int take_user(struct hf_etcd *s, const char **at, struct hf_error *err)
{
    const char *end = memrchr(*at, '@', strcspn(*at, "/?"));
    if (!end)
        return 0;
    const char *colon = memchr(*at, ':', (size_t)(end - *at));
    const char *user_end = colon ? colon : end;
    int r = decode(*at, (size_t)(user_end - *at), s->user, sizeof s->user, "user", err);
    if (r >= 0 && colon)
        r = decode(colon + 1, (size_t)(end - colon - 1), s->password, sizeof s->password,
                   "password", err);
    *at = end + 1;
    return r;
}

static int take_prefix(struct hf_etcd *s, const char *path, struct hf_error *err)
{
    while (*path == '/')
        path++;
    size_t n = strcspn(path, "?");
    while (n && path[n - 1] == '/')
        n--;
    strcpy(s->prefix, "holdfast");
    int r = n ? decode(path, n, s->prefix, sizeof s->prefix - 1, "prefix", err) : 0;
    if (r >= 0)
        strcat(s->prefix, "/");
    return r;
}

int hf_etcd_parse_url(struct hf_etcd *s, const struct hf_url *url, struct hf_error *err)
{
    static const char *const known[] = {"tls", "ca", "cert", "key", "timeout", NULL};
    const char *at = url->whole + strlen(url->scheme) + 1;
    int r = hf_url_check_params(url, known, err);
    if (r >= 0)
        r = copy_param(url, "ca", s->ca, sizeof s->ca, err);
    if (r >= 0)
        r = copy_param(url, "cert", s->cert, sizeof s->cert, err);
    if (r >= 0)
        r = copy_param(url, "key", s->key, sizeof s->key, err);
    if (r < 0)
        return r;
    const char *tls_param = hf_url_param(url, "tls"), *timeout = hf_url_param(url, "timeout");
    s->timeout_ms = TOTAL_MS;
    if (timeout && (r = hf_parse_duration(timeout, &s->timeout_ms, err)) < 0)
        return r;
    if (s->timeout_ms < TIMEOUT_MIN_MS)
        return hf_fail(err, HF_INVALID, "the store's timeout is shorter than %d ms",
                       TIMEOUT_MIN_MS);
    bool tls = s->ca[0] || s->cert[0] || (tls_param && strcmp(tls_param, "0") != 0);
    if (strncmp(at, "//", 2) != 0)
        return hf_fail(err, HF_INVALID, "expected etcd://HOST:PORT[,HOST:PORT...][/PREFIX]");
    at += 2;
    if ((r = take_user(s, &at, err)) < 0)
        return r;
    for (;;) {
        size_t n = strcspn(at, ",/?");
        if ((r = add_endpoint(s, at, n, tls, err)) < 0)
            return r;
        at += n;
        if (*at != ',')
            break;
        at++;
    }
    return take_prefix(s, at, err);
}

/* ---- connections ---------------------------------------------------------------------------- */

static CURL *take_handle(struct hf_etcd *s)
{
    pthread_mutex_lock(&s->mutex);
    CURL *easy = s->n_idle ? s->idle[--s->n_idle] : NULL;
    pthread_mutex_unlock(&s->mutex);
    return easy ? easy : s->curl->easy_init();
}

static void give_handle(struct hf_etcd *s, CURL *easy)
{
    pthread_mutex_lock(&s->mutex);
    bool kept = s->n_idle < HF_ETCD_IDLE_MAX;
    if (kept)
        s->idle[s->n_idle++] = easy;
    pthread_mutex_unlock(&s->mutex);
    if (!kept)
        s->curl->easy_cleanup(easy);
}

/* Whoever is started meanwhile does not get it. */
static int close_on_exec(void *arg, curl_socket_t fd, curlsocktype purpose)
{
    (void)arg, (void)purpose;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return CURL_SOCKOPT_OK;
}

void hf_etcd_prepare(struct hf_etcd *s, CURL *easy, struct curl_slist **ret_headers)
{
    const struct hf_curl *c = s->curl;
    char line[sizeof s->auth + 32];
    struct curl_slist *headers = c->slist_append(NULL, "Content-Type: application/json");
    headers = c->slist_append(headers, "Expect:");
    pthread_mutex_lock(&s->mutex);
    snprintf(line, sizeof line, "Authorization: %s", s->auth);
    bool has_auth = s->auth[0];
    pthread_mutex_unlock(&s->mutex);
    if (has_auth)
        headers = c->slist_append(headers, line);
    c->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    c->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    c->easy_setopt(easy, CURLOPT_NOPROXY, "*");
    c->easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    c->easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, close_on_exec);
    if (s->ca[0])
        c->easy_setopt(easy, CURLOPT_CAINFO, s->ca);
    if (s->cert[0])
        c->easy_setopt(easy, CURLOPT_SSLCERT, s->cert);
    if (s->key[0])
        c->easy_setopt(easy, CURLOPT_SSLKEY, s->key);
    *ret_headers = headers;
}

void hf_etcd_move_on(struct hf_etcd *s, size_t used)
{
    atomic_compare_exchange_strong(&s->current, &used, (used + 1) % s->n_endpoints);
}

/* ---- what went wrong ------------------------------------------------------------------------ */

/* What became of one request to one endpoint. */
struct outcome {
    CURLcode code;
    long status;
    struct hf_buf answer;
};

static bool was_not_sent(CURLcode code)
{
    return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
           code == CURLE_SSL_CONNECT_ERROR || code == CURLE_PEER_FAILED_VERIFICATION ||
           code == CURLE_URL_MALFORMAT || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_CERTPROBLEM;
}

/* gRPC's codes. */
enum {
    RPC_INVALID = 3,
    RPC_DEADLINE = 4,
    RPC_NOT_FOUND = 5,
    RPC_FORBIDDEN = 7,
    RPC_EXHAUSTED = 8,
    RPC_FAILED = 9,
    RPC_UNAVAILABLE = 14,
    RPC_UNAUTHENTICATED = 16
};

/* How to go on after an answer that is an error. */
enum verdict { FINAL, AGAIN_ELSEWHERE, LOG_IN, MAYBE_DONE };

static enum verdict judge(long rpc, const char *text)
{
    if (rpc == RPC_UNAUTHENTICATED || strstr(text, "invalid auth token") ||
        strstr(text, "user name is empty"))
        return LOG_IN;
    if (rpc == RPC_DEADLINE || strstr(text, "timed out") || strstr(text, "context"))
        return MAYBE_DONE;
    if (rpc == RPC_UNAVAILABLE)
        return strstr(text, "no leader") ? AGAIN_ELSEWHERE : MAYBE_DONE;
    return FINAL;
}

static int fail_rpc(struct hf_etcd *s, size_t at, long rpc, const char *text, struct hf_error *err)
{
    switch (rpc) {
    case RPC_NOT_FOUND:
        return hf_fail(err, HF_NOT_FOUND, "etcd: %s", text);
    case RPC_INVALID:
        if (strstr(text, "too large"))
            return hf_fail(err, HF_TOO_LARGE,
                           "it is larger than etcd takes (1.5 MB, --max-request-bytes)");
        if (strstr(text, "authentication failed"))
            return hf_fail(err, HF_FORBIDDEN, "etcd at %s does not know this user and password",
                           s->endpoints[at]);
        return hf_fail(err, HF_INVALID, "etcd at %s: %s", s->endpoints[at], text);
    case RPC_FORBIDDEN:
        return hf_fail(err, HF_FORBIDDEN, "etcd at %s: %s; the user needs read and write on %s*",
                       s->endpoints[at], text, s->prefix);
    case RPC_EXHAUSTED:
        return hf_fail(err, HF_UNAVAILABLE,
                       "etcd at %s: %s; make room (compact, defragment) and disarm its alarm",
                       s->endpoints[at], text);
    default:
        return hf_fail(err, HF_UNAVAILABLE, "etcd at %s: %s", s->endpoints[at], text);
    }
}

/* ---- one request ---------------------------------------------------------------------------- */

static size_t add_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct hf_buf *out = arg;
    hf_buf_add(out, bytes, size * n);
    return out->failed ? 0 : size * n;
}

static void perform(struct hf_etcd *s, CURL *easy, const char *url, const struct hf_buf *body,
                    struct outcome *o)
{
    const struct hf_curl *c = s->curl;
    struct curl_slist *headers;
    hf_etcd_prepare(s, easy, &headers);
    c->easy_setopt(easy, CURLOPT_URL, url);
    c->easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                   (long)(s->timeout_ms < ANSWER_MS ? s->timeout_ms : ANSWER_MS));
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, add_bytes);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, &o->answer);
    if (body) {
        c->easy_setopt(easy, CURLOPT_POSTFIELDS, body->data);
        c->easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)body->len);
    } else
        c->easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    o->code = c->easy_perform(easy);
    c->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &o->status);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
    c->slist_free_all(headers);
}

static void ask_endpoint(struct hf_etcd *s, size_t at, const char *path, const struct hf_buf *body,
                         struct outcome *o)
{
    char url[400];
    CURL *easy = take_handle(s);
    *o = (struct outcome){.code = CURLE_OUT_OF_MEMORY, .answer = HF_BUF(HF_ETCD_ANSWER_MAX)};
    if (!easy)
        return;
    snprintf(url, sizeof url, "%s%s", s->endpoints[at], path);
    perform(s, easy, url, body, o);
    if (o->code == CURLE_OK)
        give_handle(s, easy);
    else
        s->curl->easy_cleanup(easy);
}

static void pause_a_little(void)
{
    struct timespec t = {0, PAUSE_MS * 1000000};
    nanosleep(&t, NULL);
}

/* A call on its way through the endpoints. */
struct attempt {
    const char *path;
    const struct hf_buf *body;
    bool changes;
    bool logged_in;
    size_t at, n;
    size_t unreached; /* endpoints in a row that nobody answers at */
};

/* It has no answer: 1 to ask the next endpoint, else a code. */
static int after_silence(struct hf_etcd *s, struct attempt *a, CURLcode code, struct hf_error *err)
{
    hf_etcd_move_on(s, a->at);
    if (code == CURLE_OUT_OF_MEMORY)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (a->changes && !was_not_sent(code))
        return hf_fail(err, HF_UNKNOWN, "no answer from etcd at %s: %s; it may or may not be done",
                       s->endpoints[a->at], s->curl->easy_strerror(code));
    hf_set_error(err, HF_UNAVAILABLE, "can't reach etcd at %s: %s%s", s->endpoints[a->at],
                 s->curl->easy_strerror(code),
                 s->n_endpoints > 1 ? ", nor at its other endpoints" : "");
    return 1;
}

/* It is an error: 1 to ask again, else a code. */
static int after_error(struct hf_etcd *s, struct attempt *a, const struct outcome *o,
                       struct hf_error *err)
{
    json_t *json = o->answer.len ? json_loadb(o->answer.data, o->answer.len, 0, NULL) : NULL;
    json_t *nested = json_object_get(json, "error");
    const char *text =
        json_string_value(json_is_object(nested) ? json_object_get(nested, "message") : nested);
    json_t *code = json_object_get(json_is_object(nested) ? nested : json,
                                   json_is_object(nested) ? "grpc_code" : "code");
    long rpc = (long)json_integer_value(code);
    char shown[200];
    snprintf(shown, sizeof shown, "%s", text ? text : "answers as no etcd does");
    json_decref(json);
    if (!text)
        return hf_fail(err, HF_UNAVAILABLE, "%s answers HTTP %ld, as no etcd does",
                       s->endpoints[a->at], o->status);
    switch (judge(rpc, shown)) {
    case LOG_IN:
        if (a->logged_in || !s->user[0])
            return hf_fail(err, HF_FORBIDDEN,
                           "etcd at %s wants a user: etcd://USER:PASSWORD@HOST (%s)",
                           s->endpoints[a->at], shown);
        a->logged_in = true;
        return hf_etcd_log_in(s, true, err) < 0 ? -HF_FORBIDDEN : 1;
    case MAYBE_DONE:
        hf_etcd_move_on(s, a->at);
        if (a->changes)
            return hf_fail(err, HF_UNKNOWN, "etcd at %s: %s; it may or may not be done",
                           s->endpoints[a->at], shown);
        break;
    case AGAIN_ELSEWHERE:
        hf_etcd_move_on(s, a->at);
        break;
    default:
        return fail_rpc(s, a->at, rpc, shown, err);
    }
    hf_set_error(err, HF_UNAVAILABLE, "etcd at %s: %s (has it a quorum?)", s->endpoints[a->at],
                 shown);
    return 1;
}

/* A stream that has begun well may end with one. */
static bool is_error(const struct outcome *o)
{
    static const char begin[] = "{\"error\":";
    return o->answer.len > sizeof begin && strncmp(o->answer.data, begin, sizeof begin - 1) == 0;
}

/* 0 with the answer, 1 to ask again, or a code. */
static int try_once(struct hf_etcd *s, struct attempt *a, json_t **ret, struct hf_error *err)
{
    struct outcome o;
    a->at = s->current;
    ask_endpoint(s, a->at, a->path, a->body, &o);
    int r = 0;
    a->unreached = was_not_sent(o.code) ? a->unreached + 1 : 0;
    if (o.code != CURLE_OK)
        r = after_silence(s, a, o.code, err);
    else if (o.status != 200 || is_error(&o))
        r = after_error(s, a, &o, err);
    else if (!(*ret = json_loadb(o.answer.data ? o.answer.data : "", o.answer.len, 0, NULL)))
        r = hf_fail(err, a->changes ? HF_UNKNOWN : HF_UNAVAILABLE, "%s answers what is not JSON",
                    s->endpoints[a->at]);
    hf_buf_clear(&o.answer);
    return r;
}

/* Of the network, whatever clock leases are judged by. */
static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Until there is an answer, nobody is there, or the time is up. */
static int call(struct hf_etcd *s, const char *path, const struct hf_buf *body, bool changes,
                json_t **ret, struct hf_error *err)
{
    struct attempt a = {.path = path, .body = body, .changes = changes};
    int64_t until_ms = real_ms() + s->timeout_ms;
    for (;;) {
        int r = try_once(s, &a, ret, err);
        if (r != 1)
            return r;
        a.n++;
        if (real_ms() >= until_ms || a.unreached >= 2 * s->n_endpoints)
            return -HF_UNAVAILABLE;
        if (a.n % s->n_endpoints == 0)
            pause_a_little();
    }
}

int hf_etcd_call(struct hf_etcd *s, const char *path, const struct hf_buf *body, bool changes,
                 json_t **ret, struct hf_error *err)
{
    struct hf_error own;
    if (body->failed)
        return hf_fail(err, HF_TOO_LARGE, "it is larger than etcd takes");
    int r = hf_etcd_log_in(s, false, err);
    return r < 0 ? r : call(s, path, body, changes, ret, err ? err : &own);
}

int hf_etcd_get_path(struct hf_etcd *s, const char *path, json_t **ret, struct hf_error *err)
{
    struct hf_error own;
    return call(s, path, NULL, false, ret, err ? err : &own);
}

int hf_etcd_log_in(struct hf_etcd *s, bool again, struct hf_error *err)
{
    if (!s->user[0])
        return 0;
    pthread_mutex_lock(&s->mutex);
    bool known = s->auth[0];
    if (again)
        s->auth[0] = '\0';
    pthread_mutex_unlock(&s->mutex);
    if (known && !again)
        return 0;
    struct hf_error own;
    struct hf_buf body = HF_BUF(4096);
    json_t *answer = NULL, *ask = json_pack("{s:s,s:s}", "name", s->user, "password", s->password);
    char *text = ask ? json_dumps(ask, JSON_COMPACT) : NULL;
    hf_buf_puts(&body, text ? text : "{}");
    free(text);
    json_decref(ask);
    int r = call(s, "/v3/auth/authenticate", &body, false, &answer, err ? err : &own);
    hf_buf_clear(&body);
    if (r < 0)
        return r;
    const char *token = json_string_value(json_object_get(answer, "token"));
    pthread_mutex_lock(&s->mutex);
    snprintf(s->auth, sizeof s->auth, "%s", token ? token : "");
    pthread_mutex_unlock(&s->mutex);
    json_decref(answer);
    return token ? 0 : hf_fail(err, HF_FORBIDDEN, "etcd gives no token to user %s", s->user);
}
