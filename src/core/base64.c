#include "base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void hf_base64_write(struct hf_buf *out, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    for (size_t i = 0; i < n; i += 3) {
        unsigned word = (unsigned)from[i] << 16 | (i + 1 < n ? (unsigned)from[i + 1] << 8 : 0) |
                        (i + 2 < n ? from[i + 2] : 0);
        char four[4] = {digits[word >> 18], digits[word >> 12 & 63],
                        i + 1 < n ? digits[word >> 6 & 63] : '=',
                        i + 2 < n ? digits[word & 63] : '='};
        hf_buf_add(out, four, sizeof four);
    }
}

enum { NO_DIGIT = 64 };

static void fill_values(uint8_t values[256])
{
    memset(values, NO_DIGIT, 256);
    for (uint8_t i = 0; digits[i]; i++)
        values[(unsigned char)digits[i]] = i;
}

/* Four digits as three bytes, of which those that padding stands for are not written. */
static bool read_four(const uint8_t values[256], const unsigned char *text, size_t n_bytes,
                      uint8_t *to)
{
    uint32_t word = 0;
    for (size_t i = 0; i < 4; i++) {
        uint8_t value = i <= n_bytes ? values[text[i]] : 0;
        if (value == NO_DIGIT)
            return false;
        word = word << 6 | value;
    }
    for (size_t i = 0; i < n_bytes; i++)
        to[i] = (uint8_t)(word >> (16 - 8 * i));
    return (word & ((1u << (24 - 8 * n_bytes)) - 1)) == 0; /* bits behind the last byte are lost */
}

bool hf_base64_read(const char *text, size_t n, void **ret, size_t *ret_n)
{
    uint8_t values[256];
    size_t padding = n && text[n - 1] == '=' ? 1 + (n > 1 && text[n - 2] == '=') : 0;
    size_t size = n / 4 * 3 - (n ? padding : 0);
    uint8_t *bytes = size ? malloc(size) : NULL;
    if (n % 4 != 0 || (size && !bytes)) {
        free(bytes);
        return false;
    }
    fill_values(values);
    for (size_t i = 0; i < n; i += 4)
        if (!read_four(values, (const unsigned char *)text + i, i + 4 == n ? 3 - padding : 3,
                       bytes + i / 4 * 3)) {
            free(bytes);
            return false;
        }
    *ret = bytes;
    *ret_n = size;
    return true;
}
