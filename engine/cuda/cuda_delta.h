/* cuda_delta.h - the gated delta rule on the card: heads of unit length, the rule with its state, the gated norm; and their gradients.
 *
 * The rule and its chunks of 64 positions are those of math/delta_rule.h. Every row of q, k, o, N is one definition, whatever
 * shares its launch: sums over a head's numbers and over the chunk's rows for o go in groups of eight, upwards, by the matrix
 * instruction on numbers of two tf32 parts, each group added to the fp32 sum; N_i = b_i (v_i - e^G_i S^T k_i - sum over j < i
 * of (k_i.k_j) D_ij N_j) subtracts row by row in fp32. Rows that are not there count as zeros.
 */
#ifndef TKE_CUDA_DELTA_H
#define TKE_CUDA_DELTA_H

#include "cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TCU_DELTA_CHUNK = 64, TCU_DELTA_KEYS = 128, TCU_DELTA_DIM = 256 }; /* most numbers of a head of keys, of values */

typedef struct tcu_delta_shape {
    int32_t n_key_heads, n_value_heads, dk, dv;
    const float *decay, *dt_bias;               /* [value heads] */
} tcu_delta_shape;

typedef struct tcu_delta_rule {
    tcu_delta_shape of;
    int32_t n; /* rows */
    const tcu_run *runs;
    const tcu_piece *pieces;
    int32_t n_runs, n_pieces, longest; /* longest: no run has more rows */
    const tcu_bf16 *c; /* after the convolution: rows ld_c apart, q at 0, k at k_at, v at v_at */
    int32_t ld_c, k_at, v_at;
    const float *gates; /* rows ld_gates apart: strength at 0, decay at decay_at */
    int32_t ld_gates, decay_at;
    float *q, *k;               /* [n][key heads dk], of unit length; q / sqrt(dk) */
    float *strength;            /* [n][value heads] */
    float *g;                   /* the same: decays */
    double *sums;               /* the same: G */
    float *kk, *qk;             /* [n][value heads][64]: products with the chunk's rows, times D; 0 where there is none */
    float *o;                   /* [n][value heads dv] */
    float *rows;                /* N, like o; or NULL. Only products of the backward pass read it: numbers of 11 bits */
    float *states;              /* [edges][value heads][dk][dv]: S at the edges inside sequences; or NULL. 11 bits, too */
    unsigned char *slots;       /* a step: of slot 0, of this layer's rule; else NULL */
    size_t stride;              /* from slot to slot */
    /* backward */
    float *d_o, *z;             /* like o, numbers of 11 bits */
    float *dstates;             /* like states: their gradients */
    float *dq, *dk;             /* like q, k */
    tcu_bf16 *dc;               /* like c */
    tcu_bf16 *dgates;           /* like gates */
} tcu_delta_rule;

/* Bytes of a slot; a multiple of 16. */
size_t tcu_delta_slot(const tcu_delta_shape *);
/* c, gates -> q, k, strength, g. */
int tcu_delta_heads(const tcu_delta_rule *, tcu_stream);
/* q, k, v, strength, g -> o and, if wanted, N and states. A step moves its slots on. */
int tcu_delta_forward(const tcu_delta_rule *, tcu_stream);
/* d_o -> z, dstates, dq, dk, v's part of dc, dgates; N, states and what forward left are there. */
int tcu_delta_backward(const tcu_delta_rule *, tcu_stream);
/* Its second launch: each chunk by itself. */
int tcu_delta_chunks_back(const tcu_delta_rule *, tcu_stream);
/* dq, dk -> their parts of dc. */
int tcu_delta_heads_back(const tcu_delta_rule *, tcu_stream);

/* y = bf16(norm(o) w silu(z)) by heads of d numbers; z: rows ld apart. */
typedef struct tcu_gated_norm {
    int32_t n, heads, d;
    const float *w; /* [d] */
    float eps;
    const tcu_bf16 *z;
    int64_t ldz;
} tcu_gated_norm;
int tcu_gated_forward(const tcu_gated_norm *, const float *o, tcu_bf16 *y, tcu_stream);
/* o becomes its gradient, rounded to 11 bits; dz: rows lddz apart. */
int tcu_gated_back(const tcu_gated_norm *, float *o, const tcu_bf16 *dy, tcu_bf16 *dz, int64_t lddz,
                   tcu_stream);

/* Is this a step of one row each that the launch for them can do? It makes c and gates -> o (NULL: not wanted) and, unless norm is NULL,
 * y, with the bits of the launches above, and moves the slots on. */
bool tcu_delta_steps(const tcu_delta_rule *);
int tcu_delta_step(const tcu_delta_rule *, const tcu_gated_norm *norm, tcu_bf16 *y, tcu_stream);

#ifdef __cplusplus
}
#endif
#endif
