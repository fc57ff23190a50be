/* --help from the tables of commands and options, and what a mistyped word was meant to be. */
#include <string.h>

#include "cli.h"
#include "nearest.h"

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
        fprintf(out, "  %-11s %s\n", cli_commands[i].name, cli_commands[i].summary);
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

static const char *nearest_command(const char *word)
{
    struct hf_nearest g = hf_nearest_to(word);
    for (size_t i = 0; i < cli_n_commands; i++)
        hf_nearest_consider(&g, cli_commands[i].name);
    return g.best;
}

const char *cli_nearest_option(const char *word, unsigned command_bits)
{
    struct hf_nearest g = hf_nearest_to(word + strspn(word, "-"));
    for (size_t i = 0; i < cli_n_options && strlen(g.word) > 1; i++)
        if (cli_option_table[i].commands & command_bits)
            hf_nearest_consider(&g, cli_option_table[i].name);
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
