/* What every command says in the same way: errors, results, that stdout could not be written. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "text.h"

/* ---- errors --------------------------------------------------------------------------------- */

enum { LINE_MAX_BYTES = 2 * HF_MESSAGE_MAX };

/* Whatever a line quotes, it stays one line and can't steer a terminal. */
static void defuse(char *line)
{
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

void cli_complain(const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    defuse(line);
    fprintf(stderr, "holdfast: %s\n", line);
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

/* The exit code for a library code, -E taken into account. */
static int exit_code_of(const struct cli *cli, int code)
{
    int exit_code = hf_code_exit(code);
    return exit_code == CLI_EXIT_HELD ? (int)cli->opts.conflict_exit_code : exit_code;
}

/* What to do next, where the library can't know which command was used. */
static void hint_for(const struct cli *cli, int code, char *ret, size_t size)
{
    unsigned bit = cli->command->bit;
    char span[HF_SPAN_MAX];
    *ret = '\0';
    if (code == -HF_HELD && bit & (CLI_RUN | CLI_ACQUIRE | CLI_UPDATE | CLI_START)) {
        hf_format_span(cli->opts.wait_ms, span);
        if (cli->opts.wait_ms == 0)
            snprintf(ret, size, "; wait with --wait=5m");
        else
            snprintf(ret, size, "; gave up after waiting %s", span);
    } else if (code == -HF_FENCE_STALE && bit == CLI_RELEASE)
        snprintf(ret, size, "; nothing was freed, look again with holdfast status");
}

int cli_fail(const struct cli *cli, const struct hf_error *err)
{
    char hint[128];
    hint_for(cli, err->code, hint, sizeof hint);
    if (!cli->opts.quiet || hf_code_exit(err->code) != CLI_EXIT_HELD)
        cli_complain("%s%s", err->message, hint);
    return exit_code_of(cli, err->code);
}

int cli_open(struct cli *cli, struct hf **ret)
{
    struct hf_error err;
    if (!cli->hf && hf_open(cli->opts.store_url, &cli->hf, &err) < 0)
        return cli_fail(cli, &err);
    *ret = cli->hf;
    return 0;
}

void cli_warn(const struct cli *cli)
{
    const char *caution = cli->opts.quiet ? NULL : hf_caution(cli->hf);
    if (caution)
        cli_complain("warning: %s: %s", hf_url(cli->hf), caution);
}

/* ---- results -------------------------------------------------------------------------------- */

static bool has_colour(void)
{
    static int known = -1;
    const char *refused = getenv("NO_COLOR");
    if (known < 0)
        known = !(refused && *refused) && isatty(STDOUT_FILENO);
    return known;
}

void cli_say(enum cli_style style, const char *format, ...)
{
    static const char *const codes[] = {
        [CLI_GOOD] = "32", [CLI_BAD] = "1;31", [CLI_FAINT] = "2", [CLI_BOLD] = "1"};
    char line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    defuse(line);
    if (style != CLI_PLAIN && has_colour())
        printf("\033[%sm%s\033[0m\n", codes[style], line);
    else
        puts(line);
}

int cli_put_json(struct hf_buf *json)
{
    bool failed = json->failed;
    if (failed)
        cli_complain("the answer is too large, or memory has run out");
    else
        puts(json->data);
    hf_buf_clear(json);
    return failed ? CLI_EXIT_INTERNAL : 0;
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

/* ---- signals that ask us to end ------------------------------------------------------------- */

/* What is ignored (nohup) stays ignored. */
static void ending_signals(sigset_t *ret)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;
    sigemptyset(ret);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(ret, signals[i]);
}

void cli_hold_signals(void)
{
    sigset_t set;
    ending_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

bool cli_pause(int64_t ms)
{
    sigset_t set;
    ending_signals(&set);
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};
    return sigtimedwait(&set, NULL, &span) > 0;
}

int cli_held_signals(void)
{
    sigset_t set;
    ending_signals(&set);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

void cli_die_of_signal(void)
{
    sigset_t set;
    ending_signals(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL); /* it is pending still: this is where we die */
}
