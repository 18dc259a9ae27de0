/* cmd_checkpoint.c - `tinkc checkpoint`: list, info, publish, set-ttl, url, copy.
 * Deleting is in cmd_delete.c, downloads and exports in cmd_download.c. */
#include <stdlib.h>
#include <string.h>

#include "cli/manage/checkpoint_files.h"
#include "cli/manage/checkpoints.h"
#include "cli/main/commands.h"
#include "cli/manage/recent_ids.h"
#include "cli/output/list.h"
#include "cli/output/records.h"
#include "cli/output/text.h"
#include "cli/models/weights.h"

static char *run_cell(const cli_app *app, const tkc_tree *checkpoint, bool people)
{
    tinkc_path path;
    tinkc_error ignored = { 0 };
    const char *text = tkc_tree_get_text(checkpoint, "tinker_path");
    (void)people;
    if (!text || !tinkc_path_parse(text, &path, &ignored))
        return NULL;
    char *run = strndup(path.run_id.data, path.run_id.len), *name = cli_run_name(app, run);
    free(run);
    return name;
}

const cli_column cli_checkpoint_columns[] = {
    { .name = "name", .header = "Run", .cell = run_cell, .is_name = true },
    { .name = "id", .header = "Checkpoint ID", .path = "checkpoint_id", .is_default = true },
    { .name = "type",
      .header = "Type",
      .path = "checkpoint_type",
      .spare = true,
      .is_default = true },
    { .name = "size",
      .header = "Size",
      .path = "size_bytes",
      .kind = CLI_CELL_SIZE,
      .none = "N/A",
      .is_default = true },
    { .name = "public",
      .header = "Public",
      .path = "public",
      .kind = CLI_CELL_BOOL,
      .none = "No",
      .spare = true,
      .is_default = true },
    { .name = "created",
      .header = "Created",
      .path = "time",
      .kind = CLI_CELL_TIME,
      .none = "N/A",
      .is_default = true },
    { .name = "expires",
      .header = "Expires",
      .path = "expires_at",
      .kind = CLI_CELL_TIME,
      .none = "Never",
      .spare = true,
      .is_default = true },
    { .name = "path",
      .header = "Path",
      .path = "tinker_path",
      .fit = CLI_FIT_LINE,
      .cut_left = true,
      .is_id = true,
      .is_default = true },
    { .name = "run", .header = "Run ID", .path = "training_run_id" },
    { .name = "expires_at", .header = "Expires At", .path = "expires_at" },
    { 0 }
};

bool cli_checkpoint_wanted(const cli_app *app, const tinkc_checkpoint *c)
{
    const char *type = cli_text(app, "type");
    if (type) {
        int kind = strncmp(type, "sampler", 7) == 0    ? TINKC_CHECKPOINT_SAMPLER
                   : strncmp(type, "external", 8) == 0 ? TINKC_CHECKPOINT_EXTERNAL
                                                       : TINKC_CHECKPOINT_TRAINING;
        if (c->kind != kind)
            return false;
    }
    if (cli_given(app, "before") &&
        (c->created_us == TINKC_NO_TIME || c->created_us >= cli_int(app, "before")))
        return false;
    if (cli_given(app, "after") &&
        (c->created_us == TINKC_NO_TIME || c->created_us <= cli_int(app, "after")))
        return false;
    return true;
}

/* Takes the list. */
static void collect_from(cli_pager *p, tinkc_checkpoints *list, int64_t limit, int64_t *total,
                         tinkc_error *err)
{
    const tinkc_checkpoint *c;
    cli_pager_begin(p, p->app, limit, "checkpoints");
    while (cli_pager_go(p, tinkc_checkpoints_total(list), err) &&
           (tinkc_checkpoints_ready(list) ||
            cli_pager_fetch(p, tinkc_checkpoints_fetch(list, err), err)) &&
           (c = tinkc_checkpoints_next(list, err))) {
        if (!cli_checkpoint_wanted(p->app, c))
            continue;
        const tkc_tree *sent = cli_record_json(&p->arena, c->json);
        cli_pager_add(p, cli_checkpoint_json(p->app, &p->arena, sent));
    }
    cli_pager_end(p);
    *total = tinkc_checkpoints_total(list);
    tinkc_checkpoints_free(list);
}

static void collect(cli_pager *p, const tinkc_list_options *how, int64_t limit, int64_t *total,
                    tinkc_error *err)
{
    collect_from(p, tinkc_checkpoints_list(p->app->client, how, err), limit, total, err);
}

