/* train_batch.h - inputs and batches from the inside. */
#ifndef TKC_API_TRAIN_BATCH_H
#define TKC_API_TRAIN_BATCH_H

#include "client/core/client_priv.h"
#include "tinkc/train.h"
#include "wire/train_message.h"

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
    const tinkc_span *input_spans, *target_spans; /* NULL = no provenance */
    size_t n_input_spans, n_target_spans;
    size_t bytes;          /* what it counts for chunking */
    tinkc_tensor **shown;  /* views handed out, one for each input, NULL until asked for */
    tinkc_input *as_input; /* view handed out, NULL until asked for */
} tkc_example;

/* What examples point into. A pass keeps it beyond the life of its batch: the batch's owner may add
 * to the arena meanwhile, but what lies in it already never changes. */
typedef struct tkc_store tkc_store;
struct tkc_store {
    tkc_refs refs;
    tkc_arena arena;
    tkc_store *base; /* of a batch made out of another: that one's, a reference */
};
void tkc_store_drop(tkc_store *); /* NULL allowed. Any thread */

struct tinkc_batch {
    tinkc_client *client; /* a reference */
    tkc_store *store;     /* NULL while it is empty */
    tkc_example *examples;
    size_t n, cap;
    size_t bytes;
};

/* provenance.c: copies spans, checked one by one; and checks that they cover the example's fields
 * exactly, where the lengths of those are known. targets NULL = not set. */
bool tkc_provenance_set(tkc_example *, const tinkc_span *input, size_t n_input,
                        const tinkc_span *targets, size_t n_targets, tkc_arena *, tinkc_error *err);
bool tkc_provenance_check(const tkc_example *, const tkc_tensor *targets, tinkc_error *err);

/* The chunks of an input as they stand now; valid until it changes. */
const tinkc_chunk *tkc_input_chunks(const tinkc_input *, size_t *n);

/* Whether it can be passed over at all: there, not empty, as many numbers as there are targets. */
bool tkc_batch_check(const tinkc_batch *, tinkc_error *err);
/* As tinkc_batch_tensor. NULL without an error: example i has no such input. */
const tinkc_tensor *tkc_batch_show(const tinkc_batch *, size_t i, const char *name,
                                   tinkc_error *err);
/* The same examples, whatever becomes of `from`; nothing is copied but the table of them. */
tinkc_batch *tkc_batch_share(const tinkc_batch *from, tinkc_error *err);
/* The same examples with target_tokens and weights alone. `fresh` NULL: weights stay, zeros where
 * there are none. Otherwise all weights are new zeros, and fresh[i] is where those of example i
 * lie, to be filled in before the batch is used. */
tinkc_batch *tkc_batch_with_weights(const tinkc_batch *from, float **fresh, tinkc_error *err);

#endif
