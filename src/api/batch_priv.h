/* batch_priv.h - inputs and batches from the inside. */
#ifndef TKC_API_BATCH_PRIV_H
#define TKC_API_BATCH_PRIV_H

#include "api/client_priv.h"
#include "tinkc/train.h"
#include "wire/train.h"

/* Tokens of the last chunk grow in a buffer of their own; everything finished lies in the arena. */
struct tinkc_input {
    tinkc_client *client; /* a reference; NULL for those inside a batch */
    tkc_arena arena;
    tinkc_chunk *chunks;
    size_t n_chunks, cap_chunks;
    tinkc_tokens open; /* of the last chunk, if `is_open` */
    bool is_open;
};

typedef struct tkc_example {
    tinkc_chunk *chunks;
    size_t n_chunks;
    tkc_named_tensor *inputs;
    size_t n_inputs, cap_inputs;
    size_t bytes;          /* what it counts for chunking */
    tinkc_tensor **shown;  /* views handed out, one for each input, NULL until asked for */
    tinkc_input *as_input; /* view handed out, NULL until asked for */
} tkc_example;

struct tinkc_batch {
    tinkc_client *client; /* a reference */
    tkc_arena arena;      /* of the examples' contents */
    tkc_example *examples;
    size_t n, cap;
    size_t bytes;
};

/* The chunks of an input as they stand now; valid until it changes. */
const tinkc_chunk *tkc_input_chunks(const tinkc_input *, size_t *n);

/* A batch with copies of everything in `from`. */
tinkc_batch *tkc_batch_copy(const tinkc_batch *from, tinkc_error *err);
/* The same examples with other inputs: target_tokens stay, weights are given (all at once, one
 * array for each example; NULL = zeros). Shares memory with `from`, which must live longer. */
tinkc_batch *tkc_batch_with_weights(const tinkc_batch *from, float *const *weights,
                                    tinkc_error *err);

#endif
