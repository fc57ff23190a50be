/* What every command says in the same way: errors, usage, and that stdout could not be written. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "cli.h"

/* Whatever a message quotes, it stays one line and can't steer a terminal. */
static void complain(const char *message)
{
    char line[HF_MESSAGE_MAX + 256];
    snprintf(line, sizeof line, "%s", message);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "holdfast: %s\n", line);
}

void cli_complain(const char *format, ...)
{
    char message[HF_MESSAGE_MAX + 256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    complain(message);
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
    char message[HF_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    const char *name = cli->command ? cli->command->name : "";
    cli_complain("%s (see: holdfast help%s%s)", message, *name ? " " : "", name);
    return CLI_EXIT_USAGE;
}

int cli_exit_code(const struct cli *cli, int code)
{
    int exit_code = hf_code_exit(code);
    return exit_code == CLI_EXIT_HELD ? (int)cli->opts.conflict_exit_code : exit_code;
}

/* What to do next, where the library can't know which command was used. */
static const char *hint_for(const struct cli *cli, int code)
{
    unsigned bit = cli->command->bit;
    if (code == -HF_HELD && bit & (CLI_RUN | CLI_ACQUIRE | CLI_UPDATE) && cli->opts.wait_ms == 0)
        return "; wait with --wait=5m";
    if (code == -HF_FENCE_STALE && bit == CLI_RELEASE)
        return "; nothing was freed, look again with holdfast status";
    return "";
}

int cli_fail(const struct cli *cli, const struct hf_error *err)
{
    if (!cli->opts.quiet || hf_code_exit(err->code) != CLI_EXIT_HELD)
        cli_complain("%s%s", err->message, hint_for(cli, err->code));
    return cli_exit_code(cli, err->code);
}

int cli_open(struct cli *cli, struct hf **ret)
{
    struct hf_error err;
    if (!cli->hf && hf_open(cli->opts.store_url, &cli->hf, &err) < 0)
        return cli_fail(cli, &err);
    *ret = cli->hf;
    return 0;
}

int cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    int saved_errno = errno;
    clearerr(stdout);
    cli_complain("can't write the output: %s", strerror(saved_errno));
    return CLI_EXIT_OUTPUT;
}
