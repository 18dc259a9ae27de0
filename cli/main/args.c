/* args.c - the command line into a cli_app, checked against the table.
 *
 * Global options may stand anywhere; nothing is abbreviated; what is unknown is refused with the
 * nearest name. Touches no files and no network.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/app.h"
#include "cli/main/config_file.h"
#include "cli/output/text.h"

/* ---- looking things up in the table ---- */

const char *cli_real_name(const char *word)
{
    static const char *const aliases[][2] = {
        { "ls", "list" }, { "rm", "delete" }, { "ckpt", "checkpoint" }, { "tok", "tokenizer" }
    };
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(word, aliases[i][0]) == 0)
            return aliases[i][1];
    return word;
}

const cli_command *cli_find(const char *noun, const char *verb)
{
    for (const cli_command *c = cli_commands; c->noun; c++) {
        if (strcmp(c->noun, noun) != 0)
            continue;
        if (verb ? c->verb && strcmp(c->verb, verb) == 0 : !c->verb)
            return c;
    }
    return NULL;
}

bool cli_is_noun(const char *word)
{
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (c->verb && strcmp(c->noun, word) == 0)
            return true;
    return false;
}

static const cli_option *find_in(const cli_option *options, const char *name, size_t len)
{
    for (const cli_option *o = options; o && o->name; o++)
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    return NULL;
}

const cli_option *cli_find_option(const cli_command *command, const char *name, size_t len)
{
    const cli_option *found = command ? find_in(command->options, name, len) : NULL;
    return found ? found : find_in(cli_globals, name, len);
}

const cli_option *cli_find_letter(const cli_command *command, char letter)
{
    for (const cli_option *o = command ? command->options : NULL; o && o->name; o++)
        if (o->letter == letter)
            return o;
    for (const cli_option *o = cli_globals; o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

/* ---- reading values ---- */

const cli_value *cli_value_of(const cli_app *app, const char *name)
{
    for (size_t i = app->n_values; i-- > 0;)
        if (strcmp(app->values[i].option->name, name) == 0)
            return &app->values[i];
    return NULL;
}

bool cli_on_the_line(const cli_app *app, const char *name)
{
    const cli_value *v = cli_value_of(app, name);
    return v && (v->on || v->text) && v->source == CLI_FROM_LINE;
}

bool cli_given(const cli_app *app, const char *name)
{
    return cli_value_of(app, name) != NULL;
}

static const char *default_of(const cli_app *app, const char *name)
{
    const cli_option *o = cli_find_option(app->command, name, strlen(name));
    return o ? o->default_value : NULL;
}

bool cli_flag(const cli_app *app, const char *name)
{
    const cli_value *v = cli_value_of(app, name);
    if (v)
        return v->on;
    const char *text = default_of(app, name);
    return text && strcmp(text, "on") == 0;
}

const char *cli_text(const cli_app *app, const char *name)
{
    const cli_value *v = cli_value_of(app, name);
    return v ? v->text : default_of(app, name);
}

static bool convert(const cli_option *, const char *text, cli_value *out);

static cli_value typed(const cli_app *app, const char *name)
{
    const cli_value *v = cli_value_of(app, name);
    if (v)
        return *v;
    cli_value made = { 0 };
    const cli_option *o = cli_find_option(app->command, name, strlen(name));
    if (o && o->default_value)
        (void)convert(o, o->default_value, &made);
    return made;
}

int64_t cli_int(const cli_app *app, const char *name)
{
    return typed(app, name).integer;
}

double cli_number(const cli_app *app, const char *name)
{
    return typed(app, name).number;
}

const cli_value *cli_value_at(const cli_app *app, const char *name, size_t i)
{
    for (size_t k = 0; k < app->n_values; k++)
        if (strcmp(app->values[k].option->name, name) == 0 && i-- == 0)
            return &app->values[k];
    return NULL;
}

const char *cli_text_at(const cli_app *app, const char *name, size_t i)
{
    const cli_value *v = cli_value_at(app, name, i);
    return v ? v->text : NULL;
}

/* ---- checking values ---- */

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, text, n) == 0)
            return true;
        p += len + (p[len] == '|');
    }
    return false;
}

