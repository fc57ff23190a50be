/*
 * The command line: one table of commands (main.c), one table of options (options.c), and what the
 * commands share. A command is called with its options parsed into `cli->opts` and its operands in
 * argv, and returns the exit code:
 *
 *     int cmd_status(struct cli *cli, int argc, char **argv)
 *     {
 *         struct hf *hf;
 *         int code = cli_open(cli, &hf);
 *         if (code)
 *             return code;                    // the error was printed
 *         if (hf_status_of(hf, argv[0], &status, &err) < 0)
 *             return cli_fail(cli, &err);     // prints it, answers the exit code
 *         ...
 *     }
 */
#ifndef HF_CLI_CLI_H
#define HF_CLI_CLI_H

#include <stdio.h>

#include "buf.h"
#include "holdfast.h"

/* Exit codes of our own; those of the library's codes come from hf_code_exit(). */
enum {
    CLI_EXIT_USAGE = 64,
    CLI_EXIT_DATA = 65,
    CLI_EXIT_INTERNAL = 70,
    CLI_EXIT_OUTPUT = 74, /* stdout could not be written */
    CLI_EXIT_HELD = 75
};

/* Which commands take an option: one bit each. */
enum {
    CLI_RUN = 1 << 0,
    CLI_ACQUIRE = 1 << 1,
    CLI_EXTEND = 1 << 2,
    CLI_RELEASE = 1 << 3,
    CLI_STATUS = 1 << 4,
    CLI_LIST = 1 << 5,
    CLI_WHY = 1 << 6,
    CLI_EVENTS = 1 << 7,
    CLI_GUARD = 1 << 8,
    CLI_SWEEP = 1 << 9,
    CLI_UPDATE = 1 << 10,
    CLI_METRICS = 1 << 11,
    CLI_INIT = 1 << 12,
    CLI_HELP = 1 << 13,
    CLI_START = 1 << 14,
    CLI_EXECUTIONS = 1 << 15,
    CLI_SHOW = 1 << 16,
    CLI_CANCEL = 1 << 17,
    CLI_RETRY = 1 << 18,
    CLI_LOG = 1 << 19,
    CLI_SERVE = 1 << 20,
    CLI_TOKEN = 1 << 21,
    CLI_WORK = 1 << 22,
    CLI_SCHEDULE = 1 << 23,
    CLI_ALL = (1 << 24) - 1
};

/* An option that may be given again and again. */
struct cli_names {
    const char *of[64];
    size_t n;
};

enum cli_period { CLI_PERIOD_NONE, CLI_PERIOD_HOUR, CLI_PERIOD_DAY };

/* Every option of every command, checked, with its default where it was not given. */
struct cli_options {
    /* global */
    const char *store_url; /* NULL: the library's default */
    bool json, quiet, help, version;
    /* taking a lease: run, acquire, update */
    int64_t wait_ms; /* as hf_acquire_options.wait_ms */
    int64_t ttl_ms;  /* 0 (extend only): keep the lease's own */
    int64_t grace_ms;
    int64_t conflict_exit_code; /* what to exit with instead of 75 */
    const char *owner, *note;   /* NULL: not given */
    int64_t priority;
    int64_t pid; /* acquire: the process that the lease is bound to; 0: none */
    /* around a command: run, update */
    const char *shell_string; /* -c: for $SHELL -c; then there is no COMMAND */
    int64_t timeout_ms;       /* 0: none */
    const char *once_key;
    int64_t once_per; /* enum cli_period */
    /* the rest */
    const char *name; /* update, events */
    bool force;
    int64_t fence; /* release; -1: not given; 0: of a foreign lock file, which has none */
    const char *reason;
    int64_t filter; /* list: enum hf_list_filter */
    const char *prefix;
    int64_t since_ms; /* events; 0: not given */
    bool follow;
    int64_t every_ms; /* sweep; 0: once */
    bool dry_run;
    bool print_schema, bump_epoch;
    /* executions: start, executions, retry */
    const char *config_path; /* NULL: as hf_workflows_path() has it */
    const char *key, *input_path;
    bool detach;
    const char *workflow;
    int64_t state; /* enum hf_execution_state; -1: not given */
    int64_t limit; /* 0: all */
    /* work, schedule */
    struct cli_names workflows;
    int64_t concurrency, max; /* 0: not given */
    int64_t stop_grace_ms;
    bool no_work;
    bool drain;
    int64_t at_ms; /* since 1970; -1: not given */
    int64_t in_ms; /* -1: not given */
    int64_t jitter_ms;
    /* serve, token */
    const char *listen, *tls_cert, *tls_key;
    bool require_token, log_requests;
    int64_t log_json; /* as --log-format says */
    int64_t max_connections, max_body, receive_ms;
    const char *allow;
    int64_t expires_ms; /* 0: never */
};

struct cli_command;

struct cli {
    const struct cli_command *command;
    struct cli_options opts;
    struct hf *hf; /* opened by cli_open(), closed by main */
};

struct cli_command {
    const char *name;
    unsigned bit;
    const char *synopsis; /* what follows the name; \n separates forms */
    const char *summary;
    const char *details;            /* for help: a paragraph, or NULL */
    int min_operands, max_operands; /* max -1: any number */
    bool wraps_command;      /* options end at the first operand; what follows is COMMAND's */
    int64_t default_wait_ms; /* or CLI_WAIT_UNSAID: it depends */
    int (*run)(struct cli *cli, int argc, char **argv);
};

extern const struct cli_command cli_commands[];
extern const size_t cli_n_commands;
const struct cli_command *cli_find_command(const char *name);

/* ---- options (options.c) -------------------------------------------------------------------- */

