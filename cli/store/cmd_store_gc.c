/* cmd_store_gc.c - `tinkc store usage` and `tinkc store gc`: how much a store holds, what of it can go. */
#include <stdlib.h>
#include <string.h>

#include <tinkc/engine.h>

#include "cli/main/commands.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/store/logged_runs.h"

const cli_column cli_usage_columns[] = {
    { .name = "name", .header = "Run", .path = "name", .none = "-", .is_default = true },
    { .name = "id", .header = "Run ID", .path = "run_id", .none = "", .is_default = true, .is_id = true },
    { .name = "checkpoints",
      .header = "Checkpoints",
      .path = "checkpoint_bytes",
      .kind = CLI_CELL_SIZE,
      .is_default = true },
    { .name = "images",
      .header = "Images",
      .path = "image_bytes",
      .kind = CLI_CELL_SIZE,
      .is_default = true },
    { .name = "other",
      .header = "Other",
      .path = "other_bytes",
      .kind = CLI_CELL_SIZE,
      .is_default = true },
    { .name = "total",
      .header = "Total",
      .path = "total_bytes",
      .kind = CLI_CELL_SIZE,
      .is_default = true },
    { .name = "can-go",
      .header = "Can Go",
      .path = "removable_bytes",
      .kind = CLI_CELL_SIZE,
      .is_default = true },
    { 0 }
};

typedef struct usage {
    const cli_app *app;
    tkc_tree *rows, *named, *removed; /* of runs; logged runs; what goes, for JSON */
    int64_t total, goes;
    size_t n_goes;
    bool list;
} usage;

static tkc_tree *row_of(usage *u, const char *run)
{
    static const char *const sizes[] = { "checkpoint_bytes", "image_bytes", "other_bytes",
                                         "total_bytes", "removable_bytes" };
    for (size_t i = 0; i < tkc_tree_length(u->rows); i++) {
        const char *id = tkc_tree_get_text(tkc_tree_at(u->rows, i), "run_id");
        if (strcmp(id ? id : "", run ? run : "") == 0)
            return tkc_tree_at(u->rows, i);
    }
    const char *name = run ? cli_logged_run_name(u->named, run) : "(of no run)";
    tkc_arena *arena = cli_arena(u->app);
    tkc_tree *row =
        tkc_tree_pack(arena, "{s:o?,s:o?}", "name", name ? cli_json_text(arena, name) : NULL,
                      "run_id", run ? cli_json_text(arena, run) : NULL);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        tkc_tree_set_i64(row, sizes[k], 0);
    tkc_tree_add(u->rows, row);
    return row;
}

static void add(tkc_tree *row, const char *key, int64_t bytes)
{
    tkc_tree_set_i64(row, key, tkc_tree_get_i64(row, key) + bytes);
}

static void take_item(const tinkc_store_item *item, void *user)
{
    usage *u = user;
    tkc_tree *row = row_of(u, item->run_id);
    char size[CLI_SHORT_TEXT];
    add(row,
        item->kind == TINKC_STORE_CHECKPOINT ? "checkpoint_bytes"
        : item->kind == TINKC_STORE_IMAGE    ? "image_bytes"
                                             : "other_bytes",
        item->bytes);
    add(row, "total_bytes", item->bytes);
    u->total += item->bytes;
    if (!item->goes)
        return;
    add(row, "removable_bytes", item->bytes);
    u->goes += item->bytes;
    u->n_goes++;
    tkc_tree_add(u->removed, cli_pack(u->app, "{s:o,s:I,s:s}", "path",
                                      cli_json_text(cli_arena(u->app), item->path), "bytes",
                                      (int64_t)item->bytes, "why", item->why));
    if (!u->list)
        return;
    cli_format_size(item->bytes, size);
    printf("%10s  %s  (%s)\n", size, item->path, item->why);
}

static int64_t silent_of(const cli_app *app)
{
    double seconds = 7 * 86400;
    const char *text = cli_find_option(app->command, "silent", 6) ? cli_text(app, "silent") : NULL;
    if (text)
        (void)cli_parse_duration(text, &seconds);
    return (int64_t)seconds;
}

