/* store_models.c - models.json of a store: an object of names and folders. Touches that file only. */
#include "cli/store/store_models.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/files.h"
#include "cli/models/model_folder.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

static char *file_of(const char *store)
{
    return cli_printf("%s/models.json", store);
}

/* An object, empty if the file is missing or damaged: it only saves the user from naming folders. */
static tkc_tree *load(tkc_arena *arena, const char *store)
{
    char *path = file_of(store);
    tkc_tree *all = path ? cli_json_load(arena, path, NULL) : NULL;
    free(path);
    return tkc_tree_is_object(all) ? all : tkc_tree_object(arena);
}

bool cli_store_models_set(const char *store, const char *name, const char *folder)
{
    tkc_arena arena = { 0 };
    tkc_tree *all = load(&arena, store);
    char *path = file_of(store), *beside = path ? cli_printf("%s.new", path) : NULL;
    bool ok = beside && tkc_tree_set_text(all, name, folder) && cli_json_save(beside, all, 1) &&
              rename(beside, path) == 0;
    tkc_arena_free(&arena);
    free(path);
    free(beside);
    return ok;
}

char *cli_store_models_get(const char *store, const char *name)
{
    tkc_arena arena = { 0 };
    tkc_tree *all = load(&arena, store);
    const char *folder = tkc_tree_get_text(all, name);
    char *copy = folder ? strdup(folder) : NULL;
    tkc_arena_free(&arena);
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
    tkc_arena arena = { 0 };
    tkc_tree *all = load(&arena, store), *folder;
    TKC_TREE_EACH (all, name, folder) {
        tinkc_error ignored = { 0 }; /* it is reported where somebody asks for the model */
        const char *where = tkc_tree_text(folder);
        if (*name == '/' && !(where && is_model(where)))
            where = name; /* it was moved back */
        if (where && is_model(where))
            (void)tinkc_engine_add_model(engine, name, where, &ignored);
    }
    tkc_arena_free(&arena);
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
