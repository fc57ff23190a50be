/*
 * Connections: their bytes in and out, and how long each may take. Edge-triggered: epoll is told of
 * a connection once, and a request costs one receive and one send.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"
#include "server.h"

enum {
    ACCEPT_AT_ONCE = 64,
    UNSENT_MAX = 1 << 20,   /* what was said and not taken: a piece of an answer */
    CIPHER_SIZE = 17 << 10, /* a record of TLS */
    TLS_PIECE = 16 << 10,   /* what it holds */
    ACCEPT_PAUSE_MS = 1000, /* when the system has no more descriptors or memory */
};

static const unsigned always = EPOLLIN | EPOLLRDHUP | EPOLLET;

static struct connection *connection_of_ready(struct ring *ring)
{
    return (struct connection *)((char *)ring - offsetof(struct connection, ready));
}

static struct connection *connection_of_due(struct due *due)
{
    return (struct connection *)((char *)due - offsetof(struct connection, due));
}

/* ---- when each is due ----------------------------------------------------------------------- */

void connection_due(struct connection *c, struct ring *list, int64_t in_ms)
{
    c->due.at_ms = c->listener->server->turn_ms + in_ms;
    ring_enter(list, &c->due.ring); /* all of one list are given the same time */
}

static void overdue(struct server *server, struct ring *list, struct connection *c)
{
    ring_leave(&c->due.ring);
    if (list == &server->receiving)
        http_too_slow(c);
    else
        connection_close(c);
}

enum { N_DUE_LISTS = 4 };

static struct ring *due_list(struct server *server, int i)
{
    struct ring *const lists[N_DUE_LISTS] = {&server->receiving, &server->idle, &server->sending,
                                             &server->lingering};
    return lists[i];
}

/* NULL: none. */
static struct due *first_due(struct ring *list)
{
    return ring_is_empty(list) ? NULL : (struct due *)list->next;
}

void connections_tick(struct server *server, int64_t at_ms)
{
    for (size_t i = 0; i < server->n_listeners; i++) {
        struct listener *l = &server->listeners[i];
        if (l->pause_until_ms && l->pause_until_ms <= at_ms)
            listener_watch(l, NULL);
    }
    for (int i = 0; i < N_DUE_LISTS; i++) {
        struct ring *list = due_list(server, i);
        struct due *first;
        while ((first = first_due(list)) && first->at_ms <= at_ms)
            overdue(server, list, connection_of_due(first));
    }
}

int64_t connections_due_ms(struct server *server)
{
    int64_t next_ms = INT64_MAX;
    for (size_t i = 0; i < server->n_listeners; i++) {
        int64_t pause_until_ms = server->listeners[i].pause_until_ms;
        if (pause_until_ms && pause_until_ms < next_ms)
            next_ms = pause_until_ms;
    }
    for (int i = 0; i < N_DUE_LISTS; i++) {
        const struct due *first = first_due(due_list(server, i));
        if (first && first->at_ms < next_ms)
            next_ms = first->at_ms;
    }
    return next_ms;
}

/* ---- new ones ------------------------------------------------------------------------------- */

int listener_watch(struct listener *l, struct hf_error *err)
{
    struct server *server = l->server;
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = FROM_LISTENERS + (uint64_t)(l - server->listeners)};
    bool is_full = l->n_connections >= (size_t)server->opts->max_connections;
    l->pause_until_ms = 0;
    if (l->watched || l->fd < 0 || is_full)
        return 0;
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, l->fd, &event) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait for %s", l->address);
    l->watched = true;
    return 0;
}

void listener_unwatch(struct listener *l)
{
    if (l->watched)
        epoll_ctl(l->server->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
    l->watched = false;
}

/* At a Unix socket the kernel says who it is. */
static void check_peer(struct connection *c)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (!c->listener->is_unix)
        return;
    bool known = getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    c->peer_trusted = known && (peer.uid == 0 || peer.uid == geteuid());
    c->peer_refused = !c->peer_trusted;
}

static void begin(struct listener *l, int fd)
{
    struct server *server = l->server;
    struct connection *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = always, .data.ptr = c};
    if (c && l->tls)
        c->tls = tls_new(server->tls);
    if (!c || (l->tls && !c->tls) || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        if (c)
            tls_free(c->tls);
        free(c);
        close(fd);
        return;
    }
    c->listener = l;
    c->fd = fd;
    c->kept.cap = ROOM_SIZE;
    c->unsent.cap = UNSENT_MAX;
    check_peer(c);
    ring_enter(&server->connections, &c->ring);
    server->n_connections++;
    l->n_connections++;
    connection_due(c, &server->idle, IDLE_MS);
}

