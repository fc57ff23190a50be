#include <errno.h>
#include <sched.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "file_store.h"
#include "local.h"
#include "text.h"

/* ---- names ---------------------------------------------------------------------------------- */

enum { ENCODED_MAX = 240, PREFIX_MAX = 200, HASH_DIGITS = 32 };
#define SUFFIX ".lock"
#define CUT_MARK "%~" /* no encoded name contains it: a percent sign is always %25 */

static void cut_and_hash(const char *name, char *encoded)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA2_CTX ctx;
    SHA256Init(&ctx);
    SHA256Update(&ctx, (const uint8_t *)name, strlen(name));
    SHA256Final(digest, &ctx);
    size_t used = PREFIX_MAX;
    /* Cut neither an escape nor a character: file names are shown to people. */
    while (used && (encoded[used - 1] == '%' || (used > 1 && encoded[used - 2] == '%') ||
                    ((unsigned char)encoded[used] & 0xc0) == 0x80))
        used--;
    memcpy(encoded + used, CUT_MARK, strlen(CUT_MARK));
    used += strlen(CUT_MARK);
    for (int i = 0; i < HASH_DIGITS / 2; i++)
        used += (size_t)sprintf(encoded + used, "%02x", digest[i]);
}

void hf_file_encode(const char *name, char ret[HF_FILE_NAME_SIZE])
{
    char encoded[3 * HF_NAME_MAX + 1];
    size_t used = 0;
    for (const char *c = name; *c; c++)
        if (*c == '/' || *c == '%')
            used += (size_t)sprintf(encoded + used, "%%%02X", (unsigned)*c);
        else
            encoded[used++] = *c;
    encoded[used] = '\0';
    if (used > ENCODED_MAX)
        cut_and_hash(name, encoded);
    snprintf(ret, HF_FILE_NAME_SIZE, "%.*s" SUFFIX, ENCODED_MAX, encoded);
}

bool hf_file_decode(const char *file, char ret_name[HF_NAME_MAX + 1])
{
    size_t len = strlen(file), suffix = strlen(SUFFIX), used = 0;
    char name[HF_NAME_MAX + 1], again[HF_FILE_NAME_SIZE];
    if (len <= suffix || strcmp(file + len - suffix, SUFFIX) != 0)
        return false;
    for (size_t i = 0; i < len - suffix; i++, used++) {
        if (used == HF_NAME_MAX)
            return false;
        name[used] = file[i];
        if (file[i] == '%') {
            name[used] = strncmp(file + i, "%2F", 3) == 0 ? '/' : '%';
            i += 2;
        }
    }
    name[used] = '\0';
    if (hf_check_name(name, NULL) < 0)
        return false;
    hf_file_encode(name, again); /* other spellings are not the files of any name */
    if (strcmp(again, file) != 0)
        return false;
    memcpy(ret_name, name, used + 1);
    return true;
}

/* ---- who may use it ------------------------------------------------------------------------- */

static bool is_trusted(const struct hf_file_dir *dir, uid_t uid)
{
    return uid == dir->owner || uid == 0 || dir->shared || uid == geteuid() || geteuid() == 0;
}

int hf_file_check_own(const struct hf_file_dir *dir, const char *file, const struct stat *st,
                      struct hf_error *err)
{
    if (S_ISLNK(st->st_mode))
        return hf_fail(err, HF_UNAVAILABLE, "%s in %s is a symbolic link; it is not followed", file,
                       dir->path);
    if (!S_ISREG(st->st_mode))
        return hf_fail(err, HF_UNAVAILABLE, "%s in %s is not a plain file", file, dir->path);
    if (!is_trusted(dir, st->st_uid))
        return hf_fail(err, HF_UNAVAILABLE, "%s in %s belongs to another user (uid %d)", file,
                       dir->path, (int)st->st_uid);
    return 0;
}

/* What we make belongs to those who share the directory, whatever our umask and group are. */
static void share(const struct hf_file_dir *dir, int fd, mode_t mode)
{
    int ignored = 0;
    if (geteuid() == 0 && dir->owner != 0)
        ignored |= fchown(fd, dir->owner, dir->group);
    else if (dir->shared)
        ignored |= fchown(fd, (uid_t)-1, dir->group);
    if (dir->shared)
        ignored |= fchmod(fd, mode | mode >> 3);
    (void)ignored;
}

int hf_file_open_own(const struct hf_file_dir *dir, int at, const char *file, int flags,
                     int *ret_fd, struct hf_error *err)
{
    bool made = false;
    int fd = openat(at, file, (flags & ~O_CREAT) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && flags & O_CREAT) {
        fd = openat(at, file, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
        made = true;
    }
    if (fd < 0 && errno == ELOOP)
        return hf_fail(err, HF_UNAVAILABLE, "%s in %s is a symbolic link; it is not followed", file,
                       dir->path);
    if (fd < 0)
        return hf_fail_errno(err, errno == ENOENT ? HF_NOT_FOUND : HF_UNAVAILABLE, errno,
                             "can't open %s in %s", file, dir->path);
    struct stat st;
    int r = fstat(fd, &st) < 0 ? hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't look at %s", file)
                               : hf_file_check_own(dir, file, &st, err);
    if (r < 0) {
        close(fd);
        return r;
    }
    if (made)
        share(dir, fd, 0600);
    *ret_fd = fd;
    return 0;
}

int hf_file_check_names(const struct hf_file_dir *dir, int fd, const char *file,
                        struct hf_error *err)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/.holdfast/%s", dir->path, file);
    return hf_local_check_names(fd, "", path, err);
}

