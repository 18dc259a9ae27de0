/* list.c - filters, order and titles of lists. Must not: ask the service anything. */
#include "cli/output/list.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/term.h"
#include "cli/output/text.h"

tinkc_list_options cli_list_options(const cli_app *app)
{
    const char *scope = cli_text(app, "access-scope");
    return (tinkc_list_options){
        /* With filters the limit counts what passes, so more may have to be fetched. */
        .limit = cli_given(app, "filter") ? 0 : cli_int(app, "limit"),
        .offset = cli_int(app, "offset"),
        .project_id = cli_text(app, "project"),
        .scope = scope && strcmp(scope, "accessible") == 0 ? TINKC_ACCESSIBLE : TINKC_OWNED,
    };
}

tkc_tree *cli_record_json(tkc_arena *arena, tinkc_str json)
{
    tkc_tree *value = tkc_tree_read(arena, json, 0);
    return value ? value : tkc_tree_object(arena);
}

/* ---- filters ---- */

typedef struct filter {
    char key[128];
    char op[3];
    const char *value;
} filter;

static bool parse_filter(const char *text, filter *out)
{
    size_t n = strcspn(text, "=!<>~");
    if (n == 0 || n >= sizeof out->key || !text[n] || (text[n] == '!' && text[n + 1] != '='))
        return false;
    memcpy(out->key, text, n);
    out->key[n] = '\0';
    size_t len = text[n] == '!' ? 2 : 1;
    (void)snprintf(out->op, sizeof out->op, "%.*s", (int)len, text + n);
    out->value = text + n + len;
    return true;
}

static char *value_text(const tkc_tree *v)
{
    char number[CLI_SHORT_TEXT];
    switch (v ? tkc_tree_kind(v) : TKC_TREE_NULL) {
    case TKC_TREE_TEXT:
        return strdup(tkc_tree_text(v));
    case TKC_TREE_I64:
        return cli_printf("%lld", (long long)tkc_tree_i64(v));
    case TKC_TREE_REAL:
        cli_format_number(tkc_tree_number(v), number);
        return strdup(number);
    case TKC_TREE_BOOL:
        return strdup(tkc_tree_is_true(v) ? "true" : "false");
    default:
        return strdup("");
    }
}

/* The member that a key names: itself, or what the column of that name shows. */
static const char *field_of(const cli_app *app, const tkc_tree *item, const char *key)
{
    const cli_column *c = tkc_tree_get(item, key) ? NULL : app->command->columns;
    for (; c && c->name; c++)
        if (c->path && strcmp(c->name, key) == 0)
            return c->path;
    return key;
}

/* Sessions are texts, not objects: whatever the key, the text is meant. */
static const tkc_tree *member(const cli_app *app, const tkc_tree *item, const char *key)
{
    return tkc_tree_is_text(item) ? item : cli_json_at(item, field_of(app, item, key));
}

/* Numbers as numbers, times as times, all else as text. */
static int compare(const char *a, const char *b)
{
    double x, y;
    int64_t s, t;
    if (cli_parse_number(a, &x) && cli_parse_number(b, &y))
        return x < y ? -1 : x > y;
    if (cli_parse_date(a, cli_now_us(), &s) && cli_parse_date(b, cli_now_us(), &t))
        return s < t ? -1 : s > t;
    return strcmp(a, b);
}

/* A member that is missing or empty equals "" and is neither less nor greater than anything. */
static bool matches(const cli_app *app, const tkc_tree *item, const filter *f)
{
    char *text = value_text(member(app, item, f->key));
    bool yes = false;
    if (text && f->op[0] == '~')
        yes = fnmatch(f->value, text, 0) == 0;
    else if (text) {
        int order = compare(text, f->value);
        yes = f->op[0] == '='   ? order == 0
              : f->op[0] == '!' ? order != 0
              : f->op[0] == '<' ? *text && order < 0
                                : *text && order > 0;
    }
    free(text);
    return yes;
}

int cli_check_filters(const cli_app *app)
{
    filter f;
    for (size_t k = 0; cli_text_at(app, "filter", k); k++)
        if (!parse_filter(cli_text_at(app, "filter", k), &f))
            return cli_fail(app, "usage", "KEY=VALUE, or with != < > ~",
                            "--filter: '%s' is not KEY=VALUE", cli_text_at(app, "filter", k));
    return 0;
}

