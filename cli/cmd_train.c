/* cmd_train.c - `tinkc train sft` and `tinkc train resume`: where to begin, then train_run.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "gitinfo.h"
#include "out.h"
#include "term.h"
#include "text.h"
#include "train_run.h"

/* ---- a log directory that is there already ---- */

/* "ask" on a terminal; otherwise what was given, or "raise". */
static const char *if_exists(const cli_app *app)
{
    if (cli_flag(app, "resume"))
        return "resume";
    const char *given = cli_text(app, "if-exists");
    if (given && strcmp(given, "ask") != 0)
        return given;
    return app->stdin_tty && app->stderr_tty ? "ask" : "raise";
}

static const char *ask_what(const char *folder)
{
    char line[32], prompt[4200];
    (void)snprintf(prompt, sizeof prompt, "%s holds a run. [resume, delete, exit]: ", folder);
    for (;;) {
        if (!cli_ask_line(line, sizeof line, prompt))
            return "exit";
        if (strcmp(line, "resume") == 0 || strcmp(line, "r") == 0)
            return "resume";
        if (strcmp(line, "delete") == 0 || strcmp(line, "d") == 0)
            return "delete";
        if (strcmp(line, "exit") == 0 || strcmp(line, "e") == 0)
            return "exit";
    }
}

/* Takes the folder and decides about a run that is in it: *resume it, or begin *anew. 0, or an exit
 * code after reporting. */
static int settle_folder(cli_sft *s, bool *resume, bool *anew)
{
    int bad = cli_trainlog_claim(s->app, s->log_dir, &s->claim);
    if (bad || !cli_trainlog_exists(s->log_dir))
        return bad;
    const char *what = if_exists(s->app);
    if (strcmp(what, "ask") == 0)
        what = ask_what(s->log_dir);
    if (strcmp(what, "resume") == 0) {
        *resume = true;
        return 0;
    }
    *anew = strcmp(what, "delete") == 0;
    if (*anew)
        return 0;
    if (cli_stop_signal())
        return cli_stop_exit();
    if (strcmp(what, "exit") == 0)
        return cli_fail(s->app, "declined", NULL, "cancelled");
    return cli_fail(s->app, "exists", "--resume goes on with it; --if-exists delete begins anew",
                    "%s holds a run already", s->log_dir);
}

/* ---- the trainer ---- */

/* renderer_name, then --metadata K=V. A list of pairs; yours with what it points to. */
static const char **metadata(cli_sft *s, char **storage)
{
    size_t n = 0;
    while (cli_text_at(s->app, "metadata", n))
        n++;
    const char **pairs = calloc(2 * n + 3, sizeof *pairs);
    size_t at = 0, used = 0, cap = 1;
    for (size_t i = 0; i < n; i++)
        cap += strlen(cli_text_at(s->app, "metadata", i)) + 1;
    *storage = malloc(cap);
    if (!pairs || !*storage)
        return free(pairs), NULL;
    if (s->renderer) {
        pairs[at++] = "renderer_name";
        pairs[at++] = s->renderer;
    }
    for (size_t i = 0; i < n; i++) {
        const char *text = cli_text_at(s->app, "metadata", i);
        size_t len = strlen(text), name = strcspn(text, "=");
        memcpy(*storage + used, text, len + 1);
        (*storage)[used + name] = '\0';
        pairs[at++] = *storage + used;
        pairs[at++] = *storage + used + name + (name < len);
        used += len + 1;
    }
    return pairs;
}

static tinkc_trainer *wait_trainer(cli_sft *s, tinkc_future *f, const char *label, tinkc_error *err)
{
    tinkc_trainer *t = cli_wait(s->app, f, label, err) ? tinkc_future_trainer(f, 0, err) : NULL;
    tinkc_future_free(f);
    return t;
}

