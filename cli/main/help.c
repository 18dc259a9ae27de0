/* help.c - help from the table: short, long, as JSON; and the topics. Writes to stdout. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/output/out.h"
#include "cli/main/plugin.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static const struct {
    const char *title;
    const char *nouns; /* in order, separated by blanks */
} groups[] = {
    { "Manage", "run checkpoint session model sampler billing audit auth whoami" },
    { "Work", "sample chat logprobs train eval env data logs ui tokenizer" },
    { "Models", "pull export quantize" },
    { "Local", "serve store doctor" },
    { "Tool", "config api completion man help version" },
};

static void put_padded(const char *text, size_t width)
{
    size_t n = cli_width(text);
    printf("%s%*s", text, n < width ? (int)(width - n) : 1, "");
}

static const char *summary_of(const char *noun)
{
    const cli_command *alone = cli_find(noun, NULL);
    return alone ? alone->summary : cli_noun_summary(noun);
}

void cli_help_program(void)
{
    puts("tinkc - fine-tune and sample language models with the Tinker API\n");
    puts("Usage: tinkc [OPTION]... COMMAND [ARG]... [OPTION]...\n");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        printf("%s:\n", groups[i].title);
        for (const char *p = groups[i].nouns; *p;) {
            char noun[32];
            size_t n = strcspn(p, " ");
            (void)snprintf(noun, sizeof noun, "%.*s", (int)n, p);
            fputs("  ", stdout);
            put_padded(noun, 14);
            puts(summary_of(noun));
            p += n + (p[n] == ' ');
        }
        putchar('\n');
    }
    puts("Without a key everything runs on the engine inside this program.");
    puts("More: tinkc COMMAND --help; tinkc help COMMAND; tinkc help exit-codes | environment |\n"
         "formatting | config | paths");
}

void cli_help_noun(const char *noun)
{
    printf("tinkc %s - %s\n\nUsage: tinkc %s VERB [ARG]... [OPTION]...\n\n", noun,
           cli_noun_summary(noun), noun);
    for (const cli_command *c = cli_commands; c->noun; c++) {
        if (c->hidden || !c->verb || strcmp(c->noun, noun) != 0)
            continue;
        char left[96];
        (void)snprintf(left, sizeof left, "  %s %s", c->verb, c->args);
        put_padded(left, 32);
        puts(c->summary);
    }
    printf("\nMore: tinkc %s VERB --help\n", noun);
}

/* On a terminal, lines end between words; in a pipe they stay whole, for grep. */
static void put_folded(const cli_app *app, const char *text, size_t indent)
{
    size_t width = app->stdout_tty ? cli_term_width(app) : SIZE_MAX, at = indent;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, " ");
        if (at > indent && at + 1 + n > width) {
            printf("\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)n, word);
        at += n;
        word += n + strspn(word + n, " ");
    }
    putchar('\n');
}

/* "  -m, --model M          help (default: x)" */
static void put_option(const cli_app *app, const cli_option *o)
{
    enum { INDENT = 32 };
    char left[96], text[600];
    bool on = o->kind == CLI_FLAG && o->default_value && strcmp(o->default_value, "on") == 0;
    (void)snprintf(left, sizeof left, "  %c%c%s --%s%s%s%s%s", o->letter ? '-' : ' ',
                   o->letter ? o->letter : ' ', o->letter ? "," : " ", on ? "[no-]" : "", o->name,
                   o->optional_value ? "[="
                   : o->value        ? " "
                                     : "",
                   o->value ? o->value : "", o->optional_value ? "]" : "");
    put_padded(left, INDENT);
    (void)snprintf(text, sizeof text, "%s%s%s%s%s%s%s%s%s", o->help, o->choices ? ": " : "",
                   o->choices ? o->choices : "", o->default_value ? " (default: " : "",
                   o->default_value ? o->default_value : "", o->default_value ? ")" : "",
                   o->env ? " [$" : "", o->env ? o->env : "", o->env ? "]" : "");
    put_folded(app, text, INDENT);
}

