/* cmd_manage.c - sessions, models, samplers, audit, whoami. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/output/list.h"
#include "cli/models/folder_info.h"
#include "cli/models/model_folder.h"
#include "cli/models/models.h"
#include "cli/output/records.h"
#include "cli/output/text.h"

/* ---- sessions ---- */

static char *self_cell(const cli_app *app, const tkc_tree *item, bool people)
{
    (void)app, (void)people;
    return strdup(tkc_tree_text(item));
}

static void collect_sessions(cli_pager *p, tinkc_error *err)
{
    tinkc_list_options how = cli_list_options(p->app);
    tinkc_sessions *list = tinkc_sessions_list(p->app->client, &how, err);
    const char *id;
    cli_pager_begin(p, p->app, cli_int(p->app, "limit"), "sessions");
    while (
        cli_pager_go(p, -1, err) &&
        (tinkc_sessions_ready(list) || cli_pager_fetch(p, tinkc_sessions_fetch(list, err), err)) &&
        (id = tinkc_sessions_next(list, err)))
        cli_pager_add(p, tkc_tree_new_text(&p->arena, id));
    cli_pager_end(p);
    tinkc_sessions_free(list);
    cli_arrange(p->app, p->items);
}

const cli_column cli_session_columns[] = {
    { .name = "id", .header = "Session ID", .cell = self_cell, .is_default = true }, { 0 }
};

int cli_session_list(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_check_filters(app);
    if (!bad)
        bad = cli_connect(app);
    if (bad)
        return bad;
    cli_pager p = { .app = app };
    collect_sessions(&p, &err);
    if (err.code || p.bad) {
        bad = p.bad ? p.bad : cli_fail_error(app, &err, NULL);
    } else {
        char *title = cli_list_title("session", (int64_t)tkc_tree_length(p.items), 0, "");
        cli_list spec = {
            .key = "sessions", .title = title, .columns = cli_session_columns, .total = -1
        };
        bad = cli_print_list(app, &spec, p.items);
        free(title);
    }
    return bad;
}

static tkc_tree *texts(const cli_app *app, const char *const *list)
{
    tkc_tree *out = cli_array(app);
    for (; list && *list; list++)
        tkc_tree_add_text(out, *list);
    return out;
}

static void rows_of(const cli_app *app, tkc_tree *rows, const char *label, const char *const *list)
{
    for (; list && *list; list++)
        cli_row(app, rows, label, *list);
}

