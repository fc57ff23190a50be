/*
 * What an execution was given and has printed, gathered from hf_execution_data():
 *
 *     struct hf_printed p = HF_PRINTED;
 *     r = hf_execution_data(hf, id, HF_DATA_OUTPUT, hf_printed_add, &p, err);
 *     ...
 *     hf_printed_clear(&p);
 */
#ifndef HF_CORE_PRINTED_H
#define HF_CORE_PRINTED_H

#include "buf.h"
#include "holdfast.h"

/* In its two parts; where nothing is missing between them they are one. */
struct hf_printed {
    struct hf_buf head, tail;
    int64_t skipped;
};
#define HF_PRINTED                                                                                 \
    {                                                                                              \
        .head = HF_BUF(2 * HF_OUTPUT_MAX + 1), .tail = HF_BUF(HF_OUTPUT_MAX + 1)                   \
    }

/* Of the output; `arg` is a struct hf_printed. */
int hf_printed_add(void *arg, const void *bytes, size_t n, int64_t skipped);

void hf_printed_clear(struct hf_printed *p);

/* As fields of an object: "output", "outputSkipped", "outputTail", and how they are encoded. */
void hf_printed_write(struct hf_buf *out, const struct hf_printed *p);

/* Of the input, byte for byte; `arg` is a struct hf_buf. */
int hf_data_add(void *arg, const void *bytes, size_t n, int64_t skipped);

#endif
