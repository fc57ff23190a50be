/*
 * update: replace a file by what a command makes of it, atomically, under a lock.
 *
 * The command reads FILE itself; what it writes goes through us into a file beside FILE, so that we
 * know what it must read back as. Only when everything is verified, synced and still ours is it
 * renamed over FILE. Until then FILE is as it was, whatever happens.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <poll.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "hold.h"
#include "text.h"

enum { CHUNK = 65536 };
#define RANDOM_END "-XXXXXX" /* of a temporary file whose own name is taken */

struct update {
    char path[PATH_MAX]; /* FILE's own, not that of a link to it */
    char directory[PATH_MAX];
    char temp_path[PATH_MAX]; /* empty: there is none to remove */
    bool existed;
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

/* ---- which file ----------------------------------------------------------------------------- */

/* The directory must exist; FILE need not, but a link must lead somewhere. */
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

static int name_temp(struct update *u)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    uint64_t tag;
    SHA2_CTX ctx;
    SHA256Init(&ctx);
    SHA256Update(&ctx, (const uint8_t *)u->path, strlen(u->path));
    SHA256Final(digest, &ctx);
    memcpy(&tag, digest, sizeof tag);
    memcpy(u->directory, u->path, sizeof u->directory);
    char *slash = strrchr(u->directory, '/');
    slash[slash == u->directory] = '\0';
    int n = snprintf(u->temp_path, sizeof u->temp_path, "%s/.holdfast-update-%016llx",
                     slash == u->directory ? "" : u->directory, (unsigned long long)tag);
    return n < (int)(sizeof u->temp_path - sizeof RANDOM_END) ? 0 : ENAMETOOLONG;
}

static bool is_there(const char *path, const struct stat *st)
{
    struct stat now;
    return lstat(path, &now) == 0 && now.st_dev == st->st_dev && now.st_ino == st->st_ino;
}

/* Of somebody who is dead: gone then. Nothing else is touched. */
static void remove_leftover(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        is_there(path, &st))
        unlink(path);
    close(fd);
}

/* The temporary file, new, empty, 0600 and locked; or -1. */
static int open_temp(struct update *u)
{
    enum { TRIES = 3 };
    for (int i = 0; i < TRIES; i++) {
        struct stat st;
        int fd = open(u->temp_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -1;
        if (fd < 0) {
            remove_leftover(u->temp_path);
            continue;
        }
        /* Until it was locked, it may have been taken for a leftover. */
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && is_there(u->temp_path, &st))
            return fd;
        close(fd);
    }
    strcat(u->temp_path, RANDOM_END);
    return mkostemp(u->temp_path, O_CLOEXEC);
}

/* ---- while the lease is held ---------------------------------------------------------------- */

/* FILE as it is now, and an empty file beside it. */
static int begin(void *arg)
{
    struct update *u = arg;
    u->existed = stat(u->path, &u->before) == 0;
    if (!u->existed && errno != ENOENT)
        return fail_file("look at", u->path, errno);
    if (u->existed && !S_ISREG(u->before.st_mode)) {
        cli_complain("%s is not a regular file", u->path);
        return CLI_EXIT_DATA;
    }
    if (u->existed && access(u->path, R_OK) < 0)
        return fail_file("read", u->path, errno);
    int failed = name_temp(u);
    if (!failed && (u->temp_fd = open_temp(u)) < 0)
        failed = errno;
    if (!failed)
        return 0;
    u->temp_path[0] = '\0';
    return fail_file("write beside", u->path, failed);
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
        u->failed = fail_file("write", u->temp_path, errno);
        tap->fd = -1;
        return -1;
    }
    SHA256Update(&u->passed, (const uint8_t *)chunk, (size_t)n);
    u->passed_bytes += n;
    return 1;
}

/* ---- committing ----------------------------------------------------------------------------- */

