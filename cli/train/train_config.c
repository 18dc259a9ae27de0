/* train_config.c - config.toml of a run, written and read.
 *
 * One table, [train.RECIPE], with the options that were given, by the names of the user's own
 * configuration file (dashes become underscores). Values are strings or lists of strings, in TOML's
 * basic form, which is JSON's; numbers, true and false may stand without quotes.
 */
#include "cli/train/train_config.h"

#include <stdlib.h>
#include <string.h>

#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* What belongs to one start of a run and not to its settings. */
static bool is_kept(const char *name)
{
    static const char *const not_kept[] = { "log-dir", "if-exists", "resume",
                                            "dry-run", "config",    "preview" };
    for (size_t i = 0; i < sizeof not_kept / sizeof *not_kept; i++)
        if (strcmp(name, not_kept[i]) == 0)
            return false;
    return true;
}

static void write_value(FILE *f, const char *name, const tkc_tree *v)
{
    for (const char *p = name; *p; p++)
        fputc(*p == '-' ? '_' : *p, f);
    fputs(" = ", f);
    char *text = cli_json_print(v, TKC_TREE_SPACED | TKC_TREE_ASCII);
    fputs(text ? text : "", f);
    free(text);
    fputc('\n', f);
}

int cli_train_config_write(const cli_app *app, const char *folder, const tkc_tree *config)
{
    const tkc_tree *ours = tkc_tree_get(config, "tinkc"), *files = tkc_tree_get(ours, "files");
    char *path = cli_printf("%s/config.toml", folder);
    const char *name;
    tkc_tree *v;
    cli_save save;
    cli_save_begin(&save, path ? path : "", 0666);
    if (save.f) {
        fprintf(save.f,
                "# Settings of this run; to repeat it: tinkc train %s --config FILE\n[train.%s]\n",
                app->command->verb, app->command->verb);
        write_value(save.f, "model", tkc_tree_get(config, "model_name"));
        write_value(save.f, "data", files);
        TKC_TREE_EACH (tkc_tree_get(ours, "options"), name, v) {
            if (is_kept(name) && strcmp(name, "model") != 0 && strcmp(name, "data") != 0)
                write_value(save.f, name, v);
        }
    }
    free(path);
    return cli_save_end(&save, app, true);
}

/* ---- reading ---- */

typedef struct reading {
    cli_app *app;
    const char *path;
    size_t line;
    bool ours;         /* inside the table of this recipe */
    cli_source source; /* of the file's name: its settings have no other rights */
} reading;

static int bad_line(const reading *r, const char *why)
{
    return cli_fail(r->app, "config_invalid", "a line is NAME = VALUE, a table [train.RECIPE]",
                    "%s:%zu: %s", r->path, r->line, why);
}

static int take_table(reading *r, const char *line)
{
    char *wanted = cli_printf("[train.%s]", r->app->command->verb);
    r->ours = wanted && strncmp(line, wanted, strlen(wanted)) == 0;
    bool recipe = strncmp(line, "[train.", 7) == 0;
    int bad = r->ours || !recipe ? 0
                                 : cli_fail(r->app, "config_invalid", NULL,
                                            "%s:%zu: settings of another recipe: %s, not %s",
                                            r->path, r->line, line, wanted);
    free(wanted);
    return bad;
}

static char *as_text(const tkc_tree *v)
{
    return tkc_tree_is_text(v)     ? strdup(tkc_tree_text(v))
           : tkc_tree_is_bool(v)   ? strdup(tkc_tree_is_true(v) ? "true" : "false")
           : tkc_tree_is_number(v) ? cli_json_print(v, TKC_TREE_SPACED)
                                   : NULL;
}

static int take_value(reading *r, char *name, const char *value)
{
    const tkc_tree *v =
        tkc_tree_read(cli_arena(r->app), tkc_str(value), TKC_TREE_ANY | TKC_TREE_BEGINS);
    int bad = 0;
    for (char *p = name; *p; p++)
        if (*p == '_')
            *p = '-';
    const cli_option *o = cli_find_option(r->app->command, name, strlen(name));
    if (!v)
        return bad_line(r, "the value is not a string, a number, true, false or a list of them");
    if (!o || !is_kept(name))
        bad = cli_fail(r->app, "config_invalid", NULL, "%s:%zu: train %s has no setting %s",
                       r->path, r->line, r->app->command->verb, name);
    bool skip = cli_given(r->app, name) || (strcmp(name, "data") == 0 && r->app->n_args);
    for (size_t i = 0; !bad && !skip && i < tkc_tree_length(v); i++)
        bad = cli_give_value(r->app, name, as_text(tkc_tree_at(v, i)), r->source, r->path);
    if (!bad && !skip && !tkc_tree_is_array(v) && !tkc_tree_is_null(v))
        bad = cli_give_value(r->app, name, as_text(v), r->source, r->path);
    return bad;
}

static int take_line(reading *r, char *line)
{
    line += strspn(line, " \t");
    size_t len = strcspn(line, "\r");
    line[len] = '\0';
    if (!*line || *line == '#')
        return 0;
    if (*line == '[')
        return take_table(r, line);
    if (!r->ours)
        return bad_line(r, "a setting outside of its table");
    char *is = strchr(line, '=');
    if (!is || is == line)
        return bad_line(r, "not NAME = VALUE");
    *is++ = '\0';
    line[strcspn(line, " \t")] = '\0';
    return take_value(r, line, is + strspn(is, " \t"));
}

int cli_train_config_take(cli_app *app)
{
    int bad = 0;
    size_t len;
    if (!cli_given(app, "config"))
        return 0;
    const cli_value *named = cli_value_of(app, "config");
    reading r = { .app = app, .path = named->text, .source = CLI_FROM_USER };
    if (named->source == CLI_FROM_PROJECT)
        r.source = CLI_FROM_PROJECT;
    char *text = cli_read_all(app, r.path, &len, &bad);
    for (char *line = text, *end; line && *line && !bad; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        r.line++;
        bad = take_line(&r, line);
    }
    free(text);
    return bad;
}
