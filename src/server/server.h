/*
 * The service. One thread speaks HTTP and never waits for the store; lanes (lane.h) do. A request's
 * way:
 *
 *   connection.c  has its bytes, bounded in size and time; tls.c may stand before it
 *   message.c     reads them, strictly
 *   http.c        makes a request of them
 *   access.c      may this client do that?
 *   routes.c      finds its row in the table of routes, which names the handler
 *   locks.c       asks a lane, or waits.c to wait (no thread, no descriptor each); events.c, pages.c
 *   answer.c      sends what request_answer() or request_problem() was given
 *
 * serve.c is the loop and the life of the service, listen.c its sockets, notify.c what systemd is
 * told, log.c what people are, metrics.c what Prometheus is.
 */
#ifndef HF_SERVER_SERVER_H
#define HF_SERVER_SERVER_H

#include <jansson.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "buf.h"
#include "lane.h"
#include "message.h"
#include "ring.h"
#include "serve.h"
#include "tls.h"

enum {
    LISTENERS_MAX = 8,
    ANSWER_MAX = 8 << 20,   /* bytes of one answer */
    BODY_MAX = 64 << 10,    /* of a JSON body */
    DEPTH_MAX = 16,         /* of nesting in one */
    HEADERS_MAX = 12 << 10, /* of a request's head */
    ROOM_SIZE = 64 << 10,   /* what is received at once; more than a head */
    IDLE_MS = 60000,        /* a connection without a request is closed after so long */
    RECEIVE_MS = 15000,     /* a request, once begun, must have arrived within so long */
    SEND_MS = 60000,        /* who takes nothing of its answer for so long is not interested */
    LINGER_MS = 2000,       /* after the last answer: for the client to have read it */
    DRAIN_MS = 20000,       /* SIGTERM: what is in flight has so long */
    PAGE_DEFAULT = 100,
    PAGE_MAX = 1000,
    REQUEST_ID_MAX = 64,
    WAKER_BUCKETS = 1024,
};
#define WAIT_MAX_MS (INT64_C(24) * 3600 * 1000)

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
    const char *prefix;
};

struct route;

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
    char *name; /* the NAME of the path, decoded */
    struct grant may;
    struct job job;
    void *context; /* the handler's, freed by `forget` */
    void (*forget)(struct request *req);
    /* the answer */
    unsigned status;
    const char *content_type;
    struct hf_buf answer;
    struct stream_source stream; /* instead of `answer` */
    const char *allow;           /* 405: which methods */
    const char *cache_control;   /* NULL: nothing is said */
    int retry_after_s;
    bool arrived, answered;
    bool sending; /* the answer's head has been sent */
    bool working; /* a lane has its job: it must outlive the connection */
    bool left;    /* the client was seen leaving while it waited */
    bool gone;    /* its connection is */
    bool watched; /* whether its client leaves */
    char head_room[];
};

/* ---- routes --------------------------------------------------------------------------------- */

/* What a token may be allowed to do; `token create --allow`. X(name, text) */
#define VERB_MAP(X)                                                                                \
    X(LOCKS_READ, "locks:read")                                                                    \
    X(LOCKS_WRITE, "locks:write")                                                                  \
    X(LOCKS_FORCE, "locks:force")                                                                  \
    X(EVENTS_READ, "events:read")                                                                  \
    X(METRICS_READ, "metrics:read")

enum verb {
    VERB_NONE = 0, /* open to all who can connect */
#define X(name, text) VERB_BIT_##name,
    VERB_MAP(X)
#undef X
#define X(name, text) VERB_##name = 1 << VERB_BIT_##name,
        VERB_MAP(X)
#undef X
            VERB_ALL = ~0u >> 1
};

typedef void handler_fn(struct request *req);

struct route {
    const char *method;
    const char *path; /* a segment * is NAME */
    enum verb verb;
    handler_fn *handle;
    const char *const *query; /* the parameters it knows, NULL at the end; NULL: none */
};

/* Find the route and call its handler, or answer that there is none. */
void route_request(struct request *req);

handler_fn get_lock, post_acquire, post_extend, post_release, post_force, post_guard, get_locks,
    post_sweep, get_wakes, post_batch, get_totals, get_events, get_stream, get_metrics, get_health,
    get_ready, get_openapi, get_root;

/* ---- the service ---------------------------------------------------------------------------- */