tkc_tree *cli_collect_checkpoints(cli_app *app, const tinkc_list_options *how, int64_t limit,
                                  int64_t *total, tinkc_error *err)
{
    cli_pager p = { .app = app };
    int format = app->format;
    app->format = CLI_TABLE; /* they are for the caller: nothing is printed on the way */
    collect(&p, how, limit, total, err);
    app->format = format;
    return p.items;
}

static bool filtered(const cli_app *app)
{
    return cli_given(app, "type") || cli_given(app, "before") || cli_given(app, "after") ||
           cli_given(app, "filter");
}

static int show_list(cli_app *app, const tinkc_list_options *how, int64_t total,
                     const tkc_tree *items)
{
    char *suffix = how->run_id ? cli_printf(" for run %s", how->run_id) : strdup("");
    int64_t shown = (int64_t)tkc_tree_length(items);
    char *title = cli_list_title("checkpoint", shown, filtered(app) ? shown : total - how->offset,
                                 suffix ? suffix : "");
    tkc_tree *head = how->run_id ? cli_pack(app, "{s:s}", "run_id", how->run_id) : NULL;
    cli_list list = { .key = "checkpoints",
                      .title = title,
                      .columns = cli_checkpoint_columns,
                      .head = head,
                      .total = total };
    int bad = cli_print_list(app, &list, items);
    free(title);
    free(suffix);
    return bad;
}

int cli_checkpoint_list(cli_app *app)
{
    tinkc_error err = { 0 };
    int64_t total = -1;
    tinkc_list_options how = cli_list_options(app);
    int bad = cli_check_filters(app);
    if (!bad)
        bad = cli_connect(app);
    if (bad)
        return bad;
    char *run = cli_given(app, "run-id") ? cli_run_id(app, cli_text(app, "run-id")) : NULL;
    how.run_id = run;
    how.project_id = NULL;
    if (filtered(app))
        how.limit = 0; /* the limit counts what passes */
    cli_pager p = { .app = app };
    collect(&p, &how, cli_int(app, "limit"), &total, &err);
    if (!err.code)
        cli_ids_seen(app, "checkpoint", p.items, "tinker_path");
    cli_arrange(app, p.items);
    bad = p.bad      ? p.bad
          : err.code ? cli_fail_error(app, &err, NULL)
                     : show_list(app, &how, total, p.items);
    free(run);
    return bad;
}

/* ---- search ---- */

/* The values of a repeatable option, as a list; yours. NULL: none was given. */
static const char **texts_of(const cli_app *app, const char *name)
{
    size_t n = 0;
    while (cli_text_at(app, name, n))
        n++;
    const char **list = n ? calloc(n + 1, sizeof *list) : NULL;
    for (size_t i = 0; list && i < n; i++)
        list[i] = cli_text_at(app, name, i);
    return list;
}

/* NAME=VALUE, ... as pairs; yours, with the copy that they point into. */
static int read_pairs(cli_app *app, const char ***pairs, char ***copies)
{
    size_t n = 0;
    const char *text;
    while (cli_text_at(app, "metadata", n))
        n++;
    *pairs = calloc(2 * n + 1, sizeof **pairs);
    *copies = calloc(n + 1, sizeof **copies);
    if (!*pairs || !*copies)
        return cli_fail(app, "internal", NULL, "out of memory");
    for (size_t i = 0; (text = cli_text_at(app, "metadata", i)); i++) {
        char *copy = (*copies)[i] = strdup(text), *equals = copy ? strchr(copy, '=') : NULL;
        if (!equals || equals == copy)
            return cli_fail(app, "usage", "for example: --metadata recipe=sft",
                            "--metadata wants NAME=VALUE, not '%s'", text);
        *equals = '\0';
        (*pairs)[2 * i] = copy;
        (*pairs)[2 * i + 1] = equals + 1;
    }
    return 0;
}

static int kind_of(const char *type)
{
    return !type                               ? 0
           : strncmp(type, "sampler", 7) == 0  ? TINKC_CHECKPOINT_SAMPLER
           : strncmp(type, "external", 8) == 0 ? TINKC_CHECKPOINT_EXTERNAL
                                               : TINKC_CHECKPOINT_TRAINING;
}

