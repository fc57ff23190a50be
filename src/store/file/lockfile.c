/*
 * NAME.lock, the part that foreign programs see. It appears and changes in one step, with all its
 * contents: of two files per name, in .holdfast/pages0 and pages1, the one that is not shown is
 * written in place and then linked to the lock's name; or, where the lock changes hands, exchanged
 * for it by way of swap/NAME.lock. (Measured on ext4: a pwrite, a link and an unlink take a third
 * of what creating, writing and unlinking a new file take; renaming a new file over an old one
 * flushes it to the disk, which is twenty times an exchange.)
 *
 * Among ourselves the guard's lock keeps changes apart. A foreign program knows only exclusive
 * creation and unlinking; against it, links are exclusive, and what may be stale for both of us is
 * exchanged and then looked at, so that a lock it has just made there is put back. What remains is
 * its own race: it may unlink by name what it judged a moment before.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "file_store.h"
#include "host.h"
#include "local.h"
#include "text.h"
#include "wire.h"

enum { PAGE_MAX = 4096, PAGE_STEP = 256, FOREIGN_MAX = 8192 };

/* ---- the file's fields ---------------------------------------------------------------------- */

struct lock_json {
    char lock_id[HF_LOCK_ID_LEN + 1];
    int64_t created_at_ms; /* what seed-style programs judge staleness by, see say() */
    char process_id[24];
    char name[HF_NAME_MAX + 1];
    int64_t fence;
    char owner[HF_OWNER_MAX + 1], note[HF_NOTE_MAX + 1];
    int64_t acquired_at_ms, expires_at_ms, ttl_ms;
    char execution_id[HF_UUID_LEN + 1], boot[HF_UUID_LEN + 1];
    int64_t acquired_ms, expires_ms; /* in that boot's clock: these decide, not the times above */
    uint32_t n_bound;
    int64_t pid[HF_BOUND_MAX], start_ticks[HF_BOUND_MAX], pid_namespace;
};

static const struct hf_wire_field fields[] = {
#define F(member, name, type) HF_WIRE(struct lock_json, member, name, type)
    F(lock_id, "lockId", HF_WIRE_STRING),
    F(created_at_ms, "createdAt", HF_WIRE_TIME),
    F(process_id, "processId", HF_WIRE_STRING),
    F(name, "name", HF_WIRE_STRING),
    F(fence, "fence", HF_WIRE_INT),
    F(owner, "owner", HF_WIRE_TEXT),
    F(note, "note", HF_WIRE_TEXT),
    F(acquired_at_ms, "acquiredAt", HF_WIRE_TIME),
    F(expires_at_ms, "expiresAt", HF_WIRE_TIME),
    F(ttl_ms, "ttlMs", HF_WIRE_INT),
    F(execution_id, "executionId", HF_WIRE_TEXT),
    F(boot, "bootId", HF_WIRE_STRING),
    F(acquired_ms, "acquiredBootMs", HF_WIRE_INT),
    F(expires_ms, "expiresBootMs", HF_WIRE_INT),
    F(n_bound, "boundProcesses", HF_WIRE_COUNT),
    /* only of leases that are bound to processes: */
    F(pid[0], "boundPid", HF_WIRE_INT),
    F(start_ticks[0], "boundStartTicks", HF_WIRE_INT),
    F(pid[1], "boundPid2", HF_WIRE_INT),
    F(start_ticks[1], "boundStartTicks2", HF_WIRE_INT),
    F(pid_namespace, "pidNamespace", HF_WIRE_INT),
#undef F
};
enum { N_FIELDS = sizeof fields / sizeof *fields, N_FIELDS_UNBOUND = N_FIELDS - 5 };

int64_t hf_file_shown_expiry(const struct hf_grant *grant)
{
    return grant->offered ? grant->acquired_ms + grant->ttl_ms : grant->expires_ms;
}

/*
 * The guard's grant as the lock file says it. `createdAt` moves along with renewals, so that a
 * program which takes a lock for stale `stale_ms` after it does so only when the lease is over.
 */
