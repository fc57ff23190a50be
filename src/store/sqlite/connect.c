#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "local.h"
#include "sqlite_store.h"

/* ---- the path ------------------------------------------------------------------------------- */

static int refuse(const char *path, int saved, struct hf_error *err)
{
    return hf_fail_errno(err, HF_UNAVAILABLE, saved,
                         "can't make %s; create it, or name another place with --store", path);
}

/* The directory of `path`, without what follows the last slash. */
static void directory_of(const char *path, char ret[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(ret, PATH_MAX, ".");
    else
        snprintf(ret, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/*
 * The real, absolute path: the working directory may change later, and every way to the same file
 * must lead to the same queue.
 */
static int resolve(struct hf_sqlite *s, const char *path, struct hf_error *err)
{
    char dir[PATH_MAX], real[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || path[n - 1] == '/')
        return hf_fail(err, HF_INVALID, "sqlite: needs a file's path, e.g. sqlite:/srv/locks.db");
    directory_of(path, dir);
    int r = hf_local_make_directories(dir, err);
    if (r < 0)
        return r;
    if (realpath(path, real))
        n = (size_t)snprintf(s->path, sizeof s->path, "%s", real);
    else if (errno != ENOENT || !realpath(dir, real))
        return refuse(path, errno, err);
    else
        n = (size_t)snprintf(s->path, sizeof s->path, "%s/%s", strcmp(real, "/") ? real : "",
                             strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    if (n + HF_SQLITE_SUFFIX_MAX >= sizeof s->path)
        return hf_fail(err, HF_INVALID, "the path %.60s... is too long", s->path);
    directory_of(s->path, dir);
    return hf_local_check_filesystem(dir, err);
}

/*
 * Make the file ourselves where it is missing, readable by its owner only; SQLite would take the
 * umask's word. Exclusively: closing a descriptor of a file that SQLite has open drops its locks.
 */
static int make_file(struct hf_sqlite *s, struct hf_error *err)
{
    struct stat st;
    if (stat(s->path, &st) == 0) {
        if (S_ISREG(st.st_mode))
            return hf_local_check_names(AT_FDCWD, s->path, s->path, err);
        return hf_fail(err, HF_UNAVAILABLE, "%s is %s, not a database; name a file with --store",
                       s->path, S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
    }
    int fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno == EEXIST ? 0 : refuse(s->path, errno, err);
    close(fd);
    return 0;
}

void hf_sqlite_share(const struct hf_sqlite *s, int fd)
{
    struct stat db, own;
    if (stat(s->path, &db) < 0 || fstat(fd, &own) < 0)
        return;
    mode_t mode = db.st_mode & 0666;
    if (S_ISDIR(own.st_mode))
        mode |= (mode & 0444) >> 2; /* who may read may enter */
    int ignored = fchmod(fd, mode);
    if (geteuid() == 0)
        ignored = fchown(fd, db.st_uid, db.st_gid);
    (void)ignored;
}

/* ---- the connection ------------------------------------------------------------------------- */

int hf_sqlite_connect(struct hf_sqlite *s, const char *path, struct hf_error *err)
{
    int r = resolve(s, path, err);
    if (r < 0 || (r = make_file(s, err)) < 0 || (r = hf_sqlite_queue_open(s, err)) < 0)
        return r;
    int rc = sqlite3_open_v2(s->path, &s->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                             hf_sqlite_vfs());
    if (!s->db)
        return hf_fail(err, HF_NOMEM, "out of memory");
    if (rc != SQLITE_OK)
        return hf_sqlite_fail(s, rc, err);
    if (sqlite3_db_readonly(s->db, "main") == 1) /* SQLite falls back to that by itself */
        return access(s->path, W_OK) < 0 && errno == EROFS
                   ? hf_fail_errno(err, HF_UNAVAILABLE, EROFS, "%s can't be written", s->path)
                   : hf_fail_errno(err, HF_FORBIDDEN, EACCES, "%s can't be written", s->path);
    return hf_sqlite_configure(s, err);
}

void hf_sqlite_disconnect(struct hf_sqlite *s)
{
    if (s->db)
        hf_sqlite_tidy(s);
    for (size_t i = 0; i < HF_STMT_COUNT; i++)
        sqlite3_finalize(s->stmts[i]);
    sqlite3_close(s->db);
    hf_sqlite_queue_close(s);
}
