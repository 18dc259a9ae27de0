/* state_space.h - the state-space rule of Mamba-2: rows of one head, and their reverse.
 *
 * Per head there is a state S [n][p], zero at the start of a sequence. With a <= 0 the decay of a
 * position, u its scaled input, and B, C its input and output vectors, which all heads of a group
 * share, the rule says
 *
 *     S <- e^a S + B u^T;   y = S^T C
 *
 * It is computed in chunks of TKE_SPACE_CHUNK positions, counted from position 0 of the sequence.
 * With S the state before the chunk, A_i = a_0 + ... + a_i and D_ij = e^(A_i - A_j), row i is
 *
 *     y_i = e^A_i S^T C_i + sum over j <= i of (C_i.B_j) D_ij u_j
 *
 * and S changes at the chunk's end only. Training, prompts and decoding all compute this row from
 * the same numbers in the same order, so a position has the same bits in each. Every sum runs
 * upwards, j or the dimension; A is summed in double. Nothing here allocates.
 */
#ifndef TKE_MATH_STATE_SPACE_H
#define TKE_MATH_STATE_SPACE_H

#include "math/dtype.h"

enum { TKE_SPACE_CHUNK = 64, TKE_SPACE_DIM = 256 };

typedef struct tke_space_shape {
    size_t n, p; /* size of the state, of a head: at most TKE_SPACE_DIM */
} tke_space_shape;

/* ---- forward ---- */

typedef struct tke_space_chunk { /* the open chunk of one head */
    const tke_real *bt;          /* [n][TKE_SPACE_CHUNK]: its rows B, transposed */
    tke_real *s;                 /* [n][p]: the state before it */
    const tke_real *u;           /* its rows u, u_stride apart */
    size_t u_stride;
    const tke_real *a; /* its decays */
    size_t a_stride;
} tke_space_chunk;

/* Puts B of row i into bt; out[j] = C_i.B_j for j <= i: the same for all heads of a group. */
void tke_space_multiply(const tke_space_shape *, tke_real *bt, size_t i, const tke_real *b,
                        const tke_real *c, tke_real *out);
/* y [p] of row i of the chunk, whose rows up to i are there; products: C_i.B_j. */
void tke_space_row(const tke_space_shape *, const tke_space_chunk *, size_t i, const tke_real *c,
                   const tke_real *products, tke_real *y);
/* The state after a full chunk. */
void tke_space_advance(const tke_space_shape *, const tke_space_chunk *);

/* ---- backward, one chunk of one head at a time, the last first ---- */

typedef struct tke_space_grads {
    size_t rows;           /* of the chunk */
    const tke_real *b, *c; /* rows, n_stride apart */
    size_t n_stride;
    const tke_real *u, *dy; /* rows, p_stride apart */
    size_t p_stride;
    const tke_real *a; /* a_stride apart */
    size_t a_stride;
    const tke_real *s; /* the state before the chunk */
    tke_real *ds;      /* the gradient of the state after it; becomes that before it */
    tke_real *db, *dc; /* added to, n_stride apart */
    tke_real *du;      /* written, p_stride apart */
    tke_real *da;      /* written, a_stride apart */
    tke_real *scratch; /* tke_space_scratch numbers */
} tke_space_grads;

size_t tke_space_scratch(const tke_space_shape *);
void tke_space_backward(const tke_space_shape *, const tke_space_grads *);

#endif