static int keep_mode_and_owner(const struct update *u)
{
    mode_t mask = umask(0);
    umask(mask);
    if (u->existed && fchown(u->temp_fd, u->before.st_uid, u->before.st_gid) < 0)
        return fail_file("keep the owner of", u->path, errno);
    if (fchmod(u->temp_fd, u->existed ? u->before.st_mode & 07777 : 0666 & ~mask) < 0)
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
    ssize_t n = u->existed ? listxattr(u->path, names, sizeof names) : 0;
    if (n < 0 && errno != EOPNOTSUPP)
        return fail_file("list the attributes of", u->path, errno);
    for (const char *name = names; name < names + n; name += strlen(name) + 1) {
        ssize_t size = getxattr(u->path, name, value, sizeof value);
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
        return fail_file("sync", u->temp_path, errno);
    posix_fadvise(u->temp_fd, 0, 0, POSIX_FADV_DONTNEED);
    SHA256Init(&ctx);
    while ((n = pread(u->temp_fd, chunk, sizeof chunk, at)) > 0) {
        SHA256Update(&ctx, (const uint8_t *)chunk, (size_t)n);
        at += n;
    }
    if (n < 0)
        return fail_file("read back", u->temp_path, errno);
    SHA256Final(found, &ctx);
    SHA256Final(passed, &u->passed);
    if (at == u->passed_bytes && memcmp(found, passed, sizeof found) == 0)
        return 0;
    cli_complain("what was written to %s does not read back the same; %s is as it was",
                 u->temp_path, u->path);
    return CLI_EXIT_OUTPUT;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Somebody who does not use the lock may have changed FILE while the command read it. */
static int verify_unchanged(const struct update *u)
{
    struct stat now;
    const struct stat *before = &u->before;
    bool exists = stat(u->path, &now) == 0;
    if (!exists && errno != ENOENT)
        return fail_file("look at", u->path, errno);
    if (!exists && !u->existed)
        return 0;
    if (exists && u->existed && now.st_dev == before->st_dev && now.st_ino == before->st_ino &&
        now.st_size == before->st_size && same_time(now.st_mtim, before->st_mtim) &&
        same_time(now.st_ctim, before->st_ctim))
        return 0;
    cli_complain("%s was changed meanwhile by somebody who does not hold the lock; it was left as "
                 "they made it",
                 u->path);
    return CLI_EXIT_DATA;
}

static int sync_directory(const struct update *u)
{
    int fd = open(u->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 ? -1 : fsync(fd);
    int saved_errno = errno;
    if (fd >= 0)
        close(fd);
    return r < 0 ? fail_file("sync", u->directory, saved_errno) : 0;
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
        code = fail_file("sync", u->temp_path, errno);
    if (code == 0)
        code = verify_unchanged(u);
    if (code)
        return code;
    if (hf_guard(hf, lease->name, lease->fence, &err) < 0) {
        cli_complain("%s is as it was: %s", u->path, err.message);
        return hf_code_exit(err.code);
    }
    if (rename(u->temp_path, u->path) < 0)
        return fail_file("replace", u->path, errno);
    u->temp_path[0] = '\0';
    flock(u->temp_fd, LOCK_UN); /* it is FILE now, which others may want to lock */
    return sync_directory(u);
}

/* ---- the command ---------------------------------------------------------------------------- */

static int update(struct cli *cli, struct update *u, const char *name, char *const *words)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0)
        return fail_file("make a pipe for", u->path, errno);
    SHA256Init(&u->passed);
    struct cli_hold hold = {.name = name,
                            .command = {.argv = words,
                                        .in_path = u->path,
                                        .in_fd = -1,
                                        .out_fd = ends[1],
                                        .err_fd = -1},
                            .taps = {{ends[0], POLLIN, take_output, u}, {.fd = -1}},
                            .begin = begin,
                            .commit = commit,
                            .tap_failed = &u->failed,
                            .arg = u};
    int code = cli_hold(cli, &hold);
    close(ends[0]);
    if (u->temp_path[0])
        unlink(u->temp_path);
    if (u->temp_fd >= 0)
        close(u->temp_fd);
    return code;
}

int cmd_update(struct cli *cli, int argc, char **argv)
{
    struct update u = {.temp_fd = -1};
    char name[HF_NAME_MAX + 2], *shell[4];
    int code = resolve(&u, argv[0]);
    if (code == 0)
        code = choose_name(cli, &u, name, sizeof name);
    if (code)
        return code;
    return update(cli, &u, name, cli_command_words(cli, argc, argv, shell));
}
