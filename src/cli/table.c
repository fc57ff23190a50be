#include <string.h>

#include "cli.h"

enum { SCREENFUL = 200, SCREENFUL_BYTES = 1 << 20, LINE_BYTES = 1 << 14, GAP = 2 };

/* Characters, not bytes: what is not the continuation of one begins one. */
static size_t width_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Print one row, every cell but the last padded to its column's width. */
static void print_row(const struct cli_table *t, enum cli_style style, const char *const *cells)
{
    struct hf_buf line = HF_BUF(LINE_BYTES);
    for (size_t i = 0; i < t->n_columns; i++) {
        hf_buf_puts(&line, cells[i]);
        if (i + 1 < t->n_columns)
            hf_buf_printf(&line, "%*s", (int)(t->widths[i] - width_of(cells[i])) + GAP, "");
    }
    cli_say(style, "%s", line.failed ? "(too wide)" : line.data);
    hf_buf_clear(&line);
}

static void print_screenful(struct cli_table *t)
{
    if (!t->headed)
        print_row(t, CLI_BOLD, t->heads);
    t->headed = true;
    const char *at = t->rows.data;
    for (; t->n_rows && !t->rows.failed; t->n_rows--) {
        const char *cells[CLI_COLUMNS_MAX];
        enum cli_style style = (enum cli_style) * at++;
        for (size_t i = 0; i < t->n_columns; i++) {
            cells[i] = at;
            at += strlen(at) + 1;
        }
        print_row(t, style, cells);
    }
    hf_buf_clear(&t->rows);
}

static void widen(struct cli_table *t, const char *const *cells)
{
    for (size_t i = 0; i < t->n_columns; i++)
        if (width_of(cells[i]) > t->widths[i])
            t->widths[i] = width_of(cells[i]);
}

void cli_table_row(struct cli_table *t, enum cli_style style, const char *const *cells)
{
    t->rows.cap = SCREENFUL_BYTES;
    if (!t->headed)
        widen(t, t->heads);
    widen(t, cells);
    hf_buf_putc(&t->rows, (char)style);
    for (size_t i = 0; i < t->n_columns; i++)
        hf_buf_add(&t->rows, cells[i], strlen(cells[i]) + 1);
    if (++t->n_rows == SCREENFUL)
        print_screenful(t);
}

void cli_table_end(struct cli_table *t)
{
    if (t->n_rows)
        print_screenful(t);
    hf_buf_clear(&t->rows);
}
