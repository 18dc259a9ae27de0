/* dataset.h - conversation files: JSON lines of {"messages": [...]}, checked line by line. */
#ifndef CLI_DATASET_H
#define CLI_DATASET_H

#include "cli/main/app.h"
#include "cli/data/json_scan.h"

enum { CLI_LEVEL_ERROR, CLI_LEVEL_WARNING };

/* Called for every problem found. */
typedef void cli_problem_fn(const char *file, size_t line, int level, const char *code,
                            const char *message, void *user);

typedef struct cli_data_file {
    char *path;
    char *text; /* the whole file, mapped or read */
    size_t len;
    bool mapped;
    size_t n_lines, n_conversations, n_errors, n_warnings;
} cli_data_file;

/* Reads a file ("-" = stdin). 0, or an exit code after reporting. */
int cli_data_open(cli_app *, const char *path, cli_data_file *out);
/* Refuses Parquet, Arrow, compressed files and tables, and says what to do: an exit code, 0 = none of
 * these. */
int cli_data_refuse(cli_app *, const char *path, const char *text, size_t len);
void cli_data_close(cli_data_file *);

/* The next line that is not blank: its text and number; false at the end. */
typedef struct cli_lines {
    const char *at, *end;
    size_t number;
} cli_lines;
void cli_lines_open(cli_lines *, const cli_data_file *);
bool cli_lines_next(cli_lines *, cli_span *line);

/* Facts about one conversation that the check finds on its way. */
typedef struct cli_convo {
    size_t n_messages, n_assistant, n_user, n_system, n_tool;
    size_t n_trainable; /* messages that have the key */
    bool reasoning;     /* a thinking part, or a <think> in a text */
    bool tools;         /* are offered */
    bool calls, bare;   /* a message calls tools; one of these says nothing else */
} cli_convo;

/* Checks one line. True if it can be trained on (warnings allowed). `customized`: every message
 * must have "trainable". */
bool cli_check_conversation(const char *file, size_t number, cli_span line, bool customized,
                            cli_convo *facts, cli_problem_fn *fn, void *user);

#endif
