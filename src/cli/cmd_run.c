/* run: hold a name while a command runs. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "hold.h"
#include "text.h"

/*
 * The present day or hour of the local calendar as a key. The hour carries its offset from UTC: the
 * one that the end of summer time repeats is another hour.
 */
static void period_key(enum cli_period period, char ret[HF_KEY_MAX + 1])
{
    time_t now = hf_clock_wall_ms() / 1000;
    struct tm local;
    char offset[8];
    localtime_r(&now, &local);
    if (period == CLI_PERIOD_DAY) {
        strftime(ret, HF_KEY_MAX + 1, "day:%Y-%m-%d", &local);
        return;
    }
    strftime(ret, HF_KEY_MAX + 1, "hour:%Y-%m-%dT%H", &local);
    strftime(offset, sizeof offset, "%z", &local); /* +0100 */
    size_t used = strlen(ret);
    snprintf(ret + used, HF_KEY_MAX + 1 - used, "%.3s:%.2s", offset, offset + 3);
}

int cmd_run(struct cli *cli, int argc, char **argv)
{
    char *shell[4], key[HF_KEY_MAX + 1];
    struct hf_error err;
    struct cli_hold hold = {.name = argv[0],
                            .command = {.argv = cli_command_words(cli, argc, argv, shell),
                                        .in_fd = -1,
                                        .out_fd = -1,
                                        .err_fd = -1},
                            .once_key = cli->opts.once_key,
                            .taps = {{.fd = -1}, {.fd = -1}}};
    if (hf_check_name(hold.name, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.once_per) {
        period_key((enum cli_period)cli->opts.once_per, key);
        hold.once_key = key;
    }
    return cli_hold(cli, &hold);
}
