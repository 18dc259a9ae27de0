/* tape_priv.h - what a tape holds: nodes in the order they were made (tape.c), and their way to a service
 * (tape_graph.c). */
#ifndef TKC_API_TAPE_PRIV_H
#define TKC_API_TAPE_PRIV_H

#include "client/train/loss_priv.h"
#include "tinkc/tape.h"

enum { SHAPE_NUMBER = 0, SHAPE_LIST, SHAPE_SEQUENCES, SHAPE_TOKENS };

typedef enum tape_op {
    OP_LEAF,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MIN,
    OP_MAX,
    OP_NEG,
    OP_EXP,
    OP_LOG,
    OP_SIGMOID,
    OP_SOFTPLUS,
    OP_CLAMP,
    OP_CONSTANT,
    OP_SUM_TOKENS,
    OP_MEAN_TOKENS,
    OP_SUM,
    OP_MEAN,
    OP_SLICE
} tape_op;

typedef struct node {
    tape_op op;
    int32_t a, b; /* operands; b is -1 where an operation on elements has one */
    int32_t shape;
    size_t n;               /* elements */
    double low, high;       /* of a clamp */
    const char *input;      /* of a leaf that is an input of the examples, or their log-probs */
    size_t first, step;     /* of a slice */
    double *values, *grads; /* grads: NULL until the walk back needs them */
} node;

struct tinkc_tape {
    tinkc_loss *loss;
    tkc_arena *arena;
    size_t n_sequences;
    const size_t *begin; /* n_sequences + 1: where each sequence's tokens begin */
    const size_t *owner; /* the sequence of each token */
    node *nodes;
    size_t n, cap;
    int32_t logprobs; /* node, or -1 */
    tinkc_error err;  /* the first mistake */
};

/* Writes the nodes that the loss depends on as those of a custom loss into loss->recorder. False: t->err. */
bool tkc_tape_record(tinkc_tape *t, int32_t loss);

#endif