int cli_session_info(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_future *f =
        tinkc_session_get(app->client, app->args[0], cli_list_options(app).scope, &err);
    if (cli_wait(app, f, NULL, &err)) {
        const tinkc_session *s = tinkc_future_session(f, 0, &err);
        tkc_tree *rows = cli_array(app);
        tkc_tree *v =
            cli_pack(app, "{s:s,s:o,s:o}", "session_id", app->args[0], "training_run_ids",
                     texts(app, s->training_run_ids), "sampler_ids", texts(app, s->sampler_ids));
        cli_row(app, rows, "Session ID", app->args[0]);
        rows_of(app, rows, "Training Run", s->training_run_ids);
        rows_of(app, rows, "Sampler", s->sampler_ids);
        char *title = cli_printf("Session: %s", app->args[0]);
        bad = cli_show_record(app, title, rows, v);
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}

int cli_session_move(cli_app *app)
{
    tinkc_error err = { 0 };
    const char *project = cli_text(app, "project");
    if (!project)
        return cli_fail(app, "usage", NULL, "--project is needed");
    int bad = cli_connect(app);
    if (bad)
        return bad;
    if (!app->yes)
        fprintf(stderr, "There is no way back to \"no project\".\n");
    int answer = cli_confirm(app, "Move the session and all its runs?", "--yes");
    if (answer <= 0)
        return answer < 0 ? -answer : cli_fail(app, "declined", NULL, "cancelled");
    tinkc_future *f = tinkc_session_assign(app->client, app->args[0], project, &err);
    if (cli_wait(app, f, NULL, &err)) {
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "session_id", app->args[0], "project_id", project);
        bad = cli_print_done(app, v, "session %s moved to %s", app->args[0], project);
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}

static int show_trace(cli_app *app, const char *target, int64_t bytes)
{
    char size[CLI_SHORT_TEXT];
    tkc_tree *rows = cli_array(app);
    tkc_tree *v = cli_pack(app, "{s:s,s:o}", "session_id", app->args[0], "destination",
                           cli_json_text(cli_arena(app), target));
    if (bytes > 0)
        tkc_tree_set_i64(v, "file_size_bytes", bytes);
    cli_format_size(bytes, size);
    cli_row(app, rows, "Session ID", app->args[0]);
    cli_row(app, rows, "Saved to", target);
    cli_row(app, rows, "Size", size);
    char *title = cli_printf("Trace Export: %s", app->args[0]);
    int bad = cli_show_record(app, title, rows, v);
    return bad;
}

/* Fetches an address into a file; "-" = stdout. */
static int save_trace(cli_app *app, const char *url, const char *target)
{
    tinkc_error err = { 0 };
    cli_place place;
    tinkc_download_options how = { .replace = true };
    cli_place_begin(&place, target, &how);
    tinkc_future *f = tinkc_url_download(app->client, url, &how, &err);
    int bad = 0;
    if (!cli_wait_bytes(app, f, "Downloading trace", &err)) {
        bad = cli_place_fault(app, &place, &err);
        bad = bad ? bad : cli_fail_error(app, &err, NULL);
    } else if (!place.piped) {
        bad = show_trace(app, target, tinkc_download_bytes(tinkc_future_download(f, 0, &err)));
    }
    tinkc_future_free(f);
    cli_place_free(&place);
    return bad;
}

int cli_session_export_trace(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    if (app->format != CLI_JSON && app->format != CLI_JSONL)
        cli_note(app, "Exporting trace for session %s (this may take a while)...", app->args[0]);
    tinkc_future *f = tinkc_session_trace(app->client, app->args[0], &err);
    if (!cli_wait(app, f, "the service builds the trace", &err)) {
        bad = cli_fail_error(app, &err, NULL);
    } else if (cli_flag(app, "url-only")) {
        const char *url = tinkc_future_url(f, 0, &err);
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "session_id", app->args[0], "url", url);
        if (app->format == CLI_JSON)
            bad = cli_print_json(app, v);
        else
            puts(url);
    } else {
        char *usual = cli_printf("./%s.pftrace", app->args[0]);
        const char *target = cli_text(app, "output");
        bad = save_trace(app, tinkc_future_url(f, 0, &err), target ? target : usual);
        free(usual);
    }
    tinkc_future_free(f);
    return bad;
}

/* ---- models ---- */

/* What the service says of a model; NULL where it does not offer it. */
static tkc_tree *model_json(const cli_app *app, const char *name, const tinkc_model *m)
{
    static const char *const keys[] = { "model_name", "max_context_length", "trainable",
                                        "sampleable" };
    if (app->compat && m) {
        tkc_tree *sent = cli_record_json(cli_arena(app), m->json);
        tkc_tree *out = cli_in_order(app, cli_arena(app), sent, keys, sizeof keys / sizeof *keys);
        return out;
    }
    int64_t context = m ? m->max_context_length : 0;
    const cli_model_facts *f = cli_model_find(name);
    double rate = cli_model_suggested_rate(name);
    tkc_tree *v = cli_pack(app, "{s:s}", "model_name", name);
    tkc_tree_set(v, "max_context_length",
                 context ? tkc_tree_new_i64(cli_arena(app), context) : tkc_tree_null());
    tkc_tree_set(v, "kind", f ? tkc_tree_new_text(cli_arena(app), f->kind) : tkc_tree_null());
    tkc_tree_set(v, "renderer",
                 f && f->renderer ? tkc_tree_new_text(cli_arena(app), f->renderer)
                                  : tkc_tree_null());
    tkc_tree_set(v, "hidden_size",
                 f ? tkc_tree_new_i64(cli_arena(app), f->hidden) : tkc_tree_null());
    tkc_tree_set(v, "suggested_lr",
                 rate > 0 ? tkc_tree_new_real(cli_arena(app), rate) : tkc_tree_null());
    return v;
}

