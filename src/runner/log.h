/* Lines on stderr that tell what `work` and `serve` do: key=value, or JSON. Never a token. */
#ifndef HF_RUNNER_LOG_H
#define HF_RUNNER_LOG_H

#include "holdfast.h"

/* The calling thread gathers its lines until log_flush(); those of others are written at once. */
void log_open(bool json);

/* log_event("listening", "address", text, ..., LOG_END). A value that is NULL is left out. */
#define LOG_END ((const char *)NULL)
void log_event(const char *event, ...) __attribute__((sentinel));
void log_flush(void);

/* The stale lease that this grant took over, if any. `id`: the request's, or NULL. */
void log_takeover(const struct hf_lease *lease, const char *id);

/* For hf_sweep(): what it has freed. */
int log_swept(void *arg, const struct hf_status *status);

#endif
