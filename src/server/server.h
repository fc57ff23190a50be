/*
 * The service. One thread speaks HTTP and never waits for the store; lanes (lane.h) do. A request's
 * way:
 *
 *   connection.c  has its bytes, bounded in size and time; tls.c may stand before it
 *   message.c     reads them, strictly
 *   http.c        makes a request of them
 *   access.c      may this client do that?
 *   routes.c      finds its row in the table of routes, which names the handler
 *   body.h        reads what was sent
 *   locks.c       asks a lane, or waits.c to wait (no thread, no descriptor each); events.c, pages.c;
 *                 executions.h; webhooks.c, and results.c for an execution's end
 *   answer.c      sends what request_answer() or request_problem() was given
 *
 * serve.c is the loop and the life of the service, listen.c its sockets, notify.c what systemd is
 * told, metrics.c what Prometheus is, config.c the workflows, runner.c
 * the process that runs them.
 */
#ifndef HF_SERVER_SERVER_H
#define HF_SERVER_SERVER_H

#include <jansson.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "buf.h"
#include "lane.h"
#include "log.h"
#include "message.h"
#include "ring.h"
#include "serve.h"
#include "tls.h"

enum {
    LISTENERS_MAX = 8,
    ANSWER_MAX = 8 << 20,    /* bytes of one answer */
    BODY_MAX = 64 << 10,     /* of a JSON body, where the route does not say more */
    BODY_LARGE = 24 << 20,   /* of one with an execution's input */
    BODY_OUTPUT = 2 << 20,   /* of one with its output */
    BODY_HOOK = 1,           /* of a webhook: as opts->max_body says */
    LARGE_MAX = 128 << 20,   /* of all larger bodies and answers together, at one moment */
    DEPTH_MAX = 16,          /* of nesting in one */
    VALUES_MAX = 1 << 16,    /* in one */
    HEADERS_MAX = 12 << 10,  /* of a request's head */
    ROOM_SIZE = 64 << 10,    /* what is received at once; more than a head */
    IDLE_MS = 60000,         /* a connection without a request is closed after so long */
    RECEIVE_BYTES = 1 << 20, /* of a body: when they have arrived, opts->receive_ms begins again */
    SEND_MS = 60000,         /* who takes nothing of its answer for so long is not interested */
    LINGER_MS = 10000,       /* after the last answer: for the client to have read it */
    DRAIN_MS = 20000,        /* SIGTERM: what is in flight has so long */
    PAGE_DEFAULT = 100,
    PAGE_MAX = 1000,
    REQUEST_ID_MAX = 64,
    WORKFLOWS_MAX = 256, /* that a claim may name */
    CLAIM_MAX = 256,
    WAKER_BUCKETS = 1024,
};
#define WAIT_MAX_MS (INT64_C(24) * 3600 * 1000)
#define BACKOFF_MAX_MS (INT64_C(7) * 24 * 3600 * 1000)

/* ---- a listening socket, a connection, a request -------------------------------------------- */

struct listener {
    struct server *server;
    int fd;
    char address[200]; /* for people */
    bool is_unix, tls;
    bool made;              /* the Unix socket's file is ours to remove */
    bool watched;           /* its descriptor is in the loop's epoll: new clients are welcome */
    int64_t pause_until_ms; /* 0: they are, unless there are too many */
    size_t n_connections;
};

/* In a list of those that must be done by a certain time; the first is due first. */
struct due {
    struct ring ring; /* first */
    int64_t at_ms;
};

struct connection {
    struct ring ring; /* first: in server->connections */
    struct due due;
    struct ring ready; /* in server->ready: it can go on; once closed, in server->closed */
    struct listener *listener;
    int fd;
    struct tls *tls;      /* NULL: plain */
    struct request *req;  /* being received, worked on or answered; NULL: between two */
    struct hf_buf kept;   /* received, not yet read */
    size_t scanned;       /* of that, when it is a part of a head */
    struct hf_buf unsent; /* from `sent` on */
    size_t sent;
    bool peer_refused;  /* of another user, at a Unix socket */
    bool peer_trusted;  /* of this user or root, at a Unix socket */
    bool readable;      /* as far as we know */
    bool peer_left;     /* it will send nothing more */
    bool ended;         /* all that it sent was received */
    bool broken;        /* or nothing can be sent any more */
    bool looked_at;     /* `kept` was, and is not enough */
    bool receiving;     /* a request has begun to arrive */
    bool waits_to_send; /* epoll tells when more can be sent */
    bool closing;       /* after this answer */
    bool lingering;     /* answered for the last time: what still comes is not read */
    bool closed;
};

