/* cuda_attention_back.cu - gradients of attention in two sweeps: rows for dq, key blocks for dk and dv.
 *
 * Nothing is added atomically. dq is a chain over the key blocks (of wide heads two chains), dk and dv chains over (token, head) from the block's
 * first token to the end of the sequence, in tiles of 32 rows counted from that token.
 */
#include "cuda/cuda_attention.cuh"

/* SPLIT groups of warps have a part of the keys of each block; their sums are added at the end. The first group loads. */
template <int D, int SPLIT> __global__ void __launch_bounds__(THREADS * SPLIT) back_rows(tcu_attention p)
{
    enum { OWN = KEYS / SPLIT };
    int group = threadIdx.x / THREADS, mine = group * OWN;
    bool loads = SPLIT == 1 || group == 0;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *qt = (bf16 *)shared, *ot = qt + 64 * D, *both = ot + 64 * D; /* two stages of keys and values */
    int warp = threadIdx.x % THREADS / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y, m0 = warp * 16;
    tcu_span s = p.spans[blockIdx.x];
    rows_of r = rows_make(p, s, kv_head);
    int low = p.window > 0 && s.begin >= p.window ? s.begin - p.window + 1 : 0;
    if (loads) {
        load_rows<64, D>(r, p.q, 0, qt);
        load_rows<64, D>(r, p.d_o, 0, ot);
        load_keys<D, false>(p, s, kv_head, p.k, p.ldk, low / KEYS * KEYS, s.end, both);
        load_keys<D, false>(p, s, kv_head, p.v, p.ldv, low / KEYS * KEYS, s.end, both + KEYS * D);
    }
    copy_commit();
    float scale2 = p.scale * 1.4426950408889634f, lse[2], delta[2], dq[D / 8][4] = {};
    int row[2] = { m0 + lane / 4, m0 + lane / 4 + 8 }, pos[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool there = row[half] < r.n;
        pos[half] = there ? row_position(r, row[half]) : -1;
        lse[half] = there ? p.lse[row_head(r, row[half])] : 0;
        delta[half] = there ? p.delta[row_head(r, row[half])] : 0;
    }
    for (int block = low / KEYS, stage = 0; block * KEYS < s.end; block++, stage ^= 1) {
        bf16 *kt = both + stage * 2 * KEYS * D, *vt = kt + KEYS * D, *next = both + (stage ^ 1) * 2 * KEYS * D;
        if (loads && (block + 1) * KEYS < s.end) {
            load_keys<D, false>(p, s, kv_head, p.k, p.ldk, (block + 1) * KEYS, s.end, next);
            load_keys<D, false>(p, s, kv_head, p.v, p.ldv, (block + 1) * KEYS, s.end, next + KEYS * D);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float w[OWN / 8][4], dw[OWN / 8][4];
        scores<D, OWN / 8>(w, qt, m0, kt, mine);
        scores<D, OWN / 8>(dw, ot, m0, vt, mine);
        bool all = block * KEYS + KEYS - 1 <= s.begin && p.window <= 0; /* every row sees every key: no mask */
#pragma unroll
        for (int j = 0; j < OWN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int half = e / 2, key = block * KEYS + mine + j * 8 + (lane % 4) * 2 + e % 2;
                float x = weight(w[j][e], all || sees(pos[half], key, p.window), scale2, lse[half]);
                w[j][e] = x * (dw[j][e] - delta[half]) * p.scale;
            }
        gather<D, D / 8, OWN / 16>(dq, w, kt, mine, 0);
        __syncthreads();
    }
    if (SPLIT == 2) {
        float *sums = (float *)both + threadIdx.x % THREADS; /* over the keys */
#pragma unroll
        for (int i = 0; group == 1 && i < D / 2; i++)
            sums[i * THREADS] = dq[i / 4][i % 4];
        __syncthreads();
        if (group == 1)
            return;
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            dq[i / 4][i % 4] += sums[i * THREADS];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row[half] >= r.n)
            continue;
        bf16 *to = p.dq + row_head(r, row[half]) * p.d;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            int c = j * 8 + (lane % 4) * 2;
            if (c < p.d)
                *(uint32_t *)(to + c) = pack(dq[j][half * 2], dq[j][half * 2 + 1]);
        }
    }
}

enum { TILE = 32 }; /* rows of queries at a time */

