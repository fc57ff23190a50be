/* The program: its table of commands, and what happens before and after one of them. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const struct cli_command cli_commands[] = {
    {.name = "run",
     .bit = CLI_RUN,
     .synopsis = "[options] NAME [--] COMMAND [ARG...]\n[options] NAME -c STRING",
     .summary = "Hold NAME while COMMAND runs",
     .details = "The lease is renewed while COMMAND runs; its whole process tree is dead before\n"
                "anybody else can be granted NAME. The exit code is COMMAND's.",
     .min_operands = 1,
     .max_operands = -1,
     .wraps_command = true,
     .run = cmd_run},
    {.name = "acquire",
     .bit = CLI_ACQUIRE,
     .synopsis = "[options] [--pid PID] NAME",
     .summary = "Take a lease and print its token",
     .details = "The lease is not renewed: extend it in time. It is bound to no process, so that\n"
                "only its ttl ends it, unless --pid names one (--pid $$ in a script).",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_acquire},
    {.name = "extend",
     .bit = CLI_EXTEND,
     .synopsis = "[--ttl D] [NAME TOKEN]",
     .summary = "Renew a lease",
     .details = "NAME and TOKEN default to $HOLDFAST_NAME and $HOLDFAST_TOKEN.",
     .max_operands = 2,
     .run = cmd_extend},
    {.name = "release",
     .bit = CLI_RELEASE,
     .synopsis = "[NAME TOKEN]\n--force --fence N [--reason T] NAME",
     .summary = "Give a lease back, or free one by force",
     .details = "NAME and TOKEN default to $HOLDFAST_NAME and $HOLDFAST_TOKEN.",
     .max_operands = 2,
     .run = cmd_release},
    {.name = "status",
     .bit = CLI_STATUS,
     .synopsis = "NAME",
     .summary = "Show who holds NAME, since when, whether they live, and how many wait",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_status},
    {.name = "list",
     .bit = CLI_LIST,
     .synopsis = "[--held|--stale|--all] [--prefix P]",
     .summary = "List locks",
     .run = cmd_list},
    {.name = "why",
     .bit = CLI_WHY,
     .synopsis = "NAME",
     .summary = "Tell the story of a lock, newest last",
     .details = "Who had it, when and for how long, why a lease was lost, why a run was skipped.",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_why},
    {.name = "events",
     .bit = CLI_EVENTS,
     .synopsis = "[--name N] [--since D] [--follow]",
     .summary = "Show what happened, oldest first",
     .run = cmd_events},
    {.name = "guard",
     .bit = CLI_GUARD,
     .synopsis = "[NAME FENCE]",
     .summary = "Exit 0 if FENCE is the current, live fence of NAME, else 76",
     .details = "NAME and FENCE default to $HOLDFAST_NAME and $HOLDFAST_FENCE.",
     .max_operands = 2,
     .run = cmd_guard},
    {.name = "sweep",
     .bit = CLI_SWEEP,
     .synopsis = "[--every D] [--dry-run]",
     .summary = "Free expired leases and those of dead holders; remove old executions",
     .details =
         "Never needed for correctness: acquiring takes over what is stale by itself. Executions\n"
         "are kept as long as `keep` and `keep-count` of their workflow say, else for 90 days.",
     .run = cmd_sweep},
    {.name = "update",
     .bit = CLI_UPDATE,
     .synopsis = "[options] [--name N] FILE [--] COMMAND [ARG...]\n[options] [--name N] FILE -c "
                 "STRING",
     .summary = "Replace FILE by what COMMAND makes of it, atomically, under a lock",
     .details = "FILE's content is COMMAND's stdin; its stdout replaces FILE if it succeeds. The\n"
                "lock is N, by default update: and FILE's real path. Waits 30s by default.",
     .min_operands = 1,
     .max_operands = -1,
     .wraps_command = true,
     .default_wait_ms = 30000,
     .run = cmd_update},
    {.name = "start",
     .bit = CLI_START,
     .synopsis = "[options] WORKFLOW [--key K] [--input FILE|-]",
     .summary = "Run a configured workflow here, and record it as an execution",
     .details =
         "Only one execution of WORKFLOW runs at a time. What it prints is passed on and kept;\n"
         "the exit code is the command's. With a key that has been used, nothing is run and\n"
         "the exit code is that of the execution that has it.",
     .default_wait_ms = CLI_WAIT_UNSAID,
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_start},
    {.name = "schedule",
     .bit = CLI_SCHEDULE,
     .synopsis =
         "WORKFLOW (--at TIME|--in D) [--key K] [--input FILE|-] [--priority N] [--jitter D]",
     .summary = "Record an execution for later; workers run it when it is due",
     .details = "It is on disk when this returns, and its id is printed. With a key that has been\n"
                "used, nothing is recorded and the id is that of the execution that has it.",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_schedule},
    {.name = "work",
     .bit = CLI_WORK,
     .synopsis = "[--concurrency N] [--workflow W...] [--max N] [--drain]",
     .summary = "Claim executions that are due and run them, until SIGTERM",
     .details =
         "Any number of workers on any number of hosts. SIGTERM or SIGINT: claim nothing more,\n"
         "let commands finish within the grace, exit 0; again: end them at once. SIGHUP: read\n"
         "the workflows again. A line on stderr for each execution that is started or ends;\n"
         "with -q only of trouble.",
     .run = cmd_work},
    {.name = "executions",
     .bit = CLI_EXECUTIONS,
     .synopsis = "[--workflow W] [--state S] [--limit N]",
     .summary = "List executions, newest first",
     .run = cmd_executions},
    {.name = "show",
     .bit = CLI_SHOW,
     .synopsis = "ID",
     .summary = "Show an execution; with --json its input and output, too",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_show},
    {.name = "cancel",
     .bit = CLI_CANCEL,
     .synopsis = "ID",
     .summary = "Stop an execution, wherever it runs",
     .details = "One that is PENDING is ABORTED at once. One that runs learns of it by its next\n"
                "heartbeat: SIGTERM, then SIGKILL after its grace, then ABORTED.",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_cancel},
    {.name = "retry",
     .bit = CLI_RETRY,
     .synopsis = "ID\n--state S --workflow W [--dry-run]",
     .summary = "Queue a new execution with the input of one that has ended",
     .details = "The second form: of every one in that state which was not retried yet; says first "
                "how many.\n"
                "Each is repeated once, also where several do this at once. It is queued whatever "
                "else runs.",
     .max_operands = 1,
     .run = cmd_retry},
    {.name = "log",
     .bit = CLI_LOG,
     .synopsis = "ID [--follow]",
     .summary = "Print what an execution has printed",
     .min_operands = 1,
     .max_operands = 1,
     .run = cmd_log},
    {.name = "serve",
     .bit = CLI_SERVE,
     .synopsis = "[options]",
     .summary = "Serve the store over HTTP",
     .details =
         "Locks for any language, and webhooks that start workflows: see /openapi.json, /metrics,\n"
         "/healthz, /readyz. At loopback by default. What it records is run, too, by a\n"
         "process like holdfast work. SIGTERM: finish what is in flight, let commands end,\n"
         "exit 0; SIGHUP: read the workflows and tokens again.",
     .run = cmd_serve},
    {.name = "token",
     .bit = CLI_TOKEN,
     .synopsis = "create --allow VERBS [--prefix P] [--expires D] [--note T]\nlist\nrevoke ID",
     .summary = "Make, list and revoke the tokens of the service's clients",
     .details = "create prints the token once; the store keeps only its hash.",
     .min_operands = 1,
     .max_operands = 2,
     .run = cmd_token},
    {.name = "metrics",
     .bit = CLI_METRICS,
     .synopsis = "",
     .summary = "Print the store's totals as Prometheus text",
     .run = cmd_metrics},
    {.name = "init",
     .bit = CLI_INIT,
     .synopsis = "[--print] [--bump-epoch]",
     .summary = "Create the store or bring its schema up to date",
     .run = cmd_init},
    {.name = "help",
     .bit = CLI_HELP,
     .synopsis = "[COMMAND]",
     .summary = "Show help",
     .max_operands = 1,
     .run = cmd_help},
};
const size_t cli_n_commands = sizeof cli_commands / sizeof cli_commands[0];

const struct cli_command *cli_find_command(const char *name)
{
    for (size_t i = 0; i < cli_n_commands; i++)
        if (strcmp(cli_commands[i].name, name) == 0)
            return &cli_commands[i];
    return NULL;
}

/*
 * No file that we open may become stdin, stdout or stderr. A stand-in for a closed one can't be
 * used, so that writing to a closed stdout is still an error, and COMMAND still finds it closed.
 */
static void reserve_standard_files(void)
{
    static const int unusable[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", unusable[fd] | O_CLOEXEC) != fd)
            _exit(CLI_EXIT_INTERNAL);
}

static int dispatch(struct cli *cli, int argc, char **argv)
{
    int n_operands;
    int code = cli_parse(cli, argc, argv, &n_operands);
    if (code)
        return code;
    if (cli->opts.version) {
        puts("holdfast " HF_VERSION);
        return 0;
    }
    if (!cli->command) {
        cli_help_overview(cli->opts.help ? stdout : stderr);
        return cli->opts.help ? 0 : CLI_EXIT_USAGE;
    }
    if (cli->opts.help) {
        cli_help_command(stdout, cli->command);
        return 0;
    }
    bool starts_commands =
        cli->command->wraps_command || cli->command->bit & (CLI_START | CLI_WORK);
    if (!starts_commands) /* they would inherit it */
        signal(SIGPIPE, SIG_IGN);
    return cli->command->run(cli, n_operands, argv);
}

int main(int argc, char **argv)
{
    reserve_standard_files();
    struct cli cli = {0};
    int code = dispatch(&cli, argc - 1, argv + 1);
    hf_close(cli.hf);
    int output_code = cli_flush();
    return code ? code : output_code;
}