/* What a bearer may do. */
struct grant {
    unsigned verbs; /* bits of enum verb */
    char prefix[HF_NAME_MAX + 1];
};

struct route;
struct fields;

/*
 * An answer without an end: `read` fills in what is to be sent next. 0: nothing for now, and
 * request_resume() when there is; STREAM_END: that was all. `gone`: nobody will read it any more.
 */
enum { STREAM_END = -1 };
struct stream_source {
    ssize_t (*read)(void *arg, char *to, size_t size);
    void (*gone)(void *arg);
    void *arg;
};

struct request {
    struct ring ring; /* in server->requests, while its connection lasts */
    struct server *server;
    struct connection *connection;
    const struct route *route;
    const char *method, *path;
    char id[REQUEST_ID_MAX + 1];
    struct { /* headers; NULL: absent */
        const char *authorization, *origin, *host, *last_event_id, *id;
    } header;
    struct head head;
    struct chunks chunks;
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
    struct stream_source stream; /* instead of `answer` */
    const char *allow;           /* 405: which methods */
    const char *cache_control;   /* NULL: nothing is said */
    int retry_after_s;
    int64_t waited_s;               /* as Prefer: wait= was heeded; 0: it was not */
    char existing[HF_UUID_LEN + 1]; /* of a problem: the execution that is there already */
    size_t sent;                    /* of `answer` */
    bool entered, arrived, answered;
    bool sending; /* the answer's head has been sent */
    bool working; /* a lane has its job: it must outlive the connection */
    bool left;    /* the client was seen leaving while it waited */
    bool gone;    /* its connection is */
    bool watched; /* whether its client leaves */
    char head_room[];
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
    get_output, get_log, get_last_key, post_cancel, post_retry, post_claim, post_due, post_idle,
    post_awake, post_heartbeat, post_finish, post_webhook;

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
    struct tls_context *tls;
    int epoll_fd, signal_fd;
    bool draining;
    bool closed; /* nothing more is begun */
    int64_t drain_until_ms;
    int64_t turn_ms; /* when this turn of the loop began */
    struct ring connections, requests;
    size_t n_connections, n_requests;
    size_t reserved;                                 /* of LARGE_MAX */
    struct ring idle, receiving, sending, lingering; /* of dues */
    struct ring ready, dead;                         /* of connections */
    char *room;                                      /* what is received at once, of any of them */
    struct hf_buf head;                              /* of an answer */
    char date[40];
    time_t dated;
    struct waits *waits;
    struct streams *streams;
    struct results *results;
    struct waker *wakers[WAKER_BUCKETS]; /* wakes.c: by lock id */
    struct metrics *metrics;
    struct access *access;
    struct known *known; /* executions.c: by their ids */
    struct claims *claims;
    struct runner *runner;
    uint64_t id_high, id_count;
    bool again; /* run the loop once more before it sleeps */
};

/* ---- connection.c --------------------------------------------------------------------------- */

int connections_open(struct server *server, struct hf_error *err);
/* Close all that are left. */
void connections_close(struct server *server);

/* What the loop's epoll knows a listening socket by; whatever is larger is a connection. */
enum { FROM_LISTENERS = 16, FROM_CONNECTIONS = FROM_LISTENERS + LISTENERS_MAX };

/* Take new clients, or none: a full service leaves them to the kernel's queue. */
int listener_watch(struct listener *l, struct hf_error *err);
void listener_unwatch(struct listener *l);
void listener_accept(struct listener *l);

/* What epoll says of it. */
void connection_event(struct connection *c, unsigned events);
/* It has something to do: in this turn of the loop or the next. */
void connection_ready(struct connection *c);
/*
 * All that has come and was not read yet, at server->room. What the caller does not take of it is
 * given back by connection_keep(); `looked_at`: more must come before it can be. False: nothing is
 * there that was not looked at.
 */