static int search(cli_app *app, const tinkc_checkpoint_search_options *what)
{
    tinkc_error err = { 0 };
    int64_t total;
    const tinkc_list_options how = { 0 };
    cli_pager p = { .app = app };
    int bad = cli_check_filters(app);
    if (!bad && cli_int(app, "offset"))
        bad = cli_fail(app, "usage", "leave it out", "--offset: a search begins with the newest");
    if (!bad)
        bad = cli_connect(app);
    if (bad)
        return bad;
    collect_from(&p, tinkc_checkpoints_search(app->client, what, &err), cli_int(app, "limit"),
                 &total, &err);
    cli_arrange(app, p.items);
    bad = p.bad      ? p.bad
          : err.code ? cli_fail_error(app, &err, NULL)
                     : show_list(app, &how, (int64_t)tkc_tree_length(p.items), p.items);
    return bad;
}

int cli_checkpoint_search(cli_app *app)
{
    const char **models = texts_of(app, "base-model"), **projects = texts_of(app, "project"),
               **owners = texts_of(app, "owner"), **pairs = NULL;
    char **copies = NULL;
    int bad = read_pairs(app, &pairs, &copies);
    tinkc_checkpoint_search_options what = { .project_ids = projects,
                                             .user_metadata = pairs,
                                             .base_models = models,
                                             .owners = owners,
                                             .scope = cli_flag(app, "accessible") ? TINKC_ACCESSIBLE
                                                                                  : TINKC_OWNED,
                                             .kind = kind_of(cli_text(app, "type")),
                                             .limit = filtered(app) ? 0 : cli_int(app, "limit") };
    if (!bad)
        bad = search(app, &what);
    for (size_t i = 0; copies && copies[i]; i++)
        free(copies[i]);
    free(copies);
    free(pairs);
    free(models);
    free(projects);
    free(owners);
    return bad;
}

/* ---- info ---- */

/* The record itself, with the keys of every checkpoint; NULL if the run cannot be listed. A run
 * that lists others only does not have it. */
static tkc_tree *find_record(cli_app *app, const char *run_id, const char *path, tinkc_error *err)
{
    int64_t total;
    tkc_tree *found = NULL;
    tinkc_list_options how = { .run_id = run_id };
    tkc_tree *all = cli_collect_checkpoints(app, &how, 0, &total, err);
    size_t n = tkc_tree_length(all);
    for (size_t i = 0; i < n; i++) {
        tkc_tree *item = tkc_tree_at(all, i);
        const char *its = tkc_tree_get_text(item, "tinker_path");
        if (!found && its && strcmp(its, path) == 0)
            found = item;
    }
    if (!found && n)
        tinkc_error_set(err, TINKC_E_NOT_FOUND, "the run has no such checkpoint");
    return found;
}

/* What a path says by itself: all that is known of a checkpoint that others own. */
static tkc_tree *bare_record(tkc_arena *arena, const tinkc_path *parsed, const char *path)
{
    const char *kind = parsed->kind == TINKC_CHECKPOINT_SAMPLER    ? "sampler"
                       : parsed->kind == TINKC_CHECKPOINT_EXTERNAL ? "external"
                                                                   : "training";
    return tkc_tree_pack(arena, "{s:o,s:s,s:s}", "checkpoint_id",
                         tkc_tree_new_str(arena, parsed->checkpoint_id), "checkpoint_type", kind,
                         "tinker_path", path);
}

/* Refused or unknown: it belongs to somebody else, and what can be said of it is said. */
static void ignore_forbidden(tinkc_error *err)
{
    if (err->code == TINKC_E_NOT_FOUND || err->code == TINKC_E_FORBIDDEN)
        *err = (tinkc_error){ 0 };
}

static tkc_tree *info_rows(const cli_app *app, const tkc_tree *v)
{
    tkc_tree *rows = cli_array(app);
    char size[CLI_SHORT_TEXT], rank[CLI_SHORT_TEXT];
    const tkc_tree *bytes = tkc_tree_get(v, "size_bytes");
    cli_row(app, rows, "Checkpoint ID", tkc_tree_get_text(v, "checkpoint_id"));
    cli_row(app, rows, "Type", tkc_tree_get_text(v, "checkpoint_type"));
    cli_row(app, rows, "Tinker Path", tkc_tree_get_text(v, "tinker_path"));
    if (tkc_tree_is_i64(bytes)) {
        cli_format_size(tkc_tree_i64(bytes), size);
        cli_row(app, rows, "Size", size);
    }
    cli_row(app, rows, "Public", tkc_tree_get_true(v, "public") ? "Yes" : "No");
    cli_row_time(app, rows, "Created", tkc_tree_get_text(v, "time"));
    const char *expires = tkc_tree_get_text(v, "expires_at");
    if (expires)
        cli_row_time(app, rows, "Expires", expires);
    else
        cli_row(app, rows, "Expires", "Never");
    cli_row(app, rows, "Training Run ID", tkc_tree_get_text(v, "training_run_id"));
    int64_t r = tkc_tree_get_i64(v, "lora_rank");
    (void)snprintf(rank, sizeof rank, r ? "Yes (Rank %lld)" : "Yes", (long long)r);
    cli_row(app, rows, "LoRA", tkc_tree_get_true(v, "is_lora") ? rank : "No");
    cli_row(app, rows, "Base Model", tkc_tree_get_text(v, "base_model"));
    if (tkc_tree_get_text(v, "renderer_name"))
        cli_row(app, rows, "Renderer", tkc_tree_get_text(v, "renderer_name"));
    return rows;
}

