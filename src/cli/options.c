/*
 * Every option of every command, declared once: parsed from here, shown by --help from here, and
 * held against the man pages and completions by tests/cli/test_help.py.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "error.h"
#include "serve.h"
#include "text.h"

#define TAKES (CLI_RUN | CLI_ACQUIRE | CLI_UPDATE)
#define WAITS (TAKES | CLI_START)
#define WRAPS (CLI_RUN | CLI_UPDATE)
#define AT(member) offsetof(struct cli_options, member)

enum {
    GRACE_DEFAULT_MS = 10000,
    STOP_GRACE_DEFAULT_MS = 30000,
    PRIORITY_MAX = 1000000,
    CONCURRENCY_MAX = 10000
};
#define EVER INT64_MAX

const struct cli_option cli_option_table[] = {
    {'w', "wait", "D", WAITS, CLI_WAIT, AT(wait_ms), 0, EVER,
     "wait up to D for the lock; plain --wait: for ever"},
    {'n', "nonblock", NULL, WAITS, CLI_SET, AT(wait_ms), 0, 0, "do not wait"},
    {0, "ttl", "D", TAKES | CLI_EXTEND, CLI_DURATION, AT(ttl_ms), HF_TTL_MIN_MS, HF_TTL_MAX_MS,
     "how long the lease lasts unless renewed (60s; extend: as long as before)"},
    {0, "grace", "D", WRAPS, CLI_DURATION, AT(grace_ms), 0, EVER,
     "time between SIGTERM and SIGKILL when COMMAND must stop (10s, at most ttl/3)"},
    {'E', "conflict-exit-code", "N", WAITS, CLI_INT, AT(conflict_exit_code), 0, 255,
     "exit with N instead of 75 when it is held by another"},
    {0, "owner", "T", WAITS, CLI_TEXT, AT(owner), 1, HF_OWNER_MAX,
     "who holds it, for people (HOST/PID)"},
    {0, "note", "T", WAITS | CLI_TOKEN, CLI_TEXT, AT(note), 0, HF_NOTE_MAX, "what for, for people"},
    {0, "priority", "N", WAITS | CLI_SCHEDULE, CLI_INT, AT(priority), -PRIORITY_MAX, PRIORITY_MAX,
     "among those who wait the highest goes first (0)"},
    {0, "pid", "PID", CLI_ACQUIRE, CLI_INT, AT(pid), 1, INT32_MAX,
     "the lease ends when this local process does"},
    {'c', "command", "STRING", WRAPS, CLI_TEXT, AT(shell_string), 1, INT_MAX,
     "run STRING by $SHELL -c; may follow NAME or FILE"},
    {0, "timeout", "D", CLI_RUN, CLI_DURATION, AT(timeout_ms), 1, EVER,
     "stop COMMAND after D and exit with 124"},
    {0, "once", "KEY", CLI_RUN, CLI_TEXT, AT(once_key), 1, HF_KEY_MAX,
     "do nothing, exit 0, if a run of NAME with KEY has already succeeded"},
    {0, "once-per", "hour|day", CLI_RUN, CLI_PERIOD, AT(once_per), 0, 0,
     "the same, the key being the present hour or day"},
    {0, "name", "N", CLI_UPDATE | CLI_EVENTS, CLI_NAME, AT(name), 0, 0, "the name of the lock"},
    {0, "force", NULL, CLI_RELEASE, CLI_FLAG, AT(force), 0, 0,
     "free it without its token: your word that the holder is dead"},
    {0, "fence", "N", CLI_RELEASE, CLI_INT, AT(fence), 0, CLI_FENCE_MAX,
     "with --force: the fence that status showed, so that no successor is freed"},
    {0, "reason", "T", CLI_RELEASE, CLI_TEXT, AT(reason), 0, HF_REASON_MAX,
     "with --force: why, for the record"},
    {0, "held", NULL, CLI_LIST, CLI_SET, AT(filter), HF_LIST_HELD, 0,
     "what is held, stale or not (default)"},
    {0, "stale", NULL, CLI_LIST, CLI_SET, AT(filter), HF_LIST_STALE, 0,
     "what has expired or lost its holder, and is not yet freed"},
    {0, "all", NULL, CLI_LIST, CLI_SET, AT(filter), HF_LIST_ALL, 0, "every name, free ones too"},
    {0, "prefix", "P", CLI_LIST | CLI_TOKEN, CLI_TEXT, AT(prefix), 0, HF_NAME_MAX,
     "only names that begin with P"},
    {0, "since", "D", CLI_EVENTS, CLI_DURATION, AT(since_ms), 1, EVER, "only the last D"},
    {'f', "follow", NULL, CLI_EVENTS | CLI_LOG, CLI_FLAG, AT(follow), 0, 0,
     "go on printing as it happens (log: until the end), until interrupted"},
    {0, "every", "D", CLI_SWEEP, CLI_DURATION, AT(every_ms), 100, EVER,
     "sweep again every D until SIGTERM or SIGINT"},
    {0, "dry-run", NULL, CLI_SWEEP | CLI_RETRY, CLI_FLAG, AT(dry_run), 0, 0,
     "only say what would be freed, or repeated"},
    {0, "config", "FILE", CLI_START | CLI_SCHEDULE | CLI_WORK | CLI_SERVE, CLI_TEXT,
     AT(config_path), 1, INT_MAX,
     "the workflows ($HOLDFAST_CONFIG, else /etc/holdfast/holdfast.yaml)"},
    {0, "key", "K", CLI_START | CLI_SCHEDULE, CLI_TEXT, AT(key), 1, HF_KEY_MAX,
     "idempotency: at most one execution of WORKFLOW with this key"},
    {0, "input", "FILE|-", CLI_START | CLI_SCHEDULE, CLI_TEXT, AT(input_path), 1, INT_MAX,
     "what the command reads on its stdin; -: what we read on ours"},
    {0, "detach", NULL, CLI_START, CLI_FLAG, AT(detach), 0, 0,
     "only record it as PENDING, for whoever claims it, and print its id"},
    {0, "at", "TIME", CLI_SCHEDULE, CLI_TIME, AT(at_ms), 0, 0,
     "not before this time, e.g. 2026-12-24T18:00:00Z"},
    {0, "in", "D", CLI_SCHEDULE, CLI_DURATION, AT(in_ms), 0, EVER, "not before D from now"},
    {0, "jitter", "D", CLI_SCHEDULE, CLI_DURATION, AT(jitter_ms), 0, EVER,
     "up to D later, at random: so that many do not come together"},
    {0, "concurrency", "N", CLI_WORK | CLI_SERVE, CLI_INT, AT(concurrency), 1, CONCURRENCY_MAX,
     "commands at once (as many as there are processors)"},
    {0, "workflow", "W", CLI_WORK, CLI_NAMES, AT(workflows), 0, 0,
     "only this workflow; may be given again"},
    {0, "max", "N", CLI_WORK, CLI_INT, AT(max), 1, INT32_MAX, "exit after N executions"},
    {0, "drain", NULL, CLI_WORK, CLI_FLAG, AT(drain), 0, 0, "exit when nothing is due"},
    {0, "grace", "D", CLI_WORK | CLI_SERVE, CLI_DURATION, AT(stop_grace_ms), 0, EVER,
     "how long commands may go on after SIGTERM (30s)"},
    {0, "workflow", "W", CLI_EXECUTIONS | CLI_RETRY, CLI_NAME, AT(workflow), 0, 0,
     "only those of this workflow"},
    {0, "state", "S", CLI_EXECUTIONS | CLI_RETRY, CLI_STAGE, AT(state), 0, 0,
     "only those that are PENDING, RUNNING, SUCCESS, FAILED or ABORTED"},
    {0, "limit", "N", CLI_EXECUTIONS, CLI_INT, AT(limit), 1, INT32_MAX,
     "at most the newest N (100)"},
    {0, "print", NULL, CLI_INIT, CLI_FLAG, AT(print_schema), 0, 0, "print the schema instead"},
    {0, "bump-epoch", NULL, CLI_INIT, CLI_FLAG, AT(bump_epoch), 0, 0,
     "raise every later fence past those that a restored backup may have lost"},
    {0, "listen", "ADDR", CLI_SERVE, CLI_TEXT, AT(listen), 1, INT_MAX,
     "HOST:PORT or unix:PATH, several with commas (127.0.0.1:7480)"},
    {0, "no-work", NULL, CLI_SERVE, CLI_FLAG, AT(no_work), 0, 0,
     "only record what is to be run, for holdfast work elsewhere"},
    {0, "require-token", NULL, CLI_SERVE, CLI_FLAG, AT(require_token), 0, 0,
     "serve only who has a token (see holdfast token); needed beyond this machine"},
    {0, "tls-cert", "FILE", CLI_SERVE, CLI_TEXT, AT(tls_cert), 1, INT_MAX,
     "serve https with this certificate (PEM)"},
    {0, "tls-key", "FILE", CLI_SERVE, CLI_TEXT, AT(tls_key), 1, INT_MAX,
     "the certificate's key (PEM)"},
    {0, "max-connections", "N", CLI_SERVE, CLI_INT, AT(max_connections), 1, 1000000,
     "clients at once, per address (20000)"},
    {0, "receive-timeout", "D", CLI_SERVE, CLI_DURATION, AT(receive_ms), 100, EVER,
     "how long a request may take to arrive (15s)"},
    {0, "max-body", "N", CLI_SERVE, CLI_INT, AT(max_body), 1 << 16, HF_INPUT_MAX,
     "bytes that a webhook's body may have (1048576)"},
    {0, "log-format", "text|json", CLI_SERVE | CLI_WORK, CLI_FORMAT, AT(log_json), 0, 0,
     "how lines on stderr look (text)"},
    {0, "log-requests", NULL, CLI_SERVE, CLI_FLAG, AT(log_requests), 0, 0,
     "a line for every request, not only for those that fail here"},
    {0, "allow", "VERBS", CLI_TOKEN, CLI_TEXT, AT(allow), 1, HF_VERBS_MAX,
     "create: what it may do, with commas (see the man page)"},
    {0, "expires", "D", CLI_TOKEN, CLI_DURATION, AT(expires_ms), 1, EVER,
     "create: it is good for D (for ever)"},
    {0, "store", "URL", CLI_ALL, CLI_TEXT, AT(store_url), 1, INT_MAX,
     "sqlite:, file:, postgres:, dynamodb:, etcd: or http: ($HOLDFAST_STORE, else your sqlite:)"},
    {0, "json", NULL, CLI_ALL, CLI_FLAG, AT(json), 0, 0, "print JSON: one object per line"},
    {'q', "quiet", NULL, CLI_ALL, CLI_FLAG, AT(quiet), 0, 0,
     "print only what was asked for, and errors; not that a lock is held"},
    {'h', "help", NULL, CLI_ALL, CLI_FLAG, AT(help), 0, 0, "show this help"},
    {0, "version", NULL, CLI_ALL, CLI_FLAG, AT(version), 0, 0, "show the version"},
};
const size_t cli_n_options = sizeof cli_option_table / sizeof cli_option_table[0];

/* ---- values --------------------------------------------------------------------------------- */

