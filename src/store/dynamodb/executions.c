/*
 * Executions: PK=RUN#id, SK=RUN, and the items by which they are found. Those depend on nothing but
 * the execution itself (see places_of()), so what must be written and removed is what differs between
 * before and after. All of it is part of the transaction that changes the lock's item.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamodb_store.h"
#include "error.h"
#include "wire.h"

enum { RUN_MAX = 16384, PLACES_MAX = 2 };

void hf_ddb_flow_pk(const char *workflow, char ret[HF_DDB_KEY_MAX])
{
    snprintf(ret, HF_DDB_KEY_MAX, "FLOW#%s", workflow);
}

void hf_ddb_run_pk(const char *id, char ret[HF_DDB_KEY_MAX])
{
    snprintf(ret, HF_DDB_KEY_MAX, "RUN#%s", id);
}

/* ---- reading -------------------------------------------------------------------------------- */

int hf_ddb_read_run(const json_t *item, struct hf_execution *ret, struct hf_error *err)
{
    json_t *json = json_loads(hf_ddb_get_text(item, "Run"), 0, NULL);
    int r = json ? hf_wire_read_execution(json, ret, err)
                 : hf_fail(err, HF_UNAVAILABLE, "the table's item %s can't be read",
                           hf_ddb_get_text(item, "PK"));
    json_decref(json);
    return r;
}

int hf_ddb_turn_run(struct hf_ddb_turn *t, const char *id, struct hf_execution *ret,
                    struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    const json_t *item;
    hf_ddb_run_pk(id, pk);
    int r = hf_ddb_turn_get(t, pk, "RUN", &item, err);
    if (r < 0 || !item)
        return r;
    r = hf_ddb_read_run(item, ret, err);
    return r < 0 ? r : 1;
}

int hf_ddb_load_execution(struct hf_ddb_turn *t, struct hf_record *rec, struct hf_error *err)
{
    struct hf_grant *g = &rec->grant;
    if (!g->held || !g->execution_id[0])
        return 0;
    int r = hf_ddb_turn_run(t, g->execution_id, &rec->execution, err);
    g->ended = r == 0 || (r > 0 && rec->execution.state != HF_RUNNING);
    return r < 0 ? r : 0;
}

static void hash_input(const struct hf_request *req, char ret[2 * HF_SHA256_LEN + 1])
{
    uint8_t hash[HF_SHA256_LEN];
    hf_sha256(req->input, req->input_size, hash);
    for (size_t i = 0; i < HF_SHA256_LEN; i++)
        snprintf(ret + 2 * i, 3, "%02x", hash[i]);
}

static void key_sk(const char *key, bool once, char ret[HF_DDB_KEY_MAX])
{
    snprintf(ret, HF_DDB_KEY_MAX, "%s#%s", once ? "ONCE" : "KEY", key);
}

/* The id of the one that has the key, "": there is none. */
static int id_of_key(struct hf_ddb_turn *t, const struct hf_sought *sought,
                     char ret[HF_UUID_LEN + 1], struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], sk[HF_DDB_KEY_MAX];
    const json_t *item;
    hf_ddb_flow_pk(sought->workflow, pk);
    key_sk(sought->key, sought->once, sk);
    int r = hf_ddb_turn_get(t, pk, sk, &item, err);
    if (r >= 0)
        hf_ddb_copy_text(item, "Id", ret, HF_UUID_LEN + 1);
    return r;
}

static bool has_key(const struct hf_execution *x)
{
    return !x->once || (x->state != HF_FAILED && x->state != HF_ABORTED);
}

