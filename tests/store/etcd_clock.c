/*
 * etcd's leases run in real time, and the suite's clock does not. So they are made to last, and when
 * the clock is moved on, each alive/NAME whose time is up is removed, as etcd would have done.
 */
#include <err.h>
#include <stdlib.h>
#include <string.h>

#include "engine_clock.h"
#include "etcd/etcd_store.h"
#include "history.h"

enum { LASTS_S = 36000 };

static struct hf_store *store; /* the test's own handle, for its ways to etcd */

int64_t __wrap_hf_etcd_lease_s(int64_t ttl_ms);
int64_t __real_hf_etcd_lease_s(int64_t ttl_ms);

int64_t __wrap_hf_etcd_lease_s(int64_t ttl_ms)
{
    return __real_hf_etcd_lease_s(ttl_ms) + (h.real_clock ? 0 : LASTS_S);
}

static void take(const char *url)
{
    struct hf_error error;
    if (hf_store_open(url, &store, &error) < 0)
        errx(1, "%s", error.message);
}

static int remove_key(struct hf_etcd_txn *t, void *arg, struct hf_error *err)
{
    return hf_etcd_delete(t, arg, err);
}

static void set(int64_t wall_ms)
{
    struct hf_etcd *s = hf_etcd_of(store);
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_error error;
    struct hf_etcd_page page;
    hf_etcd_key(s, from, "alive/");
    hf_etcd_key(s, to, "alive0");
    struct hf_etcd_span span = {.from = from, .to = to};
    if (hf_etcd_read(s, &span, &page, &error) < 0)
        errx(1, "%s", error.message);
    for (size_t i = 0; i < page.n; i++)
        if (strtoll(page.of[i].value, NULL, 10) <= wall_ms &&
            hf_etcd_change(s, remove_key, page.of[i].key, &error) < 0)
            errx(1, "%s", error.message);
    hf_etcd_page_clear(&page);
}

static void give_back(void)
{
    store->ops->close(store);
    store = NULL;
}

const struct engine_clock etcd_clock = {
    .scheme = "etcd", .take = take, .set = set, .give_back = give_back};
