/* Filling the one error struct. All return the negative code: `return hf_fail(...)`. */
#ifndef HF_BASE_ERROR_H
#define HF_BASE_ERROR_H

#include "holdfast.h"

/* Set code and message; the holder is cleared. `err` may be NULL. */
int hf_fail(struct hf_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * The same, with ": " and the text of `saved_errno` behind it; ENOMEM becomes -HF_NOMEM, and what is
 * unavailable for want of permission -HF_FORBIDDEN.
 */
int hf_fail_errno(struct hf_error *err, int code, int saved_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