static void say(const struct hf_file_guard *guard, int64_t stale_ms, struct lock_json *ret)
{
    const struct hf_grant *g = &guard->head.grant;
    int64_t expires_ms = hf_file_shown_expiry(g);
    int64_t expires_at_ms = hf_clock_wall_ms() + (expires_ms - hf_local_now_ms());
    *ret = (struct lock_json){.created_at_ms = expires_at_ms - stale_ms,
                              .fence = g->fence,
                              .acquired_at_ms = g->acquired_at_ms,
                              .expires_at_ms = expires_at_ms,
                              .ttl_ms = g->ttl_ms,
                              .acquired_ms = g->acquired_ms,
                              .expires_ms = expires_ms,
                              .n_bound = g->bound.n,
                              .pid_namespace = (int64_t)g->bound.pid_namespace};
    if (ret->created_at_ms < g->acquired_at_ms)
        ret->created_at_ms = g->acquired_at_ms;
    for (uint32_t i = 0; i < g->bound.n; i++) {
        ret->pid[i] = g->bound.of[i].pid;
        ret->start_ticks[i] = g->bound.of[i].start_ticks;
    }
    hf_lock_id_format(&g->id, ret->lock_id);
    snprintf(ret->process_id, sizeof ret->process_id, "pid-%lld",
             (long long)(g->bound.n ? g->bound.of[0].pid : guard->head.holder_pid));
    strcpy(ret->name, guard->head.name);
    strcpy(ret->owner, g->owner);
    strcpy(ret->note, g->note);
    strcpy(ret->execution_id, g->execution_id);
    strcpy(ret->boot, g->bound.boot);
}

/* The other way round; false where it is not a lease of ours for this name. */
static bool understand(const struct lock_json *said, const char *name, struct hf_grant *ret)
{
    struct hf_grant g = {
        .held = true,
        .fence = said->fence,
        .acquired_at_ms = said->acquired_at_ms,
        .acquired_ms = said->acquired_ms,
        .expires_ms = said->expires_ms,
        .ttl_ms = said->ttl_ms,
        .told_ms = said->acquired_ms,
        .bound = {.n = said->n_bound, .pid_namespace = (uint64_t)said->pid_namespace}};
    if (said->fence <= 0 || said->ttl_ms <= 0 || said->n_bound > HF_BOUND_MAX ||
        strcmp(said->name, name) != 0 || !hf_lock_id_parse(said->lock_id, &g.id))
        return false;
    for (uint32_t i = 0; i < said->n_bound; i++)
        g.bound.of[i] = (struct hf_process){(int32_t)said->pid[i], said->start_ticks[i]};
    strcpy(g.owner, said->owner);
    strcpy(g.note, said->note);
    strcpy(g.execution_id, said->execution_id);
    strcpy(g.bound.boot, said->boot);
    *ret = g;
    return true;
}

/* ---- what others wrote ---------------------------------------------------------------------- */

/* A string member, or a number as people would write it; empty where it can't be shown. */
static void take_text(const json_t *object, const char *key, char *ret, size_t size)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value))
        snprintf(ret, size, "%lld", (long long)json_integer_value(value));
    else if (json_is_string(value) && json_string_length(value) < size &&
             hf_check_text(key, json_string_value(value), size - 1, NULL) >= 0)
        strcpy(ret, json_string_value(value));
    else
        ret[0] = '\0';
}

