/* pass_state.h - passes while the trainer works on them. Private to engine/train.
 *
 * training.c fills microbatches and uses their results; pass_losses.c computes the losses of rows.
 */
#ifndef TKE_TRAIN_PASS_STATE_H
#define TKE_TRAIN_PASS_STATE_H

#include "train/training.h"

typedef struct tke_pass_state {
    tke_pass *pass;
    tke_loss_sums sums;
    bool done;   /* its outcome is final */
    bool failed; /* in this attempt; pass->err says why */
    bool solo;   /* runs with no other pass of its adapter */
    bool chosen; /* for this attempt */
} tke_pass_state;

typedef struct tke_item { /* one datum in a microbatch */
    tke_pass_state *state;
    const tke_datum *datum;
    size_t index;                  /* in its pass */
    size_t row;                    /* where it begins */
    float *logprobs, *elementwise; /* outputs, inside the pass's */
    tke_loss_whole whole;          /* what its loss has gathered */
    double *lp, *grads;            /* of a custom loss: [n][k], for this microbatch */
} tke_item;

/* ---- pass_losses.c ---- */

typedef struct tke_pass_losses {
    tke_item *items; /* of the microbatch, in the order of their rows */
    size_t n_items;
    size_t max_k;
    size_t at;                 /* the item that the last row belonged to */
    const _Atomic(bool) *stop; /* of the trainer */
} tke_pass_losses;
/* Makes room for the custom losses of the microbatch. */
bool tke_pass_losses_prepare(tke_pass_losses *, tkc_arena *, tinkc_error *err);
/* Fills targets [n][max_k] for the device: -1 where there is none. */
void tke_pass_targets(const tke_pass_losses *, size_t vocab, int32_t *targets);
/* A tke_losses_fn; user is a tke_pass_losses. */
void tke_pass_losses_run(void *user, size_t first, size_t n, const tke_real *lp, tke_real *g);

#endif
