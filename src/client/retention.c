/* Removing executions that have been kept for long enough: when, and in which steps. What is to go, the
 * store knows. */
#include <stdatomic.h>
#include <string.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "text.h"

/* A step is a transaction that others may wait for: so long, however large what is removed is. */
enum { STEP_FIRST = 64, STEP_MAX = 500, STEP_SHORT_MS = 20, STEP_LONG_MS = 80 };

static int check_rules(const struct hf_retention *rules, size_t n, struct hf_error *err)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        r = hf_check_name(rules[i].workflow, err);
        if (r >= 0 && (rules[i].keep_ms < 0 || rules[i].keep_count < 0))
            r = hf_fail(err, HF_INVALID, "%s can't be kept for a negative time or number",
                        rules[i].workflow);
    }
    return r;
}

static bool is_at_beginning(const struct hf_prune_place *place)
{
    return place->where == HF_PRUNE_BEHIND && !place->workflow[0];
}

static int64_t next_step(int64_t step, int64_t took_ms)
{
    if (took_ms < STEP_SHORT_MS)
        return 2 * step < STEP_MAX ? 2 * step : STEP_MAX;
    return took_ms > STEP_LONG_MS && step > 1 ? step / 2 : step;
}

/* From `place` to the end, or as far as it gets. */
static int prune_from(struct hf_store *store, struct hf_prune_place *place, int64_t within_ms,
                      int64_t *ret_removed, struct hf_error *err)
{
    int64_t begin_ms = hf_clock_boot_ms(), now_ms = begin_ms, step = STEP_FIRST;
    do {
        int64_t before_ms = now_ms, removed = 0;
        int r = store->ops->prune(store, place, step, &removed, err);
        if (r < 0)
            return r;
        *ret_removed += removed;
        now_ms = hf_clock_boot_ms();
        step = next_step(step, now_ms - before_ms);
    } while (!is_at_beginning(place) && (within_ms == HF_FOREVER || now_ms - begin_ms < within_ms));
    return 0;
}

int hf_prune(struct hf *hf, const struct hf_retention *rules, size_t n, int64_t within_ms,
             int64_t *ret_removed, struct hf_error *err)
{
    int64_t removed = 0;
    int r = hf_check_handle(hf, err);
    if (r >= 0)
        r = check_rules(rules, n, err);
    if (r < 0)
        return r;
    struct hf_store *store = hf->store;
    if (store->ops->prune && n)
        r = store->ops->retain(store, rules, n, err);
    if (r >= 0 && store->ops->prune && within_ms && !atomic_exchange(&hf->pruning, true)) {
        struct hf_prune_place *place = &hf->prune_place;
        if (within_ms == HF_FOREVER)
            *place = (struct hf_prune_place){0};
        else if (n && is_at_beginning(place)) { /* who is soon gone begins with what it knows */
            place->where = HF_PRUNE_AT;
            strcpy(place->workflow, rules[0].workflow);
        }
        r = prune_from(store, place, within_ms, &removed, err);
        hf->pruning = false;
    }
    if (r >= 0 && ret_removed)
        *ret_removed = removed;
    return r;
}
