/* out.c - results on stdout, in every format. Must not: ask the service anything. */
#include "cli/output/out.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/platform.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* ---- JSON ---- */

/* How JSON is written. step: spaces that a level is set in, 0 = all on one line. python: as its json
 * module does it, ASCII alone and a space after each mark on one line too. */
typedef struct layout {
    int step;
    bool python;
} layout;

/* One character from beyond ASCII as \uXXXX, or two of them; its bytes are counted into *i. */
static void write_escaped(FILE *f, const char *s, size_t len, size_t *i)
{
    unsigned char c = (unsigned char)s[*i];
    int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
    unsigned code = c & (0x3Fu >> more);
    for (; more > 0 && *i + 1 < len; more--)
        code = code << 6 | ((unsigned char)s[++*i] & 0x3Fu);
    if (code >= 0x10000)
        fprintf(f, "\\u%04x", 0xD800 + ((code - 0x10000) >> 10));
    fprintf(f, "\\u%04x", code >= 0x10000 ? 0xDC00 + (code & 0x3FF) : code);
}

static void write_string(FILE *f, const char *s, size_t len, bool python)
{
    fputc('"', f);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (python && (c == '\b' || c == '\f'))
            fputs(c == '\b' ? "\\b" : "\\f", f);
        else if (python && c == 0x7F)
            fputc(c, f);
        else if (python && c >= 0x80)
            write_escaped(f, s, len, &i);
        else if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", f);
        else if (c == '\t')
            fputs("\\t", f);
        else if (c == '\r')
            fputs("\\r", f);
        else if (c < 0x20 || c == 0x7F)
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void new_line(FILE *f, int indent)
{
    if (indent >= 0)
        fprintf(f, "\n%*s", indent, "");
}

static void write_value(FILE *f, const tkc_tree *v, int indent, layout how);

static const char *comma(layout how)
{
    return how.python && !how.step ? ", " : ",";
}

static void write_members(FILE *f, const tkc_tree *v, int indent, layout how)
{
    const char *key;
    tkc_tree *member;
    bool first = true;
    TKC_TREE_EACH (v, key, member) {
        fputs(first ? "" : comma(how), f);
        new_line(f, indent);
        write_string(f, key, strlen(key), how.python);
        fputs(how.step || how.python ? ": " : ":", f);
        write_value(f, member, indent, how);
        first = false;
    }
}

static void write_value(FILE *f, const tkc_tree *v, int indent, layout how)
{
    char number[CLI_SHORT_TEXT];
    int inner = indent >= 0 ? indent + how.step : -1;
    switch (v ? tkc_tree_kind(v) : TKC_TREE_NULL) {
    case TKC_TREE_OBJECT:
        fputc('{', f);
        write_members(f, v, inner, how);
        if (tkc_tree_members(v))
            new_line(f, indent);
        fputc('}', f);
        break;
    case TKC_TREE_ARRAY:
        fputc('[', f);
        for (size_t i = 0; i < tkc_tree_length(v); i++) {
            fputs(i ? comma(how) : "", f);
            new_line(f, inner);
            write_value(f, tkc_tree_at(v, i), inner, how);
        }
        if (tkc_tree_length(v))
            new_line(f, indent);
        fputc(']', f);
        break;
    case TKC_TREE_TEXT:
        write_string(f, tkc_tree_text(v), tkc_tree_str(v).len, how.python);
        break;
    case TKC_TREE_I64:
        fprintf(f, "%lld", (long long)tkc_tree_i64(v));
        break;
    case TKC_TREE_REAL:
        cli_format_number(tkc_tree_number(v), number);
        fputs(number, f);
        break;
    case TKC_TREE_BOOL:
        fputs(tkc_tree_is_true(v) ? "true" : "false", f);
        break;
    default:
        fputs("null", f);
    }
}

void cli_write_json(FILE *f, const tkc_tree *v, int indent)
{
    write_value(f, v, indent ? 0 : -1, (layout){ .step = indent });
}

char *cli_json_dump(const tkc_tree *v)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    cli_write_json(f, v, 0);
    return fclose(f) == 0 ? text : NULL;
}

