#include <stdlib.h>
#include <string.h>

#include "base64.h"
#include "error.h"
#include "etcd_store.h"

/* ---- pages ---------------------------------------------------------------------------------- */

void hf_etcd_kv_clear(struct hf_etcd_kv *kv)
{
    free(kv->key);
    free(kv->value);
    *kv = (struct hf_etcd_kv){0};
}

void hf_etcd_page_clear(struct hf_etcd_page *page)
{
    for (size_t i = 0; i < page->n; i++)
        hf_etcd_kv_clear(&page->of[i]);
    free(page->of);
    *page = (struct hf_etcd_page){0};
}

struct hf_etcd_kv *hf_etcd_page_add(struct hf_etcd_page *page)
{
    if (page->n == page->size) {
        size_t size = 2 * page->size + 8;
        struct hf_etcd_kv *of = realloc(page->of, size * sizeof *of);
        if (!of)
            return NULL;
        page->of = of;
        page->size = size;
    }
    struct hf_etcd_kv *kv = &page->of[page->n++];
    *kv = (struct hf_etcd_kv){0};
    return kv;
}

/* ---- asking --------------------------------------------------------------------------------- */

void hf_etcd_put_text(struct hf_buf *out, const char *name, const void *bytes, size_t n)
{
    hf_buf_printf(out, "\"%s\":\"", name);
    hf_base64_write(out, bytes, n);
    hf_buf_putc(out, '"');
}

void hf_etcd_put_span(struct hf_buf *out, const struct hf_etcd_span *span)
{
    hf_buf_putc(out, '{');
    hf_etcd_put_text(out, "key", span->from, strlen(span->from));
    if (span->to) {
        hf_buf_putc(out, ',');
        hf_etcd_put_text(out, "range_end", span->to, strlen(span->to));
    }
    if (span->limit)
        hf_buf_printf(out, ",\"limit\":\"%lld\"", (long long)span->limit);
    if (span->revision)
        hf_buf_printf(out, ",\"revision\":\"%lld\"", (long long)span->revision);
    if (span->descending)
        hf_buf_puts(out, ",\"sort_order\":\"DESCEND\",\"sort_target\":\"KEY\"");
    if (span->keys_only)
        hf_buf_puts(out, ",\"keys_only\":true");
    if (span->count_only)
        hf_buf_puts(out, ",\"count_only\":true");
    hf_buf_putc(out, '}');
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Numbers arrive as strings; what is missing is 0. */
int64_t hf_etcd_number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10)
                                 : json_integer_value(value);
}

int64_t hf_etcd_revision(const json_t *answer)
{
    return hf_etcd_number(json_object_get(answer, "header"), "revision");
}

/* The bytes with a NUL behind them; NULL: no memory, or not base64. */
static char *take_bytes(const json_t *value, size_t *ret_n)
{
    void *bytes = NULL;
    size_t n = 0;
    if (value && !hf_base64_read(json_string_value(value), json_string_length(value), &bytes, &n))
        return NULL;
    char *text = realloc(bytes, n + 1);
    if (!text) {
        free(bytes);
        return NULL;
    }
    text[n] = '\0';
    *ret_n = n;
    return text;
}

bool hf_etcd_take_kv(const json_t *json, struct hf_etcd_kv *ret)
{
    size_t ignored;
    ret->key = take_bytes(json_object_get(json, "key"), &ignored);
    ret->value = take_bytes(json_object_get(json, "value"), &ret->len);
    ret->mod = hf_etcd_number(json, "mod_revision");
    ret->lease = hf_etcd_number(json, "lease");
    return ret->key && ret->value;
}

int hf_etcd_take_page(const json_t *answer, struct hf_etcd_page *ret, struct hf_error *err)
{
    const json_t *kvs = json_object_get(answer, "kvs");
    *ret = (struct hf_etcd_page){.count = hf_etcd_number(answer, "count"),
                                 .revision = hf_etcd_revision(answer),
                                 .more = json_is_true(json_object_get(answer, "more"))};
    for (size_t i = 0; i < json_array_size(kvs); i++) {
        struct hf_etcd_kv *kv = hf_etcd_page_add(ret);
        if (!kv || !hf_etcd_take_kv(json_array_get(kvs, i), kv)) {
            hf_etcd_page_clear(ret);
            return hf_fail(err, HF_NOMEM, "out of memory");
        }
    }
    return 0;
}

/* ---- reading -------------------------------------------------------------------------------- */

int hf_etcd_read(struct hf_etcd *s, const struct hf_etcd_span *span, struct hf_etcd_page *ret,
                 struct hf_error *err)
{
    struct hf_buf body = HF_BUF(HF_ETCD_BODY_MAX);
    json_t *answer;
    hf_etcd_put_span(&body, span);
    int r = hf_etcd_call(s, "/v3/kv/range", &body, false, &answer, err);
    hf_buf_clear(&body);
    if (r < 0)
        return r;
    r = hf_etcd_take_page(answer, ret, err);
    json_decref(answer);
    return r;
}

static int take_pages(const json_t *answer, size_t n, struct hf_etcd_page *ret,
                      struct hf_error *err)
{
    const json_t *responses = json_object_get(answer, "responses");
    if (json_array_size(responses) != n)
        return hf_fail(err, HF_UNAVAILABLE,
                       "etcd answers another number of reads than it was asked for");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(responses, i);
        int r = hf_etcd_take_page(json_object_get(one, "response_range"), &ret[i], err);
        while (r < 0 && i-- > 0)
            hf_etcd_page_clear(&ret[i]);
        if (r < 0)
            return r;
        ret[i].revision = hf_etcd_revision(answer);
    }
    return 0;
}

int hf_etcd_read_all(struct hf_etcd *s, const struct hf_etcd_span *spans, size_t n,
                     struct hf_etcd_page *ret, struct hf_error *err)
{
    struct hf_buf body = HF_BUF(HF_ETCD_BODY_MAX);
    json_t *answer;
    hf_buf_puts(&body, "{\"success\":[");
    for (size_t i = 0; i < n; i++) {
        hf_buf_puts(&body, i ? ",{\"request_range\":" : "{\"request_range\":");
        hf_etcd_put_span(&body, &spans[i]);
        hf_buf_putc(&body, '}');
    }
    hf_buf_puts(&body, "]}");
    int r = hf_etcd_call(s, "/v3/kv/txn", &body, false, &answer, err);
    hf_buf_clear(&body);
    if (r < 0)
        return r;
    r = take_pages(answer, n, ret, err);
    json_decref(answer);
    return r;
}
