/* complete.c - shell completion: short scripts that ask the hidden __complete, and its answers.
 *
 * Must not: use the network, print anything but candidates, or fail loudly.
 */
#include <string.h>

#include "commands.h"
#include "config.h"
#include "models.h"

static const char bash_script[] = "_tinkc() {\n"
                                  "    local IFS=$'\\n' word=${COMP_WORDS[COMP_CWORD]}\n"
                                  "    local line=(\"${COMP_WORDS[@]:1:COMP_CWORD}\")\n"
                                  "    COMPREPLY=($(compgen -W \"$(tinkc __complete -- "
                                  "\"${line[@]}\" 2>/dev/null | cut -f1)\" -- \"$word\"))\n"
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
    fputs(script, stdout);
    return 0;
}

static void offer(const char *word, const char *name, const char *help)
{
    if (strncmp(name, word, strlen(word)) == 0)
        printf("%s\t%s\n", name, help);
}

static void offer_options(const char *word, const cli_option *options)
{
    for (const cli_option *o = options; o && o->name; o++) {
        char name[80];
        (void)snprintf(name, sizeof name, "--%s", o->name);
        offer(word, name, o->help);
    }
}

static void offer_choices(const char *word, const char *choices)
{
    for (const char *p = choices; *p;) {
        char name[64];
        size_t n = strcspn(p, "|");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        offer(word, name, "");
        p += n + (p[n] == '|');
    }
}

static void offer_profiles(const cli_app *app, const char *word)
{
    json_t *names = cli_config_profile_names(app), *current;
    const char *name;
    json_object_foreach(names, name, current)
        offer(word, name, json_is_true(current) ? "profile, selected now" : "profile");
    json_decref(names);
}

static void offer_models(const char *word)
{
    const char *name;
    for (size_t i = 0; (name = cli_model_name(i)); i++)
        offer(word, name, "model");
}

static void offer_kind(const cli_app *app, const char *kind, const char *word)
{
    if (strcmp(kind, "profile") == 0)
        offer_profiles(app, word);
    else if (strcmp(kind, "model") == 0)
        offer_models(word);
    else if (strcmp(kind, "checkpoint") == 0)
        offer(word, "tinker://", "a checkpoint");
}

static void offer_commands(const char *word)
{
    for (const cli_command *c = cli_commands; c->noun; c++) {
        bool seen = false;
        for (const cli_command *d = cli_commands; d != c && !seen; d++)
            seen = strcmp(d->noun, c->noun) == 0;
        if (!seen && !c->hidden)
            offer(word, c->noun, c->verb ? cli_noun_summary(c->noun) : c->summary);
    }
}

static void offer_verbs(const char *noun, const char *word)
{
    for (const cli_command *c = cli_commands; c->noun; c++)
        if (c->verb && strcmp(c->noun, noun) == 0)
            offer(word, c->verb, c->summary);
}

/* The option whose value the last word is, or NULL. */
static const cli_option *awaits_value(const cli_command *c, const char *before)
{
    const cli_option *o = NULL;
    if (strncmp(before, "--", 2) == 0)
        o = cli_find_option(c, before + 2, strlen(before + 2));
    else if (before[0] == '-' && before[1] && !before[2])
        o = cli_find_letter(c, before[1]);
    return o && o->kind != CLI_FLAG && !o->optional_value ? o : NULL;
}

/* Arguments are the words typed so far; the last is being completed. */
int cli_complete(cli_app *app)
{
    const char *noun = NULL, *verb = NULL;
    const char *word = app->n_args ? app->args[app->n_args - 1] : "";
    for (size_t i = 0; i + 1 < app->n_args; i++) {
        const char *w = app->args[i];
        if (w[0] == '-')
            i += awaits_value(NULL, w) != NULL;
        else if (!noun)
            noun = cli_real_name(w);
        else if (!verb && cli_is_noun(noun))
            verb = cli_real_name(w);
    }
    const cli_command *c = noun ? cli_find(noun, verb) : NULL;
    const cli_option *o = app->n_args > 1 ? awaits_value(c, app->args[app->n_args - 2]) : NULL;
    if (o && o->choices)
        offer_choices(word, o->choices);
    else if (o && o->complete)
        offer_kind(app, o->complete, word);
    else if (o)
        return 0;
    else if (word[0] == '-') {
        offer_options(word, c ? c->options : NULL);
        offer_options(word, cli_globals);
    } else if (!noun)
        offer_commands(word);
    else if (!c && cli_is_noun(noun))
        offer_verbs(noun, word);
    else if (c && c->run == cli_completion)
        offer_choices(word, "bash|zsh|fish");
    else if (c && c->run == cli_help)
        offer_commands(word);
    else if (c && c->arg_kind)
        offer_kind(app, c->arg_kind, word);
    return 0;
}
