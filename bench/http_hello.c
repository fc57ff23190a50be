/*
 * A bare "hello" by each HTTP library that was considered for the service, and by an epoll of our
 * own: see docs/http-library.md.
 *
 *     http_hello mhd|h2o|event|own PORT      GET / answers at once, GET /wait never, GET /later when
 *                                            another thread has had it (not event)
 *
 * One thread and one event loop each, as the service would use it.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <h2o.h>
#include <microhttpd.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char body[] = "{\"name\":\"hello\",\"state\":\"free\",\"fence\":0,\"waiters\":0}";

/* As a socket-activated service gets it: a listening descriptor that somebody else has made. */
static int listen_on(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 4096) < 0)
        err(1, "port %d", port);
    return fd;
}

/* ---- the other thread ----------------------------------------------------------------------- */

/* Embedded in, or made for, a request that is answered later. */
struct job {
    struct job *next;
    void *of;
    bool done;
};

static struct job *gathered, *queue, *done; /* gathered: the loop's own; the others: the mutex's */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t todo = PTHREAD_COND_INITIALIZER;
static int done_fd;

static struct job **end_of(struct job **list)
{
    while (*list)
        list = &(*list)->next;
    return list;
}

/* What has gathered while it was busy is done together, for as long as a sync takes. */
static void *lane_main(void *arg)
{
    static const struct timespec sync = {.tv_nsec = 150000};
    (void)arg;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!queue)
            pthread_cond_wait(&todo, &mutex);
        struct job *batch = queue;
        queue = NULL;
        pthread_mutex_unlock(&mutex);
        nanosleep(&sync, NULL);
        pthread_mutex_lock(&mutex);
        *end_of(&done) = batch;
        eventfd_write(done_fd, 1);
    }
    return NULL;
}

static void put(struct job *job)
{
    job->next = gathered;
    gathered = job;
}

/* After each turn of the loop. */
static void flush(void)
{
    if (!gathered)
        return;
    pthread_mutex_lock(&mutex);
    *end_of(&queue) = gathered;
    gathered = NULL;
    pthread_mutex_unlock(&mutex);
    pthread_cond_signal(&todo);
}

/* When done_fd is readable. */
static struct job *take_done(void)
{
    eventfd_t ignored;
    eventfd_read(done_fd, &ignored);
    pthread_mutex_lock(&mutex);
    struct job *all = done;
    done = NULL;
    pthread_mutex_unlock(&mutex);
    return all;
}

/* ---- libmicrohttpd -------------------------------------------------------------------------- */

static enum MHD_Result mhd_send(struct MHD_Connection *c)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(body), body, MHD_RESPMEM_PERSISTENT);
    MHD_add_response_header(r, "Content-Type", "application/json");
    enum MHD_Result queued = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return queued;
}

static enum MHD_Result mhd_answer(void *arg, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context)
{
    struct job *job = *context;
    (void)arg, (void)method, (void)version, (void)data, (void)size;
    if (!job) {
        *context = calloc(1, sizeof *job);
        return *context ? MHD_YES : MHD_NO;
    }
    if (strcmp(url, "/wait") == 0) {
        MHD_suspend_connection(c);
        return MHD_YES;
    }
    if (strcmp(url, "/later") == 0 && !job->done) {
        job->of = c;
        MHD_suspend_connection(c);
        put(job);
        return MHD_YES;
    }
    return mhd_send(c);
}

static void mhd_completed(void *arg, struct MHD_Connection *c, void **context,
                          enum MHD_RequestTerminationCode how)
{
    (void)arg, (void)c, (void)how;
    free(*context);
}

static void serve_mhd(int fd)
{
    struct MHD_Daemon *d =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, mhd_answer, NULL,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, 20000u,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)12288,
                         MHD_OPTION_NOTIFY_COMPLETED, mhd_completed, NULL, MHD_OPTION_END);
    if (!d)
        errx(1, "libmicrohttpd does not start");
    struct pollfd p[] = {
        {.fd = MHD_get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, .events = POLLIN},
        {.fd = done_fd, .events = POLLIN}};
    for (;;) {
        MHD_UNSIGNED_LONG_LONG ms;
        poll(p, 2, MHD_get_timeout(d, &ms) == MHD_YES ? (int)ms : -1);
        for (struct job *job = p[1].revents ? take_done() : NULL, *next; job; job = next) {
            next = job->next;
            job->done = true;
            MHD_resume_connection(job->of);
        }
        MHD_run(d);
        flush();
    }
}

/* ---- libh2o --------------------------------------------------------------------------------- */

static h2o_globalconf_t h2o_config;
static h2o_context_t h2o_context;
static h2o_accept_ctx_t h2o_accept_context;

static void h2o_respond(h2o_req_t *req)
{
    static h2o_generator_t generator;
    h2o_iovec_t text = {body, sizeof body - 1};
    req->res.status = 200;
    req->res.content_length = text.len;
    h2o_add_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL,
                   H2O_STRLIT("application/json"));
    h2o_start_response(req, &generator);
    h2o_send(req, &text, 1, 1);
}