/* Store an option's value into its field, or fail with what was expected. */
typedef int apply_fn(const struct cli_option *o, const char *value, void *field,
                     struct hf_error *err);

static int apply_flag(const struct cli_option *o, const char *value, void *field,
                      struct hf_error *err)
{
    (void)o, (void)value, (void)err;
    *(bool *)field = true;
    return 0;
}

static int apply_set(const struct cli_option *o, const char *value, void *field,
                     struct hf_error *err)
{
    (void)value, (void)err;
    *(int64_t *)field = o->min;
    return 0;
}

static int apply_duration(const struct cli_option *o, const char *value, void *field,
                          struct hf_error *err)
{
    int64_t ms = 0;
    int r = hf_parse_duration(value, &ms, err);
    if (r == 0 && o->max == HF_TTL_MAX_MS)
        r = hf_check_ttl(ms, err);
    if (r < 0)
        return r;
    if (ms < o->min)
        return hf_fail(err, HF_INVALID, "'%s' is too short: at least %lld ms", value,
                       (long long)o->min);
    *(int64_t *)field = ms;
    return 0;
}

static int apply_wait(const struct cli_option *o, const char *value, void *field,
                      struct hf_error *err)
{
    if (value)
        return apply_duration(o, value, field, err);
    *(int64_t *)field = HF_FOREVER;
    return 0;
}

