/* What is locked: "{workflow}/{key}", "{input.user.id}". */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "error.h"
#include "text.h"
#include "workflows.h"

/* What stands in braces, one of these. */
enum kind { WORKFLOW, KEY, INPUT, UNKNOWN };

static enum kind kind_of(const char *word, size_t n)
{
    if (n == 8 && memcmp(word, "workflow", n) == 0)
        return WORKFLOW;
    if (n == 3 && memcmp(word, "key", n) == 0)
        return KEY;
    return n > 6 && memcmp(word, "input.", 6) == 0 ? INPUT : UNKNOWN;
}

int hf_template_check(const char *text, struct hf_error *err)
{
    for (const char *at = text; (at = strpbrk(at, "{}")); at++) {
        size_t n = *at == '{' ? strcspn(at + 1, "{}") : 0;
        if (*at == '}' || at[1 + n] != '}')
            return hf_fail(err, HF_INVALID, "'%.80s' has a brace without its partner", text);
        if (kind_of(at + 1, n) == UNKNOWN)
            return hf_fail(err, HF_INVALID,
                           "{%.*s} is not known; expected {workflow}, {key} or {input.NAME}",
                           (int)(n < 80 ? n : 80), at + 1);
        at += n + 1;
    }
    return 0;
}

/* The value at "a.b.c" in the input, as text. */
static int add_input(struct hf_buf *out, const json_t *input, const char *path, size_t n,
                     struct hf_error *err)
{
    char word[HF_NAME_MAX + 1];
    const json_t *at = input;
    for (size_t i = 0; i < n;) {
        size_t len = strcspn(path + i, ".}");
        if (len >= sizeof word)
            break;
        memcpy(word, path + i, len);
        word[len] = '\0';
        at = json_object_get(at, word);
        i += len + 1;
    }
    if (json_is_string(at))
        hf_buf_add(out, json_string_value(at), json_string_length(at));
    else if (json_is_integer(at))
        hf_buf_printf(out, "%lld", (long long)json_integer_value(at));
    else
        return hf_fail(err, HF_INVALID,
                       "the input has no text or whole number at %.*s, of which the lock's name is "
                       "made",
                       (int)(n < 80 ? n : 80), path);
    return 0;
}

struct values {
    const struct hf_workflow *workflow;
    const char *key;
    const void *input;
    size_t input_size;
};

static int add_value(struct hf_buf *out, const char *word, size_t n, const struct values *v,
                     struct hf_error *err)
{
    switch (kind_of(word, n)) {
    case WORKFLOW:
        hf_buf_puts(out, v->workflow->name);
        return 0;
    case KEY:
        if (!v->key)
            return hf_fail(err, HF_INVALID, "%s is locked by its key, and none was given",
                           v->workflow->name);
        hf_buf_puts(out, v->key);
        return 0;
    default:
        break;
    }
    json_t *json = json_loadb(v->input_size ? v->input : "", v->input_size,
                              JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!json)
        return hf_fail(err, HF_INVALID, "the input is not JSON, of which %s makes its lock's name",
                       v->workflow->name);
    int r = add_input(out, json, word + 6, n - 6, err);
    json_decref(json);
    return r;
}

int hf_workflow_lock(const struct hf_workflow *workflow, const char *key, const void *input,
                     size_t input_size, char ret[HF_NAME_MAX + 1], struct hf_error *err)
{
    struct values v = {workflow, key, input, input_size};
    struct hf_buf name = HF_BUF(HF_NAME_MAX + 1);
    int r = 0;
    for (const char *at = workflow->lock ? workflow->lock : "{workflow}"; r >= 0 && *at;) {
        size_t n = strcspn(at, "{");
        hf_buf_add(&name, at, n);
        at += n;
        if (*at) {
            n = strcspn(at, "}");
            r = add_value(&name, at + 1, n - 1, &v, err);
            at += n + 1;
        }
    }
    if (r >= 0 && name.failed)
        r = hf_fail(err, HF_INVALID, "the lock's name would have more than %d bytes", HF_NAME_MAX);
    if (r >= 0)
        r = hf_check_name(name.data ? name.data : "", err);
    if (r >= 0)
        strcpy(ret, name.data);
    hf_buf_clear(&name);
    return r;
}
