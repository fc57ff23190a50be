/* Executions through the service: what is asked about them. Changes are batches, as all others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "clock.h"
#include "error.h"
#include "http_store.h"
#include "wire.h"

enum { PAGE = 1000, DUE_MAX = 256 };

/* /v1/executions/ID and what follows; -HF_NOT_FOUND where there can't be such an id. */
static int path_of(const char *id, const char *rest, struct hf_buf *ret, struct hf_error *err)
{
    if (strlen(id) != HF_UUID_LEN || strspn(id, "0123456789abcdef-") != HF_UUID_LEN)
        return hf_fail(err, HF_NOT_FOUND, "there is no execution %.40s", id);
    hf_buf_printf(ret, "/v1/executions/%s%s", id, rest);
    return ret->failed ? hf_fail(err, HF_NOMEM, "out of memory") : 0;
}

/* ---- one ------------------------------------------------------------------------------------ */

static int get_json(struct hf_store *store, const char *id, const char *rest, json_t **ret,
                    struct hf_error *err)
{
    struct hf_buf path = HF_BUF(200);
    int r = path_of(id, rest, &path, err);
    if (r >= 0)
        r = hf_http_call(hf_http_of(store), path.data, NULL, ret, err);
    hf_buf_clear(&path);
    return r;
}

int hf_http_execution(struct hf_store *store, const char *id, struct hf_execution *ret,
                      struct hf_error *err)
{
    json_t *json = NULL;
    int r = get_json(store, id, "?brief=true", &json, err);
    if (r >= 0)
        r = hf_wire_read_execution(json, ret, err);
    json_decref(json);
    return r;
}

static int read_input(struct hf_store *store, const char *id, hf_data_fn fn, void *arg,
                      struct hf_error *err)
{
    struct hf_buf path = HF_BUF(200), bytes = HF_BUF(HF_INPUT_MAX);
    int r = path_of(id, "/input", &path, err);
    if (r >= 0)
        r = hf_http_bytes(hf_http_of(store), path.data, &bytes, err);
    if (r >= 0 && bytes.len)
        fn(arg, bytes.data, bytes.len, 0);
    hf_buf_clear(&path);
    hf_buf_clear(&bytes);
    return r;
}

/* Hand on "NAME", of which "NAMEEncoding" says how it is written. Positive: the caller has enough. */
static int read_part(const json_t *json, const char *name, int64_t skipped, hf_data_fn fn,
                     void *arg, struct hf_error *err)
{
    char encoding[32];
    snprintf(encoding, sizeof encoding, "%sEncoding", name);
    const json_t *value = json_object_get(json, name);
    const char *how = json_string_value(json_object_get(json, encoding));
    const char *text = json_string_value(value);
    size_t n = json_string_length(value);
    void *bytes = NULL;
    if (!text || !how || (strcmp(how, "base64") == 0 && !hf_base64_read(text, n, &bytes, &n)))
        return hf_fail(err, HF_UNAVAILABLE, "the service gave an output that can't be read");
    int stop = n || skipped ? fn(arg, bytes ? bytes : text, n, skipped) : 0;
    free(bytes);
    return stop != 0;
}

static int read_output(struct hf_store *store, const char *id, hf_data_fn fn, void *arg,
                       struct hf_error *err)
{
    json_t *json = NULL;
    int r = get_json(store, id, "/output", &json, err);
    int64_t skipped = json_integer_value(json_object_get(json, "outputSkipped"));
    if (r >= 0)
        r = read_part(json, "output", 0, fn, arg, err);
    if (r == 0)
        r = read_part(json, "outputTail", skipped, fn, arg, err);
    json_decref(json);
    return r < 0 ? r : 0;
}

int hf_http_execution_data(struct hf_store *store, const char *id, enum hf_execution_data which,
                           hf_data_fn fn, void *arg, struct hf_error *err)
{
    return which == HF_DATA_INPUT ? read_input(store, id, fn, arg, err)
                                  : read_output(store, id, fn, arg, err);
}

/* ---- lists ---------------------------------------------------------------------------------- */

struct reader {
    hf_execution_fn fn;
    void *arg;
    int64_t left;
};

static int read_one(const json_t *item, void *arg, struct hf_error *err)
{
    struct reader *reader = arg;
    struct hf_execution x;
    int r = hf_wire_read_execution(item, &x, err);
    if (r < 0)
        return r;
    return reader->fn(reader->arg, &x) != 0 || --reader->left == 0;
}

