#include "terminal.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "process.h"

bool hf_terminal_is_there(void)
{
    int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/*
 * The kernel's own rule (an orphaned process group is not stopped by its terminal) does not help
 * here, since the guardian's group makes ours look cared for: so look for an ancestor that is of
 * our session but not of our group.
 */
bool hf_terminal_shell_is_there(void)
{
    struct hf_process_stat stat;
    pid_t group = getpgrp(), session = getsid(0);
    for (pid_t pid = getppid(); pid > 0 && hf_process_read_stat(pid, &stat); pid = stat.parent) {
        if (stat.session != session)
            return false;
        if (stat.group != group)
            return true;
    }
    return false;
}

void hf_terminal_stop(int signal_number)
{
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    kill(getpid(), signal_number);
    sigprocmask(SIG_UNBLOCK, &set, &before); /* delivered here */
    sigprocmask(SIG_SETMASK, &before, NULL);
}
