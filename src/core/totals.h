/* A store's totals as Prometheus text and as JSON, from one table. */
#ifndef HF_CORE_TOTALS_H
#define HF_CORE_TOTALS_H

#include "buf.h"
#include "holdfast.h"

/* Without a newline at the end. */
void hf_totals_prometheus(struct hf_buf *out, const struct hf_totals *totals);
void hf_totals_json(struct hf_buf *out, const struct hf_totals *totals);

struct json_t;
int hf_totals_read(const struct json_t *object, struct hf_totals *ret, struct hf_error *err);

#endif
