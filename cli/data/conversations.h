/* conversations.h - the conversations of a file, checked and rendered on all cores, block after block in
 * the order of the file. */
#ifndef CLI_CONVERSATIONS_H
#define CLI_CONVERSATIONS_H

#include "cli/data/examples.h"

/* One problem, as cli_problem_fn gets it; lines are counted from 1 at the block's beginning. */
typedef struct cli_said {
    char *message;
    const char *code;
    size_t line;
    int level;
} cli_said;

typedef struct cli_block {
    cli_span text;  /* whole lines of the file */
    size_t n_lines; /* blank ones too */
    cli_said *said;
    size_t n_said, cap_said;
    size_t n_broken; /* conversations that cannot be trained on */
    size_t n_good;   /* conversations that can be trained on, and what they have together */
    cli_convo sum;
    size_t n_turning; /* of them, with more than one answer */
    uint64_t *hashes; /* of their lines: one each, where the reading asks for them */
    size_t cap_hashes;
    cli_examples set; /* with a tokenizer; lines counted as above */
    bool no_memory;   /* something is missing in here */
} cli_block;

typedef struct cli_convos {
    cli_app *app;
    const cli_data_file *file;
    const char *label;              /* of the progress bar */
    const cli_example_options *how; /* without a tokenizer nothing is rendered */
    bool hashes;
    /* Gets each block in order, on the caller's thread; `before` lines precede it. It may move
     * the examples away. */
    void (*deliver)(cli_block *, size_t before, void *user);
    void *user;
} cli_convos;

/* Reads all of it. Says in *lines how many there are. 0, or an exit code after reporting that there
 * is no memory. */
int cli_convos_read(const cli_convos *, size_t *lines);

#endif
