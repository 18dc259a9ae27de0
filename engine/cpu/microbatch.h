/* microbatch.h - a microbatch in progress on the CPU: its rows, activations and work space.
 *
 * forward.c plans the memory and runs the layers, head.c makes log-probs and the gradient of the
 * logits, backward.c goes down through the layers. Private to engine/cpu.
 */
#ifndef TKE_CPU_MICROBATCH_H
#define TKE_CPU_MICROBATCH_H

#include "cpu/part.h"

typedef struct tke_batch {
    tke_rows rows;
    const tke_microbatch *job;
    size_t n_kept; /* this many of the top layers keep their activations */
    const _Atomic(bool) *stop;

    tke_real *h;      /* [n, H]: input of the layer at hand; after forward: of the final norm */
    tke_real **h_in;  /* per layer, depth ALL */
    tke_real *a, *b;  /* [n, H]: normed inputs of the mixer and of the feed-forward */
    tke_real *shared; /* memory of layers that do not keep theirs */
    tke_real **kept;  /* per layer; those below n_layers - n_kept are unused */
    tke_real *work;   /* of the layer at hand */
    /* backward */
    tke_real *dh, *tmp; /* [n, H] */
    tke_real *dlow;     /* [n, group size * rank] */
    /* the head, by chunks of rows */
    size_t chunk;
    tke_logits logits;           /* [chunk, ...] */
    tke_real *dhf, *hc;          /* [chunk, H] */
    tke_real *low_c, *dlow_head; /* [chunk, rank] */
    tke_real *lse, *scale;       /* [chunk] */
    tke_real *lp, *g;            /* [chunk, max_k] */
} tke_batch;

/* Numbers (tke_real) of work space, with n_kept layers keeping their activations. */
size_t tke_batch_reals(const tke_model *, const tke_microbatch_size *, size_t n_kept);
/* Cuts the buffers out of a block of that many numbers. job, rows, n_kept, h_in, kept are set. */
void tke_batch_place(tke_batch *, tke_real *block);

/* Embedding and layers; ends early when *stop is set, which the head sees too. */
void tke_batch_forward(tke_batch *);
/* Log-probs, losses, their gradient down to dh, the output projection's adapters. */
bool tke_batch_head(tke_batch *);
/* From dh down through the layers. */
bool tke_batch_backward(tke_batch *);

/* One layer's forward, into its kept or the shared memory. h_out may be NULL: then what only the
 * output needs is left out (recomputation does not need it). */
void tke_batch_layer(tke_batch *, size_t layer, const tke_real *h, tke_real *h_out);
/* A layer's buffers, and a turn of its parts on them. */
void tke_batch_acts(const tke_batch *, size_t layer, tke_layer_acts *out);
tke_turn tke_batch_turn(const tke_batch *, size_t layer);
bool tke_batch_stopped(const tke_batch *);

#endif
