/* cmd_billing.c - `tinkc billing`: usage by the hour, storage now; as table, JSON or CSV files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/output/list.h"
#include "cli/output/records.h"
#include "cli/output/text.h"

#define HOUR_US  INT64_C(3600000000)
#define PIECE_US (14 * 24 * HOUR_US) /* the service answers at most so much at once */

typedef struct usage {
    tkc_tree *events;   /* as sent, in the documented order */
    tkc_tree *sessions; /* id -> {"user_metadata"} */
    tkc_tree *through;  /* until when costs are known: as sent, or null */
} usage;

/* The two ends, rounded to the hour: the last 24 whole hours unless given. */
static int window(cli_app *app, int64_t *from, int64_t *to)
{
    int64_t now = cli_now_us();
    *to = now - now % HOUR_US;
    if (app->n_args > 1 && !cli_parse_date(app->args[1], now, to))
        return cli_fail(app, "usage", NULL, "not a date: '%s'", app->args[1]);
    *to -= *to % HOUR_US;
    *from = *to - 24 * HOUR_US;
    if (app->n_args > 0 && !cli_parse_date(app->args[0], now, from))
        return cli_fail(app, "usage", NULL, "not a date: '%s'", app->args[0]);
    *from -= *from % HOUR_US;
    if (*from >= *to)
        return cli_fail(app, "usage", NULL, "the window is empty: it ends before it begins");
    return 0;
}

static tkc_tree *event_json(const cli_app *app, const tinkc_usage_event *e)
{
    static const char *const old[] = { "bucket_start", "bucket_end", "base_model", "user_id",
                                       "user_name",    "session_id", "project_id", "event_info" };
    static const char *const now[] = { "bucket_start",
                                       "bucket_end",
                                       "base_model",
                                       "user_id",
                                       "user_name",
                                       "session_id",
                                       "project_id",
                                       "estimated_cost_usd",
                                       "effective_rate_usd_per_million_tokens",
                                       "effective_rate_usd_per_gigabyte_month",
                                       "event_info" };
    bool newest = app->compat == CLI_COMPAT_NEW;
    tkc_tree *sent = cli_record_json(cli_arena(app), e->json);
    tkc_tree *out = newest ? cli_in_order(app, cli_arena(app), sent, now, sizeof now / sizeof *now)
                           : cli_in_order(app, cli_arena(app), sent, old, sizeof old / sizeof *old);
    return out;
}

static void add_sessions(const cli_app *app, usage *u, const tinkc_usage *got)
{
    for (size_t i = 0; i < tinkc_usage_session_count(got); i++) {
        const tinkc_usage_session *s = tinkc_usage_session_at(got, i);
        tkc_tree *metadata = s->user_metadata ? cli_object(app) : tkc_tree_null();
        for (const char *const *p = s->user_metadata; p && *p; p += 2)
            tkc_tree_set_text(metadata, p[0], p[1]);
        tkc_tree_set(u->sessions, s->session_id, cli_pack(app, "{s:o}", "user_metadata", metadata));
    }
}

static int fetch(cli_app *app, usage *u, int64_t from, int64_t to)
{
    for (int64_t at = from; at < to; at += PIECE_US) {
        char start[CLI_SHORT_TEXT], end[CLI_SHORT_TEXT];
        tinkc_error err = { 0 };
        cli_format_iso(at, start);
        cli_format_iso(at + PIECE_US < to ? at + PIECE_US : to, end);
        tinkc_future *f = tinkc_usage_get(app->client, start, end, &err);
        if (cli_wait(app, f, "usage", &err)) {
            const tinkc_usage *got = tinkc_future_usage(f, 0, &err);
            for (size_t i = 0; i < tinkc_usage_count(got); i++)
                tkc_tree_add(u->events, event_json(app, tinkc_usage_at(got, i)));
            add_sessions(app, u, got);
            if (tinkc_usage_costs_through(got))
                u->through = tkc_tree_new_text(cli_arena(app), tinkc_usage_costs_through(got));
        }
        tinkc_future_free(f);
        if (err.code)
            return cli_fail_error(app, &err, NULL);
    }
    return 0;
}