int hf_http_executions(struct hf_store *store, const struct hf_execution_query *query,
                       hf_execution_fn fn, void *arg, struct hf_error *err)
{
    struct hf_buf path = HF_BUF(HF_URL_MAX);
    struct reader reader = {fn, arg, query->limit > 0 ? query->limit : INT64_MAX};
    hf_buf_printf(&path, "/v1/executions?limit=%d", reader.left < PAGE ? (int)reader.left : PAGE);
    if (query->state >= 0)
        hf_buf_printf(&path, "&state=%s",
                      hf_execution_state_name((enum hf_execution_state)query->state));
    if (query->workflow) {
        hf_buf_puts(&path, "&workflow=");
        hf_http_escape(&path, query->workflow);
    }
    struct hf_http_pages pages = {path.data ? path.data : "", "cursor", ""};
    snprintf(pages.cursor, sizeof pages.cursor, "%s", query->before ? query->before : "");
    int r = hf_http_read_pages(hf_http_of(store), &pages, read_one, &reader, err);
    hf_buf_clear(&path);
    return r;
}

/* ---- what is due ---------------------------------------------------------------------------- */

/* Of which workflows; the object is left open. */
static void write_wanted(struct hf_buf *out, const struct hf_due *due)
{
    hf_buf_printf(out, "{\"verifies\":%s,\"workflows\":[", due->verifies ? "true" : "false");
    for (size_t i = 0; i < due->n_workflows; i++) {
        if (i)
            hf_buf_putc(out, ',');
        hf_wire_string(out, due->workflows[i], strlen(due->workflows[i]));
    }
    hf_buf_putc(out, ']');
}

/* By the service's clock, which is the store's, and not by due->wall_ms. */
int hf_http_due(struct hf_store *store, const struct hf_due *due, struct hf_execution *ret,
                size_t *ret_n, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(60 << 10);
    json_t *json = NULL, *item;
    size_t i;
    write_wanted(&body, due);
    hf_buf_printf(&body, ",\"max\":%zu,\"skip\":%zu}",
                  due->limit < DUE_MAX ? due->limit : (size_t)DUE_MAX, due->skip);
    int r = body.failed ? hf_fail(err, HF_TOO_LARGE, "too many workflows at once")
                        : hf_http_ask(hf_http_of(store), "/v1/executions/due", &body, &json, err);
    const json_t *items = json_object_get(json, "items");
    if (r >= 0 && json_array_size(items) > due->limit)
        r = hf_fail(err, HF_UNAVAILABLE, "the service gave more than was asked for");
    json_array_foreach(items, i, item)
    {
        if (r >= 0)
            r = hf_wire_read_execution(item, &ret[i], err);
    }
    if (r >= 0)
        *ret_n = json_array_size(items);
    json_decref(json);
    hf_buf_clear(&body);
    return r;
}

int hf_http_last_key(struct hf_store *store, const char *workflow, const char *from, const char *to,
                     char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    struct hf_buf path = HF_BUF(HF_URL_MAX);
    json_t *json = NULL;
    hf_buf_puts(&path, "/v1/executions/last-key?workflow=");
    hf_http_escape(&path, workflow);
    hf_buf_puts(&path, "&from=");
    hf_http_escape(&path, from);
    hf_buf_puts(&path, "&to=");
    hf_http_escape(&path, to);
    int r = path.failed ? hf_fail(err, HF_NOMEM, "out of memory")
                        : hf_http_call(hf_http_of(store), path.data, NULL, &json, err);
    const char *key = json_string_value(json_object_get(json, "key"));
    if (r >= 0 && (!key || strlen(key) > HF_KEY_MAX))
        r = hf_fail(err, HF_UNAVAILABLE, "the service gave a key that can't be read");
    if (r >= 0)
        strcpy(ret, key);
    json_decref(json);
    hf_buf_clear(&path);
    return r;
}

/* ---- workers that sleep --------------------------------------------------------------------- */

/* When the next one is due is told from the service's now, as its clock may be another. */
int hf_http_idle(struct hf_store *store, const struct hf_lock_id *id, const struct hf_due *wanted,
                 int64_t *ret_next_ms, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(60 << 10);
    char path[100], hex[HF_LOCK_ID_LEN + 1];
    json_t *json = NULL;
    hf_lock_id_format(id, hex);
    snprintf(path, sizeof path, "/v1/executions/%s?id=%s", wanted ? "idle" : "awake", hex);
    if (wanted)
        write_wanted(&body, wanted);
    hf_buf_puts(&body, wanted ? "}" : "{}");
    int r = body.failed ? hf_fail(err, HF_TOO_LARGE, "too many workflows at once")
                        : hf_http_ask(hf_http_of(store), path, &body, &json, err);
    const json_t *in_ms = json_object_get(json, "nextInMs");
    if (r >= 0 && wanted)
        *ret_next_ms = json_is_integer(in_ms) ? hf_clock_wall_ms() + json_integer_value(in_ms) : 0;
    json_decref(json);
    hf_buf_clear(&body);
    return r;
}
