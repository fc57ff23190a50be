#include "workflows.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <yaml.h>

#include "cron.h"
#include "error.h"
#include "nearest.h"
#include "rate.h"
#include "text.h"
#include "zones.h"

#define A_SLOT_KEY "cron:2026-01-01T00:00:00.000Z" /* as long as any; see scheduler.h */
#define DEFAULT_PATH "/etc/holdfast/holdfast.yaml"
enum {
    FILE_MAX_BYTES = 1 << 20,
    RETRIES_MAX = 1000000,
    WORDS_MAX = 1000,
    JITTER_MAX_MS = 24 * 3600 * 1000,
    KEEP_MIN_MS = 1000,
    KEEP_COUNT_MAX = 1000000 /* so many are counted again and again */
};
#define KEEP_MAX_MS (INT64_C(36525) * 24 * 3600 * 1000) /* a century */

/* ---- the table ------------------------------------------------------------------------------ */

enum type { DURATION, NUMBER, RATE, CHOICE, TEXT, TEMPLATE, PATH, SCHEDULE, ZONE, WORDS, MAP };

struct setting {
    const char *key;
    enum type type;
    size_t offset;
    int64_t min, max, fallback;
    const char *const *choices; /* CHOICE: in the order of their enum, ends with NULL */
};

static const char *const overlaps[] = {"reject", "queue", "skip", "replace", "cancel", NULL};
static const char *const on_losts[] = {"abort", "retry", "verify", NULL};
static const char *const catch_ups[] = {"last", "none", "all", NULL};