static tinkc_trainer *new_trainer(cli_sft *s, const char *const *pairs, tinkc_error *err)
{
    cli_app *app = s->app;
    tinkc_lora_options o = { .base_model = s->model,
                             .user_metadata = pairs,
                             .rank = (int32_t)cli_int(app, "lora-rank"),
                             .freeze =
                                 (cli_flag(app, "train-mlp") ? 0 : TINKC_FREEZE_MLP) |
                                 (cli_flag(app, "train-attn") ? 0 : TINKC_FREEZE_ATTN) |
                                 (cli_flag(app, "train-unembed") ? 0 : TINKC_FREEZE_UNEMBED) };
    if (cli_given(app, "seed")) {
        o.has_seed = true;
        o.seed = (uint64_t)cli_int(app, "seed");
    }
    return wait_trainer(s, tinkc_trainer_open(app->client, &o, err), "placing the model", err);
}

static tinkc_trainer *from_path(cli_sft *s, const char *path, bool optimizer,
                                const char *const *pairs, tinkc_error *err)
{
    tinkc_state_options o = { .path = path, .user_metadata = pairs, .with_optimizer = optimizer };
    return wait_trainer(s, tinkc_trainer_open_from(s->app->client, &o, err),
                        "loading the checkpoint", err);
}

/* The newest record whose state can still be loaded; older ones are tried in turn. */
static bool resume_state(cli_sft *s, const char *const *pairs, tinkc_error *err)
{
    json_t *records = cli_trainlog_records(s->log_dir, "state_path");
    bool found = false;
    for (size_t i = json_array_size(records); i-- > 0 && !found;) {
        const json_t *r = json_array_get(records, i);
        const char *path = json_string_value(json_object_get(r, "state_path"));
        *err = (tinkc_error){ 0 };
        s->trainer = from_path(s, path, true, pairs, err);
        if (s->trainer) {
            s->step = (size_t)json_integer_value(json_object_get(r, "epoch")) * s->n_batches +
                      (size_t)json_integer_value(json_object_get(r, "batch"));
            s->elapsed_tokens = (size_t)json_integer_value(json_object_get(r, "elapsed_tokens"));
            s->state_path = strdup(path);
            if (json_is_true(json_object_get(r, "rolling")))
                s->last_rolling = strdup(path);
            const char *sampler = json_string_value(json_object_get(r, "sampler_path"));
            s->sampler_path = sampler ? strdup(sampler) : NULL;
            found = true;
        } else if (err->code == TINKC_E_NOT_FOUND || err->code == TINKC_E_REQUEST_FAILED ||
                   err->code == TINKC_E_GONE) {
            cli_warn(s->app, "%s cannot be loaded (%s); trying the one before", path, err->message);
        } else {
            break;
        }
    }
    json_decref(records);
    return found;
}

static int open_trainer(cli_sft *s, bool resume)
{
    tinkc_error err = { 0 };
    char *storage = NULL;
    const char **pairs = metadata(s, &storage);
    bool resumed = resume && resume_state(s, pairs, &err);
    if (resume && !resumed && !err.code)
        cli_note(s->app, "no checkpoint to go on from: beginning anew");
    if (!resumed && !err.code) {
        const char *from = cli_text(s->app, "from");
        s->trainer = from ? from_path(s, from, false, pairs, &err) : new_trainer(s, pairs, &err);
    }
    free(pairs);
    free(storage);
    return s->trainer ? 0 : cli_fail_error(s->app, &err, NULL);
}

/* ---- the commands ---- */

static int write_config(cli_sft *s)
{
    json_t *v = cli_sft_config(s);
    int bad = cli_trainlog_config(s->app, s->log_dir, v);
    json_decref(v);
    return bad;
}

static void preview(const cli_sft *s)
{
    size_t n = (size_t)cli_int(s->app, "preview");
    for (size_t i = 0; i < n && i < s->n_kept; i++)
        cli_preview(s->app, stderr, s->tokenizer, &s->train.items[s->kept[i]]);
}

/* The old run's files go when the new one has a trainer, not before. */
static int open_log(cli_sft *s, bool resume, bool anew)
{
    bool ok = anew     ? cli_trainlog_remove(s->log_dir)
              : resume ? cli_trainlog_rewind(s->log_dir, s->step)
                       : true;
    if (!ok)
        return cli_fail(s->app, "local_io", NULL, "%s: %s", s->log_dir, strerrordesc_np(errno));
    int bad = cli_trainlog_open(s->app, s->log_dir, cli_text(s->app, "hook"), &s->log);
    bad = bad ? bad : write_config(s);
    return bad ? bad : cli_trainlog_code(s->app, s->log_dir);
}