/* 0, or an exit code after reporting. */
static int look(cli_app *app, usage *u, const char *folder, bool remove, bool steps)
{
    tinkc_error err = { 0 };
    *u = (usage){ .app = app,
                  .rows = cli_array(app),
                  .removed = cli_array(app),
                  .named = cli_logged_runs(cli_arena(app), folder),
                  .list = app->format != CLI_JSON && app->format != CLI_JSONL &&
                          strcmp(app->command->verb, "gc") == 0 };
    tinkc_store_gc_options o = { .silent_s = silent_of(app), .remove = remove, .steps = steps };
    if (tinkc_store_gc(folder, &o, take_item, u, &err))
        return 0;
    const char *hint = err.cause == TINKC_E_CONFLICT
                           ? "a server does the same for its own store by itself; stop it to do it now"
                           : NULL;
    return cli_fail_error(app, &err, hint);
}

static int which_store(cli_app *app, const char **folder)
{
    *folder = app->n_args ? app->args[0] : cli_store_folder(app);
    return *folder ? 0 : cli_fail(app, "usage", "tinkc store usage DIR", "which store?");
}

static int by_size(const void *a, const void *b)
{
    const tkc_tree *one = *(tkc_tree *const *)a, *two = *(tkc_tree *const *)b;
    int64_t x = tkc_tree_get_i64(one, "total_bytes");
    int64_t y = tkc_tree_get_i64(two, "total_bytes");
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The largest first. */
static tkc_tree *sorted(const cli_app *app, const tkc_tree *rows)
{
    size_t n = tkc_tree_length(rows);
    tkc_tree **list = calloc(n + 1, sizeof *list), *out = cli_array(app);
    for (size_t i = 0; list && i < n; i++)
        list[i] = tkc_tree_at(rows, i);
    if (list)
        qsort(list, n, sizeof *list, by_size);
    for (size_t i = 0; list && i < n; i++)
        tkc_tree_add(out, list[i]);
    free(list);
    return out;
}

int cli_store_usage(cli_app *app)
{
    const char *folder;
    usage u;
    int bad = which_store(app, &folder);
    if (bad)
        return bad;
    bad = look(app, &u, folder, false, false);
    if (!bad) {
        char total[CLI_SHORT_TEXT], goes[CLI_SHORT_TEXT];
        cli_format_size(u.total, total);
        cli_format_size(u.goes, goes);
        char *title = cli_printf("%s: %s, %s can go (tinkc store gc)", folder, total, goes);
        tkc_tree *rows = sorted(app, u.rows),
                 *head =
                     cli_pack(app, "{s:o,s:I,s:I}", "store", cli_json_text(cli_arena(app), folder),
                              "total_bytes", (int64_t)u.total, "removable_bytes", (int64_t)u.goes);
        cli_list list = { .key = "runs",
                          .title = title,
                          .columns = cli_usage_columns,
                          .head = head,
                          .total = -1,
                          .no_counts = true };
        bad = cli_print_list(app, &list, rows);
        free(title);
    }
    return bad;
}

int cli_store_gc(cli_app *app)
{
    const char *folder;
    usage u;
    bool remove = cli_flag(app, "delete");
    int bad = which_store(app, &folder);
    if (bad)
        return bad;
    bad = look(app, &u, folder, remove, cli_flag(app, "steps"));
    if (!bad) {
        char total[CLI_SHORT_TEXT], goes[CLI_SHORT_TEXT];
        cli_format_size(u.total, total);
        cli_format_size(u.goes, goes);
        tkc_tree *v =
            cli_pack(app, "{s:b,s:I,s:I,s:o}", "deleted", remove, "bytes", (int64_t)u.goes,
                     "total_bytes", (int64_t)u.total, "items", u.removed);
        bad = remove ? cli_print_done(app, v, "deleted %zu items, %s of %s", u.n_goes, goes, total)
                     : cli_print_done(app, v, "%zu items, %s of %s%s", u.n_goes, goes, total,
                                      u.n_goes ? ", would go; tinkc store gc --delete does it"
                                               : ": nothing can go");
    }
    return bad;
}
