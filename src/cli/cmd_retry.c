/*
 * retry: executions that have ended are queued anew. What repeats an execution has an id that is made of
 * the old one's, so that the store itself sees to it that each is repeated once, whoever asks.
 *
 * Many of one workflow are found newest first and repeated oldest first. So they are counted, noting
 * where each thousand ends, and then taken up by the thousand from the other end.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "output.h"
#include "printed.h"
#include "process.h"

enum { CHUNK = 1000, BATCH = 32, BATCH_BYTES = 4 << 20, ATTEMPTS = 4 };

/* ---- a batch, in one transaction ------------------------------------------------------------ */

struct batch {
    struct cli *cli;
    struct hf *hf;
    char owner[HF_OWNER_MAX + 1];
    size_t n, bytes;
    const struct hf_execution *old[BATCH];
    char ids[BATCH][HF_UUID_LEN + 1];
    struct hf_buf inputs[BATCH];
    struct hf_request requests[BATCH];
    struct hf_answer answers[BATCH];
    int64_t made;
};

static struct batch *batch_new(struct cli *cli, struct hf *hf)
{
    struct batch *b = calloc(1, sizeof *b);
    if (!b) {
        cli_complain("out of memory");
        return NULL;
    }
    b->cli = cli;
    b->hf = hf;
    hf_process_describe(getpid(), b->owner, sizeof b->owner);
    return b;
}

static void batch_clear(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        hf_buf_clear(&b->inputs[i]);
    b->n = b->bytes = 0;
}

/* What repeats `old`: with its input, but its key stays the old one's. */
static int batch_add(struct batch *b, const struct hf_execution *old)
{
    struct hf_error err;
    struct hf_buf *input = &b->inputs[b->n];
    *input = (struct hf_buf)HF_BUF(HF_INPUT_MAX + 1);
    int r = hf_execution_data(b->hf, old->id, HF_DATA_INPUT, hf_data_add, input, &err);
    if (r < 0 || input->failed) {
        if (r >= 0)
            cli_complain("out of memory");
        hf_buf_clear(input);
        return r < 0 ? cli_fail(b->cli, &err) : CLI_EXIT_INTERNAL;
    }
    size_t i = b->n++;
    hf_retry_id(old->id, b->ids[i]);
    b->old[i] = old;
    b->requests[i] = (struct hf_request){.op = HF_OP_ENQUEUE,
                                         .name = old->lock,
                                         .workflow = old->workflow,
                                         .owner = b->owner,
                                         .input = input->data,
                                         .input_size = input->len,
                                         .execution_id = b->ids[i],
                                         .retry_of = old->id,
                                         .priority = old->priority,
                                         .on_lost = old->on_lost,
                                         .max_attempts = old->max_attempts,
                                         .retry_backoff_ms = old->retry_backoff_ms,
                                         .concurrency = old->concurrency,
                                         .overlap = HF_OVERLAP_QUEUE};
    b->bytes += input->len;
    return 0;
}

static int show_one(const struct cli *cli, const struct hf_execution *x)
{
    if (cli->opts.json)
        return cli_put_execution(x);
    puts(x->id);
    return 0;
}

static int put_answer(struct batch *b, size_t i)
{
    const struct hf_answer *answer = &b->answers[i];
    if (answer->code < 0) {
        cli_complain("%s can't be retried: %s", b->old[i]->id, hf_code_meaning(answer->code));
        return hf_code_exit(answer->code);
    }
    b->made++; /* by us or, in this moment, by somebody else */
    return show_one(b->cli, &answer->execution);
}

/* Queue what has been added. What is there already is left as it is. */
static int batch_send(struct batch *b)
{
    struct hf_error err;
    int r = -HF_UNKNOWN, code = 0;
    for (int attempt = 0; r == -HF_UNKNOWN && attempt < ATTEMPTS; attempt++)
        r = hf_apply(b->hf, b->requests, b->n, b->answers, &err);
    if (r < 0)
        code = cli_fail(b->cli, &err);
    for (size_t i = 0; r >= 0 && i < b->n; i++) {
        int one = put_answer(b, i);
        code = code ? code : one;
    }
    return code;
}