/* event_info's members beside the others: what tables and CSV show. */
static tkc_tree *flatten(const cli_app *app, const tkc_tree *event)
{
    tkc_tree *out = cli_object(app), *v;
    const char *key;
    TKC_TREE_EACH (event, key, v) {
        if (strcmp(key, "event_info") == 0)
            tkc_tree_update(out, v);
        else
            tkc_tree_set(out, key, v);
    }
    return out;
}

/* ---- sums ---- */

/* Adds the numbers of `from` to those of `into`; the members that name the group stay. */
static void add_numbers(tkc_tree *into, tkc_tree *from)
{
    static const char *const sums[] = { "token_count", "count", "gigabyte_hours" };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        tkc_tree *more = tkc_tree_get(from, sums[i]), *have = tkc_tree_get(into, sums[i]);
        if (!tkc_tree_is_number(more))
            continue;
        if (tkc_tree_is_i64(more) && (!have || tkc_tree_is_i64(have)))
            tkc_tree_set_i64(into, sums[i], tkc_tree_i64(have) + tkc_tree_i64(more));
        else
            tkc_tree_set_real(into, sums[i], tkc_tree_number(have) + tkc_tree_number(more));
    }
}

/* Every field that one of the rows has: those of the first row, then new ones of later rows. */
static tkc_tree *fields_of(const cli_app *app, const tkc_tree *rows)
{
    tkc_tree *whole = cli_object(app);
    for (size_t i = 0; i < tkc_tree_length(rows); i++)
        tkc_tree_update_missing(whole, tkc_tree_at(rows, i));
    return whole;
}

/* Every row may lack what others have: a field is known if one of them has it. */
static int check_groups(const cli_app *app, const tkc_tree *rows, const char *fields)
{
    tkc_tree *whole = fields_of(app, rows);
    return tkc_tree_members(whole) ? cli_check_fields(app, whole, fields) : 0;
}

static tkc_tree *group(const cli_app *app, const tkc_tree *rows, const char *fields)
{
    tkc_tree *groups = cli_object(app), *out = cli_array(app), *row;
    for (size_t i = 0; i < tkc_tree_length(rows); i++) {
        tkc_tree *names = cli_object(app), *flat = tkc_tree_at(rows, i);
        for (const char *p = fields; *p;) {
            size_t n = strcspn(p, ",");
            char *name = strndup(p, n);
            tkc_tree *v = tkc_tree_get(flat, name);
            tkc_tree_set(names, name, v ? v : tkc_tree_null());
            free(name);
            p += n + (p[n] == ',');
        }
        char *key = cli_json_print(names, TKC_TREE_COMPACT);
        tkc_tree *into = tkc_tree_get(groups, key);
        if (!into) {
            tkc_tree_set(groups, key, names);
            into = names;
        }
        add_numbers(into, flat);
        free(key);
    }
    const char *key;
    TKC_TREE_EACH (groups, key, row)
        tkc_tree_add(out, row);
    return out;
}

/* ---- output ---- */

/* A column for each of the fields, whose names are borrowed; yours. */
static cli_column *columns_of(const tkc_tree *fields)
{
    cli_column *columns = calloc(tkc_tree_members(fields) + 1, sizeof *columns);
    const char *key;
    tkc_tree *v;
    size_t n = 0;
    TKC_TREE_EACH (fields, key, v) {
        if (columns)
            columns[n++] =
                (cli_column){ .name = key, .header = key, .path = key, .is_default = true };
    }
    return columns;
}

/* Booleans as the Python command prints them. */
static tkc_tree *python_booleans(const cli_app *app, const tkc_tree *rows)
{
    tkc_tree *out = cli_array(app);
    for (size_t i = 0; i < tkc_tree_length(rows); i++) {
        tkc_tree *row = tkc_tree_copy(cli_arena(app), tkc_tree_at(rows, i)), *v;
        const char *key;
        TKC_TREE_EACH (row, key, v) {
            if (tkc_tree_is_bool(v))
                tkc_tree_set_text(row, key, tkc_tree_is_true(v) ? "True" : "False");
        }
        tkc_tree_add(out, row);
    }
    return out;
}

static void put_csv_text(FILE *f, const char *text)
{
    bool quote = strpbrk(text, ",\"\r\n");
    fputs(quote ? "\"" : "", f);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', f);
        fputc(*text, f);
    }
    fputs(quote ? "\"" : "", f);
}

