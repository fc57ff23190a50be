/* The loop: one thread, one `now` per turn, everything that is due, then sleep. */
#include "serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "id.h"
#include "server.h"

int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t now_ms(void) { return now_us() / 1000; }

/* ---- starting ------------------------------------------------------------------------------- */

/* What a descriptor in the loop's epoll is; listeners and connections follow. */
enum source { FROM_LANES, FROM_SIGNALS, FROM_WATCH, FROM_IDLE, FROM_RUNNER };

static int add_source(struct server *server, int fd, enum source source, struct hf_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = source};
    if (fd >= 0 && epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait for descriptor %d", fd);
    return 0;
}

/* Blocked before any thread is started, so that only the loop sees them. */
static int open_signals(struct server *server, struct hf_error *err)
{
    static const int wanted[] = {SIGTERM, SIGINT, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        sigaddset(&set, wanted[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    server->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (server->signal_fd < 0 || server->epoll_fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't start");
    return 0;
}

/* Each client is a descriptor. */
static void raise_limits(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static int open_parts(struct server *server, struct hf_error *err)
{
    int r = connections_open(server, err);
    if (r >= 0)
        r = config_open(server, err);
    if (r >= 0)
        r = open_signals(server, err);
    if (r >= 0)
        r = listen_open(server, err);
    if (r >= 0)
        r = lanes_open(server->opts->store_url, &server->lanes, err);
    if (r >= 0)
        r = metrics_open(server, err);
    if (r >= 0)
        r = access_open(server, err);
    if (r >= 0)
        r = waits_open(server, err);
    if (r >= 0)
        r = streams_open(server, err);
    if (r >= 0)
        r = results_open(server, err);
    if (r >= 0)
        r = executions_open(server, err);
    if (r >= 0)
        r = claims_open(server, err);
    return r;
}

static int start(struct server *server, struct hf_error *err)
{
    int r = runner_open(server, err);
    raise_limits();
    hf_random(&server->id_high, sizeof server->id_high);
    if (r >= 0)
        r = open_parts(server, err);
    if (r >= 0)
        r = add_source(server, runner_fd(server), FROM_RUNNER, err);
    if (r >= 0)
        r = add_source(server, lanes_fd(server->lanes), FROM_LANES, err);
    if (r >= 0)
        r = add_source(server, server->signal_fd, FROM_SIGNALS, err);
    if (r >= 0)
        r = add_source(server, server->watch ? hf_watch_fd(server->watch) : -1, FROM_WATCH, err);
    if (r >= 0)
        r = add_source(server, claims_fd(server), FROM_IDLE, err);
    for (size_t i = 0; r >= 0 && i < server->n_listeners; i++) {
        struct listener *l = &server->listeners[i];
        if ((r = listener_watch(l, err)) < 0)
            break;
        log_event("listening", "address", l->address, "store",
                  hf_url(lanes_handle(server->lanes, LANE_WRITE)), LOG_END);
    }
    return r;
}

static void close_parts(struct server *server)
{
    listen_close(server);
    connections_close(server);
    if (server->lanes)
        lanes_finish(server->lanes);
    hf_watch_close(server->watch);
    claims_close(server);
    lanes_close(server->lanes);
    executions_close(server);
    results_close(server);
    streams_close(server);
    waits_close(server);
    access_close(server);
    metrics_close(server);
    config_close(server);
    close(server->epoll_fd);
    close(server->signal_fd);
}

/* ---- signals -------------------------------------------------------------------------------- */

static void drain(struct server *server)
{
    runner_stop(server);
    if (server->draining)
        return;
    server->draining = true;
    server->drain_until_ms = now_ms() + DRAIN_MS;
    notify_systemd("STOPPING=1");
    log_event("stopping", LOG_END);
    for (size_t i = 0; i < server->n_listeners; i++) {
        listener_unwatch(&server->listeners[i]);
        close(server->listeners[i].fd);
        server->listeners[i].fd = -1;
    }
    waits_drain(server);
    streams_drain(server);
    results_drain(server);
    wakes_drain(server);
    claims_drain(server);
}

/* One that is bad is not taken: the old one stays. Who is connected keeps the one it has. */
static void reload_certificate(struct server *server)
{
    const struct serve_options *o = server->opts;
    struct tls_context *fresh;
    struct hf_error err;
    if (!o->tls_cert)
        return;
    if (tls_open(o->tls_cert, o->tls_key, &fresh, &err) < 0) {
        log_event("reload-failed", "file", o->tls_cert, "message", err.message, "now",
                  "the old certificate stays", LOG_END);
        return;
    }
    tls_close(server->tls);
    server->tls = fresh;
}

static void reload(struct server *server)
{
    char text[80];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld",
             (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000);
    notify_systemd(text);
    access_reload(server);
    reload_certificate(server);
    if (config_reload(server) >= 0)
        runner_reload(server);
    notify_systemd("READY=1");
}

static void take_signals(struct server *server)
{
    struct signalfd_siginfo info;
    while (read(server->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGHUP)
            reload(server);
        else
            drain(server);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void take_event(struct server *server, const struct epoll_event *event)
{
    uint64_t source = event->data.u64;
    if (source >= FROM_CONNECTIONS)
        connection_event(event->data.ptr, event->events);
    else if (source >= FROM_LISTENERS)
        listener_accept(&server->listeners[source - FROM_LISTENERS]);
    else if (source == FROM_LANES)
        lanes_deliver(server->lanes);
    else if (source == FROM_SIGNALS)
        take_signals(server);
    else if (source == FROM_IDLE)
        claims_woken(server);
    else if (source == FROM_RUNNER)
        runner_ended(server);
    else
        waits_woken(server);
}

/* Read what has come, ask the lanes, answer what is known; as far as that goes without waiting. */
static void run_connections(struct server *server)
{
    enum { TURNS = 4 };
    for (int i = 0; i < TURNS && (i == 0 || !ring_is_empty(&server->ready)); i++) {
        http_run(server);
        lanes_flush(server->lanes);
    }
    server->again |= !ring_is_empty(&server->ready);
    connections_bury(server);
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* Everything that is due; when something will be again. */
static int64_t tick(struct server *server)
{
    int64_t at_ms = server->turn_ms;
    server->again = false;
    int64_t next_ms = waits_tick(server, at_ms);
    next_ms = earlier(next_ms, streams_tick(server, at_ms));
    next_ms = earlier(next_ms, results_tick(server, at_ms));
    next_ms = earlier(next_ms, claims_tick(server, at_ms));
    next_ms = earlier(next_ms, access_tick(server, at_ms));
    next_ms = earlier(next_ms, runner_tick(server, at_ms));
    connections_tick(server, at_ms);
    run_connections(server);
    next_ms = earlier(next_ms, connections_due_ms(server)); /* those that have run, too */
    if (server->draining)
        next_ms = earlier(next_ms, at_ms + 50);
    return server->again ? at_ms : next_ms;
}

static bool is_drained(const struct server *server)
{
    return server->draining && runner_is_gone(server) &&
           (!server->n_requests || now_ms() >= server->drain_until_ms);
}

static void loop(struct server *server)
{
    enum { AT_ONCE = 128 };
    struct epoll_event events[AT_ONCE];
    int64_t watchdog_ms = notify_watchdog_ms(), watchdog_at_ms = 0;
    while (!is_drained(server)) {
        int64_t next_ms = tick(server);
        log_flush();
        int64_t at_ms = now_ms();
        if (watchdog_ms && at_ms >= watchdog_at_ms) {
            notify_systemd("WATCHDOG=1");
            watchdog_at_ms = at_ms + watchdog_ms;
        }
        if (watchdog_ms)
            next_ms = earlier(next_ms, watchdog_at_ms);
        int64_t in_ms = next_ms == INT64_MAX ? 3600000 : next_ms - at_ms;
        int n = epoll_wait(server->epoll_fd, events, AT_ONCE,
                           in_ms < 0         ? 0
                           : in_ms > 3600000 ? 3600000
                                             : (int)in_ms);
        server->turn_ms = now_ms();
        for (int i = 0; i < n; i++)
            take_event(server, &events[i]);
    }
}

/* Say what is left to say. */
static void finish(struct server *server)
{
    server->closed = true;
    http_give_up(server);
    run_connections(server);
}

int serve(const struct serve_options *opts, struct hf_error *err)
{
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return hf_fail(err, HF_NOMEM, "out of memory");
    server->opts = opts;
    server->epoll_fd = server->signal_fd = -1;
    log_open(opts->log_json);
    int r = start(server, err);
    if (r >= 0) {
        runner_check_store(server);
        notify_systemd("READY=1");
        loop(server);
        finish(server);
    }
    close_parts(server);
    runner_close(server);
    if (r >= 0)
        log_event("stopped", LOG_END);
    log_flush();
    free(server);
    return r;
}
