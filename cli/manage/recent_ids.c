/* recent_ids.c - see recent_ids.h. The file: {"run": [...], "checkpoint": [...], ...}. */
#include "cli/manage/recent_ids.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/main/config_file.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

enum { MOST = 500, FRESH_SECONDS = 20, PATIENCE_MS = 300 };

static const char *address(const cli_app *app)
{
    const char *url = cli_text(app, "base-url");
    if (cli_wants_local(app))
        return "local:";
    url = url && *url ? url : cli_config_get(app, "base_url", NULL);
    return url ? url : "the service";
}

/* A file for each address; FNV-1a is enough to tell them apart. */
static char *file_of(const cli_app *app)
{
    uint64_t h = 1469598103934665603u;
    char name[64];
    for (const char *p = address(app); *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    (void)snprintf(name, sizeof name, "ids-%016llx.json", (unsigned long long)h);
    return cli_cache_path(name);
}

static tkc_tree *load(tkc_arena *arena, const char *path)
{
    tkc_tree *all = path ? cli_json_load(arena, path, NULL) : NULL;
    return tkc_tree_is_object(all) ? all : tkc_tree_object(arena);
}

/* Quietly: this is a convenience. Two writers at once: one of them wins. */
static void store(const char *path, const tkc_tree *all)
{
    char *beside =
        path && cli_make_parents(path, 0700) ? cli_printf("%s.%d", path, (int)getpid()) : NULL;
    if (beside && cli_json_save(beside, all, TKC_TREE_COMPACT))
        (void)rename(beside, path);
    else if (beside)
        (void)unlink(beside);
    free(beside);
}

tkc_tree *cli_ids_known(const cli_app *app, const char *kind)
{
    char *path = file_of(app);
    tkc_tree *ids = tkc_tree_get(load(cli_arena(app), path), kind);
    free(path);
    return tkc_tree_is_array(ids) ? ids : cli_array(app);
}

static bool has(const tkc_tree *ids, const char *id)
{
    for (size_t i = 0; i < tkc_tree_length(ids); i++) {
        const char *known = tkc_tree_text(tkc_tree_at(ids, i));
        if (known && strcmp(known, id) == 0)
            return true;
    }
    return false;
}

/* `fresh`, of the arena, stands before what was known. */
static void merge(const cli_app *app, tkc_arena *arena, const char *kind, tkc_tree *fresh)
{
    char *path = file_of(app);
    tkc_tree *all = load(arena, path), *old = tkc_tree_get(all, kind);
    for (size_t i = 0; i < tkc_tree_length(old) && tkc_tree_length(fresh) < MOST; i++) {
        const char *id = tkc_tree_text(tkc_tree_at(old, i));
        if (id && !has(fresh, id))
            tkc_tree_add_text(fresh, id);
    }
    if (!tkc_tree_equal(old, fresh) && tkc_tree_length(fresh)) {
        tkc_tree_set(all, kind, fresh);
        store(path, all);
    }
    free(path);
}

void cli_ids_seen(const cli_app *app, const char *kind, const tkc_tree *items, const char *key)
{
    tkc_arena arena = { 0 };
    tkc_tree *fresh = tkc_tree_array(&arena);
    for (size_t i = 0; i < tkc_tree_length(items) && i < MOST; i++) {
        tkc_tree *item = tkc_tree_at(items, i);
        const char *id = tkc_tree_text(*key ? tkc_tree_get(item, key) : item);
        if (id && !has(fresh, id))
            tkc_tree_add_text(fresh, id);
    }
    merge(app, &arena, kind, fresh);
    tkc_arena_free(&arena);
}

void cli_ids_add(const cli_app *app, const char *kind, const char *id)
{
    tkc_arena arena = { 0 };
    tkc_tree *fresh = tkc_tree_array(&arena);
    tkc_tree_add_text(fresh, id);
    merge(app, &arena, kind, fresh);
    tkc_arena_free(&arena);
}

/* ---- a short look ---- */

static bool is_old(const cli_app *app)
{
    struct stat st;
    char *path = file_of(app);
    bool old = !path || stat(path, &st) != 0 || time(NULL) - st.st_mtime > FRESH_SECONDS;
    free(path);
    return old;
}

static void ask_runs(cli_app *app, tkc_tree *ids)
{
    tinkc_error err = { 0 };
    tinkc_runs *list = tinkc_runs_list(app->client, &(tinkc_list_options){ .limit = 50 }, &err);
    tinkc_future *page = list ? tinkc_runs_fetch(list, &err) : NULL;
    const tinkc_run *run;
    if (page && tinkc_future_wait(page, PATIENCE_MS, &err))
        while (tinkc_runs_ready(list) && (run = tinkc_runs_next(list, &err)))
            tkc_tree_add_text(ids, run->id);
    tinkc_future_free(page);
    tinkc_runs_free(list);
}

static void ask_checkpoints(cli_app *app, tkc_tree *ids)
{
    tinkc_error err = { 0 };
    tinkc_checkpoints *list =
        tinkc_checkpoints_list(app->client, &(tinkc_list_options){ .limit = 100 }, &err);
    tinkc_future *page = list ? tinkc_checkpoints_fetch(list, &err) : NULL;
    const tinkc_checkpoint *c;
    if (page && tinkc_future_wait(page, PATIENCE_MS, &err))
        while (tinkc_checkpoints_ready(list) && (c = tinkc_checkpoints_next(list, &err)))
            tkc_tree_add_text(ids, c->path);
    tinkc_future_free(page);
    tinkc_checkpoints_free(list);
}

tkc_tree *cli_ids_fresh(cli_app *app, const char *kind)
{
    if (!cli_wants_local(app) && is_old(app) && !app->offline && cli_connect(app) == 0) {
        tkc_arena arena = { 0 };
        tkc_tree *ids = tkc_tree_array(&arena);
        if (strcmp(kind, "run") == 0)
            ask_runs(app, ids);
        else
            ask_checkpoints(app, ids);
        merge(app, &arena, kind, ids);
        tkc_arena_free(&arena);
    }
    return cli_ids_known(app, kind);
}
