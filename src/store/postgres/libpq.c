#include "libpq.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "error.h"

struct hf_pq hf_pq;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *missing; /* the library, or the first function that it lacks; NULL: all there */

static void *find(void *library, const char *function)
{
    void *found = dlsym(library, function);
    if (!found && !missing)
        missing = function;
    return found;
}

/* Never unloaded: connections and their threads may be anywhere in it. */
static void load(void)
{
    void *library = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        missing = "libpq.so.5";
        return;
    }
#define X(name)                                                                                    \
    {                                                                                              \
        void *found = find(library, #name);                                                        \
        memcpy(&hf_pq.name, &found, sizeof found); /* ISO C knows no cast for this */              \
    }
    HF_PQ_FUNCTIONS(X)
#undef X
}

int hf_pq_load(struct hf_error *err)
{
    pthread_once(&once, load);
    if (!missing)
        return 0;
    if (strncmp(missing, "libpq", 5) == 0)
        return hf_fail(err, HF_UNAVAILABLE, "libpq is not installed: apt-get install libpq5");
    return hf_fail(err, HF_UNAVAILABLE,
                   "libpq is too old: it lacks %s; version 14 or newer is needed", missing);
}