static void add_weights(const cli_app *app, tkc_tree *v, const tinkc_weights *w)
{
    tkc_tree_set_bool(v, "is_lora", w->is_lora);
    tkc_tree_set(v, "lora_rank",
                 w->lora_rank ? tkc_tree_new_i64(cli_arena(app), w->lora_rank) : tkc_tree_null());
    tkc_tree_set_text(v, "base_model", w->base_model);
    tkc_tree_set_bool(v, "train_attn", !(w->freeze & TINKC_FREEZE_ATTN));
    tkc_tree_set_bool(v, "train_mlp", !(w->freeze & TINKC_FREEZE_MLP));
    tkc_tree_set_bool(v, "train_unembed", !(w->freeze & TINKC_FREEZE_UNEMBED));
}

/* Everything that is known. The weights are asked for first: a server that does not answer
 * is waited for once. */
static tkc_tree *gather_info(cli_app *app, const tinkc_path *parsed, const char *path,
                             tinkc_error *err)
{
    tkc_tree *v = NULL;
    char *run_id = cli_printf("%.*s", (int)parsed->run_id.len, parsed->run_id.data);
    tinkc_future *f = tinkc_checkpoint_get(app->client, path, err);
    const tinkc_weights *w = cli_wait(app, f, NULL, err) ? tinkc_future_weights(f, 0, err) : NULL;
    if (w) {
        v = find_record(app, run_id, path, err);
        if (err->http_status)
            ignore_forbidden(err);
        v = v ? v : bare_record(cli_arena(app), parsed, path);
        add_weights(app, v, w);
        tkc_tree_set_text(v, "training_run_id", run_id);
    }
    if (!err->code) {
        char *renderer = cli_run_renderer(app, path, err);
        tkc_tree_set(v, "renderer_name",
                     renderer ? tkc_tree_new_text(cli_arena(app), renderer) : tkc_tree_null());
        free(renderer);
    }
    tinkc_future_free(f);
    free(run_id);
    return v;
}

static int show_info(cli_app *app, const tinkc_path *parsed, tkc_tree *v)
{
    static const char *const added[] = { "base_model",    "train_attn",      "train_mlp",
                                         "train_unembed", "training_run_id", "renderer_name" };
    tkc_tree *rows = info_rows(app, v);
    char *title =
        cli_printf("Checkpoint: %.*s", (int)parsed->checkpoint_id.len, parsed->checkpoint_id.data);
    for (size_t i = 0; app->compat && i < sizeof added / sizeof *added; i++)
        tkc_tree_remove(v, added[i]);
    int bad = cli_print_record(app, title, rows, v);
    free(title);
    return bad;
}

int cli_checkpoint_info(cli_app *app)
{
    tinkc_error err = { 0 };
    tinkc_path parsed;
    const char *path = app->args[0];
    if (!tinkc_path_parse(path, &parsed, &err))
        return cli_fail_checked(app, "paths look like tinker://RUN/weights/NAME",
                                "invalid checkpoint path: %s", path);
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tkc_tree *v = gather_info(app, &parsed, path, &err);
    if (err.code == TINKC_E_NOT_FOUND)
        bad = cli_fail(app, "not_found", NULL, "checkpoint not found: %s", path);
    else
        bad = err.code ? cli_fail_error(app, &err, NULL) : show_info(app, &parsed, v);
    return bad;
}

/* ---- publish, unpublish, set-ttl: one call for each path ---- */

typedef tinkc_future *change_fn(tinkc_client *, const char *path, int64_t ttl_s, tinkc_error *);

