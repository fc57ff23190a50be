/*
 * A walk through an index. A turn is a text that sorts as turns go: priority, when it is due, age. So each
 * search goes from priority to priority, and within one only through what is due.
 */
#ifndef HF_ETCD_WALK_H
#define HF_ETCD_WALK_H

#include "etcd_store.h"

enum { HF_ETCD_PRIORITY_LEN = 8 };

/* Keys in order up to `end`, read in pages, all as they were at one moment. */
struct hf_etcd_walk {
    struct hf_etcd *s;
    struct hf_etcd_txn *t; /* not NULL: with what it has written */
    const char *end;
    struct hf_etcd_page page;
    char from[HF_ETCD_KEY_MAX]; /* the page begins here */
    bool whole;                 /* ... and goes up to the end */
    bool read;
    int64_t revision;
};

int64_t hf_etcd_run_at_of(const char *turn);

/* The first that is not before `from`; NULL: there is none. It lives until the next one. */
int hf_etcd_seek(struct hf_etcd_walk *w, const char *from, const struct hf_etcd_kv **ret,
                 struct hf_error *err);

/* Just behind a key: no other one lies between. */
void hf_etcd_go_behind(char at[HF_ETCD_KEY_MAX], const char *key);

/* What comes after all of this one's priority. */
void hf_etcd_skip_priority(char at[HF_ETCD_KEY_MAX], const char *prefix, const char *turn);

/*
 * The next turn behind `at` that is due, which `at` is moved behind: its key; NULL: there is none.
 * Prefix: what stands before turns.
 */
int hf_etcd_next_due_turn(struct hf_etcd_walk *w, const char *prefix, char at[HF_ETCD_KEY_MAX],
                          int64_t wall_ms, const struct hf_etcd_kv **ret, struct hf_error *err);

#endif
