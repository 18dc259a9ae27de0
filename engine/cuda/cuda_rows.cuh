/* cuda_rows.cuh - the arithmetic of a row that several kernels share: norms, rotation, SwiGLU.
 *
 * What other blocks of a running launch may have written is read past the first cache (__ldcg). A norm is summed by 256
 * threads in one fixed tree, so a row has the same bits wherever it is made.
 */
#ifndef TKE_CUDA_ROWS_CUH
#define TKE_CUDA_ROWS_CUH

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_warp.cuh"

enum { ROW_THREADS = 256, ROW_PIECE = ROW_THREADS * 4 }; /* a thread holds M float4: rows of up to M * ROW_PIECE numbers */

DEVICE float4 add_pairs(float4 x, uint2 y)
{
    float2 a = unpack(y.x), b = unpack(y.y);
    return make_float4(x.x + a.x, x.y + a.y, x.z + b.x, x.w + b.y);
}

DEVICE uint2 pack4(float4 x)
{
    return make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}

DEVICE float4 unpack4(uint2 v)
{
    float2 a = unpack(v.x), b = unpack(v.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

DEVICE float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

DEVICE float4 norm4(float4 x, float rho, float4 w)
{
    return make_float4(w.x * (x.x * rho), w.y * (x.y * rho), w.z * (x.z * rho), w.w * (x.w * rho));
}

/* A thread's weights of a norm; they can be read before the row is there. */
template <int M> DEVICE void norm_weights(const float *w, int n, float4 out[M])
{
#pragma unroll
    for (int j = 0; j < M; j++) {
        int i = threadIdx.x + j * ROW_THREADS;
        if (i * 4 >= n)
            break;
        out[j] = ((const float4 *)w)[i];
    }
}

/* The norm of x times w, by a whole block: put(i, v) gets numbers 4 i .. 4 i + 3. */
template <int M, typename F> DEVICE void norm_put(const float4 x[M], const float4 w[M], float eps, int n, F put)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < M; j++) {
        if ((threadIdx.x + j * ROW_THREADS) * 4 >= n)
            break;
        sum = dot4(x[j], x[j], sum);
    }
    float rho = rsqrtf(block_sum(sum) / (float)n + eps);
#pragma unroll
    for (int j = 0; j < M; j++) {
        int i = threadIdx.x + j * ROW_THREADS;
        if (i * 4 >= n)
            break;
        put(i, pack4(norm4(x[j], rho, w[j])));
    }
}

/* One row, by a whole block: h + y (y may be NULL) to h_out (or NULL). If it is wanted, put(i, v) gets numbers 4 i .. 4 i + 3 of its
 * norm times w. n is a multiple of 4. */
template <int M, typename F>
DEVICE void norm_row(const float *h, const bf16 *y, float *h_out, const float4 w[M], float eps, int n, bool wanted, F put)
{
    float4 x[M];
#pragma unroll
    for (int j = 0; j < M; j++) {
        int i = threadIdx.x + j * ROW_THREADS;
        if (i * 4 >= n)
            break;
        x[j] = __ldcg((const float4 *)h + i);
        if (y)
            x[j] = add_pairs(x[j], __ldcg((const uint2 *)y + i));
        if (h_out)
            ((float4 *)h_out)[i] = x[j];
    }
    if (wanted)
        norm_put<M>(x, w, eps, n, put);
}

/* ---- heads: one warp each ---- */

enum { PAIRS = 2 }; /* a lane holds numbers j and j + d/2 for up to two j */

typedef struct head_row {
    float lo[PAIRS], hi[PAIRS];
} head_row;

/* at(j): number j of the head. */
template <typename F> DEVICE head_row head_of(int half, F at)
{
    head_row r;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int j = threadIdx.x % 32 + p * 32;
        r.lo[p] = j < half ? wide(at(j)) : 0;
        r.hi[p] = j < half ? wide(at(half + j)) : 0;
    }
    return r;
}

DEVICE head_row head_load(const bf16 *x, int half)
{
    return head_of(half, [&](int j) { return __ldcg(x + j); });
}

DEVICE void head_store(const head_row &r, int half, bf16 *x)
{
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int j = threadIdx.x % 32 + p * 32;
        if (j < half) {
            x[j] = narrow(r.lo[p]);
            x[half + j] = narrow(r.hi[p]);
        }
    }
}

DEVICE head_row head_weights(const float *w, int half)
{
    head_row r;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int j = threadIdx.x % 32 + p * 32;
        r.lo[p] = w && j < half ? w[j] : 1;
        r.hi[p] = w && j < half ? w[half + j] : 1;
    }
    return r;
}

DEVICE float head_dot(const head_row &a, const head_row &b)
{
    float sum = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
        sum = fmaf(a.lo[p], b.lo[p], fmaf(a.hi[p], b.hi[p], sum));
    return warp_sum(sum);
}

typedef struct head_angles { /* what a position does to a head; can be read before the head is there */
    float c[PAIRS], s[PAIRS];
} head_angles;

DEVICE head_angles angles_at(const tcu_heads &p, int pos)
{
    head_angles t;
    int half = p.d / 2;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int j = threadIdx.x % 32 + i * 32;
        t.c[i] = j < half ? p.cosine[(int64_t)pos * half + j] : 1;
        t.s[i] = j < half ? p.sine[(int64_t)pos * half + j] : 0;
    }
    return t;
}

/* sign 1 rotates, -1 rotates back. */
DEVICE void head_rotate(head_row &r, const head_angles &t, float sign)
{
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        float c = t.c[i], s = sign * t.s[i], a = r.lo[i], b = r.hi[i];
        r.lo[i] = fmaf(a, c, -(b * s));
        r.hi[i] = fmaf(b, c, a * s);
    }
}

/* A query or key, ready for scores: norm by these weights, if there are any, and rotation. */
DEVICE void head_ready(head_row &x, const tcu_heads &p, bool norm, const head_row &w, const head_angles &t)
{
    if (norm) {
        float rho = rsqrtf(head_dot(x, x) / (float)p.d + p.eps);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            x.lo[i] = w.lo[i] * (x.lo[i] * rho);
            x.hi[i] = w.hi[i] * (x.hi[i] * rho);
        }
    }
    head_rotate(x, t, 1);
}

/* ---- SwiGLU ---- */

DEVICE float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* silu(gate) * up of two neighbours. */
DEVICE uint32_t swiglu_pair(uint32_t gate, uint32_t up)
{
    float2 x = unpack(gate), y = unpack(up);
    float silu0 = x.x * sigmoid(x.x), silu1 = x.y * sigmoid(x.y);
    return pack(silu0 * y.x, silu1 * y.y);
}

#endif
