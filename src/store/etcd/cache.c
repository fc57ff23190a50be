/*
 * What keys held when we last saw them, so that the common change needs no read: what was decided from
 * here is believed only when the Txn has found all of it unchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "etcd_store.h"

enum { SLOTS = 4096, VALUE_MAX = 4096 };

/* A key has one place; another one with that place displaces it. */
struct slot {
    struct hf_etcd_kv kv;
    bool contended;
};

struct hf_etcd_cache {
    pthread_mutex_t mutex;
    struct slot slots[SLOTS];
};

struct hf_etcd_cache *hf_etcd_cache_new(void)
{
    struct hf_etcd_cache *cache = calloc(1, sizeof *cache);
    if (cache)
        pthread_mutex_init(&cache->mutex, NULL);
    return cache;
}

void hf_etcd_cache_free(struct hf_etcd_cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < SLOTS; i++)
        hf_etcd_kv_clear(&cache->slots[i].kv);
    pthread_mutex_destroy(&cache->mutex);
    free(cache);
}

static struct slot *slot_of(struct hf_etcd_cache *cache, const char *key)
{
    uint64_t hash = 14695981039346656037U; /* FNV-1a */
    for (const char *c = key; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211U;
    return &cache->slots[(hash >> 32 ^ hash) % SLOTS];
}

static bool is_at(const struct slot *slot, const char *key)
{
    return slot->kv.key && strcmp(slot->kv.key, key) == 0;
}

static bool copy(struct hf_etcd_kv *to, const struct hf_etcd_kv *from)
{
    *to = (struct hf_etcd_kv){.mod = from->mod, .lease = from->lease, .len = from->len};
    to->key = strdup(from->key);
    to->value = malloc(from->len + 1);
    if (!to->key || !to->value) {
        hf_etcd_kv_clear(to);
        return false;
    }
    if (from->len)
        memcpy(to->value, from->value, from->len);
    to->value[from->len] = '\0';
    return true;
}

int hf_etcd_cache_find(struct hf_etcd_cache *cache, const char *key, struct hf_etcd_kv *ret)
{
    pthread_mutex_lock(&cache->mutex);
    const struct slot *slot = slot_of(cache, key);
    bool found = is_at(slot, key) && copy(ret, &slot->kv);
    pthread_mutex_unlock(&cache->mutex);
    return found;
}

void hf_etcd_cache_keep(struct hf_etcd_cache *cache, const struct hf_etcd_kv *kv)
{
    struct hf_etcd_kv kept;
    if (kv->len > VALUE_MAX || !copy(&kept, kv)) {
        hf_etcd_cache_drop(cache, kv->key);
        return;
    }
    pthread_mutex_lock(&cache->mutex);
    struct slot *slot = slot_of(cache, kv->key);
    slot->contended &= is_at(slot, kv->key);
    hf_etcd_kv_clear(&slot->kv);
    slot->kv = kept;
    pthread_mutex_unlock(&cache->mutex);
}

void hf_etcd_cache_drop(struct hf_etcd_cache *cache, const char *key)
{
    pthread_mutex_lock(&cache->mutex);
    struct slot *slot = slot_of(cache, key);
    if (is_at(slot, key)) {
        hf_etcd_kv_clear(&slot->kv);
        slot->contended = false;
    }
    pthread_mutex_unlock(&cache->mutex);
}

void hf_etcd_cache_contend(struct hf_etcd_cache *cache, const char *key, bool contended)
{
    pthread_mutex_lock(&cache->mutex);
    struct slot *slot = slot_of(cache, key);
    if (is_at(slot, key))
        slot->contended = contended;
    pthread_mutex_unlock(&cache->mutex);
}

bool hf_etcd_cache_is_good(struct hf_etcd_cache *cache, const char *key, int64_t *ret_mod)
{
    pthread_mutex_lock(&cache->mutex);
    const struct slot *slot = slot_of(cache, key);
    bool known = is_at(slot, key), good = known && !slot->contended;
    *ret_mod = known ? slot->kv.mod : 0;
    pthread_mutex_unlock(&cache->mutex);
    return good;
}