static tinkc_future *publish(tinkc_client *c, const char *path, int64_t ttl_s, tinkc_error *err)
{
    (void)ttl_s;
    return tinkc_checkpoint_publish(c, path, err);
}
static tinkc_future *unpublish(tinkc_client *c, const char *path, int64_t ttl_s, tinkc_error *err)
{
    (void)ttl_s;
    return tinkc_checkpoint_unpublish(c, path, err);
}
static tinkc_future *set_ttl(tinkc_client *c, const char *path, int64_t ttl_s, tinkc_error *err)
{
    return ttl_s ? tinkc_checkpoint_set_ttl(c, path, ttl_s, err)
                 : tinkc_checkpoint_clear_ttl(c, path, err);
}

/* "Already so" (409) is success. 0, or the exit code of what went wrong. */
static int change_one(cli_app *app, change_fn *fn, const char *path, int64_t ttl_s,
                      const char *done, tkc_tree *results)
{
    tinkc_error err = { 0 };
    tinkc_future *f = fn(app->client, path, ttl_s, &err);
    bool ok = cli_wait(app, f, NULL, &err);
    bool already = err.code == TINKC_E_CONFLICT;
    tinkc_future_free(f);
    if (!ok && !already) {
        tkc_tree_add(results, cli_pack(app, "{s:s,s:s,s:b,s:s}", "tinker_path", path, "status",
                                       "failed", "changed", 0, "error", err.message));
        return cli_fail_error(app, &err, path);
    }
    tkc_tree_add(results, cli_pack(app, "{s:s,s:s,s:b}", "tinker_path", path, "status", done,
                                   "changed", !already));
    if (app->format != CLI_JSON && app->format != CLI_JSONL && !app->compat)
        cli_note(app, "%s%s: %s", already ? "already " : "", done, path);
    return 0;
}

static void say_not_tried(const cli_app *app, char *const *paths)
{
    size_t n = 0;
    while (paths[n])
        n++;
    cli_note(app, "not tried: %zu more, from %s on", n, paths[0]);
}

static void print_results(const cli_app *app, const tkc_tree *results)
{
    if (app->format == CLI_JSON) {
        tkc_tree *whole = cli_pack(app, "{s:o}", "results", results);
        cli_print_json(app, whole);
    }
    for (size_t i = 0; app->format == CLI_JSONL && i < tkc_tree_length(results); i++)
        cli_print_json(app, tkc_tree_at(results, i));
}

static int change_all(cli_app *app, change_fn *fn, int64_t ttl_s, const char *done)
{
    int bad;
    char **paths = cli_paths(app, &bad);
    if (!paths)
        return bad;
    tkc_tree *results = cli_array(app);
    size_t n = 0, failed = 0;
    int last = 0;
    bad = cli_connect(app);
    /* If the service cannot be reached, the other paths would fail too. */
    for (; !bad && paths[n] && !cli_stop_signal() && last != CLI_EXIT_NETWORK &&
           last != CLI_EXIT_TIMEOUT;
         n++) {
        int code = change_one(app, fn, paths[n], ttl_s, done, results);
        failed += code != 0;
        last = code ? code : last;
    }
    if (failed && paths[n])
        say_not_tried(app, &paths[n]);
    if (!bad && !app->compat)
        print_results(app, results);
    cli_free_paths(paths);
    return bad ? bad : failed == 0 ? 0 : failed == n ? last : CLI_EXIT_PARTLY;
}

int cli_checkpoint_publish(cli_app *app)
{
    return change_all(app, publish, 0, "published");
}

int cli_checkpoint_unpublish(cli_app *app)
{
    return change_all(app, unpublish, 0, "unpublished");
}

int cli_checkpoint_set_ttl(cli_app *app)
{
    bool remove = cli_flag(app, "remove");
    if (!cli_given(app, "ttl") && !remove)
        return cli_fail_checked(app, NULL, "must specify either --ttl <seconds> or --remove");
    if (cli_given(app, "ttl") && remove)
        return cli_fail_checked(app, NULL, "cannot specify both --ttl and --remove");
    if (!remove && cli_int(app, "ttl") <= 0)
        return cli_fail_checked(app, "to keep it without a limit: --remove",
                                "--ttl must be above 0");
    return change_all(app, set_ttl, remove ? 0 : cli_int(app, "ttl"),
                      remove ? "kept without a limit" : "time to live set");
}

/* ---- url, copy ---- */

