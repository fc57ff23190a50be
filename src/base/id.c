#include "id.h"

#include <errno.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void hf_random(void *buf, size_t n)
{
    uint8_t *p = buf;
    while (n) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno != EINTR)
            abort(); /* only a kernel without getrandom: no id would be safe */
        if (got > 0) {
            p += got;
            n -= (size_t)got;
        }
    }
}

static char hex_digit(unsigned value) { return "0123456789abcdef"[value & 15]; }

static void format_uuid(uint8_t raw[16], unsigned version, char ret[HF_UUID_LEN + 1])
{
    raw[6] = (uint8_t)((raw[6] & 0x0f) | version << 4);
    raw[8] = (uint8_t)((raw[8] & 0x3f) | 0x80); /* variant 1 */
    char *out = ret;
    for (size_t i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *out++ = '-';
        *out++ = hex_digit(raw[i] >> 4);
        *out++ = hex_digit(raw[i]);
    }
    *out = '\0';
}

void hf_token(char ret[HF_UUID_LEN + 1])
{
    uint8_t raw[16];
    hf_random(raw, sizeof raw);
    format_uuid(raw, 4, ret);
}

void hf_sha256(const void *bytes, size_t n, uint8_t ret[HF_SHA256_LEN])
{
    SHA2_CTX ctx;
    SHA256Init(&ctx);
    SHA256Update(&ctx, bytes, n);
    SHA256Final(ret, &ctx);
}

void hf_retry_id(const char *id, char ret[HF_UUID_LEN + 1])
{
    char text[HF_UUID_LEN + 16];
    uint8_t digest[HF_SHA256_LEN];
    int n = snprintf(text, sizeof text, "retry of %s", id);
    hf_sha256(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, digest);
    format_uuid(digest, 8, ret); /* one that is made of something */
}

struct hf_lock_id hf_lock_id_of(const char *token)
{
    uint8_t digest[HF_SHA256_LEN];
    hf_sha256(token, strlen(token), digest);
    struct hf_lock_id id;
    memcpy(id.bytes, digest, sizeof id.bytes);
    return id;
}

bool hf_lock_id_equal(const struct hf_lock_id *a, const struct hf_lock_id *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void hf_lock_id_format(const struct hf_lock_id *id, char ret[HF_LOCK_ID_LEN + 1])
{
    for (size_t i = 0; i < sizeof id->bytes; i++) {
        ret[2 * i] = hex_digit(id->bytes[i] >> 4);
        ret[2 * i + 1] = hex_digit(id->bytes[i]);
    }
    ret[HF_LOCK_ID_LEN] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hf_lock_id_parse(const char *hex, struct hf_lock_id *ret)
{
    if (strlen(hex) != HF_LOCK_ID_LEN)
        return false;
    struct hf_lock_id id = {0};
    for (size_t i = 0; i < sizeof id.bytes; i++) {
        int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        id.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *ret = id;
    return true;
}
