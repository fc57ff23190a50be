/*
 * Who may do what. At a Unix socket the kernel names the user; elsewhere a bearer token does, whose
 * hash the store keeps with what it is for. At loopback without tokens everybody on this machine
 * may, but no web page that a browser here has open.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "clock.h"
#include "error.h"
#include "hmac.h"
#include "server.h"

enum { RELOAD_MS = 2000, TOKENS_MAX = 10000 };

struct tokens {
    struct hf_api_token *of;
    size_t n, size;
};

struct access {
    struct job job; /* first: reads the tokens again */
    struct server *server;
    struct tokens now, read;
    int64_t next_ms;
    bool reading, used; /* used: somebody has shown a token */
};

/* ---- the tokens ----------------------------------------------------------------------------- */

static int keep_token(void *arg, const struct hf_api_token *token)
{
    struct tokens *t = arg;
    if (t->n == TOKENS_MAX)
        return 1;
    if (t->n == t->size) {
        size_t size = t->size ? 2 * t->size : 16;
        void *of = realloc(t->of, size * sizeof *t->of);
        if (!of)
            return 1;
        t->of = of;
        t->size = size;
    }
    t->of[t->n++] = *token;
    return 0;
}

static int read_work(struct job *job, struct hf *hf, struct hf_error *err)
{
    struct access *a = (struct access *)job;
    a->read.n = 0;
    return hf_api_tokens(hf, keep_token, &a->read, err);
}

static void read_done(struct job *job, int code, const struct hf_answer *answer,
                      const struct hf_error *err)
{
    struct access *a = (struct access *)job;
    (void)answer, (void)err;
    a->reading = false;
    if (code < 0) /* those we know go on being good */
        return;
    struct tokens old = a->now;
    a->now = a->read;
    a->read = old;
}

void access_reload(struct server *server)
{
    struct access *a = server->access;
    if (a->reading)
        return;
    a->reading = true;
    a->job = (struct job){.work = read_work, .done = read_done};
    lane_put(server->lanes, LANE_CHORE, &a->job);
}

int64_t access_tick(struct server *server, int64_t at_ms)
{
    struct access *a = server->access;
    if (!server->opts->require_token && !a->used)
        return INT64_MAX;
    if (at_ms >= a->next_ms) {
        access_reload(server);
        a->next_ms = at_ms + RELOAD_MS;
    }
    return a->next_ms;
}

int access_open(struct server *server, struct hf_error *err)
{
    struct access *a = server->access = calloc(1, sizeof *a);
    if (!a)
        return hf_fail(err, HF_NOMEM, "out of memory");
    a->server = server;
    int r = hf_api_tokens(lanes_handle(server->lanes, LANE_CHORE), keep_token, &a->now, err);
    return r == -HF_UNSUPPORTED && !server->opts->require_token ? 0 : r;
}

void access_close(struct server *server)
{
    if (!server->access)
        return;
    free(server->access->now.of);
    free(server->access->read.of);
    free(server->access);
    server->access = NULL;
}

static const struct hf_api_token *find_token(struct access *a, const char *secret)
{
    uint8_t hash[HF_SHA256_LEN];
    const struct hf_api_token *found = NULL;
    hf_sha256(secret, strlen(secret), hash);
    for (size_t i = 0; i < a->now.n; i++)
        if (hf_sha256_equal(a->now.of[i].hash, hash))
            found = &a->now.of[i];
    bool over = found && found->expires_at_ms && found->expires_at_ms <= hf_clock_wall_ms();
    return over ? NULL : found;
}

static unsigned parse_verbs(const char *text)
{
    static const struct {
        const char *text;
        unsigned bit;
    } verbs[] = {
#define X(name, text) {text, VERB_##name},
        VERB_MAP(X)
#undef X
    };
    unsigned bits = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
        for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
            if (strlen(verbs[i].text) == n && strncmp(verbs[i].text, text, n) == 0)
                bits |= verbs[i].bit;
        text += n + strspn(text + n, " ");
    }
    return bits;
}

/* ---- pages of others ------------------------------------------------------------------------ */

/* The host of "host:port", without brackets and port. */
static bool host_is(const char *host, const char *name)
{
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    return strlen(name) == n && strncasecmp(host, name, n) == 0;
}

static bool is_loopback_host(const char *host)
{
    return host_is(host, "localhost") || host_is(host, "[::1]") || strncmp(host, "127.", 4) == 0;
}

/* A page of another site, or of one whose name was pointed here, must not use a browser as its arm. */
static const char *find_foreign(const struct request *req)
{
    const char *host = req->header.host ? req->header.host : "";
    const char *origin = req->header.origin, *from = origin ? strstr(origin, "://") : NULL;
    if (req->connection->listener->is_unix)
        return NULL;
    if (!is_loopback_host(host))
        return "the Host header names another host; use localhost, 127.0.0.1 or [::1], or tokens";
    if (origin && (!from || strcmp(from + 3, host) != 0))
        return "requests from pages of another origin are refused";
    return NULL;
}

/* ---- the check ------------------------------------------------------------------------------ */

static bool refuse(struct request *req, int code, const char *why)
{
    request_problem(req, code, why, NULL);
    return false;
}

static bool take_bearer(struct request *req, struct access *a)
{
    static const char scheme[] = "Bearer ";
    const char *header = req->header.authorization;
    if (!a->used)
        req->server->again = a->used = true;
    const struct hf_api_token *token = strncasecmp(header, scheme, sizeof scheme - 1) == 0
                                           ? find_token(a, header + sizeof scheme - 1)
                                           : NULL;
    if (!token)
        return refuse(req, HF_UNAUTHORIZED, "the bearer token is unknown, revoked or expired");
    req->may.verbs = parse_verbs(token->verbs);
    memcpy(req->may.prefix, token->prefix, sizeof req->may.prefix);
    return true;
}

bool access_check(struct request *req)
{
    struct access *a = req->server->access;
    bool required = req->server->opts->require_token && !req->connection->peer_trusted;
    req->may = (struct grant){VERB_ALL, ""};
    if (req->route->verb == VERB_NONE || webhook_is_to_be_signed(req))
        return true;
    if (req->header.authorization) {
        if (!take_bearer(req, a))
            return false;
    } else if (req->connection->peer_refused)
        return refuse(req, HF_FORBIDDEN, "this socket is for its own user and root");
    else if (required)
        return refuse(req, HF_UNAUTHORIZED,
                      "a token is needed: Authorization: Bearer TOKEN (see holdfast token)");
    else {
        const char *foreign = find_foreign(req);
        if (foreign)
            return refuse(req, HF_FORBIDDEN, foreign);
    }
    if (!(req->route->verb & req->may.verbs))
        return refuse(req, HF_FORBIDDEN, "this token is not allowed to do that");
    if (req->name && strncmp(req->name, req->may.prefix, strlen(req->may.prefix)) != 0)
        return refuse(req, HF_FORBIDDEN, "this token is for names with another prefix");
    return true;
}
