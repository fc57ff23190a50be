/*
 * One request's turn at one name: what record.c asks of a record store, done with a guard and a
 * lock file. See file_store.h for the order of things.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "file_store.h"
#include "local.h"

enum {
    RACES_MAX = 20,          /* lost to a foreign program in a row, before we say so */
    SHOWN_LAG_MAX_MS = 1000, /* the lock file's expiry may lag so far behind a renewal */
    FENCES_RESERVED = 16,    /* for one name at a time */
};

/* One request's work on one name. It stands in for the store towards record.c. */
struct turn {
    struct hf_store base;
    struct hf_file_store *fs;
    struct hf_file_guard *guard; /* locked, between begin and commit */
    bool durable;
    struct hf_file_view view;
    bool looked;                    /* `view` and the guard are as the disk has them */
    struct hf_file_cleanup cleanup; /* to be told when all is done; `at_ms` 0: none */
};

static struct turn *turn_of(struct hf_store *store) { return (struct turn *)store; }

/* ---- loading -------------------------------------------------------------------------------- */

/* The grant is what the lock file says: where somebody removed or replaced it, ours is lost. */
static void compose_grant(const struct hf_file_guard_head *head, const struct hf_file_view *view,
                          struct hf_record *rec)
{
    bool shown = view->kind != HF_FILE_NO_LOCK && !view->leftover;
    if (shown)
        rec->grant = view->grant;
    else
        rec->grant = (struct hf_grant){.fence = head->grant.fence};
    if (rec->last_fence < rec->grant.fence)
        rec->last_fence = rec->grant.fence;
    if (head->grant.held && (!shown || head->grant.fence != view->grant.fence))
        hf_remember_ended(rec, &head->grant, HF_END_LOST);
}

/* The queue as the record carries it; a waiter that can't be read is gone. */
static void compose_queue(struct hf_file_guard *guard, const struct hf_lock_id *self,
                          struct hf_record *rec)
{
    rec->n_head = 0;
    for (uint32_t i = 0; i < guard->head.n_waiters && rec->n_head < HF_WINDOW;)
        if (hf_file_read_waiter(guard, &guard->index[i], &rec->head[rec->n_head], NULL) >= 0) {
            rec->n_head++;
            i++;
        } else
            hf_file_drop_waiter(guard, &guard->index[i].id);
    const struct hf_file_place *place = self ? hf_file_find_waiter(guard, self) : NULL;
    rec->has_self = place && hf_file_read_waiter(guard, place, &rec->self, NULL) >= 0;
    rec->n_waiters = guard->head.n_waiters;
}

static void compose(struct hf_file_store *fs, struct hf_file_guard *guard,
                    const struct hf_file_view *view, const struct hf_lock_id *self,
                    struct hf_record *rec)
{
    const struct hf_file_guard_head *head = &guard->head;
    strcpy(rec->name, head->name);
    rec->last_fence = head->last_fence;
    memcpy(rec->ended, head->ended, sizeof rec->ended);
    rec->n_ended = head->n_ended;
    memcpy(rec->lost_fences, head->lost_fences, sizeof rec->lost_fences);
    rec->n_lost_fences = head->n_lost_fences;
    rec->denied_ms = head->denied_ms;
    rec->n_denied = head->n_denied;
    rec->parked = false; /* it keeps no executions */
    rec->counts = head->counts;
    compose_grant(head, view, rec);
    compose_queue(guard, self, rec);
    hf_local_rebase(rec, fs->state.first_open_ms);
}

static int load_locked(struct turn *t, const struct hf_lock_id *self, struct hf_record *ret,
                       struct hf_error *err)
{
    if (!t->looked) {
        int r = hf_file_look(t->fs, t->guard, &t->view, err);
        if (r < 0)
            return r;
        t->looked = true;
    }
    compose(t->fs, t->guard, &t->view, self, ret);
    ret->execution.id[0] = '\0'; /* it keeps locks only */
    return 0;
}

static int load(struct hf_store *store, const char *name, const struct hf_lock_id *self,
                struct hf_record *ret, struct hf_error *err)
{
    struct turn *t = turn_of(store);
    if (t->guard)
        return load_locked(t, self, ret, err);
    int r = hf_file_guard_take(t->fs, name, false, &t->guard, err);
    if (r < 0)
        return r;
    t->looked = false;
    r = load_locked(t, self, ret, err);
    hf_file_guard_give(t->fs, t->guard);
    t->guard = NULL;
    return r;
}

/* ---- saving --------------------------------------------------------------------------------- */

