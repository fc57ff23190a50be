/*
 * update: replace a file by what a command makes of it, atomically, under a lock.
 *
 * The command reads FILE itself; what it writes goes through us into a file beside FILE, so that we
 * know what it must read back as. Only when everything is verified, synced and still ours is it
 * renamed over FILE. Until then FILE is as it was, whatever happens.
 *
 * The directory and FILE are opened once, and used by descriptor from then on: whoever may change what
 * their paths lead to can't make us read or replace another file.
 *
 * Between the check of the fence and the rename we may be stopped for so long that others are granted the
 * lock. So both happen under a kernel lock of the very FILE that the command has read: whoever gets that
 * lock later finds FILE changed, and leaves it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "failpoint.h"
#include "flock.h"
#include "hold.h"
#include "id.h"
#include "link.h"
#include "text.h"

enum { CHUNK = 65536, LOCK_PATIENCE_MS = 10000 };

struct update {
    struct cli *cli;
    char path[PATH_MAX]; /* FILE's own, not that of a link to it; for people */
    const char *name;    /* its last part: FILE in `directory` */
    char temp[64];       /* beside it; empty: there is none to remove */
    int directory, file; /* `file` -1: there is none yet */
    int line;            /* by which the command gets its stdin */
    struct stat before;
    int temp_fd;
    SHA2_CTX passed; /* what has passed through us */
    int64_t passed_bytes;
    int failed; /* exit code */
};

/* Complain about FILE or what is beside it; the exit code for this errno. */
static int fail_file(const char *what, const char *path, int saved_errno)
{
    cli_complain("can't %s %s: %s", what, path, strerror(saved_errno));
    if (saved_errno == EACCES || saved_errno == EPERM || saved_errno == EROFS)
        return hf_code_exit(HF_FORBIDDEN);
    if (saved_errno == ENOENT || saved_errno == ENOTDIR || saved_errno == ENAMETOOLONG)
        return CLI_EXIT_DATA;
    return CLI_EXIT_OUTPUT;
}

static int fail_beside(const char *what, const struct update *u, int saved_errno)
{
    char path[PATH_MAX + sizeof u->temp];
    snprintf(path, sizeof path, "%.*s%s", (int)(u->name - u->path), u->path, u->temp);
    return fail_file(what, path, saved_errno);
}

/* ---- which file ----------------------------------------------------------------------------- */

/* FILE's own path. The directory must exist; FILE need not, but a link must lead somewhere. */
static int resolve(struct update *u, const char *file)
{
    struct stat st;
    char copy[PATH_MAX], directory[PATH_MAX];
    if (realpath(file, u->path))
        return 0;
    if (errno != ENOENT || lstat(file, &st) == 0)
        return fail_file("follow", file, errno);
    if (strlen(file) >= sizeof copy)
        return fail_file("use", file, ENAMETOOLONG);
    strcpy(copy, file);
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    if (!realpath(!slash ? "." : slash == copy ? "/" : copy, directory))
        return fail_file("find the directory of", file, errno);
    if (!*name || (size_t)snprintf(u->path, sizeof u->path, "%s/%s", directory, name) >= PATH_MAX)
        return fail_file("use", file, *name ? ENAMETOOLONG : ENOENT);
    return 0;
}

/* No part of the path may have become a link since it was resolved. */
static int open_directory(struct update *u)
{
    const struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                                 .resolve = RESOLVE_NO_SYMLINKS};
    char directory[PATH_MAX];
    strcpy(directory, u->path);
    char *slash = strrchr(directory, '/');
    u->name = u->path + (slash - directory) + 1;
    slash[slash == directory] = '\0';
    u->directory = (int)syscall(SYS_openat2, AT_FDCWD, directory, &how, sizeof how);
    if (u->directory < 0 && errno == ENOSYS)
        u->directory = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return u->directory < 0 ? fail_file("open the directory of", u->path, errno) : 0;
}

static int choose_name(const struct cli *cli, const struct update *u, char *ret, size_t size)
{
    struct hf_error err;
    if (cli->opts.name) {
        snprintf(ret, size, "%s", cli->opts.name);
        return 0;
    }
    int n = snprintf(ret, size, "update:%s", u->path);
    if (n < (int)size && hf_check_name(ret, &err) == 0)
        return 0;
    cli_complain("%s can't be part of a lock's name (at most %d bytes of UTF-8); choose one with "
                 "--name",
                 u->path, HF_NAME_MAX);
    return CLI_EXIT_DATA;
}