/* ---- the directory -------------------------------------------------------------------------- */

static int open_top(struct hf_file_dir *dir, struct hf_error *err)
{
    struct stat st;
    dir->top = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->top < 0 || fstat(dir->top, &st) < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't open the directory %s", dir->path);
    if (st.st_mode & S_IWOTH && !(st.st_mode & S_ISVTX))
        return hf_fail(err, HF_UNAVAILABLE,
                       "everybody may write to %s: anybody could take or free its locks; "
                       "use another directory, or: chmod o-w %s",
                       dir->path, dir->path);
    dir->owner = st.st_uid;
    dir->group = st.st_gid;
    dir->shared = st.st_mode & S_IWGRP && !(st.st_mode & S_ISVTX);
    return 0;
}

static int open_sub(struct hf_file_dir *dir, int at, const char *name, int *ret_fd,
                    struct hf_error *err)
{
    bool made = mkdirat(at, name, 0700) == 0;
    if (!made && errno != EEXIST)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make %s in %s", name, dir->path);
    struct stat st;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int saved = errno;
        if (fd >= 0)
            close(fd);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't open %s in %s", name, dir->path);
    }
    *ret_fd = fd;
    if (!is_trusted(dir, st.st_uid))
        return hf_fail(err, HF_UNAVAILABLE, "%s in %s belongs to another user (uid %d)", name,
                       dir->path, (int)st.st_uid);
    if (made)
        share(dir, fd, 0700);
    return hf_file_check_names(dir, fd, strcmp(name, ".holdfast") ? name : "", err);
}

static int open_subs(struct hf_file_dir *dir, struct hf_error *err)
{
    int r = open_sub(dir, dir->top, ".holdfast", &dir->inner, err);
    const struct {
        const char *name;
        int *fd;
    } subs[] = {{"names", &dir->names},
                {"pages0", &dir->pages[0]},
                {"pages1", &dir->pages[1]},
                {"swap", &dir->swap},
                {"wake", &dir->wake}};
    for (size_t i = 0; r >= 0 && i < sizeof subs / sizeof *subs; i++)
        r = open_sub(dir, dir->inner, subs[i].name, subs[i].fd, err);
    return r;
}

int hf_file_dir_open(const char *path, struct hf_file_dir *ret, struct hf_error *err)
{
    struct hf_file_dir dir = {
        .top = -1, .inner = -1, .names = -1, .pages = {-1, -1}, .swap = -1, .wake = -1};
    if (!*path)
        return hf_fail(err, HF_INVALID, "the file store needs a directory: file:DIR");
    int r = hf_local_make_directories(path, err);
    if (r >= 0 && !realpath(path, dir.path))
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't find the directory %s", path);
    if (r >= 0)
        r = hf_local_check_filesystem(dir.path, err);
    if (r >= 0)
        r = open_top(&dir, err);
    if (r >= 0)
        r = open_subs(&dir, err);
    if (r < 0) {
        hf_file_dir_close(&dir);
        return r;
    }
    *ret = dir;
    return 0;
}

void hf_file_dir_close(struct hf_file_dir *dir)
{
    const int fds[] = {dir->top,      dir->inner, dir->names, dir->pages[0],
                       dir->pages[1], dir->swap,  dir->wake};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* ---- checking ------------------------------------------------------------------- */

/* (Asking for no times: a time that nobody has seen need not be written at the next change.) */
uint32_t hf_file_links(int fd)
{
    struct statx st;
    return statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &st) < 0 ? 0 : st.stx_nlink;
}

static const uint64_t prime = UINT64_C(0x9e3779b97f4a7c15);

static inline void mix(uint64_t lanes[4], const uint64_t words[4])
{
#pragma GCC unroll 4 /* keeps the lanes in registers: it runs over every guard read or written */
    for (int i = 0; i < 4; i++) {
        lanes[i] = (lanes[i] ^ words[i]) * prime;
        lanes[i] ^= lanes[i] >> 29;
    }
}

uint64_t hf_file_checksum(const void *bytes, size_t n, uint64_t seed)
{
    uint64_t lanes[4] = {seed, n, prime, ~seed}, words[4];
    const char *p = bytes, *end = p + n;
    for (; end - p >= (ptrdiff_t)sizeof words; p += sizeof words) {
        memcpy(words, p, sizeof words);
        mix(lanes, words);
    }
    memset(words, 0, sizeof words);
    memcpy(words, p, (size_t)(end - p));
    mix(lanes, words);
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum = (sum ^ lanes[i]) * prime;
    return sum ^ sum >> 29;
}
