/* examples.h - conversations as training examples: tokens, weights, what was cut. */
#ifndef CLI_EXAMPLES_H
#define CLI_EXAMPLES_H

#include "cli/data/dataset.h"

typedef struct cli_example {
    int32_t *ids; /* both in one block that the set owns */
    float *weights;
    size_t len;
    size_t trained_bytes; /* UTF-8 bytes of tokens with weight above 0, special ones left out */
    uint32_t line;
    uint16_t file;
    bool cut;
} cli_example;

typedef struct cli_examples {
    cli_example *items;
    size_t n, cap;
    size_t n_tokens; /* targets: all tokens but the first of each example */
    size_t n_trained, n_cut, n_empty, n_longest; /* n_longest: tokens of a whole example */
} cli_examples;

typedef struct cli_example_options {
    const tinkc_tokenizer *tokenizer;
    const char *renderer;
    int32_t train_on;
    size_t max_length; /* 0 = no limit */
    bool split_turns;
    bool mean; /* each example's weights sum to 1 */
} cli_example_options;

/* Appends the examples of one checked line; false with err set where it cannot be rendered. One
 * without a trained token is counted in n_empty and left out. */
bool cli_examples_add(cli_examples *, const cli_example_options *, cli_span line, uint32_t number,
                      tinkc_error *err);
/* Moves all of `from` behind what is in `into`: lines counted on from `before`, of that file. False
 * without memory; then nothing was moved. */
bool cli_examples_move(cli_examples *into, cli_examples *from, size_t before, uint16_t file);
void cli_examples_free(cli_examples *);

/* Prints an example in colours: green is learnt, yellow only read. */
void cli_preview(const cli_app *, FILE *, const tinkc_tokenizer *, const cli_example *);

#endif