int cli_check_keys(const cli_app *app, const tkc_tree *item)
{
    filter f;
    const char *sort = cli_text(app, "sort");
    int bad = sort ? cli_check_field(app, item, field_of(app, item, sort)) : 0;
    for (size_t k = 0; !bad && cli_text_at(app, "filter", k); k++)
        if (parse_filter(cli_text_at(app, "filter", k), &f))
            bad = cli_check_field(app, item, field_of(app, item, f.key));
    return bad;
}

bool cli_passes(const cli_app *app, const tkc_tree *item)
{
    filter f;
    for (size_t k = 0; cli_text_at(app, "filter", k); k++)
        if (parse_filter(cli_text_at(app, "filter", k), &f) && !matches(app, item, &f))
            return false;
    return true;
}

/* ---- order ---- */

typedef struct sortable {
    char *text;
    tkc_tree *item;
    size_t place; /* equal items keep their places */
} sortable;

static int by_text(const void *a, const void *b)
{
    const sortable *x = a, *y = b;
    int order = compare(x->text ? x->text : "", y->text ? y->text : "");
    return order ? order : x->place < y->place ? -1 : 1;
}

static void sort_items(const cli_app *app, tkc_tree *items, const char *key)
{
    size_t n = tkc_tree_length(items);
    sortable *all = calloc(n + 1, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        tkc_tree *item = tkc_tree_at(items, i);
        all[i] = (sortable){ value_text(member(app, item, key)), item, i };
    }
    if (all)
        qsort(all, n, sizeof *all, by_text);
    for (size_t i = 0; all && i < n; i++) {
        tkc_tree_put(items, i, all[i].item);
        free(all[i].text);
    }
    free(all);
}

static void reverse_items(tkc_tree *items)
{
    for (size_t i = 0, n = tkc_tree_length(items); i < n; i++) {
        tkc_tree *item = tkc_tree_at(items, i);
        tkc_tree_take_out(items, i);
        tkc_tree_insert(items, 0, item);
    }
}

void cli_arrange(const cli_app *app, tkc_tree *items)
{
    const char *key = cli_text(app, "sort");
    if (key)
        sort_items(app, items, key);
    if (cli_flag(app, "reverse"))
        reverse_items(items);
}

char *cli_list_title(const char *singular, int64_t shown, int64_t total, const char *suffix)
{
    char more[96] = "";
    if (shown == 0)
        return cli_printf("No %ss found%s", singular, suffix);
    if (total > shown)
        (void)snprintf(more, sizeof more, " (%lld more not shown, use --limit to see more)",
                       (long long)(total - shown));
    return cli_printf("%lld %s%s%s%s", (long long)shown, singular, shown == 1 ? "" : "s", suffix,
                      more);
}

/* ---- paths ---- */

void cli_free_paths(char **paths)
{
    for (size_t i = 0; paths && paths[i]; i++)
        free(paths[i]);
    free(paths);
}

static bool add_path(char ***paths, size_t *n, const char *text, size_t len)
{
    char **grown = realloc(*paths, (*n + 2) * sizeof *grown);
    if (!grown)
        return false;
    *paths = grown;
    grown[*n] = strndup(text, len);
    grown[++*n] = NULL;
    return grown[*n - 1] != NULL;
}

char **cli_paths(cli_app *app, int *bad)
{
    char **paths = calloc(1, sizeof *paths);
    size_t n = 0;
    *bad = paths ? 0 : CLI_EXIT_FAILED;
    for (size_t i = 0; i < app->n_args && !*bad; i++) {
        if (strcmp(app->args[i], "-") != 0) {
            add_path(&paths, &n, app->args[i], strlen(app->args[i]));
            continue;
        }
        size_t len;
        char *text = cli_read_all(app, "-", &len, bad);
        for (const char *p = text; p && *p;) {
            size_t line = strcspn(p, "\r\n");
            if (line)
                add_path(&paths, &n, p, line);
            p += line + strspn(p + line, "\r\n");
        }
        free(text);
    }
    for (size_t i = 0; i < n && !*bad; i++) {
        tinkc_path parsed;
        tinkc_error err = { 0 };
        if (!tinkc_path_parse(paths[i], &parsed, &err))
            *bad = cli_fail(app, "usage", "paths look like tinker://RUN/weights/NAME",
                            "invalid checkpoint path: %s", paths[i]);
    }
    if (*bad) {
        cli_free_paths(paths);
        return NULL;
    }
    return paths;
}
