/* lora.h - the layout of an adapter's low-rank weights in one block of numbers.
 *
 * A block is laid out group by group (model.h): first the A's of the group, contiguous, then its
 * B's. Weights, gradients and moments are blocks of one layout. Where experts share a factor there
 * is one copy of it, and one of the other for each expert, in their order.
 */
#ifndef TKE_MODEL_LORA_H
#define TKE_MODEL_LORA_H

#include "model/model.h"

typedef struct tke_lora_group {
    const tke_group *of; /* of the model */
    size_t n;            /* matrices; 0 = no adapter here */
    size_t in, rank;
    size_t n_a, n_b;         /* copies of A and of each B: the experts', or 1 */
    size_t a;                /* offset of A [n_a][n * rank, in] */
    size_t b[TKE_GROUP_MAX]; /* offsets of B [n_b][out, rank] */
    size_t out[TKE_GROUP_MAX];
} tke_lora_group;

typedef struct tke_lora_layout {
    size_t rank;
    size_t n_groups; /* as in the model; by tke_group.index */
    size_t n_floats; /* of a block */
    tke_lora_group *groups;
} tke_lora_layout;

#endif
