/* Which executions are due, claims of them, and workers that sleep until one is. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "failpoint.h"
#include "task.h"

enum { WORKFLOWS_MAX_BYTES = 1 << 20 };

/* ---- what is due ---------------------------------------------------------------------------- */

/* An array literal of names, each in quotes. */
static void put_names(struct hf_buf *to, const char *const *names, size_t n)
{
    hf_buf_putc(to, '{');
    for (size_t i = 0; i < n; i++) {
        hf_buf_printf(to, "%s\"", i ? "," : "");
        for (const char *c = names[i]; *c; c++) {
            if (*c == '"' || *c == '\\')
                hf_buf_putc(to, '\\');
            hf_buf_putc(to, *c);
        }
        hf_buf_putc(to, '"');
    }
    hf_buf_putc(to, '}');
}

/* `names` must stay until the exchange. */
static void bind_workflows(struct hf_pg_statement *st, const struct hf_due *due,
                           struct hf_buf *names)
{
    put_names(names, due->workflows, due->n_workflows);
    hf_pg_bind_as(st, HF_PG_TEXT_ARRAY, due->n_workflows ? names->data : NULL);
}

/* By the server's clock, whatever ours says. */
int hf_pg_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
              size_t *ret_n, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT x FROM holdfast.due($1,$2,$3,$4) x"};
    struct hf_buf workflows = HF_BUF(WORKFLOWS_MAX_BYTES);
    PGresult *result;
    bind_workflows(&st, due, &workflows);
    hf_pg_bind_bool(&st, due->verifies);
    hf_pg_bind_int(&st, HF_PG_INT8, (int64_t)due->skip);
    hf_pg_bind_int(&st, HF_PG_INT8, (int64_t)due->limit);
    int r = workflows.failed
                ? hf_fail(err, HF_TOO_LARGE, "too many workflows at once")
                : hf_pg_exchange(hf_postgres_of(store), &st, 1, false, &result, NULL, err);
    hf_buf_clear(&workflows);
    if (r < 0)
        return r;
    size_t n = (size_t)hf_pq.PQntuples(result);
    *ret_n = n < due->limit ? n : due->limit;
    for (size_t i = 0; i < *ret_n; i++)
        hf_pg_take_execution(hf_pg_open_composite(result, (int)i), &ret[i]);
    hf_pg_clear(&result, 1);
    return 0;
}

/* ---- claiming ------------------------------------------------------------------------------- */

/* One claim on its way: of what it may take, and what is left to be claimed one by one. */
struct claim {
    const struct hf_request *like;
    const char *const *tokens;
    size_t n; /* tokens */
    struct hf_lock_id *ids;
    bool *used;
    struct hf_execution
        *closer; /* of whose locks only this machine can tell whether they are free */
    size_t n_closer;
    struct hf_buf ready; /* workflows, for hf_pg_wake_idle() */
};

static void end_claim(struct claim *c)
{
    free(c->ids);
    free(c->used);
    free(c->closer);
}

static int begin_claim(struct claim *c, struct hf_error *err)
{
    c->ids = calloc(c->n, sizeof *c->ids);
    c->used = calloc(c->n, sizeof *c->used);
    c->closer = calloc(c->n, sizeof *c->closer);
    if (!c->ids || !c->used || !c->closer)
        return hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; i < c->n; i++)
        c->ids[i] = hf_lock_id_of(c->tokens[i]);
    return 0;
}

