#include "walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 128, RUN_AT_AT = HF_ETCD_PRIORITY_LEN + 1, RUN_AT_LEN = 16 };

void hf_etcd_format_turn(const struct hf_execution *x, const char *order,
                         char ret[HF_ETCD_TURN_MAX])
{
    snprintf(ret, HF_ETCD_TURN_MAX, "%08x.%016llx.%s",
             (unsigned)(INT64_C(0x7fffffff) - x->priority), (unsigned long long)x->run_at_ms,
             order);
}

int64_t hf_etcd_run_at_of(const char *turn)
{
    char hex[RUN_AT_LEN + 1];
    snprintf(hex, sizeof hex, "%.*s", RUN_AT_LEN, strlen(turn) > RUN_AT_AT ? turn + RUN_AT_AT : "");
    return (int64_t)strtoull(hex, NULL, 16);
}

/* ---- a walk through an index ---------------------------------------------------------------- */

static int read_page(struct hf_etcd_walk *w, const char *from, struct hf_error *err)
{
    struct hf_etcd_span span = {.from = from, .to = w->end, .limit = PAGE, .revision = w->revision};
    hf_etcd_page_clear(&w->page);
    w->read = false;
    int r = w->t ? hf_etcd_range(w->t, &span, false, &w->page, err)
                 : hf_etcd_read(w->s, &span, &w->page, err);
    if (r < 0)
        return r;
    snprintf(w->from, sizeof w->from, "%s", from);
    w->whole = w->page.n < PAGE;
    w->read = true;
    if (!w->t)
        w->revision = w->page.revision;
    return 0;
}

static const struct hf_etcd_kv *find_in_page(const struct hf_etcd_walk *w, const char *from)
{
    for (size_t i = 0; i < w->page.n; i++)
        if (strcmp(w->page.of[i].key, from) >= 0)
            return &w->page.of[i];
    return NULL;
}

int hf_etcd_seek(struct hf_etcd_walk *w, const char *from, const struct hf_etcd_kv **ret,
                 struct hf_error *err)
{
    bool covered = w->read && strcmp(from, w->from) >= 0;
    *ret = covered ? find_in_page(w, from) : NULL;
    if (*ret || (covered && w->whole))
        return 0;
    char start[HF_ETCD_KEY_MAX];
    snprintf(start, sizeof start, "%s", from);
    int r = strcmp(start, w->end) < 0 ? read_page(w, start, err) : 0;
    if (r >= 0 && strcmp(start, w->end) < 0)
        *ret = find_in_page(w, start);
    return r;
}

void hf_etcd_go_behind(char at[HF_ETCD_KEY_MAX], const char *key)
{
    snprintf(at, HF_ETCD_KEY_MAX, "%.*s\1", HF_ETCD_KEY_MAX - 2, key);
}

void hf_etcd_skip_priority(char at[HF_ETCD_KEY_MAX], const char *prefix, const char *turn)
{
    snprintf(at, HF_ETCD_KEY_MAX, "%.900s%.*s/", prefix, HF_ETCD_PRIORITY_LEN, turn);
}

int hf_etcd_next_due_turn(struct hf_etcd_walk *w, const char *prefix, char at[HF_ETCD_KEY_MAX],
                          int64_t wall_ms, const struct hf_etcd_kv **ret, struct hf_error *err)
{
    size_t n = strlen(prefix);
    for (;;) {
        int r = hf_etcd_seek(w, at, ret, err);
        if (r < 0 || !*ret)
            return r;
        if (strncmp((*ret)->key, prefix, n) != 0) {
            *ret = NULL;
            return 0;
        }
        const char *turn = (*ret)->key + n;
        if (hf_etcd_run_at_of(turn) <= wall_ms) {
            hf_etcd_go_behind(at, (*ret)->key);
            return 0;
        }
        hf_etcd_skip_priority(at, prefix, turn);
    }
}
