/*
 * Locks over the network: ours against Redis (every write synced) and etcd's own gateway, and our
 * GET against libmicrohttpd's bare "hello". One client for all: 64 connections in one epoll, each
 * sending its next request when the last one was answered.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum {
    CONNECTIONS = 64,
    ROUNDS = 7,
    ROOM = 8192,
    OURS = 7491,
    REDIS = 7492,
    ETCD = 7493,
    HELLO = 7494
};
static const int64_t slice_ns = 1500000000;

/* ---- what is asked -------------------------------------------------------------------------- */

/* Writes the request of one half of a pair (`half` 0 or 1) of connection `i`; its length. */
typedef int ask_fn(char *to, int i, int half);
/* 1: answered well; 0: more must come; anything else is an error. */
typedef int judge_fn(const char *text, size_t n);

struct protocol {
    const char *name;
    int port;
    int halves; /* 2: a pair counts as one; 1: each answer does */
    ask_fn *ask;
    judge_fn *judge;
};

static int ask_post(char *to, const char *path, const char *body)
{
    return snprintf(to, ROOM,
                    "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    "Content-Length: %zu\r\n\r\n%s",
                    path, strlen(body), body);
}

static int ask_ours(char *to, int i, int half)
{
    static unsigned count[CONNECTIONS];
    char path[64], body[128];
    count[i] += half == 0;
    snprintf(path, sizeof path, half ? "/v1/locks/bench-%d/release" : "/v1/locks/bench-%d", i);
    snprintf(body, sizeof body,
             half ? "{\"token\":\"%08x-0000-4000-8000-%012x\"}"
                  : "{\"token\":\"%08x-0000-4000-8000-%012x\",\"ttlMs\":30000,\"owner\":\"bench\"}",
             count[i], (unsigned)i);
    return ask_post(to, path, body);
}

static int ask_status(char *to, int i, int half)
{
    (void)half;
    return snprintf(to, ROOM, "GET /v1/locks/bench-%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", i);
}

static int ask_hello(char *to, int i, int half)
{
    (void)i, (void)half;
    return snprintf(to, ROOM, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
}

/* SET NX PX, then compare and delete by a script, as Redis's own documentation has it. */
static int ask_redis(char *to, int i, int half)
{
    static const char script[] =
        "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 "
        "end";
    char key[16];
    int n = snprintf(key, sizeof key, "bench-%02d", i);
    if (half)
        return snprintf(to, ROOM,
                        "*5\r\n$4\r\nEVAL\r\n$%zu\r\n%s\r\n$1\r\n1\r\n$%d\r\n%s\r\n$5\r\ntoken\r\n",
                        strlen(script), script, n, key);
    return snprintf(
        to, ROOM,
        "*6\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$5\r\ntoken\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000"
        "\r\n",
        n, key);
}

/* A transaction: put where there is none; then delete where the value is ours. */
static int ask_etcd(char *to, int i, int half)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char key[9], body[400];
    /* "bench" + one byte, in base64: YmVuY2g and two more digits hold the rest */
    snprintf(key, sizeof key, "YmVuY2h%c", digits[i]);
    if (half)
        snprintf(body, sizeof body,
                 "{\"compare\":[{\"key\":\"%s\",\"target\":\"VALUE\",\"value\":\"dG9rZW4=\"}],"
                 "\"success\":[{\"requestDeleteRange\":{\"key\":\"%s\"}}]}",
                 key, key);
    else
        snprintf(body, sizeof body,
                 "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"createRevision\":\"0\"}],"
                 "\"success\":[{\"requestPut\":{\"key\":\"%s\",\"value\":\"dG9rZW4=\"}}]}",
                 key, key);
    return ask_post(to, "/v3/kv/txn", body);
}

static int judge_http(const char *text, size_t n)
{
    const char *end = memmem(text, n, "\r\n\r\n", 4);
    if (!end)
        return 0;
    const char *length = strcasestr(text, "content-length:");
    if (strncmp(text, "HTTP/1.1 200", 12) != 0 || !length || length > end)
        return -1;
    return n >= (size_t)(end + 4 - text) + strtoul(length + 15, NULL, 10);
}

static int judge_etcd(const char *text, size_t n)
{
    int done = judge_http(text, n);
    return done == 1 && !strstr(text, "\"succeeded\":true") ? -1 : done;
}

