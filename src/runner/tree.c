#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process.h"

enum { FAMILY_MAX = 1 << 20, KILL_AGAIN_NS = 5000000 };

/* Processes found so far, each with the parent under which it was found. */
struct family {
    struct member {
        pid_t pid, parent;
    } * of;
    size_t n, size;
};

/* What does not fit is found the next time, when others are gone. */
static void add(struct family *family, pid_t pid, pid_t parent)
{
    if (family->n == family->size) {
        size_t size = family->size ? family->size * 2 : 32;
        struct member *of =
            size > FAMILY_MAX ? NULL : realloc(family->of, size * sizeof *family->of);
        if (!of)
            return;
        family->of = of;
        family->size = size;
    }
    family->of[family->n++] = (struct member){pid, parent};
}

/* ---- finding children ----------------------------------------------------------------------- */

/* The children of one thread, from a file that lists their pids. */
static void add_children_of_thread(struct family *family, pid_t parent, int children_fd)
{
    char text[4096];
    size_t kept = 0;
    ssize_t n;
    while ((n = read(children_fd, text + kept, sizeof text - 1 - kept)) > 0) {
        text[kept + (size_t)n] = '\0';
        char *at = text, *end;
        /* A number counts only with the space behind it: the next read may bring its rest. */
        for (long pid; pid = strtol(at, &end, 10), *end == ' '; at = end + 1)
            add(family, (pid_t)pid, parent);
        kept = strlen(at);
        memmove(text, at, kept);
    }
    close(children_fd);
}

/* False: this kernel does not list children (CONFIG_PROC_CHILDREN). */
static bool add_children(struct family *family, pid_t parent)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    DIR *threads = opendir(path);
    if (!threads)
        return true;
    bool listed = true;
    for (struct dirent *entry; listed && (entry = readdir(threads));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%.20s/children", entry->d_name);
        int fd = openat(dirfd(threads), path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            add_children_of_thread(family, parent, fd);
        else
            listed = errno != ENOENT || faccessat(dirfd(threads), entry->d_name, F_OK, 0) < 0;
    }
    closedir(threads);
    return listed;
}

/* The slow way: ask every process of the machine for its parent. */
static void add_children_by_scan(struct family *family, pid_t parent)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return;
    for (struct dirent *entry; (entry = readdir(proc));) {
        struct hf_process_stat stat;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && hf_process_read_stat(pid, &stat) && stat.parent == parent)
            add(family, pid, parent);
    }
    closedir(proc);
}

/* ---- the descendants ------------------------------------------------------------------------ */

static bool is_spared(const struct hf_tree *tree, pid_t pid)
{
    for (size_t i = 0; i < tree->n_spared; i++)
        if (tree->spared[i] == pid)
            return true;
    return false;
}

/* Drop from the root's children, which are all there is as yet, those that are not meant. */
static void drop_unmeant(const struct hf_tree *tree, struct family *family)
{
    size_t kept = 0;
    for (size_t i = 0; i < family->n; i++) {
        struct hf_process_stat stat;
        pid_t pid = family->of[i].pid;
        if (is_spared(tree, pid))
            continue;
        if (tree->since_ticks && hf_process_read_stat(pid, &stat) &&
            stat.start_ticks < tree->since_ticks)
            continue;
        family->of[kept++] = family->of[i];
    }
    family->n = kept;
}

/* ---- signals -------------------------------------------------------------------------------- */

/*
 * Signal one that is still the child of who it was found under; answers whether it is alive. By a
 * descriptor, so that the pid can't come to mean another process in between. One whose parent has
 * just died is found again under its new one.
 */
static bool signal_member(const struct member *member, int signal_number)
{
    struct hf_process_stat stat;
    int fd = pidfd_open(member->pid, 0);
    if (fd < 0)
        return false;
    bool alive = hf_process_read_stat(member->pid, &stat) && stat.parent == member->parent &&
                 !hf_process_has_ended(fd);
    if (alive && signal_number)
        pidfd_send_signal(fd, signal_number, NULL, 0);
    close(fd);
    return alive;
}

/* Our own children can't be reaped by others, so their pids are sure: this is quicker. */
static void freeze_member(const struct member *member)
{
    if (member->parent == getpid())
        kill(member->pid, SIGSTOP);
    else
        signal_member(member, SIGSTOP);
}

/* Find all that are meant. `freeze` stops each before its children are looked for: no more come. */
static void find_family(const struct hf_tree *tree, bool freeze, struct family *family)
{
    bool listed = add_children(family, tree->root);
    if (!listed)
        add_children_by_scan(family, tree->root);
    drop_unmeant(tree, family);
    for (size_t i = 0; i < family->n; i++) {
        if (freeze)
            freeze_member(&family->of[i]);
        if (listed)
            add_children(family, family->of[i].pid);
        else
            add_children_by_scan(family, family->of[i].pid);
    }
}

/* Returns how many were found, dead ones that nobody has reaped yet among them. */
static size_t signal_family(const struct hf_tree *tree, int signal_number, uint32_t *ret_alive)
{
    struct family family = {0};
    uint32_t n_alive = 0;
    find_family(tree, signal_number == SIGKILL, &family);
    for (size_t i = 0; i < family.n; i++)
        n_alive += signal_member(&family.of[i], signal_number);
    if (signal_number == SIGTERM)
        for (size_t i = 0; i < family.n; i++)
            signal_member(&family.of[i], SIGCONT); /* who is stopped could not answer */
    free(family.of);
    if (ret_alive)
        *ret_alive = n_alive;
    return family.n;
}

uint32_t hf_tree_signal(const struct hf_tree *tree, int signal_number)
{
    uint32_t n_alive;
    signal_family(tree, signal_number, &n_alive);
    return n_alive;
}

/*
 * A process's orphans have come to us before it can be reaped: so where nobody is found, not even
 * the dead, nobody is left.
 */
bool hf_tree_kill_once(const struct hf_tree *tree)
{
    return signal_family(tree, SIGKILL, NULL) > 0;
}

void hf_tree_kill(const struct hf_tree *tree)
{
    static const struct timespec pause = {.tv_nsec = KILL_AGAIN_NS};
    while (hf_tree_kill_once(tree)) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        nanosleep(&pause, NULL);
    }
}
