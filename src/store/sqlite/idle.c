/*
 * Workers that have found nothing to do. Each has a FIFO, as a waiter has, and while it sleeps a
 * second name of it stands in the directory `idle`. Who has made an execution ready removes one of
 * those names, and whoever removes it wakes the sleeper: so each is woken by one only, and those who
 * died asleep are found out and passed over. The store itself need not be written for this.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "local.h"
#include "sqlite_store.h"

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

static int lie_down(struct hf_sqlite *s, const char *name, struct hf_error *err)
{
    int dir = open_idle_dir(s, true);
    int r = dir < 0 ? -1 : linkat(s->wake_dir, name, dir, name, 0);
    if (r < 0 && errno != EEXIST)
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't wait in %s-wake to be woken", s->path);
    else
        r = 0;
    if (dir >= 0)
        close(dir);
    return r;
}

static void get_up(struct hf_sqlite *s, const char *name)
{
    int dir = open_idle_dir(s, false);
    if (dir < 0)
        return;
    unlinkat(dir, name, 0);
    close(dir);
}

int hf_sqlite_idle(struct hf_store *store, const struct hf_lock_id *id, int64_t *ret_next_ms,
                   struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    char name[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(id, name);
    int r = 0;
    pthread_mutex_lock(&s->mutex);
    if (!ret_next_ms)
        get_up(s, name);
    else if ((r = lie_down(s, name, err)) >= 0)
        r = hf_sqlite_next_due(s, hf_clock_wall_ms(), ret_next_ms, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

/* True: it was there, asleep, and has been woken by us. */
static bool wake_one(const struct hf_sqlite *s, int dir, const char *name)
{
    struct hf_lock_id id;
    if (!hf_lock_id_parse(name, &id))
        return false;
    int fd = openat(dir, name, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    bool asleep = fd >= 0, dead = !asleep && errno == ENXIO; /* nobody reads it */
    bool ours = (asleep || dead) && unlinkat(dir, name, 0) == 0;
    if (asleep)
        close(fd);
    if (ours && asleep)
        hf_local_wake(s->wake_dir, &id);
    return ours && asleep;
}

void hf_sqlite_wake_idle(struct hf_store *store, size_t n)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    int fd = open_idle_dir(s, false);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; n > 0 && (entry = readdir(dir));)
        n -= wake_one(s, fd, entry->d_name);
    closedir(dir);
}
