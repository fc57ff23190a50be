#include "spawn.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "failpoint.h"
#include "link.h"

enum { EXIT_NOT_EXECUTABLE = 126, EXIT_NOT_FOUND = 127 };

static int redirect(const struct hf_command *command)
{
    char byte;
    int in;
    if (command->in_line > 0 &&
        (hf_link_receive(command->in_line, &byte, 1, &in, 1) != 1 || dup2(in, STDIN_FILENO) < 0))
        return -1;
    const int fds[] = {command->in_fd, command->out_fd, command->err_fd};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0 && dup2(fds[i], i) < 0)
            return -1;
    return 0;
}

/* Who, where and with what environment it runs; a setuid clears the death signal, so that is last. */
static int settle_in(const struct hf_command *command)
{
    const struct hf_user *user = command->user;
    if (user && (setgroups((size_t)user->n_groups, user->groups) < 0 || setgid(user->gid) < 0 ||
                 setuid(user->uid) < 0))
        return -1;
    for (char *const *line = command->env; line && *line; line++)
        putenv(*line);
    return command->cwd ? chdir(command->cwd) : 0;
}

void hf_command_close(const struct hf_command *command)
{
    const int fds[] = {command->in_fd, command->out_fd, command->err_fd,
                       command->in_line > 0 ? command->in_line : -1};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/*
 * In the child. PDEATHSIG is a belt beside the guardian's braces: it reaches neither grandchildren
 * nor a setuid program.
 */
_Noreturn static void become(const struct hf_command *command, pid_t guardian, int link,
                             const struct sigaction *on_child)
{
    setpgid(0, command->group);
    bool settled = redirect(command) == 0 && settle_in(command) == 0;
    int saved_errno = errno;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guardian)
        _exit(EXIT_NOT_EXECUTABLE);
    hf_failpoint(HF_FAIL_EXEC);
    errno = saved_errno;
    if (settled) {
        sigaction(SIGCHLD, on_child, NULL);
        sigprocmask(SIG_SETMASK, &command->mask, NULL);
        execvp(command->argv[0], command->argv);
    }
    struct hf_note note = {.kind = HF_NOTE_NOT_RUN, .number = errno};
    hf_link_tell(link, &note, NULL, 0);
    _exit(note.number == ENOENT || note.number == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE);
}

pid_t hf_spawn(const struct hf_command *command, int link, const struct sigaction *on_child)
{
    pid_t guardian = getpid();
    /* Not vfork: a child that the terminal stops before it has executed would block the guardian. */
    pid_t pid = fork();
    if (pid == 0)
        become(command, guardian, link, on_child);
    return pid < 0 ? -errno : pid;
}
