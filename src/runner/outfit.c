#include "outfit.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "error.h"

enum { GRACE_MAX_MS = 10000 };

/* ---- who and where -------------------------------------------------------------------------- */

static int forbid_user(const struct hf_workflow *w, const char *why, struct hf_error *err)
{
    return hf_fail(err, HF_FORBIDDEN, "%s runs as user %s: %s", w->name, w->user, why);
}

/* Whom the command runs as, and what that user's environment says of it. */
static int choose_user(struct hf_outfit *o, const struct hf_workflow *w, struct hf_command *command,
                       struct hf_error *err)
{
    const struct passwd *found = w->user ? getpwnam(w->user) : NULL;
    if (!w->user)
        return 0;
    if (!found)
        return forbid_user(w, "there is no such user", err);
    if (found->pw_uid == geteuid())
        return 0;
    if (geteuid() != 0)
        return forbid_user(w, "only root can do that", err);
    o->user = (struct hf_user){.uid = found->pw_uid, .gid = found->pw_gid};
    o->user.n_groups = (int)(sizeof o->user.groups / sizeof o->user.groups[0]);
    snprintf(o->home, sizeof o->home, "HOME=%s", found->pw_dir);
    snprintf(o->user_name[0], sizeof o->user_name[0], "USER=%s", w->user);
    snprintf(o->user_name[1], sizeof o->user_name[1], "LOGNAME=%s", w->user);
    if (getgrouplist(w->user, found->pw_gid, o->user.groups, &o->user.n_groups) < 0)
        return forbid_user(w, "it is in too many groups", err);
    command->user = &o->user;
    return 0;
}

/* The workflow's own variables come last, so that they win. */
static int choose_environment(struct hf_outfit *o, const struct hf_workflow *w,
                              struct hf_command *command, struct hf_error *err)
{
    size_t n = 0, at = 0;
    while (w->env && w->env[n])
        n++;
    o->env = calloc(n + 4, sizeof *o->env);
    if (!o->env)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (command->user) {
        o->env[at++] = o->home;
        o->env[at++] = o->user_name[0];
        o->env[at++] = o->user_name[1];
    }
    for (size_t i = 0; i < n; i++)
        o->env[at++] = w->env[i];
    command->env = o->env;
    command->cwd = w->cwd;
    if (!command->cwd || access(command->cwd, X_OK) == 0)
        return 0;
    return hf_fail_errno(err, HF_INVALID, errno, "%s: can't run in %s", w->name, command->cwd);
}

int hf_outfit_open(struct hf_outfit *o, const struct hf_workflow *w, struct hf_command *command,
                   struct hf_error *err)
{
    o->env = NULL;
    command->argv = w->command;
    command->timeout_ms = w->timeout_ms;
    command->grace_ms = w->ttl_ms / 3 < GRACE_MAX_MS ? w->ttl_ms / 3 : GRACE_MAX_MS;
    int r = choose_user(o, w, command, err);
    return r < 0 ? r : choose_environment(o, w, command, err);
}

void hf_outfit_close(struct hf_outfit *o)
{
    free(o->env);
    o->env = NULL;
}

/* ---- its stdin ------------------------------------------------------------------------------ */

int hf_input_open(void)
{
    int fd = memfd_create("holdfast-input", MFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int hf_input_add(int fd, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t some = write(fd, (const char *)bytes + at, n - at);
        if (some < 0 && errno != EINTR)
            return -errno;
        at += some > 0 ? (size_t)some : 0;
    }
    return 0;
}

void hf_input_rewind(int fd) { lseek(fd, 0, SEEK_SET); }
