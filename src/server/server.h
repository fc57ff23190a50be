/*
 * The service. One thread speaks HTTP (libmicrohttpd) and never waits for the store; lanes (lane.h)
 * do. A request's way:
 *
 *   http.c     takes it from the library, bounded in size and time
 *   access.c   may this client do that?
 *   routes.c   finds its row in the table of routes, which names the handler
 *   body.h     reads what was sent
 *   locks.c    asks a lane, or waits.c to wait (no thread, no descriptor each); events.c, pages.c;
 *              executions.h; webhooks.c, and results.c for an execution's end
 *   http.c     sends what request_answer() or request_problem() was given
 *
 * serve.c is the loop and the life of the service, listen.c its sockets, notify.c what systemd is
 * told, metrics.c what Prometheus is, config.c the workflows.
 */
#ifndef HF_SERVER_SERVER_H
#define HF_SERVER_SERVER_H

#include <jansson.h>
#include <sys/types.h>

#include "buf.h"
#include "lane.h"
#include "log.h"
#include "mhd.h"
#include "serve.h"

enum {
    LISTENERS_MAX = 8,
    ANSWER_MAX = 8 << 20,  /* bytes of one answer */
    BODY_MAX = 64 << 10,   /* of a JSON body, where the route does not say more */
    BODY_LARGE = 24 << 20, /* of one with an execution's input */
    BODY_OUTPUT = 2 << 20, /* of one with its output */
    BODY_HOOK = 1,         /* of a webhook: as opts->max_body says */
    LARGE_MAX = 128 << 20, /* of all larger bodies and answers together, at one moment */
    DEPTH_MAX = 16,        /* of nesting in one */
    VALUES_MAX = 1 << 16,  /* in one */
    HEADERS_MAX =
        12 << 10,       /* what the library may use per connection: headers, a piece of the body */
    IDLE_MS = 60000,    /* a connection without a request is closed after so long */
    RECEIVE_MS = 15000, /* a request, once begun, must have arrived within so long ... */
    RECEIVE_BYTES = 1 << 20, /* ... or so much more of its body */
    DRAIN_MS = 20000,        /* SIGTERM: what is in flight has so long */
    PAGE_DEFAULT = 100,
    PAGE_MAX = 1000,
    REQUEST_ID_MAX = 64,
    WORKFLOWS_MAX = 256, /* that a claim may name */
    CLAIM_MAX = 256,
};
#define WAIT_MAX_MS (INT64_C(24) * 3600 * 1000)
#define BACKOFF_MAX_MS (INT64_C(7) * 24 * 3600 * 1000)

/* ---- a listening socket, a connection, a request -------------------------------------------- */

struct listener {
    struct server *server;
    struct MHD_Daemon *daemon;
    int fd, epoll_fd;
    char address[200]; /* for people */
    bool is_unix, tls;
    bool made; /* the Unix socket's file is ours to remove */
    bool run;  /* something was resumed: give it a turn */
};

/* In a list of those that must be done by a certain time; the first is due first. */
struct due {
    struct due *prev, *next;
    int64_t at_ms;
};

struct connection {
    struct due due;
    struct listener *listener;
    int fd;
    bool peer_refused; /* of another user, at a Unix socket */
    bool peer_trusted; /* of this user or root, at a Unix socket */
    bool busy;         /* a request has arrived and is not yet answered */
};

/* What a bearer may do. */
struct grant {
    unsigned verbs; /* bits of enum verb */
    char prefix[HF_NAME_MAX + 1];
};

struct route;
struct fields;

struct request {
    struct request *prev, *next; /* in server->requests, while its connection lasts */
    struct server *server;
    struct connection *connection;
    struct MHD_Connection *mhd;
    const struct route *route;
    const char *method, *path; /* the library's */
    char id[REQUEST_ID_MAX + 1];
    struct { /* headers, the library's; NULL: absent */
        const char *authorization, *origin, *host, *last_event_id;
    } header;
    int64_t received_us;
    struct hf_buf body;
    json_t *json;
    char *name;                      /* the NAME of the path, decoded */
    char execution[HF_UUID_LEN + 1]; /* the ID of the path */
    size_t reserved;                 /* of LARGE_MAX */
    size_t progress; /* of a large body: how much has arrived when it was last in time */
    struct grant may;
    struct config *config; /* that it uses; NULL: none yet */
    struct job job;
    int (*read)(struct request *req, struct hf_error *err); /* body_take() */
    void (*go)(struct request *req);
    void *context;                       /* the handler's */
    void (*forget)(struct request *req); /* the client has gone, or is answered */
    void (*clear)(struct request *req);  /* nobody needs the request any more: free the context */
    /* the answer */
    unsigned status;
    const char *content_type;
    struct hf_buf answer;
    struct MHD_Response *stream; /* instead of `answer` */
    const char *allow;           /* 405: which methods */
    int retry_after_s;
    int64_t waited_s;               /* as Prefer: wait= was heeded; 0: it was not */
    char existing[HF_UUID_LEN + 1]; /* of a problem: the execution that is there already */
    bool too_large; /* refused while it was being sent: it is not listened to again */
    bool entered, arrived, dispatched, answered, suspended;
    bool working; /* a lane has its job: it must outlive the connection */
    bool left;    /* the client was seen leaving while it waited */
    bool gone;    /* its connection is, and all that belongs to the library */
    bool watched; /* in server->gone_fd */
};