static int send_claim(struct hf_postgres *s, const struct claim *c, const struct hf_due *due,
                      bool again, PGresult **ret, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT * FROM holdfast.claim($1,$2,$3,$4,$5,$6,$7,$8,$9)",
                                 .again = true};
    struct hf_buf workflows = HF_BUF(WORKFLOWS_MAX_BYTES);
    struct hf_pg_columns columns;
    struct hf_processes bound;
    char processes[HF_PROCESSES_TEXT_MAX];
    int r = hf_processes_identify(c->like->bound, c->like->n_bound, &bound, err);
    if (r < 0)
        return r;
    hf_processes_format(&bound, processes);
    bind_workflows(&st, due, &workflows);
    hf_pg_bind_bool(&st, due->verifies);
    hf_pg_bind_int(&st, HF_PG_INT4, (int64_t)c->n);
    hf_pg_columns_begin(&columns, "b", c->n);
    for (size_t i = 0; i < c->n; i++)
        hf_pg_put_bytes(&columns, c->ids[i].bytes, sizeof c->ids[i].bytes);
    r = hf_pg_bind_columns(&st, &columns, err);
    hf_pg_bind_int(&st, HF_PG_INT8, c->like->ttl_ms);
    hf_pg_bind_text(&st, c->like->owner);
    hf_pg_bind_text(&st, processes);
    hf_pg_bind_bool(&st, again);
    hf_pg_bind_text(&st, s->here);
    if (workflows.failed)
        r = hf_fail(err, HF_TOO_LARGE, "too many workflows at once");
    hf_failpoint(HF_FAIL_BEFORE_COMMIT);
    if (r >= 0)
        r = hf_pg_exchange(s, &st, 1, true, ret, NULL, err);
    hf_failpoint(HF_FAIL_AFTER_COMMIT);
    hf_buf_clear(&workflows);
    hf_pg_columns_clear(&columns);
    return r;
}

static void fill_claimed(const struct hf_request *like, const char *token, int64_t now_ms,
                         const char *took, const struct hf_execution *x, struct hf_answer *ret)
{
    *ret = (struct hf_answer){.has_execution = true, .execution = *x};
    struct hf_lease *l = &ret->lease;
    l->fence = x->fence;
    l->acquired_at_ms = now_ms;
    l->expires_at_ms = now_ms + like->ttl_ms;
    l->ttl_ms = like->ttl_ms;
    strcpy(l->name, x->lock);
    strcpy(l->token, token);
    strcpy(l->owner, x->owner);
    strcpy(l->execution_id, x->id);
    hf_pg_parse_takeover(took, &l->takeover);
}

/* A row of type holdfast.claimed. */
static void take_claimed(struct claim *c, struct hf_pg_cursor at, struct hf_answer *ret,
                         size_t *ret_n)
{
    struct hf_lock_id id;
    struct hf_execution x;
    char took[HF_PG_TOOK_MAX], ready[HF_PG_READY_MAX];
    bool has_id = hf_pg_take_id(&at, &id);
    int64_t now_ms = hf_pg_take_int(&at);
    hf_pg_take_text(&at, ready, sizeof ready);
    hf_buf_puts(&c->ready, ready);
    hf_pg_take_text(&at, took, sizeof took);
    hf_pg_take_execution(hf_pg_take_composite(&at), &x);
    size_t i = 0;
    while (i < c->n && !(has_id && hf_lock_id_equal(&c->ids[i], &id)))
        i++;
    if (i < c->n && *ret_n < c->n) {
        c->used[i] = true;
        fill_claimed(c->like, c->tokens[i], now_ms, took, &x, &ret[(*ret_n)++]);
    } else if (x.id[0] && c->n_closer < c->n)
        c->closer[c->n_closer++] = x;
}

/* Each as any other request, with a token that is left. */
static int claim_closer(struct hf_store *store, const struct claim *c, struct hf_answer *ret,
                        size_t *ret_n, struct hf_error *err)
{
    size_t n = 0;
    struct hf_request *requests = calloc(c->n_closer, sizeof *requests);
    struct hf_answer *answers = calloc(c->n_closer, sizeof *answers);
    int r = requests && answers ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < c->n && n < c->n_closer; i++)
        if (!c->used[i]) {
            c->used[i] = true;
            requests[n] = *c->like;
            requests[n].name = c->closer[n].lock;
            requests[n].execution_id = c->closer[n].id;
            requests[n++].token = c->tokens[i];
        }
    if (r >= 0 && n)
        r = hf_pg_apply(store, requests, n, answers, err);
    for (size_t i = 0; r >= 0 && i < n; i++)
        ret[(*ret_n)++] = answers[i];
    free(requests);
    free(answers);
    return r;
}

/* One call of holdfast.claim(), and what it leaves to us. */
static int claim_some(struct hf_store *store, struct claim *c, const struct hf_due *due, bool again,
                      struct hf_answer *ret, size_t *ret_n, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    PGresult *result = NULL;
    int r = send_claim(s, c, due, again, &result, err);
    if (r < 0)
        return r;
    int rows = hf_pq.PQntuples(result);
    for (int row = 0; row < rows; row++)
        take_claimed(c, (struct hf_pg_cursor){.result = result, .row = row}, ret, ret_n);
    hf_pg_clear(&result, 1);
    hf_pg_wake_idle(s, &c->ready);
    return c->n_closer ? claim_closer(store, c, ret, ret_n, err) : 0;
}

