/* cuda_strip.cuh - what an adapter adds to a strip of rows, by one warp without shared memory: 16 MT rows, 16 columns at a time, ranks
 * of up to 16 KS. Sums run along the rank in the order of every other product.
 */
#ifndef TKE_CUDA_STRIP_CUH
#define TKE_CUDA_STRIP_CUH

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_warp.cuh"

typedef struct strip { /* rows of one warp and the matrices of their adapter */
    const tcu_segment *s;
    const tcu_group *g;
    int row, n; /* n: rows from `row` on that exist */
    int k;      /* padded rank, 0 without an adapter */
    float scale;
} strip;

/* The rows of a tile from m0 on. False if there are none. */
DEVICE bool find_strip(const tcu_lora &p, int tile, int m0, strip *at)
{
    tcu_tile t = p.tiles[tile];
    if (t.segment < 0 || m0 >= t.n)
        return false;
    at->s = p.segments + t.segment;
    at->g = at->s->groups + p.group;
    at->row = t.row + m0;
    at->n = t.n - m0;
    at->k = at->s->rank && at->g->n > 0 ? at->s->padded : 0;
    at->scale = at->s->scale;
    return true;
}

/* low of a strip as left operands. Of 16 numbers along the rank a lane has four neighbours, here and in B: the sum of 16 products does not
 * depend on their order. */
template <int KS, int MT> DEVICE void strip_low(const tcu_lora &p, const strip &at, const bf16 *low, int module, uint32_t (&a)[KS][MT][4])
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        int row = i * 8 + g;
        const bf16 *from = low + (int64_t)(at.row + row) * p.ld_low + module * at.k + t * 4;
#pragma unroll
        for (int s = 0; s < KS; s++) {
            uint2 v = row < at.n && s * 16 < at.k ? *(const uint2 *)(from + s * 16) : make_uint2(0, 0);
            a[s][i / 2][i % 2] = v.x;
            a[s][i / 2][2 + i % 2] = v.y;
        }
    }
}

/* The lane's place in row 0 of a strip's B. */
DEVICE const bf16 *strip_b(const strip &at, int module)
{
    return at.s->operands + (at.k ? at.g->b[module] : 0) + threadIdx.x % 4 * 4;
}

/* The lane's part of 16 rows of B, from row c on, as right operands. They are numbered so that a lane has four neighbouring columns of y:
 * column n of tile j is 4 (n / 2) + 2 j + n % 2. */
template <int KS> DEVICE void strip_rows(uint2 (&rows)[KS][2], const bf16 *b, int k, int c, int columns)
{
    int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int column = c + g / 2 * 4 + j * 2 + g % 2;
        const bf16 *from = b + (int64_t)(column < columns ? column : 0) * k;
#pragma unroll
        for (int s = 0; s < KS; s++)
            rows[s][j] = s * 16 < k ? __ldg((const uint2 *)(from + s * 16)) : make_uint2(0, 0);
    }
}

/* acc += B low. */
template <int KS, int MT>
DEVICE void strip_multiply(float (&acc)[MT][2][4], const uint32_t (&a)[KS][MT][4], const uint2 (&rows)[KS][2], int k)
{
#pragma unroll
    for (int s = 0; s < KS; s++) {
        if (s * 16 >= k)
            break;
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int m = 0; m < MT; m++)
                mma(acc[m][j], a[s][m], rows[s][j].x, rows[s][j].y);
    }
}

/* acc += B low for columns c .. c + 15. */
template <int KS, int MT>
DEVICE void strip_high(float (&acc)[MT][2][4], const uint32_t (&a)[KS][MT][4], const bf16 *b, int k, int c, int columns)
{
    uint2 rows[KS][2];
    strip_rows<KS>(rows, b, k, c, columns);
    strip_multiply<KS, MT>(acc, a, rows, k);
}

/* Row i * 8 + .. of a strip: base + scale B low. */
template <int MT> DEVICE void strip_add(float4 &x, const float (&acc)[MT][2][4], int i, const strip &at)
{
    float *v = &x.x;
#pragma unroll
    for (int e = 0; e < 4; e++)
        v[e] = at.k ? __fmaf_rn(at.scale, acc[i / 2][e / 2][i % 2 * 2 + e % 2], v[e]) : v[e];
}

/* bf16 of four neighbours; with a bias bf16(that + bias), as for rows without adapters. */
DEVICE uint2 strip_round(float4 x, const float *bias)
{
    float *v = &x.x;
#pragma unroll
    for (int e = 0; bias && e < 4; e++)
        v[e] = __fadd_rn(wide(narrow(v[e])), bias[e]);
    return make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}

#endif
