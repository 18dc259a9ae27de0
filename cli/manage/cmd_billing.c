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
    json_t *events;   /* as sent, in the documented order */
    json_t *sessions; /* id -> {"user_metadata"} */
    json_t *through;  /* until when costs are known: as sent, or null */
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

static json_t *event_json(const cli_app *app, const tinkc_usage_event *e)
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
    json_t *sent = cli_record_json(e->json);
    json_t *out = newest ? cli_in_order(app, sent, now, sizeof now / sizeof *now)
                         : cli_in_order(app, sent, old, sizeof old / sizeof *old);
    json_decref(sent);
    return out;
}

static void add_sessions(usage *u, const tinkc_usage *got)
{
    for (size_t i = 0; i < tinkc_usage_session_count(got); i++) {
        const tinkc_usage_session *s = tinkc_usage_session_at(got, i);
        json_t *metadata = s->user_metadata ? json_object() : json_null();
        for (const char *const *p = s->user_metadata; p && *p; p += 2)
            json_object_set_new(metadata, p[0], json_string(p[1]));
        json_object_set_new(u->sessions, s->session_id,
                            json_pack("{s:o}", "user_metadata", metadata));
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
                json_array_append_new(u->events, event_json(app, tinkc_usage_at(got, i)));
            add_sessions(u, got);
            if (tinkc_usage_costs_through(got)) {
                json_decref(u->through);
                u->through = json_string(tinkc_usage_costs_through(got));
            }
        }
        tinkc_future_free(f);
        if (err.code)
            return cli_fail_error(app, &err, NULL);
    }
    return 0;
}

/* event_info's members beside the others: what tables and CSV show. */
static json_t *flatten(const json_t *event)
{
    json_t *out = json_object(), *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)event, key, v)
    {
        if (strcmp(key, "event_info") == 0)
            json_object_update(out, v);
        else
            json_object_set(out, key, v);
    }
    return out;
}

/* ---- sums ---- */

/* Adds the numbers of `from` to those of `into`; the members that name the group stay. */
static void add_numbers(json_t *into, json_t *from)
{
    static const char *const sums[] = { "token_count", "count", "gigabyte_hours" };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        json_t *more = json_object_get(from, sums[i]), *have = json_object_get(into, sums[i]);
        if (!json_is_number(more))
            continue;
        if (json_is_integer(more) && (!have || json_is_integer(have)))
            json_object_set_new(into, sums[i],
                                json_integer(json_integer_value(have) + json_integer_value(more)));
        else
            json_object_set_new(into, sums[i],
                                json_real(json_number_value(have) + json_number_value(more)));
    }
}

/* Every field that one of the rows has: those of the first row, then new ones of later rows. */
static json_t *fields_of(const json_t *rows)
{
    json_t *whole = json_object();
    for (size_t i = 0; i < json_array_size(rows); i++)
        json_object_update_missing(whole, json_array_get(rows, i));
    return whole;
}

/* Every row may lack what others have: a field is known if one of them has it. */
static int check_groups(const cli_app *app, const json_t *rows, const char *fields)
{
    json_t *whole = fields_of(rows);
    int bad = json_object_size(whole) ? cli_check_fields(app, whole, fields) : 0;
    json_decref(whole);
    return bad;
}

static json_t *group(const json_t *rows, const char *fields)
{
    json_t *groups = json_object(), *out = json_array(), *row;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *names = json_object(), *flat = json_array_get(rows, i);
        for (const char *p = fields; *p;) {
            size_t n = strcspn(p, ",");
            char *name = strndup(p, n);
            json_t *v = json_object_get(flat, name);
            json_object_set(names, name, v ? v : json_null());
            free(name);
            p += n + (p[n] == ',');
        }
        char *key = json_dumps(names, JSON_COMPACT);
        json_t *into = json_object_get(groups, key);
        if (!into) {
            json_object_set(groups, key, names);
            into = names;
        }
        add_numbers(into, flat);
        free(key);
        json_decref(names);
    }
    const char *key;
    json_object_foreach(groups, key, row) json_array_append(out, row);
    json_decref(groups);
    return out;
}

/* ---- output ---- */

/* A column for each of the fields, whose names are borrowed; yours. */
static cli_column *columns_of(json_t *fields)
{
    cli_column *columns = calloc(json_object_size(fields) + 1, sizeof *columns);
    const char *key;
    json_t *v;
    size_t n = 0;
    json_object_foreach(fields, key, v)
    {
        if (columns)
            columns[n++] =
                (cli_column){ .name = key, .header = key, .path = key, .is_default = true };
    }
    return columns;
}

/* Booleans as the Python command prints them. */
static json_t *python_booleans(const json_t *rows)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_copy(json_array_get(rows, i)), *v;
        const char *key;
        void *next;
        json_object_foreach_safe(row, next, key, v)
        {
            if (json_is_boolean(v))
                json_object_set_new(row, key, json_string(json_is_true(v) ? "True" : "False"));
        }
        json_array_append_new(out, row);
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
static void put_csv_cell(FILE *f, const json_t *v)
{
    char number[CLI_SHORT_TEXT];
    if (json_is_real(v))
        cli_format_number(json_real_value(v), number);
    char *text = !v || json_is_null(v) ? strdup("")
                 : json_is_string(v)   ? strdup(json_string_value(v))
                 : json_is_boolean(v)  ? strdup(json_is_true(v) ? "True" : "False")
                 : json_is_real(v)     ? strdup(number)
                                       : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    put_csv_text(f, text ? text : "");
    free(text);
}

