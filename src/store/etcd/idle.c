/*
 * Workers that have found nothing to do: idle/ID says which channel wakes them and what they would
 * claim, in an etcd lease that the watching thread keeps alive. Who has made an execution ready removes
 * one of those keys and puts the wake-up, in one Txn: so each is woken by one only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "wakes.h"

enum { SLEEPERS_MAX = 1000, LEASE_MS = 20000, WAKE_MS = 5000 };

static int lease_of_sleepers(struct hf_etcd *s, int64_t *ret, struct hf_error *err)
{
    struct hf_etcd_wakes *w = s->wakes;
    if (!w)
        return hf_fail(err, HF_INTERNAL, "a worker sleeps that does not watch");
    pthread_mutex_lock(&w->mutex);
    *ret = w->lease;
    pthread_mutex_unlock(&w->mutex);
    if (*ret)
        return 0;
    int r = hf_etcd_lease_take(s, LEASE_MS, ret, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&w->mutex);
    w->lease = *ret;
    pthread_mutex_unlock(&w->mutex);
    return 0;
}

struct sleep {
    const struct hf_lock_id *id;
    const struct hf_due *wanted;
    int64_t lease;
};

static int lie_down(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    const struct sleep *sleep = arg;
    char key[HF_ETCD_KEY_MAX], hex[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(sleep->id, hex);
    hf_etcd_key(t->s, key, "idle/%s", hex);
    if (!sleep->wanted)
        return hf_etcd_delete(t, key, err);
    json_t *of = json_array();
    for (size_t i = 0; i < sleep->wanted->n_workflows; i++)
        json_array_append_new(of, json_string(sleep->wanted->workflows[i]));
    json_t *object = json_pack("{s:s,s:o}", "channel", t->s->wakes->channel, "workflows", of);
    int r = hf_etcd_put_json(t, key, object, sleep->lease, err);
    if (r >= 0 && t->n_taken == 0 && sleep->lease)
        t->taken[t->n_taken++] = sleep->lease;
    return r;
}

int hf_etcd_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                 int64_t *ret_next_ms, struct hf_error *err)
{
    struct hf_etcd *s = hf_etcd_of(store);
    struct sleep sleep = {.id = id, .wanted = wanted};
    int r = wanted ? lease_of_sleepers(s, &sleep.lease, err) : 0;
    if (r >= 0)
        r = hf_etcd_change(s, lie_down, &sleep, err);
    return r < 0 || !wanted ? r : hf_etcd_next_due(s, wanted, ret_next_ms, err);
}

/* ---- waking --------------------------------------------------------------------------------- */

/* The first that this sleeper would claim, or NULL. */
static struct hf_ready *find_ready(const json_t *workflows, struct hf_ready *ready, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool wanted = !json_array_size(workflows);
        for (size_t j = 0; !wanted && j < json_array_size(workflows); j++) {
            const char *one = json_string_value(json_array_get(workflows, j));
            wanted = one && strcmp(one, ready[i].workflow) == 0;
        }
        if (wanted && ready[i].n)
            return &ready[i];
    }
    return NULL;
}

/* One try: whoever is faster wakes it. */
static bool wake_sleeper(struct hf_etcd *s, const struct hf_etcd_kv *sleeper, const char *channel)
{
    struct hf_etcd_txn *t = malloc(sizeof *t);
    char key[HF_ETCD_KEY_MAX];
    const struct hf_etcd_kv *now;
    int64_t lease = 0;
    bool woken = false;
    if (!t)
        return false;
    hf_etcd_txn_init(t, s, true);
    hf_etcd_key(s, key, "wake/%s/%s", channel,
                sleeper->key + strlen(sleeper->key) - HF_LOCK_ID_LEN);
    if (hf_etcd_get(t, sleeper->key, false, &now, NULL) >= 0 && now && now->mod == sleeper->mod &&
        hf_etcd_lease_take(s, WAKE_MS, &lease, NULL) >= 0) {
        woken = hf_etcd_delete(t, sleeper->key, NULL) >= 0 &&
                hf_etcd_put(t, key, "", 0, lease, NULL) >= 0 && hf_etcd_commit(t, NULL) >= 0;
        hf_etcd_lease_give(s, lease); /* the next wake-up may hang on it, too */
    }
    hf_etcd_txn_clear(t);
    free(t);
    return woken;
}

void hf_etcd_wake_idle(struct hf_store *store, struct hf_ready *ready, size_t n)
{
    struct hf_etcd *s = hf_etcd_txn_of(store)->s;
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_page page;
    hf_etcd_key(s, from, "idle/");
    hf_etcd_key(s, to, "idle0");
    struct hf_etcd_span span = {.from = from, .to = to, .limit = SLEEPERS_MAX};
    if (hf_etcd_read(s, &span, &page, NULL) < 0)
        return;
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        left += ready[i].n;
    for (size_t i = 0; left > 0 && i < page.n; i++) {
        json_t *object = hf_etcd_parse(&page.of[i]);
        const char *channel = json_string_value(json_object_get(object, "channel"));
        struct hf_ready *for_it = find_ready(json_object_get(object, "workflows"), ready, n);
        if (for_it && channel && wake_sleeper(s, &page.of[i], channel)) {
            for_it->n--;
            left--;
        }
        json_decref(object);
    }
    hf_etcd_page_clear(&page);
}