static char *rate_cell(const cli_app *app, const tkc_tree *item, bool people)
{
    (void)app;
    const tkc_tree *rate = tkc_tree_get(item, "suggested_lr");
    char text[CLI_SHORT_TEXT];
    if (!tkc_tree_is_real(rate))
        return NULL;
    if (people)
        return cli_printf("%.2g", tkc_tree_number(rate));
    cli_format_number(tkc_tree_number(rate), text);
    return strdup(text);
}

const cli_column cli_model_columns[] = {
    { .name = "model", .header = "Model", .path = "model_name", .is_default = true },
    { .name = "context", .header = "Context", .path = "max_context_length", .is_default = true },
    { .name = "kind", .header = "Kind", .path = "kind", .is_default = true },
    { .name = "renderer", .header = "Renderer", .path = "renderer", .is_default = true },
    { .name = "lr", .header = "LR", .cell = rate_cell, .is_default = true },
    { .name = "hidden", .header = "Hidden", .path = "hidden_size" },
    { 0 }
};

/* Waits for the capabilities; the future owns them. NULL after reporting in *bad. */
static tinkc_future *get_capabilities(cli_app *app, int *bad)
{
    tinkc_error err = { 0 };
    *bad = cli_connect(app);
    if (*bad)
        return NULL;
    tinkc_future *f = tinkc_capabilities_get(app->client, &err);
    if (cli_wait(app, f, NULL, &err))
        return f;
    *bad = cli_fail_error(app, &err, NULL);
    tinkc_future_free(f);
    return NULL;
}

int cli_model_list(cli_app *app)
{
    int bad;
    tinkc_error err = { 0 };
    tinkc_future *f = get_capabilities(app, &bad);
    if (!f)
        return bad;
    const tinkc_capabilities *all = tinkc_future_capabilities(f, 0, &err);
    tkc_tree *items = cli_array(app);
    const char *part = app->n_args ? app->args[0] : NULL;
    size_t total = tinkc_capabilities_count(all), limit = (size_t)cli_int(app, "limit");
    for (size_t i = (size_t)cli_int(app, "offset"); i < total; i++) {
        const tinkc_model *m = tinkc_capabilities_at(all, i);
        bool known = cli_model_find(m->name) != NULL;
        tkc_tree *item = model_json(app, m->name, m);
        bad = bad ? bad : cli_check_keys(app, item);
        if ((known || !cli_flag(app, "supported")) && cli_passes(app, item) &&
            (!part || strcasestr(m->name, part)) && (!limit || tkc_tree_length(items) < limit))
            tkc_tree_add(items, item);
    }
    cli_arrange(app, items);
    bad = bad ? bad : cli_check_filters(app);
    if (!bad && part && tkc_tree_length(items) == 0) {
        bad = cli_fail(app, "not_found", "see all of them: tinkc model list",
                       "no model of this service has '%s' in its name", part);
    } else if (!bad) {
        char *title = cli_list_title("model", (int64_t)tkc_tree_length(items), (int64_t)total, "");
        cli_list spec = {
            .key = "models", .title = title, .columns = cli_model_columns, .total = (int64_t)total
        };
        bad = cli_print_list(app, &spec, items);
        free(title);
    }
    tinkc_future_free(f);
    return bad;
}

static void add_parameters(const cli_app *app, tkc_tree *v, tkc_tree *rows,
                           const cli_model_facts *m)
{
    char text[CLI_SHORT_TEXT];
    tkc_tree_set(v, "lora_params_per_rank", tkc_tree_null());
    if (!m || !m->mlp)
        return;
    tkc_tree_set(v, "lora_params_per_rank",
                 cli_pack(app, "{s:I,s:I,s:I}", "mlp", (int64_t)m->mlp, "attn", (int64_t)m->attn,
                          "unembed", (int64_t)m->unembed));
    int64_t rank = cli_int(app, "rank");
    char label[64];
    (void)snprintf(label, sizeof label, "LoRA parameters at rank %lld", (long long)rank);
    int64_t all = rank * (m->mlp + m->attn + m->unembed);
    cli_format_count(all, text);
    cli_row(app, rows, label, text);
    cli_format_size(CLI_ADAPTER_BYTES * all, text);
    cli_row(app, rows, "Memory of its training", text);
}

