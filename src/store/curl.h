/*
 * libcurl, loaded when an http: store is opened: no other command pays for it. And what every
 * request needs: a connection that is kept, deadlines, the token, and what went wrong in one line.
 */
#ifndef HF_STORE_CURL_H
#define HF_STORE_CURL_H

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

#include "buf.h"
#include "holdfast.h"

#define HF_CURL_SYMBOLS(X)                                                                         \
    X(global_init)                                                                                 \
    X(easy_init)                                                                                   \
    X(easy_setopt)                                                                                 \
    X(easy_perform)                                                                                \
    X(easy_getinfo)                                                                                \
    X(easy_strerror)                                                                               \
    X(easy_cleanup)                                                                                \
    X(slist_append)                                                                                \
    X(slist_free_all)                                                                              \
    X(multi_init)                                                                                  \
    X(multi_add_handle)                                                                            \
    X(multi_remove_handle)                                                                         \
    X(multi_perform)                                                                               \
    X(multi_poll)                                                                                  \
    X(multi_cleanup)

#undef curl_easy_setopt
#undef curl_easy_getinfo
struct hf_curl {
#define X(name) __typeof__(curl_##name) *name;
    HF_CURL_SYMBOLS(X)
#undef X
};

/* Load it once; -HF_UNSUPPORTED names the package where it is missing. */
int hf_curl_load(const struct hf_curl **ret, struct hf_error *err);

#endif
