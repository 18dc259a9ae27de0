/* store_models.c - models.json of a store: an object of names and folders. Touches that file only. */
#include "cli/store/store_models.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/files.h"
#include "cli/models/model_folder.h"
#include "cli/output/text.h"

static char *file_of(const char *store)
{
    return cli_printf("%s/models.json", store);
}

/* An object, empty if the file is missing or damaged: it only saves the user from naming folders. */
static json_t *load(const char *store)
{
    char *path = file_of(store);
    json_t *all = path ? json_load_file(path, 0, NULL) : NULL;
    free(path);
    if (!json_is_object(all)) {
        json_decref(all);
        all = json_object();
    }
    return all;
}

bool cli_store_models_set(const char *store, const char *name, const char *folder)
{
    json_t *all = load(store);
    char *path = file_of(store), *beside = path ? cli_printf("%s.new", path) : NULL;
    bool ok = beside && all && json_object_set_new(all, name, json_string(folder)) == 0 &&
              json_dump_file(all, beside, JSON_INDENT(1)) == 0 && rename(beside, path) == 0;
    json_decref(all);
    free(path);
    free(beside);
    return ok;
}

char *cli_store_models_get(const char *store, const char *name)
{
    json_t *all = load(store);
    const char *folder = json_string_value(json_object_get(all, name));
    char *copy = folder ? strdup(folder) : NULL;
    json_decref(all);
    return copy;
}

static bool is_model(const char *folder)
{
    char *config = cli_printf("%.*s/config.json", cli_plain_length(folder), folder);
    bool there = config && access(config, R_OK) == 0;
    free(config);
    return there || cli_is_gguf(folder);
}

void cli_store_models_restore(tinkc_engine *engine, const char *store)
{
    const char *name;
    json_t *all = load(store), *folder;
    json_object_foreach(all, name, folder)
    {
        tinkc_error ignored = { 0 }; /* it is reported where somebody asks for the model */
        const char *where = json_string_value(folder);
        if (*name == '/' && !(where && is_model(where)))
            where = name; /* it was moved back */
        if (where && is_model(where))
            (void)tinkc_engine_add_model(engine, name, where, &ignored);
    }
    json_decref(all);
}

bool cli_store_models_add(tinkc_engine *engine, const char *store, tinkc_error *err)
{
    const char *nano = cli_nano_folder();
    if (nano && !tinkc_engine_add_model(engine, "nano", nano, err))
        return false;
    if (store)
        cli_store_models_restore(engine, store);
    return true;
}