static int save_queue(struct hf_file_guard *guard, const struct hf_record *rec,
                      const struct hf_effects *fx, struct hf_error *err)
{
    for (uint32_t i = 0; i < fx->n_dropped; i++)
        hf_file_drop_waiter(guard, &fx->dropped[i]);
    return fx->put_self ? hf_file_put_waiter(guard, &rec->self, err) : 0;
}

/* Which process the grant is for: the asker's, or the waiter's that it is offered to. */
static int64_t holder_pid(struct hf_file_guard *guard, const struct hf_record *rec)
{
    if (rec->grant.fence == guard->head.grant.fence && guard->head.holder_pid)
        return guard->head.holder_pid;
    const struct hf_file_place *waiter = hf_file_find_waiter(guard, &rec->grant.id);
    return waiter ? waiter->pid : getpid();
}

static void save_head(struct hf_file_guard_head *head, const struct hf_record *rec)
{
    bool ours = rec->grant.fence > 0;
    head->grant = ours ? rec->grant : (struct hf_grant){0};
    head->last_fence = rec->last_fence;
    memcpy(head->ended, rec->ended, sizeof head->ended);
    head->n_ended = rec->n_ended;
    memcpy(head->lost_fences, rec->lost_fences, sizeof head->lost_fences);
    head->n_lost_fences = rec->n_lost_fences;
    head->denied_ms = rec->denied_ms;
    head->n_denied = rec->n_denied;
    head->counts = rec->counts;
}

/* Keep what metrics.json is to say of the stale lock that this save ends. */
static void note_cleanup(struct turn *t, const struct hf_effects *fx)
{
    const struct hf_file_view *view = &t->view;
    if (fx->freed.reason == HF_STALE_NOT || fx->inherited || t->cleanup.at_ms ||
        view->kind == HF_FILE_NO_LOCK)
        return;
    struct hf_file_cleanup *c = &t->cleanup;
    c->at_ms = hf_clock_wall_ms();
    c->created_at_ms = fx->freed.acquired_at_ms;
    c->age_ms = fx->freed.held_for_ms;
    strcpy(c->reason, hf_stale_reason_name(fx->freed.reason));
    strcpy(c->lock_id, view->kind == HF_FILE_OUR_LOCK ? fx->freed.lock_id : view->lock_id);
    if (view->kind == HF_FILE_OUR_LOCK)
        snprintf(c->process_id, sizeof c->process_id, "pid-%lld",
                 (long long)(view->grant.bound.n ? view->grant.bound.of[0].pid
                                                 : t->guard->head.holder_pid));
    else
        strcpy(c->process_id, view->process_id);
}

static bool is_shown(const struct turn *t, const struct hf_record *rec)
{
    const struct hf_file_view *view = &t->view;
    if (view->kind == HF_FILE_NO_LOCK || view->leftover || view->grant.fence != rec->grant.fence)
        return false;
    int64_t lag_ms = hf_file_shown_expiry(&rec->grant) - t->guard->head.shown_expires_ms;
    return view->kind == HF_FILE_FOREIGN_LOCK || (lag_ms >= 0 && lag_ms < SHOWN_LAG_MAX_MS);
}

static int make_durable(struct turn *t, struct hf_error *err)
{
    const int fds[] = {t->guard->page_fds[0], t->guard->page_fds[1], t->guard->fd, t->fs->dir.top,
                       t->fs->dir.names};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0 && fsync(fds[i]) < 0)
            return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make %s durable",
                                 t->guard->file);
    return 0;
}

/*
 * Lock file and guard, in the order that survives being killed between them: a lease begins with
 * its lock file and ends with its guard.
 */
static int save_files(struct turn *t, const struct hf_record *rec, bool doubtful,
                      struct hf_error *err)
{
    bool show = rec->grant.held && !is_shown(t, rec);
    int r = show ? hf_file_show(t->fs, t->guard, &t->view, doubtful, err) : 0;
    if (r < 0)
        return r;
    r = hf_file_guard_write(t->guard, err);
    if (r < 0) {
        if (show && t->view.kind == HF_FILE_NO_LOCK)
            unlinkat(t->fs->dir.top, t->guard->file, 0);
        return r;
    }
    bool remove = !rec->grant.held && t->view.kind != HF_FILE_NO_LOCK;
    return remove ? hf_file_remove(t->fs, t->guard, &t->view, doubtful, err) : 0;
}

static void update_view(struct turn *t, const struct hf_record *rec)
{
    struct hf_file_view *view = &t->view;
    if (!rec->grant.held)
        view->kind = HF_FILE_NO_LOCK;
    else if (rec->grant.fence > 0) {
        view->kind = HF_FILE_OUR_LOCK;
        view->ident = t->guard->head.shown;
        view->grant = rec->grant;
    }
    view->leftover = false;
}

/*
 * Wake whom the lock is offered to while we still write it down: waking takes as long as that, and
 * nobody can look at the name before we give its guard back.
 */
