#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "link.h"

enum { EXIT_NOT_EXECUTABLE = 126, EXIT_NOT_FOUND = 127 };

static int redirect(const struct hf_command *command)
{
    if (command->in_path) {
        int fd = open(command->in_path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0 || dup2(fd, STDIN_FILENO) < 0)
            return -1;
    }
    if (command->out_fd >= 0 && dup2(command->out_fd, STDOUT_FILENO) < 0)
        return -1;
    return 0;
}

/*
 * In the child. PDEATHSIG is a belt beside the guardian's braces: it reaches neither grandchildren
 * nor a setuid program.
 */
_Noreturn static void become(const struct hf_command *command, pid_t guardian, int link,
                             const struct sigaction *on_child)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guardian)
        _exit(EXIT_NOT_EXECUTABLE);
    setpgid(0, command->group);
    if (redirect(command) == 0) {
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
