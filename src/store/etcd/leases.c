/*
 * etcd's leases. Each carries one lock's lease at a time, else a lock that nobody extends would live as
 * long as another. One that carries nothing any more is used again, so that to acquire is one Txn.
 * Offers to waiters share one while it is fresh: nobody ever renews it.
 *
 *     sent        the last LeaseGrant or KeepAlive of it was sent
 *     +AGE        until then it is fresh, and taken as it is; later it is renewed first
 *     +ttl        from the acquire: the holder has stopped by then
 *     +ttl+EXTRA  rounded up to whole seconds: etcd lets it run out, not earlier
 *
 * EXTRA (hf_etcd_lease_s()) is AGE, and what a leader that was replaced may have promised in its last second.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "etcd_store.h"

enum { AGE_MS = 2000, LEASES_MAX = 1024, TRIES_MAX = 4 };

struct lease {
    int64_t id, lives_s, sent_ms;
    bool in_use;
    bool of_offers; /* shared, and never renewed */
};

struct hf_etcd_leases {
    pthread_mutex_t mutex;
    struct lease of[LEASES_MAX];
    size_t n;
};

struct hf_etcd_leases *hf_etcd_leases_new(void)
{
    struct hf_etcd_leases *leases = calloc(1, sizeof *leases);
    if (leases)
        pthread_mutex_init(&leases->mutex, NULL);
    return leases;
}

void hf_etcd_leases_free(struct hf_etcd_leases *leases)
{
    if (!leases)
        return;
    pthread_mutex_destroy(&leases->mutex);
    free(leases);
}

/* etcd's time is real, whatever clock the tests use. */
static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the pool ------------------------------------------------------------------------------- */

static struct lease *find(struct hf_etcd_leases *all, int64_t id)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->of[i].id == id)
            return &all->of[i];
    return NULL;
}

static void drop(struct hf_etcd_leases *all, struct lease *l) { *l = all->of[--all->n]; }

/* The freshest that nobody uses and that lives so long; what has run out is dropped. */
static bool take_kept(struct hf_etcd_leases *all, int64_t lives_s, struct lease *ret)
{
    struct lease *best = NULL;
    int64_t now_ms = real_ms();
    pthread_mutex_lock(&all->mutex);
    for (size_t i = all->n; i-- > 0;)
        if (now_ms - all->of[i].sent_ms >= all->of[i].lives_s * 1000)
            drop(all, &all->of[i]);
    for (size_t i = 0; i < all->n; i++)
        if (!all->of[i].in_use && !all->of[i].of_offers && all->of[i].lives_s == lives_s &&
            (!best || all->of[i].sent_ms > best->sent_ms))
            best = &all->of[i];
    if (best) {
        best->in_use = true;
        *ret = *best;
    }
    pthread_mutex_unlock(&all->mutex);
    return best;
}

static void keep(struct hf_etcd_leases *all, const struct lease *l)
{
    pthread_mutex_lock(&all->mutex);
    if (all->n < LEASES_MAX)
        all->of[all->n++] = *l;
    pthread_mutex_unlock(&all->mutex);
}

void hf_etcd_lease_give(struct hf_etcd *s, int64_t id)
{
    struct hf_etcd_leases *all = s->leases;
    pthread_mutex_lock(&all->mutex);
    struct lease *l = find(all, id);
    if (l)
        l->in_use = false;
    pthread_mutex_unlock(&all->mutex);
}

void hf_etcd_lease_forget(struct hf_etcd *s, int64_t id)
{
    struct hf_etcd_leases *all = s->leases;
    pthread_mutex_lock(&all->mutex);
    struct lease *l = find(all, id);
    if (l)
        drop(all, l);
    pthread_mutex_unlock(&all->mutex);
}

/* ---- asking etcd ---------------------------------------------------------------------------- */

static int grant(struct hf_etcd *s, struct lease *ret, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(256);
    json_t *answer;
    uint64_t id;
    hf_random(&id, sizeof id);
    ret->id = (int64_t)(id >> 1) | 1;
    ret->sent_ms = real_ms();
    hf_buf_printf(&body, "{\"TTL\":\"%lld\",\"ID\":\"%lld\"}", (long long)ret->lives_s,
                  (long long)ret->id);
    int r = hf_etcd_call(s, "/v3/lease/grant", &body, true, &answer, err);
    hf_buf_clear(&body);
    if (r < 0)
        return r;
    int64_t lives_s = hf_etcd_number(answer, "TTL");
    json_decref(answer);
    return lives_s >= ret->lives_s ? 0 : hf_fail(err, HF_UNAVAILABLE, "etcd gives no lease");
}

