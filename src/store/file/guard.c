/*
 * Guards. A guard file is made when a name is first used and never removed, so its kernel lock
 * means the same to everybody. It holds a head, the index of the queue behind it (both written by
 * one call) and, from SEATS_AT on, the waiters themselves: a seat is written once, when its waiter
 * joins, so that a long queue costs each operation its index only.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "error.h"
#include "file_store.h"
#include "flock.h"
#include "forked.h"
#include "local.h"

#define MAGIC "hfguard"

enum { FIRST_READ = 4096, SEATS_AT = 65536, CACHED_MAX = 32 };

static_assert(sizeof(struct hf_file_guard_head) < FIRST_READ, "the head is read in one piece");
static_assert(offsetof(struct hf_file_guard, index) ==
                  offsetof(struct hf_file_guard, head) + sizeof(struct hf_file_guard_head),
              "head and index are read and written together");
static_assert(sizeof(struct hf_file_guard_head) +
                      sizeof(struct hf_file_place) * HF_FILE_WAITERS_MAX <=
                  SEATS_AT,
              "the index ends before the seats");

/* ---- contents ------------------------------------------------------------------------------- */

static void *contents_of(struct hf_file_guard *guard)
{
    return (char *)guard + offsetof(struct hf_file_guard, head);
}

static size_t index_size(const struct hf_file_guard *guard)
{
    return guard->head.n_waiters * sizeof guard->index[0];
}

/* The head's checksum is taken with its own field empty. */
static uint64_t checksum_of(const struct hf_file_guard_head *head)
{
    const size_t from = offsetof(struct hf_file_guard_head, checksum) + sizeof head->checksum;
    uint64_t sum = hf_file_checksum(head, offsetof(struct hf_file_guard_head, checksum), 0);
    return hf_file_checksum((const char *)head + from, sizeof *head - from, sum);
}

static bool head_is_sound(const struct hf_file_guard_head *head)
{
    return memcmp(head->magic, MAGIC, sizeof head->magic) == 0 && head->format == HF_FILE_FORMAT &&
           head->n_waiters <= HF_FILE_WAITERS_MAX && head->n_ended <= HF_ENDED_MAX &&
           head->n_lost_fences <= HF_LOST_MAX && head->checksum == checksum_of(head);
}

/* Read what of the index the first read did not bring; a queue that was torn is empty. */
static void read_index(struct hf_file_guard *guard, size_t have)
{
    size_t need = sizeof guard->head + index_size(guard);
    if (need > have) {
        ssize_t n = pread(guard->fd, (char *)contents_of(guard) + have, need - have, (off_t)have);
        if (n < 0 || (size_t)n != need - have)
            guard->head.n_waiters = 0;
    }
    if (hf_file_checksum(guard->index, index_size(guard), 0) != guard->head.index_checksum)
        guard->head.n_waiters = 0;
}

/* Of waiters that were seen in an earlier boot; others who are gone are judged in their turn. */
static void forget_earlier_waiters(struct hf_file_guard *guard)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < guard->head.n_waiters; i++)
        if (!hf_local_is_to_come(guard->index[i].seen_ms))
            guard->index[n++] = guard->index[i];
    guard->head.n_waiters = n;
}

static int read_guard(struct hf_file_guard *guard, const char *name, struct hf_error *err)
{
    ssize_t n = guard->fd < 0 ? 0 : pread(guard->fd, contents_of(guard), FIRST_READ, 0);
    if (n < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't read .holdfast/names/%s",
                             guard->file);
    struct hf_file_guard_head *head = &guard->head;
    bool newer = (size_t)n >= sizeof *head && memcmp(head->magic, MAGIC, sizeof head->magic) == 0 &&
                 head->format > HF_FILE_FORMAT;
    if (newer)
        return hf_fail(err, HF_UNAVAILABLE, "%s is kept by a newer holdfast (format %u)", name,
                       head->format);
    if ((size_t)n < sizeof *head || !head_is_sound(head)) {
        *head = (struct hf_file_guard_head){.magic = MAGIC, .format = HF_FILE_FORMAT};
        strcpy(head->name, name);
    } else
        read_index(guard, (size_t)n);
    forget_earlier_waiters(guard);
    if (strcmp(head->name, name) != 0)
        return hf_fail(err, HF_INTERNAL, "'%s' and '%s' have the same file", name, head->name);
    return 0;
}

int hf_file_guard_write(struct hf_file_guard *guard, struct hf_error *err)
{
    guard->head.index_checksum = hf_file_checksum(guard->index, index_size(guard), 0);
    guard->head.checksum = checksum_of(&guard->head);
    size_t size = sizeof guard->head + index_size(guard);
    ssize_t n = pwrite(guard->fd, contents_of(guard), size, 0);
    if (n < 0 || (size_t)n != size)
        return hf_fail_errno(err, HF_UNAVAILABLE, n < 0 ? errno : ENOSPC,
                             "can't write .holdfast/names/%s", guard->file);
    return 0;
}

