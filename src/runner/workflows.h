/*
 * Workflows as a YAML file has them. A bad file is refused whole: the error names the file, the
 * line, the setting and what was expected. Every setting is declared once, in a table of
 * workflows.c: its name, type, limits and default.
 *
 *     hf_workflows_load(NULL, &all, &err)        $HOLDFAST_CONFIG, else /etc/holdfast/holdfast.yaml
 *     hf_workflows_find(all, "stripe-payment")
 *     hf_workflow_lock(workflow, key, ...)       what is locked while it runs
 *     hf_workflows_free(all)
 */
#ifndef HF_RUNNER_WORKFLOWS_H
#define HF_RUNNER_WORKFLOWS_H

#include "holdfast.h"

enum hf_catch_up { HF_CATCH_UP_LAST, HF_CATCH_UP_NONE, HF_CATCH_UP_ALL };

/* Lists end with NULL; a list or text that was not given is NULL. */
struct hf_workflow {
    char name[HF_NAME_MAX + 1];
    char **command;
    int64_t ttl_ms;
    int64_t timeout_ms; /* 0: none */
    int64_t overlap;    /* enum hf_overlap */
    int64_t queue_limit;
    int64_t concurrency; /* 0: as many as their locks allow */
    int64_t rate_us;     /* on each worker, so long from one to the next; 0: any rate */
    int64_t retries;     /* -1: not given */
    int64_t retry_backoff_ms;
    int64_t on_lost; /* enum hf_on_lost */
    char **verify;
    char *lock; /* a template; NULL: the workflow's name */
    char *schedule, *time_zone;
    int64_t jitter_ms;
    int64_t catch_up;            /* enum hf_catch_up */
    int64_t keep_ms, keep_count; /* as in hf_retention */
    char *key_path;
    char **secret_files;
    size_t secret_files_line; /* where the file has them */
    char *user, *cwd;
    char **env; /* "NAME=VALUE" */
};

struct hf_workflows {
    char *path;
    struct hf_workflow *of; /* in the file's order */
    size_t n;
};

/* The file that is used where none is named on the command line. */
const char *hf_workflows_path(const char *named);

int hf_workflows_load(const char *path, struct hf_workflows **ret, struct hf_error *err);
void hf_workflows_free(struct hf_workflows *all);

/* -HF_NOT_FOUND names the nearest one. */
int hf_workflows_find(const struct hf_workflows *all, const char *name,
                      const struct hf_workflow **ret, struct hf_error *err);

/* How often an execution may be begun: as hf_begin_options has it. */
int32_t hf_workflow_max_attempts(const struct hf_workflow *workflow);

/* What an execution of it is asked for with; lock, key and input are still to be set. */
void hf_workflow_ask(const struct hf_workflow *workflow, struct hf_begin_options *ret);

/* ---- key_path.c ----------------------------------------------------------------------------- */

/* Is it a JSON path such as $.data.items[0].id or $["a key"]? */
int hf_key_path_check(const char *text, struct hf_error *err);

/*
 * The key that this input has at the workflow's key-path: a text or a whole number. Empty where there
 * is none, or no key-path. -HF_INVALID: the input is not JSON, or what is there can't be a key.
 */
int hf_workflow_key(const struct hf_workflow *workflow, const void *input, size_t input_size,
                    char ret[HF_KEY_MAX + 1], struct hf_error *err);

/* ---- template.c ----------------------------------------------------------------------------- */

/* Is it text with {workflow}, {key} and {input.path.to.value} in it? */
int hf_template_check(const char *text, struct hf_error *err);

/* The name of the lock for this key and input; -HF_INVALID where it can't be made of them. */
int hf_workflow_lock(const struct hf_workflow *workflow, const char *key, const void *input,
                     size_t input_size, char ret[HF_NAME_MAX + 1], struct hf_error *err);

#endif
