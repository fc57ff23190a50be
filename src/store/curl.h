/*
 * libcurl, loaded when a store is opened that needs it: no other command pays for it. And what those
 * stores share: listening to a stream that stays open.
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

/* A request that stays open, and is made again whenever it ends. All is called by hf_curl_listen(). */
struct hf_curl_stream {
    const struct hf_curl *curl;
    int stop_fd; /* readable: it is over */
    int look_ms, retry_ms;
    void *arg;
    /* Say what is asked, and what hears it (CURLOPT_WRITEFUNCTION). `ret_headers` are freed here. */
    void (*ask)(void *arg, CURL *easy, struct curl_slist **ret_headers);
    /* After whatever came, and every look_ms; false: let it end. NULL: nothing is to be looked after. */
    bool (*look)(void *arg);
    /* It has ended, with this HTTP status (0: none came); it is asked for again after retry_ms. */
    void (*ended)(void *arg, long status);
};

/* Listen until we are told to stop: what a thread of its own does. */
void hf_curl_listen(const struct hf_curl_stream *stream);

#endif
