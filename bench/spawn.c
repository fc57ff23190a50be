#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

extern char **environ;

pid_t spawn_start(const char *const argv[], int stdout_fd)
{
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (stdout_fd >= 0) {
        posix_spawn_file_actions_adddup2(&actions, stdout_fd, STDOUT_FILENO);
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    }
    /* posix_spawn's argv is not const for historical reasons; it does not write to it. */
    union {
        const char *const *given;
        char *const *wanted;
    } args = {.given = argv};
    int code = posix_spawnp(&pid, argv[0], &actions, NULL, args.wanted, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code)
        errx(1, "can't start %s: %s", argv[0], strerrordesc_np(code));
    return pid;
}

void spawn_wait(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            err(1, "waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        errx(1, "a process that was measured ended with status 0x%x", status);
}

double spawn_timed_ns(const char *const argv[])
{
    int64_t began_ns = bench_now_ns();
    spawn_wait(spawn_start(argv, -1));
    return (double)(bench_now_ns() - began_ns);
}

pid_t spawn_worker(void (*fn)(void *arg, int index), void *arg, int index)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        err(1, "fork");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    fn(arg, index);
    _exit(0);
}

void *spawn_shared(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        err(1, "mmap");
    return p;
}
