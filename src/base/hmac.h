/* HMAC-SHA256 (RFC 2104), and what belongs to secrets: comparing and decoding them. */
#ifndef HF_BASE_HMAC_H
#define HF_BASE_HMAC_H

#include <sys/types.h>

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

/*
 * Text in base64 (RFC 4648, padded or not) or hex to at most `size` bytes. How many there are, or -1
 * where it is something else or does not fit.
 */
ssize_t hf_base64_decode(const char *text, size_t n, uint8_t *ret, size_t size);
ssize_t hf_hex_decode(const char *text, size_t n, uint8_t *ret, size_t size);

#endif
