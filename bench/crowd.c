/* Several processes at once, each with the subject opened for itself. */
#include <err.h>
#include <stdlib.h>

#include "bench.h"

enum { WARM_UP = 10 }; /* PostgreSQL settles on a statement's plan when it has met it a few times */

static void note_longest(int64_t *longest_ns, int64_t began_ns)
{
    int64_t took_ns = bench_now_ns() - began_ns;
    if (took_ns > *longest_ns)
        *longest_ns = took_ns;
}

static void worker(void *arg, int index)
{
    struct crowd *c = arg;
    char name[32];
    subject_name(c->same_name ? 0 : index, name);
    void *state = c->subject->open(c->where);
    for (int i = 0; i < c->warm_up; i++) {
        c->subject->take(state, name);
        c->subject->give(state, name);
    }
    atomic_fetch_add(&c->ready, 1);
    while (!atomic_load(&c->go))
        bench_sleep_us(500);
    for (;; c->of[index].pairs++) {
        int64_t began_ns = bench_now_ns();
        c->subject->take(state, name);
        note_longest(&c->of[index].longest_ns, began_ns);
        began_ns = bench_now_ns();
        c->subject->give(state, name);
        note_longest(&c->of[index].longest_ns, began_ns);
        if (atomic_load(&c->stop)) /* too late to count */
            break;
    }
    c->subject->close(state);
}

static void start_all(struct crowd *c, pid_t *pids)
{
    atomic_store(&c->ready, 0);
    atomic_store(&c->go, false);
    atomic_store(&c->stop, false);
    for (int i = 0; i < c->n; i++) {
        c->of[i].pairs = c->of[i].longest_ns = 0;
        pids[i] = spawn_worker(worker, c, i);
    }
    for (int waited_ms = 0; atomic_load(&c->ready) < c->n; waited_ms++) {
        if (waited_ms > 30000)
            errx(1, "the %d processes did not begin", c->n);
        bench_sleep_us(1000);
    }
}

double crowd_slice(void *arg, int64_t for_ns)
{
    struct crowd *c = arg;
    pid_t pids[CROWD_MAX];
    int64_t pairs = 0;
    start_all(c, pids);
    int64_t began_ns = bench_now_ns();
    atomic_store(&c->go, true);
    bench_sleep_us((long)(for_ns / 1000));
    atomic_store(&c->stop, true);
    int64_t took_ns = bench_now_ns() - began_ns;
    for (int i = 0; i < c->n; i++) {
        spawn_wait(pids[i]);
        pairs += c->of[i].pairs;
        if (c->of[i].longest_ns > c->longest_ns)
            c->longest_ns = c->of[i].longest_ns;
    }
    return (double)pairs * 1e9 / (double)took_ns;
}

struct crowd *crowd_make(const struct subject *subject, const char *where, int n)
{
    struct crowd *c = spawn_shared(sizeof *c);
    c->subject = subject;
    c->where = where;
    c->n = n;
    c->warm_up = WARM_UP;
    subject->close(subject->open(where)); /* made before the crowd meets it */
    return c;
}
