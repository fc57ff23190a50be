/* A store in a directory of its own, for one test: set_up and tear_down of cmocka, and a shell. */
#ifndef HF_TESTS_PLACE_H
#define HF_TESTS_PLACE_H

#include <stdio.h>
#include <stdlib.h>

#include "../unit/check.h"
#include "holdfast.h"

struct place {
    char dir[128];
    char path[160]; /* what the URL names: the database or the directory */
    char url[176];
};

/* A new directory, where this run of the tests keeps all of its files. */
static inline char *make_directory(char *ret, size_t size)
{
    const char *below = getenv("TMPDIR");
    snprintf(ret, size, "%s/hf-test-XXXXXX", below ? below : "/tmp");
    return mkdtemp(ret);
}

/* `path` is below the directory; "": the directory itself. */
static inline int place_make(void **state, const char *scheme, const char *path)
{
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    if (!make_directory(p->dir, sizeof p->dir)) {
        free(p);
        return -1;
    }
    snprintf(p->path, sizeof p->path, "%s%s", p->dir, path);
    snprintf(p->url, sizeof p->url, "%s:%s", scheme, p->path);
    *state = p;
    return 0;
}

static inline void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void shell(const char *format, ...)
{
    char command[600];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static inline int tear_down(void **state)
{
    struct place *p = *state;
    shell("rm -rf %s", p->dir);
    free(p);
    return 0;
}

static inline struct hf *open_ok(const struct place *p)
{
    struct hf *hf = NULL;
    struct hf_error err = {0};
    if (hf_open(p->url, &hf, &err) < 0)
        fail_msg("open: %s", err.message);
    return hf;
}

#endif
