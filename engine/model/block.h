/* block.h - the forward pass of one transformer block, in the two halves around its attention.
 *
 * Training and sampling run this same code, so a token has the same bits in both. Rows are tokens;
 * a segment is a run of rows with one adapter. Nothing here allocates.
 */
#ifndef TKE_MODEL_BLOCK_H
#define TKE_MODEL_BLOCK_H

#include "kernels/kernels.h"
#include "model/lora.h"

typedef struct tke_segment {
    size_t begin, end;    /* rows */
    const tke_lora *lora; /* NULL = the bare model */
} tke_segment;

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

/* Activations of one layer for n rows; see tke_acts_floats for the sizes. */
typedef struct tke_acts {
    tke_real *a;               /* [H] the normed input */
    tke_real *q_pre, *k_pre;   /* before the q/k norm; equal to q, k without one */
    tke_real *q, *k, *v;       /* after norm and rotation */
    tke_real *o;               /* [n d] */
    tke_real *lse;             /* [n_heads], training only */
    tke_real *h_mid;           /* [H] after the attention */
    tke_real *b;               /* [H] h_mid normed */
    tke_real *g, *u;           /* [I] gate and up */
    tke_real *m;               /* [I] silu(g) * u */
    tke_real *low[TKE_GROUPS]; /* A x of each group: [group size * max_rank] */
} tke_acts;

/* y[i] = W_i x (+ bias) (+ adapter) for the matrices of a group. low may not be NULL where a
 * segment has an adapter. */
void tke_group_forward(const tke_rows *, const tke_weight *w, size_t n, size_t group,
                       const tke_real *x, tke_real *const *y, tke_real *low);

/* Only low = A x, of a group of n matrices. */
void tke_group_low(const tke_rows *, size_t n, size_t group, const tke_real *x, tke_real *low);

/* h [n, H] -> a, q_pre, k_pre, q, k, v. */
void tke_block_before_attention(const tke_rows *, size_t layer, const tke_real *h, tke_acts *);
/* o -> h_mid, b, g, u, m, and h_out (may be h). h_out NULL: all but the down projection, for a
 * recomputation that wants only what the backward pass reads. */
void tke_block_after_attention(const tke_rows *, size_t layer, const tke_real *h, tke_acts *,
                               tke_real *h_out);

tke_attention tke_block_attention(const tke_model *, size_t layer);

/* Index of a group in a layout; layer n_layers with group 0 is the output projection. */
static inline size_t tke_group_index(size_t layer, size_t group)
{
    return layer * TKE_GROUPS + group;
}
size_t tke_head_group(const tke_model *);

/* ---- rotation tables ---- */

typedef struct tke_rope_table {
    tke_real *cos_table, *sin_table; /* [n, d/2] */
    size_t n;
} tke_rope_table;
/* At least n positions; keeps what is there. Zeroed = empty. */
bool tke_rope_table_grow(tke_rope_table *, const tke_config *, size_t n, tinkc_error *err);
void tke_rope_table_free(tke_rope_table *);

#endif
