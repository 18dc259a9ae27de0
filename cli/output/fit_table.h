/* fit_table.h - a table for people: gives the terminal's width to what they need. */
#ifndef CLI_FIT_TABLE_H
#define CLI_FIT_TABLE_H

#include "cli/main/app.h"

/* What becomes of a column when the table is wider than the terminal. */
enum {
    CLI_FIT_CUT,  /* cut, with dots at the cut                                             */
    CLI_FIT_WRAP, /* broken at blanks, over several lines                                  */
    CLI_FIT_LINE, /* never cut while a line has room: on a line of its own below the row   */
    CLI_FIT_NOTE  /* below the last column, after an arrow, wrapped; empty cells need none */
};

enum { CLI_MAX_COLUMNS = 32 };

typedef struct cli_table cli_table;

/* A table of n_rows below a header. NULL = out of memory. */
cli_table *cli_table_new(size_t n_rows, size_t n_columns);
void cli_table_free(cli_table *);
/* How a column fits. cut_left: its end says more than its beginning; spare: the first to be left out. */
void cli_table_column(cli_table *, size_t column, int fit, bool cut_left, bool spare);
/* Sets a cell (row 0 is the header) to this text, which is taken over. */
void cli_table_set(cli_table *, size_t row, size_t column, char *text);
/* Prints it in at most `width` cells a line; 0 = as wide as it is. Says on stderr what is left out. */
void cli_table_print(const cli_app *, cli_table *, const char *title, size_t width);

#endif