void cli_help_command(const cli_app *app, const cli_command *c, bool whole)
{
    printf("tinkc %s%s%s - %s\n\n", c->noun, c->verb ? " " : "", c->verb ? c->verb : "",
           c->summary);
    printf("Usage: tinkc %s%s%s%s%s [OPTION]...\n", c->noun, c->verb ? " " : "",
           c->verb ? c->verb : "", c->args[0] ? " " : "", c->args);
    if (whole && c->details)
        printf("\n%s\n", c->details);
    if (c->options) {
        puts("\nOptions:");
        for (const cli_option *o = c->options; o->name; o++)
            put_option(app, o);
    }
    if (whole) {
        puts("\nOptions of every command:");
        for (const cli_option *o = cli_globals; o->name; o++)
            put_option(app, o);
    }
    if (c->more) {
        putchar('\n');
        c->more(stdout);
    }
    if (c->examples) {
        puts("\nExamples:");
        for (const char *const *e = c->examples; *e; e++)
            printf("  %s\n", *e);
    }
    if (!whole)
        printf("\nOptions of every command, and more: tinkc help %s%s%s\n", c->noun,
               c->verb ? " " : "", c->verb ? c->verb : "");
}

/* ---- topics ---- */

static const struct {
    const char *name, *text;
} topics[] = {
    { "exit-codes",
      "0    done; also: nothing found, already in the wanted state\n"
      "1    failed, no closer code fits\n"
      "2    usage: unknown or wrong command, option, value; broken configuration; a prompt was\n"
      "     needed and there is no terminal\n"
      "3    not found\n"
      "4    no credential, credential rejected, or not permitted\n"
      "5    conflict: the target exists, or the service says so\n"
      "6    input refused: by the service, or by our check of a data file\n"
      "7    limited: rate or billing\n"
      "8    network: cannot resolve, connect or agree on TLS; connection lost\n"
      "9    server: 5xx, or a request that ended as failed on the server's side\n"
      "10   partly failed: some items done, some not\n"
      "11   declined at a prompt\n"
      "12   a check found problems: doctor, data check\n"
      "13   not supported by this build or machine\n"
      "124  --timeout ran out\n"
      "130  interrupted (SIGINT)\n"
      "143  terminated (SIGTERM)\n" },
    { "environment",
      "TINKER_API_KEY          the credential: tml-... or a token eyJ...\n"
      "TINKER_CREDENTIAL_CMD   a command that prints the credential\n"
      "TINKER_BASE_URL         the service; local: is the engine in this program\n"
      "TINKER_PROJECT_ID       project of new sessions\n"
      "TINKER_LOG              info or debug: as -v and -vv\n"
      "TINKER_TELEMETRY        1 switches telemetry on; it is off otherwise\n"
      "TINKC_SHARE_STORE       0: commands do not share the local store\n"
      "TINKC_FORMAT, TINKC_QUIET, TINKC_NO_PROGRESS, TINKC_TIME, TINKC_PROFILE, "
      "TINKC_CONFIG_FILE,\n"
      "TINKC_TIMEOUT, TINKC_RETRY_FOR, TINKC_OFFLINE   stand in for the options of these names\n"
      "TINKC_COMPAT            1: exit codes and JSON exactly as the Python command's;\n"
      "                        0.25: as those of that release\n"
      "TINKC_NANO              folder of the shipped model\n"
      "HTTPS_PROXY, HTTP_PROXY, NO_PROXY, SSL_CERT_FILE\n"
      "HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE\n"
      "NO_COLOR, CLICOLOR_FORCE, FORCE_COLOR, COLUMNS, EDITOR, VISUAL\n" },
    { "formatting",
      "stdout carries the result and nothing else; everything else goes to stderr.\n\n"
      "--format table   for people; the default on a terminal\n"
      "--format tsv     full values, RFC 3339 times, sizes in bytes; the default in a pipe\n"
      "--format csv     RFC 4180\n"
      "--format json    one value, indented; --json=a,b.c picks fields\n"
      "--format jsonl   one object a line\n"
      "--format id      the first column alone; of checkpoints the path\n\n"
      "--time relative|iso|local|epoch says how times look. --no-headers and --no-trunc change\n"
      "tables. In JSON format errors are one line of JSON on stderr.\n" },
    { "config",
      "Order, first that has a value wins: option, environment, project file, profile, [defaults]\n"
      "of the user's file, system file, built in.\n\n"
      "user         ~/.config/tinkc/config.toml\n"
      "credentials  ~/.config/tinkc/credentials.toml (mode 0600)\n"
      "project      .tinkc.toml here or in the nearest parent; harmless keys only\n"
      "system       /etc/tinkc/config.toml\n\n"
      "    current_profile = \"work\"\n\n"
      "    [profile.work]\n"
      "    base_url = \"https://...\"\n"
      "    model = \"Qwen/Qwen3-8B\"\n" },
    { "paths",
      "tinker://RUN/weights/NAME           weights and optimizer: to continue training\n"
      "tinker://RUN/sampler_weights/NAME   weights alone: to sample, download, export\n\n"
      "Wherever a model is named, a log directory of `tinkc train` means its last sampler weights\n"
      "and a folder with config.json a local model for the engine in this program.\n" },
};

