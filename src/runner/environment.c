#include "environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "url.h"

static void add_text(struct hf_buf *out, const char *name, const char *value)
{
    hf_buf_printf(out, "HOLDFAST_%s=%s", name, value);
    hf_buf_putc(out, '\0');
}

static void add_number(struct hf_buf *out, const char *name, int64_t value)
{
    hf_buf_printf(out, "HOLDFAST_%s=%lld", name, (long long)value);
    hf_buf_putc(out, '\0');
}

static void take_out(struct hf_buf *out, const char *name)
{
    hf_buf_printf(out, "HOLDFAST_%s", name);
    hf_buf_putc(out, '\0');
}

/* A path in a URL: what has a meaning there is encoded. */
static void add_path(struct hf_buf *out, const char *path)
{
    for (; *path; path++) {
        if (*path == '%' || *path == '?')
            hf_buf_printf(out, "%%%02X", (unsigned char)*path);
        else
            hf_buf_putc(out, *path);
    }
}

/* The store, named so that it is the same one from any directory. */
static int add_store(struct hf_buf *out, const char *store_url, struct hf_error *err)
{
    struct hf_url url;
    char here[4096];
    int r = hf_url_parse(store_url, &url, err);
    if (r < 0)
        return r;
    const char *rest = url.whole + strlen(url.scheme) + 1;
    bool is_local = strcmp(url.scheme, "sqlite") == 0 || strcmp(url.scheme, "file") == 0;
    hf_buf_printf(out, "HOLDFAST_STORE=%s:", url.scheme);
    if (is_local && url.path[0] != '/') {
        if (!getcwd(here, sizeof here))
            return hf_fail_errno(err, HF_UNAVAILABLE, errno, "can't tell the current directory");
        add_path(out, here);
        hf_buf_putc(out, '/');
    }
    hf_buf_puts(out, rest);
    hf_buf_putc(out, '\0');
    return 0;
}

int hf_environment_write(struct hf_buf *out, const struct hf_lease *lease, const char *store_url,
                         const struct hf_execution *execution, struct hf_error *err)
{
    int r = add_store(out, store_url, err);
    if (r < 0)
        return r;
    add_text(out, "NAME", lease->name);
    add_text(out, "TOKEN", lease->token);
    add_number(out, "FENCE", lease->fence);
    add_text(out, "OWNER", lease->owner);
    add_number(out, "TTL_MS", lease->ttl_ms);
    if (execution) {
        add_text(out, "EXECUTION", execution->id);
        add_text(out, "WORKFLOW", execution->workflow);
        add_text(out, "KEY", execution->key);
        add_number(out, "ATTEMPT", execution->attempt);
    } else {
        static const char *const of_execution[] = {"EXECUTION", "WORKFLOW", "KEY", "ATTEMPT"};
        for (size_t i = 0; i < sizeof of_execution / sizeof *of_execution; i++)
            take_out(out, of_execution[i]);
    }
    return out->failed ? hf_fail(err, HF_TOO_LARGE, "the command's environment is too large") : 0;
}
