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
    struct hf_execution x; /* as it was last seen */
    struct hf_buf output;  /* once it is over: "output":"...",... as show --json has it */
    int64_t until_ms, look_ms;
    bool looking, again;
    void (*done)(struct result *result); /* it is over, or the time is, or the service stops */
};

/* Wait for it at most `wait_ms`. done() is called unless the client leaves, perhaps at once. */
void results_begin(struct result *result, struct request *req, const struct hf_execution *x,
                   int64_t wait_ms, void (*done)(struct result *result));

/*
 * For the request's forget(): nobody is interested any more. While a lane is at work (req->working)
 * it only leaves the table; forget() is called again when the lane is done. End: what it has is freed.
 */
void results_leave(struct result *result);
void results_end(struct result *result);

/* What an execution has printed, as JSON. For a lane. */
int results_read_output(struct hf *hf, const char *id, struct hf_buf *out, struct hf_error *err);

#endif