static void wake_early(const struct turn *t, const struct hf_effects *fx)
{
    for (uint32_t i = 0; i < fx->n_wake; i++)
        hf_local_wake(t->fs->dir.wake, &fx->wake[i]);
}

static int save(struct hf_store *store, const struct hf_record *rec, const struct hf_ask *ask,
                const struct hf_effects *fx, struct hf_error *err)
{
    struct turn *t = turn_of(store);
    struct hf_file_guard_head *head = &t->guard->head;
    (void)ask;
    int64_t pid = rec->grant.held ? holder_pid(t->guard, rec) : 0;
    int r = save_queue(t->guard, rec, fx, err);
    if (r < 0)
        return r;
    wake_early(t, fx);
    note_cleanup(t, fx);
    save_head(head, rec);
    head->holder_pid = pid;
    bool doubtful = fx->freed.reason != HF_STALE_NOT || t->view.leftover;
    r = save_files(t, rec, doubtful, err);
    if (r >= 0 && t->durable)
        r = make_durable(t, err);
    if (r < 0)
        return r;
    update_view(t, rec);
    hf_file_tell(t->fs, fx->events, fx->n_events);
    return 0;
}

/* ---- a turn --------------------------------------------------------------------------------- */

static int begin(struct hf_store *store, const char *const *names, size_t n, bool durable,
                 struct hf_error *err)
{
    struct turn *t = turn_of(store);
    (void)n; /* always one, see apply() */
    t->durable = durable;
    t->looked = false;
    return hf_file_guard_take(t->fs, names[0], true, &t->guard, err);
}

static void rollback(struct hf_store *store)
{
    struct turn *t = turn_of(store);
    hf_file_guard_give(t->fs, t->guard);
    t->guard = NULL;
}

static int commit(struct hf_store *store, struct hf_error *err)
{
    (void)err;
    rollback(store); /* what was saved is in its place already */
    return 0;
}

static int64_t next_fence(struct hf_store *store)
{
    struct turn *t = turn_of(store);
    struct hf_file_guard_head *head = &t->guard->head;
    int64_t known = head->last_fence;
    if (t->view.kind == HF_FILE_OUR_LOCK && t->view.grant.fence > known)
        known = t->view.grant.fence;
    int64_t fence = head->next_fence > known ? head->next_fence : known + 1;
    if (fence >= head->end_fence || head->next_fence <= t->fs->state.jumped) {
        fence = hf_file_reserve_fences(&t->fs->state, FENCES_RESERVED, known, NULL);
        if (fence < 0)
            return fence;
        head->end_fence = fence + FENCES_RESERVED;
    }
    head->next_fence = fence + 1;
    return fence;
}

static int find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                struct hf_error *err)
{
    (void)store, (void)ask;
    return hf_fail(err, HF_UNSUPPORTED, "the file store keeps locks only; use sqlite: for %s",
                   sought->once ? "--once" : "executions");
}

static int64_t now_ms(struct hf_store *store)
{
    (void)store;
    return hf_local_now_ms();
}

/* They were woken when their offer was saved, see wake_early(). */
static void wake(struct hf_store *store, const char *name, const struct hf_lock_id *id)
{
    (void)store, (void)name, (void)id;
}

static const struct hf_record_ops record_ops = {
    .begin = begin,
    .commit = commit,
    .rollback = rollback,
    .load = load,
    .save = save,
    .next_fence = next_fence,
    .find = find,
    .now_ms = now_ms,
    .wake = wake,
};

/* One request; again where a foreign program came between. */
int hf_file_apply(struct hf_file_store *fs, const struct hf_request *request,
                  struct hf_answer *answer, struct hf_error *err)
{
    int r = -HF_RACED;
    for (int i = 0; i < RACES_MAX && r == -HF_RACED; i++) {
        struct turn t = {.fs = fs};
        r = hf_record_apply(&t.base, &record_ops, request, 1, answer, err);
        if (r >= 0 && t.cleanup.at_ms)
            hf_file_count_cleanup(fs, &t.cleanup);
    }
    return r;
}

int hf_file_status(struct hf_file_store *fs, const char *name, struct hf_status *ret,
                   struct hf_error *err)
{
    struct turn t = {.fs = fs};
    struct hf_record_world rw = {&t.base, &record_ops};
    struct hf_record *rec = malloc(sizeof *rec);
    if (!rec)
        return hf_fail(err, HF_NOMEM, "out of memory");
    int r = load(&t.base, name, NULL, rec, err);
    if (r >= 0) {
        struct hf_world world = hf_record_world_now(&rw);
        hf_record_status(rec, &world, ret);
    }
    free(rec);
    return r;
}
