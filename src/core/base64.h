/* Bytes as text: base64 with padding (RFC 4648), read strictly. */
#ifndef HF_CORE_BASE64_H
#define HF_CORE_BASE64_H

#include "buf.h"

void hf_base64_write(struct hf_buf *out, const void *bytes, size_t n);

/*
 * The bytes that the text stands for, the caller's to free; no bytes are NULL. False: it is not
 * base64, or there is no memory for it.
 */
bool hf_base64_read(const char *text, size_t n, void **ret, size_t *ret_n);

#endif