void listener_accept(struct listener *l)
{
    for (int n = 0; n < ACCEPT_AT_ONCE && l->watched; n++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            listener_unwatch(l);
            l->pause_until_ms = l->server->turn_ms + ACCEPT_PAUSE_MS;
        }
        if (fd < 0)
            return;
        begin(l, fd);
        if (l->n_connections >= (size_t)l->server->opts->max_connections)
            listener_unwatch(l); /* until one of them goes */
    }
}

/* ---- what comes ----------------------------------------------------------------------------- */

void connection_ready(struct connection *c)
{
    if (!c->closed && !ring_is_in(&c->ready))
        ring_enter(&c->listener->server->ready, &c->ready);
}

void connection_event(struct connection *c, unsigned events)
{
    c->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        c->peer_left = true;
    if (c->peer_left && c->req && c->req->watched)
        c->req->left = true;
    connection_ready(c);
}

/* Some bytes; 0: none for now, or none any more. */
static size_t receive(struct connection *c, char *to, size_t size)
{
    if (!c->readable || !size)
        return 0;
    ssize_t n = recv(c->fd, to, size, 0);
    if (n > 0) {
        if ((size_t)n < size && !c->peer_left) /* more makes epoll tell us again */
            c->readable = false;
        return (size_t)n;
    }
    c->readable = n < 0 && errno == EINTR;
    c->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
    return 0;
}

static void send_raw(struct connection *c, struct iovec *parts, size_t n);

static void send_ciphered(struct connection *c)
{
    char *bytes;
    size_t n = tls_give(c->tls, &bytes);
    if (n)
        send_raw(c, &(struct iovec){bytes, n}, 1);
    tls_given(c->tls);
}

static size_t receive_ciphered(struct connection *c, char *to, size_t size)
{
    char bytes[CIPHER_SIZE];
    size_t n_to = 0;
    while (n_to < size) {
        ssize_t n = tls_read(c->tls, to + n_to, size - n_to);
        if (n < 0) {
            c->ended = true;
            c->readable = false;
        }
        if (n > 0)
            n_to += (size_t)n;
        else if (n < 0 || !(n = (ssize_t)receive(c, bytes, sizeof bytes)) ||
                 !tls_take(c->tls, bytes, (size_t)n))
            break;
    }
    if (n_to == size)
        c->readable = true; /* there may be more that was received already */
    send_ciphered(c);
    return n_to;
}

bool connection_receive(struct connection *c, size_t *ret_n)
{
    char *room = c->listener->server->room;
    size_t n = c->kept.len;
    if (n)
        memcpy(room, c->kept.data, n);
    *ret_n = n;
    if (n && !c->looked_at)
        return true;
    *ret_n +=
        c->tls ? receive_ciphered(c, room + n, ROOM_SIZE - n) : receive(c, room + n, ROOM_SIZE - n);
    return *ret_n > n;
}

void connection_keep(struct connection *c, const char *rest, size_t n, bool looked_at)
{
    c->looked_at = looked_at;
    hf_buf_clear(&c->kept);
    if (n)
        hf_buf_add(&c->kept, rest, n);
    c->broken |= c->kept.failed;
}

/* ---- what is sent --------------------------------------------------------------------------- */