static bool show_topic(const char *name, const char *before)
{
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++)
        if (strcmp(topics[i].name, name) == 0)
            return printf("%s%s", before, topics[i].text), true;
    return false;
}

/* The command or topic that comes nearest; NULL = none is near. */
static const char *nearest_topic(const char *name)
{
    const size_t n_topics = sizeof topics / sizeof *topics;
    const char **names = calloc(n_topics + cli_count_commands(), sizeof *names);
    size_t n = 0;
    for (size_t i = 0; names && i < n_topics; i++)
        names[n++] = topics[i].name;
    for (const cli_command *c = cli_commands; names && c->noun; c++)
        if (!c->hidden)
            names[n++] = c->noun;
    const char *near = cli_nearest(name, names, n);
    free(names);
    return near;
}

/* ---- the table as JSON ---- */

static void set_text(tkc_tree *o, const char *key, const char *text)
{
    if (text)
        tkc_tree_set_text(o, key, text);
}

static tkc_tree *options_json(const cli_app *app, const cli_option *options)
{
    static const char *const kinds[] = { "flag", "text", "int",    "count", "number", "duration",
                                         "size", "date", "choice", "file",  "dir" };
    tkc_tree *all = cli_array(app);
    for (const cli_option *o = options; o && o->name; o++) {
        tkc_tree *one = cli_object(app);
        char letter[2] = { o->letter, '\0' };
        set_text(one, "name", o->name);
        set_text(one, "letter", o->letter ? letter : NULL);
        set_text(one, "kind", kinds[o->kind]);
        set_text(one, "value", o->value);
        set_text(one, "default", o->default_value);
        set_text(one, "choices", o->choices);
        set_text(one, "env", o->env);
        set_text(one, "cookbook_field", o->cookbook);
        tkc_tree_set_bool(one, "repeats", o->repeats);
        set_text(one, "help", o->help);
        tkc_tree_add(all, one);
    }
    return all;
}

static int help_json(const cli_app *app)
{
    tkc_tree *commands = cli_array(app);
    for (const cli_command *c = cli_commands; c->noun; c++) {
        if (c->hidden)
            continue;
        tkc_tree *one = cli_object(app), *examples = cli_array(app);
        set_text(one, "noun", c->noun);
        set_text(one, "verb", c->verb);
        set_text(one, "args", c->args);
        set_text(one, "summary", c->summary);
        tkc_tree_set(one, "options", options_json(app, c->options));
        for (const char *const *e = c->examples; e && *e; e++)
            tkc_tree_add_text(examples, *e);
        tkc_tree_set(one, "examples", examples);
        tkc_tree_add(commands, one);
    }
    tkc_tree *whole = cli_pack(app, "{s:s,s:o,s:o}", "version", tinkc_version(), "globals",
                               options_json(app, cli_globals), "commands", commands);
    return cli_print_json(app, whole);
}

int cli_help(cli_app *app)
{
    if (app->format == CLI_JSON)
        return help_json(app);
    if (app->n_args == 0)
        return cli_help_program(), cli_list_plugins(), 0;
    char hint[160];
    const char *near, *noun = cli_real_name(app->args[0]);
    const char *verb = app->n_args > 1 ? cli_real_name(app->args[1]) : NULL;
    const cli_command *c = cli_find(noun, verb);
    if (c)
        return cli_help_command(app, c, true), 0;
    if (!verb && cli_is_noun(noun))
        return cli_help_noun(noun), show_topic(noun, "\n"), 0;
    if (!verb && show_topic(noun, ""))
        return 0;
    if (verb && cli_is_noun(noun))
        return cli_unknown_command(app, noun, app->args[1]);
    if (!verb && (near = nearest_topic(noun))) {
        (void)snprintf(hint, sizeof hint, "did you mean: tinkc help %s", near);
        return cli_fail(app, "usage", hint, "no help on '%s'", noun);
    }
    return cli_fail(app, "usage", "see: tinkc help", "no help on '%s%s%s'", app->args[0],
                    verb ? " " : "", verb ? app->args[1] : "");
}
