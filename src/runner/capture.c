#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { REST_MAX = 1 << 20 }; /* of a pipe whose writers are gone */

/* ---- keeping -------------------------------------------------------------------------------- */

void hf_capture_init(struct hf_capture *c)
{
    c->n_head = c->tail_at = c->n_tail = 0;
    c->total = c->copied_total = 0;
    c->copy = (struct hf_result)HF_RESULT_INIT;
    pthread_mutex_init(&c->lock, NULL);
}

static void add_to_tail(struct hf_capture *c, const char *bytes, size_t n)
{
    if (n > sizeof c->tail) {
        bytes += n - sizeof c->tail;
        n = sizeof c->tail;
    }
    size_t first = sizeof c->tail - c->tail_at;
    first = n < first ? n : first;
    memcpy(c->tail + c->tail_at, bytes, first);
    memcpy(c->tail, bytes + first, n - first);
    c->tail_at = (c->tail_at + n) % sizeof c->tail;
    c->n_tail = c->n_tail + n < sizeof c->tail ? c->n_tail + n : sizeof c->tail;
}

void hf_capture_add(struct hf_capture *c, const void *bytes, size_t n)
{
    pthread_mutex_lock(&c->lock);
    size_t room = sizeof c->head - c->n_head, first = n < room ? n : room;
    memcpy(c->head + c->n_head, bytes, first);
    c->n_head += first;
    add_to_tail(c, (const char *)bytes + first, n - first);
    c->total += (int64_t)n;
    pthread_mutex_unlock(&c->lock);
}

static void copy_tail(struct hf_capture *c)
{
    size_t start = (c->tail_at + sizeof c->tail - c->n_tail) % sizeof c->tail;
    size_t first = sizeof c->tail - start;
    first = c->n_tail < first ? c->n_tail : first;
    memcpy(c->tail_copy, c->tail + start, first);
    memcpy(c->tail_copy + first, c->tail, c->n_tail - first);
}

const struct hf_result *hf_capture_copy(struct hf_capture *c)
{
    pthread_mutex_lock(&c->lock);
    memcpy(c->head_copy, c->head, c->n_head);
    copy_tail(c);
    c->copy.output_head = c->head_copy;
    c->copy.output_head_size = c->n_head;
    c->copy.output_tail = c->tail_copy;
    c->copy.output_tail_size = c->n_tail;
    c->copy.output_skipped = c->total - (int64_t)(c->n_head + c->n_tail);
    c->copied_total = c->total;
    pthread_mutex_unlock(&c->lock);
    return &c->copy;
}

const struct hf_result *hf_capture_news(struct hf_capture *c)
{
    pthread_mutex_lock(&c->lock);
    bool is_new = c->total != c->copied_total;
    pthread_mutex_unlock(&c->lock);
    return is_new ? hf_capture_copy(c) : NULL;
}

/* ---- passing on ----------------------------------------------------------------------------- */

int hf_pump_open(struct hf_pump *pump, struct hf_capture *capture, int out_fd, int *ret_write_fd)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    *pump = (struct hf_pump){
        .capture = capture, .in_fd = ends[0], .out_fd = out_fd, .rest = HF_BUF(REST_MAX)};
    *ret_write_fd = ends[1];
    return 0;
}

/* Who does not want to hear any more does not keep the command from going on. */
static void write_some(struct hf_pump *pump)
{
    ssize_t n = write(pump->out_fd, pump->bytes + pump->at, pump->n);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n < 0) {
        pump->out_fd = -1;
        pump->n = 0;
        return;
    }
    pump->at += (size_t)n;
    pump->n -= (size_t)n;
}

int hf_pump_read(struct hf_pump *pump)
{
    ssize_t n = read(pump->in_fd, pump->bytes, sizeof pump->bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (n <= 0)
        return -1;
    hf_capture_add(pump->capture, pump->bytes, (size_t)n);
    pump->at = 0;
    pump->n = pump->out_fd >= 0 ? (size_t)n : 0;
    return 1;
}

static int use_pump(struct hf_run *run, struct hf_tap *tap)
{
    struct hf_pump *pump = tap->arg;
    int r = 0;
    if (run->over) { /* nobody is kept waiting any more: passed on when the lock is given back */
        hf_buf_add(&pump->rest, pump->bytes + pump->at, pump->n);
        pump->n = 0;
        r = hf_pump_read(pump);
    } else if (pump->n)
        write_some(pump);
    else
        r = hf_pump_read(pump);
    bool writes = pump->n && !run->over;
    tap->fd = r < 0 ? -1 : writes ? pump->out_fd : pump->in_fd;
    tap->events = writes ? POLLOUT : POLLIN;
    return r > 0;
}

struct hf_tap hf_pump_tap(struct hf_pump *pump)
{
    return (struct hf_tap){.fd = pump->in_fd, .events = POLLIN, .use = use_pump, .arg = pump};
}

void hf_pump_close(struct hf_pump *pump)
{
    hf_buf_add(&pump->rest, pump->bytes + pump->at, pump->n);
    for (size_t at = 0; pump->out_fd >= 0 && at < pump->rest.len;) {
        ssize_t n = write(pump->out_fd, pump->rest.data + at, pump->rest.len - at);
        if (n < 0 && errno != EINTR)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    hf_buf_clear(&pump->rest);
    close(pump->in_fd);
}
