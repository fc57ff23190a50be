/* --help from the tables of commands and options, and what a mistyped word was meant to be. */
#include <string.h>

#include "cli.h"

/* ---- help ----------------------------------------------------------------------------------- */

enum { LABEL_WIDTH = 28 };

static void print_option(FILE *out, const struct cli_option *o)
{
    char label[96];
    int n = o->letter ? snprintf(label, sizeof label, "-%c, --%s", o->letter, o->name)
                      : snprintf(label, sizeof label, "    --%s", o->name);
    if (o->type == CLI_WAIT)
        snprintf(label, sizeof label, "-%c %s, --%s[=%s]", o->letter, o->arg, o->name, o->arg);
    else if (o->arg)
        snprintf(label + n, sizeof label - (size_t)n, " %s", o->arg);
    fprintf(out, "  %-*s %s\n", LABEL_WIDTH, label, o->help);
}

static void print_options(FILE *out, unsigned command_bit, bool global)
{
    for (size_t i = 0; i < cli_n_options; i++) {
        const struct cli_option *o = &cli_option_table[i];
        if (o->commands & command_bit && (o->commands == CLI_ALL) == global)
            print_option(out, o);
    }
}

void cli_help_overview(FILE *out)
{
    fputs("usage: holdfast [--store URL] [--json] [-q] COMMAND ...\n\n"
          "Only one execution of a thing at a time.\n\n",
          out);
    for (size_t i = 0; i < cli_n_commands; i++)
        fprintf(out, "  %-10s %s\n", cli_commands[i].name, cli_commands[i].summary);
    fputs("\nOptions of every command, before or after its name:\n", out);
    print_options(out, CLI_HELP, true);
    fputs(
        "\nholdfast help COMMAND tells more. Try: holdfast run hello -- echo \"only one of me\"\n",
        out);
}

/* Has the command options of its own; with `arg`, some whose value is called so? */
static bool has_options(unsigned command_bit, const char *arg)
{
    for (size_t i = 0; i < cli_n_options; i++) {
        const struct cli_option *o = &cli_option_table[i];
        if (o->commands & command_bit && o->commands != CLI_ALL &&
            (!arg || (o->arg && strcmp(o->arg, arg) == 0)))
            return true;
    }
    return false;
}

void cli_help_command(FILE *out, const struct cli_command *command)
{
    const char *form = command->synopsis, *lead = "usage:";
    do {
        size_t n = strcspn(form, "\n");
        fprintf(out, "%s holdfast %s%s%.*s\n", lead, command->name, n ? " " : "", (int)n, form);
        form += n + (form[n] == '\n');
        lead = "      ";
    } while (*form);
    fprintf(out, "\n%s.\n", command->summary);
    if (command->details)
        fprintf(out, "%s\n", command->details);
    if (has_options(command->bit, NULL)) {
        fputs("\nOptions:\n", out);
        print_options(out, command->bit, false);
    }
    fputs("\nOptions of every command:\n", out);
    print_options(out, command->bit, true);
    if (has_options(command->bit, "D"))
        fputs("\nD is a time such as 500ms, 30s, 5m, 1h, 2d; a bare number is seconds.\n", out);
    if (command->bit != CLI_HELP)
        fprintf(out, "\nman holdfast-%s tells more.\n", command->name);
}

int cmd_help(struct cli *cli, int argc, char **argv)
{
    (void)cli;
    if (argc == 0) {
        cli_help_overview(stdout);
        return 0;
    }
    const struct cli_command *command = cli_find_command(argv[0]);
    if (!command)
        return cli_unknown_command(argv[0]);
    cli_help_command(stdout, command);
    return 0;
}

/* ---- mistyped words ------------------------------------------------------------------------- */

enum { WORD_MAX = 32 };

static unsigned min_of(unsigned a, unsigned b) { return a < b ? a : b; }

/* How many letters to insert, drop, change or swap with their neighbour to make b of a. */
static unsigned distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > WORD_MAX || m > WORD_MAX)
        return WORD_MAX;
    unsigned d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = (unsigned)i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            unsigned change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = min_of(change, min_of(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min_of(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

/* The best candidate so far; one that shares too little with the word is no help. */
struct guess {
    const char *word, *best;
    unsigned distance;
};

static void consider(struct guess *g, const char *candidate)
{
    unsigned d = distance(g->word, candidate);
    if (d < g->distance && d <= 1 + strlen(candidate) / 4) {
        g->distance = d;
        g->best = candidate;
    }
}

static const char *nearest_command(const char *word)
{
    struct guess g = {.word = word, .distance = WORD_MAX};
    for (size_t i = 0; i < cli_n_commands; i++)
        consider(&g, cli_commands[i].name);
    return g.best;
}

const char *cli_nearest_option(const char *word, unsigned command_bits)
{
    struct guess g = {.word = word + strspn(word, "-"), .distance = WORD_MAX};
    for (size_t i = 0; i < cli_n_options && strlen(g.word) > 1; i++)
        if (cli_option_table[i].commands & command_bits)
            consider(&g, cli_option_table[i].name);
    return g.best;
}

int cli_unknown_command(const char *word)
{
    static const struct cli no_command;
    const char *nearest = nearest_command(word);
    if (nearest)
        return cli_usage(&no_command, "unknown command '%s'; did you mean %s?", word, nearest);
    return cli_usage(&no_command, "unknown command '%s'", word);
}
