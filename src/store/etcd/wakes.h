/* The thread that listens for wake-ups, for wakes.c and idle.c. */
#ifndef HF_ETCD_WAKES_H
#define HF_ETCD_WAKES_H

#include "etcd_store.h"

struct hf_etcd_watcher {
    struct hf_lock_id id;
    int read_fd, write_fd; /* read_fd -1: it shares another one's */
    bool told;             /* the cache has what it is woken for */
};

struct hf_etcd_wakes {
    struct hf_etcd *s;
    pthread_t thread;
    char channel[HF_UUID_LEN + 1];
    int stop_fd, ready_fd; /* eventfds; ready: etcd watches */
    struct hf_buf line;    /* what has come of the next one; the thread's own, as the next two */
    int64_t last_revision;
    bool broken;
    pthread_mutex_t mutex; /* guards all below */
    struct hf_etcd_watcher *of;
    size_t n, size;
    int64_t lease; /* in which our sleepers are; 0: none */
};

#endif
