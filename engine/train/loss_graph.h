/* loss_graph.h - a custom loss: a list of nodes that a client traced, checked and compiled.
 *
 *     tke_graph *g = tke_graph_new(&spec, &err);       // refuses what is not on the list
 *     tke_graph_run(g, &datum, &result, &err);         // the loss of one datum and its gradient
 *     tke_graph_free(g);
 *
 * The nodes are data: nothing in them is executed except the operations of the table in
 * graph_ops.c. Values have rank 0, 1 or 2, broadcast as in PyTorch and are computed in double.
 * A graph does not change after it was made; any number of threads may run it.
 */
#ifndef TKE_TRAIN_LOSS_GRAPH_H
#define TKE_TRAIN_LOSS_GRAPH_H

#include "base/arena.h"
#include "base/str.h"

enum {
    TKE_GRAPH_INPUTS = 16,  /* log-probs included */
    TKE_GRAPH_NODES = 512,  /* of a request */
    TKE_GRAPH_METRICS = 32, /* that a loss may return */
    TKE_GRAPH_NAME = 64,  /* longest name of an input, and of a metric between "custom/" and ":" */
    TKE_GRAPH_TEXT = 128, /* longest name of a loss, a node or an operation */
    TKE_GRAPH_DEPTH = 6,  /* of lists and dicts in an argument */
    TKE_GRAPH_MAX_MIB = 256, /* values and gradients of one datum */
    /* Elements that one datum may take to compute, and so the time for which others wait: so many,
     * and for each log-prob so many more. */
    TKE_GRAPH_ELEMENTS = 1 << 18,
    TKE_GRAPH_ELEMENTS_EACH = 1 << 15,
    TKE_GRAPH_ELEMENTS_MOST = 1 << 28,
};

typedef struct tke_graph_input {
    const char *name; /* "logprobs", or a key of loss_fn_inputs */
    int64_t rank;     /* 0 to 2; of log-probs 1 or 2 */
} tke_graph_input;

typedef struct tke_graph_spec {
    const char *name;              /* for messages */
    const tke_graph_input *inputs; /* log-probs first */
    size_t n_inputs;
    tinkc_str nodes; /* JSON: {"format": 1, "nodes": [...]} */
} tke_graph_spec;

typedef struct tke_graph tke_graph;

/* Everything is copied. Errors: BAD_REQUEST, naming the node and the operation; MEMORY. */
tke_graph *tke_graph_new(const tke_graph_spec *, tinkc_error *err);
void tke_graph_free(tke_graph *); /* NULL allowed */

size_t tke_graph_bytes(const tke_graph *); /* of memory */
const char *tke_graph_name(const tke_graph *);
size_t tke_graph_n_inputs(const tke_graph *);
const char *tke_graph_input_name(const tke_graph *, size_t i);
int64_t tke_graph_input_rank(const tke_graph *, size_t i);
size_t tke_graph_n_metrics(const tke_graph *);
/* "custom/kl:mean" */
const char *tke_graph_metric(const tke_graph *, size_t i);
/* Is this metric divided by the number of datums? Otherwise it is a sum. */
bool tke_graph_metric_is_mean(const tke_graph *, size_t i);

/* An input of one datum: rank 0 has one row and one column, rank 1 `rows` elements. */
typedef struct tke_graph_tensor {
    const void *data;
    bool is_float; /* float32, else int64 */
    size_t rows, cols;
} tke_graph_tensor;

typedef struct tke_graph_datum {
    const double *logprobs; /* [n][k] */
    size_t n, k;
    const tke_graph_tensor *inputs; /* of the other inputs, in the order of the graph's */
    const _Atomic(bool) *stop;      /* NULL, or set from outside: the run ends soon, CANCELLED */
} tke_graph_datum;

typedef struct tke_graph_result {
    double loss;
    double metrics[TKE_GRAPH_METRICS];
    double *grads; /* the caller's, [n][k]: d loss / d log-probs; NULL = not wanted */
} tke_graph_result;

/* The result is finite, and gradients are in float, too. Errors: BAD_REQUEST (shapes that do not fit,
 * values that are not finite, too much memory or work, no gradient), naming the node; MEMORY;
 * CANCELLED. */
bool tke_graph_run(const tke_graph *, const tke_graph_datum *, tke_graph_result *,
                   tinkc_error *err);

#endif
