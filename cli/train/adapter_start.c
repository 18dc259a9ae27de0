/* adapter_start.c - --from-adapter: a PEFT adapter as what training starts from or answers come from. */
#include "cli/train/adapter_start.h"

#include <stdlib.h>
#include <string.h>

#include "cli/store/store_link.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

static const char *named(const cli_app *app)
{
    const char *folder =
        cli_find_option(app->command, "from-adapter", 12) ? cli_text(app, "from-adapter") : NULL;
    return folder && *folder ? folder : NULL;
}

bool cli_has_adapter(const cli_app *app)
{
    return named(app) != NULL;
}

int cli_adapter_model(cli_app *app)
{
    const char *folder = named(app);
    if (!folder || cli_given(app, "model"))
        return 0;
    char *path = cli_printf("%s/adapter_config.json", folder);
    tinkc_error why = { 0 };
    const tkc_tree *v = path ? cli_json_load(cli_arena(app), path, &why) : NULL;
    const char *base = tkc_tree_get_text(v, "base_model_name_or_path");
    int bad = 0;
    if (!v)
        bad = cli_fail(app, "input", "the folder of a PEFT adapter holds adapter_config.json", "%s",
                       why.message);
    else if (base && *base)
        bad = cli_give_value(app, "model", strdup(base), CLI_FROM_PROGRAM, "the adapter");
    free(path);
    return bad;
}

/* In this process, or in the one that has the store open. */
static char *take_in(cli_app *app, const char *folder, bool training, tinkc_error *err)
{
    const char *model = cli_model(app);
    tinkc_text weights = { 0 }, sampler = { 0 };
    char *path = NULL;
    if (!app->engine)
        return cli_store_link_adapter(app, model ? model : "", folder, training, err);
    tinkc_import_options o = { .adapter = folder, .base_model = model ? model : "" };
    if (tinkc_engine_import(app->engine, &o, &weights, &sampler, err))
        path = strdup(training ? weights.data : sampler.data);
    tinkc_text_free(&weights);
    tinkc_text_free(&sampler);
    return path;
}

char *cli_adapter_path(cli_app *app, bool training, int *bad)
{
    tinkc_error err = { 0 };
    *bad = 0;
    if (!app->engine && !app->store) {
        *bad = cli_fail(app, "usage", "add --local",
                        "--from-adapter needs the local engine: a service takes no adapters");
        return NULL;
    }
    char *folder = realpath(named(app), NULL);
    if (!folder) {
        *bad = cli_fail(app, "not_found", NULL, "there is no such folder: %s", named(app));
        return NULL;
    }
    char *path = take_in(app, folder, training, &err);
    free(folder);
    if (!path)
        *bad = cli_fail_error(app, &err, NULL);
    else
        *bad = cli_set_value(app, "from-adapter", "", CLI_FROM_PROGRAM,
                             "used"); /* once: chat may turn to others */
    return path;
}
