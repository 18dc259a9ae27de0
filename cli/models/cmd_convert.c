/* cmd_convert.c - `tinkc data convert`: other people's formats to conversations. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/data/dataset.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/data/row_forms.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static void put(FILE *f, const tkc_tree *conversation)
{
    cli_write_json(f, conversation, 0);
    fputc('\n', f);
}

/* What goes where, and what could not. */
typedef struct conversion {
    const cli_row_form *form; /* NULL = whichever fits */
    FILE *to;
    const char *path;
    cli_bad_lines broken;
    size_t n;
    tkc_arena arena; /* of a line, or of the whole array */
} conversion;

/* `place`: which line or item it is. */
static void convert_one(conversion *c, const tkc_tree *v, size_t place)
{
    cli_row_fault why = { "" };
    const tkc_tree *conversation = v ? cli_row_conversation(&c->arena, v, c->form, &why) : NULL;
    if (!conversation) {
        cli_bad_line(&c->broken, c->path, place, v ? "form" : "json",
                     !v          ? "not JSON"
                     : *why.text ? why.text
                     : c->form   ? "not of this form"
                                 : "not of any known form");
        return;
    }
    put(c->to, conversation);
    c->n++;
}

/* A JSON array of objects, or JSON lines. */
static void convert_json(conversion *c, const char *text, size_t len)
{
    const tkc_tree *whole = tkc_tree_read(&c->arena, tkc_strn(text, len), 0);
    for (size_t i = 0; i < tkc_tree_length(whole); i++)
        convert_one(c, tkc_tree_at(whole, i), i + 1);
    bool lines = !tkc_tree_is_array(whole);
    cli_lines all = { text, text + len, 0 };
    for (cli_span line; lines && cli_lines_next(&all, &line);) {
        convert_one(c, tkc_tree_read(&c->arena, tkc_strn(line.data, line.len), 0), all.number);
        tkc_arena_reset(&c->arena);
    }
}

/* Where a paragraph ends: at a line end that an empty line follows. NULL = with the text. */
static const char *paragraph_end(const char *p)
{
    while ((p = strchr(p, '\n')) && p[1 + (p[1] == '\r')] != '\n')
        p++;
    return p;
}

/* Paragraphs: each becomes an assistant message to an empty request. */
static void convert_text(conversion *c, const char *text)
{
    for (const char *p = text + strspn(text, "\r\n"); *p; c->n++) {
        const char *end = paragraph_end(p);
        size_t n = end ? (size_t)(end - p) : strlen(p);
        while (n && strchr("\r\n", p[n - 1]))
            n--;
        char *part = strndup(p, n);
        put(c->to, tkc_tree_pack(&c->arena, "{s:[{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user",
                                 "content", "", "role", "assistant", "content", part ? part : ""));
        free(part);
        tkc_arena_reset(&c->arena);
        p = end ? end + strspn(end, "\r\n") : p + strlen(p);
    }
}

int cli_data_convert(cli_app *app)
{
    int bad;
    size_t len;
    const char *from = cli_text(app, "from"), *target = cli_text(app, "output");
    conversion c = { .path = app->args[0] };
    char *all = cli_read_all(app, app->args[0], &len, &bad);
    if (!all)
        return bad;
    bad = cli_data_refuse(app, app->args[0], all, len);
    if (bad)
        return free(all), bad;
    size_t mark = len >= 3 && memcmp(all, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    const char *text = all + mark;
    len -= mark;
    if (strcmp(from, "text") == 0 && (memchr(text, '\0', len) || !cli_is_utf8(text, len))) {
        free(all);
        return cli_fail(app, "data_invalid", NULL, "%s is not UTF-8 text", app->args[0]);
    }
    cli_save s;
    cli_save_begin(&s, target, 0666);
    c.to = s.f;
    cli_bad_lines_begin(&c.broken, app);
    c.form = cli_row_form_named(from);
    if (c.to && strcmp(from, "text") == 0)
        convert_text(&c, text);
    else if (c.to)
        convert_json(&c, text, len);
    bad = cli_bad_lines_end(&c.broken, app->args[0], "tinkc data convert --help shows the forms");
    int unsaved = cli_save_end(&s, app, !bad);
    bad = bad ? bad : unsaved;
    if (!bad && strcmp(target, "-") != 0)
        bad =
            cli_print_done(app,
                           cli_pack(app, "{s:o,s:I}", "path", cli_json_text(cli_arena(app), target),
                                    "conversations", (int64_t)c.n),
                           "%s: %zu conversation%s", target, c.n, c.n == 1 ? "" : "s");
    tkc_arena_free(&c.arena);
    free(all);
    return bad;
}

void cli_data_forms(FILE *f)
{
    fputs("Forms of rows, as JSON lines or one JSON array:\n", f);
    const char *name, *example;
    for (size_t i = 0; cli_row_form_at(i, &name, &example); i++)
        fprintf(f, "  %-11s %s\n", name, example);
    fputs("  text        paragraphs of plain text (only for convert)\n", f);
}
