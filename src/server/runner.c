/*
 * The runner: a child that is this program again, as `holdfast work`. What parses the network never
 * runs a command; neither is hurt by what happens to the other. It is started where there are
 * workflows, again when it has died, and goes when we do, even if we are killed.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "error.h"
#include "server.h"
#include "worker.h"
#include "workflows.h"

enum {
    AGAIN_MS = 250,       /* before it is started again, then twice as long each time */
    AGAIN_MAX_MS = 30000, /* but not longer than this */
    STEADY_MS = 60000,    /* who has lived so long begins with AGAIN_MS again */
    FAREWELL_MS = 30000,  /* beyond the grace: killing commands, and a store that is slow */
    ARGS_MAX = 12,
};

struct runner {
    int events_fd; /* an epoll of pid_fd, for the loop's */
    pid_t pid;     /* 0: it does not run */
    int pid_fd;
    int64_t started_ms, start_ms; /* when it was, when it will be */
    int64_t again_ms;
    int64_t kill_ms; /* it was told to stop, and is killed then; 0: it was not */
    bool unable;     /* the store keeps no executions */
    sigset_t mask;   /* what the commands are to inherit, and not what we have made of it */
    struct rlimit files;
    char **env;
    char *store; /* HOLDFAST_STORE=..., in env */
    char concurrency[24], grace[24];
    const char *args[ARGS_MAX + 1];
};

/* ---- what it is started with ---------------------------------------------------------------- */

