/* loss.h - the loss functions: their inputs, and their value for each token.
 *
 * Pure arithmetic on log-probs, independent of the model. Sums over tokens and datums are never
 * divided. Errors caused by the caller's data are TINKC_E_BAD_REQUEST.
 */
#ifndef TKE_TRAIN_LOSS_H
#define TKE_TRAIN_LOSS_H

#include "base/err.h"
#include "base/str.h"
#include "math/dtype.h"
#include "train/loss_graph.h"

enum tke_loss_kind {
    TKE_CROSS_ENTROPY = 0,
    TKE_IMPORTANCE_SAMPLING,
    TKE_PPO,
    TKE_CISPO,
    TKE_DRO,
    TKE_GSPO,
    TKE_CUSTOM
};

typedef struct tke_loss {
    int32_t kind;                 /* a row of the table in loss.c */
    int32_t n_keys_given;         /* of loss_fn_config; others have their defaults */
    tke_real clip_low, clip_high; /* absolute bounds of the ratio */
    tke_real beta;                /* dro */
    bool strict;                  /* dro: no token is masked */
    const tke_graph *graph;       /* custom; borrowed */
} tke_loss;

typedef struct tke_loss_key { /* one entry of loss_fn_config */
    tinkc_str name;
    double value;
} tke_loss_key;

/* Unknown names and keys, and values that are not finite, fail. */
bool tke_loss_parse(tke_loss *, tinkc_str name, const tke_loss_key *keys, size_t n_keys,
                    bool strict, tinkc_error *err);

/* The loss of a graph, which must live as long as the loss is used. */
tke_loss tke_loss_custom(const tke_graph *);

/* Which positions of a datum can have a gradient: those with a weight or an advantage; those with a
 * log-prob, too (dro pulls towards it); all. */
enum { TKE_CARRY_WEIGHTED, TKE_CARRY_LOGPROBS, TKE_CARRY_ALL };

/* One datum as the losses use it. Arrays are borrowed; NULL = not given. */
typedef struct tke_datum {
    const int32_t *tokens;
    size_t n;                          /* tokens */
    size_t k;                          /* targets for each position; 1 unless soft */
    const int64_t *targets;            /* [n, k] */
    const float *weights;              /* [n, k]: cross_entropy; NULL = zeros (forward only) */
    const float *logprobs;             /* [n]: q, the others */
    const float *advantages;           /* [n] */
    const float *clip_low, *clip_high; /* [n] or NULL: override the config */
    const tke_graph_tensor *custom;    /* a custom loss's inputs after the log-probs */
    int32_t carry;                     /* TKE_CARRY_*: there a target must be a token */
} tke_datum;

/* An input tensor by name, dense: rows of cols elements (CSR is expanded by the caller: missing
 * entries are token 0 with weight 0). */
typedef struct tke_input {
    tinkc_str name;
    bool is_float;    /* float32, else int64 */
    const void *data; /* float * or int64_t *, aligned */
    size_t rows, cols;
    int32_t rank; /* dimensions given; 0 = none: one, or a single number */
} tke_input;

/* Fills a datum from named inputs. tokens and n must be set before; `index` is for messages. Names,
 * types, lengths and values are checked; `mask` is ignored unless the loss is strict. */
bool tke_datum_bind(tke_datum *, const tke_loss *, const tke_input *inputs, size_t n_inputs,
                    bool forward_only, size_t index, tinkc_error *err);
/* The same for a custom loss: every input that its graph names, with its rank; others are left
 * alone, because the graph says what it reads. The table of inputs is made in the arena. */
bool tke_datum_bind_custom(tke_datum *, const tke_graph *, const tke_input *inputs, size_t n_inputs,
                           tkc_arena *, size_t index, tinkc_error *err);
/* Checks token ids and length against a model's vocabulary and context. */
bool tke_datum_check(const tke_datum *, size_t vocab, size_t context, size_t index,
                     tinkc_error *err);

/* Sums over a request's tokens. Start from zero. */
typedef struct tke_loss_sums {
    double loss;
    double ratio, kl;
    double ratio_max;
    int64_t n_tokens, n_loss_tokens, n_clipped, n_ratio;
    double custom[TKE_GRAPH_METRICS];
} tke_loss_sums;

/* What a loss over whole sequences gathers before its tokens' losses. Start from zero. */
typedef struct tke_loss_whole {
    double log_ratio; /* sum of lp - q over the tokens with loss */
    int64_t n;
} tke_loss_whole;

typedef struct tke_token { /* position i of a datum */
    const tke_datum *datum;
    size_t i;
    const tke_real *lp;          /* [k] log-probs of its targets */
    const tke_loss_whole *whole; /* for losses that gather; else may be NULL */
} tke_token;

/* ---- the table: one row for each loss ---- */

enum { /* inputs of a datum, as bits of the masks below */
       TKE_INPUT_TARGETS = 0,
       TKE_INPUT_WEIGHTS,
       TKE_INPUT_LOGPROBS,
       TKE_INPUT_ADVANTAGES,
       TKE_INPUT_CLIP_LOW,
       TKE_INPUT_CLIP_HIGH,
       TKE_INPUTS
};
enum { TKE_LOSS_KEYS = 2 }; /* at most */

typedef struct tke_loss_row {
    const char *name;
    struct {
        const char *name;
        size_t offset; /* of the number in tke_loss */
    } keys[TKE_LOSS_KEYS];
    float clip_low, clip_high; /* defaults */
    double beta;
    uint32_t needs, needs_forward, takes; /* required inputs, and optional ones */
    bool soft;                            /* several targets for a position */
    bool ratios;                          /* has ratio and clip metrics */
    int32_t carry;                        /* TKE_CARRY_* */
    /* The token's loss, and g[k] = d loss / d lp (g[0] is 0 before). Adds to sums. */
    tke_real (*token)(const tke_loss *, const tke_token *, tke_real *g, tke_loss_sums *);
    /* NULL, or called for all tokens of a sequence first. */
    void (*gather)(const tke_token *, tke_loss_whole *);
} tke_loss_row;

const tke_loss_row *tke_loss_row_of(const tke_loss *);
tke_real tke_loss_token(const tke_loss *, const tke_token *, tke_real *g, tke_loss_sums *);

#endif