/* ---- the file beside it --------------------------------------------------------------------- */

/*
 * FILE has one name for it, so that the next update finds what a killed one has left. Whoever writes
 * to it has a kernel lock on it, which a dead one has not: an update under another name (--name) of
 * the same FILE may be alive.
 */

static void name_temp(struct update *u)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    uint64_t tag;
    SHA2_CTX ctx;
    SHA256Init(&ctx);
    SHA256Update(&ctx, (const uint8_t *)u->name, strlen(u->name));
    SHA256Final(digest, &ctx);
    memcpy(&tag, digest, sizeof tag);
    snprintf(u->temp, sizeof u->temp, ".holdfast-update-%016llx", (unsigned long long)tag);
}

static bool is_there(const struct update *u, const struct stat *st)
{
    struct stat now;
    return fstatat(u->directory, u->temp, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           now.st_dev == st->st_dev && now.st_ino == st->st_ino;
}

/* Of somebody who is dead: gone then. Nothing else is touched. */
static void remove_leftover(const struct update *u)
{
    struct stat st;
    int fd = openat(u->directory, u->temp, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        is_there(u, &st))
        unlinkat(u->directory, u->temp, 0);
    close(fd);
}

/* The temporary file, new, empty, 0600 and locked; or -1. Its own name may be taken. */
static int open_temp(struct update *u)
{
    enum { TRIES = 3 };
    name_temp(u);
    for (int i = 0; i <= TRIES; i++) {
        struct stat st;
        uint32_t random;
        hf_random(&random, sizeof random);
        if (i == TRIES)
            snprintf(u->temp + strlen(u->temp), sizeof u->temp - strlen(u->temp), "-%08x", random);
        int fd = openat(u->directory, u->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -1;
        if (fd < 0) {
            remove_leftover(u);
            continue;
        }
        /* Until it was locked, it may have been taken for a leftover. */
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && is_there(u, &st))
            return fd;
        close(fd);
    }
    errno = EEXIST;
    return -1;
}

/* ---- while the lease is held ---------------------------------------------------------------- */

static int refuse_kind(const struct update *u)
{
    cli_complain("%s is not a regular file", u->path);
    return CLI_EXIT_DATA;
}

/* FILE as it is now, where there is one. */
static int open_file(struct update *u)
{
    struct stat st;
    if (fstatat(u->directory, u->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fail_file("look at", u->path, errno);
    if (!S_ISREG(st.st_mode))
        return refuse_kind(u);
    u->file = openat(u->directory, u->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (u->file < 0 || fstat(u->file, &u->before) < 0 || fcntl(u->file, F_SETFL, 0) < 0)
        return fail_file("read", u->path, errno);
    return S_ISREG(u->before.st_mode) ? 0 : refuse_kind(u);
}

/* What the command reads: FILE, or nothing. */
static int hand_over(const struct update *u)
{
    int in = u->file >= 0 ? u->file : open("/dev/null", O_RDONLY | O_CLOEXEC);
    int r = in < 0 ? -errno : hf_link_send(u->line, "", 1, &in, 1);
    if (in >= 0 && in != u->file)
        close(in);
    return r < 0 ? fail_file("hand over", u->path, -r) : 0;
}

static int begin(void *arg)
{
    struct update *u = arg;
    int code = open_file(u);
    if (code)
        return code;
    u->temp_fd = open_temp(u);
    if (u->temp_fd >= 0)
        return hand_over(u);
    u->temp[0] = '\0';
    return fail_file("write beside", u->path, errno);
}

static int write_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t written = write(fd, bytes, n);
        if (written < 0 && errno != EINTR)
            return -1;
        if (written > 0) {
            bytes += written;
            n -= (size_t)written;
        }
    }
    return 0;
}

/* What the command has written goes on into the file, and is remembered. */
static int take_output(struct hf_run *run, struct hf_tap *tap)
{
    (void)run;
    struct update *u = tap->arg;
    char chunk[CHUNK];
    ssize_t n = read(tap->fd, chunk, sizeof chunk);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (n <= 0) {
        tap->fd = -1;
        return 0;
    }
    if (write_all(u->temp_fd, chunk, (size_t)n) < 0) {
        u->failed = fail_beside("write", u, errno);
        tap->fd = -1;
        return -1;
    }
    SHA256Update(&u->passed, (const uint8_t *)chunk, (size_t)n);
    u->passed_bytes += n;
    return 1;
}

/* ---- committing ----------------------------------------------------------------------------- */

/* What lets a program have other rights than whoever runs it is not given to a new content. */
static void say_dropped(const struct update *u)
{
    bool capable = fgetxattr(u->file, "security.capability", NULL, 0) > 0;
    if ((u->before.st_mode & (S_ISUID | S_ISGID) || capable) && !u->cli->opts.quiet)
        cli_complain("%s had set-user-ID, set-group-ID or capabilities; its new content has not",
                     u->path);
}

static int keep_mode_and_owner(const struct update *u)
{
    mode_t mask = umask(0);
    umask(mask);
    if (u->file >= 0 && fchown(u->temp_fd, u->before.st_uid, u->before.st_gid) < 0)
        return fail_file("keep the owner of", u->path, errno);
    if (fchmod(u->temp_fd, u->file >= 0 ? u->before.st_mode & 0777 : 0666 & ~mask) < 0)
        return fail_file("keep the mode of", u->path, errno);
    return 0;
}

/* Whether FILE is still the same without it: what grants or denies access it is not. */
static bool may_be_missing(const char *attribute, int saved_errno)
{
    bool refused = saved_errno == EPERM || saved_errno == EACCES || saved_errno == EOPNOTSUPP;
    return refused && strcmp(attribute, "system.posix_acl_access") != 0;
}

/* An access list above all: without it, its mask in the mode would be the group's permissions. */
static int keep_attributes(const struct update *u)
{
    char names[XATTR_LIST_MAX], value[XATTR_SIZE_MAX];
    ssize_t n = u->file >= 0 ? flistxattr(u->file, names, sizeof names) : 0;
    if (n < 0 && errno != EOPNOTSUPP)
        return fail_file("list the attributes of", u->path, errno);
    for (const char *name = names; name < names + n; name += strlen(name) + 1) {
        if (strcmp(name, "security.capability") == 0)
            continue;
        ssize_t size = fgetxattr(u->file, name, value, sizeof value);
        if ((size < 0 || fsetxattr(u->temp_fd, name, value, (size_t)size, 0) < 0) &&
            !may_be_missing(name, errno))
            return fail_file("keep the attributes of", u->path, errno);
    }
    return 0;
}

/* Sync, then read it back from the disk rather than from memory. */
static int verify_written(struct update *u)
{
    uint8_t passed[SHA256_DIGEST_LENGTH], found[SHA256_DIGEST_LENGTH];
    char chunk[CHUNK];
    SHA2_CTX ctx;
    int64_t at = 0;
    ssize_t n;
    if (fsync(u->temp_fd) < 0)
        return fail_beside("sync", u, errno);
    posix_fadvise(u->temp_fd, 0, 0, POSIX_FADV_DONTNEED);
    SHA256Init(&ctx);
    while ((n = pread(u->temp_fd, chunk, sizeof chunk, at)) > 0) {
        SHA256Update(&ctx, (const uint8_t *)chunk, (size_t)n);
        at += n;
    }
    if (n < 0)
        return fail_beside("read back", u, errno);
    SHA256Final(found, &ctx);
    SHA256Final(passed, &u->passed);
    if (at == u->passed_bytes && memcmp(found, passed, sizeof found) == 0)
        return 0;
    cli_complain("what was written beside %s does not read back the same; it is as it was",
                 u->path);
    return CLI_EXIT_OUTPUT;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Somebody who does not hold the lock, or any more, may have changed FILE while the command read it. */
static int fail_changed(const struct update *u)
{
    cli_complain("%s was changed meanwhile by somebody who does not hold the lock; it was left as "
                 "they made it",
                 u->path);
    return CLI_EXIT_DATA;
}

static int verify_unchanged(const struct update *u)
{
    struct stat now;
    const struct stat *before = &u->before;
    bool exists = fstatat(u->directory, u->name, &now, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && errno != ENOENT)
        return fail_file("look at", u->path, errno);
    if (!exists && u->file < 0)
        return 0;
    if (exists && u->file >= 0 && now.st_dev == before->st_dev && now.st_ino == before->st_ino &&
        now.st_size == before->st_size && same_time(now.st_mtim, before->st_mtim) &&
        same_time(now.st_ctim, before->st_ctim))
        return 0;
    return fail_changed(u);
}

/* A FILE that was not there must not be there now: that is decided in the same step. */
static int put_in_place(struct update *u)
{
    int r = u->file >= 0
                ? renameat(u->directory, u->temp, u->directory, u->name)
                : renameat2(u->directory, u->temp, u->directory, u->name, RENAME_NOREPLACE);
    if (r < 0 && u->file < 0 && errno == EINVAL) /* not on this filesystem */
        r = linkat(u->directory, u->temp, u->directory, u->name, 0);
    else if (r == 0)
        u->temp[0] = '\0';
    if (r < 0)
        return errno == EEXIST ? fail_changed(u) : fail_file("replace", u->path, errno);
    flock(u->temp_fd, LOCK_UN); /* it is FILE now, which others may want to lock */
    return fsync(u->directory) < 0 ? fail_file("sync the directory of", u->path, errno) : 0;
}

static int replace(struct update *u, struct hf *hf, const struct hf_lease *lease)
{
    struct hf_error err;
    int code = verify_unchanged(u);
    if (code)
        return code;
    if (hf_guard(hf, lease->name, lease->fence, &err) < 0) {
        cli_complain("%s is as it was: %s", u->path, err.message);
        return hf_code_exit(err.code);
    }
    hf_failpoint(HF_FAIL_GUARDED);
    return put_in_place(u);
}

static int commit(void *arg, struct hf *hf, const struct hf_lease *lease)
{
    struct update *u = arg;
    struct hf_error err;
    int code = verify_written(u);
    if (code == 0)
        code = keep_mode_and_owner(u);
    if (code == 0)
        code = keep_attributes(u);
    if (code == 0 && fsync(u->temp_fd) < 0)
        code = fail_beside("sync", u, errno);
    if (code)
        return code;
    if (u->file >= 0 && hf_flock(u->file, LOCK_EX, LOCK_PATIENCE_MS, u->path, &err) < 0) {
        cli_complain("%s; it is as it was", err.message);
        return CLI_EXIT_HELD;
    }
    code = replace(u, hf, lease);
    if (code == 0 && u->file >= 0)
        say_dropped(u);
    return code;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int update(struct update *u, const char *name, char *const *words)
{
    int ends[2], line[2];
    if (pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0 ||
        hf_link_open(line) < 0)
        return fail_file("make a pipe for", u->path, errno);
    u->line = line[0];
    SHA256Init(&u->passed);
    struct cli_hold hold = {.name = name,
                            .command = {.argv = words,
                                        .in_line = line[1],
                                        .in_fd = -1,
                                        .out_fd = ends[1],
                                        .err_fd = -1},
                            .taps = {{ends[0], POLLIN, take_output, u}, {.fd = -1}},
                            .begin = begin,
                            .commit = commit,
                            .tap_failed = &u->failed,
                            .arg = u};
    int code = cli_hold(u->cli, &hold);
    close(ends[0]);
    close(line[0]);
    return code;
}

/* All that was opened; the kernel locks end with it. */
static void clear(const struct update *u)
{
    if (u->temp[0])
        unlinkat(u->directory, u->temp, 0);
    const int fds[] = {u->temp_fd, u->file, u->directory};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

int cmd_update(struct cli *cli, int argc, char **argv)
{
    struct update u = {.cli = cli, .directory = -1, .file = -1, .temp_fd = -1};
    char name[HF_NAME_MAX + 2], *shell[4];
    int code = resolve(&u, argv[0]);
    if (code == 0)
        code = choose_name(cli, &u, name, sizeof name);
    if (code == 0)
        code = open_directory(&u);
    if (code == 0)
        code = update(&u, name, cli_command_words(cli, argc, argv, shell));
    clear(&u);
    return code;
}