static int h2o_answer(h2o_handler_t *self, h2o_req_t *req)
{
    (void)self;
    if (h2o_memis(req->path.base, req->path.len, H2O_STRLIT("/wait")))
        return 0;
    if (h2o_memis(req->path.base, req->path.len, H2O_STRLIT("/later"))) {
        struct job *job = h2o_mem_alloc_pool(&req->pool, sizeof *job);
        job->of = req;
        put(job);
    } else
        h2o_respond(req);
    return 0;
}

static void h2o_done(h2o_socket_t *sock, const char *problem)
{
    (void)problem;
    h2o_buffer_consume(&sock->input, sock->input->size);
    for (struct job *job = take_done(), *next; job; job = next) {
        next = job->next;
        h2o_respond(job->of);
    }
}

static void h2o_accepted(h2o_socket_t *listener, const char *problem)
{
    h2o_socket_t *sock = problem ? NULL : h2o_evloop_socket_accept(listener);
    if (sock)
        h2o_accept(&h2o_accept_context, sock);
}

static void serve_h2o(int fd)
{
    h2o_config_init(&h2o_config);
    h2o_hostconf_t *host =
        h2o_config_register_host(&h2o_config, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    h2o_pathconf_t *path = h2o_config_register_path(host, "/", 0);
    h2o_create_handler(path, sizeof(h2o_handler_t))->on_req = h2o_answer;
    h2o_context_init(&h2o_context, h2o_evloop_create(), &h2o_config);
    h2o_accept_context.ctx = &h2o_context;
    h2o_accept_context.hosts = h2o_config.hosts;
    h2o_socket_t *listener =
        h2o_evloop_socket_create(h2o_context.loop, fd, H2O_SOCKET_FLAG_DONT_READ);
    h2o_socket_read_start(listener, h2o_accepted);
    h2o_socket_read_start(
        h2o_evloop_socket_create(h2o_context.loop, done_fd, H2O_SOCKET_FLAG_DONT_READ), h2o_done);
    while (h2o_evloop_run(h2o_context.loop, INT32_MAX) == 0)
        flush();
}

/* ---- libevent ------------------------------------------------------------------------------- */

static void event_answer(struct evhttp_request *req, void *arg)
{
    (void)arg;
    if (strcmp(evhttp_request_get_uri(req), "/wait") == 0)
        return;
    struct evbuffer *out = evbuffer_new();
    evbuffer_add(out, body, sizeof body - 1);
    evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type", "application/json");
    evhttp_send_reply(req, 200, "OK", out);
    evbuffer_free(out);
}

static void serve_event(int fd)
{
    struct event_base *base = event_base_new();
    struct evhttp *http = evhttp_new(base);
    evhttp_set_gencb(http, event_answer, NULL);
    if (evhttp_accept_socket(http, fd) < 0)
        errx(1, "libevent does not start");
    event_base_dispatch(base);
}

/* ---- an epoll of our own -------------------------------------------------------------------- */

/* As src/server has it: told to epoll once, edge-triggered; one receive and one send per request. */
struct own {
    struct job job; /* first */
    int fd;
    size_t n;
    char in[4096];
};

static void own_answer(const struct own *c)
{
    char out[512];
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 200 OK\r\nDate: Mon, 16 Nov 2026 03:00:00 GMT\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     sizeof body - 1, body);
    if (send(c->fd, out, (size_t)n, MSG_NOSIGNAL) != n)
        warn("send");
}

static void own_read(struct own *c)
{
    ssize_t n = recv(c->fd, c->in + c->n, sizeof c->in - c->n - 1, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        close(c->fd);
        free(c);
        return;
    }
    c->n += (size_t)n;
    c->in[c->n] = '\0';
    if (!strstr(c->in, "\r\n\r\n"))
        return;
    c->n = 0;
    if (strncmp(c->in, "GET /later ", 11) == 0)
        put(&c->job);
    else if (strncmp(c->in, "GET /wait ", 10) != 0)
        own_answer(c);
}

static void own_accept(int epoll_fd, int listen_fd)
{
    int fd;
    while ((fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct own *c = calloc(1, sizeof *c);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        if (!c)
            err(1, "calloc");
        c->fd = fd;
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void serve_own(int fd)
{
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event from_new = {.events = EPOLLIN, .data.ptr = NULL},
                       from_lane = {.events = EPOLLIN, .data.ptr = &done_fd}, events[128];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &from_new);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, done_fd, &from_lane);
    for (;; flush()) {
        int n = epoll_wait(epoll_fd, events, 128, -1);
        for (int i = 0; i < n; i++)
            if (!events[i].data.ptr)
                own_accept(epoll_fd, fd);
            else if (events[i].data.ptr != &done_fd)
                own_read(events[i].data.ptr);
            else
                for (struct job *job = take_done(), *next; job; job = next) {
                    next = job->next;
                    own_answer((struct own *)job);
                }
    }
}

int main(int argc, char **argv)
{
    struct rlimit files;
    if (argc != 3)
        errx(64, "usage: http_hello mhd|h2o|event|own PORT");
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    int fd = listen_on(atoi(argv[2]));
    pthread_t lane;
    done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pthread_create(&lane, NULL, lane_main, NULL) != 0)
        errx(1, "no thread");
    if (strcmp(argv[1], "own") == 0)
        serve_own(fd);
    else if (strcmp(argv[1], "mhd") == 0)
        serve_mhd(fd);
    else if (strcmp(argv[1], "h2o") == 0)
        serve_h2o(fd);
    else
        serve_event(fd);
}
