/* cmd_run.c - `tinkc run`: training runs. */
#include <stdlib.h>
#include <string.h>

#include "cli/manage/checkpoints.h"
#include "cli/main/commands.h"
#include "cli/manage/recent_ids.h"
#include "cli/output/list.h"
#include "cli/output/records.h"
#include "cli/output/text.h"
#include "cli/store/logged_runs.h"

const char *const cli_time_keys[] = { "time", "last_request_time", "expires_at", "timestamp",
                                      NULL };

tkc_tree *cli_checkpoint_json(const cli_app *app, tkc_arena *arena, const tkc_tree *sent)
{
    static const char *const old[] = { "checkpoint_id", "checkpoint_type", "time",
                                       "tinker_path",   "size_bytes",      "public",
                                       "expires_at" };
    static const char *const now[] = { "checkpoint_id", "checkpoint_type", "time",
                                       "tinker_path",   "size_bytes",      "public",
                                       "user_metadata", "expires_at" };
    return app->compat == CLI_COMPAT_NEW
               ? cli_in_order(app, arena, sent, now, sizeof now / sizeof *now)
               : cli_in_order(app, arena, sent, old, sizeof old / sizeof *old);
}

tkc_tree *cli_in_order(const cli_app *app, tkc_arena *arena, const tkc_tree *sent,
                       const char *const *keys, size_t n)
{
    tkc_tree *out = tkc_tree_object(arena);
    for (size_t i = 0; i < n; i++) {
        tkc_tree *v = tkc_tree_get(sent, keys[i]);
        tkc_tree_set(out, keys[i], v ? v : tkc_tree_null());
    }
    if (!app->compat)
        tkc_tree_update_missing(out, sent);
    cli_normalise_times(app, out, cli_time_keys);
    return out;
}

static tkc_tree *run_json(const cli_app *app, tkc_arena *arena, tinkc_str json)
{
    static const char *const keys[] = {
        "training_run_id",   "base_model",      "model_owner",
        "is_lora",           "corrupted",       "lora_rank",
        "last_request_time", "last_checkpoint", "last_sampler_checkpoint",
        "user_metadata"
    };
    tkc_tree *sent = cli_record_json(arena, json);
    tkc_tree *out = cli_in_order(app, arena, sent, keys, sizeof keys / sizeof *keys);
    if (tkc_tree_is_null(tkc_tree_get(out, "corrupted")))
        tkc_tree_set_bool(out, "corrupted", false);
    static const char *const inner[] = { "last_checkpoint", "last_sampler_checkpoint" };
    for (size_t i = 0; i < 2; i++) {
        tkc_tree *c = tkc_tree_get(out, inner[i]);
        if (tkc_tree_is_object(c))
            tkc_tree_set(out, inner[i], cli_checkpoint_json(app, arena, c));
    }
    return out;
}

static char *lora_cell(const cli_app *app, const tkc_tree *run, bool people)
{
    (void)app, (void)people;
    tkc_tree *rank = tkc_tree_get(run, "lora_rank");
    if (!tkc_tree_get_true(run, "is_lora"))
        return strdup("No");
    if (!tkc_tree_i64(rank))
        return strdup("Yes");
    return cli_printf("Rank %lld", (long long)tkc_tree_i64(rank));
}

static char *status_cell(const cli_app *app, const tkc_tree *run, bool people)
{
    (void)app, (void)people;
    return strdup(tkc_tree_get_true(run, "corrupted") ? "Failed" : "OK");
}

static const tkc_tree *logged_runs(const cli_app *app)
{
    static tkc_arena arena;
    static tkc_tree *known;
    if (!known)
        known = cli_logged_runs(&arena, cli_store_folder(app));
    return known;
}

char *cli_run_name(const cli_app *app, const char *run_id)
{
    const char *name = run_id ? cli_logged_run_name(logged_runs(app), run_id) : NULL;
    return name ? strdup(name) : NULL;
}

char *cli_run_id(const cli_app *app, const char *given)
{
    const char *id = cli_logged_run_id(logged_runs(app), given);
    return strdup(id ? id : given);
}

static char *name_cell(const cli_app *app, const tkc_tree *run, bool people)
{
    (void)people;
    return cli_run_name(app, tkc_tree_get_text(run, "training_run_id"));
}

const cli_column cli_run_columns[] = {
    { .name = "name", .header = "Name", .cell = name_cell, .is_name = true },
    { .name = "id", .header = "Run ID", .path = "training_run_id", .is_default = true },
    { .name = "model",
      .header = "Base Model",
      .path = "base_model",
      .cut_left = true,
      .is_default = true },
    { .name = "owner", .header = "Owner", .path = "model_owner" },
    { .name = "lora", .header = "LoRA", .cell = lora_cell, .spare = true, .is_default = true },
    { .name = "updated",
      .header = "Last Update",
      .path = "last_request_time",
      .kind = CLI_CELL_TIME,
      .none = "N/A",
      .is_default = true },
    { .name = "status", .header = "Status", .cell = status_cell, .is_default = true },
    { .name = "checkpoint",
      .header = "Last Checkpoint",
      .path = "last_checkpoint.checkpoint_id",
      .none = "None" },
    { .name = "checkpoint_time",
      .header = "Checkpoint Time",
      .path = "last_checkpoint.time",
      .kind = CLI_CELL_TIME,
      .none = "N/A" },
    { .name = "project", .header = "Project", .path = "project_id" },
    { .name = "metadata", .header = "Metadata", .path = "user_metadata" },
    { .name = "sampler",
      .header = "Last Sampler Checkpoint",
      .path = "last_sampler_checkpoint.checkpoint_id",
      .none = "None" },
    { 0 }
};