/* A foreign lock is held until `createdAt`, else the file's own time, is too long ago. */
static void judge_foreign(const json_t *object, const struct stat *st, int64_t stale_ms,
                          struct hf_file_view *view)
{
    int64_t now_ms = hf_local_now_ms(), wall_ms = hf_clock_wall_ms(), since_ms;
    const char *created = json_string_value(json_object_get(object, "createdAt"));
    if (!created || hf_parse_time(created, &since_ms, NULL) < 0 || since_ms > wall_ms)
        since_ms = (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000;
    take_text(object, "lockId", view->lock_id, sizeof view->lock_id);
    take_text(object, "processId", view->process_id, sizeof view->process_id);
    view->kind = HF_FILE_FOREIGN_LOCK;
    view->grant = (struct hf_grant){.held = true,
                                    .acquired_at_ms = since_ms,
                                    .acquired_ms = now_ms - (wall_ms - since_ms),
                                    .ttl_ms = stale_ms,
                                    .told_ms = now_ms};
    struct hf_grant *g = &view->grant;
    g->expires_ms = g->acquired_ms + stale_ms + 1;
    g->id = hf_lock_id_of(view->lock_id);
    strcpy(g->bound.boot, hf_boot_id());
    snprintf(g->owner, sizeof g->owner, "%s",
             view->process_id[0] ? view->process_id : "unknown (not written by holdfast)");
}

/* ---- looking -------------------------------------------------------------------------------- */

static struct hf_file_ident ident_of(const struct stat *st)
{
    return (struct hf_file_ident){(uint64_t)st->st_ino, (int64_t)st->st_size,
                                  (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec};
}

static bool same_ident(const struct hf_file_ident *a, const struct hf_file_ident *b)
{
    return a->inode == b->inode && a->size == b->size &&
           (a->mtime_ns == b->mtime_ns || !a->mtime_ns || !b->mtime_ns);
}

static bool has_ended(const struct hf_file_guard_head *head, const struct hf_lock_id *id)
{
    for (uint32_t i = 0; i < head->n_ended; i++)
        if (hf_lock_id_equal(&head->ended[i].id, id))
            return true;
    return false;
}

static void interpret(const struct hf_file_guard *guard, const char *text, size_t n,
                      const struct stat *st, int64_t stale_ms, struct hf_file_view *ret)
{
    struct lock_json said;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    ret->ident = ident_of(st);
    if (object && hf_wire_read(object, &said, fields, N_FIELDS, NULL) >= 0 &&
        understand(&said, guard->head.name, &ret->grant)) {
        ret->kind = HF_FILE_OUR_LOCK;
        ret->leftover = has_ended(&guard->head, &ret->grant.id);
    } else
        judge_foreign(object, st, stale_ms, ret);
    json_decref(object);
}

static int read_lock(struct hf_file_store *fs, const struct hf_file_guard *guard,
                     struct hf_file_view *ret, struct hf_error *err)
{
    char text[FOREIGN_MAX];
    struct stat st;
    int fd;
    int r = hf_file_open_own(&fs->dir, fs->dir.top, guard->file, O_RDONLY, &fd, err);
    if (r == -HF_NOT_FOUND)
        return 0;
    if (r < 0)
        return r;
    ssize_t n = fstat(fd, &st) < 0 ? -1 : read(fd, text, sizeof text);
    int saved = errno;
    close(fd);
    if (n < 0)
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't read %s in %s", guard->file,
                             fs->dir.path);
    interpret(guard, text, (size_t)n, &st, fs->stale_ms, ret);
    return 0;
}

/* The lock file's type, owner, inode and size: all but times, which cost more (hf_file_links). */
static int stat_lock(struct hf_file_store *fs, const char *file, struct stat *ret)
{
    struct statx st;
    if (statx(fs->dir.top, file, AT_SYMLINK_NOFOLLOW,
              STATX_TYPE | STATX_UID | STATX_INO | STATX_SIZE, &st) < 0)
        return -1;
    *ret = (struct stat){.st_mode = st.stx_mode,
                         .st_uid = st.stx_uid,
                         .st_ino = st.stx_ino,
                         .st_size = (off_t)st.stx_size};
    return 0;
}

int hf_file_look(struct hf_file_store *fs, const struct hf_file_guard *guard,
                 struct hf_file_view *ret, struct hf_error *err)
{
    struct stat st;
    ret->kind = HF_FILE_NO_LOCK;
    ret->leftover = false;
    ret->lock_id[0] = ret->process_id[0] = '\0';
    if (stat_lock(fs, guard->file, &st) < 0)
        return errno == ENOENT ? 0
                               : hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't look at %s in %s",
                                               guard->file, fs->dir.path);
    int r = hf_file_check_own(&fs->dir, guard->file, &st, err);
    if (r < 0)
        return r;
    ret->ident = ident_of(&st);
    if (!guard->head.grant.held || !same_ident(&ret->ident, &guard->head.shown))
        return read_lock(fs, guard, ret, err);
    ret->kind = HF_FILE_OUR_LOCK;
    ret->grant = guard->head.grant;
    return 0;
}

/* ---- showing -------------------------------------------------------------------------------- */

