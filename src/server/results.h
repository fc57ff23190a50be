/*
 * Waiting for an execution's end (Prefer: wait=N): an entry in a table, no thread, no descriptor
 * beside its connection. All are served by one look at the store's new events, ten times a second
 * while anybody waits; each is looked at for itself when an event names it, and now and then.
 */
#ifndef HF_SERVER_RESULTS_H
#define HF_SERVER_RESULTS_H

#include "server.h"

/* The first part of what the caller has as the request's context; zero at first. */
struct result {
    struct result *prev, *next;
    struct request *req;
    struct hf_execution x, seen; /* as it was last seen; what a lane sees meanwhile */
    struct hf_buf output;        /* once it is over: "output":"...",... as show --json has it */
    int64_t until_ms, look_ms;
    bool looking, again;
    void (*done)(struct result *result); /* it is over, or the time is, or the service stops */
};

/* Wait for it at most `wait_ms`. done() is called unless the client leaves, perhaps at once. */
void results_begin(struct result *result, struct request *req, const struct hf_execution *x,
                   int64_t wait_ms, void (*done)(struct result *result));

/* For the request's forget(): nobody is interested any more. Its output is the caller's to free. */
void results_leave(struct result *result);

#endif
