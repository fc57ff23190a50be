#include "curl.h"

#include <dlfcn.h>
#include <pthread.h>

#include "error.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int load(struct hf_curl *curl, struct hf_error *err)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hf_fail(err, HF_UNSUPPORTED, "http: needs libcurl (Debian: libcurl4): %s",
                       dlerror());
#define X(name)                                                                                    \
    if (!(curl->name = (__typeof__(curl->name))dlsym(library, "curl_" #name)))                     \
        return hf_fail(err, HF_UNSUPPORTED, "libcurl has no curl_" #name "; install a newer one");
    HF_CURL_SYMBOLS(X)
#undef X
    if (curl->global_init(CURL_GLOBAL_ALL) != CURLE_OK)
        return hf_fail(err, HF_UNAVAILABLE, "libcurl does not start");
    return 0;
}

int hf_curl_load(const struct hf_curl **ret, struct hf_error *err)
{
    static struct hf_curl curl;
    static bool loaded;
    pthread_mutex_lock(&mutex);
    int r = loaded ? 0 : load(&curl, err);
    loaded |= r >= 0;
    pthread_mutex_unlock(&mutex);
    if (r >= 0)
        *ret = &curl;
    return r;
}
