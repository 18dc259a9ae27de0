/* data_rows.h - files of JSON objects, one on each line: prompts, preferences. */
#ifndef CLI_DATA_ROWS_H
#define CLI_DATA_ROWS_H

#include "cli/data/dataset.h"

/* Reads a file: `take` gets every object and the arena it ends with; other lines are reported to `bad`. *paths grows by
 * a copy of `path`. 0, or an exit code after reporting. */
typedef void cli_row_fn(void *user, tkc_arena *, const tkc_tree *row, cli_span line, size_t number);
int cli_data_rows(cli_app *, const char *path, char ***paths, size_t *n_paths, cli_bad_lines *bad,
                  cli_row_fn *take, void *user);

#endif
