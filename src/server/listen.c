/* The sockets: TCP, Unix, or handed over by systemd. Another address than loopback needs tokens. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "error.h"
#include "server.h"

enum { BACKLOG = 4096, FIRST_HANDED_FD = 3 };

static bool is_loopback(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
    if (at->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
    return at->sa_family == AF_UNIX;
}

/* What a socket is bound to decides who may connect, whoever has bound it. */
static int adopt(struct server *server, int fd, struct hf_error *err)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    char host[100] = "", port[16] = "";
    if (server->n_listeners == LISTENERS_MAX)
        return hf_fail(err, HF_INVALID, "at most %d addresses can be listened at", LISTENERS_MAX);
    struct listener *l = &server->listeners[server->n_listeners];
    *l = (struct listener){.server = server, .fd = fd};
    if (getsockname(fd, (struct sockaddr *)&at, &size) < 0)
        return hf_fail_errno(err, HF_INVALID, errno, "descriptor %d is no socket", fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    l->is_unix = at.ss_family == AF_UNIX;
    l->tls = !l->is_unix && server->opts->tls_cert;
    if (l->is_unix)
        snprintf(l->address, sizeof l->address, "unix:%s", ((struct sockaddr_un *)&at)->sun_path);
    else {
        getnameinfo((struct sockaddr *)&at, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
        snprintf(l->address, sizeof l->address,
                 at.ss_family == AF_INET6 ? "%s://[%s]:%s" : "%s://%s:%s",
                 l->tls ? "https" : "http", host, port);
    }
    if (!is_loopback((struct sockaddr *)&at) && !server->opts->require_token)
        return hf_fail(
            err, HF_FORBIDDEN,
            "%s is open to others: add --require-token (see holdfast token), or listen at "
            "127.0.0.1 or a Unix socket",
            l->address);
    server->n_listeners++;
    return 0;
}

static int listen_unix(struct server *server, const char *path, struct hf_error *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof at.sun_path)
        return hf_fail(err, HF_INVALID, "unix:%s: a path of 1 to %zu bytes is needed", path,
                       sizeof at.sun_path - 1);
    strcpy(at.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make a socket");
    /* One that nobody listens at any more was left by a service that was killed. */
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno == ECONNREFUSED)
        unlink(path);
    mode_t before = umask(0177);
    int bound = bind(fd, (struct sockaddr *)&at, sizeof at);
    int saved = errno;
    umask(before);
    if (bound < 0 || listen(fd, BACKLOG) < 0) {
        saved = bound < 0 ? saved : errno;
        close(fd);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't listen at unix:%s", path);
    }
    int r = adopt(server, fd, err);
    if (r >= 0)
        server->listeners[server->n_listeners - 1].made = true;
    return r;
}

static int listen_tcp(struct server *server, const char *address, struct hf_error *err)
{
    char host[100];
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    size_t n = colon ? (size_t)(colon - address) : 0;
    if (!colon || n >= sizeof host)
        return hf_fail(err, HF_INVALID, "'%.100s' is not HOST:PORT or unix:PATH", address);
    bool bracketed = n > 1 && address[0] == '[' && address[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(bracketed ? n - 2 : n), address + bracketed);
    int failed = getaddrinfo(*host ? host : NULL, colon + 1, &hints, &found);
    if (failed)
        return hf_fail(err, HF_INVALID, "'%.100s' is not HOST:PORT: %s", address,
                       gai_strerror(failed));
    int one = 1, saved = 0;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        saved = errno;
    freeaddrinfo(found);
    if (saved) {
        if (fd >= 0)
            close(fd);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't listen at %s", address);
    }
    return adopt(server, fd, err);
}

/* What systemd has opened for us, see sd_listen_fds(3). */
static int adopt_handed(struct server *server, struct hf_error *err)
{
    const char *pid = getenv("LISTEN_PID"), *n_text = getenv("LISTEN_FDS");
    int n = pid && n_text && atoll(pid) == getpid() ? atoi(n_text) : 0, r = 0;
    for (int i = 0; r >= 0 && i < n; i++)
        r = adopt(server, FIRST_HANDED_FD + i, err);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    return r;
}

int listen_open(struct server *server, struct hf_error *err)
{
    char address[256];
    int r = adopt_handed(server, err);
    const char *at = server->opts->listen;
    if (!at && !server->n_listeners)
        at = SERVE_LISTEN_DEFAULT;
    while (r >= 0 && at && *at) {
        size_t n = strcspn(at, ",");
        if (n >= sizeof address)
            return hf_fail(err, HF_INVALID, "an address to listen at is too long");
        snprintf(address, sizeof address, "%.*s", (int)n, at);
        r = strncmp(address, "unix:", 5) == 0 ? listen_unix(server, address + 5, err)
                                              : listen_tcp(server, address, err);
        at += n + (at[n] == ',');
    }
    return r;
}

void listen_close(struct server *server)
{
    for (size_t i = 0; i < server->n_listeners; i++) {
        struct listener *l = &server->listeners[i];
        if (l->fd >= 0)
            close(l->fd);
        if (l->made)
            unlink(l->address + strlen("unix:"));
    }
}
