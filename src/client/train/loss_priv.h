/* loss_priv.h - one evaluation of a user's loss. */
#ifndef TKC_API_LOSS_PRIV_H
#define TKC_API_LOSS_PRIV_H

#include "client/train/train_batch.h"
#include "client/call/outcome.h"

/* Lives on the stack of the code that calls the user's function. */
struct tinkc_loss {
    const tinkc_batch *batch;
    const tinkc_fwdbwd *forward;
    float **grads; /* for each example, as many as it has log-probabilities */
    double value;
    bool is_set;
    tinkc_loss_graph *recorder; /* not NULL: no batch, the tape becomes these nodes */
    tinkc_metrics metrics;
    tkc_arena arena;
};

#endif