int cli_parse_int(const char *text, int64_t min, int64_t max, int64_t *ret, struct hf_error *err)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool bare = text[0] == '-' || (text[0] >= '0' && text[0] <= '9');
    if (!bare || errno || *end || end == text || n < min || n > max)
        return hf_fail(err, HF_INVALID, "'%.40s' is not a whole number from %lld to %lld", text,
                       (long long)min, (long long)max);
    *ret = n;
    return 0;
}

static int apply_int(const struct cli_option *o, const char *value, void *field,
                     struct hf_error *err)
{
    return cli_parse_int(value, o->min, o->max, field, err);
}

static int apply_text(const struct cli_option *o, const char *value, void *field,
                      struct hf_error *err)
{
    if (!*value && o->min)
        return hf_fail(err, HF_INVALID, "must not be empty");
    if (o->max < INT_MAX) {
        int r = hf_check_text(o->name, value, (size_t)o->max, err);
        if (r < 0)
            return r;
    }
    *(const char **)field = value;
    return 0;
}

static int apply_name(const struct cli_option *o, const char *value, void *field,
                      struct hf_error *err)
{
    (void)o;
    int r = hf_check_name(value, err);
    if (r == 0)
        *(const char **)field = value;
    return r;
}

static int apply_names(const struct cli_option *o, const char *value, void *field,
                       struct hf_error *err)
{
    struct cli_names *names = field;
    if (names->n == sizeof names->of / sizeof *names->of)
        return hf_fail(err, HF_INVALID, "is given more than %zu times", names->n);
    int r = apply_name(o, value, &names->of[names->n], err);
    names->n += r == 0;
    return r;
}

