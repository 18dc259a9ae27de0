/* cmd_train.c - `tinkc train sft` and `tinkc train resume`: where to begin, then train_run.c. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/track/chosen_commands.h"
#include "cli/track/gitinfo.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_config.h"
#include "cli/train/train_run.h"

/* ---- the commands ---- */

static void preview(const cli_sft *s)
{
    size_t n = (size_t)cli_int(s->job.app, "preview");
    for (size_t i = 0; i < n && i < s->n_kept; i++)
        cli_preview(s->job.app, stderr, s->job.tokenizer, &s->train.items[s->kept[i]]);
}

static int train(cli_sft *s)
{
    tkc_tree *config = cli_sft_config(s);
    int bad = cli_job_open(&s->job, config);
    if (bad)
        return bad;
    if (s->job.step < s->job.total_steps)
        return cli_sft_run(s);
    cli_note(s->job.app, "nothing is left to do: %zu of %zu steps are done", s->job.step,
             s->job.total_steps);
    return 0;
}

int cli_train_sft(cli_app *app)
{
    cli_sft s = { .job = { .app = app } };
    char *commit = cli_flag(app, "dry-run") ? NULL : cli_git_commit();
    const char *const about[] = { "recipe_name", "sft", commit ? "git_rev" : NULL, commit, NULL };
    app->session_metadata = about;
    int bad = cli_train_config_take(app);
    bad = bad ? bad : cli_sft_prepare(app, &s);
    if (!bad) {
        cli_sft_show_plan(&s);
        preview(&s);
    }
    if (!bad && !cli_flag(app, "dry-run"))
        bad = train(&s);
    cli_sft_free(&s);
    cli_disconnect(app); /* it knows the metadata, which ends here */
    app->session_metadata = NULL;
    free(commit);
    return bad;
}

/* A member wherever it lies: the cookbook nests its settings. */
static const tkc_tree *find_deep(const tkc_tree *v, const char *key)
{
    const tkc_tree *found = tkc_tree_get(v, key);
    const char *name;
    tkc_tree *member;
    TKC_TREE_EACH (v, name, member) {
        if (found && !tkc_tree_is_null(found))
            break;
        if (tkc_tree_is_object(member))
            found = find_deep(member, key);
    }
    return found;
}

static char *as_text(const tkc_tree *v)
{
    if (tkc_tree_is_text(v))
        return strdup(tkc_tree_text(v));
    if (tkc_tree_is_bool(v))
        return strdup(tkc_tree_is_true(v) ? "true" : "false");
    return tkc_tree_is_number(v) ? cli_json_print(v, TKC_TREE_SPACED) : NULL;
}

/* Settings of our own runs word by word; of the cookbook's by the names of its fields. */
static int take_settings(cli_app *app, const char *folder, const tkc_tree *config,
                         const char *origin)
{
    const tkc_tree *ours = tkc_tree_get(tkc_tree_get(config, "tinkc"), "options");
    int bad = 0;
    for (const cli_option *o = app->command->options; o->name && !bad; o++) {
        const tkc_tree *v = ours          ? tkc_tree_get(ours, o->name)
                            : o->cookbook ? find_deep(config, o->cookbook)
                                          : NULL;
        if (cli_given(app, o->name) || strcmp(o->name, "data") == 0 ||
            strcmp(o->name, "log-dir") == 0 || strcmp(o->name, "if-exists") == 0 ||
            strcmp(o->name, "resume") == 0 || strcmp(o->name, "config") == 0)
            continue;
        bad = cli_choices_check(app, folder, o, v);
        for (size_t i = 0; tkc_tree_is_array(v) && i < tkc_tree_length(v) && !bad; i++)
            bad = cli_give_value(app, o->name, as_text(tkc_tree_at(v, i)), CLI_FROM_USER, origin);
        if (!bad && !tkc_tree_is_array(v))
            bad = cli_give_value(app, o->name, v ? as_text(v) : NULL, CLI_FROM_USER, origin);
    }
    return bad;
}

static int take_files(cli_app *app, const tkc_tree *config, const char *origin)
{
    const tkc_tree *files = tkc_tree_get(tkc_tree_get(config, "tinkc"), "files");
    int bad = 0;
    for (size_t i = 0; i < tkc_tree_length(files) && !bad; i++)
        bad = cli_give_value(app, "data", as_text(tkc_tree_at(files, i)), CLI_FROM_USER, origin);
    if (tkc_tree_length(files))
        return bad;
    const tkc_tree *path = find_deep(config, "file_path");
    if (!tkc_tree_is_text(path))
        path = find_deep(config, "dataset");
    if (!tkc_tree_is_text(path))
        return cli_fail(app, "config_invalid", NULL, "%s does not name a data file", origin);
    cli_note(app, "a run of the cookbook: the data is shuffled in another order from here on");
    return cli_give_value(app, "data", as_text(path), CLI_FROM_USER, origin);
}

int cli_train_resume(cli_app *app)
{
    int bad;
    const char *folder = app->args[0];
    tkc_tree *config = cli_trainlog_read_config(cli_arena(app), folder);
    if (!config)
        return cli_fail(app, "not_found", "it is the folder with config.json and checkpoints.jsonl",
                        "%s is not a log directory", folder);
    const tkc_tree *recipe = tkc_tree_get(tkc_tree_get(config, "tinkc"), "recipe");
    const char *verb = tkc_tree_is_text(recipe) ? tkc_tree_text(recipe) : "sft";
    app->command = cli_find("train", verb);
    if (!app->command || app->command->run == cli_train_resume) {
        bad = cli_fail(app, "config_invalid", NULL, "%s/config.json: unknown recipe '%s'", folder,
                       verb);
        return bad;
    }
    app->n_args = 0;
    bad = take_settings(app, folder, config, "config.json");
    if (!bad && !cli_given(app, "model") && tkc_tree_is_text(tkc_tree_get(config, "model_name")))
        bad = cli_give_value(app, "model", as_text(tkc_tree_get(config, "model_name")),
                             CLI_FROM_USER, "config.json");
    if (!bad)
        bad = take_files(app, config, "config.json");
    if (!bad)
        bad = cli_set_value(app, "log-dir", folder, CLI_FROM_LINE, "command line");
    if (!bad)
        bad = cli_set_value(app, "resume", "true", CLI_FROM_LINE, "command line");
    return bad ? bad : app->command->run(app);
}
