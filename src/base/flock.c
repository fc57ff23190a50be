#include "flock.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "clock.h"
#include "error.h"
#include "process.h"

/* As /proc/locks tells it; 0: nobody whom we could see. */
static int32_t find_locker(int fd)
{
    char line[200];
    struct stat st;
    int32_t found = 0;
    FILE *locks = fstat(fd, &st) < 0 ? NULL : fopen("/proc/locks", "re");
    while (locks && !found && fgets(line, sizeof line, locks)) {
        int pid;
        unsigned int on_major, on_minor;
        unsigned long inode;
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &on_major, &on_minor, &inode) ==
                4 &&
            pid > 0 && inode == st.st_ino && makedev(on_major, on_minor) == st.st_dev)
            found = pid;
    }
    if (locks)
        fclose(locks);
    return found;
}

void hf_flock_blame(int fd, char ret[HF_BLAME_MAX])
{
    struct hf_process_stat stat;
    int32_t pid = find_locker(fd);
    if (!pid || !hf_process_read_stat(pid, &stat))
        snprintf(ret, HF_BLAME_MAX, "is the process that has it stopped? (see: lslocks)");
    else if (stat.state == 'T' || stat.state == 't')
        snprintf(
            ret, HF_BLAME_MAX,
            "process %d is stopped in the middle of a change; continue it with `kill -CONT %d`, "
            "or end it",
            pid, pid);
    else
        snprintf(ret, HF_BLAME_MAX, "process %d has it (state %c); end it if it is stuck", pid,
                 stat.state);
}

/* Whoever has it works for microseconds: yield, then nap briefly, and long only when it is stuck. */
static void pause_before_try(int tries)
{
    enum { YIELDS = 100, SHORT_NAPS = 500, SHORT_NAP_US = 20, LONG_NAP_US = 2000 };
    if (tries < YIELDS)
        sched_yield();
    else
        nanosleep(
            &(struct timespec){
                .tv_nsec = 1000L * (tries < YIELDS + SHORT_NAPS ? SHORT_NAP_US : LONG_NAP_US)},
            NULL);
}

static int fail_locked(int fd, int64_t patience_ms, const char *what, struct hf_error *err)
{
    char blame[HF_BLAME_MAX];
    hf_flock_blame(fd, blame);
    return hf_fail(err, HF_UNAVAILABLE, "%s has been locked for %lld s: %s", what,
                   (long long)patience_ms / 1000, blame);
}

int hf_flock(int fd, int how, int64_t patience_ms, const char *what, struct hf_error *err)
{
    int64_t give_up_ms = 0;
    for (int tries = 0; flock(fd, how | LOCK_NB) < 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't lock %s", what);
        if (!give_up_ms)
            give_up_ms = hf_clock_boot_ms() + patience_ms;
        if (hf_clock_boot_ms() >= give_up_ms)
            return fail_locked(fd, patience_ms, what, err);
        pause_before_try(tries);
    }
    return 0;
}
