/* cuda_heads_any.h - heads that do not rotate as a whole, have gates, or more than 128 numbers: kernels as the host calls them.
 */
#ifndef TKE_CUDA_HEADS_ANY_H
#define TKE_CUDA_HEADS_ANY_H

#include "cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TCU_ANY_HEAD_DIM = 256 };
typedef struct tcu_any_heads {
    tcu_heads h;    /* d: with the zeros behind a head; cosine, sine: [pos][rotary / 2] */
    int32_t used;   /* numbers of a head */
    int32_t rotary; /* of them rotate; 0 = none */
    bool gate;      /* in qkv each query is followed by its gate */
} tcu_any_heads;

/* As tcu_heads_forward and tcu_heads_back. */
int tcu_any_forward(const tcu_any_heads *, const tcu_bf16 *qkv, tcu_bf16 *q, tcu_bf16 *k, const tcu_paged *, tcu_stream);
int tcu_any_back(const tcu_any_heads *, const tcu_bf16 *qkv, const tcu_bf16 *dq, const tcu_bf16 *dk, tcu_bf16 *dqkv, tcu_stream);
/* out = bf16(o sigmoid(gate)). */
int tcu_gate(const tcu_any_heads *, const tcu_bf16 *qkv, const tcu_bf16 *o, tcu_bf16 *out, tcu_stream);
/* d_o of that -> the gradient of o, in its place, and of the gate in dqkv. */
int tcu_gate_back(const tcu_any_heads *, const tcu_bf16 *qkv, const tcu_bf16 *o, tcu_bf16 *d_o, tcu_bf16 *dqkv, tcu_stream);

#ifdef __cplusplus
}
#endif

#endif