#define AT(member) offsetof(struct hf_workflow, member)
static const struct setting settings[] = {
    {"command", WORDS, AT(command), 1, 0, 0, NULL},
    {"ttl", DURATION, AT(ttl_ms), HF_TTL_MIN_MS, HF_TTL_MAX_MS, HF_TTL_DEFAULT_MS, NULL},
    {"timeout", DURATION, AT(timeout_ms), 1, INT64_MAX, 0, NULL},
    {"overlap", CHOICE, AT(overlap), 0, 0, HF_OVERLAP_REJECT, overlaps},
    {"queue-limit", NUMBER, AT(queue_limit), 1, INT32_MAX, 100, NULL},
    {"concurrency", NUMBER, AT(concurrency), 1, INT32_MAX, 0, NULL},
    {"rate", RATE, AT(rate_us), 0, 0, 0, NULL},
    {"retries", NUMBER, AT(retries), 0, RETRIES_MAX, -1, NULL},
    {"retry-backoff", DURATION, AT(retry_backoff_ms), 0, INT64_MAX, 5000, NULL},
    {"on-lost", CHOICE, AT(on_lost), 0, 0, HF_ON_LOST_ABORT, on_losts},
    {"verify", WORDS, AT(verify), 1, 0, 0, NULL},
    {"lock", TEMPLATE, AT(lock), 1, 0, 0, NULL},
    {"schedule", SCHEDULE, AT(schedule), 1, 0, 0, NULL},
    {"time-zone", ZONE, AT(time_zone), 1, 0, 0, NULL},
    {"jitter", DURATION, AT(jitter_ms), 0, JITTER_MAX_MS, 0, NULL},
    {"catch-up", CHOICE, AT(catch_up), 0, 0, HF_CATCH_UP_LAST, catch_ups},
    {"keep", DURATION, AT(keep_ms), KEEP_MIN_MS, KEEP_MAX_MS, HF_KEEP_DEFAULT_MS, NULL},
    {"keep-count", NUMBER, AT(keep_count), 1, KEEP_COUNT_MAX, 0, NULL},
    {"key-path", PATH, AT(key_path), 1, 0, 0, NULL},
    {"secret-files", WORDS, AT(secret_files), 1, 0, 0, NULL},
    {"user", TEXT, AT(user), 1, 0, 0, NULL},
    {"cwd", TEXT, AT(cwd), 1, 0, 0, NULL},
    {"env", MAP, AT(env), 0, 0, 0, NULL},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* ---- errors that say where ------------------------------------------------------------------ */

struct reader {
    const char *path;
    yaml_document_t document;
    const char *workflow; /* that is being read, or NULL */
    const char *key;      /* its setting, or NULL */
    struct hf_error *err;
};

/* FILE:LINE: WORKFLOW.KEY: what was expected */
static int fail_at(const struct reader *r, const yaml_node_t *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail_at(const struct reader *r, const yaml_node_t *node, const char *format, ...)
{
    char what[HF_MESSAGE_MAX / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return hf_fail(r->err, HF_INVALID, "%s:%zu: %s%s%s%s%s", r->path, node->start_mark.line + 1,
                   r->workflow ? r->workflow : "", r->workflow && r->key ? "." : "",
                   r->key ? r->key : "", r->workflow || r->key ? ": " : "", what);
}

static int fail_nomem(const struct reader *r) { return hf_fail(r->err, HF_NOMEM, "out of memory"); }

/* ---- nodes ---------------------------------------------------------------------------------- */

static yaml_node_t *node_of(struct reader *r, int index)
{
    return yaml_document_get_node(&r->document, index);
}

static const char *kind_name(const yaml_node_t *node)
{
    return node->type == YAML_SEQUENCE_NODE  ? "a list"
           : node->type == YAML_MAPPING_NODE ? "a mapping"
                                             : "a text";
}

/* The text of a scalar without NULs; NULL with the error filled. */
static const char *text_of(const struct reader *r, const yaml_node_t *node, const char *expected)
{
    if (node->type != YAML_SCALAR_NODE) {
        fail_at(r, node, "expected %s, not %s", expected, kind_name(node));
        return NULL;
    }
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length) {
        fail_at(r, node, "expected %s, without a NUL in it", expected);
        return NULL;
    }
    return text;
}

/* ---- values --------------------------------------------------------------------------------- */

static int read_duration(struct reader *r, const struct setting *s, const yaml_node_t *node,
                         int64_t *ret)
{
    struct hf_error why;
    const char *text = text_of(r, node, "a duration such as 30s");
    if (!text)
        return -HF_INVALID;
    if (hf_parse_duration(text, ret, &why) < 0)
        return fail_at(r, node, "%s", why.message);
    if (*ret < s->min || *ret > s->max)
        return fail_at(r, node,
                       "'%.40s' is out of bounds; expected a duration from %lld ms to %lld ms",
                       text, (long long)s->min, (long long)s->max);
    return 0;
}

static int read_number(struct reader *r, const struct setting *s, const yaml_node_t *node,
                       int64_t *ret)
{
    const char *text = text_of(r, node, "a whole number");
    if (!text)
        return -HF_INVALID;
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || *end || end == text || n < s->min || n > s->max)
        return fail_at(r, node, "'%.40s' is not a whole number from %lld to %lld", text,
                       (long long)s->min, (long long)s->max);
    *ret = n;
    return 0;
}

static int read_rate(const struct reader *r, const yaml_node_t *node, int64_t *ret)
{
    struct hf_error why;
    const char *text = text_of(r, node, "a rate such as 10/s");
    if (!text)
        return -HF_INVALID;
    return hf_rate_parse(text, ret, &why) < 0 ? fail_at(r, node, "%s", why.message) : 0;
}

static int read_choice(struct reader *r, const struct setting *s, const yaml_node_t *node,
                       int64_t *ret)
{
    char all[120] = "";
    for (const char *const *c = s->choices; *c; c++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", c == s->choices ? "" : ", ",
                 *c);
    const char *text = text_of(r, node, all);
    if (!text)
        return -HF_INVALID;
    for (int64_t i = 0; s->choices[i]; i++)
        if (strcmp(text, s->choices[i]) == 0) {
            *ret = i;
            return 0;
        }
    return fail_at(r, node, "'%.40s' is none of %s", text, all);
}

/* Is it what a setting of this type must be? */
static int check_text(enum type type, const char *text, struct hf_error *err)
{
    struct hf_cron cron;
    struct hf_zone *zone = NULL;
    switch (type) {
    case TEMPLATE:
        return hf_template_check(text, err);
    case PATH:
        return hf_key_path_check(text, err);
    case SCHEDULE:
        return hf_cron_parse(text, &cron, err);
    case ZONE:
        if (hf_zone_load(text, &zone, err) < 0)
            return err->code;
        free(zone);
        return 0;
    default:
        return 0;
    }
}

static int read_text(struct reader *r, const struct setting *s, const yaml_node_t *node, char **ret)
{
    struct hf_error why;
    const char *text = text_of(r, node, "a text");
    if (!text)
        return -HF_INVALID;
    if (!*text && s->min)
        return fail_at(r, node, "expected a text that is not empty");
    if (check_text(s->type, text, &why) < 0)
        return fail_at(r, node, "%s", why.message);
    *ret = strdup(text);
    return *ret ? 0 : fail_nomem(r);
}

static int read_words(struct reader *r, const yaml_node_t *node, char ***ret)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return fail_at(r, node, "expected a list such as [/srv/do, --it], not %s", kind_name(node));
    size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (n == 0 || n > WORDS_MAX)
        return fail_at(r, node, "expected a list of 1 to %d texts", WORDS_MAX);
    *ret = calloc(n + 1, sizeof **ret);
    if (!*ret)
        return fail_nomem(r);
    for (size_t i = 0; i < n; i++) {
        const char *word = text_of(r, node_of(r, node->data.sequence.items.start[i]), "a text");
        if (!word)
            return -HF_INVALID;
        if (!((*ret)[i] = strdup(word)))
            return fail_nomem(r);
    }
    if (!(*ret)[0][0])
        return fail_at(r, node, "the first text of the list is empty");
    return 0;
}