int hf_etcd_lease_renew(struct hf_etcd *s, int64_t id, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(256);
    json_t *answer;
    int64_t sent_ms = real_ms();
    hf_buf_printf(&body, "{\"ID\":\"%lld\"}", (long long)id);
    int r = hf_etcd_call(s, "/v3/lease/keepalive", &body, false, &answer, err);
    hf_buf_clear(&body);
    if (r < 0)
        return r;
    int64_t left_s = hf_etcd_number(json_object_get(answer, "result"), "TTL");
    json_decref(answer);
    if (left_s <= 0) {
        hf_etcd_lease_forget(s, id);
        return hf_fail(err, HF_NOT_FOUND, "the etcd lease has run out");
    }
    pthread_mutex_lock(&s->leases->mutex);
    struct lease *l = find(s->leases, id);
    if (l)
        l->sent_ms = sent_ms;
    pthread_mutex_unlock(&s->leases->mutex);
    return 0;
}

int hf_etcd_lease_outlives(struct hf_etcd *s, int64_t id, int64_t ttl_ms, bool *ret,
                           struct hf_error *err)
{
    struct hf_buf body = HF_BUF(256);
    json_t *answer;
    hf_buf_printf(&body, "{\"ID\":\"%lld\"}", (long long)id);
    int r = hf_etcd_call(s, "/v3/lease/timetolive", &body, false, &answer, err);
    hf_buf_clear(&body);
    if (r < 0)
        return r;
    int64_t left_s = hf_etcd_number(answer, "TTL");
    json_decref(answer);
    *ret = left_s >= hf_etcd_lease_s(ttl_ms);
    return left_s > 0 ? 0 : hf_fail(err, HF_NOT_FOUND, "the etcd lease has run out");
}

/* Until there is one, or it is known that there will be none. */
static int grant_surely(struct hf_etcd *s, struct lease *l, struct hf_error *err)
{
    int r;
    for (int i = 0; (r = grant(s, l, err)) == -HF_UNKNOWN && i < TRIES_MAX; i++)
        if ((r = hf_etcd_lease_renew(s, l->id, err)) != -HF_NOT_FOUND)
            break; /* it was granted after all, and has just been renewed */
    if (r >= 0)
        keep(s->leases, l);
    return r;
}

int hf_etcd_lease_take(struct hf_etcd *s, int64_t ttl_ms, int64_t *ret_id, struct hf_error *err)
{
    struct lease l = {.lives_s = hf_etcd_lease_s(ttl_ms), .in_use = true};
    int r;
    while (take_kept(s->leases, l.lives_s, &l)) {
        r = real_ms() - l.sent_ms < AGE_MS ? 0 : hf_etcd_lease_renew(s, l.id, err);
        if (r >= 0)
            *ret_id = l.id;
        else if (r != -HF_NOT_FOUND)
            hf_etcd_lease_give(s, l.id);
        if (r != -HF_NOT_FOUND)
            return r;
    }
    if ((r = grant_surely(s, &l, err)) >= 0)
        *ret_id = l.id;
    return r;
}

static bool find_fresh_offer(struct hf_etcd_leases *all, int64_t lives_s, int64_t *ret_id)
{
    int64_t now_ms = real_ms();
    bool found = false;
    pthread_mutex_lock(&all->mutex);
    for (size_t i = 0; !found && i < all->n; i++) {
        const struct lease *l = &all->of[i];
        found = l->of_offers && l->lives_s == lives_s && now_ms - l->sent_ms < AGE_MS;
        if (found)
            *ret_id = l->id;
    }
    pthread_mutex_unlock(&all->mutex);
    return found;
}

int hf_etcd_lease_of_offers(struct hf_etcd *s, int64_t ttl_ms, int64_t *ret_id,
                            struct hf_error *err)
{
    struct lease l = {.lives_s = hf_etcd_lease_s(ttl_ms), .in_use = true, .of_offers = true};
    if (find_fresh_offer(s->leases, l.lives_s, ret_id))
        return 0;
    int r = grant_surely(s, &l, err);
    if (r >= 0)
        *ret_id = l.id;
    return r;
}
