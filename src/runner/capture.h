/*
 * What a command prints, kept within bounds: the first HF_OUTPUT_MAX bytes, the last as many, and
 * how many were between them. The thread that reads adds, the keeper's thread takes copies.
 *
 * A pump passes a pipe's bytes on to another descriptor as well. It never blocks: it waits until
 * that descriptor can be written, which keeps the command waiting as it would without us.
 */
#ifndef HF_RUNNER_CAPTURE_H
#define HF_RUNNER_CAPTURE_H

#include <limits.h>
#include <pthread.h>

#include "buf.h"
#include "run.h"

struct hf_capture {
    pthread_mutex_t lock;
    char head[HF_OUTPUT_MAX];
    size_t n_head;
    char tail[HF_OUTPUT_MAX]; /* a ring */
    size_t tail_at, n_tail;   /* where the next byte goes */
    int64_t total;
    /* copies, for whoever stores them */
    int64_t copied_total;
    char head_copy[HF_OUTPUT_MAX], tail_copy[HF_OUTPUT_MAX];
    struct hf_result copy;
};

void hf_capture_init(struct hf_capture *c);
void hf_capture_add(struct hf_capture *c, const void *bytes, size_t n);

/* All so far, as a result has it; good until the next call of either. */
const struct hf_result *hf_capture_copy(struct hf_capture *c);

/* The same, or NULL where nothing was added since. */
const struct hf_result *hf_capture_news(struct hf_capture *c);

struct hf_pump {
    struct hf_capture *capture;
    int in_fd, out_fd;    /* out_fd -1: only keep it */
    char bytes[PIPE_BUF]; /* what a pipe that can be written takes at once */
    size_t at, n;
    struct hf_buf rest; /* what was not passed on when the command was over */
};

/* A pipe whose writing end is the command's: *ret_write_fd. 0 or -errno. */
int hf_pump_open(struct hf_pump *pump, struct hf_capture *capture, int out_fd, int *ret_write_fd);

/*
 * Read what is there, once, and keep it; only where it is passed on to nobody. 1: there may be more,
 * 0: nothing for now, -1: the end.
 */
int hf_pump_read(struct hf_pump *pump);

/* Where the pump is used: see struct hf_tap. */
struct hf_tap hf_pump_tap(struct hf_pump *pump);

/* Pass on what is left, blocking; and close it. */
void hf_pump_close(struct hf_pump *pump);

#endif