/* As Python's csv writes it: the shortest text of a number that reads back as the same number. */
static void put_csv_cell(FILE *f, const tkc_tree *v)
{
    char number[CLI_SHORT_TEXT];
    if (tkc_tree_is_real(v))
        cli_format_number(tkc_tree_number(v), number);
    char *text = !v || tkc_tree_is_null(v) ? strdup("")
                 : tkc_tree_is_text(v)     ? strdup(tkc_tree_text(v))
                 : tkc_tree_is_bool(v)     ? strdup(tkc_tree_is_true(v) ? "True" : "False")
                 : tkc_tree_is_real(v)     ? strdup(number)
                                           : cli_json_print(v, TKC_TREE_COMPACT);
    put_csv_text(f, text ? text : "");
    free(text);
}

static int write_csv(cli_app *app, const char *path, const tkc_tree *rows)
{
    tkc_tree *fields = fields_of(app, rows), *v;
    const char *key;
    size_t c = 0;
    cli_save s;
    cli_save_begin(&s, path, 0666);
    TKC_TREE_EACH (fields, key, v) {
        if (s.f) {
            fputs(c++ ? "," : "", s.f);
            put_csv_text(s.f, key);
        }
    }
    if (s.f)
        fputs("\r\n", s.f);
    for (size_t i = 0; s.f && i < tkc_tree_length(rows); i++) {
        c = 0;
        TKC_TREE_EACH (fields, key, v) {
            fputs(c++ ? "," : "", s.f);
            put_csv_cell(s.f, tkc_tree_get(tkc_tree_at(rows, i), key));
        }
        fputs("\r\n", s.f);
    }
    int bad = cli_save_end(&s, app, true);
    if (!bad && strcmp(path, "-") != 0)
        cli_note(app, "Wrote %zu row(s) to %s", tkc_tree_length(rows), path);
    return bad;
}

static int write_sessions(cli_app *app, const char *path, const tkc_tree *sessions)
{
    tkc_tree *rows = cli_array(app), *v;
    const char *id;
    TKC_TREE_EACH (sessions, id, v) {
        tkc_tree *metadata = tkc_tree_get(v, "user_metadata");
        char *text =
            tkc_tree_is_object(metadata) ? cli_json_print(metadata, TKC_TREE_SPACED) : NULL;
        tkc_tree_add(rows, cli_pack(app, "{s:s,s:s?}", "session_id", id, "user_metadata", text));
        free(text);
    }
    return write_csv(app, path, rows);
}

static int show(cli_app *app, const usage *u, const tkc_tree *raw)
{
    if (app->format == CLI_JSON && !cli_given(app, "group-by")) {
        tkc_tree *v = cli_pack(app, "{s:o,s:o}", "data", u->events, "sessions", u->sessions);
        if (app->compat == CLI_COMPAT_NEW || (!app->compat && !tkc_tree_is_null(u->through)))
            tkc_tree_set(v, "cost_data_through", u->through);
        return cli_print_json(app, v);
    }
    const tkc_tree *rows =
        app->format == CLI_JSON || app->format == CLI_JSONL ? raw : python_booleans(app, raw);
    tkc_tree *fields = fields_of(app, rows);
    cli_column *columns = columns_of(fields);
    size_t n = tkc_tree_length(rows);
    char *title =
        n ? cli_printf("%zu %susage row(s)", n, cli_given(app, "group-by") ? "" : "hourly ")
          : strdup("No billing usage in this window");
    cli_list list = { .key = "data", .title = title, .columns = columns, .no_counts = true };
    int bad = 0;
    if (!columns)
        bad = cli_fail(app, "internal", NULL, "out of memory");
    else if (n)
        bad = cli_print_list(app, &list, rows);
    else
        cli_note(app, "%s", title);
    free(title);
    free(columns);
    return bad;
}

