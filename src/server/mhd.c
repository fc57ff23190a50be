#define MHD_LOADER
#include "mhd.h"

#include <dlfcn.h>

#include "error.h"

struct mhd mhd;

int mhd_load(struct hf_error *err)
{
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hf_fail(err, HF_UNSUPPORTED,
                       "the service needs libmicrohttpd (Debian: libmicrohttpd12): %s", dlerror());
#define X(name)                                                                                    \
    if (!(mhd.name##_ = (__typeof__(name) *)dlsym(library, #name)))                                \
        return hf_fail(err, HF_UNSUPPORTED, "libmicrohttpd has no %s; install a newer one", #name);
    MHD_SYMBOLS(X)
#undef X
    return 0;
}
