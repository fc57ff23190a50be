/* The queue of a name, for records.c. */
#ifndef HF_ETCD_WAITERS_H
#define HF_ETCD_WAITERS_H

#include "etcd_store.h"

/* The first of those who wait. */
struct hf_etcd_head {
    char from[HF_ETCD_KEY_MAX], to[HF_ETCD_KEY_MAX];
    struct hf_etcd_span span;
};
void hf_etcd_head_of(struct hf_etcd_txn *t, const char *name, struct hf_etcd_head *ret);

/* rec->head, and rec->self where it waits. */
int hf_etcd_load_queue(struct hf_etcd_txn *t, const struct hf_lock_id *self, struct hf_record *rec,
                       struct hf_error *err);
int hf_etcd_put_self(struct hf_etcd_txn *t, const struct hf_record *rec, struct hf_error *err);
int hf_etcd_drop_waiters(struct hf_etcd_txn *t, const char *name, const struct hf_effects *fx,
                         struct hf_error *err);
/* In the same step: who is offered the lock is told through the channel of its process. */
int hf_etcd_put_wakes(struct hf_etcd_txn *t, const char *name, const struct hf_effects *fx,
                      struct hf_error *err);

#endif