/* ---- routes --------------------------------------------------------------------------------- */

enum verb {
    VERB_NONE = 0, /* open to all who can connect */
#define X(name, text) VERB_BIT_##name,
    VERB_MAP(X)
#undef X
#define X(name, text) VERB_##name = 1 << VERB_BIT_##name,
        VERB_MAP(X)
#undef X
            VERB_ALL = ~0u >> 1,
    /* one of these; what each request of a batch needs is looked at by itself */
    VERB_BATCH = VERB_LOCKS_WRITE | VERB_EXECUTIONS_WRITE | VERB_EXECUTIONS_WORK
};

typedef void handler_fn(struct request *req);

struct route {
    const char *method;
    const char *path; /* a segment * is NAME, # the ID of an execution */
    enum verb verb;
    handler_fn *handle;
    const char *const *query; /* the parameters it knows, NULL at the end; NULL: none */
    size_t body_max;          /* 0: BODY_MAX */
};

/* Find the row of the table, once the headers are there; NULL: there is none. */
const struct route *route_find(const char *method, const char *path);
/* May this client use it, and so? False: answered. */
bool route_enter(struct request *req);
/* Call its handler, or answer that there is none. */
void route_request(struct request *req);

handler_fn get_lock, post_acquire, post_extend, post_release, post_force, post_guard, get_locks,
    post_sweep, get_wakes, post_batch, get_totals, get_events, get_stream, get_metrics, get_health,
    get_ready, get_openapi, get_root, post_execution, get_executions, get_execution, get_input,
    get_output, get_log, get_last_key, post_cancel, post_retry, post_claim, post_due,
    post_heartbeat, post_finish, post_webhook;

/* ---- the service ---------------------------------------------------------------------------- */

struct server {
    const struct serve_options *opts;
    struct config *config;
    struct hf_workflows *workflows; /* of `config`: until the next reload. A request that needs one
                                       for longer asks request_workflow() */
    struct lanes *lanes;
    struct hf_watch *watch; /* NULL: the store can't wake */
    struct listener listeners[LISTENERS_MAX];
    size_t n_listeners;
    int epoll_fd, signal_fd;
    int gone_fd; /* an epoll of connections whose clients wait, to see them leave */
    bool draining;
    bool closed; /* nothing more is begun */
    int64_t drain_until_ms;
    struct request *requests;
    size_t n_requests, n_connections;
    size_t reserved;            /* of LARGE_MAX */
    struct due idle, receiving; /* heads of lists */
    struct waits *waits;
    struct streams *streams;
    struct results *results;
    struct waker *wakers; /* wakes.c: their list */
    struct metrics *metrics;
    struct access *access;
    struct known *known; /* executions.c: by their ids */
    struct claims *claims;
    uint64_t id_high, id_count;
    bool again; /* run the loop once more before it sleeps */
};

/* ---- http.c --------------------------------------------------------------------------------- */

int http_start(struct server *server, struct listener *listener, struct hf_error *err);

/* Close what has been slow; when that is to be looked at next, INT64_MAX: never. */
int64_t http_tick(struct server *server, int64_t now_ms);

/* Answer with what is in req->answer (application/json), with this status. */
void request_answer(struct request *req, unsigned status);

/* A problem document (RFC 9457); `holder` may be NULL. */
void request_problem(struct request *req, int code, const char *detail,
                     const struct hf_status *holder);
void request_fail(struct request *req, const struct hf_error *err);

/* In how many seconds it is worth to ask again after this refusal; 0: never. */
int retry_after_s(int code, const struct hf_status *holder);

/* Put the request's job on a lane. done() is called even if the client has gone: request_back(). */
void request_ask(struct request *req, enum lane_name lane, job_done_fn *done);

/* In done(): the request, or NULL where its client has gone; then it is no more. */
struct request *request_back(struct job *job);

/* Room for so many bytes beyond what every request has, until the request ends. */
bool request_reserve(struct request *req, size_t bytes);

/* End all requests that are still waited for: the store did not answer in time. */
void http_give_up(struct server *server);

