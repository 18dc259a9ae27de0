/* delta_rule.h - the gated delta rule of linear attention: rows of one value head, and their reverse.
 *
 * Per value head there is a state S [dk][dv], zero at the start of a sequence. With g <= 0 the
 * decay and b the strength of a position, the rule says
 *
 *     S <- e^g S;   S <- S + k (b (v - S^T k))^T;   o = S^T q
 *
 * It is computed in chunks of TKE_DELTA_CHUNK positions, counted from position 0 of the sequence.
 * With S the state before the chunk, G_i = g_0 + ... + g_i and D_ij = e^(G_i - G_j), row i is
 *
 *     N_i = b_i (v_i - e^G_i S^T k_i) - sum over j < i of b_i (k_i.k_j) D_ij N_j
 *     o_i = e^G_i S^T q_i             + sum over j <= i of    (q_i.k_j) D_ij N_j
 *
 * and S changes at the chunk's end only. Training, prompts and decoding all compute this row from
 * the same numbers in the same order, so a position has the same bits in each. Every sum runs
 * upwards, j or the dimension; G is summed in double. Nothing here allocates.
 */
#ifndef TKE_MATH_DELTA_RULE_H
#define TKE_MATH_DELTA_RULE_H

#include "math/dtype.h"

enum { TKE_DELTA_CHUNK = 64, TKE_DELTA_DIM = 256 };

typedef struct tke_delta_shape {
    size_t dk, dv; /* at most TKE_DELTA_DIM */
} tke_delta_shape;

/* ---- forward ---- */

typedef struct tke_delta_chunk { /* the open chunk of one value head */
    const tke_real *kt;          /* [dk][TKE_DELTA_CHUNK]: its keys, transposed */
    tke_real *s;                 /* [dk][dv]: the state before it */
    tke_real *n;                 /* its rows N_i */
    size_t n_stride;
    tke_real *g; /* its decays */
    size_t g_stride;
} tke_delta_chunk;

typedef struct tke_delta_products { /* of row i with the rows j <= i of its chunk */
    tke_real kk[TKE_DELTA_CHUNK], qk[TKE_DELTA_CHUNK];
} tke_delta_products;

/* Puts key i into kt and multiplies: the same for all value heads of a key head. */
void tke_delta_multiply(const tke_delta_shape *, tke_real *kt, size_t i, const tke_real *q,
                        const tke_real *k, tke_delta_products *out);
/* Row i of the chunk, whose decay is in chunk->g and whose earlier rows are there: makes N_i and
 * o [dv]. After the last row the state moves on. */
void tke_delta_row(const tke_delta_shape *, const tke_delta_chunk *, size_t i, const tke_real *q,
                   const tke_real *k, const tke_real *v, tke_real strength,
                   const tke_delta_products *, tke_real *o);
/* The state after a full chunk. */
void tke_delta_advance(const tke_delta_shape *, const tke_delta_chunk *);

/* ---- backward, one chunk of one value head at a time, the last first ---- */

typedef struct tke_delta_grads {
    size_t rows;           /* of the chunk */
    const tke_real *q, *k; /* rows, dk_stride apart */
    size_t dk_stride;
    const tke_real *v, *n, *d_o; /* rows, dv_stride apart */
    size_t dv_stride;
    const tke_real *g, *strength; /* gate_stride apart */
    size_t gate_stride;
    const tke_real *s;        /* the state before the chunk */
    tke_real *ds;             /* the gradient of the state after it; becomes that before it */
    tke_real *dq, *dk;        /* added to, dk_stride apart */
    tke_real *dv;             /* written, dv_stride apart */
    tke_real *dg, *dstrength; /* written, gate_stride apart */
    tke_real *scratch;        /* tke_delta_scratch numbers */
} tke_delta_grads;

size_t tke_delta_scratch(const tke_delta_shape *);
void tke_delta_backward(const tke_delta_shape *, const tke_delta_grads *);

#endif
