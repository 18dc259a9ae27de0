/* complete.c - shell completion: short scripts that ask the hidden __complete, and its answers.
 *
 * Must not: print anything but candidates, fail loudly, or wait: ids come from the cache and from a
 * look at the service that gives up after 300 ms (recent_ids.h).
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/manage/recent_ids.h"
#include "cli/models/models.h"
#include "cli/output/out.h"

/* bash cuts words at ':' and '=', which ids and paths are full of: the line is cut at blanks here,
 * and what bash thinks stands before the word is taken off the answers. */
static const char bash_script[] =
    "_tinkc() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} words cur before found\n"
    "    IFS=$' \\t\\n' read -ra words <<< \"$line\"\n"
    "    [[ $line == *[[:space:]] ]] && words+=('')\n"
    "    cur=${words[-1]}\n"
    "    before=\n"
    "    [[ $COMP_WORDBREAKS == *:* && $cur == *:* ]] && before=${cur%\"${cur##*:}\"}\n"
    "    [[ $COMP_WORDBREAKS == *=* && ${cur#\"$before\"} == *=* ]] && "
    "before=${cur%\"${cur##*=}\"}\n"
    "    mapfile -t found < <(tinkc __complete -- \"${words[@]:1}\" 2>/dev/null | cut -f1)\n"
    "    COMPREPLY=(\"${found[@]#\"$before\"}\")\n"
    "    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=,/] ]] && compopt -o nospace\n"
    "}\n"
    "complete -o default -F _tinkc tinkc\n";
static const char zsh_script[] =
    "#compdef tinkc\n"
    "_tinkc() {\n"
    "    local -a found\n"
    "    local line\n"
    "    while IFS=$'\\t' read -r name help; do\n"
    "        found+=(\"${name//:/\\\\:}:$help\")\n"
    "    done < <(tinkc __complete -- \"${(@)words[2,CURRENT]}\" 2>/dev/null)\n"
    "    if (( $#found )); then _describe 'tinkc' found; else _files; fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = \"_tinkc\" ]; then _tinkc \"$@\"; else compdef _tinkc tinkc; fi\n";
static const char fish_script[] =
    "function __tinkc_complete\n"
    "    set -l words (commandline -opc) (commandline -ct)\n"
    "    tinkc __complete -- $words[2..-1] 2>/dev/null\n"
    "end\n"
    "complete -c tinkc -f -a '(__tinkc_complete)'\n"
    "complete -c tinkc -n 'test (count (__tinkc_complete)) -eq 0' -F\n";

int cli_completion(cli_app *app)
{
    const char *shell = app->args[0];
    const char *script = strcmp(shell, "bash") == 0   ? bash_script
                         : strcmp(shell, "zsh") == 0  ? zsh_script
                         : strcmp(shell, "fish") == 0 ? fish_script
                                                      : NULL;
    if (!script)
        return cli_fail(app, "usage", "bash, zsh and fish are known", "unknown shell '%s'", shell);
    if (app->format == CLI_JSON || app->format == CLI_JSONL) {
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "shell", shell, "script", script);
        return cli_print_json(app, v);
    }
    fputs(script, stdout);
    return 0;
}

/* What is being completed: `word`, of which `fixed` bytes stand before the part that is looked for
 * (--format=, or the columns that were named before this one). */
typedef struct asked {
    cli_app *app;
    const cli_command *command;
    const char *word;
    size_t fixed;
} asked;

static void offer(const asked *a, const char *name, const char *help)
{
    const char *part = a->word + a->fixed;
    if (strncmp(name, part, strlen(part)) == 0)
        printf("%.*s%s\t%s\n", (int)a->fixed, a->word, name, help);
}

static void offer_options(const asked *a, const cli_option *options)
{
    for (const cli_option *o = options; o && o->name; o++) {
        char name[80];
        (void)snprintf(name, sizeof name, "--%s", o->name);
        offer(a, name, o->help);
    }
}

static void offer_choices(const asked *a, const char *choices)
{
    for (const char *p = choices; *p;) {
        char name[64];
        size_t n = strcspn(p, "|");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        offer(a, name, "");
        p += n + (p[n] == '|');
    }
}

static void offer_profiles(const asked *a)
{
    tkc_tree *names = cli_config_profile_names(a->app), *current;
    const char *name;
    TKC_TREE_EACH (names, name, current)
        offer(a, name, tkc_tree_is_true(current) ? "profile, selected now" : "profile");
}

static void offer_models(const asked *a)
{
    const char *name;
    for (size_t i = 0; (name = cli_model_name(i)); i++)
        offer(a, name, "model");
}

static void offer_ids(const asked *a, const char *kind)
{
    tkc_tree *ids = cli_ids_fresh(a->app, kind);
    for (size_t i = 0; i < tkc_tree_length(ids); i++)
        offer(a, tkc_tree_text(tkc_tree_at(ids, i)), kind);
    if (tkc_tree_length(ids) == 0 && strcmp(kind, "checkpoint") == 0)
        offer(a, "tinker://", "a checkpoint");
}