char *cli_json_print(const tkc_tree *v, int how)
{
    tkc_arena arena = { 0 };
    const char *text = tkc_tree_print(&arena, v, how);
    char *copy = text ? strdup(text) : NULL;
    tkc_arena_free(&arena);
    return copy;
}

const char *cli_json_why(const tinkc_error *err)
{
    return tkc_starts_with(tkc_str(err->message), "JSON: ") ? err->message + 6 : err->message;
}

bool cli_json_save(const char *path, const tkc_tree *v, int how)
{
    char *text = cli_json_print(v, how);
    FILE *f = text ? fopen(path, "we") : NULL;
    bool ok = f && fputs(text, f) >= 0;
    free(text);
    return f && fclose(f) == 0 && ok;
}

tkc_tree *cli_json_load(tkc_arena *arena, const char *path, tinkc_error *err)
{
    tkc_arena file = { 0 };
    tinkc_error quiet = { 0 };
    tkc_tree *v = NULL;
    err = err ? err : &quiet;
    tinkc_bytes text = tkc_read_file(&file, path, SIZE_MAX / 2, err);
    if (!err->code) {
        v = tkc_tree_parse(arena, tkc_strn((const char *)text.data, text.len), 0, err);
        (void)tkc_fail_before(err, "%s: not ", path);
    }
    tkc_arena_free(&file);
    return v;
}

void cli_write_python_json(FILE *f, const tkc_tree *v, int indent)
{
    write_value(f, v, indent ? 0 : -1, (layout){ indent, true });
}

static void print_whole(const cli_app *app, FILE *f, const tkc_tree *v)
{
    int indent = app->format == CLI_JSONL ? 0 : 2;
    if (app->compat)
        cli_write_python_json(f, v, indent);
    else
        cli_write_json(f, v, indent);
    fputc('\n', f);
}

const tkc_tree *cli_json_at(const tkc_tree *v, const char *path)
{
    char part[128];
    const tkc_tree *whole = tkc_tree_get(v, path); /* a key with dots in it */
    if (whole)
        return whole;
    while (v && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof part)
            return NULL;
        memcpy(part, path, n);
        part[n] = '\0';
        v = tkc_tree_get(v, part);
        path += n + (path[n] == '.');
    }
    return v;
}

/* Only the fields of --json=a,b.c, if it names some; a dotted path keeps its nesting. */
static const tkc_tree *picked(const cli_app *app, tkc_arena *arena, const tkc_tree *item)
{
    if (!app->fields || !tkc_tree_is_object(item))
        return item;
    tkc_tree *out = tkc_tree_object(arena);
    for (const char *p = app->fields; *p;) {
        size_t n = strcspn(p, ",");
        char name[128];
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        const tkc_tree *found = cli_json_at(item, name);
        tkc_tree_set(out, name, found ? found : tkc_tree_null());
        p += n + (p[n] == ',');
    }
    return out;
}

/* Whether items of this kind may have the member: what lies below a null, or among the user's own
 * metadata, is not known from one item. */
static bool may_have(const tkc_tree *item, const char *path)
{
    if (tkc_tree_get(item, path)) /* a key with dots in it */
        return true;
    for (const tkc_tree *v = item; *path;) {
        char part[128];
        size_t n = strcspn(path, ".");
        (void)snprintf(part, sizeof part, "%.*s", (int)n, path);
        if (tkc_tree_is_null(v))
            return true;
        v = tkc_tree_get(v, part);
        if (!v)
            return false;
        if (strcmp(part, "user_metadata") == 0)
            return true;
        path += n + (path[n] == '.');
    }
    return true;
}

int cli_check_field(const cli_app *app, const tkc_tree *item, const char *name)
{
    char known[400] = "", hint[500];
    if (!tkc_tree_is_object(item) || may_have(item, name))
        return 0;
    size_t at = 0;
    const char *key;
    tkc_tree *member;
    TKC_TREE_EACH (item, key, member) {
        int n = snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", key);
        at = n < 0 || (size_t)n >= sizeof known - at ? sizeof known - 1 : at + (size_t)n;
    }
    (void)snprintf(hint, sizeof hint, "known fields: %s", known);
    return cli_fail(app, "usage", hint, "unknown field '%s'", name);
}

static int check_fields(const cli_app *app, const tkc_tree *item)
{
    return app->fields ? cli_check_fields(app, item, app->fields) : 0;
}

