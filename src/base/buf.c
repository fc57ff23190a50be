#include "buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hf_buf_clear(struct hf_buf *b)
{
    free(b->data);
    *b = (struct hf_buf){.cap = b->cap};
}

/* Make room for `n` more bytes and a NUL. */
static bool reserve(struct hf_buf *b, size_t n)
{
    if (b->failed || n > b->cap - b->len) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->size)
        return true;
    size_t size = b->size ? b->size * 2 : 512;
    if (size < need)
        size = need;
    char *data = realloc(b->data, size);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->size = size;
    return true;
}

void hf_buf_add(struct hf_buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void hf_buf_puts(struct hf_buf *b, const char *text) { hf_buf_add(b, text, strlen(text)); }

void hf_buf_putc(struct hf_buf *b, char c) { hf_buf_add(b, &c, 1); }

void hf_buf_printf(struct hf_buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        b->failed = true;
    else if (reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
}
