/* cuda_heads_any.cu - heads of up to 256 numbers of which a part rotates or none, with or without a gate; the gate itself.
 *
 * A warp has a head of a row: lane l holds numbers l, l + 32, ... Sums are made in a fixed tree, so a head's bits depend on nothing
 * else. cuda_rows.cu has the faster form for heads that rotate as a whole.
 */
#include "cuda/cuda_heads_any.h"
#include "cuda/cuda_rows.cuh"

enum { EACH = TCU_ANY_HEAD_DIM / 32, WARPS = 8 };

typedef struct head_at { /* a head of a row, of one warp */
    int row, head, pos;
    bool value, key;
    const bf16 *from; /* in qkv */
    int64_t offset;   /* of that */
} head_at;

/* False past the end. */
DEVICE bool find_head(const tcu_any_heads &p, int heads, const bf16 *qkv, head_at *at)
{
    int i = blockIdx.x * WARPS + threadIdx.x / 32, n = p.h.n_heads, d = p.h.d;
    at->row = i / heads;
    if (at->row >= p.h.rows)
        return false;
    at->head = i - at->row * heads;
    at->key = at->head >= n && at->head < n + p.h.n_kv_heads;
    at->value = at->head >= n + p.h.n_kv_heads;
    at->pos = p.h.positions[at->row];
    int queries = p.gate ? 2 * n : n, place = at->head < n ? (p.gate ? 2 * at->head : at->head) : queries + at->head - n;
    at->offset = (int64_t)at->row * p.h.ld + (int64_t)place * d;
    at->from = qkv + at->offset;
    return true;
}

DEVICE void load_head(const bf16 *from, int d, float x[EACH])
{
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = threadIdx.x % 32 + 32 * i;
        x[i] = j < d ? wide(from[j]) : 0;
    }
}

DEVICE void store_head(const float x[EACH], int d, bf16 *to)
{
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = threadIdx.x % 32 + 32 * i;
        if (j < d)
            to[j] = narrow(x[i]);
    }
}

DEVICE float dot_head(const float a[EACH], const float b[EACH])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sum = fmaf(a[i], b[i], sum);
    return warp_sum(sum);
}

/* Numbers j and j + rotary / 2 turn together; the rest stays. near: room for a head. */
DEVICE void rotate_head(const tcu_any_heads &p, int pos, float sign, float *near, float x[EACH])
{
    int half = p.rotary / 2, lane = threadIdx.x % 32;
    if (!half)
        return;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        near[lane + 32 * i] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = lane + 32 * i;
        if (j >= 2 * half)
            continue;
        bool high = j >= half;
        int64_t at = (int64_t)pos * half + (high ? j - half : j);
        float c = p.h.cosine[at], s = sign * p.h.sine[at], other = near[high ? j - half : j + half];
        x[i] = high ? fmaf(x[i], c, other * s) : fmaf(x[i], c, -(other * s));
    }
}

DEVICE void norm_weights(const float *w, int d, float out[EACH])
{
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = threadIdx.x % 32 + 32 * i;
        out[i] = j < d ? w[j] : 0;
    }
}

__global__ void __launch_bounds__(WARPS * 32) any_forward(tcu_any_heads p, const bf16 *qkv, bf16 *q, bf16 *k, tcu_paged cache)
{
    __shared__ float near[WARPS][TCU_ANY_HEAD_DIM];
    head_at at;
    float x[EACH], w[EACH];
    int d = p.h.d;
    if (!find_head(p, p.h.n_heads + p.h.n_kv_heads * (cache.data ? 2 : 1), qkv, &at) || at.pos < 0)
        return;
    load_head(at.from, d, x);
    if (!at.value && p.h.q_norm && p.h.k_norm) {
        norm_weights(at.key ? p.h.k_norm : p.h.q_norm, d, w);
        float rho = rsqrtf(dot_head(x, x) / (float)p.used + p.h.eps);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            x[i] = w[i] * (x[i] * rho);
    }
    if (!at.value)
        rotate_head(p, at.pos, 1, near[threadIdx.x / 32], x);
    if (!at.key && !at.value) {
        store_head(x, d, q + ((int64_t)at.row * p.h.n_heads + at.head) * d);
    } else if (!cache.data) {
        store_head(x, d, k + ((int64_t)at.row * p.h.n_kv_heads + at.head - p.h.n_heads) * d);
    } else {
        int slot = cache.slots[at.row], h = at.head - p.h.n_heads - (at.value ? p.h.n_kv_heads : 0);
        bf16 *to = cache.data + (int64_t)(slot / TCU_CACHE_TOKENS) * cache.stride + (at.value ? cache.values : 0);
        store_head(x, d, to + (int64_t)(h * TCU_CACHE_TOKENS + slot % TCU_CACHE_TOKENS) * d);
    }
}

