/*
 * The file store: locks as files that anybody can `cat`, on one machine. See file_store.h for what
 * is where. There is no transaction over several names, so requests are applied one by one, each
 * alone with its name.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "file_store.h"
#include "local.h"

enum { SWEEP_ONE_IN = 64 }; /* who begins to wait clears up after killed waiters, so often */

static struct hf_file_store *file_store_of(struct hf_store *store)
{
    return (struct hf_file_store *)store;
}

static int apply(struct hf_store *store, const struct hf_request *requests, size_t n,
                 struct hf_answer *answers, struct hf_error *err)
{
    if (n == 1)
        return hf_file_apply(file_store_of(store), requests, answers, err);
    /* What is the matter with one name must not keep the others from being renewed. */
    for (size_t i = 0; i < n; i++) {
        int r = hf_file_apply(file_store_of(store), &requests[i], &answers[i], err);
        if (r < 0)
            answers[i] = (struct hf_answer){.code = r};
    }
    return 0;
}

/* ---- all names ------------------------------------------------------------------------------ */

struct names {
    char (*of)[HF_NAME_MAX + 1];
    size_t n, size;
};

static int add_name(struct names *names, const char *name, struct hf_error *err)
{
    if (names->n == names->size) {
        size_t size = names->size ? 2 * names->size : 64;
        void *of = realloc(names->of, size * sizeof *names->of);
        if (!of)
            return hf_fail(err, HF_NOMEM, "out of memory");
        names->of = of;
        names->size = size;
    }
    strcpy(names->of[names->n++], name);
    return 0;
}

/* The name that a file in DIR or names/ stands for; the guard knows those that were cut. */
static bool name_of_file(struct hf_file_store *fs, const char *file, char ret[HF_NAME_MAX + 1])
{
    struct hf_file_guard_head head;
    char again[HF_FILE_NAME_SIZE];
    if (hf_file_decode(file, ret))
        return true;
    int fd = openat(fs->dir.names, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t n = pread(fd, &head, sizeof head, 0);
    close(fd);
    if (n != sizeof head || !memchr(head.name, '\0', sizeof head.name))
        return false;
    hf_file_encode(head.name, again);
    if (strcmp(again, file) != 0)
        return false;
    strcpy(ret, head.name);
    return true;
}

static int collect(struct hf_file_store *fs, int at, const struct hf_listing *which,
                   struct names *names, struct hf_error *err)
{
    int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int saved = errno;
        if (fd >= 0)
            close(fd);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't list %s", fs->dir.path);
    }
    int r = 0;
    char name[HF_NAME_MAX + 1];
    for (struct dirent *entry; r >= 0 && (entry = readdir(dir));)
        if (name_of_file(fs, entry->d_name, name) &&
            strncmp(name, which->prefix, strlen(which->prefix)) == 0 &&
            strcmp(name, which->after) > 0)
            r = add_name(names, name, err);
    closedir(dir);
    return r;
}

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

static int show_names(struct hf_file_store *fs, const struct names *names,
                      enum hf_list_filter filter, hf_status_fn fn, void *arg, struct hf_error *err)
{
    struct hf_status status;
    for (size_t i = 0; i < names->n; i++) {
        if (i && strcmp(names->of[i], names->of[i - 1]) == 0)
            continue;
        int r = hf_file_status(fs, names->of[i], &status, err);
        if (r < 0)
            return r;
        if (hf_record_is_listed(filter, status.state) && fn(arg, &status) != 0)
            break;
    }
    return 0;
}

static int list(struct hf_store *store, const struct hf_listing *which, hf_status_fn fn, void *arg,
                struct hf_error *err)
{
    struct hf_file_store *fs = file_store_of(store);
    struct names names = {0};
    int r = collect(fs, fs->dir.top, which, &names, err);
    if (r >= 0 && which->filter == HF_LIST_ALL)
        r = collect(fs, fs->dir.names, which, &names, err);
    if (r >= 0 && names.n) {
        qsort(names.of, names.n, sizeof *names.of, compare_names);
        r = show_names(fs, &names, which->filter, fn, arg, err);
    }
    free(names.of);
    return r;
}

static int totals(struct hf_store *store, struct hf_totals *ret, struct hf_error *err)
{
    struct hf_file_store *fs = file_store_of(store);
    struct names names = {0};
    struct hf_listing all = {HF_LIST_ALL, "", ""};
    int r = collect(fs, fs->dir.names, &all, &names, err);
    for (size_t i = 0; r >= 0 && i < names.n; i++) {
        struct hf_file_guard *guard;
        r = hf_file_guard_take(fs, names.of[i], false, &guard, err);
        if (r < 0)
            break;
        hf_record_add_counts(ret, &guard->head.counts);
        hf_file_guard_give(fs, guard);
    }
    free(names.of);
    return r;
}

static int events(struct hf_store *store, const struct hf_event_query *query, hf_event_fn fn,
                  void *arg, struct hf_error *err)
{
    return hf_file_read_events(file_store_of(store), query, fn, arg, err);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static int watch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int *ret_fd,
                 struct hf_error *err)
{
    int wake_dir = file_store_of(store)->dir.wake;
    uint8_t chance;
    (void)name;
    hf_random(&chance, sizeof chance);
    if (chance % SWEEP_ONE_IN == 0)
        hf_local_sweep_wakes(wake_dir);
    return hf_local_watch(wake_dir, id, ret_fd, err);
}