static bool convert(const cli_option *o, const char *text, cli_value *out)
{
    out->text = text;
    switch (o->kind) {
    case CLI_INT:
    case CLI_COUNT:
        if (!cli_parse_int(text, &out->integer) || (o->kind == CLI_COUNT && out->integer < 0))
            return false;
        out->number = (double)out->integer;
        return true;
    case CLI_NUMBER:
        return cli_parse_number(text, &out->number);
    case CLI_DURATION:
        if (!cli_parse_duration(text, &out->number))
            return false;
        out->integer = (int64_t)out->number;
        return true;
    case CLI_SIZE:
        if (!cli_parse_size(text, &out->integer))
            return false;
        out->number = (double)out->integer;
        return true;
    case CLI_DATE:
        return cli_parse_date(text, cli_now_us(), &out->integer);
    case CLI_CHOICE:
        return is_choice(o->choices, text);
    case CLI_FLAG:
        out->on = is_choice("1|true|True|yes|on", text); /* True and False: as Python writes them */
        return out->on || is_choice("0|false|False|no|off", text);
    case CLI_TEXT:
        return cli_is_utf8(text, strlen(text));
    default: /* names of files may be any bytes */
        return true;
    }
}

static const char *wanted(const cli_option *o)
{
    static const char *const words[] = {
        [CLI_FLAG] = "yes or no",
        [CLI_TEXT] = "UTF-8",
        [CLI_INT] = "a whole number",
        [CLI_COUNT] = "a whole number, not negative",
        [CLI_NUMBER] = "a number",
        [CLI_DURATION] = "a duration such as 90, 30s, 5m, 2h, 7d",
        [CLI_SIZE] = "a size such as 4096, 64K, 2G",
        [CLI_DATE] = "a date such as 2026-01-31, 2026-01-31T12:00Z, yesterday, -7d",
        [CLI_FILE] = "a path",
        [CLI_DIR] = "a folder",
    };
    return o->kind == CLI_CHOICE ? o->choices : words[o->kind];
}

bool cli_check_value(const cli_option *o, const char *text, char why[CLI_WHY])
{
    cli_value ignored = { 0 };
    (void)snprintf(why, CLI_WHY, "'%.60s' is not %s%s", text,
                   o->kind == CLI_CHOICE ? "one of " : "", wanted(o));
    return convert(o, text, &ignored);
}

/* Names the option by what the value came from: --limit, TINKC_TIMEOUT, FILE:3: limit. */
static int bad_value(const cli_app *app, const cli_option *o, const char *text, cli_source source,
                     const char *origin)
{
    char why[CLI_WHY];
    (void)cli_check_value(o, text, why);
    if (source == CLI_FROM_LINE)
        return cli_fail(app, "usage", NULL, "--%s: %s", o->name, why);
    if (source == CLI_FROM_ENVIRONMENT)
        return cli_fail(app, "usage", NULL, "%s: %s", o->env, why);
    return cli_fail(app, "config_invalid", NULL, "%s: %s: %s", origin, o->name, why);
}

static int add_value(cli_app *app, const cli_option *o, const char *text, bool on,
                     cli_source source, const char *origin)
{
    cli_value value = { .option = o, .on = on, .source = source, .origin = origin };
    char why[CLI_WHY];
    if (text && !convert(o, text, &value))
        return bad_value(app, o, text, source, origin);
    if (source == CLI_FROM_PROJECT && !cli_project_may_set(app, o, text ? text : "", why))
        return cli_fail(app, "config_invalid", NULL, "%s: %s: %s", origin, o->name, why);
    cli_value *grown = realloc(app->values, (app->n_values + 1) * sizeof *grown);
    if (!grown)
        return cli_fail(app, "internal", NULL, "out of memory");
    app->values = grown;
    app->values[app->n_values++] = value;
    return 0;
}