bool connection_receive(struct connection *c, size_t *ret_n);
void connection_keep(struct connection *c, const char *rest, size_t n, bool looked_at);
/* Send, now or as soon as the client takes it: something small. */
void connection_send(struct connection *c, struct iovec *parts, size_t n);
/* Send some of it, if the client takes it: how much. */
size_t connection_offer(struct connection *c, char *text, size_t n);
/* Has it taken everything that was sent? */
bool connection_flush(struct connection *c);
/* Nothing more is offered to it. */
void connection_settle(struct connection *c);
/* Nothing more is said; the client has a while to read what was. */
void connection_finish(struct connection *c);
/* ... during which nobody listens to it. */
void connection_linger(struct connection *c);
void connection_close(struct connection *c);
/* Forget those that were closed. */
void connections_bury(struct server *server);
/* In this list of dues until so long from now. */
void connection_due(struct connection *c, struct ring *list, int64_t in_ms);
/* Close connections that have been slow, and accept again after a pause. */
void connections_tick(struct server *server, int64_t now_ms);
/* When there will be something to do for connections_tick(); INT64_MAX: never. */
int64_t connections_due_ms(struct server *server);

/* ---- http.c --------------------------------------------------------------------------------- */

/* Go on with all connections that can. */
void http_run(struct server *server);
/* Its time to arrive is over. */
void http_too_slow(struct connection *c);
/* The request is over: it was answered, or its connection is no more. */
void request_end(struct request *req);

/* ---- answer.c ------------------------------------------------------------------------------- */

/* Send the answer, or the next piece of it. True: that was all, and it is on its way. */
bool answer_send(struct request *req);

/* Answer with what is in req->answer (application/json), with this status. */
void request_answer(struct request *req, unsigned status);

/* A problem document (RFC 9457); `holder` may be NULL. */
void request_problem(struct request *req, int code, const char *detail,
                     const struct hf_status *holder);
void request_fail(struct request *req, const struct hf_error *err);
/* A problem with a status of its own. */
void request_refuse(struct request *req, unsigned status, int code, const char *detail);

/* In how many seconds it is worth to ask again after this refusal; 0: never. */
int retry_after_s(int code, const struct hf_status *holder);

static inline struct request *request_of(struct job *job)
{
    return (struct request *)((char *)job - offsetof(struct request, job));
}

/* Put the request's job on a lane. done() is called even if the client has gone: request_back(). */
void request_ask(struct request *req, enum lane_name lane, job_done_fn *done);

/* In done(): the request, or NULL where its client has gone; then it is no more. */
struct request *request_back(struct job *job);

/* Room for so many bytes beyond what every request has, until the request ends. */
bool request_reserve(struct request *req, size_t bytes);

/* End all requests that are still waited for: the store did not answer in time. */
void http_give_up(struct server *server);

/* Answer with a stream, text/event-stream. */
void request_stream(struct request *req, const struct stream_source *source);
/* The request has something to send. */
void request_resume(struct request *req);

/* See the client leave while it waits: then req->left is set and `forget` is called. */
void request_watch_client(struct request *req);
void request_unwatch_client(struct request *req);

/* A header; NULL: absent. */
const char *request_header(const struct request *req, const char *name);

/* A part of the query, as it came: start with *at = req->head.query. False: there are no more. */
struct query_part {
    const char *name, *value; /* value: NULL where there is no '=' */
    size_t n_name, n_value;
};
bool query_next(const char **at, struct query_part *ret);
/* Is the parameter there? */
bool request_has_query(const struct request *req, const char *name);
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
int config_reload(struct server *server);
/* The request needs its configuration no more. */
void request_forget_config(struct request *req);

/* ---- runner.c ------------------------------------------------------------------------------- */

/* Before signals are blocked and limits raised: commands shall have what we were given. */
int runner_open(struct server *server, struct hf_error *err);
void runner_close(struct server *server);
/* Once, when the lanes are open: without executions there is nothing to run. */
void runner_check_store(struct server *server);
/* Readable when it has ended: runner_ended(). */
int runner_fd(const struct server *server);
void runner_ended(struct server *server);
/* Start it where there are workflows and it does not run; when to look again. */
int64_t runner_tick(struct server *server, int64_t now_ms);
/* It reads the workflows again. */
void runner_reload(struct server *server);
/* It claims nothing more and ends; again: it kills its commands at once. */
void runner_stop(struct server *server);
bool runner_is_gone(const struct server *server);

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