__global__ void __launch_bounds__(WARPS * 32) any_back(tcu_any_heads p, const bf16 *qkv, const bf16 *dq, const bf16 *dk, bf16 *dqkv)
{
    __shared__ float near[WARPS][TCU_ANY_HEAD_DIM];
    head_at at;
    float g[EACH], x[EACH], w[EACH];
    int d = p.h.d;
    if (!find_head(p, p.h.n_heads + p.h.n_kv_heads, qkv, &at))
        return;
    load_head(at.key ? dk + ((int64_t)at.row * p.h.n_kv_heads + at.head - p.h.n_heads) * d :
                       dq + ((int64_t)at.row * p.h.n_heads + at.head) * d,
              d, g);
    rotate_head(p, at.pos, -1, near[threadIdx.x / 32], g);
    if (p.h.q_norm && p.h.k_norm) {
        load_head(at.from, d, x);
        norm_weights(at.key ? p.h.k_norm : p.h.q_norm, d, w);
        float rho = rsqrtf(dot_head(x, x) / (float)p.used + p.h.eps);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            g[i] *= w[i];
        float back = rho * rho * rho * dot_head(x, g) / (float)p.used;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            g[i] = rho * g[i] - x[i] * back;
    }
    store_head(g, d, dqkv + at.offset);
}

/* ---- the gate: eight numbers of a head at a time ---- */

typedef struct piece {
    int64_t o, gate; /* where it is among o's numbers, and its gate's in rows of qkv */
} piece;

DEVICE bool find_piece(const tcu_any_heads &p, piece *at)
{
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 8, width = (int64_t)p.h.n_heads * p.h.d;
    int64_t row = i / width, column = i % width;
    at->o = i;
    at->gate = row * p.h.ld + (2 * (column / p.h.d) + 1) * p.h.d + column % p.h.d;
    return row < p.h.rows;
}

DEVICE uint4 load_8(const bf16 *x)
{
    return *(const uint4 *)x;
}

__global__ void __launch_bounds__(256) gate(tcu_any_heads p, const bf16 *qkv, const bf16 *o, bf16 *out)
{
    piece at;
    if (!find_piece(p, &at))
        return;
    uint4 x = load_8(o + at.o), g = load_8(qkv + at.gate), y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 a = unpack((&x.x)[i]), b = unpack((&g.x)[i]);
        (&y.x)[i] = pack(a.x * sigmoid(b.x), a.y * sigmoid(b.y));
    }
    *(uint4 *)(out + at.o) = y;
}

/* d_o of the gated output -> that of o, in its place; the gate's goes to dqkv. */
__global__ void __launch_bounds__(256) gate_back(tcu_any_heads p, const bf16 *qkv, const bf16 *o, bf16 *d_o, bf16 *dqkv)
{
    piece at;
    if (!find_piece(p, &at))
        return;
    uint4 x = load_8(o + at.o), g = load_8(qkv + at.gate), d = load_8(d_o + at.o), dg;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 a = unpack((&x.x)[i]), b = unpack((&g.x)[i]), e = unpack((&d.x)[i]);
        float s = sigmoid(b.x), t = sigmoid(b.y);
        (&dg.x)[i] = pack(e.x * a.x * (s * (1 - s)), e.y * a.y * (t * (1 - t)));
        (&d.x)[i] = pack(e.x * s, e.y * t);
    }
    *(uint4 *)(dqkv + at.gate) = dg;
    *(uint4 *)(d_o + at.o) = d;
}

/* ---- launches ---- */

static dim3 blocks_of(int64_t n, int each)
{
    return dim3((unsigned)((n + each - 1) / each));
}

int tcu_any_forward(const tcu_any_heads *p, const tcu_bf16 *qkv, tcu_bf16 *q, tcu_bf16 *k, const tcu_paged *cache, tcu_stream stream)
{
    tcu_paged none = {};
    int64_t heads = p->h.n_heads + p->h.n_kv_heads * (cache ? 2 : 1);
    return launch(any_forward, blocks_of(p->h.rows * heads, WARPS), WARPS * 32, 0, stream, *p, qkv, q, k, cache ? *cache : none);
}

int tcu_any_back(const tcu_any_heads *p, const tcu_bf16 *qkv, const tcu_bf16 *dq, const tcu_bf16 *dk, tcu_bf16 *dqkv,
                 tcu_stream stream)
{
    any_back<<<blocks_of((int64_t)p->h.rows * (p->h.n_heads + p->h.n_kv_heads), WARPS), WARPS * 32, 0, stream>>>(*p, qkv, dq, dk, dqkv);
    return cudaGetLastError();
}

int tcu_gate(const tcu_any_heads *p, const tcu_bf16 *qkv, const tcu_bf16 *o, tcu_bf16 *out, tcu_stream stream)
{
    return launch(gate, blocks_of((int64_t)p->h.rows * p->h.n_heads * p->h.d / 8, 256), 256, 0, stream, *p, qkv, o, out);
}

int tcu_gate_back(const tcu_any_heads *p, const tcu_bf16 *qkv, const tcu_bf16 *o, tcu_bf16 *d_o, tcu_bf16 *dqkv, tcu_stream stream)
{
    gate_back<<<blocks_of((int64_t)p->h.rows * p->h.n_heads * p->h.d / 8, 256), 256, 0, stream>>>(*p, qkv, o, d_o, dqkv);
    return cudaGetLastError();
}