static int train(cli_sft *s)
{
    bool resume = false, anew = false;
    int bad = settle_folder(s, &resume, &anew);
    bad = bad ? bad : cli_connect(s->app);
    bad = bad ? bad : open_trainer(s, resume);
    bad = bad ? bad : open_log(s, resume, anew);
    if (bad)
        return bad;
    if (s->step < s->total_steps)
        return cli_sft_run(s);
    cli_note(s->app, "nothing is left to do: %zu of %zu steps are done", s->step, s->total_steps);
    return 0;
}

int cli_train_sft(cli_app *app)
{
    cli_sft s;
    char *commit = cli_flag(app, "dry-run") ? NULL : cli_git_commit();
    const char *const about[] = { "recipe_name", "sft", commit ? "git_rev" : NULL, commit, NULL };
    app->session_metadata = about;
    int bad = cli_sft_prepare(app, &s);
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
static const json_t *find_deep(const json_t *v, const char *key)
{
    const json_t *found = json_object_get(v, key);
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)v, name, member)
    {
        if (found && !json_is_null(found))
            break;
        if (json_is_object(member))
            found = find_deep(member, key);
    }
    return found;
}

static char *as_text(const json_t *v)
{
    if (json_is_string(v))
        return strdup(json_string_value(v));
    if (json_is_boolean(v))
        return strdup(json_is_true(v) ? "true" : "false");
    return json_is_number(v) ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
}

/* Settings of our own runs word by word; of the cookbook's by the names of its fields. */
static int take_settings(cli_app *app, const json_t *config, const char *origin)
{
    const json_t *ours = json_object_get(json_object_get(config, "tinkc"), "options");
    int bad = 0;
    for (const cli_option *o = app->command->options; o->name && !bad; o++) {
        const json_t *v = ours          ? json_object_get(ours, o->name)
                          : o->cookbook ? find_deep(config, o->cookbook)
                                        : NULL;
        if (cli_given(app, o->name) || strcmp(o->name, "data") == 0 ||
            strcmp(o->name, "log-dir") == 0 || strcmp(o->name, "if-exists") == 0 ||
            strcmp(o->name, "resume") == 0)
            continue;
        bad = cli_give_value(app, o->name, v ? as_text(v) : NULL, origin);
    }
    return bad;
}

static int take_files(cli_app *app, const json_t *config, const char *origin)
{
    const json_t *files = json_object_get(json_object_get(config, "tinkc"), "files");
    int bad = 0;
    for (size_t i = 0; i < json_array_size(files) && !bad; i++)
        bad = cli_give_value(app, "data", as_text(json_array_get(files, i)), origin);
    if (json_array_size(files))
        return bad;
    const json_t *path = find_deep(config, "file_path");
    if (!json_is_string(path))
        path = find_deep(config, "dataset");
    if (!json_is_string(path))
        return cli_fail(app, "config_invalid", NULL, "%s names no data file", origin);
    cli_note(app, "a run of the cookbook: the data is shuffled in another order from here on");
    return cli_give_value(app, "data", as_text(path), origin);
}

int cli_train_resume(cli_app *app)
{
    const char *folder = app->args[0];
    json_t *config = cli_trainlog_read_config(folder);
    if (!config)
        return cli_fail(app, "not_found", "it is the folder with config.json and checkpoints.jsonl",
                        "%s is no log directory", folder);
    app->command = cli_find("train", "sft");
    app->n_args = 0;
    int bad = take_settings(app, config, "config.json");
    if (!bad && !cli_given(app, "model") && json_is_string(json_object_get(config, "model_name")))
        bad = cli_give_value(app, "model", as_text(json_object_get(config, "model_name")),
                             "config.json");
    if (!bad)
        bad = take_files(app, config, "config.json");
    if (!bad)
        bad = cli_set_value(app, "log-dir", folder, "command line");
    if (!bad)
        bad = cli_set_value(app, "resume", "true", "command line");
    json_decref(config);
    return bad ? bad : cli_train_sft(app);
}