static int rewatch(struct hf_store *store, const struct hf_lock_id *from,
                   const struct hf_lock_id *to)
{
    return hf_local_rewatch(file_store_of(store)->dir.wake, from, to);
}

static void unwatch(struct hf_store *store, const char *name, const struct hf_lock_id *id, int fd)
{
    (void)name;
    hf_local_unwatch(file_store_of(store)->dir.wake, id, fd);
}

static int share(struct hf_store *store, const struct hf_lock_id *id,
                 const struct hf_lock_id *channel, struct hf_error *err)
{
    return hf_local_share(file_store_of(store)->dir.wake, id, channel, err);
}

static void stop_sharing(struct hf_store *store, const struct hf_lock_id *id)
{
    hf_local_unshare(file_store_of(store)->dir.wake, id);
}

static int ahead(struct hf_store *store, const char *name, const struct hf_lock_id *id,
                 struct hf_processes *ret, struct hf_error *err)
{
    struct hf_file_store *fs = file_store_of(store);
    struct hf_file_guard *guard;
    struct hf_file_view view;
    int r = hf_file_guard_take(fs, name, false, &guard, err);
    if (r < 0)
        return r;
    struct hf_processes found = {0};
    const struct hf_file_place *place = hf_file_find_waiter(guard, id);
    struct hf_waiter waiter;
    if (place && place > guard->index) {
        if (hf_file_read_waiter(guard, place - 1, &waiter, NULL) >= 0)
            found = waiter.bound;
    } else if ((r = hf_file_look(fs, guard, &view, err)) >= 0 && view.kind != HF_FILE_NO_LOCK)
        found = view.grant.bound;
    hf_file_guard_give(fs, guard);
    if (r >= 0)
        *ret = found;
    return r;
}

/* ---- open and close ------------------------------------------------------------------------- */

/* Fences that are reserved for a name are from before the new epoch: forget them. */
static int forget_reserved(struct hf_file_store *fs, const struct names *names,
                           struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < names->n; i++) {
        struct hf_file_guard *guard;
        r = hf_file_guard_take(fs, names->of[i], true, &guard, err);
        if (r < 0)
            break;
        guard->head.end_fence = 0;
        r = hf_file_guard_write(guard, err);
        if (r >= 0 && fdatasync(guard->fd) < 0)
            r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't write %s", guard->file);
        hf_file_guard_give(fs, guard);
    }
    return r;
}

static int init(struct hf_store *store, bool bump_epoch, struct hf_error *err)
{
    struct hf_file_store *fs = file_store_of(store);
    const struct hf_listing all = {.prefix = "", .after = ""};
    struct names names = {0};
    if (!bump_epoch)
        return 0;
    int r = hf_file_bump_epoch(&fs->state, err);
    if (r >= 0)
        r = collect(fs, fs->dir.names, &all, &names, err);
    if (r >= 0)
        r = forget_reserved(fs, &names, err);
    free(names.of);
    return r;
}

static int read_params(const struct hf_url *url, int64_t *ret_stale_ms, struct hf_error *err)
{
    static const char *const known[] = {"stale", NULL};
    const char *stale = hf_url_param(url, "stale");
    *ret_stale_ms = HF_FILE_STALE_MS;
    int r = hf_url_check_params(url, known, err);
    if (r >= 0 && stale)
        r = hf_parse_duration(stale, ret_stale_ms, err);
    if (r >= 0 && (*ret_stale_ms < 0 || *ret_stale_ms > HF_TTL_MAX_MS))
        r = hf_fail(err, HF_INVALID, "stale=%s is too long; at most 366 days", stale);
    return r;
}

static int open_store(const struct hf_url *url, struct hf_store **ret, struct hf_error *err)
{
    struct hf_file_store *fs = calloc(1, sizeof *fs);
    if (!fs)
        return hf_fail(err, HF_NOMEM, "out of memory");
    int r = read_params(url, &fs->stale_ms, err);
    if (r >= 0)
        r = hf_file_dir_open(url->path, &fs->dir, err);
    if (r < 0) {
        free(fs);
        return r;
    }
    r = hf_file_state_open(&fs->dir, &fs->state, err);
    if (r < 0) {
        hf_file_dir_close(&fs->dir);
        free(fs);
        return r;
    }
    pthread_mutex_init(&fs->guards.mutex, NULL);
    pthread_cond_init(&fs->guards.idle, NULL);
    pthread_mutex_init(&fs->events.mutex, NULL);
    fs->events.fd = -1;
    *ret = &fs->base;
    return 0;
}

static void close_store(struct hf_store *store)
{
    struct hf_file_store *fs = file_store_of(store);
    hf_file_guards_close(&fs->guards);
    if (fs->events.fd >= 0)
        close(fs->events.fd);
    pthread_mutex_destroy(&fs->events.mutex);
    hf_file_state_close(&fs->state);
    hf_file_dir_close(&fs->dir);
    free(fs);
}

const struct hf_store_ops hf_file_store = {
    .scheme = "file",
    .form = "file:DIR",
    .is_local = true,
    .open = open_store,
    .close = close_store,
    .apply = apply,
    .list = list,
    .events = events,
    .totals = totals,
    .init = init,
    .watch = watch,
    .unwatch = unwatch,
    .share = share,
    .unshare = stop_sharing,
    .rewatch = rewatch,
    .ahead = ahead,
};