static int open_page(struct hf_file_store *fs, struct hf_file_guard *guard, int page,
                     struct hf_error *err)
{
    struct stat st;
    int fd;
    if (guard->page_fds[page] >= 0)
        return 0;
    int r =
        hf_file_open_own(&fs->dir, fs->dir.pages[page], guard->file, O_RDWR | O_CREAT, &fd, err);
    if (r < 0)
        return r;
    /* Have the room before it is needed: a full disk then refuses a lock, not half of it. */
    bool room = fstat(fd, &st) == 0 &&
                (st.st_size > 0 || fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, PAGE_MAX) == 0 ||
                 errno == EOPNOTSUPP);
    if (!room) {
        int saved = errno;
        close(fd);
        return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't write a lock file in %s",
                             fs->dir.path);
    }
    guard->page_fds[page] = fd;
    guard->page_inodes[page] = (uint64_t)st.st_ino;
    return 0;
}

/* The page that is not shown now. */
static int choose_page(struct hf_file_store *fs, struct hf_file_guard *guard,
                       const struct hf_file_view *view, struct hf_error *err)
{
    if (view->kind == HF_FILE_NO_LOCK) {
        int page = guard->head.spare == 1; /* keep the spare one for the next change */
        int r = open_page(fs, guard, page, err);
        return r < 0 ? r : page;
    }
    for (int page = 0; page < 2; page++) {
        int r = open_page(fs, guard, page, err);
        if (r < 0)
            return r;
    }
    return view->ident.inode == guard->page_inodes[0];
}

/* Fill the page and answer its size. It is padded, since a change of size costs more than bytes. */
static int write_page(struct hf_file_store *fs, struct hf_file_guard *guard, int page,
                      struct hf_error *err)
{
    char text[PAGE_MAX];
    struct statx st;
    struct lock_json said;
    struct hf_buf json = HF_BUF(PAGE_MAX - 1);
    say(guard, fs->stale_ms, &said);
    hf_wire_write(&json, &said, fields, said.n_bound ? N_FIELDS : N_FIELDS_UNBOUND);
    if (json.failed) {
        hf_buf_clear(&json);
        return hf_fail(err, HF_TOO_LARGE, "the lock file of %s would be too large", said.name);
    }
    size_t size = (json.len + PAGE_STEP) / PAGE_STEP * PAGE_STEP;
    if (statx(guard->page_fds[page], "", AT_EMPTY_PATH, STATX_SIZE, &st) == 0 &&
        st.stx_size > size && st.stx_size <= PAGE_MAX)
        size = st.stx_size;
    memset(text, ' ', size);
    memcpy(text, json.data, json.len);
    text[size - 1] = '\n';
    hf_buf_clear(&json);
    ssize_t n = pwrite(guard->page_fds[page], text, size, 0);
    if (n < 0 || (size_t)n != size)
        return hf_fail_errno(err, HF_UNAVAILABLE, n < 0 ? errno : ENOSPC,
                             "can't write the lock file of %s", said.name);
    return (int)size;
}

static int raced(const struct hf_file_guard *guard, struct hf_error *err)
{
    return hf_fail(err, HF_RACED, "another program keeps changing %s", guard->file);
}

static int fail_to_show(const struct hf_file_store *fs, const struct hf_file_guard *guard,
                        struct hf_error *err)
{
    int saved = errno;
    unlinkat(fs->dir.swap, guard->file, 0);
    if (saved == ENOENT || saved == EEXIST)
        return raced(guard, err);
    return hf_fail_errno(err, HF_UNAVAILABLE, saved, "can't make %s in %s", guard->file,
                         fs->dir.path);
}

