/*
 * `state`: what is true of the whole store, in one small file that is read and written in place
 * under a kernel lock. Fences never repeat, although no grant waits for the disk: the counter runs
 * below a limit that was on disk before the first fence under it was given, and after a reboot,
 * when the counter itself may have been lost, it goes on from the limit. The limit is raised in two
 * writes with a sync between them: whoever is killed there leaves nothing that others would take
 * for being on disk.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "error.h"
#include "file_store.h"
#include "flock.h"
#include "forked.h"
#include "host.h"
#include "local.h"

#define MAGIC "hf-file"
#define EPOCH_STEP INT64_C(1000000000)
#define FENCE_MAX (INT64_C(1) << 53)

enum { FENCE_BLOCK = 100000, BOOTS_MAX = 7 };

/* A boot that used the store, as the machine or a container tells it. */
struct seen_boot {
    char id[40];
    int64_t first_open_ms, booted_at_ms;
};

/* As it is on disk; one sector, so that it is written whole or not at all. */
struct state_data {
    char magic[8];
    uint32_t format, unused;
    struct seen_boot boots[BOOTS_MAX]; /* newest first */
    int64_t jumped; /* what was reserved up to here may have been lost with a boot */
    int64_t fence;  /* the last one reserved */
    int64_t limit;  /* every fence given is below it */
    int64_t raised; /* at least the limit, and on disk before the limit is raised to it */
    int64_t next_event;
    uint64_t checksum;
};

static_assert(sizeof(struct state_data) <= 512, "it fits into a sector");

static uint64_t checksum_of(const struct state_data *data)
{
    return hf_file_checksum(data, offsetof(struct state_data, checksum), 0);
}