/* ---- one word after the other ---- */

typedef struct words {
    char **argv;
    int argc, at;
    bool only_args; /* behind "--" */
} words;

static const char *nearest_option(const cli_command *command, const char *name)
{
    const char *names[160];
    size_t n = 0;
    for (const cli_option *o = command ? command->options : NULL; o && o->name && n < 80; o++)
        names[n++] = o->name;
    for (const cli_option *o = cli_globals; o->name && n < 160; o++)
        names[n++] = o->name;
    return cli_nearest(name, names, n);
}

static int unknown_option(cli_app *app, const char *word)
{
    char name[64], hint[160];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    const char *near = name[1] == '-' ? nearest_option(app->command, name + 2) : NULL;
    if (near)
        (void)snprintf(hint, sizeof hint, "did you mean --%s?", near);
    else
        (void)snprintf(hint, sizeof hint, "see: tinkc%s%s%s%s --help", app->command ? " " : "",
                       app->command ? app->command->noun : "",
                       app->command && app->command->verb ? " " : "",
                       app->command && app->command->verb ? app->command->verb : "");
    return cli_fail(app, "usage", hint, "unknown option '%s'", name);
}

static int long_option(cli_app *app, words *w, const char *word)
{
    const char *name = word + 2;
    size_t len = strcspn(name, "=");
    const char *text = name[len] ? name + len + 1 : NULL;
    bool on = true;
    const cli_option *o = cli_find_option(app->command, name, len);
    if (!o && len > 3 && memcmp(name, "no-", 3) == 0) {
        o = cli_find_option(app->command, name + 3, len - 3);
        if (o && o->kind != CLI_FLAG)
            o = NULL;
        on = false;
    }
    if (!o)
        return unknown_option(app, word);
    if (o->kind == CLI_FLAG && text)
        return cli_fail(app, "usage", NULL, "--%.*s takes no value", (int)len, name);
    if (o->kind != CLI_FLAG && !text && !o->optional_value) {
        if (w->at == w->argc)
            return cli_fail(app, "usage", NULL, "--%s needs a value (%s)", o->name,
                            o->value ? o->value : wanted(o));
        text = w->argv[w->at++];
    }
    if (o->optional_value && text && (!*text || strstr(text, ",,") || *text == ','))
        return cli_fail(app, "usage", NULL, "--%s=%s: a name is missing", o->name, text);
    return add_value(app, o, text, on, CLI_FROM_LINE, "command line");
}

static int short_options(cli_app *app, words *w, const char *word)
{
    for (const char *p = word + 1; *p; p++) {
        const cli_option *o = cli_find_letter(app->command, *p);
        char alone[3] = { '-', *p, '\0' };
        if (!o)
            return unknown_option(app, alone);
        int bad;
        if (o->kind == CLI_FLAG) {
            bad = add_value(app, o, NULL, true, CLI_FROM_LINE, "command line");
        } else {
            const char *text = p[1] ? p + 1 + (p[1] == '=') : NULL;
            if (!text && w->at == w->argc)
                return cli_fail(app, "usage", NULL, "-%c needs a value (%s)", *p,
                                o->value ? o->value : wanted(o));
            return add_value(app, o, text ? text : w->argv[w->at++], true, CLI_FROM_LINE,
                             "command line");
        }
        if (bad)
            return bad;
    }
    return 0;
}

static int add_arg(cli_app *app, const char *word)
{
    const char **grown = realloc(app->args, (app->n_args + 1) * sizeof *grown);
    if (!grown)
        return cli_fail(app, "internal", NULL, "out of memory");
    app->args = grown;
    app->args[app->n_args++] = word;
    return 0;
}