static int judge_redis(const char *text, size_t n)
{
    if (n < 2 || text[n - 1] != '\n')
        return 0;
    return strcmp(text, "+OK\r\n") == 0 || strcmp(text, ":1\r\n") == 0 ? 1 : -1;
}

static const struct protocol ours_pairs = {"holdfast", OURS, 2, ask_ours, judge_http};
static const struct protocol ours_status = {"holdfast", OURS, 1, ask_status, judge_http};
static const struct protocol redis_pairs = {"redis", REDIS, 2, ask_redis, judge_redis};
static const struct protocol etcd_pairs = {"etcd", ETCD, 2, ask_etcd, judge_etcd};
static const struct protocol hello = {"hello", HELLO, 1, ask_hello, judge_http};

/* ---- the client ----------------------------------------------------------------------------- */

struct connection {
    int fd, half;
    int64_t began_ns;
    size_t n;
    char in[ROOM];
};

struct client {
    const struct protocol *protocol;
    int epoll_fd;
    struct connection of[CONNECTIONS];
    struct samples latencies; /* of each pair or answer, in ns */
};

static int connect_to(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void open_client(struct client *c, const struct protocol *protocol)
{
    c->protocol = protocol;
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        c->of[i].fd = connect_to(protocol->port);
        if (c->of[i].fd < 0 || epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->of[i].fd, &event) < 0)
            err(1, "%s", protocol->name);
    }
}

static void send_next(struct client *c, int i)
{
    char out[ROOM];
    struct connection *k = &c->of[i];
    int n = c->protocol->ask(out, i, k->half);
    if (k->half == 0)
        k->began_ns = bench_now_ns();
    k->n = 0;
    if (write(k->fd, out, (size_t)n) != n)
        err(1, "%s", c->protocol->name);
}

/* Read what there is. True: a whole round of this connection is done. */
static bool take(struct client *c, int i)
{
    struct connection *k = &c->of[i];
    ssize_t n = read(k->fd, k->in + k->n, ROOM - 1 - k->n);
    if (n <= 0)
        errx(1, "%s closed a connection", c->protocol->name);
    k->n += (size_t)n;
    k->in[k->n] = '\0';
    int judged = c->protocol->judge(k->in, k->n);
    if (judged < 0)
        errx(1, "%s answers: %.300s", c->protocol->name, k->in);
    if (!judged)
        return false;
    k->half = (k->half + 1) % c->protocol->halves;
    if (k->half == 0)
        samples_add(&c->latencies, (double)(bench_now_ns() - k->began_ns));
    else
        send_next(c, i);
    return k->half == 0;
}

/* Rounds per second of all connections together; each finishes what it has begun. */
static double client_slice(void *arg, int64_t for_ns)
{
    struct client *c = arg;
    int64_t began_ns = bench_now_ns(), done = 0;
    int busy = CONNECTIONS;
    for (int i = 0; i < CONNECTIONS; i++)
        send_next(c, i);
    while (busy) {
        struct epoll_event events[CONNECTIONS];
        int n = epoll_wait(c->epoll_fd, events, CONNECTIONS, 10000);
        if (n <= 0)
            errx(1, "%s does not answer", c->protocol->name);
        for (int e = 0; e < n; e++) {
            int i = (int)events[e].data.u32;
            if (!take(c, i))
                continue;
            done++;
            if (bench_now_ns() - began_ns < for_ns)
                send_next(c, i);
            else
                busy--;
        }
    }
    return (double)done * 1e9 / (double)(bench_now_ns() - began_ns);
}

/* ---- the servers ---------------------------------------------------------------------------- */

static pid_t servers[8];
static size_t n_servers;

static void stop_servers(void)
{
    for (size_t i = 0; i < n_servers; i++) {
        kill(servers[i], SIGTERM);
        waitpid(servers[i], NULL, 0);
    }
}