/* Where something was left to us, there may be more behind it. */
static bool may_go_on(const struct claim *c, const struct hf_answer *answers, size_t n)
{
    if (!c->n_closer)
        return false;
    for (size_t i = 0; i < n; i++)
        if (answers[i].code == 0 || answers[i].execution.parked)
            return true;
    return false;
}

/* The tokens that have no lease, in their order. */
static void keep_unused(const struct claim *c, const char **tokens)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (!c->used[i])
            tokens[n++] = tokens[i];
}

int hf_pg_claim(struct hf_store *store, const struct hf_due *due, const struct hf_request *like,
                const char *const *tokens, bool again, struct hf_answer *ret, size_t *ret_n,
                struct hf_error *err)
{
    const char **left = calloc(due->limit, sizeof *left);
    size_t n = 0;
    bool more = true;
    int r = left ? 0 : hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; r >= 0 && i < due->limit; i++)
        left[i] = tokens[i];
    while (r >= 0 && more && n < due->limit) {
        struct claim c = {.like = like,
                          .tokens = left,
                          .n = due->limit - n,
                          .ready = HF_BUF(HF_PG_ALL_READY_MAX)};
        size_t some = 0;
        r = begin_claim(&c, err);
        if (r >= 0) {
            r = claim_some(store, &c, due, again, ret + n, &some, err);
            more = may_go_on(&c, ret + n, some);
            keep_unused(&c, left);
        }
        end_claim(&c);
        n += some;
    }
    free(left);
    for (size_t i = 0; i < n; i++)
        hf_pg_prune_sometimes(hf_postgres_of(store), &ret[i]);
    if (r < 0 && n == 0)
        return r; /* what was claimed before a failure is ours all the same */
    *ret_n = n;
    return 0;
}

/* ---- workers that sleep --------------------------------------------------------------------- */

static int wake_up(struct hf_postgres *s, const struct hf_lock_id *id, struct hf_error *err)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.awake($1)"};
    PGresult *result;
    hf_pg_bind_id(&st, id);
    int r = hf_pg_exchange(s, &st, 1, true, &result, NULL, err);
    if (r >= 0)
        hf_pg_clear(&result, 1);
    return r;
}

int hf_pg_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
               int64_t *ret_next_ms, struct hf_error *err)
{
    struct hf_postgres *s = hf_postgres_of(store);
    struct hf_pg_statement st = {.sql = "SELECT holdfast.sleep($1,$2,$3,$4)", .again = true};
    struct hf_buf workflows = HF_BUF(WORKFLOWS_MAX_BYTES);
    char channel[HF_PG_CHANNEL_LEN + 1];
    PGresult *result;
    if (!wanted)
        return wake_up(s, id, err);
    hf_pg_channel(s->listener, id, channel);
    hf_pg_bind_id(&st, id);
    hf_pg_bind_text(&st, channel);
    hf_pg_bind_int(&st, HF_PG_INT4, hf_pg_listener_pid(s->listener));
    bind_workflows(&st, wanted, &workflows);
    int r = workflows.failed ? hf_fail(err, HF_TOO_LARGE, "too many workflows at once")
                             : hf_pg_exchange(s, &st, 1, true, &result, NULL, err);
    hf_buf_clear(&workflows);
    if (r < 0)
        return r;
    *ret_next_ms = hf_pg_take_int(&(struct hf_pg_cursor){.result = result});
    hf_pg_clear(&result, 1);
    return 0;
}

void hf_pg_wake_idle(struct hf_postgres *s, struct hf_buf *ready)
{
    struct hf_pg_statement st = {.sql = "SELECT holdfast.wake_idle($1)"};
    PGresult *result;
    if (ready->len && !ready->failed) {
        hf_pg_bind_text(&st, ready->data);
        if (hf_pg_exchange(s, &st, 1, true, &result, NULL, NULL) >= 0)
            hf_pg_clear(&result, 1);
    }
    hf_buf_clear(ready);
}