int cli_check_fields(const cli_app *app, const tkc_tree *item, const char *fields)
{
    int bad = 0;
    for (const char *p = fields; *p && !bad;) {
        char name[128];
        size_t n = strcspn(p, ",");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        bad = cli_check_field(app, item, name);
        p += n + (p[n] == ',');
    }
    return bad;
}

int cli_print_json_to(const cli_app *app, FILE *f, const tkc_tree *v)
{
    int bad = tkc_tree_is_object(v) ? check_fields(app, v) : 0;
    if (bad)
        return bad;
    tkc_arena arena = { 0 };
    print_whole(app, f, picked(app, &arena, v));
    tkc_arena_free(&arena);
    return 0;
}

int cli_print_json(const cli_app *app, const tkc_tree *v)
{
    return cli_print_json_to(app, stdout, v);
}

void cli_put_text(const cli_app *app, FILE *f, const char *text, size_t len)
{
    bool people = (f == stdout && app->stdout_tty) || (f == stderr && app->stderr_tty);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        bool second = c == 0xC2 && i + 1 < len && (unsigned char)text[i + 1] < 0xA0;
        if (people && ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F || second))
            fprintf(f, "\\x%02x", second ? (unsigned char)text[++i] : c);
        else
            fputc(c, f);
    }
}

/* ---- cells ---- */

char *cli_time_text(const cli_app *app, const char *time, bool people)
{
    char out[CLI_SHORT_TEXT];
    int64_t us;
    if (!time || !*time)
        return people ? strdup("N/A") : strdup("");
    if (!cli_parse_date(time, 0, &us))
        return strdup(time);
    int style = people || cli_given(app, "time") ? app->time_style : CLI_TIME_ISO;
    if (style == CLI_TIME_RELATIVE)
        cli_format_relative(us, cli_now_us(), out);
    else if (style == CLI_TIME_LOCAL)
        cli_format_local(us, out);
    else if (style == CLI_TIME_EPOCH)
        (void)snprintf(out, sizeof out, "%lld", (long long)(us / 1000000));
    else
        cli_format_iso(us, out);
    return strdup(out);
}

static char *size_text(const tkc_tree *v, bool people)
{
    char out[CLI_SHORT_TEXT];
    if (!people)
        return cli_printf("%lld", (long long)tkc_tree_i64(v));
    cli_format_size(tkc_tree_i64(v), out);
    return strdup(out);
}

static char *plain_text(const tkc_tree *v)
{
    return tkc_tree_is_text(v) ? strdup(tkc_tree_text(v)) : cli_json_dump(v);
}

/* 12.4, 0.0571, 9.5e-05; and whole from 100 up. */
static char *three_digits(double v)
{
    return cli_printf(fabs(v) >= 100 && fabs(v) < 1e15 ? "%.0f" : "%.3g", v);
}

/* Of a value that is not null. */
static char *value_text(const cli_app *app, const cli_column *c, const tkc_tree *v, bool people)
{
    if (c->kind == CLI_CELL_TIME)
        return cli_time_text(app, tkc_tree_text(v), people);
    if (c->kind == CLI_CELL_SIZE)
        return size_text(v, people);
    if (c->kind == CLI_CELL_BOOL && people)
        return strdup(tkc_tree_is_true(v) ? "Yes" : "No");
    if (c->kind == CLI_CELL_NUMBER && people && tkc_tree_is_real(v))
        return three_digits(tkc_tree_number(v));
    return plain_text(v);
}

static char *cell_text(const cli_app *app, const cli_column *c, const tkc_tree *item, bool people)
{
    const tkc_tree *v = c->cell ? NULL : cli_json_at(item, c->path);
    char *text = c->cell                     ? c->cell(app, item, people)
                 : v && !tkc_tree_is_null(v) ? value_text(app, c, v, people)
                                             : NULL;
    return text ? text : strdup(people && c->none ? c->none : "");
}

/* ---- columns ---- */

static int unknown_column(const cli_app *app, const cli_column *columns, const char *name)
{
    char hint[400] = "available: ";
    for (const cli_column *c = columns; c->name; c++)
        (void)snprintf(hint + strlen(hint), sizeof hint - strlen(hint), "%s%s",
                       c == columns ? "" : ", ", c->name);
    return cli_fail(app, "usage", hint, "unknown column '%s'", name);
}

