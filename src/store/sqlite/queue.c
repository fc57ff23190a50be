/*
 * Where our own processes wait for each other before they write: a kernel lock on a side file,
 * which dies with its holder. SQLite's own busy handler backs off for up to 100 ms at a time and so
 * starves whoever has waited long; here everybody tries again at the same short interval.
 *
 * Who works without a pause takes the lock again before anybody else has woken up. So one who has
 * waited too long says so in the side file, as the elder, and while it is there all who came later
 * leave the lock alone. This is only a courtesy: an elder that dies or is stopped is soon forgotten,
 * and exclusion never depends on it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "flock.h"
#include "forked.h"
#include "local.h"
#include "sqlite_store.h"

enum {
    TURN_MAX_MS = 30000, /* a holder may be stopped: nobody waits for it for ever */
    ELDER_AFTER_MS = 20,
    ELDER_LAPSE_MS = 10, /* one who has not been seen for so long is no more */
};

/* What the side file holds: who has waited long, since when, and when it last tried. */
struct hf_sqlite_elder {
    _Atomic int64_t since_ms; /* 0: nobody */
    _Atomic int64_t seen_ms;
};

/* Without it (the disk may be full) we only are less fair. */
static void map_elder(struct hf_sqlite *s)
{
    struct hf_sqlite_elder nobody = {0};
    off_t size = lseek(s->queue_fd, 0, SEEK_END);
    /* Written, not only extended: a hole could not be filled later on a full disk. */
    if (size < (off_t)sizeof nobody &&
        pwrite(s->queue_fd, &nobody, sizeof nobody, 0) != (ssize_t)sizeof nobody)
        return;
    void *at = mmap(NULL, sizeof nobody, PROT_READ | PROT_WRITE, MAP_SHARED, s->queue_fd, 0);
    if (at == MAP_FAILED)
        return;
    madvise(at, sizeof nobody, MADV_DONTFORK); /* a mapping keeps the file, and its lock, as well */
    s->elder = at;
}

int hf_sqlite_queue_open(struct hf_sqlite *s, struct hf_error *err)
{
    char path[HF_URL_MAX + HF_SQLITE_SUFFIX_MAX];
    snprintf(path, sizeof path, "%s-queue", s->path);
    s->queue_fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (s->queue_fd < 0 && errno == ENOENT) {
        s->queue_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->queue_fd >= 0)
            hf_sqlite_share(s, s->queue_fd);
    }
    if (s->queue_fd < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno,
                             "can't write %s; make it writable, or name another place with --store",
                             path);
    map_elder(s);
    return hf_forked_add(s->queue_fd, err);
}

void hf_sqlite_queue_close(struct hf_sqlite *s)
{
    if (s->elder)
        munmap(s->elder, sizeof *s->elder);
    if (s->queue_fd < 0)
        return;
    hf_forked_remove(s->queue_fd);
    close(s->queue_fd);
}

/* ---- the elder ------------------------------------------------------------------------------ */

static bool has_elder(const struct hf_sqlite *s) { return s->elder && s->elder->since_ms != 0; }

/* Has somebody waited longer than since `start_ms`, and is it still there? */
static bool must_yield(struct hf_sqlite *s, int64_t start_ms, int64_t now_ms)
{
    if (!has_elder(s))
        return false;
    int64_t unseen_ms = now_ms - s->elder->seen_ms;
    if (unseen_ms < 0 || unseen_ms >= ELDER_LAPSE_MS) {
        s->elder->since_ms = 0;
        return false;
    }
    return s->elder->since_ms < start_ms;
}

static void be_elder(struct hf_sqlite *s, int64_t start_ms, int64_t now_ms)
{
    if (!s->elder)
        return;
    s->elder->seen_ms = now_ms;
    s->elder->since_ms = start_ms;
}

static void be_elder_no_more(struct hf_sqlite *s, int64_t start_ms)
{
    if (s->elder && s->elder->since_ms == start_ms)
        s->elder->since_ms = 0;
}

/* ---- the queue ------------------------------------------------------------------------------ */

bool hf_sqlite_queue_try(struct hf_sqlite *s) { return flock(s->queue_fd, LOCK_EX | LOCK_NB) == 0; }

/*
 * Short at first, since a transaction is; then long enough to leave the processors to those who
 * write; short again for the elder, whom all others wait for; long when somebody must be stopped.
 */
static void pause_between_tries(int64_t waited_ms)
{
    static const struct {
        int64_t below_ms;
        long nap_ns;
    } pauses[] = {{1, 50000}, {ELDER_AFTER_MS, 1000000}, {1000, 50000}, {INT64_MAX, 5000000}};
    size_t i = 0;
    while (waited_ms >= pauses[i].below_ms)
        i++;
    struct timespec nap = {.tv_nsec = pauses[i].nap_ns};
    nanosleep(&nap, NULL);
}

int hf_sqlite_queue_enter(struct hf_sqlite *s, struct hf_error *err)
{
    if (!has_elder(s) && hf_sqlite_queue_try(s))
        return 0;
    int64_t start_ms = hf_local_now_ms(), now_ms = start_ms;
    for (; now_ms - start_ms < TURN_MAX_MS; now_ms = hf_local_now_ms()) {
        if (!must_yield(s, start_ms, now_ms)) {
            if (hf_sqlite_queue_try(s)) {
                be_elder_no_more(s, start_ms);
                return 0;
            }
            if (errno != EWOULDBLOCK && errno != EINTR)
                return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't lock %s-queue", s->path);
            if (now_ms - start_ms >= ELDER_AFTER_MS)
                be_elder(s, start_ms, now_ms);
        }
        pause_between_tries(now_ms - start_ms);
    }
    char blame[HF_BLAME_MAX];
    be_elder_no_more(s, start_ms);
    hf_flock_blame(s->queue_fd, blame);
    return hf_fail(err, HF_UNAVAILABLE, "%s has been kept busy for %d s: %s", s->path,
                   TURN_MAX_MS / 1000, blame);
}

void hf_sqlite_queue_leave(struct hf_sqlite *s) { flock(s->queue_fd, LOCK_UN); }
