#include "local.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "host.h"

/* ---- directories and filesystems ------------------------------------------------------------ */

int hf_local_make_directories(const char *path, struct hf_error *err)
{
    char part[PATH_MAX];
    struct stat st;
    size_t len = strlen(path);
    if (stat(path, &st) == 0)
        return 0;
    if (len >= sizeof part)
        return hf_fail(err, HF_INVALID, "the path %.60s... is too long", path);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (stat(part, &st) < 0 && mkdir(part, 0700) < 0 && errno != EEXIST)
            return hf_fail_errno(err, HF_UNAVAILABLE, errno,
                                 "can't make %s; create it, or name another place with --store",
                                 part);
    }
    return 0;
}

static const struct {
    uint32_t magic;
    const char *name;
} trusted[] = {
    {0xef53, "ext2/3/4"},  {0x58465342, "xfs"},      {0x9123683e, "btrfs"},
    {0x01021994, "tmpfs"}, {0x794c7630, "overlay"},  {0xf2f52010, "f2fs"},
    {0x2fc12fc1, "zfs"},   {0xca451a4e, "bcachefs"}, {0x858458f6, "ramfs"},
    {0x3153464a, "jfs"},   {0x52654973, "reiserfs"},
};

static const struct {
    uint32_t magic;
    const char *name;
} refused[] = {
    {0x6969, "NFS"},          {0xff534d42, "CIFS"},     {0xfe534d42, "SMB"},  {0x01021997, "9p"},
    {0x65735546, "FUSE"},     {0x6a656a63, "virtiofs"}, {0x00c36400, "Ceph"}, {0x5346414f, "AFS"},
    {0x013111a8, "IBM GPFS"}, {0x0bd00bd0, "Lustre"},
};

int hf_local_check_filesystem(const char *path, struct hf_error *err)
{
    struct statfs fs;
    if (statfs(path, &fs) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't look at the filesystem of %s",
                             path);
    uint32_t magic = (uint32_t)fs.f_type;
    for (size_t i = 0; i < sizeof trusted / sizeof *trusted; i++)
        if (trusted[i].magic == magic)
            return 0;
    const char *name = "of an unknown kind";
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].magic == magic)
            name = refused[i].name;
    return hf_fail(err, HF_UNAVAILABLE,
                   "%s is on a filesystem (%s, 0x%x) whose locks can't be trusted across hosts; "
                   "name a place on a local disk with --store",
                   path, name, magic);
}