static void watch_sending(struct connection *c, bool wanted)
{
    struct epoll_event event = {.events = wanted ? always | EPOLLOUT : always, .data.ptr = c};
    if (c->waits_to_send == wanted)
        return;
    c->waits_to_send = wanted;
    epoll_ctl(c->listener->server->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

/* What became of an attempt: how many bytes the client has taken. */
static size_t note_sent(struct connection *c, ssize_t sent)
{
    if (sent >= 0)
        return (size_t)sent;
    c->broken = errno != EAGAIN && errno != EINTR;
    return 0;
}

static size_t send_some(struct connection *c, const char *text, size_t n)
{
    return c->broken ? 0 : note_sent(c, send(c->fd, text, n, MSG_NOSIGNAL));
}

static size_t try_to_send(struct connection *c, struct iovec *parts, size_t n)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
    if (c->broken || c->unsent.len > c->sent) /* not before what was said before */
        return 0;
    return n == 1 ? send_some(c, parts[0].iov_base, parts[0].iov_len)
                  : note_sent(c, sendmsg(c->fd, &message, MSG_NOSIGNAL));
}

/* Be told when it takes more; it has so long for it. */
static void await_sending(struct connection *c)
{
    watch_sending(c, true);
    connection_due(c, &c->listener->server->sending, SEND_MS);
}

void connection_settle(struct connection *c)
{
    if (!c->waits_to_send)
        return;
    watch_sending(c, false);
    ring_leave(&c->due.ring);
}

static void send_raw(struct connection *c, struct iovec *parts, size_t n)
{
    size_t sent = try_to_send(c, parts, n);
    for (size_t i = 0; i < n; i++) {
        size_t done = sent < parts[i].iov_len ? sent : parts[i].iov_len;
        sent -= done;
        if (done < parts[i].iov_len)
            hf_buf_add(&c->unsent, (const char *)parts[i].iov_base + done, parts[i].iov_len - done);
    }
    c->broken |= c->unsent.failed;
    if (c->unsent.len > c->sent && !c->broken && !c->waits_to_send)
        await_sending(c);
}

void connection_send(struct connection *c, struct iovec *parts, size_t n)
{
    if (!c->tls) {
        send_raw(c, parts, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (!tls_write(c->tls, parts[i].iov_base, parts[i].iov_len))
            c->broken = true;
    send_ciphered(c);
}

size_t connection_offer(struct connection *c, char *text, size_t n)
{
    if (c->tls) {
        size_t piece = n < TLS_PIECE ? n : TLS_PIECE;
        connection_send(c, &(struct iovec){text, piece}, 1);
        return piece;
    }
    size_t sent = try_to_send(c, &(struct iovec){text, n}, 1);
    if (c->broken)
        return 0;
    if (sent == 0 ? !c->waits_to_send : c->waits_to_send) /* where it goes on, it is given time */
        await_sending(c);
    return sent;
}

bool connection_flush(struct connection *c)
{
    size_t left = c->unsent.len - c->sent;
    if (!left)
        return true;
    size_t n = send_some(c, c->unsent.data + c->sent, left);
    if (!n)
        return false;
    c->sent += n;
    if (n < left) {
        await_sending(c);
        return false;
    }
    hf_buf_clear(&c->unsent);
    c->sent = 0;
    connection_settle(c);
    return true;
}

/* ---- the end -------------------------------------------------------------------------------- */

void connection_finish(struct connection *c)
{
    if (c->tls)
        tls_end(c->tls), send_ciphered(c);
    shutdown(c->fd, SHUT_WR);
    hf_buf_clear(&c->kept);
    c->lingering = true;
    connection_due(c, &c->listener->server->lingering, LINGER_MS);
}

void connection_linger(struct connection *c)
{
    if (receive(c, c->listener->server->room, ROOM_SIZE))
        connection_ready(c);
    else if (c->ended)
        connection_close(c);
}

void connection_close(struct connection *c)
{
    struct listener *l = c->listener;
    if (c->closed)
        return;
    c->closed = true;
    close(c->fd);
    ring_leave(&c->ring);
    ring_leave(&c->due.ring);
    ring_enter(&l->server->dead, &c->ready);
    l->server->n_connections--;
    l->n_connections--;
    if (c->req)
        request_end(c->req);
    if (!l->watched && !l->pause_until_ms)
        listener_watch(l, NULL);
}

/* Not before: epoll may have told of it once more in this turn. */
void connections_bury(struct server *server)
{
    struct ring *at = server->dead.next, *next;
    server->dead.prev->next = NULL; /* a plain list from here on, unless it is empty */
    for (at = at == &server->dead ? NULL : at; at; at = next) {
        struct connection *c = connection_of_ready(at);
        next = at->next;
        hf_buf_clear(&c->kept);
        hf_buf_clear(&c->unsent);
        tls_free(c->tls);
        free(c);
    }
    ring_init(&server->dead);
}

int connections_open(struct server *server, struct hf_error *err)
{
    struct ring *lists[] = {&server->connections, &server->idle,      &server->receiving,
                            &server->sending,     &server->lingering, &server->ready,
                            &server->dead,        &server->requests};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        ring_init(lists[i]);
    server->head.cap = HEADERS_MAX;
    server->turn_ms = now_ms();
    server->room = malloc(ROOM_SIZE);
    if (!server->room)
        return hf_fail(err, HF_NOMEM, "out of memory");
    const struct serve_options *o = server->opts;
    return o->tls_cert ? tls_open(o->tls_cert, o->tls_key, &server->tls, err) : 0;
}

void connections_close(struct server *server)
{
    while (!ring_is_empty(&server->connections))
        connection_close((struct connection *)server->connections.next);
    connections_bury(server);
    tls_close(server->tls);
    hf_buf_clear(&server->head);
    free(server->room);
}
