/* What people type, parsed strictly, with what was expected; what they read, formatted once. */
#ifndef HF_CORE_TEXT_H
#define HF_CORE_TEXT_H

#include "buf.h"
#include "holdfast.h"

/* 1-200 bytes of valid UTF-8, no control characters, no leading or trailing space. */
int hf_check_name(const char *name, struct hf_error *err);

/* Owner, note, reason, key: valid UTF-8, at most `max` bytes, no control characters. */
int hf_check_text(const char *what, const char *text, size_t max, struct hf_error *err);

bool hf_is_utf8(const char *text, size_t n);

/* A ttl between HF_TTL_MIN_MS and HF_TTL_MAX_MS. */
int hf_check_ttl(int64_t ttl_ms, struct hf_error *err);

enum { HF_TIME_LEN = 24, HF_SPAN_MAX = 32 };

/* RFC 3339, UTC, milliseconds: 2026-11-15T20:30:00.000Z. Any offset and fraction is understood. */
void hf_format_time(int64_t at_ms, char ret[HF_TIME_LEN + 1]);
int hf_parse_time(const char *text, int64_t *ret_at_ms, struct hf_error *err);

/* A span for people: "850 ms", "12 s", "2 min", "3 h", "4 days". */
void hf_format_span(int64_t ms, char ret[HF_SPAN_MAX]);

/* "NAME is held by web1/4121 (alive) since 2 min ago, fence 7", or that it is free. */
void hf_describe_status(const struct hf_status *status, char *ret, size_t size);

#endif