/* ---- one ------------------------------------------------------------------------------------ */

static int check_retriable(const struct hf_execution *x)
{
    if (x->state == HF_PENDING || x->state == HF_RUNNING)
        cli_complain("%s %s is %s; only what has ended can be retried", x->workflow, x->id,
                     hf_execution_state_name(x->state));
    else if (x->once)
        cli_complain("%s %s was run by holdfast run --once; run that again", x->workflow, x->id);
    else
        return 0;
    return CLI_EXIT_DATA;
}

static int say_retried(struct cli *cli, const char *id, const struct hf_execution *by)
{
    if (!cli->opts.quiet)
        cli_complain("%s was retried before, by %s, which is %s; to repeat it, retry that one", id,
                     by->id, hf_execution_state_name(by->state));
    return show_one(cli, by);
}

static int retry_one(struct cli *cli, struct hf *hf, const struct hf_execution *x)
{
    struct batch *b = batch_new(cli, hf);
    if (!b)
        return CLI_EXIT_INTERNAL;
    int code = batch_add(b, x);
    if (!code)
        code = batch_send(b);
    batch_clear(b);
    free(b);
    return code;
}

static int retry_id(struct cli *cli, struct hf *hf, const char *id)
{
    char by[HF_UUID_LEN + 1];
    struct hf_execution x, found;
    struct hf_error err;
    if (hf_execution_of(hf, id, &x, &err) < 0)
        return cli_fail(cli, &err);
    int code = check_retriable(&x);
    if (code)
        return code;
    hf_retry_id(x.id, by);
    int r = hf_execution_of(hf, by, &found, &err);
    if (r == -HF_NOT_FOUND)
        return retry_one(cli, hf, &x);
    return r < 0 ? cli_fail(cli, &err) : say_retried(cli, x.id, &found);
}

/* ---- many ----------------------------------------------------------------------------------- */

struct many {
    struct cli *cli;
    struct hf *hf;
    struct batch *batch;
    int code;
    /* Counted: newest first; ends[i] is the last one of the i-th thousand. */
    char newest[HF_UUID_LEN + 1], last[HF_UUID_LEN + 1];
    char (*ends)[HF_UUID_LEN + 1];
    size_t n_ends;
    int64_t seen, wanted;
    /* The thousand that is at work; what has ended since the counting may make it more. */
    struct hf_execution *of;
    size_t n;
    const char *from, *until; /* its first and last one; NULL: whichever it is */
};

/* Room for one more in an array of `n`, which doubles as it grows; NULL: it is as it was. */
static void *grow(struct many *m, void *array, size_t n, size_t size)
{
    if (n & (n - 1))
        return array;
    void *grown = realloc(array, (n ? 2 * n : 1) * size);
    if (!grown) {
        cli_complain("out of memory");
        m->code = CLI_EXIT_INTERNAL;
    }
    return grown;
}

/* Has it not been retried? */
static bool is_wanted(struct many *m, const struct hf_execution *x)
{
    char id[HF_UUID_LEN + 1];
    struct hf_execution found;
    struct hf_error err;
    if (x->once)
        return false;
    hf_retry_id(x->id, id);
    int r = hf_execution_of(m->hf, id, &found, &err);
    if (r < 0 && r != -HF_NOT_FOUND)
        m->code = cli_fail(m->cli, &err);
    return r == -HF_NOT_FOUND;
}

static int count_one(void *arg, const struct hf_execution *x)
{
    struct many *m = arg;
    if (!m->seen)
        strcpy(m->newest, x->id);
    m->wanted += is_wanted(m, x);
    strcpy(m->last, x->id);
    if (++m->seen % CHUNK == 0) {
        char(*ends)[HF_UUID_LEN + 1] = grow(m, m->ends, m->n_ends, sizeof *ends);
        if (ends) {
            m->ends = ends;
            strcpy(m->ends[m->n_ends++], x->id);
        }
    }
    return m->code;
}

