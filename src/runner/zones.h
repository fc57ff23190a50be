/* The time zones of this machine: tzdata's files below $TZDIR, else /usr/share/zoneinfo. */
#ifndef HF_RUNNER_ZONES_H
#define HF_RUNNER_ZONES_H

#include "zone.h"

/*
 * "Europe/Oslo"; NULL and "UTC" need no files. -HF_INVALID names the nearest one. To be freed with
 * free().
 */
int hf_zone_load(const char *name, struct hf_zone **ret, struct hf_error *err);

#endif
