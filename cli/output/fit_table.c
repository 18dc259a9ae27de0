/* fit_table.c - a table for people: gives the terminal's width to what they need.
 *
 * A table that is too wide yields in this order: columns marked LINE and NOTE go below their row;
 * spare columns are left out, from the right, as long as others would become unreadable; then the
 * widest columns shrink (never the first) and their cells are cut or wrapped. Prints to stdout alone,
 * but for the note about what is left out.
 */
#include "cli/output/fit_table.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/text.h"

enum {
    GAP = 2,       /* between columns, and before a line of its own */
    LEAST = 4,     /* no column shrinks below this                  */
    READABLE = 12, /* while spare columns can be left out           */
    ARROW = 2      /* cells before a note                           */
};

typedef struct table_column {
    size_t width;
    int fit;
    bool cut_left, spare;
    bool below, hidden; /* decided by fit_table */
} table_column;

struct cli_table {
    size_t n_rows, n_columns;
    char **cells; /* row by row, the header first; escaped */
    table_column columns[CLI_MAX_COLUMNS];
};

cli_table *cli_table_new(size_t n_rows, size_t n_columns)
{
    cli_table *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->n_rows = n_rows + 1;
    t->n_columns = n_columns < CLI_MAX_COLUMNS ? n_columns : CLI_MAX_COLUMNS;
    t->cells = calloc(t->n_rows * t->n_columns + 1, sizeof *t->cells);
    if (t->cells)
        return t;
    free(t);
    return NULL;
}

void cli_table_free(cli_table *t)
{
    for (size_t i = 0; t && i < t->n_rows * t->n_columns; i++)
        free(t->cells[i]);
    if (t)
        free(t->cells);
    free(t);
}

void cli_table_column(cli_table *t, size_t column, int fit, bool cut_left, bool spare)
{
    table_column *c = &t->columns[column];
    c->fit = fit;
    c->cut_left = cut_left;
    c->spare = spare;
}

void cli_table_set(cli_table *t, size_t row, size_t column, char *text)
{
    char *safe = cli_escape(text ? text : "");
    free(text);
    t->cells[row * t->n_columns + column] = safe;
    size_t width = safe ? cli_width(safe) : 0;
    if (width > t->columns[column].width)
        t->columns[column].width = width;
}

static const char *cell_of(const cli_table *t, size_t row, size_t column)
{
    const char *text = t->cells[row * t->n_columns + column];
    return text ? text : "";
}

/* ---- fitting ---- */

static bool in_line(const table_column *c)
{
    return !c->below && !c->hidden;
}

/* The last column that stays in its row. */
static size_t last_column(const cli_table *t)
{
    size_t last = 0;
    for (size_t c = 0; c < t->n_columns; c++)
        if (in_line(&t->columns[c]))
            last = c;
    return last;
}

static size_t total_width(const cli_table *t)
{
    size_t total = 0;
    for (size_t c = 0; c < t->n_columns; c++)
        if (in_line(&t->columns[c]))
            total += t->columns[c].width + (total ? GAP : 0);
    return total;
}

/* The widest column that may shrink: not the first. 0 = none. */
static size_t widest_column(const cli_table *t, size_t except)
{
    size_t widest = 0;
    for (size_t c = 1; c < t->n_columns; c++)
        if (in_line(&t->columns[c]) && c != except &&
            (!widest || t->columns[c].width > t->columns[widest].width))
            widest = c;
    return widest;
}

/* What the columns would have if each gave all but what keeps it readable. */
static size_t readable_width(const cli_table *t)
{
    size_t total = total_width(t);
    for (size_t c = 1; c < t->n_columns; c++)
        if (in_line(&t->columns[c]) && t->columns[c].width > READABLE)
            total -= t->columns[c].width - READABLE;
    return total;
}

static void leave_out_spare(cli_table *t, size_t width)
{
    for (size_t c = t->n_columns; c-- > 1 && readable_width(t) > width;)
        t->columns[c].hidden = t->columns[c].spare && !t->columns[c].below;
}

/* Takes cells from the widest columns until the line fits. */
static void shrink(cli_table *t, size_t width)
{
    for (size_t total = total_width(t), widest; total > width; total = total_width(t)) {
        widest = widest_column(t, 0);
        if (!widest || t->columns[widest].width <= LEAST)
            return;
        size_t second = widest_column(t, widest), over = total - width;
        size_t down_to = second ? t->columns[second].width : LEAST;
        size_t step = t->columns[widest].width - (down_to > LEAST ? down_to : LEAST);
        step = step < 1 ? 1 : step > over ? over : step;
        t->columns[widest].width -= step;
    }
}

static void fit_table(cli_table *t, size_t width)
{
    if (total_width(t) <= width)
        return;
    for (size_t c = 1; c < t->n_columns; c++)
        t->columns[c].below = t->columns[c].fit >= CLI_FIT_LINE;
    leave_out_spare(t, width);
    shrink(t, width);
}

/* ---- printing ---- */

static void put_blanks(size_t n)
{
    if (n)
        printf("%*s", (int)n, "");
}

/* Prints the text in at most `width` cells, cut if it must be. Returns the cells used. */
static size_t put_cut(const cli_app *app, const char *text, size_t width, bool left)
{
    const char *dots = app->utf8 ? "…" : "~";
    size_t cells = cli_width(text);
    if (cells <= width) {
        fputs(text, stdout);
        return cells;
    }
    if (!left) {
        size_t n = cli_cut(text, width - 1);
        printf("%.*s%s", (int)n, text, dots);
        return width;
    }
    while (cli_width(text) > width - 1) /* a wide character takes two cells */
        text += cli_cut(text, 1) ? cli_cut(text, 1) : cli_cut(text, 2);
    printf("%s%s", dots, text);
    return 1 + cli_width(text);
}

