/* cmd_upload.c - `tinkc checkpoint upload`: an adapter from a folder becomes a checkpoint at the
 * service. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/output/list.h"
#include "cli/output/text.h"

typedef struct upload {
    cli_app *app;
    const char *folder;
    char *model; /* NULL until it is known */
    int rank;
} upload;

/* What adapter_config.json says: the rank, and the base model where the command does not name it. */
static int read_config(upload *u)
{
    char *path = cli_printf("%s/adapter_config.json", u->folder);
    tinkc_error why = { 0 };
    const tkc_tree *config = path ? cli_json_load(cli_arena(u->app), path, &why) : NULL;
    const tkc_tree *rank = tkc_tree_get(config, "r");
    const char *base = tkc_tree_get_text(config, "base_model_name_or_path");
    const char *named = cli_text(u->app, "model");
    int bad = 0;
    u->rank = tkc_tree_is_i64(rank) ? (int)tkc_tree_i64(rank) : 0;
    if (named || base)
        u->model = strdup(named ? named : base);
    if (!config)
        bad = cli_fail(u->app, "input", "the folder of a PEFT adapter holds adapter_config.json",
                       "%s", why.message);
    else if (u->rank < 1)
        bad = cli_fail(u->app, "input", "is it an adapter of PEFT?", "%s: r is missing", path);
    else if (!u->model)
        bad = cli_fail(u->app, "usage", "add --model NAME", "%s names no base model", path);
    free(path);
    return bad;
}

/* A link's name comes from the service: it must be a plain file name. */
static char *file_of(const upload *u, const char *name, tinkc_error *err)
{
    if (strchr(name, '/') || name[0] == '.') {
        tinkc_error_set(err, TINKC_E_BAD_RESPONSE,
                        "the service asks for a file outside the folder");
        return NULL;
    }
    return cli_printf("%s/%s", u->folder, name);
}

static void send_file(const upload *u, const tinkc_link *link, tinkc_error *err)
{
    char *path = file_of(u, link->name, err);
    if (!path)
        return;
    const tinkc_http_options put = { .method = "PUT",
                                     .path = link->url,
                                     .body_file = path,
                                     .content_type = "application/octet-stream" };
    tinkc_future *f = tinkc_http_call(u->app->client, &put, err);
    (void)cli_wait(u->app, f, link->name, err);
    tinkc_future_free(f);
    free(path);
}

static char *finish(const upload *u, const char *id, tinkc_error *err)
{
    tinkc_future *f = tinkc_upload_finish(u->app->client, id, err);
    char *made = NULL;
    if (cli_wait(u->app, f, "checking the adapter", err))
        made = strdup(tinkc_future_path(f, 0, err));
    tinkc_future_free(f);
    return made;
}

/* The path of the checkpoint; NULL: err says why. */
static char *send(const upload *u, tinkc_error *err)
{
    const tinkc_upload_options what = { .base_model = u->model,
                                        .project_id = cli_text(u->app, "project"),
                                        .rank = u->rank };
    tinkc_future *f = tinkc_upload_start(u->app->client, &what, err);
    const tinkc_links *links = NULL;
    char *made = NULL;
    if (cli_wait(u->app, f, "starting the upload", err))
        links = tinkc_future_links(f, 0, err);
    for (size_t i = 0; links && !err->code && i < tinkc_links_count(links); i++)
        send_file(u, tinkc_links_at(links, i), err);
    if (links && !err->code)
        made = finish(u, tinkc_links_upload_id(links), err);
    tinkc_future_free(f);
    return made;
}

int cli_checkpoint_upload(cli_app *app)
{
    upload u = { .app = app, .folder = app->args[0] };
    tinkc_error err = { 0 };
    int bad = read_config(&u);
    if (!bad)
        bad = cli_connect(app);
    char *path = bad ? NULL : send(&u, &err);
    if (!bad && err.code)
        bad = cli_fail_error(app, &err, NULL);
    if (path && app->format == CLI_JSON) {
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "path", path, "base_model", u.model);
        bad = cli_print_json(app, v);
    } else if (path)
        puts(path);
    free(path);
    free(u.model);
    return bad;
}
