/* Executions that this service saw end, by workflow. So many workflows have numbers of their own. */
#include <stdlib.h>
#include <string.h>

#include "metrics.h"

enum { WORKFLOWS_COUNTED = 200 };

struct row {
    char workflow[HF_NAME_MAX + 1];
    uint64_t ended[HF_EXECUTION_STATE_COUNT];
    struct histogram took;
};

struct tally {
    size_t n;
    struct row *rows[WORKFLOWS_COUNTED + 1]; /* the last one: all others */
};

struct tally *tally_new(void) { return calloc(1, sizeof(struct tally)); }

void tally_free(struct tally *t)
{
    for (size_t i = 0; t && i < t->n; i++)
        free(t->rows[i]);
    free(t);
}

static struct row *row_of(struct tally *t, const char *workflow)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->rows[i]->workflow, workflow) == 0)
            return t->rows[i];
    if (t->n > WORKFLOWS_COUNTED)
        return t->rows[WORKFLOWS_COUNTED];
    struct row *row = calloc(1, sizeof *row);
    if (!row)
        return NULL;
    strcpy(row->workflow, t->n == WORKFLOWS_COUNTED ? "(others)" : workflow);
    return t->rows[t->n++] = row;
}

void tally_ended(struct tally *t, const struct hf_execution *x)
{
    struct row *row = row_of(t, x->workflow);
    if (!row)
        return;
    row->ended[x->state]++;
    if (x->started_at_ms)
        histogram_observe(&row->took, (x->finished_at_ms - x->started_at_ms) * 1000);
}

/* workflow="...": quotes, backslashes and newlines escaped; names have no newlines. */
static void write_label(struct hf_buf *out, const char *workflow)
{
    hf_buf_puts(out, "workflow=\"");
    for (; *workflow; workflow++) {
        if (*workflow == '"' || *workflow == '\\')
            hf_buf_putc(out, '\\');
        hf_buf_putc(out, *workflow);
    }
    hf_buf_putc(out, '"');
}

static void put_ended(struct hf_buf *out, const struct row *row, const char *label)
{
    for (int state = HF_SUCCESS; state < HF_EXECUTION_STATE_COUNT; state++)
        hf_buf_printf(out, "holdfast_executions_total{%s,state=\"%s\"} %llu\n", label,
                      hf_execution_state_name((enum hf_execution_state)state),
                      (unsigned long long)row->ended[state]);
}

void tally_put(struct hf_buf *out, const struct tally *t)
{
    static const char took[] = "holdfast_execution_duration_seconds";
    hf_buf_puts(out,
                "# HELP holdfast_executions_total Executions that ended through this service.\n"
                "# TYPE holdfast_executions_total counter\n");
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1)
            histogram_head(out, took, "From the last start of an execution to its end.");
        for (size_t i = 0; i < t->n; i++) {
            struct hf_buf label = HF_BUF(3 * HF_NAME_MAX);
            write_label(&label, t->rows[i]->workflow);
            if (pass == 0)
                put_ended(out, t->rows[i], label.data ? label.data : "");
            else
                histogram_put(out, took, label.data ? label.data : "", &t->rows[i]->took);
            hf_buf_clear(&label);
        }
    }
}
