/* man.c - manual pages from the table, in mdoc. Writes to stdout or into a folder. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

/* Text with what roff would take as its own made safe. */
static void put_text(FILE *f, const char *text)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", f);
        if (*text == '\\')
            fputs("\\e", f);
        else if (*text == '-')
            fputs("\\-", f);
        else
            fputc(*text, f);
        start = *text == '\n';
    }
}

/* "a|b|c" as "a, b, c", in lines of a source that people can read. */
static void put_choices(FILE *f, const char *choices)
{
    enum { WIDE = 60 };
    size_t column = 0;
    for (const char *p = choices; *p;) {
        char name[64];
        size_t n = strcspn(p, "|");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        put_text(f, name);
        column += n + 2;
        p += n + (p[n] == '|');
        if (*p)
            fputs(column > WIDE ? ",\n" : ", ", f);
        if (column > WIDE)
            column = 0;
    }
}

static void put_option(FILE *f, const cli_option *o)
{
    fputs(".It Fl Fl ", f);
    put_text(f, o->name);
    if (o->letter)
        fprintf(f, " , Fl %c", o->letter);
    if (o->value) {
        fputs(" Ar ", f);
        put_text(f, o->value);
    }
    fputc('\n', f);
    put_text(f, o->help);
    if (o->choices) {
        fputs(":\n", f);
        put_choices(f, o->choices);
    }
    if (o->default_value) {
        fputs(o->choices ? "\n(default: " : " (default: ", f);
        put_text(f, o->default_value);
        fputc(')', f);
    }
    fputs(".\n", f);
    if (o->env)
        fprintf(f, "Environment:\n.Ev %s .\n", o->env);
}

static void put_options(FILE *f, const cli_option *options)
{
    if (!options)
        return;
    fputs(".Bl -tag -width Ds\n", f);
    for (const cli_option *o = options; o->name; o++)
        put_option(f, o);
    fputs(".El\n", f);
}

static void put_examples(FILE *f, const cli_command *c)
{
    for (const char *const *e = c->examples; e && *e; e++) {
        fputs(".Dl ", f);
        put_text(f, *e);
        fputc('\n', f);
    }
}

static void put_head(FILE *f, const char *page, int section, const char *summary)
{
    char upper[64];
    size_t n = 0;
    for (; page[n] && n + 1 < sizeof upper; n++)
        upper[n] = (char)(page[n] >= 'a' && page[n] <= 'z' ? page[n] - 32 : page[n]);
    upper[n] = '\0';
    fprintf(f, ".Dd November 15, 2026\n.Dt %s %d\n.Os\n.Sh NAME\n.Nm %s\n.Nd ", upper, section,
            page);
    put_text(f, summary);
    fputc('\n', f);
}

/* Paragraphs are parted by an empty line; sentences begin on lines of their own. */
static void put_details(FILE *f, const cli_command *c)
{
    const char *text = c->details ? c->details : c->summary, *gap;
    while ((gap = strstr(text, "\n\n"))) {
        char *paragraph = strndup(text, (size_t)(gap - text));
        put_text(f, paragraph ? paragraph : "");
        fputs("\n.Pp\n", f);
        free(paragraph);
        text = gap + 2;
    }
    put_text(f, text);
    fputs(c->details ? "\n" : ".\n", f);
}

/* One page for a noun with all its verbs, or for a command that stands alone. */
static void put_noun_page(FILE *f, const char *noun)
{
    char page[64];
    const cli_command *alone = cli_find(noun, NULL);
    (void)snprintf(page, sizeof page, "tinkc-%s", noun);
    put_head(f, page, 1, alone ? alone->summary : cli_noun_summary(noun));
    fputs(".Sh SYNOPSIS\n", f);
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (!c->hidden && strcmp(c->noun, noun) == 0)
            fprintf(f, ".Nm tinkc %s%s%s\n%s%s%s.Op Ar option ...\n", noun, c->verb ? " " : "",
                    c->verb ? c->verb : "", c->args[0] ? ".Ar " : "", c->args,
                    c->args[0] ? "\n" : "");
    fputs(".Sh DESCRIPTION\n", f);
    for (const cli_command *c = cli_commands; c->noun; c++) {
        if (c->hidden || strcmp(c->noun, noun) != 0)
            continue;
        if (c->verb)
            fprintf(f, ".Ss tinkc %s %s\n", noun, c->verb);
        put_details(f, c);
        put_options(f, c->options);
    }
    fputs(".Sh EXAMPLES\n", f);
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (!c->hidden && strcmp(c->noun, noun) == 0)
            put_examples(f, c);
    fputs(".Sh SEE ALSO\n.Xr tinkc 1\n", f);
}