/* Rows i0 .. i0 + 31 of q, d_o, lse and delta into one stage. */
template <int D>
DEVICE void load_stage(const tcu_attention &p, const rows_of &r, int i0, bf16 *qt, bf16 *ot, float *stat)
{
    load_rows_of_two<TILE, D>(r, p.q, p.d_o, i0, qt, ot);
    if (threadIdx.x < TILE) {
        bool there = i0 + (int)threadIdx.x < r.n;
        int64_t at = there ? row_head(r, i0 + threadIdx.x) : 0;
        copy4(stat + threadIdx.x, p.lse + at); /* not used for rows past the end: their position is -1 */
        copy4(stat + TILE + threadIdx.x, p.delta + at);
        ((int *)stat)[2 * TILE + threadIdx.x] = there ? row_position(r, i0 + threadIdx.x) : -1;
    }
    copy_commit();
}

/* Weights and their gradients of a warp's keys and 16 rows of queries each, as fragments. */
struct pair_weights {
    uint32_t w[4], dw[4];
};

DEVICE void pack_pair(const float w[2][4], const float dw[2][4], pair_weights &out)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.w[i] = pack(w[i / 2][i % 2 * 2], w[i / 2][i % 2 * 2 + 1]);
        out.dw[i] = pack(dw[i / 2][i % 2 * 2], dw[i / 2][i % 2 * 2 + 1]);
    }
}

/* o[j] += w times columns c0 + j * 8 .. of 16 rows of b from k0 on. */
template <int D, int NB> DEVICE void gather_packed(float o[NB][4], const uint32_t w[4], const bf16 *b, int k0, int c0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < NB; j += 2) {
        uint32_t g[4];
        ldmatrix_transposed(g, b + swizzle<D>(k0 + (lane & 15), c0 / 8 + j + (lane >> 4)));
        mma(o[j], w, g[0], g[1]);
        mma(o[j + 1], w, g[2], g[3]);
    }
}

/* SPLIT groups of warps have a part of the columns of dk and dv each: of wide heads not all fit into registers. Each makes the weights
 * of a part of the queries, and all read them. The first group loads. */