/* Room for what choose_columns chooses: all that there are, or as many as --columns takes; yours. */
static const cli_column **column_room(const cli_column *all)
{
    size_t n = 0;
    while (all[n].name)
        n++;
    return calloc(n > CLI_MAX_COLUMNS ? n : CLI_MAX_COLUMNS, sizeof(const cli_column *));
}

/* 0, or an exit code after reporting; *n = 0 with `--columns help` answered. */
static int choose_columns(const cli_app *app, const cli_column *all, const cli_column **chosen,
                          size_t *n)
{
    const char *names =
        cli_find_option(app->command, "columns", 7) ? cli_text(app, "columns") : NULL;
    *n = 0;
    if (!names) {
        for (const cli_column *c = all; c->name; c++)
            if (c->is_default || (c->is_name && app->format == CLI_TABLE))
                chosen[(*n)++] = c;
        return 0;
    }
    if (strcmp(names, "help") == 0) {
        for (const cli_column *c = all; c->name; c++)
            printf("%s\t%s\n", c->name, c->header);
        return 0;
    }
    for (const char *p = names; *p;) {
        size_t len = strcspn(p, ",");
        char name[64];
        const char *from = p;
        size_t m = len;
        while (m && *from == ' ')
            from++, m--;
        while (m && from[m - 1] == ' ')
            m--;
        (void)snprintf(name, sizeof name, "%.*s", (int)m, from);
        const cli_column *found = NULL;
        for (const cli_column *c = all; c->name && !found; c++)
            found = strcmp(c->name, name) == 0 ? c : NULL;
        if (!found)
            return unknown_column(app, all, name);
        if (*n == CLI_MAX_COLUMNS)
            return cli_fail(app, "usage", NULL, "--columns takes at most %d names",
                            CLI_MAX_COLUMNS);
        chosen[(*n)++] = found;
        p += len + (p[len] == ',');
    }
    return *n ? 0 : unknown_column(app, all, names);
}

/* ---- tables ---- */

/* Takes out the names that no item has; how many columns are left. */
static size_t drop_nameless(const cli_app *app, const cli_column **columns, size_t n,
                            const tkc_tree *items)
{
    size_t kept = 0;
    for (size_t c = 0; c < n; c++) {
        bool any = !columns[c]->is_name;
        for (size_t r = 0; r < tkc_tree_length(items) && !any; r++) {
            char *text = cell_text(app, columns[c], tkc_tree_at(items, r), true);
            any = text && *text;
            free(text);
        }
        if (any)
            columns[kept++] = columns[c];
    }
    return kept;
}

static int print_table(const cli_app *app, const cli_list *list, const cli_column **columns,
                       size_t n, const tkc_tree *items)
{
    bool asked = cli_find_option(app->command, "columns", 7) && cli_given(app, "columns");
    if (!asked)
        n = drop_nameless(app, columns, n, items);
    size_t left_out = n > CLI_MAX_COLUMNS ? n - CLI_MAX_COLUMNS : 0;
    cli_table *t = cli_table_new(tkc_tree_length(items), n -= left_out);
    if (!t)
        return cli_fail(app, "internal", NULL, "out of memory");
    for (size_t c = 0; c < n; c++) {
        cli_table_column(t, c, columns[c]->fit, columns[c]->cut_left, columns[c]->spare && !asked);
        cli_table_set(t, 0, c, strdup(columns[c]->header));
        for (size_t r = 0; r < tkc_tree_length(items); r++)
            cli_table_set(t, r + 1, c, cell_text(app, columns[c], tkc_tree_at(items, r), true));
    }
    cli_table_print(app, t, list->title, app->truncate ? cli_term_width(app) : 0);
    cli_table_free(t);
    if (left_out)
        cli_note(app, "%zu more columns are not shown: --format csv has all of them", left_out);
    return 0;
}

/* ---- separated values ---- */

static void put_tsv(const char *text)
{
    for (; *text; text++) {
        if (*text == '\t')
            fputs("\\t", stdout);
        else if (*text == '\n')
            fputs("\\n", stdout);
        else if (*text == '\r')
            fputs("\\r", stdout);
        else
            fputc(*text, stdout);
    }
}