static bool first_of_noun(const cli_command *c)
{
    for (const cli_command *d = cli_commands; d != c; d++)
        if (strcmp(d->noun, c->noun) == 0)
            return false;
    return !c->hidden;
}

static int by_noun(const void *a, const void *b)
{
    return strcmp((*(const cli_command *const *)a)->noun, (*(const cli_command *const *)b)->noun);
}

/* Every other page, in alphabetical order. */
static void put_all_pages(FILE *f)
{
    const cli_command *pages[64];
    size_t n = 0;
    for (const cli_command *c = cli_commands; c->noun && n < 64; c++)
        if (first_of_noun(c))
            pages[n++] = c;
    qsort(pages, n, sizeof *pages, by_noun);
    for (size_t i = 0; i < n; i++)
        fprintf(f, ".Xr tinkc-%s 1%s\n", pages[i]->noun, i + 1 == n ? "" : " ,");
}

static void put_main_page(FILE *f)
{
    put_head(f, "tinkc", 1, "fine-tune and sample language models with the Tinker API");
    fputs(".Sh SYNOPSIS\n.Nm tinkc\n.Op Ar option ...\n.Ar command\n.Op Ar argument ...\n"
          ".Sh DESCRIPTION\n"
          "Without a key everything runs on the engine inside the program.\n"
          "The commands are:\n.Bl -tag -width Ds\n",
          f);
    for (const cli_command *c = cli_commands; c->noun; c++) {
        if (!first_of_noun(c))
            continue;
        const char *summary = c->verb ? cli_noun_summary(c->noun) : c->summary;
        fprintf(f, ".It Ic %s\n", c->noun);
        put_text(f, summary);
        fprintf(f, "; see\n.Xr tinkc-%s 1 .\n", c->noun);
    }
    fputs(".El\n.Pp\nEvery command takes these options:\n", f);
    put_options(f, cli_globals);
    fputs(".Sh EXIT STATUS\nSee\n.Ql tinkc help exit-codes .\n.Sh SEE ALSO\n", f);
    put_all_pages(f);
}

/* ---- file formats ---- */

static void put_config_body(FILE *f)
{
    fputs(
        ".Sh DESCRIPTION\n"
        "Settings of\n.Xr tinkc 1\n"
        "are TOML: tables, dotted keys, strings, numbers, booleans, flat arrays\nand comments.\n"
        "The first that has a value wins: option, environment, project file, profile,\n"
        ".Ql [defaults]\nof the user's file, system file, built in.\n"
        "A broken file, or a value that its key cannot have, is an error with its line;\n"
        "an unknown key warns.\n"
        ".Sh FILES\n.Bl -tag -width Ds\n"
        ".It Pa ~/.config/tinkc/config.toml\nThe user's.\n"
        ".It Pa ~/.config/tinkc/credentials.toml\nSecrets; refused unless others cannot read it.\n"
        ".It Pa .tinkc.toml\nThe project's, here or in the nearest parent: no address, no secret, "
        "no "
        "command.\n"
        ".It Pa /etc/tinkc/config.toml\nThe system's.\n.El\n"
        ".Sh KEYS\n"
        "Of a profile,\n.Ql [profile.NAME] ,\nand of\n.Ql [defaults] :\n.Bl -bullet -compact\n",
        f);
    for (const char *const *k = cli_profile_keys; *k; k++)
        fprintf(f, ".It\n.Ql %s%s\n", *k,
                cli_config_is_secret(*k) ? "\nin the credentials file" : "");
    fputs(".El\n.Pp\n"
          "Options of a command are keys of its table, with underscores:\n"
          ".Ql lora_rank\nin\n.Ql [train.sft] .\n"
          ".Ql current_profile\nselects a profile,\n.Ql profile\ndoes so in a project file.\n"
          ".Sh EXAMPLES\n.Bd -literal\n"
          "current_profile = \"work\"\n\n[profile.work]\nmodel = \"Qwen/Qwen3-8B\"\n\n"
          "[train.sft]\nlora_rank = 64\n.Ed\n"
          ".Sh SEE ALSO\n.Xr tinkc 1 ,\n.Xr tinkc-config 1\n",
          f);
}