/* The bytes of the first line of text when it is broken after at most `width` cells: at a blank, else
 * behind a slash, else anywhere. */
static size_t line_bytes(const char *text, size_t width)
{
    size_t n = cli_cut(text, width), at = n;
    if (!text[n])
        return n;
    if (text[n] == ' ')
        return n;
    while (at && text[at - 1] != ' ')
        at--;
    for (size_t slash = n; !at && slash > 1; slash--)
        if (text[slash - 1] == '/')
            at = slash;
    return at ? at : n ? n : strlen(text);
}

/* The part of the text that its n-th line has; an empty text behind the last. */
static const char *nth_line(const char *text, size_t width, size_t n, size_t *bytes)
{
    *bytes = line_bytes(text, width);
    for (; n && *text; n--) {
        text += *bytes;
        text += strspn(text, " ");
        *bytes = line_bytes(text, width);
    }
    return text;
}

static size_t count_lines(const char *text, size_t width)
{
    size_t n = 0, bytes;
    while (*nth_line(text, width, n, &bytes))
        n++;
    return n;
}

/* A part of a text, without the blanks that it was broken at. Returns the cells used. */
static size_t put_part(const char *text, size_t bytes)
{
    while (bytes && text[bytes - 1] == ' ')
        bytes--;
    char *part = strndup(text, bytes);
    size_t cells = 0;
    if (part) {
        fputs(part, stdout);
        cells = cli_width(part);
    }
    free(part);
    return cells;
}

/* One of the lines that a row takes. */
static void put_row_line(const cli_app *app, const cli_table *t, size_t row, size_t line,
                         const char *style)
{
    size_t last = last_column(t);
    for (size_t c = 0; c <= last; c++) {
        const table_column *column = &t->columns[c];
        const char *text = cell_of(t, row, c);
        size_t bytes, used = 0;
        if (!in_line(column))
            continue;
        put_blanks(c ? GAP : 0);
        fputs(app->color ? style : "", stdout);
        if (column->fit == CLI_FIT_WRAP) {
            text = nth_line(text, column->width, line, &bytes);
            used = put_part(text, bytes);
        } else if (line == 0) {
            used = put_cut(app, text, column->width, column->cut_left);
        }
        if (c < last)
            put_blanks(column->width - used);
        fputs(app->color && *style ? "\033[0m" : "", stdout);
    }
    fputc('\n', stdout);
}

static size_t row_lines(const cli_table *t, size_t row)
{
    size_t most = 1;
    for (size_t c = 0; c < t->n_columns; c++) {
        if (!in_line(&t->columns[c]) || t->columns[c].fit != CLI_FIT_WRAP)
            continue;
        size_t n = count_lines(cell_of(t, row, c), t->columns[c].width);
        most = n > most ? n : most;
    }
    return most;
}

static void put_note(const cli_app *app, const char *text, size_t indent, size_t width)
{
    size_t room = width > indent + ARROW + LEAST ? width - indent - ARROW : LEAST, bytes;
    for (size_t n = 0;; n++) {
        const char *part = nth_line(text, room, n, &bytes);
        if (!*part)
            return;
        put_blanks(indent);
        fputs(n ? "  " : app->utf8 ? "→ " : "> ", stdout);
        put_part(part, bytes);
        fputc('\n', stdout);
    }
}

static void put_below(const cli_app *app, const cli_table *t, size_t row, size_t width)
{
    size_t indent = 0, last = last_column(t);
    for (size_t c = 0; c < last; c++)
        indent += in_line(&t->columns[c]) ? t->columns[c].width + GAP : 0;
    for (size_t c = 0; c < t->n_columns; c++) {
        const table_column *column = &t->columns[c];
        const char *text = cell_of(t, row, c);
        if (!column->below || !*text)
            continue;
        if (column->fit == CLI_FIT_NOTE) {
            put_note(app, text, indent, width);
            continue;
        }
        size_t before = column->width + GAP <= width ? GAP : 0;
        put_blanks(before);
        put_cut(app, text, width - before, column->cut_left);
        fputc('\n', stdout);
    }
}

static void put_row(const cli_app *app, const cli_table *t, size_t row, size_t width,
                    const char *style)
{
    size_t lines = row_lines(t, row);
    for (size_t i = 0; i < lines; i++)
        put_row_line(app, t, row, i, style);
    put_below(app, t, row, width);
}

static void put_rule(const cli_app *app, const cli_table *t)
{
    for (size_t c = 0; c < t->n_columns; c++) {
        if (!in_line(&t->columns[c]))
            continue;
        put_blanks(c ? GAP : 0);
        for (size_t i = 0; i < t->columns[c].width; i++)
            fputs(app->utf8 ? "─" : "-", stdout);
    }
    fputc('\n', stdout);
}

static void say_what_is_hidden(const cli_app *app, const cli_table *t)
{
    char names[200] = "";
    for (size_t c = 0; c < t->n_columns; c++)
        if (t->columns[c].hidden)
            (void)snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                           *names ? ", " : "", cell_of(t, 0, c));
    if (*names) {
        fflush(stdout);
        cli_note(app, "not shown at this width: %s (--no-trunc shows all)", names);
    }
}

void cli_table_print(const cli_app *app, cli_table *t, const char *title, size_t width)
{
    if (width)
        fit_table(t, width);
    if (title) {
        char *safe = cli_escape(title);
        printf("%s\n", safe ? safe : title);
        free(safe);
    }
    if (t->n_rows > 1 && app->headers) {
        put_row(app, t, 0, width, "\033[1m");
        put_rule(app, t);
    }
    for (size_t r = 1; r < t->n_rows; r++)
        put_row(app, t, r, width, "");
    if (t->n_rows > 1)
        say_what_is_hidden(app, t);
}