static int apply_time(const struct cli_option *o, const char *value, void *field,
                      struct hf_error *err)
{
    (void)o;
    return hf_parse_time(value, field, err);
}

static int apply_period(const struct cli_option *o, const char *value, void *field,
                        struct hf_error *err)
{
    (void)o;
    static const char *const names[] = {[CLI_PERIOD_HOUR] = "hour", [CLI_PERIOD_DAY] = "day"};
    for (int64_t i = CLI_PERIOD_HOUR; i <= CLI_PERIOD_DAY; i++)
        if (strcmp(value, names[i]) == 0) {
            *(int64_t *)field = i;
            return 0;
        }
    return hf_fail(err, HF_INVALID, "'%s' is neither hour nor day", value);
}

static int apply_stage(const struct cli_option *o, const char *value, void *field,
                       struct hf_error *err)
{
    (void)o;
    for (int64_t i = 0; i < HF_EXECUTION_STATE_COUNT; i++)
        if (strcasecmp(value, hf_execution_state_name((enum hf_execution_state)i)) == 0) {
            *(int64_t *)field = i;
            return 0;
        }
    return hf_fail(err, HF_INVALID, "'%.40s' is none of PENDING, RUNNING, SUCCESS, FAILED, ABORTED",
                   value);
}

static int apply_format(const struct cli_option *o, const char *value, void *field,
                        struct hf_error *err)
{
    (void)o;
    *(int64_t *)field = strcmp(value, "json") == 0;
    return *(int64_t *)field || strcmp(value, "text") == 0
               ? 0
               : hf_fail(err, HF_INVALID, "'%s' is neither text nor json", value);
}

static apply_fn *const appliers[] = {
    [CLI_FLAG] = apply_flag,     [CLI_SET] = apply_set,       [CLI_DURATION] = apply_duration,
    [CLI_WAIT] = apply_wait,     [CLI_INT] = apply_int,       [CLI_TEXT] = apply_text,
    [CLI_NAME] = apply_name,     [CLI_PERIOD] = apply_period, [CLI_STAGE] = apply_stage,
    [CLI_FORMAT] = apply_format, [CLI_NAMES] = apply_names,   [CLI_TIME] = apply_time,
};

/* ---- words ---------------------------------------------------------------------------------- */

/* The command line as it is read: operands are moved to the front of the same array. */
struct words {
    char **argv;
    int argc, at;
    int n_operands;
    bool options_over;
};

/* Before the command's name only those options are known that every command has. */
static bool is_accepted(const struct cli *cli, const struct cli_option *o)
{
    return cli->command ? o->commands & cli->command->bit : o->commands == CLI_ALL;
}

static const struct cli_option *find_long(const struct cli *cli, const char *name, size_t n)
{
    for (size_t i = 0; i < cli_n_options; i++) {
        const struct cli_option *o = &cli_option_table[i];
        if (is_accepted(cli, o) && strncmp(o->name, name, n) == 0 && !o->name[n])
            return o;
    }
    return NULL;
}