enum cli_option_type {
    CLI_FLAG,     /* bool: true */
    CLI_SET,      /* int64_t: the option's `min` */
    CLI_DURATION, /* int64_t in ms, within min and max */
    CLI_WAIT,     /* -w D, --wait=D, --wait */
    CLI_INT,      /* int64_t within min and max */
    CLI_TEXT,     /* const char *, at most `max` bytes */
    CLI_NAME,     /* const char *, a valid name */
    CLI_NAMES,    /* struct cli_names: one more */
    CLI_TIME,     /* int64_t in ms since 1970 */
    CLI_STAGE,    /* int64_t: enum hf_execution_state */
    CLI_PERIOD,   /* enum cli_period */
    CLI_FORMAT    /* bool as int64_t: text or json */
};

/* One option: the parser, --help and the tests of man pages and completions read this table. */
struct cli_option {
    char letter;      /* 0: none */
    const char *name; /* without its dashes */
    const char *arg;  /* what the value is called; NULL: takes none */
    unsigned commands;
    enum cli_option_type type;
    size_t offset; /* in struct cli_options */
    int64_t min, max;
    const char *help;
};
extern const struct cli_option cli_option_table[];
extern const size_t cli_n_options;

/* A whole number in decimal, nothing around it, within [min, max]. */
int cli_parse_int(const char *text, int64_t min, int64_t max, int64_t *ret, struct hf_error *err);
#define CLI_FENCE_MAX ((INT64_C(1) << 53) - 1)

/*
 * Parse the words after the program's name: sets cli->command and cli->opts and moves the operands
 * to the front of argv. For run and update they are NAME (or FILE), then COMMAND without its "--".
 * Returns 0 with *ret_operands set, or the exit code after the error was printed.
 */
int cli_parse(struct cli *cli, int argc, char **argv, int *ret_operands);

/* ---- help (help.c) -------------------------------------------------------------------------- */

void cli_help_overview(FILE *out);
void cli_help_command(FILE *out, const struct cli_command *command);

/* Complain, with the command that was probably meant; CLI_EXIT_USAGE. */
int cli_unknown_command(const char *word);

/* The option of these commands that a mistyped one was probably meant to be, or NULL. */
const char *cli_nearest_option(const char *word, unsigned command_bits);

/* ---- talking (talk.c) ----------------------------------------------------------------------- */

/* Print "holdfast: " and the message on stderr as one line. */
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same with a hint to the command's help; always CLI_EXIT_USAGE. */
int cli_usage(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Say what failed, who holds it and what to do next; the exit code for it. With -q nothing is said
 * where the lock is merely held: the exit code does.
 */
int cli_fail(const struct cli *cli, const struct hf_error *err);

/* Open the store; later calls answer the same handle. 0, or the exit code after complaining. */
int cli_open(struct cli *cli, struct hf **ret);

/* Say what may break the promise on the store that was opened, unless -q. */
void cli_warn(const struct cli *cli);

/* Flush stdout: 0, or CLI_EXIT_OUTPUT after complaining. */
int cli_flush(void);

/* How a line stands out on a terminal; nowhere else, and not with NO_COLOR. */
enum cli_style { CLI_PLAIN, CLI_GOOD, CLI_BAD, CLI_FAINT, CLI_BOLD };

/* Print one line for people on stdout; what it quotes can't steer a terminal. */
void cli_say(enum cli_style style, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print a JSON object and a newline, and clear it. 0, or the exit code after complaining. */
int cli_put_json(struct hf_buf *json);
enum { CLI_WAIT_UNSAID = -2 };   /* as a wait: neither --wait nor --nonblock was given */
enum { CLI_JSON_MAX = 1 << 16 }; /* the cap of one object */

/*
 * Hold back the signals that ask us to end (SIGINT, SIGTERM, SIGHUP) for commands that finish what
 * they are at. Then cli_pause() sleeps and answers true if one came; cli_held_signals() gives a
 * descriptor that becomes readable instead.
 */
void cli_hold_signals(void);
bool cli_pause(int64_t ms);
int cli_held_signals(void);

/* Die of the held signal that came, as if it had never been held. */
void cli_die_of_signal(void);

/* ---- tables (table.c) ----------------------------------------------------------------------- */

enum { CLI_COLUMNS_MAX = 8 };

/*
 * Rows for people, aligned a screenful at a time so that a million of them need no memory. Start
 * from zero with `heads` and `n_columns` set; every row has n_columns cells.
 */
struct cli_table {
    const char *const *heads;
    size_t n_columns;
    size_t widths[CLI_COLUMNS_MAX];
    struct hf_buf rows; /* not yet printed: each its style, then its cells, NUL-terminated */
    size_t n_rows;
    bool headed;
};
void cli_table_row(struct cli_table *table, enum cli_style style, const char *const *cells);
void cli_table_end(struct cli_table *table);

/* ---- sentences (story.c) -------------------------------------------------------------------- */

/* What happened, in words: "web1/4121 acquired it (fence 7)". */
void cli_tell_event(const struct hf_event *event, struct hf_buf *out);

/* ---- executions (cmd_executions.c) ---------------------------------------------------------- */

/* An execution as one JSON object. 0, or the exit code after complaining. */
int cli_put_execution(const struct hf_execution *execution);

/* ---- the commands --------------------------------------------------------------------------- */

typedef int cli_command_fn(struct cli *cli, int argc, char **argv);
cli_command_fn cmd_run, cmd_acquire, cmd_extend, cmd_release, cmd_status, cmd_list, cmd_why,
    cmd_events, cmd_guard, cmd_sweep, cmd_update, cmd_metrics, cmd_init, cmd_help, cmd_start,
    cmd_executions, cmd_show, cmd_cancel, cmd_retry, cmd_log, cmd_serve, cmd_token, cmd_work,
    cmd_schedule;

#endif
