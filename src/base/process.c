#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "error.h"
#include "host.h"

/*
 * The second field of /proc/PID/stat may itself contain spaces and brackets. Start times are shown
 * in the reader's time namespace: its offset is taken off.
 */
bool hf_process_read_stat(int32_t pid, struct hf_process_stat *ret)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *after = strrchr(text, ')');
    struct hf_process_stat stat;
    unsigned long long start;
    if (!after || sscanf(after,
                         ") %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d"
                         " %*d %llu",
                         &stat.state, &stat.parent, &stat.group, &stat.session, &start) != 5)
        return false;
    stat.start_ticks = (int64_t)start - hf_boot_offset_ms() * sysconf(_SC_CLK_TCK) / 1000;
    *ret = stat;
    return true;
}

void hf_process_describe(int32_t pid, char *ret, size_t size)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(ret, size, "%s/%d", host, pid);
}

/* ---- this process --------------------------------------------------------------------------- */

/*
 * What never changes for this process is read once: a look into /proc costs as much as a
 * transaction. A forked child has its own, and reads it when it first asks.
 */
static pthread_once_t self_once = PTHREAD_ONCE_INIT;
static struct {
    uint64_t pid_namespace;    /* 0: unknown, or not the one that /proc shows */
    struct hf_process process; /* pid 0: unknown */
} self;

static void forget_self(void) { self_once = PTHREAD_ONCE_INIT; }

static void forget_self_after_fork(void) { pthread_atfork(NULL, NULL, forget_self); }

static void read_self(void)
{
    static pthread_once_t handler_once = PTHREAD_ONCE_INIT;
    struct stat ns;
    struct hf_process_stat stat_now;
    pthread_once(&handler_once, forget_self_after_fork);
    bool known = hf_host_check(NULL) >= 0;
    self.pid_namespace = known && stat("/proc/self/ns/pid", &ns) == 0 ? (uint64_t)ns.st_ino : 0;
    self.process = (struct hf_process){0};
    if (known && hf_process_read_stat(getpid(), &stat_now))
        self.process = (struct hf_process){getpid(), stat_now.start_ticks};
}

static uint64_t own_pid_namespace(void)
{
    pthread_once(&self_once, read_self);
    return self.pid_namespace;
}

/* False: there is no such process, or /proc can't be read. */
static bool identify(int32_t pid, struct hf_process *ret)
{
    struct hf_process_stat stat_now;
    pthread_once(&self_once, read_self);
    if (pid > 0 && pid == self.process.pid) {
        *ret = self.process;
        return true;
    }
    errno = 0;
    if (pid <= 0 || !hf_process_read_stat(pid, &stat_now))
        return false;
    *ret = (struct hf_process){pid, stat_now.start_ticks};
    return true;
}

/* ---- any process ---------------------------------------------------------------------------- */

/* Where we only could not look, the process may well be there. */
static int fail_to_identify(int32_t pid, int saved_errno, struct hf_error *err)
{
    if (saved_errno == EMFILE || saved_errno == ENFILE || saved_errno == ENOMEM)
        return hf_fail_errno(err, HF_UNAVAILABLE, saved_errno, "can't look at process %d", pid);
    return hf_fail(err, HF_INVALID, "there is no process %d to bind the lease to", pid);
}

int hf_processes_identify(const int32_t *pids, size_t n, struct hf_processes *ret,
                          struct hf_error *err)
{
    struct hf_processes all = {.n = (uint32_t)n};
    if (n > HF_BOUND_MAX)
        return hf_fail(err, HF_INVALID, "a lease can be bound to at most %d processes",
                       HF_BOUND_MAX);
    int r = n ? hf_host_check(err) : 0;
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++)
        if (!identify(pids[i], &all.of[i]))
            return fail_to_identify(pids[i], errno, err);
    if (n)
        all.pid_namespace = own_pid_namespace();
    memcpy(all.boot, hf_boot_id(), strlen(hf_boot_id()) + 1);
    *ret = all;
    return 0;
}

/*
 * Since Linux 6.9 a pidfd has an inode that no other process of this boot ever has. Who was once
 * found to have the right start time is known by that from then on, for a quarter of the price.
 */
enum { KNOWN_MAX = 64 };
static _Thread_local struct {
    struct hf_process process;
    uint64_t inode;
} known[KNOWN_MAX];

/* Where to find this process, or what makes room for it. */
static size_t place_of(const struct hf_process *p) { return (size_t)p->pid % KNOWN_MAX; }

static uint64_t unique_inode(int pidfd)
{
    enum { PIDFS = 0x50494446 };
    struct statfs fs;
    struct stat st;
    return fstatfs(pidfd, &fs) == 0 && fs.f_type == PIDFS && fstat(pidfd, &st) == 0
               ? (uint64_t)st.st_ino
               : 0;
}

