/* out.h - results on stdout: one list or record, in the format that was asked for.
 *
 * A command passes JSON values and says which columns they have; how they look is decided
 * here: table for people, TSV for pipes, CSV, JSON, JSON lines, ids alone.
 */
#ifndef CLI_OUT_H
#define CLI_OUT_H

#include "cli/main/app.h"
#include "cli/output/fit_table.h"

/* NUMBER: people see three digits of a fraction. */
enum { CLI_CELL_TEXT, CLI_CELL_SIZE, CLI_CELL_TIME, CLI_CELL_BOOL, CLI_CELL_NUMBER };

struct cli_column {
    const char *name;   /* for --columns; NULL ends a list                       */
    const char *header; /* as people read it                                     */
    const char *path;   /* dotted path into the item                             */
    const char *none;   /* shown for null or absent; NULL = ""                   */
    /* Instead of path: makes the text (yours to allocate; NULL = none). `people` is true for
     * tables, false for TSV and CSV. */
    char *(*cell)(const cli_app *, const tkc_tree *item, bool people);
    int kind;        /* CLI_CELL_* of what path gives                         */
    bool cut_left;   /* a path: its end says more than its beginning          */
    bool is_default; /* shown when --columns was not given                    */
    bool spare;      /* left out of a table that is too wide, unless asked for */
    bool is_id;      /* --format id prints it instead of the first            */
    bool is_name;    /* given by people: in tables by default, if any item has one */
    int fit;         /* CLI_FIT_* (fit_table.h)                                   */
};

typedef struct cli_list {
    const char *key;   /* of the array in JSON: "runs"                            */
    const char *title; /* above the table; NULL = none                            */
    const cli_column *columns;
    tkc_tree *head; /* members before the array in JSON (borrowed), or NULL    */
    int64_t total;  /* at the service; -1 = not known, and then left out       */
    bool no_counts; /* neither total_count nor shown_count in JSON             */
} cli_list;

/* Looks at --columns before anything is asked of the service. 0; an exit code after reporting; or
 * -1 after `--columns help` was answered. */
int cli_check_columns(const cli_app *);

/* Prints the items (an array, borrowed). 0, or an exit code after reporting (unknown column). */
int cli_print_list(const cli_app *, const cli_list *, const tkc_tree *items);

/* Whether the item, and so its kind, has this member (dotted path). 0, or an exit code after
 * reporting with the known ones. The second takes a list with commas. */
int cli_check_field(const cli_app *, const tkc_tree *item, const char *name);
int cli_check_fields(const cli_app *, const tkc_tree *item, const char *names);

/* JSON lines need not wait for the rest of a list: true if the item (borrowed) was printed now, and
 * is not to be given to cli_print_list. False when all must be there first: other formats, or an
 * order was asked for. *bad is an exit code after reporting (unknown field). */
bool cli_print_early(const cli_app *, const tkc_tree *item, int *bad);

/* A record: in JSON the object (borrowed); else two columns, Property and Value. `rows` is an
 * array of [label, text] pairs (borrowed). */
int cli_print_record(const cli_app *, const char *title, const tkc_tree *rows,
                     const tkc_tree *object);
/* The same with a title that is taken over; NULL = none. */
int cli_show_record(const cli_app *, char *title, tkc_tree *rows, tkc_tree *object);
/* Adds a row; value NULL = left out. */
void cli_row(const cli_app *, tkc_tree *rows, const char *label, const char *value);
void cli_row_time(const cli_app *, tkc_tree *rows, const char *label, const char *time);

/* What a command without a natural result says: a line on stderr; in JSON the object on stdout. */
int cli_print_done(const cli_app *, tkc_tree *object, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* One JSON value: indent 2, or 0 for one line. Keys in order, UTF-8 as it is, shortest numbers. */
void cli_write_json(FILE *, const tkc_tree *, int indent);
/* On one line, numbers with as few digits as they need. Yours; NULL = out of memory. */
char *cli_json_dump(const tkc_tree *);
/* As tkc_tree_write has it. Yours; NULL = there is no value, or no memory. */
char *cli_json_print(const tkc_tree *, int how);
/* Why a text is not JSON, for a sentence that says it is not. */
const char *cli_json_why(const tinkc_error *);
/* Writes it to a file in place of what was there; false if that failed. */
bool cli_json_save(const char *path, const tkc_tree *, int how);
/* What a file holds; NULL with err (NULL allowed) set if it cannot be read, or holds neither object nor
 * array. */
tkc_tree *cli_json_load(tkc_arena *, const char *path, tinkc_error *err);
/* As Python's json module writes it; indent 0: on one line. */
void cli_write_python_json(FILE *, const tkc_tree *, int indent);
/* A result, or the fields of it that --json names. 0, or an exit code after reporting an unknown field. */
int cli_print_json(const cli_app *, const tkc_tree *);
int cli_print_json_to(const cli_app *, FILE *, const tkc_tree *);
/* A JSON string of any text: bytes that are not UTF-8, which a file name may have, are escaped. */
tkc_tree *cli_json_text(tkc_arena *, const char *);

/* Text of a model's or the service's making; on a terminal its control characters (but tabs and
 * line ends) are shown, not obeyed. */
void cli_put_text(const cli_app *, FILE *, const char *text, size_t len);

/* A time of the service's ("2026-01-01T00:00:00Z") in the style asked for. Yours. */
char *cli_time_text(const cli_app *, const char *time, bool people);
/* The member at a dotted path; NULL = none. */
const tkc_tree *cli_json_at(const tkc_tree *, const char *path);
/* Replaces the times under these keys (list), at any depth, by RFC 3339 (or the Python form). */
void cli_normalise_times(const cli_app *, tkc_tree *, const char *const *keys);

/* Flushes stdout and checks it. The exit code to leave with: `code`, or that of a full disk. */
int cli_finish_output(const cli_app *, int code);

#endif
