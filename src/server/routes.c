/* The table of routes: what openapi.json describes, row by row (tests/api holds them together). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "server.h"
#include "text.h"

#define QUERY(...) ((const char *const[]){__VA_ARGS__, NULL})

static const struct route routes[] = {
    {"GET", "/v1/locks/*", VERB_LOCKS_READ, get_lock, NULL},
    {"POST", "/v1/locks/*", VERB_LOCKS_WRITE, post_acquire, NULL},
    {"POST", "/v1/locks/*/extend", VERB_LOCKS_WRITE, post_extend, NULL},
    {"POST", "/v1/locks/*/release", VERB_LOCKS_WRITE, post_release, NULL},
    {"POST", "/v1/locks/*/force-release", VERB_LOCKS_FORCE, post_force, NULL},
    {"POST", "/v1/locks/*/guard", VERB_LOCKS_READ, post_guard, NULL},
    {"GET", "/v1/locks/*/wakes", VERB_LOCKS_READ, get_wakes, QUERY("id")},
    {"GET", "/v1/locks", VERB_LOCKS_READ, get_locks, QUERY("state", "prefix", "limit", "cursor")},
    {"POST", "/v1/batch", VERB_BATCH, post_batch, NULL, BODY_LARGE},
    {"POST", "/v1/sweep", VERB_LOCKS_FORCE, post_sweep, NULL},
    {"GET", "/v1/totals", VERB_METRICS_READ, get_totals, NULL},
    {"GET", "/v1/events", VERB_EVENTS_READ, get_events,
     QUERY("name", "after", "limit", "since", "newest")},
    {"GET", "/v1/events/stream", VERB_EVENTS_READ, get_stream, QUERY("name", "after")},
    {"POST", "/v1/executions", VERB_EXECUTIONS_WRITE, post_execution, NULL, BODY_LARGE},
    {"GET", "/v1/executions", VERB_EXECUTIONS_READ, get_executions,
     QUERY("workflow", "state", "limit", "cursor")},
    {"POST", "/v1/executions/claim", VERB_EXECUTIONS_WORK, post_claim, NULL},
    {"POST", "/v1/executions/due", VERB_EXECUTIONS_WORK, post_due, NULL},
    {"GET", "/v1/executions/wakes", VERB_EXECUTIONS_WORK, get_wakes, QUERY("id")},
    {"POST", "/v1/executions/idle", VERB_EXECUTIONS_WORK, post_idle, QUERY("id")},
    {"POST", "/v1/executions/awake", VERB_EXECUTIONS_WORK, post_awake, QUERY("id")},
    {"GET", "/v1/executions/last-key", VERB_EXECUTIONS_READ, get_last_key,
     QUERY("workflow", "from", "to")},
    {"GET", "/v1/executions/#", VERB_EXECUTIONS_READ, get_execution, QUERY("brief")},
    {"GET", "/v1/executions/#/input", VERB_EXECUTIONS_READ, get_input, NULL},
    {"GET", "/v1/executions/#/output", VERB_EXECUTIONS_READ, get_output, NULL},
    {"GET", "/v1/executions/#/log", VERB_EXECUTIONS_READ, get_log, NULL},
    {"POST", "/v1/executions/#/cancel", VERB_EXECUTIONS_WRITE, post_cancel, NULL},
    {"POST", "/v1/executions/#/retry", VERB_EXECUTIONS_WRITE, post_retry, NULL},
    {"POST", "/v1/executions/#/heartbeat", VERB_EXECUTIONS_WORK, post_heartbeat, NULL, BODY_OUTPUT},
    {"POST", "/v1/executions/#/finish", VERB_EXECUTIONS_WORK, post_finish, NULL, BODY_OUTPUT},
    {"POST", "/api/webhooks/*", VERB_WEBHOOKS_WRITE, post_webhook, NULL, BODY_HOOK},
    {"GET", "/metrics", VERB_METRICS_READ, get_metrics, NULL},
    {"GET", "/healthz", VERB_NONE, get_health, NULL},
    {"GET", "/readyz", VERB_NONE, get_ready, NULL},
    {"GET", "/openapi.json", VERB_NONE, get_openapi, NULL},
    {"GET", "/", VERB_NONE, get_root, NULL},
};