/* 1: read; 0: the file is new. */
static int read_data(const struct hf_file_state *state, struct state_data *ret,
                     struct hf_error *err)
{
    ssize_t n = pread(state->fd, ret, sizeof *ret, 0);
    if (n < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't read .holdfast/state");
    if (n == 0)
        return 0;
    bool ours = (size_t)n >= offsetof(struct state_data, boots) &&
                memcmp(ret->magic, MAGIC, sizeof ret->magic) == 0;
    if (ours && ret->format > HF_FILE_FORMAT)
        return hf_fail(err, HF_UNAVAILABLE,
                       "this store was made by a newer holdfast (format %u; this one knows %d)",
                       ret->format, HF_FILE_FORMAT);
    if (!ours || n != sizeof *ret || ret->checksum != checksum_of(ret))
        return hf_fail(err, HF_UNAVAILABLE,
                       "the file store's .holdfast/state is damaged; remove it, then: "
                       "holdfast init --bump-epoch");
    return 1;
}

static int write_data(const struct hf_file_state *state, struct state_data *data, bool durable,
                      struct hf_error *err)
{
    data->checksum = checksum_of(data);
    ssize_t n = pwrite(state->fd, data, sizeof *data, 0);
    if (n != sizeof *data || (durable && fdatasync(state->fd) < 0))
        return hf_fail_errno(err, HF_UNAVAILABLE, n < 0 || n == sizeof *data ? errno : ENOSPC,
                             "can't write .holdfast/state");
    return 0;
}

/* ---- alone among threads and processes ------------------------------------------------------ */

static int enter(struct hf_file_state *state, struct hf_error *err)
{
    pthread_mutex_lock(&state->mutex);
    int r = hf_flock(state->fd, LOCK_EX, HF_FILE_PATIENCE_MS, ".holdfast/state", err);
    if (r < 0)
        pthread_mutex_unlock(&state->mutex);
    return r;
}

static void leave(struct hf_file_state *state)
{
    flock(state->fd, LOCK_UN);
    pthread_mutex_unlock(&state->mutex);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* This boot, as it was seen before; NULL: it was not. */
static const struct seen_boot *find_boot(const struct state_data *data)
{
    for (size_t i = 0; i < BOOTS_MAX; i++) {
        const struct seen_boot *boot = &data->boots[i];
        if (strncmp(boot->id, hf_boot_id(), sizeof boot->id) == 0 &&
            hf_local_is_this_boot(boot->first_open_ms, boot->booted_at_ms))
            return boot;
    }
    return NULL;
}

/* The first place is this boot's from now on; fences go on above all that may have been given. */
static void start_boot(struct state_data *data)
{
    memmove(&data->boots[1], &data->boots[0], sizeof data->boots - sizeof data->boots[0]);
    data->boots[0] = (struct seen_boot){.first_open_ms = hf_local_now_ms(),
                                        .booted_at_ms = hf_local_booted_at_ms()};
    memcpy(data->boots[0].id, hf_boot_id(), strlen(hf_boot_id()));
    if (data->raised > data->fence)
        data->fence = data->raised;
    data->jumped = data->fence;
}

/* Make the file, or carry it into this boot. */
static int settle_state(const struct hf_file_dir *dir, const struct hf_file_state *state,
                        struct state_data *data, struct hf_error *err)
{
    int known = read_data(state, data, err);
    if (known < 0)
        return known;
    if (known && find_boot(data))
        return 0;
    if (!known)
        *data = (struct state_data){.magic = MAGIC, .format = HF_FILE_FORMAT};
    start_boot(data);
    int r = write_data(state, data, !known, err);
    if (r >= 0 && !known && (fsync(dir->inner) < 0 || fsync(dir->top) < 0))
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make the file store durable");
    return r;
}

int hf_file_state_open(const struct hf_file_dir *dir, struct hf_file_state *ret,
                       struct hf_error *err)
{
    struct state_data data;
    int r = hf_local_check_host(err);
    if (r >= 0)
        r = hf_file_open_own(dir, dir->inner, "state", O_RDWR | O_CREAT, &ret->fd, err);
    if (r < 0)
        return r;
    r = hf_file_check_names(dir, ret->fd, "state", err);
    pthread_mutex_init(&ret->mutex, NULL);
    if (r >= 0)
        r = hf_forked_add(ret->fd, err);
    if (r >= 0)
        r = enter(ret, err);
    if (r >= 0) {
        r = settle_state(dir, ret, &data, err);
        leave(ret);
    }
    if (r < 0) {
        hf_file_state_close(ret);
        return r;
    }
    const struct seen_boot *boot = find_boot(&data);
    ret->first_open_ms = boot ? boot->first_open_ms : hf_local_now_ms();
    ret->jumped = data.jumped;
    return 0;
}

void hf_file_state_close(struct hf_file_state *state)
{
    hf_forked_remove(state->fd);
    close(state->fd);
    pthread_mutex_destroy(&state->mutex);
}

/* ---- counting ------------------------------------------------------------------------------- */

/* First have it on disk that the limit may be so high, then let it be. */
static int raise_limit(const struct hf_file_state *state, struct state_data *data,
                       struct hf_error *err)
{
    data->raised = data->fence + FENCE_BLOCK;
    int r = write_data(state, data, true, err);
    if (r >= 0)
        data->limit = data->raised;
    return r;
}

static int64_t reserve(const struct hf_file_state *state, int64_t n, int64_t at_least,
                       struct hf_error *err)
{
    struct state_data data;
    int r = read_data(state, &data, err);
    if (r <= 0)
        return r < 0 ? r : hf_fail(err, HF_UNAVAILABLE, ".holdfast/state has been emptied");
    int64_t first = (data.fence > at_least ? data.fence : at_least) + 1;
    data.fence = first + n - 1;
    if (data.fence >= FENCE_MAX)
        return hf_fail(err, HF_INTERNAL, "the store has used up all fences");
    if (data.fence >= data.limit && (r = raise_limit(state, &data, err)) < 0)
        return r;
    r = write_data(state, &data, false, err);
    return r < 0 ? r : first;
}

int64_t hf_file_reserve_fences(struct hf_file_state *state, int64_t n, int64_t at_least,
                               struct hf_error *err)
{
    int64_t r = enter(state, err);
    if (r < 0)
        return r;
    r = reserve(state, n, at_least, err);
    leave(state);
    return r;
}

int hf_file_bump_epoch(struct hf_file_state *state, struct hf_error *err)
{
    /* More than a limit is ever raised by, so that the new limit is on disk when this returns. */
    static_assert(EPOCH_STEP > FENCE_BLOCK, "an epoch is longer than a block");
    int64_t r = hf_file_reserve_fences(state, EPOCH_STEP, 0, err);
    return r < 0 ? (int)r : 0;
}

int hf_file_with_segment(struct hf_file_state *state, int64_t span,
                         int (*fn)(void *arg, int64_t base), void *arg)
{
    struct state_data data;
    int r = enter(state, NULL);
    if (r < 0)
        return r;
    r = read_data(state, &data, NULL);
    if (r > 0) {
        int64_t base = data.next_event;
        data.next_event += span;
        r = write_data(state, &data, true, NULL);
        if (r >= 0)
            r = fn(arg, base);
    }
    leave(state);
    return r;
}
