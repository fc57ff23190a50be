#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "error.h"
#include "transport.h"

enum { CONNECT_MS = 1000 };

void hf_dynamo_wipe(struct hf_buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->size);
    hf_buf_clear(b);
}

int hf_dynamo_read_file(const char *path, struct hf_buf *out, struct hf_error *err)
{
    char piece[4096];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hf_fail_errno(err, HF_UNAUTHORIZED, errno, "can't read %s", path);
    while ((n = read(fd, piece, sizeof piece)) > 0)
        hf_buf_add(out, piece, (size_t)n);
    int error = n < 0 ? errno : out->failed ? EFBIG : 0;
    close(fd);
    explicit_bzero(piece, sizeof piece);
    if (error)
        return hf_fail_errno(err, HF_UNAUTHORIZED, error, "can't read %s", path);
    while (out->len && strchr(" \t\r\n", out->data[out->len - 1]))
        out->data[--out->len] = '\0';
    return 0;
}

/* ---- HTTP ----------------------------------------------------------------------------------- */

static size_t add_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct hf_dynamo_fetched *answer = arg;
    hf_buf_add(&answer->body, bytes, size * n);
    return answer->body.failed ? 0 : size * n;
}

static size_t see_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct hf_dynamo_fetched *answer = arg;
    int64_t date_ms = hf_dynamo_see_date(bytes, size * n);
    if (date_ms)
        answer->date_ms = date_ms;
    return size * n;
}

static void set_up(const struct hf_curl *c, CURL *easy, const struct hf_dynamo_fetch *q,
                   struct hf_dynamo_fetched *answer)
{
    hf_dynamo_set_up(c, easy, q->direct);
    c->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    c->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)q->timeout_ms);
    c->easy_setopt(easy, CURLOPT_URL, q->url);
    if (q->body)
        c->easy_setopt(easy, CURLOPT_POSTFIELDS, q->body);
    c->easy_setopt(easy, CURLOPT_CUSTOMREQUEST, q->method);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, add_bytes);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    c->easy_setopt(easy, CURLOPT_HEADERFUNCTION, see_header);
    c->easy_setopt(easy, CURLOPT_HEADERDATA, answer);
}

int hf_dynamo_fetch(struct hf_dynamo *d, const struct hf_dynamo_fetch *q,
                    struct hf_dynamo_fetched *ret, struct hf_error *err)
{
    const struct hf_curl *c = d->curl;
    struct hf_dynamo_fetched answer = {.body = HF_BUF(HF_DYNAMO_FETCH_MAX)};
    struct curl_slist *headers = NULL;
    CURL *easy = c->easy_init();
    if (!easy)
        return hf_fail(err, HF_NOMEM, "out of memory");
    for (size_t i = 0; i < 2 && q->headers[i]; i++)
        headers = c->slist_append(headers, q->headers[i]);
    set_up(c, easy, q, &answer);
    c->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    CURLcode code = c->easy_perform(easy);
    c->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer.status);
    c->easy_cleanup(easy);
    c->slist_free_all(headers);
    if (code != CURLE_OK) {
        hf_dynamo_wipe(&answer.body);
        return hf_fail(err, HF_UNAVAILABLE, "can't ask %s for AWS credentials: %s", q->url,
                       c->easy_strerror(code));
    }
    *ret = answer;
    return 0;
}