/* External weights: an address for each file. */
static int show_links(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = 0;
    tkc_tree *urls = cli_object(app);
    tinkc_future *f = tinkc_checkpoint_links(app->client, app->args[0], &err);
    if (cli_wait(app, f, "addresses", &err)) {
        const tinkc_links *links = tinkc_future_links(f, 0, &err);
        for (size_t i = 0; i < tinkc_links_count(links); i++) {
            const tinkc_link *link = tinkc_links_at(links, i);
            tkc_tree_set(urls, link->name, cli_json_text(cli_arena(app), link->url));
            if (app->format != CLI_JSON)
                printf("%s\t%s\n", link->name, link->url);
        }
        if (app->format == CLI_JSON) {
            tkc_tree *v = cli_pack(app, "{s:s,s:o}", "tinker_path", app->args[0], "urls", urls);
            bad = cli_print_json(app, v);
        }
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}

int cli_checkpoint_url(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    if (cli_path_kind(app->args[0]) == TINKC_CHECKPOINT_EXTERNAL)
        return show_links(app);
    tinkc_future *f = tinkc_checkpoint_archive(app->client, app->args[0], &err);
    if (cli_wait(app, f, "archive", &err)) {
        const tinkc_archive *a = tinkc_future_archive(f, 0, &err);
        if (app->format == CLI_JSON) {
            tkc_tree *v = cli_pack(app, "{s:s,s:s,s:s?}", "tinker_path", app->args[0], "url",
                                   a->url, "expires", a->expires);
            bad = cli_print_json(app, v);
        } else {
            puts(a->url);
            if (a->expires)
                cli_note(app, "expires %s", a->expires);
        }
    }
    if (err.code)
        bad = cli_fail_error(app, &err, NULL);
    tinkc_future_free(f);
    return bad;
}

/* Loads the weights into a new run and saves them there. The path is copied into *saved. */
static void copy_weights(cli_app *app, const char *token, const char *name, bool training,
                         char **saved, tinkc_error *err)
{
    const char *const metadata[] = { "copied_from_path", app->args[0], NULL };
    tinkc_state_options from = { .path = app->args[0],
                                 .access_token = token,
                                 .user_metadata = metadata,
                                 .with_optimizer = training };
    tinkc_future *opened = tinkc_trainer_open_from(app->client, &from, err);
    tinkc_trainer *trainer = NULL;
    if (cli_wait(app, opened, "loading the weights", err))
        trainer = tinkc_future_trainer(opened, 0, err);
    tinkc_future_free(opened);
    tinkc_future *f = NULL;
    if (trainer)
        f = training ? tinkc_trainer_save(trainer, name, NULL, err)
                     : tinkc_trainer_save_for_sampler(trainer, name, NULL, err);
    if (cli_wait(app, f, "saving", err))
        *saved = strdup(tinkc_future_path(f, 0, err));
    tinkc_future_free(f);
    tinkc_trainer_free(trainer);
}

int cli_checkpoint_copy(cli_app *app)
{
    tinkc_error err = { 0 };
    tinkc_path parsed;
    int bad = 0;
    char *token = NULL, *saved = NULL;
    size_t len;
    if (!tinkc_path_parse(app->args[0], &parsed, &err) || parsed.kind != TINKC_CHECKPOINT_TRAINING)
        return cli_fail(app, "usage", "only tinker://RUN/weights/NAME can be copied",
                        "cannot copy %s", app->args[0]);
    if (cli_given(app, "source-token-file"))
        token = cli_read_all(app, cli_text(app, "source-token-file"), &len, &bad);
    else if (getenv("SRC_TINKER_ACCESS_TOKEN"))
        token = strdup(getenv("SRC_TINKER_ACCESS_TOKEN"));
    if (token)
        token[strcspn(token, "\r\n")] = '\0';
    if (!bad)
        bad = cli_connect(app);
    bool training = strcmp(cli_text(app, "kind"), "training") == 0;
    char *name = cli_text(app, "name") ? strdup(cli_text(app, "name"))
                                       : cli_printf("%.*s", (int)parsed.name.len, parsed.name.data);
    if (!bad) {
        copy_weights(app, token, name, training, &saved, &err);
        bad = err.code ? cli_fail_error(app, &err, NULL) : 0;
    }
    if (!bad) {
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "source_path", app->args[0],
                               training ? "training_path" : "sampler_path", saved);
        if (app->format == CLI_JSON)
            bad = cli_print_json(app, v);
        else
            puts(saved);
    }
    free(saved);
    free(name);
    free(token);
    return bad;
}