struct server {
    const struct serve_options *opts;
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
    struct ring idle, receiving, sending, lingering; /* of dues */
    struct ring ready, dead;                         /* of connections */
    char *room;                                      /* what is received at once, of any of them */
    struct hf_buf head;                              /* of an answer */
    char date[40];
    time_t dated;
    struct waits *waits;
    struct streams *streams;
    struct waker *wakers[WAKER_BUCKETS]; /* wakes.c: by lock id */
    struct metrics *metrics;
    struct access *access;
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
/* Send, now or as soon as the client takes it. */
void connection_send(struct connection *c, struct iovec *parts, size_t n);
/* Has it taken everything? */
bool connection_flush(struct connection *c);
/* Nothing more is said; the client has a while to read what was. */
void connection_finish(struct connection *c);
/* ... during which nobody listens to it. */
void connection_linger(struct connection *c);
void connection_close(struct connection *c);
/* Forget those that were closed. */
void connections_bury(struct server *server);
/* In this list of dues until so long from now. */
void connection_due(struct connection *c, struct ring *list, int64_t in_ms);
/* Close what has been slow; when that is to be looked at next, INT64_MAX: never. */
int64_t connections_tick(struct server *server, int64_t now_ms);

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

/* Put the request's job on a lane. done() is called even if the client has gone: request_back(). */
void request_ask(struct request *req, enum lane_name lane, job_done_fn *done);

/* In done(): the request, or NULL where its client has gone; then it is no more. */
struct request *request_back(struct job *job);

/* End all requests that are still waited for: the store did not answer in time. */
void http_give_up(struct server *server);

/* Answer with a stream, text/event-stream. */
void request_stream(struct request *req, const struct stream_source *source);
/* The request has something to send. */
void request_resume(struct request *req);

/* See the client leave while it waits: then req->left is set and `forget` is called. */
void request_watch_client(struct request *req);
void request_unwatch_client(struct request *req);

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

/* ---- body.c --------------------------------------------------------------------------------- */

/* Every field that a JSON body of a lock's route may have. Absent ones are NULL, or -1. */
struct fields {
    const char *token, *owner, *note, *reason;
    int64_t ttl_ms, wait_ms, fence, priority;
    bool has_priority;
};
enum {
    FIELD_TOKEN = 1 << 0,
    FIELD_OWNER = 1 << 1,
    FIELD_NOTE = 1 << 2,
    FIELD_REASON = 1 << 3,
    FIELD_TTL = 1 << 4,
    FIELD_WAIT = 1 << 5,
    FIELD_FENCE = 1 << 6,
    FIELD_PRIORITY = 1 << 7,
};

/* Bounded, no duplicate keys, an object. It is kept in req->json. False: answered with a problem. */
bool body_parse(struct request *req);
/* Its fields, of which no others may be there; req->json is not always made. */
bool body_read(struct request *req, unsigned allowed, struct fields *ret);
bool body_is_token(const char *text);
bool decode_percent(const char *text, size_t n, char *ret, size_t size);
/* In a query a '+' is a space as well. */
bool decode_query(const char *text, size_t n, char *ret, size_t size);
/* A whole number of a query parameter, or `otherwise` where it is absent. False: answered. */
bool query_int(struct request *req, const char *name, int64_t min, int64_t max, int64_t otherwise,
               int64_t *ret);

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

/* ---- access.c ------------------------------------------------------------------------------- */

int access_open(struct server *server, struct hf_error *err);
void access_close(struct server *server);
/* Read the tokens again. */
void access_reload(struct server *server);
int64_t access_tick(struct server *server, int64_t now_ms);
/* May this client do what the route is for, to this name? False: answered with a problem. */
bool access_check(struct request *req);

/* ---- metrics.c ------------------------------------------------------------------------------ */

enum histogram_name { H_ACQUIRE, H_WAIT, H_HOLD, H_MARGIN, H_REQUEST, N_HISTOGRAMS };
int metrics_open(struct server *server, struct hf_error *err);
void metrics_close(struct server *server);
void metrics_observe(struct server *server, enum histogram_name which, int64_t us);
void metrics_request(struct server *server, unsigned status);
void metrics_store_error(struct server *server, enum hf_op op);
/* A lease was granted or renewed, or ended, through this service. */
void metrics_lease(struct server *server, const struct hf_lease *lease, bool is_new);
void metrics_released(struct server *server, const char *token);

/* ---- log.c ---------------------------------------------------------------------------------- */

/* One line: log_event("listening", "address", text, ..., LOG_END). A value that is NULL is left
 * out. */
#define LOG_END ((const char *)NULL)
void log_open(bool json);
void log_event(const char *event, ...) __attribute__((sentinel));
void log_flush(void);

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