static void put_csv(const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    fputc('"', stdout);
    for (; *text; text++)
        fputs(*text == '"' ? "\"\"" : (char[2]){ *text, '\0' }, stdout);
    fputc('"', stdout);
}

static void put_separated(const cli_app *app, const char *text, bool first)
{
    bool csv = app->format == CLI_CSV;
    if (!first)
        fputc(csv ? ',' : '\t', stdout);
    if (csv)
        put_csv(text);
    else
        put_tsv(text);
}

/* The columns of --format id: the one that other commands take, else the first. */
static size_t keep_id(const cli_app *app, const cli_column **columns, size_t n)
{
    bool asked = cli_find_option(app->command, "columns", 7) && cli_given(app, "columns");
    for (size_t c = 1; !asked && c < n; c++)
        if (columns[c]->is_id)
            columns[0] = columns[c];
    return n ? 1 : 0;
}

static void print_separated(const cli_app *app, const cli_column **columns, size_t n,
                            const tkc_tree *items)
{
    bool headers = app->headers && app->format != CLI_ID;
    if (app->format == CLI_ID)
        n = keep_id(app, columns, n);
    for (size_t c = 0; headers && c < n; c++)
        put_separated(app, columns[c]->header, c == 0);
    if (headers && n)
        fputc('\n', stdout);
    for (size_t r = 0; r < tkc_tree_length(items); r++) {
        for (size_t c = 0; c < n; c++) {
            char *text = cell_text(app, columns[c], tkc_tree_at(items, r), false);
            put_separated(app, text ? text : "", c == 0);
            free(text);
        }
        fputc('\n', stdout);
    }
}

/* ---- lists and records ---- */

static void print_line(const cli_app *app, const tkc_tree *item)
{
    tkc_arena arena = { 0 };
    cli_write_json(stdout, picked(app, &arena, item), 0);
    tkc_arena_free(&arena);
    fputc('\n', stdout);
}

bool cli_print_early(const cli_app *app, const tkc_tree *item, int *bad)
{
    bool ordered = cli_find_option(app->command, "sort", 4) &&
                   (cli_given(app, "sort") || cli_flag(app, "reverse"));
    *bad = 0;
    if (app->format != CLI_JSONL || ordered)
        return false;
    *bad = check_fields(app, item);
    if (!*bad)
        print_line(app, item);
    return true;
}

static int print_json_list(const cli_app *app, const cli_list *list, const tkc_tree *items)
{
    int bad = check_fields(app, tkc_tree_at(items, 0));
    if (bad)
        return bad;
    for (size_t i = 0; app->format == CLI_JSONL && i < tkc_tree_length(items); i++)
        print_line(app, tkc_tree_at(items, i));
    if (app->format == CLI_JSONL)
        return 0;
    tkc_tree *shown = cli_array(app);
    for (size_t i = 0; i < tkc_tree_length(items); i++)
        tkc_tree_add(shown, picked(app, cli_arena(app), tkc_tree_at(items, i)));
    tkc_tree *whole = list->head ? tkc_tree_copy(cli_arena(app), list->head) : cli_object(app);
    size_t n = tkc_tree_length(shown);
    tkc_tree_set(whole, list->key, shown);
    if (!list->no_counts && !app->compat) {
        if (list->total >= 0)
            tkc_tree_set_i64(whole, "total_count", list->total);
        tkc_tree_set_i64(whole, "shown_count", (int64_t)n);
    }
    print_whole(app, stdout, whole);
    return 0;
}

int cli_check_columns(const cli_app *app)
{
    const cli_column *all = app->command->columns;
    const cli_column **chosen = all ? column_room(all) : NULL;
    size_t n = 1;
    int bad = chosen ? choose_columns(app, all, chosen, &n) : 0;
    free(chosen);
    return bad ? bad : n ? 0 : -1;
}

int cli_print_list(const cli_app *app, const cli_list *list, const tkc_tree *items)
{
    const cli_column **columns = column_room(list->columns);
    size_t n = 0;
    int bad = columns ? choose_columns(app, list->columns, columns, &n)
                      : cli_fail(app, "internal", NULL, "out of memory");
    cli_progress_clear();
    if (bad || n == 0)
        ;
    else if (app->format == CLI_JSON || app->format == CLI_JSONL)
        bad = print_json_list(app, list, items);
    else if (app->format == CLI_TABLE)
        bad = print_table(app, list, columns, n, items);
    else
        print_separated(app, columns, n, items);
    free(columns);
    return bad;
}