int cli_billing_usage(cli_app *app)
{
    int64_t from, to;
    usage u = { cli_array(app), cli_object(app), tkc_tree_null() };
    const char *csv = cli_text(app, "csv"), *sessions_csv = cli_text(app, "sessions-csv");
    int bad = window(app, &from, &to);
    if (!bad)
        bad = cli_connect(app);
    if (!bad)
        bad = fetch(app, &u, from, to);
    tkc_tree *rows = cli_array(app);
    for (size_t i = 0; i < tkc_tree_length(u.events); i++)
        tkc_tree_add(rows, flatten(app, tkc_tree_at(u.events, i)));
    if (!bad && cli_given(app, "group-by")) {
        bad = check_groups(app, rows, cli_text(app, "group-by"));
        tkc_tree *sums = group(app, rows, cli_text(app, "group-by"));
        rows = sums;
    }
    if (!bad && sessions_csv)
        bad = write_sessions(app, sessions_csv, u.sessions);
    if (!bad && csv)
        bad = write_csv(app, csv, rows);
    if (!bad && !csv && !sessions_csv)
        bad = show(app, &u, rows);
    return bad;
}

/* ---- storage ---- */

const cli_column cli_storage_columns[] = {
    { .name = "project", .header = "Project", .path = "project_id", .is_default = true },
    { .name = "owner", .header = "Owner", .path = "org_user_urn", .is_default = true },
    { .name = "checkpoints",
      .header = "Checkpoints",
      .path = "checkpoint_count",
      .is_default = true },
    { .name = "size",
      .header = "Size",
      .path = "size_bytes",
      .kind = CLI_CELL_SIZE,
      .is_default = true },
    { .name = "usd",
      .header = "USD per Month",
      .path = "estimated_monthly_cost_usd",
      .is_default = true },
    { .name = "email", .header = "Email", .path = "user_email" },
    { .name = "name", .header = "Name", .path = "user_name" },
    { .name = "gigabytes", .header = "Gigabytes", .path = "size_gigabytes" },
    { 0 }
};

static tkc_tree *storage_json(const cli_app *app, const tinkc_storage_item *item)
{
    static const char *const keys[] = { "project_id",       "org_user_urn",
                                        "user_email",       "user_name",
                                        "checkpoint_count", "size_bytes",
                                        "size_gigabytes",   "estimated_monthly_cost_usd" };
    tkc_tree *sent = cli_record_json(cli_arena(app), item->json);
    tkc_tree *out = cli_in_order(app, cli_arena(app), sent, keys, sizeof keys / sizeof *keys);
    return out;
}

/* The rate is a column of its own, in front, as the Python command has it. */
static int write_storage(cli_app *app, const char *path, const tkc_tree *items, tkc_tree *rate)
{
    tkc_tree *rows = cli_array(app);
    for (size_t i = 0; i < tkc_tree_length(items); i++) {
        tkc_tree *row = cli_pack(app, "{s:o}", "effective_rate_usd_per_gigabyte_month", rate);
        tkc_tree_update(row, tkc_tree_at(items, i));
        tkc_tree_add(rows, row);
    }
    return write_csv(app, path, rows);
}

static int show_storage(cli_app *app, const tkc_tree *items, tkc_tree *rate)
{
    tkc_tree *head = cli_pack(app, "{s:o}", "effective_rate_usd_per_gigabyte_month", rate);
    cli_list list = { .key = "data",
                      .head = head,
                      .title = tkc_tree_length(items) ? "Current checkpoint storage"
                                                      : "No active checkpoint storage",
                      .columns = cli_storage_columns,
                      .no_counts = true };
    return cli_print_list(app, &list, items);
}

int cli_billing_storage(cli_app *app)
{
    tinkc_error err = { 0 };
    const char *csv = cli_text(app, "csv");
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_future *f = tinkc_storage_get(app->client, cli_text(app, "project-id"), &err);
    if (!cli_wait(app, f, "storage", &err)) {
        tinkc_future_free(f);
        return cli_fail_error(app, &err, NULL);
    }
    const tinkc_storage *all = tinkc_future_storage(f, 0, &err);
    double usd = tinkc_storage_usd_per_gigabyte_month(all);
    tkc_tree *items = cli_array(app),
             *rate = isnan(usd) ? tkc_tree_null() : tkc_tree_new_real(cli_arena(app), usd);
    for (size_t i = 0; i < tinkc_storage_count(all); i++)
        tkc_tree_add(items, storage_json(app, tinkc_storage_at(all, i)));
    bad = csv ? write_storage(app, csv, items, rate) : show_storage(app, items, rate);
    tinkc_future_free(f);
    return bad;
}
