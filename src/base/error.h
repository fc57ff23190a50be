/* Filling the one error struct. All return the negative code: `return hf_fail(...)`. */
#ifndef HF_BASE_ERROR_H
#define HF_BASE_ERROR_H

#include "holdfast.h"

/* Set code and message; the holder is cleared. `err` may be NULL. */
int hf_set_error(struct hf_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * The same, with ": " and the text of `saved_errno` behind it; ENOMEM becomes -HF_NOMEM, and what is
 * unavailable for want of permission -HF_FORBIDDEN.
 */
int hf_set_error_errno(struct hf_error *err, int code, int saved_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A failure is always negative. Said so that compilers know it where outputs are left untouched. */
static inline int hf_negative(int r)
{
    if (r >= 0)
        __builtin_unreachable();
    return r;
}

#define hf_fail(...) hf_negative(hf_set_error(__VA_ARGS__))
#define hf_fail_errno(...) hf_negative(hf_set_error_errno(__VA_ARGS__))

#endif
