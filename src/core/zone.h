/*
 * A time zone: what clocks on the wall show. It is made of the bytes of a TZif file (RFC 8536), so
 * it needs neither TZ nor the C library's one zone per process, and any number of threads may use it.
 *
 *     hf_zone_parse(bytes, n, &zone, &err)       or hf_zone_utc()
 *     hf_zone_at(zone, at_s).offset_s            the clocks show at_s + offset_s
 *     free(zone)
 */
#ifndef HF_CORE_ZONE_H
#define HF_CORE_ZONE_H

#include "holdfast.h"

struct hf_zone;

/* A stretch of time in which the clocks are not changed; INT64_MIN and INT64_MAX have no end. */
struct hf_zone_span {
    int64_t since_s, until_s;
    int32_t offset_s; /* what the clocks show, less UTC */
    int32_t before_s; /* the same just before since_s */
};

int hf_zone_parse(const void *bytes, size_t n, struct hf_zone **ret, struct hf_error *err);

/* NULL where there is no memory. */
struct hf_zone *hf_zone_utc(void);

struct hf_zone_span hf_zone_at(const struct hf_zone *zone, int64_t at_s);

#endif
