/* microbatch.h - one go of a pass: packed rows, their activations, forward and backward over them.
 *
 * training.c decides what goes into a unit and what becomes of its results; forward.c, backward.c and
 * head.c do the arithmetic. Private to engine/train.
 */
#ifndef TKE_TRAIN_MICROBATCH_H
#define TKE_TRAIN_MICROBATCH_H

#include "model/block.h"
#include "train/training.h"

enum tke_depth { TKE_DEPTH_NONE = 0, TKE_DEPTH_HEAD, TKE_DEPTH_ALL }; /* how far gradients go */

typedef struct tke_pass_state { /* of one pass, while the trainer works on it */
    tke_pass *pass;
    tke_loss_sums sums;
    bool done;   /* its outcome is final */
    bool failed; /* in this attempt; pass->err says why */
    bool solo;   /* runs with no other pass of its adapter */
    bool chosen; /* for this attempt */
} tke_pass_state;

typedef struct tke_item { /* one datum in a unit */
    tke_pass_state *state;
    const tke_datum *datum;
    size_t index;                  /* in its pass */
    size_t row;                    /* where it begins */
    float *logprobs, *elementwise; /* outputs, inside the pass's */
} tke_item;

typedef struct tke_microbatch {
    tke_rows rows;
    const tke_item *items;
    size_t n_items;
    int32_t *ids, *positions; /* [n] */
    int64_t *starts;          /* [n_items + 1] */
    tke_segment *segments;
    tke_real **grads; /* per segment: the block gradients are added to, or NULL */
    int32_t depth;    /* TKE_DEPTH_* of all items */
    bool attn;        /* does any adapter here train attention? */
    size_t n_kept;    /* this many of the top layers keep their activations */
    const _Atomic(bool) *stop;

    tke_real *h;     /* [n, H]: input of the layer at hand; after forward: of the final norm */
    tke_real **h_in; /* per layer, depth ALL */
    tke_acts shared; /* activations of layers that do not keep them; a, b, m of all */
    tke_acts *kept;  /* per layer; those below n_layers - n_kept are unused */
    /* backward */
    tke_real *dh, *tmp; /* [n, H] */
    tke_real *d_o, *dq; /* [n, n d] */
    tke_real *dk, *dv;  /* [n, k d] */
    tke_real *delta;    /* [n, heads] */
    tke_real *dlow;     /* [n, 3 rank] */
    /* the head, by chunks of rows */
    size_t chunk;
    tke_real *z;                            /* [chunk, V] */
    tke_real *hf, *dhf, *hc;                /* [chunk, H] */
    tke_real *low_head, *low_c, *dlow_head; /* [chunk, rank] */
    tke_real *lse, *max, *log_sum, *scale;  /* [chunk] */
    tke_real *g;                            /* [chunk, max_k] */
    size_t max_k;
} tke_microbatch;

/* Numbers (tke_real) of work space for a unit of n rows. */
typedef struct tke_microbatch_need {
    const tke_model *model;
    size_t n, max_rank, max_k, n_kept;
    int32_t depth;
} tke_microbatch_need;
size_t tke_unit_reals(const tke_microbatch_need *);
/* Cuts the buffers of a unit out of a block of that many numbers. */
void tke_microbatch_place(tke_microbatch *, const tke_microbatch_need *, tke_real *block);

/* Embedding and layers; false when told to stop. */
bool tke_microbatch_forward(tke_microbatch *);
/* Log-probs, losses, their gradient down to dh, the output projection's adapters. */
void tke_microbatch_head(tke_microbatch *);
/* From dh down through the layers; false when told to stop. */
bool tke_microbatch_backward(tke_microbatch *);

/* The reverse of tke_group_forward: adds to the gradients of the group's adapters; dx (may be NULL)
 * = the gradient of x. dlow: [n, group size * max_rank]. */
void tke_group_backward(const tke_rows *, tke_real *const *grads, const tke_weight *w, size_t n,
                        size_t group, const tke_real *x, const tke_real *const *dy,
                        const tke_real *low, tke_real *dlow, tke_real *dx);
/* One layer's forward, into its kept or the shared activations. h_out may be NULL: then the down
 * projection is left out (recomputation does not need it). */
void tke_microbatch_layer(tke_microbatch *, size_t layer, const tke_real *h, tke_real *h_out);
tke_acts *tke_microbatch_acts(tke_microbatch *, size_t layer);

#endif