/* Does the path have this form? Then where its NAME or ID stands. */
static bool matches(const char *form, const char *path, const char **ret_name, size_t *ret_n)
{
    while (*form && *path) {
        if (*form == '*' || *form == '#') {
            size_t n = strcspn(path, "/");
            if (*form == '#' &&
                (n != HF_UUID_LEN || strspn(path, "0123456789abcdef-") < HF_UUID_LEN))
                return false;
            *ret_name = path;
            *ret_n = n;
            path += n;
            form++;
        } else if (*form++ != *path++)
            return false;
    }
    return !*form && !*path;
}

static bool take_name(struct request *req, const char *raw, size_t n)
{
    struct hf_error err;
    char name[HF_NAME_MAX + 2];
    if (!decode_percent(raw, n, name, sizeof name)) {
        request_problem(req, HF_INVALID,
                        "the name is longer than 200 bytes, or not percent-encoded UTF-8", NULL);
        return false;
    }
    if (hf_check_name(name, &err) < 0) {
        request_fail(req, &err);
        return false;
    }
    req->name = strdup(name);
    return req->name;
}

/* A parameter that the route does not know. */
static bool find_unknown(const struct request *req, struct query_part *ret)
{
    const char *at = req->head.query;
    while (query_next(&at, ret)) {
        const char *const *known = req->route->query;
        while (known && *known &&
               (strlen(*known) != ret->n_name || memcmp(*known, ret->name, ret->n_name) != 0))
            known++;
        if (!known || !*known)
            return true;
    }
    return false;
}

/* A mistyped parameter must not silently mean something else. */
static bool check_query(struct request *req)
{
    struct query_part unknown;
    if (!find_unknown(req, &unknown))
        return true;
    char detail[300];
    int n = snprintf(detail, sizeof detail, "there is no parameter '%.*s' here; known are",
                     (int)(unknown.n_name < 60 ? unknown.n_name : 60), unknown.name);
    for (const char *const *known = req->route->query; known && *known; known++)
        n += snprintf(detail + n, sizeof detail - (size_t)n, " %s", *known);
    if (!req->route->query)
        snprintf(detail + n, sizeof detail - (size_t)n, " none");
    request_problem(req, HF_INVALID, detail, NULL);
    return false;
}

/* The path is known, but not with this method: which ones are. */
static void refuse_method(struct request *req, bool get, bool post)
{
    req->allow = get && post ? "GET, HEAD, POST" : post ? "POST" : "GET, HEAD";
    request_refuse(req, 405, HF_INVALID, "this path is not for that method; see the Allow header");
}

const struct route *route_find(const char *method, const char *path)
{
    const char *name;
    size_t n;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(routes[i].method, method) == 0 && matches(routes[i].path, path, &name, &n))
            return &routes[i];
    return NULL;
}

/* There is no such row: perhaps with another method. */
static void refuse_path(struct request *req)
{
    bool get = route_find("GET", req->path), post = route_find("POST", req->path);
    if (get || post)
        refuse_method(req, get, post);
    else
        request_problem(req, HF_NOT_FOUND, "there is nothing at this path; see /openapi.json",
                        NULL);
}

bool route_enter(struct request *req)
{
    const char *name = NULL;
    size_t n = 0;
    if (req->entered)
        return true;
    matches(req->route->path, req->path, &name, &n);
    if (name && strchr(req->route->path, '#'))
        memcpy(req->execution, name, HF_UUID_LEN);
    else if (name && !take_name(req, name, n))
        return false;
    req->entered = access_check(req) && check_query(req);
    return req->entered;
}

void route_request(struct request *req)
{
    if (!req->route)
        refuse_path(req);
    else if (route_enter(req))
        req->route->handle(req);
}
