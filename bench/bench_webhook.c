/* From a webhook's POST to its command running, beside starting that command ourselves. */
#include <arpa/inet.h>
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { PORT = 7496, TIMES = 200, ROOM = 8192 };

static int connect_to_service(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    for (int tries = 0; tries < 200; tries++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
            return fd;
        close(fd);
        bench_sleep_us(50000);
    }
    errx(1, "the service does not start");
}

/* The answer, which comes when the command has ended, has its output: when it began. */
static double post_to_stamp_ns(int fd)
{
    static const char request[] =
        "POST /api/webhooks/stamp HTTP/1.1\r\nHost: 127.0.0.1\r\nPrefer: wait=30\r\n"
        "Content-Length: 2\r\n\r\n{}";
    char text[ROOM + 1];
    size_t n = 0;
    const char *output = NULL;
    int64_t sent_ns = bench_now_ns();
    if (write(fd, request, sizeof request - 1) != (ssize_t)sizeof request - 1)
        err(1, "write");
    while (!output) {
        ssize_t some = n < ROOM ? read(fd, text + n, ROOM - n) : 0;
        if (some <= 0)
            errx(1, "no answer with an output: %.*s", (int)n, text);
        n += (size_t)some;
        text[n] = '\0';
        output = strstr(text, "\"output\":\"");
        if (output && !strchr(output, '}'))
            output = NULL; /* not all of it has come */
    }
    return (double)(strtoll(output + strlen("\"output\":\""), NULL, 10) - sent_ns);
}

static double spawn_to_stamp_ns(const struct bench_env *env)
{
    const char *const argv[] = {env->self, "--stamp", NULL};
    int ends[2];
    char text[64] = "";
    if (pipe(ends) < 0)
        err(1, "pipe");
    int64_t began_ns = bench_now_ns();
    pid_t pid = spawn_start(argv, ends[1]);
    close(ends[1]);
    if (read(ends[0], text, sizeof text - 1) <= 0)
        err(1, "read");
    close(ends[0]);
    spawn_wait(pid);
    return (double)(strtoll(text, NULL, 10) - began_ns);
}

static pid_t start_service(const struct bench_env *env)
{
    char *config = bench_path(env, "", "webhook.yaml"),
         *store = bench_path(env, "sqlite:", "webhook.db");
    FILE *f = fopen(config, "we");
    if (!f || fprintf(f, "workflows:\n  stamp:\n    command: [\"%s\", --stamp]\n", env->self) < 0 ||
        fclose(f) != 0)
        err(1, "%s", config);
    const char *const argv[] = {env->holdfast,    "--store",  store,  "serve", "--listen",
                                "127.0.0.1:7496", "--config", config, NULL};
    FILE *nowhere = fopen("/dev/null", "we");
    return spawn_start(argv, nowhere ? fileno(nowhere) : -1);
}

void bench_webhook(const struct bench_env *env)
{
    struct samples our = {0}, peer = {0};
    pid_t service = start_service(env);
    int fd = connect_to_service();
    post_to_stamp_ns(fd);
    for (int i = 0; i < bench_amount(env, TIMES); i++) {
        samples_add(&our, post_to_stamp_ns(fd));
        samples_add(&peer, spawn_to_stamp_ns(env));
    }
    kill(service, SIGTERM);
    waitpid(service, NULL, 0);
    double mine = samples_quantile(&our, 0.5), theirs = samples_quantile(&peer, 0.5);
    struct row row = {.what = "webhook to its command: later than fork + exec",
                      .ratio = mine / theirs,
                      .goal = GOAL_AT_MOST,
                      .limit = 3,
                      .unit = "ms",
                      .judged = (mine - theirs) / 1e6};
    format_times(&our, row.ours, sizeof row.ours);
    format_times(&peer, row.peer, sizeof row.peer);
    report_row(&row);
}
