/* kernels.h - the arithmetic of the engine, on the processor.
 *
 * Matrices are row-major; a row is a token unless said otherwise. `ld` is the distance of rows in
 * elements. Buffers need no more than their type's alignment. Nothing here allocates or fails: all
 * scratch memory is made with the tke_cpu. Work is spread over its threads.
 *
 * Bits. Each output row depends on its own inputs only: not on the other rows of the call, nor on
 * how many there are, nor on the number of threads. Splitting a call into several, by rows or (for
 * products that accumulate) along the summed dimension, changes no bit. docs/kernels.md has the
 * contract of each kernel. Bits do differ between kernel sets (TKE_ISA_*) and precisions.
 *
 * A tke_cpu is used by one thread at a time.
 */
#ifndef TKE_KERNELS_KERNELS_H
#define TKE_KERNELS_KERNELS_H

#include "base/err.h"
#include "math/adam.h"
#include "math/dtype.h"
#include "math/threads.h"

typedef struct tke_cpu tke_cpu;

enum { /* kernel sets, slowest first */
       TKE_ISA_AUTO =
           0, /* what $TINKC_ENGINE_ISA names, else the best of this machine */
       TKE_ISA_REF = 1,
       TKE_ISA_NEON = 2,
       TKE_ISA_AVX2 = 3,
       TKE_ISA_AVX512 = 4
};
typedef struct tke_cpu_options {
    int32_t n_threads; /* 0 = all processors */
    int32_t isa;       /* TKE_ISA_*; one that this machine lacks is an error */
    int32_t precision; /* TKE_PRECISION_*, AUTO too; bf16 works everywhere, fast with avx512_bf16 */
} tke_cpu_options;

/* options NULL = all zero. */
tke_cpu *tke_cpu_new(const tke_cpu_options *options, tinkc_error *err);
void tke_cpu_free(tke_cpu *); /* NULL allowed */
/* "ref", "neon", "neon+bf16", "avx2", "avx512", "avx512+bf16": static. */
const char *tke_cpu_name(const tke_cpu *);
tke_threads *tke_cpu_threads(tke_cpu *);
/* True if this machine can run the set. */
bool tke_isa_available(int32_t isa);

/* ---- products ----
 *
 * c[m][n] = alpha * a * b, or with `accumulate` c += that. Each element is one chain of additions
 * along k, in order, that starts at 0 or at c.
 */
typedef enum tke_form {
    TKE_NT, /* a[m][k] * b[n][k]: x times the transpose of a stored weight [out, in] */
    TKE_NN, /* a[m][k] * b[k][n]: dy times a stored weight                           */
    TKE_TN  /* a[k][m] * b[k][n]: gradients of adapters, k = tokens                  */
} tke_form;

typedef struct tke_gemm {
    tke_form form;
    bool accumulate;
    bool exact; /* fp32 products in bf16 precision too */
    int64_t m, n, k;
    tke_real alpha; /* a is multiplied by it first */
    const tke_real *a;
    int64_t lda;
    tke_matrix b;
    tke_real *c; /* overlaps neither a nor b */
    int64_t ldc;
} tke_gemm;

void tke_gemm_run(tke_cpu *, const tke_gemm *);
/* Products that do not depend on each other (q, k, v; segments of adapters), as one loop. */
void tke_gemm_run_all(tke_cpu *, const tke_gemm *calls, size_t n_calls);

/* ---- rows ---- */

/* out[i] = e[ids[i]]; ids are below e's number of rows. */
void tke_embed(tke_cpu *, int64_t rows, int64_t n, const int32_t *ids, tke_matrix e, tke_real *out);
/* Each row of y becomes the vector (bias before an accumulating product). */
void tke_fill_rows(tke_cpu *, int64_t rows, int64_t n, tke_matrix vector, tke_real *y, int64_t ldy);
/* y += x, rows * n numbers in a row each. */
void tke_add(tke_cpu *, int64_t count, const tke_real *x, tke_real *y);

/* y = w * x / sqrt(mean(x^2) + eps), by rows of n. y may be x. Per head: rows = tokens * heads. */
void tke_rmsnorm(tke_cpu *, int64_t rows, int64_t n, const tke_real *x, tke_matrix w, tke_real eps,
                 tke_real *y);
/* dx = the gradient (+ dx with accumulate); dx may be dy when it does not accumulate. */
void tke_rmsnorm_backward(tke_cpu *, int64_t rows, int64_t n, const tke_real *x, tke_matrix w,
                          tke_real eps, const tke_real *dy, tke_real *dx, bool accumulate);

/* Rotates in place: each row has `heads` heads of d numbers; cos and sin are tables [pos][d/2].
 * inverse: by the negative angle, for gradients. */
void tke_rope(tke_cpu *, int64_t rows, int64_t heads, int64_t d, const int32_t *positions,
              const tke_real *cos_table, const tke_real *sin_table, bool inverse, tke_real *x,
              int64_t ldx);

/* m = silu(g) * u. m may be g or u. */
void tke_swiglu(tke_cpu *, int64_t count, const tke_real *g, const tke_real *u, tke_real *m);
/* dg, du may be g, u or dm in any combination of distinct buffers. */
void tke_swiglu_backward(tke_cpu *, int64_t count, const tke_real *g, const tke_real *u,
                         const tke_real *dm, tke_real *dg, tke_real *du);
