#include "lane.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "error.h"

enum {
    BATCH_MAX = 256,
    BATCH_BYTES_MAX = 8 << 20, /* of inputs: what a store must hold at a time */
    NEAR = 8,                  /* in a queue: as far as the store counts */
    BATCHES = 3                /* one being filled and applied, others on their way back */
};

struct batch {
    struct batch *next;
    size_t n;
    struct job *jobs[BATCH_MAX];
    struct hf_request asks[BATCH_MAX];
    struct hf_answer answers[BATCH_MAX];
    int codes[BATCH_MAX];
    struct hf_error err;
};

struct queue {
    struct job *first, **end;
};

struct lane {
    struct lanes *lanes;
    struct hf *hf;
    pthread_t thread;
    bool started;
    struct queue gathered; /* only of the thread that puts */
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t todo;
    struct queue queue;
    struct batch *spare, *done, **done_end;
    bool closing;
    bool starved; /* it waits for a spare batch */
};

struct lanes {
    int event_fd;
    struct queue looks;   /* that need no lane ... */
    struct batch *looked; /* ... but are done here */
    struct lane of[N_LANES];
};

static void queue_init(struct queue *q)
{
    q->first = NULL;
    q->end = &q->first;
}

static void queue_add(struct queue *q, struct job *job)
{
    job->next = NULL;
    *q->end = job;
    q->end = &job->next;
}

/* ---- on the lane's thread ------------------------------------------------------------------- */

/* Unknown outcomes are resolved by asking again with the same tokens. */
static int apply(struct hf *hf, const struct hf_request *asks, size_t n, struct hf_answer *answers,
                 struct hf_error *err)
{
    static const struct timespec pauses[] = {{0, 20000000}, {0, 100000000}, {0, 400000000}};
    int r = hf_apply(hf, asks, n, answers, err);
    for (size_t i = 0; r == -HF_UNKNOWN && i < sizeof pauses / sizeof *pauses; i++) {
        nanosleep(&pauses[i], NULL);
        r = hf_apply(hf, asks, n, answers, err);
    }
    return r;
}

/* All together; where something about one of them fails, each alone, so that only that one does. */
static void apply_batch(struct hf *hf, struct batch *b)
{
    int r = apply(hf, b->asks, b->n, b->answers, &b->err);
    bool of_the_store = r == -HF_UNAVAILABLE || r == -HF_UNKNOWN || r == -HF_NOMEM;
    for (size_t i = 0; i < b->n; i++)
        b->codes[i] = r >= 0 || of_the_store || b->n == 1
                          ? r
                          : apply(hf, &b->asks[i], 1, &b->answers[i], &b->err);
    for (size_t i = 0; i < b->n; i++) {
        struct job *job = b->jobs[i];
        /* Whoever is far behind need not know who is just ahead, where asking costs a round trip. */
        job->dead_ahead = job->watch && b->codes[i] == 0 && b->answers[i].queued &&
                          (b->answers[i].ahead < NEAR || hf_is_local(hf)) &&
                          !hf_watch_behind(job->watch, job->ask.name, job->ask.token);
    }
}

static void work(struct hf *hf, struct batch *b)
{
    if (b->jobs[0]->work)
        b->codes[0] = b->jobs[0]->work(b->jobs[0], hf, &b->err);
    else
        apply_batch(hf, b);
}

/* What can be done together, from the head of the queue. */
static void fill(struct batch *b, struct queue *q)
{
    size_t bytes = 0;
    b->n = 0;
    while (q->first && b->n < BATCH_MAX) {
        struct job *job = q->first;
        bytes += job->ask.input_size;
        if (b->n && (job->work || bytes > BATCH_BYTES_MAX))
            break;
        q->first = job->next;
        b->jobs[b->n] = job;
        b->asks[b->n++] = job->ask;
        if (job->work)
            break;
    }
    if (!q->first)
        q->end = &q->first;
}

/* Wait for something to do, and take it. NULL: there will be no more. Called with the mutex held. */
static struct batch *next_batch(struct lane *lane)
{
    while ((!lane->queue.first || !lane->spare) && !(lane->closing && !lane->queue.first)) {
        lane->starved = lane->queue.first;
        pthread_cond_wait(&lane->todo, &lane->mutex);
    }
    lane->starved = false;
    if (!lane->queue.first)
        return NULL;
    struct batch *b = lane->spare;
    lane->spare = b->next;
    fill(b, &lane->queue);
    return b;
}

static void *lane_main(void *arg)
{
    struct lane *lane = arg;
    pthread_mutex_lock(&lane->mutex);
    for (struct batch *b; (b = next_batch(lane));) {
        pthread_mutex_unlock(&lane->mutex);
        work(lane->hf, b);
        pthread_mutex_lock(&lane->mutex);
        b->next = NULL;
        *lane->done_end = b;
        lane->done_end = &b->next;
        pthread_mutex_unlock(&lane->mutex); /* or whoever is woken would wait for it */
        eventfd_write(lane->lanes->event_fd, 1);
        pthread_mutex_lock(&lane->mutex);
    }
    pthread_mutex_unlock(&lane->mutex);
    return NULL;
}

/* ---- on the thread that puts and delivers --------------------------------------------------- */

int lanes_fd(const struct lanes *lanes) { return lanes->event_fd; }

struct hf *lanes_handle(struct lanes *lanes, enum lane_name lane) { return lanes->of[lane].hf; }

void lane_put(struct lanes *lanes, enum lane_name lane, struct job *job)
{
    bool is_look = lane == LANE_READ && !job->work && hf_is_local(lanes->of[lane].hf);
    queue_add(is_look ? &lanes->looks : &lanes->of[lane].gathered, job);
}