static int write_csv(cli_app *app, const char *path, const json_t *rows)
{
    json_t *fields = fields_of(rows), *v;
    const char *key;
    size_t c = 0;
    cli_save s;
    cli_save_begin(&s, path, 0666);
    json_object_foreach(fields, key, v)
    {
        if (s.f) {
            fputs(c++ ? "," : "", s.f);
            put_csv_text(s.f, key);
        }
    }
    if (s.f)
        fputs("\r\n", s.f);
    for (size_t i = 0; s.f && i < json_array_size(rows); i++) {
        c = 0;
        json_object_foreach(fields, key, v)
        {
            fputs(c++ ? "," : "", s.f);
            put_csv_cell(s.f, json_object_get(json_array_get(rows, i), key));
        }
        fputs("\r\n", s.f);
    }
    json_decref(fields);
    int bad = cli_save_end(&s, app, true);
    if (!bad && strcmp(path, "-") != 0)
        cli_note(app, "Wrote %zu row(s) to %s", json_array_size(rows), path);
    return bad;
}

static int write_sessions(cli_app *app, const char *path, const json_t *sessions)
{
    json_t *rows = json_array(), *v;
    const char *id;
    json_object_foreach((json_t *)(uintptr_t)sessions, id, v)
    {
        json_t *metadata = json_object_get(v, "user_metadata");
        char *text = json_is_object(metadata) ? json_dumps(metadata, 0) : NULL;
        json_array_append_new(rows,
                              json_pack("{s:s,s:s?}", "session_id", id, "user_metadata", text));
        free(text);
    }
    int bad = write_csv(app, path, rows);
    json_decref(rows);
    return bad;
}

static int show(cli_app *app, const usage *u, const json_t *raw)
{
    if (app->format == CLI_JSON && !cli_given(app, "group-by")) {
        json_t *v = json_pack("{s:O,s:O}", "data", u->events, "sessions", u->sessions);
        if (app->compat == CLI_COMPAT_NEW || (!app->compat && !json_is_null(u->through)))
            json_object_set(v, "cost_data_through", u->through);
        int bad = cli_print_json(app, v);
        json_decref(v);
        return bad;
    }
    json_t *rows = app->format == CLI_JSON || app->format == CLI_JSONL
                       ? json_incref((json_t *)(uintptr_t)raw)
                       : python_booleans(raw);
    json_t *fields = fields_of(rows);
    cli_column *columns = columns_of(fields);
    size_t n = json_array_size(rows);
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
    json_decref(fields);
    json_decref(rows);
    return bad;
}

int cli_billing_usage(cli_app *app)
{
    int64_t from, to;
    usage u = { json_array(), json_object(), json_null() };
    const char *csv = cli_text(app, "csv"), *sessions_csv = cli_text(app, "sessions-csv");
    int bad = window(app, &from, &to);
    if (!bad)
        bad = cli_connect(app);
    if (!bad)
        bad = fetch(app, &u, from, to);
    json_t *rows = json_array();
    for (size_t i = 0; i < json_array_size(u.events); i++)
        json_array_append_new(rows, flatten(json_array_get(u.events, i)));
    if (!bad && cli_given(app, "group-by")) {
        bad = check_groups(app, rows, cli_text(app, "group-by"));
        json_t *sums = group(rows, cli_text(app, "group-by"));
        json_decref(rows);
        rows = sums;
    }
    if (!bad && sessions_csv)
        bad = write_sessions(app, sessions_csv, u.sessions);
    if (!bad && csv)
        bad = write_csv(app, csv, rows);
    if (!bad && !csv && !sessions_csv)
        bad = show(app, &u, rows);
    json_decref(rows);
    json_decref(u.events);
    json_decref(u.sessions);
    json_decref(u.through);
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

static json_t *storage_json(const cli_app *app, const tinkc_storage_item *item)
{
    static const char *const keys[] = { "project_id",       "org_user_urn",
                                        "user_email",       "user_name",
                                        "checkpoint_count", "size_bytes",
                                        "size_gigabytes",   "estimated_monthly_cost_usd" };
    json_t *sent = cli_record_json(item->json);
    json_t *out = cli_in_order(app, sent, keys, sizeof keys / sizeof *keys);
    json_decref(sent);
    return out;
}

/* The rate is a column of its own, in front, as the Python command has it. */
static int write_storage(cli_app *app, const char *path, const json_t *items, json_t *rate)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *row = json_pack("{s:O}", "effective_rate_usd_per_gigabyte_month", rate);
        json_object_update(row, json_array_get(items, i));
        json_array_append_new(rows, row);
    }
    int bad = write_csv(app, path, rows);
    json_decref(rows);
    return bad;
}

static int show_storage(cli_app *app, const json_t *items, json_t *rate)
{
    json_t *head = json_pack("{s:O}", "effective_rate_usd_per_gigabyte_month", rate);
    cli_list list = { .key = "data",
                      .head = head,
                      .title = json_array_size(items) ? "Current checkpoint storage"
                                                      : "No active checkpoint storage",
                      .columns = cli_storage_columns,
                      .no_counts = true };
    int bad = cli_print_list(app, &list, items);
    json_decref(head);
    return bad;
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
    json_t *items = json_array(), *rate = isnan(usd) ? json_null() : json_real(usd);
    for (size_t i = 0; i < tinkc_storage_count(all); i++)
        json_array_append_new(items, storage_json(app, tinkc_storage_at(all, i)));
    bad = csv ? write_storage(app, csv, items, rate) : show_storage(app, items, rate);
    json_decref(items);
    json_decref(rate);
    tinkc_future_free(f);
    return bad;
}