static const struct cli_option *find_letter(const struct cli *cli, char letter)
{
    for (size_t i = 0; i < cli_n_options; i++)
        if (cli_option_table[i].letter == letter && is_accepted(cli, &cli_option_table[i]))
            return &cli_option_table[i];
    return NULL;
}

/* `shown` is the option as it was typed. A bad name is bad data wherever it stands. */
static int apply(struct cli *cli, const struct cli_option *o, const char *shown, const char *value)
{
    struct hf_error err;
    if (appliers[o->type](o, value, (char *)&cli->opts + o->offset, &err) == 0)
        return 0;
    if (o->type != CLI_NAME && o->type != CLI_NAMES)
        return cli_usage(cli, "%s: %s", shown, err.message);
    cli_complain("%s: %s", shown, err.message);
    return CLI_EXIT_DATA;
}

static int unknown_option(const struct cli *cli, const char *shown)
{
    const char *command = cli->command ? cli->command->name : "holdfast";
    const char *nearest = cli_nearest_option(shown, cli->command ? cli->command->bit : CLI_ALL);
    if (nearest)
        return cli_usage(cli, "%s has no option %s; did you mean --%s?", command, shown, nearest);
    return cli_usage(cli, "%s has no option %s", command, shown);
}

/* The value of an option that needs one is the rest of its word, or the next word. */
static int take_value(struct cli *cli, struct words *w, const struct cli_option *o,
                      const char *shown, const char *rest)
{
    if (rest)
        return apply(cli, o, shown, rest);
    if (w->at >= w->argc)
        return cli_usage(cli, "%s needs a value: %s %s", shown, shown, o->arg);
    return apply(cli, o, shown, w->argv[w->at++]);
}

/* --wait takes its value only after '=': what follows may be the lock's name. */
static int take_plain_wait(struct cli *cli, struct words *w, const struct cli_option *o)
{
    int64_t ms;
    const char *next = w->at < w->argc ? w->argv[w->at] : "";
    if (hf_parse_duration(next, &ms, NULL) == 0)
        return cli_usage(cli,
                         "write --wait=%s or -w %s: --wait takes its time only after '=' (plain "
                         "--wait waits for ever)",
                         next, next);
    return apply(cli, o, "--wait", NULL);
}

static int take_long(struct cli *cli, struct words *w, char *word)
{
    size_t n = strcspn(word + 2, "=");
    char *value = word[2 + n] ? word + 2 + n + 1 : NULL;
    const struct cli_option *o = find_long(cli, word + 2, n);
    word[2 + n] = '\0'; /* from here on `word` is the option as typed, without its value */
    if (!o)
        return unknown_option(cli, word);
    if (o->type == CLI_WAIT && !value)
        return take_plain_wait(cli, w, o);
    if (o->arg)
        return take_value(cli, w, o, word, value);
    if (value)
        return cli_usage(cli, "%s takes no value", word);
    return apply(cli, o, word, NULL);
}

/* -n, -w 5s, -w5s, -qn */
static int take_letters(struct cli *cli, struct words *w, const char *word)
{
    for (const char *c = word + 1; *c; c++) {
        const char shown[] = {'-', *c, '\0'};
        const struct cli_option *o = find_letter(cli, *c);
        if (!o)
            return unknown_option(cli, shown);
        if (o->arg)
            return take_value(cli, w, o, shown, c[1] ? c + 1 : NULL);
        int code = apply(cli, o, shown, NULL);
        if (code)
            return code;
    }
    return 0;
}

static int take_command(struct cli *cli, const char *word)
{
    cli->command = cli_find_command(word);
    if (!cli->command)
        return cli_unknown_command(word);
    cli->opts.wait_ms = cli->command->default_wait_ms;
    if (cli->command->bit & TAKES)
        cli->opts.ttl_ms = HF_TTL_DEFAULT_MS;
    return 0;
}

/* Nearly always an option in the wrong place; a command whose name begins so can follow "--". */
static int misplaced_option(const struct cli *cli, const struct words *w)
{
    return cli_usage(cli, "options of %s end at '%s': put %s before it (or -- before a command)",
                     cli->command->name, w->argv[w->n_operands - 1], w->argv[w->at]);
}

