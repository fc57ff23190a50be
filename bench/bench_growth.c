/* Does it stay as fast as it grows: many names in the store, many waiters on one name. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "holdfast.h"

enum { SIZES = BENCH_SIZES };

/* "31 / 33 / 40 us", and how the last compares with the first. */
static double format_growth(struct samples ns[SIZES], char *buf, size_t size)
{
    double first = samples_quantile(&ns[0], 0.5), last = samples_quantile(&ns[SIZES - 1], 0.5);
    snprintf(buf, size, "%.1f / %.1f / %.1f us", first / 1e3, samples_quantile(&ns[1], 0.5) / 1e3,
             last / 1e3);
    return last / first;
}

/* ---- names ----------------------------------------------------------------------------------- */

enum { BATCH_MAX = 1000 };

/* Make the names first..first+n-1 known to the store: taken and given back, in one transaction. */
static void fill_batch(struct hf *hf, int first, int n)
{
    static struct hf_request requests[2 * BATCH_MAX];
    static struct hf_answer answers[2 * BATCH_MAX];
    static char names[BATCH_MAX][32], tokens[BATCH_MAX][HF_UUID_LEN + 1];
    struct hf_error error;
    for (int i = 0; i < n; i++) {
        subject_name(first + i, names[i]);
        hf_token(tokens[i]);
        requests[2 * i] = (struct hf_request){.op = HF_OP_ACQUIRE,
                                              .name = names[i],
                                              .token = tokens[i],
                                              .ttl_ms = HF_TTL_DEFAULT_MS,
                                              .owner = "bench"};
        requests[2 * i + 1] = (struct hf_request){
            .op = HF_OP_RELEASE, .name = names[i], .token = tokens[i], .owner = "bench"};
    }
    if (hf_apply(hf, requests, 2 * (size_t)n, answers, &error) < 0)
        errx(1, "%s", error.message);
    for (int i = 0; i < 2 * n; i++)
        if (answers[i].code < 0)
            errx(1, "filling the store: %s", hf_code_meaning(answers[i].code));
}

/* The file store opens some files per name, and the usual limit is 1024: smaller batches there. */
void fill(const char *url, int n)
{
    const int batch = strncmp(url, "file:", 5) == 0 ? BATCH_MAX / 10 : BATCH_MAX;
    struct hf *hf;
    struct hf_error error;
    if (hf_open(url, &hf, &error) < 0)
        errx(1, "%s", error.message);
    for (int done = 0; done < n; done += batch)
        fill_batch(hf, done, n - done < batch ? n - done : batch);
    hf_close(hf);
}

void sample_takes(const struct opened *o, int n, int times, struct samples *ns)
{
    char name[32];
    for (int i = 0; i < times; i++) {
        subject_name((int)(random() % n), name);
        int64_t began_ns = bench_now_ns();
        o->subject->take(o->state, name);
        samples_add(ns, (double)(bench_now_ns() - began_ns));
        o->subject->give(o->state, name);
    }
}

void report_growth(const char *what, struct samples ns[SIZES], struct samples peer[SIZES])
{
    struct row row = {.what = what, .goal = GOAL_AT_MOST, .limit = 1.5};
    row.ratio = format_growth(ns, row.ours, sizeof row.ours);
    if (peer)
        format_growth(peer, row.peer, sizeof row.peer);
    report_row(&row);
}

/* Stores of all sizes exist at once and are asked in turns. */
static void measure_names(const struct bench_env *env, const char *what, const char *scheme,
                          const int counts[SIZES], bool with_bare)
{
    struct opened our[SIZES], bare[SIZES];
    struct samples ns[SIZES] = {0}, bare_ns[SIZES] = {0};
    for (int i = 0; i < SIZES; i++) {
        char label[48];
        snprintf(label, sizeof label, "names-%.4s-%d", scheme, counts[i]);
        char *url = bench_path(env, scheme, label);
        fill(url, counts[i]);
        our[i] = (struct opened){&ours, ours.open(url), NULL};
        if (!with_bare)
            continue;
        snprintf(label, sizeof label, "names-bare-%d", counts[i]);
        bare[i] = (struct opened){&bare_sqlite, bare_sqlite.open(bench_path(env, "", label)), NULL};
        bare_sqlite_fill(bare[i].state, counts[i]);
    }
    for (int round = 0; round < bench_amount(env, 100); round++)
        for (int i = 0; i < SIZES; i++) {
            sample_takes(&our[i], counts[i], 50, &ns[i]);
            if (with_bare)
                sample_takes(&bare[i], counts[i], 50, &bare_ns[i]);
        }
    report_growth(what, ns, with_bare ? bare_ns : NULL);
}

