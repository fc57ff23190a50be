#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct code_info {
    int code;
    const char *name;
    int exit_code;
    int http;
    const char *meaning;
};

static const struct code_info codes[] = {
#define X(name, number, code, exit_code, http, meaning) {number, code, exit_code, http, meaning},
    HF_CODE_MAP(X)
#undef X
};

static const struct code_info *find(int code)
{
    static const struct code_info ok = {0, "OK", 0, 200, "done"};
    static const struct code_info odd = {-1, "INTERNAL", 70, 500, "a bug in holdfast"};
    int positive = code < 0 ? -code : code;
    if (positive == 0)
        return &ok;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == positive)
            return &codes[i];
    return &odd;
}

const char *hf_code_name(int code) { return find(code)->name; }
const char *hf_code_meaning(int code) { return find(code)->meaning; }
int hf_code_exit(int code) { return find(code)->exit_code; }
int hf_code_http(int code) { return find(code)->http; }

static void start(struct hf_error *err, int code, const char *format, va_list args)
{
    err->code = -code;
    err->has_holder = false;
    vsnprintf(err->message, sizeof err->message, format, args);
}

int hf_set_error(struct hf_error *err, int code, const char *format, ...)
{
    if (!err)
        return -code;
    va_list args;
    va_start(args, format);
    start(err, code, format, args);
    va_end(args);
    return -code;
}

int hf_set_error_errno(struct hf_error *err, int code, int saved_errno, const char *format, ...)
{
    if (saved_errno == ENOMEM)
        code = HF_NOMEM;
    if (code == HF_UNAVAILABLE && (saved_errno == EACCES || saved_errno == EPERM))
        code = HF_FORBIDDEN;
    if (!err)
        return -code;
    va_list args;
    va_start(args, format);
    start(err, code, format, args);
    va_end(args);
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof err->message - used, ": %s", strerror(saved_errno));
    return -code;
}