/* name=value where the command takes the cookbook's fields. 1 = it was none. */
static int field(cli_app *app, const char *word)
{
    size_t len = strcspn(word, "=");
    if (!app->command->fields || !word[len] || len == 0 ||
        strspn(word, "abcdefghijklmnopqrstuvwxyz"
                     "0123456789_.") < len)
        return 1;
    for (const cli_option *o = app->command->options; o->name; o++) {
        size_t n = o->cookbook ? strlen(o->cookbook) : 0;
        if (n != len || memcmp(o->cookbook, word, n) != 0)
            continue;
        return add_value(app, o, word + len + 1, true, CLI_FROM_LINE, "command line");
    }
    return cli_fail(app, "usage", "to name a file with '=' in it, write ./ before it",
                    "this command does not take the cookbook field '%.*s'", (int)len, word);
}

/* "-5", "-0.5", "-7d": there is no option that begins with a digit. */
static bool is_negative_number(const char *word)
{
    const char *digit = word + 1 + (word[1] == '.');
    return *digit >= '0' && *digit <= '9';
}

/* ---- which command ---- */

size_t cli_count_commands(void)
{
    size_t n = 0;
    while (cli_commands[n].noun)
        n++;
    return n;
}

int cli_unknown_command(const cli_app *app, const char *noun, const char *verb)
{
    char hint[160];
    size_t n = 0;
    const char **names = calloc(cli_count_commands(), sizeof *names);
    for (const cli_command *c = cli_commands; names && c->noun; c++) {
        if (c->hidden || (verb && strcmp(c->noun, noun) != 0))
            continue;
        names[n++] = verb ? c->verb ? c->verb : "" : c->noun;
    }
    const char *near = cli_nearest(verb ? verb : noun, names, n);
    const char *group = verb ? noun : "";
    if (near)
        (void)snprintf(hint, sizeof hint, "did you mean: tinkc %s%s%s", group, verb ? " " : "",
                       near);
    else
        (void)snprintf(hint, sizeof hint, "see: tinkc %s%s--help", group, verb ? " " : "");
    free(names);
    return cli_fail(app, "usage", hint, "unknown command '%s%s%s'", noun, verb ? " " : "",
                    verb ? verb : "");
}

/* An option of any of the noun's commands, or of all; the command itself is not known yet. */
static const cli_option *option_of_noun(const char *noun, const char *word)
{
    bool whole = word[1] == '-';
    size_t len = whole ? strcspn(word + 2, "=") : 0;
    for (const cli_command *c = cli_commands; noun && c->noun; c++) {
        const cli_option *o = strcmp(c->noun, noun) != 0 ? NULL
                              : whole                    ? cli_find_option(c, word + 2, len)
                                                         : cli_find_letter(c, word[1]);
        if (o)
            return o;
    }
    return whole ? cli_find_option(NULL, word + 2, len) : cli_find_letter(NULL, word[1]);
}

/* The next word that is not an option, from w->at on, leaving options for later; NULL = none. */
static char *take_word(words *w, const char *noun)
{
    for (int i = w->at; i < w->argc; i++) {
        char *word = w->argv[i];
        if (strcmp(word, "--") == 0)
            return NULL;
        if (*word == '-' && word[1]) {
            /* An option with a value of its own: pass over that too. */
            const cli_option *o = option_of_noun(noun, word);
            bool apart = o && o->kind != CLI_FLAG && !o->optional_value &&
                         (word[1] == '-' ? !strchr(word, '=') : !word[2]);
            i += apart;
            continue;
        }
        memmove(&w->argv[w->at + 1], &w->argv[w->at], (size_t)(i - w->at) * sizeof *w->argv);
        w->argv[w->at] = word;
        return w->argv[w->at++];
    }
    return NULL;
}

