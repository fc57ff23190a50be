/* A small JSON path: $.a.b[0].c, $["a key"]; one value, no wildcards. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "text.h"
#include "workflows.h"

enum { STEP_MAX = 200 };

/* One step of the way: into an object by name, or into an array by index. */
struct step {
    bool by_name;
    char name[STEP_MAX + 1];
    size_t index;
};

/* A step in brackets, of which `at` is the inside: its end, or NULL. */
static const char *read_bracket(const char *at, struct step *ret)
{
    char *end;
    if (*at == '"' || *at == '\'') {
        size_t n = strcspn(at + 1, *at == '"' ? "\"" : "'");
        if (n > STEP_MAX || at[n + 1] != *at || at[n + 2] != ']')
            return NULL;
        *ret = (struct step){.by_name = true};
        memcpy(ret->name, at + 1, n);
        return at + n + 3;
    }
    if (*at < '0' || *at > '9')
        return NULL;
    errno = 0;
    *ret = (struct step){.index = strtoul(at, &end, 10)};
    return errno || *end != ']' ? NULL : end + 1;
}

/* The step that begins at `at`: where the next one does, or NULL where it is none. */
static const char *read_step(const char *at, struct step *ret)
{
    if (*at == '[')
        return read_bracket(at + 1, ret);
    size_t n = *at == '.' ? strcspn(at + 1, ".[]\"'* ") : 0;
    if (n == 0 || n > STEP_MAX)
        return NULL;
    *ret = (struct step){.by_name = true};
    memcpy(ret->name, at + 1, n);
    return at + 1 + n;
}

int hf_key_path_check(const char *text, struct hf_error *err)
{
    struct step step;
    const char *at = *text == '$' ? text + 1 : NULL;
    while (at && *at)
        at = read_step(at, &step);
    return at && text[1] ? 0
                         : hf_fail(err, HF_INVALID,
                                   "'%.80s' is not a path to one value, such as $.id, "
                                   "$.data.items[0].id or $[\"a key\"]",
                                   text);
}

static const json_t *follow(const json_t *at, const char *path)
{
    struct step step;
    for (path++; at && *path;) {
        path = read_step(path, &step);
        if (!path)
            return NULL;
        at = step.by_name ? json_object_get(at, step.name) : json_array_get(at, step.index);
    }
    return at;
}

static int take_value(const struct hf_workflow *workflow, const json_t *value,
                      char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    if (json_is_integer(value))
        snprintf(ret, HF_KEY_MAX + 1, "%lld", (long long)json_integer_value(value));
    else if (json_is_string(value)) {
        const char *text = json_string_value(value);
        if (strlen(text) != json_string_length(value) ||
            hf_check_text("key", text, HF_KEY_MAX, NULL) < 0)
            return hf_fail(err, HF_INVALID,
                           "the body's value at %s can't be a key: it must be text of at most %d "
                           "bytes without control characters",
                           workflow->key_path, HF_KEY_MAX);
        strcpy(ret, text);
    }
    return 0;
}

int hf_workflow_key(const struct hf_workflow *workflow, const void *input, size_t input_size,
                    char ret[HF_KEY_MAX + 1], struct hf_error *err)
{
    json_error_t why;
    ret[0] = '\0';
    if (!workflow->key_path)
        return 0;
    json_t *json = json_loadb(input_size ? input : "", input_size,
                              JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!json)
        return hf_fail(err, HF_INVALID,
                       "the body is not JSON, of which %s takes its key: %.150s (line %d, column "
                       "%d)",
                       workflow->name, why.text, why.line, why.column);
    int r = take_value(workflow, follow(json, workflow->key_path), ret, err);
    json_decref(json);
    return r;
}
