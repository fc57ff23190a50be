/* The command: what it is, and how it becomes a process. */
#ifndef HF_RUNNER_SPAWN_H
#define HF_RUNNER_SPAWN_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

/* Whom a command runs as. */
struct hf_user {
    uid_t uid;
    gid_t gid;
    gid_t groups[64];
    int n_groups;
};

struct hf_command {
    char *const *argv;
    int64_t grace_ms;
    int64_t timeout_ms; /* 0: none */
    int in_fd;          /* its stdin; -1: ours */
    int in_line;        /* a line that its stdin comes by, before it is started; 0: none */
    int out_fd, err_fd; /* its stdout and stderr; -1: ours. All four are closed once it has them */
    const char *cwd;    /* NULL: ours */
    char *const *env;   /* "NAME=VALUE", on top of ours, ends with NULL; NULL: none */
    const struct hf_user *user; /* NULL: ours */
    pid_t group;                /* the process group it joins; 0: one of its own */
    sigset_t mask;              /* the signal mask it starts with */
};

/* Close those of its descriptors that are not ours, in a process that has no use for them. */
void hf_command_close(const struct hf_command *command);

/*
 * Start it with the environment of this process. Its pid, or -errno. What keeps it from being
 * executed it tells by itself, as HF_NOTE_NOT_RUN through `link`, and exits with 126 or 127.
 * `on_child` is what SIGCHLD does in the command.
 */
pid_t hf_spawn(const struct hf_command *command, int link, const struct sigaction *on_child);

#endif
