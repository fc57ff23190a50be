/* Random ids and the hash that stands in for a token wherever it is stored or shown. */
#ifndef HF_BASE_ID_H
#define HF_BASE_ID_H

#include "holdfast.h"

struct hf_lock_id {
    uint8_t bytes[HF_LOCK_ID_LEN / 2];
};

/* Bytes from the kernel's generator; does not fail. */
void hf_random(void *buf, size_t n);

enum { HF_SHA256_LEN = 32 };
void hf_sha256(const void *bytes, size_t n, uint8_t ret[HF_SHA256_LEN]);

/* The first half of the token's SHA-256. */
struct hf_lock_id hf_lock_id_of(const char *token);
bool hf_lock_id_equal(const struct hf_lock_id *a, const struct hf_lock_id *b);
void hf_lock_id_format(const struct hf_lock_id *id, char ret[HF_LOCK_ID_LEN + 1]);
bool hf_lock_id_parse(const char *hex, struct hf_lock_id *ret);

#endif
