/* cmd_download.c - `tinkc checkpoint download` and `export`. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "out.h"
#include "term.h"
#include "text.h"
#include "weights.h"

/* ---- download ---- */

/* Waits with a bar. */
static bool wait_download(cli_app *app, tinkc_future *f, tinkc_error *err)
{
    cli_progress bar;
    cli_progress_begin(&bar, app, "Downloading", -1, true);
    cli_catch_signals();
    bool done = false;
    while (f && !done && !err->code) {
        tinkc_error slice = { 0 };
        int64_t have, total;
        done = tinkc_future_wait(f, 100, &slice);
        tinkc_future_progress(f, &have, &total);
        if (have > 0)
            cli_progress_step(&bar, have, total, NULL);
        if (done)
            break;
        if (slice.code != TINKC_E_TIMEOUT || tinkc_future_done(f))
            *err = slice;
        else if (cli_stop_signal())
            tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted");
        else if (cli_now_ms() > app->deadline_ms)
            tinkc_error_set(err, TINKC_E_DEADLINE, "the time given with --timeout has run out");
    }
    cli_progress_end(&bar);
    return done;
}

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
    json_t *v = json_pack("{s:s,s:s,s:I,s:o}", "checkpoint_path", app->args[0], "destination",
                          tinkc_download_target(d), "file_size_bytes",
                          (json_int_t)tinkc_download_bytes(d), "files", files_json(d));
    if (app->compat)
        json_object_del(v, "files");
    cli_format_size(tinkc_download_bytes(d), size);
    cli_row(rows, "Checkpoint Path", app->args[0]);
    cli_row(rows, "Archive Size", size);
    cli_row(rows, "Extracted to", tinkc_download_target(d));
    char *title = cli_printf("Checkpoint Download: %s", app->args[0]);
    int bad = cli_print_record(app, title, rows, v);
    free(title);
    json_decref(rows);
    json_decref(v);
    return bad;
}

/* --archive FILE: the folder and the name of the file. */
static void set_archive(const cli_app *app, tinkc_download_options *o, char **copy)
{
    *copy = strdup(cli_text(app, "archive"));
    char *slash = *copy ? strrchr(*copy, '/') : NULL;
    o->keep_archive = true;
    o->name = slash ? slash + 1 : *copy;
    o->dir = slash ? *copy : NULL;
    if (slash)
        *slash = '\0';
}

int cli_checkpoint_download(cli_app *app)
{
    tinkc_error err = { 0 };
    tinkc_path parsed;
    char *copy = NULL;
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
                                 .portable_names = cli_flag(app, "portable-names") };
    if (cli_given(app, "archive"))
        set_archive(app, &o, &copy);
    tinkc_future *f = tinkc_checkpoint_download(app->client, app->args[0], &o, &err);
    if (wait_download(app, f, &err)) {
        bad = show_download(app, tinkc_future_download(f, 0, &err));
    } else if (cli_stop_signal()) {
        cli_note(app, "stopped; the same command goes on where it stopped");
        bad = cli_stop_exit();
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    free(copy);
    return bad;
}

/* ---- export ---- */

static bool show_export(int64_t done, int64_t total, void *user)
{
    cli_progress_step(user, done, total, NULL);
    return !cli_stop_signal();
}

/* Brings the checkpoint into a temporary folder; *folder is yours. */
static int fetch_adapter(cli_app *app, const char *path, const char *beside, char **folder)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    char *name = cli_printf(
        ".%s.adapter-%d", strrchr(beside, '/') ? strrchr(beside, '/') + 1 : beside, (int)getpid());
    tinkc_download_options o = { .name = name, .replace = true, .no_resume = true };
    tinkc_future *f = tinkc_checkpoint_download(app->client, path, &o, &err);
    if (wait_download(app, f, &err))
        *folder = strdup(tinkc_download_target(tinkc_future_download(f, 0, &err)));
    else
        bad = cli_fail_error(app, &err, path);
    tinkc_future_free(f);
    free(name);
    return bad;
}

static void remove_folder(const char *folder)
{
    static const char *const names[] = { "adapter_config.json", "adapter_model.safetensors",
                                         "checkpoint_complete", "README.md" };
    for (size_t i = 0; folder && i < sizeof names / sizeof *names; i++) {
        char *path = cli_printf("%s/%s", folder, names[i]);
        (void)unlink(path ? path : "");
        free(path);
    }
    if (folder)
        (void)rmdir(folder);
}

int cli_checkpoint_export(cli_app *app)
{
    tinkc_error err = { 0 };
    const char *target = cli_text(app, "output"), *source = app->args[0];
    if (!target)
        return cli_fail(app, "usage", NULL, "--output is needed: the folder to make");
    char *path = cli_sampler_path_of(source); /* a log directory means its last sampler weights */
    struct stat st;
    bool local = !path && stat(source, &st) == 0 && S_ISDIR(st.st_mode);
    char *fetched = NULL;
    int bad = local ? 0 : fetch_adapter(app, path ? path : source, target, &fetched);
    const char *base = cli_text(app, "base");
    if (base && strcmp(base, "nano") == 0)
        base = cli_nano_folder();
    if (!bad) {
        cli_progress bar;
        cli_progress_begin(&bar, app, "Exporting", -1, true);
        bool merged = strcmp(cli_text(app, "to"), "merged") == 0;
        tinkc_adapter_options o = { .adapter = fetched ? fetched : source,
                                    .base_model = base,
                                    .target = target,
                                    .format = merged ? TINKC_ADAPTER_MERGED : TINKC_ADAPTER_PEFT,
                                    .drop_unembed = cli_flag(app, "drop-unembed") };
        bool ok = tinkc_adapter_export(&o, show_export, &bar, &err);
        cli_progress_end(&bar);
        if (!ok)
            bad = cli_fail_error(app, &err, NULL);
    }
    if (!bad) {
        json_t *rows = json_array();
        json_t *v = json_pack("{s:s,s:s?,s:s,s:s}", "source", path ? path : source, "base_model",
                              base, "format", cli_text(app, "to"), "destination", target);
        cli_row(rows, "Source", path ? path : source);
        cli_row(rows, "Format", cli_text(app, "to"));
        cli_row(rows, "Destination", target);
        bad = cli_print_record(app, "Checkpoint Export", rows, v);
        json_decref(rows);
        json_decref(v);
    }
    remove_folder(fetched);
    free(fetched);
    free(path);
    return bad;
}
