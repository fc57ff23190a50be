/*
 * A growing byte buffer with its cap at birth: what would exceed it makes the buffer `failed`, and
 * everything after is ignored, so that a writer checks once, at the end.
 *
 *     struct hf_buf b = HF_BUF(4096);
 *     hf_buf_puts(&b, "..."); hf_buf_printf(&b, "%d", 1);
 *     if (b.failed) ...;
 *     use(b.data, b.len);             // NUL-terminated
 *     hf_buf_clear(&b);
 */
#ifndef HF_BASE_BUF_H
#define HF_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct hf_buf {
    char *data;
    size_t len, size, cap;
    bool failed;
};
#define HF_BUF(max_bytes)                                                                          \
    {                                                                                              \
        .cap = (max_bytes)                                                                         \
    }

void hf_buf_clear(struct hf_buf *b);
void hf_buf_add(struct hf_buf *b, const void *bytes, size_t n);
void hf_buf_puts(struct hf_buf *b, const char *text);
void hf_buf_putc(struct hf_buf *b, char c);
void hf_buf_printf(struct hf_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