static void put_data_body(FILE *f)
{
    fputs(".Sh DESCRIPTION\n"
          "Training files of\n.Xr tinkc-train 1\n"
          "are JSON lines: one object a line with the key\n.Ql messages .\n"
          "Other keys, blank lines and a byte order mark are passed over.\n"
          ".Sh MESSAGES\n.Bl -tag -width Ds\n"
          ".It Ql role\nText, needed: usually system, user, assistant or tool.\n"
          ".It Ql content\nText or a list of parts; may be null beside tool calls.\n"
          ".It Ql tool_calls\nA list of objects with function.name and function.arguments, a JSON "
          "text.\n"
          ".It Ql tool_call_id , name\nOn tool messages.\n"
          ".It Ql trainable\ntrue or false: on every message with --train-on customized,\n"
          "and on none otherwise.\n.El\n"
          ".Sh PARTS\nAn object with the key\n.Ql type\nand the member that it names:\n"
          ".Ql text ,\n.Ql thinking ,\n.Ql image\nor\n.Ql audio .\n"
          ".Sh EXAMPLES\n.Bd -literal\n"
          "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 15 + 27?\"},\n"
          "              {\"role\": \"assistant\", \"content\": \"15 + 27 = 42\"}]}\n.Ed\n.Pp\n"
          "is one line in a file.\n"
          ".Sh SEE ALSO\n.Xr tinkc-data 1 ,\n.Xr tinkc-train 1\n",
          f);
}

static const struct {
    const char *name, *summary; /* the page is NAME(5); it is asked for as NAME.5 */
    void (*body)(FILE *);
} formats[] = { { "tinkc-config", "configuration files of tinkc", put_config_body },
                { "tinkc-data", "training files of tinkc", put_data_body } };
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* Writes a page; false if there is none of this name. */
static bool put_page(FILE *f, const char *page)
{
    const char *noun = strncmp(page, "tinkc-", 6) == 0 ? page + 6 : page;
    size_t len = strlen(page);
    if (strcmp(page, "tinkc") == 0)
        return put_main_page(f), true;
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (len < 2 || strcmp(page + len - 2, ".5") != 0 ||
            strncmp(formats[i].name, page, len - 2) != 0 || formats[i].name[len - 2])
            continue;
        put_head(f, formats[i].name, 5, formats[i].summary);
        return formats[i].body(f), true;
    }
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (strcmp(c->noun, noun) == 0 && first_of_noun(c))
            return put_noun_page(f, noun), true;
    return false;
}

static void add_name(tkc_tree *names, char *name)
{
    tkc_tree_add_text(names, name);
    free(name);
}

/* The names of all pages, as put_page knows them. */
static tkc_tree *page_names(const cli_app *app)
{
    tkc_tree *names = cli_array(app);
    tkc_tree_add_text(names, "tinkc");
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (first_of_noun(c))
            add_name(names, cli_printf("tinkc-%s", c->noun));
    for (size_t i = 0; i < N_FORMATS; i++)
        add_name(names, cli_printf("%s.5", formats[i].name));
    return names;
}

static int write_page(cli_app *app, const char *folder, const char *page)
{
    char *path = cli_printf("%s/%s%s", folder, page, strstr(page, ".5") ? "" : ".1");
    FILE *f = path ? fopen(path, "we") : NULL;
    bool ok = f && put_page(f, page);
    if (f && fclose(f) != 0)
        ok = false;
    int bad = ok ? 0 : cli_fail(app, "local_io", NULL, "%s: %s", path, tkc_errno_text(errno));
    free(path);
    return bad;
}

static int write_all(cli_app *app, const char *folder)
{
    tkc_tree *names = page_names(app);
    int bad = 0;
    for (size_t i = 0; !bad && i < tkc_tree_length(names); i++)
        bad = write_page(app, folder, tkc_tree_text(tkc_tree_at(names, i)));
    return bad;
}

static int list_pages(cli_app *app)
{
    bool json = app->format == CLI_JSON || app->format == CLI_JSONL;
    tkc_tree *names = page_names(app);
    for (size_t i = 0; !json && i < tkc_tree_length(names); i++)
        puts(tkc_tree_text(tkc_tree_at(names, i)));
    tkc_tree *v = cli_pack(app, "{s:o}", "pages", names);
    return json ? cli_print_json(app, v) : 0;
}

int cli_man(cli_app *app)
{
    bool json = app->format == CLI_JSON || app->format == CLI_JSONL;
    const char *page = app->n_args ? app->args[0] : "tinkc";
    char *text = NULL;
    size_t size = 0;
    if (cli_given(app, "all"))
        return write_all(app, cli_text(app, "all"));
    if (cli_flag(app, "list"))
        return list_pages(app);
    FILE *f = json ? open_memstream(&text, &size) : stdout;
    bool known = f && put_page(f, page);
    if (f && json && fclose(f) != 0)
        known = false;
    int bad =
        known ? 0
              : cli_fail(app, "not_found", "see: tinkc man --list", "no manual page '%s'", page);
    if (!bad && json) {
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "page", page, "text", text);
        bad = cli_print_json(app, v);
    }
    free(text);
    return bad;
}