int hf_ddb_find(struct hf_store *store, const struct hf_sought *sought, struct hf_ask *ask,
                struct hf_error *err)
{
    struct hf_ddb_turn *t = hf_ddb_turn_of(store);
    char id[HF_UUID_LEN + 1] = "", pk[HF_DDB_KEY_MAX], hash[2 * HF_SHA256_LEN + 1];
    int r = sought->key ? id_of_key(t, sought, id, err) : 0;
    if (r >= 0 && id[0])
        r = hf_ddb_turn_run(t, id, &ask->found, err);
    if (r < 0)
        return r;
    bool found = r > 0 && has_key(&ask->found);
    if (!found && sought->id) {
        if ((r = hf_ddb_turn_run(t, sought->id, &ask->found, err)) < 0)
            return r;
        found = r > 0;
    }
    ask->has_found = found;
    if (!found)
        return 0;
    const json_t *item;
    hf_ddb_run_pk(ask->found.id, pk);
    if ((r = hf_ddb_turn_get(t, pk, "RUN", &item, err)) < 0)
        return r;
    hash_input(ask->req, hash);
    ask->same_input = strcmp(hf_ddb_get_text(item, "InputHash"), hash) == 0;
    return 0;
}

/* ---- where one is found --------------------------------------------------------------------- */

struct place {
    char pk[HF_DDB_KEY_MAX], sk[HF_DDB_KEY_MAX];
};

/* Whose turn it is: the higher priority, then the earlier time, then the older. */
static void turn_sk(const char *kind, const struct hf_execution *x, int64_t seq,
                    char ret[HF_DDB_KEY_MAX])
{
    snprintf(ret, HF_DDB_KEY_MAX, "%s#%010lld#%013lld#%016lld", kind,
             (long long)INT32_MAX - x->priority, (long long)x->run_at_ms, (long long)seq);
}

static size_t places_of(const struct hf_execution *x, int64_t seq, struct place ret[PLACES_MAX])
{
    hf_ddb_flow_pk(x->workflow, ret[0].pk);
    hf_ddb_lock_pk(x->lock, ret[1].pk);
    switch (x->state) {
    case HF_PENDING:
        turn_sk(x->parked ? "PARKED" : "READY", x, seq, ret[1].sk);
        memcpy(ret[0].sk, ret[1].sk, sizeof ret[0].sk);
        return 2;
    case HF_RUNNING:
        snprintf(ret[0].sk, sizeof ret[0].sk, "RUNNING#%016lld", (long long)seq);
        return 1;
    default:
        snprintf(ret[0].sk, sizeof ret[0].sk, "%s#%013lld#%016lld", x->once ? "OVERONCE" : "OVER",
                 (long long)x->finished_at_ms, (long long)seq);
        return 1;
    }
}

static bool is_among(const struct place *place, const struct place *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(place->sk, all[i].sk) == 0 && strcmp(place->pk, all[i].pk) == 0)
            return true;
    return false;
}

/* What is looked at before the execution itself is read. */
static json_t *pointer_to(const struct hf_execution *x)
{
    json_t *item = hf_ddb_object();
    hf_ddb_set_text(item, "Id", x->id);
    hf_ddb_set_text(item, "Workflow", x->workflow);
    if (x->to_verify)
        hf_ddb_set_int(item, "ToVerify", 1);
    if (x->concurrency)
        hf_ddb_set_int(item, "Concurrency", x->concurrency);
    return item;
}

static int move(struct hf_ddb_turn *t, const struct hf_execution *before,
                const struct hf_execution *after, int64_t seq, struct hf_error *err)
{
    struct place old[PLACES_MAX], new[PLACES_MAX];
    size_t n_old = before ? places_of(before, seq, old) : 0, n_new = places_of(after, seq, new);
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n_old; i++)
        if (!is_among(&old[i], new, n_new))
            r = hf_ddb_turn_delete(t, old[i].pk, old[i].sk, HF_DDB_BLINDLY, err);
    bool same = before && before->to_verify == after->to_verify;
    for (size_t i = 0; r >= 0 && i < n_new; i++)
        if (!same || !is_among(&new[i], old, n_old))
            r = hf_ddb_turn_put(t, new[i].pk, new[i].sk, pointer_to(after), HF_DDB_BLINDLY, err);
    return r;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int write_run(struct hf_ddb_turn *t, const struct hf_execution *x, int64_t seq,
                     const char *input_hash, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    struct hf_buf text = HF_BUF(RUN_MAX);
    json_t *item = hf_ddb_object();
    hf_wire_execution(&text, x);
    hf_ddb_set(item, "Run", text.failed ? NULL : hf_ddb_text(text.data));
    hf_buf_clear(&text);
    hf_ddb_set_int(item, "Seq", seq);
    hf_ddb_set_text(item, "InputHash", input_hash);
    hf_ddb_run_pk(x->id, pk);
    return hf_ddb_turn_put(t, pk, "RUN", item, HF_DDB_IF_SAME, err);
}

