/* recent_ids.c - see recent_ids.h. The file: {"run": [...], "checkpoint": [...], ...}. */
#include "cli/manage/recent_ids.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/main/config_file.h"
#include "cli/main/files.h"
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

static json_t *load(const char *path)
{
    json_t *all = path ? json_load_file(path, 0, NULL) : NULL;
    if (json_is_object(all))
        return all;
    json_decref(all);
    return json_object();
}

/* Quietly: this is a convenience. Two writers at once: one of them wins. */
static void store(const char *path, const json_t *all)
{
    char *beside =
        path && cli_make_parents(path, 0700) ? cli_printf("%s.%d", path, (int)getpid()) : NULL;
    if (beside && json_dump_file(all, beside, JSON_COMPACT) == 0)
        (void)rename(beside, path);
    else if (beside)
        (void)unlink(beside);
    free(beside);
}

json_t *cli_ids_known(const cli_app *app, const char *kind)
{
    char *path = file_of(app);
    json_t *all = load(path), *ids = json_incref(json_object_get(all, kind));
    json_decref(all);
    free(path);
    if (json_is_array(ids))
        return ids;
    json_decref(ids);
    return json_array();
}

static bool has(const json_t *ids, const char *id)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const char *known = json_string_value(json_array_get(ids, i));
        if (known && strcmp(known, id) == 0)
            return true;
    }
    return false;
}

/* `fresh` (taken over) stands before what was known. */
static void merge(const cli_app *app, const char *kind, json_t *fresh)
{
    char *path = file_of(app);
    json_t *all = load(path), *old = json_object_get(all, kind);
    for (size_t i = 0; i < json_array_size(old) && json_array_size(fresh) < MOST; i++) {
        const char *id = json_string_value(json_array_get(old, i));
        if (id && !has(fresh, id))
            json_array_append_new(fresh, json_string(id));
    }
    if (!json_equal(old, fresh) && json_array_size(fresh)) {
        json_object_set(all, kind, fresh);
        store(path, all);
    }
    json_decref(fresh);
    json_decref(all);
    free(path);
}

void cli_ids_seen(const cli_app *app, const char *kind, const json_t *items, const char *key)
{
    json_t *fresh = json_array();
    for (size_t i = 0; i < json_array_size(items) && i < MOST; i++) {
        json_t *item = json_array_get(items, i);
        const char *id = json_string_value(*key ? json_object_get(item, key) : item);
        if (id && !has(fresh, id))
            json_array_append_new(fresh, json_string(id));
    }
    merge(app, kind, fresh);
}

void cli_ids_add(const cli_app *app, const char *kind, const char *id)
{
    json_t *fresh = json_array();
    json_array_append_new(fresh, json_string(id));
    merge(app, kind, fresh);
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

static void ask_runs(cli_app *app, json_t *ids)
{
    tinkc_error err = { 0 };
    tinkc_runs *list = tinkc_runs_list(app->client, &(tinkc_list_options){ .limit = 50 }, &err);
    tinkc_future *page = list ? tinkc_runs_fetch(list, &err) : NULL;
    const tinkc_run *run;
    if (page && tinkc_future_wait(page, PATIENCE_MS, &err))
        while (tinkc_runs_ready(list) && (run = tinkc_runs_next(list, &err)))
            json_array_append_new(ids, json_string(run->id));
    tinkc_future_free(page);
    tinkc_runs_free(list);
}

static void ask_checkpoints(cli_app *app, json_t *ids)
{
    tinkc_error err = { 0 };
    tinkc_checkpoints *list =
        tinkc_checkpoints_list(app->client, &(tinkc_list_options){ .limit = 100 }, &err);
    tinkc_future *page = list ? tinkc_checkpoints_fetch(list, &err) : NULL;
    const tinkc_checkpoint *c;
    if (page && tinkc_future_wait(page, PATIENCE_MS, &err))
        while (tinkc_checkpoints_ready(list) && (c = tinkc_checkpoints_next(list, &err)))
            json_array_append_new(ids, json_string(c->path));
    tinkc_future_free(page);
    tinkc_checkpoints_free(list);
}

json_t *cli_ids_fresh(cli_app *app, const char *kind)
{
    if (!cli_wants_local(app) && is_old(app) && !app->offline && cli_connect(app) == 0) {
        json_t *ids = json_array();
        if (strcmp(kind, "run") == 0)
            ask_runs(app, ids);
        else
            ask_checkpoints(app, ids);
        merge(app, kind, ids);
    }
    return cli_ids_known(app, kind);
}
