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

static char *self_cell(const cli_app *app, const json_t *item, bool people)
{
    (void)app, (void)people;
    return strdup(json_string_value(item));
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
        cli_pager_add(p, json_string(id));
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
        char *title = cli_list_title("session", (int64_t)json_array_size(p.items), 0, "");
        cli_list spec = {
            .key = "sessions", .title = title, .columns = cli_session_columns, .total = -1
        };
        bad = cli_print_list(app, &spec, p.items);
        free(title);
    }
    json_decref(p.items);
    return bad;
}

static json_t *texts(const char *const *list)
{
    json_t *out = json_array();
    for (; list && *list; list++)
        json_array_append_new(out, json_string(*list));
    return out;
}

static void rows_of(json_t *rows, const char *label, const char *const *list)
{
    for (; list && *list; list++)
        cli_row(rows, label, *list);
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
        json_t *rows = json_array();
        json_t *v = json_pack("{s:s,s:o,s:o}", "session_id", app->args[0], "training_run_ids",
                              texts(s->training_run_ids), "sampler_ids", texts(s->sampler_ids));
        cli_row(rows, "Session ID", app->args[0]);
        rows_of(rows, "Training Run", s->training_run_ids);
        rows_of(rows, "Sampler", s->sampler_ids);
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
        json_t *v = json_pack("{s:s,s:s}", "session_id", app->args[0], "project_id", project);
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
    json_t *rows = json_array();
    json_t *v =
        json_pack("{s:s,s:o}", "session_id", app->args[0], "destination", cli_json_text(target));
    if (bytes > 0)
        json_object_set_new(v, "file_size_bytes", json_integer(bytes));
    cli_format_size(bytes, size);
    cli_row(rows, "Session ID", app->args[0]);
    cli_row(rows, "Saved to", target);
    cli_row(rows, "Size", size);
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
        json_t *v = json_pack("{s:s,s:s}", "session_id", app->args[0], "url", url);
        if (app->format == CLI_JSON)
            bad = cli_print_json(app, v);
        else
            puts(url);
        json_decref(v);
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
static json_t *model_json(const cli_app *app, const char *name, const tinkc_model *m)
{
    static const char *const keys[] = { "model_name", "max_context_length", "trainable",
                                        "sampleable" };
    if (app->compat && m) {
        json_t *sent = cli_record_json(m->json);
        json_t *out = cli_in_order(app, sent, keys, sizeof keys / sizeof *keys);
        json_decref(sent);
        return out;
    }
    int64_t context = m ? m->max_context_length : 0;
    const cli_model_facts *f = cli_model_find(name);
    double rate = cli_model_suggested_rate(name);
    json_t *v = json_pack("{s:s}", "model_name", name);
    json_object_set_new(v, "max_context_length", context ? json_integer(context) : json_null());
    json_object_set_new(v, "kind", f ? json_string(f->kind) : json_null());
    json_object_set_new(v, "renderer", f && f->renderer ? json_string(f->renderer) : json_null());
    json_object_set_new(v, "hidden_size", f ? json_integer(f->hidden) : json_null());
    json_object_set_new(v, "suggested_lr", rate > 0 ? json_real(rate) : json_null());
    return v;
}

static char *rate_cell(const cli_app *app, const json_t *item, bool people)
{
    (void)app;
    const json_t *rate = json_object_get(item, "suggested_lr");
    char text[CLI_SHORT_TEXT];
    if (!json_is_real(rate))
        return NULL;
    if (people)
        return cli_printf("%.2g", json_real_value(rate));
    cli_format_number(json_real_value(rate), text);
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
    json_t *items = json_array();
    const char *part = app->n_args ? app->args[0] : NULL;
    size_t total = tinkc_capabilities_count(all), limit = (size_t)cli_int(app, "limit");
    for (size_t i = (size_t)cli_int(app, "offset"); i < total; i++) {
        const tinkc_model *m = tinkc_capabilities_at(all, i);
        bool known = cli_model_find(m->name) != NULL;
        json_t *item = model_json(app, m->name, m);
        bad = bad ? bad : cli_check_keys(app, item);
        if ((known || !cli_flag(app, "supported")) && cli_passes(app, item) &&
            (!part || strcasestr(m->name, part)) && (!limit || json_array_size(items) < limit))
            json_array_append(items, item);
        json_decref(item);
    }
    cli_arrange(app, items);
    bad = bad ? bad : cli_check_filters(app);
    if (!bad && part && json_array_size(items) == 0) {
        bad = cli_fail(app, "not_found", "see all of them: tinkc model list",
                       "no model of this service has '%s' in its name", part);
    } else if (!bad) {
        char *title = cli_list_title("model", (int64_t)json_array_size(items), (int64_t)total, "");
        cli_list spec = {
            .key = "models", .title = title, .columns = cli_model_columns, .total = (int64_t)total
        };
        bad = cli_print_list(app, &spec, items);
        free(title);
    }
    json_decref(items);
    tinkc_future_free(f);
    return bad;
}

static void add_parameters(const cli_app *app, json_t *v, json_t *rows, const cli_model_facts *m)
{
    char text[CLI_SHORT_TEXT];
    json_object_set_new(v, "lora_params_per_rank", json_null());
    if (!m || !m->mlp)
        return;
    json_object_set_new(v, "lora_params_per_rank",
                        json_pack("{s:I,s:I,s:I}", "mlp", (json_int_t)m->mlp, "attn",
                                  (json_int_t)m->attn, "unembed", (json_int_t)m->unembed));
    int64_t rank = cli_int(app, "rank");
    char label[64];
    (void)snprintf(label, sizeof label, "LoRA parameters at rank %lld", (long long)rank);
    int64_t all = rank * (m->mlp + m->attn + m->unembed);
    cli_format_count(all, text);
    cli_row(rows, label, text);
    cli_format_size(CLI_ADAPTER_BYTES * all, text);
    cli_row(rows, "Memory of its training", text);
}

/* The recommended one first; `renderers` is there even when it is empty. */
static void add_renderers(json_t *v, json_t *rows, const cli_model_facts *m)
{
    json_t *names = json_array();
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const char *name;
    for (size_t i = 0; f && m && (name = cli_model_renderer(m, i)); i++) {
        json_array_append_new(names, json_string(name));
        fprintf(f, "%s%s", i ? ", " : "", name);
    }
    if (f)
        fclose(f);
    cli_row(rows, "Renderers", json_array_size(names) ? text : NULL);
    json_object_set_new(v, "renderers", names);
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
        bad = cli_print_done(app, json_pack("{s:s, s:s}", "name", name, "folder", app->args[1]),
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
    json_t *v = model_json(app, name, m), *rows = json_array();
    char text[CLI_SHORT_TEXT];
    double rate = cli_model_suggested_rate(name);
    cli_row(rows, "Model", name);
    cli_row(rows, "Offered", m ? "Yes" : "No");
    (void)snprintf(text, sizeof text, "%lld", m ? (long long)m->max_context_length : 0);
    cli_row(rows, "Context", m && m->max_context_length ? text : NULL);
    cli_row(rows, "Kind", facts ? facts->kind : NULL);
    add_renderers(v, rows, facts);
    (void)snprintf(text, sizeof text, "%lld", facts ? (long long)facts->hidden : 0);
    cli_row(rows, "Hidden Size", facts ? text : NULL);
    cli_format_number(rate, text);
    cli_row(rows, "Suggested LR (LoRA)", rate > 0 ? text : NULL);
    rate = facts ? cli_model_rate(name, facts->hidden, false) : 0;
    cli_format_number(rate, text);
    cli_row(rows, "Suggested LR (full)", rate > 0 ? text : NULL);
    tinkc_text repo = { 0 }, revision = { 0 };
    json_object_set_new(v, "tokenizer", json_null());
    if (tinkc_tokenizer_resolve(name, NULL, &repo, &revision, NULL) && repo.len) {
        cli_row(rows, "Tokenizer", repo.data);
        json_object_set_new(v, "tokenizer", json_string(repo.data));
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
        json_t *rows = json_array();
        json_t *v = json_pack("{s:s,s:s,s:s?}", "sampler_id", s->sampler_id, "base_model",
                              s->base_model, "model_path", s->model_path);
        cli_row(rows, "Sampler ID", s->sampler_id);
        cli_row(rows, "Base Model", s->base_model);
        cli_row(rows, "Model Path", s->model_path);
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
    json_t *rows = json_array(), *v = json_pack("{s:n,s:n,s:n}", "user_urn", "org_urn", "email");
    cli_row(rows, "User", "unknown: an API key does not name a user");
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
        json_t *rows = json_array();
        json_t *v = json_pack("{s:s,s:s?,s:s?}", "user_urn", me->user_urn, "org_urn",
                              me->org_urn && *me->org_urn ? me->org_urn : NULL, "email", me->email);
        cli_row(rows, "User", me->user_urn);
        cli_row(rows, "Organization", me->org_urn);
        cli_row(rows, "Email", me->email);
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
static json_t *audit_day(cli_app *app, const char *day, tinkc_error *err)
{
    static const char *const keys[] = { "timestamp", "event", "model_id", "tinker_path",
                                        "purpose" };
    tinkc_future *f = tinkc_audit_get(app->client, cli_text(app, "type"), day, err);
    json_t *items = NULL;
    if (cli_wait(app, f, "audit log", err)) {
        const tinkc_audit *log = tinkc_future_audit(f, 0, err);
        items = json_array();
        for (size_t i = 0; i < tinkc_audit_count(log); i++) {
            json_t *sent = cli_record_json(tinkc_audit_at(log, i)->json);
            json_array_append_new(items, cli_in_order(app, sent, keys, 5));
            json_decref(sent);
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
    json_t *items = audit_day(app, day, &err);
    if (!items)
        return cli_fail_error(app, &err, NULL);
    json_t *head = json_pack("{s:s}", "day", day);
    char *title = cli_printf("Audit log of %s: %zu event(s)", day, json_array_size(items));
    cli_list spec = { .key = "entries",
                      .title = title,
                      .columns = cli_audit_columns,
                      .head = head,
                      .no_counts = true };
    bad = cli_print_list(app, &spec, items);
    free(title);
    json_decref(head);
    json_decref(items);
    return bad;
}

static int write_day(cli_app *app, const char *folder, const char *day, const json_t *items)
{
    char *path = cli_printf("%s/audit_log_%s.jsonl", folder, day);
    cli_save s;
    cli_save_begin(&s, path ? path : "", 0666);
    for (size_t i = 0; s.f && i < json_array_size(items); i++) {
        char *line = json_dumps(json_array_get(items, i), JSON_COMPACT | JSON_SORT_KEYS);
        fprintf(s.f, "%s\n", line ? line : "");
        free(line);
    }
    free(path);
    return cli_save_end(&s, app, true);
}

/* What was written goes to `days`: {"day", "entries"} each. */
static int sync_once(cli_app *app, const char *folder, json_t *days)
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
        json_t *items = audit_day(app, day, &err);
        if (!items)
            return cli_fail_error(app, &err, day);
        int bad = write_day(app, folder, day, items);
        if (!bad && !json)
            cli_note(app, "%s: %zu event(s)", day, json_array_size(items));
        json_array_append_new(days, json_pack("{s:s,s:I}", "day", day, "entries",
                                              (json_int_t)json_array_size(items)));
        json_decref(items);
        if (bad)
            return bad;
    }
    return 0;
}

/* Once; the result is printed as JSON where that is asked for. */
static int sync_and_tell(cli_app *app, const char *folder)
{
    json_t *days = json_array();
    int bad = sync_once(app, folder, days);
    json_t *v = json_pack("{s:o,s:o}", "directory", cli_json_text(folder), "days", days);
    if (!bad && (app->format == CLI_JSON || app->format == CLI_JSONL))
        bad = cli_print_json(app, v);
    (void)fflush(stdout); /* with --every somebody may be reading */
    json_decref(v);
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