/* Is the file of this name in `at` still the one that was looked at? */
static bool is_still(int at, const char *file, const struct hf_file_ident *ident)
{
    struct stat st;
    if (fstatat(at, file, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    struct hf_file_ident now = ident_of(&st);
    return same_ident(&now, ident);
}

static int exchange(const struct hf_file_dir *d, const char *file)
{
    return renameat2(d->swap, file, d->top, file, RENAME_EXCHANGE);
}

/* Show the page by way of swap/FILE, where that is a link of it already, as it mostly is. */
static bool show_spare(const struct hf_file_dir *d, const struct hf_file_guard *guard, int page)
{
    struct statx st;
    /* Looked at before it is shown: who is killed in between must not leave anything else there. */
    return guard->head.spare == (uint32_t)page + 1 &&
           statx(d->swap, guard->file, AT_SYMLINK_NOFOLLOW, STATX_INO, &st) == 0 &&
           st.stx_ino == guard->page_inodes[page] && exchange(d, guard->file) == 0;
}

/* Make swap/FILE a link of the page, and exchange it for the lock file. */
static int show_new(const struct hf_file_store *fs, const struct hf_file_guard *guard, int page,
                    const struct hf_file_view *view, bool doubtful, struct hf_error *err)
{
    const struct hf_file_dir *d = &fs->dir;
    const char *file = guard->file;
    unlinkat(d->swap, file, 0);
    if (linkat(d->pages[page], file, d->swap, file, 0) < 0)
        return fail_to_show(fs, guard, err);
    if (exchange(d, file) == 0)
        return 0;
    if (errno != EINVAL)
        return fail_to_show(fs, guard, err);
    /* A filesystem that can't exchange. */
    if (doubtful && !is_still(d->top, file, &view->ident))
        return raced(guard, err);
    return renameat(d->swap, file, d->top, file) < 0 ? fail_to_show(fs, guard, err) : 0;
}

/* Show the page in place of what `view` saw; what was there is then swap/FILE. */
static int replace(struct hf_file_store *fs, struct hf_file_guard *guard, int page,
                   const struct hf_file_view *view, bool doubtful, struct hf_error *err)
{
    const struct hf_file_dir *d = &fs->dir;
    const char *file = guard->file;
    bool shown = show_spare(d, guard, page);
    guard->head.spare = 0;
    int r = shown ? 0 : show_new(fs, guard, page, view, doubtful, err);
    if (r < 0)
        return r;
    if (doubtful && !is_still(d->swap, file, &view->ident) &&
        faccessat(d->swap, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        exchange(d, file); /* somebody else has just made it: put it back */
        unlinkat(d->swap, file, 0);
        return raced(guard, err);
    }
    if (view->ident.inode == guard->page_inodes[!page])
        guard->head.spare = (uint32_t)!page + 1;
    else
        unlinkat(d->swap, file, 0);
    return 0;
}

/* The page's name may by now belong to another file than the one we wrote. */
static void forget_pages(struct hf_file_guard *guard)
{
    for (int i = 0; i < 2; i++) {
        if (guard->page_fds[i] >= 0)
            close(guard->page_fds[i]);
        guard->page_fds[i] = -1;
    }
}

int hf_file_show(struct hf_file_store *fs, struct hf_file_guard *guard,
                 const struct hf_file_view *view, bool doubtful, struct hf_error *err)
{
    const struct hf_file_dir *d = &fs->dir;
    int page = choose_page(fs, guard, view, err);
    int size = page < 0 ? page : write_page(fs, guard, page, err);
    if (size < 0)
        return size;
    int r = 0;
    if (view->kind != HF_FILE_NO_LOCK)
        r = replace(fs, guard, page, view, doubtful, err);
    else if (linkat(d->pages[page], guard->file, d->top, guard->file, 0) < 0)
        r = fail_to_show(fs, guard, err);
    if (r < 0) {
        forget_pages(guard);
        return r;
    }
    if (view->kind == HF_FILE_NO_LOCK && hf_file_links(guard->page_fds[page]) < 2) {
        /* Our page was removed, and we have linked one that others made since. */
        unlinkat(d->top, guard->file, 0);
        forget_pages(guard);
        return raced(guard, err);
    }
    guard->head.shown = (struct hf_file_ident){.inode = guard->page_inodes[page], .size = size};
    guard->head.shown_expires_ms = hf_file_shown_expiry(&guard->head.grant);
    return 0;
}

int hf_file_remove(struct hf_file_store *fs, const struct hf_file_guard *guard,
                   const struct hf_file_view *view, bool doubtful, struct hf_error *err)
{
    const struct hf_file_dir *d = &fs->dir;
    const char *file = guard->file;
    if (doubtful)
        unlinkat(d->swap, file, 0); /* left by somebody who was killed */
    int r = doubtful ? renameat(d->top, file, d->swap, file) : unlinkat(d->top, file, 0);
    if (r < 0 && errno != ENOENT)
        return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't remove %s in %s", file,
                             fs->dir.path);
    if (r == 0 && doubtful) {
        bool restored =
            is_still(d->swap, file, &view->ident) || linkat(d->swap, file, d->top, file, 0) == 0;
        (void)restored; /* or a newer one is there by now */
        unlinkat(d->swap, file, 0);
    }
    return 0;
}