/* y = max(x, 0)^2; and x, once it is used, becomes its gradient. */
void tke_relu_squared(tke_cpu *, int64_t count, const tke_real *x, tke_real *y);
void tke_relu_squared_backward(tke_cpu *, int64_t count, const tke_real *dy, tke_real *x);

/* ---- attention: causal, grouped heads, tiled ----
 *
 * Keys are taken in blocks of TKE_KEY_BLOCK counted from position 0, in order. Both functions
 * below give a row the same bits, so cached decoding equals the training forward.
 */
enum { TKE_KEY_BLOCK = 64 }; /* TKE_MAX_HEAD_DIM and TKE_MAX_HEAD_GROUP apply too */

typedef struct tke_attention {
    int32_t n_heads, n_kv_heads,
        head_dim;   /* head h reads key/value head h / (n_heads/n_kv_heads) */
    int64_t window; /* 0 = none; else the last `window` positions, own included */
    tke_real scale; /* 1/sqrt(head_dim) */
    /* [n_heads], or NULL: one more score in each row's softmax, which has no value. The rows of
     * weights then sum to less than 1. */
    const tke_real *sinks;
} tke_attention;

/* Packed sequences: rows starts[i] .. starts[i+1]-1 are sequence i, positions from 0. q, o are
 * [rows][n_heads*d], k, v [rows][n_kv_heads*d], lse [rows][n_heads] (may be NULL). */
void tke_attention_forward(tke_cpu *, const tke_attention *, int64_t n_seqs, const int64_t *starts,
                           const tke_real *q, const tke_real *k, const tke_real *v, tke_real *o,
                           tke_real *lse);

typedef struct tke_attention_grads {
    const tke_real *q, *k, *v, *o, *lse, *d_o;
    tke_real *dq, *dk, *dv; /* written, not added to; overlap nothing */
    tke_real *delta;        /* scratch, [rows][n_heads] */
} tke_attention_grads;

void tke_attention_backward(tke_cpu *, const tke_attention *, int64_t n_seqs, const int64_t *starts,
                            const tke_attention_grads *);

/* Keys and values in blocks. Position p of a sequence is row p % block_tokens of block
 * ids[p / block_tokens]; that block begins at element id * block_stride of k and of v, and holds
 * [n_kv_heads][block_tokens][d]: what one head reads lies together. (One layer: let k and v point
 * at the layer's part.) */
typedef struct tke_kv_cache {
    void *k, *v;
    tke_dtype dtype;      /* TKE_REAL for equal bits with training; TKE_BF16 */
    int32_t block_tokens; /* divides TKE_KEY_BLOCK */
    int64_t block_stride; /* elements */
} tke_kv_cache;

/* n_rows new tokens of one sequence: rows first_row ... of q, at positions first_pos ... */
typedef struct tke_kv_seq {
    int64_t first_row, n_rows, first_pos;
    const int32_t *ids;
} tke_kv_seq;

/* Stores the rows of k, v at their positions. */
void tke_kv_store(tke_cpu *, const tke_attention *, const tke_kv_cache *, int64_t n_seqs,
                  const tke_kv_seq *, const tke_real *k, const tke_real *v);
/* Attention of each row over positions 0 .. its own, all of which have been stored. */
void tke_attention_cached(tke_cpu *, const tke_attention *, const tke_kv_cache *, int64_t n_seqs,
                          const tke_kv_seq *, const tke_real *q, tke_real *o);

/* ---- the vocabulary, in blocks ----
 *
 * A row's log-sum-exp runs over columns in pieces of TKE_VOCAB_BLOCK from column 0: every block
 * but the last must be a multiple of it. Then blocking changes no bit.
 */
enum { TKE_VOCAB_BLOCK = 512 };

/* Before the first block. */
void tke_lse_start(int64_t rows, tke_real *max, tke_real *sum);
/* Takes in n more columns of z. */
void tke_lse_update(tke_cpu *, int64_t rows, int64_t n, const tke_real *z, int64_t ldz,
                    tke_real *max, tke_real *sum);
/* lse = max + log(sum); may be written over max or sum. */
void tke_lse_finish(int64_t rows, const tke_real *max, const tke_real *sum, tke_real *lse);
/* z[i][v] = scale[i] * exp(z[i][v] - lse[i]): in place, for dz (scale = -sum of g). */
void tke_softmax_scaled(tke_cpu *, int64_t rows, int64_t n, tke_real *z, int64_t ldz,
                        const tke_real *lse, const tke_real *scale);

/* ---- reductions and the optimizer ---- */

/* Sum of squares in double, in blocks of fixed order. */
double tke_sum_squares(tke_cpu *, int64_t count, const tke_real *x);
bool tke_all_finite(tke_cpu *, int64_t count, const tke_real *x);

/* One AdamW step as torch does it; g is left as it was. Returns sum of squares of the change. All or
 * nothing: if a new weight or moment is not finite, nothing changes and it returns NaN. */
double tke_adam_step(tke_cpu *, const tke_adam *, int64_t count, const tke_real *g, tke_real *theta,
                     tke_real *m, tke_real *v);

#endif