/* All that pass, up to --limit. */
static void collect_runs(cli_pager *p, const tinkc_list_options *how, int64_t *total,
                         tinkc_error *err)
{
    tinkc_runs *runs = tinkc_runs_list(p->app->client, how, err);
    const tinkc_run *run;
    cli_pager_begin(p, p->app, cli_int(p->app, "limit"), "training runs");
    while (cli_pager_go(p, tinkc_runs_total(runs), err) &&
           (tinkc_runs_ready(runs) || cli_pager_fetch(p, tinkc_runs_fetch(runs, err), err)) &&
           (run = tinkc_runs_next(runs, err)))
        cli_pager_add(p, run_json(p->app, &p->arena, run->json));
    cli_pager_end(p);
    *total = tinkc_runs_total(runs);
    tinkc_runs_free(runs);
}

int cli_run_list(cli_app *app)
{
    tinkc_error err = { 0 };
    int64_t total;
    tinkc_list_options how = cli_list_options(app);
    int bad = cli_check_filters(app);
    if (!bad)
        bad = cli_connect(app);
    if (bad)
        return bad;
    cli_pager p = { .app = app };
    collect_runs(&p, &how, &total, &err);
    if (err.code || p.bad) {
        bad = p.bad ? p.bad : cli_fail_error(app, &err, NULL);
    } else {
        cli_ids_seen(app, "run", p.items, "training_run_id");
        cli_arrange(app, p.items);
        int64_t shown = (int64_t)tkc_tree_length(p.items);
        char *title = cli_list_title("training run", shown,
                                     cli_given(app, "filter") ? shown : total - how.offset, "");
        cli_list list = {
            .key = "runs", .title = title, .columns = cli_run_columns, .total = total
        };
        bad = cli_print_list(app, &list, p.items);
        free(title);
    }
    return bad;
}

/* ---- info ---- */

static const char *text_at(const tkc_tree *v, const char *path)
{
    return tkc_tree_text(cli_json_at(v, path));
}

static void checkpoint_rows(const cli_app *app, tkc_tree *rows, const char *label,
                            const tkc_tree *c)
{
    if (!tkc_tree_is_object(c))
        return;
    cli_row(app, rows, label, text_at(c, "checkpoint_id"));
    cli_row_time(app, rows, "  - Time", text_at(c, "time"));
    cli_row(app, rows, "  - Path", text_at(c, "tinker_path"));
}

static tkc_tree *run_rows(const cli_app *app, const tkc_tree *run)
{
    tkc_tree *rows = cli_array(app), *metadata = tkc_tree_get(run, "user_metadata"), *value;
    char *lora = lora_cell(app, run, true), *status = status_cell(app, run, true);
    char *shown = lora && strncmp(lora, "Rank", 4) == 0 ? cli_printf("Yes (%s)", lora)
                                                        : strdup(lora ? lora : "");
    char *name = name_cell(app, run, true);
    cli_row(app, rows, "Name", name);
    cli_row(app, rows, "Run ID", text_at(run, "training_run_id"));
    cli_row(app, rows, "Base Model", text_at(run, "base_model"));
    cli_row(app, rows, "Owner", text_at(run, "model_owner"));
    cli_row(app, rows, "LoRA", shown);
    cli_row_time(app, rows, "Last Update", text_at(run, "last_request_time"));
    cli_row(app, rows, "Status", status);
    checkpoint_rows(app, rows, "Last Training Checkpoint", tkc_tree_get(run, "last_checkpoint"));
    checkpoint_rows(app, rows, "Last Sampler Checkpoint",
                    tkc_tree_get(run, "last_sampler_checkpoint"));
    const char *key;
    if (tkc_tree_members(metadata))
        cli_row(app, rows, "Metadata", "");
    TKC_TREE_EACH (metadata, key, value) {
        char *label = cli_printf("  - %s", key);
        cli_row(app, rows, label ? label : key, tkc_tree_text(value));
        free(label);
    }
    free(name);
    free(lora);
    free(status);
    free(shown);
    return rows;
}

/* --checkpoints: the run's own, under "checkpoints" in JSON and as rows in the table. */
static void add_checkpoints(cli_app *app, const char *run_id, tkc_tree *run, tkc_tree *rows,
                            tinkc_error *err)
{
    int64_t total;
    tinkc_list_options how = { .run_id = run_id };
    tkc_tree *all = cli_collect_checkpoints(app, &how, 0, &total, err);
    for (size_t i = 0; i < tkc_tree_length(all); i++)
        cli_row(app, rows, "Checkpoint", text_at(tkc_tree_at(all, i), "tinker_path"));
    tkc_tree_set(run, "checkpoints", all);
}

int cli_run_info(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    char *id = cli_run_id(app, app->args[0]);
    tinkc_future *f = tinkc_run_get(app->client, id, cli_list_options(app).scope, &err);
    tkc_tree *run = NULL, *rows = NULL;
    if (cli_wait(app, f, NULL, &err)) {
        run = run_json(app, cli_arena(app), tinkc_future_run(f, 0, &err)->json);
        rows = run_rows(app, run);
        if (cli_flag(app, "checkpoints"))
            add_checkpoints(app, id, run, rows, &err);
    }
    tinkc_future_free(f);
    if (err.code) {
        bad = cli_fail_error(app, &err, NULL);
    } else {
        char *title = cli_printf("Training Run: %s", app->args[0]);
        bad = cli_print_record(app, title, rows, run);
        free(title);
    }
    free(id);
    return bad;
}