/* Of two that would be the last that its workflow may have, one meets the other here. */
static int note_limited(struct hf_ddb_turn *t, const struct hf_execution *before,
                        const struct hf_execution *x, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    bool starts = x->state == HF_RUNNING && !(before && before->state == HF_RUNNING);
    if (!starts || !x->concurrency)
        return 0;
    hf_ddb_flow_pk(x->workflow, pk);
    return hf_ddb_turn_put(t, pk, "FLOW", hf_ddb_object(), HF_DDB_IF_SAME, err);
}

int hf_ddb_update_run(struct hf_ddb_turn *t, const struct hf_execution *x, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX], hash[2 * HF_SHA256_LEN + 1];
    struct hf_execution before;
    const json_t *item;
    hf_ddb_run_pk(x->id, pk);
    int r = hf_ddb_turn_get(t, pk, "RUN", &item, err);
    if (r < 0)
        return r;
    if (!item)
        return hf_fail(err, HF_INTERNAL, "execution %s is not there any more", x->id);
    int64_t seq = hf_ddb_get_int(item, "Seq");
    hf_ddb_copy_text(item, "InputHash", hash, sizeof hash);
    if ((r = hf_ddb_read_run(item, &before, err)) < 0 ||
        (r = note_limited(t, &before, x, err)) < 0 || (r = write_run(t, x, seq, hash, err)) < 0)
        return r;
    return move(t, &before, x, seq, err);
}

/* Its key is its own from now on; of `once`, that of the newest. */
static int take_key(struct hf_ddb_turn *t, const char *flow, const struct hf_execution *x,
                    struct hf_error *err)
{
    char sk[HF_DDB_KEY_MAX];
    if (!x->key[0])
        return 0;
    key_sk(x->key, x->once, sk);
    json_t *item = hf_ddb_object();
    hf_ddb_set_text(item, "Id", x->id);
    return hf_ddb_turn_put(t, flow, sk, item, HF_DDB_IF_SAME, err);
}

static int put_input(struct hf_ddb_turn *t, const struct hf_execution *x,
                     const struct hf_request *req, struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    if (req->input_size > HF_DDB_INPUT_MAX)
        return hf_fail(err, HF_TOO_LARGE,
                       "the input has %zu bytes; DynamoDB keeps at most %d in an item",
                       req->input_size, HF_DDB_INPUT_MAX);
    if (!req->input_size)
        return 0;
    json_t *item = hf_ddb_object();
    hf_ddb_set_bytes(item, "Bytes", req->input, req->input_size);
    hf_ddb_run_pk(x->id, pk);
    return hf_ddb_turn_put(t, pk, "INPUT", item, HF_DDB_BLINDLY, err);
}

