#include "printed.h"

#include "wire.h"

int hf_printed_add(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    struct hf_printed *p = arg;
    if (skipped)
        p->skipped = skipped;
    hf_buf_add(p->skipped ? &p->tail : &p->head, bytes, n);
    return 0;
}

void hf_printed_clear(struct hf_printed *p)
{
    hf_buf_clear(&p->head);
    hf_buf_clear(&p->tail);
}

void hf_printed_write(struct hf_buf *out, const struct hf_printed *p)
{
    hf_wire_bytes(out, "output", p->head.data, p->head.len);
    hf_buf_printf(out, ",\"outputSkipped\":%lld,", (long long)p->skipped);
    hf_wire_bytes(out, "outputTail", p->tail.data, p->tail.len);
}

int hf_data_add(void *arg, const void *bytes, size_t n, int64_t skipped)
{
    (void)skipped;
    hf_buf_add(arg, bytes, n);
    return 0;
}
