/*
 * A bare "hello" by each HTTP library that was considered for the service: see docs/http-library.md.
 *
 *     http_hello mhd|h2o|event PORT      GET / answers at once, GET /wait never
 *
 * One thread and one event loop each, as the service would use it.
 */
#include <arpa/inet.h>
#include <err.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <h2o.h>
#include <microhttpd.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 4096) < 0)
        err(1, "port %d", port);
    return fd;
}

/* ---- libmicrohttpd -------------------------------------------------------------------------- */

static enum MHD_Result mhd_answer(void *arg, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context)
{
    (void)arg, (void)method, (void)version, (void)data, (void)size;
    if (!*context) {
        *context = body;
        return MHD_YES;
    }
    if (strcmp(url, "/wait") == 0) {
        MHD_suspend_connection(c);
        return MHD_YES;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(body), body, MHD_RESPMEM_PERSISTENT);
    MHD_add_response_header(r, "Content-Type", "application/json");
    enum MHD_Result done = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return done;
}

static void serve_mhd(int fd)
{
    struct MHD_Daemon *d =
        MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, mhd_answer, NULL,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, 20000u,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)12288, MHD_OPTION_END);
    if (!d)
        errx(1, "libmicrohttpd does not start");
    struct pollfd p = {.fd = MHD_get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
                       .events = POLLIN};
    for (;;) {
        MHD_UNSIGNED_LONG_LONG ms;
        poll(&p, 1, MHD_get_timeout(d, &ms) == MHD_YES ? (int)ms : -1);
        MHD_run(d);
    }
}

/* ---- libh2o --------------------------------------------------------------------------------- */

static h2o_globalconf_t h2o_config;
static h2o_context_t h2o_context;
static h2o_accept_ctx_t h2o_accept_context;

static int h2o_answer(h2o_handler_t *self, h2o_req_t *req)
{
    static h2o_generator_t generator;
    (void)self;
    if (h2o_memis(req->path.base, req->path.len, H2O_STRLIT("/wait")))
        return 0;
    h2o_iovec_t text = {body, sizeof body - 1};
    req->res.status = 200;
    req->res.content_length = text.len;
    h2o_add_header(&req->pool, &req->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL,
                   H2O_STRLIT("application/json"));
    h2o_start_response(req, &generator);
    h2o_send(req, &text, 1, 1);
    return 0;
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
    while (h2o_evloop_run(h2o_context.loop, INT32_MAX) == 0)
        continue;
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

int main(int argc, char **argv)
{
    struct rlimit files;
    if (argc != 3)
        errx(64, "usage: http_hello mhd|h2o|event PORT");
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    int fd = listen_on(atoi(argv[2]));
    if (strcmp(argv[1], "mhd") == 0)
        serve_mhd(fd);
    else if (strcmp(argv[1], "h2o") == 0)
        serve_h2o(fd);
    else
        serve_event(fd);
}
