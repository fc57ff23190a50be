#include "hmac.h"

#include <sha2.h>
#include <string.h>

enum { BLOCK_LEN = 64 };

static void begin(SHA2_CTX *ctx, const uint8_t block[BLOCK_LEN], uint8_t pad)
{
    uint8_t padded[BLOCK_LEN];
    for (size_t i = 0; i < BLOCK_LEN; i++)
        padded[i] = block[i] ^ pad;
    SHA256Init(ctx);
    SHA256Update(ctx, padded, sizeof padded);
    explicit_bzero(padded, sizeof padded);
}

void hf_hmac_sha256(struct hf_bytes key, const struct hf_bytes *parts, size_t n_parts,
                    uint8_t ret[HF_SHA256_LEN])
{
    uint8_t block[BLOCK_LEN] = {0}, inner[HF_SHA256_LEN];
    SHA2_CTX ctx;
    if (key.n > sizeof block)
        hf_sha256(key.bytes, key.n, block);
    else if (key.n)
        memcpy(block, key.bytes, key.n);
    begin(&ctx, block, 0x36);
    for (size_t i = 0; i < n_parts; i++)
        if (parts[i].n)
            SHA256Update(&ctx, parts[i].bytes, parts[i].n);
    SHA256Final(inner, &ctx);
    begin(&ctx, block, 0x5c);
    SHA256Update(&ctx, inner, sizeof inner);
    SHA256Final(ret, &ctx);
    explicit_bzero(block, sizeof block);
    explicit_bzero(&ctx, sizeof ctx);
}

bool hf_sha256_equal(const uint8_t a[HF_SHA256_LEN], const uint8_t b[HF_SHA256_LEN])
{
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < HF_SHA256_LEN; i++)
        differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return differ == 0;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hf_hex_read(const char *text, size_t n, uint8_t *ret, size_t size)
{
    if (n != 2 * size)
        return false;
    for (size_t i = 0; i < size; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        ret[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}
