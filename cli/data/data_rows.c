/* data_rows.c - files of JSON objects, one on each line. Must not: know what the rows mean. */
#include "cli/data/data_rows.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"

static int note_path(const cli_app *app, char ***paths, size_t *n, const char *path)
{
    char *copy = strdup(path);
    char **grown = copy ? realloc(*paths, (*n + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(copy);
        return cli_fail(app, "internal", NULL, "out of memory");
    }
    *paths = grown;
    grown[(*n)++] = copy;
    return 0;
}

int cli_data_rows(cli_app *app, const char *path, char ***paths, size_t *n_paths,
                  cli_bad_lines *bad_lines, cli_row_fn *take, void *user)
{
    cli_data_file f;
    cli_lines lines;
    cli_span line;
    tkc_arena arena = { 0 };
    int bad = cli_data_open(app, path, &f);
    if (bad)
        return bad;
    bad = note_path(app, paths, n_paths, path);
    cli_lines_open(&lines, &f);
    while (!bad && cli_lines_next(&lines, &line)) {
        tinkc_error why = { 0 };
        char text[480];
        const tkc_tree *row =
            tkc_tree_parse(&arena, tkc_strn(line.data, line.len), TKC_TREE_UNIQUE, &why);
        if (tkc_tree_is_object(row)) {
            take(user, &arena, row, line, lines.number);
        } else {
            (void)snprintf(text, sizeof text, "not a JSON object%s%s", row ? "" : ": ",
                           row ? "" : cli_json_why(&why));
            cli_bad_line(bad_lines, path, lines.number, "json", text);
        }
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    cli_data_close(&f);
    return bad;
}