/* systemd speaks with us, not with commands; the store's URL may have a password in it. */
static bool is_ours(const char *variable, bool has_store)
{
    static const char *const names[] = {"HOLDFAST_STORE=", "NOTIFY_SOCKET=", "WATCHDOG_",
                                        "LISTEN_"};
    for (size_t i = has_store ? 0 : 1; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static bool make_environment(struct runner *r, const char *store_url)
{
    size_t n = 0, n_kept = 0;
    while (environ[n])
        n++;
    r->env = calloc(n + 2, sizeof *r->env);
    if (!r->env || (store_url && asprintf(&r->store, "HOLDFAST_STORE=%s", store_url) < 0)) {
        r->store = NULL;
        return false;
    }
    for (size_t i = 0; i < n; i++)
        if (!is_ours(environ[i], store_url))
            r->env[n_kept++] = environ[i];
    if (r->store)
        r->env[n_kept] = r->store;
    return true;
}

static void make_arguments(struct runner *r, const struct serve_options *opts)
{
    size_t n = 0;
    r->args[n++] = "holdfast";
    r->args[n++] = "work";
    if (opts->config_path) {
        r->args[n++] = "--config";
        r->args[n++] = opts->config_path;
    }
    if (opts->log_json) {
        r->args[n++] = "--log-format";
        r->args[n++] = "json";
    }
    if (opts->concurrency) {
        snprintf(r->concurrency, sizeof r->concurrency, "%lld", (long long)opts->concurrency);
        r->args[n++] = "--concurrency";
        r->args[n++] = r->concurrency;
    }
    snprintf(r->grace, sizeof r->grace, "%lldms", (long long)opts->grace_ms);
    r->args[n++] = "--grace";
    r->args[n++] = r->grace;
}

int runner_open(struct server *server, struct hf_error *err)
{
    struct runner *r = calloc(1, sizeof *r);
    if (!r)
        return hf_fail(err, HF_NOMEM, "out of memory");
    server->runner = r;
    r->pid_fd = -1;
    r->again_ms = AGAIN_MS;
    r->events_fd = epoll_create1(EPOLL_CLOEXEC);
    sigprocmask(SIG_BLOCK, NULL, &r->mask);
    getrlimit(RLIMIT_NOFILE, &r->files);
    make_arguments(r, server->opts);
    if (!make_environment(r, server->opts->store_url))
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (r->events_fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't start");
    return 0;
}

int runner_fd(const struct server *server) { return server->runner->events_fd; }

/* ---- starting ------------------------------------------------------------------------------- */

/* In the child, with threads in the parent: system calls only. */
_Noreturn static void become(const struct runner *r, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, HF_WORK_ORPHANED); /* the parent is the loop's thread */
    if (getppid() != parent)
        _exit(0);
    setpgid(0, 0); /* what a terminal says is said to us, and passed on */
    setrlimit(RLIMIT_NOFILE, &r->files);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &r->mask, NULL);
    execve("/proc/self/exe", (char **)(uintptr_t)r->args, r->env);
    _exit(127);
}

static void later(struct runner *r, int64_t at_ms)
{
    r->start_ms = at_ms + r->again_ms;
    r->again_ms = 2 * r->again_ms < AGAIN_MAX_MS ? 2 * r->again_ms : AGAIN_MAX_MS;
}

static void start_runner(struct runner *r, int64_t at_ms)
{
    struct epoll_event event = {.events = EPOLLIN};
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become(r, parent);
    if (pid > 0)
        r->pid_fd = pidfd_open(pid, 0);
    if (pid > 0 &&
        (r->pid_fd < 0 || epoll_ctl(r->events_fd, EPOLL_CTL_ADD, r->pid_fd, &event) < 0)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        pid = -1;
    }
    if (pid < 0) {
        log_event("runner-failed", "message", "can't start it; workflows wait", LOG_END);
        later(r, at_ms);
        return;
    }
    char number[16];
    snprintf(number, sizeof number, "%d", (int)pid);
    log_event("runner-started", "pid", number, LOG_END);
    r->pid = pid;
    r->started_ms = at_ms;
}

/* Where executions are not kept there is nothing to run, and webhooks say so. */
void runner_check_store(struct server *server)
{
    struct hf_execution unused;
    size_t n;
    struct hf_claim_options nothing = HF_CLAIM_INIT;
    struct hf *hf = lanes_handle(server->lanes, LANE_WRITE);
    server->runner->unable = hf_due(hf, &nothing, 0, 1, &unused, &n, NULL) == -HF_UNSUPPORTED;
}

static bool is_wanted(const struct server *server)
{
    return server->workflows->n && !server->opts->no_work && !server->runner->unable &&
           !server->draining;
}

int64_t runner_tick(struct server *server, int64_t at_ms)
{
    struct runner *r = server->runner;
    if (r->pid && r->kill_ms) {
        if (at_ms >= r->kill_ms)
            kill(r->pid, SIGKILL);
        return r->kill_ms > at_ms ? r->kill_ms : INT64_MAX;
    }
    if (r->pid || !is_wanted(server))
        return INT64_MAX;
    if (at_ms >= r->start_ms)
        start_runner(r, at_ms);
    return r->pid ? INT64_MAX : r->start_ms;
}

/* ---- its end -------------------------------------------------------------------------------- */

static void forget(struct runner *r)
{
    close(r->pid_fd);
    r->pid_fd = -1;
    r->pid = 0;
}

void runner_ended(struct server *server)
{
    struct runner *r = server->runner;
    int status = 0;
    char how[48];
    if (!r->pid || waitpid(r->pid, &status, WNOHANG) == 0)
        return;
    forget(r);
    if (r->kill_ms)
        return;
    int64_t at_ms = now_ms();
    if (at_ms - r->started_ms >= STEADY_MS)
        r->again_ms = AGAIN_MS;
    later(r, at_ms);
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "killed by signal %d", WTERMSIG(status));
    else
        snprintf(how, sizeof how, "exited with %d", WEXITSTATUS(status));
    log_event("runner-ended", "message", how, "now",
              "it is started again; what it ran is ended, or repeated as on-lost says", LOG_END);
}

void runner_reload(struct server *server)
{
    struct runner *r = server->runner;
    if (r->pid)
        kill(r->pid, SIGHUP);
    r->start_ms = 0;
}

void runner_stop(struct server *server)
{
    struct runner *r = server->runner;
    if (!r->pid)
        return;
    kill(r->pid, SIGTERM);
    if (!r->kill_ms)
        r->kill_ms = now_ms() + server->opts->grace_ms + FAREWELL_MS;
}

bool runner_is_gone(const struct server *server) { return !server->runner->pid; }

void runner_close(struct server *server)
{
    struct runner *r = server->runner;
    if (!r)
        return;
    if (r->pid) {
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
        forget(r);
    }
    if (r->events_fd >= 0)
        close(r->events_fd);
    free(r->store);
    free(r->env);
    free(r);
    server->runner = NULL;
}
