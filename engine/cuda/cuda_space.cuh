/* cuda_space.cuh - what the state-space rule's kernels share: tiles of a chunk, time steps, decays. */
#ifndef TKE_CUDA_SPACE_CUH
#define TKE_CUDA_SPACE_CUH

#include "cuda/cuda_space.h"
#include "cuda/cuda_warp.cuh"

enum { CHUNK = TCU_SPACE_CHUNK, P = TCU_SPACE_P, N = TCU_SPACE_N };

typedef struct decays { /* of a chunk's rows; those that are not there have time step and decay 0 */
    float hi[CHUNK], lo[CHUNK]; /* A_i: a double in two parts */
    float step[CHUNK];          /* time steps */
    float soft[CHUNK], in[CHUNK]; /* before the limits; what softplus read */
} decays;

/* e^(A_i - A_j), rounded once. */
DEVICE float fade(const decays &d, int i, int j)
{
    return expf((d.hi[i] - d.hi[j]) + (d.lo[i] - d.lo[j]));
}

/* e^A_i */
DEVICE float faded(const decays &d, int i)
{
    return expf(d.hi[i] + d.lo[i]);
}

/* By one warp: time steps of rows below n, of which at(i) is the product, and the sums of their decays in double, in a tree in which
 * a position reads only those before it. */
template <typename F> DEVICE void make_decays(const tcu_space_rule &p, int head, int n, decays &d, F at)
{
    int lane = threadIdx.x % 32;
    double sum[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = lane + 32 * k;
        float step = 0, soft = 0, x = 0;
        if (i < n) {
            x = wide(*at(i)) + p.dt_bias[head];
            soft = x > 20 ? x : log1pf(expf(x));
            step = fminf(fmaxf(soft, p.step_min), p.step_max);
        }
        d.step[i] = step;
        d.soft[i] = soft;
        d.in[i] = x;
        sum[k] = i < n ? -(double)(step * p.decay[head]) : 0;
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            double before = __shfl_up_sync(0xffffffffu, sum[k], far);
            sum[k] += lane >= far ? before : 0;
        }
    }
    sum[1] += __shfl_sync(0xffffffffu, sum[0], 31);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        d.hi[lane + 32 * k] = (float)sum[k];
        d.lo[lane + 32 * k] = (float)(sum[k] - (double)d.hi[lane + 32 * k]);
    }
}

/* A tile [ROWS][COLS]: rows first .. of a chunk; those from begin on and below end are `width` numbers at at(i), the others zero.
 * Words of 16 bytes if the width allows it. any: an address that can be read. */
template <int COLS, int ROWS = CHUNK, typename F>
DEVICE void load_tile(bf16 *tile, int begin, int end, int width, const bf16 *any, F at, int first = 0)
{
    for (int k = threadIdx.x; k < ROWS * (COLS / 8); k += blockDim.x) {
        int row = k / (COLS / 8), c = k % (COLS / 8), i = first + row;
        bool there = i >= begin && i < end && c * 8 < width;
        const bf16 *from = there ? at(i) + c * 8 : any;
        bf16 *to = tile + swizzle<COLS>(row, c);
        if (width % 8 == 0) {
            copy16(to, from, there);
            continue;
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            to[e] = there && c * 8 + e < width ? from[e] : narrow(0);
    }
}

/* ---- fragments of tiles [..][COLS] ---- */

/* a: rows m0 .. m0 + 15, columns k0 .. k0 + 15 */
template <int COLS> DEVICE void frag(uint32_t f[4], const bf16 *tile, int m0, int k0)
{
    int lane = threadIdx.x % 32;
    ldmatrix(f, tile + swizzle<COLS>(m0 + (lane & 15), k0 / 8 + (lane >> 4)));
}

/* a, transposed: columns m0 .. are its rows, rows k0 .. its columns */
template <int COLS> DEVICE void frag_turned(uint32_t f[4], const bf16 *tile, int m0, int k0)
{
    int lane = threadIdx.x % 32;
    ldmatrix_transposed(f, tile + swizzle<COLS>(k0 + (lane & 7) + ((lane >> 4) << 3), m0 / 8 + ((lane >> 3) & 1)));
}

/* b of two tiles of 8 columns: rows n0 .. n0 + 15 are its columns, columns k0 .. its rows */
template <int COLS> DEVICE void other(uint32_t g[4], const bf16 *tile, int n0, int k0)
{
    int lane = threadIdx.x % 32;
    ldmatrix(g, tile + swizzle<COLS>(n0 + (lane & 7) + ((lane >> 4) << 3), k0 / 8 + ((lane >> 3) & 1)));
}

/* b of two tiles of 8 columns: rows k0 .. of the tile, columns n0 .. n0 + 15 */
template <int COLS> DEVICE void other_turned(uint32_t g[4], const bf16 *tile, int n0, int k0)
{
    int lane = threadIdx.x % 32;
    ldmatrix_transposed(g, tile + swizzle<COLS>(k0 + (lane & 15), n0 / 8 + (lane >> 4)));
}

DEVICE void mma_two(float a[2][4], const uint32_t f[4], const uint32_t g[4])
{
    mma(a[0], f, g[0], g[1]);
    mma(a[1], f, g[2], g[3]);
}

/* Two numbers as a sum of two bf16 each. */
DEVICE void split(float x, float y, uint32_t *hi, uint32_t *lo)
{
    *hi = pack(x, y);
    float2 near = unpack(*hi);
    *lo = pack(x - near.x, y - near.y);
}

DEVICE int head_group(const tcu_space_rule &p, int head)
{
    return head / (p.n_heads / p.n_groups);
}

/* The place of the state after chunk e of a sequence that begins at a row: those of all sequences lie side by side. */
DEVICE int64_t edge_at(const tcu_space_rule &p, const tcu_run &r, int e, int head)
{
    return ((int64_t)(r.row / CHUNK + e) * p.n_heads + head) * (P * N);
}

/* Numbers of a row of the open chunk: x, B, times. */
static __host__ __device__ inline int open_width(const tcu_space_rule &p)
{
    return p.c_at + (p.n_heads + 7) / 8 * 8;
}

DEVICE bf16 *open_chunk(const tcu_space_rule &p, int slot)
{
    return (bf16 *)(p.slots + slot * p.stride + (int64_t)p.n_heads * P * N * 4);
}

#endif
