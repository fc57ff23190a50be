/* What the command is told through its environment. */
#ifndef HF_RUNNER_ENVIRONMENT_H
#define HF_RUNNER_ENVIRONMENT_H

#include "buf.h"
#include "holdfast.h"

/*
 * Lines for putenv(), each with its NUL: HOLDFAST_NAME=..., and so on; a bare name takes what an
 * outer `run` had set out of the environment. `store_url` as the user gave it (NULL: the default);
 * `execution`: that the lease belongs to, or NULL.
 */
int hf_environment_write(struct hf_buf *out, const struct hf_lease *lease, const char *store_url,
                         const struct hf_execution *execution, struct hf_error *err);

#endif