static int read_variable(struct reader *r, const yaml_node_pair_t *pair, char **ret)
{
    const yaml_node_t *key = node_of(r, pair->key), *value = node_of(r, pair->value);
    const char *name = text_of(r, key, "a variable's name");
    const char *text = name ? text_of(r, value, "a text") : NULL;
    if (!text)
        return -HF_INVALID;
    if (!*name || strchr(name, '='))
        return fail_at(r, key, "'%.40s' can't be the name of a variable", name);
    if (strncmp(name, "HOLDFAST_", 9) == 0)
        return fail_at(r, key, "%.40s: what begins with HOLDFAST_ is set by holdfast", name);
    return asprintf(ret, "%s=%s", name, text) < 0 ? fail_nomem(r) : 0;
}

static int read_map(struct reader *r, const yaml_node_t *node, char ***ret)
{
    if (node->type != YAML_MAPPING_NODE)
        return fail_at(r, node, "expected a mapping such as {MODE: live}, not %s", kind_name(node));
    size_t n = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (n > WORDS_MAX)
        return fail_at(r, node, "expected at most %d variables", WORDS_MAX);
    *ret = calloc(n + 1, sizeof **ret);
    if (!*ret)
        return fail_nomem(r);
    for (size_t i = 0; i < n; i++) {
        int code = read_variable(r, &node->data.mapping.pairs.start[i], &(*ret)[i]);
        if (code < 0) {
            (*ret)[i] = NULL; /* asprintf leaves it undefined */
            return code;
        }
    }
    return 0;
}

static int read_value(struct reader *r, const struct setting *s, const yaml_node_t *node,
                      struct hf_workflow *w)
{
    void *at = (char *)w + s->offset;
    switch (s->type) {
    case DURATION:
        return read_duration(r, s, node, at);
    case NUMBER:
        return read_number(r, s, node, at);
    case RATE:
        return read_rate(r, node, at);
    case CHOICE:
        return read_choice(r, s, node, at);
    case TEXT:
    case TEMPLATE:
    case PATH:
    case SCHEDULE:
    case ZONE:
        return read_text(r, s, node, at);
    case WORDS:
        return read_words(r, node, at);
    case MAP:
        return read_map(r, node, at);
    }
    return 0;
}

/* ---- a workflow ----------------------------------------------------------------------------- */

static int unknown_key(const struct reader *r, const yaml_node_t *node, const char *key)
{
    struct hf_nearest guess = hf_nearest_to(key);
    for (size_t i = 0; i < N_SETTINGS; i++)
        hf_nearest_consider(&guess, settings[i].key);
    if (guess.best)
        return fail_at(r, node, "there is no such setting; did you mean %s?", guess.best);
    return fail_at(r, node, "there is no such setting; man holdfast-workflows lists them");
}

static int read_setting(struct reader *r, const yaml_node_pair_t *pair, struct hf_workflow *w,
                        bool seen[N_SETTINGS])
{
    const yaml_node_t *key_node = node_of(r, pair->key);
    const char *key = text_of(r, key_node, "the name of a setting");
    if (!key)
        return -HF_INVALID;
    r->key = key;
    size_t i = 0;
    while (i < N_SETTINGS && strcmp(settings[i].key, key) != 0)
        i++;
    if (i == N_SETTINGS)
        return unknown_key(r, key_node, key);
    if (seen[i])
        return fail_at(r, key_node, "is given twice");
    seen[i] = true;
    if (settings[i].offset == AT(secret_files))
        w->secret_files_line = key_node->start_mark.line + 1;
    int code = read_value(r, &settings[i], node_of(r, pair->value), w);
    if (code >= 0)
        r->key = NULL;
    return code;
}

