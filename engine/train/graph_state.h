/* graph_state.h - the compiled form of a custom loss. Private to loss_graph.c, graph_*.c.
 *
 * A node of the request becomes one instruction or a few; constants are instructions too. Operands
 * are earlier instructions, so values are computed from first to last and gradients from last to
 * first, always in the same order.
 *
 * Every value is a matrix in memory: rank 0 is 1 x 1, rank 1 is 1 x n. Ranks are known when the
 * graph is made, sizes and kinds when a datum is.
 */
#ifndef TKE_TRAIN_GRAPH_STATE_H
#define TKE_TRAIN_GRAPH_STATE_H

#include "train/loss_graph.h"

typedef enum tke_graph_kind { TKE_KIND_BOOL = 0, TKE_KIND_INT, TKE_KIND_FLOAT } tke_graph_kind;

typedef enum tke_graph_op {
    TKE_G_INPUT, /* index */
    TKE_G_CONST, /* number, kind */
    TKE_G_SIZE,  /* of axis `axes`, or of all if -1 */
    TKE_G_FILL,  /* the shape of a, the value b; kind, or that of a if -1 */
    /* one operand, element by element */
    TKE_G_NEG,
    TKE_G_EXP,
    TKE_G_LOG,
    TKE_G_LOG1P,
    TKE_G_EXPM1,
    TKE_G_SQRT,
    TKE_G_RSQRT,
    TKE_G_RECIPROCAL,
    TKE_G_ABS,
    TKE_G_SIGN,
    TKE_G_SQUARE,
    TKE_G_SIGMOID,
    TKE_G_LOGSIGMOID,
    TKE_G_SOFTPLUS,
    TKE_G_TANH,
    TKE_G_RELU,
    TKE_G_NOT,
    TKE_G_DETACH,
    TKE_G_CAST,      /* kind */
    TKE_G_CAST_LIKE, /* the kind of b */
    /* two operands */
    TKE_G_ADD,
    TKE_G_SUB,
    TKE_G_MUL,
    TKE_G_DIV,
    TKE_G_POW,
    TKE_G_MIN,
    TKE_G_MAX,
    TKE_G_LOGADDEXP,
    TKE_G_GT,
    TKE_G_GE,
    TKE_G_LT,
    TKE_G_LE,
    TKE_G_EQ,
    TKE_G_NE,
    TKE_G_AND,
    TKE_G_OR,
    TKE_G_XOR,
    /* three operands */
    TKE_G_WHERE, /* a ? b : c */
    TKE_G_CLAMP, /* a within the constants b and c */
    /* over axes */
    TKE_G_SUM,
    TKE_G_MEAN,
    TKE_G_LOGSUMEXP,
    TKE_G_AMAX,
    TKE_G_AMIN,
    TKE_G_CUMSUM,
    /* the same elements, or some of them */
    TKE_G_RESHAPE, /* to the sizes b (and c, if the rank is 2), of which one may be -1 */
    TKE_G_LAYOUT,  /* to a row or a column, or without an axis of size 1: index */
    TKE_G_SLICE,   /* cut */
    TKE_G_SELECT,  /* where the mask b is true: elements, or rows of a matrix */
    TKE_G_OPS
} tke_graph_op;

enum { TKE_AXIS_ROWS = 1, TKE_AXIS_COLS = 2, TKE_AXIS_ALL = 3 }; /* bits */
enum { TKE_LAYOUT_ROW = 0, TKE_LAYOUT_COLUMN, TKE_LAYOUT_DROP_ROWS, TKE_LAYOUT_DROP_COLS };

typedef struct tke_graph_cut { /* of one axis: x[start:stop:step] or x[start] */
    int64_t start, stop, step;
    bool is_one;              /* the axis goes */
    bool has_start, has_stop; /* else from the beginning, to the end */
} tke_graph_cut;

typedef struct tke_graph_instr {
    uint8_t op, rank;
    int8_t kind;     /* TKE_KIND_*; -1 = see the operation */
    int8_t axes;     /* TKE_AXIS_* */
    bool flows;      /* does a gradient pass through it to the log-probs? */
    int32_t a, b, c; /* operands; -1 = none */
    int32_t index;
    int32_t node; /* for messages; -1 = none */
    double number;
    const tke_graph_cut *cut; /* [2]: by axis in memory */
    bool column;              /* a slice of one column, or with a new last axis: n x 1 */
} tke_graph_instr;

struct tke_graph {
    tkc_arena arena; /* everything else is in it */
    const char *name;
    tke_graph_input inputs[TKE_GRAPH_INPUTS];
    size_t n_inputs;
    struct {
        const char *name, *target;
    } * nodes;
    size_t n_nodes;
    tke_graph_instr *instrs;
    size_t n_instrs, cap_instrs;
    int32_t loss;
    size_t n_metrics;
    struct {
        const char *name;
        int32_t at;
    } metrics[TKE_GRAPH_METRICS];
};

/* ---- making it ---- */

typedef enum tke_graph_arg_kind {
    TKE_ARG_NONE,
    TKE_ARG_BOOL,
    TKE_ARG_INT,
    TKE_ARG_FLOAT,
    TKE_ARG_TEXT,
    TKE_ARG_LIST, /* or a tuple */
    TKE_ARG_DICT,
    TKE_ARG_SLICE,
    TKE_ARG_ELLIPSIS,
    TKE_ARG_DTYPE,  /* text */
    TKE_ARG_PLACE,  /* device, layout, memory format: changes no number */
    TKE_ARG_VALUE,  /* at: an instruction */
    TKE_ARG_SHAPE,  /* at: the shape of an instruction */
    TKE_ARG_KIND_OF /* at: the dtype of an instruction */
} tke_graph_arg_kind;

typedef struct tke_graph_arg {
    tke_graph_arg_kind kind;
    int64_t integer;
    double number; /* of BOOL, INT and FLOAT */
    tinkc_str text;
    int32_t at;
    struct tke_graph_arg *items; /* LIST, DICT, SLICE (three) */
    tinkc_str *keys;             /* DICT */
    size_t n;
} tke_graph_arg;

typedef struct tke_graph_call { /* a node that calls something */
    tinkc_str target;
    bool is_method;
    tke_graph_arg *args;
    size_t n_args;
    tke_graph_arg kwargs; /* DICT */
} tke_graph_call;

typedef struct tke_graph_builder {
    tke_graph *graph;
    tkc_arena *scratch;
    int32_t node; /* being compiled */
    tinkc_error *err;
} tke_graph_builder;

/* Refuses the graph; the message names the node. Always false. */
bool tke_graph_refuse(tke_graph_builder *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Adds an instruction and sets its `flows`; -1 after a failure. */
int32_t tke_graph_emit(tke_graph_builder *, tke_graph_instr);
/* graph_ops.c: compiles a call into instructions; *out is what the node stands for. */
bool tke_graph_compile(tke_graph_builder *, const tke_graph_call *, tke_graph_arg *out);
/* graph_slice.c: x[index]. */
bool tke_graph_getitem(tke_graph_builder *, int32_t x, const tke_graph_arg *index,
                       tke_graph_arg *out);

#endif
