/* What executions read and printed: log, and the whole of show --json. */
#include <string.h>

#include "output.h"
#include "printed.h"
#include "text.h"
#include "wire.h"

enum { FOLLOW_POLL_MS = 200, WHOLE_MAX = 7 * HF_INPUT_MAX };

/* ---- what is kept --------------------------------------------------------------------------- */

static int64_t total_of(const struct hf_printed *o)
{
    return (int64_t)(o->head.len + o->tail.len) + o->skipped;
}

/* ---- show ----------------------------------------------------------------------------------- */

int cli_put_whole_execution(struct cli *cli, struct hf *hf, const struct hf_execution *x)
{
    struct hf_printed output = HF_PRINTED;
    struct hf_buf input = HF_BUF(HF_INPUT_MAX + 1), json = HF_BUF(WHOLE_MAX);
    struct hf_error err;
    int code = 0;
    if (hf_execution_data(hf, x->id, HF_DATA_INPUT, hf_data_add, &input, &err) < 0 ||
        hf_execution_data(hf, x->id, HF_DATA_OUTPUT, hf_printed_add, &output, &err) < 0)
        code = cli_fail(cli, &err);
    else {
        hf_wire_execution(&json, x);
        hf_wire_reopen(&json, NULL);
        hf_wire_bytes(&json, "input", input.data, input.len);
        hf_buf_putc(&json, ',');
        hf_printed_write(&json, &output);
        hf_buf_putc(&json, '}');
        code = cli_put_json(&json);
    }
    hf_buf_clear(&json);
    hf_buf_clear(&input);
    hf_printed_clear(&output);
    return code;
}

/* ---- log ------------------------------------------------------------------------------------ */

struct printing {
    const struct cli *cli;
    const char *id;
    int64_t printed; /* or passed over because it was not kept */
};

static int put_chunk(const struct printing *p, const char *bytes, size_t n, int64_t skipped)
{
    struct hf_buf json = HF_BUF(WHOLE_MAX);
    hf_buf_printf(&json, "{\"id\":\"%s\",\"skipped\":%lld,", p->id, (long long)skipped);
    hf_wire_bytes(&json, "output", bytes, n);
    hf_buf_putc(&json, '}');
    return cli_put_json(&json);
}

/* The part of these bytes, which begin at `from` of the whole, that was not printed yet. */
static int print_part(struct printing *p, const struct hf_buf *part, int64_t from)
{
    int64_t end = from + (int64_t)part->len;
    if (end <= p->printed)
        return 0;
    int64_t skipped = from > p->printed ? from - p->printed : 0;
    size_t at = from < p->printed ? (size_t)(p->printed - from) : 0;
    p->printed = end;
    if (p->cli->opts.json)
        return put_chunk(p, part->data + at, part->len - at, skipped);
    if (skipped)
        printf("\n[holdfast: %lld bytes were not kept]\n", (long long)skipped);
    fwrite(part->data + at, 1, part->len - at, stdout);
    return 0;
}

static int print_output(struct printing *p, struct hf *hf)
{
    struct hf_printed output = HF_PRINTED;
    struct hf_error err;
    int code;
    if (hf_execution_data(hf, p->id, HF_DATA_OUTPUT, hf_printed_add, &output, &err) < 0)
        code = cli_fail(p->cli, &err);
    else {
        code = print_part(p, &output.head, 0);
        if (!code)
            code = print_part(p, &output.tail, total_of(&output) - (int64_t)output.tail.len);
    }
    hf_printed_clear(&output);
    return code ? code : cli_flush();
}

int cmd_log(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct printing p = {.cli = cli, .id = argv[0]};
    struct hf_execution x;
    struct hf_error err;
    struct hf *hf;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (cli->opts.follow)
        cli_hold_signals();
    bool over;
    do { /* the end is looked for first: what was printed until then is printed after it */
        if (hf_execution_of(hf, argv[0], &x, &err) < 0)
            return cli_fail(cli, &err);
        over = x.finished_at_ms != 0;
        code = print_output(&p, hf);
    } while (!code && cli->opts.follow && !over && !cli_pause(FOLLOW_POLL_MS));
    return code;
}