static void set_defaults(struct hf_workflow *w)
{
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (settings[i].type <= CHOICE)
            *(int64_t *)((char *)w + settings[i].offset) = settings[i].fallback;
}

/* What one setting alone can't tell. */
static int check_workflow(const struct reader *r, const yaml_node_t *node,
                          const struct hf_workflow *w)
{
    char lock[HF_NAME_MAX + 1];
    struct hf_error why;
    if (!w->command)
        return fail_at(r, node, "needs a command, such as command: [/srv/do, --it]");
    if (w->on_lost == HF_ON_LOST_VERIFY && !w->verify)
        return fail_at(r, node, "on-lost: verify needs verify, the command that is to be asked");
    if (w->cwd && w->cwd[0] != '/')
        return fail_at(r, node, "cwd must be an absolute path, not '%.80s'", w->cwd);
    if (w->schedule && hf_workflow_lock(w, A_SLOT_KEY, NULL, 0, lock, &why) < 0)
        return fail_at(r, node, "what is started by its schedule has no input: %s", why.message);
    return 0;
}

static int read_workflow(struct reader *r, const yaml_node_pair_t *pair, struct hf_workflow *w)
{
    struct hf_error why;
    bool seen[N_SETTINGS] = {false};
    const yaml_node_t *key = node_of(r, pair->key), *node = node_of(r, pair->value);
    const char *name = text_of(r, key, "the name of a workflow");
    if (!name)
        return -HF_INVALID;
    if (hf_check_name(name, &why) < 0)
        return fail_at(r, key, "the name of a workflow: %s", why.message);
    strcpy(w->name, name);
    r->workflow = w->name;
    set_defaults(w);
    if (node->type != YAML_MAPPING_NODE)
        return fail_at(r, node, "expected a mapping of settings, not %s", kind_name(node));
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        int code = read_setting(r, p, w, seen);
        if (code < 0)
            return code;
    }
    if (w->retry_backoff_ms == 0)
        w->retry_backoff_ms = 1; /* to the store 0 means that FAILED is final */
    int code = check_workflow(r, key, w);
    r->workflow = NULL;
    return code;
}

/* ---- the file ------------------------------------------------------------------------------- */

static int read_workflows(struct reader *r, const yaml_node_t *node, struct hf_workflows *all)
{
    if (node->type != YAML_MAPPING_NODE)
        return fail_at(r, node, "expected a mapping from names to workflows, not %s",
                       kind_name(node));
    size_t n = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    all->of = calloc(n + 1, sizeof *all->of);
    if (!all->of)
        return fail_nomem(r);
    for (size_t i = 0; i < n; i++) {
        const yaml_node_pair_t *pair = &node->data.mapping.pairs.start[i];
        all->n++;
        int code = read_workflow(r, pair, &all->of[i]);
        if (code < 0)
            return code;
        for (size_t j = 0; j < i; j++)
            if (strcmp(all->of[j].name, all->of[i].name) == 0)
                return fail_at(r, node_of(r, pair->key), "the workflow '%s' is there twice",
                               all->of[i].name);
    }
    return 0;
}

static int read_document(struct reader *r, struct hf_workflows *all)
{
    const yaml_node_t *root = yaml_document_get_root_node(&r->document), *found = NULL;
    if (!root)
        return hf_fail(r->err, HF_INVALID, "%s:1: expected `workflows:`, but it is empty", r->path);
    if (root->type != YAML_MAPPING_NODE)
        return fail_at(r, root, "expected `workflows:`, not %s", kind_name(root));
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *key = node_of(r, p->key);
        const char *name = text_of(r, key, "`workflows:`");
        if (!name)
            return -HF_INVALID;
        r->key = name;
        if (strcmp(name, "workflows") != 0)
            return fail_at(r, key, "there is no such setting; did you mean workflows?");
        if (found)
            return fail_at(r, key, "is given twice");
        r->key = NULL;
        found = node_of(r, p->value);
    }
    return found ? read_workflows(r, found, all)
                 : fail_at(r, root, "expected `workflows:`, but there is nothing");
}

