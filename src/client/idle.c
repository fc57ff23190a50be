/* A worker's sleep: the store wakes one of those who sleep for each execution that becomes ready. */
#include <stdlib.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "text.h"

struct hf_idle {
    struct hf *hf;
    struct hf_lock_id id;
    int fd;
};

static int fail_unable(const struct hf *hf, struct hf_error *err)
{
    return hf_fail(err, HF_UNSUPPORTED, "%s can't wake workers; look for work every few seconds",
                   hf_url(hf));
}

int hf_idle_open(struct hf *hf, struct hf_idle **ret, struct hf_error *err)
{
    int r = hf_check_handle(hf, err);
    if (r < 0)
        return r;
    const struct hf_store_ops *ops = hf->store->ops;
    if (!ops->idle || !ops->watch)
        return fail_unable(hf, err);
    struct hf_idle *idle = malloc(sizeof *idle);
    if (!idle)
        return hf_fail(err, HF_NOMEM, "out of memory");
    char token[HF_UUID_LEN + 1];
    hf_token(token);
    *idle = (struct hf_idle){.hf = hf, .id = hf_lock_id_of(token), .fd = -1};
    r = ops->watch(hf->store, NULL, &idle->id, &idle->fd, err);
    if (r >= 0 && idle->fd < 0) /* as things are: a pooler is between */
        r = fail_unable(hf, err);
    if (r < 0) {
        free(idle);
        return r;
    }
    *ret = idle;
    return 0;
}

int hf_idle_fd(const struct hf_idle *idle) { return idle->fd; }

/* What hf_claim() would take. */
static int take_wanted(const struct hf_claim_options *opts, struct hf_due *ret,
                       struct hf_error *err)
{
    struct hf_claim_options o = HF_CLAIM_INIT;
    int r = hf_take_options(opts, &o, sizeof o, "HF_CLAIM_INIT", err);
    *ret = (struct hf_due){.workflows = o.workflows,
                           .n_workflows = o.workflows ? o.n_workflows : 0,
                           .wall_ms = hf_clock_wall_ms(),
                           .verifies = o.verifies};
    for (size_t i = 0; r >= 0 && i < ret->n_workflows; i++)
        r = hf_check_name(ret->workflows[i], err);
    return r;
}

int hf_idle_as(struct hf *hf, const struct hf_lock_id *id, const struct hf_claim_options *opts,
               int64_t *ret_next_ms, struct hf_error *err)
{
    int64_t next_ms = 0;
    struct hf_due wanted;
    int r = hf_check_handle(hf, err);
    if (r < 0 || (r = take_wanted(opts, &wanted, err)) < 0)
        return r;
    if (!hf->store->ops->idle)
        return fail_unable(hf, err);
    if ((r = hf->store->ops->idle(hf->store, id, &wanted, &next_ms, err)) >= 0 && ret_next_ms)
        *ret_next_ms = next_ms;
    return r;
}

int hf_idle_begin(struct hf_idle *idle, const struct hf_claim_options *opts, int64_t *ret_next_ms,
                  struct hf_error *err)
{
    char bytes[256];
    while (read(idle->fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        continue;
    return hf_idle_as(idle->hf, &idle->id, opts, ret_next_ms, err);
}

void hf_idle_end(struct hf_idle *idle)
{
    struct hf_store *store = idle->hf->store;
    if (hf_check_handle(idle->hf, NULL) >= 0)
        store->ops->idle(store, &idle->id, NULL, NULL, NULL);
}

void hf_idle_close(struct hf_idle *idle)
{
    if (!idle)
        return;
    struct hf_store *store = idle->hf->store;
    hf_idle_end(idle);
    if (hf_check_handle(idle->hf, NULL) >= 0)
        store->ops->unwatch(store, NULL, &idle->id, idle->fd);
    else
        close(idle->fd);
    free(idle);
}