static void give_back(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        b->jobs[i]->done(b->jobs[i], b->codes[i], &b->answers[i], &b->err);
}

static void flush(struct lane *lane)
{
    if (!lane->gathered.first)
        return;
    pthread_mutex_lock(&lane->mutex);
    *lane->queue.end = lane->gathered.first;
    lane->queue.end = lane->gathered.end;
    pthread_mutex_unlock(&lane->mutex);
    pthread_cond_signal(&lane->todo);
    queue_init(&lane->gathered);
}

void lanes_flush(struct lanes *lanes)
{
    for (int i = 0; i < N_LANES; i++)
        flush(&lanes->of[i]);
    while (lanes->looks.first) { /* now that the others are at work */
        fill(lanes->looked, &lanes->looks);
        work(lanes->of[LANE_READ].hf, lanes->looked);
        give_back(lanes->looked);
    }
}

static struct batch *take_done(struct lane *lane)
{
    pthread_mutex_lock(&lane->mutex);
    struct batch *done = lane->done;
    lane->done = NULL;
    lane->done_end = &lane->done;
    pthread_mutex_unlock(&lane->mutex);
    return done;
}

static void put_spare(struct lane *lane, struct batch *b)
{
    pthread_mutex_lock(&lane->mutex);
    b->next = lane->spare;
    lane->spare = b;
    bool starved = lane->starved;
    pthread_mutex_unlock(&lane->mutex);
    if (starved)
        pthread_cond_signal(&lane->todo);
}

static void deliver(struct lane *lane)
{
    for (struct batch *b = take_done(lane), *next; b; b = next) {
        next = b->next;
        give_back(b);
        put_spare(lane, b);
    }
}

void lanes_deliver(struct lanes *lanes)
{
    eventfd_t ignored;
    eventfd_read(lanes->event_fd, &ignored);
    for (int i = 0; i < N_LANES; i++)
        deliver(&lanes->of[i]);
}

/* ---- open and close ------------------------------------------------------------------------- */

static int lane_open(struct lane *lane, const char *url, struct hf_error *err)
{
    int r = hf_open(url, &lane->hf, err);
    for (int i = 0; r >= 0 && i < BATCHES; i++) {
        struct batch *b = malloc(sizeof *b);
        if (!b)
            return hf_fail(err, HF_NOMEM, "out of memory");
        b->next = lane->spare;
        lane->spare = b;
    }
    if (r < 0)
        return r;
    int failed = pthread_create(&lane->thread, NULL, lane_main, lane);
    if (failed)
        return hf_fail_errno(err, HF_UNAVAILABLE, failed, "can't start a thread");
    lane->started = true;
    return 0;
}

/* Deliver until nothing is left to do: the lane may be waiting for a batch to come back. */
static void finish(struct lane *lane)
{
    static const struct timespec nap = {.tv_nsec = 1000000};
    for (bool busy = true; busy; nanosleep(&nap, NULL)) {
        deliver(lane);
        pthread_mutex_lock(&lane->mutex);
        busy = lane->queue.first;
        pthread_mutex_unlock(&lane->mutex);
    }
}

static void end_thread(struct lane *lane)
{
    if (!lane->started)
        return;
    finish(lane);
    pthread_mutex_lock(&lane->mutex);
    lane->closing = true;
    pthread_cond_signal(&lane->todo);
    pthread_mutex_unlock(&lane->mutex);
    pthread_join(lane->thread, NULL);
    lane->started = false;
    deliver(lane);
}

void lanes_finish(struct lanes *lanes)
{
    lanes_flush(lanes);
    for (int i = N_LANES; i-- > 0;)
        end_thread(&lanes->of[i]);
}

static void lane_close(struct lane *lane)
{
    hf_close(lane->hf);
    for (struct batch *b; (b = lane->spare);) {
        lane->spare = b->next;
        free(b);
    }
    pthread_mutex_destroy(&lane->mutex);
    pthread_cond_destroy(&lane->todo);
}

void lanes_close(struct lanes *lanes)
{
    if (!lanes)
        return;
    lanes_finish(lanes);
    for (int i = 0; i < N_LANES; i++)
        lane_close(&lanes->of[i]);
    if (lanes->event_fd >= 0)
        close(lanes->event_fd);
    free(lanes->looked);
    free(lanes);
}

int lanes_open(const char *url, struct lanes **ret, struct hf_error *err)
{
    struct lanes *lanes = calloc(1, sizeof *lanes);
    struct batch *looked = malloc(sizeof *looked);
    if (!lanes || !looked) {
        free(lanes);
        free(looked);
        return hf_fail(err, HF_NOMEM, "out of memory");
    }
    int r = 0;
    lanes->looked = looked;
    queue_init(&lanes->looks);
    for (int i = 0; i < N_LANES; i++) {
        struct lane *lane = &lanes->of[i];
        lane->lanes = lanes;
        queue_init(&lane->gathered);
        queue_init(&lane->queue);
        lane->done_end = &lane->done;
        pthread_mutex_init(&lane->mutex, NULL);
        pthread_cond_init(&lane->todo, NULL);
    }
    lanes->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (lanes->event_fd < 0)
        r = hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't make an eventfd");
    for (int i = 0; r >= 0 && i < N_LANES; i++)
        r = lane_open(&lanes->of[i], url, err);
    if (r < 0) {
        lanes_close(lanes);
        return r;
    }
    *ret = lanes;
    return 0;
}
