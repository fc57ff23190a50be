#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

struct config {
    unsigned n_users; /* the server, and requests */
    struct hf_workflows *workflows;
    struct secrets *secrets; /* as many as there are workflows */
};

static void config_release(struct config *config)
{
    if (!config || --config->n_users)
        return;
    for (size_t i = 0; config->secrets && i < config->workflows->n; i++)
        secrets_clear(&config->secrets[i]);
    free(config->secrets);
    hf_workflows_free(config->workflows);
    free(config);
}

/* ---- secrets -------------------------------------------------------------------------------- */

/* Bytes of a regular file, at most SECRET_MAX and what may follow of a last line. */
static ssize_t read_file(const char *path, char *room, size_t size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n = -1;
    if (fd >= 0 && fstat(fd, &st) == 0) {
        if (S_ISREG(st.st_mode))
            n = read(fd, room, size);
        else
            errno = EINVAL;
        if (n >= 0 && st.st_mode & S_IROTH)
            log_event("warning", "message", "a secret that everybody here can read; chmod o-r it",
                      "file", path, LOG_END);
    }
    int saved_errno = errno;
    if (fd >= 0)
        close(fd);
    errno = saved_errno;
    return n;
}

static int read_secret(const struct hf_workflows *all, const struct hf_workflow *w,
                       const char *path, struct secret *ret, struct hf_error *err)
{
    char room[SECRET_MAX + 3];
    struct hf_error why;
    ssize_t n = read_file(path, room, sizeof room);
    int r = n < 0 ? hf_fail_errno(&why, HF_INVALID, errno, "can't read %s", path)
                  : secret_make(ret, room, (size_t)n, &why);
    explicit_bzero(room, sizeof room);
    if (r >= 0)
        return 0;
    return hf_fail(err, HF_INVALID, "%s:%zu: %s.secret-files: %s%s%s", all->path,
                   w->secret_files_line, w->name, n < 0 ? "" : path, n < 0 ? "" : ": ",
                   why.message);
}

static int read_secrets(const struct hf_workflows *all, const struct hf_workflow *w,
                        struct secrets *ret, struct hf_error *err)
{
    size_t n = 0;
    while (w->secret_files && w->secret_files[n])
        n++;
    if (n > SECRETS_MAX)
        return hf_fail(err, HF_INVALID, "%s:%zu: %s.secret-files: expected at most %d", all->path,
                       w->secret_files_line, w->name, SECRETS_MAX);
    if (n && !(ret->of = calloc(n, sizeof *ret->of)))
        return hf_fail(err, HF_NOMEM, "out of memory");
    for (; ret->n < n; ret->n++) {
        int r = read_secret(all, w, w->secret_files[ret->n], &ret->of[ret->n], err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- loading -------------------------------------------------------------------------------- */

static bool is_named(const struct serve_options *opts)
{
    const char *from_environment = getenv("HOLDFAST_CONFIG");
    return opts->config_path || (from_environment && *from_environment);
}

/* Nobody asked for a configuration, and there is none: then there are no workflows. */
static bool is_absent(const struct server *server)
{
    const char *path = hf_workflows_path(NULL);
    bool had_some = server->workflows && server->workflows->n;
    return !is_named(server->opts) && !had_some && access(path, F_OK) < 0 && errno == ENOENT;
}

static int load_workflows(const struct server *server, struct hf_workflows **ret,
                          struct hf_error *err)
{
    if (!is_absent(server))
        return hf_workflows_load(server->opts->config_path, ret, err);
    struct hf_workflows *none = calloc(1, sizeof *none);
    if (!none || !(none->path = strdup(hf_workflows_path(NULL)))) {
        free(none);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    *ret = none;
    return 0;
}

static int load(const struct server *server, struct config **ret, struct hf_error *err)
{
    struct config *config = calloc(1, sizeof *config);
    if (!config)
        return hf_fail(err, HF_NOMEM, "out of memory");
    config->n_users = 1;
    int r = load_workflows(server, &config->workflows, err);
    if (r >= 0) {
        config->secrets = calloc(config->workflows->n + 1, sizeof *config->secrets);
        if (!config->secrets)
            r = hf_fail(err, HF_NOMEM, "out of memory");
    }
    for (size_t i = 0; r >= 0 && i < config->workflows->n; i++)
        r = read_secrets(config->workflows, &config->workflows->of[i], &config->secrets[i], err);
    if (r < 0) {
        config_release(config);
        return r;
    }
    *ret = config;
    return 0;
}

int config_open(struct server *server, struct hf_error *err)
{
    int r = load(server, &server->config, err);
    if (r >= 0)
        server->workflows = server->config->workflows;
    return r;
}

void config_close(struct server *server)
{
    config_release(server->config);
    server->config = NULL;
    server->workflows = NULL;
}

/* ---- again ---------------------------------------------------------------------------------- */

/* The number in "FILE:NUMBER: what", as errors about a configuration begin. */
static const char *line_of(const char *message, const char *file, char *room, size_t size)
{
    size_t n = strlen(file);
    if (strncmp(message, file, n) != 0 || message[n] != ':')
        return NULL;
    size_t digits = strspn(message + n + 1, "0123456789");
    if (!digits || digits >= size)
        return NULL;
    memcpy(room, message + n + 1, digits);
    room[digits] = '\0';
    return room;
}

int config_reload(struct server *server)
{
    struct hf_error err;
    struct config *config;
    char line[24], n[24];
    const char *path = hf_workflows_path(server->opts->config_path);
    int r = load(server, &config, &err);
    if (r < 0) {
        log_event("reload-failed", "file", path, "line",
                  line_of(err.message, path, line, sizeof line), "message", err.message, "now",
                  "the old configuration stays", LOG_END);
        return r;
    }
    config_release(server->config);
    server->config = config;
    server->workflows = config->workflows;
    snprintf(n, sizeof n, "%zu", config->workflows->n);
    log_event("reloaded", "file", path, "workflows", n, LOG_END);
    return 0;
}

/* ---- requests ------------------------------------------------------------------------------- */

const struct hf_workflow *request_workflow(struct request *req, const char *name,
                                           const struct secrets **ret_secrets)
{
    if (!req->config) {
        req->config = req->server->config;
        req->config->n_users++;
    }
    const struct hf_workflows *all = req->config->workflows;
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->of[i].name, name) == 0) {
            const struct secrets *secrets = &req->config->secrets[i];
            if (ret_secrets)
                *ret_secrets = secrets->n ? secrets : NULL;
            return &all->of[i];
        }
    return NULL;
}

void request_forget_config(struct request *req)
{
    config_release(req->config);
    req->config = NULL;
}
