/*
 * Where our own processes wait for each other before they write: a kernel lock on a side file,
 * which dies with its holder. SQLite's own busy handler backs off for up to 100 ms at a time and so
 * starves whoever has waited long; here everybody tries again at the same short interval.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "local.h"
#include "sqlite_store.h"

enum {
    TURN_MAX_MS = 30000, /* a holder may be stopped: nobody waits for it for ever */
    EAGER_MS = 1000,
    EAGER_SLEEP_NS = 50000, /* many short transactions: somebody is about to leave */
    PATIENT_SLEEP_NS = 5000000
};

int hf_sqlite_queue_open(struct hf_sqlite *s, struct hf_error *err)
{
    char path[HF_URL_MAX + 8];
    snprintf(path, sizeof path, "%s-queue", s->path);
    s->queue_fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (s->queue_fd < 0 && errno == ENOENT) {
        s->queue_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        hf_sqlite_share(s, s->queue_fd);
    }
    if (s->queue_fd >= 0)
        return 0;
    return hf_fail_errno(err, HF_UNAVAILABLE, errno,
                         "can't write %s; make it writable, or name another place with --store",
                         path);
}

bool hf_sqlite_queue_try(struct hf_sqlite *s) { return flock(s->queue_fd, LOCK_EX | LOCK_NB) == 0; }

int hf_sqlite_queue_enter(struct hf_sqlite *s, struct hf_error *err)
{
    if (hf_sqlite_queue_try(s))
        return 0;
    int64_t start_ms = hf_local_now_ms(), waited_ms = 0;
    while (errno == EWOULDBLOCK || errno == EINTR) {
        waited_ms = hf_local_now_ms() - start_ms;
        if (waited_ms >= TURN_MAX_MS)
            return hf_fail(err, HF_UNAVAILABLE,
                           "another process has kept %s busy for %d s; is it stopped? "
                           "`fuser %s-queue` names it",
                           s->path, TURN_MAX_MS / 1000, s->path);
        struct timespec nap = {.tv_nsec = waited_ms < EAGER_MS ? EAGER_SLEEP_NS : PATIENT_SLEEP_NS};
        nanosleep(&nap, NULL);
        if (hf_sqlite_queue_try(s))
            return 0;
    }
    return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't lock %s-queue", s->path);
}

void hf_sqlite_queue_leave(struct hf_sqlite *s) { flock(s->queue_fd, LOCK_UN); }
