/* cuda_heads.cuh - a head of a row, held by eight lanes: norm, rotation, and where queries, keys and values go.
 */
#ifndef TKE_CUDA_HEADS_CUH
#define TKE_CUDA_HEADS_CUH

#include "cuda/cuda_rows.cuh"

/* Lane l of eight holds numbers 4 l .. 4 l + 3 and 32 + 4 l .. 32 + 4 l + 3 of both halves: what lanes 4 l .. 4 l + 3 of a warp hold in
 * cuda_rows.cuh. Sums are made in the same order, so the bits are the same. */
typedef struct head_part {
    float4 lo[PAIRS], hi[PAIRS];
} head_part;

DEVICE int part_at(int pair)
{
    return threadIdx.x % 8 * 4 + pair * 32;
}

/* at(j): numbers j .. j + 3 of the head. */
template <typename F> DEVICE head_part part_from(int half, F at)
{
    head_part r;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int j = part_at(p);
        bool there = j < half;
        r.lo[p] = there ? unpack4(at(j)) : make_float4(0, 0, 0, 0);
        r.hi[p] = there ? unpack4(at(half + j)) : make_float4(0, 0, 0, 0);
    }
    return r;
}

DEVICE head_part part_load(const bf16 *x, int half)
{
    return part_from(half, [&](int j) { return __ldcg((const uint2 *)(x + j)); });
}

DEVICE void part_store(const head_part &r, int half, bf16 *x)
{
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int j = part_at(p);
        if (j < half) {
            *(uint2 *)(x + j) = pack4(r.lo[p]);
            *(uint2 *)(x + half + j) = pack4(r.hi[p]);
        }
    }
}

/* Numbers of a table [half] or [2 half]: weights of a norm, cosines or sines. */
DEVICE void part_table(const float *w, int half, float4 out[PAIRS])
{
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
        out[p] = part_at(p) < half ? __ldg((const float4 *)(w + part_at(p))) : make_float4(0, 0, 0, 0);
}

DEVICE float part_dot(const head_part &a, const head_part &b)
{
    float sum[4] = {};
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = fmaf((&a.lo[p].x)[i], (&b.lo[p].x)[i], fmaf((&a.hi[p].x)[i], (&b.hi[p].x)[i], sum[i]));
#pragma unroll
    for (int d = 4; d; d >>= 1)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], d);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

DEVICE void part_rotate(head_part &r, const tcu_heads &p, int pos, float sign)
{
    int half = p.d / 2;
    float4 cosine[PAIRS], sine[PAIRS];
    part_table(p.cosine + (int64_t)pos * half, half, cosine);
    part_table(p.sine + (int64_t)pos * half, half, sine);
#pragma unroll
    for (int q = 0; q < PAIRS; q++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float c = (&cosine[q].x)[i], s = sign * (&sine[q].x)[i], a = (&r.lo[q].x)[i], b = (&r.hi[q].x)[i];
            (&r.lo[q].x)[i] = fmaf(a, c, -(b * s));
            (&r.hi[q].x)[i] = fmaf(b, c, a * s);
        }
}

DEVICE float4 times(float4 a, float4 b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

DEVICE float4 times(float4 a, float b)
{
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

/* Norm and rotation of a query or key; then it, or a value, goes to its place. All lanes must take part; `there`: the row exists. */
DEVICE void part_finish(head_part &x, const tcu_heads &p, int row, int head, bool there, bf16 *q, bf16 *k, const tcu_paged &cache)
{
    int pos = p.positions[row], half = p.d / 2;
    bool value = head >= p.n_heads + p.n_kv_heads, key = !value && head >= p.n_heads;
    if (p.q_norm && p.k_norm) {
        float4 lo[PAIRS], hi[PAIRS];
        const float *norm = key ? p.k_norm : p.q_norm;
        part_table(norm, half, lo);
        part_table(norm + half, half, hi);
        float rho = rsqrtf(part_dot(x, x) / (float)p.d + p.eps);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            x.lo[i] = value ? x.lo[i] : times(lo[i], times(x.lo[i], rho));
            x.hi[i] = value ? x.hi[i] : times(hi[i], times(x.hi[i], rho));
        }
    }
    if (!there || pos < 0)
        return;
    if (!value)
        part_rotate(x, p, pos, 1);
    if (!key && !value) {
        part_store(x, half, q + ((int64_t)row * p.n_heads + head) * p.d);
    } else if (!cache.data) {
        part_store(x, half, k + ((int64_t)row * p.n_kv_heads + head - p.n_heads) * p.d);
    } else {
        int slot = cache.slots[row], h = head - p.n_heads - (value ? p.n_kv_heads : 0);
        bf16 *to = cache.data + (int64_t)(slot / TCU_CACHE_TOKENS) * cache.stride + (value ? cache.values : 0);
        part_store(x, half, to + (int64_t)(h * TCU_CACHE_TOKENS + slot % TCU_CACHE_TOKENS) * p.d);
    }
}

#endif
