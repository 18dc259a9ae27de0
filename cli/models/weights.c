/* weights.c - from what -m names to a sampler and its tokenizer. */
#include "cli/models/weights.h"

#include <stdlib.h>
#include <string.h>

#include "cli/train/adapter_start.h"
#include "cli/main/config_file.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

char *cli_last_record(const char *folder, const char *key)
{
    char *file = cli_printf("%s/checkpoints.jsonl", folder), *line = NULL, *found = NULL;
    FILE *f = file ? fopen(file, "re") : NULL;
    size_t cap = 0;
    tkc_arena arena = { 0 };
    while (f && getline(&line, &cap, f) > 0) {
        const tkc_tree *v =
            tkc_tree_read(&arena, tkc_str(line), 0); /* a torn last line is passed over */
        const char *text = tkc_tree_get_text(v, key);
        if (text) {
            free(found);
            found = strdup(text);
        }
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    if (f)
        fclose(f);
    free(line);
    free(file);
    return found;
}

char *cli_sampler_path_of(const char *folder)
{
    return cli_last_record(folder, "sampler_path");
}

/* What a path's run says of itself: its base model and its renderer, each yours and NULL if it does
 * not say. A run of somebody else is not a failure. The path may have any form that begins
 * with its run. */
static void ask_run(cli_app *app, const char *path, char **base_model, char **renderer,
                    tinkc_error *err)
{
    const char *id = path + strlen("tinker://");
    char *run_id = strndup(id, strcspn(id, "/"));
    tinkc_future *f = run_id ? tinkc_run_get(app->client, run_id, TINKC_ACCESSIBLE, err) : NULL;
    const tinkc_run *run = f && cli_wait(app, f, NULL, err) ? tinkc_future_run(f, 0, err) : NULL;
    *base_model = run && run->base_model && run->base_model[0] ? strdup(run->base_model) : NULL;
    *renderer = NULL;
    for (const char *const *p = run ? run->user_metadata : NULL; p && p[0] && p[1]; p += 2)
        if (strcmp(p[0], "renderer_name") == 0 && !*renderer && p[1][0])
            *renderer = strdup(p[1]);
    if (err->http_status >= 400 && err->http_status < 500 && err->code != TINKC_E_AUTH)
        *err = (tinkc_error){ 0 };
    tinkc_future_free(f);
    free(run_id);
}

char *cli_run_renderer(cli_app *app, const char *path, tinkc_error *err)
{
    char *base_model = NULL, *renderer = NULL;
    if (strncmp(path, "tinker://", 9) == 0)
        ask_run(app, path, &base_model, &renderer, err);
    free(base_model);
    return renderer;
}

static void learn_from_run(cli_app *app, cli_asked *asked, tinkc_error *err)
{
    char *renderer;
    ask_run(app, asked->model_path, &asked->base_model, &renderer, err);
    if (!asked->renderer)
        asked->renderer = renderer;
    else
        free(renderer);
}

/* What the weights at a path stand on, and the renderer of their run. */
static void learn_about(cli_app *app, cli_asked *asked, tinkc_error *err)
{
    if (strncmp(asked->model_path, "tinker://", 9) == 0)
        learn_from_run(app, asked, err);
    if (asked->base_model || err->code)
        return;
    tinkc_future *f = tinkc_checkpoint_get(app->client, asked->model_path, err);
    if (cli_wait(app, f, NULL, err))
        asked->base_model = strdup(tinkc_future_weights(f, 0, err)->base_model);
    tinkc_future_free(f);
}

/* A log directory, a path, or a base model. */
static void name_model(const char *model, cli_asked *asked)
{
    asked->model_path = cli_sampler_path_of(model);
    if (asked->model_path)
        return;
    if (strncmp(model, "tinker://", 9) == 0)
        asked->model_path = strdup(model);
    else
        asked->base_model = strdup(model);
}

static void name_weights(cli_app *app, cli_asked *asked)
{
    const char *model = cli_model(app);
    const char *base =
        cli_find_option(app->command, "base-model", 10) ? cli_text(app, "base-model") : NULL;
    const char *path =
        cli_find_option(app->command, "model-path", 10) ? cli_text(app, "model-path") : NULL;
    const char *renderer = cli_text(app, "renderer");
    if (!renderer)
        renderer = cli_config_get(app, "renderer", NULL);
    asked->renderer = renderer ? strdup(renderer) : NULL;
    if (path)
        asked->model_path = strdup(path);
    else if (base)
        asked->base_model = strdup(base);
    else if (model)
        name_model(model, asked);
}

/* Nobody named a renderer: the one recommended for the model, if it is known. */
static void settle_format(cli_asked *asked)
{
    const cli_model_facts *facts = asked->base_model ? cli_model_find(asked->base_model) : NULL;
    const char *usual = asked->base_model ? tinkc_chat_renderer(asked->base_model) : NULL;
    asked->raw = !asked->renderer && facts && strncmp(facts->kind, "base", 4) == 0;
    if (!asked->renderer && usual)
        asked->renderer = strdup(usual);
    asked->chat = asked->renderer || tinkc_tokenizer_template(asked->tokenizer, NULL) != NULL;
}

/* Names are settled: finds out about them, opens the tokenizer and the sampler. */
static int open_asked(cli_app *app, cli_asked *asked)
{
    tinkc_error err = { 0 };
    if (!asked->model_path && !asked->base_model)
        return cli_fail(app, "usage", "name one with -m, or: tinkc config set model NAME",
                        "no model was named");
    if (!asked->base_model)
        learn_about(app, asked, &err);
    if (!err.code)
        asked->tokenizer = cli_tokenizer(app, asked->base_model, &err);
    tinkc_sampler_options o = { .model_path = asked->model_path };
    if (!o.model_path) /* servers may refuse to be given both */
        o.base_model = asked->base_model;
    tinkc_future *f = err.code ? NULL : tinkc_sampler_open(app->client, &o, &err);
    if (cli_wait(app, f, "opening the sampler", &err))
        asked->sampler = tinkc_future_sampler(f, 0, &err);
    tinkc_future_free(f);
    if (err.code) {
        int bad = cli_fail_error(app, &err, NULL);
        cli_asked_free(asked);
        return bad;
    }
    settle_format(asked);
    return 0;
}

int cli_open_sampler(cli_app *app, cli_asked *asked)
{
    *asked = (cli_asked){ 0 };
    int bad = cli_adapter_model(app);
    bad = bad ? bad : cli_connect(app);
    if (bad)
        return bad;
    name_weights(app, asked);
    if (cli_has_adapter(app)) {
        free(asked->model_path);
        asked->model_path = cli_adapter_path(app, false, &bad);
    }
    if (bad) {
        cli_asked_free(asked);
        return bad;
    }
    return open_asked(app, asked);
}

int cli_open_named(cli_app *app, const char *name, cli_asked *asked)
{
    *asked = (cli_asked){ 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    asked->model_path = cli_sampler_path_of(name);
    if (!asked->model_path && strncmp(name, "tinker://", 9) == 0)
        asked->model_path = strdup(name);
    if (!asked->model_path)
        asked->base_model = cli_add_named(app, name, &bad);
    if (!bad)
        return open_asked(app, asked);
    cli_asked_free(asked);
    return bad;
}

int64_t cli_context_length(cli_app *app, const char *model, tinkc_error *err)
{
    int64_t length = 0;
    tinkc_future *f = tinkc_capabilities_get(app->client, err);
    if (cli_wait(app, f, NULL, err)) {
        const tinkc_model *m = tinkc_capabilities_find(tinkc_future_capabilities(f, 0, err), model);
        length = m && m->max_context_length > 0 ? m->max_context_length : 0;
    }
    tinkc_future_free(f);
    return length;
}

void cli_asked_free(cli_asked *asked)
{
    tinkc_sampler_free(asked->sampler);
    tinkc_tokenizer_free(asked->tokenizer);
    free(asked->base_model);
    free(asked->model_path);
    free(asked->renderer);
    *asked = (cli_asked){ 0 };
}