void bench_names_sqlite(const struct bench_env *env)
{
    static const int full[] = {10, 10000, 1000000}, quick[] = {10, 1000, 10000};
    measure_names(env,
                  env->quick ? "acquire at 10/10^3/10^4 names, sqlite: vs bare"
                             : "acquire at 10/10^4/10^6 names, sqlite: vs bare",
                  "sqlite:", env->quick ? quick : full, true);
}

/* Up to 10^4: making the files of 10^6 names takes longer than measuring everything else. */
void bench_names_file(const struct bench_env *env)
{
    static const int full[] = {10, 1000, 10000}, quick[] = {10, 100, 1000};
    measure_names(env,
                  env->quick ? "acquire at 10/10^2/10^3 names, file:"
                             : "acquire at 10/10^3/10^4 names, file:",
                  "file:", env->quick ? quick : full, false);
}

/* ---- waiters --------------------------------------------------------------------------------- */

/* A lock with a queue of constant length: whoever gets it is replaced at the end. */
struct queue {
    struct hf *hf;
    int length, next;
    char (*tokens)[HF_UUID_LEN + 1]; /* [next] holds, those after it wait, in a ring */
};

static struct hf_answer ask(struct hf *hf, enum hf_op op, const char *token)
{
    struct hf_error error;
    struct hf_answer answer;
    struct hf_request request = {.op = op,
                                 .name = "x",
                                 .token = token,
                                 .ttl_ms = op == HF_OP_ACQUIRE ? HF_TTL_DEFAULT_MS : 0,
                                 .wait_ms = op == HF_OP_ACQUIRE ? HF_FOREVER : 0,
                                 .owner = "bench"};
    if (hf_apply(hf, &request, 1, &answer, &error) < 0)
        errx(1, "%s", error.message);
    return answer;
}

static void join(struct queue *q, int i, int expected_code)
{
    hf_token(q->tokens[i]);
    struct hf_answer answer = ask(q->hf, HF_OP_ACQUIRE, q->tokens[i]);
    if (answer.code != expected_code)
        errx(1, "joining the queue: %s", hf_code_meaning(answer.code));
}

static struct queue make_queue(const char *url, int waiters)
{
    struct queue q = {.length = waiters + 1};
    struct hf_error error;
    if (hf_open(url, &q.hf, &error) < 0)
        errx(1, "%s", error.message);
    q.tokens = calloc((size_t)q.length, sizeof *q.tokens);
    if (!q.tokens)
        err(1, "calloc");
    for (int i = 0; i < q.length; i++)
        join(&q, i, i == 0 ? 0 : -HF_HELD);
    return q;
}

/* Release, and let the head of the queue confirm what it was offered. */
static double hand_over_ns(struct queue *q)
{
    int holder = q->next, head = (q->next + 1) % q->length;
    int64_t began_ns = bench_now_ns();
    struct hf_answer released = ask(q->hf, HF_OP_RELEASE, q->tokens[holder]);
    struct hf_answer confirmed = ask(q->hf, HF_OP_ACQUIRE, q->tokens[head]);
    int64_t took_ns = bench_now_ns() - began_ns;
    if (released.code < 0 || confirmed.code < 0)
        errx(1, "handing over: %s, %s", hf_code_meaning(released.code),
             hf_code_meaning(confirmed.code));
    join(q, holder, -HF_HELD);
    q->next = head;
    return (double)took_ns;
}

static void measure_waiters(const struct bench_env *env, const char *what, const char *scheme,
                            const int counts[SIZES])
{
    struct queue queues[SIZES];
    struct samples ns[SIZES] = {0};
    for (int i = 0; i < SIZES; i++) {
        char label[32];
        snprintf(label, sizeof label, "waiters-%.4s-%d", scheme, counts[i]);
        queues[i] = make_queue(bench_path(env, scheme, label), counts[i]);
    }
    for (int round = 0; round < bench_amount(env, 100); round++)
        for (int i = 0; i < SIZES; i++)
            for (int k = 0; k < 10; k++)
                samples_add(&ns[i], hand_over_ns(&queues[i]));
    report_growth(what, ns, NULL);
}

void bench_waiters(const struct bench_env *env)
{
    static const int sqlite[] = {1, 100, 10000}, file[] = {1, 10, 100};
    measure_waiters(env, "release + confirm, 1/100/10^4 wait, sqlite:", "sqlite:", sqlite);
    measure_waiters(env, "release + confirm, 1/10/100 wait, file:", "file:", file);
}