/* ---- opening and locking -------------------------------------------------------------------- */

static void close_files(struct hf_file_guard *guard)
{
    int *fds[] = {&guard->fd, &guard->page_fds[0], &guard->page_fds[1]};
    hf_forked_remove(guard->fd);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

static int open_guard(struct hf_file_store *fs, struct hf_file_guard *guard, bool exclusive,
                      struct hf_error *err)
{
    int r = hf_file_open_own(&fs->dir, fs->dir.names, guard->file,
                             exclusive ? O_RDWR | O_CREAT : O_RDWR, &guard->fd, err);
    if (r == -HF_NOT_FOUND && !exclusive)
        return 0;
    if (r == -HF_NOT_FOUND) {
        fs->base.past_help = true;
        return hf_fail(err, HF_UNAVAILABLE, "the store in %s has been removed", fs->dir.path);
    }
    if (r < 0)
        return r;
    char path[HF_FILE_NAME_SIZE + 8];
    snprintf(path, sizeof path, "names/%s", guard->file);
    r = hf_file_check_names(&fs->dir, guard->fd, path, err);
    if (r >= 0)
        r = hf_forked_add(guard->fd, err);
    if (r < 0)
        close_files(guard);
    return r;
}

/* Lock the file that has the guard's name now: the one we opened earlier may have been removed. */
static int lock_guard(struct hf_file_store *fs, struct hf_file_guard *guard, bool exclusive,
                      struct hf_error *err)
{
    for (;;) {
        int r = guard->fd < 0 ? open_guard(fs, guard, exclusive, err) : 0;
        if (r < 0 || guard->fd < 0)
            return r;
        r = hf_flock(guard->fd, exclusive ? LOCK_EX : LOCK_SH, HF_FILE_PATIENCE_MS, guard->file,
                     err);
        if (r < 0)
            return r;
        if (hf_file_links(guard->fd) > 0)
            return 0;
        close_files(guard);
    }
}

/* ---- the cache ------------------------------------------------------------------------------ */

static struct hf_file_guard *make_guard(const char *file)
{
    struct hf_file_guard *guard = malloc(sizeof *guard); /* mostly never touched: no calloc */
    if (!guard)
        return NULL;
    guard->fd = guard->page_fds[0] = guard->page_fds[1] = -1;
    guard->head = (struct hf_file_guard_head){0};
    strcpy(guard->file, file);
    return guard;
}

static void free_guard(struct hf_file_guard *guard)
{
    close_files(guard);
    free(guard);
}

/* Take it out of the list, waiting for a thread that works on it; NULL: it is not there. */
static struct hf_file_guard *unlink_guard(struct hf_file_guards *guards, const char *file)
{
    struct hf_file_guard **at = &guards->first;
    while (*at) {
        struct hf_file_guard *guard = *at;
        if (strcmp(guard->file, file) != 0)
            at = &guard->next;
        else if (guard->busy) {
            pthread_cond_wait(&guards->idle, &guards->mutex);
            at = &guards->first;
        } else {
            *at = guard->next;
            return guard;
        }
    }
    return NULL;
}

static void link_first(struct hf_file_guards *guards, struct hf_file_guard *guard)
{
    guard->next = guards->first;
    guards->first = guard;
}

static struct hf_file_guard *reserve_guard(struct hf_file_guards *guards, const char *file)
{
    pthread_mutex_lock(&guards->mutex);
    struct hf_file_guard *guard = unlink_guard(guards, file);
    if (!guard)
        guard = make_guard(file);
    if (guard) {
        guard->busy = true;
        link_first(guards, guard);
    }
    pthread_mutex_unlock(&guards->mutex);
    return guard;
}

/* Close the one that was not used for the longest time, where there are too many. */
static void evict(struct hf_file_guards *guards)
{
    struct hf_file_guard **last = NULL;
    int n = 0;
    for (struct hf_file_guard **at = &guards->first; *at; at = &(*at)->next, n++)
        if (!(*at)->busy)
            last = at;
    if (n <= CACHED_MAX || !last)
        return;
    struct hf_file_guard *guard = *last;
    *last = guard->next;
    free_guard(guard);
}

void hf_file_guard_give(struct hf_file_store *fs, struct hf_file_guard *guard)
{
    struct hf_file_guards *guards = &fs->guards;
    if (guard->fd >= 0)
        flock(guard->fd, LOCK_UN);
    pthread_mutex_lock(&guards->mutex);
    guard->busy = false;
    evict(guards);
    pthread_cond_broadcast(&guards->idle);
    pthread_mutex_unlock(&guards->mutex);
}

int hf_file_guard_take(struct hf_file_store *fs, const char *name, bool exclusive,
                       struct hf_file_guard **ret, struct hf_error *err)
{
    char file[HF_FILE_NAME_SIZE];
    hf_file_encode(name, file);
    struct hf_file_guard *guard = reserve_guard(&fs->guards, file);
    if (!guard)
        return hf_fail(err, HF_NOMEM, "out of memory");
    int r = lock_guard(fs, guard, exclusive, err);
    if (r >= 0)
        r = read_guard(guard, name, err);
    if (r < 0) {
        hf_file_guard_give(fs, guard);
        return r;
    }
    *ret = guard;
    return 0;
}

void hf_file_guards_close(struct hf_file_guards *guards)
{
    while (guards->first) {
        struct hf_file_guard *guard = guards->first;
        guards->first = guard->next;
        free_guard(guard);
    }
    pthread_cond_destroy(&guards->idle);
    pthread_mutex_destroy(&guards->mutex);
}

/* ---- the queue ------------------------------------------------------------------------------ */

struct hf_file_place *hf_file_find_waiter(struct hf_file_guard *guard, const struct hf_lock_id *id)
{
    for (uint32_t i = 0; i < guard->head.n_waiters; i++)
        if (hf_lock_id_equal(&guard->index[i].id, id))
            return &guard->index[i];
    return NULL;
}

static off_t seat_offset(uint64_t seat)
{
    return SEATS_AT + (off_t)seat * (off_t)sizeof(struct hf_waiter);
}

int hf_file_read_waiter(const struct hf_file_guard *guard, const struct hf_file_place *place,
                        struct hf_waiter *ret, struct hf_error *err)
{
    ssize_t n = pread(guard->fd, ret, sizeof *ret, seat_offset(place->seat));
    if (n != sizeof *ret || !hf_lock_id_equal(&ret->id, &place->id))
        return hf_fail_errno(err, HF_UNAVAILABLE, n < 0 ? errno : EIO,
                             "can't read a waiter of .holdfast/names/%s", guard->file);
    ret->ticket = place->ticket;
    ret->seen_ms = place->seen_ms;
    ret->until_ms = place->until_ms;
    return 0;
}

static uint64_t free_seat(const struct hf_file_guard *guard)
{
    bool taken[HF_FILE_WAITERS_MAX] = {false};
    for (uint32_t i = 0; i < guard->head.n_waiters; i++)
        taken[guard->index[i].seat % HF_FILE_WAITERS_MAX] = true;
    uint64_t seat = 0;
    while (taken[seat])
        seat++;
    return seat;
}

static int join(struct hf_file_guard *guard, const struct hf_waiter *waiter, struct hf_error *err)
{
    if (guard->head.n_waiters == HF_FILE_WAITERS_MAX)
        return hf_fail(err, HF_QUEUE_FULL, "%d are waiting for %s already", HF_FILE_WAITERS_MAX,
                       guard->head.name);
    struct hf_file_place place = {.id = waiter->id,
                                  .ticket = ++guard->head.next_ticket,
                                  .seen_ms = waiter->seen_ms,
                                  .until_ms = waiter->until_ms,
                                  .priority = waiter->priority,
                                  .pid = (int32_t)getpid(),
                                  .seat = free_seat(guard)};
    ssize_t n = pwrite(guard->fd, waiter, sizeof *waiter, seat_offset(place.seat));
    if (n != sizeof *waiter)
        return hf_fail_errno(err, HF_UNAVAILABLE, n < 0 ? errno : ENOSPC,
                             "can't write .holdfast/names/%s", guard->file);
    uint32_t at = guard->head.n_waiters++;
    for (; at && guard->index[at - 1].priority < place.priority; at--)
        guard->index[at] = guard->index[at - 1];
    guard->index[at] = place;
    return 0;
}

int hf_file_put_waiter(struct hf_file_guard *guard, const struct hf_waiter *waiter,
                       struct hf_error *err)
{
    struct hf_file_place *place = hf_file_find_waiter(guard, &waiter->id);
    if (!place)
        return join(guard, waiter, err);
    place->seen_ms = waiter->seen_ms;
    place->until_ms = waiter->until_ms;
    return 0;
}

void hf_file_drop_waiter(struct hf_file_guard *guard, const struct hf_lock_id *id)
{
    struct hf_file_place *place = hf_file_find_waiter(guard, id);
    if (!place)
        return;
    size_t behind = guard->head.n_waiters - 1 - (size_t)(place - guard->index);
    memmove(place, place + 1, behind * sizeof *place);
    guard->head.n_waiters--;
}
