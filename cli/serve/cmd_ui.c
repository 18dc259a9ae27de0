/* cmd_ui.c - `tinkc ui`: the page for browsers, on log directories alone; and `tinkc logs report`,
 * which is the same as one file. No model is loaded and no store is opened. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/serve/serving.h"
#include "cli/store/logged_runs.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static const char usual_folder[] = "tinkc-runs";

/* The folders that were named, else the usual one and those of runs that the store knows. NULL: one is not there; *bad says so. */
static const char **log_folders(cli_app *app, const tkc_tree *known, int *bad)
{
    size_t n_known = app->n_args ? 0 : tkc_tree_length(known);
    const char **list = calloc(app->n_args + n_known + 2, sizeof *list);
    if (!list) {
        *bad = cli_fail(app, "internal", NULL, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < app->n_args; i++) {
        struct stat st;
        bool there = stat(app->args[i], &st) == 0;
        if (!there || !S_ISDIR(st.st_mode)) {
            *bad =
                cli_fail(app, "not_found", "give folders that tinkc train wrote, or one above",
                         "%s: %s", app->args[i], there ? "not a folder" : tkc_errno_text(errno));
            free(list);
            return NULL;
        }
        list[i] = app->args[i];
    }
    if (app->n_args == 0)
        list[0] = usual_folder;
    for (size_t i = 0; i < n_known; i++)
        list[1 + i] = tkc_tree_get_text(tkc_tree_at(known, i), "dir");
    return list;
}

/* The desktop's own way to open an address. */
static void open_browser(const cli_app *app, const char *url)
{
    char *command = cli_printf("command -v xdg-open > /dev/null || exit 1; "
                               "xdg-open '%s' > /dev/null 2>&1 &",
                               url);
    if (!command || system(command) != 0)
        cli_note(app, "no browser could be started; open the address yourself");
    free(command);
}

static int serve_page(cli_app *app, const char *const *folders, char **keys)
{
    tinkc_error err = { 0 };
    tinkc_serve_options o = { .host = cli_text(app, "host"),
                              .port = (int32_t)cli_int(app, "port"),
                              .api_keys = (const char *const *)keys,
                              .page = true,
                              .log_dirs = folders };
    app->engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    tinkc_server *server = tinkc_engine_serve(app->engine, &o, &err);
    if (!server)
        return cli_serving_failed(app, &err);
    cli_note(app, "showing the runs in %s%s; Ctrl-C ends it", folders[0],
             folders[1] ? " and other folders" : "");
    cli_note(app, "  %s", tinkc_server_url(server));
    cli_serving_ready(app, tinkc_server_url(server));
    if (cli_flag(app, "open"))
        open_browser(app, tinkc_server_url(server));
    int bad = cli_serving_run(app, server);
    tinkc_server_free(server);
    return bad;
}

int cli_ui(cli_app *app)
{
    int bad = 0;
    cli_serving_block_signals(true);
    if (cli_int(app, "port") > 65535)
        return cli_fail(app, "usage", NULL, "--port must be at most 65535");
    tkc_tree *known = cli_logged_runs(cli_arena(app), cli_store_folder(app));
    const char **folders = log_folders(app, known, &bad);
    char **keys = cli_serving_keys(app, &bad);
    if (!bad)
        bad = serve_page(app, folders, keys);
    cli_serving_free(keys);
    free(folders);
    return bad;
}

/* ---- the same as one file ---- */

int cli_logs_report(cli_app *app)
{
    tinkc_error err = { 0 };
    tinkc_text html = { 0 };
    char size[CLI_SHORT_TEXT];
    int bad = 0;
    const char *target = cli_text(app, "output");
    const char **folders = log_folders(app, NULL, &bad);
    if (!bad && !*tinkc_logs_report(folders, &html, &err))
        bad = cli_fail_error(app, &err, NULL);
    if (!bad) {
        cli_save save;
        cli_save_begin(&save, target, 0666);
        if (save.f)
            (void)fwrite(html.data, 1, html.len, save.f);
        bad = cli_save_end(&save, app, true);
    }
    cli_format_size((int64_t)html.len, size);
    if (!bad && strcmp(target, "-") != 0)
        bad =
            cli_print_done(app,
                           cli_pack(app, "{s:o,s:I}", "path", cli_json_text(cli_arena(app), target),
                                    "bytes", (int64_t)html.len),
                           "%s (%s); it opens in any browser", target, size);
    tinkc_text_free(&html);
    free(folders);
    return bad;
}
