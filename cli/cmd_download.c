/* cmd_download.c - `tinkc checkpoint download` and `export`. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapter_fetch.h"
#include "commands.h"
#include "files.h"
#include "out.h"
#include "term.h"
#include "text.h"
#include "weights.h"

/* ---- download ---- */

static json_t *files_json(const tinkc_download *d)
{
    json_t *files = json_array();
    for (size_t i = 0; i < tinkc_download_count(d); i++) {
        const tinkc_file *f = tinkc_download_at(d, i);
        json_array_append_new(files, json_pack("{s:s,s:I,s:s}", "name", f->name, "size_bytes",
                                               (json_int_t)f->size_bytes, "sha256", f->sha256));
    }
    return files;
}

static int show_download(cli_app *app, const tinkc_download *d)
{
    char size[CLI_SHORT_TEXT];
    json_t *rows = json_array();
    json_t *v = json_pack("{s:s,s:o,s:I,s:o}", "checkpoint_path", app->args[0], "destination",
                          cli_json_text(tinkc_download_target(d)), "file_size_bytes",
                          (json_int_t)tinkc_download_bytes(d), "files", files_json(d));
    if (app->compat)
        json_object_del(v, "files");
    cli_format_size(tinkc_download_bytes(d), size);
    cli_row(rows, "Checkpoint Path", app->args[0]);
    cli_row(rows, "Archive Size", size);
    cli_row(rows, "Extracted to", tinkc_download_target(d));
    char *title = cli_printf("Checkpoint Download: %s", app->args[0]);
    int bad = cli_show_record(app, title, rows, v);
    return bad;
}

/* What went wrong, and how to go on where that is possible. */
static int report_failed_download(cli_app *app, const cli_place *place, const tinkc_error *err)
{
    int bad = cli_place_fault(app, place, err);
    if (bad)
        return bad;
    if (!cli_stop_signal())
        return cli_fail_error(app, err, NULL);
    cli_note(app, place->piped ? "stopped; the file is incomplete"
                               : "stopped; run the same command again to continue");
    return cli_stop_exit();
}

int cli_checkpoint_download(cli_app *app)
{
    tinkc_error err = { 0 };
    tinkc_path parsed;
    if (!tinkc_path_parse(app->args[0], &parsed, &err))
        return cli_fail(app, "usage", "paths look like tinker://RUN/weights/NAME",
                        "invalid checkpoint path: %s", app->args[0]);
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_download_options o = { .dir = cli_text(app, "output"),
                                 .name = cli_text(app, "name"),
                                 .flat = cli_flag(app, "flat"),
                                 .replace = cli_flag(app, "force"),
                                 .portable_names = cli_flag(app, "portable-names"),
                                 .no_digests =
                                     app->format != CLI_JSON && app->format != CLI_JSONL };
    cli_place place = { 0 };
    const char *archive = cli_text(app, "archive");
    if (!archive && o.dir && strcmp(o.dir, "-") == 0)
        archive = "-";
    if (archive) {
        o.keep_archive = true;
        cli_place_begin(&place, archive, &o);
    }
    tinkc_future *f = tinkc_checkpoint_download(app->client, app->args[0], &o, &err);
    if (!cli_wait_bytes(app, f, "Downloading archive", &err))
        bad = report_failed_download(app, &place, &err);
    else if (!place.piped)
        bad = show_download(app, tinkc_future_download(f, 0, &err));
    tinkc_future_free(f);
    cli_place_free(&place);
    return bad;
}

/* ---- export ---- */

static bool show_export(int64_t done, int64_t total, void *user)
{
    cli_progress_step(user, done, total, NULL);
    return !cli_stop_signal();
}

/* "nano" is the shipped model's folder. */
static const char *base_folder(const cli_app *app)
{
    const char *base = cli_text(app, "base");
    return base && strcmp(base, "nano") == 0 ? cli_nano_folder() : base;
}

static int convert_adapter(cli_app *app, const char *adapter, const char *target)
{
    tinkc_error err = { 0 };
    cli_progress bar;
    cli_progress_begin(&bar, app, "Exporting", -1, true);
    bool merged = strcmp(cli_text(app, "to"), "merged") == 0;
    tinkc_adapter_options o = { .adapter = adapter,
                                .base_model = base_folder(app),
                                .target = target,
                                .format = merged ? TINKC_ADAPTER_MERGED : TINKC_ADAPTER_PEFT,
                                .drop_unembed = cli_flag(app, "drop-unembed") };
    cli_catch_signals();
    bool ok = tinkc_adapter_export(&o, show_export, &bar, &err);
    cli_progress_end(&bar);
    return ok ? 0 : cli_fail_error(app, &err, NULL);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* One file as JSON; NULL = not a file, or err is set. */
static json_t *exported_file(const char *folder, const char *name, tinkc_error *err)
{
    struct stat st;
    char hex[65];
    json_t *v = NULL;
    char *path = cli_printf("%s/%s", folder, name);
    if (path && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && tinkc_file_sha256(path, hex, err))
        v = json_pack("{s:s,s:I,s:s}", "name", name, "size_bytes", (json_int_t)st.st_size, "sha256",
                      hex);
    free(path);
    return v;
}

/* What lies in the folder now, by name: sizes and digests. */
static json_t *exported_files(const char *folder, tinkc_error *err)
{
    json_t *files = json_array(), *v;
    struct dirent **names = NULL;
    int n = scandir(folder, &names, NULL, by_name);
    for (int i = 0; i < n; i++) {
        if ((v = exported_file(folder, names[i]->d_name, err)))
            json_array_append_new(files, v);
        free(names[i]);
    }
    free(names);
    return files;
}

static int show_exported(cli_app *app, const char *source, const char *target)
{
    tinkc_error err = { 0 };
    json_t *files = app->format == CLI_JSON || app->format == CLI_JSONL
                        ? exported_files(target, &err)
                        : json_array();
    if (err.code) {
        json_decref(files);
        return cli_fail_error(app, &err, NULL);
    }
    json_t *rows = json_array();
    json_t *v = json_pack("{s:o,s:o,s:s,s:o,s:o}", "source", cli_json_text(source), "base_model",
                          cli_json_text(base_folder(app)), "format", cli_text(app, "to"),
                          "destination", cli_json_text(target), "files", files);
    cli_row(rows, "Source", source);
    cli_row(rows, "Format", cli_text(app, "to"));
    cli_row(rows, "Destination", target);
    int bad = cli_show_record(app, strdup("Checkpoint Export"), rows, v);
    return bad;
}

int cli_checkpoint_export(cli_app *app)
{
    const char *target = cli_text(app, "output"), *source = app->args[0];
    if (!target)
        return cli_fail(app, "usage", NULL, "--output is needed: the folder to make");
    char *path = cli_sampler_path_of(source); /* a log directory means its last sampler weights */
    struct stat st;
    bool local = !path && stat(source, &st) == 0 && S_ISDIR(st.st_mode);
    char *fetched = NULL;
    int bad = local ? 0 : cli_fetch_adapter(app, path ? path : source, target, &fetched);
    if (!bad)
        bad = convert_adapter(app, fetched ? fetched : source, target);
    if (!bad)
        bad = show_exported(app, path ? path : source, target);
    cli_remove_folder(fetched);
    free(fetched);
    free(path);
    return bad;
}
