#include "times.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "dynamodb/dynamo.h"
#include "engine_clock.h"
#include "history.h"

/* The boot clock and the wall clock: of this process alone, or shared with a service under test. */
static int64_t own_clocks[2], *clocks = own_clocks;

int64_t __wrap_hf_clock_boot_ms(void);
int64_t __wrap_hf_clock_wall_ms(void);

int64_t __wrap_hf_clock_boot_ms(void)
{
    return h.real_clock ? __real_hf_clock_boot_ms() : clocks[0];
}

int64_t __wrap_hf_clock_wall_ms(void)
{
    return h.real_clock ? __real_hf_clock_wall_ms() : clocks[1];
}

/*
 * What DynamoDB's answers say of its time: to the millisecond, and with the margin that the store takes
 * off for clocks of other front ends made up for.
 */
bool __real_hf_dynamo_time(struct hf_dynamo *d, int64_t *ret_early_ms, int64_t *ret_late_ms);
bool __wrap_hf_dynamo_time(struct hf_dynamo *d, int64_t *ret_early_ms, int64_t *ret_late_ms);

bool __wrap_hf_dynamo_time(struct hf_dynamo *d, int64_t *ret_early_ms, int64_t *ret_late_ms)
{
    if (h.real_clock)
        return __real_hf_dynamo_time(d, ret_early_ms, ret_late_ms);
    *ret_early_ms = clocks[1] + HF_DYNAMO_SKEW_MS;
    *ret_late_ms = clocks[1];
    return true;
}

void set_clocks(int64_t boot_ms)
{
    h.model->now_ms = clocks[0] = boot_ms;
    clocks[1] = boot_ms + h.model->wall_offset_ms;
}

void share_clocks(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof own_clocks) < 0)
        err(1, "%s", path);
    void *at = mmap(NULL, sizeof own_clocks, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        err(1, "%s", path);
    clocks = at;
    close(fd);
}

static const struct engine_clock *const engine_clocks[] = {&postgres_clock, &etcd_clock};
static const struct engine_clock *engine_clock; /* NULL: it has none, or runs on its own */

static void set_engine_clock(void)
{
    if (engine_clock)
        engine_clock->set(clocks[1]);
}

void take_engine_clock(void)
{
    engine_clock = NULL;
    for (size_t i = 0; i < sizeof engine_clocks / sizeof *engine_clocks; i++) {
        size_t n = strlen(engine_clocks[i]->scheme);
        if (strncmp(h.url, engine_clocks[i]->scheme, n) == 0 && h.url[n] == ':' && !h.real_clock)
            engine_clock = engine_clocks[i];
    }
    if (engine_clock)
        engine_clock->take(h.url);
    set_engine_clock();
}

static bool is_near(int64_t at_ms) { return llabs(at_ms - h.model->now_ms) < EDGE_MS; }

/* What is wanted now is due from then on, by either clock. */
static bool is_about_to_fall_due(const struct hf_execution *x)
{
    return x->state == HF_PENDING && x->run_at_ms != x->created_at_ms &&
           is_near(x->run_at_ms - h.model->wall_offset_ms);
}

static bool is_near_an_edge(void)
{
    for (size_t i = 0; i < h.model->n_executions; i++)
        if (is_about_to_fall_due(&h.model->executions[i].x))
            return true;
    for (size_t i = 0; i < h.model->n_locks; i++) {
        const struct model_lock *lock = &h.model->locks[i];
        if (lock->rec.grant.held && is_near(lock->rec.grant.expires_ms))
            return true;
        for (size_t j = 0; j < lock->n_queue; j++)
            if (is_near(lock->queue[j].until_ms) || is_near(lock->queue[j].seen_ms + HF_WAITER_MS))
                return true;
    }
    return false;
}

static void sleep_ms(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        continue;
}

void pass_time(int64_t ms)
{
    if (!h.real_clock) {
        set_clocks(h.model->now_ms + ms);
        if (ms)
            set_engine_clock();
        return;
    }
    sleep_ms(ms > 2 * EDGE_MS ? 2 * EDGE_MS : ms);
    h.model->now_ms = __real_hf_clock_boot_ms();
    while (is_near_an_edge()) {
        sleep_ms(EDGE_MS / 4);
        h.model->now_ms = __real_hf_clock_boot_ms();
    }
    h.model->wall_offset_ms = __real_hf_clock_wall_ms() - h.model->now_ms;
}

void note_pause(void)
{
    int64_t took_ms = h.real_clock ? __real_hf_clock_boot_ms() - h.model->now_ms : 0;
    if (took_ms > h.paused_ms)
        h.paused_ms = took_ms;
}

void give_back_engine_clock(void)
{
    if (engine_clock)
        engine_clock->give_back();
}