/* What follows NAME or FILE: -c STRING, or COMMAND with its arguments, untouched. */
static int take_tail(struct cli *cli, struct words *w)
{
    const struct cli_option *shell = find_letter(cli, 'c');
    if (shell && w->at < w->argc && strcmp(w->argv[w->at], "-c") == 0) {
        w->at++;
        int code = take_value(cli, w, shell, "-c", NULL);
        if (code)
            return code;
    } else if (w->at < w->argc && strcmp(w->argv[w->at], "--") == 0)
        w->at++;
    else if (w->at < w->argc && w->argv[w->at][0] == '-' && w->argv[w->at][1])
        return misplaced_option(cli, w);
    while (w->at < w->argc)
        w->argv[w->n_operands++] = w->argv[w->at++];
    return 0;
}

static int take_word(struct cli *cli, struct words *w)
{
    char *word = w->argv[w->at++];
    if (!w->options_over && strcmp(word, "--") == 0) {
        w->options_over = true;
        return 0;
    }
    if (!w->options_over && strncmp(word, "--", 2) == 0)
        return take_long(cli, w, word);
    if (!w->options_over && word[0] == '-' && word[1])
        return take_letters(cli, w, word);
    if (!cli->command)
        return take_command(cli, word);
    w->argv[w->n_operands++] = word;
    return cli->command->wraps_command ? take_tail(cli, w) : 0;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Say what is needed: the synopsis without the options that lead it. */
static int too_few_words(const struct cli *cli)
{
    const char *needed = cli->command->synopsis;
    while (*needed == '[') {
        needed += strcspn(needed, "]");
        needed += strspn(needed, "] ");
    }
    return cli_usage(cli, "%s needs %.*s", cli->command->name, (int)strcspn(needed, "\n"), needed);
}

static int check_operands(const struct cli *cli, const struct words *w)
{
    const struct cli_command *c = cli->command;
    if (w->n_operands < c->min_operands)
        return too_few_words(cli);
    if (c->max_operands >= 0 && w->n_operands > c->max_operands)
        return cli_usage(cli, "%s: one word too many: '%s'", c->name, w->argv[c->max_operands]);
    if (!c->wraps_command)
        return 0;
    if (w->n_operands == 1 && !cli->opts.shell_string)
        return cli_usage(cli, "%s '%s': what is to be run? Add COMMAND, or -c STRING", c->name,
                         w->argv[0]);
    if (w->n_operands > 1 && cli->opts.shell_string)
        return cli_usage(cli, "%s takes COMMAND or -c STRING, not both: '%s'", c->name, w->argv[1]);
    return 0;
}

/* What one option alone can't tell; the grace's default depends on the ttl. */
static int check_together(struct cli *cli)
{
    struct cli_options *opts = &cli->opts;
    if (opts->once_key && opts->once_per)
        return cli_usage(cli, "--once and --once-per exclude each other");
    if (opts->grace_ms > opts->ttl_ms / 3 && cli->command->bit & WRAPS)
        return cli_usage(cli, "--grace may be at most a third of --ttl, here %lld ms",
                         (long long)(opts->ttl_ms / 3));
    if (opts->grace_ms < 0)
        opts->grace_ms = opts->ttl_ms / 3 < GRACE_DEFAULT_MS ? opts->ttl_ms / 3 : GRACE_DEFAULT_MS;
    return 0;
}

int cli_parse(struct cli *cli, int argc, char **argv, int *ret_operands)
{
    struct words w = {.argv = argv, .argc = argc};
    cli->opts = (struct cli_options){.grace_ms = -1,
                                     .fence = -1,
                                     .conflict_exit_code = CLI_EXIT_HELD,
                                     .state = -1,
                                     .limit = 100,
                                     .max_connections = 20000,
                                     .max_body = 1 << 20,
                                     .receive_ms = SERVE_RECEIVE_DEFAULT_MS,
                                     .stop_grace_ms = STOP_GRACE_DEFAULT_MS,
                                     .at_ms = -1,
                                     .in_ms = -1};
    int code = 0;
    while (code == 0 && w.at < w.argc)
        code = take_word(cli, &w);
    if (code == 0 && cli->command && !cli->opts.help && !cli->opts.version) {
        code = check_operands(cli, &w);
        if (code == 0)
            code = check_together(cli);
    }
    if (code == 0)
        *ret_operands = w.n_operands;
    return code;
}