/* The last of a list: those before the comma stay. */
static void offer_columns(asked a)
{
    const char *comma = strrchr(a.word + a.fixed, ',');
    if (comma)
        a.fixed = (size_t)(comma - a.word) + 1;
    for (const cli_column *c = a.command ? a.command->columns : NULL; c && c->name; c++)
        offer(&a, c->name, c->header);
}

static void offer_kind(const asked *a, const char *kind)
{
    if (strcmp(kind, "profile") == 0)
        offer_profiles(a);
    else if (strcmp(kind, "model") == 0)
        offer_models(a);
    else if (strcmp(kind, "column") == 0)
        offer_columns(*a);
    else
        offer_ids(a, kind);
}

static void offer_commands(const asked *a)
{
    for (const cli_command *c = cli_commands; c->noun; c++) {
        bool seen = false;
        for (const cli_command *d = cli_commands; d != c && !seen; d++)
            seen = strcmp(d->noun, c->noun) == 0;
        if (!seen && !c->hidden)
            offer(a, c->noun, c->verb ? cli_noun_summary(c->noun) : c->summary);
    }
}

static void offer_verbs(const asked *a, const char *noun)
{
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (c->verb && strcmp(c->noun, noun) == 0)
            offer(a, c->verb, c->summary);
}

/* The option whose value the next word is, or NULL. */
static const cli_option *awaits_value(const cli_command *c, const char *before)
{
    const cli_option *o = NULL;
    if (strncmp(before, "--", 2) == 0)
        o = cli_find_option(c, before + 2, strlen(before + 2));
    else if (before[0] == '-' && before[1] && !before[2])
        o = cli_find_letter(c, before[1]);
    return o && o->kind != CLI_FLAG && !o->optional_value ? o : NULL;
}

/* The option of "--name=va", whose value begins behind `fixed`. */
static const cli_option *joined_value(asked *a)
{
    size_t n = strcspn(a->word, "=");
    if (strncmp(a->word, "--", 2) != 0 || a->word[n] != '=')
        return NULL;
    const cli_option *o = cli_find_option(a->command, a->word + 2, n - 2);
    a->fixed = n + 1;
    return o;
}

/* The command that the words before the last one name. */
static const cli_command *command_of(const cli_app *app, const char **noun)
{
    const char *verb = NULL;
    *noun = NULL;
    for (size_t i = 0; i + 1 < app->n_args; i++) {
        const char *w = app->args[i];
        if (*w == '-')
            i += awaits_value(*noun ? cli_find(*noun, verb) : NULL, w) != NULL;
        else if (!*noun)
            *noun = cli_real_name(w);
        else if (!verb && cli_is_noun(*noun))
            verb = cli_real_name(w);
    }
    return *noun ? cli_find(*noun, verb) : NULL;
}

static void offer_values(const asked *a, const cli_option *o)
{
    if (o->choices)
        offer_choices(a, o->choices);
    else if (o->complete)
        offer_kind(a, o->complete);
}

static void offer_words(const asked *a, const char *noun)
{
    const cli_command *c = a->command;
    if (*a->word == '-') {
        offer_options(a, c ? c->options : NULL);
        offer_options(a, cli_globals);
    } else if (!noun) {
        offer_commands(a);
    } else if (!c && cli_is_noun(noun)) {
        offer_verbs(a, noun);
    } else if (c && c->run == cli_completion) {
        offer_choices(a, "bash|zsh|fish");
    } else if (c && c->run == cli_help) {
        offer_commands(a);
    } else if (c && c->arg_kind) {
        offer_kind(a, c->arg_kind);
    }
}

/* Global options on the line that say where ids come from. The configuration is read again for those
 * that choose it. False: it cannot be. */
static bool take_globals(cli_app *app)
{
    static const char *const names[] = { "base-url", "profile", "config-file" };
    bool again = false;
    for (size_t i = 0; i + 1 < app->n_args; i++) {
        const char *w = app->args[i];
        if (strcmp(w, "--local") == 0)
            cli_set_value(app, "local", "true", CLI_FROM_LINE, "command line");
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (strncmp(w, "--", 2) == 0 && strcmp(w + 2, names[k]) == 0 && i + 2 < app->n_args) {
                cli_set_value(app, names[k], app->args[i + 1], CLI_FROM_LINE, "command line");
                again = again || k > 0;
            }
    }
    if (!again)
        return true;
    cli_config_free(app->config);
    app->config = NULL;
    return cli_config_load(app) == 0;
}

/* Arguments are the words typed so far; the last is being completed. */
int cli_complete(cli_app *app)
{
    const char *noun;
    asked a = { .app = app, .word = app->n_args ? app->args[app->n_args - 1] : "" };
    (void)dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    app->quiet = true;
    if (!take_globals(app))
        _exit(0);
    a.command = command_of(app, &noun);
    const cli_option *o =
        app->n_args > 1 ? awaits_value(a.command, app->args[app->n_args - 2]) : NULL;
    o = o ? o : joined_value(&a);
    if (o)
        offer_values(&a, o);
    else if (!a.fixed)
        offer_words(&a, noun);
    fflush(stdout);
    _exit(0); /* no goodbye to a service that may not answer */
}