int hf_local_check_names(int at, const char *file, const char *path, struct hf_error *err)
{
    struct statx st;
    if (statx(at, file, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_NLINK, &st) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't look at %s", path);
    if (st.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return hf_fail(err, HF_UNAVAILABLE,
                       "%s is mounted by itself: by its other path others would take the same "
                       "locks; mount the directory that it is in instead",
                       path);
    if (!S_ISDIR(st.stx_mode) && st.stx_nlink > 1)
        return hf_fail(err, HF_UNAVAILABLE,
                       "%s has %u names (hard links): by another one others would take the same "
                       "locks; find them with `find -samefile`, and keep one",
                       path, st.stx_nlink);
    return 0;
}

/* ---- time ----------------------------------------------------------------------------------- */

int64_t hf_local_now_ms(void) { return hf_clock_boot_ms(); }

int hf_local_check_host(struct hf_error *err)
{
    int r = hf_host_check(err);
    if (r >= 0 && strlen(hf_boot_id()) != HF_UUID_LEN)
        r = hf_fail(err, HF_UNAVAILABLE,
                    "can't tell one boot from another: /proc/sys/kernel/random/boot_id is not "
                    "readable; mount all of /proc (systemd: ProcSubset=all)");
    return r;
}

int64_t hf_local_booted_at_ms(void) { return hf_clock_wall_ms() - hf_local_now_ms(); }

bool hf_local_is_this_boot(int64_t first_open_ms, int64_t booted_at_ms)
{
    enum { STEP_MS = 5000 };
    return hf_boot_id_is_the_machines(hf_boot_id()) ||
           (first_open_ms <= hf_local_now_ms() &&
            llabs(booted_at_ms - hf_local_booted_at_ms()) <= STEP_MS);
}

bool hf_local_is_to_come(int64_t boot_ms)
{
    enum { SLACK_MS = 1000 }; /* a namespace's offset is rounded */
    return boot_ms > hf_local_now_ms() + SLACK_MS;
}

bool hf_local_is_over(const char *boot, int64_t told_ms)
{
    const char *own = hf_boot_id();
    if (!*boot)
        return true;
    if (hf_boot_id_is_the_machines(own) && hf_boot_id_is_the_machines(boot))
        return strcmp(own, boot) != 0;
    return hf_local_is_to_come(told_ms);
}

void hf_local_rebase(struct hf_record *rec, int64_t first_open_ms)
{
    struct hf_grant *g = &rec->grant;
    if (!g->held)
        return;
    if (hf_local_is_over(g->bound.boot, g->told_ms)) {
        g->acquired_ms = first_open_ms;
        g->told_ms = first_open_ms;
        g->expires_ms = first_open_ms + g->ttl_ms;
        g->bound.boot[0] = '\0';
    }
    if (!g->bound.n)
        memcpy(g->bound.boot, hf_boot_id(), strlen(hf_boot_id()) + 1);
}

/* ---- wake-ups ------------------------------------------------------------------------------- */

/* Where the directory's group shares the store, it may wake us as well. */
static void share_fifo(int wake_dir, int fd)
{
    struct stat dir;
    if (fstat(wake_dir, &dir) < 0 || !(dir.st_mode & S_IWGRP))
        return;
    int ignored = fchown(fd, (uid_t)-1, dir.st_gid);
    ignored |= fchmod(fd, 0660);
    (void)ignored;
}

int hf_local_watch(int wake_dir, const struct hf_lock_id *id, int *ret_fd, struct hf_error *err)
{
    enum { TRIES = 100 };
    char name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    int fd = -1;
    /* A sweep may remove it before it is open. */
    for (int i = 0; fd < 0 && i < TRIES; i++) {
        struct stat st;
        if (mkfifoat(wake_dir, name, 0600) < 0 && errno != EEXIST)
            return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make a FIFO to be woken by");
        /* Opened for writing too, so that it never reads as closed. */
        fd = openat(wake_dir, name, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno != ENOENT)
            break;
        if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_nlink == 0)) {
            close(fd);
            fd = -1;
            errno = ENOENT;
        }
    }
    if (fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't open a FIFO to be woken by");
    share_fifo(wake_dir, fd);
    *ret_fd = fd;
    return 0;
}

/* A new name for the same FIFO: a third of what a new one costs. */
int hf_local_rewatch(int wake_dir, const struct hf_lock_id *from, const struct hf_lock_id *to)
{
    char old[HF_LOCK_ID_LEN + 1], name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(from, old);
    hf_lock_id_format(to, name);
    return renameat(wake_dir, old, wake_dir, name) < 0 ? -HF_UNAVAILABLE : 0;
}

void hf_local_unwatch(int wake_dir, const struct hf_lock_id *id, int fd)
{
    char name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    unlinkat(wake_dir, name, 0);
    close(fd);
}

int hf_local_share(int wake_dir, const struct hf_lock_id *id, const struct hf_lock_id *channel,
                   struct hf_error *err)
{
    char name[HF_LOCK_ID_LEN + 1], of[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    hf_lock_id_format(channel, of);
    if (linkat(wake_dir, of, wake_dir, name, 0) < 0 && errno != EEXIST)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't share a FIFO to be woken by");
    return 0;
}

void hf_local_unshare(int wake_dir, const struct hf_lock_id *id)
{
    char name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    unlinkat(wake_dir, name, 0);
}

void hf_local_wake(int wake_dir, const struct hf_lock_id *id)
{
    char name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    /* For reading too: else a waiter who leaves right now would get us a SIGPIPE. */
    int fd = openat(wake_dir, name, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    /* A full FIFO has woken its reader already. */
    ssize_t ignored = write(fd, id, sizeof *id);
    (void)ignored;
    close(fd);
}

static bool is_old(int wake_dir, const char *name)
{
    enum { OLD_MS = 60000 };
    struct stat st;
    return fstatat(wake_dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           hf_clock_wall_ms() - (int64_t)st.st_mtim.tv_sec * 1000 > OLD_MS;
}

void hf_local_sweep_wakes(int wake_dir)
{
    int fd = openat(wake_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct hf_lock_id id;
        if (!hf_lock_id_parse(entry->d_name, &id))
            continue;
        if (!is_old(wake_dir, entry->d_name)) /* it may be about to be opened */
            continue;
        int fifo = openat(wake_dir, entry->d_name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
        if (fifo < 0 && errno == ENXIO) /* nobody reads it */
            unlinkat(wake_dir, entry->d_name, 0);
        if (fifo >= 0)
            close(fifo);
    }
    closedir(dir);
}
