/* HMAC-SHA256 (RFC 2104), and what goes with it. */
#ifndef HF_BASE_HMAC_H
#define HF_BASE_HMAC_H

#include "id.h"

struct hf_bytes {
    const void *bytes;
    size_t n;
};

/* Of all parts, one behind the other. */
void hf_hmac_sha256(struct hf_bytes key, const struct hf_bytes *parts, size_t n_parts,
                    uint8_t ret[HF_SHA256_LEN]);

/* Takes the same time wherever two hashes differ. */
bool hf_sha256_equal(const uint8_t a[HF_SHA256_LEN], const uint8_t b[HF_SHA256_LEN]);

/* The bytes that `n` hex digits stand for. False: they are no hex digits, or not twice `size`. */
bool hf_hex_read(const char *text, size_t n, uint8_t *ret, size_t size);

#endif