/* The recommended one first; `renderers` is there even when it is empty. */
static void add_renderers(const cli_app *app, tkc_tree *v, tkc_tree *rows, const cli_model_facts *m)
{
    tkc_tree *names = cli_array(app);
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const char *name;
    for (size_t i = 0; f && m && (name = cli_model_renderer(m, i)); i++) {
        tkc_tree_add_text(names, name);
        fprintf(f, "%s%s", i ? ", " : "", name);
    }
    if (f)
        fclose(f);
    cli_row(app, rows, "Renderers", tkc_tree_length(names) ? text : NULL);
    tkc_tree_set(v, "renderers", names);
    free(text);
}

/* A model that was a folder is named by its whole path, also when the folder is gone: that of its
 * parent, then. Yours. */
static char *whole_name(const char *name)
{
    const char *slash = strrchr(name, '/');
    if (*name != '.' || !slash)
        return strdup(name);
    char *parent = strndup(name, (size_t)(slash - name)), *whole = realpath(name, NULL);
    char *above = whole || !parent ? NULL : realpath(parent, NULL);
    if (above)
        whole = cli_printf("%s%s", above, slash);
    free(above);
    free(parent);
    return whole ? whole : strdup(name);
}

int cli_model_add(cli_app *app)
{
    if (!cli_wants_local(app))
        return cli_fail(app, "usage", "add --local", "models are added to the local engine only");
    char *name = whole_name(app->args[0]);
    int bad = cli_add_model(app, name ? name : "", app->args[1]);
    if (!bad)
        bad = cli_print_done(app, cli_pack(app, "{s:s, s:s}", "name", name, "folder", app->args[1]),
                             "%s is in %s", name, app->args[1]);
    free(name);
    return bad;
}

int cli_model_info(cli_app *app)
{
    int bad;
    tinkc_error err = { 0 };
    const char *name = app->args[0];
    if (cli_is_model_config(name) || cli_is_gguf(name))
        return cli_folder_info(app, name);
    bad = cli_check_model_path(app, name);
    tinkc_future *f = bad ? NULL : get_capabilities(app, &bad);
    if (!f)
        return bad;
    const cli_model_facts *facts = cli_model_find(name);
    const tinkc_model *m = tinkc_capabilities_find(tinkc_future_capabilities(f, 0, &err), name);
    if (!m && !facts) {
        tinkc_future_free(f);
        return cli_fail(app, "not_found", "see: tinkc model list", "model not found: %s", name);
    }
    tkc_tree *v = model_json(app, name, m), *rows = cli_array(app);
    char text[CLI_SHORT_TEXT];
    double rate = cli_model_suggested_rate(name);
    cli_row(app, rows, "Model", name);
    cli_row(app, rows, "Offered", m ? "Yes" : "No");
    (void)snprintf(text, sizeof text, "%lld", m ? (long long)m->max_context_length : 0);
    cli_row(app, rows, "Context", m && m->max_context_length ? text : NULL);
    cli_row(app, rows, "Kind", facts ? facts->kind : NULL);
    add_renderers(app, v, rows, facts);
    (void)snprintf(text, sizeof text, "%lld", facts ? (long long)facts->hidden : 0);
    cli_row(app, rows, "Hidden Size", facts ? text : NULL);
    cli_format_number(rate, text);
    cli_row(app, rows, "Suggested LR (LoRA)", rate > 0 ? text : NULL);
    rate = facts ? cli_model_rate(name, facts->hidden, false) : 0;
    cli_format_number(rate, text);
    cli_row(app, rows, "Suggested LR (full)", rate > 0 ? text : NULL);
    tinkc_text repo = { 0 }, revision = { 0 };
    tkc_tree_set(v, "tokenizer", tkc_tree_null());
    if (tinkc_tokenizer_resolve(name, NULL, &repo, &revision, NULL) && repo.len) {
        cli_row(app, rows, "Tokenizer", repo.data);
        tkc_tree_set_text(v, "tokenizer", repo.data);
    }
    tinkc_text_free(&repo);
    tinkc_text_free(&revision);
    add_parameters(app, v, rows, facts);
    char *title = cli_printf("Model: %s", name);
    bad = cli_show_record(app, title, rows, v);
    tinkc_future_free(f);
    return bad;
}

