/* pairs.h - files of preferences: pairs, or single answers that are marked good or bad. */
#ifndef CLI_PAIRS_H
#define CLI_PAIRS_H

#include "cli/main/app.h"

typedef struct cli_side { /* one answer in its conversation, as tokens */
    int32_t *ids;
    float *weights; /* 1 = of the answer */
    size_t len;
    double reference; /* sum of the answer's log-probabilities under the reference */
} cli_side;

typedef struct cli_pair {
    cli_side chosen, rejected; /* unpaired: the answer, and the next row's answer to this prompt */
    bool good;                 /* unpaired */
} cli_pair;

typedef struct cli_pairs {
    cli_pair *items;
    size_t n, cap;
    char **paths;
    size_t n_paths;
    size_t n_tokens, n_cut;
    bool unpaired;
} cli_pairs;

/* Reads the files of the command line. 0, or an exit code after reporting every bad line. */
int cli_pairs_read(cli_app *, const tinkc_tokenizer *, const char *renderer, bool unpaired,
                   cli_pairs *out);
void cli_pairs_free(cli_pairs *);

#endif
