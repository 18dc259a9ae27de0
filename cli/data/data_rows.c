/* data_rows.c - files of JSON objects, one on each line. Must not: know what the rows mean. */
#include "cli/data/data_rows.h"

#include <stdlib.h>
#include <string.h>

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
    int bad = cli_data_open(app, path, &f);
    if (bad)
        return bad;
    bad = note_path(app, paths, n_paths, path);
    cli_lines_open(&lines, &f);
    while (!bad && cli_lines_next(&lines, &line)) {
        json_error_t why;
        char text[300];
        json_t *row = json_loadb(line.data, line.len, JSON_REJECT_DUPLICATES, &why);
        if (json_is_object(row)) {
            take(user, row, line, lines.number);
        } else {
            (void)snprintf(text, sizeof text, "not a JSON object%s%s", row ? "" : ": ",
                           row ? "" : why.text);
            cli_bad_line(bad_lines, path, lines.number, "json", text);
        }
        json_decref(row);
    }
    cli_data_close(&f);
    return bad;
}
