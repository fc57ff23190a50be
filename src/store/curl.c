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
        return hf_fail(err, HF_UNSUPPORTED, "this store needs libcurl (Debian: libcurl4): %s",
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

/* ---- listening ------------------------------------------------------------------------------ */

/* Until the stream ends, or we are told to stop: true. */
static bool hear(const struct hf_curl_stream *s, CURLM *multi)
{
    const struct hf_curl *c = s->curl;
    struct curl_waitfd stop = {.fd = s->stop_fd, .events = CURL_WAIT_POLLIN};
    int running = 1;
    while (c->multi_perform(multi, &running) == CURLM_OK && running) {
        if (c->multi_poll(multi, &stop, 1, s->look_ms, NULL) != CURLM_OK || stop.revents)
            break;
        if (s->look && !s->look(s->arg))
            break;
    }
    return stop.revents;
}

/* One stream. True: stop. */
static bool listen_once(const struct hf_curl_stream *s, CURLM *multi, CURL *easy)
{
    const struct hf_curl *c = s->curl;
    struct curl_slist *headers;
    long status = 0;
    s->ask(s->arg, easy, &headers);
    c->easy_setopt(easy, CURLOPT_FAILONERROR, 1L);
    c->multi_add_handle(multi, easy);
    bool stop = hear(s, multi);
    c->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    c->multi_remove_handle(multi, easy);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
    c->slist_free_all(headers);
    if (!stop)
        s->ended(s->arg, status);
    return stop;
}

void hf_curl_listen(const struct hf_curl_stream *s)
{
    const struct hf_curl *c = s->curl;
    CURLM *multi = c->multi_init();
    CURL *easy = c->easy_init();
    struct curl_waitfd stop = {.fd = s->stop_fd, .events = CURL_WAIT_POLLIN};
    while (multi && easy && !stop.revents && !listen_once(s, multi, easy))
        c->multi_poll(multi, &stop, 1, s->retry_ms, NULL);
    if (easy)
        c->easy_cleanup(easy);
    if (multi)
        c->multi_cleanup(multi);
}