static bool is_known(const struct hf_process *p, int pidfd)
{
    struct stat st;
    size_t i = place_of(p);
    return known[i].inode && known[i].process.pid == p->pid &&
           known[i].process.start_ticks == p->start_ticks && fstat(pidfd, &st) == 0 &&
           known[i].inode == (uint64_t)st.st_ino;
}

bool hf_process_has_ended(int pidfd)
{
    struct pollfd watched = {.fd = pidfd, .events = POLLIN};
    return poll(&watched, 1, 0) == 1;
}

/* `pidfd` is of whoever has the pid now, or -1. */
static enum hf_alive judge(const struct hf_process *p, int pidfd)
{
    struct hf_process_stat stat;
    if (pidfd >= 0 && is_known(p, pidfd))
        return hf_process_has_ended(pidfd) ? HF_DEAD : HF_ALIVE;
    if (!hf_process_read_stat(p->pid, &stat))
        return HF_ALIVE_UNKNOWN;
    /* Rounding by the namespace's offset may move the start by a tick. */
    if (llabs(stat.start_ticks - p->start_ticks) > 1)
        return HF_DEAD; /* another process has its pid now */
    if (pidfd >= 0 && hf_process_has_ended(pidfd))
        return HF_DEAD;
    if (pidfd >= 0) {
        known[place_of(p)].process = *p;
        known[place_of(p)].inode = unique_inode(pidfd);
    }
    return HF_ALIVE;
}

static enum hf_alive alive(const struct hf_process *p)
{
    int pidfd = pidfd_open(p->pid, 0);
    if (pidfd < 0 && errno == ESRCH)
        return HF_DEAD;
    enum hf_alive verdict = judge(p, pidfd);
    if (pidfd >= 0)
        close(pidfd);
    return verdict;
}

/* Does /proc show these processes by the numbers that they are bound by? */
static bool can_judge(const struct hf_processes *all)
{
    return strlen(all->boot) == HF_UUID_LEN && strcmp(all->boot, hf_boot_id()) == 0 &&
           all->pid_namespace != 0 && all->pid_namespace == own_pid_namespace();
}

enum hf_alive hf_processes_alive(const struct hf_processes *all)
{
    if (all->n == 0 || !can_judge(all))
        return HF_ALIVE_UNKNOWN;
    enum hf_alive best = HF_DEAD;
    for (uint32_t i = 0; i < all->n; i++) {
        enum hf_alive one = alive(&all->of[i]);
        if (one == HF_ALIVE)
            return HF_ALIVE;
        if (one == HF_ALIVE_UNKNOWN)
            best = HF_ALIVE_UNKNOWN;
    }
    return best;
}

void hf_processes_watch(const struct hf_processes *all, int ret_fds[HF_BOUND_MAX])
{
    for (uint32_t i = 0; i < HF_BOUND_MAX; i++)
        ret_fds[i] = -1;
    if (!can_judge(all))
        return;
    for (uint32_t i = 0; i < all->n && i < HF_BOUND_MAX; i++) {
        int fd = pidfd_open(all->of[i].pid, 0);
        /* Look now that the pid can't be reused behind our back. */
        if (fd >= 0 && judge(&all->of[i], fd) != HF_ALIVE) {
            close(fd);
            fd = -1;
        }
        ret_fds[i] = fd;
    }
}

/* ---- as text -------------------------------------------------------------------------------- */

void hf_processes_format(const struct hf_processes *all, char ret[HF_PROCESSES_TEXT_MAX])
{
    int used = 0;
    ret[0] = '\0';
    if (!all->n)
        return;
    used = snprintf(ret, HF_PROCESSES_TEXT_MAX, "%s %" PRIu64, all->boot, all->pid_namespace);
    for (uint32_t i = 0; i < all->n && i < HF_BOUND_MAX; i++)
        used += snprintf(ret + used, HF_PROCESSES_TEXT_MAX - (size_t)used, " %" PRId32 ":%" PRId64,
                         all->of[i].pid, all->of[i].start_ticks);
}

void hf_processes_parse(const char *text, struct hf_processes *ret)
{
    struct hf_processes all = {0};
    int at = 0;
    *ret = all;
    if (!*text) /* by far the most common, and sscanf is slow to find out */
        return;
    if (sscanf(text, "%36s %" SCNu64 "%n", all.boot, &all.pid_namespace, &at) != 2)
        return;
    for (int used; all.n < HF_BOUND_MAX; all.n++, at += used) {
        struct hf_process *p = &all.of[all.n];
        if (sscanf(text + at, " %" SCNd32 ":%" SCNd64 "%n", &p->pid, &p->start_ticks, &used) != 2)
            break;
    }
    *ret = all;
}
