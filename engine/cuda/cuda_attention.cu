/* cuda_attention.cu - attention forward, packed and paged, for many rows and for few.
 *
 * One source for all: with NARROW the four warps hold the same 16 rows and a quarter of the columns of o each
 * (decoding), else 16 rows each and all columns (training, prompts).
 */
#include "cuda/cuda_attention.cuh"

/* Weights of one key block: s becomes exp2(s * scale - max), sum and shrink follow. Rows g and g + 8 of the warp. */
DEVICE void weigh(float s[KEYS / 8][4], const int pos[2], int key0, int window, float scale2, float max[2], float sum[2],
                  float shrink[2])
{
    int t = (threadIdx.x % 4) * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY, part = 0;
        int first = window > 0 ? pos[half] - window + 1 : 0;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int key = key0 + j * 8 + t + e;
                float *x = &s[j][half * 2 + e];
                *x = key <= pos[half] && key >= first ? __fmul_rn(*x, scale2) : -INFINITY;
                top = fmaxf(top, *x);
            }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        top = fmaxf(max[half], top);
        float base = top == -INFINITY ? 0 : top;
        shrink[half] = exp2_fast(__fsub_rn(max[half], base));
        max[half] = top;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *x = &s[j][half * 2 + e];
                *x = exp2_fast(__fsub_rn(*x, base));
                part = __fadd_rn(part, *x);
            }
        part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 1));
        part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 2));
        sum[half] = __fmaf_rn(sum[half], shrink[half], part);
    }
}

template <int D, bool PAGED, bool NARROW> __global__ void __launch_bounds__(THREADS) forward(tcu_attention p)
{
    enum { ROWS = NARROW ? 16 : 64, COLS = NARROW ? D / WARPS : D };
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *qt = (bf16 *)shared, *kt = qt + ROWS * D, *vt = kt + 2 * KEYS * D;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    tcu_span s = p.spans[blockIdx.x];
    if (s.end <= s.begin)
        return;
    rows_of r = rows_make(p, s, kv_head);
    int m0 = NARROW ? 0 : warp * 16, c0 = NARROW ? warp * COLS : 0;
    int low = p.window > 0 && s.begin >= p.window ? s.begin - p.window + 1 : 0;
    int block = low / KEYS, last = (s.end - 1) / KEYS;
    load_rows<ROWS, D>(r, p.q, 0, qt);
    load_keys<D, PAGED>(p, s, kv_head, p.k, p.ldk, block * KEYS, s.end, kt);
    copy_commit();
    load_keys<D, PAGED>(p, s, kv_head, p.v, p.ldv, block * KEYS, s.end, vt);
    copy_commit();

    float o[COLS / 8][4] = {}, max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 }, shrink[2];
    float scale2 = p.scale * 1.4426950408889634f;
    int row[2] = { m0 + lane / 4, m0 + lane / 4 + 8 };
    int pos[2] = { row[0] < r.n ? row_position(r, row[0]) : -1, row[1] < r.n ? row_position(r, row[1]) : -1 };
    for (int stage = 0; block <= last; block++, stage ^= 1) {
        bool more = block < last;
        if (more) {
            load_keys<D, PAGED>(p, s, kv_head, p.k, p.ldk, (block + 1) * KEYS, s.end, kt + (stage ^ 1) * KEYS * D);
            copy_commit();
            copy_wait<2>();
        } else {
            copy_wait<1>();
        }
        __syncthreads();
        float w[KEYS / 8][4];
        scores<D, KEYS / 8>(w, qt, m0, kt + stage * KEYS * D, 0);
        weigh(w, pos, block * KEYS, p.window, scale2, max, sum, shrink);
        if (more) {
            load_keys<D, PAGED>(p, s, kv_head, p.v, p.ldv, (block + 1) * KEYS, s.end, vt + (stage ^ 1) * KEYS * D);
            copy_commit();
            copy_wait<2>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[j][e] = __fmul_rn(o[j][e], shrink[e / 2]);
        gather<D, COLS / 8, KEYS / 16>(o, w, vt + stage * KEYS * D, 0, c0);
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row[half] >= r.n)
            continue;
        int64_t at = row_head(r, row[half]);
        float over = __frcp_rn(sum[half]);
        if (p.lse && lane % 4 == 0)
            p.lse[at] = max[half] + log2f(sum[half]);
#pragma unroll
        for (int j = 0; j < COLS / 8; j++) {
            int c = c0 + j * 8 + (lane % 4) * 2;
            if (c < p.d)
                *(uint32_t *)(p.o + at * p.d + c) =
                    pack(__fmul_rn(o[j][half * 2], over), __fmul_rn(o[j][half * 2 + 1], over));
        }
    }
}

template <int D, bool PAGED, bool NARROW> static int run(const tcu_attention *p, tcu_stream stream)
{
    size_t bytes = ((NARROW ? 16 : 64) + 4 * KEYS) * D * sizeof(bf16);
    cudaError_t e = cudaFuncSetAttribute(forward<D, PAGED, NARROW>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e)
        return e;
    forward<D, PAGED, NARROW><<<dim3(p->n_spans, p->n_kv_heads), THREADS, bytes, stream>>>(*p);
    return cudaGetLastError();
}

template <int D> static int choose(const tcu_attention *p, bool narrow, tcu_stream stream)
{
    if (p->tables)
        return narrow ? run<D, true, true>(p, stream) : run<D, true, false>(p, stream);
    return narrow ? run<D, false, true>(p, stream) : run<D, false, false>(p, stream);
}

int32_t tcu_span_tokens(int32_t n_heads, int32_t n_kv_heads, bool narrow)
{
    int32_t group = n_heads / n_kv_heads;
    return (narrow && group <= 16 ? 16 : 64) / group;
}

int tcu_attention_forward(const tcu_attention *p, bool narrow, tcu_stream stream)
{
    if (!p->n_spans)
        return 0;
    narrow = narrow && p->n_heads / p->n_kv_heads <= 16;
    return p->d <= 64 ? choose<64>(p, narrow, stream) : choose<128>(p, narrow, stream);
}
