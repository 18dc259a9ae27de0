/* block.h - what training and sampling on the CPU share: linear layers with adapters, norms, the
 * logits. The parts of layers are in part.h.
 *
 * Both run this same code, so a token has the same bits in both. Rows are tokens; a segment is a
 * run of rows with one adapter. Only the rotation tables allocate memory. Private to
 * engine/cpu.
 */
#ifndef TKE_CPU_BLOCK_H
#define TKE_CPU_BLOCK_H

#include "device/device.h"
#include "math/kernels.h"

/* On this device a block is a plain array of numbers. */
static inline tke_real *tke_block_reals(const tke_block *b)
{
    return (tke_real *)(uintptr_t)b;
}

/* Work space is one list of buffers; the same code measures and places them. */
typedef struct tke_walk {
    tke_real *at; /* NULL = only measure */
    size_t used;
} tke_walk;
void tke_take(tke_walk *, tke_real **out, size_t count);
/* How many rows of logits to hold at a time: by vocabulary, within bounds, at most n. */
size_t tke_chunk_rows(const tke_model *, size_t least, size_t most, size_t n);

typedef struct tke_rows { /* what a batch of tokens has in common for all layers */
    tke_cpu *cpu;
    const tke_model *model;
    size_t n;
    const int32_t *positions;
    const tke_segment *segments;
    size_t n_segments;
    size_t max_rank; /* of all segments: u buffers are [n, group size * max_rank] */
    const tke_real *cos_table, *sin_table;
} tke_rows;

/* y[i] = W_i x (+ bias) (+ adapter) for the matrices of a group. low must not be NULL if a
 * segment has an adapter. */
void tke_group_forward(const tke_rows *, const tke_group *, const tke_real *x, tke_real *const *y,
                       tke_real *low);
/* Only low = A x. */
void tke_group_low(const tke_rows *, const tke_group *, const tke_real *x, tke_real *low);
/* The reverse of tke_group_forward: adds to the gradients of the segments that want them; dx (may
 * be NULL, may be x) = the gradient of x. dlow: [n, group size * max_rank]. */
void tke_group_backward(const tke_rows *, const tke_group *, const tke_real *x,
                        const tke_real *const *dy, const tke_real *low, tke_real *dlow,
                        tke_real *dx);

/* ---- what such products are made of, for parts with products of their own ---- */

enum { TKE_CALLS = 64 };
typedef struct tke_calls { /* products that do not depend on each other */
    tke_cpu *cpu;
    tke_gemm list[TKE_CALLS];
    size_t n;
} tke_calls;
void tke_calls_add(tke_calls *, const tke_gemm *); /* runs them when there are many */
void tke_calls_run(tke_calls *);

typedef struct tke_adapter_part { /* one segment's adapter on one group */
    const tke_lora_group *g;      /* NULL = none */
    size_t begin;                 /* first row */
    int64_t rows;
    const tke_real *weights;
    tke_real *grads; /* NULL = none wanted */
    tke_real scale;
} tke_adapter_part;
tke_adapter_part tke_adapter_part_of(const tke_rows *, size_t segment, const tke_group *);

/* dx (+)= dlow A, and the gradient of A += dlow^T x, where the products with B are the caller's.
 * dx may be NULL. */
void tke_group_low_backward(const tke_rows *, const tke_group *, const tke_real *x,
                            const tke_real *dlow, tke_real *dx);

/* y = the root-mean-square norm of n rows of x, scaled by w [H]. */
void tke_rows_norm(const tke_rows *, size_t n, const tke_real *x, const tke_real *w, tke_real *y);
/* dh += the gradient of x, where dy is that of y. */
void tke_rows_norm_backward(const tke_rows *, size_t n, const tke_real *x, const tke_real *w,
                            const tke_real *dy, tke_real *dh, bool accumulate);

/* ---- logits ---- */

typedef struct tke_logits {
    tke_real *hf;        /* [H] after the final norm */
    tke_real *z;         /* [V] */
    tke_real *low;       /* [max_rank] */
    tke_real *max, *sum; /* the log-sum-exp in two parts */
} tke_logits;
/* h [n, H] -> all of the above. */
void tke_rows_logits(const tke_rows *, const tke_real *h, const tke_logits *out);

/* ---- rotation tables ---- */

typedef struct tke_rope_table {
    tke_real *cos_table, *sin_table; /* [n, d/2] */
    size_t n;
} tke_rope_table;
/* Grows to at least n positions. Zeroed = empty. */
bool tke_rope_table_grow(tke_rope_table *, const tke_model *, size_t n, tinkc_error *err);
void tke_rope_table_free(tke_rope_table *);

#endif
