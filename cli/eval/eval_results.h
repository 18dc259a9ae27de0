/* eval_results.h - an evaluation on disk: trajectories.jsonl and result.json, in the cookbook's form. */
#ifndef CLI_EVAL_RESULTS_H
#define CLI_EVAL_RESULTS_H

#include <tinkc/recipes.h>

#include "cli/main/app.h"

typedef struct cli_eval_row { /* one answer */
    char *example_id;
    char *text;   /* the last answer */
    char *prompt; /* the last thing that was asked, or "" */
    char *answer; /* or NULL */
    char *error;  /* or NULL */
    double reward;
    bool truncated;
} cli_eval_row;

typedef struct cli_eval {
    char *name;
    cli_eval_row *rows; /* one for each example and sample: the last that was written */
    size_t n, cap;
    tkc_arena arena;  /* of places */
    tkc_tree *places; /* "SAMPLE EXAMPLE_ID" -> its place in rows */
} cli_eval;

typedef struct cli_eval_example { /* an example that has graded answers */
    const cli_eval_row *first;    /* of them */
    size_t n, right;
    double mean; /* of their rewards */
} cli_eval_example;

/* One line of trajectories.jsonl: answer number `sample` to the example. */
tkc_tree *cli_eval_line(tkc_arena *, const char *benchmark, size_t index, const char *example_id,
                        size_t sample, const tinkc_rollout *);
/* Reads a folder with trajectories.jsonl (or one above it), or a file of samples as the
 * lm-evaluation-harness writes them. A torn last line is ignored. 0, or an exit code. */
int cli_eval_read(cli_app *, const char *path, cli_eval *out);
/* The same without a complaint if there is nothing. */
bool cli_eval_load(const char *file, cli_eval *out);
void cli_eval_free(cli_eval *);
/* Whether this answer is there, without an error. */
bool cli_eval_has(const cli_eval *, const char *example_id, size_t sample);
/* In order of their ids. Yours; the rows stay the evaluation's. NULL when out of memory. */
cli_eval_example *cli_eval_examples(const cli_eval *, size_t *n);

/* Is every score 0 or 1? Then intervals are those of shares, otherwise they are drawn. */
bool cli_eval_is_binary(const double *scores, size_t n);

/* score, interval, counts, pass@k: the content of result.json. */
tkc_tree *cli_eval_result(tkc_arena *, const cli_eval *, double seconds);

#endif