static int take_one(void *arg, const struct hf_execution *x)
{
    struct many *m = arg;
    if (m->from && strcmp(m->from, x->id) != 0)
        return 0; /* newer than what was counted */
    m->from = NULL;
    struct hf_execution *of = is_wanted(m, x) ? grow(m, m->of, m->n, sizeof *of) : NULL;
    if (of) {
        m->of = of;
        m->of[m->n++] = *x;
    }
    return m->code || strcmp(m->until, x->id) == 0;
}

static int list(struct many *m, const char *before, hf_execution_fn fn)
{
    struct hf_execution_query query = HF_EXECUTION_QUERY_INIT;
    struct hf_error err;
    query.workflow = m->cli->opts.workflow;
    query.state = (int)m->cli->opts.state;
    query.before = before;
    if (hf_executions(m->hf, &query, fn, m, &err) < 0 && !m->code)
        m->code = cli_fail(m->cli, &err);
    return m->code;
}

/* Oldest first. */
static int repeat_chunk(struct many *m)
{
    struct batch *b = m->batch;
    int code = 0;
    for (size_t i = m->n; !code && i-- > 0;) {
        if (m->cli->opts.dry_run) {
            code = show_one(m->cli, &m->of[i]);
            continue;
        }
        code = batch_add(b, &m->of[i]);
        if (!code && (b->n == BATCH || b->bytes >= BATCH_BYTES || i == 0)) {
            code = batch_send(b);
            batch_clear(b);
        }
    }
    batch_clear(b);
    return code;
}

/* The i-th thousand; the last one may be shorter. */
static int take_chunk(struct many *m, size_t i)
{
    m->n = 0;
    m->from = i ? NULL : m->newest;
    m->until = i < m->n_ends ? m->ends[i] : m->last;
    return list(m, i ? m->ends[i - 1] : NULL, take_one);
}

static void announce(const struct many *m)
{
    const char *state = hf_execution_state_name((enum hf_execution_state)m->cli->opts.state);
    if (!m->cli->opts.quiet)
        cli_complain("%lld of %s: %s, and not retried yet%s", (long long)m->wanted,
                     m->cli->opts.workflow, state,
                     !m->wanted             ? "; nothing to do"
                     : m->cli->opts.dry_run ? "; these would be retried"
                                            : "; retrying them, the oldest first");
}

static int retry_many(struct many *m)
{
    int code = list(m, NULL, count_one);
    if (code)
        return code;
    announce(m);
    size_t n = m->n_ends + (m->seen % CHUNK != 0);
    for (size_t i = m->wanted ? n : 0; !code && i-- > 0;)
        if (!(code = take_chunk(m, i)))
            code = repeat_chunk(m);
    if (code && !m->cli->opts.dry_run)
        cli_complain("%lld of %lld were retried; the same command goes on with the others",
                     (long long)m->batch->made, (long long)m->wanted);
    return code;
}

static int retry_state(struct cli *cli, struct hf *hf)
{
    struct many m = {.cli = cli, .hf = hf, .batch = batch_new(cli, hf)};
    int code = m.batch ? retry_many(&m) : CLI_EXIT_INTERNAL;
    free(m.batch);
    free(m.ends);
    free(m.of);
    return code;
}

int cmd_retry(struct cli *cli, int argc, char **argv)
{
    struct hf *hf;
    bool by_state = cli->opts.state >= 0 && cli->opts.workflow;
    if (argc == 1 ? cli->opts.state >= 0 || cli->opts.workflow || cli->opts.dry_run : !by_state)
        return cli_usage(cli, "retry needs either ID, or --state S and --workflow W");
    if (argc == 0 && (cli->opts.state == HF_PENDING || cli->opts.state == HF_RUNNING))
        return cli_usage(cli, "--state: only what has ended can be retried");
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    return argc == 1 ? retry_id(cli, hf, argv[0]) : retry_state(cli, hf);
}
