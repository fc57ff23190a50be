#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "clock.h"
#include "text.h"
#include "wire.h"

enum { LINES_MAX = 1 << 20 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct hf_buf lines = HF_BUF(LINES_MAX);
static bool as_json;
static pthread_t owner;

void log_open(bool json)
{
    as_json = json;
    owner = pthread_self();
}

/* Written many at a time; what can't be written is dropped rather than waited for for ever. */
static void write_lines(void)
{
    size_t done = 0;
    while (done < lines.len) {
        ssize_t n = write(STDERR_FILENO, lines.data + done, lines.len - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    hf_buf_clear(&lines);
    lines = (struct hf_buf)HF_BUF(LINES_MAX);
}

void log_flush(void)
{
    pthread_mutex_lock(&mutex);
    if (lines.len || lines.failed)
        write_lines();
    pthread_mutex_unlock(&mutex);
}

static bool is_bare(const char *value)
{
    return *value && !value[strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_.:/*@+[]")];
}

static void put_pair(const char *key, const char *value)
{
    if (as_json) {
        hf_buf_putc(&lines, ',');
        hf_wire_string(&lines, key, strlen(key));
        hf_buf_putc(&lines, ':');
        hf_wire_string(&lines, value, strlen(value));
        return;
    }
    hf_buf_putc(&lines, ' ');
    hf_buf_puts(&lines, key);
    hf_buf_putc(&lines, '=');
    if (is_bare(value))
        hf_buf_puts(&lines, value);
    else
        hf_wire_string(&lines, value, strlen(value));
}

void log_event(const char *event, ...)
{
    char at[HF_TIME_LEN + 1];
    va_list args;
    hf_format_time(hf_clock_wall_ms(), at);
    pthread_mutex_lock(&mutex);
    hf_buf_printf(&lines, as_json ? "{\"at\":\"%s\",\"event\":\"%s\"" : "at=%s event=%s", at,
                  event);
    va_start(args, event);
    for (const char *key; (key = va_arg(args, const char *));) {
        const char *value = va_arg(args, const char *);
        if (value)
            put_pair(key, value);
    }
    va_end(args);
    hf_buf_puts(&lines, as_json ? "}\n" : "\n");
    if (!pthread_equal(pthread_self(), owner)) /* only the loop's own are flushed by the loop */
        write_lines();
    pthread_mutex_unlock(&mutex);
}

void log_takeover(const struct hf_lease *lease, const char *id)
{
    char fence[24], old_fence[24], held[24];
    const struct hf_takeover *t = &lease->takeover;
    if (t->reason == HF_STALE_NOT)
        return;
    snprintf(fence, sizeof fence, "%lld", (long long)lease->fence);
    snprintf(old_fence, sizeof old_fence, "%lld", (long long)t->fence);
    snprintf(held, sizeof held, "%lld", (long long)t->held_for_ms);
    log_event("takeover", "message", "STALE LOCK taken over", "name", lease->name, "reason",
              hf_stale_reason_name(t->reason), "from", t->owner, "lock-id", t->lock_id, "old-fence",
              old_fence, "held-ms", held, "to", lease->owner, "fence", fence, "id", id, LOG_END);
}

int log_swept(void *arg, const struct hf_status *status)
{
    char fence[24];
    (void)arg;
    snprintf(fence, sizeof fence, "%lld", (long long)status->fence);
    log_event("sweep", "message", "STALE LOCK freed", "name", status->name, "from", status->owner,
              "fence", fence, LOG_END);
    return 0;
}
