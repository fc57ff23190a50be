/* `holdfast serve`: what the command line says, and the one function that does it. */
#ifndef HF_SERVER_SERVE_H
#define HF_SERVER_SERVE_H

#include "holdfast.h"

struct serve_options {
    const char *store_url; /* NULL: the default */
    const char *listen;    /* "127.0.0.1:7480,unix:/run/holdfast.sock"; NULL: the first of these */
    const char
        *config_path; /* the workflows; NULL: as hf_workflows_path() has it, if it is there */
    const char *tls_cert, *tls_key; /* files; NULL: no TLS */
    bool require_token;
    bool no_work;        /* record only; others run it */
    int64_t concurrency; /* of the runner: commands at once; 0: as many as there are processors */
    int64_t grace_ms;    /* how long commands may go on after SIGTERM */
    bool log_json, log_requests;
    int64_t max_connections;
    int64_t max_body;   /* bytes of a webhook's body */
    int64_t receive_ms; /* a request, once begun, must have arrived within so long */
};

#define SERVE_LISTEN_DEFAULT "127.0.0.1:7480"
enum { SERVE_RECEIVE_DEFAULT_MS = 15000 };

/* What a token may be allowed to do; `token create --allow`. X(name, text) */
#define VERB_MAP(X)                                                                                \
    X(LOCKS_READ, "locks:read")                                                                    \
    X(LOCKS_WRITE, "locks:write")                                                                  \
    X(LOCKS_FORCE, "locks:force")                                                                  \
    X(EVENTS_READ, "events:read")                                                                  \
    X(METRICS_READ, "metrics:read")                                                                \
    X(EXECUTIONS_READ, "executions:read")                                                          \
    X(EXECUTIONS_WRITE, "executions:write")                                                        \
    X(EXECUTIONS_WORK, "executions:work")                                                          \
    X(WEBHOOKS_WRITE, "webhooks:write")

/* Serve until SIGTERM or SIGINT: 0, or negative with `err` filled. */
int serve(const struct serve_options *opts, struct hf_error *err);

#endif
