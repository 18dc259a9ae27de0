/* cmd_run_delete.c - `tinkc run delete`: runs with all their checkpoints, after showing what that is. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/manage/checkpoints.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct doomed {
    char *id;
    const char *name; /* as it was given */
    tkc_tree *checkpoints;
    int64_t bytes;
    size_t n_public;
} doomed;

static bool is_public(const tkc_tree *checkpoint)
{
    return tkc_tree_get_true(checkpoint, "public");
}

/* A run by its id, or by the name of its log directory. */
static int find_run(cli_app *app, const char *given, doomed *d)
{
    tinkc_error err = { 0 };
    int64_t total;
    *d = (doomed){ .id = cli_run_id(app, given), .name = given };
    tinkc_future *f = tinkc_run_get(app->client, d->id, TINKC_OWNED, &err);
    if (cli_wait(app, f, NULL, &err)) {
        tinkc_list_options how = { .run_id = d->id };
        d->checkpoints = cli_collect_checkpoints(app, &how, 0, &total, &err);
    }
    tinkc_future_free(f);
    for (size_t i = 0; i < tkc_tree_length(d->checkpoints); i++) {
        const tkc_tree *c = tkc_tree_at(d->checkpoints, i);
        d->bytes += tkc_tree_get_i64(c, "size_bytes");
        d->n_public += is_public(c);
    }
    return err.code ? cli_fail_error(app, &err, NULL) : 0;
}

static void show(const doomed *d)
{
    char size[CLI_SHORT_TEXT];
    cli_format_size(d->bytes, size);
    fprintf(stderr, "  - %s%s%s%s: %zu checkpoints, %s%s\n", d->name,
            strcmp(d->name, d->id) == 0 ? "" : " (", strcmp(d->name, d->id) == 0 ? "" : d->id,
            strcmp(d->name, d->id) == 0 ? "" : ")", tkc_tree_length(d->checkpoints), size,
            d->n_public ? ", some of them published" : "");
}

/* The run itself; its checkpoints are gone. The model may have to be unloaded first. */
static int delete_run(cli_app *app, const doomed *d)
{
    enum { TRIES = 100, PAUSE_MS = 100 };
    tinkc_error err = { 0 };
    char *path = cli_printf("/api/v1/training_runs/%s", d->id);
    tinkc_http_options call = { .method = "DELETE", .path = path, .any_status = true };
    int32_t status = 409;
    char said[300] = "";
    for (int i = 0; path && i < TRIES && status == 409 && !err.code; i++) {
        if (i)
            (void)poll(NULL, 0, PAUSE_MS);
        tinkc_future *f = tinkc_http_call(app->client, &call, &err);
        if (cli_wait(app, f, NULL, &err)) {
            const tinkc_response *r = tinkc_future_response(f, 0, &err);
            tinkc_bytes body = tinkc_response_body(r);
            status = tinkc_response_status(r);
            (void)snprintf(said, sizeof said, "%.*s", (int)body.len, (const char *)body.data);
        }
        tinkc_future_free(f);
        if (!strstr(said, "\"unloading\""))
            break;
    }
    free(path);
    if (err.code)
        return cli_fail_error(app, &err, NULL);
    if (status == 404 || status == 405)
        cli_note(app, "%s: the service keeps its entry; its checkpoints are gone", d->name);
    else if (status >= 400)
        return cli_fail(app, status == 409 ? "conflict" : "server_error", NULL, "%s: %s", d->name,
                        said);
    return 0;
}

static int delete_all(cli_app *app, const doomed *d)
{
    tinkc_error err = { 0 };
    for (size_t i = 0; i < tkc_tree_length(d->checkpoints) && !err.code; i++) {
        const tkc_tree *c = tkc_tree_at(d->checkpoints, i);
        tinkc_future *f =
            tinkc_checkpoint_delete(app->client, tkc_tree_get_text(c, "tinker_path"), &err);
        (void)cli_wait(app, f, "deleting", &err);
        tinkc_future_free(f);
    }
    return err.code ? cli_fail_error(app, &err, NULL) : delete_run(app, d);
}

static int confirm(cli_app *app, size_t n)
{
    char question[80];
    (void)snprintf(question, sizeof question, "Are you sure you want to delete %zu run(s)?", n);
    int answer = app->yes ? 1 : cli_confirm(app, question, "--yes");
    if (answer == 1)
        return 0;
    return answer < 0 ? -answer : cli_fail(app, "declined", NULL, "cancelled");
}

static int delete_runs(cli_app *app, const doomed *all, size_t n)
{
    tkc_tree *ids = cli_array(app);
    size_t n_checkpoints = 0;
    int bad = 0;
    for (size_t i = 0; i < n && !bad; i++) {
        bad = delete_all(app, &all[i]);
        if (!bad)
            tkc_tree_add(ids, cli_json_text(cli_arena(app), all[i].id));
        n_checkpoints += bad ? 0 : tkc_tree_length(all[i].checkpoints);
    }
    size_t done = tkc_tree_length(ids);
    tkc_tree *v = cli_pack(app, "{s:o,s:I}", "deleted_runs", ids, "deleted_checkpoints",
                           (int64_t)n_checkpoints);
    int printed = bad && !done ? 0
                               : cli_print_done(app, v, "Deleted %zu run(s), %zu checkpoint(s)",
                                                done, n_checkpoints);
    return bad ? bad : printed;
}

int cli_run_delete(cli_app *app)
{
    doomed *all = calloc(app->n_args + 1, sizeof *all);
    size_t n_public = 0;
    int bad = cli_connect(app);
    for (size_t i = 0; all && !bad && i < app->n_args; i++) {
        bad = find_run(app, app->args[i], &all[i]);
        n_public += all[i].n_public;
    }
    if (!bad && (!app->yes || cli_flag(app, "dry-run"))) {
        fprintf(stderr, "Will delete %zu run(s):\n", app->n_args);
        for (size_t i = 0; i < app->n_args; i++)
            show(&all[i]);
    }
    if (!bad && n_public && !cli_flag(app, "published"))
        bad = cli_fail(app, "usage",
                       "--published deletes them, too; tinkc checkpoint unpublish takes them back",
                       "%zu of the checkpoints are published: others may use them", n_public);
    if (!bad && !cli_flag(app, "dry-run")) {
        bad = confirm(app, app->n_args);
        bad = bad ? bad : delete_runs(app, all, app->n_args);
    }
    for (size_t i = 0; all && i < app->n_args; i++) {
        free(all[i].id);
    }
    free(all);
    return bad;
}
