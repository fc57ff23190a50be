#include "zones.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "nearest.h"

#define DEFAULT_DIR "/usr/share/zoneinfo"
enum { FILE_MAX_BYTES = 64 << 10, ZONE_NAME_MAX = 64, DEPTH_MAX = 3 };

static const char *directory(void)
{
    const char *named = getenv("TZDIR");
    return named && *named ? named : DEFAULT_DIR;
}

/* ---- a name that there is not --------------------------------------------------------------- */

struct guess {
    struct hf_nearest nearest;
    char best[ZONE_NAME_MAX + 1];
};

static void consider(struct guess *guess, const char *name)
{
    const char *before = guess->nearest.best;
    hf_nearest_consider(&guess->nearest, name);
    if (guess->nearest.best != before) {
        snprintf(guess->best, sizeof guess->best, "%s", name);
        guess->nearest.best = guess->best;
    }
}

/* Every name below a directory, whose own name is `prefix` with a slash behind it. */
static void consider_all(struct guess *guess, int dir_fd, const char *prefix, int depth)
{
    DIR *dir = dir_fd < 0 ? NULL : fdopendir(dir_fd);
    struct dirent *entry;
    if (!dir && dir_fd >= 0)
        close(dir_fd);
    while (dir && (entry = readdir(dir))) {
        char name[ZONE_NAME_MAX + 1];
        const char *last = entry->d_name;
        bool other = strchr(last, '.') || strcmp(last, "posix") == 0 || strcmp(last, "right") == 0;
        if (other || strlen(prefix) + strlen(last) + 1 > ZONE_NAME_MAX)
            continue;
        strcat(strcpy(name, prefix), last);
        if (entry->d_type == DT_DIR && depth < DEPTH_MAX) {
            strcat(name, "/");
            int below = openat(dirfd(dir), last, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            consider_all(guess, below, name, depth + 1);
        } else
            consider(guess, name);
    }
    if (dir)
        closedir(dir);
}

static int fail_unknown(const char *name, struct hf_error *err)
{
    struct guess guess = {.nearest = hf_nearest_to(name)};
    int fd = open(directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return hf_fail(err, HF_INVALID,
                       "the time zone '%.80s' can't be looked up, there is no %s; install tzdata, "
                       "or use UTC",
                       name, directory());
    consider_all(&guess, fd, "", 0);
    if (*guess.best)
        return hf_fail(err, HF_INVALID, "there is no time zone '%.80s'; did you mean %s?", name,
                       guess.best);
    return hf_fail(err, HF_INVALID,
                   "there is no time zone '%.80s'; expected one of %s, such as Europe/Oslo", name,
                   directory());
}

/* ---- a file --------------------------------------------------------------------------------- */

/* Words of letters, digits and a few signs, with slashes between them: nothing that leads away. */
static bool is_name(const char *name)
{
    size_t n = strlen(name);
    return n && n <= ZONE_NAME_MAX && name[0] != '/' && name[n - 1] != '/' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/") == n;
}

/* The whole file; -1 with errno set. */
static ssize_t read_file(const char *path, char bytes[FILE_MAX_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    size_t n = 0;
    ssize_t some;
    while ((some = read(fd, bytes + n, FILE_MAX_BYTES - n)) > 0)
        n += (size_t)some;
    int saved = errno;
    close(fd);
    errno = saved;
    return some < 0 ? -1 : (ssize_t)n;
}

int hf_zone_load(const char *name, struct hf_zone **ret, struct hf_error *err)
{
    char path[4096], *bytes;
    struct hf_error why = {0};
    if (!name || strcmp(name, "UTC") == 0)
        return (*ret = hf_zone_utc()) ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    if (!is_name(name))
        return fail_unknown(name, err);
    snprintf(path, sizeof path, "%s/%s", directory(), name);
    if (!(bytes = malloc(FILE_MAX_BYTES)))
        return hf_fail(err, HF_NOMEM, "out of memory");
    ssize_t n = read_file(path, bytes);
    int saved = errno;
    int r = n < 0 ? -HF_INVALID : hf_zone_parse(bytes, (size_t)n, ret, &why);
    free(bytes);
    if (n < 0 && (saved == ENOENT || saved == ENOTDIR || saved == EISDIR))
        return fail_unknown(name, err);
    if (n < 0)
        return hf_fail_errno(err, HF_INVALID, saved, "can't read the time zone in %s", path);
    return r < 0 ? hf_fail(err, -r, "%s can't be used as a time zone: %s", path, why.message) : 0;
}