/* Let the library go on with a request that was suspended. */
void request_resume(struct request *req);

/* See the client leave while it waits: then req->left is set and `forget` is called. */
void request_watch_client(struct request *req);
void request_unwatch_client(struct request *req);
void http_see_gone(struct server *server);

/* A parameter of the query, decoded into `room`; NULL: absent, or it does not fit. */
const char *request_query(const struct request *req, const char *name, char *room, size_t size);

/* What hf_watch wakes: embedded in what it is about. */
struct woken {
    void (*wake)(struct woken *woken);
};

/* ---- waits.c -------------------------------------------------------------------------------- */

int waits_open(struct server *server, struct hf_error *err);
void waits_close(struct server *server);
/* Acquire, and wait where it is held. Answers the request. */
void waits_begin(struct request *req, const struct fields *fields);
/* Ask again for those whom the store names, and those whose time has come; when next. */
void waits_woken(struct server *server);
int64_t waits_tick(struct server *server, int64_t now_ms);
/* Tell all who wait to ask elsewhere. */
void waits_drain(struct server *server);
size_t waits_count(const struct server *server);

/* ---- wakes.c -------------------------------------------------------------------------------- */

void wakes_drain(struct server *server);

/* ---- events.c ------------------------------------------------------------------------------- */

int streams_open(struct server *server, struct hf_error *err);
void streams_close(struct server *server);
int64_t streams_tick(struct server *server, int64_t now_ms);
void streams_drain(struct server *server);

/* ---- results.c ------------------------------------------------------------------------------ */

int results_open(struct server *server, struct hf_error *err);
void results_close(struct server *server);
int64_t results_tick(struct server *server, int64_t now_ms);
void results_drain(struct server *server);

/* ---- webhooks.c ----------------------------------------------------------------------------- */

/* Does a signature, which its handler checks, decide on this request, and no token? */
bool webhook_is_to_be_signed(struct request *req);

/* ---- config.c ------------------------------------------------------------------------------- */

int config_open(struct server *server, struct hf_error *err);
void config_close(struct server *server);
/* Read it again; where it is bad the old one stays. Says so in the log. */
void config_reload(struct server *server);
/* The request needs its configuration no more. */
void request_forget_config(struct request *req);

/* ---- executions.c, claims.c ----------------------------------------------------------------- */

int executions_open(struct server *server, struct hf_error *err);
void executions_close(struct server *server);
int claims_open(struct server *server, struct hf_error *err);
void claims_close(struct server *server); /* before the lanes */
/* Readable when the store has something to do for those who wait; -1: it can't tell. */
int claims_fd(const struct server *server);
void claims_woken(struct server *server);
/* Let those look again whose time has come; when next. */
int64_t claims_tick(struct server *server, int64_t now_ms);
/* Send away those who wait for work. */
void claims_drain(struct server *server);

/* ---- access.c ------------------------------------------------------------------------------- */

int access_open(struct server *server, struct hf_error *err);
void access_close(struct server *server);
/* Read the tokens again. */
void access_reload(struct server *server);
int64_t access_tick(struct server *server, int64_t now_ms);
/* May this client do what the route is for, to this name? False: answered with a problem. */
bool access_check(struct request *req);

/* ---- metrics.c ------------------------------------------------------------------------------ */

enum histogram_name { H_ACQUIRE, H_WAIT, H_HOLD, H_MARGIN, H_REQUEST, H_LAG, N_HISTOGRAMS };
int metrics_open(struct server *server, struct hf_error *err);
void metrics_close(struct server *server);
void metrics_observe(struct server *server, enum histogram_name which, int64_t us);
void metrics_request(struct server *server, unsigned status);
void metrics_store_error(struct server *server, enum hf_op op);
/* Who asked for a lock was overtaken: by another request with its token, or for the same execution. */
void metrics_raced(struct server *server);
/* A lease was granted or renewed, or ended, through this service. */
void metrics_lease(struct server *server, const struct hf_lease *lease, bool is_new);
void metrics_released(struct server *server, const char *token);
/* An execution was claimed, has ended, through this service. */
void metrics_execution_claimed(struct server *server, const struct hf_execution *x);
void metrics_execution_ended(struct server *server, const struct hf_execution *x);

/* ---- notify.c, listen.c --------------------------------------------------------------------- */

/* Tell systemd, where it started us: "READY=1". */
void notify_systemd(const char *text);
/* How often it wants to hear WATCHDOG=1; 0: never. */
int64_t notify_watchdog_ms(void);

/* Open what --listen names, or adopt what systemd hands over. */
int listen_open(struct server *server, struct hf_error *err);
void listen_close(struct server *server);

int64_t now_us(void);
int64_t now_ms(void);

#endif
