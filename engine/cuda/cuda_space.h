/* cuda_space.h - the state-space rule of Mamba-2 on the card (math/state_space.h says what it computes).
 *
 * A row is computed by the same instructions in training, prompts and decoding: chunks of 64 positions from position 0 of the
 * sequence, the state in fp32, which changes at a chunk's end only. What is fp32 in a product's operands is split into two bf16
 * numbers, so forward loses nothing beyond the bf16 inputs. With the time step d_j, x and u_j = d_j x_j:
 *     y_i = e^A_i (C_i S^T) + sum over j <= i of ((C_i.B_j) D_ij d_j) x_j + skip x_i
 */
#ifndef TKE_CUDA_SPACE_H
#define TKE_CUDA_SPACE_H

#include "cuda/cuda_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TCU_SPACE_CHUNK = 64, TCU_SPACE_P = 64, TCU_SPACE_N = 128 }; /* the largest head and state: a card's tiles */

typedef struct tcu_space_rule {
    int32_t n_heads, n_groups, p, n; /* p of a head, n of a state */
    const float *decay, *dt_bias, *skip; /* [n_heads] */
    float step_min, step_max;
    const tcu_bf16 *c; /* the convolution's rows: x, from column b_at on B, from c_at on C */
    int64_t ldc;
    int32_t b_at, c_at;    /* multiples of 8 */
    const tcu_bf16 *times; /* rows of what time steps are made of, with room for n_heads rounded up to 8 */
    int64_t ld_times;
    const tcu_run *runs; /* on the card */
    int32_t n_runs, longest;
    tcu_bf16 *y; /* [rows][n_heads p] */
    int64_t ldy;
    /* a step: slot s at slots + s * stride; its state, then the open chunk's rows of x, B and times */
    unsigned char *slots;
    int64_t stride;
    /* backward: dy as y; gradients lie as c and times do */
    const tcu_bf16 *dy;
    tcu_bf16 *dc, *d_times;
    tcu_bf16 *states, *d_states; /* tcu_space_edges numbers each: at the edges, and their gradients */
} tcu_space_rule;

/* Bytes of a slot, a multiple of 16. */
size_t tcu_space_slot(const tcu_space_rule *);
/* Numbers at the edges inside sequences, of so many rows of a batch. */
size_t tcu_space_edges(const tcu_space_rule *, size_t rows);
int tcu_space_forward(const tcu_space_rule *, tcu_stream);
/* dy -> dc, d_times. */
int tcu_space_back(const tcu_space_rule *, tcu_stream);

typedef struct tcu_space_norm { /* o = weights * norm over each group of y silu(z) */
    int32_t rows, width, n_groups; /* width: of all groups */
    const float *weights;
    float eps;
    const tcu_bf16 *y, *z;
    int64_t ldy, ldz;      /* ldy: width rounded up to 8. Columns behind the width become zero in o and dz */
    tcu_bf16 *o; /* rows ldy apart */
    /* a step: also keeps the row in its slot's open chunk, if the rule that ran before it left that open */
    const tcu_space_rule *rule; /* or NULL */
    const int32_t *run_of;      /* [rows] on the card */
    /* backward: d_o and dy as o, dz as z */
    const tcu_bf16 *d_o;
    tcu_bf16 *dy, *dz;
} tcu_space_norm;
int tcu_space_norm_forward(const tcu_space_norm *, tcu_stream);
int tcu_space_norm_back(const tcu_space_norm *, tcu_stream);

#ifdef __cplusplus
}
#endif
#endif