template <int D, int SPLIT> __global__ void __launch_bounds__(THREADS * SPLIT) back_keys(tcu_attention p)
{
    enum { COLS = D / SPLIT };
    bool loads = SPLIT == 1 || threadIdx.x < THREADS;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *kt = (bf16 *)shared, *vt = kt + KEYS * D, *qt = vt + KEYS * D, *ot = qt + 2 * TILE * D;
    float *stat = (float *)(ot + 2 * TILE * D);
    pair_weights *exchange = (pair_weights *)(stat + 6 * TILE) + threadIdx.x % THREADS; /* [SPLIT][THREADS] */
    const int OWN = TILE / SPLIT, group = threadIdx.x / THREADS, mine = group * OWN;
    int warp = threadIdx.x % THREADS / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y, m0 = warp * 16;
    int c0 = (int)(threadIdx.x / THREADS) * COLS;
    tcu_span s = p.spans[blockIdx.x]; /* keys begin .. end; s.table = length */
    tcu_span queries = s;
    queries.end = s.table;
    if (p.window > 0 && s.end - 1 + p.window < queries.end)
        queries.end = s.end - 1 + p.window;
    rows_of r = rows_make(p, queries, kv_head);
    if (loads) {
        load_keys<D, false>(p, s, kv_head, p.k, p.ldk, s.begin, s.end, kt);
        load_keys<D, false>(p, s, kv_head, p.v, p.ldv, s.begin, s.end, vt);
        load_stage<D>(p, r, 0, qt, ot, stat);
    }
    float scale2 = p.scale * 1.4426950408889634f, dk[COLS / 8][4] = {}, dv[COLS / 8][4] = {};
    int key[2] = { s.begin + m0 + lane / 4, s.begin + m0 + lane / 4 + 8 };
    for (int i0 = 0, stage = 0; i0 < r.n; i0 += TILE, stage ^= 1) {
        if (i0 + TILE < r.n) {
            if (loads)
                load_stage<D>(p, r, i0 + TILE, qt + (stage ^ 1) * TILE * D, ot + (stage ^ 1) * TILE * D,
                              stat + (stage ^ 1) * 3 * TILE);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        const bf16 *q = qt + stage * TILE * D, *d_o = ot + stage * TILE * D;
        const float *lse = stat + stage * 3 * TILE, *delta = lse + TILE;
        const int *position = (const int *)(lse + 2 * TILE);
        bool all = p.window <= 0 && position[0] >= s.begin + KEYS - 1 && i0 + TILE <= r.n; /* every row sees every key: no mask */
        float w[OWN / 8][4], dw[OWN / 8][4];
        scores<D, OWN / 8>(w, kt, m0, q, mine);
        scores<D, OWN / 8>(dw, vt, m0, d_o, mine);
#pragma unroll
        for (int j = 0; j < OWN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = mine + j * 8 + (lane % 4) * 2 + e % 2, half = e / 2;
                w[j][e] = weight(w[j][e], all || sees(position[i], key[half], p.window), scale2, lse[i]);
                dw[j][e] = w[j][e] * (dw[j][e] - delta[i]) * p.scale;
            }
        if (SPLIT == 1) {
            gather<D, COLS / 8, OWN / 16>(dv, w, d_o, 0, c0);
            gather<D, COLS / 8, OWN / 16>(dk, dw, q, 0, c0);
        } else {
            pack_pair(w, dw, exchange[group * THREADS]);
            __syncthreads();
#pragma unroll
            for (int part = 0; part < SPLIT; part++) {
                pair_weights x = exchange[part * THREADS];
                gather_packed<D, COLS / 8>(dv, x.w, d_o, part * OWN, c0);
                gather_packed<D, COLS / 8>(dk, x.dw, q, part * OWN, c0);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (key[half] >= s.end)
            continue;
        int64_t row = s.origin + key[half];
        bf16 *to_k = p.dk + (row * p.n_kv_heads + kv_head) * p.d, *to_v = p.dv + row * p.lddv + kv_head * p.d;
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            int c = c0 + j * 8 + (lane % 4) * 2;
            if (c >= p.d)
                continue;
            *(uint32_t *)(to_k + c) = pack(dk[j][half * 2], dk[j][half * 2 + 1]);
            *(uint32_t *)(to_v + c) = pack(dv[j][half * 2], dv[j][half * 2 + 1]);
        }
    }
}

/* Eight lanes a head, eight numbers a piece. Added in the order of 32 lanes that hold two numbers each. */
__global__ void make_delta(const bf16 *d_o, const bf16 *o, float *delta, int64_t heads, int d)
{
    int64_t head = (int64_t)blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8;
    bool there = head < heads;
    float sum[4] = {};
    for (int c = threadIdx.x % 8 * 8; there && c < d; c += 64) {
        uint4 x = *(const uint4 *)(d_o + head * d + c), y = *(const uint4 *)(o + head * d + c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 a = unpack((&x.x)[i]), b = unpack((&y.x)[i]);
            sum[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, sum[i]));
        }
    }
#pragma unroll
    for (int step = 4; step; step >>= 1)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
    if (there && threadIdx.x % 8 == 0)
        delta[head] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

int tcu_attention_delta(const tcu_bf16 *d_o, const tcu_bf16 *o, float *delta, int64_t heads, int32_t d, tcu_stream stream)
{
    make_delta<<<(unsigned)((heads + 31) / 32), 256, 0, stream>>>(d_o, o, delta, heads, d);
    return cudaGetLastError();
}

template <int D, int SPLIT> static int rows_sweep(const tcu_attention *p, tcu_stream stream)
{
    size_t bytes = (2 * 64 + 4 * KEYS) * D * sizeof(bf16);
    cudaError_t e = cudaFuncSetAttribute(back_rows<D, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e)
        return e;
    back_rows<D, SPLIT><<<dim3(p->n_spans, p->n_kv_heads), THREADS * SPLIT, bytes, stream>>>(*p);
    return cudaGetLastError();
}

template <int D, int SPLIT> static int keys_sweep(const tcu_attention *p, tcu_stream stream)
{
    size_t bytes = (2 * KEYS + 4 * TILE) * D * sizeof(bf16) + 6 * TILE * sizeof(float) +
                   (SPLIT > 1 ? SPLIT * THREADS * sizeof(pair_weights) : 0);
    cudaError_t e = cudaFuncSetAttribute(back_keys<D, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e)
        return e;
    back_keys<D, SPLIT><<<dim3(p->n_spans, p->n_kv_heads), THREADS * SPLIT, bytes, stream>>>(*p);
    return cudaGetLastError();
}

int tcu_attention_dq(const tcu_attention *p, tcu_stream stream)
{
    if (p->grouped)
        return tcu_grouped_dq(p, stream);
    return p->d <= 64 ? rows_sweep<64, 1>(p, stream) : p->d <= 128 ? rows_sweep<128, 1>(p, stream) : rows_sweep<256, 2>(p, stream);
}

int tcu_attention_dkv(const tcu_attention *p, tcu_stream stream)
{
    if (p->grouped)
        return tcu_grouped_dkv(p, stream);
    return p->d <= 64 ? keys_sweep<64, 1>(p, stream) : p->d <= 128 ? keys_sweep<128, 1>(p, stream) : keys_sweep<256, 2>(p, stream);
}