static int fail_syntax(const struct reader *r, const yaml_parser_t *parser)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return fail_nomem(r);
    return hf_fail(r->err, HF_INVALID, "%s:%zu: %s%s%s", r->path, parser->problem_mark.line + 1,
                   parser->problem ? parser->problem : "is not YAML", parser->context ? " " : "",
                   parser->context ? parser->context : "");
}

static int parse(FILE *file, struct reader *r, struct hf_workflows *all)
{
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return fail_nomem(r);
    yaml_parser_set_input_file(&parser, file);
    int code;
    if (!yaml_parser_load(&parser, &r->document))
        code = fail_syntax(r, &parser);
    else {
        code = read_document(r, all);
        yaml_document_delete(&r->document);
    }
    yaml_parser_delete(&parser);
    return code;
}

const char *hf_workflows_path(const char *named)
{
    const char *from_environment = getenv("HOLDFAST_CONFIG");
    if (named)
        return named;
    return from_environment && *from_environment ? from_environment : DEFAULT_PATH;
}

static FILE *open_file(const char *path, struct hf_error *err)
{
    struct stat st;
    FILE *file = fopen(path, "re");
    if (!file)
        hf_set_error_errno(err, HF_INVALID, errno,
                           "can't read the workflows in %s; name the file with --config", path);
    else if (fstat(fileno(file), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX_BYTES) {
        hf_set_error(err, HF_INVALID, "%s is not a regular file of at most %d bytes", path,
                     FILE_MAX_BYTES);
        fclose(file);
        file = NULL;
    }
    return file;
}

int hf_workflows_load(const char *named, struct hf_workflows **ret, struct hf_error *err)
{
    const char *path = hf_workflows_path(named);
    struct reader r = {.path = path, .err = err};
    FILE *file = open_file(path, err);
    if (!file)
        return -HF_INVALID;
    struct hf_workflows *all = calloc(1, sizeof *all);
    int code = all && (all->path = strdup(path)) ? parse(file, &r, all) : fail_nomem(&r);
    fclose(file);
    if (code < 0) {
        hf_workflows_free(all);
        return code;
    }
    *ret = all;
    return 0;
}

static void free_words(char **words)
{
    for (char **w = words; w && *w; w++)
        free(*w);
    free(words);
}

void hf_workflows_free(struct hf_workflows *all)
{
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++)
        for (size_t j = 0; j < N_SETTINGS; j++) {
            void *at = (char *)&all->of[i] + settings[j].offset;
            if (settings[j].type == WORDS || settings[j].type == MAP)
                free_words(*(char ***)at);
            else if (settings[j].type > CHOICE)
                free(*(char **)at);
        }
    free(all->of);
    free(all->path);
    free(all);
}

/* ---- using them ----------------------------------------------------------------------------- */

int hf_workflows_find(const struct hf_workflows *all, const char *name,
                      const struct hf_workflow **ret, struct hf_error *err)
{
    struct hf_nearest guess = hf_nearest_to(name);
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->of[i].name, name) == 0) {
            *ret = &all->of[i];
            return 0;
        }
        hf_nearest_consider(&guess, all->of[i].name);
    }
    if (guess.best)
        return hf_fail(err, HF_NOT_FOUND, "%s has no workflow '%s'; did you mean %s?", all->path,
                       name, guess.best);
    return hf_fail(err, HF_NOT_FOUND, "%s has no workflow '%s'", all->path, name);
}

int32_t hf_workflow_max_attempts(const struct hf_workflow *workflow)
{
    return workflow->retries < 0 ? 0 : (int32_t)workflow->retries + 1;
}

void hf_workflow_ask(const struct hf_workflow *workflow, struct hf_begin_options *ret)
{
    *ret = (struct hf_begin_options)HF_BEGIN_INIT;
    ret->workflow = workflow->name;
    ret->ttl_ms = workflow->ttl_ms;
    ret->on_lost = (enum hf_on_lost)workflow->on_lost;
    ret->max_attempts = hf_workflow_max_attempts(workflow);
    ret->retry_backoff_ms = workflow->retries > 0 ? workflow->retry_backoff_ms : 0;
    ret->concurrency = (int32_t)workflow->concurrency;
    ret->overlap = (enum hf_overlap)workflow->overlap;
    ret->queue_limit = (int32_t)workflow->queue_limit;
}
