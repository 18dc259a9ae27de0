/* cuda_head.cu - over the vocabulary: log-sum-exp, log-probs, the gradient of the logits. A row of logits is fp32. */
#include "cuda/cuda_columns.cuh"
#include "cuda/cuda_kernels.h"

enum { THREADS = CHAINS, SHARES = 16 }; /* SHARES: blocks that share one of few rows */

/* Thread t of 1024. AHEAD columns are read before the first is added: a thread of few rows would wait for each of them. */
DEVICE running sum_columns(const float *row, int v, int t)
{
    enum { AHEAD = 8, STEP = CHAIN_STEP };
    running r = { -INFINITY, 0 };
#pragma unroll 1
    for (int i = t * 4; i < v; i += AHEAD * STEP) {
        float4 x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            x[j] = i + j * STEP < v ? *(const float4 *)(row + i + j * STEP) : make_float4(0, 0, 0, 0); /* ldz is a multiple of 8 */
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * STEP < v)
                add_columns(r, x[j], i + j * STEP, v);
    }
    return r;
}

/* By one block a row. parts: what several blocks found before; NULL: to be found here. */
__global__ void __launch_bounds__(THREADS) log_sum(const float *z, int64_t ldz, int v, const running *parts, float *max_out,
                                                   float *log_out)
{
    running r = parts ? parts[blockIdx.x * THREADS + threadIdx.x] : sum_columns(z + blockIdx.x * ldz, v, threadIdx.x);
    float top = block_max(r.max), all = block_sum(share_of(r, top));
    if (threadIdx.x == 0) {
        max_out[blockIdx.x] = top;
        log_out[blockIdx.x] = logf(all);
    }
}

__global__ void log_parts(const float *z, int64_t ldz, int v, running *parts)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    parts[blockIdx.y * THREADS + t] = sum_columns(z + blockIdx.y * ldz, v, t);
}

__global__ void score(const float *z, int64_t ldz, const int32_t *row, int per, const int32_t *token, const float *max,
                      const float *log_sum, float *lp, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int r = row ? row[i] : i / per, t = token[i];
    lp[i] = t < 0 ? 0 : __fsub_rn(__fsub_rn(z[r * ldz + t], max[r]), log_sum[r]);
}

/* dz at the targets: the sum of their g (a target may occur twice) plus the softmax term. */
DEVICE void fix_targets(const float *z, float max, float log_sum, float scale, const int32_t *targets, const float *g,
                        float *fix, int k)
{
    for (int j = threadIdx.x; j < k; j += THREADS) {
        int t = targets[j];
        if (t < 0)
            continue;
        float sum = 0;
        for (int i = 0; i < k; i++)
            if (targets[i] == t)
                sum += g[i];
        fix[j] = fmaf(scale, __expf((z[t] - max) - log_sum), sum);
    }
}

__global__ void __launch_bounds__(THREADS) head_back(float *z, int64_t ldz, int v, const float *max, const float *log_sum,
                                                     const int32_t *targets, const float *g, float *fix, int k)
{
    int64_t r = blockIdx.x;
    float *row = z + r * ldz, m = max[r], l = log_sum[r], part = 0;
    bf16 *out = (bf16 *)row;
    bool any = false;
    for (int j = threadIdx.x; j < k; j += THREADS) {
        part += g[r * k + j];
        any = any || g[r * k + j] != 0;
    }
    float scale = -block_sum(part);
    any = __syncthreads_or(any);
    if (any)
        fix_targets(row, m, l, scale, targets + r * k, g + r * k, fix + r * k, k);
    __syncthreads();
    /* In place: all threads have read what is overwritten. */
    for (int i0 = 0; i0 < ldz; i0 += THREADS * 4) {
        int i = i0 + threadIdx.x * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (any && i < v) {
            x = *(const float4 *)(row + i);
            x.x = scale * __expf((x.x - m) - l);
            x.y = i + 1 < v ? scale * __expf((x.y - m) - l) : 0;
            x.z = i + 2 < v ? scale * __expf((x.z - m) - l) : 0;
            x.w = i + 3 < v ? scale * __expf((x.w - m) - l) : 0;
        }
        __syncthreads();
        if (i < ldz)
            *(uint2 *)(out + i) = make_uint2(pack(x.x, x.y), pack(x.z, x.w));
    }
    __syncthreads();
    for (int j = threadIdx.x; any && j < k; j += THREADS)
        if (targets[r * k + j] >= 0)
            out[targets[r * k + j]] = narrow(fix[r * k + j]);
}

/* ---- launches ---- */

int tcu_log_sum(const float *z, int64_t ldz, int32_t rows, int32_t v, float *max, float *out, float *parts, tcu_stream stream)
{
    running *known = rows <= TCU_FEW_SUMS ? (running *)parts : NULL;
    int e = known ? launch(log_parts, dim3(SHARES, rows), THREADS / SHARES, 0, stream, z, ldz, v, known) : 0;
    return e ? e : launch(log_sum, dim3(rows), THREADS, 0, stream, z, ldz, v, (const running *)known, max, out);
}

int tcu_score(const float *z, int64_t ldz, const int32_t *row, int32_t per, const int32_t *token, const float *max,
              const float *log_sum, float *lp, int32_t n, tcu_stream stream)
{
    if (!n)
        return 0;
    score<<<(n + 255) / 256, 256, 0, stream>>>(z, ldz, row, per, token, max, log_sum, lp, n);
    return cudaGetLastError();
}

int tcu_head_back(float *z, int64_t ldz, int32_t rows, int32_t v, const float *max, const float *log_sum,
                  const int32_t *targets, const float *g, float *fix, int32_t k, tcu_stream stream)
{
    head_back<<<rows, THREADS, 0, stream>>>(z, ldz, v, max, log_sum, targets, g, fix, k);
    return cudaGetLastError();
}
