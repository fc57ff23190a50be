/*
 * Workers that have found nothing to do. Each has a FIFO, as a waiter has, and while it sleeps a
 * second name of it stands in the directory `idle`, beside a file NAME.of with the workflows that it
 * would claim, a line each; no file: any. Who has made an execution ready removes one of those names,
 * and whoever removes it wakes the sleeper: so each is woken by one only, and those who died asleep
 * are found out and passed over. The store itself need not be written for this.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "error.h"
#include "local.h"
#include "sqlite_store.h"

enum { LIST_MAX_BYTES = 1 << 20, LIST_NAME_MAX = HF_LOCK_ID_LEN + 8 };

static int open_idle_dir(struct hf_sqlite *s, bool create)
{
    if (hf_sqlite_open_wake_dir(s, create, NULL) < 0)
        return -1;
    bool made = create && mkdirat(s->wake_dir, "idle", 0700) == 0;
    int dir = openat(s->wake_dir, "idle", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (made && dir >= 0)
        hf_sqlite_share(s, dir);
    return dir;
}

static DIR *list_idle_dir(struct hf_sqlite *s)
{
    int fd = open_idle_dir(s, false);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0)
        close(fd);
    return dir;
}

/* ---- what a sleeper would claim ------------------------------------------------------------- */

static void name_list(const char *name, const char *suffix, char ret[LIST_NAME_MAX])
{
    snprintf(ret, LIST_NAME_MAX, "%.*s.%s", HF_LOCK_ID_LEN, name, suffix);
}

static void remove_sleeper(int dir, const char *name)
{
    char list[LIST_NAME_MAX];
    name_list(name, "of", list);
    unlinkat(dir, name, 0);
    unlinkat(dir, list, 0);
}

static int write_all(int fd, const struct hf_buf *b)
{
    ssize_t n = write(fd, b->data, b->len);
    if (n >= 0 && (size_t)n < b->len)
        errno = ENOSPC;
    return n == (ssize_t)b->len ? 0 : -1;
}

/* Nobody ever reads half of it. -1 with errno. */
static int write_list(struct hf_sqlite *s, int dir, const char *name, const struct hf_buf *list)
{
    char new_name[LIST_NAME_MAX], list_name[LIST_NAME_MAX];
    name_list(name, "new", new_name);
    name_list(name, "of", list_name);
    int fd = openat(dir, new_name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    hf_sqlite_share(s, fd);
    int r = write_all(fd, list);
    close(fd);
    if (r >= 0)
        r = renameat(dir, new_name, dir, list_name);
    if (r < 0)
        unlinkat(dir, new_name, 0);
    return r;
}

static int put_list(struct hf_sqlite *s, int dir, const char *name, const struct hf_due *wanted)
{
    struct hf_buf list = HF_BUF(LIST_MAX_BYTES);
    for (size_t i = 0; i < wanted->n_workflows; i++)
        hf_buf_printf(&list, "%s\n", wanted->workflows[i]);
    errno = E2BIG;
    int r = list.failed ? -1 : write_list(s, dir, name, &list);
    hf_buf_clear(&list);
    return r;
}

/* Lists of workers that were killed after they had been woken. */
static void sweep_lists(struct hf_sqlite *s)
{
    DIR *dir = list_idle_dir(s);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char name[HF_LOCK_ID_LEN + 1];
        struct hf_lock_id id;
        if (strlen(entry->d_name) <= HF_LOCK_ID_LEN)
            continue;
        memcpy(name, entry->d_name, HF_LOCK_ID_LEN);
        name[HF_LOCK_ID_LEN] = '\0';
        if (hf_lock_id_parse(name, &id) && faccessat(s->wake_dir, name, F_OK, 0) < 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

/* ---- sleeping ------------------------------------------------------------------------------- */

/* -1 with errno. */
static int enter(struct hf_sqlite *s, int dir, const char *name, const struct hf_due *wanted)
{
    if (wanted->n_workflows && put_list(s, dir, name, wanted) < 0)
        return -1;
    int r = linkat(s->wake_dir, name, dir, name, 0);
    return r < 0 && errno == EEXIST ? 0 : r;
}

static int lie_down(struct hf_sqlite *s, const char *name, const struct hf_due *wanted,
                    struct hf_error *err)
{
    int dir = open_idle_dir(s, true);
    uint8_t dice;
    hf_random(&dice, sizeof dice);
    if (dice == 0)
        sweep_lists(s);
    if (dir >= 0)
        remove_sleeper(dir, name); /* it may have slept for others before */
    int r = dir < 0 ? -1 : enter(s, dir, name, wanted);
    if (r < 0)
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait in %s-wake to be woken", s->path);
    if (dir >= 0)
        close(dir);
    return r;
}

static void get_up(struct hf_sqlite *s, const char *name)
{
    int dir = open_idle_dir(s, false);
    if (dir < 0)
        return;
    remove_sleeper(dir, name);
    close(dir);
}

int hf_sqlite_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                   int64_t *ret_next_ms, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    char name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    int r = 0;
    pthread_mutex_lock(&s->mutex);
    if (!wanted)
        get_up(s, name);
    else if ((r = lie_down(s, name, wanted, err)) >= 0)
        r = hf_sqlite_next_due(s, wanted, ret_next_ms, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

/* ---- waking --------------------------------------------------------------------------------- */

/* The list into `ret`; false: it has none, and would claim anything. */
static bool read_list(int dir, const char *name, struct hf_buf *ret)
{
    char list_name[LIST_NAME_MAX], bytes[4096];
    name_list(name, "of", list_name);
    int fd = openat(dir, list_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;)
        hf_buf_add(ret, bytes, (size_t)n);
    close(fd);
    return true;
}

static bool has_line(const struct hf_buf *list, const char *line)
{
    size_t n = strlen(line);
    const char *at = list->data;
    while (at && !(strncmp(at, line, n) == 0 && at[n] == '\n'))
        at = (at = strchr(at, '\n')) ? at + 1 : NULL;
    return at;
}

/* The first that this sleeper would claim, or NULL. */
static struct hf_ready *find_ready(int dir, const char *name, struct hf_ready *ready, size_t n)
{
    struct hf_buf list = HF_BUF(LIST_MAX_BYTES);
    bool any = !read_list(dir, name, &list);
    size_t i = 0;
    while (i < n && !(ready[i].n && (any || has_line(&list, ready[i].workflow))))
        i++;
    hf_buf_clear(&list);
    return i < n ? &ready[i] : NULL;
}

/* It sleeps, and there may be something for it. True: it has been woken, by us. */
static bool wake_one(const struct hf_sqlite *s, int dir, const char *name, struct hf_ready *ready,
                     size_t n)
{
    struct hf_lock_id id;
    if (!hf_lock_id_parse(name, &id))
        return false;
    int fd = openat(dir, name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        if (errno == ENXIO) /* nobody reads it: it died asleep */
            remove_sleeper(dir, name);
        return false;
    }
    struct hf_ready *for_it = find_ready(dir, name, ready, n);
    bool ours = for_it && unlinkat(dir, name, 0) == 0;
    close(fd);
    if (ours) {
        for_it->n--;
        hf_local_wake(s->wake_dir, &id);
    }
    return ours;
}

void hf_sqlite_wake_idle(struct hf_store *store, struct hf_ready *ready, size_t n)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        left += ready[i].n;
    DIR *dir = list_idle_dir(s);
    for (struct dirent *entry; dir && left > 0 && (entry = readdir(dir));)
        left -= wake_one(s, dirfd(dir), entry->d_name, ready, n);
    if (dir)
        closedir(dir);
}