tkc_tree *cli_json_text(tkc_arena *arena, const char *text)
{
    tkc_tree *v = tkc_tree_new_text(arena, text);
    if (v || !text)
        return v ? v : tkc_tree_null();
    char *safe = cli_escape(text);
    v = tkc_tree_new_text(arena, safe ? safe : "");
    free(safe);
    return v;
}

void cli_row(const cli_app *app, tkc_tree *rows, const char *label, const char *value)
{
    if (value)
        tkc_tree_add(rows, cli_pack(app, "[o,o]", cli_json_text(cli_arena(app), label),
                                    cli_json_text(cli_arena(app), value)));
}

void cli_row_time(const cli_app *app, tkc_tree *rows, const char *label, const char *time)
{
    char *text = cli_time_text(app, time, app->format == CLI_TABLE);
    cli_row(app, rows, label, text ? text : "");
    free(text);
}

static char *row_cell(const tkc_tree *item, size_t i)
{
    const char *text = tkc_tree_text(tkc_tree_at(item, i));
    return strdup(text ? text : "");
}
static char *label_cell(const cli_app *app, const tkc_tree *item, bool people)
{
    (void)app, (void)people;
    return row_cell(item, 0);
}
static char *value_cell(const cli_app *app, const tkc_tree *item, bool people)
{
    (void)app, (void)people;
    return row_cell(item, 1);
}

int cli_print_record(const cli_app *app, const char *title, const tkc_tree *rows,
                     const tkc_tree *object)
{
    static const cli_column columns[] = {
        { .name = "property", .header = "Property", .cell = label_cell, .is_default = true },
        { .name = "value",
          .header = "Value",
          .cell = value_cell,
          .fit = CLI_FIT_WRAP,
          .is_default = true },
        { 0 }
    };
    cli_progress_clear();
    if (app->format == CLI_JSON || app->format == CLI_JSONL)
        return cli_print_json(app, object);
    const cli_column *both[] = { &columns[0], &columns[1] };
    cli_list list = { .title = title, .columns = columns };
    if (app->format == CLI_TABLE)
        return print_table(app, &list, both, 2, rows);
    print_separated(app, both, 2, rows);
    return 0;
}

int cli_show_record(const cli_app *app, char *title, tkc_tree *rows, tkc_tree *object)
{
    int bad = cli_print_record(app, title, rows, object);
    free(title);
    return bad;
}

int cli_print_done(const cli_app *app, tkc_tree *object, const char *format, ...)
{
    int bad = 0;
    char line[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!app->compat && (app->format == CLI_JSON || app->format == CLI_JSONL))
        bad = cli_print_json(app, object);
    else if (!app->compat)
        cli_note(app, "%s", line);
    return bad;
}

static bool listed(const char *const *keys, const char *key)
{
    for (; *keys; keys++)
        if (strcmp(*keys, key) == 0)
            return true;
    return false;
}

void cli_normalise_times(const cli_app *app, tkc_tree *v, const char *const *keys)
{
    const char *key;
    tkc_tree *member;
    if (tkc_tree_is_array(v))
        for (size_t i = 0; i < tkc_tree_length(v); i++)
            cli_normalise_times(app, tkc_tree_at(v, i), keys);
    TKC_TREE_EACH (v, key, member) {
        char out[CLI_SHORT_TEXT];
        int64_t us;
        if (listed(keys, key) && tkc_tree_is_text(member) &&
            cli_parse_date(tkc_tree_text(member), 0, &us)) {
            if (app->compat)
                cli_format_python_time(us, out);
            else
                cli_format_iso(us, out);
            tkc_tree_set_text(v, key, out);
        } else {
            cli_normalise_times(app, member, keys);
        }
    }
}

int cli_finish_output(const cli_app *app, int code)
{
    cli_progress_clear();
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return code ? code
                : cli_fail(app, "local_io", NULL, "standard output: %s", tkc_errno_text(errno));
}
