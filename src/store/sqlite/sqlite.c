#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "local.h"
#include "sqlite_store.h"

/* ---- waking --------------------------------------------------------------------------------- */

enum { SWEEP_ONE_IN = 64 }; /* looking at every FIFO costs more the more there are */

/* Made when somebody first waits. */
int hf_sqlite_open_wake_dir(struct hf_sqlite *s, bool create, struct hf_error *err)
{
    if (s->wake_dir >= 0)
        return 0;
    char path[HF_URL_MAX + HF_SQLITE_SUFFIX_MAX];
    snprintf(path, sizeof path, "%s-wake", s->path);
    bool made = create && mkdir(path, 0700) == 0;
    s->wake_dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (s->wake_dir < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't open %s to be woken", path);
    if (made)
        hf_sqlite_share(s, s->wake_dir);
    uint8_t dice;
    hf_random(&dice, sizeof dice);
    if (create && dice % SWEEP_ONE_IN == 0)
        hf_local_sweep_wakes(s->wake_dir);
    return 0;
}

static int watch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int *ret_fd,
                 struct hf_error *err)
{
    (void)name;
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    int r = hf_sqlite_open_wake_dir(s, true, err);
    int dir = s->wake_dir;
    pthread_mutex_unlock(&s->mutex);
    return r < 0 ? r : hf_local_watch(dir, id, ret_fd, err);
}

/* Open since somebody first waited. */
static int known_wake_dir(struct hf_sqlite *s)
{
    pthread_mutex_lock(&s->mutex);
    int dir = s->wake_dir;
    pthread_mutex_unlock(&s->mutex);
    return dir;
}

static int rewatch(struct hf_store *store, const struct hf_lock_id *from,
                   const struct hf_lock_id *to)
{
    return hf_local_rewatch(known_wake_dir(hf_sqlite_of(store)), from, to);
}

static void unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd)
{
    (void)name;
    hf_local_unwatch(known_wake_dir(hf_sqlite_of(store)), id, fd);
}

/* The channel's watch has opened the directory. */
static int share(struct hf_store *store, const struct hf_lock_id *id,
                 const struct hf_lock_id *channel, struct hf_error *err)
{
    return hf_local_share(hf_sqlite_of(store)->wake_dir, id, channel, err);
}

static void stop_sharing(struct hf_store *store, const struct hf_lock_id *id)
{
    hf_local_unshare(hf_sqlite_of(store)->wake_dir, id);
}

static void wake(struct hf_store *store, const char *name, const struct hf_lock_id *id)
{
    (void)name;
    struct hf_sqlite *s = hf_sqlite_of(store);
    if (hf_sqlite_open_wake_dir(s, false, NULL) >= 0)
        hf_local_wake(s->wake_dir, id);
}

/* ---- changing ------------------------------------------------------------------------------- */

static int begin(struct hf_store *store, const char *const *names, size_t n, bool durable,
                 struct hf_error *err)
{
    (void)names;
    struct hf_sqlite *s = hf_sqlite_of(store);
    if (n > 1)
        hf_sqlite_know_many(s);
    int r = hf_sqlite_reserve(s, err);
    return r < 0 ? r : hf_sqlite_begin(s, durable, err);
}

static int commit(struct hf_store *store, struct hf_error *err)
{
    return hf_sqlite_commit(hf_sqlite_of(store), err);
}

static void rollback(struct hf_store *store) { hf_sqlite_rollback(hf_sqlite_of(store)); }

static int begin_look(struct hf_store *store, struct hf_error *err)
{
    return hf_sqlite_begin_look(hf_sqlite_of(store), err);
}

static void end_look(struct hf_store *store) { hf_sqlite_end_look(hf_sqlite_of(store)); }

static int64_t now_ms(struct hf_store *store)
{
    (void)store;
    return hf_local_now_ms();
}

const struct hf_record_ops hf_sqlite_record_ops = {
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
    .load = hf_sqlite_load,
    .begin_look = begin_look,
    .end_look = end_look,
    .save = hf_sqlite_save,
    .next_fence = hf_sqlite_next_fence,
    .find = hf_sqlite_find,
    .count = hf_sqlite_count,
    .unpark = hf_sqlite_unpark,
    .now_ms = now_ms,
    .wake = wake,
    .wake_idle = hf_sqlite_wake_idle,
};

static int apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    pthread_mutex_lock(&s->mutex);
    int r = hf_record_apply(store, &hf_sqlite_record_ops, requests, n, answers, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

/* ---- open, init, close ---------------------------------------------------------------------- */

static void close_store(struct hf_store *store)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    hf_sqlite_disconnect(s);
    hf_sqlite_known_close(s);
    if (s->wake_dir >= 0)
        close(s->wake_dir);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static int open_store(const struct hf_url *url, struct hf_store **ret, struct hf_error *err)
{
    static const char *const known[] = {NULL};
    int r = hf_url_check_params(url, known, err);
    if (r < 0)
        return r;
    struct hf_sqlite *s = calloc(1, sizeof *s);
    if (!s)
        return hf_fail(err, HF_NOMEM, "out of memory");
    s->queue_fd = s->wake_dir = -1;
    s->known_from = 1;
    pthread_mutex_init(&s->mutex, NULL);
    if ((r = hf_sqlite_connect(s, url->path, err)) < 0 || (r = hf_sqlite_make_ready(s, err)) < 0) {
        close_store(&s->base);
        return r;
    }
    *ret = &s->base;
    return 0;
}

/* Opening has created or migrated everything already. */
static int init(struct hf_store *store, bool bump_epoch, struct hf_error *err)
{
    struct hf_sqlite *s = hf_sqlite_of(store);
    if (!bump_epoch)
        return 0;
    pthread_mutex_lock(&s->mutex);
    int r = hf_sqlite_bump_epoch(s, err);
    pthread_mutex_unlock(&s->mutex);
    return r;
}

const struct hf_store_ops hf_sqlite_store = {
    .scheme = "sqlite",
    .form = "sqlite:PATH",
    .is_local = true,
    .open = open_store,
    .close = close_store,
    .apply = apply,
    .list = hf_sqlite_list,
    .events = hf_sqlite_events,
    .totals = hf_sqlite_totals,
    .execution = hf_sqlite_execution,
    .execution_data = hf_sqlite_execution_data,
    .executions = hf_sqlite_executions,
    .due = hf_sqlite_due,
    .last_key = hf_sqlite_last_key,
    .retain = hf_sqlite_retain,
    .prune = hf_sqlite_prune,
    .idle = hf_sqlite_idle,
    .init = init,
    .schema = hf_sqlite_schema,
    .watch = watch,
    .unwatch = unwatch,
    .share = share,
    .unshare = stop_sharing,
    .rewatch = rewatch,
    .runners = hf_sqlite_runners,
    .ahead = hf_sqlite_ahead,
    .token_add = hf_sqlite_token_add,
    .token_remove = hf_sqlite_token_remove,
    .token_list = hf_sqlite_token_list,
};
