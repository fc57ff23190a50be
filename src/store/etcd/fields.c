#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "etcd_store.h"

/* ---- by tables ------------------------------------------------------------------------------ */

static json_t *encode_field(const struct hf_etcd_field *f, const void *at)
{
    char text[HF_PROCESSES_TEXT_MAX];
    int64_t number = 0;
    switch (f->type) {
    case HF_FIELD_TEXT:
        return *(const char *)at ? json_string(at) : NULL;
    case HF_FIELD_ID:
        hf_lock_id_format(at, text);
        return json_string(text);
    case HF_FIELD_PROCESSES:
        if (!((const struct hf_processes *)at)->n)
            return NULL;
        hf_processes_format(at, text);
        return json_string(text);
    case HF_FIELD_BOOL:
        number = *(const bool *)at;
        break;
    case HF_FIELD_INT32:
        number = *(const int32_t *)at;
        break;
    case HF_FIELD_INT64:
        number = *(const int64_t *)at;
        break;
    }
    return number ? json_integer(number) : NULL;
}

json_t *hf_etcd_encode(const struct hf_etcd_field *fields, size_t n, const void *from)
{
    json_t *object = json_object();
    for (size_t i = 0; object && i < n; i++) {
        json_t *value = encode_field(&fields[i], (const char *)from + fields[i].at);
        if (value)
            json_object_set_new_nocheck(object, fields[i].name, value);
    }
    return object;
}

static void decode_field(const struct hf_etcd_field *f, const json_t *value, void *at)
{
    const char *text = json_string_value(value);
    int64_t number = json_integer_value(value);
    switch (f->type) {
    case HF_FIELD_TEXT:
        snprintf(at, f->size, "%s", text ? text : "");
        break;
    case HF_FIELD_ID:
        hf_lock_id_parse(text ? text : "", at);
        break;
    case HF_FIELD_PROCESSES:
        hf_processes_parse(text ? text : "", at);
        break;
    case HF_FIELD_BOOL:
        *(bool *)at = number;
        break;
    case HF_FIELD_INT32:
        *(int32_t *)at = (int32_t)number;
        break;
    case HF_FIELD_INT64:
        *(int64_t *)at = number;
        break;
    }
}

void hf_etcd_decode(const struct hf_etcd_field *fields, size_t n, const json_t *object, void *to)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        if (value)
            decode_field(&fields[i], value, (char *)to + fields[i].at);
    }
}

json_t *hf_etcd_parse(const struct hf_etcd_kv *kv)
{
    return json_loadb(kv->value, kv->len, 0, NULL);
}

int hf_etcd_put_json(struct hf_etcd_txn *t, const char *key, json_t *object, int64_t lease,
                     struct hf_error *err)
{
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    int r = text ? hf_etcd_put(t, key, text, strlen(text), lease, err)
                 : hf_fail(err, HF_NOMEM, "out of memory");
    free(text);
    return r;
}
