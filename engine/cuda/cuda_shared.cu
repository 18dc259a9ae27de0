/* cuda_shared.cu - the expert of every row: its weighted result is added to that of the chosen ones, and back.
 *
 * Sums of a row are 32 sums of every 32nd piece of 8 numbers, then a tree.
 */
#include "cuda/cuda_experts.h"
#include "cuda/cuda_rows.cuh"

enum { ROWS = 8 }; /* of a block, one a warp */

DEVICE float weight_of(const tcu_shared &p, int row)
{
    return p.gate ? sigmoid(p.gate[(int64_t)row * p.ld]) : 1;
}

/* Eight numbers, two a word. */
template <typename F> DEVICE uint4 each_pair(uint4 a, uint4 b, F f)
{
    uint4 y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 x = unpack((&a.x)[i]), z = unpack((&b.x)[i]);
        (&y.x)[i] = pack(f(x.x, z.x), f(x.y, z.y));
    }
    return y;
}

__global__ void __launch_bounds__(ROWS * 32) add(tcu_shared p, const bf16 *x, bf16 *y)
{
    int row = blockIdx.x * ROWS + threadIdx.x / 32;
    if (row >= p.rows)
        return;
    float w = weight_of(p, row);
    for (int c = threadIdx.x % 32 * 8; c < p.width; c += 256) {
        uint4 *to = (uint4 *)(y + (int64_t)row * p.width + c);
        *to = each_pair(*to, *(const uint4 *)(x + (int64_t)row * p.width + c), [&](float a, float b) { return __fmaf_rn(w, b, a); });
    }
}

__global__ void __launch_bounds__(ROWS * 32) back(tcu_shared p, const bf16 *x, const bf16 *dy, bf16 *dx, float *dgate)
{
    int row = blockIdx.x * ROWS + threadIdx.x / 32;
    if (row >= p.rows)
        return;
    float w = weight_of(p, row), dot = 0;
    for (int c = threadIdx.x % 32 * 8; c < p.width; c += 256) {
        int64_t at = (int64_t)row * p.width + c;
        uint4 d = *(const uint4 *)(dy + at), h = p.gate ? *(const uint4 *)(x + at) : d;
        *(uint4 *)(dx + at) = each_pair(d, h, [&](float a, float b) {
            dot = __fmaf_rn(a, b, dot);
            return w * a;
        });
    }
    dot = warp_sum(dot);
    if (p.gate && threadIdx.x % 32 == 0)
        dgate[row] = dot * w * (1 - w);
}

__global__ void __launch_bounds__(ROWS * 32) join(tcu_shared p, const bf16 *part, const float *dgate, const bf16 *w, bf16 *dx)
{
    int row = blockIdx.x * ROWS + threadIdx.x / 32;
    if (row >= p.rows)
        return;
    float g = p.gate ? dgate[row] : 0;
    for (int c = threadIdx.x % 32 * 8; c < p.width; c += 256) {
        int64_t at = (int64_t)row * p.width + c;
        uint4 a = *(const uint4 *)(dx + at), b = *(const uint4 *)(part + at), y;
        uint4 v = p.gate ? *(const uint4 *)(w + c) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 l = unpack((&a.x)[i]), m = unpack((&b.x)[i]), n = unpack((&v.x)[i]);
            (&y.x)[i] = pack(__fmaf_rn(g, n.x, __fadd_rn(l.x, m.x)), __fmaf_rn(g, n.y, __fadd_rn(l.y, m.y)));
        }
        *(uint4 *)(dx + at) = y;
    }
}

static dim3 blocks_of(const tcu_shared *p)
{
    return dim3((p->rows + ROWS - 1) / ROWS);
}

int tcu_shared_add(const tcu_shared *p, const tcu_bf16 *x, tcu_bf16 *y, tcu_stream stream)
{
    return launch(add, blocks_of(p), ROWS * 32, 0, stream, *p, x, y);
}

int tcu_shared_back(const tcu_shared *p, const tcu_bf16 *x, const tcu_bf16 *dy, tcu_bf16 *dx, float *dgate, tcu_stream stream)
{
    return launch(back, blocks_of(p), ROWS * 32, 0, stream, *p, x, dy, dx, dgate);
}

int tcu_shared_join(const tcu_shared *p, const tcu_bf16 *part, const float *dgate, const tcu_bf16 *w, tcu_bf16 *dx, tcu_stream stream)
{
    return launch(join, blocks_of(p), ROWS * 32, 0, stream, *p, part, dgate, w, dx);
}
