/* lora.h - low-rank weights as the forward pass sees them: where each A and B lies in one block.
 *
 * Matrices that read the same input form a group (q, k, v; gate, up): their A's lie one behind the
 * other, so that one product serves all of them. Who owns and changes the block: train/adapter.h.
 */
#ifndef TKE_MODEL_LORA_H
#define TKE_MODEL_LORA_H

#include "model/model.h"

enum tke_group { TKE_GROUP_QKV = 0, TKE_GROUP_O, TKE_GROUP_GATE_UP, TKE_GROUP_DOWN, TKE_GROUPS };
enum { TKE_GROUP_MAX = 3 };

typedef struct tke_lora_group {
    size_t n; /* matrices; 0 = no adapter here */
    size_t in, rank;
    size_t a;                /* offset of A [n * rank, in] */
    size_t b[TKE_GROUP_MAX]; /* offsets of B [out, rank] */
    size_t out[TKE_GROUP_MAX];
} tke_lora_group;

typedef struct tke_lora_layout {
    size_t rank;
    size_t n_groups; /* n_layers * TKE_GROUPS + 1: the last is the output projection */
    size_t n_floats; /* of a block */
    tke_lora_group *groups;
} tke_lora_layout;

typedef struct tke_lora {
    const tke_lora_layout *layout;
    const tke_real *weights;
    tke_real scale; /* alpha / rank */
} tke_lora;

/* First module of a group, and how many it has. */
static inline int tke_group_first(int group)
{
    static const int first[] = { TKE_Q, TKE_O, TKE_GATE, TKE_DOWN };
    return first[group];
}
static inline size_t tke_group_size(int group)
{
    static const size_t size[] = { 3, 1, 2, 1 };
    return size[group];
}

#endif