static int insert_run(struct hf_ddb_turn *t, const struct hf_execution *x,
                      const struct hf_request *req, struct hf_error *err)
{
    char flow[HF_DDB_KEY_MAX], sk[HF_DDB_KEY_MAX], hash[2 * HF_SHA256_LEN + 1];
    int64_t seq = hf_ddb_turn_stamp(t);
    hf_ddb_flow_pk(x->workflow, flow);
    snprintf(sk, sizeof sk, "RUN#%016lld", (long long)seq);
    hash_input(req, hash);
    json_t *pointer = hf_ddb_object();
    hf_ddb_set_text(pointer, "Id", x->id);
    int r = hf_ddb_turn_put(t, flow, sk, pointer, HF_DDB_BLINDLY, err);
    if (r >= 0)
        r = write_run(t, x, seq, hash, err);
    if (r >= 0)
        r = take_key(t, flow, x, err);
    if (r >= 0)
        r = put_input(t, x, req, err);
    if (r >= 0)
        r = note_limited(t, NULL, x, err);
    if (r >= 0)
        r = hf_ddb_turn_put(t, "FLOWS", x->workflow, hf_ddb_object(), HF_DDB_BLINDLY, err);
    return r < 0 ? r : move(t, NULL, x, seq, err);
}

static int put_output(struct hf_ddb_turn *t, const char *id, const struct hf_request *req,
                      struct hf_error *err)
{
    char pk[HF_DDB_KEY_MAX];
    json_t *item = hf_ddb_object();
    if (req->output_head_size)
        hf_ddb_set_bytes(item, "Head", req->output_head, req->output_head_size);
    if (req->output_tail_size)
        hf_ddb_set_bytes(item, "Tail", req->output_tail, req->output_tail_size);
    hf_ddb_set_int(item, "Skipped", req->output_skipped);
    hf_ddb_run_pk(id, pk);
    return hf_ddb_turn_put(t, pk, "OUTPUT", item, HF_DDB_BLINDLY, err);
}

int hf_ddb_save_executions(struct hf_ddb_turn *t, const struct hf_ask *ask,
                           const struct hf_effects *fx, struct hf_error *err)
{
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < fx->n_executions; i++) {
        const struct hf_kept_execution *kept = &fx->executions[i];
        r = kept->is_new ? insert_run(t, &kept->x, ask->req, err)
                         : hf_ddb_update_run(t, &kept->x, err);
    }
    return r >= 0 && fx->output_of[0] ? put_output(t, fx->output_of, ask->req, err) : r;
}

/* ---- looking -------------------------------------------------------------------------------- */

int hf_ddb_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                     struct hf_error *err)
{
    struct hf_ddb *s = hf_ddb_of(store);
    char pk[HF_DDB_KEY_MAX];
    json_t *item;
    hf_ddb_run_pk(id, pk);
    int r = hf_ddb_make_ready(s, err);
    if (r < 0 || (r = hf_ddb_fetch(s, pk, "RUN", &item, err)) < 0)
        return r;
    r = item ? hf_ddb_read_run(item, ret, err)
             : hf_fail(err, HF_NOT_FOUND, "there is no execution %s", id);
    json_decref(item);
    return r;
}

static int tell_bytes(const json_t *item, const char *name, int64_t skipped, hf_data_fn fn,
                      void *arg, struct hf_error *err)
{
    void *bytes;
    size_t n;
    int r = hf_ddb_get_bytes(item, name, &bytes, &n, err);
    if (r >= 0 && (n || skipped))
        r = fn(arg, bytes ? bytes : "", n, skipped) != 0;
    if (r >= 0)
        free(bytes);
    return r;
}

int hf_ddb_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                          hf_data_fn fn, void *arg, struct hf_error *err)
{
    struct hf_execution x;
    char pk[HF_DDB_KEY_MAX];
    json_t *item;
    hf_ddb_run_pk(id, pk);
    int r = hf_ddb_execution(store, id, &x, err);
    if (r < 0 || (r = hf_ddb_fetch(hf_ddb_of(store), pk,
                                   which == HF_DATA_INPUT ? "INPUT" : "OUTPUT", &item, err)) < 0)
        return r;
    if (which == HF_DATA_INPUT)
        r = tell_bytes(item, "Bytes", 0, fn, arg, err);
    else if ((r = tell_bytes(item, "Head", 0, fn, arg, err)) == 0)
        r = tell_bytes(item, "Tail", hf_ddb_get_int(item, "Skipped"), fn, arg, err);
    json_decref(item);
    return r < 0 ? r : 0;
}
