/* cuda_grouped.cuh - what the forms of products of experts share: where a tile's rows lie, and where its sums go. */
#ifndef TKE_CUDA_GROUPED_CUH
#define TKE_CUDA_GROUPED_CUH

#include "cuda/cuda_chain.cuh"
#include "cuda/cuda_experts.h"

typedef struct place { /* what a block computes */
    tcu_tile t;
    int part, n0, columns; /* columns of the part from n0 on */
} place;

/* The rows of a tile: in x, in the batch, and their segments. */
template <int BM> struct tile_rows {
    int x[BM], row[BM], segment[BM];
};

template <int BM> DEVICE void find_rows(const tcu_grouped &p, const tcu_tile &t, int first, bool segments, tile_rows<BM> &at)
{
    for (int i = threadIdx.x; i < BM; i += blockDim.x) {
        int pair = t.row + first + (first + i < t.n ? i : 0), row = p.pairs.slot_of[pair] / p.pairs.top;
        at.x[i] = p.by_row ? row : pair;
        at.row[i] = row;
        at.segment[i] = segments ? p.segment_of[row] : 0;
    }
    __syncthreads();
}

/* The factor of segment s that belongs to this block; false if it has none. */
DEVICE bool own_factor(const tcu_grouped &p, const place &at, const tcu_segment &s, operand *b)
{
    if (!s.rank)
        return false;
    const tcu_group *g = &s.groups[p.lora.group];
    int64_t e = at.t.segment;
    if (!g->n)
        return false;
    if (p.transposed)
        *b = { s.operands + g->a + e * s.padded * g->in + at.n0, g->in, at.columns, NULL };
    else
        *b = { s.operands + g->b[at.part] + (e * g->out[at.part] + at.n0) * s.padded, s.padded, at.columns, NULL };
    return true;
}

DEVICE void put_pair(const tcu_grouped &p, const place &at, int width, int r, int j, float x, float y)
{
    if (r >= at.t.n || j >= at.columns)
        return;
    int64_t columns = (int64_t)p.parts * width, c = (int64_t)at.part * width + at.n0 + j;
    if (p.bias) {
        x = __fadd_rn(x, p.bias[at.t.segment * columns + c]);
        y = __fadd_rn(y, p.bias[at.t.segment * columns + c + 1]);
    }
    *(uint32_t *)(p.y + (at.t.row + r) * columns + c) = pack(x, y);
}

#endif
