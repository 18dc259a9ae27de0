/* cmd_download.c - `tinkc checkpoint download`. */
#include <stdlib.h>
#include <string.h>

#include "cli/manage/checkpoint_files.h"
#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "base/platform.h"
#include "base/str.h"

static tkc_tree *files_json(const cli_app *app, const tinkc_download *d)
{
    tkc_tree *files = cli_array(app);
    for (size_t i = 0; i < tinkc_download_count(d); i++) {
        const tinkc_file *f = tinkc_download_at(d, i);
        tkc_tree_add(files, cli_pack(app, "{s:s,s:I,s:s}", "name", f->name, "size_bytes",
                                     (int64_t)f->size_bytes, "sha256", f->sha256));
    }
    return files;
}

static int show_download(cli_app *app, const tinkc_download *d)
{
    char size[CLI_SHORT_TEXT];
    tkc_tree *rows = cli_array(app);
    tkc_tree *v =
        cli_pack(app, "{s:s,s:o,s:I,s:o}", "checkpoint_path", app->args[0], "destination",
                 cli_json_text(cli_arena(app), tinkc_download_target(d)), "file_size_bytes",
                 (int64_t)tinkc_download_bytes(d), "files", files_json(app, d));
    if (app->compat)
        tkc_tree_remove(v, "files");
    cli_format_size(tinkc_download_bytes(d), size);
    cli_row(app, rows, "Checkpoint Path", app->args[0]);
    cli_row(app, rows, "Archive Size", size);
    cli_row(app, rows, "Extracted to", tinkc_download_target(d));
    char *title = cli_printf("Checkpoint Download: %s", app->args[0]);
    int bad = cli_show_record(app, title, rows, v);
    return bad;
}

/* What went wrong, and how to continue where that is possible. */
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

/* The identities of a file as age-keygen writes it: one in each line, comments begin with #. NULL: *bad says
 * how it was reported. */
static const char *const *read_identities(cli_app *app, const char *path, int *bad)
{
    size_t len, n = 0, number = 0;
    tinkc_error err = { 0 };
    tkc_arena *arena = cli_arena(app);
    *bad = cli_check_secret_file(app, path);
    char *text = *bad ? NULL : cli_read_all(app, path, &len, bad);
    if (!text)
        return NULL;
    tinkc_str rest = tkc_strn(text, len), line;
    const char **list = tkc_arena_zalloc(arena, (len + 1) * sizeof *list, &err);
    while (!*bad && !tkc_failed(&err) && tkc_str_cut(&rest, '\n', &line)) {
        line = tkc_str_trim(line);
        number++;
        if (!line.len || line.data[0] == '#')
            continue;
        if (!tkc_starts_with(line, "AGE-SECRET-KEY-1"))
            *bad = cli_fail(app, "usage", "other kinds of keys are not supported: use age -d -i FILE",
                            "%s: line %zu is not an X25519 identity (AGE-SECRET-KEY-1...)", path, number);
        list[n++] = tkc_arena_str(arena, line, &err);
    }
    tkc_wipe(text, len);
    free(text);
    if (!*bad && tkc_failed(&err))
        *bad = cli_fail_error(app, &err, NULL);
    else if (!*bad && !n)
        *bad = cli_fail(app, "usage", "age-keygen -o FILE makes one",
                        "%s: no age identity in it (AGE-SECRET-KEY-1...)", path);
    return *bad ? NULL : list;
}

/* External weights that were saved with recipients are not readable as they are. */
static void note_encrypted(const cli_app *app, const tinkc_download *d)
{
    for (size_t i = 0; i < tinkc_download_count(d); i++)
        if (tkc_ends_with(tkc_str(tinkc_download_at(d, i)->name), ".age")) {
            cli_note(app, "the files are encrypted: decrypt them with age -d, or download again with "
                          "--age-identity FILE");
            return;
        }
}

int cli_checkpoint_download(cli_app *app)
{
    tinkc_error err = { 0 };
    if (!cli_path_kind(app->args[0]))
        return cli_fail(app, "usage", "paths look like tinker://RUN/weights/NAME",
                        "invalid checkpoint path: %s", app->args[0]);
    tinkc_path parsed;
    if (app->compat == CLI_COMPAT_NEW && tinkc_path_parse(app->args[0], &parsed, NULL) &&
        parsed.kind == TINKC_CHECKPOINT_SAMPLER)
        return cli_fail_checked(app, "training checkpoints and external weights can be",
                                "sampler checkpoints cannot be downloaded: %s", app->args[0]);
    const char *keys = cli_text(app, "age-identity");
    int bad = 0;
    const char *const *identities = keys ? read_identities(app, keys, &bad) : NULL;
    if (!bad)
        bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_download_options o = { .dir = cli_text(app, "output"),
                                 .name = cli_text(app, "name"),
                                 .flat = cli_flag(app, "flat"),
                                 .replace = cli_flag(app, "force"),
                                 .portable_names = cli_flag(app, "portable-names"),
                                 .age_identities = identities,
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
    tinkc_future *f = cli_fetch_files(app, &(cli_wanted_files){ .path = app->args[0] }, &o, &err);
    if (!f)
        bad = report_failed_download(app, &place, &err);
    else if (!place.piped) {
        const tinkc_download *d = tinkc_future_download(f, 0, &err);
        bad = show_download(app, d);
        note_encrypted(app, d);
    }
    tinkc_future_free(f);
    cli_place_free(&place);
    return bad;
}