/* ---- samplers, who am I ---- */

int cli_sampler_info(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_future *f = tinkc_sampler_get(app->client, app->args[0], &err);
    if (cli_wait(app, f, NULL, &err)) {
        const tinkc_sampler_record *s = tinkc_future_sampler_record(f, 0, &err);
        tkc_tree *rows = cli_array(app);
        tkc_tree *v = cli_pack(app, "{s:s,s:s,s:s?}", "sampler_id", s->sampler_id, "base_model",
                               s->base_model, "model_path", s->model_path);
        cli_row(app, rows, "Sampler ID", s->sampler_id);
        cli_row(app, rows, "Base Model", s->base_model);
        cli_row(app, rows, "Model Path", s->model_path);
        bad = cli_show_record(app, NULL, rows, v);
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}

/* A plain key works without naming its owner: that is an answer, not a failure. */
static int show_nobody(cli_app *app)
{
    tkc_tree *rows = cli_array(app),
             *v = cli_pack(app, "{s:n,s:n,s:n}", "user_urn", "org_urn", "email");
    cli_row(app, rows, "User", "unknown: an API key does not name a user");
    return cli_show_record(app, NULL, rows, v);
}

int cli_whoami(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_future *f = tinkc_identity_get(app->client, &err);
    if (cli_wait(app, f, NULL, &err)) {
        const tinkc_identity *me = tinkc_future_identity(f, 0, &err);
        tkc_tree *rows = cli_array(app);
        tkc_tree *v =
            cli_pack(app, "{s:s,s:s?,s:s?}", "user_urn", me->user_urn, "org_urn",
                     me->org_urn && *me->org_urn ? me->org_urn : NULL, "email", me->email);
        cli_row(app, rows, "User", me->user_urn);
        cli_row(app, rows, "Organization", me->org_urn);
        cli_row(app, rows, "Email", me->email);
        bad = cli_show_record(app, NULL, rows, v);
    } else {
        bad = err.code == TINKC_E_NO_IDENTITY ? show_nobody(app) : cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}

/* ---- audit ---- */

static void day_text(int64_t time_us, char out[CLI_SHORT_TEXT])
{
    cli_format_iso(time_us, out);
    out[10] = '\0';
}

/* The day so many days before today. */
static void day_before(int64_t back, char out[CLI_SHORT_TEXT])
{
    time_t now = time(NULL);
    struct tm day;
    gmtime_r(&now, &day);
    day.tm_mday -= (int)back;
    (void)timegm(&day); /* the 0th of March becomes a day of February */
    (void)strftime(out, CLI_SHORT_TEXT, "%Y-%m-%d", &day);
}

/* The entries of one day as JSON; NULL after filling err. */
static tkc_tree *audit_day(cli_app *app, tkc_arena *arena, const char *day, tinkc_error *err)
{
    static const char *const keys[] = { "timestamp", "event", "model_id", "tinker_path",
                                        "purpose" };
    tinkc_future *f = tinkc_audit_get(app->client, cli_text(app, "type"), day, err);
    tkc_tree *items = NULL;
    if (cli_wait(app, f, "audit log", err)) {
        const tinkc_audit *log = tinkc_future_audit(f, 0, err);
        items = tkc_tree_array(arena);
        for (size_t i = 0; i < tinkc_audit_count(log); i++) {
            tkc_tree *sent = cli_record_json(arena, tinkc_audit_at(log, i)->json);
            tkc_tree_add(items, cli_in_order(app, arena, sent, keys, 5));
        }
    }
    tinkc_future_free(f);
    return items;
}

const cli_column cli_audit_columns[] = {
    { .name = "time",
      .header = "Time",
      .path = "timestamp",
      .kind = CLI_CELL_TIME,
      .is_default = true },
    { .name = "event", .header = "Event", .path = "event", .is_default = true },
    { .name = "run", .header = "Run", .path = "model_id", .is_default = true },
    { .name = "path",
      .header = "Path",
      .path = "tinker_path",
      .fit = CLI_FIT_LINE,
      .cut_left = true,
      .is_default = true },
    { .name = "purpose", .header = "Purpose", .path = "purpose", .is_default = true },
    { 0 }
};

int cli_audit_list(cli_app *app)
{
    char day[CLI_SHORT_TEXT];
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    day_text(cli_int(app, "day"), day);
    tkc_tree *items = audit_day(app, cli_arena(app), day, &err);
    if (!items)
        return cli_fail_error(app, &err, NULL);
    tkc_tree *head = cli_pack(app, "{s:s}", "day", day);
    char *title = cli_printf("Audit log of %s: %zu event(s)", day, tkc_tree_length(items));
    cli_list spec = { .key = "entries",
                      .title = title,
                      .columns = cli_audit_columns,
                      .head = head,
                      .no_counts = true };
    bad = cli_print_list(app, &spec, items);
    free(title);
    return bad;
}

static int write_day(cli_app *app, const char *folder, const char *day, const tkc_tree *items)
{
    char *path = cli_printf("%s/audit_log_%s.jsonl", folder, day);
    cli_save s;
    cli_save_begin(&s, path ? path : "", 0666);
    for (size_t i = 0; s.f && i < tkc_tree_length(items); i++) {
        char *line = cli_json_print(tkc_tree_at(items, i), TKC_TREE_SORTED);
        fprintf(s.f, "%s\n", line ? line : "");
        free(line);
    }
    free(path);
    return cli_save_end(&s, app, true);
}

/* What was written goes to `days`: {"day", "entries"} each. */
static int sync_once(cli_app *app, const char *folder, tkc_tree *days)
{
    bool json = app->format == CLI_JSON || app->format == CLI_JSONL;
    char today[CLI_SHORT_TEXT];
    day_before(0, today);
    for (int64_t back = cli_int(app, "backfill-days"); back >= 0; back--) {
        char day[CLI_SHORT_TEXT];
        tinkc_error err = { 0 };
        day_before(back, day);
        char *path = cli_printf("%s/audit_log_%s.jsonl", folder, day);
        bool have = path && access(path, F_OK) == 0 && strcmp(day, today) != 0;
        free(path);
        if (have)
            continue;
        tkc_arena arena = { 0 };
        const tkc_tree *items = audit_day(app, &arena, day, &err);
        size_t n = tkc_tree_length(items);
        int bad = items ? write_day(app, folder, day, items) : cli_fail_error(app, &err, day);
        tkc_arena_free(&arena);
        if (!items)
            return bad;
        if (!bad && !json)
            cli_note(app, "%s: %zu event(s)", day, n);
        tkc_tree_add(days, cli_pack(app, "{s:s,s:I}", "day", day, "entries", (int64_t)n));
        if (bad)
            return bad;
    }
    return 0;
}

/* Once; the result is printed as JSON where that is asked for. */
static int sync_and_tell(cli_app *app, const char *folder)
{
    tkc_tree *days = cli_array(app);
    int bad = sync_once(app, folder, days);
    tkc_tree *v = cli_pack(app, "{s:o,s:o}", "directory", cli_json_text(cli_arena(app), folder),
                           "days", days);
    if (!bad && (app->format == CLI_JSON || app->format == CLI_JSONL))
        bad = cli_print_json(app, v);
    (void)fflush(stdout); /* with --every somebody may be reading */
    return bad;
}

int cli_audit_sync(cli_app *app)
{
    const char *folder = cli_text(app, "output");
    if (!cli_make_folder(folder, 0777))
        return cli_fail(app, "local_io", NULL, "%s: %s", folder, tkc_errno_text(errno));
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    while (!bad) {
        bad = sync_and_tell(app, folder);
        if (bad || !cli_given(app, "every"))
            break;
        if (!cli_rest(app, cli_ms_of((double)cli_int(app, "every")), &err))
            bad = cli_stop_signal() ? cli_stop_exit() : cli_fail_error(app, &err, NULL);
    }
    return bad;
}
