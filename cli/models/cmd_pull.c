/* cmd_pull.c - `tinkc pull`: a model or a tokenizer from a hub into the cache. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/main/option_rows.h"
#include "cli/models/hub_models.h"
#include "cli/output/text.h"

/* clang-format off */
const cli_option cli_pull_options[] = {
    OPT_TEXT("include", "PATTERN", "only files that match; * also matches /", .repeats = true),
    OPT_TEXT("exclude", "PATTERN", "not the files that match", .repeats = true),
    OPT_FLAG("tokenizer-only", "only the files that a tokenizer is made of"),
    OPT_FLAG("all", "every file, also weights in forms that tinkc does not read"),
    OPT_COUNT("jobs", "N", "files at once", "4", .letter = 'j'),
    OPT_FLAG("dry-run", "show what would be downloaded"),
    { 0 }
};
/* clang-format on */
const char *const cli_pull_examples[] = { "tinkc pull Qwen/Qwen3-0.6B",
                                          "tinkc pull Qwen/Qwen3-8B@main --tokenizer-only", NULL };

static tkc_tree *files_json(const cli_app *app, const tinkc_hub_snapshot *s, int64_t *total,
                            int64_t *missing)
{
    tkc_tree *files = cli_array(app);
    const tinkc_hub_file *f;
    *total = *missing = 0;
    for (size_t i = 0; (f = tinkc_hub_snapshot_at(s, i)); i++) {
        *total += f->size;
        *missing += f->was_cached ? 0 : f->size;
        tkc_tree_add(files, cli_pack(app, "{s:o,s:I,s:s,s:b,s:b}", "name",
                                     cli_json_text(cli_arena(app), f->name), "size_bytes",
                                     (int64_t)f->size, "digest", f->digest, "lfs", f->is_lfs,
                                     "cached", f->was_cached));
    }
    return files;
}

static int show_pulled(cli_app *app, const char *name, const char *revision,
                       const tinkc_hub_snapshot *s)
{
    char all[CLI_SHORT_TEXT], came[CLI_SHORT_TEXT], count[2 * CLI_SHORT_TEXT];
    int64_t total, missing;
    bool dry = cli_flag(app, "dry-run");
    tkc_tree *rows = cli_array(app), *files = files_json(app, s, &total, &missing);
    tkc_tree *v =
        cli_pack(app, "{s:s,s:s,s:s,s:o,s:I,s:I,s:o}", "repo", name, "revision",
                 revision ? revision : "main", "commit", tinkc_hub_snapshot_commit(s), "folder",
                 cli_json_text(cli_arena(app), tinkc_hub_snapshot_folder(s)), "total_bytes",
                 (int64_t)total, dry ? "missing_bytes" : "downloaded_bytes",
                 (int64_t)(dry ? missing : tinkc_hub_snapshot_moved(s)), "files", files);
    cli_format_size(total, all);
    cli_format_size(dry ? missing : tinkc_hub_snapshot_moved(s), came);
    (void)snprintf(count, sizeof count, "%zu (%s)", tinkc_hub_snapshot_count(s), all);
    cli_row(app, rows, "Model", name);
    cli_row(app, rows, "Commit", tinkc_hub_snapshot_commit(s));
    cli_row(app, rows, "Files", count);
    cli_row(app, rows, dry ? "To download" : "Downloaded", came);
    cli_row(app, rows, "Folder", tinkc_hub_snapshot_folder(s));
    return cli_show_record(app, NULL, rows, v);
}

int cli_pull(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = 0;
    if (cli_int(app, "jobs") < 1 || cli_int(app, "jobs") > 64)
        return cli_fail(app, "usage", NULL, "--jobs must be 1 to 64");
    if (cli_flag(app, "all") && cli_flag(app, "tokenizer-only"))
        return cli_fail(app, "usage", NULL, "--all and --tokenizer-only exclude each other");
    char *name, *revision;
    cli_hub_split(app->args[0], &name, &revision);
    const char **include = cli_values(app, "include"), **exclude = cli_values(app, "exclude");
    tinkc_hub *hub = cli_hub_open(app, &err);
    if (!hub)
        bad = cli_fail_hub(app, &err);
    tinkc_pull_options o = { .repo = name,
                             .revision = revision,
                             .include = include,
                             .exclude = exclude,
                             .dry_run = cli_flag(app, "dry-run"),
                             .what = cli_flag(app, "tokenizer-only") ? TINKC_PULL_TOKENIZER
                                     : cli_flag(app, "all")          ? TINKC_PULL_ALL
                                                                     : TINKC_PULL_MODEL };
    tinkc_hub_snapshot *s = hub ? cli_hub_pull(app, hub, &o, &bad) : NULL;
    if (s)
        bad = show_pulled(app, name, revision, s);
    tinkc_hub_snapshot_free(s);
    tinkc_hub_free(hub);
    free(include);
    free(exclude);
    free(name);
    free(revision);
    return bad;
}