/* Start it and wait until it answers. False: it is not installed or does not start. */
static bool start_server(const char *const argv[], int port)
{
    int out = -1, fd;
    FILE *nowhere = fopen("/dev/null", "we");
    if (nowhere)
        out = fileno(nowhere);
    if (access(argv[0], X_OK) < 0)
        return false;
    pid_t pid = spawn_start(argv, out);
    if (!n_servers)
        atexit(stop_servers);
    servers[n_servers++] = pid;
    for (int tries = 0; tries < 200; tries++) {
        if ((fd = connect_to(port)) >= 0) {
            close(fd);
            return true;
        }
        if (waitpid(pid, NULL, WNOHANG) == pid) {
            n_servers--;
            return false;
        }
        bench_sleep_us(50000);
    }
    return false;
}

static bool start_ours(const struct bench_env *env)
{
    char *store = bench_path(env, "sqlite:", "http.db");
    const char *const argv[] = {env->holdfast, "--store",        store, "serve",
                                "--listen",    "127.0.0.1:7491", NULL};
    return start_server(argv, OURS);
}

static bool start_redis(const struct bench_env *env)
{
    char *dir = bench_path(env, "", "redis");
    mkdir(dir, 0700);
    const char *const argv[] = {"/usr/bin/redis-server",
                                "--port",
                                "7492",
                                "--bind",
                                "127.0.0.1",
                                "--dir",
                                dir,
                                "--save",
                                "",
                                "--appendonly",
                                "yes",
                                "--appendfsync",
                                "always",
                                NULL};
    return start_server(argv, REDIS);
}

bool bench_start_etcd(const struct bench_env *env)
{
    char *dir = bench_path(env, "", "etcd");
    const char *const argv[] = {"/usr/bin/etcd",
                                "--data-dir",
                                dir,
                                "--listen-client-urls",
                                "http://127.0.0.1:7493",
                                "--advertise-client-urls",
                                "http://127.0.0.1:7493",
                                "--listen-peer-urls",
                                "http://127.0.0.1:7495",
                                "--initial-advertise-peer-urls",
                                "http://127.0.0.1:7495",
                                "--initial-cluster",
                                "default=http://127.0.0.1:7495",
                                "--log-level",
                                "error",
                                NULL};
    return start_server(argv, ETCD);
}

static bool start_hello(const struct bench_env *env)
{
    char path[4096];
    snprintf(path, sizeof path, "%s_hello", env->self);
    char *slash = strrchr(path, '/');
    snprintf(slash, sizeof path - (size_t)(slash - path), "/http_hello");
    const char *const argv[] = {path, "mhd", "7494", NULL};
    return start_server(argv, HELLO);
}

/* ---- the contests --------------------------------------------------------------------------- */

static void contest(const struct bench_env *env, const char *what, const struct protocol *our,
                    const struct protocol *peer, double limit)
{
    struct client *clients = calloc(2, sizeof *clients);
    if (!clients)
        err(1, "calloc");
    open_client(&clients[0], our);
    open_client(&clients[1], peer);
    struct contestant all[] = {{client_slice, &clients[0], {0}}, {client_slice, &clients[1], {0}}};
    bench_contest(all, 2, bench_amount(env, ROUNDS), slice_ns);
    struct row row = {.what = what,
                      .ratio = bench_paired_ratio(&all[0].per_second, &all[1].per_second),
                      .goal = GOAL_AT_LEAST,
                      .limit = limit};
    format_rates(&all[0].per_second, row.ours, sizeof row.ours);
    format_rates(&all[1].per_second, row.peer, sizeof row.peer);
    report_row(&row);
    char p99[100];
    double mine = samples_quantile(&clients[0].latencies, 0.99);
    double theirs = samples_quantile(&clients[1].latencies, 0.99);
    snprintf(p99, sizeof p99, "%s, p99", what);
    struct row tail = {.what = p99, .ratio = mine / theirs};
    format_ns(mine, tail.ours, sizeof tail.ours);
    format_ns(theirs, tail.peer, sizeof tail.peer);
    report_row(&tail);
}

void bench_http(const struct bench_env *env)
{
    if (!start_ours(env))
        errx(1, "the service does not start");
    if (start_redis(env))
        contest(env, "HTTP pairs/s, 64 clients, durable, vs Redis", &ours_pairs, &redis_pairs, 1.2);
    if (bench_start_etcd(env))
        contest(env, "HTTP pairs/s, 64 clients, durable, vs etcd", &ours_pairs, &etcd_pairs, 10);
    if (start_hello(env))
        contest(env, "GET status/s, 64 clients, vs libmicrohttpd hello", &ours_status, &hello, 0.6);
}