static int choose_command(cli_app *app, words *w)
{
    const char *noun = take_word(w, NULL);
    if (!noun)
        return 0; /* help, or --version */
    noun = cli_real_name(noun);
    if (!cli_is_noun(noun)) {
        app->command = cli_find(noun, NULL);
        return app->command ? 0 : cli_unknown_command(app, noun, NULL);
    }
    const char *verb = take_word(w, noun);
    if (!verb) {
        app->command = cli_find(noun, NULL);
        if (!app->command)
            (void)add_arg(app, noun); /* its help is shown */
        return 0;
    }
    app->command = cli_find(noun, cli_real_name(verb));
    return app->command ? 0 : cli_unknown_command(app, noun, verb);
}

static int check_count(cli_app *app)
{
    const cli_command *c = app->command;
    bool few = app->n_args < (size_t)c->min_args;
    bool many = c->max_args >= 0 && app->n_args > (size_t)c->max_args;
    if (!few && !many)
        return 0;
    char hint[160];
    (void)snprintf(hint, sizeof hint, "usage: tinkc %s%s%s %s", c->noun, c->verb ? " " : "",
                   c->verb ? c->verb : "", c->args);
    if (many)
        return cli_fail(app, "usage", hint, "one argument too many: '%s'", app->args[c->max_args]);
    return cli_fail(app, "usage", hint, "an argument is missing: %s", c->args);
}

int cli_set_value(cli_app *app, const char *name, const char *text, cli_source source,
                  const char *origin)
{
    const cli_option *o = cli_find_option(app->command, name, strlen(name));
    if (!o)
        return cli_fail(app, "config_invalid", NULL, "%s: there is no option --%s", origin, name);
    return add_value(app, o, text, true, source, origin);
}

int cli_give_value(cli_app *app, const char *name, char *text, cli_source source,
                   const char *origin)
{
    if (!text)
        return 0;
    char **grown = realloc(app->kept, (app->n_kept + 1) * sizeof *grown);
    if (!grown) {
        free(text);
        return cli_fail(app, "internal", NULL, "out of memory");
    }
    app->kept = grown;
    app->kept[app->n_kept++] = text;
    return cli_set_value(app, name, text, source, origin);
}

void cli_parse_free(cli_app *app)
{
    tkc_arena_free(&app->arena);
    for (size_t i = 0; i < app->n_kept; i++)
        free(app->kept[i]);
    free(app->kept);
    free(app->values);
    free(app->args);
}

/* Environment variables stand in for options that were not given. */
static int add_environment(cli_app *app)
{
    const cli_option *lists[] = { app->command ? app->command->options : NULL, cli_globals };
    for (size_t i = 0; i < 2; i++) {
        for (const cli_option *o = lists[i]; o && o->name; o++) {
            const char *text = o->env ? getenv(o->env) : NULL;
            if (!text || !*text || cli_given(app, o->name))
                continue;
            int bad = add_value(app, o, text, true, CLI_FROM_ENVIRONMENT, "environment");
            if (bad)
                return bad;
        }
    }
    return 0;
}

static int parse_words(cli_app *app, words *w)
{
    int bad = 0;
    while (!bad && w->at < w->argc) {
        const char *word = w->argv[w->at++];
        if (w->only_args || *word != '-' || !word[1] ||
            (app->command && is_negative_number(word))) {
            bad = app->command && !w->only_args ? field(app, word) : 1;
            bad = bad == 1 ? add_arg(app, word) : bad;
        } else if (strcmp(word, "--") == 0)
            w->only_args = true;
        else if (word[1] == '-')
            bad = long_option(app, w, word);
        else
            bad = short_options(app, w, word);
    }
    return bad;
}

int cli_parse(cli_app *app, int argc, char **argv)
{
    words w = { argv, argc, 1, false };
    int bad = choose_command(app, &w);
    if (!bad)
        bad = parse_words(app, &w);
    if (!bad && app->command && !cli_flag(app, "help"))
        bad = check_count(app);
    if (!bad)
        bad = add_environment(app);
    return bad;
}
